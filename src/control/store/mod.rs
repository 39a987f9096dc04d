//! Owns the store thread: commits rows in groups, and informs the event loop of the outcome and of the keys.
//!
//! Called by the loop's outbox ([`LedgerHandle::write`]). fsync can take a hundred milliseconds, so the loop never
//! accesses the ledger itself. No row is ever dropped while the thread lives: rows that cannot be committed are kept
//! and tried again, and the core stops admitting meanwhile.

pub mod alert_claims;
pub mod api;
pub mod bounds;
pub mod copy;
pub mod follow;
mod handle;
pub mod keyform;
pub mod ledger;
pub mod lock;
mod log_files;
pub mod note;
#[cfg(feature = "redis")]
pub mod remote;
mod schedule;
#[cfg(feature = "redis")]
pub mod shared;
pub mod spill;
pub mod sqlite;
pub mod watch;
pub mod who;
pub mod writer_clocks;
pub mod written;

use crate::base::limits;
use crate::base::time::Mono;
use crate::io::batch_queue::{BatchQueue, IdlePolicy, Polled};
use crate::io::channel::Sender;
use crate::io::clock::{self, Clock};
use crate::policy::ledger::LedgerNotice;
use crate::policy::ledger::{Ask, AskAnswer, Ruling};
use crate::policy::row::Row;
use api::StoreError;
use copy::Snapshots;
use handle::{EndGuard, LedgerTransfer, StoreHandle, Tasks, refuse_release};
pub use handle::{LedgerHandle, StoreTurn};
pub use schedule::Duties;
use schedule::Schedule;
use sqlite::Sqlite;
use std::io;
use watch::{Store, Watch};
use writer_clocks::FoldGuard;
use written::Written;

/// Maximum number of rows folded into the sums of their days in one step; commits wait meanwhile.
const ROWS_PER_FOLD: usize = 2000;

/// Starts the thread on `db`; `tell` puts its notices into the loop's mailbox.
pub fn spawn(
    db: impl Store,
    duties: Duties,
    tell: impl Fn(LedgerNotice) + Send + 'static,
) -> io::Result<Box<dyn LedgerHandle>> {
    let queue = BatchQueue::new(Tasks::with_room());
    let theirs = queue.clone();
    let urgent = duties.urgent;
    let thread = std::thread::Builder::new().name("store".into());
    let thread = thread.spawn(move || {
        let _ending = EndGuard(theirs.clone());
        let (clock, schedule) = (Clock::new(), Schedule::new(&duties));
        let mut thread = StoreThread {
            db,
            watch: Watch::new(duties.seen, FoldGuard::new(duties.retention, duties.clocks), &tell),
            refused: false,
            gathered: Vec::new(),
            schedule,
            snapshots: duties.snapshot.map(|plan| Snapshots::new(plan, clock.mono())),
            clock,
        };
        let rest = thread.serve(&theirs);
        // A ledger that was cut must not replace its last copy.
        let snapshots = thread.snapshots.take().filter(|_| thread.db.check().is_ok());
        // Closing the ledger writes to its file, and the snapshot must not be older than the file.
        drop(thread);
        let warning = snapshots.and_then(|mut snapshots| snapshots.finish());
        warning.into_iter().for_each(|text| tell(LedgerNotice::Warning(text)));
        rest
    })?;
    Ok(Box::new(StoreHandle { queue, urgent, thread: Some(thread) }))
}

struct StoreThread<B: Store, F: Fn(LedgerNotice)> {
    /// Dropped first: if the thread dies, nothing may delay the notice.
    watch: Watch<F>,
    db: B,
    /// A release of the ledger was refused because it failed.
    refused: bool,
    /// Rows that wait for a commit to be due.
    gathered: Vec<Row>,
    schedule: Schedule,
    snapshots: Option<Snapshots>,
    clock: Clock,
}

impl<B: Store, F: Fn(LedgerNotice)> StoreThread<B, F> {
    /// Works until the end. Returns the rows that are left.
    fn serve(&mut self, queue: &BatchQueue<Tasks>) -> Vec<Row> {
        let mut idle = IdlePolicy::new(self.schedule.tick());
        let mut tasks = Tasks::with_room();
        self.look();
        let mut next_look = self.clock.mono().after(bounds::KEYS_LOOK);
        let mut next_fold = self.clock.mono();
        loop {
            let wait = match idle.is_idle() {
                _ if self.watch.follower.is_reading() => bounds::KEYS_REST,
                true => bounds::KEYS_LOOK_IDLE,
                false => bounds::KEYS_LOOK,
            };
            let wait = self.schedule.wait(wait, !self.gathered.is_empty(), self.clock.mono());
            let ends = queue.poll(&mut tasks, &mut idle, wait, Tasks::is_empty) == Polled::Closed;
            if let Err(rest) = self.work(&mut tasks, queue, ends) {
                return rest;
            }
            if ends {
                return Vec::new();
            }
            if self.watch.follower.is_reading() || self.clock.mono() >= next_look {
                self.look();
                next_look = self.clock.mono().after(bounds::KEYS_LOOK);
            }
            if self.clock.mono() >= next_fold {
                next_fold = self.fold(self.clock.mono());
            }
            self.look_after_copies();
        }
    }

    /// Syncs the log and takes a snapshot, if they are due.
    fn look_after_copies(&mut self) {
        if self.schedule.takes_sync(self.clock.mono())
            && let Err(error) = self.db.sync()
        {
            self.watch.warn(format!("{error}: usage records may be lost if the power fails"));
        }
        let warning = self.snapshots.as_mut().and_then(|snapshots| snapshots.take(self.clock.mono()));
        warning.into_iter().for_each(|text| self.watch.warn(text));
    }

    /// Does the tasks; rows wait until a commit is due, or the thread `ends`. An error contains the rows left at the
    /// end.
    fn work(&mut self, tasks: &mut Tasks, queue: &BatchQueue<Tasks>, ends: bool) -> Result<(), Vec<Row>> {
        for shown in tasks.lookups.chunks(limits::IDS_PER_LOOKUP) {
            let found = self.db.check().and_then(|()| self.db.find_keys(&api::ids(shown)));
            (self.watch.tell)(LedgerNotice::LookedUp(api::answers(shown, found)));
        }
        tasks.lookups.clear();
        if !tasks.asks.is_empty() {
            let promised = self.db.promise(&tasks.asks);
            let ruling = if promised.is_ok() { Ruling::Admitted } else { Ruling::Unavailable };
            self.answer(&mut tasks.asks, ruling);
            promised.err().into_iter().for_each(|error| self.watch.failed_with(&error));
        }
        match self.gathered.is_empty() {
            true => std::mem::swap(&mut self.gathered, &mut tasks.rows),
            false => self.gathered.append(&mut tasks.rows),
        }
        let is_due = self.schedule.is_due(self.gathered.len(), self.clock.mono());
        if !is_due && !ends && tasks.turn.is_none() {
            return Ok(());
        }
        let mut rows = std::mem::take(&mut self.gathered);
        let rest = self.commit_all(&rows, &mut tasks.turn, queue);
        let rest = rows.split_off(rows.len() - rest);
        rows.clear();
        // The storage returns to the queue, so that the loop need not allocate.
        tasks.rows = rows;
        if std::mem::take(&mut self.refused) {
            return self.wait(rest, queue);
        }
        if !rest.is_empty() {
            return Err(rest);
        }
        match tasks.turn.take() {
            None => Ok(()),
            Some(LedgerTransfer::Retake(rows, told)) => self.retake(rows, &told, queue),
            Some(LedgerTransfer::Release(told)) => {
                let _ = told.send(self.db.release().map_err(|error| error.to_string()));
                self.wait(Vec::new(), queue)
            }
        }
    }

    /// Waits while another process has the ledger, or was about to get it: the ledger is not accessed until it is taken
    /// back. New rows wait, so that they are written after the rows that come back with the ledger. `refused` are rows
    /// that could not be written before a refused release, and that precede all others; empty if the ledger was
    /// released.
    fn wait(&mut self, mut refused: Vec<Row>, queue: &BatchQueue<Tasks>) -> Result<(), Vec<Row>> {
        let (mut idle, mut tasks, mut waiting) = (IdlePolicy::new(bounds::KEYS_LOOK), Tasks::default(), Vec::new());
        loop {
            let polled = queue.poll(&mut tasks, &mut idle, bounds::KEYS_LOOK, Tasks::is_empty);
            waiting.append(&mut tasks.rows);
            self.answer(&mut tasks.asks, Ruling::Unavailable);
            if !tasks.lookups.is_empty() {
                (self.watch.tell)(LedgerNotice::LookedUp(api::unavailable(&tasks.lookups)));
                tasks.lookups.clear();
            }
            match tasks.turn.take() {
                Some(LedgerTransfer::Retake(mut rows, told)) => {
                    if !refused.is_empty() {
                        let _ = told.send(());
                    }
                    refused.append(&mut rows);
                    refused.append(&mut waiting);
                    return self.retake(refused, &told, queue);
                }
                Some(LedgerTransfer::Release(told)) => drop(told.send(Ok(()))),
                None if polled == Polled::Closed => {
                    // The process that has the ledger takes the last snapshot.
                    self.snapshots = None;
                    refused.append(&mut waiting);
                    return Err(refused);
                }
                None => {}
            }
        }
    }

    /// Answers questions, which only had promises.
    fn answer(&self, asks: &mut Vec<Ask>, ruling: Ruling) {
        for ask in asks.drain(..) {
            let answer = AskAnswer { ruling, ..AskAnswer::unavailable(ask) };
            (self.watch.tell)(LedgerNotice::Answered(Box::new(answer)));
        }
    }

    /// Takes the ledger back and appends those of `rows` that it does not have. Tries again until it succeeds or the
    /// process is to end.
    fn retake(&mut self, rows: Vec<Row>, told: &Sender<()>, queue: &BatchQueue<Tasks>) -> Result<(), Vec<Row>> {
        let mut end = End::default();
        let written = loop {
            let retaken = self.db.retake();
            let is_ours = retaken.is_ok();
            let error = match retaken.and_then(|()| self.db.append_missing(&rows)) {
                Ok(written) => break written,
                Err(error) => error,
            };
            if matches!(error, StoreError::Foreign(..)) && !self.watch.failed {
                (self.watch.tell)(LedgerNotice::Outgrown(error.to_string()));
            }
            self.watch.failed_with(&error);
            let _ = told.send(());
            if end.has_come(queue.is_closed()) {
                return Err(rows);
            }
            std::thread::sleep(bounds::COMMIT_RETRY);
            if is_ours {
                self.look_at_keys();
            }
        };
        self.watch.succeeded();
        self.wrote(written, &rows);
        let _ = told.send(());
        Ok(())
    }

    /// Folds a batch of rows whose retention has ended. Returns the time of the next batch: after a pause, so that rows
    /// to be committed do not wait, or later if no rows are left to fold.
    fn fold(&mut self, now: Mono) -> Mono {
        // While the clock may be wrong, it is checked again with each look at the ledger.
        let Some(before) = self.watch.folding.before(clock::unix()) else { return now.after(bounds::KEYS_LOOK) };
        match self.db.fold(before, ROWS_PER_FOLD) {
            Ok(1..) => {
                self.snapshots.iter_mut().for_each(Snapshots::changed);
                now.after(bounds::FOLD_PAUSE)
            }
            // After a failure the next attempt may be as late as after success, since no state depends on it.
            Ok(_) | Err(_) => now.after(bounds::FOLD_REST),
        }
    }

    /// Commits `rows` in groups. Tries again until it succeeds, until the process is to end, or until a release of the
    /// ledger was refused. Returns the number of rows left, which are the last ones.
    fn commit_all(&mut self, rows: &[Row], turn: &mut Option<LedgerTransfer>, queue: &BatchQueue<Tasks>) -> usize {
        let (mut rest, mut end) = (rows, End::default());
        while !rest.is_empty() {
            let (group, later) = rest.split_at(rest.len().min(bounds::ROWS_PER_COMMIT));
            self.judge_clock();
            let error = match self.db.append(group) {
                Ok(written) => {
                    rest = later;
                    self.watch.succeeded();
                    self.wrote(written, group);
                    continue;
                }
                Err(error) => error,
            };
            self.watch.failed_with(&error);
            self.refused |= refuse_release(turn, &error);
            self.refused |= queue.put(false, |tasks| refuse_release(&mut tasks.turn, &error));
            // The caller whose release is refused takes the ledger back next and must not wait: rows are tried again
            // then.
            if self.refused || end.has_come(queue.is_closed()) {
                break;
            }
            std::thread::sleep(bounds::COMMIT_RETRY);
            self.look_at_keys();
        }
        rest.len()
    }

    /// Does everything that follows an append of `rows`.
    fn wrote(&mut self, written: Written, rows: &[Row]) {
        if !written.is_empty() {
            self.watch.folding.wrote(rows);
            self.schedule.committed(self.clock.mono());
            self.snapshots.iter_mut().for_each(Snapshots::changed);
        }
        if !rows.is_empty() {
            (self.watch.tell)(LedgerNotice::Committed(rows.len() as u64));
        }
    }

    /// Checks that the ledger's file is still at its path, and reads changes of the keys. Call it only while no rows
    /// wait to be committed: then the ledger works if its file is there.
    fn look(&mut self) {
        match self.db.check() {
            Ok(()) => {
                self.watch.succeeded();
                self.look_at_keys();
                self.judge_clock();
            }
            Err(error) => self.watch.failed_with(&error),
        }
    }

    /// Reports changes of the keys.
    fn look_at_keys(&mut self) {
        // An error here is not reported: committing will meet it too, and reports it.
        if self.db.check().is_err() {
            return;
        }
        let looked = self.watch.look_at_keys(&mut self.db);
        self.watch.tell_odd(&mut self.db);
        match looked {
            Ok(true) => {
                self.snapshots.iter_mut().for_each(Snapshots::changed);
                // Committing will meet an error, too.
                let _ = self.watch.look_at_writer_clocks(&mut self.db);
            }
            Ok(false) => {}
            // Committing may work although the keys cannot be read.
            Err(error) => self.watch.warn(format!("{error}: changes of keys cannot be read")),
        }
    }

    fn judge_clock(&mut self) {
        // If the result cannot be written, this process still knows it.
        let _ = self.watch.judge_clock(&mut self.db, clock::unix());
    }
}

/// Limit on repeated attempts: none until the process is to end, and a short time after that.
#[derive(Default)]
struct End {
    clock: Clock,
    until: Option<Mono>,
}

impl End {
    /// Counts a failure. True if it was the last attempt. `closed`: no more tasks will come.
    fn has_come(&mut self, closed: bool) -> bool {
        let now = self.clock.mono();
        closed && now >= *self.until.get_or_insert(now.after(bounds::LAST_COMMITS))
    }
}

/// Opens the ledger for one gateway at a time. A new one gets pages of `page_size` bytes.
pub fn open_owner(path: &std::path::Path, durable: bool, page_size: u32) -> Result<Sqlite, StoreError> {
    let db = Sqlite::open_sized(path, sqlite::Mode::Owner, page_size)?;
    db.set_durable(durable)?;
    Ok(db)
}

#[cfg(test)]
mod tests;
