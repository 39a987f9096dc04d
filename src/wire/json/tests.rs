use super::*;
use crate::base::rng::Rng;
use crate::wire::Span;
use serde_json::Value;

/// Records each token as text, so that scans can be compared.
#[derive(Default, PartialEq, Debug)]
struct Log(Vec<String>);

impl Visitor for Log {
    fn token(&mut self, buf: &[u8], token: Token, depth: usize, span: Span) -> Result<(), Stop> {
        self.0.push(format!("{depth} {token:?} {}", String::from_utf8_lossy(span.of(buf))));
        Ok(())
    }
}

fn scan_whole(text: &[u8]) -> Result<Log, ScanError> {
    let mut log = Log::default();
    scan(text, &mut log).map(|()| log)
}

const SAMPLES: &[&str] = &[
    "{}",
    " [ ] ",
    "0",
    "-12.5e+3",
    "\"\"",
    "true",
    r#"{"a":[1,2.0,-0,{"b":null}],"c\n\"":"\u0041\ud83d\ude00 é 漢 🎉","d":{"e":[[],[{}]]}}"#,
    "\t{ \"k\" :\r\n [ true , false , null , \"\\\\\" ] }\n",
];

#[test]
fn tokens_are_in_order_with_depth_and_span() {
    let log = scan_whole(br#"{"a":[1,"x"],"b":{}}"#).unwrap();
    let want = [
        "0 ObjectOpen {",
        "1 Key a",
        "1 ArrayOpen [",
        "2 Number 1",
        "2 String x",
        "1 ArrayClose ]",
        "1 Key b",
        "1 ObjectOpen {",
        "1 ObjectClose }",
        "0 ObjectClose }",
    ];
    assert_eq!(log.0, want);
}

#[test]
fn truncated_document_and_trailing_bytes_are_refused() {
    for sample in SAMPLES {
        let text = sample.trim();
        for end in 0..text.len() {
            let cut = &text.as_bytes()[..end];
            let is_number = cut.last().is_some_and(u8::is_ascii_digit) && !text.starts_with(['{', '[', '"']);
            assert_eq!(scan_whole(cut).is_ok(), is_number, "{text} cut at {end}");
        }
        for tail in ["x", "{}", ",", "]", "\"", "\0"] {
            let with_tail = format!("{sample} {tail}");
            assert!(scan_whole(with_tail.as_bytes()).is_err(), "{with_tail}");
        }
    }
}

#[test]
fn invalid_json_is_refused_at_its_byte() {
    let cases: &[(&[u8], usize, &str)] = &[
        (b"\xEF\xBB\xBF{}", 0, "expected a value"),
        (b"{\"a\":1,}", 7, "expected a string as key"),
        (b"[1,]", 3, "expected a value"),
        (b"{\"a\" 1}", 5, "expected `:`"),
        (b"[1 2]", 3, "expected `,` or `]`"),
        (b"{\"a\":1]", 6, "expected `,` or `}`"),
        (b"01", 1, "trailing bytes"),
        (b"1.}", 2, "expected a digit"),
        (b"-x", 1, "expected a digit"),
        (b"+1", 0, "expected a value"),
        (b"nul", 3, "unexpected end"),
        (b"nulx", 0, "expected a value"),
        (b"\"\x1f\"", 1, "a control character must be escaped"),
        (b"\"a\nb\"", 2, "a control character must be escaped"),
        (b"\"\\x\"", 1, "unknown escape"),
        (b"\"\\u12g4\"", 1, "expected four hexadecimal digits"),
        (b"\"\\ud800\"", 1, "a lone surrogate"),
        (b"\"\\ud800\\u0041\"", 1, "a lone surrogate"),
        (b"\"\\udc00\"", 1, "a lone surrogate"),
        (b"\"\xff\"", 1, "not UTF-8"),
        (b"\"\xc0\x80\"", 1, "not UTF-8"),
        (b"\"\xed\xa0\x80\"", 1, "not UTF-8"),
        (b"\"\xf4\x90\x80\x80\"", 1, "not UTF-8"),
        (b"{} {}", 3, "trailing bytes"),
        (b"", 0, "unexpected end"),
    ];
    for (text, at, what) in cases {
        let syntax = check(text).unwrap_err();
        assert_eq!((syntax.at, syntax.what), (*at, *what), "{:?}", String::from_utf8_lossy(text));
    }
}

#[test]
fn nesting_is_allowed_to_128_levels_and_no_further() {
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        let nested = |levels: usize| {
            let inner = if open == "[" { "" } else { "1" };
            format!("{}{inner}{}", open.repeat(levels), close.repeat(levels))
        };
        assert_eq!(check(nested(128).as_bytes()), Ok(()));
        assert_eq!(check(nested(129).as_bytes()).unwrap_err().what, "nested deeper than 128 levels");
    }
}

/// Generates a random document, shallow enough for serde_json, with numbers small enough for its doubles.
fn generate(rng: &mut Rng, depth: usize, out: &mut Vec<u8>) {
    let space = |rng: &mut Rng, out: &mut Vec<u8>| {
        if rng.below(6) == 0 {
            out.extend_from_slice(&b" \n\t\r"[..1 + rng.below(4) as usize]);
        }
    };
    space(rng, out);
    match rng.below(if depth > 5 { 6 } else { 9 }) {
        0 => out.extend_from_slice(b"null"),
        1 => out.extend_from_slice(if rng.below(2) == 0 { b"true" } else { b"false" }),
        2 => out.extend_from_slice(format!("{}", rng.below(1 << 40) as i64 - (1 << 39)).as_bytes()),
        3 => out.extend_from_slice(format!("{}.{}e{}", rng.below(100), rng.below(99), rng.below(9)).as_bytes()),
        4 | 5 => generate_string(rng, out),
        6 | 7 => {
            out.push(b'{');
            for at in 0..rng.below(5) {
                if at > 0 {
                    out.push(b',');
                }
                space(rng, out);
                generate_string(rng, out);
                space(rng, out);
                out.push(b':');
                generate(rng, depth + 1, out);
            }
            out.push(b'}');
        }
        _ => {
            out.push(b'[');
            for at in 0..rng.below(5) {
                if at > 0 {
                    out.push(b',');
                }
                generate(rng, depth + 1, out);
            }
            out.push(b']');
        }
    }
    space(rng, out);
}

fn generate_string(rng: &mut Rng, out: &mut Vec<u8>) {
    const PIECES: &[&str] = &[
        "a",
        "plain words here",
        "\\n",
        "\\\"",
        "\\\\",
        "\\/",
        "\\u0041",
        "\\ud83d\\ude00",
        "é",
        "漢字",
        "🎉",
        "\\t",
        "0",
        " ",
        "'",
        "\u{7f}",
        "\\b\\f\\r",
        "\\u00e9",
        "\u{ffff}",
        "model",
        "\\u0000",
    ];
    out.push(b'"');
    for _ in 0..rng.below(6) {
        out.extend_from_slice(PIECES[rng.below(PIECES.len() as u64) as usize].as_bytes());
    }
    out.push(b'"');
}

fn mutate(rng: &mut Rng, text: &mut Vec<u8>) {
    const BYTES: &[u8] = b"{}[]\",:\\u0x1e-+.tfn \n\x00\x1f\x7f\x80\xc3\xe2\xed\xf0\xff";
    for _ in 0..=rng.below(2) {
        let at = rng.below(text.len() as u64 + 1) as usize;
        let byte = BYTES[rng.below(BYTES.len() as u64) as usize];
        match rng.below(4) {
            0 => text.insert(at, byte),
            1 if at < text.len() => text[at] = byte,
            2 if at < text.len() => drop(text.remove(at)),
            _ => text.truncate(at),
        }
    }
}

/// Generates a string of several blocks, with runs of backslashes across their borders.
fn generate_long_string(rng: &mut Rng, out: &mut Vec<u8>) {
    out.push(b'"');
    for _ in 0..rng.below(40) {
        let piece = ["aaaaaaa", "\\\\", "\\\"", "\\n", "b", "\\u00e9", "é"][rng.below(7) as usize];
        out.extend_from_slice(piece.as_bytes());
    }
    out.push(b'"');
}

/// Says whether serde_json accepts a document; `None` for one with a number that is too large for its doubles. The
/// grammar has no largest number.
fn serde_accepts(text: &[u8]) -> Option<bool> {
    match serde_json::from_slice::<Value>(text) {
        Ok(_) => Some(true),
        Err(error) => (!error.to_string().starts_with("number out of range")).then_some(false),
    }
}

#[test]
fn the_scanner_and_serde_json_agree_on_what_is_json() {
    let mut rng = Rng::from_u64(7);
    let (mut accepted, mut refused) = (0, 0);
    for round in 0..8000 {
        let mut text = Vec::new();
        generate(&mut rng, 0, &mut text);
        if round % 4 == 0 {
            text.splice(0..0, *b"[");
            text.push(b',');
            generate_long_string(&mut rng, &mut text);
            text.push(b']');
        }
        let is_json = serde_accepts(&text) == Some(true);
        assert!(is_json, "the generator has not written JSON: {}", String::from_utf8_lossy(&text));
        if rng.below(3) > 0 {
            mutate(&mut rng, &mut text);
        }
        let Some(expected) = serde_accepts(&text) else { continue };
        let scanned = scan_whole(&text);
        assert_eq!(scanned.is_ok(), expected, "{scanned:?} of {}", String::from_utf8_lossy(&text));
        if expected {
            accepted += 1;
            assert_views_agree(Raw::new(&text), &text);
        } else {
            refused += 1;
        }
    }
    assert!(accepted > 2000 && refused > 1000, "{accepted} accepted, {refused} refused");
}

/// Checks that every value seen through a view equals that of serde_json. Of repeated keys the last one counts.
fn assert_views_agree(view: Raw<'_>, text: &[u8]) {
    let Ok(value) = serde_json::from_slice::<Value>(text) else { return };
    let mut pending = vec![(view, value)];
    while let Some((view, value)) = pending.pop() {
        match value {
            Value::Null => assert!(view.is_null()),
            Value::Bool(truth) => assert_eq!(view.bool(), Some(truth)),
            Value::Number(number) => assert_eq!(view.number(), number.as_f64()),
            Value::String(text) => {
                assert_eq!(view.text().as_deref(), Some(text.as_str()));
                assert!(view.is(&text));
                let mut written = Vec::new();
                write_string(&mut written, &text);
                assert_eq!(serde_json::from_slice::<String>(&written).unwrap(), text);
            }
            Value::Array(items) => {
                let seen: Vec<_> = view.items().collect();
                assert_eq!(seen.len(), items.len());
                let names = ["model", "a"];
                let mut picked = view.items();
                for item in &seen {
                    assert_eq!(picked.pick(names), Some((*item, names.map(|name| item.get(name)))));
                }
                assert_eq!(picked.pick(names), None);
                pending.extend(seen.into_iter().zip(items));
            }
            Value::Object(members) => {
                for (key, value) in members {
                    let seen = view.get(&key);
                    assert_eq!(seen.is_none(), value.is_null(), "{key}");
                    let names = ["no such member", &key, "model"];
                    let picked = if key == "model" { [None, seen, None] } else { names.map(|name| view.get(name)) };
                    assert_eq!(view.pick(names), picked, "{key}");
                    assert_eq!(check_and_pick(view.bytes(), names), Ok(picked), "{key}");
                    pending.extend(seen.map(|seen| (seen, value)));
                }
            }
        }
    }
}

#[test]
fn counts_are_whole_numbers_that_are_not_negative() {
    let count = |text: &str| Raw::new(text.as_bytes()).count();
    assert_eq!(count("12"), Some(12));
    assert_eq!(count("12.0"), Some(12));
    assert_eq!(count("99999999999999999999999"), Some(u64::MAX));
    for text in ["-1", "1.5", "1e3", "\"1\"", "null", "[1]"] {
        assert_eq!(count(text), None, "{text}");
    }
}

#[test]
fn integers_are_read_in_every_notation() {
    let integer = |text: &str| Raw::new(text.as_bytes()).integer();
    for (text, value) in [
        ("128", 128),
        ("128.0", 128),
        ("1.28e2", 128),
        ("12800e-2", 128),
        ("0.5E+1", 5),
        ("1e3", 1000),
        ("0e9", 0),
        ("0.0", 0),
        ("18446744073709551615", u64::MAX),
    ] {
        assert_eq!(integer(text), Some(value), "{text}");
    }
    for text in ["1e400", "0.001e999999999999999999999", "18446744073709551616", "1.8446744073709551616e19"] {
        assert_eq!(integer(text), Some(u64::MAX), "{text}");
    }
    for text in ["-1", "-1e2", "1.5", "1.285e2", "1e-1", "5e-999999999999999999999", "\"1\"", "null", "[1]", ""] {
        assert_eq!(integer(text), None, "{text}");
    }
}

#[test]
fn escaped_names_are_recognised_without_a_copy() {
    for (raw, text, same) in [
        ("mod\\u0065l", "model", true),
        ("model", "model", true),
        ("mod\\u0065l", "mode", false),
        ("mod\\u0065", "model", false),
        ("\\ud83d\\ude00x", "😀x", true),
        ("a\\/b", "a/b", true),
    ] {
        assert_eq!(eq_unescaped(raw.as_bytes(), text), same, "{raw}");
    }
}

#[test]
fn view_of_invalid_json_is_empty_and_does_not_panic() {
    let mut rng = Rng::from_u64(11);
    for _ in 0..2000 {
        let mut text = Vec::new();
        generate(&mut rng, 3, &mut text);
        mutate(&mut rng, &mut text);
        let view = Raw::new(&text);
        for (key, value) in view.members().take(100) {
            let _ = (eq_unescaped(key, "model"), value.text(), value.count(), value.kind());
        }
        assert!(view.items().count() <= text.len());
        let names = ["model", "a"];
        let mut items = view.items();
        assert!(std::iter::from_fn(|| items.pick(names)).take(text.len() + 1).count() <= text.len());
        match check(&text) {
            Ok(()) => assert_eq!(check_and_pick(&text, names), Ok(view.pick(names))),
            Err(syntax) => assert_eq!(check_and_pick(&text, names), Err(ScanError::Syntax(syntax))),
        }
    }
}

#[test]
fn error_is_reported_at_its_own_character() {
    for (text, at) in [
        (&b"{\"a\xc9\x99\xff\":1}"[..], 5),
        (b"\"\xc3\xa9\xe2\x82\"", 3),
        (b"\"\xc3\xa9\xc3\xa9\xed\xa0\x80\"", 5),
        (b"\"x\\uD800\"", 2),
    ] {
        assert_eq!(check(text).map_err(|syntax| syntax.at), Err(at), "{text:?}");
    }
}

#[test]
fn an_object_is_written_with_other_values() {
    let with = |object: &str, values: &[(&str, &str)]| {
        let mut out = Vec::new();
        object_with(Raw::new(object.as_bytes()), values, &mut out);
        String::from_utf8(out).unwrap()
    };
    assert_eq!(with("{}", &[("a", "1"), ("b", "")]), "{\"a\":1}");
    assert_eq!(
        with("{ \"b\" : 1 , \"\\u0061\":2,\"c\":[3, 4],\"a\":5}", &[("a", "6"), ("b", "")]),
        "{\"c\":[3, 4],\"a\":6}"
    );
    assert_eq!(with("[1]", &[("a", "")]), "{}");
}
