//! The properties of an API format that the rest of this layer needs.
//!
//! Each format's folder implements [`Format`]; [`super::dispatch`] finds the implementation for a shape. A new format
//! begins with a row in [`crate::wire::Shape`] and arms there; the compiler then names what its folder must define.

use super::answer::{Broken, Destination};
use super::capabilities::Capabilities;
use super::errors::ErrorText;
use super::keys::K;
use super::neutral::conversation::Conversation;
use super::neutral::naming::TranslationState;
use super::relay::StreamFormat;
use super::relay::own::Own;
use super::request::{Fields, Invalid, Name, Place, PresentMembers, Reading};
use super::translate::answer::hole::AnswerHole;
use super::translate::answer::whole::WholeAnswer;
use super::translate::facts::RequestFacts;
use super::translate::source::SourceRequest;
use super::usage::Reported;
use crate::wire::Span;
use crate::wire::json::{Raw, Token};
use std::borrow::Cow;

/// Everything that the rest of this layer must know of an API format.
pub(super) trait Format {
    /// Properties of its requests.
    const REQUESTS: RequestFacts;
    /// Lists of a request whose items are read.
    const LISTS: &'static [Name];
    /// Members of a complete answer with its content and with its finish reason.
    const LIST: (&'static str, K);
    const ENDING: (&'static str, K);
    /// Other members of a complete answer that are replaced, and those that are added if they are missing.
    const REPLACED: &'static [(K, Own)];
    const ADDED: &'static [Own];
    /// Initial state of a stream that is passed on.
    const STREAM: StreamFormat;
    /// Heartbeat that every client accepts at any time.
    const HEARTBEAT: &'static [u8];
    /// A stream reports its usage only if its request asks for it.
    const USAGE_ON_REQUEST: bool;
    /// A request may ask for several answers, which are the choices of one.
    const HAS_CHOICES: bool;
    /// The bound on completion tokens has an older and a newer name.
    const BOUND_HAS_TWO_NAMES: bool;
    /// A translated request always has a bound.
    const REQUIRES_BOUND: bool;
    /// The least bound that a translated request may have.
    const BOUND_MIN: u64;
    /// A provider stores responses with their reasoning, and returns the reasoning only if the request asks for it.
    const IS_STORED: bool;
    /// Local servers document more members of requests.
    const HAS_LOCAL_MEMBERS: bool;
    /// Text in the place of each cut: the role that every upstream accepts instead of `developer`.
    const CUT_INSTEAD: &'static str;
    /// Usage has the members of a chat completion's. Clients get all its counters, even if the upstream reports none.
    const HAS_CHAT_USAGE: bool;
    /// Usage has a total, and its counter of the prompt includes cached tokens.
    const HAS_TOTAL: bool;
    /// The last event of a stream contains the complete answer.
    const STREAM_HAS_ANSWER: bool;
    /// An answer repeats parameters of its request.
    const REPEATS_REQUEST: bool;
    /// Path of the arguments of a call in a complete answer, if they are an object.
    const OBJECT_ARGUMENTS: Option<&'static [K]>;
    /// A stream has one open block at a time. Otherwise its events say which call they belong to.
    const IS_SEQUENTIAL: bool;
    /// The events of a stream are numbered, and the first ones announce the answer.
    const IS_NUMBERED: bool;
    /// Providers seal reasoning that they must get back.
    const SEALS_REASONING: bool;

    /// Refusal of a request that lacks a required member.
    fn missing(present: PresentMembers) -> Option<String>;

    /// Checks an item of such a list, and counts it. `item`: its bytes and those behind it. Returns its length, and
    /// before that false if it is not sent to an upstream of the same format.
    fn check_item<'a>(place: Place, item: Raw<'a>, reading: &mut Reading<'a, '_>) -> Result<(bool, usize), Invalid>;

    /// Notes what another member means for the request.
    fn note_member(name: Name, value: Raw<'_>, fields: &mut Fields);

    /// True if a list or an object in this member of a request becomes part of the prompt in addition to conversation
    /// and tools.
    fn is_read_by_model(name: Name) -> bool;

    /// The kind of a tool that runs at the provider.
    fn hosted<'a>(tool: Raw<'a>, takes: &Capabilities) -> Option<Raw<'a>>;

    /// Reads a request that is to be translated.
    fn read_request<'a>(source: &SourceRequest<'a>, state: &mut TranslationState) -> Result<Conversation<'a>, Invalid>;

    /// Writes a translated request.
    fn write_request(
        source: &SourceRequest<'_>,
        conversation: Conversation<'_>,
        state: &mut TranslationState,
        out: &mut Vec<u8>,
    ) -> Result<(), Invalid>;

    /// True if a target takes a verbosity.
    fn takes_verbosity(takes: &Capabilities) -> bool;

    /// True if clients send reasoning back in a carrier. `is_sealed`: its provider requires it.
    fn hands_back(is_sealed: bool) -> bool;

    /// Writes a complete answer.
    fn write_answer(answer: &WholeAnswer<'_>, to: Destination<'_>) -> Result<(), Broken>;

    /// Writes a complete answer, which is valid JSON, as the events of a stream.
    fn write_events(body: Raw<'_>, out: &mut Vec<u8>);

    /// Usage of a complete answer.
    fn reported(usage: Raw<'_>) -> Reported;

    /// An error if a complete answer reports that it is incomplete. `list` and `ending`: its members [`Format::LIST`]
    /// and [`Format::ENDING`].
    fn check_end(list: Raw<'_>, ending: Raw<'_>) -> Result<(), ErrorText>;

    /// True if a complete answer has no content and gives no reason.
    fn is_empty<'a>(list: Raw<'_>, ending: Raw<'_>, usage: impl FnOnce() -> Raw<'a>) -> bool;

    /// True if the value at `path` of a complete answer is text that counts as relayed: in one piece or in parts.
    fn is_text(path: &[K]) -> bool;

    /// The object in an event's data that may contain the final usage.
    fn usage_holder(data: Raw<'_>) -> Option<Raw<'_>>;

    /// Adds the finish reasons in a part of an answer as the client gets it. `ends`: all choices have ended.
    fn add_reasons(ends: bool, out: &[u8], reasons: &mut Vec<&'static str>);

    /// Name of the bound on completion tokens.
    fn bound(takes: &Capabilities) -> &'static str;

    /// The parts to omit from a request in the same format, in order. An empty part marks a missing thought signature.
    fn cuts<'a>(body: &[u8], fields: &'a Fields, takes: &Capabilities) -> Result<Cow<'a, [Span]>, Invalid>;

    /// The hole for a value of a complete answer in its template.
    fn hole(path: &[K], token: Token) -> Option<AnswerHole>;
}
