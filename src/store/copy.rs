//! Copies of a ledger in a file: backups by a command, and the snapshots that a gateway takes of a ledger on tmpfs. A
//! copy is consistent although others write meanwhile, and replaces an older one in one step.

use super::api::StoreError;
use super::lock;
use super::sqlite::create_draft;
use crate::base::limits;
use crate::base::time::Mono;
use rusqlite::{Connection, OpenFlags};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

/// Copies the ledger at `from` to `to`, with mode 0600: next to it first, then renamed.
pub fn copy(from: &Path, to: &Path) -> Result<(), StoreError> {
    lock::check_seen(from)?;
    let failed = |error| StoreError::File(to.to_path_buf(), error);
    if std::fs::canonicalize(to).is_ok_and(|to| std::fs::canonicalize(from).is_ok_and(|from| to == from)) {
        return Err(failed(io::Error::other("the copy would replace the ledger")));
    }
    let draft = create_draft(to).map_err(failed)?;
    let copied = write(from, &draft).and_then(|()| put(&draft, to).map_err(failed));
    if copied.is_err() {
        // What cannot be removed is a file without a reader.
        let _ = std::fs::remove_file(&draft);
    }
    copied
}

fn write(from: &Path, draft: &Path) -> Result<(), StoreError> {
    let read = || -> rusqlite::Result<()> {
        let connection = Connection::open_with_flags(from, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        connection.busy_timeout(limits::STORE_BUSY)?;
        connection.pragma_update(None, "cache_size", -limits::LEDGER_CACHE_KIB)?;
        connection.execute("VACUUM INTO ?1", [draft.to_string_lossy()]).map(drop)
    };
    read().map_err(|error| StoreError::Sqlite(from.to_path_buf(), error))
}

/// Syncs the draft and gives it its name.
fn put(draft: &Path, to: &Path) -> io::Result<()> {
    File::open(draft)?.sync_all()?;
    std::fs::rename(draft, to)?;
    let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

/// Where snapshots of a ledger are written, and how often.
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
    /// True if the ledger has been written since the last snapshot, as far as the times of the files say.
    fn is_behind(&self) -> bool {
        let modified = |path: &Path| std::fs::metadata(path).and_then(|found| Ok((found.modified()?, found.len())));
        let Ok((last, _)) = modified(&self.to) else { return true };
        let log = super::log_files::paths(&self.from).map(|[log, _]| log);
        // A log without bytes was created by opening the ledger.
        let is_newer = |path: PathBuf| modified(&path).is_ok_and(|(at, length)| at > last && length > 0);
        [Ok(self.from.clone()), log].into_iter().flatten().any(is_newer)
    }
}

/// Snapshots of a ledger, each by a thread of its own, since writing to flash takes seconds.
pub(super) struct Snapshots {
    plan: SnapshotPlan,
    next: Mono,
    changed: bool,
    running: Option<JoinHandle<Result<(), StoreError>>>,
}

impl Snapshots {
    /// The first snapshot is due after one interval.
    pub(super) fn new(plan: SnapshotPlan, now: Mono) -> Snapshots {
        let (next, changed) = (now.after(plan.every), plan.is_behind());
        Snapshots { plan, next, changed, running: None }
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
            match thread.spawn(move || copy(&from, &to)) {
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
