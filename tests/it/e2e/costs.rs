//! The cost of a request is the same number in its answer, its usage record, its trace and the sums.

use super::client::{Client, post};
use super::collector::Collector;
use super::harness::{Harness, Setup, bearer, chat, message, with};
use super::process::wait_for;
use serde_json::{Value, json};
use std::collections::BTreeMap;

const THREADS: u64 = 12;

/// Number of requests of each thread. `COST_REQUESTS` sets it for all together.
fn each() -> u64 {
    let wanted = std::env::var("COST_REQUESTS").ok().and_then(|text| text.parse::<u64>().ok());
    wanted.unwrap_or(600).div_ceil(THREADS)
}

/// Returns the cost that an answer names, in nano-dollars.
fn named(head: Option<&str>, text: &str) -> u64 {
    let last = || text.rsplit_once("\"cost\":").and_then(|(_, rest)| rest.split([',', '}']).next());
    let cost = head.or_else(last).unwrap_or_else(|| panic!("no cost in {text}"));
    (cost.parse::<f64>().unwrap() * 1e9).round() as u64
}

#[test]
fn responses_records_traces_and_sums_have_the_same_cost() {
    let collector = Collector::start();
    let more = format!("[telemetry]\notlp = \"http://{}\"\n", collector.at);
    let h = Harness::start(&Setup { more, ..Setup::default() });
    let key = h.key();
    let fields = [("authorization", &*bearer(&key)), ("x-tollgate-include-cost", "true")];
    let each = each();
    let ask = |thread: u64| {
        let mut client = Client::connect(h.at);
        let mut costs = Vec::new();
        for number in 0..each {
            let seed = thread * each + number;
            let text = format!("{}\n#sim tokens={} cached={}", "word ".repeat(seed as usize % 90), seed % 37, seed % 5);
            let model = if seed.is_multiple_of(2) { "small" } else { "large" };
            let (path, body) = match seed % 3 {
                0 => ("/v1/chat/completions", with(chat(&text), "model", model)),
                1 => ("/v1/messages", with(message(&text), "model", model)),
                _ => ("/v1/responses", json!({ "model": model, "input": text })),
            };
            let body = with(body, "stream", seed % 7 < 3);
            let answer = client.ask(&post(path, &fields, &body.to_string()));
            assert_eq!(answer.status(), 200, "{}", answer.text());
            costs.push((answer.id(), named(answer.head.get("x-tollgate-cost"), answer.text())));
        }
        costs
    };
    let costs: BTreeMap<String, u64> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || ask(thread))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(costs.len() as u64, THREADS * each);
    h.ledger(THREADS * each);
    let sum: u64 = costs.values().sum();
    for by in ["key", "model", "day", "endpoint"] {
        let lines = h.usage(by);
        assert_eq!(lines.iter().map(|line| line["cost_nano_usd"].as_u64().unwrap()).sum::<u64>(), sum, "{by}");
    }
    let text = h.done(&["ledger", "export"]);
    let row = |line: &str| -> (String, u64) {
        let row: Value = serde_json::from_str(line).unwrap();
        (row["request_id"].as_str().unwrap().to_owned(), row["cost_nano_usd"].as_u64().unwrap())
    };
    assert_eq!(text.lines().map(row).collect::<BTreeMap<String, u64>>(), costs);
    // Of more requests than these, spans may be lost while the collector reads others.
    let spans = wait_for("the spans", || {
        let spans = collector.spans();
        let own: BTreeMap<String, u64> = spans
            .iter()
            .filter(|span| span.parent.is_empty())
            .map(|span| (span.text("tollgate.request.id").to_owned(), span))
            .filter(|(id, _)| costs.contains_key(id))
            .map(|(id, span)| (id, (span.attributes["gen_ai.usage.cost"].as_f64().unwrap() * 1e9).round() as u64))
            .collect();
        (own.len() >= costs.len().min(600)).then_some(own)
    });
    println!("{} answers, records and traces name the same cost", spans.len());
    for (id, cost) in &spans {
        assert_eq!(cost, &costs[id], "{id}");
    }
}
