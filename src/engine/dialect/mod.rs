//! The API formats: reading requests and responses, and translating between the formats. Pure: bytes in, bytes out; no
//! policy, no sockets, no clock. Called only by `gateway`.
//!
//! `chat`, `messages` and `responses` know one format each, `format` lists what each must define, `dispatch` finds the
//! format of a shape, and `neutral` has the forms between them. `requests`, `convert` and `replies` translate requests,
//! streams and complete answers; `rewrite` and `tap` pass them on within one format.
//!
//! # To add an API format
//!
//! A row of [`crate::wire::Shape`], a folder with an implementation of `format::Format`, its arms in `dispatch`, and a
//! column in `request::members`. The compiler then names the other matches.
//!
//! # To add a kind of event of a stream
//!
//! A variant of `neutral::delta::Delta`, a reader that produces it and a writer that consumes it (`stream_reader` and
//! `stream_writer` of each format); `convert::sequencer` if it must wait while a call is incomplete; the same for
//! complete answers in `replies`. The compiler names the matches except those with a `_` arm: `Delta::text`,
//! `Sink::take` and `unwrap_json` in `convert`, `convert::sequencer`, `replies::streamed`. A pair in
//! `tests/fixtures/cross/` is counted in `tests::examples`. Another spelling of an event that `Delta` has already needs
//! the format's `stream_reader`, `tap::event` for a stream within one format, `keys::K` for the name of a member,
//! also for complete answers, and `events` for a complete answer to a request for a stream.

mod answer;
pub mod capabilities;
mod chat;
mod convert;
mod dispatch;
pub mod errors;
mod format;
mod keys;
mod messages;
pub mod neutral;
pub mod passthrough;
mod reasons;
pub mod replies;
pub mod request;
pub mod requests;
mod responses;
pub mod rewrite;
mod session;
pub mod stream;
pub mod tap;
pub mod tokens;
pub mod usage;

pub use answer::{Broken, Rejected, ResponseIdentity, StreamFault};
pub use capabilities::{Cache, Capabilities, Param, Structured, Thinking, UnknownMembers};
pub use dispatch::add_reasons;
pub use errors::account::{has_account_code, is_of_account, is_too_large};
pub use errors::overflow::{Overflow, is_rate};
pub use errors::{ErrorText, ErrorWords, error_body, error_event, read_error};
pub use neutral::naming::TranslationState;
pub use passthrough::form::{FormWriter, RequestForm};
pub use replies::{AnswerTemplates, reply};
pub use request::{Fields, Invalid, RequestScan, ScanWork};
pub use requests::{BOUND_MIN, CacheKey, OwnedTarget, RequestTarget, most_text, request as translate, structure};
pub use rewrite::{Beside, RewritePiece, Surcharge, beside, dropped, rewrite, surcharge};
pub use session::{Named, conversation, named};
pub use stream::own_events::{failure, opening};
pub use stream::{Fed, SseStream};
pub use tap::cost::write_cost;
pub use tap::{rejected, whole};
pub use tokens::{Estimator, PromptTokens};
pub use usage::{ObservedUsage, Reported};

/// The members of requests, in any format, that are never sent on for a client.
#[cfg(test)]
pub(crate) fn denied_members() -> impl Iterator<Item = &'static str> {
    request::Name::denied()
}

#[cfg(test)]
mod tests;
