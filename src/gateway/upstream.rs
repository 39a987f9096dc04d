//! One upstream connection: dialing, writing a request, reading the head of its answer and framing its body. What the
//! body means stands in `relay`, which attempt comes next in `route`.

use super::Gateway;
use super::exchange::{Exchange, Phase as ExchangePhase};
use super::fault::{Fault, FaultKind};
use super::relay::{Relay, Step};
use crate::base::buf::Buf;
use crate::base::limits::{ERROR_BODY_WAIT, HIGH_WATER, RELAY_SLICE};
use crate::base::seam::{Action, Conn, Shut, Side};
use crate::base::slots::Id;
use crate::base::time::{Mono, Now};
use crate::base::timers::Alarm;
use crate::wire::body::Reader;
use crate::wire::head::{self, ResponseHead};
use std::time::Duration;

/// Bytes of the head of a provider's answer.
const HEAD_MAX: usize = 32 * 1024;
/// Interim (1xx) answers that are skipped before the final one.
const INTERIM_MAX: u8 = 16;
/// Bytes of a body's end that are awaited after a stream's last event, so that the connection can be kept.
const TAIL_BYTES_MAX: usize = 4096;
/// How long that end is awaited.
const TAIL_WAIT: Duration = Duration::from_secs(1);

/// Where an upstream connection stands.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// TCP, and TLS where spoken, are coming up.
    Dialing,
    /// A request has been, or is being, written; an answer is awaited or read.
    Busy,
    /// The answer's last event has been relayed; the end of its body is still to come.
    Tail,
    /// Kept for the next request.
    Idle,
}

/// An upstream connection.
#[derive(Debug)]
pub(crate) struct Upstream {
    pub(crate) phase: Phase,
    pub(crate) provider: usize,
    /// Number of the configuration that `provider` is an index into.
    pub(crate) epoch: u32,
    pub(crate) exchange: Option<Id<Exchange>>,
    pub(crate) tx: Buf,
    pub(crate) rx: Buf,
    /// Requests this connection has carried.
    pub(crate) used: u32,
    /// The whole request lies in `tx` or has left.
    pub(crate) sent_all: bool,
    pub(crate) alarm: Alarm,
    pub(crate) wait: Mono,
    scanned: u32,
    interim: u8,
    tail: usize,
    /// The provider has ended it, while its exchange was waiting for work done elsewhere.
    ended: bool,
    /// Whether the connection may be used again after the present answer; `None` until that has begun.
    reusable: Option<bool>,
    reader: Reader,
}

impl Upstream {
    /// A connection about to be dialed for an exchange.
    pub(crate) fn dialing(provider: usize, epoch: u32, exchange: Id<Exchange>) -> Upstream {
        Upstream {
            phase: Phase::Dialing,
            provider,
            epoch,
            exchange: Some(exchange),
            tx: Buf::default(),
            rx: Buf::default(),
            used: 0,
            sent_all: false,
            alarm: Alarm::default(),
            wait: Mono::NEVER,
            scanned: 0,
            interim: 0,
            tail: 0,
            ended: false,
            reusable: None,
            reader: Reader::Done,
        }
    }

    /// Another request begins on this connection.
    pub(crate) fn begin(&mut self, exchange: Id<Exchange>) {
        self.phase = Phase::Busy;
        self.exchange = Some(exchange);
        self.used = self.used.saturating_add(1);
        self.sent_all = false;
        self.scanned = 0;
        self.interim = 0;
        self.tail = 0;
        self.reusable = None;
        self.reader = Reader::Done;
    }

    /// Part of an answer's body lies here until it can be relayed.
    pub(crate) fn holds_back(&self) -> bool {
        self.reusable.is_some() && !self.rx.is_empty()
    }

    fn may_be_kept(&self) -> bool {
        self.reusable == Some(true)
            && self.reader.is_done()
            && self.sent_all
            && self.tx.is_empty()
            && self.rx.is_empty()
    }
}

/// The name of an upstream connection as the world knows it.
pub(crate) fn conn(id: Id<Upstream>) -> Conn {
    Conn { side: Side::Upstream, slot: id.slot, generation: id.generation }
}

impl Gateway {
    /// Bytes came from a provider.
    pub(crate) fn upstream_bytes(&mut self, uid: Id<Upstream>, data: &[u8], now: Now) {
        let Some(upstream) = self.upstreams.get_mut(uid) else { return };
        match (upstream.phase, upstream.exchange) {
            (Phase::Busy, Some(xid)) => match upstream.reusable {
                None => self.head_bytes(xid, uid, data, now),
                Some(_) => self.body_bytes(xid, uid, data, now),
            },
            (Phase::Tail, _) => self.tail_bytes(uid, data, now),
            // Nothing was asked for: whatever this is, the connection cannot be trusted any more.
            _ => self.close_upstream(uid),
        }
    }

    fn head_bytes(&mut self, xid: Id<Exchange>, uid: Id<Upstream>, data: &[u8], now: Now) {
        let Some(upstream) = self.upstreams.get_mut(uid) else { return };
        if let Some(ex) = self.exchanges.get_mut(xid)
            && ex.times.first == Mono::NEVER
        {
            ex.times.first = now.mono;
        }
        upstream.rx.push(&mut self.pool, data);
        loop {
            let Some(upstream) = self.upstreams.get_mut(uid) else { return };
            match head::parse_response(upstream.rx.bytes(), &mut upstream.scanned, HEAD_MAX, false) {
                Ok(None) => return,
                Ok(Some(head)) if head.status < 200 && head.status != 101 && upstream.interim < INTERIM_MAX => {
                    upstream.interim += 1;
                    upstream.scanned = 0;
                    upstream.rx.consume(&mut self.pool, head.len as usize);
                }
                Ok(Some(head)) if head.status >= 200 => return self.head_complete(xid, uid, head, now),
                Ok(Some(_)) | Err(_) => return self.attempt_failed(xid, Fault::from(FaultKind::BadHead), now),
            }
        }
    }

    fn head_complete(&mut self, xid: Id<Exchange>, uid: Id<Upstream>, head: ResponseHead, now: Now) {
        let Some(upstream) = self.upstreams.get_mut(uid) else { return };
        upstream.reusable = Some(head.keep_alive);
        upstream.reader = Reader::new(head.framing);
        let mut rx = std::mem::take(&mut upstream.rx);
        if let Some(ex) = self.exchanges.get_mut(xid) {
            ex.phase = ExchangePhase::Relaying;
            ex.times.sent = ex.times.sent.min(now.mono);
        }
        match self.open_relay(xid, &head, rx.bytes(), now) {
            Ok(()) => {
                if self.is_error(xid) {
                    self.wait_upstream(uid, now.mono.after(ERROR_BODY_WAIT));
                }
                let body = rx.bytes().get(head.len as usize..).unwrap_or_default();
                self.body_bytes(xid, uid, body, now);
            }
            Err(fault) => self.attempt_failed(xid, fault, now),
        }
        rx.release(&mut self.pool);
    }

    fn body_bytes(&mut self, xid: Id<Exchange>, uid: Id<Upstream>, mut data: &[u8], now: Now) {
        loop {
            let Some(upstream) = self.upstreams.get_mut(uid) else { return };
            let Some(ex) = self.exchanges.get(xid) else { return };
            let full = self.clients.get(ex.client).is_some_and(|client| client.tx.len() > HIGH_WATER);
            // What is long leaves for elsewhere as it comes, so that it does not leave too often.
            let slices = matches!(&ex.relay, Relay::Stream(flow) if flow.held() + RELAY_SLICE <= self.work_min);
            if ex.working.is_some() || (full && slices && !data.is_empty()) {
                return upstream.rx.push(&mut self.pool, data);
            }
            if upstream.reader.is_done() {
                // Bytes after the end of the body: not ours, and the connection cannot be kept.
                if !data.is_empty() {
                    upstream.reusable = Some(false);
                }
                return self.body_ended(xid, uid, now);
            }
            // Events may grow on their way, so that not too many of them are relayed before the client is looked at.
            let slice = if slices { &data[..data.len().min(RELAY_SLICE)] } else { data };
            let piece = match upstream.reader.next(slice) {
                Ok(piece) => piece,
                Err(_) if self.is_error(xid) => return self.body_ended(xid, uid, now),
                Err(_) => return self.attempt_failed(xid, Fault::from(FaultKind::BadBody(BAD_CHUNKS)), now),
            };
            if !piece.data.is_empty() {
                match self.relay(xid, &data[piece.data.clone()], now) {
                    Step::More => {}
                    Step::Paused => return self.keep_rest(uid, &data[piece.consumed..]),
                    Step::Ended => return self.await_tail(uid, &data[piece.consumed..], now),
                    Step::Failed(fault) => return self.attempt_failed(xid, fault, now),
                }
            }
            data = &data[piece.consumed..];
            if data.is_empty() && !piece.done {
                return;
            }
        }
    }

    /// Keeps what has come behind a piece that is read elsewhere.
    fn keep_rest(&mut self, uid: Id<Upstream>, rest: &[u8]) {
        if let Some(upstream) = self.upstreams.get_mut(uid) {
            upstream.rx.push(&mut self.pool, rest);
        }
    }

    /// The answer is an error, known by its status: what becomes of its body changes nothing but its words.
    fn is_error(&self, xid: Id<Exchange>) -> bool {
        self.exchanges.get(xid).is_some_and(|ex| matches!(ex.relay, Relay::Error { .. }))
    }

    fn body_ended(&mut self, xid: Id<Exchange>, uid: Id<Upstream>, now: Now) {
        match self.relay_end(xid, now) {
            Step::Failed(fault) => {
                // An error that was read to its end leaves the connection as good as any other answer does.
                if let (FaultKind::Status(_), Some(ex)) = (&fault.kind, self.exchanges.get_mut(xid)) {
                    ex.upstream = None;
                    self.keep_upstream(uid, now);
                }
                self.attempt_failed(xid, fault, now);
            }
            Step::Paused => {}
            Step::More | Step::Ended => self.keep_upstream(uid, now),
        }
    }

    /// The answer is complete but its body's end has not been read yet: usually it lies in `rest` already.
    fn await_tail(&mut self, uid: Id<Upstream>, rest: &[u8], now: Now) {
        let Some(upstream) = self.upstreams.get_mut(uid) else { return };
        upstream.phase = Phase::Tail;
        upstream.exchange = None;
        let due = now.mono.after(TAIL_WAIT);
        self.wait_upstream(uid, due);
        self.tail_bytes(uid, rest, now);
    }

    fn tail_bytes(&mut self, uid: Id<Upstream>, mut data: &[u8], now: Now) {
        let Some(upstream) = self.upstreams.get_mut(uid) else { return };
        upstream.tail += data.len();
        while !upstream.reader.is_done() && upstream.tail <= TAIL_BYTES_MAX {
            match upstream.reader.next(data) {
                Ok(piece) if piece.consumed > 0 || piece.done => data = &data[piece.consumed..],
                Ok(_) => return,
                Err(_) => return self.close_upstream(uid),
            }
        }
        match data.is_empty() {
            true => self.keep_upstream(uid, now),
            false => self.close_upstream(uid),
        }
    }

    /// An answer has been read to its end: keep the connection if it may be kept.
    pub(crate) fn keep_upstream(&mut self, uid: Id<Upstream>, now: Now) {
        let Some(upstream) = self.upstreams.get_mut(uid) else { return };
        upstream.exchange = None;
        let provider = upstream.provider;
        let limits = self.config.providers.get(provider).map(|provider| &provider.limits);
        let fits = upstream.may_be_kept() && upstream.epoch == self.epoch && self.draining.is_none();
        let Some(limits) = limits.filter(|_| fits) else {
            return self.close_upstream(uid);
        };
        upstream.phase = Phase::Idle;
        let due = now.mono.after(limits.pool_idle_timeout);
        let oldest = self.idle.put(provider, uid, limits.pool_max_idle);
        self.wait_upstream(uid, due);
        if let Some(oldest) = oldest {
            self.close_upstream(oldest);
        }
    }

    /// The provider has ended the connection.
    pub(crate) fn upstream_closed(&mut self, uid: Id<Upstream>, now: Now) {
        let Some(upstream) = self.upstreams.get_mut(uid) else { return };
        let (phase, exchange, answered) = (upstream.phase, upstream.exchange, upstream.reusable.is_some());
        let (Phase::Busy, Some(xid)) = (phase, exchange) else { return self.close_upstream(uid) };
        if upstream.holds_back() || self.exchanges.get(xid).is_some_and(|ex| ex.working.is_some()) {
            upstream.ended = true;
            return;
        }
        upstream.reusable = upstream.reusable.map(|_| false);
        // A body that runs to the end of its connection has no proof of its own of being whole, whatever kind of end
        // it is (servers forget close_notify). Its content has: a JSON object, a stream's finish reason.
        let complete = upstream.reader.end().is_ok();
        let silent = upstream.rx.is_empty() && upstream.interim == 0;
        let kind = match (answered, complete || self.is_error(xid)) {
            (true, true) => return self.body_ended(xid, uid, now),
            (true, false) => FaultKind::Incomplete,
            (false, _) if silent => FaultKind::Closed,
            (false, _) => FaultKind::BadHead,
        };
        self.attempt_failed(xid, Fault::from(kind), now);
    }

    /// What an answer has waited for is there, work done elsewhere or a client that reads: goes on with what has come
    /// meanwhile.
    pub(crate) fn resume_upstream(&mut self, uid: Id<Upstream>, now: Now) {
        let Some(upstream) = self.upstreams.get_mut(uid) else { return };
        let mut rx = std::mem::take(&mut upstream.rx);
        if let (Phase::Busy, Some(xid)) = (upstream.phase, upstream.exchange) {
            self.body_bytes(xid, uid, rx.bytes(), now);
        }
        rx.release(&mut self.pool);
        if self.upstreams.get(uid).is_some_and(|upstream| upstream.ended) {
            self.upstream_closed(uid, now);
        }
        self.dirty.push(conn(uid));
    }

    /// The stream is complete while bytes of its body's end may lie here already.
    pub(crate) fn await_tail_here(&mut self, uid: Id<Upstream>, now: Now) {
        let Some(upstream) = self.upstreams.get_mut(uid) else { return };
        let mut rx = std::mem::take(&mut upstream.rx);
        self.await_tail(uid, rx.bytes(), now);
        rx.release(&mut self.pool);
    }

    /// Closes an upstream connection, whatever it was doing.
    pub(crate) fn close_upstream(&mut self, uid: Id<Upstream>) {
        let idle = self.upstreams.get(uid).is_some_and(|upstream| upstream.phase == Phase::Idle);
        let shut = if idle { Shut::Clean } else { Shut::Abort };
        if self.upstreams.get(uid).is_some() {
            self.forget_upstream(uid);
            self.actions.push(Action::Close { conn: conn(uid), shut });
        }
    }

    /// Frees the slot of a connection that the world has given up already; its exchange, if it has one, is answered.
    pub(crate) fn forget_upstream(&mut self, uid: Id<Upstream>) -> Option<Id<Exchange>> {
        let mut upstream = self.upstreams.remove(uid)?;
        if upstream.phase == Phase::Idle {
            self.idle.forget(upstream.provider, uid);
        }
        upstream.tx.release(&mut self.pool);
        upstream.rx.release(&mut self.pool);
        upstream.exchange
    }

    /// Sets the one deadline of an upstream connection.
    pub(crate) fn wait_upstream(&mut self, uid: Id<Upstream>, due: Mono) {
        if let Some(upstream) = self.upstreams.get_mut(uid) {
            upstream.wait = due;
            self.timers.arm(&mut upstream.alarm, conn(uid), due);
        }
    }

    /// The deadline of an upstream connection has come.
    pub(crate) fn upstream_expired(&mut self, uid: Id<Upstream>, now: Now) {
        let Some(upstream) = self.upstreams.get(uid) else { return };
        let (Some(xid), Phase::Dialing | Phase::Busy) = (upstream.exchange, upstream.phase) else {
            return self.close_upstream(uid);
        };
        let phase = upstream.phase;
        if phase == Phase::Busy && !self.upstream_wants_read(uid) {
            // The provider is not late: its client is. That one's own deadlines go on.
            return self.wait_for_events(uid, now);
        }
        let kind = match phase {
            Phase::Dialing => FaultKind::ConnectTimeout,
            _ if self.is_error(xid) => return self.body_ended(xid, uid, now),
            _ => match self.relay_waited(xid, now) {
                None => return self.close_upstream(uid),
                Some(kind) => kind,
            },
        };
        self.attempt_failed(xid, Fault::from(kind), now);
    }

    /// A stream's provider has all its time again, from now on: its client has not read until now.
    pub(crate) fn wait_for_events(&mut self, uid: Id<Upstream>, now: Now) {
        let exchange = self.upstreams.get(uid).and_then(|upstream| upstream.exchange);
        let due = exchange.and_then(|xid| self.exchanges.get(xid)).and_then(|ex| ex.events_due(now));
        if let Some(due) = due {
            self.wait_upstream(uid, due);
        }
    }

    /// Whether the gateway takes bytes from this upstream: not while its client is slow to read.
    pub(crate) fn upstream_wants_read(&self, uid: Id<Upstream>) -> bool {
        let Some(upstream) = self.upstreams.get(uid) else { return false };
        let Some(ex) = upstream.exchange.and_then(|xid| self.exchanges.get(xid)) else { return true };
        let full = self.clients.get(ex.client).is_some_and(|client| client.tx.len() > HIGH_WATER);
        !upstream.holds_back() && !full && ex.working.is_none()
    }
}

const BAD_CHUNKS: &str = "the provider's answer was badly framed";
