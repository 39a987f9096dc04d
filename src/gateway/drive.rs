//! The driver: the only file that knows two machines. It tells a machine what has happened and does what follows from
//! it; it decides nothing that a machine could. Borrows the three tables apart, so that an exchange and its two
//! connections can be at hand at the same time.
//!
//! No machine calls another, and what follows later in the same verb is noted in a worklist
//! ([`Gateway::settle_down`]): so nothing recurses, however many requests lie behind one another.

use super::client::connection::RequestMeta;
use super::client::{AfterResponse, Event as ClientEvent, cors, response};
use super::exchange::{Dial, Effect, Endpoint, Event, Exchange, Forward, Message, Outcome, Readiness, Request};
use super::ids::{ClientId, ExchangeId, ProviderId, client_conn, provider_conn};
use super::lifecycle::{drain, upgrade};
use super::metrics::Gauges;
use super::offload::{Done, Product, Task};
use super::provider::connection::{Ended, TAIL_WAIT};
use super::provider::{Connection as ProviderConnection, Event as ProviderEvent, Parting};
use super::{Gateway, admin, local};
use crate::base::buf::{BLOCK, Buf};
use crate::base::limits::{DRAIN_IDLE_GRACE, HIGH_WATER, IO_SLICE};
use crate::base::seam::{Action, DialError, Ending, Shut};
use crate::base::time::Mono;
use crate::policy::ask::{Answer, Release, Ruling};
use crate::policy::refusal::Refusal;
use crate::policy::row::Running;
use crate::wire::body::{LAST_CHUNK, write_chunk, write_chunk_size};
use crate::wire::head::{Framing, Method, RequestHead, ResponseHead};
use crate::wire::inbound::BodyRefusal;
use std::net::SocketAddr;
use std::sync::Arc;

use super::exchange::fault::FaultKind;

/// Words for an answer whose body cannot be cut into pieces.
const BAD_CHUNKS: &str = "the provider's answer was badly framed";
/// Bytes around a chunk, at most.
const CHUNK_FRAME: usize = 24;

/// What is still to be done in the present verb.
#[derive(Debug)]
pub(super) enum Next {
    /// Look at what lies behind the answer that a client has got.
    Advance(ClientId),
    /// Tell an exchange this.
    Tell(ExchangeId, Event<'static>),
}

/// How an answer of one piece begins.
struct Reply<'a> {
    status: u16,
    framing: Framing,
    content_type: &'static str,
    refusal: Option<&'a Refusal>,
    /// Further header fields.
    more: &'a [u8],
}

// What comes of clients.
impl Gateway {
    /// Bytes came from a client.
    pub(super) fn client_bytes(&mut self, id: ClientId, data: &[u8]) {
        let Some(client) = self.clients.get_mut(id) else { return };
        if let Some(event) = client.push(data, &mut self.cx.pool) {
            self.client_event(id, event);
        }
        self.advance(id);
    }

    /// Takes as many messages from a connection as can be begun now. Each round consumes a message or stops.
    fn advance(&mut self, id: ClientId) {
        loop {
            let Some(client) = self.clients.get_mut(id) else { return };
            let server = &self.cx.setup.config.server;
            let Some(event) = client.next(server, &mut self.cx.pool, self.cx.now.mono) else { break };
            let is_part = matches!(event, ClientEvent::Body { complete: false });
            self.client_event(id, event);
            if is_part && self.clients.get(id).is_some_and(|client| client.exchange.is_some()) {
                break;
            }
        }
        self.arm(id);
    }

    fn client_event(&mut self, id: ClientId, event: ClientEvent) {
        let exchange = self.clients.get(id).and_then(|client| client.exchange);
        let server = &self.cx.setup.config.server;
        match event {
            ClientEvent::Head(head) => self.begin(id, &head),
            ClientEvent::BadHead(error) => self.refuse_headless(id, &Refusal::bad_http(error.status, error.reason)),
            ClientEvent::SlowHead => self.refuse_headless(id, &Refusal::head_too_slow(server.header_timeout)),
            ClientEvent::Body { complete } => {
                let Some((exchange, client)) = exchange.zip(self.clients.get_mut(id)) else { return };
                if complete {
                    client.begin_answer(exchange);
                }
                self.tell(exchange, Event::Body { complete });
            }
            ClientEvent::BadBody(refusal) => {
                let refusal = match refusal {
                    BodyRefusal::TooLarge => Refusal::too_large(server.max_body),
                    BodyRefusal::Bad(_) => Refusal::bad_framing(),
                };
                match exchange {
                    Some(exchange) => self.tell(exchange, Event::Refused(refusal)),
                    None => self.drop_client(id),
                }
            }
            ClientEvent::SlowBody => {
                let refusal = Refusal::body_too_slow(server.body_timeout);
                if let Some(exchange) = exchange {
                    self.tell(exchange, Event::Refused(refusal));
                }
            }
            ClientEvent::Lost => self.drop_client(id),
            ClientEvent::Done(shut) => self.close_client(id, shut),
            ClientEvent::Finished => self.cx.actions.push(Action::Finish(client_conn(id))),
            ClientEvent::Drained => {
                if let Some(exchange) = exchange {
                    self.tell(exchange, Event::Drained);
                    self.resume(exchange);
                }
                self.queue.push_back(Next::Advance(id));
            }
        }
    }

    /// The world has written `count` bytes to a client.
    pub(super) fn client_wrote(&mut self, id: ClientId, count: usize) {
        let Some(client) = self.clients.get_mut(id) else { return };
        let server = &self.cx.setup.config.server;
        if let Some(event) = client.wrote(count, server, &mut self.cx.pool, self.cx.now.mono) {
            self.client_event(id, event);
        }
    }

    /// A client's side of the connection has ended.
    pub(super) fn client_ended(&mut self, id: ClientId, how: Ending) {
        let Some(client) = self.clients.get_mut(id) else { return };
        if let Some(event) = client.ended(how, &mut self.cx.pool) {
            self.client_event(id, event);
        }
        self.arm(id);
    }

    /// The earliest deadline of a client or its exchange has come.
    pub(super) fn client_expired(&mut self, id: ClientId) {
        let (idle, now) = (self.idle_timeout(), self.cx.now.mono);
        let Some(client) = self.clients.get_mut(id) else { return };
        let (full, drained, exchange) = (client.is_full(), client.is_drained(), client.exchange);
        let event = client.expired(idle, &mut self.cx.pool, now);
        match (event, exchange) {
            (Some(event), _) => self.client_event(id, event),
            (None, Some(exchange)) if self.exchanges.get(exchange).is_some_and(|ex| ex.due() <= now) => {
                self.tell(exchange, Event::Due { full, drained });
                self.resume(exchange);
            }
            (None, _) => {}
        }
        self.arm(id);
    }

    /// Ends a connection that is of no further use, and the exchange that hangs on it.
    pub(super) fn drop_client(&mut self, id: ClientId) {
        if let Some(exchange) = self.clients.get(id).and_then(|client| client.exchange) {
            self.tell(exchange, Event::Left);
        }
        self.close_client(id, Shut::Abort);
    }

    /// Forgets a client. Its exchange, if it had one, has been ended before.
    fn close_client(&mut self, id: ClientId, shut: Shut) {
        let Some(mut client) = self.clients.remove(id) else { return };
        debug_assert!(client.exchange.is_none_or(|exchange| self.exchanges.get(exchange).is_none()));
        self.cx.limits.leave(client.peer, client.admin);
        client.release(&mut self.cx.pool);
        self.cx.actions.push(Action::Close { conn: client_conn(id), shut });
    }

    /// Sets a client's one timer to its earliest deadline, those of its exchange included.
    pub(super) fn arm(&mut self, id: ClientId) {
        let due = self.due(id);
        if let Some(client) = self.clients.get_mut(id) {
            self.timers.arm(&mut client.alarm, client_conn(id), due);
        }
    }

    /// The earliest deadline of a client, those of its exchange included.
    pub(super) fn due(&self, id: ClientId) -> Mono {
        let Some(client) = self.clients.get(id) else { return Mono::NEVER };
        let exchange = client.exchange.and_then(|exchange| self.exchanges.get(exchange));
        exchange.map_or(client.due(), |exchange| client.due().min(exchange.due()))
    }
}

// From a head to an answer or an exchange.
impl Gateway {
    /// A head has arrived: answers at once, or reads the body.
    fn begin(&mut self, id: ClientId, head: &RequestHead) {
        let Some(client) = self.clients.get(id) else { return };
        let meta = RequestMeta::of(head);
        if client.admin {
            return self.answer_admin(id, meta, head);
        }
        let ready = Readiness {
            drained: self.cx.lifecycle.is_over() || self.cx.lifecycle.has_handed_over(),
            crowded: client.crowded,
            buffers: self.cx.pool.has_room(BLOCK),
            store: self.cx.takes_requests(),
        };
        let mut exchange = Exchange::new(id, meta, &mut self.cx);
        let (bytes, _) = client.message();
        match exchange.authorize(head, bytes, ready, &mut self.cx) {
            Ok(Endpoint::Generate(_) | Endpoint::CountTokens) => self.read_body(exchange, head),
            Ok(Endpoint::Preflight) => self.answer_preflight(exchange),
            Ok(Endpoint::Quota) => self.look(exchange),
            Ok(endpoint) => self.answer_local(exchange, endpoint),
            Err(refusal) => self.refuse(exchange, &refusal, Outcome::refused(&refusal)),
        }
    }

    fn read_body(&mut self, mut exchange: Exchange, head: &RequestHead) {
        let declared = if let Framing::Length(length) = head.framing { length } else { 0 };
        if let Err(refusal) = exchange.read_body(head, declared, &mut self.cx) {
            return self.refuse(exchange, &refusal, Outcome::refused(&refusal));
        }
        let (cid, server) = (exchange.request.client, exchange.request.setup.config.clone());
        let id = self.exchanges.insert(exchange);
        let Some(client) = self.clients.get_mut(cid) else { return };
        let begun = client.begin_body(id, head, server.server.max_body);
        let awaits_continue = client.awaits_continue(head);
        match begun {
            Err(refusal) => self.client_event(cid, ClientEvent::BadBody(refusal)),
            Ok(()) if awaits_continue => {
                self.send(cid, |out| out.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n"));
            }
            Ok(()) => {}
        }
    }

    /// How the caller stands; asked of a shared ledger where there is one.
    fn look(&mut self, exchange: Exchange) {
        let cid = exchange.request.client;
        let id = self.exchanges.insert(exchange);
        let (Some(exchange), Some(client)) = (self.exchanges.get_mut(id), self.clients.get_mut(cid)) else { return };
        let (head, body) = client.message();
        let message = Message { exchange: id, head, body, storage: 0 };
        if exchange.look(&message, &mut self.cx) {
            client.begin_answer(id);
        } else if let Some(exchange) = self.exchanges.remove(id) {
            self.answer_local(exchange, Endpoint::Quota);
        }
    }

    /// A head that is not HTTP, too large or too late.
    fn refuse_headless(&mut self, id: ClientId, refusal: &Refusal) {
        let exchange = Exchange::new(id, RequestMeta::of(&RequestHead::unparsed()), &mut self.cx);
        if let Some(client) = self.clients.get_mut(id) {
            client.end_after_answer();
        }
        self.refuse(exchange, refusal, Outcome::refused(refusal));
    }

    fn refuse(&mut self, exchange: Exchange, refusal: &Refusal, outcome: Outcome) {
        let dialect = exchange.dialect();
        let request = exchange.finish(outcome, &mut self.cx);
        self.cx.out.clear();
        local::error_body(dialect, refusal, request.id.as_str(), &mut self.cx.out);
        let framing = Framing::Length(self.cx.out.len() as u64);
        let (status, content_type) = (refusal.status, response::JSON);
        self.reply(&request, &Reply { status, framing, content_type, refusal: Some(refusal), more: b"" });
    }

    fn answer_local(&mut self, exchange: Exchange, endpoint: Endpoint) {
        let mut out = std::mem::take(&mut self.cx.out);
        out.clear();
        let Some(client) = self.clients.get(exchange.request.client) else { return };
        let (head, _) = client.message();
        let answered = local::body(&exchange.request, endpoint, head, &mut self.cx, &mut out);
        self.cx.out = out;
        match answered {
            Ok(()) => self.answer(exchange, Outcome::ok()),
            Err(refusal) => self.refuse(exchange, &refusal, Outcome::refused(&refusal)),
        }
    }

    /// A preflight: 204, whether or not the origin is known; a browser goes by the fields.
    fn answer_preflight(&mut self, exchange: Exchange) {
        let Some(client) = self.clients.get(exchange.request.client) else { return };
        let mut more = Vec::new();
        if exchange.request.cors != cors::CorsPolicy::Refused {
            cors::write_permission(client.message().0, &mut more);
        }
        self.cx.out.clear();
        let request = exchange.finish(Outcome { status: 204, ..Outcome::ok() }, &mut self.cx);
        let (framing, content_type) = (Framing::None, "");
        self.reply(&request, &Reply { status: 204, framing, content_type, refusal: None, more: &more });
    }

    fn answer_admin(&mut self, id: ClientId, meta: RequestMeta, head: &RequestHead) {
        let ready = self.cx.takes_requests() && !self.cx.lifecycle.is_stopping();
        let gauges = self.gauges();
        let exchange = Exchange::new(id, meta, &mut self.cx);
        let Some(client) = self.clients.get(id) else { return };
        let mut out = std::mem::take(&mut self.cx.out);
        out.clear();
        let answer = admin::answer(head, client.message().0, ready, &gauges, &self.cx, &mut out);
        let framing = Framing::Length(out.len() as u64);
        self.cx.out = out;
        let admin::Answer { status, content_type, more } = answer;
        self.reply(&exchange.request, &Reply { status, framing, content_type, refusal: None, more });
    }

    fn gauges(&self) -> Gauges {
        Gauges {
            clients: self.cx.limits.clients(),
            upstreams: self.providers.len(),
            idle: self.cx.idle.len(),
            holds: self.cx.meter.open_holds(),
            buffered: self.cx.pool.lent(),
            uncommitted: self.cx.ledger.uncommitted(),
            turned_away: self.cx.limits.turned_away,
        }
    }
}

// What an exchange is told, and what follows.
impl Gateway {
    /// Tells an exchange something and does what follows.
    fn tell(&mut self, id: ExchangeId, event: Event<'_>) {
        let Some(exchange) = self.exchanges.get_mut(id) else { return };
        let Some(client) = self.clients.get(exchange.request.client) else { return };
        let (head, body) = client.message();
        let message = Message { exchange: id, head, body, storage: client.payload_storage() };
        let effect = exchange.on(event, &message, &mut self.cx);
        if let Some((provider, complete)) = self.cx.take_let_go() {
            self.part(provider, complete);
        }
        match effect {
            Effect::Nothing => {}
            Effect::Forward(forward) => self.forward(id, forward),
            other => self.follow(id, other),
        }
    }

    fn follow(&mut self, id: ExchangeId, effect: Effect) {
        let Some(exchange) = self.exchanges.get_mut(id) else { return };
        let cid = exchange.request.client;
        match effect {
            Effect::Nothing => {}
            Effect::Wait => self.arm(cid),
            Effect::Translate(translate) => {
                let Some(client) = self.clients.get_mut(cid) else { return };
                let (mut draft, pool) = (translate.draft, &mut self.cx.pool);
                draft.rewind(pool);
                let body = client.lend_message(pool);
                // Taken before the work begins, so that it is not found missing in the middle.
                draft.make_room(body.payload().len(), pool);
                let lent = body.capacity() + draft.text.capacity();
                let (from, model, capabilities) = (translate.from, translate.model, Box::new(translate.capabilities));
                let task = Task::Request { body, draft, from, model, capabilities };
                self.cx.offload(id, translate.serial, lent, Default::default(), task);
                self.arm(cid);
            }
            Effect::Send(provider) => self.send_request(id, provider),
            Effect::Begin => {
                if let Some(provider) = exchange.provider() {
                    self.send_request(id, provider);
                }
            }
            Effect::Dial(dial) => self.dial(id, dial),
            Effect::Release => {
                if let Some(client) = self.clients.get_mut(cid) {
                    client.release_message(&mut self.cx.pool);
                }
            }
            Effect::Again => self.queue.push_back(Next::Tell(id, Event::BodyEnd)),
            Effect::Pause => self.cx.waiting.push_back(id),
            Effect::Forward(forward) => self.forward(id, forward),
            Effect::ForwardBulk(forward, bytes) => self.forward_bulk(id, forward, bytes),
            Effect::End(forward, outcome) => self.end_stream(id, forward, outcome),
            effect => self.conclude(id, effect),
        }
    }

    /// The effects with which an exchange ends.
    fn conclude(&mut self, id: ExchangeId, effect: Effect) {
        let Some(exchange) = self.exchanges.remove(id) else { return };
        let cid = exchange.request.client;
        if let Some(client) = self.clients.get_mut(cid) {
            client.exchange = None;
        }
        match effect {
            Effect::Answer(outcome) => self.answer(exchange, outcome),
            Effect::AnswerBulk(outcome, body) => self.answer_bulk(exchange, outcome, body),
            Effect::Refuse(refusal, outcome) => self.refuse(exchange, &refusal, outcome),
            Effect::Quota => self.answer_local(exchange, Endpoint::Quota),
            Effect::Gone(outcome) => {
                exchange.finish(outcome, &mut self.cx);
            }
            _ => debug_assert!(false, "this effect ends nothing"),
        }
        self.queue.push_back(Next::Advance(cid));
    }

    /// Sends the events in `cx.out`.
    fn forward(&mut self, id: ExchangeId, forward: Forward) {
        let cid = self.open_stream(id, forward);
        let Some(http11) = self.exchanges.get(id).map(|exchange| exchange.request.meta.http11) else { return };
        let bytes = std::mem::take(&mut self.cx.out);
        self.send(cid, |out| {
            // What waits for a slow client grows by what is needed, not by half as much again.
            if out.len() >= HIGH_WATER / 4 {
                out.reserve_exact(bytes.len() + CHUNK_FRAME);
            }
            match http11 {
                true => write_chunk(out, &bytes),
                false => out.extend_from_slice(&bytes),
            }
        });
        self.cx.out = bytes;
        if forward.waits {
            self.arm(cid);
        }
    }

    /// Sends one large event without a copy.
    fn forward_bulk(&mut self, id: ExchangeId, forward: Forward, mut bytes: Vec<u8>) {
        let cid = self.open_stream(id, forward);
        let Some(http11) = self.exchanges.get(id).map(|exchange| exchange.request.meta.http11) else { return };
        if http11 {
            self.send(cid, |out| write_chunk_size(out, bytes.len()));
            bytes.reserve_exact(2);
            bytes.extend_from_slice(b"\r\n");
        }
        let bulk = Buf::adopt(&mut self.cx.pool, bytes);
        self.send_bulk(cid, bulk);
        self.arm(cid);
    }

    /// Writes the head of a stream and lets its request go, where that is due.
    fn open_stream(&mut self, id: ExchangeId, forward: Forward) -> ClientId {
        let Some(exchange) = self.exchanges.get(id) else { return ClientId::new(u32::MAX, 0) };
        let request = &exchange.request;
        let cid = request.client;
        let Some(client) = self.clients.get_mut(cid) else { return cid };
        if forward.opens {
            let framing = if request.meta.http11 { Framing::Chunked } else { Framing::ToEnd };
            let after = client.after_response(request.meta, !request.meta.http11 || self.cx.lifecycle.is_stopping());
            if !after.keeps_alive() {
                // What the head says holds at the stream's end, whatever happens to the process meanwhile.
                client.end_after_answer();
            }
            let reply = Reply { status: 200, framing, content_type: response::EVENTS, refusal: None, more: b"" };
            let (server, now) = (&self.cx.setup.config.server, self.cx.now);
            let quota = request.found.key.and_then(|key| {
                let plan = self.cx.plans.of(key, &self.cx.setup)?;
                Some(self.cx.meter.standing(key, plan, now.unix))
            });
            let head = head_of(request, &reply, after, self.cx.date.at(now.unix), quota);
            client.send(server, &mut self.cx.pool, now.mono, |out| head.write(out));
        }
        if forward.commits {
            client.release_message(&mut self.cx.pool);
        }
        cid
    }

    /// Sends the last events, which lie in `cx.out`, and ends the stream.
    fn end_stream(&mut self, id: ExchangeId, forward: Forward, outcome: Outcome) {
        self.open_stream(id, forward);
        let Some(exchange) = self.exchanges.remove(id) else { return };
        let request = exchange.finish(outcome, &mut self.cx);
        let (cid, http11) = (request.client, request.meta.http11);
        let bytes = std::mem::take(&mut self.cx.out);
        self.send(cid, |out| match http11 {
            true => {
                write_chunk(out, &bytes);
                out.extend_from_slice(LAST_CHUNK);
            }
            false => out.extend_from_slice(&bytes),
        });
        self.cx.out = bytes;
        let Some(client) = self.clients.get_mut(cid) else { return };
        let after = client.after_response(request.meta, !http11 || self.cx.lifecycle.is_over());
        self.answered(cid, after);
        self.queue.push_back(Next::Advance(cid));
    }

    /// The whole answer in `cx.out`: with its length where it fits one buffer, else in chunks (contract section 1).
    fn answer(&mut self, exchange: Exchange, outcome: Outcome) {
        let request = exchange.finish(outcome, &mut self.cx);
        let framing = match (self.cx.out.len() <= HIGH_WATER, request.meta.http11) {
            (true, _) => Framing::Length(self.cx.out.len() as u64),
            (false, true) => Framing::Chunked,
            (false, false) => Framing::ToEnd,
        };
        let (status, content_type) = (outcome.status, response::JSON);
        self.reply(&request, &Reply { status, framing, content_type, refusal: None, more: b"" });
    }

    /// A large whole answer, from where it lies: one chunk, whose end it has with it, or to the end of the connection.
    fn answer_bulk(&mut self, exchange: Exchange, outcome: Outcome, body: Buf) {
        let request = exchange.finish(outcome, &mut self.cx);
        let (cid, http11) = (request.client, request.meta.http11);
        let framing = if http11 { Framing::Chunked } else { Framing::ToEnd };
        let (status, content_type) = (outcome.status, response::JSON);
        let after = self.write_head(&request, &Reply { status, framing, content_type, refusal: None, more: b"" });
        if http11 {
            let length = body.len().saturating_sub(super::offload::LAST_OF_ONE.len());
            self.send(cid, |out| write_chunk_size(out, length));
        }
        self.send_bulk(cid, body);
        self.answered(cid, after);
    }

    /// Answers a request with what lies in `cx.out`.
    fn reply(&mut self, request: &Request, reply: &Reply<'_>) {
        let after = self.write_head(request, reply);
        if request.meta.method != Method::Head && !self.cx.out.is_empty() {
            let body = std::mem::take(&mut self.cx.out);
            self.send(request.client, |out| match reply.framing {
                Framing::Chunked => {
                    for piece in body.chunks(HIGH_WATER) {
                        write_chunk(out, piece);
                    }
                    out.extend_from_slice(LAST_CHUNK);
                }
                _ => out.extend_from_slice(&body),
            });
            self.cx.out = body;
        }
        self.answered(request.client, after);
    }

    fn write_head(&mut self, request: &Request, reply: &Reply<'_>) -> AfterResponse {
        let asks_close = reply.framing == Framing::ToEnd || reply.refusal.is_some_and(|refusal| refusal.close);
        let close = asks_close || self.cx.lifecycle.is_stopping();
        let Some(client) = self.clients.get_mut(request.client) else { return AfterResponse::Close };
        let after = client.after_response(request.meta, close);
        let quota = request.found.key.and_then(|key| self.cx.quota(key));
        let (server, now) = (&self.cx.setup.config.server, self.cx.now);
        let head = head_of(request, reply, after, self.cx.date.at(now.unix), quota);
        client.send(server, &mut self.cx.pool, now.mono, |out| head.write(out));
        after
    }

    /// An answer lies in a client's queue: goes on to what follows it.
    fn answered(&mut self, id: ClientId, after: AfterResponse) {
        let idle = self.idle_timeout();
        let Some(client) = self.clients.get_mut(id) else { return };
        let (server, now) = (&self.cx.setup.config.server, self.cx.now.mono);
        let event = client.answered(after, server, idle, &mut self.cx.pool, now);
        self.dirty.push(client_conn(id));
        match event {
            Some(shut) => self.close_client(id, shut),
            None => self.arm(id),
        }
    }

    /// How long a connection may be idle: not long any more where the process stops.
    fn idle_timeout(&self) -> std::time::Duration {
        match self.cx.lifecycle.is_stopping() {
            true => DRAIN_IDLE_GRACE,
            false => self.cx.setup.config.server.keepalive_timeout,
        }
    }

    /// Appends to a client's unsent bytes.
    fn send(&mut self, id: ClientId, write: impl FnOnce(&mut Vec<u8>)) {
        let Some(client) = self.clients.get_mut(id) else { return };
        let server = &self.cx.setup.config.server;
        if client.send(server, &mut self.cx.pool, self.cx.now.mono, write) {
            self.arm(id);
        }
        self.dirty.push(client_conn(id));
    }

    fn send_bulk(&mut self, id: ClientId, mut bulk: Buf) {
        let Some(client) = self.clients.get_mut(id) else { return bulk.release(&mut self.cx.pool) };
        let server = &self.cx.setup.config.server;
        if client.send_bulk(server, &mut self.cx.pool, self.cx.now.mono, bulk) {
            self.arm(id);
        }
        self.dirty.push(client_conn(id));
    }
}

/// The head of an answer to `request`.
fn head_of<'a>(
    request: &'a Request,
    reply: &Reply<'a>,
    after: AfterResponse,
    date: &'a [u8],
    quota: Option<crate::policy::meter::QuotaStatus>,
) -> response::ResponseHead<'a> {
    response::ResponseHead {
        status: reply.status,
        id: &request.id,
        date,
        http11: request.meta.http11,
        keep_alive: after.keeps_alive(),
        framing: reply.framing,
        content_type: reply.content_type,
        quota,
        refusal: reply.refusal,
        cors: &request.cors,
        more: reply.more,
    }
}

// What comes of providers.
impl Gateway {
    fn dial(&mut self, id: ExchangeId, dial: Dial) {
        let Dial { provider, addr, authority, present } = dial;
        let epoch = if present { self.cx.epoch } else { self.cx.epoch.wrapping_sub(1) };
        let pid = self.providers.insert(ProviderConnection::dialing(provider, epoch, id));
        if let Some(exchange) = self.exchanges.get_mut(id) {
            exchange.dialing(pid);
            let cid = exchange.request.client;
            self.arm(cid);
        }
        self.cx.actions.push(Action::Dial { conn: provider_conn(pid), addr, authority });
        self.forget_stale_timers();
    }

    /// A dial has succeeded.
    pub(super) fn dialed(&mut self, id: ProviderId) {
        let Some(provider) = self.providers.get_mut(id) else { return };
        provider.dialed();
        match provider.exchange {
            Some(exchange) => self.tell(exchange, Event::Dialed),
            None => self.close_provider(id),
        }
    }

    /// A dial has failed; the world has given the connection up already.
    pub(super) fn dial_failed(&mut self, id: ProviderId, why: DialError) {
        let Some(mut provider) = self.providers.remove(id) else { return };
        provider.release(&mut self.cx.pool);
        if let Some(exchange) = provider.exchange {
            self.tell(exchange, Event::DialFailed(why));
        }
    }

    /// A host's addresses have come, or will not.
    pub(super) fn named(&mut self, host: &Arc<str>, port: u16, addrs: Vec<SocketAddr>) {
        let failed = addrs.is_empty();
        self.cx.names.learned(host, port, addrs, self.cx.now.mono);
        let waiting = self.exchanges.iter().filter(|(_, exchange)| exchange.awaits_name(host, port));
        let waiting: Vec<ExchangeId> = waiting.map(|(id, _)| id).collect();
        for id in waiting {
            self.tell(id, Event::Named { host, port, failed });
        }
    }

    /// Writes the request of an exchange on an open connection.
    fn send_request(&mut self, id: ExchangeId, pid: ProviderId) {
        self.write_request(id, pid, true);
        self.arm_provider(pid, Mono::NEVER);
    }

    fn write_request(&mut self, id: ExchangeId, pid: ProviderId, begins: bool) {
        let (Some(exchange), Some(provider)) = (self.exchanges.get_mut(id), self.providers.get_mut(pid)) else {
            return;
        };
        let Some(client) = self.clients.get(exchange.request.client) else { return };
        let (head, body) = client.message();
        let message = Message { exchange: id, head, body, storage: 0 };
        match begins {
            true => provider.begin(id, &mut self.cx.pool, |out| exchange.write_request(true, &message, out)),
            false => provider.refill(&mut self.cx.pool, |out| exchange.write_request(false, &message, out)),
        }
        self.dirty.push(provider_conn(pid));
    }

    /// The world has written to a provider: gives it more of the request, or the wait for the answer begins.
    pub(super) fn provider_wrote(&mut self, id: ProviderId, count: usize) {
        let Some(provider) = self.providers.get_mut(id) else { return };
        let wrote = provider.wrote(count, &mut self.cx.pool);
        match (wrote, provider.exchange) {
            (Some(true), Some(exchange)) => self.tell(exchange, Event::Sent),
            (Some(false), Some(exchange)) => self.write_request(exchange, id, false),
            _ => {}
        }
    }

    /// Bytes came from a provider.
    pub(super) fn provider_bytes(&mut self, id: ProviderId, data: &[u8]) {
        let Some(provider) = self.providers.get_mut(id) else { return };
        match provider.push(data, &mut self.cx.pool) {
            None => {}
            Some(ProviderEvent::Body) => self.provider_body(id, data),
            Some(ProviderEvent::Head(head)) => self.provider_head(id, &head),
            Some(ProviderEvent::Tail) => self.provider_tail(id, data),
            Some(ProviderEvent::BadHead) => self.provider_failed(id, FaultKind::BadHead),
            Some(ProviderEvent::Unasked) => self.close_provider(id),
        }
    }

    fn provider_head(&mut self, id: ProviderId, head: &ResponseHead) {
        let Some(provider) = self.providers.get_mut(id) else { return };
        let Some(exchange) = provider.exchange else { return };
        let mut received = provider.take_received();
        if head.status != 200 {
            // An error needs none of the rest of its request.
            provider.stop_writing();
        }
        self.tell(exchange, Event::Head(head, received.bytes()));
        self.provider_body(id, received.bytes().get(head.len as usize..).unwrap_or_default());
        received.release(&mut self.cx.pool);
    }

    /// Passes on what came of an answer's body, as far as it is taken at the moment.
    fn provider_body(&mut self, id: ProviderId, mut data: &[u8]) {
        loop {
            let Some(provider) = self.providers.get_mut(id) else { return };
            let Some(xid) = provider.exchange else { return self.provider_tail(id, data) };
            let Some(exchange) = self.exchanges.get_mut(xid) else { return };
            let full = self.clients.get(exchange.request.client).is_some_and(|client| client.is_full());
            let Some(slice) = exchange.intake(xid, data.len(), full, &mut self.cx) else {
                if exchange.waits_for_room() {
                    self.cx.waiting.push_back(xid);
                }
                return provider.hold(data, &mut self.cx.pool);
            };
            let Ok(piece) = provider.read(&data[..slice]) else {
                return match exchange.reads_error() {
                    true => self.tell(xid, Event::BodyEnd),
                    false => self.provider_failed(id, FaultKind::BadBody(BAD_CHUNKS)),
                };
            };
            let (payload, rest) = (&data[piece.data], &data[piece.consumed..]);
            if !payload.is_empty() {
                self.tell(xid, Event::Data(payload));
            }
            data = rest;
            if piece.done {
                return self.provider_body_done(id, xid, data);
            }
            if data.is_empty() {
                return;
            }
        }
    }

    /// The body of an answer has been read to its end. `rest` came behind it.
    fn provider_body_done(&mut self, id: ProviderId, xid: ExchangeId, rest: &[u8]) {
        let Some(provider) = self.providers.get_mut(id) else { return };
        if provider.exchange != Some(xid) {
            return self.provider_tail(id, rest);
        }
        if !rest.is_empty() {
            // Not ours, so that the connection cannot be kept.
            let _ = provider.read(rest);
        }
        self.tell(xid, Event::BodyEnd);
    }

    fn provider_tail(&mut self, id: ProviderId, data: &[u8]) {
        let Some(provider) = self.providers.get_mut(id) else { return };
        match provider.read_tail(data) {
            Parting::Keep => self.keep_provider(id),
            Parting::AwaitTail => {}
            Parting::Close => self.close_provider(id),
        }
    }

    fn provider_failed(&mut self, id: ProviderId, kind: FaultKind) {
        let Some(provider) = self.providers.get(id) else { return };
        let reused = provider.is_reused();
        match provider.exchange {
            Some(exchange) => self.tell(exchange, Event::Failed { kind, reused }),
            None => self.close_provider(id),
        }
    }

    /// A provider has ended its connection.
    pub(super) fn provider_ended(&mut self, id: ProviderId) {
        let Some(provider) = self.providers.get_mut(id) else { return };
        let exchange = provider.exchange.and_then(|exchange| Some((exchange, self.exchanges.get(exchange)?)));
        let (paused, reads_error) =
            exchange.map_or((false, false), |(_, exchange)| (exchange.is_paused(), exchange.reads_error()));
        let xid = exchange.map(|(xid, _)| xid);
        match (provider.ended(paused), xid) {
            (Ended::Held, _) => {}
            (Ended::AtEnd, Some(xid)) => self.tell(xid, Event::BodyEnd),
            (Ended::InBody, Some(xid)) if reads_error => self.tell(xid, Event::BodyEnd),
            (Ended::InBody, _) => self.provider_failed(id, FaultKind::Incomplete),
            (Ended::Silent, _) => self.provider_failed(id, FaultKind::Closed),
            (Ended::InHead, _) => self.provider_failed(id, FaultKind::BadHead),
            (Ended::Unused | Ended::AtEnd, _) => self.close_provider(id),
        }
    }

    /// What an answer has waited for is there: goes on with what has come meanwhile.
    fn resume(&mut self, id: ExchangeId) {
        let Some(pid) = self.exchanges.get(id).and_then(Exchange::provider) else { return };
        let Some(provider) = self.providers.get_mut(pid).filter(|provider| !provider.is_dialing()) else { return };
        if provider.has_answer() {
            let mut received = provider.take_received();
            self.provider_body(pid, received.bytes());
            received.release(&mut self.cx.pool);
        }
        if self.providers.get_mut(pid).is_some_and(ProviderConnection::has_ended_meanwhile) {
            self.provider_ended(pid);
        }
        self.dirty.push(provider_conn(pid));
    }

    /// An exchange has let go of its connection.
    fn part(&mut self, id: ProviderId, complete: bool) {
        let Some(provider) = self.providers.get_mut(id) else { return };
        match provider.let_go(complete) {
            Parting::Keep => self.keep_provider(id),
            Parting::Close => self.close_provider(id),
            Parting::AwaitTail => {
                let mut received = provider.take_received();
                self.arm_provider(id, self.cx.now.mono.after(TAIL_WAIT));
                if !received.is_empty() {
                    self.provider_tail(id, received.bytes());
                }
                received.release(&mut self.cx.pool);
            }
        }
    }

    /// An answer has been read to its end: keeps the connection if it may be kept.
    fn keep_provider(&mut self, id: ProviderId) {
        let Some(provider) = self.providers.get(id) else { return };
        let index = provider.provider as usize;
        let fits = provider.epoch == self.cx.epoch && !self.cx.lifecycle.is_stopping();
        let limits = self.cx.setup.config.providers.get(index).map(|provider| &provider.limits);
        let Some(limits) = limits.filter(|_| fits) else { return self.close_provider(id) };
        let due = self.cx.now.mono.after(limits.pool_idle_timeout);
        let oldest = self.cx.idle.put(index, id, limits.pool_max_idle);
        self.arm_provider(id, due);
        if let Some(oldest) = oldest {
            self.close_provider(oldest);
        }
    }

    /// Closes a connection to a provider, whatever it was doing.
    pub(super) fn close_provider(&mut self, id: ProviderId) {
        let Some(mut provider) = self.providers.remove(id) else { return };
        let idle = provider.is_idle();
        if idle {
            self.cx.idle.forget(provider.provider as usize, id);
        }
        provider.release(&mut self.cx.pool);
        let shut = if idle { Shut::Clean } else { Shut::Abort };
        self.cx.actions.push(Action::Close { conn: provider_conn(id), shut });
    }

    /// Sets the one deadline of a connection to a provider.
    fn arm_provider(&mut self, id: ProviderId, due: Mono) {
        if let Some(provider) = self.providers.get_mut(id) {
            provider.wait = due;
            self.timers.arm(&mut provider.alarm, provider_conn(id), due);
        }
    }

    /// Whether bytes are taken from a provider at the moment: not while its client is slow to read.
    pub(super) fn provider_wants_read(&self, id: ProviderId) -> bool {
        let Some(provider) = self.providers.get(id) else { return false };
        let Some(exchange) = provider.exchange.and_then(|id| self.exchanges.get(id)) else { return true };
        let full = self.clients.get(exchange.request.client).is_some_and(|client| client.is_full());
        !provider.holds_back() && !full && !exchange.is_paused()
    }
}

// What helper threads bring, and what happens to the process.
impl Gateway {
    /// Work has come back.
    pub(super) fn offloaded(&mut self, done: Done) {
        let (id, serial) = done.owner();
        let Some(exchange) = self.exchanges.get_mut(id).filter(|exchange| exchange.awaits(serial)) else {
            return done.discard(&mut self.cx);
        };
        let cid = exchange.request.client;
        match done.take(&mut self.cx) {
            Some(Product::Request { body, draft, built }) => {
                if let Some(client) = self.clients.get_mut(cid) {
                    client.put_back(body, &mut self.cx.pool);
                }
                self.tell(id, Event::Translated { draft, built });
            }
            product => {
                self.tell(id, Event::Offloaded(product));
                self.resume(id);
            }
        }
    }

    /// A shared ledger has answered.
    pub(super) fn ruled(&mut self, answer: &Answer) {
        let ask = &answer.ask;
        if answer.ruling != Ruling::Unavailable
            && let Some((key, plan)) = self.cx.counted_key(&ask.key)
        {
            self.cx.meter.learn(key, &plan, self.cx.now.unix, &answer.counts);
        }
        let id = ExchangeId::new(ask.number.0, ask.number.1);
        if self.exchanges.get(id).is_some_and(Exchange::is_reserving) {
            self.tell(id, Event::Ruled(ask, answer.ruling));
        } else if answer.ruling == Ruling::Admitted {
            // The one who asked has left, or has waited too long; what was lent goes back.
            self.cx.orders.give_back(Release { key: ask.key, lease: ask.lease });
        }
    }

    /// So many more rows are safe: the answers that waited for them go out.
    pub(super) fn committed(&mut self, rows: u64) {
        self.cx.ledger.committed(rows);
        while let Some(id) = self.cx.ledger.next_safe() {
            self.tell(id, Event::Committed);
        }
        upgrade::acknowledge(&mut self.cx);
    }

    /// The ledger cannot be written: admission stops, and no answer that waits can be said to be complete.
    pub(super) fn store_failed(&mut self) {
        self.cx.ledger.failed(true);
        for (_, id) in self.cx.ledger.all_held() {
            self.tell(id, Event::NotCommitted);
        }
    }

    /// TERM, or the end of a hand-over: stops taking requests.
    pub(super) fn begin_drain(&mut self, until: Mono) {
        let now = self.cx.now.mono;
        match &mut self.cx.lifecycle.drain {
            // A process that hands over has no bound of its own.
            Some(drain) => drain.bound(until),
            None => {
                let idle_after = now.after(DRAIN_IDLE_GRACE).min(until);
                self.cx.lifecycle.drain = Some(drain::Drain::new(idle_after, until));
                self.close_idle_providers();
            }
        }
    }

    /// Connections to providers that are kept for later requests are of no use any more.
    pub(super) fn close_idle_providers(&mut self) {
        for id in self.cx.idle.drain() {
            self.close_provider(id);
        }
    }

    /// Goes on with what a verb has left to do: requests that lie behind an answer, answers that wait for room, stopping.
    pub(super) fn settle_down(&mut self) {
        while let Some(next) = self.queue.pop_front() {
            match next {
                Next::Advance(id) => self.advance(id),
                Next::Tell(id, event) => self.tell(id, event),
            }
        }
        if self.cx.beyond().is_some() || !self.cx.waiting.is_empty() {
            self.go_on_waiting();
        }
        if self.cx.lifecycle.is_stopping() {
            self.go_on_stopping();
        }
    }

    /// Answers that wait for room go on when there is some, and one of them in any case.
    fn go_on_waiting(&mut self) {
        let has_room = self.cx.pool.has_room(IO_SLICE);
        if has_room || self.cx.beyond().is_some_and(|id| self.exchanges.get(id).is_none()) {
            self.cx.end_beyond();
        }
        for _ in 0..self.cx.waiting.len() {
            if self.cx.beyond().is_some() && !self.cx.pool.has_room(IO_SLICE) {
                return;
            }
            let Some(id) = self.cx.waiting.pop_front() else { return };
            self.tell_room(id);
        }
    }

    fn tell_room(&mut self, id: ExchangeId) {
        if self.exchanges.get(id).is_some_and(Exchange::waits_for_room) {
            self.tell(id, Event::Room);
            self.resume(id);
        }
    }

    /// Goes on with stopping: closes what is idle, ends what runs too long, leaves when nothing is left.
    fn go_on_stopping(&mut self) {
        let now = self.cx.now.mono;
        if self.cx.lifecycle.handover.looks(now) {
            let quiet = !self.clients.iter().any(|(_, client)| !client.admin && client.is_arriving())
                && !self.exchanges.iter().any(|(_, exchange)| exchange.may_be_admitted());
            let (exchanges, meter, keys) = (&self.exchanges, &self.cx.meter, &self.cx.keys);
            let running: Vec<Running> = exchanges.iter().filter_map(|(_, ex)| ex.running(meter, keys)).collect();
            upgrade::hand_over(quiet, || running, &mut self.cx);
        }
        match self.cx.lifecycle.drain.as_mut().and_then(|drain| drain.step(now)) {
            Some(drain::Step::CloseIdle) => self.close_idle_clients(),
            Some(drain::Step::EndAll) => self.end_all_clients(),
            None => {}
        }
        let is_over = self.cx.lifecycle.is_over();
        if self.cx.limits.clients() == 0 && (is_over || !self.cx.lifecycle.is_needed()) {
            // Those who ask for our health need not be waited for.
            for id in self.client_ids() {
                self.close_client(id, Shut::Clean);
            }
            self.cx.actions.push(Action::Exit);
        }
    }

    fn client_ids(&self) -> Vec<ClientId> {
        self.clients.iter().map(|(id, _)| id).collect()
    }

    /// Idle connections are closed; those that still read their last answer are when they have.
    fn close_idle_clients(&mut self) {
        let by = self.cx.now.mono.after(DRAIN_IDLE_GRACE);
        for id in self.client_ids() {
            let Some(client) = self.clients.get_mut(id).filter(|client| !client.admin) else { continue };
            if client.is_idle() {
                self.close_client(id, Shut::Clean);
            } else if client.hasten(by) {
                self.arm(id);
            }
        }
    }

    /// The drain time is over: every exchange is told so, every connection closes.
    fn end_all_clients(&mut self) {
        for id in self.client_ids() {
            let Some(client) = self.clients.get_mut(id) else { continue };
            match client.exchange {
                Some(exchange) => self.tell(exchange, Event::Stopped),
                None => {
                    if let Some(shut) = client.close_when_written(&mut self.cx.pool) {
                        self.close_client(id, shut);
                    }
                }
            }
        }
    }
}
