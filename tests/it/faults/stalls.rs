//! Stalls of the event loop: a hundred paced streams continue while the largest bodies and answers pass. Measured are
//! the gaps between tokens, and the loop's own histogram. An optimised gateway (`TOLLGATE_BIN`, or `cargo test
//! --release`) must meet the documented bounds; for another one the test only checks that no client waits long.

use super::answers::Shape;
use super::client::{Client, find, post};
use super::process::{Folder, TIMEOUT};
use super::world::{CONFIG, World, open};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tollgate::cli::provider::reactor;
use tollgate::simulator::SimulatorSettings;

/// Number of measured streams.
const STREAMS: usize = 100;
/// Tokens per second of each stream from an optimised gateway. Another one has no spare time at this pace.
const PACE: usize = 50;
/// Minimum time for which each kind of load is measured.
const SPELL: Duration = Duration::from_secs(2);

/// Returns true for a gateway whose speed is meaningful.
pub fn is_optimised() -> bool {
    std::env::var_os("TOLLGATE_BIN").is_some() || !cfg!(debug_assertions)
}

/// Starts a simulated provider on a separate thread.
pub fn provider() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    std::thread::spawn(move || reactor(listener, SimulatorSettings::default()).unwrap().run().map(drop));
    at
}

fn world() -> World {
    let (paced, heavy) = (provider(), provider());
    let places = [open("usual", paced), open("good", paced), open("heavy", heavy)];
    let lines: Vec<&str> = CONFIG.lines().filter(|line| !line.contains("_timeout")).collect();
    World::of(Folder::new(), &places, &lines.join("\n"), Vec::new())
}

fn request(world: &World, path: &str, model: &str, stream: bool, text: &str) -> Vec<u8> {
    let body = format!(
        "{{\"model\":\"{model}\",\"stream\":{stream},\"max_tokens\":9999999,\
         \"messages\":[{{\"role\":\"user\",\"content\":\"{text}\"}}]}}"
    );
    post(path, &[("authorization", &format!("Bearer {}", world.key))], &body)
}

/// Returns the gaps between the tokens of one stream, until `stop` is set.
fn watch(world: &World, stop: &AtomicBool) -> Vec<Duration> {
    let mut client = Client::connect(world.at);
    let pace = if is_optimised() { PACE } else { PACE / 5 };
    let text = format!("#sim tokens=100000 pace={pace}");
    client.send(&request(world, Shape::Chat.path(), "usual-chat-one", true, &text));
    assert_eq!(client.head().unwrap().status, 200);
    let (mut gaps, mut last) = (Vec::new(), None);
    while !stop.load(Ordering::Relaxed) {
        let chunk = client.chunk().unwrap().expect("the stream must continue");
        let now = Instant::now();
        if find(&chunk, b"data: ").is_some() {
            gaps.extend(last.map(|last| now.duration_since(last)));
            last = Some(now);
        }
    }
    gaps
}

/// A heavy request, repeated as load.
struct Load {
    name: &'static str,
    path: &'static str,
    model: &'static str,
    stream: bool,
    text: fn() -> String,
}

/// Returns a size in bytes. A gateway that is not optimised gets a tenth, so that the test ends.
fn bytes(megabytes: usize) -> usize {
    megabytes * if is_optimised() { 1_000_000 } else { 100_000 }
}

fn big(megabytes: usize) -> String {
    format!("#sim big={}", bytes(megabytes))
}

fn plain(megabytes: usize) -> String {
    "#sim tokens=1\\n".to_owned() + &"lorem ipsum ".repeat(bytes(megabytes) / 12)
}

fn escaped(megabytes: usize) -> String {
    "#sim tokens=1\\n".to_owned() + &"\\u00e9\\n\\\"ö漢".repeat(bytes(megabytes) / 15)
}

const CHAT: &str = "/v1/chat/completions";
const COUNT: &str = "/v1/messages/count_tokens";

const LOADS: [Load; 9] = [
    Load { name: "nothing", path: "", model: "", stream: false, text: String::new },
    Load { name: "4 MB request", path: CHAT, model: "heavy-chat-one", stream: false, text: || plain(4) },
    Load { name: "32 MB request", path: CHAT, model: "heavy-chat-one", stream: false, text: || plain(32) },
    Load { name: "32 MB, escapes", path: CHAT, model: "heavy-chat-one", stream: false, text: || escaped(32) },
    Load { name: "32 MB, translated", path: CHAT, model: "heavy-messages-one", stream: false, text: || plain(32) },
    Load { name: "32 MB to count", path: COUNT, model: "heavy-messages-one", stream: false, text: || escaped(32) },
    Load { name: "50 MB answer", path: CHAT, model: "heavy-chat-one", stream: false, text: || big(50) },
    Load { name: "50 MB, translated", path: CHAT, model: "heavy-messages-one", stream: false, text: || big(50) },
    Load { name: "7 MB event", path: CHAT, model: "heavy-chat-one", stream: true, text: || big(7) },
];

/// Returns the number of event-loop iterations so far, of those over 5 ms, and of those over 10 ms.
fn turns(world: &World) -> [u64; 3] {
    let metrics = world.metrics();
    let of = |le: &str| metrics[&format!("tollgate_loop_iteration_seconds_bucket{{le=\"{le}\"}}")] as u64;
    [of("+Inf"), of("+Inf") - of("0.005"), of("+Inf") - of("0.01")]
}

/// Puts one load on the gateway while streams are measured, and prints one line. Returns the p99 of the gaps.
fn measure(world: &World, load: &Load) -> Duration {
    let stop = AtomicBool::new(false);
    let (before, begun) = (turns(world), Instant::now());
    let mut gaps: Vec<Duration> = std::thread::scope(|scope| {
        let watchers: Vec<_> = (0..STREAMS).map(|_| scope.spawn(|| watch(world, &stop))).collect();
        std::thread::sleep(SPELL / 4);
        if !load.path.is_empty() {
            let mut client = Client::connect(world.at);
            let request = request(world, load.path, load.model, load.stream, &(load.text)());
            let answer = client.ask(&request);
            assert_eq!(answer.status(), 200, "{}: {:.300}", load.name, String::from_utf8_lossy(&answer.body));
        }
        std::thread::sleep(SPELL.saturating_sub(begun.elapsed()));
        stop.store(true, Ordering::Relaxed);
        watchers.into_iter().flat_map(|watcher| watcher.join().unwrap()).collect()
    });
    gaps.sort();
    let at = |part: usize| gaps[(gaps.len() - 1) * part / 1000];
    let after = turns(world);
    let [all, five, ten] = [0, 1, 2].map(|index| after[index] - before[index]);
    let (p50, p99, most) = (at(500), at(990), at(1000));
    println!("{:<18} {p50:>9.1?} {p99:>9.1?} {most:>9.1?} {all:>9} {five:>7} {ten:>7}", load.name);
    world.at_rest(TIMEOUT);
    p99
}

#[test]
fn paced_streams_continue_while_the_largest_bodies_pass() {
    let world = world();
    println!(
        "{:<18} {:>9} {:>9} {:>9} {:>9} {:>7} {:>7}",
        "gaps under", "p50", "p99", "max", "turns", ">5 ms", ">10 ms"
    );
    // The pace, plus the delay that a machine full of other tests may cause in some of the rounds.
    let bound = Duration::from_millis(if is_optimised() { 100 } else { 2000 });
    for load in &LOADS {
        let gap = (0..3).map(|_| measure(&world, load)).find(|gap| *gap < bound).unwrap_or(bound);
        assert!(gap < bound, "under a load of {} the streams' tokens are {gap:?} apart, or more", load.name);
    }
}
