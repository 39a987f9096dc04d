//! Provider answers that users of other gateways have reported, for clients of every format: one file for each
//! report in `tests/fixtures/reports/`.
//!
//! The first line of a file is a comment: who reported it, and what is odd. A case begins with `=== whole` or
//! `=== stream` and the format of the provider. After `--- in` stands the answer as it came. After `--- out` stands, as
//! JSON, what a client of each format must get of it: `thinking`, `text`, `ends` (the word for the end in chat, messages
//! and responses), and the tokens that are charged and shown: `input` without what is `cached`, and `output`. An answer
//! that has failed has `fails`, and of a stream the `text` before that.

use super::endings::{SHAPES, index, run_stream, streamed_word, word_of};
use super::rows::cases;
use super::*;
use crate::wire::json::Raw;
use serde_json::json as value;

/// Adds what a content says, as a string or as a list of parts, to text or thinking.
fn gather(content: &Value, thinks: bool, said: &mut [String; 2]) {
    match content {
        Value::String(text) => said[usize::from(thinks)] += text,
        Value::Array(parts) => parts.iter().for_each(|part| gather(part, thinks, said)),
        Value::Object(part) => {
            let nested = part.get("thinking");
            gather(nested.or(part.get("text")).unwrap_or(&Value::Null), thinks || nested.is_some(), said);
        }
        _ => {}
    }
}

/// Rewrites one event of a stream, or a complete answer as if it were one.
fn gather_answer(shape: Dialect, answer: &Value, said: &mut [String; 2]) {
    match shape {
        Dialect::Chat | Dialect::Relay(_) => {
            let choice = &answer["choices"][0];
            let message = choice.get("message").unwrap_or(&choice["delta"]);
            gather(&message["reasoning_content"], true, said);
            gather(&message["content"], false, said);
        }
        Dialect::Messages => gather(answer.get("delta").unwrap_or(&answer["content"]), false, said),
        Dialect::Responses => {
            let kind = answer["type"].as_str().unwrap_or_default();
            if kind.ends_with("text.delta") {
                gather(&answer["delta"], kind.contains("reasoning"), said);
            }
            for item in answer["output"].as_array().into_iter().flatten() {
                gather(&item["summary"], true, said);
                gather(&item["content"], item["type"] == "reasoning", said);
            }
        }
    }
}

/// Tokens that an answer shows: input without what is cached, cached, output.
fn shown(shape: Dialect, usage: &Value) -> [u64; 3] {
    let usage = usage.to_string();
    counted(match shape {
        Dialect::Chat | Dialect::Relay(_) => Reported::from_chat(Raw::new(usage.as_bytes())),
        Dialect::Messages => Reported::from_messages(Raw::new(usage.as_bytes())),
        Dialect::Responses => Reported::from_responses(Raw::new(usage.as_bytes())),
    })
}

fn counted(reported: Reported) -> [u64; 3] {
    [reported.input, reported.cache_read, reported.output].map(Option::unwrap_or_default)
}

/// Result of a client, in the words of a fixture.
fn told(to: Dialect, said: &[String; 2], word: &str, tokens: [u64; 3]) -> Value {
    let [input, cached, output] = tokens;
    value!({"thinking": said[1], "text": said[0], "to": index(to), "ends": word,
        "input": input, "cached": cached, "output": output})
}

/// Translation state of a request whose client wants to see reasoning.
fn asked((from, to): (Dialect, Dialect)) -> TranslationState {
    let body = r#"{"model":"m","input":"hi","reasoning":{"summary":"auto"}}"#;
    match to {
        Dialect::Responses if from != to => request_for((to, from), body, "up", &Capabilities::default()).unwrap().1,
        _ => TranslationState::default(),
    }
}

fn complete((from, to): (Dialect, Dialect), body: &str) -> Value {
    let (mut out, mut said) = (Vec::new(), Default::default());
    let read = match from == to {
        true => whole(from, body.as_bytes(), &ME, &mut out),
        false => reply((from, to), body.as_bytes(), &asked((from, to)), &ME, &mut out),
    };
    let Ok(observed) = read else { return value!({"fails": true}) };
    let answer: Value = serde_json::from_slice(&out).unwrap();
    gather_answer(to, &answer, &mut said);
    let tokens = shown(to, &answer["usage"]);
    assert_eq!(tokens, counted(observed.reported), "{answer}");
    told(to, &said, &word_of(to, &answer.to_string()), tokens)
}

fn streamed((from, to): (Dialect, Dialect), text: &str) -> Value {
    let state = asked((from, to));
    let outcome = run_stream((from, to), &state, text);
    let Outcome { out, result, .. } = &outcome;
    if from != to {
        let cut = stream_for_every_way((from, to), &state, true, &ME, text);
        assert_eq!((&cut.out, &cut.result), (out, result));
    }
    told_by(to, outcome)
}

/// Response that the client of a stream receives.
pub(super) fn told_by(to: Dialect, Outcome { out, observed, result }: Outcome) -> Value {
    let (mut said, mut tokens) = (Default::default(), [0; 3]);
    for data in out.lines().filter_map(|line| line.strip_prefix("data: ")) {
        let Ok(event) = serde_json::from_str::<Value>(data) else { continue };
        gather_answer(to, &event, &mut said);
        let usage = event["response"].get("usage").unwrap_or(&event["usage"]);
        if usage.is_object() {
            tokens = shown(to, usage);
        }
    }
    let word = streamed_word(to, &out);
    match result {
        Ok(()) => {
            assert_eq!(tokens, counted(observed.reported), "{out}");
            told(to, &said, &word, tokens)
        }
        Err(StreamFault::Error(_)) => value!({"fails": true, "text": said[0]}),
        Err(other) => panic!("{other:?}\n{out}"),
    }
}

#[test]
fn every_report_is_answered_for_clients_of_every_format() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/reports");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let (comment, cases) = cases(&std::fs::read_to_string(&path).unwrap());
        assert!(comment.starts_with("# "), "{}: its first line must name the report", path.display());
        for case in &cases {
            let (kind, from) = case.head.trim().split_once(' ').unwrap();
            let from = SHAPES[["chat", "messages", "responses"].iter().position(|known| *known == from).unwrap()];
            for to in SHAPES {
                let mut want: Value = serde_json::from_str(&case.out).unwrap();
                if want.get("ends").is_some() {
                    (want["to"], want["ends"]) = (value!(index(to)), want["ends"][index(to)].clone());
                }
                let got = match kind {
                    "whole" => {
                        let written = unstreamed((from, to), &asked((from, to)), &case.input);
                        let written = written.map_or(value!({"fails": true}), |outcome| told_by(to, outcome));
                        assert_eq!(written, want, "{} as a stream to {to:?}", path.display());
                        complete((from, to), &case.input)
                    }
                    "stream" => streamed((from, to), &format!("{}\n\n", case.input)),
                    other => panic!("unknown kind {other}"),
                };
                assert_eq!(got, want, "{}: {} to {to:?}", path.display(), case.head);
            }
            count += 1;
        }
    }
    assert!(count > 0);
}
