//! History of a target for its status: counts at the end of each minute, and the last failures. A successful attempt
//! costs nothing here.

use crate::base::time::Unix;
use crate::policy::cause::Cause;
use crate::policy::counters::{AttemptEnd, Callers, TargetCounts};

/// Number of minutes whose counts are reported together, the current one included.
pub(super) const MINUTES: usize = 5;
/// Milliseconds without a failure after which a target is no longer failing, if its last attempts succeeded.
pub(super) const QUIET_MS: u64 = 30_000;

/// Failures of a target by its own fault, by its provider's refusals, or by clients that left before an answer, without
/// such a pause between them.
#[derive(Copy, Clone, Debug)]
pub(crate) struct TargetTrouble {
    /// The first and the last failure.
    pub(crate) since: Unix,
    pub(crate) last: Unix,
    pub(crate) cause: Cause,
    /// Answered attempts before the first and before the last failure.
    pub(super) answered_first: u64,
    pub(super) answered: u64,
    /// Failures since the last of them: by the target's own fault, and unanswered attempts.
    pub(super) in_a_row: [u32; 2],
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct TargetHistory {
    /// Answered, failed and unanswered attempts at the beginning of the current minute, and of those before it.
    pub(super) past: [[u64; 3]; MINUTES],
    /// Attempts whose clients left after they had waited for an answer.
    pub(super) unanswered: u64,
    pub(super) trouble: Option<TargetTrouble>,
    /// Callers of the failures of the current minute, and of those before it.
    pub(super) callers: [Callers; MINUTES],
    /// Number of answered attempts at the last look, and the look at which it had last changed.
    pub(super) seen: (u64, Unix),
}

impl TargetHistory {
    /// Answered, failed and unanswered attempts until now.
    pub(super) fn sums(&self, counts: &TargetCounts) -> [u64; 3] {
        let [answered, failed] = attempts(counts);
        [answered, failed, self.unanswered]
    }

    /// Notes the number of answered attempts. Returns a time after which none has been answered.
    pub(super) fn look(&mut self, answered: u64, now: Unix) -> Unix {
        if self.seen.0 != answered {
            self.seen = (answered, now);
        }
        self.seen.1
    }
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
