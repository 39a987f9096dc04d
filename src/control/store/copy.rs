//! Copies of a ledger in a file: backups by a command, and the snapshots that a gateway takes of a ledger on tmpfs. A
//! copy is consistent although others write in the meantime, and is marked as a copy. It replaces an older copy in one
//! step, but no other file.

use super::api::StoreError;
use super::lock::{self, id_of};
use super::log_files;
use super::sqlite::{APPLICATION, COPY};
use crate::base::limits;
use crate::base::time::Mono;
use crate::io::clock::unix;
use crate::io::files::{self, DRAFT_END, FileDraft, folder_of};
use crate::store::bounds;
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, InterruptHandle, OpenFlags};
use rustix::fs::{FlockOperation, fcntl_lock};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs::{File, Metadata, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

/// Copies the ledger at `from` to `to`, with mode 0600: next to it first, then renamed.
pub fn copy(from: &Path, to: &Path) -> Result<(), StoreError> {
    copy_until(from, to, &OnceLock::new())
}

/// Does the same. `stop` receives a handle that aborts it.
fn copy_until(from: &Path, to: &Path, stop: &OnceLock<InterruptHandle>) -> Result<(), StoreError> {
    lock::check_seen(from)?;
    let failed = |error| StoreError::File(to.to_path_buf(), error);
    check_target(from, to)?;
    remove_drafts(to);
    let (draft, file) = FileDraft::beside(to).map_err(failed)?;
    write(from, draft.path(), stop)?;
    mark(&file).map_err(failed)?;
    // The file may have come into use in the meantime.
    check_target(from, to)?;
    draft.replace(file, to).map_err(failed)
}

/// First bytes of every SQLite database (SQLite's "Database File Format", section 1.3).
const MAGIC: &[u8] = b"SQLite format 3\0";
/// Position of the application id in the file, a big-endian number (same section).
const APPLICATION_AT: u64 = 68;

/// Returns the application id of a database, by the first bytes of its file; `None` for another file.
fn application(head: &[u8]) -> Option<i32> {
    head.strip_prefix(MAGIC)?.last_chunk().map(|id| i32::from_be_bytes(*id))
}

/// True if the file is empty, a ledger or a copy of one.
pub fn is_ledger(path: &Path) -> io::Result<bool> {
    let head = files::read_head(path, APPLICATION_AT + 4)?;
    Ok(head.is_empty() || matches!(application(&head), Some(APPLICATION | COPY)))
}

/// Marks the copy in a draft. SQLite may have written something else: it accepts other names for files.
fn mark(draft: &File) -> io::Result<()> {
    match application(&files::head_of(draft, APPLICATION_AT + 4)?) {
        Some(APPLICATION | COPY) => draft.write_all_at(&COPY.to_be_bytes(), APPLICATION_AT),
        _ => Err(io::Error::other("the copy is empty or incomplete")),
    }
}

/// Fails unless a copy of the ledger at `from` may be written to `to`: there must be nothing, a marked copy that is not
/// in use, or an empty file, and it must not be one of the ledger's files under any name.
pub fn check_target(from: &Path, to: &Path) -> Result<(), StoreError> {
    let failed = |error| Err(StoreError::File(to.to_path_buf(), error));
    let refused = |why: &str| failed(io::Error::other(why));
    let found = match std::fs::symlink_metadata(to) {
        Err(error) if error.kind() != ErrorKind::NotFound => return failed(error),
        found => found.ok(),
    };
    for own in of_ledger(&place(from)) {
        let is_own = std::fs::metadata(&own).is_ok_and(|own| found.as_ref().is_some_and(|to| id_of(to) == id_of(&own)));
        if is_own || place(to) == *own {
            return refused("the copy would replace a file of the ledger");
        }
    }
    // SQLite would apply such a file to the copy.
    if let Some(log) = of_ledger(&place(to)).into_iter().skip(1).find(|log| log.symlink_metadata().is_ok()) {
        let log = log.file_name().unwrap_or_default().to_string_lossy().into_owned();
        return refused(&format!("{log} is next to it, so it may be in use: choose another path"));
    }
    if found.is_none() {
        return Ok(());
    }
    let file = match files::open_plain(to) {
        Ok(file) => file,
        Err(error) => return refused(&format!("only an older copy is replaced: {error}: choose another path")),
    };
    // A gateway locks its ledger by `flock`, and SQLite locks a file that it changes by `fcntl`.
    let is_locked = matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
        || matches!(fcntl_lock(&file, FlockOperation::NonBlockingLockShared), Err(Errno::AGAIN | Errno::ACCESS));
    if is_locked {
        return refused("another process has this file open: choose another path");
    }
    let what = match files::head_of(&file, APPLICATION_AT + 4) {
        Err(error) => return failed(error),
        Ok(head) if head.is_empty() => return Ok(()),
        Ok(head) => match application(&head) {
            Some(COPY) => return Ok(()),
            Some(APPLICATION) => "a ledger",
            _ => "not a copy",
        },
    };
    refused(&format!("only an older copy is replaced, and this is {what}: choose another path"))
}

/// Returns the paths of a ledger's files.
fn of_ledger(main: &Path) -> [PathBuf; 4] {
    let [log, index] = log_files::next_to(main);
    let mut journal = main.as_os_str().to_os_string();
    journal.push("-journal");
    [main.to_path_buf(), log, index, journal.into()]
}

/// Returns the path without links, even for a file that does not exist.
fn place(path: &Path) -> PathBuf {
    let in_folder = || Some(std::fs::canonicalize(folder_of(path)).ok()?.join(path.file_name()?));
    std::fs::canonicalize(path).ok().or_else(in_folder).unwrap_or_else(|| path.to_path_buf())
}

/// Hexadecimal digits in the name of a draft.
const DRAFT_DIGITS: usize = 16;

/// Removes old drafts of copies to `to`, which killed processes have left. A recent one may be in use.
fn remove_drafts(to: &Path) {
    let is_draft = |name: OsString| -> Option<bool> {
        let name = name.as_bytes().strip_prefix(to.file_name()?.as_bytes())?.strip_prefix(b".")?;
        let name = name.strip_suffix(b"-journal").unwrap_or(name);
        let digits = name.strip_suffix(DRAFT_END.as_bytes())?;
        Some(digits.len() == DRAFT_DIGITS && digits.iter().all(|digit| b"0123456789abcdef".contains(digit)))
    };
    let newest = unix().0.saturating_sub(bounds::DRAFT_OLD.as_millis() as u64) / 1000;
    let is_old = |found: &Metadata| found.is_file() && u64::try_from(found.mtime()).is_ok_and(|at| at <= newest);
    for entry in std::fs::read_dir(folder_of(to)).into_iter().flatten().flatten() {
        if is_draft(entry.file_name()) == Some(true) && entry.metadata().is_ok_and(|found| is_old(&found)) {
            // A file that cannot be removed is ignored, since nothing reads it.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

fn write(from: &Path, draft: &Path, stop: &OnceLock<InterruptHandle>) -> Result<(), StoreError> {
    // SQLite takes a relative path that begins with `file:` for a URL.
    let draft = std::path::absolute(draft).map_err(|error| StoreError::File(draft.to_path_buf(), error))?;
    let read = || -> rusqlite::Result<()> {
        let connection = Connection::open_with_flags(from, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        let _ = stop.set(connection.get_interrupt_handle());
        connection.busy_timeout(limits::STORE_BUSY)?;
        connection.pragma_update(None, "cache_size", -bounds::LEDGER_CACHE_KIB)?;
        // A path need not be UTF-8.
        let path = ToSqlOutput::Borrowed(ValueRef::Text(draft.as_os_str().as_bytes()));
        connection.execute("VACUUM INTO ?1", [path]).map(drop)
    };
    read().map_err(|error| StoreError::Sqlite(from.to_path_buf(), error))
}

/// Destination and interval of a ledger's snapshots.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SnapshotPlan {
    /// The ledger's file.
    pub from: PathBuf,
    /// The snapshot's file.
    pub to: PathBuf,
    /// Interval between two snapshots, if anything has changed.
    pub every: Duration,
}

impl SnapshotPlan {
    /// True if the ledger has been written since the last snapshot, by the times of the files.
    fn is_behind(&self) -> bool {
        let modified = |path: &Path| std::fs::metadata(path).and_then(|found| Ok((found.modified()?, found.len())));
        let Ok((last, _)) = modified(&self.to) else { return true };
        let log = super::log_files::paths(&self.from).map(|[log, _]| log);
        // A log without bytes was created by opening the ledger.
        let is_newer = |path: PathBuf| modified(&path).is_ok_and(|(at, length)| at > last && length > 0);
        [Ok(self.from.clone()), log].into_iter().flatten().any(is_newer)
    }
}

/// Snapshots of a ledger, each taken by a separate thread, since writing to flash takes seconds.
pub(super) struct Snapshots {
    plan: SnapshotPlan,
    next: Mono,
    changed: bool,
    running: Option<JoinHandle<Result<(), StoreError>>>,
    /// Aborts the running one.
    stop: Arc<OnceLock<InterruptHandle>>,
}

impl Drop for Snapshots {
    /// Aborts the running snapshot, so that its draft does not outlive the process.
    fn drop(&mut self) {
        let Some(thread) = self.running.take() else { return };
        while !thread.is_finished() {
            self.stop.get().into_iter().for_each(InterruptHandle::interrupt);
            std::thread::sleep(bounds::LOCK_LOOK);
        }
    }
}

impl Snapshots {
    /// The first snapshot is due after one interval.
    pub(super) fn new(plan: SnapshotPlan, now: Mono) -> Snapshots {
        let (next, changed) = (now.after(plan.every), plan.is_behind());
        Snapshots { plan, next, changed, running: None, stop: Arc::default() }
    }

    /// Records that the ledger has changed.
    pub(super) fn changed(&mut self) {
        self.changed = true;
    }

    /// Starts a snapshot if one is due. Returns a warning if the last one has failed.
    pub(super) fn take(&mut self, now: Mono) -> Option<String> {
        let finished = self.running.take_if(|thread| thread.is_finished());
        let warning = finished.and_then(|thread| self.join(thread));
        if self.running.is_none() && self.changed && now >= self.next {
            (self.changed, self.next) = (false, now.after(self.plan.every));
            let SnapshotPlan { from, to, .. } = self.plan.clone();
            let thread = std::thread::Builder::new().name("snapshot".into());
            self.stop = Arc::default();
            let stop = self.stop.clone();
            match thread.spawn(move || copy_until(&from, &to, &stop)) {
                Ok(thread) => self.running = Some(thread),
                Err(_) => self.changed = true,
            }
        }
        warning
    }

    /// Takes the last snapshot, unless nothing has changed. Returns a warning if that fails.
    pub(super) fn finish(&mut self) -> Option<String> {
        let warning = self.running.take().and_then(|thread| self.join(thread));
        match std::mem::take(&mut self.changed) {
            true => copy(&self.plan.from, &self.plan.to).err().map(|error| text(&error)),
            false => warning,
        }
    }

    fn join(&mut self, thread: JoinHandle<Result<(), StoreError>>) -> Option<String> {
        let failed = match thread.join() {
            Ok(Ok(())) => return None,
            Ok(Err(error)) => text(&error),
            Err(_) => "the thread that takes snapshots has died".to_string(),
        };
        self.changed = true;
        Some(failed)
    }
}

fn text(error: &StoreError) -> String {
    format!("no snapshot of the ledger was taken: {error}")
}
