//! Owns the locks on the files of ledgers: one gateway at a time, under any name of the file, since the lock is on the
//! file itself (`flock`). SQLite's own locks are of another kind (POSIX record locks) and do not conflict with these.
//!
//! Called by the SQLite ledger. Commands take no lock, but use the locks to find out whether a gateway has the files
//! open that they are about to write.

use super::api::StoreError;
use super::log_files;
use crate::io::clock::Clock;
use crate::io::files;
use crate::store::bounds;
use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;
use std::cell::Cell;
use std::fs::{File, Metadata, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Time for which a failed lock on a ledger's file is tried again: a command that checks the lock may hold it briefly.
const LOCK_WAIT: Duration = Duration::from_millis(100);
/// Time that a command waits for a starting gateway to lock all files of the ledger.
const SEEN_WAIT: Duration = Duration::from_millis(500);
/// Ledger files that a process keeps open for their locks, including replaced ones.
const LOCKED_FILES_MAX: usize = 1024;

/// Device and inode: identity of a file, whatever its name.
pub(super) type FileId = (u64, u64);

struct OpenedFile {
    path: PathBuf,
    id: FileId,
    file: File,
    locked: bool,
}

/// Files that were locked, open for the rest of the process's life: closing a descriptor of a file drops all of
/// SQLite's locks on that file in the same process. A gateway has one ledger, so these are three descriptors.
static OPENED: Mutex<Vec<OpenedFile>> = Mutex::new(Vec::new());

fn opened() -> MutexGuard<'static, Vec<OpenedFile>> {
    OPENED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// True if this user may not read the file. Does not open it: in the gateway's own process, closing the descriptor
/// would drop SQLite's locks.
pub fn is_denied(path: &Path) -> bool {
    accessat(CWD, path, Access::READ_OK, AtFlags::EACCESS) == Err(Errno::ACCESS)
}

/// Returns a warning if other users may read or change the file.
pub fn exposed(path: &Path) -> Option<String> {
    let mode = std::fs::metadata(path).ok()?.mode() & 0o777;
    let text =
        || format!("{}: other users may read or change the ledger (mode {mode:o}): use mode 600", path.display());
    (mode & 0o027 != 0).then(text)
}

pub(super) fn id_of(found: &Metadata) -> FileId {
    (found.dev(), found.ino())
}

/// Opens the file that `path` leads to, unless it is open already. Returns its identity.
fn open(opened: &mut Vec<OpenedFile>, path: &Path, makes: bool) -> Result<FileId, StoreError> {
    let failed = |error| StoreError::File(path.to_path_buf(), error);
    let known = std::fs::metadata(path).ok().map(|found| id_of(&found));
    if let Some(id) = known.filter(|id| opened.iter().any(|opened| opened.id == *id)) {
        return Ok(id);
    }
    if opened.len() >= LOCKED_FILES_MAX {
        return Err(failed(io::Error::other("too many files in its place one after the other: restart the gateway")));
    }
    let file = files::open_named(path, makes).map_err(failed)?;
    let id = id_of(&file.metadata().map_err(failed)?);
    if opened.iter().all(|opened| opened.id != id) {
        opened.push(OpenedFile { path: path.to_path_buf(), id, file, locked: false });
    }
    Ok(id)
}

/// Lock on a ledger's file and the files of its log. Ends when it is dropped, and when the process dies.
pub struct FileLock {
    /// The ledger's file and, once the ledger is open, the log and its index.
    files: Vec<LockedFile>,
    held: bool,
}

struct LockedFile {
    path: PathBuf,
    id: FileId,
    /// Length at the last check.
    length: Cell<u64>,
}

impl LockedFile {
    fn new(path: PathBuf, id: FileId) -> LockedFile {
        LockedFile { path, id, length: Cell::new(0) }
    }

    /// Fails if the path no longer leads to the file, or if the file is shorter than before.
    fn check(&self) -> Result<(), StoreError> {
        let found = match std::fs::metadata(&self.path) {
            Ok(found) if id_of(&found) == self.id => found,
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(StoreError::File(self.path.clone(), error));
            }
            _ => return Err(StoreError::Moved(self.path.clone())),
        };
        // SQLite never shortens the ledger's file and the index, but it may empty the log.
        if found.len() < self.length.get() && !log_files::is_log(&self.path) {
            return Err(StoreError::Cut(self.path.clone()));
        }
        self.length.set(found.len());
        Ok(())
    }
}

impl FileLock {
    /// Locks the file that `path` leads to. If a link leads to no file, creates an empty one, private to its owner.
    pub fn take(path: &Path) -> Result<FileLock, StoreError> {
        let id = open(&mut opened(), path, true)?;
        let mut lock = FileLock { files: vec![LockedFile::new(path.to_path_buf(), id)], held: false };
        lock.retake()?;
        Ok(lock)
    }

    /// Locks the files of the log, too, after the ledger is open. From then on they are checked.
    pub fn take_log(&mut self) -> Result<(), StoreError> {
        let paths =
            log_files::paths(self.path()).map_err(|error| StoreError::File(self.path().to_path_buf(), error))?;
        let mut opened = opened();
        for path in paths {
            let id = open(&mut opened, &path, false)?;
            lock(&mut opened, id, &path)?;
            self.files.push(LockedFile::new(path, id));
        }
        Ok(())
    }

    fn path(&self) -> &Path {
        &self.files[0].path
    }

    /// Locks the files again after [`FileLock::release`].
    pub fn retake(&mut self) -> Result<(), StoreError> {
        self.check()?;
        let mut opened = opened();
        let locked = self.files.iter().try_for_each(|file| lock(&mut opened, file.id, &file.path));
        if locked.is_err() {
            self.files[1..].iter().for_each(|file| unlock(&mut opened, file.id));
        }
        locked?;
        self.held = true;
        Ok(())
    }

    /// Lets others lock the files.
    pub fn release(&mut self) {
        if std::mem::take(&mut self.held) {
            let mut opened = opened();
            self.files.iter().for_each(|file| unlock(&mut opened, file.id));
        }
    }

    /// True if this lock is taken.
    pub fn is_held(&self) -> bool {
        self.held
    }

    /// Fails if a path no longer leads to its locked file, or if one of these files was cut. Unlocks a cut ledger until
    /// it is restored: commands then find only the log locked, and fail.
    pub fn check(&self) -> Result<(), StoreError> {
        let checked = self.files.iter().try_for_each(LockedFile::check);
        if self.held {
            let (id, mut opened) = (self.files[0].id, opened());
            let is_locked = found(&opened, id).is_some_and(|main| main.locked);
            match &checked {
                Err(StoreError::Cut(_)) => unlock(&mut opened, id),
                Ok(()) if !is_locked => lock(&mut opened, id, self.path())?,
                _ => {}
            }
        }
        checked
    }

    /// Syncs the log, so that every commit so far survives a power cut.
    pub fn sync_log(&self) -> Result<(), StoreError> {
        let Some(log) = self.files.get(1) else { return Ok(()) };
        let synced = found(&opened(), log.id).map_or(Ok(()), |opened| opened.file.sync_data());
        synced.map_err(|error| StoreError::File(log.path.clone(), error))
    }

    /// True if a file was cut: then the log must not be copied into the ledger's file.
    pub fn is_cut(&self) -> bool {
        matches!(self.check(), Err(StoreError::Cut(_)))
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        self.release();
    }
}

fn found(opened: &[OpenedFile], id: FileId) -> Option<&OpenedFile> {
    opened.iter().find(|opened| opened.id == id)
}

fn lock(opened: &mut [OpenedFile], id: FileId, path: &Path) -> Result<(), StoreError> {
    let place = opened.iter_mut().find(|opened| opened.id == id);
    let place = place.ok_or_else(|| StoreError::Moved(path.to_path_buf()))?;
    if place.locked {
        return Err(StoreError::Locked(path.to_path_buf()));
    }
    // A command may be checking the lock.
    match lock_within(&place.file, LOCK_WAIT) {
        Ok(()) => place.locked = true,
        Err(TryLockError::WouldBlock) => return Err(StoreError::Locked(path.to_path_buf())),
        Err(TryLockError::Error(error)) => return Err(StoreError::File(path.to_path_buf(), error)),
    }
    Ok(())
}

/// Locks a file, and waits for others at most this time.
pub(super) fn lock_within(file: &File, most: Duration) -> Result<(), TryLockError> {
    let clock = Clock::new();
    let until = clock.mono().after(most);
    loop {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) if clock.mono() < until => std::thread::sleep(bounds::LOCK_LOOK),
            locked => return locked,
        }
    }
}

fn unlock(opened: &mut [OpenedFile], id: FileId) {
    for opened in opened.iter_mut().filter(|opened| opened.id == id && opened.locked) {
        opened.locked = false;
        // If unlocking fails, the file stays locked until the process ends.
        let _ = opened.file.unlock();
    }
}

/// True if a gateway, this process or another one, has locked the file.
fn is_locked(opened: &[OpenedFile], id: FileId) -> io::Result<bool> {
    let Some(place) = found(opened, id) else { return Ok(false) };
    if place.locked {
        return Ok(true);
    }
    match place.file.try_lock_shared() {
        Ok(()) => place.file.unlock().map(|()| false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Check of a command, before it reads and after it has written: if a gateway has the ledger at `path` open, the files
/// that the path leads to must be the gateway's, and complete. Otherwise no gateway sees the written data.
pub fn check_seen(path: &Path) -> Result<(), StoreError> {
    let clock = Clock::new();
    let until = clock.mono().after(SEEN_WAIT);
    loop {
        match look_seen(path) {
            // A gateway that starts locks one file after the other.
            Err((_, true)) if clock.mono() < until => std::thread::sleep(bounds::LOCK_LOOK),
            looked => return looked.map_err(|(error, _)| error),
        }
    }
}

/// Check of a command that finds no file at `path`: fails if a gateway has it open, which means that it was moved or
/// deleted. A gateway in another process is recognised by its lock on the log.
pub fn check_absent(path: &Path) -> Result<(), StoreError> {
    let failed = |error| StoreError::File(path.to_path_buf(), error);
    let mut opened = opened();
    let mut is_missed = opened.iter().any(|opened| opened.locked && opened.path == path);
    for log in log_files::next_to(path) {
        if let Ok(id) = open(&mut opened, &log, false) {
            is_missed |= is_locked(&opened, id).map_err(failed)?;
        }
    }
    if is_missed { Err(StoreError::Moved(path.to_path_buf())) } else { Ok(()) }
}

/// Checks once. The flag of an error is true if a later check may succeed.
fn look_seen(path: &Path) -> Result<(), (StoreError, bool)> {
    let surely = |error| (error, false);
    let failed = |error| (StoreError::File(path.to_path_buf(), error), false);
    let mut opened = opened();
    let id = open(&mut opened, path, false).map_err(surely)?;
    let has_gateway = is_locked(&opened, id).map_err(failed)?;
    let is_other = !found(&opened, id).is_some_and(|main| main.locked);
    let paths = log_files::paths(path).map_err(failed)?;
    let mut ids = [id; 2];
    for (id, log) in ids.iter_mut().zip(&paths) {
        let is_seen = match open(&mut opened, log, false) {
            Ok(found) => {
                *id = found;
                is_locked(&opened, found).map_err(failed)?
            }
            Err(_) => false,
        };
        if is_seen != has_gateway {
            // A gateway that has the log open has a different file open than the one at the path.
            let unseen = if has_gateway { log.clone() } else { path.to_path_buf() };
            return Err((StoreError::Unseen(unseen), is_other));
        }
    }
    if !has_gateway {
        return Ok(());
    }
    let length = |id: FileId| found(&opened, id).map_or(Ok(0), |found| found.file.metadata().map(|found| found.len()));
    for (file, id, least) in [(path, id, log_files::MAIN_MIN), (&paths[1], ids[1], log_files::INDEX_MIN)] {
        if length(id).map_err(failed)? < least {
            return Err(surely(StoreError::Cut(file.to_path_buf())));
        }
    }
    Ok(())
}
