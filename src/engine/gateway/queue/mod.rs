//! Queues of requests that wait for a slot at a target of their model. Owns their order. Must never know the contents
//! of a request or where slots are: the request's exchange does. Exchanges add requests; `drive` serves them.
//!
//! A queue is identified by the model's id, so that it survives a reload: waiting requests keep the configuration that
//! they began with, and a queue whose model is gone ends with its last request.

mod turns;

pub(crate) use turns::{Look, Waiter};

use super::ids::ExchangeId;
use crate::base::time::Mono;
use crate::policy::keys::KeyIx;
use std::sync::Arc;
use turns::Turns;

/// Divisor of the weight of a new value in a mean.
const SMOOTH: u64 = 8;

/// Requests that wait for slots of one model.
#[derive(Debug)]
struct Queue {
    model: Arc<str>,
    turns: Turns,
    /// Time at which the last request got a slot, or the first arrived.
    last: Mono,
    /// Mean time between two requests that got a slot, in microseconds; 0 before the first did.
    pace: u64,
}

impl Queue {
    /// Estimated microseconds until the next request gets a slot.
    fn pace(&self, now: Mono) -> u64 {
        self.pace.max(now.micros_since(self.last))
    }
}

/// All queues.
#[derive(Debug)]
pub(crate) struct Queues {
    queues: Vec<Queue>,
    waiting: usize,
    /// Queue to be served next, if several want the same slots.
    next: usize,
    /// True if a slot may have become free without a notification.
    pub(super) look: bool,
    /// Time at which a slot may become free without an event; `NEVER` if none may.
    pub(crate) wake: Mono,
}

impl Default for Queues {
    fn default() -> Queues {
        Queues { queues: Vec::new(), waiting: 0, next: 0, look: false, wake: Mono::NEVER }
    }
}

impl Queues {
    /// True if any request waits.
    #[inline]
    pub(crate) fn is_any_waiting(&self) -> bool {
        self.waiting > 0
    }

    /// Number of requests that wait for slots of a model.
    pub(crate) fn len(&self, model: &str) -> usize {
        self.find(model).map_or(0, |queue| queue.turns.len())
    }

    /// Number of requests of `key` that wait for slots of a model.
    pub(crate) fn len_of(&self, model: &str, key: KeyIx) -> usize {
        self.find(model).map_or(0, |queue| queue.turns.len_of(key))
    }

    /// Returns all queues with waiting requests, with their numbers.
    pub(crate) fn lengths(&self) -> impl Iterator<Item = (&Arc<str>, usize)> {
        self.queues.iter().map(|queue| (&queue.model, queue.turns.len())).filter(|(_, length)| *length > 0)
    }

    fn find(&self, model: &str) -> Option<&Queue> {
        self.queues.iter().find(|queue| *queue.model == *model)
    }

    /// Estimated seconds until the first `ahead` waiting requests have got a slot.
    pub(crate) fn seconds(&self, model: &str, ahead: usize, now: Mono) -> u64 {
        let pace = self.find(model).map_or(0, |queue| queue.pace(now));
        pace.saturating_mul(ahead as u64).div_ceil(1_000_000).max(1)
    }

    /// Adds a request of `key`, whose plan has this share, which waits for a slot of `model`.
    pub(crate) fn wait(&mut self, model: &Arc<str>, (key, share): (KeyIx, u32), waiter: Waiter, now: Mono) {
        let at = self.queues.iter().position(|queue| queue.model == *model).unwrap_or_else(|| {
            self.queues.push(Queue { model: model.clone(), turns: Turns::default(), last: now, pace: 0 });
            self.queues.len() - 1
        });
        let queue = &mut self.queues[at];
        if queue.turns.len() == 0 {
            queue.last = now;
        }
        queue.turns.wait(key, share, waiter);
        self.waiting += 1;
        // The time at which this request may get a slot is not known yet.
        self.look = true;
    }

    /// Removes a waiting request that leaves, or will not be served any more.
    pub(crate) fn leave(&mut self, model: &str, key: KeyIx, exchange: ExchangeId) {
        let queue = self.queues.iter_mut().find(|queue| *queue.model == *model);
        if queue.is_some_and(|queue| queue.turns.leave(key, exchange)) {
            self.left();
        }
    }

    fn left(&mut self) {
        self.waiting -= 1;
        if self.waiting == 0 {
            (self.wake, self.look) = (Mono::NEVER, false);
        }
    }

    /// Removes requests for which `is_there` is false: they have been lost to a bug.
    pub(crate) fn recount(&mut self, is_there: impl Fn(ExchangeId) -> bool) {
        self.queues.iter_mut().for_each(|queue| queue.turns.retain(&is_there));
        self.waiting = self.queues.iter().map(|queue| queue.turns.len()).sum();
        self.look = true;
    }

    /// Removes empty queues of models for which `is_there` is false.
    pub(crate) fn forget(&mut self, is_there: impl Fn(&str) -> bool) {
        self.queues.retain(|queue| queue.turns.len() > 0 || is_there(&queue.model));
        self.next = 0;
    }

    /// Records that there may be more slots; the next call of the core checks for them, soon.
    pub(crate) fn look_again(&mut self, now: Mono) {
        self.look = self.waiting > 0;
        self.wake = if self.look { now } else { Mono::NEVER };
    }

    /// Removes and returns the next request, of those that can be served by `look`; models take turns, too.
    pub(crate) fn next(&mut self, mut look: impl FnMut(&Waiter) -> Look, now: Mono) -> Option<ExchangeId> {
        for _ in 0..self.queues.len() {
            self.next = (self.next + 1) % self.queues.len();
            let queue = &mut self.queues[self.next];
            if let Some(exchange) = queue.turns.next(&mut look) {
                let took = now.micros_since(queue.last);
                queue.pace = if queue.pace == 0 { took } else { queue.pace - queue.pace / SMOOTH + took / SMOOTH };
                queue.last = now;
                self.left();
                return Some(exchange);
            }
        }
        None
    }

    /// Sets the time at which waiting requests may get a slot only because time has passed.
    pub(crate) fn set_wake(&mut self, when: impl FnMut(&Waiter) -> Mono) {
        let samples = self.queues.iter().flat_map(|queue| queue.turns.samples());
        self.wake = samples.map(when).min().unwrap_or(Mono::NEVER);
    }

    /// Checks again if that time has come.
    pub(crate) fn woken(&mut self, now: Mono) {
        if self.wake <= now {
            (self.wake, self.look) = (Mono::NEVER, true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn estimate_includes_past_pace_and_current_wait() {
        let (mut queues, model, mut now) = (Queues::default(), Arc::from("m"), Mono(0));
        for slot in 0..50 {
            let waiter = Waiter { exchange: ExchangeId::new(slot, 0), came: now, tokens: 1, epoch: 0 };
            queues.wait(&model, (KeyIx(0), 1), waiter, now);
        }
        assert_eq!(queues.seconds("m", 10, now), 1, "nothing has been seen");
        for _ in 0..30 {
            now = now.after(Duration::from_millis(2500));
            assert!(queues.next(|_| Look::Served, now).is_some());
        }
        assert_eq!(queues.seconds("m", 4, now), 10);
        now = now.after(Duration::from_secs(7));
        assert_eq!(queues.seconds("m", 4, now), 28, "it has not come in its time");
        assert_eq!((queues.len("m"), queues.len("n"), queues.seconds("n", 9, now)), (20, 0, 1));
    }

    #[test]
    fn models_that_share_a_target_take_turns() {
        let (mut queues, now) = (Queues::default(), Mono(0));
        for slot in 0..4 {
            let waiter = Waiter { exchange: ExchangeId::new(slot, 0), came: now, tokens: 1, epoch: 0 };
            let model = Arc::from(if slot < 2 { "a" } else { "b" });
            queues.wait(&model, (KeyIx(0), 1), waiter, now);
        }
        let order: Vec<u32> = (0..4).filter_map(|_| queues.next(|_| Look::Served, now)).map(|id| id.slot).collect();
        assert!([[0, 2, 1, 3], [2, 0, 3, 1]].contains(&[order[0], order[1], order[2], order[3]]), "{order:?}");
        assert!(!queues.is_any_waiting());
        queues.forget(|model| model == "a");
        assert_eq!(queues.queues.len(), 1);
    }
}
