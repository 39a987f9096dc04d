//! Counts the use of keys against their plans. The meter admits, reserves, settles and shows. It reads no clock, knows
//! no HTTP and stores nothing. `gateway` owns one, fills it from the ledger at start and writes the rows.
//!
//! A shared ledger admits by itself. The meter then counts the part of this process ([`Meter::grant`]) and stores the
//! counts of all hosts ([`Meter::learn`]).

mod account;
mod budget;
mod groups;
mod limit;
mod tree;

pub use account::{Amount, DAYS_KEPT, Open, PathIx, SharedCounts};
pub use budget::{BudgetNews, BudgetOf, BudgetStatus, LOGGED_PERCENT};
pub use groups::GroupStatus;
pub use limit::{Limit, LimitReason, Whose};

use super::keys::KeyIx;
use super::plan::{LimitKind, Plan, shown};
use super::window::window;
use crate::base::paged::Sparse;
use crate::base::slots::{Id, Slots};
use crate::base::time::Unix;
use account::{MeterAccount, tokens_left};
use budget::{Thresholds, tell};
use limit::{Counted, Counts, exceeds, limit, longest, oversized, reached, share};
use std::sync::Arc;
use tree::Tree;

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
}

/// Reservation of a running request in a shared ledger. The row of the request returns it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Lease {
    /// The window of the key that it was admitted in.
    pub window: (Unix, Unix),
    /// The period it was admitted in.
    pub period: (Unix, Unix),
    /// Tokens and money reserved.
    pub reserved: Amount,
    /// False if the shared ledger knows nothing of it: there is none, or it could not be reached.
    pub shared: bool,
    /// Groups that it also counts in.
    pub path: PathIx,
    /// Groups of the path, the nearest to the key first.
    pub groups: Box<[GroupLease]>,
}

/// Window and period of a lease in one group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupLease {
    /// The group's name.
    pub name: Arc<str>,
    /// The window of the group that the request was admitted in.
    pub window: (Unix, Unix),
    /// The period of the admission.
    pub period: (Unix, Unix),
}

/// The right of one admitted request to its reservation. It must go to [`Meter::settle`] or [`Meter::refund`] exactly
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

/// All counters, by [`KeyIx`] and by the names of groups. They survive changes of the configuration.
#[derive(Debug, Default)]
pub struct Meter {
    accounts: Sparse<MeterAccount>,
    tree: Tree,
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
        let Some((total, period)) = self.accounts.get(key.0 as usize).map(|account| (account.budget, account.calendar))
        else {
            return;
        };
        if (total, period) == (plan.budget, plan.period) {
            return;
        }
        let used = self.at(key, plan, now).period_known().nano;
        let Meter { accounts, news, thresholds, .. } = self;
        // Crossings in another period have not been reported.
        let was = (period == plan.period).then_some(BudgetStatus { used, total });
        tell(accounts.entry(key.0 as usize), was, plan.budget, || BudgetOf::Key(key), thresholds, news);
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
    pub fn spent(&mut self, payer: Payer<'_>, now: Unix) -> Result<(), Limit> {
        // A bound refuses no request: tokens are counted when the body is complete.
        self.check(payer, now, Counted::Exact)
    }

    /// Like [`Meter::spent`], but only by settled use, which cannot become less.
    pub fn spent_settled(&mut self, payer: Payer<'_>, now: Unix) -> Result<(), Limit> {
        self.check(payer, now, Counted::Settled)
    }

    /// Like [`Meter::spent_settled`], if a shared ledger admits. Its counts expire after a moment, and it is asked
    /// again: a counter may have been repaired, or requests may not count after all.
    pub fn spent_shared(&mut self, payer: Payer<'_>, now: Unix) -> Result<(), Limit> {
        self.spent_settled(payer, now).or_else(|limit| {
            let is_old = |account: &MeterAccount| account.shared.as_ref().is_some_and(|known| known.is_old(now));
            let mut old = is_old(self.at(payer.key, payer.plan, now));
            self.tree.each(payer.path, &self.open, now, |node| old |= is_old(&node.account));
            if old { Ok(()) } else { Err(limit) }
        })
    }

    /// Admits one request, counts it and reserves `estimate` in its key and every group above it, or returns the limit
    /// that refuses it. A request is refused if `used + reserved ≥ total`. A limit of N requests, or of N concurrent
    /// requests, admits exactly N.
    pub fn admit(&mut self, payer: Payer<'_>, now: Unix, estimate: Amount) -> Result<Hold, Limit> {
        self.check(payer, now, Counted::Own)?;
        Ok(self.hold(payer, now, estimate, false))
    }

    /// Admits one request by the upper bound `most`, if the key and its groups stay under half of each limit with it.
    /// `None`: the exact estimate must be counted for [`Meter::admit`], or a limit refuses the request.
    pub fn admit_bounded(&mut self, payer: Payer<'_>, now: Unix, most: Amount) -> Option<Hold> {
        let account = self.at(payer.key, payer.plan, now);
        let mut free = Counts::of(account, Counted::Own).is_far(payer.plan, most);
        if payer.path.is_some() {
            self.tree.each(payer.path, &self.open, now, |node| {
                free &= Counts::of(&node.account, Counted::Own).is_far(&node.limits, most);
            });
        }
        if !free {
            return None;
        }
        Some(self.hold(payer, now, most, true))
    }

    /// True if the key or a group above it has running requests whose reservation is only a bound. A refusal for tokens
    /// or money is then not exact.
    pub fn is_bounded(&mut self, key: KeyIx, path: PathIx) -> bool {
        let mut bounded = self.accounts.get(key.0 as usize).is_some_and(|account| account.bounded.0 > 0);
        self.tree.each_as_it_is(path, |node| bounded |= node.account.bounded.0 > 0);
        bounded
    }

    /// Replaces the bound of a request by its estimate `exact`. Changes nothing if the reservation is no bound.
    pub fn count(&mut self, hold: &Hold, exact: Amount) {
        let Some(open) = self.open.get_mut(hold.0).filter(|open| open.bounded) else { return };
        let exact = exact.min(open.reserved);
        if let Some(account) = self.accounts.get_mut(open.key.0 as usize) {
            account.count(open, exact);
        }
        self.tree.each_as_it_is(open.path, |node| node.account.count(&node.seen(open), exact));
        (open.reserved, open.bounded) = (exact, false);
    }

    /// Lease of a request of the key at `now`.
    pub fn lease_for(&mut self, payer: Payer<'_>, now: Unix, reserved: Amount) -> Lease {
        let account = self.at(payer.key, payer.plan, now);
        let (window, period) = (account.window.bounds, account.period.bounds);
        let mut groups = Vec::new();
        if payer.path.is_some() {
            self.tree.each(payer.path, &self.open, now, |node| {
                let (window, period) = (node.account.window.bounds, node.account.period.bounds);
                groups.push(GroupLease { name: node.limits.name.clone(), window, period });
            });
        }
        Lease { window, period, reserved, shared: false, path: payer.path, groups: groups.into() }
    }

    /// Limits of the groups on a path, the nearest to the key first.
    pub fn group_limits(&mut self, path: PathIx) -> Vec<Plan> {
        let mut limits = Vec::new();
        self.tree.each_as_it_is(path, |node| limits.push(node.limits.clone()));
        limits
    }

    /// Counts a request that a shared ledger has admitted. `now` is the moment of the question.
    pub fn grant(&mut self, payer: Payer<'_>, now: Unix, lease: &Lease) -> Hold {
        let payer = Payer { path: lease.path, ..payer };
        self.enter(payer, now);
        let Lease { window, reserved, .. } = *lease;
        let hold = self.hold(payer, now, reserved, false);
        if let Some(open) = self.open.get_mut(hold.0) {
            (open.window, open.shared) = (window, true);
        }
        hold
    }

    /// Stores the counts of a shared ledger.
    pub fn learn(&mut self, key: KeyIx, plan: &Plan, now: Unix, news: &SharedCounts) {
        let was = self.at(key, plan, now).learn(news, now);
        let Meter { accounts, news, thresholds, .. } = self;
        let was = was.map(|used| BudgetStatus { used, total: plan.budget });
        tell(accounts.entry(key.0 as usize), was, plan.budget, || BudgetOf::Key(key), thresholds, news);
    }

    /// Clears the counts, since the operator has replaced the shared ledger by an empty one.
    pub fn reset_counts(&mut self) {
        self.accounts
            .iter_mut()
            .map(|(_, account)| account)
            .chain(self.tree.every())
            .for_each(MeterAccount::reset_counts);
    }

    /// Adds one request to the known counts of a shared ledger, in the window of each account of `lease`.
    pub fn learn_of_one(&mut self, key: KeyIx, lease: &Lease) {
        let learn = |account: &mut MeterAccount, window: (Unix, Unix)| {
            if let Some(known) = account.shared.as_mut().filter(|known| known.counts.window == window) {
                known.counts.requests = known.counts.requests.saturating_add(1);
            }
        };
        self.accounts.get_mut(key.0 as usize).into_iter().for_each(|account| learn(account, lease.window));
        let mut groups = lease.groups.iter();
        self.tree.each_as_it_is(lease.path, |node| {
            groups.next().into_iter().for_each(|group| learn(&mut node.account, group.window));
        });
    }

    /// Like [`Meter::learn`], for the groups of a lease.
    pub fn learn_groups(&mut self, lease: &Lease, now: Unix, news: &[SharedCounts]) {
        let (mut news, passed, thresholds) = (news.iter(), &mut self.news, &self.thresholds);
        self.tree.each(lease.path, &self.open, now, |node| {
            let Some(news) = news.next() else { return };
            let (was, total) = (node.account.learn(news, now), node.limits.budget);
            let was = was.map(|used| BudgetStatus { used, total });
            let of = || BudgetOf::Group(node.limits.name.clone());
            tell(&node.account, was, total, of, thresholds, passed);
        });
    }

    /// Limit of `kind` by which a shared ledger has refused a key. `which` is 0 for the key's own limit, and otherwise
    /// counts the groups from the nearest.
    pub fn limit(&mut self, payer: Payer<'_>, now: Unix, kind: LimitKind, by: LimitReason, which: usize) -> Limit {
        let account = self.at(payer.key, payer.plan, now);
        let (mut found, mut at) = (limit(kind, by, account, payer.plan, false, now), 0);
        self.tree.each(payer.path, &self.open, now, |node| {
            at += 1;
            if at == which {
                found = limit(kind, by, &node.account, &node.limits, true, now);
            }
        });
        found
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
        let mut is_more = exceeds(payer.plan, need);
        if payer.path.is_some() {
            self.tree.each_as_it_is(payer.path, |node| is_more |= exceeds(&node.share(payer.hosts), need));
        }
        if is_more { self.within_share(payer, now, (need, floor())) } else { Ok(()) }
    }

    /// Largest amount that one request may use under the limits of its payer.
    #[cold]
    pub fn share(&mut self, payer: Payer<'_>) -> Amount {
        let mut most = share(payer.plan);
        if payer.path.is_some() {
            self.tree.each_as_it_is(payer.path, |node| most = most.min(share(&node.share(payer.hosts))));
        }
        most
    }

    #[cold]
    fn within_share(&mut self, payer: Payer<'_>, now: Unix, amounts: (Amount, Amount)) -> Result<(), Limit> {
        let account = self.at(payer.key, payer.plan, now);
        let mut found = oversized(account, payer.plan, false, now, amounts);
        self.tree.each(payer.path, &self.open, now, |node| {
            let more = oversized(&node.account, &node.share(payer.hosts), true, now, amounts);
            found = longest(found.take().into_iter().chain(more));
        });
        found.map_or(Ok(()), Err)
    }

    /// Takes over a request that another process admitted at `admitted` with `reserved` and still serves. It counts in
    /// the present window and period if they contain its admission.
    pub fn adopt(&mut self, payer: Payer<'_>, now: Unix, admitted: Unix, reserved: Amount) -> Hold {
        let Payer { key, plan, path, .. } = payer;
        let window = window(admitted, plan.window);
        let open = Open { key, path, window, admitted, reserved, shared: false, bounded: false };
        self.at(key, plan, now).adopt(&open);
        self.tree.each(path, &self.open, now, |node| node.account.adopt(&node.seen(&open)));
        Hold(self.open.insert(open))
    }

    /// Begins a request. All accounts must be at `now`.
    fn hold(&mut self, payer: Payer<'_>, now: Unix, reserved: Amount, bounded: bool) -> Hold {
        let Payer { key, path, .. } = payer;
        let account = self.accounts.entry(key.0 as usize);
        account.begin(reserved, bounded);
        let window = account.window.bounds;
        if path.is_some() {
            self.tree.each_as_it_is(path, |node| node.account.begin(reserved, bounded));
        }
        Hold(self.open.insert(Open { key, path, window, admitted: now, reserved, shared: false, bounded }))
    }

    /// Lease of a reservation in the shared ledger; empty if there is no shared ledger.
    pub fn lease(&mut self, hold: &Hold) -> Lease {
        let Some(open) = self.open.get(hold.0) else { return Lease::default() };
        let Open { window, reserved, shared, path, admitted, .. } = *open;
        let period = self.accounts.entry(open.key.0 as usize).calendar.bounds(admitted);
        let mut groups = Vec::new();
        self.tree.each_as_it_is(path, |node| {
            let (window, period) = (node.seen(open).window, node.limits.period.bounds(admitted));
            groups.push(GroupLease { name: node.limits.name.clone(), window, period });
        });
        Lease { window, period, reserved, shared, path, groups: groups.into() }
    }

    /// Amount of a reservation.
    pub fn reserved(&self, hold: &Hold) -> Amount {
        self.open.get(hold.0).map_or(Amount::default(), |open| open.reserved)
    }

    /// Ends a request with its use, which counts in the window and the period of its admission. A window or period that
    /// has passed is not counted any more, but the ledger has the row.
    pub fn settle(&mut self, hold: Hold, used: Amount) {
        self.close(hold.0, used);
    }

    /// Gives the memory of many reservations back.
    pub fn trim(&mut self) {
        self.open.trim();
    }

    /// Ends the reservations that no exchange owns any more, by `is_live`. Returns their keys and leases. For use after
    /// a panic.
    pub fn reclaim(&mut self, is_live: impl Fn(Id<Open>) -> bool) -> Vec<(KeyIx, Lease)> {
        let lost: Vec<Id<Open>> = self.open.iter().map(|(id, _)| id).filter(|id| !is_live(*id)).collect();
        let reclaim = |id: Id<Open>| {
            let (key, lease) = (self.open.get(id)?.key, self.lease(&Hold(id)));
            self.close(id, Amount::default());
            Some((key, lease))
        };
        lost.into_iter().filter_map(reclaim).collect()
    }

    fn close(&mut self, id: Id<Open>, used: Amount) {
        let Some(hold) = self.open.remove(id) else { return };
        let Meter { accounts, tree, news, thresholds, .. } = self;
        if let Some(account) = accounts.get_mut(hold.key.0 as usize) {
            let before = account.period_known().nano;
            account.end(&hold, hold.window, used);
            let total = account.budget;
            if total > 0 {
                let was = BudgetStatus { used: before, total };
                tell(account, Some(was), total, || BudgetOf::Key(hold.key), thresholds, news);
            }
        }
        if hold.path.is_some() {
            tree.each_as_it_is(hold.path, |node| {
                let (total, window) = (node.limits.budget, node.window_of(hold.admitted));
                let was = BudgetStatus { used: node.account.period_known().nano, total };
                node.account.end(&hold, window, used);
                let of = || BudgetOf::Group(node.limits.name.clone());
                tell(&node.account, Some(was), total, of, thresholds, news);
            });
        }
    }

    /// Ends a request that used nothing. It stays counted as a request.
    pub fn refund(&mut self, hold: Hold) {
        self.settle(hold, Amount::default());
    }

    /// Remaining quota of the key and its groups.
    pub fn standing(&mut self, payer: Payer<'_>, now: Unix) -> QuotaStatus {
        let account = self.at(payer.key, payer.plan, now);
        let mut status = standing(account, payer.plan);
        if payer.path.is_some() {
            self.tree.each(payer.path, &self.open, now, |node| status.narrow(&node.account, &node.limits));
        }
        status
    }

    /// Configured groups with a budget, and the state of each.
    pub fn budgets(&mut self, now: Unix) -> Vec<(Arc<str>, BudgetStatus)> {
        let mut budgets = Vec::new();
        self.tree.each_budget(&self.open, now, |node| {
            let status = BudgetStatus { used: node.account.period_known().nano, total: node.limits.budget };
            budgets.push((node.limits.name.clone(), status));
        });
        budgets
    }

    /// True if a model without a price must not be used: a budget applies that does not allow it.
    pub fn refuses_unpriced(&mut self, payer: Payer<'_>) -> bool {
        let mut refuses = payer.plan.refuses_unpriced();
        self.tree.each_as_it_is(payer.path, |node| refuses |= node.limits.refuses_unpriced());
        refuses
    }

    /// Number of open reservations, one per running request.
    pub fn open_holds(&self) -> usize {
        self.open.len()
    }

    /// Restores the use of the UTC day that begins at `day`, at start, from the ledger's sums by day. Every period
    /// consists of whole days, so its sum is exact.
    pub fn restore_day(&mut self, key: KeyIx, plan: &Plan, now: Unix, day: Unix, used: Amount) {
        self.at(key, plan, now).add_day(day, used);
    }

    /// Like [`Meter::restore_day`], for the groups of a path and all their keys.
    pub fn restore_groups_day(&mut self, path: PathIx, now: Unix, day: Unix, used: Amount) {
        self.tree.each(path, &self.open, now, |node| node.account.add_day(day, used));
    }

    /// Restores one request at start, from its row in the ledger. It counts in the window if the current one contains
    /// `admitted`. [`Meter::restore_day`] restores the period.
    pub fn restore_row(&mut self, key: KeyIx, plan: &Plan, now: Unix, admitted: Unix, tokens: u64) {
        self.at(key, plan, now).window.restore(admitted, tokens);
    }

    /// Like [`Meter::restore_row`], for the groups of a path.
    pub fn restore_groups_row(&mut self, path: PathIx, now: Unix, admitted: Unix, tokens: u64) {
        self.tree.each(path, &self.open, now, |node| node.account.window.restore(admitted, tokens));
    }

    /// Fails with the limit that refuses one more request. Of several, the one that lasts longest.
    fn check(&mut self, payer: Payer<'_>, now: Unix, counted: Counted) -> Result<(), Limit> {
        let account = self.at(payer.key, payer.plan, now);
        let is_reached = Counts::of(account, counted).is_reached(payer.plan);
        if !is_reached && !payer.path.is_some() {
            return Ok(());
        }
        let own = if is_reached { reached(account, counted, payer.plan, false, now) } else { None };
        self.check_groups(payer, now, counted, own)
    }

    /// Like [`Meter::check`], for the groups. `own`: the limit of the key that is reached.
    #[inline(never)]
    fn check_groups(&mut self, payer: Payer<'_>, now: Unix, counted: Counted, own: Option<Limit>) -> Result<(), Limit> {
        let mut found = own;
        if payer.path.is_some() {
            self.tree.each(payer.path, &self.open, now, |node| {
                if payer.hosts > 1 || Counts::of(&node.account, counted).is_reached(&node.limits) {
                    let more = reached(&node.account, counted, &node.share(payer.hosts), true, now);
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
        account.enter(plan, now, &|visit| {
            open.iter().filter(|(_, open)| open.key == key).for_each(|(_, open)| visit(open))
        });
        account
    }
}

/// Remaining quota of one account.
fn standing(account: &MeterAccount, plan: &Plan) -> QuotaStatus {
    let (requests, tokens) = account.window_known();
    let (limit, used) = (shown(plan.requests), account.period_known());
    QuotaStatus {
        limit,
        remaining_requests: if plan.requests == 0 { limit } else { limit.saturating_sub(requests) },
        remaining_tokens: tokens_left(plan, used.tokens, tokens),
        reset_at: account.window.bounds.1,
        used: used.tokens,
        total: shown(plan.tokens),
        period_start: account.period.bounds.0,
        renews: account.period.bounds.1,
        budget: (plan.budget > 0).then_some(BudgetStatus { used: used.nano, total: plan.budget }),
    }
}

impl QuotaStatus {
    /// Combines the quota of a key with that of a group above it.
    #[inline]
    fn narrow(&mut self, account: &MeterAccount, group: &Plan) {
        if group.requests > 0 {
            let (limit, (requests, _)) = (shown(group.requests), account.window_known());
            let remaining = limit.saturating_sub(requests);
            if remaining < self.remaining_requests {
                (self.limit, self.remaining_requests, self.reset_at) = (limit, remaining, account.window.bounds.1);
            }
        }
        self.remaining_tokens = self.remaining_tokens.min(account.tokens_left(group));
        if group.budget > 0 {
            let other = BudgetStatus { used: account.period_known().nano, total: group.budget };
            if self.budget.is_none_or(|own| other.remaining() < own.remaining()) {
                self.budget = Some(other);
            }
        }
    }
}

#[cfg(test)]
mod tests;
