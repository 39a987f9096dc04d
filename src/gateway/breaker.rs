//! Which target of a model a request goes to: the order of the list, weights among equals, and rest for those that
//! fail (contract section 4). State is kept by the target's label, so that it outlives a change of configuration.
//!
//! | state | event → next |
//! |---|---|
//! | closed | `breaker_failures` in a row, of more than one key where there are several → open |
//! | open | `breaker_cooldown` passed, and a request chooses it → trial |
//! | trial | success → closed; failure → open; no verdict → open, and the next request tries |

use crate::base::time::Mono;
use crate::policy::catalog::Target;
use crate::policy::keys::KeyIx;
use crate::policy::limits::UpstreamLimits;
use std::sync::Arc;

#[derive(Debug)]
struct Entry {
    label: Arc<str>,
    /// Failures in a row.
    failures: u32,
    /// Failures ever, for the metrics.
    total: u64,
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

/// How one target stands, for the metrics.
#[derive(Debug)]
pub(crate) struct TargetState<'a> {
    pub(crate) label: &'a str,
    pub(crate) failures: u64,
    pub(crate) resting: bool,
}

/// The state of every target that has been used.
#[derive(Debug, Default)]
pub(crate) struct Breakers {
    entries: Vec<Entry>,
}

impl Breakers {
    /// The target for the next attempt; `tried` is the set of those tried already, as bits. The first attempt always
    /// finds one: where all of them rest, it is the one that was available last (contract section 4).
    pub(crate) fn choose(&mut self, targets: &[Target], tried: u64, now: Mono) -> Option<usize> {
        let untried = |index: usize| index < u64::BITS as usize && tried & (1 << index) == 0;
        let free: u64 = (0..targets.len()).filter(|index| untried(*index)).fold(0, |free, index| {
            let available = self.entry(&targets[index].label).available(now);
            free | (u64::from(available) << index)
        });
        let is_free = |index: &usize| free & (1 << *index) != 0;
        let Some(best) = (0..targets.len().min(u64::BITS as usize)).find(is_free) else {
            return (tried == 0).then(|| self.last_available(targets)).flatten();
        };
        let equal = |index: &usize| is_free(index) && targets[*index].priority == targets[best].priority;
        let chosen = self.by_weight(targets, best, equal);
        let entry = self.entry(&targets[chosen].label);
        entry.trial = entry.rests_until.is_some();
        Some(chosen)
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

    /// Smooth weighted round-robin, as nginx does it: everyone earns its weight, the richest pays the whole round.
    fn by_weight(&mut self, targets: &[Target], best: usize, equal: impl Fn(&usize) -> bool) -> usize {
        let (mut chosen, mut richest, mut round) = (best, i64::MIN, 0);
        for index in (0..targets.len()).filter(|index| equal(index)) {
            let weight = i64::from(targets[index].weight);
            let entry = self.entry(&targets[index].label);
            entry.credit += weight;
            round += weight;
            if entry.credit > richest {
                (chosen, richest) = (index, entry.credit);
            }
        }
        self.entry(&targets[chosen].label).credit -= round;
        chosen
    }

    /// The target has answered, if only to say that the client was wrong.
    pub(crate) fn succeeded(&mut self, label: &Arc<str>) {
        let entry = self.entry(label);
        entry.failures = 0;
        entry.first_key = None;
        entry.several_keys = false;
        entry.rests_until = None;
        entry.trial = false;
    }

    /// The target has failed by its own fault. `many_keys`: there is more than one key that could.
    pub(crate) fn failed(
        &mut self,
        label: &Arc<str>,
        key: Option<KeyIx>,
        many_keys: bool,
        limits: &UpstreamLimits,
        now: Mono,
    ) {
        let entry = self.entry(label);
        entry.total += 1;
        entry.failures = entry.failures.saturating_add(1);
        entry.several_keys |= entry.first_key.is_some() && entry.first_key != key;
        entry.first_key = entry.first_key.or(key);
        let enough = limits.breaker_failures > 0 && entry.failures >= limits.breaker_failures;
        if std::mem::take(&mut entry.trial) || (enough && (entry.several_keys || !many_keys)) {
            entry.rests_until = Some(now.after(limits.breaker_cooldown));
        }
    }

    /// An attempt ended without a verdict, since the client left: the next request may try.
    pub(crate) fn undecided(&mut self, label: &Arc<str>) {
        self.entry(label).trial = false;
    }

    /// How every target stands.
    pub(crate) fn states(&self, now: Mono) -> impl Iterator<Item = TargetState<'_>> {
        self.entries.iter().map(move |entry| TargetState {
            label: &entry.label,
            failures: entry.total,
            resting: !entry.available(now),
        })
    }

    /// Few targets, found by their labels' addresses almost always.
    fn entry(&mut self, label: &Arc<str>) -> &mut Entry {
        let same = |entry: &Entry| Arc::ptr_eq(&entry.label, label) || entry.label == *label;
        let index = self.entries.iter().position(same).unwrap_or_else(|| {
            self.entries.push(Entry {
                label: label.clone(),
                failures: 0,
                total: 0,
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
            breakers.failed(&target.label, Some(KeyIx(*key)), many_keys, &target.limits, now);
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
        let picks: Vec<usize> = (0..7).filter_map(|_| breakers.choose(&targets, 0, Mono(0))).collect();
        assert_eq!(picks, [0, 0, 1, 0, 2, 0, 0]);
    }

    #[test]
    fn a_target_rests_after_failures_of_several_keys_and_one_request_tries_it_again() {
        let (targets, mut breakers) = ([target("a", 1, 1), target("b", 2, 1)], Breakers::default());
        fail(&mut breakers, &targets[0], &[1, 2], true, Mono(0));
        assert_eq!(breakers.choose(&targets, 0, Mono(99)), Some(1));
        assert_eq!(breakers.choose(&targets, 0, Mono(100)), Some(0), "half-open: one tries");
        assert_eq!(breakers.choose(&targets, 0, Mono(100)), Some(1), "the others wait for its verdict");
        breakers.failed(&targets[0].label, Some(KeyIx(1)), true, &targets[0].limits, Mono(101));
        assert_eq!(breakers.choose(&targets, 0, Mono(200)), Some(1), "it rests again");
        assert_eq!(breakers.choose(&targets, 0, Mono(201)), Some(0));
        breakers.undecided(&targets[0].label);
        assert_eq!(breakers.choose(&targets, 0, Mono(202)), Some(0), "a trial without a verdict is made again");
        breakers.succeeded(&targets[0].label);
        assert_eq!(breakers.choose(&targets, 0, Mono(203)), Some(0));
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
        assert_eq!(breakers.choose(&targets, 0, Mono(100)), Some(0), "a has rested: one request tries it");
    }

    #[test]
    fn where_all_rest_none_does() {
        let (targets, mut breakers) = ([target("a", 1, 1)], Breakers::default());
        fail(&mut breakers, &targets[0], &[1, 2], true, Mono(0));
        assert_eq!(breakers.choose(&targets, 0, Mono(1)), Some(0));
        assert_eq!(breakers.states(Mono(1)).filter(|state| state.resting).count(), 1);
    }
}
