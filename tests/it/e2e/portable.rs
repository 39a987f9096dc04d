//! One complete request in every API format, short enough for a binary that runs under an emulator: `scripts/test
//! cross` sets `TOLLGATE_BIN` to a binary for another architecture.

use super::client::post;
use super::harness::{Harness, bearer, chat, message, streamed, with};
use serde_json::json;

#[test]
fn requests_of_every_format_are_answered_and_recorded() {
    let mut h = Harness::usual();
    let key = h.key();
    let text = "one two three\n#sim tokens=7";
    let formats = [
        ("/v1/chat/completions", chat(text), "[DONE]"),
        ("/v1/messages", message(text), "message_stop"),
        ("/v1/responses", json!({ "model": "small", "input": text }), "response.completed"),
    ];
    for (path, body, end) in formats {
        let ask = |body: &serde_json::Value| post(path, &[("authorization", &bearer(&key))], &body.to_string());
        for model in ["small", "large"] {
            let body = with(body.clone(), "model", model);
            let whole = h.client().ask(&ask(&body));
            assert_eq!(whole.status(), 200, "{path} {model}: {}", whole.text());
            let usage = &whole.json()["usage"];
            let output = usage.get("completion_tokens").or(usage.get("output_tokens"));
            assert_eq!(output, Some(&json!(7)), "{path} {model}");
            let stream = h.client().ask(&ask(&streamed(body)));
            assert!(
                stream.events().last().is_some_and(|event| event.contains(end)),
                "{path} {model}: {}",
                stream.text()
            );
        }
    }
    assert_eq!(h.count("requests"), 12);
    assert!(h.gateway.stop("TERM").success());
    assert!(h.done(&["ledger", "verify"]).contains("agree with 12 usage records"));
    h.start_again();
    assert_eq!(h.used(&key), h.count("prompt_tokens") + h.count("completion_tokens"));
}
