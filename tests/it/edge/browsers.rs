//! Browser pages (CORS), and the number of connections per client address.

use super::rig::{Rig, chat, get, read_to_end, read_until};
use std::io::Write;

const ON: &str = "cors_origins = [\"https://app.example\", \"app://obsidian.md\"]\n";

fn preflight(path: &str, origin: &str) -> String {
    format!(
        "OPTIONS {path} HTTP/1.1\r\nhost: h\r\norigin: {origin}\r\naccess-control-request-method: POST\r\n\
         access-control-request-headers: authorization,x-stainless-os\r\nconnection: close\r\n\r\n"
    )
}

#[test]
fn preflight_needs_no_key_and_allows_the_requested_headers() {
    let rig = Rig::new("cors-preflight", ON);
    let gate = rig.start();
    let answer = gate.ask(&preflight("/v1/chat/completions", "https://app.example"));
    assert!(answer.starts_with("HTTP/1.1 204 No Content\r\n"), "{answer}");
    for field in [
        "access-control-allow-origin: https://app.example",
        "access-control-allow-methods: GET, POST, OPTIONS",
        "access-control-allow-headers: authorization, x-stainless-os",
        "x-gateway-request-id: req_",
    ] {
        assert!(answer.contains(&format!("\r\n{field}")), "{field} is not in {answer}");
    }
    assert!(!answer.contains("content-length") && !answer.contains("content-type") && answer.ends_with("\r\n\r\n"));
    // A page in an application.
    let inside = gate.ask(&preflight("/v1/messages", "app://obsidian.md"));
    assert!(inside.contains("\r\naccess-control-allow-origin: app://obsidian.md\r\n"), "{inside}");
    let stranger = gate.ask(&preflight("/v1/messages", "https://evil.example"));
    assert!(stranger.starts_with("HTTP/1.1 204") && !stranger.contains("access-control-"), "{stranger}");
}

#[test]
fn answers_streams_and_errors_have_cors_headers() {
    let rig = Rig::new("cors-answers", ON);
    let gate = rig.start();
    let from = |request: &str| request.replacen("host: h\r\n", "host: h\r\norigin: https://app.example\r\n", 1);
    let closing = |request: String| request.replacen("host: h\r\n", "host: h\r\nconnection: close\r\n", 1);
    for (request, status) in [
        (get(&rig.key, "/v1/models"), "200"),
        (get("nothing", "/v1/models"), "401"),
        (get(&rig.key, "/elsewhere"), "404"),
        (closing(chat(&rig.key, "small", false, "hello")), "200"),
        (closing(chat(&rig.key, "small", true, "hello")), "200"),
        (closing(chat(&rig.key, "unknown", false, "hello")), "404"),
        (closing(chat(&rig.key, "small", false, "#sim status=503")), "500"),
    ] {
        let answer = gate.ask(&from(&request));
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
        assert!(answer.contains("\r\naccess-control-allow-origin: https://app.example\r\n"), "{answer}");
        assert!(answer.contains("\r\naccess-control-expose-headers: x-gateway-request-id, request-id"), "{answer}");
        let elsewhere = gate.ask(&request);
        assert!(!elsewhere.contains("access-control-") && elsewhere.contains("\r\nvary: origin\r\n"), "{elsewhere}");
    }
}

#[test]
fn without_cors_there_are_no_cors_headers() {
    let rig = Rig::new("cors-off", "");
    let gate = rig.start();
    let answer = gate.ask(&preflight("/v1/messages", "https://app.example"));
    assert!(answer.starts_with("HTTP/1.1 401") && !answer.contains("access-control") && !answer.contains("vary"));
}

#[test]
fn max_connections_per_ip_does_not_count_admin_connections() {
    let rig = Rig::new("per-host", "max_connections_per_ip = 3\n");
    let gate = rig.start();
    let ask = get(&rig.key, "/v1/models").replacen("connection: close\r\n", "", 1);
    let known = || {
        let mut client = gate.connect();
        client.write_all(ask.as_bytes()).unwrap();
        read_until(&mut client, "\"small\"");
        client
    };
    let mut held: Vec<_> = (0..3).map(|_| known()).collect();
    let crowded = gate.ask(&get(&rig.key, "/v1/models"));
    assert!(crowded.starts_with("HTTP/1.1 503") && crowded.contains("retry-after: 1"), "{crowded}");
    assert_eq!(gate.metric("tollgate_turned_away_total"), 1);
    let mut more: Vec<_> = (0..5).map(|_| gate.connect()).collect();
    assert_eq!(read_to_end(&mut more[0]), "", "a connection without a key makes room for the last one");
    drop(held.pop());
    more.clear();
    gate.until("a slot is free", |gate| gate.metric("tollgate_client_connections") == 2);
    let mut client = gate.connect();
    client.write_all(get(&rig.key, "/v1/models").as_bytes()).unwrap();
    read_until(&mut client, "\"small\"");
}
