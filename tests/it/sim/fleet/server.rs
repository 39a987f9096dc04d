//! An in-memory model of a shared ledger: the decisions of its scripts, with the same names and in the same order. The
//! random sequences of `ledger/grants_model.rs` compare it with the real scripts, answer by answer.

use std::collections::BTreeMap;
use tollgate::base::time::{Mono, Unix};
use tollgate::policy::ask::{Ask, AskAnswer, Grant, Release, Ruling, Use};
use tollgate::policy::keys::KeyId;
use tollgate::policy::meter::{Amount, Lease, LimitReason, SharedCounts};
use tollgate::policy::plan::LimitKind;
use tollgate::policy::row::Row;
use tollgate::policy::window::DAY_MS;
use tollgate::store::remote::{Done, Holding, Holds, RemoteCommand, Speaker, accounts};

/// Lifetime of a grant, and of the leases of a silent host, in milliseconds.
const GRANT: u64 = 2000;
const LEASE: u64 = 15_000;
/// Granted amount if there is no limit.
const ENDLESS: i64 = (1 << 53) - 1;
/// Minimum time between two calls for the grants of an account, in milliseconds.
const CALL: u64 = 5;

/// Start and end of a window or period, in milliseconds.
type Bounds = (u64, u64);

/// Counts of one window, and the requests and tokens that hosts and grants hold in it.
#[derive(Clone, Default, Debug)]
pub struct Window {
    pub requests: i64,
    pub tokens: i64,
    held: BTreeMap<String, (i64, i64)>,
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
    /// Reserved tokens and nano-dollars, by account, host or grant, and period.
    lent: BTreeMap<(String, String, u64), (i64, i64)>,
    pub windows: BTreeMap<(String, Bounds), Window>,
    /// Used tokens and nano-dollars by account and day.
    used: BTreeMap<(String, u64), (u64, u64)>,
    /// Number of the last batch of each writer.
    numbers: BTreeMap<String, u64>,
    pub rows: Vec<Row>,
    called: BTreeMap<String, u64>,
    /// Accounts whose grants have been called in.
    pub calls: Vec<String>,
}

fn bounds((start, end): (Unix, Unix)) -> Bounds {
    (start.0, end.0)
}

/// Returns the names of a lease's accounts, each with its window and period.
fn seats(key: &KeyId, lease: &Lease) -> Vec<(String, Bounds, Bounds)> {
    accounts(key, lease)
        .map(|(account, window, period)| (account.to_string(), bounds(window), bounds(period)))
        .collect()
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

/// State of one account, and the remainders of its limits.
struct Standing {
    counts: SharedCounts,
    /// The limit that is reached, with the reason and the end. If there are several, the one that lasts longest.
    reached: Option<(LimitKind, LimitReason, i64)>,
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

    fn standing(&self, (account, window, period): &(String, Bounds, Bounds), ask: &Ask, at: usize) -> Standing {
        let limits = if at == 0 { &ask.limits } else { &ask.groups[at - 1] };
        let is_here = |key: &&(String, String, u64)| key.0 == *account && key.2 == period.0 && self.lives(&key.1);
        let (mut promised, mut lent) = ((0, 0), (0, 0));
        for key in self.lent.keys().filter(is_here) {
            let (tokens, nano) = self.lent[key];
            promised = (promised.0 + tokens, promised.1 + nano);
            if is_grant(&key.1) {
                lent = (lent.0 + tokens, lent.1 + nano);
            }
        }
        let of_account = self.running.iter().filter(|((of, host), _)| of == account && self.lives(host));
        let running: i64 = of_account.map(|(_, count)| count).sum();
        let none = Window::default();
        let counts = self.windows.get(&(account.clone(), *window)).unwrap_or(&none);
        let (mut requests_lent, mut asked, mut reserved, mut reserved_lent) = (0, 0, 0, 0);
        for (name, (requests, tokens)) in counts.held.iter().filter(|(name, _)| self.lives(name)) {
            reserved += tokens;
            match is_grant(name) {
                true => (requests_lent, reserved_lent) = (requests_lent + requests, reserved_lent + tokens),
                false => asked += requests,
            }
        }
        // Reservations may be released without being counted, so they alone do not make a limit appear reached to a
        // host.
        let (most, mut sure) = (limits.requests as i64, counts.requests + asked);
        if sure >= most && counts.requests < most {
            sure = most - 1;
        }
        let (tokens, money) = self.spent(account, *period);
        let has_budget = limits.budget > 0;
        let (money, due, due_lent) = if has_budget { (money, promised.1, lent.1) } else { (0, 0, 0) };
        let mut standing = Standing {
            counts: SharedCounts {
                window: (Unix(window.0), Unix(window.1)),
                requests: sure as u64,
                window_used: counts.tokens as u64,
                period: (Unix(period.0), Unix(period.1)),
                period_used: Amount { tokens: tokens as u64, nano: money as u64 },
            },
            reached: None,
            stands: false,
            is_called: false,
            left: [None; 3],
        };
        let (ends, renews) = (window.1 as i64, period.1 as i64);
        let requests = counts.requests + asked + requests_lent;
        let window_used = counts.tokens;
        for (limit, used, held, lent, what, kind, till) in [
            (limits.tokens, tokens, promised.0, lent.0, Some(1), LimitKind::TokensPerPeriod, renews),
            (limits.budget, money, due, due_lent, Some(2), LimitKind::Budget, renews),
            (limits.requests, requests, 0, requests_lent, Some(0), LimitKind::Requests, ends),
            (limits.tokens_per_window, window_used, reserved, reserved_lent, Some(1), LimitKind::TokensPerWindow, ends),
            (limits.concurrency, running, 0, 0, None, LimitKind::Concurrency, 0),
        ] {
            let (limit, count) = (limit as i64, used + held);
            if limit == 0 {
                continue;
            }
            if let Some(what) = what {
                let left = &mut standing.left[what];
                *left = Some(left.map_or(limit - count, |least: i64| least.min(limit - count)));
            }
            if count < limit {
                continue;
            }
            let stands = count - lent >= limit;
            (standing.stands, standing.is_called) = (standing.stands | stands, standing.is_called | !stands);
            let (by, till) = if used >= limit { (LimitReason::Spent, till) } else { (LimitReason::Reserved, 0) };
            if standing.reached.is_none_or(|(.., longest)| longest < till) {
                standing.reached = Some((kind, by, till));
            }
        }
        standing
    }

    fn admit(&mut self, speaker: &Speaker, ask: &Ask) -> AskAnswer {
        let seats = seats(&ask.key, &ask.lease);
        let mut told: Vec<Standing> = seats.iter().enumerate().map(|(at, seat)| self.standing(seat, ask, at)).collect();
        let mut left = [None; 3];
        for (sum, one) in left.iter_mut().zip(0..3) {
            *sum = told.iter().filter_map(|standing| standing.left[one]).min();
        }
        let stands = told.iter().any(|standing| standing.stands);
        let (mut refused, mut lasts) = (None, -1);
        for (at, standing) in told.iter().enumerate() {
            if let Some((kind, by, till)) = standing.reached.filter(|(.., till)| *till > lasts) {
                (refused, lasts) = (Some((kind, at, by)), till);
            }
        }
        let wish = ask.wish;
        let mut ruling = match refused {
            _ if !ask.admits => Ruling::Looked,
            None => Ruling::Admitted,
            Some(_) if !stands && wish.waits => {
                for ((account, ..), _) in seats.iter().zip(&told).filter(|(_, standing)| standing.is_called) {
                    if self.called.get(account).is_none_or(|until| *until <= self.now) {
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
        let reserved = (tokens as i64, nano as i64);
        if ruling == Ruling::Admitted {
            for (seat, standing) in seats.iter().zip(&mut told) {
                *self.running.entry((seat.0.clone(), speaker.host.clone())).or_default() += 1;
                standing.counts.requests += 1;
                self.lend(seat, &speaker.host, (1, reserved.0, reserved.1));
            }
            for (left, less) in left.iter_mut().zip([1, reserved.0, reserved.1]) {
                *left = left.map(|left: i64| left - less);
            }
        }
        let grant = self.grant(speaker, ask, ruling, left, &seats);
        let mut counts = told.into_iter().map(|standing| standing.counts);
        let own = counts.next().unwrap_or_default();
        AskAnswer { ask: ask.clone(), ruling, counts: own, groups: counts.collect(), grant }
    }

    fn grant(
        &mut self,
        speaker: &Speaker,
        ask: &Ask,
        ruling: Ruling,
        left: [Option<i64>; 3],
        seats: &[(String, Bounds, Bounds)],
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
            self.lend(seat, &name, (holds[0], holds[1], holds[2]));
        }
        self.marks.insert(name, self.now + GRANT);
        let [requests, tokens, nano] = amounts.map(|amount| amount as u64);
        Some(Grant { number: wish.number, requests, amount: Amount { tokens, nano }, until: Mono(0) })
    }

    /// Adds to, or subtracts from, what a host or grant holds.
    fn lend(&mut self, (account, window, period): &(String, Bounds, Bounds), name: &str, more: (i64, i64, i64)) {
        if more.0 != 0 || more.1 != 0 {
            let window = self.windows.entry((account.clone(), *window)).or_default();
            let held = window.held.entry(name.to_string()).or_default();
            (held.0, held.1) = ((held.0 + more.0).max(0), (held.1 + more.1).max(0));
        }
        if more.1 != 0 || more.2 != 0 {
            let lent = self.lent.entry((account.clone(), name.to_string(), period.0)).or_default();
            (lent.0, lent.1) = ((lent.0 + more.1).max(0), (lent.1 + more.2).max(0));
        }
    }

    fn run(&mut self, account: &str, host: &str, more: i64) {
        let running = self.running.entry((account.to_string(), host.to_string())).or_default();
        less(running, -more);
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
                Use::Returned(_) => {}
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
        for seat in seats(key, lease) {
            let window = self.windows.entry((seat.0.clone(), seat.1)).or_default();
            window.requests += 1;
            window.late += i64::from(!is_early);
            if lives {
                self.run(&seat.0, &speaker.host, 1);
                self.lend(&seat, &speaker.host, (0, tokens, nano));
            }
            if is_early {
                self.lend(&seat, &name, (-1, -tokens, -nano));
            }
        }
    }

    /// Counts a request that was admitted by a check of the ledger.
    fn serve(&mut self, speaker: &Speaker, key: &KeyId, lease: &Lease, lives: bool) {
        for seat in seats(key, lease) {
            let window = self.windows.entry((seat.0.clone(), seat.1)).or_default();
            window.requests += 1;
            window.late += i64::from(!lives);
            if lives {
                self.lend(&seat, &speaker.host, (-1, 0, 0));
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
            let sum = self.used.entry((account.clone(), day)).or_default();
            (sum.0, sum.1) = (sum.0 + used.tokens, sum.1 + used.nano);
            let seat = seats(&row.key, lease).into_iter().find(|(of, ..)| *of == account);
            let seat = seat.unwrap_or((account, (0, 0), (0, 0)));
            let place = (seat.0.clone(), seat.1);
            if !lease.shared {
                self.windows.entry(place.clone()).or_default().requests += 1;
            }
            let Some(window) = self.windows.get_mut(&place) else { continue };
            window.tokens += used.tokens as i64;
            if lives && lease.shared {
                let Amount { tokens, nano } = lease.reserved;
                self.run(&seat.0, &speaker.host, -1);
                self.lend(&seat, &speaker.host, (0, -(tokens as i64), -(nano as i64)));
            }
        }
    }

    fn release(&mut self, speaker: &Speaker, releases: &[Release]) -> Done {
        if !self.lives(&speaker.host) {
            return Done::Ended;
        }
        for Release { key, lease, unsent } in releases {
            let Amount { tokens, nano } = lease.reserved;
            for seat in seats(key, lease) {
                self.run(&seat.0, &speaker.host, -1);
                self.lend(&seat, &speaker.host, (-i64::from(*unsent), -(tokens as i64), -(nano as i64)));
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
        for ((account, window, period), Holding { reserved, running, asked }) in holds {
            let seat = (account.to_string(), bounds(*window), bounds(*period));
            self.run(&seat.0, &speaker.host, *running as i64);
            self.lend(&seat, &speaker.host, (*asked as i64, reserved.tokens as i64, reserved.nano as i64));
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
