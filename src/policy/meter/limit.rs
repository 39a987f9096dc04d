//! Limits that refuse requests: which, of which account, and the message.

use super::Amount;
use super::account::MeterAccount;
use super::windows::Counted;
use crate::base::text::plural;
use crate::base::time::Unix;
use crate::policy::plan::Plan;
use crate::policy::plan::caps::{Cap, Resource};
use crate::policy::window::iso;
use std::fmt;
use std::sync::Arc;

/// Owner of a limit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Whose {
    /// The plan of the key, with its name.
    Plan(Arc<str>),
    /// The key itself.
    Key,
    /// The group with this name, for all keys in it and below it.
    Group(Arc<str>),
    /// The target, provider or credential with this name, for all requests.
    Target(Arc<str>),
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
    /// The limit.
    pub cap: Cap,
    /// Reason.
    pub by: LimitReason,
    /// Owner of the limit.
    pub whose: Whose,
    /// Value of `x-ratelimit-reset`: the end of the limit, or of the window if the limit is of running requests.
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
    #[inline]
    pub fn message(&self) -> String {
        // Clients that ignore `retry-after` cause these thousands of times a second, and `format!` would add 300
        // instructions to each.
        let Cap { resource, per, models, total, .. } = &self.cap;
        let (before, name, after) = match &self.whose {
            Whose::Plan(name) => ("plan `", &**name, "`"),
            Whose::Key => ("this key", "", ""),
            Whose::Group(name) | Whose::Target(name) => ("group `", &**name, "`"),
        };
        let (of_models, models) = models.text().map_or(("", ""), |models| (" and models ", &**models));
        let (per, total, is_money) = (&*per.words(), &*total.to_string(), *resource == Resource::Budget);
        let of = ["the limit of ", "the budget of "][usize::from(is_money)];
        let [a, b, c, d, e] = match resource {
            Resource::Budget if per.starts_with(|c: char| c.is_ascii_digit()) => [" for ", per, "", "", ""],
            Resource::Budget => [" for a ", per, "", "", ""],
            Resource::Running => [" of ", total, " request", plural(self.cap.total), " at once"],
            Resource::Requests => [" of ", total, " request", plural(self.cap.total), " per "],
            Resource::Tokens => [" of ", total, " token", plural(self.cap.total), " per "],
        };
        let rest = if matches!(resource, Resource::Requests | Resource::Tokens) { per } else { "" };
        let limit = [of, before, name, after, of_models, models, a, b, c, d, e, rest].concat();
        match self.by {
            LimitReason::Spent if *resource == Resource::Running => limit + " is reached",
            LimitReason::Spent if is_money => [&*limit, " is spent until ", &*iso(self.reset)].concat(),
            LimitReason::Spent => [&*limit, " is reached until ", &*iso(self.reset)].concat(),
            LimitReason::Reserved => limit + " is reserved by running requests",
            LimitReason::Share { need, left } if is_money => {
                // Rounded up, so that the need always appears larger than the amount left.
                let (need, left) = (DollarText(need.div_ceil(1000).saturating_mul(1000)), DollarText(left));
                format!("the request needs up to {need} of {limit}, of which {left} is left")
            }
            LimitReason::Share { need, left } => {
                format!("the request needs up to {need} tokens of {limit}, of which {left} are left")
            }
        }
    }
}

/// Each limit that counts requests to `model`.
#[inline]
pub(super) fn counting<'a>(limits: &'a [Cap], model: Option<&'a str>) -> impl Iterator<Item = &'a Cap> {
    limits.iter().filter(move |cap| cap.models.count(model))
}

/// True if a limit of the account refuses one more request to `model`.
#[inline]
pub(super) fn is_reached(account: &MeterAccount, counted: Counted, limits: &[Cap], model: Option<&str>) -> bool {
    counting(limits, model).any(|cap| account.of(cap, counted).0 >= cap.total)
}

/// True if no limit refuses one more request to `model`, and the account stays under half of each limit of tokens or
/// money with `most` added.
#[inline]
pub(super) fn is_far(account: &MeterAccount, limits: &[Cap], most: Amount, model: Option<&str>) -> bool {
    counting(limits, model).all(|cap| {
        let (count, _) = account.of(cap, Counted::Own);
        match cap.resource {
            Resource::Tokens => count.saturating_add(most.tokens) < cap.total / 2,
            Resource::Budget => count.saturating_add(most.nano) < cap.total / 2,
            Resource::Requests | Resource::Running => count < cap.total,
        }
    })
}

/// Limit that refuses one more request for the longest time, of several the first. A key that has spent its period must
/// not wait for a window. The totals of `plan` may be one host's share.
#[cold]
#[inline]
pub(super) fn reached(
    account: &MeterAccount,
    counted: Counted,
    plan: &Plan,
    of_group: bool,
    now: Unix,
    model: Option<&str>,
) -> Option<Limit> {
    longest(counting(&plan.all, model).filter_map(|cap| {
        let (count, settled) = account.of(cap, counted);
        let by = if settled >= cap.total { LimitReason::Spent } else { LimitReason::Reserved };
        (count >= cap.total).then(|| limit(cap, by, account, plan, of_group, now))
    }))
}

/// The limit that lasts longest, of several the first.
#[inline]
pub(super) fn longest(limits: impl Iterator<Item = Limit>) -> Option<Limit> {
    limits.reduce(|found, limit| if found.retry_after < limit.retry_after { limit } else { found })
}

/// Part of `need` that a limit counts.
#[inline]
pub(super) fn wants(cap: &Cap, need: Amount) -> u64 {
    match cap.resource {
        Resource::Tokens => need.tokens,
        Resource::Budget => need.nano,
        Resource::Requests | Resource::Running => 0,
    }
}

/// True if `need` is more than all of a limit.
#[inline]
pub(super) fn exceeds(limits: &[Cap], need: Amount) -> bool {
    limits.iter().any(|cap| wants(cap, need) > cap.total)
}

/// Largest amount that one request may use under these limits.
#[cold]
#[inline]
pub(super) fn share(limits: &[Cap], model: Option<&str>) -> Amount {
    let least = |resource: Resource| {
        let totals = counting(limits, model).filter(|cap| cap.resource == resource).map(|cap| cap.total);
        totals.min().unwrap_or(u64::MAX)
    };
    Amount { tokens: least(Resource::Tokens), nano: least(Resource::Budget) }
}

/// Limit that `need` of one request exceeds as a whole. Up to `floor` is always allowed.
#[cold]
#[inline]
pub(super) fn oversized(
    account: &MeterAccount,
    plan: &Plan,
    of_group: bool,
    now: Unix,
    (need, floor): (Amount, Amount),
    model: Option<&str>,
) -> Option<Limit> {
    longest(counting(&plan.all, model).filter_map(|cap| {
        let (need, floor) = (wants(cap, need), wants(cap, floor));
        let by = LimitReason::Share { need, left: cap.total.saturating_sub(account.of(cap, Counted::Settled).1) };
        (need > cap.total.max(floor)).then(|| limit(cap, by, account, plan, of_group, now))
    }))
}

/// Owner of a limit of `plan`, which belongs to a group or a key.
#[inline]
pub(super) fn whose(cap: &Cap, plan: &Plan, of_group: bool) -> Whose {
    match (of_group, cap.own) {
        (true, _) => Whose::Group(plan.name.clone()),
        (false, true) => Whose::Key,
        (false, false) => Whose::Plan(plan.name.clone()),
    }
}

/// A limit of an account under `plan`, which belongs to a group or a key.
#[inline]
pub(super) fn limit(
    cap: &Cap,
    by: LimitReason,
    account: &MeterAccount,
    plan: &Plan,
    of_group: bool,
    now: Unix,
) -> Limit {
    let reset = account.bounds(cap.span).1;
    let wait = reset.0.saturating_sub(now.0).div_ceil(1000).max(1);
    let is_soon = cap.resource == Resource::Running || by == LimitReason::Reserved;
    let retry_after = if is_soon { Limit::SOON } else { wait };
    Limit { cap: cap.clone(), by, whose: whose(cap, plan, of_group), reset, retry_after }
}
