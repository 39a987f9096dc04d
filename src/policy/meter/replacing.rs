//! Limits without room for the reservation of a request, and the models that may replace the requested one then.

use super::account::MeterAccount;
use super::limit::{Limit, Whose, counting, wants, whose};
use super::windows::{Amount, Counted};
use super::{Meter, Payer};
use crate::base::time::Unix;
use crate::policy::plan::Plan;
use crate::policy::plan::caps::{Cap, Resource};
use std::sync::Arc;

/// A model that may replace the requested one, since a limit has no room.
#[derive(Debug)]
pub struct Replacing {
    /// Number of the `on_exhausted` that names it: 0 for the key's, 1 for the plan's, 2 for that of the key's group,
    /// and so on to the root.
    pub rule: u8,
    /// Id of the model.
    pub model: Arc<str>,
    /// The limit.
    pub limit: Cap,
    /// Owner of the limit.
    pub whose: Whose,
}

impl Meter {
    /// True if an `on_exhausted` may replace the models of requests of this payer.
    #[inline]
    pub fn replaces_models(&self, payer: Payer<'_>) -> bool {
        payer.plan.replaces_models() || (self.groups_replace && payer.path.is_some())
    }

    /// True if a limit of tokens or money has no room for `need`, and the models that may replace the requested one, in
    /// their order. `refused`: a limit that a shared ledger has found without room. The plan of `payer` has the whole
    /// limits, which its hosts divide.
    #[cold]
    pub fn replacing(
        &mut self,
        payer: Payer<'_>,
        now: Unix,
        need: Amount,
        refused: Option<&Limit>,
    ) -> (bool, Vec<Replacing>) {
        let (model, mut found, mut is_full, mut rule) = (payer.model_id(), Vec::new(), false, 0);
        let mut see = |account: &MeterAccount, plan: &Plan, of_group: bool| {
            let is_refused = |cap: &Cap| {
                refused.is_some_and(|limit| limit.cap.is_like(cap) && limit.whose == whose(cap, plan, of_group))
            };
            let limit = counting(&plan.all, model).find(|cap| has_no_room(account, cap, need) || is_refused(cap));
            is_full |= limit.is_some();
            let models = [&plan.own_on_exhausted, &plan.on_exhausted];
            for model in &models[usize::from(of_group)..] {
                if let (Some(limit), Some(model)) = (limit, model) {
                    let (model, whose) = (model.clone(), whose(limit, plan, of_group));
                    found.push(Replacing { rule, model, limit: limit.clone(), whose });
                }
                rule += 1;
            }
        };
        let share = (payer.hosts > 1).then(|| payer.plan.share(payer.hosts));
        see(self.at(payer.key, payer.plan, now), share.as_ref().unwrap_or(payer.plan), false);
        self.tree.each(payer.path, &self.open, now, |node| see(&node.account, &node.share(payer.hosts), true));
        (is_full, found)
    }
}

/// True if the limit is one of tokens or money, and `need` exceeds what is left of it.
fn has_no_room(account: &MeterAccount, cap: &Cap, need: Amount) -> bool {
    if !matches!(cap.resource, Resource::Tokens | Resource::Budget) {
        return false;
    }
    let used = account.of(cap, Counted::Own).0.max(account.of(cap, Counted::Settled).0);
    used >= cap.total || wants(cap, need) > cap.total - used
}
