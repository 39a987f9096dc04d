//! A shared ledger that accepts no writes: its memory is full, or its usage records have the wrong type. Admitted
//! requests are counted once writes work again, and no further request is admitted until then.

use super::cluster::{Ending, is_served};
use super::harness::{chat, chat_request, streamed};
use super::process::wait_for;
use super::shared::{Server, agree, key_of, part};
use super::shared_people::row;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tollgate::base::time::Unix;
use tollgate::policy::ledger::Use;
use tollgate::policy::meter::{Amount, Lease};
use tollgate::policy::row::{RareNames, Row};
use tollgate::store::bounds;
use tollgate::store::remote::{Done, Holds, Remote, RemoteCommand, RemoteServer, Speaker};
use tollgate::store::shared::SharedStore;

#[test]
fn failed_commit_is_not_acknowledged_by_the_next_one() {
    let Some(server) = Server::start() else { return };
    let mut remote = Remote { server: RemoteServer::new(&server.address(), None, "r".to_owned()).unwrap() };
    let (speaker, rows) = (Speaker { host: "h".to_owned(), writer: "w".to_owned() }, [row(None, 1)]);
    remote.announce(&speaker, "", &Holds::new()).unwrap();
    // The second commit has no usage records, only uses of grants.
    let both = [RemoteCommand::Rows(1, &rows, &[]), RemoteCommand::Rows(2, &[], &[])];
    server.say(&[b"SET", b"tollgate:rows", b"x"]);
    remote.send(&speaker, &both).unwrap_err();
    server.say(&[b"DEL", b"tollgate:rows"]);
    assert_eq!(remote.send(&speaker, &both).unwrap(), [Done::Done, Done::Done]);
    assert_eq!(remote.send(&speaker, &both).unwrap(), [Done::Before, Done::Before]);
    assert_eq!(remote.verify().unwrap().rows, 1);
}

/// Returns `count` usage records of different keys, users, sessions and models, each key in its own tree of four
/// groups. No two records update the same counter, so committing them takes the server the longest possible time.
fn unlike(count: usize) -> Vec<Row> {
    let row = |n: usize| {
        let text = format!(
            r#"{{"r":"{n:032x}","k":"k{n:011}","a":86400123,"m":"m{n}","t":"p/m{n}","e":"chat","s":true,"c":200,
            "u":[1,1,1,1],"f":"provider","n":7,"x":1,"d":7,"g":"a{n}/b{n}/c{n}/d{n}"}}"#
        );
        let bounds = (Unix(86_400_000), Unix(172_800_000));
        let names = std::iter::once(String::new()).chain(["d", "c", "b", "a"].map(|name| format!("{name}{n}")));
        let spans = names.flat_map(|name| ["period", "5h"].map(|span| format!("{name}/{span}")));
        let parts = spans.map(|name| part(&name, bounds)).collect();
        let lease = Lease { reserved: Amount { tokens: 5, nano: 5 }, parts, shared: true, ..Lease::default() };
        let (user, session) = (format!("u{n}"), format!("s{n}"));
        let row: Row = serde_json::from_str(&text).unwrap();
        let names = RareNames { user: Some(user.into()), session: Some(session.into()), ..RareNames::default() };
        Row { lease: Some(Box::new(lease)), names: names.into(), ..row }
    };
    (0..count).map(row).collect()
}

#[test]
fn the_most_expensive_commit_counts_every_record() {
    let Some(server) = Server::start() else { return };
    let mut remote = Remote { server: RemoteServer::new(&server.address(), None, "r".to_owned()).unwrap() };
    let speaker = Speaker { host: "h".to_owned(), writer: "w".to_owned() };
    remote.announce(&speaker, "", &Holds::new()).unwrap();
    let rows = unlike(bounds::KEYS_PER_SCRIPT);
    let uses: Vec<Use> = rows.iter().map(|row| Use::Served(row.key, *row.lease.clone().unwrap())).collect();
    for (number, size) in [(1, 1), (2, 16), (3, rows.len())] {
        server.say(&[b"CONFIG", b"RESETSTAT"]);
        assert_eq!(
            remote.send(&speaker, &[RemoteCommand::Rows(number, &rows[..size], &uses[..size])]).unwrap(),
            [Done::Done]
        );
        let stats = server.text(&["INFO", "commandstats"]);
        let line = stats.lines().find(|line| line.starts_with("cmdstat_evalsha:")).unwrap();
        let usec = line.split("usec=").nth(1).and_then(|text| text.split(',').next()).unwrap();
        println!("a commit of {size} usage records of as many keys, each in 4 groups: {usec} us of the server");
    }
    assert_eq!(server.number(&["ZCARD", "tollgate:wins"]), 10 * rows.len() as u64);
    let last = rows.len() - 1;
    for account in [rows[last].key.to_string(), format!("@a{last}"), format!("@d{last}")] {
        let used = server.text(&["HGET", &format!("tollgate:use:{account}"), "1"]);
        let window = server.text(&["HGET", &format!("tollgate:win:{account}/5h:86400000:172800000"), "1"]);
        assert_eq!((&*used, &*window), ("$1\r\n4\r\n", "$1\r\n1\r\n"), "{account}");
    }
}

#[test]
fn full_ledger_refuses_and_counts_all_admitted_requests() {
    let Some(server) = Server::start() else { return };
    let h = server.gateway("");
    let all = std::slice::from_ref(&h);
    let key = key_of(all, &["--requests", "100000"]);
    let over = AtomicBool::new(false);
    // Requests admitted by grants, which run while there is memory and while there is none.
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
