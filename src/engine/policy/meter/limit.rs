//! Limits that refuse requests: kind, account and message.

use super::Amount;
use super::account::MeterAccount;
use crate::base::text::plural;
use crate::base::time::Unix;
use crate::policy::plan::{LimitKind, Plan};
use crate::policy::window::iso;
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Owner of a limit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Whose {
    /// The plan of the key, with its name.
    Plan(Arc<str>),
    /// The key itself.
    Key,
    /// The group with this name, for all keys in it and below it.
    Group(Arc<str>),
}

/// Reason of a refusal by a limit.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum LimitReason {
    /// All of it is used.
    Spent,
    /// Running requests have reserved what is left of it.
    Reserved,
    /// The request may need more than one request may use of it.
    Share {
        /// Tokens or nano-dollars that the request may need.
        need: u64,
        /// Amount left, by settled use.
        left: u64,
    },
}

/// A limit that refuses a request, with the data of the 429.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Limit {
    /// Kind of limit.
    pub kind: LimitKind,
    /// Reason.
    pub by: LimitReason,
    /// Owner of the limit.
    pub whose: Whose,
    /// Value of the limit: a count, or nano-dollars.
    pub value: u64,
    /// Length of the plan's window.
    pub window: Duration,
    /// Value of `x-ratelimit-reset`: the end of the limit, or of the window if the limit is concurrency.
    pub reset: Unix,
    /// Value of `retry-after` in whole seconds, at least 1. It is 1 if running requests have reserved the remainder,
    /// since they can end at any moment.
    pub retry_after: u64,
}

/// Nano-dollars as text with two to six decimals, rounded down.
struct DollarText(u64);

impl fmt::Display for DollarText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{}.{:06}", self.0 / 1_000_000_000, self.0 % 1_000_000_000 / 1000);
        let (least, zeros) = (text.len() - 4, text.len() - text.trim_end_matches('0').len());
        write!(f, "${}", &text[..least.max(text.len() - zeros)])
    }
}

impl Limit {
    /// Value of `retry_after` if the end of running requests is enough.
    pub(super) const SOON: u64 = 1;

    /// Names the limit for `error.message`.
    pub fn message(&self) -> String {
        let (value, window) = (self.value, self.window.as_secs());
        let s = plural(value);
        let whose: Cow<'static, str> = match &self.whose {
            Whose::Plan(name) if self.kind == LimitKind::Budget => format!("plan `{name}`").into(),
            Whose::Plan(_) | Whose::Key => "this key".into(),
            Whose::Group(name) => format!("group `{name}`").into(),
        };
        let is_group = matches!(self.whose, Whose::Group(_));
        match (self.kind, self.by) {
            (LimitKind::Budget, LimitReason::Reserved) => {
                return format!("the budget of {whose} is reserved by running requests");
            }
            (LimitKind::TokensPerWindow, LimitReason::Reserved) => {
                return format!(
                    "the limit of {whose} is reserved by running requests: {value} token{s} per {window} s"
                );
            }
            (_, LimitReason::Reserved) => {
                return format!(
                    "the allowance of {whose} is reserved by running requests: {value} token{s} per period"
                );
            }
            (LimitKind::Budget, LimitReason::Share { need, left }) => {
                // Rounded up, so that the need always appears larger than the amount left.
                let (need, left) = (DollarText(need.div_ceil(1000).saturating_mul(1000)), DollarText(left));
                return format!("the request needs up to {need} of the budget of {whose}, of which {left} is left");
            }
            (LimitKind::TokensPerWindow, LimitReason::Share { need, left }) => {
                return format!(
                    "the request needs up to {need} tokens of the {value} token{s} per {window} s for {whose}, of \
                     which {left} are left"
                );
            }
            (_, LimitReason::Share { need, left }) => {
                return format!(
                    "the request needs up to {need} tokens of the allowance of {whose}, of which {left} of {value} are \
                     left"
                );
            }
            (_, LimitReason::Spent) => {}
        }
        // Clients that ignore `retry-after` cause these thousands of times a second, and `format!` would add 300
        // instructions to each.
        let (value, reset) = (&*value.to_string(), &*iso(self.reset));
        match self.kind {
            LimitKind::Requests | LimitKind::TokensPerWindow => {
                let unit = if self.kind == LimitKind::Requests { " request" } else { " token" };
                let (per, window) = (" per ", &*window.to_string());
                ["rate limit reached: ", value, unit, s, per, window, " s for ", &whose, "; resets at ", reset].concat()
            }
            LimitKind::TokensPerPeriod if is_group => {
                ["allowance of ", &whose, " reached: ", value, " token", s, " per period; renews at ", reset].concat()
            }
            LimitKind::TokensPerPeriod => {
                ["plan allowance reached: ", value, " token", s, " per period; renews at ", reset].concat()
            }
            LimitKind::Concurrency => ["rate limit reached: ", value, " request", s, " at once for ", &whose].concat(),
            LimitKind::Budget => ["the budget of ", &whose, " is spent until ", reset].concat(),
        }
    }
}

/// Counts of an account that decide.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Counted {
    /// Use and reservations, as this process knows them.
    Own,
    /// Like `Own`, without reservations that are bounds.
    Exact,
    /// Settled use of all processes.
    Settled,
}

/// Use of each limit by an account.
pub(super) struct Counts {
    requests: u64,
    /// Tokens of the window: used and reserved, and only used.
    window_tokens: (u64, u64),
    /// Amounts of the period, in the same way.
    period: (Amount, Amount),
    running: u64,
}

impl Counts {
    #[inline]
    pub(super) fn of(account: &MeterAccount, counted: Counted) -> Counts {
        if counted == Counted::Settled {
            let ((requests, tokens), period) = (account.window_known(), account.period_known());
            return Counts { requests, window_tokens: (tokens, tokens), period: (period, period), running: 0 };
        }
        let (window, period) = (&account.window, &account.period);
        let mut counts = Counts {
            requests: window.requests,
            window_tokens: (window.used.saturating_add(window.reserved), window.used),
            period: (period.used.plus(period.reserved), period.used),
            running: u64::from(account.running),
        };
        if counted == Counted::Exact {
            let bounded = account.bounded.1;
            counts.window_tokens.0 = counts.window_tokens.0.saturating_sub(bounded.tokens).max(window.used);
            counts.period.0 = counts.period.0.minus(bounded).max(period.used);
        }
        counts
    }

    /// True if no limit refuses one more request, and the account stays under half of each limit of tokens or money
    /// with `most` added.
    pub(super) fn is_far(&self, plan: &Plan, most: Amount) -> bool {
        let is_far = |limit: u64, count: u64, most: u64| limit == 0 || count.saturating_add(most) < limit / 2;
        let is_left = |limit: u64, count: u64| limit == 0 || count < limit;
        is_far(plan.tokens, self.period.0.tokens, most.tokens)
            && is_far(plan.tokens_per_window, self.window_tokens.0, most.tokens)
            && is_far(plan.budget, self.period.0.nano, most.nano)
            && is_left(plan.requests, self.requests)
            && is_left(plan.concurrency, self.running)
    }

    /// True if a limit refuses one more request.
    #[inline]
    pub(super) fn is_reached(&self, plan: &Plan) -> bool {
        let is_reached = |limit: u64, count: u64| limit > 0 && count >= limit;
        is_reached(plan.tokens, self.period.0.tokens)
            || is_reached(plan.budget, self.period.0.nano)
            || is_reached(plan.requests, self.requests)
            || is_reached(plan.tokens_per_window, self.window_tokens.0)
            || is_reached(plan.concurrency, self.running)
    }
}

/// Limit that refuses one more request for the longest time, of several the first. A key that has spent its period must
/// not wait for a window.
#[cold]
pub(super) fn reached(
    account: &MeterAccount,
    counted: Counted,
    plan: &Plan,
    of_group: bool,
    now: Unix,
) -> Option<Limit> {
    use LimitKind::*;
    let counts = Counts::of(account, counted);
    let ((all, used), (tokens, settled)) = (counts.period, counts.window_tokens);
    let kinds = [
        (TokensPerPeriod, plan.tokens, all.tokens, used.tokens),
        (Budget, plan.budget, all.nano, used.nano),
        (Requests, plan.requests, counts.requests, counts.requests),
        (TokensPerWindow, plan.tokens_per_window, tokens, settled),
        (Concurrency, plan.concurrency, counts.running, counts.running),
    ];
    let mut found: Option<Limit> = None;
    // By reference, because an array that is taken apart is copied first.
    for &(kind, value, count, settled) in &kinds {
        if value > 0 && count >= value {
            let by = if settled >= value { LimitReason::Spent } else { LimitReason::Reserved };
            let limit = limit(kind, by, account, plan, of_group, now);
            if found.as_ref().is_none_or(|found| found.retry_after < limit.retry_after) {
                found = Some(limit);
            }
        }
    }
    found
}

/// The limit that lasts longest, of several the first.
pub(super) fn longest(limits: impl Iterator<Item = Limit>) -> Option<Limit> {
    limits.reduce(|found, limit| if found.retry_after < limit.retry_after { limit } else { found })
}

/// True if `need` is more than all of a limit.
#[inline]
pub(super) fn exceeds(plan: &Plan, need: Amount) -> bool {
    let exceeds = |limit: u64, need: u64| limit > 0 && need > limit;
    exceeds(plan.tokens, need.tokens) || exceeds(plan.budget, need.nano) || exceeds(plan.tokens_per_window, need.tokens)
}

/// Largest amount that one request may use under `plan`.
#[cold]
pub(super) fn share(plan: &Plan) -> Amount {
    let least = |limits: &[u64]| limits.iter().copied().filter(|limit| *limit > 0).min().unwrap_or(u64::MAX);
    Amount { tokens: least(&[plan.tokens, plan.tokens_per_window]), nano: least(&[plan.budget]) }
}

/// Limit that `need` of one request exceeds as a whole. Up to `floor` is always allowed.
#[cold]
pub(super) fn oversized(
    account: &MeterAccount,
    plan: &Plan,
    of_group: bool,
    now: Unix,
    (need, floor): (Amount, Amount),
) -> Option<Limit> {
    let (period, (_, window)) = (account.period_known(), account.window_known());
    let kinds = [
        (LimitKind::TokensPerPeriod, plan.tokens, need.tokens, floor.tokens, period.tokens),
        (LimitKind::Budget, plan.budget, need.nano, floor.nano, period.nano),
        (LimitKind::TokensPerWindow, plan.tokens_per_window, need.tokens, floor.tokens, window),
    ];
    let too_much = kinds.into_iter().filter(|(_, limit, need, floor, _)| *limit > 0 && need > limit.max(floor));
    longest(too_much.map(|(kind, value, need, _, used)| {
        let by = LimitReason::Share { need, left: value.saturating_sub(used) };
        limit(kind, by, account, plan, of_group, now)
    }))
}

/// The limit of this kind of an account under `plan`, which belongs to a group or a key.
#[inline]
pub(super) fn limit(
    kind: LimitKind,
    by: LimitReason,
    account: &MeterAccount,
    plan: &Plan,
    of_group: bool,
    now: Unix,
) -> Limit {
    let (window, period) = (account.window.bounds.1, account.period.bounds.1);
    let (value, reset) = (plan.limit(kind), if kind.is_of_period() { period } else { window });
    let wait = reset.0.saturating_sub(now.0).div_ceil(1000).max(1);
    let is_soon = kind == LimitKind::Concurrency || by == LimitReason::Reserved;
    let retry_after = if is_soon { Limit::SOON } else { wait };
    let whose = match (of_group, plan.own_budget) {
        (true, _) => Whose::Group(plan.name.clone()),
        (false, true) => Whose::Key,
        (false, false) => Whose::Plan(plan.name.clone()),
    };
    Limit { kind, by, whose, value, window: plan.window, reset, retry_after }
}
