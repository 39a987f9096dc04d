//! Slices of long work of the ledger's thread. On a machine with one core the event loop waits for as long as this
//! thread works without a pause, and a commit of five hundred rows takes half a millisecond. A request under way waits
//! for each slice that begins before its end, and this adds to the 99th percentile of latency. So the pauses between
//! slices are longer than a request takes. The transaction stays open meanwhile, some milliseconds at most.

use crate::store::bounds::ROWS_PER_SLICE;
use std::time::Duration;

/// Longest pause between two steps of packing rows or updating sums: as long as a request takes while a busy loop has
/// thirty others.
const SLICE_REST: Duration = Duration::from_micros(500);
/// Such pauses together while the rows of a commit are packed. A kill loses these rows, and other processes wait for
/// the end of the commit.
const COMMIT_PAUSES: Duration = Duration::from_millis(4);

/// Microseconds of the longest pause, and of all pauses together.
const REST: u64 = SLICE_REST.as_micros() as u64;
const PAUSES: u64 = COMMIT_PAUSES.as_micros() as u64;

/// Pauses after a fixed number of pieces of work.
#[derive(Debug)]
pub(super) struct Pace {
    steps: usize,
    /// Microseconds; zero for work of one slice.
    pause: u64,
}

impl Pace {
    /// Returns the pace of this many pieces of work. The more there are, the shorter are the pauses.
    #[inline(never)]
    pub(super) fn for_pieces(pieces: usize) -> Pace {
        let pause = match pieces.saturating_sub(1) / ROWS_PER_SLICE {
            0 => 0,
            // One more before the commit.
            pauses => (PAUSES / (pauses as u64 + 1)).min(REST),
        };
        Pace { steps: 0, pause }
    }

    /// Counts one more piece, a row or a sum, before it is processed.
    pub(super) fn step(&mut self) {
        self.steps += 1;
        if self.steps > ROWS_PER_SLICE {
            self.steps = 1;
            self.rest();
        }
    }

    /// Pauses before a step that takes as long as a slice.
    #[inline(never)]
    pub(super) fn rest(&self) {
        if self.pause > 0 {
            std::thread::sleep(Duration::from_micros(self.pause));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::bounds::{ROWS_ENOUGH, ROWS_PER_COMMIT};
    use std::time::Instant;

    #[test]
    fn pauses_are_long_for_usual_work_and_bounded_for_all() {
        assert_eq!(Pace::for_pieces(ROWS_PER_SLICE).pause, 0);
        assert_eq!(Pace::for_pieces(ROWS_ENOUGH).pause, REST);
        for pieces in [ROWS_PER_SLICE + 1, ROWS_ENOUGH, ROWS_PER_COMMIT, 1_000_000] {
            let pauses = pieces.div_ceil(ROWS_PER_SLICE) as u64;
            assert!(Pace::for_pieces(pieces).pause * pauses <= PAUSES, "{pieces}");
        }
    }

    #[test]
    fn pause_follows_each_slice_except_the_last() {
        let began = Instant::now();
        let mut pace = Pace::for_pieces(3 * ROWS_PER_SLICE);
        (0..3 * ROWS_PER_SLICE).for_each(|_| pace.step());
        assert!(began.elapsed() >= 2 * SLICE_REST);
        assert_eq!(pace.steps, ROWS_PER_SLICE);
    }
}
