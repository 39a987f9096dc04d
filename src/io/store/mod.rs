//! Owns the store thread: commits rows in groups, and tells the loop what happened and which keys there are.
//!
//! Called by the loop's outbox ([`StoreHandle::write`]). fsync has tails of a hundred milliseconds, so nothing of the
//! ledger touches the loop; and no row is ever dropped while the thread lives: what cannot be committed is kept and
//! tried again, and the core stops admitting meanwhile.

pub mod api;
#[cfg(feature = "redis")]
pub mod counters;
pub mod follow;
pub mod keyform;
pub mod ledger;
pub mod lock;
mod log_files;
pub mod moments;
pub mod note;
#[cfg(feature = "redis")]
pub mod remote;
#[cfg(feature = "redis")]
pub mod shared;
pub mod spill;
pub mod sqlite;

use super::batch_queue::{BatchQueue, IdlePolicy, Polled};
use super::channel::{Sender, channel};
use super::clock::{self, Clock};
use crate::base::limits;
use crate::base::time::{Mono, Unix};
use crate::policy::keys::{KeyAnswer, KeyId, KeyNews};
use crate::policy::row::Row;
use api::{Batch, Leftover, Store, StoreError};
use follow::{Follower, KeySource, KeysSeen};
use moments::{FoldGuard, Moments};
use sqlite::Sqlite;
use std::collections::HashSet;
use std::io;
use std::thread::JoinHandle;
use std::time::Duration;

/// What the store thread says.
#[derive(Clone, PartialEq, Debug)]
pub enum StoreNotice {
    /// What is new of the keys, after a change by any process.
    Keys(KeyNews),
    /// What there is of keys that were looked up.
    LookedUp(Vec<(KeyId, KeyAnswer)>),
    /// The newest usage record that the ledger knows.
    Newest {
        /// When it was admitted.
        at: Unix,
        /// An operator has accepted the present time since it was told last.
        accepted: bool,
    },
    /// So many more rows, in the order they were handed over, are committed.
    Committed {
        /// How many.
        rows: u64,
    },
    /// Rows cannot be committed at the moment, or the thread has died: why. Said once until
    /// [`StoreNotice::Recovered`].
    Failed(String),
    /// A newer version has changed the ledger while it was away: this one cannot read it any more, and why.
    Outgrown(String),
    /// Committing works again.
    Recovered,
    /// Something that an operator should know, and that stops nothing.
    Warning(String),
}

/// What is said of a thread that a bug has ended.
const DIED: &str = "the thread of the ledger has died";

/// What waits for the thread.
#[derive(Default)]
struct Tasks {
    rows: Vec<Row>,
    /// Keys that are looked up before the rows are written.
    lookups: Vec<KeyId>,
    /// Behind the rows.
    turn: Option<Turn>,
    /// The thread has ended, and takes nothing any more.
    ended: bool,
}

/// The ledger goes to another process, or comes back.
enum Turn {
    /// Commit what there is and let another process have the ledger; where that cannot be done, keep it and say why. In
    /// any case rows wait from here on.
    Release(Sender<Result<(), String>>),
    /// Write rows that may be there already, if nothing else has the ledger, and let go of it again; else they come
    /// back.
    Offer(Vec<Row>, Sender<Result<(), Vec<Row>>>),
    /// Take the ledger back, with rows that may be in it already; told after the first try, whatever came of it. Where
    /// giving it away was refused that try has been made.
    Retake(Vec<Row>, Sender<()>),
}

impl Tasks {
    fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.lookups.is_empty() && self.turn.is_none()
    }

    /// Whoever waits for an answer hears that there is none; rows are left for [`StoreHandle::finish`].
    fn end(&mut self) {
        self.ended = true;
        if let Some(Turn::Retake(mut rows, _) | Turn::Offer(mut rows, _)) = self.turn.take() {
            self.rows.append(&mut rows);
        }
    }
}

/// A hand-over does not wait for a ledger that fails. True if one was refused.
fn refuse_release(turn: &mut Option<Turn>, error: &StoreError) -> bool {
    match turn.take_if(|turn| matches!(turn, Turn::Release(_))) {
        Some(Turn::Release(told)) => told.send(Err(error.to_string())).is_ok(),
        _ => false,
    }
}

/// The handing-over end. Dropping it commits what is left and waits for the thread.
pub struct StoreHandle {
    queue: BatchQueue<Tasks>,
    urgent: bool,
    thread: Option<JoinHandle<Vec<Row>>>,
}

/// Gives the ledger to another process and takes it back, from a thread that may wait.
#[derive(Clone)]
pub struct StoreTurn {
    queue: BatchQueue<Tasks>,
}

/// Says that the thread has ended, however it did.
struct Ending(BatchQueue<Tasks>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.put(false, Tasks::end);
    }
}

impl StoreTurn {
    fn give(&self, turn: Turn) {
        self.queue.put(true, |tasks| {
            tasks.turn = Some(turn);
            if tasks.ended {
                tasks.end();
            }
        });
    }

    /// Waits until every row handed over so far is committed and the ledger is free for another process. An error says
    /// why it could not be given away; it stays ours. After either, rows wait until [`StoreTurn::retake`].
    pub fn release(&self) -> Result<(), String> {
        let (told, answer) = channel();
        self.give(Turn::Release(told));
        answer.recv().unwrap_or_else(|_| Err(DIED.to_string()))
    }

    /// While the ledger is away: writes `rows` that may be in it already, if no other process has it, and leaves it
    /// free. Else they come back.
    pub fn offer(&self, rows: Vec<Row>) -> Result<(), Vec<Row>> {
        let (told, answer) = channel();
        self.give(Turn::Offer(rows, told));
        // A thread that has died has said so.
        answer.recv().unwrap_or(Ok(()))
    }

    /// Takes the ledger back, with `rows` that come before all others and may be in it already. Where it cannot be had
    /// at once the thread goes on trying, and says that the ledger has failed.
    pub fn retake(&self, rows: Vec<Row>) {
        let (told, answer) = channel();
        self.give(Turn::Retake(rows, told));
        // A thread that has died has said so.
        let _ = answer.recv();
    }
}

impl StoreHandle {
    /// Hands over rows and returns the vector empty for reuse. While the thread is busy this is a copy under a lock,
    /// without a system call.
    pub fn write(&self, mut rows: Vec<Row>) -> Vec<Row> {
        if !rows.is_empty() {
            self.queue.put(self.urgent, |waiting| waiting.rows.append(&mut rows));
        }
        rows
    }

    /// Has keys looked up, at once.
    pub fn look_up(&self, ids: &[KeyId]) {
        self.queue.put(true, |waiting| waiting.lookups.extend_from_slice(ids));
    }

    /// The way to give the ledger to another process.
    pub fn turn(&self) -> StoreTurn {
        StoreTurn { queue: self.queue.clone() }
    }

    /// Commits what is left and ends the thread; returns what could not be committed.
    pub fn finish(mut self) -> Leftover {
        self.end()
    }

    fn end(&mut self) -> Leftover {
        self.queue.close();
        let Some(thread) = self.thread.take() else { return Leftover::default() };
        let (mut rows, died) = thread.join().map_or((Vec::new(), true), |rows| (rows, false));
        // What it had not taken yet when it gave up.
        self.queue.put(false, |tasks| rows.append(&mut tasks.rows));
        let batches = if rows.is_empty() { Vec::new() } else { vec![Batch { rows, ..Batch::default() }] };
        Leftover { batches, died }
    }
}

impl Drop for StoreHandle {
    fn drop(&mut self) {
        self.end();
    }
}

/// What the thread does besides committing.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Duties {
    /// Every hand-over wakes the thread at once (durability before-reply), else rows gather for
    /// `limits::COMMIT_TICK`.
    pub urgent: bool,
    /// Rows older than this are folded into the sums of their days; `None` keeps them for ever.
    pub retention: Option<Duration>,
    /// Where the changes of the keys stood before the loop was given all of them; by default it has none.
    pub seen: KeysSeen,
    /// What the loop knows of the clocks that wrote the ledger.
    pub moments: Moments,
}

/// Starts the thread on `db`; `tell` puts its notices into the loop's mailbox.
pub fn spawn(
    db: impl Store + KeySource,
    duties: Duties,
    tell: impl Fn(StoreNotice) + Send + 'static,
) -> io::Result<StoreHandle> {
    let queue = BatchQueue::new(Tasks { rows: Vec::with_capacity(limits::ROWS_PER_COMMIT), ..Tasks::default() });
    let theirs = queue.clone();
    let thread = std::thread::Builder::new().name("store".into());
    let thread = thread.spawn(move || {
        let _ending = Ending(theirs.clone());
        let (folding, follower) = (FoldGuard::new(duties.retention, duties.moments), Follower::new(duties.seen));
        let (failed, refused, warned) = (false, false, HashSet::new());
        let mut thread = StoreThread { db, tell, follower, failed, refused, folding, warned };
        thread.serve(&theirs)
    })?;
    Ok(StoreHandle { queue, urgent: duties.urgent, thread: Some(thread) })
}

struct StoreThread<B: Store + KeySource, F: Fn(StoreNotice)> {
    db: B,
    tell: F,
    follower: Follower,
    failed: bool,
    /// The ledger was to be given away while it failed.
    refused: bool,
    folding: FoldGuard,
    /// The warnings that were given.
    warned: HashSet<String>,
}

impl<B: Store + KeySource, F: Fn(StoreNotice)> Drop for StoreThread<B, F> {
    /// A thread that dies is not silent: admission must stop.
    fn drop(&mut self) {
        if std::thread::panicking() {
            (self.tell)(StoreNotice::Failed(DIED.to_string()));
        }
    }
}

impl<B: Store + KeySource, F: Fn(StoreNotice)> StoreThread<B, F> {
    /// Works until the end; what is left then.
    fn serve(&mut self, queue: &BatchQueue<Tasks>) -> Vec<Row> {
        let mut idle = IdlePolicy::new(limits::COMMIT_TICK);
        let mut tasks = Tasks { rows: Vec::with_capacity(limits::ROWS_PER_COMMIT), ..Tasks::default() };
        let clock = Clock::new();
        self.look();
        let mut next_look = clock.mono().after(limits::KEYS_LOOK);
        let mut next_fold = clock.mono();
        loop {
            let wait = if self.follower.is_reading() { limits::KEYS_REST } else { limits::KEYS_LOOK };
            if queue.poll(&mut tasks, &mut idle, wait, Tasks::is_empty) == Polled::Closed {
                return Vec::new();
            }
            if let Err(rest) = self.work(&mut tasks, queue) {
                return rest;
            }
            if self.follower.is_reading() || clock.mono() >= next_look {
                self.look();
                next_look = clock.mono().after(limits::KEYS_LOOK);
            }
            if clock.mono() >= next_fold {
                next_fold = self.fold(clock.mono());
            }
        }
    }

    /// Does what was found; an error is what was left when the end came.
    fn work(&mut self, tasks: &mut Tasks, queue: &BatchQueue<Tasks>) -> Result<(), Vec<Row>> {
        for ids in tasks.lookups.chunks(limits::IDS_PER_LOOKUP) {
            let found = self.db.check().and_then(|()| self.db.find_keys(ids));
            (self.tell)(StoreNotice::LookedUp(api::answers(ids, found)));
        }
        tasks.lookups.clear();
        let rest = self.commit_all(&tasks.rows, &mut tasks.turn, queue);
        let rest = tasks.rows.split_off(tasks.rows.len() - rest);
        tasks.rows.clear();
        if std::mem::take(&mut self.refused) {
            return self.wait(rest, queue);
        }
        if !rest.is_empty() {
            return Err(rest);
        }
        match tasks.turn.take() {
            None => Ok(()),
            Some(Turn::Retake(rows, told)) => self.retake(rows, &told, queue),
            // The ledger is not away.
            Some(Turn::Offer(rows, told)) => {
                let _ = told.send(Err(rows));
                Ok(())
            }
            Some(Turn::Release(told)) => {
                let _ = told.send(self.db.release().map_err(|error| error.to_string()));
                self.wait(Vec::new(), queue)
            }
        }
    }

    /// Another process has the ledger, or was to have it: nothing of it is touched until it comes back, and rows wait,
    /// so that they stay behind those that come back with it. `refused` are those that could not be written when it was
    /// to be given away, and that come before these; none where it was.
    fn wait(&mut self, mut refused: Vec<Row>, queue: &BatchQueue<Tasks>) -> Result<(), Vec<Row>> {
        let (mut idle, mut tasks, mut waiting) = (IdlePolicy::new(limits::KEYS_LOOK), Tasks::default(), Vec::new());
        loop {
            let polled = queue.poll(&mut tasks, &mut idle, limits::KEYS_LOOK, Tasks::is_empty);
            waiting.append(&mut tasks.rows);
            if !tasks.lookups.is_empty() {
                (self.tell)(StoreNotice::LookedUp(api::unavailable(&tasks.lookups)));
                tasks.lookups.clear();
            }
            match tasks.turn.take() {
                Some(Turn::Retake(mut rows, told)) => {
                    if !refused.is_empty() {
                        let _ = told.send(());
                    }
                    refused.append(&mut rows);
                    refused.append(&mut waiting);
                    return self.retake(refused, &told, queue);
                }
                Some(Turn::Release(told)) => drop(told.send(Ok(()))),
                Some(Turn::Offer(rows, told)) => drop(told.send(self.offer(rows))),
                None if polled == Polled::Closed => {
                    refused.append(&mut waiting);
                    return Err(refused);
                }
                None => {}
            }
        }
    }

    /// Writes rows while the ledger is away, if nothing else has it; else gives them back.
    fn offer(&mut self, rows: Vec<Row>) -> Result<(), Vec<Row>> {
        let written = self.db.retake().and_then(|()| self.db.append_missing(&rows));
        // Sums that lag behind are brought up to date by whoever has the ledger next.
        let _ = self.db.release();
        match written {
            Ok(_) => (self.tell)(StoreNotice::Committed { rows: rows.len() as u64 }),
            Err(_) => return Err(rows),
        }
        Ok(())
    }

    /// Takes the ledger back and appends what it does not have of `rows`: again and again until it succeeds, or until
    /// the end has come.
    fn retake(&mut self, rows: Vec<Row>, told: &Sender<()>, queue: &BatchQueue<Tasks>) -> Result<(), Vec<Row>> {
        let mut end = End::default();
        loop {
            let retaken = self.db.retake();
            let is_ours = retaken.is_ok();
            let Err(error) = retaken.and_then(|()| self.db.append_missing(&rows)) else { break };
            if matches!(error, StoreError::Foreign(..)) && !self.failed {
                (self.tell)(StoreNotice::Outgrown(error.to_string()));
            }
            self.failed_with(&error);
            let _ = told.send(());
            if end.has_come(queue.is_closed()) {
                return Err(rows);
            }
            std::thread::sleep(limits::COMMIT_RETRY);
            if is_ours {
                self.look_at_keys();
            }
        }
        self.succeeded();
        if !rows.is_empty() {
            (self.tell)(StoreNotice::Committed { rows: rows.len() as u64 });
        }
        let _ = told.send(());
        Ok(())
    }

    /// Folds a batch of rows whose time is over. Returns when to go on: after a pause, so that folding much does not
    /// keep rows waiting, or later when nothing is left.
    fn fold(&mut self, now: Mono) -> Mono {
        // While the clock may be wrong it is asked again with each look at the ledger.
        let Some(before) = self.folding.before(clock::unix()) else { return now.after(limits::KEYS_LOOK) };
        match self.db.fold(before, limits::ROWS_PER_FOLD) {
            Ok(1..) => now.after(limits::FOLD_PAUSE),
            // What failed is tried again as late as what is done: nothing depends on it.
            Ok(_) | Err(_) => now.after(limits::FOLD_REST),
        }
    }

    /// Commits `rows` in groups, again and again until it succeeds, until the end has come, or until giving the ledger
    /// away was refused. Returns how many rows, the last ones, are left.
    fn commit_all(&mut self, rows: &[Row], turn: &mut Option<Turn>, queue: &BatchQueue<Tasks>) -> usize {
        let (mut rest, mut end) = (rows, End::default());
        while !rest.is_empty() {
            let (group, later) = rest.split_at(rest.len().min(limits::ROWS_PER_COMMIT));
            self.judge_clock();
            let Err(error) = self.db.append(group) else {
                rest = later;
                self.folding.wrote(group);
                self.succeeded();
                (self.tell)(StoreNotice::Committed { rows: group.len() as u64 });
                continue;
            };
            self.failed_with(&error);
            self.refused |= refuse_release(turn, &error);
            self.refused |= queue.put(false, |tasks| refuse_release(&mut tasks.turn, &error));
            // Whoever was refused takes the ledger back next, and is not to wait for it: rows are tried again there.
            if self.refused || end.has_come(queue.is_closed()) {
                break;
            }
            std::thread::sleep(limits::COMMIT_RETRY);
            self.look_at_keys();
        }
        rest.len()
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
                self.judge_clock();
            }
            Err(error) => self.failed_with(&error),
        }
    }

    /// Tells what has changed of the keys.
    fn look_at_keys(&mut self) {
        // An error here is no news: committing will meet it too, and says so.
        if self.db.check().is_err() {
            return;
        }
        let (tell, version) = (&self.tell, self.follower.version());
        let looked = self.follower.look(&mut self.db, &mut |news| tell(StoreNotice::Keys(news)));
        self.tell_odd();
        // Committing may go on where the keys cannot be read.
        if let Err(error) = looked {
            return self.warn(format!("{error}: changes of keys cannot be read"));
        }
        if self.follower.version() == version {
            return;
        }
        let Ok(moments) = self.db.moments() else { return };
        if self.folding.learn(moments) {
            (self.tell)(StoreNotice::Newest { at: moments.newest, accepted: true });
        }
    }
}

impl<B: Store + KeySource, F: Fn(StoreNotice)> StoreThread<B, F> {
    /// Looks whether the clock has run far ahead of the newest row.
    fn judge_clock(&mut self) {
        let judged = self.folding.judge(clock::unix());
        if let Some(held) = judged.remember {
            // Where it cannot be written, this process knows it all the same.
            let _ = self.db.hold_fold(held);
        }
        judged.warning.into_iter().for_each(|text| (self.tell)(StoreNotice::Warning(text)));
    }

    /// Names the records that were passed over, those among them that were read at the start.
    fn tell_odd(&mut self) {
        self.db.take_odd().into_iter().for_each(|text| self.warn(text));
    }

    /// Says something once.
    fn warn(&mut self, text: String) {
        if self.warned.len() < limits::ODD_ENTRIES_MAX && self.warned.insert(text.clone()) {
            (self.tell)(StoreNotice::Warning(text));
        }
    }
}

/// How long what fails is tried again: for ever, but not when the process is to end.
#[derive(Default)]
struct End {
    clock: Clock,
    until: Option<Mono>,
}

impl End {
    /// Something has failed; whether that was the last time. `closed`: nothing more will come.
    fn has_come(&mut self, closed: bool) -> bool {
        let now = self.clock.mono();
        closed && now >= *self.until.get_or_insert(now.after(limits::LAST_COMMITS))
    }
}

/// Opens the ledger for one gateway at a time.
pub fn open_owner(path: &std::path::Path, durable: bool) -> Result<Sqlite, StoreError> {
    let db = Sqlite::open(path, sqlite::Mode::Owner)?;
    db.set_durable(durable)?;
    Ok(db)
}

#[cfg(test)]
mod tests;
