//! Remaining quota of keys, and the state of each limit.

use super::account::MeterAccount;
use super::budget::BudgetStatus;
use super::limit::{Whose, whose};
use super::windows::Counted;
use super::{Meter, Payer};
use crate::base::time::Unix;
use crate::policy::plan::caps::{Cap, LimitList, Resource};
use crate::policy::plan::{Plan, Shorthand, UNLIMITED, shown};

/// State of one limit of a key or a group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LimitStatus {
    /// Owner.
    pub whose: Whose,
    /// The limit: resource, time, models and total. `own` is true for a key's own limit.
    pub cap: Cap,
    /// Settled use.
    pub used: u64,
    /// Reserved by requests that run.
    pub reserved: u64,
    /// Start of the next window or period; `None` for running requests.
    pub renews: Option<Unix>,
}

/// Remaining quota of a key under its plan and groups, by settled use. Unlimited is 9007199254740991.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct QuotaStatus {
    /// Requests per window. This value, the remaining requests and the window's end come from the account with the
    /// least left.
    pub limit: u64,
    /// Requests left in the window.
    pub remaining_requests: u64,
    /// Tokens left: the smallest of all remainders of periods and windows.
    pub remaining_tokens: u64,
    /// End of the window.
    pub reset_at: Unix,
    /// Tokens that the key has used in the period.
    pub used: u64,
    /// Token allowance of the key in the period.
    pub total: u64,
    /// First moment of the period.
    pub period_start: Unix,
    /// First moment of the next.
    pub renews: Unix,
    /// The budget with the least left; `None` if there is none.
    pub budget: Option<BudgetStatus>,
}

impl Meter {
    /// Remaining quota of the key and its groups.
    #[inline]
    pub fn standing(&mut self, payer: Payer<'_>, now: Unix) -> QuotaStatus {
        let (account, model) = (self.at(payer.key, payer.plan, now), payer.model_id());
        let (period, used) = (account.bounds(LimitList::PERIOD), account.period_known().tokens);
        let total = account.limits.iter().find(|cap| is_allowance(cap)).map_or(UNLIMITED, |cap| shown(cap.total));
        let mut status = QuotaStatus {
            limit: UNLIMITED,
            remaining_requests: UNLIMITED,
            remaining_tokens: UNLIMITED,
            reset_at: account.bounds(account.limits.window()).1,
            used,
            total,
            period_start: period.0,
            renews: period.1,
            budget: None,
        };
        status.narrow(account, model);
        if payer.path.is_some() {
            self.tree.each(payer.path, &self.open, now, |node| status.narrow(&node.account, model));
        }
        status
    }

    /// Every limit of the key and its groups, brought to `now`.
    #[inline]
    pub fn limits(&mut self, payer: Payer<'_>, now: Unix) -> Vec<LimitStatus> {
        let mut all = Vec::new();
        list_limits(self.at(payer.key, payer.plan, now), payer.plan, false, &mut all);
        self.tree.each(payer.path, &self.open, now, |node| list_limits(&node.account, &node.limits, true, &mut all));
        all
    }
}

/// True for the tokens of the plan's period.
#[inline]
fn is_allowance(cap: &Cap) -> bool {
    cap.resource == Resource::Tokens && cap.span == LimitList::PERIOD
}

/// Lists the limits of one account.
#[inline]
pub(super) fn list_limits(account: &MeterAccount, plan: &Plan, of_group: bool, all: &mut Vec<LimitStatus>) {
    for cap in plan.all.iter() {
        let (reserved, own) = account.of(cap, Counted::Own);
        let (used, renews) = match cap.resource {
            Resource::Running => (own, None),
            resource => (account.known(cap.span).of(resource), Some(account.bounds(cap.span).1)),
        };
        let whose = whose(cap, plan, of_group);
        all.push(LimitStatus { whose, cap: cap.clone(), used, reserved: reserved - own, renews });
    }
}

impl QuotaStatus {
    /// Combines the quota with the limits of an account that count requests to `model`; `None`: it is not known.
    #[inline]
    fn narrow(&mut self, account: &MeterAccount, model: Option<&str>) {
        for cap in account.limits.iter().filter(|cap| cap.models.count(model)) {
            let (_, used) = account.of(cap, Counted::Settled);
            let left = shown(cap.total).saturating_sub(used);
            match cap.resource {
                Resource::Requests if left < self.remaining_requests => {
                    let reset_at = account.bounds(cap.span).1;
                    (self.limit, self.remaining_requests, self.reset_at) = (shown(cap.total), left, reset_at);
                }
                Resource::Tokens => self.remaining_tokens = self.remaining_tokens.min(left),
                Resource::Budget if self.budget.is_none_or(|own| left < own.remaining()) => {
                    self.budget = Some(BudgetStatus { used, total: cap.total });
                }
                Resource::Requests | Resource::Budget | Resource::Running => {}
            }
        }
    }
}

/// Settled use and reservations of what a setting limits, without regard to its limit.
pub(super) fn use_of(account: &MeterAccount, plan: &Plan, setting: Shorthand) -> (u64, u64) {
    let cap = plan.resolved(setting.cap());
    let span =
        if cap.per == plan.resolved(Shorthand::Tokens.cap()).per { LimitList::PERIOD } else { plan.all.window() };
    let (all, own) = account.of(&Cap { span, ..cap.clone() }, Counted::Own);
    let used = if cap.resource == Resource::Running { own } else { account.known(span).of(cap.resource) };
    (used, all - own)
}
