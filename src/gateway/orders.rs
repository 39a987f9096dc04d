//! What the gateway hands to helper threads and what they tell it. Data only.

pub use super::admin::{DeskAnswer, DeskAsk, Part, UNKNOWN_AFTER, Writer};
pub use super::offload::{Done, Work};
use crate::base::time::Unix;
use crate::policy::ask::{Answer, Ask, Release, Use};
use crate::policy::config::{Config, Origin};
use crate::policy::counters::Counters;
use crate::policy::discover::Listed;
use crate::policy::keys::{KeyAnswer, KeyId, KeyNews};
use crate::policy::row::{Row, Running};
use std::sync::Arc;

/// Work for a helper thread; rows and lines at most once per hand-over.
#[derive(Debug)]
pub enum Order {
    /// Rows for the ledger, in the order in which their exchanges ended.
    Rows(Vec<Row>),
    /// Whole log lines, newline-terminated JSON.
    Log(Vec<u8>),
    /// Spans in JSON, a line each, for the collector of this configuration. Those that are lost are told by
    /// [`Notice::Spans`].
    Spans(Arc<Config>, Vec<u8>),
    /// Questions for a shared ledger; each is answered by a [`Notice::Answered`]. Rows of the same hand-over go first.
    Asks(Vec<Ask>),
    /// Leases of a shared ledger that are given back without a row.
    Releases(Vec<Release>),
    /// What was done with grants of a shared ledger. Rows of the same hand-over go after it.
    Uses(Vec<Use>),
    /// Keys that are not known are looked up in the ledger at once; answered by a [`Notice::LookedUp`] or several.
    LookUp(Vec<KeyId>),
    /// Something too long for the loop: to be [run](Work::run) elsewhere and answered by [`Notice::Worked`].
    Work(Box<Work>),
    /// Answer a request to the admin listener; answered by [`Notice::Desk`].
    Desk(Box<DeskAsk>),
    /// Read the configuration again; this is the one in use. Answered by [`Notice::Reloaded`].
    Reload(Arc<Config>),
    /// Ask where a secret comes from once more, since a provider refuses what it said last. Answered by
    /// [`Notice::SecretTold`].
    Renew(Origin),
    /// Ask a provider for its models. Answered by [`Notice::Listed`].
    List(ListingAsked),
    /// Give the ledger to the successor, with what is still served here; rows are kept for it from here on. Answered by
    /// [`Notice::SuccessorTaken`] or [`Notice::SuccessorFailed`].
    HandOver(Vec<Running>),
    /// Let the successor serve, which counts on from here, and pass rows on to it.
    LetServe(Box<Counters>),
    /// Pass on to it what has been counted since.
    Counted(Box<Counters>),
    /// End the successor, and take back the ledger if it was given; rows go there from here on.
    /// Answered by [`Notice::SuccessorGone`].
    TakeBack,
    /// Tell the predecessor that so many more of its rows are safe.
    Acknowledge(u64),
}

impl Order {
    /// It asks for nothing, and is there for its storage alone.
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Order::Rows(rows) => rows.is_empty(),
            Order::Log(lines) | Order::Spans(_, lines) => lines.is_empty(),
            Order::Asks(asks) => asks.is_empty(),
            Order::Releases(releases) => releases.is_empty(),
            Order::Uses(uses) => uses.is_empty(),
            _ => false,
        }
    }
}

/// The orders of one hand-over: of each kind that is given often there is one, with everything in it.
#[derive(Debug, Default)]
pub(crate) struct OrderSink(pub(crate) Vec<Order>);

impl OrderSink {
    /// One row more for the ledger.
    pub(crate) fn row(&mut self, row: Row) {
        for order in &mut self.0 {
            if let Order::Rows(rows) = order {
                return rows.push(row);
            }
        }
        self.0.push(Order::Rows(vec![row]));
    }

    /// One question more for a shared ledger.
    pub(crate) fn ask(&mut self, ask: Ask) {
        for order in &mut self.0 {
            if let Order::Asks(asks) = order {
                return asks.push(ask);
            }
        }
        self.0.push(Order::Asks(vec![ask]));
    }

    /// Something was done with a grant.
    pub(crate) fn used(&mut self, one: Use) {
        for order in &mut self.0 {
            if let Order::Uses(uses) = order {
                return uses.push(one);
            }
        }
        // In front of the rows, which give back what was taken.
        self.0.insert(0, Order::Uses(vec![one]));
    }

    /// Gives a lease back that no row will.
    pub(crate) fn give_back(&mut self, release: Release) {
        for order in &mut self.0 {
            if let Order::Releases(releases) = order {
                return releases.push(release);
            }
        }
        self.0.push(Order::Releases(vec![release]));
    }

    /// One piece more of the log.
    pub(crate) fn log(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        for order in &mut self.0 {
            if let Order::Log(lines) = order {
                return write(lines);
            }
        }
        let mut lines = Vec::new();
        write(&mut lines);
        self.0.push(Order::Log(lines));
    }

    /// Spans of one request more.
    pub(crate) fn spans(&mut self, config: &Arc<Config>, write: impl FnOnce(&mut Vec<u8>)) {
        for order in &mut self.0 {
            if let Order::Spans(to, lines) = order
                && (lines.is_empty() || Arc::ptr_eq(to, config))
            {
                to.clone_from(config);
                return write(lines);
            }
        }
        let mut lines = Vec::new();
        write(&mut lines);
        self.0.push(Order::Spans(config.clone(), lines));
    }

    /// A request whose row has been given in the very turn that hands over is not running any more.
    pub(crate) fn not_running(&mut self, request: &[u8; 16]) {
        for order in &mut self.0 {
            if let Order::HandOver(running) = order {
                running.retain(|one| one.request != *request);
            }
        }
    }
}

/// Which provider is to be asked for its models.
#[derive(Debug)]
pub struct ListingAsked {
    /// The configuration in use.
    pub config: Arc<Config>,
    /// Its number.
    pub epoch: u32,
    /// The provider's number in it.
    pub provider: usize,
}

/// What a provider says that was asked for its models.
#[derive(Debug)]
pub struct Listing {
    /// As asked.
    pub epoch: u32,
    /// As asked.
    pub provider: usize,
    /// The list, or why there is none.
    pub list: Result<List, NoList>,
}

/// A list of models.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct List {
    /// Those that the catalog may take in.
    pub models: Vec<Listed>,
    /// How many others there were, and the first of them, cut.
    pub skipped: Option<(usize, String)>,
}

/// No list has come.
#[derive(Debug, PartialEq, Eq)]
pub struct NoList {
    /// Why.
    pub why: String,
    /// The provider refuses the credential.
    pub refused: bool,
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
    /// What is new of the keys in the ledger.
    Keys(KeyNews),
    /// So many more rows are safely in the ledger.
    Committed(u64),
    /// A shared ledger has answered.
    Answered(Answer),
    /// Another host wants what is granted to this one in an account: of the key of this id, or of the group of this
    /// name behind an `@`.
    CalledIn(String),
    /// A shared ledger has been begun again on purpose: nothing has been used yet.
    BegunAnew,
    /// What the ledger says of keys that were looked up.
    LookedUp(Vec<(KeyId, KeyAnswer)>),
    /// The newest usage record that the ledger knows.
    Newest {
        /// When it was admitted.
        at: Unix,
        /// An operator has accepted the present time: earlier records do not count any more.
        accepted: bool,
    },
    /// The ledger cannot be written, and why; admission stops.
    StoreFailed(String),
    /// A successor of a newer version has changed the ledger and has died: why it cannot be read here any more.
    StoreOutgrown(String),
    /// The ledger can be written again.
    StoreRecovered,
    /// So many spans have been lost; and where that is new, why the collector does not take them, or that it does
    /// again.
    Spans(u64, Option<Result<(), String>>),
    /// Work is done.
    Worked(Done),
    /// A request to the admin listener has its answer.
    Desk(Box<DeskAnswer>),
    /// What a file or a program says that a provider's secret comes from; or why it says nothing.
    SecretTold(Origin, Result<String, String>),
    /// A provider has been asked for its models.
    Listed(Listing),
    /// The configuration has been read again.
    Reloaded(Reloaded),
    /// The successor is ready to take over.
    SuccessorReady,
    /// The successor has the ledger, and waits for [`Order::LetServe`].
    SuccessorTaken,
    /// There is no successor any more, or it cannot go on; why, for the log.
    SuccessorFailed(String),
    /// The successor has ended, and what it was given is back.
    SuccessorGone,
    /// The predecessor has settled a request.
    Inherited(Row),
    /// What the predecessor has counted since it let us serve.
    Counted(Box<Counters>),
    /// The predecessor has ended.
    PredecessorLeft,
}
