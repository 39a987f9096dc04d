//! Limits that admit a request only if its whole reservation fits, so that use and reservations together never exceed
//! them: strict limits, and those of targets, providers and credentials.

use super::account::MeterAccount;
use super::limit::{Limit, LimitReason, counting, limit, longest, wants};
use super::windows::{Amount, Counted, Lease};
use super::{Hold, Meter, PathIx, Payer};
use crate::base::time::Unix;
use crate::policy::plan::Plan;
use crate::policy::plan::caps::{Cap, Resource};
use crate::policy::usage::{Usage, UsageSource};

/// Reservation of one attempt under strict limits.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct StrictReservation {
    /// Tokens of the prompt; 0 for audio and images, which no limit of tokens counts.
    pub prompt: u64,
    /// Completion tokens of all answers.
    pub completion: u64,
    /// Nano-dollars.
    pub nano: u64,
    /// The least reservation with which the request may be admitted.
    pub least: Amount,
    /// Number of the last attempt that costs nothing more; 0 if there is none.
    pub settled: u8,
    /// Number of questions to a shared ledger that had too little left.
    pub asked: u8,
}

impl StrictReservation {
    /// The whole of it.
    pub fn amount(&self) -> Amount {
        Amount { tokens: self.prompt.saturating_add(self.completion), nano: self.nano }
    }

    /// The whole of it as usage.
    pub fn all(&self, source: UsageSource) -> Usage {
        Usage { uncached_in: self.prompt, out: self.completion, source, ..Usage::default() }
    }

    /// True for the usage of an attempt that is settled at its whole reservation.
    pub fn is_all(&self, own: &Usage) -> bool {
        self.prompt > 0 && *own == self.all(own.source)
    }
}

/// Reservation of a request in the limits of its targets. Without such limits it is empty.
#[derive(Debug, Default)]
pub struct TargetShare {
    /// Amount that an attempt at each target needs.
    pub needs: Box<[Amount]>,
    /// Reservation of the present attempt.
    pub hold: Option<Hold>,
    /// Its lease from a shared ledger.
    pub lease: Option<Box<Lease>>,
}

/// Settled use and reservations of what `cap` limits.
fn taken(account: &MeterAccount, cap: &Cap) -> (u64, u64) {
    let (all, own) = account.of(cap, Counted::Own);
    if cap.resource == Resource::Running {
        return (0, all);
    }
    (account.known(cap.span).of(cap.resource), all - own)
}

/// The least that the limits of an account leave of tokens and money.
fn room(account: &MeterAccount, limits: &[Cap], model: Option<&str>) -> Amount {
    counting(limits, model).fold(Amount::MAX, |least, cap| {
        let (used, reserved) = taken(account, cap);
        let left = cap.total.saturating_sub(used).saturating_sub(reserved);
        match cap.resource {
            Resource::Tokens => Amount { tokens: least.tokens.min(left), ..least },
            Resource::Budget => Amount { nano: least.nano.min(left), ..least },
            Resource::Requests | Resource::Running => least,
        }
    })
}

/// Part of `need` that a limit counts, at least 1. `counted`: the request is counted already.
fn needed(cap: &Cap, need: Amount, counted: bool) -> u64 {
    match cap.resource {
        Resource::Requests | Resource::Running => (!counted).into(),
        Resource::Tokens | Resource::Budget => wants(cap, need).max(1),
    }
}

/// The limit that has no room for `need`.
fn lacking(
    account: &MeterAccount,
    plan: &Plan,
    of_group: bool,
    now: Unix,
    (need, since): (Amount, Option<Unix>),
    model: Option<&str>,
) -> Option<Limit> {
    longest(counting(&plan.all, model).filter_map(|cap| {
        let ((used, reserved), need) = (taken(account, cap), needed(cap, need, since.is_some()));
        let left = cap.total.saturating_sub(used);
        let by = match need {
            _ if need > cap.total => LimitReason::Share { need, left },
            _ if need > left || cap.resource == Resource::Running => LimitReason::Spent,
            _ => LimitReason::Reserved,
        };
        // A running request counts in the windows of its admission.
        let has_left = since.is_some_and(|since| since < account.bounds(cap.span).0);
        (has_left || need > left.saturating_sub(reserved)).then(|| limit(cap, by, account, plan, of_group, now))
    }))
}

impl Meter {
    /// True if a group of the path makes limits strict.
    pub fn is_strict(&self, path: PathIx) -> bool {
        self.tree.any(path, |limits| limits.strict)
    }

    /// The least that the limits of the key and its groups leave of tokens and money; `u64::MAX` without a limit.
    pub fn room(&mut self, payer: Payer<'_>, now: Unix) -> Amount {
        let model = payer.model_id();
        let mut least = room(self.at(payer.key, payer.plan, now), &payer.plan.all, model);
        self.tree.each(payer.path, &self.open, now, |node| {
            least = least.min(room(&node.account, &node.limits.all, model));
        });
        least
    }

    /// Fails with the limit that has no room for `need`; of several, the one that lasts longest. `since`: moment of
    /// the admission of a request that is counted already, and needs so much more.
    pub fn has_room(&mut self, payer: Payer<'_>, now: Unix, need: Amount, since: Option<Unix>) -> Result<(), Limit> {
        let model = payer.model_id();
        let mut found = lacking(self.at(payer.key, payer.plan, now), payer.plan, false, now, (need, since), model);
        self.tree.each(payer.path, &self.open, now, |node| {
            let more = lacking(&node.account, &node.share(payer.hosts), true, now, (need, since), model);
            found = longest(found.take().into_iter().chain(more));
        });
        found.map_or(Ok(()), Err)
    }

    /// Admits one request, counts it and reserves `need`, if every limit has room for all of it.
    pub fn admit_whole(&mut self, payer: Payer<'_>, now: Unix, need: Amount) -> Result<Hold, Limit> {
        self.has_room(payer, now, need, None)?;
        Ok(self.hold(payer, now, need, false))
    }

    /// Ends a request that does not count after all.
    pub fn cancel(&mut self, hold: Hold) {
        let Some(open) = self.open.remove(hold.id()) else { return };
        if let Some(account) = self.accounts.get_mut(open.key.0 as usize) {
            account.cancel(&open);
        }
        self.tree.each_as_it_is(open.path, |node| node.account.cancel(&open));
    }

    /// Reserves `more` for a running request, in the windows that it counts in.
    pub fn extend(&mut self, hold: &Hold, more: Amount) {
        let Some(open) = self.open.get_mut(hold.id()) else { return };
        if let Some(account) = self.accounts.get_mut(open.key.0 as usize) {
            account.extend(open, more);
        }
        self.tree.each_as_it_is(open.path, |node| node.account.extend(open, more));
        open.reserved = open.reserved.plus(more);
    }
}
