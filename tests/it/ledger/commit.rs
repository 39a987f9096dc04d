//! `durability = "before-reply"`, and a ledger that is slow or not writable, in both modes.

use super::client::Client;
use super::harness::{Harness, Setup, chat, chat_request, message, messages_request, streamed};
use super::process::wait_for;
use std::time::{Duration, Instant};

const SLOW: &str = "hello\n#sim tokens=12 pace=40";

fn before_reply(lag: &str) -> Harness {
    let store = format!("url = \"sqlite:tollgate.db\"\ndurability = \"before-reply\"\nmax_commit_lag = \"{lag}\"");
    Harness::start(&Setup { store, ..Setup::default() })
}

/// Opens the ledger's file as another process would.
fn open(h: &Harness) -> rusqlite::Connection {
    let db = rusqlite::Connection::open(h.folder.path().join("tollgate.db")).unwrap();
    db.busy_timeout(Duration::from_secs(5)).unwrap();
    db
}

/// Blocks all other commits, as a slow disk would.
fn stall(h: &Harness) -> rusqlite::Connection {
    let db = open(h);
    db.execute_batch("BEGIN IMMEDIATE").unwrap();
    db
}

/// Reads all content events of the stream.
fn read_content(client: &mut Client) {
    let mut seen = 0;
    while seen < 12 {
        let chunk = String::from_utf8(client.chunk().unwrap().expect("more")).unwrap();
        assert!(!chunk.contains("finish_reason\":\"stop\"") && !chunk.contains("[DONE]"), "{chunk}");
        seen += chunk.matches("data: ").count();
    }
}

#[test]
fn stream_flows_while_the_ledger_is_blocked_and_only_its_end_waits() {
    let h = before_reply("60s");
    let key = h.key();
    let stalled = stall(&h);
    let mut client = h.client();
    client.send(&chat_request(&key, &streamed(chat(SLOW))));
    assert_eq!(client.head().unwrap().status, 200);
    // The ledger is blocked until the client has received all content.
    read_content(&mut client);
    client.socket.set_read_timeout(Some(Duration::from_millis(700))).unwrap();
    while let Ok(Some(chunk)) = client.chunk() {
        let text = String::from_utf8(chunk).unwrap();
        assert!(
            !text.contains("\"stop\"") && !text.contains("[DONE]"),
            "the stream ended before its usage record was committed: {text}"
        );
    }
    stalled.execute_batch("ROLLBACK").unwrap();
    client.socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut rest = String::new();
    while let Some(chunk) = client.chunk().unwrap() {
        rest.push_str(std::str::from_utf8(&chunk).unwrap());
    }
    assert!(rest.contains("\"stop\"") && rest.ends_with("data: [DONE]\n\n"), "{rest}");
    let rows: i64 = open(&h).query_row("SELECT COUNT(*) FROM rows", [], |row| row.get(0)).unwrap();
    assert_eq!(rows, 1);
}

#[test]
fn complete_answer_and_messages_stream_wait_for_their_records_too() {
    let h = before_reply("60s");
    let key = h.key();
    for request in [
        chat_request(&key, &chat("hello")),
        messages_request(&key, &message("hello")),
        messages_request(&key, &streamed(message("hello"))),
    ] {
        let stalled = stall(&h);
        let mut client = h.client();
        client.send(&request);
        client.socket.set_read_timeout(Some(Duration::from_millis(400))).unwrap();
        let mut early = Vec::new();
        if let Ok(head) = client.head() {
            assert_eq!(
                head.get("transfer-encoding"),
                Some("chunked"),
                "a complete answer arrived before its usage record was safe"
            );
            while let Ok(Some(chunk)) = client.chunk() {
                early.extend(chunk);
            }
            assert!(!String::from_utf8_lossy(&early).contains("message_delta"));
        }
        drop(stalled);
        client.socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        if early.is_empty() {
            assert_eq!(client.answer().unwrap().status(), 200);
        } else {
            while let Some(chunk) = client.chunk().unwrap() {
                early.extend(chunk);
            }
            assert!(String::from_utf8_lossy(&early).contains("message_stop"));
        }
    }
    assert_eq!(h.ledger(3).requests, 3);
}

#[test]
fn answer_with_a_late_record_is_an_error_and_service_recovers() {
    let h = before_reply("300ms");
    let key = h.key();
    let stalled = stall(&h);
    let mut streaming = h.client();
    streaming.send(&chat_request(&key, &streamed(chat(SLOW))));
    let began = Instant::now();
    let whole = h.chat(&key, &chat("hello"));
    assert_eq!((whole.status(), whole.json()["error"]["type"].as_str()), (503, Some("upstream_error")));
    assert!(began.elapsed() >= Duration::from_millis(300));
    let refused = h.chat(&key, &chat("hello"));
    assert_eq!(refused.status(), 503, "no request may pass without being recorded");
    assert!(refused.head.get("retry-after").is_some());
    assert_eq!(h.status_of(&key), 503);
    let streamed = streaming.answer().unwrap();
    assert_eq!(streamed.status(), 200);
    let last = streamed.events().pop().unwrap();
    assert!(last.contains("\"error\"") && last.contains("503"), "{last}");
    assert!(!streamed.text().contains("[DONE]") && !streamed.text().contains("\"stop\""));
    drop(stalled);
    wait_for("service", || (h.chat(&key, &chat("hello")).status() == 200).then_some(()));
    // Both late usage records were committed after all: their usage is charged, although the answers ended in an error.
    let served = h.count("requests");
    assert!(served >= 3, "{served}");
    assert_eq!(h.ledger(served).requests, served);
}

#[test]
fn a_ledger_that_cannot_be_written_stops_admission_and_loses_nothing() {
    let h = Harness::usual();
    let key = h.key();
    assert_eq!(h.chat(&key, &chat("hello")).status(), 200);
    h.ledger(1);
    let full = open(&h);
    full.execute_batch("ALTER TABLE groups RENAME TO hidden").unwrap();
    assert_eq!(h.chat(&key, &chat("hello")).status(), 200, "write-behind does not wait for the commit");
    wait_for("the refusal", || (h.chat(&key, &chat("hello")).status() == 503).then_some(()));
    full.execute_batch("ALTER TABLE hidden RENAME TO groups").unwrap();
    wait_for("service", || (h.chat(&key, &chat("hello")).status() == 200).then_some(()));
    let served = h.count("requests");
    assert_eq!(h.ledger(served).requests, served);
    assert_eq!(h.used(&key), h.ledger(served).tokens());
    assert!(h.done(&["ledger", "verify"]).starts_with("ok:"));
}

#[test]
fn a_ledger_that_lags_stops_admission_until_it_has_caught_up() {
    let store = "url = \"sqlite:tollgate.db\"\nmax_commit_lag = \"400ms\"".to_owned();
    let h = Harness::start(&Setup { store, ..Setup::default() });
    let key = h.key();
    let mut times = [(); 3].map(|()| {
        let stalled = stall(&h);
        let began = Instant::now();
        wait_for("the refusal", || (h.chat(&key, &chat("hello")).status() == 503).then_some(()));
        let time = began.elapsed();
        drop(stalled);
        wait_for("service", || (h.chat(&key, &chat("hello")).status() == 200).then_some(()));
        time
    });
    times.sort();
    assert!(times[1] < Duration::from_secs(3), "{times:?}");
    let served = h.count("requests");
    assert_eq!(h.ledger(served).requests, served);
}
