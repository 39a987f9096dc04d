//! The minimum cost of a relay on this event loop: `scripts/bench` compares the gateway with it to determine the
//! kernel's share. It makes the same four system calls per request, and parses only enough to find the end of a
//! message. Requests and responses have a `content-length`, upstream connections are kept open, no request is rejected,
//! and there are no timeouts. `bare --listen ADDR --upstream ADDR`

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};
use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;

const LISTENER: Token = Token(usize::MAX);
/// Maximum bytes per read.
const READ: usize = 64 * 1024;

struct Conn {
    socket: TcpStream,
    /// The beginning of an incomplete message.
    rx: Vec<u8>,
    is_upstream: bool,
    /// For an upstream connection, the client that gets its answer; for a client, its upstream connection.
    peer: Option<usize>,
}

struct Bare {
    poll: Poll,
    conns: Vec<Option<Conn>>,
    /// Upstream connections without a request.
    idle: Vec<usize>,
    upstream: SocketAddr,
}

fn option(name: &str) -> SocketAddr {
    let value = std::env::args().skip_while(|arg| arg != name).nth(1);
    value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{name} ADDR"))
}

/// Returns true if `bytes` are a complete message.
fn is_whole(bytes: &[u8]) -> bool {
    let Some(head) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else { return false };
    let lines = bytes[..head].split(|byte| *byte == b'\n');
    let length = lines.filter_map(|line| line.split_at_checked(15)).find_map(|(name, value)| {
        let is_length = name.eq_ignore_ascii_case(b"content-length:");
        is_length.then(|| std::str::from_utf8(value.trim_ascii()).ok()?.parse::<usize>().ok()).flatten()
    });
    bytes.len() >= head + 4 + length.unwrap_or(0)
}

impl Bare {
    fn add(&mut self, mut socket: TcpStream, is_upstream: bool) -> io::Result<usize> {
        socket.set_nodelay(true)?;
        let token = Token(self.conns.len());
        self.poll.registry().register(&mut socket, token, Interest::READABLE)?;
        self.conns.push(Some(Conn { socket, rx: Vec::new(), is_upstream, peer: None }));
        Ok(token.0)
    }

    /// Returns an upstream connection for a request. A new one blocks the event loop, which happens only during the
    /// warm-up.
    fn lend(&mut self) -> io::Result<usize> {
        if let Some(kept) = self.idle.pop() {
            return Ok(kept);
        }
        let socket = std::net::TcpStream::connect(self.upstream)?;
        socket.set_nonblocking(true)?;
        self.add(TcpStream::from_std(socket), true)
    }

    fn readable(&mut self, name: usize, buffer: &mut [u8]) -> io::Result<()> {
        let Some(conn) = self.conns.get_mut(name).and_then(Option::as_mut) else { return Ok(()) };
        let count = match conn.socket.read(buffer) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Ok(0) | Err(_) => {
                self.conns[name] = None;
                self.idle.retain(|kept| *kept != name);
                return Ok(());
            }
            Ok(count) => count,
        };
        let mut rx = std::mem::take(&mut conn.rx);
        let is_split = !rx.is_empty() || !is_whole(&buffer[..count]);
        if is_split {
            rx.extend_from_slice(&buffer[..count]);
            if !is_whole(&rx) {
                conn.rx = rx;
                return Ok(());
            }
        }
        let (is_upstream, peer) = (conn.is_upstream, conn.peer.take());
        let message = if is_split { &rx[..] } else { &buffer[..count] };
        let to = match is_upstream {
            true => peer,
            false => Some(self.lend()?),
        };
        if is_upstream {
            self.idle.push(name);
        } else if let Some(upstream) = to.and_then(|to| self.conns[to].as_mut()) {
            upstream.peer = Some(name);
        }
        if let Some(to) = to.and_then(|to| self.conns[to].as_mut()) {
            to.socket.write_all(message)?;
        }
        Ok(())
    }
}

fn main() -> io::Result<()> {
    let mut listener = TcpListener::bind(option("--listen"))?;
    let poll = Poll::new()?;
    poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
    let mut bare = Bare { poll, conns: Vec::new(), idle: Vec::new(), upstream: option("--upstream") };
    let (mut events, mut buffer) = (Events::with_capacity(1024), vec![0; READ]);
    loop {
        bare.poll.poll(&mut events, None)?;
        for event in &events {
            if event.token() != LISTENER {
                bare.readable(event.token().0, &mut buffer)?;
                continue;
            }
            while let Ok((socket, _)) = listener.accept() {
                bare.add(socket, false)?;
            }
        }
    }
}
