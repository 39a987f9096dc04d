//! Specification section 5: keys, their form, their scopes, and their rotation by the command line beside a running
//! gateway. Contract section 3.

use super::client::{post, request};
use super::harness::{Harness, bearer, chat, message, with};
use super::process::wait_at_most;
use serde_json::{Value, json};
use std::time::Duration;

/// A running gateway sees a key issued or revoked within this time.
const SEEN_WITHIN: Duration = Duration::from_secs(1);

fn id_of(key: &str) -> &str {
    &key["tg_live_".len()..][..12]
}

#[test]
fn section_5_1_and_5_2_the_bearer_everywhere_and_x_api_key_at_messages() {
    let h = Harness::usual();
    let key = h.key();
    let auth = bearer(&key);
    let ask = |path: &str, fields: &[(&str, &str)], body: &Value| match body {
        Value::Null => h.client().ask(&request("GET", path, fields)).status(),
        body => h.client().ask(&post(path, fields, &body.to_string())).status(),
    };
    let by_bearer = [("authorization", auth.as_str())];
    let by_header = [("x-api-key", key.as_str())];
    for (path, body, x_api_key) in [
        ("/v1/chat/completions", chat("x"), 401),
        ("/v1/messages", message("x"), 200),
        ("/v1/models", Value::Null, 200),
        ("/v1/quota", Value::Null, 401),
    ] {
        assert_eq!(ask(path, &by_bearer, &body), 200, "{path}");
        assert_eq!(ask(path, &by_header, &body), x_api_key, "{path}");
    }
    let foreign = [("authorization", "Bearer sk-of-someone-else"), ("x-api-key", key.as_str())];
    assert_eq!(ask("/v1/messages", &foreign, &message("x")), 200, "of two, the one with our prefix decides");
    let empty = [("authorization", auth.as_str()), ("x-api-key", "")];
    assert_eq!(ask("/v1/messages", &empty, &message("x")), 200, "an empty header counts as absent");
    let lower = [("authorization", format!("bearer {key}"))];
    assert_eq!(ask("/v1/models", &[("authorization", lower[0].1.as_str())], &Value::Null), 200, "RFC 9110: no case");
}

#[test]
fn section_5_3_and_5_4_what_is_not_exactly_a_key_opens_nothing() {
    let h = Harness::usual();
    let key = h.key();
    assert!(key.starts_with("tg_live_"), "section 5.3: prefix, live_, secret part");
    let swapped: String = key.chars().rev().collect();
    let mut changed = key.clone();
    let last = if changed.pop() == Some('a') { 'b' } else { 'a' };
    changed.push(last);
    let other_secret = format!("{}{}{}", &key[..20], "A".repeat(32), &key[52..]);
    let mut answers = Vec::new();
    for wrong in [&swapped, &changed, &other_secret, &key[..key.len() - 1], &format!("{key}0"), "tg_live_", "x"] {
        let answer = h.get("/v1/quota", wrong);
        assert_eq!(answer.status(), 401, "{wrong}");
        answers.push(answer.json()["error"]["message"].clone());
    }
    answers.dedup();
    assert_eq!(answers.len(), 1, "no answer tells whether a key exists: {answers:?}");
    let basic = h.client().ask(&request("GET", "/v1/quota", &[("authorization", &format!("Basic {key}"))]));
    assert_eq!(basic.status(), 401);
}

#[test]
fn section_5_5_scopes_permit_models_and_endpoints() {
    let h = Harness::usual();
    let chat_only = h.key_with(&["--endpoints", "chat", "--models", "small"]);
    assert_eq!(h.chat(&chat_only, &chat("x")).status(), 200);
    assert_eq!(h.chat(&chat_only, &with(chat("x"), "model", "hasty")).status(), 403);
    assert_eq!(h.messages(&chat_only, &message("x")).status(), 403);
    assert_eq!(h.get("/v1/models", &chat_only).status(), 200, "naming chat keeps models and quota");
    assert_eq!(h.get("/v1/quota", &chat_only).status(), 200);
    let models_only = h.issue(&["--endpoints", "models"]);
    wait_at_most(SEEN_WITHIN, "the key", || (h.get("/v1/models", &models_only).status() == 200).then_some(()));
    assert_eq!(h.get("/v1/quota", &models_only).status(), 403);
    assert_eq!(h.chat(&models_only, &chat("x")).status(), 403);
    let absent = h.command(&["keys", "issue", "--name", "x", "--models", "no-such"]);
    assert_eq!(absent.code, 2, "a model that is not configured: {}", absent.err);
}

#[test]
fn section_5_7_rotation_both_keys_work_in_between_and_a_change_is_seen_within_a_second() {
    let h = Harness::usual();
    let old = h.issue(&[]);
    wait_at_most(SEEN_WITHIN, "the old key", || (h.status_of(&old) == 200).then_some(()));
    let new = h.issue(&[]);
    wait_at_most(SEEN_WITHIN, "the new key", || (h.status_of(&new) == 200).then_some(()));
    assert_eq!(h.status_of(&old), 200);
    h.done(&["keys", "revoke", id_of(&old)]);
    wait_at_most(SEEN_WITHIN, "the revocation", || (h.status_of(&old) == 401).then_some(()));
    assert_eq!(h.status_of(&new), 200);
}

#[test]
fn section_5_4_an_expired_key_opens_nothing() {
    let h = Harness::usual();
    let key = h.key_with(&["--expires", "2s"]);
    assert_eq!(h.status_of(&key), 200);
    wait_at_most(Duration::from_secs(4), "the expiry", || (h.status_of(&key) == 401).then_some(()));
}

/// Specification section 2.5 and contract section 3: the secret is shown once and stored nowhere.
#[test]
fn section_2_5_a_key_is_shown_once_and_listed_without_its_secret() {
    let h = Harness::usual();
    let key = h.key_with(&["--plan", "two", "--models", "small", "--expires", "30d"]);
    let list: Value = serde_json::from_str(&h.done(&["keys", "list", "--json"])).unwrap();
    let entry = &list[0];
    assert_eq!((&entry["id"], &entry["plan"], &entry["name"]), (&json!(id_of(&key)), &json!("two"), &json!("test")));
    let shown = h.done(&["keys", "show", id_of(&key)]);
    let table = h.done(&["keys", "list"]);
    let secret = &key[20..52];
    for text in [&list.to_string(), &shown, &table] {
        assert!(text.contains(id_of(&key)) && !text.contains(secret), "{text}");
    }
    for file in std::fs::read_dir(h.folder.path()).unwrap() {
        let bytes = std::fs::read(file.unwrap().path()).unwrap();
        assert_eq!(super::client::find(&bytes, secret.as_bytes()), None, "the secret is in a file");
    }
}

#[test]
fn keys_commands_tell_done_failed_and_misused_apart() {
    let h = Harness::usual();
    assert_eq!(h.command(&["keys", "issue"]).code, 2, "--name is missing");
    assert_eq!(h.command(&["keys", "issue", "--name", "x", "--expires", "soon"]).code, 2);
    let plan = h.command(&["keys", "issue", "--name", "x", "--plan", "no-such"]);
    assert!(plan.code != 0 && plan.err.contains("no-such") && plan.out.is_empty(), "{}", plan.err);
    let unknown = h.command(&["keys", "revoke", "AAAAAAAAAAAA"]);
    assert!(unknown.code == 1 && !unknown.err.is_empty(), "{}", unknown.err);
    assert_eq!(h.command(&["keys", "show", "not an id"]).code, 2);
}
