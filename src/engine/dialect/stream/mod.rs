//! An upstream stream on its way to a client: splits bytes into events, buffers an incomplete event, handles the end.
//!
//! Owns the splitting, the bound on one event and the storage of the current one. Must never know the meaning of an
//! event: the tap does (for a stream that keeps its format), or the conversion (for one that changes it). Called by the
//! gateway's relay, which does not distinguish the two.

mod halves;
pub mod own_events;
mod preface;
mod template;

use super::answer::{Broken, Frame, Rejected, Relayed, ResponseIdentity, StreamFault};
use super::dispatch::write_events;
use super::errors::{ErrorWords, error_event};
use super::neutral::naming::TranslationState;
use super::relay::{Tap, rejected, whole};
use super::translate::stream::Convert;
use super::usage::ObservedUsage;
use crate::base::buf::{Buf, Pool};
use crate::base::limits::PREFACE_MAX;
use crate::wire::json::{self, ScanCount};
use crate::wire::sse::Splitter;
use crate::wire::{ModelEndpoint, Shape};
use own_events::heartbeat;
use preface::Progress;
use std::num::{NonZeroU16, NonZeroU32};
use template::EventTemplate;

/// Result of one [`SseStream::feed`].
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Fed {
    /// Data events seen; comments and pings are not counted.
    pub events: u32,
    /// The event that ends the stream has been relayed; nothing follows it.
    pub finished: bool,
}

/// An upstream stream on its way to a client. Memory is O(1) except for the current event and, if the format changes,
/// tool arguments that wait within a named bound.
#[derive(Debug)]
pub struct SseStream {
    splitter: Splitter,
    /// The current event, if incomplete; empty while events arrive whole.
    held: Buf,
    /// Output for the events before the first content. It is held, because another upstream can still answer.
    preface: Buf,
    /// Maximum bytes of one event.
    max_event: u32,
    /// Position in the last call's output at which the end of the stream begins; see [`SseStream::end_at`].
    end_at: Option<NonZeroU32>,
    /// Data events so far.
    pub seen: u32,
    progress: Progress,
    /// The first half of a UTF-16 surrogate pair, until the second half arrives.
    half: Option<NonZeroU16>,
    scans: ScanCount,
    /// Template of the last event; `None` until an event can be one.
    template: Option<Box<EventTemplate>>,
    inner: EventHandler,
}

/// An offset in the output, stored plus 1 so that `None` takes no space.
fn place(at: usize) -> Option<NonZeroU32> {
    NonZeroU32::new(at as u32 + 1)
}

/// Handler of the events.
#[derive(Debug)]
enum EventHandler {
    /// The client has the upstream's format.
    Same(Tap),
    /// The client has another format.
    Translated(Box<Convert>),
}

impl SseStream {
    /// Returns a stream at its start, for a client of the upstream's format. `show_usage`: the client asked for the
    /// usage chunk (chat only). `max_event` in bytes.
    pub fn same(endpoint: ModelEndpoint, show_usage: bool, max_event: usize) -> SseStream {
        SseStream::new(max_event, EventHandler::Same(Tap::new(endpoint, show_usage)))
    }

    /// Returns an upstream's stream of format `from` at its start, for a client of format `to`. `state` comes from the
    /// translation of the request; `show_usage`: a chat client asked for the usage chunk. In bytes: `max_event`, and
    /// `max_answer`, the part of an answer that may be held if the last event of its format repeats it.
    pub fn translated(
        way: (Shape, Shape),
        state: TranslationState,
        show_usage: bool,
        (max_event, max_answer): (usize, usize),
    ) -> SseStream {
        let convert = Convert::new(way, state, show_usage, max_answer);
        SseStream::new(max_event, EventHandler::Translated(Box::new(convert)))
    }

    fn new(max_event: usize, inner: EventHandler) -> SseStream {
        SseStream {
            splitter: Splitter::new(),
            held: Buf::default(),
            preface: Buf::default(),
            max_event: bound(max_event),
            end_at: None,
            seen: 0,
            progress: Progress::default(),
            half: None,
            scans: ScanCount::default(),
            template: None,
            inner,
        }
    }

    /// Resets it to the start of another stream within one format; see [`SseStream::same`]. Storage is kept, except
    /// that of a translation, which belongs to its stream. [`SseStream::release`] must have been called before.
    pub fn restart(&mut self, endpoint: ModelEndpoint, show_usage: bool, max_event: usize) {
        debug_assert_eq!(self.capacity(), 0);
        let (mut splitter, mut template) = (std::mem::take(&mut self.splitter), self.template.take());
        splitter.reset();
        if let Some(template) = &mut template {
            template.reset();
        }
        *self = SseStream { splitter, template, ..SseStream::same(endpoint, show_usage, max_event) };
    }

    /// Sets the number of choices in a stream within one format; each has an end of its own.
    pub fn awaits(&mut self, choices: u32) {
        if let EventHandler::Same(tap) = &mut self.inner {
            tap.awaits(choices);
        }
    }

    /// Continues after `events` events were sent while the upstream was silent; see [`own_events::opening`].
    pub fn resume(&mut self, events: u16, created: u64) {
        // Heartbeats may be numbered, so those of the upstream are held, too.
        self.progress.opened = true;
        match &mut self.inner {
            EventHandler::Same(tap) => tap.resume(events),
            EventHandler::Translated(convert) => convert.resume(u64::from(events), created),
        }
    }

    /// Appends the client's error event for a broken stream. Nothing may follow it.
    pub fn fail(
        &mut self,
        endpoint: ModelEndpoint,
        words: &ErrorWords<'_>,
        identity: &ResponseIdentity<'_>,
        out: &mut Vec<u8>,
    ) {
        let written = match &mut self.inner {
            EventHandler::Same(tap) => tap.fail(words, identity, out),
            EventHandler::Translated(convert) => convert.fail(words, identity, out),
        };
        if !written {
            error_event(endpoint, words, out);
        }
    }

    /// Appends a heartbeat, which keeps proxies and the client from closing the connection. Returns the number of
    /// events of a response sent so far; `sent`: those before this stream.
    pub fn heartbeat(&mut self, shape: Shape, sent: u16, identity: &ResponseIdentity<'_>, out: &mut Vec<u8>) -> u16 {
        let events = match &mut self.inner {
            // An event of Tollgate's own would have a number behind those of the events that are held.
            _ if !self.preface.is_empty() => None,
            EventHandler::Same(_) if !self.progress.begun => None,
            EventHandler::Same(tap) => tap.keepalive(out),
            EventHandler::Translated(convert) => convert.heartbeat(identity, out),
        };
        if events.is_none() {
            heartbeat(shape, out);
        }
        events.map_or(sent, |events| u16::try_from(events).unwrap_or(u16::MAX))
    }

    /// True if upstream and client have the same format.
    pub fn keeps_shape(&self) -> bool {
        matches!(self.inner, EventHandler::Same(_))
    }

    /// Takes decoded body bytes and appends complete events to `out`. Bytes after the end of the stream are ignored.
    pub fn feed(
        &mut self,
        data: &[u8],
        pool: &mut Pool,
        identity: &ResponseIdentity<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Fed, StreamFault> {
        let from = self.take_preface(out);
        self.scans.begin(data.len());
        let fed = self.take(data, pool, identity, out);
        self.scans.end();
        self.hold_preface(from, fed.is_err(), pool, out);
        if let EventHandler::Translated(convert) = &mut self.inner {
            convert.charge(pool);
        }
        fed
    }

    /// Before the first content, puts what is held back into the output. Returns where it begins there.
    #[inline]
    fn take_preface(&mut self, out: &mut Vec<u8>) -> Option<usize> {
        let from = (!self.progress.begun).then_some(out.len());
        if from.is_some() {
            out.extend_from_slice(self.preface.bytes());
        }
        from
    }

    /// Holds the output from `from` on if it has no content yet. That of a stream that `fails` is dropped.
    #[inline]
    fn hold_preface(&mut self, from: Option<usize>, fails: bool, pool: &mut Pool, out: &mut Vec<u8>) {
        let Some(from) = from else { return };
        self.progress.begun |= !fails && (self.inner.finished() || out.len() - from > PREFACE_MAX);
        if !self.progress.begun {
            if !fails {
                self.preface.push(pool, &out[from + self.preface.len()..]);
            }
            return out.truncate(from);
        }
        self.preface.release(pool);
    }

    /// Relays an event at the front of `data` that differs from the previous one only in its text, as nearly all do,
    /// and returns its length. 0 for any other event: nothing is done, and [`SseStream::feed`] must take it.
    #[inline]
    pub fn feed_alike(&mut self, data: &[u8], pool: &mut Pool, out: &mut Vec<u8>) -> usize {
        // At the end of the stream, or within an event.
        if self.end_at.is_some() || !self.held.is_empty() {
            return 0;
        }
        let Some(len) = self.alike(data, out) else { return 0 };
        self.scans.begin(len);
        self.scans.end();
        if let EventHandler::Translated(convert) = &mut self.inner {
            convert.charge(pool);
        }
        len
    }

    /// Relays an event at the front of `buf` that matches the template; returns its length.
    #[inline]
    fn alike(&mut self, buf: &[u8], out: &mut Vec<u8>) -> Option<usize> {
        let template = self.template.as_mut().filter(|_| self.progress.begun)?;
        let (text, len) = template.event(&buf[..buf.len().min(self.max_event as usize)])?;
        match self.inner.repeats(text)? {
            0 => template.write(&buf[..len], text, out),
            inserted => template.write_shifted(&buf[..len], inserted, out),
        }
        self.seen += 1;
        Some(len)
    }

    fn take(
        &mut self,
        data: &[u8],
        pool: &mut Pool,
        identity: &ResponseIdentity<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Fed, StreamFault> {
        let mut events = 0;
        self.end_at = self.end_at.and_then(|_| place(out.len()));
        if self.held.is_empty() {
            let used = self.cut(data, identity, out, &mut events)?;
            if !self.inner.finished() {
                self.held.push(pool, &data[used..]);
            }
        } else if !self.inner.finished() {
            self.held.push(pool, data);
            let mut held = std::mem::take(&mut self.held);
            let cut = self.cut(held.bytes(), identity, out, &mut events);
            if let Ok(used @ 1..) = cut {
                held.consume(pool, used);
            }
            self.held = held;
            cut?;
        }
        let finished = self.inner.finished();
        if finished {
            self.held.release(pool);
        }
        if self.held.len() > self.max_event as usize {
            return Err(StreamFault::TooLarge);
        }
        Ok(Fed { events, finished })
    }

    /// Handles the end of the body, or the end of the wait for a missing end. Writes the formal end if a finish reason
    /// has arrived; returns [`StreamFault::Incomplete`] if the answer itself is cut off.
    pub fn end(
        &mut self,
        pool: &mut Pool,
        identity: &ResponseIdentity<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), StreamFault> {
        let from = self.take_preface(out);
        let ended = self.end_of(pool, identity, out);
        self.hold_preface(from, ended.is_err(), pool, out);
        ended
    }

    fn end_of(
        &mut self,
        pool: &mut Pool,
        identity: &ResponseIdentity<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), StreamFault> {
        let begin = place(out.len());
        self.end_at = self.end_at.or(begin).min(begin);
        let mut held = std::mem::take(&mut self.held);
        self.scans.begin(0);
        let ended = match self.last(held.bytes(), identity, out) {
            Ok(()) if !self.inner.finished() => self.inner.close(identity, out),
            last => last,
        };
        self.scans.end();
        held.release(pool);
        ended
    }

    /// True if JSON begins at `buf`, the place of the next event, instead of a stream: no line of a stream begins with
    /// a brace.
    fn is_document(&self, buf: &[u8]) -> bool {
        self.seen == 0 && buf.trim_ascii_start().first() == Some(&b'{')
    }

    /// Takes the JSON document that has arrived instead of events, for [`SseStream::whole`].
    pub fn take_document(&mut self) -> Option<Buf> {
        self.is_document(self.held.bytes()).then(|| std::mem::take(&mut self.held))
    }

    /// Takes a complete response of the upstream's endpoint `from` instead of a stream: some servers answer a stream
    /// request with one. Events without their content type are read as events. The result is appended to `out`. An
    /// error if the response cannot be passed on.
    pub fn whole(
        &mut self,
        from: ModelEndpoint,
        body: &[u8],
        pool: &mut Pool,
        identity: &ResponseIdentity<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Result<Fed, StreamFault>, Rejected> {
        let mut text = Vec::new();
        let is_document = body.trim_ascii_start().starts_with(b"{");
        if is_document {
            let valid = json::check(body).map_err(|_| Broken::NotJson);
            valid.and_then(|()| whole(from, body, identity, &mut text)).map_err(|why| rejected(from, body, why))?;
            text.clear();
            write_events(from, body, &mut text);
        }
        // The bound on a complete response replaces the one on an event.
        self.max_event = u32::MAX;
        let fed = self.feed(if is_document { &text } else { body }, pool, identity, out);
        Ok(match fed {
            Ok(fed) if !fed.finished => self.end(pool, identity, out).map(|()| Fed { finished: true, ..fed }),
            other => other,
        })
    }

    /// Usage observed so far.
    pub fn observed(&self) -> ObservedUsage {
        match &self.inner {
            EventHandler::Same(tap) => tap.observed(),
            EventHandler::Translated(convert) => convert.observed(),
        }
    }

    /// True once a finish reason has arrived: only the formal end may be missing.
    pub fn finish_seen(&self) -> bool {
        self.inner.finish_seen()
    }

    /// True if every choice that has begun has ended, in a stream of several. If nothing more arrives, the rest is
    /// lost.
    pub fn may_be_done(&self) -> bool {
        matches!(&self.inner, EventHandler::Same(tap) if tap.all_ended())
    }

    /// Offset in `out`, as of the last [`SseStream::feed`] or [`SseStream::end`], at which the end of the stream
    /// begins: the event with the finish reason, or the final event of a stream without one. `None`: not arrived yet.
    pub fn end_at(&self) -> Option<usize> {
        self.end_at.map(|at| at.get() as usize - 1)
    }

    /// Takes the incomplete event, whose bytes are fed again.
    pub fn take_held(&mut self) -> Buf {
        self.splitter.reset();
        std::mem::take(&mut self.held)
    }

    /// Bytes of the current event.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// Bytes held in addition to the current event: tool arguments that wait.
    pub fn waiting(&self) -> usize {
        match &self.inner {
            EventHandler::Same(_) => 0,
            EventHandler::Translated(convert) => convert.waiting(),
        }
    }

    /// Bytes of pool storage for the current event and for the bytes held in addition.
    pub fn capacity(&self) -> usize {
        let beside = if let EventHandler::Translated(convert) = &self.inner { convert.charged() } else { 0 };
        self.held.capacity() + self.preface.capacity() + beside
    }

    /// Bytes that [`SseStream::feed`] with `bytes` may add to the held bytes and to the output.
    #[inline]
    pub fn growth(&self, bytes: usize) -> usize {
        let (held, storage) = (self.held.len(), self.held.capacity());
        let beside = if self.keeps_shape() { 0 } else { bytes };
        bytes + beside + 2 * self.preface.len() + if held + bytes <= storage { 0 } else { storage.max(bytes) }
    }

    /// Drops the current event and returns its storage.
    pub fn release(&mut self, pool: &mut Pool) {
        self.held.release(pool);
        self.preface.release(pool);
        if let EventHandler::Translated(convert) = &mut self.inner {
            convert.release(pool);
        }
    }

    /// Relays every complete event at the front of `buf`; returns the number of bytes relayed.
    fn cut(
        &mut self,
        buf: &[u8],
        identity: &ResponseIdentity<'_>,
        out: &mut Vec<u8>,
        events: &mut u32,
    ) -> Result<usize, StreamFault> {
        let mut used = 0;
        while used < buf.len() && !self.inner.finished() {
            let (buf, before) = (&buf[used..], out.len());
            if self.splitter.is_between()
                && let Some(len) = self.alike(buf, out)
            {
                (*events, used) = (*events + 1, used + len);
                continue;
            }
            if self.is_document(buf) {
                break;
            }
            let Some(event) = self.splitter.next(buf) else { break };
            if event.len > self.max_event as usize {
                return Err(StreamFault::TooLarge);
            }
            let frame = Frame::of(&self.splitter, &event, buf);
            let is_progress = match relay(&mut self.inner, &mut self.template, &frame, identity, out) {
                Err(StreamFault::Malformed) => {
                    let (data, raw) = halves::joined(&mut self.half, &frame).ok_or(StreamFault::Malformed)?;
                    let frame = Frame { data: &data, raw: &raw, ..frame };
                    relay(&mut self.inner, &mut self.template, &frame, identity, out)?
                }
                other => other?,
            };
            self.progress.event(is_progress, || self.inner.shows(frame.data), before, out);
            *events += u32::from(is_progress);
            self.seen += u32::from(is_progress);
            if self.end_at.is_none() && (self.inner.finish_seen() || self.inner.finished()) {
                self.end_at = place(before);
            }
            used += event.len;
            self.splitter.done(&event);
        }
        Ok(used)
    }

    /// Relays an event that the end of the stream has cut off, if there is one.
    fn last(&mut self, buf: &[u8], identity: &ResponseIdentity<'_>, out: &mut Vec<u8>) -> Result<(), StreamFault> {
        if self.inner.finished() || buf.is_empty() {
            return Ok(());
        }
        let mut buf = buf.to_vec();
        finish_event(&mut buf);
        let Some(event) = self.splitter.next(&buf) else { return Ok(()) };
        let before = out.len();
        let frame = Frame::of(&self.splitter, &event, &buf);
        match relay(&mut self.inner, &mut self.template, &frame, identity, out) {
            // An incomplete event: the stream was cut off.
            Err(StreamFault::Malformed) => return Err(StreamFault::Incomplete),
            other => self.progress.event(other?, || self.inner.shows(frame.data), before, out),
        }
        Ok(())
    }
}

impl EventHandler {
    /// Relays an event.
    #[inline]
    fn event(
        &mut self,
        frame: &Frame<'_>,
        identity: &ResponseIdentity<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Relayed, StreamFault> {
        match self {
            EventHandler::Same(tap) => tap.event(frame, identity, out),
            EventHandler::Translated(convert) => convert.event(frame, identity, out),
        }
    }

    /// Notes another event like the last one, with this text: it counts as a sign of progress and changes nothing else.
    /// Returns the number of Tollgate's own events that are numbered before it; `None` if it must be read.
    #[inline]
    fn repeats(&mut self, text: &[u8]) -> Option<u16> {
        match self {
            EventHandler::Same(tap) => Some(tap.repeats(text)),
            EventHandler::Translated(convert) => convert.repeats(text).then_some(0),
        }
    }

    /// True if the client gets an event that was handled: it has content, or ends the answer.
    fn shows(&self, data: &[u8]) -> bool {
        match self {
            EventHandler::Same(tap) => tap.shows(data),
            EventHandler::Translated(convert) => convert.shows(),
        }
    }

    /// True once the event that ends the stream is handled.
    fn finished(&self) -> bool {
        match self {
            EventHandler::Same(tap) => tap.finished,
            EventHandler::Translated(convert) => convert.finished(),
        }
    }

    /// True once a finish reason has arrived: only the formal end may be missing.
    fn finish_seen(&self) -> bool {
        match self {
            EventHandler::Same(tap) => tap.finish_seen,
            EventHandler::Translated(convert) => convert.finish_seen(),
        }
    }

    /// Handles a stream without its final event: writes that event if nothing else is missing.
    fn close(&mut self, identity: &ResponseIdentity<'_>, out: &mut Vec<u8>) -> Result<(), StreamFault> {
        match self {
            EventHandler::Same(tap) => tap.close(identity, out),
            EventHandler::Translated(convert) => convert.close(identity, out),
        }
    }
}

/// Relays an event; true if it counts as a sign of progress. Makes it the template, or forgets the one before it.
fn relay(
    inner: &mut EventHandler,
    template: &mut Option<Box<EventTemplate>>,
    frame: &Frame<'_>,
    identity: &ResponseIdentity<'_>,
    out: &mut Vec<u8>,
) -> Result<bool, StreamFault> {
    let before = out.len();
    let relayed = inner.event(frame, identity, out)?;
    match (relayed, template) {
        (Relayed::Text { text, sent_at }, template) => {
            let sent = sent_at.map(|at| (&out[before..], at.wrapping_sub(before)));
            template.get_or_insert_default().learn(frame, text, sent);
        }
        (Relayed::Event | Relayed::Idle, Some(template)) if !frame.data.is_empty() => template.forget(),
        _ => {}
    }
    Ok(!matches!(relayed, Relayed::Idle))
}

/// Clamps a bound on one event: offsets into an event have 32 bits.
fn bound(max_event: usize) -> u32 {
    u32::try_from(max_event).unwrap_or(u32::MAX)
}

/// Adds the missing empty line after the last event of a stream: without it a client would drop the event.
fn finish_event(event: &mut Vec<u8>) {
    let missing: &[u8] = if event.ends_with(b"\n") { b"\n" } else { b"\n\n" };
    event.extend_from_slice(missing);
}

#[cfg(test)]
mod tests;
