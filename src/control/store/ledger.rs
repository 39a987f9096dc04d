//! Ledger of either kind, for commands: the SQLite file or the shared store, behind one interface.

use super::alert_claims::{AlertClaim, AlertReport};
use super::api::{Names, PastUse, Query, Renaming, StoreError, Taker, UsageLine, Verdict};
use super::note::{Answered, AuditLine, Note, edited};
#[cfg(feature = "redis")]
use super::remote::Remote;
use super::sqlite::Sqlite;
#[cfg(feature = "redis")]
use super::watch::WatchedLedger;
use super::writer_clocks::WriterClocks;
use crate::base::limits;
use crate::base::time::Unix;
use crate::policy::attribution::HashKey;
use crate::policy::keys::{KeyId, KeyRecord};
use crate::policy::row::Row;

/// Usage records that are searched for what the sums do not have, the newest first.
const RECENT_ROWS_MAX: usize = 100_000;

/// An open ledger.
pub enum Ledger {
    /// In a file.
    Sqlite(Box<Sqlite>),
    /// In Redis or Valkey.
    #[cfg(feature = "redis")]
    Remote(Box<Remote>),
}

/// Calls a method that both kinds of ledger have.
macro_rules! each {
    ($ledger:expr, $db:ident => $call:expr) => {
        match $ledger {
            Ledger::Sqlite($db) => $call,
            #[cfg(feature = "redis")]
            Ledger::Remote($db) => $call,
        }
    };
}

impl Ledger {
    /// Stores a new key with its audit line and answer. A known id or digest is an error.
    pub fn issue_key(&mut self, key: &KeyRecord, note: &Note<'_>) -> Result<(), StoreError> {
        each!(self, db => db.issue_key(key, note))
    }

    /// Returns at most `limit` keys, including expired and revoked ones, in the order of their creation: after the key
    /// `after`, with these names. If their texts have `bytes` bytes before, one more is the last. `None` if the key
    /// `after` does not exist.
    pub fn keys_page(
        &mut self,
        after: Option<&KeyId>,
        names: Names<'_>,
        most: (usize, usize),
    ) -> Result<Option<Vec<KeyRecord>>, StoreError> {
        each!(self, db => db.keys_page(after, names, most))
    }

    /// Returns the record of one key; `None` if there is no such key, or its record is unreadable.
    pub fn find_key(&mut self, id: &KeyId) -> Result<Option<KeyRecord>, StoreError> {
        self.find_keys(std::slice::from_ref(id)).map(|mut keys| keys.pop())
    }

    /// Returns the records of these keys that exist and can be read, in any order.
    pub fn find_keys(&mut self, ids: &[KeyId]) -> Result<Vec<KeyRecord>, StoreError> {
        each!(self, db => db.find_keys(ids))
    }

    /// Returns all keys of this name.
    pub fn keys_named(&mut self, name: &str) -> Result<Vec<KeyRecord>, StoreError> {
        each!(self, db => db.keys_named(name))
    }

    /// Passes all keys to `take`, page by page, in the order of their creation.
    pub fn each_key(&mut self, take: &mut dyn FnMut(KeyRecord)) -> Result<(), StoreError> {
        let mut after = None;
        while let Some(page) = self.keys_page(after.as_ref(), Names::default(), limits::KEYS_PAGE)? {
            let Some(last) = page.last() else { break };
            after = Some(last.id);
            page.into_iter().for_each(&mut *take);
        }
        Ok(())
    }

    /// Returns the key that users and conversations are hashed with.
    pub fn hash_key(&mut self) -> Result<HashKey, StoreError> {
        each!(self, db => db.hash_key())
    }

    /// Returns the answer given under an idempotency name within the last day.
    pub fn answered(&mut self, once: &str, now: Unix) -> Result<Option<Answered>, StoreError> {
        match self {
            Ledger::Sqlite(db) => db.answered(once, now),
            #[cfg(feature = "redis")]
            Ledger::Remote(db) => db.answered(once),
        }
    }

    /// Returns at most `most` lines of the audit, the newest first, without the first `from`. If their texts have
    /// `bytes` bytes before, one more is the last.
    pub fn audit(&mut self, from: u64, most: u64, bytes: usize) -> Result<Vec<AuditLine>, StoreError> {
        each!(self, db => db.audit(from, most, bytes))
    }

    /// Claims a subject of alerts for one attempt to deliver one. The claim ends with [`Ledger::release_alert`], or
    /// after [`super::bounds::ALERT_CLAIM`]. `holder` is a name that no other attempt has.
    pub fn claim_alert(&mut self, subject: &str, holder: &str, now: Unix) -> Result<AlertClaim, StoreError> {
        match self {
            Ledger::Sqlite(db) => db.claim_alert(subject, holder, now),
            #[cfg(feature = "redis")]
            Ledger::Remote(db) => db.claim_alert(subject, holder),
        }
    }

    /// Remembers the last report about a subject; `None`: forgets it, since the trouble is over.
    pub fn note_alert(&mut self, subject: &str, reported: Option<&AlertReport>, now: Unix) -> Result<(), StoreError> {
        match self {
            Ledger::Sqlite(db) => db.note_alert(subject, reported, now),
            #[cfg(feature = "redis")]
            Ledger::Remote(db) => db.note_alert(subject, reported),
        }
    }

    /// Gives a claim back.
    pub fn release_alert(&mut self, subject: &str, holder: &str) -> Result<(), StoreError> {
        each!(self, db => db.release_alert(subject, holder))
    }

    /// Returns the ledger's knowledge about the clocks of its writers.
    pub fn writer_clocks(&mut self) -> Result<WriterClocks, StoreError> {
        each!(self, db => db.writer_clocks())
    }

    /// Accepts the present time, with a line of the audit.
    pub fn accept_clock(&mut self, now: Unix, line: &AuditLine) -> Result<(), StoreError> {
        each!(self, db => db.accept_clock(now, line))
    }

    /// Continues folding in spite of the gap after this usage record, with a line of the audit.
    pub fn confirm_fold(&mut self, newest: Unix, line: &AuditLine) -> Result<(), StoreError> {
        each!(self, db => db.confirm_fold(newest, line))
    }

    /// Lets `change` edit the record of a key, excluding other processes meanwhile. `None` if there is no such key;
    /// otherwise the result of `change`. Nothing is stored unless it is `Ok`.
    pub fn edit_key<E>(
        &mut self,
        id: &KeyId,
        note: &Note<'_>,
        change: impl FnMut(&mut KeyRecord) -> Result<(), E>,
    ) -> Result<Option<Result<KeyRecord, E>>, StoreError> {
        edited(change, |change| match self {
            Ledger::Sqlite(db) => db.edit(id, Some(note), change),
            #[cfg(feature = "redis")]
            Ledger::Remote(db) => db.edit(id, note, change),
        })
    }

    /// Returns the usage report over whole UTC days, from the sums.
    pub fn usage(&mut self, query: &Query) -> Result<Vec<UsageLine>, StoreError> {
        self.usage_merged(query, None)
    }

    /// Returns the usage report; names other than those of users and sessions are mapped by `renaming`.
    pub fn usage_merged(
        &mut self,
        query: &Query,
        renaming: Option<Renaming<'_>>,
    ) -> Result<Vec<UsageLine>, StoreError> {
        each!(self, db => db.usage(query, renaming))
    }

    /// Recomputes every counter from the rows and compares.
    pub fn verify(&mut self) -> Result<Verdict, StoreError> {
        each!(self, db => db.verify())
    }

    /// Passes every entry to `take`, oldest first: the sums of folded rows, then the rows in the order in which they
    /// were committed.
    pub fn export(&mut self, take: Taker<'_>) -> Result<(), StoreError> {
        each!(self, db => db.export(take))
    }

    /// Passes data of every row admitted at `since` or later to `take`; of a shared ledger only of its newest rows.
    pub fn each_since(&mut self, since: Unix, take: &mut dyn FnMut(PastUse)) -> Result<(), StoreError> {
        match self {
            Ledger::Sqlite(db) => db.each_since(since, take),
            #[cfg(feature = "redis")]
            Ledger::Remote(_) => self.recent_rows(&mut |row| {
                if row.admitted >= since {
                    take(PastUse::from(row));
                }
                true
            }),
        }
    }

    /// Passes the newest rows to `take`, newest first, until it returns false: at most `RECENT_ROWS_MAX`.
    pub fn recent_rows(&mut self, take: &mut dyn FnMut(Row) -> bool) -> Result<(), StoreError> {
        let mut left = RECENT_ROWS_MAX;
        let mut take = |row: Row| {
            left -= 1;
            take(row) && left > 0
        };
        each!(self, db => db.recent_rows(&mut take))
    }
}
