//! Grants of a shared ledger: hosts admit requests in memory, and together admit exactly what a single host would, even
//! while a host is killed or stopped for longer than its grants last.

use super::client::{Answer, Client};
use super::harness::{Harness, Setup, chat, chat_request, with};
use super::process::wait_for;
use super::races::admitted;
use super::shared::{Server, agree, key_of, served};
use std::net::SocketAddr;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The first requests do not reach these limits, so hosts use grants.
pub const PLANS: &str = r#"
[[models]]
id = "priced"
context = "256K"
input_price = 0
output_price = 10.0
targets = [{ provider = "sim-chat", model = "up" }]

[[plans]]
name = "requests"
requests = 100
window = "31d"

[[plans]]
name = "many"
requests = 2000
window = "31d"

[[plans]]
name = "money"
budget = 1.0

[[plans]]
name = "tokens"
tokens = 10000

[[groups]]
name = "labs"
requests = 700
window = "31d"

[[groups]]
name = "search"
parent = "labs"
"#;

fn start(server: &Server, hosts: usize) -> Vec<Harness> {
    let store = format!("url = \"{}\"\nhosts = {hosts}", server.url());
    (0..hosts)
        .map(|_| Harness::start(&Setup { store: store.clone(), more: PLANS.to_owned(), ..Setup::default() }))
        .collect()
}

/// Returns the number of script calls at the ledger. A check for admission is one such call.
fn calls(server: &Server) -> u64 {
    let text = server.text(&["INFO", "commandstats"]);
    let line = text.lines().find(|line| line.starts_with("cmdstat_evalsha:")).unwrap_or_default();
    line.split(['=', ',']).nth(1).and_then(|calls| calls.parse().ok()).unwrap_or(0)
}

/// Each client sends requests on its own connection until it is refused, at most `most` times.
fn drain(to: &[SocketAddr], clients: usize, most: usize, request: &[u8]) -> Vec<Answer> {
    let start = Barrier::new(clients);
    std::thread::scope(|scope| {
        let threads = (0..clients).map(|index| {
            let start = &start;
            let work = move || {
                let (mut client, mut heard) = (Client::connect(to[index % to.len()]), Vec::new());
                start.wait();
                while heard.len() < most {
                    let Ok(()) = std::io::Write::write_all(&mut client.socket, request) else { break };
                    let Ok(answer) = client.answer() else { break };
                    let is_over = answer.status() != 200;
                    heard.push(answer);
                    if is_over {
                        break;
                    }
                }
                heard
            };
            std::thread::Builder::new().stack_size(256 << 10).spawn_scoped(scope, work).unwrap()
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    })
}

pub fn at(all: &[Harness]) -> Vec<SocketAddr> {
    all.iter().map(|h| h.at).collect()
}

pub fn small(key: &str) -> Vec<u8> {
    chat_request(key, &chat("x\n#sim tokens=2"))
}

/// Returns a request for this number of tokens, at one cent per thousand tokens.
pub fn priced(key: &str, tokens: u64) -> Vec<u8> {
    let body = with(chat(&format!("x\n#sim tokens={tokens}")), "model", "priced");
    chat_request(key, &with(body, "max_tokens", tokens))
}

#[test]
fn three_hosts_admit_exactly_what_one_would_by_grants() {
    let Some(server) = Server::start() else { return };
    let all = start(&server, 3);
    let key = key_of(&all, &["--plan", "many"]);
    let before = calls(&server);
    let answers = drain(&at(&all), 12, usize::MAX, &small(&key));
    let (ok, asked) = (admitted(&answers), calls(&server) - before);
    println!("2000 requests by three hosts: {ok} admitted, {asked} calls of scripts");
    assert_eq!((ok as u64, served(&all)), (2000, 2000));
    assert!(asked < 1500, "most requests must be admitted without a call to the ledger: {asked}");
    agree(&all, &[&key]);
    // Two keys in one group; only the group has a limit.
    let keys = [&["--plan", "open", "--group", "search"]; 2].map(|options| key_of(&all, options));
    let answers = std::thread::scope(|scope| {
        let both = keys.each_ref().map(|key| scope.spawn(|| drain(&at(&all), 6, usize::MAX, &small(key))));
        both.map(|one| one.join().unwrap())
    });
    assert_eq!(answers.iter().map(|answers| admitted(answers)).sum::<usize>(), 700);
}

/// Gives each host a grant that is mostly unused, with all uses reported. Returns the number of admitted requests.
fn warm(all: &[Harness], key: &str) -> usize {
    let answers = drain(&at(all), 3 * all.len(), 10, &small(key));
    std::thread::sleep(Duration::from_millis(150));
    admitted(&answers)
}

#[test]
fn stopped_host_does_not_use_its_grants_after_it_resumes() {
    let Some(server) = Server::start() else { return };
    let all = start(&server, 3);
    let keys = [(); 3].map(|()| key_of(&all, &["--plan", "many"]));
    for key in &keys {
        let mut ok = warm(&all, key);
        all[2].gateway.signal("STOP");
        // These requests are waiting when the host resumes.
        let mut waiting: Vec<Client> = (0..20).map(|_| all[2].client()).collect();
        waiting.iter_mut().for_each(|client| client.send(&small(key)));
        std::thread::sleep(Duration::from_millis(2200));
        ok += admitted(&drain(&at(&all[..2]), 12, usize::MAX, &small(key)));
        assert_eq!(ok, 2000, "the other hosts must now have its whole grant");
        all[2].gateway.signal("CONT");
        let late: Vec<Answer> = waiting.iter_mut().map(|client| client.answer().unwrap()).collect();
        assert_eq!(admitted(&late), 0);
    }
    agree(&all, &keys.each_ref());
}

#[test]
fn grant_of_a_dead_host_is_available_after_two_seconds() {
    let Some(server) = Server::start() else { return };
    let mut all = start(&server, 3);
    let key = key_of(&all, &["--plan", "many"]);
    let mut ok = warm(&all, &key);
    all[2].gateway.stop("KILL");
    let died = Instant::now();
    ok += admitted(&drain(&at(&all[..2]), 12, usize::MAX, &small(&key)));
    println!("{ok} of 2000 admitted {:?} after a host has died", died.elapsed());
    let more = AtomicUsize::new(0);
    wait_for("the dead host's grant", || {
        more.fetch_add(admitted(&drain(&at(&all[..2]), 2, usize::MAX, &small(&key))), Ordering::Relaxed);
        (ok + more.load(Ordering::Relaxed) >= 2000).then_some(())
    });
    println!("all of them {:?} after", died.elapsed());
    assert_eq!(admitted(&drain(&at(&all[..2]), 12, 3, &small(&key))), 0, "no more may be admitted");
    assert_eq!(ok + more.load(Ordering::Relaxed), 2000);
    assert!(all[0].done(&["ledger", "verify"]).starts_with("ok:"));
}

#[test]
fn idle_host_returns_its_grant_when_others_need_it() {
    let Some(server) = Server::start() else { return };
    let all = start(&server, 2);
    let key = key_of(&all, &["--plan", "requests"]);
    // The second host has a grant of part of the hundred.
    let ok = admitted(&drain(&at(&all[1..]), 4, 4, &small(&key)));
    let began = Instant::now();
    let rest = admitted(&drain(&at(&all[..1]), 4, usize::MAX, &small(&key)));
    assert_eq!(ok + rest, 100);
    assert!(began.elapsed() < Duration::from_secs(2), "no grant may have to expire: {:?}", began.elapsed());
}
