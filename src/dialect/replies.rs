//! A whole answer of one shape written as an answer of the other (`wire-formats` 3.10).
//!
//! Owns the mapping. Must say what the translated stream of the same answer says once it is put together. Called by
//! the gateway when it has collected an upstream's whole answer.

use super::answer::{Broken, ResponseIdentity};
use super::convert::{write_chat_usage, write_messages_usage};
use super::delta::StopReason;
use super::errors::{ErrorText, is_error, read_error};
use super::naming::{JSON_TOOL, TranslationState, made_id, messages_id};
use super::requests::{write_arguments, write_input};
use super::tokens::Estimator;
use super::usage::{ObservedUsage, Reported};
use crate::wire::Dialect;
use crate::wire::json::{self, Kind, Raw, item, key, write_count, write_inside, write_string};

/// Writes an upstream's whole answer of shape `from` for a client of the other shape. `state` is what the request's
/// translation left. [`Broken`] as for [`super::whole`].
pub fn reply(
    from: Dialect,
    body: &[u8],
    state: &TranslationState,
    me: &ResponseIdentity<'_>,
    out: &mut Vec<u8>,
) -> Result<ObservedUsage, Broken> {
    json::check(body).map_err(|_| Broken::NotJson)?;
    let answer = Raw::new(body);
    if let Some(error) = answer.get("error").filter(|error| is_error(*error)) {
        return Err(Broken::Error(ErrorText::from_value(error)));
    }
    let list = if from == Dialect::Chat { "choices" } else { "content" };
    if answer.get(list).map(Raw::kind) != Some(Kind::Array) {
        return Err(read_error(body).map_or(Broken::NotJson, Broken::Error));
    }
    match from {
        Dialect::Chat => to_messages(answer, state, me, out),
        Dialect::Messages => Ok(to_chat(answer, state, me, out)),
    }
}

fn kind_is(block: Raw<'_>, kind: &str) -> bool {
    block.get("type").is_some_and(|own| own.is(kind))
}

/// Appends strings as one.
fn write_joined<'a>(texts: impl Iterator<Item = &'a [u8]>, relayed: &mut Estimator, out: &mut Vec<u8>) {
    out.push(b'"');
    for text in texts {
        relayed.feed_json(text);
        out.extend_from_slice(text);
    }
    out.push(b'"');
}

fn to_chat(answer: Raw<'_>, state: &TranslationState, me: &ResponseIdentity<'_>, out: &mut Vec<u8>) -> ObservedUsage {
    let mut relayed = Estimator::new();
    let blocks = || answer.get("content").unwrap_or(Raw::NULL).items();
    let is_json = |block: &Raw<'_>| state.json_tool && block.get("name").is_some_and(|name| name.is(JSON_TOOL));
    let calls = || blocks().filter(|block| kind_is(*block, "tool_use")).filter(|block| !is_json(block));
    let strings = |kind: &'static str, name: &'static str| {
        blocks().filter(move |block| kind_is(*block, kind)).filter_map(move |block| block.get(name)?.string())
    };
    let mut document = Vec::new();
    if let Some(block) = blocks().find(|block| kind_is(*block, "tool_use") && is_json(block)) {
        write_arguments(block.get("input").unwrap_or(Raw::EMPTY), &mut document);
    }
    let any_call = calls().next().is_some();
    out.extend_from_slice(b"{\"id\":");
    write_string(out, me.id);
    out.extend_from_slice(b",\"object\":\"chat.completion\",\"created\":");
    write_count(out, me.created);
    key(out, "model");
    write_string(out, me.model);
    out.extend_from_slice(b",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":");
    if any_call && document.is_empty() && strings("text", "text").all(<[u8]>::is_empty) {
        out.extend_from_slice(b"null");
    } else {
        let document = (!document.is_empty()).then_some(document.as_slice());
        write_joined(strings("text", "text").chain(document), &mut relayed, out);
    }
    let reason = StopReason::from_messages(answer.get("stop_reason").and_then(Raw::string).unwrap_or_default());
    let explanation = answer.get("stop_details").and_then(|details| details.get("explanation")).and_then(Raw::string);
    key(out, "refusal");
    match explanation.filter(|text| !text.is_empty()) {
        Some(text) => write_inside(out, text),
        None => out.extend_from_slice(b"null"),
    }
    if strings("thinking", "thinking").any(|text| !text.is_empty()) {
        key(out, "reasoning_content");
        write_joined(strings("thinking", "thinking"), &mut relayed, out);
    }
    if any_call {
        key(out, "tool_calls");
        out.push(b'[');
        for (at, call) in calls().enumerate() {
            write_chat_call(call, at, me, &mut relayed, out);
        }
        out.push(b']');
    }
    let tools_are_json = reason == StopReason::Tools && !document.is_empty();
    let reason = if tools_are_json { StopReason::End } else { reason };
    out.extend_from_slice(b"},\"logprobs\":null,\"finish_reason\":");
    write_string(out, reason.to_chat(any_call));
    out.extend_from_slice(b"}],\"usage\":");
    let reported = Reported::from_messages(answer.get("usage").unwrap_or(Raw::NULL));
    let observed = ObservedUsage { reported, relayed_tokens: relayed.tokens() };
    write_chat_usage(&observed, me, out);
    out.push(b'}');
    observed
}

fn write_chat_call(call: Raw<'_>, at: usize, me: &ResponseIdentity<'_>, relayed: &mut Estimator, out: &mut Vec<u8>) {
    item(out);
    out.extend_from_slice(b"{\"id\":\"");
    match call.get("id").and_then(Raw::string).filter(|id| !id.is_empty()) {
        Some(id) => out.extend_from_slice(id),
        None => made_id(me.id, at, out),
    }
    out.extend_from_slice(b"\",\"type\":\"function\",\"function\":{\"name\":");
    let name = call.get("name").and_then(Raw::string).unwrap_or_default();
    relayed.cut();
    relayed.feed_json(name);
    write_inside(out, name);
    out.extend_from_slice(b",\"arguments\":\"");
    let from = out.len();
    write_arguments(call.get("input").unwrap_or(Raw::EMPTY), out);
    relayed.feed_json(&out[from..]);
    out.extend_from_slice(b"\"}}");
}

/// A text block, or reasoning, under way.
fn write_block(kind: &str, text: Raw<'_>, relayed: &mut Estimator, out: &mut Vec<u8>) {
    let parts = text.items().filter_map(|part| part.get("text"));
    let texts = || text.string().into_iter().chain(parts.clone().filter_map(Raw::string));
    if texts().all(<[u8]>::is_empty) {
        return;
    }
    item(out);
    out.extend_from_slice(b"{\"type\":");
    write_string(out, kind);
    key(out, kind);
    write_joined(texts(), relayed, out);
    if kind == "thinking" {
        out.extend_from_slice(b",\"signature\":\"\"");
    }
    out.push(b'}');
}

fn to_messages(
    answer: Raw<'_>,
    state: &TranslationState,
    me: &ResponseIdentity<'_>,
    out: &mut Vec<u8>,
) -> Result<ObservedUsage, Broken> {
    let mut relayed = Estimator::new();
    let choice = answer.get("choices").unwrap_or(Raw::NULL).items().next().ok_or(Broken::NotJson)?;
    let message = choice.get("message").unwrap_or(Raw::NULL);
    let filled = |name: &str| message.get(name).filter(|text| !matches!(text.bytes(), b"\"\"" | b"[]"));
    out.extend_from_slice(b"{\"id\":");
    write_string(out, me.id);
    out.extend_from_slice(b",\"type\":\"message\",\"role\":\"assistant\",\"model\":");
    write_string(out, me.model);
    out.extend_from_slice(b",\"content\":[");
    let thought = filled("reasoning_content").or_else(|| filled("reasoning"));
    write_block("thinking", thought.unwrap_or(Raw::NULL), &mut relayed, out);
    let said = filled("content").or_else(|| filled("refusal"));
    write_block("text", said.unwrap_or(Raw::NULL), &mut relayed, out);
    let (mut tools, mut unwrapped) = (false, false);
    for (at, call) in message.get("tool_calls").unwrap_or(Raw::NULL).items().enumerate() {
        let function = call.get("function").unwrap_or(Raw::NULL);
        if state.json_tool && !unwrapped && function.get("name").is_some_and(|name| name.is(JSON_TOOL)) {
            unwrapped = true;
            write_block("text", function.get("arguments").unwrap_or(Raw::NULL), &mut relayed, out);
        } else {
            tools = true;
            write_messages_call(call, at, state, me, &mut relayed, out);
        }
    }
    let reason = StopReason::from_chat(choice.get("finish_reason").and_then(Raw::string).unwrap_or_default());
    let sequence = choice.get("stop_reason").and_then(Raw::string);
    let reason = match reason {
        StopReason::Tools if unwrapped => StopReason::End,
        StopReason::End if sequence.is_some() => StopReason::Sequence,
        reason => reason,
    };
    let word = reason.to_messages(tools);
    out.extend_from_slice(b"],\"stop_reason\":");
    write_string(out, word);
    key(out, "stop_sequence");
    match sequence.filter(|_| word == "stop_sequence") {
        Some(sequence) => write_inside(out, sequence),
        None => out.extend_from_slice(b"null"),
    }
    let reported = Reported::from_chat(answer.get("usage").unwrap_or(Raw::NULL));
    let observed = ObservedUsage { reported, relayed_tokens: relayed.tokens() };
    key(out, "usage");
    write_messages_usage(&observed, me, out);
    out.push(b'}');
    Ok(observed)
}

fn write_messages_call(
    call: Raw<'_>,
    at: usize,
    state: &TranslationState,
    me: &ResponseIdentity<'_>,
    relayed: &mut Estimator,
    out: &mut Vec<u8>,
) {
    let function = call.get("function").unwrap_or(Raw::NULL);
    let name = function.get("name").and_then(Raw::string).unwrap_or_default();
    relayed.cut();
    relayed.feed_json(name);
    item(out);
    out.extend_from_slice(b"{\"type\":\"tool_use\",\"id\":\"");
    match call.get("id").and_then(Raw::string).filter(|id| !id.is_empty()) {
        Some(id) => messages_id(id, out),
        None => made_id(me.id, at, out),
    }
    out.push(b'"');
    key(out, "name");
    write_inside(out, state.restore(name));
    key(out, "input");
    match function.get("arguments") {
        Some(object) if object.kind() == Kind::Object => json::compact(object.bytes(), out),
        other => {
            let text = other.and_then(Raw::string).unwrap_or_default();
            relayed.feed_json(text);
            write_input(text, out);
        }
    }
    out.push(b'}');
}
