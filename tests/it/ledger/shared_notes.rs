//! Who has changed which key, and what is done once, where several hosts share a ledger.

use super::client::{Client, post};
use super::harness::{CREDENTIAL, Harness, Setup, bearer};
use super::shared::Server;
use crate::e2e::commands::keys_are_listed_in_parts;
use serde_json::Value;

const WRITE: &str = "admin_write_token = { env = \"SIM_KEY\" }\nadmin_hosts = [\"gateway.test\"]";

#[test]
fn what_one_host_has_done_under_a_name_is_known_to_all_and_stands_in_one_audit() {
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
        "it works at once: {first}"
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
fn keys_of_a_shared_ledger_are_listed_in_parts() {
    let Some(server) = Server::start() else { return };
    let store = format!("url = \"{}\"", server.url());
    keys_are_listed_in_parts(&Harness::start(&Setup { store, server: WRITE, ..Setup::default() }));
}
