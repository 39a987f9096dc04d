//! OpenAI Responses: its requests, streams and complete answers.

mod answer_writer;
pub(super) mod echo;
pub(super) mod hidden;
pub(super) mod hosted_tools;
pub(super) mod input;
mod replay;
pub(super) mod request_reader;
pub(super) mod request_writer;
pub(super) mod response;
pub(super) mod stream_reader;
pub(super) mod stream_writer;
pub(super) mod tools;

use super::answer::{Broken, Destination};
use super::capabilities::Capabilities;
use super::errors::ErrorText;
use super::format::Format;
use super::keys::K;
use super::neutral::conversation::Talk;
use super::neutral::naming::TranslationState;
use super::reasons::{last, only, reason};
use super::replies::WholeAnswer;
use super::request::{Invalid, Name, PresentMembers};
use super::requests::ask::SourceRequest;
use super::requests::facts::{BytesEach, RequestFacts};
use super::tap::StreamFormat;
use super::tap::own::{IDENTITY, Own};
use super::usage::Reported;
use crate::wire::json::Raw;
use stream_reader::unfinished;

/// OpenAI Responses.
pub(super) struct Responses;

impl Format for Responses {
    const REQUESTS: RequestFacts = RequestFacts {
        opening: [Some(Name::Instructions), Some(Name::Input)],
        stops: ("", 0),
        verbosity: "text",
        tool_name_max: 64,
        // Items of the input are merged into turns, and a tool has two names.
        bytes_each: BytesEach { message: 704, part: 240, tool: 640 },
        marks_prefixes: false,
        one_text: false,
        strict_by_rules: true,
        distinct_ids: false,
    };
    const LIST: (&'static str, K) = ("output", K::Output);
    const ENDING: (&'static str, K) = ("status", K::Status);
    const REPLACED: &'static [(K, Own)] = &[(K::Store, Own::Store), (K::PreviousResponseId, Own::Previous)];
    const ADDED: &'static [Own] = IDENTITY;
    const STREAM: StreamFormat = StreamFormat::Responses { next: 0, inserted: 0, opened: false, answered: false };
    const HEARTBEAT: &'static [u8] = b": ping\n\n";

    fn missing(present: PresentMembers) -> Option<String> {
        let why = || "input: required, expected a string or an array of at least one object".to_owned();
        (!present.conversation).then(why)
    }

    fn is_read_by_model(name: Name) -> bool {
        name == Name::Text
    }

    fn read_request<'a>(ask: &SourceRequest<'a>, state: &mut TranslationState) -> Result<Talk<'a>, Invalid> {
        request_reader::read(ask, state)
    }

    fn write_request(
        ask: &SourceRequest<'_>,
        talk: Talk<'_>,
        state: &mut TranslationState,
        out: &mut Vec<u8>,
    ) -> Result<(), Invalid> {
        request_writer::write(ask, talk, state, out)
    }

    fn takes_verbosity(_: &Capabilities) -> bool {
        true
    }

    fn write_answer(answer: &WholeAnswer<'_>, to: Destination<'_>) -> Result<(), Broken> {
        answer_writer::write(answer, to)
    }

    fn write_events(body: Raw<'_>, out: &mut Vec<u8>) {
        replay::write(body, out);
    }

    fn hosted<'a>(tool: Raw<'a>, takes: &Capabilities) -> Option<Raw<'a>> {
        hosted_tools::hosted(tool, takes)
    }

    fn is_empty<'a>(output: Raw<'_>, status: Raw<'_>, usage: impl FnOnce() -> Raw<'a>) -> bool {
        stream_reader::is_empty(output, status, usage)
    }

    fn reported(usage: Raw<'_>) -> Reported {
        Reported::from_responses(usage)
    }

    fn check_end(_output: Raw<'_>, status: Raw<'_>) -> Result<(), ErrorText> {
        unfinished(status).map_or(Ok(()), Err)
    }

    fn is_text(path: &[K]) -> bool {
        matches!(
            path,
            [K::Output, K::Item, K::Name | K::Arguments | K::Input]
                // Content, or a summary.
                | [K::Output, K::Item, K::Content | K::Other, K::Item, K::Text | K::Refusal]
        )
    }

    fn usage_holder(data: Raw<'_>) -> Option<Raw<'_>> {
        let kind = data.get("type")?;
        let ends = kind.is("response.completed") || kind.is("response.incomplete");
        ends.then(|| data.get("response")).flatten()
    }

    fn add_reasons(ends: bool, out: &[u8], reasons: &mut Vec<&'static str>) {
        let incomplete = || {
            let rest = last(out, b"\"incomplete_details\"")?;
            let details = &rest[..rest.iter().position(|byte| *byte == b'}')?];
            reason(last(details, b"\"reason\"")?)
        };
        if ends {
            only(reasons, incomplete().or_else(|| reason(last(out, b"\"status\"")?)));
        }
    }
}
