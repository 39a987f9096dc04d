//! Owns the sockets by name: maps the core's connections to links, and remembers the readiness reported by the kernel.
//!
//! A link has its own name ([`Id`]), separate from the core's [`Conn`]: the core may give a slot to a new connection
//! before the old socket is gone, and an event of the old one must not reach the new. Called only by the reactor; takes
//! no decision.

use super::transport::Transport;
use crate::base::limits;
use crate::base::seam::{Conn, Side};
use crate::base::slots::{Id, Slots};
use mio::Token;
use mio::event::Event;

/// State of a link, one bit each. Interest in all events is registered with the kernel once. After that, readiness is
/// remembered here, and interest is a question to the core.
#[derive(Copy, Clone, PartialEq, Eq, Default)]
pub struct Flags(u16);

impl Flags {
    /// Bytes or an end may be in the socket: an edge arrived, and neither WouldBlock nor a short read since.
    pub const READ: Flags = Flags(1);
    /// The socket may take bytes.
    pub const WRITE: Flags = Flags(2);
    /// The kernel hinted that the peer has ended. READ then stays until the end has been read, since data and FIN
    /// that arrive together raise one edge.
    pub const HINT: Flags = Flags(4);
    /// The kernel hinted an error, or a write failed: any end that follows counts as broken.
    pub const ERROR: Flags = Flags(8);
    /// In the run queue.
    pub const QUEUED: Flags = Flags(16);
    /// Bytes are to be written and WRITE was clear: the next writable edge continues with them.
    pub const BLOCKED: Flags = Flags(32);
    /// TCP is not connected yet.
    pub const DIALING: Flags = Flags(64);
    /// TCP is connected, the TLS handshake is under way.
    pub const SHAKING: Flags = Flags(128);
    /// The core has received `closed(Fin)`; no more bytes are read.
    pub const ENDED: Flags = Flags(256);
    /// The core has removed the connection; the last encrypted bytes are being sent.
    pub const PARTING: Flags = Flags(512);
    /// Our half has ended: the core writes no more bytes.
    pub const FINISHED: Flags = Flags(1024);
    /// A PROXY header is awaited before anything else.
    pub const PREFACE: Flags = Flags(4096);
    /// A proxy's answer is awaited before anything else. Set together with DIALING, and then with SHAKING.
    pub const TUNNEL: Flags = Flags(8192);
    /// In the queue of links to be flushed.
    pub const TOUCHED: Flags = Flags(16384);
    /// The last read took [`limits::BULK`] bytes or more: links that send less are served first.
    pub const BULK: Flags = Flags(32768);
    /// The connection is a provider's.
    const UPSTREAM: Flags = Flags(2048);

    /// True for a connection that is still being dialed.
    pub fn is_dialing(self) -> bool {
        self.0 & Flags::DIALING.0 != 0
    }

    /// Both sets together.
    pub const fn and(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

/// Socket and its state.
pub struct Link {
    /// The socket itself.
    pub transport: Transport,
    /// The slot of the core's connection.
    slot: u32,
    /// Generation of that slot.
    generation: u32,
    flags: Flags,
    /// Number of the event-loop iteration that `spent` belongs to.
    turn: u16,
    /// Bytes written in that iteration, in units of [`SPENT`] begun.
    spent: u16,
    /// Number for the client's host.
    host: u16,
}

/// Bytes per unit of the count of bytes written in an iteration.
const SPENT: usize = 16;

impl Link {
    /// Returns the core's name for it.
    pub fn conn(&self) -> Conn {
        let side = if self.has(Flags::UPSTREAM) { Side::Upstream } else { Side::Client };
        Conn { side, slot: self.slot, generation: self.generation }
    }

    /// Number for the client's host; `None` for a provider.
    pub fn host(&self) -> Option<u16> {
        (!self.has(Flags::UPSTREAM)).then_some(self.host)
    }

    /// Sets the number for the client's host.
    pub fn set_host(&mut self, host: u16) {
        self.host = host;
    }

    /// True if any of `flags` is set.
    pub fn has(&self, flags: Flags) -> bool {
        self.flags.0 & flags.0 != 0
    }

    /// Sets all of `flags`.
    pub fn set(&mut self, flags: Flags) {
        self.flags.0 |= flags.0;
    }

    /// Clears all of `flags`.
    pub fn clear(&mut self, flags: Flags) {
        self.flags.0 &= !flags.0;
    }

    /// Remembers the readiness in an event. No work is done here.
    #[inline]
    pub fn mark(&mut self, event: &Event) {
        if event.is_readable() {
            self.set(Flags::READ);
        }
        if event.is_writable() {
            self.set(Flags::WRITE);
        }
        if event.is_read_closed() {
            self.set(Flags::READ.and(Flags::HINT));
        }
        // If our own half has not ended, a hang-up means a reset.
        if event.is_error() || (event.is_write_closed() && !self.has(Flags::FINISHED)) {
            self.set(Flags::READ.and(Flags::WRITE).and(Flags::HINT).and(Flags::ERROR));
        }
    }

    /// True if reading may return bytes: ready, open, and the end not reported yet.
    #[inline]
    pub fn may_read(&self) -> bool {
        self.has(Flags::READ) && !self.has(CLOSED_TO_READ)
    }

    /// True for an open provider link that may have unread bytes.
    #[inline]
    pub fn may_have_answered(&self) -> bool {
        let both = Flags::READ.and(Flags::UPSTREAM);
        self.flags.0 & CLOSED_TO_READ.and(both).0 == both.0
    }

    /// True if other work comes before reading, or instead of it.
    #[inline]
    pub fn has_more_to_do(&self) -> bool {
        self.has(CLOSED_TO_READ)
    }

    /// Returns the bytes that may still be written in iteration number `turn`.
    pub fn room(&mut self, turn: u16) -> usize {
        if self.turn != turn {
            (self.turn, self.spent) = (turn, 0);
        }
        limits::IO_SLICE.saturating_sub(self.spent as usize * SPENT)
    }

    /// Counts `bytes` against the room of the iteration.
    pub fn spend(&mut self, bytes: usize) {
        self.spent = self.spent.saturating_add(bytes.div_ceil(SPENT).min(u16::MAX as usize) as u16);
    }
}

const CLOSED_TO_READ: Flags =
    Flags::DIALING.and(Flags::SHAKING).and(Flags::ENDED).and(Flags::PARTING).and(Flags::PREFACE);

/// All links, by their own names and by the core's.
pub struct Links {
    links: Slots<Link>,
    /// The link's slot for each slot of the core; one table for either side.
    by_conn: [Vec<u32>; 2],
}

/// Links that end between two checks whether memory can be given back.
const TRIM_EVERY: usize = 64;

/// No link: an entry of `by_conn`.
const NONE: u32 = u32::MAX;

impl Default for Links {
    fn default() -> Self {
        let table = || Vec::with_capacity(limits::ROOM_MAX);
        Links { links: Slots::<Link>::with_room(2 * limits::ROOM_MAX), by_conn: [table(), table()] }
    }
}

impl Links {
    /// Stores the socket of `conn`. An older link with the same slot is dropped: its connection is stale.
    pub fn insert(&mut self, conn: Conn, transport: Transport, flags: Flags) -> Id<Link> {
        let stale = *self.place(conn);
        if let Some((stale, _)) = self.links.tenant(stale) {
            self.links.remove(stale);
        }
        let flags = if conn.side == Side::Upstream { flags.and(Flags::UPSTREAM) } else { flags };
        let Conn { slot, generation, .. } = conn;
        let id = self.links.insert(Link { transport, slot, generation, flags, turn: 0, spent: 0, host: 0 });
        *self.place(conn) = id.slot;
        id
    }

    fn place(&mut self, conn: Conn) -> &mut u32 {
        let table = &mut self.by_conn[conn.side as usize];
        let slot = conn.slot as usize;
        if table.len() <= slot {
            table.resize(slot + 1, NONE);
        }
        &mut table[slot]
    }

    /// Returns the link of `conn`, unless that name is stale.
    pub fn find(&self, conn: Conn) -> Option<Id<Link>> {
        let slot = *self.by_conn[conn.side as usize].get(conn.slot as usize)?;
        self.links.tenant(slot).filter(|(_, link)| link.conn() == conn).map(|(id, _)| id)
    }

    /// Returns the name and the link of `conn`, unless that name is stale.
    #[inline]
    pub fn find_mut(&mut self, conn: Conn) -> Option<(Id<Link>, &mut Link)> {
        let slot = *self.by_conn[conn.side as usize].get(conn.slot as usize)?;
        self.links.tenant_mut(slot).filter(|(_, link)| link.conn() == conn)
    }

    /// All links.
    pub fn each(&self) -> impl Iterator<Item = &Link> {
        self.links.iter().map(|(_, link)| link)
    }

    /// True if there is a link `id`.
    pub fn has(&self, id: Id<Link>) -> bool {
        self.links.get(id).is_some()
    }

    /// Returns the open link with this poll token (one without [`SPECIAL`]).
    #[inline]
    pub fn named_mut(&mut self, token: Token) -> Option<(Id<Link>, &mut Link)> {
        let slot = (token.0 & ((1 << SLOT_BITS) - 1)) as u32;
        self.links.tenant_mut(slot).filter(|(id, _)| self::token(*id) == token)
    }

    /// Returns the link `id`, unless it is gone.
    pub fn get_mut(&mut self, id: Id<Link>) -> Option<&mut Link> {
        self.links.get_mut(id)
    }

    /// Removes the link; its socket closes when the link is dropped.
    pub fn remove(&mut self, id: Id<Link>) -> Option<Link> {
        let link = self.links.remove(id)?;
        // Seldom, since it visits all slots.
        if self.links.len().is_multiple_of(TRIM_EVERY) && self.links.is_sparse() {
            self.links.trim();
        }
        self.forget(link.conn(), id);
        Some(link)
    }

    /// Removes the core's name but keeps the link: the core has forgotten the connection.
    pub fn forget(&mut self, conn: Conn, id: Id<Link>) {
        let place = self.place(conn);
        if *place == id.slot {
            *place = NONE;
        }
    }

    /// Number of open sockets.
    pub fn len(&self) -> usize {
        self.links.len()
    }

    /// True when no socket is open.
    pub fn is_empty(&self) -> bool {
        self.links.is_empty()
    }
}

/// Number of bits of a poll token for a link's slot. The bits above them, except the highest, are its generation. A
/// 32-bit token has space for eleven bits of the generation (2048 values). That is enough to detect stale events: no
/// event outlives the iteration that read it, and a slot changes hands at most once per event of an iteration.
const SLOT_BITS: u32 = if usize::BITS == 64 { 32 } else { 20 };
/// Mask of the generation bits that fit into a token.
const GENERATION_MASK: u32 = ((SPECIAL - 1) >> SLOT_BITS) as u32;
const _: () = assert!(limits::EVENTS_PER_TURN <= GENERATION_MASK as usize);
/// A client connection and its upstream connection each take a slot.
const _: () = assert!(2 * limits::CONNECTIONS_MAX < 1 << SLOT_BITS);

/// Bit that distinguishes the tokens of listeners, mailbox and signals from those of links (generations stay below
/// 2^31).
pub const SPECIAL: usize = 1 << (usize::BITS - 1);

/// The poll token of a link.
pub fn token(id: Id<Link>) -> Token {
    Token(((id.generation & GENERATION_MASK) as usize) << SLOT_BITS | id.slot as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_link_is_small() {
        assert!(size_of::<Link>() <= 32, "{}", size_of::<Link>());
    }

    #[test]
    fn tokens_carry_slot_and_generation() {
        let most = ((1u64 << SLOT_BITS) - 1) as u32;
        for (slot, generation) in [(0, 0), (7, 3), (most, GENERATION_MASK), (most, 0x7fff_ffff)] {
            let token = token(Id::<Link>::new(slot, generation));
            assert_eq!(token.0 & SPECIAL, 0);
            assert_eq!((token.0 as u64 & u64::from(most)) as u32, slot);
            assert_eq!((token.0 >> SLOT_BITS) as u32, generation & GENERATION_MASK);
        }
    }

    #[test]
    fn stale_handle_finds_no_link() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let socket = || Transport::Plain(mio::net::TcpStream::connect(addr).unwrap());
        let conn = |generation| Conn { side: Side::Client, slot: 4, generation };
        let mut links = Links::default();
        let old = links.insert(conn(0), socket(), Flags::WRITE);
        assert_eq!(links.find(conn(0)), Some(old));
        assert_eq!(links.find(Conn { side: Side::Upstream, ..conn(0) }), None);
        let new = links.insert(conn(1), socket(), Flags::WRITE);
        assert_eq!((links.find(conn(0)), links.find(conn(1)), links.len()), (None, Some(new), 1));
        assert!(links.remove(old).is_none());
        assert!(links.remove(new).is_some());
        assert_eq!((links.find(conn(1)), links.is_empty()), (None, true));
    }
}
