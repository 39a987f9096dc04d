//! Owns the store thread: commits rows in groups, and tells the loop what happened and which keys there are.
//!
//! Called by the loop's outbox ([`StoreHandle::write`]). fsync has tails of a hundred milliseconds, so nothing of the
//! ledger touches the loop; and no row is ever dropped while the thread lives: what cannot be committed is kept and
//! tried again, and the core stops admitting meanwhile.

pub mod api;
#[cfg(feature = "redis")]
pub mod counters;
pub mod keyform;
pub mod ledger;
pub mod lock;
#[cfg(feature = "redis")]
pub mod remote;
#[cfg(feature = "redis")]
pub mod shared;
pub mod sqlite;

use super::batch_queue::{BatchQueue, IdlePolicy, Polled};
use super::clock::{self, Clock};
use crate::base::limits;
use crate::base::time::{Mono, Unix};
use crate::policy::keys::KeyRecord;
use crate::policy::row::Row;
use api::{Store, StoreError};
use sqlite::Sqlite;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::thread::JoinHandle;
use std::time::Duration;

/// What the store thread says.
#[derive(Clone, PartialEq, Debug)]
pub enum StoreNotice {
    /// The set of keys, all of them: at the start, and after every change by any process.
    Keys(Vec<KeyRecord>),
    /// So many more rows, in the order they were handed over, are committed.
    Committed {
        /// How many.
        rows: u64,
    },
    /// Rows cannot be committed at the moment, or the thread has died: why. Said once until
    /// [`StoreNotice::Recovered`].
    Failed(String),
    /// Committing works again.
    Recovered,
    /// Something that an operator should know, and that stops nothing.
    Warning(String),
}

/// What is said of a thread that a bug has ended.
const DIED: &str = "the thread of the ledger has died";

/// The handing-over end. Dropping it commits what is left and waits for the thread.
pub struct StoreHandle {
    queue: BatchQueue<Vec<Row>>,
    urgent: bool,
    thread: Option<JoinHandle<u64>>,
}

impl StoreHandle {
    /// Hands over rows and returns the vector empty for reuse. While the thread is busy this is a copy under a lock,
    /// without a system call.
    pub fn write(&self, mut rows: Vec<Row>) -> Vec<Row> {
        if !rows.is_empty() {
            self.queue.put(self.urgent, |waiting| waiting.append(&mut rows));
        }
        rows
    }

    /// Commits what is left and ends the thread; returns how many rows could not be committed.
    pub fn finish(mut self) -> u64 {
        self.end()
    }

    fn end(&mut self) -> u64 {
        self.queue.close();
        self.thread.take().map_or(0, |thread| thread.join().unwrap_or(u64::MAX))
    }
}

impl Drop for StoreHandle {
    fn drop(&mut self) {
        self.end();
    }
}

/// What the thread does besides committing.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Duties {
    /// Every hand-over wakes the thread at once (durability before-reply), else rows gather for
    /// `limits::COMMIT_TICK`.
    pub urgent: bool,
    /// Rows older than this are folded into the sums of their days; `None` keeps them for ever.
    pub retention: Option<Duration>,
    /// The keys that the loop has from the start: the ledger's version when they were read, and their [`fingerprint`].
    pub known: Option<(i64, u64)>,
}

/// Starts the thread on `db`; `tell` puts its notices into the loop's mailbox.
pub fn spawn(db: impl Store, duties: Duties, tell: impl Fn(StoreNotice) + Send + 'static) -> io::Result<StoreHandle> {
    let queue = BatchQueue::new(Vec::with_capacity(limits::ROWS_PER_COMMIT));
    let theirs = queue.clone();
    let thread = std::thread::Builder::new().name("store".into());
    let thread = thread.spawn(move || {
        let retention = duties.retention;
        let (seen_version, known) = duties.known.unzip();
        let mut thread = StoreThread { db, tell, known, seen_version, failed: false, retention };
        thread.serve(&theirs)
    })?;
    Ok(StoreHandle { queue, urgent: duties.urgent, thread: Some(thread) })
}

struct StoreThread<B: Store, F: Fn(StoreNotice)> {
    db: B,
    tell: F,
    /// The keys as last told, see [`fingerprint`].
    known: Option<u64>,
    /// The ledger's version when they were read.
    seen_version: Option<i64>,
    failed: bool,
    retention: Option<Duration>,
}

impl<B: Store, F: Fn(StoreNotice)> Drop for StoreThread<B, F> {
    /// A thread that dies is not silent: admission must stop.
    fn drop(&mut self) {
        if std::thread::panicking() {
            (self.tell)(StoreNotice::Failed(DIED.to_string()));
        }
    }
}

impl<B: Store, F: Fn(StoreNotice)> StoreThread<B, F> {
    fn serve(&mut self, queue: &BatchQueue<Vec<Row>>) -> u64 {
        let mut idle = IdlePolicy::new(limits::COMMIT_TICK);
        let mut rows = Vec::with_capacity(limits::ROWS_PER_COMMIT);
        let (clock, mut lost) = (Clock::new(), 0);
        self.look();
        let mut next_look = clock.mono().after(limits::KEYS_LOOK);
        let mut next_fold = clock.mono();
        loop {
            match queue.poll(&mut rows, &mut idle, limits::KEYS_LOOK, Vec::is_empty) {
                Polled::Found => lost += self.commit_all(&rows, queue),
                Polled::Nothing => {}
                Polled::Closed => return lost,
            }
            rows.clear();
            if clock.mono() >= next_look {
                self.look();
                next_look = clock.mono().after(limits::KEYS_LOOK);
            }
            if clock.mono() >= next_fold {
                next_fold = self.fold(clock.mono());
            }
        }
    }

    /// Folds a batch of rows whose time is over. Returns when to go on: after a pause, so that folding much does not
    /// keep rows waiting, or later when nothing is left.
    fn fold(&mut self, now: Mono) -> Mono {
        let Some(retention) = self.retention else { return Mono::NEVER };
        let age = u64::try_from(retention.as_millis()).unwrap_or(u64::MAX);
        let before = Unix(clock::unix().0.saturating_sub(age));
        match self.db.fold(before, limits::ROWS_PER_FOLD) {
            Ok(1..) => now.after(limits::FOLD_PAUSE),
            // What failed is tried again as late as what is done: nothing depends on it.
            Ok(_) | Err(_) => now.after(limits::FOLD_REST),
        }
    }

    /// Commits `rows` in groups, again and again until it succeeds; only when the end has come are the tries counted.
    /// Returns how many rows were given up.
    fn commit_all(&mut self, rows: &[Row], queue: &BatchQueue<Vec<Row>>) -> u64 {
        let (mut rest, mut tries) = (rows, 0);
        while !rest.is_empty() {
            let (group, later) = rest.split_at(rest.len().min(limits::ROWS_PER_COMMIT));
            let Err(error) = self.db.append(group) else {
                rest = later;
                self.succeeded();
                (self.tell)(StoreNotice::Committed { rows: group.len() as u64 });
                continue;
            };
            self.failed_with(&error);
            tries += u32::from(queue.is_closed());
            if tries > limits::LAST_COMMITS {
                break;
            }
            std::thread::sleep(limits::COMMIT_RETRY);
            self.look_at_keys();
        }
        rest.len() as u64
    }

    fn succeeded(&mut self) {
        if std::mem::take(&mut self.failed) {
            (self.tell)(StoreNotice::Recovered);
        }
    }

    fn failed_with(&mut self, error: &StoreError) {
        if !std::mem::replace(&mut self.failed, true) {
            (self.tell)(StoreNotice::Failed(error.to_string()));
        }
    }

    /// Looks whether the ledger is still in its place, and at its keys. To be called while nothing waits to be
    /// committed: then its being there is all that working means.
    fn look(&mut self) {
        match self.db.check() {
            Ok(()) => {
                self.succeeded();
                self.look_at_keys();
            }
            Err(error) => self.failed_with(&error),
        }
    }

    /// Tells the keys if another connection has committed since the last look and the set has changed by it.
    fn look_at_keys(&mut self) {
        // An error here is no news: committing will meet it too, and says so.
        let Ok(version) = self.db.version() else { return };
        if self.seen_version == Some(version) {
            return;
        }
        let Ok(keys) = self.db.list_keys() else { return };
        self.seen_version = Some(version);
        let known = Some(fingerprint(&keys));
        if self.known != known {
            self.known = known;
            (self.tell)(StoreNotice::Keys(keys));
        }
    }
}

/// Tells one set of keys from another, without a second copy of it.
pub fn fingerprint(keys: &[KeyRecord]) -> u64 {
    let mut hasher = DefaultHasher::new();
    keys.hash(&mut hasher);
    hasher.finish()
}

/// Opens the ledger for one gateway at a time.
pub fn open_owner(path: &std::path::Path, durable: bool) -> Result<Sqlite, StoreError> {
    let db = Sqlite::open(path, sqlite::Mode::Owner)?;
    db.set_durable(durable)?;
    Ok(db)
}

#[cfg(test)]
mod tests;
