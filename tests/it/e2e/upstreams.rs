//! Providers that violate HTTP (RFC 9112) in ways that the simulated provider does not.

use super::harness::{Harness, Setup, chat, chat_request, gauge, streamed, with};
use super::process::{free_port, wait_for};
use socket2::{Domain, SockAddr, Socket, Type};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const BODY: &str = r#"{"id":"x","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}"#;

/// Starts a provider that runs `serve` with every connection. Returns its address.
fn upstream(serve: impl Fn(TcpStream) + Send + Sync + Copy + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    thread::spawn(move || {
        for socket in listener.incoming().flatten() {
            thread::spawn(move || serve(socket));
        }
    });
    at
}

/// Starts the default gateway with an additional model `odd` at that provider.
fn with_upstream(at: SocketAddr) -> Harness {
    let more = format!(
        "[[providers]]\nname = \"odd\"\nshape = \"chat\"\nbase_url = \"http://{at}/v1\"\n\
         [[models]]\nid = \"odd\"\ncontext = \"1M\"\nrequest_timeout = \"3s\"\nfirst_byte_timeout = \"3s\"\n\
         targets = [{{ provider = \"odd\" }}]\n"
    );
    Harness::start(&Setup { more, ..Setup::default() })
}

/// Returns a listener whose queue is full, so that it accepts no further connection, its address, and the sockets that
/// fill it.
fn silent() -> (Socket, SocketAddr, Vec<Socket>) {
    let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    listener.bind(&SockAddr::from(SocketAddr::from(([127, 0, 0, 1], 0)))).unwrap();
    listener.listen(0).unwrap();
    let at = listener.local_addr().unwrap();
    let mut queue = Vec::new();
    loop {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        if socket.connect_timeout(&at, Duration::from_millis(300)).is_err() {
            return (listener, at.as_socket().unwrap(), queue);
        }
        queue.push(socket);
    }
}

#[test]
fn unresponsive_address_fails_no_request() {
    let (_listener, silent, _queue) = silent();
    let at = upstream(|mut socket| {
        if take(&mut socket).is_some() {
            let _ = socket.write_all(good().replacen("\r\n", "\r\nconnection: close\r\n", 1).as_bytes());
        }
    });
    let more = format!(
        "[[providers]]\nname = \"odd\"\nshape = \"chat\"\nbase_url = \"http://odd.invalid/v1\"\n\
         addresses = [\"{silent}\", \"{at}\"]\n\
         [[models]]\nid = \"odd\"\ncontext = \"1M\"\nrequest_timeout = \"10s\"\ntargets = [{{ provider = \"odd\" }}]\n"
    );
    let h = Harness::start(&Setup { more, ..Setup::default() });
    let key = h.key();
    for _ in 0..3 {
        let answer = h.chat(&key, &with(chat("x"), "model", "odd"));
        assert_eq!(answer.status(), 200, "{}", answer.text());
    }
}

/// Four addresses refuse or are silent; one works.
#[test]
fn provider_is_reached_by_the_last_of_its_addresses() {
    let (_listener, silent, _queue) = silent();
    let at = upstream(|mut socket| {
        if take(&mut socket).is_some() {
            let _ = socket.write_all(good().replacen("\r\n", "\r\nconnection: close\r\n", 1).as_bytes());
        }
    });
    let refuses = |host: &str| format!("{host}:{}", free_port());
    for others in [["127.0.0.2", "127.0.0.3", "127.0.0.4", "[::1]"].map(refuses), [silent; 4].map(|at| at.to_string())]
    {
        let list = others.into_iter().chain([at.to_string()]).map(|at| format!("\"{at}\"")).collect::<Vec<_>>();
        let more = format!(
            "[[providers]]\nname = \"odd\"\nshape = \"chat\"\nbase_url = \"http://odd.test/v1\"\naddresses = [{}]\n\
             [[models]]\nid = \"odd\"\ncontext = \"1M\"\ntargets = [{{ provider = \"odd\" }}]\n",
            list.join(", ")
        );
        let h = Harness::start(&Setup { more, ..Setup::default() });
        let key = h.key();
        for seconds in [3, 1] {
            let began = Instant::now();
            let answer = h.chat(&key, &with(chat("x"), "model", "odd"));
            assert_eq!(answer.status(), 200, "{}", answer.text());
            assert!(began.elapsed() < Duration::from_secs(seconds), "{:?}", began.elapsed());
        }
    }
}

/// Reads one request from a connection: its head and its JSON body.
fn take(socket: &mut TcpStream) -> Option<String> {
    let mut all = Vec::new();
    let mut block = [0u8; 64 * 1024];
    while !all.ends_with(b"}") {
        match socket.read(&mut block) {
            Ok(count) if count > 0 => all.extend_from_slice(&block[..count]),
            _ => return None,
        }
    }
    Some(String::from_utf8_lossy(&all).into_owned())
}

fn good() -> String {
    let length = BODY.len();
    format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{BODY}")
}

/// The provider answers one request per connection, announces no close, and closes when the second request arrives.
#[test]
fn kept_connection_that_dies_during_a_request_is_retried_once() {
    let h = with_upstream(upstream(|mut socket| {
        if take(&mut socket).is_some() {
            let _ = socket.write_all(good().as_bytes());
            let _ = take(&mut socket);
        }
    }));
    let key = h.key();
    for round in 0..6 {
        let answer = h.chat(&key, &with(chat("x"), "model", "odd"));
        assert_eq!(answer.status(), 200, "round {round}: {}", answer.text());
    }
    let retries = gauge(&h, "tollgate_stale_retries_total");
    assert!(retries >= 3, "{retries}");
    assert_eq!(h.ledger(6).requests, 6, "a retry must not count as a second request");
}

/// If a new connection dies during a request, the request fails: the provider may have processed it.
#[test]
fn new_connection_that_dies_is_not_retried() {
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    let h = with_upstream(upstream(|mut socket| {
        if take(&mut socket).is_some() {
            TAKEN.fetch_add(1, Ordering::SeqCst);
        }
    }));
    let answer = h.chat(&h.key(), &with(chat("x"), "model", "odd"));
    assert_eq!((answer.status(), answer.json()["error"]["type"].as_str()), (500, Some("upstream_error")));
    assert_eq!(TAKEN.load(Ordering::SeqCst), 1);
}

/// Bytes after an answer belong to no request: the next request on that connection must not get them.
#[test]
fn unsolicited_answer_reaches_no_client() {
    static WRITTEN: AtomicU32 = AtomicU32::new(0);
    let h = with_upstream(upstream(|mut socket| {
        while let Some(request) = take(&mut socket) {
            let forged =
                good().replace("\"hi\"", "\"forged\"").replace(&BODY.len().to_string(), &(BODY.len() + 4).to_string());
            let late = request.contains("late");
            let _ = socket.write_all((good() + if late { "" } else { &forged }).as_bytes());
            if late {
                thread::sleep(Duration::from_millis(100));
                let _ = socket.write_all(forged.as_bytes());
            }
            WRITTEN.fetch_add(1, Ordering::SeqCst);
        }
    }));
    let key = h.key();
    for (text, written) in ["at once", "late", "at once", "late"].into_iter().zip(1..) {
        let answer = h.chat(&key, &with(chat(text), "model", "odd"));
        assert_eq!(answer.status(), 200, "{}", answer.text());
        assert!(!answer.text().contains("forged"), "{text}: {}", answer.text());
        wait_for("the bytes to be written", || (WRITTEN.load(Ordering::SeqCst) == written).then_some(()));
        wait_for("the connection to be abandoned", || {
            (gauge(&h, "tollgate_upstream_idle_connections") == 0).then_some(())
        });
    }
}

#[test]
fn invalid_http_answers_are_upstream_errors() {
    let length = BODY.len();
    let answers: Vec<String> = vec![
        "nonsense\r\n\r\n".into(),
        format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\ntransfer-encoding: chunked\r\n\r\n{BODY}"),
        format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\ncontent-length: 5\r\n\r\n{BODY}"),
        format!("HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n{BODY}"),
        format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nZZ\r\n{BODY}\r\n0\r\n\r\n"),
        format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{BODY}", length + 10),
        format!("HTTP/1.1 101 Switching Protocols\r\n\r\n{BODY}"),
        format!("HTTP/1.1 200 OK\r\n{}\r\n{BODY}", "x-padding: yes\r\n".repeat(20_000)),
        "HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n".into(),
        "HTTP/1.1 204 No Content\r\n\r\n".into(),
    ];
    for answer in answers {
        let shown: String = answer.chars().take(90).collect();
        let leaked: &'static str = Box::leak(answer.into_boxed_str());
        let h = with_upstream(upstream(move |mut socket| {
            if take(&mut socket).is_some() {
                let _ = socket.write_all(leaked.as_bytes());
                thread::sleep(Duration::from_millis(200));
            }
        }));
        let key = h.key();
        for stream in [false, true] {
            let answer = h.chat(&key, &with(with(chat("x"), "model", "odd"), "stream", stream));
            let status = answer.status();
            assert!(
                status == 500 || (stream && status == 200 && answer.text().contains("\"error\"")),
                "{status} {shown}"
            );
        }
        assert_eq!(h.chat(&key, &chat("x")).status(), 200, "the gateway must keep working");
    }
}

/// The provider rejects a large body after its head and does not read it.
#[test]
fn answer_before_the_end_of_the_request_is_used() {
    let h = with_upstream(upstream(|mut socket| {
        let mut block = [0u8; 1024];
        let _ = socket.read(&mut block);
        let body = r#"{"error":{"message":"too many words","type":"invalid_request_error"}}"#;
        let length = body.len();
        let head = format!(
            "HTTP/1.1 413 Too Large\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
        );
        let _ = socket.write_all((head + body).as_bytes());
        thread::sleep(Duration::from_millis(500));
    }));
    let key = h.key();
    let answer = h.chat(&key, &with(chat(&"word ".repeat(3 << 20)), "model", "odd"));
    assert_eq!(answer.status(), 400, "{}", answer.text());
    assert!(answer.text().contains("too many words"), "{}", answer.text());
}

/// An endless series of interim answers, and a head that arrives byte by byte without end, both end at the deadline.
#[test]
fn endless_interim_or_slow_answer_ends_at_the_deadline() {
    let h = with_upstream(upstream(|mut socket| {
        let Some(request) = take(&mut socket) else { return };
        let piece = if request.contains("interim") { "HTTP/1.1 102 Processing\r\n\r\n" } else { "x" };
        let start = if request.contains("interim") { "" } else { "HTTP/1.1 200 OK\r\nx-slow: " };
        let _ = socket.write_all(start.as_bytes());
        while socket.write_all(piece.as_bytes()).is_ok() {
            thread::sleep(Duration::from_millis(20));
        }
    }));
    let key = h.key();
    for text in ["interim", "dripping"] {
        let answer = h.chat(&key, &with(chat(text), "model", "odd"));
        assert!(matches!(answer.status(), 500 | 504), "{text}: {}", answer.text());
    }
}

#[test]
fn reset_after_a_complete_answer_is_harmless() {
    let h = with_upstream(upstream(|mut socket| {
        // Closing with unread bytes makes the kernel send a reset.
        let mut block = [0u8; 10];
        let _ = socket.read(&mut block);
        thread::sleep(Duration::from_millis(20));
        let _ = socket.write_all(good().as_bytes());
        thread::sleep(Duration::from_millis(20));
    }));
    let key = h.key();
    for _ in 0..10 {
        let answer = h.chat(&key, &with(chat("x"), "model", "odd"));
        assert_eq!(answer.status(), 200, "{}", answer.text());
    }
}

/// Two events in one segment, an event in many segments, lines that end only in CR, a BOM, comments, fields without a
/// space.
#[test]
fn every_valid_form_of_an_event_stream_is_understood() {
    let h = with_upstream(upstream(|mut socket| {
        while take(&mut socket).is_some() {
            let chunk = |delta: &str, finish: &str| {
                format!(
                    r#"{{"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{{"index":0,"delta":{delta},"finish_reason":{finish}}}]}}"#
                )
            };
            let text = [
                "\u{feff}: hello\n\n".to_owned(),
                format!("data:{}\r\r", chunk(r#"{"role":"assistant","content":""}"#, "null")),
                format!("event: message\r\ndata: {}\r\n\r\n", chunk(r#"{"content":"größe"}"#, "null")),
                format!(
                    "id: 7\ndata: {}\ndata: {}\n\n",
                    "{\"id\":\"c\",",
                    &chunk(r#"{"content":" two"}"#, "null")[10..]
                ),
                format!("retry: 5\n\ndata: {}\n\n", chunk("{}", "\"stop\"")),
                "data: [DONE]\n\n".to_owned(),
            ]
            .concat();
            let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
            let _ = socket.write_all(head.as_bytes());
            for piece in text.as_bytes().chunks(3) {
                let size = piece.len();
                let _ = socket.write_all(&[format!("{size:x};x=y\r\n").as_bytes(), piece, b"\r\n"].concat());
            }
            let _ = socket.write_all(b"0\r\nx-trailer: 1\r\n\r\n");
        }
    }));
    let key = h.key();
    for _ in 0..2 {
        let answer = h.chat(&key, &streamed(with(chat("x"), "model", "odd")));
        assert_eq!(answer.status(), 200, "{}", answer.text());
        let events = answer.events();
        let text: String = events
            .iter()
            .filter_map(|event| serde_json::from_str::<serde_json::Value>(event).ok())
            .filter_map(|event| event["choices"][0]["delta"]["content"].as_str().map(String::from))
            .collect();
        assert_eq!(text, "größe two", "{}", answer.text());
        assert_eq!(events.last().map(String::as_str), Some("[DONE]"));
        assert!(!answer.text().contains("retry:") && !answer.text().contains("\nid:"), "{}", answer.text());
    }
}

/// Some connections of the provider are kept and some are closed. All requests are served without a loss.
#[test]
fn randomly_closed_connections_lose_no_request() {
    let h = with_upstream(upstream(|mut socket| {
        let served = socket.peer_addr().map_or(1, |peer| peer.port() % 5);
        for _ in 0..=served {
            if take(&mut socket).is_none() {
                return;
            }
            let _ = socket.write_all(good().as_bytes());
        }
    }));
    let key = h.key();
    let asked = chat_request(&key, &with(chat("x"), "model", "odd"));
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut client = h.client();
                for _ in 0..60 {
                    let answer = client.ask(&asked);
                    assert_eq!(answer.status(), 200, "{}", answer.text());
                }
            });
        }
    });
    wait_for("all rows", || (h.ledger(480).requests == 480).then_some(()));
}
