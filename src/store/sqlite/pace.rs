//! Slices of long work of the ledger's thread. On a machine with one core the event loop waits for as long as this
//! thread works without a pause, and four thousand rows take a millisecond, which then adds to the 99th percentile of
//! latency. A pause between slices yields the core. The transaction stays open meanwhile, some milliseconds at most.

use crate::base::limits::{ROWS_PER_SLICE, SLICE_REST};

/// Pauses after a fixed number of pieces of work.
#[derive(Debug, Default)]
pub(super) struct Pace(usize);

impl Pace {
    /// Counts one more piece, a row or a sum, before it is processed.
    pub(super) fn step(&mut self) {
        self.0 += 1;
        if self.0 > ROWS_PER_SLICE {
            self.0 = 1;
            std::thread::sleep(SLICE_REST);
        }
    }
}
