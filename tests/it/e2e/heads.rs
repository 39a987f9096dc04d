//! Checks before a body is read, and the handling of connections: order of checks, HTTP rules and limits.

use super::client::{Client, post, request};
use super::harness::{Harness, Setup, bearer, chat, chat_request};
use super::process::{TIMEOUT, wait_for};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Returns a head that declares a body, which never follows.
fn head_only(key: &str, fields: &[(&str, &str)]) -> Vec<u8> {
    let auth = bearer(key);
    let mut all = vec![("content-type", "application/json")];
    if !key.is_empty() {
        all.push(("authorization", &auth));
    }
    all.extend_from_slice(fields);
    request("POST", "/v1/chat/completions", &all)
}

#[test]
fn wrong_key_is_refused_before_the_body_is_read() {
    let h = Harness::usual();
    for fields in [("content-length", "1000000"), ("transfer-encoding", "chunked")] {
        // The body never arrives. A 408 would show that the gateway waited for it.
        let answer = h.client().ask(&head_only("tg_live_wrong", &[fields]));
        assert_eq!(answer.status(), 401);
    }
}

#[test]
fn declared_size_above_the_limit_is_refused_immediately() {
    let h = Harness::usual();
    let key = h.key();
    let size = (33u64 << 20).to_string();
    let answer = h.client().ask(&head_only(&key, &[("content-length", &size), ("expect", "100-continue")]));
    assert_eq!((answer.status(), answer.json()["error"]["code"].as_u64()), (413, Some(413)));
    assert_eq!(answer.json()["error"]["type"], "invalid_request_error");
    let unknown = h.client().ask(&head_only("", &[("content-length", &size)]));
    assert_eq!(unknown.status(), 401, "the key is checked first");
}

#[test]
fn chunked_body_is_refused_when_it_exceeds_the_limit() {
    let h = Harness::start(&Setup { server: "max_body = \"64KiB\"", ..Setup::default() });
    let key = h.key();
    let mut client = h.client();
    client.send(&head_only(&key, &[("transfer-encoding", "chunked")]));
    for _ in 0..5 {
        let _ = write!(client.socket, "4000\r\n{}\r\n", " ".repeat(0x4000));
    }
    assert_eq!(client.answer().unwrap().status(), 413);
}

#[test]
fn large_bodies_of_clients_without_a_key_use_no_buffer() {
    let h = Harness::usual();
    let mut clients = Vec::new();
    for _ in 0..1000 {
        let mut client = h.client();
        client.send(&head_only("", &[("content-length", "33554432")]));
        clients.push(client);
    }
    let before = h.gateway.resident();
    let block = vec![b' '; 256 * 1024];
    for client in &mut clients {
        client.socket.set_write_timeout(Some(Duration::from_millis(20))).unwrap();
        // Unread bytes stay in the kernel, so this write may time out.
        let _ = client.socket.write(&block);
    }
    let grown = h.gateway.resident().saturating_sub(before);
    assert!(grown < 10 << 20, "a thousand bodies grew the process by {grown} bytes");
    let total = h.gateway.resident();
    assert!(total < 64 << 20, "with a thousand connections the process has {total} bytes");
    let refused = clients.iter_mut().filter_map(|client| client.head().ok()).filter(|head| head.status == 401).count();
    assert_eq!(refused, 1000, "each client must get the error");
    assert_eq!(h.chat(&h.key(), &chat("still here")).status(), 200);
}

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
        let asked = super::harness::with(asked, "stream", round % 2 == 0);
        let start = Instant::now();
        let answer = h.chat(&key, &asked);
        assert_eq!(answer.status(), 200, "{}", answer.text());
        assert!(start.elapsed() < TIMEOUT, "the end was not noticed");
    }
}

#[test]
fn connections_are_kept_and_pipelined_requests_are_answered_in_order() {
    let h = Harness::usual();
    let key = h.key();
    let mut client = h.client();
    let mut all = Vec::new();
    for round in 0..5 {
        all.extend(chat_request(&key, &chat(&format!("answer-{round}\n#sim echo"))));
        all.extend(request("GET", "/v1/quota", &[("authorization", &bearer(&key))]));
    }
    client.send(&all);
    for round in 0..5 {
        let body = client.answer().unwrap().json();
        assert_eq!(body["choices"][0]["message"]["content"], format!("answer-{round}"));
        assert_eq!(client.answer().unwrap().json()["object"], "quota");
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

#[test]
fn http_1_0_is_answered_and_closed_and_expect_is_honoured() {
    let h = Harness::usual();
    let key = h.key();
    let body = chat("x").to_string();
    let length = body.len();
    let older = |body: &str| {
        let head = format!("POST /v1/chat/completions HTTP/1.0\r\nauthorization: Bearer {key}");
        format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
    };
    let mut client = h.client();
    assert_eq!(client.ask(older(&body).as_bytes()).status(), 200);
    assert!(client.is_ended());

    let streamed = super::harness::streamed(chat("x\n#sim tokens=3")).to_string();
    let answer = h.client().ask(older(&streamed).as_bytes());
    assert_eq!(answer.head.get("transfer-encoding"), None);
    assert!(answer.text().ends_with("data: [DONE]\n\n"), "{}", answer.text());

    let mut client = h.client();
    client.send(&head_only(&key, &[("content-length", &length.to_string()), ("expect", "100-continue")]));
    let mut interim = [0u8; 25];
    client.socket.read_exact(&mut interim).unwrap();
    assert_eq!(&interim, b"HTTP/1.1 100 Continue\r\n\r\n");
    assert_eq!(client.ask(body.as_bytes()).status(), 200);
    let other = h.client().ask(&head_only(&key, &[("content-length", "5"), ("expect", "tea")]));
    assert_eq!(other.status(), 417);
}

#[test]
fn invalid_http_gets_a_json_error_and_is_closed() {
    let h = Harness::usual();
    let long = format!("GET /{} HTTP/1.1\r\nhost: x\r\n\r\n", "a".repeat(20_000));
    let many = format!("GET / HTTP/1.1\r\nhost: x\r\n{}\r\n", "a: b\r\n".repeat(101));
    for (bytes, statuses) in [
        ("GET / HTTP/1.1\r\n\r\n", vec![400]),
        ("GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", vec![400]),
        ("GET / HTTP/1.1\nhost: a\n\n\r\n\r\n", vec![400]),
        ("GET / HTTP/1.1\r\nhost : a\r\n\r\n", vec![400]),
        ("GET / HTTP/1.1\r\nhost: a\r\n b: c\r\n\r\n", vec![400]),
        ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n", vec![400]),
        ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n", vec![400]),
        ("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip\r\n\r\n", vec![501, 400]),
        ("GET / HTTP/3.0\r\nhost: a\r\n\r\n", vec![505, 400]),
        ("nonsense\r\n\r\n", vec![400]),
        (&long, vec![414, 431]),
        (&many, vec![431]),
    ] {
        let mut client = h.client();
        let answer = client.ask(bytes.as_bytes());
        let shown = &bytes[..bytes.len().min(60)];
        assert!(statuses.contains(&answer.status()), "{shown:?}: {}", answer.status());
        assert_eq!(answer.json()["error"]["type"], "invalid_request_error", "{shown:?}");
        assert_eq!(answer.json()["error"]["request_id"], answer.id());
        assert!(client.is_ended(), "{shown:?}");
    }
}

#[test]
fn slow_heads_bodies_and_idle_connections_end() {
    let server = "header_timeout = \"1500ms\"\nbody_timeout = \"1500ms\"\nkeepalive_timeout = \"1500ms\"";
    let h = Harness::start(&Setup { server, ..Setup::default() });
    let key = h.key();
    let mut client = h.client();
    client.send(b"GET / HTTP/1.1\r\nhost:");
    assert_eq!(client.answer().unwrap().status(), 408);
    assert!(client.is_ended());
    let mut client = h.client();
    client.send(&head_only(&key, &[("content-length", "100")]));
    assert_eq!(client.answer().unwrap().status(), 408);
    let mut client = h.client();
    assert_eq!(client.ask(&request("GET", "/", &[])).status(), 200);
    assert!(client.is_ended(), "an idle connection must be closed without an answer");
}

#[test]
fn rejected_body_is_discarded_and_the_connection_kept() {
    let h = Harness::usual();
    let key = h.key();
    let mut client = h.client();
    let answer = client.ask(&post("/v1/chat/completions", &[], &chat("no key").to_string()));
    assert_eq!(answer.status(), 401);
    assert_eq!(client.ask(&chat_request(&key, &chat("x"))).status(), 200);
}

/// The kernel does not restart a read with a timeout after its process was stopped, and a test must not take this for
/// the end of a connection. The whole process is stopped, so this test starts a separate one.
#[test]
fn pause_of_the_reading_process_does_not_end_a_connection() {
    let me = std::env::current_exe().unwrap();
    let args = ["--exact", "e2e::heads::reads_across_pauses", "--ignored", "--nocapture"];
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
