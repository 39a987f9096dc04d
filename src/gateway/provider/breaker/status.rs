//! Snapshot of a target's status for the admin API, derived from its state and history.

use super::Breakers;
use super::history::{MINUTES, QUIET_MS, TargetTrouble, attempts};
use crate::base::time::{Mono, Unix};
use crate::gateway::provider::rate_limits::{ALLOWANCES, COUNTED};
use crate::policy::catalog::Target;
use crate::policy::cause::Cause;

/// Number of consecutive failures from which a target counts as failing.
const IN_A_ROW: u32 = 3;
/// Number of attempts from which the share of failures counts.
const ATTEMPTS_MIN: u64 = 5;

/// State of a target in one word.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum TargetCondition {
    Ok,
    Failing,
    CoolingDown,
    NoTraffic,
}

impl TargetCondition {
    /// Name in the admin API.
    pub(crate) fn name(self) -> &'static str {
        match self {
            TargetCondition::Ok => "ok",
            TargetCondition::Failing => "failing",
            TargetCondition::CoolingDown => "cooling_down",
            TargetCondition::NoTraffic => "no_traffic",
        }
    }
}

/// Status of one target.
#[derive(Debug)]
pub(crate) struct TargetStatus {
    pub(crate) condition: TargetCondition,
    /// The target's last failures.
    pub(crate) trouble: Option<TargetTrouble>,
    /// Answered and failed attempts of the last minutes.
    pub(crate) recent: [u64; 2],
    /// True if the target fails too often, but only for one key or group, so that it stays in use.
    pub(crate) one_caller: bool,
    /// Attempts in flight.
    pub(crate) busy: u32,
    /// Complete answers.
    pub(crate) served: u64,
    /// Failures by its own fault.
    pub(crate) failures: u64,
    /// Failures since its last success.
    pub(crate) in_a_row: u32,
    /// End of its cool-down, and the reason if the cause of the last failure is not known.
    pub(crate) cool_down: Option<(Mono, &'static str)>,
    /// Remaining rate limits of its provider: the name, the remaining count, and the time until which it is valid.
    pub(crate) left: [Option<(&'static str, u64, Mono)>; ALLOWANCES],
}

impl Breakers {
    /// Status of `target`.
    pub(crate) fn standing(&mut self, target: &Target, now: Mono, unix: Unix) -> TargetStatus {
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
        let (total, past, trouble) = (attempts(&entry.counts), entry.history.past[MINUTES - 1], entry.history.trouble);
        let recent = [0, 1].map(|at| total[at].saturating_sub(past[at]));
        let (attempts, in_a_row) = (recent[0] + recent[1], breaker.failures);
        let is_recent = trouble.is_some_and(|trouble| unix.0.saturating_sub(trouble.last.0) < QUIET_MS);
        let often = is_recent && attempts >= ATTEMPTS_MIN && recent[1] * 2 > attempts;
        let enough = target.limits.breaker_failures;
        TargetStatus {
            condition: match cool_down {
                Some(_) => TargetCondition::CoolingDown,
                None if trouble.is_some() && (in_a_row >= IN_A_ROW || often) => TargetCondition::Failing,
                None if attempts == 0 => TargetCondition::NoTraffic,
                None => TargetCondition::Ok,
            },
            trouble,
            recent,
            one_caller: cool_down.is_none() && enough > 0 && in_a_row >= enough && breaker.open_until.is_none(),
            busy: entry.busy,
            served: entry.counts.served,
            failures: entry.counts.failures,
            in_a_row,
            cool_down,
            left: [left(0), left(1), left(2), left(3)],
        }
    }

    /// Answered and failed attempts at `target`, and failures since its last success.
    pub(crate) fn tried(&mut self, target: &Target) -> ([u64; 2], u32) {
        let index = self.index(&target.label);
        let entry = &self.entries[index];
        (attempts(&entry.counts), self.breakers[entry.breaker].failures)
    }

    /// An attempt has failed by the fault of the target, or its provider has refused it.
    #[cold]
    pub(crate) fn troubled(&mut self, target: &Target, cause: Cause, now: Unix) {
        let index = self.index(&target.label);
        let in_a_row = self.breakers[self.entries[index].breaker].failures;
        let trouble = &mut self.entries[index].history.trouble;
        let goes_on = |before: &TargetTrouble| in_a_row > 1 || now.0.saturating_sub(before.last.0) < 2 * QUIET_MS;
        let since = trouble.as_ref().filter(|before| goes_on(before)).map_or(now, |before| before.since);
        *trouble = Some(TargetTrouble { since, last: now, cause });
    }

    /// Begins another minute.
    pub(crate) fn close_minute(&mut self) {
        for entry in &mut self.entries {
            entry.history.past.rotate_right(1);
            entry.history.past[0] = attempts(&entry.counts);
        }
    }

    /// Excludes the counts so far from the last minutes: they are a predecessor's.
    pub(crate) fn rebase_minutes(&mut self) {
        self.entries.iter_mut().for_each(|entry| entry.history.past = [attempts(&entry.counts); MINUTES]);
    }
}
