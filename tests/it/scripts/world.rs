//! The world around one gateway: in-memory pipes, and a clock that only steps advance. Performs actions immediately,
//! delivers bytes split by its [`Cut`], and notices when the gateway would make an event loop spin.

use crate::support::answers::{Answers, Piece};
use crate::support::setting::{SECRETS, begin, later};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use tollgate::base::rng::Rng;
use tollgate::base::seam::{Action, Conn, Core, DialError, Ending, Reply, Shut, Signal};
use tollgate::base::time::Now;
use tollgate::gateway::orders::{DeskAsk, Notice, Order, Reloaded, Work};
use tollgate::gateway::{Gateway, Start};
use tollgate::policy::alert::AlertNews;
use tollgate::policy::ask::{Ask, AskAnswer, Ruling, Use};
use tollgate::policy::config::{Config, Reach};
use tollgate::policy::keys::{KeyAnswer, KeyRecord, ShownKey};
use tollgate::policy::meter::{LeasePart, SharedCounts};
use tollgate::policy::notice::LedgerNotice;
use tollgate::policy::row::Row;

/// Text that represents the end of a chunked answer.
pub const END_OF_CHUNKS: &[u8] = b"\x01[the last chunk]\n";
/// Maximum number of rounds until the gateway must be idle; more mean an endless loop.
const ROUNDS_MAX: usize = 10_000_000;

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
    pub conn: Conn,
    /// Bytes from the gateway that no step has checked yet. For clients, chunk framing is removed.
    pub got: Vec<u8>,
    /// All bytes from the gateway.
    pub all: Vec<u8>,
    /// Bytes to deliver when the gateway reads again.
    pub waiting: VecDeque<u8>,
    /// True if the gateway has stopped reading. A real event loop then reads only after new bytes or an order.
    pub stopped: bool,
    /// End of the connection after these bytes.
    pub ending: Option<Ending>,
    /// True if the gateway has announced that it writes nothing more.
    pub finished: bool,
    /// Set if the gateway has closed it.
    pub closed: Option<Shut>,
    /// True if a step has expected the close, or this end had ended before.
    pub close_seen: bool,
    /// True if this end reads what the gateway writes.
    pub reads: bool,
    answers: Option<Answers>,
}

/// A gateway with its connections.
pub struct World {
    pub gateway: Gateway,
    pub now: Now,
    pub cut: Cut,
    pub ends: BTreeMap<String, End>,
    pub dials: usize,
    pub dialed: Option<SocketAddr>,
    pub plans: VecDeque<DialPlan>,
    pub rows: VecDeque<Row>,
    pub log: Vec<String>,
    pub hold_rows: bool,
    pub uncommitted: u64,
    pub exit: bool,
    pub accepting: bool,
    pub asked: Vec<(Arc<str>, u16)>,
    /// True if the helper thread is busy with another task.
    pub hold_work: bool,
    /// True while the configuration is read for `hangup`; `reload` finishes it.
    pub reading: bool,
    pub works: Vec<Work>,
    /// Checks of a shared ledger without an answer, oldest first.
    pub checks: Vec<Ask>,
    /// Key changes in the ledger that the gateway has not received.
    pub unannounced: Vec<KeyRecord>,
    /// True if the ledger does not answer lookups of keys.
    pub hold_lookups: bool,
    /// Keys whose lookup has no answer yet.
    pub lookups: Vec<ShownKey>,
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

impl World {
    pub fn new(config: Config, start: Start, cut: Cut) -> World {
        let now = begin();
        let admin = start.admin.or(Some(Reach::Host));
        let start = Start { seed: [9; 32], client_listeners: 1, admin, ..start };
        World {
            gateway: Gateway::new(Arc::new(config), start, now),
            now,
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
            exit: false,
            accepting: true,
            asked: Vec::new(),
            hold_work: false,
            reading: false,
            works: Vec::new(),
            checks: Vec::new(),
            unannounced: Vec::new(),
            hold_lookups: false,
            lookups: Vec::new(),
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
            conn,
            got: Vec::new(),
            all: Vec::new(),
            waiting: VecDeque::new(),
            stopped: false,
            ending: None,
            finished: false,
            closed: None,
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
        let accepted = self.gateway.accepted(usize::from(admin), peer, self.now);
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
        let end = self.end(label)?;
        end.waiting.extend(bytes);
        end.stopped = false;
        self.settle()
    }

    /// Ends a connection from outside: after the pending bytes, or immediately if it breaks.
    pub fn finish(&mut self, label: &str, how: Ending) -> Result<(), String> {
        let end = self.end(label)?;
        end.ending = Some(how);
        end.close_seen = true;
        if how == Ending::Broken {
            end.waiting.clear();
        }
        self.settle()
    }

    /// Completes a dial.
    pub fn come_up(&mut self, label: &str) -> Result<(), String> {
        let conn = self.end(label)?.conn;
        self.gateway.reply(Reply::Dialed(conn), self.now);
        self.settle()
    }

    /// Refuses a dial.
    pub fn fail_dial(&mut self, label: &str) -> Result<(), String> {
        let conn = self.ends.remove(label).ok_or("there is no such dial")?.conn;
        self.labels.remove(&conn);
        self.gateway.reply(Reply::DialFailed(conn, DialError::Connect("refused")), self.now);
        self.settle()
    }

    /// Returns true if clients are accepted now.
    pub fn wants_clients(&self) -> bool {
        self.accepting && self.gateway.wants_clients(0)
    }

    pub fn signal(&mut self, signal: Signal) -> Result<(), String> {
        self.gateway.reply(Reply::Signal(signal), self.now);
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
        for work in std::mem::take(&mut self.works) {
            self.gateway.notice(Notice::Worked(work.run()), self.now);
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
        self.gateway.notice(notice, self.now);
        self.settle()
    }

    pub fn resolve(&mut self, host: &str, addrs: &[&str]) -> Result<(), String> {
        let at =
            self.asked.iter().position(|(asked, _)| **asked == *host).ok_or("no lookup of that name is pending")?;
        let (host, port) = self.asked.remove(at);
        let socket = |addr: &&str| Some(std::net::SocketAddr::new(addr.parse().ok()?, port));
        let addrs = Some(addrs.iter().filter_map(socket).collect()).filter(|addrs: &Vec<_>| !addrs.is_empty());
        let addrs = addrs.ok_or("no such name");
        self.gateway.reply(Reply::Named { host, port, addrs }, self.now);
        self.settle()
    }

    /// Advances time. Each deadline fires when it is due.
    pub fn wait(&mut self, micros: u64) -> Result<(), String> {
        let target = later(self.now, micros);
        loop {
            let due = self.gateway.next_deadline().filter(|due| *due <= target.mono);
            let Some(due) = due else { break };
            self.now = later(self.now, due.0.saturating_sub(self.now.mono.0));
            self.fire()?;
            self.settle()?;
            if self.gateway.next_deadline().is_some_and(|due| due <= self.now.mono) {
                self.fire()?;
                self.settle()?;
                if self.gateway.next_deadline().is_some_and(|due| due <= self.now.mono) {
                    return Err("a deadline that has passed stays due: the loop would spin".to_string());
                }
            }
        }
        self.now = target;
        Ok(())
    }

    fn fire(&mut self) -> Result<(), String> {
        for _ in 0..ROUNDS_MAX {
            if !self.gateway.expire(self.now) {
                return Ok(());
            }
            self.settle()?;
        }
        Err("the deadlines do not end".to_string())
    }

    /// Runs everything that can happen without the clock advancing.
    pub fn settle(&mut self) -> Result<(), String> {
        for _ in 0..ROUNDS_MAX {
            let mut busy = self.act()?;
            for conn in std::mem::take(self.gateway.dirty()) {
                if let Some(end) = self.labels.get(&conn).and_then(|label| self.ends.get_mut(label)) {
                    end.stopped = false;
                }
            }
            self.take_orders()?;
            let due = |end: &End| {
                end.closed.is_none()
                    && (!end.waiting.is_empty()
                        || end.ending.is_some()
                        || end.reads && !self.gateway.unsent(end.conn).is_empty())
            };
            let labels: Vec<String> =
                self.ends.iter().filter(|(_, end)| due(end)).map(|(label, _)| label.clone()).collect();
            for label in labels {
                busy |= self.drain(&label)?;
                busy |= self.deliver(&label)?;
            }
            let is_idle = self.gateway.actions().is_empty() && self.gateway.orders().is_empty();
            if !busy && is_idle && self.gateway.dirty().is_empty() {
                // Pipelined requests continue in the next iteration of the event loop, which does not sleep.
                let is_paused = self.ends.values().any(|end| self.gateway.is_paused(end.conn));
                if !is_paused || !self.gateway.expire(self.now) {
                    return self.loses_no_wakeup();
                }
            }
        }
        Err("the gateway never becomes idle".to_string())
    }

    /// Checks that every connection is read that the gateway wants to read.
    fn loses_no_wakeup(&self) -> Result<(), String> {
        let is_lost = |end: &End| {
            end.closed.is_none() && end.stopped && !end.waiting.is_empty() && self.gateway.wants_read(end.conn)
        };
        let lost = self.ends.iter().find(|(_, end)| is_lost(end));
        lost.map_or(Ok(()), |(label, _)| Err(format!("a wake-up of {label} was lost")))
    }

    fn act(&mut self) -> Result<bool, String> {
        let actions = std::mem::take(self.gateway.actions());
        let busy = !actions.is_empty();
        for action in actions {
            match action {
                Action::Dial { conn, addr, .. } => {
                    self.dialed = Some(addr);
                    self.dial(conn);
                }
                Action::Hear(conn) => {
                    if let Some(label) = self.labels.get(&conn).cloned() {
                        self.deliver(&label)?;
                    }
                    self.gateway.heard(conn, self.now);
                }
                Action::Finish(conn) => {
                    let label =
                        self.labels.get(&conn).cloned().ok_or("the gateway finished a connection that was not open")?;
                    if std::mem::replace(&mut self.end(&label)?.finished, true) {
                        return Err(format!("the gateway finished {label} twice"));
                    }
                }
                Action::Close { conn, shut } => {
                    let label = self.labels.remove(&conn).ok_or("the gateway closed a connection that was not open")?;
                    let end = self.end(&label)?;
                    end.closed = Some(shut);
                    end.waiting.clear();
                }
                Action::Resolve { host, port } => self.asked.push((host, port)),
                Action::StopAccepting(_) => self.accepting = false,
                Action::Exit => self.exit = true,
                Action::StartSuccessor => self.successor = true,
            }
        }
        Ok(busy)
    }

    fn dial(&mut self, conn: Conn) {
        self.dials += 1;
        let label = format!("u{}", self.dials);
        let why = match self.plans.pop_front() {
            Some(DialPlan::Refuse) => DialError::Connect("refused"),
            Some(DialPlan::TlsFail) => DialError::Tls("UnknownIssuer"),
            Some(DialPlan::Hang) => return self.open(&label, conn, false),
            other => {
                self.open(&label, conn, false);
                self.ends.entry(label).and_modify(|end| end.reads = other.is_none());
                return self.gateway.reply(Reply::Dialed(conn), self.now);
            }
        };
        self.gateway.reply(Reply::DialFailed(conn, why), self.now);
    }

    fn take_orders(&mut self) -> Result<(), String> {
        for order in std::mem::take(self.gateway.orders()) {
            match order {
                Order::Rows(rows) => {
                    self.uncommitted += rows.len() as u64;
                    self.rows.extend(rows);
                }
                Order::Log(lines) => self.take_log(lines)?,
                Order::Work(work) if self.hold_work => self.works.push(*work),
                Order::Work(work) => self.gateway.notice(Notice::Worked(work.run()), self.now),
                Order::Reload(_) if self.reading => {}
                Order::Reload(_) => return Err("the gateway must not reload by itself".to_string()),
                Order::Desk(ask) => self.admin_requests.push_back(ask),
                Order::Renew(_) => self.renewals += 1,
                Order::List(asked) => self.lists.push((asked.epoch, asked.provider)),
                Order::Asks(asks) => self.checks.extend(asks),
                Order::LookUp(ids) => self.lookups.extend(ids),
                Order::Releases(releases) => self.released += releases.len(),
                // Uses of requests that the ledger has admitted one by one. It makes no grants in a transcript.
                Order::Uses(uses) if uses.iter().all(|one| matches!(one, Use::Served(..))) => {}
                Order::Uses(uses) => return Err(format!("grants are used although a script has none: {uses:?}")),
                Order::HandOver(running, _) => {
                    if self.handed_over.replace(running.len()).is_some() {
                        return Err("the gateway handed over twice".to_string());
                    }
                    if !self.hold_successor {
                        self.gateway.notice(Notice::SuccessorTaken, self.now);
                    }
                }
                Order::LetServe => self.served = true,
                Order::TakeBack => {
                    (self.handed_over, self.successor) = (None, false);
                    if !self.hold_successor {
                        self.gateway.notice(Notice::SuccessorGone, self.now);
                    }
                }
                Order::Capture(captured) => {
                    self.gateway.notice(Notice::Captured(captured.key, captured.kept(), Ok(())), self.now)
                }
                Order::Acknowledge(_) | Order::Spans(..) => {}
                Order::Alerts(_, alerts) => self.alerts.extend(alerts),
            }
        }
        if !self.hold_lookups {
            for key in std::mem::take(&mut self.lookups) {
                let found = self.unannounced.iter().find(|record| record.id == key.id).cloned();
                let answer = found.map_or(KeyAnswer::Absent, |record| KeyAnswer::Known(Box::new(record)));
                self.gateway.notice(Notice::Ledger(LedgerNotice::LookedUp(vec![(key, answer)])), self.now);
            }
        }
        if self.uncommitted > 0 && !self.hold_rows {
            let rows = std::mem::take(&mut self.uncommitted);
            self.gateway.notice(Notice::Ledger(LedgerNotice::Committed(rows)), self.now);
        }
        Ok(())
    }

    fn take_log(&mut self, lines: Vec<u8>) -> Result<(), String> {
        let text = String::from_utf8(lines).map_err(|_| "a log that is not UTF-8")?;
        for line in text.lines() {
            serde_json::from_str::<serde_json::Value>(line).map_err(|error| format!("log: {error} in {line}"))?;
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
        let unsent = self.gateway.unsent(end.conn);
        if unsent.is_empty() {
            return Ok(false);
        }
        if end.finished {
            return Err(format!("the gateway wrote to {label} after it had finished the connection"));
        }
        let count = self.cut.piece(unsent.len());
        let bytes = unsent[..count].to_vec();
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
        let conn = end.conn;
        end.stopped = false;
        self.gateway.wrote(conn, count, self.now);
        Ok(true)
    }

    /// Delivers the pending bytes of one connection to the gateway.
    fn deliver(&mut self, label: &str) -> Result<bool, String> {
        let Some(end) = self.ends.get_mut(label).filter(|end| end.closed.is_none()) else { return Ok(false) };
        if end.waiting.is_empty() {
            let Some(how) = end.ending.take() else { return Ok(false) };
            let conn = end.conn;
            self.gateway.closed(conn, how, self.now);
            return Ok(true);
        }
        if end.stopped || !self.gateway.wants_read(end.conn) {
            end.stopped = true;
            return Ok(false);
        }
        let count = self.cut.piece(end.waiting.len().min(64 * 1024));
        let bytes: Vec<u8> = end.waiting.drain(..count).collect();
        let conn = end.conn;
        self.gateway.bytes(conn, &bytes, self.now);
        Ok(true)
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
