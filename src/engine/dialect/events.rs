//! Writes a complete response as the events of a stream: some providers answer a stream request with one JSON response.
//!
//! Owns the order of the events. Must never interpret members beyond that order: the reader of the stream does. Called
//! by `stream`.

use super::format::with_format;
use super::responses::stream_reader::is_answer;
use crate::dialect::neutral::arguments::Arguments;
use crate::wire::ModelEndpoint;
use crate::wire::json::{Raw, ValueKind, item, key, member_count, member_inside, members, write_inside};

/// Appends the events of `body`, a complete response of `endpoint` that has been checked.
pub(super) fn write(endpoint: ModelEndpoint, body: &[u8], out: &mut Vec<u8>) {
    // The data of an event must have no line ends. Valid JSON has them only between tokens.
    let line: Vec<u8> = body.iter().map(|byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { *byte }).collect();
    let body = Raw::new(&line);
    match endpoint.is_passthrough() {
        true => chunks(true, body, out),
        false => with_format!(endpoint.shape, format => format::write_events(body, out)),
    }
}

fn member(object: Raw<'_>, name: &str, out: &mut Vec<u8>) {
    key(out, name);
    out.extend_from_slice(object.get(name).unwrap_or(Raw::NULL).bytes());
}

fn string<'a>(object: Raw<'a>, name: &str) -> Option<&'a [u8]> {
    object.get(name).and_then(Raw::string).filter(|text| !text.is_empty())
}

/// The reason why an answer ended, if it names one.
fn word<'a>(object: Raw<'a>, name: &str) -> Option<Raw<'a>> {
    object.get(name).filter(|word| word.string().is_some_and(|word| !word.is_empty() && word != b"null"))
}

pub(super) fn chat(body: Raw<'_>, out: &mut Vec<u8>) {
    chunks(false, body, out);
}

/// Writes a chunk with all choices, one with the usage, and the end. `is_completion`: of a legacy completion.
fn chunks(is_completion: bool, body: Raw<'_>, out: &mut Vec<u8>) {
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

/// Begins an event of the formats whose events have names.
fn begin(name: &str, out: &mut Vec<u8>) {
    for part in ["event: ", name, "\ndata: {\"type\":\"", name, "\""] {
        out.extend_from_slice(part.as_bytes());
    }
}

fn end(out: &mut Vec<u8>) {
    out.extend_from_slice(b"}\n\n");
}

pub(super) fn messages(body: Raw<'_>, out: &mut Vec<u8>) {
    begin("message_start", out);
    key(out, "message");
    out.push(b'{');
    members(body, &["content", "stop_reason", "stop_sequence", "stop_details"], out);
    for (name, value) in [("content", "[]"), ("stop_reason", "null"), ("stop_sequence", "null")] {
        key(out, name);
        out.extend_from_slice(value.as_bytes());
    }
    out.push(b'}');
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
    out.push(b'{');
    let names: Vec<&str> = later.iter().map(|(name, _)| *name).collect();
    members(block, &names, out);
    for name in &names {
        key(out, name);
        out.extend_from_slice(if *name == "input" { b"{}" } else { b"\"\"" });
    }
    out.push(b'}');
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

/// Writer of the events of a response, which are numbered.
struct Response<'o> {
    out: &'o mut Vec<u8>,
    number: u64,
}

/// A list of texts within an item, and the names of their events.
struct Texts {
    list: &'static str,
    /// The member of an event with the index of the text.
    index: &'static str,
    /// Prefix of the events that begin and end a part.
    part: &'static str,
}

const CONTENT: Texts = Texts { list: "content", index: "content_index", part: "content_part" };
const SUMMARY: Texts = Texts { list: "summary", index: "summary_index", part: "reasoning_summary_part" };

pub(super) fn responses(body: Raw<'_>, out: &mut Vec<u8>) {
    Response { out, number: 0 }.write(body);
}

impl Response<'_> {
    fn write(&mut self, body: Raw<'_>) {
        for name in ["response.created", "response.in_progress"] {
            self.begin(name);
            key(self.out, "response");
            self.out.push(b'{');
            members(body, &["status", "output", "usage", "incomplete_details"], self.out);
            for (name, value) in [("status", "\"in_progress\""), ("output", "[]"), ("usage", "null")] {
                key(self.out, name);
                self.out.extend_from_slice(value.as_bytes());
            }
            self.out.push(b'}');
            end(self.out);
        }
        let output = body.get("output").unwrap_or(Raw::NULL);
        output.items().enumerate().for_each(|(at, item)| self.item(at as u64, item));
        let incomplete = body.get("status").is_some_and(|status| status.is("incomplete"));
        self.begin(if incomplete { "response.incomplete" } else { "response.completed" });
        key(self.out, "response");
        self.out.extend_from_slice(body.bytes());
        end(self.out);
    }

    fn begin(&mut self, name: &str) {
        begin(name, self.out);
        member_count(self.out, "sequence_number", self.number);
        self.number += 1;
    }

    /// Begins an event about the item with index `at`.
    fn about(&mut self, name: &str, at: u64, item: Raw<'_>) {
        self.begin(name);
        if let Some(id) = string(item, "id") {
            member_inside(self.out, "item_id", id);
        }
        member_count(self.out, "output_index", at);
    }

    fn item(&mut self, at: u64, item: Raw<'_>) {
        let texts = match string(item, "type").unwrap_or_default() {
            b"message" => Some(CONTENT),
            b"reasoning" => Some(SUMMARY),
            _ => None,
        };
        let arguments = string(item, "arguments");
        self.begin("response.output_item.added");
        member_count(self.out, "output_index", at);
        key(self.out, "item");
        self.out.push(b'{');
        let later = texts.as_ref().map_or("arguments", |texts| texts.list);
        members(item, &["status", later], self.out);
        if item.get("status").is_some() {
            key(self.out, "status");
            self.out.extend_from_slice(b"\"in_progress\"");
        }
        if item.get(later).is_some() {
            key(self.out, later);
            self.out.extend_from_slice(if texts.is_some() { b"[]" } else { b"\"\"" });
        }
        self.out.push(b'}');
        end(self.out);
        if let Some(texts) = texts {
            for (index, part) in item.get(texts.list).unwrap_or(Raw::NULL).items().enumerate() {
                self.part(&texts, (at, index as u64), item, part);
            }
        } else if let Some(arguments) = arguments {
            for (name, value) in [("delta", "delta"), ("done", "arguments")] {
                self.about(&format!("response.function_call_arguments.{name}"), at, item);
                member_inside(self.out, value, arguments);
                end(self.out);
            }
        }
        self.begin("response.output_item.done");
        member_count(self.out, "output_index", at);
        key(self.out, "item");
        self.out.extend_from_slice(item.bytes());
        end(self.out);
    }

    /// Writes one part of an item: its start, its text, its end.
    fn part(&mut self, texts: &Texts, (at, index): (u64, u64), item: Raw<'_>, part: Raw<'_>) {
        let (kind, text) = match (string(part, "refusal"), texts.list) {
            (Some(text), _) => ("refusal", text),
            (None, "summary") => ("reasoning_summary_text", string(part, "text").unwrap_or_default()),
            (None, _) => ("output_text", string(part, "text").unwrap_or_default()),
        };
        let own = if kind == "refusal" { "refusal" } else { "text" };
        let is_text = texts.list == SUMMARY.list || is_answer(&part);
        for (name, member) in [
            (format!("response.{}.added", texts.part), "part"),
            (format!("response.{kind}.delta"), "delta"),
            (format!("response.{kind}.done"), own),
            (format!("response.{}.done", texts.part), ""),
        ] {
            if !is_text && !matches!(member, "part" | "") {
                continue;
            }
            self.about(&name, at, item);
            member_count(self.out, texts.index, index);
            match member {
                "part" if is_text => {
                    key(self.out, "part");
                    self.out.push(b'{');
                    members(part, &[own], self.out);
                    key(self.out, own);
                    self.out.extend_from_slice(b"\"\"}");
                }
                "part" | "" => {
                    key(self.out, "part");
                    self.out.extend_from_slice(part.bytes());
                }
                name => {
                    member_inside(self.out, name, text);
                }
            }
            end(self.out);
        }
    }
}
