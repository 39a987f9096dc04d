//! What the gateway knows of its ledger: rows on their way, how long the oldest has waited, whether rows are taken at
//! all. The ledger itself lives with the store thread.

use crate::base::time::Mono;
use std::collections::VecDeque;
use std::time::Duration;

/// Batches that are told apart; rows beyond it are counted with the newest.
const BATCHES_MAX: usize = 1024;

/// Rows handed over and not yet known to be safe.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    given: u64,
    committed: u64,
    /// (rows given up to and with this batch, when its first row was given), oldest first.
    waiting: VecDeque<(u64, Mono)>,
    failed: bool,
}

impl Ledger {
    /// One more row has been given.
    pub(crate) fn gave(&mut self, now: Mono) {
        self.given += 1;
        let full = self.waiting.len() >= BATCHES_MAX;
        match self.waiting.back_mut() {
            Some((upto, at)) if full || *at == now => *upto = self.given,
            _ => self.waiting.push_back((self.given, now)),
        }
    }

    /// `rows` more are safe.
    pub(crate) fn committed(&mut self, rows: u64) {
        self.committed += rows;
        while self.waiting.front().is_some_and(|(upto, _)| *upto <= self.committed) {
            self.waiting.pop_front();
        }
    }

    /// The store says that it cannot write, or that it can again.
    pub(crate) fn failed(&mut self, failed: bool) {
        self.failed = failed;
    }

    /// Whether another request may be admitted: nothing is let through unmetered (contract section 5).
    pub(crate) fn takes_rows(&self, now: Mono, max_lag: Duration) -> bool {
        !self.failed && self.waiting.front().is_none_or(|(_, at)| at.after(max_lag) >= now)
    }

    /// Rows not yet known to be safe.
    pub(crate) fn uncommitted(&self) -> u64 {
        self.given - self.committed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn admission_stops_when_the_oldest_row_has_waited_too_long_and_resumes() {
        let (mut ledger, lag) = (Ledger::default(), Duration::from_micros(10));
        ledger.gave(Mono(0));
        ledger.gave(Mono(5));
        assert!(ledger.takes_rows(Mono(10), lag));
        assert!(!ledger.takes_rows(Mono(11), lag));
        ledger.committed(1);
        assert!(ledger.takes_rows(Mono(15), lag));
        assert!(!ledger.takes_rows(Mono(16), lag));
        ledger.committed(1);
        assert!(ledger.takes_rows(Mono(1000), lag));
        assert_eq!(ledger.uncommitted(), 0);
        ledger.failed(true);
        assert!(!ledger.takes_rows(Mono(1000), lag));
    }
}
