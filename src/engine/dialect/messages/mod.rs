//! Anthropic Messages: its requests, streams and complete answers.

mod answer_writer;
pub(super) mod request_reader;
pub(super) mod request_writer;
pub(super) mod stream_reader;
pub(super) mod stream_writer;
pub(super) mod unsigned;

pub(super) use super::events::messages as write_events;
pub(super) use answer_writer::write as write_answer;
pub(super) use request_reader::read as read_request;
pub(super) use request_writer::write as write_request;

use super::capabilities::Capabilities;
use super::errors::ErrorText;
use super::keys::K;
use super::neutral::delta::{finish_word, lists_nothing};
use super::reasons::{last, only, reason};
use super::request::{Name, PresentMembers};
use super::tap::StreamFormat;
use super::tap::own::{IDENTITY, Own};
use super::usage::Reported;
use crate::wire::json::{Raw, eq_unescaped};

pub(super) const OPENING: [Option<Name>; 2] = [Some(Name::System), Some(Name::Messages)];
pub(super) const LIST: (&str, K) = ("content", K::Content);
pub(super) const ENDING: (&str, K) = ("stop_reason", K::StopReason);
pub(super) const REPLACED: &[(K, Own)] = &[];
pub(super) const ADDED: &[Own] = IDENTITY;
pub(super) const STREAM: StreamFormat = StreamFormat::Messages;
pub(super) const HEARTBEAT: &[u8] = b"event: ping\ndata: {\"type\":\"ping\"}\n\n";
/// Prefixes of the types of tools that the client runs, or that cost only their tokens.
const CLIENTS_OWN: [&str; 6] =
    ["bash_", "browser_toolset_", "computer_", "memory_", "text_editor_", "tool_search_tool_"];

pub(super) fn missing(present: PresentMembers) -> Option<String> {
    let no_bound = || "max_tokens: required, expected an integer of at least 1".to_owned();
    super::chat::missing(present).or_else(|| (!present.max_tokens).then(no_bound))
}

pub(super) fn is_read_by_model(name: Name) -> bool {
    matches!(name, Name::OutputConfig | Name::OutputFormat | Name::ContextManagement | Name::Compaction)
}

pub(super) fn hosted<'a>(tool: Raw<'a>, _takes: &Capabilities) -> Option<Raw<'a>> {
    let is_clients =
        |kind: &str| matches!(kind, "" | "custom") || CLIENTS_OWN.iter().any(|start| kind.starts_with(start));
    tool.members()
        .filter(|(key, _)| eq_unescaped(key, "type"))
        .map(|(_, kind)| kind)
        .find(|kind| !kind.is_null() && !kind.text().is_some_and(|kind| is_clients(&kind)))
}

pub(super) fn reported(usage: Raw<'_>) -> Reported {
    Reported::from_messages(usage)
}

pub(super) fn check_end(_content: Raw<'_>, reason: Raw<'_>) -> Result<(), ErrorText> {
    finish_word(Some(reason)).map(drop)
}

pub(super) fn is_empty<'a>(content: Raw<'_>, reason: Raw<'_>, _usage: impl FnOnce() -> Raw<'a>) -> bool {
    lists_nothing(content) && !matches!(finish_word(Some(reason)), Ok(Some(_)))
}

/// Including reasoning that only its provider can read.
pub(super) fn is_text(path: &[K]) -> bool {
    matches!(path, [K::Content, K::Item, K::Text | K::Thinking | K::Name | K::Data])
}

pub(super) fn usage_holder(data: Raw<'_>) -> Option<Raw<'_>> {
    let kind = data.get("type")?;
    let starts = kind.is("message_start").then(|| data.get("message")).flatten();
    starts.or_else(|| kind.is("message_delta").then_some(data))
}

pub(super) fn add_reasons(ends: bool, out: &[u8], reasons: &mut Vec<&'static str>) {
    if ends {
        only(reasons, last(out, b"\"stop_reason\"").and_then(reason));
    }
}
