//! Which limit stands against a request, of which account, and how it is told.

use super::Amount;
use super::account::Account;
use crate::base::time::Unix;
use crate::policy::plan::Plan;
use crate::policy::window::iso;
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

/// Which limit of a plan or a group was reached.
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
    /// Money per period.
    Budget,
}

impl LimitKind {
    /// All of them.
    pub const ALL: [LimitKind; 5] = [
        LimitKind::Requests,
        LimitKind::TokensPerWindow,
        LimitKind::TokensPerPeriod,
        LimitKind::Concurrency,
        LimitKind::Budget,
    ];

    /// As a plan's setting, log lines and metrics call it.
    pub fn name(self) -> &'static str {
        match self {
            LimitKind::Requests => "requests",
            LimitKind::TokensPerWindow => "tokens_per_window",
            LimitKind::TokensPerPeriod => "tokens",
            LimitKind::Concurrency => "concurrency",
            LimitKind::Budget => "budget",
        }
    }

    /// Whether it is one of the period: whoever has reached it gains nothing by trying again soon.
    pub fn is_of_period(self) -> bool {
        matches!(self, LimitKind::TokensPerPeriod | LimitKind::Budget)
    }
}

/// Whose limit it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Whose {
    /// The key's, by its plan, with that one's name.
    Plan(Arc<str>),
    /// The key's own.
    Key,
    /// All keys' in this group and below it.
    Group(Arc<str>),
}

/// A limit that refuses a request: what a 429 is made of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Limit {
    /// Which one.
    pub kind: LimitKind,
    /// Whose.
    pub whose: Whose,
    /// Its value: a count, or nano-dollars.
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
        let whose: Cow<'static, str> = match &self.whose {
            Whose::Plan(name) if self.kind == LimitKind::Budget => format!("plan `{name}`").into(),
            Whose::Plan(_) | Whose::Key => "this key".into(),
            Whose::Group(name) => format!("group `{name}`").into(),
        };
        let is_group = matches!(self.whose, Whose::Group(_));
        match self.kind {
            LimitKind::Requests => {
                format!("rate limit reached: {value} requests per {window} s for {whose}; resets at {reset}")
            }
            LimitKind::TokensPerWindow => {
                format!("rate limit reached: {value} tokens per {window} s for {whose}; resets at {reset}")
            }
            LimitKind::TokensPerPeriod if is_group => {
                format!("allowance of {whose} reached: {value} tokens per period; renews at {reset}")
            }
            LimitKind::TokensPerPeriod => {
                format!("plan allowance reached: {value} tokens per period; renews at {reset}")
            }
            LimitKind::Concurrency => format!("rate limit reached: {value} requests at once for {whose}"),
            LimitKind::Budget => format!("the budget of {whose} is spent until {reset}"),
        }
    }
}

/// Which of an account's counts matter.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Counted {
    /// With what is reserved, as this process knows it.
    Own,
    /// The same without reservations that are bounds.
    Exact,
    /// What is settled, in all processes.
    Settled,
}

/// What an account has used of each limit.
pub(super) struct Counts {
    pub(super) requests: u64,
    pub(super) window_tokens: u64,
    pub(super) period: Amount,
    pub(super) running: u64,
}

impl Counts {
    #[inline]
    pub(super) fn of(account: &Account, counted: Counted) -> Counts {
        if counted == Counted::Settled {
            let (requests, window_tokens) = account.window_known();
            return Counts { requests, window_tokens, period: account.period_known(), running: 0 };
        }
        let (window, period) = (&account.window, &account.period);
        let mut counts = Counts {
            requests: window.requests,
            window_tokens: window.used.saturating_add(window.reserved),
            period: period.used.plus(period.reserved),
            running: u64::from(account.running),
        };
        if counted == Counted::Exact {
            let bounded = account.bounded.1;
            counts.window_tokens = counts.window_tokens.saturating_sub(bounded.tokens).max(window.used);
            counts.period = counts.period.minus(bounded).max(period.used);
        }
        counts
    }

    /// Whether with `most` more it stays under half of each limit of tokens or money.
    pub(super) fn is_far(&self, plan: &Plan, most: Amount) -> bool {
        let is_far = |limit: u64, count: u64, most: u64| limit == 0 || count.saturating_add(most) < limit / 2;
        is_far(plan.tokens, self.period.tokens, most.tokens)
            && is_far(plan.tokens_per_window, self.window_tokens, most.tokens)
            && is_far(plan.budget, self.period.nano, most.nano)
    }

    /// The first limit that stands against one more request. The period comes first: a key that has spent it gains
    /// nothing by waiting for a window.
    #[inline]
    pub(super) fn reached(&self, plan: &Plan) -> Option<LimitKind> {
        let is_reached = |limit: u64, count: u64| limit > 0 && count >= limit;
        if is_reached(plan.tokens, self.period.tokens) {
            Some(LimitKind::TokensPerPeriod)
        } else if is_reached(plan.budget, self.period.nano) {
            Some(LimitKind::Budget)
        } else if is_reached(plan.requests, self.requests) {
            Some(LimitKind::Requests)
        } else if is_reached(plan.tokens_per_window, self.window_tokens) {
            Some(LimitKind::TokensPerWindow)
        } else if is_reached(plan.concurrency, self.running) {
            Some(LimitKind::Concurrency)
        } else {
            None
        }
    }
}

/// The limit of this kind of an account under `plan`, which is a group's or else a key's.
#[inline]
pub(super) fn limit(kind: LimitKind, account: &Account, plan: &Plan, of_group: bool, now: Unix) -> Limit {
    let (window, period) = (account.window.bounds.1, account.period.bounds.1);
    let (value, reset) = match kind {
        LimitKind::TokensPerPeriod => (plan.tokens, period),
        LimitKind::Budget => (plan.budget, period),
        LimitKind::Requests => (plan.requests, window),
        LimitKind::TokensPerWindow => (plan.tokens_per_window, window),
        LimitKind::Concurrency => (plan.concurrency, window),
    };
    let wait = reset.0.saturating_sub(now.0).div_ceil(1000).max(1);
    let retry_after = if kind == LimitKind::Concurrency { 1 } else { wait };
    let whose = match (of_group, plan.own_budget) {
        (true, _) => Whose::Group(plan.name.clone()),
        (false, true) => Whose::Key,
        (false, false) => Whose::Plan(plan.name.clone()),
    };
    Limit { kind, whose, value, window: plan.window, reset, retry_after }
}
