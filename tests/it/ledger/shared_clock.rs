//! A shared ledger whose clock is not the host's: windows, periods and rows go by the ledger's.

use super::harness::{Harness, Setup, chat};
use super::process::wait_for;
use super::races::PLANS;
use super::shared::{Server, key_of};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::UNIX_EPOCH;
use tollgate::base::time::Unix;
use tollgate::policy::window::parse_moment;

/// So much the ledger's clock is behind, in seconds.
const BEHIND: u64 = 3600;

/// Every moment that the server says is an hour earlier.
fn set_back(bytes: &mut [u8]) {
    const TIME: &[u8] = b"*2\r\n$10\r\n";
    let found: Vec<usize> =
        bytes.windows(TIME.len()).enumerate().filter(|(_, part)| *part == TIME).map(|(at, _)| at).collect();
    for at in found {
        let digits = at + TIME.len()..at + TIME.len() + 10;
        let Some(secs) = bytes.get(digits.clone()).and_then(|text| std::str::from_utf8(text).ok()?.parse::<u64>().ok())
        else {
            continue;
        };
        bytes[digits].copy_from_slice(format!("{:010}", secs - BEHIND).as_bytes());
    }
}

/// Stands before the server; its port.
fn relay(server: &Server) -> u16 {
    let (listener, port) = (TcpListener::bind("127.0.0.1:0").unwrap(), server.port);
    let at = listener.local_addr().unwrap().port();
    let copy = |mut from: TcpStream, mut to: TcpStream, change: fn(&mut [u8])| {
        std::thread::spawn(move || {
            let mut bytes = vec![0; 1 << 16];
            while let Ok(count @ 1..) = from.read(&mut bytes) {
                change(&mut bytes[..count]);
                if to.write_all(&bytes[..count]).is_err() {
                    break;
                }
            }
            let _ = to.shutdown(std::net::Shutdown::Both);
        });
    };
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(ledger) = TcpStream::connect(("127.0.0.1", port)) else { return };
            copy(client.try_clone().unwrap(), ledger.try_clone().unwrap(), |_| {});
            copy(ledger, client, set_back);
        }
    });
    at
}

#[test]
fn windows_and_rows_go_by_the_ledgers_clock() {
    let Some(server) = Server::start() else { return };
    let store = format!("url = \"redis://127.0.0.1:{}/0\"", relay(&server));
    let h = Harness::start(&Setup { store, more: PLANS.to_owned(), ..Setup::default() });
    let key = key_of(std::slice::from_ref(&h), &[]);
    let theirs = UNIX_EPOCH.elapsed().unwrap().as_secs() - BEHIND;
    let is_near = |at: Unix| at.secs().abs_diff(theirs) < 120;
    assert_eq!(h.chat(&key, &chat("x\n#sim tokens=1")).status(), 200);
    let quota = h.get("/v1/quota", &key).json();
    let reset = quota["rate_limit"]["reset_at"].as_str().unwrap().to_owned();
    assert!(is_near(parse_moment(&reset).unwrap()), "{reset}");
    let row = wait_for("the row", || h.done(&["ledger", "export"]).lines().next().map(str::to_owned));
    let row: serde_json::Value = serde_json::from_str(&row).unwrap();
    assert!(is_near(Unix(row["admitted_unix_ms"].as_u64().unwrap())), "{row}");
    assert!(h.done(&["ledger", "verify"]).starts_with("ok:"));
}
