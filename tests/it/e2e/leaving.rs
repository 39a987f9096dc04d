//! Clients that disconnect and clients that do not read: their charges, and the end of their provider requests.

use super::client::Client;
use super::harness::{Harness, Setup, body, chat, chat_request, is_chat, messages_request, streamed, with};
use super::process::wait_for;
use serde_json::Value;
use std::time::Duration;

/// Sends a request that the client will abandon.
fn begin(h: &Harness, shape: &str, key: &str, body: &Value) -> Client {
    let mut client = h.client();
    client.send(&if is_chat(shape) { chat_request(key, body) } else { messages_request(key, body) });
    client
}

fn left(h: &Harness, count: u64) {
    wait_for("the provider to see its client leave", || (h.count("aborted") >= count).then_some(()));
}

#[test]
fn disconnect_in_mid_stream_closes_the_upstream_and_is_charged() {
    let h = Harness::usual();
    for (count, shape) in [(1, "chat"), (2, "messages")] {
        let key = h.key();
        let mut client = begin(&h, shape, &key, &streamed(body(shape, "one two\n#sim tokens=10000 pace=50")));
        assert_eq!(client.head().unwrap().status, 200);
        for _ in 0..8 {
            client.chunk().unwrap().unwrap();
        }
        drop(client);
        left(&h, count);
        let ledger = h.ledger(count);
        assert_eq!(ledger.requests, count, "each request must have one usage record");
        let line = wait_for("the log line", || h.log().into_iter().rfind(|line| line["status"] == 499));
        assert!(matches!(line["source"].as_str(), Some("partial" | "estimated")), "{line}");
        let used = h.used(&key);
        assert!(
            (5..200).contains(&used),
            "charged must be at least the prompt and the relayed tokens, not the rest: {used}"
        );
    }
}

#[test]
fn disconnect_before_the_first_byte_is_charged_for_the_prompt() {
    let h = Harness::usual();
    for (count, shape, stream) in [(1, "chat", false), (2, "messages", false), (3, "chat", true), (4, "messages", true)]
    {
        let key = h.key();
        let asked = with(body(shape, "some words that cost\n#sim stall_head"), "stream", stream);
        let client = begin(&h, shape, &key, &asked);
        wait_for("the request to reach the provider", || {
            (h.last().1["messages"] == asked["messages"] && h.last().1["model"] != Value::Null).then_some(())
        });
        std::thread::sleep(Duration::from_millis(50));
        drop(client);
        left(&h, count);
        h.ledger(count);
        assert!(h.used(&key) > 0, "{shape} stream={stream}: a cancelled request must cost something");
    }
}

/// A client that sends a reset instead of a FIN.
#[test]
fn client_reset_counts_as_disconnect() {
    let h = Harness::usual();
    let key = h.key();
    let mut client = begin(&h, "chat", &key, &streamed(chat("x\n#sim tokens=10000 pace=200")));
    assert_eq!(client.head().unwrap().status, 200);
    std::thread::sleep(Duration::from_millis(100));
    // Unread bytes at close make the kernel send RST.
    drop(client);
    left(&h, 1);
    h.ledger(1);
}

#[test]
fn slow_client_stops_the_reading_of_its_upstream() {
    let h = Harness::usual();
    let key = h.key();
    let before = h.gateway.resident();
    let mut client = begin(&h, "chat", &key, &streamed(chat("x\n#sim tokens=1000000")));
    assert_eq!(client.head().unwrap().status, 200);
    let mut counts = Vec::new();
    let settled = wait_for("the provider to stall", || {
        counts.push(h.count("completion_tokens"));
        std::thread::sleep(Duration::from_millis(100));
        let still = counts.iter().rev().take(4).all(|count| Some(count) == counts.last());
        (counts.len() > 4 && still).then(|| counts[counts.len() - 1])
    });
    assert!(settled < 500_000, "the provider has written {settled} of a million tokens");
    let grown = h.gateway.resident().saturating_sub(before);
    assert!(grown < 4 << 20, "one slow client takes {grown} bytes");
    // The provider continues once the client has read the bytes that the kernel buffers.
    wait_for("the provider to continue", || {
        for _ in 0..5000 {
            client.chunk().unwrap().unwrap();
        }
        (h.count("completion_tokens") > settled).then_some(())
    });
}

#[test]
fn client_that_does_not_read_is_closed_after_write_stall() {
    let h = Harness::start(&Setup { server: "write_stall = \"500ms\"", ..Setup::default() });
    let key = h.key();
    let mut client = begin(&h, "chat", &key, &streamed(chat("x\n#sim tokens=1000000")));
    assert_eq!(client.head().unwrap().status, 200);
    left(&h, 1);
    let ledger = h.ledger(1);
    assert_eq!(ledger.requests, 1);
    assert!(client.body(&super::client::Head { status: 200, fields: Vec::new() }).is_ok(), "the stream must end");
}
