//! The way of the loop's orders to their threads: copies under locks that nobody holds for long, without a system
//! call in the steady state. Decides nothing.

use super::reload::Reloader;
use super::upgrade::{Elder, Parcel};
use crate::gateway::orders::Order;
use crate::io::scribe::Scribe;
use crate::io::store::StoreHandle;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The threads' near ends. They need the loop's mailbox, so they come after it.
#[derive(Default)]
pub(super) struct Helpers {
    /// The ledger; `None` before it is opened, and after it was given to a successor.
    pub(super) store: Mutex<Option<StoreHandle>>,
    pub(super) reloader: OnceLock<Reloader>,
    pub(super) elder: OnceLock<Elder>,
    /// Tells a predecessor how many of its rows are safe.
    pub(super) safe: OnceLock<Sender<u64>>,
}

impl Helpers {
    fn store(&self) -> std::sync::MutexGuard<'_, Option<StoreHandle>> {
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
            Order::HandOver(running) => {
                if let (Some(store), Some(elder)) = (self.store().take(), self.elder.get()) {
                    elder.give(Parcel::Ledger(store, std::mem::take(running)));
                }
            }
            Order::Acknowledge(rows) => {
                if let Some(safe) = self.safe.get() {
                    // A predecessor that has ended need not be told.
                    let _ = safe.send(*rows);
                }
            }
        }
        matches!(order, Order::Log(_) | Order::Rows(_))
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
        orders.retain_mut(|order| helpers.perform(order, &scribe));
        orders
    }
}
