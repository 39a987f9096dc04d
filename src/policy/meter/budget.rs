//! State of budgets, and news when a share of one has been used.

use super::account::MeterAccount;
use super::windows::SpanCount;
use crate::base::time::Unix;
use crate::policy::keys::KeyIx;
use crate::policy::plan::caps::Cap;
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

    /// The largest share that has been used; 0: none.
    pub(super) fn reached(&self, status: BudgetStatus) -> u8 {
        self.all.iter().copied().filter(|percent| status.has_reached(*percent)).max().unwrap_or(0)
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
    /// The limit.
    pub cap: Cap,
    /// The share.
    pub percent: u8,
    /// Amount used.
    pub used: u64,
    /// First moment of its window or period, and of the next.
    pub bounds: (Unix, Unix),
    /// False: the share may have been used before this process or this host knew of it, and have been reported then.
    pub fresh: bool,
}

/// Adds news for each share of a budget of the account that has been used since the last call.
#[inline]
pub(super) fn tell(
    account: &mut MeterAccount,
    of: impl Fn() -> BudgetOf,
    thresholds: &Thresholds,
    news: &mut Vec<BudgetNews>,
) {
    for cap in account.limits.budgets() {
        let Some(count) = account.counts.get_mut(cap.span) else { continue };
        let status = BudgetStatus { used: count.known().used.nano, total: cap.total };
        // Most budgets are below the first share.
        if count.told != Some(0) || status.has_reached(thresholds.first) {
            tell_of(cap, status.used, count, &of, thresholds, news);
        }
    }
}

/// Takes all shares of the account's budgets that have been used as reported: by the process that served the requests.
pub(super) fn take_as_told(account: &mut MeterAccount, thresholds: &Thresholds) {
    for cap in account.limits.budgets() {
        if let Some(count) = account.counts.get_mut(cap.span) {
            let status = BudgetStatus { used: count.known().used.nano, total: cap.total };
            count.told = Some(thresholds.reached(status));
        }
    }
}

#[cold]
fn tell_of(
    cap: &Cap,
    used: u64,
    count: &mut SpanCount,
    of: &dyn Fn() -> BudgetOf,
    thresholds: &Thresholds,
    news: &mut Vec<BudgetNews>,
) {
    let (told, bounds) = (count.told, count.windows.present.bounds);
    let reached = thresholds.reached(BudgetStatus { used, total: cap.total });
    for percent in thresholds.all.iter().copied().filter(|percent| (told.unwrap_or(0) + 1..=reached).contains(percent))
    {
        news.push(BudgetNews { of: of(), cap: cap.clone(), percent, used, bounds, fresh: told.is_some() });
    }
    count.told = Some(reached);
}
