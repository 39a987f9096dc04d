//! Users of requests if several hosts share a ledger.

use super::harness::chat;
use super::people::{ask, named, of_user, report};
use super::process::wait_for;
use super::shared::{Server, key_of};
use std::sync::Arc;
use tollgate::policy::keys::KeyId;
use tollgate::policy::meter::Lease;
use tollgate::policy::row::{RareNames, Row};
use tollgate::store::api::{By, PEOPLE_MAX, Query, REST};
use tollgate::store::remote::{Remote, RemoteCommand, RemoteServer, Speaker};
use tollgate::store::shared::SharedStore;
use tollgate::store::watch::WatchedLedger;

#[test]
fn hosts_that_share_a_ledger_hash_users_alike() {
    let Some(server) = Server::start() else { return };
    let all = [server.gateway(""), server.gateway("")];
    let key = key_of(&all, &[]);
    for h in &all {
        ask(h, &key, "/v1/chat/completions", "x-session-id: s\r\nuser-agent: curl/8\r\n", &of_user("alice"));
    }
    ask(&all[0], &key, "/v1/chat/completions", "", &chat("x\n#sim tokens=1"));
    let lines = wait_for("three rows", || Some(report(&all[1], &["--by", "user"])).filter(|lines| lines.len() == 2));
    let named = named(&lines);
    assert_eq!((named[0].1, named[1].1), (1, 2), "{named:?}");
    assert_eq!(report(&all[0], &["--by", "day", "--user", "alice"])[0]["requests"], 2);
    assert_eq!(report(&all[0], &["--by", "client"]).len(), 2);
    assert_eq!(report(&all[0], &["--by", "session,day"]).len(), 2);
    assert!(all[0].done(&["ledger", "verify"]).starts_with("ok:"));
}

#[test]
fn record_of_a_shared_ledger_keeps_its_trace() {
    let Some(server) = Server::start() else { return };
    let all = [server.gateway("")];
    let key = key_of(&all, &[]);
    let trace = "0af7651916cd43dd8448eb211c80319c";
    let parent = format!("traceparent: 00-{trace}-b7ad6b7169203331-01\r\n");
    ask(&all[0], &key, "/v1/chat/completions", &parent, &chat("x\n#sim tokens=1"));
    let exported = wait_for("the row", || {
        Some(all[0].done(&["ledger", "export"])).filter(|text| text.contains("\"entry\":\"request\""))
    });
    assert!(exported.contains(&format!("\"trace_id\":\"{trace}\",\"span_id\":\"")), "{exported}");
    assert!(all[0].done(&["ledger", "verify"]).starts_with("ok:"));
}

pub fn row(user: Option<&str>, out: u64) -> Row {
    of(user, None, out)
}

fn of(user: Option<&str>, agent: Option<&str>, out: u64) -> Row {
    let text = format!(
        r#"{{"r":"{:032x}","k":"abcdefABCDEF","a":86400123,"m":"m","t":"p/m","e":"chat","s":true,"c":200,
        "u":[1,0,0,{out}],"f":"provider","n":{out},"x":1,"d":7}}"#,
        out
    );
    // Marked as lent by this ledger, so that it does not count again in a window.
    let lease = Some(Box::new(Lease { shared: true, ..Lease::default() }));
    let names = RareNames {
        user: user.map(Arc::from),
        agent: agent.map(Arc::from),
        parent_agent: agent.map(|_| "p".into()),
        ..RareNames::default()
    };
    Row { names: names.into(), lease, ..serde_json::from_str(&text).unwrap() }
}

/// Stores the key of [`row`].
fn known_key(server: &Server) -> KeyId {
    let id = KeyId::parse("abcdefABCDEF").unwrap();
    let key = format!(
        "{{\"id\":\"{id}\",\"digest\":\"{}\",\"name\":\"n\",\"plan\":\"p\",\"endpoints\":\"chat\",\"models\":null,\"created\":1,\"expires\":null,\"revoked\":null,\"former\":[]}}",
        "0".repeat(64)
    );
    server.say(&[b"HSET", b"tollgate:keys", id.as_str().as_bytes(), key.as_bytes()]);
    id
}

#[test]
fn a_shared_ledger_keeps_the_largest_users_of_a_day_and_sums_up_the_others() {
    let Some(server) = Server::start() else { return };
    let mut remote = Remote { server: RemoteServer::new(&server.address(), None, "r".to_owned()).unwrap() };
    known_key(&server);
    let speaker = Speaker { host: "h".to_owned(), writer: "w".to_owned() };
    let names: Vec<String> = (0..6200).map(|n| format!("u{n:05}")).collect();
    let rows: Vec<Row> = names.iter().zip(1..).map(|(name, out)| row(Some(name), out)).collect();
    for (batch, number) in rows.chunks(128).zip(1..) {
        remote.send(&speaker, &[RemoteCommand::Rows(number, batch, &[])]).unwrap();
    }
    let lines = remote.usage(&Query::by(By::User), None).unwrap();
    assert_eq!(
        (lines.len(), &*lines[1].name),
        (PEOPLE_MAX + 1, "u06199"),
        "the largest users follow the sum of the others"
    );
    assert_eq!((&*lines[0].name, lines[0].requests), (REST, 6200 - PEOPLE_MAX as u64));
    assert_eq!(lines.iter().map(|line| line.out).sum::<u64>(), (1..=6200).sum::<u64>());
    let verdict = remote.verify().unwrap();
    assert!(verdict.differences.is_empty() && verdict.rows == 6200, "{:?}", verdict.differences);
}

#[test]
fn a_shared_ledger_sums_up_agents() {
    let Some(server) = Server::start() else { return };
    let mut remote = Remote { server: RemoteServer::new(&server.address(), None, "r".to_owned()).unwrap() };
    known_key(&server);
    let speaker = Speaker { host: "h".to_owned(), writer: "w".to_owned() };
    let of = |agent, out| of(Some("ann"), agent, out);
    let rows = [of(Some("a1"), 1), of(Some("a1"), 2), of(Some("a2"), 4), of(None, 8)];
    remote.send(&speaker, &[RemoteCommand::Rows(1, &rows, &[])]).unwrap();
    let lines = remote.usage(&Query::by(By::Agent), None).unwrap();
    let mut lines: Vec<_> = lines.iter().map(|line| (&*line.name, line.requests, line.out)).collect();
    lines.sort();
    assert_eq!(lines, [("", 1, 8), ("a1", 2, 3), ("a2", 1, 4)]);
    assert_eq!(remote.verify().unwrap().differences, []);
}

#[test]
fn ledger_of_another_format_is_refused_and_not_changed() {
    let Some(server) = Server::start() else { return };
    let open = || RemoteServer::new(&server.address(), None, "r".to_owned()).unwrap();
    let mut remote = Remote { server: open() };
    let id = known_key(&server);
    assert_eq!(remote.find_keys(&[id]).unwrap().len(), 1);
    for format in [b"2" as &[u8], b"99", b""] {
        server.say(&[b"SET", b"tollgate:format", format]);
        let error = Remote { server: open() }.find_keys(&[id]).unwrap_err().to_string();
        assert!(error.contains("this ledger was written by another version of Tollgate"), "{error}");
        let mut adopting = open();
        assert!(adopting.adopt().is_err(), "not even if an operator adopts it");
    }
    server.say(&[b"SET", b"tollgate:format", b"1"]);
    assert_eq!(Remote { server: open() }.find_keys(&[id]).unwrap().len(), 1);
}
