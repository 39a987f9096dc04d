//! Compares the OpenAPI document of the admin API with real answers, as `openapi` does for the client API.

use super::e2e::client::{Client, get, request};
use super::e2e::harness::{CREDENTIAL, Harness, Setup, bearer, chat};
use super::openapi::{Answer, check};
use serde_json::Value;
use std::collections::BTreeSet;

const GROUPS: &str = "[[groups]]\nname = \"labs\"\nbudget = 5.0\n";

struct Seen<'a> {
    h: &'a Harness,
    doc: Value,
    seen: BTreeSet<(String, String, u16)>,
}

impl Seen<'_> {
    /// Sends a request, and checks the answer against the document's entry for `template`.
    fn see(
        &mut self,
        status: u16,
        method: &str,
        (template, path): (&str, &str),
        fields: &[(&str, &str)],
        body: &str,
    ) -> Value {
        let length = body.len().to_string();
        let mut fields = fields.to_vec();
        if !body.is_empty() {
            fields.push(("content-length", &length));
        }
        let mut asked = request(method, &format!("/admin/v1/{path}"), &fields);
        asked.extend_from_slice(body.as_bytes());
        let answer = Client::connect(self.h.admin).ask(&asked);
        let text = String::from_utf8(answer.body).unwrap();
        let answer = Answer { status: answer.head.status, fields: answer.head.fields, body: text };
        assert_eq!(answer.status, status, "{method} {path}: {}", answer.body);
        let template = format!("/admin/v1/{template}");
        check(&self.doc, &template, &method.to_ascii_lowercase(), &answer);
        self.seen.insert((template, method.to_ascii_lowercase(), status));
        serde_json::from_str(&answer.body).unwrap()
    }
}

#[test]
fn every_admin_api_answer_matches_its_document() {
    let server = "admin_token = { env = \"SIM_KEY\" }\nadmin_write_token = { env = \"SIM_KEY\" }\n\
                  admin_hosts = [\"gateway.test\"]\nrecord_requests = true";
    let h = Harness::start(&Setup { server, more: GROUPS.to_string(), ..Setup::default() });
    let key = h.key();
    assert_eq!(h.chat(&key, &chat("x\n#sim tokens=5")).status(), 200);
    h.ledger(1);
    let doc = get(h.admin, "/admin/openapi.json").unwrap().json();
    assert_eq!(doc["info"]["version"], env!("CARGO_PKG_VERSION"));
    let clients = get(h.admin, "/openapi.json").unwrap().json();
    assert_eq!(
        clients["externalDocs"]["url"], "/admin/openapi.json",
        "the client document must link the admin document"
    );
    let token = bearer(CREDENTIAL.1);
    let token = [("authorization", token.as_str())];
    let mut all = Seen { h: &h, doc, seen: BTreeSet::new() };
    let id = &key[8..20];
    for (template, method) in [
        ("status", "GET"),
        ("targets", "GET"),
        ("reasons", "GET"),
        ("groups", "GET"),
        ("limits", "GET"),
        ("requests", "GET"),
        ("requests/live", "GET"),
        ("keys", "GET"),
        ("keys", "POST"),
        ("keys/{id}", "GET"),
        ("keys/{id}", "PATCH"),
        ("keys/{id}", "DELETE"),
        ("keys/{id}/rotate", "POST"),
        ("plans", "GET"),
        ("models", "GET"),
        ("budgets", "GET"),
        ("usage", "GET"),
        ("outcomes", "GET"),
        ("audit", "GET"),
    ] {
        let path = template.replace("{id}", id);
        all.see(401, method, (template, &path), &[("authorization", "Bearer wrong")], "");
        // A host name that is not configured is refused with any token.
        let foreign = format!("{method} /admin/v1/{path} HTTP/1.1\r\nhost: elsewhere\r\n\r\n");
        let answer = Client::connect(h.admin).ask(foreign.as_bytes());
        let text = answer.text().to_string();
        let answer = Answer { status: answer.head.status, fields: answer.head.fields, body: text };
        assert_eq!(answer.status, 403, "{method} {path}");
        let template = format!("/admin/v1/{template}");
        check(&all.doc, &template, &method.to_ascii_lowercase(), &answer);
        all.seen.insert((template, method.to_ascii_lowercase(), 403));
    }
    for path in [
        "status", "targets", "reasons", "groups", "requests", "keys", "plans", "models", "budgets", "usage",
        "outcomes", "audit",
    ] {
        all.see(200, "GET", (path, path), &token, "");
    }
    for path in ["targets", "groups", "requests", "keys", "plans", "models", "budgets", "usage", "outcomes", "audit"] {
        all.see(400, "GET", (path, &format!("{path}?limit=none")), &token, "");
    }
    all.see(200, "GET", ("targets", "targets?minutes=60"), &token, "");
    all.see(200, "GET", ("limits", &format!("limits?key={id}")), &token, "");
    all.see(404, "GET", ("limits", "limits?key=nobody"), &token, "");
    all.see(200, "GET", ("usage", "usage?by=key,model&since=2020-01-01"), &token, "");
    let full = r#"{"name":"n","group":"labs","labels":{"team":"a"},"models":["small"],"endpoints":["chat"],"expires":"30d",
        "limits":[{"budget":2.5,"per":"5h"},"tokens/period=plan"]}"#;
    let once = [token[0], ("idempotency-key", "a")];
    let issued = all.see(200, "POST", ("keys", "keys"), &once, full);
    let new = issued["id"].as_str().unwrap();
    let repeated = all.see(200, "POST", ("keys", "keys"), &once, full);
    assert_eq!((&repeated["id"], &repeated["secret"]), (&issued["id"], &Value::Null));
    all.see(409, "POST", ("keys", "keys"), &once, r#"{"name":"m"}"#);
    all.see(400, "POST", ("keys", "keys"), &token, r#"{"colour":"red"}"#);
    let large = format!("{{\"name\":\"{}\"}}", "x".repeat(70_000));
    all.see(413, "POST", ("keys", "keys"), &token, &large);
    let (one, rotate) = (format!("keys/{new}"), format!("keys/{new}/rotate"));
    let (own, own_rotate) = (("keys/{id}", one.as_str()), ("keys/{id}/rotate", rotate.as_str()));
    all.see(200, "GET", own, &token, "");
    all.see(200, "PATCH", own, &token, r#"{"disabled":true,"limits":["requests=5/window"]}"#);
    all.see(409, "POST", own_rotate, &token, "");
    all.see(200, "PATCH", own, &token, r#"{"disabled":false}"#);
    all.see(400, "PATCH", own, &token, "{}");
    all.see(413, "PATCH", own, &token, &large);
    all.see(200, "POST", own_rotate, &token, r#"{"grace":"1h"}"#);
    all.see(400, "POST", own_rotate, &token, r#"{"grace":5}"#);
    all.see(409, "DELETE", own, &once, "");
    all.see(200, "DELETE", own, &token, "");
    all.see(409, "PATCH", own, &token, r#"{"name":"x"}"#);
    all.see(409, "POST", own_rotate, &token, "");
    for (template, method, path) in [
        ("keys/{id}", "GET", "keys/nobody"),
        ("keys/{id}", "DELETE", "keys/nobody"),
        ("keys/{id}/rotate", "POST", "keys/nobody/rotate"),
    ] {
        all.see(404, method, (template, path), &token, "");
    }
    all.see(404, "PATCH", ("keys/{id}", "keys/nobody"), &token, r#"{"name":"x"}"#);
    all.see(200, "GET", ("audit", "audit?limit=2"), &token, "");

    // The live feed does not end, so the test reads only its beginning.
    let mut live = Client::connect(h.admin);
    live.send(&request("GET", "/admin/v1/requests/live", &token));
    let head = live.head().unwrap();
    let mut body = String::new();
    assert_eq!(h.chat(&key, &chat("x\n#sim tokens=5")).status(), 200);
    while !body.contains("data: ") {
        body += &String::from_utf8(live.chunk().unwrap().expect("the feed continues")).unwrap();
    }
    let answer = Answer { status: head.status, fields: head.fields, body };
    check(&all.doc, "/admin/v1/requests/live", "get", &answer);
    all.seen.insert(("/admin/v1/requests/live".to_string(), "get".to_string(), 200));
    // Every operation of the document must have been answered.
    for (path, item) in all.doc["paths"].as_object().unwrap() {
        for method in item.as_object().unwrap().keys() {
            for status in [200, 401, 403] {
                assert!(all.seen.contains(&(path.clone(), method.clone(), status)), "{method} {path} {status}");
            }
        }
    }
}
