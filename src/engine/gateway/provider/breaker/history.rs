//! History of a target for its status: counts at the end of each minute, and the last failures. A successful attempt
//! costs nothing here.

use crate::base::time::Unix;
use crate::gateway::counters::{AttemptEnd, Callers, TargetCounts};
use crate::policy::cause::Cause;

/// Number of minutes whose counts are reported together, the current one included.
pub(super) const MINUTES: usize = 5;
/// Number of consecutive failures from which a target counts as failing.
pub(super) const IN_A_ROW: u32 = 3;
/// Number of minutes whose counts are kept, the current one included.
pub(crate) const HOUR: usize = 60;
/// Attempts of a target: answered, failed, and unanswered; then requests of clients that failed after one.
pub(crate) type AttemptSums = [u32; 4];
/// Milliseconds without a failure after which a target is no longer failing, if its last attempts succeeded.
pub(super) const QUIET_MS: u64 = 30_000;

/// Maximum number of different causes that are counted for one target.
pub(super) const CAUSES_MAX: usize = 8;

/// Failures of a target by its own fault, by its provider's refusals, or by clients that left before an answer, without
/// such a pause between them.
#[derive(Copy, Clone, Debug)]
pub(crate) struct TargetTrouble {
    /// The first and the last failure.
    pub(crate) since: Unix,
    pub(crate) last: Unix,
    /// The first failure since the last answer.
    pub(crate) down_since: Unix,
    /// Callers of all of them; several if a request could not be the cause.
    pub(crate) callers: Callers,
    /// Answered attempts before the first and before the last failure.
    pub(super) answered_first: u64,
    pub(super) answered: u64,
    /// Failures since the last of them: by the target's own fault, and unanswered attempts.
    pub(super) in_a_row: [u32; 2],
}

/// A cause, the time of its last failure, and its failures of the current minute and of those before it.
#[derive(Debug)]
pub(super) struct CauseCounts {
    cause: Cause,
    last: Unix,
    minutes: [u32; MINUTES],
}

impl CauseCounts {
    /// Number of its failures, then the time of the last one: the most frequent cause has the largest.
    fn rank(&self) -> (u32, Unix) {
        (self.minutes.iter().fold(0, |sum, count| sum.saturating_add(*count)), self.last)
    }
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct TargetHistory {
    /// Sums at the beginning of the current minute, and of those before it; empty before the first minute.
    pub(super) past: Vec<AttemptSums>,
    /// Attempts whose clients left after they had waited for an answer.
    pub(super) unanswered: u64,
    /// Requests of clients that failed after an attempt.
    pub(super) lost: u32,
    pub(super) trouble: Option<TargetTrouble>,
    /// Causes of the failures of the last minutes, or the most frequent one of the last failures before them.
    pub(super) causes: Vec<CauseCounts>,
    /// Milliseconds of the longest failed attempt of the current minute and of those before it.
    pub(super) waits: [u32; MINUTES],
    /// Number of answered attempts at the last look, and the look at which it had last changed.
    pub(super) seen: (u64, Unix),
}

impl TargetHistory {
    /// Sums until now. Only their differences matter.
    pub(super) fn sums(&self, counts: &TargetCounts) -> AttemptSums {
        let [answered, failed] = attempts(counts);
        [answered as u32, failed as u32, self.unanswered as u32, self.lost]
    }

    /// Sums of the last so many minutes.
    pub(super) fn recent(&self, counts: &TargetCounts, minutes: usize) -> AttemptSums {
        let past = self.past.get(minutes - 1).copied().unwrap_or_default();
        since(self.sums(counts), past)
    }

    /// Sums of each minute, the current one first.
    pub(super) fn by_minute(&self, counts: &TargetCounts) -> impl Iterator<Item = AttemptSums> {
        let mut end = self.sums(counts);
        let first = (self.past.len() < HOUR).then(AttemptSums::default);
        let begins = self.past.iter().copied().chain(first);
        begins.map(move |begin| since(std::mem::replace(&mut end, begin), begin))
    }

    /// Counts a failure. If there are too many causes, the least frequent one is forgotten.
    pub(super) fn failed(&mut self, cause: Cause, now: Unix) {
        let at = self.causes.iter().position(|known| known.cause.number() == cause.number()).unwrap_or_else(|| {
            if self.causes.len() >= CAUSES_MAX
                && let Some(least) = (0..self.causes.len()).min_by_key(|at| self.causes[*at].rank())
            {
                self.causes.swap_remove(least);
            }
            self.causes.push(CauseCounts { cause, last: now, minutes: [0; MINUTES] });
            self.causes.len() - 1
        });
        let counts = &mut self.causes[at];
        (counts.cause, counts.last) = (cause, now);
        counts.minutes[0] = counts.minutes[0].saturating_add(1);
    }

    /// The cause of most failures of the last minutes, or of the last failures before them, and the time of the last
    /// failure. Of equally frequent causes it is the newest. A client that leaves is no cause.
    pub(super) fn cause(&self) -> Option<(Unix, Cause)> {
        let most = self.causes.iter().max_by_key(|one| one.rank())?;
        Some((self.causes.iter().map(|one| one.last).fold(most.last, Unix::max), most.cause))
    }

    /// The newest of the causes for which this is true.
    pub(super) fn newest(&self, is_one: impl Fn(&Cause) -> bool) -> Option<Cause> {
        self.causes.iter().filter(|one| is_one(&one.cause)).max_by_key(|one| one.last).map(|one| one.cause)
    }

    /// Begins another minute.
    pub(super) fn close_minute(&mut self, counts: &TargetCounts) {
        let sums = self.sums(counts);
        self.past.truncate(HOUR - 1);
        self.past.insert(0, sums);
        self.waits.rotate_right(1);
        self.waits[0] = 0;
        let most = self.cause();
        for one in &mut self.causes {
            one.minutes.rotate_right(1);
            one.minutes[0] = 0;
        }
        let is_over = self.causes.iter().all(|one| one.rank().0 == 0);
        self.causes
            .retain(|one| if is_over { most.is_some_and(|(_, cause)| one.cause == cause) } else { one.rank().0 > 0 });
    }

    /// Notes the number of answered attempts. Returns a time after which none has been answered.
    pub(super) fn look(&mut self, answered: u64, now: Unix) -> Unix {
        if self.seen.0 != answered {
            self.seen = (answered, now);
        }
        self.seen.1
    }
}

fn since(sums: AttemptSums, before: AttemptSums) -> AttemptSums {
    [0, 1, 2, 3].map(|at| sums[at].saturating_sub(before[at]))
}

/// Answered and failed attempts. A refusal of the request itself is an answer.
pub(super) fn attempts(counts: &TargetCounts) -> [u64; 2] {
    let mut sum = [0; 2];
    for (end, count) in counts.ends() {
        match end {
            AttemptEnd::Status(401..=403 | 408 | 429 | 500..) => sum[1] += count,
            AttemptEnd::Status(_) => sum[0] += count,
            AttemptEnd::Connect | AttemptEnd::Tls | AttemptEnd::Timeout | AttemptEnd::Broken => sum[1] += count,
            AttemptEnd::Abandoned | AttemptEnd::Other => {}
        }
    }
    sum
}
