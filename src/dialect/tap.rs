//! Answers that keep their shape: passed on byte for byte but for `id` and `model`, their usage overheard on the way.
//!
//! Owns the splicing and the end of a stream. Must never re-order, re-number or re-write what an upstream says.
//! Called by the gateway's relay.

mod event;
mod reply;
mod template;

pub use reply::whole;

use super::errors::ErrorText;
use super::framed::Framed;
use super::tokens::Estimator;
use super::usage::Reported;
use crate::base::buf::{Buf, Pool};
use crate::wire::Dialect;
use template::EventTemplate;

/// What an answer is to say of itself.
#[derive(Copy, Clone, Debug)]
pub struct ResponseIdentity<'a> {
    /// The request id.
    pub id: &'a str,
    /// The catalog's model id.
    pub model: &'a str,
    /// Now, in seconds since the epoch.
    pub created: u64,
    /// Estimated tokens of the prompt, for answers whose upstream reports none.
    pub prompt_estimate: u64,
}

/// What was overheard.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct ObservedUsage {
    /// What the upstream has reported so far. Of a stream cut short `output` may be the small number that opens a
    /// messages stream; `relayed_tokens` is then the better one.
    pub reported: Reported,
    /// Estimated tokens of what was relayed: text, reasoning, tool names and arguments. 0 for a whole answer that
    /// reports its output: no estimate is made then.
    pub relayed_tokens: u64,
}

/// Why a whole answer cannot be passed on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Broken {
    /// Not JSON, or not an answer of its shape.
    NotJson,
    /// An error in the place of an answer.
    Error(ErrorText),
}

/// What one call has done.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Progress {
    /// Data events seen; comments and pings are not counted.
    pub events: u32,
    /// The event that ends the stream has been relayed: nothing more will come.
    pub finished: bool,
}

/// Why a stream is broken. What was appended to `out` before it is to be sent, then an error event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StreamFault {
    /// The upstream said so in the stream.
    Error(ErrorText),
    /// One event is larger than `max_event`, or more is waiting than a named bound allows.
    TooLarge,
    /// An event's data is not JSON of its shape.
    Malformed,
    /// The stream ended before its end.
    Incomplete,
}

/// One upstream stream on its way to a client of the same shape. Memory is O(1) but for the event under way.
#[derive(Debug)]
pub struct StreamTap(Framed<Relay>);

/// What the tap does with each event; see `event`.
#[derive(Debug)]
struct Relay {
    shape: Dialect,
    show_usage: bool,
    reported: Reported,
    relayed: Estimator,
    template: EventTemplate,
    /// Part of an answer has come.
    begun: bool,
    /// What a chat stream's chunks say of when they were made; 0 as long as none does.
    created: u64,
    finish_seen: bool,
    finished: bool,
}

impl Relay {
    fn new(shape: Dialect, show_usage: bool) -> Relay {
        let (reported, relayed) = (Reported::default(), Estimator::new());
        let template = EventTemplate::default();
        Relay {
            shape,
            show_usage,
            reported,
            relayed,
            template,
            begun: false,
            created: 0,
            finish_seen: false,
            finished: false,
        }
    }
}

impl StreamTap {
    /// At the start of a stream of `shape`. `show_usage`: the client has asked for the usage chunk (chat only).
    /// `max_event` in bytes.
    pub fn new(shape: Dialect, show_usage: bool, max_event: usize) -> StreamTap {
        StreamTap(Framed::new(max_event, Relay::new(shape, show_usage)))
    }

    /// Back to the start of another stream; storage is kept.
    pub fn reset(&mut self, shape: Dialect, show_usage: bool, max_event: usize) {
        self.0.reset(max_event);
        let mut template = std::mem::take(&mut self.0.inner.template);
        template.reset();
        self.0.inner = Relay { template, ..Relay::new(shape, show_usage) };
    }

    /// Takes decoded body bytes. `held` carries the event under way from call to call; complete events are appended
    /// to `out`. Bytes after the end of the stream are ignored.
    pub fn feed(
        &mut self,
        data: &[u8],
        held: &mut Buf,
        pool: &mut Pool,
        me: &ResponseIdentity<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Progress, StreamFault> {
        self.0.feed(data, held, pool, me, out)
    }

    /// The body has ended as HTTP has it, or the wait for a missing end is over. Writes the end that is missing after
    /// a finish reason; [`StreamFault::Incomplete`] if the answer itself is cut short.
    pub fn end(
        &mut self,
        held: &mut Buf,
        pool: &mut Pool,
        me: &ResponseIdentity<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), StreamFault> {
        self.0.end(held, pool, me, out)
    }

    /// What has been overheard so far.
    pub fn heard(&self) -> ObservedUsage {
        ObservedUsage { reported: self.0.inner.reported, relayed_tokens: self.0.inner.relayed.tokens() }
    }

    /// True once a finish reason has been relayed: only the formal end may be missing.
    pub fn finish_seen(&self) -> bool {
        self.0.inner.finish_seen
    }

    /// Where the end of the stream begins, in bytes of `out` as of the last [`StreamTap::feed`]: at the event with the
    /// finish reason, or at the one that ends the stream without any. `None`: it has not come yet.
    pub fn end_at(&self) -> Option<usize> {
        self.0.end_at()
    }
}

#[cfg(test)]
mod tests;
