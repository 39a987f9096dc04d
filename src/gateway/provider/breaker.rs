//! Which target of a model a request goes to: the order of the list, weights among equals, and rest for those that
//! fail (contract section 4). State is kept by the target's label, so that it outlives a change of configuration.
//!
//! | state | event → next |
//! |---|---|
//! | closed | `breaker_failures` in a row, of more than one key where there are several → open |
//! | open | `breaker_cooldown` passed, and an attempt begins → trial |
//! | trial | part of an answer → closed; failure → open; no verdict → open, and the next request tries |

use crate::base::time::Mono;
use crate::policy::catalog::Target;
use crate::policy::counters::{AttemptEnd, TargetCounts};
use crate::policy::keys::KeyIx;
use crate::policy::limits::UpstreamLimits;
use std::sync::Arc;

#[derive(Debug)]
struct Entry {
    label: Arc<str>,
    /// Failures in a row.
    failures: u32,
    /// What has become of attempts, for the metrics.
    counts: TargetCounts,
    /// Whose request failed first, and whether another key's did since.
    first_key: Option<KeyIx>,
    several_keys: bool,
    /// While it rests, and until a success after that.
    rests_until: Option<Mono>,
    /// The one request that tries a rested target is under way.
    trial: bool,
    /// Credit of the smooth weighted round-robin.
    credit: i64,
}

impl Entry {
    fn available(&self, now: Mono) -> bool {
        self.rests_until.is_none_or(|until| until <= now && !self.trial)
    }
}

/// Ends of one target that are counted apart.
const ENDS_MAX: usize = 32;

impl TargetCounts {
    /// How attempts have ended, each with how often.
    pub(crate) fn ends(&self) -> impl Iterator<Item = (AttemptEnd, u64)> {
        let served = (AttemptEnd::Status(200), self.served);
        [served].into_iter().filter(|(_, count)| *count > 0).chain(self.others.iter().copied())
    }

    fn new(label: Arc<str>) -> TargetCounts {
        TargetCounts { label, failures: 0, served: 0, others: Vec::new() }
    }

    fn count(&mut self, end: AttemptEnd, count: u64) {
        match self.others.iter().position(|(known, _)| *known == end) {
            Some(index) => self.others[index].1 += count,
            None if self.others.len() < ENDS_MAX || end == AttemptEnd::Other => self.others.push((end, count)),
            None => self.count(AttemptEnd::Other, count),
        }
    }
}

/// The numbers of the bits that are set.
fn members(bits: u64) -> impl Iterator<Item = usize> {
    (0..u64::BITS as usize).filter(move |index| bits & (1 << index) != 0)
}

/// Whose attempt has failed.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Failure {
    /// The caller.
    pub(crate) key: Option<KeyIx>,
    /// There is more than one key that could have called.
    pub(crate) many_keys: bool,
    /// It was the attempt that tried a target after its rest.
    pub(crate) trial: bool,
}

/// The state of every target that has been used.
#[derive(Debug, Default)]
pub(crate) struct Breakers {
    entries: Vec<Entry>,
}

impl Breakers {
    /// The target for the next attempt; `tried` is the set of those tried already, as bits. The first attempt always
    /// finds one: where all of them rest, it is the one that was available last (contract section 4). Nothing is
    /// counted: a request that is refused after this has taken nobody's turn.
    pub(crate) fn choose(&mut self, targets: &[Target], tried: u64, now: Mono) -> Option<usize> {
        let equals = self.equals(targets, tried, now);
        match equals.count_ones() {
            0 if tried == 0 => self.last_available(targets),
            0 => None,
            1 => Some(equals.trailing_zeros() as usize),
            _ => members(equals).max_by_key(|index| (self.earned(&targets[*index]), std::cmp::Reverse(*index))),
        }
    }

    /// Those among which a turn is taken, as bits: of the targets that are available and not `tried`, the ones that
    /// stand as high in the list as the first of them.
    fn equals(&mut self, targets: &[Target], tried: u64, now: Mono) -> u64 {
        let all = (0..targets.len().min(u64::BITS as usize)).filter(|index| tried & (1 << index) == 0);
        let mut equals = 0;
        let mut best = None;
        for index in all {
            let target = &targets[index];
            let first = best.is_none_or(|priority| priority == target.priority);
            if first && self.entry(&target.label).available(now) {
                best = Some(target.priority);
                equals |= 1 << index;
            }
        }
        equals
    }

    /// What a target would have if it earned its weight now.
    fn earned(&mut self, target: &Target) -> i64 {
        self.entry(&target.label).credit + i64::from(target.weight)
    }

    /// An attempt at the target `chosen` begins, those of `before` having been tried. True if it is the one that tries
    /// a target that has rested: its owner says how it went by [`Breakers::answered`], [`Breakers::succeeded`],
    /// [`Breakers::failed`] or [`Breakers::no_verdict`].
    pub(crate) fn begin(&mut self, targets: &[Target], chosen: usize, before: u64, now: Mono) -> bool {
        if targets.len() > 1 {
            self.take_turn(targets, chosen, before, now);
        }
        let Some(target) = targets.get(chosen) else { return false };
        let entry = self.entry(&target.label);
        let tries = entry.rests_until.is_some_and(|until| until <= now) && !entry.trial;
        entry.trial |= tries;
        tries
    }

    /// Smooth weighted round-robin, as nginx does it: everyone earns its weight, the chosen one pays the whole round.
    fn take_turn(&mut self, targets: &[Target], chosen: usize, before: u64, now: Mono) {
        let equals = self.equals(targets, before, now);
        let mut round = 0;
        for index in members(equals) {
            round += i64::from(targets[index].weight);
            let earned = self.earned(&targets[index]);
            self.entry(&targets[index].label).credit = earned;
        }
        if equals & (1 << chosen) != 0 {
            self.entry(&targets[chosen].label).credit -= round;
        }
    }

    /// Part of an answer has come from a target on trial: it is there for others again. Its failures are forgiven only
    /// when the answer is whole. True if it had rested.
    pub(crate) fn answered(&mut self, label: &Arc<str>) -> bool {
        let entry = self.entry(label);
        entry.trial = false;
        entry.rests_until.take().is_some()
    }

    /// Whether a target may be asked: it does not rest, and no other attempt tries it.
    pub(crate) fn is_available(&mut self, label: &Arc<str>, now: Mono) -> bool {
        self.entry(label).available(now)
    }

    /// Of targets that all rest, the one that came to rest last.
    fn last_available(&mut self, targets: &[Target]) -> Option<usize> {
        let mut last: Option<(usize, Option<Mono>)> = None;
        for (index, target) in targets.iter().enumerate() {
            let until = self.entry(&target.label).rests_until;
            if last.is_none_or(|(_, latest)| until > latest) {
                last = Some((index, until));
            }
        }
        last.map(|(index, _)| index)
    }

    /// The target has given a whole answer, if only to say that the client was wrong. True if it had rested.
    pub(crate) fn succeeded(&mut self, label: &Arc<str>) -> bool {
        let entry = self.entry(label);
        entry.failures = 0;
        entry.first_key = None;
        entry.several_keys = false;
        entry.trial = false;
        entry.rests_until.take().is_some()
    }

    /// The target has failed by its own fault. True if it comes to rest with that.
    pub(crate) fn failed(&mut self, label: &Arc<str>, failure: Failure, limits: &UpstreamLimits, now: Mono) -> bool {
        let Failure { key, many_keys, trial } = failure;
        let entry = self.entry(label);
        entry.trial &= !trial;
        entry.counts.failures += 1;
        entry.failures = entry.failures.saturating_add(1);
        entry.several_keys |= entry.first_key.is_some() && entry.first_key != key;
        entry.first_key = entry.first_key.or(key);
        let enough = limits.breaker_failures > 0 && entry.failures >= limits.breaker_failures;
        let rests = trial || (enough && (entry.several_keys || !many_keys));
        let rested = entry.rests_until.is_some_and(|until| until > now);
        if rests {
            entry.rests_until = Some(now.after(limits.breaker_cooldown));
        }
        rests && !rested
    }

    /// The attempt on trial ended without a verdict, since the client left: the next request may try.
    pub(crate) fn no_verdict(&mut self, label: &Arc<str>) {
        self.entry(label).trial = false;
    }

    /// The target has given a whole answer. True if it had rested.
    pub(crate) fn served(&mut self, label: &Arc<str>) -> bool {
        self.entry(label).counts.served += 1;
        self.succeeded(label)
    }

    /// An attempt at the target has ended, and not well.
    pub(crate) fn ended(&mut self, label: &Arc<str>, end: AttemptEnd) {
        self.entry(label).counts.count(end, 1);
    }

    /// What every target has come to, and whether it rests.
    pub(crate) fn states(&self, now: Mono) -> impl Iterator<Item = (TargetCounts, bool)> {
        self.entries.iter().map(move |entry| (entry.counts.clone(), !entry.available(now)))
    }

    /// What every target has come to since the last time; its state stays.
    pub(crate) fn take_counts(&mut self) -> Vec<TargetCounts> {
        let fresh = |entry: &mut Entry| std::mem::replace(&mut entry.counts, TargetCounts::new(entry.label.clone()));
        self.entries.iter_mut().map(fresh).collect()
    }

    /// Adds what another process has counted.
    pub(crate) fn add(&mut self, other: &TargetCounts) {
        let counts = &mut self.entry(&other.label).counts;
        counts.failures += other.failures;
        counts.served += other.served;
        other.others.iter().for_each(|(end, count)| counts.count(*end, *count));
    }

    /// Few targets, found by their labels' addresses almost always.
    fn entry(&mut self, label: &Arc<str>) -> &mut Entry {
        let same = |entry: &Entry| Arc::ptr_eq(&entry.label, label) || entry.label == *label;
        let index = self.entries.iter().position(same).unwrap_or_else(|| {
            self.entries.push(Entry {
                label: label.clone(),
                failures: 0,
                counts: TargetCounts::new(label.clone()),
                first_key: None,
                several_keys: false,
                rests_until: None,
                trial: false,
                credit: 0,
            });
            self.entries.len() - 1
        });
        &mut self.entries[index]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn target(label: &str, priority: u32, weight: u32) -> Target {
        let limits = limits();
        Target { provider: 0, model: String::new(), label: label.into(), priority, weight, limits }
    }

    fn limits() -> UpstreamLimits {
        UpstreamLimits {
            breaker_failures: 2,
            breaker_cooldown: Duration::from_micros(100),
            ..UpstreamLimits::default()
        }
    }

    fn fail(breakers: &mut Breakers, target: &Target, keys: &[u32], many_keys: bool, now: Mono) {
        for key in keys {
            let failure = Failure { key: Some(KeyIx(*key)), many_keys, trial: false };
            breakers.failed(&target.label, failure, &target.limits, now);
        }
    }

    #[test]
    fn the_list_is_tried_in_order_and_each_target_once() {
        let (targets, mut breakers) = ([target("a", 1, 1), target("b", 2, 1)], Breakers::default());
        assert_eq!(breakers.choose(&targets, 0, Mono(0)), Some(0));
        assert_eq!(breakers.choose(&targets, 0b01, Mono(0)), Some(1));
        assert_eq!(breakers.choose(&targets, 0b11, Mono(0)), None);
    }

    #[test]
    fn equals_share_by_weight_smoothly() {
        let (targets, mut breakers) = ([target("a", 1, 5), target("b", 1, 1), target("c", 1, 1)], Breakers::default());
        let mut pick = || {
            let chosen = breakers.choose(&targets, 0, Mono(0)).unwrap();
            assert_eq!(breakers.choose(&targets, 0, Mono(0)), Some(chosen), "a choice alone takes no turn");
            breakers.begin(&targets, chosen, 0, Mono(0));
            chosen
        };
        let picks: Vec<usize> = (0..7).map(|_| pick()).collect();
        assert_eq!(picks, [0, 0, 1, 0, 2, 0, 0]);
    }

    #[test]
    fn a_target_rests_after_failures_of_several_keys_and_one_request_tries_it_again() {
        let (targets, mut breakers) = ([target("a", 1, 1), target("b", 2, 1)], Breakers::default());
        fail(&mut breakers, &targets[0], &[1, 2], true, Mono(0));
        assert_eq!(breakers.choose(&targets, 0, Mono(99)), Some(1));
        let label = &targets[0].label;
        assert_eq!(breakers.choose(&targets, 0, Mono(100)), Some(0), "half-open");
        assert_eq!(breakers.choose(&targets, 0, Mono(100)), Some(0), "a request that is refused has tried nothing");
        assert!(breakers.begin(&targets, 0, 0, Mono(100)), "one tries");
        assert!(!breakers.begin(&targets, 0, 0, Mono(100)), "and no other at the same time");
        assert_eq!(breakers.choose(&targets, 0, Mono(100)), Some(1), "the others wait for its verdict");
        let failure = Failure { key: Some(KeyIx(1)), many_keys: true, trial: true };
        breakers.failed(label, failure, &targets[0].limits, Mono(101));
        assert_eq!(breakers.choose(&targets, 0, Mono(200)), Some(1), "it rests again");
        assert!(breakers.begin(&targets, 0, 0, Mono(201)));
        breakers.no_verdict(label);
        assert_eq!(breakers.choose(&targets, 0, Mono(202)), Some(0), "a trial without a verdict is made again");
        assert!(breakers.begin(&targets, 0, 0, Mono(202)));
        breakers.answered(label);
        assert_eq!(breakers.choose(&targets, 0, Mono(203)), Some(0), "an answer that has begun is enough for others");
        fail(&mut breakers, &targets[0], &[1], true, Mono(204));
        assert_eq!(breakers.choose(&targets, 0, Mono(205)), Some(1), "an answer that breaks off has forgiven nothing");
    }

    #[test]
    fn one_key_alone_cannot_trip_it_for_others_but_the_only_key_can() {
        let (targets, mut breakers) = ([target("a", 1, 1), target("b", 2, 1)], Breakers::default());
        fail(&mut breakers, &targets[0], &[1, 1, 1, 1], true, Mono(0));
        assert_eq!(breakers.choose(&targets, 0, Mono(1)), Some(0));
        fail(&mut breakers, &targets[0], &[1], false, Mono(0));
        assert_eq!(breakers.choose(&targets, 0, Mono(1)), Some(1));
    }

    #[test]
    fn a_success_in_between_forgives() {
        let (targets, mut breakers) = ([target("a", 1, 1), target("b", 2, 1)], Breakers::default());
        fail(&mut breakers, &targets[0], &[1], true, Mono(0));
        breakers.succeeded(&targets[0].label);
        fail(&mut breakers, &targets[0], &[2], true, Mono(0));
        assert_eq!(breakers.choose(&targets, 0, Mono(1)), Some(0));
    }

    #[test]
    fn the_last_available_target_does_not_rest() {
        let (targets, mut breakers) = ([target("a", 1, 1), target("b", 2, 1)], Breakers::default());
        fail(&mut breakers, &targets[0], &[1, 2], true, Mono(0));
        fail(&mut breakers, &targets[1], &[1, 2], true, Mono(10));
        assert_eq!(breakers.choose(&targets, 0, Mono(20)), Some(1), "a rests, b was there last");
        fail(&mut breakers, &targets[1], &[1], true, Mono(20));
        assert_eq!(breakers.choose(&targets, 0, Mono(99)), Some(1));
        assert_eq!(breakers.choose(&targets, 0, Mono(100)), Some(0), "a has rested");
    }

    #[test]
    fn ends_are_counted_within_a_bound_and_added_to_a_successors() {
        let (label, mut breakers): (Arc<str>, _) = ("a".into(), Breakers::default());
        breakers.served(&label);
        (500..600).for_each(|status| breakers.ended(&label, AttemptEnd::Status(status)));
        breakers.ended(&label, AttemptEnd::Status(500));
        let counts = breakers.take_counts();
        let sum = |counts: &TargetCounts| counts.ends().map(|(_, count)| count).sum::<u64>();
        assert_eq!((counts[0].ends().count(), sum(&counts[0])), (ENDS_MAX + 2, 102));
        breakers.served(&label);
        breakers.add(&counts[0]);
        let (counts, _) = breakers.states(Mono(0)).next().unwrap();
        assert_eq!((counts.served, sum(&counts)), (2, 103));
        let words: Vec<String> = counts.ends().take(2).map(|(end, count)| format!("{end} {count}")).collect();
        assert_eq!(words, ["200 2", "500 2"]);
    }

    #[test]
    fn where_all_rest_none_does() {
        let (targets, mut breakers) = ([target("a", 1, 1)], Breakers::default());
        fail(&mut breakers, &targets[0], &[1, 2], true, Mono(0));
        assert_eq!(breakers.choose(&targets, 0, Mono(1)), Some(0));
        assert_eq!(breakers.states(Mono(1)).filter(|(_, resting)| *resting).count(), 1);
    }
}
