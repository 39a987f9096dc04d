//! Times from the sending of a request to the first byte of its response, by target: median and 95th percentile of the
//! last five minutes, and whether the target has become slow. Streams and complete responses are judged separately,
//! since a complete one begins only when it is finished. Recorded with all requests, so from the first reader on; its
//! memory is bounded.

use crate::base::time::Unix;
use crate::gateway::counters::{PastMinute, RecentMinute, TargetTimes};

/// Maximum number of targets with times, about 2.5 KiB each; a target with streams and complete responses counts twice.
/// A further target has none, unless one has had no requests for an hour.
const TARGETS_MAX: usize = 128;
/// Minutes whose times count as recent, the current one included.
const RECENT: u32 = 5;
/// Minutes before those: their median is the usual time.
const USUAL: u32 = 60;
/// Number of times that the recent minutes, and those before them, need for a judgement.
const TIMES_MIN: u32 = 20;
/// A target is slow if its recent median is more than this multiple of the usual one, and more than `SLOW_MIN`.
const SLOW_MULTIPLE: u64 = 3;
const SLOW_MIN: u32 = 500_000;
/// Minutes after which a slow target's times are its usual ones.
const SLOW_MAX: u32 = 60;
const MINUTE_MS: u64 = 60_000;

/// Bits of the first bucket's bound: about a millisecond. Each doubling after it has eight buckets.
const FIRST_BITS: u32 = 10;
/// Bits of the last bucket: about 18 minutes.
const LAST_BITS: u32 = 29;
const BUCKETS: usize = 8 * (LAST_BITS - FIRST_BITS + 1) as usize + 1;

/// BucketCounts by bucket.
type BucketCounts = [u32; BUCKETS];

/// Times of one target to its first byte, in microseconds.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct FirstByteTimes {
    pub(crate) median: u32,
    pub(crate) p95: u32,
    /// Median of the hour before.
    pub(crate) usual: Option<u32>,
    /// Beginning of the first minute in which it was slow, if it still is.
    pub(crate) slow_since: Option<Unix>,
}

/// Time of one response to its first byte.
#[derive(Copy, Clone, Debug)]
pub(crate) struct FirstByte {
    /// Number of the target.
    pub(crate) target: u64,
    /// False for a complete response.
    pub(crate) streams: bool,
    pub(crate) micros: u64,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct FirstBytes(pub(super) Vec<TargetTimes>);

impl FirstBytes {
    pub(crate) fn push(&mut self, FirstByte { target, streams, micros }: FirstByte, now: Unix) {
        let minute = minute_of(now);
        let known = self.0.iter().position(|one| (one.target, one.streams) == (target, streams));
        if known.is_none() {
            if self.0.len() >= TARGETS_MAX {
                self.0.retain(|one| one.last + USUAL > minute);
            }
            if self.0.len() >= TARGETS_MAX {
                return;
            }
            self.0.push(TargetTimes::new(target, streams));
        }
        let at = known.unwrap_or(self.0.len() - 1);
        let one = &mut self.0[at];
        one.last = minute;
        one.settle(minute);
        let recent = &mut one.recent[(minute % RECENT) as usize];
        recent.minute = minute;
        recent.counts.resize(BUCKETS, 0);
        let index = bucket(u32::try_from(micros).unwrap_or(u32::MAX));
        if recent.counts[index] == u16::MAX {
            recent.counts.iter_mut().for_each(|count| *count /= 2);
        }
        recent.counts[index] += 1;
    }

    /// Returns the times of a target, or of all; `None` if there are none in the last five minutes. If streams or
    /// complete responses have become slow, the times are only of these.
    pub(crate) fn of(&mut self, target: Option<u64>, now: Unix) -> Option<FirstByteTimes> {
        let (mut sum, mut most, mut usual) = ([0; BUCKETS], 0, None);
        let minute = minute_of(now);
        for one in self.0.iter_mut().filter(|one| target.is_none_or(|target| target == one.target)) {
            one.settle(minute);
            one.judge(minute);
            let counts = one.recent(minute);
            let (slow_since, own_usual) = (one.slow_since.filter(|_| target.is_some()), one.usual(minute));
            if let Some(slow) = slow_since {
                return times(&counts, own_usual, Some(Unix(u64::from(slow) * MINUTE_MS)));
            }
            let count: u32 = counts.iter().sum();
            if count > most {
                (most, usual) = (count, own_usual);
            }
            sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
        times(&sum, usual, None)
    }
}

impl FirstBytes {
    /// Medians by minute of the last hour, the current one first: of streams or of complete responses, whichever had
    /// more in that minute.
    pub(super) fn medians(&mut self, target: u64, now: Unix) -> Vec<Option<u32>> {
        let minute = minute_of(now);
        let mut all = vec![(0, None); USUAL as usize];
        for one in self.0.iter_mut().filter(|one| one.target == target) {
            one.settle(minute);
            for (ago, found) in all.iter_mut().enumerate() {
                let at = minute.saturating_sub(ago as u32);
                let counts = one.sum(|of| of == at);
                let past = one.past[(at % USUAL) as usize];
                let own = match quantile(&counts, 50) {
                    Some(median) => (counts.iter().sum(), Some(median)),
                    None if past.minute == at && past.count > 0 => (past.count, Some(past.median)),
                    None => continue,
                };
                *found = own.max(*found);
            }
        }
        all.into_iter().map(|(_, median)| median).collect()
    }
}

impl TargetTimes {
    fn new(target: u64, streams: bool) -> TargetTimes {
        TargetTimes {
            target,
            streams,
            recent: vec![RecentMinute::default(); RECENT as usize],
            past: vec![PastMinute::default(); USUAL as usize],
            last: 0,
            slow_since: None,
        }
    }

    /// Adds the minutes that are not recent any more to those before, unless the target is slow: then the usual time
    /// remains that of the hour before it became slow.
    fn settle(&mut self, minute: u32) {
        if self.recent.iter().all(|one| one.minute + RECENT > minute || one.minute == 0) {
            return;
        }
        self.judge(minute - 1);
        for at in 0..self.recent.len() {
            let old = self.recent[at].minute;
            if old == 0 || old + RECENT > minute {
                continue;
            }
            let counts = self.sum(|minute| minute == old);
            if let Some(median) = quantile(&counts, 50).filter(|_| self.slow_since.is_none_or(|since| old < since)) {
                self.past[(old % USUAL) as usize] = PastMinute { minute: old, median, count: counts.iter().sum() };
            }
            self.recent[at] = RecentMinute::default();
        }
    }

    /// BucketCounts of the recent minutes.
    fn recent(&self, minute: u32) -> BucketCounts {
        self.sum(|one| one + RECENT > minute)
    }

    fn sum(&self, takes: impl Fn(u32) -> bool) -> BucketCounts {
        let mut sum = [0; BUCKETS];
        for one in self.recent.iter().filter(|one| takes(one.minute)) {
            sum.iter_mut().zip(&one.counts).for_each(|(sum, count)| *sum += u32::from(*count));
        }
        sum
    }

    /// BucketCounts of the newest minutes that together have enough times: they show a recovery.
    fn newest(&self, minute: u32) -> BucketCounts {
        let from = (minute.saturating_sub(RECENT - 1)..=minute).rev();
        let counts = from.map(|from| self.sum(|one| one >= from && one <= minute));
        let mut enough = counts.filter(|counts| counts.iter().sum::<u32>() >= TIMES_MIN);
        enough.next().unwrap_or([0; BUCKETS])
    }

    /// Median of the hour before the recent minutes, or before the target became slow.
    fn usual(&self, minute: u32) -> Option<u32> {
        let end = self.slow_since.unwrap_or(minute.saturating_sub(RECENT - 1));
        let mut hour: Vec<PastMinute> =
            self.past.iter().filter(|one| one.count > 0 && one.minute + USUAL >= end).copied().collect();
        hour.sort_unstable_by_key(|one| one.median);
        let all: u32 = hour.iter().map(|one| one.count).sum();
        let mut before = 0;
        let is_middle = |one: &&PastMinute| {
            before += one.count;
            before * 2 >= all
        };
        hour.iter().find(is_middle).filter(|_| all >= TIMES_MIN).map(|one| one.median)
    }

    /// Decides whether the target is slow.
    fn judge(&mut self, minute: u32) {
        if self.slow_since.is_some_and(|since| since + SLOW_MAX <= minute) {
            self.slow_since = None;
            self.past.fill(PastMinute::default());
        }
        let counts = self.recent(minute);
        let usual = self.usual(minute).filter(|_| counts.iter().sum::<u32>() >= TIMES_MIN);
        let is_slow = |counts: &BucketCounts| {
            let recent = quantile(counts, 50).zip(usual);
            recent.is_some_and(|(now, usual)| now > SLOW_MIN && u64::from(now) > SLOW_MULTIPLE * u64::from(usual))
        };
        if !is_slow(&counts) || !is_slow(&self.newest(minute)) {
            self.slow_since = None;
        } else if self.slow_since.is_none() {
            // Minutes without times are skipped.
            let recent = (minute.saturating_sub(RECENT - 1)..=minute).rev();
            let recent = recent.map(|at| (at, self.sum(|minute| minute == at)));
            let with_times = recent.filter(|(_, counts)| counts.iter().any(|count| *count > 0));
            let first = with_times.take_while(|(_, counts)| is_slow(counts)).map(|(at, _)| at).last();
            self.slow_since = first.or(Some(minute));
        }
    }
}

fn minute_of(now: Unix) -> u32 {
    (now.0 / MINUTE_MS) as u32
}

/// Index of the bucket of a time.
fn bucket(micros: u32) -> usize {
    let micros = micros.min((1 << (LAST_BITS + 1)) - 1);
    match micros.checked_ilog2() {
        Some(bits) if bits >= FIRST_BITS => (1 + 8 * (bits - FIRST_BITS) + ((micros >> (bits - 3)) & 7)) as usize,
        _ => 0,
    }
}

/// Lower bound of a bucket.
fn bound(index: usize) -> u32 {
    match (index as u32).checked_sub(1) {
        None => 0,
        Some(at) => (8 + at % 8) << (FIRST_BITS + at / 8 - 3),
    }
}

/// The value below which this percentage of the times is, if times are evenly distributed within a bucket.
fn quantile(counts: &BucketCounts, percent: u64) -> Option<u32> {
    let all: u64 = counts.iter().map(|count| u64::from(*count)).sum();
    let rank = (all * percent).div_ceil(100);
    let mut before = 0;
    for (index, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
        let count = u64::from(*count);
        if before + count >= rank {
            let (low, high) = (bound(index), bound(index + 1));
            return Some(low + (u64::from(high - low) * (2 * (rank - before) - 1) / (2 * count)) as u32);
        }
        before += count;
    }
    None
}

fn times(counts: &BucketCounts, usual: Option<u32>, slow_since: Option<Unix>) -> Option<FirstByteTimes> {
    Some(FirstByteTimes { median: quantile(counts, 50)?, p95: quantile(counts, 95)?, usual, slow_since })
}

#[cfg(test)]
mod tests {
    use super::*;

    impl FirstBytes {
        fn add(&mut self, target: u64, micros: u64, now: Unix) {
            self.push(FirstByte { target, streams: true, micros }, now);
        }

        fn of_one(&mut self, target: u64, now: Unix) -> Option<FirstByteTimes> {
            self.of(Some(target), now)
        }
    }

    /// Times with this median, `count` of them in a minute.
    fn minute(times: &mut FirstBytes, minute: u64, count: u64, ms: u64) {
        (0..count).for_each(|at| times.add(1, ms * 1000, Unix(minute * MINUTE_MS + at)));
    }

    fn slow_since(times: &mut FirstBytes, minute: u64) -> Option<u64> {
        times.of_one(1, Unix((minute + 1) * MINUTE_MS - 1))?.slow_since.map(|at| at.0 / MINUTE_MS)
    }

    /// An hour of 10 times a minute that took 200 ms, up to minute 1060.
    fn usual() -> FirstBytes {
        let mut times = FirstBytes::default();
        (1000..1060).for_each(|at| minute(&mut times, at, 10, 200));
        times
    }

    #[test]
    fn quantiles_are_within_a_tenth() {
        for micros in [1100, 5_000, 99_999, 204_000, 2_300_000, 1_000_000_000] {
            let mut times = FirstBytes::default();
            (0..100).for_each(|at| times.add(1, micros * (950 + at) / 1000, Unix(9_000_000)));
            let found = times.of_one(1, Unix(9_000_000)).unwrap();
            for (value, exact) in [(found.median, micros), (found.p95, micros * 1045 / 1000)] {
                assert!(u64::from(value).abs_diff(exact) * 10 <= exact, "{value} is not {exact}");
            }
        }
        let all = |micros: u32| (bound(bucket(micros)), bound(bucket(micros) + 1));
        for micros in [0, 1, 1023, 1024, 1279, 1280, 4095, 4096, 1 << 29, (1 << 30) - 1] {
            let (low, high) = all(micros);
            assert!((low..high).contains(&micros), "{micros}: {low} to {high}");
        }
        assert_eq!(bucket(u32::MAX), BUCKETS - 1);
    }

    #[test]
    fn target_is_slow_from_its_first_slow_minute() {
        let mut times = usual();
        assert_eq!(slow_since(&mut times, 1059), None);
        minute(&mut times, 1060, 10, 900);
        minute(&mut times, 1061, 10, 900);
        assert_eq!(slow_since(&mut times, 1061), None, "most of the last five minutes were not slow");
        minute(&mut times, 1062, 10, 900);
        assert_eq!(slow_since(&mut times, 1062), Some(1060));
        let found = times.of_one(1, Unix(1062 * MINUTE_MS)).unwrap();
        assert!(found.median > 800_000 && found.usual.unwrap() < 250_000, "{found:?}");
        // Slow minutes do not become usual within the hour; after it they do.
        (1063..1119).for_each(|at| minute(&mut times, at, 10, 900));
        assert_eq!(slow_since(&mut times, 1118), Some(1060));
        (1119..1130).for_each(|at| minute(&mut times, at, 10, 900));
        assert_eq!(slow_since(&mut times, 1129), None);
        assert!(times.of_one(1, Unix(1129 * MINUTE_MS)).unwrap().usual.unwrap() > 800_000);
    }

    #[test]
    fn state_ends_with_the_slow_times_or_with_the_traffic() {
        let mut times = usual();
        (1060..1064).for_each(|at| minute(&mut times, at, 10, 900));
        assert_eq!(slow_since(&mut times, 1063), Some(1060));
        assert_eq!(slow_since(&mut times, 1067), None, "too few in the last five minutes");
        (1065..1068).for_each(|at| minute(&mut times, at, 10, 900));
        assert_eq!(slow_since(&mut times, 1067), Some(1063), "a minute without traffic ends nothing");
        (1068..1072).for_each(|at| minute(&mut times, at, 10, 200));
        assert_eq!(slow_since(&mut times, 1071), None);
        let mut times = usual();
        (1060..1064).for_each(|at| minute(&mut times, at, 10, 900));
        minute(&mut times, 1064, 9, 200);
        assert_eq!(slow_since(&mut times, 1064), Some(1060), "nine and the ten before them");
        minute(&mut times, 1064, 11, 200);
        assert_eq!(slow_since(&mut times, 1064), None, "the newest twenty are not slow");
    }

    #[test]
    fn few_times_small_times_and_a_small_factor_are_not_slow() {
        let mut times = FirstBytes::default();
        minute(&mut times, 1000, 19, 200);
        minute(&mut times, 1010, 30, 900);
        assert_eq!(slow_since(&mut times, 1010), None, "too few before");
        for (before, count, after) in [(200, 19, 900), (100, 30, 480), (300, 30, 880)] {
            let mut times = FirstBytes::default();
            (1000..1060).for_each(|at| minute(&mut times, at, 10, before));
            minute(&mut times, 1066, count, after);
            assert_eq!(slow_since(&mut times, 1066), None, "{count} of {after} ms after {before} ms");
        }
        let mut times = usual();
        minute(&mut times, 1066, 20, 900);
        assert_eq!(slow_since(&mut times, 1066), Some(1066), "twenty of 900 ms after 200 ms");
        // A day later the hour before has no times.
        minute(&mut times, 3000, 20, 9000);
        assert_eq!(slow_since(&mut times, 3000), None);
    }

    #[test]
    fn complete_responses_after_streams_are_not_slow() {
        let mut times = usual();
        let push = |times: &mut FirstBytes, minute: u64, ms: u64| {
            (0..30).for_each(|_| {
                let one = FirstByte { target: 1, streams: false, micros: ms * 1000 };
                times.push(one, Unix(minute * MINUTE_MS));
            });
        };
        push(&mut times, 1065, 2000);
        assert_eq!(slow_since(&mut times, 1065), None);
        let found = times.of_one(1, Unix(1065 * MINUTE_MS)).unwrap();
        assert!(found.usual.is_none() && found.median > 1_800_000, "{found:?}");
        // They are slow compared with other complete responses.
        push(&mut times, 1071, 9000);
        assert_eq!(slow_since(&mut times, 1071), Some(1071));
    }

    #[test]
    fn median_of_all_targets_counts_each_response_once() {
        let mut times = FirstBytes::default();
        (0..90).for_each(|at| times.add(at % 3, 4000, Unix(9_000_000)));
        (0..30).for_each(|_| times.add(7, 6_000_000, Unix(9_000_000)));
        let found = times.of(None, Unix(9_000_000)).unwrap();
        assert!((3500..4500).contains(&found.median) && found.p95 > 5_000_000, "{found:?}");
    }

    #[test]
    fn many_times_in_a_minute_keep_their_shares() {
        let mut times = FirstBytes::default();
        (0..400_000).for_each(|at| times.add(1, if at % 10 == 0 { 800_000 } else { 100_000 }, Unix(9_000_000)));
        let found = times.of_one(1, Unix(9_000_000)).unwrap();
        assert!((90_000..110_000).contains(&found.median) && (700_000..900_000).contains(&found.p95), "{found:?}");
    }

    #[test]
    fn number_of_targets_is_bounded() {
        let mut times = FirstBytes::default();
        (0..1000).for_each(|target| times.add(target, 1, Unix(9_000_000)));
        assert_eq!(times.0.len(), TARGETS_MAX);
        assert!(times.of_one(0, Unix(9_000_000)).is_some() && times.of_one(999, Unix(9_000_000)).is_none());
        let later = Unix(9_000_000 + 61 * MINUTE_MS);
        times.add(999, 1, later);
        assert!(times.of_one(999, later).is_some() && times.0.len() == 1, "targets of an hour ago give way");
        let one = size_of::<TargetTimes>()
            + RECENT as usize * (size_of::<RecentMinute>() + BUCKETS * 2)
            + USUAL as usize * size_of::<PastMinute>();
        assert!(one <= 2600, "{one}");
    }
}
