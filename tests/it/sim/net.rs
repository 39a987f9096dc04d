//! A connection in the simulated world: bytes in flight to the gateway, and its end.

use tollgate::base::seam::{Conn, Core, Ending, Shut};
use tollgate::base::time::Now;
use tollgate::gateway::Gateway;

/// A connection.
#[derive(Debug)]
pub struct Pipe {
    pub conn: Conn,
    /// Bytes in flight to the gateway.
    pub wire: Vec<u8>,
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
            wire: Vec::new(),
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

    /// Delivers up to `most` bytes to the gateway, then the end if there is one. Returns false if nothing changed.
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
        if self.stopped_at.is_some_and(|stopped_at| self.wire.len() <= stopped_at) {
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
        // Data and FIN that arrive together are a single event in a real event loop.
        if self.wire.is_empty() && self.ending.is_some() && most > 8 {
            self.told = true;
            gateway.closed(self.conn, Ending::Fin, now);
        }
        true
    }

    /// True if the gateway wants to read bytes that a real event loop would not read.
    pub fn is_lost(&self, gateway: &Gateway) -> bool {
        self.closed.is_none()
            && !self.told
            && !self.wire.is_empty()
            && self.stopped_at.is_some_and(|stopped_at| self.wire.len() <= stopped_at)
            && gateway.wants_read(self.conn)
    }

    /// Takes up to `most` bytes that the gateway has for this connection.
    pub fn take(&mut self, gateway: &mut Gateway, most: usize, now: Now) -> Vec<u8> {
        if self.closed.is_some() || (self.told && self.ending == Some(Ending::Broken)) {
            return Vec::new();
        }
        let unsent = gateway.unsent(self.conn);
        let bytes = unsent[..unsent.len().min(most)].to_vec();
        assert!(bytes.is_empty() || !self.finished, "the gateway wrote after it had announced the end");
        if !bytes.is_empty() {
            self.read_at = now.mono.0;
            self.stopped_at = None;
            gateway.wrote(self.conn, bytes.len(), now);
        }
        bytes
    }
}
