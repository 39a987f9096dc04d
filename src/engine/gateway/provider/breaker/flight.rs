//! Attempts in flight: counts each from its beginning to its one end, at its target and in its provider's rate limits.

use super::cool_downs::TRIAL_EVERY;
use super::{Among, Begun, Breakers, Choice, earned, members};
use crate::base::time::Mono;
use crate::gateway::provider::rate_limits::{Needs, RateLimitHeaders};
use crate::policy::catalog::Target;
use crate::policy::keys::KeyIx;

/// An attempt in flight at its target. It ends once, by [`Breakers::land`].
#[derive(Debug)]
#[must_use]
pub(crate) struct Flight {
    /// Cleared once part of an answer has arrived.
    pub(crate) begun: Begun,
    /// The attempt has no answer yet: it counts as pending in the provider's rate limits.
    unheard: bool,
    /// It is a form that is still arriving.
    arrives: bool,
}

impl Breakers {
    /// Begins an attempt at the target `chosen`. Its owner reports the head of an answer by
    /// [`Breakers::answer_begins`], the end by [`Breakers::land`], and the result by [`Breakers::answered`],
    /// [`Breakers::succeeded`], [`Breakers::failed`] or [`Breakers::no_verdict`].
    pub(crate) fn begin(&mut self, targets: &[Target], chosen: usize, choice: &Choice) -> Option<Flight> {
        if targets.len() > 1 && choice.among == Among::Turns {
            self.take_turn(targets, chosen, choice);
        }
        let (target, now) = (targets.get(chosen)?, choice.now);
        let index = self.index(target);
        let cooling = self.cools_until(index, choice.owner, now).is_some();
        let entry = &mut self.entries[index];
        entry.busy += 1;
        if cooling {
            entry.next_trial = now.after(TRIAL_EVERY);
        }
        for ((left, asked), need) in entry.left.iter_mut().zip(&mut entry.asked).zip(choice.needs) {
            left.take(need);
            *asked += need;
        }
        let breaker = &mut self.breakers[entry.breaker];
        breaker.busy += 1;
        let trial = breaker.open_until.is_some_and(|until| until <= now) && !breaker.trial;
        breaker.trial |= trial;
        if let Some(uploader) = choice.uploader {
            breaker.uploads.push(uploader);
        }
        Some(Flight { begun: Begun { trial, cooling }, unheard: true, arrives: choice.uploader.is_some() })
    }

    /// The form of an attempt has arrived, or the attempt has ended: it does not count for its key any more.
    pub(crate) fn form_arrived(&mut self, target: &Target, flight: &mut Flight, key: Option<KeyIx>) {
        if !std::mem::take(&mut flight.arrives) {
            return;
        }
        let uploads = &mut self.breaker(target).uploads;
        if let Some(at) = uploads.iter().position(|other| Some(*other) == key) {
            uploads.swap_remove(at);
        }
        self.eased = true;
    }

    /// Smooth weighted round-robin, as in nginx: every target earns its weight, and the chosen one pays the whole
    /// round.
    fn take_turn(&mut self, targets: &[Target], chosen: usize, choice: &Choice) {
        let equals = self.equals(targets, choice);
        let mut round = 0;
        for index in members(equals) {
            round += targets[index].share as i64;
            let entry = self.entry(&targets[index]);
            entry.credit = earned(entry, &targets[index]);
        }
        if equals & (1 << chosen) != 0 {
            self.entry(&targets[chosen]).credit -= round;
        }
    }

    /// An attempt with these needs has an answer; `said`: the rate-limit headers of that answer.
    #[inline]
    pub(crate) fn answer_begins(
        &mut self,
        target: &Target,
        flight: &mut Flight,
        needs: &Needs,
        said: Option<&RateLimitHeaders>,
        now: Mono,
    ) {
        if std::mem::take(&mut flight.unheard) {
            self.heard(target, needs, said, now);
        }
    }

    pub(super) fn heard(&mut self, target: &Target, needs: &Needs, said: Option<&RateLimitHeaders>, now: Mono) {
        self.eased = true;
        let entry = self.entry(target);
        entry.asked.iter_mut().zip(needs).for_each(|(asked, need)| *asked = asked.saturating_sub(*need));
        let Some(said) = said else { return };
        for ((left, asked), said) in entry.left.iter_mut().zip(entry.asked).zip(said.left) {
            if let Some((count, holds)) = said {
                entry.reports = true;
                left.said(count, holds, asked, now);
            }
        }
    }

    /// An attempt has ended, whatever the reason. Returns how it began.
    pub(crate) fn land(&mut self, target: &Target, mut flight: Flight, needs: &Needs, now: Mono) -> Begun {
        self.answer_begins(target, &mut flight, needs, None, now);
        self.left(target);
        flight.begun
    }

    pub(super) fn left(&mut self, target: &Target) {
        let index = self.index(target);
        let entry = &mut self.entries[index];
        debug_assert!(entry.busy > 0, "{}", entry.label);
        entry.busy = entry.busy.saturating_sub(1);
        let breaker = &mut self.breakers[entry.breaker];
        breaker.busy = breaker.busy.saturating_sub(1);
        self.eased = true;
    }

    /// Recounts the attempts in flight after a bug has lost some: only these remain.
    pub(crate) fn recount<'a>(&mut self, flying: impl Iterator<Item = (&'a Target, &'a Flight)>) {
        self.entries.iter_mut().for_each(|entry| (entry.busy, entry.asked) = (0, Needs::default()));
        for breaker in &mut self.breakers {
            // A lost trial would keep its breaker open for ever.
            (breaker.busy, breaker.trial) = (0, false);
            breaker.uploads.clear();
        }
        self.eased = true;
        for (target, flight) in flying {
            self.entry(target).busy += 1;
            let breaker = self.breaker(target);
            breaker.busy += 1;
            breaker.trial |= flight.begun.trial;
        }
    }
}
