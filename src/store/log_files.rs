//! Checks the files of a ledger's log, `-wal` and `-shm`: they must be the files found when the ledger was opened, and
//! complete. SQLite does not check: data written to a removed or replaced log is invisible to processes that open the
//! file later. Called by the lock on the ledger's file, which keeps both open.
//!
//! Parses SQLite's "WAL-mode File Format": the header of the index, stored twice, and that of the log.

use super::api::StoreError;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Bytes of the header of the index, which is stored twice.
const HEADER: usize = 48;
/// Minimum size of the index in bytes.
const INDEX_MIN: u64 = 32 * 1024;
/// Position in the index of the number of frames that checkpoints have copied into the file.
const BACKFILLED: usize = 96;
/// Bytes of the header of the log, and of the header of a page in it.
const LOG_HEADER: u64 = 32;
const FRAME_HEADER: u64 = 24;
/// Number of checks before a log counts as cut: other processes write meanwhile.
const LOOKS: usize = 3;

/// Returns the paths of the log of the ledger at `path`: SQLite follows links to the file, and puts the log next to it.
pub(super) fn paths(path: &Path) -> io::Result<[PathBuf; 2]> {
    Ok(next_to(&std::fs::canonicalize(path)?))
}

/// Returns the paths of the log of a file that `file` names without a link.
pub(super) fn next_to(file: &Path) -> [PathBuf; 2] {
    ["-wal", "-shm"].map(|end| {
        let mut name = OsString::from(file);
        name.push(end);
        PathBuf::from(name)
    })
}

/// Fails if the log, or its index, is shorter than the index states, or is another log by its salts.
pub(super) fn check([log, index]: [&File; 2], [log_path, index_path]: &[PathBuf; 2]) -> Result<(), StoreError> {
    for _ in 0..LOOKS {
        if is_cut(index).map_err(|error| StoreError::File(index_path.clone(), error))? {
            return Err(StoreError::Cut(index_path.clone()));
        }
        // The order matters: a process that empties the log writes that to the index first.
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

/// True if the ledger's own file is shorter than its header says, and the log does not make up for it. While a
/// checkpoint runs, and after one that had to stop at the snapshot of a reader, pages beyond the end of the file are in
/// the log.
pub(super) fn is_main_cut(file: &File, [log, index]: [&File; 2]) -> io::Result<bool> {
    let mut header = [0; 32];
    let length = file.metadata()?.len();
    if length < header.len() as u64 {
        return Ok(true);
    }
    file.read_exact_at(&mut header, 0)?;
    let page = page_size([header[16], header[17]], u16::from_be_bytes);
    let pages = u64::from(u32::from_be_bytes([header[28], header[29], header[30], header[31]]));
    let whole = length / page;
    if whole >= pages {
        return Ok(false);
    }
    let mut numbers = [0; BACKFILLED + 4];
    index.read_exact_at(&mut numbers, 0)?;
    let number = |at: usize| u32::from_ne_bytes([numbers[at], numbers[at + 1], numbers[at + 2], numbers[at + 3]]);
    // Readers take only these frames from the log, and all other pages from the file.
    let frames = u64::from(number(BACKFILLED))..u64::from(number(16));
    let mut logged = BTreeSet::new();
    for frame in frames {
        let mut header = [0; 4];
        log.read_exact_at(&mut header, LOG_HEADER + frame * (FRAME_HEADER + page))?;
        logged.insert(u64::from(u32::from_be_bytes(header)));
    }
    Ok((logged.range(whole + 1..=pages).count() as u64) < pages - whole)
}

/// Reads a page size, which is stored as 1 if it is 65,536.
fn page_size(stored: [u8; 2], read: fn([u8; 2]) -> u16) -> u64 {
    match u64::from(read(stored)) {
        1 => 65536,
        page => page,
    }
}

/// True if accessing the index, which is mapped into memory, would end the process.
fn is_cut(index: &File) -> io::Result<bool> {
    Ok(index.metadata()?.len() < INDEX_MIN)
}

fn fits(header: &[u8], log: &File, length: u64) -> bool {
    let number = |at: usize| u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let frames = u64::from(number(16));
    if frames == 0 {
        return true;
    }
    let page = page_size([header[14], header[15]], u16::from_ne_bytes);
    let mut salts = [0; 8];
    length >= LOG_HEADER + frames * (FRAME_HEADER + page)
        && log.read_exact_at(&mut salts, 16).is_ok()
        && salts == header[32..40]
}
