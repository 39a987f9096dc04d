//! A new process replaces the old one, and both are hosts of a shared ledger. No stream is cut, no usage record is
//! lost, and no limit is exceeded.

use super::harness::{Harness, chat, chat_request, streamed};
use super::process::wait_for;
use super::races::admitted;
use super::shared::{Server, agree, key_of, sums};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Requests that the plan allows.
const LIMIT: usize = 137;

/// Returns the ids of the processes that have listened, oldest first. All but the first are not children of this
/// process.
fn pids(h: &Harness) -> Vec<u64> {
    h.log().iter().filter(|line| line["event"] == "listening").map(|line| line["pid"].as_u64().unwrap()).collect()
}

/// Kills the successors when the test ends.
struct Successors<'a>(&'a Harness);

impl Drop for Successors<'_> {
    fn drop(&mut self) {
        for pid in pids(self.0).iter().skip(1) {
            // The id of an ended process may have been reused.
            if std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|folder| folder == self.0.folder.path()) {
                let _ = Command::new("kill").args(["-KILL", &pid.to_string()]).status();
            }
        }
    }
}

fn upgrade(h: &Harness) {
    let before = pids(h);
    let newest = before.last().unwrap().to_string();
    assert!(Command::new("kill").args(["-USR2", &newest]).status().unwrap().success());
    wait_for("the successor", || (pids(h).len() > before.len()).then_some(()));
}

/// Sends requests until `over` is set and returns how many were admitted, and how many got 503 because the successor took
/// the ledger late. Every request uses a new connection, so that none is lost when an idle connection is closed.
fn flow(h: &Harness, key: &str, over: &AtomicBool) -> [usize; 2] {
    let (request, mut all) = (chat_request(key, &chat("x\n#sim tokens=2")), Vec::new());
    while !over.load(Ordering::Relaxed) {
        all.push(h.client().ask(&request));
        std::thread::sleep(Duration::from_millis(5));
    }
    let count = all.len();
    all.retain(|answer| answer.status() != 503);
    [admitted(&all), count - all.len()]
}

/// True if each upgrade of a process took less than two seconds, after which new requests get 503.
fn was_quick(h: &Harness) -> bool {
    let times = |outcome: &str| -> Vec<String> {
        let log = h.log();
        let found = log.iter().filter(|line| line["event"] == "upgrade" && line["outcome"] == outcome);
        found.map(|line| line["time"].as_str().unwrap().to_owned()).collect()
    };
    // Times have whole seconds.
    let second = |time: &String| time[17..19].parse::<u64>().unwrap();
    let took = |(from, to)| (60 + second(to) - second(from)) % 60;
    times("starting").iter().zip(&times("handed over")).all(|pair| took(pair) < 2)
}

fn hand_over_twice(durability: &str) {
    let Some(server) = Server::start() else { return };
    let store = format!("durability = \"{durability}\"");
    let all = [server.gateway(&store), server.gateway(&store)];
    let _successors = Successors(&all[0]);
    let keys = [key_of(&all, &[]), key_of(&all, &["--plan", "requests"]), key_of(&all, &["--plan", "at-once"])];
    let [open, limited, crowded] = &keys;
    let long = streamed(chat("x\n#sim tokens=400 pace=25"));
    let begin = |key: &str| {
        let mut client = all[0].client();
        client.send(&chat_request(key, &long));
        assert_eq!(client.head().unwrap().status, 200);
        client
    };
    let mut streams: Vec<_> = (0..40).map(|_| begin(open)).chain((0..50).map(|_| begin(crowded))).collect();
    let over = AtomicBool::new(false);
    let ([asked, late], [passed, later]) = std::thread::scope(|scope| {
        let (all, over) = (&all, &over);
        let ask = |key| all.iter().map(move |h| scope.spawn(move || flow(h, key, over))).collect::<Vec<_>>();
        let flows = [ask(open), ask(limited)];
        std::thread::sleep(Duration::from_millis(200));
        for _ in 0..2 {
            upgrade(&all[0]);
            // The slots are used by streams of a process that accepts no new requests.
            for h in all {
                assert_eq!(h.chat(crowded, &chat("x")).status(), 429);
            }
        }
        wait_for("the limit", || (sums(&all[1], limited).0 >= LIMIT as u64).then_some(()));
        std::thread::sleep(Duration::from_millis(300));
        over.store(true, Ordering::Relaxed);
        flows.map(|all| {
            let all = all.into_iter().map(|one| one.join().unwrap());
            all.fold([0; 2], |[admitted, late], one| [admitted + one[0], late + one[1]])
        })
    })
    .into();
    assert!(late + later == 0 || !was_quick(&all[0]), "{durability}: {late} and {later} requests got 503");
    assert_eq!(passed, LIMIT, "{durability}: admitted across two upgrades");
    for client in &mut streams {
        let mut text = String::new();
        while let Some(chunk) = client.chunk().unwrap() {
            text += &String::from_utf8(chunk).unwrap();
        }
        assert!(text.contains("\"finish_reason\":\"stop\"") && text.trim_end().ends_with("[DONE]"), "{text}");
    }
    let expected = [asked as u64 + 40, LIMIT as u64, 50];
    println!("{durability}: two upgrades on a shared ledger, rows {expected:?}");
    let left = || all[0].log().iter().filter(|line| line["outcome"] == "predecessor left").count();
    wait_for("both predecessors to leave", || (left() == 2).then_some(()));
    wait_for("every row", || (keys.each_ref().map(|key| sums(&all[1], key).0) == expected).then_some(()));
    agree(&all, &keys.each_ref());
    assert_eq!(all[0].chat(crowded, &chat("x")).status(), 200, "all slots are free again");
}

#[test]
fn upgrade_on_a_shared_ledger_loses_nothing_and_exceeds_no_limit() {
    std::thread::scope(|scope| {
        let ways = ["write-behind", "before-reply"].map(|way| scope.spawn(move || hand_over_twice(way)));
        ways.into_iter().for_each(|way| way.join().unwrap());
    });
}

fn spills(h: &Harness) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(h.folder.path()).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.to_string_lossy().contains(".spill-")).collect()
}

#[test]
fn upgrade_is_refused_while_the_shared_ledger_is_gone() {
    let Some(mut server) = Server::start() else { return };
    let mut h = server.gateway("on_outage = \"local\"\nhosts = 1");
    let key = key_of(std::slice::from_ref(&h), &[]);
    assert_eq!(h.chat(&key, &chat("x")).status(), 200);
    wait_for("the first row", || (sums(&h, &key).0 == 1).then_some(()));
    server.kill();
    let failed = || h.log().iter().any(|line| line["event"] == "ledger" && line["outcome"] == "failed");
    wait_for("the gateway to notice the missing ledger", || failed().then_some(()));
    let served = (0..23).filter(|_| h.chat(&key, &chat("x")).status() == 200).count();
    assert_eq!(served, 23);
    h.gateway.signal("USR2");
    let refused = || h.log().iter().any(|line| line["outcome"] == "refused: the ledger is not available");
    wait_for("the upgrade to be refused", || refused().then_some(()));
    assert_eq!(h.chat(&key, &chat("x")).status(), 200);
    assert_eq!(h.gateway.stop("TERM").code(), Some(1));
    let found = spills(&h);
    assert_eq!(found.len(), 1, "{found:?}");
    let text = std::fs::read(&found[0]).unwrap();
    server.run();
    // The spill is read once, no matter how often it is found.
    for _ in 0..2 {
        h.start_again();
        assert_eq!((sums(&h, &key).0, spills(&h).len()), (25, 0));
        assert!(h.done(&["ledger", "verify"]).starts_with("ok:"));
        assert_eq!(h.gateway.stop("TERM").code(), Some(0));
        std::fs::write(&found[0], &text).unwrap();
    }
}

#[test]
fn successor_without_a_shared_ledger_leaves_the_old_process_serving() {
    let Some(mut server) = Server::start() else { return };
    let h = server.gateway("on_outage = \"local\"\nhosts = 1");
    let key = key_of(std::slice::from_ref(&h), &[]);
    // The server disappears before the successor connects, and the old process has not noticed yet.
    let config = h.folder.path().join("tollgate.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    let nowhere = format!("redis://127.0.0.1:{}/", super::process::free_port());
    let other = text.lines().map(|line| match line.strip_prefix("url = \"redis://") {
        Some(_) => format!("url = \"{nowhere}0\""),
        None => line.to_string(),
    });
    std::fs::write(&config, other.collect::<Vec<_>>().join("\n")).unwrap();
    h.gateway.signal("USR2");
    let said = |word: &str| h.log().iter().any(|line| line["outcome"].as_str().is_some_and(|text| text.contains(word)));
    wait_for("the failure", || (said("failed: ") && said("serving on without a successor")).then_some(()));
    assert_eq!(h.chat(&key, &chat("x")).status(), 200);
    std::fs::write(&config, text).unwrap();
    let _successors = Successors(&h);
    upgrade(&h);
    assert_eq!(h.chat(&key, &chat("x")).status(), 200);
    wait_for("both rows", || (sums(&h, &key).0 == 2).then_some(()));
    server.kill();
}
