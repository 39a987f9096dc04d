//! Audit records of key changes, and idempotent admin requests, if several hosts share a ledger.

use super::client::{Client, post, request};
use super::harness::{CREDENTIAL, Harness, Setup, bearer};
use super::process::wait_for;
use super::shared::Server;
use crate::e2e::commands::keys_are_listed_in_pages;
use serde_json::Value;
use std::sync::Barrier;

const WRITE: &str = "admin_write_token = { env = \"SIM_KEY\" }\nadmin_hosts = [\"gateway.test\"]";

#[test]
fn idempotency_keys_and_the_audit_are_shared_by_all_hosts() {
    let Some(server) = Server::start() else { return };
    let host = || {
        let store = format!("url = \"{}\"", server.url());
        Harness::start(&Setup { store, server: WRITE, ..Setup::default() })
    };
    let all = [host(), host()];
    let token = bearer(CREDENTIAL.1);
    let fields = [("authorization", token.as_str()), ("idempotency-key", "deploy")];
    let issue = |at: usize, body: &str| {
        let answer = Client::connect(all[at].admin).ask(&post("/admin/v1/keys", &fields, body));
        (answer.status(), answer.json())
    };
    let (status, first) = issue(0, r#"{"name":"ci"}"#);
    assert_eq!(status, 200, "{first}");
    assert!(
        first["secret"].as_str().is_some_and(|secret| all[1].status_of(secret) == 200),
        "the key works immediately: {first}"
    );
    let (status, again) = issue(1, r#"{"name":"ci"}"#);
    assert_eq!((status, &again["id"], &again["secret"]), (200, &first["id"], &Value::Null));
    assert_eq!(issue(1, r#"{"name":"other"}"#).0, 409);
    all[1].done(&["keys", "set", "ci", "--name", "ci two"]);
    all[0].done(&["keys", "revoke", "ci two"]);
    let lines: Value = serde_json::from_str(&all[0].done(&["ledger", "audit", "--json"])).unwrap();
    let shown: Vec<(&str, &str)> = lines
        .as_array()
        .unwrap()
        .iter()
        .map(|line| (line["who"].as_str().unwrap(), line["what"].as_str().unwrap()))
        .collect();
    assert_eq!(shown, [("command", "revoke"), ("command", "edit"), ("admin_write_token", "issue")]);
    assert_eq!((&lines[1]["before"]["name"], &lines[1]["after"]["name"]), (&"ci".into(), &"ci two".into()));
    assert!(!lines.to_string().contains("digest"), "{lines}");
}

#[test]
fn idempotency_key_applies_once_in_a_race_of_two_hosts() {
    const ROUNDS: usize = 30;
    const EACH: usize = 4;
    let Some(server) = Server::start() else { return };
    let host = || {
        let store = format!("url = \"{}\"", server.url());
        Harness::start(&Setup { store, server: WRITE, ..Setup::default() })
    };
    let all = [host(), host()];
    let token = bearer(CREDENTIAL.1);
    let ask = |at: usize, path: &str, name: &str, body: &str| {
        let fields = [("authorization", token.as_str()), ("idempotency-key", name)];
        let asked = if body.is_empty() { request("DELETE", path, &fields) } else { post(path, &fields, body) };
        let answer = Client::connect(all[at].admin).ask(&asked);
        (answer.status(), answer.json())
    };
    // Sends all requests concurrently at both hosts, and returns their answers.
    let race = |path: &str, name: &str, body: &str| -> Vec<Value> {
        let start = Barrier::new(2 * EACH);
        std::thread::scope(|scope| {
            let one = |at: usize| {
                let (start, ask) = (&start, &ask);
                scope.spawn(move || {
                    start.wait();
                    ask(at % 2, path, name, body)
                })
            };
            let threads: Vec<_> = (0..2 * EACH).map(one).collect();
            let answers = threads.into_iter().map(|thread| thread.join().unwrap());
            answers
                .inspect(|(status, answer)| assert_eq!(*status, 200, "{name}: {answer}"))
                .map(|(_, answer)| answer)
                .collect()
        })
    };
    for round in 0..ROUNDS {
        let (name, body) = (format!("issue-{round}"), format!("{{\"name\":\"k{round}\"}}"));
        let issued = race("/admin/v1/keys", &name, &body);
        let rotated = race(&format!("/admin/v1/keys/k{round}/rotate"), &format!("rotate-{round}"), r#"{"grace":"0s"}"#);
        for answers in [&issued, &rotated] {
            assert!(answers.iter().all(|answer| answer["id"] == issued[0]["id"]), "round {round}: {answers:?}");
            let secrets = answers.iter().filter(|answer| !answer["secret"].is_null()).count();
            assert_eq!(secrets, 1, "round {round}: {answers:?}");
        }
        let secret = rotated.iter().find_map(|answer| answer["secret"].as_str()).unwrap();
        assert_eq!(
            [0, 1].map(|at| wait_for("the new secret", || Some(all[at].status_of(secret)).filter(|s| *s == 200))),
            [200; 2]
        );
        let revoked = race(&format!("/admin/v1/keys/k{round}"), &format!("revoke-{round}"), "");
        assert!(revoked.iter().all(|answer| *answer == revoked[0]), "round {round}: {revoked:?}");
        assert_eq!(ask(round % 2, "/admin/v1/keys", &name, "{\"name\":\"other\"}").0, 409);
    }
    let list = |args: &[&str]| serde_json::from_str::<Value>(&all[0].done(args)).unwrap();
    assert_eq!(list(&["keys", "list", "--json"]).as_array().unwrap().len(), ROUNDS);
    assert_eq!(
        list(&["ledger", "audit", "--json"]).as_array().unwrap().len(),
        3 * ROUNDS,
        "each change must be applied once"
    );
}

#[test]
fn keys_of_a_shared_ledger_are_listed_in_pages() {
    let Some(server) = Server::start() else { return };
    let store = format!("url = \"{}\"", server.url());
    keys_are_listed_in_pages(&Harness::start(&Setup { store, server: WRITE, ..Setup::default() }));
}
