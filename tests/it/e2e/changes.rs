//! Changes of keys by the admin API: accepted fields and values. Neither a change nor the shutdown waits for clients
//! that only read.

use super::client::{Client, get, post, request};
use super::harness::{CREDENTIAL, Harness, Setup, bearer, chat, message, streamed, with};
use super::process::{wait_at_most, wait_for};
use serde_json::{Map, Value, json};
use std::io::Read;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

const WRITE: &str = "admin_write_token = { env = \"SIM_KEY\" }\nadmin_hosts = [\"gateway.test\"]";
/// Daily sums that a report reads, enough to make each report slow.
const SUMS: u32 = 100_000;
/// Timeout of a report while other tests use all cores: its thread only gets the remaining CPU time.
const REPORT_WAIT: Duration = Duration::from_secs(300);
/// Connections that request lists in a loop.
const READERS: u32 = 50;
/// Reports of one caller that may be pending at the same time.
const REPORTS: usize = 9;
const REPORT: &str = "usage?by=key,day&limit=1";

/// Starts a gateway whose reports take long.
fn start() -> Harness {
    let h = Harness::start(&Setup { server: WRITE, ..Setup::default() });
    let db = rusqlite::Connection::open(h.folder.path().join("tollgate.db")).unwrap();
    let sql = format!(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {SUMS})
         INSERT INTO days SELECT 19000 + i % 1000, printf('%012d', i / 1000), 'm', 'p/m', '', 'chat', '', 1, 1, 0, 0, 1, 0
         FROM n"
    );
    db.execute(&sql, []).unwrap();
    h
}

fn asked(method: &str, path: &str, body: &str) -> Vec<u8> {
    let (token, path) = (bearer(CREDENTIAL.1), format!("/admin/v1/{path}"));
    let fields = [("authorization", token.as_str())];
    match body {
        "" => request(method, &path, &fields),
        body => String::from_utf8(post(&path, &fields, body)).unwrap().replacen("POST", method, 1).into_bytes(),
    }
}

/// Sends a request without waiting for its answer.
fn begin(h: &Harness, path: &str) -> Client {
    let mut client = Client::connect(h.admin);
    client.socket.set_read_timeout(Some(REPORT_WAIT)).unwrap();
    client.send(&asked("GET", path, ""));
    client
}

fn is_answered(client: &Client) -> bool {
    client.socket.set_nonblocking(true).unwrap();
    let found = client.socket.peek(&mut [0]);
    client.socket.set_nonblocking(false).unwrap();
    found.is_ok()
}

/// Requests lists in a loop until `is_over` is set.
fn look(h: &Harness, is_over: &AtomicBool, asked: &AtomicU32) {
    while !is_over.load(Ordering::Relaxed) {
        // A client without a token may be closed to make room for others.
        if let Ok(answer) = get(h.admin, "/admin/v1/keys?limit=1") {
            assert!([200, 503].contains(&answer.status()), "{}", answer.text());
        }
        asked.fetch_add(1, Ordering::Relaxed);
    }
}

/// Ends the readers, even if the test fails.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn key_change_is_applied_while_reads_wait() {
    let h = start();
    let key = h.key();
    let id = &key[8..20];
    let (is_over, rounds) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        let ending = Ending(&is_over);
        for _ in 0..READERS {
            scope.spawn(|| look(&h, &is_over, &rounds));
        }
        wait_for("all reports to be requested", || (rounds.load(Ordering::Relaxed) > 2 * READERS).then_some(()));
        let paths = [REPORT; REPORTS - 3].into_iter().map(str::to_string);
        let paths = paths.chain(["keys".to_string(), format!("keys/{id}"), "audit".to_string()]);
        let mut waiting: Vec<Client> = paths.map(|path| begin(&h, &path)).collect();
        let others_wait = |waiting: &[Client]| {
            let last = waiting.last().unwrap();
            assert!(!is_answered(last), "the change has waited for an earlier read");
        };
        for (method, path, body) in [
            ("POST", "keys".to_string(), "{\"name\":\"fresh\"}"),
            ("PATCH", format!("keys/{id}"), "{\"name\":\"edited\"}"),
            ("POST", format!("keys/{id}/rotate"), "{\"grace\":\"1h\"}"),
            ("DELETE", format!("keys/{id}"), ""),
        ] {
            let answer = Client::connect(h.admin).ask(&asked(method, &path, body));
            assert_eq!(answer.status(), 200, "{method} {path}: {}", answer.text());
            others_wait(&waiting);
        }
        wait_for("the revocation", || (h.status_of(&key) == 401).then_some(()));
        others_wait(&waiting);
        h.done(&["keys", "revoke", "fresh"]);
        others_wait(&waiting);
        drop(ending);
        assert_eq!(waiting[0].answer().unwrap().status(), 200, "waiting reads must be answered in the end");
    });
}

#[test]
fn pending_reports_do_not_delay_shutdown() {
    let mut h = start();
    let mut first = begin(&h, REPORT);
    let began = std::time::Instant::now();
    assert_eq!(first.answer().unwrap().status(), 200);
    let one = began.elapsed();
    let mut waiting: Vec<Client> = (0..REPORTS).map(|_| begin(&h, REPORT)).collect();
    // When this request is refused, all of the earlier ones have been read.
    let refused = || Client::connect(h.admin).ask(&asked("GET", REPORT, "")).status() == 503;
    wait_for("all reports to be requested", || refused().then_some(()));
    h.gateway.signal("TERM");
    let bound = Duration::from_secs(2).max(one * 3);
    wait_at_most(bound, "the end", || h.gateway.has_ended().then_some(()));
    let last = waiting.last_mut().unwrap();
    assert!(last.socket.read(&mut [0]).map_or(true, |read| read == 0), "the last report must not be answered");
}

#[test]
fn permissions_and_limits_are_accepted_as_they_are_shown() {
    let more = "[[plans]]\nname = \"p\"\nrequests = 7\n[[groups]]\nname = \"g\"\nlimits = [\"budget=9/day:grand\"]\n"
        .to_string();
    let mut h = Harness::start(&Setup { server: WRITE, more, ..Setup::default() });
    let ask = |method: &str, path: &str, body: &str| Client::connect(h.admin).ask(&asked(method, path, body));
    let body = r#"{"name":"ci","plan":"p","models":["small"],"endpoints":["chat"],"limits":["tokens=5/period"]}"#;
    let path = format!("keys/{}", ask("POST", "keys", body).json()["id"].as_str().unwrap());
    let before = ask("GET", &path, "").json();
    // Texts of the limits, those of the key with a star.
    let texts = |key: &Value| {
        let text = |limit: &Value| {
            let star = if limit["from"] == "key" { "*" } else { "" };
            limit["text"].as_str().unwrap().to_owned() + star
        };
        key["limits"].as_array().unwrap().iter().map(text).collect::<Vec<_>>()
    };
    assert_eq!(texts(&before), ["requests=7/1m", "tokens=5/period*"]);
    let edit = |change: Value| {
        let answer = ask("PATCH", &path, &change.to_string());
        assert_eq!(answer.status(), 200, "{change}: {}", answer.text());
        ask("GET", &path, "").json()
    };
    let shown = ["name", "plan", "group", "labels", "endpoints", "models", "expires", "limits"];
    let same: Map<String, Value> = shown.map(|name| (name.to_owned(), before[name].clone())).into_iter().collect();
    assert_eq!(edit(same.into())["limits"], before["limits"], "the limits of the plan must not become the key's own");
    assert_eq!(texts(&edit(json!({"limits": ["tokens/month=plan"]}))), ["requests=7/1m"]);
    for all in [json!(null), json!(["*"]), json!(["all"])] {
        edit(json!({"models": ["small"], "endpoints": ["chat"]}));
        let open = edit(json!({"models": all, "endpoints": all}));
        assert_eq!((&open["models"], open["endpoints"].as_array().map(Vec::len)), (&json!(["*"]), Some(13)), "{all}");
    }
    edit(json!({"limits": [{"budget": 5.0, "per": "5h"}, "requests=9/1m", {"running": 4}]}));
    let own = edit(json!({"limits": [{"tokens": "2M", "per": "day", "models": ["sm*"]}]}));
    let all = ["budget=5/5h*", "requests=9/1m*", "running=4*", "tokens=2000000/day:sm**"];
    assert_eq!(texts(&own), all, "limits that are not named stay");
    assert_eq!(texts(&edit(json!({"limits": own["limits"]}))), all, "as they are shown");
    let rest = edit(json!({"limits": ["budget/5h=plan", "requests/1m=plan", "running=none"]}));
    assert_eq!(texts(&rest), ["requests=7/1m", "tokens=2000000/day:sm**", "running=none*"]);
    let list = "limits: expected a list of limits such as \"budget=5/5h\" or {\"budget\":5,\"per\":\"5h\"}";
    for (wrong, message) in [
        (r#"{"limits":null}"#, list),
        (r#"{"limits":{"tokens":5}}"#, list),
        (r#"{"limits":[5]}"#, "limits[0]: expected an object"),
        (r#"{"labels":null}"#, "labels: expected an object"),
        (r#"{"plan":null}"#, "plan: expected a string"),
    ] {
        let answer = ask("PATCH", &path, wrong);
        assert_eq!((answer.status(), answer.json()["error"]["message"].as_str()), (400, Some(message)), "{wrong}");
    }
    for (entry, problem) in [
        (json!({"per": "5h"}), "[0]: expected an entry such as".to_string()),
        (json!({"budget": 5, "tokens": 5, "per": "5h"}), "[0]: expected one of requests, tokens, ".to_string()),
        (json!({"budget": 5, "per": "5h", "model": ["a"]}), "[0]: unknown member `model`".to_string()),
        (json!({"budget": 5, "per": "5h", "from": "plan"}), "[0]: unknown member `from`".to_string()),
        (json!({"budget": 5, "per": "5h", "until": "2d"}), "[0]: unknown member `until`".to_string()),
        (json!({"budget": 5, "per": "5x"}), "[0]: per: expected 1s to 31d".to_string()),
        (json!({"budget": 5, "per": 5}), "[0].per: expected a string".to_string()),
        (json!({"budget": 5, "per": "5h", "models": "a"}), "[0].models: expected a list of names".to_string()),
        (json!({"budget": 0, "per": "5h"}), "[0]: budget: expected US dollars above 0".to_string()),
        (json!({"running": 4, "per": "5h"}), "[0]: running has no per and no models".to_string()),
        (json!({"text": "budget=5/5h", "per": "1h"}), "[0]: expected an entry such as".to_string()),
        (
            json!({"resource": "budget", "total": 9, "per": "5h", "text": "budget=5/5h"}),
            "[0]: text differs".to_string(),
        ),
        (
            json!({"resource": "budget", "total": 0, "per": "5h", "text": "budget=5/5h"}),
            "[0]: text differs".to_string(),
        ),
        (json!("budget=5/5x"), "[0]: per: expected 1s to 31d".to_string()),
    ] {
        let answer = ask("PATCH", &path, &json!({"limits": [entry]}).to_string());
        let said = answer.json()["error"]["message"].as_str().unwrap().to_string();
        assert!(answer.status() == 400 && said.starts_with(&["limits", &problem].concat()), "{entry}: {said}");
        let Some(text) = entry.as_str() else { continue };
        let typed = h.command(&["keys", "set", path.trim_start_matches("keys/"), "--limit", text]);
        assert!(typed.code == 2 && typed.err.contains(said.split_once(": ").unwrap().1), "{}", typed.err);
    }
    for (body, problem) in [
        (json!({"limits": ["requests=5/1m", {"requests": 9, "per": "60s"}]}), "the same limit is named twice"),
        (
            json!({"extra": [{"budget": 5, "per": "5h", "for": "2d", "until": "2099-01-01"}]}),
            "extra[0]: expected for or until",
        ),
        (json!({"extra": [{"budget": 5, "per": "5h", "during": "2d"}]}), "extra[0]: unknown member `during`"),
        (json!({"extra": [{"budget": 5, "per": "5h", "for": "never"}]}), "extra[0].for: expected a duration"),
    ] {
        let answer = ask("PATCH", &path, &body.to_string());
        let said = answer.json()["error"]["message"].as_str().unwrap().to_string();
        assert!(answer.status() == 400 && said.starts_with(problem), "{body}: {said}");
    }
    let listed =
        json!({"resource": "budget", "per": "7h", "models": null, "total": 0.5, "from": "key", "setting": null});
    assert!(texts(&edit(json!({"limits": [listed]}))).contains(&"budget=0.50/7h*".to_string()), "without its text");
    let twice = h.command(&["keys", "set", "ci", "--limit", "requests=5/1m", "--requests", "9"]);
    assert!(twice.code == 2 && twice.err.contains("the same limit is named twice"), "{}", twice.err);
    // A limit that counts no request is probably not meant.
    let warned = h.command(&["keys", "set", "ci", "--limit", "tokens=9/day:tiny"]);
    assert!(
        warned.code == 0 && warned.err.contains("warning: limits: `tokens=9/day:tiny`: `tiny` fits"),
        "{}",
        warned.err
    );
    let checked = h.command(&["check"]).err;
    assert!(
        checked.contains("warning: limits of key ") && checked.contains("`tiny` fits the id of no model"),
        "{checked}"
    );
    assert!(checked.contains("groups[0].limits: `budget=9/day:grand`: `grand` fits the id of no model"), "{checked}");
    h.gateway.stop("TERM");
    h.start_again();
    let warned = |text: &str| h.log().iter().any(|line| line["event"] == "warning" && line.to_string().contains(text));
    wait_for("the warnings at the start", || (warned("`tiny` fits") && warned("`grand` fits")).then_some(()));
}

#[test]
fn several_limits_of_a_key_hold_over_a_restart() {
    let more = "[[plans]]\nname = \"several\"\nlimits = [\"requests=9/1h\", \"budget=0.5/5h\"]\n".to_string();
    let mut h = Harness::start(&Setup { more, ..Setup::default() });
    let key = h.key_with(&["--plan", "several", "--limit", "requests=3/day", "--limit", "tokens=10M/month:sm*"]);
    let shown = h.done(&["keys", "show", &key[8..20]]);
    assert!(
        shown.contains("requests=9/1h, budget=0.50/5h, requests=3/day (own), tokens=10000000/month:sm* (own)"),
        "{shown}"
    );
    for _ in 0..2 {
        assert_eq!(h.chat(&key, &chat("x")).status(), 200);
    }
    let limits = |h: &Harness| {
        let quota = h.get("/v1/quota", &key).json();
        quota["limits"].as_array().unwrap().iter().map(|limit| limit["used"].clone()).collect::<Vec<_>>()
    };
    let before = limits(&h);
    assert_eq!((&before[0], &before[2]), (&json!(2), &json!(2)));
    assert_eq!(h.ledger(2).requests, 2);
    h.gateway.stop("KILL");
    h.start_again();
    assert_eq!(limits(&h), before, "as before the kill");
    assert_eq!(h.chat(&key, &chat("x")).status(), 200);
    let refused = h.chat(&key, &chat("x"));
    assert_eq!(refused.status(), 429);
    assert!(refused.text().contains("of 3 requests per day is reached"), "{}", refused.text());
    // A limit of running requests has no time, and counts all models.
    let key = h.key_with(&["--plan", "open", "--limit", "running=4"]);
    let limits = h.get("/v1/quota", &key).json()["limits"].as_array().unwrap().clone();
    let running = limits.iter().find(|limit| limit["resource"] == "running").unwrap();
    let expected = json!({"scope": "key", "name": null, "resource": "running", "per": null, "models": null, "used": 0,
                          "reserved": 0, "total": 4, "renews": null});
    assert_eq!(*running, expected);
}

/// Waits until the quota of a key shows this total of requests.
fn wait_for_total(h: &Harness, key: &str, total: u64) {
    wait_for("the limit of requests", || {
        let quota = h.get("/v1/quota", key).json();
        let limits = quota["limits"].as_array().unwrap();
        let found = limits.iter().find(|limit| limit["resource"] == "requests").unwrap()["total"].as_u64();
        (found == Some(total)).then_some(())
    });
}

#[test]
fn temporary_allowance_is_shown_audited_and_ends_by_itself() {
    let more = "[[plans]]\nname = \"few\"\nlimits = [\"requests=1/1h\"]\n".to_string();
    let mut h = Harness::start(&Setup { server: WRITE, more, ..Setup::default() });
    let key = h.key_with(&["--plan", "few"]);
    let id = &key[8..20];
    for wrong in [
        &["--extra", "requests=2"][..],
        &["--for", "2d"],
        &["--extra", "requests=2", "--for", "2d", "--until", "2030-01-01"],
        &["--extra", "budget=2", "--for", "2d"],
        &["--extra", "requests=2/day", "--for", "2d"],
        &["--extra", "requests=2", "--for", "never"],
        &["--extra", "requests=2", "--until", "2020-01-01"],
    ] {
        assert_eq!(h.command(&[&["keys", "set", id], wrong].concat()).code, 2, "{wrong:?}");
    }
    h.done(&["keys", "set", id, "--extra", "requests=2", "--until", "2100-01-01T00:00:00Z"]);
    wait_for_total(&h, &key, 3);
    let shown = h.done(&["keys", "show", id]);
    assert!(shown.contains("requests=2/1h until 2100-01-01T00:00:00Z") && shown.contains("requests=1/1h"), "{shown}");
    let audit = h.done(&["ledger", "audit", "--json"]);
    assert!(audit.contains("requests=2/1h") && audit.contains("2100-01-01T00:00:00Z"), "{audit}");
    assert_eq!(h.chat(&key, &chat("x")).status(), 200);
    h.gateway.stop("KILL");
    h.start_again();
    wait_for_total(&h, &key, 3);
    assert_eq!(h.chat(&key, &chat("x")).status(), 200);

    let ask = |method: &str, body: &str| {
        let answer = Client::connect(h.admin).ask(&asked(method, &format!("keys/{id}"), body));
        assert_eq!(answer.status(), 200, "{body}: {}", answer.text());
        answer.json()
    };
    let listed = ask("GET", "")["extra"].clone();
    assert_eq!(
        (&listed[0]["text"], &listed[0]["total"], listed.as_array().unwrap().len()),
        (&json!("requests=2/1h"), &json!(2), 1)
    );
    assert_eq!(ask("PATCH", &json!({"extra": listed}).to_string())["extra"], listed, "as it is shown");
    ask("PATCH", r#"{"extra": [{"requests": 4, "per": "1h", "for": "1h"}]}"#);
    wait_for_total(&h, &key, 5);
    ask("PATCH", r#"{"extra": ["requests=none"]}"#);
    wait_for_total(&h, &key, 1);
    assert_eq!(h.chat(&key, &chat("x")).status(), 429);
    ask("PATCH", r#"{"extra": [{"text": "requests=9/1h", "for": "6s"}]}"#);
    wait_for_total(&h, &key, 10);
    wait_for_total(&h, &key, 1);
    assert_eq!(ask("GET", "")["extra"], json!([]));
    wait_for("the line in the log", || {
        h.log().iter().any(|line| line["event"] == "key" && line["outcome"] == "allowance_ended").then_some(())
    });
    for wrong in [r#"{"extra": null}"#, r#"{"extra": [{"for": "1h"}]}"#, r#"{"extra": ["requests=5/1h"]}"#] {
        let answer = Client::connect(h.admin).ask(&asked("PATCH", &format!("keys/{id}"), wrong));
        assert_eq!(answer.status(), 400, "{wrong}: {}", answer.text());
    }
}

#[test]
fn cheaper_model_of_a_key_answers_when_its_budget_is_spent() {
    let mut h = Harness::start(&Setup { server: WRITE, ..Setup::default() });
    let key = h.key_with(&["--limit", "budget=0.0001/day:large", "--on-exhausted", "small"]);
    let id = &key[8..20];
    assert!(h.done(&["keys", "show", id]).contains("on exhausted"));
    for (model, why) in [("nothing", "no model has the id"), ("Large", "no model has the id")] {
        let said = h.command(&["keys", "set", id, "--on-exhausted", model]);
        assert!(said.code == 2 && said.err.contains(why), "{}", said.err);
    }
    let body = with(chat("x"), "model", "large");
    let reason = "exhausted; asked=\"large\"; limit=\"budget/day:large\"; scope=\"key\"";
    let answered = |h: &Harness, body: &Value| {
        let answer = h.chat(&key, body);
        assert_eq!(
            (answer.status(), answer.head.get("x-tollgate-model-reason")),
            (200, Some(reason)),
            "{}",
            answer.text()
        );
        answer
    };
    for count in [2, 4] {
        assert_eq!(answered(&h, &body).json()["model"], "small");
        assert!(answered(&h, &streamed(body.clone())).text().contains("\"model\":\"small\""));
        h.ledger(count);
        h.gateway.stop("KILL");
        h.start_again();
    }
    // A long body is translated by a helper thread.
    let long = with(message(&"word ".repeat(110_000)), "model", "large");
    let answer = h.messages(&key, &long);
    assert_eq!((answer.status(), answer.head.get("x-tollgate-model-reason")), (200, Some(reason)), "{}", answer.text());
    h.ledger(5);
    let lines = h.usage("model");
    assert_eq!(lines.iter().map(|line| &line["name"]).collect::<Vec<_>>(), [&json!("small")]);
    let exported = h.done(&["ledger", "export"]);
    let rows: Vec<Value> = exported.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(rows.len() == 5 && rows.iter().all(|row| row["asked"] == "large" && row["model"] == "small"), "{exported}");

    let ask = |method: &str, body: &str| {
        let answer = Client::connect(h.admin).ask(&asked(method, &format!("keys/{id}"), body));
        assert_eq!(answer.status(), 200, "{body}: {}", answer.text());
        answer.json()
    };
    assert_eq!(ask("GET", "")["on_exhausted"], "small");
    assert_eq!(ask("PATCH", r#"{"name": "x"}"#)["on_exhausted"], "small");
    assert_eq!(ask("PATCH", r#"{"on_exhausted": null}"#)["on_exhausted"], json!(null));
    wait_for("the refusal", || (h.chat(&key, &body).status() == 429).then_some(()));
    assert_eq!(ask("PATCH", r#"{"on_exhausted": "small"}"#)["on_exhausted"], "small");
    wait_for("the cheaper model", || (h.chat(&key, &body).status() == 200).then_some(()));
}
