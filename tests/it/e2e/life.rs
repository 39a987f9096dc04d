//! A gateway's life cycle: restart, drain, stale kept connections, health and metrics.

use super::client::{Client, get, request};
use super::harness::{CREDENTIAL, Harness, Setup, bearer, chat, chat_request, gauge, message, streamed, with};
use super::process::{Process, binary, wait_for};
use std::fs;
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

#[test]
fn a_restart_continues_where_it_stopped() {
    let mut h = Harness::usual();
    let (key, limited) = (h.key(), h.key_with(&["--plan", "two"]));
    h.chat(&key, &chat("one\n#sim tokens=5"));
    h.messages(&limited, &message("one\n#sim tokens=5"));
    h.chat(&limited, &chat("one\n#sim tokens=5"));
    assert_eq!(h.chat(&limited, &chat("x")).status(), 429);
    let before = [&key, &limited].map(|key| h.get("/v1/quota", key).json());
    assert_eq!(h.gateway.stop("INT").code(), Some(0), "SIGINT must end it like SIGTERM");
    let while_down = h.issue(&[]);
    h.start_again();
    let after = [&key, &limited].map(|key| h.get("/v1/quota", key).json());
    assert_eq!(before[1], after[1], "windows must also be rebuilt from the usage records");
    assert_eq!(before[0]["tokens"], after[0]["tokens"]);
    assert_eq!(h.chat(&limited, &chat("x")).status(), 429);
    assert_eq!(h.status_of(&while_down), 200, "a key issued in the meantime");
}

/// With write-behind, a kill -9 loses at most the last 50 ms and the running commit.
#[test]
fn kill_loses_no_response_older_than_the_window() {
    let mut h = Harness::usual();
    let key = h.key();
    for _ in 0..20 {
        assert_eq!(h.chat(&key, &chat("one\n#sim tokens=5")).status(), 200);
    }
    let used = h.used(&key);
    // Wait until another process can read them in the file. The ledger tests check how long this may take.
    assert_eq!(h.ledger(20).requests, 20);
    h.gateway.stop("KILL");
    h.start_again();
    assert_eq!((h.used(&key), h.ledger(20).tokens()), (used, used));
}

#[test]
fn two_gateways_do_not_share_a_ledger() {
    let h = Harness::usual();
    let text = std::fs::read_to_string(h.folder.path().join("tollgate.toml")).unwrap();
    let moved = text.replace(&h.at.to_string(), "127.0.0.1:0").replace(&h.admin.to_string(), "127.0.0.1:0");
    std::fs::write(h.folder.path().join("second.toml"), moved).unwrap();
    let second = h.command(&["serve", "--config", "second.toml"]);
    assert_eq!(second.code, 1, "{}", second.err);
    assert!(second.err.contains("ledger"), "{}", second.err);
}

/// Applies to every starting process, including a successor that was just reported to the service manager.
#[test]
fn signals_during_startup_take_effect_once_it_runs() {
    let mut h = Harness::usual();
    assert_eq!(h.gateway.stop("TERM").code(), Some(0));
    // Opening the ledger waits for another process that writes to it. At this point the signal handlers are installed
    // and the port is bound.
    let writer = rusqlite::Connection::open(h.folder.path().join("tollgate.db")).unwrap();
    writer.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mut starting = Process::start(h.folder.path(), "slow", &["serve"], &[CREDENTIAL]);
    wait_for("the port to be bound", || TcpStream::connect(h.at).ok());
    for signal in ["HUP", "USR2", "TERM"] {
        starting.signal(signal);
    }
    assert!(!starting.written().contains("\"event\":\"listening\""), "{}", starting.written());
    writer.execute_batch("ROLLBACK").unwrap();
    assert_eq!(starting.wait().code(), Some(0), "{}", starting.written());
    assert!(starting.written().contains("\"event\":\"listening\""), "{}", starting.written());
}

#[test]
fn sigterm_drains_running_requests_and_exits_with_0() {
    let mut h = Harness::usual();
    let key = h.key();
    let (mut chatting, mut whole, mut idle) = (h.client(), h.client(), h.client());
    idle.ask(&request("GET", "/", &[]));
    chatting.send(&chat_request(&key, &streamed(chat("x\n#sim tokens=60 pace=10"))));
    assert_eq!(chatting.head().unwrap().status, 200);
    whole.send(&chat_request(&key, &chat("x\n#sim tokens=60 pace=10")));
    wait_for("both to run", || (gauge(&h, "tollgate_open_reservations") == 2).then_some(()));
    h.gateway.signal("TERM");
    wait_for("the listener to be closed", || TcpStream::connect(h.at).err());
    assert_eq!(get(h.admin, "/readyz").unwrap().status(), 503, "no longer ready");
    assert_eq!(get(h.admin, "/healthz").unwrap().status(), 200, "still alive");
    let mut text = Vec::new();
    while let Some(chunk) = chatting.chunk().unwrap() {
        text.extend_from_slice(&chunk);
    }
    let text = String::from_utf8(text).unwrap();
    assert!(text.ends_with("data: [DONE]\n\n"), "the stream must be complete: {text}");
    let answer = whole.answer().unwrap();
    assert_eq!((answer.status(), answer.head.get("connection")), (200, Some("close")));
    let status = h.gateway.wait();
    assert_eq!(status.code(), Some(0));
    assert_eq!(h.ledger(2).requests, 2, "drained requests must be in the ledger");
}

#[test]
fn requests_that_outlive_the_drain_end_with_an_error() {
    let mut h = Harness::start(&Setup { server: "drain_timeout = \"500ms\"", ..Setup::default() });
    let key = h.key();
    let mut client = h.client();
    client.send(&chat_request(&key, &streamed(chat("x\n#sim tokens=100000 pace=20"))));
    assert_eq!(client.head().unwrap().status, 200);
    let start = Instant::now();
    h.gateway.signal("TERM");
    let mut text = String::new();
    while let Ok(Some(chunk)) = client.chunk() {
        text += std::str::from_utf8(&chunk).unwrap();
    }
    assert!(text.contains("\"error\"") && !text.contains("[DONE]"), "{text}");
    assert_eq!(h.gateway.wait().code(), Some(0));
    // The default timeout is half a minute.
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    assert_eq!(h.ledger(1).requests, 1);
}

#[test]
fn restarted_provider_is_used_again() {
    let mut h = Harness::usual();
    let key = h.key();
    for _ in 0..3 {
        assert_eq!(h.chat(&key, &chat("x")).status(), 200);
        assert_eq!(h.provider.stop("TERM").code(), Some(0));
        let down = h.chat(&key, &chat("x"));
        assert_eq!((down.status(), down.json()["error"]["type"].as_str()), (500, Some("upstream_error")));
        h.start_provider_again();
        assert_eq!(h.chat(&key, &chat("x")).status(), 200);
    }
}

#[test]
fn upstream_connections_are_kept_and_reused() {
    let h = Harness::usual();
    let key = h.key();
    let mut client = h.client();
    for _ in 0..50 {
        assert_eq!(client.ask(&chat_request(&key, &chat("x\n#sim tokens=1"))).status(), 200);
    }
    let idle = gauge(&h, "tollgate_upstream_idle_connections");
    assert_eq!(idle, 1, "sequential requests need one upstream connection");
}

#[test]
fn admin_and_client_listeners_serve_only_their_own_paths() {
    let h = Harness::usual();
    let key = h.key();
    let ok = h.chat(&key, &chat("x\n#sim tokens=5"));
    h.chat(&key, &with(chat("x"), "model", "no-such"));
    assert_eq!(get(h.admin, "/healthz").unwrap().status(), 200);
    assert_eq!(get(h.admin, "/readyz").unwrap().status(), 200);
    assert_eq!(get(h.admin, "/v1/models").unwrap().status(), 404, "no API here");
    assert_eq!(h.get("/metrics", &key).status(), 404, "the client port must not serve metrics");
    h.log_of(&ok.id());
    let metrics = get(h.admin, "/metrics").unwrap();
    let text = metrics.text();
    for line in [
        "tollgate_requests_total{endpoint=\"chat\",model=\"small\",status=\"200\"} 1",
        "tollgate_tokens_total{model=\"small\",kind=\"output\"} 5",
        "# TYPE tollgate_phase_seconds histogram",
        "# TYPE tollgate_loop_iteration_seconds histogram",
        "# TYPE tollgate_client_connections gauge",
        "# TYPE tollgate_buffered_bytes gauge",
        "tollgate_panics_total 0",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}:\n{text}");
    }
    assert!(text.contains("status=\"404\""), "{text}");
    assert!(!text.contains(&key) && !text.contains(CREDENTIAL.1), "no secret may appear");
}

#[test]
fn all_resources_are_released_after_the_work() {
    let h = Harness::start(&Setup { upstream: "pool_idle_timeout = \"2s\"\n", ..Setup::default() });
    let key = h.key();
    let start = h.gateway.descriptors();
    let mut clients: Vec<Client> = (0..200).map(|_| h.client()).collect();
    for client in &mut clients {
        client.send(&chat_request(&key, &chat("x\n#sim delay=100")));
    }
    for client in &mut clients {
        assert_eq!(client.answer().unwrap().status(), 200);
    }
    drop(clients);
    wait_for("connections to be closed", || (h.gateway.descriptors() <= start).then_some(()));
    wait_for("no open hold", || (gauge(&h, "tollgate_open_reservations") == 0).then_some(()));
    wait_for("no uncommitted row", || (gauge(&h, "tollgate_uncommitted_rows") == 0).then_some(()));
    wait_for("all clients to disconnect", || (gauge(&h, "tollgate_client_connections") == 0).then_some(()));
    let quota = h.client().ask(&request("GET", "/v1/quota", &[("authorization", &bearer(&key))])).json();
    assert_eq!(quota["tokens"]["used"], h.ledger(200).tokens());
}

/// After a pause (a terminal's ^Z, a paused container) all deadlines have passed, but the provider's bytes are waiting
/// unread.
#[test]
fn pause_of_the_process_is_not_taken_for_a_silent_provider() {
    let more = "[[models]]\nid = \"impatient\"\ncontext = \"256K\"\nidle_timeout = \"2s\"\n\
                targets = [{ provider = \"sim-chat\", model = \"up-small\" }]\n";
    let h = Harness::start(&Setup { more: more.to_owned(), ..Setup::default() });
    let key = h.key();
    let mut client = h.client();
    let asked = with(chat("x\n#sim tokens=150 pace=50"), "model", "impatient");
    client.send(&chat_request(&key, &streamed(asked)));
    assert_eq!(client.head().unwrap().status, 200);
    h.gateway.signal("STOP");
    std::thread::sleep(Duration::from_millis(2600));
    h.gateway.signal("CONT");
    let mut text = String::new();
    while let Ok(Some(chunk)) = client.chunk() {
        text += std::str::from_utf8(&chunk).unwrap();
    }
    assert!(text.ends_with("[DONE]\n\n") && !text.contains("\"error\""), "{text}");
}

#[test]
fn start_with_too_few_descriptors_is_an_error() {
    let h = Harness::usual();
    let config = fs::read_to_string(h.folder.path().join("tollgate.toml")).unwrap();
    let config = config.replace("tollgate.db", "other.db");
    let few = config.replace(&h.at.to_string(), "127.0.0.1:0").replace(&h.admin.to_string(), "127.0.0.1:0");
    fs::write(h.folder.path().join("few.toml"), few).unwrap();
    for descriptors in [8, 12, 15, 23] {
        let script = format!("ulimit -n {descriptors}; exec \"$0\" serve --config few.toml");
        let mut command = Command::new("sh");
        command.args(["-c", &script]).arg(binary()).current_dir(h.folder.path()).env(CREDENTIAL.0, CREDENTIAL.1);
        let done = command.output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(1), "{descriptors}: {said}");
        assert!(said.contains("descriptors") && said.contains("LimitNOFILE="), "{descriptors}: {said}");
    }
}

/// A running request is lost with a killed gateway, and holds nothing afterwards. A reload and a rotation keep what is
/// used, and add nothing.
#[test]
fn nothing_is_refused_falsely_after_a_kill_a_reload_or_a_rotation() {
    let mut h = Harness::usual();
    let (single, two) = (h.key_with(&["--plan", "single"]), h.key_with(&["--plan", "two"]));
    let endless = streamed(chat("x\n#sim tokens=100000 pace=10"));
    let busy = |h: &Harness| {
        let mut busy = h.client();
        busy.send(&chat_request(&single, &endless));
        assert_eq!(busy.head().unwrap().status, 200);
        assert_eq!(h.chat(&single, &chat("x")).status(), 429, "one concurrent request is allowed");
        busy
    };
    assert_eq!(h.chat(&two, &chat("x")).status(), 200);
    assert_eq!(h.ledger(1).requests, 1);
    let lost = busy(&h);
    h.gateway.stop("KILL");
    drop(lost);
    h.start_again();
    let answer = h.chat(&single, &chat("x"));
    assert_eq!(answer.status(), 200, "after the kill: {}", answer.text());
    let running = busy(&h);
    h.gateway.signal("HUP");
    wait_for("the reload", || h.gateway.written().contains("\"outcome\":\"done\"").then_some(()));
    assert_eq!(h.chat(&single, &chat("x")).status(), 429, "the request of before the reload still runs");
    drop(running);
    wait_for("the slot", || (h.chat(&single, &chat("x")).status() == 200).then_some(()));
    let rotated = h.done(&["keys", "rotate", &two, "--grace", "1h"]);
    let rotated = rotated.trim();
    wait_for("the new secret", || (h.status_of(rotated) == 200).then_some(()));
    let answer = h.chat(rotated, &chat("x"));
    assert_eq!(answer.status(), 200, "the second of two: {}", answer.text());
    assert_eq!([&two, rotated].map(|secret| h.chat(secret, &chat("x")).status()), [429; 2]);
}
