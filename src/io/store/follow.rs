//! Follows the keys of a ledger: tells what has changed since the last look, and only where that cannot be known all
//! keys, piece by piece, so that neither the ledger's thread nor the loop is held up. Called by the threads of both
//! kinds of ledger.

use super::api::StoreError;
use crate::policy::keys::{KeyId, KeyNews, KeyRecord};

/// How far the changes of the keys have been read; by default nothing has been.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct KeysSeen {
    /// The number of the last change, and what tells it from another of that number; 0 where there was none yet.
    pub last: Option<(i64, String)>,
    /// The ledger that they are of: one that was begun again counts its changes from 0. Empty for a file.
    pub epoch: String,
    /// What is still the same as long as nothing has changed at all; of a file alone.
    pub version: i64,
}

/// What has changed of the keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KeyChanges {
    /// Nothing.
    None,
    /// These keys.
    These {
        /// As they are now.
        records: Vec<KeyRecord>,
        /// There are none of these ids any more.
        gone: Vec<KeyId>,
        /// More has changed than is told at once.
        more: bool,
    },
    /// That is not known: all keys have to be read.
    Unknown,
}

/// Where the keys are followed.
pub trait KeySource {
    /// What has changed since `seen`, which moves on.
    fn key_changes(&mut self, seen: &mut KeysSeen) -> Result<KeyChanges, StoreError>;
    /// The next keys of all, from `cursor` on, which is empty at the beginning and at the end. A key that is changed
    /// meanwhile may come twice, or as it was.
    fn key_piece(&mut self, cursor: &mut String) -> Result<Vec<KeyRecord>, StoreError>;
    /// What was passed over since this was called last, as texts for an operator.
    fn take_odd(&mut self) -> Vec<String>;
}

/// How far a thread has read.
#[derive(Debug, Default)]
pub(super) struct Follower {
    seen: KeysSeen,
    /// More has changed than the last look has told.
    more: bool,
    /// All keys are being read, up to here; empty at the beginning.
    cursor: Option<String>,
}

impl Follower {
    /// One that has read all keys when the changes stood as `seen` says; by default none.
    pub(super) fn new(seen: KeysSeen) -> Follower {
        Follower { seen, ..Follower::default() }
    }

    /// What is the same as long as nothing at all has changed in a file; see [`KeysSeen::version`].
    pub(super) fn version(&self) -> i64 {
        self.seen.version
    }

    /// The number of the last change that was read.
    #[cfg(feature = "redis")]
    pub(super) fn number(&self) -> i64 {
        self.seen.last.as_ref().map_or(0, |(number, _)| *number)
    }

    /// True if the next look comes soon: there is more to be read than one look takes.
    pub(super) fn is_reading(&self) -> bool {
        self.more || self.cursor.is_some()
    }

    /// Looks for changes, and reads on where all keys are being read.
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
        let records = source.key_piece(cursor)?;
        let ends = cursor.is_empty();
        tell(KeyNews::Piece { records, begins, ends });
        if ends {
            self.cursor = None;
        }
        Ok(())
    }
}
