//! State of all groups, and the thresholds of their budgets and of those of keys.

use super::account::MeterAccount;
use super::budget::{BudgetOf, Thresholds, tell};
use super::quota::{list_limits, use_of};
use super::{LimitStatus, Meter, PathIx, Payer};
use crate::base::time::Unix;
use crate::policy::plan::caps::LimitList;
use crate::policy::plan::{Group, PATH_SEPARATOR, Plan, Shorthand};

/// State of one group: settled use and reservations.
#[derive(Debug)]
pub struct GroupStatus<'a> {
    /// Name and limits of the group.
    pub limits: &'a Plan,
    /// Name of the group that contains it.
    pub parent: Option<&'a str>,
    /// Settled use and reservations of what each of [`Shorthand::ALL`] limits.
    pub used: [(u64, u64); Shorthand::ALL.len()],
    /// Start of the next period.
    pub renews: Unix,
    /// All limits with their use.
    pub all: Vec<LimitStatus>,
}

impl Meter {
    /// Applies the configured groups and their limits. Returns false and changes nothing if there would be too many
    /// paths.
    pub fn configure(&mut self, groups: &[Group], now: Unix) -> bool {
        if !self.tree.configure(groups) {
            return false;
        }
        self.groups_replace = groups.iter().any(|group| group.limits.replaces_models());
        self.groups_name_models = groups.iter().any(|group| group.limits.all.name_models());
        // A smaller or new budget may already be spent.
        self.tell_groups(now, |_| {});
        true
    }

    /// Reports these shares of budgets in percent, too, when they have been used.
    pub fn set_thresholds(&mut self, percents: &[u8]) {
        self.thresholds = Thresholds::with(percents);
    }

    /// Reports the shares of a key's budget that have been used in its period.
    pub fn report_passed(&mut self, payer: Payer<'_>, now: Unix) {
        let Payer { key, plan, .. } = payer;
        self.at(key, plan, now).forget_told();
        self.rebudget(payer, now);
    }

    /// Like [`Meter::report_passed`], for all groups.
    pub fn report_passed_groups(&mut self, now: Unix) {
        self.tell_groups(now, MeterAccount::forget_told);
    }

    /// Reports the shares of groups' budgets that have been used, after a change of their accounts.
    fn tell_groups(&mut self, now: Unix, change: fn(&mut MeterAccount)) {
        let Meter { tree, open, news, thresholds, .. } = self;
        tree.each_budget(open, now, |node| {
            change(&mut node.account);
            tell(&mut node.account, || BudgetOf::Group(node.limits.name.clone()), thresholds, news);
        });
    }

    /// Path of a key in the group of this name; `None` if the group is not configured.
    pub fn path_of(&self, group: &str) -> Option<PathIx> {
        self.tree.path_of(group)
    }

    /// Path with this text, as a row stores it.
    pub fn path(&mut self, text: &str) -> PathIx {
        self.tree.path(text)
    }

    /// Shows every configured group, brought to `now`.
    pub fn groups(&mut self, now: Unix, see: &mut dyn FnMut(&GroupStatus<'_>)) {
        self.tree.each_that(|node| node.path.is_some(), &self.open, now, &mut |node, path| {
            let (account, mut all) = (&node.account, Vec::new());
            list_limits(account, &node.limits, true, &mut all);
            see(&GroupStatus {
                limits: &node.limits,
                parent: path.rsplit(PATH_SEPARATOR).nth(1),
                used: Shorthand::ALL.map(|setting| use_of(account, &node.limits, setting)),
                renews: account.bounds(LimitList::PERIOD).1,
                all,
            });
        });
    }
}
