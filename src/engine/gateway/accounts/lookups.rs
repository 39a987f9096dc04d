//! Looks up keys that this process does not know although their checksum is right: a key may have just been issued, or
//! its secret rotated, so the ledger is asked before it is refused. Owns the requests that wait for a key, the time of
//! the next request to the ledger, and the keys that were looked up a moment ago. Must never know the content of a
//! request. Called by `drive`.

use super::budget_sums::BudgetSums;
use crate::base::limits::IDS_PER_LOOKUP;
use crate::base::time::Mono;
use crate::gateway::ids::ExchangeId;
use crate::gateway::orders::{Order, OrderSink};
use crate::policy::keys::ShownKey;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Time between two look-ups of unknown keys: the ledger is queried at most 1,000 times a second. Ids that arrive
/// meanwhile share the next look-up, so strangers cannot use up the look-ups of a new key.
const LOOKUP_PAUSE: Duration = Duration::from_millis(1);
/// Requests that wait for a look-up. Further ones are refused at once.
const LOOKUPS_WAITING_MAX: usize = 1000;
/// Time that the gateway remembers that a key does not exist.
const UNKNOWN_KEPT: Duration = Duration::from_secs(1);
/// Unknown ids that are remembered. Beyond it the oldest is forgotten.
const UNKNOWN_MAX: usize = 8192;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Lookups {
    /// Key of the last authorized request, if it is to be looked up.
    pub(crate) unknown: Option<ShownKey>,
    /// Keys whose sums the ledger is to be asked for.
    pub(crate) sums: BudgetSums,
    /// Requests that wait for a key; none for a key that was looked up a moment ago.
    keys: BTreeMap<ShownKey, Vec<ExchangeId>>,
    /// Number of waiting requests.
    requests: usize,
    /// Keys not yet sent to the ledger, oldest first.
    next: VecDeque<ShownKey>,
    /// Earliest time of the next request to the ledger.
    free: Mono,
    /// Time of the next request to the ledger; `NEVER` if no id is pending.
    pub(crate) due: Mono,
    /// Times until which keys are not looked up again, oldest first.
    ends: VecDeque<(Mono, ShownKey)>,
}

impl Default for Lookups {
    fn default() -> Self {
        Lookups {
            unknown: None,
            sums: BudgetSums::default(),
            keys: BTreeMap::new(),
            requests: 0,
            next: VecDeque::new(),
            free: Mono(0),
            due: Mono::NEVER,
            ends: VecDeque::new(),
        }
    }
}

impl Lookups {
    /// True if a request may wait until the ledger has been asked for `id`; otherwise it is refused at once.
    pub(crate) fn may_wait(&mut self, id: &ShownKey, now: Mono) -> bool {
        while let Some((_, id)) = self.ends.front().filter(|(until, _)| *until <= now) {
            self.keys.remove(id);
            self.ends.pop_front();
        }
        self.requests < LOOKUPS_WAITING_MAX && self.keys.get(id).is_none_or(|waiting| !waiting.is_empty())
    }

    /// Makes `exchange` wait for the answer about `id`.
    pub(crate) fn wait(&mut self, id: ShownKey, exchange: ExchangeId, now: Mono, orders: &mut OrderSink) {
        let waiting = self.keys.entry(id).or_default();
        if waiting.is_empty() {
            self.next.push_back(id);
            self.due = self.due.min(self.free);
        }
        waiting.push(exchange);
        self.requests += 1;
        self.ask(now, orders);
    }

    /// Sends the ledger the ids added since the last look-up, if that is allowed yet.
    pub(crate) fn ask(&mut self, now: Mono, orders: &mut OrderSink) {
        if now < self.due {
            return;
        }
        let ids = self.next.drain(..self.next.len().min(IDS_PER_LOOKUP)).collect();
        orders.push(Order::LookUp(ids));
        self.free = now.after(LOOKUP_PAUSE);
        self.due = if self.next.is_empty() { Mono::NEVER } else { self.free };
    }

    /// Handles the ledger's answer or failure: returns the requests that waited. Some may have ended in the meantime.
    pub(crate) fn answered(&mut self, id: &ShownKey) -> Vec<ExchangeId> {
        let waits = self.keys.get(id).is_some_and(|waiting| !waiting.is_empty());
        let waited = waits.then(|| self.keys.remove(id)).flatten().unwrap_or_default();
        self.requests -= waited.len();
        waited
    }

    /// Notes that this key was looked up. No request waits for it: if it is still unknown, it is refused immediately.
    pub(crate) fn remember(&mut self, id: ShownKey, now: Mono) {
        if self.keys.insert(id, Vec::new()).is_none() {
            self.ends.push_back((now.after(UNKNOWN_KEPT), id));
        }
        if self.ends.len() > UNKNOWN_MAX
            && let Some((_, oldest)) = self.ends.pop_front()
        {
            self.keys.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::keys::KeyId;

    fn id(n: usize) -> ShownKey {
        ShownKey { id: KeyId::parse(&format!("{n:012}")).unwrap(), text: 0 }
    }

    fn exchange(n: usize) -> ExchangeId {
        ExchangeId::new(n as u32, 0)
    }

    /// Number of ids of each lookup.
    fn asked(orders: &mut OrderSink) -> Vec<usize> {
        let ids = orders.hand_over().iter().map(|order| match order {
            Order::LookUp(ids) => ids.len(),
            other => panic!("{other:?}"),
        });
        ids.collect()
    }

    #[test]
    fn ids_of_one_millisecond_share_a_lookup() {
        let (mut lookups, mut orders, now) = (Lookups::default(), OrderSink::default(), Mono(5_000_000));
        for n in 0..300 {
            assert!(lookups.may_wait(&id(n), now), "{n}");
            lookups.wait(id(n), exchange(n), now, &mut orders);
        }
        assert_eq!((asked(&mut orders), lookups.due), (vec![1], Mono(5_001_000)));
        lookups.ask(Mono(5_000_999), &mut orders);
        assert_eq!(asked(&mut orders), [1]);
        lookups.ask(Mono(5_001_000), &mut orders);
        assert_eq!((asked(&mut orders), lookups.due), (vec![1, 128], Mono(5_002_000)));
        lookups.ask(Mono(5_002_000), &mut orders);
        lookups.ask(Mono(5_003_000), &mut orders);
        assert_eq!((asked(&mut orders), lookups.due), (vec![1, 128, 128, 43], Mono::NEVER));
    }

    #[test]
    fn ledger_gets_at_most_a_thousand_lookups_a_second() {
        let (mut lookups, mut orders) = (Lookups::default(), OrderSink::default());
        for n in 0..10_000 {
            let now = Mono(5_000_000 + 100 * n as u64);
            assert!(lookups.may_wait(&id(n), now), "{n}");
            lookups.wait(id(n), exchange(n), now, &mut orders);
            lookups.answered(&id(n));
        }
        let asked = asked(&mut orders);
        assert!(asked.len() <= 1000, "{}", asked.len());
        assert!(asked.iter().sum::<usize>() > 9_990, "{asked:?}");
    }

    #[test]
    fn a_request_is_refused_while_a_thousand_wait() {
        let (mut lookups, mut orders, now) = (Lookups::default(), OrderSink::default(), Mono(5_000_000));
        for n in 0..1000 {
            assert!(lookups.may_wait(&id(n % 50), now), "{n}");
            lookups.wait(id(n % 50), exchange(n), now, &mut orders);
        }
        lookups.ask(now.after(LOOKUP_PAUSE), &mut orders);
        assert_eq!(asked(&mut orders), [1, 49], "each id is asked for once");
        assert!(!lookups.may_wait(&id(7), now) && !lookups.may_wait(&id(50), now));
        assert_eq!(lookups.answered(&id(7)).len(), 20);
        assert_eq!(lookups.answered(&id(7)), []);
        assert!(lookups.may_wait(&id(50), now));
    }

    #[test]
    fn a_looked_up_key_is_remembered_for_a_second() {
        let (mut lookups, mut orders, now) = (Lookups::default(), OrderSink::default(), Mono(5_000_000));
        assert!(lookups.may_wait(&id(1), now));
        lookups.wait(id(1), exchange(1), now, &mut orders);
        lookups.answered(&id(1));
        lookups.remember(id(1), now);
        assert!(!lookups.may_wait(&id(1), Mono(now.0 + 999_999)));
        assert!(lookups.may_wait(&id(2), now));
        let other = ShownKey { text: 1, ..id(1) };
        assert!(lookups.may_wait(&other, now), "another secret may be the right one");
        assert!(lookups.may_wait(&id(1), Mono(now.0 + 1_000_000)));
    }

    #[test]
    fn the_oldest_key_is_forgotten_when_there_are_too_many() {
        let (mut lookups, now) = (Lookups::default(), Mono(5_000_000));
        (0..=UNKNOWN_MAX).for_each(|n| lookups.remember(id(n), now));
        assert!(lookups.may_wait(&id(0), now) && !lookups.may_wait(&id(1), now));
        assert_eq!((lookups.ends.len(), lookups.keys.len()), (UNKNOWN_MAX, UNKNOWN_MAX));
    }
}
