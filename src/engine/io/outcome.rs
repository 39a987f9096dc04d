//! Results of calls on a socket, plain or encrypted. Pure data that transports return to the reactor.

use crate::base::seam::Ending;

/// Result of one read.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Fill {
    /// `len` bytes, see `transport::Scratch::data`; 0 if only part of an encrypted record arrived.
    Data {
        /// Bytes for the core.
        len: usize,
        /// Bytes taken off the socket, at least 1.
        cost: usize,
        /// Fewer bytes arrived than were requested: on an edge-triggered poll the socket is empty.
        drained: bool,
    },
    /// No bytes are available.
    Blocked,
    /// No more bytes will arrive.
    Ended(Ending),
}

/// State of the front of a socket.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Peek {
    /// Bytes, and the kind of end, if the peer has ended after them.
    Bytes(Ending),
    /// The end.
    Ended(Ending),
    /// Neither.
    Nothing,
}

/// Result of one write.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Sent {
    /// Number of the core's bytes that were taken.
    pub taken: usize,
    /// The socket takes no more; an edge will follow when it does again.
    pub blocked: bool,
}

/// State of a handshake.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Shake {
    /// Bytes of the peer are missing, or the socket accepts no more.
    Going,
    /// More bytes of the peer may be available than one event-loop iteration takes.
    More,
    /// Number of bytes that have arrived; they are plain HTTP.
    Plain(usize),
    /// Done; the name and the certificate are valid.
    Done,
    /// Failure, with the reason for the log; an alert was sent if there was one.
    Failed(&'static str),
}
