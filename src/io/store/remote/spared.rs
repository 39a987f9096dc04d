//! Grants end by the ledger's clock while the ledger is away, and hosts that have used them cannot tell it. Whoever
//! comes back first would be admitted the same once more. So it has grants count on that are over (`host:spared`,
//! for as long as a host that is not heard of holds anything), until each host has told what it has used of its
//! own, and up to which number that is all (`host:<writer>`). A host that has died meanwhile is waited for that
//! long, too.

use crate::base::limits;
use crate::base::time::Mono;

/// What this host knows of it.
#[derive(Default)]
pub(super) struct Spared {
    /// The ledger could not be reached, or another node has it now, and this host has not come back to it yet.
    pub(super) is_away: bool,
    /// Its own lasting name.
    pub(super) writer: String,
    /// The last grant that was asked for.
    number: u64,
    /// When the last connection broke, and which grant was the last before.
    over: Option<(Mono, u64)>,
}

impl Spared {
    /// The connection is lost.
    pub(super) fn broke(&mut self, now: Mono) {
        self.is_away = true;
        self.over = Some((now, self.number));
    }

    /// A grant of this number is asked for.
    pub(super) fn asked(&mut self, number: u64) {
        self.number = self.number.max(number);
    }

    /// The last of the grants of which nothing more will be told: they are over by this host's own clock, and what was
    /// used of them to the end has been handed over.
    pub(super) fn is_over(&self, now: Mono) -> Option<u64> {
        let is_over = |at: Mono| at.after(limits::GRANT + limits::KEYS_LOOK) <= now;
        self.over.filter(|(at, _)| is_over(*at)).map(|(_, number)| number)
    }

    /// That has been told.
    pub(super) fn told(&mut self) {
        self.over = None;
    }
}
