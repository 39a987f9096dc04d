//! OpenAI Responses: its requests, streams and complete answers.

mod check;
pub(super) mod echo;
pub(super) mod hidden;
pub(super) mod hosted_tools;
pub(super) mod read_request;
pub(super) mod read_stream;
mod replay;
pub(super) mod response;
pub(super) mod tools;
mod write_answer;
pub(super) mod write_request;
pub(super) mod write_stream;

use super::answer::{Broken, Destination};
use super::capabilities::Capabilities;
use super::errors::ErrorText;
use super::format::Format;
use super::keys::K;
use super::neutral::conversation::Conversation;
use super::neutral::naming::TranslationState;
use super::reasons::{last, only, reason};
use super::relay::StreamFormat;
use super::relay::own::{IDENTITY, Own};
use super::request::{Fields, Invalid, Name, Place, PresentMembers, Reading};
use super::translate::answer::hole::AnswerHole;
use super::translate::answer::whole::WholeAnswer;
use super::translate::facts::{BytesEach, RequestFacts};
use super::translate::source::SourceRequest;
use super::usage::Reported;
use crate::wire::Span;
use crate::wire::json::{Raw, Token};
use read_stream::unfinished;
use std::borrow::Cow;

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
    const LISTS: &'static [Name] = check::LISTS;
    const LIST: (&'static str, K) = ("output", K::Output);
    const ENDING: (&'static str, K) = ("status", K::Status);
    const REPLACED: &'static [(K, Own)] = &[(K::Store, Own::Store), (K::PreviousResponseId, Own::Previous)];
    const ADDED: &'static [Own] = IDENTITY;
    const STREAM: StreamFormat = StreamFormat::Responses { next: 0, inserted: 0, opened: false, answered: false };
    const HEARTBEAT: &'static [u8] = b": ping\n\n";
    const USAGE_ON_REQUEST: bool = false;
    const HAS_CHOICES: bool = false;
    const BOUND_HAS_TWO_NAMES: bool = false;
    const REQUIRES_BOUND: bool = false;
    const BOUND_MIN: u64 = write_request::BOUND_MIN;
    const IS_STORED: bool = true;
    const HAS_LOCAL_MEMBERS: bool = false;
    const CUT_INSTEAD: &'static str = "";
    const HAS_CHAT_USAGE: bool = false;
    const HAS_TOTAL: bool = true;
    const STREAM_HAS_ANSWER: bool = true;
    const REPEATS_REQUEST: bool = true;
    const OBJECT_ARGUMENTS: Option<&'static [K]> = None;
    const IS_SEQUENTIAL: bool = true;
    const IS_NUMBERED: bool = true;
    const SEALS_REASONING: bool = true;

    fn missing(present: PresentMembers) -> Option<String> {
        let why = || "input: required, expected a string or an array of at least one object".to_owned();
        (!present.conversation).then(why)
    }

    fn check_item<'a>(place: Place, item: Raw<'a>, reading: &mut Reading<'a, '_>) -> Result<(bool, usize), Invalid> {
        check::check_item(place, item, reading)
    }

    fn note_member(name: Name, value: Raw<'_>, fields: &mut Fields) {
        check::note_member(name, value, fields);
    }

    fn is_read_by_model(name: Name) -> bool {
        name == Name::Text
    }

    fn read_request<'a>(source: &SourceRequest<'a>, state: &mut TranslationState) -> Result<Conversation<'a>, Invalid> {
        read_request::read(source, state)
    }

    fn write_request(
        source: &SourceRequest<'_>,
        conversation: Conversation<'_>,
        state: &mut TranslationState,
        out: &mut Vec<u8>,
    ) -> Result<(), Invalid> {
        write_request::write(source, conversation, state, out)
    }

    fn takes_verbosity(_: &Capabilities) -> bool {
        true
    }

    fn hands_back(_is_sealed: bool) -> bool {
        true
    }

    fn write_answer(answer: &WholeAnswer<'_>, to: Destination<'_>) -> Result<(), Broken> {
        write_answer::write(answer, to)
    }

    fn write_events(body: Raw<'_>, out: &mut Vec<u8>) {
        replay::write(body, out);
    }

    fn hosted<'a>(tool: Raw<'a>, takes: &Capabilities) -> Option<Raw<'a>> {
        hosted_tools::hosted(tool, takes)
    }

    fn is_empty<'a>(output: Raw<'_>, status: Raw<'_>, usage: impl FnOnce() -> Raw<'a>) -> bool {
        read_stream::is_empty(output, status, usage)
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

    fn bound(_takes: &Capabilities) -> &'static str {
        Name::MaxOutputTokens.text()
    }

    /// Also tools that run at the provider.
    fn cuts<'a>(body: &[u8], fields: &'a Fields, takes: &Capabilities) -> Result<Cow<'a, [Span]>, Invalid> {
        Ok(Span::in_order(hosted_tools::refused(body, fields, takes)?, &fields.cuts))
    }

    fn hole(path: &[K], token: Token) -> Option<AnswerHole> {
        match (path, token) {
            ([K::Output, K::Item, K::Content, K::Item, K::Text], Token::String) => Some(AnswerHole::Text),
            ([K::Usage, K::InputTokens], _) => Some(AnswerHole::Prompt),
            ([K::Usage, K::OutputTokens], _) => Some(AnswerHole::Completion),
            ([K::Usage, K::TotalTokens], _) => Some(AnswerHole::Total),
            ([K::Output, K::Item, K::Id], Token::String) => Some(AnswerHole::Word),
            ([K::Other], Token::Number) => Some(AnswerHole::Number),
            _ => None,
        }
    }
}
