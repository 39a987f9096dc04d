//! Users of requests in the ledger, the log and the reports, by the real binary.

use super::client::Answer;
use super::harness::{Harness, Setup, chat, message, with};
use super::process::wait_for;
use serde_json::{Value, json};
use std::fs;

const PLANS: &str = "[[plans]]\nname = \"all\"\n";

fn start(attribution: &'static str) -> Harness {
    Harness::start(&Setup {
        server: attribution,
        more: format!("{PLANS}[[groups]]\nname = \"labs\"\n"),
        ..Setup::default()
    })
}

/// Sends one request with these header lines and returns the answer.
pub fn ask(h: &Harness, key: &str, route: &str, headers: &str, body: &Value) -> Answer {
    let body = body.to_string();
    let head = format!(
        "POST {route} HTTP/1.1\r\nhost: h\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n{headers}\r\n",
        body.len()
    );
    let mut client = h.client();
    client.send(&[head.as_bytes(), body.as_bytes()].concat());
    let answer = client.answer().unwrap();
    assert_eq!(answer.status(), 200, "{}", String::from_utf8_lossy(&answer.body));
    answer
}

pub fn of_user(name: &str) -> Value {
    with(chat("x\n#sim tokens=1"), "user", name)
}

pub fn report(h: &Harness, args: &[&str]) -> Vec<Value> {
    let all = [&["usage", "--json"], args].concat();
    serde_json::from_str(&h.done(&all)).unwrap()
}

/// Returns the name and the number of requests of each line of a report.
pub fn named(lines: &[Value]) -> Vec<(String, u64)> {
    let mut named: Vec<(String, u64)> = lines
        .iter()
        .map(|line| (line["name"].as_str().unwrap().to_owned(), line["requests"].as_u64().unwrap()))
        .collect();
    named.sort();
    named
}

fn entries(h: &Harness) -> Vec<Value> {
    h.done(&["ledger", "export"]).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Returns true if any output of the gateway contains these words.
fn is_written_anywhere(h: &Harness, words: &str) -> bool {
    let has = |bytes: &[u8]| bytes.windows(words.len()).any(|window| window == words.as_bytes());
    let files = fs::read_dir(h.folder.path()).unwrap().filter_map(|entry| fs::read(entry.unwrap().path()).ok());
    let metrics = super::client::get(h.admin, "/metrics").unwrap().body;
    files.collect::<Vec<_>>().iter().any(|bytes| has(bytes)) || has(&metrics)
}

#[test]
fn users_and_sessions_are_stored_only_as_stable_hashes() {
    let mut h = start("");
    let key = h.key();
    let (alice, session) = ("alice-of-the-example", "session-of-the-example");
    let headers = format!("user-agent: OpenAI/Python 2.8.1\r\nx-session-id: {session}\r\n");
    ask(&h, &key, "/v1/chat/completions", &headers, &of_user(alice));
    h.ledger(1);
    h.gateway.stop("TERM");
    h.start_again();
    ask(&h, &key, "/v1/chat/completions", &headers, &of_user(alice));
    ask(&h, &key, "/v1/chat/completions", "", &chat("x\n#sim tokens=1"));
    h.ledger(3);
    let entries = entries(&h);
    let hash = entries[0]["user"].as_str().unwrap().to_owned();
    assert!(hash.len() == 16 && hash.bytes().all(|digit| digit.is_ascii_hexdigit()), "{hash}");
    assert_eq!((&entries[1]["user"], &entries[1]["session"]), (&entries[0]["user"], &entries[0]["session"]));
    assert_eq!((&entries[0]["client"], &entries[2]["user"]), (&json!("openai-python"), &Value::Null));
    let log = h.log();
    let logged = log.iter().find(|line| line["user"] == hash.as_str()).expect("the log must contain the hash too");
    assert_eq!((&logged["session"], &logged["client"]), (&entries[0]["session"], &json!("openai-python")));
    assert_eq!(named(&report(&h, &["--by", "user"])), [(String::new(), 1), (hash.clone(), 2)]);
    // Both the name that the client sent and its hash are accepted.
    for user in [alice, &hash] {
        let lines = report(&h, &["--by", "day", "--user", user]);
        assert_eq!((lines.len(), &lines[0]["requests"]), (1, &json!(2)), "{user}");
    }
    assert_eq!(report(&h, &["--by", "user", "--user", "bob"]), Vec::<Value>::new());
    let session_hash = entries[0]["session"].as_str().unwrap();
    for (name, count) in [(session, 1), (session_hash, 1), ("session-of-another", 0)] {
        for by in [&["--session", name][..], &["--by", "day", "--session", name]] {
            let lines = report(&h, by);
            assert!(lines.len() == count && lines.iter().all(|line| line["requests"] == 2), "{by:?}: {lines:?}");
        }
    }
    let found = report(&h, &["--by", "session"]);
    let of_session = found.iter().find(|line| line["name"] == session_hash).unwrap();
    let of = |name: &str| of_session[name].as_str().unwrap();
    assert_eq!((of("key"), of("client")), (entries[0]["key"].as_str().unwrap(), "openai-python"));
    let (first, last) = (of("first_use"), of("last_use"));
    assert!(first <= last && entries[0]["admitted"].as_str().unwrap().starts_with(&first[..19]), "{of_session}");
    assert!(entries[1]["admitted"].as_str().unwrap().starts_with(&last[..19]), "{of_session}");
    let keys: Value = serde_json::from_str(&h.done(&["keys", "list", "--json"])).unwrap();
    let last = keys[0]["last_use"].as_str().unwrap();
    assert!(last.len() == 20 && entries[2]["admitted"].as_str().unwrap().starts_with(&last[..19]), "{last}");
    assert!(h.done(&["keys", "show", &key[8..20]]).contains(last), "{last}");
    let none = found.iter().find(|line| line["name"] == "").unwrap();
    assert_eq!((&none["key"], &none["first_use"]), (&Value::Null, &Value::Null));
    let cold = report(&h, &["--by", "session", "--cache"]);
    let of = |name: &str| cold[0][name].clone();
    assert_eq!((cold.len(), of("name"), of("requests")), (1, entries[0]["session"].clone(), json!(2)));
    assert_eq!((of("changed_tokens"), of("cold_cost_nano_usd")), (json!(0), json!(0)));
    assert!(h.done(&["usage", "--by", "session", "--cache"]).starts_with("SESSION"));
    for words in [alice, session] {
        assert!(!is_written_anywhere(&h, words), "{words}");
    }
    let metrics = super::client::get(h.admin, "/metrics").unwrap().body;
    assert!(!String::from_utf8_lossy(&metrics).contains(&hash), "no metric may have it as a label");
    assert!(h.done(&["ledger", "verify"]).starts_with("ok:"));
}

#[test]
fn recording_of_users_changes_with_a_reload() {
    let h = start("attribution = \"plain\"");
    let (key, agent) = (h.key(), "user-agent: curl/8.14.1\r\n");
    ask(&h, &key, "/v1/chat/completions", agent, &of_user("alice"));
    h.ledger(1);
    let path = h.folder.path().join("tollgate.toml");
    let config = fs::read_to_string(&path).unwrap();
    fs::write(&path, config.replace("attribution = \"plain\"", "attribution = \"off\"")).unwrap();
    h.gateway.signal("HUP");
    wait_for("the reload", || h.log().iter().any(|line| line["event"] == "reload").then_some(()));
    ask(&h, &key, "/v1/chat/completions", agent, &of_user("alice"));
    h.ledger(2);
    let entries = entries(&h);
    assert_eq!((&entries[0]["user"], &entries[0]["client"]), (&json!("alice"), &json!("curl")));
    assert_eq!((&entries[1]["user"], &entries[1]["client"]), (&Value::Null, &json!("")));
    assert_eq!(named(&report(&h, &["--by", "user"])), [(String::new(), 1), ("alice".to_owned(), 1)]);
}

#[test]
fn hostile_user_names_are_bounded_and_break_nothing() {
    let h = start("attribution = \"plain\"");
    let key = h.key();
    let long = "x".repeat(1 << 20);
    let nested = format!("{}{}", "{\"session_id\":".repeat(50_000), "}".repeat(50_000));
    let names =
        ["", "\u{0}\u{7}\r\n", "a\u{202e}b\u{1}", "other", "', ); DROP TABLE rows; --", "{\"session_id\":[[", &long];
    for name in names {
        ask(&h, &key, "/v1/chat/completions", "", &of_user(name));
    }
    let metadata = |id: &str| with(message("x\n#sim tokens=1"), "metadata", json!({ "user_id": id }));
    for name in ["user_a_account_b_session_c", &nested, &long, "user__account__session_"] {
        ask(&h, &key, "/v1/messages", "", &metadata(name));
    }
    h.ledger(names.len() as u64 + 4);
    let entries = entries(&h);
    let user = |place: usize| entries[place]["user"].as_str().unwrap_or("(none)");
    assert_eq!([user(0), user(1), user(2), user(3)], ["(none)", "(none)", "ab", "other"]);
    assert_eq!((user(6), user(7)), (&long[..64], "b"));
    assert!(entries.iter().all(|entry| entry["user"].as_str().is_none_or(|user| user.chars().count() <= 64)));
    assert_eq!(report(&h, &["--by", "user"]).iter().map(|line| line["requests"].as_u64().unwrap()).sum::<u64>(), 11);
    let csv = h.done(&["usage", "--by", "user", "--csv"]);
    assert!(csv.starts_with("user,requests,") && csv.contains("\r\n\"'', ); DROP"), "{csv}");
    assert!(h.done(&["ledger", "verify"]).starts_with("ok:"));
}

#[test]
fn usage_groups_by_all_recorded_columns_and_rejects_others() {
    let h = start("");
    let search = h.issue(&["--label", "team=search", "--group", "labs"]);
    let other = h.issue(&["--label", "team=ads"]);
    h.done(&["keys", "set", &search[8..20], "--name", "ann"]);
    ask(&h, &search, "/v1/chat/completions", "user-agent: curl/8\r\n", &of_user("u"));
    ask(&h, &search, "/v1/messages", "user-agent: claude-cli/2.1\r\n", &message("x\n#sim tokens=1"));
    ask(&h, &other, "/v1/chat/completions", "user-agent: curl/8\r\n", &of_user("v"));
    h.ledger(3);
    let by = |what: &str| named(&report(&h, &["--by", what]));
    let line = |name: &str, requests| (name.to_owned(), requests);
    assert_eq!(by("label:team"), [line("ads", 1), line("search", 2)]);
    assert_eq!(by("endpoint"), [line("chat", 2), line("messages", 1)]);
    assert_eq!(by("client"), [line("claude-code", 1), line("curl", 2)]);
    assert_eq!(by("provider"), [line("sim-chat", 2), line("sim-messages", 1)]);
    let lines = report(&h, &["--by", "label:team,client"]);
    let pairs: Vec<_> = lines.iter().map(|line| (line["label:team"].clone(), line["client"].clone())).collect();
    assert!(pairs.len() == 3 && pairs.contains(&(json!("search"), json!("claude-code"))), "{pairs:?}");
    let only = |args: &[&str]| report(&h, args).iter().map(|line| line["requests"].as_u64().unwrap()).sum::<u64>();
    assert_eq!((only(&["--key", "ann"]), only(&["--key", &other[8..20]])), (2, 1));
    assert_eq!((only(&["--model", "large"]), only(&["--label", "team=ads"])), (1, 1));
    assert_eq!((only(&["--label", "team=none"]), only(&["--group", "elsewhere"])), (0, 0));
    assert_eq!(only(&["--key", "ann", "--label", "team=ads"]), 0, "both conditions must hold");
    for misused in [
        &["--by", "user,key"][..],
        &["--by", "session", "--model", "small"],
        &["--by", "key", "--user", "u"],
        &["--by", "session", "--user", "u"],
        &["--by", "key", "--session", "s"],
        &["--by", "session", "--cache", "--session", "s"],
        &["--by", "key,model,day"],
        &["--by", "label:Team"],
        &["--label", "team"],
        &["--csv", "--json"],
        &["--cache"],
        &["--by", "session,day", "--cache"],
    ] {
        let said = h.command(&[&["usage"], misused].concat());
        assert_eq!(said.code, 2, "{misused:?}: {}", said.err);
        assert!(!misused.contains(&"user,key") || said.err.contains("combine only with day"), "{}", said.err);
    }
    assert_eq!(only(&["--key", &other]), 1, "the whole key");
    let unknown = h.command(&["usage", "--key", "nobody"]);
    assert!(unknown.code == 1 && unknown.err.contains("nobody"), "{}", unknown.err);
}
