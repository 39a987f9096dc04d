//! Owns one connection's socket, plain or encrypted, behind the same few calls. Never touches poll, flags or core.
//!
//! Called by the reactor alone.

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

/// The buffers every connection reads through; the loop has one of each.
pub struct Scratch {
    /// What came from a socket.
    raw: Vec<u8>,
    /// What the last encrypted bytes meant; allocated with the first of them.
    clear: Vec<u8>,
    /// Where the last reading put its bytes.
    decrypted: bool,
}

impl Scratch {
    /// Room for one slice.
    pub fn new() -> Scratch {
        Scratch { raw: vec![0; limits::IO_SLICE], clear: Vec::new(), decrypted: false }
    }

    /// The first `len` bytes as they came from the socket.
    pub fn raw(&self, len: usize) -> &[u8] {
        self.raw.get(..len).unwrap_or_default()
    }

    /// The first `len` bytes of the last reading.
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

/// A socket and, if encrypted, its session.
pub enum Transport {
    /// Plain TCP.
    Plain(TcpStream),
    /// TLS; boxed because idle plain connections must stay small.
    Tls(Box<(TcpStream, Session)>),
}

impl Transport {
    /// The socket.
    pub fn socket(&mut self) -> &mut TcpStream {
        match self {
            Transport::Plain(socket) => socket,
            Transport::Tls(both) => &mut both.0,
        }
    }

    /// Reads at most about `room` bytes, with one `recv`.
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

    /// Goes on with a TLS handshake; a plain connection has none and is done.
    pub fn shake(&mut self, scratch: &mut Scratch) -> Shake {
        match self {
            Transport::Plain(_) => Shake::Done,
            Transport::Tls(both) => both.1.shake(&mut both.0, &mut scratch.raw),
        }
    }

    /// Writes what the socket takes of `data`; an error means that the connection is broken.
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

    /// Looks at what comes next, without taking a byte.
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

    /// Looks at up to `most` of the next bytes, without taking any; how many there are.
    pub fn peek_into(&mut self, scratch: &mut Scratch, most: usize) -> io::Result<usize> {
        self.socket().peek(&mut scratch.raw[..most])
    }

    /// Takes `len` bytes, which have been seen, off the socket.
    pub fn skip(&mut self, len: usize, scratch: &mut Scratch) {
        // They lie there: neither an error nor fewer bytes can come of it.
        let _ = receive(self.socket(), &mut scratch.raw[..len]);
    }

    /// Says goodbye: over TLS a close_notify, then FIN. False if encrypted bytes are still to be written first; then
    /// call again after a writable edge. `unread` says that bytes may lie in the socket: closing over them would send
    /// a reset that can overtake our last answer, so one slice of them is taken and dropped.
    pub fn part(&mut self, scratch: &mut Scratch, unread: bool) -> bool {
        if !self.finish() {
            return false;
        }
        if unread {
            let _ = receive(self.socket(), &mut scratch.raw);
        }
        true
    }

    /// Says that nothing more is written: over TLS a close_notify, then FIN. False if encrypted bytes are still to be
    /// written first. Said twice it is said once.
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

    /// Makes the coming close a reset: the peer must not take what it got for a proper end.
    pub fn abort(&mut self) {
        let _ = SockRef::from(&*self.socket()).set_linger(Some(Duration::ZERO));
    }
}

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
