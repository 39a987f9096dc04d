//! Knowledge of a ledger about the clocks of its writers, and the decision whether the present clock may fold old
//! rows. Reads neither a ledger nor a clock.

use crate::base::time::Unix;
use crate::policy::row::Row;
use crate::policy::window;
use std::time::Duration;

/// Time past the retention from which the age of the newest usage record stops folding: the clock may be wrong.
const FOLD_GAP: Duration = Duration::from_secs(365 * 86_400);

/// Knowledge of a ledger about the clocks of its writers.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct WriterClocks {
    /// Time of admission of the newest usage record. Records from before the present time was last accepted do not
    /// count; the time of that does.
    pub newest: Unix,
    /// Time at which an operator last accepted the present time.
    pub accepted: Option<Unix>,
    /// Newest usage record when the clock ran far ahead of it; folding has been stopped since.
    pub held: Option<Unix>,
    /// Usage record after which an operator has confirmed folding in spite of the gap.
    pub confirmed: Option<Unix>,
}

impl WriterClocks {
    /// Returns the usage record at which folding stops: the newest, if it is older than the retention and a year.
    /// Records written since the clock jumped do not end the stop.
    pub fn gap(&self, now: Unix, retention: Duration) -> Option<Unix> {
        let newest = self.held.unwrap_or(self.newest);
        let most = (retention + FOLD_GAP).as_millis() as u64;
        let waits = newest > Unix(0) && now.0.saturating_sub(newest.0) > most && self.confirmed != Some(newest);
        waits.then_some(newest)
    }
}

/// Result of a check of the clock.
#[derive(PartialEq, Eq, Debug, Default)]
pub struct Judged {
    /// Value that the ledger must store as [`WriterClocks::held`], if it changes.
    pub remember: Option<Option<Unix>>,
    /// Warning for the operator.
    pub warning: Option<String>,
}

/// Decides whether a ledger's thread may fold.
#[derive(Debug, Default)]
pub struct FoldGuard {
    retention: Option<Duration>,
    /// Knowledge of the ledger.
    pub clocks: WriterClocks,
    told: Option<Unix>,
}

impl FoldGuard {
    /// `retention`: rows older than this are folded; `None` keeps them for ever.
    pub fn new(retention: Option<Duration>, clocks: WriterClocks) -> FoldGuard {
        FoldGuard { retention, clocks, told: None }
    }

    /// Records that these rows have been written.
    pub fn wrote(&mut self, rows: &[Row]) {
        let newest = rows.iter().map(|row| row.admitted).max();
        self.clocks.newest = self.clocks.newest.max(newest.unwrap_or_default());
    }

    /// Records the ledger's clocks, read again. True if an operator has accepted the present time meanwhile.
    pub fn learn(&mut self, clocks: WriterClocks) -> bool {
        let accepted = self.clocks.accepted != clocks.accepted;
        self.clocks = clocks;
        accepted
    }

    /// Returns the time before which rows may be folded; `None` if none may.
    pub fn before(&self, now: Unix) -> Option<Unix> {
        let retention = self.retention?;
        let before = Unix(now.0.saturating_sub(u64::try_from(retention.as_millis()).unwrap_or(u64::MAX)));
        self.gap(now).is_none().then_some(before)
    }

    /// See [`WriterClocks::gap`].
    pub fn gap(&self, now: Unix) -> Option<Unix> {
        self.clocks.gap(now, self.retention?)
    }

    /// Checks the clock. Call it before rows that it has dated are written.
    pub fn judge(&mut self, now: Unix) -> Judged {
        let gap = self.gap(now);
        if self.retention.is_none() || (gap == self.clocks.held && gap == self.told) {
            return Judged::default();
        }
        let warning = gap.filter(|_| gap != self.told).map(|newest| {
            format!(
                "retention folds nothing: the newest usage record is from {}, and the clock says {}; if the clock is \
                 right, run `tollgate ledger fold --confirm`",
                window::iso(newest),
                window::iso(now)
            )
        });
        let remember = (gap != self.clocks.held).then_some(gap);
        (self.told, self.clocks.held) = (gap, gap);
        Judged { remember, warning }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 86_400_000;
    const RETENTION: Duration = Duration::from_secs(32 * 86_400);

    #[test]
    fn folding_stops_if_the_newest_record_is_older_than_retention_and_a_year() {
        let guard = FoldGuard::new(Some(RETENTION), WriterClocks { newest: Unix(DAY), ..WriterClocks::default() });
        let edge = DAY + (32 + 365) * DAY;
        assert_eq!(guard.before(Unix(edge)), Some(Unix(edge - 32 * DAY)));
        assert_eq!(guard.before(Unix(edge + 1)), None);
        assert_eq!(FoldGuard::new(None, guard.clocks).before(Unix(DAY)), None, "without a retention nothing is folded");
        let empty = FoldGuard::new(Some(RETENTION), WriterClocks::default());
        assert!(empty.before(Unix(edge + 1)).is_some(), "an empty ledger has no gap");
    }

    #[test]
    fn folding_waits_for_a_confirmation_or_a_corrected_clock() {
        let newest = Unix(100 * DAY);
        let mut guard = FoldGuard::new(Some(RETENTION), WriterClocks { newest, ..WriterClocks::default() });
        let far = Unix(20_000 * DAY);
        assert_eq!(guard.judge(Unix(101 * DAY)), Judged::default());
        let judged = guard.judge(far);
        assert!(judged.remember == Some(Some(newest)) && judged.warning.is_some(), "{judged:?}");
        assert_eq!(guard.judge(far), Judged::default(), "the jump must be reported once");
        // Records dated by the wrong clock do not make it right.
        guard.clocks.newest = far;
        assert_eq!(guard.before(far), None);
        let mut again = FoldGuard::new(Some(RETENTION), guard.clocks);
        let judged = again.judge(far);
        assert!(judged.remember.is_none() && judged.warning.is_some(), "a starting process must report it again");
        assert_eq!(again.judge(Unix(101 * DAY)).remember, Some(None));
        assert!(again.before(Unix(101 * DAY)).is_some());
        guard.learn(WriterClocks { held: None, confirmed: Some(newest), newest: far, accepted: None });
        assert!(guard.before(far).is_some());
    }

    #[test]
    fn confirmation_applies_to_one_gap() {
        let confirmed = Some(Unix(100 * DAY));
        let clocks = WriterClocks { newest: Unix(100 * DAY), confirmed, ..WriterClocks::default() };
        assert_eq!(clocks.gap(Unix(1000 * DAY), RETENTION), None);
        let later = WriterClocks { newest: Unix(200 * DAY), ..clocks };
        assert_eq!(later.gap(Unix(1000 * DAY), RETENTION), Some(Unix(200 * DAY)));
    }
}
