//! Keys that this process does not know although their checksum is right: one may have been issued a moment ago, so the
//! ledger is asked before it is refused. Owns who waits for which answer, how often is asked, and what was not there.
//! Must never know what a request wants. Told by `drive`.

use super::ids::ExchangeId;
use super::orders::{Order, OrderSink};
use crate::base::limits::{LOOKUPS_PER_SECOND, LOOKUPS_WAITING_MAX, UNKNOWN_KEPT};
use crate::base::time::Mono;
use crate::policy::keys::KeyId;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Lookups {
    /// The key of the request that was looked at last, where it is to be looked up.
    pub(crate) unknown: Option<KeyId>,
    /// Who waits, by key.
    waiting: BTreeMap<KeyId, Vec<ExchangeId>>,
    /// How many they are.
    requests: usize,
    /// When the second began in which is counted, and how often was asked in it.
    second: (Mono, u32),
    /// What was not there, and until when that is remembered; the oldest first.
    absent: VecDeque<(Mono, KeyId)>,
}

impl Lookups {
    /// Whether a request may wait until the ledger has been asked for `id`; else it is refused at once.
    pub(crate) fn may_wait(&mut self, id: &KeyId, now: Mono) -> bool {
        while self.absent.front().is_some_and(|(until, _)| *until <= now) {
            self.absent.pop_front();
        }
        if self.requests >= LOOKUPS_WAITING_MAX || self.absent.iter().any(|(_, absent)| absent == id) {
            return false;
        }
        if self.waiting.contains_key(id) {
            return true;
        }
        let (begun, asked) = self.second;
        if now >= begun.after(Duration::from_secs(1)) {
            self.second = (now, 0);
            return true;
        }
        asked < LOOKUPS_PER_SECOND
    }

    /// `exchange` waits for the answer about `id`; the first one asks for it.
    pub(crate) fn wait(&mut self, id: KeyId, exchange: ExchangeId, orders: &mut OrderSink) {
        let waiting = self.waiting.entry(id).or_insert_with(|| {
            self.second.1 += 1;
            orders.0.push(Order::LookUp(id));
            Vec::new()
        });
        waiting.push(exchange);
        self.requests += 1;
    }

    /// The ledger has answered, or cannot: those who waited. Some may have left meanwhile.
    pub(crate) fn answered(&mut self, id: &KeyId) -> Vec<ExchangeId> {
        let waited = self.waiting.remove(id).unwrap_or_default();
        self.requests -= waited.len();
        waited
    }

    /// There is no such key.
    pub(crate) fn is_absent(&mut self, id: KeyId, now: Mono) {
        self.absent.push_back((now.after(UNKNOWN_KEPT), id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: usize) -> KeyId {
        KeyId::parse(&format!("{n:012}")).unwrap()
    }

    #[test]
    fn fifty_are_asked_for_in_a_second_and_a_thousand_requests_wait() {
        let (mut lookups, mut orders, now) = (Lookups::default(), OrderSink::default(), Mono(5_000_000));
        let exchange = |n: usize| ExchangeId::new(n as u32, 0);
        for n in 0..50 {
            assert!(lookups.may_wait(&id(n), now), "{n}");
            lookups.wait(id(n), exchange(n), &mut orders);
        }
        assert!(!lookups.may_wait(&id(50), now), "the fifty-first of this second");
        assert!(lookups.may_wait(&id(7), now), "it is asked for already");
        for n in 50..1000 {
            lookups.wait(id(7), exchange(n), &mut orders);
        }
        assert_eq!(orders.0.len(), 50);
        assert!(!lookups.may_wait(&id(7), now), "a thousand wait");
        let next = now.after(Duration::from_secs(1));
        assert!(!lookups.may_wait(&id(50), next), "they still do");
        assert_eq!(lookups.answered(&id(7)).len(), 951);
        assert_eq!(lookups.answered(&id(7)), []);
        assert!(lookups.may_wait(&id(50), next));
    }

    #[test]
    fn what_is_not_there_is_remembered_for_a_second() {
        let (mut lookups, mut orders, now) = (Lookups::default(), OrderSink::default(), Mono(5_000_000));
        assert!(lookups.may_wait(&id(1), now));
        lookups.wait(id(1), ExchangeId::new(1, 0), &mut orders);
        lookups.answered(&id(1));
        lookups.is_absent(id(1), now);
        assert!(!lookups.may_wait(&id(1), Mono(now.0 + 999_999)));
        assert!(lookups.may_wait(&id(2), now));
        assert!(lookups.may_wait(&id(1), Mono(now.0 + 1_000_000)));
    }
}
