//! Races of relayed requests. An embedding of a hundred tokens reserves exactly what it is charged, so that limits and
//! budgets are exact to the request. A completion of several texts reserves for all of them.

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
fn limits_of_racing_embeddings_are_exact() {
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

#[test]
fn tokens_of_completions_with_several_texts_are_exact() {
    let own = "[[models]]\nid = \"texts\"\ncontext = \"8K\"\nserves = [\"completions\"]\n\
               targets = [{ provider = \"sim-chat\", model = \"up\" }]\n";
    let h = Harness::start(&Setup { more: format!("{}{own}", super::races::PLANS), ..Setup::default() });
    let at: [SocketAddr; 1] = [h.at];
    let (mut rows, mut input, mut output) = (0, 0, 0);
    // Ten texts of ten tokens each, plus the tokens of the prompt.
    for (asks, prompt) in [
        ("\"n\":10,\"prompt\":[1]", 1),
        ("\"best_of\":10,\"prompt\":[1]", 1),
        ("\"prompt\":[[1],[2],[3],[4],[5]],\"n\":2", 5),
    ] {
        for plan in ["period", "window"] {
            let key = h.key_with(&["--plan", plan]);
            let body = format!("{{\"model\":\"texts\",{asks},\"max_tokens\":10}}");
            let answers = race(&at, 200, 1, &post("/v1/completions", &[("authorization", &bearer(&key))], &body));
            let ok = admitted(&answers);
            println!("completions of {asks} under `{plan}`: {ok} of {} admitted", answers.len());
            assert_eq!(ok, 1000usize.div_ceil(prompt + 100), "{asks} {plan}");
            (rows, input, output) = (rows + ok as u64, input + (ok * prompt) as u64, output + 100 * ok as u64);
            let ledger = h.ledger(rows);
            assert_eq!((ledger.requests, ledger.input, ledger.output), (rows, input, output));
            assert_eq!(h.used(&key), (ok * (prompt + 100)) as u64);
        }
    }
    assert_eq!((h.count("requests"), h.count("prompt_tokens"), h.count("completion_tokens")), (rows, input, output));
    assert!(h.done(&["ledger", "verify"]).starts_with("ok:"));
}
