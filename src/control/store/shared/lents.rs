//! Grants of this host, as its thread knows them: the rate of their use, and so the amount to request next. Decides
//! nothing about requests.

use crate::base::time::Mono;
use crate::policy::ledger::{Ask, AskAnswer, Wish};
use crate::policy::meter::{Amount, Lease};
use crate::store::bounds::{GRANT, GRANT_AHEAD, GRANT_MARGIN, GRANT_REQUESTS, GRANT_REST, GRANTS_MAX};

/// Remainder of one grant, as far as uses have been reported.
struct LentGrant {
    /// Question that it was granted with, and by which it is enlarged.
    ask: Ask,
    until: Mono,
    left: u64,
    /// Number of uses since it was last enlarged, and the time of that.
    used: u64,
    reserved: Amount,
    since: Mono,
}

/// All grants. The number of each encodes its slot.
#[derive(Default)]
pub(super) struct Lents {
    all: Vec<Option<Box<LentGrant>>>,
    serial: u64,
}

/// Number of slots tried for a new grant.
const TRIES: usize = 64;

fn place(number: u64) -> usize {
    (number % GRANTS_MAX) as usize
}

/// True if a grant for one lease may be used for the other.
fn are_alike(one: &Lease, other: &Lease) -> bool {
    one.path == other.path && one.parts == other.parts
}

impl LentGrant {
    fn number(&self) -> u64 {
        self.ask.wish.number
    }

    /// Number of requests that the next grant should cover, by the rate of use.
    fn target(&self, now: Mono) -> u64 {
        let passed = now.micros_since(self.since).max(1000);
        let ahead = self.used.saturating_mul(GRANT_AHEAD.as_micros() as u64) / passed;
        ahead.clamp(GRANT_REQUESTS.0, GRANT_REQUESTS.1)
    }

    fn wish(&self, part: u32, reserved: Amount, now: Mono) -> Wish {
        let requests = self.target(now).saturating_sub(self.left).max(1);
        let mean = |sum: u64| sum / self.used.max(1);
        let used = Amount { tokens: mean(self.reserved.tokens), nano: mean(self.reserved.nano) };
        Wish {
            part,
            number: self.number(),
            requests,
            amount: times(used.max(reserved), requests),
            known: true,
            epoch: self.ask.wish.epoch,
            ..Wish::default()
        }
    }
}

fn times(each: Amount, count: u64) -> Amount {
    // Capped above any limit; the ledger counts in numbers of 53 bits.
    let cut = |part: u64| part.saturating_mul(count).min(1 << 52);
    Amount { tokens: cut(each.tokens), nano: cut(each.nano) }
}

impl Lents {
    fn get(&mut self, number: u64) -> Option<&mut LentGrant> {
        self.all.get_mut(place(number))?.as_deref_mut().filter(|lent| lent.number() == number)
    }

    /// Sets the amount to request with each question. Of several questions about one key only the last requests any.
    pub(super) fn wish(&mut self, asks: &mut [Ask], now: Mono) {
        let mut seen = Vec::new();
        for ask in asks.iter_mut().rev().filter(|ask| ask.wish.part > 0 && ask.admits) {
            if seen.contains(&ask.key) {
                ask.wish.part = 0;
                continue;
            }
            seen.push(ask.key);
            let Wish { waits, by, epoch, .. } = ask.wish;
            let alive = self.all.iter().flatten().find(|lent| {
                let is_same = lent.ask.key == ask.key && lent.ask.wish.epoch == epoch;
                lent.until > now && is_same && are_alike(&lent.ask.lease, &ask.lease)
            });
            let wish = match alive {
                Some(lent) => lent.wish(ask.wish.part, ask.lease.reserved, now),
                None => {
                    let number = self.fresh(now);
                    let requests = GRANT_REQUESTS.0;
                    let part = if number > 0 { ask.wish.part } else { 0 };
                    Wish { part, number, requests, amount: times(ask.lease.reserved, requests), ..Wish::default() }
                }
            };
            ask.wish = Wish { waits, by, epoch, ..wish };
        }
    }

    /// Returns an unused number; 0 if there are too many grants.
    fn fresh(&mut self, now: Mono) -> u64 {
        for _ in 0..TRIES {
            self.serial += 1;
            let number = self.serial * GRANTS_MAX + self.serial % GRANTS_MAX;
            let lent = self.all.get(place(number)).and_then(Option::as_ref);
            if lent.is_none_or(|lent| lent.until <= now) {
                let size = self.all.len().max(place(number) + 1);
                self.all.resize_with(size, || None);
                return number;
            }
        }
        0
    }

    /// Records that a request was admitted by the grant of this number.
    pub(super) fn used(&mut self, number: u64, reserved: Amount) {
        if let Some(lent) = self.get(number) {
            lent.left = lent.left.saturating_sub(1);
            lent.used += 1;
            lent.reserved = lent.reserved.plus(reserved);
        }
    }

    /// Records the answer to a question that requested a grant. The grant, if any, lasts until `until`.
    pub(super) fn answered(&mut self, answer: &AskAnswer, until: Mono, now: Mono) {
        let (wish, more) = (answer.ask.wish, answer.grant.map_or(0, |grant| grant.requests));
        if wish.part == 0 || (more == 0 && !wish.known) {
            return;
        }
        if let Some(lent) = self.get(wish.number) {
            lent.left = lent.left.saturating_add(more);
            if more > 0 {
                lent.until = until;
            }
            (lent.used, lent.reserved, lent.since) = (0, Amount::default(), now);
            return;
        }
        let ask = Ask { admits: false, number: (u32::MAX, 0), ..answer.ask.clone() };
        let lent = LentGrant { ask, until, left: more, used: 0, reserved: Amount::default(), since: now };
        if let Some(free) = self.all.get_mut(place(wish.number)).filter(|_| more > 0) {
            *free = Some(Box::new(lent));
        }
    }

    /// Returns questions that enlarge grants in use, before they are used up or end.
    pub(super) fn renewals(&mut self, now: Mono) -> Vec<Ask> {
        let due = |lent: &&LentGrant| {
            let (age, lasts) = (now.micros_since(lent.since), lent.until.micros_since(now));
            let is_used = lent.used > 0 && lent.until > now && age >= GRANT_REST.as_micros() as u64;
            is_used && (lent.left < lent.target(now) / 2 || lasts < ((GRANT - GRANT_MARGIN) / 2).as_micros() as u64)
        };
        let renewal = |lent: &LentGrant| {
            let wish = lent.wish(lent.ask.wish.part, Amount::default(), now);
            let lease = Lease { reserved: Amount::default(), ..lent.ask.lease.clone() };
            Ask { wish, lease, ..lent.ask.clone() }
        };
        self.all.iter().flatten().map(|lent| &**lent).filter(due).map(renewal).collect()
    }

    /// Removes a grant that is no longer used.
    pub(super) fn remove(&mut self, number: u64) {
        if self.get(number).is_some() {
            self.all[place(number)] = None;
        }
    }

    /// Removes and returns all running grants.
    pub(super) fn take(&mut self) -> Vec<u64> {
        self.all.drain(..).flatten().map(|lent| lent.number()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::keys::KeyId;
    use crate::policy::ledger::{AskedLimits, Grant, Ruling};

    fn ask(epoch: u64) -> Ask {
        let (key, lease) = (KeyId::parse("abcdefABCDEF").unwrap(), Lease::default());
        let wish = Wish { part: 4, epoch, ..Wish::default() };
        Ask { number: (0, 0), key, lease, limits: AskedLimits::default(), admits: true, wish, promise: None }
    }

    #[test]
    fn grant_is_enlarged_only_by_the_limits_of_its_question() {
        let (mut lents, now) = (Lents::default(), Mono(1));
        let wish = |lents: &mut Lents, epoch| {
            let mut asks = [ask(epoch)];
            lents.wish(&mut asks, now);
            let [ask] = asks;
            assert_eq!(ask.wish.epoch, epoch);
            ask
        };
        let first = wish(&mut lents, 1);
        let grant = Grant { number: first.wish.number, requests: 8, amount: Amount::default(), until: Mono(0) };
        let answer = AskAnswer { ask: first, ruling: Ruling::Admitted, counts: Vec::new(), grant: Some(grant) };
        lents.answered(&answer, Mono(u64::MAX), now);
        assert_eq!(wish(&mut lents, 1).wish.number, grant.number);
        assert!(wish(&mut lents, 1).wish.known);
        let later = wish(&mut lents, 2).wish;
        assert!(later.number > grant.number && !later.known);
    }
}
