//! Driver: the only module that uses more than one state machine. It passes events to a machine and performs the
//! effects; it decides nothing that a machine could. Borrows the three tables separately, so that an exchange and its
//! two connections can be accessed at the same time.
//!
//! No machine calls another. Later effects of the same call are added to a worklist ([`Next`]): so there is no
//! recursion, however many requests are pipelined.

mod admins;
mod clients;
mod process;
mod providers;
mod requests;
mod responses;
mod waiting;

use super::client::ClientConnection;
use super::cx::Cx;
use super::exchange::{ClientMessage, DriverCall, Effect, Endpoint, Exchange, ExchangeEvent, Exchanges};
use super::ids::{ClientId, ExchangeId, client_conn};
use super::orders::offload::{JobOwner, OffloadTask};
use crate::base::heap;
use crate::base::seam::Shut;
use crate::base::slots::Slots;
use crate::base::time::Mono;
use crate::policy::keys::KeyIx;
use crate::wire::head::RequestHead;
use admins::AdminListener;
use clients::{Clients, Next};
use providers::Providers;

/// Connections that end together after which the allocator is made to give back the end of its heap.
const BURST_MIN: usize = 1024;

/// All connections and requests. See the module's documentation.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) clients: Clients,
    pub(crate) exchanges: Exchanges,
    pub(crate) providers: Providers,
    pub(crate) cx: Cx,
}

/// Earliest deadline of a client, including its exchange.
#[inline]
pub(crate) fn earliest(client: &ClientConnection, exchanges: &Exchanges) -> Mono {
    match client.exchange.and_then(|exchange| exchanges.get(exchange)) {
        Some(exchange) => client.due().min(exchange.state.due(&exchange.job)),
        None => client.due(),
    }
}

impl Driver {
    /// Tables with room for `room` connections of each kind.
    pub(crate) fn with_room(room: usize, cx: Cx) -> Driver {
        let clients = Clients { table: Slots::with_room(room), ..Clients::default() };
        let providers = Providers { table: Slots::with_room(room) };
        Driver { clients, exchanges: Slots::with_room(room), providers, cx }
    }

    /// Gives the memory of a burst back: the free ends of the tables, and everything kept for reuse. A small block that
    /// stays prevents the allocator from giving back those below it.
    #[cold]
    pub(crate) fn trim(&mut self) {
        let Driver { clients, exchanges, providers, cx } = self;
        let gone = clients.table.trim();
        exchanges.trim();
        providers.table.trim();
        cx.accounts.ledger.trim();
        cx.accounts.meter.trim();
        cx.accounts.targets.trim();
        cx.commands.orders.trim();
        cx.connections.limits.trim();
        cx.upstreams.requests.trim();
        cx.memory.pool.trim();
        // This call fills the allocator's cache, which takes more memory than a small burst leaves behind.
        if gone >= BURST_MIN {
            heap::give_back();
        }
        cx.memory.trim = Mono::NEVER;
    }

    /// Access for a request to the admin listener.
    pub(crate) fn admins(&mut self) -> AdminListener<'_> {
        AdminListener { clients: &mut self.clients, cx: &mut self.cx }
    }

    /// Passes an event to an exchange and performs the effects.
    fn tell(&mut self, id: ExchangeId, event: ExchangeEvent<'_>) {
        let Some(exchange) = self.exchanges.get_mut(id) else { return };
        // An exchange may outlast its client.
        let client = self.clients.table.get(exchange.job.request.client);
        let (head, body) = client.map_or((&[][..], &[][..]), ClientConnection::message);
        // The body's storage changes only while the body arrives.
        let arriving = client.filter(|_| matches!(event, ExchangeEvent::Body { .. }));
        let storage = arriving.map_or(0, ClientConnection::payload_storage);
        let (message, key) = (ClientMessage { exchange: id, head, body, storage }, exchange.job.request.found.key);
        let effect = exchange.on(event, &mut DriverCall { message, out: &mut self.clients.out, cx: &mut self.cx });
        self.perform(id, effect);
        self.cx.free_heavy(key);
    }

    /// Performs the effect of an event of an exchange.
    #[inline(always)] // else each effect is copied once more
    fn perform(&mut self, id: ExchangeId, effect: Effect) {
        while let Some((id, complete)) = self.clients.out.take_released() {
            self.providers.part(id, complete, &mut self.cx);
        }
        match effect {
            Effect::Nothing => {}
            Effect::Send(provider) => self.write_request(id, provider, true),
            other if other.ends() => self.perform_end(id, other),
            other => self.perform_other(id, other),
        }
    }

    /// Authorizes the head of a request whose key has been looked up.
    fn authorize_again(&mut self, id: ExchangeId, head: &RequestHead) {
        let Some(exchange) = self.exchanges.get(id) else { return };
        let cid = exchange.job.request.client;
        if let Some(client) = self.clients.table.get_mut(cid) {
            client.exchange = None;
        }
        self.authorize(id, head);
        // The client was hardly read while the request waited.
        self.cx.commands.dirty.push(client_conn(cid));
        self.clients.queue.push_back(Next::Advance(cid));
    }

    fn perform_other(&mut self, id: ExchangeId, effect: Effect) {
        let Some(exchange) = self.exchanges.get_mut(id) else { return };
        let (cid, key) = (exchange.job.request.client, exchange.job.request.found.key);
        match effect {
            Effect::Rearm => self.arm(cid),
            Effect::Translate(translate) => {
                let Some(client) = self.clients.table.get_mut(cid) else { return };
                let (mut draft, pool) = (translate.draft, &mut self.cx.memory.pool);
                draft.rewind(pool);
                let body = client.lend_message(pool);
                // Taken before the work begins, so that it cannot be missing later.
                if translate.target.is_some() {
                    draft.make_room(body.payload().len(), pool);
                }
                let lent = body.capacity() + draft.storage();
                exchange.state.lent(lent, &mut self.cx);
                let task = OffloadTask::Request { body, draft, from: translate.from, target: translate.target };
                let of = JobOwner { exchange: id, key, serial: translate.serial };
                self.cx.offload(of, lent, Default::default(), task);
                self.arm(cid);
            }
            Effect::CountOthers => {
                let payer = exchange.job.request.found.key.map(|key| self.cx.access.payer(key, &self.cx.setup.config));
                // With a group, the requests may belong to any key.
                let key = payer.and_then(|payer| payer.ok().filter(|payer| !payer.path.is_some()).map(|one| one.key));
                self.count_bounded(key);
                self.tell(id, ExchangeEvent::Counted);
            }
            Effect::Dial(dial) => self.dial(id, dial),
            Effect::Release => {
                if let Some(client) = self.clients.table.get_mut(cid) {
                    client.release_message(&mut self.cx.memory.pool);
                }
            }
            Effect::Linger(provider, until) => {
                self.clients.keep_received(exchange, &mut self.cx);
                self.providers.arm(provider, until, &mut self.cx);
            }
            Effect::Again => self.clients.queue.push_back(Next::Tell(id, ExchangeEvent::BodyEnd)),
            Effect::Forward(forward) => {
                self.clients.forward(&mut exchange.job, forward, &mut self.cx);
                if forward.rearms {
                    self.arm(cid);
                }
            }
            Effect::ForwardBulk(forward, bytes) => {
                self.clients.forward_bulk(&mut exchange.job, forward, bytes, &mut self.cx);
                self.arm(cid);
            }
            _ => debug_assert!(false, "this effect is performed elsewhere"),
        }
    }

    /// Makes requests that were admitted by a bound count their possible use: those of a key, or all.
    pub(crate) fn count_bounded(&mut self, key: Option<KeyIx>) {
        let bounded = |exchange: &Exchange| {
            exchange.job.is_bounded() && key.is_none_or(|key| exchange.job.request.found.key == Some(key))
        };
        self.tell_all(&bounded, &|| ExchangeEvent::Count);
    }

    /// Passes an event to all exchanges for which `wants` is true.
    #[inline(never)]
    pub(crate) fn tell_all(&mut self, wants: &dyn Fn(&Exchange) -> bool, event: &dyn Fn() -> ExchangeEvent<'static>) {
        let ids: Vec<ExchangeId> = self.exchanges.iter().filter(|(_, one)| wants(one)).map(|(id, _)| id).collect();
        for id in ids {
            if self.exchanges.get(id).is_some_and(wants) {
                self.tell(id, event());
            }
        }
    }

    /// Performs the effects of the end of an exchange.
    #[inline(never)]
    fn perform_end(&mut self, id: ExchangeId, effect: Effect) {
        if let Effect::Authorize(head) = &effect {
            return self.authorize_again(id, head);
        }
        // The exchange ends in its slot, since removing it first would copy it.
        let Some(exchange) = self.exchanges.get_mut(id) else { return };
        let cid = exchange.job.request.client;
        if let Some(client) = self.clients.table.get_mut(cid) {
            client.exchange = None;
        }
        match effect {
            Effect::End(forward, outcome) => self.clients.end_stream(exchange, forward, outcome, &mut self.cx),
            Effect::Answer(outcome) => self.clients.answer(exchange, outcome, &mut self.cx),
            Effect::AnswerBulk(outcome, body) => self.clients.answer_bulk(exchange, outcome, body, &mut self.cx),
            Effect::Refuse(refusal, outcome) => self.clients.refuse(exchange, &refusal, outcome, &mut self.cx),
            Effect::Quota => self.clients.answer_local(exchange, Endpoint::Quota, &mut self.cx),
            Effect::Gone(outcome) => {
                exchange.finish(outcome, &mut self.cx);
                self.clients.end_unanswered(exchange, &mut self.cx);
            }
            Effect::Cut(outcome) => {
                exchange.finish(outcome, &mut self.cx);
                self.clients.end_unanswered(exchange, &mut self.cx);
                self.clients.close(cid, Shut::Abort, &mut self.cx);
            }
            _ => debug_assert!(false, "this effect ends nothing"),
        }
        self.exchanges.discard(id);
        if self.clients.table.get(cid).is_some_and(ClientConnection::has_input) {
            self.clients.queue.push_back(Next::Advance(cid));
        }
    }

    /// Sets a client's one timer to its earliest deadline, those of its exchange included.
    pub(crate) fn arm(&mut self, id: ClientId) {
        let Some(client) = self.clients.table.get_mut(id) else { return };
        let due = earliest(client, &self.exchanges);
        self.cx.commands.timers.arm(client_conn(id), due);
    }
}
