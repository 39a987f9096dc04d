//! Requests that are answered 503 because the shared ledger did not answer in time. Whether or not the ledger has
//! executed the commands it was sent, these requests do not stay counted, and no limit is exceeded.

use super::client::Answer;
use super::grants::at;
use super::harness::{Harness, Setup, chat, chat_request};
use super::process::{wait_at_most, wait_for};
use super::shared::{Server, key_of};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};
use tollgate::store::bounds;

/// Limit of each plan, and the part that is used before the ledger fails.
const LIMIT: usize = 60;
const BEFORE: usize = 20;
/// Time for which the server is paused; longer than the timeout for an answer of the ledger.
const STOPPED: Duration = Duration::from_secs(3);

/// The first plan limits only requests, which hosts admit by grants. The other has a concurrency limit, so that each
/// request is checked by the ledger, and limits of tokens and money that 60 requests do not reach.
const PLANS: &str = r#"
[[models]]
id = "priced"
context = "256K"
input_price = 0
output_price = 10.0
targets = [{ provider = "sim-chat", model = "up" }]

[[plans]]
name = "sixty"
requests = 60
window = "31d"

[[plans]]
name = "asked"
requests = 60
window = "31d"
concurrency = 60
tokens = 100000
tokens_per_window = 100000
budget = 100.0
"#;

fn gateway(url: &str) -> Harness {
    let store = format!("url = \"{url}\"\nhosts = 3");
    Harness::start(&Setup { store, more: PLANS.to_owned(), ..Setup::default() })
}

fn request(key: &str) -> Vec<u8> {
    chat_request(key, &chat("x\n#sim tokens=2"))
}

/// Sends `each` requests to every gateway concurrently. Returns the number of answers with 200, 429 and 503.
fn ask(to: &[SocketAddr], each: usize, key: &str) -> [usize; 3] {
    let request = request(key);
    let answers: Vec<Answer> = std::thread::scope(|scope| {
        let one = |at: SocketAddr| {
            let request = &request;
            scope.spawn(move || {
                let mut client = super::client::Client::connect(at);
                client.send(request);
                client.answer().unwrap()
            })
        };
        let threads: Vec<_> = to.iter().flat_map(|at| (0..each).map(|_| *at)).map(one).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let of = |status: u16| answers.iter().filter(|answer| answer.status() == status).count();
    let all = [of(200), of(429), of(503)];
    assert_eq!(all.iter().sum::<usize>(), answers.len(), "no other status is allowed");
    all
}

/// Sends requests to each gateway in turn until the whole limit is admitted, then some more, which are refused. Up to
/// `again` requests may be admitted beyond the limit: those that a host admitted by grants while it alone was cut off.
fn use_up(all: &[Harness], key: &str, admitted: usize, again: usize) {
    let (mut count, mut turn, back) = (admitted, 0, Instant::now());
    wait_at_most(bounds::LEASE + Duration::from_secs(2), "the rest of the limit", || {
        for _ in 0..30 {
            turn += 1;
            count += ask(&at(&all[turn % all.len()..][..1]), 1, key)[0];
        }
        (count >= LIMIT).then_some(())
    });
    println!("all {LIMIT} were admitted {:?} after the ledger was back", back.elapsed());
    for _ in 0..3 {
        count += ask(&at(all), 2, key)[0];
    }
    assert!((LIMIT..=LIMIT + again).contains(&count), "{count} of {LIMIT}, and {again}");
    let agrees = || all[0].done(&["ledger", "verify"]).starts_with("ok:").then_some(());
    wait_for("all rows", agrees);
}

#[test]
fn requests_refused_while_the_ledger_is_paused_are_not_counted() {
    let Some(server) = Server::start() else { return };
    let all: Vec<Harness> = (0..3).map(|_| gateway(&server.url())).collect();
    for plan in ["sixty", "asked"] {
        let key = key_of(&all, &["--plan", plan]);
        let mut before = 0;
        while before < BEFORE {
            before += ask(&at(&all), 1, &key)[0];
        }
        let refused = || all.iter().flat_map(Harness::log).filter(|line| line["status"] == 503).count();
        let refused_before = refused();
        server.signal("STOP");
        let stopped = Instant::now();
        let during = std::thread::scope(|scope| {
            let during = scope.spawn(|| ask(&at(&all), 20, &key));
            std::thread::sleep(STOPPED.saturating_sub(stopped.elapsed()));
            // On a busy machine the requests may arrive late.
            wait_for("a refusal", || (refused() > refused_before).then_some(()));
            server.signal("CONT");
            during.join().unwrap()
        });
        println!("{plan}: {before} before, {during:?} while the server was stopped");
        assert!(during[2] > 0, "some requests are refused because of the ledger: {during:?}");
        use_up(&all, &key, before + during[0], 0);
    }
}

/// Handling of the server's answers on a [`Relay`]: forwarded unchanged.
pub const PASSED: u8 = 0;
/// The answers are dropped: commands arrive, but nobody learns their results.
pub const DROPPED: u8 = 1;
/// An endless line is sent instead.
pub const ENDLESS: u8 = 2;

/// A relay to the server on which answers can be lost or replaced.
pub struct Relay {
    pub at: SocketAddr,
    fate: Arc<AtomicU8>,
}

impl Relay {
    pub fn new(port: u16) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (at, fate) = (listener.local_addr().unwrap(), Arc::new(AtomicU8::new(PASSED)));
        let answers = fate.clone();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (Ok(client), Ok(server)) = (client, TcpStream::connect(("127.0.0.1", port))) else { return };
                let (from, to, commands) = (client.try_clone().unwrap(), server.try_clone().unwrap(), Arc::default());
                std::thread::spawn(move || copy(from, to, &commands));
                let answers = answers.clone();
                std::thread::spawn(move || copy(server, client, &answers));
            }
        });
        Relay { at, fate }
    }

    pub fn set(&self, fate: u8) {
        self.fate.store(fate, Ordering::Relaxed);
    }
}

/// Forwards bytes until the end, or handles them as `fate` says.
fn copy(mut from: TcpStream, mut to: TcpStream, fate: &Arc<AtomicU8>) {
    let mut bytes = [b'x'; 1 << 16];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        let passed = match fate.load(Ordering::Relaxed) {
            PASSED => to.write_all(&bytes[..count]),
            DROPPED => Ok(()),
            _ => loop {
                if let Err(error) = to.write_all(&[b'x'; 1 << 16]) {
                    break Err(error);
                }
            },
        };
        if passed.is_err() {
            break;
        }
    }
    let _ = (from.shutdown(std::net::Shutdown::Both), to.shutdown(std::net::Shutdown::Both));
}

#[test]
fn requests_whose_admission_is_lost_are_not_counted() {
    let Some(server) = Server::start() else { return };
    let relay = Relay::new(server.port);
    let all = [gateway(&format!("redis://{}/0", relay.at)), gateway(&server.url())];
    for plan in ["sixty", "asked"] {
        let key = key_of(&all, &["--plan", plan]);
        let before = ask(&at(&all), BEFORE / 2, &key)[0];
        relay.set(DROPPED);
        let during = ask(&at(&all[..1]), BEFORE, &key);
        println!("{plan}: {before} before, {during:?} while answers were lost");
        assert!(during[2] > 0, "some requests are refused because of the ledger: {during:?}");
        relay.set(PASSED);
        let by_grants = if plan == "sixty" { during[0] } else { 0 };
        use_up(&all, &key, before + during[0], by_grants);
    }
}

#[test]
fn requests_of_a_host_that_dies_awaiting_admission_are_not_counted() {
    let Some(server) = Server::start() else { return };
    let relay = Relay::new(server.port);
    let mut all = [gateway(&format!("redis://{}/0", relay.at)), gateway(&server.url())];
    let key = key_of(&all, &["--plan", "asked"]);
    let before = ask(&at(&all), BEFORE / 2, &key)[0];
    relay.set(DROPPED);
    assert_eq!(ask(&at(&all[..1]), BEFORE, &key), [0, 0, BEFORE]);
    all[0].gateway.signal("KILL");
    all[0].gateway.wait();
    use_up(&all[1..], &key, before, 0);
}
