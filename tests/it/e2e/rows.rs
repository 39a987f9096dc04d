//! Rows of `tollgate requests` and of the admin API: what they say of a request's model, price and id, and of a session.

use super::client::{get, post};
use super::harness::{Harness, Setup, bearer, chat, with};
use serde_json::{Value, json};

fn start(server: &'static str) -> Harness {
    Harness::start(&Setup { server, ..Setup::default() })
}

fn rows(h: &Harness, query: &str) -> Vec<Value> {
    let list = get(h.admin, &format!("/admin/v1/requests{query}")).unwrap().json();
    list["data"].as_array().unwrap().clone()
}

#[test]
fn refused_requests_have_the_model_that_they_name() {
    let h = start("record_requests = true");
    let once = h.key_with(&["--requests", "1"]);
    assert_eq!(h.chat(&once, &chat("x\n#sim tokens=5")).status(), 200);
    // Refused by the head, before the body counts.
    assert_eq!(h.chat(&once, &with(chat("x"), "model", "hasty")).status(), 429);
    let key = h.key();
    assert_eq!(h.chat(&key, &with(chat("x"), "temperature", "hot")).status(), 400);
    let unread = h.client().ask(&post("/v1/chat/completions", &[("authorization", &*bearer(&key))], "{\"a\":"));
    assert_eq!(unread.status(), 400);
    let of = |row: &Value| (row["status"].as_u64().unwrap(), row["model"].as_str().map(str::to_owned));
    let seen: Vec<_> = rows(&h, "").iter().filter(|row| row["endpoint"] == "chat").map(of).collect();
    let model = |name: &str| Some(name.to_owned());
    assert_eq!(seen, [(400, None), (400, model("small")), (429, model("hasty")), (200, model("small"))]);
    let out = h.done(&["requests", "--model", "hasty"]);
    assert!(out.lines().count() == 2 && out.contains("limit: requests of the key"), "{out}");
}

#[test]
fn request_of_a_model_without_a_price_has_no_cost() {
    let h = start("record_requests = true");
    let key = h.key();
    let ids = ["hasty", "small"].map(|model| h.chat(&key, &with(chat("x\n#sim tokens=5"), "model", model)).id());
    let costs = ids.map(|id| rows(&h, &format!("?id={id}"))[0]["cost_usd"].as_f64());
    assert!(costs[0].is_none() && costs[1].is_some_and(|cost| cost > 0.0), "{costs:?}");
    h.ledger(2);
    let lines: Vec<String> = h.done(&["usage", "--by", "model"]).lines().map(str::to_owned).collect();
    let cost = |model: &str| {
        let line = lines.iter().find(|line| line.starts_with(model)).unwrap_or_else(|| panic!("{lines:?}"));
        line.split_whitespace().last().unwrap().to_owned()
    };
    assert_eq!((cost("hasty"), cost("small") == "-"), ("-".to_owned(), false), "{lines:?}");
}

#[test]
fn request_is_found_by_the_beginning_of_its_id() {
    let h = start("record_requests = true");
    let key = h.key();
    let ids: Vec<String> = (0..3).map(|_| h.chat(&key, &chat("x\n#sim tokens=5")).id()).collect();
    let table = h.done(&["requests"]);
    assert!(ids.iter().all(|id| table.contains(id.as_str())), "{table}");
    for id in [&ids[1][..], &ids[1][..12], &ids[1][4..12]] {
        let out = h.done(&["requests", "--id", id]);
        assert!(out.lines().any(|line| line == format!("{:<18}{}", "id", ids[1])), "{id}: {out}");
        assert_eq!(h.done(&["requests", "--json", "--id", id]).lines().count(), 1);
    }
    assert_eq!(h.command(&["requests", "--id", &ids[1][4..11]]).code, 2, "too short");
    assert_eq!(rows(&h, &format!("?id={}", &ids[1][..11])).len(), 0, "too short to be the beginning of an id");
}

#[test]
fn request_that_is_not_recorded_is_found_in_the_ledger() {
    let h = start("");
    let key = h.key();
    // Successes are recorded after the first look only.
    let ids: Vec<String> = (0..2).map(|_| h.chat(&key, &chat("x\n#sim tokens=20")).id()).collect();
    h.ledger(2);
    for id in [&ids[0], &ids[0][..20]] {
        let found = rows(&h, &format!("?id={id}"));
        let of = |name: &str| found[0][name].clone();
        assert_eq!((found.len(), of("id"), of("status"), of("output")), (1, json!(ids[0]), json!(200), json!(20)));
    }
    let out = h.done(&["requests", "--id", &ids[1]]);
    assert!(out.lines().any(|line| line == format!("{:<18}{}", "id", ids[1])), "{out}");
    assert!(out.contains("output 20; counts: provider"), "{out}");
    assert_eq!(rows(&h, "?id=req_00000000000000000000000000000000").len(), 0);
    assert_eq!(h.command(&["requests", "--id", "00000000000000000000000000000000"]).code, 1);
}

#[test]
fn cost_of_a_session_is_that_of_the_ledger() {
    let h = start("");
    let key = h.key();
    let ask = || h.chat(&key, &with(chat("x\n#sim tokens=2000"), "prompt_cache_key", "nightly")).status();
    // Successes are recorded after the first look only.
    (0..3).for_each(|_| assert_eq!(ask(), 200));
    h.command(&["requests"]);
    assert_eq!(ask(), 200);
    h.ledger(4);
    let said = h.command(&["requests", "--session", "nightly"]);
    assert_eq!((said.code, said.out.lines().count()), (0, 2), "{}", said.out);
    let usage = get(h.admin, "/admin/v1/usage?by=session&session=nightly").unwrap().json();
    let cost = usage["data"][0]["cost_usd"].as_f64().unwrap();
    let first = format!("The whole session, from the ledger: 4 requests, ${cost:.4}.\n");
    assert!(said.err.starts_with(&first), "{first}: {}", said.err);
    assert!(said.err.contains("\nKept of it, with refused requests: 1 request, "), "{}", said.err);
}
