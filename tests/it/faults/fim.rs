//! Completions as an editor asks for them while somebody types: each is given up at some moment before it is complete.
//! `scripts/soak fim` does it ten thousand times; here it is a few hundred.
//!
//! The measured time begins before the client's socket is closed and ends with the return of the provider's blocking
//! read. Two threads must wake up for it, the gateway's and the provider's. On a busy machine this can take longer than
//! the promised bound. So with each request a bare connection through a relay of two sockets is closed, and the two
//! times are compared.

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

/// Editors at once.
const EDITORS: u64 = 8;
/// A request is given up within so many microseconds.
const TYPED_MAX: u64 = 100_000;
/// The promised bound.
const BOUND: Duration = Duration::from_millis(10);
/// Allowed late requests of a release binary: a multiple of the late bare connections, and a number per thousand in
/// addition. A test binary is slow enough to be preempted, so only its median must keep the bound.
const LATE: (usize, usize) = (3, 1);

/// Moments by the number of the request: it has reached the provider; its connection has ended there. And that of the
/// bare connection beside it.
enum Seen {
    Reached(u64),
    Ended(u64, Instant),
    Bare(u64, Instant),
}

/// Streams that get an event every millisecond.
type Streams = Arc<Mutex<Vec<TcpStream>>>;

fn tick(streams: &Streams) {
    let event = "data: {\"id\":\"c\",\"object\":\"text_completion\",\"created\":1,\"model\":\"up\",\"choices\":\
                 [{\"text\":\" word\",\"index\":0,\"finish_reason\":null}]}\n\n";
    while Arc::strong_count(streams) > 1 {
        std::thread::sleep(Duration::from_millis(1));
        streams.lock().unwrap().retain_mut(|stream| stream.write_all(event.as_bytes()).is_ok());
    }
}

/// A provider that completes one request after another, never to the end: every millisecond an event, or no word.
fn provide(wire: &Wire, streams: &Streams, tell: &Sender<Seen>) {
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
    if find(&got, b"\"stream\":true").is_some() {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 99999999\r\n\r\n";
        let _ = socket.write_all(head.as_bytes());
        streams.lock().unwrap().push(socket.try_clone().unwrap());
    }
    let _ = tell.send(Seen::Ended(number, gone(socket)));
    let _ = socket.shutdown(Shutdown::Both);
}

/// When the other side has gone.
fn gone(mut socket: &TcpStream) -> Instant {
    let mut block = [0; 4096];
    while socket.read(&mut block).is_ok_and(|count| count > 0) {}
    Instant::now()
}

/// The number that a bare connection begins with.
fn number(mut socket: &TcpStream) -> Option<u64> {
    let mut number = [0; 8];
    socket.read_exact(&mut number).ok()?;
    Some(u64::from_le_bytes(number))
}

/// Two sockets, the second of which is closed when the first one ends, and who waits at its other end.
fn bare(tell: Sender<Seen>) -> SocketAddr {
    let end = listen(None, move |wire| {
        if let Some(number) = number(wire.socket()) {
            let _ = tell.send(Seen::Bare(number, gone(wire.socket())));
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

/// Requests of one editor, each cancelled at a random moment: the moments by number of the request, and those of the
/// bare connection.
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
        let (mut client, mut beside) = (Client::connect(world.at), TcpStream::connect(bare).unwrap());
        beside.write_all(&number.to_le_bytes()).unwrap();
        client.send(&post("/v1/completions", &[("authorization", &format!("Bearer {}", world.key))], &body));
        std::thread::sleep(Duration::from_micros(rng.below(TYPED_MAX)));
        if rng.below(2) == 0 {
            for socket in [&client.socket, &beside] {
                SockRef::from(socket).set_linger(Some(Duration::ZERO)).unwrap();
            }
        }
        let close = |socket: TcpStream| {
            let before = Instant::now();
            drop(socket);
            before
        };
        // Whichever goes first, the other's way is busy with it.
        let ours_first = rng.below(2) == 0;
        let (first, second) = if ours_first { (client.socket, beside) } else { (beside, client.socket) };
        let (first, second) = (close(first), close(second));
        left.push((number, if ours_first { [first, second] } else { [second, first] }));
    }
    left
}

/// Summary of the times: median, 99th percentile, maximum, and the number beyond the bound.
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
fn completions_that_are_given_up_at_any_moment_leave_nothing_behind() {
    let requests = std::env::var("FIM_REQUESTS").ok().and_then(|text| text.parse().ok()).unwrap_or(400);
    let (tell, seen) = channel();
    let (streams, bare) = (Streams::default(), bare(tell.clone()));
    let world = {
        let streams = streams.clone();
        world(listen(None, move |wire| provide(&wire, &streams, &tell)))
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
    let (mut open, mut ours, mut beside) = (BTreeSet::new(), Vec::new(), Vec::new());
    loop {
        match seen.recv_timeout(if open.is_empty() { Duration::from_millis(500) } else { TIMEOUT }) {
            Ok(Seen::Reached(number)) => assert!(open.insert(number), "{number} is sent twice"),
            Ok(Seen::Ended(number, at)) => {
                assert!(open.remove(&number));
                ours.push(at.saturating_duration_since(left[&number][0]));
            }
            Ok(Seen::Bare(number, at)) => beside.push(at.saturating_duration_since(left[&number][1])),
            Err(_) if open.is_empty() => break,
            Err(_) => panic!("the provider does not see these go: {open:?}"),
        }
    }
    let reached = ours.len();
    assert!(reached as u64 > requests / 2 && beside.len() >= reached, "many of them are given up under way");
    let (ours, beside) = (Times::of(ours), Times::of(beside));
    println!("{reached} of {requests} reached the provider, which saw them go after: {ours}");
    println!("bare connections beside them: {beside}");
    assert!(ours.p50 <= BOUND, "{ours}");
    let is_released = std::env::var_os("TOLLGATE_BIN").is_some();
    let allowed = LATE.0 * beside.late + (LATE.1 * reached).div_ceil(1000);
    assert!(!is_released || ours.late <= allowed, "{ours}, and of bare connections {beside}");
    let db = rusqlite::Connection::open(world.folder.path().join("tollgate.db")).unwrap();
    let sql = "SELECT count(*), count(DISTINCT id), sum(status = 499 AND endpoint = 'completions') FROM rows";
    let counts: (i64, i64, i64) = db.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).unwrap();
    assert!(counts.0 >= reached as i64 && counts.0 == counts.1 && counts.0 == counts.2, "{counts:?}");
    assert_eq!(world.metrics()["tollgate_panics_total"], 0.0);
}
