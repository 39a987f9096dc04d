//! Keys whose sums over all hosts must be queried from the shared ledger: a sum may reach a threshold of a budget
//! although the use that each host knows does not. Decides when to query, and for how many keys together. Groups are
//! queried if somebody reads their use, which other hosts may have changed.

use crate::base::limits::COUNTS_FRESH;
use crate::base::time::Mono;
use crate::policy::keys::KeyIx;
use std::collections::HashMap;
use std::time::Duration;

/// Keys whose sums of all hosts a shared ledger is asked for at once.
const SUMS_AT_ONCE: usize = 128;
/// Pause before it is asked for further ones.
const SUMS_PAUSE: Duration = Duration::from_millis(250);

/// Number of a question that belongs to no exchange.
pub(crate) const NO_EXCHANGE: (u32, u32) = (u32::MAX, u32::MAX);

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct BudgetSums {
    /// Keys, each with the number of its last row, which must be committed before.
    keys: HashMap<u32, u64, ahash::RandomState>,
    /// First of the keys that are to be queried whatever their rows; none from `u32::MAX` on.
    rest: u32,
    /// Somebody has read the use of groups, and the first of them to be queried now.
    groups: bool,
    next_group: usize,
    /// Time of the next questions; `NEVER` if there are none, or none for a committed row.
    pub(crate) due: Mono,
}

impl Default for BudgetSums {
    fn default() -> Self {
        let keys = HashMap::with_hasher(ahash::RandomState::with_seeds(1, 2, 3, 4));
        BudgetSums { keys, rest: u32::MAX, groups: false, next_group: 0, due: Mono::NEVER }
    }
}

impl BudgetSums {
    /// The row with this number changes the sums of its key; 0: they may have changed before.
    #[inline(never)]
    pub(crate) fn add(&mut self, key: KeyIx, row: u64, now: Mono) {
        self.keys.insert(key.0, row);
        self.wake(now);
    }

    /// The sums of all keys may have changed before.
    pub(crate) fn add_all(&mut self, now: Mono) {
        self.rest = 0;
        self.wake(now);
    }

    /// The use of groups is being read.
    pub(crate) fn add_groups(&mut self, now: Mono) {
        self.groups = true;
        self.wake(now);
    }

    /// Takes the next groups to query, of `count` in all; none if nobody has read any.
    pub(crate) fn take_groups(&mut self, count: usize) -> impl ExactSizeIterator<Item = usize> + use<> {
        let (first, most) =
            (self.next_group, if std::mem::take(&mut self.groups) { count.min(SUMS_AT_ONCE) } else { 0 });
        self.next_group = (first + most) % count.max(1);
        (first..first + most).map(move |at| at % count)
    }

    fn wake(&mut self, now: Mono) {
        self.due = self.due.min(now.after(COUNTS_FRESH));
    }

    /// Rows are committed, perhaps those of keys that wait.
    pub(crate) fn committed(&mut self, now: Mono) {
        if !self.keys.is_empty() || self.rest < u32::MAX {
            self.wake(now);
        }
    }

    /// Takes the next keys to query, of `count` in all. `is_safe`: true if the row with this number is committed; false
    /// for 0 if the ledger has failed.
    pub(crate) fn take(&mut self, now: Mono, count: u32, is_safe: impl Fn(u64) -> bool) -> Vec<KeyIx> {
        let mut ready: Vec<KeyIx> = Vec::new();
        self.keys.retain(|key, row| {
            let is_taken = ready.len() < SUMS_AT_ONCE && is_safe(*row);
            ready.extend(is_taken.then_some(KeyIx(*key)));
            !is_taken
        });
        if is_safe(0) {
            while ready.len() < SUMS_AT_ONCE && self.rest < count {
                ready.push(KeyIx(self.rest));
                self.rest += 1;
            }
            if self.rest >= count {
                self.rest = u32::MAX;
            }
        }
        let is_full = ready.len() == SUMS_AT_ONCE && (!self.keys.is_empty() || self.rest < u32::MAX);
        self.due = if is_full { now.after(SUMS_PAUSE) } else { Mono::NEVER };
        ready
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_requested_once_after_their_rows_and_in_pieces() {
        let (mut sums, now, count) = (BudgetSums::default(), Mono(5_000_000), SUMS_AT_ONCE as u32 + 1);
        assert_eq!(sums.due, Mono::NEVER);
        (0..count).for_each(|key| sums.add(KeyIx(key), 0, now));
        sums.add(KeyIx(3), 7, now);
        assert_eq!(sums.due, now.after(COUNTS_FRESH));
        let first = sums.take(sums.due, count, |row| row < 7);
        assert!(first.len() == SUMS_AT_ONCE && !first.contains(&KeyIx(3)));
        assert_eq!(sums.due, now.after(COUNTS_FRESH).after(SUMS_PAUSE));
        assert_eq!(sums.take(sums.due, count, |row| row < 7), []);
        // The query waits until the row of the last key is committed.
        assert_eq!(sums.due, Mono::NEVER);
        sums.committed(now);
        assert_eq!(sums.due, now.after(COUNTS_FRESH));
        assert_eq!(sums.take(sums.due, count, |_| true), [KeyIx(3)]);
        assert_eq!(sums.due, Mono::NEVER);
    }

    #[test]
    fn groups_are_requested_in_turn_when_they_are_read() {
        let (mut sums, now) = (BudgetSums::default(), Mono(5_000_000));
        let count = SUMS_AT_ONCE + 2;
        assert_eq!(sums.take_groups(count).count(), 0);
        sums.add_groups(now);
        sums.add_groups(now);
        assert_eq!(sums.due, now.after(COUNTS_FRESH));
        assert!(sums.take_groups(count).eq(0..SUMS_AT_ONCE));
        assert_eq!(sums.take_groups(count).count(), 0);
        sums.add_groups(now);
        assert!(sums.take_groups(count).eq([count - 2, count - 1].into_iter().chain(0..SUMS_AT_ONCE - 2)));
        // After a reload there are fewer groups, or none.
        sums.add_groups(now);
        assert!(sums.take_groups(2).eq([0, 1]));
        sums.add_groups(now);
        assert_eq!(sums.take_groups(0).count(), 0);
    }

    #[test]
    fn all_keys_are_requested_once_after_those_with_rows() {
        let (mut sums, now, count) = (BudgetSums::default(), Mono(5_000_000), SUMS_AT_ONCE as u32 + 5);
        sums.add_all(now);
        sums.add(KeyIx(9), 7, now);
        // A failed ledger is not queried before its next commit.
        assert_eq!((sums.take(sums.due, count, |_| false), sums.due), (vec![], Mono::NEVER));
        sums.committed(now);
        let first = sums.take(sums.due, count, |_| true);
        assert_eq!((first.len(), first[0], first[1]), (SUMS_AT_ONCE, KeyIx(9), KeyIx(0)));
        let rest = sums.take(sums.due, count, |_| true);
        assert_eq!((rest.len(), rest[5], sums.due), (6, KeyIx(count - 1), Mono::NEVER));
        sums.committed(now);
        assert_eq!(sums.due, Mono::NEVER);
    }
}
