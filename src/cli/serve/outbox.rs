//! The way of the loop's orders to their threads: copies under locks that no thread holds for long, without a system
//! call in the steady state. Decides nothing.

use super::ledger::LedgerHandle;
use super::reload::Reloader;
use super::upgrade::{HandoverSender, Message};
use crate::gateway::orders::{Order, Work};
use crate::io::log_writer::LogWriter;
use crate::io::worker::Worker;
use crate::policy::row::{Row, Running};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The threads' near ends. They need the loop's mailbox, so they come after it.
#[derive(Default)]
pub(super) struct Helpers {
    /// The ledger; `None` before it is opened, and after it was given to a successor.
    pub(super) store: Mutex<Option<LedgerHandle>>,
    pub(super) reloader: OnceLock<Reloader>,
    /// Does what is too long for the loop.
    pub(super) worker: OnceLock<Worker<Box<Work>>>,
    pub(super) handover: OnceLock<HandoverSender>,
    /// Tells a predecessor how many of its rows are safe.
    pub(super) safe: OnceLock<Sender<u64>>,
}

impl Helpers {
    fn store(&self) -> std::sync::MutexGuard<'_, Option<LedgerHandle>> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Carries out an order. Rows, lines, questions and leases come back as empty vectors with their storage, so that
    /// the next turn's cost no allocation.
    fn perform(&self, order: Order, log: &LogWriter) -> Option<Order> {
        match order {
            Order::Log(lines) => return Some(Order::Log(log.write(lines))),
            Order::Rows(rows) => return Some(Order::Rows(self.keep(rows))),
            Order::Asks(mut asks) => {
                self.store().iter().for_each(|store| store.ask(&mut asks));
                return Some(Order::Asks(asks));
            }
            Order::Releases(mut releases) => {
                self.store().iter().for_each(|store| store.release(&mut releases));
                return Some(Order::Releases(releases));
            }
            Order::Work(work) => {
                if let Some(worker) = self.worker.get() {
                    worker.give(work);
                }
            }
            Order::Reload(before) => {
                if let Some(reloader) = self.reloader.get() {
                    reloader.start(before);
                }
            }
            Order::HandOver(running) => self.hand_over(running),
            Order::Acknowledge(rows) => {
                if let Some(safe) = self.safe.get() {
                    // A predecessor that has ended need not be told.
                    let _ = safe.send(rows);
                }
            }
        }
        None
    }

    fn keep(&self, mut rows: Vec<Row>) -> Vec<Row> {
        match (&*self.store(), self.handover.get()) {
            _ if rows.is_empty() => {}
            (Some(store), _) => return store.write(rows),
            (None, Some(handover)) => handover.give(Message::Rows(std::mem::take(&mut rows))),
            (None, None) => rows.clear(),
        }
        rows
    }

    /// A file goes to the successor, and with it what is still served. A shared ledger serves both, so each settles
    /// what it has admitted.
    fn hand_over(&self, running: Vec<Running>) {
        let Some(handover) = self.handover.get() else { return };
        let mut store = self.store();
        match store.take() {
            Some(LedgerHandle::File(file)) => handover.give(Message::Ledger(Some(file), running)),
            shared => {
                *store = shared;
                handover.give(Message::Ledger(None, Vec::new()));
            }
        }
    }

    /// Ends what is not the ledger's: the last rows reach a successor.
    pub(super) fn finish(&self) {
        if let Some(handover) = self.handover.get() {
            handover.finish();
        }
    }
}

/// What the loop calls once in every turn that has orders.
pub(super) fn outbox(log: LogWriter, helpers: Arc<Helpers>) -> impl FnMut(Vec<Order>) -> Vec<Order> {
    move |mut orders| {
        // Rows before questions: what has ended makes room for what would begin.
        orders.sort_by_key(|order| matches!(order, Order::Asks(_)));
        // Collected in place: the vector's own storage is kept, too.
        orders.into_iter().filter_map(|order| helpers.perform(order, &log)).collect()
    }
}
