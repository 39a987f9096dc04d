//! Anthropic Messages: its requests, streams and complete answers.

mod check;
pub(super) mod read_request;
pub(super) mod read_stream;
mod replay;
mod write_answer;
pub(super) mod write_request;
pub(super) mod write_stream;

use super::answer::{Broken, Destination};
use super::capabilities::Capabilities;
use super::chat::Chat;
use super::errors::ErrorText;
use super::format::Format;
use super::keys::K;
use super::neutral::conversation::Conversation;
use super::neutral::delta::{finish_word, lists_nothing};
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
use crate::wire::json::{Raw, Token, eq_unescaped};
use std::borrow::Cow;

/// Prefixes of the types of tools that the client runs, or that cost only their tokens.
const CLIENTS_OWN: [&str; 6] =
    ["bash_", "browser_toolset_", "computer_", "memory_", "text_editor_", "tool_search_tool_"];

/// Anthropic Messages.
pub(super) struct Messages;

impl Format for Messages {
    const REQUESTS: RequestFacts = RequestFacts {
        opening: [Some(Name::System), Some(Name::Messages)],
        stops: ("stop_sequences", usize::MAX),
        verbosity: "",
        tool_name_max: 128,
        bytes_each: BytesEach::OF_MESSAGES,
        marks_prefixes: true,
        one_text: false,
        strict_by_rules: false,
        distinct_ids: true,
    };
    const LISTS: &'static [Name] = check::LISTS;
    const LIST: (&'static str, K) = ("content", K::Content);
    const ENDING: (&'static str, K) = ("stop_reason", K::StopReason);
    const REPLACED: &'static [(K, Own)] = &[];
    const ADDED: &'static [Own] = IDENTITY;
    const STREAM: StreamFormat = StreamFormat::Messages;
    const HEARTBEAT: &'static [u8] = b"event: ping\ndata: {\"type\":\"ping\"}\n\n";
    const USAGE_ON_REQUEST: bool = false;
    const HAS_CHOICES: bool = false;
    const BOUND_HAS_TWO_NAMES: bool = false;
    const REQUIRES_BOUND: bool = true;
    const BOUND_MIN: u64 = 0;
    const IS_STORED: bool = false;
    const HAS_LOCAL_MEMBERS: bool = false;
    const CUT_INSTEAD: &'static str = "";
    const HAS_CHAT_USAGE: bool = false;
    const HAS_TOTAL: bool = false;
    const STREAM_HAS_ANSWER: bool = false;
    const REPEATS_REQUEST: bool = false;
    const OBJECT_ARGUMENTS: Option<&'static [K]> = Some(&[K::Content, K::Item, K::Input]);
    const IS_SEQUENTIAL: bool = true;
    const IS_NUMBERED: bool = false;
    const SEALS_REASONING: bool = true;

    fn missing(present: PresentMembers) -> Option<String> {
        let no_bound = || "max_tokens: required, expected an integer of at least 1".to_owned();
        Chat::missing(present).or_else(|| (!present.max_tokens).then(no_bound))
    }

    fn check_item<'a>(place: Place, item: Raw<'a>, reading: &mut Reading<'a, '_>) -> Result<(bool, usize), Invalid> {
        check::check_item(place, item, reading)
    }

    fn note_member(name: Name, value: Raw<'_>, fields: &mut Fields) {
        check::note_member(name, value, fields);
    }

    fn is_read_by_model(name: Name) -> bool {
        matches!(name, Name::OutputConfig | Name::OutputFormat | Name::ContextManagement | Name::Compaction)
    }

    fn hosted<'a>(tool: Raw<'a>, _takes: &Capabilities) -> Option<Raw<'a>> {
        let is_clients =
            |kind: &str| matches!(kind, "" | "custom") || CLIENTS_OWN.iter().any(|start| kind.starts_with(start));
        tool.members()
            .filter(|(key, _)| eq_unescaped(key, "type"))
            .map(|(_, kind)| kind)
            .find(|kind| !kind.is_null() && !kind.text().is_some_and(|kind| is_clients(&kind)))
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
        false
    }

    fn hands_back(is_sealed: bool) -> bool {
        is_sealed
    }

    fn write_answer(answer: &WholeAnswer<'_>, to: Destination<'_>) -> Result<(), Broken> {
        write_answer::write(answer, to)
    }

    fn write_events(body: Raw<'_>, out: &mut Vec<u8>) {
        replay::write(body, out);
    }

    fn reported(usage: Raw<'_>) -> Reported {
        Reported::from_messages(usage)
    }

    fn check_end(_content: Raw<'_>, reason: Raw<'_>) -> Result<(), ErrorText> {
        finish_word(Some(reason)).map(drop)
    }

    fn is_empty<'a>(content: Raw<'_>, reason: Raw<'_>, _usage: impl FnOnce() -> Raw<'a>) -> bool {
        lists_nothing(content) && !matches!(finish_word(Some(reason)), Ok(Some(_)))
    }

    /// Including reasoning that only its provider can read.
    fn is_text(path: &[K]) -> bool {
        matches!(path, [K::Content, K::Item, K::Text | K::Thinking | K::Name | K::Data])
    }

    fn usage_holder(data: Raw<'_>) -> Option<Raw<'_>> {
        let kind = data.get("type")?;
        let starts = kind.is("message_start").then(|| data.get("message")).flatten();
        starts.or_else(|| kind.is("message_delta").then_some(data))
    }

    fn add_reasons(ends: bool, out: &[u8], reasons: &mut Vec<&'static str>) {
        if ends {
            only(reasons, last(out, b"\"stop_reason\"").and_then(reason));
        }
    }

    fn bound(_takes: &Capabilities) -> &'static str {
        Name::MaxTokens.text()
    }

    /// Reasoning without a signature.
    fn cuts<'a>(_body: &[u8], fields: &'a Fields, _takes: &Capabilities) -> Result<Cow<'a, [Span]>, Invalid> {
        Ok(Cow::Borrowed(&fields.cuts))
    }

    fn hole(path: &[K], token: Token) -> Option<AnswerHole> {
        match (path, token) {
            ([K::Content, K::Item, K::Text], Token::String) => Some(AnswerHole::Text),
            ([K::Usage, K::InputTokens], _) => Some(AnswerHole::Prompt),
            ([K::Usage, K::OutputTokens], _) => Some(AnswerHole::Completion),
            _ => None,
        }
    }
}
