//! The same races for what is relayed: an embedding of a hundred tokens reserves exactly what it is charged, so that
//! limits and budgets are exact to the request.

use super::client::post;
use super::harness::{Harness, Setup, bearer};
use super::races::{CONNECTIONS, EACH, admitted, race};
use std::net::SocketAddr;

/// Tokens of each request.
const TOKENS: usize = 100;

fn setup() -> Setup {
    let more = format!(
        "{}[[models]]\nid = \"vectors\"\ncontext = \"8K\"\nserves = [\"embeddings\"]\ninput_price = 10.0\noutput_price = 0\n\
         targets = [{{ provider = \"sim-chat\", model = \"up\" }}]\n\
         [[plans]]\nname = \"ten\"\nbudget = 0.01\n",
        super::races::PLANS
    );
    Setup { more, ..Setup::default() }
}

fn request(key: &str) -> Vec<u8> {
    let tokens: Vec<String> = (0..TOKENS).map(|token| token.to_string()).collect();
    let body = format!("{{\"model\":\"vectors\",\"input\":[{}]}}", tokens.join(","));
    post("/v1/embeddings", &[("authorization", &bearer(key))], &body)
}

#[test]
fn requests_tokens_and_budgets_of_embeddings_are_exact_however_many_race() {
    let h = Harness::start(&setup());
    let at: [SocketAddr; 1] = [h.at];
    let mut rows = 0;
    for (plan, connections, each, most) in [
        ("requests", CONNECTIONS, EACH, 137),
        ("period", 200, 1, 1000 / TOKENS),
        ("window", 200, 1, 1000 / TOKENS),
        ("ten", 200, 1, 10),
    ] {
        let key = h.key_with(&["--plan", plan]);
        let answers = race(&at, connections, each, &request(&key));
        let ok = admitted(&answers);
        println!("embeddings under `{plan}`: {ok} of {} admitted, {most} allowed", answers.len());
        assert_eq!(ok, most, "{plan}");
        rows += ok as u64;
        let ledger = h.ledger(rows);
        assert_eq!((ledger.requests, ledger.input, ledger.output), (rows, rows * TOKENS as u64, 0));
        assert_eq!(h.used(&key), (most * TOKENS) as u64);
    }
    assert_eq!((h.count("requests"), h.count("prompt_tokens")), (rows, rows * TOKENS as u64));
    assert!(h.done(&["ledger", "verify"]).starts_with("ok:"));
}
