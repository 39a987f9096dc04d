//! Upgrades: a new process replaces the old one.

use super::rig::{Gate, Rig, chat, connect, get, read_to_end, read_until};
use crate::e2e::collector::Collector;
use command_fds::{CommandFdExt, FdMapping};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const PLANS: &str = "[[plans]]\nname = \"open\"\n[[plans]]\nname = \"strict\"\nrequests = 300\nwindow = \"7d\"\n";

fn rig(name: &str, server: &str) -> Rig {
    let mut rig = Rig::new(name, server);
    rig.configure(server, &rig.models("small"), PLANS);
    rig.key = rig.issue("--plan open");
    rig
}

fn upgrade(gate: &Gate) {
    let before = gate.pids().len();
    gate.signal("-USR2");
    gate.until("the successor listens", |gate| gate.pids().len() > before);
}

/// Returns the number of requests in the ledger, from `tollgate usage`.
pub fn rows(rig: &Rig) -> u64 {
    let output = rig.command(&["usage", "--json"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let value: serde_json::Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    count(&value)
}

fn count(value: &serde_json::Value) -> u64 {
    match value {
        serde_json::Value::Array(all) => all.iter().map(count).sum(),
        serde_json::Value::Object(one) => match one.get("requests").and_then(serde_json::Value::as_u64) {
            Some(requests) => requests,
            None => one.values().map(count).sum(),
        },
        _ => 0,
    }
}

/// Returns the value of a series of `/metrics`; 0 if it does not exist.
fn counter(gate: &Gate, series: &str) -> f64 {
    let mut stream = connect(gate.admin);
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
    let text = read_to_end(&mut stream);
    let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.map_or(0.0, |count| count.parse().unwrap())
}

#[test]
fn old_and_new_process_each_send_their_own_spans() {
    let collector = Collector::start();
    let rig = rig("upgrade-spans", "");
    let telemetry = format!("{PLANS}[telemetry]\notlp = \"http://{}\"\n", collector.at);
    rig.configure("", &rig.models("small"), &telemetry);
    let gate = rig.start();
    let mut stream = gate.connect();
    stream.write_all(chat(&rig.key, "small", true, "#sim tokens=30 pace=20").as_bytes()).unwrap();
    read_until(&mut stream, "chunk");
    upgrade(&gate);
    let closing =
        chat(&rig.key, "small", false, "#sim tokens=5").replacen("host: h", "connection: close\r\nhost: h", 1);
    assert!(gate.ask(&closing).starts_with("HTTP/1.1 200"));
    read_until(&mut stream, "[DONE]");
    gate.until("all spans have arrived", |_| collector.spans().len() >= 4);
    let spans = collector.spans();
    let own = spans.iter().filter(|span| span.kind == 2);
    let mut processes: Vec<(&str, u64)> =
        own.map(|span| (&*span.instance, span.number("gen_ai.usage.output_tokens").unwrap())).collect();
    processes.sort_by_key(|(_, tokens)| *tokens);
    let [(new, 5), (old, 30)] = processes[..] else { panic!("{processes:?}") };
    assert_ne!(new, old);
}

#[test]
fn counters_of_the_new_process_begin_at_zero() {
    let rig = rig("upgrade-counters", "");
    let gate = rig.start();
    let served = "tollgate_requests_total{endpoint=\"chat\",model=\"small\",status=\"200\"}";
    let ask = || {
        let closing =
            chat(&rig.key, "small", false, "#sim tokens=5").replacen("host: h", "connection: close\r\nhost: h", 1);
        assert!(gate.ask(&closing).starts_with("HTTP/1.1 200"));
    };
    ask();
    let mut stream = gate.connect();
    stream.write_all(chat(&rig.key, "small", true, "#sim tokens=40 pace=20").as_bytes()).unwrap();
    read_until(&mut stream, "chunk");
    assert_eq!(counter(&gate, served), 1.0);
    upgrade(&gate);
    assert_eq!(counter(&gate, served), 0.0);
    ask();
    read_until(&mut stream, "[DONE]");
    gate.until("the old process has ended", |gate| gate.log().contains("predecessor left"));
    assert_eq!(counter(&gate, served), 1.0, "the stream of the old process does not count");
    assert!(counter(&gate, "process_resident_memory_bytes") > 1e6 && counter(&gate, "process_open_fds") > 5.0);
}

#[test]
fn reasons_of_failures_are_handed_over() {
    let rig = rig("upgrade-reasons", "");
    let gate = rig.start();
    let admin = gate.admin.to_string();
    let reasons = || -> Vec<serde_json::Value> {
        let mut command = rig.command(&["requests", "--reasons", "--json", "--send-token", "--admin", &admin]);
        let output = command.output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
    };
    let fail = || {
        let closing = chat(&rig.key, "small", false, "#sim status=503");
        let said = gate.ask(&closing.replacen("host: h", "connection: close\r\nhost: h", 1));
        assert!(said.starts_with("HTTP/1.1 5"), "{said}");
    };
    fail();
    let before = reasons();
    assert_eq!((before.len(), &before[0]["failed"]), (1, &1.into()), "{before:?}");
    upgrade(&gate);
    gate.until("the old process has ended", |gate| gate.log().contains("predecessor left"));
    assert_eq!(reasons(), before);
    fail();
    let after = reasons();
    assert_eq!((after.len(), &after[0]["failed"]), (1, &2.into()), "{after:?}");
    assert_eq!(
        ["first", "reason", "target", "key"].map(|name| &after[0][name]),
        ["first", "reason", "target", "key"].map(|name| &before[0][name])
    );
}

#[test]
fn upgrade_disturbs_neither_streams_nor_new_connections() {
    let rig = rig("upgrade-streams", "");
    let gate = rig.start();
    let strict = rig.issue("--plan strict");
    gate.until("the key is known", |gate| gate.ask(&get(&strict, "/v1/models")).starts_with("HTTP/1.1 200"));
    let (over, asked, admitted) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let closing = |text: String| text.replacen("host: h", "connection: close\r\nhost: h", 1);
    std::thread::scope(|scope| {
        let streams: Vec<_> = (0..500)
            .map(|_| {
                let mut stream = gate.connect();
                stream.write_all(chat(&rig.key, "small", true, "#sim tokens=60 pace=12").as_bytes()).unwrap();
                stream
            })
            .collect();
        for _ in 0..4 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let answer = gate.ask(&closing(chat(&rig.key, "small", false, "hello")));
                    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
                    asked.fetch_add(1, Ordering::Relaxed);
                    let answer = gate.ask(&closing(chat(&strict, "small", false, "hello")));
                    assert!(answer.starts_with("HTTP/1.1 200") || answer.starts_with("HTTP/1.1 429"), "{answer}");
                    admitted.fetch_add(u64::from(answer.starts_with("HTTP/1.1 200")), Ordering::Relaxed);
                }
            });
        }
        std::thread::sleep(Duration::from_millis(300));
        upgrade(&gate);
        upgrade(&gate);
        for mut stream in streams {
            let all = read_until(&mut stream, "[DONE]");
            assert!(all.contains("\"finish_reason\":\"stop\""));
        }
        gate.until("the limit is reached", |_| admitted.load(Ordering::Relaxed) >= 300);
        std::thread::sleep(Duration::from_millis(500));
        over.store(true, Ordering::Relaxed);
    });
    let expected = 500 + asked.load(Ordering::Relaxed) + 300;
    assert_eq!(admitted.load(Ordering::Relaxed), 300);
    gate.until("both predecessors have left", |gate| {
        gate.log().matches("predecessor left\",\"unsettled\":0").count() == 2
    });
    gate.until("every row is in the ledger", |_| rows(&rig) == expected);
    assert_eq!(gate.metric("tollgate_open_reservations"), 0);
    assert!(!gate.log().contains("\"status\":5"));
}

#[test]
fn running_requests_of_the_old_process_count_in_the_new_one() {
    let rig = rig("upgrade-counts", "");
    let plans = "[[plans]]\nname = \"open\"\n[[plans]]\nname = \"one\"\nconcurrency = 1\n";
    rig.configure("", &rig.models("small"), plans);
    let gate = rig.start();
    let one = rig.issue("--plan one");
    gate.until("the key is known", |gate| gate.ask(&get(&one, "/v1/models")).starts_with("HTTP/1.1 200"));
    let mut stream = gate.connect();
    stream.write_all(chat(&one, "small", true, "#sim tokens=120 pace=10").as_bytes()).unwrap();
    read_until(&mut stream, "chunk");
    upgrade(&gate);
    assert_eq!(gate.metric("tollgate_open_reservations"), 1);
    let second = chat(&one, "small", false, "hello").replacen("host: h", "connection: close\r\nhost: h", 1);
    assert!(gate.ask(&second).starts_with("HTTP/1.1 429"));
    read_until(&mut stream, "[DONE]");
    gate.until("the slot is free", |gate| gate.ask(&second).starts_with("HTTP/1.1 200"));
    gate.until("both rows are in the ledger", |_| rows(&rig) == 2);
    assert!(gate.ask(&get(&one, "/v1/quota")).contains("\"used\":"));
}

#[test]
fn running_requests_of_the_old_process_count_at_their_target() {
    let rig = rig("upgrade-target", "");
    let limited =
        rig.models("small").replace("model = \"upstream-x\"", "model = \"upstream-x\", limits = [\"running=1\"]");
    rig.configure("", &limited, "[[plans]]\nname = \"open\"\n");
    let gate = rig.start();
    let mut stream = gate.connect();
    stream.write_all(chat(&rig.key, "small", true, "#sim tokens=120 pace=10").as_bytes()).unwrap();
    read_until(&mut stream, "chunk");
    upgrade(&gate);
    let second = chat(&rig.key, "small", false, "hello").replacen("host: h", "connection: close\r\nhost: h", 1);
    let refused = gate.ask(&second);
    assert!(refused.starts_with("HTTP/1.1 503") || refused.starts_with("HTTP/1.1 429"), "{refused}");
    read_until(&mut stream, "[DONE]");
    gate.until("there is room at the target", |gate| gate.ask(&second).starts_with("HTTP/1.1 200"));
    gate.until("both rows are in the ledger", |_| rows(&rig) == 2);
}

#[test]
fn half_received_body_at_the_handover_exceeds_no_limit() {
    let rig = rig("upgrade-half", "");
    let plans = "[[plans]]\nname = \"open\"\n[[plans]]\nname = \"once\"\nrequests = 1\nwindow = \"7d\"\n";
    rig.configure("", &rig.models("small"), plans);
    let gate = rig.start();
    let once = rig.issue("--plan once");
    gate.until("the key is known", |gate| gate.ask(&get(&once, "/v1/models")).starts_with("HTTP/1.1 200"));
    let request = chat(&once, "small", false, "hello").replacen("host: h", "connection: close\r\nhost: h", 1);
    let (begun, rest_of_it) = request.split_at(request.len() - 10);
    let mut half = gate.connect();
    half.write_all(begun.as_bytes()).unwrap();
    gate.until("the head has been read", |gate| gate.metric("tollgate_buffered_bytes") > 0);
    upgrade(&gate);
    let fresh = gate.ask(&request);
    assert!(fresh.starts_with("HTTP/1.1 200"), "{fresh}");
    half.write_all(rest_of_it.as_bytes()).unwrap();
    let late = read_to_end(&mut half);
    assert!(late.starts_with("HTTP/1.1 503") || late.starts_with("HTTP/1.1 429"), "{late}");
    gate.until("the predecessor has left", |gate| gate.log().contains("predecessor left\",\"unsettled\":0"));
    gate.until("the row is in the ledger", |_| rows(&rig) == 1);
    assert!(gate.ask(&request).starts_with("HTTP/1.1 429"));
}

#[test]
fn request_after_a_stream_that_spans_an_upgrade_is_answered() {
    let rig = rig("upgrade-next", "");
    let gate = rig.start();
    let mut kept: Vec<_> = (0..10).map(|_| gate.connect()).collect();
    for stream in &mut kept {
        stream.write_all(chat(&rig.key, "small", true, "#sim tokens=150 pace=20").as_bytes()).unwrap();
        read_until(stream, "chunk");
    }
    upgrade(&gate);
    for stream in &mut kept {
        let all = read_until(stream, "0\r\n\r\n");
        assert!(all.contains("\"finish_reason\":\"stop\""), "{all}");
        let _ = stream.write_all(get(&rig.key, "/v1/models").as_bytes());
        let answer = read_to_end(stream);
        assert!(answer.starts_with("HTTP/1.1 ") && answer.contains("connection: close"), "{answer:?}");
    }
}

#[test]
fn with_before_reply_the_old_process_waits_for_commits() {
    let rig = rig("upgrade-reply", "");
    let text = std::fs::read_to_string(rig.path("tollgate.toml")).unwrap();
    let text = text.replace("[store]", "[store]\ndurability = \"before-reply\"");
    std::fs::write(rig.path("tollgate.toml"), text).unwrap();
    let gate = rig.start();
    let mut stream = gate.connect();
    stream.write_all(chat(&rig.key, "small", true, "#sim tokens=30 pace=15").as_bytes()).unwrap();
    read_until(&mut stream, "chunk");
    upgrade(&gate);
    let rest = read_until(&mut stream, "[DONE]");
    assert!(rest.contains("\"finish_reason\":\"stop\""), "{rest}");
    // An answer that is complete for its client must be in the ledger.
    assert_eq!(rows(&rig), 1);
}

#[test]
fn a_successor_that_cannot_start_changes_nothing() {
    let rig = rig("upgrade-fails", "");
    let gate = rig.start();
    let good = std::fs::read(rig.path("tollgate.toml")).unwrap();
    std::fs::write(rig.path("tollgate.toml"), "nonsense = 1").unwrap();
    gate.signal("-USR2");
    gate.until("the failure is logged", |gate| gate.log().contains("the successor was not ready"));
    assert!(gate.log().contains("tollgate.toml:1: nonsense"));
    let mut kept = gate.connect();
    kept.write_all(get(&rig.key, "/v1/models").replacen("connection: close\r\n", "", 1).as_bytes()).unwrap();
    read_until(&mut kept, "\"small\"");
    std::fs::write(rig.path("tollgate.toml"), good).unwrap();
    upgrade(&gate);
    assert!(gate.ask(&get(&rig.key, "/v1/models")).starts_with("HTTP/1.1 200"));
    // The connection to the old process was idle, and was closed properly.
    assert_eq!(kept.read_to_end(&mut Vec::new()).unwrap(), 0);
}

#[test]
fn successor_with_another_ledger_is_refused() {
    let rig = rig("upgrade-ledger", "");
    let gate = rig.start();
    let good = std::fs::read_to_string(rig.path("tollgate.toml")).unwrap();
    let other = good.replace("sqlite:ledger.db", "sqlite:other.db");
    assert_ne!(other, good);
    std::fs::write(rig.path("tollgate.toml"), other).unwrap();
    gate.signal("-USR2");
    gate.until("the failure is logged", |gate| gate.log().contains("serving on without a successor"));
    assert!(gate.log().contains("\"outcome\":\"failed: store.url has changed from sqlite:"), "{}", gate.log());
    assert!(gate.ask(&get(&rig.key, "/v1/models")).starts_with("HTTP/1.1 200"), "the key is known");
    assert!(!rig.path("other.db").exists());
    std::fs::write(rig.path("tollgate.toml"), good).unwrap();
    upgrade(&gate);
    assert!(gate.ask(&get(&rig.key, "/v1/models")).starts_with("HTTP/1.1 200"));
}

#[test]
fn old_process_exits_with_0_and_the_new_one_handles_term() {
    let rig = rig("upgrade-term", "drain_timeout = \"5s\"");
    let mut gate = rig.start();
    upgrade(&gate);
    let old = gate.child.wait().unwrap();
    assert!(old.success(), "{old}");
    let mut stream = gate.connect();
    stream.write_all(chat(&rig.key, "small", true, "#sim tokens=20 pace=20").as_bytes()).unwrap();
    read_until(&mut stream, "chunk");
    gate.signal("-TERM");
    read_until(&mut stream, "[DONE]");
    gate.until("the row is in the ledger", |_| rows(&rig) == 1);
}

/// systemd stops a service when its main process ends, so the old process must name its successor as the main process
/// before it ends.
#[test]
fn service_manager_learns_of_the_successor_and_its_readiness() {
    let rig = rig("upgrade-notify", "");
    let manager = UnixDatagram::bind(rig.path("notify")).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let said = || {
        let mut text = [0; 256];
        let length = manager.recv(&mut text).unwrap();
        String::from_utf8_lossy(&text[..length]).into_owned()
    };
    let mut gate = rig.start_with(|command: &mut Command| {
        command.env("NOTIFY_SOCKET", rig.path("notify"));
    });
    assert_eq!(said(), "READY=1\n");
    upgrade(&gate);
    assert!(gate.child.wait().unwrap().success());
    let pids = gate.pids();
    assert_eq!(said(), format!("MAINPID={}\n", pids.last().unwrap()), "{pids:?}");
    assert_eq!(said(), "READY=1\n");
}

#[test]
fn systemd_sockets_are_used_and_named_ones_serve_the_admin_api() {
    let rig = rig("upgrade-systemd", "");
    let (clients, admin) = (TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
    let (at, health) = (clients.local_addr().unwrap(), admin.local_addr().unwrap());
    // A client that connects before the service starts waits in the queue of the socket.
    let mut early = connect(at);
    early.write_all(get(&rig.key, "/v1/models").as_bytes()).unwrap();
    let gate = rig.start_with(|command: &mut Command| {
        let fds = [admin, clients].into_iter().zip(3..);
        let mappings = fds.map(|(socket, child_fd)| FdMapping { parent_fd: socket.into(), child_fd }).collect();
        command.fd_mappings(mappings).unwrap();
        command.env("LISTEN_FDS", "2").env("LISTEN_FDNAMES", "admin:tollgate.socket");
    });
    assert_eq!((gate.clients, gate.admin), (at, health));
    assert!(read_until(&mut early, "\"small\"").starts_with("HTTP/1.1 200"));
    upgrade(&gate);
    assert!(gate.ask(&get(&rig.key, "/v1/models")).starts_with("HTTP/1.1 200"));
    gate.metric("tollgate_open_reservations");
}

/// A program that leaves a daemon behind would keep them open for the daemon's life.
#[test]
fn credential_programs_inherit_no_descriptor() {
    let rig = rig("upgrade-programs", "");
    // `ls` lists the descriptors of its own process, which has those of the shell and, as number 3, the folder.
    let program = format!(
        "d={}/run.$$; mkdir $d; ls -l /proc/self/fd >$d/fds 2>/dev/null; env >$d/env; mv $d $d.done; echo secret",
        rig.folder.display()
    );
    let keyed = format!(
        "{PLANS}[[providers]]\nname = \"keyed\"\nshape = \"chat\"\nbase_url = \"http://{}/v1\"\n\
         api_key = {{ command = [\"sh\", \"-c\", \"{program}\"], refresh = \"1s\" }}\n",
        rig.provider
    );
    rig.configure("", &rig.models("small"), &keyed);
    let runs = || {
        let names = std::fs::read_dir(&rig.folder).unwrap().map(|entry| entry.unwrap().path());
        names.filter(|path| path.extension().is_some_and(|end| end == "done")).collect::<Vec<_>>()
    };
    let _manager = UnixDatagram::bind(rig.path("notify")).unwrap();
    let gate = rig.start_with(|command: &mut Command| {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        // The caller has left the last one open by mistake.
        let left = TcpListener::bind("127.0.0.1:0").unwrap();
        let mappings = [(3, socket), (9, left)].map(|(child_fd, fd)| FdMapping { parent_fd: fd.into(), child_fd });
        command.fd_mappings(mappings.into()).unwrap();
        command.env("LISTEN_FDS", "1").env("LISTEN_FDNAMES", "clients").env("NOTIFY_SOCKET", rig.path("notify"));
    });
    gate.until("a later run", |_| runs().len() >= 2);
    upgrade(&gate);
    let before = runs().len();
    gate.until("a later run of the successor", |_| runs().len() > before + 1);
    let numbers = |list: &str| {
        let links = list.lines().filter_map(|line| line.split_once(" -> "));
        links.map(|(line, _)| line.rsplit(' ').next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    for run in runs() {
        let text = |name: &str| std::fs::read_to_string(run.join(name)).unwrap();
        let descriptors = text("fds");
        assert_eq!(numbers(&descriptors), ["0", "1", "2", "3"], "{descriptors}");
        assert!(!descriptors.contains("socket:"), "{descriptors}");
        let variables = text("env");
        let told = ["LISTEN_", "NOTIFY_"].iter().any(|name| variables.lines().any(|line| line.starts_with(name)));
        assert!(!told, "{variables}");
    }
}

/// Ends the process at the end of the test.
struct Ended(std::process::Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A follower of the live feed is connected to the old process, whose last request may end long after the upgrade.
#[test]
fn follower_sees_the_requests_of_both_processes_in_an_upgrade() {
    let rig = rig("upgrade-live", "");
    let gate = rig.start();
    let seen = rig.path("live.out");
    let admin = gate.admin.to_string();
    let mut command = rig.command(&["requests", "--live", "--json", "--send-token", "--admin", &admin]);
    let output = std::fs::File::create(&seen).unwrap();
    let _follower = Ended(command.stdout(output).stderr(std::process::Stdio::inherit()).spawn().unwrap());
    let ids = || -> Vec<String> {
        let text = std::fs::read_to_string(&seen).unwrap();
        let id = |line: &str| serde_json::from_str::<serde_json::Value>(line).ok()?["id"].as_str().map(str::to_string);
        text.lines().filter_map(id).collect()
    };
    let id_of = |answer: &str| {
        let id = answer.lines().find_map(|line| line.strip_prefix("x-gateway-request-id: "));
        id.unwrap_or_else(|| panic!("no id: {answer}")).trim().to_string()
    };
    let ask = || {
        id_of(&gate.ask(&chat(&rig.key, "small", false, "x").replacen("host: h", "connection: close\r\nhost: h", 1)))
    };
    gate.until("the feed is open", |_| {
        let id = ask();
        std::thread::sleep(Duration::from_millis(400));
        ids().contains(&id)
    });
    let mut stream = gate.connect();
    stream.write_all(chat(&rig.key, "small", true, "#sim tokens=200 pace=20").as_bytes()).unwrap();
    let mut asked = vec![id_of(&read_until(&mut stream, "chunk"))];
    upgrade(&gate);
    gate.until("the successor serves", |gate| gate.log().contains("handed over"));
    // The feed of the successor is open soon after.
    std::thread::sleep(Duration::from_millis(500));
    asked.extend((0..5).map(|_| ask()));
    gate.until("requests of the successor are seen before the predecessor ends", |gate| {
        asked[1..].iter().all(|id| ids().contains(id)) || gate.log().contains("predecessor left")
    });
    assert!(!gate.log().contains("predecessor left"), "the predecessor ended first");
    read_until(&mut stream, "[DONE]");
    gate.until("the predecessor has left", |gate| gate.log().contains("predecessor left"));
    asked.push(ask());
    gate.until("all are seen", |_| asked.iter().all(|id| ids().contains(id)));
    let all = ids();
    let times = |id: &String| all.iter().filter(|other| *other == id).count();
    assert!(asked.iter().all(|id| times(id) == 1), "{asked:?} in {all:?}");
}
