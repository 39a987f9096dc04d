//! An in-memory model of a shared ledger: the decisions of its scripts, with the same names and in the same order. The
//! random sequences of `ledger/grants_model.rs` compare it with the real scripts, answer by answer.

use std::collections::BTreeMap;
use tollgate::base::time::{Mono, Unix};
use tollgate::policy::keys::KeyId;
use tollgate::policy::ledger::{Ask, AskAnswer, Grant, Release, Ruling, Use};
use tollgate::policy::meter::{Amount, Lease, LimitReason, SharedCounts};
use tollgate::policy::plan::caps::Resource;
use tollgate::policy::row::Row;
use tollgate::policy::window::DAY_MS;
use tollgate::store::remote::{Done, Holding, Holds, LeasePlace, RemoteCommand, Speaker, places};

/// Lifetime of a grant, and of the leases of a silent host, in milliseconds.
const GRANT: u64 = 2000;
const LEASE: u64 = 15_000;
/// Granted amount if there is no limit.
const ENDLESS: i64 = (1 << 53) - 1;
/// Minimum time between two calls for the grants of an account, in milliseconds.
const CALL: u64 = 5;

/// Start and end of a window or period, in milliseconds.
type Bounds = (u64, u64);

/// Counts of one window, and what hosts and grants hold in it: requests, tokens and nano-dollars.
#[derive(Clone, Default, Debug)]
pub struct Window {
    pub requests: i64,
    pub used: [i64; 2],
    held: BTreeMap<String, [i64; 3]>,
    /// Admissions by grants that had ended when they were reported. Not part of any script.
    pub late: i64,
}

/// A shared ledger.
#[derive(Clone, Default, Debug)]
pub struct Server {
    /// Clock of the server in milliseconds.
    pub now: u64,
    /// Time when the lease of each host and each grant ends.
    marks: BTreeMap<String, u64>,
    /// Running requests by account and host.
    running: BTreeMap<(String, String), i64>,
    pub windows: BTreeMap<LeasePlace, Window>,
    /// Used tokens and nano-dollars by account and day.
    used: BTreeMap<(String, u64), (u64, u64)>,
    /// Number of the last batch of each writer.
    numbers: BTreeMap<String, u64>,
    pub rows: Vec<Row>,
    called: BTreeMap<String, u64>,
    /// Accounts whose grants have been called in.
    pub calls: Vec<String>,
}

/// Name of the key or group.
fn owner(place: &LeasePlace) -> String {
    place.running()["live:".len()..].to_string()
}

fn grant_name(writer: &str, number: u64) -> String {
    format!("{writer}g{number}")
}

fn is_grant(name: &str) -> bool {
    name.contains('g')
}

/// Subtracts an amount, down to 0.
fn less(value: &mut i64, amount: i64) {
    *value = (*value - amount).max(0);
}

/// State of one place, and the remainders of its limits.
struct Standing {
    counts: SharedCounts,
    /// The limit that is reached, with the reason and the end. If there are several, the one that lasts longest.
    reached: Option<(Resource, LimitReason, i64)>,
    /// True if a limit is reached even without the grants.
    stands: bool,
    is_called: bool,
    left: [Option<i64>; 3],
}

impl Server {
    fn lives(&self, name: &str) -> bool {
        self.marks.get(name).is_some_and(|until| self.now < *until)
    }

    /// Ends the lease of a host or a grant.
    pub fn end(&mut self, name: &str) {
        self.marks.remove(name);
    }

    /// Returns the tokens and nano-dollars that an account has used in a period.
    pub fn spent(&self, account: &str, period: Bounds) -> (i64, i64) {
        let first = period.0 / DAY_MS;
        let days = first..first + (period.1 / DAY_MS).saturating_sub(first).clamp(1, 31);
        let used = days.filter_map(|day| self.used.get(&(account.to_string(), day)));
        used.fold((0, 0), |sum, (tokens, nano)| (sum.0 + *tokens as i64, sum.1 + *nano as i64))
    }

    /// Returns the accounts, each with a host, that count running requests.
    pub fn running(&self) -> Vec<&(String, String)> {
        self.running.iter().filter(|((_, host), count)| **count > 0 && self.lives(host)).map(|(of, _)| of).collect()
    }

    /// Executes one command.
    pub fn command(&mut self, speaker: &Speaker, command: &RemoteCommand<'_>) -> Done {
        match command {
            RemoteCommand::Ask(ask) => Done::Answer(self.admit(speaker, ask)),
            RemoteCommand::Release(releases) => self.release(speaker, releases),
            RemoteCommand::Rows(number, rows, uses) => self.append(speaker, *number, rows, uses),
            RemoteCommand::Return(number) => {
                self.end(&grant_name(&speaker.writer, *number));
                Done::Done
            }
        }
    }

    fn standing(&self, place: &LeasePlace, limits: &[u64; 3]) -> Standing {
        let none = Window::default();
        let window = self.windows.get(place).unwrap_or(&none);
        let (mut held, mut lent, mut asked) = ([0; 3], [0; 3], 0);
        for (name, amounts) in window.held.iter().filter(|(name, _)| self.lives(name)) {
            for (at, amount) in amounts.iter().enumerate() {
                match (at, is_grant(name)) {
                    (0, false) => asked += amount,
                    (_, grant) => {
                        held[at] += amount;
                        lent[at] += if grant { *amount } else { 0 };
                    }
                }
            }
        }
        let is_midnight = |at: Unix| at.0.is_multiple_of(DAY_MS);
        let mut used = [window.requests + asked, window.used[0], window.used[1]];
        if is_midnight(place.bounds.0) && is_midnight(place.bounds.1) && !place.account.contains(':') {
            let (tokens, nano) = self.spent(&owner(place), (place.bounds.0.0, place.bounds.1.0));
            (used[1], used[2]) = (tokens, if limits[2] > 0 { nano } else { 0 });
        }
        // Requests that may still not count in the end do not make a limit appear reached to a host.
        let (most, mut sure) = (limits[0] as i64, used[0]);
        if sure >= most && window.requests < most {
            sure = most - 1;
        }
        let amount = Amount { tokens: used[1] as u64, nano: used[2] as u64 };
        let mut standing = Standing {
            counts: SharedCounts { bounds: place.bounds, requests: sure as u64, used: amount },
            reached: None,
            stands: false,
            is_called: false,
            left: [None; 3],
        };
        for at in (0..3).filter(|at| limits[*at] > 0) {
            let (limit, count) = (limits[at] as i64, used[at] + held[at]);
            standing.left[at] = Some(limit - count);
            if count < limit {
                continue;
            }
            let stands = count - lent[at] >= limit;
            (standing.stands, standing.is_called) = (standing.stands | stands, standing.is_called | !stands);
            let is_spent = at == 0 || used[at] >= limit;
            let (by, till) =
                if is_spent { (LimitReason::Spent, place.bounds.1.0 as i64) } else { (LimitReason::Reserved, 0) };
            if standing.reached.is_none_or(|(.., longest)| longest < till) {
                standing.reached = Some((Resource::ALL[at], by, till));
            }
        }
        standing
    }

    fn admit(&mut self, speaker: &Speaker, ask: &Ask) -> AskAnswer {
        let seats: Vec<LeasePlace> = places(&ask.key, &ask.lease).collect();
        let each = seats.iter().zip(&ask.limits.parts);
        let mut told: Vec<Standing> = each.map(|(place, limits)| self.standing(place, limits)).collect();
        let mut left = [None; 3];
        for (sum, one) in left.iter_mut().zip(0..3) {
            *sum = told.iter().filter_map(|standing| standing.left[one]).min();
        }
        let mut stands = told.iter().any(|standing| standing.stands);
        let (mut refused, mut lasts) = (None, -1);
        for (at, standing) in told.iter().enumerate() {
            if let Some((kind, by, till)) = standing.reached.filter(|(.., till)| *till > lasts) {
                (refused, lasts) = (Some((kind, at, by)), till);
            }
        }
        let firsts = seats.iter().enumerate().filter(|(_, place)| place.is_first());
        for ((at, place), limit) in firsts.zip(&ask.limits.running) {
            let of_account = self.running.iter().filter(|((of, host), _)| *of == owner(place) && self.lives(host));
            let running: i64 = of_account.map(|(_, count)| count).sum();
            if *limit > 0 && running >= *limit as i64 {
                stands = true;
                if lasts < 0 {
                    (refused, lasts) = (Some((Resource::Running, at, LimitReason::Spent)), 0);
                }
            }
        }
        let wish = ask.wish;
        let mut ruling = match refused {
            _ if !ask.admits => Ruling::Looked,
            None => Ruling::Admitted,
            Some(_) if !stands && wish.waits => {
                let called = seats.iter().zip(&told).filter(|(_, standing)| standing.is_called);
                for account in called.map(|(place, _)| owner(place)) {
                    if self.called.get(&account).is_none_or(|until| *until <= self.now) {
                        self.called.insert(account.clone(), self.now + CALL);
                        self.calls.push(account.clone());
                    }
                }
                Ruling::Called
            }
            Some((kind, at, by)) => Ruling::Refused(kind, at, by),
        };
        if (ask.admits || wish.part > 0) && !self.lives(&speaker.host) {
            ruling = Ruling::Unavailable;
        }
        let Amount { tokens, nano } = ask.lease.reserved;
        let reserved = [1, tokens as i64, nano as i64];
        if ruling == Ruling::Admitted {
            for (seat, standing) in seats.iter().zip(&mut told) {
                self.run(seat, &speaker.host, 1);
                standing.counts.requests += 1;
                self.lend(seat, &speaker.host, reserved);
            }
            for (left, less) in left.iter_mut().zip(reserved) {
                *left = left.map(|left: i64| left - less);
            }
        }
        let grant = self.grant(speaker, ask, ruling, left, &seats);
        let counts = told.into_iter().map(|standing| standing.counts).collect();
        AskAnswer { ask: ask.clone(), ruling, counts, grant }
    }

    fn grant(
        &mut self,
        speaker: &Speaker,
        ask: &Ask,
        ruling: Ruling,
        left: [Option<i64>; 3],
        seats: &[LeasePlace],
    ) -> Option<Grant> {
        let (wish, name) = (ask.wish, grant_name(&speaker.writer, ask.wish.number));
        let may = matches!(ruling, Ruling::Admitted | Ruling::Looked) && (!wish.known || self.lives(&name));
        if wish.part == 0 || !may {
            return None;
        }
        let (mut amounts, mut holds) = ([ENDLESS; 3], [0; 3]);
        let wanted = [wish.requests.max(1), wish.amount.tokens, wish.amount.nano].map(|wanted| wanted as i64);
        for at in 0..3 {
            if let Some(left) = left[at] {
                amounts[at] = wanted[at].min(left.div_euclid(i64::from(wish.part.max(1)))).max(0);
                holds[at] = amounts[at];
            }
        }
        let suffices = |at: usize| amounts[at] as f64 >= wanted[at] as f64 / wanted[0] as f64;
        if amounts[0] == 0 || !(0..3).all(suffices) {
            return None;
        }
        for seat in seats {
            self.lend(seat, &name, holds);
        }
        self.marks.insert(name, self.now + GRANT);
        let [requests, tokens, nano] = amounts.map(|amount| amount as u64);
        Some(Grant { number: wish.number, requests, amount: Amount { tokens, nano }, until: Mono(0) })
    }

    /// Adds to, or subtracts from, what a host or grant holds.
    fn lend(&mut self, place: &LeasePlace, name: &str, more: [i64; 3]) {
        let held = self.windows.entry(place.clone()).or_default().held.entry(name.to_string()).or_default();
        held.iter_mut().zip(more).for_each(|(held, more)| less(held, -more));
    }

    /// Adds to, or subtracts from, the running requests of a host.
    fn run(&mut self, place: &LeasePlace, host: &str, more: i64) {
        if place.is_first() {
            less(self.running.entry((owner(place), host.to_string())).or_default(), -more);
        }
    }

    fn append(&mut self, speaker: &Speaker, number: u64, rows: &[Row], uses: &[Use]) -> Done {
        let last = self.numbers.entry(speaker.writer.clone()).or_default();
        if *last >= number {
            return Done::Before;
        }
        *last = number;
        let lives = self.lives(&speaker.host);
        for one in uses {
            match one {
                Use::Took(grant, key, lease) => self.take(speaker, *grant, key, lease, lives),
                Use::Served(key, lease) => self.serve(speaker, key, lease, lives),
                Use::Left(..) | Use::Returned(_) => {}
            }
        }
        for row in rows {
            self.row(speaker, row, lives);
        }
        self.rows.extend(rows.iter().cloned());
        if lives { Done::Done } else { Done::Ended }
    }

    /// Counts a request that was admitted by a grant: its reservation moves from the grant to the host.
    fn take(&mut self, speaker: &Speaker, grant: u64, key: &KeyId, lease: &Lease, lives: bool) {
        let name = grant_name(&speaker.writer, grant);
        let (is_early, reserved) = (self.lives(&name), lease.reserved);
        let (tokens, nano) = (reserved.tokens as i64, reserved.nano as i64);
        for place in places(key, lease) {
            let window = self.windows.entry(place.clone()).or_default();
            window.requests += 1;
            window.late += i64::from(!is_early);
            if lives {
                self.run(&place, &speaker.host, 1);
                self.lend(&place, &speaker.host, [0, tokens, nano]);
            }
            if is_early {
                self.lend(&place, &name, [-1, -tokens, -nano]);
            }
        }
    }

    /// Counts a request that was admitted by a check of the ledger.
    fn serve(&mut self, speaker: &Speaker, key: &KeyId, lease: &Lease, lives: bool) {
        for place in places(key, lease) {
            let window = self.windows.entry(place.clone()).or_default();
            window.requests += 1;
            window.late += i64::from(!lives);
            if lives {
                self.lend(&place, &speaker.host, [-1, 0, 0]);
            }
        }
    }

    /// Ends a request: its usage counts, and its lease is released.
    fn row(&mut self, speaker: &Speaker, row: &Row, lives: bool) {
        let none = Lease::default();
        let lease = row.lease.as_deref().unwrap_or(&none);
        let (used, day) = (row.amount(), row.admitted.0 / DAY_MS);
        let groups = row.group.rsplit('/').filter(|name| !name.is_empty()).map(|name| format!("@{name}"));
        for account in std::iter::once(row.key.to_string()).chain(groups) {
            let sum = self.used.entry((account, day)).or_default();
            (sum.0, sum.1) = (sum.0 + used.tokens, sum.1 + used.nano);
        }
        for place in places(&row.key, lease) {
            if !lease.shared {
                self.windows.entry(place.clone()).or_default().requests += 1;
            }
            if let Some(window) = self.windows.get_mut(&place) {
                window.used = [window.used[0] + used.tokens as i64, window.used[1] + used.nano as i64];
            }
            if lives && lease.shared {
                let Amount { tokens, nano } = lease.reserved;
                self.run(&place, &speaker.host, -1);
                self.lend(&place, &speaker.host, [0, -(tokens as i64), -(nano as i64)]);
            }
        }
    }

    fn release(&mut self, speaker: &Speaker, releases: &[Release]) -> Done {
        if !self.lives(&speaker.host) {
            return Done::Ended;
        }
        for Release { key, lease, unsent } in releases {
            let Amount { tokens, nano } = lease.reserved;
            for place in places(key, lease) {
                self.run(&place, &speaker.host, -1);
                self.lend(&place, &speaker.host, [-i64::from(*unsent), -(tokens as i64), -(nano as i64)]);
            }
        }
        Done::Done
    }

    /// Registers a host under a new name with its reservations.
    pub fn announce(&mut self, speaker: &Speaker, old: &str, holds: &Holds) {
        if self.lives(&speaker.host) {
            return;
        }
        old.split_whitespace().for_each(|old| self.end(old));
        self.marks.insert(speaker.host.clone(), self.now + LEASE);
        for (place, Holding { reserved, running, asked }) in holds {
            self.run(place, &speaker.host, *running as i64);
            self.lend(place, &speaker.host, [*asked as i64, reserved.tokens as i64, reserved.nano as i64]);
        }
    }

    /// Returns the number of a writer's last batch.
    pub fn last_batch(&self, writer: &str) -> u64 {
        self.numbers.get(writer).copied().unwrap_or(0)
    }

    /// Extends the lease of a host. Returns false if it has ended.
    pub fn renew(&mut self, host: &str) -> bool {
        let lives = self.lives(host);
        if lives {
            self.marks.insert(host.to_string(), self.now + LEASE);
        }
        lives
    }
}
