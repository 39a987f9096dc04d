//! Bounds on large requests and answers: sizes of heads and bodies, `max_event`, `max_response`, and a store that lags.

use super::client::{Client, get, request};
use super::harness::{Harness, ROUTES, Setup, bearer, body, chat, chat_request, gauge, streamed, with};
use super::process::wait_for;

#[test]
fn large_requests_and_answers_arrive_whole() {
    let h = Harness::usual();
    let key = h.key();
    for shape in ROUTES {
        let text = format!("{}\n#sim big=5000000", "größer ".repeat(1_000_000));
        let answer = h.generate(shape, &key, &body(shape, &text));
        assert_eq!(answer.status(), 200);
        assert!(answer.body.len() > 5_000_000);
        assert_eq!(h.log_of(&answer.id())["input"], 1_000_002, "{shape}");
        let answer = h.generate(shape, &key, &streamed(body(shape, "one event\n#sim big=5000000")));
        assert!(answer.status() == 200 && answer.body.len() > 5_000_000, "{shape}: an event of 5 MB");
    }
    let most = "x".repeat((32 << 20) - 1000);
    assert_eq!(h.chat(&key, &chat(&most)).status(), 200, "32 MiB are allowed");
    let log = h.gateway.resident();
    assert!(log < 400 << 20, "{log}");
}

#[test]
fn an_event_above_max_event_and_an_answer_above_max_response_are_upstream_errors() {
    let h = Harness::start(&Setup { upstream: "max_event = \"64KiB\"\nmax_response = \"128KiB\"", ..Setup::default() });
    let key = h.key();
    for shape in ROUTES {
        let whole = h.generate(shape, &key, &body(shape, "x\n#sim big=200000"));
        assert_eq!(whole.status(), 500);
        assert!(whole.text().contains("max_response"), "{}", whole.text());
        let stream = h.generate(shape, &key, &streamed(body(shape, "x\n#sim big=100000")));
        assert!(stream.text().contains("max_event"), "{shape}: {}", stream.text());
        assert!(!stream.text().contains("[DONE]") && !stream.text().contains("message_stop"));
        let fits = h.generate(shape, &key, &streamed(body(shape, "x\n#sim big=50000")));
        assert!(fits.status() == 200 && !fits.text().contains("\"error\":{"), "{shape}");
    }
}

#[test]
fn one_key_holds_at_most_a_quarter_of_the_buffers() {
    let h = Harness::start(&Setup { server: "max_body = \"1MiB\"\nmax_buffered = \"4MiB\"", ..Setup::default() });
    let (key, other) = (h.key(), h.key());
    let text = chat(&"x".repeat(900_000)).to_string();
    let length = text.len().to_string();
    let head = |key: &str| {
        let fields = [("authorization", bearer(key)), ("content-length", length.clone())];
        let fields: Vec<(&str, &str)> = fields.iter().map(|(name, value)| (*name, value.as_str())).collect();
        request("POST", "/v1/chat/completions", &fields)
    };
    let mut holding = h.client();
    holding.send(&head(&key));
    holding.send(&text.as_bytes()[..text.len() - 10]);
    wait_for("the body to be buffered", || (gauge(&h, "tollgate_buffered_bytes") > 800_000).then_some(()));
    let refused = h.client().ask(&head(&key));
    assert_eq!((refused.status(), refused.json()["error"]["type"].as_str()), (503, Some("upstream_error")));
    assert!(refused.head.get("retry-after").is_some());
    assert_eq!(h.chat(&key, &chat("small")).status(), 200, "small requests must pass");
    let mut neighbour = h.client();
    assert_eq!(
        neighbour.ask(&[head(&other), text.clone().into_bytes()].concat()).status(),
        200,
        "requests of other keys must pass too"
    );
    assert_eq!(holding.ask(&text.as_bytes()[text.len() - 10..]).status(), 200);
    let again = h.client().ask(&[head(&key), text.into_bytes()].concat());
    assert_eq!(again.status(), 200, "the buffered bytes must be released");
}

#[test]
fn new_connections_are_served_while_buffers_are_nearly_full() {
    let h = Harness::start(&Setup { server: "max_body = \"1MiB\"\nmax_buffered = \"8MiB\"", ..Setup::default() });
    let keys: Vec<String> = (0..7).map(|_| h.key()).collect();
    let text = chat(&"x".repeat(980_000)).to_string();
    let (most, last) = text.split_at(text.len() - 10);
    let length = text.len().to_string();
    let auth = bearer(&keys[0]);
    let quota = request("GET", "/v1/quota", &[("authorization", &auth)]);
    let mut holding: Vec<Client> = keys.iter().map(|_| h.client()).collect();
    holding.iter_mut().for_each(|client| assert_eq!(client.ask(&quota).status(), 200));
    for (client, key) in holding.iter_mut().zip(&keys) {
        let auth = bearer(key);
        let head = request("POST", "/v1/chat/completions", &[("authorization", &auth), ("content-length", &length)]);
        client.send(&[&head, most.as_bytes()].concat());
    }
    wait_for("the buffers to fill", || (gauge(&h, "tollgate_buffered_bytes") > (8 << 20) / 5 * 4).then_some(()));
    assert_eq!(h.client().ask(&quota).status(), 200, "a new connection does not wait for others' bodies");
    assert_eq!(get(h.admin, "/healthz").unwrap().status(), 200);
    for client in &mut holding {
        assert_eq!(client.ask(last.as_bytes()).status(), 200);
    }
}

#[test]
fn connections_beyond_the_limit_get_an_error() {
    let h = Harness::start(&Setup { server: "max_connections = 20", ..Setup::default() });
    let key = h.key();
    let mut held: Vec<Client> = Vec::new();
    wait_for("earlier connections to end", || {
        held.clear();
        held.extend((0..20).map(|_| h.client()));
        let auth = bearer(&key);
        let quota = request("GET", "/v1/quota", &[("authorization", &auth)]);
        let all = held.iter_mut().all(|client| client.ask(&quota).status() == 200);
        // The beginning of another request: an idle connection would make room.
        held.iter_mut().for_each(|client| client.send(&quota[..10]));
        all.then_some(())
    });
    wait_for("all beginnings to be read", || (gauge(&h, "tollgate_buffered_bytes") >= 20 * 2048).then_some(()));
    let mut beyond = h.client();
    beyond.send(&chat_request(&key, &chat("x")));
    let answer = beyond.answer().unwrap();
    assert_eq!((answer.status(), answer.json()["error"]["type"].as_str()), (503, Some("upstream_error")));
    assert!(answer.head.get("retry-after").is_some());
    drop(held);
    wait_for("room", || (h.chat(&key, &chat("x")).status() == 200).then_some(()));
}

/// No request passes without being recorded, and a failing store never causes a 401.
#[test]
fn a_ledger_that_cannot_be_written_stops_admission_until_it_has_caught_up() {
    let h = Harness::usual();
    let text = std::fs::read_to_string(h.folder.path().join("tollgate.toml")).unwrap();
    assert!(text.contains("sqlite:tollgate.db"));
    let mut h = h;
    h.gateway.stop("TERM");
    let text = text.replace("[store]\n", "[store]\nmax_commit_lag = \"500ms\"\n");
    std::fs::write(h.folder.path().join("tollgate.toml"), text).unwrap();
    h.start_again();
    let key = h.key();
    let blocker = rusqlite::Connection::open(h.folder.path().join("tollgate.db")).unwrap();
    blocker.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mut admitted = 0;
    let refused = wait_for("a refusal", || {
        let answer = h.chat(&key, &chat("x\n#sim tokens=2"));
        admitted += u64::from(answer.status() == 200);
        (answer.status() != 200).then_some(answer)
    });
    assert_eq!((refused.status(), refused.json()["error"]["type"].as_str()), (503, Some("upstream_error")));
    assert!(refused.head.get("retry-after").is_some());
    assert_eq!(super::client::get(h.admin, "/readyz").unwrap().status(), 503);
    assert_eq!(h.status_of("tg_live_wrong"), 401);
    blocker.execute_batch("ROLLBACK").unwrap();
    wait_for("admission", || {
        let answer = h.chat(&key, &with(chat("x\n#sim tokens=2"), "user", "again"));
        admitted += u64::from(answer.status() == 200);
        (answer.status() == 200).then_some(())
    });
    let ledger = h.ledger(admitted);
    assert_eq!((ledger.requests, ledger.tokens()), (admitted, h.used(&key)), "no usage may be lost in the meantime");
}

#[test]
fn hundreds_of_streams_run_concurrently() {
    let h = Harness::usual();
    let key = h.key();
    let before = h.gateway.resident();
    let mut clients: Vec<Client> = (0..500).map(|_| h.client()).collect();
    for (at, client) in clients.iter_mut().enumerate() {
        let text = format!("stream-{at}{}\n#sim echo pace=20", " word".repeat(20));
        client.send(&chat_request(&key, &streamed(chat(&text))));
    }
    let grown = h.gateway.resident().saturating_sub(before);
    for (at, client) in clients.iter_mut().enumerate() {
        let answer = client.answer().unwrap();
        assert_eq!(answer.status(), 200, "{}", answer.text());
        assert!(answer.text().contains(&format!("\"stream-{at}\"")) && answer.text().ends_with("[DONE]\n\n"));
    }
    assert!(grown < 32 << 20, "500 streams take {grown} bytes");
    assert_eq!(h.ledger(500).output, 500 * 21);
}
