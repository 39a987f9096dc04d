//! The gateway in memory, driven through the seam as the reactor drives it, but without sockets: for the benches and
//! for the test that counts allocations. Commands of the gateway are discarded, and their vectors are returned as the
//! outbox returns them.
#![allow(dead_code)] // each program uses only a part of it

use std::sync::Arc;
use std::time::Duration;
use tollgate::base::seam::{Action, Conn, Core, Ending, Reply, Side};
use tollgate::base::time::{Mono, Now, Unix};
use tollgate::gateway::orders::{Notice, Order};
use tollgate::gateway::{Gateway, Start};
use tollgate::policy::config::{Config, Source};
use tollgate::policy::keys::{KeyRecord, Scope, issue};
use tollgate::policy::ledger::LedgerNotice;

const CONFIG: &str = r#"
default_model = "bench"
[[providers]]
name = "plain"
shape = "chat"
base_url = "http://127.0.0.1:9/v1"
[[providers]]
name = "crossed"
shape = "messages"
base_url = "http://127.0.0.1:9"
[[models]]
id = "bench"
context = "1M"
input_price = 2.5
output_price = 10.0
targets = [{ provider = "plain", model = "upstream-model-2026-11-01" }]
[[models]]
id = "crossed"
context = "1M"
targets = [{ provider = "crossed", model = "upstream-model" }]
[[models]]
id = "queued"
context = "1M"
targets = [{ provider = "plain", model = "queued", concurrency = 1 }]
queue = { max = 2000, wait = "1h" }
[[plans]]
name = "team"
tokens = 1_000_000_000_000
requests = 1_000_000_000
tokens_per_window = 1_000_000_000_000
concurrency = 100_000
[[groups]]
name = "one"
budget = 1_000_000
[[groups]]
name = "two"
parent = "one"
budget = 1_000_000
[[groups]]
name = "three"
parent = "two"
budget = 1_000_000
[[groups]]
name = "four"
parent = "three"
budget = 1_000_000
"#;

/// A gateway, one client connection and the upstream connections it dials.
pub struct World {
    gateway: Gateway,
    now: Now,
    client: Conn,
    /// The upstream connection that was written to last.
    upstream: Option<Conn>,
    dirty: Vec<Conn>,
    actions: Vec<Action>,
    /// Bytes sent to the upstream since the last answer.
    pub sent_up: usize,
    /// Bytes that the client has received.
    pub got: usize,
    rows: u64,
    /// Number of times that the gateway has named a connection with pending bytes.
    pub named: usize,
    /// True if the client reads nothing.
    pub stalls: bool,
    /// One of the keys.
    pub key: String,
}

/// Returns the configuration of the benches.
pub fn config() -> Config {
    let (env, read) = (|_: &str| None, |_: &str| Err(std::io::ErrorKind::NotFound.into()));
    let source = Source { file: "bench.toml", text: CONFIG, env: &env, read: &read, run: &Source::no_program };
    Config::parse(&source).unwrap_or_else(|errors| panic!("{errors:?}"))
}

/// Returns this number of keys with the plan `team`, and the text of the last one.
pub fn keys(count: u64) -> (Vec<KeyRecord>, String) {
    let mut text = String::new();
    let mut state = 1u64;
    let mut fill = |bytes: &mut [u8]| {
        for byte in bytes {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            *byte = (state >> 33) as u8;
        }
    };
    let records = (0..count).map(|number| {
        let key = issue("tg_", &mut fill);
        text.clone_from(&key.text);
        KeyRecord {
            id: key.id,
            digest: key.digest,
            name: format!("k{number}"),
            plan: "team".into(),
            scope: Scope::default(),
            created: Unix(0),
            expires: None,
            revoked: None,
            disabled: false,
            limits: tollgate::policy::plan::caps::Caps::default(),
            group: None,
            labels: Vec::new(),
            former: Vec::new(),
            capture: None,
        }
    });
    (records.collect(), text)
}

impl World {
    /// Returns a world with 1,000 keys and a connected client.
    pub fn new() -> World {
        World::with(None)
    }

    /// Returns a world whose keys are in a group below three others; all four groups have budgets.
    pub fn in_groups() -> World {
        World::with(Some("four"))
    }

    fn with(group: Option<&str>) -> World {
        let now = Now { mono: Mono(1_000_000), unix: Unix(1_790_000_000_000) };
        let (mut keys, key) = keys(1000);
        keys.iter_mut().for_each(|key| key.group = group.map(str::to_string));
        let start = Start { seed: [7; 32], client_listeners: 1, keys: keys.into(), ..Start::default() };
        let mut gateway = Gateway::new(Arc::new(config()), start, now);
        let client = gateway.accepted(0, "127.0.0.1:5555".parse().unwrap(), now).expect("the client is accepted");
        let (dirty, actions) = (Vec::new(), Vec::new());
        let (sent_up, got, rows, named, stalls, upstream) = (0, 0, 0, 0, false, None);
        let mut world =
            World { gateway, now, client, upstream, dirty, actions, sent_up, got, rows, named, stalls, key };
        world.settle();
        world
    }

    /// Returns a chat request of about `bytes` bytes from this world's client, as sent over the wire.
    pub fn request(&self, model: &str, bytes: usize, stream: bool) -> Vec<u8> {
        let body = chat(model, bytes, stream);
        format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:8080\r\nauthorization: Bearer {}\r\n\
             content-type: application/json\r\naccept: application/json\r\nuser-agent: load/1\r\n\
             content-length: {}\r\n\r\n{body}",
            self.key,
            body.len()
        )
        .into_bytes()
    }

    /// Sends bytes from the client, and runs everything that follows up to the answer.
    pub fn client_sends(&mut self, bytes: &[u8]) {
        self.tick();
        let now = self.now;
        self.gateway.bytes(self.client, bytes, now);
        self.settle();
    }

    /// Connects another client and sends bytes from it.
    pub fn another_sends(&mut self, bytes: &[u8]) -> Conn {
        let conn =
            self.gateway.accepted(0, "127.0.0.1:5556".parse().unwrap(), self.now).expect("the client is accepted");
        self.gateway.bytes(conn, bytes, self.now);
        self.settle();
        conn
    }

    /// Ends the connection of such a client.
    pub fn leaves(&mut self, client: Conn) {
        self.gateway.closed(client, Ending::Broken, self.now);
        self.settle();
    }

    /// Lets time pass.
    pub fn passes(&mut self, time: Duration) {
        self.now.mono = self.now.mono.after(time);
        self.settle();
    }

    /// Returns the number of requests that wait for a slot.
    pub fn queued(&self) -> usize {
        self.gateway.vitals().queued
    }

    /// Sends an answer on the upstream connection that was written to last.
    pub fn upstream_sends(&mut self, bytes: &[u8]) {
        self.tick();
        let (now, upstream) = (self.now, self.upstream.expect("a request was sent upstream"));
        self.gateway.bytes(upstream, bytes, now);
        self.settle();
    }

    /// Runs a request and its complete answer. Returns the number of bytes that the client has received.
    pub fn turn(&mut self, request: &[u8], answer: &[u8]) -> usize {
        (self.got, self.sent_up) = (0, 0);
        self.client_sends(request);
        assert!(self.sent_up > 0, "the request was sent upstream");
        self.upstream_sends(answer);
        self.got
    }

    fn tick(&mut self) {
        self.now.mono = self.now.mono.after(Duration::from_micros(50));
    }

    fn settle(&mut self) {
        let now = self.now;
        loop {
            std::mem::swap(&mut self.dirty, self.gateway.dirty());
            std::mem::swap(&mut self.actions, self.gateway.actions());
            if self.dirty.is_empty() && self.actions.is_empty() {
                break;
            }
            self.named += self.dirty.len();
            for conn in self.dirty.drain(..) {
                if self.stalls && conn.side == Side::Client {
                    continue;
                }
                let count = self.gateway.unsent(conn).len();
                match conn.side {
                    Side::Client => self.got += count,
                    Side::Upstream => {
                        self.sent_up += count;
                        self.upstream = Some(conn);
                    }
                }
                if count > 0 {
                    self.gateway.wrote(conn, count, now);
                }
            }
            for action in self.actions.drain(..) {
                if let Action::Dial { conn, .. } = action {
                    self.gateway.reply(Reply::Dialed(conn), now);
                }
            }
        }
        while self.gateway.expire(now) {}
        self.gateway.turned(10);
        self.work(now);
        let mut rows = 0;
        for order in self.gateway.orders() {
            match order {
                Order::Rows(all) => {
                    rows += all.len() as u64;
                    all.clear();
                }
                Order::Log(lines) | Order::Spans(_, lines) => lines.clear(),
                Order::Reload(_) | Order::HandOver(..) | Order::TakeBack | Order::Acknowledge(_) => {}
                Order::LetServe
                | Order::Capture(_)
                | Order::Alerts(..)
                | Order::Asks(_)
                | Order::LookUp(_)
                | Order::Releases(_)
                | Order::Uses(_) => {}
                Order::Work(_) | Order::Desk(_) | Order::Renew(_) | Order::List(_) => {}
            }
        }
        if rows > 0 {
            self.rows += rows;
            self.gateway.notice(Notice::Ledger(LedgerNotice::Committed(rows)), now);
        }
    }

    /// Runs the work of the helper threads.
    fn work(&mut self, now: Now) {
        while let Some(index) = self.gateway.orders().iter().position(|order| matches!(order, Order::Work(_))) {
            if let Order::Work(work) = self.gateway.orders().swap_remove(index) {
                self.gateway.notice(Notice::Worked(work.run()), now);
            }
        }
    }

    /// Returns the number of usage records so far: one per admitted request.
    pub fn rows(&self) -> u64 {
        self.rows
    }
}

/// Returns a chat in several turns that contain code, of about `bytes` bytes.
pub fn chat(model: &str, bytes: usize, stream: bool) -> String {
    let open = format!("{{\"model\":\"{model}\",\"messages\":[{{\"role\":\"system\",\"content\":\"Be brief.\"}}");
    let stream = if stream { ",\"stream\":true" } else { "" };
    let close = format!("],\"temperature\":0.2,\"max_tokens\":256{stream}}}");
    let code = "fn next(&mut self) -> Option<u8> {\\n    let byte = self.bytes.get(self.at)?;\\n    \
                // \\\"quoted\\\"\\n    self.at += 1;\\n    Some(*byte)\\n}\\n";
    let mut text = open;
    let mut role = "user";
    while text.len() + close.len() + code.len() < bytes {
        let pieces = ((bytes - text.len() - close.len()) / (code.len() + 4)).clamp(1, 16);
        text += &format!(",{{\"role\":\"{role}\",\"content\":\"{}\"}}", code.repeat(pieces));
        role = if role == "user" { "assistant" } else { "user" };
    }
    text + &close
}

/// Returns a provider's complete answer, as sent over the wire.
pub fn answer() -> Vec<u8> {
    let text = "The heron waits in the shallow water and stands; it is patient, grey and exact. ".repeat(4);
    let body = format!(
        "{{\"id\":\"chatcmpl-0123456789abcdef\",\"object\":\"chat.completion\",\"created\":1790000000,\
         \"model\":\"upstream-model-2026-11-01\",\"choices\":[{{\"index\":0,\"message\":{{\"role\":\"assistant\",\
         \"content\":\"{text}\"}},\"logprobs\":null,\"finish_reason\":\"stop\"}}],\"usage\":{{\
         \"prompt_tokens\":271,\"completion_tokens\":83,\"total_tokens\":354}}}}"
    );
    let length = body.len();
    format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}").into_bytes()
}

/// Head of a provider's stream.
pub const STREAM_HEAD: &[u8] =
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";

/// Returns a chat event with this delta, without chunk framing.
pub fn event(delta: &str, finish: &str) -> String {
    format!(
        "data: {{\"id\":\"chatcmpl-0123456789abcdef\",\"object\":\"chat.completion.chunk\",\"created\":1790000000,\
         \"model\":\"upstream-model-2026-11-01\",\"choices\":[{{\"index\":0,\"delta\":{delta},\
         \"finish_reason\":{finish}}}]}}\n\n"
    )
}

/// Returns a chunk as sent over the wire.
pub fn chunk(payload: &str) -> Vec<u8> {
    format!("{:x}\r\n{payload}\r\n", payload.len()).into_bytes()
}

/// Returns the end of a chat stream: finish reason, usage, `[DONE]`, last chunk.
pub fn stream_end() -> Vec<u8> {
    let usage = "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":1790000000,\"model\":\"m\",\
                 \"choices\":[],\"usage\":{\"prompt_tokens\":271,\"completion_tokens\":83,\"total_tokens\":354}}\n\n";
    let events = event("{}", "\"stop\"") + usage + "data: [DONE]\n\n";
    [&chunk(&events)[..], b"0\r\n\r\n"].concat()
}
