//! The API formats: reading requests and responses, and translating between the formats. Pure: bytes in, bytes out; no
//! policy, no sockets, no clock. Called only by `gateway`.
//!
//! `chat`, `messages` and `responses` know one format each, `format` lists what each must define, `dispatch` finds the
//! format of a shape, and `neutral` has the forms between them. `translate` translates requests, streams and complete
//! answers; `rewrite` and `relay` pass them on within one format.
//!
//! # To add an API format
//!
//! A row of [`crate::wire::Shape`], a folder with an implementation of `format::Format`, its arms in `dispatch`, and a
//! column in `request::members`. The compiler then names the other matches.
//!
//! # To add a kind of event of a stream
//!
//! A variant of `neutral::delta::Delta`, a reader that produces it and a writer that consumes it (`read_stream` and
//! `write_stream` of each format); `translate::stream::sequencer` if it must wait while a call is incomplete; the same
//! for complete answers in `translate::answer`. The compiler names the matches except those with a `_` arm:
//! `Delta::text`, `Sink::take` and `unwrap_json` in `translate::stream`, its `sequencer`,
//! `translate::answer::streamed`. A pair in `tests/fixtures/cross/` is counted in `tests::examples`. Another spelling
//! of an event that `Delta` has already needs the format's `read_stream`, `relay::event` for a stream within one
//! format, `keys::K` for the name of a member, also for complete answers, and `replay` of the format for a complete
//! answer to a request for a stream.

mod answer;
pub mod capabilities;
mod chat;
mod dispatch;
pub mod errors;
mod format;
mod keys;
mod messages;
pub mod neutral;
pub mod passthrough;
mod reasons;
pub mod relay;
pub mod request;
mod responses;
pub mod rewrite;
mod session;
pub mod stream;
pub mod tokens;
pub mod translate;
pub mod usage;

pub use answer::{Broken, Rejected, ResponseIdentity, StreamFault};
pub use capabilities::{Cache, Capabilities, Param, RequestRules, Structured, Thinking, UnknownMembers};
pub use dispatch::add_reasons;
pub use errors::account::{has_account_code, is_of_account, is_too_large};
pub use errors::overflow::{Overflow, is_rate};
pub use errors::{ErrorText, ErrorWords, error_body, error_event, read_error};
pub use neutral::naming::TranslationState;
pub use passthrough::form::{FormWriter, RequestForm};
pub use relay::cost::write_cost;
pub use relay::{rejected, whole};
pub use request::{Fields, Invalid, RequestScan, reading_work};
pub use rewrite::{Beside, RewritePiece, Surcharge, beside, dropped, rewrite, surcharge};
pub use session::{Named, conversation, named};
pub use stream::own_events::{failure, opening};
pub use stream::{Fed, SseStream};
pub use tokens::{Estimator, PromptTokens};
pub use translate::answer::{AnswerTemplates, reply};
pub use translate::{BOUND_MIN, CacheKey, OwnedTarget, RequestTarget, most_text, request as translate, structure};
pub use usage::{ObservedUsage, Reported};

/// The members of requests, in any format, that are never sent on for a client.
#[cfg(test)]
pub(crate) fn denied_members() -> impl Iterator<Item = &'static str> {
    request::Name::denied()
}

#[cfg(test)]
mod tests;
