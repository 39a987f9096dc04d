//! Owns the way from the loop out to one helper thread: a lane that the loop can fill without a system call.
//!
//! A condition variable would cost the loop a futex call per hand-over. So a busy thread is never woken: it looks at
//! its lane every few milliseconds by itself. Only when the lane has stayed empty for `limits::LANE_IDLE_LOOKS` looks
//! does it lie down, and the first thing laid into the lane then wakes it, at the price of one call.

use crate::base::limits;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

struct State<T> {
    items: T,
    asleep: bool,
    hurry: bool,
    closed: bool,
}

/// Both ends of a lane hold one; `T` is a vector of rows or of bytes.
pub struct Lane<T>(Arc<(Mutex<State<T>>, Condvar)>);

impl<T> Clone for Lane<T> {
    fn clone(&self) -> Self {
        Lane(self.0.clone())
    }
}

/// What the helper thread found.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Look {
    /// Items were taken.
    Found,
    /// Nothing came while waiting.
    Nothing,
    /// The lane is empty and closed: the thread is to end.
    Closed,
}

/// The helper thread's patience; counts its looks at an empty lane.
#[derive(Debug)]
pub struct Patience {
    tick: Duration,
    empty_looks: u32,
}

impl Patience {
    /// For a thread that, while busy, looks every `tick`.
    pub fn new(tick: Duration) -> Patience {
        Patience { tick, empty_looks: 0 }
    }
}

impl<T: Default> Default for Lane<T> {
    fn default() -> Self {
        Lane::new(T::default())
    }
}

impl<T> Lane<T> {
    /// A lane that begins with `items`: empty, but with storage of its own.
    pub fn new(items: T) -> Lane<T> {
        let state = State { items, asleep: false, hurry: false, closed: false };
        Lane(Arc::new((Mutex::new(state), Condvar::new())))
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets `add` put something into the lane and returns what it says. Wakes the thread only if it lies down, or if
    /// the matter is `urgent`.
    pub fn put<R>(&self, urgent: bool, add: impl FnOnce(&mut T) -> R) -> R {
        let mut state = self.lock();
        let result = add(&mut state.items);
        let wakes = state.asleep || urgent;
        if wakes {
            (state.asleep, state.hurry) = (false, true);
        }
        drop(state);
        // Outside the lock: the thread that this wakes would run straight into it.
        if wakes {
            self.0.1.notify_one();
        }
        result
    }

    /// Nothing more will come; the thread ends after it has taken what is there.
    pub fn close(&self) {
        self.lock().closed = true;
        self.0.1.notify_one();
    }

    /// Whether [`Lane::close`] was called.
    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// For the helper thread: waits for items, at most about `wait`, and swaps them with the empty `into`. `empty`
    /// says whether there are none. A busy thread sleeps its tick out although items lie there: so they gather, and
    /// the loop is not disturbed by a thread that is always awake.
    pub fn look(&self, into: &mut T, patience: &mut Patience, wait: Duration, empty: impl Fn(&T) -> bool) -> Look {
        let mut state = self.lock();
        let rests = patience.empty_looks >= limits::LANE_IDLE_LOOKS;
        let at_once = state.closed || state.hurry || (rests && !empty(&state.items));
        if !at_once {
            state.asleep = rests;
            let tick = if rests { wait } else { wait.min(patience.tick) };
            state = self.0.1.wait_timeout(state, tick).unwrap_or_else(PoisonError::into_inner).0;
            state.asleep = false;
        }
        state.hurry = false;
        match (empty(&state.items), state.closed) {
            (false, _) => {
                patience.empty_looks = 0;
                std::mem::swap(&mut state.items, into);
                Look::Found
            }
            (true, true) => Look::Closed,
            (true, false) => {
                patience.empty_looks = patience.empty_looks.saturating_add(1);
                Look::Nothing
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    fn take(lane: &Lane<Vec<u32>>, patience: &mut Patience, wait: Duration) -> (Look, Vec<u32>) {
        let mut got = Vec::new();
        let look = lane.look(&mut got, patience, wait, Vec::is_empty);
        (look, got)
    }

    #[test]
    fn items_come_in_order_and_the_end_comes_after_them() {
        let (lane, mut patience) = (Lane::<Vec<u32>>::default(), Patience::new(Duration::from_millis(1)));
        lane.put(false, |items| items.extend([1, 2]));
        lane.put(false, |items| items.push(3));
        lane.close();
        assert_eq!(take(&lane, &mut patience, Duration::ZERO), (Look::Found, vec![1, 2, 3]));
        assert_eq!(take(&lane, &mut patience, Duration::from_secs(9)), (Look::Closed, vec![]));
    }

    #[test]
    fn a_thread_that_lies_down_is_woken_by_the_first_item() {
        let lane = Lane::<Vec<u32>>::default();
        let other = lane.clone();
        let helper = std::thread::spawn(move || {
            let mut patience = Patience { tick: Duration::ZERO, empty_looks: limits::LANE_IDLE_LOOKS };
            take(&other, &mut patience, Duration::from_secs(30))
        });
        let began = Instant::now();
        while !lane.lock().asleep {
            std::thread::yield_now();
        }
        lane.put(false, |items| items.push(5));
        assert_eq!(helper.join().unwrap(), (Look::Found, vec![5]));
        assert!(began.elapsed() < Duration::from_secs(20));
    }

    #[test]
    fn a_busy_thread_lets_items_gather_unless_they_are_urgent() {
        let lane = Lane::<Vec<u32>>::default();
        let tick = Duration::from_secs(1);
        let mut patience = Patience::new(tick);
        let began = Instant::now();
        lane.put(false, |items| items.push(1));
        let other = lane.clone();
        let helper = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            other.put(false, |items| items.push(2));
        });
        assert_eq!(take(&lane, &mut patience, Duration::from_secs(9)), (Look::Found, vec![1, 2]));
        assert!(began.elapsed() >= tick);
        helper.join().unwrap();
        patience.tick = Duration::from_secs(60);
        lane.put(true, |items| items.push(3));
        assert_eq!(take(&lane, &mut patience, Duration::from_secs(60)), (Look::Found, vec![3]));
        assert!(began.elapsed() < Duration::from_secs(30));
    }
}
