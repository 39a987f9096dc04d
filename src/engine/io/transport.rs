//! Owns one connection's socket, plain or encrypted, behind the same methods. Never uses poll, flags or core.
//!
//! Called only by the reactor.

use super::outcome::{Fill, Peek, Sent, Shake};
use super::tls::{Session, receive};
use crate::base::limits;
use crate::base::seam::Ending;
use mio::net::TcpStream;
use rustix::net::{SendFlags, send};
use socket2::SockRef;
use std::io::{self, ErrorKind};
use std::net::Shutdown;
use std::time::Duration;

/// Buffers that every connection reads through; the loop has one of each.
pub struct Scratch {
    /// Bytes received from a socket.
    raw: Vec<u8>,
    /// Plaintext of the last encrypted bytes; allocated with the first of them.
    clear: Vec<u8>,
    /// True if the last read put its bytes into `clear`.
    decrypted: bool,
}

impl Scratch {
    /// Allocates room for one slice.
    pub fn new() -> Scratch {
        Scratch { raw: vec![0; limits::IO_SLICE], clear: Vec::new(), decrypted: false }
    }

    /// Returns the first `len` bytes as received from the socket.
    pub fn raw(&self, len: usize) -> &[u8] {
        self.raw.get(..len).unwrap_or_default()
    }

    /// Returns the first `len` bytes of the last read.
    pub fn data(&self, len: usize) -> &[u8] {
        let from = if self.decrypted { &self.clear } else { &self.raw };
        from.get(..len).unwrap_or_default()
    }
}

impl Default for Scratch {
    fn default() -> Self {
        Scratch::new()
    }
}

/// Socket and, if encrypted, its session.
pub enum Transport {
    /// Plain TCP.
    Plain(TcpStream),
    /// TLS; boxed because idle plain connections must stay small.
    Tls(Box<(TcpStream, Session)>),
}

impl Transport {
    /// Returns the socket.
    pub fn socket(&mut self) -> &mut TcpStream {
        match self {
            Transport::Plain(socket) => socket,
            Transport::Tls(both) => &mut both.0,
        }
    }

    /// Reads at most about `room` bytes, with one `recv`.
    #[inline]
    pub fn fill(&mut self, scratch: &mut Scratch, room: usize) -> Fill {
        let asked = room.min(scratch.raw.len());
        let raw = &mut scratch.raw[..asked];
        scratch.decrypted = matches!(self, Transport::Tls(_));
        match self {
            Transport::Plain(socket) => match receive(socket, raw) {
                Ok(Some(0)) => Fill::Ended(Ending::Fin),
                Ok(Some(len)) => Fill::Data { len, cost: len, drained: len < asked },
                Ok(None) => Fill::Blocked,
                Err(_) => Fill::Ended(Ending::Broken),
            },
            Transport::Tls(both) => both.1.fill(&mut both.0, raw, &mut scratch.clear),
        }
    }

    /// Continues a TLS handshake; a plain connection has none and is done.
    pub fn shake(&mut self, scratch: &mut Scratch) -> Shake {
        match self {
            Transport::Plain(_) => Shake::Done,
            Transport::Tls(both) => both.1.shake(&mut both.0, &mut scratch.raw),
        }
    }

    /// Writes as much of `data` as the socket takes; an error means that the connection is broken.
    #[inline]
    pub fn send(&mut self, data: &[u8]) -> io::Result<Sent> {
        match self {
            Transport::Plain(socket) => send_plain(socket, data),
            Transport::Tls(both) => both.1.send(&mut both.0, data),
        }
    }

    /// True while encrypted bytes wait to be written although the core has handed them over.
    pub fn owes(&self) -> bool {
        matches!(self, Transport::Tls(both) if both.1.owes())
    }

    /// Peeks at the next bytes, without taking any.
    pub fn peek(&mut self) -> Peek {
        let fin = match self {
            Transport::Plain(_) => Ending::Fin,
            Transport::Tls(both) => both.1.ending_at_fin(),
        };
        match self.socket().peek(&mut [0]) {
            Ok(0) => Peek::Ended(fin),
            Ok(_) => Peek::Bytes(fin),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Peek::Nothing,
            Err(_) => Peek::Ended(Ending::Broken),
        }
    }

    /// Peeks at up to `most` of the next bytes, without taking any. Returns their number.
    pub fn peek_into(&mut self, scratch: &mut Scratch, most: usize) -> io::Result<usize> {
        self.socket().peek(&mut scratch.raw[..most])
    }

    /// Takes `len` bytes, which have been peeked at, off the socket.
    pub fn skip(&mut self, len: usize, scratch: &mut Scratch) {
        // These bytes have arrived, so there is neither an error nor a short read.
        let _ = receive(self.socket(), &mut scratch.raw[..len]);
    }

    /// Ends the connection: over TLS a close_notify, then FIN. False if encrypted bytes are still to be written first;
    /// then call again after a writable edge. `unread` is true if bytes may be in the socket: closing with unread bytes
    /// would send a reset that can overtake our last answer, so one slice of them is taken and dropped.
    pub fn part(&mut self, scratch: &mut Scratch, unread: bool) -> bool {
        if !self.finish() {
            return false;
        }
        if unread {
            let _ = receive(self.socket(), &mut scratch.raw);
        }
        true
    }

    /// Ends our half: over TLS a close_notify, then FIN. False if encrypted bytes are still to be written first.
    /// Repeated calls have no effect.
    pub fn finish(&mut self) -> bool {
        if let Transport::Tls(both) = self {
            let (socket, session) = &mut **both;
            if !session.part(socket).unwrap_or(true) {
                return false;
            }
        }
        let _ = self.socket().shutdown(Shutdown::Write);
        true
    }

    /// Makes the next close a reset: the peer must not mistake it for a proper end.
    pub fn abort(&mut self) {
        let _ = SockRef::from(&*self.socket()).set_linger(Some(Duration::ZERO));
    }
}

#[inline]
fn send_plain(socket: &TcpStream, data: &[u8]) -> io::Result<Sent> {
    if data.is_empty() {
        return Ok(Sent { taken: 0, blocked: false });
    }
    loop {
        match socket.try_io(|| Ok(send(socket, data, SendFlags::NOSIGNAL)?)) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(taken) => return Ok(Sent { taken, blocked: taken < data.len() }),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Sent { taken: 0, blocked: true }),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
