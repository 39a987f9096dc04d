//! Endings of an answer, for every pair of provider and client format, streamed and complete: a table in which each
//! ending is written as every provider format writes it.

use super::*;
use crate::dialect::Broken;

pub(super) const SHAPES: [Shape; 3] = [Shape::Chat, Shape::Messages, Shape::Responses];

/// Expected result of an ending.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Want {
    /// The answer failed.
    Failure,
    /// The stream is cut off; a complete answer is accepted.
    Cut,
    /// The answer ends, with the reason in chat, messages and responses; with the provider's own reason if the formats
    /// are equal.
    End([&'static str; 3]),
}
use crate::wire::ModelEndpoint;
use Want::{Cut, End, Failure};

const PLAIN: Want = End(["stop", "end_turn", "completed"]);
const LENGTH: Want = End(["length", "max_tokens", "max_output_tokens"]);
const FILTER: Want = End(["content_filter", "refusal", "content_filter"]);

/// Finish reasons of chat as JSON, with other members of the choice.
const CHAT: &[(&str, &str, Want)] = &[
    ("\"stop\"", "", PLAIN),
    ("\"length\"", "", LENGTH),
    ("\"content_filter\"", "", FILTER),
    ("\"brand_new\"", "", PLAIN),
    ("\"stop\"", ",\"error\":null", PLAIN),
    ("\"stop\"", ",\"error\":{}", PLAIN),
    ("null", "", Cut),
    ("\"\"", "", Cut),
    ("\"null\"", "", Cut),
    ("false", "", Cut),
    ("\"error\"", "", Failure),
    ("\"abort\"", "", Failure),
    ("\"aborted\"", "", Failure),
    ("\"failed\"", "", Failure),
    ("\"cancelled\"", "", Failure),
    ("\"canceled\"", "", Failure),
    ("\"in_progress\"", "", Failure),
    ("\"queued\"", "", Failure),
    ("\"insufficient_system_resource\"", "", Failure),
    ("\"ERROR\"", "", Failure),
    ("\"Canceled\"", "", Failure),
    ("\"ERR\\u004fR\"", "", Failure),
    ("\"Error_free\"", "", PLAIN),
    ("\"network_error\"", "", Failure),
    ("\"malformed_function_call\"", "", Failure),
    ("\"function_call_filter: MALFORMED_FUNCTION_CALL\"", "", Failure),
    ("\"function_call_filter: BRAND_NEW\"", "", Failure),
    ("\"model_context_window_exceeded\"", "", LENGTH),
    ("\"MAX_TOKENS\"", "", LENGTH),
    ("\"sensitive\"", "", FILTER),
    ("\"SAFETY\"", "", FILTER),
    ("\"content_filter: RECITATION\"", "", FILTER),
    ("\"content_filters\"", "", PLAIN),
    ("\"err\\u006fr\"", "", Failure),
    ("\"stop\"", ",\"error\":{\"code\":502,\"message\":\"lost\"}", Failure),
    ("null", ",\"error\":{\"code\":502,\"message\":\"lost\"}", Failure),
    ("\"error\"", ",\"error\":{\"code\":502,\"message\":\"lost\"}", Failure),
];

/// Stop reasons of messages.
const MESSAGES: &[(&str, Want)] = &[
    ("\"end_turn\"", PLAIN),
    ("\"max_tokens\"", LENGTH),
    ("\"refusal\"", FILTER),
    ("\"brand_new\"", PLAIN),
    ("\"length\"", LENGTH),
    ("\"sensitive\"", FILTER),
    ("\"content_filter\"", FILTER),
    ("\"network_error\"", Failure),
    ("null", Cut),
    ("\"\"", Cut),
    ("\"null\"", Cut),
    ("7", Cut),
    ("\"error\"", Failure),
    ("\"abort\"", Failure),
    ("\"failed\"", Failure),
    ("\"Failed\"", Failure),
    ("\"cancelled\"", Failure),
    ("\"insufficient_system_resource\"", Failure),
];

/// Ends of a response: the event, then the members with the reason.
const RESPONSES: &[(&str, &str, Want)] = &[
    ("completed", "\"status\":\"completed\"", PLAIN),
    ("completed", "\"status\":\"completed\",\"error\":null", PLAIN),
    ("completed", "\"x\":1", PLAIN),
    ("completed", "\"status\":null", PLAIN),
    ("incomplete", "\"status\":\"incomplete\",\"incomplete_details\":{\"reason\":\"max_output_tokens\"}", LENGTH),
    ("incomplete", "\"status\":\"incomplete\",\"incomplete_details\":{\"reason\":\"content_filter\"}", FILTER),
    ("incomplete", "\"status\":\"incomplete\",\"incomplete_details\":{\"reason\":\"brand_new\"}", LENGTH),
    ("incomplete", "\"status\":\"incomplete\",\"incomplete_details\":null", LENGTH),
    ("incomplete", "\"status\":\"incomplete\"", LENGTH),
    ("completed", "\"status\":\"incomplete\",\"incomplete_details\":{\"reason\":\"max_output_tokens\"}", LENGTH),
    ("completed", "\"status\":\"failed\"", Failure),
    ("completed", "\"status\":\"failed\",\"error\":null", Failure),
    ("completed", "\"status\":\"completed\",\"error\":{\"code\":\"server_error\",\"message\":\"lost\"}", Failure),
    ("completed", "\"status\":\"cancelled\"", Failure),
    ("completed", "\"status\":\"in_progress\"", Failure),
    ("completed", "\"status\":\"queued\"", Failure),
    ("completed", "\"status\":\"brand_new\"", Failure),
    ("completed", "\"status\":\"\"", Failure),
    ("completed", "\"status\":5", Failure),
    ("incomplete", "\"status\":\"in_progress\"", Failure),
    ("failed", "\"status\":\"failed\"", Failure),
    ("cancelled", "\"status\":\"cancelled\"", Failure),
];

/// An ending as a provider writes it.
#[derive(Clone)]
struct Case {
    from: Shape,
    what: String,
    whole: String,
    /// Ends without the formal end, and with it.
    streams: [String; 2],
    want: Want,
}

fn chat((word, beside, want): &(&str, &str, Want)) -> Case {
    let choice = format!(r#"{{"index":0,"message":{{"content":"hi"}},"finish_reason":{word}{beside}}}"#);
    let text = r#"data: {"id":"x","choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":null}]}"#;
    let last = format!(r#"data: {{"id":"x","choices":[{{"index":0,"delta":{{}},"finish_reason":{word}{beside}}}]}}"#);
    let open = format!("{text}\n\n{last}\n\n");
    Case {
        from: Shape::Chat,
        what: format!("{word}{beside}"),
        whole: format!(r#"{{"id":"x","object":"chat.completion","created":1,"model":"m","choices":[{choice}]}}"#),
        streams: [open.clone(), format!("{open}data: [DONE]\n\n")],
        want: *want,
    }
}

fn messages((word, want): &(&str, Want)) -> Case {
    let event = |kind: &str, more: &str| format!("event: {kind}\ndata: {{\"type\":\"{kind}\"{more}}}\n\n");
    let open = [
        event("message_start", r#","message":{"id":"x","content":[],"usage":{"input_tokens":1}}"#),
        event("content_block_start", r#","index":0,"content_block":{"type":"text","text":""}"#),
        event("content_block_delta", r#","index":0,"delta":{"type":"text_delta","text":"hi"}"#),
        event("content_block_stop", r#","index":0"#),
        event("message_delta", &format!(r#","delta":{{"stop_reason":{word}}},"usage":{{"output_tokens":1}}"#)),
    ]
    .concat();
    let content = r#"[{"type":"text","text":"hi"}]"#;
    Case {
        from: Shape::Messages,
        what: (*word).to_owned(),
        whole: format!(r#"{{"id":"x","type":"message","model":"m","content":{content},"stop_reason":{word}}}"#),
        streams: [open.clone(), open + &event("message_stop", "")],
        want: *want,
    }
}

fn responses((kind, ending, want): &(&str, &str, Want)) -> Case {
    let event = |kind: &str, more: &str| format!("event: {kind}\ndata: {{\"type\":\"{kind}\"{more}}}\n\n");
    let item = r#"{"type":"message","role":"assistant","content":[{"type":"output_text","text":"hi"}]}"#;
    let response = format!(r#"{{"id":"r","model":"m","output":[{item}],{ending}}}"#);
    let stream = [
        event("response.created", r#","response":{"id":"r","status":"in_progress","output":[]}"#),
        event("response.output_text.delta", r#","output_index":0,"delta":"hi""#),
        event("response.output_item.done", &format!(r#","output_index":0,"item":{item}"#)),
        event(&format!("response.{kind}"), &format!(r#","response":{response}"#)),
    ]
    .concat();
    Case {
        from: Shape::Responses,
        what: format!("{kind}: {ending}"),
        whole: response,
        streams: [stream.clone(), stream],
        want: *want,
    }
}

fn cases() -> impl Iterator<Item = Case> {
    CHAT.iter().map(chat).chain(MESSAGES.iter().map(messages)).chain(RESPONSES.iter().map(responses))
}

/// The reason why a complete answer ended.
pub(super) fn word_of(shape: Shape, answer: &str) -> String {
    let answer: Value = serde_json::from_str(answer).unwrap();
    let word = match shape {
        Shape::Chat => &answer["choices"][0]["finish_reason"],
        Shape::Messages => &answer["stop_reason"],
        Shape::Responses if answer["status"] == "incomplete" => &answer["incomplete_details"]["reason"],
        Shape::Responses => &answer["status"],
    };
    word.as_str().unwrap_or_default().to_owned()
}

/// The finish reason of a stream, from the last event that has one.
pub(super) fn streamed_word(shape: Shape, out: &str) -> String {
    let data = |line: &str| line.strip_prefix("data: ").and_then(|data| serde_json::from_str::<Value>(data).ok());
    let words = out.lines().filter_map(data).filter_map(|event| {
        let word = match shape {
            Shape::Chat => event["choices"][0]["finish_reason"].clone(),
            Shape::Messages => event["delta"]["stop_reason"].clone(),
            Shape::Responses if event["type"] == "response.created" => Value::Null,
            Shape::Responses => {
                return event["response"].is_object().then(|| word_of(shape, &event["response"].to_string()));
            }
        };
        word.as_str().map(str::to_owned)
    });
    words.fold(String::new(), |_, word| word)
}

fn run_whole(case: &Case, to: Shape) -> Result<String, Broken> {
    let mut out = Vec::new();
    let body = case.whole.as_bytes();
    // A template learned from one answer must not let a different one pass.
    let (mut templates, state) = (AnswerTemplates::default(), TranslationState::default());
    let good = case.whole.replace(&case.what, "\"stop\"");
    let mut run = |body: &[u8], out: &mut Vec<u8>| match case.from == to {
        true => templates.whole(ModelEndpoint::generate(to), body, &ME, out),
        false => templates.reply((case.from, to), body, &state, &ME, out),
    };
    for _ in 0..3 {
        let _ = run(good.as_bytes(), &mut Vec::new());
    }
    run(body, &mut out)?;
    Ok(String::from_utf8(out).unwrap())
}

/// A stream as received by a client that asked for its usage.
pub(super) fn run_stream((from, to): (Shape, Shape), state: &TranslationState, text: &str) -> Outcome {
    if from != to {
        return stream_for((from, to), state, true, &ME, &[text.as_bytes()]);
    }
    let mut stream = SseStream::same(ModelEndpoint::generate(to), true, 1 << 20);
    let (mut pool, mut out) = (Pool::new(1 << 20), Vec::new());
    let fed = stream.feed(text.as_bytes(), &mut pool, &ME, &mut out).map(drop);
    let result = fed.and_then(|()| end(from, &mut stream, &mut pool, &ME, &mut out));
    stream.release(&mut pool);
    Outcome { out: String::from_utf8(out).unwrap(), observed: stream.observed(), result }
}

pub(super) fn index(shape: Shape) -> usize {
    SHAPES.iter().position(|known| *known == shape).unwrap()
}

#[test]
fn complete_answers_end_as_their_provider_says() {
    for (case, to) in cases().flat_map(|case| SHAPES.map(|to| (case.clone(), to))) {
        let (read, what) = (run_whole(&case, to), format!("{:?} to {to:?}: {}", case.from, case.what));
        match case.want {
            Failure => assert!(matches!(read, Err(Broken::Error(_))), "{what}: {read:?}"),
            Cut => assert!(read.is_ok(), "{what}: {read:?}"),
            End(_) if case.from == to => {
                let own = word_of(to, &case.whole);
                assert_eq!(word_of(to, &read.unwrap()), own, "{what}");
            }
            End(words) => assert_eq!(word_of(to, &read.unwrap()), words[index(to)], "{what}"),
        }
    }
}

#[test]
fn streams_end_as_their_provider_says() {
    for (case, to) in cases().flat_map(|case| SHAPES.map(|to| (case.clone(), to))) {
        for (formal, text) in case.streams.iter().enumerate() {
            let what = format!("{:?} to {to:?}, formal end {formal}: {}", case.from, case.what);
            let Outcome { out, result, .. } = run_stream((case.from, to), &TranslationState::default(), text);
            let ends = ["[DONE]", "message_stop", "response.completed", "response.incomplete"];
            match case.want {
                Failure => assert!(matches!(result, Err(StreamFault::Error(_))), "{what}: {result:?}\n{out}"),
                Cut => assert_eq!(result, Err(StreamFault::Incomplete), "{what}\n{out}"),
                End(words) => {
                    assert_eq!(result, Ok(()), "{what}\n{out}");
                    let own = if case.from == to { streamed_word(to, text) } else { words[index(to)].to_owned() };
                    assert_eq!(streamed_word(to, &out), own, "{what}\n{out}");
                    continue;
                }
            }
            assert!(!ends.iter().any(|end| out.contains(end)), "{what}\n{out}");
            assert!(out.contains("hi"), "{what}: what came before is relayed\n{out}");
        }
    }
}

#[test]
fn stream_continues_after_an_empty_finish_reason() {
    let chunk = |text: &str, word: &str| {
        format!(
            "data: {{\"id\":\"x\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{text}\"}},\"finish_reason\":{word}}}]}}\n\n"
        )
    };
    for empty in ["\"\"", "\"null\"", "null"] {
        let text: String = ["a", "b", "c", "d", "e"].iter().map(|text| chunk(text, empty)).collect();
        let text = text + &chunk("f", "\"length\"") + "data: [DONE]\n\n";
        for to in SHAPES {
            let Outcome { out, result, .. } = run_stream((Shape::Chat, to), &TranslationState::default(), &text);
            assert_eq!(result, Ok(()), "{empty} to {to:?}\n{out}");
            let word = ["length", "max_tokens", "max_output_tokens"][index(to)];
            assert_eq!(streamed_word(to, &out), word, "{empty} to {to:?}\n{out}");
            for letter in ["a", "b", "c", "d", "e", "f"] {
                assert!(out.contains(&format!("\"{letter}\"")), "{letter} {empty} to {to:?}\n{out}");
            }
        }
    }
}

#[test]
fn complete_answer_without_content_has_failed() {
    let empty = [
        (Shape::Chat, r#"{"object":"chat.completion","choices":[],"usage":{"prompt_tokens":31}}"#),
        (Shape::Chat, r#"{"object":"chat.completion","choices":[{"index":0,"finish_reason":"stop"}]}"#),
        (Shape::Chat, r#"{"object":"chat.completion","choices":[{"index":0,"message":null}]}"#),
        (Shape::Messages, r#"{"type":"message","content":[]}"#),
        (Shape::Messages, r#"{"type":"message","content":[],"stop_reason":""}"#),
        (Shape::Responses, r#"{"object":"response","output":[],"status":"completed"}"#),
        (Shape::Responses, r#"{"object":"response","output":[]}"#),
    ];
    let short = [
        (Shape::Chat, r#"{"object":"chat.completion","choices":[{"message":{"content":""}}]}"#),
        (Shape::Messages, r#"{"type":"message","content":[],"stop_reason":"end_turn"}"#),
        (Shape::Responses, r#"{"object":"response","output":[],"status":"incomplete"}"#),
    ];
    let read = |from: Shape, to: Shape, body: &str| match from == to {
        true => whole(ModelEndpoint::generate(from), body.as_bytes(), &ME, &mut Vec::new()),
        false => reply((from, to), body.as_bytes(), &TranslationState::default(), &ME, &mut Vec::new()),
    };
    for to in SHAPES {
        for (from, body) in empty {
            assert_eq!(read(from, to, body), Err(Broken::NotJson), "{to:?}: {body}");
        }
        for (from, body) in short {
            assert!(read(from, to, body).is_ok(), "{to:?}: {body}");
        }
    }
    let passthrough = ModelEndpoint::passthrough(crate::wire::Passthrough::Completions);
    let none = r#"{"object":"text_completion","choices":[]}"#;
    assert_eq!(whole(passthrough, none.as_bytes(), &ME, &mut Vec::new()), Err(Broken::NotJson));
}

#[test]
fn stream_without_content_has_failed() {
    let ended = |response: &str| {
        let first = r#"{"type":"response.created","response":{"status":"in_progress","output":[]}}"#;
        format!("data: {first}\n\ndata: {{\"type\":\"response.completed\",\"response\":{response}}}\n\n")
    };
    let item = r#"data: {"type":"response.output_item.added","output_index":0,"item":{"type":"message","content":[]}}"#;
    let empty = [
        (Shape::Chat, "data: [DONE]\n\n".to_owned()),
        (Shape::Chat, "data: {\"choices\":[]}\n\ndata: [DONE]\n\n".to_owned()),
        (Shape::Messages, "data: {\"type\":\"message_stop\"}\n\n".to_owned()),
        (Shape::Responses, ended(r#"{"status":"completed","output":[]}"#)),
        (Shape::Responses, ended(r#"{"status":"completed","output":[],"usage":null}"#)),
        (Shape::Responses, ended(r#"{"status":"completed"}"#)),
        (Shape::Responses, ended(r#"{"output":[]}"#)),
    ];
    let short = [
        (Shape::Responses, ended(r#"{"status":"incomplete","output":[]}"#)),
        (Shape::Responses, ended(r#"{"status":"completed","output":[],"usage":{"output_tokens":0}}"#)),
        (Shape::Responses, format!("{item}\n\n{}", ended(r#"{"status":"completed","output":[]}"#))),
    ];
    for to in SHAPES {
        for (from, text) in &empty {
            let Outcome { out, result, .. } = run_stream((*from, to), &TranslationState::default(), text);
            assert!(matches!(result, Err(StreamFault::Incomplete | StreamFault::Malformed)), "{to:?}: {text}");
            assert!(!["[DONE]", "message_stop", "response.completed"].iter().any(|end| out.contains(end)), "{out}");
        }
        for (from, text) in &short {
            assert_eq!(run_stream((*from, to), &TranslationState::default(), text).result, Ok(()), "{to:?}: {text}");
        }
    }
}

#[test]
fn failed_choice_of_several_fails_the_answer() {
    let two = r#"{"choices":[{"index":0,"message":{"content":"a"},"finish_reason":"stop"},{"index":1,"message":{"content":"b"},"finish_reason":"abort"}]}"#;
    assert!(matches!(whole(ModelEndpoint::CHAT, two.as_bytes(), &ME, &mut Vec::new()), Err(Broken::Error(_))));
    let passthrough = ModelEndpoint::passthrough(crate::wire::Passthrough::Completions);
    let one = r#"{"object":"text_completion","choices":[{"index":0,"text":"a","finish_reason":"error"}]}"#;
    assert!(matches!(whole(passthrough, one.as_bytes(), &ME, &mut Vec::new()), Err(Broken::Error(_))));
    let chunk = "data: {\"choices\":[{\"index\":0,\"text\":\"a\",\"finish_reason\":WORD}]}\n\ndata: [DONE]\n\n";
    for (word, wanted) in [("\"stop\"", true), ("\"error\"", false), ("\"\"", false), ("null", false)] {
        let mut stream = SseStream::same(passthrough, false, 1 << 20);
        let (mut pool, mut out) = (Pool::new(1 << 20), Vec::new());
        let fed = stream.feed(chunk.replace("WORD", word).as_bytes(), &mut pool, &ME, &mut out);
        assert_eq!(fed.is_ok(), wanted, "{word}: {fed:?}");
        stream.release(&mut pool);
    }
}
