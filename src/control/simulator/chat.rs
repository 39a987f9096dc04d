//! Writes answers in the published format of chat completions (chunks in the order role, content, tool start, tool
//! fragments, finish, usage, `[DONE]`). Pure.

use super::event::{AnswerEvent, AnswerIdentity, AnswerUsage, quoted, sse};
use super::script::{Finish, Script, ScriptPart};
use super::signature;

fn reason(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop | Finish::Sequence => "stop",
        Finish::Length => "length",
        Finish::Tools => "tool_calls",
        Finish::Refusal => "content_filter",
    }
}

fn usage_object(usage: AnswerUsage) -> String {
    let AnswerUsage { prompt, cached, written, completion, thought } = usage;
    let total = prompt + completion;
    let written = if written > 0 { format!(r#","cache_write_tokens":{written}"#) } else { String::new() };
    let counts = format!(r#""prompt_tokens":{prompt},"completion_tokens":{completion},"total_tokens":{total}"#);
    let of_prompt = format!(r#""prompt_tokens_details":{{"cached_tokens":{cached}{written}}}"#);
    format!(r#"{{{counts},{of_prompt},"completion_tokens_details":{{"reasoning_tokens":{thought}}}}}"#)
}

fn call_id(id: &AnswerIdentity, call: usize) -> String {
    format!("call_sim_{}_{call}", id.serial)
}

/// Returns the member with the thought signature of a call; nothing if it has none.
fn signed(id: &AnswerIdentity, call: usize) -> String {
    let length = id.signature.filter(|_| call == 0);
    length.map_or(String::new(), |length| signature::member(&signature::make(&id.model, &call_id(id, call), length)))
}

/// Returns the members before `choices`.
fn opening(id: &AnswerIdentity, object: &str) -> String {
    let (serial, model, created) = (id.serial, quoted(&id.model), id.created);
    if id.bare {
        return format!(r#"{{"id":"chatcmpl-sim-{serial}","model":{model}"#);
    }
    let middle = format!(r#""object":"{object}","created":{created},"model":{model}"#);
    format!(r#"{{"id":"chatcmpl-sim-{serial}",{middle},"system_fingerprint":"fp_sim""#)
}

fn chunk(id: &AnswerIdentity, delta: &str, finish: &str) -> String {
    let opening = opening(id, "chat.completion.chunk");
    let usage = if id.include_usage && !id.no_usage { r#","usage":null"# } else { "" };
    let choice = format!(r#"{{"index":0,"delta":{delta},"logprobs":null,"finish_reason":{finish}}}"#);
    format!(r#"{opening},"choices":[{choice}]{usage}}}"#)
}

fn text_chunk(id: &AnswerIdentity, member: &str, piece: &str) -> String {
    chunk(id, &format!(r#"{{"{member}":{}}}"#, quoted(piece)), "null")
}

/// Appends one event of a stream, or nothing if this API does not have it.
pub fn event(id: &AnswerIdentity, event: &AnswerEvent<'_>, out: &mut Vec<u8>) {
    let data = match event {
        AnswerEvent::Start(_) => chunk(id, r#"{"role":"assistant","content":"","refusal":null}"#, "null"),
        AnswerEvent::OpenThought { .. }
        | AnswerEvent::Sign { .. }
        | AnswerEvent::OpenText { .. }
        | AnswerEvent::Close { .. } => return,
        AnswerEvent::Thought { piece, .. } => text_chunk(id, "reasoning_content", piece),
        AnswerEvent::Text { piece, .. } => text_chunk(id, if id.refuses { "refusal" } else { "content" }, piece),
        AnswerEvent::OpenCall { call, name, .. } => {
            let (call_id, name, signed) = (call_id(id, *call), quoted(name), signed(id, *call));
            let function = format!(r#"{{"name":{name},"arguments":""}}"#);
            let function = format!(r#""type":"function","function":{function}{signed}"#);
            let entry = format!(r#"{{"index":{call},"id":"{call_id}",{function}}}"#);
            chunk(id, &format!(r#"{{"tool_calls":[{entry}]}}"#), "null")
        }
        AnswerEvent::Args { call, piece, .. } => {
            let entry = format!(r#"{{"index":{call},"function":{{"arguments":{}}}}}"#, quoted(piece));
            chunk(id, &format!(r#"{{"tool_calls":[{entry}]}}"#), "null")
        }
        AnswerEvent::Finish { finish, .. } => chunk(id, "{}", &format!("\"{}\"", reason(*finish))),
        AnswerEvent::Usage(usage) if id.include_usage && !id.no_usage => {
            let opening = opening(id, "chat.completion.chunk");
            format!(r#"{opening},"choices":[],"usage":{}}}"#, usage_object(*usage))
        }
        AnswerEvent::Usage(_) => return,
        AnswerEvent::End => "[DONE]".to_owned(),
        AnswerEvent::Ping => {
            out.extend_from_slice(if id.crlf { b": sim\r\n\r\n" } else { b": sim\n\n" });
            return;
        }
        AnswerEvent::Error(message) => error_body(500, message),
        AnswerEvent::Garbage => r#"{"choices":[{"#.to_owned(),
    };
    sse(out, id.crlf, None, &data);
}

/// Returns a whole answer.
pub fn whole(id: &AnswerIdentity, script: &Script, usage: AnswerUsage) -> String {
    let (mut content, mut thought, mut calls) = (None::<String>, String::new(), Vec::new());
    for (part, tokens) in script.given() {
        match part {
            ScriptPart::Think(text) => {
                let joined: String = (0..tokens).map(|at| text.piece(at)).collect();
                thought = format!(r#","reasoning_content":{}"#, quoted(&joined));
            }
            ScriptPart::Text(text) => {
                let content = content.get_or_insert_default();
                (0..tokens).for_each(|at| content.push_str(&text.piece(at)));
            }
            ScriptPart::Call(call) => {
                let (name, args) = (quoted(&call.name), quoted(&call.args[..tokens as usize - 1].concat()));
                let (call_id, signed) = (call_id(id, calls.len()), signed(id, calls.len()));
                let function = format!(r#"{{"name":{name},"arguments":{args}}}"#);
                calls.push(format!(r#"{{"id":"{call_id}","type":"function","function":{function}{signed}}}"#));
            }
        }
    }
    let empty = calls.is_empty().then(String::new);
    let content = content.or(empty).map_or("null".to_owned(), |text| quoted(&text));
    let (content, refusal) = if id.refuses { ("null".to_owned(), content) } else { (content, "null".to_owned()) };
    let calls = if calls.is_empty() { String::new() } else { format!(r#","tool_calls":[{}]"#, calls.join(",")) };
    let said = format!(r#""content":{content},"refusal":{refusal}{thought}"#);
    let message = format!(r#"{{"role":"assistant",{said}{calls},"annotations":[]}}"#);
    let finish = reason(script.finish);
    let usage = match id.no_usage || id.bare {
        true => String::new(),
        false => format!(r#","usage":{}"#, usage_object(usage)),
    };
    let opening = opening(id, "chat.completion");
    let choice = format!(r#"{{"index":0,"message":{message},"logprobs":null,"finish_reason":"{finish}"}}"#);
    format!(r#"{opening},"choices":[{choice}]{usage}}}"#)
}

/// Returns the body of an error, with the `type` and `code` that the provider uses for `status`.
pub fn error_body(status: u16, message: &str) -> String {
    let (kind, code) = match status {
        401 => ("invalid_request_error", r#""invalid_api_key""#),
        402 => ("insufficient_quota", r#""insufficient_quota""#),
        404 => ("invalid_request_error", r#""model_not_found""#),
        429 => ("requests", r#""rate_limit_exceeded""#),
        400..=499 => ("invalid_request_error", "null"),
        _ => ("server_error", "null"),
    };
    format!(r#"{{"error":{{"message":{},"type":"{kind}","param":null,"code":{code}}}}}"#, quoted(message))
}
