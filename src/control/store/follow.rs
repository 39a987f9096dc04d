//! Follows the keys of a ledger. Reports the changes since the last look. Only if these are unknown, it reports all
//! keys, in pieces, so that neither the ledger's thread nor the event loop is blocked. Called by the threads of both
//! kinds of ledger.

use super::api::StoreError;
use crate::policy::keys::{KeyId, KeyNews, KeyRecord};

/// Position up to which the changes of the keys have been read; by default the beginning.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct KeysSeen {
    /// Number of the last change, and a text that distinguishes it from another change with that number. 0 if there was
    /// no change yet.
    pub last: Option<(i64, String)>,
    /// Id of the ledger: a ledger that was created again counts its changes from 0. Empty for a file.
    pub epoch: String,
    /// Version that is constant until anything changes; only of a file.
    pub version: i64,
}

/// Changes of the keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KeyChanges {
    /// No change.
    None,
    /// These keys.
    These {
        /// Present records of changed keys.
        records: Vec<KeyRecord>,
        /// Ids of keys that no longer exist.
        gone: Vec<KeyId>,
        /// There are more changes than one look returns.
        more: bool,
    },
    /// The changes are unknown: all keys must be read.
    Unknown,
}

/// Ledger whose keys are followed.
pub trait KeySource {
    /// Returns the changes since `seen`, and advances it.
    fn key_changes(&mut self, seen: &mut KeysSeen) -> Result<KeyChanges, StoreError>;
    /// Returns the next piece of all keys, from `cursor` on, which is empty at the beginning and at the end. A key that
    /// changes meanwhile may be returned twice, or in its old state.
    fn key_piece(&mut self, cursor: &mut String) -> Result<Vec<KeyRecord>, StoreError>;
    /// Returns a text for the operator about each entry skipped since the last call.
    fn take_odd(&mut self) -> Vec<String>;
}

/// Reading position of a thread.
#[derive(Debug, Default)]
pub(super) struct Follower {
    seen: KeysSeen,
    /// There are more changes than the last look returned.
    more: bool,
    /// Position while all keys are being read; empty at the beginning.
    cursor: Option<String>,
}

impl Follower {
    /// Creates a follower that has read all keys and the changes up to `seen`; by default none.
    pub(super) fn new(seen: KeysSeen) -> Follower {
        Follower { seen, ..Follower::default() }
    }

    /// Numbers that are constant until anything changes: the version of a file, and the last change that was read.
    pub(super) fn number(&self) -> (i64, i64) {
        (self.seen.version, self.seen.last.as_ref().map_or(0, |(number, _)| *number))
    }

    /// True if the next look must follow soon, because there is more to read.
    pub(super) fn is_reading(&self) -> bool {
        self.more || self.cursor.is_some()
    }

    /// Looks for changes, and reads the next piece if all keys are being read.
    pub(super) fn look(
        &mut self,
        source: &mut impl KeySource,
        tell: &mut dyn FnMut(KeyNews),
    ) -> Result<(), StoreError> {
        self.more = false;
        match source.key_changes(&mut self.seen)? {
            KeyChanges::None => {}
            KeyChanges::These { records, gone, more } => {
                self.more = more;
                tell(KeyNews::Changed(records, gone));
            }
            KeyChanges::Unknown => self.cursor = Some(String::new()),
        }
        let Some(cursor) = &mut self.cursor else { return Ok(()) };
        let begins = cursor.is_empty();
        // After an error another server may answer, at which a position means nothing: all keys are read again.
        let records = source.key_piece(cursor).inspect_err(|_| cursor.clear())?;
        let ends = cursor.is_empty();
        tell(KeyNews::Piece { records, begins, ends });
        if ends {
            self.cursor = None;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A source with two pieces of keys, whose second one fails once.
    #[derive(Default)]
    struct Failing {
        asked: Vec<String>,
        failed: bool,
    }

    impl KeySource for Failing {
        fn key_changes(&mut self, _: &mut KeysSeen) -> Result<KeyChanges, StoreError> {
            Ok(if self.asked.is_empty() { KeyChanges::Unknown } else { KeyChanges::None })
        }
        fn key_piece(&mut self, cursor: &mut String) -> Result<Vec<KeyRecord>, StoreError> {
            self.asked.push(cursor.clone());
            if cursor == "second" && !std::mem::replace(&mut self.failed, true) {
                return Err(StoreError::Interrupted("the ledger".to_string()));
            }
            *cursor = String::from(if cursor.is_empty() { "second" } else { "" });
            Ok(Vec::new())
        }
        fn take_odd(&mut self) -> Vec<String> {
            Vec::new()
        }
    }

    #[test]
    fn all_keys_are_read_from_the_beginning_after_an_error() {
        let (mut source, mut follower, mut pieces) = (Failing::default(), Follower::default(), Vec::new());
        for _ in 0..4 {
            let mut tell = |news| {
                if let KeyNews::Piece { begins, ends, .. } = news {
                    pieces.push((begins, ends));
                }
            };
            let _ = follower.look(&mut source, &mut tell);
        }
        assert_eq!(source.asked, ["", "second", "", "second"]);
        assert_eq!(pieces, [(true, false), (true, false), (false, true)]);
        assert!(!follower.is_reading());
    }
}
