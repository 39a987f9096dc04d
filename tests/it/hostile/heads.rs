//! Heads and bodies that exceed every limit.

use super::rig::{Gate, Rig, chat, read_to_end};
use super::table::{Attack, resident, status};
use std::io::Write;

pub const ATTACKS: fn() -> Vec<Attack> = || {
    vec![
        Attack {
            name: "endless heads: target, one header, many headers",
            bound: "431 or 414 at max_header (16 KiB) and 100 headers",
            server: "",
            run: heads,
        },
        Attack {
            name: "endless bodies: declared, chunked, with a size beyond 64 bits",
            bound: "413 at max_body (here 1 MiB); no memory for announced bytes",
            server: "max_body = \"1MiB\"\n",
            run: bodies,
        },
        Attack {
            name: "endless chunk extensions and trailers",
            bound: "400 at 1 KiB of line or trailers",
            server: "",
            run: chunks,
        },
        Attack {
            name: "40 concurrent unfinished bodies of 4 MiB of one key",
            bound: "503 for that key at a quarter of max_buffered (here 64 MiB); another key is served",
            server: "max_buffered = \"64MiB\"\nmax_body = \"8MiB\"\n",
            run: hoard,
        },
    ]
};

/// Sends `start` and then `more`, `count` times, without reading. Returns what the gateway has sent.
fn said(gate: &Gate, start: &str, more: &str, count: usize) -> String {
    let mut stream = gate.connect();
    let _ = stream.write_all(start.as_bytes());
    for _ in 0..count {
        if stream.write_all(more.as_bytes()).is_err() {
            break;
        }
    }
    read_to_end(&mut stream)
}

fn heads(_: &Rig, gate: &mut Gate) -> String {
    let filler = "a".repeat(1000);
    let seen = [
        said(gate, "GET /", &filler, 1000),
        said(gate, "GET / HTTP/1.1\r\nx: ", &filler, 1000),
        said(gate, "GET / HTTP/1.1\r\n", &format!("x-{filler}: y\r\n"), 1000),
        said(gate, &format!("GET / HTTP/1.1\r\nhost: h\r\n{}\r\n", "a: b\r\n".repeat(200)), "", 0),
        said(gate, &"G".repeat(20_000), "", 0),
    ]
    .map(|answer| status(&answer));
    assert!(seen.iter().all(|status| [400, 414, 431].contains(status)), "{seen:?}");
    assert_eq!(&seen[1..3], [431, 431]);
    format!("{seen:?}")
}

fn bodies(rig: &Rig, gate: &mut Gate) -> String {
    let head = chat(&rig.key, "small", false, "");
    let head = &head[..head.find("content-length").unwrap()];
    let before = resident(gate);
    let block = "x".repeat(10_000);
    let seen = [
        said(gate, &format!("{head}content-length: 1048577\r\n\r\n"), &block, 200),
        said(gate, &format!("{head}content-length: 18446744073709551616\r\n\r\n"), &block, 1),
        said(gate, &format!("{head}content-length: 9999999999999999999999\r\n\r\n"), "", 0),
        said(
            gate,
            &format!("{head}transfer-encoding: chunked\r\n\r\n1\r\n \r\n"),
            &format!("2710\r\n{}\r\n", " ".repeat(10_000)),
            200,
        ),
    ]
    .map(|answer| status(&answer));
    assert_eq!(seen, [413; 4]);
    let grown = resident(gate).saturating_sub(before);
    assert!(grown < 8_000, "{grown} kB");
    format!("{seen:?}, {grown} kB more memory")
}

fn chunks(rig: &Rig, gate: &mut Gate) -> String {
    let head = chat(&rig.key, "small", false, "");
    let head = format!("{}transfer-encoding: chunked\r\n\r\n", &head[..head.find("content-length").unwrap()]);
    let seen = [
        said(gate, &format!("{head}1;"), &"e".repeat(100), 100),
        said(gate, &format!("{head}{}", "0".repeat(2000)), "", 0),
        said(gate, &format!("{head}ffffffffffffffffff\r\n"), "", 0),
        said(gate, &format!("{head}0\r\n"), "t: t\r\n", 1000),
    ]
    .map(|answer| status(&answer));
    // A size with more digits than 64 bits hold is valid, but too large.
    assert_eq!(seen, [400, 400, 413, 400]);
    format!("{seen:?}")
}

fn hoard(rig: &Rig, gate: &mut Gate) -> String {
    let other = rig.issue("");
    gate.until("the other key is known", |gate| status(&gate.ask(&super::rig::get(&other, "/v1/models"))) == 200);
    let head = chat(&rig.key, "small", false, "");
    let head = &head[..head.find("content-length").unwrap()];
    let start = format!("{head}content-length: 4194304\r\n\r\n{{\"messages\":[{{\"role\":\"user\",\"content\":\"");
    let mut clients = Vec::new();
    for _ in 0..40 {
        let mut client = gate.connect();
        let _ = client.write_all(start.as_bytes());
        let _ = client.write_all("x".repeat(4_000_000).as_bytes());
        clients.push(client);
    }
    let answer = gate.ask(&super::table::honest(&other));
    assert_eq!(status(&answer), 200, "{answer}");
    let most = gate.metric("tollgate_buffered_bytes");
    assert!(most <= (64 << 20) / 4 + (8 << 20), "{most}");
    // The other clients receive nothing, so the log shows when the refusals are complete.
    gate.until("all others are refused", |gate| gate.log().matches("\"status\":503").count() >= 36);
    let mut refused = 0;
    for mut client in clients {
        client.set_read_timeout(Some(std::time::Duration::from_millis(20))).unwrap();
        refused += usize::from(status(&read_to_end(&mut client)) == 503);
    }
    assert!(refused >= 36, "{refused}");
    gate.until("all connections are closed", |gate| gate.metric("tollgate_client_connections") == 0);
    format!("{refused} got 503, {} MiB buffered, the other key served", most >> 20)
}
