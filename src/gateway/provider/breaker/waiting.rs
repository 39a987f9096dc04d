//! What is worth waiting for, for a request of a model with a queue that finds no free target (contract section 11): a
//! place at one that is full, or the end of a rest that is near enough. Those that fail are not waited for, as long as
//! there is another.

use super::{Breakers, Choice};
use crate::base::time::Mono;
use crate::gateway::provider::rest::Needs;
use crate::policy::catalog::Target;

/// What there is for a request that can wait.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Seek {
    /// This target.
    Found(usize),
    /// One may come free.
    Wait,
    /// None is worth waiting for.
    None,
}

/// How far a request that can wait has come.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// It has been sent nowhere. Where all rest for longer than it may wait, the first that is there again is asked all
    /// the same.
    New,
    /// An attempt has failed.
    Failed,
    /// It waits.
    Waits,
}

/// What every request takes.
const LEAST: Needs = [1, 0, 0, 0];

impl Breakers {
    /// Attempts in flight, at all targets.
    pub(crate) fn busy(&self) -> usize {
        self.entries.iter().map(|entry| entry.busy as usize).sum()
    }

    /// The most attempts in flight at one server and model.
    pub(crate) fn busiest(&self) -> usize {
        self.breakers.iter().map(|breaker| breaker.busy as usize).max().unwrap_or(0)
    }

    /// Says once that a place may have come free, or a target.
    pub(crate) fn take_eased(&mut self) -> bool {
        std::mem::take(&mut self.eased)
    }

    /// A target for a request, or whether it is to wait for one, which it may until `until`.
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
            let index = self.index(&target.label);
            let breaker = &self.breakers[self.entries[index].breaker];
            if choice.tried & 1u64.checked_shl(at as u32).unwrap_or(0) != 0 || !breaker.is_closed(choice.now) {
                continue;
            }
            match self.there_from(index, &choice.needs, choice.now) {
                Some(from) if from > until => far = true,
                _ => near = true,
            }
        }
        let last = |found: Option<usize>| found.map_or(Seek::None, Seek::Found);
        match stage {
            _ if near => Seek::Wait,
            Stage::New => match self.choose(targets, choice) {
                Some(found) => Seek::Found(found),
                None => Seek::Wait,
            },
            Stage::Failed => Seek::None,
            Stage::Waits if far || choice.tried != 0 => Seek::Wait,
            // All of them fail: the last that was available does not rest.
            Stage::Waits => last(self.last_available(targets)),
        }
    }

    /// True if any request at all could be sent to one of the targets.
    pub(crate) fn is_any_open(&mut self, targets: &[Target], now: Mono) -> bool {
        let mut all_fail = true;
        for target in targets {
            all_fail &= !self.breaker(target).is_closed(now);
            if self.is_free(target, &LEAST, now) {
                return true;
            }
        }
        all_fail && self.last_available(targets).is_some()
    }

    /// When time alone may make a target free that is not; `NEVER` where none is like that.
    pub(crate) fn next_change(&mut self, targets: &[Target], now: Mono) -> Mono {
        let mut soonest = Mono::NEVER;
        for target in targets {
            let index = self.index(&target.label);
            let entry = &self.entries[index];
            let rests = [entry.rest.ends(now), self.accounts[entry.account].rest.ends(now)];
            let left = entry.left.iter().filter_map(|left| left.ends(now));
            let breaker = self.breakers[entry.breaker].rests_until.filter(|until| *until > now);
            let ends = rests.into_iter().flatten().chain(left).chain(breaker);
            soonest = ends.fold(soonest, Mono::min);
        }
        soonest
    }
}
