//! Events of the process rather than of a connection: stopping, another configuration, a successor. Decides on them;
//! `drive` applies the decisions to the connections.

pub(crate) mod drain;
pub(crate) mod setup;
pub(crate) mod start;
pub(crate) mod upgrade;

use crate::base::time::Mono;
use crate::policy::config::Origin;
use crate::policy::meter::Hold;
use crate::policy::row::Running;
use drain::Drain;
use std::collections::VecDeque;
use upgrade::Handover;

/// State of the process.
#[derive(Debug, Default)]
pub(crate) struct Lifecycle {
    /// TERM has arrived; stopping begins at this time, so that a load balancer can notice.
    pub(crate) lead: Option<Mono>,
    pub(crate) drain: Option<Drain>,
    pub(crate) handover: Handover,
    pub(crate) inheritance: Inheritance,
    pub(crate) reading: ConfigReading,
    /// Values of secrets that have changed since the configuration in `reading` was requested; one for each origin.
    pub(crate) told: Vec<(Origin, String)>,
    /// A newer version has changed the ledger, and must be started instead of this one.
    pub(crate) outgrown: bool,
}

impl Lifecycle {
    /// True if the process stops or hands over: no connection is kept for later requests.
    pub(crate) fn is_stopping(&self) -> bool {
        self.drain.is_some()
    }

    /// True if the deadline for running requests has passed.
    pub(crate) fn is_over(&self) -> bool {
        self.drain.is_some_and(|drain| drain.is_over())
    }

    /// True if the process will end: as far as is known, it serves no requests after the running ones.
    pub(crate) fn is_leaving(&self) -> bool {
        self.lead.is_some() || self.handover.is_final() || self.drain.is_some_and(|drain| drain.is_bounded())
    }

    /// True if this process no longer admits requests: a successor does, or none.
    pub(crate) fn has_handed_over(&self) -> bool {
        self.handover.is_given()
    }
}

/// Progress of a helper thread that reads the configuration.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub(crate) enum ConfigReading {
    /// No thread is reading.
    #[default]
    No,
    /// A thread is reading.
    Running,
    /// A thread is reading, and another read has been requested since: the current one may be outdated.
    Again,
}

/// A request that the predecessor still serves.
#[derive(Debug)]
pub(crate) struct InheritedRequest {
    pub(super) running: Running,
    pub(super) hold: Hold,
    /// Its reservation in the limits of its target.
    pub(super) at_target: Option<Hold>,
}

/// Requests that a predecessor still serves.
#[derive(Debug, Default)]
pub(crate) struct Inheritance {
    /// True if there is a predecessor.
    pub(super) present: bool,
    pub(super) holds: Vec<InheritedRequest>,
    /// Numbers of its rows in the ledger about which it has not been notified yet.
    pub(super) rows: VecDeque<u64>,
}

impl Inheritance {
    /// True if there is a predecessor.
    pub(crate) fn is_present(&self) -> bool {
        self.present
    }

    /// Reservations of the predecessor's requests.
    pub(crate) fn holds(&self) -> impl Iterator<Item = &Hold> {
        self.holds.iter().map(|one| &one.hold)
    }

    /// Their reservations in the limits of targets.
    pub(crate) fn target_holds(&self) -> impl Iterator<Item = &Hold> {
        self.holds.iter().filter_map(|one| one.at_target.as_ref())
    }

    /// The requests that the predecessor still serves, for a successor of our own.
    pub(crate) fn running(&self) -> impl Iterator<Item = Running> {
        self.holds.iter().map(|one| one.running.clone())
    }
}
