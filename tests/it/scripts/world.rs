//! The world around one gateway whose peers do what a transcript says: performs actions immediately, delivers bytes
//! split by its [`Cut`], and keeps what has arrived.

use crate::support::answers::{Answers, Piece};
use crate::support::setting::{SECRETS, begin};
use crate::support::world::{Driver, Machine, Pipe, SLICE};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, LazyLock};
use tollgate::base::rng::Rng;
use tollgate::base::seam::{Conn, Core, DialError, Ending, Reply, Shut, Signal};
use tollgate::gateway::orders::{DeskAsk, Notice, Order, Reloaded, Work};
use tollgate::gateway::{Gateway, Start};
use tollgate::policy::alert::AlertNews;
use tollgate::policy::config::{Config, Reach};
use tollgate::policy::keys::{KeyAnswer, KeyRecord};
use tollgate::policy::ledger::LedgerNotice;
use tollgate::policy::ledger::{Ask, AskAnswer, Ruling, Use};
use tollgate::policy::meter::{LeasePart, SharedCounts};
use tollgate::policy::row::Row;

/// Text that represents the end of a chunked answer.
pub const END_OF_CHUNKS: &[u8] = b"\x01[the last chunk]\n";

/// Split of bytes in transit.
#[derive(Clone, Debug)]
pub enum Cut {
    /// Not at all.
    Whole,
    /// Each byte separately.
    Drip,
    /// Randomly.
    Random(Rng),
}

impl Cut {
    fn piece(&mut self, len: usize) -> usize {
        match self {
            Cut::Whole => len,
            Cut::Drip => len.min(1),
            Cut::Random(rng) => {
                let most = if rng.below(4) == 0 { 3 } else { 4000 };
                len.min(1 + rng.below(most) as usize)
            }
        }
    }
}

/// Result of a dial.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum DialPlan {
    Refuse,
    TlsFail,
    Hang,
    /// The connection opens, but accepts no bytes.
    Stall,
}

/// The remote end of a connection.
#[derive(Debug)]
pub struct End {
    pipe: Pipe,
    /// Bytes from the gateway that no step has checked yet. For clients, chunk framing is removed.
    pub got: Vec<u8>,
    /// All bytes from the gateway.
    pub all: Vec<u8>,
    /// True if a step has expected the close, or this end had ended before.
    pub close_seen: bool,
    /// True if this end reads what the gateway writes.
    pub reads: bool,
    answers: Option<Answers>,
}

impl Deref for End {
    type Target = Pipe;

    fn deref(&self) -> &Pipe {
        &self.pipe
    }
}

impl DerefMut for End {
    fn deref_mut(&mut self) -> &mut Pipe {
        &mut self.pipe
    }
}

/// A gateway with its connections.
pub struct World {
    machine: Machine,
    pub cut: Cut,
    pub ends: BTreeMap<String, End>,
    pub dials: usize,
    pub dialed: Option<SocketAddr>,
    pub plans: VecDeque<DialPlan>,
    pub rows: VecDeque<Row>,
    pub log: Vec<String>,
    pub hold_rows: bool,
    pub uncommitted: u64,
    /// True if the helper thread is busy with another task.
    pub hold_work: bool,
    /// True while the configuration is read for `hangup`; `reload` finishes it.
    pub reading: bool,
    /// Checks of a shared ledger without an answer, oldest first.
    pub checks: Vec<Ask>,
    /// Key changes in the ledger that the gateway has not received.
    pub unannounced: Vec<KeyRecord>,
    /// True if the ledger does not answer lookups of keys.
    pub hold_lookups: bool,
    /// Requests to the helper thread of the admin listener without an answer.
    pub admin_requests: VecDeque<Box<DeskAsk>>,
    /// Number of renewals of secrets requested so far.
    pub renewals: usize,
    /// Requests for model lists without an answer: configuration epoch and provider.
    pub lists: Vec<(u32, usize)>,
    /// Number of leases released without a usage record.
    pub released: usize,
    /// True if a successor has been started and has not been taken back.
    pub successor: bool,
    /// True if the successor does nothing by itself once it has the ledger.
    pub hold_successor: bool,
    /// True if the successor has been told to serve.
    pub served: bool,
    /// Number of running requests at the handover of the ledger.
    pub handed_over: Option<usize>,
    /// Alerts that the gateway has raised.
    pub alerts: VecDeque<AlertNews>,
    labels: BTreeMap<Conn, String>,
}

impl Deref for World {
    type Target = Machine;

    fn deref(&self) -> &Machine {
        &self.machine
    }
}

impl DerefMut for World {
    fn deref_mut(&mut self) -> &mut Machine {
        &mut self.machine
    }
}

impl Driver for World {
    const ROUNDS_MAX: usize = 10_000_000;

    fn parts(&mut self) -> (&mut Machine, impl Iterator<Item = &mut Pipe>) {
        (&mut self.machine, self.ends.values_mut().map(|end| &mut end.pipe))
    }

    fn piece(&mut self, len: usize) -> usize {
        self.cut.piece(len.min(SLICE))
    }

    fn take_orders(&mut self, orders: Vec<Order>) -> Result<(), String> {
        for order in orders {
            match order {
                Order::Rows(rows) => {
                    self.uncommitted += rows.len() as u64;
                    self.rows.extend(rows);
                }
                Order::Log(lines) => self.take_log(lines)?,
                Order::Work(work) if self.hold_work => self.machine.works.push(*work),
                Order::Work(work) => self.machine.work(*work),
                Order::Reload(_) if self.reading => {}
                Order::Reload(_) => return Err("the gateway must not reload by itself".to_string()),
                Order::Desk(ask) => self.admin_requests.push_back(ask),
                Order::Renew(_) => self.renewals += 1,
                Order::List(asked) => self.lists.push((asked.epoch, asked.provider)),
                // A ledger in a file takes every promise.
                Order::Asks(asks) => {
                    let (promises, checks): (Vec<Ask>, Vec<Ask>) =
                        asks.into_iter().partition(|ask| ask.promise.is_some());
                    self.checks.extend(checks);
                    for ask in promises {
                        let answer = AskAnswer { ruling: Ruling::Admitted, ..AskAnswer::unavailable(ask) };
                        self.machine.notice(Notice::Ledger(LedgerNotice::Answered(Box::new(answer))));
                    }
                }
                Order::LookUp(ids) => self.machine.lookups.extend(ids),
                Order::Releases(releases) => self.released += releases.len(),
                // Uses of requests that the ledger has admitted one by one. It makes no grants in a transcript.
                Order::Uses(uses) if uses.iter().all(|one| matches!(one, Use::Served(..) | Use::Left(..))) => {}
                Order::Uses(uses) => return Err(format!("grants are used although a script has none: {uses:?}")),
                Order::HandOver(running, ..) => {
                    if self.handed_over.replace(running.len()).is_some() {
                        return Err("the gateway handed over twice".to_string());
                    }
                    if !self.hold_successor {
                        self.machine.notice(Notice::SuccessorTaken);
                    }
                }
                Order::LetServe => self.served = true,
                Order::TakeBack => {
                    (self.handed_over, self.successor) = (None, false);
                    if !self.hold_successor {
                        self.machine.notice(Notice::SuccessorGone);
                    }
                }
                Order::Capture(captured) => {
                    self.machine.notice(Notice::Captured(captured.key, captured.kept(), Ok(())))
                }
                Order::Acknowledge(_) | Order::Spans(..) => {}
                Order::Alerts(_, alerts) => self.alerts.extend(alerts),
            }
        }
        if !self.hold_lookups {
            for key in std::mem::take(&mut self.machine.lookups) {
                let found = self.unannounced.iter().find(|record| record.id == key.id).cloned();
                let answer = found.map_or(KeyAnswer::Absent, |record| KeyAnswer::Known(Box::new(record)));
                self.machine.looked_up(key, answer);
            }
        }
        if self.uncommitted > 0 && !self.hold_rows {
            let rows = std::mem::take(&mut self.uncommitted);
            self.machine.ledger(LedgerNotice::Committed(rows));
        }
        Ok(())
    }

    fn dial(&mut self, conn: Conn, addr: SocketAddr) {
        self.dialed = Some(addr);
        self.dials += 1;
        let label = format!("u{}", self.dials);
        let why = match self.plans.pop_front() {
            Some(DialPlan::Refuse) => DialError::Connect("refused"),
            Some(DialPlan::TlsFail) => DialError::Tls("UnknownIssuer"),
            Some(DialPlan::Hang) => return self.open(&label, conn, false),
            other => {
                self.open(&label, conn, false);
                self.ends.entry(label).and_modify(|end| end.reads = other.is_none());
                return self.machine.reply(Reply::Dialed(conn));
            }
        };
        self.machine.reply(Reply::DialFailed(conn, why));
    }

    fn start_successor(&mut self) -> Result<(), String> {
        self.successor = true;
        Ok(())
    }

    fn close(&mut self, conn: Conn, shut: Shut) -> Result<(), String> {
        let label = self.labels.remove(&conn).ok_or("the gateway closed a connection that was not open")?;
        let end = self.end(&label)?;
        end.closed = Some(shut);
        end.wire.clear();
        Ok(())
    }

    /// Every peer reads, and sends what it has to send.
    fn flow(&mut self) -> Result<bool, String> {
        let gateway = &self.machine.gateway;
        let due = |end: &End| {
            end.closed.is_none()
                && (!end.wire.is_empty()
                    || end.ending.is_some() && !end.told
                    || end.reads && !gateway.unsent(end.conn).is_empty())
        };
        let labels: Vec<String> =
            self.ends.iter().filter(|(_, end)| due(end)).map(|(label, _)| label.clone()).collect();
        let mut busy = false;
        for label in labels {
            busy |= self.drain(&label)?;
            busy |= self.deliver(&label);
        }
        let gateway = &mut self.machine.gateway;
        let is_idle = gateway.actions().is_empty() && gateway.orders().is_empty() && gateway.dirty().is_empty();
        if busy || !is_idle {
            return Ok(true);
        }
        // Pipelined requests continue in the next iteration of the event loop, which does not sleep.
        let is_paused = self.ends.values().any(|end| self.machine.gateway.is_paused(end.conn));
        Ok(is_paused && self.machine.gateway.expire(self.machine.now))
    }
}

impl World {
    pub fn new(config: Config, start: Start, cut: Cut) -> World {
        let now = begin();
        let admin = start.admin.or(Some(Reach::Host));
        let start = Start { seed: [9; 32], client_listeners: 1, admin, ..start };
        World {
            machine: Machine::new(Gateway::new(Arc::new(config), start, now), now),
            cut,
            ends: BTreeMap::new(),
            dials: 0,
            dialed: None,
            plans: VecDeque::new(),
            rows: VecDeque::new(),
            alerts: VecDeque::new(),
            log: Vec::new(),
            hold_rows: false,
            uncommitted: 0,
            hold_work: false,
            reading: false,
            checks: Vec::new(),
            unannounced: Vec::new(),
            hold_lookups: false,
            admin_requests: VecDeque::new(),
            renewals: 0,
            lists: Vec::new(),
            released: 0,
            successor: false,
            hold_successor: false,
            served: false,
            handed_over: None,
            labels: BTreeMap::new(),
        }
    }

    fn open(&mut self, label: &str, conn: Conn, client: bool) {
        let end = End {
            pipe: Pipe::new(conn, self.machine.now),
            got: Vec::new(),
            all: Vec::new(),
            close_seen: false,
            reads: true,
            answers: client.then(Answers::default),
        };
        self.labels.insert(conn, label.to_string());
        self.ends.insert(label.to_string(), end);
    }

    /// Connects a client, to the admin listener if `admin`.
    pub fn connect(&mut self, label: &str, admin: bool) -> Result<(), String> {
        self.connect_from(label, admin, "192.0.2.1:1000")
    }

    /// Connects a client from another address.
    pub fn connect_from(&mut self, label: &str, admin: bool, peer: &str) -> Result<(), String> {
        let peer = peer.parse().map_err(|_| "address")?;
        let accepted = self.machine.gateway.accepted(usize::from(admin), peer, self.machine.now);
        if let Some(conn) = accepted {
            self.open(label, conn, true);
        }
        self.settle()?;
        accepted.map(drop).ok_or_else(|| format!("{label} was not accepted"))
    }

    pub fn end(&mut self, label: &str) -> Result<&mut End, String> {
        self.ends.get_mut(label).ok_or_else(|| format!("there is no connection {label}"))
    }

    /// Sends bytes to the gateway, as fast as it reads them.
    pub fn send(&mut self, label: &str, bytes: &[u8]) -> Result<(), String> {
        self.end(label)?.wire.extend(bytes);
        self.settle()
    }

    /// Ends a connection from outside: after the pending bytes, or immediately if it breaks.
    pub fn finish(&mut self, label: &str, how: Ending) -> Result<(), String> {
        let end = self.end(label)?;
        (end.ending, end.told, end.close_seen) = (Some(how), false, true);
        if how == Ending::Broken {
            end.wire.clear();
        }
        self.settle()
    }

    /// Completes a dial.
    pub fn come_up(&mut self, label: &str) -> Result<(), String> {
        let conn = self.end(label)?.conn;
        self.machine.reply(Reply::Dialed(conn));
        self.settle()
    }

    /// Refuses a dial.
    pub fn fail_dial(&mut self, label: &str) -> Result<(), String> {
        let conn = self.ends.remove(label).ok_or("there is no such dial")?.conn;
        self.labels.remove(&conn);
        self.machine.reply(Reply::DialFailed(conn, DialError::Connect("refused")));
        self.settle()
    }

    /// Returns true if clients are accepted now.
    pub fn wants_clients(&self) -> bool {
        !self.machine.draining && self.machine.gateway.wants_clients(0)
    }

    pub fn signal(&mut self, signal: Signal) -> Result<(), String> {
        self.machine.reply(Reply::Signal(signal));
        self.settle()
    }

    /// Gives the gateway a new configuration.
    pub fn reload(&mut self, config: Config) -> Result<(), String> {
        self.reading = false;
        self.notice(Notice::Reloaded(Reloaded::Fresh { config: Arc::new(config), unchanged: Vec::new() }))
    }

    /// Lets the helper thread do its pending work.
    pub fn work(&mut self) -> Result<(), String> {
        self.hold_work = false;
        for work in std::mem::take(&mut self.machine.works) {
            self.machine.work(work);
        }
        self.settle()
    }

    /// Lets the helper threads do their work, except freeing memory.
    pub fn work_except_freeing(&mut self) -> Result<(), String> {
        let works = std::mem::take(&mut self.machine.works).into_iter();
        let (freeing, others): (Vec<_>, Vec<_>) = works.partition(Work::is_freeing);
        self.machine.works = freeing;
        for work in others {
            self.machine.work(work);
        }
        self.settle()
    }

    /// Answers one of the checks of the shared ledger, counted from 1. The ledger knows no other host.
    pub fn answer_check(&mut self, number: usize, ruling: Ruling) -> Result<(), String> {
        let at =
            number.checked_sub(1).filter(|at| *at < self.checks.len()).ok_or("not that many admissions are pending")?;
        let ask = self.checks.remove(at);
        let none = |part: &LeasePart| SharedCounts { bounds: part.bounds, ..SharedCounts::default() };
        let counts = ask.lease.parts.iter().map(none).collect();
        self.notice(Notice::Ledger(LedgerNotice::Answered(Box::new(AskAnswer { ask, ruling, counts, grant: None }))))
    }

    pub fn notice(&mut self, notice: Notice) -> Result<(), String> {
        self.machine.notice(notice);
        self.settle()
    }

    pub fn resolve(&mut self, host: &str, addrs: &[&str]) -> Result<(), String> {
        let at = self
            .machine
            .asked
            .iter()
            .position(|(asked, _)| **asked == *host)
            .ok_or("no lookup of that name is pending")?;
        let (host, port) = self.machine.asked.remove(at);
        let socket = |addr: &&str| Some(std::net::SocketAddr::new(addr.parse().ok()?, port));
        let addrs = Some(addrs.iter().filter_map(socket).collect()).filter(|addrs: &Vec<_>| !addrs.is_empty());
        let addrs = addrs.ok_or("no such name");
        self.machine.reply(Reply::Named { host, port, addrs });
        self.settle()
    }

    fn take_log(&mut self, lines: Vec<u8>) -> Result<(), String> {
        let text = String::from_utf8(lines).map_err(|_| "a log that is not UTF-8")?;
        for line in text.lines() {
            let log = serde_json::from_str::<serde_json::Value>(line);
            let log = log.map_err(|error| format!("log: {error} in {line}"))?;
            if log["cause"].as_str().is_some_and(|cause| !is_documented(cause)) {
                return Err(format!("the cause is missing in the reference of causes: {line}"));
            }
            if SECRETS.iter().any(|secret| line.contains(secret)) || line.contains("tg_live_") {
                return Err(format!("a secret is in the log: {line}"));
            }
            self.log.push(line.to_string());
        }
        Ok(())
    }

    /// Reads the bytes that the gateway has written to one connection.
    fn drain(&mut self, label: &str) -> Result<bool, String> {
        let Some(end) = self.ends.get_mut(label).filter(|end| end.reads && end.closed.is_none()) else {
            return Ok(false);
        };
        let Machine { gateway, now, .. } = &mut self.machine;
        let count = gateway.unsent(end.conn).len();
        if count > 0 && end.finished {
            return Err(format!("the gateway wrote to {label} after it had finished the connection"));
        }
        if count == 0 {
            return Ok(false);
        }
        let bytes = end.pipe.take(gateway, self.cut.piece(count), *now);
        match &mut end.answers {
            None => {
                end.got.extend_from_slice(&bytes);
                end.all.extend_from_slice(&bytes);
            }
            Some(answers) => {
                let mut pieces = Vec::new();
                answers.feed(&bytes, &mut pieces).map_err(|error| format!("{label} got no HTTP: {error}"))?;
                for piece in pieces {
                    let shown = shown(piece);
                    end.got.extend_from_slice(&shown);
                    end.all.extend_from_slice(&shown);
                }
            }
        }
        Ok(!bytes.is_empty())
    }

    /// Delivers the pending bytes of one connection to the gateway, then its end.
    fn deliver(&mut self, label: &str) -> bool {
        let waiting = self.ends.get(label).map_or(0, |end| end.wire.len());
        let most = self.piece(waiting);
        let (Machine { gateway, now, .. }, end) = (&mut self.machine, self.ends.get_mut(label));
        end.is_some_and(|end| end.pipe.deliver(gateway, most, *now))
    }
}

fn shown(piece: Piece) -> Vec<u8> {
    match piece {
        Piece::Head(_, lines) => (lines.join("\r\n") + "\r\n\r\n").into_bytes(),
        Piece::Body(bytes) => bytes,
        Piece::End(true) => END_OF_CHUNKS.to_vec(),
        Piece::End(false) => Vec::new(),
    }
}

/// Returns true if the manual has this cause, apart from its numbers and from what had arrived. The manual has only
/// examples of descriptions of bad HTTP.
fn is_documented(cause: &str) -> bool {
    static CAUSES: LazyLock<BTreeSet<String>> = LazyLock::new(|| {
        let text = include_str!("../../../src/docs/reference/causes.md");
        text.split('`').skip(1).step_by(2).map(kind_of).collect()
    });
    let is_open = ["http: ", "not HTTP: ", "connect: proxy: "].iter().any(|start| cause.starts_with(start));
    is_open || CAUSES.contains(&kind_of(cause))
}

fn kind_of(cause: &str) -> String {
    let kind = cause.split(" after ").next().unwrap_or_default();
    kind.chars().map(|c| if c.is_ascii_digit() { '#' } else { c }).collect()
}
