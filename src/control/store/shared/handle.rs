//! Handle of a shared ledger's thread, and its start.

use super::super::remote::{Remote, Speaker};
use super::super::writer_clocks::FoldGuard;
use super::super::{Duties, LedgerHandle, api::Batch, api::Leftover};
use super::{SharedThread, Task, batches_of};
use crate::io::batch_queue::BatchQueue;
use crate::io::entropy::fresh_name;
use crate::io::worker::start_thread;
use crate::policy::keys::ShownKey;
use crate::policy::ledger::LedgerNotice;
use crate::policy::ledger::{Ask, Release, Use};
use crate::policy::row::Row;
use std::io;
use std::thread::JoinHandle;

struct SharedHandle {
    queue: BatchQueue<Vec<Task>>,
    urgent: bool,
    thread: Option<JoinHandle<Vec<Batch>>>,
}

impl LedgerHandle for SharedHandle {
    fn write(&self, mut rows: Vec<Row>) -> Vec<Row> {
        self.put(self.urgent, &mut rows, Task::Row);
        rows
    }

    /// Questions are always urgent.
    fn ask(&self, asks: &mut Vec<Ask>) {
        self.put(true, asks, Task::Ask);
    }

    fn look_up(&self, keys: Vec<ShownKey>) {
        self.queue.put(true, |tasks| tasks.push(Task::LookUp(keys)));
    }

    fn release(&self, releases: &mut Vec<Release>) {
        self.put(false, releases, Task::Release);
    }

    /// Returned grants are urgent.
    fn used(&self, uses: &mut Vec<Use>) {
        let urgent = uses.iter().any(|one| matches!(one, Use::Returned(_)));
        self.put(urgent, uses, Task::Use);
    }

    fn finish(mut self: Box<Self>) -> Leftover {
        self.end()
    }
}

impl SharedHandle {
    fn put<T>(&self, urgent: bool, items: &mut Vec<T>, task: impl Fn(T) -> Task) {
        if !items.is_empty() {
            self.queue.put(urgent, |tasks| tasks.extend(items.drain(..).map(task)));
        }
    }

    fn end(&mut self) -> Leftover {
        self.queue.close();
        let Some(thread) = self.thread.take() else { return Leftover::default() };
        let (mut batches, died) = thread.join().map_or((Vec::new(), true), |batches| (batches, false));
        // Tasks that a dead thread had not taken have never been sent.
        let tasks = self.queue.put(false, std::mem::take);
        let rows = tasks.into_iter().filter_map(|task| if let Task::Row(row) = task { Some(row) } else { None });
        if let Ok(writer) = fresh_name() {
            batches.extend(batches_of(Vec::new(), rows.collect(), &writer, &mut 0));
        }
        Leftover { batches, died }
    }
}

impl Drop for SharedHandle {
    fn drop(&mut self) {
        self.end();
    }
}

/// Starts the thread on `remote`; `tell` puts its notices into the loop's mailbox.
pub fn spawn(
    remote: Remote,
    duties: Duties,
    tell: impl Fn(LedgerNotice) + Send + 'static,
) -> io::Result<Box<dyn LedgerHandle>> {
    let queue = BatchQueue::<Vec<Task>>::default();
    let theirs = queue.clone();
    let speaker = Speaker { host: fresh_name()?, writer: fresh_name()? };
    let (calls, called) = (remote.calls(), queue.clone());
    let listen = move || {
        let tell = |account| called.put(true, |tasks| tasks.push(Task::Called(account)));
        calls.listen(|| called.is_closed(), tell);
    };
    start_thread("calls", Box::new(listen))?;
    let (folding, seen) = (FoldGuard::new(duties.retention, duties.clocks), duties.seen);
    let serve = move || SharedThread::new(remote, speaker, folding, seen, tell).serve(&theirs);
    let thread = std::thread::Builder::new().name("store".into()).spawn(serve)?;
    Ok(Box::new(SharedHandle { queue, urgent: duties.urgent, thread: Some(thread) }))
}
