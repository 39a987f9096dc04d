//! No call into the core takes long: the largest requests and answers are delivered slice by slice as the event loop
//! would, and the processor time of each call is measured. The run is repeated and the shortest time of each call counts,
//! so that a busy machine does not matter.

use super::answers::{Shape, whole};
use super::client::post;
use super::stalls::is_optimised;
use super::support::setting::{KeyRing, Setting, begin, later};
use rustix::time::{ClockId, clock_gettime};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tollgate::base::limits::IO_SLICE;
use tollgate::base::seam::{Action, Conn, Core, Reply};
use tollgate::base::time::Now;
use tollgate::gateway::orders::{Notice, Order};
use tollgate::gateway::{Gateway, Start};

/// Number of repetitions.
const RUNS: usize = 4;
/// Maximum duration of one event-loop iteration. An unoptimised gateway is many times slower.
const BOUND: Duration = Duration::from_millis(5);

/// Returns the time that a processor has worked for this thread. It does not pass while other processes run.
fn processor_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).expect("a time since the thread began")
}

/// A core and the durations of its calls.
struct Bench {
    gateway: Gateway,
    now: Now,
    times: Vec<Duration>,
    upstream: Option<Conn>,
}

impl Bench {
    fn new() -> (Bench, String) {
        let mut keys = KeyRing::default();
        keys.issue("key", &["plan=open"]);
        let mut setting = Setting::default();
        setting.set("plan open", "requests = 1000");
        setting.set("model small", "request_timeout = \"1h\"");
        let start = Start { seed: [7; 32], client_listeners: 1, keys: keys.records.clone().into(), ..Start::default() };
        let now = begin();
        let gateway = Gateway::new(Arc::new(setting.high()), start, now);
        (Bench { gateway, now, times: Vec::new(), upstream: None }, keys.texts["key"].clone())
    }

    /// Times one call, then performs its orders. Work of other threads is performed without timing.
    fn call(&mut self, call: impl FnOnce(&mut Gateway, Now)) {
        self.time(call);
        loop {
            let orders = std::mem::take(self.gateway.orders());
            let works = orders.into_iter().filter_map(|order| match order {
                Order::Work(work) => Some(Notice::Worked(work.run())),
                _ => None,
            });
            let notices: Vec<Notice> = works.collect();
            let dials = std::mem::take(self.gateway.actions());
            if notices.is_empty() && dials.is_empty() {
                return self.gateway.dirty().clear();
            }
            for notice in notices {
                self.time(|gateway, now| gateway.notice(notice, now));
            }
            for action in dials {
                if let Action::Dial { conn, .. } = action {
                    self.upstream = Some(conn);
                    self.time(|gateway, now| gateway.reply(Reply::Dialed(conn), now));
                }
            }
        }
    }

    fn time(&mut self, call: impl FnOnce(&mut Gateway, Now)) {
        self.now = later(self.now, 100);
        let begun = processor_time();
        call(&mut self.gateway, self.now);
        self.times.push(processor_time() - begun);
    }

    fn give(&mut self, conn: Conn, bytes: &[u8]) {
        bytes.chunks(IO_SLICE).for_each(|slice| self.call(|gateway, now| gateway.bytes(conn, slice, now)));
    }

    /// Takes all bytes that the gateway wants to send.
    fn take(&mut self, conn: Conn) -> usize {
        let mut all = 0;
        loop {
            let count = self.gateway.unsent(conn).len().min(IO_SLICE);
            if count == 0 {
                return all;
            }
            self.call(|gateway, now| {
                gateway.wrote(conn, count, now);
            });
            all += count;
        }
    }
}

/// Sends a request to `model` that contains `words`, and answers with `answer`, which is a stream if it starts like
/// one. Returns the durations of all calls.
fn run(path: &str, model: &str, words: &str, answer: Option<&str>) -> Vec<Duration> {
    let (mut bench, key) = Bench::new();
    let peer = SocketAddr::from(([192, 0, 2, 1], 999));
    let client = bench.gateway.accepted(0, peer, bench.now).unwrap();
    let stream = answer.is_some_and(|answer| !answer.starts_with('{'));
    let body = format!(
        "{{\"model\":\"{model}\",\"stream\":{stream},\"max_tokens\":99,\"messages\":[{{\"role\":\"user\",\"content\":\"{words}\"}}]}}"
    );
    bench.give(client, &post(path, &[("authorization", &format!("Bearer {key}"))], &body));
    if let Some(answer) = answer {
        let upstream = bench.upstream.expect("a dial to the provider");
        assert!(bench.take(upstream) > words.len());
        let length = answer.len();
        let kind = if stream { "text/event-stream" } else { "application/json" };
        let head = format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n");
        bench.give(upstream, (head + answer).as_bytes());
        assert!(bench.take(client) >= answer.len());
    } else {
        assert!(bench.gateway.unsent(client).starts_with(b"HTTP/1.1 200 "));
    }
    bench.times
}

/// Returns a stream whose last event contains `text` and lacks its empty line.
fn last_event(text: &str) -> String {
    let finish = "\"finish_reason\":\"stop\"";
    format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{text}\"}},{finish}}}]}}\n")
}

fn bytes(megabytes: usize) -> usize {
    megabytes * if is_optimised() { 1_000_000 } else { 100_000 }
}

#[test]
fn no_call_into_the_core_takes_long_for_any_body_size() {
    let plain = "lorem ipsum ".repeat(bytes(32) / 12);
    let escaped = "\\u00e9\\n\\\"ö漢".repeat(bytes(32) / 18);
    let hello = "hello".to_owned();
    let small = whole(Shape::Chat, "one");
    let small_message = whole(Shape::Messages, "one");
    let (big, big_message) = (whole(Shape::Chat, &"a".repeat(bytes(50))), whole(Shape::Messages, &plain));
    let last_chat = last_event(&"a".repeat(bytes(7)));
    let (chat, count) = ("/v1/chat/completions", "/v1/messages/count_tokens");
    let runs = [
        ("32 MB request", chat, "small", &plain, Some(&small)),
        ("32 MB, escapes", chat, "small", &escaped, Some(&small)),
        ("32 MB, translated", chat, "large", &plain, Some(&small_message)),
        ("32 MB to count", count, "large", &escaped, None),
        ("50 MB answer", chat, "small", &hello, Some(&big)),
        ("32 MB answer, translated", chat, "large", &hello, Some(&big_message)),
        ("7 MB last event", chat, "small", &hello, Some(&last_chat)),
        ("7 MB last, translated", "/v1/messages", "small", &hello, Some(&last_chat)),
    ];
    println!("{:<26} {:>7} {:>9} {:>9}", "", "calls", "p99", "max");
    let mut slow = Vec::new();
    for (name, path, model, words, answer) in runs {
        let mut best: Vec<Duration> = Vec::new();
        for _ in 0..RUNS {
            let times = run(path, model, words, answer.map(String::as_str));
            best = if best.is_empty() { times } else { best.into_iter().zip(times).map(|(a, b)| a.min(b)).collect() };
        }
        best.sort();
        let most = best[best.len() - 1];
        println!("{name:<26} {:>7} {:>9.1?} {most:>9.1?}", best.len(), best[best.len() * 99 / 100]);
        if most > if cfg!(debug_assertions) { BOUND * 20 } else { BOUND } {
            slow.push(name);
        }
    }
    assert!(slow.is_empty(), "a call took too long: {slow:?}");
}
