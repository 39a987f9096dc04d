use super::*;

fn count(text: &str) -> u64 {
    let mut estimator = Estimator::new();
    estimator.feed_json(text.as_bytes());
    estimator.tokens()
}

#[test]
fn the_estimate_does_not_depend_on_how_a_text_is_cut() {
    let text = "fn naïveCase(a: u32) {\\n    return \\\"x\\\" + 1234567; // 你好 мир \\u00e9 🦀\\n}".as_bytes();
    let mut whole = Estimator::new();
    whole.feed_json(text);
    for size in 1..40 {
        let mut pieces = Estimator::new();
        text.chunks(size).for_each(|piece| pieces.feed_json(piece));
        assert_eq!(pieces.tokens(), whole.tokens(), "pieces of {size}");
    }
}

#[test]
fn estimates_lie_near_what_tokenizers_count() {
    // Counts of a common vocabulary (cl100k) for the decoded text.
    let known = [
        ("The heron stands in the shallow water and waits; it is patient, grey and exact.", 18),
        ("Please summarise the attached report in three short sentences.", 11),
        ("for (let i = 0; i < items.length; i++) {\\n  total += items[i].price;\\n}", 25),
        ("internationalization", 2),
        ("1234567", 3),
        ("你好，世界", 5),
        ("Быстрая лисица", 6),
    ];
    for (text, tokens) in known {
        let got = count(text);
        assert!(got * 2 >= tokens && got <= tokens * 2, "{text}: {got} for {tokens}");
    }
}

#[test]
fn a_lane_holds_what_its_byte_costs() {
    assert_eq!(count(&"\u{1f980}".repeat(1000)), 2000);
    // A byte alone costs as much as it does in a block full of its kind.
    for text in ["1 ", "aB", "\u{1f980}", "é", "你", "\\\"", "\\n", ".a"] {
        let one = |times: usize| {
            let mut estimator = Estimator::new();
            estimator.count(text.repeat(times).as_bytes());
            estimator.parts().0
        };
        assert_eq!(one(1001) - one(1), 1000 * (one(2) - one(1)), "{text}");
    }
}

#[test]
fn an_escaped_text_is_not_estimated_many_times_higher_than_the_same_in_the_clear() {
    let (clear, escaped) = ("你好世界".repeat(20), "\\u4f60\\u597d\\u4e16\\u754c".repeat(20));
    assert!(count(&escaped) < 2 * count(&clear), "{} {}", count(&escaped), count(&clear));
    assert!(count(&escaped) > count(&clear) / 2);
}

#[test]
fn what_is_cut_does_not_join_and_nothing_costs_nothing() {
    assert_eq!(count(""), 0);
    let (mut joined, mut apart) = (Estimator::new(), Estimator::new());
    for word in ["herons", "wait", "here"] {
        joined.feed_json(word.as_bytes());
        apart.feed_json(word.as_bytes());
        apart.cut();
    }
    assert!(apart.tokens() > joined.tokens());
    let before = apart.tokens();
    apart.add(3);
    assert_eq!(apart.tokens(), before + 3);
}

/// The most any committed text may be off, in percent. The aim was 10; 25 would be refused.
const ERROR_MAX: f64 = 10.0;

/// The committed texts, and their tokens in OpenAI's vocabulary `o200k_base`.
const COUNTED: [(&str, u64); 5] = [("english", 567), ("code", 813), ("json", 781), ("chinese", 463), ("mixed", 389)];

fn committed(name: &str) -> String {
    let folder = std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokens");
    std::fs::read_to_string(folder.join(name).with_extension("txt")).unwrap()
}

/// Counted again by the real vocabulary, whose crate is compiled for benches alone: `cargo test --features bench`.
#[cfg(feature = "bench")]
#[test]
fn what_is_on_record_is_what_the_vocabulary_counts() {
    let vocabulary = tiktoken_rs::o200k_base().unwrap();
    for (name, real) in COUNTED {
        assert_eq!(vocabulary.encode_ordinary(&committed(name)).len() as u64, real, "{name}");
    }
}

#[test]
fn committed_texts_are_estimated_close_to_what_a_real_vocabulary_counts() {
    for (name, real) in COUNTED {
        let text = committed(name);
        let mut json = Vec::new();
        crate::wire::json::write_escaped(&mut json, text.as_bytes());
        let mut estimator = Estimator::new();
        estimator.feed_json(&json);
        let error = (estimator.tokens() as f64 / real as f64 - 1.0) * 100.0;
        println!("{name}: {} for {real}, {error:+.1} %", estimator.tokens());
        assert!(error.abs() <= ERROR_MAX, "{name}: {} for {real}, {error:+.1} %", estimator.tokens());
    }
}

#[test]
fn a_very_long_string_is_sampled_and_comes_out_alike() {
    for (name, _) in COUNTED {
        let text = committed(name);
        let mut json = Vec::new();
        crate::wire::json::write_escaped(&mut json, text.as_bytes());
        let times = SAMPLED_ABOVE / json.len() + 2;
        let (mut once, mut sampled) = (Estimator::new(), Estimator::new());
        once.feed_json(&json);
        sampled.feed_json(&json.repeat(times));
        let ratio = sampled.tokens() as f64 / (once.tokens() * times as u64) as f64;
        assert!((0.9..1.1).contains(&ratio), "{name}: {ratio}");
    }
}

/// Random bodies of texts: what is counted later comes out as it would have at once, and never above its bound.
#[test]
fn texts_counted_later_come_out_alike_and_below_their_bound() {
    let mut rng = crate::base::rng::Rng::from_u64(7);
    let alphabet = ["a", "B", " ", "1", ".", "\\n", "\\\"", "é", "你", "\u{1f980}", "\\u00e9"];
    for round in 0..300 {
        let (mut body, mut spans) = (String::new(), Vec::new());
        let texts = if round == 0 { LATER_MAX as u64 + 100 } else { rng.below(200) };
        for _ in 0..texts {
            let start = body.len();
            (0..rng.below(30)).for_each(|_| body.push_str(alphabet[rng.below(alphabet.len() as u64) as usize]));
            spans.push((Span::new(start, body.len()), rng.below(2) == 0, rng.below(5) == 0));
        }
        let (mut later, mut at_once) = (CountLater::default(), Estimator::new());
        later.text(b"left from another body", Span::new(0, 22), false);
        later.reset();
        for (span, cut, adds) in spans {
            if adds {
                later.cut();
                at_once.cut();
                later.add(4);
                at_once.add(4);
            }
            later.text(body.as_bytes(), span, cut);
            at_once.feed_json(span.of(body.as_bytes()));
            if cut {
                at_once.cut();
            }
        }
        let tokens = later.tokens(body.as_bytes());
        assert_eq!(tokens, at_once.tokens(), "round {round}");
        assert!(tokens <= later.tokens_max(), "round {round}: {tokens}");
    }
}

#[test]
fn places_of_many_texts_count_as_storage() {
    let (mut later, body) = (CountLater::default(), [b'a'; 4]);
    (0..LATER_FREE).for_each(|_| later.text(&body, Span::new(0, 4), true));
    assert_eq!(later.storage(), 0, "an ordinary request");
    (0..1000).for_each(|_| later.text(&body, Span::new(0, 4), true));
    assert!(later.storage() >= 1064 * size_of::<(Span, bool)>(), "{}", later.storage());
    assert!(later.counted.is_none(), "nothing is counted before it is asked for");
}
