//! OpenAI Chat Completions: its requests, streams and complete answers.

mod answer_writer;
pub(super) mod custom_tools;
mod reasoning;
pub(super) mod replay;
pub(super) mod request_reader;
pub(super) mod request_writer;
pub(super) mod signature;
pub(super) mod stream_reader;
pub(super) mod stream_writer;

use super::answer::{Broken, Destination};
use super::capabilities::Capabilities;
use super::errors::ErrorText;
use super::format::Format;
use super::keys::K;
use super::neutral::conversation::Talk;
use super::neutral::delta::finishes;
use super::neutral::naming::TranslationState;
use super::reasons::{REASONS_MAX, first, reason};
use super::replies::WholeAnswer;
use super::request::{Invalid, Name, PresentMembers};
use super::requests::ask::SourceRequest;
use super::requests::facts::{BytesEach, RequestFacts};
use super::tap::own::Own;
use super::tap::{StreamFormat, is_said};
use super::usage::Reported;
use crate::wire::json::{Raw, ValueKind, eq_unescaped};

/// OpenAI Chat Completions.
pub(super) struct Chat;

impl Format for Chat {
    const REQUESTS: RequestFacts = RequestFacts {
        opening: [None, Some(Name::Messages)],
        stops: ("stop", request_writer::STOPS_MAX),
        verbosity: "verbosity",
        tool_name_max: 64,
        bytes_each: BytesEach::OF_MESSAGES,
        marks_prefixes: false,
        one_text: true,
        strict_by_rules: true,
        distinct_ids: false,
    };
    const LIST: (&'static str, K) = ("choices", K::Choices);
    const ENDING: (&'static str, K) = ("", K::Item);
    const REPLACED: &'static [(K, Own)] = &[(K::Created, Own::Created)];
    const ADDED: &'static [Own] = &[Own::Id, Own::Object, Own::Created, Own::Model, Own::Usage];
    const STREAM: StreamFormat = StreamFormat::Chat { due: 1, running: 0, ended: 0 };
    const HEARTBEAT: &'static [u8] = b": ping\n\n";

    fn missing(present: PresentMembers) -> Option<String> {
        let required = if present.is_empty { "" } else { "required, " };
        (!present.conversation).then(|| format!("messages: {required}expected an array of at least one message"))
    }

    fn is_read_by_model(name: Name) -> bool {
        matches!(name, Name::ResponseFormat | Name::Functions | Name::Prediction | Name::WebSearchOptions)
    }

    fn hosted<'a>(tool: Raw<'a>, _takes: &Capabilities) -> Option<Raw<'a>> {
        let mut kinds = tool.members().filter(|(key, _)| eq_unescaped(key, "type")).map(|(_, kind)| kind).peekable();
        if kinds.peek().is_none() {
            return if tool.get("function").is_some() { None } else { Some(tool) };
        }
        kinds.find(|kind| !(kind.is("function") || kind.is("custom")))
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

    fn takes_verbosity(takes: &Capabilities) -> bool {
        takes.verbosity
    }

    fn write_answer(answer: &WholeAnswer<'_>, to: Destination<'_>) -> Result<(), Broken> {
        answer_writer::write(answer, to)
    }

    fn write_events(body: Raw<'_>, out: &mut Vec<u8>) {
        replay::write(body, out);
    }

    fn reported(usage: Raw<'_>) -> Reported {
        Reported::from_chat(usage)
    }

    fn check_end(choices: Raw<'_>, _ending: Raw<'_>) -> Result<(), ErrorText> {
        finishes(choices).map(drop)
    }

    fn is_empty<'a>(choices: Raw<'_>, _ending: Raw<'_>, _usage: impl FnOnce() -> Raw<'a>) -> bool {
        let is_object = |message: Raw<'_>| message.kind() == ValueKind::Object;
        !choices.items().any(|choice| choice.get("message").is_some_and(is_object))
    }

    fn is_text(path: &[K]) -> bool {
        matches!(path, [K::Choices, K::Item, K::Message, rest @ ..] if is_said(rest))
    }

    fn usage_holder(data: Raw<'_>) -> Option<Raw<'_>> {
        Some(data)
    }

    fn add_reasons(_ends: bool, out: &[u8], reasons: &mut Vec<&'static str>) {
        let mut rest = out;
        while let Some(next) = first(rest, b"\"finish_reason\"").filter(|_| reasons.len() < REASONS_MAX) {
            reasons.extend(reason(next));
            rest = next;
        }
    }
}
