//! Ten thousand requests over kept connections: none is lost, and gateway, provider and ledger agree on the counts,
//! before and after a restart.

use super::harness::{Harness, chat, chat_request, message, messages_request, streamed, with};

const REQUESTS: usize = 10_000;
const CONNECTIONS: usize = 64;
const KEYS: usize = 4;

/// Sends the requests of one connection: complete and streamed, in both API formats, with answers of different lengths.
/// Returns the number of answers, and of streams among them.
fn work(h: &Harness, key: &str, connection: usize) -> (u64, u64) {
    let mut client = h.client();
    let (mut answered, mut streams) = (0, 0);
    let share = (REQUESTS + CONNECTIONS - 1 - connection) / CONNECTIONS;
    for round in 0..share {
        let mine = format!("request-{round}-of-{connection}");
        let text = format!("{mine}{}\n#sim echo", " word".repeat(round % 7));
        let request = match round % 4 {
            0 => chat_request(key, &chat(&text)),
            1 => messages_request(key, &message(&text)),
            2 => chat_request(key, &streamed(chat(&text))),
            _ => messages_request(key, &with(message(&text), "stream", true)),
        };
        let answer = client.ask(&request);
        assert_eq!(answer.status(), 200, "{connection}/{round}: {}", answer.text());
        // Each token is a word of this request, so a mixed-up answer is detected.
        assert!(answer.text().contains(&format!("\"{mine}")), "the answer to another request: {}", answer.text());
        answered += 1;
        streams += u64::from(answer.head.get("content-type") != Some("application/json"));
    }
    (answered, streams)
}

#[test]
fn ten_thousand_requests_are_answered_and_counted_consistently() {
    let mut h = Harness::usual();
    let keys: Vec<String> = (0..KEYS).map(|_| h.key()).collect();
    let answers: Vec<(u64, u64)> = std::thread::scope(|scope| {
        let (h, keys) = (&h, &keys);
        let threads: Vec<_> = (0..CONNECTIONS).map(|at| scope.spawn(move || work(h, &keys[at % KEYS], at))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let answered: u64 = answers.iter().map(|(answered, _)| answered).sum();
    let streams: u64 = answers.iter().map(|(_, streams)| streams).sum();
    assert_eq!(answered, REQUESTS as u64);
    let ledger = h.ledger(REQUESTS as u64);
    let stats = h.stats();
    assert_eq!((ledger.requests, &stats["requests"]), (REQUESTS as u64, &(REQUESTS as u64).into()));
    assert_eq!(stats["streamed"], streams);
    assert_eq!((&stats["aborted"], &stats["failed"]), (&0.into(), &0.into()));
    assert_eq!(stats["prompt_tokens"], ledger.input);
    assert_eq!(stats["completion_tokens"], ledger.output);
    let used: Vec<u64> = keys.iter().map(|key| h.used(key)).collect();
    assert_eq!(used.iter().sum::<u64>(), ledger.tokens());
    for (key, used) in keys.iter().zip(&used) {
        let of_key = h.usage("key").into_iter().find(|line| key.contains(line["name"].as_str().unwrap())).unwrap();
        assert_eq!(of_key["total_tokens"], *used);
    }

    assert_eq!(h.gateway.stop("TERM").code(), Some(0));
    h.start_again();
    assert_eq!(keys.iter().map(|key| h.used(key)).collect::<Vec<_>>(), used, "usage must survive a restart");
    assert_eq!(h.ledger(REQUESTS as u64), ledger);
    let log = h.log();
    assert_eq!(
        log.iter().filter(|line| line["source"] == "provider").count(),
        REQUESTS,
        "each request must have one log line"
    );
}
