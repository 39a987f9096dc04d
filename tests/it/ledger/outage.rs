//! The shared ledger is gone for ten seconds under load (`OUTAGE_SECONDS=60`: a minute). Each value of `on_outage` has its documented effect in the
//! meantime; afterwards every counter agrees with the usage records, and none is missing.

use super::client::Client;
use super::harness::{CREDENTIAL, Harness, chat, chat_request, start_provider, streamed, with};
use super::process::{Folder, free_port, wait_for};
use super::races::admitted;
use super::shared::{Server, agree, key_of};
use serde_json::Value;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Duration of the outage in seconds.
fn outage() -> u64 {
    std::env::var("OUTAGE_SECONDS").map_or(10, |seconds| seconds.parse().expect("OUTAGE_SECONDS must be a number"))
}

/// Time within which requests in flight detect the outage.
const NOTICED: Duration = Duration::from_secs(1);
/// Clients per gateway that send requests in a loop.
const CLIENTS: usize = 2;
/// Request for a stream that begins before the outage and ends after it.
fn long_request() -> Value {
    streamed(chat(&format!("x\n#sim tokens=1400 pace={}", 1400 / (outage() + 4))))
}

/// An answer to the load: when it was requested, after how long it arrived, and its status.
struct Heard {
    asked: Instant,
    after: Duration,
    status: u16,
    retry_after: bool,
}

fn load(h: &Harness, key: &str, over: &AtomicBool) -> Vec<Heard> {
    let (request, mut heard) = (chat_request(key, &chat("x\n#sim tokens=2")), Vec::new());
    while !over.load(Ordering::Relaxed) {
        let asked = Instant::now();
        let answer = h.client().ask(&request);
        let retry_after = answer.head.get("retry-after").is_some();
        heard.push(Heard { asked, after: asked.elapsed(), status: answer.status(), retry_after });
        std::thread::sleep(Duration::from_millis(15));
    }
    heard
}

/// Reads a stream that begins before the outage and ends after it. Returns the longest pause between two chunks.
fn long_stream(mut client: Client) -> Duration {
    let (mut last, mut longest, mut text) = (Instant::now(), Duration::ZERO, String::new());
    while let Some(chunk) = client.chunk().unwrap() {
        longest = longest.max(last.elapsed());
        last = Instant::now();
        text += &String::from_utf8(chunk).unwrap();
    }
    assert!(text.contains("\"finish_reason\":\"stop\"") && text.trim_end().ends_with("[DONE]"), "{text}");
    longest
}

/// Reads a stream directly from a provider, to measure the pauses that the machine itself causes.
fn stream_without_gateway() -> Duration {
    let (folder, at) = (Folder::new(), SocketAddr::from(([127, 0, 0, 1], free_port())));
    let _provider = start_provider(folder.path(), at, "control");
    let mut client = Client::connect(at);
    client.send(&chat_request(CREDENTIAL.1, &with(long_request(), "model", "control")));
    assert_eq!(client.head().unwrap().status, 200);
    long_stream(client)
}

/// Returns the answers to requests that ran entirely during the outage, and all others. `meanwhile` runs in the middle
/// of the outage.
fn while_it_is_gone(
    server: &mut Server,
    all: &[Harness],
    key: &str,
    meanwhile: impl FnOnce(),
) -> (Vec<Heard>, Vec<Heard>) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let streams: Vec<_> = (all.iter())
            .map(|h| {
                let mut client = h.client();
                client.send(&chat_request(key, &long_request()));
                assert_eq!(client.head().unwrap().status, 200);
                scope.spawn(move || long_stream(client))
            })
            .collect();
        let control = scope.spawn(stream_without_gateway);
        let over = &over;
        let clients = all.iter().flat_map(|h| (0..CLIENTS).map(move |_| h));
        let clients: Vec<_> = clients.map(|h| scope.spawn(move || load(h, key, over))).collect();
        std::thread::sleep(Duration::from_secs(1));
        let gone = Instant::now();
        server.kill();
        meanwhile();
        std::thread::sleep(Duration::from_secs(outage()).saturating_sub(gone.elapsed()));
        let back = Instant::now();
        server.run();
        for h in all {
            let served = || (h.chat(key, &chat("x\n#sim tokens=1")).status() == 200).then_some(());
            wait_for("service", served);
        }
        println!("all served again {:?} after the end of the outage", back.elapsed());
        std::thread::sleep(Duration::from_secs(1));
        over.store(true, Ordering::Relaxed);
        let heard = clients.into_iter().flat_map(|client| client.join().unwrap());
        let longest = streams.into_iter().map(|stream| stream.join().unwrap()).max().unwrap();
        let usual = control.join().unwrap();
        assert!(
            longest < usual + Duration::from_secs(1),
            "a stream stalled: {longest:?}, without the gateway {usual:?}"
        );
        let during = |heard: &Heard| heard.asked > gone + NOTICED && heard.asked + heard.after < back;
        heard.partition(during)
    })
}

fn refuses() {
    let Some(mut server) = Server::start() else { return };
    let all = server.three();
    let key = key_of(&all, &[]);
    let (during, rest) = while_it_is_gone(&mut server, &all, &key, || {});
    let served = rest.iter().filter(|heard| heard.status == 200).count();
    println!("refuse: {} refused during the outage, {served} served before and after", during.len());
    assert!(during.len() > 100 && served > 50, "{} {served}", during.len());
    assert!(
        during.iter().all(|heard| (heard.status, heard.retry_after) == (503, true)),
        "each refusal must have a retry-after"
    );
    let slowest = during.iter().map(|heard| heard.after).max();
    assert!(slowest.is_some_and(|after| after < NOTICED), "a refusal after {slowest:?}");
    assert!(rest.iter().all(|heard| [200, 503].contains(&heard.status)), "no other status is allowed");
    agree(&all, &[&key]);
}

fn serves_without_the_ledger() {
    let Some(mut server) = Server::start() else { return };
    let all: Vec<Harness> = (0..3).map(|_| server.gateway("on_outage = \"local\"\nhosts = 3")).collect();
    let (key, limited) = (key_of(&all, &[]), key_of(&all, &["--plan", "requests"]));
    let mut alone = Vec::new();
    let (during, rest) = while_it_is_gone(&mut server, &all, &key, || {
        std::thread::sleep(NOTICED);
        for h in &all {
            let answers: Vec<_> = (0..60).map(|_| h.chat(&limited, &chat("x\n#sim tokens=1"))).collect();
            alone.push(admitted(&answers));
        }
    });
    println!("local: {} served during the outage, and {alone:?} of a limit of 137", during.len());
    assert_eq!(alone, [137 / 3; 3], "each host must admit its share");
    assert!(during.len() > 100);
    let refused = during.iter().chain(&rest).filter(|heard| heard.status != 200).count();
    assert_eq!(refused, 0, "no request may be refused, during the outage or around it");
    agree(&all, &[&key, &limited]);
    for h in &all {
        let left = || (h.get("/v1/quota", &limited).json()["rate_limit"]["remaining"] == 137 - 3 * 45).then_some(());
        wait_for("requests admitted during the outage to be settled", left);
    }
    assert_eq!(
        admitted(&[0; 4].map(|_| all[0].chat(&limited, &chat("x\n#sim tokens=1")))),
        2,
        "no more may be admitted"
    );
}

#[test]
fn load_continues_through_an_outage_of_the_shared_ledger() {
    // Both run in parallel, since each waits most of the time.
    std::thread::scope(|scope| {
        let ways = [scope.spawn(refuses), scope.spawn(serves_without_the_ledger)];
        ways.into_iter().for_each(|way| way.join().unwrap());
    });
}
