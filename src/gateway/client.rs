//! One client connection: its reading side (head, body, what is dropped), its unsent bytes, its deadlines. Decides
//! when a message begins and ends; what is done about it stands in `exchange`.

use super::Gateway;
use super::doors::Host;
use super::exchange::Exchange;
use super::outbox::Outbox;
use super::upstream::Upstream;
use crate::base::buf::Buf;
use crate::base::limits::{DRAIN_BODY_MAX, HIGH_WATER, LINGER, LINGER_BYTES_MAX, PIPELINE_BYTES_MAX};
use crate::base::seam::{Action, Conn, Ending, Shut, Side};
use crate::base::slots::{Id, Slots};
use crate::base::time::{Mono, Now};
use crate::base::timers::Alarm;
use crate::wire::head::{Expect, Field, Framing, Method, RequestHead};
use crate::wire::inbound::{Inbound, PushError};
use std::num::NonZeroU32;

/// Where the reading side of a client connection stands.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// Between messages, or inside a head.
    Head,
    /// A head has passed; its body is arriving.
    Body,
    /// A whole request is being answered.
    Busy,
    /// An answer has been given without its request's body; that body is read and dropped.
    Discard,
    /// The same, but the connection ends with it: read and drop for a while, so that the answer is not reset.
    Linger(Rest),
    /// Nothing more is read; the connection closes when everything is written.
    Closing,
}

/// What is still read of a connection that ends.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Rest {
    /// The rest of a body, so many bytes; with the last of them it closes.
    Body(u32),
    /// Who knows what; beyond so many bytes it is cut.
    Unknown(u32),
}

impl Rest {
    fn take(&mut self, bytes: usize) {
        let (Rest::Body(left) | Rest::Unknown(left)) = self;
        *left = left.saturating_sub(u32::try_from(bytes).unwrap_or(u32::MAX));
    }
}

/// What becomes of a connection after an answer.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// Another message may come.
    KeepAlive,
    /// Another message may come after the rest of this one's body has been dropped.
    Discard,
    /// It closes.
    Close,
    /// It closes after what still comes has been dropped for a while.
    Linger(Rest),
}

impl Next {
    /// Whether the answer may say that the connection lives on.
    pub(crate) fn keeps_alive(self) -> bool {
        matches!(self, Next::KeepAlive | Next::Discard)
    }
}

/// What a head says that is still asked for when its answer is given; its names and values lie in the draft until then.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Brief {
    pub(crate) method: Method,
    pub(crate) http11: bool,
    pub(crate) keep_alive: bool,
    /// No byte of a body follows.
    pub(crate) bodiless: bool,
    /// Bytes of a body so short that, unwanted, it costs less to read and drop it than another connection.
    pub(crate) short: Option<NonZeroU32>,
    /// The client speaks as Anthropic's do.
    pub(crate) anthropic: bool,
}

impl Brief {
    /// Of a request's head.
    pub(crate) fn of(head: &RequestHead) -> Brief {
        let short = match head.framing {
            Framing::Length(length) if length <= DRAIN_BODY_MAX && head.expect == Expect::None => {
                NonZeroU32::new(length as u32)
            }
            _ => None,
        };
        Brief {
            method: head.method,
            http11: head.http11,
            keep_alive: head.keep_alive,
            bodiless: matches!(head.framing, Framing::None | Framing::Length(0)),
            short,
            anthropic: !head.field(Field::AnthropicVersion).is_empty(),
        }
    }
}

/// A client connection. Idle, it holds no storage.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) inbound: Inbound,
    pub(crate) tx: Outbox,
    pub(crate) phase: Phase,
    pub(crate) exchange: Option<Id<Exchange>>,
    pub(crate) alarm: Alarm,
    /// Deadline of the reading side: head, body, keep-alive, linger.
    pub(crate) wait: Mono,
    /// Deadline of the writing side: the client has read nothing since.
    pub(crate) stall: Mono,
    /// Part of a head has arrived.
    pub(crate) reading: bool,
    /// Arrived on the admin listener.
    pub(crate) admin: bool,
    /// Where it comes from.
    pub(crate) host: Host,
    /// Lies beyond `max_connections`: told 503 and closed.
    pub(crate) crowded: bool,
    /// No request of this connection is to follow.
    pub(crate) last: bool,
}

impl Client {
    pub(crate) fn new(host: Host, admin: bool, crowded: bool) -> Client {
        Client {
            inbound: Inbound::default(),
            tx: Outbox::default(),
            phase: Phase::Head,
            exchange: None,
            alarm: Alarm::default(),
            wait: Mono::NEVER,
            stall: Mono::NEVER,
            reading: false,
            admin,
            host,
            crowded,
            last: false,
        }
    }
}

impl Client {
    /// Its earliest deadline, those of its exchange included.
    pub(crate) fn due(&self, exchanges: &Slots<Exchange>) -> Mono {
        let due = self.wait.min(self.stall);
        match self.exchange.and_then(|exchange| exchanges.get(exchange)) {
            Some(exchange) => due.min(exchange.deadline).min(exchange.beat).min(exchange.naming),
            None => due,
        }
    }

    /// Between two messages, with nothing received and nothing to be sent.
    pub(crate) fn is_idle(&self) -> bool {
        self.phase == Phase::Head && !self.reading && self.tx.is_empty()
    }
}

/// The name of a client as the world knows it.
pub(crate) fn conn(id: Id<Client>) -> Conn {
    Conn { side: Side::Client, slot: id.slot, generation: id.generation }
}

impl Gateway {
    /// Bytes came from a client.
    pub(crate) fn client_bytes(&mut self, id: Id<Client>, data: &[u8], now: Now) {
        let Some(client) = self.clients.get_mut(id) else { return };
        match &mut client.phase {
            Phase::Closing => {}
            Phase::Linger(rest) => {
                rest.take(data.len());
                match rest {
                    Rest::Body(0) => self.close_when_written(id),
                    Rest::Unknown(0) => self.close_client(id, Shut::Abort),
                    _ => {}
                }
            }
            _ => match client.inbound.push(&mut self.pool, data) {
                Ok(()) => self.advance(id, now),
                Err(PushError::Body(refusal)) => self.refuse_body(id, refusal, now),
                Err(PushError::Overflow) => self.drop_client(id, now),
            },
        }
    }

    /// Takes as many messages from the connection as can be begun now. Each round consumes a message or stops.
    pub(crate) fn advance(&mut self, id: Id<Client>, now: Now) {
        loop {
            let Some(client) = self.clients.get_mut(id) else { return };
            match client.phase {
                Phase::Head => {
                    if !self.next_head(id, now) {
                        return;
                    }
                }
                Phase::Body => {
                    self.body_arrived(id, now);
                    if self.clients.get(id).is_none_or(|client| client.phase == Phase::Body) {
                        return;
                    }
                }
                Phase::Discard => {
                    client.wait = now.mono.after(self.config.server.body_timeout);
                    if !client.inbound.discarded() {
                        self.arm_client(id);
                        return;
                    }
                    self.await_head(id, now);
                }
                Phase::Busy | Phase::Linger(_) | Phase::Closing => return,
            }
        }
    }

    /// Begins the next message if its head is complete; false when there is nothing to do.
    fn next_head(&mut self, id: Id<Client>, now: Now) -> bool {
        let Some(client) = self.clients.get_mut(id) else { return false };
        if client.tx.len() > HIGH_WATER {
            return false;
        }
        match client.inbound.head(&mut self.pool, self.config.server.max_header) {
            Ok(Some(head)) => {
                self.begin(id, head, now);
                true
            }
            Ok(None) => {
                if !client.reading && client.inbound.has_pending() {
                    client.reading = true;
                    client.wait = now.mono.after(self.config.server.header_timeout);
                    self.arm_client(id);
                }
                false
            }
            Err(error) => {
                self.refuse_syntax(id, error, now);
                false
            }
        }
    }

    /// The connection waits for its next message.
    fn await_head(&mut self, id: Id<Client>, now: Now) {
        let Some(client) = self.clients.get_mut(id) else { return };
        // A message without a body, or with all of it read, cannot be broken any more.
        let _ = client.inbound.begin_discard(&mut self.pool);
        client.phase = Phase::Head;
        client.reading = false;
        client.wait = now.mono.after(self.config.server.keepalive_timeout);
        self.arm_client(id);
    }

    /// What becomes of the connection once the message with `head` has been answered.
    pub(crate) fn next_after(&self, id: Id<Client>, head: Brief, close: bool) -> Next {
        let Some(client) = self.clients.get(id) else { return Next::Close };
        let keep = head.keep_alive && !close && !client.last && !client.crowded && self.draining.is_none();
        let unread = match client.phase {
            Phase::Head => !head.bodiless,
            Phase::Body => !client.inbound.body_progress().1,
            _ => false,
        };
        if !unread {
            return if keep { Next::KeepAlive } else { Next::Close };
        }
        let missing = head.short.map(|length| {
            let (payload, _) = client.inbound.body_progress();
            let here = if client.phase == Phase::Head { client.inbound.backlog() } else { payload };
            (length.get() as usize).saturating_sub(here) as u32
        });
        match (keep, missing) {
            (true, Some(_)) => Next::Discard,
            (false, Some(0)) => Next::Close,
            (false, Some(missing)) => Next::Linger(Rest::Body(missing)),
            (_, None) => Next::Linger(Rest::Unknown(LINGER_BYTES_MAX)),
        }
    }

    /// Moves a client on after its answer has been written to `tx`.
    pub(crate) fn move_on(&mut self, id: Id<Client>, next: Next, now: Now) {
        let Some(client) = self.clients.get_mut(id) else { return };
        client.exchange = None;
        match next {
            Next::KeepAlive => self.await_head(id, now),
            Next::Discard => {
                if client.inbound.begin_discard(&mut self.pool).is_err() {
                    return self.close_when_written(id);
                }
                client.phase = Phase::Discard;
                client.wait = now.mono.after(self.config.server.body_timeout);
                self.arm_client(id);
            }
            Next::Close => self.close_when_written(id),
            Next::Linger(rest) => {
                client.inbound.clear(&mut self.pool);
                client.phase = Phase::Linger(rest);
                client.wait = now.mono.after(LINGER);
                self.arm_client(id);
            }
        }
        self.dirty.push(conn(id));
    }

    fn close_when_written(&mut self, id: Id<Client>) {
        let Some(client) = self.clients.get_mut(id) else { return };
        client.inbound.clear(&mut self.pool);
        client.phase = Phase::Closing;
        client.wait = Mono::NEVER;
        if client.tx.is_empty() {
            self.close_client(id, Shut::Clean);
        } else {
            self.arm_client(id);
        }
    }

    /// Appends to a client's unsent bytes.
    pub(crate) fn push_client(&mut self, id: Id<Client>, now: Now, write: impl FnOnce(&mut Vec<u8>)) {
        let Some(client) = self.clients.get_mut(id) else { return };
        client.tx.edit(&mut self.pool, write);
        self.pushed(id, now);
    }

    /// Appends a large buffer to a client's unsent bytes, without a copy.
    pub(crate) fn push_bulk(&mut self, id: Id<Client>, mut bulk: Buf, now: Now) {
        match self.clients.get_mut(id) {
            Some(client) => client.tx.follow(&mut self.pool, bulk),
            None => bulk.release(&mut self.pool),
        }
        self.pushed(id, now);
    }

    fn pushed(&mut self, id: Id<Client>, now: Now) {
        let Some(client) = self.clients.get_mut(id) else { return };
        if client.stall == Mono::NEVER && !client.tx.is_empty() {
            client.stall = now.mono.after(self.config.server.write_stall);
            self.arm_client(id);
        }
        self.dirty.push(conn(id));
    }

    /// The world has written `count` bytes to a client.
    pub(crate) fn client_wrote(&mut self, id: Id<Client>, count: usize, now: Now) {
        let Some(client) = self.clients.get_mut(id) else { return };
        let before = client.tx.len();
        client.tx.consume(&mut self.pool, count);
        client.stall = match client.tx.is_empty() {
            true => Mono::NEVER,
            false => now.mono.after(self.config.server.write_stall),
        };
        let emptied_below = before > HIGH_WATER && client.tx.len() <= HIGH_WATER;
        let emptied = client.tx.is_empty();
        if client.phase == Phase::Closing && emptied {
            self.close_client(id, Shut::Clean);
        } else if matches!(client.phase, Phase::Linger(_)) && emptied {
            // Whoever reads to the end need not wait for the close (RFC 9112 section 9.6).
            self.actions.push(Action::Finish(conn(id)));
        } else if emptied_below {
            self.resume_source(id, now);
            self.advance(id, now);
        }
    }

    /// A client reads again: its upstream may be read again.
    fn resume_source(&mut self, id: Id<Client>, now: Now) {
        let exchange = self.clients.get(id).and_then(|client| client.exchange);
        let upstream = exchange.and_then(|ex| self.exchanges.get(ex)).and_then(|ex| ex.upstream);
        if let Some(upstream) = upstream {
            self.wait_for_events(upstream, now);
            match self.upstreams.get(upstream).is_some_and(Upstream::holds_back) {
                true => self.resume_upstream(upstream, now),
                false => self.dirty.push(super::upstream::conn(upstream)),
            }
        }
    }

    /// The client's side of the connection has ended. With a request in flight that means it has left (contract
    /// section 4); an answer that is already complete is still delivered after a FIN.
    pub(crate) fn client_closed(&mut self, id: Id<Client>, how: Ending, now: Now) {
        let Some(client) = self.clients.get_mut(id) else { return };
        if client.exchange.is_some() {
            self.drop_client(id, now);
        } else if how == Ending::Fin && !client.tx.is_empty() {
            client.last = true;
            self.close_when_written(id);
        } else {
            let shut = if how == Ending::Fin { Shut::Clean } else { Shut::Abort };
            self.close_client(id, shut);
        }
    }

    /// Ends a connection that is of no further use, and the exchange that hangs on it.
    pub(crate) fn drop_client(&mut self, id: Id<Client>, now: Now) {
        if let Some(exchange) = self.clients.get(id).and_then(|client| client.exchange) {
            self.abandon(exchange, now);
        }
        self.close_client(id, Shut::Abort);
    }

    /// Forgets a client. Its exchange, if any, has been ended before.
    pub(crate) fn close_client(&mut self, id: Id<Client>, shut: Shut) {
        let Some(mut client) = self.clients.remove(id) else { return };
        debug_assert!(client.exchange.is_none_or(|ex| self.exchanges.get(ex).is_none()));
        self.doors.leave(client.host, client.admin);
        client.inbound.clear(&mut self.pool);
        client.tx.release(&mut self.pool);
        self.actions.push(Action::Close { conn: conn(id), shut });
    }

    /// Sets the client's one timer to its earliest deadline, those of its exchange included.
    pub(crate) fn arm_client(&mut self, id: Id<Client>) {
        let Some(client) = self.clients.get_mut(id) else { return };
        let due = client.due(&self.exchanges);
        self.timers.arm(&mut client.alarm, conn(id), due);
    }

    /// A client's earliest deadline has come.
    pub(crate) fn client_expired(&mut self, id: Id<Client>, now: Now) {
        let Some(client) = self.clients.get(id) else { return };
        let (wait, stall, exchange) = (client.wait <= now.mono, client.stall <= now.mono, client.exchange);
        if stall {
            return self.drop_client(id, now);
        }
        if wait {
            self.waited_enough(id, now);
        } else if let Some(exchange) = exchange {
            self.exchange_expired(exchange, now);
        }
        self.arm_client(id);
    }

    fn waited_enough(&mut self, id: Id<Client>, now: Now) {
        let Some(client) = self.clients.get_mut(id) else { return };
        client.wait = Mono::NEVER;
        match client.phase {
            Phase::Head if client.reading => self.refuse_slow_head(id, now),
            // It is still reading its last answer; `write_stall` watches over that.
            Phase::Head if !client.tx.is_empty() => client.wait = now.mono.after(self.config.server.keepalive_timeout),
            Phase::Head => self.close_client(id, Shut::Clean),
            Phase::Body => self.refuse_slow_body(id, now),
            Phase::Discard | Phase::Linger(_) => self.close_when_written(id),
            Phase::Busy | Phase::Closing => {}
        }
    }

    /// Whether the gateway takes bytes from this client at the moment.
    pub(crate) fn client_wants_read(&self, id: Id<Client>) -> bool {
        let Some(client) = self.clients.get(id) else { return false };
        match client.phase {
            Phase::Head => client.tx.len() <= HIGH_WATER,
            Phase::Busy => client.inbound.backlog() < PIPELINE_BYTES_MAX,
            Phase::Closing => false,
            Phase::Body | Phase::Discard | Phase::Linger(_) => true,
        }
    }

    /// Draining: what is idle is closed, once what was on its way has had a moment to arrive.
    pub(crate) fn close_idle_clients(&mut self) {
        let idle = self.clients.iter().filter(|(_, client)| client.is_idle() && !client.admin);
        let ids: Vec<Id<Client>> = idle.map(|(id, _)| id).collect();
        for id in ids {
            self.close_client(id, Shut::Clean);
        }
    }

    /// Nobody is left but who asks for our health: that one need not be waited for.
    pub(crate) fn close_all_clients(&mut self) {
        let ids: Vec<Id<Client>> = self.clients.iter().map(|(id, _)| id).collect();
        for id in ids {
            self.close_client(id, Shut::Clean);
        }
    }

    /// The drain time is over: every exchange is told so, every connection closes.
    pub(crate) fn end_all_clients(&mut self, now: Now) {
        let ids: Vec<Id<Client>> = self.clients.iter().map(|(id, _)| id).collect();
        for id in ids {
            let exchange = self.clients.get(id).and_then(|client| client.exchange);
            match exchange {
                Some(ex) => self.end_for_drain(ex, now),
                None => self.close_when_written(id),
            }
        }
    }
}
