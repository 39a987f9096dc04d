//! A shared ledger that takes nothing: its memory is full, or its rows are not what they should be. What was admitted
//! is counted once there is room, and no further request is admitted.

use super::cluster::{Ending, is_served};
use super::harness::{chat, chat_request, streamed};
use super::process::wait_for;
use super::shared::{Server, agree, key_of};
use super::shared_people::row;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tollgate::io::store::remote::{Command, Done, Holds, Remote, Speaker};

#[test]
fn a_commit_behind_one_that_fails_is_not_taken_for_both() {
    let Some(server) = Server::start() else { return };
    let mut remote = Remote::new(&server.url(), None, "r".to_owned()).unwrap();
    let (speaker, rows) = (Speaker { host: "h".to_owned(), writer: "w".to_owned() }, [row(None, 1)]);
    remote.announce(&speaker, "", &Holds::new()).unwrap();
    // The second has no rows, but what was done with grants.
    let both = [Command::Rows(1, &rows, &[]), Command::Rows(2, &[], &[])];
    server.say(&[b"SET", b"tollgate:rows", b"x"]);
    remote.send(&speaker, &both).unwrap_err();
    server.say(&[b"DEL", b"tollgate:rows"]);
    assert_eq!(remote.send(&speaker, &both).unwrap(), [Done::Done, Done::Done]);
    assert_eq!(remote.send(&speaker, &both).unwrap(), [Done::Before, Done::Before]);
    assert_eq!(remote.verify().unwrap().rows, 1);
}

#[test]
fn a_full_ledger_refuses_and_counts_whatever_was_admitted() {
    let Some(server) = Server::start() else { return };
    let h = server.gateway("");
    let all = std::slice::from_ref(&h);
    let key = key_of(all, &["--requests", "100000"]);
    let over = AtomicBool::new(false);
    // Admitted by grants, and running while there is room and while there is none.
    let request = chat_request(&key, &streamed(chat("x\n#sim tokens=4 delay=30")));
    let ask = || {
        let mut client = h.client();
        while !over.load(Ordering::Relaxed) {
            let status = client.ask(&request).status();
            assert!([200, 503].contains(&status), "{status}");
        }
    };
    std::thread::scope(|scope| {
        let ending = Ending(&over);
        (0..8).for_each(|_| _ = scope.spawn(ask));
        for _ in 0..4 {
            std::thread::sleep(Duration::from_millis(300));
            server.say(&[b"CONFIG", b"SET", b"maxmemory", b"1"]);
            wait_for("the refusal", || (h.chat(&key, &chat("x")).status() == 503).then_some(()));
            server.say(&[b"CONFIG", b"SET", b"maxmemory", b"0"]);
            wait_for("service", || is_served(&h, &key));
        }
        drop(ending);
    });
    agree(all, &[&key]);
}
