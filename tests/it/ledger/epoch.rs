//! A shared ledger that is emptied or replaced while hosts use it. The hosts refuse requests instead of counting from
//! zero, until an operator adopts the new ledger explicitly. Also: the usage records of many requests in one entry.

use super::harness::{Harness, chat, chat_request, streamed};
use super::process::{Folder, wait_for};
use super::shared::{Server, agree, key_of, sums, used};
use std::time::Duration;
use tollgate::io::clock::unix;
use tollgate::store::remote::RemoteServer;
use tollgate::store::spill::SpillFolder;

fn status(h: &Harness, key: &str) -> u16 {
    h.chat(key, &chat("x\n#sim tokens=1")).status()
}

/// Checks that all hosts refuse and continue to refuse, and that no answer calls a key wrong.
fn all_refuse(all: &[Harness], key: &str) {
    for h in all {
        wait_for("the refusal", || (status(h, key) == 503).then_some(()));
    }
    std::thread::sleep(Duration::from_millis(800));
    for h in all {
        assert_eq!((status(h, key), h.status_of(key)), (503, 503));
        let lines = h.log();
        let said = lines.iter().any(|line| line["event"] == "ledger" && line["error"].to_string().contains("adopt"));
        assert!(said, "the log must say what to do");
    }
}

#[test]
fn emptied_ledger_is_refused_until_it_is_adopted() {
    let Some(server) = Server::start() else { return };
    let all = server.three();
    let key = key_of(&all, &["--plan", "requests"]);
    assert_eq!(status(&all[0], &key), 200);
    let mut running = all[0].client();
    running.send(&chat_request(&key, &streamed(chat("x\n#sim tokens=400 pace=20"))));
    assert_eq!(running.head().unwrap().status, 200);
    server.say(&[b"FLUSHALL"]);
    all_refuse(&all, &key);
    // A key issued now would not work at any host.
    let refused = all[0].command(&["keys", "issue", "--name", "x", "--plan", "requests"]);
    assert!(refused.code == 1 && refused.err.contains("tollgate ledger adopt"), "{}{}", refused.out, refused.err);
    let said = all[0].done(&["ledger", "adopt"]);
    assert!(said.starts_with("adopted: ") && said.contains("running hosts continue with it"), "{said}");
    let fresh = all[0].issue(&["--plan", "requests"]);
    for h in &all {
        wait_for("service", || (status(h, &fresh) == 200).then_some(()));
        wait_for("the loss of the old key", || (h.status_of(&key) == 401).then_some(()));
    }
    // A host that starts afterwards accepts the ledger like any other.
    let late = server.gateway("");
    assert_eq!(status(&late, &fresh), 200);
    // The usage record of a request that began under the old ledger is written to the new one, although that one does
    // not know the key.
    while running.chunk().unwrap().is_some() {}
    wait_for("the row", || (sums(&late, &key).0 >= 1).then_some(()));
    let said = late.done(&["ledger", "verify"]);
    assert!(said.starts_with("ok:"), "{said}");
}

#[test]
fn starting_gateway_refuses_a_ledger_emptied_in_the_meantime() {
    let Some(server) = Server::start() else { return };
    let mut all = [server.gateway(""), server.gateway("")];
    let key = key_of(&all, &["--plan", "requests"]);
    for h in &mut all {
        assert_eq!(status(h, &key), 200);
        assert!(h.gateway.stop("TERM").success());
    }
    server.say(&[b"FLUSHALL"]);
    for args in [&["serve"][..], &["keys", "issue", "--name", "x"], &["keys", "list"], &["usage"]] {
        let refused = all[0].command(args);
        assert!(refused.code != 0 && refused.err.contains("tollgate ledger adopt"), "{args:?}: {}", refused.err);
    }
    assert_eq!(server.number(&["DBSIZE"]), 0, "nothing may create a new ledger");
    all[0].done(&["ledger", "adopt"]);
    let fresh = all[0].issue(&["--plan", "requests"]);
    for h in &mut all {
        h.start_again();
        assert_eq!((status(h, &fresh), h.status_of(&key)), (200, 401));
    }
    // Nobody has to adopt the ledger again, even if the adoption was long ago.
    server.say(&[b"DEL", b"tollgate:adopted"]);
    assert!(all[1].gateway.stop("TERM").success());
    all[1].start_again();
    assert_eq!(status(&all[1], &fresh), 200);
}

/// Contents of the epoch file after a power cut, another user, or another user's mischief.
#[test]
fn unreadable_epoch_file_is_no_missing_one() {
    let Some(server) = Server::start() else { return };
    let mut h = server.gateway("");
    let key = key_of(std::slice::from_ref(&h), &[]);
    assert_eq!(status(&h, &key), 200);
    assert!(h.gateway.stop("TERM").success());
    let names = std::fs::read_dir(h.folder.path()).unwrap().map(|entry| entry.unwrap().path());
    let marks: Vec<_> = names.filter(|path| path.extension().is_some_and(|end| end == "mark")).collect();
    let [mark] = &marks[..] else { panic!("{marks:?}") };
    let content = std::fs::read(mark).unwrap();
    server.say(&[b"FLUSHALL"]);
    let put = |kind: &str| match kind {
        "empty" => std::fs::write(mark, "").unwrap(),
        "half" => std::fs::write(mark, &content[..content.len() / 2]).unwrap(),
        "link" => std::os::unix::fs::symlink("elsewhere", mark).unwrap(),
        _ => std::fs::create_dir(mark).unwrap(),
    };
    for kind in ["empty", "half", "link", "folder"] {
        std::fs::remove_file(mark).unwrap();
        put(kind);
        for args in [&["serve"][..], &["keys", "list"]] {
            let done = h.command(args);
            let says = done.err.contains(".mark: ") && done.err.contains("put back the file, or remove it");
            assert!(done.code == 1 && says, "{kind}, {args:?}: {}", done.err);
        }
        assert_eq!(server.number(&["DBSIZE"]), 0, "nothing may create a new ledger");
        if kind == "folder" {
            std::fs::remove_dir(mark).unwrap();
        }
    }
    // The operator decides.
    h.start_again();
    assert_eq!(h.status_of(&key), 401);
}

#[test]
fn processes_of_one_host_that_start_together_find_no_older_copy() {
    let Some(server) = Server::start() else { return };
    let folder = Folder::new();
    let start = || {
        let mut remote = RemoteServer::new(&server.address(), None, "the server".to_owned()).unwrap();
        remote.connect().unwrap();
        remote.compare(&SpillFolder::new(folder.path().to_path_buf(), "tollgate-1".to_owned()), unix()).unwrap()
    };
    assert_eq!(start(), [""; 0]);
    for round in 0..20 {
        let found: Vec<Vec<String>> = std::thread::scope(|scope| {
            let started: Vec<_> = (0..4).map(|_| scope.spawn(start)).collect();
            started.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(found.iter().all(Vec::is_empty), "round {round}: {found:?}");
    }
}

fn warned_of_loss(h: &Harness) -> bool {
    let is_it = |line: &serde_json::Value| line["message"].to_string().contains("restored from an older copy");
    h.log().iter().any(is_it)
}

#[test]
fn a_ledger_restored_from_an_older_copy_is_reported() {
    let Some(mut server) = Server::start() else { return };
    let mut all = [server.gateway(""), server.gateway("")];
    let key = key_of(&all, &["--plan", "requests"]);
    assert_eq!(status(&all[0], &key), 200);
    wait_for("the row", || (sums(&all[0], &key).0 == 1).then_some(()));
    server.kill();
    let copy = server.copy();
    server.run();
    for h in &all {
        wait_for("service", || (status(h, &key) == 200).then_some(()));
    }
    wait_for("the rows", || (sums(&all[0], &key).0 == 3).then_some(()));
    assert!(!all.iter().any(warned_of_loss), "no warning without a loss");
    // One gateway keeps running. The other one starts after the restore, and the copy does not contain its last start.
    assert!(all[1].gateway.stop("TERM").success());
    all[1].start_again();
    assert!(all[1].gateway.stop("TERM").success());
    server.kill();
    server.restore(&copy);
    server.run();
    wait_for("service", || (status(&all[0], &key) == 200).then_some(()));
    wait_for("the warning", || warned_of_loss(&all[0]).then_some(()));
    all[1].start_again();
    assert_eq!(status(&all[1], &key), 200);
    wait_for("the warning of the host that starts", || warned_of_loss(&all[1]).then_some(()));
}

#[test]
fn usage_of_a_lost_ledger_does_not_count_in_the_adopted_one() {
    let Some(server) = Server::start() else { return };
    let h = server.gateway("[[groups]]\nname = \"labs\"\nrequests = 3\nwindow = \"31d\"\n");
    let all = std::slice::from_ref(&h);
    let key = key_of(all, &["--plan", "open", "--group", "labs"]);
    let asked = [0; 5].map(|_| status(&h, &key));
    assert_eq!(asked, [200, 200, 200, 429, 429]);
    server.say(&[b"FLUSHALL"]);
    all_refuse(all, &key);
    h.done(&["ledger", "adopt"]);
    let fresh = h.issue(&["--plan", "open", "--group", "labs"]);
    wait_for("service", || (h.status_of(&fresh) == 200).then_some(()));
    let asked = [0; 5].map(|_| status(&h, &fresh));
    assert_eq!(asked, [200, 200, 200, 429, 429], "the group starts from zero");
}

#[test]
fn ledger_without_its_epoch_is_refused_at_startup_too() {
    let Some(server) = Server::start() else { return };
    let h = server.gateway("");
    let key = key_of(std::slice::from_ref(&h), &[]);
    assert_eq!(status(&h, &key), 200);
    wait_for("the row", || (h.done(&["ledger", "export"]).lines().count() == 1).then_some(()));
    server.say(&[
        b"EVAL",
        b"for _, k in ipairs(redis.call('KEYS', 'tollgate:epoch*')) do redis.call('DEL', k) end",
        b"0",
    ]);
    all_refuse(std::slice::from_ref(&h), &key);
    let refused = h.command(&["ledger", "verify"]);
    assert_eq!(refused.code, 1);
    assert!(refused.err.contains("was emptied or replaced"), "{}", refused.err);
    h.done(&["ledger", "adopt"]);
    wait_for("service", || (status(&h, &key) == 200).then_some(()));
    // Nothing else was lost: the counters continue.
    agree(std::slice::from_ref(&h), &[&key]);
}

#[test]
fn ledger_in_a_file_needs_no_adoption() {
    let h = Harness::usual();
    let refused = h.command(&["ledger", "adopt"]);
    assert_eq!(refused.code, 1);
    assert!(refused.err.contains("a file needs no adopting"), "{}", refused.err);
}

#[test]
fn usage_records_share_entries_and_counters_are_their_sum() {
    let Some(server) = Server::start() else { return };
    let h = server.gateway("");
    let key = key_of(std::slice::from_ref(&h), &[]);
    let mut clients: Vec<_> = (0..40).map(|_| h.client()).collect();
    let request = super::harness::chat_request(&key, &chat("x\n#sim tokens=3"));
    for _ in 0..5 {
        clients.iter_mut().for_each(|client| client.send(&request));
        for client in &mut clients {
            assert_eq!(client.answer().unwrap().status(), 200);
        }
    }
    agree(std::slice::from_ref(&h), &[&key]);
    assert_eq!(used(&h, &key), h.ledger(200).tokens());
    let entries = server.number(&["XLEN", "tollgate:rows"]);
    println!("200 rows in {entries} entries");
    assert!(entries < 100, "{entries} entries for 200 usage records");
}
