//! Limits log lines of requests without a valid key: such requests are free, so anyone could fill a disk with them. At
//! most [`STRANGER_LINES_PER_SECOND`] are written within any second. Further lines are counted, and reported in one
//! line per second.

use crate::base::limits::STRANGER_LINES_PER_SECOND;
use crate::base::time::Mono;
use std::collections::VecDeque;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

/// Lines of requests without a valid key within the last second.
#[derive(Debug, Default)]
pub(crate) struct StrangerLog {
    /// Times of written lines, oldest first; at most [`STRANGER_LINES_PER_SECOND`].
    written: VecDeque<Mono>,
    /// Lines that were not written and are not reported yet.
    suppressed: u64,
    /// Time of that report.
    due: Mono,
}

impl StrangerLog {
    /// True if one more line may be written; counts it.
    pub(crate) fn takes(&mut self, now: Mono) -> bool {
        if self.written.len() == STRANGER_LINES_PER_SECOND {
            match self.written.front() {
                Some(oldest) if oldest.after(SECOND) <= now => drop(self.written.pop_front()),
                _ => {
                    if self.suppressed == 0 {
                        self.due = now.after(SECOND);
                    }
                    self.suppressed += 1;
                    return false;
                }
            }
        }
        self.written.push_back(now);
        true
    }

    /// Takes the number of lines that were not written since the last call.
    pub(crate) fn take_suppressed(&mut self) -> u64 {
        std::mem::take(&mut self.suppressed)
    }

    /// Time at which suppressed lines are reported; `NEVER` if there are none.
    #[inline]
    pub(crate) fn due(&self) -> Mono {
        if self.suppressed == 0 { Mono::NEVER } else { self.due }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests every millisecond, with pauses before and across the boundaries of seconds.
    #[test]
    fn lines_per_second_are_bounded_in_any_second() {
        let mut log = StrangerLog::default();
        let at = |millis: u64| Mono(millis * 1000);
        let asked = (5_900..7_000).chain(7_950..9_300).chain(20_000..20_050);
        let written: Vec<u64> = asked.filter(|millis| log.takes(at(*millis))).collect();
        for end in 0..written.len() {
            let within = written[..=end].iter().filter(|millis| **millis + 1000 > written[end]).count();
            assert!(within <= STRANGER_LINES_PER_SECOND, "{within} within the second to {} ms", written[end]);
        }
        let in_second = |second: u64| written.iter().filter(|millis| **millis / 1000 == second).count();
        assert_eq!([5, 6, 7, 8, 20].map(in_second), [100, 100, 50, 100, 50], "no line less than are allowed");
    }

    #[test]
    fn suppressed_lines_are_reported_within_a_second() {
        let mut log = StrangerLog::default();
        let taken = (0..1000).filter(|part| log.takes(Mono(5_000_000 + part * 100))).count();
        assert_eq!((taken, log.due()), (STRANGER_LINES_PER_SECOND, Mono(6_010_000)));
        assert_eq!(log.take_suppressed(), 900);
        assert_eq!(log.due(), Mono::NEVER);
    }
}
