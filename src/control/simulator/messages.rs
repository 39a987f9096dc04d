//! Writes answers in the published format of the messages API (`message_start`, blocks with start, deltas and stop,
//! `message_delta`, `message_stop`; every event named). Pure.

use super::event::{AnswerEvent, AnswerIdentity, AnswerUsage, quoted, sse};
use super::script::{Finish, Script, ScriptPart};

/// Explanation of a refusal.
const EXPLANATION: &str = "The simulated provider was told to refuse.";
/// Caller of a tool: the model itself, not a program that the model wrote.
const CALLER: &str = r#""caller":{"type":"direct"}"#;
/// Signature of the reasoning.
const SIGNATURE: &str = "c2ltdWxhdGVk";

fn reason(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop => "end_turn",
        Finish::Length => "max_tokens",
        Finish::Tools => "tool_use",
        Finish::Sequence => "stop_sequence",
        Finish::Refusal => "refusal",
    }
}

/// Returns `,"usage":{…}`, or nothing if none is reported. Input excludes cached tokens.
fn usage_member(id: &AnswerIdentity, usage: AnswerUsage) -> String {
    if id.no_usage {
        return String::new();
    }
    let AnswerUsage { prompt, cached, written, completion, thought } = usage;
    let input = prompt - cached - written;
    let cache = format!(r#""cache_creation_input_tokens":{written},"cache_read_input_tokens":{cached}"#);
    let details = if thought > 0 { format!(r#"{{"thinking_tokens":{thought}}}"#) } else { "null".to_owned() };
    let more = r#""cache_creation":null,"inference_geo":null,"server_tool_use":null,"service_tier":"standard""#;
    let output = format!(r#""output_tokens":{completion},"output_tokens_details":{details}"#);
    format!(r#","usage":{{"input_tokens":{input},{cache},{output},{more}}}"#)
}

fn call_id(id: &AnswerIdentity, block: usize) -> String {
    format!("toolu_sim_{}_{block}", id.serial)
}

/// Returns `"stop_reason":…,"stop_sequence":…`, with the explanation of a refusal.
fn stop(finish: Finish, sequence: Option<&str>) -> String {
    let details = match finish {
        Finish::Refusal => {
            let explanation = quoted(EXPLANATION);
            format!(r#"{{"type":"refusal","category":null,"explanation":{explanation}}}"#)
        }
        _ => "null".to_owned(),
    };
    let sequence = sequence.map_or("null".to_owned(), quoted);
    let reason = reason(finish);
    format!(r#""stop_reason":"{reason}","stop_sequence":{sequence},"stop_details":{details},"container":null"#)
}

fn message(id: &AnswerIdentity, content: &str, stop: &str, usage: AnswerUsage) -> String {
    let (serial, model, usage) = (id.serial, quoted(&id.model), usage_member(id, usage));
    let head = format!(r#""id":"msg_sim_{serial}","type":"message","role":"assistant","model":{model}"#);
    format!(r#"{{{head},"content":[{content}],{stop}{usage}}}"#)
}

/// Appends one event of a stream, or nothing if this API does not have it.
pub fn event(id: &AnswerIdentity, event: &AnswerEvent<'_>, out: &mut Vec<u8>) {
    let (name, rest) = match event {
        AnswerEvent::Start(usage) => {
            let stop = r#""stop_reason":null,"stop_sequence":null,"stop_details":null,"container":null"#;
            let message = message(id, "", stop, AnswerUsage { completion: 1, ..*usage });
            ("message_start", format!(r#","message":{message}"#))
        }
        AnswerEvent::OpenThought { block } => {
            let content = r#"{"type":"thinking","thinking":"","signature":""}"#;
            ("content_block_start", format!(r#","index":{block},"content_block":{content}"#))
        }
        AnswerEvent::Thought { block, piece } => {
            delta(*block, &format!(r#""thinking_delta","thinking":{}"#, quoted(piece)))
        }
        AnswerEvent::Sign { block } => {
            delta(*block, &format!(r#""signature_delta","signature":{}"#, quoted(SIGNATURE)))
        }
        AnswerEvent::OpenText { block } => {
            let content = r#"{"type":"text","text":"","citations":[]}"#;
            ("content_block_start", format!(r#","index":{block},"content_block":{content}"#))
        }
        AnswerEvent::Text { block, piece } => delta(*block, &format!(r#""text_delta","text":{}"#, quoted(piece))),
        AnswerEvent::OpenCall { block, name, .. } => {
            let (call_id, name) = (call_id(id, *block), quoted(name));
            let content = format!(r#"{{"type":"tool_use",{CALLER},"id":"{call_id}","name":{name},"input":{{}}}}"#);
            ("content_block_start", format!(r#","index":{block},"content_block":{content}"#))
        }
        AnswerEvent::Args { block, piece, .. } => {
            delta(*block, &format!(r#""input_json_delta","partial_json":{}"#, quoted(piece)))
        }
        AnswerEvent::Close { block } => ("content_block_stop", format!(r#","index":{block}"#)),
        AnswerEvent::Finish { finish, sequence, usage } => {
            let (stop, usage) = (stop(*finish, *sequence), usage_member(id, *usage));
            ("message_delta", format!(r#","delta":{{{stop}}}{usage}"#))
        }
        AnswerEvent::Usage(_) => return,
        AnswerEvent::End => ("message_stop", String::new()),
        AnswerEvent::Ping => ("ping", String::new()),
        AnswerEvent::Error(message) => return sse(out, id.crlf, Some("error"), &error_body(529, message, id.serial)),
        AnswerEvent::Garbage => return sse(out, id.crlf, Some("content_block_delta"), r#"{"type":"content_bl"#),
    };
    sse(out, id.crlf, Some(name), &format!(r#"{{"type":"{name}"{rest}}}"#));
}

fn delta(block: usize, inner: &str) -> (&'static str, String) {
    ("content_block_delta", format!(r#","index":{block},"delta":{{"type":{inner}}}"#))
}

/// Returns a whole answer. Arguments cut off by the limit are no longer an object and are replaced by `{}`.
pub fn whole(id: &AnswerIdentity, script: &Script, usage: AnswerUsage) -> String {
    let mut blocks = Vec::new();
    for (block, (part, tokens)) in script.given().enumerate() {
        blocks.push(match part {
            ScriptPart::Think(text) => {
                let joined: String = (0..tokens).map(|at| text.piece(at)).collect();
                let (thinking, signature) = (quoted(&joined), quoted(SIGNATURE));
                format!(r#"{{"type":"thinking","thinking":{thinking},"signature":{signature}}}"#)
            }
            ScriptPart::Text(text) => {
                let joined: String = (0..tokens).map(|at| text.piece(at)).collect();
                format!(r#"{{"type":"text","text":{},"citations":[]}}"#, quoted(&joined))
            }
            ScriptPart::Call(call) => {
                let args = call.args[..tokens as usize - 1].concat();
                let object = serde_json::from_str::<serde_json::Value>(&args).is_ok_and(|value| value.is_object());
                let (id, name, input) = (call_id(id, block), quoted(&call.name), if object { &*args } else { "{}" });
                format!(r#"{{"type":"tool_use",{CALLER},"id":"{id}","name":{name},"input":{input}}}"#)
            }
        });
    }
    message(id, &blocks.join(","), &stop(script.finish, script.sequence.as_deref()), usage)
}

/// Returns the body of an error, with the `type` that the provider uses for `status`.
pub fn error_body(status: u16, message: &str, serial: u64) -> String {
    let kind = match status {
        401 => "authentication_error",
        402 => "billing_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        400..=499 => "invalid_request_error",
        504 => "timeout_error",
        529 => "overloaded_error",
        _ => "api_error",
    };
    let error = format!(r#"{{"type":"{kind}","message":{}}}"#, quoted(message));
    format!(r#"{{"type":"error","error":{error},"request_id":"req_sim_{serial}"}}"#)
}
