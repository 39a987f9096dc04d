//! Fuzzes the whole gateway: an input is a program of its entry points, in simulated time. Clients and providers send
//! messages from a list or bytes of the program; connections break, dials fail, time passes, helper threads answer
//! late. Invariants: no panic, every client receives a sequence of valid HTTP answers, no bound is exceeded, every
//! usage record is settled once, and at the end nothing is held.

use super::support::answers::{Answers, Piece};
use super::support::setting::{KeyRing, Setting, begin, later};
use super::support::vitals::{nothing_is_held, vitals_hold};
use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};
use tollgate::base::seam::{Action, Conn, Core, DialError, Ending, Reply, Side, Signal};
use tollgate::base::time::{Mono, Now};
use tollgate::gateway::orders::{Notice, Order, Reloaded, Work};
use tollgate::gateway::{Gateway, Start};
use tollgate::policy::config::Config;
use tollgate::policy::keys::{KeyAnswer, KeyNews, ShownKey};
use tollgate::policy::notice::LedgerNotice;

const CONNECTIONS_MAX: usize = 8;
/// `max_buffered`, plus the maximum excess by a single read.
const BUDGET: usize = (1 << 20) + (128 << 10);
/// Maximum number of rounds until the gateway must be idle; more mean an endless loop.
const ROUNDS_MAX: usize = 10_000;

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
    conn: Conn,
    /// Bytes in flight to the gateway.
    outbox: Vec<u8>,
    /// Set if it has ended its side.
    ended: Option<Ending>,
    /// Parser of the answers that a client receives.
    answers: Answers,
}

impl Peer {
    fn new(conn: Conn) -> Peer {
        Peer { conn, outbox: Vec::new(), ended: None, answers: Answers::default() }
    }
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
    gateway: Gateway,
    now: Now,
    clients: Vec<Peer>,
    providers: Vec<Peer>,
    dialing: Vec<Conn>,
    asked: Vec<(Arc<str>, u16)>,
    works: Vec<Work>,
    lookups: Vec<ShownKey>,
    uncommitted: u64,
    settled: BTreeSet<String>,
    reloading: bool,
    /// Stage of a successor: it starts, it gets the ledger, the ledger is taken back.
    succeeding: Option<Succeeding>,
    exit: bool,
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
        gateway: Gateway::new(FIXED.configs[0].clone(), start, now),
        now,
        clients: Vec::new(),
        providers: Vec::new(),
        dialing: Vec::new(),
        asked: Vec::new(),
        works: Vec::new(),
        lookups: Vec::new(),
        uncommitted: 0,
        settled: BTreeSet::new(),
        reloading: false,
        succeeding: None,
        exit: false,
    };
    let mut program = Program(rest);
    while !program.0.is_empty() && !world.exit {
        world.step(&mut program);
        world.settle();
        vitals_hold(&world.gateway.vitals(), BUDGET).unwrap();
    }
    world.end();
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
            9 => self.close(Side::Client, which, program.byte()),
            10 => self.close(Side::Upstream, which, program.byte()),
            11 => self.dialed(program.byte()),
            12 => {
                let byte = program.byte();
                // From a microsecond to an hour.
                self.advance(u64::from(byte & 15) << (byte >> 4 << 1));
            }
            13 => self.thread(program.byte()),
            14 => self.signal(which),
            _ => self.stale(which, program.byte()),
        }
    }

    fn peers(&mut self, side: Side) -> &mut Vec<Peer> {
        if side == Side::Client { &mut self.clients } else { &mut self.providers }
    }

    fn peer(&mut self, side: Side, which: usize) -> Option<&mut Peer> {
        let peers = self.peers(side);
        let count = peers.len().max(1);
        peers.get_mut(which % count)
    }

    fn connect(&mut self) {
        if self.clients.len() < CONNECTIONS_MAX {
            let peer = "192.0.2.7:999".parse().unwrap();
            let conn = self.gateway.accepted(0, peer, self.now);
            self.clients.extend(conn.map(Peer::new));
        }
    }

    /// Appends a message from the list, or bytes of the program, to the outbox.
    fn say(&mut self, side: Side, which: usize, program: &mut Program<'_>) {
        let list = &FIXED.says[usize::from(side == Side::Upstream)];
        let number = usize::from(program.byte());
        let bytes = list.get(number).cloned().unwrap_or_else(|| program.bytes());
        if let Some(peer) = self.peer(side, which).filter(|peer| peer.ended.is_none() && peer.outbox.len() < 1 << 16) {
            peer.outbox.extend(bytes);
        }
        self.send(side, which, program.byte());
    }

    /// Delivers this number of bytes of the outbox, or all.
    fn send(&mut self, side: Side, which: usize, count: u8) {
        let Some(peer) = self.peer(side, which).filter(|peer| peer.ended.is_none()) else { return };
        let conn = peer.conn;
        let most = if count > 127 { usize::MAX } else { usize::from(count) };
        let count = peer.outbox.len().min(most);
        if count > 0 && self.gateway.wants_read(conn) {
            let Some(peer) = self.peer(side, which) else { return };
            let bytes: Vec<u8> = peer.outbox.drain(..count).collect();
            self.gateway.bytes(conn, &bytes, self.now);
        }
    }

    /// Takes this number of bytes that the gateway has for a peer, or all.
    fn take(&mut self, side: Side, which: usize, count: u8) {
        let Some(peer) = self.peer(side, which).filter(|peer| peer.ended != Some(Ending::Broken)) else { return };
        let conn = peer.conn;
        let most = if count > 127 { usize::MAX } else { usize::from(count) };
        let unsent = self.gateway.unsent(conn);
        let bytes = unsent[..unsent.len().min(most)].to_vec();
        if bytes.is_empty() {
            return;
        }
        self.gateway.wrote(conn, bytes.len(), self.now);
        if let (Side::Client, Some(peer)) = (side, self.peer(side, which)) {
            let mut pieces: Vec<Piece> = Vec::new();
            let read = peer.answers.feed(&bytes, &mut pieces);
            read.unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&bytes)));
        }
    }

    fn close(&mut self, side: Side, which: usize, how: u8) {
        let how = if how & 1 == 0 { Ending::Fin } else { Ending::Broken };
        let Some(peer) = self.peer(side, which).filter(|peer| peer.ended.is_none()) else { return };
        peer.ended = Some(how);
        let conn = peer.conn;
        self.gateway.closed(conn, how, self.now);
    }

    fn dialed(&mut self, how: u8) {
        let Some(conn) = self.dialing.pop() else {
            let Some((host, port)) = self.asked.pop() else { return };
            let addrs = if how & 3 == 3 { Err("no such name") } else { Ok(vec![([10, 0, 0, 2], port).into()]) };
            return self.gateway.reply(Reply::Named { host, port, addrs }, self.now);
        };
        let reply = match how & 7 {
            5 => Reply::DialFailed(conn, DialError::Connect("refused")),
            6 => Reply::DialFailed(conn, DialError::Tls("UnknownIssuer")),
            7 => Reply::DialFailed(conn, DialError::Local("no descriptor or port left")),
            _ => {
                self.providers.push(Peer::new(conn));
                Reply::Dialed(conn)
            }
        };
        self.gateway.reply(reply, self.now);
    }

    /// Reports a result of a helper thread.
    fn thread(&mut self, what: u8) {
        let notice = match what & 7 {
            0..=2 => {
                let Some(work) = self.works.pop() else { return };
                Notice::Worked(work.run())
            }
            3 => {
                let count = self.uncommitted.min(u64::from(what >> 3));
                self.uncommitted -= count;
                Notice::Ledger(LedgerNotice::Committed(count))
            }
            4 => Notice::Ledger(LedgerNotice::Failed(String::new())),
            5 if what >> 3 > 20 => {
                let Some(id) = self.lookups.pop() else { return };
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
        self.gateway.notice(notice, self.now);
    }

    fn signal(&mut self, which: usize) {
        let signal = [Signal::Reload, Signal::Upgrade, Signal::Reload, Signal::Terminate][which & 3];
        self.gateway.reply(Reply::Signal(signal), self.now);
    }

    /// Reports events of connections that no longer exist.
    fn stale(&mut self, which: usize, what: u8) {
        let side = if what & 1 == 0 { Side::Client } else { Side::Upstream };
        let Some(conn) = self.peer(side, which).map(|peer| peer.conn) else { return };
        let stale = Conn { generation: conn.generation + 1, ..conn };
        match what >> 1 & 3 {
            0 => self.gateway.bytes(stale, b"GET / HTTP/1.1\r\n\r\n", self.now),
            1 => self.gateway.closed(stale, Ending::Fin, self.now),
            2 => assert!(self.gateway.unsent(stale).is_empty() && !self.gateway.wants_read(stale)),
            _ => self.gateway.turned(u64::from(what)),
        }
    }

    fn advance(&mut self, micros: u64) {
        let target = later(self.now, micros);
        while let Some(due) = self.gateway.next_deadline().filter(|due| *due <= target.mono) {
            self.now = later(self.now, due.0.saturating_sub(self.now.mono.0));
            let mut rounds = 0;
            // The effects of one deadline may be due immediately, as in the next iteration of a real event loop.
            while self.gateway.next_deadline().is_some_and(|due| due <= self.now.mono) {
                self.gateway.expire(self.now);
                self.settle();
                rounds += 1;
                assert!(rounds < ROUNDS_MAX, "a deadline in the past stays due, so the event loop would spin");
            }
        }
        self.now = target;
    }

    /// Performs the actions of the gateway.
    fn settle(&mut self) {
        for _ in 0..ROUNDS_MAX {
            self.gateway.dirty().clear();
            for order in std::mem::take(self.gateway.orders()) {
                match order {
                    Order::Rows(rows) => {
                        self.uncommitted += rows.len() as u64;
                        for row in rows {
                            assert!(self.settled.insert(format!("{:?}", row.request)), "settled twice: {row:?}");
                        }
                    }
                    Order::Work(work) => self.works.push(*work),
                    Order::Reload(_) => self.reloading = true,
                    Order::Desk(ask) => {
                        let answer = ask.answer(200, Ok(b"{}".to_vec()));
                        self.gateway.notice(Notice::Desk(answer), self.now);
                    }
                    Order::Capture(captured) => {
                        self.gateway.notice(Notice::Captured(captured.key, captured.kept(), Ok(())), self.now)
                    }
                    Order::Log(lines) | Order::Spans(_, lines) => assert!(lines.ends_with(b"\n")),
                    Order::HandOver(..) => self.succeeding = Some(Succeeding::Takes),
                    Order::TakeBack => self.succeeding = Some(Succeeding::Ends),
                    Order::LookUp(ids) => self.lookups.extend(ids),
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
            let actions = std::mem::take(self.gateway.actions());
            if actions.is_empty() {
                return;
            }
            actions.into_iter().for_each(|action| self.perform(action));
        }
        panic!("the actions do not end");
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::Dial { conn, .. } => self.dialing.push(conn),
            Action::Resolve { host, port } => self.asked.push((host, port)),
            Action::StartSuccessor => self.succeeding = Some(Succeeding::Starts),
            Action::Hear(conn) => self.gateway.heard(conn, self.now),
            Action::StopAccepting(_) | Action::Finish(_) => {}
            Action::Exit => self.exit = true,
            Action::Close { conn, .. } => {
                let before = self.clients.len() + self.providers.len() + self.dialing.len();
                self.clients.retain(|peer| peer.conn != conn);
                self.providers.retain(|peer| peer.conn != conn);
                self.dialing.retain(|dialed| *dialed != conn);
                let after = self.clients.len() + self.providers.len() + self.dialing.len();
                assert_eq!(after + 1, before, "the gateway closed a connection that was not open: {conn:?}");
            }
        }
    }

    /// Disconnects all peers and lets every deadline pass.
    fn end(&mut self) {
        for which in 0..self.clients.len() {
            if self.clients[which].ended != Some(Ending::Broken) {
                self.gateway.closed(self.clients[which].conn, Ending::Broken, self.now);
            }
        }
        self.settle();
        while let Some(work) = self.works.pop() {
            self.gateway.notice(Notice::Worked(work.run()), self.now);
            self.settle();
        }
        self.advance(3_600_000_000);
        // After a hand-over, the gateway waits for its last requests without a deadline.
        let due = self.gateway.next_deadline().filter(|due| *due < Mono::NEVER);
        assert_eq!(due, None, "a deadline is left after all clients have left");
        nothing_is_held(&self.gateway.vitals()).unwrap();
    }
}
