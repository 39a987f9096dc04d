//! Count of buffered bytes: translated requests, streams whose client does not read, and the behaviour when few bytes
//! remain.

use super::answers::{Shape, stream, whole};
use super::client::post;
use super::support::setting::{KeyRing, Setting, begin, later};
use std::net::SocketAddr;
use std::sync::Arc;
use tollgate::base::limits::IO_SLICE;
use tollgate::base::seam::{Action, Conn, Core, Reply, Side};
use tollgate::base::time::Now;
use tollgate::gateway::orders::{Notice, Order};
use tollgate::gateway::{Gateway, Start};

/// Bytes that a stream may buffer if its client does not read.
const STREAM_BYTES: usize = 256 << 10;
/// Value of `max_buffered` in the tests that nearly exhaust it.
const BUDGET: usize = 8 << 20;
const CHAT: &str = "/v1/chat/completions";
const MESSAGES: &str = "/v1/messages";

struct DirectGateway {
    gateway: Gateway,
    now: Now,
    dialed: Vec<Conn>,
    keys: Vec<String>,
}

impl DirectGateway {
    fn new(lines: &[&str]) -> DirectGateway {
        let (mut ring, mut setting) = (KeyRing::default(), Setting::default());
        (0..5).for_each(|n| ring.issue(&format!("key-{n}"), &["plan=team"]));
        lines.iter().for_each(|line| setting.set("server", line));
        setting.set("plan team", "tokens = 0");
        let start = Start { seed: [7; 32], client_listeners: 1, keys: ring.records.clone().into(), ..Start::default() };
        let now = begin();
        let gateway = Gateway::new(Arc::new(setting.high()), start, now);
        DirectGateway { gateway, now, dialed: Vec::new(), keys: ring.texts.into_values().collect() }
    }

    fn small() -> DirectGateway {
        DirectGateway::new(&["max_body = \"1MiB\"", "max_buffered = \"8MiB\""])
    }

    fn connect(&mut self) -> Conn {
        let peer = SocketAddr::from(([192, 0, 2, 1], 999));
        self.gateway.accepted(0, peer, self.now).unwrap()
    }

    /// Performs the gateway's work and dials. Answers no request by itself.
    fn perform(&mut self) {
        loop {
            self.gateway.dirty().clear();
            let orders = std::mem::take(self.gateway.orders());
            let actions = std::mem::take(self.gateway.actions());
            if orders.is_empty() && actions.is_empty() {
                return;
            }
            for order in orders {
                if let Order::Work(work) = order {
                    self.gateway.notice(Notice::Worked(work.run()), self.now);
                }
            }
            for action in actions {
                if let Action::Dial { conn, .. } = action {
                    self.dialed.push(conn);
                    self.gateway.reply(Reply::Dialed(conn), self.now);
                }
            }
        }
    }

    /// Delivers bytes as the event loop would, as long as the gateway wants to read. Returns how many were delivered.
    fn give(&mut self, conn: Conn, bytes: &[u8]) -> usize {
        let mut given = 0;
        while given < bytes.len() && self.gateway.wants_read(conn) {
            let slice = &bytes[given..bytes.len().min(given + IO_SLICE)];
            self.gateway.bytes(conn, slice, self.now);
            given += slice.len();
            self.now = later(self.now, 50);
            self.perform();
        }
        given
    }

    fn take(&mut self, conn: Conn, most: usize) -> Vec<u8> {
        let mut all = Vec::new();
        loop {
            let unsent = self.gateway.unsent(conn);
            let count = unsent.len().min(most - all.len()).min(IO_SLICE);
            if count == 0 {
                return all;
            }
            all.extend_from_slice(&unsent[..count]);
            self.gateway.wrote(conn, count, self.now);
            self.perform();
        }
    }

    /// Sends a request on a new connection.
    fn ask(&mut self, key: usize, path: &str, model: &str, stream: bool, text: &str) -> Conn {
        let conn = self.connect();
        let body = format!(
            "{{\"model\":\"{model}\",\"stream\":{stream},\"max_tokens\":99,\
             \"messages\":[{{\"role\":\"user\",\"content\":\"{text}\"}}]}}"
        );
        let bearer = format!("Bearer {}", self.keys[key]);
        let request = post(path, &[("authorization", &bearer)], &body);
        assert_eq!(self.give(conn, &request), request.len());
        conn
    }

    fn buffered(&self) -> usize {
        self.gateway.vitals().buffered
    }

    fn answer(&mut self, upstream: Conn) {
        self.take(upstream, usize::MAX);
        let body = whole(Shape::Messages, "one");
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: ";
        let answer = format!("{head}{}\r\n\r\n{body}", body.len());
        assert_eq!(self.give(upstream, answer.as_bytes()), answer.len());
    }
}

#[test]
fn translated_request_counts_twice_and_is_refused_if_too_large() {
    let mut core = DirectGateway::small();
    let long = "lorem ipsum ".repeat(820_000 / 12);
    let first = core.ask(0, CHAT, "large", false, &long);
    let one = core.buffered();
    assert!((1_650_000..1_900_000).contains(&one), "{one} bytes for the body and its translation");
    (1..4).for_each(|key| _ = core.ask(key, CHAT, "large", false, &long));
    assert!(core.buffered() > BUDGET / 5 * 4);
    // The body itself fits, but not its translation.
    let last = "lorem ipsum ".repeat(250_000 / 12);
    let refused = core.ask(4, CHAT, "large", false, &last);
    let said = String::from_utf8(core.take(refused, usize::MAX)).unwrap();
    assert!(said.starts_with("HTTP/1.1 503 ") && said.contains("retry-after: "), "{said}");
    assert_eq!((core.dialed.len(), core.gateway.vitals().holds), (4, 4), "the refused request must not be admitted");
    let upstream = core.dialed[0];
    core.answer(upstream);
    assert!(core.take(first, usize::MAX).starts_with(b"HTTP/1.1 200 "));
    assert_eq!(core.gateway.vitals().holds, 3);
    core.ask(4, CHAT, "large", false, &last);
    assert_eq!(core.gateway.vitals().holds, 4, "the request must fit again");
}

#[test]
fn full_buffers_stop_new_clients_except_on_the_admin_listener() {
    let mut core = DirectGateway::small();
    let long = "lorem ipsum ".repeat(820_000 / 12);
    (0..4).for_each(|key| _ = core.ask(key, CHAT, "large", false, &long));
    // Unanswered requests leave the reserve and some more bytes free.
    assert!(core.buffered() > BUDGET / 5 * 4 && core.gateway.wants_clients(0));
    let client = core.ask(4, CHAT, "small", false, "hello");
    let upstream = *core.dialed.last().unwrap();
    core.take(upstream, usize::MAX);
    let body = whole(Shape::Chat, &"a".repeat(400_000));
    let head = format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", body.len());
    // The reserve lets an answer progress.
    core.give(upstream, head.as_bytes());
    core.give(upstream, &body.as_bytes()[..1000]);
    assert_eq!((core.gateway.wants_clients(0), core.gateway.wants_clients(1)), (false, true));
    core.give(upstream, &body.as_bytes()[1000..]);
    assert!(core.take(client, usize::MAX).starts_with(b"HTTP/1.1 200 "));
    assert!(core.gateway.wants_clients(0));
}

/// Sends a stream in the format of `from` to a client at `path` that first reads nothing and then 1 KB at a time.
/// Returns the maximum number of buffered bytes.
fn flood(path: &str, model: &str, from: Shape, event: &str) -> (usize, usize) {
    let mut core = DirectGateway::new(&[]);
    let client = core.ask(0, path, model, true, "hello");
    let upstream = core.dialed[0];
    core.take(upstream, usize::MAX);
    core.give(upstream, b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n");
    core.give(upstream, stream(from, "lorem ").part(1).as_bytes());
    let events = event.repeat((1 << 20) / event.len());
    let before = core.buffered();
    let (mut most, mut given, mut got) = (0, 0, 0);
    for _ in 0..500 {
        given += core.give(upstream, &events.as_bytes()[given..]);
        most = most.max(core.buffered());
        got += core.take(client, 1024).len();
    }
    assert!(before < 16 << 10 && given >= IO_SLICE && given < events.len(), "{before} {given}");
    assert_eq!((upstream.side, got), (Side::Upstream, 500 * 1024));
    (most, given)
}

#[test]
fn stream_to_a_blocked_client_stays_within_its_bound() {
    let small_chat = "data:{\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";
    let small_message = "data:{\"type\":\"content_block_delta\",\"index\":0,\
                         \"delta\":{\"type\":\"text_delta\",\"text\":\"a\"}}\n\n";
    let (comment, chat, message) =
        (":\n\n", &stream(Shape::Chat, "lorem ").tokens[0], &stream(Shape::Messages, "x").tokens[0]);
    // A large event must not lift the bound for the events after it.
    let after_large = stream(Shape::Chat, &"a".repeat(20_000)).tokens[0].clone() + &comment.repeat(12_000);
    let mut too_much = Vec::new();
    for (path, model, from, event) in [
        (CHAT, "small", Shape::Chat, small_chat),
        (CHAT, "small", Shape::Chat, chat),
        (CHAT, "small", Shape::Chat, comment),
        (MESSAGES, "large", Shape::Messages, small_message),
        (MESSAGES, "large", Shape::Messages, message),
        (CHAT, "large", Shape::Messages, small_message),
        (CHAT, "large", Shape::Messages, message),
        (CHAT, "large", Shape::Messages, comment),
        (MESSAGES, "small", Shape::Chat, small_chat),
        (MESSAGES, "small", Shape::Chat, chat),
        (MESSAGES, "small", Shape::Chat, comment),
        (MESSAGES, "small", Shape::Chat, &after_large),
    ] {
        let (most, given) = flood(path, model, from, event);
        println!("{path:<22} {model} {:>4} bytes an event: {most:>6} buffered, {given} taken", event.len());
        if most > STREAM_BYTES {
            too_much.push((path, model, event.len(), most));
        }
    }
    assert!(too_much.is_empty(), "{too_much:?}");
}
