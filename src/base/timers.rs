//! Deadlines: one live heap entry per connection, moved only when its earliest deadline gets earlier.

use super::limits::{TIMERS_EACH, TIMERS_SPARE};
use super::seam::Conn;
use super::time::Mono;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// When the heap will wake its owner; inside the connection it belongs to, which knows when it wants to be woken.
#[derive(Copy, Clone, Debug)]
pub struct Alarm {
    entry: Mono,
}

impl Default for Alarm {
    fn default() -> Self {
        Alarm { entry: Mono::NEVER }
    }
}

impl Alarm {
    /// Whether it would wake its owner too late for a deadline at `at`.
    pub fn is_after(&self, at: Mono) -> bool {
        self.entry > at
    }

    /// Whether the heap's entry at `at` is the live one.
    pub fn is_at(&self, at: Mono) -> bool {
        self.entry == at
    }
}

/// A min-heap with lazy re-arming: pushing a deadline back (an idle timeout at every token) touches no heap.
///
/// Ties fall in the order of arming, so that a simulated run repeats exactly.
#[derive(Debug, Default)]
pub struct Timers {
    heap: BinaryHeap<Reverse<(Mono, u32, Conn)>>,
    /// Begins anew after 2^32 armings: it orders what falls due in the same microsecond, no more.
    sequence: u32,
}

impl Timers {
    /// Room for the alarms of so many connections; see [`super::slots::Slots::with_room`].
    pub fn with_room(connections: usize) -> Timers {
        Timers { heap: BinaryHeap::with_capacity(connections), sequence: 0 }
    }

    /// Wakes `conn` at `due` or before; an entry that comes too early arms it again, see [`Timers::fired`].
    pub fn arm(&mut self, alarm: &mut Alarm, conn: Conn, due: Mono) {
        if due < alarm.entry {
            alarm.entry = due;
            self.sequence = self.sequence.wrapping_add(1);
            self.heap.push(Reverse((due, self.sequence, conn)));
        }
    }

    /// The earliest heap entry; its connection's own alarm may lie later, see [`Timers::fired`].
    pub fn next(&self) -> Option<(Mono, Conn)> {
        self.heap.peek().map(|Reverse((at, _, conn))| (*at, *conn))
    }

    /// Takes the earliest entry off the heap. The owner passes it to [`Timers::fired`] with the connection's alarm.
    pub fn pop(&mut self) -> Option<(Mono, Conn)> {
        self.heap.pop().map(|Reverse((at, _, conn))| (at, conn))
    }

    /// Says whether a popped entry means that `conn`, which wants to be woken at `due`, is due. A superseded entry is
    /// forgotten; one that was pushed back is armed again where it belongs. The stale entries of one connection stay
    /// few, since a new one is only pushed when it lies before the live one.
    pub fn fired(&mut self, alarm: &mut Alarm, conn: Conn, at: Mono, due: Mono, now: Mono) -> bool {
        if alarm.entry != at {
            return false;
        }
        alarm.entry = Mono::NEVER;
        if due > now && due != Mono::NEVER {
            self.arm(alarm, conn, due);
        }
        due <= now
    }

    /// Takes stale entries out once there are far more than `connections` have: each connection that ended early leaves
    /// one behind until it is due. `is_live` says of an entry whether its connection is there and it the live one.
    pub fn forget_stale(&mut self, connections: usize, is_live: impl Fn(Mono, Conn) -> bool) {
        if self.heap.len() > TIMERS_SPARE + TIMERS_EACH * connections {
            self.heap.retain(|Reverse((at, _, conn))| is_live(*at, *conn));
        }
    }

    /// Entries in the heap, live and stale.
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// True when nothing is armed.
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::seam::Side;

    fn conn(slot: u32) -> Conn {
        Conn { side: Side::Client, slot, generation: 0 }
    }

    #[test]
    fn pushing_a_deadline_back_costs_no_entry_and_fires_late() {
        let (mut timers, mut alarm) = (Timers::default(), Alarm::default());
        timers.arm(&mut alarm, conn(1), Mono(100));
        for due in 101..200 {
            timers.arm(&mut alarm, conn(1), Mono(due));
        }
        assert_eq!(timers.len(), 1);
        let (at, who) = timers.pop().unwrap();
        assert!(!timers.fired(&mut alarm, who, at, Mono(199), Mono(100)));
        let (at, who) = timers.pop().unwrap();
        assert_eq!(at, Mono(199));
        assert!(timers.fired(&mut alarm, who, at, Mono(199), Mono(200)));
        assert!(timers.is_empty());
    }

    #[test]
    fn an_earlier_deadline_supersedes_and_the_stale_entry_is_forgotten() {
        let (mut timers, mut alarm) = (Timers::default(), Alarm::default());
        timers.arm(&mut alarm, conn(1), Mono(100));
        timers.arm(&mut alarm, conn(1), Mono(50));
        let (at, who) = timers.pop().unwrap();
        assert_eq!(at, Mono(50));
        assert!(timers.fired(&mut alarm, who, at, Mono(50), Mono(50)));
        let (at, who) = timers.pop().unwrap();
        assert!(!timers.fired(&mut alarm, who, at, Mono(50), Mono(100)));
        assert!(timers.is_empty());
    }

    #[test]
    fn who_wants_to_be_woken_no_more_is_not() {
        let (mut timers, mut alarm) = (Timers::default(), Alarm::default());
        timers.arm(&mut alarm, conn(1), Mono(100));
        let (at, who) = timers.pop().unwrap();
        assert!(!timers.fired(&mut alarm, who, at, Mono::NEVER, Mono(100)));
        assert!(timers.is_empty());
        timers.arm(&mut alarm, conn(1), Mono(120));
        assert_eq!(timers.next(), Some((Mono(120), conn(1))));
    }

    #[test]
    fn stale_entries_are_taken_out_before_they_pile_up() {
        let (mut timers, mut alarm) = (Timers::default(), Alarm::default());
        timers.arm(&mut alarm, conn(0), Mono(7));
        for slot in 1..10_000 {
            timers.arm(&mut Alarm::default(), conn(slot), Mono(7));
            timers.forget_stale(1, |at, conn| conn.slot == 0 && alarm.is_at(at));
            assert!(timers.len() <= TIMERS_SPARE + TIMERS_EACH);
        }
        timers.forget_stale(0, |at, conn| conn.slot == 0 && alarm.is_at(at));
        let mut left = std::iter::from_fn(|| timers.pop());
        assert!(left.any(|(at, who)| (at, who) == (Mono(7), conn(0))), "the live one stays");
    }

    #[test]
    fn ties_fall_in_the_order_of_arming() {
        let mut timers = Timers::default();
        let mut alarms = [Alarm::default(); 3];
        for slot in [2u32, 0, 1] {
            timers.arm(&mut alarms[slot as usize], conn(slot), Mono(5));
        }
        let order: Vec<u32> = std::iter::from_fn(|| timers.pop()).map(|(_, c)| c.slot).collect();
        assert_eq!(order, [2, 0, 1]);
    }
}
