//! One request to a server and its whole answer, for commands that may wait: never for the loop.

use crate::base::limits::SETTINGS_FILE_MAX;
use crate::io::tls::Security;
use crate::io::tls::blocking::{Blocking, Trouble, trouble};
use crate::wire::body::Reader;
use crate::wire::head::parse_response;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

/// Bytes of an answer's head.
const HEAD_MAX: usize = 64 * 1024;

/// Whom to ask.
pub struct Place<'a> {
    /// Addresses to go to; where there are none the name is looked up.
    pub addresses: &'a [SocketAddr],
    /// The host.
    pub host: &'a str,
    /// Its port.
    pub port: u16,
    /// Certificates, and the number of the peer among them; `None` for plain HTTP.
    pub tls: (&'a Security, Option<u32>),
    /// For the connection, and for the handshake of TLS.
    pub connect: Duration,
    /// For the answer, from one of its bytes to the next.
    pub answer: Duration,
}

/// What came.
pub struct Answer {
    /// Status.
    pub status: u16,
    /// The whole head.
    pub head: Vec<u8>,
    /// The body, as far as it was read.
    pub body: Vec<u8>,
}

/// Why nothing came.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NoAnswer {
    /// No address is known for the name.
    Name,
    /// Nothing listens there.
    Refused(SocketAddr),
    /// No connection within its time.
    Unreachable(SocketAddr, String),
    /// It stands, and nothing comes.
    Silent,
    /// TLS has failed.
    Tls(Trouble),
    /// What came are bytes of TLS, and plain HTTP was spoken.
    WantsTls,
    /// It has ended too early, or what came is no HTTP.
    Broken(String),
}

/// Sends `request` and reads the answer.
pub fn ask(place: &Place<'_>, request: &[u8]) -> Result<Answer, NoAnswer> {
    let tcp = connect(place)?;
    let wait = |tcp: &TcpStream, length| {
        let set = tcp.set_read_timeout(Some(length)).and_then(|()| tcp.set_write_timeout(Some(length)));
        set.map_err(|error| NoAnswer::Broken(error.to_string()))
    };
    wait(&tcp, place.connect)?;
    let mut stream = Blocking::new(place.tls.0, place.tls.1, tcp).map_err(|error| failed(&error))?;
    wait(stream.tcp(), place.answer)?;
    stream.write_all(request).and_then(|()| stream.flush()).map_err(|error| failed(&error))?;
    let mut got = Vec::new();
    let head = loop {
        match got.first() {
            // An alert: the other end has taken what was sent for a handshake.
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
    let body = body(&mut stream, Reader::new(head.framing), rest);
    Ok(Answer { status: head.status, head: got, body })
}

fn connect(place: &Place<'_>) -> Result<TcpStream, NoAnswer> {
    let found: Vec<SocketAddr> = match place.addresses {
        [] => (place.host, place.port).to_socket_addrs().map_err(|_| NoAnswer::Name)?.collect(),
        known => known.to_vec(),
    };
    let mut last = NoAnswer::Name;
    for address in found {
        match TcpStream::connect_timeout(&address, place.connect) {
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
        Err(error) => Err(failed(&error)),
    }
}

/// The body as far as it comes; one that is cut short is as good as it is.
fn body(stream: &mut Blocking, mut reader: Reader, mut rest: Vec<u8>) -> Vec<u8> {
    let mut body = Vec::new();
    while body.len() < SETTINGS_FILE_MAX {
        match reader.next(&rest) {
            Ok(piece) => {
                body.extend_from_slice(&rest[piece.data.clone()]);
                rest.drain(..piece.consumed);
                if piece.done {
                    break;
                }
                if piece.consumed == 0 && more(stream, &mut rest).is_err() {
                    break;
                }
            }
            Err(_) => break,
        }
    }
    body
}
