//! Grants end by the ledger's clock while the ledger is away, and hosts that have used them cannot tell it. Whoever comes
//! back first would be admitted the same once more. So it has grants count on that are over (`host:spared`, for as long
//! as a host that is not heard of holds anything), until each host has told what it has used of its own, and up to which
//! number that is all (`host:<writer>`). A host that has died meanwhile is waited for that long, too.

use super::{Remote, Speaker};
use crate::base::limits;
use crate::base::time::Mono;
use crate::io::store::api::StoreError;

/// What this host knows of it.
#[derive(Default)]
pub(super) struct Spared {
    /// The ledger could not be reached, or another node has it now, and this host has not come back to it yet.
    is_away: bool,
    /// The last grant that was asked for.
    number: u64,
    /// When the last connection broke, and which grant was the last before.
    over: Option<(Mono, u64)>,
    writer: String,
}

impl Spared {
    pub(super) fn broke(&mut self, now: Mono) {
        self.is_away = true;
        self.over = Some((now, self.number));
    }

    pub(super) fn asked(&mut self, number: u64) {
        self.number = self.number.max(number);
    }
}

impl Remote {
    /// Before anything is asked for again after the ledger was away.
    pub(super) fn spare(&mut self, speaker: &Speaker) -> Result<(), StoreError> {
        self.spared.writer.clone_from(&speaker.writer);
        if self.spared.is_away {
            self.keep_for_a_lease("spared", 1)?;
            self.spared.is_away = false;
        }
        Ok(())
    }

    /// Tells that nothing more will be told of the grants before the last outage, once that is so: they are over by this
    /// host's own clock, and what was used of them to the end has been handed over.
    pub(super) fn tell_over(&mut self) -> Result<(), StoreError> {
        let is_over = |at: Mono| at.after(limits::GRANT + limits::KEYS_LOOK) <= self.clock.mono();
        if let Some((_, number)) = self.spared.over.filter(|(at, _)| is_over(*at)) {
            self.keep_for_a_lease(&self.spared.writer.clone(), number)?;
            self.spared.over = None;
        }
        Ok(())
    }

    fn keep_for_a_lease(&mut self, name: &str, number: u64) -> Result<(), StoreError> {
        let name = self.named("host:") + name;
        self.query(redis::cmd("SET").arg(name).arg(number).arg("PX").arg(limits::LEASE.as_millis() as u64))
    }
}
