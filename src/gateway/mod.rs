//! The sans-I/O core: connects HTTP, the API formats and the policy. [`Gateway`] owns every connection's state and
//! every buffer; the driver calls the methods of [`Core`] and performs the actions that they return. No sockets, no
//! clocks, no threads; nothing here may block.
//!
//! Three state machines and a driver: `client` (the lifetime of a TCP connection), `exchange` (the lifetime of a
//! request) and `provider` (the lifetime of a connection to a provider) receive events and return effects; only `drive`
//! knows two of them. Everything else, from the configuration to the counters, is in `cx`.
//!
//! The path of a request: a head and a body from `client` → `exchange::authorize` (is it permitted) →
//! `exchange::reserve` (model, reservation) → `exchange::attempt` (which target, which connection) → `provider` (the
//! request out, the answer in) → `exchange::stream` or `exchange::reply` (the answer to the client) →
//! `exchange::finish` (its only end).

mod access_log;
mod admin;
mod alert_watch;
mod alerts;
mod budget;
mod budget_news;
mod budget_sums;
mod client;
mod clock;
mod credential;
mod cx;
mod diagnosis;
mod discovery;
mod drive;
mod event_log;
mod exchange;
mod granted;
mod grants;
mod helpers;
mod ids;
mod key_news;
mod ledger;
mod lifecycle;
mod local;
mod lookups;
mod metrics;
mod offload;
pub mod orders;
mod plans;
mod provider;
mod queue;
mod stranger_log;
mod trace;

use crate::base::limits::{ROOM_MAX, WORK_MIN};
use crate::base::seam::{Action, Conn, Core, Ending, ProcessVitals, Reply, Shut, Side, Signal, Stray};
use crate::base::slots::Slots;
use crate::base::time::{Mono, Now, Unix};
use crate::base::timers::Timers;
use crate::policy::ask::Release;
use crate::policy::attribution::HashKey;
use crate::policy::config::{Config, Reach};
use crate::policy::counters::Counters;
use crate::policy::keys::{KeyId, Keys};
use crate::policy::meter::Amount;
use crate::policy::meter::Hold;
use crate::policy::row::Running;
use crate::wire::json::write_string;
use budget::{Budget, Gate};
use client::limits::ConnectionVerdict;
use client::peer::mapped;
use client::places::PeerKey;
use clock::ClockGuard;
use cx::{Cx, CxStart, Setup};
use exchange::{Exchange, ExchangeEvent};
use ids::{ClientId, ClientName, ExchangeId, ExchangeName, ProviderId, ProviderName, client_conn, provider_conn};
use lifecycle::{inheritance, listing, reload, upgrade};
use orders::{Notice, Order};
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Inputs of the gateway in addition to its configuration.
#[derive(Debug, Default)]
pub struct Start {
    /// Entropy for ids and hashing; a fixed one makes a run repeatable.
    pub seed: [u8; 32],
    /// Secret from the ledger, used to hash users and conversations.
    pub hash_key: HashKey,
    /// Number of listeners that serve clients; those after them serve the admin endpoints.
    pub client_listeners: usize,
    /// Clients that can connect to the admin listener; `None` if there is none.
    pub admin: Option<Reach>,
    /// Descriptors for connections of clients and to providers; `None` for as many as are needed.
    pub descriptors: Option<usize>,
    /// All keys.
    pub keys: Keys,
    /// Usage settled per key, path and UTC day (its first moment), since the beginning of the longest period,
    /// preferably for the last [`crate::policy::meter::DAYS_KEPT`] days.
    pub days: Vec<Past>,
    /// Requests since the beginning of the longest window. Their usage is in `days` too.
    pub recent: Vec<Past>,
    /// Time of admission of the newest usage record; the clock must not be more than five minutes behind it.
    pub newest: Unix,
    /// Build date; the clock must not be more than five minutes behind it either.
    pub built: Unix,
    /// Requests that a predecessor still serves; `None` if there is no predecessor.
    pub running: Option<Vec<Running>>,
    /// Reads the system's data about this process whenever metrics are read; must not block. `None`: no such metrics.
    pub process: Option<fn() -> ProcessVitals>,
    /// A monotonic clock, read at each admission by a grant of the shared ledger: the time of the current call is too
    /// old for that, since the process may have been suspended. `None`: there are no grants.
    pub watch: Option<fn() -> Mono>,
    /// Bytes in one piece above which a job goes to a helper thread; `None` for `limits::WORK_MIN`.
    pub work_min: Option<usize>,
}

/// Usage according to the ledger.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Past {
    /// Key that used it.
    pub key: KeyId,
    /// The path of groups under which it was admitted, see [`crate::policy::row::Row::group`].
    pub group: Arc<str>,
    /// Time of use.
    pub at: Unix,
    /// Amount used.
    pub used: Amount,
}

/// Remaining work of the current call.
#[derive(Debug)]
enum Next {
    /// Process the input after an answered request.
    Advance(ClientId),
    /// Deliver this event to an exchange.
    Tell(ExchangeId, ExchangeEvent<'static>),
}

/// The gateway. See the module's documentation.
#[derive(Debug)]
pub struct Gateway {
    clients: Slots<client::ClientConnection, ClientName>,
    exchanges: Slots<Exchange, ExchangeName>,
    providers: Slots<provider::ProviderConnection, ProviderName>,
    cx: Cx,
    /// Number of listeners that serve clients; those after them serve the admin endpoints.
    client_listeners: usize,
    /// See [`Start::process`].
    process: Option<fn() -> ProcessVitals>,
    timers: Timers,
    /// The worklist of the current call.
    queue: VecDeque<Next>,
    dirty: Vec<Conn>,
    /// Clients whose pipelined requests wait until other connections have been served; each only once.
    paused: VecDeque<ClientId>,
    /// The one being served.
    resumed: Option<ClientId>,
    /// Number of walks over all clients, for [`Vitals`]: the cost of an event must not grow with their number.
    walks: u64,
}

impl Gateway {
    /// Creates a gateway that continues from the state of the ledger.
    pub fn new(config: Arc<Config>, start: Start, now: Now) -> Gateway {
        let room = config.server.max_connections.min(ROOM_MAX);
        let offload_min = start.work_min.unwrap_or(WORK_MIN);
        let Start { seed, hash_key, keys, admin, descriptors, .. } = start;
        let setup = Setup::new(config, 0);
        let mut cx = Cx::new(CxStart { setup, seed, hash_key, keys, admin, descriptors, offload_min, now });
        if admin.is_some() && cx.setup.config.server.record_requests {
            cx.recorder.start(now.unix);
        }
        cx.grants.watch = start.watch;
        cx.clock = ClockGuard::new(start.newest, start.built);
        for Past { key, group, at, used } in &start.days {
            let path = cx.meter.path(group);
            cx.meter.restore_groups_day(path, now.unix, *at, *used);
            let Some((key, plan)) = cx.counted_key(key) else { continue };
            cx.meter.restore_day(key, &plan, now.unix, *at, *used);
        }
        for Past { key, group, at, used } in &start.recent {
            let path = cx.meter.path(group);
            cx.meter.restore_groups_row(path, now.unix, *at, used.tokens);
            let Some((key, plan)) = cx.counted_key(key) else { continue };
            cx.meter.restore_row(key, &plan, now.unix, *at, used.tokens);
        }
        inheritance::adopt(start.running, &mut cx);
        cx.look_up_all();
        cx.discovery.restart(&cx.setup.config, now.mono);
        cx.warn_of_missing();
        cx.look_at_clock();
        cx.announce_alerts(None);
        Gateway {
            clients: Slots::with_room(room),
            exchanges: Slots::with_room(room),
            providers: Slots::with_room(room),
            cx,
            client_listeners: start.client_listeners,
            process: start.process,
            timers: Timers::with_room(room),
            queue: VecDeque::new(),
            dirty: Vec::new(),
            paused: VecDeque::new(),
            resumed: None,
            walks: 0,
        }
    }

    /// Continues from the counters of a predecessor.
    pub fn count_on(&mut self, counters: &Counters) {
        self.cx.add_counters(counters);
        self.cx.rebase_minutes();
    }

    /// Earliest time at which the gateway itself has to act, apart from connections and exchanges; `NEVER` if there is
    /// none.
    #[inline]
    fn own_due(&self) -> Mono {
        let (lifecycle, never) = (&self.cx.lifecycle, Mono::NEVER);
        let drain = lifecycle.drain.as_ref().and_then(|drain| drain.due()).unwrap_or(never);
        let handover = lifecycle.handover.due().unwrap_or(never);
        let drain = drain.min(handover).min(lifecycle.lead.unwrap_or(never));
        let keys_and_clock = self.cx.lookups.due().min(self.cx.clock.due()).min(self.cx.lookups.sums.due());
        let others = self.cx.queues.wake().min(self.cx.discovery.due()).min(self.cx.stranger_log.due());
        drain.min(others).min(keys_and_clock).min(self.cx.recorder.due())
    }

    /// True if it has stopped because a newer version must be started instead.
    pub fn is_outgrown(&self) -> bool {
        self.cx.lifecycle.outgrown
    }

    /// Counts everything currently in use.
    pub fn vitals(&self) -> Vitals {
        debug_assert!(self.clients.iter().all(|(id, client)| {
            let due = earliest(client, &self.exchanges);
            due == Mono::NEVER || !self.timers.is_late(client_conn(id), due)
        }));
        Vitals {
            clients: self.clients.len(),
            exchanges: self.exchanges.len(),
            upstreams: self.providers.len(),
            idle: self.cx.idle.len(),
            holds: self.cx.meter.open_holds(),
            flying: self.cx.breakers.busy(),
            flying_most: self.cx.breakers.busiest(),
            buffered: self.cx.pool.lent(),
            promised: self.cx.pool.promised(),
            queued: self.cx.queues.lengths().map(|(_, length)| length).sum(),
            timers: self.timers.len(),
            walks: self.walks,
        }
    }
}

fn client_id(conn: Conn) -> ClientId {
    ClientId::new(conn.slot, conn.generation)
}

fn provider_id(conn: Conn) -> ProviderId {
    ProviderId::new(conn.slot, conn.generation)
}

/// Earliest deadline of a client, including its exchange.
#[inline]
fn earliest(client: &client::ClientConnection, exchanges: &Slots<Exchange, ExchangeName>) -> Mono {
    let exchange = client.exchange.and_then(|exchange| exchanges.get(exchange));
    exchange.map_or(client.due(), |exchange| client.due().min(exchange.due()))
}

/// Numbers of everything in use: the simulator checks them, and they must be zero again when idle.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Vitals {
    /// Client connections.
    pub clients: usize,
    /// Requests that have a slot: their body is arriving or they are being answered.
    pub exchanges: usize,
    /// Connections to providers, idle ones included.
    pub upstreams: usize,
    /// Connections to providers kept for the next request.
    pub idle: usize,
    /// Number of reservations in the meter.
    pub holds: usize,
    /// Attempts that count as in flight at their targets.
    pub flying: usize,
    /// Maximum number of attempts in flight at one target.
    pub flying_most: usize,
    /// Requests that wait for slots.
    pub queued: usize,
    /// Bytes of buffers lent.
    pub buffered: usize,
    /// Bytes of buffers reserved for bodies that have not arrived.
    pub promised: usize,
    /// Entries of the timer heap, stale ones included.
    pub timers: usize,
    /// Walks over all clients so far.
    pub walks: u64,
}

impl Core for Gateway {
    type Order = Order;
    type Notice = Notice;

    fn accepted(&mut self, listener: usize, peer: SocketAddr, now: Now) -> Option<Conn> {
        self.cx.now = now;
        let (admin, host) = (listener >= self.client_listeners, PeerKey::of(peer.ip()));
        let server = &self.cx.setup.config.server;
        let is_full = !admin && self.cx.limits.is_full(host, server);
        let leave = if is_full { self.idlest_clients() } else { Vec::new() };
        let server = &self.cx.setup.config.server;
        let (verdict, goes) = self.cx.limits.welcome(admin, host, !leave.is_empty(), server);
        if verdict == ConnectionVerdict::Out {
            goes.into_iter().flatten().for_each(|goes| self.make_room(goes));
            return None;
        }
        let by = now.mono.after(server.header_timeout);
        let id = self.clients.insert(client::ClientConnection::new(admin, verdict == ConnectionVerdict::Crowded, by));
        self.cx.peers.connected(id, mapped(peer.ip()));
        self.cx.limits.enter(admin, id.slot, host);
        self.arm(id);
        goes.into_iter().flatten().for_each(|goes| self.make_room(goes));
        self.cx.limits.makes_room(leave.len());
        leave.into_iter().for_each(|id| self.close_client(id, Shut::Clean));
        Some(client_conn(id))
    }

    /// True if new clients are accepted. Under memory pressure none are: the remaining buffers are for connected
    /// clients. One key alone cannot cause that. During a hand-over, new clients wait for its result. The admin
    /// listener always accepts.
    fn wants_clients(&self, listener: usize) -> bool {
        let is_open = self.cx.gate == Gate::Open && !self.cx.lifecycle.handover.holds_clients_back();
        listener >= self.client_listeners || is_open
    }

    fn begins_with_proxy(&self, conn: Conn) -> bool {
        let server = &self.cx.setup.config.server;
        let client = || self.clients.get(client_id(conn)).filter(|client| !client.admin);
        let is_trusted = |peer| server.trusted_proxies.iter().any(|network| network.contains(peer));
        server.proxy_protocol && client().is_some() && is_trusted(self.cx.peers.socket(client_id(conn)))
    }

    fn proxied(&mut self, conn: Conn, from: Option<IpAddr>, now: Now) {
        self.cx.now = now;
        if let (Some(from), Some(_)) = (from, self.clients.get(client_id(conn))) {
            self.cx.peers.told(client_id(conn), mapped(from));
        }
    }

    fn strayed(&mut self, conn: Conn, how: Stray, now: Now) -> bool {
        self.cx.now = now;
        self.client_strayed(client_id(conn), how);
        self.settle_down();
        true
    }

    fn bytes(&mut self, conn: Conn, data: &[u8], now: Now) {
        self.cx.now = now;
        match conn.side {
            Side::Client => self.client_bytes(client_id(conn), data),
            Side::Upstream => self.provider_bytes(provider_id(conn), data),
        }
        self.settle_down();
    }

    fn heard(&mut self, conn: Conn, now: Now) {
        self.cx.now = now;
        self.client_heard(client_id(conn));
        self.settle_down();
    }

    fn closed(&mut self, conn: Conn, how: Ending, now: Now) {
        self.cx.now = now;
        match conn.side {
            Side::Client => self.client_ended(client_id(conn), how),
            Side::Upstream => self.provider_ended(provider_id(conn), how),
        }
        self.settle_down();
    }

    fn wrote(&mut self, conn: Conn, count: usize, now: Now) -> bool {
        self.cx.now = now;
        let may_go_on = match conn.side {
            Side::Client => self.client_wrote(client_id(conn), count),
            Side::Upstream => self.provider_wrote(provider_id(conn), count),
        };
        self.settle_down();
        may_go_on
    }

    fn reply(&mut self, reply: Reply, now: Now) {
        self.cx.now = now;
        match reply {
            Reply::Dialed(conn) => self.dialed(provider_id(conn)),
            Reply::DialFailed(conn, why) => self.dial_failed(provider_id(conn), why),
            Reply::Named { host, port, addrs } => self.named(&host, port, addrs),
            Reply::Signal(Signal::Terminate) => self.told_to_stop(),
            Reply::Signal(Signal::Reload) => reload::begin(&mut self.cx),
            Reply::Signal(Signal::Upgrade) => self.begin_handover(),
        }
        self.settle_down();
    }

    fn notice(&mut self, notice: Notice, now: Now) {
        self.cx.now = now;
        match notice {
            Notice::Keys(news) => self.cx.keys_news(news),
            Notice::Committed(rows) => self.committed(rows),
            Notice::Answered(answer) => self.ruled(&answer),
            Notice::CalledIn(account) => self.cx.called_in(&account),
            Notice::BegunAnew => self.cx.reset_counts(),
            Notice::LookedUp(answers) => answers.into_iter().for_each(|(key, answer)| self.looked_up(key, answer)),
            Notice::Newest { at, accepted } => {
                self.cx.clock.told(at, accepted);
                self.cx.look_at_clock();
            }
            Notice::StoreFailed(why) => {
                self.cx.log_event(|out| {
                    out.extend_from_slice(b",\"event\":\"ledger\",\"outcome\":\"failed\",\"error\":");
                    write_string(out, &why);
                });
                self.store_failed();
            }
            Notice::StoreOutgrown(why) => {
                self.cx.log_upgrade(&format!("ending, since a newer version has changed the ledger: {why}"));
                self.cx.lifecycle.outgrown = true;
                self.terminate();
            }
            Notice::StoreRecovered => {
                self.cx.ledger.failed(false);
                self.cx.log_event(|out| out.extend_from_slice(b",\"event\":\"ledger\",\"outcome\":\"recovered\""));
            }
            Notice::Spans(lost, news) => self.spans_lost(lost, news),
            Notice::LookForTrouble => self.cx.look_for_trouble(),
            Notice::Worked(done) => self.offloaded(done),
            Notice::Desk(answer) => self.desk_answered(*answer),
            Notice::SecretTold(origin, value) => {
                reload::secret_told(&origin, value.as_deref().map_err(String::as_str), &mut self.cx);
                self.secret_asked(&origin);
            }
            Notice::Listed(listing) => listing::listed(listing, &mut self.cx),
            Notice::Reloaded(news) => {
                if reload::finish(news, &mut self.cx) {
                    self.close_idle_providers();
                }
            }
            Notice::SuccessorReady => self.hand_over(upgrade::UpgradeEvent::Ready),
            Notice::SuccessorTaken => self.hand_over(upgrade::UpgradeEvent::Taken),
            Notice::SuccessorFailed(why) => {
                self.cx.log_upgrade(&why);
                self.hand_over(upgrade::UpgradeEvent::Failed);
            }
            Notice::SuccessorGone => self.hand_over(upgrade::UpgradeEvent::Gone),
            Notice::Counted(counters) => self.cx.add_counters(&counters),
            Notice::Inherited(row) => inheritance::inherited(row, &mut self.cx),
            Notice::PredecessorLeft => inheritance::predecessor_left(&mut self.cx),
        }
        self.settle_down();
    }

    fn next_deadline(&self) -> Option<Mono> {
        if !self.paused.is_empty() {
            return Some(self.cx.now.mono);
        }
        let timer = self.timers.next().map(|(at, _)| at);
        let due = timer.unwrap_or(Mono::NEVER).min(self.own_due());
        (due != Mono::NEVER).then_some(due)
    }

    fn expire(&mut self, now: Now) -> bool {
        self.cx.now = now;
        if self.own_due() <= now.mono {
            self.cx.queues.woken(now.mono);
            self.cx.lookups.ask(now.mono, &mut self.cx.orders);
            if self.cx.lookups.sums.due() <= now.mono {
                budget_news::ask_for_sums(&mut self.cx);
            }
            if self.cx.clock.due() <= now.mono {
                self.cx.look_at_clock();
            }
            if self.cx.recorder.due() <= now.mono {
                self.cx.close_minute();
            }
            listing::ask(&mut self.cx);
            self.cx.tell_of_suppressed(false);
            if self.cx.lifecycle.lead.is_some_and(|lead| lead <= now.mono) {
                self.terminate();
            }
            self.settle_down();
        }
        let due = self.timers.next().filter(|(at, _)| *at <= now.mono);
        let Some((_, owner)) = due else { return self.resume_paused() };
        match owner.side() {
            Side::Client => {
                let Some((id, client)) = self.clients.tenant(owner.slot()) else { return self.timers.strike(owner) };
                let due = earliest(client, &self.exchanges);
                if self.timers.fired(client_conn(id), due, now.mono) {
                    self.client_expired(id);
                }
            }
            Side::Upstream => {
                let Some((id, provider)) = self.providers.tenant(owner.slot()) else {
                    return self.timers.strike(owner);
                };
                if self.timers.fired(provider_conn(id), provider.wait, now.mono) {
                    self.close_provider(id);
                }
            }
        }
        self.settle_down();
        true
    }

    #[inline]
    fn unsent(&self, conn: Conn) -> &[u8] {
        match conn.side {
            Side::Client => self.clients.get(client_id(conn)).map_or(&[], |client| client.unsent()),
            Side::Upstream => self.providers.get(provider_id(conn)).map_or(&[], |provider| provider.unsent()),
        }
    }

    fn wants_read(&self, conn: Conn) -> bool {
        match conn.side {
            Side::Client => {
                let room = self.cx.gate == Gate::Open;
                self.clients.get(client_id(conn)).is_some_and(|client| client.wants_read(room || client.admin))
            }
            Side::Upstream => self.provider_wants_read(provider_id(conn)),
        }
    }

    fn is_paused(&self, conn: Conn) -> bool {
        conn.side == Side::Client && self.clients.get(client_id(conn)).is_some_and(|client| client.is_paused())
    }

    fn dirty(&mut self) -> &mut Vec<Conn> {
        &mut self.dirty
    }

    fn actions(&mut self) -> &mut Vec<Action> {
        &mut self.cx.actions
    }

    #[inline]
    fn orders(&mut self) -> &mut Vec<Order> {
        if self.cx.pool.has_heavy() {
            self.cx.discard_heavy(None);
        }
        self.cx.orders.hand_over()
    }

    fn has_orders(&mut self) -> bool {
        self.cx.pool.has_heavy() || self.cx.orders.is_given()
    }

    fn panicked(&mut self, conn: Option<Conn>, now: Now) {
        self.cx.now = now;
        self.cx.stats.panics += 1;
        match conn {
            Some(conn) if conn.side == Side::Client => self.drop_client(client_id(conn)),
            Some(conn) => {
                let exchange = self.providers.get(provider_id(conn)).and_then(|provider| provider.exchange);
                match exchange.and_then(|id| self.exchanges.get(id)).map(|exchange| exchange.job.request.client) {
                    Some(client) => self.drop_client(client),
                    None => self.close_provider(provider_id(conn)),
                }
            }
            None => {
                if let Some(id) = self.resumed.take() {
                    self.drop_client(id);
                }
            }
        }
        // Drop exchanges not yet attached to a client.
        let is_alone = |exchange: &Exchange| self.clients.get(exchange.job.request.client).is_none();
        let alone: Vec<_> = self.exchanges.iter().filter(|(_, one)| is_alone(one)).map(|(id, _)| id).collect();
        for id in alone {
            drop(self.exchanges.remove(id));
        }
        // An exchange that was being moved during the panic is lost, and its reservation with it.
        let own = self.exchanges.iter().filter_map(|(_, exchange)| exchange.job.hold());
        let live: Vec<_> = own.chain(self.cx.lifecycle.inheritance.holds()).map(Hold::id).collect();
        for (key, lease) in self.cx.meter.reclaim(|id| live.contains(&id)) {
            if lease.shared {
                self.cx.orders.give_back(Release { key: self.cx.keys.get(key).id(), lease, unsent: false });
            }
        }
        self.cx.turns.served = None;
        self.cx.queues.recount(|id| self.exchanges.get(id).is_some_and(|one| one.state.is_queued()));
        self.cx.breakers.recount(self.exchanges.iter().filter_map(|(_, exchange)| exchange.job.flies_at()));
        // Rebuild the buffer accounting too.
        let clients: usize = self.clients.iter().map(|(_, client)| client.storage()).sum();
        let exchanges: usize = self.exchanges.iter().map(|(_, exchange)| exchange.state.storage()).sum();
        let providers: usize = self.providers.iter().map(|(_, provider)| provider.storage()).sum();
        self.cx.pool.recount(clients + exchanges + providers);
        let promised = self.exchanges.iter().flat_map(|(_, exchange)| exchange.state.promises());
        let unread = self.clients.iter().map(|(_, client)| &client.unread);
        let kept: Vec<_> = self.exchanges.iter().filter_map(|(_, exchange)| exchange.charge()).collect();
        self.cx.budget.recount(promised.chain(unread).chain(&kept), &mut self.cx.pool);
        self.cx.gate = Budget::gate(&self.cx.pool, self.cx.gate);
    }

    fn turned(&mut self, micros: u64) {
        self.cx.stats.turn(micros);
    }
}

#[cfg(test)]
mod tests;
