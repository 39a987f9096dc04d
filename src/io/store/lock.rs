//! Owns the locks on the files of ledgers: one gateway at a time, by whatever name it reaches the file, since the lock
//! is on the file itself (`flock`). SQLite's own locks are of another kind (POSIX record locks) and do not meet these.
//!
//! Called by the SQLite ledger of a gateway; commands take no lock.

use super::api::StoreError;
use std::fs::{File, Metadata, OpenOptions, TryLockError};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Device and inode: what a file is, whatever its name.
type FileId = (u64, u64);

struct Opened {
    id: FileId,
    file: File,
    locked: bool,
}

/// Every file that was to be locked, open for the rest of the process's life: closing a descriptor of a file drops all
/// locks that SQLite holds on that file in the same process. A gateway has one ledger, so this is one descriptor.
static OPENED: Mutex<Vec<Opened>> = Mutex::new(Vec::new());

fn opened() -> MutexGuard<'static, Vec<Opened>> {
    OPENED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn id_of(found: &Metadata) -> FileId {
    (found.dev(), found.ino())
}

/// A lock on a ledger's file; gone when it is dropped, and when the process dies.
pub struct FileLock {
    path: PathBuf,
    id: FileId,
}

impl FileLock {
    /// Locks the file that `path` leads to. Makes an empty one for its owner's eyes where a link leads to none.
    pub fn take(path: &Path) -> Result<FileLock, StoreError> {
        let failed = |error| StoreError::File(path.to_path_buf(), error);
        let mut opened = opened();
        let known = std::fs::metadata(path).ok().map(|found| id_of(&found));
        if known.is_none_or(|id| opened.iter().all(|opened| opened.id != id)) {
            let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path);
            let file = open.map_err(failed)?;
            let id = id_of(&file.metadata().map_err(failed)?);
            opened.push(Opened { id, file, locked: false });
        }
        let id = id_of(&std::fs::metadata(path).map_err(failed)?);
        if opened.iter().any(|opened| opened.id == id && opened.locked) {
            return Err(StoreError::Locked(path.to_path_buf()));
        }
        let place = opened.iter_mut().find(|opened| opened.id == id);
        let place = place.ok_or_else(|| StoreError::Moved(path.to_path_buf()))?;
        match place.file.try_lock() {
            Ok(()) => place.locked = true,
            Err(TryLockError::WouldBlock) => return Err(StoreError::Locked(path.to_path_buf())),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        Ok(FileLock { path: path.to_path_buf(), id })
    }

    /// Fails unless the path still leads to the file that is locked.
    pub fn check(&self) -> Result<(), StoreError> {
        match std::fs::metadata(&self.path) {
            Ok(found) if id_of(&found) == self.id => Ok(()),
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(StoreError::File(self.path.clone(), error))
            }
            _ => Err(StoreError::Moved(self.path.clone())),
        }
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        for opened in opened().iter_mut().filter(|opened| opened.id == self.id && opened.locked) {
            opened.locked = false;
            // What cannot be unlocked stays locked until the process ends.
            let _ = opened.file.unlock();
        }
    }
}
