//! Writes a complete answer as the events of a stream.
//!
//! Used if a messages provider answers a request for a stream with one JSON document, whatever the client's format is.

use crate::dialect::neutral::arguments::Arguments;
use crate::dialect::neutral::replay::{begin, end, member, string, word};
use crate::wire::json::{Raw, key, member_count, member_inside, object_with, write_inside};

pub fn write(body: Raw<'_>, out: &mut Vec<u8>) {
    begin("message_start", out);
    key(out, "message");
    let begun = [("content", "[]"), ("stop_reason", "null"), ("stop_sequence", "null"), ("stop_details", "")];
    object_with(body, &begun, out);
    end(out);
    let content = body.get("content").unwrap_or(Raw::NULL);
    content.items().enumerate().for_each(|(at, part)| block(at as u64, part, out));
    begin("message_delta", out);
    key(out, "delta");
    out.push(b'{');
    let calls = content.items().any(|block| block.get("type").is_some_and(|kind| kind.is("tool_use")));
    key(out, "stop_reason");
    let usual: &[u8] = if calls { b"\"tool_use\"" } else { b"\"end_turn\"" };
    out.extend_from_slice(word(body, "stop_reason").map_or(usual, Raw::bytes));
    member(body, "stop_sequence", out);
    if body.get("stop_details").is_some() {
        member(body, "stop_details", out);
    }
    out.push(b'}');
    member(body, "usage", out);
    end(out);
    begin("message_stop", out);
    end(out);
}

/// Writes one block: its start, its deltas, its stop.
fn block(at: u64, block: Raw<'_>, out: &mut Vec<u8>) {
    let about = |name: &str, out: &mut Vec<u8>| {
        begin(name, out);
        member_count(out, "index", at);
    };
    let kind = string(block, "type").unwrap_or_default();
    // The members that are streamed, each with the type of its delta.
    let later: &[(&str, &str)] = match kind {
        b"text" => &[("text", "text_delta")],
        b"thinking" => &[("thinking", "thinking_delta"), ("signature", "signature_delta")],
        b"tool_use" | b"server_tool_use" => &[("input", "input_json_delta")],
        _ => &[],
    };
    about("content_block_start", out);
    key(out, "content_block");
    let nothing = |name| if name == "input" { "{}" } else { "\"\"" };
    let begun: Vec<_> = later.iter().map(|(name, _)| (*name, nothing(*name))).collect();
    object_with(block, &begun, out);
    end(out);
    for (name, delta) in later {
        let Some(value) = block.get(name) else { continue };
        about("content_block_delta", out);
        key(out, "delta");
        out.extend_from_slice(b"{\"type\":");
        write_inside(out, delta.as_bytes());
        if *name == "input" {
            member_inside(out, "partial_json", &Arguments::of(Some(value)).text());
        } else {
            member_inside(out, name, value.string().unwrap_or_default());
        }
        out.push(b'}');
        end(out);
    }
    about("content_block_stop", out);
    end(out);
}
