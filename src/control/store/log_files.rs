//! Checks the files of a ledger's log, `-wal` and `-shm`: they must be the files found when the ledger was opened, and
//! complete. SQLite does not check this: data written to a removed or replaced log is invisible to processes that open
//! the file later. Called by the lock on the ledger's file, which keeps both open.
//!
//! Parses SQLite's "WAL-mode File Format": the header of the index, stored twice, and that of the log.
//!
//! Also checks the ledger's own file, which only checkpoints may write.

use super::api::StoreError;
use ring::digest::{Context, SHA256};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Bytes of the header of the index, which is stored twice.
const HEADER: usize = 48;
/// Minimum size of the index in bytes.
const INDEX_MIN: u64 = 32 * 1024;
/// Position in the index of the number of frames that checkpoints have copied into the file.
const BACKFILLED: usize = 96;
/// Position in the index of the number of frames that the last checkpoint was to copy.
const ATTEMPTED: usize = 128;
/// Bytes at each end of the ledger's own file that are compared.
const END: u64 = 64 * 1024;
/// Bytes of them read at a time: the memory of larger blocks would stay in the heap of the ledger's thread.
const END_PIECE: usize = 8 * 1024;
/// Bytes of the header of the log, and of the header of a page in it.
const LOG_HEADER: u64 = 32;
const FRAME_HEADER: u64 = 24;
/// Smallest page of a database. Every page size is a power of two.
const PAGE_MIN: u64 = 512;
/// Number of checks before a log counts as cut, since other processes may be writing.
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
        // If they differ, another process is writing them.
        if header == copy && fits(header, log, length) {
            return Ok(());
        }
    }
    Err(StoreError::Cut(log_path.clone()))
}

/// True if the ledger's own file is shorter than its header says, and the log does not contain the missing pages, or if
/// it has no header. While
/// a checkpoint runs, and after one that had to stop at the snapshot of a reader, pages beyond the end of the file are
/// in the log.
pub(super) fn is_main_cut(file: &File, [log, index]: [&File; 2]) -> io::Result<bool> {
    let mut header = [0; 32];
    let length = file.metadata()?.len();
    if length < header.len() as u64 {
        return Ok(true);
    }
    file.read_exact_at(&mut header, 0)?;
    let page = page_size([header[16], header[17]], u16::from_be_bytes);
    if page < PAGE_MIN || !page.is_power_of_two() {
        return Ok(true);
    }
    let pages = u64::from(u32::from_be_bytes([header[28], header[29], header[30], header[31]]));
    let whole = length / page;
    if whole >= pages {
        return Ok(false);
    }
    let mut numbers = [0; BACKFILLED + 4];
    index.read_exact_at(&mut numbers, 0)?;
    let number = |at: usize| u32::from_ne_bytes([numbers[at], numbers[at + 1], numbers[at + 2], numbers[at + 3]]);
    // Readers use only these frames of the log, and read all other pages from the file.
    let frames = u64::from(number(BACKFILLED))..u64::from(number(16));
    let mut logged = Vec::new();
    for frame in frames {
        let mut header = [0; 4];
        log.read_exact_at(&mut header, LOG_HEADER + frame * (FRAME_HEADER + page))?;
        logged.push(u64::from(u32::from_be_bytes(header)));
    }
    logged.retain(|page| (whole + 1..=pages).contains(page));
    logged.sort_unstable();
    logged.dedup();
    Ok((logged.len() as u64) < pages - whole)
}

/// The ledger's own file as the last checkpoint has left it.
#[derive(Copy, Clone)]
pub(super) struct Main {
    checkpoint: [u8; 12],
    /// Seconds and nanoseconds.
    modified: (i64, i64),
    digest: [u8; 32],
    /// True while the file is different.
    pub(super) is_overwritten: bool,
}

/// Compares the ledger's own file with `seen`, unless a checkpoint has written it since, and updates `seen`. Reads the
/// file only if its time of modification has changed.
pub(super) fn look_at_main(seen: &mut Option<Main>, main: &File, index: &File) -> io::Result<()> {
    let Some(checkpoint) = checkpoint(index)? else { return Ok(()) };
    let modified = main.metadata().map(|found| (found.mtime(), found.mtime_nsec()))?;
    let last = seen.filter(|seen| seen.checkpoint == checkpoint || seen.is_overwritten);
    if last.is_some_and(|last| last.modified == modified && !last.is_overwritten) {
        return Ok(());
    }
    let digest = digest_of_ends(main)?;
    // A checkpoint in the meantime has written the file.
    if self::checkpoint(index)? != Some(checkpoint) {
        return Ok(());
    }
    *seen = Some(match last {
        Some(last) if last.digest != digest => Main { is_overwritten: true, ..last },
        _ => Main { checkpoint, modified, digest, is_overwritten: false },
    });
    Ok(())
}

/// Identifies the last checkpoint by the salts of the log and the number of frames copied. `None` if it has not
/// finished.
fn checkpoint(index: &File) -> io::Result<Option<[u8; 12]>> {
    let mut header = [0; ATTEMPTED + 4];
    index.read_exact_at(&mut header, 0)?;
    let copied = &header[BACKFILLED..BACKFILLED + 4];
    let mut checkpoint = [0; 12];
    checkpoint[..8].copy_from_slice(&header[32..40]);
    checkpoint[8..].copy_from_slice(copied);
    Ok((*copied == header[ATTEMPTED..]).then_some(checkpoint))
}

/// Digest of the first and the last bytes, which may overlap.
fn digest_of_ends(file: &File) -> io::Result<[u8; 32]> {
    let length = file.metadata()?.len();
    let end = length.min(END);
    let (mut ends, mut piece) = (Context::new(&SHA256), vec![0; END_PIECE]);
    for from in [0, length - end] {
        for at in (0..end).step_by(END_PIECE) {
            let read = &mut piece[..usize::try_from(end - at).map_or(END_PIECE, |left| left.min(END_PIECE))];
            file.read_exact_at(read, from + at)?;
            ends.update(read);
        }
    }
    let mut digest = [0; 32];
    digest.copy_from_slice(ends.finish().as_ref());
    Ok(digest)
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
