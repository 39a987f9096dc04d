//! One client connection: its reading side (head, body, what is dropped), its unsent bytes, its deadlines. Decides when
//! a message begins and ends; it is told things by `drive` and says what follows. Must never know what a request means.
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

use super::response::RequestMeta;
use super::send_queue::SendQueue;
use crate::base::buf::{Buf, Pool};
use crate::base::limits::{DRAIN_IDLE_GRACE, HIGH_WATER, LINGER, LINGER_BYTES_MAX, PIPELINE_BYTES_MAX};
use crate::base::seam::{Ending, Shut};
use crate::base::time::Mono;
use crate::gateway::budget::Promise;
use crate::gateway::ids::ExchangeId;
use crate::policy::config::Server;
use crate::policy::keys::KeyIx;
use crate::wire::head::{Expect, HeadError, HeadMoulds, RequestHead};
use crate::wire::inbound::{BodyRefusal, Inbound, Lent, PushError};
use std::time::Duration;

/// What bytes, a deadline or the end of an answer have led to.
#[derive(Debug)]
pub(crate) enum Event {
    /// The head of the next request is complete.
    Head(RequestHead),
    /// What came is no head.
    BadHead(HeadError),
    /// A head has been begun and does not come.
    SlowHead,
    /// More of a body has come.
    Body {
        /// The last of it.
        complete: bool,
    },
    /// The body cannot be taken.
    BadBody(BodyRefusal),
    /// A body does not come.
    SlowBody,
    /// The connection is of no further use, whatever hangs on it.
    Lost,
    /// Nothing is left to be written or read.
    Done(Shut),
    /// Everything has been written, and the rest of what comes is dropped: the client may be told that nothing follows.
    Finished,
    /// So much has been written that its source may go on.
    Drained,
}

/// Where the reading side of a client connection stands.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Phase {
    /// Between messages, or inside a head.
    Head,
    /// A head waits until its key has been looked up; nothing is read meanwhile.
    Held,
    /// A head has passed; its body is arriving.
    Body,
    /// A whole request is being answered.
    Busy,
    /// An answer has been given without its request's body; that body is read and dropped.
    Discard,
    /// As `Discard`, but the connection ends with it: read and drop for a while, so that the answer is not reset.
    Linger(Remainder),
    /// Nothing more is read; the connection closes when everything is written.
    Closing,
}

/// Why a connection is let in although it is not served.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Oddity {
    /// It lies beyond a bound on connections.
    Crowded,
    /// It speaks plain HTTP where TLS is spoken.
    Strayed,
}

/// What is still read of a connection that ends.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Remainder {
    /// The rest of a body, so many bytes; with the last of them it closes.
    Body(u32),
    /// Bytes of any kind; beyond so many it is cut.
    Unknown(u32),
}

impl Remainder {
    fn take(&mut self, bytes: usize) {
        let (Remainder::Body(left) | Remainder::Unknown(left)) = self;
        *left = left.saturating_sub(u32::try_from(bytes).unwrap_or(u32::MAX));
    }
}

/// What becomes of a connection after an answer.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum AfterResponse {
    /// Another message may come.
    KeepAlive,
    /// Another message may come after the rest of this one's body has been dropped.
    Discard,
    /// It closes.
    Close,
    /// It closes after what still comes has been dropped for a while.
    Linger(Remainder),
}

impl AfterResponse {
    /// True if the answer may say that the connection lives on.
    pub(crate) fn keeps_alive(self) -> bool {
        matches!(self, AfterResponse::KeepAlive | AfterResponse::Discard)
    }
}

/// In [`Connection::marks`]: part of a head has come.
const READING: u8 = 1;
/// In [`Connection::marks`]: the next answer is the last.
const LAST: u8 = 2;

/// A client connection. Idle, it holds no storage.
#[derive(Debug)]
pub(crate) struct Connection {
    inbound: Inbound,
    queue: SendQueue,
    phase: Phase,
    /// The request in hand.
    pub(crate) exchange: Option<ExchangeId>,
    /// When the reading side is late.
    wait: Mono,
    /// When the client has read nothing for too long.
    stall: Mono,
    /// [`READING`] and [`LAST`].
    marks: u8,
    /// It came by the admin listener.
    pub(crate) admin: bool,
    /// It has shown a credential: a key, or a token of the admin listener.
    pub(crate) known: bool,
    /// Why it is there only to be told something.
    pub(crate) oddity: Option<Oddity>,
    /// The key whose answers it gets.
    key: Option<KeyIx>,
    /// What that key is charged for those that are not read.
    pub(crate) unread: Promise,
}

/// Bytes of storage for unsent answers above which they are charged to their key.
const UNREAD_MIN: usize = 16 * 1024;

impl Connection {
    /// A connection that was just accepted; its first head is due at `by`.
    pub(crate) fn new(admin: bool, crowded: bool, by: Mono) -> Connection {
        Connection {
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

    /// How long it may be idle between two messages: without a credential no longer than a new connection, and not
    /// long any more if the process stops.
    pub(crate) fn idle_timeout(&self, server: &Server, stops: bool) -> Duration {
        match self.known {
            _ if stops => DRAIN_IDLE_GRACE,
            true => server.keepalive_timeout,
            false => server.keepalive_timeout.min(server.header_timeout),
        }
    }

    /// Its earliest deadline, without those of its exchange.
    pub(crate) fn due(&self) -> Mono {
        self.wait.min(self.stall)
    }

    /// Between two messages, with nothing received and nothing to be sent.
    pub(crate) fn is_idle(&self) -> bool {
        self.phase == Phase::Head && !self.has(READING) && self.queue.is_empty()
    }

    /// A request may still be on its way to being admitted: its head or body is arriving, or may.
    pub(crate) fn is_arriving(&self) -> bool {
        matches!(self.phase, Phase::Head | Phase::Held | Phase::Body | Phase::Discard)
    }

    /// Its unsent bytes are so many that their source has to wait.
    pub(crate) fn is_full(&self) -> bool {
        self.queue.len() > HIGH_WATER
    }

    /// The key that is to be charged for what waits here, and how many bytes that is: unsent answers, and requests that
    /// were sent ahead. `None` where that has been done.
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

    /// Whose requests come over it, once one has shown its key.
    pub(crate) fn key(&self) -> Option<KeyIx> {
        self.key
    }

    /// Everything has been written.
    pub(crate) fn is_drained(&self) -> bool {
        self.queue.is_empty()
    }

    /// Bytes to be written next.
    pub(crate) fn unsent(&self) -> &[u8] {
        self.queue.bytes()
    }

    /// Head and payload of the message in hand.
    #[inline]
    pub(crate) fn message(&self) -> (&[u8], &[u8]) {
        self.inbound.message()
    }

    /// Bytes of storage behind the head of the message in hand.
    pub(crate) fn payload_storage(&self) -> usize {
        self.inbound.payload_storage()
    }

    /// Takes bytes as they came; [`Connection::next`] says what they have led to.
    pub(crate) fn push(&mut self, data: &[u8], pool: &mut Pool) -> Option<Event> {
        match &mut self.phase {
            Phase::Closing => None,
            Phase::Linger(remainder) => {
                remainder.take(data.len());
                match remainder {
                    Remainder::Body(0) => self.close_when_written(pool).map(Event::Done),
                    Remainder::Unknown(0) => Some(Event::Done(Shut::Abort)),
                    _ => None,
                }
            }
            _ => match self.inbound.push(pool, data) {
                Ok(()) => None,
                Err(PushError::Body(refusal)) => Some(Event::BadBody(refusal)),
                Err(PushError::Overflow) => Some(Event::Lost),
            },
        }
    }

    /// What is to be done next with what has come. To be called until it says nothing, but after a body that is not
    /// complete: nothing more can be said before more has come.
    pub(crate) fn next(
        &mut self,
        server: &Server,
        moulds: &mut HeadMoulds,
        pool: &mut Pool,
        now: Mono,
    ) -> Option<Event> {
        if self.phase == Phase::Discard {
            self.wait = now.after(server.body_timeout);
            if !self.inbound.discarded() {
                return None;
            }
            self.await_head(self.idle_timeout(server, false), pool, now);
        }
        match self.phase {
            Phase::Head if self.is_full() => None,
            Phase::Head => match self.inbound.head_like(pool, server.max_header, Some(moulds)) {
                Ok(Some(head)) => {
                    self.wait = Mono::NEVER;
                    Some(Event::Head(head))
                }
                Ok(None) => {
                    if !self.has(READING) && self.inbound.has_pending() {
                        self.marks |= READING;
                        self.wait = now.after(server.header_timeout);
                    }
                    None
                }
                Err(error) => Some(Event::BadHead(error)),
            },
            Phase::Body => {
                let (_, complete) = self.inbound.body_progress();
                self.wait = now.after(server.body_timeout);
                Some(Event::Body { complete })
            }
            Phase::Held | Phase::Busy | Phase::Discard | Phase::Linger(_) | Phase::Closing => None,
        }
    }

    /// The head is there, and `exchange` waits for what the ledger says of its key.
    pub(crate) fn hold(&mut self, exchange: ExchangeId) {
        self.exchange = Some(exchange);
        self.phase = Phase::Held;
        self.wait = Mono::NEVER;
    }

    /// The head has passed, and `exchange` waits for the body; none does on the admin listener.
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

    /// True if the client waits to be told that it may send its body.
    pub(crate) fn awaits_continue(&self, head: &RequestHead) -> bool {
        head.expect == Expect::Continue && self.inbound.body_progress() == (0, false)
    }

    /// The whole request is there: `exchange` answers it, and nothing is read meanwhile.
    pub(crate) fn begin_answer(&mut self, exchange: Option<ExchangeId>) {
        self.exchange = exchange;
        self.phase = Phase::Busy;
        self.wait = Mono::NEVER;
    }

    /// The request's bytes are not needed any more.
    pub(crate) fn release_message(&mut self, pool: &mut Pool) {
        self.inbound.release(pool);
    }

    /// Whoever answers it wants to be asked again at that moment.
    pub(crate) fn wake_at(&mut self, at: Mono) {
        self.wait = at;
    }

    /// Hands the message out, to be worked on by a helper thread.
    pub(crate) fn lend_message(&mut self, pool: &mut Pool) -> Lent {
        self.inbound.lend(pool)
    }

    /// Takes the message back.
    pub(crate) fn put_back(&mut self, message: Lent, pool: &mut Pool) {
        self.inbound.put_back(pool, message);
    }

    /// What becomes of the connection once the message with this head has been answered. `close`: the answer or the
    /// process asks for its end.
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

    /// The answer lies in the queue: goes on to what follows it. `idle`: how long the next message may be awaited.
    pub(crate) fn answered(
        &mut self,
        after: AfterResponse,
        server: &Server,
        idle: Duration,
        pool: &mut Pool,
        now: Mono,
    ) -> Option<Shut> {
        self.exchange = None;
        match after {
            AfterResponse::KeepAlive => self.await_head(idle, pool, now),
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

    /// The next answer is to be the last: what the client says has no sense any more.
    pub(crate) fn end_after_answer(&mut self) {
        self.marks |= LAST;
    }

    /// The connection waits for its next message.
    #[inline]
    fn await_head(&mut self, idle: Duration, pool: &mut Pool, now: Mono) {
        // A message without a body, or with all of it read, cannot be broken any more.
        let _ = self.inbound.begin_discard(pool);
        self.phase = Phase::Head;
        self.marks &= !READING;
        self.wait = now.after(idle);
    }

    /// Reads nothing more; at once at its end if nothing is to be written.
    pub(crate) fn close_when_written(&mut self, pool: &mut Pool) -> Option<Shut> {
        self.inbound.clear(pool);
        self.phase = Phase::Closing;
        self.wait = Mono::NEVER;
        self.queue.is_empty().then_some(Shut::Clean)
    }

    /// Appends to the unsent bytes. If they had been none: when it is noticed that it reads nothing.
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

    /// The world has written `count` bytes.
    pub(crate) fn wrote(&mut self, count: usize, server: &Server, pool: &mut Pool, now: Mono) -> Option<Event> {
        let was_full = self.is_full();
        self.queue.consume(pool, count);
        let emptied = self.queue.is_empty();
        self.stall = if emptied { Mono::NEVER } else { now.after(server.write_stall) };
        match self.phase {
            Phase::Closing if emptied => Some(Event::Done(Shut::Clean)),
            // A client that reads to the end need not wait for the close (RFC 9112 section 9.6).
            Phase::Linger(_) if emptied => Some(Event::Finished),
            _ if was_full && !self.is_full() => Some(Event::Drained),
            _ => None,
        }
    }

    /// The client's side of the connection has ended. With a request in hand that means that it has left (contract
    /// section 4); an answer that is already complete is still delivered after a FIN.
    pub(crate) fn ended(&mut self, how: Ending, pool: &mut Pool) -> Option<Event> {
        if self.exchange.is_some() {
            return Some(Event::Lost);
        }
        if how == Ending::Fin && !self.queue.is_empty() {
            self.marks |= LAST;
            return self.close_when_written(pool).map(Event::Done);
        }
        Some(Event::Done(if how == Ending::Fin { Shut::Clean } else { Shut::Abort }))
    }

    /// One of its own deadlines may have come.
    pub(crate) fn expired(&mut self, idle: Duration, pool: &mut Pool, now: Mono) -> Option<Event> {
        if self.stall <= now {
            return Some(Event::Lost);
        }
        if self.wait > now {
            return None;
        }
        self.wait = Mono::NEVER;
        match self.phase {
            Phase::Head if self.has(READING) => Some(Event::SlowHead),
            Phase::Head if !self.queue.is_empty() => {
                // It is still reading its last answer; `write_stall` watches over that.
                self.wait = now.after(idle);
                None
            }
            Phase::Head => Some(Event::Done(Shut::Clean)),
            Phase::Body => Some(Event::SlowBody),
            Phase::Discard | Phase::Linger(_) => self.close_when_written(pool).map(Event::Done),
            Phase::Held | Phase::Busy | Phase::Closing => None,
        }
    }

    /// The process stops: a connection that waits for its next message does not do so for long. True if that is news.
    pub(crate) fn hasten(&mut self, by: Mono) -> bool {
        let hastens = self.phase == Phase::Head && !self.has(READING) && by < self.wait;
        if hastens {
            self.wait = by;
        }
        hastens
    }

    /// True if bytes are taken from this client at the moment. `room`: there is some for what nobody was promised.
    pub(crate) fn wants_read(&self, room: bool) -> bool {
        match self.phase {
            Phase::Head => room && !self.is_full(),
            Phase::Held | Phase::Busy => room && self.inbound.backlog() < PIPELINE_BYTES_MAX,
            Phase::Closing => false,
            Phase::Body => room || self.inbound.declared_rest() > 0,
            Phase::Discard | Phase::Linger(_) => true,
        }
    }

    /// How many of the next bytes have their room although nothing is free: those of a body whose length was declared,
    /// and what is dropped.
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

    /// Gives all storage back.
    pub(crate) fn release(&mut self, pool: &mut Pool) {
        self.inbound.clear(pool);
        self.queue.release(pool);
    }
}
