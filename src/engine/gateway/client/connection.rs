//! Client connection: its reading side (head, body, dropped bytes), its unsent bytes, its deadlines. Decides when a
//! message begins and ends; `drive` calls it and acts on its events. Must never know the meaning of a request.
//!
//! | phase | event → next |
//! |---|---|
//! | Head | complete → Held, Body or, answered at once, Head, Discard, Linger or Closing; idle, late or broken → Closing |
//! | Held | its key was looked up → as from Head |
//! | Body | complete → Busy; refused → Head, Discard, Linger or Closing; late → refused |
//! | Busy | answered → Head, Linger or Closing |
//! | Discard | all of the body dropped → Head; late → Closing |
//! | Linger | all dropped, late or the client's end → Closing |
//! | Closing | everything written → gone |

use super::after::{AfterResponse, Remainder};
use super::response::RequestMeta;
use super::send_queue::SendQueue;
use crate::base::buf::{Buf, Pool};
use crate::base::limits::{DRAIN_IDLE_GRACE, HIGH_WATER, PIPELINE_BURST, PIPELINE_BYTES_MAX};
use crate::base::seam::{Ending, Shut};
use crate::base::time::Mono;
use crate::gateway::ids::ExchangeId;
use crate::gateway::memory::shares::Promise;
use crate::policy::config::Server;
use crate::policy::keys::KeyIx;
use crate::wire::head::{Expect, HeadError, HeadTemplates, RequestHead};
use crate::wire::inbound::{BodyRefusal, Inbound, Lent, PayloadHold, PushError};
use std::time::Duration;

/// Time that a connection is read and drained after a refusal that closes it, so that the answer is not reset.
const LINGER: Duration = Duration::from_secs(2);
/// Bytes read and dropped from a lingering connection at most.
const LINGER_BYTES_MAX: u32 = 64 << 20;

/// Result of bytes, a deadline or the end of an answer.
#[derive(Debug)]
pub(crate) enum ClientEvent<'a> {
    /// The head of the next request is complete.
    Head(&'a RequestHead),
    /// The bytes are not a valid head.
    BadHead(HeadError),
    /// A head has begun but is late.
    SlowHead,
    /// The next pipelined request waits for [`ClientConnection::resume`].
    Paused,
    /// More of a body has arrived.
    Body {
        /// True for the last part.
        complete: bool,
    },
    /// The body cannot be accepted.
    BadBody(BodyRefusal),
    /// A body has begun but is late.
    SlowBody,
    /// The connection is unusable, even if an exchange depends on it.
    Lost,
    /// No bytes are left to be written or read.
    Done(Shut),
    /// Everything has been written, and further input is dropped: the client may be informed that no bytes follow.
    Finished,
    /// Enough has been written for its source to continue.
    Drained,
}

/// Phase of the reading side of a client connection.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Phase {
    /// Between messages, or inside a head.
    Head,
    /// A head waits until its key has been looked up; nothing is read meanwhile.
    Held,
    /// A head was accepted; its body is arriving.
    Body,
    /// A whole request is being answered.
    Busy,
    /// An answer has been given without its request's body; that body is read and dropped.
    Discard,
    /// Like `Discard`, but the connection ends afterwards: reads and drops input for a while, so that the answer is not
    /// lost in a reset.
    Linger(Remainder),
    /// No more bytes are read; the connection closes when everything is written.
    Closing,
}

/// Reason to accept a connection that is not served.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Oddity {
    /// Connection above a limit.
    Crowded,
    /// Client that sends plain HTTP instead of TLS.
    Strayed,
}

/// In [`ClientConnection::marks`]: part of a head has arrived.
const READING: u8 = 1;
/// In [`ClientConnection::marks`]: the next answer is the last.
const LAST: u8 = 2;
/// In [`ClientConnection::marks`]: pipelined requests wait until other connections have been served.
const PAUSED: u8 = 4;
/// In [`ClientConnection::marks`]: one request begun since the connection was last read or resumed. These requests are
/// counted in the upper bits.
const BEGUN: u8 = 8;

/// Client connection. Uses no storage while idle.
#[derive(Debug)]
pub(crate) struct ClientConnection {
    inbound: Inbound,
    queue: SendQueue,
    phase: Phase,
    /// Exchange of the current request.
    pub(crate) exchange: Option<ExchangeId>,
    /// Deadline of the reading side, or time at which the answering code must be called again.
    pub(crate) wait: Mono,
    /// Deadline for the client to read.
    stall: Mono,
    /// [`READING`], [`LAST`], [`PAUSED`] and multiples of [`BEGUN`].
    marks: u8,
    /// True if it was accepted on the admin listener.
    pub(crate) admin: bool,
    /// True if it has shown a credential: a key, or a token of the admin listener.
    pub(crate) known: bool,
    /// Reason that it was accepted only to be refused.
    pub(crate) oddity: Option<Oddity>,
    /// Key whose answers it receives.
    pub(crate) key: Option<KeyIx>,
    /// Amount charged to that key for unread answers.
    pub(crate) unread: Promise,
}

/// Bytes of storage for unsent answers above which they are charged to their key.
const UNREAD_MIN: usize = 16 * 1024;

impl ClientConnection {
    /// Creates a connection that was just accepted; its first head is due at `by`.
    pub(crate) fn new(admin: bool, crowded: bool, by: Mono) -> ClientConnection {
        ClientConnection {
            inbound: Inbound::default(),
            queue: SendQueue::default(),
            phase: Phase::Head,
            exchange: None,
            wait: by,
            stall: Mono::NEVER,
            marks: 0,
            admin,
            known: false,
            oddity: crowded.then_some(Oddity::Crowded),
            key: None,
            unread: Promise::default(),
        }
    }

    fn has(&self, mark: u8) -> bool {
        self.marks & mark != 0
    }

    /// Maximum idle time between two messages: without a credential that of a new connection, and a short time if the
    /// process stops.
    pub(crate) fn idle_timeout(&self, server: &Server, stops: bool) -> Duration {
        match self.known {
            _ if stops => DRAIN_IDLE_GRACE,
            true => server.keepalive_timeout,
            false => server.keepalive_timeout.min(server.header_timeout),
        }
    }

    /// Earliest deadline, without those of its exchange.
    pub(crate) fn due(&self) -> Mono {
        self.wait.min(self.stall)
    }

    /// True between two messages, with no bytes received or to be sent.
    pub(crate) fn is_idle(&self) -> bool {
        self.phase == Phase::Head && !self.has(READING) && self.queue.is_empty()
    }

    /// True if a request may still be admitted: its head or body is arriving, or may.
    pub(crate) fn is_arriving(&self) -> bool {
        let is_body = self.phase == Phase::Body && self.inbound.held() != PayloadHold::Rest;
        is_body || matches!(self.phase, Phase::Head | Phase::Held | Phase::Discard)
    }

    /// True if its message is a form that is passed on while it arrives.
    #[inline]
    pub(crate) fn is_upload(&self) -> bool {
        self.inbound.held() != PayloadHold::Whole
    }

    /// Its message is a form that is passed on while it arrives.
    pub(crate) fn begin_upload(&mut self) {
        self.inbound.hold(PayloadHold::Upload);
    }

    /// The first `count` bytes of the body have been sent on: more of it may be read.
    pub(crate) fn sent_on(&mut self, count: usize, server: &Server, now: Mono) {
        self.inbound.take_payload(count);
        self.inbound.hold(PayloadHold::Rest);
        if self.phase == Phase::Body && !self.inbound.is_full() {
            self.wait = now.after(server.body_timeout);
        }
    }

    /// True if its source must wait because of the number of unsent bytes.
    pub(crate) fn is_full(&self) -> bool {
        self.queue.len() > HIGH_WATER
    }

    /// Key to be charged for the storage here, and its bytes: unsent answers, and pipelined requests. `None` if it is
    /// charged already.
    #[inline]
    pub(crate) fn unread(&self) -> Option<(KeyIx, usize)> {
        let (charged, storage) = (self.unread.total(), self.queue.storage() + self.inbound.backlog());
        let is_less = storage * 2 < charged;
        if !is_less && storage <= charged.max(UNREAD_MIN) {
            return None;
        }
        let due = if storage > UNREAD_MIN { storage } else { 0 };
        self.key.map(|key| (key, due))
    }

    /// Records the key of its first request.
    pub(crate) fn is_of(&mut self, key: Option<KeyIx>) {
        self.key = key;
    }

    /// Number of unsent bytes.
    pub(crate) fn unsent_bytes(&self) -> usize {
        self.queue.len()
    }

    /// Bytes to be written next.
    #[inline]
    pub(crate) fn unsent(&self) -> &[u8] {
        self.queue.bytes()
    }

    /// Head and payload of the current message.
    #[inline]
    pub(crate) fn message(&self) -> (&[u8], &[u8]) {
        self.inbound.message()
    }

    /// Bytes that have arrived after the head of the current message, in their framing.
    pub(crate) fn behind_head(&self) -> &[u8] {
        self.inbound.behind_head()
    }

    /// Bytes of storage after the head of the current message.
    pub(crate) fn payload_storage(&self) -> usize {
        self.inbound.payload_storage()
    }

    /// Takes received bytes; [`ClientConnection::next`] returns their results.
    pub(crate) fn push(&mut self, data: &[u8], pool: &mut Pool) -> Option<ClientEvent<'static>> {
        match &mut self.phase {
            Phase::Closing => None,
            Phase::Linger(remainder) => {
                remainder.take(data.len());
                match remainder {
                    Remainder::Body(0) => self.close_when_written(pool).map(ClientEvent::Done),
                    Remainder::Unknown(0) => Some(ClientEvent::Done(Shut::Abort)),
                    _ => None,
                }
            }
            _ => {
                if !self.is_paused() {
                    self.marks %= BEGUN;
                }
                match self.inbound.push(pool, data) {
                    Ok(()) => None,
                    Err(PushError::Body(refusal)) => Some(ClientEvent::BadBody(refusal)),
                    Err(PushError::Overflow) => Some(ClientEvent::Lost),
                }
            }
        }
    }

    /// True if bytes that were received before the last answer may lead to an event.
    #[inline]
    pub(crate) fn has_input(&self) -> bool {
        self.inbound.has_pending() || self.phase == Phase::Discard
    }

    /// Returns the next event of the received bytes; `head` gets the head of a request. Call it until it returns none,
    /// except after an incomplete body: there is no further event before more bytes arrive.
    pub(crate) fn next<'a>(
        &mut self,
        server: &Server,
        templates: &mut HeadTemplates,
        head: &'a mut RequestHead,
        pool: &mut Pool,
        now: Mono,
    ) -> Option<ClientEvent<'a>> {
        if self.phase == Phase::Discard {
            self.wait = now.after(server.body_timeout);
            if !self.inbound.discarded() {
                return None;
            }
            self.await_head(self.idle_timeout(server, false), pool, now);
        }
        match self.phase {
            Phase::Head if !self.inbound.has_pending() || self.is_full() => None,
            Phase::Head if self.marks / BEGUN == PIPELINE_BURST => self.pause(),
            Phase::Head => match self.inbound.head_like(pool, server.max_header, Some(templates), head) {
                Ok(true) => {
                    self.marks += BEGUN;
                    self.wait = Mono::NEVER;
                    Some(ClientEvent::Head(head))
                }
                Ok(false) => {
                    if !self.has(READING) {
                        self.marks |= READING;
                        self.wait = now.after(server.header_timeout);
                    }
                    None
                }
                Err(error) => Some(ClientEvent::BadHead(error)),
            },
            Phase::Body => {
                let (_, complete) = self.inbound.body_progress();
                self.wait = if self.inbound.is_full() { Mono::NEVER } else { now.after(server.body_timeout) };
                Some(ClientEvent::Body { complete })
            }
            Phase::Held | Phase::Busy | Phase::Discard | Phase::Linger(_) | Phase::Closing => None,
        }
    }

    /// Makes the next pipelined request wait, if there is one. It has begun to arrive, so the connection is not idle.
    #[cold]
    fn pause(&mut self) -> Option<ClientEvent<'static>> {
        if self.is_paused() {
            return None;
        }
        self.marks |= READING | PAUSED;
        self.wait = Mono::NEVER;
        Some(ClientEvent::Paused)
    }

    /// True if pipelined requests wait for [`ClientConnection::resume`].
    #[inline]
    pub(crate) fn is_paused(&self) -> bool {
        self.has(PAUSED)
    }

    /// Permits further pipelined requests after [`ClientEvent::Paused`].
    pub(crate) fn resume(&mut self) {
        self.marks &= LAST;
    }

    /// Holds a complete head, while `exchange` waits for the ledger's answer about its key.
    pub(crate) fn hold(&mut self, exchange: ExchangeId) {
        self.exchange = Some(exchange);
        self.phase = Phase::Held;
        self.wait = Mono::NEVER;
    }

    /// Begins the body of an accepted head, for `exchange`; `None` on the admin listener.
    pub(crate) fn begin_body(
        &mut self,
        exchange: Option<ExchangeId>,
        key: Option<KeyIx>,
        head: &RequestHead,
        max_body: u64,
    ) -> Result<(), BodyRefusal> {
        self.exchange = exchange;
        self.key = key;
        self.phase = Phase::Body;
        self.inbound.begin_body(head, max_body).map(|_| ())
    }

    /// True if the client expects `100 Continue` before it sends its body.
    pub(crate) fn awaits_continue(&self, head: &RequestHead) -> bool {
        head.expect == Expect::Continue && self.inbound.body_progress() == (0, false)
    }

    /// Begins the answer to a complete request by `exchange`; nothing is read during the answer.
    pub(crate) fn begin_answer(&mut self, exchange: Option<ExchangeId>) {
        self.exchange = exchange;
        self.phase = Phase::Busy;
        self.wait = Mono::NEVER;
    }

    /// Releases the request's bytes, which are no longer needed.
    pub(crate) fn release_message(&mut self, pool: &mut Pool) {
        self.inbound.release(pool);
    }

    /// Lends the message to a helper thread.
    pub(crate) fn lend_message(&mut self, pool: &mut Pool) -> Lent {
        self.inbound.lend(pool)
    }

    /// Takes the message back.
    pub(crate) fn put_back(&mut self, message: Lent, pool: &mut Pool) {
        self.inbound.put_back(pool, message);
    }

    /// Returns what happens to the connection after this answer. `close`: the answer or the process requires its end.
    #[inline]
    pub(crate) fn after_response(&self, meta: RequestMeta, close: bool) -> AfterResponse {
        let keep = meta.keep_alive && !close && !self.has(LAST) && self.oddity != Some(Oddity::Crowded);
        let unread = match self.phase {
            Phase::Head | Phase::Held => !meta.bodiless,
            Phase::Body => !self.inbound.body_progress().1,
            _ => false,
        };
        if !unread {
            return if keep { AfterResponse::KeepAlive } else { AfterResponse::Close };
        }
        let missing = meta.short.map(|length| {
            let (payload, _) = self.inbound.body_progress();
            let here = if matches!(self.phase, Phase::Head | Phase::Held) { self.inbound.backlog() } else { payload };
            (length.get() as usize).saturating_sub(here) as u32
        });
        match (keep, missing) {
            (true, Some(_)) => AfterResponse::Discard,
            (false, Some(0)) => AfterResponse::Close,
            (false, Some(missing)) => AfterResponse::Linger(Remainder::Body(missing)),
            (_, None) => AfterResponse::Linger(Remainder::Unknown(LINGER_BYTES_MAX)),
        }
    }

    /// Continues after an answer was queued. `stops`: the process does.
    pub(crate) fn answered(
        &mut self,
        after: AfterResponse,
        server: &Server,
        stops: bool,
        pool: &mut Pool,
        now: Mono,
    ) -> Option<Shut> {
        self.exchange = None;
        match after {
            AfterResponse::KeepAlive => self.await_head(self.idle_timeout(server, stops), pool, now),
            AfterResponse::Discard => {
                if self.inbound.begin_discard(pool).is_err() {
                    return self.close_when_written(pool);
                }
                self.phase = Phase::Discard;
                self.wait = now.after(server.body_timeout);
            }
            AfterResponse::Close => return self.close_when_written(pool),
            AfterResponse::Linger(remainder) => {
                self.inbound.clear(pool);
                self.phase = Phase::Linger(remainder);
                self.wait = now.after(LINGER);
            }
        }
        None
    }

    /// Makes the next answer the last: later input of the client is meaningless.
    pub(crate) fn end_after_answer(&mut self) {
        self.marks |= LAST;
    }

    /// Waits for the next message.
    #[inline]
    fn await_head(&mut self, idle: Duration, pool: &mut Pool, now: Mono) {
        // A message that has no body, or whose body was read, can no longer fail.
        let _ = self.inbound.begin_discard(pool);
        self.phase = Phase::Head;
        self.marks &= !READING;
        self.wait = now.after(idle);
    }

    /// Stops reading. Returns the end at once if no bytes are to be written.
    pub(crate) fn close_when_written(&mut self, pool: &mut Pool) -> Option<Shut> {
        self.inbound.clear(pool);
        self.phase = Phase::Closing;
        self.wait = Mono::NEVER;
        self.queue.is_empty().then_some(Shut::Clean)
    }

    /// Appends to the unsent bytes. If there were none, returns the deadline for the client to read.
    pub(crate) fn send(
        &mut self,
        server: &Server,
        pool: &mut Pool,
        now: Mono,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Option<Mono> {
        self.queue.edit(pool, write);
        self.watch(server, now)
    }

    /// Appends a large buffer to the unsent bytes, without a copy.
    pub(crate) fn send_bulk(&mut self, server: &Server, pool: &mut Pool, now: Mono, bulk: Buf) -> Option<Mono> {
        self.queue.follow(pool, bulk);
        self.watch(server, now)
    }

    #[inline]
    fn watch(&mut self, server: &Server, now: Mono) -> Option<Mono> {
        let begins = self.stall == Mono::NEVER && !self.queue.is_empty();
        if begins {
            self.stall = now.after(server.write_stall);
        }
        begins.then_some(self.stall)
    }

    /// Records that `count` bytes were written.
    pub(crate) fn wrote(
        &mut self,
        count: usize,
        server: &Server,
        pool: &mut Pool,
        now: Mono,
    ) -> Option<ClientEvent<'static>> {
        let was_full = self.is_full();
        self.queue.consume(pool, count);
        let emptied = self.queue.is_empty();
        self.stall = if emptied { Mono::NEVER } else { now.after(server.write_stall) };
        match self.phase {
            Phase::Closing if emptied => Some(ClientEvent::Done(Shut::Clean)),
            // A client that reads to the end should not have to wait for the close (RFC 9112 section 9.6).
            Phase::Linger(_) if emptied => Some(ClientEvent::Finished),
            _ if was_full && !self.is_full() => Some(ClientEvent::Drained),
            _ => None,
        }
    }

    /// Handles the end of the client's side. During a request it means that the client has left; an answer that is
    /// already complete is still delivered after a FIN.
    pub(crate) fn ended(&mut self, how: Ending, pool: &mut Pool) -> Option<ClientEvent<'static>> {
        if self.exchange.is_some() {
            return Some(ClientEvent::Lost);
        }
        if how == Ending::Fin && !self.queue.is_empty() {
            self.marks |= LAST;
            return self.close_when_written(pool).map(ClientEvent::Done);
        }
        Some(ClientEvent::Done(if how == Ending::Fin { Shut::Clean } else { Shut::Abort }))
    }

    /// Handles its own deadlines, if one has passed.
    pub(crate) fn expired(&mut self, idle: Duration, pool: &mut Pool, now: Mono) -> Option<ClientEvent<'static>> {
        if self.stall <= now {
            return Some(ClientEvent::Lost);
        }
        if self.wait > now {
            return None;
        }
        self.wait = Mono::NEVER;
        match self.phase {
            Phase::Head if self.has(READING) => Some(ClientEvent::SlowHead),
            Phase::Head if !self.queue.is_empty() => {
                // The client is still reading its last answer; `write_stall` limits that.
                self.wait = now.after(idle);
                None
            }
            Phase::Head => Some(ClientEvent::Done(Shut::Clean)),
            Phase::Body => Some(ClientEvent::SlowBody),
            Phase::Discard | Phase::Linger(_) => self.close_when_written(pool).map(ClientEvent::Done),
            Phase::Held | Phase::Busy | Phase::Closing => None,
        }
    }

    /// Shortens the wait for the next message when the process stops. True if that changes the deadline.
    pub(crate) fn hasten(&mut self, by: Mono) -> bool {
        let hastens = self.phase == Phase::Head && !self.has(READING) && by < self.wait;
        if hastens {
            self.wait = by;
        }
        hastens
    }

    /// True if bytes are currently read from this client. `room`: there is space for bytes that are not reserved.
    pub(crate) fn wants_read(&self, room: bool) -> bool {
        match self.phase {
            Phase::Head => room && !self.is_full() && !self.is_paused(),
            Phase::Held | Phase::Busy => room && self.inbound.backlog() < PIPELINE_BYTES_MAX,
            Phase::Closing => false,
            Phase::Body => (room || self.inbound.declared_rest() > 0) && !self.inbound.is_full(),
            Phase::Discard | Phase::Linger(_) => true,
        }
    }

    /// Number of next bytes that are accepted even without space: those of a body with a declared length, and dropped
    /// ones.
    pub(crate) fn takes_without_room(&self) -> u64 {
        match self.phase {
            Phase::Body | Phase::Discard => self.inbound.declared_rest(),
            Phase::Linger(_) | Phase::Closing => u64::MAX,
            Phase::Head | Phase::Held | Phase::Busy => 0,
        }
    }

    /// Bytes of storage in its buffers.
    pub(crate) fn storage(&self) -> usize {
        self.inbound.storage() + self.queue.storage()
    }

    /// Returns all storage.
    pub(crate) fn release(&mut self, pool: &mut Pool) {
        self.inbound.clear(pool);
        self.queue.release(pool);
    }
}
