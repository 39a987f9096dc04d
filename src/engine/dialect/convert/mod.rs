//! Translates a stream of one format into a stream of another.
//!
//! Owns the path from events to deltas to events. Must never end a broken stream as if it were complete. Must never
//! hold more than the current event, the content that waits for the end of a tool call (within a named bound), and (up
//! to a given bound) the parts of a response that its last event repeats. Called by [`super::stream`].

mod sequencer;

use super::answer::{Destination, Frame, ResponseIdentity, StreamFault};
use super::dispatch::{StreamReader, StreamWriter};
use super::errors::ErrorWords;
use super::neutral::naming::TranslationState;
use super::responses::stream_writer::ResponsesWriter;
use super::template::EventTemplate;
use super::tokens::Estimator;
use super::usage::{ObservedUsage, Reported};
use crate::base::buf::{Charge, Pool};
use crate::dialect::neutral::delta::{Delta, Take, TextKind};
use crate::dialect::neutral::json_tool::JsonTool;
use crate::wire::json::Raw;
use crate::wire::sse::Splitter;
use crate::wire::{Shape, Span};
use sequencer::Sequencer;

/// Reads the events of a complete stream of format `from`, for a complete answer.
pub(super) fn read_events(from: Shape, body: &[u8], keeps: bool, sink: &mut dyn Take) -> Result<(), StreamFault> {
    let (mut reader, mut splitter, mut rest) = (StreamReader::new(from, keeps), Splitter::new(), body);
    while let Some(event) = splitter.next(rest).or_else(|| splitter.last(rest)) {
        let frame = Frame {
            name: event.name.of(rest),
            data: splitter.data(&event, rest),
            raw: event.raw.of(rest),
            comment: event.comment,
        };
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
pub(super) struct Convert {
    reader: StreamReader,
    translation: Translation,
    /// Template of the last event: only the text of events that match it is read.
    template: EventTemplate,
    /// Kind of text of the last event, if it had a text and nothing else.
    last_only: Option<TextKind>,
    /// Bytes that may be held.
    max_answer: usize,
    /// Charge for the storage that is held here.
    charge: Charge,
}

/// A text in an event: its kind, address and length.
#[derive(Copy, Clone)]
struct TextInEvent {
    kind: TextKind,
    address: usize,
    len: usize,
}

/// State between reader and writer.
#[derive(Debug)]
struct Translation {
    writer: StreamWriter,
    state: TranslationState,
    reported: Reported,
    relayed: Estimator,
    json_tool: JsonTool,
    /// `None` for chat: chunks say which call they belong to.
    sequencer: Option<Sequencer>,
    stopped: bool,
    finished: bool,
}

impl Convert {
    /// Returns the translation at the start of an upstream's stream of format `from`, for a client of format `to`.
    /// `state` comes from the translation of the request. `show_usage`: a chat client asked for the usage chunk.
    /// `max_answer`: bytes of an answer that may be held until its end.
    pub(super) fn new(
        (from, to): (Shape, Shape),
        state: TranslationState,
        show_usage: bool,
        max_answer: usize,
    ) -> Convert {
        let reader = StreamReader::new(from, hands_back(from, to));
        let json_tool = JsonTool::new(state.json_tool);
        let translation = Translation {
            writer: StreamWriter::new(to, show_usage),
            state,
            reported: Reported::default(),
            relayed: Estimator::new(),
            json_tool,
            sequencer: (to != Shape::Chat).then(Sequencer::default),
            stopped: false,
            finished: false,
        };
        let (template, charge) = (EventTemplate::default(), Charge::default());
        Convert { reader, translation, template, last_only: None, max_answer, charge }
    }

    /// Translates an event; true if it counts as a sign of progress.
    pub(super) fn event(
        &mut self,
        frame: &Frame<'_>,
        me: &ResponseIdentity<'_>,
        out: &mut Vec<u8>,
    ) -> Result<bool, StreamFault> {
        if self.reader.may_repeat(frame)
            && let Some(text) = self.template.text(frame.data).filter(|text| !text.is_empty())
            && self.goes_on(text)
        {
            self.translation.relayed.feed_json(text);
            self.template.render(text, out);
            return Ok(true);
        }
        let before = out.len();
        let mut sink = Sink { translation: &mut self.translation, me, out, deltas: 0, text: None };
        if frame.data.is_empty() {
            if frame.comment || frame.name == b"ping" {
                sink.take(Delta::Ping)?;
            }
            return Ok(false);
        }
        let waits = self.reader.waiting();
        let life = self.reader.event(frame, &mut sink)?;
        // An event that leaves something in the reader must be read, even if it is repeated.
        let only_text = sink.text.filter(|_| sink.deltas == 1 && self.reader.waiting() == waits);
        self.learn(frame, only_text, &out[before..], before);
        if self.waiting() > self.max_answer { Err(StreamFault::AnswerTooLarge) } else { Ok(life) }
    }

    /// Translates an event at the front of `buf` that matches the template except for its text; returns its length.
    #[inline]
    pub(super) fn event_like(&mut self, buf: &[u8], out: &mut Vec<u8>) -> Option<usize> {
        let data = self.reader.repeated(buf)?;
        let (text, len) = self.template.event(data).filter(|(text, _)| !text.is_empty())?;
        if !self.goes_on(text) {
            return None;
        }
        self.translation.relayed.feed_json(text);
        self.template.render(text, out);
        Some(buf.len() - data.len() + len)
    }

    /// Notes the text of an event that matches the template; false if the event must be read instead.
    fn goes_on(&mut self, text: &[u8]) -> bool {
        match (self.last_only, &mut self.reader) {
            (Some(TextKind::Arguments(slot)), StreamReader::Chat(reader)) => reader.goes_on(slot, text),
            _ => true,
        }
    }

    /// Learns a template from an event. `only_text` is its text, if it has nothing else; `sent`, at offset `before` of
    /// the output, is what the client gets. Only the second such event in a row becomes a template: the first may have
    /// begun a block.
    fn learn(&mut self, frame: &Frame<'_>, only_text: Option<TextInEvent>, sent: &[u8], before: usize) {
        let last = self.last_only.take();
        self.template.forget();
        let Some(at) = self.translation.writer.text_at() else { return };
        let (Some(TextInEvent { kind, address, len }), true) = (only_text, self.reader.may_repeat(frame)) else {
            return;
        };
        let (start, at) = (address.wrapping_sub(frame.data.as_ptr() as usize), at.wrapping_sub(before));
        let part = |of, from: usize| <[u8]>::get(of, from..from.checked_add(len)?).filter(|text| !text.is_empty());
        // No template if the arguments were re-encoded, or if they wait and are not written yet.
        if part(frame.data, start).is_none() || part(frame.data, start) != part(sent, at) {
            return;
        }
        if last == Some(kind) {
            self.template.learn(frame.data, Span::new(start, start + len), sent, at);
        }
        self.last_only = Some(kind);
    }

    /// Writes the error for a broken stream in the responses format. False for other formats, which use the general
    /// error event.
    pub(super) fn fail(&mut self, words: &ErrorWords<'_>, me: &ResponseIdentity<'_>, out: &mut Vec<u8>) -> bool {
        let observed = self.translation.observed();
        let StreamWriter::Responses(writer) = &mut self.translation.writer else { return false };
        writer.fail(words, &mut Destination { state: &self.translation.state, observed: &observed, me, out });
        true
    }

    /// Writes a heartbeat for a silent upstream; returns the number of events sent so far. `None` if the format's
    /// general heartbeat applies.
    pub(super) fn heartbeat(&mut self, me: &ResponseIdentity<'_>, out: &mut Vec<u8>) -> Option<u64> {
        let observed = self.translation.observed();
        let StreamWriter::Responses(writer) = &mut self.translation.writer else { return None };
        writer.heartbeat(&mut Destination { state: &self.translation.state, observed: &observed, me, out });
        Some(writer.sequence)
    }

    /// Continues after `events` events of the answer have been sent.
    pub(super) fn resume(&mut self, events: u64, created: u64) {
        if let StreamWriter::Responses(writer) = &mut self.translation.writer {
            writer.resume(events, created);
        }
    }

    /// True once the event that ends the stream is written.
    pub(super) fn finished(&self) -> bool {
        self.translation.finished
    }

    /// True once the upstream has sent a finish reason: only the formal end may be missing.
    pub(super) fn finish_seen(&self) -> bool {
        self.translation.stopped
    }

    /// False while the output is only the opening of a text that replaces the call of a required tool.
    pub(super) fn shows(&self) -> bool {
        let Translation { json_tool, relayed, stopped, .. } = &self.translation;
        json_tool.slot.is_none() || *stopped || relayed.tokens() > 0
    }

    /// Handles a stream that ended without its formal end: writes that end if nothing else is missing.
    pub(super) fn close(&mut self, me: &ResponseIdentity<'_>, out: &mut Vec<u8>) -> Result<(), StreamFault> {
        if !self.translation.stopped {
            return Err(StreamFault::Incomplete);
        }
        let mut sink = Sink { translation: &mut self.translation, me, out, deltas: 0, text: None };
        self.reader.finish(&mut sink)
    }

    /// Usage observed so far.
    pub(super) fn observed(&self) -> ObservedUsage {
        self.translation.observed()
    }

    /// Charges the storage for names to be restored and for bytes held in addition to the current event.
    pub(super) fn charge(&mut self, pool: &mut Pool) {
        // Growing vectors have up to twice the capacity they need.
        let storage = 2 * self.waiting() + self.translation.state.storage();
        self.charge.set(pool, storage);
    }

    /// Bytes that are charged.
    pub(super) fn charged(&self) -> usize {
        self.charge.bytes()
    }

    /// Releases the whole charge.
    pub(super) fn release(&mut self, pool: &mut Pool) {
        self.charge.set(pool, 0);
    }

    /// Bytes held in addition to the current event: whatever waits for the end of a call and, for a responses client,
    /// everything that the last event repeats.
    #[inline]
    pub(super) fn waiting(&self) -> usize {
        let Translation { writer, sequencer, .. } = &self.translation;
        self.reader.waiting() + writer.waiting() + sequencer.as_ref().map_or(0, |sequencer| sequencer.waiting)
    }
}

/// True if clients of format `to` send reasoning back in a carrier. The chat format has no field for it.
pub(super) fn hands_back(from: Shape, to: Shape) -> bool {
    to == Shape::Responses || (to == Shape::Messages && from != Shape::Chat)
}

/// Appends the events that announce an answer to a responses client, numbered from `events` on; returns the number of
/// events sent so far.
pub(super) fn write_opening(events: u64, to: &mut Destination<'_>) -> u64 {
    let mut writer = ResponsesWriter::default();
    if events > 0 {
        writer.resume(events, to.me.created);
    }
    writer.heartbeat(to);
    writer.sequence
}

/// Appends the events that report a failed answer to a responses client. `events` of the answer were sent before; apart
/// from its usage, nothing else of the answer is known here.
pub(super) fn write_failure(events: u64, words: &ErrorWords<'_>, to: &mut Destination<'_>) {
    let mut writer = ResponsesWriter::default();
    writer.resume(events, to.me.created);
    writer.fail(words, to);
}

/// Writes the failure from the upstream's own failed response, with Tollgate's message and names.
pub(super) fn write_failed(
    events: u64,
    words: &ErrorWords<'_>,
    response: Raw<'_>,
    me: &ResponseIdentity<'_>,
    out: &mut Vec<u8>,
) {
    let mut writer = ResponsesWriter::default();
    writer.resume(events, me.created);
    writer.fail_as(words, response, me, out);
}

/// Receiver of a reader's deltas during one event: passes them to the writer.
struct Sink<'a> {
    translation: &'a mut Translation,
    me: &'a ResponseIdentity<'a>,
    out: &'a mut Vec<u8>,
    /// Deltas so far.
    deltas: u32,
    /// The text of the last delta, if it was one.
    text: Option<TextInEvent>,
}

impl Take for Sink<'_> {
    fn take(&mut self, delta: Delta<'_>) -> Result<(), StreamFault> {
        let translation = &mut *self.translation;
        self.deltas += 1;
        let at =
            |(kind, text): (TextKind, &[u8])| TextInEvent { kind, address: text.as_ptr() as usize, len: text.len() };
        // Of the kind that the reader knows.
        self.text = delta.text().map(at);
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
        let mut to = Destination { state, observed: &observed, me: self.me, out: self.out };
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
