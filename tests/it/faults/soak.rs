//! The soak test: for minutes, two thousand concurrent streams, a tenth of them from a provider that misbehaves, and a
//! tenth of their clients disconnect in mid-stream. Every other stream must arrive byte for byte. At the end the test
//! compares memory, descriptors and usage records. Run by `scripts/soak`; `SOAK_SECONDS` and `SOAK_STREAMS` set its
//! size.

use super::answers::{Shape, long_text, stream};
use super::client::{Client, post};
use super::play;
use super::process::Folder;
use super::wire::listen;
use super::world::{CONFIG, World, open};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tollgate::base::rng::Rng;

/// Faults, one of which affects each tenth stream.
const FAULTS: [&str; 8] = ["cut", "reset_mid", "close", "reset", "status_500", "garbage", "bad_chunk", "error_mid"];
/// Memory growth that the allocator may keep, compared with the first seconds.
const GROWTH_MAX: u64 = 48 << 20;

/// Counts so far.
#[derive(Default)]
struct Tally {
    whole: AtomicU64,
    faulty: AtomicU64,
    left: AtomicU64,
}

impl Tally {
    fn requests(&self) -> u64 {
        [&self.whole, &self.faulty, &self.left].iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }
}

fn setting(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

fn request(world: &World, shape: Shape, script: &str) -> Vec<u8> {
    let model = format!("usual-{}-one", shape.name());
    let body = format!(
        "{{\"model\":\"{model}\",\"stream\":true,\"max_tokens\":9999,\
         \"messages\":[{{\"role\":\"user\",\"content\":\"#fault {script}/stream \"}}]}}"
    );
    post(shape.path(), &[("authorization", &format!("Bearer {}", world.key))], &body)
}

/// Occupies one slot: sends request after request until the time is over.
fn occupy(world: &World, until: Instant, seed: u64, tally: &Tally) {
    let mut rng = Rng::from_u64(seed);
    let mut client = Client::connect(world.at);
    while Instant::now() < until {
        let shape = Shape::ALL[rng.below(2) as usize];
        match rng.below(10) {
            0 => {
                let script = FAULTS[rng.below(FAULTS.len() as u64) as usize];
                let answer = client.ask(&request(world, shape, script));
                assert!(matches!(answer.status(), 200 | 500), "{}", answer.text());
                assert!(answer.text().contains("\"error\""), "{script}: {}", answer.text());
                tally.faulty.fetch_add(1, Ordering::Relaxed);
            }
            1 => {
                client.send(&request(world, shape, "paced"));
                assert_eq!(client.head().unwrap().status, 200);
                (0..rng.below(40)).for_each(|_| assert!(client.chunk().unwrap().is_some()));
                client = Client::connect(world.at);
                tally.left.fetch_add(1, Ordering::Relaxed);
            }
            _ => {
                let answer = client.ask(&request(world, shape, "paced"));
                let model = format!("usual-{}-one", shape.name());
                let expected = stream(shape, &long_text()).seen(&answer.id(), &model);
                assert!(answer.text() == expected, "not byte for byte:\n{}\n{expected}", answer.text());
                tally.whole.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// Waits until the ledger has a usage record of every request.
fn check_rows(world: &World, requests: u64) {
    let db = rusqlite::Connection::open(world.folder.path().join("tollgate.db")).unwrap();
    let begun = Instant::now();
    loop {
        // Both counts come from one query, since records are still being written.
        let counts = "SELECT count(*), count(DISTINCT id) FROM rows";
        let (rows, different): (i64, i64) = db.query_row(counts, [], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
        assert_eq!(rows, different, "a request has two usage records");
        if rows as u64 == requests {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "{rows} usage records of {requests} requests");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
#[ignore = "takes minutes; scripts/soak runs it"]
fn thousands_of_streams_for_minutes_leak_nothing() {
    let (seconds, streams) = (setting("SOAK_SECONDS", 300), setting("SOAK_STREAMS", 2000));
    let provider = listen(None, play::faulty);
    let places = [open("usual", provider), open("good", provider)];
    let lines: Vec<&str> = CONFIG.lines().filter(|line| !line.contains("_timeout")).collect();
    let world = World::of(Folder::new(), &places, &lines.join("\n"), Vec::new());
    let (start, descriptors) = (world.at_rest(Duration::from_secs(3)), world.gateway.descriptors());
    let (tally, until) = (Tally::default(), Instant::now() + Duration::from_secs(seconds));
    let settled = std::thread::scope(|scope| {
        for seed in 0..streams {
            let (world, tally) = (&world, &tally);
            let small = std::thread::Builder::new().stack_size(512 * 1024);
            small.spawn_scoped(scope, move || occupy(world, until, seed, tally)).unwrap();
        }
        std::thread::sleep(Duration::from_secs(seconds / 3));
        let (settled, now) = (world.memory("VmRSS"), world.usage());
        println!("after {} s: {now:?}, {} requests, {} MiB", seconds / 3, tally.requests(), settled >> 20);
        settled
    });
    check_rows(&world, tally.requests());
    let (rss, metrics) = (world.memory("VmRSS"), world.metrics());
    println!(
        "{} streams byte for byte, {} met a fault, {} clients left; {} MiB after a third of the time, {} MiB at the end",
        tally.whole.load(Ordering::Relaxed),
        tally.faulty.load(Ordering::Relaxed),
        tally.left.load(Ordering::Relaxed),
        settled >> 20,
        rss >> 20
    );
    assert!(rss < settled + GROWTH_MAX, "memory grows");
    assert_eq!(metrics["tollgate_panics_total"], 0.0);
    // Idle connections to providers are closed within half a minute.
    world.back_to_within(&start, descriptors, Duration::from_secs(90));
}
