//! All parts of the gateway that are not a connection or an exchange: shared data that every state machine may read and
//! count in. Owns the counters, tables and buffers; decides nothing by itself.

pub(crate) use super::lifecycle::setup::Setup;

use super::accounts::clock::ClockGuard;
use super::accounts::grants::Grants;
use super::accounts::ledger::PendingRows;
use super::accounts::lookups::Lookups;
use super::accounts::plans::KeyPlans;
use super::accounts::targets::TargetMeter;
use super::client::connection_limits::ConnectionLimits;
use super::client::peer::Peers;
use super::client::response::DateCache;
use super::lifecycle::Lifecycle;
use super::lifecycle::start::Start;
use super::memory::shares::{Gate, MemoryShares};
use super::memory::streams::Streams;
use super::memory::{AnswerQueue, Memory};
use super::orders::desk::Desk;
use super::orders::offload::Away;
use super::orders::{Order, OrderSink};
use super::provider::breaker::Breakers;
use super::provider::connection::Idle;
use super::provider::discovery::Discovery;
use super::provider::dns::HostNames;
use super::provider::request::OutgoingRequests;
use super::queue::Queues;
use super::report::alert_watch::AlertWatch;
use super::report::captures::Captures;
use super::report::log_limit::LogLimit;
use super::report::recorder::Recorder;
use crate::base::buf::Pool;
use crate::base::digest::sha256;
use crate::base::limits::{LINKS_ROOM, ROOM_MAX, WORK_MIN};
use crate::base::rng::Rng;
use crate::base::seam::{Action, Conn, ProcessVitals};
use crate::base::time::{Mono, Now};
use crate::base::timers::Timers;
use crate::dialect::AnswerTemplates;
use crate::gateway::counters::Stats;
use crate::policy::attribution::HashKey;
use crate::policy::config::{Config, Durability, OnOutage, Origin, Reach, StoreUrl};
use crate::policy::keys::{KeyId, KeyIx, Keys};
use crate::policy::meter::{Meter, PathIx, Payer, QuotaStatus};
use crate::policy::plan::Plan;
use crate::policy::refusal::Missing;
use crate::policy::row::Row;
use crate::wire::json::write_string;
use std::sync::Arc;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Cx {
    /// Time of the current call.
    pub(crate) now: Now,
    /// The current configuration.
    pub(crate) setup: Arc<Setup>,
    pub(crate) memory: Memory,
    pub(crate) access: Access,
    pub(crate) accounts: Accounts,
    pub(crate) upstreams: Upstreams,
    pub(crate) report: Reporting,
    pub(crate) connections: Connections,
    pub(crate) lifecycle: Lifecycle,
    pub(crate) rng: Rng,
    /// Jobs of helper threads.
    pub(crate) away: Away,
    pub(crate) commands: Commands,
}

/// Keys and plans, which decide who may send requests.
#[derive(Debug)]
pub(crate) struct Access {
    pub(crate) keys: Keys,
    /// Number of keys in the current batch of changes that have brought news.
    pub(crate) keys_told: usize,
    /// Keys that the ledger is looking up.
    pub(crate) lookups: Lookups,
    pub(crate) plans: KeyPlans,
}

impl Access {
    /// A key with its plan and its groups.
    #[inline]
    pub(crate) fn payer<'a>(&'a self, key: KeyIx, config: &'a Config) -> Result<Payer<'a>, Missing> {
        self.plans.of(key, &self.keys, config)
    }
}

/// The use of keys and groups, and the state of the ledger that it is written to.
#[derive(Debug)]
pub(crate) struct Accounts {
    pub(crate) meter: Meter,
    /// Attempts, by the limits of providers, credentials and targets.
    pub(crate) targets: TargetMeter,
    pub(crate) ledger: PendingRows,
    pub(crate) clock: ClockGuard,
    pub(crate) grants: Grants,
}

/// The state of providers and targets, and what is reused from one request to the next.
#[derive(Debug, Default)]
pub(crate) struct Upstreams {
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
    /// Templates of complete answers.
    pub(crate) answers: AnswerTemplates,
}

/// Counters, log lines and records.
#[derive(Debug)]
pub(crate) struct Reporting {
    pub(crate) stats: Stats,
    pub(crate) log_limit: LogLimit,
    pub(crate) alerts: AlertWatch,
    /// Recorder of the last requests.
    pub(crate) recorder: Recorder,
    /// Buffer for a line that only the recorder needs, or for a model's name; never kept across a call.
    pub(crate) scratch: Vec<u8>,
    pub(crate) date: DateCache,
    /// Secret that users and conversations are hashed with.
    pub(crate) hash_key: HashKey,
    pub(crate) captures: Captures,
}

/// Connections of clients, and the state of the admin listener.
#[derive(Debug)]
pub(crate) struct Connections {
    pub(crate) limits: ConnectionLimits,
    pub(crate) peers: Peers,
    /// Clients that can connect to the admin listener; `None` if there is none.
    pub(crate) admin: Option<Reach>,
    /// See [`super::Start::process`].
    pub(crate) process: Option<fn() -> ProcessVitals>,
    /// Requests to the admin listener that are not answered yet.
    pub(crate) desk: Desk,
}

/// Results of a call that belong to no connection, for the reactor and for helper threads.
#[derive(Debug, Default)]
pub(crate) struct Commands {
    pub(crate) actions: Vec<Action>,
    pub(crate) orders: OrderSink,
    /// Connections whose unsent bytes or readiness may have changed.
    pub(crate) dirty: Vec<Conn>,
    pub(crate) timers: Timers,
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
                renewed.push(provider.credential_name(place));
            }
        }
    }
    renewed
}

/// Seeds for different uses. None can be computed from another, so a client that knows ids of requests knows no other
/// seed.
struct Seeds {
    keys: u64,
    addresses: u64,
    /// The generator of ids shows its state to every client.
    ids: [u8; 32],
}

impl Seeds {
    fn from_seed(seed: &[u8; 32]) -> Seeds {
        let of = |label: &[u8]| sha256(&[seed, label].concat());
        let number = |label| of(label).first_chunk().copied().map_or(0, u64::from_le_bytes);
        Seeds { keys: number(b"keys"), addresses: number(b"addresses"), ids: of(b"ids") }
    }
}

impl Cx {
    /// A context with all counters at zero.
    pub(crate) fn new(setup: Arc<Setup>, start: &mut Start, now: Now) -> Cx {
        let seeds = Seeds::from_seed(&start.seed);
        let mut keys = std::mem::take(&mut start.keys);
        keys.seed(seeds.keys);
        let (mut plans, config) = (KeyPlans::default(), &setup.config);
        let room = config.server.max_connections.min(ROOM_MAX);
        let limits = ConnectionLimits::new(seeds.addresses, room, start.descriptors);
        let mut meter = Meter::default();
        // There is space for the maximum number of groups of a configuration.
        meter.configure(&config.groups, now.unix);
        meter.set_thresholds(config.alerts.thresholds());
        plans.load(&keys, config, &meter, now);
        let key_bytes = keys.bytes();
        Cx {
            now,
            memory: Memory {
                pool: Pool::new(config.server.max_buffered),
                shares: MemoryShares::new(config.server.max_buffered),
                gate: Gate::Open,
                turns: AnswerQueue::default(),
                trim: Mono::NEVER,
                announced: config.worst_case_bytes(key_bytes),
                key_bytes: config.server.bounds.key_bytes(key_bytes),
            },
            access: Access { keys, keys_told: 0, lookups: Lookups::default(), plans },
            accounts: Accounts {
                meter,
                targets: TargetMeter::new(config, now.unix),
                ledger: PendingRows::new(config.store.commit_every),
                clock: ClockGuard::new(start.newest, start.built),
                grants: Grants::default(),
            },
            upstreams: Upstreams::default(),
            report: Reporting {
                stats: Stats::default(),
                log_limit: LogLimit::default(),
                alerts: AlertWatch::default(),
                recorder: Recorder::new(start.admin.is_some(), now),
                scratch: Vec::new(),
                date: DateCache::default(),
                hash_key: std::mem::take(&mut start.hash_key),
                captures: Captures::default(),
            },
            connections: Connections {
                limits,
                peers: Peers::with_room(room),
                admin: start.admin,
                process: start.process,
                desk: Desk::default(),
            },
            lifecycle: Lifecycle::default(),
            rng: Rng::new(seeds.ids),
            away: Away { min: start.work_min.unwrap_or(WORK_MIN), ..Away::default() },
            commands: Commands {
                dirty: Vec::with_capacity(LINKS_ROOM),
                timers: Timers::with_room(room),
                ..Commands::default()
            },
            setup,
        }
    }

    /// Earliest time at which the gateway itself has to act, apart from connections and exchanges; `NEVER` if there is
    /// none.
    #[inline]
    pub(crate) fn due(&self) -> Mono {
        let lifecycle = &self.lifecycle;
        let drain = lifecycle.drain.as_ref().and_then(|drain| drain.due()).unwrap_or(Mono::NEVER);
        let handover = lifecycle.handover.due().unwrap_or(Mono::NEVER);
        let drain = drain.min(handover).min(lifecycle.lead.unwrap_or(Mono::NEVER));
        let keys_and_clock = self.access.lookups.due.min(self.accounts.clock.due).min(self.access.lookups.sums.due);
        let others = self.upstreams.queues.wake.min(self.upstreams.discovery.due).min(self.report.log_limit.due());
        let reports = self.report.recorder.due().min(self.report.captures.due).min(self.access.plans.due);
        drain.min(others).min(keys_and_clock).min(reports).min(self.memory.trim)
    }

    /// Applies another configuration. False, and nothing is changed, if it has more new groups than can be counted.
    pub(crate) fn load_config(&mut self, mut config: Arc<Config>) -> bool {
        if !self.accounts.targets.configure(&config, self.now.unix)
            || !self.accounts.meter.configure(&config.groups, self.now.unix)
        {
            return false;
        }
        if config.providers.iter().any(|provider| provider.discover.is_some()) {
            config = Arc::new(config.with_lists_of(&self.setup.config));
        }
        let before = self.setup.clone();
        self.accounts.meter.set_thresholds(config.alerts.thresholds());
        self.forget_grants();
        self.memory.pool.set_capacity(config.server.max_buffered);
        self.memory.shares.set_capacity(config.server.max_buffered);
        self.access.plans.load(&self.access.keys, &config, &self.accounts.meter, self.now);
        for renewed in renewed_credentials(&self.setup.config, &config) {
            self.upstreams.breakers.credential_renewed(&renewed);
        }
        self.upstreams.queues.forget(|model| config.catalog.find(model).is_some());
        // The number of slots may have grown.
        self.upstreams.queues.look_again(self.now.mono);
        self.setup = Setup::new(config, self.setup.epoch.wrapping_add(1));
        self.look_up_all();
        self.upstreams.discovery.restart(&self.setup.config, self.now.mono);
        self.rebudget_all();
        self.announce_alerts(Some(&before.config.alerts));
        true
    }

    /// Looks up every host before the first request needs it.
    pub(crate) fn look_up_all(&mut self) {
        for provider in self.setup.config.providers.iter().filter(|provider| provider.addresses.is_empty()) {
            let (host, port) = provider.next_hop();
            self.upstreams.names.look_up(host, port, self.now.mono, &mut self.commands.actions);
        }
    }

    /// Index of a key and its plan. A key whose plan is not configured is still counted: its plan may be configured
    /// again.
    pub(crate) fn counted_key(&self, id: &KeyId) -> Option<(KeyIx, Plan)> {
        let key = self.access.keys.index_of(id)?;
        Some((key, self.plan_of(key)))
    }

    /// Plan of a key, even if its group is not configured; one without limits if the plan itself is not.
    fn plan_of(&self, key: KeyIx) -> Plan {
        if let Ok(payer) = self.access.payer(key, &self.setup.config) {
            return payer.plan.clone();
        }
        let kind = self.access.keys.get(key).kind;
        let plan = self.setup.config.plan(&kind.plan).map(|plan| plan.with(&kind.limits, self.now.unix));
        plan.unwrap_or_else(|| Plan::unlimited(&kind.plan))
    }

    /// Quota status of a key and its groups, by the limits that count requests to `model`.
    pub(crate) fn quota(&mut self, key: KeyIx, model: Option<&Arc<str>>) -> Option<QuotaStatus> {
        match self.access.payer(key, &self.setup.config).map(|payer| Payer { model, ..payer }) {
            Ok(payer) => Some(self.accounts.meter.standing(payer, self.now.unix)),
            Err(_) => {
                let payer = Payer { key, plan: &self.plan_of(key), path: PathIx::NONE, hosts: 1, model: None };
                Some(self.accounts.meter.standing(payer, self.now.unix))
            }
        }
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
        bytes > self.away.min
    }
}

impl Cx {
    /// Hands a usage record to the ledger; returns its number.
    pub(crate) fn give_row(&mut self, row: Row) -> u64 {
        // A record of the iteration that hands over must reach the ledger before the ledger is given away.
        if self.lifecycle.has_handed_over() {
            self.commands.orders.not_running(&row.request);
        }
        self.accounts.clock.recorded(row.admitted);
        // Only a shared ledger has leases.
        let shared = row.lease.is_some().then_some(row.key);
        self.commands.orders.row(row);
        let number = self.accounts.ledger.gave(self.now.mono);
        if let Some(key) = shared.and_then(|id| self.access.keys.index_of(&id))
            && let Ok(payer) = self.access.payer(key, &self.setup.config)
            && (payer.plan.has_budget() || payer.path.is_some())
        {
            self.access.lookups.sums.add(key, number, self.now.mono);
        }
        number
    }

    /// True if the wall clock is plausible; nothing is admitted otherwise.
    #[inline]
    pub(crate) fn clock_is_right(&mut self) -> bool {
        self.accounts.clock.is_right(self.now.unix) || self.look_at_clock()
    }

    /// True if another request may be admitted: no request is admitted unless its usage can be recorded.
    #[inline]
    pub(crate) fn takes_requests(&self) -> bool {
        let (config, waiting) = (&self.setup.config, self.accounts.ledger.uncommitted());
        let (store, bounds) = (&config.store, &config.server.bounds);
        let caught_up = waiting < bounds.rows && self.accounts.ledger.takes_rows(self.now.mono, store.max_commit_lag);
        caught_up || (self.goes_on_alone() && waiting < bounds.rows_alone)
    }

    /// True if the ledger can be given away: it must be writable.
    pub(crate) fn can_give_ledger(&self) -> bool {
        self.accounts.ledger.takes_rows(self.now.mono, self.setup.config.store.max_commit_lag)
    }

    /// True if the shared ledger is to be asked for a request; false if it is known to be unreachable.
    pub(crate) fn asks_ledger(&self) -> bool {
        self.is_shared() && !(self.accounts.ledger.is_failed() && self.goes_on_alone())
    }

    /// Reads a refused secret again, if it can change without a restart.
    pub(crate) fn renew(&mut self, origin: &Origin) {
        if matches!(origin, Origin::Env(_)) {
            return;
        }
        if !self.upstreams.renewals.contains(origin) {
            self.upstreams.renewals.push(origin.clone());
        }
        self.commands.orders.push(Order::Renew(origin.clone()));
    }

    /// Records that spans have not reached their collector, or that it accepts them again.
    pub(crate) fn spans_lost(&mut self, lost: u64, news: Option<Result<(), String>>) {
        self.report.stats.spans_dropped += lost;
        let Some(news) = news else { return };
        self.log_event(|out| {
            out.extend_from_slice(b",\"event\":\"telemetry\",\"outcome\":");
            match &news {
                Ok(()) => out.extend_from_slice(b"\"recovered\""),
                Err(why) => {
                    out.extend_from_slice(b"\"failed\",\"error\":");
                    write_string(out, why);
                }
            }
        });
    }

    /// Ends the current minute of the recorder if it is over.
    #[cold]
    pub(crate) fn close_minute(&mut self) {
        let Some(minutes) = &mut self.report.recorder.minutes else { return };
        let passed = minutes.close(&self.report.stats, self.now);
        self.upstreams.breakers.close_minutes(passed, self.now.unix);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generator_of_ids_shows_no_other_seed() {
        let seed = [7; 32];
        let seeds = Seeds::from_seed(&seed);
        assert_ne!(seeds.keys, seeds.addresses);
        for shown in [seed, seeds.ids] {
            let mut ids = Rng::new(shown);
            assert!((0..1000).all(|_| ![seeds.keys, seeds.addresses].contains(&ids.next_u64())));
        }
    }
}
