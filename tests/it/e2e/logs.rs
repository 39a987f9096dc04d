//! The request log: one JSON line per request, without content or secrets.

use super::client::{get, post, request};
use super::harness::{CREDENTIAL, Harness, bearer, chat, message, streamed, with};
use super::process::{binary, wait_for};
use serde_json::Value;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};

/// A word in the prompts that must not be found anywhere.
const MARKER: &str = "marker-of-private-content";

#[test]
fn each_request_is_one_log_line_with_its_figures() {
    let h = Harness::usual();
    let key = h.key();
    let whole = h.chat(&key, &chat("one two\n#sim tokens=5 cached=1"));
    let line = h.log_of(&whole.id());
    assert_eq!(
        (&line["endpoint"], &line["model"], &line["target"]),
        (&"chat".into(), &"small".into(), &"sim-chat/up-small".into())
    );
    assert_eq!((&line["status"], &line["stream"], &line["attempts"]), (&200.into(), &false.into(), &1.into()));
    assert_eq!((&line["input"], &line["cache_read"], &line["output"]), (&4.into(), &1.into(), &5.into()));
    assert_eq!((&line["source"], &line["key"]), (&"provider".into(), &key[8..20].into()));
    for phase in ["total", "send", "wait", "relay"] {
        assert!(line["us"][phase].is_u64(), "{phase}: {line}");
    }
    let refused = h.log_of(&h.get("/v1/nothing", &key).id());
    assert_eq!((&refused["status"], &refused["error"]), (&404.into(), &"not_found_error".into()));
    let unknown = h.log_of(&h.get("/v1/quota", "nobody").id());
    assert_eq!((&unknown["status"], &unknown["key"]), (&401.into(), &Value::Null));
}

#[test]
fn every_request_is_logged_exactly_once_however_it_ends() {
    let h = Harness::usual();
    let key = h.key();
    let mut ids = Vec::new();
    for text in ["", "tokens=3", "status=500", "garbage", "cut_after=2", "error_after=1"] {
        let asked = chat(&format!("{MARKER}\n#sim {text}"));
        ids.push(h.chat(&key, &asked).id());
        ids.push(h.chat(&key, &streamed(asked)).id());
    }
    ids.push(h.client().ask(b"nonsense\r\n\r\n").id());
    ids.push(h.client().ask(&request("GET", "/", &[])).id());
    for id in &ids {
        h.log_of(id);
    }
    for id in &ids {
        assert_eq!(h.log().iter().filter(|line| line["id"] == **id).count(), 1, "{id}");
    }
}

#[test]
fn no_output_contains_content_or_secrets() {
    let mut h = Harness::usual();
    let key = h.key();
    h.chat(&key, &chat(MARKER));
    h.messages(&key, &streamed(message(MARKER)));
    h.chat(&key, &chat(&format!("{MARKER}\n#sim status=400 message={MARKER}_{}", CREDENTIAL.1)));
    h.chat(&key, &with(chat(MARKER), "messages", MARKER));
    h.chat(&key, &with(chat("x"), "user", MARKER));
    let fields =
        [("authorization", bearer(&key)), ("x-request-id", "mine\"}{".to_owned()), ("cookie", MARKER.to_owned())];
    let fields: Vec<(&str, &str)> = fields.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let path = format!("/v1/chat/completions?api_key={MARKER}");
    let last = h.client().ask(&post(&path, &fields, &chat(MARKER).to_string()));
    h.log_of(&last.id());
    h.done(&["usage"]);
    let metrics = get(h.admin, "/metrics").unwrap().text().to_owned();
    h.gateway.stop("TERM");
    let written = h.gateway.written() + &metrics;
    for secret in [MARKER, &key[20..52], CREDENTIAL.1] {
        assert!(!written.contains(secret), "{secret} was written:\n{written}");
    }
    let text = std::fs::read_to_string(&h.gateway.stderr).unwrap();
    for line in text.lines() {
        assert!(serde_json::from_str::<Value>(line).is_ok_and(|line| line.is_object()), "not a JSON object: {line}");
    }
}

#[test]
fn unread_log_blocks_neither_answers_nor_shutdown() {
    let mut h = Harness::usual();
    let key = h.key();
    h.gateway.stop("TERM");
    let mut command = Command::new(binary());
    command.arg("serve").current_dir(h.folder.path()).env(CREDENTIAL.0, CREDENTIAL.1);
    // A pipe holds 64 KiB. Its other end stays open, but nothing is read from it.
    let mut gateway = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for("the gateway to be ready", || get(h.admin, "/readyz").ok().filter(|answer| answer.status() == 200));
    let mut client = h.client();
    for _ in 0..1000 {
        let answer = client.ask(&request("GET", "/v1/models", &[("authorization", &bearer(&key))]));
        assert_eq!(answer.status(), 200);
    }
    assert_eq!(h.chat(&key, &chat("one\n#sim tokens=5")).status(), 200);
    let term = format!("kill -TERM {}", gateway.id());
    assert!(Command::new("sh").args(["-c", &term]).status().unwrap().success());
    let ended = wait_for("the gateway to end", || gateway.try_wait().unwrap());
    assert_eq!(ended.code(), Some(0));
    assert_eq!(h.ledger(1).output, 5);
}

#[test]
fn error_is_written_with_a_single_write() {
    let (here, there) = UnixDatagram::pair().unwrap();
    let mut command = Command::new(binary());
    command.args(["check", "--config", "no-such-file.toml"]).stderr(OwnedFd::from(there));
    assert!(!command.status().unwrap().success());
    // Each write to a datagram socket arrives as one datagram.
    let mut text = [0; 4096];
    let length = here.recv(&mut text).unwrap();
    let text = std::str::from_utf8(&text[..length]).unwrap();
    assert!(text.starts_with("error: ") && text.ends_with('\n'), "{text:?}");
}
