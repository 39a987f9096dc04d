//! Charges when the provider reports no usage: texts that look cheap to tokenize must be charged in full. Runs the real
//! binary.

use super::client::post;
use super::harness::{Harness, Setup, bearer, chat, chat_request, streamed, with};
use super::races::{admitted, race};
use serde_json::{Value, json};

/// A budget of one dollar, and a model whose prompts cost $10 per million tokens.
const DEAR: &str = "[[models]]\nid = \"dear\"\ncontext = \"1M\"\nserves = [\"chat\", \"completions\"]\n\
                    input_price = 10.0\noutput_price = 0\nreserve_tokens = 64\n\
                    targets = [{ provider = \"sim-chat\", model = \"up\" }]\n\
                    [[plans]]\nname = \"dollar\"\nbudget = 1.0\n";

fn start() -> Harness {
    Harness::start(&Setup { more: DEAR.to_owned(), ..Setup::default() })
}

/// Returns ten thousand words, each followed by two backslashes with letters after them, which the JSON body escapes as
/// `\\u`.
fn words() -> String {
    r"heron \u\u ".repeat(10_000)
}

/// Returns a request for `dear` that the provider answers as `sim` says.
fn dear(sim: &str) -> Value {
    with(chat(&format!("{}\n#sim {sim} no_usage", words())), "model", "dear")
}

/// Returns the minimum cost of such a prompt in dollars, and the maximum number of requests within a budget of one
/// dollar.
fn least() -> (f64, usize) {
    let dollars = words().len() as f64 / 8.0 * 10e-6;
    (dollars, (1.0 / dollars).ceil() as usize)
}

fn used(h: &Harness, key: &str) -> f64 {
    h.get("/v1/quota", key).json()["budget"]["used"].as_f64().unwrap()
}

#[test]
fn racing_prompts_of_escaped_backslashes_stay_within_budget() {
    let h = start();
    let key = h.key_with(&["--plan", "dollar"]);
    let answers = race(&[h.at], 40, 1, &chat_request(&key, &dear("tokens=1 delay=1500")));
    let (dollars, most) = least();
    let (ok, spent) = (admitted(&answers), used(&h, &key));
    println!("{ok} of 40 admitted for ${spent}, {most} allowed");
    assert!((1..=most).contains(&ok), "{ok} of 40 admitted, {most} allowed");
    assert!(spent >= ok as f64 * dollars, "{spent}");
    // The budget plus the reservation of the last admitted request.
    assert!(spent <= 1.0 + spent / ok as f64, "{spent}");
    assert!(h.done(&["ledger", "verify"]).starts_with("ok:"));
}

#[test]
fn abandoned_streams_spend_the_budget() {
    let h = start();
    let key = h.key_with(&["--plan", "dollar"]);
    let request = chat_request(&key, &streamed(dear("tokens=50 stall_after=20")));
    let (dollars, most) = least();
    for left in 0..=most {
        let mut client = h.client();
        client.send(&request);
        let head = client.head().unwrap();
        if head.status == 429 {
            let spent = used(&h, &key);
            assert!(spent >= 1.0, "{spent}");
            return;
        }
        assert_eq!(head.status, 200);
        client.chunk().unwrap();
        drop(client);
        let ledger = h.ledger(left as u64 + 1);
        let least = (left as f64 + 1.0) * dollars / 10e-6;
        assert!(ledger.input as f64 >= least && ledger.output > 0, "{ledger:?} after {left}");
    }
    panic!("{} streams were abandoned, and the budget is not spent: {}", most + 1, used(&h, &key));
}

#[test]
fn complete_answers_without_usage_are_charged_on_every_endpoint() {
    let h = start();
    let key = h.key();
    let mut rows = 0;
    for (path, text) in [("/v1/chat/completions", "content"), ("/v1/completions", "text")] {
        let asked = "say it\n#sim big=60000 no_usage";
        let body = match text {
            "text" => json!({ "model": "dear", "prompt": asked, "max_tokens": 100_000 }),
            _ => with(with(chat(asked), "model", "dear"), "max_tokens", 100_000),
        };
        let before = h.ledger(rows).output;
        let answer = h.client().ask(&post(path, &[("authorization", &bearer(&key))], &body.to_string()));
        assert_eq!(answer.status(), 200, "{}", answer.text());
        let choice = &answer.json()["choices"][0];
        let said = choice["message"]["content"].as_str().or(choice["text"].as_str()).unwrap().len() as u64;
        assert!(said >= 10_000, "{path}: {said}");
        rows += 1;
        let output = h.ledger(rows).output - before;
        assert!(output * 8 >= said, "{path}: {output} tokens for {said} bytes");
    }
}
