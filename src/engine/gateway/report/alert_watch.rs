//! State of targets and the ledger at the last check, so that each problem is reported once, and its end, too.

use crate::base::time::Unix;
use crate::policy::alert::AlertNews;
use std::sync::Arc;

/// Results of the last check.
#[derive(Debug, Default)]
pub(crate) struct AlertWatch {
    /// Number of checks so far.
    pub(crate) looks: u64,
    /// Targets in the order of their first check.
    pub(crate) targets: Vec<TargetWatch>,
    pub(crate) ledger: TroubleState,
    /// Reports of this check.
    pub(crate) news: Vec<AlertNews>,
}

/// A target at the last check.
#[derive(Debug)]
pub(crate) struct TargetWatch {
    pub(crate) label: Arc<str>,
    /// Successful and failed attempts.
    pub(crate) attempts: [u64; 2],
    pub(crate) trouble: TroubleState,
    /// Number of its last check.
    pub(crate) look: u64,
}

/// Last report about a target or the ledger. An earlier process may have reported a problem, so the first success of
/// this one is reported in any case.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub(crate) enum TroubleState {
    #[default]
    Unreported,
    /// The target has failed since then, and its alert is not due yet.
    Begun(Unix),
    Trouble,
    Fine,
}

impl TroubleState {
    /// True if `self` is new; then it counts as reported.
    pub(crate) fn becomes(&mut self, next: TroubleState) -> bool {
        std::mem::replace(self, next) != next
    }
}

impl AlertWatch {
    /// Index of a target: `guess` unless targets were added or removed since the last check.
    pub(crate) fn place(&mut self, label: &Arc<str>, guess: usize) -> usize {
        if self.targets.get(guess).is_some_and(|known| known.label == *label) {
            return guess;
        }
        self.targets.iter().position(|known| known.label == *label).unwrap_or_else(|| {
            let (label, trouble) = (label.clone(), TroubleState::default());
            self.targets.push(TargetWatch { label, attempts: [0; 2], trouble, look: 0 });
            self.targets.len() - 1
        })
    }
}
