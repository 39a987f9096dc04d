//! Grants of a shared ledger: leave to admit requests of one key in memory, without a question for each.
//!
//! 1. A grant is some requests, tokens and money of a key and of all groups above it, in one window and one period of
//!    each, for two seconds by the ledger's clock. There it is held like the lease of a running request, under a name
//!    of its own that expires: so whatever counts what is held counts it, and a host that dies loses it by itself.
//! 2. A request is admitted by a grant only if all that it may use fits in what is left of it; else the ledger is
//!    asked, which sees everything. So a limit of N admits exactly N, and tokens and money keep their bound: what goes
//!    beyond a limit is admitted there alone, one at a time.
//! 3. The first questions of a busy key bring a grant with their answers; the ledger's thread enlarges it in the
//!    background, by the rate at which it is used. It gets at most a part of what is left, 1 / (4 x hosts).
//! 4. Each use is told in the next commit, as what the host holds from then on; the row gives that back, as ever.
//! 5. Where nothing is left but what was granted, the ledger calls it in by one message; hosts give back what they
//!    have of it, and the asker waits for that, 250 ms at most.
//! 6. A grant is over at its moment by a monotonic clock, measured from before the question and read at each admission:
//!    a process that was stopped has none left. Places at once are granted to nobody; for them each request asks.

use crate::base::limits::GRANT_BUSY;
use crate::base::paged::Sparse;
use crate::base::time::{Mono, Unix};
use crate::policy::ask::{Grant, Wish};
use crate::policy::keys::KeyIx;
use crate::policy::meter::{Amount, Lease, Payer};

/// The grants that this host has.
#[derive(Debug, Default)]
pub(crate) struct Grants {
    by_key: Sparse<OfKey>,
    /// See [`crate::gateway::Start::watch`].
    pub(crate) watch: Option<fn() -> Mono>,
}

#[derive(Debug, Default)]
struct OfKey {
    /// When the ledger was asked last; `None` before.
    asked: Option<Mono>,
    held: Option<Box<Held>>,
    /// The last that was given back: what comes of it, or of one before, is not there any more.
    over: u64,
}

/// What is left of one.
#[derive(Debug)]
struct Held {
    grant: Grant,
    /// What each request is lent, but for its amount.
    lease: Lease,
    /// In all windows and periods of it.
    valid: (Unix, Unix),
}

/// The span that lies in all windows and periods of a lease.
fn span(lease: &Lease) -> (Unix, Unix) {
    let groups = lease.groups.iter().flat_map(|group| [group.window, group.period]);
    let own = [lease.window, lease.period].into_iter();
    own.chain(groups).fold((Unix(0), Unix(u64::MAX)), |span, one| (span.0.max(one.0), span.1.min(one.1)))
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

    /// What a request may be lent without asking; its part of the grant is used up. `now`: of the present verb.
    pub(crate) fn take(&mut self, payer: &Payer<'_>, now: Unix, reserved: Amount) -> Option<(u64, Lease)> {
        let watch = self.watch?;
        let held = self.by_key.get_mut(payer.key.0 as usize)?.held.as_deref_mut()?;
        let Held { grant, lease, valid } = held;
        let fits = grant.requests > 0 && reserved.tokens <= grant.amount.tokens && reserved.nano <= grant.amount.nano;
        let is_valid = valid.0 <= now && now < valid.1 && lease.path == payer.path;
        // The clock is read last: what lies between this look and the count is a few instructions.
        if !fits || !is_valid || watch() >= grant.until {
            return None;
        }
        grant.requests -= 1;
        grant.amount = grant.amount.minus(reserved);
        Some((grant.number, Lease { reserved, shared: true, ..lease.clone() }))
    }

    /// What is wished for with a question about `key`: something, if it asks often.
    pub(crate) fn wish(&mut self, key: KeyIx, part: u32) -> Wish {
        let Some(watch) = self.watch else { return Wish::default() };
        let (now, of) = (watch(), self.of(key));
        let is_busy = of.asked.replace(now).is_some_and(|asked| asked.after(GRANT_BUSY) > now);
        let number = of.held.as_ref().map_or(0, |held| held.grant.number);
        Wish { part: if is_busy { part } else { 0 }, number, ..Wish::default() }
    }

    /// The ledger has granted something; the number of what it takes the place of.
    pub(crate) fn put(&mut self, key: KeyIx, lease: &Lease, more: Grant) -> Option<u64> {
        let of = self.of(key);
        if more.number <= of.over {
            return None;
        }
        match of.held.as_deref_mut().filter(|held| held.grant.number == more.number) {
            Some(Held { grant, .. }) => {
                grant.requests = grant.requests.saturating_add(more.requests);
                grant.amount = grant.amount.plus(more.amount);
                grant.until = grant.until.max(more.until);
                None
            }
            None => {
                let held = Box::new(Held { grant: more, lease: lease.clone(), valid: span(lease) });
                of.over = of.held.replace(held)?.grant.number;
                Some(of.over)
            }
        }
    }

    /// Gives up those that `is_meant`; their numbers.
    pub(crate) fn give_up(&mut self, is_meant: impl Fn(&Lease) -> bool) -> Vec<u64> {
        let meant = self.by_key.iter_mut().filter_map(|(_, of)| of.give_up(&is_meant));
        meant.collect()
    }

    /// Gives up that of `key`; its number.
    pub(crate) fn give_up_of(&mut self, key: KeyIx) -> Option<u64> {
        self.by_key.get_mut(key.0 as usize)?.give_up(&|_| true)
    }
}
