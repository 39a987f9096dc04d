//! What is said of an answer on its way, whole or streamed: its identity, an event of it, and why it cannot go on.
//!
//! Owns these words alone. Must never import a file that works with them: the ways through this folder all begin here.
//! Used by [`super::tap`], [`super::convert`], [`super::replies`] and [`super::stream`].

use super::capabilities::Param;
use super::errors::ErrorText;
use super::tokens::PromptTokens;
use super::usage::Reported;

/// What an answer is to say of itself.
#[derive(Copy, Clone, Debug)]
pub struct ResponseIdentity<'a> {
    /// The request id. Nothing in it needs an escape.
    pub id: &'a [u8],
    /// The catalog's model id.
    pub model: &'a str,
    /// Now, in seconds since the epoch.
    pub created: u64,
    /// Estimated tokens of the prompt, for answers whose upstream reports none.
    pub prompt: PromptTokens<'a>,
    /// What the configuration has written into the request: a response of the same shape does not repeat it.
    pub hides: &'a [Param],
}

/// Why a whole answer cannot be passed on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Broken {
    /// Not JSON, or not an answer of its shape.
    NotJson,
    /// An error in the place of an answer.
    Error(ErrorText),
}

/// A whole answer that cannot be passed on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rejected {
    /// Why.
    pub why: Broken,
    /// Tokens that it reports.
    pub reported: Box<Reported>,
}

/// Why a stream is broken. What was appended to `out` before it is to be sent, then an error event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StreamFault {
    /// The upstream said so in the stream.
    Error(ErrorText),
    /// One event is larger than `max_event`, or more is waiting than a named bound allows.
    TooLarge,
    /// More of the answer has to be held until its end than `max_response` allows.
    AnswerTooLarge,
    /// An event's data is not JSON of its shape.
    Malformed,
    /// The stream ended before its end.
    Incomplete,
}

impl From<ErrorText> for Broken {
    fn from(text: ErrorText) -> Broken {
        Broken::Error(text)
    }
}

impl From<ErrorText> for StreamFault {
    fn from(text: ErrorText) -> StreamFault {
        StreamFault::Error(text)
    }
}

/// One event with its parts in hand.
#[derive(Copy, Clone, Debug)]
pub(super) struct Frame<'a> {
    /// Value of its `event:` line; empty if there is none.
    pub(super) name: &'a [u8],
    /// Its data, lines joined; empty if there is none.
    pub(super) data: &'a [u8],
    /// All of it as it came.
    pub(super) raw: &'a [u8],
    /// It has a comment line.
    pub(super) comment: bool,
}
