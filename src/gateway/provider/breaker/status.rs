//! Snapshot of a target's status for the admin API.

use super::Breakers;
use crate::base::time::Mono;
use crate::gateway::provider::rate_limits::{ALLOWANCES, COUNTED};
use crate::policy::catalog::Target;

/// Status of one target.
#[derive(Debug)]
pub(crate) struct TargetStatus {
    /// Attempts in flight.
    pub(crate) busy: u32,
    /// Complete answers.
    pub(crate) served: u64,
    /// Failures by its own fault.
    pub(crate) failures: u64,
    /// Failures since its last success.
    pub(crate) in_a_row: u32,
    /// End of its cool-down, and the reason.
    pub(crate) cool_down: Option<(Mono, &'static str)>,
    /// Remaining rate limits of its provider: the name, the remaining count, and the time until which it is valid.
    pub(crate) left: [Option<(&'static str, u64, Mono)>; ALLOWANCES],
}

impl Breakers {
    /// Status of `target`.
    pub(crate) fn standing(&mut self, target: &Target, now: Mono) -> TargetStatus {
        let index = self.index(&target.label);
        let entry = &self.entries[index];
        let breaker = &self.breakers[entry.breaker];
        let all = [
            (self.accounts[entry.account].rest.ends(now), "the provider refuses the credential"),
            (entry.rest.ends(now), "the provider has no place for more"),
            (breaker.open_until.filter(|until| *until > now), "it has failed too often"),
        ];
        let cool_down = all.into_iter().filter_map(|(until, why)| Some((until?, why))).max_by_key(|(until, _)| *until);
        let left = |at: usize| entry.left[at].known(now).map(|(left, until)| (COUNTED[at], left, until));
        TargetStatus {
            busy: entry.busy,
            served: entry.counts.served,
            failures: entry.counts.failures,
            in_a_row: breaker.failures,
            cool_down,
            left: [left(0), left(1), left(2), left(3)],
        }
    }
}
