//! Hand-over of one file between gateways: checks that a successor may make while another gateway has the file, release
//! and retaking by an owner, and rows that may already be in the file. Called by the store thread and at the start of a
//! gateway.

use super::super::api::{Batch, StoreError};
use super::super::lock::{FileLock, check_seen};
use super::super::spill::Importer;
use super::super::watch::Store;
use super::super::written::Written;
use super::tables::{APPLICATION, OTHER, SCHEMA, marks, problem};
use super::{Odd, SELECT_PIECE, Sqlite, groups, promises, read_keys};
use crate::base::limits;
use crate::policy::keys::KeyRecord;
use crate::policy::ledger::Ask;
use crate::policy::row::Row;
use crate::store::bounds;
use rusqlite::{Connection, OpenFlags};
use std::collections::HashSet;
use std::path::Path;

impl Sqlite {
    /// Checks whether a gateway of this version could use the file, without taking it. Changes nothing, and waits for
    /// no lock except SQLite's own. A missing file is not an error.
    pub fn look(path: &Path) -> Result<(), StoreError> {
        if !path.try_exists().map_err(|error| StoreError::File(path.to_path_buf(), error))? {
            return Ok(());
        }
        check_seen(path)?;
        let look = || -> rusqlite::Result<Option<&'static str>> {
            let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
            connection.busy_timeout(limits::STORE_BUSY)?;
            problem(&connection)
        };
        match look() {
            Ok(None) => Ok(()),
            Ok(Some(why)) => Err(StoreError::Foreign(path.to_path_buf(), why)),
            Err(error) => Err(StoreError::Sqlite(path.to_path_buf(), error)),
        }
    }

    /// Passes the keys of a file to `take`. The file is not changed.
    pub fn peek_keys(path: &Path, take: &mut dyn FnMut(KeyRecord)) -> Result<(), StoreError> {
        check_seen(path)?;
        let mut peek = || -> rusqlite::Result<bool> {
            let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
            connection.busy_timeout(limits::STORE_BUSY)?;
            if marks(&connection)? != (APPLICATION, SCHEMA) {
                return Ok(false);
            }
            read_keys(&connection, SELECT_PIECE, ("", -1), usize::MAX, &Odd::default())?
                .into_iter()
                .for_each(&mut *take);
            Ok(true)
        };
        match peek().map_err(|error| StoreError::Sqlite(path.to_path_buf(), error))? {
            true => Ok(()),
            false => Err(StoreError::Foreign(path.to_path_buf(), OTHER)),
        }
    }

    /// Releases the file to another gateway: brings the sums up to date and drops the lock, the latter in any case. The
    /// connection stays open and does not access the file until [`Sqlite::retake`].
    pub fn release(&mut self) -> Result<(), StoreError> {
        let settled = match self.check() {
            Ok(()) if !self.tally.is_empty() => self.settle(),
            checked => checked,
        };
        if let Some(lock) = &mut self.lock {
            lock.release();
        }
        settled
    }

    /// Takes the file back after [`Sqlite::release`]; otherwise does nothing. Fails if another gateway has the file, if
    /// it is another file by now, or if a newer version has changed its tables.
    pub fn retake(&mut self) -> Result<(), StoreError> {
        let Some(lock) = self.lock.as_mut().filter(|lock| !lock.is_held()) else { return Ok(()) };
        lock.retake()?;
        let fits = match marks(&self.connection) {
            Ok((APPLICATION, SCHEMA)) => Ok(()),
            Ok(_) => Err(StoreError::Foreign(self.path.clone(), OTHER)),
            Err(error) => Err(self.tell(error)),
        };
        // The sums may not include rows of another gateway.
        self.tally.spoil();
        let taken = fits.and_then(|()| self.settle());
        if taken.is_err()
            && let Some(lock) = &mut self.lock
        {
            lock.release();
        }
        taken
    }

    /// Appends those of `rows` that the file does not have yet, in commits of the usual size. Rows are identified by
    /// the ids of their requests; folded rows are no longer known.
    pub(in crate::store) fn append_missing(&mut self, rows: &[Row]) -> Result<Written, StoreError> {
        self.check()?;
        let mut wanted: HashSet<[u8; 16]> = rows.iter().map(|row| row.request).collect();
        let oldest = rows.iter().map(|row| row.admitted.0).min().unwrap_or(0);
        let which = "INDEXED BY groups_newest WHERE newest >= ?1";
        let known = groups::each(&self.connection, which, [super::value::int(oldest)], |_, known| {
            known.iter().for_each(|row| _ = wanted.remove(&row.request));
            !wanted.is_empty()
        });
        known.map_err(|error| self.tell(error))?;
        let missing: Vec<Row> = rows.iter().filter(|row| wanted.remove(&row.request)).cloned().collect();
        for rows in missing.chunks(bounds::ROWS_PER_COMMIT) {
            self.append(rows)?;
        }
        Ok(Written::from_rows(missing.len()))
    }

    /// Writes promises in one transaction.
    pub fn promise<'a>(&mut self, rows: impl Iterator<Item = &'a Row>) -> Result<(), StoreError> {
        let write = || -> rusqlite::Result<()> {
            let transaction = self.connection.transaction()?;
            for row in rows {
                // Before it is written: an unknown one would never be ended.
                self.promised.insert(row.request);
                promises::write(&transaction, row)?;
            }
            transaction.commit()
        };
        let written = write();
        written.map_err(|error| self.tell(error))
    }

    /// Reads the promises in the file, and appends them if `are_left`: no gateway serves their requests any more.
    pub fn take_promises(&mut self, are_left: bool) -> Result<(), StoreError> {
        let rows = promises::all(&self.connection).map_err(|error| self.tell(error))?;
        self.promised.extend(rows.iter().map(|row| row.request));
        let left = if are_left { &rows[..] } else { &[] };
        left.chunks(bounds::ROWS_PER_COMMIT).try_for_each(|rows| self.append(rows))
    }
}

impl Store for Sqlite {
    fn append(&mut self, rows: &[Row]) -> Result<Written, StoreError> {
        Sqlite::append(self, rows).map(|()| Written::from_rows(rows.len()))
    }

    fn sync(&mut self) -> Result<(), StoreError> {
        self.lock.as_ref().map_or(Ok(()), FileLock::sync_log)
    }

    fn check(&self) -> Result<(), StoreError> {
        Sqlite::check(self)
    }

    fn release(&mut self) -> Result<(), StoreError> {
        Sqlite::release(self)
    }

    fn retake(&mut self) -> Result<(), StoreError> {
        Sqlite::retake(self)
    }

    fn append_missing(&mut self, rows: &[Row]) -> Result<Written, StoreError> {
        Sqlite::append_missing(self, rows)
    }

    fn promise(&mut self, asks: &[Ask]) -> Result<(), StoreError> {
        self.check()?;
        Sqlite::promise(self, asks.iter().filter_map(|ask| ask.promise.as_deref()))
    }
}

impl Importer for Sqlite {
    fn import(&mut self, batch: &Batch) -> Result<Written, StoreError> {
        self.append_missing(&batch.rows)
    }

    fn keep(&mut self, _: Written) -> Result<(), StoreError> {
        self.sync()
    }
}
