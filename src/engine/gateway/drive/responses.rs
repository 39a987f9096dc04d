//! Input from providers: connections, requests, the heads and bodies of answers.

use super::Driver;
use super::clients::{Next, pass_on};
use crate::base::seam::{Action, DialError, Ending, NO_DESCRIPTOR};
use crate::base::time::Mono;
use crate::gateway::exchange::capturing;
use crate::gateway::exchange::fault::FaultKind;
use crate::gateway::exchange::{Alike, ClientMessage, Dial, DriverCall, Effect, Exchange, ExchangeEvent, Flow};
use crate::gateway::ids::{ExchangeId, ProviderId, client_conn, provider_conn};
use crate::gateway::memory::shares::Gate;
use crate::gateway::provider::connection::Ended;
use crate::gateway::provider::{ProviderConnection, ProviderEvent};
use crate::policy::keys::LiveKeys;
use crate::policy::refusal::Refusal;
use crate::wire::head::ResponseHead;
use std::net::SocketAddr;
use std::sync::Arc;

/// Error text for an answer whose body has invalid framing.
const BAD_CHUNKS: &str = "the provider's answer was badly framed";

impl Driver {
    pub(crate) fn dial(&mut self, id: ExchangeId, dial: Dial) {
        let Dial { provider, addr, authority, present, until } = dial;
        let most = self.cx.connections.limits.providers_max();
        let short =
            if self.cx.connections.limits.providers < most / 2 { None } else { self.short_of_descriptors(id, most) };
        self.cx.connections.limits.providers += 1;
        let epoch = self.cx.setup.epoch;
        let epoch = if present { epoch } else { epoch.wrapping_sub(1) };
        let pid = self.providers.table.insert(ProviderConnection::dialing(provider, epoch, id));
        if until != Mono::NEVER {
            self.providers.arm(pid, until, &mut self.cx);
        }
        if let Some(exchange) = self.exchanges.get_mut(id) {
            exchange.state.dialing(pid);
            let cid = exchange.job.request.client;
            self.arm(cid);
        }
        if let Some(why) = short {
            return self.dial_failed(pid, DialError::Local(why));
        }
        let config = self.exchanges.get(id).map(|exchange| &exchange.job.request.setup.config);
        let proxy = config.and_then(|config| config.provider(provider)?.proxy.as_ref());
        let tunnel = proxy.map(|proxy| proxy.tunnel.clone());
        self.cx.commands.actions.push(Action::Dial { conn: provider_conn(pid), addr, authority, tunnel });
    }

    /// Reason why an exchange must not open another connection, given `most` of them in total; an idle one is closed to
    /// make space. If there are several keys, each may use half of the descriptors.
    #[cold]
    fn short_of_descriptors(&mut self, id: ExchangeId, most: usize) -> Option<&'static str> {
        if self.cx.connections.limits.providers >= most
            && let Some(oldest) = self.cx.upstreams.idle.oldest()
        {
            self.providers.close(oldest, &mut self.cx);
        }
        let key = |id| self.exchanges.get(id).and_then(|exchange| exchange.job.request.found.key);
        let asked = self.providers.table.iter().filter_map(|(_, provider)| provider.exchange);
        match self.cx.connections.limits.providers < most {
            false => Some(NO_DESCRIPTOR),
            true if self.cx.access.keys.live(self.cx.now.unix) == LiveKeys::One => None,
            true => (asked.filter(|other| key(*other) == key(id)).count() >= most.div_ceil(2))
                .then_some("this key uses half of the descriptors for providers"),
        }
    }

    /// Handles a successful dial.
    pub(crate) fn dialed(&mut self, id: ProviderId) {
        let Some(provider) = self.providers.table.get_mut(id) else { return };
        provider.dialed();
        match self.awaiting_dial(id) {
            Some(exchange) => self.tell(exchange, ExchangeEvent::Dialed(id)),
            None => self.providers.close(id, &mut self.cx),
        }
    }

    /// The exchange that still waits for this dial.
    fn awaiting_dial(&self, id: ProviderId) -> Option<ExchangeId> {
        let exchange = self.providers.table.get(id)?.exchange?;
        self.exchanges.get(exchange)?.state.awaits_dial(id).then_some(exchange)
    }

    /// Handles a failed dial; the reactor has already removed the connection.
    pub(crate) fn dial_failed(&mut self, id: ProviderId, why: DialError) {
        let exchange = self.awaiting_dial(id);
        let Some(mut provider) = self.providers.table.remove(id) else { return };
        self.cx.connections.limits.providers -= 1;
        self.cx.commands.timers.forget(provider_conn(id));
        provider.release(&mut self.cx.memory.pool);
        if let Some(exchange) = exchange {
            self.tell(exchange, ExchangeEvent::DialFailed(id, why));
        }
    }

    /// Handles the result of a host's look-up.
    pub(crate) fn named(&mut self, host: &Arc<str>, port: u16, addrs: Result<Vec<SocketAddr>, &'static str>) {
        let failed = addrs.as_ref().err().copied();
        self.cx.upstreams.names.learned(host, port, addrs, self.cx.now.mono);
        self.tell_all(&|one| one.state.awaits_name(&one.job, host, port), &|| ExchangeEvent::Named { failed });
    }

    /// Writes the request of an exchange to an open connection, including its head if it `begins`.
    pub(crate) fn write_request(&mut self, id: ExchangeId, pid: ProviderId, begins: bool) {
        let (Some(exchange), Some(provider)) = (self.exchanges.get_mut(id), self.providers.table.get_mut(pid)) else {
            return;
        };
        let Some(client) = self.clients.table.get(exchange.job.request.client) else { return };
        let is_upload = client.is_upload();
        let (head, body) = client.message();
        let message = ClientMessage { exchange: id, head, body, storage: 0 };
        let room = self.cx.memory.pool.room();
        let Exchange { job, state } = exchange;
        let write = |out: &mut Vec<u8>| state.write_request(job, begins, &message, room, out);
        match begins {
            true => provider.begin(id, &mut self.cx.memory.pool, write),
            false => provider.refill(&mut self.cx.memory.pool, write),
        }
        if job.request.meta.captured {
            capturing::capture_sent(job, &message, begins, provider.unsent(), &mut self.cx);
        }
        self.cx.commands.dirty.push(provider_conn(pid));
        // A part that is left out wakes no provider. Each round uses some of the bytes that are here.
        if is_upload && self.sent_on(id, pid) {
            self.write_request(id, pid, false);
        }
    }

    /// Sends on what has arrived of a form, if its provider waits for it.
    pub(crate) fn send_on(&mut self, id: ExchangeId) {
        let Some(pid) = self.exchanges.get(id).and_then(|exchange| exchange.state.provider()) else { return };
        if self.providers.table.get(pid).is_some_and(ProviderConnection::is_starved) {
            self.write_request(id, pid, false);
        }
    }

    /// A part of a form has been put into the queue of its provider: more of it may be read. True if nothing was put
    /// into the queue, and more of the form is here.
    fn sent_on(&mut self, id: ExchangeId, pid: ProviderId) -> bool {
        let (Some(exchange), Some(provider)) = (self.exchanges.get_mut(id), self.providers.table.get(pid)) else {
            return false;
        };
        let cid = exchange.job.request.client;
        let Some(client) = self.clients.table.get_mut(cid) else { return false };
        let (is_pending, held, now) = (!provider.unsent().is_empty(), client.message().1.len(), self.cx.now.mono);
        let (used, failure) = exchange.state.upload_step(&mut exchange.job, is_pending, held, now);
        let goes_on = provider.is_starved() && used > 0 && used < held && failure.is_none();
        if exchange.job.request.meta.captured {
            let (_, body) = client.message();
            capturing::capture_form(&mut exchange.job, body.get(..used).unwrap_or(body), &mut self.cx);
        }
        client.sent_on(used, &self.cx.setup.config.server, now);
        self.cx.commands.dirty.push(client_conn(cid));
        self.arm(cid);
        if let Some(why) = failure {
            let refusal = Box::new(Refusal::invalid_body(why));
            self.clients.queue.push_back(Next::Tell(id, ExchangeEvent::Refused(refusal)));
        }
        goes_on
    }

    /// Handles bytes written to a provider: writes more of the request, or begins to wait for the answer. True if more
    /// may be unsent.
    pub(crate) fn provider_wrote(&mut self, id: ProviderId, count: usize) -> bool {
        let Some(provider) = self.providers.table.get_mut(id) else { return false };
        let wrote = provider.wrote(count, &mut self.cx.memory.pool);
        match (wrote, provider.exchange) {
            (Some(true), Some(exchange)) => self.request_sent(exchange),
            (Some(false), Some(exchange)) => self.write_request(exchange, id, false),
            _ => {}
        }
        true
    }

    fn request_sent(&mut self, id: ExchangeId) {
        let Some(Exchange { job, state }) = self.exchanges.get_mut(id) else { return };
        let (effect, key) = (state.sent(job, &mut self.cx), job.request.found.key);
        self.perform(id, effect);
        self.cx.free_heavy(key);
    }

    /// Handles bytes from a provider: those of an answer's body are passed on as far as they are currently accepted.
    pub(crate) fn provider_bytes(&mut self, id: ProviderId, mut data: &[u8]) {
        loop {
            let Some(provider) = self.providers.table.get_mut(id) else { return };
            if !provider.has_answer() {
                return self.provider_else(id, data);
            }
            let Some(xid) = provider.exchange else { return self.providers.tail(id, data, &mut self.cx) };
            let Some(Exchange { job, state }) = self.exchanges.get_mut(xid) else { return };
            let Some(answering) = state.answering_mut() else {
                return self.provider_failed(id, FaultKind::Internal);
            };
            if provider.is_rest(data) && answering.reads_at_once(job, data.len(), &mut self.cx) {
                // Reads the body to its end.
                let _ = provider.read(data);
                return self.tell(xid, ExchangeEvent::Whole(data));
            }
            let client = self.clients.table.get_mut(job.request.client);
            let unread = client.as_ref().map_or((false, 0), |client| (client.is_full(), client.unread.total()));
            let Some(slice) = answering.intake(job, xid, data.len(), unread, &mut self.cx) else {
                return provider.hold(data, &mut self.cx.memory.pool);
            };
            let Ok(piece) = provider.read(&data[..slice]) else {
                return match answering.reads_error() {
                    true => self.tell(xid, ExchangeEvent::BodyEnd),
                    false => self.provider_failed(id, FaultKind::BadBody(BAD_CHUNKS)),
                };
            };
            let (payload, rest) = (&data[piece.data], &data[piece.consumed..]);
            match client {
                _ if payload.is_empty() => {}
                Some(client) => match answering.pass_alike(job, payload, &mut self.clients.out, &mut self.cx) {
                    // The common case: both connections are available.
                    Alike::All(forward) if forward.is_mere_news() => {
                        pass_on(client, &job.request, &self.clients.out.bytes, &mut self.cx);
                    }
                    Alike::All(forward) => self.perform(xid, Effect::Forward(forward)),
                    Alike::Front(alike) => self.provider_data(xid, payload, alike),
                },
                None => self.provider_data(xid, payload, 0),
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

    /// Handles bytes from a provider that do not only belong to a body.
    #[inline(never)]
    fn provider_else(&mut self, id: ProviderId, data: &[u8]) {
        let Some(provider) = self.providers.table.get_mut(id) else { return };
        match provider.push(data, &mut self.cx.memory.pool) {
            None => {}
            Some(ProviderEvent::Head(head)) => self.provider_head(id, &head, data),
            Some(ProviderEvent::Tail) => self.providers.tail(id, data, &mut self.cx),
            Some(ProviderEvent::BadHead(why)) => self.provider_failed(id, FaultKind::BadHead(why)),
            Some(ProviderEvent::Unasked) if data.is_empty() => {}
            // A request that is about to be written uses a new connection.
            Some(ProviderEvent::Unasked) => self.provider_failed(id, FaultKind::Closed(Ending::Broken)),
        }
    }

    /// Handles a piece of a body, of which `Answering::pass_alike` has taken `alike` bytes.
    #[inline(never)]
    fn provider_data(&mut self, xid: ExchangeId, payload: &[u8], alike: usize) {
        let Some(exchange) = self.exchanges.get_mut(xid) else { return };
        let client = self.clients.table.get_mut(exchange.job.request.client);
        let (head, body) = client.as_ref().map_or((&[][..], &[][..]), |client| client.message());
        let message = ClientMessage { exchange: xid, head, body, storage: 0 };
        let effect =
            exchange.data(payload, alike, &mut DriverCall { message, out: &mut self.clients.out, cx: &mut self.cx });
        if let Some(client) = client.filter(|_| effect.is_mere_news() && !self.clients.out.releases()) {
            return pass_on(client, &exchange.job.request, &self.clients.out.bytes, &mut self.cx);
        }
        self.perform(xid, effect);
    }

    fn provider_head(&mut self, id: ProviderId, head: &ResponseHead, came: &[u8]) {
        let Some(provider) = self.providers.table.get_mut(id) else { return };
        let Some(exchange) = provider.exchange else { return };
        let mut received = provider.take_received();
        if head.status != 200 {
            // After an error the rest of the request is not needed.
            provider.stop_writing();
        }
        let bytes = if received.is_empty() { came } else { received.bytes() };
        self.tell(exchange, ExchangeEvent::Head(head, bytes));
        self.provider_bytes(id, bytes.get(head.len as usize..).unwrap_or_default());
        received.release(&mut self.cx.memory.pool);
    }

    /// Handles the end of an answer's body. `rest` are the bytes after it.
    fn provider_body_done(&mut self, id: ProviderId, xid: ExchangeId, rest: &[u8]) {
        let Some(provider) = self.providers.table.get_mut(id) else { return };
        if provider.exchange != Some(xid) {
            return self.providers.tail(id, rest, &mut self.cx);
        }
        if !rest.is_empty() {
            // These bytes are not part of an answer, so the connection cannot be kept.
            let _ = provider.read(rest);
        }
        self.tell(xid, ExchangeEvent::BodyEnd);
    }

    /// Handles a deadline of a provider's connection: that of an exchange without a client, or its own.
    pub(crate) fn provider_expired(&mut self, id: ProviderId) {
        let exchange = self.providers.table.get(id).and_then(|provider| provider.exchange);
        match exchange.filter(|one| self.exchanges.get(*one).is_some_and(|one| one.state.is_lingering())) {
            Some(exchange) => self.tell(exchange, ExchangeEvent::Due(Flow { unread: false, drained: true })),
            None => self.providers.close(id, &mut self.cx),
        }
    }

    fn provider_failed(&mut self, id: ProviderId, kind: FaultKind) {
        let Some(provider) = self.providers.table.get(id) else { return };
        let reused = provider.is_reused();
        match provider.exchange {
            Some(exchange) => self.tell(exchange, ExchangeEvent::Failed { kind, reused }),
            None => self.providers.close(id, &mut self.cx),
        }
    }

    /// Handles the end of a provider's connection.
    pub(crate) fn provider_ended(&mut self, id: ProviderId, how: Ending) {
        let Some(provider) = self.providers.table.get_mut(id) else { return };
        let exchange = provider.exchange.and_then(|exchange| Some((exchange, self.exchanges.get(exchange)?)));
        let (paused, reads_error) =
            exchange.map_or((false, false), |(_, exchange)| (exchange.state.is_paused(), exchange.state.reads_error()));
        // Bytes do not prove that they are complete.
        let is_bytes = exchange.is_some_and(|(_, exchange)| exchange.state.relays_bytes(&exchange.job));
        let xid = exchange.map(|(xid, _)| xid);
        match (provider.ended(how, paused), xid) {
            (Ended::Held, _) => {}
            (Ended::AtEnd, Some(_)) if how == Ending::Broken && is_bytes => {
                self.provider_failed(id, FaultKind::Incomplete(how));
            }
            (Ended::AtEnd, Some(xid)) => self.tell(xid, ExchangeEvent::BodyEnd),
            (Ended::InBody, Some(xid)) if reads_error => self.tell(xid, ExchangeEvent::BodyEnd),
            (Ended::InBody, _) => self.provider_failed(id, FaultKind::Incomplete(how)),
            (Ended::Silent, _) => self.provider_failed(id, FaultKind::Closed(how)),
            (Ended::InHead(why), _) => self.provider_failed(id, FaultKind::BadHead(why)),
            (Ended::Unused | Ended::AtEnd, _) => self.providers.close(id, &mut self.cx),
        }
    }

    /// Resumes an answer after a wait, with the bytes received in the meantime.
    pub(crate) fn resume(&mut self, id: ExchangeId) {
        let Some(pid) = self.exchanges.get(id).and_then(|one| one.state.provider()) else { return };
        let Some(provider) = self.providers.table.get_mut(pid).filter(|provider| !provider.is_dialing()) else {
            return;
        };
        if provider.has_answer() {
            let mut received = provider.take_received();
            self.provider_bytes(pid, received.bytes());
            received.release(&mut self.cx.memory.pool);
        }
        if let Some(how) = self.providers.table.get_mut(pid).and_then(ProviderConnection::ended_meanwhile) {
            self.provider_ended(pid, how);
        }
        self.cx.commands.dirty.push(provider_conn(pid));
    }

    /// True if bytes are currently read from a provider: not while its client is slow to read, nor without memory for
    /// them.
    #[inline]
    pub(crate) fn provider_wants_read(&self, id: ProviderId) -> bool {
        let Some(provider) = self.providers.table.get(id) else { return false };
        let Some(id) = provider.exchange else { return true };
        let Some(exchange) = self.exchanges.get(id) else { return true };
        let client = self.clients.table.get(exchange.job.request.client);
        if provider.holds_back() || exchange.state.is_paused() || client.is_some_and(|client| client.is_full()) {
            return false;
        }
        // The usual case.
        if self.cx.memory.gate == Gate::Open && exchange.state.is_answering() && !self.cx.memory.shares.is_any_over() {
            return true;
        }
        let drained = client.is_none_or(|client| client.unsent_bytes() == 0);
        provider.is_unasked() || exchange.state.has_turn(id, exchange.job.request.found.key, drained, &self.cx)
    }
}
