//! Capture of the traffic of one key: the file beside the ledger, what it contains and never contains, its end.

use super::client::{Answer, post};
use super::harness::{CREDENTIAL, Harness, Setup, bearer, chat, message, part, post_form, streamed, with};
use super::process::wait_for;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

/// Models with another API format than the client's, with a second target, and for forms.
const MODELS: &str = r#"
[[models]]
id = "media"
context = "8K"
serves = ["transcriptions"]
targets = [{ provider = "sim-chat", model = "media" }]
[[models]]
id = "second"
context = "256K"
targets = [{ provider = "nobody", model = "up-gone" }, { provider = "sim-chat", model = "up-second" }]
[[models]]
id = "voice"
context = "8K"
serves = ["speech"]
price_per_request = 0.01
targets = [{ provider = "sim-chat", model = "voice" }]
"#;

fn start() -> Harness {
    Harness::start(&Setup { more: MODELS.to_owned(), ..Setup::default() })
}

fn id_of(key: &str) -> &str {
    &key[8..20]
}

fn path(h: &Harness, key: &str) -> PathBuf {
    h.folder.path().join(format!("capture-{}.jsonl", id_of(key)))
}

/// Captures the traffic of a key, and waits until the gateway does.
fn capture(h: &Harness, key: &str, time: &str) {
    let said = h.command(&["capture", id_of(key), "--for", time]);
    assert_eq!(said.code, 0, "{}", said.err);
    assert!(said.err.contains(&format!("capture-{}.jsonl", id_of(key))), "{}", said.err);
    let outcome = if time == "0" { "off" } else { "on" };
    wait_for("the gateway to know", || {
        let log = h.log();
        let last = log.iter().rfind(|line| line["event"] == "capture" && line["key"] == id_of(key));
        last.filter(|line| line["outcome"] == outcome).map(drop)
    });
}

/// The captured requests of a key, once there are `count` of them.
fn lines(h: &Harness, key: &str, count: usize) -> Vec<Value> {
    let lines = wait_for("the captured requests", || {
        let text = fs::read_to_string(path(h, key)).unwrap_or_default();
        let lines: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        (lines.len() >= count && text.ends_with('\n')).then_some(lines)
    });
    assert_eq!(lines.len(), count);
    lines
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_else(|| panic!("{pointer}: {value}"))
}

fn inner(value: &Value, pointer: &str) -> Value {
    serde_json::from_str(text(value, pointer)).unwrap()
}

#[test]
fn requests_are_written_as_received_as_sent_and_as_answered() {
    let h = start();
    let key = h.key();
    assert_eq!(h.chat(&key, &chat("before")).status(), 200);
    capture(&h, &key, "1h");
    let whole = h.chat(&key, &chat("whole\n#sim tokens=3"));
    let stream = h.chat(&key, &streamed(chat("stream\n#sim tokens=3")));
    let translated = h.chat(&key, &streamed(with(chat("other\n#sim tokens=3"), "model", "large")));
    let wrong = h.chat(&key, &with(chat("wrong"), "model", "unknown"));
    let local = h.get("/v1/models", &key);
    let answers: [&Answer; 5] = [&whole, &stream, &translated, &wrong, &local];
    let lines = lines(&h, &key, answers.len());
    for (line, answer) in lines.iter().zip(answers) {
        assert_eq!(line.as_object().unwrap().keys().collect::<Vec<_>>(), ["answer", "id", "received", "sent"]);
        assert_eq!((text(line, "/id"), text(line, "/answer/body")), (&*answer.id(), answer.text()));
        assert_eq!(text(line, "/answer/head/0").split(' ').nth(1), Some(&*answer.status().to_string()));
        assert!(
            line["answer"]["head"]
                .as_array()
                .unwrap()
                .iter()
                .any(|field| *field == json!(format!("x-request-id: {}", answer.id())))
        );
    }
    assert_eq!(text(&lines[0], "/received/head/0"), "POST /v1/chat/completions HTTP/1.1");
    assert_eq!(inner(&lines[0], "/received/body"), chat("whole\n#sim tokens=3"));
    assert_eq!(
        (text(&lines[0], "/sent/0/target"), lines[0]["sent"].as_array().unwrap().len()),
        ("sim-chat/up-small", 1)
    );
    assert_eq!(inner(&lines[0], "/sent/0/body")["model"], "up-small");
    assert_eq!(
        (inner(&lines[2], "/received/body")["model"].as_str(), inner(&lines[2], "/sent/0/body")["model"].as_str()),
        (Some("large"), Some("up-large"))
    );
    assert!(text(&lines[2], "/sent/0/head/0").starts_with("POST /v1/messages "));
    assert_eq!(
        (inner(&lines[3], "/received/body")["model"].as_str(), &lines[3]["sent"]),
        (Some("unknown"), &json!([]))
    );
    assert_eq!((text(&lines[4], "/received/body"), &lines[4]["sent"]), ("", &json!([])));
    let mode = fs::metadata(path(&h, &key)).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let shown: Value = serde_json::from_str(&h.done(&["keys", "show", id_of(&key), "--json"])).unwrap();
    let until = shown["capture_until"].as_str().unwrap();
    assert!(h.done(&["keys", "show", id_of(&key)]).contains(&format!("until {until}")));
    assert!(h.done(&["keys", "list"]).contains(&format!("live, captured until {until}")));
    let status: Value = serde_json::from_str(&h.done(&["status", "--json"])).unwrap();
    assert_eq!(status["captures"], json!([{"id": id_of(&key), "name": shown["name"], "until": until}]));
    assert!(h.done(&["status"]).contains("its requests and responses are captured until"));
    capture(&h, &key, "0");
    assert_eq!(h.chat(&key, &chat("after")).status(), 200);
    let shown: Value = serde_json::from_str(&h.done(&["keys", "show", id_of(&key), "--json"])).unwrap();
    assert!(shown["capture_until"].is_null());
    let written = fs::read_to_string(path(&h, &key)).unwrap();
    assert!(!written.contains("before") && !written.contains("after"), "{written}");
    let audit = h.done(&["ledger", "audit"]);
    let row = |text: &str| audit.lines().position(|line| line.contains(text)).unwrap_or_else(|| panic!("{audit}"));
    assert!(row("capture off") < row("capture on until 20"));
}

#[test]
fn nothing_of_another_key_is_written() {
    let h = start();
    let (one, two, other) = (h.key(), h.key(), h.key());
    capture(&h, &one, "1h");
    capture(&h, &two, "1h");
    for round in 0..5 {
        for (key, word) in [(&one, "first"), (&two, "second"), (&other, "third")] {
            let body = streamed(chat(&format!("{word}-{round}\n#sim echo")));
            assert_eq!(h.chat(key, &body).status(), 200);
        }
    }
    for (key, own, foreign) in [(&one, "first", ["second", "third"]), (&two, "second", ["first", "third"])] {
        assert!(lines(&h, key, 5).iter().all(|line| text(line, "/answer/body").contains(own)));
        let written = fs::read_to_string(path(&h, key)).unwrap();
        assert!(foreign.iter().all(|word| !written.contains(word)) && !written.contains(id_of(&other)));
    }
    assert!(!path(&h, &other).exists());
}

#[test]
fn no_credential_is_written() {
    let h = start();
    let key = h.key();
    capture(&h, &key, "1h");
    let body = chat(&format!("my key is {key}, and {}", &key[..40])).to_string();
    let own = bearer(&key);
    let foreign = "sk-proj-0123456789abcdef0123456789";
    for (path, fields) in [
        ("/v1/chat/completions", vec![("authorization", &*own)]),
        ("/v1/chat/completions", vec![("Authorization", &*own), ("cookie", "session=4711-cookie")]),
        (&*format!("/v1/chat/completions?api-version=1&api_key=4711-query&x={key}"), vec![("authorization", &*own)]),
        ("/v1/chat/completions", vec![("authorization", &*own), ("x-note", &*key), ("x-other", foreign)]),
        (
            "/v1/chat/completions",
            vec![("authorization", &*own), ("referer", "http://ann:4711-login@host/a"), ("x-api-key", "4711-header")],
        ),
        ("/v1/chat/completions", vec![("authorization", "Bearer 4711-bearer"), ("x-tollgate-key", &*key)]),
    ] {
        assert_eq!(h.client().ask(&post(path, &fields, &body)).status(), 200, "{path}");
    }
    let messages = post(
        "/v1/messages",
        &[("x-api-key", &*key), ("anthropic-version", "2023-06-01")],
        &with(message("hi"), "model", "large").to_string(),
    );
    assert_eq!(h.client().ask(&messages).status(), 200);
    let lines = lines(&h, &key, 7);
    let written = fs::read_to_string(path(&h, &key)).unwrap();
    for secret in [&key[20..], &key[20..40], "4711", CREDENTIAL.1, foreign] {
        assert!(!written.contains(secret), "{secret}: {written}");
    }
    assert!(lines.iter().all(|line| line["received"]["head"].to_string().contains("***")));
    assert!(text(&lines[2], "/received/head/0").contains("?api-version=1&api_key=***&x=***"));
    assert!(text(&lines[0], "/received/body").contains(&format!("tg_live_{}***, and", id_of(&key))));
    assert!(lines[0]["sent"][0]["head"].as_array().unwrap().contains(&json!("authorization: ***")));
    assert!(lines[6]["sent"][0]["head"].as_array().unwrap().contains(&json!("x-api-key: ***")));
}

#[test]
fn capture_ends_by_itself_also_after_kill_and_restart() {
    let mut h = start();
    let key = h.key();
    capture(&h, &key, "1h");
    assert_eq!(h.chat(&key, &chat("one")).status(), 200);
    assert_eq!(lines(&h, &key, 1).len(), 1);
    h.gateway.stop("KILL");
    // A killed process may leave a part of a line.
    let cut = fs::read_to_string(path(&h, &key)).unwrap() + "{\"id\":\"req_";
    fs::write(path(&h, &key), cut).unwrap();
    h.start_again();
    let told = |h: &Harness, outcome: &str| {
        h.log().iter().filter(|line| line["event"] == "capture" && line["outcome"] == outcome).count()
    };
    wait_for("the log of the new process", || (told(&h, "on") == 2).then_some(()));
    assert_eq!(h.chat(&key, &chat("two")).status(), 200);
    assert!(text(&lines(&h, &key, 2)[1], "/received/body").contains("two"));
    capture(&h, &key, "3s");
    h.gateway.stop("KILL");
    h.start_again();
    wait_for("the end of the capture", || {
        let shown: Value = serde_json::from_str(&h.done(&["keys", "show", id_of(&key), "--json"])).unwrap();
        shown["capture_until"].is_null().then_some(())
    });
    let last = h.chat(&key, &chat("three"));
    assert_eq!(last.status(), 200);
    h.log_of(&last.id());
    let on = told(&h, "on");
    capture(&h, &key, "5s");
    wait_for("the log of the start", || (told(&h, "on") == on + 1).then_some(()));
    wait_for("the end in the status", || {
        let status: Value = serde_json::from_str(&h.done(&["status", "--json"])).unwrap();
        (status["captures"] == json!([])).then_some(())
    });
    wait_for("the log of the end", || (told(&h, "ended") > 0).then_some(()));
    h.gateway.stop("TERM");
    assert_eq!((lines(&h, &key, 2).len(), told(&h, "off")), (2, 0));
}

#[test]
fn revocation_ends_a_capture() {
    let mut h = start();
    let key = h.key();
    capture(&h, &key, "1h");
    h.done(&["keys", "revoke", id_of(&key)]);
    let count = |h: &Harness, outcome: &str| {
        h.log().iter().filter(|line| line["event"] == "capture" && line["outcome"] == outcome).count()
    };
    wait_for("the end", || (count(&h, "off") == 1).then_some(()));
    assert!(!h.done(&["keys", "list"]).contains("captured"));
    h.gateway.stop("TERM");
    h.start_again();
    let other = h.key();
    assert_eq!((h.chat(&other, &chat("x")).status(), count(&h, "on")), (200, 1));
    assert_eq!(serde_json::from_str::<Value>(&h.done(&["status", "--json"])).unwrap()["captures"], json!([]));
}

#[test]
fn capture_survives_reload_and_upgrade() {
    let mut h = start();
    let key = h.key();
    capture(&h, &key, "1h");
    h.gateway.signal("HUP");
    wait_for("the reload", || h.log().iter().any(|line| line["event"] == "reload").then_some(()));
    assert_eq!(h.chat(&key, &chat("reloaded")).status(), 200);
    let mut slow = h.client();
    slow.send(&super::harness::chat_request(&key, &streamed(chat("slow\n#sim tokens=12 pace=4"))));
    let head = slow.head().unwrap();
    h.gateway.signal("USR2");
    let pid = wait_for("the successor", || {
        let other = |line: &&Value| line["event"] == "listening" && line["pid"] != h.gateway.id();
        h.log().iter().find(other).map(|line| line["pid"].clone())
    });
    wait_for("the successor to serve", || (h.status_of(&key) == 200).then_some(()));
    assert_eq!(h.chat(&key, &chat("upgraded")).status(), 200);
    let body = String::from_utf8(slow.body(&head).unwrap()).unwrap();
    h.gateway.wait();
    let all = wait_for("all requests", || {
        let text = fs::read_to_string(path(&h, &key)).unwrap();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        lines.iter().any(|line| text_of(line).contains("upgraded")).then_some(lines)
    });
    assert!(text_of(&all[0]).contains("reloaded"));
    let slow = all.iter().find(|line| line["id"] == head.get("x-request-id").unwrap()).unwrap();
    assert_eq!(text(slow, "/answer/body"), body, "the predecessor writes its own requests");
    let end = format!("kill -TERM {pid} && while kill -0 {pid}; do sleep 0.05; done 2>&-");
    assert!(Command::new("sh").args(["-c", &end]).status().unwrap().success());
}

/// The client's body.
fn text_of(line: &Value) -> &str {
    text(line, "/received/body")
}

#[test]
fn broken_stream_is_written_as_far_as_the_client_got_it() {
    let h = start();
    let key = h.key();
    capture(&h, &key, "1h");
    let cut = h.chat(&key, &streamed(chat("x\n#sim tokens=9 cut_after=3")));
    let mut left = h.client();
    left.send(&super::harness::chat_request(&key, &streamed(chat("x\n#sim tokens=9 stall_after=3"))));
    let head = left.head().unwrap();
    let first = left.chunk().unwrap().unwrap();
    drop(left);
    let failed = h.chat(&key, &with(chat("x\n#sim tokens=2"), "model", "second"));
    let lines = lines(&h, &key, 3);
    assert!(cut.text().contains("error"), "{}", cut.text());
    let of = |id: &str| lines.iter().find(|line| line["id"] == id).unwrap();
    assert_eq!(text(of(&cut.id()), "/answer/body"), cut.text());
    let id = head.get("x-request-id").unwrap();
    assert!(text(of(id), "/answer/body").starts_with(std::str::from_utf8(&first).unwrap()));
    assert_eq!((failed.status(), text(of(&failed.id()), "/answer/body")), (200, failed.text()));
    assert_eq!(text(of(&failed.id()), "/sent/0/target"), "sim-chat/up-second");
}

#[test]
fn form_is_written_as_its_size() {
    let h = start();
    let key = h.key();
    capture(&h, &key, "1h");
    let parts = |sound: &str| {
        part("model", None, "media") + &part("file", Some("a.wav"), sound) + &part("language", None, "en")
    };
    let sound = "wave".repeat(5 << 20);
    for in_chunks in [false, true] {
        let answer = h.client().ask(&post_form("/v1/audio/transcriptions", &key, &parts(&sound), in_chunks));
        assert_eq!(answer.status(), 200, "{}", answer.text());
    }
    let length = parts(&sound).len() + "--b--\r\n".len();
    for line in lines(&h, &key, 2) {
        assert_eq!(text(&line, "/received/body"), format!("form of {length} bytes"));
        let sent = text(&line, "/sent/0/body").strip_prefix("form of ").and_then(|rest| rest.strip_suffix(" bytes"));
        assert!(sent.unwrap().parse::<usize>().unwrap() > sound.len());
        assert!(line["sent"][0].get("left_out").is_none() && line["received"].get("left_out").is_none());
    }
    assert!(fs::metadata(path(&h, &key)).unwrap().len() < 8192);
}

#[test]
fn long_body_is_cut_and_its_rest_is_counted() {
    let h = start();
    let key = h.key();
    capture(&h, &key, "1h");
    let long = "word ".repeat(1_200_000);
    let answer = h.chat(&key, &chat(&format!("{long}\n#sim tokens=2")));
    assert_eq!(answer.status(), 200);
    let speech = post(
        "/v1/audio/speech",
        &[("authorization", &*bearer(&key))],
        &json!({"model": "voice", "input": "hello", "voice": "alloy"}).to_string(),
    );
    let audio = h.client().ask(&speech);
    assert_eq!(audio.status(), 200);
    let large = h.chat(&key, &chat("x\n#sim big=2000000"));
    let lines = lines(&h, &key, 3);
    assert_eq!((text(&lines[2], "/answer/body"), lines[2]["answer"].get("left_out")), (large.text(), None));
    let received = text(&lines[0], "/received/body");
    let left_out = lines[0]["received"]["left_out"].as_u64().unwrap() as usize;
    assert_eq!(
        (received.len(), received.len() + left_out),
        (4 << 20, chat(&format!("{long}\n#sim tokens=2")).to_string().len())
    );
    assert_eq!(text(&lines[1], "/answer/body"), audio.text());
}

/// Whatever happens to the file, requests are served, and the log says what is lost.
#[test]
fn full_disk_fails_no_request() {
    let h = start();
    let key = h.key();
    let said = h.command(&["capture", id_of(&key), "--for", "0"]);
    assert!(said.err.contains("nothing") && !said.err.contains(".jsonl"), "there is no file: {}", said.err);
    capture(&h, &key, "1h");
    assert_eq!(h.chat(&key, &chat("one")).status(), 200);
    let length = lines(&h, &key, 1).len() as u64 * fs::metadata(path(&h, &key)).unwrap().len();
    let limit = |bytes: &str| {
        let limit = format!("--fsize={bytes}:unlimited");
        assert!(
            Command::new("prlimit").args(["--pid", &h.gateway.id().to_string(), &limit]).status().unwrap().success()
        );
    };
    // The ledger's file must not be longer than that, and its log is not either.
    let long = chat(&"x".repeat(3 << 20));
    limit(&(2 << 20).to_string());
    for _ in 0..3 {
        assert_eq!(h.chat(&key, &long).status(), 200);
    }
    let of = |outcome: &str| h.log().into_iter().find(|line| line["event"] == "capture" && line["outcome"] == outcome);
    let failed = wait_for("the failure", || of("failed"));
    assert!(text(&failed, "/error").contains("File too large"), "{failed}");
    // A line is written completely or not at all.
    wait_for("the file to be whole", || (fs::metadata(path(&h, &key)).unwrap().len() == length).then_some(()));
    limit("unlimited");
    assert_eq!(h.chat(&key, &chat("two")).status(), 200);
    let mut written = 2;
    let recovered = wait_for("the recovery", || {
        assert_eq!(h.chat(&key, &chat("three")).status(), 200);
        written += 1;
        of("recovered")
    });
    let lost = recovered["requests_lost"].as_u64().unwrap() as usize;
    assert!((1..=3).contains(&lost));
    assert!(text(&lines(&h, &key, written + 3 - lost)[4 - lost], "/received/body").contains("two"));
}

#[test]
fn admin_api_switches_capture_on_and_off() {
    let h = Harness::start(&Setup {
        server: "admin_write_token = { env = \"SIM_KEY\" }\nadmin_hosts = [\"gateway.test\"]",
        ..Setup::default()
    });
    let key = h.key();
    let patch = |body: Value| {
        let path = format!("/admin/v1/keys/{}", id_of(&key));
        let mut request = post(&path, &[("authorization", &*bearer(CREDENTIAL.1))], &body.to_string());
        request.splice(..4, *b"PATCH");
        super::client::Client::connect(h.admin).ask(&request)
    };
    let on = patch(json!({"capture_until": "30m"}));
    assert_eq!(on.status(), 200, "{}", on.text());
    assert!(on.json()["capture_until"].is_string());
    wait_for("the gateway to know", || h.log().iter().any(|line| line["event"] == "capture").then_some(()));
    assert_eq!(h.chat(&key, &chat("one")).status(), 200);
    assert_eq!(lines(&h, &key, 1).len(), 1);
    assert!(patch(json!({"capture_until": null})).json()["capture_until"].is_null());
    for wrong in [json!("8d"), json!("never"), json!("2001-01-01"), json!(5)] {
        assert_eq!(patch(json!({"capture_until": wrong})).status(), 400, "{wrong}");
    }
}
