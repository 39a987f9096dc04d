//! The files of a ledger's log, `-wal` and `-shm`: whether they are those that were there when the ledger was opened,
//! and whole. SQLite does not look: what is written to a log that was removed or replaced is seen by nobody who opens
//! the file afterwards. Called by the lock on the ledger's file, which keeps both open.
//!
//! What is read of them is SQLite's "WAL-mode File Format": the header of the index, twice, and that of the log.

use super::api::StoreError;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Bytes of the header of the index, which is there twice.
const HEADER: usize = 48;
/// Bytes that the index has at least.
const INDEX_MIN: u64 = 32 * 1024;
/// Bytes of the header of the log, and of that of a page in it.
const LOG_HEADER: u64 = 32;
const FRAME_HEADER: u64 = 24;
/// Looks before a log that seems to be cut is: others write meanwhile.
const LOOKS: usize = 3;

/// Where the log of the ledger at `path` is: SQLite follows links to the file, and puts it beside that one.
pub(super) fn paths(path: &Path) -> io::Result<[PathBuf; 2]> {
    let file = std::fs::canonicalize(path)?;
    Ok(["-wal", "-shm"].map(|end| {
        let mut name = OsString::from(file.clone());
        name.push(end);
        PathBuf::from(name)
    }))
}

/// Fails where the log, or its index, is shorter than the index says, or is another log by its salts.
pub(super) fn check([log, index]: [&File; 2], [log_path, index_path]: &[PathBuf; 2]) -> Result<(), StoreError> {
    for _ in 0..LOOKS {
        if is_cut(index).map_err(|error| StoreError::File(index_path.clone(), error))? {
            return Err(StoreError::Cut(index_path.clone()));
        }
        // In this order: whoever empties the log says so in the index first.
        let length = log.metadata().map_err(|error| StoreError::File(log_path.clone(), error))?.len();
        let mut headers = [0; 2 * HEADER];
        index.read_exact_at(&mut headers, 0).map_err(|error| StoreError::File(index_path.clone(), error))?;
        let (header, copy) = headers.split_at(HEADER);
        // While they differ another process writes them.
        if header == copy && fits(header, log, length) {
            return Ok(());
        }
    }
    Err(StoreError::Cut(log_path.clone()))
}

/// True if the ledger's own file is shorter than its header says.
pub(super) fn is_main_cut(file: &File) -> io::Result<bool> {
    let mut header = [0; 32];
    let length = file.metadata()?.len();
    if length < header.len() as u64 {
        return Ok(true);
    }
    file.read_exact_at(&mut header, 0)?;
    let page = match u64::from(u16::from_be_bytes([header[16], header[17]])) {
        1 => 65536,
        page => page,
    };
    let pages = u64::from(u32::from_be_bytes([header[28], header[29], header[30], header[31]]));
    Ok(length < page * pages)
}

/// True if touching the index, which is mapped into memory, would end the process.
fn is_cut(index: &File) -> io::Result<bool> {
    Ok(index.metadata()?.len() < INDEX_MIN)
}

fn fits(header: &[u8], log: &File, length: u64) -> bool {
    let number = |at: usize| u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let frames = u64::from(number(16));
    if frames == 0 {
        return true;
    }
    let page = match u64::from(u16::from_ne_bytes([header[14], header[15]])) {
        1 => 65536,
        page => page,
    };
    let mut salts = [0; 8];
    length >= LOG_HEADER + frames * (FRAME_HEADER + page)
        && log.read_exact_at(&mut salts, 16).is_ok()
        && salts == header[32..40]
}
