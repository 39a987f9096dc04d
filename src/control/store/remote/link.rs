//! Connection to a server of a shared ledger: sends commands, and waits for answers within bounds. A server that is
//! broken, or not Redis, may send a byte at long intervals.

use super::resp::{LinkError, RedisCommand, ReplyReader, Value, too_long};
use crate::io::clock::watch;
use crate::io::resolver::resolve_within;
use crate::io::tls::blocking::{Blocking, Bounded, Trust};
use crate::policy::config::SharedUrl;
use crate::store::bounds;
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

/// Connection to one server.
pub(super) struct RemoteLink {
    stream: Blocking,
    /// Received bytes.
    bytes: Vec<u8>,
    reader: ReplyReader,
    pub(super) bounds: Bounds,
}

impl RemoteLink {
    /// Connects to a server and logs in, over TLS if `trust` is given.
    pub(super) fn open(
        (host, port): (&str, u16),
        trust: Option<&Trust>,
        url: &SharedUrl,
        bounds: Bounds,
    ) -> Result<RemoteLink, LinkError> {
        let tcp = dial(host, port, bounds.connect)?;
        tcp.set_nodelay(true)?;
        let bounded = Bounded::new(tcp, bounds.connect);
        let stream = match trust {
            None => Blocking::Plain(bounded),
            Some(trust) => Blocking::secure(trust, host, bounded)?,
        };
        let mut link = RemoteLink { stream, bytes: Vec::new(), reader: ReplyReader::default(), bounds };
        link.log_in(url)?;
        Ok(link)
    }

    fn log_in(&mut self, url: &SharedUrl) -> Result<(), LinkError> {
        let mut commands = Vec::new();
        if !url.user.is_empty() || !url.password.is_empty() {
            let mut auth = RedisCommand::new("AUTH");
            if !url.user.is_empty() {
                auth.arg(&url.user);
            }
            auth.arg(&url.password);
            commands.push(auth);
        }
        if url.db != 0 {
            let mut select = RedisCommand::new("SELECT");
            select.number(url.db.into());
            commands.push(select);
        }
        let count = commands.len();
        // The user may lack permission for this command, which only shows whether the server answers.
        commands.push(RedisCommand::new("PING"));
        self.send(&commands)?;
        for number in 0..=count {
            let answer = self.answer(self.bounds.connect)?;
            if let Some(error) = answer.error().filter(|_| number < count) {
                return Err(error.without_words([&url.user, &url.password]));
            }
        }
        Ok(())
    }

    fn send(&mut self, commands: &[RedisCommand]) -> io::Result<()> {
        let mut bytes = Vec::new();
        commands.iter().for_each(|command| command.pack(&mut bytes));
        self.stream.write_all(&bytes)
    }

    /// Sends commands. Returns the answer to each.
    pub(super) fn ask(&mut self, commands: &[RedisCommand]) -> Result<Vec<Value>, LinkError> {
        self.stream.bound(self.bounds.answer);
        self.send(commands)?;
        commands.iter().map(|_| self.answer(self.bounds.answer)).collect()
    }

    /// Returns the next answer, or a message that the server sends by itself. Waits `within` for each piece of it, and
    /// for the complete answer the same time per MiB.
    pub(super) fn answer(&mut self, within: Duration) -> Result<Value, LinkError> {
        let (begun, before) = (watch(), self.bytes.len());
        loop {
            if let Some((answer, length)) = self.reader.read(&self.bytes, self.bounds.most)? {
                self.bytes.drain(..length);
                self.reader = ReplyReader::default();
                return Ok(answer);
            }
            let mib = self.bytes.len().saturating_sub(before) >> 20;
            let until = begun.after(within * (1 + u32::try_from(mib).unwrap_or(0)));
            if self.bytes.len() > before && watch() > until {
                return Err(io::Error::from(ErrorKind::TimedOut).into());
            }
            if self.bytes.len() > self.bounds.most {
                return Err(too_long(self.bounds.most).into());
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
