//! The world around one gateway, as transcripts, the simulator and fuzzing drive it: connections, what the gateway asks
//! for, and a clock that only its owner advances. Notices when the gateway would make an event loop spin, or lose a
//! wake-up. Each driver adds what it records and what it leaves to chance.

use super::setting::later;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use tollgate::base::seam::{Action, Conn, Core, Ending, Reply, Shut};
use tollgate::base::time::Now;
use tollgate::gateway::Gateway;
use tollgate::gateway::orders::{Notice, Order, Work};
use tollgate::policy::keys::{KeyAnswer, ShownKey};
use tollgate::policy::ledger::LedgerNotice;

/// Maximum number of bytes that an event loop reads at once.
pub const SLICE: usize = 65_536;

/// A connection: bytes in flight to the gateway, and its end.
#[derive(Debug)]
pub struct Pipe {
    pub conn: Conn,
    /// Bytes in flight to the gateway.
    pub wire: VecDeque<u8>,
    /// Set if our side has ended the connection, which takes effect when `wire` is empty.
    pub ending: Option<Ending>,
    /// True if the gateway has been notified of the end.
    pub told: bool,
    /// True if the gateway has announced that it writes nothing more.
    pub finished: bool,
    /// Set if the gateway has closed it.
    pub closed: Option<Shut>,
    /// Time when bytes were last taken from the gateway.
    pub read_at: u64,
    /// Number of waiting bytes when the gateway stopped reading. A real event loop then reads only after more bytes
    /// have arrived or after an order.
    pub stopped_at: Option<usize>,
}

impl Pipe {
    pub fn new(conn: Conn, now: Now) -> Pipe {
        Pipe {
            conn,
            wire: VecDeque::new(),
            ending: None,
            told: false,
            finished: false,
            closed: None,
            read_at: now.mono.0,
            stopped_at: None,
        }
    }

    /// Returns true if neither side has ended it.
    pub fn is_open(&self) -> bool {
        self.closed.is_none() && self.ending.is_none()
    }

    fn is_stopped(&self) -> bool {
        self.stopped_at.is_some_and(|stopped_at| self.wire.len() <= stopped_at)
    }

    /// Delivers up to `most` bytes to the gateway, or the end after the last. Returns false if nothing changed.
    pub fn deliver(&mut self, gateway: &mut Gateway, most: usize, now: Now) -> bool {
        if self.closed.is_some() || self.told {
            return false;
        }
        if self.wire.is_empty() || self.ending == Some(Ending::Broken) {
            let Some(how) = self.ending else { return false };
            self.told = true;
            gateway.closed(self.conn, how, now);
            return true;
        }
        if self.is_stopped() {
            return false;
        }
        if !gateway.wants_read(self.conn) {
            self.stopped_at = Some(self.wire.len());
            return false;
        }
        self.stopped_at = None;
        let count = self.wire.len().min(most);
        let bytes: Vec<u8> = self.wire.drain(..count).collect();
        gateway.bytes(self.conn, &bytes, now);
        true
    }

    /// True if the gateway wants to read bytes that a real event loop would not read.
    fn is_lost(&self, gateway: &Gateway) -> bool {
        let waits = self.closed.is_none() && !self.told && !self.wire.is_empty();
        waits && self.is_stopped() && gateway.wants_read(self.conn)
    }

    /// Takes up to `most` bytes that the gateway has for this connection.
    pub fn take(&mut self, gateway: &mut Gateway, most: usize, now: Now) -> Vec<u8> {
        if self.closed.is_some() || (self.told && self.ending == Some(Ending::Broken)) {
            return Vec::new();
        }
        let unsent = gateway.unsent(self.conn);
        let bytes = unsent[..unsent.len().min(most)].to_vec();
        if !bytes.is_empty() {
            assert!(!self.finished, "the gateway wrote to {:?} after it had announced the end", self.conn);
            self.read_at = now.mono.0;
            self.stopped_at = None;
            gateway.wrote(self.conn, bytes.len(), now);
        }
        bytes
    }
}

/// The machine that a gateway runs on: its clock, and what the gateway has asked for and not received.
pub struct Machine {
    pub gateway: Gateway,
    pub now: Now,
    /// Hosts whose addresses are asked for.
    pub asked: Vec<(Arc<str>, u16)>,
    /// Work of the helper threads.
    pub works: Vec<Work>,
    /// Keys that the ledger must look up.
    pub lookups: Vec<ShownKey>,
    /// True if no more clients are accepted.
    pub draining: bool,
    /// True if the gateway has requested its end.
    pub exit: bool,
}

impl Machine {
    pub fn new(gateway: Gateway, now: Now) -> Machine {
        let (asked, works, lookups) = (Vec::new(), Vec::new(), Vec::new());
        Machine { gateway, now, asked, works, lookups, draining: false, exit: false }
    }

    pub fn notice(&mut self, notice: Notice) {
        self.gateway.notice(notice, self.now);
    }

    pub fn ledger(&mut self, notice: LedgerNotice) {
        self.notice(Notice::Ledger(notice));
    }

    pub fn reply(&mut self, reply: Reply) {
        self.gateway.reply(reply, self.now);
    }

    /// Does a piece of work, and returns its result.
    pub fn work(&mut self, work: Work) {
        self.notice(Notice::Worked(work.run()));
    }

    /// Answers the lookup of a key.
    pub fn looked_up(&mut self, key: ShownKey, answer: KeyAnswer) {
        self.ledger(LedgerNotice::LookedUp(vec![(key, answer)]));
    }

    fn is_due(&self) -> bool {
        self.gateway.next_deadline().is_some_and(|due| due <= self.now.mono)
    }
}

/// A driver of one gateway.
pub trait Driver {
    /// Maximum number of rounds until the gateway must be idle; more mean an endless loop.
    const ROUNDS_MAX: usize = 100_000;

    /// Returns the machine, and all open connections.
    fn parts(&mut self) -> (&mut Machine, impl Iterator<Item = &mut Pipe>);

    /// Takes the orders of one iteration of the event loop.
    fn take_orders(&mut self, orders: Vec<Order>) -> Result<(), String>;

    /// The gateway dials.
    fn dial(&mut self, conn: Conn, addr: SocketAddr);

    /// The gateway starts its successor.
    fn start_successor(&mut self) -> Result<(), String>;

    /// The gateway has closed a connection, or a dial.
    fn close(&mut self, conn: Conn, shut: Shut) -> Result<(), String>;

    /// Number of bytes, of `len`, that one event delivers.
    fn piece(&mut self, len: usize) -> usize {
        len.min(SLICE)
    }

    /// Moves bytes without a step of the driver. Returns false if nothing moved.
    fn flow(&mut self) -> Result<bool, String> {
        Ok(false)
    }

    fn machine(&mut self) -> &mut Machine {
        self.parts().0
    }

    /// Runs everything that can happen without the clock advancing and without a step of the driver.
    fn settle(&mut self) -> Result<(), String> {
        for _ in 0..Self::ROUNDS_MAX {
            let dirty = std::mem::take(self.machine().gateway.dirty());
            let orders = std::mem::take(self.machine().gateway.orders());
            let mut busy = !dirty.is_empty() || !orders.is_empty();
            if !dirty.is_empty() {
                self.parts().1.filter(|pipe| dirty.contains(&pipe.conn)).for_each(|pipe| pipe.stopped_at = None);
            }
            self.take_orders(orders)?;
            for action in std::mem::take(self.machine().gateway.actions()) {
                busy = true;
                self.perform(action)?;
            }
            busy |= self.flow()?;
            if !busy {
                return self.loses_no_wakeup();
            }
        }
        Err("the gateway never becomes idle".to_string())
    }

    fn perform(&mut self, action: Action) -> Result<(), String> {
        match action {
            Action::Dial { conn, addr, .. } => self.dial(conn, addr),
            Action::Resolve { host, port } => self.machine().asked.push((host, port)),
            Action::StopAccepting(_) => self.machine().draining = true,
            Action::StartSuccessor => self.start_successor()?,
            Action::Exit => self.machine().exit = true,
            Action::Hear(conn) => {
                let waiting = self.parts().1.find(|pipe| pipe.conn == conn).map_or(0, |pipe| pipe.wire.len());
                let most = self.piece(waiting);
                let (Machine { gateway, now, .. }, mut pipes) = self.parts();
                if let Some(pipe) = pipes.find(|pipe| pipe.conn == conn) {
                    pipe.deliver(gateway, most, *now);
                }
                gateway.heard(conn, *now);
            }
            Action::Finish(conn) => {
                let pipe = self.parts().1.find(|pipe| pipe.conn == conn);
                if pipe.is_some_and(|pipe| std::mem::replace(&mut pipe.finished, true)) {
                    return Err(format!("the gateway finished {conn:?} twice"));
                }
            }
            Action::Close { conn, shut } => self.close(conn, shut)?,
        }
        Ok(())
    }

    /// Checks that every connection is read that the gateway wants to read.
    fn loses_no_wakeup(&mut self) -> Result<(), String> {
        let (machine, mut pipes) = self.parts();
        match pipes.find(|pipe| pipe.is_lost(&machine.gateway)) {
            Some(pipe) => Err(format!("a wake-up of {:?} was lost", pipe.conn)),
            None => Ok(()),
        }
    }

    /// Advances time. Each deadline fires when it is due.
    fn advance(&mut self, micros: u64) -> Result<(), String> {
        let target = later(self.machine().now, micros);
        while let Some(due) = self.machine().gateway.next_deadline().filter(|due| *due <= target.mono) {
            let machine = self.machine();
            machine.now = later(machine.now, due.0.saturating_sub(machine.now.mono.0));
            // The effects of one deadline may be due immediately, as in the next iteration of a real event loop.
            for round in 0.. {
                let machine = self.machine();
                let fired = machine.gateway.expire(machine.now);
                self.settle()?;
                if !fired && !self.machine().is_due() {
                    break;
                }
                if round > Self::ROUNDS_MAX || (!fired && round > 1000) {
                    return Err("a deadline that has passed stays due: the loop would spin".to_string());
                }
            }
        }
        self.machine().now = target;
        Ok(())
    }
}
