//! Translates a stream of one format into a stream of another.
//!
//! Owns the path from events to deltas to events. Must never end a broken stream as if it were complete. Must never
//! hold more than the current event, the content that waits for the end of a tool call (within a named bound), and (up
//! to a given bound) the parts of a response that its last event repeats. Called by [`crate::dialect::stream`].

mod sequencer;

use crate::base::buf::{Charge, Pool};
use crate::dialect::answer::{Destination, Frame, Relayed, ResponseIdentity, StreamFault};
use crate::dialect::dispatch::{StreamReader, StreamWriter, with_format};
use crate::dialect::errors::ErrorWords;
use crate::dialect::neutral::delta::{Delta, Take, TextKind};
use crate::dialect::neutral::json_tool::JsonTool;
use crate::dialect::neutral::naming::TranslationState;
use crate::dialect::responses::write_stream::ResponsesWriter;
use crate::dialect::tokens::Estimator;
use crate::dialect::usage::{ObservedUsage, Reported};
use crate::wire::sse::Splitter;
use crate::wire::{Shape, Span};
use sequencer::Sequencer;

/// Reads the events of a complete stream of format `from`, for a complete answer.
pub fn read_events(from: Shape, body: &[u8], keeps: bool, sink: &mut dyn Take) -> Result<(), StreamFault> {
    let (mut reader, mut splitter, mut rest) = (StreamReader::new(from, keeps), Splitter::new(), body);
    while let Some(event) = splitter.next(rest).or_else(|| splitter.last(rest)) {
        let frame = Frame::of(&splitter, &event, rest);
        if !frame.data.is_empty() {
            reader.event(&frame, sink)?;
        }
        rest = rest.get(event.len..).unwrap_or_default();
        splitter.done(&event);
    }
    reader.finish(sink)
}

/// Reader, writer, and the state between them.
#[derive(Debug)]
pub struct Convert {
    reader: StreamReader,
    translation: Translation,
    /// Kind of text of the last event, if it had a text and nothing else.
    last_only: Option<TextKind>,
    /// Bytes that may be held.
    max_answer: usize,
    /// Charge for the storage that is held here.
    charge: Charge,
}

/// State between reader and writer.
#[derive(Debug)]
struct Translation {
    writer: StreamWriter,
    state: TranslationState,
    reported: Reported,
    relayed: Estimator,
    json_tool: JsonTool,
    /// For a format with one open block at a time.
    sequencer: Option<Sequencer>,
    stopped: bool,
    finished: bool,
}

impl Convert {
    /// Returns the translation at the start of an upstream's stream of format `from`, for a client of format `to`.
    /// `state` comes from the translation of the request. `show_usage`: a chat client asked for the usage chunk.
    /// `max_answer`: bytes of an answer that may be held until its end.
    pub fn new((from, to): (Shape, Shape), state: TranslationState, show_usage: bool, max_answer: usize) -> Convert {
        let reader = StreamReader::new(from, hands_back(from, to));
        let json_tool = JsonTool::new(state.json_tool);
        let translation = Translation {
            writer: StreamWriter::new(to, show_usage),
            state,
            reported: Reported::default(),
            relayed: Estimator::new(),
            json_tool,
            sequencer: with_format!(to, F => F::IS_SEQUENTIAL).then(Sequencer::default),
            stopped: false,
            finished: false,
        };
        Convert { reader, translation, last_only: None, max_answer, charge: Charge::default() }
    }

    /// Translates an event.
    pub fn event(
        &mut self,
        frame: &Frame<'_>,
        identity: &ResponseIdentity<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Relayed, StreamFault> {
        let mut sink =
            Sink { translation: &mut self.translation, identity, out, data: frame.data, deltas: 0, text: None };
        if frame.data.is_empty() {
            if frame.comment || frame.name == b"ping" {
                sink.take(Delta::Ping)?;
            }
            return Ok(Relayed::Idle);
        }
        let waits = self.reader.waiting();
        let is_progress = self.reader.event(frame, &mut sink)?;
        // An event that leaves something in the reader must be read, even if it is repeated.
        let only = sink.text.filter(|_| sink.deltas == 1 && self.reader.waiting() == waits && self.reader.may_repeat());
        let last = std::mem::replace(&mut self.last_only, only.map(|(kind, _)| kind));
        if self.waiting() > self.max_answer {
            return Err(StreamFault::AnswerTooLarge);
        }
        // The first such event in a row may have begun a block.
        let only = only.filter(|(kind, text)| last == Some(*kind) && !text.is_empty());
        match (only, self.translation.writer.text_at()) {
            (Some((_, text)), sent_at @ Some(_)) => Ok(Relayed::Text { text, sent_at }),
            _ if is_progress => Ok(Relayed::Event),
            _ => Ok(Relayed::Idle),
        }
    }

    /// Notes another event like the last one, with this text; false if it must be read.
    #[inline]
    pub fn repeats(&mut self, text: &[u8]) -> bool {
        let continues_call = match (self.last_only, &mut self.reader) {
            _ if text.is_empty() => false,
            (Some(TextKind::Arguments(slot)), StreamReader::Chat(reader)) => reader.continues_call(slot, text),
            _ => true,
        };
        if continues_call {
            self.translation.relayed.feed_json(text);
        }
        continues_call
    }

    /// Writes the error for a broken stream in the responses format. False for other formats, which use the general
    /// error event.
    pub fn fail(&mut self, words: &ErrorWords<'_>, identity: &ResponseIdentity<'_>, out: &mut Vec<u8>) -> bool {
        let observed = self.translation.observed();
        let StreamWriter::Responses(writer) = &mut self.translation.writer else { return false };
        writer.fail(words, &mut Destination { state: &self.translation.state, observed: &observed, identity, out });
        true
    }

    /// Writes a heartbeat for a silent upstream; returns the number of events sent so far. `None` if the format's
    /// general heartbeat applies.
    pub fn heartbeat(&mut self, identity: &ResponseIdentity<'_>, out: &mut Vec<u8>) -> Option<u64> {
        let observed = self.translation.observed();
        let StreamWriter::Responses(writer) = &mut self.translation.writer else { return None };
        writer.heartbeat(&mut Destination { state: &self.translation.state, observed: &observed, identity, out });
        Some(writer.sequence)
    }

    /// Continues after `events` events of the answer have been sent.
    pub fn resume(&mut self, events: u64, created: u64) {
        if let StreamWriter::Responses(writer) = &mut self.translation.writer {
            **writer = ResponsesWriter::after(events, created);
        }
    }

    /// True once the event that ends the stream is written.
    pub fn finished(&self) -> bool {
        self.translation.finished
    }

    /// True once the upstream has sent a finish reason: only the formal end may be missing.
    pub fn finish_seen(&self) -> bool {
        self.translation.stopped
    }

    /// False while the output is only the opening of a text that replaces the call of a required tool.
    pub fn shows(&self) -> bool {
        let Translation { json_tool, relayed, stopped, .. } = &self.translation;
        json_tool.slot.is_none() || *stopped || relayed.tokens() > 0
    }

    /// Handles a stream that ended without its formal end: writes that end if nothing else is missing.
    pub fn close(&mut self, identity: &ResponseIdentity<'_>, out: &mut Vec<u8>) -> Result<(), StreamFault> {
        if !self.translation.stopped {
            return Err(StreamFault::Incomplete);
        }
        let mut sink = Sink { translation: &mut self.translation, identity, out, data: b"", deltas: 0, text: None };
        self.reader.finish(&mut sink)
    }

    /// Usage observed so far.
    pub fn observed(&self) -> ObservedUsage {
        self.translation.observed()
    }

    /// Charges the storage for names to be restored and for bytes held in addition to the current event.
    pub fn charge(&mut self, pool: &mut Pool) {
        // Growing vectors have up to twice the capacity they need.
        let storage = 2 * self.waiting() + self.translation.state.storage();
        self.charge.set(pool, storage);
    }

    /// Bytes that are charged.
    pub fn charged(&self) -> usize {
        self.charge.bytes()
    }

    /// Releases the whole charge.
    pub fn release(&mut self, pool: &mut Pool) {
        self.charge.set(pool, 0);
    }

    /// Bytes held in addition to the current event: whatever waits for the end of a call and, for a responses client,
    /// everything that the last event repeats.
    #[inline]
    pub fn waiting(&self) -> usize {
        let Translation { writer, sequencer, .. } = &self.translation;
        self.reader.waiting() + writer.waiting() + sequencer.as_ref().map_or(0, |sequencer| sequencer.waiting)
    }
}

/// True if clients of format `to` send reasoning of a provider of format `from` back in a carrier.
pub fn hands_back(from: Shape, to: Shape) -> bool {
    let is_sealed = with_format!(from, F => F::SEALS_REASONING);
    with_format!(to, F => F::hands_back(is_sealed))
}

/// Receiver of a reader's deltas during one event: passes them to the writer.
struct Sink<'a> {
    translation: &'a mut Translation,
    identity: &'a ResponseIdentity<'a>,
    out: &'a mut Vec<u8>,
    /// Data of the event.
    data: &'a [u8],
    /// Deltas so far.
    deltas: u32,
    /// Kind of the last delta's text and its place in the data, if it was a text.
    text: Option<(TextKind, Span)>,
}

impl Take for Sink<'_> {
    fn take(&mut self, delta: Delta<'_>) -> Result<(), StreamFault> {
        let translation = &mut *self.translation;
        self.deltas += 1;
        // Of the kind that the reader knows.
        self.text = delta.text().map(|(kind, text)| (kind, Span::of_part(self.data, text)));
        let delta = translation.json_tool.unwrap(delta);
        if let Some((_, text)) = delta.text() {
            translation.relayed.feed_json(text);
        }
        match delta {
            Delta::ToolOpen { name, .. } => {
                translation.relayed.cut();
                translation.relayed.feed_json(name);
            }
            Delta::Usage(reported) => translation.reported.merge_at(reported, &translation.relayed),
            Delta::Stop { .. } => translation.stopped = true,
            Delta::End => translation.finished = true,
            _ => {}
        }
        let observed = translation.observed();
        let Translation { writer, state, sequencer, .. } = translation;
        let mut to = Destination { state, observed: &observed, identity: self.identity, out: self.out };
        let mut write = |delta: Delta<'_>| writer.take(delta, &mut to);
        match sequencer {
            Some(sequencer) => sequencer.take(delta, &mut write)?,
            None => write(delta),
        }
        Ok(())
    }
}

impl Translation {
    fn observed(&self) -> ObservedUsage {
        ObservedUsage::of_stream(self.reported, &self.relayed)
    }
}
