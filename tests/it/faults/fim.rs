//! Completions as an editor asks for them while somebody types: each is given up at some moment before it is complete.
//! `scripts/soak fim` does it ten thousand times; here it is a few hundred.

use super::client::{Client, find, post};
use super::process::{Folder, PATIENCE};
use super::wire::{Wire, listen};
use super::world::{CONFIG, World};
use socket2::SockRef;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};
use tollgate::base::rng::Rng;

/// Editors at once.
const EDITORS: u64 = 8;
/// A request is given up within so many microseconds.
const TYPED_MAX: u64 = 100_000;
/// The contract's bound.
const BOUND: Duration = Duration::from_millis(10);

/// Moments by the number of the request: it has reached the provider; its connection has ended there.
enum Seen {
    Reached(u64),
    Ended(u64, Instant),
}

/// A provider that completes one request after another, never to the end: every millisecond an event, or no word.
fn provide(wire: &Wire, tell: &Sender<Seen>) {
    let mut socket = wire.socket();
    let (mut got, mut block) = (Vec::new(), [0; 4096]);
    let number = loop {
        match socket.read(&mut block) {
            Ok(count) if count > 0 => got.extend_from_slice(&block[..count]),
            _ => return,
        }
        if let Some(number) = asked(&got) {
            break number;
        }
    };
    let _ = tell.send(Seen::Reached(number));
    let streams = find(&got, b"\"stream\":true").is_some();
    if streams {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 99999999\r\n\r\n";
        let _ = socket.write_all(head.as_bytes());
    }
    let _ = socket.set_read_timeout(Some(Duration::from_millis(1)));
    loop {
        let waits = |kind| matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted);
        match socket.read(&mut block) {
            Err(error) if waits(error.kind()) => {}
            _ => break,
        }
        let event = "data: {\"id\":\"c\",\"object\":\"text_completion\",\"created\":1,\"model\":\"up\",\"choices\":\
                     [{\"text\":\" word\",\"index\":0,\"finish_reason\":null}]}\n\n";
        if streams && socket.write_all(event.as_bytes()).is_err() {
            break;
        }
    }
    let _ = tell.send(Seen::Ended(number, Instant::now()));
}

/// The number of a request that has come whole.
fn asked(got: &[u8]) -> Option<u64> {
    let end = find(got, b"\r\n\r\n")? + 4;
    let head = std::str::from_utf8(&got[..end]).unwrap();
    assert!(head.starts_with("POST /v1/completions "), "{head}");
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
    if got.len() < end + length.parse::<usize>().unwrap() {
        return None;
    }
    let at = find(got, b"\"prompt\":\"")? + 10;
    let text = std::str::from_utf8(&got[at..]).unwrap();
    text.split(' ').next()?.parse().ok()
}

fn world(upstream: SocketAddr) -> World {
    let lines: Vec<&str> = CONFIG.lines().filter(|line| !line.contains("_timeout")).collect();
    let config = format!(
        "{}\n[[providers]]\nname = \"p\"\nshape = \"chat\"\nbase_url = \"http://{upstream}/v1\"\n\
         [[models]]\nid = \"fim\"\ncontext = \"8K\"\nserves = [\"completions\"]\n\
         targets = [{{ provider = \"p\", model = \"up\" }}]\n",
        lines.join("\n")
    );
    World::of(Folder::new(), &[], &config, Vec::new())
}

/// What one editor asks for, each given up at a random moment: when, by the number of the request.
fn type_on(world: &World, numbers: impl Iterator<Item = u64>, rng: &mut Rng) -> Vec<(u64, Instant)> {
    let ask = |number: u64| {
        let streams = number.is_multiple_of(2);
        let body = format!(
            "{{\"model\":\"fim\",\"prompt\":\"{number} def add(\",\"suffix\":\"return a + b\",\"max_tokens\":99,\
             \"stream\":{streams}}}"
        );
        let client = Client::connect(world.at);
        (client, post("/v1/completions", &[("authorization", &format!("Bearer {}", world.key))], &body))
    };
    let mut left = Vec::new();
    for number in numbers {
        let (mut client, request) = ask(number);
        client.send(&request);
        std::thread::sleep(Duration::from_micros(rng.below(TYPED_MAX)));
        if rng.below(2) == 0 {
            SockRef::from(&client.socket).set_linger(Some(Duration::ZERO)).unwrap();
        }
        left.push((number, Instant::now()));
        drop(client);
    }
    left
}

#[test]
fn completions_that_are_given_up_at_any_moment_leave_nothing_behind() {
    let requests = std::env::var("FIM_REQUESTS").ok().and_then(|text| text.parse().ok()).unwrap_or(400);
    let (tell, seen) = channel();
    let world = world(listen(None, move |wire| provide(&wire, &tell)));
    let (start, descriptors) = (world.at_rest(PATIENCE), world.gateway.descriptors());
    let left: BTreeMap<u64, Instant> = std::thread::scope(|scope| {
        let editors = (0..EDITORS).map(|editor| {
            let (world, numbers) = (&world, (0..requests).skip(editor as usize).step_by(EDITORS as usize));
            scope.spawn(move || type_on(world, numbers, &mut Rng::from_u64(editor)))
        });
        let editors: Vec<_> = editors.collect();
        editors.into_iter().flat_map(|editor| editor.join().unwrap()).collect()
    });
    world.back_to(&start, descriptors);
    let (mut open, mut times) = (BTreeSet::new(), Vec::new());
    loop {
        match seen.recv_timeout(if open.is_empty() { Duration::from_millis(500) } else { PATIENCE }) {
            Ok(Seen::Reached(number)) => assert!(open.insert(number), "{number} is sent twice"),
            Ok(Seen::Ended(number, at)) => {
                assert!(open.remove(&number));
                times.push(at.saturating_duration_since(left[&number]));
            }
            Err(_) if open.is_empty() => break,
            Err(_) => panic!("the provider does not see these go: {open:?}"),
        }
    }
    times.sort();
    let (p50, p99, most) = (times[times.len() / 2], times[times.len() * 99 / 100], times[times.len() - 1]);
    println!(
        "{} of {requests} reached the provider; gone after p50 {p50:.2?}, p99 {p99:.2?}, most {most:.2?}",
        times.len()
    );
    assert!(times.len() as u64 > requests / 2, "many of them are given up under way");
    // What is beyond it is the machine's doing: other tests run beside this one.
    assert!(p50 <= BOUND, "{p50:?}");
    let db = rusqlite::Connection::open(world.folder.path().join("tollgate.db")).unwrap();
    let sql = "SELECT count(*), count(DISTINCT id), sum(status = 499 AND endpoint = 'completions') FROM rows";
    let counts: (i64, i64, i64) = db.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).unwrap();
    assert!(counts.0 >= times.len() as i64 && counts.0 == counts.1 && counts.0 == counts.2, "{counts:?}");
    assert_eq!(world.metrics()["tollgate_panics_total"], 0.0);
}
