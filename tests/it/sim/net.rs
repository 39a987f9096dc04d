//! Connection in the simulated world: bytes on the way to the gateway, and its end.

use tollgate::base::seam::{Conn, Core, Ending, Shut};
use tollgate::base::time::Now;
use tollgate::gateway::Gateway;

/// A connection.
#[derive(Debug)]
pub struct Pipe {
    pub conn: Conn,
    /// Bytes on their way to the gateway.
    pub wire: Vec<u8>,
    /// Our side has ended, or is to end when the wire is empty.
    pub ending: Option<Ending>,
    /// True if the gateway has been notified of that.
    pub told: bool,
    /// The gateway has said that it writes nothing more.
    pub finished: bool,
    /// The gateway has closed it.
    pub closed: Option<Shut>,
    /// When bytes were last taken from the gateway.
    pub read_at: u64,
    /// Number of waiting bytes when the gateway stopped reading. A real loop then reads only after more bytes or an
    /// order.
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

    /// Neither side has ended it.
    pub fn is_open(&self) -> bool {
        self.closed.is_none() && self.ending.is_none()
    }

    /// Hands up to `most` bytes of the wire to the gateway, then the end if there is one. False if nothing moved.
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
        // Data and FIN that arrive together are one event for a real loop.
        if self.wire.is_empty() && self.ending.is_some() && most > 8 {
            self.told = true;
            gateway.closed(self.conn, Ending::Fin, now);
        }
        true
    }

    /// Takes up to `most` bytes that the gateway has for this connection.
    pub fn take(&mut self, gateway: &mut Gateway, most: usize, now: Now) -> Vec<u8> {
        if self.closed.is_some() || (self.told && self.ending == Some(Ending::Broken)) {
            return Vec::new();
        }
        let unsent = gateway.unsent(self.conn);
        let bytes = unsent[..unsent.len().min(most)].to_vec();
        assert!(bytes.is_empty() || !self.finished, "it wrote after it had said that nothing follows");
        if !bytes.is_empty() {
            self.read_at = now.mono.0;
            self.stopped_at = None;
            gateway.wrote(self.conn, bytes.len(), now);
        }
        bytes
    }
}
