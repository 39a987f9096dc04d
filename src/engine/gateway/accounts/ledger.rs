//! State of the ledger as the gateway knows it: pending usage records, the delay of the oldest, and whether records are
//! accepted at all. The ledger itself is owned by the store thread.

use crate::base::limits::COMMIT_TICK;
use crate::base::time::{Mono, Unix};
use crate::gateway::ids::ExchangeId;
use std::collections::VecDeque;
use std::time::Duration;

/// Maximum number of batches that are counted separately; further rows count with the newest.
const BATCHES_MAX: usize = 1024;

/// Rows handed over and not yet known to be committed.
#[derive(Debug, Default)]
pub(crate) struct PendingRows {
    /// Microseconds for which rows wait for their commit by configuration.
    delay: u64,
    given: u64,
    pub(crate) committed: u64,
    /// Batches, oldest first: (rows passed on up to and including this batch, due time of the commit of its first row).
    waiting: VecDeque<(u64, Mono)>,
    /// Exchanges whose answer's end waits for the row with this number, in the order of these numbers.
    pub(crate) held: VecDeque<(u64, ExchangeId)>,
    /// Reason why the store cannot write, and the time of its report.
    failed: Option<(String, Unix)>,
}

impl PendingRows {
    /// Returns the state for a ledger whose rows are committed every `commit_every`.
    pub(crate) fn new(commit_every: Duration) -> PendingRows {
        let delay = commit_every.saturating_sub(COMMIT_TICK).as_micros() as u64;
        PendingRows { delay, ..PendingRows::default() }
    }

    /// Deallocates the storage of queues that are empty.
    pub(crate) fn trim(&mut self) {
        if self.waiting.is_empty() && self.held.is_empty() {
            (self.waiting, self.held) = Default::default();
        }
    }

    /// Counts one more row; returns its number.
    pub(crate) fn gave(&mut self, now: Mono) -> u64 {
        self.given += 1;
        let due = Mono(now.0 + self.delay);
        let full = self.waiting.len() >= BATCHES_MAX;
        match self.waiting.back_mut() {
            Some((upto, at)) if full || *at == due => *upto = self.given,
            _ => self.waiting.push_back((self.given, due)),
        }
        self.given
    }

    /// Holds back the end of `xid`'s answer until the row with this number is committed.
    pub(crate) fn hold_back(&mut self, row: u64, xid: ExchangeId) {
        debug_assert!(self.held.back().is_none_or(|(last, _)| *last < row));
        self.held.push_back((row, xid));
    }

    /// True if the row with this number is committed.
    pub(crate) fn is_safe(&self, number: u64) -> bool {
        number <= self.committed
    }

    /// Takes the next exchange whose row is committed.
    pub(crate) fn next_safe(&mut self) -> Option<ExchangeId> {
        let (row, _) = self.held.front()?;
        if *row <= self.committed { self.held.pop_front().map(|(_, xid)| xid) } else { None }
    }

    /// Counts `rows` more as committed.
    pub(crate) fn committed(&mut self, rows: u64) {
        self.committed += rows;
        while self.waiting.front().is_some_and(|(upto, _)| *upto <= self.committed) {
            self.waiting.pop_front();
        }
    }

    /// The store reports that it cannot write, with the reason.
    pub(crate) fn failed(&mut self, why: String, now: Unix) {
        let since = self.failed.take().map_or(now, |(_, since)| since);
        self.failed = Some((why, since));
    }

    /// The store can write again.
    pub(crate) fn recovered(&mut self) {
        self.failed = None;
    }

    /// True if the store has reported that it cannot write.
    #[inline]
    pub(crate) fn is_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// The reason why the store cannot write, and since when.
    pub(crate) fn failure(&self) -> Option<&(String, Unix)> {
        self.failed.as_ref()
    }

    /// True if another request may be admitted: no request is admitted unless its usage can be recorded.
    #[inline]
    pub(crate) fn takes_rows(&self, now: Mono, max_lag: Duration) -> bool {
        self.failed.is_none() && self.waiting.front().is_none_or(|(_, at)| at.after(max_lag) >= now)
    }

    /// Microseconds by which the commit of the oldest uncommitted row is late.
    pub(crate) fn lag(&self, now: Mono) -> u64 {
        self.waiting.front().map_or(0, |(_, at)| now.micros_since(*at))
    }

    /// Number of rows not yet known to be committed.
    pub(crate) fn uncommitted(&self) -> u64 {
        self.given - self.committed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_is_released_when_its_row_and_all_before_are_committed() {
        let (mut ledger, ids) = (PendingRows::default(), [1, 2, 3].map(|slot| ExchangeId::new(slot, 0)));
        let rows = ids.map(|_| ledger.gave(Mono(1)));
        ledger.hold_back(rows[0], ids[0]);
        ledger.hold_back(rows[2], ids[2]);
        assert_eq!(ledger.next_safe(), None);
        ledger.committed(2);
        assert_eq!((ledger.next_safe(), ledger.next_safe()), (Some(ids[0]), None));
        ledger.committed(1);
        assert_eq!((ledger.next_safe(), ledger.next_safe()), (Some(ids[2]), None));
    }

    #[test]
    fn admission_stops_when_the_oldest_row_has_waited_too_long_and_resumes() {
        let (mut ledger, lag) = (PendingRows::default(), Duration::from_micros(10));
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
        ledger.failed("full".to_string(), Unix(1));
        assert!(!ledger.takes_rows(Mono(1000), lag));
    }

    #[test]
    fn commit_lag_counts_from_when_the_commit_was_due() {
        let lag = Duration::from_secs(5);
        let mut ledger = PendingRows::new(Duration::from_secs(10) + COMMIT_TICK);
        ledger.gave(Mono(1_000_000));
        assert!(ledger.takes_rows(Mono(16_000_000), lag) && !ledger.takes_rows(Mono(16_000_001), lag));
        assert_eq!((ledger.lag(Mono(9_000_000)), ledger.lag(Mono(11_000_007))), (0, 7));
    }
}
