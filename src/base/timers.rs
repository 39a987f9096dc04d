//! Deadlines with at most one heap entry per connection, which moves only when its earliest deadline gets earlier.

use super::seam::{Conn, Side};
use super::time::Mono;

/// Owner of an entry: a slot of a side. Entries are removed with their connections, so no generation is needed to
/// distinguish occupants of a slot.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Owner(u32);

impl Owner {
    fn from_conn(conn: Conn) -> Owner {
        Owner(conn.slot << 1 | conn.side as u32)
    }

    /// Returns the side of the core that the connection belongs to.
    pub fn side(self) -> Side {
        if self.0 & 1 == Side::Client as u32 { Side::Client } else { Side::Upstream }
    }

    /// Returns the slot of the connection on that side.
    pub fn slot(self) -> u32 {
        self.0 >> 1
    }
}

/// Time when an owner is woken. Of two equal times, the one armed first is earlier.
#[derive(Copy, Clone, Debug)]
struct TimerEntry {
    at: Mono,
    sequence: u32,
    owner: Owner,
}

impl TimerEntry {
    fn is_before(&self, other: &TimerEntry) -> bool {
        (self.at, self.sequence) < (other.at, other.sequence)
    }
}

/// Position of an entry that is not in the heap.
const NONE: u32 = u32::MAX;

/// A binary min-heap with an index of the entry of each connection. Re-arming is lazy: postponing a deadline (an idle
/// timeout at every token) changes nothing. A connection that is woken too early is armed again for its deadline.
///
/// Equal deadlines fire in the order of arming, so that a simulated run repeats exactly.
#[derive(Debug, Default)]
pub struct Timers {
    heap: Vec<TimerEntry>,
    /// Position in the heap of the entry of each slot, for either side.
    places: [Vec<u32>; 2],
    /// Wraps around after 2^32 armings. It only orders entries that are due in the same microsecond.
    sequence: u32,
}

impl Timers {
    /// Returns timers with room for the alarms of `connections` connections on either side; see
    /// [`super::slots::Slots::with_room`].
    pub fn with_room(connections: usize) -> Timers {
        let places = || Vec::with_capacity(connections);
        Timers { heap: Vec::with_capacity(2 * connections), places: [places(), places()], sequence: 0 }
    }

    /// True if `conn` would be woken too late for a deadline at `at`.
    #[inline]
    pub fn is_late(&self, conn: Conn, at: Mono) -> bool {
        self.place(conn).is_none_or(|place| self.heap[place].at > at)
    }

    /// Wakes `conn` at `due` or earlier.
    #[inline]
    pub fn arm(&mut self, conn: Conn, due: Mono) {
        if due != Mono::NEVER && self.is_late(conn, due) {
            self.set(conn, due);
        }
    }

    fn set(&mut self, conn: Conn, at: Mono) {
        self.sequence = self.sequence.wrapping_add(1);
        let entry = TimerEntry { at, sequence: self.sequence, owner: Owner::from_conn(conn) };
        let place = self.place(conn).unwrap_or(self.heap.len());
        match self.heap.get_mut(place) {
            Some(other) => *other = entry,
            None => self.heap.push(entry),
        }
        self.rise(place);
    }

    /// Returns the earliest entry: its time and its owner. The owner may have postponed its deadline meanwhile.
    #[inline]
    pub fn next(&self) -> Option<(Mono, Owner)> {
        self.heap.first().map(|entry| (entry.at, entry.owner))
    }

    /// True if `conn`, whose entry has fired and whose deadline is `due`, is due. Otherwise it is armed again for
    /// `due`.
    pub fn fired(&mut self, conn: Conn, due: Mono, now: Mono) -> bool {
        self.forget(conn);
        if due > now {
            self.arm(conn, due);
        }
        due <= now
    }

    /// Removes the entry of `conn`.
    pub fn forget(&mut self, conn: Conn) {
        let Some(place) = self.place(conn) else { return };
        self.note(Owner::from_conn(conn), NONE);
        let Some(last) = self.heap.pop() else { return };
        if place < self.heap.len() {
            self.heap[place] = last;
            self.sink(place);
            self.rise(place);
        }
    }

    /// Drops the entry of a closed connection. It should have been removed with the connection, and would wake the loop
    /// again and again. Returns true, because others may be due.
    #[cold]
    pub fn strike(&mut self, owner: Owner) -> bool {
        debug_assert!(false, "an entry without its connection");
        self.forget(Conn { side: owner.side(), slot: owner.slot(), generation: 0 });
        true
    }

    /// Number of entries in the heap.
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// True if nothing is armed.
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    #[inline]
    fn place(&self, conn: Conn) -> Option<usize> {
        let place = *self.places[conn.side as usize].get(conn.slot as usize)?;
        (place != NONE).then_some(place as usize)
    }

    fn note(&mut self, owner: Owner, place: u32) {
        let (places, slot) = (&mut self.places[owner.side() as usize], owner.slot() as usize);
        if places.len() <= slot {
            places.resize(slot + 1, NONE);
        }
        places[slot] = place;
    }

    /// Moves the entry at `place` before all entries that are due later.
    fn rise(&mut self, mut place: usize) {
        let entry = self.heap[place];
        while place > 0 {
            let above = (place - 1) / 2;
            if !entry.is_before(&self.heap[above]) {
                break;
            }
            self.put(place, self.heap[above]);
            place = above;
        }
        self.put(place, entry);
    }

    /// Moves the entry at `place` after all entries that are due earlier.
    fn sink(&mut self, mut place: usize) {
        let entry = self.heap[place];
        loop {
            let below = 2 * place + 1;
            let Some(mut least) = self.heap.get(below).copied() else { break };
            let mut at = below;
            if let Some(other) = self.heap.get(below + 1).filter(|other| other.is_before(&least)) {
                (least, at) = (*other, below + 1);
            }
            if !least.is_before(&entry) {
                break;
            }
            self.put(place, least);
            place = at;
        }
        self.put(place, entry);
    }

    fn put(&mut self, place: usize, entry: TimerEntry) {
        self.heap[place] = entry;
        self.note(entry.owner, place as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::rng::Rng;
    use std::collections::BTreeMap;

    fn conn(slot: u32) -> Conn {
        Conn { side: Side::Client, slot, generation: 0 }
    }

    fn woken(timers: &mut Timers) -> Option<(Mono, u32)> {
        let (at, owner) = timers.next()?;
        timers.forget(conn(owner.slot()));
        Some((at, owner.slot()))
    }

    #[test]
    fn postponing_a_deadline_adds_no_entry() {
        let mut timers = Timers::default();
        for due in 100..200 {
            timers.arm(conn(1), Mono(due));
        }
        assert_eq!((timers.len(), timers.next().map(|(at, _)| at)), (1, Some(Mono(100))));
        assert!(!timers.fired(conn(1), Mono(199), Mono(100)));
        assert_eq!(timers.next().map(|(at, _)| at), Some(Mono(199)));
        assert!(timers.fired(conn(1), Mono(199), Mono(200)));
        assert!(timers.is_empty());
    }

    #[test]
    fn earlier_deadline_replaces_the_later_one() {
        let mut timers = Timers::default();
        timers.arm(conn(1), Mono(100));
        assert!(timers.is_late(conn(1), Mono(50)) && !timers.is_late(conn(1), Mono(100)));
        timers.arm(conn(1), Mono(50));
        assert_eq!((timers.len(), timers.next().map(|(at, _)| at)), (1, Some(Mono(50))));
        assert!(timers.fired(conn(1), Mono(50), Mono(50)));
        assert!(timers.is_empty());
    }

    #[test]
    fn forgotten_connection_is_not_woken() {
        let mut timers = Timers::default();
        timers.arm(conn(1), Mono(100));
        assert!(!timers.fired(conn(1), Mono::NEVER, Mono(100)));
        assert!(timers.is_empty());
        timers.arm(conn(1), Mono(120));
        timers.forget(conn(1));
        timers.forget(conn(7));
        assert_eq!(timers.next(), None);
    }

    #[test]
    fn both_sides_have_separate_slots() {
        let mut timers = Timers::default();
        let provider = Conn { side: Side::Upstream, slot: 1, generation: 9 };
        timers.arm(conn(1), Mono(7));
        timers.arm(provider, Mono(6));
        let owner = timers.next().unwrap().1;
        assert_eq!((owner.side(), owner.slot()), (Side::Upstream, 1));
        timers.forget(provider);
        assert_eq!(timers.next().unwrap().1.side(), Side::Client);
    }

    #[test]
    fn equal_deadlines_fire_in_the_order_of_arming() {
        let mut timers = Timers::default();
        for slot in [2u32, 0, 1] {
            timers.arm(conn(slot), Mono(5));
        }
        let order: Vec<u32> = std::iter::from_fn(|| woken(&mut timers)).map(|(_, slot)| slot).collect();
        assert_eq!(order, [2, 0, 1]);
    }

    #[test]
    fn random_timers_fire_in_order() {
        let (mut rng, mut timers, mut known) = (Rng::new([5; 32]), Timers::default(), BTreeMap::new());
        for step in 0..20_000 {
            let (slot, at) = (rng.below(60) as u32, Mono(rng.below(1000)));
            match rng.below(4) {
                0 => {
                    timers.forget(conn(slot));
                    known.remove(&slot);
                }
                1 => {
                    let (first, found) = (known.values().min().copied(), woken(&mut timers));
                    assert_eq!(found.map(|(at, _)| at), first);
                    assert_eq!(found.and_then(|(_, slot)| known.remove(&slot)), first);
                }
                _ => {
                    timers.arm(conn(slot), at);
                    let due = known.entry(slot).or_insert(at);
                    *due = at.min(*due);
                }
            }
            assert_eq!(timers.len(), known.len(), "step {step}");
        }
        let left: Vec<Mono> = std::iter::from_fn(|| woken(&mut timers)).map(|(at, _)| at).collect();
        assert!(left.is_sorted() && left.len() == known.len());
    }
}
