//! Duties of the store thread, and the times at which it commits the rows that it has gathered and syncs the log of a
//! ledger in a file. Reads no clock and touches no file.

use super::copy::SnapshotPlan;
use super::follow::KeysSeen;
use super::writer_clocks::WriterClocks;
use crate::base::limits;
use crate::base::time::Mono;
use crate::store::bounds;
use std::time::Duration;

/// Pause of the busy store thread when commits are seconds apart, since rows then only move from one queue to another.
const GATHER_TICK: Duration = Duration::from_millis(100);

/// Duties of the thread besides committing.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Duties {
    /// Every hand-over wakes the thread at once (durability before-reply). Otherwise rows gather for
    /// `limits::COMMIT_TICK`.
    pub urgent: bool,
    /// Interval between two commits, if it is longer than that.
    pub commit_every: Duration,
    /// Interval after which commits are synced; `None` if each commit syncs, or nothing is to.
    pub sync_every: Option<Duration>,
    /// Snapshots of the ledger.
    pub snapshot: Option<SnapshotPlan>,
    /// Rows older than this are folded into the sums of their days; `None` keeps them for ever.
    pub retention: Option<Duration>,
    /// Position in the changes of the keys when the loop received all keys; by default it has none.
    pub seen: KeysSeen,
    /// Knowledge of the loop about the clocks that wrote the ledger.
    pub clocks: WriterClocks,
}

/// Times of the next commit and the next sync.
#[derive(Debug)]
pub(super) struct Schedule {
    /// `None` commits rows as soon as the thread has them.
    commit_every: Option<Duration>,
    next_commit: Mono,
    sync_every: Option<Duration>,
    /// `None` while every commit is synced.
    next_sync: Option<Mono>,
}

impl Schedule {
    /// Creates the schedule of a thread with these duties. The first commit is due at once.
    pub(super) fn new(duties: &Duties) -> Schedule {
        let commit_every = Some(duties.commit_every).filter(|every| *every > limits::COMMIT_TICK);
        Schedule { commit_every, next_commit: Mono(0), sync_every: duties.sync_every, next_sync: None }
    }

    /// Interval at which the busy thread takes rows out of its queue.
    pub(super) fn tick(&self) -> Duration {
        self.commit_every.map_or(limits::COMMIT_TICK, |every| every.min(GATHER_TICK))
    }

    /// True if `rows` gathered rows must be committed.
    pub(super) fn is_due(&self, rows: usize, now: Mono) -> bool {
        self.commit_every.is_none() || rows >= bounds::ROWS_PER_COMMIT || now >= self.next_commit
    }

    /// Records a commit.
    pub(super) fn committed(&mut self, now: Mono) {
        if let Some(every) = self.commit_every {
            self.next_commit = now.after(every);
        }
        if let Some(every) = self.sync_every {
            self.next_sync.get_or_insert(now.after(every));
        }
    }

    /// True once for each sync that is due.
    pub(super) fn takes_sync(&mut self, now: Mono) -> bool {
        self.next_sync.take_if(|at| now >= *at).is_some()
    }

    /// Returns the time until something is due, at most `most`. `gathers`: rows wait for a commit.
    pub(super) fn wait(&self, most: Duration, gathers: bool, now: Mono) -> Duration {
        let commit = gathers.then_some(self.next_commit);
        let due = commit.into_iter().chain(self.next_sync).min();
        due.map_or(most, |at| most.min(Duration::from_micros(at.micros_since(now))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn schedule(commit_every: Duration, sync_every: Option<Duration>) -> Schedule {
        Schedule::new(&Duties { commit_every, sync_every, ..Duties::default() })
    }

    #[test]
    fn records_wait_for_the_interval_or_a_full_commit() {
        let mut schedule = schedule(10 * SECOND, None);
        let start = Mono(5_000_000);
        assert!(schedule.is_due(1, start), "the first commit must not wait");
        schedule.committed(start);
        let before = Mono(start.0 + 9_999_999);
        assert!(
            !schedule.is_due(bounds::ROWS_PER_COMMIT - 1, before) && schedule.is_due(bounds::ROWS_PER_COMMIT, before)
        );
        assert_eq!(schedule.wait(SECOND, true, before), Duration::from_micros(1));
        assert_eq!(schedule.wait(SECOND, false, before), SECOND);
        assert!(schedule.is_due(1, Mono(start.0 + 10_000_000)));
        assert_eq!(schedule.wait(SECOND, true, Mono(start.0 + 11_000_000)), Duration::ZERO);
    }

    #[test]
    fn default_interval_commits_records_immediately() {
        let mut schedule = schedule(limits::COMMIT_TICK, None);
        schedule.committed(Mono(7));
        assert!(schedule.is_due(1, Mono(7)));
        assert_eq!((schedule.tick(), schedule.wait(SECOND, true, Mono(7))), (limits::COMMIT_TICK, Duration::ZERO));
    }

    #[test]
    fn sync_follows_the_first_unsynced_commit_and_none_follows_without_commits() {
        let mut schedule = schedule(limits::COMMIT_TICK, Some(30 * SECOND));
        assert!(!schedule.takes_sync(Mono(90_000_000)));
        schedule.committed(Mono(0));
        schedule.committed(Mono(20_000_000));
        assert!(!schedule.takes_sync(Mono(29_999_999)));
        assert_eq!(schedule.wait(60 * SECOND, false, Mono(29_000_000)), SECOND);
        assert!(schedule.takes_sync(Mono(30_000_000)));
        assert!(!schedule.takes_sync(Mono(90_000_000)));
    }
}
