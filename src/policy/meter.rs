//! Counts what keys use against their plans. It admits, reserves, settles and shows; it reads no clock, knows no HTTP
//! and stores nothing: `gateway` owns one, feeds it from the ledger at start and writes its rows.
//!
//! With a shared ledger it is that which admits; the meter then keeps this process's part ([`Meter::grant`]) beside
//! what that says of the whole ([`Meter::learn`]).

mod account;

pub use account::{DAYS_KEPT, Open, SharedCounts};

use super::keys::KeyIx;
use super::plan::{Plan, shown};
use super::window::{iso, window};
use crate::base::slots::{Id, Slots};
use crate::base::time::Unix;
use account::Account;
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

impl LimitKind {
    /// All of them.
    pub const ALL: [LimitKind; 4] =
        [LimitKind::Requests, LimitKind::TokensPerWindow, LimitKind::TokensPerPeriod, LimitKind::Concurrency];

    /// As a plan's setting, log lines and metrics call it.
    pub fn name(self) -> &'static str {
        match self {
            LimitKind::Requests => "requests",
            LimitKind::TokensPerWindow => "tokens_per_window",
            LimitKind::TokensPerPeriod => "tokens",
            LimitKind::Concurrency => "concurrency",
        }
    }
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

/// What a shared ledger has lent to a request for the time it runs, so that it can be given back with its row.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Lease {
    /// The window it was admitted in.
    pub window: (Unix, Unix),
    /// The period it was admitted in.
    pub period: (Unix, Unix),
    /// Tokens reserved.
    pub reserved: u64,
    /// False if the shared ledger knows nothing of it: there is none, or it could not be reached.
    pub shared: bool,
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
pub struct QuotaStatus {
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

    /// Room for so many keys, so that they are not copied as they come.
    pub fn with_room(keys: usize) -> Meter {
        Meter { accounts: Vec::with_capacity(keys), open: Slots::default() }
    }

    /// Whether a limit of the key is spent already: what the head of a request can be refused for. Nothing is
    /// counted.
    pub fn spent(&mut self, key: KeyIx, plan: &Plan, now: Unix) -> Result<(), Limit> {
        let account = self.at(key, plan, now);
        // What is only a bound refuses nobody: it is counted when the body is there.
        let bounded = account.bounded.1;
        let mut counts = Counts::own(account);
        counts.window_tokens = counts.window_tokens.saturating_sub(bounded).max(account.window.used);
        counts.period_tokens = counts.period_tokens.saturating_sub(bounded).max(account.period.used);
        check(&counts, account, plan, now)
    }

    /// The same by what can no longer become less: what is reserved or runs may be given back at any moment.
    pub fn spent_settled(&mut self, key: KeyIx, plan: &Plan, now: Unix) -> Result<(), Limit> {
        let account = self.at(key, plan, now);
        check(&Counts::settled(account), account, plan, now)
    }

    /// Admits one request, counts it and reserves `estimate` tokens, or says which limit stands against it. Refused
    /// when `used + reserved ≥ total` (contract section 3); N requests, or N at once, are exactly N.
    pub fn admit(&mut self, key: KeyIx, plan: &Plan, now: Unix, estimate: u64) -> Result<Hold, Limit> {
        let account = self.at(key, plan, now);
        check(&Counts::own(account), account, plan, now)?;
        let (window, period) = (account.window.bounds, account.period.bounds);
        Ok(self.hold(Open { key, window, period, admitted: now, reserved: estimate, shared: false, bounded: false }))
    }

    /// Admits one request that may use `most` tokens, perhaps far fewer, where that decides nothing: with all of them
    /// the key stays under half of each limit. `None`: what it may really use has to be counted for [`Meter::admit`],
    /// or a limit stands against it.
    pub fn admit_bounded(&mut self, key: KeyIx, plan: &Plan, now: Unix, most: u64) -> Option<Hold> {
        let account = self.at(key, plan, now);
        let counts = Counts::own(account);
        let is_far = |limit: u64, count: u64| limit == 0 || count.saturating_add(most) < limit / 2;
        if !is_far(plan.tokens, counts.period_tokens) || !is_far(plan.tokens_per_window, counts.window_tokens) {
            return None;
        }
        check(&counts, account, plan, now).ok()?;
        account.begin_bounded(most);
        let (window, period) = (account.window.bounds, account.period.bounds);
        let open = Open { key, window, period, admitted: now, reserved: most, shared: false, bounded: true };
        Some(self.hold(open))
    }

    /// Whether requests of the key are out whose reservation is only a bound: a refusal for tokens is not exact then.
    pub fn is_bounded(&self, key: KeyIx) -> bool {
        self.accounts.get(key.0 as usize).is_some_and(|account| account.bounded.0 > 0)
    }

    /// A request that was admitted by a bound may really use `exact` tokens. Nothing changes for any other.
    pub fn count(&mut self, hold: &Hold, exact: u64) {
        let Some(open) = self.open.get_mut(hold.0).filter(|open| open.bounded) else { return };
        let exact = exact.min(open.reserved);
        if let Some(account) = self.accounts.get_mut(open.key.0 as usize) {
            account.count(open, exact);
        }
        (open.reserved, open.bounded) = (exact, false);
    }

    /// What a request of the key would be lent at `now`.
    pub fn lease_for(&mut self, key: KeyIx, plan: &Plan, now: Unix, estimate: u64) -> Lease {
        let account = self.at(key, plan, now);
        Lease { window: account.window.bounds, period: account.period.bounds, reserved: estimate, shared: false }
    }

    /// Takes note of a request that a shared ledger has admitted, as it was asked at `now`.
    pub fn grant(&mut self, key: KeyIx, plan: &Plan, now: Unix, lease: Lease) -> Hold {
        self.at(key, plan, now);
        self.hold(Open {
            key,
            window: lease.window,
            period: lease.period,
            admitted: now,
            reserved: lease.reserved,
            shared: true,
            bounded: false,
        })
    }

    /// Takes note of what a shared ledger says. Within a window and a period its counts only grow.
    pub fn learn(&mut self, key: KeyIx, plan: &Plan, now: Unix, news: &SharedCounts) {
        let known = self.at(key, plan, now).shared.get_or_insert_default();
        let (mut requests, mut window_used, mut period_used) = (news.requests, news.window_used, news.period_used);
        if known.window == news.window {
            (requests, window_used) = (requests.max(known.requests), window_used.max(known.window_used));
        }
        if known.period == news.period {
            period_used = period_used.max(known.period_used);
        }
        **known = SharedCounts { requests, window_used, period_used, ..*news };
    }

    /// The limit of `kind` as it stands against a key that a shared ledger has refused.
    pub fn limit(&mut self, key: KeyIx, plan: &Plan, now: Unix, kind: LimitKind) -> Limit {
        let account = self.at(key, plan, now);
        limit(kind, account, plan, now)
    }

    /// Takes over a request that another process admitted at `admitted` with `reserved` tokens and still serves. Counts
    /// in the present window and period as far as its admission lies in them.
    pub fn adopt(&mut self, key: KeyIx, plan: &Plan, now: Unix, admitted: Unix, reserved: u64) -> Hold {
        let (window, period) = (window(admitted, plan.window), plan.period.bounds(admitted));
        let open = Open { key, window, period, admitted, reserved, shared: false, bounded: false };
        self.at(key, plan, now).adopt(&open);
        Hold(self.open.insert(open))
    }

    fn hold(&mut self, open: Open) -> Hold {
        if let Some(account) = self.accounts.get_mut(open.key.0 as usize) {
            account.begin(open.reserved);
        }
        Hold(self.open.insert(open))
    }

    /// What the shared ledger has lent to a hold; nothing, where there is none.
    pub fn lease(&self, hold: &Hold) -> Lease {
        let lease = |open: &Open| Lease {
            window: open.window,
            period: open.period,
            reserved: open.reserved,
            shared: open.shared,
        };
        self.open.get(hold.0).map(lease).unwrap_or_default()
    }

    /// Ends a request that used `tokens`, which count in the window and the period of its admission. A window or
    /// period that has passed is not counted any more; its row in the ledger is.
    pub fn settle(&mut self, hold: Hold, tokens: u64) {
        self.close(hold.0, tokens);
    }

    /// Ends the holds that no exchange has any more: `is_live` says which are still out. Returns whose they were and
    /// what they were lent. For use after a panic; in ordinary service there are none.
    pub fn reclaim(&mut self, is_live: impl Fn(Id<Open>) -> bool) -> Vec<(KeyIx, Lease)> {
        let lost: Vec<Id<Open>> = self.open.iter().map(|(id, _)| id).filter(|id| !is_live(*id)).collect();
        let reclaim = |id: Id<Open>| {
            let found = self.open.get(id).map(|open| (open.key, self.lease(&Hold(id))));
            self.close(id, 0);
            found
        };
        lost.into_iter().filter_map(reclaim).collect()
    }

    fn close(&mut self, id: Id<Open>, tokens: u64) {
        let Some(hold) = self.open.remove(id) else { return };
        if let Some(account) = self.accounts.get_mut(hold.key.0 as usize) {
            account.end(&hold, tokens);
        }
    }

    /// Ends a request that used no tokens. It stays counted as a request.
    pub fn refund(&mut self, hold: Hold) {
        self.settle(hold, 0);
    }

    /// How the key stands.
    pub fn standing(&mut self, key: KeyIx, plan: &Plan, now: Unix) -> QuotaStatus {
        let account = self.at(key, plan, now);
        let (requests, _) = account.window_known();
        let limit = shown(plan.requests);
        QuotaStatus {
            limit,
            remaining_requests: if plan.requests == 0 { limit } else { limit.saturating_sub(requests) },
            remaining_tokens: account.tokens_left(plan),
            reset_at: account.window.bounds.1,
            used: account.period_known(),
            total: shown(plan.tokens),
            period_start: account.period.bounds.0,
            renews: account.period.bounds.1,
        }
    }

    /// Holds that are out: requests running. Zero at rest.
    pub fn open_holds(&self) -> usize {
        self.open.len()
    }

    /// At start, from the ledger's sums by day: `tokens` were used on the UTC day that begins at `day`. Days are never
    /// longer than a period, so every period made of them is exact.
    pub fn restore_day(&mut self, key: KeyIx, plan: &Plan, now: Unix, day: Unix, tokens: u64) {
        self.at(key, plan, now).add_day(day, tokens);
    }

    /// At start, from the ledger's rows: one request was admitted at `admitted` and used `tokens`. Counts in the
    /// window if that lies in the current one; the period is [`Meter::restore_day`]'s.
    pub fn restore_row(&mut self, key: KeyIx, plan: &Plan, now: Unix, admitted: Unix, tokens: u64) {
        let window = &mut self.at(key, plan, now).window;
        if window.bounds.0 <= admitted && admitted < window.bounds.1 {
            window.requests = window.requests.saturating_add(1);
            window.used = window.used.saturating_add(tokens);
        }
    }

    /// The account of `key` with its window and period brought to `now`.
    fn at(&mut self, key: KeyIx, plan: &Plan, now: Unix) -> &mut Account {
        let index = key.0 as usize;
        if self.accounts.len() <= index {
            self.accounts.resize(index + 1, Account::default());
        }
        let account = &mut self.accounts[index];
        let held = || self.open.iter().map(|(_, open)| open).filter(|open| open.key == key);
        let bounds = window(now, plan.window);
        if account.window.bounds != bounds {
            account.enter_window(bounds, held());
        }
        if account.is_past_period(plan.period, now) {
            account.enter_period(plan.period, now, held());
        }
        account
    }
}

/// What a key has used of each limit.
struct Counts {
    requests: u64,
    window_tokens: u64,
    period_tokens: u64,
    running: u64,
}

impl Counts {
    /// With what is reserved, as this process knows it.
    fn own(account: &Account) -> Counts {
        Counts {
            requests: account.window.requests,
            window_tokens: account.window.used.saturating_add(account.window.reserved),
            period_tokens: account.period.used.saturating_add(account.period.reserved),
            running: u64::from(account.running),
        }
    }

    /// What is settled, in all processes.
    fn settled(account: &Account) -> Counts {
        let (requests, window_tokens) = account.window_known();
        Counts { requests, window_tokens, period_tokens: account.period_known(), running: 0 }
    }
}

/// The first limit that stands against one more request. The period comes first: a key that has spent it gains
/// nothing by waiting for a window.
fn check(counts: &Counts, account: &Account, plan: &Plan, now: Unix) -> Result<(), Limit> {
    let is_reached = |limit: u64, count: u64| limit > 0 && count >= limit;
    let kind = if is_reached(plan.tokens, counts.period_tokens) {
        LimitKind::TokensPerPeriod
    } else if is_reached(plan.requests, counts.requests) {
        LimitKind::Requests
    } else if is_reached(plan.tokens_per_window, counts.window_tokens) {
        LimitKind::TokensPerWindow
    } else if is_reached(plan.concurrency, counts.running) {
        LimitKind::Concurrency
    } else {
        return Ok(());
    };
    Err(limit(kind, account, plan, now))
}

fn limit(kind: LimitKind, account: &Account, plan: &Plan, now: Unix) -> Limit {
    let (value, reset) = match kind {
        LimitKind::TokensPerPeriod => (plan.tokens, account.period.bounds.1),
        LimitKind::Requests => (plan.requests, account.window.bounds.1),
        LimitKind::TokensPerWindow => (plan.tokens_per_window, account.window.bounds.1),
        LimitKind::Concurrency => (plan.concurrency, account.window.bounds.1),
    };
    let wait = reset.0.saturating_sub(now.0).div_ceil(1000).max(1);
    let retry_after = if kind == LimitKind::Concurrency { 1 } else { wait };
    Limit { kind, value, window: plan.window, reset, retry_after }
}

#[cfg(test)]
mod tests;
