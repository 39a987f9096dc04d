//! OpenAI Chat Completions: its requests, streams and complete answers.

mod answer_writer;
pub(super) mod custom_tools;
mod reasoning;
pub(super) mod request_reader;
pub(super) mod request_writer;
pub(super) mod signature;
pub(super) mod stream_reader;
pub(super) mod stream_writer;

pub(super) use super::events::chat as write_events;
pub(super) use answer_writer::write as write_answer;
pub(super) use request_reader::read as read_request;
pub(super) use request_writer::write as write_request;

use super::capabilities::Capabilities;
use super::errors::ErrorText;
use super::keys::K;
use super::neutral::delta::finishes;
use super::reasons::{REASONS_MAX, first, reason};
use super::request::{Name, PresentMembers};
use super::tap::own::Own;
use super::tap::{StreamFormat, is_said};
use super::usage::Reported;
use crate::wire::json::{Raw, ValueKind, eq_unescaped};

/// Members of a request with its system prompt and its conversation.
pub(super) const OPENING: [Option<Name>; 2] = [None, Some(Name::Messages)];
/// Members of a complete answer with its content and with its finish reason. In this format both are in each choice.
pub(super) const LIST: (&str, K) = ("choices", K::Choices);
pub(super) const ENDING: (&str, K) = ("", K::Item);
/// Other members of a complete answer that are replaced, and those that are added if they are missing.
pub(super) const REPLACED: &[(K, Own)] = &[(K::Created, Own::Created)];
pub(super) const ADDED: &[Own] = &[Own::Id, Own::Object, Own::Created, Own::Model, Own::Usage];
/// Initial state of a stream that is passed on.
pub(super) const STREAM: StreamFormat = StreamFormat::Chat { due: 1, running: 0, ended: 0 };
/// Heartbeat that every client accepts at any time.
pub(super) const HEARTBEAT: &[u8] = b": ping\n\n";

/// Refusal of a request that lacks a required member.
pub(super) fn missing(present: PresentMembers) -> Option<String> {
    let required = if present.is_empty { "" } else { "required, " };
    (!present.conversation).then(|| format!("messages: {required}expected an array of at least one message"))
}

/// True if a list or an object in this member of a request becomes part of the prompt in addition to conversation and
/// tools.
pub(super) fn is_read_by_model(name: Name) -> bool {
    matches!(name, Name::ResponseFormat | Name::Functions | Name::Prediction | Name::WebSearchOptions)
}

/// The kind of a tool that runs at the provider. A tool is the client's if it says so, or has a function.
pub(super) fn hosted<'a>(tool: Raw<'a>, _takes: &Capabilities) -> Option<Raw<'a>> {
    let mut kinds = tool.members().filter(|(key, _)| eq_unescaped(key, "type")).map(|(_, kind)| kind).peekable();
    if kinds.peek().is_none() {
        return if tool.get("function").is_some() { None } else { Some(tool) };
    }
    kinds.find(|kind| !(kind.is("function") || kind.is("custom")))
}

/// Usage of a complete answer.
pub(super) fn reported(usage: Raw<'_>) -> Reported {
    Reported::from_chat(usage)
}

/// An error if a complete answer reports that it is incomplete.
pub(super) fn check_end(choices: Raw<'_>, _ending: Raw<'_>) -> Result<(), ErrorText> {
    finishes(choices).map(drop)
}

/// True if a complete answer has no content and gives no reason.
pub(super) fn is_empty<'a>(choices: Raw<'_>, _ending: Raw<'_>, _usage: impl FnOnce() -> Raw<'a>) -> bool {
    let is_object = |message: Raw<'_>| message.kind() == ValueKind::Object;
    !choices.items().any(|choice| choice.get("message").is_some_and(is_object))
}

/// True if the value at `path` of a complete answer is text that counts as relayed: in one piece or in parts.
pub(super) fn is_text(path: &[K]) -> bool {
    matches!(path, [K::Choices, K::Item, K::Message, rest @ ..] if is_said(rest))
}

/// The object in an event's data that may contain the final usage.
pub(super) fn usage_holder(data: Raw<'_>) -> Option<Raw<'_>> {
    Some(data)
}

/// Adds the finish reasons in a part of an answer as the client gets it. `ends`: all choices have ended.
pub(super) fn add_reasons(_ends: bool, out: &[u8], reasons: &mut Vec<&'static str>) {
    let mut rest = out;
    while let Some(next) = first(rest, b"\"finish_reason\"").filter(|_| reasons.len() < REASONS_MAX) {
        reasons.extend(reason(next));
        rest = next;
    }
}
