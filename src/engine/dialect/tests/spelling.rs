//! Words of a format, such as types and finish reasons, mean the same in every spelling that JSON has for them.

use super::endings::SHAPES;
use super::*;

/// Members whose values are words of a format.
const MEMBERS: [&str; 9] =
    ["type", "role", "status", "finish_reason", "stop_reason", "reason", "tool_choice", "mode", "execution"];

/// The document with an escape in every word of a format: `"type":"text"` becomes `"type":"te\u0078t"`.
fn respelt(json: &str) -> String {
    let mut out = String::new();
    for part in json.split_inclusive('"') {
        let before = out.strip_suffix('"').and_then(|before| before.trim_end().strip_suffix(':')).unwrap_or_default();
        let is_word = MEMBERS.iter().any(|name| before.ends_with(&format!("\"{name}\"")));
        match part.split_at_checked(2) {
            Some((begin, rest)) if is_word && rest.len() > 1 => {
                out.push_str(&format!("{begin}\\u{:04x}{}", rest.as_bytes()[0], &rest[1..]));
            }
            _ => out.push_str(part),
        }
    }
    out
}

#[test]
fn words_mean_the_same_in_every_spelling() {
    assert_eq!(respelt(r#"{"type": "text", "a":["type","to"]}"#), r#"{"type": "te\u0078t", "a":["type","to"]}"#);
    for from in SHAPES {
        for (name, body) in fixtures(&format!(".client.{}.request.json", from.name())) {
            let body = String::from_utf8(body).unwrap();
            for to in SHAPES.into_iter().filter(|to| *to != from) {
                let written =
                    |body: &str| request_for((from, to), body, "up", &Capabilities::default()).map(|(out, _)| out);
                assert_eq!(written(&respelt(&body)), written(&body), "{name} to {to:?}");
            }
        }
        for (name, body) in fixtures(&format!(".{}.response.json", provider(from))) {
            let body = String::from_utf8(body).unwrap();
            for to in SHAPES.into_iter().filter(|to| *to != from) {
                let answer = |body: &str| {
                    let mut out = Vec::new();
                    let observed = reply((from, to), body.as_bytes(), &TranslationState::default(), &ME, &mut out)?;
                    Ok::<_, Broken>((serde_json::from_slice::<Value>(&out).unwrap(), observed.reported))
                };
                assert_eq!(answer(&respelt(&body)), answer(&body), "{name} to {to:?}");
            }
        }
        for (name, body) in fixtures(&format!(".{}.stream.sse", provider(from))) {
            let body = String::from_utf8(body).unwrap();
            for to in SHAPES.into_iter().filter(|to| *to != from) {
                let events = |body: &str| {
                    let outcome = stream_for((from, to), &TranslationState::default(), true, &ME, &[body.as_bytes()]);
                    let data = outcome.out.lines().map(|line| line.strip_prefix("data: ").unwrap_or(line));
                    let values = data.map(|data| serde_json::from_str(data).unwrap_or(Value::from(data)));
                    (values.collect::<Vec<Value>>(), outcome.result, outcome.observed.reported)
                };
                assert_eq!(events(&respelt(&body)), events(&body), "{name} to {to:?}");
            }
        }
    }
}

/// Begin of the extension of fixtures with a provider's answers.
fn provider(shape: Shape) -> &'static str {
    match shape {
        Shape::Chat => "upstream.chat",
        Shape::Messages => "upstream.messages",
        Shape::Responses => "client.responses",
    }
}
