use super::*;

fn count(text: &str) -> u64 {
    let mut estimator = Estimator::new();
    estimator.feed_json(text.as_bytes());
    estimator.tokens()
}

#[test]
fn estimate_is_the_same_however_text_is_cut() {
    let text =
        "fn naïveCase(a: u32) {\\n    return \\\"x\\\" + 1234567; // 你好 мир \\u00e9 \\\\u 🦀\\ud83d\\ude00\\n}";
    let mut whole = Estimator::new();
    whole.feed_json(text.as_bytes());
    let runs: Vec<&[u8]> = characters(text.as_bytes());
    for size in 1..40 {
        let mut pieces = Estimator::new();
        runs.chunks(size).for_each(|piece| pieces.feed_json(&piece.concat()));
        assert_eq!(pieces.tokens(), whole.tokens(), "pieces of {size}");
    }
}

/// The characters of a string's inside, each escape as one.
fn characters(mut raw: &[u8]) -> Vec<&[u8]> {
    let mut found = Vec::new();
    while !raw.is_empty() {
        let length = match raw {
            [b'\\', b'u', b'd', b'8'..=b'b', ..] => 12,
            [b'\\', b'u', ..] => 6,
            [b'\\', ..] => 2,
            [first, ..] => first.leading_ones().max(1) as usize,
            [] => 0,
        };
        let (character, rest) = raw.split_at(length);
        found.push(character);
        raw = rest;
    }
    found
}

#[test]
fn estimates_are_close_to_tokenizer_counts() {
    // Counts of a common vocabulary (cl100k) for the decoded text.
    let known = [
        ("The heron waits in the shallow water and stands; it is patient, grey and exact.", 18),
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
fn cost_of_a_byte_depends_only_on_the_one_before() {
    assert_eq!(count(&"\u{1f980}".repeat(64)), 128);
    // A repetition costs as much as the one before it.
    for text in ["1 ", "aB", "\u{1f980}", "é", "你", "\\\"", "\\n", ".a"] {
        let one = |times: usize| {
            let mut estimator = Estimator::new();
            estimator.feed_json(text.repeat(times).as_bytes());
            estimator.parts
        };
        assert_eq!(one(1001) - one(1), 1000 * (one(2) - one(1)), "{text}");
    }
}

/// A text with every UTF-16 unit escaped.
fn escaped(text: &str) -> String {
    text.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect()
}

#[test]
fn escaped_text_costs_as_much_as_plain_text() {
    for text in ["你好世界", "The heron waits in the water.", "\"\\/\t\r\n", "🦀 é мир", "\u{face}", "{\"a\": [1, 2]}"]
    {
        let text = text.repeat(20);
        let mut json = Vec::new();
        crate::wire::json::write_escaped(&mut json, text.as_bytes());
        assert_eq!(count(&escaped(&text)), count(std::str::from_utf8(&json).unwrap()), "{text}");
    }
    // An escaped backslash and a letter are two characters.
    assert_eq!(count(&r"word \\u ".repeat(100)), count(&escaped(&r"word \u ".repeat(100))));
    assert_eq!(count(r"\\u0041"), count(r"\u005cu0041"));
    assert_eq!(count(r"\uface"), count("\u{face}"));
}

#[test]
fn no_text_costs_less_than_eighth_of_its_bytes() {
    let mut rng = crate::base::rng::Rng::from_u64(23);
    for round in 0..3000 {
        let mut text = String::new();
        let (least, most) = *[(0, 0x7f), (0x20, 0x21), (0, 0x20), (0x80, 0x7ff), (0x800, 0xd7ff), (0x10000, 0x10ffff)]
            .get(rng.below(6) as usize)
            .unwrap();
        for _ in 0..1 + rng.below(300) {
            text.extend(char::from_u32(least + rng.below(u64::from(most - least) + 1) as u32));
        }
        let mut json = Vec::new();
        crate::wire::json::write_escaped(&mut json, text.as_bytes());
        for raw in [std::str::from_utf8(&json).unwrap(), &escaped(&text)] {
            let (tokens, bytes) = (count(raw), text.len() as u64);
            assert!(tokens * 8 >= bytes, "round {round}: {tokens} for {bytes} bytes: {raw}");
        }
    }
}

#[test]
fn separate_texts_do_not_join_and_empty_text_is_free() {
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

/// The maximum error for any committed text, in percent. The target was 10; 25 would be unacceptable.
const ERROR_MAX: f64 = 10.0;

/// The committed texts, and their tokens in OpenAI's vocabulary `o200k_base`.
const COUNTED: [(&str, u64); 5] = [("english", 567), ("code", 813), ("json", 781), ("chinese", 463), ("mixed", 389)];

fn committed(name: &str) -> String {
    let folder = std::path::PathBuf::from(crate::ROOT).join("tests/fixtures/tokens");
    std::fs::read_to_string(folder.join(name).with_extension("txt")).unwrap()
}

/// Counted again with the real vocabulary. Its crate is compiled only for benches: `cargo test --features bench`.
#[cfg(feature = "bench")]
#[test]
fn recorded_counts_equal_those_of_the_vocabulary() {
    let vocabulary = tiktoken_rs::o200k_base().unwrap();
    for (name, real) in COUNTED {
        assert_eq!(vocabulary.encode_ordinary(&committed(name)).len() as u64, real, "{name}");
    }
}

#[test]
fn estimates_of_committed_texts_are_close_to_real_counts() {
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
fn long_text_is_counted_whole() {
    // Dense text at a position that a sample would miss, in a text of blanks.
    let (blanks, dense) = (" ".repeat(2 << 20), "!a9~Zq".repeat(50_000));
    let text = format!("{blanks}{dense}{blanks}");
    let apart = 2 * count(&blanks) + count(&dense);
    assert!(count(&text).abs_diff(apart) < 10, "{} {apart}", count(&text));
}

/// Random bodies of texts: a later count equals an immediate one and never exceeds its bound.
#[test]
fn later_counts_equal_immediate_ones_within_their_bound() {
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

/// A row of a table of texts and what three tokenizers count, made by `tests/tokens/count.mjs` and `search.mjs`.
#[derive(serde::Deserialize)]
struct Known {
    o200k: u64,
    cl100k: u64,
    anthropic: u64,
    #[serde(default, alias = "pattern")]
    text: String,
    #[serde(default)]
    kind: String,
    times: Option<usize>,
}

fn known(name: &str) -> Vec<(Known, String)> {
    let path = std::path::PathBuf::from(crate::ROOT).join("tests/fixtures/tokens").join(name);
    let rows = std::fs::read_to_string(path).unwrap();
    let row = |row| {
        let known: Known = serde_json::from_str(row).unwrap();
        let text = known.text.repeat(known.times.unwrap_or(1));
        (known, text)
    };
    rows.lines().map(row).collect()
}

/// Estimates of a text as a client may write it: plain, and with everything escaped.
fn both(text: &str) -> [u64; 2] {
    let mut json = Vec::new();
    crate::wire::json::write_escaped(&mut json, text.as_bytes());
    [count(std::str::from_utf8(&json).unwrap()), count(&escaped(text))]
}

#[test]
fn kinds_of_text_cost_fifth_of_least_count() {
    let rows = known("kinds.jsonl");
    assert!(rows.len() >= 40, "{} kinds", rows.len());
    let mut cheap = Vec::new();
    for (row, text) in rows {
        let least = row.o200k.min(row.cl100k).min(row.anthropic);
        for tokens in both(&text) {
            if tokens * 5 < least || tokens * 8 < text.len() as u64 {
                cheap.push(format!("{}: {tokens} for {least}, {} bytes", row.kind, text.len()));
            }
        }
    }
    assert!(cheap.is_empty(), "{cheap:#?}");
}

#[test]
fn worst_texts_found_cost_eighth_of_least_count() {
    let rows = known("worst.jsonl");
    assert!(rows.len() >= 20, "{} texts", rows.len());
    for (row, text) in rows {
        let least = row.o200k.min(row.cl100k).min(row.anthropic);
        for tokens in both(&text) {
            assert!(tokens * 8 >= least.max(text.len() as u64), "{:?}: {tokens} for {least}", row.text);
        }
    }
}

#[test]
fn positions_of_many_texts_count_as_storage() {
    let (mut later, body) = (CountLater::default(), [b'a'; 4]);
    (0..LATER_FREE).for_each(|_| later.text(&body, Span::new(0, 4), true));
    assert_eq!(later.storage(), 0, "an ordinary request");
    (0..1000).for_each(|_| later.text(&body, Span::new(0, 4), true));
    assert!(later.storage() >= 1064 * size_of::<(Span, bool)>(), "{}", later.storage());
    assert!(later.counted.is_none(), "nothing is counted before it is asked for");
}
