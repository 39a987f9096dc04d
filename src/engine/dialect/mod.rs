//! The API formats: reading requests and responses, and translating between the formats. Pure: bytes in, bytes out; no
//! policy, no sockets, no clock. Called only by `gateway`.
//!
//! `chat`, `messages` and `responses` know one format each, `format` lists them, and `neutral` has the forms between
//! them. `requests`, `convert` and `replies` translate requests, streams and complete answers; `rewrite` and `tap` pass
//! them on within one format.

mod answer;
pub mod capabilities;
mod chat;
mod convert;
pub mod errors;
mod events;
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
mod template;
pub mod tokens;
pub mod usage;

pub use answer::{Broken, Rejected, ResponseIdentity, StreamFault};
pub use capabilities::{Cache, Capabilities, Param, Structured, Thinking, UnknownMembers};
pub use chat::signature::is_required as requires_signatures;
pub use errors::account::{has_account_code, is_of_account, is_too_large};
pub use errors::overflow::{Overflow, is_rate};
pub use errors::{ErrorText, ErrorWords, error_body, error_event, read_error};
pub use neutral::naming::TranslationState;
pub use passthrough::form::{FormWriter, RequestForm};
pub use reasons::add_reasons;
pub use replies::{AnswerTemplates, reply};
pub use request::{Fields, Invalid, RequestScan, ScanWork};
pub use requests::{BOUND_MIN, CacheKey, OwnedTarget, RequestTarget, most_text, request as translate, structure};
pub use rewrite::{Beside, RewritePiece, Surcharge, beside, dropped, rewrite, surcharge};
pub use session::{Named, conversation, named};
pub use stream::{Fed, SseStream, failure, opening};
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
