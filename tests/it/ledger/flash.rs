//! Store settings for flash storage, on the real binary: how much a power cut at a random moment loses, and copies of
//! the ledger.

use super::harness::{Harness, Setup, chat};
use super::process::{binary, wait_for};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use tollgate::base::rng::Rng;

/// Time before a power cut whose answered requests may be lost: the commit interval and one tick, with a margin for a
/// busy machine.
const WINDOW: Duration = Duration::from_millis(500 + 100 + 1000);

fn flash() -> Harness {
    let store = "url = \"sqlite:tollgate.db\"\ncommit_every = \"500ms\"\nsync_every = \"1s\"\npage_size = 1024\n\
                 snapshot = { to = \"snapshot.db\", every = \"1h\" }";
    Harness::start(&Setup { store: store.into(), ..Setup::default() })
}

/// Returns the number of usage records in a copy of the ledger's files. Their sums must match the counters.
fn rows_in(folder: &Path, copy: &Path) -> u64 {
    let config = fs::read_to_string(folder.join("tollgate.toml")).unwrap();
    fs::write(copy.join("tollgate.toml"), config).unwrap();
    let done = Command::new(binary()).args(["ledger", "verify", "--json"]).current_dir(copy).output().unwrap();
    let verdict: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!((verdict["agrees"].as_bool(), done.status.code()), (Some(true), Some(0)), "{verdict}");
    verdict["rows"].as_u64().unwrap()
}

#[test]
fn copied_files_lack_at_most_one_commit_interval() {
    let h = flash();
    let (key, body) = (h.key(), chat("x\n#sim tokens=1"));
    let mut random = Rng::from_u64(u64::from(std::process::id()));
    let (mut answered, mut copies) = (Vec::new(), Vec::new());
    for moment in 0..6 {
        let until = Instant::now() + Duration::from_millis(200 + random.below(900));
        while Instant::now() < until {
            assert_eq!(h.chat(&key, &body).status(), 200);
            answered.push(Instant::now());
            std::thread::sleep(Duration::from_millis(20));
        }
        // The gateway is paused, so no file changes while the others are copied.
        h.gateway.signal("STOP");
        let at = Instant::now();
        let copy = h.folder.path().join(format!("cut-{moment}"));
        fs::create_dir(&copy).unwrap();
        for name in ["tollgate.db", "tollgate.db-wal"] {
            fs::copy(h.folder.path().join(name), copy.join(name)).unwrap();
        }
        h.gateway.signal("CONT");
        let old = answered.iter().filter(|answer| **answer + WINDOW < at).count() as u64;
        copies.push((copy, old, answered.len() as u64));
    }
    for (copy, old, all) in copies {
        let rows = rows_in(h.folder.path(), &copy);
        assert!((old..=all).contains(&rows), "{rows} rows of {all} requests, {old} of them much earlier");
    }
    h.ledger(answered.len() as u64);
}

#[test]
fn backup_works_while_the_gateway_runs_but_compaction_does_not() {
    let mut h = flash();
    let (key, body) = (h.key(), chat("x\n#sim tokens=1"));
    assert_eq!(h.chat(&key, &body).status(), 200);
    h.ledger(1);
    let copy = h.folder.path().join("copy");
    fs::create_dir(&copy).unwrap();
    let to = copy.join("tollgate.db");
    let said = h.done(&["ledger", "backup", to.to_str().unwrap()]);
    assert!(said.contains("tollgate.db: ") && said.ends_with(" bytes\n"), "{said}");
    assert_eq!(rows_in(h.folder.path(), &copy), 1);
    let refused = h.command(&["ledger", "compact"]);
    assert!(refused.code == 1 && refused.err.contains("another gateway has this ledger open"), "{}", refused.err);
    assert_eq!(h.command(&["ledger", "backup", "missing/copy.db"]).code, 1);

    let snapshot = h.folder.path().join("snapshot.db");
    assert!(!snapshot.exists());
    h.gateway.stop("TERM");
    fs::copy(&snapshot, &to).unwrap();
    assert_eq!(rows_in(h.folder.path(), &copy), 1);
    let config = h.folder.path().join("tollgate.toml");
    let text = fs::read_to_string(&config).unwrap().replace("page_size = 1024", "page_size = 512");
    fs::write(&config, text).unwrap();
    h.start_again();
    let warned = || h.log().into_iter().find(|line| line["event"] == "warning");
    let warning = wait_for("the warning of the page size", warned);
    assert!(warning["message"].as_str().unwrap().contains("its pages have 1024 bytes"), "{warning}");
    h.gateway.stop("TERM");
    let said = h.done(&["ledger", "compact"]);
    assert!(said.ends_with("in pages of 512\n"), "{said}");
    h.start_again();
    assert_eq!(h.chat(&key, &body).status(), 200);
    assert_eq!(h.ledger(2).requests, 2);
    assert!(h.done(&["ledger", "verify"]).starts_with("ok:"));
}
