//! Decides whether a request of a model with a queue that finds no free target should wait: for a slot at a full
//! target, or for a cool-down that ends soon. It does not wait for failing targets if there is another one.

use super::{Among, Breakers, Choice};
use crate::base::time::Mono;
use crate::gateway::provider::rate_limits::Needs;
use crate::policy::catalog::Target;

/// Result of the search for a target by a request that can wait.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Seek {
    /// This target.
    Found(usize),
    /// A target may become free: wait.
    Wait,
    /// No target is worth waiting for.
    None,
}

/// Progress of a request that can wait.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// The request has been sent nowhere. If all targets are cooling down for longer than it may wait, it does not
    /// wait: it is sent to the one whose cool-down ends first, unless that was just tried.
    New,
    /// An attempt has failed.
    Failed,
    /// The request is waiting.
    Waits,
}

/// Minimum needs of any request.
pub(crate) const LEAST: Needs = [1, 0, 0, 0];

impl Breakers {
    /// Attempts in flight, at all targets.
    pub(crate) fn busy(&self) -> usize {
        self.entries.iter().map(|entry| entry.busy as usize).sum()
    }

    /// Maximum number of attempts in flight at one server and model.
    pub(crate) fn busiest(&self) -> usize {
        self.breakers.iter().map(|breaker| breaker.busy as usize).max().unwrap_or(0)
    }

    /// Returns true, once, if a slot or a target may have become free.
    pub(crate) fn take_eased(&mut self) -> bool {
        std::mem::take(&mut self.eased)
    }

    /// Finds a target for a request, or decides that it waits for one, until `until` at the latest.
    pub(crate) fn seek(&mut self, targets: &[Target], choice: &Choice, stage: Stage, until: Mono) -> Seek {
        if let Some(kept) = self.kept(targets, choice) {
            return Seek::Found(kept);
        }
        match self.equals(targets, choice) {
            0 => {}
            equals if equals.is_power_of_two() => return Seek::Found(equals.trailing_zeros() as usize),
            equals => return self.choose_among(targets, equals, choice.among).map_or(Seek::None, Seek::Found),
        }
        let (mut near, mut far) = (false, false);
        for (at, target) in targets.iter().enumerate() {
            let index = self.index(target);
            let breaker = &self.breakers[self.entries[index].breaker];
            if choice.tried & 1u64.checked_shl(at as u32).unwrap_or(0) != 0 || !breaker.is_closed(choice.now) {
                continue;
            }
            match self.there_from(index, &choice.needs, choice.owner, choice.now) {
                _ if choice.late & 1u64.checked_shl(at as u32).unwrap_or(0) != 0 => {}
                Some(from) if from > until => far = true,
                _ => near = true,
            }
        }
        let last = |found: Option<usize>| found.map_or(Seek::None, Seek::Found);
        match stage {
            _ if near => Seek::Wait,
            Stage::New if choice.late != 0 && !far => last(self.choose(targets, choice)),
            Stage::New => match self.choose(targets, choice) {
                Some(found) => Seek::Found(found),
                None if targets.iter().any(|target| self.waits_for_trial(target, choice.now)) => Seek::None,
                None => Seek::Wait,
            },
            Stage::Failed => Seek::None,
            Stage::Waits if far || choice.tried != 0 => Seek::Wait,
            // All of them fail: the target that was available last is not cooling down.
            Stage::Waits => last(self.last_available(targets, choice)),
        }
    }

    /// True if a request with minimal needs could be sent to one of the targets.
    pub(crate) fn is_any_open(&mut self, targets: &[Target], now: Mono) -> bool {
        let mut all_fail = true;
        let least =
            Choice { tried: 0, full: 0, late: 0, needs: LEAST, owner: 0, among: Among::Turns, uploader: None, now };
        for target in targets {
            all_fail &= !self.breaker(target).is_closed(now);
            if self.is_free(target, &least) {
                return true;
            }
        }
        all_fail && self.last_available(targets, &least).is_some()
    }

    /// Earliest time at which a target becomes free without an event; `NEVER` if there is none.
    pub(crate) fn next_change(&mut self, targets: &[Target], now: Mono) -> Mono {
        let mut soonest = Mono::NEVER;
        for target in targets {
            let (index, was_tried) = (self.index(target), self.waits_for_trial(target, now));
            let entry = &self.entries[index];
            let trial = was_tried.then_some(entry.next_trial);
            let ends =
                [entry.rest.ends(now), entry.own_rest.rest.ends(now), self.accounts[entry.account].rest.ends(now)];
            let left = entry.left.iter().filter_map(|left| left.ends(now));
            let breaker = self.breakers[entry.breaker].open_until.filter(|until| *until > now);
            let ends = ends.into_iter().flatten().chain(left).chain(breaker).chain(trial);
            soonest = ends.fold(soonest, Mono::min);
        }
        soonest
    }
}
