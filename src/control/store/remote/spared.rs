//! Grants end by the ledger's clock even while the ledger is away, when hosts cannot report their uses of them. The
//! first host that returns would be admitted for the same amounts again. So that host keeps ended grants counted
//! (`host:spared`, for as long as the reservations of a silent host last), until each host has reported its own uses,
//! and the number up to which the report is complete (`host:<writer>`). A host that has died meanwhile is waited for
//! that long, too.

use crate::base::time::Mono;
use crate::store::bounds;

/// This host's state for that purpose.
#[derive(Default)]
pub(super) struct Spared {
    /// The ledger could not be reached, or another node has it now, and this host has not announced itself to it yet.
    pub(super) is_away: bool,
    /// Lasting name of this host.
    pub(super) writer: String,
    /// Number of the last grant requested.
    number: u64,
    /// Time at which the last connection broke, and number of the last grant before.
    over: Option<(Mono, u64)>,
}

impl Spared {
    /// Records that the connection is lost.
    pub(super) fn broke(&mut self, now: Mono) {
        self.is_away = true;
        self.stalled(now);
    }

    /// Records that the ledger was stalled for long: other hosts may spare its grants.
    pub(super) fn stalled(&mut self, now: Mono) {
        self.over = Some((now, self.number));
    }

    /// Records that a grant of this number is requested.
    pub(super) fn asked(&mut self, number: u64) {
        self.number = self.number.max(number);
    }

    /// Number of the last grant whose uses are all reported: it has ended by this host's own clock, and all its uses
    /// have been sent.
    pub(super) fn is_over(&self, now: Mono) -> Option<u64> {
        let is_over = |at: Mono| at.after(bounds::GRANT + bounds::KEYS_LOOK) <= now;
        self.over.filter(|(at, _)| is_over(*at)).map(|(_, number)| number)
    }

    /// Records that this number has been sent.
    pub(super) fn told(&mut self) {
        self.over = None;
    }
}
