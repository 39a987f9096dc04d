//! Grants of a shared ledger: they allow a host to admit requests of a key from memory, without a request to the
//! ledger.
//!
//! 1. A grant is a number of requests, tokens and money of a key and of all groups above it, in one window and one
//!    period of each, valid for two seconds by the ledger's clock. The ledger holds it like the lease of a running
//!    request, under a name of its own that expires: so it counts wherever reservations count, and a host that dies
//!    loses it automatically.
//! 2. A request is admitted by a grant only if its maximum usage fits in the rest of the grant. Otherwise the host asks
//!    the ledger, which knows all usage. So a limit of N admits exactly N, and tokens and money keep their bound: only
//!    the ledger admits usage beyond a limit, one request at a time.
//! 3. The first requests of a busy key bring a grant with their answers; the ledger's thread enlarges it in the
//!    background, by the rate at which it is used. It gets at most a part of the remaining quota, 1 / (4 x hosts).
//! 4. The next commit reports each use, as a reservation of the host; the usage record releases it, as always.
//! 5. If only granted quota is left, the ledger revokes the grant by one message. Hosts give back the unused part, and
//!    the host that asked waits for that, 250 ms at most.
//! 6. Limits that change make the grants by earlier limits void: those that the host holds, and those that are on their
//!    way to it. Both are given back.
//! 7. A grant expires by a monotonic clock, measured from before the question and read at each admission: a process
//!    that was stopped has none left. Concurrency slots are never granted: each request asks for one.

use crate::base::paged::Sparse;
use crate::base::time::{Mono, Unix};
use crate::policy::keys::KeyIx;
use crate::policy::ledger::{Ask, Grant, Wish};
use crate::policy::meter::{Amount, Lease, Payer};
use std::time::Duration;

/// Time since the last request of a key within which the key gets a grant.
const GRANT_BUSY: Duration = Duration::from_secs(1);

/// Grants of this host.
#[derive(Debug, Default)]
pub(crate) struct Grants {
    by_key: Sparse<OfKey>,
    /// Number of changes that may concern the limits of all keys.
    changes: u64,
    /// See [`crate::gateway::Start::watch`].
    pub(crate) watch: Option<fn() -> Mono>,
}

#[derive(Debug, Default)]
struct OfKey {
    /// Time of the last request to the ledger; `None` before the first.
    asked: Option<Mono>,
    held: Option<Box<UnusedGrant>>,
    /// Number of the last grant that was returned: additions to it, or to an earlier one, are void.
    over: u64,
    /// Number of changes of this key's limits.
    changes: u64,
}

/// Unused part of a grant.
#[derive(Debug)]
struct UnusedGrant {
    grant: Grant,
    /// Lease of each request, except for its amount.
    lease: Lease,
    /// Time span common to all of its windows and periods.
    valid: (Unix, Unix),
}

/// Returns the time span common to all windows and periods of a lease.
fn span(lease: &Lease) -> (Unix, Unix) {
    let bounds = lease.parts.iter().map(|part| part.bounds);
    bounds.fold((Unix(0), Unix(u64::MAX)), |span, one| (span.0.max(one.0), span.1.min(one.1)))
}

impl OfKey {
    fn give_up(&mut self, is_meant: &impl Fn(&Lease) -> bool) -> Option<u64> {
        self.over = self.held.take_if(|held| is_meant(&held.lease))?.grant.number;
        Some(self.over)
    }
}

impl Grants {
    fn of(&mut self, key: KeyIx) -> &mut OfKey {
        self.by_key.entry(key.0 as usize)
    }

    /// Takes a request's lease from a grant, if the grant suffices. `now`: time of the current call.
    pub(crate) fn take(&mut self, payer: &Payer<'_>, now: Unix, reserved: Amount) -> Option<(u64, Lease)> {
        let watch = self.watch?;
        let held = self.by_key.get_mut(payer.key.0 as usize)?.held.as_deref_mut()?;
        let UnusedGrant { grant, lease, valid } = held;
        let fits = grant.requests > 0 && reserved.tokens <= grant.amount.tokens && reserved.nano <= grant.amount.nano;
        let is_valid = valid.0 <= now && now < valid.1 && lease.path == payer.path;
        // The clock is read last: only a few instructions separate this reading from the count.
        if !fits || !is_valid || watch() >= grant.until {
            return None;
        }
        grant.requests -= 1;
        grant.amount = grant.amount.minus(reserved);
        Some((grant.number, Lease { reserved, shared: true, ..lease.clone() }))
    }

    /// Size of the grant to request together with an admission of `key`: none unless the key is busy.
    pub(crate) fn wish(&mut self, key: KeyIx, part: u32) -> Wish {
        let Some(watch) = self.watch else { return Wish::default() };
        let (now, changes, of) = (watch(), self.changes, self.of(key));
        let is_busy = of.asked.replace(now).is_some_and(|asked| asked.after(GRANT_BUSY) > now);
        let number = of.held.as_ref().map_or(0, |held| held.grant.number);
        let epoch = changes + of.changes;
        Wish { part: if is_busy { part } else { 0 }, number, epoch, ..Wish::default() }
    }

    /// Adds a grant that came with the answer to `ask`. Returns the number of the grant to give back: the one that it
    /// replaces, or this one if the limits have changed since the question.
    pub(crate) fn put(&mut self, key: KeyIx, ask: &Ask, more: Grant) -> Option<u64> {
        let (changes, of) = (self.changes, self.of(key));
        if more.number <= of.over {
            return None;
        }
        if ask.wish.epoch != changes + of.changes {
            of.over = more.number;
            return Some(more.number);
        }
        match of.held.as_deref_mut().filter(|held| held.grant.number == more.number) {
            Some(UnusedGrant { grant, .. }) => {
                grant.requests = grant.requests.saturating_add(more.requests);
                grant.amount = grant.amount.plus(more.amount);
                grant.until = grant.until.max(more.until);
                None
            }
            None => {
                let held = Box::new(UnusedGrant { grant: more, lease: ask.lease.clone(), valid: span(&ask.lease) });
                of.over = of.held.replace(held)?.grant.number;
                Some(of.over)
            }
        }
    }

    /// Gives up grants that `is_meant` selects; returns their numbers.
    pub(crate) fn give_up(&mut self, is_meant: impl Fn(&Lease) -> bool) -> Vec<u64> {
        let meant = self.by_key.iter_mut().filter_map(|(_, of)| of.give_up(&is_meant));
        meant.collect()
    }

    /// Gives up all grants, and those on their way; returns the numbers of those that were held.
    pub(crate) fn all_limits_changed(&mut self) -> Vec<u64> {
        self.changes += 1;
        self.give_up(|_| true)
    }

    /// Gives up the grant of `key`, and one on its way; returns the number of the one that was held.
    pub(crate) fn limits_changed(&mut self, key: KeyIx) -> Option<u64> {
        let of = self.by_key.get_mut(key.0 as usize)?;
        of.changes += 1;
        of.give_up(&|_| true)
    }

    /// Gives up the grant of `key`; returns its number.
    pub(crate) fn give_up_of(&mut self, key: KeyIx) -> Option<u64> {
        self.by_key.get_mut(key.0 as usize)?.give_up(&|_| true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::keys::KeyId;
    use crate::policy::ledger::AskedLimits;

    const KEY: KeyIx = KeyIx(0);

    fn grants() -> Grants {
        Grants { watch: Some(|| Mono(1)), ..Grants::default() }
    }

    fn grant(number: u64) -> Grant {
        Grant { number, requests: 8, amount: Amount::default(), until: Mono(u64::MAX) }
    }

    fn ask(grants: &mut Grants) -> Ask {
        let (key, wish) = (KeyId::parse("abcdefABCDEF").unwrap(), grants.wish(KEY, 4));
        let (lease, limits) = (Lease::default(), AskedLimits::default());
        Ask { number: (0, 0), key, lease, limits, admits: true, wish, promise: None }
    }

    #[test]
    fn grant_by_earlier_limits_is_given_back() {
        let changes: [fn(&mut Grants); 2] =
            [|grants| _ = grants.all_limits_changed(), |grants| _ = grants.limits_changed(KEY)];
        for change in changes {
            let mut grants = grants();
            let before = ask(&mut grants);
            change(&mut grants);
            assert_eq!(grants.put(KEY, &before, grant(1)), Some(1));
            assert_eq!(grants.put(KEY, &before, grant(1)), None, "given back once");
            let after = ask(&mut grants);
            assert_eq!((grants.put(KEY, &after, grant(2)), grants.give_up_of(KEY)), (None, Some(2)));
        }
    }

    #[test]
    fn revoked_grant_leaves_the_limits_as_they_are() {
        let mut grants = grants();
        let before = ask(&mut grants);
        assert_eq!(grants.put(KEY, &before, grant(1)), None);
        assert_eq!(grants.give_up_of(KEY), Some(1));
        assert_eq!((grants.put(KEY, &before, grant(2)), grants.give_up_of(KEY)), (None, Some(2)));
    }
}
