//! Queues of the event loop: links to be served, bulk senders, links in a TLS handshake, and links to be flushed. A
//! link is at most once in one of the first three, and at most once in the last. Also the share of each host in the
//! handshakes of one iteration.

use super::super::links::{Flags, Link};
use crate::base::limits::LINKS_ROOM;
use crate::base::seam::Conn;
use crate::base::slots::Id;
use std::collections::VecDeque;
use std::net::IpAddr;

/// TLS handshakes continued in one event-loop iteration: each costs up to a millisecond of arithmetic.
const SHAKES_PER_TURN: usize = 16;
/// TLS handshakes of one host continued in one event-loop iteration, so that a flood of them leaves time for others.
const SHAKES_PER_HOST: usize = 4;
/// One in this number of served connections is a bulk sender, however many others wait.
const BULK_SHARE: usize = 16;

/// Links to be served. Links in a handshake have a separate queue, since a flood of them can last for many iterations
/// and no other link may wait behind them. Links that send much have one too, since a round over all of them may take
/// long and a small request must not wait for it.
pub(super) struct RunQueue {
    /// Cheaper than a ring, which wraps around at each step.
    ready: Vec<Id<Link>>,
    /// Number of the first ones in `ready` that were served.
    served: usize,
    bulk: VecDeque<Id<Link>>,
    shaking: VecDeque<Id<Link>>,
}

impl Default for RunQueue {
    fn default() -> RunQueue {
        let ready = Vec::with_capacity(LINKS_ROOM);
        RunQueue { ready, served: 0, bulk: VecDeque::new(), shaking: VecDeque::new() }
    }
}

impl RunQueue {
    /// Puts a link into its queue, once.
    #[inline]
    pub(super) fn line_up(&mut self, id: Id<Link>, link: &mut Link) {
        if link.has(Flags::QUEUED) {
            return;
        }
        link.set(Flags::QUEUED);
        match link.has(Flags::DIALING.and(Flags::SHAKING).and(Flags::BULK)) {
            true => self.line_up_apart(id, link),
            false => self.ready.push(id),
        }
    }

    #[inline(never)]
    fn line_up_apart(&mut self, id: Id<Link>, link: &Link) {
        // A dial has a deadline, and the queue may be longer than an iteration.
        if link.has(Flags::DIALING) {
            self.forget_served();
            self.ready.insert(0, id);
        } else if link.has(Flags::SHAKING) {
            self.shaking.push_back(id);
        } else {
            self.bulk.push_back(id);
        }
    }

    /// Forgets the links that were served.
    #[inline]
    pub(super) fn forget_served(&mut self) {
        match self.served == self.ready.len() {
            true => self.ready.clear(),
            false => drop(self.ready.drain(..self.served)),
        }
        self.served = 0;
    }

    /// Number of queued links that are not in a handshake.
    #[inline]
    pub(super) fn waiting(&self) -> usize {
        self.ready.len() - self.served + self.bulk.len()
    }

    /// Removes and returns the link to be served as number `count` of an iteration.
    #[inline]
    pub(super) fn next(&mut self, count: usize) -> Option<Id<Link>> {
        let turn = if count.is_multiple_of(BULK_SHARE) { self.bulk.pop_front() } else { None };
        turn.or_else(|| self.next_ready()).or_else(|| self.bulk.pop_front())
    }

    #[inline]
    fn next_ready(&mut self) -> Option<Id<Link>> {
        let id = *self.ready.get(self.served)?;
        self.served += 1;
        Some(id)
    }

    /// Number of queued links in a handshake.
    #[inline]
    pub(super) fn shaking(&self) -> usize {
        self.shaking.len()
    }

    /// Removes and returns the next link in a handshake.
    pub(super) fn next_shaking(&mut self) -> Option<Id<Link>> {
        let next = self.shaking.pop_front();
        if self.shaking.is_empty() {
            self.shaking = VecDeque::new();
        }
        next
    }

    /// All queued links.
    pub(super) fn ids(&self) -> impl Iterator<Item = Id<Link>> {
        self.ready[self.served..].iter().chain(&self.bulk).chain(&self.shaking).copied()
    }

    /// True if no link waits.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.waiting() == 0 && self.shaking.is_empty()
    }
}

/// Number for the host of a peer, by its address, or of IPv6 by the first half, all of which one host may have. Hosts
/// with equal numbers share.
pub(super) fn host(address: IpAddr) -> u16 {
    let half = match address.to_canonical() {
        IpAddr::V4(address) => u64::from(address.to_bits()),
        IpAddr::V6(address) => (address.to_bits() >> 64) as u64,
    };
    let folded = half ^ (half >> 32);
    (folded ^ (folded >> 16)) as u16
}

/// Handshakes continued in one event-loop iteration.
#[derive(Default)]
pub(super) struct Shakes {
    /// Hosts of the clients whose handshakes were continued.
    hosts: [u16; SHAKES_PER_TURN],
    count: usize,
}

impl Shakes {
    /// Begins an iteration, in which none has been continued.
    #[inline]
    pub(super) fn begin(&mut self) {
        self.count = 0;
    }

    /// True if no more may be continued.
    pub(super) fn are_spent(&self) -> bool {
        self.count == SHAKES_PER_TURN
    }

    /// True if one more may be continued; counts it. A handshake of ours has no host.
    pub(super) fn takes(&mut self, host: Option<u16>) -> bool {
        let known = &self.hosts[..self.count];
        let share = host.map_or(0, |host| known.iter().filter(|known| **known == host).count());
        if self.count == SHAKES_PER_TURN || share >= SHAKES_PER_HOST {
            return false;
        }
        self.hosts[self.count] = host.unwrap_or_default();
        self.count += 1;
        true
    }
}

/// Puts a link into the queue of links to be flushed, once.
#[inline]
pub(super) fn touch(touched: &mut Vec<Conn>, link: &mut Link) {
    if !link.has(Flags::TOUCHED) {
        link.set(Flags::TOUCHED);
        touched.push(link.conn());
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::links::Links;
    use super::super::super::transport::Transport;
    use super::*;
    use crate::base::seam::Side;

    #[test]
    fn no_link_waits_behind_handshakes() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = || Transport::Plain(mio::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap());
        let (mut links, mut queue) = (Links::default(), RunQueue::default());
        let mut add = |queue: &mut RunQueue, slot, flags| {
            let id = links.insert(Conn { side: Side::Client, slot, generation: 0 }, socket(), flags);
            (0..2).for_each(|_| queue.line_up(id, links.get_mut(id).unwrap()));
            id
        };
        let shaking = [add(&mut queue, 0, Flags::SHAKING), add(&mut queue, 1, Flags::SHAKING.and(Flags::READ))];
        let plain = add(&mut queue, 2, Flags::READ);
        let dial = add(&mut queue, 3, Flags::DIALING.and(Flags::SHAKING));
        assert_eq!(queue.ready[queue.served..], [dial, plain]);
        assert_eq!(queue.shaking, shaking);
        let bulk = [4, 5].map(|slot| add(&mut queue, slot, Flags::READ.and(Flags::BULK)));
        let last = add(&mut queue, 6, Flags::READ);
        assert_eq!(queue.waiting(), 5);
        let order = [dial, bulk[0], plain, last, bulk[1]].map(Some);
        assert_eq!([1, BULK_SHARE, 2, 3, 4].map(|count| queue.next(count)), order);
        assert!(queue.next(1).is_none());
    }

    #[test]
    fn a_burst_leaves_no_storage_behind() {
        let (mut queue, links) = (RunQueue::default(), LINKS_ROOM as u32);
        let before = queue.ready.as_ptr();
        queue.ready.extend((0..links).map(|slot| Id::new(slot, 0)));
        assert_eq!(queue.ready.as_ptr(), before, "grown");
        queue.shaking.extend((0..links).map(|slot| Id::new(slot, 0)));
        (0..links).for_each(|_| assert!(queue.next_shaking().is_some()));
        assert_eq!(queue.shaking.capacity(), 0);
    }

    #[test]
    fn one_host_cannot_use_all_handshakes() {
        let mut shakes = Shakes::default();
        let taken = |shakes: &mut Shakes, host| (0..100).filter(|_| shakes.takes(host)).count();
        assert_eq!(taken(&mut shakes, Some(1)), SHAKES_PER_HOST);
        assert_eq!(taken(&mut shakes, Some(2)), SHAKES_PER_HOST, "the flood of another host must not matter");
        assert_eq!(taken(&mut shakes, None), SHAKES_PER_TURN - 2 * SHAKES_PER_HOST);
        assert!(!shakes.takes(Some(3)));
    }

    #[test]
    fn host_is_identified_by_address_or_network() {
        let number = |text: &str| host(text.parse().unwrap());
        assert_eq!(number("10.0.0.1"), number("::ffff:10.0.0.1"));
        assert_eq!(number("2001:db8::1"), number("2001:db8::2"));
        assert_ne!(number("10.0.0.1"), number("10.0.0.2"));
        assert_ne!(number("2001:db8::1"), number("2001:db8:0:1::1"));
    }
}
