//! Rewrites the ledger's file: without the space of deleted entries, and with another page size. Called by a command
//! while no gateway runs.

use super::super::api::StoreError;
use super::{Mode, Sqlite};
use std::path::Path;

/// Bytes of the file before and after.
pub struct Compacted {
    /// Before.
    pub before: u64,
    /// After.
    pub after: u64,
}

impl Sqlite {
    /// Returns the bytes of a page of the file.
    pub fn page_size(&self) -> Result<u32, StoreError> {
        let size = self.connection.pragma_query_value(None, "page_size", |row| row.get(0));
        size.map_err(|error| self.tell(error))
    }

    /// Rewrites the file at `path` with pages of `page_size` bytes. After a power cut in the meantime the old file
    /// remains.
    pub fn compact(path: &Path, page_size: u32) -> Result<Compacted, StoreError> {
        let bytes = || std::fs::metadata(path).map(|found| found.len());
        let bytes = || bytes().map_err(|error| StoreError::File(path.to_path_buf(), error));
        let mut store = Sqlite::open(path, Mode::Owner)?;
        // Held until the end, but not checked any more, since its files of the log will disappear.
        let _lock = store.lock.take();
        let run = |sql: &str| store.connection.execute_batch(sql).map_err(|error| store.tell(error));
        // The log is part of the ledger's size, so it is emptied first.
        run("PRAGMA wal_checkpoint(TRUNCATE)")?;
        let before = bytes()?;
        // The page size of a file with a write-ahead log is fixed. No command may recreate the log in the meantime.
        run("PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = DELETE")?;
        run(&format!("PRAGMA page_size = {page_size}; VACUUM; PRAGMA locking_mode = NORMAL"))?;
        run("PRAGMA journal_mode = WAL")?;
        Ok(Compacted { before, after: bytes()? })
    }
}
