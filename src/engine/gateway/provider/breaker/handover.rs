//! Breaker state that is transferred between processes on upgrade, and forgotten with its target.

use super::history::attempts;
use super::table::name_hash;
use super::{Breakers, TargetState};
use crate::base::time::Mono;
use crate::base::time::Now;
use crate::gateway::provider::rate_limits::{ALLOWANCES, Rest};
use crate::policy::counters::{Callers, CoolDown, TargetCounts};
use std::time::Duration;

impl Breakers {
    /// Takes the counts of every target since the last call; its state stays.
    pub(crate) fn take_counts(&mut self) -> Vec<TargetCounts> {
        let fresh =
            |entry: &mut TargetState| std::mem::replace(&mut entry.counts, TargetCounts::new(entry.label.clone()));
        self.entries.iter_mut().map(fresh).collect()
    }

    /// Returns every provider cool-down that has not ended, every exhausted rate limit, and every credential whose last
    /// use was refused, in a form for a process with another monotonic clock.
    pub(crate) fn cool_downs(&self, now: Now) -> Vec<CoolDown> {
        let cool_down = |name: &str, until: Mono, rest: &Rest, refused: Callers| CoolDown {
            name: name.into(),
            until_ms: now.unix.0 + until.micros_since(now.mono).div_ceil(1000),
            since_ms: now.wall(rest.begun).0,
            again: rest.again,
            refused,
        };
        let one = [1; ALLOWANCES];
        let entries = self.entries.iter().filter_map(|entry| {
            let spent =
                entry.left.iter().zip(one).filter_map(|(left, need)| left.suffices_from(need, 0, now.mono)).max();
            let until = entry.rest.ends(now.mono).max(spent)?;
            Some(cool_down(&entry.label, until, &entry.rest, Callers::default()))
        });
        let accounts = self.accounts.iter().filter_map(|account| {
            let ends = account.rest.ends(now.mono);
            let matters = ends.is_some() || account.refused.first.is_some();
            matters.then(|| cool_down(&account.name, ends.unwrap_or(now.mono), &account.rest, account.refused))
        });
        entries.chain(accounts).collect()
    }

    /// Adopts a cool-down from a previous process.
    pub(crate) fn take_cool_down(&mut self, given: &CoolDown, now: Now) {
        let until = now.mono.after(Duration::from_millis(given.until_ms.saturating_sub(now.unix.0)));
        let rest = match given.name.contains('/') {
            true => {
                let index = self.index_of(&given.name, name_hash(&given.name));
                &mut self.entries[index].rest
            }
            false => {
                let index = self.account(&given.name);
                let account = &mut self.accounts[index];
                if given.refused.first.is_some() {
                    account.refused = given.refused;
                }
                &mut account.rest
            }
        };
        if until > now.mono && rest.ends(now.mono) < Some(until) {
            let ago = now.unix.0.saturating_sub(given.since_ms).saturating_mul(1000);
            *rest = Rest::until(Mono(now.mono.0.saturating_sub(ago)), until, given.again);
            let stated = rest.is_stated() && given.name.contains('/');
            self.stated_until = self.stated_until.max(if stated { until } else { Mono::default() });
        }
    }

    /// Adds the counts of another process.
    pub(crate) fn add(&mut self, other: &TargetCounts) {
        let index = self.index_of(&other.label, name_hash(&other.label));
        let TargetState { counts, history, .. } = &mut self.entries[index];
        counts.failures += other.failures;
        counts.served += other.served;
        other.others.iter().for_each(|(end, count)| counts.count(*end, *count));
        if let Some(trouble) = &mut history.trouble {
            // Answers that the other process has received.
            let answered = attempts(other)[0];
            (trouble.answered, trouble.answered_first) =
                (trouble.answered + answered, trouble.answered_first + answered);
        }
    }

    /// Forgets the targets for which `is_there` is false and that have nothing in flight, and a server's breaker with
    /// its last target.
    pub(crate) fn forget(&mut self, is_there: impl Fn(&str) -> bool) {
        self.entries.retain(|entry| entry.busy > 0 || is_there(&entry.label));
        let mut before: Vec<_> = std::mem::take(&mut self.breakers).into_iter().map(|one| (Some(one), 0)).collect();
        for entry in &mut self.entries {
            let (breaker, place) = &mut before[entry.breaker];
            if let Some(breaker) = breaker.take() {
                *place = self.breakers.len();
                self.breakers.push(breaker);
            }
            entry.breaker = *place;
        }
        self.index_again();
    }
}
