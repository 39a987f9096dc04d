//! Common types of a response on its way, complete or streamed: its identity, one event, and the reasons for a failure.
//!
//! Owns only these types. Must never import a file that works with them: every path through this folder starts here.
//! Used by [`super::relay`], [`super::translate::stream`], [`super::translate::answer`] and [`super::stream`].

use super::capabilities::Param;
use super::errors::{ErrorText, read_error};
use super::neutral::naming::TranslationState;
use super::tokens::PromptTokens;
use super::usage::{ObservedUsage, Reported};
use crate::wire::Span;
use crate::wire::json::Inside;
use crate::wire::sse::{Event, Splitter};

/// Identity that an answer gets for the client.
#[derive(Copy, Clone, Debug)]
pub struct ResponseIdentity<'a> {
    /// The request id. Nothing in it needs an escape.
    pub id: &'a [u8],
    /// The catalog's model id. Nothing in it needs an escape.
    pub model: &'a str,
    /// Now, in seconds since the epoch.
    pub created: u64,
    /// Estimated tokens of the prompt, for answers without a reported count.
    pub prompt: PromptTokens<'a>,
    /// Parameters that the configuration has written into the request. A response of the same format does not repeat
    /// them.
    pub hides: &'a [Param],
}

impl ResponseIdentity<'_> {
    /// The model as a JSON string.
    #[inline]
    pub(super) fn model(&self) -> Inside<'_> {
        Inside(self.model.as_bytes())
    }
}

/// Destination of a response in another format.
#[derive(Debug)]
pub(super) struct Destination<'a> {
    /// State of the translation since the request.
    pub(super) state: &'a TranslationState,
    /// Usage observed so far.
    pub(super) observed: &'a ObservedUsage,
    pub(super) identity: &'a ResponseIdentity<'a>,
    pub(super) out: &'a mut Vec<u8>,
}

/// Reason why a whole answer cannot be passed on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Broken {
    /// Not JSON, or not an answer of its format.
    NotJson,
    /// An error instead of an answer.
    Error(ErrorText),
}

/// A whole answer that cannot be passed on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rejected {
    /// The reason.
    pub why: Broken,
    /// Tokens that it reports.
    pub reported: Box<Reported>,
}

/// Reason why a stream is broken. The bytes appended to `out` before the fault are still sent, then an error event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StreamFault {
    /// The upstream sent an error event.
    Error(ErrorText),
    /// An event is larger than `max_event`, or more is pending than a named bound allows.
    TooLarge,
    /// The part of the answer that must be held until its end exceeds `max_response`.
    AnswerTooLarge,
    /// The data of an event is not JSON of the expected format.
    Malformed,
    /// The stream was cut off before its end.
    Incomplete,
}

impl StreamFault {
    /// The fault of an event that is not an object: Google wraps its errors in an array.
    #[cold]
    pub(super) fn of_other(data: &[u8]) -> StreamFault {
        let error = read_error(data).filter(|_| data.trim_ascii_start().starts_with(b"["));
        error.map_or(StreamFault::Malformed, StreamFault::Error)
    }
}

impl From<ErrorText> for Broken {
    fn from(text: ErrorText) -> Broken {
        Broken::Error(text)
    }
}

impl From<StreamFault> for Broken {
    fn from(fault: StreamFault) -> Broken {
        match fault {
            StreamFault::Error(text) => Broken::Error(text),
            _ => Broken::NotJson,
        }
    }
}

impl From<ErrorText> for StreamFault {
    fn from(text: ErrorText) -> StreamFault {
        StreamFault::Error(text)
    }
}

/// Kind of an event that was relayed.
#[derive(Copy, Clone, Debug)]
pub(super) enum Relayed {
    /// No sign of progress, such as a heartbeat.
    Idle,
    Event,
    /// An event with one text, after which a later one that differs only in its text is treated the same. `text`: its
    /// place in the data; `sent_at`: its position in the output, `None` if the event is passed on unchanged, except for
    /// its number.
    Text {
        text: Span,
        sent_at: Option<usize>,
    },
}

/// An event split into its fields.
#[derive(Copy, Clone, Debug)]
pub(super) struct Frame<'a> {
    /// Value of its `event:` line; empty if there is none.
    pub(super) name: &'a [u8],
    /// Data of the event, lines joined; empty if there is none.
    pub(super) data: &'a [u8],
    /// All bytes of the event.
    pub(super) raw: &'a [u8],
    /// True if the event has a comment line.
    pub(super) comment: bool,
}

impl<'a> Frame<'a> {
    /// The fields of an event that `splitter` has just returned for `buf`.
    #[inline]
    pub(super) fn of(splitter: &'a Splitter, event: &Event, buf: &'a [u8]) -> Frame<'a> {
        let (name, raw) = (event.name.of(buf), event.raw.of(buf));
        Frame { name, data: splitter.data(event, buf), raw, comment: event.comment }
    }
}
