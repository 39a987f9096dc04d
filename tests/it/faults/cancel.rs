//! A client that disconnects ends its provider request immediately, in every phase. Measured is the time from the
//! client's FIN or RST to the end of the connection at the provider; before there is a connection, to the change of the
//! gateway's own metrics.

use super::answers::{Shape, TEXT, stream, whole};
use super::client::{Client, post};
use super::fim::{LATE, bare_delay};
use super::process::{Folder, TIMEOUT, wait_for};
use super::wire::{Wire, authority, listen};
use super::world::{CONFIG, World, full_listener, open, secure};
use socket2::SockRef;
use std::fs;
use std::net::Shutdown;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// Disconnects per line of the report.
const ROUNDS: usize = 20;
/// The documented bound.
const BOUND: Duration = Duration::from_millis(10);
/// Number of retries of a slow case: a delay caused by a busy machine does not repeat.
const RETRIES: usize = 2;
/// Size of a request that does not fit into the kernel's socket buffers.
const LONG: usize = 6 << 20;

/// Message from the provider to the test.
enum Seen {
    /// The request has reached the phase.
    Reached,
    /// The connection has ended.
    Ended(Instant),
}

/// A provider that handles a request as far as its script says and then waits for the end of the connection.
fn watch(mut wire: Wire, sender: &Sender<Seen>) {
    let Some(asked) = wire.request() else { return };
    let begun = match (asked.script.as_str(), asked.stream) {
        ("relaying", true) => stream(asked.shape, TEXT).part(2),
        ("relaying", false) => whole(asked.shape, TEXT)[..40].to_owned(),
        _ => String::new(),
    };
    if !begun.is_empty() {
        let kind = if asked.stream { "text/event-stream" } else { "application/json" };
        wire.send(format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: 99999\r\n\r\n{begun}"));
    }
    let _ = sender.send(Seen::Reached);
    if asked.left > 0 {
        // Reading would let the gateway send more, so this asks the kernel whether the connection has ended.
        while wire.socket().peer_addr().is_ok() {
            std::thread::sleep(Duration::from_micros(50));
        }
    } else {
        wire.wait_for_end();
    }
    let _ = sender.send(Seen::Ended(Instant::now()));
}

/// A provider that accepts a connection and waits for its end without sending anything.
fn watch_silently(mut wire: Wire, sender: &Sender<Seen>) {
    let _ = sender.send(Seen::Reached);
    wire.wait_for_end();
    let _ = sender.send(Seen::Ended(Instant::now()));
}

/// Ways in which a client disconnects.
#[derive(Copy, Clone, Debug)]
enum Leaving {
    Fin,
    HalfClose,
    Reset,
}

impl Leaving {
    /// Disconnects. Returns the time before, and the socket of a half-closed client, which must stay open.
    fn leave(self, client: Client) -> (Instant, Option<Client>) {
        let at = Instant::now();
        match self {
            Leaving::Fin => drop(client),
            Leaving::HalfClose => {
                client.socket.shutdown(Shutdown::Write).unwrap();
                return (at, Some(client));
            }
            Leaving::Reset => {
                SockRef::from(&client.socket).set_linger(Some(Duration::ZERO)).unwrap();
                drop(client);
            }
        }
        (at, None)
    }
}

/// A phase in which clients disconnect.
struct Phase {
    name: &'static str,
    place: &'static str,
    script: &'static str,
    padding: usize,
}

const PHASES: [Phase; 8] = [
    Phase { name: "connecting", place: "silent", script: "connecting", padding: 0 },
    Phase { name: "tls handshake", place: "silent-tls", script: "shaking", padding: 0 },
    Phase { name: "sending", place: "usual", script: "early_sending", padding: LONG },
    Phase { name: "sending, tls", place: "usual-tls", script: "early_sending", padding: LONG },
    Phase { name: "waiting", place: "usual", script: "waiting", padding: 0 },
    Phase { name: "waiting, tls", place: "usual-tls", script: "waiting", padding: 0 },
    Phase { name: "relaying", place: "usual", script: "relaying", padding: 0 },
    Phase { name: "relaying, tls", place: "usual-tls", script: "relaying", padding: 0 },
];

fn world(sender: &Sender<Seen>) -> World {
    let folder = Folder::new();
    let (pem, config) = authority();
    fs::write(folder.path().join("ca.pem"), pem).unwrap();
    let watcher = |config| {
        let sender = sender.clone();
        listen(config, move |wire| watch(wire, &sender))
    };
    let sender = sender.clone();
    let (full, holders) = full_listener();
    let places = [
        open("usual", watcher(None)),
        secure("usual-tls", "localhost", watcher(Some(config))),
        open("silent", full),
        secure("silent-tls", "localhost", listen(None, move |wire| watch_silently(wire, &sender))),
        open("good", full),
    ];
    let patient = ["connect", "first_byte", "idle", "request"].map(|name| format!("{name}_timeout = \"10m\"\n"));
    let mut lines: Vec<&str> = CONFIG.lines().filter(|line| !line.contains("_timeout")).collect();
    let at = lines.iter().position(|line| *line == "[upstream]").unwrap();
    let patient = patient.concat();
    lines.insert(at + 1, &patient);
    World::of(folder, &places, &lines.join("\n"), holders)
}

fn request(world: &World, phase: &Phase, streamed: bool) -> Vec<u8> {
    let (place, script, padding) = (phase.place, phase.script, "x".repeat(phase.padding));
    let kind = if streamed { "stream" } else { "whole" };
    let body = format!(
        "{{\"model\":\"{place}-chat-one\",\"stream\":{streamed},\
         \"messages\":[{{\"role\":\"user\",\"content\":\"#fault {script}/{kind} {padding}\"}}]}}"
    );
    post(Shape::Chat.path(), &[("authorization", &format!("Bearer {}", world.key))], &body)
}

/// Runs one client that disconnects. Returns how long its provider request lasted afterwards.
fn measure_disconnect(
    world: &World,
    phase: &Phase,
    streamed: bool,
    leaving: Leaving,
    seen: &Receiver<Seen>,
) -> Duration {
    let mut client = Client::connect(world.at);
    client.send(&request(world, phase, streamed));
    if phase.place == "silent" {
        // No provider sees this connection, so the gateway's own count of reservations is used.
        wait_for("the reservation", || (world.usage().holds == 1).then_some(()));
        let (left, _kept) = leaving.leave(client);
        // The reservation ended before the query that no longer counts it, which takes time itself.
        let mut sent = Instant::now();
        wait_for_exactly(|| {
            sent = Instant::now();
            world.usage().holds == 0
        });
        return sent.saturating_duration_since(left);
    }
    assert!(matches!(seen.recv_timeout(TIMEOUT), Ok(Seen::Reached)));
    if phase.script == "relaying" && streamed {
        let head = client.head().unwrap();
        assert_eq!(head.status, 200);
    } else {
        // The provider reaches the phase slightly before the gateway.
        std::thread::sleep(Duration::from_millis(2));
    }
    let (left, _kept) = leaving.leave(client);
    match seen.recv_timeout(TIMEOUT) {
        Ok(Seen::Ended(at)) => at.saturating_duration_since(left),
        _ => panic!("the provider request outlives its client"),
    }
}

/// Returns the median and the maximum of many rounds.
fn measure_disconnects(
    world: &World,
    phase: &Phase,
    streamed: bool,
    leaving: Leaving,
    seen: &Receiver<Seen>,
) -> (Duration, Duration) {
    // Sending a long body takes time, and its phase does not depend on how the client disconnects.
    let rounds = if phase.padding > 0 { 3 } else { ROUNDS };
    let mut times: Vec<Duration> =
        (0..rounds).map(|_| measure_disconnect(world, phase, streamed, leaving, seen)).collect();
    times.sort();
    (times[rounds / 2], times[rounds * 99 / 100])
}

fn wait_for_exactly(mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < TIMEOUT);
    }
}

#[test]
fn disconnect_ends_the_provider_request_in_every_phase() {
    let (sender, seen) = channel();
    let world = world(&sender);
    println!("{:<16} {:<7} {:<10} {:>9} {:>9}", "phase", "kind", "leaves by", "p50", "p99");
    let mut slow = Vec::new();
    for phase in &PHASES {
        for streamed in [false, true] {
            for leaving in [Leaving::Fin, Leaving::HalfClose, Leaving::Reset] {
                let mut times = measure_disconnects(&world, phase, streamed, leaving, &seen);
                for _ in 0..RETRIES {
                    if times.0 > BOUND {
                        times = measure_disconnects(&world, phase, streamed, leaving, &seen);
                    }
                }
                let (p50, p99) = times;
                let allowed = if p50 > BOUND { BOUND + LATE.0 as u32 * bare_delay(ROUNDS as u64) } else { BOUND };
                let kind = if streamed { "stream" } else { "whole" };
                let leaves = format!("{leaving:?}");
                println!("{:<16} {kind:<7} {leaves:<10} {p50:>9.2?} {p99:>9.2?}", phase.name);
                if p50 > allowed {
                    slow.push((phase.name, p50, allowed));
                }
            }
        }
    }
    assert!(slow.is_empty(), "slower than allowed: {slow:?}");
    let rest = world.at_rest(TIMEOUT);
    assert_eq!((rest.clients, rest.upstreams), (0, 0), "{rest:?}");
}
