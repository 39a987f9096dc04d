//! Names of the files of a ledger's log, `-wal` and `-shm`, and the least lengths of a ledger's files. SQLite does not
//! check lengths: it deletes the log of an empty file, and reading a cut index ends the process.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

/// Minimum length of the ledger's own file: the smallest page of SQLite.
pub(super) const MAIN_MIN: u64 = 512;
/// Minimum length of the index of the log.
pub(super) const INDEX_MIN: u64 = 32 * 1024;

/// True if the file is a log by its name.
pub(super) fn is_log(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().ends_with(b"-wal")
}

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
