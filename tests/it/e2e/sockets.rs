//! Facts about a request that only sockets and the real binary show: data and FIN in one event, a reset, buffers of the
//! kernel, real concurrency. Transcripts have the rules themselves.

use super::client::{Client, request};
use super::harness::{Harness, bearer, chat, chat_request, streamed, with};
use super::process::{TIMEOUT, wait_for};
use std::io::{BufRead, BufReader, Read};
use std::net::{Shutdown, TcpListener};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// One client sends its request and its FIN together; another one sends its FIN with the last bytes of its body.
#[test]
fn data_and_fin_of_a_client_are_both_noticed_together() {
    let h = Harness::usual();
    let key = h.key();
    let (served, left) = (h.count("requests"), h.gateway.descriptors());
    for _ in 0..20 {
        let mut client = h.client();
        client.send(&request("GET", "/", &[]));
        client.socket.shutdown(Shutdown::Write).unwrap();
        if let Ok(head) = client.head() {
            assert_eq!(head.status, 200);
        }
        let mut client = h.client();
        client.send(&chat_request(&key, &chat("x\n#sim stall_head")));
        client.socket.shutdown(Shutdown::Write).unwrap();
        // A FIN during a request means that the client has left: it gets no answer, and the connection ends.
        assert!(client.answer().is_err() || client.is_ended());
    }
    wait_for("all connections to end", || (h.gateway.descriptors() <= left + 2).then_some(()));
    let line = wait_for("the log lines", || {
        let log = h.log();
        (log.iter().filter(|line| line["endpoint"] == "chat" && line["status"] == 499).count() >= 20).then_some(log)
    });
    assert!(line.len() >= 20);
    assert!(h.count("requests") >= served);
}

/// The provider ends its answer by closing the connection: the last bytes and the FIN arrive as one readiness event.
#[test]
fn data_and_fin_of_a_provider_are_both_noticed_together() {
    let h = Harness::usual();
    let key = h.key();
    for round in 0..40 {
        let asked = chat(&format!("round {round}\n#sim close tokens=3"));
        let asked = with(asked, "stream", round % 2 == 0);
        let start = Instant::now();
        let answer = h.chat(&key, &asked);
        assert_eq!(answer.status(), 200, "{}", answer.text());
        assert!(start.elapsed() < TIMEOUT, "the end was not noticed");
    }
}

/// There are more requests than the gateway starts in one go, and more bytes than it reads at once. The client closes
/// its sending side before the first request is answered.
#[test]
fn pipelined_requests_before_a_fin_are_all_answered() {
    let h = Harness::usual();
    let key = h.key();
    let mut client = h.client();
    let ask = |number: usize| request("GET", &format!("/v1/models/m{number}"), &[("authorization", &bearer(&key))]);
    let all: Vec<u8> = (0..1000).flat_map(ask).collect();
    assert!(all.len() > 64 * 1024);
    client.send(&all);
    client.socket.shutdown(Shutdown::Write).unwrap();
    for number in 0..1000 {
        let answer = client.answer().unwrap();
        assert!(answer.status() == 404 && answer.text().contains(&format!("`m{number}`")), "{}", answer.text());
    }
    assert!(client.is_ended());
}

/// The kernel does not restart a read with a timeout after its process was stopped, and a test must not take this for
/// the end of a connection. The whole process is stopped, so this test starts a separate one.
#[test]
fn pause_of_the_reading_process_does_not_end_a_connection() {
    let me = std::env::current_exe().unwrap();
    let args = ["--exact", "e2e::sockets::reads_across_pauses", "--ignored", "--nocapture"];
    let mut child = Command::new(me)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.ends_with("reading\n") {
        assert!(said.read_line(&mut line).unwrap() > 0, "{line}");
    }
    let pause = format!("kill -STOP {0} && sleep 0.05 && kill -CONT {0}", child.id());
    for _ in 0..5 {
        assert!(Command::new("sh").args(["-c", &pause]).status().unwrap().success());
    }
    drop(child.stdin.take());
    said.read_to_string(&mut line).unwrap();
    assert!(child.wait().unwrap().success(), "{line}");
}

#[test]
#[ignore = "the test above runs it in a separate process"]
fn reads_across_pauses() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut waiting = [(); 2].map(|()| Client::connect(listener.local_addr().unwrap()));
    let others = [(); 2].map(|()| listener.accept().unwrap());
    std::thread::scope(|scope| {
        let [first, second] = &mut waiting;
        let (ended, answered) = (scope.spawn(|| first.is_ended()), scope.spawn(|| second.answer()));
        println!("reading");
        std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
        drop(others);
        assert!(ended.join().unwrap());
        assert_eq!(answered.join().unwrap().unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof);
    });
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
fn events_arrive_while_the_rest_is_still_generated() {
    let h = Harness::usual();
    let key = h.key();
    // The provider pauses after these tokens. All of them must arrive: the gateway does not delay events.
    for tokens in [1, 2, 5] {
        let mut client = h.client();
        let asked = chat(&format!("go\n#sim tokens=40 stall_after={tokens}"));
        client.send(&chat_request(&key, &streamed(asked)));
        assert_eq!(client.head().unwrap().status, 200);
        let mut seen = 0;
        while seen < tokens {
            let chunk = String::from_utf8(client.chunk().unwrap().unwrap()).unwrap();
            seen += chunk.matches(r#""delta":{"content":"#).count();
        }
    }
    let mut client = h.client();
    let start = Instant::now();
    client.send(&chat_request(&key, &streamed(chat("go\n#sim tokens=40 pace=20"))));
    assert_eq!(client.head().unwrap().status, 200);
    let mut rest = 0;
    while let Some(chunk) = client.chunk().unwrap() {
        rest += chunk.len();
    }
    assert!(rest > 0 && start.elapsed() > Duration::from_millis(1700), "40 tokens at 20 a second");
}

/// A client that sends a reset instead of a FIN.
#[test]
fn client_reset_counts_as_disconnect() {
    let h = Harness::usual();
    let key = h.key();
    let mut client = h.client();
    client.send(&chat_request(&key, &streamed(chat("x\n#sim tokens=10000 pace=200"))));
    assert_eq!(client.head().unwrap().status, 200);
    std::thread::sleep(Duration::from_millis(100));
    // Unread bytes at close make the kernel send RST.
    drop(client);
    wait_for("the provider to see its client leave", || (h.count("aborted") >= 1).then_some(()));
    h.ledger(1);
}

#[test]
fn slow_client_stops_the_reading_of_its_upstream() {
    let h = Harness::usual();
    let key = h.key();
    let before = h.gateway.resident();
    let mut client = h.client();
    client.send(&chat_request(&key, &streamed(chat("x\n#sim tokens=1000000"))));
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
