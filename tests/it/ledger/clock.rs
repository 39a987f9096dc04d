//! The wall clock jumps while the gateway runs: the core alone, on a clock of the test's. Deadlines follow the other
//! clock, which does not jump.

use crate::support::setting::{KeyRing, Setting, begin};
use std::sync::Arc;
use tollgate::base::seam::{Action, Conn, Core, Reply, Side};
use tollgate::base::time::{Mono, Now, Unix};
use tollgate::gateway::{Gateway, Start};
use tollgate::policy::window::parse_moment;

const ANSWER: &str = r#"{"object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"x"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7}}"#;

struct World {
    gateway: Gateway,
    key: String,
    now: Now,
}

impl World {
    fn new(plan: &[&str]) -> World {
        let (mut setting, mut keys) = (Setting::default(), KeyRing::default());
        plan.iter().for_each(|line| setting.set("plan team", line));
        keys.issue("k", &[]);
        let start = Start { client_listeners: 1, keys: keys.records.clone().into(), ..Start::default() };
        let gateway = Gateway::new(Arc::new(setting.high()), start, begin());
        World { gateway, key: keys.texts["k"].clone(), now: begin() }
    }

    /// The wall clock is set; the other one goes on by a second.
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

    /// One request on a connection of its own; the head of its answer.
    fn ask(&mut self, request: &str) -> String {
        let peer = ([127, 0, 0, 1], 1).into();
        let client = self.gateway.accepted(0, peer, self.now).unwrap();
        self.gateway.bytes(client, request.as_bytes(), self.now);
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

    fn chat(&mut self) -> u16 {
        let body = r#"{"model":"small","messages":[{"role":"user","content":"x"}]}"#;
        let request = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: h\r\nauthorization: Bearer {}\r\ncontent-length: {}\r\n\r\n{body}",
            self.key,
            body.len()
        );
        self.ask(&request)[9..12].parse().unwrap()
    }

    /// As many 200s as there are in `n` requests; all others are 429.
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

#[test]
fn a_clock_that_jumps_back_neither_frees_a_key_nor_blocks_it_beyond_its_window() {
    let mut world = World::new(&["requests = 5"]);
    assert_eq!(world.admitted(7), 5);
    world.set_clock("2026-11-20T08:30:40Z");
    assert_eq!(world.admitted(3), 0, "what was spent is spent");
    assert_eq!(world.quota()["rate_limit"]["reset_at"], "2026-11-20T08:31:00Z");
    world.set_clock("2026-11-20T08:31:00Z");
    assert_eq!(world.admitted(7), 5, "and is free when the window ends that the clock says it is");
    world.set_clock("2026-11-20T09:00:40Z");
    assert_eq!(world.admitted(3), 0, "the window that was spent before the jump");
}

#[test]
fn a_clock_that_jumps_forward_frees_one_window_and_finds_the_old_one_when_it_is_set_right() {
    let mut world = World::new(&["requests = 5"]);
    assert_eq!(world.admitted(3), 3);
    world.set_clock("2028-01-01T00:00:00Z");
    assert_eq!(world.admitted(7), 5);
    world.set_clock("2026-11-20T09:00:50Z");
    assert_eq!(world.admitted(7), 2);
    world.set_clock("2026-11-20T09:01:00Z");
    assert_eq!(world.admitted(7), 5);
}

#[test]
fn a_jump_across_the_end_of_a_period_leaves_each_with_what_was_used_in_it() {
    let mut world = World::new(&["tokens = 20", "requests = 1000"]);
    world.set_clock("2026-12-01T00:00:05Z");
    assert_eq!((world.chat(), world.quota()["tokens"]["used"].clone()), (200, 7.into()));
    world.set_clock("2026-11-30T23:59:58Z");
    assert_eq!(world.quota()["tokens"]["used"], 0);
    assert_eq!(world.admitted(5), 3, "7 tokens each, refused from 20 on");
    world.set_clock("2026-12-01T00:00:09Z");
    assert_eq!(world.quota()["tokens"]["used"], 7);
    assert_eq!(world.admitted(5), 2);
}

#[test]
fn a_jump_neither_ends_a_request_nor_keeps_it_from_ending() {
    let mut world = World::new(&["requests = 5"]);
    let before = world.gateway.next_deadline();
    world.now.unix = Unix(world.now.unix.0 + 100 * 86_400_000);
    assert_eq!(world.gateway.next_deadline(), before);
    assert!(!world.gateway.expire(world.now), "nothing is due by the wall clock");
    assert_eq!(world.admitted(5), 5);
}
