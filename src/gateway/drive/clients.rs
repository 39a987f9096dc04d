//! Input from clients: bytes, deadlines, ends; from a head to a direct answer or an exchange.

use super::WholeReply;
use crate::base::buf::BLOCK;
use crate::base::limits::ADMIN_BODY_MAX;
use crate::base::order;
use crate::base::seam::{Action, Ending, Shut, Stray};
use crate::dialect::errors;
use crate::gateway::budget::{Budget, Gate};
use crate::gateway::client::response::RequestMeta;
use crate::gateway::client::{self, ClientEvent, Oddity, cors, response};
use crate::gateway::cx::Cx;
use crate::gateway::exchange::{ClientMessage, Endpoint, Exchange, ExchangeEvent, Outcome, Readiness};
use crate::gateway::ids::{ClientId, ExchangeId, client_conn, provider_conn};
use crate::gateway::{Gateway, Next, earliest, local};
use crate::policy::keys::{KeyAnswer, KeyId, KeyNews};
use crate::policy::refusal::Refusal;
use crate::wire::head::{Framing, RequestHead};
use crate::wire::inbound::BodyRefusal;

/// Result of a head.
enum HeadOutcome {
    /// The body must be read.
    Body,
    /// The key's quota status is requested.
    Quota,
    /// The ledger must look up its key.
    Unknown(KeyId),
    /// The request has been answered.
    Answered,
}

/// The part of a key's idle connections that is closed at once to make room, as a divisor.
const IDLE_CLOSED: usize = 64;

/// Charges a key for the data that waits at its client.
#[inline]
pub(super) fn charge_unread(client: &mut client::ClientConnection, budget: &mut Budget) {
    if let Some((key, due)) = client.unread() {
        budget.charge(&mut client.unread, key, due);
    }
}

impl Gateway {
    /// Handles bytes from a client.
    pub(crate) fn client_bytes(&mut self, id: ClientId, data: &[u8]) {
        let Some(client) = self.clients.get_mut(id) else { return };
        // The client was not to be read, or has sent more than announced.
        if self.cx.gate != Gate::Open
            && data.len() as u64 > client.takes_without_room()
            && !self.cx.pool.has_room(2 * data.len())
        {
            return self.drop_client(id);
        }
        if let Some(event) = client.push(data, &mut self.cx.pool) {
            self.client_event(id, &event);
        }
        self.advance(id);
    }

    /// Takes as many messages from a connection as can begin now. Each round consumes a message or stops.
    pub(crate) fn advance(&mut self, id: ClientId) {
        loop {
            let Some(client) = self.clients.get_mut(id) else { return };
            let server = &self.cx.setup.config.server;
            let event = client.next(server, &mut self.cx.head_templates, &mut self.cx.pool, self.cx.now.mono);
            // By reference, because moving a head costs a copy.
            let Some(event) = &event else { break };
            let is_part = matches!(event, ClientEvent::Body { complete: false });
            self.client_event(id, event);
            if is_part && self.clients.get(id).is_some_and(|client| client.exchange.is_some() || client.admin) {
                break;
            }
        }
        self.arm(id);
    }

    /// Continues with the pipelined requests of the connection that has waited longest for it. False if none waits.
    pub(crate) fn resume_paused(&mut self) -> bool {
        self.resumed = self.paused.pop_front();
        let Some(id) = self.resumed else { return false };
        if let Some(client) = self.clients.get_mut(id) {
            client.resume();
            self.advance(id);
            // The connection may be read again.
            self.dirty.push(client_conn(id));
        }
        self.settle_down();
        self.resumed = None;
        true
    }

    fn client_event(&mut self, id: ClientId, event: &ClientEvent) {
        let exchange = self.clients.get(id).and_then(|client| client.exchange);
        let server = &self.cx.setup.config.server;
        match event {
            ClientEvent::Head(head) => self.begin(id, head),
            ClientEvent::Paused => self.paused.push_back(id),
            ClientEvent::BadHead(error) => self.refuse_headless(id, &Refusal::bad_http(error.status, error.reason)),
            ClientEvent::SlowHead => self.refuse_headless(id, &Refusal::head_too_slow(server.header_timeout)),
            &ClientEvent::Body { complete } => {
                let Some(client) = self.clients.get_mut(id) else { return };
                let Some(exchange) = exchange else { return self.admin_body(id, complete) };
                if complete {
                    client.begin_answer(Some(exchange));
                }
                self.tell(exchange, ExchangeEvent::Body { complete });
            }
            ClientEvent::BadBody(_) | ClientEvent::SlowBody => {
                let refusal = match event {
                    ClientEvent::SlowBody => Refusal::body_too_slow(server.body_timeout),
                    ClientEvent::BadBody(BodyRefusal::Bad(_)) => Refusal::bad_framing(),
                    _ => Refusal::too_large(exchange.map_or(ADMIN_BODY_MAX, |_| server.max_body)),
                };
                match exchange {
                    Some(exchange) => self.tell(exchange, ExchangeEvent::Refused(Box::new(refusal))),
                    None => self.bad_admin_body(id, &refusal),
                }
            }
            ClientEvent::Lost => self.drop_client(id),
            ClientEvent::Done(shut) => self.close_client(id, *shut),
            ClientEvent::Finished => self.cx.actions.push(Action::Finish(client_conn(id))),
            ClientEvent::Drained => {
                match exchange {
                    Some(exchange) => {
                        self.tell(exchange, ExchangeEvent::Drained);
                        self.resume(exchange);
                    }
                    None => self.continue_scrape(id),
                }
                self.queue.push_back(Next::Advance(id));
            }
        }
    }

    /// Records that `count` bytes were written to a client.
    pub(crate) fn client_wrote(&mut self, id: ClientId, count: usize) -> bool {
        let Some(client) = self.clients.get_mut(id) else { return false };
        let server = &self.cx.setup.config.server;
        let event = client.wrote(count, server, &mut self.cx.pool, self.cx.now.mono);
        // Sending must not begin a charge.
        if client.unread.total() > 0 {
            charge_unread(client, &mut self.cx.budget);
        }
        let (drained, exchange, key) = (client.unsent_bytes() == 0, client.exchange, client.key());
        self.free_heavy(key);
        if let Some(event) = event {
            self.client_event(id, &event);
            return true;
        }
        if drained
            && (self.cx.gate != Gate::Open || self.cx.budget.is_any_over())
            && let Some(provider) = exchange.and_then(|id| self.exchanges.get(id)).and_then(|one| one.state.provider())
        {
            // The provider may have waited for the client.
            self.dirty.push(provider_conn(provider));
        }
        !drained
    }

    /// Handles a client whose first bytes are not what its listener expects. A client that owes a PROXY header is not
    /// answered: its protocol is unknown.
    pub(crate) fn client_strayed(&mut self, id: ClientId, how: Stray) {
        let Some(client) = self.clients.get_mut(id) else { return };
        match how {
            Stray::PlainHttp => client.oddity = Some(Oddity::Strayed),
            Stray::NoProxyHeader => {
                let meta = RequestMeta::of(&RequestHead::unparsed());
                let mut exchange = Exchange::new(id, meta, &mut self.cx);
                exchange.job.notes.begin_trace(&exchange.job.request, None);
                let refusal = Refusal::no_proxy_header();
                exchange.job.notes.explain(&refusal, &mut self.cx);
                exchange.finish(Outcome::refused(&refusal), &mut self.cx);
                self.close_client(id, Shut::Abort);
            }
        }
    }

    /// Handles the end of a client's side of the connection.
    pub(crate) fn client_ended(&mut self, id: ClientId, how: Ending) {
        let Some(client) = self.clients.get_mut(id) else { return };
        if let Some(event) = client.ended(how, &mut self.cx.pool) {
            self.client_event(id, &event);
        }
        self.arm(id);
    }

    /// Handles the earliest deadline of a client or its exchange.
    pub(crate) fn client_expired(&mut self, id: ClientId) {
        let now = self.cx.now.mono;
        let Some(client) = self.clients.get_mut(id) else { return };
        let idle = client.idle_timeout(&self.cx.setup.config.server, self.cx.lifecycle.is_stopping());
        let (drained, exchange) = (client.unsent_bytes() == 0, client.exchange);
        let event = client.expired(idle, &mut self.cx.pool, now);
        match (event, exchange) {
            (Some(event), _) => self.client_event(id, &event),
            (None, Some(exchange)) if self.exchanges.get(exchange).is_some_and(|ex| ex.due() <= now) => {
                let unread = self.exchanges.get(exchange).and_then(|one| one.state.provider());
                let unread = unread.is_some_and(|provider| !self.provider_wants_read(provider));
                self.tell(exchange, ExchangeEvent::Due { unread, drained });
                self.resume(exchange);
            }
            (None, None) => self.live_due(id),
            (None, _) => {}
        }
        self.arm(id);
    }

    /// Records a request on a connection. `known`: with a credential.
    pub(crate) fn acts(&mut self, id: ClientId, known: bool) {
        let Some(client) = self.clients.get_mut(id) else { return };
        client.known = known;
        self.cx.limits.acts(client.admin, id.slot, known);
    }

    /// Closes a connection without a credential to make space. Its received bytes are read first, unless the client
    /// does not read its answer.
    pub(crate) fn make_room(&mut self, slot: u32) {
        let Some((id, client)) = self.clients.tenant(slot) else { return };
        match client.unsent_bytes() {
            0 => self.cx.actions.push(Action::Hear(client_conn(id))),
            _ => self.turn_away(id),
        }
    }

    /// Connections to be closed if all have shown a credential: the ones idle longest, of the key that has most idle
    /// ones. Several at once, so that a flood of new connections does not walk over all of them each time.
    #[cold]
    pub(crate) fn idlest_clients(&mut self) -> Vec<ClientId> {
        self.walks += 1;
        let idle = self.clients.iter().filter(|(_, client)| !client.admin && client.is_idle());
        let mut idle: Vec<_> = idle.map(|(id, client)| (client.key(), client.due(), id)).collect();
        order::by_key(&mut idle, |(key, due, _)| (key.map_or(u64::MAX, |key| key.0.into()), due.0.into()));
        let of_keys = idle.chunk_by(|one, next| one.0 == next.0);
        let most = of_keys.max_by_key(|idle| idle.len()).unwrap_or_default();
        most[..most.len().div_ceil(IDLE_CLOSED)].iter().map(|(.., id)| *id).collect()
    }

    /// Continues after all received bytes of a connection that is to be closed have been read.
    pub(crate) fn client_heard(&mut self, id: ClientId) {
        let Some(client) = self.clients.get_mut(id) else { return };
        // The client has sent a valid credential in the meantime, or the ledger is looking up its key.
        if client.known || client.exchange.is_some() {
            return;
        }
        if client.close_when_written(&mut self.cx.pool).is_some() {
            self.turn_away(id);
        }
    }

    fn turn_away(&mut self, id: ClientId) {
        self.cx.limits.turned_away += 1;
        self.drop_client(id);
    }

    /// Ends a connection that is of no further use, and its exchange.
    pub(crate) fn drop_client(&mut self, id: ClientId) {
        if let Some(exchange) = self.clients.get(id).and_then(|client| client.exchange) {
            self.tell(exchange, ExchangeEvent::Left);
        }
        self.close_client(id, Shut::Abort);
    }

    /// Removes a client. Its exchange, if it had one, has been ended before.
    pub(crate) fn close_client(&mut self, id: ClientId, shut: Shut) {
        let Some(mut client) = self.clients.remove(id) else { return };
        self.timers.forget(client_conn(id));
        if client.is_paused() {
            self.paused.retain(|paused| *paused != id);
        }
        debug_assert!(client.exchange.is_none_or(|exchange| self.exchanges.get(exchange).is_none()));
        self.cx.limits.leave(client.admin, id.slot);
        if client.admin {
            self.cx.desk.gone(id);
        }
        client.release(&mut self.cx.pool);
        self.cx.budget.release(&mut client.unread, &mut self.cx.pool);
        self.free_heavy(client.key());
        self.cx.actions.push(Action::Close { conn: client_conn(id), shut });
    }

    /// Sets a client's one timer to its earliest deadline, those of its exchange included.
    pub(crate) fn arm(&mut self, id: ClientId) {
        let Some(client) = self.clients.get_mut(id) else { return };
        let due = earliest(client, &self.exchanges);
        self.timers.arm(client_conn(id), due);
    }
}

impl Gateway {
    /// Handles a head: answers immediately, or reads the body.
    fn begin(&mut self, id: ClientId, head: &RequestHead) {
        let Some(client) = self.clients.get(id) else { return };
        let meta = RequestMeta::of(head);
        if client.admin {
            return self.answer_admin(id, meta, head);
        }
        if client.oddity == Some(Oddity::Strayed) {
            let (mut exchange, refusal) = (Exchange::new(id, meta, &mut self.cx), Refusal::plain_http());
            return self.refuse(&mut exchange, &refusal, Outcome::refused(&refusal));
        }
        self.authorize(|cx| Exchange::new(id, meta, cx), head);
    }

    /// Checks whether a request is permitted by its head, and continues with it. The exchange is made here, because
    /// passing it copies it.
    #[inline]
    pub(super) fn authorize(&mut self, exchange: impl FnOnce(&mut Cx) -> Exchange, head: &RequestHead) {
        let mut exchange = exchange(&mut self.cx);
        match self.passes(&mut exchange, head) {
            HeadOutcome::Body => {
                let id = self.exchanges.insert(exchange);
                self.read_body(id, head);
            }
            HeadOutcome::Quota => self.look(exchange),
            HeadOutcome::Unknown(key) => self.identify(exchange, key, head),
            HeadOutcome::Answered => {}
        }
    }

    /// Checks a request's head, and answers it if that is possible without a body.
    fn passes(&mut self, exchange: &mut Exchange, head: &RequestHead) -> HeadOutcome {
        let clock = self.cx.clock_is_right();
        let Some(client) = self.clients.get(exchange.job.request.client) else { return HeadOutcome::Answered };
        let ready = Readiness {
            clock,
            drained: self.cx.lifecycle.is_over(),
            handed_over: self.cx.lifecycle.has_handed_over(),
            crowded: client.oddity == Some(Oddity::Crowded),
            buffers: self.cx.pool.has_room(BLOCK),
            store: self.cx.takes_requests(),
        };
        let (bytes, _) = client.message();
        let is_stranger = !client.known;
        let passed = exchange.job.authorize(head, bytes, ready, &mut self.cx);
        if is_stranger {
            let (cid, key) = (exchange.job.request.client, exchange.job.request.found.key);
            self.acts(cid, key.is_some());
            if let Some(client) = self.clients.get_mut(cid) {
                client.is_of(key);
            }
        }
        match passed {
            Ok(Endpoint::Inference(_)) => return HeadOutcome::Body,
            Ok(Endpoint::Quota) => return HeadOutcome::Quota,
            Ok(Endpoint::Preflight) => self.answer_preflight(exchange),
            Ok(endpoint) => self.answer_local(exchange, endpoint),
            Err(refusal) => match self.cx.lookups.unknown.take() {
                Some(key) if self.cx.lookups.may_wait(&key, self.cx.now.mono) => return HeadOutcome::Unknown(key),
                _ => self.refuse(exchange, &refusal, Outcome::refused(&refusal)),
            },
        }
        HeadOutcome::Answered
    }

    /// Looks up an unknown key, which may have been issued a moment ago, in the ledger; the request waits.
    fn identify(&mut self, mut exchange: Exchange, key: KeyId, head: &RequestHead) {
        exchange.identify(head, self.cx.now.mono);
        let cid = exchange.job.request.client;
        let id = self.exchanges.insert(exchange);
        if let Some(client) = self.clients.get_mut(cid) {
            client.hold(id);
        }
        self.cx.lookups.wait(key, id, self.cx.now.mono, &mut self.cx.orders);
    }

    /// Handles the ledger's answer about a key, or its failure to answer.
    pub(crate) fn looked_up(&mut self, key: KeyId, answer: KeyAnswer) {
        let answered = answer != KeyAnswer::Unavailable;
        match answer {
            KeyAnswer::Known(record) => self.cx.keys_news(KeyNews::Changed(vec![*record], Vec::new())),
            KeyAnswer::Absent => self.cx.lookups.is_absent(key, self.cx.now.mono),
            KeyAnswer::Unavailable => {}
        }
        for id in self.cx.lookups.answered(&key) {
            if self.exchanges.get(id).is_some_and(|one| one.state.is_identifying()) {
                self.tell(id, ExchangeEvent::LookedUp { answered });
            }
        }
    }

    fn read_body(&mut self, id: ExchangeId, head: &RequestHead) {
        let Some(exchange) = self.exchanges.get_mut(id) else { return };
        let declared = if let Framing::Length(length) = head.framing { length } else { 0 };
        let promised = exchange.read_body(head, declared, &mut self.cx);
        let (cid, key) = (exchange.job.request.client, exchange.job.request.found.key);
        let max_body = exchange.job.request.setup.config.server.max_body;
        if let Err(refusal) = promised {
            let Some(mut exchange) = self.exchanges.remove(id) else { return };
            return self.refuse(&mut exchange, &refusal, Outcome::refused(&refusal));
        }
        let Some(client) = self.clients.get_mut(cid) else { return };
        let begun = client.begin_body(Some(id), key, head, max_body);
        // Charged before its own body needs memory: pipelined requests count.
        charge_unread(client, &mut self.cx.budget);
        let awaits_continue = client.awaits_continue(head);
        match begun {
            Err(refusal) => self.client_event(cid, &ClientEvent::BadBody(refusal)),
            Ok(()) if awaits_continue => {
                self.send(cid, |out| out.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n"));
            }
            Ok(()) => {}
        }
    }

    /// Answers with the caller's quota status; from the shared ledger if there is one.
    fn look(&mut self, exchange: Exchange) {
        let cid = exchange.job.request.client;
        let id = self.exchanges.insert(exchange);
        let (Some(exchange), Some(client)) = (self.exchanges.get_mut(id), self.clients.get_mut(cid)) else { return };
        let (head, body) = client.message();
        let message = ClientMessage { exchange: id, head, body, storage: 0 };
        if exchange.look(&message, &mut self.cx) {
            client.begin_answer(Some(id));
        } else if let Some(mut exchange) = self.exchanges.remove(id) {
            self.answer_local(&mut exchange, Endpoint::Quota);
        }
    }

    /// Refuses a head that is not HTTP, too large or too late.
    fn refuse_headless(&mut self, id: ClientId, refusal: &Refusal) {
        let Some(client) = self.clients.get_mut(id) else { return };
        client.end_after_answer();
        let meta = RequestMeta::of(&RequestHead::unparsed());
        let mut exchange = Exchange::new(id, meta, &mut self.cx);
        exchange.job.notes.begin_trace(&exchange.job.request, None);
        self.refuse(&mut exchange, refusal, Outcome::refused(refusal));
    }

    pub(crate) fn refuse(&mut self, exchange: &mut Exchange, refusal: &Refusal, outcome: Outcome) {
        exchange.job.notes.explain(refusal, &mut self.cx);
        let endpoint = exchange.job.request.endpoint();
        let cost = exchange.finish(outcome, &mut self.cx);
        let request = &exchange.job.request;
        self.cx.out.clear();
        let (mut words, mut more) = (local::words(refusal, request.id.as_str()), Vec::new());
        if request.found.is_codex {
            local::tell_codex(refusal, &mut words, &mut more);
        }
        errors::error_body(endpoint, &words, &mut self.cx.out);
        let framing = Framing::Length(self.cx.out.len() as u64);
        let (status, content_type) = (refusal.status, response::JSON);
        self.reply(request, &WholeReply { status, framing, content_type, refusal: Some(refusal), cost, more: &more });
    }

    pub(crate) fn answer_local(&mut self, exchange: &mut Exchange, endpoint: Endpoint) {
        let mut out = std::mem::take(&mut self.cx.out);
        out.clear();
        let Some(client) = self.clients.get(exchange.job.request.client) else { return };
        let (head, _) = client.message();
        let answered = local::body(&exchange.job.request, endpoint, head, &mut self.cx, &mut out);
        if let (Err(_), Endpoint::Model(id)) = (&answered, endpoint) {
            exchange.job.notes.note_asked(&exchange.job.request, &local::model_asked(id, head));
        }
        self.cx.out = out;
        match answered {
            Ok(()) => self.answer(exchange, Outcome::ok()),
            Err(refusal) => self.refuse(exchange, &refusal, Outcome::refused(&refusal)),
        }
    }

    /// Answers a preflight: 204 for any origin; browsers decide by the fields.
    fn answer_preflight(&mut self, exchange: &mut Exchange) {
        let Some(client) = self.clients.get(exchange.job.request.client) else { return };
        let mut more = Vec::new();
        if exchange.job.request.cors != cors::CorsPolicy::Refused {
            cors::write_permission(client.message().0, &mut more);
        }
        self.cx.out.clear();
        exchange.finish(Outcome { status: 204, ..Outcome::ok() }, &mut self.cx);
        let (framing, content_type) = (Framing::None, "");
        self.reply(
            &exchange.job.request,
            &WholeReply { status: 204, framing, content_type, refusal: None, cost: None, more: &more },
        );
    }
}
