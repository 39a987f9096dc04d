//! What the gateway hands to helper threads and what they tell it. Data only.

use crate::policy::keys::KeyRecord;
use crate::policy::row::Row;

/// Work for a helper thread, at most one of each kind per hand-over.
#[derive(Debug)]
pub enum Order {
    /// Rows for the ledger, in the order in which their exchanges ended.
    Rows(Vec<Row>),
    /// Whole log lines, newline-terminated JSON.
    Log(Vec<u8>),
}

/// News from a helper thread.
#[derive(Debug)]
pub enum Notice {
    /// The whole set of keys, after a change in the ledger.
    Keys(Vec<KeyRecord>),
    /// So many more rows are safely in the ledger.
    Committed(u64),
    /// The ledger cannot be written; admission stops.
    StoreFailed,
    /// The ledger can be written again.
    StoreRecovered,
}
