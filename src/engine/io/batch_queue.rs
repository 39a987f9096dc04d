//! Owns the queue from the event loop to one helper thread, which the loop can fill without a system call.
//!
//! A condition variable would cost the loop a futex call per hand-over. So a busy thread is never woken: it polls its
//! queue every few milliseconds by itself. Only when the queue has been empty for `QUEUE_BUSY_TICKS` polls
//! does the thread wait to be woken. The first item put into the queue then wakes it, at the cost of one call. The
//! thread polls afterwards only if its last items came as recently: at one item a second, a hundred polls for each
//! would keep a small machine awake. Under high load, the thread is also woken when enough items wait, so that the
//! queue needs little memory.

use super::clock::Clock;
use crate::base::time::Mono;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Polls of an empty queue before its thread waits to be woken, and ticks since its last items within which further
/// ones must come for it to poll.
const QUEUE_BUSY_TICKS: u32 = 8;

struct BatchState<T> {
    items: T,
    asleep: bool,
    hurry: bool,
    closed: bool,
}

/// Queue of batches; both ends have one. `T` is a vector of rows or of bytes.
pub struct BatchQueue<T>(Arc<(Mutex<BatchState<T>>, Condvar)>);

impl<T> Clone for BatchQueue<T> {
    fn clone(&self) -> Self {
        BatchQueue(self.0.clone())
    }
}

/// Result of a poll of the helper thread.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Polled {
    /// Items were taken.
    Found,
    /// No items arrived while waiting.
    Nothing,
    /// The queue is empty and closed: the thread must end.
    Closed,
}

/// Decides when the helper thread waits to be woken: counts its polls of an empty queue.
#[derive(Debug)]
pub struct IdlePolicy {
    tick: Duration,
    /// Empty polls that remain until the thread waits to be woken.
    polls_left: u32,
    /// Until when items count as frequent.
    busy_until: Mono,
    clock: Clock,
}

impl IdlePolicy {
    /// Creates the policy of a thread that polls every `tick` while busy.
    pub fn new(tick: Duration) -> IdlePolicy {
        IdlePolicy { tick, polls_left: QUEUE_BUSY_TICKS, busy_until: Mono(0), clock: Clock::new() }
    }

    /// True if the thread waits to be woken.
    pub fn is_idle(&self) -> bool {
        self.polls_left == 0
    }

    /// Counts a poll that found items. The thread polls from now on if items are frequent.
    fn found(&mut self, now: Mono) {
        if now < self.busy_until {
            self.polls_left = QUEUE_BUSY_TICKS;
        }
        self.busy_until = now.after(self.tick * QUEUE_BUSY_TICKS);
    }

    /// Counts a poll that found nothing.
    fn found_nothing(&mut self) {
        self.polls_left = self.polls_left.saturating_sub(1);
    }
}

impl<T: Default> Default for BatchQueue<T> {
    fn default() -> Self {
        BatchQueue::new(T::default())
    }
}

impl<T> BatchQueue<T> {
    /// Creates a queue that begins with `items`: empty, but with allocated storage.
    pub fn new(items: T) -> BatchQueue<T> {
        let state = BatchState { items, asleep: false, hurry: false, closed: false };
        BatchQueue(Arc::new((Mutex::new(state), Condvar::new())))
    }

    fn lock(&self) -> MutexGuard<'_, BatchState<T>> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets `add` put items into the queue and returns its result. Wakes the thread only if it waits to be woken, or if
    /// `urgent`.
    pub fn put<R>(&self, urgent: bool, add: impl FnOnce(&mut T) -> R) -> R {
        self.put_until(|_| urgent, add)
    }

    /// Likewise, but the items are urgent if they are `enough` for the thread to end its pause.
    pub fn put_until<R>(&self, enough: impl FnOnce(&T) -> bool, add: impl FnOnce(&mut T) -> R) -> R {
        let mut state = self.lock();
        let result = add(&mut state.items);
        // A thread in a hurry takes these items, too, and need not be woken again.
        let wakes = state.asleep || (!state.hurry && enough(&state.items));
        if wakes {
            (state.asleep, state.hurry) = (false, true);
        }
        drop(state);
        // Outside the lock, since the woken thread would immediately block on it.
        if wakes {
            self.0.1.notify_one();
        }
        result
    }

    /// Closes the queue. The thread ends after it has taken the remaining items.
    pub fn close(&self) {
        self.lock().closed = true;
        self.0.1.notify_one();
    }

    /// True if [`BatchQueue::close`] was called.
    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Waits for items, at most about `wait`, and swaps them with the empty `into`; for the helper thread. `empty` is
    /// true if there are no items. A busy thread sleeps for its whole tick even if there are items. So they gather, and
    /// the loop is not disturbed by a thread that is always awake.
    pub fn poll(&self, into: &mut T, idle: &mut IdlePolicy, wait: Duration, empty: impl Fn(&T) -> bool) -> Polled {
        let mut state = self.lock();
        let is_idle = idle.is_idle();
        let at_once = state.closed || state.hurry || (is_idle && !empty(&state.items));
        if !at_once {
            state.asleep = is_idle;
            let tick = if is_idle { wait } else { wait.min(idle.tick) };
            state = self.0.1.wait_timeout(state, tick).unwrap_or_else(PoisonError::into_inner).0;
            state.asleep = false;
        }
        state.hurry = false;
        match (empty(&state.items), state.closed) {
            (false, _) => {
                idle.found(idle.clock.mono());
                std::mem::swap(&mut state.items, into);
                Polled::Found
            }
            (true, true) => Polled::Closed,
            (true, false) => {
                idle.found_nothing();
                Polled::Nothing
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    fn take(queue: &BatchQueue<Vec<u32>>, idle: &mut IdlePolicy, wait: Duration) -> (Polled, Vec<u32>) {
        let mut got = Vec::new();
        let polled = queue.poll(&mut got, idle, wait, Vec::is_empty);
        (polled, got)
    }

    #[test]
    fn items_arrive_in_order_before_the_end() {
        let (queue, mut idle) = (BatchQueue::<Vec<u32>>::default(), IdlePolicy::new(Duration::from_millis(1)));
        queue.put(false, |items| items.extend([1, 2]));
        queue.put(false, |items| items.push(3));
        queue.close();
        assert_eq!(take(&queue, &mut idle, Duration::ZERO), (Polled::Found, vec![1, 2, 3]));
        assert_eq!(take(&queue, &mut idle, Duration::from_secs(9)), (Polled::Closed, vec![]));
    }

    #[test]
    fn waiting_thread_is_woken_by_the_first_item() {
        let queue = BatchQueue::<Vec<u32>>::default();
        let other = queue.clone();
        let helper = std::thread::spawn(move || {
            let mut idle = IdlePolicy { polls_left: 0, ..IdlePolicy::new(Duration::ZERO) };
            take(&other, &mut idle, Duration::from_secs(30))
        });
        let began = Instant::now();
        while !queue.lock().asleep {
            std::thread::yield_now();
        }
        queue.put(false, |items| items.push(5));
        assert_eq!(helper.join().unwrap(), (Polled::Found, vec![5]));
        assert!(began.elapsed() < Duration::from_secs(20));
    }

    #[test]
    fn busy_thread_collects_items_unless_they_are_urgent() {
        let queue = BatchQueue::<Vec<u32>>::default();
        let tick = Duration::from_secs(1);
        let mut idle = IdlePolicy::new(tick);
        let began = Instant::now();
        queue.put(false, |items| items.push(1));
        let other = queue.clone();
        let helper = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            other.put(false, |items| items.push(2));
        });
        assert_eq!(take(&queue, &mut idle, Duration::from_secs(9)), (Polled::Found, vec![1, 2]));
        assert!(began.elapsed() >= tick);
        helper.join().unwrap();
        idle.tick = Duration::from_secs(60);
        queue.put(true, |items| items.push(3));
        assert_eq!(take(&queue, &mut idle, Duration::from_secs(60)), (Polled::Found, vec![3]));
        assert!(began.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn busy_thread_takes_enough_items_before_its_pause_ends() {
        let queue = BatchQueue::<Vec<u32>>::default();
        let tick = Duration::from_secs(60);
        let (mut idle, other) = (IdlePolicy::new(tick), queue.clone());
        let began = Instant::now();
        let helper = std::thread::spawn(move || take(&other, &mut idle, tick));
        for item in 0..3 {
            queue.put_until(|items| items.len() >= 3, |items| items.push(item));
        }
        assert_eq!(helper.join().unwrap(), (Polled::Found, vec![0, 1, 2]));
        assert!(began.elapsed() < tick / 2);
    }

    /// Counts the polls of a thread with a tick of 10 ms while items arrive at these moments, in milliseconds.
    fn polls(idle: &mut IdlePolicy, items: impl IntoIterator<Item = u64>) -> u32 {
        let (mut now, mut polls) = (0, 0);
        for at in items {
            while !idle.is_idle() && now + 10 < at {
                now += 10;
                idle.found_nothing();
                polls += 1;
            }
            now = now.max(at);
            idle.found(Mono(now * 1000));
            polls += 1;
        }
        polls
    }

    #[test]
    fn thread_polls_after_frequent_items_but_not_after_rare_ones() {
        let mut idle = IdlePolicy::new(Duration::from_millis(10));
        assert!(polls(&mut idle, (0..200).map(|n| n * 20)) >= 390 && !idle.is_idle(), "a busy thread is not woken");
        // Between items, a thread may poll until it is idle; afterwards each item wakes it once.
        for gap in [100, 500, 1000, 2000] {
            let mut idle = IdlePolicy::new(Duration::from_millis(10));
            polls(&mut idle, (0..200).map(|n| n * 20));
            let after = polls(&mut idle, (0..100).map(|n| 5000 + n * gap));
            assert!(after <= 100 + QUEUE_BUSY_TICKS && idle.is_idle(), "every {gap} ms: {after}");
        }
        assert!(
            polls(&mut IdlePolicy::new(Duration::from_millis(10)), (4..60).map(|n| n * 1000)) < 70,
            "from the start"
        );
    }
}
