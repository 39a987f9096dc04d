//! Two gateways and one ledger: an upgrade with every fault at every step. The threads and the channel of
//! `cli::serve::upgrade` are modelled in a simplified form, with a random delay for every message.
//!
//! Invariants: only the process that owns the ledger admits requests, so never two; limits hold across both processes;
//! each admitted request has one usage record in the ledger or in a spill, unless its process was killed; and at the
//! end a process serves, or the ledger is free for a new one.

use super::ledger::LedgerKind;
use super::tally::setting;
use super::wider::Wider;
use crate::support::setting::{KeyRing, begin, later};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use tollgate::base::rng::Rng;
use tollgate::base::seam::{Action, Conn, Core, Reply, Signal};
use tollgate::base::time::{Now, Unix};
use tollgate::gateway::orders::{Notice, Order};
use tollgate::gateway::{Gateway, Past, Start};
use tollgate::policy::ledger::LedgerNotice;
use tollgate::policy::row::{Row, Running};
use tollgate::policy::window::DAY_MS;

/// Number of requests that the tight plan ever admits.
const TIGHT: usize = 4;
/// Steps of one seed.
const STEPS: u64 = 1000;
const BODY: &str = "{\"model\":\"small\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}";
const ANSWER: &str = "{\"id\":\"x\",\"object\":\"chat.completion\",\"created\":1,\"model\":\"m\",\"choices\":[{\"message\":{\"content\":\"\"}}],\
                      \"usage\":{\"prompt_tokens\":6,\"completion_tokens\":4,\"total_tokens\":10}}";

/// Parts of the error messages: two processes admit,
pub const DOUBLE: &[&str] = &["out of turn", "was handed over", "were admitted", "when the successor takes it"];
/// a usage record is lost or counts twice,
pub const LOST: &[&str] = &["is lost", "in the ledger twice"];
/// or no process serves and none can start.
pub const STUCK: &[&str] = &[
    "no process can continue",
    "the service has ended",
    "no process serves",
    "does not serve",
    "not free",
    "does not end",
];

/// Counts of a run.
#[derive(Default, Debug)]
pub struct Tally {
    pub begun: u64,
    pub served: u64,
    pub taken_back: u64,
    pub spilled: u64,
    pub orphaned: u64,
    pub stopped: u64,
    pub refused: u64,
    pub crossed: u64,
    /// Stops while the ledger is to be returned but can no longer be written, before the gateway hears of the first
    /// attempt.
    pub locked: u64,
    /// Faults, by the stage of the successor.
    pub deaths: [u64; STAGES],
    pub stalls: [u64; STAGES],
    pub failing_ledgers: [u64; STAGES],
    pub predecessors_killed: [u64; STAGES],
}

impl Tally {
    fn outcomes(&mut self) -> [&mut u64; 9] {
        let Tally { begun, served, taken_back, spilled, orphaned, stopped, refused, crossed, locked, .. } = self;
        [begun, served, taken_back, spilled, orphaned, stopped, refused, crossed, locked]
    }

    fn faults(&mut self) -> [(&'static str, &mut [u64; STAGES]); 4] {
        [
            ("successor killed", &mut self.deaths),
            ("successor stalled", &mut self.stalls),
            ("ledger failed", &mut self.failing_ledgers),
            ("predecessor killed", &mut self.predecessors_killed),
        ]
    }

    fn add(&mut self, other: &mut Tally) {
        self.outcomes().into_iter().zip(other.outcomes()).for_each(|(sum, one)| *sum += *one);
        for ((_, sum), (_, one)) in self.faults().into_iter().zip(other.faults()) {
            sum.iter_mut().zip(one).for_each(|(sum, one)| *sum += *one);
        }
    }

    /// Returns true if each outcome has occurred, and each fault at each stage in which its process exists.
    pub fn is_rich(&mut self) -> bool {
        let came = self.outcomes().into_iter().all(|count| *count > 0);
        came && self.faults().into_iter().all(|(_, counts)| counts.iter().all(|count| *count > 0))
    }

    /// Returns one line per kind of fault, with counts by stage.
    pub fn reported_faults(&mut self) -> String {
        let told = |counts: &[u64; STAGES]| {
            let each = FAULTY.iter().zip(counts).map(|(stage, count)| format!("{stage:?} {count}"));
            each.collect::<Vec<_>>().join(", ")
        };
        let lines = self.faults().map(|(name, counts)| format!("  {name:<20} {}", told(counts)));
        lines.join("\n")
    }
}

/// The stages at which faults are counted.
const FAULTY: [Stage; STAGES] = [Stage::Starts, Stage::Waits, Stage::Goes, Stage::Has, Stage::Serves];
const STAGES: usize = 5;

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Who {
    Old,
    New,
}

/// The ledger, and the files next to it.
struct Disk {
    owner: Option<Who>,
    rows: Vec<Row>,
    spilled: Vec<Row>,
}

impl Disk {
    fn append_missing(&mut self, rows: Vec<Row>) {
        for row in rows {
            if self.rows.iter().all(|known| known.request != row.request) {
                self.rows.push(row);
            }
        }
    }
}

/// A client with one request.
pub(super) struct Caller {
    conn: Conn,
    request: Vec<u8>,
    answer: Vec<u8>,
}

/// A connection to the provider.
pub(super) struct Call {
    conn: Conn,
    heard: Vec<u8>,
    answer: Vec<u8>,
}

/// A gateway, its clients and providers, and its ledger thread.
pub(super) struct Process {
    pub(super) gateway: Gateway,
    pub(super) callers: Vec<Caller>,
    pub(super) calls: Vec<Call>,
    accepts: bool,
    exit: bool,
    /// Usage records that the thread has not committed.
    queue: Vec<Row>,
    /// True if the ledger has been handed over, or was to be: the queue waits.
    waits: bool,
    fails: bool,
    /// True if the ledger is to be returned, which happens once it can be written.
    returns: bool,
    /// Answers to clients whose connections have been closed.
    pub(super) heard: Vec<Vec<u8>>,
    starts_successor: bool,
    pub(super) orders: Vec<Order>,
    /// Requests whose first bytes have reached the provider since the last check.
    admitted: usize,
}

impl Process {
    pub(super) fn new(gateway: Gateway) -> Process {
        Process {
            gateway,
            callers: Vec::new(),
            calls: Vec::new(),
            accepts: true,
            exit: false,
            queue: Vec::new(),
            waits: false,
            fails: false,
            returns: false,
            heard: Vec::new(),
            starts_successor: false,
            orders: Vec::new(),
            admitted: 0,
        }
    }

    /// Performs the gateway's actions; its orders are only collected.
    pub(super) fn settle(&mut self, now: Now) -> Result<(), String> {
        for _ in 0..200 {
            self.gateway.dirty().clear();
            let mut busy = self.exchange(now);
            for order in std::mem::take(self.gateway.orders()) {
                busy = true;
                match order {
                    Order::Work(work) => self.gateway.notice(Notice::Worked(work.run()), now),
                    Order::Log(_) => {}
                    other => self.orders.push(other),
                }
            }
            for action in std::mem::take(self.gateway.actions()) {
                busy = true;
                self.perform(action, now);
            }
            if !busy {
                return Ok(());
            }
        }
        Err("the actions do not end".to_string())
    }

    fn perform(&mut self, action: Action, now: Now) {
        match action {
            Action::Dial { conn, .. } => {
                self.calls.push(Call { conn, heard: Vec::new(), answer: Vec::new() });
                self.gateway.reply(Reply::Dialed(conn), now);
            }
            Action::StopAccepting(_) => self.accepts = false,
            Action::StartSuccessor => self.starts_successor = true,
            Action::Exit => self.exit = true,
            Action::Hear(conn) => self.gateway.heard(conn, now),
            Action::Finish(_) | Action::Resolve { .. } => {}
            Action::Close { conn, .. } => {
                self.calls.retain(|call| call.conn != conn);
                if let Some(at) = self.callers.iter().position(|caller| caller.conn == conn) {
                    let caller = self.callers.swap_remove(at);
                    // A client that has not sent its whole request need not be answered.
                    if caller.request.is_empty() || !caller.answer.is_empty() {
                        self.heard.push(caller.answer);
                    }
                }
            }
        }
    }

    fn exchange(&mut self, now: Now) -> bool {
        let mut busy = false;
        for caller in &mut self.callers {
            let bytes = self.gateway.unsent(caller.conn).to_vec();
            if !bytes.is_empty() {
                busy = true;
                self.gateway.wrote(caller.conn, bytes.len(), now);
                caller.answer.extend_from_slice(&bytes);
            }
        }
        for call in &mut self.calls {
            let bytes = self.gateway.unsent(call.conn).to_vec();
            if bytes.is_empty() {
                continue;
            }
            busy = true;
            self.gateway.wrote(call.conn, bytes.len(), now);
            if call.heard.is_empty() {
                self.admitted += 1;
            }
            call.heard.extend_from_slice(&bytes);
            if call.heard.ends_with(b"}") {
                let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: ";
                call.answer = format!("{head}{}\r\n\r\n{ANSWER}", ANSWER.len()).into_bytes();
            }
        }
        busy
    }

    /// Connects a new client if the gateway accepts one.
    pub(super) fn call(&mut self, key: &str, now: Now) {
        if self.exit || self.callers.len() > 6 || !self.accepts || !self.gateway.wants_clients(0) {
            return;
        }
        let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nauthorization: Bearer";
        let request = format!("{head} {key}\r\ncontent-length: {}\r\n\r\n{BODY}", BODY.len()).into_bytes();
        self.ask(request, now);
    }

    /// Connects a new client with this request.
    pub(super) fn ask(&mut self, request: Vec<u8>, now: Now) {
        let Some(conn) = self.gateway.accepted(0, "192.0.2.7:9".parse().unwrap(), now) else { return };
        self.callers.push(Caller { conn, request, answer: Vec::new() });
    }

    /// A client sends a part of its request, or all of it.
    pub(super) fn say(&mut self, which: u64, all: bool, now: Now) {
        if self.callers.is_empty() {
            return;
        }
        let index = (which % self.callers.len() as u64) as usize;
        let caller = &mut self.callers[index];
        let count = if all { caller.request.len() } else { caller.request.len().min(60) };
        let bytes: Vec<u8> = caller.request.drain(..count).collect();
        if !bytes.is_empty() {
            self.gateway.bytes(caller.conn, &bytes, now);
        }
    }

    /// The provider sends a part of an answer.
    pub(super) fn provide(&mut self, which: u64, now: Now) {
        if self.calls.is_empty() {
            return;
        }
        let index = (which % self.calls.len() as u64) as usize;
        let call = &mut self.calls[index];
        let count = call.answer.len().min(100);
        let bytes: Vec<u8> = call.answer.drain(..count).collect();
        if !bytes.is_empty() {
            call.heard.clear();
            self.gateway.bytes(call.conn, &bytes, now);
        }
    }
}

/// Messages to the helper of the old process, in order.
enum Message {
    HandOver,
    Rows(Vec<Row>),
    LetServe,
    TakeBack,
    Ready,
    Taken,
    Safe(u64),
    Died,
}

/// Stage of the successor.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Stage {
    None,
    Starts,
    /// The successor has reported that it is ready.
    Waits,
    /// The ledger is free for it.
    Goes,
    /// The successor has reported that it has the ledger.
    Has,
    Serves,
    Dead,
}

struct World {
    rng: Rng,
    now: Now,
    keys: KeyRing,
    disk: Disk,
    old: Option<Process>,
    new: Option<Process>,
    stage: Stage,
    /// Stage at which the successor dies, or stalls if the flag is true.
    fate: Option<(Stage, bool)>,
    /// True if the old process's ledger cannot be written from the hand-over on, and never again.
    locks: bool,
    running: Vec<Running>,
    messages: VecDeque<Message>,
    /// Usage records on their way to the successor.
    passed: VecDeque<Row>,
    /// Usage records in the helper that are not known to be committed.
    unsafe_rows: Vec<Row>,
    /// Orders of the gateways that the helper has executed.
    given: bool,
    away: bool,
    released: bool,
    told_to_serve: bool,
    failed: bool,
    /// True if the successor may continue.
    go: bool,
    stopped: bool,
    /// True if the event loop of the old process has ended.
    leaving: bool,
    /// True if the successor has stalled.
    stalls: bool,
    /// Number of requests lost with a killed process.
    lost: usize,
    old_was_killed: bool,
    rows_given: Vec<(Who, Row)>,
    tally: Tally,
}

/// Runs one seed and adds its counts to `sum`.
pub fn run(seed: u64, sum: &mut Tally) -> Result<(), String> {
    let mut world = World::new(seed);
    let done = world.run(seed);
    sum.add(&mut world.tally);
    done
}

impl World {
    fn new(seed: u64) -> World {
        let mut keys = KeyRing::default();
        keys.issue("wide", &[]);
        keys.issue("tight", &["plan=tight"]);
        let mut world = World {
            rng: Rng::from_u64(seed),
            now: begin(),
            keys,
            disk: Disk { owner: Some(Who::Old), rows: Vec::new(), spilled: Vec::new() },
            old: None,
            new: None,
            stage: Stage::None,
            fate: None,
            locks: false,
            running: Vec::new(),
            messages: VecDeque::new(),
            passed: VecDeque::new(),
            unsafe_rows: Vec::new(),
            given: false,
            away: false,
            released: false,
            told_to_serve: false,
            failed: false,
            go: false,
            stopped: false,
            leaving: false,
            stalls: false,
            lost: 0,
            old_was_killed: false,
            rows_given: Vec::new(),
            tally: Tally::default(),
        };
        world.old = Some(Process::new(world.gateway(seed, None)));
        world
    }

    fn gateway(&self, seed: u64, running: Option<Vec<Running>>) -> Gateway {
        let mut bytes = [0u8; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        let mut setting = setting(false, LedgerKind::File, Wider::default());
        setting.set("plan tight", "window = \"7d\"");
        let past = |row: &Row| Past {
            key: row.key,
            group: row.group.clone(),
            at: row.admitted,
            used: row.amount(),
            requests: 1,
            model: row.model.clone(),
            target: row.target.clone(),
        };
        let recent = self.disk.rows.iter().map(past).collect();
        let of_day = |row: &Row| Past { at: Unix(row.admitted.0 / DAY_MS * DAY_MS), ..past(row) };
        let days = self.disk.rows.iter().map(of_day).collect();
        let keys = self.keys.records.clone();
        let start =
            Start { seed: bytes, client_listeners: 1, keys: keys.into(), days, recent, running, ..Start::default() };
        Gateway::new(Arc::new(setting.high()), start, self.now)
    }

    fn run(&mut self, seed: u64) -> Result<(), String> {
        let upgrade = 100 + self.rng.below(150);
        if self.rng.below(4) > 0 {
            self.fate = Some((FAULTY[self.rng.below(5) as usize], self.rng.below(3) == 0));
        }
        self.locks = seed % 10 == 9;
        let soon = upgrade + self.rng.below(150);
        let (stop, kill) = match self.rng.below(6) {
            0 => (soon, 0),
            1 => (0, soon),
            _ => (0, 0),
        };
        for step in 1..=STEPS {
            if step == upgrade {
                self.signal(Signal::Upgrade)?;
            }
            if step == stop || (self.is_locked() && self.rng.below(16) == 0) {
                self.stop()?;
            }
            if step == kill {
                self.kill_old();
            }
            let stepped = self.step(seed).and_then(|()| self.find_next_process());
            stepped.map_err(|error| format!("step {step}: {error}"))?;
        }
        self.finish(seed)
    }

    /// Returns true if the ledger could not be handed over and can no longer be written.
    fn is_locked(&self) -> bool {
        self.locks && self.old.as_ref().is_some_and(|old| old.fails && (old.waits || old.returns))
    }

    /// Sends TERM to the old process, once.
    fn stop(&mut self) -> Result<(), String> {
        let Some(old) = self.old.as_ref().filter(|_| !self.stopped) else { return Ok(()) };
        self.tally.locked = u64::from(self.is_locked() && old.waits);
        (self.stopped, self.tally.stopped) = (true, 1);
        self.signal(Signal::Terminate)
    }

    fn process(&mut self, who: Who) -> Option<&mut Process> {
        match who {
            Who::Old => self.old.as_mut(),
            Who::New => self.new.as_mut().filter(|_| self.stage == Stage::Serves),
        }
    }

    fn signal(&mut self, signal: Signal) -> Result<(), String> {
        let now = self.now;
        if let Some(old) = &mut self.old {
            old.gateway.reply(Reply::Signal(signal), now);
        }
        self.settle(Who::Old)
    }

    fn step(&mut self, seed: u64) -> Result<(), String> {
        let (now, which, what) = (self.now, self.rng.next_u64(), self.rng.below(16));
        let who = if self.rng.below(2) == 0 { Who::Old } else { Who::New };
        match what {
            0 => {
                let micros = [500, 5_000, 100_000, 2_500_000][(which % 4) as usize];
                return self.pass_time(micros);
            }
            1..=3 => {
                let key = self.keys.texts[if which % 4 == 0 { "tight" } else { "wide" }].clone();
                self.process(who).into_iter().for_each(|own| own.call(&key, now));
            }
            4..=6 => self.process(who).into_iter().for_each(|own| own.say(which >> 8, which % 3 > 0, now)),
            7 | 8 => self.process(who).into_iter().for_each(|own| own.provide(which, now)),
            9 | 10 => self.commit(who),
            11 | 12 => return self.help(),
            13 | 14 => return self.succeed(seed),
            _ if which % 10 == 0 => {
                let locked = self.is_locked() && who == Who::Old;
                if let Some(own) = self.process(who).filter(|_| !locked) {
                    own.fails = !own.fails;
                    let fails = own.fails;
                    let broken = Notice::Ledger(LedgerNotice::Failed("full".to_string()));
                    own.gateway.notice(if fails { broken } else { Notice::Ledger(LedgerNotice::Recovered) }, now);
                    if fails {
                        self.strike(|tally| &mut tally.failing_ledgers);
                    }
                }
            }
            _ => {}
        }
        self.settle(who)
    }

    fn pass_time(&mut self, micros: u64) -> Result<(), String> {
        let target = later(self.now, micros);
        for who in [Who::Old, Who::New] {
            for _ in 0..1000 {
                let Some(own) = self.process(who) else { break };
                let Some(due) = own.gateway.next_deadline().filter(|due| *due <= target.mono) else { break };
                let at = later(begin(), due.0.saturating_sub(begin().mono.0));
                let Some(own) = self.process(who) else { break };
                own.gateway.expire(at);
                self.settle(who)?;
            }
        }
        self.now = target;
        Ok(())
    }

    /// Commits the pending records of a process.
    fn commit(&mut self, who: Who) {
        let now = self.now;
        let is_back = self.process(who).is_some_and(|own| own.returns && !own.fails);
        if is_back && self.disk.owner.is_none() {
            self.disk.owner = Some(who);
        }
        let owns = self.disk.owner == Some(who);
        let Some(own) = self.process(who).filter(|own| owns && !own.fails && !own.waits) else { return };
        own.returns = false;
        let rows = std::mem::take(&mut own.queue);
        if !rows.is_empty() {
            own.gateway.notice(Notice::Ledger(LedgerNotice::Committed(rows.len() as u64)), now);
            self.disk.rows.extend(rows);
        }
    }

    /// Performs the actions of a process, and checks that they are allowed.
    fn settle(&mut self, who: Who) -> Result<(), String> {
        let now = self.now;
        loop {
            let Some(own) = self.process(who) else { return Ok(()) };
            own.settle(now)?;
            let (orders, heard) = (std::mem::take(&mut own.orders), std::mem::take(&mut own.heard));
            let admitted = std::mem::take(&mut own.admitted);
            let has_turn = who == Who::New || !self.given;
            if admitted > 0 && !has_turn {
                return Err(format!("{who:?} sends a request to the provider out of turn"));
            }
            let Some(own) = self.process(who) else { return Ok(()) };
            if std::mem::take(&mut own.starts_successor) {
                self.stage = Stage::Starts;
                self.failed = false;
                self.tally.begun += 1;
            }
            heard.iter().try_for_each(|answer| self.judge(answer))?;
            if orders.is_empty() {
                break;
            }
            orders.into_iter().try_for_each(|order| self.order(who, order))?;
        }
        if who == Who::Old && !self.leaving && self.old.as_ref().is_some_and(|own| own.exit) {
            self.leave(0)?;
        }
        Ok(())
    }

    fn judge(&mut self, answer: &[u8]) -> Result<(), String> {
        let text = String::from_utf8_lossy(answer);
        match text.get(9..12) {
            Some("200" | "408" | "429" | "504") => Ok(()),
            Some("503") if text.contains("retry-after: ") => {
                self.tally.refused += 1;
                Ok(())
            }
            None if self.stopped => Ok(()),
            _ => Err(format!("unexpected answer: {text:?}")),
        }
    }

    fn order(&mut self, who: Who, order: Order) -> Result<(), String> {
        match (order, who) {
            (Order::Rows(rows), Who::Old) if self.away => {
                let known = |row: &Row| self.running.iter().any(|one| one.request == row.request);
                if !rows.iter().all(known) {
                    return Err(format!("admitted after the ledger was handed over: {rows:?}"));
                }
                self.tally.crossed += rows.len() as u64;
                self.rows_given.extend(rows.iter().map(|row| (who, row.clone())));
                self.messages.push_back(Message::Rows(rows));
            }
            (Order::Rows(rows), who) => {
                self.rows_given.extend(rows.iter().map(|row| (who, row.clone())));
                self.process(who).into_iter().for_each(|own| own.queue.extend(rows.iter().cloned()));
            }
            (Order::HandOver(running, ..), Who::Old) => {
                (self.given, self.away, self.running) = (true, true, running);
                self.messages.push_back(Message::HandOver);
            }
            (Order::LetServe, Who::Old) => self.messages.push_back(Message::LetServe),
            (Order::TakeBack, Who::Old) => {
                self.tally.taken_back += 1;
                self.away = false;
                self.messages.push_back(Message::TakeBack);
            }
            (Order::Acknowledge(rows), Who::New) => self.messages.push_back(Message::Safe(rows)),
            (other, who) => return Err(format!("unexpected order of {who:?}: {other:?}")),
        }
        Ok(())
    }

    /// The helper handles its next message, or spills records that a dead successor has left.
    fn help(&mut self) -> Result<(), String> {
        let now = self.now;
        let Some(message) = self.messages.pop_front() else { return self.spill() };
        let Some(old) = &mut self.old else { return Ok(()) };
        match message {
            Message::HandOver => {
                old.waits = true;
                if self.locks && !std::mem::replace(&mut old.fails, true) {
                    old.gateway.notice(Notice::Ledger(LedgerNotice::Failed("locked".to_string())), now);
                }
                if old.fails {
                    self.messages.push_front(Message::Died);
                    return Ok(());
                }
                let rows = std::mem::take(&mut old.queue);
                old.gateway.notice(Notice::Ledger(LedgerNotice::Committed(rows.len() as u64)), now);
                self.disk.rows.extend(rows);
                (self.disk.owner, self.released, self.go) = (None, true, true);
            }
            Message::Rows(rows) => {
                self.unsafe_rows.extend(rows.iter().cloned());
                if self.told_to_serve && self.stage != Stage::Dead {
                    self.passed.extend(rows);
                }
            }
            Message::LetServe => {
                self.told_to_serve = true;
                self.passed = self.unsafe_rows.iter().cloned().collect();
            }
            Message::TakeBack => self.take_back()?,
            Message::Ready if !self.failed => old.gateway.notice(Notice::SuccessorReady, now),
            Message::Taken if !self.failed => old.gateway.notice(Notice::SuccessorTaken, now),
            Message::Ready | Message::Taken => {}
            Message::Safe(rows) => {
                self.unsafe_rows.drain(..rows as usize);
                old.gateway.notice(Notice::Ledger(LedgerNotice::Committed(rows)), now);
            }
            Message::Died => {
                if !std::mem::replace(&mut self.failed, true) {
                    self.tally.orphaned += u64::from(self.told_to_serve);
                    old.gateway.notice(Notice::SuccessorFailed("it has died".to_string()), now);
                }
            }
        }
        self.settle(Who::Old)
    }

    /// Spills records of the old process that no successor accepts any more.
    fn spill(&mut self) -> Result<(), String> {
        let Some(old) = &mut self.old else { return Ok(()) };
        if !self.told_to_serve || !self.failed || self.unsafe_rows.is_empty() {
            return Ok(());
        }
        let mut rows = std::mem::take(&mut self.unsafe_rows);
        self.tally.spilled += rows.len() as u64;
        old.gateway.notice(Notice::Ledger(LedgerNotice::Committed(rows.len() as u64)), self.now);
        self.disk.spilled.append(&mut rows);
        self.settle(Who::Old)
    }

    /// Kills the successor and takes the ledger and the records back.
    fn take_back(&mut self) -> Result<(), String> {
        if self.told_to_serve {
            return Err("the gateway retakes a ledger that its successor uses".to_string());
        }
        self.kill_new();
        if self.disk.owner.is_some_and(|owner| owner == Who::New) || (self.released && self.disk.owner.is_some()) {
            return Err(format!("the ledger is not free: {:?}", self.disk.owner));
        }
        let rows = std::mem::take(&mut self.unsafe_rows);
        self.messages.clear();
        (self.stage, self.go, self.released, self.given) = (Stage::None, false, false, false);
        let Some(old) = &mut self.old else { return Ok(()) };
        (old.waits, old.returns) = (false, true);
        old.queue.splice(0..0, rows);
        // The first attempt to write, whose result is always reported.
        self.commit(Who::Old);
        self.old.iter_mut().for_each(|old| old.gateway.notice(Notice::SuccessorGone, self.now));
        Ok(())
    }

    /// Kills the successor with `kill -9`, at any stage.
    fn kill_new(&mut self) {
        if let Some(new) = self.new.take().filter(|_| self.stage == Stage::Serves) {
            self.lost += new.queue.len() + new.gateway.vitals().holds;
        }
        self.rows_given.retain(|(who, _)| *who == Who::Old);
        if self.disk.owner == Some(Who::New) {
            self.disk.owner = None;
        }
        self.stage = Stage::Dead;
        self.passed.clear();
    }

    fn kill_old(&mut self) {
        let Some(old) = self.old.take() else { return };
        self.strike(|tally| &mut tally.predecessors_killed);
        self.lost += old.queue.len() + self.unsafe_rows.len() + old.gateway.vitals().holds;
        self.lost += self
            .messages
            .iter()
            .map(|message| if let Message::Rows(rows) = message { rows.len() } else { 0 })
            .sum::<usize>();
        self.rows_given.retain(|(who, _)| *who == Who::New);
        self.old_was_killed = true;
        if self.disk.owner == Some(Who::Old) {
            self.disk.owner = None;
        }
        self.messages.clear();
    }

    /// The successor advances by one stage, dies, or stalls.
    fn succeed(&mut self, seed: u64) -> Result<(), String> {
        match self.fate {
            Some((stage, true)) if stage == self.stage => {
                if !std::mem::replace(&mut self.stalls, true) {
                    self.strike(|tally| &mut tally.stalls);
                }
                return Ok(());
            }
            Some((stage, false)) if stage == self.stage && self.rng.below(3) == 0 => {
                self.strike(|tally| &mut tally.deaths);
                self.kill_new();
                self.messages.push_back(Message::Died);
                return Ok(());
            }
            _ => {}
        }
        match self.stage {
            Stage::Starts => {
                self.messages.push_back(Message::Ready);
                self.stage = Stage::Waits;
            }
            Stage::Waits if self.go || self.old.is_none() => self.stage = Stage::Goes,
            Stage::Goes => {
                if let Some(owner) = self.disk.owner.replace(Who::New) {
                    return Err(format!("the ledger belongs to {owner:?} when the successor takes it"));
                }
                let gateway = self.gateway(seed + 1, Some(self.running.clone()));
                self.new = Some(Process::new(gateway));
                self.messages.push_back(Message::Taken);
                self.stage = Stage::Has;
            }
            Stage::Has if self.told_to_serve || self.old.is_none() => {
                self.tally.served += 1;
                self.stage = Stage::Serves;
            }
            Stage::Serves => {
                let (now, row) = (self.now, self.passed.pop_front());
                if let (Some(row), Some(new)) = (row, self.new.as_mut()) {
                    new.gateway.notice(Notice::Inherited(row), now);
                }
                return self.settle(Who::New);
            }
            _ => {}
        }
        Ok(())
    }

    /// Counts a fault at the successor's present stage.
    fn strike(&mut self, fault: impl FnOnce(&mut Tally) -> &mut [u64; STAGES]) {
        if let Some(at) = FAULTY.iter().position(|stage| *stage == self.stage) {
            fault(&mut self.tally)[at] += 1;
        }
    }

    /// Checks that a process serves, that an action in progress leads there, or that the ledger is free for a new
    /// process.
    fn find_next_process(&self) -> Result<(), String> {
        let lives = FAULTY.contains(&self.stage);
        let is_on = match self.old.as_ref().filter(|own| !own.exit) {
            Some(_) if !self.given || lives => true,
            Some(own) => {
                let free = self.told_to_serve && self.disk.owner.is_none();
                free || !self.messages.is_empty() || own.gateway.next_deadline().is_some()
            }
            None => lives || self.disk.owner.is_none() || self.old.is_some(),
        };
        if is_on {
            Ok(())
        } else {
            Err(format!("no process can continue: {:?}, {:?} has the ledger", self.stage, self.disk.owner))
        }
    }

    /// The event loop of the old process has ended, and its threads handle the last records.
    fn leave(&mut self, seed: u64) -> Result<(), String> {
        self.leaving = true;
        for _ in 0..200 {
            self.help()?;
            if self.told_to_serve && !self.unsafe_rows.is_empty() {
                self.succeed(seed)?;
                self.commit(Who::New);
                self.settle(Who::New)?;
            }
        }
        if !self.told_to_serve && self.stage != Stage::None {
            self.kill_new();
        }
        let Some(mut old) = self.old.take() else { return Ok(()) };
        let mut left = std::mem::take(&mut self.unsafe_rows);
        left.append(&mut old.queue);
        if old.fails || !matches!(self.disk.owner, None | Some(Who::Old)) {
            self.tally.spilled += left.len() as u64;
            self.disk.spilled.append(&mut left);
        }
        self.disk.append_missing(left);
        if self.disk.owner == Some(Who::Old) {
            self.disk.owner = None;
        }
        Ok(())
    }

    /// Lets everything end, then checks the invariants.
    fn finish(&mut self, seed: u64) -> Result<(), String> {
        for round in 0..400 {
            if self.is_locked() {
                self.stop()?;
            }
            let now = self.now;
            for who in [Who::Old, Who::New] {
                let locked = self.is_locked() && who == Who::Old;
                if let Some(own) = self.process(who) {
                    if !locked && std::mem::take(&mut own.fails) {
                        own.gateway.notice(Notice::Ledger(LedgerNotice::Recovered), now);
                    }
                    (0..8).for_each(|which| own.say(which, true, now));
                    (0..8).for_each(|which| own.provide(which, now));
                }
                self.settle(who)?;
                self.commit(who);
                self.settle(who)?;
            }
            self.help()?;
            self.succeed(seed)?;
            if round % 4 == 0 {
                self.pass_time(1_000_000)?;
            }
        }
        self.find_server()?;
        let spilled = std::mem::take(&mut self.disk.spilled);
        self.disk.append_missing(spilled);
        let known: BTreeSet<[u8; 16]> = self.disk.rows.iter().map(|row| row.request).collect();
        if known.len() < self.disk.rows.len() {
            return Err("a row is in the ledger twice".to_string());
        }
        if let Some((who, row)) = self.rows_given.iter().find(|(_, row)| !known.contains(&row.request)) {
            return Err(format!("a row of {who:?} is lost: {row:?}"));
        }
        let tight = self.keys.records.iter().find(|record| record.name == "tight").map(|record| record.id);
        let count = self.disk.rows.iter().filter(|row| Some(row.key) == tight).count();
        if count > TIGHT + self.lost {
            return Err(format!("{count} requests of {TIGHT} were admitted, {} were lost", self.lost));
        }
        Ok(())
    }

    /// Checks that a process serves, or that one can be started.
    fn find_server(&mut self) -> Result<(), String> {
        if self.stopped && self.old.is_some() {
            return Err("a stopped process does not end".to_string());
        }
        let who = match (self.stage, &self.old) {
            (Stage::Serves, _) => Who::New,
            (_, Some(_)) if !self.told_to_serve => Who::Old,
            (stage, _) if self.old.is_none() && !self.stopped && !self.old_was_killed && !self.told_to_serve => {
                return Err(format!("the service has ended, with a successor in stage {stage:?}"));
            }
            _ if self.disk.owner.is_none() => return Ok(()),
            // The predecessor is dead and the successor stalls.
            _ if self.fate.is_some_and(|(at, stalls)| stalls && at == self.stage) => return Ok(()),
            _ => return Err(format!("{:?} has the ledger, but no process serves", self.disk.owner)),
        };
        let (key, now) = (self.keys.texts["wide"].clone(), self.now);
        let Some(own) = self.process(who) else { return Err("no process serves".to_string()) };
        own.call(&key, now);
        (0..8).for_each(|which| own.say(which, true, now));
        own.settle(now)?;
        (0..32).for_each(|which| own.provide(which, now));
        own.settle(now)?;
        let is_served = own.callers.iter().any(|caller| caller.answer.starts_with(b"HTTP/1.1 200"));
        if is_served { Ok(()) } else { Err(format!("{who:?} does not serve")) }
    }
}
