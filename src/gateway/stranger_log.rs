//! Limits log lines of requests without a valid key: such requests cost nothing, so that anyone could fill a disk by
//! them. Lines beyond the limit are counted, and reported in one line a second.

use crate::base::limits::STRANGER_LINES_PER_SECOND;
use crate::base::time::Mono;

const SECOND: u64 = 1_000_000;

/// Such lines in the present second of the monotonic clock.
#[derive(Debug, Default)]
pub(crate) struct StrangerLog {
    second: u64,
    written: u32,
    /// Lines that were not written and have not been reported.
    suppressed: u64,
}

impl StrangerLog {
    /// True if one more line may be written; counts it.
    pub(crate) fn takes(&mut self, now: Mono) -> bool {
        let second = now.0 / SECOND;
        if second != self.second {
            (self.second, self.written) = (second, 0);
        }
        let takes = self.written < STRANGER_LINES_PER_SECOND;
        match takes {
            true => self.written += 1,
            false => self.suppressed += 1,
        }
        takes
    }

    /// Takes the number of lines that were not written since the last call.
    pub(crate) fn take_suppressed(&mut self) -> u64 {
        std::mem::take(&mut self.suppressed)
    }

    /// When the unwritten lines are reported; `NEVER` if there are none.
    #[inline]
    pub(crate) fn due(&self) -> Mono {
        if self.suppressed == 0 { Mono::NEVER } else { Mono((self.second + 1) * SECOND) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_second_takes_so_many_lines() {
        let mut log = StrangerLog::default();
        for second in [5u64, 6, 9] {
            let at = |part: u64| Mono(second * SECOND + part * SECOND / 1000);
            let taken = (0..1000).filter(|part| log.takes(at(*part))).count();
            assert_eq!(taken as u32, STRANGER_LINES_PER_SECOND);
            assert_eq!(log.due(), at(1000));
            assert_eq!(log.take_suppressed(), 1000 - u64::from(STRANGER_LINES_PER_SECOND));
            assert_eq!(log.due(), Mono::NEVER);
        }
    }
}
