//! Reads a whole answer of each shape.

use super::super::convert::{call_id, reason, thoughts, write_kept, write_thinking};
use super::super::delta::StopReason;
use super::super::usage::Reported;
use super::parts::{Answer, Arguments, Part};
use crate::wire::json::{Kind, Raw, key, write_inside};
use std::borrow::Cow;

fn string<'a>(object: Raw<'a>, name: &str) -> &'a [u8] {
    object.get(name).and_then(Raw::string).unwrap_or_default()
}

/// `keeps`: the client is given the reasoning to hand it back. `None`: there is no choice.
pub(super) fn chat<'a>(answer: Raw<'a>, keeps: bool) -> Option<Answer<'a>> {
    let choice = answer.get("choices").unwrap_or(Raw::NULL).items().next()?;
    let message = choice.get("message").unwrap_or(Raw::NULL);
    // A text, or a list of parts that have one.
    let texts = |name: &str| -> Vec<&'a [u8]> {
        let value = message.get(name).unwrap_or(Raw::NULL);
        let parts = value.items().filter_map(|part| part.get("text")?.string());
        value.string().into_iter().chain(parts).filter(|text| !text.is_empty()).collect()
    };
    let filled =
        |first: &str, other: &str| Some(texts(first)).filter(|texts| !texts.is_empty()).unwrap_or(texts(other));
    let mut parts = Vec::new();
    let thought = filled("reasoning_content", "reasoning");
    if !thought.is_empty() {
        let mut block = b"{\"reasoning_content\":".to_vec();
        write_inside(&mut block, &thought.concat());
        block.push(b'}');
        parts.push(Part::Thought(thought, keeps.then_some(block)));
    }
    let said = texts("content");
    let refused = string(message, "refusal");
    if said.is_empty() && !refused.is_empty() {
        parts.push(Part::Refusal(refused));
    }
    parts.extend(said.into_iter().map(|text| Part::Text(Cow::Borrowed(text))));
    for call in message.get("tool_calls").unwrap_or(Raw::NULL).items() {
        let function = call.get("function").unwrap_or(Raw::NULL);
        let arguments = match function.get("arguments") {
            Some(object) if object.kind() == Kind::Object => Arguments::Value(object),
            other => Arguments::Json(other.and_then(Raw::string).unwrap_or_default()),
        };
        parts.push(Part::Call(string(call, "id"), string(function, "name"), arguments));
    }
    let sequence = choice.get("stop_reason").and_then(Raw::string);
    let reason = match StopReason::from_chat(string(choice, "finish_reason")) {
        StopReason::End if sequence.is_some() => StopReason::Sequence,
        reason => reason,
    };
    let reported = Reported::from_chat(answer.get("usage").unwrap_or(Raw::NULL));
    Some(Answer { parts, reason, sequence, explanation: None, reported })
}

pub(super) fn messages<'a>(answer: Raw<'a>) -> Answer<'a> {
    let mut parts = Vec::new();
    for block in answer.get("content").unwrap_or(Raw::NULL).items() {
        match string(block, "type") {
            b"text" => parts.push(Part::Text(Cow::Borrowed(string(block, "text")))),
            b"thinking" => {
                let (text, signature) = (string(block, "thinking"), string(block, "signature"));
                let mut kept = Vec::new();
                write_thinking(text, signature, &mut kept);
                parts.push(Part::Thought(vec![text], (!signature.is_empty()).then_some(kept)));
            }
            b"redacted_thinking" => {
                let mut kept = b"{\"type\":\"redacted_thinking\"".to_vec();
                key(&mut kept, "data");
                write_inside(&mut kept, string(block, "data"));
                kept.push(b'}');
                parts.push(Part::Thought(Vec::new(), Some(kept)));
            }
            b"tool_use" => {
                let arguments = Arguments::Value(block.get("input").unwrap_or(Raw::EMPTY));
                parts.push(Part::Call(string(block, "id"), string(block, "name"), arguments));
            }
            _ => {}
        }
    }
    Answer {
        parts,
        reason: StopReason::from_messages(string(answer, "stop_reason")),
        sequence: answer.get("stop_sequence").and_then(Raw::string),
        explanation: answer.get("stop_details").and_then(|details| details.get("explanation")).and_then(Raw::string),
        reported: Reported::from_messages(answer.get("usage").unwrap_or(Raw::NULL)),
    }
}

pub(super) fn responses<'a>(answer: Raw<'a>) -> Answer<'a> {
    let mut parts = Vec::new();
    for item in answer.get("output").unwrap_or(Raw::NULL).items() {
        match string(item, "type") {
            b"message" => {
                for part in item.get("content").unwrap_or(Raw::NULL).items() {
                    match part.get("refusal").and_then(Raw::string) {
                        Some(refusal) => parts.push(Part::Refusal(refusal)),
                        None => parts.push(Part::Text(Cow::Borrowed(string(part, "text")))),
                    }
                }
            }
            b"reasoning" => {
                let mut texts: Vec<&[u8]> = Vec::new();
                for text in thoughts(item) {
                    texts.extend((!texts.is_empty()).then_some(&b"\\n\\n"[..]));
                    texts.push(text);
                }
                let mut kept = Vec::new();
                let any = write_kept(item, &mut kept);
                parts.push(Part::Thought(texts, any.then_some(kept)));
            }
            b"function_call" => {
                let arguments = Arguments::Json(string(item, "arguments"));
                parts.push(Part::Call(call_id(item), string(item, "name"), arguments));
            }
            _ => {}
        }
    }
    let calls = parts.iter().any(|part| matches!(part, Part::Call(..)));
    let reported = Reported::from_responses(answer.get("usage").unwrap_or(Raw::NULL));
    Answer { parts, reason: reason(answer, calls), reported, ..Answer::default() }
}
