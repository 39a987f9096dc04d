//! Input from clients: bytes, deadlines, ends; from a head to a direct answer or an exchange.

use super::Driver;
use super::admins::AdminListener;
use super::clients::{Next, charge_unread};
use crate::base::buf::BLOCK;
use crate::base::limits::ADMIN_BODY_MAX;
use crate::base::seam::{Action, Ending, Shut};
use crate::gateway::client::response::RequestMeta;
use crate::gateway::client::{ClientConnection, ClientEvent, Oddity};
use crate::gateway::exchange::{
    ClientMessage, DriverCall, Endpoint, Exchange, ExchangeEvent, Flow, Outcome, Readiness,
};
use crate::gateway::ids::{ClientId, ExchangeId, client_conn, provider_conn};
use crate::gateway::memory::shares::Gate;
use crate::policy::keys::{KeyAnswer, KeyNews, ShownKey};
use crate::policy::refusal::Refusal;
use crate::wire::head::{Framing, RequestHead};
use crate::wire::inbound::BodyRefusal;

impl Driver {
    /// Handles bytes from a client.
    pub(crate) fn client_bytes(&mut self, id: ClientId, data: &[u8]) {
        let Some(client) = self.clients.table.get_mut(id) else { return };
        // The client was not to be read, or has sent more than announced.
        if self.cx.memory.gate != Gate::Open
            && data.len() as u64 > client.takes_without_room()
            && !self.cx.memory.pool.has_room(2 * data.len())
        {
            return self.drop_client(id);
        }
        if let Some(event) = client.push(data, &mut self.cx.memory.pool) {
            self.client_event(id, &event);
        }
        self.advance(id);
    }

    /// Takes as many messages from a connection as can begin now. Each round consumes a message or stops.
    pub(crate) fn advance(&mut self, id: ClientId) {
        let mut head = RequestHead::unparsed();
        loop {
            let Some(client) = self.clients.table.get_mut(id) else { return };
            let server = &self.cx.setup.config.server;
            let (templates, pool) = (&mut self.clients.head_templates, &mut self.cx.memory.pool);
            let event = client.next(server, templates, &mut head, pool, self.cx.now.mono);
            let Some(event) = &event else { break };
            let &ClientEvent::Body { complete } = event else {
                self.client_event(id, event);
                continue;
            };
            self.client_event(id, event);
            // The exchange waits for more of its body, or answers; an answer that has ended may be followed by the next
            // request.
            let waits = |client: &ClientConnection| client.exchange.is_some() || (client.admin && !complete);
            if self.clients.table.get(id).is_some_and(waits) {
                break;
            }
        }
        self.arm(id);
    }

    fn client_event(&mut self, id: ClientId, event: &ClientEvent<'_>) {
        let exchange = self.clients.table.get(id).and_then(|client| client.exchange);
        let server = &self.cx.setup.config.server;
        match event {
            ClientEvent::Head(head) => self.begin(id, head),
            ClientEvent::Paused => self.clients.paused.push_back(id),
            ClientEvent::BadHead(error) => {
                self.clients.refuse_headless(id, &Refusal::bad_http(error.status, error.reason), &mut self.cx)
            }
            ClientEvent::SlowHead => {
                self.clients.refuse_headless(id, &Refusal::head_too_slow(server.header_timeout), &mut self.cx)
            }
            &ClientEvent::Body { complete } => {
                let Some(client) = self.clients.table.get_mut(id) else { return };
                let Some(exchange) = exchange else { return self.admins().admin_body(id, complete) };
                if complete {
                    client.begin_answer(Some(exchange));
                }
                let is_upload = client.is_upload();
                self.tell(exchange, ExchangeEvent::Body { complete });
                if is_upload {
                    self.send_on(exchange);
                }
            }
            ClientEvent::BadBody(_) | ClientEvent::SlowBody => {
                let refusal = match event {
                    ClientEvent::SlowBody => Refusal::body_too_slow("body_timeout", server.body_timeout),
                    ClientEvent::BadBody(BodyRefusal::Bad(_)) => Refusal::bad_framing(),
                    _ => {
                        let exchange = exchange.and_then(|id| self.exchanges.get(id));
                        Refusal::too_large(exchange.map_or(ADMIN_BODY_MAX, |one| one.job.request.body_max().0))
                    }
                };
                match exchange {
                    Some(exchange) => self.tell(exchange, ExchangeEvent::Refused(Box::new(refusal))),
                    None => self.admins().bad_admin_body(id, &refusal),
                }
            }
            ClientEvent::Lost => self.drop_client(id),
            ClientEvent::Done(shut) => self.clients.close(id, *shut, &mut self.cx),
            ClientEvent::Finished => self.cx.commands.actions.push(Action::Finish(client_conn(id))),
            ClientEvent::Drained => {
                match exchange {
                    Some(exchange) => {
                        self.tell(exchange, ExchangeEvent::Drained);
                        self.resume(exchange);
                    }
                    None => self.admins().continue_scrape(id),
                }
                self.clients.queue.push_back(Next::Advance(id));
            }
        }
    }

    /// Records that `count` bytes were written to a client.
    pub(crate) fn client_wrote(&mut self, id: ClientId, count: usize) -> bool {
        let Some(client) = self.clients.table.get_mut(id) else { return false };
        let server = &self.cx.setup.config.server;
        let event = client.wrote(count, server, &mut self.cx.memory.pool, self.cx.now.mono);
        // Sending must not begin a charge.
        if client.unread.total() > 0 {
            charge_unread(client, &mut self.cx.memory.shares);
        }
        let (drained, exchange, key) = (client.unsent_bytes() == 0, client.exchange, client.key);
        self.cx.free_heavy(key);
        if let Some(event) = event {
            self.client_event(id, &event);
            return true;
        }
        if drained
            && (self.cx.memory.gate != Gate::Open || self.cx.memory.shares.is_any_over())
            && let Some(provider) = exchange.and_then(|id| self.exchanges.get(id)).and_then(|one| one.state.provider())
        {
            // The provider may have waited for the client.
            self.cx.commands.dirty.push(provider_conn(provider));
        }
        !drained
    }

    /// Handles the end of a client's side of the connection.
    pub(crate) fn client_ended(&mut self, id: ClientId, how: Ending) {
        let Some(client) = self.clients.table.get_mut(id) else { return };
        if let Some(event) = client.ended(how, &mut self.cx.memory.pool) {
            self.client_event(id, &event);
        }
        self.arm(id);
    }

    /// Handles the earliest deadline of a client or its exchange.
    pub(crate) fn client_expired(&mut self, id: ClientId) {
        let now = self.cx.now.mono;
        let Some(client) = self.clients.table.get_mut(id) else { return };
        let idle = client.idle_timeout(&self.cx.setup.config.server, self.cx.lifecycle.is_stopping());
        let (drained, exchange) = (client.unsent_bytes() == 0, client.exchange);
        let event = client.expired(idle, &mut self.cx.memory.pool, now);
        match (event, exchange) {
            (Some(event), _) => self.client_event(id, &event),
            (None, Some(exchange)) if self.exchanges.get(exchange).is_some_and(|ex| ex.state.due(&ex.job) <= now) => {
                let unread = self.exchanges.get(exchange).and_then(|one| one.state.provider());
                let unread = unread.is_some_and(|provider| !self.provider_wants_read(provider));
                self.tell(exchange, ExchangeEvent::Due(Flow { unread, drained }));
                self.resume(exchange);
            }
            (None, None) => self.admins().live_due(id),
            (None, _) => {}
        }
        self.arm(id);
    }

    /// Closes a connection without a credential to make space. Its received bytes are read first, unless the client
    /// does not read its answer.
    pub(crate) fn make_room(&mut self, slot: u32) {
        let Some((id, client)) = self.clients.table.tenant(slot) else { return };
        match client.unsent_bytes() {
            0 => self.cx.commands.actions.push(Action::Hear(client_conn(id))),
            _ => self.turn_away(id),
        }
    }

    /// Continues after all received bytes of a connection that is to be closed have been read.
    pub(crate) fn client_heard(&mut self, id: ClientId) {
        let Some(client) = self.clients.table.get_mut(id) else { return };
        // The client has sent a valid credential in the meantime, or the ledger is looking up its key.
        if client.known || client.exchange.is_some() {
            return;
        }
        if client.close_when_written(&mut self.cx.memory.pool).is_some() {
            self.turn_away(id);
        }
    }

    fn turn_away(&mut self, id: ClientId) {
        self.cx.connections.limits.turned_away += 1;
        self.drop_client(id);
    }

    /// Ends a connection that is of no further use, and its exchange, unless that reads its answer on.
    pub(crate) fn drop_client(&mut self, id: ClientId) {
        let exchange = self.clients.table.get(id).and_then(|client| client.exchange);
        if let Some(exchange) = exchange {
            self.tell(exchange, ExchangeEvent::Left);
            debug_assert!(self.exchanges.get(exchange).is_none_or(|one| one.state.is_lingering()));
        }
        self.clients.close(id, Shut::Abort, &mut self.cx);
        // The provider may have waited for the client.
        if let Some(exchange) = exchange {
            self.resume(exchange);
        }
    }

    /// Handles a head: answers immediately, or reads the body.
    fn begin(&mut self, id: ClientId, head: &RequestHead) {
        let Some(client) = self.clients.table.get(id) else { return };
        let meta = RequestMeta::from_head(head);
        if client.admin {
            let mut admins = AdminListener { clients: &mut self.clients, cx: &mut self.cx };
            return admins.answer_admin(id, meta, head, &self.exchanges);
        }
        if client.oddity == Some(Oddity::Strayed) {
            let (mut exchange, refusal) = (Exchange::new(id, meta, &mut self.cx), Refusal::plain_http());
            return self.clients.refuse(&mut exchange, &refusal, Outcome::refused(&refusal), &mut self.cx);
        }
        let exchange = self.exchanges.insert(Exchange::new(id, meta, &mut self.cx));
        self.authorize(exchange, head);
    }

    /// Checks whether a request is permitted by its head: reads its body, or answers it.
    pub(super) fn authorize(&mut self, id: ExchangeId, head: &RequestHead) {
        let clock = self.cx.clock_is_right();
        let Some(exchange) = self.exchanges.get_mut(id) else { return };
        let cid = exchange.job.request.client;
        let Some(client) = self.clients.table.get_mut(cid) else { return };
        let ready = Readiness {
            clock,
            drained: self.cx.lifecycle.is_over(),
            handed_over: self.cx.lifecycle.has_handed_over(),
            crowded: client.oddity == Some(Oddity::Crowded),
            buffers: self.cx.memory.pool.has_room(BLOCK),
            store: self.cx.takes_requests(),
        };
        let (bytes, _) = client.message();
        let passed = exchange.job.authorize(head, bytes, ready, &mut self.cx);
        if !client.known {
            let key = exchange.job.request.found.key;
            client.is_of(key);
            self.clients.acts(cid, key.is_some(), &mut self.cx);
        }
        match passed {
            Ok(Endpoint::Inference(_)) => return self.read_body(id, head),
            Ok(Endpoint::Quota) => return self.answer_quota(id),
            Ok(Endpoint::Preflight) => self.clients.answer_preflight(exchange, &mut self.cx),
            Ok(endpoint) => self.clients.answer_local(exchange, endpoint, &mut self.cx),
            Err(refusal) => match self.cx.access.lookups.unknown.take() {
                Some(key) if self.cx.access.lookups.may_wait(&key, self.cx.now.mono) => {
                    // The key may have been issued a moment ago: the request waits for the ledger.
                    exchange.identify(head, self.cx.now.mono);
                    if let Some(client) = self.clients.table.get_mut(cid) {
                        client.hold(id);
                    }
                    return self.cx.access.lookups.wait(key, id, self.cx.now.mono, &mut self.cx.commands.orders);
                }
                _ => {
                    // Readers of requests want to know the model, although nothing depends on it.
                    if refusal.limit.is_some()
                        && self.cx.report.recorder.records_all()
                        && let Some(client) = self.clients.table.get(cid)
                    {
                        exchange.job.note_model(client.behind_head());
                    }
                    self.clients.refuse(exchange, &refusal, Outcome::refused(&refusal), &mut self.cx);
                }
            },
        }
        self.exchanges.remove(id);
    }

    /// Handles the ledger's answer about a key, or its failure to answer.
    pub(crate) fn looked_up(&mut self, key: ShownKey, answer: KeyAnswer) {
        let answered = answer != KeyAnswer::Unavailable;
        let waited = self.cx.access.lookups.answered(&key);
        if answered {
            self.cx.access.lookups.remember(key, self.cx.now.mono);
        }
        if let KeyAnswer::Known(record) = answer {
            self.cx.keys_news(KeyNews::Changed(vec![*record], Vec::new()));
        }
        for id in waited {
            if self.exchanges.get(id).is_some_and(|one| one.state.is_identifying()) {
                self.tell(id, ExchangeEvent::LookedUp { answered });
            }
        }
    }

    fn read_body(&mut self, id: ExchangeId, head: &RequestHead) {
        let Some(exchange) = self.exchanges.get_mut(id) else { return };
        let declared = if let Framing::Length(length) = head.framing { length } else { 0 };
        let (cid, key) = (exchange.job.request.client, exchange.job.request.found.key);
        let (max_body, is_upload) = exchange.job.request.body_max();
        // The boundary of a form is in the head.
        let form = if is_upload { self.clients.table.get(cid) } else { None };
        let bytes = form.map_or(&[][..], |client| client.message().0);
        let promised = exchange.read_body(head, bytes, declared, &mut self.cx);
        if let Err(refusal) = promised {
            let Some(mut exchange) = self.exchanges.remove(id) else { return };
            return self.clients.refuse(&mut exchange, &refusal, Outcome::refused(&refusal), &mut self.cx);
        }
        let Some(client) = self.clients.table.get_mut(cid) else { return };
        let begun = client.begin_body(Some(id), key, head, max_body);
        if is_upload {
            client.begin_upload();
        }
        // Charged before its own body needs memory: pipelined requests count.
        charge_unread(client, &mut self.cx.memory.shares);
        let awaits_continue = client.awaits_continue(head);
        match begun {
            Err(refusal) => self.client_event(cid, &ClientEvent::BadBody(refusal)),
            Ok(()) if awaits_continue => {
                self.clients.send(cid, &mut self.cx, |out| out.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n"));
            }
            Ok(()) => {}
        }
    }

    /// Answers with the caller's quota status; from the shared ledger if there is one.
    fn answer_quota(&mut self, id: ExchangeId) {
        let Some(exchange) = self.exchanges.get_mut(id) else { return };
        let Some(client) = self.clients.table.get_mut(exchange.job.request.client) else { return };
        let (head, body) = client.message();
        let message = ClientMessage { exchange: id, head, body, storage: 0 };
        if exchange.ask_for_quota(&mut DriverCall { message, out: &mut self.clients.out, cx: &mut self.cx }) {
            client.begin_answer(Some(id));
        } else if let Some(mut exchange) = self.exchanges.remove(id) {
            self.clients.answer_local(&mut exchange, Endpoint::Quota, &mut self.cx);
        }
    }
}
