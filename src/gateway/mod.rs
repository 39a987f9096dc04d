//! The sans-I/O core: where HTTP, the dialects and the policy meet. [`Gateway`] owns every connection's state and every
//! buffer; the world drives it by the verbs of [`Core`] and performs what it asks for. No sockets, no clocks, no
//! threads; nothing here may block.
//!
//! The one way of a request: `client` (bytes to messages) → `exchange` (its life) → `admit` (may it pass) → `route`
//! (which target, which connection) → `upstream` (the provider's connection) → `relay` (the answer's way back) →
//! `exchange::conclude` (its one end).

mod admit;
mod answers;
mod asking;
mod breaker;
mod charges;
mod client;
mod commit;
mod cors;
mod doors;
mod exchange;
mod fault;
mod flow;
mod ledger;
mod local;
mod log;
mod names;
pub mod orders;
mod outbox;
mod outgoing;
mod pool;
mod relay;
mod reload;
mod respond;
mod route;
mod stats;
mod upgrade;
mod upstream;
mod whole;
mod work;

use crate::base::buf::{BLOCK, Pool};
use crate::base::limits::{DRAIN_IDLE_GRACE, ROOM_MAX, WORK_MIN};
use crate::base::rng::Rng;
use crate::base::seam::{Action, Conn, Core, Ending, Reply, Side, Signal};
use crate::base::slots::{Id, Slots};
use crate::base::time::{Mono, Now, Unix};
use crate::base::timers::Timers;
use crate::policy::ask::Release;
use crate::policy::config::Config;
use crate::policy::keys::{KeyId, KeyRecord, Keys};
use crate::policy::meter::{Hold, Meter};
use crate::policy::row::Running;
use admit::Readiness;
use answers::DateCache;
use breaker::Breakers;
use charges::Charges;
use client::Client;
use doors::{Doors, Host, Welcome};
use exchange::Exchange;
use flow::Flows;
use ledger::Ledger;
use names::Names;
use orders::{Notice, Order};
use outgoing::{Drafts, Outgoing};
use pool::Idle;
use reload::Reading;
use stats::Stats;
use std::net::SocketAddr;
use std::sync::Arc;
use upgrade::{Handover, Inheritance};
use upstream::Upstream;

/// What the gateway starts from besides its configuration.
#[derive(Debug, Default)]
pub struct Start {
    /// Entropy for ids and hashing; a fixed one makes a run repeatable.
    pub seed: [u8; 32],
    /// Number of listeners that serve clients; those after them serve the admin endpoints.
    pub client_listeners: usize,
    /// All keys.
    pub keys: Vec<KeyRecord>,
    /// Tokens settled per key and UTC day (its first moment), since the beginning of the longest period, better since
    /// [`crate::policy::meter::DAYS_KEPT`] days ago.
    pub days: Vec<(KeyId, Unix, u64)>,
    /// Requests since the beginning of the longest window: key, admission, tokens. Their tokens are in `days` too.
    pub recent: Vec<(KeyId, Unix, u64)>,
    /// What a predecessor still serves; `None` if there is none.
    pub running: Option<Vec<Running>>,
    /// Bytes in one piece above which work is given away as an order; `None` for `limits::WORK_MIN`.
    pub work_min: Option<usize>,
}

/// How far stopping has come.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
struct Drain {
    /// Idle connections are closed from here on.
    idle_after: Mono,
    /// What still runs is ended here.
    until: Mono,
    /// That has been done.
    over: bool,
}

/// The gateway. See the module's documentation.
#[derive(Debug)]
pub struct Gateway {
    config: Arc<Config>,
    outgoing: Arc<Outgoing>,
    /// Number of the present configuration.
    epoch: u32,
    reading: Reading,
    client_listeners: usize,
    clients: Slots<Client>,
    doors: Doors,
    exchanges: Slots<Exchange>,
    upstreams: Slots<Upstream>,
    idle: Idle,
    names: Names,
    timers: Timers,
    pool: Pool,
    breakers: Breakers,
    drafts: Drafts,
    flows: Flows,
    charges: Charges,
    keys: Keys,
    meter: Meter,
    ledger: Ledger,
    stats: Stats,
    date: DateCache,
    rng: Rng,
    draining: Option<Drain>,
    handover: Handover,
    inheritance: Inheritance,
    /// Bytes of one piece that are looked at on the loop itself.
    work_min: usize,
    /// Work given away so far.
    works: u64,
    /// Where an answer is put together before it is framed into a client's unsent bytes; never kept across a verb.
    scratch: Vec<u8>,
    dirty: Vec<Conn>,
    actions: Vec<Action>,
    orders: Vec<Order>,
}

impl Gateway {
    /// A gateway that continues where the ledger stands.
    pub fn new(config: Arc<Config>, start: Start, now: Now) -> Gateway {
        let mut rng = Rng::new(start.seed);
        let mut keys = Keys::new(rng.next_u64());
        keys.load(start.keys);
        let room = config.server.max_connections.min(ROOM_MAX);
        let mut gateway = Gateway {
            outgoing: Arc::new(Outgoing::new(&config)),
            epoch: 0,
            reading: Reading::No,
            client_listeners: start.client_listeners,
            clients: Slots::with_room(room),
            doors: Doors::new(rng.next_u64()),
            exchanges: Slots::with_room(room),
            upstreams: Slots::with_room(room),
            idle: Idle::default(),
            names: Names::default(),
            timers: Timers::with_room(2 * room),
            pool: Pool::new(config.server.max_buffered),
            breakers: Breakers::default(),
            drafts: Drafts::default(),
            flows: Flows::default(),
            charges: Charges::default(),
            meter: Meter::with_room(keys.len()),
            keys,
            ledger: Ledger::default(),
            stats: Stats::default(),
            date: DateCache::default(),
            rng,
            draining: None,
            handover: Handover::None,
            inheritance: Inheritance::default(),
            work_min: start.work_min.unwrap_or(WORK_MIN),
            works: 0,
            scratch: Vec::new(),
            dirty: Vec::new(),
            actions: Vec::new(),
            orders: Vec::new(),
            config,
        };
        gateway.restore(&start.days, &start.recent, now);
        gateway.adopt(start.running, now);
        gateway.resolve_all(now);
        gateway
    }

    fn restore(&mut self, days: &[(KeyId, Unix, u64)], recent: &[(KeyId, Unix, u64)], now: Now) {
        for (id, day, tokens) in days {
            let Some(key) = self.keys.index_of(id) else { continue };
            let Some(plan) = self.config.plan(&self.keys.record(key).plan) else { continue };
            self.meter.restore_day(key, plan, now.unix, *day, *tokens);
        }
        for (id, admitted, tokens) in recent {
            let Some(key) = self.keys.index_of(id) else { continue };
            let Some(plan) = self.config.plan(&self.keys.record(key).plan) else { continue };
            self.meter.restore_row(key, plan, now.unix, *admitted, *tokens);
        }
    }

    /// Every host is looked up before the first request needs it.
    fn resolve_all(&mut self, now: Now) {
        let config = self.config.clone();
        for provider in config.providers.iter().filter(|provider| provider.addresses.is_empty()) {
            self.names.look_up(&provider.host, provider.port, now.mono, &mut self.actions);
        }
    }

    /// What can be taken at the moment, seen from one connection.
    fn readiness(&self, cid: Id<Client>, now: Now) -> Readiness {
        Readiness {
            drained: self.draining.is_some_and(|drain| drain.over) || self.handover == Handover::Given,
            crowded: self.clients.get(cid).is_some_and(|client| client.crowded),
            buffers: self.pool.has_room(BLOCK),
            store: self.takes_requests(now),
        }
    }

    fn begin_drain(&mut self, now: Now) {
        let until = now.mono.after(self.config.server.drain_timeout);
        match &mut self.draining {
            None => {
                // Who asks for our health shall hear that we are leaving, as long as we are here.
                self.actions.push(Action::StopAccepting(self.client_listeners));
                self.drain_until(now.mono.after(DRAIN_IDLE_GRACE).min(until), until, now);
            }
            // A process that hands over has no bound of its own.
            Some(drain) => drain.until = drain.until.min(until),
        }
    }

    fn drain_until(&mut self, idle_after: Mono, until: Mono, now: Now) {
        self.draining = Some(Drain { idle_after, until, over: false });
        for upstream in self.idle.drain() {
            self.close_upstream(upstream);
        }
        self.drain_on(now);
    }

    /// Goes on with stopping: closes what is idle, ends what runs too long, leaves when nothing is left.
    fn drain_on(&mut self, now: Now) {
        self.hand_over_on(now);
        let Some(drain) = &mut self.draining else { return };
        if now.mono >= drain.until && !drain.over {
            drain.over = true;
            self.end_all_clients(now);
        } else if now.mono >= drain.idle_after {
            self.close_idle_clients();
        }
        let is_over = self.draining.is_some_and(|drain| drain.over);
        if self.doors.clients() == 0 && (is_over || !self.is_needed()) {
            self.close_all_clients();
            self.actions.push(Action::Exit);
        }
    }

    /// For every connection that begins: those that have ended may have left alarms that are due much later.
    fn forget_stale_timers(&mut self) {
        let (clients, upstreams) = (&self.clients, &self.upstreams);
        self.timers.forget_stale(clients.len() + upstreams.len(), |at, conn| match conn.side {
            Side::Client => {
                clients.get(Id::new(conn.slot, conn.generation)).is_some_and(|client| client.alarm.is_at(at))
            }
            Side::Upstream => {
                upstreams.get(Id::new(conn.slot, conn.generation)).is_some_and(|upstream| upstream.alarm.is_at(at))
            }
        });
    }

    /// When stopping goes on by itself. Once everything has been told to end, the connections' own deadlines do.
    fn drain_deadline(&self) -> Option<Mono> {
        let drain = self.draining.filter(|drain| !drain.over)?;
        let idle = self.clients.iter().any(|(_, client)| client.is_idle() && !client.admin);
        Some(if idle { drain.idle_after } else { drain.until })
    }
}

/// How much of everything is in use: what the simulator checks, and what must be back to nothing at rest.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Vitals {
    /// Client connections.
    pub clients: usize,
    /// Requests that have a slot: their body is arriving or they are being answered.
    pub exchanges: usize,
    /// Upstream connections, idle ones included.
    pub upstreams: usize,
    /// Upstream connections kept for the next request.
    pub idle: usize,
    /// Reservations of the meter that are out.
    pub holds: usize,
    /// Bytes of buffer lent.
    pub buffered: usize,
    /// Entries of the timer heap, stale ones included.
    pub timers: usize,
}

impl Gateway {
    /// What is in use at the moment.
    pub fn vitals(&self) -> Vitals {
        Vitals {
            clients: self.clients.len(),
            exchanges: self.exchanges.len(),
            upstreams: self.upstreams.len(),
            idle: self.idle.len(),
            holds: self.meter.open_holds(),
            buffered: self.pool.lent(),
            timers: self.timers.len(),
        }
    }
}

impl Core for Gateway {
    type Order = Order;
    type Notice = Notice;

    fn accepted(&mut self, listener: usize, peer: SocketAddr, now: Now) -> Option<Conn> {
        let (admin, host) = (listener >= self.client_listeners, Host::of(peer.ip()));
        let welcome = self.doors.enter(host, admin, &self.config.server);
        if welcome == Welcome::Out {
            return None;
        }
        let id = self.clients.insert(Client::new(host, admin, welcome == Welcome::Crowded));
        if let Some(client) = self.clients.get_mut(id) {
            client.wait = now.mono.after(self.config.server.header_timeout);
        }
        self.arm_client(id);
        self.forget_stale_timers();
        Some(client::conn(id))
    }

    /// Beyond four fifths of the buffers nobody new is let in: what is left is for those who are. The admin listener
    /// is always open.
    fn wants_clients(&self, listener: usize) -> bool {
        listener >= self.client_listeners || self.pool.lent() <= self.pool.budget() / 5 * 4
    }

    fn bytes(&mut self, conn: Conn, data: &[u8], now: Now) {
        match conn.side {
            Side::Client => self.client_bytes(Id::new(conn.slot, conn.generation), data, now),
            Side::Upstream => self.upstream_bytes(Id::new(conn.slot, conn.generation), data, now),
        }
        self.drain_on(now);
    }

    fn closed(&mut self, conn: Conn, how: Ending, now: Now) {
        match conn.side {
            Side::Client => self.client_closed(Id::new(conn.slot, conn.generation), how, now),
            Side::Upstream => self.upstream_closed(Id::new(conn.slot, conn.generation), now),
        }
        self.drain_on(now);
    }

    fn wrote(&mut self, conn: Conn, count: usize, now: Now) {
        match conn.side {
            Side::Client => self.client_wrote(Id::new(conn.slot, conn.generation), count, now),
            Side::Upstream => self.upstream_wrote(Id::new(conn.slot, conn.generation), count, now),
        }
        self.drain_on(now);
    }

    fn reply(&mut self, reply: Reply, now: Now) {
        match reply {
            Reply::Dialed(conn) => self.dialed(Id::new(conn.slot, conn.generation)),
            Reply::DialFailed(conn, why) => self.dial_failed(Id::new(conn.slot, conn.generation), why, now),
            Reply::Named { host, port, addrs } => self.named(&host, port, addrs, now),
            Reply::Signal(Signal::Terminate) => self.begin_drain(now),
            Reply::Signal(Signal::Reload) => self.begin_reload(),
            Reply::Signal(Signal::Upgrade) => self.begin_upgrade(now),
        }
        self.drain_on(now);
    }

    fn notice(&mut self, notice: Notice, now: Now) {
        match notice {
            Notice::Keys(records) => self.keys.load(records),
            Notice::Committed(rows) => self.committed(rows, now),
            Notice::Answered(answer) => self.answered(answer, now),
            Notice::StoreFailed(why) => self.store_failed(&why, now),
            Notice::StoreRecovered => self.store_recovered(now),
            Notice::Worked(done) => self.worked(done, now),
            Notice::Reloaded(news) => self.reloaded(news, now),
            Notice::SuccessorReady => self.successor_ready(now),
            Notice::SuccessorFailed(why) => self.successor_failed(&why, now),
            Notice::Inherited(row) => self.inherited(row, now),
            Notice::PredecessorLeft => self.predecessor_left(now),
        }
        self.drain_on(now);
    }

    fn next_deadline(&self) -> Option<Mono> {
        let timer = self.timers.next().map(|(at, _)| at);
        [timer, self.drain_deadline(), self.handover_deadline()].into_iter().flatten().min()
    }

    fn expire(&mut self, now: Now) -> bool {
        let stopping = [self.drain_deadline(), self.handover_deadline()];
        if stopping.into_iter().flatten().any(|due| due <= now.mono) {
            self.drain_on(now);
        }
        let due = self.timers.next().filter(|(at, _)| *at <= now.mono);
        let Some((at, conn)) = due.and_then(|_| self.timers.pop()) else { return false };
        match conn.side {
            Side::Client => {
                let id = Id::new(conn.slot, conn.generation);
                let Some(client) = self.clients.get_mut(id) else { return true };
                let due = client.due(&self.exchanges);
                if self.timers.fired(&mut client.alarm, conn, at, due, now.mono) {
                    self.client_expired(id, now);
                }
            }
            Side::Upstream => {
                let id = Id::new(conn.slot, conn.generation);
                let Some(upstream) = self.upstreams.get_mut(id) else { return true };
                let due = upstream.wait;
                if self.timers.fired(&mut upstream.alarm, conn, at, due, now.mono) {
                    upstream.wait = Mono::NEVER;
                    self.upstream_expired(id, now);
                }
            }
        }
        self.drain_on(now);
        true
    }

    fn unsent(&self, conn: Conn) -> &[u8] {
        match conn.side {
            Side::Client => {
                self.clients.get(Id::new(conn.slot, conn.generation)).map_or(&[], |client| client.tx.bytes())
            }
            Side::Upstream => {
                self.upstreams.get(Id::new(conn.slot, conn.generation)).map_or(&[], |upstream| upstream.tx.bytes())
            }
        }
    }

    fn wants_read(&self, conn: Conn) -> bool {
        match conn.side {
            Side::Client => self.client_wants_read(Id::new(conn.slot, conn.generation)),
            Side::Upstream => self.upstream_wants_read(Id::new(conn.slot, conn.generation)),
        }
    }

    fn dirty(&mut self) -> &mut Vec<Conn> {
        &mut self.dirty
    }

    fn actions(&mut self) -> &mut Vec<Action> {
        &mut self.actions
    }

    fn orders(&mut self) -> &mut Vec<Order> {
        if self.pool.has_heavy() {
            self.discard_heavy();
        }
        &mut self.orders
    }

    fn panicked(&mut self, conn: Option<Conn>, now: Now) {
        self.stats.panics += 1;
        match conn {
            Some(Conn { side: Side::Client, slot, generation }) => self.drop_client(Id::new(slot, generation), now),
            Some(Conn { side: Side::Upstream, slot, generation }) => {
                let id = Id::new(slot, generation);
                let exchange = self.upstreams.get(id).and_then(|upstream| upstream.exchange);
                let client = exchange.and_then(|xid| self.exchanges.get(xid)).map(|ex| ex.client);
                match client {
                    Some(client) => self.drop_client(client, now),
                    None => self.close_upstream(id),
                }
            }
            None => {}
        }
        // An exchange that was being moved when the panic came is gone, and its hold with it.
        let own = self.exchanges.iter().filter_map(|(_, ex)| ex.hold.as_ref());
        let live: Vec<_> = own.chain(self.inherited_holds()).map(Hold::id).collect();
        for (key, lease) in self.meter.reclaim(|id| live.contains(&id)) {
            if lease.shared {
                self.give_back(Release { key: self.keys.record(key).id, lease });
            }
        }
    }

    fn turned(&mut self, micros: u64) {
        self.stats.turn(micros);
    }
}
