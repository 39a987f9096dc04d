//! The frame around every stream: bytes to events, the event under way held back, the end seen to.
//!
//! Owns the splitting and the bound on one event. Must never know a shape: what an event means is its inner's business.
//! Used by [`super::tap`] and [`super::streams`].

use super::tap::{Progress, ResponseIdentity, StreamFault};
use crate::base::buf::{Buf, Pool};
use crate::wire::sse::{Event, Splitter};

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

/// What is done with the events.
pub(super) trait Inner {
    /// One event; true if it counts as life.
    fn frame(&mut self, frame: Frame<'_>, me: &ResponseIdentity<'_>, out: &mut Vec<u8>) -> Result<bool, StreamFault>;
    /// The event that ends the stream has been dealt with.
    fn finished(&self) -> bool;
    /// A finish reason has come: only the formal end may be missing.
    fn finish_seen(&self) -> bool;
    /// The stream has ended without that event: writes it if nothing else is missing.
    fn close(&mut self, me: &ResponseIdentity<'_>, out: &mut Vec<u8>) -> Result<(), StreamFault>;
}

/// A stream cut into events for its inner.
#[derive(Debug)]
pub(super) struct Framed<I> {
    splitter: Splitter,
    max_event: usize,
    /// Where, in what the last call appended, the end of the stream begins; see [`Framed::end_at`].
    end_at: Option<u32>,
    /// Part of the answer has been written.
    begun: bool,
    pub(super) inner: I,
}

impl<I: Inner> Framed<I> {
    pub(super) fn new(max_event: usize, inner: I) -> Framed<I> {
        Framed { splitter: Splitter::new(), max_event, begun: false, end_at: None, inner }
    }

    /// Back to the start of another stream; storage is kept.
    pub(super) fn reset(&mut self, max_event: usize) {
        self.splitter.reset();
        self.max_event = max_event;
        self.begun = false;
        self.end_at = None;
    }

    /// Where the end of the stream begins, in bytes of `out` as of the last call: at the event with the finish reason,
    /// or at the one that ends the stream without any. `None`: it has not come yet.
    pub(super) fn end_at(&self) -> Option<usize> {
        self.end_at.map(|at| at as usize)
    }

    pub(super) fn feed(
        &mut self,
        data: &[u8],
        held: &mut Buf,
        pool: &mut Pool,
        me: &ResponseIdentity<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Progress, StreamFault> {
        let mut events = 0;
        self.end_at = self.end_at.map(|_| out.len() as u32);
        if held.is_empty() {
            let used = self.cut(data, me, out, &mut events)?;
            if !self.inner.finished() {
                held.push(pool, &data[used..]);
            }
        } else if !self.inner.finished() {
            held.push(pool, data);
            let used = self.cut(held.bytes(), me, out, &mut events)?;
            if used > 0 {
                held.consume(pool, used);
            }
        }
        if self.inner.finished() {
            held.release(pool);
        }
        if held.len() > self.max_event {
            return Err(StreamFault::TooLarge);
        }
        Ok(Progress { events, finished: self.inner.finished() })
    }

    pub(super) fn end(
        &mut self,
        held: &mut Buf,
        pool: &mut Pool,
        me: &ResponseIdentity<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), StreamFault> {
        if !self.inner.finished()
            && let Some(event) = self.splitter.last(held.bytes())
        {
            let before = out.len();
            match self.inner.frame(frame(&self.splitter, &event, held.bytes()), me, out) {
                // Half an event: the stream was cut.
                Err(StreamFault::Malformed) => return Err(StreamFault::Incomplete),
                other => self.opens(other?, before, out),
            }
            if out.len() > before {
                finish_event(out);
            }
        }
        held.release(pool);
        if self.inner.finished() { Ok(()) } else { self.inner.close(me, out) }
    }

    /// Nothing opens a stream but an event; so what a client gets cannot depend on whether a sign of life arrived
    /// together with the first one.
    fn opens(&mut self, life: bool, before: usize, out: &mut Vec<u8>) {
        self.begun |= life && out.len() > before;
        if !self.begun {
            out.truncate(before);
        }
    }

    /// Hands on every complete event at the front of `buf`; how many bytes that was.
    fn cut(
        &mut self,
        buf: &[u8],
        me: &ResponseIdentity<'_>,
        out: &mut Vec<u8>,
        events: &mut u32,
    ) -> Result<usize, StreamFault> {
        let mut used = 0;
        while !self.inner.finished()
            && let Some(event) = self.splitter.next(&buf[used..])
        {
            if event.len > self.max_event {
                return Err(StreamFault::TooLarge);
            }
            let (frame, before) = (frame(&self.splitter, &event, &buf[used..]), out.len());
            let life = self.inner.frame(frame, me, out)?;
            self.opens(life, before, out);
            *events += u32::from(life);
            if self.end_at.is_none() && (self.inner.finish_seen() || self.inner.finished()) {
                self.end_at = Some(before as u32);
            }
            used += event.len;
        }
        Ok(used)
    }
}

/// Gives an event that its stream ended with the empty line that it lacks: without it a client would drop it.
fn finish_event(out: &mut Vec<u8>) {
    let missing: &[u8] = match out.as_slice() {
        [.., b'\n', b'\n'] | [.., b'\n', b'\r', b'\n'] => b"",
        [.., b'\n'] => b"\n",
        _ => b"\n\n",
    };
    out.extend_from_slice(missing);
}

fn frame<'a>(splitter: &'a Splitter, event: &Event, buf: &'a [u8]) -> Frame<'a> {
    let (name, raw) = (event.name.of(buf), event.raw.of(buf));
    Frame { name, data: splitter.data(event, buf), raw, comment: event.comment }
}
