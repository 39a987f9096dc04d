//! Several gateways on one ledger in a real Redis or Valkey, which each test starts and stops itself. Without such a
//! server on the machine, these tests print so and pass.

use super::client::Answer;
use super::harness::{Harness, Setup, chat, chat_request, streamed, with};
use super::kills::kills;
use super::process::{Folder, free_port, wait_at_most, wait_for};
use super::races::{CONNECTIONS, EACH, PLANS, admitted, budgets, race, race_for_money, race_for_slots};
use serde_json::Value;
use std::fs::File;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{self, Child, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tollgate::base::time::Unix;
use tollgate::policy::config::SharedUrl;
use tollgate::policy::keys::KeyId;
use tollgate::policy::ledger::{Ask, AskedLimits, Ruling, Wish};
use tollgate::policy::meter::{Amount, Lease, LeasePart, LimitReason};
use tollgate::policy::plan::caps::Resource;
use tollgate::policy::window::window;
use tollgate::store::remote::{Done, Holds, Remote, RemoteCommand, RemoteServer, Speaker};
use tollgate::store::shared::SharedStore;

/// A server that belongs to one test.
pub struct Server {
    child: Option<Child>,
    program: &'static str,
    pub port: u16,
    folder: Folder,
    args: Vec<String>,
}

impl Server {
    /// Starts a server with an append-only file; `None` if this machine has no server program.
    pub fn start() -> Option<Server> {
        Server::with(&["--appendonly", "yes"])
    }

    pub fn with(args: &[&str]) -> Option<Server> {
        let mut server = Server::idle(args)?;
        server.run();
        Some(server)
    }

    /// Returns a server that is not started yet.
    pub fn idle(args: &[&str]) -> Option<Server> {
        let exists =
            |program: &&&str| process::Command::new(program).arg("--version").stdout(Stdio::null()).status().is_ok();
        let Some(program) = ["redis-server", "valkey-server"].iter().find(exists) else {
            eprintln!("skipped: neither redis-server nor valkey-server is installed");
            return None;
        };
        let (folder, port) = (Folder::new(), free_port());
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        Some(Server { child: None, program, port, folder, args })
    }

    /// Writes a file into the server's folder.
    pub fn put(&self, name: &str, text: &str) {
        std::fs::write(self.folder.path().join(name), text).unwrap();
    }

    /// Starts the process, also again after [`Server::kill`]. With `appendfsync no`, the append-only file contains
    /// every acknowledged write. With the default, `everysec`, the server acknowledges writes before it writes them if
    /// an fsync is running, and a kill would lose these.
    pub fn run(&mut self) {
        let mut command = process::Command::new(self.program);
        command.args(["--bind", "127.0.0.1", "--save", "", "--appendfsync", "no"]);
        command.args(["--port", &self.port.to_string(), "--dir"]);
        command.arg(self.folder.path()).args(&self.args).stdin(Stdio::null());
        let log = File::options().create(true).append(true).open(self.folder.path().join("server.log")).unwrap();
        self.child = Some(command.stdout(log).spawn().unwrap());
        wait_for("the server", || {
            let ended = self.child.as_mut().unwrap().try_wait().unwrap();
            let log = || std::fs::read_to_string(self.folder.path().join("server.log")).unwrap();
            assert!(ended.is_none(), "the server has ended: {}", log());
            self.is_ready().then_some(())
        });
    }

    /// Returns true if the server executes commands: it accepts connections before it has read its append-only file. By
    /// then it also listens on its TLS port.
    fn is_ready(&self) -> bool {
        let Ok(mut socket) = std::net::TcpStream::connect(("127.0.0.1", self.port)) else { return false };
        let mut told = [0; 64];
        let count = socket.write_all(b"PING\r\n").and_then(|()| socket.read(&mut told)).unwrap_or(0);
        // A server with a password executes nothing without it, but it answers.
        told[..count].starts_with(b"+PONG") || told[..count].starts_with(b"-NOAUTH")
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.port)
    }

    pub fn address(&self) -> SharedUrl {
        SharedUrl::parse(&self.url()).unwrap()
    }

    /// Sends one command as binary-safe arguments and reads the first part of the answer.
    pub fn say(&self, words: &[&[u8]]) {
        let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            bytes.extend_from_slice(word);
            bytes.extend_from_slice(b"\r\n");
        }
        let mut socket = std::net::TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        socket.write_all(&bytes).unwrap();
        let mut first = [0];
        socket.read_exact(&mut first).unwrap();
        assert_ne!(first[0], b'-', "{words:?}");
    }

    /// Returns the answer to a command, from one read.
    pub fn text(&self, words: &[&str]) -> String {
        let mut socket = std::net::TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        socket.write_all(format!("{}\r\n", words.join(" ")).as_bytes()).unwrap();
        let mut told = [0; 1 << 14];
        let count = socket.read(&mut told).unwrap();
        String::from_utf8_lossy(&told[..count]).into_owned()
    }

    /// Returns the number that a command answers with.
    pub fn number(&self, words: &[&str]) -> u64 {
        let text = self.text(words);
        text.trim_end().strip_prefix(':').and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("{text}"))
    }

    /// Sends a signal by name.
    pub fn signal(&self, name: &str) {
        let id = self.child.as_ref().unwrap().id();
        assert!(process::Command::new("sh").args(["-c", &format!("kill -{name} {id}")]).status().unwrap().success());
    }

    /// Kills the process with `kill -9`.
    pub fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Copies all data of a stopped server.
    pub fn copy(&self) -> Folder {
        let copy = Folder::new();
        self.transfer(self.folder.path(), copy.path());
        copy
    }

    /// Replaces all data of a stopped server with a copy.
    pub fn restore(&self, copy: &Folder) {
        std::fs::remove_dir_all(self.folder.path().join("appendonlydir")).unwrap();
        self.transfer(copy.path(), self.folder.path());
    }

    fn transfer(&self, from: &Path, to: &Path) {
        let [from, to] = [from, to].map(|folder| folder.join("appendonlydir"));
        std::fs::create_dir_all(&to).unwrap();
        for file in std::fs::read_dir(from).unwrap().flatten() {
            std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
        }
    }

    /// Starts a gateway on this server; `more` are additional lines of `[store]`.
    pub fn gateway(&self, more: &str) -> Harness {
        url_gateway(&self.url(), more)
    }

    /// Starts three gateways.
    pub fn three(&self) -> Vec<Harness> {
        (0..3).map(|_| self.gateway("")).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Starts a gateway on a ledger; `more` are additional lines of `[store]`.
pub fn url_gateway(url: &str, more: &str) -> Harness {
    let store = format!("url = \"{url}\"\n{more}");
    Harness::start(&Setup { store, more: PLANS.to_owned(), ..Setup::default() })
}

/// Issues a key and waits until all gateways know it.
pub fn key_of(all: &[Harness], args: &[&str]) -> String {
    let key = all[0].issue(args);
    for h in all {
        wait_for("every gateway to know the key", || (h.status_of(&key) == 200).then_some(()));
    }
    key
}

pub fn served(all: &[Harness]) -> u64 {
    all.iter().map(|h| h.count("requests")).sum()
}

pub fn used(h: &Harness, key: &str) -> u64 {
    h.get("/v1/quota", key).json()["tokens"]["used"].as_u64().unwrap()
}

/// Returns the requests and tokens of one key in the ledger.
pub fn sums(h: &Harness, key: &str) -> (u64, u64) {
    let of = |line: &Value, name: &str| line[name].as_u64().unwrap();
    let parts = ["uncached_input_tokens", "cache_read_tokens", "cache_write_tokens", "output_tokens"];
    let lines = h.usage("key");
    let found = lines.iter().find(|line| line["name"] == key[8..20]);
    found.map_or((0, 0), |line| (of(line, "requests"), parts.iter().map(|part| of(line, part)).sum()))
}

/// Checks that every counter agrees with the usage records, and that there is one record per served request. `keys` are
/// all keys that were used.
pub fn agree(all: &[Harness], keys: &[&String]) {
    let served = served(all);
    let ledger = all[0].ledger(served);
    assert_eq!(ledger.requests, served);
    for key in keys {
        let (_, tokens) = sums(&all[0], key);
        for h in all {
            assert_eq!(used(h, key), tokens, "all hosts must show the same usage");
        }
    }
    assert_eq!(keys.iter().map(|key| sums(&all[0], key).0).sum::<u64>(), served);
    let said = all[0].done(&["ledger", "verify"]);
    assert!(said.starts_with("ok:"), "{said}");
    assert_eq!(all[0].done(&["ledger", "export"]).lines().count() as u64, served);
}

#[test]
fn three_gateways_share_request_and_concurrency_limits_exactly() {
    let Some(server) = Server::start() else { return };
    let all = server.three();
    let at: Vec<SocketAddr> = all.iter().map(|h| h.at).collect();

    let key = key_of(&all, &["--plan", "requests"]);
    let body = chat("x\n#sim tokens=2");
    // One request on each first: two busy hosts may admit everything before the third gets any CPU time.
    let mut answers: Vec<Answer> = all.iter().map(|h| h.chat(&key, &body)).collect();
    answers.extend(race(&at, CONNECTIONS, EACH, &chat_request(&key, &body)));
    let ok = admitted(&answers);
    println!("three gateways: {ok} of {} admitted at a limit of 137 requests", answers.len());
    assert_eq!((ok, served(&all)), (137, 137));
    assert!(all.iter().all(|h| h.count("requests") > 0), "every host must serve some");
    agree(&all, &[&key]);
    let checked = all[0].command(&["check", "--connect"]);
    assert!(checked.out.contains("ok: the ledger answers"), "{}{}", checked.out, checked.err);

    let key = key_of(&all, &["--plan", "at-once"]);
    let request = chat_request(&key, &streamed(chat("x\n#sim stall_after=1")));
    let ok = race_for_slots(&at, CONNECTIONS, EACH, &request);
    println!("three gateways: {ok} of {CONNECTIONS} admitted at a limit of 50 at once, each trying {EACH} times");
    assert_eq!(ok, 50);
    wait_for("free slots", || (all[1].chat(&key, &chat("x")).status() == 200).then_some(()));
}

#[test]
fn three_gateways_share_several_limits_exactly() {
    let Some(server) = Server::start() else { return };
    let more = "[[plans]]\nname = \"several\"\nlimits = [\"requests=90/1h\", \"tokens=10M/day\", \"budget=50/5h\"]\n";
    let all: Vec<Harness> = (0..3).map(|_| server.gateway(more)).collect();
    let at: Vec<SocketAddr> = all.iter().map(|h| h.at).collect();
    let key = key_of(&all, &["--plan", "several", "--limit", "requests=61/1h"]);
    let before = all.iter().map(|h| h.count("requests")).sum::<u64>();
    let answers = race(&at, CONNECTIONS, EACH, &chat_request(&key, &chat("x\n#sim tokens=2")));
    assert_eq!((admitted(&answers) as u64 + before, served(&all)), (61, 61));
    let refused = answers.iter().find(|answer| answer.status() == 429).unwrap().json();
    let message = refused["error"]["message"].as_str().unwrap();
    assert!(message.starts_with("the limit of this key of 61 requests per 1 hour is reached until "), "{message}");
    let of = |resource: &str| {
        let quota = all[1].get("/v1/quota", &key).json();
        let limits = quota["limits"].as_array().unwrap();
        limits.iter().find(|limit| limit["resource"] == resource).unwrap()["used"].as_f64().unwrap()
    };
    wait_for("all records", || (of("tokens") == sums(&all[0], &key).1 as f64).then_some(()));
    assert_eq!(of("requests"), 61.0);
    let rows = all[0].usage("key");
    let cost = rows.iter().find(|line| line["name"] == key[8..20]).unwrap()["cost_usd"].as_f64();
    assert!(cost.is_none_or(|cost| (cost - of("budget")).abs() < 1e-9), "{cost:?} {}", of("budget"));
    agree(&all, &[&key]);
}

#[test]
fn temporary_allowance_counts_on_all_hosts_and_ends_on_all() {
    let Some(server) = Server::start() else { return };
    let all = server.three();
    let at: Vec<SocketAddr> = all.iter().map(|h| h.at).collect();
    let key = key_of(&all, &["--plan", "requests"]);
    let (body, id) = (chat("x\n#sim tokens=2"), &key[8..20]);
    let wait_for_total = |total: u64| {
        for h in &all {
            wait_for("the limit of requests", || {
                let quota = h.get("/v1/quota", &key).json();
                quota["limits"].as_array().unwrap().iter().any(|limit| limit["total"] == total).then_some(())
            });
        }
    };
    all[0].done(&["keys", "set", id, "--extra", "requests=20", "--for", "1h"]);
    wait_for_total(157);
    let answers = race(&at, CONNECTIONS, EACH, &chat_request(&key, &body));
    assert_eq!((admitted(&answers), served(&all)), (157, 157));
    all[1].done(&["keys", "set", id, "--extra", "requests=40", "--for", "8s"]);
    wait_for_total(177);
    wait_for_total(137);
    let answers = race(&at, CONNECTIONS, EACH, &chat_request(&key, &body));
    assert_eq!((admitted(&answers), served(&all)), (0, 157));
    agree(&all, &[&key]);
}

#[test]
fn spent_budget_of_all_hosts_sends_requests_to_the_cheaper_model() {
    let Some(server) = Server::start() else { return };
    let all = server.three();
    let key = key_of(&all, &["--limit", "budget=0.003/day:large", "--on-exhausted", "small"]);
    let body = with(with(chat("x\n#sim tokens=20"), "model", "large"), "max_tokens", 20);
    let answered: Vec<Answer> = (0..30).map(|at| all[at % 3].chat(&key, &body)).collect();
    assert!(answered.iter().all(|answer| answer.status() == 200));
    let small = answered.iter().filter(|answer| answer.json()["model"] == "small").count();
    let told = answered.iter().filter(|answer| answer.head.get("x-tollgate-model-reason").is_some()).count();
    assert!(small == told && (1..30).contains(&small), "{small} of 30 by the cheaper model, {told} with a reason");
    agree(&all, &[&key]);
}

#[test]
fn three_gateways_share_a_budget_exactly() {
    let Some(server) = Server::start() else { return };
    let store = format!("url = \"{}\"\n", server.url());
    let all: Vec<Harness> =
        (0..3).map(|_| Harness::start(&Setup { store: store.clone(), more: budgets(), ..Setup::default() })).collect();
    race_for_money(&all, |options| key_of(&all, options));
    assert_eq!(served(&all), 80);
    all[0].ledger(80);
    let said = all[0].done(&["ledger", "verify"]);
    assert!(said.starts_with("ok:"), "{said}");
    // All hosts show the amount that one of them has spent.
    let key = key_of(&all, &["--plan", "open", "--group", "three1"]);
    for h in &all {
        let budget = &h.get("/v1/quota", &key).json()["budget"];
        assert_eq!((&budget["used"], &budget["total"]), (&serde_json::json!(0.01), &serde_json::json!(0.01)));
    }
}

#[test]
fn tokens_of_three_gateways_stay_within_the_documented_bound() {
    let Some(server) = Server::start() else { return };
    let all = server.three();
    let at: Vec<SocketAddr> = all.iter().map(|h| h.at).collect();
    for plan in ["period", "window"] {
        let key = key_of(&all, &["--plan", plan]);
        let asked = with(chat("one two three\n#sim tokens=100 delay=300"), "max_tokens", 100);
        let answers = race(&at, 200, 1, &chat_request(&key, &streamed(asked)));
        let ok = admitted(&answers);
        // Amounts that other hosts write behind are counted once their usage records are written.
        all[0].ledger(served(&all));
        let used = used(&all[0], &key);
        println!("three gateways, tokens per {plan}: {ok} of 200 admitted, {used} used of 1000");
        assert!(used < 1000 + 100 + 50 + 20 * ok as u64, "{used}");
        assert!((5..=11).contains(&ok), "{ok}");
    }
}

#[test]
fn new_key_works_on_every_host_immediately_with_its_own_limits() {
    let Some(server) = Server::start() else { return };
    let (one, other) = (url_gateway(&server.url(), ""), url_gateway(&server.url(), ""));
    for _ in 0..10 {
        let key = one.issue(&[]);
        assert_eq!((one.status_of(&key), other.status_of(&key)), (200, 200));
    }
    // Its plan allows two requests per week, its own limit one.
    let key = one.issue(&["--plan", "two", "--requests", "1"]);
    assert_eq!((other.chat(&key, &chat("one")).status(), one.chat(&key, &chat("two")).status()), (200, 429));
    one.done(&["keys", "set", &key[8..20], "--requests", "plan"]);
    wait_for("the limit of the plan", || (other.chat(&key, &chat("two")).status() == 200).then_some(()));
}

#[test]
fn keys_and_reports_are_the_same_on_every_host() {
    let Some(server) = Server::start() else { return };
    let all = [server.gateway(""), server.gateway("")];
    let key = key_of(&all, &[]);
    let id = &key[8..20].to_owned();
    assert_eq!(all[0].chat(&key, &chat("x\n#sim tokens=4")).status(), 200);
    assert_eq!(all[1].chat(&key, &streamed(chat("x\n#sim tokens=6"))).status(), 200);
    agree(&all, &[&key]);
    let (mut rotated, mut times) = (key, Vec::new());
    for _ in 0..5 {
        let old = rotated;
        rotated = all[1].done(&["keys", "rotate", id, "--grace", "0s"]).trim().to_owned();
        let began = Instant::now();
        for h in &all {
            wait_for("the rotation", || (h.status_of(&old) == 401 && h.status_of(&rotated) == 200).then_some(()));
        }
        times.push(began.elapsed());
    }
    // The median ignores single delays of a busy machine. A host that polls too rarely would be late most of the time.
    times.sort();
    assert!(times[times.len() / 2] < Duration::from_secs(1), "{times:?}");
    let used: Vec<Value> = all.iter().map(|h| h.get("/v1/quota", &rotated).json()["tokens"].clone()).collect();
    assert_eq!(used[0], used[1], "rotation keeps the id and the usage");
    for by in ["key", "model", "day", "target"] {
        assert_eq!(all[0].usage(by), all[1].usage(by));
        assert_eq!(all[0].usage(by)[0]["requests"], 2);
    }
    all[0].done(&["keys", "revoke", id]);
    for h in &all {
        wait_for("the revocation", || (h.status_of(&rotated) == 401).then_some(()));
    }
    assert!(all[1].done(&["keys", "show", id]).contains("revoked"));
    let twice = all[0].command(&["keys", "revoke", id]);
    assert_eq!(twice.code, 0, "{}", twice.err);
}

#[test]
fn ledger_outage_refuses_until_it_ends_and_loses_nothing() {
    let Some(mut server) = Server::start() else { return };
    let all = server.three();
    let key = key_of(&all, &[]);
    let mut running = all[2].client();
    running.send(&chat_request(&key, &streamed(chat("x\n#sim tokens=60 pace=20"))));
    assert_eq!(running.head().unwrap().status, 200);
    server.kill();
    for h in &all {
        wait_for("the refusal", || (h.chat(&key, &chat("x")).status() == 503).then_some(()));
        let refused = h.chat(&key, &chat("x"));
        assert_eq!((refused.status(), refused.head.get("retry-after").is_some()), (503, true));
    }
    let mut events = 0;
    while let Some(chunk) = running.chunk().unwrap() {
        events += String::from_utf8(chunk).unwrap().matches("data: ").count();
    }
    assert!(events > 60, "a stream must complete without the ledger: {events}");
    server.run();
    for h in &all {
        wait_for("service", || (h.chat(&key, &chat("x")).status() == 200).then_some(()));
    }
    agree(&all, &[&key]);
}

#[test]
fn paused_ledger_stalls_no_stream() {
    let Some(server) = Server::start() else { return };
    let h = server.gateway("");
    let key = key_of(std::slice::from_ref(&h), &[]);
    let mut running = h.client();
    running.send(&chat_request(&key, &streamed(chat("x\n#sim tokens=100 pace=25"))));
    assert_eq!(running.head().unwrap().status, 200);
    running.chunk().unwrap();
    server.signal("STOP");
    let refused = h.chat(&key, &chat("x"));
    assert_eq!(refused.status(), 503);
    // The ledger is paused until the stream has ended.
    while running.chunk().unwrap().is_some() {}
    server.signal("CONT");
    wait_for("service", || (h.chat(&key, &chat("x")).status() == 200).then_some(()));
    agree(&[h], &[&key]);
}

#[test]
fn host_admits_its_share_during_an_outage_if_configured() {
    let Some(mut server) = Server::start() else { return };
    let h = server.gateway("on_outage = \"local\"\nhosts = 3");
    let key = key_of(std::slice::from_ref(&h), &["--plan", "requests"]);
    assert_eq!(h.chat(&key, &chat("x")).status(), 200);
    server.kill();
    let statuses: Vec<u16> = (0..60).map(|_| h.chat(&key, &chat("x\n#sim tokens=1")).status()).collect();
    assert!(statuses.iter().all(|status| [200, 429].contains(status)), "{statuses:?}");
    let alone = statuses.iter().filter(|status| **status == 200).count();
    // A third of 137, minus the one request that it has already admitted.
    assert_eq!(alone, 137 / 3 - 1);
    server.run();
    wait_for("the shared limit", || (h.chat(&key, &chat("x")).status() == 200).then_some(()));
    agree(std::slice::from_ref(&h), &[&key]);
    let remaining = || h.get("/v1/quota", &key).json()["rate_limit"]["remaining"].as_u64().unwrap();
    let settled = || (remaining() == 137 - h.count("requests")).then_some(());
    wait_for("requests admitted during the outage to be settled", settled);
}

#[test]
fn slots_of_a_dead_gateway_are_free_after_its_lease() {
    let Some(server) = Server::start() else { return };
    let mut all = [server.gateway(""), server.gateway("")];
    let key = key_of(&all, &["--plan", "at-once"]);
    let request = chat_request(&key, &streamed(chat("x\n#sim tokens=3000 pace=20")));
    let mut open: Vec<_> = (0..50).map(|_| all[0].client()).collect();
    open.iter_mut().for_each(|client| client.send(&request));
    wait_for("all slots to be taken", || (all[0].count("requests") == 50).then_some(()));
    assert_eq!(all[1].chat(&key, &chat("x")).status(), 429);
    all[0].gateway.stop("KILL");
    let began = Instant::now();
    assert_eq!(all[1].chat(&key, &chat("x")).status(), 429, "the lease has not expired yet");
    let timeout = Duration::from_secs(20);
    wait_at_most(timeout, "the places", || (all[1].chat(&key, &chat("x")).status() == 200).then_some(()));
    println!("places of a dead host were free after {:?}", began.elapsed());
    assert!(all[1].done(&["ledger", "verify"]).starts_with("ok:"));
}

#[test]
fn slots_and_reservations_are_released_however_a_request_ends() {
    let Some(server) = Server::start() else { return };
    let h = server.gateway("");
    let key = key_of(std::slice::from_ref(&h), &["--plan", "at-once"]);
    let ways = ["tokens=2", "status=500", "cut_after=1", "delay=5000", "tokens=50 pace=20"];
    for way in ways {
        let request = chat_request(&key, &streamed(chat(&format!("x\n#sim {way}"))));
        let mut clients: Vec<_> = (0..50).map(|_| h.client()).collect();
        clients.iter_mut().for_each(|client| client.send(&request));
        std::thread::sleep(Duration::from_millis(300));
        drop(clients);
    }
    let request = chat_request(&key, &streamed(chat("x\n#sim stall_after=1")));
    wait_for("exactly fifty slots", || (race_for_slots(&[h.at], 60, 1, &request) == 50).then_some(()));
}

#[test]
fn kill_loses_no_completed_answer() {
    let Some(server) = Server::start() else { return };
    let mut h = server.gateway("durability = \"before-reply\"");
    let key = key_of(std::slice::from_ref(&h), &[]);
    // Every round reads all usage records over the network, so there are fewer rounds than with a file.
    for round in 0..kills().div_ceil(2).min(20) {
        let count = AtomicUsize::new(0);
        let completed: Vec<String> = std::thread::scope(|scope| {
            let count = &count;
            let clients: Vec<_> = (0..6)
                .map(|_| {
                    let (at, request) = (h.at, chat_request(&key, &chat("x\n#sim tokens=3")));
                    scope.spawn(move || {
                        let (mut seen, mut client) = (Vec::new(), super::client::Client::connect(at));
                        while std::io::Write::write_all(&mut client.socket, &request).is_ok() {
                            let Ok(answer) = client.answer() else { break };
                            assert_eq!(answer.status(), 200);
                            seen.push(answer.id());
                            count.fetch_add(1, Ordering::Relaxed);
                        }
                        seen
                    })
                })
                .collect();
            wait_for("some load", || (count.load(Ordering::Relaxed) > 20).then_some(()));
            std::thread::sleep(Duration::from_millis(300 + 150 * (round % 4)));
            h.gateway.stop("KILL");
            clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
        });
        let rows = h.done(&["ledger", "export"]);
        let lost = completed.iter().filter(|id| !rows.contains(id.as_str())).count();
        println!("before-reply on a shared ledger: {} completed, {lost} lost", completed.len());
        assert!(lost == 0 && completed.len() > 20, "{lost} of {}", completed.len());
        h.start_again();
        assert!(h.done(&["ledger", "verify"]).starts_with("ok:"));
        assert_eq!(used(&h, &key), h.ledger(0).tokens());
    }
}

#[test]
fn cost_of_an_admission_by_the_shared_ledger() {
    let Some(server) = Server::start() else { return };
    let (shared, alone) = (server.gateway(""), Harness::usual());
    let each = |h: &Harness| {
        let key = h.key();
        let (mut client, request) = (h.client(), chat_request(&key, &chat("x\n#sim tokens=1")));
        let mut times: Vec<Duration> = (0..300)
            .map(|_| {
                let began = Instant::now();
                assert_eq!(client.ask(&request).status(), 200);
                began.elapsed()
            })
            .collect();
        times.sort();
        times[times.len() / 2]
    };
    let (with, without) = (each(&shared), each(&alone));
    println!("median of a request: {with:?} with a shared ledger, {without:?} with a file");
    assert!(with < without + Duration::from_millis(50));
}

/// A part of a lease.
pub fn part(account: &str, bounds: (Unix, Unix)) -> LeasePart {
    LeasePart { account: account.into(), bounds }
}

/// The host's clock is two hours ahead or behind. A host determines its windows itself, but not how long the ledger
/// keeps them.
#[test]
fn host_with_another_clock_exceeds_no_limit() {
    let Some(server) = Server::start() else { return };
    let mut remote = Remote { server: RemoteServer::new(&server.address(), None, "the server".to_owned()).unwrap() };
    remote.server.connect().unwrap();
    let speaker = Speaker { host: "host".to_owned(), writer: "writer".to_owned() };
    remote.announce(&speaker, "", &Holds::new()).unwrap();
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_millis() as u64;
    let key = KeyId::parse("0123456789ab").unwrap();
    for moment in [now - 7_200_000, now, now + 7_200_000].map(Unix) {
        let bounds = |length| window(moment, Duration::from_secs(length));
        let reserved = Amount { tokens: 1, nano: 0 };
        let parts = [part("/period", bounds(86_400)), part("/window", bounds(60))].into();
        let lease = Lease { reserved, parts, ..Lease::default() };
        let limits = AskedLimits { parts: vec![[0; 3], [3, 0, 0]], running: vec![0], strict: None };
        let ask = Ask { number: (0, 0), key, lease, limits, admits: true, wish: Wish::default(), promise: None };
        let mut rulings = Vec::new();
        for _ in 0..5 {
            let done = remote.send(&speaker, &[RemoteCommand::Ask(&ask)]).unwrap();
            let [Done::Answer(answer)] = &done[..] else { panic!("{done:?}") };
            rulings.push(answer.ruling);
        }
        let refused = Ruling::Refused(Resource::Requests, 1, LimitReason::Spent);
        assert_eq!(rulings, [Ruling::Admitted, Ruling::Admitted, Ruling::Admitted, refused, refused]);
    }
}

#[test]
fn several_processes_serve_one_port() {
    let Some(server) = Server::start() else { return };
    let store = format!("url = \"{}\"", server.url());
    let setup = Setup { server: "reuse_port = true", store, more: PLANS.to_owned(), ..Setup::default() };
    let h = Harness::start(&setup);
    let key = key_of(std::slice::from_ref(&h), &["--plan", "requests"]);
    let text = std::fs::read_to_string(h.folder.path().join("tollgate.toml")).unwrap();
    let admin = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let second = text.replace(&format!("admin_listen = \"{}\"", h.admin), &format!("admin_listen = \"{admin}\""));
    std::fs::write(h.folder.path().join("second.toml"), second).unwrap();
    let args = ["serve", "--config", "second.toml"];
    let other = super::process::Process::start(h.folder.path(), "second", &args, &[super::harness::CREDENTIAL]);
    wait_for("the second process", || super::client::get(admin, "/readyz").ok().filter(|a| a.status() == 200));
    let answers = race(&[h.at], CONNECTIONS, EACH, &chat_request(&key, &chat("x\n#sim tokens=1")));
    assert_eq!(admitted(&answers), 137);
    // Beyond a hundred a second, refusals of a key are only counted.
    let suppressed = |line: &str| -> Option<usize> {
        let (_, rest) = line.split_once("\"suppressed\",\"requests\":")?;
        rest.split(&[',', '}']).next()?.parse().ok()
    };
    let lines = |path: &Path| {
        let text = std::fs::read_to_string(path).unwrap();
        text.matches("\"endpoint\":\"chat\"").count() + text.lines().filter_map(suppressed).sum::<usize>()
    };
    wait_for("the logs", || {
        let (first, second) = (lines(&h.gateway.stderr), lines(&other.stderr));
        (first + second >= CONNECTIONS * EACH).then_some(()).inspect(|()| assert!(first > 100 && second > 100))
    });
}
