//! Order of waiting requests: fair by key, first come, first served within a key. Pure; knows neither targets nor time.
//!
//! This is deficit round robin with a round of one token. Each round gives every key one token per unit of its share. A
//! key whose debt is paid may have one request served, which costs it the tokens of that request. Rounds in which no
//! request can be served are counted, not executed: a debt is stored as the round in which it will be paid. So a key
//! that returns without debt is served second at the latest, however many requests of other keys wait. Over time keys
//! get tokens in proportion to their shares, whether they send many small requests or few large ones. A debt is kept
//! while other requests wait, and forgiven when none do.

use crate::base::time::Mono;
use crate::gateway::ids::ExchangeId;
use crate::policy::keys::KeyIx;
use std::collections::VecDeque;

/// Maximum number of idle keys of one queue whose debts are remembered. Beyond it, the key with the smallest debt is
/// forgotten.
const DEBTORS_MAX: usize = 1024;

/// Number of parts of a round. They let small debts of keys with large shares count, too.
const PARTS: u64 = 1024;

/// Waiting request.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Waiter {
    pub(crate) exchange: ExchangeId,
    /// Time of its arrival.
    pub(crate) came: Mono,
    /// Tokens that it may use.
    pub(crate) tokens: u32,
    /// Configuration that it uses.
    pub(crate) epoch: u32,
}

/// Result of checking whether a waiting request can be served now.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Look {
    /// The request can be served.
    Served,
    /// The request cannot be served, but another might.
    NotThis,
    /// The request cannot be served, nor can any other with the same configuration.
    None,
}

/// Waiting requests of one key, and its debt.
#[derive(Debug)]
struct KeyQueue {
    key: KeyIx,
    share: u32,
    /// Round in which its debt is paid, in parts of rounds.
    paid: u64,
    /// Number of its last turn.
    turn: u64,
    waiting: VecDeque<Waiter>,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    lines: Vec<KeyQueue>,
    /// Current round, in parts.
    round: u64,
    /// Number of the last turn.
    turn: u64,
    waiting: usize,
    /// Configuration that all of them use, unless `mixed`.
    epoch: u32,
    mixed: bool,
}

impl Turns {
    /// Number of waiting requests.
    pub(crate) fn len(&self) -> usize {
        self.waiting
    }

    /// Number of waiting requests of `key`.
    pub(crate) fn len_of(&self, key: KeyIx) -> usize {
        self.lines.iter().find(|line| line.key == key).map_or(0, |line| line.waiting.len())
    }

    /// Adds `waiter` after the requests of its key that arrived before it. Usually these are all of them; a request
    /// that had a slot before gets its old position.
    pub(crate) fn wait(&mut self, key: KeyIx, share: u32, waiter: Waiter) {
        self.mixed = self.waiting > 0 && (self.mixed || self.epoch != waiter.epoch);
        self.epoch = waiter.epoch;
        self.waiting += 1;
        let at = match self.lines.iter().position(|line| line.key == key) {
            Some(at) => at,
            None => {
                self.turn += 1;
                let (paid, turn, waiting) = (self.round, self.turn, VecDeque::new());
                self.lines.push(KeyQueue { key, share, paid, turn, waiting });
                self.lines.len() - 1
            }
        };
        let line = &mut self.lines[at];
        // If a key's plan has changed, its current share counts.
        line.share = share;
        let before = line.waiting.iter().rposition(|other| other.came <= waiter.came);
        line.waiting.insert(before.map_or(0, |before| before + 1), waiter);
    }

    /// Removes and returns the next request that can be served according to `look`, and charges its key.
    pub(crate) fn next(&mut self, mut look: impl FnMut(&Waiter) -> Look) -> Option<ExchangeId> {
        let first = (0..self.lines.len()).filter(|at| !self.lines[*at].waiting.is_empty());
        let first = first.min_by_key(|at| self.rank(*at))?;
        // Nearly always, the first request of the first key can be served.
        let looked = look(&self.lines[first].waiting[0]);
        match looked {
            Look::Served => return Some(self.serve(first, 0)),
            Look::None if !self.mixed => return None,
            Look::None | Look::NotThis => {}
        }
        let round = self.round;
        self.lines.sort_unstable_by_key(|line| (line.paid.max(round), line.turn));
        for at in 0..self.lines.len() {
            for place in 0..self.lines[at].waiting.len() {
                match look(&self.lines[at].waiting[place]) {
                    Look::Served => return Some(self.serve(at, place)),
                    Look::None if !self.mixed => return None,
                    Look::None | Look::NotThis => {}
                }
            }
        }
        None
    }

    /// Rank of a key: the lowest is served first.
    fn rank(&self, at: usize) -> (u64, u64) {
        (self.lines[at].paid.max(self.round), self.lines[at].turn)
    }

    fn serve(&mut self, at: usize, place: usize) -> ExchangeId {
        self.turn += 1;
        let line = &mut self.lines[at];
        let waiter = line.waiting.remove(place);
        self.round = self.round.max(line.paid);
        line.turn = self.turn;
        let tokens = waiter.map_or(0, |waiter| waiter.tokens);
        line.paid = self.round + u64::from(tokens.max(1)) * PARTS / u64::from(line.share.max(1));
        self.waiting -= 1;
        self.forgive();
        waiter.map_or(ExchangeId::new(u32::MAX, 0), |waiter| waiter.exchange)
    }

    /// Removes a waiting request. False if it did not wait.
    pub(crate) fn leave(&mut self, key: KeyIx, exchange: ExchangeId) -> bool {
        let line = self.lines.iter_mut().find(|line| line.key == key);
        let Some(waiting) = line.map(|line| &mut line.waiting) else { return false };
        let Some(place) = waiting.iter().position(|waiter| waiter.exchange == exchange) else { return false };
        waiting.remove(place);
        self.waiting -= 1;
        self.forgive();
        true
    }

    /// Removes requests for which `is_there` is false.
    pub(crate) fn retain(&mut self, is_there: impl Fn(ExchangeId) -> bool) {
        for line in &mut self.lines {
            line.waiting.retain(|waiter| is_there(waiter.exchange));
        }
        self.waiting = self.lines.iter().map(|line| line.waiting.len()).sum();
        self.forgive();
    }

    /// Returns at least one request for each configuration in use.
    pub(crate) fn samples(&self) -> impl Iterator<Item = &Waiter> {
        let most = if self.mixed { usize::MAX } else { 1 };
        self.lines.iter().flat_map(|line| &line.waiting).take(most)
    }

    /// Removes keys that have neither a waiting request nor a debt; all keys if no request waits.
    fn forgive(&mut self) {
        if self.waiting == 0 {
            self.lines.clear();
            (self.round, self.turn) = (0, 0);
            return;
        }
        let round = self.round;
        self.lines.retain(|line| !line.waiting.is_empty() || line.paid > round);
        let debtors = || self.lines.iter().enumerate().filter(|(_, line)| line.waiting.is_empty());
        if debtors().count() > DEBTORS_MAX
            && let Some((least, _)) = debtors().min_by_key(|(_, line)| line.paid)
        {
            self.lines.swap_remove(least);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::rng::Rng;
    use std::collections::BTreeMap;

    fn waiter(number: u32, tokens: u32) -> Waiter {
        Waiter { exchange: ExchangeId::new(number, 0), came: Mono(0), tokens, epoch: 0 }
    }

    fn next(turns: &mut Turns) -> Option<u32> {
        turns.next(|_| Look::Served).map(|id| id.slot)
    }

    #[test]
    fn order_within_a_key_is_first_come_first_served() {
        let mut turns = Turns::default();
        let came = |n: u32, at| Waiter { came: Mono(at), ..waiter(n, 100 - n) };
        (0..5).for_each(|n| turns.wait(KeyIx(1), 1, came(n, 10 + u64::from(n))));
        // Requests that had a slot before, in the order in which their attempts fail.
        for (n, at) in [(9, 9), (8, 8), (7, 12), (6, 7)] {
            turns.wait(KeyIx(1), 1, came(n, at));
        }
        let order: Vec<_> = std::iter::from_fn(|| next(&mut turns)).collect();
        assert_eq!(order, [6, 8, 9, 0, 1, 2, 7, 3, 4]);
        assert_eq!((turns.len(), turns.lines.len()), (0, 0));
    }

    #[test]
    fn key_with_many_requests_delays_anothers_first_by_one_turn() {
        for (large, small) in [(10, 10), (10, 100_000), (100_000, 10)] {
            let mut turns = Turns::default();
            (0..200).for_each(|n| turns.wait(KeyIx(1), 1, waiter(n, large)));
            (0..20).for_each(|_| _ = next(&mut turns));
            turns.wait(KeyIx(2), 1, waiter(1000, small));
            let served = [next(&mut turns), next(&mut turns)];
            assert!(served.contains(&Some(1000)), "{served:?} for {large} and {small} tokens");
        }
    }

    #[test]
    fn tokens_are_distributed_by_share_for_any_request_size() {
        // Key, share, tokens of its requests. Each key has more requests waiting than are served.
        let keys = [(1, 1, 1000), (2, 1, 10), (3, 3, 500), (4, 2, 77)];
        let mut turns = Turns::default();
        for (key, share, tokens) in keys {
            (0..20_000).for_each(|_| turns.wait(KeyIx(key), share, waiter(key, tokens)));
        }
        let (mut served, mut sum) = (BTreeMap::new(), 0);
        while sum < 700_000 {
            let key = next(&mut turns).unwrap();
            let (_, _, tokens) = keys[key as usize - 1];
            *served.entry(key).or_insert(0) += tokens;
            sum += tokens;
        }
        for (key, share, tokens) in keys {
            let (had, due) = (i64::from(served[&key]), i64::from(sum * share / 7));
            assert!((had - due).abs() <= 2 * i64::from(tokens) + 1000, "key {key} had {had}, {due} were due");
        }
    }

    #[test]
    fn debt_of_a_key_is_kept_while_others_wait() {
        let mut turns = Turns::default();
        (0..100).for_each(|n| turns.wait(KeyIx(1), 1, waiter(n, 10)));
        turns.wait(KeyIx(2), 1, waiter(500, 300));
        while next(&mut turns) != Some(500) {}
        // The key returns with another large request, and so does a key without debt.
        turns.wait(KeyIx(2), 1, waiter(501, 300));
        turns.wait(KeyIx(3), 1, waiter(600, 300));
        let order: Vec<u32> = std::iter::from_fn(|| next(&mut turns)).take(60).collect();
        let place = |number| order.iter().position(|n| *n == number).unwrap();
        assert!(place(600) <= 1, "{order:?}");
        assert!((28..=32).contains(&place(501)), "300 tokens of the others first: {order:?}");
    }

    #[test]
    fn request_that_cannot_be_served_blocks_no_other_and_keeps_its_turn() {
        let mut turns = Turns::default();
        for (key, number) in [(1, 10), (1, 11), (2, 20)] {
            turns.wait(KeyIx(key), 1, waiter(number, 50));
        }
        let picky = |turns: &mut Turns, not: &[u32]| {
            let look = |w: &Waiter| if not.contains(&w.exchange.slot) { Look::NotThis } else { Look::Served };
            turns.next(look).map(|id| id.slot)
        };
        assert_eq!(picky(&mut turns, &[10]), Some(11));
        assert_eq!(picky(&mut turns, &[10, 20]), None);
        assert_eq!(turns.len(), 2);
        assert_eq!((next(&mut turns), next(&mut turns)), (Some(20), Some(10)));
    }

    #[test]
    fn one_check_is_enough_if_none_can_be_served() {
        let (mut turns, mut looks) = (Turns::default(), 0);
        (0..1000).for_each(|n| turns.wait(KeyIx(n % 10), 1, waiter(n, 1)));
        let mut look = |turns: &mut Turns| {
            looks = 0;
            assert_eq!(turns.next(|_| (looks += 1, Look::None).1), None);
            looks
        };
        assert_eq!(look(&mut turns), 1);
        turns.wait(KeyIx(0), 1, Waiter { epoch: 1, ..waiter(1000, 1) });
        assert_eq!((look(&mut turns), turns.samples().count()), (1002, 1001), "a reload has come in between");
    }

    /// Any mix of arriving, leaving and being served: no request is lost or served twice, and a key's first request
    /// waits at most twice for each other key.
    #[test]
    fn no_key_starves() {
        for seed in 0..200 {
            let (mut rng, mut turns, mut number) = (Rng::from_u64(seed), Turns::default(), 0);
            let mut there: BTreeMap<u32, VecDeque<(u32, u32)>> = BTreeMap::new();
            // Number of times that others were served since a key without debt began to wait.
            let mut passed: BTreeMap<u32, u32> = BTreeMap::new();
            for _ in 0..400 {
                let key = rng.below(10) as u32;
                match rng.below(5) {
                    0 | 1 => {
                        number += 1;
                        let owes = turns.lines.iter().any(|line| line.key == KeyIx(key));
                        if !owes {
                            passed.insert(key, 0);
                        }
                        turns.wait(KeyIx(key), 1, waiter(number, 1 + rng.below(5000) as u32));
                        there.entry(key).or_default().push_back((number, key));
                    }
                    2 => {
                        let Some(line) = there.get_mut(&key).filter(|line| !line.is_empty()) else { continue };
                        let (gone, _) = line.remove(rng.below(line.len() as u64) as usize).unwrap();
                        assert!(turns.leave(KeyIx(key), ExchangeId::new(gone, 0)));
                        assert!(!turns.leave(KeyIx(key), ExchangeId::new(gone, 0)));
                        passed.remove(&key);
                    }
                    _ => {
                        let Some(served) = next(&mut turns) else { continue };
                        let of = there.iter().find(|(_, line)| line.front().is_some_and(|(n, _)| *n == served));
                        let of = *of.expect("the first of its key").0;
                        there.get_mut(&of).unwrap().pop_front();
                        passed.remove(&of);
                        passed.values_mut().for_each(|count| *count += 1);
                        assert!(passed.values().all(|count| *count <= 18), "seed {seed}: {passed:?}");
                    }
                }
                assert_eq!(turns.len(), there.values().map(VecDeque::len).sum::<usize>());
            }
        }
    }
}
