//! The sans-I/O core: connects HTTP, the API formats and the policy. [`Gateway`] owns every connection's state and
//! every buffer; the driver calls the methods of [`Core`] and performs the actions that they return. No sockets, no
//! clocks, no threads; nothing here may block.
//!
//! Three state machines and a driver: `client` (the lifetime of a TCP connection), `exchange` (the lifetime of a
//! request) and `provider` (the lifetime of a connection to a provider) receive events and return effects; only `drive`
//! knows two of them. Everything else, from the configuration to the counters, is in `cx`.
//!
//! The path of a request is in the map, `src/lib.rs`.

mod accounts;
mod admin;
mod client;
pub mod counters;
mod cx;
mod drive;
mod exchange;
mod ids;
mod lifecycle;
mod memory;
pub mod orders;
mod provider;
mod queue;
pub mod redactor;
mod report;
mod upkeep;

use crate::base::limits::ROOM_MAX;
use crate::base::limits::SEND_SLICE;
use crate::base::seam::{Action, Conn, Core, Ending, Reply, Shut, Side, Signal, Stray};
use crate::base::time::{Mono, Now};
use crate::policy::cause::Advice;
use crate::policy::config::Config;
use crate::policy::keys::KeyIx;
use crate::policy::ledger::LedgerNotice;
use crate::policy::ledger::Release;
use crate::policy::meter::{Amount, Hold, Restored};
use crate::policy::plan::caps::Resource;
use crate::wire::json::write_string;
use client::connection_limits::ConnectionVerdict;
use client::peer::mapped;
use client::seats::PeerKey;
use cx::{Cx, Setup};
use drive::{Driver, earliest};
use exchange::{Exchange, ExchangeEvent, target_hold};
use ids::{ClientId, ProviderId, client_conn, provider_conn};
pub use lifecycle::start::{Past, PastOfTarget, Start};
use lifecycle::upgrade;
use memory::shares::Gate;
use orders::{Notice, Order};
use queue::Look;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use upkeep::{inheritance, listing, reload};

/// Bytes that wait to be sent to one provider, besides the head of the request: a slice, and what is inserted into it.
const SEND_QUEUE_MAX: usize = 2 * SEND_SLICE;

/// The gateway. See the module's documentation.
#[derive(Debug)]
pub struct Gateway {
    driver: Driver,
    /// Number of listeners that serve clients; those after them serve the admin endpoints.
    client_listeners: usize,
}

impl Gateway {
    /// Creates a gateway that continues from the state of the ledger.
    pub fn new(config: Arc<Config>, mut start: Start, now: Now) -> Gateway {
        let room = config.server.max_connections.min(ROOM_MAX);
        let mut cx = Cx::new(Setup::new(config, 0), &mut start, now);
        if start.admin.is_some() && cx.setup.config.server.record_requests {
            cx.report.recorder.start(now.unix);
        }
        cx.report.recorder.inherit(start.recorded, now.unix);
        cx.accounts.grants.watch = start.watch;
        let (days, recent) =
            (start.days.iter().map(|past| (true, past)), start.recent.iter().map(|past| (false, past)));
        for (is_day, Past { key, group, at, used, requests, model, target }) in days.chain(recent) {
            let past = Restored { is_day, at: *at, requests: *requests, used: *used, model };
            if !is_day {
                cx.accounts.targets.restore(target, now.unix, &past);
            }
            let path = cx.accounts.meter.path(group);
            cx.accounts.meter.restore_groups(path, now.unix, &past);
            let Some((key, plan)) = cx.counted_key(key) else { continue };
            cx.accounts.meter.restore(key, &plan, now.unix, &past);
        }
        for PastOfTarget { target, at, used, requests } in &start.target_days {
            let past = Restored { is_day: true, at: *at, requests: *requests, used: *used, model: "" };
            cx.accounts.targets.restore(target, now.unix, &past);
        }
        inheritance::adopt(start.running, &mut cx);
        cx.look_up_all();
        cx.upstreams.discovery.restart(&cx.setup.config, now.mono);
        cx.warn_of_missing();
        cx.begin_captures();
        cx.look_at_clock();
        cx.announce_alerts(None);
        Gateway { driver: Driver::with_room(room, cx), client_listeners: start.client_listeners }
    }

    /// Continues with the pipelined requests of the connection that has waited longest for it. False if none waits.
    fn resume_paused(&mut self) -> bool {
        let driver = &mut self.driver;
        driver.clients.resumed = driver.clients.paused.pop_front();
        let Some(id) = driver.clients.resumed else { return false };
        if let Some(client) = driver.clients.table.get_mut(id) {
            client.resume();
            driver.advance(id);
            // The connection may be read again.
            driver.cx.commands.dirty.push(client_conn(id));
        }
        self.settle_down();
        self.driver.clients.resumed = None;
        true
    }

    /// The driver, at the beginning of a call.
    #[inline]
    fn at(&mut self, now: Now) -> &mut Driver {
        self.driver.cx.now = now;
        &mut self.driver
    }

    /// True if it has stopped because a newer version must be started instead.
    pub fn is_outgrown(&self) -> bool {
        self.driver.cx.lifecycle.outgrown
    }

    /// Number of requests that wait at `now` although a slot is free: 0 between two calls.
    pub fn overlooked(&mut self, now: Now) -> usize {
        let driver = &mut self.driver;
        let (exchanges, breakers, setup) = (&driver.exchanges, &mut driver.cx.upstreams.breakers, &driver.cx.setup);
        let (keys, limits) = (&driver.cx.access.keys, &mut driver.cx.accounts.targets);
        let queued = exchanges.iter().map(|(_, exchange)| exchange).filter(|exchange| exchange.state.is_queued());
        let is_served = |one: &&Exchange| {
            one.state.look_for_place(&one.job, breakers, keys, setup, (&mut *limits, now)) == Look::Served
        };
        queued.filter(is_served).count()
    }

    /// Amount by which use and reservations of keys with strict limits are above these limits; the most of any.
    pub fn over_strict_limits(&mut self, now: Now) -> Amount {
        let cx = &mut self.driver.cx;
        let keys = (0..cx.access.keys.len() as u32).map(KeyIx);
        let strict = keys.filter(|key| cx.access.plans.is_strict(*key, &cx.access.keys));
        let payers = strict.filter_map(|key| cx.access.payer(key, &cx.setup.config).ok());
        let limits = payers.flat_map(|payer| cx.accounts.meter.limits(payer, now.unix));
        limits.fold(Amount::default(), |most, limit| {
            let over = (limit.used + limit.reserved).saturating_sub(limit.cap.total);
            match limit.cap.resource {
                Resource::Tokens => Amount { tokens: most.tokens.max(over), ..most },
                Resource::Budget => Amount { nano: most.nano.max(over), ..most },
                Resource::Requests | Resource::Running => most,
            }
        })
    }

    /// Counts everything currently in use.
    pub fn vitals(&self) -> Vitals {
        let Driver { clients, exchanges, providers, cx } = &self.driver;
        debug_assert!(clients.table.iter().all(|(id, client)| {
            let due = earliest(client, exchanges);
            due == Mono::NEVER || !cx.commands.timers.is_late(client_conn(id), due)
        }));
        Vitals {
            clients: clients.table.len(),
            exchanges: exchanges.len(),
            upstreams: providers.table.len(),
            idle: cx.upstreams.idle.len(),
            holds: cx.accounts.meter.open_holds(),
            target_holds: cx.accounts.targets.open_holds(),
            flying: cx.upstreams.breakers.busy(),
            flying_most: cx.upstreams.breakers.busiest(),
            buffered: cx.memory.pool.lent(),
            promised: cx.memory.pool.promised(),
            queued: cx.upstreams.queues.lengths().map(|(_, length)| length).sum(),
            timers: cx.commands.timers.len(),
            walks: clients.walks,
        }
    }
}

fn client_id(conn: Conn) -> ClientId {
    ClientId::new(conn.slot, conn.generation)
}

fn provider_id(conn: Conn) -> ProviderId {
    ProviderId::new(conn.slot, conn.generation)
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
    /// Number of reservations of limits of targets.
    pub target_holds: usize,
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

impl Gateway {
    /// The thread of the ledger reports something.
    fn ledger_notice(&mut self, notice: LedgerNotice, now: Now) {
        let driver = self.at(now);
        match notice {
            LedgerNotice::Keys(news) => driver.cx.keys_news(news),
            LedgerNotice::Committed(rows) => driver.committed(rows),
            LedgerNotice::Answered(answer) => driver.ruled(&answer),
            LedgerNotice::CalledIn(account) => driver.cx.called_in(&account),
            LedgerNotice::BegunAnew => driver.cx.reset_counts(),
            LedgerNotice::LookedUp(answers) => {
                answers.into_iter().for_each(|(key, answer)| driver.looked_up(key, answer))
            }
            LedgerNotice::Newest { at, accepted } => {
                driver.cx.accounts.clock.note_newest(at, accepted);
                driver.cx.look_at_clock();
            }
            LedgerNotice::Failed(why) => {
                driver.cx.log_event(|out| {
                    out.extend_from_slice(b",\"event\":\"ledger\",\"outcome\":\"failed\",\"error\":");
                    write_string(out, &why);
                    Advice::LEDGER.write(out);
                });
                driver.store_failed(why);
            }
            LedgerNotice::Outgrown(why) => {
                driver.cx.log_upgrade(&format!("ending, since a newer version has changed the ledger: {why}"));
                driver.cx.lifecycle.outgrown = true;
                self.terminate();
            }
            LedgerNotice::Recovered => {
                driver.cx.accounts.ledger.recovered();
                driver.cx.log_event(|out| out.extend_from_slice(b",\"event\":\"ledger\",\"outcome\":\"recovered\""));
            }
            LedgerNotice::Warning(text) => upkeep::event_log::warn(&text, &mut driver.cx),
        }
    }
}

impl Core for Gateway {
    type Order = Order;
    type Notice = Notice;

    fn accepted(&mut self, listener: usize, peer: SocketAddr, now: Now) -> Option<Conn> {
        let (admin, host) = (listener >= self.client_listeners, PeerKey::from_ip(peer.ip()));
        let driver = self.at(now);
        let server = &driver.cx.setup.config.server;
        let is_full = !admin && driver.cx.connections.limits.is_full(host, server);
        let leave = if is_full { driver.clients.idlest() } else { Vec::new() };
        let server = &driver.cx.setup.config.server;
        let (verdict, goes) = driver.cx.connections.limits.welcome(admin, host, !leave.is_empty(), server);
        if verdict == ConnectionVerdict::Out {
            goes.into_iter().flatten().for_each(|goes| driver.make_room(goes));
            return None;
        }
        let by = now.mono.after(server.header_timeout);
        let id = driver.clients.table.insert(client::ClientConnection::new(
            admin,
            verdict == ConnectionVerdict::Crowded,
            by,
        ));
        driver.cx.connections.peers.connected(id, mapped(peer.ip()));
        driver.cx.connections.limits.enter(admin, id.slot, host);
        driver.arm(id);
        goes.into_iter().flatten().for_each(|goes| driver.make_room(goes));
        driver.cx.connections.limits.turned_away += leave.len() as u64;
        leave.into_iter().for_each(|id| driver.clients.close(id, Shut::Clean, &mut driver.cx));
        Some(client_conn(id))
    }

    /// True if new clients are accepted. Under memory pressure none are: the remaining buffers are for connected
    /// clients. One key alone cannot cause that. During a hand-over, new clients wait for its result. The admin
    /// listener always accepts.
    fn wants_clients(&self, listener: usize) -> bool {
        let cx = &self.driver.cx;
        let is_open = cx.memory.gate == Gate::Open && !cx.lifecycle.handover.holds_clients_back();
        listener >= self.client_listeners || is_open
    }

    fn begins_with_proxy(&self, conn: Conn) -> bool {
        let server = &self.driver.cx.setup.config.server;
        let client = || self.driver.clients.table.get(client_id(conn)).filter(|client| !client.admin);
        let is_trusted = |peer| server.trusted_proxies.iter().any(|network| network.contains(peer));
        server.proxy_protocol
            && client().is_some()
            && is_trusted(self.driver.cx.connections.peers.socket(client_id(conn)))
    }

    fn proxied(&mut self, conn: Conn, from: Option<IpAddr>, now: Now) {
        let driver = self.at(now);
        if let (Some(from), Some(_)) = (from, driver.clients.table.get(client_id(conn))) {
            driver.cx.connections.peers.set_proxied(client_id(conn), mapped(from));
        }
    }

    fn strayed(&mut self, conn: Conn, how: Stray, now: Now) -> bool {
        let driver = self.at(now);
        driver.clients.strayed(client_id(conn), how, &mut driver.cx);
        self.settle_down();
        true
    }

    fn bytes(&mut self, conn: Conn, data: &[u8], now: Now) {
        let driver = self.at(now);
        match conn.side {
            Side::Client => driver.client_bytes(client_id(conn), data),
            Side::Upstream => driver.provider_bytes(provider_id(conn), data),
        }
        self.settle_down();
    }

    fn heard(&mut self, conn: Conn, now: Now) {
        let driver = self.at(now);
        driver.client_heard(client_id(conn));
        self.settle_down();
    }

    fn closed(&mut self, conn: Conn, how: Ending, now: Now) {
        let driver = self.at(now);
        match conn.side {
            Side::Client => driver.client_ended(client_id(conn), how),
            Side::Upstream => driver.provider_ended(provider_id(conn), how),
        }
        self.settle_down();
    }

    fn wrote(&mut self, conn: Conn, count: usize, now: Now) -> bool {
        let driver = self.at(now);
        let may_go_on = match conn.side {
            Side::Client => driver.client_wrote(client_id(conn), count),
            Side::Upstream => driver.provider_wrote(provider_id(conn), count),
        };
        self.settle_down();
        may_go_on
    }

    fn reply(&mut self, reply: Reply, now: Now) {
        let driver = self.at(now);
        match reply {
            Reply::Dialed(conn) => driver.dialed(provider_id(conn)),
            Reply::DialFailed(conn, why) => driver.dial_failed(provider_id(conn), why),
            Reply::Named { host, port, addrs } => driver.named(&host, port, addrs),
            Reply::Signal(Signal::Terminate) => self.told_to_stop(),
            Reply::Signal(Signal::Reload) => reload::begin(&mut driver.cx),
            Reply::Signal(Signal::Upgrade) => self.begin_handover(),
        }
        self.settle_down();
    }

    fn notice(&mut self, notice: Notice, now: Now) {
        let driver = self.at(now);
        match notice {
            Notice::Ledger(notice) => self.ledger_notice(notice, now),
            Notice::Spans(lost, news) => driver.cx.spans_lost(lost, news),
            Notice::Captured(key, bytes, done) => driver.cx.captured(&key, bytes, Some(done)),
            Notice::LookForTrouble => driver.cx.look_for_trouble(),
            Notice::Worked(done) => driver.offloaded(done),
            Notice::Desk(answer) => driver.admins().desk_answered(*answer),
            Notice::SecretTold(origin, value) => {
                reload::secret_told(&origin, value.as_deref().map_err(String::as_str), &mut driver.cx);
                driver.cx.upstreams.renewals.retain(|renewal| *renewal != origin);
                driver.tell_all(&|one| one.state.awaits_secret(&one.job, &origin), &|| ExchangeEvent::Renewed);
            }
            Notice::Listed(listing) => listing::listed(listing, &mut driver.cx),
            Notice::Reloaded(news) => {
                if reload::finish(news, &mut driver.cx) {
                    driver.providers.close_idle(&mut driver.cx);
                }
            }
            Notice::SuccessorReady => self.hand_over(upgrade::UpgradeEvent::Ready),
            Notice::SuccessorTaken => self.hand_over(upgrade::UpgradeEvent::Taken),
            Notice::SuccessorFailed(why) => {
                driver.cx.log_upgrade(&why);
                self.hand_over(upgrade::UpgradeEvent::Failed);
            }
            Notice::SuccessorGone => self.hand_over(upgrade::UpgradeEvent::Gone),
            Notice::Inherited(row) => inheritance::inherited(row, &mut driver.cx),
            Notice::PredecessorLeft => inheritance::predecessor_left(&mut driver.cx),
        }
        self.settle_down();
    }

    fn next_deadline(&self) -> Option<Mono> {
        if !self.driver.clients.paused.is_empty() {
            return Some(self.driver.cx.now.mono);
        }
        let timer = self.driver.cx.commands.timers.next().map(|(at, _)| at);
        let due = timer.unwrap_or(Mono::NEVER).min(self.driver.cx.due());
        (due != Mono::NEVER).then_some(due)
    }

    fn expire(&mut self, now: Now) -> bool {
        let driver = self.at(now);
        if driver.cx.due() <= now.mono {
            driver.cx.upstreams.queues.woken(now.mono);
            driver.cx.access.lookups.ask(now.mono, &mut driver.cx.commands.orders);
            if driver.cx.access.lookups.sums.due <= now.mono {
                upkeep::budget_news::ask_for_sums(&mut driver.cx);
            }
            if driver.cx.accounts.clock.due <= now.mono {
                driver.cx.look_at_clock();
            }
            if driver.cx.report.captures.due <= now.mono {
                driver.cx.end_captures();
            }
            if driver.cx.access.plans.due <= now.mono {
                driver.cx.end_extras();
            }
            if driver.cx.report.recorder.due() <= now.mono {
                driver.cx.close_minute();
                if let (0, Some(minutes)) = (driver.exchanges.len(), &mut driver.cx.report.recorder.minutes) {
                    minutes.fall_asleep();
                }
            }
            if driver.cx.memory.trim <= now.mono {
                driver.trim();
            }
            listing::ask(&mut driver.cx);
            driver.cx.tell_of_suppressed(false);
            if driver.cx.lifecycle.lead.is_some_and(|lead| lead <= now.mono) {
                self.terminate();
            }
            self.settle_down();
        }
        let driver = &mut self.driver;
        let due = driver.cx.commands.timers.next().filter(|(at, _)| *at <= now.mono);
        let Some((_, owner)) = due else { return self.resume_paused() };
        match owner.side() {
            Side::Client => {
                let Some((id, client)) = driver.clients.table.tenant(owner.slot()) else {
                    return driver.cx.commands.timers.strike(owner);
                };
                let due = earliest(client, &driver.exchanges);
                if driver.cx.commands.timers.fired(client_conn(id), due, now.mono) {
                    driver.client_expired(id);
                }
            }
            Side::Upstream => {
                let Some((id, provider)) = driver.providers.table.tenant(owner.slot()) else {
                    return driver.cx.commands.timers.strike(owner);
                };
                if driver.cx.commands.timers.fired(provider_conn(id), provider.wait, now.mono) {
                    driver.provider_expired(id);
                }
            }
        }
        self.settle_down();
        true
    }

    #[inline]
    fn unsent(&self, conn: Conn) -> &[u8] {
        let server = &self.driver.cx.setup.config.server;
        let (unsent, most): (&[u8], usize) = match conn.side {
            Side::Client => {
                let client = self.driver.clients.table.get(client_id(conn));
                (client.map_or(&[], |client| client.unsent()), server.max_buffered)
            }
            Side::Upstream => {
                let provider = self.driver.providers.table.get(provider_id(conn));
                (provider.map_or(&[], |provider| provider.unsent()), server.max_header + SEND_QUEUE_MAX)
            }
        };
        debug_assert!(unsent.len() <= most, "{} bytes wait to be sent to {conn:?}, of {most}", unsent.len());
        unsent
    }

    fn wants_read(&self, conn: Conn) -> bool {
        match conn.side {
            Side::Client => {
                let room = self.driver.cx.memory.gate == Gate::Open;
                self.driver
                    .clients
                    .table
                    .get(client_id(conn))
                    .is_some_and(|client| client.wants_read(room || client.admin))
            }
            Side::Upstream => self.driver.provider_wants_read(provider_id(conn)),
        }
    }

    fn is_paused(&self, conn: Conn) -> bool {
        conn.side == Side::Client
            && self.driver.clients.table.get(client_id(conn)).is_some_and(|client| client.is_paused())
    }

    fn dirty(&mut self) -> &mut Vec<Conn> {
        &mut self.driver.cx.commands.dirty
    }

    fn actions(&mut self) -> &mut Vec<Action> {
        &mut self.driver.cx.commands.actions
    }

    #[inline]
    fn orders(&mut self) -> &mut Vec<Order> {
        self.driver.cx.free_heavy(None);
        self.driver.cx.commands.orders.hand_over()
    }

    fn has_orders(&mut self) -> bool {
        self.driver.cx.memory.pool.has_heavy() || self.driver.cx.commands.orders.is_given
    }

    fn panicked(&mut self, conn: Option<Conn>, now: Now) {
        let driver = self.at(now);
        driver.cx.report.stats.panics += 1;
        match conn {
            Some(conn) if conn.side == Side::Client => driver.drop_client(client_id(conn)),
            Some(conn) => {
                let exchange = driver.providers.table.get(provider_id(conn)).and_then(|provider| provider.exchange);
                match exchange.and_then(|id| driver.exchanges.get(id)).map(|exchange| exchange.job.request.client) {
                    Some(client) if driver.clients.table.get(client).is_some() => driver.drop_client(client),
                    _ => driver.providers.close(provider_id(conn), &mut driver.cx),
                }
            }
            None => driver.clients.resumed.take().into_iter().for_each(|id| driver.drop_client(id)),
        }
        // Drop exchanges that are not yet attached to a client, or whose provider was being handled.
        let is_alone = |exchange: &Exchange| {
            let provider = exchange.state.provider().and_then(|id| driver.providers.table.get(id));
            driver.clients.table.get(exchange.job.request.client).is_none() && provider.is_none()
        };
        let alone: Vec<_> = driver.exchanges.iter().filter(|(_, one)| is_alone(one)).map(|(id, _)| id).collect();
        for id in alone {
            drop(driver.exchanges.remove(id));
        }
        // An exchange that was being moved during the panic is lost, and its reservation with it.
        let own = driver.exchanges.iter().filter_map(|(_, exchange)| exchange.job.hold());
        let live: Vec<_> = own.chain(driver.cx.lifecycle.inheritance.holds()).map(Hold::id).collect();
        for (key, lease) in driver.cx.accounts.meter.reclaim(|id| live.contains(&id)) {
            if lease.shared {
                driver.cx.commands.orders.give_back(Release {
                    key: driver.cx.access.keys.get(key).id(),
                    lease,
                    unsent: false,
                });
            }
        }
        let own = driver.exchanges.iter().filter_map(|(_, exchange)| target_hold(&exchange.job));
        let live: Vec<_> = own.chain(driver.cx.lifecycle.inheritance.target_holds()).map(Hold::id).collect();
        driver.cx.accounts.targets.reclaim(|id| live.contains(&id));
        driver.cx.memory.turns.served = None;
        driver.cx.upstreams.queues.recount(|id| driver.exchanges.get(id).is_some_and(|one| one.state.is_queued()));
        driver.cx.upstreams.breakers.recount(driver.exchanges.iter().filter_map(|(_, exchange)| exchange.job.flight()));
        // Rebuild the buffer accounting too.
        let clients: usize = driver.clients.table.iter().map(|(_, client)| client.storage()).sum();
        let exchanges: usize = driver.exchanges.iter().map(|(_, exchange)| exchange.state.storage()).sum();
        let providers: usize = driver.providers.table.iter().map(|(_, provider)| provider.storage()).sum();
        let captures = driver.cx.report.captures.charged();
        driver.cx.memory.pool.recount(clients + exchanges + providers + captures);
        let promised = driver.exchanges.iter().flat_map(|(_, exchange)| exchange.state.promises());
        let unread = driver.clients.table.iter().map(|(_, client)| &client.unread);
        let kept: Vec<_> = driver.exchanges.iter().filter_map(|(_, one)| one.state.charge(&one.job)).collect();
        driver.cx.memory.shares.recount(promised.chain(unread).chain(&kept), &mut driver.cx.memory.pool);
        // Connections that were not read for want of memory are looked at again.
        driver.look_at_room();
    }

    fn turned(&mut self, micros: u64) {
        self.driver.cx.report.stats.turn(micros);
    }
}

#[cfg(test)]
mod tests;
