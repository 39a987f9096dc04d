//! A shared ledger whose clock differs from the host's. Windows, periods and usage records follow the ledger's clock,
//! and nothing is admitted while that clock is behind.

use super::client::get;
use super::clock::record_of;
use super::harness::{Harness, Setup, chat};
use super::process::wait_for;
use super::races::PLANS;
use super::shared::{Server, key_of};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::UNIX_EPOCH;
use tollgate::base::time::Unix;
use tollgate::io::clock::unix;
use tollgate::policy::window::{iso, parse_moment};

/// Seconds by which the ledger's clock is ahead.
const AHEAD: i64 = 3600;

/// Adds `by` seconds to every time that the server returns.
fn shift(bytes: &mut [u8], by: i64) {
    const TIME: &[u8] = b"*2\r\n$10\r\n";
    let found: Vec<usize> =
        bytes.windows(TIME.len()).enumerate().filter(|(_, part)| *part == TIME).map(|(at, _)| at).collect();
    for at in found {
        let digits = at + TIME.len()..at + TIME.len() + 10;
        let Some(secs) = bytes.get(digits.clone()).and_then(|text| std::str::from_utf8(text).ok()?.parse::<i64>().ok())
        else {
            continue;
        };
        bytes[digits].copy_from_slice(format!("{:010}", secs + by).as_bytes());
    }
}

/// Starts a relay to the server that shifts its clock by `off` seconds. Returns its port.
fn relay(server: &Server, off: &Arc<AtomicI64>) -> u16 {
    let (listener, port, off) = (TcpListener::bind("127.0.0.1:0").unwrap(), server.port, off.clone());
    let at = listener.local_addr().unwrap().port();
    let copy = |mut from: TcpStream, mut to: TcpStream, off: Option<Arc<AtomicI64>>| {
        std::thread::spawn(move || {
            let mut bytes = vec![0; 1 << 16];
            while let Ok(count @ 1..) = from.read(&mut bytes) {
                off.iter().for_each(|off| shift(&mut bytes[..count], off.load(Ordering::SeqCst)));
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
            copy(client.try_clone().unwrap(), ledger.try_clone().unwrap(), None);
            copy(ledger, client, Some(off.clone()));
        }
    });
    at
}

/// Starts a gateway on a ledger whose clock is shifted.
fn gateway(server: &Server, off: &Arc<AtomicI64>) -> Harness {
    let store = format!("url = \"redis://127.0.0.1:{}/0\"", relay(server, off));
    Harness::start(&Setup { store, more: PLANS.to_owned(), ..Setup::default() })
}

fn served(h: &Harness, key: &str) -> u16 {
    h.chat(key, &chat("x\n#sim tokens=1")).status()
}

#[test]
fn windows_and_records_follow_the_ledgers_clock() {
    let Some(server) = Server::start() else { return };
    let h = gateway(&server, &Arc::new(AtomicI64::new(AHEAD)));
    let key = key_of(std::slice::from_ref(&h), &[]);
    let theirs = UNIX_EPOCH.elapsed().unwrap().as_secs() + AHEAD as u64;
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

#[test]
fn nothing_is_admitted_while_the_ledgers_clock_is_behind() {
    let Some(server) = Server::start() else { return };
    let off = Arc::new(AtomicI64::new(0));
    let (h, other) = (gateway(&server, &off), gateway(&server, &off));
    let all = [h, other];
    let key = key_of(&all, &[]);
    assert_eq!(served(&all[0], &key), 200);
    off.store(-3600, Ordering::SeqCst);
    for h in &all {
        wait_for("the refusal", || (served(h, &key) == 503).then_some(()));
        let ready = get(h.admin, "/readyz").unwrap();
        assert_eq!((ready.status(), ready.text()), (503, "not ready: clock\n"));
    }
    off.store(0, Ordering::SeqCst);
    for h in &all {
        wait_for("admission", || (served(h, &key) == 200).then_some(()));
        let said = wait_for("both lines", || {
            let said: Vec<_> = h.log().into_iter().filter(|line| line["event"] == "clock").collect();
            (said.len() >= 2).then_some(said)
        });
        assert_eq!((&said[0]["outcome"], &said[1]["outcome"]), (&"behind".into(), &"right".into()), "{said:?}");
    }
    assert!(all[0].done(&["ledger", "verify"]).starts_with("ok:"));
}

#[test]
fn a_ledgers_clock_that_ran_ahead_is_refused_until_the_present_time_is_accepted() {
    let Some(server) = Server::start() else { return };
    let off = Arc::new(AtomicI64::new(7200));
    let mut h = gateway(&server, &off);
    let key = key_of(std::slice::from_ref(&h), &[]);
    assert_eq!(served(&h, &key), 200);
    h.ledger(1);
    off.store(0, Ordering::SeqCst);
    wait_for("the refusal", || (served(&h, &key) == 503).then_some(()));
    let shown = h.command(&["ledger", "clock"]);
    assert!(shown.code == 1 && shown.err.contains("--confirm"), "{}", shown.err);
    h.done(&["ledger", "clock", "--confirm"]);
    wait_for("admission", || (served(&h, &key) == 200).then_some(()));
    let audit: serde_json::Value = serde_json::from_str(&h.done(&["ledger", "audit", "--json"])).unwrap();
    assert_eq!((&audit[0]["what"], &audit[0]["key"]), (&"clock".into(), &"".into()));
    h.gateway.stop("TERM");
    h.start_again();
    assert_eq!(served(&h, &key), 200, "the acceptance survives a restart");
    assert!(h.done(&["ledger", "clock"]).starts_with("ok: "));
}

#[test]
fn a_shared_ledger_folds_nothing_behind_a_gap_until_it_is_confirmed() {
    let Some(server) = Server::start() else { return };
    let mut h = server.gateway("retention = \"32d\"");
    h.gateway.stop("TERM");
    let old = Unix(unix().0 - 400 * 86_400_000);
    let rows = serde_json::to_string(&[record_of(old)]).unwrap();
    let id = format!("{}-0", old.0);
    server.say(&[b"XADD", b"tollgate:rows", id.as_bytes(), b"rows", rows.as_bytes()]);
    h.start_again();
    let is_warning =
        |line: &serde_json::Value| line["message"].as_str().is_some_and(|text| text.contains("ledger fold"));
    let warning = wait_for("the warning", || h.log().into_iter().find(is_warning));
    assert!(warning["message"].as_str().unwrap().contains(&iso(old)), "{warning}");
    let shown = h.command(&["ledger", "fold"]);
    assert!(shown.code == 1 && shown.err.contains(&iso(old)), "{}", shown.err);
    assert_eq!(server.number(&["XLEN", "tollgate:rows"]), 1);
    h.done(&["ledger", "fold", "--confirm"]);
    wait_for("the rows to be folded", || (server.number(&["XLEN", "tollgate:rows"]) == 0).then_some(()));
    let audit: serde_json::Value = serde_json::from_str(&h.done(&["ledger", "audit", "--json"])).unwrap();
    assert_eq!((&audit[0]["what"], &audit[0]["before"]["newest_record"]), (&"fold".into(), &iso(old).into()));
    assert!(h.done(&["ledger", "fold"]).starts_with("ok: "));
}
