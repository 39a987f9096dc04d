//! A stream of one shape written as a stream of the other (`wire-formats` 3.11 and 3.12).
//!
//! Owns the way from events to deltas to events. Must never end a broken stream as if it were whole, and never hold
//! more than the event under way and the named bound on waiting tool arguments. Called by
//! [`super::stream`].

mod chat_reader;
mod chat_writer;
mod messages_reader;
mod messages_writer;

pub(super) use chat_writer::{write_usage as write_chat_usage, write_usage_chunk};
pub(super) use messages_writer::write_usage as write_messages_usage;

use super::answer::{Frame, ResponseIdentity, StreamFault};
use super::delta::{Delta, StopReason, Take};
use super::naming::{JSON_TOOL, TranslationState};
use super::tokens::Estimator;
use super::usage::{ObservedUsage, Reported};
use crate::base::buf::{Charge, Pool};
use crate::wire::Dialect;
use crate::wire::json::eq_unescaped;
use chat_reader::ChatReader;
use chat_writer::ChatWriter;
use messages_reader::MessagesReader;
use messages_writer::MessagesWriter;

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
pub(super) struct Convert {
    reader: Reader,
    translation: Translation,
    /// What is held here counts as lent.
    charge: Charge,
}

/// What stands between reader and writer.
#[derive(Debug)]
struct Translation {
    writer: Writer,
    state: TranslationState,
    reported: Reported,
    relayed: Estimator,
    /// The call whose arguments are the answer's text.
    json_slot: Option<usize>,
    stopped: bool,
    finished: bool,
}

impl Convert {
    /// At the start of an upstream's stream of shape `from`, for a client of the other. `state` is what the request's
    /// translation left; `show_usage`: a chat client has asked for the usage chunk.
    pub(super) fn new(from: Dialect, state: TranslationState, show_usage: bool) -> Convert {
        let (reader, writer) = match from {
            Dialect::Chat => (Reader::Chat(ChatReader::default()), Writer::Messages(MessagesWriter::default())),
            Dialect::Messages => {
                (Reader::Messages(MessagesReader::default()), Writer::Chat(ChatWriter::new(show_usage)))
            }
        };
        let translation = Translation {
            writer,
            state,
            reported: Reported::default(),
            relayed: Estimator::new(),
            json_slot: None,
            stopped: false,
            finished: false,
        };
        Convert { reader, translation, charge: Charge::default() }
    }

    /// One event; true if it counts as life.
    pub(super) fn event(
        &mut self,
        frame: &Frame<'_>,
        me: &ResponseIdentity<'_>,
        out: &mut Vec<u8>,
    ) -> Result<bool, StreamFault> {
        let mut sink = Sink { translation: &mut self.translation, me, out };
        if frame.data.is_empty() {
            if frame.comment || frame.name == b"ping" {
                sink.take(Delta::Ping)?;
            }
            return Ok(false);
        }
        match &mut self.reader {
            Reader::Chat(reader) => reader.event(frame, &mut sink),
            Reader::Messages(reader) => reader.event(frame, &mut sink),
        }
    }

    /// The event that ends the stream has been written.
    pub(super) fn finished(&self) -> bool {
        self.translation.finished
    }

    /// The upstream has given a finish reason: only the formal end may be missing.
    pub(super) fn finish_seen(&self) -> bool {
        self.translation.stopped
    }

    /// The stream has ended without its formal end: writes it if nothing else is missing.
    pub(super) fn close(&mut self, me: &ResponseIdentity<'_>, out: &mut Vec<u8>) -> Result<(), StreamFault> {
        if !self.translation.stopped {
            return Err(StreamFault::Incomplete);
        }
        let mut sink = Sink { translation: &mut self.translation, me, out };
        match &mut self.reader {
            Reader::Chat(reader) => reader.finish(&mut sink),
            Reader::Messages(_) => sink.take(Delta::End),
        }
    }

    /// What has been overheard so far.
    pub(super) fn observed(&self) -> ObservedUsage {
        self.translation.observed()
    }

    /// Has the storage for what is held beyond the event under way, and for names to be restored, count as lent.
    pub(super) fn charge(&mut self, pool: &mut Pool) {
        // Vectors that grow have room for twice what is in them.
        let storage = 2 * self.waiting() + self.translation.state.storage();
        self.charge.set(pool, storage);
    }

    /// What counts so.
    pub(super) fn charged(&self) -> usize {
        self.charge.bytes()
    }

    /// Nothing of it is needed any more.
    pub(super) fn release(&mut self, pool: &mut Pool) {
        self.charge.set(pool, 0);
    }

    /// Bytes held back beyond the event under way: tool arguments that wait for their turn.
    pub(super) fn waiting(&self) -> usize {
        let read = if let Reader::Chat(reader) = &self.reader { reader.waiting() } else { 0 };
        let written = if let Writer::Messages(writer) = &self.translation.writer { writer.waiting() } else { 0 };
        read + written
    }
}

/// The way from a reader to the writer, for the time of one event.
struct Sink<'a> {
    translation: &'a mut Translation,
    me: &'a ResponseIdentity<'a>,
    out: &'a mut Vec<u8>,
}

impl Take for Sink<'_> {
    fn take(&mut self, delta: Delta<'_>) -> Result<(), StreamFault> {
        let translation = &mut *self.translation;
        let delta = translation.unwrap_json(delta);
        match delta {
            Delta::Text(text) | Delta::Think(text) | Delta::ToolArgs { json: text, .. } => {
                translation.relayed.feed_json(text);
            }
            Delta::ToolOpen { name, .. } => {
                translation.relayed.cut();
                translation.relayed.feed_json(name);
            }
            Delta::Usage(reported) => translation.reported.merge(reported),
            Delta::Stop { .. } => translation.stopped = true,
            Delta::End => translation.finished = true,
            Delta::Start | Delta::ToolClose { .. } | Delta::Ping => {}
        }
        let observed = translation.observed();
        match &mut translation.writer {
            Writer::Chat(writer) => writer.take(delta, &observed, self.me, self.out),
            Writer::Messages(writer) => writer.take(delta, &observed, &translation.state, self.me, self.out),
        }
    }
}

impl Translation {
    fn observed(&self) -> ObservedUsage {
        ObservedUsage { reported: self.reported, relayed_tokens: self.relayed.tokens() }
    }

    /// Where JSON was demanded by a tool, that tool's arguments are the text, and calling it is no call.
    fn unwrap_json<'a>(&mut self, delta: Delta<'a>) -> Delta<'a> {
        if !self.state.json_tool {
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
