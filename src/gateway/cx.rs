//! All parts of the gateway that are not a connection or an exchange: shared data that every state machine may read and
//! count in. Owns the counters, tables and buffers; decides nothing by itself.

use super::admin::{Desk, Recorder};
use super::alert_watch::AlertWatch;
use super::budget::{Budget, Gate, MemoryVerdict, Promise};
use super::client::limits::ConnectionLimits;
use super::client::peer::Peers;
use super::client::response::DateCache;
use super::clock::ClockGuard;
use super::discovery::Discovery;
use super::exchange::streams::Streams;
use super::grants::Grants;
use super::ids::{ExchangeId, ProviderId};
use super::ledger::PendingRows;
use super::lifecycle::Lifecycle;
use super::lookups::Lookups;
use super::offload::Away;
use super::orders::{Order, OrderSink};
use super::plans::KeyPlans;
use super::provider::breaker::Breakers;
use super::provider::dns::HostNames;
use super::provider::pool::Idle;
use super::provider::request::{OutgoingRequests, RequestTemplates};
use super::queue::Queues;
use super::stranger_log::StrangerLog;
use crate::base::buf::Pool;
use crate::base::limits::ROOM_MAX;
use crate::base::rng::Rng;
use crate::base::seam::Action;
use crate::base::time::{Now, Unix};
use crate::dialect::AnswerTemplates;
use crate::policy::attribution::HashKey;
use crate::policy::config::{Config, Durability, OnOutage, Origin, Reach, StoreUrl};
use crate::policy::counters::{Counters, Stats};
use crate::policy::keys::{KeyId, KeyIx, Keys};
use crate::policy::meter::{Meter, PathIx, Payer, QuotaStatus};
use crate::policy::plan::Plan;
use crate::policy::row::Row;
use crate::wire::head::HeadTemplates;
use std::collections::VecDeque;
use std::sync::Arc;

/// A configuration and the data derived from it. An exchange keeps the setup that it began with.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) config: Arc<Config>,
    pub(crate) requests: RequestTemplates,
    /// Number of the configuration, which a renewed secret does not change. Connections to providers carry the number
    /// of the configuration under which they were dialed.
    pub(crate) epoch: u32,
    /// True if spans are exported.
    pub(crate) traces: bool,
}

impl Setup {
    /// Setup for `config`, whose number is `epoch`.
    pub(crate) fn new(config: Arc<Config>, epoch: u32) -> Arc<Setup> {
        Arc::new(Setup { traces: config.telemetry.exports(), requests: RequestTemplates::new(&config), config, epoch })
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Cx {
    /// Time of the current call.
    pub(crate) now: Now,
    /// The current configuration.
    pub(crate) setup: Arc<Setup>,
    pub(crate) pool: Pool,
    /// Templates of request heads.
    pub(crate) head_templates: HeadTemplates,
    /// Templates of complete answers.
    pub(crate) answers: AnswerTemplates,
    pub(crate) budget: Budget,
    /// Memory pressure as of the end of the last call.
    pub(crate) gate: Gate,
    pub(crate) limits: ConnectionLimits,
    /// Clients that can connect to the admin listener; `None` if there is none.
    pub(crate) admin: Option<Reach>,
    pub(crate) idle: Idle,
    pub(crate) names: HostNames,
    pub(crate) discovery: Discovery,
    /// Sources of secrets that are being read again because a provider has refused the secrets.
    pub(crate) renewals: Vec<Origin>,
    pub(crate) breakers: Breakers,
    /// Requests that wait for slots.
    pub(crate) queues: Queues,
    pub(crate) requests: OutgoingRequests,
    pub(crate) streams: Streams,
    pub(crate) keys: Keys,
    /// Number of keys in the current batch of changes that have brought news.
    pub(crate) keys_told: usize,
    /// Keys that the ledger is looking up.
    pub(crate) lookups: Lookups,
    pub(crate) plans: KeyPlans,
    pub(crate) meter: Meter,
    pub(crate) ledger: PendingRows,
    pub(crate) clock: ClockGuard,
    pub(crate) grants: Grants,
    pub(crate) stats: Stats,
    pub(crate) stranger_log: StrangerLog,
    pub(crate) alerts: AlertWatch,
    /// Requests to the admin listener that are not answered yet.
    pub(crate) desk: Desk,
    /// Recorder of the last requests.
    pub(crate) recorder: Recorder,
    /// Buffer for a line that only the recorder needs; never kept across a call.
    pub(crate) scratch: Vec<u8>,
    pub(crate) lifecycle: Lifecycle,
    pub(crate) date: DateCache,
    pub(crate) peers: Peers,
    pub(crate) rng: Rng,
    /// Secret that users and conversations are hashed with.
    pub(crate) hash_key: HashKey,
    /// Size from which a piece is handled by a helper thread instead of the event loop.
    pub(crate) offload_min: usize,
    /// Jobs of helper threads.
    pub(crate) away: Away,
    /// Buffer in which an answer is built before it is framed into a client's unsent bytes; never kept across a call.
    pub(crate) out: Vec<u8>,
    /// Answers that wait for memory, and the one that may use the reserve.
    pub(crate) turns: AnswerQueue,
    /// The connections that the current exchange has released, each with true if the answer is complete.
    let_go: [Option<(ProviderId, bool)>; 2],
    pub(crate) actions: Vec<Action>,
    pub(crate) orders: OrderSink,
}

/// Labels of credentials whose secret changed: their state is reset.
fn renewed_credentials(before: &Config, after: &Config) -> Vec<String> {
    let mut renewed = Vec::new();
    for provider in &after.providers {
        let Some(known) = before.providers.iter().find(|known| known.name == provider.name) else { continue };
        for (place, credential) in provider.credentials.iter().enumerate() {
            let same =
                known.credentials.get(place).is_some_and(|known| known.secret.expose() == credential.secret.expose());
            if !same {
                renewed.push(provider.place_of(place));
            }
        }
    }
    renewed
}

/// Initial values of a [`Cx`].
pub(crate) struct CxStart {
    pub(crate) setup: Arc<Setup>,
    pub(crate) seed: [u8; 32],
    pub(crate) hash_key: HashKey,
    pub(crate) keys: Keys,
    pub(crate) admin: Option<Reach>,
    pub(crate) descriptors: Option<usize>,
    pub(crate) offload_min: usize,
    pub(crate) now: Now,
}

impl Cx {
    /// A context with all counters at zero.
    pub(crate) fn new(start: CxStart) -> Cx {
        let mut rng = Rng::new(start.seed);
        let mut keys = start.keys;
        keys.seed(rng.next_u64());
        let (mut plans, config) = (KeyPlans::default(), &start.setup.config);
        let room = config.server.max_connections.min(ROOM_MAX);
        let limits = ConnectionLimits::new(rng.next_u64(), room, start.descriptors);
        let mut meter = Meter::default();
        // There is space for the maximum number of groups of a configuration.
        meter.configure(&config.groups, start.now.unix);
        meter.set_thresholds(config.alerts.thresholds());
        plans.load(&keys, config, &meter);
        Cx {
            now: start.now,
            pool: Pool::new(config.server.max_buffered),
            head_templates: HeadTemplates::default(),
            answers: AnswerTemplates::default(),
            budget: Budget::new(config.server.max_buffered),
            gate: Gate::Open,
            limits,
            admin: start.admin,
            idle: Idle::default(),
            names: HostNames::default(),
            discovery: Discovery::default(),
            renewals: Vec::new(),
            breakers: Breakers::default(),
            queues: Queues::default(),
            requests: OutgoingRequests::default(),
            streams: Streams::default(),
            meter,
            keys,
            keys_told: 0,
            lookups: Lookups::default(),
            plans,
            ledger: PendingRows::new(config.store.commit_every),
            clock: ClockGuard::new(Unix(0), Unix(0)),
            grants: Grants::default(),
            stats: Stats::default(),
            stranger_log: StrangerLog::default(),
            alerts: AlertWatch::default(),
            desk: Desk::default(),
            recorder: Recorder::new(start.admin.is_some(), start.now),
            scratch: Vec::new(),
            lifecycle: Lifecycle::default(),
            date: DateCache::default(),
            peers: Peers::with_room(room),
            rng,
            hash_key: start.hash_key,
            offload_min: start.offload_min,
            away: Away::default(),
            out: Vec::new(),
            turns: AnswerQueue::default(),
            let_go: [None; 2],
            actions: Vec::new(),
            orders: OrderSink::default(),
            setup: start.setup,
        }
    }

    /// Applies another configuration. False, and nothing is changed, if it has more new groups than can be counted.
    pub(crate) fn load_config(&mut self, mut config: Arc<Config>) -> bool {
        if !self.meter.configure(&config.groups, self.now.unix) {
            return false;
        }
        if config.providers.iter().any(|provider| provider.discover.is_some()) {
            Arc::make_mut(&mut config).keep_lists(&self.setup.config);
        }
        let before = self.setup.clone();
        self.meter.set_thresholds(config.alerts.thresholds());
        self.forget_grants();
        self.pool.set_budget(config.server.max_buffered);
        self.budget.set_budget(config.server.max_buffered);
        self.plans.load(&self.keys, &config, &self.meter);
        for renewed in renewed_credentials(&self.setup.config, &config) {
            self.breakers.credential_renewed(&renewed);
        }
        self.queues.forget(|model| config.catalog.find(model).is_some());
        // The number of slots may have grown.
        self.queues.look_again(self.now.mono);
        self.setup = Setup::new(config, self.setup.epoch.wrapping_add(1));
        self.look_up_all();
        self.discovery.restart(&self.setup.config, self.now.mono);
        self.rebudget_all();
        self.announce_alerts(Some(&before.config.alerts));
        true
    }

    /// Looks up every host before the first request needs it.
    pub(crate) fn look_up_all(&mut self) {
        for provider in self.setup.config.providers.iter().filter(|provider| provider.addresses.is_empty()) {
            let (host, port) = provider.next_hop();
            self.names.look_up(host, port, self.now.mono, &mut self.actions);
        }
    }

    /// Index of a key and its plan. A key whose plan is not configured is still counted: its plan may be configured
    /// again.
    pub(crate) fn counted_key(&self, id: &KeyId) -> Option<(KeyIx, Plan)> {
        let key = self.keys.index_of(id)?;
        Some((key, self.plan_of(key)))
    }

    /// Plan of a key, even if its group is not configured; one without limits if the plan itself is not.
    fn plan_of(&self, key: KeyIx) -> Plan {
        let kind = self.keys.get(key).kind;
        let plan = self.setup.config.plan(&kind.plan).map(|plan| plan.with(&kind.limits));
        plan.unwrap_or_else(|| Plan::unlimited(&kind.plan))
    }

    /// Quota status of a key and its groups.
    pub(crate) fn quota(&mut self, key: KeyIx) -> Option<QuotaStatus> {
        match self.plans.of(key, &self.keys, &self.setup.config) {
            Ok(payer) => Some(self.meter.standing(payer, self.now.unix)),
            Err(_) => Some(self.quota_alone(key)),
        }
    }

    /// Quota status of a key whose plan or group is not configured.
    #[cold]
    fn quota_alone(&mut self, key: KeyIx) -> QuotaStatus {
        let payer = Payer { key, plan: &self.plan_of(key), path: PathIx::NONE, hosts: 1 };
        self.meter.standing(payer, self.now.unix)
    }

    /// True if answers are sent only after their usage records are committed.
    pub(crate) fn waits_for_rows(&self) -> bool {
        self.setup.config.store.durability == Durability::BeforeReply
    }

    /// True if several hosts share the ledger.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self.setup.config.store.url, StoreUrl::Redis(_))
    }

    /// True if this host continues alone while the shared ledger cannot be reached.
    pub(crate) fn goes_on_alone(&self) -> bool {
        self.is_shared() && self.setup.config.store.on_outage == OnOutage::Local
    }

    /// True if processing `bytes` takes too long for one event-loop iteration.
    pub(crate) fn is_long(&self, bytes: usize) -> bool {
        bytes > self.offload_min
    }

    /// Releases an exchange's connection to a provider. `complete`: the exchange needs no more of the answer.
    pub(crate) fn let_go(&mut self, provider: ProviderId, complete: bool) {
        debug_assert!(self.let_go[1].is_none());
        self.let_go[1] = self.let_go[0].replace((provider, complete));
    }

    /// True if [`Cx::let_go`] has noted something.
    #[inline]
    pub(crate) fn lets_go(&self) -> bool {
        self.let_go[0].is_some()
    }

    /// Takes the connections that [`Cx::let_go`] has noted.
    pub(crate) fn take_let_go(&mut self) -> [Option<(ProviderId, bool)>; 2] {
        std::mem::take(&mut self.let_go)
    }

    /// Decides if an answer of `key` may have `total` bytes; if so, they are reserved. Other keys can only delay it.
    pub(crate) fn room_for_answer(
        &mut self,
        own: ExchangeId,
        key: KeyIx,
        promise: &mut Promise,
        total: usize,
    ) -> MemoryVerdict {
        let more = total.saturating_sub(promise.total());
        if more == 0 || !Budget::can_ever_hold(total, &self.pool) {
            return MemoryVerdict::Now;
        }
        if !self.budget.share_allows(promise, key, total) {
            return MemoryVerdict::Share;
        }
        if !self.turns.grants(own, more, &self.pool) {
            return MemoryVerdict::Room;
        }
        self.budget.answer(promise, key, total, &mut self.pool);
        MemoryVerdict::Now
    }

    /// Decides if `more` bytes of a streamed answer may be taken.
    pub(crate) fn room_for_events(&mut self, own: ExchangeId, more: usize) -> MemoryVerdict {
        match self.turns.grants(own, more, &self.pool) {
            true => MemoryVerdict::Now,
            false => MemoryVerdict::Room,
        }
    }

    /// True if the amount of free memory may have changed, or if an answer waits for it.
    #[inline]
    pub(crate) fn may_have_room(&self) -> bool {
        self.turns.alone.is_some()
            || !self.turns.is_empty()
            || self.budget.is_eased()
            || self.gate != Gate::Open
            // The memory pressure is about to rise.
            || self.pool.room() < Budget::narrow(&self.pool)
    }

    /// Makes an answer that wants `more` bytes wait.
    pub(crate) fn wait_for(&mut self, own: ExchangeId, key: Option<KeyIx>, more: usize, what: MemoryVerdict) {
        match (what, key) {
            (MemoryVerdict::Share, Some(key)) => {
                // Other answers must not wait for the unread output of this key's clients.
                self.turns.alone = self.turns.alone.filter(|alone| *alone != own);
                self.budget.waits(key);
                self.turns.by_key.push_back((own, key));
            }
            _ => self.turns.wait(own, more),
        }
    }
}

/// Answers whose providers are not read until memory is free, in order of arrival.
#[derive(Debug, Default)]
pub(crate) struct AnswerQueue {
    /// Waiting exchanges, with the bytes that each needs.
    queue: VecDeque<(ExchangeId, usize)>,
    /// Exchanges that wait for the share of their keys.
    pub(crate) by_key: VecDeque<(ExchangeId, KeyIx)>,
    /// The exchange that may use the reserve.
    pub(crate) alone: Option<ExchangeId>,
    /// The exchange being served.
    pub(crate) served: Option<ExchangeId>,
    /// Some exchanges waited, and none waits any more.
    emptied: bool,
}

impl AnswerQueue {
    /// Returns true, once, when no exchange waits any more.
    pub(crate) fn take_emptied(&mut self) -> bool {
        self.queue.is_empty() && std::mem::take(&mut self.emptied)
    }

    /// True if no exchange waits for memory.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// True if `own` may have `more` bytes immediately, from the reserve if necessary.
    #[inline]
    fn grants(&mut self, own: ExchangeId, more: usize, pool: &Pool) -> bool {
        let may_pass = self.queue.is_empty() || self.served == Some(own) || self.alone == Some(own);
        if may_pass && Budget::has_room(more, false, pool) {
            return true;
        }
        if !may_pass || self.alone.is_some_and(|alone| alone != own) || !Budget::has_room(more, true, pool) {
            return false;
        }
        self.alone = Some(own);
        true
    }

    /// Makes `own` wait: after all others, unless it is being served.
    fn wait(&mut self, own: ExchangeId, more: usize) {
        self.emptied = true;
        match self.served == Some(own) {
            true => self.queue.push_front((own, more)),
            false => self.queue.push_back((own, more)),
        }
    }

    /// Removes and returns the first exchange for which the free memory is enough; drops earlier ones for which
    /// `is_waiting` is false.
    pub(crate) fn next(&mut self, pool: &Pool, is_waiting: impl Fn(ExchangeId) -> bool) -> Option<ExchangeId> {
        self.queue.retain(|(id, _)| is_waiting(*id));
        let alone = self.alone;
        let fits =
            |(id, more): &(ExchangeId, usize)| Budget::has_room(*more, alone.is_none_or(|alone| alone == *id), pool);
        // An exchange that needs more than the reserve must not block others.
        let at = self.queue.iter().position(fits)?;
        self.queue.remove(at).map(|(id, _)| id)
    }
}

impl Cx {
    /// Hands a usage record to the ledger; returns its number.
    pub(crate) fn give_row(&mut self, row: Row) -> u64 {
        // A record of the iteration that hands over must reach the ledger before the ledger is given away.
        if self.lifecycle.has_handed_over() {
            self.orders.not_running(&row.request);
        }
        self.clock.recorded(row.admitted);
        // Only a shared ledger has leases.
        let shared = row.lease.is_some().then_some(row.key);
        self.orders.row(row);
        let number = self.ledger.gave(self.now.mono);
        if let Some(key) = shared.and_then(|id| self.keys.index_of(&id))
            && let Ok(payer) = self.plans.of(key, &self.keys, &self.setup.config)
            && (payer.plan.budget > 0 || payer.path.is_some())
        {
            self.lookups.sums.add(key, number, self.now.mono);
        }
        number
    }

    /// True if the wall clock is plausible; nothing is admitted otherwise.
    #[inline]
    pub(crate) fn clock_is_right(&mut self) -> bool {
        self.clock.is_right(self.now.unix) || self.look_at_clock()
    }

    /// True if another request may be admitted: no request is admitted unless its usage can be recorded.
    #[inline]
    pub(crate) fn takes_requests(&self) -> bool {
        let (config, waiting) = (&self.setup.config, self.ledger.uncommitted());
        let (store, bounds) = (&config.store, &config.server.bounds);
        let caught_up = waiting < bounds.rows && self.ledger.takes_rows(self.now.mono, store.max_commit_lag);
        caught_up || (self.goes_on_alone() && waiting < bounds.rows_alone)
    }

    /// True if the shared ledger is to be asked for a request; false if it is known to be unreachable.
    pub(crate) fn asks_ledger(&self) -> bool {
        self.is_shared() && !(self.ledger.is_failed() && self.goes_on_alone())
    }

    /// Reads a refused secret again, if it can change without a restart.
    pub(crate) fn renew(&mut self, origin: &Origin) {
        if matches!(origin, Origin::Env(_)) {
            return;
        }
        if !self.renewals.contains(origin) {
            self.renewals.push(origin.clone());
        }
        self.orders.push(Order::Renew(origin.clone()));
    }

    /// Takes everything that has been counted since the last call, for a successor.
    pub(crate) fn take_counters(&mut self) -> Counters {
        Counters {
            stats: std::mem::take(&mut self.stats),
            targets: self.breakers.take_counts(),
            turned_away: std::mem::take(&mut self.limits.turned_away),
            cool_downs: self.breakers.cool_downs(self.now),
            lists: self.setup.config.lists(),
        }
    }

    /// Ends the current minute of the recorder if it is over.
    #[cold]
    pub(crate) fn close_minute(&mut self) {
        let Some(minutes) = &mut self.recorder.minutes else { return };
        if minutes.close(&self.stats, self.now) {
            self.breakers.close_minute();
        }
    }

    /// Excludes the counts of a predecessor from the current minute.
    pub(crate) fn rebase_minutes(&mut self) {
        if let Some(minutes) = &mut self.recorder.minutes {
            minutes.rebase(&self.stats);
            self.breakers.rebase_minutes();
        }
    }

    /// Adds the counts of another process.
    pub(crate) fn add_counters(&mut self, counters: &Counters) {
        self.stats.add(&counters.stats);
        counters.targets.iter().for_each(|counts| self.breakers.add(counts));
        self.limits.turned_away += counters.turned_away;
        if !counters.targets.is_empty() {
            self.alerts.inherits();
        }
        counters.cool_downs.iter().for_each(|one| self.breakers.take_cool_down(one, self.now));
        if !counters.lists.is_empty() {
            let mut config = Config::clone(&self.setup.config);
            if config.take_lists(&counters.lists) {
                self.setup = Setup::new(Arc::new(config), self.setup.epoch);
            }
        }
    }
}
