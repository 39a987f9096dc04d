//! What the gateway hands to helper threads and what they tell it. Data only.

pub use super::work::{Done, Work};
use crate::policy::ask::{Answer, Ask, Release};
use crate::policy::config::Config;
use crate::policy::keys::KeyRecord;
use crate::policy::row::{Row, Running};
use std::sync::Arc;

/// Work for a helper thread; rows and lines at most once per hand-over.
#[derive(Debug)]
pub enum Order {
    /// Rows for the ledger, in the order in which their exchanges ended.
    Rows(Vec<Row>),
    /// Whole log lines, newline-terminated JSON.
    Log(Vec<u8>),
    /// Questions for a shared ledger; each is answered by a [`Notice::Answered`]. Rows of the same hand-over go first.
    Asks(Vec<Ask>),
    /// Leases of a shared ledger that are given back without a row.
    Releases(Vec<Release>),
    /// Something too long for the loop: to be [run](Work::run) elsewhere and answered by [`Notice::Worked`].
    Work(Box<Work>),
    /// Read the configuration again; this is the one in use. Answered by [`Notice::Reloaded`].
    Reload(Arc<Config>),
    /// Give ledger and admission to the successor, with what is still served here; rows go to it from here on.
    HandOver(Vec<Running>),
    /// Tell the predecessor that so many more of its rows are safe.
    Acknowledge(u64),
}

/// What reading the configuration again has brought.
#[derive(Debug)]
pub enum Reloaded {
    /// A configuration without errors, certificates included.
    Fresh {
        /// It, with the settings that cannot change at run time as they were.
        config: Arc<Config>,
        /// The names of those among them that the file wants different.
        unchanged: Vec<String>,
    },
    /// What is wrong with it, one line each. The old one stays.
    Refused(Vec<String>),
}

/// News from a helper thread.
#[derive(Debug)]
pub enum Notice {
    /// The whole set of keys, after a change in the ledger.
    Keys(Vec<KeyRecord>),
    /// So many more rows are safely in the ledger.
    Committed(u64),
    /// A shared ledger has answered.
    Answered(Answer),
    /// The ledger cannot be written, and why; admission stops.
    StoreFailed(String),
    /// The ledger can be written again.
    StoreRecovered,
    /// Work is done.
    Worked(Done),
    /// The configuration has been read again.
    Reloaded(Reloaded),
    /// The successor is ready to take over.
    SuccessorReady,
    /// There is no successor; why, for the log.
    SuccessorFailed(String),
    /// The predecessor has settled a request.
    Inherited(Row),
    /// The predecessor has ended.
    PredecessorLeft,
}
