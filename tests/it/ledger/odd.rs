//! A shared ledger with values that Tollgate has not written, server settings that can lose data, and interrupted
//! reads.

use super::client::get;
use super::harness::{Harness, chat, chat_request, streamed};
use super::process::wait_for;
use super::shared::{Server, key_of, sums, url_gateway};
use std::time::Duration;
use tollgate::store::bounds;

fn id_of(key: &str) -> &str {
    &key[8..20]
}

fn status(h: &Harness, key: &str) -> u16 {
    h.chat(key, &chat("x\n#sim tokens=1")).status()
}

fn warnings(h: &Harness) -> Vec<String> {
    let log = h.log();
    let warnings = log.iter().filter(|line| line["event"] == "warning");
    warnings.map(|line| line["message"].as_str().unwrap().to_owned()).collect()
}

fn warned_of(h: &Harness, what: &str) {
    wait_for(what, || warnings(h).iter().any(|warning| warning.contains(what)).then_some(()));
}

#[test]
fn unreadable_key_record_is_reported_and_blocks_no_other_key() {
    let Some(server) = Server::start() else { return };
    let h = server.gateway("");
    let first = key_of(std::slice::from_ref(&h), &[]);
    for (id, record) in [("AAAAAAAAAAAA", &b"\xff\xfe"[..]), ("BBBBBBBBBBBB", b"{}"), ("CC\r\n", b"1")] {
        server.say(&[b"HSET", b"tollgate:keys", id.as_bytes(), record]);
    }
    server.say(&[b"INCR", b"tollgate:keys:version"]);
    let second = key_of(std::slice::from_ref(&h), &[]);
    assert_eq!((status(&h, &first), status(&h, &second)), (200, 200));
    for id in ["AAAAAAAAAAAA", "BBBBBBBBBBBB", "CC"] {
        warned_of(&h, id);
    }
    assert_eq!(
        warnings(&h).iter().filter(|warning| warning.contains("AAAAAAAAAAAA")).count(),
        1,
        "the log must contain one warning of it"
    );
    assert_eq!(h.done(&["keys", "list"]).lines().count(), 3);
    h.done(&["keys", "revoke", id_of(&first)]);
    wait_for("the revocation", || (h.status_of(&first) == 401).then_some(()));
}

#[test]
fn counter_of_the_wrong_type_blocks_only_its_key_and_loses_no_record() {
    let Some(server) = Server::start() else { return };
    let h = server.gateway("");
    let all = std::slice::from_ref(&h);
    let (odd, other) = (key_of(all, &[]), key_of(all, &[]));
    assert_eq!((status(&h, &odd), status(&h, &other)), (200, 200));
    let counter = format!("tollgate:use:{}", id_of(&odd));
    let mut running = h.client();
    running.send(&chat_request(&odd, &streamed(chat("x\n#sim tokens=30 pace=20"))));
    assert_eq!(running.head().unwrap().status, 200);
    server.say(&[b"DEL", counter.as_bytes()]);
    server.say(&[b"SET", counter.as_bytes(), b"not a hash"]);
    // Requests of earlier grants are admitted for up to two seconds. The ledger grants and admits nothing more.
    let mut granted = 0;
    wait_for("the end of the grants", || match status(&h, &odd) {
        200 => {
            granted += 1;
            std::thread::sleep(Duration::from_millis(50));
            None
        }
        refused => (refused == 503).then_some(()),
    });
    for _ in 0..5 {
        assert_eq!((status(&h, &odd), status(&h, &other)), (503, 200));
    }
    while running.chunk().unwrap().is_some() {}
    // The usage record of the stream exists, and so do those of the other key that were sent with it and after it.
    wait_for("the rows", || ((sums(&h, &odd).0, sums(&h, &other).0) == (2 + granted, 6)).then_some(()));
    assert_eq!(status(&h, &other), 200);
    assert_eq!(get(h.admin, "/readyz").unwrap().status(), 200);
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(h.done(&["ledger", "export"]).lines().count() as u64, sums(&h, &odd).0 + sums(&h, &other).0);
    warned_of(&h, &counter);
    warned_of(&h, id_of(&odd));
    server.say(&[b"DEL", counter.as_bytes()]);
    assert_eq!((status(&h, &odd), status(&h, &other)), (200, 200));
}

#[test]
fn counter_that_is_not_an_integer_admits_nobody() {
    let Some(server) = Server::start() else { return };
    let all = server.three();
    let (odd, other) = (key_of(&all, &["--plan", "allowance"]), key_of(&all, &[]));
    assert_eq!((status(&all[0], &odd), status(&all[1], &other)), (200, 200));
    wait_for("the row", || (sums(&all[0], &odd).0 == 1).then_some(()));
    // The server would not increment such a value, so usage would not be counted.
    let day = (std::time::UNIX_EPOCH.elapsed().unwrap().as_secs() / (24 * 3600)).to_string();
    let counter = format!("tollgate:use:{}", id_of(&odd));
    for value in ["1.5", "400.0", "1e5", " 7", "020", "0x10", "+20", ""] {
        server.say(&[b"HSET", counter.as_bytes(), day.as_bytes(), value.as_bytes()]);
        for h in &all {
            wait_for("the refusal", || (status(h, &odd) == 503).then_some(()));
            assert_eq!((status(h, &odd), status(h, &other)), (503, 200), "{value:?}");
        }
    }
    warned_of(&all[0], id_of(&odd));
    server.say(&[b"HSET", counter.as_bytes(), day.as_bytes(), b"1"]);
    assert_eq!(status(&all[0], &odd), 200);
}

#[test]
fn verify_names_every_entry_of_the_wrong_type() {
    let Some(server) = Server::start() else { return };
    let h = server.gateway("");
    let key = key_of(std::slice::from_ref(&h), &["--plan", "requests"]);
    assert_eq!(status(&h, &key), 200);
    wait_for("the row", || (sums(&h, &key).0 == 1).then_some(()));
    let names = ["use", "cost", "live"].map(|what| format!("tollgate:{what}:{}", id_of(&key)));
    for name in names.iter().map(String::as_str).chain(["tollgate:wins", "tollgate:groups"]) {
        let kind = server.text(&["TYPE", name]);
        server.say(&[b"DEL", name.as_bytes()]);
        server.say(&[b"SET", name.as_bytes(), b"1"]);
        let done = h.command(&["ledger", "verify"]);
        assert!(
            done.code == 1 && done.out.contains(&format!("{name} is of the wrong type")),
            "{}{}",
            done.out,
            done.err
        );
        let json = h.command(&["ledger", "verify", "--json"]);
        let json: serde_json::Value = serde_json::from_str(&json.out).unwrap();
        assert_eq!((&json["agrees"], &json["wrong_type"]), (&false.into(), &serde_json::json!([name])), "{kind}");
        server.say(&[b"DEL", name.as_bytes()]);
    }
}

#[test]
fn hosts_use_the_new_value_of_a_repaired_counter() {
    let Some(server) = Server::start() else { return };
    let all = server.three();
    let key = key_of(&all, &["--plan", "requests"]);
    assert_eq!(status(&all[0], &key), 200);
    wait_for("the row", || (sums(&all[0], &key).0 == 1).then_some(()));
    let window = server.text(&["KEYS", &format!("tollgate:win:{}/window:*", id_of(&key))]);
    let window = window.lines().nth(2).unwrap().trim().to_owned();
    // A valid number that does not match the usage records.
    server.say(&[b"HSET", window.as_bytes(), b"1", b"1000"]);
    for h in &all {
        wait_for("the refusal", || (status(h, &key) == 429).then_some(()));
    }
    server.say(&[b"HSET", window.as_bytes(), b"1", b"1"]);
    for h in &all {
        wait_for("service", || (status(h, &key) == 200).then_some(()));
        let left = || h.get("/v1/quota", &key).json()["rate_limit"]["remaining"].as_u64().filter(|left| *left > 100);
        wait_for("the quota", left);
    }
}

#[test]
fn window_of_the_wrong_type_blocks_no_other_key_after_an_outage() {
    let Some(mut server) = Server::start() else { return };
    let h = server.gateway("");
    let all = std::slice::from_ref(&h);
    let (odd, other) = (key_of(all, &["--plan", "at-once"]), key_of(all, &[]));
    // Runs during the whole outage: a host that reconnects announces its reservations.
    let mut running = h.client();
    running.send(&chat_request(&odd, &streamed(chat("x\n#sim tokens=3000 pace=100"))));
    assert_eq!(running.head().unwrap().status, 200);
    let live = format!("tollgate:live:{}", id_of(&odd));
    server.say(&[b"DEL", live.as_bytes()]);
    server.say(&[b"SET", live.as_bytes(), b"not a hash"]);
    assert_eq!(status(&h, &other), 200);
    server.kill();
    wait_for("the outage", || (status(&h, &other) == 503).then_some(()));
    server.run();
    wait_for("service", || (status(&h, &other) == 200).then_some(()));
    assert_eq!(status(&h, &odd), 503);
    // The reservation is released despite the wrong type.
    drop(running);
    warned_of(&h, &live);
    for _ in 0..5 {
        assert_eq!(status(&h, &other), 200);
    }
}

#[test]
fn eviction_policy_of_the_server_is_warned_of() {
    let policy = ["--appendonly", "yes", "--maxmemory-policy", "allkeys-lru"];
    let Some(server) = Server::with(&policy) else { return };
    let h = server.gateway("");
    warned_of(&h, "maxmemory-policy allkeys-lru");
    let Some(server) = Server::start() else { return };
    let h = server.gateway("");
    assert_eq!(status(&h, &key_of(std::slice::from_ref(&h), &[])), 200);
    assert_eq!(warnings(&h), Vec::<String>::new());
}

/// Managed servers have no CONFIG, and careful operators do not permit it.
#[test]
fn settings_of_a_server_without_config_are_warned_of() {
    let users = ["--user", "careful", "on", ">word", "~*", "&*", "+@all", "-config"];
    let more = ["--user", "silent", "on", ">word", "~*", "&*", "+@all", "-config", "-info"];
    let policy = ["--appendonly", "no", "--maxmemory-policy", "allkeys-lru"];
    let Some(server) = Server::with(&[&policy[..], &users, &more].concat()) else { return };
    let h = url_gateway(&server.url().replace("redis://", "redis://careful:word@"), "");
    warned_of(&h, "appendonly no");
    warned_of(&h, "maxmemory-policy allkeys-lru");
    let h = url_gateway(&server.url().replace("redis://", "redis://silent:word@"), "");
    warned_of(&h, "permits neither CONFIG nor INFO");
}

#[test]
fn gateway_paused_during_a_read_retries_it() {
    let Some(server) = Server::start() else { return };
    let h = server.gateway("");
    let key = key_of(std::slice::from_ref(&h), &[]);
    for _ in 0..3 {
        // The ledger is paused, so the gateway is stopped in the middle of a read.
        server.signal("STOP");
        let mut client = h.client();
        client.send(&chat_request(&key, &chat("x\n#sim tokens=1")));
        std::thread::sleep(Duration::from_millis(200));
        h.gateway.signal("STOP");
        std::thread::sleep(Duration::from_millis(50));
        h.gateway.signal("CONT");
        std::thread::sleep(Duration::from_millis(100));
        server.signal("CONT");
        assert_eq!(client.answer().unwrap().status(), 200);
    }
    let failed = h.log().into_iter().filter(|line| line["event"] == "ledger").collect::<Vec<_>>();
    assert!(failed.is_empty(), "{failed:?}");
    assert_eq!(h.ledger(3).requests, 3);
    assert!(h.done(&["ledger", "verify"]).starts_with("ok:"));
    // A lease that was granted and never used would occupy a slot.
    let requests = h.get("/v1/quota", &key).json();
    assert_eq!(h.count("requests"), 3, "{requests}");
}

#[test]
fn gateway_paused_while_it_polls_the_ledger_continues() {
    let Some(server) = Server::start() else { return };
    let h = server.gateway("");
    let key = key_of(std::slice::from_ref(&h), &[]);
    // The gateway waits for its clock, the version of the keys or its lease, depending on when it is stopped.
    for millis in [0, 30, 60] {
        server.signal("STOP");
        std::thread::sleep(bounds::KEYS_LOOK + Duration::from_millis(millis));
        for _ in 0..2 {
            h.gateway.signal("STOP");
            std::thread::sleep(Duration::from_millis(20));
            h.gateway.signal("CONT");
            std::thread::sleep(Duration::from_millis(20));
        }
        server.signal("CONT");
        assert_eq!(status(&h, &key), 200);
    }
    let failed = h.log().into_iter().filter(|line| line["event"] == "ledger").collect::<Vec<_>>();
    assert!(failed.is_empty(), "{failed:?}");
}
