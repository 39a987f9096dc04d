//! Counts the use of keys against their plans. The meter admits, reserves, settles and shows. It reads no clock, knows
//! no HTTP and stores nothing. `gateway` owns one, fills it from the ledger at start and writes the rows.
//!
//! A shared ledger admits by itself. The meter then counts the part of this process ([`Meter::grant`]) and stores the
//! counts of all hosts ([`Meter::learn`]).

mod account;
mod budget;
mod groups;
mod leases;
mod limit;
mod quota;
mod replacing;
mod tree;
mod whole;
mod windows;

pub use account::DAYS_KEPT;
pub use budget::{BudgetNews, BudgetOf, BudgetStatus, LOGGED_PERCENT};
pub use groups::GroupStatus;
pub use leases::AskedLimits;
pub use limit::{Limit, LimitReason, Whose};
pub use quota::{LimitStatus, QuotaStatus};
pub use replacing::Replacing;
pub use whole::{StrictReservation, TargetShare};
pub use windows::{Amount, Lease, LeasePart, Open, PathIx, Restored, SharedCounts};

use super::keys::KeyIx;
use super::plan::Plan;
use super::plan::caps::Cap;
use crate::base::paged::Sparse;
use crate::base::slots::{Id, Slots};
use crate::base::time::Unix;
use account::MeterAccount;
use budget::{Thresholds, take_as_told, tell};
use limit::{exceeds, is_far, is_reached, longest, oversized, reached, share};
use std::sync::Arc;
use tree::Tree;
use windows::Counted;

/// Accounts that a request counts in: a key with its plan, and the groups above it.
#[derive(Copy, Clone, Debug)]
pub struct Payer<'a> {
    /// The key.
    pub key: KeyIx,
    /// Plan with the limits of this key.
    pub plan: &'a Plan,
    /// Group of the key and all above it.
    pub path: PathIx,
    /// Number of hosts that divide the groups' limits; 1: no division.
    pub hosts: u32,
    /// Model of the request, for limits that count only some; `None` if it is not known yet.
    pub model: Option<&'a Arc<str>>,
}

impl<'a> Payer<'a> {
    /// Id of the model.
    fn model_id(&self) -> Option<&'a str> {
        self.model.map(|model| &**model)
    }
}

/// The right of one admitted request to its reservation. It must go to [`Meter::settle`] or [`Meter::cancel`] exactly
/// once. It cannot be copied. [`Meter::open_holds`] counts the open ones.
#[derive(Debug)]
#[must_use]
pub struct Hold(Id<Open>);

impl Hold {
    /// Id for [`Meter::reclaim`].
    pub fn id(&self) -> Id<Open> {
        self.0
    }
}

/// All counters, by [`KeyIx`] and by the names of groups. They survive changes of the configuration.
#[derive(Debug, Default)]
pub struct Meter {
    accounts: Sparse<MeterAccount>,
    tree: Tree,
    /// True if a limit of a group counts only some models.
    groups_name_models: bool,
    /// True if a group has an `on_exhausted`.
    groups_replace: bool,
    open: Slots<Open>,
    news: Vec<BudgetNews>,
    thresholds: Thresholds,
}

impl Meter {
    /// A meter without any use.
    pub fn new() -> Meter {
        Meter::default()
    }

    /// Applies the plan of a key, whose budget may have changed.
    pub fn rebudget(&mut self, payer: Payer<'_>, now: Unix) {
        let Payer { key, plan, .. } = payer;
        if self.accounts.get(key.0 as usize).is_none() {
            return;
        }
        self.at(key, plan, now);
        let Meter { accounts, news, thresholds, .. } = self;
        tell(accounts.entry(key.0 as usize), || BudgetOf::Key(key), thresholds, news);
    }

    /// Keys with any counted use.
    pub fn counted(&self) -> Vec<KeyIx> {
        self.accounts.iter().map(|(key, _)| KeyIx(key as u32)).collect()
    }

    /// True if there is news about budgets.
    #[inline]
    pub fn has_news(&self) -> bool {
        !self.news.is_empty()
    }

    /// Takes the news about budgets.
    pub fn take_news(&mut self) -> Vec<BudgetNews> {
        std::mem::take(&mut self.news)
    }

    /// Path of groups that a reservation was admitted under, as its row stores it.
    #[inline]
    pub fn path_text(&self, hold: &Hold) -> Arc<str> {
        self.tree.text(self.open.get(hold.0).map_or(PathIx::NONE, |open| open.path))
    }

    /// Fails if a limit of the key or of a group above it is already spent, so that the head of a request can be
    /// refused. Nothing is counted.
    #[inline]
    pub fn spent(&mut self, payer: Payer<'_>, now: Unix) -> Result<(), Limit> {
        // A bound refuses no request: tokens are counted when the body is complete.
        self.check(payer, now, Counted::Exact)
    }

    /// Like [`Meter::spent`], but only by settled use, which cannot become less.
    #[inline]
    pub fn spent_settled(&mut self, payer: Payer<'_>, now: Unix) -> Result<(), Limit> {
        self.check(payer, now, Counted::Settled)
    }

    /// Like [`Meter::spent_settled`], if a shared ledger admits. Its counts expire after a moment, and it is asked
    /// again: a counter may have been repaired, or requests may not count after all.
    #[inline]
    pub fn spent_shared(&mut self, payer: Payer<'_>, now: Unix) -> Result<(), Limit> {
        self.spent_settled(payer, now).or_else(|limit| {
            let mut old = self.at(payer.key, payer.plan, now).is_old(now);
            self.tree.each(payer.path, &self.open, now, |node| old |= node.account.is_old(now));
            if old { Ok(()) } else { Err(limit) }
        })
    }

    /// Admits one request, counts it and reserves `estimate` in its key and every group above it, or returns the limit
    /// that refuses it. A request is refused if `used + reserved ≥ total`. A limit of N requests, or of N concurrent
    /// requests, admits exactly N.
    #[inline]
    pub fn admit(&mut self, payer: Payer<'_>, now: Unix, estimate: Amount) -> Result<Hold, Limit> {
        self.check(payer, now, Counted::Own)?;
        Ok(self.hold(payer, now, estimate, false))
    }

    /// Admits one request by the upper bound `most`, if the key and its groups stay under half of each limit with it.
    /// `None`: the exact estimate must be counted for [`Meter::admit`], or a limit refuses the request.
    #[inline]
    pub fn admit_bounded(&mut self, payer: Payer<'_>, now: Unix, most: Amount) -> Option<Hold> {
        let account = self.at(payer.key, payer.plan, now);
        let mut free = is_far(account, &payer.plan.all, most, payer.model_id());
        if payer.path.is_some() {
            self.tree.each(payer.path, &self.open, now, |node| {
                free &= is_far(&node.account, &node.limits.all, most, payer.model_id());
            });
        }
        if !free {
            return None;
        }
        Some(self.hold(payer, now, most, true))
    }

    /// True if the key or a group above it has running requests whose reservation is only a bound. A refusal for tokens
    /// or money is then not exact.
    #[inline]
    pub fn is_bounded(&mut self, key: KeyIx, path: PathIx) -> bool {
        let mut bounded = self.accounts.get(key.0 as usize).is_some_and(|account| account.bounded.0 > 0);
        self.tree.each_as_it_is(path, |node| bounded |= node.account.bounded.0 > 0);
        bounded
    }

    /// Replaces the bound of a request by its estimate `exact`. Changes nothing if the reservation is no bound.
    #[inline]
    pub fn count(&mut self, hold: &Hold, exact: Amount) {
        let Some(open) = self.open.get_mut(hold.0).filter(|open| open.bounded) else { return };
        let exact = exact.min(open.reserved);
        if let Some(account) = self.accounts.get_mut(open.key.0 as usize) {
            account.count(open, exact);
        }
        self.tree.each_as_it_is(open.path, |node| node.account.count(open, exact));
        (open.reserved, open.bounded) = (exact, false);
    }

    /// Fails if one request may not reserve `need`: more than a whole limit of tokens or money. Up to `floor` is always
    /// allowed. Nothing is counted.
    #[inline]
    pub fn fits(
        &mut self,
        payer: Payer<'_>,
        now: Unix,
        need: Amount,
        floor: impl FnOnce() -> Amount,
    ) -> Result<(), Limit> {
        let mut is_more = exceeds(&payer.plan.all, need);
        if payer.path.is_some() {
            self.tree.each_as_it_is(payer.path, |node| is_more |= exceeds(&node.share(payer.hosts).all, need));
        }
        if is_more { self.within_share(payer, now, (need, floor())) } else { Ok(()) }
    }

    /// Largest amount that one request may use under the limits of its payer.
    #[cold]
    pub fn share(&mut self, payer: Payer<'_>) -> Amount {
        let (mut most, model) = (share(&payer.plan.all, payer.model_id()), payer.model_id());
        if payer.path.is_some() {
            self.tree.each_as_it_is(payer.path, |node| most = most.min(share(&node.share(payer.hosts).all, model)));
        }
        most
    }

    #[cold]
    fn within_share(&mut self, payer: Payer<'_>, now: Unix, amounts: (Amount, Amount)) -> Result<(), Limit> {
        let account = self.at(payer.key, payer.plan, now);
        let mut found = oversized(account, payer.plan, false, now, amounts, payer.model_id());
        self.tree.each(payer.path, &self.open, now, |node| {
            let more = oversized(&node.account, &node.share(payer.hosts), true, now, amounts, payer.model_id());
            found = longest(found.take().into_iter().chain(more));
        });
        found.map_or(Ok(()), Err)
    }

    /// Takes over a request that another process admitted at `admitted` with `reserved` and still serves. It counts in
    /// the present window and period if they contain its admission.
    pub fn adopt(&mut self, payer: Payer<'_>, now: Unix, admitted: Unix, reserved: Amount) -> Hold {
        let Payer { key, plan, path, .. } = payer;
        let model = self.model_of(payer);
        let open = Open { key, path, admitted, reserved, shared: false, bounded: false, model };
        self.at(key, plan, now).adopt(&open);
        self.tree.each(path, &self.open, now, |node| node.account.adopt(&open));
        Hold(self.open.insert(open))
    }

    /// Model of a request, if a limit counts only some.
    #[inline]
    fn model_of(&self, payer: Payer<'_>) -> Option<Arc<str>> {
        payer.model.filter(|_| self.groups_name_models || payer.plan.all.name_models()).cloned()
    }

    /// Begins a request. All accounts must be at `now`.
    #[inline]
    fn hold(&mut self, payer: Payer<'_>, now: Unix, reserved: Amount, bounded: bool) -> Hold {
        let Payer { key, path, .. } = payer;
        let account = self.accounts.entry(key.0 as usize);
        account.begin(reserved, bounded, payer.model_id());
        if path.is_some() {
            self.tree.each_as_it_is(path, |node| node.account.begin(reserved, bounded, payer.model_id()));
        }
        let model = self.model_of(payer);
        Hold(self.open.insert(Open { key, path, admitted: now, reserved, shared: false, bounded, model }))
    }

    /// Amount of a reservation.
    #[inline]
    pub fn reserved(&self, hold: &Hold) -> Amount {
        self.open.get(hold.0).map_or(Amount::default(), |open| open.reserved)
    }

    /// Ends a request with its use, which counts in the window and the period of its admission. A window or period that
    /// has passed is not counted any more, but the ledger has the row.
    #[inline]
    pub fn settle(&mut self, hold: Hold, used: Amount) {
        self.close(hold.0, used);
    }

    /// Gives the memory of many reservations back.
    pub fn trim(&mut self) {
        self.open.trim();
    }

    #[inline]
    fn close(&mut self, id: Id<Open>, used: Amount) {
        let Some(hold) = self.open.remove(id) else { return };
        let Meter { accounts, tree, news, thresholds, .. } = self;
        if let Some(account) = accounts.get_mut(hold.key.0 as usize) {
            account.end(&hold, used);
            tell(account, || BudgetOf::Key(hold.key), thresholds, news);
        }
        if hold.path.is_some() {
            tree.each_as_it_is(hold.path, |node| {
                node.account.end(&hold, used);
                tell(&mut node.account, || BudgetOf::Group(node.limits.name.clone()), thresholds, news);
            });
        }
    }

    /// Budgets of configured groups, with the name of the group and the amount used.
    pub fn budgets(&mut self, now: Unix) -> Vec<(Arc<str>, Cap, u64)> {
        let mut budgets = Vec::new();
        self.tree.each_budget(&self.open, now, |node| {
            let caps = node.limits.all.budgets();
            budgets.extend(
                caps.map(|cap| (node.limits.name.clone(), cap.clone(), node.account.known(cap.span).used.nano)),
            );
        });
        budgets
    }

    /// True if a model without a price must not be used: a budget applies that does not allow it.
    #[inline]
    pub fn refuses_unpriced(&mut self, payer: Payer<'_>) -> bool {
        let mut refuses = payer.plan.refuses_unpriced();
        self.tree.each_as_it_is(payer.path, |node| refuses |= node.limits.refuses_unpriced());
        refuses
    }

    /// Number of open reservations, one per running request.
    pub fn open_holds(&self) -> usize {
        self.open.len()
    }

    /// Restores requests at start, from the ledger, in the account of a key.
    pub fn restore(&mut self, key: KeyIx, plan: &Plan, now: Unix, past: &Restored<'_>) {
        self.at(key, plan, now);
        let Meter { accounts, thresholds, .. } = self;
        let account = accounts.entry(key.0 as usize);
        account.restore(past);
        take_as_told(account, thresholds);
    }

    /// Like [`Meter::restore`], in the groups of a path.
    pub fn restore_groups(&mut self, path: PathIx, now: Unix, past: &Restored<'_>) {
        let Meter { tree, open, thresholds, .. } = self;
        tree.each(path, open, now, |node| {
            node.account.restore(past);
            take_as_told(&mut node.account, thresholds);
        });
    }

    /// Fails with the limit that refuses one more request. Of several, the one that lasts longest.
    #[inline]
    fn check(&mut self, payer: Payer<'_>, now: Unix, counted: Counted) -> Result<(), Limit> {
        let account = self.at(payer.key, payer.plan, now);
        let is_reached = is_reached(account, counted, &payer.plan.all, payer.model_id());
        if !is_reached && !payer.path.is_some() {
            return Ok(());
        }
        let model = payer.model_id();
        let own = if is_reached { reached(account, counted, payer.plan, false, now, model) } else { None };
        self.check_groups(payer, now, counted, own)
    }

    /// Like [`Meter::check`], for the groups. `own`: the limit of the key that is reached.
    #[inline]
    fn check_groups(&mut self, payer: Payer<'_>, now: Unix, counted: Counted, own: Option<Limit>) -> Result<(), Limit> {
        let mut found = own;
        if payer.path.is_some() {
            self.tree.each(payer.path, &self.open, now, |node| {
                let model = payer.model_id();
                if payer.hosts > 1 || is_reached(&node.account, counted, &node.limits.all, model) {
                    let more = reached(&node.account, counted, &node.share(payer.hosts), true, now, model);
                    found = longest(found.take().into_iter().chain(more));
                }
            });
        }
        found.map_or(Ok(()), Err)
    }

    /// Brings all accounts of a request to `now`.
    fn enter(&mut self, payer: Payer<'_>, now: Unix) {
        self.at(payer.key, payer.plan, now);
        self.tree.each(payer.path, &self.open, now, |_| {});
    }

    /// The account of `key` with its window and period brought to `now`.
    #[inline]
    fn at(&mut self, key: KeyIx, plan: &Plan, now: Unix) -> &mut MeterAccount {
        let account = self.accounts.entry(key.0 as usize);
        let open = &self.open;
        account.enter(&plan.all, now, &|visit| {
            open.iter().filter(|(_, open)| open.key == key).for_each(|(_, open)| visit(open))
        });
        account
    }
}

#[cfg(test)]
mod tests;
