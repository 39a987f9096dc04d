//! A stream of one shape written as a stream of the other (`wire-formats` 3.11 and 3.12).
//!
//! Owns the way from events to deltas to events. Must never end a broken stream as if it were whole, and never hold
//! more than the event under way and the named bound on waiting tool arguments. Called by the gateway's relay, in the
//! place of a [`super::StreamTap`], with the same interface.

mod chat_reader;
mod chat_writer;
mod messages_reader;
mod messages_writer;

pub(super) use chat_writer::{write_usage as write_chat_usage, write_usage_chunk};
pub(super) use messages_writer::write_usage as write_messages_usage;

use super::delta::{Delta, Sink, StopReason};
use super::framed::{Frame, Framed, Inner};
use super::naming::{JSON_TOOL, TranslationState};
use super::tap::{ObservedUsage, Progress, ResponseIdentity, StreamFault};
use super::tokens::Estimator;
use super::usage::Reported;
use crate::base::buf::{Buf, Pool};
use crate::wire::Dialect;
use crate::wire::json::eq_unescaped;
use chat_reader::ChatReader;
use chat_writer::ChatWriter;
use messages_reader::MessagesReader;
use messages_writer::MessagesWriter;

/// One upstream stream on its way to a client of the other shape.
#[derive(Debug)]
pub struct StreamTranslator(Framed<Convert>);

#[derive(Debug)]
enum Reader {
    Chat(ChatReader),
    Messages(MessagesReader),
}

#[derive(Debug)]
enum Writer {
    Chat(ChatWriter),
    Messages(MessagesWriter),
}

/// Reader, writer, and what is overheard between them.
#[derive(Debug)]
struct Convert {
    reader: Reader,
    between: Between,
}

#[derive(Debug)]
struct Between {
    writer: Writer,
    carry: TranslationState,
    heard: Reported,
    relayed: Estimator,
    /// The call whose arguments are the answer's text.
    json_slot: Option<usize>,
    stopped: bool,
    finished: bool,
}

impl StreamTranslator {
    /// At the start of an upstream's stream of shape `from`, for a client of the other. `carry` is what the request's
    /// translation left; `show_usage`: a chat client has asked for the usage chunk; `max_event` in bytes.
    pub fn new(from: Dialect, carry: TranslationState, show_usage: bool, max_event: usize) -> StreamTranslator {
        let (reader, writer) = match from {
            Dialect::Chat => (Reader::Chat(ChatReader::default()), Writer::Messages(MessagesWriter::default())),
            Dialect::Messages => {
                (Reader::Messages(MessagesReader::default()), Writer::Chat(ChatWriter::new(show_usage)))
            }
        };
        let between = Between {
            writer,
            carry,
            heard: Reported::default(),
            relayed: Estimator::new(),
            json_slot: None,
            stopped: false,
            finished: false,
        };
        StreamTranslator(Framed::new(max_event, Convert { reader, between }))
    }

    /// Takes decoded body bytes; see [`super::StreamTap::feed`].
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

    /// The body has ended, or the wait for a missing end is over; see [`super::StreamTap::end`].
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
        let between = &self.0.inner.between;
        ObservedUsage { reported: between.heard, relayed_tokens: between.relayed.tokens() }
    }

    /// True once the upstream has given a finish reason: only the formal end may be missing.
    pub fn finish_seen(&self) -> bool {
        self.0.inner.between.stopped
    }

    /// Where the end of the stream begins; see [`super::StreamTap::end_at`].
    pub fn end_at(&self) -> Option<usize> {
        self.0.end_at()
    }

    /// Bytes held back beyond the event under way: tool arguments that wait for their turn.
    pub fn waiting(&self) -> usize {
        let read = if let Reader::Chat(reader) = &self.0.inner.reader { reader.waiting() } else { 0 };
        let written = if let Writer::Messages(writer) = &self.0.inner.between.writer { writer.waiting() } else { 0 };
        read + written
    }
}

impl Inner for Convert {
    fn frame(&mut self, frame: Frame<'_>, me: &ResponseIdentity<'_>, out: &mut Vec<u8>) -> Result<bool, StreamFault> {
        let mut sink = Outlet { between: &mut self.between, me, out };
        if frame.data.is_empty() {
            if frame.comment || frame.name == b"ping" {
                sink.take(Delta::Ping)?;
            }
            return Ok(false);
        }
        match &mut self.reader {
            Reader::Chat(reader) => reader.event(&frame, &mut sink),
            Reader::Messages(reader) => reader.event(&frame, &mut sink),
        }
    }

    fn finished(&self) -> bool {
        self.between.finished
    }

    fn finish_seen(&self) -> bool {
        self.between.stopped
    }

    fn close(&mut self, me: &ResponseIdentity<'_>, out: &mut Vec<u8>) -> Result<(), StreamFault> {
        if !self.between.stopped {
            return Err(StreamFault::Incomplete);
        }
        let mut sink = Outlet { between: &mut self.between, me, out };
        match &mut self.reader {
            Reader::Chat(reader) => reader.finish(&mut sink),
            Reader::Messages(_) => sink.take(Delta::End),
        }
    }
}

/// The way from a reader to the writer, for the time of one event.
struct Outlet<'a> {
    between: &'a mut Between,
    me: &'a ResponseIdentity<'a>,
    out: &'a mut Vec<u8>,
}

impl Sink for Outlet<'_> {
    fn take(&mut self, delta: Delta<'_>) -> Result<(), StreamFault> {
        let between = &mut *self.between;
        let delta = between.unwrap_json(delta);
        match delta {
            Delta::Text(text) | Delta::Think(text) | Delta::ToolArgs { json: text, .. } => {
                between.relayed.feed_json(text);
            }
            Delta::ToolOpen { name, .. } => {
                between.relayed.cut();
                between.relayed.feed_json(name);
            }
            Delta::Usage(reported) => between.heard.merge(reported),
            Delta::Stop { .. } => between.stopped = true,
            Delta::End => between.finished = true,
            Delta::Start | Delta::ToolClose { .. } | Delta::Ping => {}
        }
        let heard = ObservedUsage { reported: between.heard, relayed_tokens: between.relayed.tokens() };
        match &mut between.writer {
            Writer::Chat(writer) => writer.take(delta, &heard, self.me, self.out),
            Writer::Messages(writer) => writer.take(delta, &heard, &between.carry, self.me, self.out),
        }
    }
}

impl Between {
    /// Where JSON was demanded by a tool, that tool's arguments are the text, and calling it is no call.
    fn unwrap_json<'a>(&mut self, delta: Delta<'a>) -> Delta<'a> {
        if !self.carry.json_tool {
            return delta;
        }
        match delta {
            Delta::ToolOpen { slot, name, .. } if eq_unescaped(name, JSON_TOOL) && self.json_slot.is_none() => {
                self.json_slot = Some(slot);
                Delta::Start
            }
            Delta::ToolArgs { slot, json } if self.json_slot == Some(slot) => Delta::Text(json),
            Delta::ToolClose { slot } if self.json_slot == Some(slot) => Delta::Start,
            Delta::Stop { reason: StopReason::Tools, sequence, explanation } if self.json_slot.is_some() => {
                Delta::Stop { reason: StopReason::End, sequence, explanation }
            }
            other => other,
        }
    }
}
