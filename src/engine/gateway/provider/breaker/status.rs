//! Snapshot of a target's status for the admin API, derived from its state and history.

use super::history::{AttemptSums, IN_A_ROW, MINUTES, QUIET_MS, TargetTrouble, attempts};
use super::table::name_hash;
use super::{Breaker, Breakers, Caller, TargetState, account_of, without_credential};
use crate::base::time::{Mono, Unix};
use crate::base::words;
use crate::gateway::counters::Callers;
use crate::gateway::provider::rate_limits::{ALLOWANCES, COUNTED, Rest};
use crate::policy::catalog::Target;
use crate::policy::cause::Cause;
use std::sync::Arc;
use std::time::Duration;

/// Number of attempts from which the share of failures counts, and of failures from which a smaller share counts.
const ATTEMPTS_MIN: u64 = 5;
/// Share of failures, in percent, from which a target partly fails.
const PARTLY_PERCENT: u64 = 20;
/// An attempt counts as unanswered if its client left after such a time without a byte of the answer. People who cancel
/// a request at once, and editors that cancel completions, say nothing about the target.
pub(crate) const UNANSWERED: Duration = Duration::from_secs(2);
/// Cause of a target that has not answered attempts until their clients left.
const NO_ANSWER: Cause = Cause::new("no answer", "");

words! {
    /// State of a target in one word.
    #[derive(Copy, Clone, PartialEq, Eq, Debug)]
    pub(crate) enum TargetCondition {
        Ok = "ok",
        Failing = "failing",
        PartlyFailing = "partly_failing",
        Hung = "hung",
        CoolingDown = "cooling_down",
        StillTried = "still_tried",
        NoTraffic = "no_traffic",
    }
}

/// A cool-down of a target.
#[derive(Copy, Clone, Debug)]
pub(crate) struct CoolDownStatus {
    pub(crate) begun: Mono,
    pub(crate) until: Mono,
    /// Cause, if it is known to this process, and otherwise the reason in words.
    pub(crate) cause: Option<Cause>,
    pub(crate) why: &'static str,
    /// The provider has given its length, so that a target without an alternative is tried once a second.
    pub(crate) is_stated: bool,
}

/// Status of one target.
#[derive(Debug)]
pub(crate) struct TargetStatus {
    pub(crate) condition: TargetCondition,
    /// The target's last failures.
    pub(crate) trouble: Option<TargetTrouble>,
    /// None has been answered after this time, within a minute.
    pub(crate) quiet_since: Unix,
    /// Answered, failed and unanswered attempts of the last minutes.
    pub(crate) recent: [u64; 3],
    /// Requests of clients that failed after an attempt in these minutes.
    pub(crate) lost: u64,
    /// Milliseconds of the longest failed attempt in these minutes.
    pub(crate) waited: u32,
    /// True if nothing was answered since several failures.
    pub(crate) is_down: bool,
    /// Time of the last failure, if an attempt has been answered after it.
    pub(crate) none_since: Option<Unix>,
    /// Cause of most of the target's failures, and the time of the last one. See [`TargetHistory::cause`].
    pub(crate) failure: Option<(Unix, Cause)>,
    /// True if an attempt was answered since the first of the last failures.
    pub(crate) answers: bool,
    /// Attempts in flight.
    pub(crate) busy: u32,
    /// Complete answers.
    pub(crate) served: u64,
    /// Failures by its own fault.
    pub(crate) failures: u64,
    /// Failures since its last success.
    pub(crate) in_a_row: u32,
    pub(crate) cool_down: Option<CoolDownStatus>,
    /// Remaining rate limits of its provider: the name, the remaining count, and the time until which it is valid.
    pub(crate) left: [Option<(&'static str, u64, Mono)>; ALLOWANCES],
}

impl Breakers {
    /// Status of `target`. A target that has not been used gets no entry.
    pub(crate) fn standing(&mut self, target: &Target, now: Mono, unix: Unix) -> TargetStatus {
        if let Some(index) = self.known(&target.label, target.seed) {
            let entry = &mut self.entries[index];
            return entry.status(&self.breakers[entry.breaker], &self.accounts[entry.account].rest, now, unix);
        }
        // Other credentials or models may have shown that its server or its credential fails.
        let place = without_credential(&target.label);
        let breaker = self.breaker_at(&place).map(|index| &self.breakers[index]);
        let credential = self.account_at(account_of(&target.label)).map(|index| &self.accounts[index].rest);
        let mut unused = TargetState::new(target.label.clone(), 0, 0);
        unused.status(breaker.unwrap_or(&Breaker::new(place)), credential.unwrap_or(&Rest::default()), now, unix)
    }
}

impl Breaker {
    fn cool_down(&self, cause: Option<Cause>, now: Mono) -> Option<CoolDownStatus> {
        let until = self.open_until.filter(|until| *until > now)?;
        let (begun, why) = (self.opened, "it has failed too often");
        Some(CoolDownStatus { begun, until, cause, why, is_stated: false })
    }
}

impl TargetState {
    /// Status of the target, given its breaker and the cool-down of its credential.
    fn status(&mut self, breaker: &Breaker, credential: &Rest, now: Mono, unix: Unix) -> TargetStatus {
        let quiet_since = self.history.look(attempts(&self.counts)[0], unix);
        let (entry, history) = (&*self, &self.history);
        let failure = history.cause();
        let of_rest = |rest: &Rest, of_credential: bool, why| {
            let is_one = |cause: &Cause| cause.is_of_status() && cause.is_of_credential() == of_credential;
            let cause = history.newest(is_one);
            let is_stated = rest.is_stated() && !of_credential;
            rest.ends(now).map(|until| CoolDownStatus { begun: rest.begun, until, cause, why, is_stated })
        };
        let all = [
            of_rest(credential, true, "the provider refuses the credential"),
            of_rest(&entry.rest, false, "the provider has no place for more"),
            breaker.cool_down(failure.map(|(_, cause)| cause), now),
        ];
        let cool_down = all.into_iter().flatten().max_by_key(|one| one.until);
        let left = |at: usize| entry.left[at].known(now).map(|(left, until)| (COUNTED[at], left, until));
        let (total, trouble) = (attempts(&entry.counts), history.trouble);
        let [recent @ .., lost] = history.recent(&entry.counts, MINUTES).map(u64::from);
        let (ended, bad, in_a_row) = (recent[0] + recent[1], recent[1] + recent[2], breaker.failures);
        let attempts = recent[0] + bad;
        let is_recent = trouble.is_some_and(|trouble| unix.0.saturating_sub(trouble.last.0) < QUIET_MS);
        // The end of a cool-down proves nothing: until an attempt is answered, the target is not known to work.
        let unanswered = trouble.filter(|trouble| trouble.answered == total[0]);
        let often = unanswered.is_some() && ended >= ATTEMPTS_MIN && recent[1] * 2 > ended;
        let is_down =
            unanswered.is_some_and(|trouble| trouble.in_a_row[0] >= IN_A_ROW || (recent[0] == 0 && recent[1] > 0));
        // Attempts that wait for an answer show more than the failures before them.
        let is_silent =
            |trouble: TargetTrouble| u64::from(trouble.in_a_row[1]) >= ATTEMPTS_MIN.max(trouble.in_a_row[0].into());
        let is_hung = unanswered.is_some_and(is_silent);
        let hangs = unanswered.is_some_and(|trouble| u64::from(trouble.in_a_row[1]) >= ATTEMPTS_MIN)
            || (is_recent && recent[2] >= ATTEMPTS_MIN && bad * 2 > attempts);
        // A few answers after a pause between failures are no recovery yet.
        let lasts = trouble.is_some_and(|trouble| is_recent || total[0] < trouble.answered + ATTEMPTS_MIN);
        let partly = lasts && bad >= ATTEMPTS_MIN && bad * 100 >= attempts * PARTLY_PERCENT;
        let condition = match cool_down {
            Some(_) => TargetCondition::CoolingDown,
            None if is_hung => TargetCondition::Hung,
            None if is_down || often || (trouble.is_some() && in_a_row >= IN_A_ROW) => TargetCondition::Failing,
            None if hangs => TargetCondition::Hung,
            None if partly => TargetCondition::PartlyFailing,
            None if attempts == 0 => TargetCondition::NoTraffic,
            None => TargetCondition::Ok,
        };
        // Attempts without an answer are what a hung target fails with.
        let failure = failure.filter(|_| condition != TargetCondition::Hung);
        TargetStatus {
            lost,
            waited: history.waits.into_iter().max().unwrap_or(0),
            is_down: is_hung || unanswered.is_some_and(|trouble| trouble.in_a_row[0] >= IN_A_ROW),
            condition,
            trouble,
            none_since: trouble.filter(|_| unanswered.is_none()).map(|trouble| trouble.last),
            failure: failure.or_else(|| trouble.map(|trouble| (trouble.last, NO_ANSWER))),
            quiet_since,
            recent,
            answers: trouble.is_some_and(|trouble| total[0] > trouble.answered_first),
            busy: entry.busy,
            served: entry.counts.served,
            failures: entry.counts.failures,
            in_a_row,
            cool_down,
            left: [left(0), left(1), left(2), left(3)],
        }
    }
}

impl Breakers {
    /// Sums of each of the last minutes, the current one first; answered and failed attempts of all time; and the
    /// failures since the last success.
    pub(crate) fn sums(&self, target: &Target) -> Option<(impl Iterator<Item = AttemptSums>, [u64; 2], u32)> {
        let entry = &self.entries[self.known(&target.label, target.seed)?];
        let (counts, failures) = (&entry.counts, self.breakers[entry.breaker].failures);
        Some((entry.history.by_minute(counts), attempts(counts), failures))
    }

    /// An attempt has failed by the fault of the target, or its provider has refused it.
    #[cold]
    pub(crate) fn troubled(&mut self, target: &Target, caller: Caller, cause: Cause, now: Unix) {
        let index = self.index(target);
        self.entries[index].history.failed(cause, now);
        self.trouble(target, (caller, cause.is_of_connection()), [1, 0], now, now);
    }

    /// An attempt has failed after so many milliseconds.
    #[cold]
    pub(crate) fn waited(&mut self, target: &Target, millis: u64) {
        let [longest, ..] = &mut self.entry(target).history.waits;
        *longest = u32::try_from(millis).map_or(u32::MAX, |millis| millis.max(*longest));
    }

    /// The client of an attempt has left. It had waited for a byte of the answer since `begun`.
    #[cold]
    pub(crate) fn unanswered(&mut self, target: &Target, caller: Caller, begun: Unix, now: Unix) {
        let index = self.index(target);
        self.entries[index].history.unanswered += 1;
        self.trouble(target, (caller, false), [0, 1], begun, now);
    }

    /// Notes a failure that began at this time. `for_all`: the requests of others would have failed, too. `more`: what
    /// it adds to the failures in a row.
    fn trouble(&mut self, target: &Target, (caller, for_all): (Caller, bool), more: [u32; 2], begun: Unix, now: Unix) {
        let index = self.index(target);
        let entry = &mut self.entries[index];
        let (in_a_row, [answered, _]) = (self.breakers[entry.breaker].failures, attempts(&entry.counts));
        let before = entry.history.trouble;
        let goes_on = |before: &TargetTrouble| {
            in_a_row > 1 || before.answered == answered || now.0.saturating_sub(before.last.0) < 2 * QUIET_MS
        };
        let first = before.filter(goes_on);
        let (since, answered_first) = first.map_or((begun, answered), |first| (first.since, first.answered_first));
        let mut callers = first.map_or(Callers::default(), |first| first.callers);
        callers.meet(caller);
        if for_all {
            callers.are_several();
        }
        let (down_since, run) = before
            .filter(|before| before.answered == answered)
            .map_or((begun, [0; 2]), |before| (before.down_since, before.in_a_row));
        let in_a_row = [0, 1].map(|at| run[at].saturating_add(more[at]));
        let trouble = TargetTrouble { since, last: now, down_since, callers, answered_first, answered, in_a_row };
        entry.history.trouble = Some(trouble);
    }

    /// Begins another minute, after so many.
    pub(crate) fn close_minutes(&mut self, passed: u64, now: Unix) {
        for _ in 0..passed.min(MINUTES as u64) {
            for entry in &mut self.entries {
                entry.history.close_minute(&entry.counts);
                entry.history.look(attempts(&entry.counts)[0], now);
            }
        }
    }

    /// A request of a client has failed after an attempt at the target with this label.
    #[cold]
    pub(crate) fn lost(&mut self, label: &Arc<str>) {
        if let Some(index) = self.known(label, name_hash(label)) {
            self.entries[index].history.lost += 1;
        }
    }
}
