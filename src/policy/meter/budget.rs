//! State of budgets, and news when a share of one has been used.

use super::account::MeterAccount;
use crate::base::time::Unix;
use crate::policy::keys::KeyIx;
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

/// Shares of a budget in percent that are reported when they have been used.
const TOLD_PERCENT: [u8; 2] = [80, 100];

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
    /// 80 or 100.
    pub percent: u8,
    /// State of the budget.
    pub status: BudgetStatus,
    /// Start of the next period.
    pub renews: Unix,
}

/// Adds news for each share of the budget that has been used since the state `was`.
#[inline]
pub(super) fn tell(
    account: &MeterAccount,
    was: BudgetStatus,
    total: u64,
    of: impl Fn() -> BudgetOf,
    news: &mut Vec<BudgetNews>,
) {
    let (status, renews) = (BudgetStatus { used: account.period_known().nano, total }, account.period.bounds.1);
    // Most budgets are below the first share.
    if !status.has_reached(TOLD_PERCENT[0]) {
        return;
    }
    for percent in TOLD_PERCENT {
        if status.has_reached(percent) && !was.has_reached(percent) {
            news.push(BudgetNews { of: of(), percent, status, renews });
        }
    }
}
