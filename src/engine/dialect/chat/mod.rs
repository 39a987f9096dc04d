//! OpenAI Chat Completions: its requests, streams and complete answers.
//!
//! Owns the constants of the format, and what is cut or replaced in a request that is passed on: the role `developer`,
//! missing thought signatures.

mod check;
pub(super) mod custom_tools;
pub(super) mod read_request;
pub(super) mod read_stream;
mod reasoning;
pub(super) mod replay;
pub(super) mod signature;
mod write_answer;
pub(super) mod write_request;
pub(super) mod write_stream;

use super::answer::{Broken, Destination};
use super::capabilities::Capabilities;
use super::errors::ErrorText;
use super::format::Format;
use super::keys::K;
use super::neutral::conversation::Conversation;
use super::neutral::delta::finishes;
use super::neutral::naming::TranslationState;
use super::reasons::{REASONS_MAX, first, reason};
use super::relay::own::Own;
use super::relay::{StreamFormat, is_relayed_text};
use super::request::{Fields, Invalid, Name, Place, PresentMembers, Reading};
use super::translate::answer::hole::AnswerHole;
use super::translate::answer::whole::WholeAnswer;
use super::translate::facts::{BytesEach, RequestFacts};
use super::translate::source::SourceRequest;
use super::usage::Reported;
use crate::wire::Span;
use crate::wire::json::{Raw, Token, ValueKind, eq_unescaped};
use std::borrow::Cow;

/// OpenAI Chat Completions.
pub(super) struct Chat;

impl Format for Chat {
    const REQUESTS: RequestFacts = RequestFacts {
        opening: [None, Some(Name::Messages)],
        stops: ("stop", write_request::STOPS_MAX),
        verbosity: "verbosity",
        tool_name_max: 64,
        bytes_each: BytesEach::OF_MESSAGES,
        marks_prefixes: false,
        one_text: true,
        strict_by_rules: true,
        distinct_ids: false,
    };
    const LISTS: &'static [Name] = check::LISTS;
    const LIST: (&'static str, K) = ("choices", K::Choices);
    const ENDING: (&'static str, K) = ("", K::Item);
    const REPLACED: &'static [(K, Own)] = &[(K::Object, Own::Object), (K::Created, Own::Created)];
    const ADDED: &'static [Own] = &[Own::Id, Own::Object, Own::Created, Own::Model, Own::Usage];
    const STREAM: StreamFormat = StreamFormat::Chat { due: 1, running: 0, ended: 0 };
    const HEARTBEAT: &'static [u8] = b": ping\n\n";
    const USAGE_ON_REQUEST: bool = true;
    const HAS_CHOICES: bool = true;
    const BOUND_HAS_TWO_NAMES: bool = true;
    const REQUIRES_BOUND: bool = false;
    const BOUND_MIN: u64 = 0;
    const IS_STORED: bool = false;
    const HAS_LOCAL_MEMBERS: bool = true;
    const CUT_INSTEAD: &'static str = "system";
    const HAS_CHAT_USAGE: bool = true;
    const HAS_TOTAL: bool = true;
    const STREAM_HAS_ANSWER: bool = false;
    const REPEATS_REQUEST: bool = false;
    const OBJECT_ARGUMENTS: Option<&'static [K]> = None;
    const IS_SEQUENTIAL: bool = false;
    const IS_NUMBERED: bool = false;
    const SEALS_REASONING: bool = false;

    fn missing(present: PresentMembers) -> Option<String> {
        let required = if present.is_empty { "" } else { "required, " };
        (!present.conversation).then(|| format!("messages: {required}expected an array of at least one message"))
    }

    fn check_item<'a>(place: Place, item: Raw<'a>, reading: &mut Reading<'a, '_>) -> Result<(bool, usize), Invalid> {
        check::check_item(place, item, reading)
    }

    fn note_member(name: Name, value: Raw<'_>, fields: &mut Fields) {
        check::note_member(name, value, fields);
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

    fn takes_verbosity(takes: &Capabilities) -> bool {
        takes.verbosity
    }

    fn hands_back(_is_sealed: bool) -> bool {
        false
    }

    fn write_answer(answer: &WholeAnswer<'_>, to: Destination<'_>) -> Result<(), Broken> {
        write_answer::write(answer, to)
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
        matches!(path, [K::Choices, K::Item, K::Message, rest @ ..] if is_relayed_text(rest))
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

    fn bound(takes: &Capabilities) -> &'static str {
        takes.bound()
    }

    fn cuts<'a>(body: &[u8], fields: &'a Fields, takes: &Capabilities) -> Result<Cow<'a, [Span]>, Invalid> {
        let roles: &[Span] = if takes.developer_role { &[] } else { &fields.cuts };
        let signatures = if takes.thought_signatures { signature::missing(body, fields) } else { Vec::new() };
        Ok(Span::in_order(signatures, roles))
    }

    fn hole(path: &[K], token: Token) -> Option<AnswerHole> {
        match (path, token) {
            ([K::Choices, K::Item, K::Message, K::Content], Token::String) => Some(AnswerHole::Text),
            ([K::Usage, K::PromptTokens], _) => Some(AnswerHole::Prompt),
            ([K::Usage, K::CompletionTokens], _) => Some(AnswerHole::Completion),
            ([K::Usage, K::TotalTokens], _) => Some(AnswerHole::Total),
            ([K::Created], Token::Number) => Some(AnswerHole::Number),
            _ => None,
        }
    }
}
