//! The ledger of a world. For a file, its thread commits, fails and recovers. For a shared ledger, there is the thread
//! that sends checks, usage records and leases, the server that answers them, and another host that uses the same
//! limits; the connection breaks at every step: before, between and after the commands in flight.

use std::collections::{BTreeMap, VecDeque};
use tollgate::base::rng::Rng;
use tollgate::base::seam::Core;
use tollgate::base::time::{Now, Unix};
use tollgate::gateway::Gateway;
use tollgate::gateway::orders::{Notice, Order};
use tollgate::policy::keys::KeyId;
use tollgate::policy::ledger::LedgerNotice;
use tollgate::policy::ledger::{Ask, AskAnswer, Release, Ruling, Use};
use tollgate::policy::meter::{Amount, Lease, LimitReason, SharedCounts};
use tollgate::policy::plan::caps::Resource;
use tollgate::policy::row::Row;
use tollgate::store::remote::{LeasePlace, places};

/// Kind of ledger.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum LedgerKind {
    /// A file.
    File,
    /// A shared ledger with `on_outage = "refuse"`.
    Refuse,
    /// A shared ledger with `on_outage = "local"`.
    Local,
}

/// Number of hosts in the configuration of a shared ledger.
pub const HOSTS: u64 = 2;

fn failed() -> Notice {
    Notice::Ledger(LedgerNotice::Failed("it is broken".to_string()))
}

/// Key and lease of a request.
type Loan = (KeyId, Lease);

fn lease(row: &Row) -> Lease {
    row.lease.as_deref().cloned().unwrap_or_default()
}

fn loan(key: KeyId, lease: Lease) -> Loan {
    // The leases of the request and of its usage record differ only in this field.
    (key, Lease { shared: false, ..lease })
}

fn remove(loans: &mut Vec<Loan>, gone: &Loan) -> bool {
    let found = loans.iter().position(|loan| loan == gone);
    found.map(|index| loans.swap_remove(index)).is_some()
}

/// Counts of events that only a shared ledger causes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Story {
    pub admitted: u64,
    pub refused: u64,
    pub unavailable: u64,
    /// Admissions by the server in answers that were lost.
    pub unheard: u64,
    /// Usage records sent again that the server already had.
    pub again: u64,
    /// Leases released without a usage record.
    pub released: u64,
    /// Usage records of requests that this host admitted without the ledger.
    pub alone: u64,
    pub deaths: u64,
    /// Strict reservations that did not fit, although smaller ones do.
    pub less: u64,
}

impl Story {
    pub fn fields(&mut self) -> [&mut u64; 9] {
        [
            &mut self.admitted,
            &mut self.refused,
            &mut self.unavailable,
            &mut self.unheard,
            &mut self.again,
            &mut self.released,
            &mut self.alone,
            &mut self.deaths,
            &mut self.less,
        ]
    }
}

/// The ledger of a world.
pub struct Ledger {
    /// Promises that a file has not taken.
    promises: Vec<Ask>,
    pub kind: LedgerKind,
    /// All usage records, in the order in which the gateway sent them.
    pub rows: Vec<Row>,
    uncommitted: u64,
    failed: bool,
    shared: Shared,
    pub story: Story,
}

impl Ledger {
    pub fn new(kind: LedgerKind) -> Ledger {
        let (rows, shared) = (Vec::new(), Shared::default());
        Ledger { kind, rows, promises: Vec::new(), uncommitted: 0, failed: false, shared, story: Story::default() }
    }

    /// Returns the usage records that the gateway knows to be committed.
    pub fn safe(&self) -> &[Row] {
        &self.rows[..self.rows.len() - self.uncommitted as usize]
    }

    /// Handles an order of the gateway.
    pub fn take(&mut self, order: Order) -> Result<(), String> {
        match order {
            Order::Rows(rows) => {
                self.uncommitted += rows.len() as u64;
                if self.kind != LedgerKind::File {
                    for row in &rows {
                        self.shared.returned(row)?;
                        self.story.alone += u64::from(!lease(row).shared);
                        if self.kind == LedgerKind::Refuse && !lease(row).shared {
                            return Err(format!("no host has admitted {row:?}"));
                        }
                    }
                    self.shared.rows.extend(rows.iter().cloned());
                }
                self.rows.extend(rows);
            }
            Order::Asks(asks) if self.kind != LedgerKind::File => self.shared.asks.extend(asks),
            Order::Asks(asks) if asks.iter().all(|ask| ask.promise.is_some()) => self.promises.extend(asks),
            Order::Releases(releases) if self.kind != LedgerKind::File => {
                self.story.released += releases.len() as u64;
                for Release { key, lease, .. } in &releases {
                    if !remove(&mut self.shared.lent, &loan(*key, lease.clone())) {
                        return Err(format!("returned twice, or never reserved: {key} {lease:?}"));
                    }
                }
                self.shared.releases.extend(releases);
            }
            Order::Uses(uses) if self.kind != LedgerKind::File => {
                for one in &uses {
                    let lent = |key: &KeyId, lease: &Lease| self.shared.lent.contains(&loan(*key, lease.clone()));
                    if !matches!(one, Use::Served(key, lease) if lent(key, lease)) {
                        return Err(format!("no host has admitted {one:?}"));
                    }
                }
            }
            other => return Err(format!("unexpected task: {other:?}")),
        }
        Ok(())
    }

    /// A file takes the promises of running requests, or fails to.
    pub fn take_promises(&mut self, gateway: &mut Gateway, now: Now) {
        for ask in std::mem::take(&mut self.promises) {
            let ruling = if self.failed { Ruling::Unavailable } else { Ruling::Admitted };
            let answer = AskAnswer { ruling, ..AskAnswer::unavailable(ask) };
            gateway.notice(Notice::Ledger(LedgerNotice::Answered(Box::new(answer))), now);
        }
    }

    /// Commits some or all pending records of a file.
    pub fn commit_some(&mut self, rng: &mut Rng, gateway: &mut Gateway, now: Now) {
        let count = if rng.below(3) == 0 { rng.below(self.uncommitted + 1) } else { self.uncommitted };
        self.commit(count, gateway, now);
    }

    fn commit(&mut self, count: u64, gateway: &mut Gateway, now: Now) {
        self.uncommitted -= count;
        gateway.notice(Notice::Ledger(LedgerNotice::Committed(count)), now);
    }

    /// Makes a file fail or recover. Returns true if it has just failed.
    pub fn toggle(&mut self, gateway: &mut Gateway, now: Now) -> bool {
        if self.kind != LedgerKind::File {
            return false;
        }
        self.failed = !self.failed;
        gateway.notice(if self.failed { failed() } else { Notice::Ledger(LedgerNotice::Recovered) }, now);
        self.failed
    }

    /// Makes a file writable again.
    pub fn recover(&mut self, gateway: &mut Gateway, now: Now) {
        if self.failed && self.kind == LedgerKind::File {
            self.toggle(gateway, now);
        }
    }

    /// Processes everything that is pending, despite earlier faults, unless the thread has died.
    pub fn catch_up(&mut self, gateway: &mut Gateway, now: Now) {
        if self.kind == LedgerKind::File {
            return self.commit(self.uncommitted, gateway, now);
        }
        if !self.shared.dead {
            self.come_back();
            self.send(None, gateway, now);
        }
    }

    /// Returns true if the thread has died, and will not answer again.
    pub fn is_dead(&self) -> bool {
        self.shared.dead
    }

    /// Runs one round of a shared ledger's thread with random faults, or lets the other host use some of the limits.
    pub fn act(&mut self, rng: &mut Rng, gateway: &mut Gateway, now: Now) {
        if self.kind == LedgerKind::File || self.shared.dead {
            return;
        }
        match rng.below(24) {
            0 => self.shared.server.other_host(rng),
            // The host was away for longer than its lease, so the server has dropped its leases.
            1 if rng.below(8) == 0 => self.shared.server.end_lease(),
            2 if rng.below(300) == 0 => {
                self.story.deaths += 1;
                self.shared.dead = true;
                gateway.notice(failed(), now);
            }
            3 => self.shared.away = true,
            4 => self.shared.slow = true,
            5 => self.shared.slow = false,
            // The client may disconnect, or the request may end, before the answer arrives.
            _ if self.shared.slow => {}
            _ if self.shared.away && rng.below(3) > 0 => self.find_nobody(gateway, now),
            _ => {
                self.come_back();
                let breaks = rng.below(10) == 0;
                let reach = breaks.then(|| rng.below(self.shared.commands() + 1));
                self.send(reach, gateway, now);
            }
        }
    }

    /// Handles a server that cannot be reached.
    fn find_nobody(&mut self, gateway: &mut Gateway, now: Now) {
        self.shared.give_up_releases();
        self.shared.take_rows();
        let asks = std::mem::take(&mut self.shared.asks);
        self.answer_none(asks, gateway, now);
        if !std::mem::replace(&mut self.failed, true) {
            gateway.notice(failed(), now);
        }
    }

    fn answer_none(&mut self, asks: Vec<Ask>, gateway: &mut Gateway, now: Now) {
        for ask in asks {
            self.story.unavailable += 1;
            gateway.notice(Notice::Ledger(LedgerNotice::Answered(Box::new(AskAnswer::unavailable(ask)))), now);
        }
    }

    /// Registers the host under a new name with the leases that its thread knows.
    fn come_back(&mut self) {
        if std::mem::take(&mut self.shared.away) || self.shared.server.ended {
            self.shared.server.ended = false;
            self.shared.server.held.clone_from(&self.shared.known);
        }
    }

    /// Sends everything that is pending: releases, usage records, checks. With `reach` the connection breaks: only this
    /// number of commands arrive, and their answers are lost.
    fn send(&mut self, reach: Option<u64>, gateway: &mut Gateway, now: Now) {
        let shared = &mut self.shared;
        let mut left = reach.unwrap_or(u64::MAX);
        let mut comes = || {
            let comes = left > 0;
            left = left.saturating_sub(1);
            comes
        };
        for Release { key, lease, .. } in &shared.releases {
            if comes() {
                remove(&mut shared.server.held, &loan(*key, lease.clone()));
            }
        }
        shared.give_up_releases();
        shared.take_rows();
        for (row, there) in &mut shared.pending {
            if comes() {
                self.story.again += u64::from(*there);
                shared.server.append(row, *there);
                *there = true;
            }
        }
        let asks = std::mem::take(&mut shared.asks);
        let answers: Vec<AskAnswer> = asks.iter().filter(|_| comes()).map(|ask| shared.server.admit(ask)).collect();
        if reach.is_some() {
            let admitted = |answer: &&AskAnswer| answer.ruling == Ruling::Admitted;
            self.story.unheard += answers.iter().filter(admitted).count() as u64;
            shared.away = true;
            return self.find_nobody_for(asks, gateway, now);
        }
        let mut committed = 0;
        for (row, _) in shared.pending.drain(..) {
            remove(&mut shared.known, &loan(row.key, lease(&row)));
            committed += 1;
        }
        if committed > 0 {
            self.commit(committed, gateway, now);
        }
        answers.into_iter().for_each(|answer| self.hear(answer, gateway, now));
        if std::mem::take(&mut self.failed) {
            gateway.notice(Notice::Ledger(LedgerNotice::Recovered), now);
        }
    }

    fn find_nobody_for(&mut self, asks: Vec<Ask>, gateway: &mut Gateway, now: Now) {
        self.shared.asks = asks;
        self.find_nobody(gateway, now);
    }

    fn hear(&mut self, answer: AskAnswer, gateway: &mut Gateway, now: Now) {
        match answer.ruling {
            Ruling::Admitted => {
                let loan = loan(answer.ask.key, answer.ask.lease.clone());
                self.shared.known.push(loan.clone());
                self.shared.lent.push(loan);
                self.story.admitted += 1;
            }
            Ruling::Refused(..) => self.story.refused += 1,
            Ruling::Unavailable => self.story.unavailable += 1,
            Ruling::Less(_) => self.story.less += 1,
            Ruling::Looked | Ruling::Called => {}
        }
        gateway.notice(Notice::Ledger(LedgerNotice::Answered(Box::new(answer))), now);
    }

    /// Returns the cost of the usage records of a group, even if it has moved.
    pub fn cost(&self, group: &str) -> u64 {
        let is_in = |row: &&Row| row.group.split('/').any(|name| name == group);
        self.rows.iter().filter(is_in).map(|row| row.cost_nano).sum()
    }

    /// Returns the usage of the period by all hosts. The ledger must be up to date.
    pub fn used(&self, key: KeyId) -> u64 {
        let rows = self.rows.iter().filter(|row| row.key == key).map(|row| row.usage.total());
        rows.sum::<u64>() + self.shared.server.theirs_used.get(&key).copied().unwrap_or(0)
    }

    /// Checks the invariants after all requests have ended.
    pub fn at_rest(&self) -> Result<(), String> {
        let shared = &self.shared;
        if !shared.lent.is_empty() {
            return Err(format!("reserved and never returned: {:?}", shared.lent));
        }
        let held = !shared.known.is_empty() || !shared.server.held.is_empty();
        if held && !shared.dead {
            return Err(format!("still reserved: {:?}, at the server {:?}", shared.known, shared.server.held));
        }
        Ok(())
    }
}

/// The thread of a shared ledger.
#[derive(Default)]
struct Shared {
    asks: Vec<Ask>,
    releases: Vec<Release>,
    rows: VecDeque<Row>,
    /// Usage records in the thread, and whether the server has them; oldest first.
    pending: VecDeque<(Row, bool)>,
    /// Leases that the gateway has not returned yet.
    lent: Vec<Loan>,
    /// Leases of this host that the thread knows.
    known: Vec<Loan>,
    /// True if the connection is broken.
    away: bool,
    /// True if the server is paused.
    slow: bool,
    dead: bool,
    server: Server,
}

impl Shared {
    /// Checks the lease of a settled request, which must be returned with its usage record exactly once.
    fn returned(&mut self, row: &Row) -> Result<(), String> {
        if lease(row).shared && !remove(&mut self.lent, &loan(row.key, lease(row))) {
            return Err(format!("settled twice, or never reserved: {row:?}"));
        }
        Ok(())
    }

    fn commands(&self) -> u64 {
        (self.releases.len() + self.pending.len() + self.rows.len() + self.asks.len()) as u64
    }

    fn take_rows(&mut self) {
        self.pending.extend(self.rows.drain(..).map(|row| (row, false)));
    }

    /// Drops pending releases: these leases are not announced again.
    fn give_up_releases(&mut self) {
        for Release { key, lease, .. } in self.releases.drain(..) {
            remove(&mut self.known, &loan(key, lease));
        }
    }
}

/// Model of the scripts.
#[derive(Default)]
struct Server {
    /// Leases of this host.
    held: Vec<Loan>,
    ended: bool,
    /// Requests and use by window.
    windows: BTreeMap<LeasePlace, (u64, Amount)>,
    /// The part of it that belongs to the other host, and that host's running requests.
    theirs_used: BTreeMap<KeyId, u64>,
    theirs: Vec<KeyId>,
    /// Key of the last check, and what its requests count in.
    last: Option<(KeyId, Vec<LeasePlace>)>,
}

impl Server {
    fn admit(&mut self, ask: &Ask) -> AskAnswer {
        let (key, lease) = (ask.key, &ask.lease);
        let seats: Vec<LeasePlace> = places(&key, lease).collect();
        // The other host asks for no limit, so it leaves strict ones alone.
        let is_strict = ask.limits.strict.is_some();
        let of_key = || seats.iter().filter(|place| place.key.is_some()).cloned().collect();
        self.last = (!is_strict).then(|| (key, of_key()));
        let (mut found, mut told): (Option<(_, _, _, Unix)>, Vec<_>) = (None, Vec::new());
        let (mut room, mut lacks) = (Amount::MAX, None);
        let mut running_limits = ask.limits.running.iter();
        for (index, (place, limits)) in seats.iter().zip(&ask.limits.parts).enumerate() {
            let (requests, used) = self.windows.get(place).copied().unwrap_or_default();
            let held = || self.held.iter().filter(|(key, held)| places(key, held).any(|other| other == *place));
            let reserved = held().fold(used, |sum, (_, held)| sum.plus(held.reserved));
            let end = place.bounds.1;
            let mut all = vec![
                (limits[0], requests, requests, Resource::Requests, end),
                (limits[1], reserved.tokens, used.tokens, Resource::Tokens, end),
                (limits[2], reserved.nano, used.nano, Resource::Budget, end),
            ];
            if place.is_first() {
                let is_owner = |other: &LeasePlace| other.running() == place.running() && other.is_first();
                let own =
                    self.held.iter().filter(|(key, held)| places(key, held).any(|other| is_owner(&other))).count();
                let theirs = self.theirs.iter().filter(|other| index == 0 && **other == key).count();
                let running = (own + theirs) as u64;
                let limit = running_limits.next().copied().unwrap_or(0);
                all.push((limit, running, running, Resource::Running, Unix(0)));
            }
            for (limit, count, used, resource, end) in all {
                let (need, left) = match resource {
                    Resource::Tokens => (lease.reserved.tokens, &mut room.tokens),
                    Resource::Budget => (lease.reserved.nano, &mut room.nano),
                    Resource::Requests | Resource::Running => (0, &mut 0),
                };
                if limit > 0 && need > 0 {
                    *left = (*left).min(limit.saturating_sub(count));
                    if need > *left {
                        let by = if used + need > limit { LimitReason::Spent } else { LimitReason::Reserved };
                        lacks = Some((resource, index, by));
                    }
                }
                let (by, till) =
                    if used >= limit { (LimitReason::Spent, end) } else { (LimitReason::Reserved, Unix(0)) };
                if limit > 0 && count >= limit && found.is_none_or(|(.., longest)| longest < till) {
                    found = Some((resource, index, by, till));
                }
            }
            told.push(SharedCounts { bounds: place.bounds, requests, used });
        }
        let ruling = match found {
            _ if !ask.admits => Ruling::Looked,
            _ if self.ended => Ruling::Unavailable,
            Some((kind, which, by, _)) => Ruling::Refused(kind, which, by),
            None => match (ask.limits.strict, lacks) {
                (Some(least), Some(_)) if least.min(room) == least => Ruling::Less(room),
                (Some(_), Some((kind, which, by))) => Ruling::Refused(kind, which, by),
                _ => Ruling::Admitted,
            },
        };
        if ruling == Ruling::Admitted {
            self.held.push(loan(key, lease.clone()));
            for (place, told) in seats.into_iter().zip(&mut told) {
                self.windows.entry(place).or_default().0 += 1;
                told.requests += 1;
            }
        }
        AskAnswer { ask: ask.clone(), ruling, counts: told, grant: None }
    }

    /// Counts a usage record unless it was `done` before. Its lease is released in any case.
    fn append(&mut self, row: &Row, done: bool) {
        let lease = lease(row);
        remove(&mut self.held, &loan(row.key, lease.clone()));
        if !done {
            for place in places(&row.key, &lease) {
                let window = self.windows.entry(place).or_default();
                window.0 += u64::from(!lease.shared);
                window.1 = window.1.plus(row.amount());
            }
        }
    }

    /// The other host admits a request of the last checked key if the limit allows it, or ends one.
    fn other_host(&mut self, rng: &mut Rng) {
        if !self.theirs.is_empty() && rng.below(2) == 0 {
            self.theirs.pop();
        } else if let Some((key, seats)) = self.last.clone() {
            let tokens = rng.below(500);
            for place in seats {
                let window = self.windows.entry(place).or_default();
                (window.0, window.1.tokens) = (window.0 + 1, window.1.tokens + tokens);
            }
            *self.theirs_used.entry(key).or_default() += tokens;
            self.theirs.push(key);
        }
    }

    fn end_lease(&mut self) {
        self.held.clear();
        self.ended = true;
    }
}
