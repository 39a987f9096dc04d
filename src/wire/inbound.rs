//! The server side of one HTTP/1.1 connection: bytes in, whole requests out, one at a time and in order.
//! Owns the received bytes of the request in hand and of those pipelined behind it. Must never store a byte of a
//! body before its head has passed, nor more of it than the caller's bound. Called by `gateway` for its clients and
//! by `provider`.
//!
//! One message goes: [`Inbound::push`] until [`Inbound::head`] answers; then [`Inbound::begin_body`] or
//! [`Inbound::begin_discard`]; more `push` until [`Inbound::body_progress`] says complete or
//! [`Inbound::discarded`] is true; then [`Inbound::release`]. The spans of the head stay true in between.

#[cfg(test)]
mod tests;

use super::body::{BodyError, Reader};
use super::head::{HeadError, HeadMoulds, RequestHead, parse_request};
use crate::base::buf::{BLOCK, Buf, Pool};
use crate::base::limits::{BODY_STEP_MAX, EMPTY_LINES_MAX, IO_SLICE, PIPELINE_BYTES_MAX};
use crate::wire::head::Framing;

/// So many times as much must be free of the buffers as the storage of an undeclared body grows ahead.
const AHEAD_SHARE: usize = 4;

/// Why bytes were not taken.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum PushError {
    /// More than `limits::PIPELINE_BYTES_MAX` and one read lie behind a complete message: the caller went on reading
    /// although [`Inbound::backlog`] told it not to.
    Overflow,
    /// The body is refused; see [`BodyRefusal`].
    Body(BodyRefusal),
}

/// Why a body is refused.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum BodyRefusal {
    /// Declared or grown beyond the bound, or a chunk has begun that will be: 413. From here on the rest of it is
    /// dropped as it arrives; head and what was stored stay readable until [`Inbound::begin_discard`] or
    /// [`Inbound::release`].
    TooLarge,
    /// Its framing is broken: 400, and the connection is of no further use.
    Bad(BodyError),
}

/// What the next bytes are.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Phase {
    /// A head, or nothing yet.
    Head,
    /// Raw bytes after a parsed head: whether they are wanted is not decided.
    Parsed,
    /// Body, decoded and stored.
    Body,
    /// Body, decoded and dropped.
    Drop,
}

/// The reader. In `rx` lie, in this order: the head, the payload decoded so far, and (when the message is complete or
/// not begun) bytes of further messages. An idle one holds no storage.
#[derive(Debug)]
pub struct Inbound {
    rx: Buf,
    reader: Reader,
    max_body: u32,
    scanned: u32,
    head_len: u32,
    payload: u32,
    dropped: u32,
    phase: Phase,
    /// Empty lines before the request line that have been skipped.
    skipped: u8,
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
    /// The payload.
    pub fn payload(&self) -> &[u8] {
        self.rx.bytes().get(self.head_len as usize..).unwrap_or_default()
    }

    /// Bytes of storage that are lent.
    pub fn capacity(&self) -> usize {
        self.rx.capacity()
    }

    /// Gives the storage back to a pool: nobody waits for the message any more.
    pub fn release(mut self, pool: &mut Pool) {
        self.rx.release(pool);
    }
}

impl Inbound {
    /// A reader at the start of its connection.
    pub fn new() -> Inbound {
        Inbound {
            rx: Buf::default(),
            reader: Reader::Done,
            max_body: 0,
            scanned: 0,
            head_len: 0,
            payload: 0,
            dropped: 0,
            phase: Phase::Head,
            skipped: 0,
        }
    }

    /// Takes bytes as they came. While a body is read, chunked data is decoded on the way in: payload alone is
    /// stored, contiguous behind the head.
    pub fn push(&mut self, pool: &mut Pool, data: &[u8]) -> Result<(), PushError> {
        let rest = match self.phase {
            Phase::Body | Phase::Drop if !self.reader.is_done() => self.take_body(pool, data),
            Phase::Body | Phase::Drop | Phase::Parsed | Phase::Head => Ok(data),
        };
        let (rest, refusal) = match rest {
            Ok(rest) => (rest, None),
            Err((rest, refusal)) => (rest, Some(refusal)),
        };
        if self.phase != Phase::Head && self.backlog() + rest.len() > PIPELINE_BYTES_MAX + IO_SLICE {
            return Err(PushError::Overflow);
        }
        self.rx.push(pool, rest);
        self.settle();
        refusal.map_or(Ok(()), |refusal| Err(PushError::Body(refusal)))
    }

    /// The head of the next message, once: when it is complete. Up to `limits::EMPTY_LINES_MAX` empty lines before it
    /// are skipped (RFC 9112 section 2.2). `Ok(None)` while bytes are missing, and while an earlier message is not
    /// released.
    pub fn head(&mut self, pool: &mut Pool, max_header: usize) -> Result<Option<RequestHead>, HeadError> {
        self.head_like(pool, max_header, None)
    }

    /// The same; a head like one that was parsed before is compared with that.
    pub fn head_like(
        &mut self,
        pool: &mut Pool,
        max_header: usize,
        moulds: Option<&mut HeadMoulds>,
    ) -> Result<Option<RequestHead>, HeadError> {
        if self.phase != Phase::Head {
            return Ok(None);
        }
        while self.skipped < EMPTY_LINES_MAX && self.rx.bytes().starts_with(b"\r") {
            match self.rx.bytes().get(1) {
                None => return Ok(None),
                Some(b'\n') => {
                    self.skipped += 1;
                    self.rx.consume(pool, 2);
                }
                Some(_) => break,
            }
        }
        let bytes = self.rx.bytes();
        let head = match moulds.filter(|_| self.scanned == 0 && !bytes.is_empty()) {
            None => parse_request(bytes, &mut self.scanned, max_header)?,
            Some(moulds) => match moulds.find(bytes, max_header) {
                Some(head) => Some(head),
                None => {
                    let head = parse_request(bytes, &mut self.scanned, max_header)?;
                    head.inspect(|head| moulds.cast(bytes, head))
                }
            },
        };
        if let Some(head) = &head {
            self.scanned = head.len;
            self.head_len = head.len;
            self.reader = Reader::new(head.framing);
            self.phase = Phase::Parsed;
        }
        Ok(head)
    }

    /// The head has passed: from here on its body is read, what lies in the buffer first. True when the body is
    /// already complete. A declared length over `max_body` bytes is refused before anything is stored; a smaller one
    /// takes no memory until bytes arrive.
    pub fn begin_body(&mut self, head: &RequestHead, max_body: u64) -> Result<bool, BodyRefusal> {
        debug_assert_eq!(self.phase, Phase::Parsed);
        self.max_body = u32::try_from(max_body).unwrap_or(u32::MAX);
        self.phase = Phase::Body;
        let fits = !matches!(head.framing, Framing::Length(count) if count > u64::from(self.max_body));
        if !fits {
            self.phase = Phase::Drop;
        }
        self.decode_in_place().map_err(|error| BodyRefusal::Bad(self.give_up(error)))?;
        if !fits || self.expected() > u64::from(self.max_body) {
            self.phase = Phase::Drop;
            return Err(BodyRefusal::TooLarge);
        }
        Ok(self.reader.is_done())
    }

    /// Payload bytes stored so far, and whether the body is complete.
    pub fn body_progress(&self) -> (usize, bool) {
        (self.payload as usize, self.phase == Phase::Body && self.reader.is_done())
    }

    /// The request is refused: its head and what was stored of its body go at once, the rest of the body is dropped
    /// as it arrives. Bytes behind the body stay for the next message. A broken body can not be dropped: error, and
    /// the connection is of no further use.
    #[inline]
    pub fn begin_discard(&mut self, pool: &mut Pool) -> Result<(), BodyError> {
        let mut outcome = Ok(());
        if self.phase == Phase::Parsed {
            self.phase = Phase::Drop;
            outcome = self.decode_in_place().map_err(|error| self.give_up(error));
        }
        self.release(pool);
        outcome
    }

    /// True when nothing of a refused message is left to come: the next one may start.
    pub fn discarded(&self) -> bool {
        self.phase == Phase::Head
    }

    /// Payload bytes dropped so far of the refused message in hand, at most 4 GiB are counted.
    pub fn dropped(&self) -> u64 {
        u64::from(self.dropped)
    }

    /// The bytes of the head, and the payload so far. Both empty when no message is in hand.
    #[inline]
    pub fn message(&self) -> (&[u8], &[u8]) {
        let (head, rest) = self.rx.bytes().split_at(self.head_len as usize);
        (head, &rest[..self.payload as usize])
    }

    /// Hands out head and payload of the message in hand, to be offloaded. Until [`Inbound::put_back`] the
    /// message is empty here; it may be released meanwhile. Bytes behind it stay.
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

    /// Takes the message in hand back; it must not have been released since it was lent.
    pub fn put_back(&mut self, pool: &mut Pool, lent: Lent) {
        debug_assert_eq!((self.phase, self.head_len), (Phase::Body, 0));
        let mut behind = std::mem::replace(&mut self.rx, lent.rx);
        self.head_len = lent.head_len;
        self.payload = self.rx.len() as u32 - lent.head_len;
        self.rx.push(pool, behind.bytes());
        behind.release(pool);
    }

    /// Drops head and payload and keeps pipelined bytes: the next [`Inbound::head`] starts there. What is still to
    /// come of an incomplete body is dropped as it arrives. A message whose body was not begun is for
    /// [`Inbound::begin_discard`].
    pub fn release(&mut self, pool: &mut Pool) {
        debug_assert_ne!(self.phase, Phase::Parsed);
        let gone = self.head_len as usize + self.payload as usize;
        let behind = self.backlog();
        self.head_len = 0;
        self.payload = 0;
        if gone > BLOCK && gone > behind {
            // A large block must not stay lent for the few bytes behind the message.
            let mut kept = Buf::default();
            kept.push(pool, &self.rx.bytes()[gone..]);
            std::mem::replace(&mut self.rx, kept).release(pool);
        } else if gone > 0 {
            self.rx.consume(pool, gone);
        }
        if self.phase == Phase::Body {
            self.phase = Phase::Drop;
            self.dropped = 0;
        }
        self.settle();
    }

    /// Forgets everything and returns all storage; for a connection that is closed or lingers.
    pub fn clear(&mut self, pool: &mut Pool) {
        self.rx.release(pool);
        *self = Inbound::new();
    }

    /// Bytes waiting behind the message in hand; before one, bytes of the next. A caller that is busy with an answer
    /// stops reading when this reaches `limits::PIPELINE_BYTES_MAX`.
    pub fn backlog(&self) -> usize {
        self.rx.len() - self.head_len as usize - self.payload as usize
    }

    /// Bytes of storage.
    pub fn storage(&self) -> usize {
        self.rx.capacity()
    }

    /// Bytes of storage behind the head of the message in hand: what its payload takes.
    pub fn payload_storage(&self) -> usize {
        self.rx.capacity().saturating_sub(self.head_len as usize)
    }

    /// Bytes of the body in hand that have not come, where its length was declared.
    pub fn declared_rest(&self) -> u64 {
        if let Reader::Length(left) = self.reader { left } else { 0 }
    }

    /// Bytes of a further message are waiting.
    pub fn has_pending(&self) -> bool {
        self.backlog() > 0
    }

    /// Nothing at all has been received of a next message, nor is one in hand.
    pub fn is_idle(&self) -> bool {
        self.phase == Phase::Head && self.rx.is_empty()
    }

    /// A refused message ends when its body does and nothing of it is kept.
    #[inline]
    fn settle(&mut self) {
        if self.phase == Phase::Drop && self.reader.is_done() && self.head_len == 0 && self.payload == 0 {
            self.phase = Phase::Head;
            self.scanned = 0;
            self.dropped = 0;
            self.skipped = 0;
        }
    }

    /// Where a broken body ends is not known, so nothing that comes is ever read as a message again.
    fn give_up(&mut self, error: BodyError) -> BodyError {
        self.phase = Phase::Drop;
        self.reader = Reader::ToEnd;
        let kept = self.head_len as usize + self.payload as usize;
        self.rx.truncate(kept);
        error
    }

    /// Feeds the body and returns what lies behind it. A refusal for size lets the rest be dropped.
    fn take_body<'a>(&mut self, pool: &mut Pool, data: &'a [u8]) -> Result<&'a [u8], (&'a [u8], BodyRefusal)> {
        let (mut rest, mut refusal) = (data, None);
        loop {
            let piece = match self.reader.next(rest) {
                Ok(piece) => piece,
                Err(error) => return Err((&[], BodyRefusal::Bad(self.give_up(error)))),
            };
            let run = &rest[piece.data];
            if self.phase == Phase::Body && self.expected().saturating_add(run.len() as u64) > u64::from(self.max_body)
            {
                self.phase = Phase::Drop;
                refusal = Some(BodyRefusal::TooLarge);
            }
            match self.phase {
                Phase::Body => self.store(pool, run),
                _ => self.dropped = self.dropped.saturating_add(run.len() as u32),
            }
            rest = &rest[piece.consumed..];
            if piece.done || piece.consumed == 0 {
                break;
            }
        }
        refusal.map_or(Ok(rest), |refusal| Err((rest, refusal)))
    }

    /// Payload bytes stored, and those announced.
    fn expected(&self) -> u64 {
        u64::from(self.payload).saturating_add(self.reader.promised())
    }

    /// Appends payload. Grows in proportion to what has come and never beyond the declared length, to all of it once a
    /// step's worth has come: the declaration of a size alone takes no memory.
    fn store(&mut self, pool: &mut Pool, run: &[u8]) {
        if run.is_empty() {
            return;
        }
        let known = self.payload as usize;
        let ahead = match self.reader {
            // Growing a large block again and again can cost a copy of all of it.
            Reader::Length(left) if known >= BODY_STEP_MAX => usize::try_from(left).unwrap_or(usize::MAX),
            Reader::Length(left) => usize::try_from(left).unwrap_or(usize::MAX).min(known),
            Reader::Done => 0,
            Reader::Chunked(_) | Reader::ToEnd => known.min(BODY_STEP_MAX),
        };
        // What was not promised its room grows by what it needs where little is left.
        let ahead = if matches!(self.reader, Reader::Length(_) | Reader::Done) || pool.has_room(AHEAD_SHARE * ahead) {
            ahead
        } else {
            0
        };
        self.rx.edit(pool, |out| {
            if out.capacity() - out.len() < run.len() {
                out.reserve_exact(run.len() + ahead);
            }
            out.extend_from_slice(run);
        });
        self.payload += run.len() as u32;
    }

    /// Decodes the raw bytes behind the head where they lie; what follows the body moves up behind its payload.
    fn decode_in_place(&mut self) -> Result<(), BodyError> {
        let keep = self.phase == Phase::Body;
        let bytes = self.rx.bytes_mut();
        let (mut from, mut to) = (self.head_len as usize, self.head_len as usize);
        while !self.reader.is_done() {
            let piece = self.reader.next(&bytes[from..])?;
            if keep {
                bytes.copy_within(from + piece.data.start..from + piece.data.end, to);
                to += piece.data.len();
            } else {
                self.dropped = self.dropped.saturating_add(piece.data.len() as u32);
            }
            from += piece.consumed;
            if piece.consumed == 0 {
                break;
            }
        }
        let left = bytes.len() - from;
        bytes.copy_within(from.., to);
        self.payload = (to - self.head_len as usize) as u32;
        self.rx.truncate(to + left);
        Ok(())
    }
}
