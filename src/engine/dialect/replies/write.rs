//! Writes a complete answer of each format.

use super::super::answer::{Broken, Destination, ResponseIdentity, StreamFault};
use super::super::convert::{NO_DETAILS, write_chat_usage, write_messages_usage};
use super::super::requests::write_details;
use crate::dialect::chat::request_writer::write_call;
use crate::dialect::chat::signature::Signatures;
use crate::dialect::messages::request_writer::write_called;
use crate::dialect::neutral::answer::{AnswerPart, NeutralAnswer};
use crate::dialect::neutral::carrier;
use crate::dialect::neutral::delta::{Delta, StopReason};
use crate::dialect::neutral::naming::{TranslationState, made_id};
use crate::dialect::responses::response::free_input;
use crate::dialect::responses::stream_writer::ResponsesWriter;
use crate::wire::json::{Raw, item, key, member_inside, put, write_count, write_inside, write_string};

/// Appends several strings as one.
fn write_joined<'a>(texts: impl Iterator<Item = &'a [u8]>, out: &mut Vec<u8>) {
    out.push(b'"');
    texts.for_each(|text| out.extend_from_slice(text));
    out.push(b'"');
}

pub(in crate::dialect) fn chat(answer: &NeutralAnswer<'_>, to: Destination<'_>) -> Result<(), Broken> {
    let Destination { state, observed, me, out } = to;
    let texts =
        || answer.parts.iter().filter_map(|part| if let AnswerPart::Text(text) = part { Some(&**text) } else { None });
    let refusals =
        answer.parts.iter().filter_map(|part| if let AnswerPart::Refusal(text) = part { Some(*text) } else { None });
    let refusals = refusals.chain(answer.explanation).filter(|text| !text.is_empty());
    let thoughts = answer
        .parts
        .iter()
        .filter_map(|part| if let AnswerPart::Thought(texts, _) = part { Some(texts) } else { None });
    let thoughts = thoughts.flatten().copied().filter(|text| !text.is_empty());
    out.extend_from_slice(b"{\"id\":");
    write_inside(out, me.id);
    out.extend_from_slice(b",\"object\":\"chat.completion\",\"created\":");
    write_count(out, me.created);
    out.extend_from_slice(b",\"model\":");
    put!(out, me.model());
    out.extend_from_slice(b",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":");
    if answer.calls() && texts().all(<[u8]>::is_empty) {
        out.extend_from_slice(b"null");
    } else {
        write_joined(texts(), out);
    }
    out.extend_from_slice(b",\"refusal\":");
    match refusals.clone().next() {
        Some(_) => write_joined(refusals, out),
        None => out.extend_from_slice(b"null"),
    }
    if thoughts.clone().next().is_some() {
        key(out, "reasoning_content");
        write_joined(thoughts, out);
    }
    write_details(kept_blocks(answer), out);
    if answer.calls() {
        write_chat_calls(answer, state, me, out);
    }
    out.extend_from_slice(b"},\"logprobs\":null,\"finish_reason\":");
    write_string(out, answer.reason.to_chat(answer.calls()));
    out.extend_from_slice(b"}],\"usage\":");
    write_chat_usage(observed, me, out);
    out.push(b'}');
    Ok(())
}

/// The blocks of reasoning that the provider requires back.
fn kept_blocks<'t>(answer: &'t NeutralAnswer<'_>) -> impl Iterator<Item = Raw<'t>> {
    let kept = answer.parts.iter();
    kept.filter_map(|part| if let AnswerPart::Thought(_, Some(kept)) = part { Some(Raw::new(kept)) } else { None })
}

/// Writes the calls of a chat answer.
fn write_chat_calls(
    answer: &NeutralAnswer<'_>,
    state: &TranslationState,
    me: &ResponseIdentity<'_>,
    out: &mut Vec<u8>,
) {
    key(out, "tool_calls");
    out.push(b'[');
    let mut signatures = Signatures::of(kept_blocks(answer));
    let mut at = 0;
    for part in &answer.parts {
        match part {
            AnswerPart::Thought(_, Some(kept)) => signatures.before(Raw::new(kept)),
            AnswerPart::Call(id, name, arguments) => {
                let signature = signatures.take(id);
                let id = |out: &mut Vec<u8>| match id.is_empty() {
                    true => made_id(me.id, at, out),
                    false => out.extend_from_slice(id),
                };
                match state.is_free(name) {
                    true => write_free_call(id, state.restore(name), &free_input(&arguments.text()), out),
                    false => write_call(id, state.restore(name), *arguments, signature, out),
                }
                at += 1;
            }
            _ => {}
        }
    }
    out.push(b']');
}

/// Writes a call of a tool that takes free text.
#[cold]
fn write_free_call(id: impl FnOnce(&mut Vec<u8>), name: &[u8], input: &[u8], out: &mut Vec<u8>) {
    item(out);
    out.extend_from_slice(b"{\"id\":\"");
    id(out);
    out.extend_from_slice(b"\",\"type\":\"custom\",\"custom\":{\"name\":");
    write_inside(out, name);
    member_inside(out, "input", input);
    out.extend_from_slice(b"}}");
}

pub(in crate::dialect) fn messages(answer: &NeutralAnswer<'_>, to: Destination<'_>) -> Result<(), Broken> {
    let Destination { state, observed, me, out } = to;
    out.extend_from_slice(b"{\"id\":");
    write_inside(out, me.id);
    out.extend_from_slice(b",\"type\":\"message\",\"role\":\"assistant\",\"model\":");
    put!(out, me.model());
    out.extend_from_slice(b",\"content\":[");
    let mut ids = Vec::new();
    let mut parts = answer.parts.iter().peekable();
    while let Some(part) = parts.next() {
        match part {
            AnswerPart::Text(text) => {
                // Text that arrived in pieces is one text.
                let mut texts = vec![&**text];
                while let Some(AnswerPart::Text(more)) = parts.peek() {
                    texts.push(more);
                    parts.next();
                }
                block("text", &texts, None, state, out);
            }
            AnswerPart::Refusal(text) => block("text", &[text], None, state, out),
            AnswerPart::Thought(_, Some(kept)) if answer.native => {
                item(out);
                out.extend_from_slice(kept);
            }
            AnswerPart::Thought(texts, kept) => block("thinking", texts, kept.as_deref(), state, out),
            AnswerPart::Call(id, name, arguments) => {
                item(out);
                out.extend_from_slice(b"{\"type\":\"tool_use\",\"caller\":{\"type\":\"direct\"},\"id\":\"");
                state.fresh_id(id, ids.len(), me.id, &mut ids, out);
                write_called(state.restore(name), *arguments, out);
            }
        }
    }
    let word = answer.reason.to_messages(answer.calls(), answer.refuses());
    out.extend_from_slice(b"],\"stop_reason\":");
    write_string(out, word);
    key(out, "stop_sequence");
    match answer.sequence.filter(|_| word == "stop_sequence") {
        Some(sequence) => write_inside(out, sequence),
        None => out.extend_from_slice(b"null"),
    }
    put!(out, NO_DETAILS);
    key(out, "usage");
    write_messages_usage(observed, me, out);
    out.push(b'}');
    Ok(())
}

/// Writes a text block or a reasoning block; nothing if it is empty. `kept`: data that its target must get back. For
/// another target's reasoning it becomes the signature.
fn block(kind: &str, texts: &[&[u8]], kept: Option<&[u8]>, state: &TranslationState, out: &mut Vec<u8>) {
    if texts.iter().all(|text| text.is_empty()) && kept.is_none() {
        return;
    }
    item(out);
    out.extend_from_slice(b"{\"type\":");
    write_string(out, kind);
    key(out, kind);
    write_joined(texts.iter().copied(), out);
    if kind == "thinking" {
        out.extend_from_slice(b",\"signature\":\"");
        if let Some(kept) = kept {
            carrier::close(kept, &state.mark, out);
        }
        out.push(b'"');
    } else {
        out.extend_from_slice(b",\"citations\":[]");
    }
    out.push(b'}');
}

/// Writes the answer in the format whose streams end with the complete answer.
pub(in crate::dialect) fn responses(answer: &NeutralAnswer<'_>, mut to: Destination<'_>) -> Result<(), Broken> {
    let mut writer = ResponsesWriter::quiet();
    each_delta(answer, &mut |delta| writer.take(delta, &mut to)).and_then(|()| writer.finish(&mut to)).map_err(
        |fault| match fault {
            StreamFault::Error(text) => Broken::Error(text),
            _ => Broken::NotJson,
        },
    )
}

/// Calls `take` with the deltas of an answer.
fn each_delta(
    answer: &NeutralAnswer<'_>,
    take: &mut dyn FnMut(Delta<'_>) -> Result<(), StreamFault>,
) -> Result<(), StreamFault> {
    let NeutralAnswer { reason, sequence, explanation, .. } = *answer;
    let mut slot = 0;
    for part in &answer.parts {
        match part {
            AnswerPart::Text(text) if text.is_empty() => {}
            AnswerPart::Text(text) => take(Delta::Text(text))?,
            AnswerPart::Refusal(text) => take(Delta::Refuse(text))?,
            AnswerPart::Thought(texts, kept) => {
                texts.iter().filter(|text| !text.is_empty()).try_for_each(|text| take(Delta::Think(text)))?;
                take(Delta::Thought { block: kept.as_deref() })?;
            }
            AnswerPart::Call(id, name, arguments) => {
                take(Delta::ToolOpen { slot, id, name })?;
                take(Delta::ToolArgs { slot, json: &arguments.text() })?;
                take(Delta::ToolClose { slot })?;
                slot += 1;
            }
        }
    }
    let reason = if reason == StopReason::Unknown && slot > 0 { StopReason::Tools } else { reason };
    take(Delta::Stop { reason, sequence, explanation })
}
