//! An answer as it arrives: its body so far, its provider, and the request that it belongs to.

use crate::base::buf::Buf;
use crate::base::limits::DONE_GRACE;
use crate::base::time::Mono;
use crate::dialect::{ObservedUsage, SseStream};
use crate::gateway::cx::Cx;
use crate::gateway::exchange::event::{Effect, Output};
use crate::gateway::exchange::own_events::EventWriter;
use crate::gateway::exchange::state::{Answering, Body, Draft};
use crate::gateway::provider::request::OutgoingRequest;
use crate::policy::keys::KeyIx;

impl Default for Body {
    /// A body without content.
    fn default() -> Body {
        Body::Collect { buf: Buf::default(), announced: None, stream: None }
    }
}

impl Body {
    /// Usage that has been observed so far.
    pub(crate) fn observed(&self) -> ObservedUsage {
        match self {
            Body::Stream(stream) => stream.observed(),
            Body::Offloaded { observed, .. } => **observed,
            Body::Bytes { words: Some(words), .. } => {
                ObservedUsage { relayed_tokens: words.tokens(), ..ObservedUsage::default() }
            }
            Body::Collect { .. } | Body::Bytes { .. } | Body::Error { .. } => ObservedUsage::default(),
        }
    }

    /// Bytes of storage in its buffers.
    pub(crate) fn storage(&self) -> usize {
        match self {
            Body::Stream(stream) => stream.capacity(),
            Body::Collect { buf, .. } | Body::Error { buf, .. } => buf.capacity(),
            Body::Bytes { .. } | Body::Offloaded { .. } => 0,
        }
    }

    /// Takes the stream and leaves one without content.
    pub(crate) fn take_stream(&mut self) -> Option<Box<SseStream>> {
        match std::mem::take(self) {
            Body::Stream(stream) => Some(stream),
            other => {
                *self = other;
                None
            }
        }
    }

    /// Releases its storage.
    pub(crate) fn release(self, cx: &mut Cx) {
        match self {
            Body::Stream(mut stream) => {
                stream.release(&mut cx.memory.pool);
                cx.upstreams.streams.put(stream);
            }
            Body::Collect { mut buf, .. } | Body::Error { mut buf, .. } => buf.release(&mut cx.memory.pool),
            Body::Bytes { .. } => {}
            Body::Offloaded { serial, .. } => cx.abandon(serial),
        }
    }

    /// Writes events into the stream.
    pub(crate) fn writer(&mut self) -> EventWriter<'_> {
        match self {
            Body::Stream(stream) => EventWriter::Stream(stream),
            Body::Bytes { .. } => EventWriter::Nothing,
            _ => EventWriter::Alone,
        }
    }
}

impl Answering {
    /// True if the response is an error by its status: its body only affects the message.
    pub(crate) fn reads_error(&self) -> bool {
        matches!(self.body, Body::Error { .. })
    }

    /// When the provider of a stream counts as late from now on: soon, once it has sent its final event.
    pub(crate) fn late(&self, finish_seen: bool, now: Mono) -> Mono {
        const GRACE: u32 = DONE_GRACE.as_millis() as u32;
        now.after_ms(if finish_seen { GRACE.min(self.idle) } else { self.idle })
    }

    /// Releases the connection, whose response is complete.
    #[inline]
    pub(crate) fn release_complete(&mut self, out: &mut Output) {
        if let Some(provider) = self.provider.take() {
            out.release(provider, true);
        }
    }

    /// Closes the connection, whatever it is doing.
    pub(crate) fn drop_provider(&mut self, out: &mut Output) {
        if let Some(provider) = self.provider.take() {
            out.release(provider, false);
        }
    }

    /// All of the request has been sent: it is not needed any more if part of the answer has been relayed.
    pub(crate) fn sent(&mut self, cx: &mut Cx) -> Effect {
        match std::mem::replace(&mut self.draft, Draft::Gone) {
            Draft::Leaving(draft) => {
                cx.upstreams.requests.put(draft, &mut cx.memory);
                Effect::Release
            }
            other => {
                self.draft = other;
                Effect::Nothing
            }
        }
    }

    /// The client reads again: the timeout of the provider of a stream begins again.
    pub(crate) fn drained(&mut self, cx: &Cx) -> Effect {
        let finish_seen = match &self.body {
            Body::Stream(stream) => stream.finish_seen(),
            Body::Bytes { .. } | Body::Offloaded { .. } => false,
            Body::Collect { .. } | Body::Error { .. } => return Effect::Nothing,
        };
        self.by = self.late(finish_seen, cx.now.mono);
        Effect::Rearm
    }

    /// Releases everything that it holds. `key`: the key that the storage of a stream was charged to.
    pub(crate) fn release(mut self, key: Option<KeyIx>, cx: &mut Cx) {
        if self.paused {
            cx.memory.shares.eased = true;
        }
        self.body.release(cx);
        if let Some(key) = key.filter(|_| self.charged > 0) {
            cx.memory.shares.recharge(key, self.charged, 0);
        }
        self.last.release(&mut cx.memory.pool);
        if let Draft::Kept(draft) | Draft::Leaving(draft) = self.draft {
            cx.upstreams.requests.put(draft, &mut cx.memory);
        }
    }
}

impl Draft {
    /// The request, until it is dropped.
    pub(crate) fn get(&self) -> Option<&OutgoingRequest> {
        match self {
            Draft::Kept(draft) | Draft::Leaving(draft) => Some(draft),
            Draft::Gone => None,
        }
    }
}
