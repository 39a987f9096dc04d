//! State of budgets, and news when a share of one has been used.

use super::account::MeterAccount;
use crate::base::time::Unix;
use crate::policy::keys::KeyIx;
use crate::policy::plan::caps::LimitList;
use std::sync::Arc;

/// State of a budget in nano-dollars, by settled use.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct BudgetStatus {
    /// Amount used in the period.
    pub used: u64,
    /// The whole budget.
    pub total: u64,
}

impl BudgetStatus {
    /// Amount left.
    pub fn remaining(&self) -> u64 {
        self.total.saturating_sub(self.used)
    }

    fn has_reached(&self, percent: u8) -> bool {
        self.total > 0 && u128::from(self.used) * 100 >= u128::from(self.total) * u128::from(percent)
    }
}

/// State of an account without a budget.
pub(super) const NO_BUDGET: BudgetStatus = BudgetStatus { used: 0, total: 0 };

/// Shares of a budget in percent that are logged when they have been used.
pub const LOGGED_PERCENT: [u8; 2] = [80, 100];

/// Shares of a budget in percent that are logged or raise an alert when they have been used.
#[derive(Debug)]
pub(super) struct Thresholds {
    first: u8,
    all: Vec<u8>,
}

impl Default for Thresholds {
    fn default() -> Thresholds {
        Thresholds::with(&[])
    }
}

impl Thresholds {
    /// Returns the logged percentages and `percents`.
    pub(super) fn with(percents: &[u8]) -> Thresholds {
        let is_one = |percent: &u8| percents.contains(percent) || LOGGED_PERCENT.contains(percent);
        let all: Vec<u8> = (1..=100).filter(is_one).collect();
        Thresholds { first: all[0], all }
    }
}

/// Owner of a budget.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BudgetOf {
    /// This key, by its plan or its own budget.
    Key(KeyIx),
    /// The group of this name.
    Group(Arc<str>),
}

/// Report that a share of a budget has been used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BudgetNews {
    /// Owner of the budget.
    pub of: BudgetOf,
    /// The share.
    pub percent: u8,
    /// State of the budget.
    pub status: BudgetStatus,
    /// First moment of the period, and of the next.
    pub period: (Unix, Unix),
    /// False: the share may have been used before this process or this host knew of it, and have been reported then.
    pub fresh: bool,
}

/// State of the budget of the plan's period. `used`: its settled use.
#[inline]
pub(super) fn status(limits: &LimitList, used: u64) -> BudgetStatus {
    BudgetStatus { used, total: limits.budget().map_or(0, |cap| cap.total) }
}

/// Adds news for each share of the budget that has been used since `was` was used of the same total. `None`: that is
/// not known.
#[inline]
pub(super) fn tell(
    account: &MeterAccount,
    was: Option<u64>,
    of: impl Fn() -> BudgetOf,
    thresholds: &Thresholds,
    news: &mut Vec<BudgetNews>,
) {
    if let Some(budget) = account.limits.budget() {
        let was = was.map(|used| BudgetStatus { used, total: budget.total });
        tell_of(account, was, of, thresholds, news);
    }
}

/// Like [`tell`], since another state, of another total.
pub(super) fn tell_of(
    account: &MeterAccount,
    was: Option<BudgetStatus>,
    of: impl Fn() -> BudgetOf,
    thresholds: &Thresholds,
    news: &mut Vec<BudgetNews>,
) {
    let (now, period) = (status(&account.limits, account.period_known().nano), account.bounds(LimitList::PERIOD));
    // Most budgets are below the first share.
    if !now.has_reached(thresholds.first) {
        return;
    }
    for percent in thresholds.all.iter().copied() {
        if now.has_reached(percent) && was.is_none_or(|was| !was.has_reached(percent)) {
            news.push(BudgetNews { of: of(), percent, status: now, period, fresh: was.is_some() });
        }
    }
}
