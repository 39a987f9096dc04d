//! Owns the ledger's file: keys, one row per request, and sums by day, in SQLite with a write-ahead log (WAL). The rows
//! of one commit are stored together (`groups`), and the sums may lag some rows behind (`tally`). The views `rows` and
//! `sums` show single rows and up-to-date sums.
//!
//! Called by the store thread and by the command line, which works on the same file while a gateway runs.
//!
//! **Cost of a power cut.** A commit survives the death of the process at any moment. With `synchronous = NORMAL`
//! (durability write-behind) commits since the last checkpoint or [`super::Store::sync`] may be lost when the
//! machine loses power; the file stays consistent. With `FULL` (before-reply, and every command) each commit is on disk
//! when it returns.

mod alert_claims;
mod audit;
mod changes;
mod compact;
mod groups;
mod handover;
mod notes;
mod pace;
mod past;
mod people;
mod promises;
mod report;
mod tables;
mod tally;
mod value;
mod writer_clocks;

use super::alert_claims::{AlertClaim, AlertReport};
use super::api::{Names, PastUse, StoreError, TargetUse};
use super::keyform;
use super::lock::{self, FileLock};
use super::note::{Answered, AuditLine, Change, Note};
use super::watch::WatchedLedger;
use super::writer_clocks::WriterClocks;
use crate::base::digest::hex;
use crate::base::limits;
use crate::base::time::Unix;
use crate::io::entropy::random;
use crate::io::files::FileDraft;
use crate::policy::attribution::HashKey;
use crate::policy::keys::{KeyId, KeyRecord, Scope};
use crate::policy::row::Row;
use crate::store::bounds;
use groups::Packer;
use pace::Pace;
use promises::Promised;
use rusqlite::{Connection, OptionalExtension, Params, TransactionBehavior, params};
use std::cell::RefCell;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// SQLite's cache in KiB while a gateway reads its ledger at the start.
const LEDGER_START_KIB: i64 = 32;
pub(super) use tables::{APPLICATION, COPY};
use tally::Tally;
use value::{Fallible, int, key_id, uint};

const SELECT_KEY: &str = "SELECT id, digest, name, plan, endpoints, models, created, expires, revoked, former,
    disabled, limits, grp, labels, capture FROM keys WHERE id = ?1";
const SELECT_PAGE: &str = "SELECT id, digest, name, plan, endpoints, models, created, expires, revoked, former,
    disabled, limits, grp, labels, capture FROM keys INDEXED BY keys_created
    WHERE (created, id) > (?1, ?2) AND substr(name, 1, length(?3)) = ?3
    AND (length(name) = length(?3) OR NOT ?4) ORDER BY created, id LIMIT ?5";
const SELECT_NAMED: &str = "SELECT id, digest, name, plan, endpoints, models, created, expires, revoked, former,
    disabled, limits, grp, labels, capture FROM keys WHERE name = ?1 ORDER BY created, id";
const SELECT_PIECE: &str = "SELECT id, digest, name, plan, endpoints, models, created, expires, revoked, former,
    disabled, limits, grp, labels, capture FROM keys WHERE id > CAST(?1 AS TEXT) ORDER BY id LIMIT ?2";
const INSERT_KEY: &str =
    "INSERT INTO keys (id, digest, name, plan, endpoints, models, created, expires, revoked, former,
    disabled, limits, grp, labels, capture) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)";
const UPDATE_KEY: &str = "UPDATE keys SET digest = ?2, name = ?3, plan = ?4, endpoints = ?5, models = ?6, created = ?7,
    expires = ?8, revoked = ?9, former = ?10, disabled = ?11, limits = ?12, grp = ?13,
    labels = ?14, capture = ?15 WHERE id = ?1";

/// Bytes of a page of the file, unless the configuration says otherwise.
pub const PAGE_SIZE: u32 = 4096;

/// Kind of process that opens the file.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Mode {
    /// A gateway: only one at a time.
    Owner,
    /// A command, with or without a running gateway.
    Shared,
}

/// An open ledger.
pub struct Sqlite {
    connection: Connection,
    path: PathBuf,
    packer: Packer,
    tally: Tally,
    promised: Promised,
    odd: Odd,
    /// Lock of an owner. Declared after the connection, which must be closed first.
    lock: Option<FileLock>,
}

impl Sqlite {
    /// Opens the file, creates it (mode 0600, in a folder of mode 0700) if it does not exist, and creates its tables.
    /// An owner locks the file first. Starts with `synchronous = FULL`.
    pub fn open(path: &Path, mode: Mode) -> Result<Sqlite, StoreError> {
        Sqlite::open_sized(path, mode, PAGE_SIZE)
    }

    /// Opens the file likewise; if it is new, it gets pages of `page_size` bytes.
    pub fn open_sized(path: &Path, mode: Mode, page_size: u32) -> Result<Sqlite, StoreError> {
        create_folder(path).map_err(|error| StoreError::File(path.to_path_buf(), error))?;
        create_private(path).map_err(|error| StoreError::File(path.to_path_buf(), error))?;
        let lock = match mode {
            Mode::Owner => Some(FileLock::take(path)?),
            Mode::Shared => {
                lock::check_seen(path)?;
                None
            }
        };
        let failed = |error| StoreError::Sqlite(path.to_path_buf(), error);
        let mut connection = Connection::open(path).map_err(failed)?;
        connection.busy_timeout(limits::STORE_BUSY).map_err(failed)?;
        // Has no effect on a file that has tables.
        connection.pragma_update(None, "page_size", page_size).map_err(failed)?;
        let cache = if mode == Mode::Owner { LEDGER_START_KIB } else { bounds::LEDGER_CACHE_KIB };
        connection.pragma_update(None, "cache_size", -cache).map_err(failed)?;
        let fresh = hex(&random::<32>().map_err(|error| StoreError::File(path.to_path_buf(), error))?);
        match tables::bring_up(&mut connection, &fresh).map_err(failed)? {
            None => {}
            Some(why) => return Err(StoreError::Foreign(path.to_path_buf(), why)),
        }
        let (path, packer, tally, odd) = (path.to_path_buf(), Packer::default(), Tally::default(), Odd::default());
        let promised = Promised::new();
        let mut store = Sqlite { connection, path, packer, tally, promised, odd, lock };
        // Checks that SQLite has opened the locked file.
        store.check()?;
        store.set_durable(true)?;
        if mode == Mode::Owner {
            tables::unmark(&store.connection).map_err(|error| store.tell(error))?;
            store.settle()?;
            store.lock.iter_mut().try_for_each(FileLock::take_log)?;
        }
        Ok(store)
    }

    /// Frees the memory that reading at the start has used, and lets the cache of pages grow from now on. Reading all
    /// keys needs no cache, and what it fills stays in a gateway's heap.
    pub fn rest(&self) -> Result<(), StoreError> {
        let sql = format!("PRAGMA shrink_memory; PRAGMA cache_size = -{}", bounds::LEDGER_CACHE_KIB);
        self.connection.execute_batch(&sql).map_err(|error| self.tell(error))
    }

    /// Fails if the path no longer leads to the file that an owner has open.
    pub fn check(&self) -> Result<(), StoreError> {
        self.lock.as_ref().map_or(Ok(()), FileLock::check)
    }

    /// Fails if a gateway does not see what a command has just written: see [`lock::check_seen`].
    fn check_seen(&self) -> Result<(), StoreError> {
        if self.lock.is_some() { Ok(()) } else { lock::check_seen(&self.path) }
    }

    /// Brings the sums of the days up to date with all rows.
    pub fn settle(&mut self) -> Result<(), StoreError> {
        let mut settle = || -> Fallible<()> {
            let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            self.tally.settle(&transaction)?;
            transaction.commit()
        };
        let settled = settle();
        settled.map_err(|error| self.tell(error))
    }

    fn tell(&self, error: rusqlite::Error) -> StoreError {
        StoreError::Sqlite(self.path.clone(), error)
    }

    /// `FULL` (true) or `NORMAL` (false) synchronous mode, see the head of this file.
    pub fn set_durable(&self, durable: bool) -> Result<(), StoreError> {
        let mode = if durable { "FULL" } else { "NORMAL" };
        self.connection.pragma_update(None, "synchronous", mode).map_err(|error| self.tell(error))
    }

    /// Version that changes whenever another connection has committed. Compare it only with values of the same
    /// connection.
    pub fn version(&self) -> Result<i64, StoreError> {
        let version = self.connection.prepare_cached("PRAGMA data_version");
        version.and_then(|mut query| query.query_row([], |row| row.get(0))).map_err(|error| self.tell(error))
    }

    /// Stores a new key. A known id or digest is an error.
    pub fn insert_key(&self, key: &KeyRecord) -> Result<(), StoreError> {
        let result = write_key(&self.connection, INSERT_KEY, key);
        result.map(drop).map_err(|error| self.tell(error))
    }

    /// Stores a new key with its audit line and answer.
    pub fn issue_key(&mut self, key: &KeyRecord, note: &Note<'_>) -> Result<(), StoreError> {
        self.change(&mut |transaction| {
            write_key(transaction, INSERT_KEY, key)?;
            notes::write(transaction, note, None, key)
        })?;
        self.check_seen()
    }

    /// Returns the answer given under an idempotency name within the last day.
    pub fn answered(&self, once: &str, now: Unix) -> Result<Option<Answered>, StoreError> {
        notes::answered(&self.connection, once, now).map_err(|error| self.tell(error))
    }

    /// See [`crate::store::ledger::Ledger::audit`].
    pub fn audit(&self, from: u64, most: u64, bytes: usize) -> Result<Vec<AuditLine>, StoreError> {
        notes::audit(&self.connection, from, most, bytes).map_err(|error| self.tell(error))
    }

    /// See [`crate::store::ledger::Ledger::claim_alert`].
    pub fn claim_alert(&mut self, subject: &str, holder: &str, now: Unix) -> Result<AlertClaim, StoreError> {
        let mut claim = AlertClaim::Others;
        self.change(&mut |transaction| alert_claims::claim(transaction, subject, holder, now).map(|got| claim = got))?;
        Ok(claim)
    }

    /// See [`crate::store::ledger::Ledger::note_alert`].
    pub fn note_alert(&mut self, subject: &str, reported: Option<&AlertReport>, now: Unix) -> Result<(), StoreError> {
        self.change(&mut |transaction| alert_claims::note(transaction, subject, reported, now))?;
        self.check_seen()
    }

    /// See [`crate::store::ledger::Ledger::release_alert`].
    pub fn release_alert(&mut self, subject: &str, holder: &str) -> Result<(), StoreError> {
        self.change(&mut |transaction| alert_claims::release(transaction, subject, holder))
    }

    /// See [`WriterClocks`].
    pub fn writer_clocks(&self) -> Result<WriterClocks, StoreError> {
        let read = || writer_clocks::read(&*self.connection.unchecked_transaction()?);
        read().map_err(|error| self.tell(error))
    }

    /// Stores [`WriterClocks::held`] in the ledger.
    pub fn hold_fold(&mut self, held: Option<Unix>) -> Result<(), StoreError> {
        self.change(&mut |transaction| writer_clocks::hold_fold(transaction, held))
    }

    /// Accepts the present time, with a line of the audit: existing rows do not count as newer.
    pub fn accept_clock(&mut self, now: Unix, line: &AuditLine) -> Result<(), StoreError> {
        self.change(&mut |transaction| writer_clocks::accept_clock(transaction, now, line))
    }

    /// Continues folding after this usage record, with a line of the audit.
    pub fn confirm_fold(&mut self, newest: Unix, line: &AuditLine) -> Result<(), StoreError> {
        self.change(&mut |transaction| writer_clocks::confirm_fold(transaction, newest, line))
    }

    /// Changes something within one transaction. A copy that is changed is a ledger of its own.
    fn change(&mut self, change: &mut dyn FnMut(&Connection) -> Fallible<()>) -> Result<(), StoreError> {
        let mut done = || -> Fallible<()> {
            let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            tables::unmark(&transaction)?;
            change(&transaction)?;
            transaction.commit()
        };
        let done = done();
        done.map_err(|error| self.tell(error))
    }

    /// Returns at most `limit` keys in the order of their creation, after the key `after`, with these names; `None` if
    /// the key `after` does not exist. Unreadable records are skipped: see [`Sqlite::take_odd`].
    pub fn keys_page(
        &self,
        after: Option<&KeyId>,
        names: Names<'_>,
        (limit, bytes): (usize, usize),
    ) -> Result<Option<Vec<KeyRecord>>, StoreError> {
        let created = |id: &KeyId| -> Fallible<Option<i64>> {
            let mut query = self.connection.prepare_cached("SELECT created FROM keys WHERE id = ?1")?;
            query.query_row([id.as_str()], |row| row.get(0)).optional()
        };
        let created = match after {
            None => Some(-1),
            Some(id) => created(id).map_err(|error| self.tell(error))?,
        };
        let Some(created) = created else { return Ok(None) };
        let after = after.map_or("", KeyId::as_str);
        let values = params![created, after, names.prefix, names.whole, int(limit as u64)];
        self.read_keys(SELECT_PAGE, values, bytes).map(Some)
    }

    /// All keys of this name, in the order of their creation.
    pub fn keys_named(&self, name: &str) -> Result<Vec<KeyRecord>, StoreError> {
        self.read_keys(SELECT_NAMED, [name], usize::MAX)
    }

    fn read_keys(&self, sql: &str, values: impl Params, bytes: usize) -> Result<Vec<KeyRecord>, StoreError> {
        let list = || read_keys(&self.connection, sql, values, bytes, &self.odd);
        list().map_err(|error| self.tell(error))
    }

    /// Returns the records of these keys that exist and can be read, as of one moment.
    pub fn find_keys(&self, ids: &[KeyId]) -> Result<Vec<KeyRecord>, StoreError> {
        let find = || -> Fallible<Vec<KeyRecord>> {
            let transaction = self.connection.unchecked_transaction()?;
            let found = ids.iter().map(|id| read_keys(&transaction, SELECT_KEY, [id.as_str()], usize::MAX, &self.odd));
            Ok(found.collect::<Fallible<Vec<_>>>()?.into_iter().flatten().collect())
        };
        find().map_err(|error| self.tell(error))
    }

    /// Returns a text for the operator about each key skipped since the last call.
    pub fn take_odd(&self) -> Vec<String> {
        let odd = self.odd.take();
        let text = |id| format!("{}: key {id:?} is passed over: its record cannot be read", self.path.display());
        odd.into_iter().map(text).collect()
    }

    /// Returns the key that users and conversations are hashed with. It is made with the ledger and never changes.
    pub fn hash_key(&self) -> Result<HashKey, StoreError> {
        let sql = "SELECT value FROM secrets WHERE name = 'attribution'";
        let value = self.connection.query_row(sql, [], |row| row.get(0).map(HashKey));
        value.map_err(|error| self.tell(error))
    }

    /// Lets `change` edit a key within one transaction, which excludes other processes. `None` if there is no such key.
    /// If `change` refuses, the store is unchanged. `note`: audit line and answer of the change.
    pub fn edit(
        &mut self,
        id: &KeyId,
        note: Option<&Note<'_>>,
        change: Change<'_>,
    ) -> Result<Option<KeyRecord>, StoreError> {
        let mut edit = || -> Fallible<Option<KeyRecord>> {
            let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let found = read_keys(&transaction, SELECT_KEY, [id.as_str()], usize::MAX, &self.odd)?.pop();
            let Some(mut key) = found else { return Ok(None) };
            let before = key.clone();
            if !change(&mut key) {
                return Ok(Some(key));
            }
            tables::unmark(&transaction)?;
            write_key(&transaction, UPDATE_KEY, &key)?;
            note.map_or(Ok(()), |note| notes::write(&transaction, note, Some(&before), &key))?;
            transaction.commit()?;
            Ok(Some(key))
        };
        let edited = edit().map_err(|error| self.tell(error))?;
        self.check_seen()?;
        Ok(edited)
    }

    /// Appends rows in one transaction. The sums of their days follow at once, or when there are enough rows.
    pub fn append(&mut self, rows: &[Row]) -> Result<(), StoreError> {
        self.check()?;
        let mut pace = Pace::for_pieces(rows.len());
        let mut write = || -> Fallible<Vec<[u8; 16]>> {
            let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            for group in rows.chunks(groups::ROWS_PER_GROUP) {
                self.packer.append(&transaction, group, &mut pace)?;
                self.tally.add(group);
                // A commit with many names must not take more memory than one with few.
                if self.tally.has_many_names() {
                    self.tally.settle(&transaction)?;
                }
            }
            if self.tally.is_due() {
                self.tally.settle(&transaction)?;
            }
            let ended = promises::end(&transaction, rows, &self.promised)?;
            pace.rest();
            transaction.commit()?;
            Ok(ended)
        };
        let written = write();
        let ended = written.map_err(|error| {
            self.tally.spoil();
            self.tell(error)
        })?;
        ended.iter().for_each(|request| _ = self.promised.remove(request));
        Ok(())
    }

    /// Returns sums by key, group, model and day, from the day of `since` on. They rebuild the periods.
    pub fn day_sums(&self, since: Unix) -> Result<Vec<PastUse>, StoreError> {
        past::day_sums(&self.connection, since).map_err(|error| self.tell(error))
    }

    /// Returns sums by target and day, from the day of `since` on. They rebuild the limits of targets.
    pub fn target_sums(&self, since: Unix) -> Result<Vec<TargetUse>, StoreError> {
        past::target_sums(&self.connection, since).map_err(|error| self.tell(error))
    }

    /// Returns data of every row admitted at `since` or later. It rebuilds the windows.
    pub fn rows_since(&self, since: Unix) -> Result<Vec<PastUse>, StoreError> {
        let mut found = Vec::new();
        self.each_since(since, &mut |past| found.push(past)).map(|()| found)
    }

    /// Passes data of every row admitted at `since` or later to `take`.
    pub fn each_since(&self, since: Unix, take: &mut dyn FnMut(PastUse)) -> Result<(), StoreError> {
        past::each_since(&self.connection, since, take).map_err(|error| self.tell(error))
    }

    /// Number of rows in the ledger.
    pub fn count_rows(&self) -> Result<u64, StoreError> {
        let sql = "SELECT IFNULL(SUM(last - first + 1), 0) FROM groups";
        let count = self.connection.query_row(sql, [], |row| uint(row, 0));
        count.map_err(|error| self.tell(error))
    }
}

impl Drop for Sqlite {
    fn drop(&mut self) {
        if self.lock.as_ref().is_some_and(FileLock::is_cut) {
            // Closing would copy the log into the file. The next process that opens the file reads the log.
            if let Ok(other) = Connection::open_in_memory() {
                std::mem::forget(std::mem::replace(&mut self.connection, other));
            }
            return;
        }
        if !self.tally.is_empty() {
            // Errors are harmless: the next process that opens the file does the same.
            let _ = self.settle();
        }
    }
}

impl WatchedLedger for Sqlite {
    fn find_keys(&mut self, ids: &[KeyId]) -> Result<Vec<KeyRecord>, StoreError> {
        Sqlite::find_keys(self, ids)
    }

    fn fold(&mut self, before: Unix, max: usize) -> Result<u64, StoreError> {
        self.check()?;
        Sqlite::fold(self, before, max)
    }

    fn writer_clocks(&mut self) -> Result<WriterClocks, StoreError> {
        Sqlite::writer_clocks(self)
    }

    fn hold_fold(&mut self, held: Option<Unix>) -> Result<(), StoreError> {
        Sqlite::hold_fold(self, held)
    }
}

/// Creates the folder of the file, private to its owner, if it does not exist.
fn create_folder(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() && !folder.exists() => {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
        }
        _ => Ok(()),
    }
}

/// Creates an empty file, private to its owner, if it does not exist. SQLite gives the files of its log the same mode.
///
/// The file has another name while a descriptor of it is open: closing one of the file itself would drop every lock
/// that another connection of this process has on it (POSIX record locks).
fn create_private(path: &Path) -> io::Result<()> {
    if path.try_exists()? {
        return Ok(());
    }
    let (draft, file) = FileDraft::beside(path)?;
    match draft.put(file, path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Inserts or updates the record of a key by `sql`.
fn write_key(connection: &Connection, sql: &str, key: &KeyRecord) -> Fallible<usize> {
    let models = key.scope.models_allowed.as_ref().map(|models| serde_json::json!(models).to_string());
    connection.execute(
        sql,
        params![
            key.id.as_str(),
            key.digest,
            key.name,
            key.plan,
            key.scope.stored_endpoints(),
            models,
            int(key.created.0),
            key.expires.map(|at| int(at.0)),
            key.revoked.map(|at| int(at.0)),
            keyform::former_text(&key.former),
            key.disabled,
            keyform::limits_text(&key.limits),
            key.group,
            keyform::labels_text(&key.labels),
            key.capture.map(|until| int(until.0)),
        ],
    )
}

/// Ids of keys whose records cannot be read, at most [`bounds::ODD_ENTRIES_MAX`].
type Odd = RefCell<Vec<String>>;

/// Returns the records that `sql` finds, except unreadable ones, up to the one after those with `bytes` bytes of text.
/// An error concerns the file, not a record.
fn read_keys(
    connection: &Connection,
    sql: &str,
    values: impl Params,
    bytes: usize,
    odd: &Odd,
) -> Fallible<Vec<KeyRecord>> {
    let mut query = connection.prepare_cached(sql)?;
    let (mut found, mut keys, mut length) = (query.query(values)?, Vec::new(), 0);
    while let Some(row) = found.next()? {
        match read_key(row) {
            Ok(key) => {
                let is_last = length >= bytes;
                length += key.text_bytes();
                keys.push(key);
                if is_last {
                    break;
                }
            }
            Err(_) => note_odd(odd, row.get_ref(0)?.as_bytes().unwrap_or_default()),
        }
    }
    Ok(keys)
}

/// Remembers the id of a skipped record.
fn note_odd(odd: &Odd, id: &[u8]) {
    let mut odd = odd.borrow_mut();
    if odd.len() < bounds::ODD_ENTRIES_MAX {
        odd.push(String::from_utf8_lossy(id).into_owned());
    }
}

fn read_key(row: &rusqlite::Row<'_>) -> Fallible<KeyRecord> {
    let endpoints: String = row.get(4)?;
    let models: Option<String> = row.get(5)?;
    // A list that cannot be read must not permit everything.
    let models_allowed = models.map(|models| serde_json::from_str(&models).unwrap_or_default());
    let scope = Scope::from_stored(&endpoints, models_allowed);
    let moment = |column| -> Fallible<Option<Unix>> {
        let at: Option<i64> = row.get(column)?;
        Ok(at.map(|at| Unix(u64::try_from(at).unwrap_or(0))))
    };
    Ok(KeyRecord {
        id: key_id(row, 0)?,
        digest: row.get(1)?,
        name: row.get(2)?,
        plan: row.get(3)?,
        scope,
        created: Unix(uint(row, 6)?),
        expires: moment(7)?,
        revoked: moment(8)?,
        former: keyform::former_from(row.get_ref(9)?.as_str()?),
        disabled: row.get(10)?,
        limits: keyform::limits_from(row.get_ref(11)?.as_str()?),
        group: row.get(12)?,
        labels: keyform::labels_from(row.get_ref(13)?.as_str()?),
        capture: moment(14)?,
    })
}
