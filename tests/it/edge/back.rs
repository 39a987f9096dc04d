//! Successors that fail, and shutdowns with pending usage records: what happens to the old process, its clients and its
//! records.

use super::rig::{Gate, Rig, chat, get, read_until};
use std::io::Write;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Descriptor of the channel in a successor: it follows the listeners for clients and for the admin API.
const CHANNEL: u32 = 5;

/// A gateway that was started through a symbolic link, whose target a test can replace.
struct Linked {
    // Dropped before `rig`, which removes the folder.
    gate: Gate,
    rig: Rig,
}

impl Linked {
    fn new(name: &str) -> Linked {
        Linked::with(name, |_| {})
    }

    fn with(name: &str, prepare: impl FnOnce(&Rig)) -> Linked {
        let mut rig = Rig::new(name, "");
        let plans = "[[plans]]\nname = \"open\"\n[[plans]]\nname = \"once\"\nrequests = 1\nwindow = \"7d\"\n";
        rig.configure("", &rig.models("small"), plans);
        rig.key = rig.issue("--plan open");
        prepare(&rig);
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_tollgate"), rig.path("tollgate")).unwrap();
        let gate = rig.start_by(rig.path("tollgate"));
        Linked { gate, rig }
    }

    /// Replaces the program by a script, which can use `say` and `until_hears` on the channel.
    fn replace_by_script(&self, script: &str) {
        let path = self.rig.path("script");
        let text = format!(
            "#!/bin/sh\nsay() {{ echo \"$1\" >&{CHANNEL}; }}\n\
             until_hears() {{ while read line <&{CHANNEL}; do [ \"$line\" = \"$1\" ] && return; done; exit 9; }}\n{script}\n"
        );
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        self.link_to(path);
    }

    fn link_to(&self, program: PathBuf) {
        let link = self.rig.path("tollgate");
        std::os::unix::fs::symlink(program, self.rig.path("next")).unwrap();
        std::fs::rename(self.rig.path("next"), link).unwrap();
    }

    fn restore_program(&self) {
        self.link_to(env!("CARGO_BIN_EXE_tollgate").into());
    }

    /// Returns true if a request on a new connection is answered with 200.
    fn serves(&self) -> bool {
        self.ask(&self.rig.key).starts_with("HTTP/1.1 200")
    }

    fn ask(&self, key: &str) -> String {
        self.gate.ask(&chat(key, "small", false, "hello").replacen("host: h", "connection: close\r\nhost: h", 1))
    }

    fn stream(&self, tokens: u32) -> TcpStream {
        let mut stream = self.gate.connect();
        let text = format!("#sim tokens={tokens} pace=20");
        stream.write_all(chat(&self.rig.key, "small", true, &text).as_bytes()).unwrap();
        read_until(&mut stream, "chunk");
        stream
    }

    fn count(&self, outcome: &str) -> usize {
        self.gate.log().matches(outcome).count()
    }

    /// Sends USR2 and waits until the log reports the failure `why`.
    fn fails_to_upgrade(&self, why: &str) {
        let (before, failed) = (self.count(SERVING_ON), self.count(why));
        self.gate.signal("-USR2");
        self.gate.until(why, |_| self.count(why) > failed);
        self.gate.until("the gateway continues to serve", |_| self.count(SERVING_ON) > before);
    }

    fn upgrades(&self) {
        let before = self.gate.pids().len();
        self.gate.signal("-USR2");
        self.gate.until("the successor listens", |gate| gate.pids().len() > before);
    }

    fn rows(&self) -> u64 {
        super::upgrade::rows(&self.rig)
    }
}

const FAILED: &str = "\"upgrade\",\"outcome\":\"failed: ";
const SERVING_ON: &str = "\"outcome\":\"serving on without a successor\"";

#[test]
fn successor_that_dies_at_any_step_changes_nothing() {
    let linked = Linked::new("back-dies");
    let stream = linked.stream(300);
    let once = linked.rig.issue("--plan once");
    linked.gate.until("the key is known", |gate| gate.ask(&get(&once, "/v1/models")).starts_with("HTTP/1.1 200"));
    assert!(linked.ask(&once).starts_with("HTTP/1.1 200"));
    let ready = "say '{\"ready\":5}'";
    let mut served = 1;
    for (script, why) in [
        ("exit 7".to_string(), "was not ready (exit status: 7)"),
        ("kill -9 $$".to_string(), "was not ready (signal: 9"),
        ("echo nonsense >&5; exec sleep 60".to_string(), "speaks another version"),
        ("say '{\"ready\":2}'; exec sleep 60".to_string(), "speaks another version"),
        ("say '\"taken\"'; exec sleep 60".to_string(), "speaks another version"),
        ("say '{\"failed\":\"no reason\"}'; exec sleep 60".to_string(), "failed: no reason"),
        (format!("{ready}; exit 7"), "has died"),
        (format!("{ready}; until_hears '\"go\"'; exit 7"), "has died"),
        (
            format!("{ready}; until_hears '\"go\"'; say '{{\"failed\":\"no reason\"}}'; exec sleep 60"),
            "failed: no reason",
        ),
        (format!("{ready}; until_hears '\"go\"'; exec 5>&-; exec sleep 60"), "has died"),
        (format!("{ready}; until_hears '\"go\"'; say '{{\"safe\":1}}'; exec sleep 60"), "another version"),
    ] {
        linked.replace_by_script(&script);
        linked.fails_to_upgrade(why);
        assert!(linked.serves(), "{script}");
        // Requests counted before still count.
        assert!(linked.ask(&once).starts_with("HTTP/1.1 429"), "{script}");
        served += 1;
    }
    linked.restore_program();
    linked.upgrades();
    assert!(linked.serves());
    assert!(linked.ask(&once).starts_with("HTTP/1.1 429"));
    let mut stream = stream;
    assert!(read_until(&mut stream, "[DONE]").contains("\"finish_reason\":\"stop\""));
    linked.gate.until("every row is in the ledger", |_| linked.rows() == served + 2);
}

#[test]
fn silent_successor_is_cancelled_and_records_are_kept() {
    let linked = Linked::new("back-stalls");
    linked.replace_by_script("say '{\"ready\":5}'; until_hears '\"go\"'; exec sleep 600");
    let mut stream = linked.stream(40);
    linked.gate.signal("-USR2");
    assert!(read_until(&mut stream, "[DONE]").contains("\"finish_reason\":\"stop\""));
    // Neither process admits requests: a client that waits long enough gets a refusal with `retry-after`.
    let (began, mut refused) = (Instant::now(), 0);
    while linked.count(SERVING_ON) == 0 {
        assert!(began.elapsed() < Duration::from_secs(40));
        let (asked, answer) = (Instant::now(), linked.ask(&linked.rig.key));
        assert!(asked.elapsed() < Duration::from_secs(5), "{:?}: {answer}", asked.elapsed());
        refused += u32::from(answer.starts_with("HTTP/1.1 503") && answer.contains("retry-after: "));
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(refused > 10, "{refused}");
    assert!(linked.gate.log().contains("failed: the successor is late"));
    let before = linked.rows();
    assert!(linked.serves());
    linked.gate.until("both rows are in the ledger", |_| linked.rows() == before + 1);
    assert!(before >= 1);
}

#[test]
fn stop_before_the_successor_serves_ends_both() {
    let mut linked = Linked::new("back-term");
    linked.replace_by_script("echo $$ >pid; say '{\"ready\":5}'; until_hears '\"go\"'; exec sleep 600");
    let script = std::fs::read_to_string(linked.rig.path("script")).unwrap();
    let pid = linked.rig.path("pid");
    std::fs::write(linked.rig.path("script"), script.replace(">pid", &format!(">{}", pid.display()))).unwrap();
    linked.gate.signal("-USR2");
    linked
        .gate
        .until("the successor has started", |_| std::fs::read_to_string(&pid).is_ok_and(|text| text.ends_with('\n')));
    linked.gate.signal("-TERM");
    let status = linked.gate.child.wait().unwrap();
    assert!(status.success(), "{status}: {}", linked.gate.log());
    let pid = std::fs::read_to_string(&pid).unwrap();
    assert!(!std::path::Path::new(&format!("/proc/{}", pid.trim())).exists(), "the successor must have ended");
    assert!(linked.gate.log().contains("called off: the process is to stop"));
}

#[test]
fn successor_that_cannot_use_the_ledger_leaves_the_old_one_serving() {
    let linked = Linked::new("back-schema");
    let mut stream = linked.stream(100);
    let other = rusqlite::Connection::open(linked.rig.path("ledger.db")).unwrap();
    let version = |number: i64| other.pragma_update(None, "user_version", number).unwrap();
    let present = other.pragma_query_value(None, "user_version", |row| row.get::<_, i64>(0)).unwrap();
    version(99);
    linked.fails_to_upgrade("this ledger was written by another version");
    assert!(linked.serves());
    version(present);
    // This failure happens after the ledger was handed over.
    linked.replace_by_script(&format!(
        "sleep 1; exec {} serve --config {}",
        env!("CARGO_BIN_EXE_tollgate"),
        linked.rig.path("tollgate.toml").display()
    ));
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let failed = linked.count(FAILED);
    linked.gate.signal("-USR2");
    linked.gate.until("the upgrade has failed", |_| linked.count(FAILED) > failed);
    other.execute_batch("ROLLBACK").unwrap();
    linked.gate.until("the gateway continues to serve", |_| linked.count(SERVING_ON) == 2);
    linked.gate.until("it serves", |_| linked.serves());
    assert!(read_until(&mut stream, "[DONE]").contains("\"finish_reason\":\"stop\""));
    linked.upgrades();
    assert!(linked.serves());
    linked.gate.until("every row is in the ledger", |_| linked.rows() == 4);
}

#[test]
fn process_ends_if_a_dead_successor_has_upgraded_its_ledger() {
    let mut linked = Linked::new("back-outgrown");
    let (here, gone) = (linked.rig.path("here"), linked.rig.path("gone"));
    linked.replace_by_script(&format!(
        "say '{{\"ready\":5}}'; until_hears '\"go\"'; touch {}; while [ ! -e {} ]; do sleep 0.05; done; exit 7",
        here.display(),
        gone.display()
    ));
    let mut stream = linked.stream(100);
    linked.gate.signal("-USR2");
    linked.gate.until("the successor has the ledger", |_| here.exists());
    // Changes the ledger as a newer version may do before it reports that it owns the ledger.
    let other = rusqlite::Connection::open(linked.rig.path("ledger.db")).unwrap();
    let present: i64 = other.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
    other.pragma_update(None, "user_version", 99).unwrap();
    std::fs::write(&gone, "").unwrap();
    assert!(read_until(&mut stream, "[DONE]").contains("\"finish_reason\":\"stop\""));
    let status = linked.gate.child.wait().unwrap();
    assert_eq!(status.code(), Some(1), "{}", linked.gate.log());
    let log = linked.gate.log();
    assert!(log.contains("ending, since a newer version has changed the ledger"), "{log}");
    assert!(log.contains("\"outcome\":\"spilled\",\"rows\":1,"), "{log}");
    // Restores the version, so that this binary can stand in for the newer one.
    other.pragma_update(None, "user_version", present).unwrap();
    drop(other);
    let _next = linked.rig.start();
    assert_eq!((linked.rows(), spills(&linked.rig).len()), (1, 0));
}

#[test]
fn records_are_kept_when_the_successor_has_died() {
    let mut linked = Linked::new("back-killed");
    let mut streams = [linked.stream(40), linked.stream(150)];
    linked.upgrades();
    linked.gate.signal("-STOP");
    // This usage record is passed on, and its commit is not confirmed.
    assert!(read_until(&mut streams[0], "[DONE]").contains("\"finish_reason\":\"stop\""));
    std::thread::sleep(Duration::from_millis(100));
    linked.gate.signal("-KILL");
    linked.gate.until("its death is noticed", |gate| gate.log().contains("the successor has died"));
    assert!(read_until(&mut streams[1], "[DONE]").contains("\"finish_reason\":\"stop\""));
    let status = linked.gate.child.wait().unwrap();
    assert!(status.success(), "{status}: {}", linked.gate.log());
    let _next = linked.rig.start();
    assert_eq!((linked.rows(), spills(&linked.rig).len()), (2, 0));
}

#[test]
fn gateway_can_replace_a_dead_successor_and_later_records_are_spilled() {
    let mut linked = Linked::new("back-spilled");
    let mut streams = [linked.stream(60), linked.stream(200)];
    linked.upgrades();
    linked.gate.signal("-KILL");
    linked.gate.until("its death is noticed", |gate| gate.log().contains("the successor has died"));
    assert!(read_until(&mut streams[0], "[DONE]").contains("\"finish_reason\":\"stop\""));
    linked.gate.until("the row is spilled", |_| !spills(&linked.rig).is_empty());
    let mut next = linked.rig.start();
    assert_eq!((linked.rows(), spills(&linked.rig).len()), (1, 0));
    assert!(read_until(&mut streams[1], "[DONE]").contains("\"finish_reason\":\"stop\""));
    assert_eq!(linked.gate.child.wait().unwrap().code(), Some(0));
    assert!(linked.gate.log().contains("\"outcome\":\"spilled\",\"rows\":1,"), "{}", linked.gate.log());
    next.signal("-TERM");
    assert!(next.child.wait().unwrap().success());
    assert_eq!(linked.rows(), 1);
    let _next = linked.rig.start();
    assert_eq!((linked.rows(), spills(&linked.rig).len()), (2, 0));
}

fn spills(rig: &Rig) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(&rig.folder).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.to_string_lossy().contains(".spill-")).collect()
}

/// Blocks writes to the ledger while five usage records are pending, and waits until the gateway notices. Writes work
/// again when the returned connection is dropped.
fn block_ledger(linked: &Linked) -> rusqlite::Connection {
    let other = block_ledger_unnoticed(linked);
    linked.gate.until("the ledger has failed", |gate| gate.log().contains("\"ledger\",\"outcome\":\"failed\""));
    other
}

/// Works like [`block_ledger`], but returns while the gateway still waits for the ledger's lock.
fn block_ledger_unnoticed(linked: &Linked) -> rusqlite::Connection {
    assert!(linked.serves());
    linked.gate.until("the row is in the ledger", |_| linked.rows() == 1);
    let mut streams: Vec<_> = (0..5).map(|_| linked.stream(10)).collect();
    let other = rusqlite::Connection::open(linked.rig.path("ledger.db")).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    for stream in &mut streams {
        read_until(stream, "[DONE]");
    }
    other
}

const NOT_GIVEN: &str = "failed: the ledger cannot be given away: ";

/// TERM ends the process even if the ledger can be neither handed over nor written to afterwards.
fn ends_without_the_ledger(name: &str, stop: impl FnOnce(&Linked)) {
    let mut linked = Linked::new(name);
    linked.replace_by_script("say '{\"ready\":5}'; until_hears '\"go\"'; exec sleep 600");
    let other = block_ledger_unnoticed(&linked);
    linked.gate.signal("-USR2");
    stop(&linked);
    linked.gate.signal("-TERM");
    let (began, mut ended) = (Instant::now(), None);
    while ended.is_none() && began.elapsed() < Duration::from_secs(25) {
        std::thread::sleep(Duration::from_millis(50));
        ended = linked.gate.child.try_wait().unwrap();
    }
    let (log, status) = (linked.gate.log(), ended.and_then(|status| status.code()));
    assert_eq!(status, Some(1), "after {:?}: {log}", began.elapsed());
    drop(other);
    assert!(log.contains(NOT_GIVEN), "{log}");
    assert!(log.contains("\"outcome\":\"spilled\",\"rows\":5,"), "{log}");
    assert_eq!((linked.rows(), spills(&linked.rig).len()), (1, 1));
    let _next = linked.rig.start();
    assert_eq!((linked.rows(), spills(&linked.rig).len()), (6, 0));
}

#[test]
fn stop_after_a_failed_ledger_handover_spills_pending_records() {
    ends_without_the_ledger("back-kept", |linked| {
        linked
            .gate
            .until("the ledger is available again", |_| linked.count(NOT_GIVEN) > 0 && linked.count(SERVING_ON) > 0);
    });
}

#[test]
fn stop_during_the_ledger_handover_spills_pending_records() {
    // The ledger's thread waits for the lock longer than this.
    ends_without_the_ledger("back-keeps", |_| std::thread::sleep(Duration::from_secs(1)));
}

#[test]
fn records_not_written_before_exit_are_spilled_and_read_once() {
    let mut linked = Linked::new("back-spill");
    let other = block_ledger(&linked);
    linked.gate.signal("-USR2");
    linked.gate.until("the upgrade is refused", |gate| gate.log().contains("refused: the ledger is not available"));
    assert!(linked.ask(&linked.rig.key).starts_with("HTTP/1.1 503"));
    linked.gate.signal("-TERM");
    let (began, status) = (Instant::now(), linked.gate.child.wait().unwrap());
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    drop(other);
    assert_eq!(status.code(), Some(1), "{}", linked.gate.log());
    let found = spills(&linked.rig);
    let [spill] = &found[..] else { panic!("{found:?}: {}", linked.gate.log()) };
    assert_eq!(spill.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let text = std::fs::read_to_string(spill).unwrap();
    assert!(linked.gate.log().contains("\"outcome\":\"spilled\",\"rows\":5,"), "{}", linked.gate.log());
    assert_eq!((linked.rows(), text.lines().count()), (1, 5));
    // The spill is read once, no matter how often it is found.
    for _ in 0..2 {
        let gate = linked.rig.start();
        gate.until("the log reports it", |gate| {
            gate.log().contains("usage records of an earlier process are in the ledger now")
        });
        assert_eq!((linked.rows(), spills(&linked.rig).len()), (6, 0));
        gate.signal("-TERM");
        let mut gate = gate;
        assert!(gate.child.wait().unwrap().success());
        std::fs::write(spill, &text).unwrap();
    }
}

#[test]
fn lost_records_are_reported_in_the_log_and_exit_code() {
    let nowhere = |rig: &Rig| {
        let text = std::fs::read_to_string(rig.path("tollgate.toml")).unwrap();
        let text = text.replace("[store]", "[store]\nspill = \"nowhere\"");
        std::fs::write(rig.path("tollgate.toml"), text).unwrap();
    };
    let mut linked = Linked::with("back-lost", nowhere);
    linked.gate.logged("usage records that the ledger does not accept cannot be kept here");
    let _other = block_ledger(&linked);
    linked.gate.signal("-TERM");
    assert_eq!(linked.gate.child.wait().unwrap().code(), Some(1));
    assert!(
        linked.gate.log().contains("\"event\":\"ledger\",\"outcome\":\"lost\",\"rows\":5,"),
        "{}",
        linked.gate.log()
    );
}

#[test]
fn upgrade_starts_the_current_program_and_names_ignored_settings() {
    let linked = Linked::new("back-link");
    let copy = linked.rig.path("copy-of-tollgate");
    std::fs::copy(env!("CARGO_BIN_EXE_tollgate"), &copy).unwrap();
    linked.link_to(copy.clone());
    let text = std::fs::read_to_string(linked.rig.path("tollgate.toml")).unwrap();
    let text = text.replacen("\nlisten = \"127.0.0.1:0\"", "\nlisten = \"127.0.0.2:0\"", 1);
    std::fs::write(linked.rig.path("tollgate.toml"), text).unwrap();
    linked.upgrades();
    let newest = linked.gate.pids().pop().unwrap();
    assert_eq!(std::fs::read_link(format!("/proc/{newest}/exe")).unwrap(), copy.canonicalize().unwrap());
    assert!(linked.serves());
    let warned = "server.listen has changed, and an upgrade keeps the sockets";
    linked.gate.until("the log reports it", |gate| gate.log().contains(warned));
}
