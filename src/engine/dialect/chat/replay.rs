//! Writes a complete answer as the chunks of a stream.
//!
//! Used if a chat provider answers a request for a stream with one JSON document, whatever the client's format is.

use crate::dialect::neutral::replay::word;
use crate::wire::json::{Raw, ValueKind, item, key, member_count, members};

pub fn write(body: Raw<'_>, out: &mut Vec<u8>) {
    chunks(false, body, out);
}

/// Writes a chunk with all choices, one with the usage, and the end. `is_completion`: of a legacy completion.
pub fn chunks(is_completion: bool, body: Raw<'_>, out: &mut Vec<u8>) {
    let begin = |out: &mut Vec<u8>| {
        out.extend_from_slice(b"data: {");
        let but: &[&str] = if is_completion { &["choices", "usage"] } else { &["choices", "usage", "object"] };
        members(body, but, out);
        if !is_completion {
            key(out, "object");
            out.extend_from_slice(b"\"chat.completion.chunk\"");
        }
        key(out, "choices");
        out.push(b'[');
    };
    let choices = body.get("choices").unwrap_or(Raw::NULL);
    if choices.items().next().is_some() {
        begin(out);
    }
    for choice in choices.items() {
        item(out);
        out.push(b'{');
        members(choice, &["message", "finish_reason"], out);
        let message = choice.get("message").unwrap_or(Raw::NULL);
        if !is_completion {
            key(out, "delta");
            out.push(b'{');
            members(message, &["tool_calls"], out);
            calls(message, out);
            out.push(b'}');
        }
        let calls = message.get("tool_calls").is_some_and(|calls| calls.items().next().is_some());
        // Some servers omit it in a complete response.
        let usual: &[u8] = if calls { b"\"tool_calls\"" } else { b"\"stop\"" };
        key(out, "finish_reason");
        out.extend_from_slice(word(choice, "finish_reason").map_or(usual, Raw::bytes));
        out.push(b'}');
    }
    if choices.items().next().is_some() {
        out.extend_from_slice(b"]}\n\n");
    }
    if let Some(usage) = body.get("usage").filter(|usage| usage.kind() == ValueKind::Object) {
        begin(out);
        out.push(b']');
        key(out, "usage");
        out.extend_from_slice(usage.bytes());
        out.extend_from_slice(b"}\n\n");
    }
    out.extend_from_slice(b"data: [DONE]\n\n");
}

/// Appends the calls of a message with the numbers that they have in a stream.
fn calls(message: Raw<'_>, out: &mut Vec<u8>) {
    let Some(calls) = message.get("tool_calls").filter(|calls| calls.kind() == ValueKind::Array) else { return };
    key(out, "tool_calls");
    out.push(b'[');
    for (at, call) in calls.items().enumerate() {
        item(out);
        out.push(b'{');
        member_count(out, "index", at as u64);
        members(call, &["index"], out);
        out.push(b'}');
    }
    out.push(b']');
}
