//! Long work of the ledger's thread in slices. On a machine of one core the loop waits for as long as this thread works
//! in one go, and two thousand rows are a millisecond: what the slowest of a hundred requests then wait for. A rest
//! between slices gives the core away; the transaction stays open meanwhile, some milliseconds at most.

use crate::base::limits::{ROWS_PER_SLICE, SLICE_REST};

/// Rests after every so many pieces of work.
#[derive(Debug, Default)]
pub(super) struct Pace(usize);

impl Pace {
    /// One more piece, a row or a sum, is about to be worked on.
    pub(super) fn step(&mut self) {
        self.0 += 1;
        if self.0 > ROWS_PER_SLICE {
            self.0 = 1;
            std::thread::sleep(SLICE_REST);
        }
    }
}
