//! Chooses the target of a request: the order of the list, weights among equals, and cool-downs for targets that fail
//! or report that they have no capacity. State is stored by the target's label, so that it survives a change of
//! configuration. The breaker is stored by the label without the credential, since a failed server fails for all
//! credentials; the cool-down of a refused credential is stored by its provider and index.
//! | breaker | event → next |
//! |---|---|
//! | closed | `breaker_failures` in a row, of more than one owner of keys if there are several and requests may be the cause → open |
//! | closed | a connection that is not made within `connect_timeout` → open |
//! | open | `breaker_cooldown` passed, and an attempt begins → trial |
//! | trial | part of an answer → closed; failure → open; no result → open, and the next request tries |

use super::rate_limits::{ALLOWANCES, Left, Needs, Rest};
use crate::base::hash::{lot, mix};
use crate::base::index_table::IndexTable;
use crate::base::time::Mono;
use crate::gateway::counters::{AttemptEnd, Callers, TargetCounts};
use crate::policy::catalog::Target;
use crate::policy::keys::{KeyIx, LiveKeys};
use crate::policy::upstream_limits::UpstreamLimits;
use history::{IN_A_ROW, TargetHistory};
use std::sync::Arc;

/// A credential together with an upstream model.
#[derive(Debug)]
struct TargetState {
    label: Arc<str>,
    /// Results of attempts, for the metrics.
    counts: TargetCounts,
    /// The target's last failures, and its counts at the end of each of the last minutes.
    history: TargetHistory,
    /// Credit of the smooth weighted round-robin.
    credit: i64,
    /// Cool-down that the provider has requested for this model.
    rest: Rest,
    own_rest: OwnRest,
    /// Time from which it may be tried again during a cool-down that the provider has asked for.
    next_trial: Mono,
    left: [Left; ALLOWANCES],
    /// True once the provider has reported a remaining limit.
    reports: bool,
    /// Needs of requests that have no answer yet.
    asked: Needs,
    /// Attempts in flight.
    busy: u32,
    /// Index of its breaker.
    breaker: usize,
    /// Index of its credential.
    account: usize,
}

/// A server and model, for all credentials.
#[derive(Debug)]
struct Breaker {
    place: Box<str>,
    /// Failures in a row.
    failures: u32,
    /// The part of them in which no byte of a request was sent.
    unsent: u32,
    /// Callers of the failed requests.
    callers: Callers,
    /// End of its cool-down; set until the next success.
    open_until: Option<Mono>,
    /// Beginning of that cool-down.
    opened: Mono,
    /// The only request that probes a target after its cool-down is in flight.
    trial: bool,
    /// The log says that it is failing.
    told: bool,
    /// Attempts in flight.
    busy: u32,
    /// Those of them that are forms which are still arriving: the key of each.
    uploads: Vec<KeyIx>,
}

impl TargetState {
    /// State of a target that has not been used.
    fn new(label: Arc<str>, breaker: usize, account: usize) -> TargetState {
        TargetState {
            counts: TargetCounts::new(label.clone()),
            label,
            history: TargetHistory::default(),
            credit: 0,
            rest: Rest::default(),
            own_rest: OwnRest::default(),
            next_trial: Mono::default(),
            left: [Left::default(); ALLOWANCES],
            reports: false,
            asked: Needs::default(),
            busy: 0,
            breaker,
            account,
        }
    }
}

impl Breaker {
    fn new(place: String) -> Breaker {
        Breaker {
            place: place.into(),
            failures: 0,
            unsent: 0,
            callers: Callers::default(),
            open_until: None,
            opened: Mono::default(),
            trial: false,
            told: false,
            busy: 0,
            uploads: Vec::new(),
        }
    }

    fn is_closed(&self, now: Mono) -> bool {
        self.open_until.is_none_or(|until| until <= now && !self.trial)
    }

    /// True if `target` may have one more attempt in flight. A key holds at most half of the slots by forms that are
    /// still arriving.
    fn has_slot(&self, target: &Target, uploader: Option<KeyIx>) -> bool {
        let share = (target.slots / 2).max(1) as usize;
        let is_within = |key| self.uploads.iter().filter(|other| **other == key).count() < share;
        target.slots == 0 || (self.busy < target.slots && uploader.is_none_or(is_within))
    }
}

/// A credential, for all models.
#[derive(Debug)]
struct CredentialState {
    name: Box<str>,
    rest: Rest,
    /// Callers that it was refused for since it last served one.
    refused: Callers,
}

/// Maximum number of ends of one target that are counted separately.
const ENDS_MAX: usize = 32;

impl TargetCounts {
    /// Ends of attempts, each with its count.
    pub(crate) fn ends(&self) -> impl Iterator<Item = (AttemptEnd, u64)> {
        let served = (AttemptEnd::Status(200), self.served);
        [served].into_iter().filter(|(_, count)| *count > 0).chain(self.others.iter().copied())
    }

    fn new(label: Arc<str>) -> TargetCounts {
        TargetCounts { label, failures: 0, overruns: 0, served: 0, others: Vec::new() }
    }

    fn count(&mut self, end: AttemptEnd, count: u64) {
        match self.others.iter().position(|(known, _)| *known == end) {
            Some(index) => self.others[index].1 += count,
            None if self.others.len() < ENDS_MAX || end == AttemptEnd::Other => self.others.push((end, count)),
            None => self.count(AttemptEnd::Other, count),
        }
    }
}

/// Credit of a target after earning its weight.
fn earned(state: &TargetState, target: &Target) -> i64 {
    state.credit + target.share as i64
}

/// Indices of the set bits.
#[inline]
fn members(bits: u64) -> impl Iterator<Item = usize> {
    let mut left = bits;
    std::iter::from_fn(move || {
        let index = left.trailing_zeros() as usize;
        left &= left.checked_sub(1)?;
        Some(index)
    })
}

/// The provider and the index of the credential in a label: `openai#2` of `openai#2/gpt`.
fn account_of(label: &str) -> &str {
    label.split('/').next().unwrap_or(label)
}

/// A label without the index of the credential: `openai/gpt` of `openai#2/gpt`. Names of providers contain neither
/// mark.
pub(crate) fn without_credential(label: &str) -> String {
    let account = account_of(label);
    let provider = account.split('#').next().unwrap_or(account);
    format!("{provider}{}", &label[account.len()..])
}

/// The state that a failure begins.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Begins {
    CoolDown,
    /// The state `failing`, without a cool-down.
    Failing,
}

/// A failed attempt.
#[derive(Copy, Clone, Debug)]
pub(crate) struct FailedAttempt {
    pub(crate) caller: Caller,
    /// Keys that could have called.
    pub(crate) live: LiveKeys,
    /// Its share of the failures in which no byte of the request was sent, so that no caller can be the cause.
    pub(crate) unsent: u32,
    /// True for the attempt that probed a target after its cool-down.
    pub(crate) trial: bool,
}

/// Cool-down for one owner, who has met a 429 without a stated time.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct OwnRest {
    owner: u64,
    pub(super) rest: Rest,
    /// Callers that such a 429 has refused since the last success.
    refused: Callers,
}

/// Conditions for choosing a target.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Choice {
    /// Targets tried already, as bits.
    pub(crate) tried: u64,
    /// Targets whose limits have no room for the request, as bits, and those of them that have none in time.
    pub(crate) full: u64,
    pub(crate) late: u64,
    /// Share of the provider's rate limits that the request needs.
    pub(crate) needs: Needs,
    /// Owner of the request's key, while a credential cools down for one owner.
    pub(crate) owner: u64,
    /// Rule that chooses among equal targets.
    pub(crate) among: Among,
    /// Key of a form that is still arriving.
    pub(crate) uploader: Option<KeyIx>,
    pub(crate) now: Mono,
}

impl Choice {
    /// True if the limits of the target with this index have room for the request.
    #[inline]
    pub(crate) fn has_room(&self, index: usize) -> bool {
        self.full == 0 || self.full & 1u64.checked_shl(index as u32).unwrap_or(0) == 0
    }
}

/// Rule that chooses one of several equal targets.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Among {
    /// Weighted round-robin.
    Turns,
    /// The target that this affinity hash selects.
    Kept(u64),
    /// The one with the fewest requests in flight.
    LeastBusy,
}

/// State of the target when an attempt began.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Begun {
    /// The attempt probes a target after its breaker's cool-down.
    pub(crate) trial: bool,
    /// The credential is cooling down because the provider asked for it.
    pub(crate) cooling: bool,
}

/// Number of targets that are compared one by one before the table is used.
const FEW: usize = 4;

/// The state of every target that has been used.
#[derive(Debug, Default)]
pub(crate) struct Breakers {
    entries: Vec<TargetState>,
    /// Entries by their labels.
    by_label: IndexTable,
    breakers: Vec<Breaker>,
    by_place: IndexTable,
    accounts: Vec<CredentialState>,
    by_account: IndexTable,
    /// A slot or a target may have become free since the last [`Breakers::take_eased`].
    eased: bool,
    /// End of the last cool-down for one owner.
    pub(crate) own_until: Mono,
    /// End of the last cool-down of a target that its provider has asked for.
    pub(crate) stated_until: Mono,
}

impl Breakers {
    /// Chooses the target for the next attempt. The first attempt finds a target if any has a free slot. If all of them
    /// are cooling down, it is the one whose provider's cool-down ends first; if all fail, the one that was available
    /// last. A target whose provider has asked for the cool-down is tried once a second. Nothing is counted, so a
    /// request that is refused later uses no turn.
    pub(crate) fn choose(&mut self, targets: &[Target], choice: &Choice) -> Option<usize> {
        if let [target] = targets {
            let has_slot = choice.tried == 0
                && choice.has_room(0)
                && (target.slots == 0 || self.breaker(target).has_slot(target, choice.uploader));
            return (has_slot && !self.waits_for_trial(target, choice.now)).then_some(0);
        }
        if let Some(kept) = self.kept(targets, choice) {
            return Some(kept);
        }
        let equals = self.equals(targets, choice);
        match equals.count_ones() {
            0 if choice.tried == 0 => {
                self.first_there(targets, choice).or_else(|| self.last_available(targets, choice))
            }
            0 => None,
            1 => Some(equals.trailing_zeros() as usize),
            _ => self.choose_among(targets, equals, choice.among),
        }
    }

    /// The target selected by a conversation's hash, if it is free, as it nearly always is: a choice among the free
    /// targets would select it too, whatever the state of the others.
    fn kept(&mut self, targets: &[Target], choice: &Choice) -> Option<usize> {
        let Among::Kept(_) = choice.among else { return None };
        let first = targets.first().filter(|_| choice.tried == 0)?;
        let equals = targets.iter().take(u64::BITS as usize).take_while(|target| target.priority == first.priority);
        let all = u64::MAX >> (u64::BITS as usize - equals.count());
        let kept = self.choose_among(targets, all, choice.among)?;
        (choice.has_room(kept) && self.is_free(&targets[kept], choice)).then_some(kept)
    }

    fn choose_among(&mut self, targets: &[Target], equals: u64, among: Among) -> Option<usize> {
        match among {
            Among::Turns => members(equals).max_by_key(|index| {
                (earned(self.entry(&targets[*index]), &targets[*index]), std::cmp::Reverse(*index))
            }),
            Among::Kept(number) => {
                let share = targets[equals.trailing_zeros() as usize].share;
                if members(equals).all(|index| targets[index].share == share) {
                    // With equal weights, rendezvous hashing picks the largest draw.
                    return members(equals).max_by_key(|index| mix(number, targets[*index].seed));
                }
                let drawn =
                    members(equals).map(|index| (lot(number, targets[index].seed, targets[index].share as f64), index));
                drawn.min_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, index)| index)
            }
            Among::LeastBusy => {
                // The least busy target, relative to its weight; the first of those.
                let load = |target: &Target, busy: u32| (u64::from(busy) + 1) as f64 / target.share as f64;
                let busy =
                    members(equals).map(|index| (load(&targets[index], self.entry(&targets[index]).busy), index));
                busy.min_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, index)| index)
            }
        }
    }

    /// The set of targets among which the choice is made, as bits: of the free targets that have not been tried, those
    /// with the priority of the first.
    fn equals(&mut self, targets: &[Target], choice: &Choice) -> u64 {
        let skipped = choice.tried | choice.full;
        let all = (0..targets.len().min(u64::BITS as usize)).filter(|index| skipped & (1 << index) == 0);
        let mut equals = 0;
        let mut best = None;
        for index in all {
            let target = &targets[index];
            let first = best.is_none_or(|priority| priority == target.priority);
            if first && self.is_free(target, choice) {
                best = Some(target.priority);
                equals |= 1 << index;
            }
        }
        equals
    }

    /// True if a target may be sent this request: it is not cooling down, no other attempt probes it, it has a free
    /// slot, and the provider's remaining limits suffice.
    pub(crate) fn is_free(&mut self, target: &Target, choice: &Choice) -> bool {
        let index = self.index(target);
        let breaker = &self.breakers[self.entries[index].breaker];
        breaker.is_closed(choice.now)
            && breaker.has_slot(target, choice.uploader)
            && self.there_from(index, &choice.needs, choice.owner, choice.now).is_none()
    }

    /// Time at which a credential can serve such a request; `None`: now.
    fn there_from(&self, index: usize, needs: &Needs, owner: u64, now: Mono) -> Option<Mono> {
        let entry = &self.entries[index];
        let ends = self.cools_until(index, owner, now);
        if !entry.reports {
            return ends;
        }
        let left = entry.left.iter().zip(&entry.asked).zip(needs);
        let left = left.filter_map(|((left, asked), need)| left.suffices_from(*need, *asked, now));
        left.fold(ends, |latest, until| latest.max(Some(until)))
    }

    /// The target whose cool-down ends first, among those with a working server whose credentials are all cooling down.
    fn first_there(&mut self, targets: &[Target], choice: &Choice) -> Option<usize> {
        let mut first: Option<(Option<Mono>, usize)> = None;
        for (at, target) in targets.iter().enumerate() {
            let index = self.index(target);
            let from = self.there_from(index, &choice.needs, choice.owner, choice.now);
            let waits = self.waits_for_trial(target, choice.now);
            let breaker = &self.breakers[self.entries[index].breaker];
            let may_serve = !waits
                && choice.has_room(at)
                && breaker.is_closed(choice.now)
                && breaker.has_slot(target, choice.uploader);
            if may_serve && first.is_none_or(|(earliest, _)| from < earliest) {
                first = Some((from, at));
            }
        }
        first.map(|(_, at)| at)
    }

    /// Time at which the first of a model's targets can serve again, for the `Retry-After` of a request that none could
    /// serve. A target of `tried` that is not cooling down has failed, and its recovery time is unknown: then the
    /// result is `None`, unless another target is free now.
    pub(crate) fn there_again(
        &mut self,
        targets: &[Target],
        tried: u64,
        needs: &Needs,
        owner: u64,
        now: Mono,
    ) -> Option<Mono> {
        let (mut first, mut unknown) = (None, false);
        for (at, target) in targets.iter().enumerate() {
            let index = self.index(target);
            let open = self.breakers[self.entries[index].breaker].open_until.filter(|until| *until > now);
            let is_tried = tried & 1u64.checked_shl(at as u32).unwrap_or(0) != 0;
            match self.there_from(index, needs, owner, now).max(open) {
                None if is_tried => unknown = true,
                None => return Some(now),
                Some(from) => first = Some(first.map_or(from, |first: Mono| first.min(from))),
            }
        }
        first.filter(|_| !unknown)
    }

    /// Notes that part of an answer has arrived. `begun`: state when the attempt began. Other requests may use the
    /// target again, but failures are forgiven only when the answer is complete. True if the target was cooling down.
    pub(crate) fn answered(&mut self, target: &Target, begun: Begun, now: Mono) -> bool {
        let index = self.index(target);
        self.eased = true;
        let rested = self.rest_ended(index, begun.cooling, now);
        let breaker = &mut self.breakers[self.entries[index].breaker];
        match begun.trial {
            true => {
                breaker.trial = false;
                breaker.open_until.take().is_some() || rested
            }
            false => rested,
        }
    }

    /// If all targets are cooling down after failures, the one whose cool-down began last.
    fn last_available(&mut self, targets: &[Target], choice: &Choice) -> Option<usize> {
        let mut last: Option<(usize, Option<Mono>)> = None;
        for (index, target) in targets.iter().enumerate() {
            if self.waits_for_trial(target, choice.now) || !choice.has_room(index) {
                continue;
            }
            let breaker = self.breaker(target);
            if !breaker.has_slot(target, choice.uploader) {
                continue;
            }
            let until = breaker.open_until;
            if last.is_none_or(|(_, latest)| until > latest) {
                last = Some((index, until));
            }
        }
        last.map(|(index, _)| index)
    }

    /// Notes that the target has sent a complete answer, possibly a client error. True if it was cooling down or
    /// failing.
    pub(crate) fn succeeded(&mut self, target: &Target, rested: bool, now: Mono) -> bool {
        let index = self.index(target);
        self.succeeded_at(index, rested, now)
    }

    fn succeeded_at(&mut self, index: usize, rested: bool, now: Mono) -> bool {
        let rested = self.rest_ended(index, rested, now);
        self.eased = true;
        let breaker = &mut self.breakers[self.entries[index].breaker];
        let mut recovers = rested;
        if breaker.failures > 0 {
            recovers |= std::mem::take(&mut breaker.told);
            (breaker.failures, breaker.unsent, breaker.callers) = (0, 0, Callers::default());
        }
        breaker.trial = false;
        breaker.open_until.take().is_some() || recovers
    }

    /// Notes that the target has failed by its own fault. Returns what that begins.
    pub(crate) fn failed(
        &mut self,
        target: &Target,
        failure: FailedAttempt,
        limits: &UpstreamLimits,
        now: Mono,
    ) -> Option<Begins> {
        let FailedAttempt { caller, live, unsent, trial } = failure;
        self.entry(target).counts.failures += 1;
        let breaker = self.breaker(target);
        breaker.trial &= !trial;
        breaker.failures = breaker.failures.saturating_add(1);
        breaker.unsent = breaker.unsent.saturating_add(unsent);
        breaker.callers.meet(caller);
        let several = match live {
            LiveKeys::One => true,
            LiveKeys::OneOwner => breaker.callers.several_keys,
            LiveKeys::SeveralOwners => breaker.callers.several_owners,
        };
        let are_enough = |failures: u32| limits.breaker_failures > 0 && failures >= limits.breaker_failures;
        let opens = trial || are_enough(breaker.unsent) || (several && are_enough(breaker.failures));
        let rested = breaker.open_until.is_some_and(|until| until > now);
        if opens {
            breaker.open_until = Some(now.after(limits.breaker_cooldown));
            breaker.opened = if rested { breaker.opened } else { now };
        }
        if rested {
            return None;
        }
        let fails = !opens && !breaker.told && breaker.failures >= IN_A_ROW;
        breaker.told |= fails;
        if opens { Some(Begins::CoolDown) } else { fails.then_some(Begins::Failing) }
    }

    /// Notes that the half-open probe ended without a result, since the client disconnected: the next request may
    /// probe.
    pub(crate) fn no_verdict(&mut self, target: &Target) {
        self.breaker(target).trial = false;
        self.eased = true;
    }

    /// Notes that the target has sent a complete answer. True if it was cooling down.
    pub(crate) fn served(&mut self, target: &Target, rested: bool, now: Mono) -> bool {
        let index = self.index(target);
        self.entries[index].counts.served += 1;
        self.succeeded_at(index, rested, now)
    }

    /// Counts a failed attempt at the target.
    pub(crate) fn ended(&mut self, target: &Target, end: AttemptEnd) {
        self.entry(target).counts.count(end, 1);
    }

    /// The target has billed more than was reserved.
    pub(crate) fn overran(&mut self, target: &Target) {
        self.entry(target).counts.overruns += 1;
    }

    /// Counts of the target with this index, and true if it is cooling down.
    pub(crate) fn state(&self, index: usize, now: Mono) -> Option<(&TargetCounts, bool)> {
        let entry = self.entries.get(index)?;
        let cooling = self.there_from(index, &Needs::default(), 0, now).is_some();
        Some((&entry.counts, cooling || !self.breakers[entry.breaker].is_closed(now)))
    }

    #[inline]
    fn entry(&mut self, target: &Target) -> &mut TargetState {
        let index = self.index(target);
        &mut self.entries[index]
    }

    fn breaker(&mut self, target: &Target) -> &mut Breaker {
        let index = self.entry(target).breaker;
        &mut self.breakers[index]
    }

    /// Index of a target's entry, in constant time.
    #[inline]
    fn index(&mut self, target: &Target) -> usize {
        // With few targets, a comparison with each is faster.
        match self.entries.iter().take(FEW).position(|entry| Arc::ptr_eq(&entry.label, &target.label)) {
            Some(index) => index,
            None => self.index_of(&target.label, target.seed),
        }
    }
}

mod callers;
mod cool_downs;
mod flight;
mod history;
mod status;
mod table;
mod waiting;

pub(crate) use callers::Caller;
pub(crate) use flight::Flight;
pub(crate) use history::{HOUR, TargetTrouble};
pub(crate) use status::{CoolDownStatus, TargetCondition, TargetStatus, UNANSWERED};
pub(crate) use waiting::{LEAST, Seek, Stage};

#[cfg(test)]
mod tests;
