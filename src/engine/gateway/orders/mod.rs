//! Commands for helper threads and notifications from them. Data only.

pub(crate) mod desk;
pub(crate) mod offload;
pub(crate) mod paging;

pub use super::report::captures::{Captured, CapturedMessage};
use crate::gateway::counters::RecorderSums;
use crate::policy::alert::AlertNews;
use crate::policy::config::{Config, Origin};
use crate::policy::discover::{DiscoveredModel, Listed};
use crate::policy::keys::{KeyId, ShownKey};
use crate::policy::ledger::LedgerNotice;
use crate::policy::ledger::{Ask, Release, Use};
use crate::policy::row::{Row, Running};
pub use desk::{ChangeAuthor, DeskAnswer, DeskAsk};
pub use offload::{FinishedJob, Work};
pub use paging::{ListPart, UNKNOWN_AFTER};
use std::sync::Arc;

/// Work for a helper thread; rows and lines at most once per hand-over.
#[derive(Debug)]
pub enum Order {
    /// Rows for the ledger, in the order in which their exchanges ended.
    Rows(Vec<Row>),
    /// Complete log lines, newline-terminated JSON.
    Log(Vec<u8>),
    /// Spans in JSON, one per line, for the collector of this configuration. [`Notice::Spans`] reports lost ones.
    Spans(Arc<Config>, Vec<u8>),
    /// A captured request that has ended, for the file of its key. Answered by [`Notice::Captured`].
    Capture(Box<Captured>),
    /// News for alerts, which are delivered as the present configuration says, or only that configuration. The thread
    /// that delivers them sends [`Notice::LookForTrouble`] every second.
    Alerts(Arc<Config>, Vec<AlertNews>),
    /// Questions for the shared ledger; each is answered by a [`LedgerNotice::Answered`]. Rows of the same hand-over
    /// are written first.
    Asks(Vec<Ask>),
    /// Leases of the shared ledger that are returned without a row.
    Releases(Vec<Release>),
    /// Uses of grants of the shared ledger. Rows of the same hand-over are written after them.
    Uses(Vec<Use>),
    /// Look up keys in the ledger immediately; answered by one or more [`LedgerNotice::LookedUp`].
    LookUp(Vec<ShownKey>),
    /// A job that takes too long for the event loop: to be [run](Work::run) elsewhere and answered by
    /// [`Notice::Worked`].
    Work(Box<Work>),
    /// Answer a request to the admin listener; answered by [`Notice::Desk`].
    Desk(Box<DeskAsk>),
    /// Read the configuration again; with the one in use. Answered by [`Notice::Reloaded`].
    Reload(Arc<Config>),
    /// Read a secret from its source again, because a provider refuses the current one. Answered by
    /// [`Notice::SecretTold`].
    Renew(Origin),
    /// Request a provider's models. Answered by [`Notice::Listed`].
    List(ListingAsked),
    /// Give the ledger to the successor, with the requests still served here, the models that providers list, and what
    /// the recorder has summed up; later rows are kept for it. Answered by [`Notice::SuccessorTaken`] or
    /// [`Notice::SuccessorFailed`].
    HandOver(Vec<Running>, Vec<DiscoveredModel>, Box<RecorderSums>),
    /// Let the successor serve, and pass rows on to it.
    LetServe,
    /// End the successor, and take back the ledger if it was given away; later rows are written to it. Answered by
    /// [`Notice::SuccessorGone`].
    TakeBack,
    /// Report to the predecessor how many more of its rows are committed.
    Acknowledge(u64),
}

/// Commands for one hand-over to the threads: each frequent kind has one command with all its contents.
#[derive(Debug, Default)]
pub(crate) struct OrderSink {
    /// The commands, some of them empty, which only keep their storage.
    orders: Vec<Order>,
    /// True if a command has been added since the last hand-over.
    pub(crate) is_given: bool,
}

impl OrderSink {
    /// Returns the vector for a hand-over.
    #[inline]
    pub(crate) fn hand_over(&mut self) -> &mut Vec<Order> {
        self.is_given = false;
        &mut self.orders
    }

    /// Deallocates the storage that is kept for later commands.
    pub(crate) fn trim(&mut self) {
        if !self.is_given {
            self.orders.clear();
        }
    }

    /// Returns all commands, to which one is about to be added.
    #[inline]
    fn all(&mut self) -> &mut Vec<Order> {
        self.is_given = true;
        &mut self.orders
    }

    /// Adds a command.
    pub(crate) fn push(&mut self, order: Order) {
        self.all().push(order);
    }

    /// Adds a row for the ledger.
    pub(crate) fn row(&mut self, row: Row) {
        for order in self.all() {
            if let Order::Rows(rows) = order {
                return rows.push(row);
            }
        }
        self.push(Order::Rows(vec![row]));
    }

    /// Adds an admission to request from the shared ledger.
    pub(crate) fn ask(&mut self, ask: Ask) {
        for order in self.all() {
            if let Order::Asks(asks) = order {
                return asks.push(ask);
            }
        }
        // Before rows: the row of a request ends its promise.
        self.all().insert(0, Order::Asks(vec![ask]));
    }

    /// Adds a use of a grant.
    pub(crate) fn used(&mut self, one: Use) {
        for order in self.all() {
            if let Order::Uses(uses) = order {
                return uses.push(one);
            }
        }
        // Before the rows, which release the leases taken.
        self.orders.insert(0, Order::Uses(vec![one]));
    }

    /// Returns a lease that no row returns.
    pub(crate) fn give_back(&mut self, release: Release) {
        for order in self.all() {
            if let Order::Releases(releases) = order {
                return releases.push(release);
            }
        }
        self.push(Order::Releases(vec![release]));
    }

    /// Adds a piece of the log.
    pub(crate) fn log(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        for order in self.all() {
            if let Order::Log(lines) = order {
                return write(lines);
            }
        }
        let mut lines = Vec::new();
        write(&mut lines);
        self.push(Order::Log(lines));
    }

    /// Adds the spans of a request.
    pub(crate) fn spans(&mut self, config: &Arc<Config>, write: impl FnOnce(&mut Vec<u8>)) {
        for order in self.all() {
            if let Order::Spans(to, lines) = order
                && (lines.is_empty() || Arc::ptr_eq(to, config))
            {
                to.clone_from(config);
                return write(lines);
            }
        }
        let mut lines = Vec::new();
        write(&mut lines);
        self.push(Order::Spans(config.clone(), lines));
    }

    /// Removes a request from the running ones: its row has been added in the event-loop iteration that hands over.
    pub(crate) fn not_running(&mut self, request: &[u8; 16]) {
        for order in &mut self.orders {
            if let Order::HandOver(running, ..) = order {
                running.retain(|one| one.request != *request);
            }
        }
    }
}

/// Request for a provider's list of models.
#[derive(Debug)]
pub struct ListingAsked {
    /// The configuration in use.
    pub config: Arc<Config>,
    /// Number of that configuration.
    pub epoch: u32,
    /// Index of the provider in it.
    pub provider: usize,
}

/// Answer to a request for a provider's list of models.
#[derive(Debug)]
pub struct Listing {
    /// `epoch` of the request.
    pub epoch: u32,
    /// `provider` of the request.
    pub provider: usize,
    /// The list, or the reason why there is none.
    pub list: Result<List, NoList>,
}

/// A list of models.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct List {
    /// Models that the catalog may take.
    pub models: Vec<Listed>,
    /// Number of other models, and the first of them, cut.
    pub skipped: Option<(usize, String)>,
}

/// Failure to obtain a list.
#[derive(Debug, PartialEq, Eq)]
pub struct NoList {
    /// Reason.
    pub why: String,
    /// True if the provider refuses the credential.
    pub refused: bool,
}

/// Result of reading the configuration again.
#[derive(Debug)]
pub enum Reloaded {
    /// A configuration without errors, certificates included.
    Fresh {
        /// The configuration, with the old values of settings that cannot change at run time.
        config: Arc<Config>,
        /// Names of such settings that the file wants to change.
        unchanged: Vec<String>,
    },
    /// Errors, one line each. The old configuration stays.
    Refused(Vec<String>),
}

/// Notification from a helper thread.
#[derive(Debug)]
pub enum Notice {
    /// The thread of the ledger reports something.
    Ledger(LedgerNotice),
    /// Number of lost spans. If the state has changed: the reason why the collector does not accept them, or that it
    /// does again.
    Spans(u64, Option<Result<(), String>>),
    /// A captured request of a key with this number of bytes is in its file, or it is lost; with the reason.
    Captured(KeyId, usize, Result<(), String>),
    /// Looks for targets and a ledger in trouble, to raise alerts.
    LookForTrouble,
    /// A job is done.
    Worked(FinishedJob),
    /// A request to the admin listener has been answered.
    Desk(Box<DeskAnswer>),
    /// Value of a provider's secret from its file or program, or the reason why there is none.
    SecretTold(Origin, Result<String, String>),
    /// A provider has been asked for its models.
    Listed(Listing),
    /// The configuration has been read again.
    Reloaded(Reloaded),
    /// The successor is ready to take over.
    SuccessorReady,
    /// The successor has the ledger, and waits for [`Order::LetServe`].
    SuccessorTaken,
    /// The successor is gone, or cannot continue; with the reason, for the log.
    SuccessorFailed(String),
    /// The successor has ended, and the ledger is back.
    SuccessorGone,
    /// The predecessor has settled a request.
    Inherited(Row),
    /// The predecessor has ended.
    PredecessorLeft,
}
