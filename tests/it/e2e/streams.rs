//! Streams of both endpoints: their events, the order, the usage, heartbeats, and broken ends.

use super::harness::{Harness, ROUTES, Setup, body, chat, is_chat, message, streamed, with};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

fn parsed(events: &[String]) -> Vec<Value> {
    events.iter().map(|event| serde_json::from_str(event).unwrap_or_else(|_| json!(event))).collect()
}

#[test]
fn a_chat_stream_is_chunks_then_done() {
    let h = Harness::usual();
    let answer = h.chat(&h.key(), &streamed(chat("one two three\n#sim tokens=5")));
    assert_eq!(answer.status(), 200);
    let events = parsed(&answer.events());
    let (last, chunks) = events.split_last().unwrap();
    assert_eq!(last, "[DONE]");
    assert!(answer.text().ends_with("data: [DONE]\n\n"), "the last event must end with a blank line");
    for chunk in chunks {
        assert_eq!((&chunk["object"], &chunk["model"]), (&json!("chat.completion.chunk"), &json!("small")));
        assert_eq!(chunk["id"], answer.id(), "every chunk carries the request id");
        assert!(chunk["usage"].is_null() && chunk["choices"][0].is_object(), "usage was not requested: {chunk}");
    }
    assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
    let text: String = chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(text.split(' ').count(), 5);
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "stop");
}

#[test]
fn requested_usage_comes_last() {
    let h = Harness::usual();
    let asked = with(streamed(chat("one two three\n#sim tokens=5")), "stream_options", json!({"include_usage": true}));
    let events = parsed(&h.chat(&h.key(), &asked).events());
    let usage = &events[events.len() - 2];
    assert_eq!(usage["choices"], json!([]));
    assert_eq!((&usage["usage"]["prompt_tokens"], &usage["usage"]["completion_tokens"]), (&json!(5), &json!(5)));
}

#[test]
fn a_messages_stream_has_named_events_in_order() {
    let h = Harness::usual();
    let answer = h.messages(&h.key(), &streamed(message("one two three\n#sim tokens=5")));
    let names: Vec<&str> = answer.text().lines().filter_map(|line| line.strip_prefix("event: ")).collect();
    let mut expected = vec!["message_start", "content_block_start"];
    expected.extend(["content_block_delta"; 5]);
    expected.extend(["content_block_stop", "message_delta", "message_stop"]);
    let without_pings: Vec<&str> = names.into_iter().filter(|name| *name != "ping").collect();
    assert_eq!(without_pings, expected);
    let events = parsed(&answer.events());
    assert_eq!((&events[0]["message"]["id"], &events[0]["message"]["model"]), (&json!(answer.id()), &json!("large")));
    assert_eq!(events[events.len() - 2]["usage"]["output_tokens"], 5);
}

/// A streamed and a complete answer with the same content have identical usage records.
#[test]
fn streamed_and_complete_answers_are_charged_alike() {
    let h = Harness::usual();
    let key = h.key();
    for shape in ROUTES {
        let asked = body(shape, "one two three four\n#sim tokens=9 cached=2 written=1");
        let whole = h.log_of(&h.generate(shape, &key, &asked).id());
        let stream = h.log_of(&h.generate(shape, &key, &streamed(asked)).id());
        for name in ["input", "cache_read", "cache_write", "output", "source"] {
            assert_eq!(whole[name], stream[name], "{shape} {name}");
        }
        assert_eq!((&whole["source"], &whole["output"]), (&json!("provider"), &json!(9)));
        assert_eq!((&whole["cache_read"], &whole["cache_write"]), (&json!(2), &json!(1)));
    }
    assert_eq!(h.used(&key), h.count("prompt_tokens") + h.count("completion_tokens"));
}

#[test]
fn events_arrive_while_the_rest_is_still_generated() {
    let h = Harness::usual();
    let key = h.key();
    // The provider pauses after these tokens. All of them must arrive: the gateway does not delay events.
    for tokens in [1, 2, 5] {
        let mut client = h.client();
        let asked = chat(&format!("go\n#sim tokens=40 stall_after={tokens}"));
        client.send(&super::harness::chat_request(&key, &streamed(asked)));
        assert_eq!(client.head().unwrap().status, 200);
        let mut seen = 0;
        while seen < tokens {
            let chunk = String::from_utf8(client.chunk().unwrap().unwrap()).unwrap();
            seen += chunk.matches(r#""delta":{"content":"#).count();
        }
    }
    let mut client = h.client();
    let start = Instant::now();
    client.send(&super::harness::chat_request(&key, &streamed(chat("go\n#sim tokens=40 pace=20"))));
    assert_eq!(client.head().unwrap().status, 200);
    let mut rest = 0;
    while let Some(chunk) = client.chunk().unwrap() {
        rest += chunk.len();
    }
    assert!(rest > 0 && start.elapsed() > Duration::from_millis(1700), "40 tokens at 20 a second");
}

/// After `heartbeat_after` without an event, the gateway sends the status and a heartbeat.
#[test]
fn heartbeats_are_sent_during_a_long_silence() {
    let h = Harness::start(&Setup { server: "heartbeat_after = \"300ms\"", ..Setup::default() });
    let key = h.key();
    for (shape, beat) in [("chat", ":"), ("messages", "event: ping\n")] {
        let answer = h.generate(shape, &key, &streamed(body(shape, "go\n#sim tokens=3 delay=3000")));
        assert_eq!(answer.status(), 200);
        let text = answer.text();
        assert!(text.starts_with(beat), "{shape}: {text}");
        assert!(text.matches(beat).count() >= 2, "expected a heartbeat per silent interval: {text}");
        assert_eq!(h.log_of(&answer.id())["output"], 3);
    }
}

#[test]
fn streams_are_understood_however_a_provider_sends_them() {
    let h = Harness::usual();
    let key = h.key();
    for shape in ROUTES {
        for how in ["crlf", "drip=1", "close", "no_done", "hint", "hang", "plain"] {
            if !is_chat(shape) && matches!(how, "no_done" | "hang") {
                continue;
            }
            let text = format!("hello there\n#sim echo {how}");
            let answer = h.generate(shape, &key, &streamed(body(shape, &text)));
            assert_eq!(answer.status(), 200, "{shape} {how}");
            let all = answer.text();
            assert!(all.contains("hello") && all.contains(" there"), "{shape} {how}: {all}");
            let end = if is_chat(shape) { "[DONE]" } else { "message_stop" };
            assert!(all.trim_end().lines().last().unwrap().contains(end), "{shape} {how}: {all}");
            assert_eq!(h.log_of(&answer.id())["status"], 200, "{shape} {how}");
        }
    }
}
