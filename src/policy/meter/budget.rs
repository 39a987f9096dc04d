//! How budgets stand, and which shares of one have been used that are to be told.

use super::account::Account;
use crate::base::time::Unix;
use crate::policy::keys::KeyIx;
use std::sync::Arc;

/// How a budget stands, in nano-dollars, by what is settled.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct BudgetStatus {
    /// What was used in the period.
    pub used: u64,
    /// All of it.
    pub total: u64,
}

impl BudgetStatus {
    /// What is left.
    pub fn remaining(&self) -> u64 {
        self.total.saturating_sub(self.used)
    }

    fn has_reached(&self, percent: u8) -> bool {
        self.total > 0 && u128::from(self.used) * 100 >= u128::from(self.total) * u128::from(percent)
    }
}

/// What has none has used nothing of it.
pub(super) const NO_BUDGET: BudgetStatus = BudgetStatus { used: 0, total: 0 };

/// Shares of a budget in percent that are told when they have been used.
const TOLD_PERCENT: [u8; 2] = [80, 100];

/// Whose budget it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BudgetOf {
    /// This key's, by its plan or its own.
    Key(KeyIx),
    /// The group's of this name.
    Group(Arc<str>),
}

/// So much of a budget has been used as is to be told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BudgetNews {
    /// Whose.
    pub of: BudgetOf,
    /// 80 or 100.
    pub percent: u8,
    /// How it stands.
    pub status: BudgetStatus,
    /// When it begins again.
    pub renews: Unix,
}

/// Notes which shares of the budget have been used that had not when it was as it `was`.
#[inline]
pub(super) fn tell(
    account: &Account,
    was: BudgetStatus,
    total: u64,
    of: impl Fn() -> BudgetOf,
    news: &mut Vec<BudgetNews>,
) {
    let (status, renews) = (BudgetStatus { used: account.period_known().nano, total }, account.period.bounds.1);
    // Of most budgets nothing is to be told.
    if !status.has_reached(TOLD_PERCENT[0]) {
        return;
    }
    for percent in TOLD_PERCENT {
        if status.has_reached(percent) && !was.has_reached(percent) {
            news.push(BudgetNews { of: of(), percent, status, renews });
        }
    }
}
