//! The memory bound that the gateway logs at startup, under pressure from sixty keys on every side where a peer can
//! make the process buffer bytes. For each side the test prints the announced bound, the peak of buffered bytes, and
//! the peak of resident memory.

use super::answers::{Shape, stream, whole};
use super::client::{Client, post};
use super::process::{Folder, Process, wait_for};
use super::stalls::provider;
use super::wire::{Wire, listen};
use super::world::{CONFIG, Place, World, announced, open};
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use socket2::{Domain, SockAddr, Socket, Type};
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tollgate::base::time::Unix;
use tollgate::policy::keys::{KeyRecord, Scope, issue};
use tollgate::store::sqlite::{Mode, Sqlite};

const KEYS: usize = 60;
/// Connections per key.
const EACH: usize = 5;
const MIB: usize = 1 << 20;
/// Size of a large body and of a large answer, in bytes.
const LARGE: usize = 3 * MIB / 2;
/// Maximum duration of the pressure on one side.
const PRESSING: Duration = Duration::from_millis(1500);
/// Time for which pressure continues after the last progress.
const STILL: Duration = Duration::from_millis(200);

/// Maximum time to wait for answers of providers.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Returns the factor of the load; `scripts/soak` sets a larger one.
fn scale() -> usize {
    std::env::var("SIDES_SCALE").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

fn budget() -> usize {
    16 * MIB * scale()
}

/// A client that sends as fast as possible, and reads either everything or nothing.
struct Peer {
    socket: TcpStream,
    bytes: Arc<Vec<u8>>,
    sent: usize,
    reads: bool,
    over: bool,
}

impl Peer {
    /// Connects with a small receive buffer. `reads`: the client reads its answers.
    fn new(to: SocketAddr, bytes: Arc<Vec<u8>>, reads: bool) -> Option<Peer> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.set_recv_buffer_size(8192).unwrap();
        socket.connect_timeout(&SockAddr::from(to), Duration::from_millis(200)).ok()?;
        socket.set_nonblocking(true).unwrap();
        Some(Peer { socket: socket.into(), bytes, sent: 0, reads, over: false })
    }

    /// Sends and reads once. Returns true if any bytes moved.
    fn exchange(&mut self, block: &mut [u8]) -> bool {
        let rest = &self.bytes[self.sent..];
        let wrote = match self.socket.write(&rest[..rest.len().min(32 << 10)]) {
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
            Err(_) => {
                self.over = true;
                0
            }
        };
        self.sent += wrote;
        let read = self.reads && self.socket.read(block).is_ok_and(|count| count > 0);
        wrote > 0 || read
    }
}

fn press(peers: &mut [Peer]) {
    let (begun, mut moved) = (Instant::now(), Instant::now());
    let mut block = vec![0; 64 << 10];
    while begun.elapsed() < PRESSING * scale() as u32 && moved.elapsed() < STILL {
        let mut any = false;
        for peer in peers.iter_mut().filter(|peer| !peer.over) {
            any |= peer.exchange(&mut block);
        }
        match any {
            true => moved = Instant::now(),
            false => std::thread::sleep(Duration::from_millis(2)),
        }
    }
}

/// Behaviour of the provider, chosen by the script in the request.
fn plays(mut wire: Wire) {
    let Some(asked) = wire.request() else { return };
    wire.rest(&asked);
    let head = "HTTP/1.1 200 OK\r\ncontent-type: ";
    match asked.script.as_str() {
        "whole" => {
            let body = whole(asked.shape, &"a".repeat(LARGE));
            wire.send(format!("{head}application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len()));
        }
        "brief" => {
            std::thread::sleep(2 * STILL * scale() as u32 + PRESSING / 2);
            let body = whole(asked.shape, "one");
            wire.send(format!("{head}application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len()));
        }
        "part" => {
            let body = whole(asked.shape, &"a".repeat(LARGE));
            wire.send(format!("{head}application/json\r\n\r\n{}", &body[..LARGE]));
        }
        "flood" => {
            let events = stream(asked.shape, &"a".repeat(300_000)).tokens[0].clone();
            wire.send(format!("{head}text/event-stream\r\n\r\n"));
            while wire.try_send(events.as_bytes()).is_ok() {}
        }
        "event" => {
            let lines = format!("data: {}\n", "a".repeat(90)).repeat(9_000);
            wire.send(format!("{head}text/event-stream\r\n\r\n{lines}"));
        }
        "calls" => {
            let arguments = "a".repeat(1000);
            let call = format!(
                "data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"tool_calls\":[{{\"index\":1,\"function\":\
                 {{\"arguments\":\"{arguments}\"}}}}]}}}}]}}\n\n"
            );
            wire.send(format!("{head}text/event-stream\r\n\r\n{}", call.repeat(1000)));
        }
        _ => {}
    }
    wire.wait_for_end();
}

fn text(key: &str, model: &str, stream: bool, content: &str) -> Vec<u8> {
    let body = format!(
        "{{\"model\":\"{model}\",\"stream\":{stream},\"max_tokens\":99,\
         \"messages\":[{{\"role\":\"user\",\"content\":\"{content}\"}}]}}"
    );
    post(Shape::Chat.path(), &[("authorization", &format!("Bearer {key}"))], &body)
}

fn head(key: &str, framing: &str) -> String {
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nauthorization: Bearer {key}\r\n\
         content-type: application/json\r\n{framing}\r\n\r\n{{\"messages\":[{{\"role\":\"user\",\"content\":\""
    )
}

fn declared_bodies(key: &str) -> Vec<u8> {
    let begun = head(key, &format!("content-length: {LARGE}"));
    (begun + &"a".repeat(LARGE - 1000)).into_bytes()
}

fn undeclared_bodies(key: &str) -> Vec<u8> {
    let begun = head(key, "transfer-encoding: chunked");
    let (head, start) = begun.split_once("\r\n\r\n").unwrap();
    let chunk = format!("7530\r\n{}\r\n", "a".repeat(30_000));
    (format!("{head}\r\n\r\n{:x}\r\n{start}\r\n", start.len()) + &chunk.repeat(LARGE / 30_000)).into_bytes()
}

fn translated_bodies(key: &str) -> Vec<u8> {
    text(key, "usual-messages-one", false, &format!("#fault keep/whole {}", "a".repeat(LARGE)))
}

fn bodies_of_many_members(key: &str) -> Vec<u8> {
    let members: String = (0..4080).map(|n| format!(",\"a{n}\":0")).collect();
    let body = format!(
        "{{\"model\":\"usual-chat-one\",\"messages\":[{{\"role\":\"user\",\"content\":\"#fault keep/whole \"}}]{members}}}"
    );
    post(Shape::Chat.path(), &[("authorization", &format!("Bearer {key}"))], &body)
}

fn endless_heads(_: &str) -> Vec<u8> {
    format!("GET /v1/models HTTP/1.1\r\nhost: g\r\nx-a: {}", "a".repeat(125_000)).into_bytes()
}

fn pipelines(key: &str) -> Vec<u8> {
    // The gateway notices the end of these clients only after it has read the bytes before it.
    let kept = text(key, "usual-chat-one", false, "#fault brief/whole ");
    [kept, text(key, "no-such-model", false, &"a".repeat(200_000)).repeat(3)].concat()
}

fn unread_answers(key: &str) -> Vec<u8> {
    text(key, "usual-chat-one", false, "#fault whole/whole ")
}

fn collected_answers(key: &str) -> Vec<u8> {
    text(key, "usual-messages-one", false, "#fault part/whole ")
}

fn unread_streams(key: &str) -> Vec<u8> {
    text(key, "usual-chat-one", true, "#fault flood/stream ")
}

fn held_events(key: &str) -> Vec<u8> {
    text(key, "usual-chat-one", true, "#fault event/stream ")
}

fn held_calls(key: &str) -> Vec<u8> {
    let body = "{\"model\":\"usual-chat-one\",\"stream\":true,\"max_tokens\":99,\
                \"messages\":[{\"role\":\"user\",\"content\":\"#fault calls/stream \"}]}";
    post(Shape::Messages.path(), &[("x-api-key", key)], body)
}

/// Returns the requests that the client of a key sends.
type Side = fn(&str) -> Vec<u8>;

/// Returns the configuration of a gateway with a tight memory bound.
fn config(more: &str) -> String {
    let own = format!(
        "max_connections = {}\nmax_header = \"128KiB\"\nmax_body = \"2MiB\"\nmax_buffered = \"{}MiB\"\n{more}",
        400 * scale(),
        budget() / MIB
    );
    let lines = CONFIG.lines().filter(|line| !line.contains("_timeout"));
    let lines = lines.map(|line| match line {
        "[server]" => format!("{line}\n{own}"),
        "[upstream]" => format!("{line}\nmax_event = \"1MiB\"\nmax_response = \"2MiB\""),
        line => line.to_string(),
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn places() -> Vec<Place> {
    vec![open("usual", listen(None, plays)), open("good", listen(None, plays)), open("quick", provider())]
}

/// Issues additional keys directly in the ledger.
fn keys(folder: &Path) -> Vec<String> {
    let ledger = Sqlite::open(&folder.join("tollgate.db"), Mode::Shared).unwrap();
    let scope = Scope::default();
    (0..KEYS)
        .map(|number| {
            let mut serial = 0u8;
            let issued = issue("tg_", |out| {
                out.iter_mut().enumerate().for_each(|(at, byte)| *byte = (number * 7 + at * 13) as u8 ^ serial);
                serial += 1;
            });
            let record = KeyRecord {
                id: issued.id,
                digest: issued.digest,
                name: format!("side-{number}"),
                plan: "open".to_string(),
                scope: scope.clone(),
                created: Unix(0),
                expires: None,
                revoked: None,
                disabled: false,
                limits: tollgate::policy::plan::caps::Caps::default(),
                group: None,
                labels: Vec::new(),
                former: Vec::new(),
                capture: None,
            };
            ledger.insert_key(&record).unwrap();
            issued.text
        })
        .collect()
}

/// Waits until every key is served, since looking up so many keys concurrently takes time.
fn are_known(world: &World, keys: &[String]) {
    for key in keys {
        let asks = text(key, "quick-chat-one", false, "#sim tokens=1");
        wait_for("a key", || (Client::connect(world.at).ask(&asks).status() == 200).then_some(()));
    }
}

/// Values that are checked while a side is under pressure.
struct Gauges<'a> {
    world: &'a World,
    announced: u64,
    over: AtomicBool,
    most: AtomicU64,
}

/// Stops the gauges even if the test fails, since their thread would never end otherwise.
struct Watched<'a>(&'a AtomicBool);

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Gauges<'_> {
    fn watch(&self) {
        while !self.over.load(Ordering::Relaxed) {
            let buffered = self.world.metrics()["tollgate_buffered_bytes"] as u64;
            self.most.fetch_max(buffered, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until the answers of providers stop growing.
    fn settle(&self, enough: u64) {
        let (begun, mut grown, mut most) = (Instant::now(), Instant::now(), 0);
        while begun.elapsed() < TIMEOUT {
            let now = self.most.load(Ordering::Relaxed);
            if now > most {
                (most, grown) = (now, Instant::now());
            }
            if most >= enough && grown.elapsed() > STILL {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Runs the pressure on one side, and checks the peaks of buffered bytes and of resident memory since its start.
fn look<T>(world: &World, announced: u64, (name, enough): (&str, usize), pressed: impl FnOnce() -> T) {
    // Resets the peak, so that it belongs to this side.
    fs::write(format!("/proc/{}/clear_refs", world.gateway.id()), "5").unwrap();
    let gauges = Gauges { world, announced, over: AtomicBool::new(false), most: AtomicU64::new(0) };
    let begun = Instant::now();
    let held = std::thread::scope(|scope| {
        let _watched = Watched(&gauges.over);
        scope.spawn(|| gauges.watch());
        let held = pressed();
        gauges.settle(enough as u64);
        held
    });
    let (most, resident) = (gauges.most.into_inner(), world.memory("VmHWM"));
    drop(held);
    let mib = |bytes: u64| bytes as f64 / MIB as f64;
    println!(
        "{name:<26} announced {:>6.1} MiB; in the gauge at most {:>5.1} of {:>5.1} MiB; resident at most {:>6.1} MiB; {:.1?}",
        mib(gauges.announced),
        mib(most),
        mib(budget() as u64),
        mib(resident),
        begun.elapsed()
    );
    assert!(most <= budget() as u64, "{name}: {most} bytes buffered");
    assert!(resident <= announced, "{name}: {resident} bytes resident of {announced} announced");
    assert!(most >= enough as u64, "{name} causes too little pressure: {most}");
}

#[test]
fn pressure_on_any_side_stays_within_the_announced_memory() {
    let world = World::of(Folder::new(), &places(), &config(""), Vec::new());
    let keys = keys(world.folder.path());
    are_known(&world, &keys);
    let announced = world.announced();
    // Name, requests of a client, and connections per key. Streams have few connections, since kernel buffers fill
    // first.
    let sides: [(&str, Side, usize); 11] = [
        ("declared bodies", declared_bodies, EACH),
        ("undeclared bodies", undeclared_bodies, EACH),
        ("translated bodies", translated_bodies, EACH),
        ("bodies of many members", bodies_of_many_members, 2),
        ("heads that do not end", endless_heads, EACH),
        ("requests behind requests", pipelines, EACH),
        ("answers that are not read", unread_answers, EACH),
        ("answers without a length", collected_answers, EACH),
        ("streams that are not read", unread_streams, 2),
        ("events that do not end", held_events, EACH),
        ("calls that have no name", held_calls, 2),
    ];
    for (name, side, each) in sides {
        let mut peers = Vec::new();
        look(&world, announced, (name, budget() / 4), || {
            let bytes: Vec<_> = keys.iter().map(|key| Arc::new(side(key))).collect();
            let places = (0..each * scale()).flat_map(|_| &bytes);
            peers.extend(places.filter_map(|bytes| Peer::new(world.at, bytes.clone(), false)));
            press(&mut peers);
        });
        drop(peers);
        world.at_rest(Duration::from_secs(30));
    }
}

#[test]
fn unread_log_and_blocked_ledger_stay_within_the_announced_memory() {
    let mut heard = None;
    let start = |path: &Path| {
        let (process, log) = Process::heard(path, "gateway", &["serve"]);
        heard = Some(BufReader::new(log));
        process
    };
    // The ledger must not fail before enough records are pending, even on a slow machine.
    let config = config("").replace("[store]", "[store]\nmax_commit_lag = \"1m\"");
    let world = World::by(Folder::new(), &places(), &config, Vec::new(), start);
    // Only the first line of the log is read.
    let (mut log, mut line) = (heard.unwrap(), String::new());
    log.read_line(&mut line).unwrap();
    let keys = keys(world.folder.path());
    are_known(&world, &keys);
    let ledger = rusqlite::Connection::open(world.folder.path().join("tollgate.db")).unwrap();
    ledger.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mut peers = Vec::new();
    look(&world, announced(&line), ("rows and lines of the log", 0), || {
        for key in &keys {
            let asks = text(key, "quick-chat-one", false, "#sim tokens=1").repeat(100);
            let refused = format!("GET / HTTP/1.1\r\nhost: g\r\nx-request-id: {}\r\n\r\n", "i".repeat(128)).repeat(300);
            peers.extend(Peer::new(world.at, Arc::new([asks, refused.into_bytes()].concat()), true));
        }
        wait_for("waiting rows", || {
            press(&mut peers);
            (world.metrics()["tollgate_uncommitted_rows"] > 500.0).then_some(())
        });
    });
    // Lets the process write its last lines, so that it can end.
    ledger.execute_batch("ROLLBACK").unwrap();
    std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
}

/// Opens a TLS connection and sends a request. Returns the socket and the TLS session.
fn secure(to: SocketAddr, config: &Arc<ClientConfig>, bytes: &[u8]) -> Option<(TcpStream, ClientConnection)> {
    let mut socket = Peer::new(to, Arc::default(), false)?.socket;
    socket.set_nonblocking(false).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    let mut session = ClientConnection::new(config.clone(), ServerName::try_from("gate.test").unwrap()).unwrap();
    session.complete_io(&mut socket).ok()?;
    session.writer().write_all(bytes).unwrap();
    while session.wants_write() {
        session.write_tls(&mut socket).ok()?;
    }
    Some((socket, session))
}

#[test]
fn tls_sessions_stay_within_the_announced_memory() {
    let folder = Folder::new();
    let own = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec!["gate.test".to_owned()]).unwrap().self_signed(&own).unwrap();
    fs::write(folder.path().join("cert.pem"), certificate.pem()).unwrap();
    fs::write(folder.path().join("key.pem"), own.serialize_pem()).unwrap();
    let tls = "tls = { cert = \"cert.pem\", key = \"key.pem\" }\n";
    let world = World::of(folder, &places(), &config(tls), Vec::new());
    let mut roots = RootCertStore::empty();
    roots.add(certificate.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let client = Arc::new(builder.with_root_certificates(roots).with_no_client_auth());
    let keys = keys(world.folder.path());
    std::thread::sleep(Duration::from_secs(1));
    let announced = world.announced();
    let mut clients = Vec::new();
    look(&world, announced, ("sessions over TLS", budget() / 4), || {
        // These connections send an incomplete record and nothing more.
        for _ in 0..2 * KEYS * scale() {
            if let Some((mut socket, session)) = secure(world.at, &client, b"") {
                let _ = socket.write_all(&[[0x17, 3, 3, 0x40, 0].as_slice(), &[7; 16_000]].concat());
                clients.push((socket, session));
            }
        }
        // Once the buffers are full, no further client is accepted.
        let floods = keys.iter().cycle().take(2 * KEYS * scale());
        clients.extend(floods.map_while(|key| secure(world.at, &client, &unread_streams(key))));
    });
}
