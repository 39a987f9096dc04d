//! Completions as an editor requests them while a user types: each is cancelled before it is complete. `scripts/soak
//! fim` cancels ten thousand of them; this test cancels a few hundred.
//!
//! The measured time starts before the client's socket is closed and ends when the provider's blocking read returns.
//! Two threads must wake up for this, the gateway's and the provider's, which can take longer than the documented bound
//! on a busy machine. Therefore each request is compared with a bare connection through a relay of two sockets, which
//! is closed at the same time.

use super::client::{Client, find, post};
use super::process::{Folder, TIMEOUT};
use super::wire::{Wire, listen};
use super::world::{CONFIG, World};
use socket2::SockRef;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tollgate::base::rng::Rng;

/// Number of concurrent editors.
const EDITORS: u64 = 8;
/// A request is cancelled within this number of microseconds.
const TYPED_MAX: u64 = 100_000;
/// The documented bound.
const BOUND: Duration = Duration::from_millis(10);
/// Allowed late cancellations of a release binary: this multiple of the late bare connections, plus this number per
/// thousand. A test binary is slow enough to be preempted, so only its median must meet the bound, which is extended by
/// this multiple of the median of the bare connections.
pub const LATE: (usize, usize) = (3, 1);

/// Events by the number of the request: it has reached the provider; its connection has ended there; the bare
/// connection next to it has ended.
enum Seen {
    Reached(u64),
    Ended(u64, Instant),
    Bare(u64, Instant),
}

/// Streams that receive an event every millisecond.
type Streams = Arc<Mutex<Vec<TcpStream>>>;

fn tick(streams: &Streams) {
    let event = "data: {\"id\":\"c\",\"object\":\"text_completion\",\"created\":1,\"model\":\"up\",\"choices\":\
                 [{\"text\":\" word\",\"index\":0,\"finish_reason\":null}]}\n\n";
    while Arc::strong_count(streams) > 1 {
        std::thread::sleep(Duration::from_millis(1));
        streams.lock().unwrap().retain_mut(|stream| stream.write_all(event.as_bytes()).is_ok());
    }
}

/// A provider that starts one completion after another and finishes none: it sends an event every millisecond, or
/// nothing.
fn provide(wire: &Wire, streams: &Streams, sender: &Sender<Seen>) {
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
    let _ = sender.send(Seen::Reached(number));
    if find(&got, b"\"stream\":true").is_some() {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 99999999\r\n\r\n";
        let _ = socket.write_all(head.as_bytes());
        streams.lock().unwrap().push(socket.try_clone().unwrap());
    }
    let _ = sender.send(Seen::Ended(number, gone(socket)));
    let _ = socket.shutdown(Shutdown::Both);
}

/// Waits until the other side has closed the connection. Returns the time.
fn gone(mut socket: &TcpStream) -> Instant {
    let mut block = [0; 4096];
    while socket.read(&mut block).is_ok_and(|count| count > 0) {}
    Instant::now()
}

/// Reads the number that a bare connection starts with.
fn number(mut socket: &TcpStream) -> Option<u64> {
    let mut number = [0; 8];
    socket.read_exact(&mut number).ok()?;
    Some(u64::from_le_bytes(number))
}

/// Starts a relay that closes its second socket when the first one ends, and a server that waits for this end. Returns
/// the relay's address.
fn bare(sender: Sender<Seen>) -> SocketAddr {
    let end = listen(None, move |wire| {
        if let Some(number) = number(wire.socket()) {
            let _ = sender.send(Seen::Bare(number, gone(wire.socket())));
        }
    });
    listen(None, move |wire| {
        if let Some(number) = number(wire.socket()) {
            let mut to = TcpStream::connect(end).unwrap();
            to.write_all(&number.to_le_bytes()).unwrap();
            gone(wire.socket());
        }
    })
}

/// Median time after which a server notices the end of a bare connection: on a busy machine, threads wake up late.
pub fn bare_delay(rounds: u64) -> Duration {
    let (sender, seen) = channel();
    let relay = bare(sender);
    let delays = (0..rounds).map(|number| {
        let mut client = TcpStream::connect(relay).unwrap();
        client.write_all(&number.to_le_bytes()).unwrap();
        std::thread::sleep(Duration::from_millis(2));
        let left = Instant::now();
        drop(client);
        match seen.recv_timeout(TIMEOUT) {
            Ok(Seen::Bare(_, at)) => at.saturating_duration_since(left),
            _ => panic!("the end of a bare connection is not noticed"),
        }
    });
    Times::of(delays.collect()).p50
}

/// Returns the number of a completely received request.
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

/// Sends the requests of one editor and cancels each at a random time. Returns the times by number, and those of the
/// bare connections.
fn type_on(
    world: &World,
    bare: SocketAddr,
    numbers: impl Iterator<Item = u64>,
    rng: &mut Rng,
) -> Vec<(u64, [Instant; 2])> {
    let mut left = Vec::new();
    for number in numbers {
        let streams = number.is_multiple_of(2);
        let body = format!(
            "{{\"model\":\"fim\",\"prompt\":\"{number} def add(\",\"suffix\":\"return a + b\",\"max_tokens\":99,\
             \"stream\":{streams}}}"
        );
        let (mut client, mut bare_client) = (Client::connect(world.at), TcpStream::connect(bare).unwrap());
        bare_client.write_all(&number.to_le_bytes()).unwrap();
        client.send(&post("/v1/completions", &[("authorization", &format!("Bearer {}", world.key))], &body));
        std::thread::sleep(Duration::from_micros(rng.below(TYPED_MAX)));
        if rng.below(2) == 0 {
            for socket in [&client.socket, &bare_client] {
                SockRef::from(socket).set_linger(Some(Duration::ZERO)).unwrap();
            }
        }
        let close = |socket: TcpStream| {
            let before = Instant::now();
            drop(socket);
            before
        };
        // The first one to be closed makes the second one wait, so the order is random.
        let ours_first = rng.below(2) == 0;
        let (first, second) = if ours_first { (client.socket, bare_client) } else { (bare_client, client.socket) };
        let (first, second) = (close(first), close(second));
        left.push((number, if ours_first { [first, second] } else { [second, first] }));
    }
    left
}

/// Summary of the times: median, 99th percentile, maximum, and how many exceed the bound.
struct Times {
    p50: Duration,
    p99: Duration,
    most: Duration,
    late: usize,
}

impl Times {
    fn of(mut times: Vec<Duration>) -> Times {
        times.sort();
        let at = |percent: usize| times[(times.len() - 1) * percent / 100];
        Times { p50: at(50), p99: at(99), most: at(100), late: times.iter().filter(|time| **time > BOUND).count() }
    }
}

impl std::fmt::Display for Times {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Times { p50, p99, most, late } = self;
        write!(f, "p50 {p50:.2?}, p99 {p99:.2?}, most {most:.2?}, {late} later than {BOUND:?}")
    }
}

#[test]
fn completions_cancelled_at_any_time_leak_nothing() {
    let requests = std::env::var("FIM_REQUESTS").ok().and_then(|text| text.parse().ok()).unwrap_or(400);
    let (sender, seen) = channel();
    let (streams, bare) = (Streams::default(), bare(sender.clone()));
    let world = {
        let streams = streams.clone();
        world(listen(None, move |wire| provide(&wire, &streams, &sender)))
    };
    std::thread::spawn(move || tick(&streams));
    let (start, descriptors) = (world.at_rest(TIMEOUT), world.gateway.descriptors());
    let left: BTreeMap<u64, [Instant; 2]> = std::thread::scope(|scope| {
        let editors = (0..EDITORS).map(|editor| {
            let (world, numbers) = (&world, (0..requests).skip(editor as usize).step_by(EDITORS as usize));
            scope.spawn(move || type_on(world, bare, numbers, &mut Rng::from_u64(editor)))
        });
        let editors: Vec<_> = editors.collect();
        editors.into_iter().flat_map(|editor| editor.join().unwrap()).collect()
    });
    world.back_to(&start, descriptors);
    let (mut open, mut ours, mut bare_times) = (BTreeSet::new(), Vec::new(), Vec::new());
    loop {
        match seen.recv_timeout(if open.is_empty() { Duration::from_millis(500) } else { TIMEOUT }) {
            Ok(Seen::Reached(number)) => assert!(open.insert(number), "{number} was sent twice"),
            Ok(Seen::Ended(number, at)) => {
                assert!(open.remove(&number));
                ours.push(at.saturating_duration_since(left[&number][0]));
            }
            Ok(Seen::Bare(number, at)) => bare_times.push(at.saturating_duration_since(left[&number][1])),
            Err(_) if open.is_empty() => break,
            Err(_) => panic!("the provider does not notice the end of these: {open:?}"),
        }
    }
    let reached = ours.len();
    assert!(
        reached as u64 > requests / 2 && bare_times.len() >= reached,
        "many must be cancelled after they have reached the provider"
    );
    let (ours, bare_times) = (Times::of(ours), Times::of(bare_times));
    println!("{reached} of {requests} reached the provider, which saw them go after: {ours}");
    println!("bare connections: {bare_times}");
    assert!(ours.p50 <= BOUND + LATE.0 as u32 * bare_times.p50, "{ours}, and of bare connections {bare_times}");
    let is_released = std::env::var_os("TOLLGATE_BIN").is_some();
    let allowed = LATE.0 * bare_times.late + (LATE.1 * reached).div_ceil(1000);
    assert!(!is_released || ours.late <= allowed, "{ours}, and of bare connections {bare_times}");
    let db = rusqlite::Connection::open(world.folder.path().join("tollgate.db")).unwrap();
    let sql = "SELECT count(*), count(DISTINCT id), sum(status = 499 AND endpoint = 'completions') FROM rows";
    let counts: (i64, i64, i64) = db.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).unwrap();
    assert!(counts.0 >= reached as i64 && counts.0 == counts.1 && counts.0 == counts.2, "{counts:?}");
    assert_eq!(world.metrics()["tollgate_panics_total"], 0.0);
}
