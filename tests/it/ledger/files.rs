//! A gateway whose ledger file is removed, opened under another name, damaged, or cannot grow.

use super::client::{Client, get, request};
use super::harness::{CREDENTIAL, Harness, Setup, bearer, chat};
use super::process::{Process, binary, free_port, wait_at_most, wait_for};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use tollgate::store::bounds;

fn path(h: &Harness, name: &str) -> PathBuf {
    h.folder.path().join(name)
}

fn wait_until_ready(h: &Harness, status: u16) {
    let ready = || get(h.admin, "/readyz").ok().filter(|answer| answer.status() == status).map(drop);
    wait_for(&format!("/readyz to say {status}"), ready);
}

/// Returns why the ledger failed, from the log.
fn failures(h: &Harness) -> Vec<String> {
    let log = h.log();
    let failed = log.iter().filter(|line| line["event"] == "ledger" && line.get("error").is_some());
    failed.map(|line| line["error"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn moved_or_replaced_ledger_counts_as_failed_until_it_is_restored() {
    let h = Harness::usual();
    let (key, body) = (h.key(), chat("x\n#sim tokens=1"));
    assert_eq!(h.chat(&key, &body).status(), 200);
    let (db, aside) = (path(&h, "tollgate.db"), path(&h, "aside.db"));
    for (turn, replaced) in [false, true].into_iter().enumerate() {
        fs::rename(&db, &aside).unwrap();
        if replaced {
            fs::copy(&aside, &db).unwrap();
        }
        wait_until_ready(&h, 503);
        assert_eq!(h.chat(&key, &body).status(), 503);
        let why = wait_for("the reason in the log", || Some(failures(&h)).filter(|why| why.len() > turn));
        assert_eq!(why.len(), turn + 1, "{why:?}");
        assert!(why[turn].contains("tollgate.db") && why[turn].contains("moved, deleted or replaced"), "{why:?}");
        fs::rename(&aside, &db).unwrap();
        wait_until_ready(&h, 200);
        assert_eq!(h.chat(&key, &body).status(), 200);
    }
    assert_eq!(h.ledger(3).requests, 3);
    assert!(h.done(&["ledger", "verify"]).starts_with("ok:"));
}

#[test]
fn second_gateway_on_one_file_is_refused_under_every_name() {
    let h = Harness::usual();
    let (key, body) = (h.key(), chat("x\n#sim tokens=1"));
    std::os::unix::fs::symlink("tollgate.db", path(&h, "soft.db")).unwrap();
    fs::hard_link(path(&h, "tollgate.db"), path(&h, "hard.db")).unwrap();
    let config = fs::read_to_string(path(&h, "tollgate.toml")).unwrap();
    for name in ["tollgate.db", "soft.db", "hard.db"] {
        let other = |port: u16| format!("127.0.0.1:{port}");
        let config = config.replace("sqlite:tollgate.db", &format!("sqlite:{name}"));
        let config = config.replace(&h.at.to_string(), &other(free_port()));
        fs::write(path(&h, "second.toml"), config.replace(&h.admin.to_string(), &other(free_port()))).unwrap();
        let mut second = Process::start(h.folder.path(), name, &["serve", "--config", "second.toml"], &[CREDENTIAL]);
        wait_at_most(Duration::from_secs(20), "the second gateway to be refused", || second.has_ended().then_some(()));
        assert_eq!(second.wait().code(), Some(1));
        let said = second.written();
        assert!(said.contains(name) && said.contains("another gateway has this ledger open"), "{said}");
        assert_eq!(h.chat(&key, &body).status(), 200);
    }
    assert_eq!(h.ledger(3).requests, 3);
}

#[test]
fn ledger_that_cannot_grow_refuses_without_stopping_the_gateway() {
    let mut h = Harness::usual();
    let (key, body) = (h.key(), chat("x\n#sim tokens=1"));
    let limit = |h: &Harness, bytes: &str| {
        let (pid, limit) = (h.gateway.id().to_string(), format!("--fsize={bytes}:unlimited"));
        assert!(Command::new("prlimit").args(["--pid", &pid, &limit]).status().unwrap().success());
    };
    limit(&h, "98304");
    let mut served = 0;
    wait_for("the ledger to be full", || {
        assert!(!h.gateway.has_ended(), "{:?}", h.gateway.wait());
        let answer = h.chat(&key, &body);
        served += u64::from(answer.status() == 200);
        (answer.status() == 503).then_some(())
    });
    let why = wait_for("the reason in the log", || failures(&h).into_iter().next());
    assert!(why.contains("tollgate.db"), "{why}");
    limit(&h, "unlimited");
    wait_until_ready(&h, 200);
    assert_eq!(h.ledger(served).requests, served);
}

#[test]
fn damaged_key_record_blocks_neither_revocation_nor_startup() {
    let mut h = Harness::usual();
    let keys = [(); 3].map(|()| h.key());
    let id = |at: usize| &keys[at][8..20];
    let db = rusqlite::Connection::open(path(&h, "tollgate.db")).unwrap();
    db.execute("UPDATE keys SET digest = x'01' WHERE id = ?1", [id(0)]).unwrap();
    let named = |h: &Harness| {
        let named = |line: &Value| {
            line["event"] == "warning" && line["message"].as_str().is_some_and(|text| text.contains(id(0)))
        };
        h.log().iter().any(named).then_some(())
    };
    wait_for("the log to name it", || named(&h));
    assert_eq!(h.status_of(&keys[0]), 401, "a damaged key opens nothing");
    h.done(&["keys", "revoke", id(1)]);
    wait_for("the revocation", || (h.status_of(&keys[1]) == 401).then_some(()));
    assert_eq!(h.gateway.stop("TERM").code(), Some(0));
    h.start_again();
    wait_for("the log to name it again", || named(&h));
    assert_eq!([0, 1, 2].map(|at| h.status_of(&keys[at])), [401, 401, 200]);
    assert_eq!(h.done(&["keys", "list"]).lines().count(), 3);
}

/// Moves files of the ledger aside, chosen by their suffixes.
fn remove(h: &Harness, ends: &[&str]) {
    ends.iter()
        .for_each(|end| fs::rename(path(h, &format!("tollgate.db{end}")), path(h, &format!("aside{end}"))).unwrap());
}

fn copy(h: &Harness, ends: &[&str]) {
    remove(h, ends);
    for end in ends {
        fs::copy(path(h, &format!("aside{end}")), path(h, &format!("tollgate.db{end}"))).unwrap();
    }
}

fn put_back(h: &Harness, ends: &[&str]) {
    ends.iter()
        .for_each(|end| fs::rename(path(h, &format!("aside{end}")), path(h, &format!("tollgate.db{end}"))).unwrap());
}

fn admin(h: &Harness, method: &str, id: &str) -> u16 {
    let token = bearer(CREDENTIAL.1);
    let fields = [("authorization", token.as_str())];
    Client::connect(h.admin).ask(&request(method, &format!("/admin/v1/keys/{id}"), &fields)).status()
}

#[test]
fn missing_wal_files_stop_admission_and_changes() {
    let server = "admin_write_token = { env = \"SIM_KEY\" }\nadmin_hosts = [\"gateway.test\"]";
    let mut h = Harness::start(&Setup { server, ..Setup::default() });
    let (key, body) = (h.key(), chat("x\n#sim tokens=1"));
    assert_eq!(h.chat(&key, &body).status(), 200);
    let (mut served, id) = (1, &key[8..20]);
    type Fault = fn(&Harness, &[&str]);
    let cases: [(Fault, &[&str]); 6] = [
        (remove, &["-wal", "-shm"]),
        (remove, &["-wal"]),
        (remove, &["-shm"]),
        (copy, &["-wal", "-shm"]),
        (copy, &["-wal"]),
        (copy, &["", "-wal"]),
    ];
    for (turn, (fault, ends)) in cases.into_iter().enumerate() {
        fault(&h, ends);
        // Before the gateway has checked its files, and after that.
        for looked in [false, true] {
            if looked {
                wait_until_ready(&h, 503);
                assert_eq!(h.chat(&key, &body).status(), 503);
            }
            let done = h.command(&["keys", "revoke", id]);
            assert_eq!(done.code, 1, "case {turn}: {}{}", done.out, done.err);
            assert!(done.err.contains("tollgate.db"), "case {turn}: {}", done.err);
            if turn == 0 {
                let done = h.command(&["keys", "issue", "--name", "lost"]);
                assert_eq!((done.code, done.out.as_str()), (1, ""), "case {turn}: {}", done.err);
            }
            assert_eq!(admin(&h, "DELETE", id), 503, "case {turn}");
        }
        let why = wait_for("the reason in the log", || Some(failures(&h)).filter(|why| why.len() > turn));
        assert!(why[turn].contains("tollgate.db") && why[turn].contains("moved, deleted or replaced"), "{why:?}");
        put_back(&h, ends);
        wait_until_ready(&h, 200);
        assert_eq!(h.chat(&key, &body).status(), 200, "case {turn}");
        served += 1;
    }
    assert_eq!(h.ledger(served).requests, served);
    h.done(&["keys", "revoke", id]);
    wait_for("the revocation", || (h.status_of(&key) == 401).then_some(()));
    assert_eq!(h.gateway.stop("TERM").code(), Some(0));
    h.start_again();
    assert_eq!(h.status_of(&key), 401);
    assert_eq!(h.ledger(served).requests, served);
    assert!(h.done(&["ledger", "verify"]).starts_with("ok:"));
}

#[test]
fn truncated_file_stops_admission_and_commands() {
    let h = Harness::usual();
    let (key, body) = (h.key(), chat("x\n#sim tokens=1"));
    assert_eq!(h.chat(&key, &body).status(), 200);
    h.ledger(1);
    let db = rusqlite::Connection::open(path(&h, "tollgate.db")).unwrap();
    db.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())).unwrap();
    drop(db);
    std::thread::sleep(2 * bounds::KEYS_LOOK_IDLE);
    let whole = std::fs::read(path(&h, "tollgate.db")).unwrap();
    let commands = || {
        for command in [&["keys", "list"][..], &["usage"], &["ledger", "verify"], &["keys", "revoke", &key[8..20]]] {
            assert_eq!(h.command(command).code, 1, "{command:?}");
        }
    };
    for length in [whole.len() / 2, 0] {
        std::fs::write(path(&h, "tollgate.db"), &whole[..length]).unwrap();
        if length == 0 {
            // A command that only reads must not remove the write-ahead log of the file.
            commands();
        }
        wait_until_ready(&h, 503);
        assert_eq!(h.chat(&key, &body).status(), 503);
        commands();
        std::fs::write(path(&h, "tollgate.db"), &whole).unwrap();
        wait_until_ready(&h, 200);
    }
    assert_eq!(h.chat(&key, &body).status(), 200);
    assert_eq!(h.ledger(2).requests, 2);
    assert!(h.done(&["ledger", "verify"]).starts_with("ok:"));
}

/// Moved: the path is empty, but the write-ahead log next to it shows that a gateway runs. Replaced: a copy is at the
/// path.
#[test]
fn no_command_succeeds_on_a_ledger_that_is_not_the_gateways() {
    let h = Harness::start(&Setup {
        server: "admin_write_token = { env = \"SIM_KEY\" }\nadmin_hosts = [\"gateway.test\"]",
        ..Setup::default()
    });
    let key = h.key();
    let id = &key[8..20];
    let (db, aside, copy) = (path(&h, "tollgate.db"), path(&h, "aside.db"), path(&h, "copy.db"));
    let copy = copy.to_str().unwrap();
    for replaced in [false, true] {
        fs::rename(&db, &aside).unwrap();
        if replaced {
            fs::copy(&aside, &db).unwrap();
        }
        for command in [
            &["keys", "list"][..],
            &["keys", "list", "--json"],
            &["keys", "show", id],
            &["keys", "issue", "--name", "x"],
            &["keys", "set", id, "--disable"],
            &["keys", "rotate", id],
            &["keys", "revoke", id],
            &["usage"],
            &["usage", "--by", "session", "--cache"],
            &["ledger", "verify"],
            &["ledger", "audit"],
            &["ledger", "export"],
            &["ledger", "clock"],
            &["ledger", "clock", "--confirm"],
            &["ledger", "fold"],
            &["ledger", "backup", copy],
            &["ledger", "compact"],
        ] {
            let done = h.command(command);
            let says = done.err.contains("tollgate.db");
            assert!(
                done.code == 1 && done.out.is_empty() && says,
                "{command:?}: {} {}{}",
                done.code,
                done.out,
                done.err
            );
        }
        for (method, what) in [("GET", "keys"), ("GET", "usage"), ("GET", "audit"), ("DELETE", &*format!("keys/{id}"))]
        {
            let token = bearer(CREDENTIAL.1);
            let asked = request(method, &format!("/admin/v1/{what}"), &[("authorization", &token)]);
            let answer = Client::connect(h.admin).ask(&asked);
            assert_eq!(answer.status(), 503, "{method} {what}: {}", answer.text());
        }
        assert_eq!(db.exists(), replaced, "no command may create a file at the path");
        fs::rename(&aside, &db).unwrap();
        wait_until_ready(&h, 200);
    }
    assert_eq!(h.status_of(&key), 200);
}

#[test]
fn truncated_index_stops_admission_but_no_process() {
    let mut h = Harness::usual();
    let (key, body) = (h.key(), chat("x\n#sim tokens=1"));
    let db = rusqlite::Connection::open(path(&h, "tollgate.db")).unwrap();
    db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    drop(db);
    std::thread::sleep(2 * bounds::KEYS_LOOK_IDLE);
    assert_eq!(h.chat(&key, &body).status(), 200, "SQLite itself may truncate the write-ahead log");
    h.ledger(1);
    assert_eq!(failures(&h), Vec::<String>::new());
    let file = fs::File::options().write(true).open(path(&h, "tollgate.db-shm")).unwrap();
    file.set_len(0).unwrap();
    wait_until_ready(&h, 503);
    assert_eq!(h.chat(&key, &body).status(), 503);
    // A separate thread writes the log.
    let why = wait_for("the reason in the log", || Some(failures(&h)).filter(|why| !why.is_empty())).join("\n");
    assert!(why.contains("tollgate.db-shm") && why.contains("was cut"), "{why}");
    let done = h.command(&["keys", "revoke", &key[8..20]]);
    assert_eq!(done.code, 1, "{}{}", done.out, done.err);
    h.gateway.stop("TERM");
    h.start_again();
    assert_eq!(get(h.admin, "/readyz").unwrap().status(), 200);
}

#[test]
fn foreign_checkpoints_and_a_new_mtime_are_not_errors() {
    let h = Harness::usual();
    let (key, body) = (h.key(), chat("x\n#sim tokens=1"));
    let db = rusqlite::Connection::open(path(&h, "tollgate.db")).unwrap();
    db.busy_timeout(Duration::from_secs(5)).unwrap();
    let filler = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 50)
        INSERT INTO changes (key, mark) SELECT hex(zeroblob(500)), i FROM n";
    for round in 0..60 {
        db.execute(filler, []).unwrap();
        let kind = ["PASSIVE", "RESTART", "TRUNCATE"][round % 3];
        db.query_row(&format!("PRAGMA wal_checkpoint({kind})"), [], |_| Ok(())).unwrap();
        assert_eq!(h.chat(&key, &body).status(), 200, "round {round}");
        let file = fs::File::options().write(true).open(path(&h, "tollgate.db")).unwrap();
        file.set_modified(std::time::SystemTime::now()).unwrap();
    }
    std::thread::sleep(2 * bounds::KEYS_LOOK_IDLE);
    assert_eq!(get(h.admin, "/readyz").unwrap().status(), 200);
    assert_eq!(failures(&h), Vec::<String>::new());
    assert_eq!(h.ledger(60).requests, 60);
}

#[test]
fn backup_replaces_only_an_older_backup() {
    let h = Harness::usual();
    let (key, body) = (h.key(), chat("x\n#sim tokens=1"));
    assert_eq!(h.chat(&key, &body).status(), 200);
    let at = |name: &str| path(&h, name);
    std::os::unix::fs::symlink("tollgate.db-wal", at("soft")).unwrap();
    std::os::unix::fs::symlink("tollgate.toml", at("soft.toml")).unwrap();
    fs::hard_link(at("tollgate.db"), at("hard")).unwrap();
    fs::hard_link(at("tollgate.db-shm"), at("hard-shm")).unwrap();
    fs::hard_link(at("tollgate.toml"), at("hard.toml")).unwrap();
    fs::write(at("notes"), "x").unwrap();
    rusqlite::Connection::open(at("foreign.db")).unwrap().execute_batch("CREATE TABLE important (x)").unwrap();
    assert!(Command::new("mkfifo").arg(at("fifo")).status().unwrap().success());
    let identity = |name: &str| {
        // `backup` replaces its target with a new file, and the gateway would continue to write to the old one.
        fs::symlink_metadata(at(name)).map(|found| (found.ino(), found.mode())).ok()
    };
    let config = fs::read_to_string(at("tollgate.toml")).unwrap();
    let check = |target: &str| {
        let line = format!("[store]\nsnapshot = {{ to = {target:?}, every = \"1m\" }}\n");
        fs::write(at("copying.toml"), config.replacen("[store]\n", &line, 1)).unwrap();
        h.command(&["check", "--config", "copying.toml"])
    };
    for target in [
        "tollgate.db",
        "tollgate.db-wal",
        "./tollgate.db-shm",
        "tollgate.db-journal",
        "tollgate.toml",
        "soft",
        "soft.toml",
        "hard",
        "hard-shm",
        "hard.toml",
        "notes",
        "foreign.db",
        "fifo",
        "../.",
    ] {
        let before = identity(target);
        let done = h.command(&["ledger", "backup", target]);
        assert!(done.code == 1 && done.err.contains(target), "{target}: {}{}", done.out, done.err);
        assert_eq!(identity(target), before, "{target}");
        let done = check(target);
        assert!(done.code != 0 && done.err.contains("store.snapshot: "), "{target}: {}{}", done.out, done.err);
    }
    assert_ne!(check("/dev/null").code, 0);
    let done = h.command(&["serve", "--config", "copying.toml"]);
    assert!(done.code == 1 && done.err.contains("store.snapshot: /dev/null"), "{}", done.err);
    // A draft of the copy has a longer name.
    let long = "l".repeat(240);
    let done = h.command(&["ledger", "backup", &long]);
    assert!(done.code == 1 && done.err.contains("at most 224 bytes"), "{}", done.err);
    h.done(&["ledger", "backup", &long[16..]]);
    fs::write(at("empty"), "").unwrap();
    for target in ["new", "empty", "new"] {
        assert_eq!(check(target).code, 0, "{target}");
        h.done(&["ledger", "backup", target]);
    }
    assert_eq!(h.chat(&key, &body).status(), 200);
    assert_eq!(h.ledger(2).requests, 2);
}

/// Whatever holds data that no other file has is not replaced, and whatever is in use is not replaced either.
#[test]
fn backup_replaces_no_ledger_and_no_file_in_use() {
    let h = Harness::usual();
    let mut other = Harness::usual();
    let (key, others) = (h.key(), other.key());
    let at = |name: &str| path(&h, name);
    let config = fs::read_to_string(at("tollgate.toml")).unwrap();
    let kept = |target: &str, why: &str| {
        let content = |name: &str| fs::read(at(&format!("{target}{name}"))).ok();
        let before = ["", "-wal", "-shm", "-journal"].map(content);
        let done = h.command(&["ledger", "backup", target]);
        assert!(done.code == 1 && done.err.contains(why), "{target}: {}{}", done.out, done.err);
        assert!(["", "-wal", "-shm", "-journal"].map(content) == before, "{target}");
        let snapshot = format!("[store]\nsnapshot = {{ to = {target:?}, every = \"1m\" }}\n");
        fs::write(at("copying.toml"), config.replacen("[store]\n", &snapshot, 1)).unwrap();
        let done = h.command(&["check", "--config", "copying.toml"]);
        assert!(done.code != 0 && done.err.contains(why), "{target}: {}{}", done.out, done.err);
    };
    let backup = |target: &str| assert!(h.done(&["ledger", "backup", target]).starts_with(target), "{target}");
    // The ledger of another gateway while it runs, without its log, and after it has ended.
    let theirs = path(&other, "tollgate.db");
    let target = theirs.to_str().unwrap();
    kept(target, "tollgate.db-wal is next to it");
    assert_eq!(other.chat(&others, &chat("x\n#sim tokens=1")).status(), 200);
    assert!(other.gateway.stop("TERM").success());
    kept(target, "this is a ledger");
    other.start_again();
    assert_eq!(other.chat(&others, &chat("x\n#sim tokens=1")).status(), 200);
    // Copies, and what may be next to them.
    backup("copy.db");
    for end in ["-wal", "-shm", "-journal"] {
        let beside = at(&format!("copy.db{end}"));
        fs::write(&beside, "x").unwrap();
        kept("copy.db", &format!("copy.db{end} is next to it"));
        fs::rename(&beside, at(&format!("gone.db{end}"))).unwrap();
        kept("gone.db", &format!("gone.db{end} is next to it"));
        fs::remove_file(at(&format!("gone.db{end}"))).unwrap();
    }
    std::os::unix::fs::symlink("copy.db", at("link.db")).unwrap();
    std::os::unix::fs::symlink("nowhere.db", at("dangling.db")).unwrap();
    kept("link.db", "it is a link");
    kept("dangling.db", "it is a link");
    let locked = fs::File::open(at("copy.db")).unwrap();
    locked.lock().unwrap();
    kept("copy.db", "another process has this file open");
    drop(locked);
    // Another program changes the copy; it would write to a file without a name.
    let changing = rusqlite::Connection::open(at("copy.db")).unwrap();
    changing.execute_batch("BEGIN EXCLUSIVE").unwrap();
    // Whichever descriptor of the file this process closes, SQLite loses its lock: the file is not read here.
    let identity = || fs::metadata(at("copy.db")).map(|found| (found.ino(), found.modified().unwrap())).unwrap();
    let before = identity();
    let done = h.command(&["ledger", "backup", "copy.db"]);
    assert!(done.code == 1 && done.err.contains("another process has this file open"), "{}{}", done.out, done.err);
    assert_eq!(identity(), before);
    changing.execute_batch("ROLLBACK").unwrap();
    drop(changing);
    // A command that only reads a copy leaves it a copy, one that changes it does not.
    fs::write(at("verify.toml"), config.replace("tollgate.db", "copy.db")).unwrap();
    assert!(h.done(&["ledger", "verify", "--config", "verify.toml"]).starts_with("ok:"));
    backup("copy.db");
    // The wrong way round: the live ledger is the target, and the copy is the source.
    let done = h.command(&["ledger", "backup", "--config", "verify.toml", "tollgate.db"]);
    assert!(done.code == 1 && done.err.contains("tollgate.db-wal is next to it"), "{}{}", done.out, done.err);
    h.done(&["keys", "issue", "--config", "verify.toml", "--name", "restored"]);
    kept("copy.db", "this is a ledger");
    assert_eq!(h.chat(&key, &chat("x\n#sim tokens=1")).status(), 200);
    assert!(h.done(&["ledger", "verify"]).starts_with("ok:"));
}

#[test]
fn backup_works_under_names_that_sqlite_reads_differently() {
    use std::os::unix::ffi::OsStrExt;
    let h = Harness::usual();
    h.key();
    for name in [&b"co\xffpy.db"[..], b"file:copy.db", b"file:copy.db?mode=memory", b"copy db%20.db"] {
        let name = std::ffi::OsStr::from_bytes(name);
        let mut backup = Command::new(binary());
        backup.args(["ledger", "backup"]).arg(name).current_dir(h.folder.path()).env(CREDENTIAL.0, CREDENTIAL.1);
        for _ in 0..2 {
            let done = backup.output().unwrap();
            assert!(done.status.success() && !done.stdout.ends_with(b": 0 bytes\n"), "{name:?}: {done:?}");
        }
        let copied = h.folder.path().join(name);
        assert!(fs::read(&copied).unwrap().starts_with(b"SQLite format 3\0"), "{name:?}");
    }
    let drafts = fs::read_dir(h.folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(drafts.filter(|name| name.to_string_lossy().contains("draft")).count(), 0);
}

#[test]
fn ledger_that_other_users_may_change_is_reported() {
    use std::os::unix::fs::PermissionsExt;
    let mut h = Harness::usual();
    let warned =
        |h: &Harness| h.log().iter().filter(|line| line.to_string().contains("other users may read or change")).count();
    for (mode, warnings) in [(0o640, 0), (0o666, 1)] {
        assert!(h.gateway.stop("TERM").success());
        fs::set_permissions(path(&h, "tollgate.db"), fs::Permissions::from_mode(mode)).unwrap();
        h.start_again();
        let stopped = |h: &Harness| h.log().iter().filter(|line| line["event"] == "stopping").count();
        let before = stopped(&h);
        h.gateway.signal("TERM");
        wait_for("the end", || (stopped(&h) > before).then_some(()));
        assert_eq!(warned(&h), warnings, "{mode:o}");
        h.start_again();
    }
}

#[test]
fn failed_backup_leaves_no_file_and_old_drafts_are_removed() {
    let h = Harness::usual();
    h.key();
    let drafts = || {
        let paths = fs::read_dir(h.folder.path()).unwrap().map(|entry| entry.unwrap().path());
        let mut drafts: Vec<_> = paths.filter(|path| path.to_string_lossy().contains("/copy.db.")).collect();
        drafts.sort();
        drafts
    };
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -f 32; exec \"$0\" ledger backup copy.db"]).arg(binary()).current_dir(h.folder.path());
    let failed = limited.env(CREDENTIAL.0, CREDENTIAL.1).output().unwrap();
    assert_eq!(failed.status.code(), Some(1), "{failed:?}");
    assert_eq!(drafts(), [""; 0].map(PathBuf::from), "a failed backup leaves no file");
    // Files that a killed process leaves behind.
    let name = "copy.db.0123456789abcdef.draft";
    let left = [name.to_owned(), format!("{name}-journal")].map(|name| path(&h, &name));
    left.iter().for_each(|path| fs::write(path, "x").unwrap());
    h.done(&["ledger", "backup", "copy.db"]);
    assert_eq!(drafts(), left, "another process may still write these files");
    let odd = ["copy.db.0123456789abcdef", "copy.db.old", "copy.db.x.draft", "copy.db.20261129.draft"];
    let mut kept = odd.map(|name| path(&h, name));
    kept.iter().for_each(|path| fs::write(path, "x").unwrap());
    for draft in drafts() {
        let file = fs::File::options().write(true).open(draft).unwrap();
        file.set_modified(std::time::SystemTime::now() - bounds::DRAFT_OLD).unwrap();
    }
    h.done(&["ledger", "backup", "copy.db"]);
    kept.sort();
    assert_eq!(drafts(), kept, "only the files whose names have another form remain");
}
