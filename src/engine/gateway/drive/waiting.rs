//! Continues requests that wait: for a slot at a target, memory, a helper thread, or the ledger. A free slot goes to
//! the next request in the same call that freed it.

use super::Driver;
use crate::base::time::Mono;
use crate::gateway::accounts::budget_sums::NO_EXCHANGE;
use crate::gateway::exchange::ExchangeEvent;
use crate::gateway::ids::{ExchangeId, client_conn, provider_conn};
use crate::gateway::memory::shares::{Gate, MemoryShares};
use crate::gateway::orders::offload::{FinishedJob, Product};
use crate::gateway::queue::{Look, Waiter};
use crate::gateway::upkeep::inheritance;
use crate::gateway::upkeep::listing;
use crate::policy::ledger::{AskAnswer, Release, Ruling};

/// Maximum number of slots given in one call; the next call continues.
const GIVEN_MAX: usize = 64;
/// Maximum number of answers continued in one call; the next call continues.
const TURNS_MAX: usize = 64;

impl Driver {
    /// Gives free slots to waiting requests; true if any request got one.
    pub(crate) fn give_places(&mut self) -> bool {
        let (eased, look) =
            (self.cx.upstreams.breakers.take_eased(), std::mem::take(&mut self.cx.upstreams.queues.look));
        if !eased && !look {
            return false;
        }
        for given in 0..GIVEN_MAX {
            let (exchanges, breakers, now) = (&self.exchanges, &mut self.cx.upstreams.breakers, self.cx.now);
            let (setup, keys, limits) = (&self.cx.setup, &self.cx.access.keys, &mut self.cx.accounts.targets);
            let look = |waiter: &Waiter| match exchanges.get(waiter.exchange) {
                Some(one) => one.state.look_for_place(&one.job, breakers, keys, setup, (limits, now)),
                None => Look::NotThis,
            };
            let Some(id) = self.cx.upstreams.queues.next(look, now.mono) else {
                let when = |waiter: &Waiter| {
                    let exchange = exchanges.get(waiter.exchange);
                    exchange.map_or(Mono::NEVER, |exchange| exchange.job.request.next_change(breakers, limits, now))
                };
                self.cx.upstreams.queues.set_wake(when);
                return given > 0;
            };
            debug_assert!(self.exchanges.get(id).is_some_and(|exchange| exchange.state.is_queued()));
            self.tell(id, ExchangeEvent::Place);
        }
        self.cx.upstreams.queues.look_again(self.cx.now.mono);
        false
    }

    /// Handles work returned by a helper thread.
    pub(crate) fn offloaded(&mut self, done: FinishedJob) {
        let (id, serial) = done.owner();
        let key = done.key();
        self.cx.returned(serial);
        if self.cx.upstreams.discovery.building.is_some_and(|job| job.get() == serial) {
            let built = done.take(&mut self.cx.memory.pool);
            return listing::built(built, &mut self.cx);
        }
        let Some(exchange) = self.exchanges.get_mut(id).filter(|exchange| exchange.state.awaits(serial)) else {
            done.discard(&mut self.cx.memory.pool);
            return self.cx.free_heavy(key);
        };
        let cid = exchange.job.request.client;
        match done.take(&mut self.cx.memory.pool) {
            Some(Product::Request { body, draft, built }) => {
                if let Some(client) = self.clients.table.get_mut(cid) {
                    client.put_back(body, &mut self.cx.memory.pool);
                }
                self.tell(id, ExchangeEvent::Translated { draft, built });
                // The clocks of the exchange may have started.
                self.arm(cid);
            }
            product => {
                let provider = exchange.state.provider();
                self.tell(id, ExchangeEvent::Offloaded(product.map(Box::new)));
                self.resume(id);
                // The exchange may have ended; its connection was not read meanwhile.
                self.cx.commands.dirty.extend(provider.map(provider_conn));
            }
        }
    }

    /// Handles an answer of a ledger. One in a file only takes promises.
    pub(crate) fn ruled(&mut self, answer: &AskAnswer) {
        let ask = &answer.ask;
        let is_shared = self.cx.is_shared();
        if ask.lease.is_of_targets() {
            self.cx.accounts.targets.learn(&ask.lease, self.cx.now.unix, &answer.counts);
        } else if is_shared
            && answer.ruling != Ruling::Unavailable
            && let Some((key, plan)) = self.cx.counted_key(&ask.key)
        {
            self.cx.accounts.meter.learn(key, &plan, &ask.lease, self.cx.now.unix, &answer.counts);
            self.cx.granted(key, answer);
            self.cx.tell_of_budgets();
        }
        if is_shared
            && answer.ruling == Ruling::Unavailable
            && ask.number == NO_EXCHANGE
            && let Some(key) = self.cx.access.keys.index_of(&ask.key)
        {
            self.cx.access.lookups.sums.add(key, 0, self.cx.now.mono);
        }
        let id = ExchangeId::new(ask.number.0, ask.number.1);
        let exchange = self.exchanges.get(id).filter(|one| one.state.awaits_ruling(&ask.lease));
        if let Some(cid) = exchange.map(|one| one.job.request.client) {
            self.tell(id, ExchangeEvent::Ruled(ask, answer.ruling));
            // The clocks of the exchange may have started.
            self.arm(cid);
        } else if is_shared && answer.ruling == Ruling::Admitted {
            // The request has ended or waited too long; its lease is returned.
            self.cx.commands.orders.give_back(Release { key: ask.key, lease: ask.lease.clone(), unsent: true });
        }
    }

    /// Records that `rows` more rows are committed, and sends the answers that waited for them.
    pub(crate) fn committed(&mut self, rows: u64) {
        self.cx.accounts.ledger.committed(rows);
        self.cx.access.lookups.sums.committed(self.cx.now.mono);
        while let Some(id) = self.cx.accounts.ledger.next_safe() {
            self.tell(id, ExchangeEvent::Committed);
        }
        if !self.cx.lifecycle.inheritance.rows.is_empty() {
            inheritance::acknowledge(&mut self.cx);
        }
    }

    /// Handles a failure to write the ledger: admission stops, and waiting answers cannot complete.
    pub(crate) fn store_failed(&mut self, why: String) {
        self.cx.accounts.ledger.failed(why, self.cx.now.unix);
        self.cx.forget_grants();
        for (_, id) in std::mem::take(&mut self.cx.accounts.ledger.held) {
            self.tell(id, ExchangeEvent::NotCommitted);
        }
    }

    /// Continues answers that wait for memory if some is free, and one of them in any case. Updates the connections if
    /// more or fewer of them may be read than before.
    pub(crate) fn look_at_room(&mut self) {
        if self.cx.memory.turns.alone.is_some() || !self.cx.memory.turns.is_empty() {
            self.go_on_waiting();
        }
        let eased = self.cx.memory.shares.take_eased();
        if eased {
            self.go_on_by_key();
        }
        let gate = MemoryShares::gate(&self.cx.memory.pool, self.cx.memory.gate);
        if gate != self.cx.memory.gate
            || eased
            || (self.cx.memory.gate == Gate::Narrow && self.cx.memory.turns.take_emptied())
        {
            self.cx.memory.gate = gate;
            if gate != Gate::Shut {
                self.cx.commands.dirty.extend(self.providers.table.iter().map(|(id, _)| provider_conn(id)));
            }
            if gate == Gate::Open {
                self.cx.commands.dirty.extend(self.clients.table.iter().map(|(id, _)| client_conn(id)));
            }
        }
    }

    fn go_on_waiting(&mut self) {
        let is_free = MemoryShares::has_room(0, false, &self.cx.memory.pool);
        let has_part = |id| self.exchanges.get(id).is_some_and(|one| one.state.holds_part());
        if self.cx.memory.turns.alone.is_some_and(|id| is_free || !has_part(id)) {
            self.cx.memory.turns.alone = None;
        }
        for _ in 0..TURNS_MAX {
            let waits = |id| self.exchanges.get(id).is_some_and(|one| one.state.waits_for_room());
            let Some(id) = self.cx.memory.turns.next(&self.cx.memory.pool, waits) else { return };
            self.tell_room(id);
        }
    }

    /// Retries the answers that wait for their keys' shares.
    fn go_on_by_key(&mut self) {
        for _ in 0..self.cx.memory.turns.by_key.len() {
            let Some((id, key)) = self.cx.memory.turns.by_key.pop_front() else { return };
            self.cx.memory.shares.waits_no_more(key);
            self.tell_room(id);
        }
    }

    fn tell_room(&mut self, id: ExchangeId) {
        if self.exchanges.get(id).is_some_and(|one| one.state.waits_for_room()) {
            self.cx.memory.turns.served = Some(id);
            self.tell(id, ExchangeEvent::Room);
            self.resume(id);
            self.cx.memory.turns.served = None;
        }
    }
}
