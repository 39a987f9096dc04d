//! Connections by peer address, and the choice of the connection to close for a new one: of those without credentials,
//! the one that has been idle longest, of the address with the most of them. The cost of each event does not depend on
//! the number of connections. Closes nothing itself.
//!
//! Two kinds of lists use two tables: the strangers of an address use [`Seats`], and the addresses with equal numbers
//! of strangers use the table of addresses. In both, the least recently active is first.

use slab::Slab;
use std::collections::HashMap;
use std::net::IpAddr;

/// Key of a peer's host: an IPv4 address, or the 64-bit network prefix of an IPv6 address, since a host controls all
/// addresses of its network.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct PeerKey(u64);

impl PeerKey {
    /// Returns the key of `ip`.
    pub(crate) fn from_ip(ip: IpAddr) -> PeerKey {
        match ip.to_canonical() {
            IpAddr::V4(ip) => PeerKey(u64::from(u32::from(ip))),
            IpAddr::V6(ip) => PeerKey((u128::from(ip) >> 64) as u64),
        }
    }
}

/// Index of no entry.
const NONE: u32 = u32::MAX;
/// In `next` of a connection with a credential: it is in no list.
const KNOWN: u32 = u32::MAX - 1;

/// The neighbours of an entry of a list.
#[derive(Copy, Clone, Debug)]
struct Neighbours {
    previous: u32,
    next: u32,
}

const UNLINKED: Neighbours = Neighbours { previous: NONE, next: NONE };

/// The ends of a list.
#[derive(Copy, Clone, Debug)]
struct ListEnds {
    first: u32,
    last: u32,
}

const EMPTY: ListEnds = ListEnds { first: NONE, last: NONE };

/// A table whose entries are in lists.
trait Linked {
    fn links(&mut self, at: u32) -> &mut Neighbours;
}

impl ListEnds {
    fn push(&mut self, table: &mut impl Linked, at: u32) {
        *table.links(at) = Neighbours { previous: self.last, next: NONE };
        match self.last {
            NONE => self.first = at,
            last => table.links(last).next = at,
        }
        self.last = at;
    }

    fn remove(&mut self, table: &mut impl Linked, at: u32) {
        let Neighbours { previous, next } = std::mem::replace(table.links(at), UNLINKED);
        match previous {
            NONE => self.first = next,
            previous => table.links(previous).next = next,
        }
        match next {
            NONE => self.last = previous,
            next => table.links(next).previous = previous,
        }
    }
}

/// Entries by slot of a connection, of either listener.
#[derive(Debug, Default)]
pub(crate) struct Seats(Vec<Seat>);

/// A connection: its address, and its neighbours among that address' strangers.
#[derive(Copy, Clone, Debug)]
struct Seat {
    links: Neighbours,
    host: u32,
}

impl Seats {
    /// Creates a table with room for `connections`; see [`crate::base::slots::Slots::with_room`].
    pub(crate) fn with_room(connections: usize) -> Seats {
        Seats(Vec::with_capacity(connections))
    }
}

impl Linked for Seats {
    fn links(&mut self, at: u32) -> &mut Neighbours {
        &mut self.0[at as usize].links
    }
}

/// An address with connections.
#[derive(Debug)]
struct Host {
    key: PeerKey,
    /// Number of connections.
    held: u32,
    /// Number of connections without a credential.
    strangers: u32,
    list: ListEnds,
    /// Neighbours among the addresses with as many strangers.
    links: Neighbours,
}

impl Linked for Slab<Host> {
    fn links(&mut self, at: u32) -> &mut Neighbours {
        &mut self[at as usize].links
    }
}

/// The connections of one listener, or of several that share a bound.
#[derive(Debug)]
pub(crate) struct ListenerConnections {
    held: usize,
    strangers: usize,
    index: HashMap<PeerKey, u32, ahash::RandomState>,
    hosts: Slab<Host>,
    /// Addresses by number of strangers.
    ranks: Vec<ListEnds>,
    /// The highest rank with an address in it; 0 if there is no stranger.
    top: usize,
}

impl ListenerConnections {
    /// Returns an empty table. `hasher` prevents strangers from choosing addresses that collide.
    pub(crate) fn new(hasher: ahash::RandomState) -> ListenerConnections {
        let (index, hosts) = (HashMap::with_hasher(hasher), Slab::new());
        ListenerConnections { held: 0, strangers: 0, index, hosts, ranks: Vec::new(), top: 0 }
    }

    /// Gives the memory of ranks back if there is no stranger.
    pub(crate) fn trim(&mut self) {
        if self.strangers == 0 {
            self.ranks = Vec::new();
        }
    }

    /// Number of connections.
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    /// Number of connections with a credential.
    pub(crate) fn known(&self) -> usize {
        self.held - self.strangers
    }

    /// Number of connections from `host`.
    pub(crate) fn held_by(&self, host: PeerKey) -> usize {
        self.index.get(&host).map_or(0, |at| self.hosts[*at as usize].held as usize)
    }

    /// Records a new connection from `host` in `slot`: a stranger.
    pub(crate) fn enter(&mut self, slot: u32, host: PeerKey, seats: &mut Seats) {
        let hosts = &mut self.hosts;
        let new = || Host { key: host, held: 0, strangers: 0, list: EMPTY, links: UNLINKED };
        let at = *self.index.entry(host).or_insert_with(|| hosts.insert(new()) as u32);
        if seats.0.len() <= slot as usize {
            seats.0.resize(slot as usize + 1, Seat { links: UNLINKED, host: NONE });
        }
        seats.0[slot as usize] = Seat { links: UNLINKED, host: at };
        self.held += 1;
        self.hosts[at as usize].held += 1;
        self.add(slot, at, seats);
    }

    /// Records the end of the connection in `slot`.
    pub(crate) fn leave(&mut self, slot: u32, seats: &mut Seats) {
        let at = seats.0[slot as usize].host;
        if seats.0[slot as usize].links.next != KNOWN {
            self.take(slot, at, seats);
        }
        self.held -= 1;
        let host = &mut self.hosts[at as usize];
        host.held -= 1;
        if host.held == 0 {
            self.index.remove(&host.key);
            self.hosts.remove(at as usize);
        }
    }

    /// Records a request on the connection in `slot`. `known`: it has sent a valid credential.
    pub(crate) fn acts(&mut self, slot: u32, known: bool, seats: &mut Seats) {
        let Seat { links, host } = seats.0[slot as usize];
        if links.next != KNOWN {
            self.take(slot, host, seats);
        }
        match known {
            true => seats.0[slot as usize].links.next = KNOWN,
            false => self.add(slot, host, seats),
        }
    }

    /// Returns the stranger to close next, only of `host` if one is given. It is moved to the end.
    pub(crate) fn next_to_go(&mut self, host: Option<PeerKey>, seats: &mut Seats) -> Option<u32> {
        let at = match host {
            Some(host) => *self.index.get(&host)?,
            None => self.ranks.get(self.top)?.first,
        };
        let slot = self.hosts.get(at as usize)?.list.first;
        if slot == NONE {
            return None;
        }
        self.acts(slot, false, seats);
        Some(slot)
    }

    fn add(&mut self, slot: u32, at: u32, seats: &mut Seats) {
        self.strangers += 1;
        self.hosts[at as usize].list.push(seats, slot);
        self.rank(at, 1);
    }

    fn take(&mut self, slot: u32, at: u32, seats: &mut Seats) {
        self.strangers -= 1;
        self.hosts[at as usize].list.remove(seats, slot);
        self.rank(at, -1);
    }

    /// Records that the address at `at` has one stranger more or less.
    fn rank(&mut self, at: u32, change: i32) {
        let before = self.hosts[at as usize].strangers;
        let now = before.saturating_add_signed(change);
        self.hosts[at as usize].strangers = now;
        let (before, now) = (before as usize, now as usize);
        if before > 0 {
            self.ranks[before].remove(&mut self.hosts, at);
        }
        if self.ranks.len() <= now {
            self.ranks.resize(now + 1, EMPTY);
        }
        if now > 0 {
            self.ranks[now].push(&mut self.hosts, at);
        }
        // An address moves by one rank at a time, so the highest does too.
        if now > self.top || (before == self.top && self.ranks[before].first == NONE) {
            self.top = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::rng::Rng;

    fn places() -> (ListenerConnections, Seats) {
        (ListenerConnections::new(ahash::RandomState::with_seeds(1, 2, 3, 4)), Seats::default())
    }

    fn host(number: u64) -> PeerKey {
        PeerKey::from_ip(IpAddr::from([10, 0, 0, number as u8]))
    }

    /// Expected contents of the table: slot, address, true if known, and time of its last activity.
    type Model = Vec<(u32, u64, bool, u64)>;

    fn strangers_of(model: &Model, host: u64) -> impl Iterator<Item = &(u32, u64, bool, u64)> {
        model.iter().filter(move |one| one.1 == host && !one.2)
    }

    /// True if `slot` is the right one to go, of the address `of` if one is given.
    fn is_right(model: &Model, of: Option<u64>, slot: Option<u32>) -> bool {
        let Some(slot) = slot else {
            return of.map_or(model.iter().all(|one| one.2), |of| strangers_of(model, of).count() == 0);
        };
        let Some((_, host, known, acted)) = model.iter().find(|one| one.0 == slot) else { return false };
        let count = strangers_of(model, *host).count();
        let is_busiest = (0..HOSTS).all(|other| strangers_of(model, other).count() <= count);
        let is_idlest = strangers_of(model, *host).all(|one| one.3 >= *acted);
        !known && is_idlest && of.map_or(is_busiest, |of| of == *host)
    }

    const HOSTS: u64 = 5;

    #[test]
    fn longest_idle_stranger_of_busiest_address_is_closed() {
        for seed in 0..40u8 {
            let (mut places, mut seats) = places();
            let (mut rng, mut model) = (Rng::new([seed; 32]), Model::new());
            let mut free: Vec<u32> = (0..24).rev().collect();
            for time in 0..600 {
                let at = rng.below(model.len().max(1) as u64) as usize;
                match rng.below(5) {
                    0 | 1 if !free.is_empty() => {
                        let (slot, number) = (free.pop().unwrap(), rng.below(HOSTS).min(rng.below(HOSTS)));
                        places.enter(slot, host(number), &mut seats);
                        model.push((slot, number, false, time));
                    }
                    2 if !model.is_empty() => {
                        let (slot, ..) = model.swap_remove(at);
                        places.leave(slot, &mut seats);
                        free.push(slot);
                    }
                    3 if !model.is_empty() => {
                        (model[at].2, model[at].3) = (rng.below(3) == 0, time);
                        places.acts(model[at].0, model[at].2, &mut seats);
                    }
                    _ => {
                        let of = (rng.below(3) == 0).then(|| rng.below(HOSTS));
                        let named = places.next_to_go(of.map(host), &mut seats);
                        assert!(is_right(&model, of, named), "{named:?} of {of:?} in {model:?}");
                        model.iter_mut().filter(|one| Some(one.0) == named).for_each(|one| one.3 = time);
                    }
                }
                let known = model.iter().filter(|one| one.2).count();
                assert_eq!((places.held(), places.known()), (model.len(), known));
                for number in 0..HOSTS {
                    let held = model.iter().filter(|one| one.1 == number).count();
                    assert_eq!(places.held_by(host(number)), held);
                }
            }
            model.drain(..).for_each(|one| places.leave(one.0, &mut seats));
            assert!(places.index.is_empty() && places.hosts.is_empty() && places.top == 0);
        }
    }

    #[test]
    fn addresses_with_equal_counts_take_turns() {
        let (mut places, mut seats) = places();
        (0..4).for_each(|slot| places.enter(slot, host(u64::from(slot)), &mut seats));
        places.acts(0, false, &mut seats);
        let named: Vec<_> = (0..5).map(|_| places.next_to_go(None, &mut seats).unwrap()).collect();
        assert_eq!(named, [1, 2, 3, 0, 1]);
    }
}
