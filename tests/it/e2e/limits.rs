//! Limits per key, their headers, and how many requests they admit.

use super::client::{Answer, post};
use super::harness::{Harness, Setup, bearer, chat, message, streamed, with};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

fn header(answer: &Answer, name: &str) -> u64 {
    let value = answer.head.get(name).unwrap_or_else(|| panic!("{name}: {:?}", answer.head));
    value.parse().unwrap_or_else(|_| panic!("{name}: {value}"))
}

fn is_refused(answer: &Answer) -> bool {
    let refused = answer.status() == 429;
    if refused {
        assert_eq!(answer.json()["error"]["type"], "rate_limit_error");
        assert!(header(answer, "retry-after") >= 1);
        let reset = answer.head.get("x-ratelimit-reset").unwrap();
        assert!(reset.len() == 20 && reset.ends_with('Z'), "{reset}");
    }
    refused
}

#[test]
fn every_response_under_v1_has_limit_headers() {
    let h = Harness::usual();
    let key = h.key_with(&["--plan", "allowance"]);
    let answers = [
        h.get("/v1/models", &key),
        h.get("/v1/quota", &key),
        h.get("/v1/nothing", &key),
        h.chat(&key, &with(chat("x"), "model", "no-such")),
        h.chat(&key, &chat("x\n#sim tokens=3")),
        h.messages(&key, &message("x\n#sim tokens=3")),
    ];
    for answer in &answers {
        header(answer, "x-ratelimit-remaining-requests");
        assert!(header(answer, "x-ratelimit-remaining-tokens") <= 40);
        assert!(answer.head.get("x-ratelimit-reset").unwrap().ends_with('Z'));
        assert_eq!(answer.head.get("retry-after"), None);
    }
    let used = h.used(&key);
    assert!(used > 0);
    assert_eq!(header(&h.get("/v1/models", &key), "x-ratelimit-remaining-tokens"), 40 - used);
    assert_eq!(h.client().ask(&super::client::request("GET", "/v1/quota", &[])).head.get("x-ratelimit-reset"), None);
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
    assert!(is_refused(&refused) && refused.text().contains("of 3 requests per day is reached"), "{}", refused.text());
}

#[test]
fn rate_limit_admits_exactly_its_number_per_key() {
    let h = Harness::usual();
    let key = h.key_with(&["--plan", "two"]);
    let other = h.key_with(&["--plan", "two"]);
    let first = h.chat(&key, &chat("x"));
    assert_eq!((first.status(), header(&first, "x-ratelimit-remaining-requests")), (200, 1));
    assert_eq!(h.chat(&key, &with(chat("x"), "messages", 5)).status(), 400, "a 4xx before admission must not count");
    let second = h.messages(&key, &message("x"));
    assert_eq!((second.status(), header(&second, "x-ratelimit-remaining-requests")), (200, 0));
    for _ in 0..2 {
        let third = h.chat(&key, &chat("x"));
        assert!(is_refused(&third) && third.text().contains("requests"), "{}", third.text());
        assert_eq!(third.head.get("x-should-retry"), Some("false"), "the window ends in more than a minute");
    }
    assert_eq!(h.get("/v1/models", &key).status(), 200, "the model list must work at the limit");
    let quota = h.get("/v1/quota", &key).json();
    assert_eq!((&quota["rate_limit"]["limit"], &quota["rate_limit"]["remaining"]), (&2.into(), &0.into()));
    assert_eq!(h.chat(&other, &chat("x")).status(), 200, "limits are per key");
}

#[test]
fn the_rate_limit_holds_under_concurrency() {
    let h = Harness::usual();
    let key = h.key_with(&["--plan", "two"]);
    let asked = chat("x\n#sim delay=200");
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let racers: Vec<_> = (0..16).map(|_| scope.spawn(|| h.chat(&key, &asked).status())).collect();
        racers.into_iter().map(|racer| racer.join().unwrap()).collect()
    });
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 2, "{statuses:?}");
    assert_eq!(statuses.iter().filter(|status| **status == 429).count(), 14, "{statuses:?}");
}

#[test]
fn a_spent_quota_refuses_until_the_next_period() {
    let h = Harness::usual();
    let key = h.key_with(&["--plan", "allowance"]);
    let asked = with(chat("one\n#sim tokens=30"), "max_tokens", 30);
    let mut statuses = Vec::new();
    for _ in 0..4 {
        let answer = h.chat(&key, &asked);
        if is_refused(&answer) {
            assert_eq!(
                answer.head.get("x-should-retry"),
                Some("false"),
                "a client must not retry until the next month"
            );
            assert!(answer.head.get("x-ratelimit-reset").unwrap().contains("-01T00:00:00Z"));
            let renews = h.get("/v1/quota", &key).json()["period"]["renews"].as_str().unwrap().to_owned();
            assert!(answer.head.get("x-ratelimit-reset").unwrap().starts_with(&renews));
        }
        statuses.push(answer.status());
    }
    assert_eq!(statuses, [200, 200, 429, 429], "33 tokens each, 40 allowed");
    assert_eq!(h.used(&key), h.count("prompt_tokens") + h.count("completion_tokens"));
}

#[test]
fn tokens_per_window_and_concurrency_are_limits_too() {
    let h = Harness::usual();
    let key = h.key_with(&["--plan", "window-tokens"]);
    let asked = with(chat("one\n#sim tokens=30"), "max_tokens", 30);
    let statuses = [(); 3].map(|()| h.chat(&key, &asked).status());
    assert_eq!(statuses, [200, 200, 429]);

    let key = h.key_with(&["--plan", "single"]);
    let mut busy = h.client();
    busy.send(&super::harness::chat_request(&key, &streamed(chat("x\n#sim tokens=60 pace=10"))));
    assert_eq!(busy.head().unwrap().status, 200);
    assert!(is_refused(&h.chat(&key, &chat("x"))), "one concurrent request is allowed");
    while busy.chunk().unwrap().is_some() {}
    super::process::wait_for("the slot", || (h.chat(&key, &chat("x")).status() == 200).then_some(()));
}

#[test]
fn a_new_window_admits_again() {
    let more = "[[plans]]\nname = \"short\"\nrequests = 1\nwindow = \"2s\"\n".to_owned();
    let h = Harness::start(&Setup { more, ..Setup::default() });
    let key = h.key_with(&["--plan", "short"]);
    let waited = || {
        let refused = super::process::wait_for("a refusal", || Some(h.chat(&key, &chat("x"))).filter(is_refused));
        assert!(header(&refused, "retry-after") <= 2);
        let start = Instant::now();
        super::process::wait_for("the next window", || (h.chat(&key, &chat("x")).status() == 200).then_some(()));
        start.elapsed()
    };
    // Time from a refusal to the end of its window. The median ignores single delays of a busy machine.
    let mut times = [(); 5].map(|()| waited());
    times.sort();
    assert!(times[2] < Duration::from_millis(2500), "{times:?}");
}

#[test]
fn an_unlimited_plan_shows_the_largest_safe_integer() {
    let more = "[[plans]]\nname = \"free\"\n".to_owned();
    let h = Harness::start(&Setup { more, ..Setup::default() });
    let key = h.key_with(&["--plan", "free"]);
    let quota = h.get("/v1/quota", &key).json();
    assert_eq!(quota["tokens"]["total"], 9_007_199_254_740_991u64);
    assert_eq!(quota["rate_limit"]["limit"], 9_007_199_254_740_991u64);
}

#[test]
fn a_request_that_exceeds_the_request_timeout_is_504() {
    let h = Harness::usual();
    let key = h.key();
    let start = Instant::now();
    let answer = h.chat(&key, &with(chat("x\n#sim tokens=400 pace=10"), "model", "hasty"));
    assert_eq!(answer.status(), 504);
    // The complete answer would have taken 40 s.
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    // Nearly all of the time passed while the provider sent nothing.
    let us = &h.log_of(&answer.id())["us"];
    let [wait, total] = ["wait", "total"].map(|phase| us[phase].as_u64().unwrap_or_default());
    assert!(wait * 2 > total && wait <= total && us["relay"].is_null(), "{us}");
}

/// A request to any endpoint counts, and at the limit every endpoint refuses, under a limit of requests as well as of
/// concurrent ones.
#[test]
fn no_endpoint_escapes_a_limit() {
    let more = "[[plans]]\nname = \"one\"\nrequests = 1\nwindow = \"7d\"\n\
                [[models]]\nid = \"vectors\"\ncontext = \"8K\"\nserves = [\"embeddings\", \"rerank\", \"completions\"]\n\
                targets = [{ provider = \"sim-chat\", model = \"up-vectors\" }]";
    let h = Harness::start(&Setup { more: more.to_owned(), ..Setup::default() });
    let requests = [
        ("/v1/chat/completions", chat("x")),
        ("/v1/messages", message("x")),
        ("/v1/responses", json!({ "model": "small", "input": "x" })),
        ("/v1/embeddings", json!({ "model": "vectors", "input": "x" })),
        ("/v1/rerank", json!({ "model": "vectors", "query": "x", "documents": ["a", "b"] })),
        ("/v1/completions", json!({ "model": "vectors", "prompt": "x" })),
    ];
    let ask = |key: &str, (path, body): &(&str, Value)| {
        h.client().ask(&post(path, &[("authorization", &bearer(key))], &body.to_string()))
    };
    for first in &requests {
        let key = h.key_with(&["--plan", "one"]);
        let answer = ask(&key, first);
        assert_eq!(answer.status(), 200, "{}: {}", first.0, answer.text());
        for next in &requests {
            assert!(is_refused(&ask(&key, next)), "{} after {}", next.0, first.0);
        }
    }
    let key = h.key_with(&["--plan", "single"]);
    let mut busy = h.client();
    busy.send(&super::harness::chat_request(&key, &streamed(chat("x\n#sim tokens=100000 pace=10"))));
    assert_eq!(busy.head().unwrap().status, 200);
    for next in &requests {
        assert!(is_refused(&ask(&key, next)), "{}", next.0);
    }
}

/// A target's limit of concurrent requests also holds for those that another target has failed.
#[test]
fn failover_exceeds_no_concurrency_limit() {
    let more = "[[models]]\nid = \"pair\"\ncontext = \"8K\"\ntargets = [\n\
                { provider = \"nobody\", model = \"a\", concurrency = 9 },\n\
                { provider = \"sim-chat\", model = \"up-pair\", concurrency = 1, priority = 1 }]";
    let h = Harness::start(&Setup { more: more.to_owned(), ..Setup::default() });
    let (key, single) = (h.key(), h.key_with(&["--plan", "single"]));
    let mut busy = h.client();
    let body = with(streamed(chat("x\n#sim tokens=100000 pace=10")), "model", "pair");
    busy.send(&super::harness::chat_request(&single, &body));
    assert_eq!(busy.head().unwrap().status, 200);
    let asked = with(chat("x"), "model", "pair");
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let racers: Vec<_> = (0..8).map(|_| scope.spawn(|| h.chat(&key, &asked).status())).collect();
        racers.into_iter().map(|racer| racer.join().unwrap()).collect()
    });
    // The response is 503 while the first target cools down.
    let none = statuses.iter().all(|status| [500, 503].contains(status));
    assert!(none, "the slot of the second target is taken: {statuses:?}");
    assert!(is_refused(&h.chat(&single, &chat("x"))), "its key has one request, whatever target answers it");
    drop(busy);
    super::process::wait_for("the slot", || (h.chat(&key, &asked).status() == 200).then_some(()));
    super::process::wait_for("the key", || (h.chat(&single, &chat("x")).status() == 200).then_some(()));
}
