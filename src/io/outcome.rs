//! What became of one call on a socket, plain or encrypted. Data alone, between the transports and the reactor.

use crate::base::seam::Ending;

/// What one reading brought.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Fill {
    /// `len` bytes, see `transport::Scratch::data`; 0 when only part of an encrypted record came.
    Data {
        /// Bytes for the core.
        len: usize,
        /// Bytes taken off the socket, at least 1.
        cost: usize,
        /// Fewer bytes came than were asked for: on an edge-triggered poll the socket is empty.
        drained: bool,
    },
    /// Nothing there.
    Blocked,
    /// No more bytes will come.
    Ended(Ending),
}

/// What lies at the front of a socket.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Peek {
    /// Bytes; should the peer have ended behind them, this is how.
    Bytes(Ending),
    /// The end.
    Ended(Ending),
    /// Neither.
    Nothing,
}

/// What one writing achieved.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Sent {
    /// Bytes of the core's that have left its hands.
    pub taken: usize,
    /// The socket takes no more; an edge will say when it does again.
    pub blocked: bool,
}

/// How a handshake stands.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Shake {
    /// Bytes of the peer are missing, or room to write.
    Going,
    /// More bytes of the peer may lie ready than one turn takes.
    More,
    /// So many bytes have come, and they are plain HTTP.
    Plain(usize),
    /// Done; the name and the certificate are right.
    Done,
    /// It failed, and why in words for the log; an alert was sent where there was one to send.
    Failed(&'static str),
}
