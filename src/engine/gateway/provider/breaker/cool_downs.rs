//! Cool-downs that a provider asks for: of a credential for one model or for all, for all clients or for one owner of
//! keys.

use super::{Breakers, Caller, CredentialState, TargetState};
use crate::base::time::Mono;
use crate::gateway::counters::Callers;
use crate::gateway::provider::rate_limits::{RateLimitHeaders, Rest};
use crate::policy::catalog::Target;
use std::time::Duration;

/// A target without an alternative is tried so often during a cool-down that its provider has asked for.
pub(super) const TRIAL_EVERY: Duration = Duration::from_secs(1);

impl TargetState {
    /// See [`Breakers::waits_for_trial`].
    #[cold]
    fn was_just_tried(&self, now: Mono) -> bool {
        self.rest.is_stated() && self.rest.ends(now).is_some() && self.next_trial > now
    }
}

impl Breakers {
    /// End of the cool-downs of a credential for the requests of an owner.
    #[inline]
    pub(super) fn cools_until(&self, index: usize, owner: u64, now: Mono) -> Option<Mono> {
        let entry = &self.entries[index];
        let ends = entry.rest.ends(now).max(self.accounts[entry.account].rest.ends(now));
        let own = &entry.own_rest;
        if self.own_until > now && own.owner == owner { ends.max(own.rest.ends(now)) } else { ends }
    }

    /// Begins a cool-down because the provider has no capacity for this credential and model. Returns its length if it
    /// is new. `caller`: the client whose request may be the cause; then the credential cools down only for its owner,
    /// until another owner's request is refused, too.
    pub(crate) fn rest(
        &mut self,
        target: &Target,
        said: &RateLimitHeaders,
        caller: Option<Caller>,
        rested: bool,
        now: Mono,
    ) -> Option<Duration> {
        let most = target.limits.breaker_cooldown;
        let TargetState { rest, own_rest: own, .. } = self.entry(target);
        if let Some(caller) = caller {
            own.refused.meet(caller);
            if !own.refused.several_owners {
                if own.owner != caller.owner {
                    (own.owner, own.rest) = (caller.owner, Rest::default());
                }
                own.rest.begin(said, most, rested, now);
                let until = own.rest.ends(now);
                self.own_until = self.own_until.max(until.unwrap_or_default());
                return None;
            }
        }
        let before = rest.ends(now).is_some();
        rest.begin(said, most, rested, now);
        let until = rest.ends(now);
        let stated = until.filter(|_| rest.is_stated());
        self.entry(target).next_trial = now.after(TRIAL_EVERY);
        self.stated_until = self.stated_until.max(stated.unwrap_or_default());
        until.filter(|_| !before).map(|until| Duration::from_micros(until.micros_since(now)))
    }

    /// True for a target whose provider has asked for a cool-down, and that was tried less than a second ago.
    #[inline]
    pub(crate) fn waits_for_trial(&mut self, target: &Target, now: Mono) -> bool {
        self.stated_until > now && self.entry(target).was_just_tried(now)
    }

    /// Begins a cool-down for all models because the provider refuses the credential. Returns its length if it is new.
    /// `caller`: the client whose request may be the cause; then the credential cools down only after another owner's
    /// request has been refused, too.
    pub(crate) fn refused(
        &mut self,
        target: &Target,
        caller: Option<Caller>,
        rested: bool,
        now: Mono,
    ) -> Option<Duration> {
        let account = self.entry(target).account;
        let CredentialState { rest, refused, .. } = &mut self.accounts[account];
        if let Some(caller) = caller {
            refused.meet(caller);
            if !refused.several_owners {
                return None;
            }
        }
        let before = rest.ends(now).is_some();
        rest.refused(rested, now);
        rest.ends(now).filter(|_| !before).map(|until| Duration::from_micros(until.micros_since(now)))
    }

    /// Resets the state of a changed credential. True if the previous one was cooling down.
    pub(crate) fn credential_renewed(&mut self, name: &str) -> bool {
        self.eased = true;
        let account = self.account_at(name);
        account.is_some_and(|index| std::mem::take(&mut self.accounts[index].rest) != Rest::default())
    }

    #[inline]
    pub(super) fn rest_ended(&mut self, index: usize, rested: bool, now: Mono) -> bool {
        let entry = &mut self.entries[index];
        let model = entry.rest.ended(rested, now);
        let own = &mut entry.own_rest;
        own.refused = Callers::default();
        own.rest.ended(rested, now);
        let account = &mut self.accounts[entry.account];
        if account.refused.first.is_some() {
            account.refused = Callers::default();
        }
        account.rest.ended(rested, now) || model
    }
}
