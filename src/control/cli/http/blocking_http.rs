//! Blocking HTTP client for commands: sends a request and reads the complete answer. Never used on the event loop.

use crate::base::limits::ASKED_BYTES_MAX;
use crate::base::seam::Tunnel;
use crate::io::clock::Clock;
use crate::io::resolver::resolve_within;
use crate::io::tls::Security;
use crate::io::tls::blocking::{Blocking, Bounded, Trouble, trouble};
use crate::io::tunnel;
use crate::wire::body::BodyReader;
use crate::wire::head::{Framing, parse_response};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Least time that a step gets.
const LEAST: Duration = Duration::from_millis(1);

/// Bytes of an answer's head.
const HEAD_MAX: usize = 64 * 1024;

/// Server to ask.
pub struct ServerAddress<'a> {
    /// A socket in the file system, instead of addresses.
    pub socket: Option<&'a Path>,
    /// Addresses to connect to; if there are none, the name is resolved.
    pub addresses: &'a [SocketAddr],
    /// The host.
    pub host: &'a str,
    /// Port of the server.
    pub port: u16,
    /// Tunnel to request first, if the server is a proxy.
    pub tunnel: Option<&'a Tunnel>,
    /// Certificates, and the number of the peer among them; `None` for plain HTTP.
    pub tls: (&'a Security, Option<u32>),
    /// Timeout of the connection, and again of the TLS handshake.
    pub connect: Duration,
    /// For everything, from the connection to the end of the answer.
    pub answer: Duration,
}

/// Answer of a server.
pub struct HttpResponse {
    /// Status.
    pub status: u16,
    /// The whole head.
    pub head: Vec<u8>,
    /// The bytes of the body that were read.
    pub body: Vec<u8>,
    /// True if it was read completely.
    pub whole: bool,
}

/// Reason for the lack of an answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NoAnswer {
    /// No address is known for the name.
    Name,
    /// The connection was refused.
    Refused(SocketAddr),
    /// The connection timed out or failed.
    Unreachable(SocketAddr, String),
    /// The connection is established, but no answer arrives.
    Silent,
    /// The proxy refused the tunnel, and its reason.
    Proxy(&'static str),
    /// TLS failed.
    Tls(Trouble),
    /// The answer consists of TLS bytes, but plain HTTP was sent.
    WantsTls,
    /// The answer ended too early, or is not HTTP.
    Broken(String),
}

impl NoAnswer {
    /// Short description for the log.
    pub fn words(&self) -> &'static str {
        match self {
            NoAnswer::Name => "its name has no address",
            NoAnswer::Refused(_) => "connection refused",
            NoAnswer::Unreachable(..) => "no connection",
            NoAnswer::Proxy(why) => why,
            NoAnswer::Silent => "no answer in time",
            NoAnswer::Tls(_) => "the TLS handshake failed",
            NoAnswer::WantsTls => "it speaks TLS, and its URL says http",
            NoAnswer::Broken(_) => "no answer in HTTP",
        }
    }
}

/// Sends `request` and reads the answer.
pub fn ask(place: &ServerAddress<'_>, request: &[u8]) -> Result<HttpResponse, NoAnswer> {
    ask_within(place, request, ASKED_BYTES_MAX)
}

/// Does the same, but reads about `most` bytes of the body at most.
pub fn ask_within(place: &ServerAddress<'_>, request: &[u8], most: usize) -> Result<HttpResponse, NoAnswer> {
    let (mut stream, mut answer, framing) = begin(place, request)?;
    let rest = std::mem::take(&mut answer.body);
    (answer.body, answer.whole) = body(&mut stream, BodyReader::new(framing), rest, most);
    Ok(answer)
}

/// Sends `request` and reads the head of the answer.
pub fn status(place: &ServerAddress<'_>, request: &[u8]) -> Result<u16, NoAnswer> {
    begin(place, request).map(|(_, answer, _)| answer.status)
}

/// Sends `request` and passes the answer's body to `see` as it arrives, until it ends or `see` returns false; returns
/// the status.
pub fn follow(place: &ServerAddress<'_>, request: &[u8], see: &mut dyn FnMut(&[u8]) -> bool) -> Result<u16, NoAnswer> {
    let (mut stream, answer, framing) = begin(place, request)?;
    let (mut reader, mut rest) = (BodyReader::new(framing), answer.body);
    loop {
        let piece = reader.next(&rest).map_err(|_| NoAnswer::Broken("the body's framing is broken".to_string()))?;
        let goes_on = see(&rest[piece.data.clone()]);
        rest.drain(..piece.consumed);
        if piece.done || !goes_on {
            return Ok(answer.status);
        }
        if piece.consumed == 0
            && let Err(why) = more(&mut stream, &mut rest)
        {
            // The end of the connection may be the end of the body.
            return if why != NoAnswer::Silent && reader.end().is_ok() { Ok(answer.status) } else { Err(why) };
        }
    }
}

/// Sends `request` and reads the head of the answer. The body contains the bytes received so far; [`Framing`] describes
/// the rest.
fn begin(place: &ServerAddress<'_>, request: &[u8]) -> Result<(Blocking, HttpResponse, Framing), NoAnswer> {
    let clock = Clock::new();
    let until = clock.mono().after(place.answer);
    // No time at all would be no bound.
    let left = || Duration::from_micros(until.micros_since(clock.mono())).max(LEAST);
    let tcp = connect(place, left)?;
    let mut tcp = Bounded::new(tcp, place.connect);
    if let Some(tunnel) = place.tunnel {
        through(&mut tcp, tunnel)?;
    }
    let mut stream = Blocking::new(place.tls.0, place.tls.1, tcp).map_err(|error| failed(&error))?;
    stream.bound(left());
    stream.write_all(request).and_then(|()| stream.flush()).map_err(|error| failed(&error))?;
    let mut got = Vec::new();
    let head = loop {
        match got.first() {
            // A TLS alert or handshake record.
            Some(0x15 | 0x16) => return Err(NoAnswer::WantsTls),
            _ => match parse_response(&got, &mut 0, HEAD_MAX, false) {
                Ok(Some(head)) if head.status < 200 => drop(got.drain(..head.len as usize)),
                Ok(Some(head)) => break head,
                Ok(None) => more(&mut stream, &mut got)?,
                Err(error) => return Err(NoAnswer::Broken(error.reason.to_string())),
            },
        }
    };
    let rest = got.split_off(head.len as usize);
    Ok((stream, HttpResponse { status: head.status, head: got, body: rest, whole: false }, head.framing))
}

/// Requests a tunnel from a proxy. Its answer is read byte by byte, because the bytes after it belong to the tunnel.
fn through(tcp: &mut Bounded, tunnel: &Tunnel) -> Result<(), NoAnswer> {
    let (mut got, mut byte) = (Vec::new(), [0]);
    let sent = tcp.write_all(tunnel.bytes());
    sent.map_err(|_| NoAnswer::Proxy(tunnel::CLOSED))?;
    loop {
        match tcp.read(&mut byte) {
            Ok(0) => return Err(NoAnswer::Proxy(tunnel::CLOSED)),
            Ok(_) => got.push(byte[0]),
            Err(error) if is_late(&error) => return Err(NoAnswer::Proxy("proxy: no answer in time")),
            Err(_) => return Err(NoAnswer::Proxy(tunnel::CLOSED)),
        }
        if byte[0] == b'\n' && tunnel::answer(&got).map_err(NoAnswer::Proxy)?.is_some() {
            return Ok(());
        }
        if got.len() >= tunnel::ANSWER_MAX {
            return Err(NoAnswer::Proxy("proxy: no answer in HTTP"));
        }
    }
}

fn connect(place: &ServerAddress<'_>, left: impl Fn() -> Duration) -> Result<TcpStream, NoAnswer> {
    if let Some(path) = place.socket {
        // Kept as a `TcpStream`: only the way to connect differs.
        let stream = UnixStream::connect(path).map_err(|error| NoAnswer::Broken(error.to_string()))?;
        return Ok(OwnedFd::from(stream).into());
    }
    let found: Vec<SocketAddr> = match place.addresses {
        [] => resolve_within(place.host, place.port, place.connect.min(left())).map_err(|_| NoAnswer::Name)?,
        known => known.to_vec(),
    };
    let mut last = NoAnswer::Name;
    for address in found {
        match TcpStream::connect_timeout(&address, place.connect.min(left())) {
            Ok(stream) => return Ok(stream),
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => last = NoAnswer::Refused(address),
            Err(error) if is_late(&error) => last = NoAnswer::Unreachable(address, "no answer in time".to_string()),
            Err(error) => last = NoAnswer::Unreachable(address, error.to_string()),
        }
    }
    Err(last)
}

fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock)
}

fn failed(error: &io::Error) -> NoAnswer {
    match trouble(error) {
        Some(trouble) => NoAnswer::Tls(trouble),
        None if is_late(error) => NoAnswer::Silent,
        None => NoAnswer::Broken(error.to_string()),
    }
}

fn more(stream: &mut Blocking, got: &mut Vec<u8>) -> Result<(), NoAnswer> {
    let mut piece = [0; 16 * 1024];
    match stream.read(&mut piece) {
        Ok(0) => Err(NoAnswer::Broken("it closes the connection".to_string())),
        Ok(count) => {
            got.extend_from_slice(&piece[..count]);
            Ok(())
        }
        // As after a stop and continuation of this process.
        Err(error) if error.kind() == ErrorKind::Interrupted => Ok(()),
        Err(error) => Err(failed(&error)),
    }
}

/// The bytes of the body, and true if it is complete. A body that is cut off is returned as received.
fn body(stream: &mut Blocking, mut reader: BodyReader, mut rest: Vec<u8>, most: usize) -> (Vec<u8>, bool) {
    let mut body = Vec::new();
    while body.len() < most {
        let Ok(piece) = reader.next(&rest) else { return (body, false) };
        body.extend_from_slice(&rest[piece.data.clone()]);
        rest.drain(..piece.consumed);
        if piece.done {
            return (body, true);
        }
        if piece.consumed > 0 {
            continue;
        }
        match more(stream, &mut rest) {
            Ok(()) => {}
            Err(why) => return (body, why != NoAnswer::Silent && reader.end().is_ok()),
        }
    }
    (body, false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::time::Mono;
    use std::net::{Ipv4Addr, TcpListener};

    /// Result for a peer that sends `words`, and then a letter every 20 ms; and the time that it took.
    fn asked(words: &'static [u8]) -> (Result<HttpResponse, NoAnswer>, Duration) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let peer = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut next = words;
            while stream.write_all(next).is_ok() {
                next = b"x";
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let place = ServerAddress {
            socket: None,
            addresses: &[address],
            host: "127.0.0.1",
            port: address.port(),
            tunnel: None,
            tls: (&Security::default(), None),
            connect: Duration::from_secs(5),
            answer: Duration::from_millis(200),
        };
        let clock = Clock::new();
        let answer = ask(&place, b"GET / HTTP/1.1\r\n\r\n");
        let took = Duration::from_micros(clock.mono().micros_since(Mono(0)));
        peer.join().unwrap();
        (answer, took)
    }

    #[test]
    fn dripping_peer_cannot_exceed_the_timeout_of_the_answer() {
        let (answer, took) = asked(b"HTTP/1.1 200 OK\r\nx: ");
        assert!(matches!(answer, Err(NoAnswer::Silent)) && took < Duration::from_secs(30), "{took:?}");
        let (answer, took) = asked(b"HTTP/1.1 200 OK\r\n\r\nx");
        let answer = answer.unwrap();
        assert!(!answer.whole && !answer.body.is_empty() && took < Duration::from_secs(30), "{took:?}");
    }
}
