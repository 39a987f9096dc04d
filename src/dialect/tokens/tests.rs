use super::*;

/// The most any committed text may be off, in percent. The aim was 10; 25 would be refused.
const ERROR_MAX: f64 = 10.0;

fn estimate(text: &str) -> u64 {
    let mut estimator = Estimator::new();
    estimator.feed(text.as_bytes());
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
    let text = "Ünïted camelCase HTTP_SERVER 12345\n\n  if (x) { 漢字かな } // 🎉 done…";
    let whole = estimate(text);
    let mut by_char = Estimator::new();
    for c in text.chars() {
        by_char.feed(c.encode_utf8(&mut [0; 4]).as_bytes());
    }
    assert_eq!(by_char.tokens(), whole);
    let mut json = Vec::new();
    crate::wire::json::write_escaped(&mut json, text.as_bytes());
    let mut escaped = Estimator::new();
    escaped.feed_json(&json);
    assert_eq!(escaped.tokens(), whole);
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
    assert!(estimate(&"q".repeat(1000)) > 200);
    assert!(estimate(&"ภาษาไทย".repeat(100)) > 150);
    assert!(estimate(&"=".repeat(1000)) < 200);
}
