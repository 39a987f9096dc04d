//! The server side of one HTTP/1.1 connection: bytes in, whole requests out, one at a time and in order. Owns the
//! received bytes of the current request and of those pipelined after it. Must never store a byte of a body before its
//! head is accepted, nor more of it than the caller's bound. Called by `gateway` for its clients and by `provider`.
//!
//! Each message takes these steps: [`Inbound::push`] until [`Inbound::head`] returns a head; then
//! [`Inbound::begin_body`] or [`Inbound::begin_discard`]; more `push` until [`Inbound::body_progress`] reports
//! completion or [`Inbound::discarded`] is true; then [`Inbound::release`]. The spans of the head stay valid in
//! between.

#[cfg(test)]
mod tests;

use super::body::{BodyError, BodyReader};
use super::head::{HeadError, HeadTemplates, RequestHead, parse_request};
use crate::base::buf::{BLOCK, Buf, Pool};
use crate::base::limits::{BODY_STEP_MAX, EMPTY_LINES_MAX, IO_SLICE, PIPELINE_BYTES_MAX, UPLOAD_AHEAD, UPLOAD_HOLD};
use crate::wire::head::Framing;

/// Free buffer space needed to grow the storage of an undeclared body, as a multiple of the growth.
const AHEAD_SHARE: usize = 4;

/// Reason why bytes were not taken.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum PushError {
    /// More than `limits::PIPELINE_BYTES_MAX` and one read follow a complete message: the caller kept reading in spite
    /// of [`Inbound::backlog`].
    Overflow,
    /// The body is refused; see [`BodyRefusal`].
    Body(BodyRefusal),
}

/// Reason why a body is refused.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum BodyRefusal {
    /// The body, declared or received, exceeds the bound, or a chunk has begun that will exceed it: 413. The remaining
    /// body is dropped as it arrives. The head and the stored bytes stay readable until [`Inbound::begin_discard`] or
    /// [`Inbound::release`].
    TooLarge,
    /// Broken framing: 400, and the connection is no longer usable.
    Bad(BodyError),
}

/// Meaning of the next bytes.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum InboundPhase {
    /// A head, or nothing yet.
    Head,
    /// Raw bytes after a parsed head, before the decision whether they are wanted.
    Parsed,
    /// Body, decoded and stored.
    Body,
    /// Body, decoded and dropped.
    Drop,
}

/// A reader of requests. `rx` contains, in this order: the head, the payload decoded so far, and (if the message is
/// complete or not begun) bytes of further messages. An idle reader has no storage.
#[derive(Debug)]
pub struct Inbound {
    rx: Buf,
    reader: BodyReader,
    max_body: u32,
    scanned: u32,
    head_len: u32,
    payload: u32,
    /// Payload bytes that were dropped, or taken from an upload.
    dropped: u32,
    hold: PayloadHold,
    phase: InboundPhase,
    /// Number of empty lines skipped before the request line.
    skipped: u8,
}

/// How much of a payload is held.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum PayloadHold {
    /// All of it.
    Whole,
    /// The beginning of an upload.
    Upload,
    /// The part of an upload that could not be sent yet.
    Rest,
}

impl PayloadHold {
    /// Bytes above which no more payload is wanted.
    fn bytes_max(self) -> usize {
        match self {
            PayloadHold::Whole => usize::MAX,
            PayloadHold::Upload => UPLOAD_HOLD,
            PayloadHold::Rest => UPLOAD_AHEAD,
        }
    }
}

impl Default for Inbound {
    fn default() -> Self {
        Inbound::new()
    }
}

/// Head and payload of one message while they are offloaded to a helper thread; see [`Inbound::lend`].
#[derive(Debug)]
pub struct Lent {
    rx: Buf,
    head_len: u32,
}

impl Lent {
    /// Returns the payload.
    pub fn payload(&self) -> &[u8] {
        self.rx.bytes().get(self.head_len as usize..).unwrap_or_default()
    }

    /// Bytes of storage that are lent.
    pub fn capacity(&self) -> usize {
        self.rx.capacity()
    }

    /// Returns the storage to a pool, if nobody waits for the message any more.
    pub fn release(mut self, pool: &mut Pool) {
        self.rx.release(pool);
    }
}

impl Inbound {
    /// Returns a reader at the start of its connection.
    pub fn new() -> Inbound {
        Inbound {
            rx: Buf::default(),
            reader: BodyReader::Done,
            max_body: 0,
            scanned: 0,
            head_len: 0,
            payload: 0,
            dropped: 0,
            hold: PayloadHold::Whole,
            phase: InboundPhase::Head,
            skipped: 0,
        }
    }

    /// Takes bytes as received. Chunked data of a body is decoded on arrival: only payload is stored, contiguous after
    /// the head.
    pub fn push(&mut self, pool: &mut Pool, data: &[u8]) -> Result<(), PushError> {
        let rest = match self.phase {
            InboundPhase::Body | InboundPhase::Drop if !self.reader.is_done() => self.take_body(pool, data),
            InboundPhase::Body | InboundPhase::Drop | InboundPhase::Parsed | InboundPhase::Head => Ok(data),
        };
        let (rest, refusal) = match rest {
            Ok(rest) => (rest, None),
            Err((rest, refusal)) => (rest, Some(refusal)),
        };
        if self.phase != InboundPhase::Head && self.backlog() + rest.len() > PIPELINE_BYTES_MAX + IO_SLICE {
            return Err(PushError::Overflow);
        }
        self.rx.push(pool, rest);
        self.settle();
        refusal.map_or(Ok(()), |refusal| Err(PushError::Body(refusal)))
    }

    /// Returns the head of the next message once, when it is complete. Up to `limits::EMPTY_LINES_MAX` empty lines
    /// before it are skipped (RFC 9112 section 2.2). `Ok(None)` while bytes are missing, and while an earlier message
    /// is not released.
    pub fn head(&mut self, pool: &mut Pool, max_header: usize) -> Result<Option<RequestHead>, HeadError> {
        let mut head = RequestHead::unparsed();
        Ok(self.head_like(pool, max_header, None, &mut head)?.then_some(head))
    }

    /// Like [`Inbound::head`], but compares a head with templates of earlier ones before parsing it, and writes it to
    /// `into`. True if it is complete.
    pub fn head_like(
        &mut self,
        pool: &mut Pool,
        max_header: usize,
        templates: Option<&mut HeadTemplates>,
        into: &mut RequestHead,
    ) -> Result<bool, HeadError> {
        if self.phase != InboundPhase::Head {
            return Ok(false);
        }
        while self.skipped < EMPTY_LINES_MAX && self.rx.bytes().starts_with(b"\r") {
            match self.rx.bytes().get(1) {
                None => return Ok(false),
                Some(b'\n') => {
                    self.skipped += 1;
                    self.rx.consume(pool, 2);
                }
                Some(_) => break,
            }
        }
        let bytes = self.rx.bytes();
        let mut templates = templates.filter(|_| self.scanned == 0);
        if !templates.as_mut().is_some_and(|templates| templates.find(bytes, max_header, into)) {
            let Some(head) = parse_request(bytes, &mut self.scanned, max_header)? else { return Ok(false) };
            if let Some(templates) = templates {
                templates.learn(bytes, &head);
            }
            *into = head;
        }
        (self.scanned, self.head_len) = (into.len, into.len);
        self.reader = BodyReader::new(into.framing);
        self.phase = InboundPhase::Parsed;
        Ok(true)
    }

    /// Begins to read the body of an accepted head, first from the buffer. True if the body is already complete. A
    /// declared length over `max_body` bytes is refused before anything is stored. A smaller one takes no memory until
    /// bytes arrive.
    pub fn begin_body(&mut self, head: &RequestHead, max_body: u64) -> Result<bool, BodyRefusal> {
        debug_assert_eq!(self.phase, InboundPhase::Parsed);
        self.max_body = u32::try_from(max_body).unwrap_or(u32::MAX);
        self.hold = PayloadHold::Whole;
        self.phase = InboundPhase::Body;
        let declared = if let Framing::Length(count) = head.framing { Some(count) } else { None };
        if declared.is_some_and(|count| count > u64::from(self.max_body)) {
            self.phase = InboundPhase::Drop;
        }
        self.decode_in_place().map_err(|error| BodyRefusal::Bad(self.give_up(error)))?;
        if declared.unwrap_or_else(|| self.expected()) > u64::from(self.max_body) {
            self.phase = InboundPhase::Drop;
            return Err(BodyRefusal::TooLarge);
        }
        Ok(self.reader.is_done())
    }

    /// Returns the number of payload bytes stored so far, and whether the body is complete.
    pub fn body_progress(&self) -> (usize, bool) {
        (self.payload as usize, self.phase == InboundPhase::Body && self.reader.is_done())
    }

    /// Refuses the request: its head and the stored part of its body are dropped at once, the remaining body as it
    /// arrives. Bytes after the body stay for the next message. A broken body cannot be dropped: that is an error, and
    /// the connection is no longer usable.
    #[inline]
    pub fn begin_discard(&mut self, pool: &mut Pool) -> Result<(), BodyError> {
        let mut outcome = Ok(());
        if self.phase == InboundPhase::Parsed {
            self.phase = InboundPhase::Drop;
            outcome = self.decode_in_place().map_err(|error| self.give_up(error));
        }
        self.release(pool);
        outcome
    }

    /// True if a refused message has ended, so that the next one may start.
    pub fn discarded(&self) -> bool {
        self.phase == InboundPhase::Head
    }

    /// Payload bytes of the current refused message dropped so far, counted up to 4 GiB.
    pub fn dropped(&self) -> u64 {
        u64::from(self.dropped)
    }

    /// Returns the bytes of the head, and the payload so far. Both are empty if there is no current message.
    #[inline]
    pub fn message(&self) -> (&[u8], &[u8]) {
        let (head, rest) = self.rx.bytes().split_at(self.head_len as usize);
        (head, &rest[..self.payload as usize])
    }

    /// Returns the bytes that have arrived after the head: the payload, in its framing.
    pub fn behind_head(&self) -> &[u8] {
        &self.rx.bytes()[self.head_len as usize..]
    }

    /// Lends head and payload of the current message, to be offloaded. Until [`Inbound::put_back`] the message is empty
    /// here. It may be released meanwhile. Bytes after it stay.
    pub fn lend(&mut self, pool: &mut Pool) -> Lent {
        let gone = self.head_len as usize + self.payload as usize;
        let mut kept = Buf::default();
        kept.push(pool, &self.rx.bytes()[gone..]);
        let mut rx = std::mem::replace(&mut self.rx, kept);
        rx.truncate(gone);
        let lent = Lent { rx, head_len: self.head_len };
        (self.head_len, self.payload) = (0, 0);
        lent
    }

    /// Takes the current message back. It must not have been released since it was lent.
    pub fn put_back(&mut self, pool: &mut Pool, lent: Lent) {
        debug_assert_eq!((self.phase, self.head_len), (InboundPhase::Body, 0));
        let mut behind = std::mem::replace(&mut self.rx, lent.rx);
        self.head_len = lent.head_len;
        self.payload = self.rx.len() as u32 - lent.head_len;
        self.rx.push(pool, behind.bytes());
        behind.release(pool);
    }

    /// Drops head and payload and keeps pipelined bytes: the next [`Inbound::head`] starts there. The missing part of
    /// an incomplete body is dropped as it arrives. Use [`Inbound::begin_discard`] for a message whose body was not
    /// begun.
    pub fn release(&mut self, pool: &mut Pool) {
        debug_assert_ne!(self.phase, InboundPhase::Parsed);
        let gone = self.head_len as usize + self.payload as usize;
        let behind = self.backlog();
        self.head_len = 0;
        self.payload = 0;
        if gone > BLOCK && gone > behind {
            // A large block must not stay lent for a few bytes after the message.
            let mut kept = Buf::default();
            kept.push(pool, &self.rx.bytes()[gone..]);
            std::mem::replace(&mut self.rx, kept).release(pool);
        } else if gone > 0 {
            self.rx.consume(pool, gone);
        }
        if self.phase == InboundPhase::Body {
            self.phase = InboundPhase::Drop;
            self.dropped = 0;
        }
        self.settle();
    }

    /// Drops everything and returns all storage, for a connection that is closed or lingers.
    pub fn clear(&mut self, pool: &mut Pool) {
        self.rx.release(pool);
        *self = Inbound::new();
    }

    /// Number of bytes after the current message; without one, bytes of the next. A caller that is busy with an answer
    /// stops reading when this reaches `limits::PIPELINE_BYTES_MAX`.
    pub fn backlog(&self) -> usize {
        self.rx.len() - self.head_len as usize - self.payload as usize
    }

    /// Bytes of storage.
    pub fn storage(&self) -> usize {
        self.rx.capacity()
    }

    /// Bytes of storage after the head of the current message: the storage of its payload.
    pub fn payload_storage(&self) -> usize {
        self.rx.capacity().saturating_sub(self.head_len as usize)
    }

    /// Bytes of the current body that are missing, if its length was declared.
    pub fn declared_rest(&self) -> u64 {
        if let BodyReader::Length(left) = self.reader { left } else { 0 }
    }

    /// True if bytes of a further message are waiting.
    pub fn has_pending(&self) -> bool {
        self.backlog() > 0
    }

    /// True if there is no current message and no byte of a next one.
    pub fn is_idle(&self) -> bool {
        self.phase == InboundPhase::Head && self.rx.is_empty()
    }

    /// Ends a refused message when its body ends. Nothing of it is kept.
    #[inline]
    fn settle(&mut self) {
        if self.phase == InboundPhase::Drop && self.reader.is_done() && self.head_len == 0 && self.payload == 0 {
            self.phase = InboundPhase::Head;
            self.scanned = 0;
            self.dropped = 0;
            self.skipped = 0;
        }
    }

    /// Makes the reader ignore all further bytes: the end of a broken body is unknown.
    fn give_up(&mut self, error: BodyError) -> BodyError {
        self.phase = InboundPhase::Drop;
        self.reader = BodyReader::ToEnd;
        let kept = self.head_len as usize + self.payload as usize;
        self.rx.truncate(kept);
        error
    }

    /// Feeds the body and returns the bytes after it. After a refusal for size, the remaining body is dropped.
    fn take_body<'a>(&mut self, pool: &mut Pool, data: &'a [u8]) -> Result<&'a [u8], (&'a [u8], BodyRefusal)> {
        let (mut rest, mut refusal) = (data, None);
        loop {
            let piece = match self.reader.next(rest) {
                Ok(piece) => piece,
                Err(error) => return Err((&[], BodyRefusal::Bad(self.give_up(error)))),
            };
            let run = &rest[piece.data];
            if self.phase == InboundPhase::Body
                && self.expected().saturating_add(run.len() as u64) > u64::from(self.max_body)
            {
                self.phase = InboundPhase::Drop;
                refusal = Some(BodyRefusal::TooLarge);
            }
            match self.phase {
                InboundPhase::Body => self.store(pool, run),
                _ => self.dropped = self.dropped.saturating_add(run.len() as u32),
            }
            rest = &rest[piece.consumed..];
            if piece.done || piece.consumed == 0 {
                break;
            }
        }
        refusal.map_or(Ok(rest), |refusal| Err((rest, refusal)))
    }

    /// Payload bytes stored or taken, and those announced.
    fn expected(&self) -> u64 {
        (u64::from(self.payload) + u64::from(self.dropped)).saturating_add(self.reader.promised())
    }

    /// Sets how much of the payload is held from now on.
    pub fn hold(&mut self, hold: PayloadHold) {
        self.hold = hold;
    }

    /// How much of the payload is held.
    #[inline]
    pub fn held(&self) -> PayloadHold {
        self.hold
    }

    /// True if no more payload is wanted for now.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.hold != PayloadHold::Whole && self.payload as usize >= self.hold.bytes_max()
    }

    /// Removes the first `count` bytes of the payload.
    pub fn take_payload(&mut self, count: usize) {
        let (start, end) = (self.head_len as usize, self.head_len as usize + count);
        let bytes = self.rx.bytes_mut();
        let left = bytes.len() - count;
        bytes.copy_within(end.., start);
        self.rx.truncate(left);
        self.payload -= count as u32;
        self.dropped = self.dropped.saturating_add(count as u32);
    }

    /// Appends payload. Storage grows in proportion to the received bytes and never beyond the declared length. It
    /// grows to the whole length once one step of it has arrived: a declared size on its own takes no memory.
    fn store(&mut self, pool: &mut Pool, run: &[u8]) {
        if run.is_empty() {
            return;
        }
        let known = self.payload as usize;
        let ahead = match self.reader {
            // Repeated growth of a large block can each time copy all of it.
            BodyReader::Length(left) if known >= BODY_STEP_MAX => usize::try_from(left).unwrap_or(usize::MAX),
            BodyReader::Length(left) => usize::try_from(left).unwrap_or(usize::MAX).min(known),
            BodyReader::Done => 0,
            BodyReader::Chunked(_) | BodyReader::ToEnd => known.min(BODY_STEP_MAX),
        };
        // Without a declared length, storage grows only as needed if little of the budget is left.
        let ahead =
            if matches!(self.reader, BodyReader::Length(_) | BodyReader::Done) || pool.has_room(AHEAD_SHARE * ahead) {
                ahead
            } else {
                0
            };
        let ahead = ahead.min(self.hold.bytes_max().saturating_sub(known));
        self.rx.edit(pool, |out| {
            if out.capacity() - out.len() < run.len() {
                out.reserve_exact(run.len() + ahead);
            }
            out.extend_from_slice(run);
        });
        self.payload += run.len() as u32;
    }

    /// Decodes the raw bytes after the head in place. Bytes after the body move up to the end of its payload.
    fn decode_in_place(&mut self) -> Result<(), BodyError> {
        let keep = self.phase == InboundPhase::Body;
        let bytes = self.rx.bytes_mut();
        let (mut from, mut to) = (self.head_len as usize, self.head_len as usize);
        while !self.reader.is_done() {
            let piece = self.reader.next(&bytes[from..])?;
            if keep {
                // A body of declared length is in its place already.
                if from + piece.data.start != to {
                    bytes.copy_within(from + piece.data.start..from + piece.data.end, to);
                }
                to += piece.data.len();
            } else {
                self.dropped = self.dropped.saturating_add(piece.data.len() as u32);
            }
            from += piece.consumed;
            if piece.consumed == 0 {
                break;
            }
        }
        self.payload = (to - self.head_len as usize) as u32;
        if from != to {
            let left = bytes.len() - from;
            bytes.copy_within(from.., to);
            self.rx.truncate(to + left);
        }
        Ok(())
    }
}
