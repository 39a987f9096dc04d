//! State of targets and the ledger at the last look, so that each lasting trouble raises one alert.

use crate::base::time::{Mono, Unix};
use std::sync::Arc;
use std::time::Duration;

/// Findings of the last look.
#[derive(Debug, Default)]
pub(crate) struct AlertWatch {
    /// Number of looks so far.
    pub(super) looks: u64,
    /// Targets in the order in which they were first looked at.
    pub(super) targets: Vec<TargetWatch>,
    pub(super) ledger: LastingTrouble,
    /// The counts of targets were a predecessor's: those of the next look are where counting begins.
    pub(super) inherited: bool,
}

/// A target at the last look.
#[derive(Debug)]
pub(super) struct TargetWatch {
    pub(super) label: Arc<str>,
    /// Answered and failed attempts.
    pub(super) attempts: [u64; 2],
    pub(super) trouble: LastingTrouble,
    /// Number of the last look at it.
    pub(super) look: u64,
}

/// Trouble that may last.
#[derive(Debug, Default)]
pub(super) struct LastingTrouble {
    pub(super) since: Option<(Mono, Unix)>,
    pub(super) told: bool,
}

impl LastingTrouble {
    /// True once, if the trouble has lasted for `long`.
    pub(super) fn is_news(&mut self, long: Duration, now: Mono) -> bool {
        let lasts = self.since.is_some_and(|(since, _)| since.after(long) <= now);
        lasts && !std::mem::replace(&mut self.told, true)
    }
}

impl AlertWatch {
    /// Place of a target, which is `guess` unless targets were added or removed since the last look.
    pub(super) fn place(&mut self, label: &Arc<str>, guess: usize) -> usize {
        if self.targets.get(guess).is_some_and(|known| known.label == *label) {
            return guess;
        }
        self.targets.iter().position(|known| known.label == *label).unwrap_or_else(|| {
            let (label, trouble) = (label.clone(), LastingTrouble::default());
            self.targets.push(TargetWatch { label, attempts: [0; 2], trouble, look: 0 });
            self.targets.len() - 1
        })
    }

    /// The counts of targets so far are a predecessor's.
    pub(super) fn inherits(&mut self) {
        self.inherited = true;
    }
}
