//! The admin API on the running binary: it returns what the commands print, and each side sees the changes of the
//! other.

use super::client::{Answer, Client, post, request};
use super::harness::{CREDENTIAL, Harness, Setup, bearer, chat, with};
use super::process::{Process, free_port, run, wait_for};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::thread;
use tollgate::io::clock::unix;
use tollgate::policy::window::iso;

/// The write token comes from the environment variable that all tests set.
const WRITE: &str =
    "admin_write_token = { env = \"SIM_KEY\" }\nadmin_hosts = [\"gateway.test\"]\nrecord_requests = true";

fn start() -> Harness {
    Harness::start(&Setup { server: WRITE, ..Setup::default() })
}

/// Sends a request to the admin API with the write token.
fn ask(h: &Harness, method: &str, path: &str, more: &[(&str, &str)], body: &str) -> Answer {
    let token = bearer(CREDENTIAL.1);
    let fields: Vec<(&str, &str)> = more.iter().copied().chain([("authorization", token.as_str())]).collect();
    let path = format!("/admin/v1/{path}");
    let asked = match body {
        "" => request(method, &path, &fields),
        body => {
            let text = String::from_utf8(post(&path, &fields, body)).unwrap();
            text.replacen("POST", method, 1).into_bytes()
        }
    };
    Client::connect(h.admin).ask(&asked)
}

fn told(h: &Harness, path: &str) -> Value {
    let answer = ask(h, "GET", path, &[], "");
    assert_eq!(answer.status(), 200, "{path}: {}", answer.text());
    answer.json()
}

fn printed(h: &Harness, args: &[&str]) -> Value {
    serde_json::from_str(&h.done(args)).unwrap()
}

/// The admin API reads the ledger in the gateway's own process. There, closing a descriptor of the file drops the
/// gateway's locks (POSIX record locks), and the next program that closes the ledger, for example `sqlite3`, would
/// delete its log.
#[test]
fn no_admin_request_drops_the_gateways_lock_on_the_ledger() {
    let h = start();
    let key = h.key();
    let id = &key[8..20];
    let asked = [
        ("GET", "keys".to_string(), ""),
        ("GET", format!("keys/{id}"), ""),
        ("GET", "plans".to_string(), ""),
        ("GET", "models".to_string(), ""),
        ("GET", "groups".to_string(), ""),
        ("GET", "status".to_string(), ""),
        ("GET", "targets".to_string(), ""),
        ("GET", "requests".to_string(), ""),
        ("GET", "usage?by=key".to_string(), ""),
        ("GET", "audit".to_string(), ""),
        ("POST", "keys".to_string(), r#"{"name":"other"}"#),
        ("PATCH", format!("keys/{id}"), r#"{"labels":{"team":"a"}}"#),
        ("POST", format!("keys/{id}/rotate"), r#"{"grace":"1h"}"#),
    ];
    for (method, path, body) in asked {
        let answer = ask(&h, method, &path, &[], body);
        assert_eq!(answer.status(), 200, "{method} {path}: {}", answer.text());
        // Another program can lock the file exclusively only if the gateway's own lock is gone.
        let file = fs::File::options().read(true).write(true).open(h.folder.path().join("tollgate.db")).unwrap();
        let locked = rustix::fs::fcntl_lock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive);
        assert!(locked.is_err(), "{method} {path}: the gateway no longer locks its ledger");
    }
    assert_eq!(h.chat(&key, &chat("x\n#sim tokens=5")).status(), 200);
}

#[test]
fn admin_api_returns_what_the_commands_print() {
    let h = start();
    let key = h.key();
    for _ in 0..3 {
        assert_eq!(h.chat(&key, &chat("x\n#sim tokens=5")).status(), 200);
    }
    h.ledger(3);
    assert_eq!(told(&h, "keys")["data"], printed(&h, &["keys", "list", "--json"]));
    assert_eq!(told(&h, &format!("keys/{}", &key[8..20])), printed(&h, &["keys", "show", &key[8..20], "--json"]));
    assert_eq!(told(&h, "models")["data"], printed(&h, &["models", "--json"]));
    for by in ["key", "model", "day", "client", "group,model"] {
        let report = told(&h, &format!("usage?by={}", by.replace(',', "%2C")));
        assert_eq!(report["data"], printed(&h, &["usage", "--by", by, "--json"]), "{by}");
    }
    let quota: Value = serde_json::from_str(h.get("/v1/quota", &key).text()).unwrap();
    let limits = told(&h, &format!("limits?key={}", &key[8..20]));
    assert!(quota["limits"].as_array().is_some_and(|limits| !limits.is_empty()), "{quota}");
    assert_eq!(limits["data"], quota["limits"]);
    let outcomes = told(&h, "outcomes");
    let one = &outcomes["data"][0];
    assert_eq!((&one["requests"], &one["failed"]), (&3.into(), &0.into()), "{outcomes}");
    assert!(one["median_ms"].is_u64() && one["target"] == "sim-chat/up-small", "{outcomes}");
    let plans = told(&h, "plans");
    assert!(plans["data"].as_array().is_some_and(|plans| plans.iter().all(|plan| plan["name"].is_string())), "{plans}");
    for (path, status) in [
        ("usage?by=week", 400),
        ("usage?since=2026-12-01&until=2026-11-01", 400),
        ("usage?colour=red", 400),
        ("keys?limit=0", 400),
        ("keys/nobody", 404),
        ("nothing", 404),
        ("requests?limit=1001", 400),
        ("requests?after=x", 400),
    ] {
        let answer = ask(&h, "GET", path, &[], "");
        assert_eq!((answer.status(), answer.json()["error"]["code"].as_u64()), (status, Some(status.into())), "{path}");
    }
    assert_eq!(ask(&h, "POST", "usage", &[], "{}").status(), 405);
    assert_eq!(ask(&h, "DELETE", "requests", &[], "").status(), 405);
}

#[test]
fn budgets_and_their_forecasts_are_the_same_everywhere() {
    let groups =
        "[[groups]]\nname = \"labs\"\nbudget = 5.0\n[[groups]]\nname = \"eval\"\nparent = \"labs\"\ntokens = 100\n";
    let mut h = Harness::start(&Setup { server: WRITE, more: groups.to_string(), ..Setup::default() });
    let key = h.key();
    let id = &key[8..20];
    h.done(&["keys", "set", id, "--group", "eval", "--budget", "1000", "--tokens", "0"]);
    h.gateway.stop("TERM");
    let db = rusqlite::Connection::open(h.folder.path().join("tollgate.db")).unwrap();
    let today = unix().0 / 86_400_000;
    for ago in [1, 3] {
        let sums = "'small', 'sim/small', 'labs/eval', 'chat', 'other', 1, 1, 1, 1, 1, 1000000000";
        db.execute(&format!("INSERT INTO days SELECT {}, '{id}', {sums}", today - ago), []).unwrap();
    }
    drop(db);
    h.start_again();
    // The forecast of use at the end depends on the present moment.
    let lasting = |list: &Value| -> Vec<Value> {
        let mut list = list.as_array().unwrap().clone();
        list.iter_mut().for_each(|one| assert!(one.as_object_mut().unwrap().remove("at_renewal").is_some()));
        list
    };
    let all = &lasting(&told(&h, "budgets")["data"]);
    assert_eq!(*all, lasting(&printed(&h, &["usage", "--budgets", "--json"])));
    let names: BTreeSet<&str> = all.iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!((names, all.len()), (["eval", "labs", "test"].into(), 3), "a group includes those below it: {all:?}");
    assert!(all.iter().all(|one| one["pace"] == "3 days"), "{all:?}");
    let own: Vec<&Value> = all.iter().filter(|one| one["what"] == "key").collect();
    for shown in [printed(&h, &["keys", "show", id, "--json"]), told(&h, &format!("keys/{id}"))] {
        assert_eq!((json!(lasting(&shown["budgets"])), &shown["renews"]), (json!(own), &own[0]["renews"]));
    }
    let text = h.done(&["keys", "show", id]);
    let forecast = format!("budget: {}, $", own[0]["forecast"].as_str().unwrap());
    assert!(text.contains(&forecast) && text.contains("(pace: 3 days)"), "{text}");
    let table = h.done(&["usage", "--budgets"]);
    assert!(table.contains("group labs") && table.contains("key test") && table.contains("3 days"), "{table}");
    assert_eq!(h.command(&["usage", "--budgets", "--by", "key"]).code, 2);
    // Entries of limits and temporary allowances are budgets like the others.
    let sent = r##"{"limits":["budget=4/5h:small","budget=9/week:other"],"extra":[{"budget":6,"per":"5h","models":["small"],"for":"1h"}]}"##;
    let answer = ask(&h, "PATCH", &format!("keys/{id}"), &[], sent);
    assert_eq!(answer.status(), 200, "{}", answer.json());
    assert_eq!(h.chat(&key, &chat("#sim tokens=10")).status(), 200);
    let entries = |list: &Value| -> Vec<(String, Value, Value, bool)> {
        let own = list.as_array().unwrap().iter().filter(|one| one["what"] == "key");
        let mut own: Vec<_> = own
            .map(|one| {
                let is_used = one["used"].as_f64().unwrap() > 0.0 && one["share"].as_f64().unwrap() > 0.0;
                (one["per"].as_str().unwrap().to_string(), one["models"].clone(), one["limit"].clone(), is_used)
            })
            .collect();
        own.sort_by(|one, other| one.0.cmp(&other.0));
        own
    };
    let wanted = [
        ("5h".to_string(), json!(["small"]), json!(10.0), true),
        ("month".to_string(), Value::Null, json!(1000.0), true),
        ("week".to_string(), json!(["other"]), json!(9.0), false),
    ];
    wait_for("the use to be counted", || (entries(&told(&h, "budgets")["data"]) == wanted).then_some(()));
    for list in [
        printed(&h, &["usage", "--budgets", "--json"]),
        printed(&h, &["keys", "show", id, "--json"])["budgets"].clone(),
        told(&h, &format!("keys/{id}"))["budgets"].clone(),
        printed(&h, &["keys", "list", "--json"])[0]["budgets"].clone(),
        told(&h, "keys")["data"][0]["budgets"].clone(),
    ] {
        assert_eq!(entries(&list), wanted);
    }
    let text = h.done(&["keys", "show", id]);
    assert!(
        text.contains(" / $10.0000 per 5h:small") && text.contains("budget for 5 hours and models small: "),
        "{text}"
    );
    assert!(h.done(&["keys", "list", "--wide"]).contains(" / $9.0000 per week:other"));
    let first = told(&h, "budgets?limit=1");
    assert_eq!((first["data"].as_array().unwrap().len(), &first["next"]), (1, &"1".into()));
}

#[test]
fn get_with_a_body_is_answered_on_a_kept_connection() {
    let h = start();
    let id = &h.key()[8..20];
    let token = bearer(CREDENTIAL.1);
    for path in ["status", "keys", &*format!("keys/{id}"), "usage", "requests", "nothing"] {
        let asked = post(&format!("/admin/v1/{path}"), &[("authorization", &token)], "{\"name\": \"x\"}");
        let asked = String::from_utf8(asked).unwrap().replacen("POST", "GET", 1).into_bytes();
        let mut client = Client::connect(h.admin);
        for turn in 0..2 {
            let answer = client.ask(&asked);
            assert_eq!(answer.status(), if path == "nothing" { 404 } else { 200 }, "{path}, {turn}: {}", answer.text());
        }
    }
    assert_eq!(told(&h, "keys")["data"].as_array().unwrap().len(), 1, "no key was issued");
}

#[test]
fn a_refused_request_leaves_its_idempotency_key_free() {
    let h = start();
    let once = [("idempotency-key", "first-try")];
    for wrong in ["{\"name\": 7}", "{\"name\": \"x\", \"plan\": \"nowhere\"}", "{"] {
        assert_eq!(ask(&h, "POST", "keys", &once, wrong).status(), 400, "{wrong}");
    }
    let made = ask(&h, "POST", "keys", &once, "{\"name\": \"x\"}");
    assert!(made.status() == 200 && made.json()["secret"].is_string(), "{}", made.text());
    let again = ask(&h, "POST", "keys", &once, "{\"name\": \"x\"}");
    assert_eq!((again.status(), &again.json()["id"], &again.json()["secret"]), (200, &made.json()["id"], &Value::Null));
    assert_eq!(
        ask(&h, "POST", "keys", &once, "{\"name\": 7}").status(),
        409,
        "another request with the same idempotency key"
    );
    assert_eq!(told(&h, "keys")["data"].as_array().unwrap().len(), 1);
}

#[test]
fn last_requests_equal_the_lines_of_the_log() {
    let h = start();
    let key = h.key();
    let answers: Vec<Answer> = (0..5).map(|_| h.chat(&key, &chat("x\n#sim tokens=5"))).collect();
    let wrong = h.chat(&key, &with(chat("x"), "model", "no-such"));
    let last = told(&h, "requests?limit=4");
    let ids: Vec<&str> = last["data"].as_array().unwrap().iter().filter_map(|one| one["id"].as_str()).collect();
    let sent: Vec<String> = [&wrong, &answers[4], &answers[3], &answers[2]].map(Answer::id).to_vec();
    assert_eq!(ids, sent, "the newest request comes first");
    let mut recorded = last["data"][1].clone();
    assert!(recorded.as_object_mut().unwrap().remove("cost_usd").unwrap().is_number());
    assert_eq!(recorded, h.log_of(&answers[4].id()));
    assert_eq!(last["data"][0]["reason"], "no model no-such");
    let found = told(&h, &format!("requests?id={}", answers[4].id()));
    assert_eq!((found["data"].as_array().unwrap().len(), &found["data"][0]["id"]), (1, &last["data"][1]["id"]));
    let next = last["next"].as_str().expect("a cursor to more requests");
    let more = told(&h, &format!("requests?limit=1000&after={next}"));
    assert_eq!(more["data"][0]["id"], answers[1].id());
    assert_eq!(more["next"], Value::Null);
    let out = h.done(&["requests", "--failed"]);
    assert!(out.lines().count() >= 2 && out.contains("404") && !out.contains(" 200 "), "{out}");
    let out = h.done(&["requests", "--key", "test", "--limit", "2", "--json"]);
    let lines: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[1]["id"], wrong.id(), "the newest request comes last");

    let status = told(&h, "status");
    let sum = |name: &str| -> u64 {
        let minutes = status["minutes"].as_array().unwrap().iter();
        minutes.filter_map(|minute| minute[name].as_u64()).sum()
    };
    assert!(sum("requests") >= 6 && sum("errors") >= 1 && sum("tokens") >= 25, "{status}");
    assert_eq!((status["ready"].as_bool(), status["configuration_epoch"].as_u64()), (Some(true), Some(0)), "{status}");
    let targets = told(&h, "targets");
    let small = targets["data"].as_array().unwrap().iter().find(|target| target["model"] == "small").unwrap().clone();
    assert_eq!((small["served"].as_u64(), small["in_flight"].as_u64()), (Some(5), Some(0)), "{small}");
    assert_eq!(small["prices"]["input_price"], 0.25, "{small}");
    assert!(small["first_byte_us"]["p95"].as_u64() >= small["first_byte_us"]["median"].as_u64(), "{small}");
}

#[test]
fn requests_command_names_the_wrong_token_or_address() {
    let h = Harness::start(&Setup { server: "admin_token = { env = \"SIM_KEY\" }", ..Setup::default() });
    let with = |env: &[(&str, &str)], args: &[&str]| run(h.folder.path(), args, env).err;
    let (admin, clients) = (h.admin.to_string(), h.at.to_string());
    let unset = with(&[], &["requests"]);
    assert_eq!(unset, format!("error: {admin} needs a token: set $SIM_KEY (server.admin_token)\n"));
    let wrong = with(&[("SIM_KEY", "another")], &["requests"]);
    assert_eq!(wrong, format!("error: {admin} refuses the token in $SIM_KEY (server.admin_token): correct it\n"));
    let address = format!("{clients} is not an admin listener (404): use the address in server.admin_listen\n");
    assert_eq!(with(&[CREDENTIAL], &["requests", "--admin", &clients]), format!("error: {address}"));
    assert_eq!(with(&[CREDENTIAL], &["ready", "--admin", &clients]), format!("error: not ready: {address}"));
}

#[test]
fn failures_are_always_recorded_and_successes_after_the_first_read() {
    let h = Harness::start(&Setup { server: WRITE.trim_end_matches("record_requests = true"), ..Setup::default() });
    let key = h.key();
    let wrong = with(chat("x"), "model", "no-such");
    assert_eq!(h.chat(&key, &chat("x\n#sim tokens=5")).status(), 200);
    (0..3).for_each(|_| assert_eq!(h.chat(&key, &wrong).status(), 404));
    let said = h.command(&["requests"]);
    assert_eq!((said.code, said.out.lines().count()), (0, 2), "{}", said.out);
    assert!(said.out.trim_end().ends_with("(x 3) no model no-such"), "{}", said.out);
    let status = told(&h, "status");
    let since = status["failures_recorded_since"].as_str().unwrap();
    assert_eq!(said.err.trim_end(), format!("Recording begins now; failures are kept since {since}."));
    let minutes = status["minutes"].as_array().unwrap().iter();
    let sums = minutes.map(|minute| ["requests", "refused", "failed"].map(|name| minute[name].as_u64().unwrap()));
    let sum = sums.fold([0; 3], |sum, one| [0, 1, 2].map(|at| sum[at] + one[at]));
    // The fifth request was for the quota of the new key.
    assert_eq!(sum, [5, 3, 0], "minutes are summed up from the start: {status}");
    let all = status["recorded_since"].as_str().unwrap();
    wait_for("the next second", || (*iso(unix()) > *all).then_some(()));
    let said = h.command(&["requests", "--status", "2xx"]);
    let failures = if since < all { format!("\nand failures (5xx) since {since}") } else { String::new() };
    let kept = format!("all since {all}{failures}.\n");
    assert_eq!(said.err, format!("No such request. Kept: {kept}"));
    let said = h.command(&["requests", "--id", "nosuchid"]);
    assert_eq!(
        (said.code, said.err.contains(&kept.replace('\n', " ").trim_end_matches(['.', ' ']).to_string())),
        (1, true),
        "{}",
        said.err
    );
    assert_eq!(h.command(&["requests"]).err, format!("Kept: 3 requests, {kept}"), "a row may stand for several");
    assert_eq!(h.chat(&key, &chat("x\n#sim tokens=5")).status(), 200);
    assert_eq!(h.done(&["requests", "--status", "2xx"]).lines().count(), 2);
}

#[test]
fn refused_requests_have_their_session_and_the_place_of_the_error() {
    let h = start();
    let key = h.key_with(&["--requests", "1"]);
    let ask = |key: &str, body: &str, name: &str| {
        let fields = [("authorization", &*bearer(key)), ("x-session-id", name)];
        h.client().ask(&post("/v1/chat/completions", &fields, body))
    };
    let body = chat("x").to_string();
    assert_eq!(ask(&key, &body, "nightly").status(), 200);
    for name in ["nightly", "nightly", "other"] {
        let answer = ask(&key, &body, name);
        assert_eq!(answer.status(), 429, "{}", answer.text());
    }
    let found = told(&h, "requests?session=nightly");
    let refused: Vec<_> = found["data"].as_array().unwrap().iter().filter(|one| one["status"] == 429).collect();
    let count: u64 = refused.iter().map(|one| one["count"].as_u64().unwrap_or(1)).sum();
    assert_eq!(count, 2, "{found}");
    let answer = ask(&h.key(), "{\"a\":", "nightly");
    assert_eq!(answer.status(), 400, "{}", answer.text());
    let all = told(&h, "requests");
    assert!(all["data"].as_array().unwrap().iter().any(|one| one["reason"] == "invalid JSON after 5 bytes"), "{all}");
}

#[test]
fn a_session_is_found_by_the_name_that_the_client_sent() {
    let h = start();
    let key = h.key();
    let ids: Vec<String> =
        ["session-0", "session 1/2"].map(|name| h.chat(&key, &with(chat("x"), "prompt_cache_key", name)).id()).to_vec();
    let found = told(&h, "requests?session=session%201/2");
    let data = found["data"].as_array().unwrap();
    assert_eq!((data.len(), data[0]["id"].as_str()), (1, Some(&*ids[1])), "{found}");
    let hash = found["session_hash"].as_str().unwrap();
    assert_eq!(data[0]["session"], hash, "the name itself is not kept");
    assert_eq!(told(&h, &format!("requests?session={hash}"))["data"], found["data"], "by its hash, too");
    for (name, id) in [("session-0", &ids[0]), ("session 1/2", &ids[1]), (hash, &ids[1])] {
        let out = h.done(&["requests", "--session", name, "--json"]);
        assert!(out.lines().count() == 1 && out.contains(id.as_str()), "{name}: {out}");
    }
    assert_eq!(told(&h, "requests?session=session-2")["data"], json!([]));
    h.ledger(2);
    let usage = told(&h, "usage?by=session&session=session%201/2");
    assert_eq!((&usage["data"][0]["name"], &usage["data"][0]["requests"]), (&hash.into(), &json!(1)), "{usage}");
    assert_eq!(usage["data"].as_array().unwrap().len(), 1);
    let said = h.command(&["requests", "--session", "session-0"]);
    assert!(
        said.err.starts_with("The whole session, from the ledger: 1 request, <$0.0001.\n")
            && said.err.contains("all since"),
        "{}",
        said.err
    );
    let out = h.done(&["requests", "--id", &ids[0]]);
    for wanted in ["id ", "session ", "tokens ", "cost  ", "ms ", "target "] {
        assert!(out.lines().any(|line| line.starts_with(wanted)), "{wanted}: {out}");
    }
}

#[test]
fn reading_targets_or_status_starts_the_recording_of_first_bytes_and_minutes() {
    for first in ["targets", "status"] {
        let h = Harness::start(&Setup { server: WRITE.trim_end_matches("record_requests = true"), ..Setup::default() });
        let key = h.key();
        let before = iso(unix());
        told(&h, first);
        let since = told(&h, "status")["recorded_since"].as_str().unwrap().to_owned();
        assert!(since >= before && since <= iso(unix()), "after {first}: {since}");
        h.chat(&key, &chat("x\n#sim tokens=5"));
        let targets = wait_for("the request to end", || {
            let targets = told(&h, "targets");
            let small = targets["data"].as_array().unwrap().iter().find(|target| target["model"] == "small").cloned();
            small.filter(|small| small["served"] == 1 && small["in_flight"] == 0)
        });
        assert!(targets["first_byte_us"]["median"].is_u64(), "after {first}: {targets}");
        let minutes = told(&h, "status")["minutes"].clone();
        let requests = minutes.as_array().unwrap().iter().filter_map(|minute| minute["requests"].as_u64());
        assert_eq!(requests.sum::<u64>(), 2, "one more request for the quota; after {first}: {minutes}");
        assert_eq!(told(&h, "status")["recorded_since"], since);
    }
}

#[test]
fn key_changes_by_the_api_are_all_in_the_audit() {
    let h = start();
    let body = json!({"name": "<b>ci</b>", "models": ["small"], "labels": {"team": "search"}, "expires": "30d",
        "limits": ["requests=5/window", "budget=1.5/period"], "strict": true});
    let issued = ask(&h, "POST", "keys", &[], &body.to_string());
    assert_eq!(issued.status(), 200, "{}", issued.text());
    let issued = issued.json();
    let (id, secret) = (issued["id"].as_str().unwrap(), issued["secret"].as_str().unwrap());
    assert_eq!(h.chat(secret, &chat("x\n#sim tokens=5")).status(), 200, "the key works immediately");
    let shown = printed(&h, &["keys", "show", id, "--json"]);
    let own = shown["limits"].as_array().unwrap().iter().filter(|limit| limit["from"] == "key");
    assert_eq!(own.map(|limit| limit["total"].clone()).collect::<Vec<_>>(), [json!(5), json!(1.5)]);
    assert_eq!(
        (shown["strict"].clone(), told(&h, &format!("keys/{id}"))["strict"].clone()),
        (json!(true), json!(true))
    );
    let patch = json!({"strict": false, "plan": issued["plan"], "disabled": true, "limits": ["requests/window=plan"], "expires": null,
        "models": ["*"], "group": null, "labels": {"team": null}});
    let changed = ask(&h, "PATCH", &format!("keys/{id}"), &[], &patch.to_string());
    assert_eq!(changed.status(), 200, "{}", changed.text());
    assert_eq!(changed.json()["strict"], false);
    assert_eq!((changed.json()["status"].as_str(), changed.json()["labels"].clone()), (Some("disabled"), json!({})));
    assert_eq!(ask(&h, "PATCH", &format!("keys/{id}"), &[], r#"{"disabled":false}"#).status(), 200);
    let rotated = ask(&h, "POST", &format!("keys/{id}/rotate"), &[], r#"{"grace":"0s"}"#).json();
    let fresh = rotated["secret"].as_str().unwrap().to_string();
    wait_for("the old secret to end", || (h.status_of(secret) == 401).then_some(()));
    wait_for("the new secret to begin", || (h.status_of(&fresh) == 200).then_some(()));
    h.done(&["keys", "set", id, "--name", "by hand"]);
    let gone = ask(&h, "DELETE", &format!("keys/{id}"), &[], "");
    assert_eq!((gone.status(), gone.json()["was_revoked_before"].as_bool()), (200, Some(false)));
    assert_eq!(ask(&h, "PATCH", &format!("keys/{id}"), &[], r#"{"name":"x"}"#).status(), 409);
    assert_eq!(ask(&h, "DELETE", "keys/AAAAAAAAAAAA", &[], "").status(), 404);
    wait_for("the key to be refused", || (h.status_of(&fresh) == 401).then_some(()));

    let audit = told(&h, "audit");
    assert_eq!(audit["data"], printed(&h, &["ledger", "audit", "--json"]));
    let lines = audit["data"].as_array().unwrap();
    let what: Vec<(&str, &str)> =
        lines.iter().map(|line| (line["who"].as_str().unwrap(), line["what"].as_str().unwrap())).collect();
    let token = "admin_write_token";
    assert_eq!(
        what,
        [(token, "revoke"), ("command", "edit"), (token, "rotate"), (token, "edit"), (token, "edit"), (token, "issue")]
    );
    assert_eq!((&lines[1]["before"]["name"], &lines[1]["after"]["name"]), (&json!("<b>ci</b>"), &json!("by hand")));
    let text = audit.to_string();
    assert!(!text.contains("digest") && !text.contains(secret) && !text.contains(&fresh), "{text}");
    let table = h.done(&["ledger", "audit"]);
    assert!(table.lines().nth(1).is_some_and(|line| line.contains("revoke") && line.ends_with("revoked")), "{table}");

    for wrong in [
        "",
        "[]",
        "{",
        r#"{"name":5}"#,
        r#"{"name":"x","colour":"red"}"#,
        r#"{"name":"x","models":[]}"#,
        r#"{"name":"x","limits":["colour=1/1m"]}"#,
        r#"{"name":"x","name":"y"}"#,
        r#"{"name":"x","plan":"gold"}"#,
        r#"{"name":"x","disabled":true}"#,
        r#"{"name":"x","labels":{"a":5}}"#,
    ] {
        let answer = ask(&h, "POST", "keys", &[], wrong);
        assert_eq!(answer.status(), 400, "{wrong}: {}", answer.text());
    }
    assert_eq!(told(&h, "keys")["data"].as_array().map(Vec::len), Some(1), "no rejected request may issue a key");
}

#[test]
fn json_members_may_be_escaped_and_errors_name_their_path() {
    let h = start();
    let body = r#"{"name":"has/rotate","limits":[{"budget":1e-9,"per":"period"},{"requests":60.0,"per":"1m"},{"tokens":1e3,"per":"period"}]}"#;
    let issued = ask(&h, "POST", "keys", &[], body);
    assert_eq!(issued.status(), 200, "{}", issued.text());
    let key = told(&h, "keys/has%2Frotate");
    let totals: Vec<&Value> = key["limits"].as_array().unwrap().iter().map(|limit| &limit["total"]).collect();
    assert_eq!(totals, [&json!(1e-9), &json!(60), &json!(1000)]);
    let id = key["id"].as_str().unwrap();
    let other = ask(&h, "POST", "keys", &[], r#"{"name":"other"}"#).json()["id"].as_str().unwrap().to_string();
    let again = json!({"limits": key["limits"]});
    assert_eq!(
        ask(&h, "PATCH", &format!("keys/{id}"), &[], &again.to_string()).status(),
        200,
        "the API accepts what it returned"
    );
    for (wrong, path) in [
        (r#"{"limits":[{"requests":60.5,"per":"1m"}]}"#, "limits"),
        (r#"{"limits":["tokens=-1/1m"]}"#, "limits"),
        (r#"{"limits":[{"tokens":0,"per":"1m"}]}"#, "limits"),
        (r#"{"limits":[{"running":1e300}]}"#, "limits"),
        (r#"{"limits":[{"budget":1e-10,"per":"1m"}]}"#, "limits"),
        (r#"{"limits":[{"budget":1,"budget":2}]}"#, "budget: given twice"),
        (r#"{"labels":{"a":"b","a":"c"}}"#, "a: given twice"),
        (r#"{"labels":{"Team":"b"}}"#, "labels.Team"),
        (r#"{"labels":[]}"#, "labels"),
        (r#"{"models":"small"}"#, "models"),
        (r#"{"name":""}"#, "name"),
        (r#"{"name":" "}"#, "name"),
        (r#"{"name":"a\u200b"}"#, "name"),
        (&format!(r#"{{"name":"{other}"}}"#), "name"),
        (r#"{"expires":"2020-01-01"}"#, "expires"),
        (r#"{"disabled":"yes"}"#, "disabled"),
        (r#"{"strict":1}"#, "strict"),
        ("{}", "the body"),
    ] {
        let answer = ask(&h, "PATCH", &format!("keys/{id}"), &[], wrong);
        let message = answer.json()["error"]["message"].as_str().unwrap().to_string();
        assert_eq!(answer.status(), 400, "{wrong}: {message}");
        assert!(message.starts_with(&format!("{path}: ")) || message.starts_with(path), "{wrong}: {message}");
        assert!(!message.contains("--"), "{wrong}: {message}");
    }
    assert_eq!(ask(&h, "DELETE", &format!("keys/{id}"), &[], r#"{"nope":1}"#).status(), 400);
    assert_eq!(told(&h, &format!("keys/{id}"))["status"], "live");
    assert_eq!(
        ask(&h, "POST", &format!("keys/{id}%2Frotate"), &[], "{}").status(),
        405,
        "an encoded slash belongs to the name"
    );
    let report = told(&h, "usage?by=day&limit=1");
    assert_eq!(report, json!({"data": [], "next": null}));
}

#[test]
fn rotation_keeps_former_secrets_and_the_audit_has_their_expiry() {
    let h = start();
    let id =
        ask(&h, "POST", "keys", &[], r#"{"name":"ci","labels":{"team":"a"},"limits":["budget=1.5/period"]}"#).json();
    let rotate = format!("keys/{}/rotate", id["id"].as_str().unwrap());
    for turn in 0..8 {
        assert_eq!(ask(&h, "POST", &rotate, &[], r#"{"grace":"1h"}"#).status(), 200, "{turn}");
    }
    let more = ask(&h, "POST", &rotate, &[], r#"{"grace":"1h"}"#);
    assert_eq!(more.status(), 409, "{}", more.text());
    let mut key = told(&h, "keys")["data"][0].clone();
    assert!(key.as_object_mut().is_some_and(|key| key.remove("budgets").is_some()), "the audit has no use of budgets");
    assert_eq!(key["former_secrets_until"].as_array().map(Vec::len), Some(8), "no former secret may end early");
    let line = told(&h, "audit?limit=1")["data"][0].clone();
    assert_eq!((&line["what"], &line["after"]), (&json!("rotate"), &key), "the members equal those of --json");
    assert_eq!(line["before"]["former_secrets_until"].as_array().map(Vec::len), Some(7));
    let table = h.done(&["ledger", "audit", "--limit", "1"]);
    assert!(table.contains("former_secrets_until"), "{table}");
    assert_eq!(ask(&h, "POST", &rotate, &[], r#"{"grace":"0s"}"#).status(), 200);
    assert_eq!(told(&h, "keys/ci")["former_secrets_until"], json!([]));
}

#[test]
fn idempotency_key_applies_once_in_a_race_and_after_a_restart() {
    let mut h = start();
    let once = [("idempotency-key", "deploy-4711")];
    let answers: Vec<Value> = thread::scope(|scope| {
        let asks: Vec<_> =
            (0..20).map(|_| scope.spawn(|| ask(&h, "POST", "keys", &once, r#"{"name":"once"}"#))).collect();
        asks.into_iter()
            .map(|ask| ask.join().unwrap())
            .map(|answer| {
                assert_eq!(answer.status(), 200, "{}", answer.text());
                answer.json()
            })
            .collect()
    });
    let secrets: Vec<&Value> = answers.iter().map(|answer| &answer["secret"]).filter(|one| !one.is_null()).collect();
    assert_eq!(secrets.len(), 1, "only one answer contains the secret");
    assert!(answers.iter().all(|answer| answer["id"] == answers[0]["id"] && answer["name"] == "once"));
    assert_eq!(told(&h, "keys")["data"].as_array().map(Vec::len), Some(1));
    h.gateway.stop("TERM");
    h.start_again();
    let again = ask(&h, "POST", "keys", &once, r#"{"name":"once"}"#).json();
    assert_eq!((&again["id"], &again["secret"]), (&answers[0]["id"], &Value::Null));
    assert_eq!(ask(&h, "POST", "keys", &once, r#"{"name":"other"}"#).status(), 409);
    assert_eq!(ask(&h, "POST", "keys", &[("idempotency-key", "a b")], r#"{"name":"other"}"#).status(), 400);
    assert_eq!(told(&h, "audit")["data"].as_array().map(Vec::len), Some(1));
}

#[test]
fn loopback_reads_need_no_token_but_writes_do() {
    let h = start();
    let no_token = |method: &str, path: &str, host: &str| {
        let text = format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        Client::connect(h.admin).ask(text.as_bytes()).status()
    };
    assert_eq!(no_token("GET", "/admin/v1/keys", "localhost"), 200);
    assert_eq!(no_token("GET", "/", &h.admin.to_string()), 200);
    assert_eq!(no_token("DELETE", "/admin/v1/keys/x", "localhost"), 401);
    assert_eq!(no_token("GET", "/admin/v1/keys", "elsewhere.example"), 403);
    assert_eq!(no_token("GET", "/", "elsewhere.example"), 403);
    assert_eq!(no_token("GET", "/healthz", "elsewhere.example"), 200, "health is available under any host name");
    assert_eq!(no_token("GET", "/metrics", "elsewhere.example"), 403);
}

#[test]
fn unix_socket_needs_no_token_and_admits_only_its_owner() {
    let h = start();
    let text = fs::read_to_string(h.folder.path().join("tollgate.toml")).unwrap();
    let listen = format!("127.0.0.1:{}", free_port());
    let text = text.replace(&format!("admin_listen = \"{}\"", h.admin), "admin_listen = \"unix:admin.sock\"");
    let text = text.replace(&h.at.to_string(), &listen).replace("sqlite:tollgate.db", "sqlite:other.db");
    fs::write(h.folder.path().join("socket.toml"), text).unwrap();
    let mut gateway = Process::start(h.folder.path(), "socket", &["serve", "--config", "socket.toml"], &[CREDENTIAL]);
    let command = |args: &[&str]| run(h.folder.path(), args, &[CREDENTIAL]);
    wait_for("the gateway to be ready", || {
        assert!(!gateway.has_ended(), "{}", gateway.written());
        (command(&["ready", "--config", "socket.toml"]).code == 0).then_some(())
    });
    let socket = h.folder.path().join("admin.sock");
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    let done = command(&["requests", "--admin", &format!("unix:{}", socket.display()), "--json"]);
    assert_eq!((done.code, done.out.as_str()), (0, ""), "{}", done.err);
    let banner = gateway.written();
    assert!(banner.contains("\"admin\":[\"unix:"), "{banner}");
    gateway.stop("KILL");
    let mut again = Process::start(h.folder.path(), "again", &["serve", "--config", "socket.toml"], &[CREDENTIAL]);
    wait_for("the abandoned connection to be closed", || {
        assert!(!again.has_ended(), "{}", again.written());
        (command(&["ready", "--config", "socket.toml"]).code == 0).then_some(())
    });
}

#[test]
fn pages_made_by_the_event_loop_are_small() {
    let models = (0..300).map(|n| {
        let both = "{ provider = \"sim-chat\", model = \"a\" }, { provider = \"sim-chat\", model = \"b\" }";
        format!("[[models]]\nid = \"many-{n}\"\ncontext = \"1K\"\ntargets = [{both}]\n")
    });
    let groups = (0..300).map(|n| format!("[[groups]]\nname = \"many-{n}\"\nrequests = 5\n"));
    let h = Harness::start(&Setup { server: WRITE, more: models.chain(groups).collect(), ..Setup::default() });
    for (path, member) in [("targets", "model"), ("groups", "name")] {
        let (mut names, mut next) = (Vec::new(), String::new());
        loop {
            let answer = ask(&h, "GET", &format!("{path}?limit=1000{next}"), &[], "");
            assert!(answer.body.len() < 68 * 1024, "{path}: {} bytes", answer.body.len());
            let page = answer.json();
            let many = page["data"].as_array().unwrap().iter().filter_map(|item| item[member].as_str());
            names.extend(many.filter(|name| name.starts_with("many-")).map(str::to_string));
            let Some(cursor) = page["next"].as_str() else { break };
            next = format!("&after={cursor}");
        }
        let each = if path == "targets" { 2 } else { 1 };
        let all: Vec<String> = (0..300 * each).map(|n| format!("many-{}", n / each)).collect();
        assert_eq!(names, all, "{path}");
    }
}
