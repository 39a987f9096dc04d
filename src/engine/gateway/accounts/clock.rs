//! Checks whether the wall clock is plausible. It is not if it is more than five minutes behind the newest usage record
//! or the build date: then nothing is admitted, since keys and limits depend on the time. Owns both dates. Must never
//! read a clock.

use crate::base::limits::CLOCK_BEHIND_MAX;
use crate::base::time::{Mono, Now, Unix};
use std::time::Duration;

/// Time between two checks of a clock that is behind.
const CLOCK_LOOK: Duration = Duration::from_secs(1);

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct ClockGuard {
    /// Time of admission of the newest usage record.
    newest: Unix,
    /// The build date.
    built: Unix,
    /// No earlier time is accepted.
    earliest: Unix,
    /// True if the clock was behind at the last check.
    behind: bool,
    /// The check that found it behind first.
    pub(crate) behind_since: Mono,
    /// Time of the next check; `NEVER` while the clock is right.
    pub(crate) due: Mono,
}

impl ClockGuard {
    /// Returns a guard for a clock that has not been checked.
    pub(crate) fn new(newest: Unix, built: Unix) -> ClockGuard {
        let mut guard =
            ClockGuard { newest, built, earliest: Unix(0), behind: false, behind_since: Mono(0), due: Mono::NEVER };
        guard.bound();
        guard
    }

    fn bound(&mut self) {
        let newest = self.newest.max(self.built).0;
        self.earliest = Unix(newest.saturating_sub(CLOCK_BEHIND_MAX.as_millis() as u64));
    }

    /// Notes the usage record of a request that was admitted at this time.
    #[inline]
    pub(crate) fn recorded(&mut self, admitted: Unix) {
        if admitted > self.newest {
            self.newest = admitted;
            self.bound();
        }
    }

    /// Notes the newest usage record in the ledger. `accepted`: an operator has accepted the present time, so earlier
    /// records no longer count.
    pub(crate) fn note_newest(&mut self, newest: Unix, accepted: bool) {
        self.newest = if accepted { newest } else { self.newest.max(newest) };
        self.bound();
    }

    /// True if the clock is plausible, by `now` and the last check.
    #[inline]
    pub(crate) fn is_right(&self, now: Unix) -> bool {
        now >= self.earliest && !self.behind
    }

    /// Checks the clock; true if the result has changed.
    pub(crate) fn look(&mut self, now: Now) -> bool {
        let behind = now.unix < self.earliest;
        self.due = if behind { now.mono.after(CLOCK_LOOK) } else { Mono::NEVER };
        if behind && !self.behind {
            self.behind_since = now.mono;
        }
        std::mem::replace(&mut self.behind, behind) != behind
    }

    /// True if it was behind at the last check.
    pub(crate) fn is_behind(&self) -> bool {
        self.behind
    }

    /// The newest usage record and the build date.
    pub(crate) fn dates(&self) -> [Unix; 2] {
        [self.newest, self.built]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60_000;

    fn at(minutes: u64) -> Now {
        Now { mono: Mono(7), unix: Unix(minutes * MINUTE) }
    }

    #[test]
    fn clock_is_behind_by_more_than_five_minutes() {
        for (newest, built) in [(100, 0), (100, 30), (30, 100)] {
            let mut guard = ClockGuard::new(Unix(newest * MINUTE), Unix(built * MINUTE));
            assert!(guard.is_right(Unix(95 * MINUTE)) && !guard.is_right(Unix(95 * MINUTE - 1)));
            assert!(!guard.look(at(95)) && guard.due == Mono::NEVER);
            assert!(guard.look(at(94)) && guard.is_behind() && guard.due == Mono(1_000_007));
            assert!(!guard.look(at(0)) && !guard.is_right(Unix(100 * MINUTE)));
            assert!(guard.look(at(95)) && guard.is_right(Unix(95 * MINUTE)) && guard.due == Mono::NEVER);
        }
    }

    #[test]
    fn only_an_accepted_time_is_earlier_than_the_newest_record() {
        let mut guard = ClockGuard::new(Unix(0), Unix(10 * MINUTE));
        guard.recorded(Unix(200 * MINUTE));
        guard.recorded(Unix(100 * MINUTE));
        guard.note_newest(Unix(150 * MINUTE), false);
        assert!(guard.look(at(194)));
        guard.note_newest(Unix(100 * MINUTE), true);
        assert!(guard.look(at(95)));
        guard.note_newest(Unix(0), true);
        assert!(guard.look(at(4)), "the build date counts in any case");
    }
}
