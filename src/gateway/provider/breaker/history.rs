//! History of a target for its status: counts at the end of each minute, and the last failures. A successful attempt
//! costs nothing here.

use crate::base::time::Unix;
use crate::policy::cause::Cause;
use crate::policy::counters::{AttemptEnd, TargetCounts};

/// Number of minutes whose counts are reported together, the current one included.
pub(super) const MINUTES: usize = 5;
/// Milliseconds without a failure after which a target is no longer failing, if its last attempts succeeded.
pub(super) const QUIET_MS: u64 = 30_000;

/// Failures of a target by its own fault, or by its provider's refusals, without such a pause between them.
#[derive(Copy, Clone, Debug)]
pub(crate) struct TargetTrouble {
    /// The first and the last failure.
    pub(crate) since: Unix,
    pub(crate) last: Unix,
    pub(crate) cause: Cause,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct TargetHistory {
    /// Answered and failed attempts at the beginning of the current minute, and of those before it.
    pub(super) past: [[u64; 2]; MINUTES],
    pub(super) trouble: Option<TargetTrouble>,
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
