//! Slots at targets, for waiting requests: a free slot goes to the next request in the same call that freed it.

use crate::base::time::{Mono, Now};
use crate::gateway::Gateway;
use crate::gateway::exchange::ExchangeEvent;
use crate::gateway::queue::{Look, Waiter};

/// Maximum number of slots given in one call; the next call continues.
const GIVEN_MAX: usize = 64;

impl Gateway {
    /// Gives free slots to waiting requests; true if any request got one.
    pub(crate) fn give_places(&mut self) -> bool {
        let (eased, look) = (self.cx.breakers.take_eased(), self.cx.queues.take_look());
        if !eased && !look {
            return false;
        }
        for given in 0..GIVEN_MAX {
            let (exchanges, breakers, now) = (&self.exchanges, &mut self.cx.breakers, self.cx.now.mono);
            let setup = &self.cx.setup;
            let look = |waiter: &Waiter| match exchanges.get(waiter.exchange) {
                Some(exchange) => exchange.look_for_place(breakers, setup, now),
                None => Look::NotThis,
            };
            let Some(id) = self.cx.queues.next(look, now) else {
                let when = |waiter: &Waiter| {
                    let exchange = exchanges.get(waiter.exchange);
                    exchange.map_or(Mono::NEVER, |exchange| exchange.job.request.next_change(breakers, now))
                };
                self.cx.queues.set_wake(when);
                return given > 0;
            };
            debug_assert!(self.exchanges.get(id).is_some_and(|exchange| exchange.state.is_queued()));
            self.tell(id, ExchangeEvent::Place);
        }
        self.cx.queues.look_again(self.cx.now.mono);
        false
    }

    /// Number of requests that wait at `now` although a slot is free: 0 between two calls.
    pub fn overlooked(&mut self, now: Now) -> usize {
        let (exchanges, breakers, setup) = (&self.exchanges, &mut self.cx.breakers, &self.cx.setup);
        let queued = exchanges.iter().map(|(_, exchange)| exchange).filter(|exchange| exchange.state.is_queued());
        queued.filter(|exchange| exchange.look_for_place(breakers, setup, now.mono) == Look::Served).count()
    }
}
