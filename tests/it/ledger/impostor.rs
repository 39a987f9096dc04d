//! A server that is not Redis, or a broken one. Whatever it sends, commands and gateways fail with an error within
//! bounded time and memory.

use super::harness::chat;
use super::process::{Folder, run, wait_for};
use super::shared::{Server, key_of, url_gateway};
use super::unheard::{ENDLESS, PASSED, Relay};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Bytes that the system may buffer in transit, in addition to those that are read.
const UNDER_WAY: usize = 32 << 20;

/// Starts a server that sends `first`, then `rest` repeatedly until the client disconnects, with `pause` in between.
/// Returns its URL and the number of bytes sent.
fn impostor(first: &[u8], rest: &'static [u8], pause: Duration) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (at, sent) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let (first, count) = (first.to_vec(), sent.clone());
    std::thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let _ = client.read(&mut [0; 64]);
            let mut next = client.write_all(&first);
            while next.is_ok() && !rest.is_empty() {
                std::thread::sleep(pause);
                next = client.write_all(rest);
                count.fetch_add(rest.len(), Ordering::Relaxed);
            }
            // Sends nothing more and keeps the connection open.
            let _ = client.read_to_end(&mut Vec::new());
        }
    });
    (format!("redis://{at}/0"), sent)
}

#[test]
fn command_fails_with_an_error_whatever_the_server_sends() {
    let (x, none) = (&[b'x'; 1 << 16], Duration::ZERO);
    let deep = b"*1\r\n".repeat(1000);
    for (first, rest, pause, said) in [
        (&b"+"[..], &x[..], none, "a line without an end"),
        (b"", x, none, "a line without an end"),
        (b"*1\r\n$9\r\n", b":1\r\n", none, "makes no sense"),
        (b"$9999999999999\r\n", x, none, "an answer of more than 1024 MiB"),
        (b"*999999999999\r\n", b":1\r\n", none, "an answer of more than 1024 MiB"),
        (b"*9223372036854775807\r\n", b"", none, "an answer of more than 1024 MiB"),
        (b"*-7\r\n", b"", none, "makes no sense"),
        (&deep, b"", none, "nested deeper than 16"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", none, "is this a Redis or Valkey server?"),
        (b"", b"+", Duration::from_millis(50), "no answer in time"),
        (b"$1000\r\n", b"", none, "no answer in time"),
    ] {
        let (url, sent) = impostor(first, rest, pause);
        let folder = Folder::new();
        let text = format!(
            "[store]\nurl = \"{url}\"\n[[providers]]\nname = \"p\"\nshape = \"chat\"\nbase_url = \"http://h/v1\"\n\
             [[models]]\nid = \"m\"\ncontext = 1\ntargets = [{{ provider = \"p\" }}]\n"
        );
        std::fs::write(folder.path().join("tollgate.toml"), text).unwrap();
        let begun = Instant::now();
        let failed = run(folder.path(), &["keys", "list"], &[]);
        let what = String::from_utf8_lossy(&first[..first.len().min(30)]);
        assert!(failed.code == 1 && failed.err.contains(said), "{what:?}: {} {}", failed.code, failed.err);
        assert!(begun.elapsed() < Duration::from_secs(30), "{what:?} took {:?}", begun.elapsed());
        let sent = sent.load(Ordering::Relaxed);
        assert!(sent < UNDER_WAY, "{what:?}: {sent} bytes were accepted");
    }
}

#[test]
fn gateway_refuses_while_its_ledger_sends_an_endless_line() {
    let Some(server) = Server::start() else { return };
    let relay = Relay::new(server.port);
    let h = url_gateway(&format!("redis://{}/0", relay.at), "");
    let key = key_of(std::slice::from_ref(&h), &[]);
    let status = || h.chat(&key, &chat("x\n#sim tokens=1")).status();
    assert_eq!(status(), 200);
    let before = h.gateway.resident();
    relay.set(ENDLESS);
    wait_for("the refusal", || (status() == 503).then_some(()));
    let said = || h.log().iter().any(|line| line["error"].to_string().contains("a line without an end")).then_some(());
    wait_for("the reason in the log", said);
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(status(), 503);
    let more = h.gateway.resident().saturating_sub(before);
    assert!(more < UNDER_WAY as u64, "{more} bytes more");
    relay.set(PASSED);
    wait_for("service", || (status() == 200).then_some(()));
}
