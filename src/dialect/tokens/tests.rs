use super::*;

/// The most any committed text may be off, in percent. The aim was 10; 25 would be refused.
const ERROR_MAX: f64 = 10.0;

/// Of a text as it stands in JSON.
fn estimate(text: &str) -> u64 {
    let mut json = Vec::new();
    crate::wire::json::write_escaped(&mut json, text.as_bytes());
    estimate_json(&json)
}

fn estimate_json(json: &[u8]) -> u64 {
    let mut estimator = Estimator::new();
    estimator.feed_json(json);
    estimator.tokens()
}

#[test]
fn committed_texts_are_estimated_close_to_what_a_real_vocabulary_counts() {
    let vocabulary = tiktoken_rs::o200k_base().unwrap();
    let folder = std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokens");
    for name in ["english", "code", "json", "chinese", "mixed"] {
        let text = std::fs::read_to_string(folder.join(name).with_extension("txt")).unwrap();
        let real = vocabulary.encode_ordinary(&text).len();
        assert!(real > 300, "{name} is too short to say anything: {real} tokens");
        let error = (estimate(&text) as f64 / real as f64 - 1.0) * 100.0;
        println!("{name}: {} for {real}, {error:+.1} %", estimate(&text));
        assert!(error.abs() <= ERROR_MAX, "{name}: {} for {real}, {error:+.1} %", estimate(&text));
    }
}

#[test]
fn an_estimate_does_not_depend_on_how_the_text_is_cut() {
    let text =
        r#"Ünïted camelCase HTTP_SERVER 12345\n\n  if (x == \"y\") { 漢字かな } // 🎉 \u6f22\u5b57 done…"#.as_bytes();
    for size in 1..text.len() {
        let mut pieces = Estimator::new();
        text.chunks(size).for_each(|piece| pieces.feed_json(piece));
        assert_eq!(pieces.tokens(), estimate_json(text), "pieces of {size}");
    }
}

#[test]
fn what_is_written_with_escapes_is_estimated_like_what_is_not() {
    let (clear, escaped) = (estimate(&"漢字世界".repeat(20)), estimate_json(&br"\u6f22\u5b57\u4e16\u754c".repeat(20)));
    assert!(escaped < clear * 2 && escaped > clear / 2, "{escaped} {clear}");
}

#[test]
fn the_lanes_hold_what_is_summed_up_at_once() {
    let most = (0..=255).flat_map(|p| (0..=255).map(move |x| usize::from(cost(p, x)))).max();
    assert_eq!(most, Some(COST_MAX));
    assert_eq!(estimate(&"🎉".repeat(1000)), 44 * 1000 / PARTS);
}

#[test]
fn what_is_cut_does_not_join() {
    let (mut joined, mut apart) = (Estimator::new(), Estimator::new());
    for _ in 0..100 {
        joined.feed_json(b"wait");
        apart.feed_json(b"wait");
        apart.cut();
    }
    assert!(apart.tokens() > joined.tokens());
}

#[test]
fn nothing_is_nothing_and_anything_is_something() {
    assert_eq!(estimate(""), 0);
    for text in ["a", ".", "1", "漢", "é", "x\n"] {
        assert!(estimate(text) >= 1, "{text:?}");
    }
    let mut estimator = Estimator::new();
    estimator.add(5);
    estimator.cut();
    assert_eq!(estimator.tokens(), 5);
}

#[test]
fn text_without_words_is_not_free() {
    // Random letters cost a real vocabulary some 0.4 tokens each, Thai has no spaces.
    assert!(estimate(&"q".repeat(1000)) >= 200);
    assert!(estimate(&"ภาษาไทย".repeat(100)) > 150);
    assert!(estimate(&"=".repeat(1000)) < 200);
}
