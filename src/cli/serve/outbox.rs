//! The way of the loop's orders to their threads: copies under locks that nobody holds for long, without a system
//! call in the steady state. Decides nothing.

use super::ledger::Keeper;
use super::reload::Reloader;
use super::upgrade::{Elder, Parcel};
use crate::gateway::orders::Order;
use crate::io::scribe::Scribe;
use crate::policy::row::Running;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The threads' near ends. They need the loop's mailbox, so they come after it.
#[derive(Default)]
pub(super) struct Helpers {
    /// The ledger; `None` before it is opened, and after it was given to a successor.
    pub(super) store: Mutex<Option<Keeper>>,
    pub(super) reloader: OnceLock<Reloader>,
    pub(super) elder: OnceLock<Elder>,
    /// Tells a predecessor how many of its rows are safe.
    pub(super) safe: OnceLock<Sender<u64>>,
}

impl Helpers {
    fn store(&self) -> std::sync::MutexGuard<'_, Option<Keeper>> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Carries out an order. True for rows and lines, whose emptied vectors go back to the core with their storage, so
    /// that the next turn's cost no allocation.
    fn perform(&self, order: &mut Order, scribe: &Scribe) -> bool {
        match order {
            Order::Log(lines) => *lines = scribe.write(std::mem::take(lines)),
            Order::Rows(rows) => match (&*self.store(), self.elder.get()) {
                (Some(store), _) => *rows = store.write(std::mem::take(rows)),
                (None, Some(elder)) => elder.give(Parcel::Rows(std::mem::take(rows))),
                (None, None) => rows.clear(),
            },
            Order::Reload(before) => {
                if let Some(reloader) = self.reloader.get() {
                    reloader.start(before.clone());
                }
            }
            Order::Asks(asks) => self.store().iter().for_each(|store| store.ask(asks)),
            Order::Releases(releases) => self.store().iter().for_each(|store| store.release(releases)),
            Order::HandOver(running) => self.hand_over(std::mem::take(running)),
            Order::Acknowledge(rows) => {
                if let Some(safe) = self.safe.get() {
                    // A predecessor that has ended need not be told.
                    let _ = safe.send(*rows);
                }
            }
        }
        matches!(order, Order::Log(_) | Order::Rows(_) | Order::Asks(_) | Order::Releases(_))
    }

    /// A file goes to the successor, and with it what is still served. A shared ledger serves both, so each settles what
    /// it has admitted.
    fn hand_over(&self, running: Vec<Running>) {
        let Some(elder) = self.elder.get() else { return };
        let mut store = self.store();
        match store.take() {
            Some(Keeper::File(file)) => elder.give(Parcel::Ledger(Some(file), running)),
            shared => {
                *store = shared;
                elder.give(Parcel::Ledger(None, Vec::new()));
            }
        }
    }

    /// Ends what is not the ledger's: the last rows reach a successor.
    pub(super) fn finish(&self) {
        if let Some(elder) = self.elder.get() {
            elder.finish();
        }
    }
}

/// What the loop calls once in every turn that has orders.
pub(super) fn outbox(scribe: Scribe, helpers: Arc<Helpers>) -> impl FnMut(Vec<Order>) -> Vec<Order> {
    move |mut orders| {
        // Rows before questions: what has ended makes room for what would begin.
        orders.sort_by_key(|order| matches!(order, Order::Asks(_)));
        orders.retain_mut(|order| helpers.perform(order, &scribe));
        orders
    }
}
