//! What happens to the process rather than to a connection: stopping, another configuration, a successor. Says what is
//! to be done; `drive` does it to the connections.

pub(crate) mod drain;
pub(crate) mod inheritance;
pub(crate) mod listing;
pub(crate) mod reload;
pub(crate) mod upgrade;

use crate::base::time::Mono;
use crate::policy::meter::Hold;
use crate::policy::row::Running;
use drain::Drain;
use std::collections::VecDeque;
use upgrade::Handover;

/// Where the process stands.
#[derive(Debug, Default)]
pub(crate) struct Lifecycle {
    /// TERM has come, and stopping begins then: until that a balancer is given time to notice.
    pub(crate) lead: Option<Mono>,
    pub(crate) drain: Option<Drain>,
    pub(crate) handover: Handover,
    pub(crate) inheritance: Inheritance,
    pub(crate) reading: Reading,
    /// A newer version has changed the ledger, and must be started in the place of this one.
    pub(crate) outgrown: bool,
}

impl Lifecycle {
    /// The process stops or hands over: no connection is kept for later requests.
    pub(crate) fn is_stopping(&self) -> bool {
        self.drain.is_some()
    }

    /// The time for what still runs is over.
    pub(crate) fn is_over(&self) -> bool {
        self.drain.is_some_and(|drain| drain.is_over())
    }

    /// It has been told to stop.
    pub(crate) fn is_terminated(&self) -> bool {
        self.drain.is_some_and(|drain| drain.is_bounded())
    }

    /// The process will end: what runs now is the last that it serves, as far as is known.
    pub(crate) fn is_leaving(&self) -> bool {
        self.lead.is_some() || self.handover.is_final() || self.drain.is_some_and(|drain| drain.is_bounded())
    }

    /// Another process admits, or none.
    pub(crate) fn has_handed_over(&self) -> bool {
        self.handover.is_given()
    }

    /// True if leaving now would lose rows that a predecessor is still to bring, or end amid a hand-over.
    pub(crate) fn is_needed(&self) -> bool {
        self.inheritance.is_present() || self.handover.is_under_way()
    }
}

/// True if a helper thread is reading.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub(crate) enum Reading {
    /// No.
    #[default]
    No,
    /// Yes.
    Running,
    /// Yes, and it has been asked for again since: what is being read may be old already.
    Again,
}

/// What a predecessor still serves.
#[derive(Debug, Default)]
pub(crate) struct Inheritance {
    /// A predecessor is there.
    pub(super) present: bool,
    pub(super) holds: Vec<(Running, Hold)>,
    /// Numbers of its rows in our ledger that it has not been told to be safe yet.
    pub(super) rows: VecDeque<u64>,
}

impl Inheritance {
    /// A predecessor is there.
    pub(crate) fn is_present(&self) -> bool {
        self.present
    }

    /// The holds that the predecessor's requests stand for.
    pub(crate) fn holds(&self) -> impl Iterator<Item = &Hold> {
        self.holds.iter().map(|(_, hold)| hold)
    }

    /// The requests that the predecessor still serves, for a successor of our own.
    pub(crate) fn running(&self) -> impl Iterator<Item = Running> {
        self.holds.iter().map(|(running, _)| running.clone())
    }
}
