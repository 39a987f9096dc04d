//! The common part of the threads of both kinds of ledger: they follow the keys and the clocks, and tell the event loop
//! whether the ledger works.

use super::api::StoreError;
use super::follow::{Follower, KeySource, KeysSeen};
use super::writer_clocks::{FoldGuard, WriterClocks};
use super::written::Written;
use crate::base::time::Unix;
use crate::policy::keys::{KeyId, KeyRecord};
use crate::policy::ledger::Ask;
use crate::policy::ledger::LedgerNotice;
use crate::policy::row::Row;
use crate::store::bounds;
use std::collections::HashSet;

/// Ledger that a thread watches.
pub trait WatchedLedger: KeySource {
    /// Returns the records of these keys that exist and are readable, in any order.
    fn find_keys(&mut self, ids: &[KeyId]) -> Result<Vec<KeyRecord>, StoreError>;
    /// Folds at most `max` rows admitted before `before` into the sums of their days. Returns their number.
    fn fold(&mut self, before: Unix, max: usize) -> Result<u64, StoreError>;
    /// Returns the ledger's knowledge about the clocks of its writers.
    fn writer_clocks(&mut self) -> Result<WriterClocks, StoreError>;
    /// Stores [`WriterClocks::held`] in the ledger.
    fn hold_fold(&mut self, held: Option<Unix>) -> Result<(), StoreError>;
}

/// Methods that the store thread calls on a ledger.
pub trait Store: WatchedLedger + Send + 'static {
    /// Appends rows and adds them to every sum, all of it or none.
    fn append(&mut self, rows: &[Row]) -> Result<Written, StoreError>;
    /// Makes all commits durable against a power cut, if they are not yet.
    fn sync(&mut self) -> Result<(), StoreError> {
        Ok(())
    }
    /// Fails if the open file is no longer the one that a restart would open.
    fn check(&self) -> Result<(), StoreError>;
    /// Releases the ledger to another gateway, even if it returns an error: the ledger may be damaged then. Only
    /// [`Store::retake`] may be called after it.
    fn release(&mut self) -> Result<(), StoreError>;
    /// Takes the ledger back. Does nothing if it was not released.
    fn retake(&mut self) -> Result<(), StoreError>;
    /// Appends the rows whose request ids are not in the ledger yet.
    fn append_missing(&mut self, rows: &[Row]) -> Result<Written, StoreError>;
    /// Writes the promises of these questions, which the rows of their requests replace.
    fn promise(&mut self, asks: &[Ask]) -> Result<(), StoreError>;
}

/// Error text for a thread that ended by a bug.
pub(super) const DIED: &str = "the thread of the ledger has died";

/// State of a thread about its ledger.
pub(super) struct Watch<F: Fn(LedgerNotice)> {
    /// Puts a notice into the loop's mailbox.
    pub(super) tell: F,
    pub(super) follower: Follower,
    pub(super) folding: FoldGuard,
    /// True if the last notice was [`LedgerNotice::Failed`].
    pub(super) failed: bool,
    /// Warnings sent so far.
    warned: HashSet<String>,
}

impl<F: Fn(LedgerNotice)> Drop for Watch<F> {
    /// Reports the death of the thread: admission must stop.
    fn drop(&mut self) {
        if std::thread::panicking() {
            (self.tell)(LedgerNotice::Failed(DIED.to_string()));
        }
    }
}

impl<F: Fn(LedgerNotice)> Watch<F> {
    /// `seen`: see [`super::Duties`].
    pub(super) fn new(seen: KeysSeen, folding: FoldGuard, tell: F) -> Watch<F> {
        Watch { tell, follower: Follower::new(seen), folding, failed: false, warned: HashSet::new() }
    }

    pub(super) fn succeeded(&mut self) {
        if std::mem::take(&mut self.failed) {
            (self.tell)(LedgerNotice::Recovered);
        }
    }

    pub(super) fn failed_with(&mut self, error: &StoreError) {
        if !std::mem::replace(&mut self.failed, true) {
            (self.tell)(LedgerNotice::Failed(error.to_string()));
        }
    }

    /// Sends a warning once.
    pub(super) fn warn(&mut self, text: String) {
        if self.warned.len() < bounds::ODD_ENTRIES_MAX && self.warned.insert(text.clone()) {
            (self.tell)(LedgerNotice::Warning(text));
        }
    }

    /// Warns of the records that were skipped, including those read at the start.
    pub(super) fn tell_odd(&mut self, db: &mut impl KeySource) {
        db.take_odd().into_iter().for_each(|text| self.warn(text));
    }

    /// Reports changes of the keys. True if something may have changed: an operator who accepts the clock counts, too.
    pub(super) fn look_at_keys(&mut self, db: &mut impl KeySource) -> Result<bool, StoreError> {
        let (tell, before) = (&self.tell, self.follower.number());
        self.follower.look(db, &mut |news| tell(LedgerNotice::Keys(news)))?;
        Ok(self.follower.number() != before)
    }

    /// Reads the ledger's knowledge about the clocks of its writers.
    pub(super) fn look_at_writer_clocks(&mut self, db: &mut impl WatchedLedger) -> Result<(), StoreError> {
        let (clocks, known) = (db.writer_clocks()?, self.folding.clocks.newest);
        let accepted = self.folding.learn(clocks);
        if accepted || clocks.newest > known {
            (self.tell)(LedgerNotice::Newest { at: clocks.newest, accepted });
        }
        Ok(())
    }

    /// Checks whether the clock is far ahead of the newest row.
    pub(super) fn judge_clock(&mut self, db: &mut impl WatchedLedger, now: Unix) -> Result<(), StoreError> {
        let judged = self.folding.judge(now);
        let held = judged.remember.map_or(Ok(()), |held| db.hold_fold(held));
        judged.warning.into_iter().for_each(|text| (self.tell)(LedgerNotice::Warning(text)));
        held
    }
}
