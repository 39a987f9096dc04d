//! OpenAI Responses: its requests, streams and complete answers.

mod answer_writer;
pub(super) mod echo;
pub(super) mod hidden;
pub(super) mod hosted_tools;
pub(super) mod input;
pub(super) mod request_reader;
pub(super) mod request_writer;
pub(super) mod response;
pub(super) mod stream_reader;
pub(super) mod stream_writer;
pub(super) mod tools;

pub(super) use super::events::responses as write_events;
pub(super) use answer_writer::write as write_answer;
pub(super) use hosted_tools::hosted;
pub(super) use request_reader::read as read_request;
pub(super) use request_writer::write as write_request;
pub(super) use stream_reader::is_empty;

use super::errors::ErrorText;
use super::keys::K;
use super::reasons::{last, only, reason};
use super::request::{Name, PresentMembers};
use super::tap::StreamFormat;
use super::tap::own::{IDENTITY, Own};
use super::usage::Reported;
use crate::wire::json::Raw;
use stream_reader::unfinished;

pub(super) const OPENING: [Option<Name>; 2] = [Some(Name::Instructions), Some(Name::Input)];
pub(super) const LIST: (&str, K) = ("output", K::Output);
pub(super) const ENDING: (&str, K) = ("status", K::Status);
pub(super) const REPLACED: &[(K, Own)] = &[(K::Store, Own::Store), (K::PreviousResponseId, Own::Previous)];
pub(super) const ADDED: &[Own] = IDENTITY;
pub(super) const STREAM: StreamFormat =
    StreamFormat::Responses { next: 0, inserted: 0, opened: false, answered: false };
pub(super) const HEARTBEAT: &[u8] = b": ping\n\n";

pub(super) fn missing(present: PresentMembers) -> Option<String> {
    let why = || "input: required, expected a string or an array of at least one object".to_owned();
    (!present.conversation).then(why)
}

pub(super) fn is_read_by_model(name: Name) -> bool {
    name == Name::Text
}

pub(super) fn reported(usage: Raw<'_>) -> Reported {
    Reported::from_responses(usage)
}

pub(super) fn check_end(_output: Raw<'_>, status: Raw<'_>) -> Result<(), ErrorText> {
    unfinished(status).map_or(Ok(()), Err)
}

pub(super) fn is_text(path: &[K]) -> bool {
    matches!(
        path,
        [K::Output, K::Item, K::Name | K::Arguments | K::Input]
            // Content, or a summary.
            | [K::Output, K::Item, K::Content | K::Other, K::Item, K::Text | K::Refusal]
    )
}

pub(super) fn usage_holder(data: Raw<'_>) -> Option<Raw<'_>> {
    let kind = data.get("type")?;
    let ends = kind.is("response.completed") || kind.is("response.incomplete");
    ends.then(|| data.get("response")).flatten()
}

pub(super) fn add_reasons(ends: bool, out: &[u8], reasons: &mut Vec<&'static str>) {
    let incomplete = || {
        let rest = last(out, b"\"incomplete_details\"")?;
        let details = &rest[..rest.iter().position(|byte| *byte == b'}')?];
        reason(last(details, b"\"reason\"")?)
    };
    if ends {
        only(reasons, incomplete().or_else(|| reason(last(out, b"\"status\"")?)));
    }
}
