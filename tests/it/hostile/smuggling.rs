//! Request smuggling: every message whose end two parsers might see in different places. Tollgate rejects it and closes
//! the connection, so that the following bytes are never parsed as a request.

use super::rig::{Gate, Rig, read_to_end};
use super::table::{Attack, status};
use std::io::Write;

pub const ATTACKS: fn() -> Vec<Attack> = || {
    vec![Attack {
        name: "request smuggling, every known form",
        bound: "4xx or 501 and close; the smuggled request is never answered",
        server: "",
        run: forms,
    }]
};

/// Fields and a body, written so that some parser would treat the rest as a second request.
const FORMS: &[(&str, &str)] = &[
    ("CL.TE", "content-length: 6\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"),
    ("TE.CL", "transfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n1\r\nA\r\n0\r\n\r\n"),
    ("TE.TE", "transfer-encoding: chunked\r\ntransfer-encoding: x\r\n\r\n0\r\n\r\n"),
    ("TE list", "transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
    ("TE identity", "transfer-encoding: identity\r\n\r\n"),
    ("TE xchunked", "transfer-encoding: xchunked\r\n\r\n0\r\n\r\n"),
    ("TE chunked twice", "transfer-encoding: chunked, chunked\r\n\r\n0\r\n\r\n"),
    ("TE tab", "transfer-encoding:\tchunked\tx\r\n\r\n0\r\n\r\n"),
    ("TE vertical tab", "transfer-encoding: \x0bchunked\r\n\r\n0\r\n\r\n"),
    ("TE quoted", "transfer-encoding: \"chunked\"\r\n\r\n0\r\n\r\n"),
    ("TE space before colon", "transfer-encoding : chunked\r\n\r\n0\r\n\r\n"),
    ("TE folded", "transfer-encoding:\r\n chunked\r\n\r\n0\r\n\r\n"),
    ("TE behind bare CR", "x: y\rtransfer-encoding: chunked\r\n\r\n0\r\n\r\n"),
    ("TE behind bare LF", "x: y\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"),
    ("TE with NUL", "transfer-encoding: chunked\0\r\n\r\n0\r\n\r\n"),
    ("CL twice, different", "content-length: 0\r\ncontent-length: 5\r\n\r\n"),
    ("CL twice, equal", "content-length: 0\r\ncontent-length: 0\r\n\r\n"),
    ("CL list", "content-length: 0, 0\r\n\r\n"),
    ("CL plus", "content-length: +0\r\n\r\n"),
    ("CL minus", "content-length: -1\r\n\r\n"),
    ("CL hex", "content-length: 0x0\r\n\r\n"),
    ("CL empty", "content-length:\r\n\r\n"),
    ("CL inner space", "content-length: 1 0\r\n\r\n"),
    ("CL fraction", "content-length: 0.0\r\n\r\n"),
    ("CL space before colon", "content-length : 0\r\n\r\n"),
    ("CL underscore", "content_length: 5\r\ncontent-length : 0\r\n\r\n"),
    ("chunk size +", "transfer-encoding: chunked\r\n\r\n+0\r\n\r\n"),
    ("chunk size 0x", "transfer-encoding: chunked\r\n\r\n0x0\r\n\r\n"),
    ("chunk size space", "transfer-encoding: chunked\r\n\r\n0 \r\n\r\n"),
    ("chunk size leading space", "transfer-encoding: chunked\r\n\r\n 0\r\n\r\n"),
    ("chunk size overflow", "transfer-encoding: chunked\r\n\r\n10000000000000000\r\n\r\n"),
    ("chunk bare LF", "transfer-encoding: chunked\r\n\r\n0\n\n"),
    ("chunk bare CR in extension", "transfer-encoding: chunked\r\n\r\n0;a\rb\r\n\r\n"),
    ("chunk LF in extension (TERM.EXT)", "transfer-encoding: chunked\r\n\r\n2;\nxx\r\n0\r\n\r\n"),
    ("chunk data too long", "transfer-encoding: chunked\r\n\r\n1\r\nAB\r\n0\r\n\r\n"),
    ("chunk without its end", "transfer-encoding: chunked\r\n\r\n1\r\nA0\r\n\r\n"),
    ("trailer folded", "transfer-encoding: chunked\r\n\r\n0\r\na: b\r\n c\r\n\n\r\n"),
    ("leading space in the first header", " content-length: 0\r\n\r\n"),
    ("header without colon", "content-length\r\n\r\n"),
    ("header without name", ": 0\r\n\r\n"),
];

/// First lines that are invalid in HTTP/1.
const LINES: &[&str] = &[
    "POST /v1/messages HTTP/1.0\r\ntransfer-encoding: chunked",
    "POST  /v1/messages HTTP/1.1",
    "POST /v1/messages  HTTP/1.1",
    "POST\t/v1/messages\tHTTP/1.1",
    "POST /v1/messages HTTP/1.1 ",
    "POST /v1/messages HTTP/1.2",
    "POST /v1/messages HTTP/2.0",
    "POST /v1/messages http/1.1",
    "POST /v1/messages",
    " POST /v1/messages HTTP/1.1",
    "POST /v1/mess\u{e9}ages HTTP/1.1\r\n x: y",
    "PRI * HTTP/2.0",
    "CONNECT h:443 HTTP/1.1\r\nhost: other",
    "POST /v1/messages HTTP/1.1\r\nhost: other",
    "POST http://other/v1/messages HTTP/1.1\r\nhost: a b",
];

fn forms(rig: &Rig, gate: &mut Gate) -> String {
    let smuggled = format!("GET /v1/quota HTTP/1.1\r\nhost: h\r\nauthorization: Bearer {}\r\n\r\n", rig.key);
    let start = format!("POST /v1/chat/completions HTTP/1.1\r\nhost: h\r\nauthorization: Bearer {}\r\n", rig.key);
    let mut tried: Vec<(String, String)> =
        FORMS.iter().map(|(name, form)| (name.to_string(), format!("{start}{form}"))).collect();
    tried.extend(
        LINES.iter().map(|line| (format!("{line:?}"), format!("{line}\r\nhost: h\r\ncontent-length: 0\r\n\r\n"))),
    );
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let gate = &*gate;
        let smuggled = &smuggled;
        let one = move |(name, form): &(String, String)| refused(gate, name, &format!("{form}{smuggled}"));
        let threads: Vec<_> = tried.iter().map(|form| scope.spawn(move || one(form))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let mut counts = std::collections::BTreeMap::new();
    statuses.iter().for_each(|status| *counts.entry(*status).or_insert(0) += 1);
    assert!(!gate.log().contains("\"endpoint\":\"quota\""));
    format!("{} forms: {counts:?} (status: count), none accepted", tried.len())
}

/// Sends `bytes`. Checks that the only answer is a rejection, and returns its status.
fn refused(gate: &Gate, name: &str, bytes: &str) -> u16 {
    let mut stream = gate.connect();
    stream.write_all(bytes.as_bytes()).unwrap();
    let said = read_to_end(&mut stream);
    let status = status(&said);
    assert!([400, 413, 501, 505].contains(&status), "{name}: {said}");
    assert_eq!(said.matches("x-gateway-request-id: ").count(), 1, "{name}: {said}");
    assert!(said.contains("connection: close") && !said.contains("\"quota\""), "{name}: {said}");
    status
}
