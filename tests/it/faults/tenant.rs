//! The worst tenant: one key disturbs others as much as it can, with the smallest buffers that the configuration
//! allows. Meanwhile an honest key sends small requests, on new connections and on a kept one. For each kind of
//! disturbance the test prints the honest key's times with and without the hostile key, and memory compared with the
//! announced bound.
//!
//! This test checks the memory bound; `scripts/soak tenant` checks the times with the release binary.

use super::client::{Client, post};
use super::process::{Folder, wait_for};
use super::stalls::{is_optimised, provider};
use super::wire::{Wire, listen};
use super::world::{CONFIG, World, open};
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;
/// Concurrent connections of the hostile key.
const HOSTILE: usize = 5;
/// Additional wait that the hostile key may cause for the honest key.
const TARGET: Duration = Duration::from_millis(50);

/// Returns the size of the largest body; `max_buffered` is four times as large.
fn max_body() -> usize {
    if is_optimised() { 32 * MIB } else { 8 * MIB }
}

/// Returns the duration of each kind.
fn spell() -> Duration {
    let seconds = std::env::var("TENANT_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(2))
}

/// A kind of hostile requests.
struct Kind {
    name: &'static str,
    path: &'static str,
    /// Returns a body of about this number of bytes.
    body: fn(usize) -> String,
    /// Way of sending the request.
    how: How,
}

#[derive(Copy, Clone, PartialEq)]
enum How {
    /// Sent in one go, and the answer is read.
    Whole,
    /// Sent in one go as a single chunk, without a declared length.
    Undeclared,
    /// Sent in one go, and the client disconnects before the answer.
    Leaves,
    /// Only the head and some bytes of the body are sent.
    Slowly,
    /// Sent in one go, and the answer is not read.
    Unread,
}

fn filled(length: usize, one: impl Fn(usize) -> String) -> String {
    let mut list = one(0);
    for at in 1.. {
        let item = one(at);
        if list.len() + item.len() + 300 > length {
            break;
        }
        list.push(',');
        list.push_str(&item);
    }
    list
}

fn tools(length: usize) -> String {
    let tools = filled(length, |n| format!("{{\"type\":\"function\",\"name\":\"t{n}\"}}"));
    format!("{{\"model\":\"usual-chat-one\",\"input\":\"a\",\"tools\":[{tools}]}}")
}

fn large_tools(length: usize) -> String {
    let pad = "p".repeat(length / 4096 - 60);
    let tools = filled(length, |n| format!("{{\"type\":\"function\",\"name\":\"t{n:06}\",\"description\":\"{pad}\"}}"));
    format!("{{\"model\":\"usual-chat-one\",\"input\":\"a\",\"tools\":[{tools}]}}")
}

fn items(length: usize) -> String {
    let pad = "p".repeat(length / 99_000 - 30);
    let items = filled(length, |_| format!("{{\"role\":\"user\",\"content\":\"{pad}\"}}"));
    format!("{{\"model\":\"usual-chat-one\",\"input\":[{items}]}}")
}

fn doubling(length: usize) -> String {
    let arguments = "\\\\".repeat(length / 2 - 300);
    format!(
        "{{\"model\":\"held-chat-one\",\"max_tokens\":9,\"messages\":[\
         {{\"role\":\"user\",\"content\":\"#fault keep/whole \"}},\
         {{\"role\":\"assistant\",\"content\":[{{\"type\":\"tool_use\",\"id\":\"c\",\"name\":\"f\",\"input\":\
         {{\"a\":\"{arguments}\"}}}}]}},{{\"role\":\"user\",\"content\":\"b\"}}]}}"
    )
}

fn text(length: usize) -> String {
    let text = "lorem ipsum ".repeat(length / 12 - 20);
    format!("{{\"model\":\"usual-messages-one\",\"messages\":[{{\"role\":\"user\",\"content\":\"{text}\"}}]}}")
}

fn unknown_model(length: usize) -> String {
    let name = "sk-a".repeat(length / 4 - 50);
    format!("{{\"model\":\"{name}\",\"messages\":[{{\"role\":\"user\",\"content\":\"a\"}}]}}")
}

fn unknown_member(length: usize) -> String {
    let name = "\\u0061b".repeat(length / 7 - 50);
    format!("{{\"model\":\"usual-chat-one\",\"messages\":[{{\"role\":\"user\",\"content\":\"a\"}}],\"{name}\":1}}")
}

fn long_answer(length: usize) -> String {
    let asks = format!("#sim big={}", length / 5);
    format!("{{\"model\":\"usual-messages-one\",\"messages\":[{{\"role\":\"user\",\"content\":\"{asks}\"}}]}}")
}

/// Bytes of a body that is translated by the event loop itself, if it has few items.
const ON_LOOP: usize = 500_000;

fn repeated_members(_: usize) -> String {
    let members = filled(250_000, |_| "\"oneOf\":1".to_owned());
    let format = format!("{{\"type\":\"json_schema\",\"json_schema\":{{\"name\":\"x\",\"schema\":{{{members}}}}}}}");
    let said = "\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]";
    format!("{{\"model\":\"usual-messages-one\",{said},\"response_format\":{format}}}")
}

fn equal_tools(_: usize) -> String {
    let tool = |schema: &str| {
        format!("{{\"type\":\"function\",\"function\":{{\"name\":\"a\",\"parameters\":{{\"x\":{schema}1}}}}}}")
    };
    let tools = filled(ON_LOOP / 2, |n| tool(if n == 0 { "*" } else { "" })).replace('*', &" ".repeat(ON_LOOP / 2));
    let said = "\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]";
    format!("{{\"model\":\"usual-messages-one\",{said},\"tools\":[{tools}]}}")
}

/// Calls with one id, names that no provider takes, and outputs that are lists.
fn small_items(_: usize) -> String {
    let items = filled(ON_LOOP, |n| {
        match n % 2 {
        0 => "{\"type\":\"function_call\",\"call_id\":\"c\",\"name\":\"a.b\"}".to_owned(),
        _ => "{\"type\":\"function_call_output\",\"call_id\":\"c\",\"output\":[{\"type\":\"input_text\",\"text\":\"a\"}]}"
            .to_owned(),
    }
    });
    format!("{{\"model\":\"usual-messages-one\",\"input\":[{items}]}}")
}

/// The most parts of a message that are translated by the event loop.
fn few_items(_: usize) -> String {
    let parts = filled(60_000, |_| "{\"type\":\"text\",\"text\":\"a\"}".to_owned());
    format!("{{\"model\":\"usual-messages-one\",\"messages\":[{{\"role\":\"user\",\"content\":[{parts}]}}]}}")
}

const CHAT: &str = "/v1/chat/completions";
const RESPONSES: &str = "/v1/responses";

const KINDS: [Kind; 15] = [
    Kind { name: "too many tools", path: RESPONSES, body: tools, how: How::Whole },
    Kind { name: "as many tools as are taken", path: RESPONSES, body: large_tools, how: How::Whole },
    Kind { name: "as many items as are taken", path: RESPONSES, body: items, how: How::Whole },
    Kind { name: "members of one name", path: CHAT, body: repeated_members, how: How::Whole },
    Kind { name: "equal tools, the first long", path: CHAT, body: equal_tools, how: How::Whole },
    Kind { name: "small items", path: RESPONSES, body: small_items, how: How::Whole },
    Kind { name: "few small items", path: CHAT, body: few_items, how: How::Whole },
    Kind { name: "translated, and left", path: RESPONSES, body: items, how: How::Leaves },
    Kind { name: "translations twice as long", path: "/v1/messages", body: doubling, how: How::Leaves },
    Kind { name: "undeclared, translated", path: CHAT, body: text, how: How::Undeclared },
    Kind { name: "undeclared, no such model", path: CHAT, body: unknown_model, how: How::Undeclared },
    Kind { name: "models of long names", path: CHAT, body: unknown_model, how: How::Whole },
    Kind { name: "members of long names", path: CHAT, body: unknown_member, how: How::Whole },
    Kind { name: "slow bodies", path: CHAT, body: text, how: How::Slowly },
    Kind { name: "answers that are not read", path: CHAT, body: long_answer, how: How::Unread },
];

/// A provider that never answers a request.
fn holds(mut wire: Wire) {
    let Some(asked) = wire.request() else { return };
    wire.rest(&asked);
    wire.wait_for_end();
}

fn world() -> World {
    let own = format!(
        "max_connections = 200\nmax_body = \"{}MiB\"\nmax_buffered = \"{}MiB\"",
        max_body() / MIB,
        4 * max_body() / MIB
    );
    let lines = CONFIG.lines().filter(|line| !line.contains("_timeout"));
    let lines = lines.map(|line| if line == "[server]" { format!("{line}\n{own}") } else { line.to_string() });
    // The hostile key has its own provider, which may be as slow as the key makes it.
    let (quick, usual) = (provider(), provider());
    let places = [open("quick", quick), open("held", listen(None, holds)), open("usual", usual), open("good", quick)];
    World::of(Folder::new(), &places, &lines.collect::<Vec<_>>().join("\n"), Vec::new())
}

/// Opens one hostile connection after the other. Each ends by itself or with the phase.
fn attack(to: SocketAddr, request: &[u8], how: How, over: &AtomicBool, sent: &AtomicUsize) {
    while !over.load(Ordering::Relaxed) {
        let Ok(mut socket) = TcpStream::connect(to) else { continue };
        socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        socket.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
        let whole = if how == How::Slowly { &request[..request.len().min(3000)] } else { request };
        let mut rest = whole;
        while !rest.is_empty() && !over.load(Ordering::Relaxed) {
            match socket.write(&rest[..rest.len().min(1 << 20)]) {
                Ok(count) => rest = &rest[count..],
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => break,
            }
        }
        sent.fetch_add(1, Ordering::Relaxed);
        let reads = matches!(how, How::Whole | How::Undeclared);
        let mut block = [0; 4096];
        while !over.load(Ordering::Relaxed) && how != How::Leaves {
            if !reads {
                std::thread::sleep(Duration::from_millis(20));
            } else if !matches!(socket.read(&mut block), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock) {
                break;
            }
        }
        if how == How::Leaves {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Returns the waits of the honest key for small answers, on new connections and on a kept one.
fn ask(world: &World, key: &str, over: &AtomicBool) -> [Vec<Duration>; 2] {
    let body = "{\"model\":\"quick-chat-one\",\"messages\":[{\"role\":\"user\",\"content\":\"#sim tokens=1\"}]}";
    let asks = post(CHAT, &[("authorization", &format!("Bearer {key}"))], body);
    let (mut kept, mut times) = (Client::connect(world.at), [Vec::new(), Vec::new()]);
    while !over.load(Ordering::Relaxed) {
        let timed = |client: &mut dyn FnMut() -> u16| {
            let begun = Instant::now();
            let status = client();
            assert_eq!(status, 200, "the honest key was refused");
            begun.elapsed()
        };
        times[0].push(timed(&mut || Client::connect(world.at).ask(&asks).status()));
        times[1].push(timed(&mut || kept.ask(&asks).status()));
        std::thread::sleep(Duration::from_millis(5));
    }
    times
}

fn at(times: &mut [Duration], part: usize) -> Duration {
    times.sort();
    times[(times.len() - 1) * part / 100]
}

/// Returns the head and body of a hostile request.
fn request(kind: &Kind, key: &str) -> Vec<u8> {
    let body = (kind.body)(max_body() - 2000);
    let mut request = post(kind.path, &[("authorization", &format!("Bearer {key}"))], &body);
    if kind.how == How::Undeclared {
        let end = request.windows(4).position(|window| window == b"\r\n\r\n").unwrap();
        let head = String::from_utf8(request[..end].to_vec()).unwrap();
        let head = head.replace(&format!("content-length: {}", body.len()), "transfer-encoding: chunked");
        request = format!("{head}\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n", body.len()).into_bytes();
    }
    request
}

/// Runs one phase. Returns the honest key's times, the peak of buffered bytes, and the number of hostile requests.
fn press(world: &World, honest: &str, hostile: Option<(&[u8], How)>) -> ([Vec<Duration>; 2], u64, usize) {
    let (over, most, sent) = (AtomicBool::new(false), AtomicU64::new(0), AtomicUsize::new(0));
    let times = std::thread::scope(|scope| {
        let asker = scope.spawn(|| ask(world, honest, &over));
        for (request, how) in hostile.into_iter().cycle().take(HOSTILE) {
            let (over, sent, at) = (&over, &sent, world.at);
            scope.spawn(move || attack(at, request, how, over, sent));
        }
        let begun = Instant::now();
        while begun.elapsed() < spell() && !asker.is_finished() {
            most.fetch_max(world.metrics()["tollgate_buffered_bytes"] as u64, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(20));
        }
        over.store(true, Ordering::Relaxed);
        asker.join().unwrap()
    });
    (times, most.into_inner(), sent.into_inner())
}

#[test]
fn hostile_key_delays_no_other_key() {
    let world = world();
    let (honest, announced) = (world.issue("honest"), world.announced());
    for key in [&honest, &world.key] {
        let body = "{\"model\":\"quick-chat-one\",\"messages\":[{\"role\":\"user\",\"content\":\"#sim tokens=1\"}]}";
        let asks = post(CHAT, &[("authorization", &format!("Bearer {key}"))], body);
        wait_for("a key", || (Client::connect(world.at).ask(&asks).status() == 200).then_some(()));
    }
    let ([mut new, mut kept], ..) = press(&world, &honest, None);
    let alone = [at(&mut new, 99), at(&mut kept, 99)];
    println!(
        "without the hostile key: new connections p99 {:.1?}, an open one {:.1?}, of {} requests",
        alone[0],
        alone[1],
        new.len()
    );
    let mut slow = Vec::new();
    for kind in &KINDS {
        fs::write(format!("/proc/{}/clear_refs", world.gateway.id()), "5").unwrap();
        let request = request(kind, &world.key);
        let ([mut new, mut kept], most, sent) = press(&world, &honest, Some((&request, kind.how)));
        let (peak, mib) = (world.memory("VmHWM"), |bytes: u64| bytes as f64 / MIB as f64);
        let p99 = [at(&mut new, 99), at(&mut kept, 99)];
        println!(
            "{:<28} new {:>8.1?} most {:>8.1?}; kept {:>8.1?} most {:>8.1?}; {:>4} asked, {sent:>4} hostile; \
             buffers {:>5.1} of \
             {} MiB; resident {:>5.1} of {:.1} MiB",
            kind.name,
            p99[0],
            at(&mut new, 100),
            p99[1],
            at(&mut kept, 100),
            new.len(),
            mib(most),
            4 * max_body() / MIB,
            mib(peak),
            mib(announced)
        );
        assert!(most <= 4 * max_body() as u64, "{}: {most} bytes buffered", kind.name);
        assert!(peak <= announced, "{}: {peak} bytes resident of {announced} announced", kind.name);
        assert!(sent > 0 && !new.is_empty(), "{}: {sent} hostile, {} honest", kind.name, new.len());
        slow.extend((0..2).filter(|at| p99[*at] > alone[*at] + TARGET).map(|at| (kind.name, p99[at])));
        wait_for("rest", || (world.usage().buffered == 0).then_some(()));
    }
    println!("resident when idle afterwards: {:.1} MiB", world.memory("VmRSS") as f64 / MIB as f64);
    assert!(slow.is_empty() || !is_optimised(), "delayed by more than {TARGET:?}: {slow:?}, alone {alone:?}");
}
