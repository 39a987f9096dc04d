//! Counts what keys use against their plans. It admits, reserves, settles and shows; it reads no clock, knows no HTTP
//! and stores nothing: `gateway` owns one, feeds it from the ledger at start and writes its rows.

use super::keys::KeyIx;
use super::plan::{Plan, shown};
use super::window::{Period, iso, window};
use crate::base::slots::{Id, Slots};
use crate::base::time::Unix;
use std::time::Duration;

/// Which limit of a plan was reached.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum LimitKind {
    /// Requests per window.
    Requests,
    /// Tokens per window.
    TokensPerWindow,
    /// The allowance of the period.
    TokensPerPeriod,
    /// Requests at once.
    Concurrency,
}

/// A limit that refuses a request: what a 429 is made of.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Limit {
    /// Which one.
    pub kind: LimitKind,
    /// Its value in the plan.
    pub value: u64,
    /// Length of the plan's window.
    pub window: Duration,
    /// For `x-ratelimit-reset`: the end of the limit, for concurrency that of the window.
    pub reset: Unix,
    /// For `retry-after`: whole seconds, at least 1. A place among those at once can be free at any moment, so 1.
    pub retry_after: u64,
}

impl Limit {
    /// Names the limit for `error.message`.
    pub fn message(&self) -> String {
        let (value, reset, window) = (self.value, iso(self.reset), self.window.as_secs());
        match self.kind {
            LimitKind::Requests => {
                format!("rate limit reached: {value} requests per {window} s for this key; resets at {reset}")
            }
            LimitKind::TokensPerWindow => {
                format!("rate limit reached: {value} tokens per {window} s for this key; resets at {reset}")
            }
            LimitKind::TokensPerPeriod => {
                format!("plan allowance reached: {value} tokens per period; renews at {reset}")
            }
            LimitKind::Concurrency => format!("rate limit reached: {value} requests at once for this key"),
        }
    }
}

/// What an open hold stands for; lives in the meter's own table, so that an exchange lost to a bug loses none.
#[derive(Debug)]
pub struct Open {
    key: KeyIx,
    window: (Unix, Unix),
    periods: [(Unix, Unix); Period::ALL.len()],
    reserved: u64,
}

/// The right of one admitted request to its reservation. It must be given back to [`Meter::settle`] or
/// [`Meter::refund`] exactly once; it cannot be copied, and [`Meter::open_holds`] counts those that are out.
#[derive(Debug)]
#[must_use]
pub struct Hold(Id<Open>);

impl Hold {
    /// Its name, for [`Meter::reclaim`].
    pub fn id(&self) -> Id<Open> {
        self.0
    }
}

/// How a key stands against its plan, by what is settled. Unlimited is 9007199254740991.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Standing {
    /// Requests per window.
    pub limit: u64,
    /// Requests left in the window.
    pub remaining_requests: u64,
    /// Tokens left: the smaller of the period's and the window's remainder.
    pub remaining_tokens: u64,
    /// End of the window.
    pub reset_at: Unix,
    /// Tokens used in the period.
    pub used: u64,
    /// Token allowance of the period.
    pub total: u64,
    /// First moment of the period.
    pub period_start: Unix,
    /// First moment of the next.
    pub renews: Unix,
}

/// Tokens settled and promised within one stretch of time.
#[derive(Copy, Clone, Debug, Default)]
struct Tally {
    start: Unix,
    end: Unix,
    requests: u64,
    used: u64,
    reserved: u64,
}

impl Tally {
    /// Begins the stretch `(start, end)` unless it runs already. Never goes back: a clock set back must not hand out
    /// an allowance twice, so the later stretch stays until time has caught up with it.
    ///
    /// A stretch of another length that begins before the old one is over (a plan's window was changed) takes over
    /// what the old one has counted: too much rather than too little, and right again one stretch later.
    fn enter(&mut self, (start, end): (Unix, Unix)) {
        if (self.start, self.end) == (start, end) || (end <= self.end && start <= self.start) {
            return;
        }
        let changed = end.0 - start.0 != self.end.0 - self.start.0 && start < self.end;
        let kept = if changed { (self.requests, self.used) } else { (0, 0) };
        *self = Tally { start, end, requests: kept.0, used: kept.1, reserved: 0 };
    }

    fn bounds(&self) -> (Unix, Unix) {
        (self.start, self.end)
    }

    fn is_spent(&self, total: u64) -> bool {
        total > 0 && self.used.saturating_add(self.reserved) >= total
    }

    fn left(&self, total: u64) -> u64 {
        if total == 0 { shown(0) } else { shown(total).saturating_sub(self.used) }
    }
}

/// The counters of one key. Every period is counted, whichever the plan goes by, so that a plan that is changed at run
/// time finds what its new period has seen.
#[derive(Copy, Clone, Debug, Default)]
struct Account {
    window: Tally,
    periods: [Tally; Period::ALL.len()],
    running: u64,
}

impl Account {
    fn period(&self, plan: &Plan) -> &Tally {
        &self.periods[plan.period as usize]
    }
}

/// All counters. They are keyed by [`KeyIx`] and outlive changes of the configuration.
#[derive(Debug, Default)]
pub struct Meter {
    accounts: Vec<Account>,
    open: Slots<Open>,
}

impl Meter {
    /// No use yet.
    pub fn new() -> Meter {
        Meter::default()
    }

    /// Whether a limit of the key is spent already: what the head of a request can be refused for. Nothing is
    /// counted.
    pub fn spent(&mut self, key: KeyIx, plan: &Plan, now: Unix) -> Result<(), Limit> {
        let account = self.at(key, plan, now);
        check(account, plan, now)
    }

    /// Admits one request, counts it and reserves `estimate` tokens, or says which limit stands against it. Refused
    /// when `used + reserved ≥ total` (contract section 3); N requests, or N at once, are exactly N.
    pub fn admit(&mut self, key: KeyIx, plan: &Plan, now: Unix, estimate: u64) -> Result<Hold, Limit> {
        let account = self.at(key, plan, now);
        check(account, plan, now)?;
        account.window.requests += 1;
        account.running += 1;
        account.window.reserved = account.window.reserved.saturating_add(estimate);
        for period in &mut account.periods {
            period.reserved = period.reserved.saturating_add(estimate);
        }
        let (window, periods) = (account.window.bounds(), account.periods.map(|period| period.bounds()));
        Ok(Hold(self.open.insert(Open { key, window, periods, reserved: estimate })))
    }

    /// Ends a request that used `tokens`, which count in the window and the period of its admission. A window or
    /// period that has passed is not counted any more; its row in the ledger is.
    pub fn settle(&mut self, hold: Hold, tokens: u64) {
        self.close(hold.0, tokens);
    }

    /// Ends the holds that nobody has any more: `is_live` says which are still out. Returns how many there were. For
    /// use after a panic; in ordinary service there are none.
    pub fn reclaim(&mut self, is_live: impl Fn(Id<Open>) -> bool) -> usize {
        let lost: Vec<Id<Open>> = self.open.iter().map(|(id, _)| id).filter(|id| !is_live(*id)).collect();
        lost.iter().for_each(|id| self.close(*id, 0));
        lost.len()
    }

    fn close(&mut self, id: Id<Open>, tokens: u64) {
        let Some(hold) = self.open.remove(id) else { return };
        let Some(account) = self.accounts.get_mut(hold.key.0 as usize) else { return };
        account.running = account.running.saturating_sub(1);
        let periods = account.periods.iter_mut().zip(hold.periods);
        for (tally, bounds) in periods.chain([(&mut account.window, hold.window)]) {
            if tally.bounds() == bounds {
                tally.reserved = tally.reserved.saturating_sub(hold.reserved);
                tally.used = tally.used.saturating_add(tokens);
            }
        }
    }

    /// Ends a request that used no tokens. It stays counted as a request.
    pub fn refund(&mut self, hold: Hold) {
        self.settle(hold, 0);
    }

    /// How the key stands.
    pub fn standing(&mut self, key: KeyIx, plan: &Plan, now: Unix) -> Standing {
        let account = self.at(key, plan, now);
        let (window, period) = (&account.window, account.period(plan));
        let limit = shown(plan.requests);
        Standing {
            limit,
            remaining_requests: if plan.requests == 0 { limit } else { limit.saturating_sub(window.requests) },
            remaining_tokens: period.left(plan.tokens).min(window.left(plan.tokens_per_window)),
            reset_at: window.end,
            used: period.used,
            total: shown(plan.tokens),
            period_start: period.start,
            renews: period.end,
        }
    }

    /// Holds that are out: requests running. Zero at rest.
    pub fn open_holds(&self) -> usize {
        self.open.len()
    }

    /// At start, from the ledger's sums by day: `tokens` were used on the UTC day that begins at `day`. Counts in those
    /// current periods that the day lies in. Days are never longer than a period, so this is exact.
    pub fn restore_day(&mut self, key: KeyIx, plan: &Plan, now: Unix, day: Unix, tokens: u64) {
        for period in &mut self.at(key, plan, now).periods {
            if period.start <= day && day < period.end {
                period.used = period.used.saturating_add(tokens);
            }
        }
    }

    /// At start, from the ledger's rows: one request was admitted at `admitted` and used `tokens`. Counts in the
    /// window if that lies in the current one; the period is [`Meter::restore_day`]'s.
    pub fn restore_row(&mut self, key: KeyIx, plan: &Plan, now: Unix, admitted: Unix, tokens: u64) {
        let window = &mut self.at(key, plan, now).window;
        if window.start <= admitted && admitted < window.end {
            window.requests = window.requests.saturating_add(1);
            window.used = window.used.saturating_add(tokens);
        }
    }

    /// The account of `key` with its window and period brought up to `now`.
    fn at(&mut self, key: KeyIx, plan: &Plan, now: Unix) -> &mut Account {
        let index = key.0 as usize;
        if self.accounts.len() <= index {
            self.accounts.resize(index + 1, Account::default());
        }
        let account = &mut self.accounts[index];
        account.window.enter(window(now, plan.window));
        for (tally, period) in account.periods.iter_mut().zip(Period::ALL) {
            if now < tally.start || now >= tally.end {
                tally.enter(period.bounds(now));
            }
        }
        account
    }
}

/// The first limit that stands against one more request. The period comes first: whoever has spent it gains nothing
/// by waiting for a window.
fn check(account: &Account, plan: &Plan, now: Unix) -> Result<(), Limit> {
    let (window, period) = (&account.window, account.period(plan));
    let (kind, value, reset) = if period.is_spent(plan.tokens) {
        (LimitKind::TokensPerPeriod, plan.tokens, period.end)
    } else if plan.requests > 0 && window.requests >= plan.requests {
        (LimitKind::Requests, plan.requests, window.end)
    } else if window.is_spent(plan.tokens_per_window) {
        (LimitKind::TokensPerWindow, plan.tokens_per_window, window.end)
    } else if plan.concurrency > 0 && account.running >= plan.concurrency {
        (LimitKind::Concurrency, plan.concurrency, window.end)
    } else {
        return Ok(());
    };
    let wait = reset.0.saturating_sub(now.0).div_ceil(1000).max(1);
    let retry_after = if kind == LimitKind::Concurrency { 1 } else { wait };
    Err(Limit { kind, value, window: plan.window, reset, retry_after })
}

#[cfg(test)]
mod tests;
