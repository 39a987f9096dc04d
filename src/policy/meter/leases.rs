//! A shared ledger admits by itself: its questions, leases and answers. The meter counts the part of this process, and
//! stores the counts of all hosts.

use super::account::MeterAccount;
use super::budget::{BudgetOf, tell};
use super::limit::{Limit, LimitReason, limit};
use super::windows::{Amount, Lease, LeasePart, Open, SharedCounts};
use super::{Hold, Meter, Payer};
use crate::base::slots::Id;
use crate::base::time::Unix;
use crate::policy::keys::KeyIx;
use crate::policy::plan::Plan;
use crate::policy::plan::caps::{Cap, Per, Resource};

/// Limits of the accounts that a lease counts in, 0 for none.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AskedLimits {
    /// Requests, tokens and nano-dollars of each part of the lease.
    pub parts: Vec<[u64; 3]>,
    /// Running requests of the key and each group.
    pub running: Vec<u64>,
    /// The least reservation with which the request may be admitted, if its whole reservation must fit into the limits
    /// of tokens and money.
    pub strict: Option<Amount>,
}

/// Adds the spans that count requests to `model` admitted `at`.
fn add_parts(account: &MeterAccount, model: Option<&str>, at: Unix, parts: &mut Vec<LeasePart>) {
    let all =
        account.spans_of(model).map(|span| LeasePart { account: span.account.clone(), bounds: span.per.bounds(at) });
    parts.extend(all);
}

impl Meter {
    /// Lease of a request of the key at `now`.
    pub fn lease_for(&mut self, payer: Payer<'_>, now: Unix, reserved: Amount) -> Lease {
        let (mut parts, model) = (Vec::new(), payer.model_id());
        add_parts(self.at(payer.key, payer.plan, now), model, now, &mut parts);
        self.tree.each(payer.path, &self.open, now, |node| add_parts(&node.account, model, now, &mut parts));
        Lease { reserved, shared: false, path: payer.path, parts: parts.into() }
    }

    /// Limits of a key and its groups, in the order of [`Lease::parts`].
    pub fn limits_of(&mut self, payer: Payer<'_>) -> AskedLimits {
        let mut all = AskedLimits::default();
        let mut add = |plan: &Plan| {
            let of = |at: usize, resource: Resource| {
                let is_it = |cap: &&Cap| cap.span == at && cap.resource == resource;
                plan.all.iter().find(is_it).map_or(0, |cap| cap.total)
            };
            let spans = plan.all.spans().iter().enumerate();
            let counting = spans.filter(|(_, span)| span.models.count(payer.model_id()));
            let counted = [Resource::Requests, Resource::Tokens, Resource::Budget];
            all.parts.extend(counting.map(|(at, _)| counted.map(|resource| of(at, resource))));
            all.running.push(of(plan.all.window(), Resource::Running));
        };
        add(payer.plan);
        self.tree.each_as_it_is(payer.path, |node| add(&node.limits));
        all
    }

    /// True if a limit of the key or its groups counts only some models: then the leases of its requests differ.
    pub fn names_models(&mut self, payer: Payer<'_>) -> bool {
        let mut names = payer.plan.all.name_models();
        self.tree.each_as_it_is(payer.path, |node| names |= node.limits.all.name_models());
        names
    }

    /// Counts a request that a shared ledger has admitted. `now` is the moment of the question.
    pub fn grant(&mut self, payer: Payer<'_>, now: Unix, lease: &Lease) -> Hold {
        let payer = Payer { path: lease.path, ..payer };
        self.enter(payer, now);
        let hold = self.hold(payer, now, lease.reserved, false);
        if let Some(open) = self.open.get_mut(hold.0) {
            open.shared = true;
        }
        hold
    }

    /// Stores the counts of a shared ledger: of each part of `lease`.
    pub fn learn(&mut self, key: KeyIx, plan: &Plan, lease: &Lease, now: Unix, news: &[SharedCounts]) {
        let parts = || lease.parts.iter().zip(news);
        self.at(key, plan, now).learn(parts(), now);
        let Meter { accounts, tree, open, news, thresholds, .. } = self;
        tell(accounts.entry(key.0 as usize), || BudgetOf::Key(key), thresholds, news);
        tree.each(lease.path, open, now, |node| {
            node.account.learn(parts(), now);
            tell(&mut node.account, || BudgetOf::Group(node.limits.name.clone()), thresholds, news);
        });
    }

    /// Clears the counts, since the operator has replaced the shared ledger by an empty one.
    pub fn reset_counts(&mut self) {
        self.accounts
            .iter_mut()
            .map(|(_, account)| account)
            .chain(self.tree.every())
            .for_each(MeterAccount::reset_counts);
    }

    /// Adds one request to the known counts of a shared ledger.
    pub fn learn_of_one(&mut self, key: KeyIx, lease: &Lease) {
        if let Some(account) = self.accounts.get_mut(key.0 as usize) {
            account.learn_of_one(lease);
        }
        self.tree.each_as_it_is(lease.path, |node| node.account.learn_of_one(lease));
    }

    /// Limit of a resource by which a shared ledger has refused a request with `lease`, in this part of it.
    pub fn limit(
        &mut self,
        payer: Payer<'_>,
        now: Unix,
        (resource, part, by): (Resource, usize, LimitReason),
        lease: &Lease,
    ) -> Limit {
        let asked = lease.parts.get(part);
        let group = asked.map_or("", LeasePart::group);
        let of = |account: &MeterAccount, plan: &Plan, of_group: bool| {
            let limits = &account.limits;
            let is_asked =
                |span: usize| limits.spans().get(span).map(|span| &span.account) == asked.map(|part| &part.account);
            let is_it = |cap: &&Cap| cap.resource == resource && (resource == Resource::Running || is_asked(cap.span));
            // The limit may have been removed since.
            let gone = plan.resolved(Cap::new(resource, Per::Window, 0));
            limit(limits.iter().find(is_it).unwrap_or(&gone), by, account, plan, of_group, now)
        };
        let mut found = of(self.at(payer.key, payer.plan, now), payer.plan, false);
        self.tree.each(payer.path, &self.open, now, |node| {
            if *node.limits.name == *group {
                found = of(&node.account, &node.limits, true);
            }
        });
        found
    }

    /// Lease of a reservation in the shared ledger; empty if there is no shared ledger.
    pub fn lease(&mut self, hold: &Hold) -> Lease {
        let Some(open) = self.open.get(hold.0) else { return Lease::default() };
        let (mut parts, model) = (Vec::new(), open.model.as_deref());
        add_parts(self.accounts.entry(open.key.0 as usize), model, open.admitted, &mut parts);
        self.tree.each_as_it_is(open.path, |node| add_parts(&node.account, model, open.admitted, &mut parts));
        Lease { reserved: open.reserved, shared: open.shared, path: open.path, parts: parts.into() }
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
}
