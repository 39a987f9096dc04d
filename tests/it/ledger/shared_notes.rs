//! Audit records of key changes, and idempotent admin requests, if several hosts share a ledger.

use super::client::{Client, post, request};
use super::harness::{CREDENTIAL, Harness, Setup, bearer};
use super::process::wait_for;
use super::shared::{Server, part};
use crate::e2e::commands::keys_are_listed_in_pages;
use serde_json::Value;
use std::collections::BTreeSet;
use std::sync::Barrier;
use std::time::Duration;
use tollgate::base::time::Unix;
use tollgate::io::clock::unix;
use tollgate::policy::keys::KeyId;
use tollgate::policy::ledger::{Ask, AskedLimits, Release, Wish};
use tollgate::policy::meter::{Amount, Lease};
use tollgate::policy::window::window;
use tollgate::store::api::Names;
use tollgate::store::follow::KeySource;
use tollgate::store::note::AuditLine;
use tollgate::store::remote::{Done, Holds, LeasePlace, Remote, RemoteCommand, RemoteServer, Speaker};
use tollgate::store::shared::SharedStore;

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

#[test]
fn record_that_cannot_be_read_shortens_no_list_of_keys() {
    let Some(server) = Server::start() else { return };
    let h = server.gateway("");
    let ids: Vec<String> = (0..40).map(|_| h.issue(&[])[8..20].to_owned()).collect();
    let mut remote = connected(&server);
    let pages = |remote: &mut Remote| {
        let (mut found, mut after) = (Vec::new(), None);
        while let Some(page) = remote.keys_page(after.as_ref(), Names::default(), (7, usize::MAX)).unwrap() {
            let Some(last) = page.last() else { break };
            after = Some(last.id);
            found.extend(page.iter().map(|key| key.id.to_string()));
        }
        found
    };
    // Each command measures the ledger's time again, so keys issued in quick succession may change places.
    let all = pages(&mut remote);
    let sorted = |ids: &[String]| ids.iter().cloned().collect::<BTreeSet<_>>();
    assert_eq!((all.len(), sorted(&all)), (ids.len(), sorted(&ids)));
    let ids = all;
    server.say(&[b"HSET", b"tollgate:keys", b"zzzzzzzzzzzz", b"{}"]);
    server.say(&[b"HSET", b"tollgate:keys", ids[9].as_bytes(), b"{\"a\":1}"]);
    let rest = [&ids[..9], &ids[10..]].concat();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut remote = connected(&server);
                (0..30).for_each(|_| assert_eq!(pages(&mut remote), rest));
            });
        }
    });
    // The key before the first one of a page may have such a record, too.
    let before = KeyId::parse(&ids[9]).unwrap();
    let page = remote.keys_page(Some(&before), Names::default(), (1, usize::MAX)).unwrap().unwrap();
    assert_eq!(page[0].id.as_str(), ids[10]);
    let unknown = KeyId::parse("zzzzzzzzzzzz").unwrap();
    assert_eq!(remote.keys_page(Some(&unknown), Names::default(), (1, usize::MAX)).unwrap(), None);
    assert_eq!(server.number(&["ZCARD", "tollgate:keys:created"]), 40);
    assert_eq!(h.done(&["keys", "list", "--json"]).matches("\"id\"").count(), 39);
}

#[test]
fn decision_about_the_clock_that_is_sent_twice_is_noted_once() {
    let Some(server) = Server::start() else { return };
    let mut remote = connected(&server);
    let line = |at: u64| AuditLine { at: Unix(at), what: "clock".to_owned(), ..AuditLine::default() };
    let version = || server.text(&["GET", "tollgate:keys:version"]);
    for at in [1, 1, 2] {
        remote.accept_clock(Unix(5), &line(at)).unwrap();
    }
    assert_eq!(
        (remote.audit(0, 9, usize::MAX).unwrap(), version()),
        (vec![line(2), line(1)], "$1\r\n2\r\n".to_owned())
    );
    remote.hold_fold(Some(Unix(7))).unwrap();
    remote.confirm_fold(Unix(6), &line(3)).unwrap();
    let moments = remote.writer_clocks().unwrap();
    assert_eq!((moments.accepted, moments.confirmed, moments.held), (Some(Unix(5)), Some(Unix(6)), None));
    // Another ledger gets no part of a decision.
    server.say(&[b"FLUSHALL"]);
    assert!(remote.accept_clock(Unix(5), &line(4)).is_err());
    assert_eq!(server.number(&["DBSIZE"]), 0);
}

#[test]
fn folding_that_fails_half_way_is_noticed_by_a_comparison() {
    let Some(server) = Server::start() else { return };
    let mut remote = connected(&server);
    let row = r#"[{"r":"00","k":"abcdefABCDEF","a":86400000,"m":"m","t":"p/m","e":"chat","u":[1,2,3,4],"n":5}]"#;
    server.say(&[b"XADD", b"tollgate:rows", b"1-1", b"rows", row.as_bytes()]);
    server.say(&[b"XADD", b"tollgate:rows", b"2-1", b"rows", b"no list"]);
    assert!(remote.fold(Unix(1000), 10).is_err());
    assert_eq!(
        (server.number(&["XLEN", "tollgate:rows"]), server.text(&["GET", "tollgate:folds"])),
        (1, "$1\r\n1\r\n".to_owned())
    );
}

#[test]
fn reservation_that_a_full_server_cannot_end_is_ended_later() {
    let Some(server) = Server::start() else { return };
    let mut remote = connected(&server);
    let speaker = Speaker { host: "host".to_owned(), writer: "writer".to_owned() };
    remote.announce(&speaker, "", &Holds::new()).unwrap();
    let (now, key) = (unix(), KeyId::parse("0123456789ab").unwrap());
    let bounds = |length| window(now, Duration::from_secs(length));
    let parts = [part("/period", bounds(86_400)), part("/window", bounds(60))];
    let windows = parts.clone().map(|part| format!("tollgate:{}", LeasePlace::of(&key, &part).hash()));
    let lease = Lease { reserved: Amount { tokens: 500, nano: 7 }, parts: parts.into(), ..Lease::default() };
    let limits = AskedLimits { parts: vec![[0; 3], [3, 0, 0]], running: vec![0], strict: None };
    let ask =
        Ask { number: (0, 0), key, lease: lease.clone(), limits, admits: true, wish: Wish::default(), promise: None };
    remote.send(&speaker, &[RemoteCommand::Ask(&ask)]).unwrap();
    let [period, window] = &windows;
    let fields = || {
        [period, window, "tollgate:live:0123456789ab"].iter().map(|hash| server.number(&["HLEN", hash])).sum::<u64>()
    };
    assert_eq!(fields(), 7);
    let release = [Release { key, lease, unsent: true }];
    server.say(&[b"CONFIG", b"SET", b"maxmemory", b"1"]);
    let refused = remote.send(&speaker, &[RemoteCommand::Release(&release)]).unwrap_err();
    assert!(refused.to_string().contains("OOM"), "{refused}");
    assert_eq!((fields(), remote.take_odd()), (7, vec![]));
    server.say(&[b"CONFIG", b"SET", b"maxmemory", b"0"]);
    assert_eq!(remote.send(&speaker, &[RemoteCommand::Release(&release)]).unwrap(), [Done::Done]);
    assert_eq!(fields(), 0);
    // A counter of the wrong type is still skipped.
    remote.send(&speaker, &[RemoteCommand::Ask(&ask)]).unwrap();
    server.say(&[b"DEL", b"tollgate:live:0123456789ab"]);
    server.say(&[b"SET", b"tollgate:live:0123456789ab", b"x"]);
    assert_eq!(remote.send(&speaker, &[RemoteCommand::Release(&release)]).unwrap(), [Done::Done]);
    assert_eq!(remote.take_odd().len(), 1);
}

fn connected(server: &Server) -> Remote {
    let mut remote = Remote { server: RemoteServer::new(&server.address(), None, "the server".to_owned()).unwrap() };
    remote.server.connect().unwrap();
    remote
}
