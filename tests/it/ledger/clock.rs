//! The wall clock jumps while the gateway runs, or is wrong when it starts. Most tests run the core alone on a virtual
//! clock; the last one runs the real binary with a ledger from the future. Deadlines follow the monotonic clock, which
//! never jumps.

use super::client::get;
use super::harness::{CREDENTIAL, Harness, chat};
use super::process::{Process, wait_for};
use crate::support::setting::{KeyRing, Setting, begin};
use std::sync::Arc;
use tollgate::base::seam::{Action, Conn, Core, Reply, Side};
use tollgate::base::time::{Mono, Now, Unix};
use tollgate::gateway::orders::{Notice, Order};
use tollgate::gateway::{Gateway, Start};
use tollgate::io::clock::unix;
use tollgate::policy::ledger::LedgerNotice;
use tollgate::policy::row::Row;
use tollgate::policy::window::{iso, parse_moment};
use tollgate::store::sqlite::{Mode, Sqlite};

const ANSWER: &str = r#"{"object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"x"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7}}"#;

struct World {
    gateway: Gateway,
    key: String,
    now: Now,
}

impl World {
    fn new(plan: &[&str]) -> World {
        World::with(plan, Start::default(), begin())
    }

    /// Returns a gateway whose newest usage record and build date are those of `start`.
    fn with(plan: &[&str], start: Start, now: Now) -> World {
        let (mut setting, mut keys) = (Setting::default(), KeyRing::default());
        plan.iter().for_each(|line| setting.set("plan team", line));
        keys.issue("k", &[]);
        let start = Start { client_listeners: 1, keys: keys.records.clone().into(), ..start };
        let gateway = Gateway::new(Arc::new(setting.high()), start, now);
        World { gateway, key: keys.texts["k"].clone(), now }
    }

    /// Sets the wall clock. The monotonic clock advances by a second.
    fn set_clock(&mut self, moment: &str) {
        self.now = Now { mono: Mono(self.now.mono.0 + 1_000_000), unix: parse_moment(moment).unwrap() };
    }

    fn written(&mut self, conn: Conn) -> String {
        let text = String::from_utf8(self.gateway.unsent(conn).to_vec()).unwrap();
        if !text.is_empty() {
            self.gateway.wrote(conn, text.len(), self.now);
        }
        text
    }

    /// Sends one request on a new connection. Returns the answer's text.
    fn ask(&mut self, request: &str) -> String {
        let client = self.connect(0);
        self.gateway.bytes(client, request.as_bytes(), self.now);
        self.answer(client)
    }

    fn connect(&mut self, listener: usize) -> Conn {
        self.gateway.accepted(listener, ([127, 0, 0, 1], 1).into(), self.now).unwrap()
    }

    /// Answers as the provider. Returns the head and body that the client receives.
    fn answer(&mut self, client: Conn) -> String {
        let actions: Vec<Action> = self.gateway.actions().drain(..).collect();
        for action in actions {
            if let Action::Dial { conn, .. } = action {
                self.gateway.reply(Reply::Dialed(conn), self.now);
            }
        }
        let upstreams: Vec<Conn> = self.gateway.dirty().drain(..).filter(|conn| conn.side == Side::Upstream).collect();
        for upstream in upstreams {
            if self.written(upstream).is_empty() {
                continue;
            }
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", ANSWER.len());
            self.gateway.bytes(upstream, (head + ANSWER).as_bytes(), self.now);
        }
        let answer = self.written(client);
        self.gateway.closed(client, tollgate::base::seam::Ending::Fin, self.now);
        assert!(answer.starts_with("HTTP/1.1 "), "no answer");
        answer
    }

    fn request(&self) -> String {
        let body = r#"{"model":"small","messages":[{"role":"user","content":"x"}]}"#;
        format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: h\r\nauthorization: Bearer {}\r\ncontent-length: {}\r\n\r\n{body}",
            self.key,
            body.len()
        )
    }

    fn chat(&mut self) -> u16 {
        let request = self.request();
        self.ask(&request)[9..12].parse().unwrap()
    }

    /// Returns the answer of `/readyz`.
    fn ready(&mut self) -> String {
        let admin = self.connect(1);
        self.gateway.bytes(admin, b"GET /readyz HTTP/1.1\r\nhost: localhost\r\n\r\n", self.now);
        let answer = self.written(admin);
        answer[9..12].to_string() + " " + answer.split_once("\r\n\r\n").unwrap().1
    }

    /// Returns the log lines about the clock since the last call.
    fn said(&mut self) -> Vec<serde_json::Value> {
        let orders: Vec<Order> = self.gateway.orders().drain(..).collect();
        let lines = orders.iter().filter_map(|order| if let Order::Log(lines) = order { Some(lines) } else { None });
        let lines = lines.flat_map(|lines| std::str::from_utf8(lines).unwrap().lines());
        let lines = lines.map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        lines.filter(|line| line["event"] == "clock").collect()
    }

    /// Reports that an operator has accepted the present time.
    fn accept(&mut self) {
        self.gateway.notice(Notice::Ledger(LedgerNotice::Newest { at: self.now.unix, accepted: true }), self.now);
    }

    /// Sends `n` requests and returns the number of 200s. All others must be 429.
    fn admitted(&mut self, n: usize) -> usize {
        let statuses: Vec<u16> = (0..n).map(|_| self.chat()).collect();
        assert!(statuses.iter().all(|status| [200, 429].contains(status)), "{statuses:?}");
        statuses.iter().filter(|status| **status == 200).count()
    }

    fn quota(&mut self) -> serde_json::Value {
        let request = format!("GET /v1/quota HTTP/1.1\r\nhost: h\r\nauthorization: Bearer {}\r\n\r\n", self.key);
        let answer = self.ask(&request);
        serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
    }
}

fn moment(text: &str) -> Unix {
    parse_moment(text).unwrap()
}

#[test]
fn clock_jump_back_neither_frees_a_key_nor_blocks_it_past_its_window() {
    let mut world = World::new(&["requests = 5"]);
    assert_eq!(world.admitted(7), 5);
    world.set_clock("2026-11-20T08:57:40Z");
    assert_eq!(world.admitted(3), 0, "requests of the current window still count");
    assert_eq!(world.quota()["rate_limit"]["reset_at"], "2026-11-20T08:58:00Z");
    world.set_clock("2026-11-20T08:58:00Z");
    assert_eq!(world.admitted(7), 5, "the limit is free when the window ends by the clock");
    world.set_clock("2026-11-20T09:00:40Z");
    assert_eq!(world.admitted(3), 0, "this window was used up before the jump");
}

#[test]
fn clock_jump_forward_and_back_restores_the_old_window() {
    let mut world = World::new(&["requests = 5"]);
    assert_eq!(world.admitted(3), 3);
    world.set_clock("2028-01-01T00:00:00Z");
    assert_eq!(world.admitted(7), 5);
    world.set_clock("2026-11-20T09:00:50Z");
    assert_eq!(world.chat(), 503);
    world.accept();
    assert_eq!(world.admitted(7), 2);
    world.set_clock("2026-11-20T09:01:00Z");
    assert_eq!(world.admitted(7), 5);
}

#[test]
fn nothing_is_admitted_while_the_clock_is_behind_the_newest_record() {
    let mut world = World::new(&["requests = 5"]);
    assert_eq!((world.admitted(3), world.ready()), (3, "200 ready\n".to_string()));
    world.set_clock("2026-11-20T08:55:00Z");
    for _ in 0..2 {
        let answer = world.ask(&world.request());
        assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("the gateway's clock is wrong"), "{answer}");
        assert!(answer.contains("retry-after: 1\r\n"), "{answer}");
    }
    assert_eq!(world.ready(), "503 not ready: clock\n");
    let said = world.said();
    assert_eq!(said.len(), 1, "{said:?}");
    assert_eq!(said[0]["outcome"], "behind");
    assert_eq!(said[0]["newest_record"], iso(begin().unix));
    // The gateway checks the clock every second, even without requests.
    let due = world.gateway.next_deadline().unwrap();
    assert!(due.micros_since(world.now.mono) <= 1_000_000, "{due:?}");
    world.now = Now { mono: due, unix: moment("2026-11-20T08:55:01Z") };
    while world.gateway.expire(world.now) {}
    assert_eq!((world.said(), world.chat()), (vec![], 503));
    world.now = Now { mono: Mono(due.0 + 1_000_000), unix: moment("2026-11-20T09:00:45Z") };
    while world.gateway.expire(world.now) {}
    assert_eq!(world.said()[0]["outcome"], "right");
    assert_eq!((world.ready(), world.admitted(3)), ("200 ready\n".to_string(), 2), "earlier requests still count");
}

#[test]
fn host_that_boots_in_1970_admits_nothing_until_the_clock_is_set() {
    let newest = begin().unix;
    for start in [Start { newest, ..Start::default() }, Start { built: newest, ..Start::default() }] {
        let boot = Now { mono: Mono(0), unix: Unix(10_000) };
        let mut world = World::with(&["requests = 5"], start, boot);
        assert_eq!(world.said()[0]["outcome"], "behind", "the log reports it immediately");
        assert_eq!((world.chat(), world.ready()), (503, "503 not ready: clock\n".to_string()));
        assert_eq!(world.gateway.vitals().holds, 0);
        world.now = Now { mono: Mono(3_000_000), unix: begin().unix };
        assert_eq!((world.chat(), world.ready()), (200, "200 ready\n".to_string()));
        assert_eq!(world.admitted(5), 4);
    }
}

#[test]
fn a_request_whose_body_arrives_after_the_clock_went_back_is_refused() {
    let mut world = World::new(&["requests = 5"]);
    assert_eq!(world.chat(), 200);
    let (request, client) = (world.request(), world.connect(0));
    let (first, rest) = request.as_bytes().split_at(request.len() - 5);
    world.gateway.bytes(client, first, world.now);
    world.set_clock("2026-11-20T08:30:00Z");
    world.gateway.bytes(client, rest, world.now);
    assert!(world.answer(client).starts_with("HTTP/1.1 503"));
    world.set_clock("2026-11-20T09:00:50Z");
    assert_eq!(world.admitted(7), 4);
}

#[test]
fn clock_jump_between_periods_keeps_the_usage_of_each() {
    let mut world = World::new(&["tokens = 20", "requests = 1000"]);
    world.set_clock("2026-12-01T00:00:05Z");
    assert_eq!((world.chat(), world.quota()["tokens"]["used"].clone()), (200, 7.into()));
    world.set_clock("2026-11-30T23:59:58Z");
    assert_eq!(world.quota()["tokens"]["used"], 0);
    assert_eq!(world.admitted(5), 3, "each uses 7 tokens, and requests are refused from 20 on");
    world.set_clock("2026-12-01T00:00:09Z");
    assert_eq!(world.quota()["tokens"]["used"], 7);
    assert_eq!(world.admitted(5), 2);
}

#[test]
fn clock_jump_does_not_change_deadlines() {
    let mut world = World::new(&["requests = 5"]);
    let before = world.gateway.next_deadline();
    world.now.unix = Unix(world.now.unix.0 + 100 * 86_400_000);
    assert_eq!(world.gateway.next_deadline(), before);
    assert!(!world.gateway.expire(world.now), "nothing is due by the wall clock");
    assert_eq!(world.admitted(5), 5);
}

/// Returns the usage record of a request admitted at this time.
pub fn record_of(admitted: Unix) -> Row {
    let text = format!(
        r#"{{"r":"000102030405060708090a0b0c0d0e0f","k":"abcdefABCDEF","a":{},"m":"small","t":"sim-chat/up-small","e":"chat",
        "s":false,"c":200,"u":[1,0,0,1],"f":"provider","n":0,"x":1,"d":1}}"#,
        admitted.0
    );
    serde_json::from_str(&text).unwrap()
}

#[test]
fn a_ledger_whose_clock_ran_ahead_is_refused_until_the_present_time_is_accepted() {
    let mut h = Harness::usual();
    let key = h.key();
    assert!(h.done(&["ledger", "clock"]).ends_with("there is no usage record\n"));
    h.gateway.stop("TERM");
    let ahead = Unix(unix().0 + 3_600_000);
    Sqlite::open(&h.folder.path().join("tollgate.db"), Mode::Shared).unwrap().append(&[record_of(ahead)]).unwrap();
    h.gateway = Process::start(h.folder.path(), "ahead", &["serve"], &[CREDENTIAL]);
    let not_ready = wait_for("an answer", || get(h.admin, "/readyz").ok());
    assert_eq!((not_ready.status(), not_ready.text()), (503, "not ready: clock\n"));
    assert_eq!(h.chat(&key, &chat("x")).status(), 503);
    let ready = h.command(&["ready"]);
    assert!(ready.code == 1 && ready.err.contains("the clock is behind"), "{}", ready.err);
    let id = &key[8..20];
    // Their dates would be wrong after the clock is set.
    for dated in
        [&["keys", "issue", "--name", "x"][..], &["keys", "rotate", id], &["keys", "set", id, "--expires", "1d"]]
    {
        let refused = h.command(dated);
        let says = refused.err.contains("nothing was changed") && refused.err.contains(&iso(ahead));
        assert!(refused.code == 1 && refused.out.is_empty() && says, "{dated:?}: {}", refused.err);
    }
    for undated in [&["keys", "set", id, "--name", "y"][..], &["keys", "show", id]] {
        h.done(undated);
    }
    let shown = h.command(&["ledger", "clock"]);
    assert!(shown.code == 1 && shown.err.contains(&iso(ahead)), "{}", shown.err);
    assert_eq!(h.chat(&key, &chat("x")).status(), 503, "showing the time does not accept it");
    h.done(&["ledger", "clock", "--confirm"]);
    let began = std::time::Instant::now();
    wait_for("admission", || (h.chat(&key, &chat("x\n#sim tokens=1")).status() == 200).then_some(()));
    println!("admission continues {:?} after the confirmation", began.elapsed());
    assert_eq!(get(h.admin, "/readyz").unwrap().status(), 200);
    h.done(&["keys", "set", id, "--expires", "1d"]);
    let audit: serde_json::Value = serde_json::from_str(&h.done(&["ledger", "audit", "--json"])).unwrap();
    assert_eq!((&audit[1]["what"], &audit[1]["who"]), (&"clock".into(), &"command".into()));
    assert_eq!(audit[1]["before"]["newest_record"], iso(ahead));
    assert!(h.done(&["ledger", "audit"]).lines().nth(2).is_some_and(|line| line.contains("clock")));
    assert!(h.done(&["ledger", "clock"]).starts_with("ok: "));
    h.ledger(2);
    h.gateway.stop("TERM");
    h.start_again();
    assert_eq!(h.chat(&key, &chat("x")).status(), 200, "the acceptance survives a restart");
    assert!(h.done(&["ledger", "verify"]).starts_with("ok:"));
}
