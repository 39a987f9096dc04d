//! Fuzzes the whole gateway: an input is a program of its entry points, in simulated time. Clients and providers send
//! messages from a list or bytes of the program; connections break, dials fail, time passes, helper threads answer
//! late. Invariants: no panic, every client receives a sequence of valid HTTP answers, no bound is exceeded, every
//! usage record is settled once, and at the end nothing is held.

use super::support::answers::{Answers, Piece};
use super::support::setting::{KeyRing, Setting, begin};
use super::support::vitals::{nothing_is_held, vitals_hold};
use super::support::world::{Driver, Machine, Pipe};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};
use tollgate::base::seam::{Conn, Core, DialError, Ending, Reply, Shut, Side, Signal};
use tollgate::base::time::Mono;
use tollgate::gateway::orders::{Notice, Order, Reloaded};
use tollgate::gateway::{Gateway, Start};
use tollgate::policy::config::Config;
use tollgate::policy::keys::{KeyAnswer, KeyNews};
use tollgate::policy::ledger::LedgerNotice;

const CONNECTIONS_MAX: usize = 8;
/// `max_buffered`, plus the maximum excess by a single read.
const BUDGET: usize = (1 << 20) + (128 << 10);

struct Fixed {
    configs: [Arc<Config>; 2],
    keys: KeyRing,
    /// Messages of clients, and of providers.
    says: [Vec<Vec<u8>>; 2],
}

static FIXED: LazyLock<Fixed> = LazyLock::new(|| {
    let mut setting = Setting::default();
    for (section, line) in [
        ("server", "max_body = \"64KiB\""),
        ("server", "max_buffered = \"1MiB\""),
        ("server", "max_connections = 6"),
        ("upstream", "first_byte_timeout = \"20s\""),
        ("upstream", "idle_timeout = \"20s\""),
        ("upstream", "max_event = \"16KiB\""),
        ("upstream", "max_response = \"32KiB\""),
        ("provider ant", "base_url = \"http://ant.test\""),
        ("provider second", "shape = \"chat\""),
        ("provider second", "base_url = \"http://10.0.0.3/v1\""),
        ("plan tight", "requests = 2"),
        ("plan tight", "concurrency = 1"),
    ] {
        setting.set(section, line);
    }
    let mut other = setting.clone();
    let both = "targets = [{ provider = \"second\", model = \"b\" }, { provider = \"up\", model = \"a\" }]";
    other.set("model small", both);
    let mut keys = KeyRing::default();
    keys.issue("wide", &[]);
    keys.issue("tight", &["plan=tight"]);
    let says = [requests(&keys), answers()];
    Fixed { configs: [Arc::new(setting.high()), Arc::new(other.high())], keys, says }
});

fn requests(keys: &KeyRing) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    let text = "\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}]";
    for key in ["wide", "tight"].map(|name| &keys.texts[name]) {
        for (path, model, more) in [
            ("chat/completions", "small", ""),
            ("chat/completions", "small", ",\"stream\":true,\"stream_options\":{\"include_usage\":true}"),
            ("chat/completions", "large", ",\"stream\":true"),
            ("messages", "large", ",\"max_tokens\":9"),
            ("messages", "large", ",\"max_tokens\":9,\"stream\":true"),
            ("messages", "small", ",\"max_tokens\":9,\"stream\":true"),
        ] {
            let body = format!("{{\"model\":\"{model}\",{text}{more}}}");
            let head = format!("POST /v1/{path} HTTP/1.1\r\nhost: g\r\nauthorization: Bearer {key}\r\n");
            all.push(format!("{head}content-length: {}\r\n\r\n{body}", body.len()));
            let chunked = format!("transfer-encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
            all.push(format!("{head}expect: 100-continue\r\n{chunked}"));
        }
        for path in ["/v1/models", "/v1/quota", "/"] {
            all.push(format!("GET {path} HTTP/1.1\r\nhost: g\r\nauthorization: Bearer {key}\r\n\r\n"));
            all.push(format!("HEAD {path} HTTP/1.0\r\nauthorization: Bearer {key}\r\n\r\n"));
        }
    }
    all.into_iter().map(String::into_bytes).collect()
}

fn answers() -> Vec<Vec<u8>> {
    let chat = "{\"id\":\"c\",\"object\":\"chat.completion\",\"model\":\"m\",\"choices\":[{\"index\":0,\"message\":\
                {\"role\":\"assistant\",\"content\":\"hi\"},\"finish_reason\":\"stop\"}],\
                \"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2}}";
    let message = "{\"id\":\"m\",\"type\":\"message\",\"role\":\"assistant\",\"model\":\"m\",\"content\":[{\"type\":\
                   \"text\",\"text\":\"hi\"}],\"stop_reason\":\"end_turn\",\
                   \"usage\":{\"input_tokens\":3,\"output_tokens\":2}}";
    let mut all = Vec::new();
    for (status, body) in [(200, chat), (200, message), (429, "{}"), (500, "{\"error\":{\"message\":\"no\"}}")] {
        all.push(format!("HTTP/1.1 {status} Word\r\ncontent-length: {}\r\n\r\n{body}", body.len()));
    }
    all.extend(
        [
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n",
            "HTTP/1.1 103 Early Hints\r\n\r\n",
            "HTTP/1.1 100 Continue\r\n\r\n",
            "0\r\n\r\n",
        ]
        .map(str::to_string),
    );
    for event in [
        "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n",
        "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n",
        "data: {\"id\":\"c\",\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2}}\n\n",
        "data: [DONE]\n\n",
        "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"usage\":{\"input_tokens\":3}}}\n\n",
        "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\
         \"text\",\"text\":\"\"}}\n\n",
        "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\
         \"text_delta\",\"text\":\"a\"}}\n\n",
        "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n",
        "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\
         \"usage\":{\"output_tokens\":2}}\n\n",
        "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
        "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"t\",\"message\":\"no\"}}\n\n",
        ": comment\n\n",
    ] {
        all.push(event.to_string());
        all.push(format!("{:x}\r\n{event}\r\n", event.len()));
    }
    all.into_iter().map(String::into_bytes).collect()
}

/// The remote end of a connection.
struct Peer {
    pipe: Pipe,
    /// Parser of the answers that a client receives.
    answers: Answers,
}

/// The bytes of an input, consumed one after the other; zeros after its end.
struct Program<'a>(&'a [u8]);

impl Program<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn bytes(&mut self) -> Vec<u8> {
        let count = usize::from(self.byte()).min(self.0.len());
        let (first, rest) = self.0.split_at(count);
        self.0 = rest;
        first.to_vec()
    }
}

struct World {
    machine: Machine,
    clients: Vec<Peer>,
    providers: Vec<Peer>,
    dialing: Vec<Conn>,
    uncommitted: u64,
    settled: BTreeSet<String>,
    reloading: bool,
    /// Stage of a successor: it starts, it gets the ledger, the ledger is taken back.
    succeeding: Option<Succeeding>,
}

/// Next event of a successor.
enum Succeeding {
    Starts,
    Takes,
    Ends,
}

/// Runs one program.
pub fn run(data: &[u8]) {
    let Some((first, rest)) = data.split_first() else { return };
    let now = begin();
    // If even small pieces of work go to a helper thread, any event can happen while it works.
    let work_min = [None, Some(0), Some(100), Some(600)][usize::from(first & 3)];
    let keys = FIXED.keys.records.clone();
    let start = Start { seed: [7; 32], client_listeners: 1, keys: keys.into(), work_min, ..Start::default() };
    let mut world = World {
        machine: Machine::new(Gateway::new(FIXED.configs[0].clone(), start, now), now),
        clients: Vec::new(),
        providers: Vec::new(),
        dialing: Vec::new(),
        uncommitted: 0,
        settled: BTreeSet::new(),
        reloading: false,
        succeeding: None,
    };
    let mut program = Program(rest);
    while !program.0.is_empty() && !world.machine.exit {
        world.step(&mut program);
        world.settle().unwrap();
        vitals_hold(&world.machine.gateway.vitals(), BUDGET).unwrap();
    }
    world.end();
}

impl Driver for World {
    fn parts(&mut self) -> (&mut Machine, impl Iterator<Item = &mut Pipe>) {
        let peers = self.clients.iter_mut().chain(&mut self.providers);
        (&mut self.machine, peers.map(|peer| &mut peer.pipe))
    }

    fn take_orders(&mut self, orders: Vec<Order>) -> Result<(), String> {
        for order in orders {
            match order {
                Order::Rows(rows) => {
                    self.uncommitted += rows.len() as u64;
                    for row in rows {
                        assert!(self.settled.insert(format!("{:?}", row.request)), "settled twice: {row:?}");
                    }
                }
                Order::Work(work) => self.machine.works.push(*work),
                Order::Reload(_) => self.reloading = true,
                Order::Desk(ask) => self.machine.notice(Notice::Desk(ask.answer(200, Ok(b"{}".to_vec())))),
                Order::Capture(captured) => {
                    self.machine.notice(Notice::Captured(captured.key, captured.kept(), Ok(())))
                }
                Order::Log(lines) | Order::Spans(_, lines) => assert!(lines.ends_with(b"\n")),
                Order::HandOver(..) => self.succeeding = Some(Succeeding::Takes),
                Order::TakeBack => self.succeeding = Some(Succeeding::Ends),
                Order::LookUp(ids) => self.machine.lookups.extend(ids),
                Order::LetServe
                | Order::Alerts(..)
                | Order::Acknowledge(_)
                | Order::Asks(_)
                | Order::Renew(_)
                | Order::List(_)
                | Order::Releases(_)
                | Order::Uses(_) => {}
            }
        }
        Ok(())
    }

    fn dial(&mut self, conn: Conn, _addr: SocketAddr) {
        self.dialing.push(conn);
    }

    fn start_successor(&mut self) -> Result<(), String> {
        self.succeeding = Some(Succeeding::Starts);
        Ok(())
    }

    fn close(&mut self, conn: Conn, _shut: Shut) -> Result<(), String> {
        let count = |world: &World| world.clients.len() + world.providers.len() + world.dialing.len();
        let before = count(self);
        self.clients.retain(|peer| peer.pipe.conn != conn);
        self.providers.retain(|peer| peer.pipe.conn != conn);
        self.dialing.retain(|dialed| *dialed != conn);
        assert_eq!(count(self) + 1, before, "the gateway closed a connection that was not open: {conn:?}");
        Ok(())
    }
}

impl World {
    fn step(&mut self, program: &mut Program<'_>) {
        let verb = program.byte();
        let which = usize::from(verb >> 4);
        match verb & 15 {
            0 => self.connect(),
            1 | 2 => self.say(Side::Client, which, program),
            3 | 4 => self.say(Side::Upstream, which, program),
            5 => self.send(Side::Client, which, program.byte()),
            6 => self.send(Side::Upstream, which, program.byte()),
            7 => self.take(Side::Client, which, program.byte()),
            8 => self.take(Side::Upstream, which, program.byte()),
            9 => self.end_of(Side::Client, which, program.byte()),
            10 => self.end_of(Side::Upstream, which, program.byte()),
            11 => self.dialed(program.byte()),
            12 => {
                let byte = program.byte();
                // From a microsecond to an hour.
                self.advance(u64::from(byte & 15) << (byte >> 4 << 1)).unwrap();
            }
            13 => self.thread(program.byte()),
            14 => self.signal(which),
            _ => self.stale(which, program.byte()),
        }
    }

    /// Returns the peer, if there is one, and the machine.
    fn peer(&mut self, side: Side, which: usize) -> Option<(&mut Peer, &mut Machine)> {
        let peers = if side == Side::Client { &mut self.clients } else { &mut self.providers };
        let count = peers.len().max(1);
        Some((peers.get_mut(which % count)?, &mut self.machine))
    }

    fn open(&self, conn: Conn) -> Peer {
        Peer { pipe: Pipe::new(conn, self.machine.now), answers: Answers::default() }
    }

    fn connect(&mut self) {
        if self.clients.len() < CONNECTIONS_MAX {
            let peer = "192.0.2.7:999".parse().unwrap();
            let conn = self.machine.gateway.accepted(0, peer, self.machine.now);
            let client = conn.map(|conn| self.open(conn));
            self.clients.extend(client);
        }
    }

    /// Appends a message from the list, or bytes of the program, to the outbox.
    fn say(&mut self, side: Side, which: usize, program: &mut Program<'_>) {
        let list = &FIXED.says[usize::from(side == Side::Upstream)];
        let number = usize::from(program.byte());
        let bytes = list.get(number).cloned().unwrap_or_else(|| program.bytes());
        let peer = self.peer(side, which).map(|(peer, _)| &mut peer.pipe);
        if let Some(pipe) = peer.filter(|pipe| pipe.ending.is_none() && pipe.wire.len() < 1 << 16) {
            pipe.wire.extend(bytes);
        }
        self.send(side, which, program.byte());
    }

    /// Delivers this number of the bytes in flight, or all.
    fn send(&mut self, side: Side, which: usize, count: u8) {
        let Some((peer, machine)) = self.peer(side, which).filter(|(peer, _)| peer.pipe.ending.is_none()) else {
            return;
        };
        if count > 0 {
            peer.pipe.deliver(&mut machine.gateway, most(count), machine.now);
        }
    }

    /// Takes this number of bytes that the gateway has for a peer, or all.
    fn take(&mut self, side: Side, which: usize, count: u8) {
        let Some((peer, machine)) = self.peer(side, which) else { return };
        let bytes = peer.pipe.take(&mut machine.gateway, most(count), machine.now);
        if side == Side::Client {
            let mut pieces: Vec<Piece> = Vec::new();
            let read = peer.answers.feed(&bytes, &mut pieces);
            read.unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&bytes)));
        }
    }

    fn end_of(&mut self, side: Side, which: usize, how: u8) {
        let Some((peer, machine)) = self.peer(side, which).filter(|(peer, _)| peer.pipe.ending.is_none()) else {
            return;
        };
        peer.pipe.wire.clear();
        peer.pipe.ending = Some(if how & 1 == 0 { Ending::Fin } else { Ending::Broken });
        peer.pipe.deliver(&mut machine.gateway, 0, machine.now);
    }

    fn dialed(&mut self, how: u8) {
        let Some(conn) = self.dialing.pop() else {
            let Some((host, port)) = self.machine.asked.pop() else { return };
            let addrs = if how & 3 == 3 { Err("no such name") } else { Ok(vec![([10, 0, 0, 2], port).into()]) };
            return self.machine.reply(Reply::Named { host, port, addrs });
        };
        let reply = match how & 7 {
            5 => Reply::DialFailed(conn, DialError::Connect("refused")),
            6 => Reply::DialFailed(conn, DialError::Tls("UnknownIssuer")),
            7 => Reply::DialFailed(conn, DialError::Local("no descriptor or port left")),
            _ => {
                let provider = self.open(conn);
                self.providers.push(provider);
                Reply::Dialed(conn)
            }
        };
        self.machine.reply(reply);
    }

    /// Reports a result of a helper thread.
    fn thread(&mut self, what: u8) {
        let notice = match what & 7 {
            0..=2 => {
                let Some(work) = self.machine.works.pop() else { return };
                Notice::Worked(work.run())
            }
            3 => {
                let count = self.uncommitted.min(u64::from(what >> 3));
                self.uncommitted -= count;
                Notice::Ledger(LedgerNotice::Committed(count))
            }
            4 => Notice::Ledger(LedgerNotice::Failed(String::new())),
            5 if what >> 3 > 20 => {
                let Some(id) = self.machine.lookups.pop() else { return };
                let answer = if what >> 3 > 26 { KeyAnswer::Absent } else { KeyAnswer::Unavailable };
                Notice::Ledger(LedgerNotice::LookedUp(vec![(id, answer)]))
            }
            5 => Notice::Ledger(LedgerNotice::Recovered),
            6 if self.reloading => {
                self.reloading = false;
                let wrong = Reloaded::Refused(vec!["test.toml:1: wrong".to_string()]);
                let config = FIXED.configs[usize::from(what >> 4 & 1)].clone();
                let fresh = Reloaded::Fresh { config, unchanged: Vec::new() };
                Notice::Reloaded(if what & 8 == 0 { fresh } else { wrong })
            }
            7 if self.succeeding.is_some() => match (self.succeeding.take(), what & 8 == 0) {
                (Some(Succeeding::Starts), true) => Notice::SuccessorReady,
                (Some(Succeeding::Takes), true) => Notice::SuccessorTaken,
                (Some(Succeeding::Ends), _) => Notice::SuccessorGone,
                _ => Notice::SuccessorFailed("it ended".to_string()),
            },
            _ => Notice::Ledger(LedgerNotice::Keys(KeyNews::all(
                FIXED.keys.records[usize::from(what >> 3 & 1)..].to_vec(),
            ))),
        };
        self.machine.notice(notice);
    }

    fn signal(&mut self, which: usize) {
        let signal = [Signal::Reload, Signal::Upgrade, Signal::Reload, Signal::Terminate][which & 3];
        self.machine.reply(Reply::Signal(signal));
    }

    /// Reports events of connections that no longer exist.
    fn stale(&mut self, which: usize, what: u8) {
        let side = if what & 1 == 0 { Side::Client } else { Side::Upstream };
        let Some(conn) = self.peer(side, which).map(|(peer, _)| peer.pipe.conn) else { return };
        let stale = Conn { generation: conn.generation + 1, ..conn };
        match what >> 1 & 3 {
            0 => self.machine.gateway.bytes(stale, b"GET / HTTP/1.1\r\n\r\n", self.machine.now),
            1 => self.machine.gateway.closed(stale, Ending::Fin, self.machine.now),
            2 => assert!(self.machine.gateway.unsent(stale).is_empty() && !self.machine.gateway.wants_read(stale)),
            _ => self.machine.gateway.turned(u64::from(what)),
        }
    }

    /// Disconnects all peers and lets every deadline pass.
    fn end(&mut self) {
        for Peer { pipe, .. } in &mut self.clients {
            (pipe.ending, pipe.told) = (Some(Ending::Broken), pipe.ending == Some(Ending::Broken));
            pipe.deliver(&mut self.machine.gateway, 0, self.machine.now);
        }
        self.settle().unwrap();
        while let Some(work) = self.machine.works.pop() {
            self.machine.work(work);
            self.settle().unwrap();
        }
        self.advance(3_600_000_000).unwrap();
        // After a hand-over, the gateway waits for its last requests without a deadline.
        let due = self.machine.gateway.next_deadline().filter(|due| *due < Mono::NEVER);
        assert_eq!(due, None, "a deadline is left after all clients have left");
        nothing_is_held(&self.machine.gateway.vitals()).unwrap();
    }
}

/// Number of bytes that a byte of a program means: itself, or all.
fn most(count: u8) -> usize {
    if count > 127 { usize::MAX } else { usize::from(count) }
}
