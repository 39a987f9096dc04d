//! What happens to the process rather than to a connection: stopping, another configuration, a successor. Says what is
//! to be done; `drive` does it to the connections.

pub(crate) mod drain;
pub(crate) mod reload;
pub(crate) mod upgrade;

use crate::base::time::Mono;
use crate::policy::meter::Hold;
use crate::policy::row::Running;
use drain::Drain;
use std::collections::VecDeque;

/// Where the process stands.
#[derive(Debug, Default)]
pub(crate) struct Lifecycle {
    pub(crate) drain: Option<Drain>,
    pub(crate) handover: Handover,
    pub(crate) inheritance: Inheritance,
    pub(crate) reading: Reading,
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

    /// Another process admits.
    pub(crate) fn has_handed_over(&self) -> bool {
        self.handover == Handover::Given
    }

    /// Whether leaving now would lose rows that a predecessor is still to bring, or end before handing over.
    pub(crate) fn is_needed(&self) -> bool {
        self.inheritance.is_present() || matches!(self.handover, Handover::Quieting { .. })
    }
}

/// Whether a helper thread is reading.
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

/// How far handing over has come.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub(crate) enum Handover {
    /// Nobody has asked for it.
    #[default]
    None,
    /// The successor is starting.
    Starting,
    /// It is ready. What has begun to arrive may still be admitted.
    Quieting {
        /// When it is looked next whether anything still arrives: not in the turn in which the listeners are open.
        look: Mono,
        /// Not longer than this.
        until: Mono,
    },
    /// It owns admission and the ledger.
    Given,
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

impl Handover {
    /// When it goes on by itself.
    pub(crate) fn due(&self) -> Option<Mono> {
        match self {
            Handover::Quieting { look, until } => Some((*look).min(*until)),
            Handover::None | Handover::Starting | Handover::Given => None,
        }
    }

    /// Whether it is time to look if anything still arrives.
    pub(crate) fn looks(&self, now: Mono) -> bool {
        self.due().is_some_and(|due| due <= now)
    }
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
}
