//! Connection to a server of a shared ledger: sends commands, and reads answers within bounds.
//!
//! A server that is broken, or not Redis, may send anything: an endless line, an answer of any length or depth, or a
//! byte at long intervals. An answer is scanned as it arrives ([`ReplyScanner`]), and parsed once it is complete.

use crate::io::clock::watch;
use crate::io::resolver::resolve_within;
use crate::io::tls::blocking::{Blocking, Bounded, Trust};
use crate::store::bounds;
use redis::{ConnectionLike, RedisConnectionInfo, RedisResult, Value};
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Longest answer of a shared ledger to a command, such as a report.
const SHARED_REPLY: usize = 1 << 30;
/// Longest answer of a shared ledger to a gateway that serves.
const SHARED_REPLY_SERVING: usize = 64 << 20;
/// Times of connecting and of answering for a command, and until a gateway serves. No request waits meanwhile, and a
/// busy host may need more than a second.
const SHARED_COMMAND: Duration = Duration::from_secs(5);

/// Maximum bytes per read.
const PIECE: usize = 64 << 10;
/// Maximum length of a line of an answer, which is a number, a word or an error.
const LINE_MAX: usize = 64 << 10;
/// Maximum nesting of an answer. The answers to Tollgate's commands have at most 4 levels.
const DEPTH_MAX: usize = 16;
/// Minimum bytes of an answer per value, on average beyond the first thousand: a value takes more memory than it has
/// bytes.
const VALUE_MIN: usize = 16;

/// Bounds of a connection.
#[derive(Copy, Clone)]
pub struct Bounds {
    /// Maximum length of an answer, in bytes.
    most: usize,
    connect: Duration,
    pub(super) answer: Duration,
}

impl Bounds {
    /// For commands, which may print reports.
    pub const COMMAND: Bounds = Bounds { most: SHARED_REPLY, connect: SHARED_COMMAND, answer: SHARED_COMMAND };
    /// Until a gateway serves.
    pub const START: Bounds = Bounds { most: SHARED_REPLY_SERVING, ..Bounds::COMMAND };
    /// While requests may wait for the answer.
    pub const SERVING: Bounds =
        Bounds { connect: bounds::SHARED_CONNECT, answer: bounds::SHARED_ANSWER, ..Bounds::START };
}

/// Scanner of one answer.
#[derive(Default)]
struct ReplyScanner {
    /// Offset after the scanned bytes, and start of the present line.
    at: usize,
    line: usize,
    /// Remaining bytes of the present text, with the end of its line.
    skip: usize,
    /// Number of missing values at each level.
    open: Vec<usize>,
    values: usize,
}

fn wrong(text: String) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, text)
}

fn nonsense() -> io::Error {
    wrong("an answer that makes no sense: is this a Redis or Valkey server?".to_string())
}

impl ReplyScanner {
    /// Scans the available bytes of an answer of at most `most` bytes. Returns its length once it is complete.
    fn scan(&mut self, bytes: &[u8], most: usize) -> io::Result<Option<usize>> {
        loop {
            if self.skip > 0 {
                let here = self.skip.min(bytes.len() - self.at);
                (self.at, self.skip, self.line) = (self.at + here, self.skip - here, self.at + here);
                if self.skip > 0 {
                    return Ok(None);
                }
                if self.ends() {
                    return Ok(Some(self.at));
                }
            }
            let Some(end) = bytes[self.at..].iter().position(|byte| *byte == b'\n') else {
                self.at = bytes.len();
                let length = self.at - self.line;
                return if length > LINE_MAX { Err(wrong("a line without an end".to_string())) } else { Ok(None) };
            };
            let line = &bytes[self.line..self.at + end];
            (self.at, self.line) = (self.at + end + 1, self.at + end + 1);
            if line.len() > LINE_MAX {
                return Err(wrong("a line without an end".to_string()));
            }
            if self.take(line, most)? && self.ends() {
                return Ok(Some(self.at));
            }
        }
    }

    /// Scans a line. Returns true if a value ends with it.
    fn take(&mut self, line: &[u8], most: usize) -> io::Result<bool> {
        let Some((kind, Some(text))) = line.split_first().map(|(kind, text)| (kind, text.strip_suffix(b"\r"))) else {
            return Err(nonsense());
        };
        let number = || std::str::from_utf8(text).ok().and_then(|text| text.parse::<i64>().ok()).ok_or_else(nonsense);
        let length = match kind {
            b'+' | b'-' => return Ok(true),
            b':' => return number().map(|_| true),
            b'$' | b'*' => number()?,
            _ => return Err(nonsense()),
        };
        let Ok(length) = usize::try_from(length) else {
            return if length == -1 { Ok(true) } else { Err(nonsense()) };
        };
        let too_long = || wrong(format!("an answer of more than {} MiB", most >> 20));
        if *kind == b'$' {
            if length > most.saturating_sub(self.at) {
                return Err(too_long());
            }
            self.skip = length + 2;
            return Ok(false);
        }
        if length > (1000 + most / VALUE_MIN).saturating_sub(self.values) {
            return Err(too_long());
        }
        if self.open.len() == DEPTH_MAX {
            return Err(wrong(format!("an answer that is nested deeper than {DEPTH_MAX}")));
        }
        self.values += length;
        if length > 0 {
            self.open.push(length);
        }
        Ok(length == 0)
    }

    /// Records the end of a value. Returns true if the answer ends with it.
    fn ends(&mut self) -> bool {
        while let Some(left) = self.open.last_mut() {
            *left -= 1;
            if *left > 0 {
                return false;
            }
            self.open.pop();
        }
        true
    }
}

/// Connection to one server.
pub(super) struct RemoteLink {
    stream: Blocking,
    /// Received bytes.
    bytes: Vec<u8>,
    frame: ReplyScanner,
    pub(super) bounds: Bounds,
}

impl RemoteLink {
    /// Connects to a server and logs in, over TLS if `trust` is given.
    pub(super) fn open(
        (host, port): (&str, u16),
        trust: Option<&Trust>,
        login: &RedisConnectionInfo,
        bounds: Bounds,
    ) -> RedisResult<RemoteLink> {
        let tcp = dial(host, port, bounds.connect)?;
        tcp.set_nodelay(true)?;
        let bounded = Bounded::new(tcp, bounds.connect);
        let stream = match trust {
            None => Blocking::Plain(bounded),
            Some(trust) => Blocking::secure(trust, host, bounded)?,
        };
        let mut link = RemoteLink { stream, bytes: Vec::new(), frame: ReplyScanner::default(), bounds };
        link.log_in(login)?;
        Ok(link)
    }

    fn log_in(&mut self, login: &RedisConnectionInfo) -> RedisResult<()> {
        let mut pipe = redis::pipe();
        if let Some(password) = login.password() {
            pipe.cmd("AUTH").arg(login.username()).arg(password);
        }
        if login.db() != 0 {
            pipe.cmd("SELECT").arg(login.db());
        }
        let count = pipe.len();
        // The user may lack permission for this command, which only shows whether the server answers.
        pipe.cmd("PING");
        self.stream.write_all(&pipe.get_packed_pipeline())?;
        for number in 0..=count {
            if let Value::ServerError(error) = self.answer(self.bounds.connect)?
                && number < count
            {
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// Returns the next answer, or a message that the server sends by itself. Waits `within` for each piece of it, and
    /// for the complete answer the same time per MiB.
    pub(super) fn answer(&mut self, within: Duration) -> RedisResult<Value> {
        let (begun, before) = (watch(), self.bytes.len());
        loop {
            if let Some(end) = self.frame.scan(&self.bytes, self.bounds.most)? {
                let value = redis::parse_redis_value(&self.bytes[..end]);
                self.bytes.drain(..end);
                self.frame = ReplyScanner::default();
                return Ok(value.map_err(|_| nonsense())?);
            }
            let mib = self.bytes.len().saturating_sub(before) >> 20;
            let until = begun.after(within * (1 + u32::try_from(mib).unwrap_or(0)));
            if self.bytes.len() > before && watch() > until {
                return Err(io::Error::from(ErrorKind::TimedOut).into());
            }
            if self.bytes.len() > self.bounds.most {
                return Err(wrong(format!("an answer of more than {} MiB", self.bounds.most >> 20)).into());
            }
            self.read(within)?;
        }
    }

    fn read(&mut self, within: Duration) -> io::Result<()> {
        self.stream.bound(within);
        let length = self.bytes.len();
        self.bytes.resize(length + PIECE, 0);
        let read = self.stream.read(&mut self.bytes[length..]);
        self.bytes.truncate(length + *read.as_ref().unwrap_or(&0));
        match read {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            read => read.map(drop),
        }
    }

    fn send(&mut self, bytes: &[u8]) -> RedisResult<()> {
        self.stream.bound(self.bounds.answer);
        Ok(self.stream.write_all(bytes)?)
    }
}

fn dial(host: &str, port: u16, within: Duration) -> io::Result<TcpStream> {
    let until = watch().after(within);
    let mut why = io::Error::new(ErrorKind::NotFound, "its name has no address");
    for at in resolve_within(host, port, within)? {
        let left = until.micros_since(watch());
        if left == 0 {
            return Err(ErrorKind::TimedOut.into());
        }
        match TcpStream::connect_timeout(&at, Duration::from_micros(left)) {
            Ok(tcp) => return Ok(tcp),
            Err(error) => why = error,
        }
    }
    Err(why)
}

impl ConnectionLike for RemoteLink {
    fn req_packed_command(&mut self, cmd: &[u8]) -> RedisResult<Value> {
        self.send(cmd)?;
        self.answer(self.bounds.answer)
    }

    fn req_packed_commands(&mut self, cmd: &[u8], offset: usize, count: usize) -> RedisResult<Vec<Value>> {
        self.send(cmd)?;
        let mut values = Vec::with_capacity(count);
        for number in 0..offset + count {
            match self.answer(self.bounds.answer)? {
                // A rejected command of a transaction that is not executed.
                Value::ServerError(error) if number < offset => return Err(error.into()),
                value if number >= offset => values.push(value),
                _ => {}
            }
        }
        Ok(values)
    }

    fn get_db(&self) -> i64 {
        0
    }

    fn check_connection(&mut self) -> bool {
        true
    }

    fn is_open(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the length of the first answer, or the error, and checks that it does not depend on the split of the
    /// bytes.
    fn length(bytes: &[u8]) -> Result<Option<usize>, String> {
        let whole = ReplyScanner::default().scan(bytes, 1000).map_err(|error| error.to_string());
        for piece in [1, 2, 3, 7] {
            let (mut frame, mut found) = (ReplyScanner::default(), Ok(None));
            for end in (0..bytes.len()).step_by(piece).chain([bytes.len()]) {
                found = frame.scan(&bytes[..end], 1000).map_err(|error| error.to_string());
                if found != Ok(None) {
                    break;
                }
            }
            assert_eq!(found, whole, "in pieces of {piece}: {:?}", String::from_utf8_lossy(bytes));
        }
        whole
    }

    #[test]
    fn answer_ends_with_its_last_value() {
        for (answer, value) in [
            (&b"+OK\r\n"[..], Value::Okay),
            (b":-7\r\n", Value::Int(-7)),
            (b"$-1\r\n", Value::Nil),
            (b"*-1\r\n", Value::Nil),
            (b"$0\r\n\r\n", Value::BulkString(Vec::new())),
            (b"$4\r\na\r\nb\r\n", Value::BulkString(b"a\r\nb".to_vec())),
            (b"*0\r\n", Value::Array(Vec::new())),
            (
                b"*3\r\n:1\r\n*2\r\n*0\r\n$1\r\nx\r\n+y\r\n",
                Value::Array(vec![
                    Value::Int(1),
                    Value::Array(vec![Value::Array(Vec::new()), Value::BulkString(b"x".to_vec())]),
                    Value::SimpleString("y".to_string()),
                ]),
            ),
        ] {
            assert_eq!(length(answer), Ok(Some(answer.len())));
            assert_eq!(length(&[answer, b":9\r\n"].concat()), Ok(Some(answer.len())));
            assert_eq!(redis::parse_redis_value(answer), Ok(value));
            for end in 0..answer.len() {
                assert_eq!(length(&answer[..end]), Ok(None), "{end} bytes of {}", answer.len());
            }
        }
    }

    #[test]
    fn answer_beyond_a_bound_is_refused_early() {
        for (answer, why) in [
            (&b"$1001\r\n"[..], "an answer of more than 0 MiB"),
            (b"*1063\r\n", "an answer of more than 0 MiB"),
            (b"*1000\r\n*1000\r\n", "an answer of more than 0 MiB"),
            (&b"*1\r\n".repeat(17), "an answer that is nested deeper than 16"),
            (&[b'+'; LINE_MAX + 2], "a line without an end"),
            (b"$x\r\n", "makes no sense"),
            (b"*-2\r\n", "makes no sense"),
            (b"\r\n", "makes no sense"),
            (b"+OK\n", "makes no sense"),
            (b"%1\r\n", "makes no sense"),
        ] {
            let found = length(answer);
            assert!(found.as_ref().is_err_and(|error| error.contains(why)), "{why}: {found:?}");
        }
    }
}
