//! Reads a complete answer of each format.

use super::super::answer::Broken;
use super::super::convert::{call_id, thought_block, thoughts, unfinished, write_kept, write_thinking};
use super::super::convert::{calls_in, details_of, each_text, is_other, reason, said, says_nothing, sequence_of};
use super::super::errors::ErrorText;
use super::super::usage::Reported;
use crate::dialect::chat::signature;
use crate::dialect::neutral::answer::{AnswerMembers, AnswerPart, NeutralAnswer};
use crate::dialect::neutral::arguments::Arguments;
use crate::dialect::neutral::delta::{StopReason, TextKind, choice_word, finish_word, lists_nothing};
use crate::wire::json::{Raw, ValueKind, Word, item, member_inside};
use std::borrow::Cow;

fn inside(value: Option<Raw<'_>>) -> &[u8] {
    value.and_then(Raw::string).unwrap_or_default()
}

/// The word of a member, whatever its spelling.
fn word(value: Option<Raw<'_>>) -> Word<'_> {
    value.and_then(Raw::word).unwrap_or_default()
}

fn string<'a>(object: Raw<'a>, name: &str) -> &'a [u8] {
    inside(object.get(name))
}

pub(in crate::dialect) fn chat<'a>(answer: &AnswerMembers<'a>) -> Result<NeutralAnswer<'a>, Broken> {
    let (choices, usage) = (answer.list, answer.usage);
    let mut choices_left = choices.items();
    let mut next = || choices_left.pick(["index", "message", "stop_reason", "finish_reason", "error"]);
    let first = next().ok_or(Broken::NotJson)?;
    // The choice that a stream reader takes, in whatever order they are.
    let found = std::iter::once(first).chain(std::iter::from_fn(next)).find(|(_, [index, ..])| !is_other(*index));
    let (choice, [_, message, sequence, word, error]) = found.unwrap_or(first);
    let ending = choice_word(word, error)?.unwrap_or(Raw::NULL);
    let message = message.filter(|message| message.kind() == ValueKind::Object).ok_or(Broken::NotJson)?;
    let names =
        ["content", "refusal", "reasoning_content", "reasoning", "tool_calls", "reasoning_details", "function_call"];
    let [content, refusal, thinking, reasoning, calls, details, older] = message.pick(names);
    let (mut parts, mut said) = (Vec::new(), Vec::new());
    let [mut thought, mut other, mut nested, mut detailed] = [const { Vec::new() }; 4];
    let list = |into: &mut Vec<&'a [u8]>, text| {
        into.push(text);
        Ok::<(), ErrorText>(())
    };
    each_text(thinking.unwrap_or(Raw::NULL), true, &mut |_, text| list(&mut thought, text))?;
    each_text(reasoning.unwrap_or(Raw::NULL), true, &mut |_, text| list(&mut other, text))?;
    each_text(content.unwrap_or(Raw::NULL), false, &mut |thinks, text| {
        list(if thinks { &mut nested } else { &mut said }, text)
    })?;
    // Some servers send it under both names.
    let mut written = Vec::new();
    for (detail, text) in details_of(details.unwrap_or(Raw::NULL)) {
        item(&mut written);
        written.extend_from_slice(detail.bytes());
        detailed.extend(text);
    }
    let thoughts = [thought, other, nested, detailed];
    let thought = thoughts.into_iter().find(|texts| !texts.is_empty()).unwrap_or_default();
    let text = if answer.keeps { thought.concat() } else { Vec::new() };
    let block = thought_block(&text, &written);
    if !thought.is_empty() || block.is_some() {
        parts.push(AnswerPart::Thought(thought, block));
    }
    let refused = inside(refusal);
    if said.is_empty() && !refused.is_empty() {
        parts.push(AnswerPart::Refusal(refused));
    }
    parts.extend(said.into_iter().map(|text| AnswerPart::Text(Cow::Borrowed(text))));
    let calls = calls
        .filter(|calls| !lists_nothing(*calls))
        .or_else(|| choices_left.find_map(|choice| calls_in(choice, "message")));
    let calls = calls.unwrap_or(Raw::NULL).items().map(|call| call.pick(["id", "function", "extra_content"]));
    let says = |[id, function, extra]: &[_; 3]| !says_nothing(*id, function.unwrap_or(Raw::NULL), *extra);
    let mut calls = calls.filter(says).peekable();
    let older = older.filter(|call| !string(*call, "name").is_empty() && calls.peek().is_none());
    for [id, function, extra] in calls.chain(older.map(|call| [None, Some(call), None])) {
        let signed = extra.and_then(|extra| signature::block_of(extra, inside(id)));
        parts.extend(signed.map(|block| AnswerPart::Thought(Vec::new(), Some(block))));
        let [name, arguments] = function.unwrap_or(Raw::NULL).pick(["name", "arguments"]);
        parts.push(AnswerPart::Call(inside(id), inside(name), Arguments::of(arguments)));
    }
    let sequence = sequence_of(choice, sequence);
    let reason = StopReason::from_chat(ending, sequence.is_some());
    let reported = if usage.is_null() { Reported::of_choices(choices) } else { Reported::from_chat(usage) };
    Ok(NeutralAnswer { parts, reason, sequence, reported, ..NeutralAnswer::default() })
}

pub(in crate::dialect) fn messages<'a>(answer: &AnswerMembers<'a>) -> Result<NeutralAnswer<'a>, Broken> {
    let ending = finish_word(Some(answer.ending))?.unwrap_or(Raw::NULL);
    let mut parts = Vec::new();
    let mut blocks = answer.list.items();
    while let Some((block, [kind, text])) = blocks.pick(["type", "text"]) {
        match &*word(kind) {
            b"text" => parts.push(AnswerPart::Text(Cow::Borrowed(inside(text)))),
            b"thinking" => {
                let (text, signature) = (string(block, "thinking"), string(block, "signature"));
                let mut kept = Vec::new();
                write_thinking(text, signature, &mut kept);
                parts.push(AnswerPart::Thought(vec![text], (!signature.is_empty()).then_some(kept)));
            }
            b"redacted_thinking" => {
                let mut kept = b"{\"type\":\"redacted_thinking\"".to_vec();
                member_inside(&mut kept, "data", string(block, "data"));
                kept.push(b'}');
                parts.push(AnswerPart::Thought(Vec::new(), Some(kept)));
            }
            b"tool_use" => {
                let arguments = Arguments::of(block.get("input"));
                parts.push(AnswerPart::Call(string(block, "id"), string(block, "name"), arguments));
            }
            _ => {}
        }
    }
    Ok(NeutralAnswer {
        parts,
        reason: StopReason::from_messages(ending),
        sequence: answer.sequence.and_then(Raw::string),
        explanation: answer.details.and_then(|details| details.get("explanation")).and_then(Raw::string),
        reported: Reported::from_messages(answer.usage),
        ..NeutralAnswer::default()
    })
}

pub(in crate::dialect) fn responses<'a>(answer: &AnswerMembers<'a>) -> Result<NeutralAnswer<'a>, Broken> {
    if let Some(text) = unfinished(answer.ending) {
        return Err(Broken::Error(text));
    }
    let mut parts = Vec::new();
    for item in answer.list.items() {
        match &*word(item.get("type")) {
            b"message" => {
                parts.extend(said(item).map(|(_, kind, text)| match kind {
                    TextKind::Refuse => AnswerPart::Refusal(text),
                    _ => AnswerPart::Text(Cow::Borrowed(text)),
                }));
            }
            b"reasoning" => {
                let mut texts: Vec<&[u8]> = Vec::new();
                for (_, _, text) in thoughts(item) {
                    texts.extend((!texts.is_empty()).then_some(&b"\\n\\n"[..]));
                    texts.push(text);
                }
                let mut kept = Vec::new();
                let any = write_kept(item, &mut kept);
                parts.push(AnswerPart::Thought(texts, any.then_some(kept)));
            }
            b"function_call" => {
                let arguments = Arguments::of(item.get("arguments"));
                parts.push(AnswerPart::Call(call_id(item), string(item, "name"), arguments));
            }
            _ => {}
        }
    }
    let calls = parts.iter().any(|part| matches!(part, AnswerPart::Call(..)));
    let reported = Reported::from_responses(answer.usage);
    Ok(NeutralAnswer { parts, reason: reason(answer.body, false, calls), reported, ..NeutralAnswer::default() })
}
