//! Client addresses behind proxies, plain HTTP on TLS ports and TLS on plain ports, and log lines about the process.

use super::rig::{Gate, Rig, chat, get, read_to_end, read_until, write_certificate};
use super::tls::over;
use serde_json::Value;
use std::io::Write;

const TLS: &str = "tls = { cert = \"cert.pem\", key = \"key.pem\" }";

fn rig(name: &str, server: &str) -> Rig {
    let rig = Rig::new(name, "");
    write_certificate(&rig.folder);
    rig.configure(server, &rig.models("small"), "");
    rig
}

/// Waits until `requests` requests are logged, and returns the newest line.
fn line(gate: &Gate, requests: usize) -> Value {
    let lines = |gate: &Gate| -> Vec<Value> {
        let log = gate.log();
        let all = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        all.filter(|line| line["id"].is_string()).collect()
    };
    gate.until("the line is logged", |gate| lines(gate).len() >= requests);
    lines(gate).pop().unwrap()
}

#[test]
fn plain_http_on_a_tls_port_gets_an_error_that_says_so() {
    let rig = rig("peers-plain", TLS);
    let gate = rig.start();
    for (number, path) in ["/v1/models", "/healthz"].into_iter().enumerate() {
        let answer = gate.ask(&get(&rig.key, path));
        assert!(
            answer.starts_with("HTTP/1.1 400 ") && answer.contains("this port speaks TLS: use https://"),
            "{answer}"
        );
        let line = line(&gate, number + 1);
        assert_eq!((&line["cause"], &line["key"]), (&"http: plain HTTP on a TLS port".into(), &Value::Null), "{line}");
        assert_eq!(line["peer"], "127.0.0.1");
    }
    // TLS clients are still served, and no connection is left open.
    let mut client = over(&rig, gate.connect());
    client.write_all(chat(&rig.key, "small", false, "one").as_bytes()).unwrap();
    assert!(read_until(&mut client, "\"usage\"").starts_with("HTTP/1.1 200"));
    drop(client);
    gate.until("all connections are closed", |gate| gate.metric("tollgate_client_connections") == 0);
}

#[test]
fn tls_on_a_plain_port_is_logged_as_such() {
    let rig = rig("peers-tls", "");
    let gate = rig.start();
    let mut client = over(&rig, gate.connect());
    assert!(client.write_all(b"GET / HTTP/1.1\r\n\r\n").and_then(|()| client.flush()).is_err());
    let line = line(&gate, 1);
    assert_eq!((&line["status"], &line["endpoint"]), (&400.into(), &"none".into()));
    assert_eq!(line["cause"], "http: TLS on a port that speaks plain HTTP: use http://");
}

/// Returns a version 2 header with the client `203.0.113.5` and one additional field after the addresses.
fn version_2() -> Vec<u8> {
    let mut header = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x10".to_vec();
    header.extend([203, 0, 113, 5, 10, 0, 0, 1, 0x12, 0x34, 1, 0xbb, 4, 0, 1, 7]);
    header
}

#[test]
fn proxy_protocol_of_a_trusted_proxy_sets_the_client_address() {
    for (name, tls) in [("peers-proxy", ""), ("peers-proxy-tls", TLS)] {
        let rig = rig(name, &format!("{tls}\nproxy_protocol = true\ntrusted_proxies = [\"127.0.0.0/8\"]"));
        let gate = rig.start();
        let headers: [(&[u8], &str); 4] = [
            (b"PROXY TCP4 203.0.113.9 10.0.0.1 4711 443\r\n", "203.0.113.9"),
            (b"PROXY TCP6 2001:db8::9 2001:db8::1 4711 443\r\n", "2001:db8::9"),
            (&version_2(), "203.0.113.5"),
            (b"PROXY UNKNOWN\r\n", "127.0.0.1"),
        ];
        for (number, (header, peer)) in headers.into_iter().enumerate() {
            let mut stream = gate.connect();
            // The header arrives byte by byte, and without TLS its last byte together with the request.
            let (last, before) = header.split_last().unwrap();
            for byte in before {
                stream.write_all(&[*byte]).unwrap();
            }
            let request = get(&rig.key, "/v1/models");
            let answer = match tls.is_empty() {
                true => {
                    stream.write_all(&[&[*last], request.as_bytes()].concat()).unwrap();
                    read_to_end(&mut stream)
                }
                false => {
                    stream.write_all(&[*last]).unwrap();
                    let mut client = over(&rig, stream);
                    client.write_all(request.as_bytes()).unwrap();
                    read_to_end(&mut client)
                }
            };
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
            assert_eq!(line(&gate, number + 1)["peer"], peer);
        }
        // A trusted proxy's `x-forwarded-for` counts if the proxy itself is the client, not if it forwards another
        // client.
        if tls.is_empty() {
            let forwarded = get(&rig.key, "/v1/models").replacen("host: h", "x-forwarded-for: 192.0.2.9\r\nhost: h", 1);
            gate.ask(&format!("PROXY TCP4 203.0.113.9 10.0.0.1 4711 443\r\n{forwarded}"));
            assert_eq!(line(&gate, 5)["peer"], "203.0.113.9");
            gate.ask(&format!("PROXY UNKNOWN\r\n{forwarded}"));
            assert_eq!(line(&gate, 6)["peer"], "192.0.2.9");
        }
        gate.until("all connections are closed", |gate| gate.metric("tollgate_client_connections") == 0);
    }
}

#[test]
fn proxy_header_is_required_from_trusted_proxies_only() {
    let owed = rig("peers-owed", "proxy_protocol = true\ntrusted_proxies = [\"127.0.0.1\"]\nheader_timeout = \"1s\"");
    let gate = owed.start();
    let long = format!("PROXY TCP4 {}", "1".repeat(3000));
    let bad = [get(&owed.key, "/v1/models"), long, "PROXY TCP4 x y 1 2\r\n".to_owned()];
    for (number, bytes) in bad.iter().enumerate() {
        assert_eq!(gate.ask(bytes), "", "{bytes}");
        let line = line(&gate, number + 1);
        assert_eq!(line["cause"], "proxy: no PROXY header from a trusted proxy", "{line}");
    }
    // An incomplete header is bounded by the header timeout.
    let mut stream = gate.connect();
    stream.write_all(b"PROXY TCP4 203.").unwrap();
    assert_eq!(read_to_end(&mut stream), "");
    gate.until("all connections are closed", |gate| gate.metric("tollgate_client_connections") == 0);
    let others = rig("peers-others", "proxy_protocol = true\ntrusted_proxies = [\"10.0.0.0/8\"]");
    let gate = others.start();
    assert!(gate.ask(&get(&others.key, "/v1/models")).starts_with("HTTP/1.1 200"));
    let forged = format!("PROXY TCP4 203.0.113.9 10.0.0.1 1 2\r\n{}", get(&others.key, "/v1/models"));
    assert!(gate.ask(&forged).starts_with("HTTP/1.1 400"));
    assert_eq!(line(&gate, 2)["peer"], "127.0.0.1");
    // The admin listener needs no PROXY header.
    assert_eq!(gate.metric("tollgate_open_reservations"), 0);
}

#[test]
fn log_reports_process_and_key_events() {
    let rig = rig("peers-life", TLS);
    let mut gate = rig.start();
    assert!(gate.logged("\"event\":\"listening\"").contains("\"tls\":true"));
    let key = rig.issue("");
    let id = &key[8..20];
    let known = gate.logged("\"event\":\"key\"");
    assert!(known.contains(&format!("\"outcome\":\"issued\",\"key\":\"{id}\",\"name\":\"test\"")), "{known}");
    for (command, outcome) in [("rotate", "rotated"), ("revoke", "revoked")] {
        assert!(rig.command(&["keys", command, id]).output().unwrap().status.success());
        gate.logged(&format!("\"outcome\":\"{outcome}\",\"key\":\"{id}\""));
    }
    gate.signal("-TERM");
    gate.until("the request has ended", |gate| gate.log().contains("\"event\":\"stopped\""));
    let log = gate.log();
    assert!(log.contains("\"event\":\"stopping\",\"requests\":0,\"until\":\"2"), "{log}");
    assert!(log.ends_with("\"event\":\"stopped\",\"unsettled\":0,\"rows_left\":0}\n"), "{log}");
    assert!(gate.child.wait().unwrap().success());
}
