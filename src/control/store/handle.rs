//! Handles of a ledger's thread: the interface to the event loop's outbox, of either kind, and the handles of the store
//! thread with the work that waits for it.

use super::api::{Batch, Leftover, StoreError};
use super::watch::DIED;
use crate::io::batch_queue::BatchQueue;
use crate::io::channel::{Sender, channel};
use crate::policy::keys::ShownKey;
use crate::policy::ledger::{Ask, Release, Use};
use crate::policy::row::Row;
use crate::store::bounds::{ROWS_ENOUGH, ROWS_PER_COMMIT};
use std::thread::JoinHandle;

/// Handle of a ledger's thread. Dropping it writes all that remains and waits for the thread.
pub trait LedgerHandle: Send {
    /// Hands over rows and returns the vector empty for reuse. While the thread is busy this is a copy under a lock,
    /// without a system call.
    fn write(&self, rows: Vec<Row>) -> Vec<Row>;

    /// Looks up keys without delay.
    fn look_up(&self, keys: Vec<ShownKey>);

    /// Writes all that remains and ends the thread. Returns the rows that are not known to have been written.
    fn finish(self: Box<Self>) -> Leftover;

    /// Handle for giving the ledger to another process; `None` for one that several processes use concurrently.
    fn turn(&self) -> Option<StoreTurn> {
        None
    }

    /// Hands over questions and leaves the vector empty. A ledger in a file gets only promises.
    fn ask(&self, asks: &mut Vec<Ask>);

    /// Hands over uses of grants and leaves the vector empty. A ledger in a file has none.
    fn used(&self, uses: &mut Vec<Use>) {
        uses.clear();
    }

    /// Hands over leases that are given back, and leaves the vector empty. A ledger in a file has none.
    fn release(&self, releases: &mut Vec<Release>) {
        releases.clear();
    }
}

/// Work that waits for the thread.
#[derive(Default)]
pub(super) struct Tasks {
    pub(super) rows: Vec<Row>,
    /// Promises to write before the rows.
    pub(super) asks: Vec<Ask>,
    /// Keys to look up before the rows are written.
    pub(super) lookups: Vec<ShownKey>,
    /// Change of the ledger's owner, to be done after the rows.
    pub(super) turn: Option<LedgerTransfer>,
    /// The thread has ended, and accepts no more work.
    ended: bool,
}

/// Hands the ledger over to another process, or takes it back.
pub(super) enum LedgerTransfer {
    /// Commit all rows and release the ledger to another process; if that fails, keep it and return the reason. In both
    /// cases later rows wait.
    Release(Sender<Result<(), String>>),
    /// Take the ledger back, with rows that may be in it already. Answered after the first attempt, successful or not.
    /// If the release was refused, that attempt has already been made.
    Retake(Vec<Row>, Sender<()>),
}

impl Tasks {
    /// No tasks, with room for the rows of a commit.
    pub(super) fn with_room() -> Tasks {
        Tasks { rows: Vec::with_capacity(ROWS_PER_COMMIT), ..Tasks::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.asks.is_empty() && self.lookups.is_empty() && self.turn.is_none()
    }

    /// Ends all tasks: waiting callers receive no answer; rows are left for [`LedgerHandle::finish`].
    fn end(&mut self) {
        self.ended = true;
        if let Some(LedgerTransfer::Retake(mut rows, _)) = self.turn.take() {
            self.rows.append(&mut rows);
        }
    }
}

/// Refuses a waiting release, because a hand-over does not wait for a failing ledger. True if there was one.
pub(super) fn refuse_release(turn: &mut Option<LedgerTransfer>, error: &StoreError) -> bool {
    match turn.take_if(|turn| matches!(turn, LedgerTransfer::Release(_))) {
        Some(LedgerTransfer::Release(told)) => told.send(Err(error.to_string())).is_ok(),
        _ => false,
    }
}

pub(super) struct StoreHandle {
    pub(super) queue: BatchQueue<Tasks>,
    pub(super) urgent: bool,
    pub(super) thread: Option<JoinHandle<Vec<Row>>>,
}

/// Hands the ledger over to another process and takes it back. Used by a thread that may block.
#[derive(Clone)]
pub struct StoreTurn {
    queue: BatchQueue<Tasks>,
}

/// Guard that marks the tasks as ended when the thread ends, even by a panic.
pub(super) struct EndGuard(pub(super) BatchQueue<Tasks>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        self.0.put(false, Tasks::end);
    }
}

impl StoreTurn {
    fn give(&self, turn: LedgerTransfer) {
        self.queue.put(true, |tasks| {
            tasks.turn = Some(turn);
            if tasks.ended {
                tasks.end();
            }
        });
    }

    /// Waits until every row handed over so far is committed and the ledger is released to another process. If it
    /// cannot be released, returns the reason, and this process keeps it. In both cases, rows wait until
    /// [`StoreTurn::retake`].
    pub fn release(&self) -> Result<(), String> {
        let (told, answer) = channel();
        self.give(LedgerTransfer::Release(told));
        answer.recv().unwrap_or_else(|_| Err(DIED.to_string()))
    }

    /// Takes the ledger back, with `rows` that precede all others and may be in it already. If that fails at first, the
    /// thread keeps trying, and reports that the ledger has failed.
    pub fn retake(&self, rows: Vec<Row>) {
        let (told, answer) = channel();
        self.give(LedgerTransfer::Retake(rows, told));
        // A thread that has died has reported it.
        let _ = answer.recv();
    }
}

impl LedgerHandle for StoreHandle {
    fn write(&self, mut rows: Vec<Row>) -> Vec<Row> {
        if !rows.is_empty() {
            let enough = |waiting: &Tasks| self.urgent || waiting.rows.len() >= ROWS_ENOUGH;
            self.queue.put_until(enough, |waiting| waiting.rows.append(&mut rows));
        }
        rows
    }

    fn look_up(&self, keys: Vec<ShownKey>) {
        self.queue.put(true, |waiting| waiting.lookups.extend(keys));
    }

    fn turn(&self) -> Option<StoreTurn> {
        Some(StoreTurn { queue: self.queue.clone() })
    }

    fn ask(&self, asks: &mut Vec<Ask>) {
        if !asks.is_empty() {
            self.queue.put(true, |waiting| waiting.asks.append(asks));
        }
    }

    fn finish(mut self: Box<Self>) -> Leftover {
        self.end()
    }
}

impl StoreHandle {
    fn end(&mut self) -> Leftover {
        self.queue.close();
        let Some(thread) = self.thread.take() else { return Leftover::default() };
        let (mut rows, died) = thread.join().map_or((Vec::new(), true), |rows| (rows, false));
        // Rows that it had not taken yet when it gave up.
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
