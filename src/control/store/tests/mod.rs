//! Tests of the ledger in a real file, and of the thread that writes it.

use super::api::{Batch, By, Entry, Leftover, Names, PastUse, Query, TargetUse, UsageLine};
use super::follow::{Follower, KeyChanges, KeySource, KeysSeen};
use super::note::{AuditLine, Note, edited};
use super::sqlite::{Mode, Sqlite};
use super::watch::WatchedLedger;
use super::writer_clocks::WriterClocks;
use super::*;
use crate::base::time::Unix;
use crate::policy::agent::Client;
use crate::policy::keys::{KeyId, KeyNews, KeyRecord, Scope};
use crate::policy::row::{RareNames, RowNames};
use crate::policy::usage::{Usage, UsageSource};
use crate::policy::window;
use crate::store::bounds;
use crate::wire::{ModelEndpoint, Passthrough, Shape};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

const DAY: u64 = 86_400_000;

mod alerts;
mod commits;
mod flash;
mod notes;
mod people;
mod tables;

/// A new directory for each test, removed at its end.
pub(super) struct TempFolder(PathBuf);

impl TempFolder {
    pub(super) fn new(name: &str) -> TempFolder {
        let path = std::env::temp_dir().join(format!("tollgate-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        TempFolder(path)
    }
    pub(super) fn file(&self) -> PathBuf {
        self.0.join("ledger.db")
    }
    fn owner(&self) -> Sqlite {
        Sqlite::open(&self.file(), Mode::Owner).unwrap()
    }
    fn shared(&self) -> Sqlite {
        Sqlite::open(&self.file(), Mode::Shared).unwrap()
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn key(text: &str) -> KeyId {
    KeyId::parse(text).unwrap()
}

fn record(id: &str, created: u64) -> KeyRecord {
    KeyRecord {
        id: key(id),
        digest: crate::base::digest::sha256(id.as_bytes()),
        name: format!("name of {id}"),
        plan: "team".into(),
        scope: Scope::default(),
        created: Unix(created),
        expires: None,
        revoked: None,
        disabled: false,
        limits: crate::policy::plan::caps::Caps::default(),
        group: None,
        labels: Vec::new(),
        former: Vec::new(),
        capture: None,
    }
}

/// Returns a row, for the tests in other files.
#[cfg(feature = "redis")]
pub(super) fn sample(id: &str, admitted: u64, model: &str, out: u64) -> Row {
    row(id, admitted, model, out)
}

fn names(user: Option<&str>, session: Option<&str>, trace: Option<&str>) -> RowNames {
    let [user, session, trace] = [user, session, trace].map(|name| name.map(Arc::from));
    RareNames { user, session, trace, ..RareNames::default() }.into()
}

fn row(id: &str, admitted: u64, model: &str, out: u64) -> Row {
    Row {
        request: [7; 16],
        key: key(id),
        admitted: Unix(admitted),
        model: model.into(),
        target: format!("provider/{model}").into(),
        endpoint: ModelEndpoint::CHAT,
        stream: true,
        status: 200,
        usage: Usage {
            uncached_in: 10,
            cache_read: 3,
            cache_write: 2,
            out,
            source: UsageSource::Provider,
            ..Usage::default()
        },
        cost_nano: out * 1000,
        attempts: 1,
        micros: 1234,
        queued_ms: 0,
        group: Default::default(),
        client: Default::default(),
        names: RowNames::default(),
        lease: None,
    }
}

const A: &str = "AAAAAAAAAAAA";
const B: &str = "BBBBBBBBBBBB";

/// Edits a key as a ledger of either kind does.
fn edit_key<E>(
    db: &mut Sqlite,
    id: &KeyId,
    note: Option<&Note<'_>>,
    change: impl FnMut(&mut KeyRecord) -> Result<(), E>,
) -> Result<Option<Result<KeyRecord, E>>, StoreError> {
    edited(change, |change| db.edit(id, note, change))
}

fn revoke(db: &mut Sqlite, id: &str, at: u64) {
    let edited = edit_key(db, &key(id), None, |key| {
        key.revoked = Some(Unix(at));
        Ok::<(), ()>(())
    });
    assert!(edited.unwrap().is_some());
}

#[test]
fn stored_keys_are_read_back_and_revoked_once() {
    let place = TempFolder::new("keys");
    let mut db = place.shared();
    let all = record(A, 5);
    let mut narrow = record(B, 6);
    narrow.scope = Scope {
        shapes: Shape::ALL.map(|shape| shape == Shape::Messages),
        passthroughs: Passthrough::ALL.map(|passthrough| passthrough == Passthrough::Rerank),
        models: false,
        quota: true,
        models_allowed: Some(vec!["a,b".into(), "q\"uoted".into()]),
    };
    narrow.expires = Some(Unix(99));
    db.insert_key(&all).unwrap();
    db.insert_key(&narrow).unwrap();
    assert_eq!(all_keys(&db), [all.clone(), narrow.clone()]);
    assert!(db.insert_key(&all).is_err());
    revoke(&mut db, A, 50);
    assert_eq!(all_keys(&db)[0].revoked, Some(Unix(50)));
}

#[test]
fn scope_that_permits_nothing_is_read_back_unchanged() {
    let place = TempFolder::new("nothing");
    let db = place.shared();
    let mut none = record(A, 5);
    none.scope = Scope::from_stored("", Some(vec![]));
    db.insert_key(&none).unwrap();
    assert_eq!(all_keys(&db), [none]);
}

#[test]
fn records_and_day_sums_agree_and_outlive_the_connection() {
    let place = TempFolder::new("rows");
    let rows = [row(A, 3 * DAY + 5, "small", 1), row(A, 3 * DAY + 9, "large", 2), row(B, 4 * DAY, "small", 4)];
    place.owner().append(&rows).unwrap();
    let mut db = place.owner();
    db.append(&[row(A, 3 * DAY + 11, "small", 8)]).unwrap();
    let past = |id, model: &str, target: &str, at, requests, tokens, cost_nano| PastUse {
        key: key(id),
        group: Arc::default(),
        model: model.into(),
        target: target.into(),
        at: Unix(at),
        requests,
        tokens,
        cost_nano,
    };
    let (third, fourth) = (3 * DAY, 4 * DAY);
    let last = past(B, "small", "", fourth, 1, 19, 4000);
    let sums = [past(A, "large", "", third, 1, 17, 2000), past(A, "small", "", third, 2, 39, 9000), last.clone()];
    assert_eq!(db.day_sums(Unix(3 * DAY + 77)).unwrap(), sums);
    assert_eq!(db.day_sums(Unix(4 * DAY)).unwrap(), [last]);
    let of_target = |target: &str, at, requests, tokens, cost_nano| TargetUse {
        target: target.into(),
        at: Unix(at),
        requests,
        tokens,
        cost_nano,
    };
    let by_target = [
        of_target("provider/large", third, 1, 17, 2000),
        of_target("provider/small", third, 2, 39, 9000),
        of_target("provider/small", fourth, 1, 19, 4000),
    ];
    assert_eq!(db.target_sums(Unix(3 * DAY)).unwrap(), by_target);
    let since = db.rows_since(Unix(3 * DAY + 9)).unwrap();
    let expected = [
        past(A, "large", "provider/large", third + 9, 1, 17, 2000),
        past(B, "small", "provider/small", fourth, 1, 19, 4000),
        past(A, "small", "provider/small", third + 11, 1, 23, 8000),
    ];
    assert_eq!(since, expected);
    assert_eq!(db.count_rows().unwrap(), 4);
}

#[test]
fn usage_report_sums_by_each_property_within_its_days() {
    let place = TempFolder::new("usage");
    let mut db = place.owner();
    db.append(&[row(A, 5, "small", 1), row(A, DAY, "large", 7), row(B, 2 * DAY, "small", 3)]).unwrap();
    let line = |name: &str, requests, out, last| UsageLine {
        second: None,
        name: name.into(),
        requests,
        last: Some(Unix(last * DAY)),
        uncached_in: 10 * requests,
        cache_read: 3 * requests,
        cache_write: 2 * requests,
        out,
        cost_nano: out * 1000,
    };
    assert_eq!(db.usage(&Query::by(By::Key), None).unwrap(), [line(A, 2, 8, 1), line(B, 1, 3, 2)]);
    assert_eq!(db.usage(&Query::by(By::Model), None).unwrap(), [line("large", 1, 7, 1), line("small", 2, 4, 2)]);
    let target = db.usage(&Query { since: Some(Unix(DAY + 5)), until: None, ..Query::by(By::Target) }, None).unwrap();
    assert_eq!(target, [line("provider/large", 1, 7, 1), line("provider/small", 1, 3, 2)]);
    let days = db.usage(&Query { since: None, until: Some(Unix(2 * DAY)), ..Query::by(By::Day) }, None).unwrap();
    assert_eq!(days, [line("1970-01-01", 1, 1, 0), line("1970-01-02", 1, 7, 1)]);
}

#[test]
fn absurd_numbers_do_not_break_the_ledger() {
    let place = TempFolder::new("absurd");
    let mut db = place.owner();
    let mut absurd = row(A, 5, "small", u64::MAX / 2000);
    absurd.usage.uncached_in = u64::MAX;
    absurd.cost_nano = u64::MAX;
    for _ in 0..50 {
        db.append(&[absurd.clone(), absurd.clone()]).unwrap();
    }
    let report = db.usage(&Query::by(By::Key), None).unwrap();
    assert_eq!((report[0].requests, report[0].cost_nano), (100, 100 * limits::ROW_COST_MAX));
}

#[test]
fn one_gateway_at_a_time_while_commands_run() {
    let place = TempFolder::new("lock");
    let owner = place.owner();
    assert!(matches!(Sqlite::open(&place.file(), Mode::Owner), Err(StoreError::Locked(_))));
    place.shared().insert_key(&record(A, 1)).unwrap();
    assert_eq!(all_keys(&owner).len(), 1);
    drop(owner);
    assert_eq!(all_keys(&place.owner()).len(), 1);
}

/// Returns this process's record locks on a file (proc(5)): type and range of each.
fn record_locks(path: &std::path::Path) -> Vec<String> {
    use std::os::unix::fs::MetadataExt;
    let (inode, pid) = (std::fs::metadata(path).unwrap().ino(), std::process::id().to_string());
    let text = std::fs::read_to_string("/proc/locks").unwrap();
    let words = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let ours = words.filter(|w| w[1] == "POSIX" && w[4] == pid && w[5].ends_with(&format!(":{inode}")));
    ours.map(|words| words[3..].join(" ")).collect()
}

#[test]
fn lock_is_on_the_file_and_does_not_affect_sqlites_locks() {
    let place = TempFolder::new("names");
    let owner = place.owner();
    let [soft, hard, dangling] = ["soft.db", "hard.db", "dangling.db"].map(|name| place.0.join(name));
    std::os::unix::fs::symlink("ledger.db", &soft).unwrap();
    std::fs::hard_link(place.file(), &hard).unwrap();
    let before = record_locks(&place.file());
    assert!(!before.is_empty(), "SQLite must have a lock on the open file");
    for name in [&place.file(), &soft, &hard] {
        assert!(matches!(Sqlite::open(name, Mode::Owner), Err(StoreError::Locked(path)) if path == *name));
        assert_eq!(record_locks(&place.file()), before);
    }
    drop(owner);
    drop(Sqlite::open(&soft, Mode::Owner).unwrap());
    assert_eq!(record_locks(&place.file()), Vec::<String>::new());
    std::os::unix::fs::symlink("fresh.db", &dangling).unwrap();
    let _first = Sqlite::open(&dangling, Mode::Owner).unwrap();
    assert!(matches!(Sqlite::open(&place.0.join("fresh.db"), Mode::Owner), Err(StoreError::Locked(_))));
    assert_eq!(std::fs::metadata(place.0.join("fresh.db")).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn nothing_is_committed_to_a_moved_file() {
    let place = TempFolder::new("moved");
    let aside = place.0.join("aside.db");
    let (handle, told) = started(&place);
    assert_eq!(next(&told), LedgerNotice::Keys(KeyNews::all(vec![])));
    for replaced in [false, true] {
        std::fs::rename(place.file(), &aside).unwrap();
        if replaced {
            std::fs::write(place.file(), "another file").unwrap();
        }
        let LedgerNotice::Failed(why) = next(&told) else { panic!("expected a failure") };
        assert!(why.contains("ledger.db: the ledger's file was moved, deleted or replaced"), "{why}");
        handle.write(vec![row(A, 1, "m", 1)]);
        assert!(told.recv_timeout(Duration::from_millis(600)).is_err(), "the failure must be reported once");
        std::fs::rename(&aside, place.file()).unwrap();
        assert_eq!(next(&told), LedgerNotice::Recovered);
        assert_eq!(next(&told), LedgerNotice::Committed(1));
    }
    drop(handle);
    assert_eq!(place.shared().count_rows().unwrap(), 2);
}

#[test]
fn many_may_create_the_file_concurrently() {
    for round in 0..10 {
        let place = TempFolder::new(&format!("meet{round}"));
        let path = place.file();
        let open = |n: u8| {
            let path = path.clone();
            std::thread::spawn(move || {
                let id = [b'A' + n; 12];
                let db = Sqlite::open(&path, Mode::Shared)?;
                db.insert_key(&record(std::str::from_utf8(&id).unwrap(), 1))
            })
        };
        let threads: Vec<_> = (0..6).map(open).collect();
        for thread in threads {
            thread.join().unwrap().unwrap();
        }
        assert_eq!(all_keys(&place.shared()).len(), 6);
    }
}

#[test]
fn files_are_private_to_their_owner() {
    let place = TempFolder::new("mode");
    let mut db = place.owner();
    db.append(&[row(A, 1, "m", 1)]).unwrap();
    let mut seen = 0;
    for entry in std::fs::read_dir(&place.0).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{:?}", entry.path());
        seen += 1;
    }
    assert!(seen >= 3, "expected the database, the log and its index");
}

#[test]
fn missing_folder_is_created_private() {
    let place = TempFolder::new("folder");
    let inner = place.0.join("a/b");
    Sqlite::open(&inner.join("ledger.db"), Mode::Owner).unwrap();
    for folder in [place.0.join("a"), inner] {
        assert_eq!(std::fs::metadata(folder).unwrap().permissions().mode() & 0o777, 0o700);
    }
}

#[test]
fn foreign_and_newer_databases_are_not_changed() {
    let place = TempFolder::new("strange");
    rusqlite::Connection::open(place.file()).unwrap().execute_batch("CREATE TABLE t (x)").unwrap();
    let told = Sqlite::open(&place.file(), Mode::Shared).err().unwrap().to_string();
    assert!(told.ends_with("ledger.db: this database is not a ledger"), "{told}");
    std::fs::remove_file(place.file()).unwrap();
    drop(place.shared());
    rusqlite::Connection::open(place.file()).unwrap().pragma_update(None, "user_version", 99).unwrap();
    assert!(matches!(Sqlite::open(&place.file(), Mode::Shared), Err(StoreError::Foreign(_, _))));
}

fn started(place: &TempFolder) -> (Box<dyn LedgerHandle>, Receiver<LedgerNotice>) {
    let (tell, told) = channel();
    let handle =
        spawn(open_owner(&place.file(), false, sqlite::PAGE_SIZE).unwrap(), Duties::default(), move |notice| {
            let _ = tell.send(notice);
        });
    (handle.unwrap(), told)
}

fn next(told: &Receiver<LedgerNotice>) -> LedgerNotice {
    told.recv_timeout(Duration::from_secs(60)).unwrap()
}

#[test]
fn thread_commits_all_records_at_the_latest_at_its_end() {
    let place = TempFolder::new("thread");
    let (handle, told) = started(&place);
    assert_eq!(next(&told), LedgerNotice::Keys(KeyNews::all(vec![])));
    let batch = handle.write(vec![row(A, 1, "m", 1), row(A, 2, "m", 1)]);
    assert!(batch.is_empty());
    assert_eq!(next(&told), LedgerNotice::Committed(2));
    handle.write((0..10_000).map(|n| row(A, n, "m", 1)).collect());
    assert_eq!(handle.finish(), Leftover::default());
    let committed: u64 = told
        .iter()
        .map(|notice| match notice {
            LedgerNotice::Committed(rows) => rows,
            other => panic!("{other:?}"),
        })
        .sum();
    assert_eq!(committed, 10_000);
    assert_eq!(place.shared().count_rows().unwrap(), 10_002);
}

#[test]
fn key_changes_of_other_processes_are_reported_within_a_second() {
    let place = TempFolder::new("poll");
    let (handle, told) = started(&place);
    assert_eq!(next(&told), LedgerNotice::Keys(KeyNews::all(vec![])));
    let (mut cli, mut times) = (place.shared(), Vec::new());
    for change in 0..6 {
        let (number, began) = (change / 2, Instant::now());
        let id = [A, B, "CCCCCCCCCCCC"][number];
        let mut expected = record(id, number as u64);
        if change % 2 == 0 {
            cli.insert_key(&expected).unwrap();
        } else {
            revoke(&mut cli, id, 5);
            expected.revoked = Some(Unix(5));
        }
        assert_eq!(next(&told), LedgerNotice::Keys(KeyNews::Changed(vec![expected], vec![])));
        times.push(began.elapsed());
    }
    // A busy machine delays some of the looks, while a thread that looks too rarely would be late most of the time.
    times.sort();
    assert!(times[times.len() / 2] < bounds::KEYS_LOOK_IDLE + bounds::KEYS_LOOK, "{times:?}");
    handle.write(vec![row(A, 1, "m", 1)]);
    assert_eq!(next(&told), LedgerNotice::Committed(1));
    assert!(told.recv_timeout(Duration::from_millis(600)).is_err());
}

#[test]
fn unreadable_key_records_are_skipped_and_named() {
    let place = TempFolder::new("damaged");
    let ids = [A, B, "CCCCCCCCCCCC", "DDDDDDDDDDDD"];
    let mut db = place.shared();
    ids.iter().for_each(|id| db.insert_key(&record(id, 1)).unwrap());
    let damage = |sql: &str| rusqlite::Connection::open(place.file()).unwrap().execute(sql, []).unwrap();
    damage(&format!("UPDATE keys SET digest = x'01' WHERE id = '{A}'"));
    damage(&format!("UPDATE keys SET id = 'no id' WHERE id = '{B}'"));
    damage("UPDATE keys SET id = CAST(x'ff' AS TEXT) WHERE id = 'CCCCCCCCCCCC'");
    assert_eq!(all_keys(&db), [record(ids[3], 1)]);
    assert_eq!(db.take_odd().len(), 3);
    assert_eq!((db.find_keys(&[key(A)]).unwrap(), db.keys_named(&record(A, 1).name).unwrap()), (vec![], vec![]));
    // Each unreadable record found at the start is named once; one that is damaged later is named, too.
    let (handle, told) = started(&place);
    let mut notices: Vec<LedgerNotice> = (0..4).map(|_| next(&told)).collect();
    let mut warned = Vec::new();
    let mut warnings = |notices: &mut Vec<LedgerNotice>| {
        notices.retain(|notice| match notice {
            LedgerNotice::Warning(text) => {
                warned.push(text.clone());
                false
            }
            _ => true,
        });
        warned.join("\n")
    };
    let text = warnings(&mut notices);
    assert!([A, "no id", "\u{fffd}"].iter().all(|id| text.contains(&format!("key {id:?} is passed over"))), "{text}");
    assert_eq!(notices, [LedgerNotice::Keys(KeyNews::all(vec![record(ids[3], 1)]))]);
    revoke(&mut db, ids[3], 5);
    let revoked = KeyRecord { revoked: Some(Unix(5)), ..record(ids[3], 1) };
    assert_eq!(
        next(&told),
        LedgerNotice::Keys(KeyNews::Changed(vec![revoked], vec![])),
        "no record may be named again"
    );
    damage(&format!("UPDATE keys SET digest = x'' WHERE id = '{}'", ids[3]));
    let mut notices = vec![next(&told), next(&told)];
    let text = warnings(&mut notices);
    assert!(text.lines().count() == 4 && text.contains(&format!("key {:?} is passed over", ids[3])), "{text}");
    assert_eq!(
        notices,
        [LedgerNotice::Keys(KeyNews::Changed(vec![], vec![key(ids[3])]))],
        "a damaged key must be removed"
    );
    drop(handle);
}

#[test]
fn uncommitted_records_are_kept_until_they_can_be_written() {
    let place = TempFolder::new("failing");
    let (handle, told) = started(&place);
    assert_eq!(next(&told), LedgerNotice::Keys(KeyNews::all(vec![])));
    let other = rusqlite::Connection::open(place.file()).unwrap();
    other.execute_batch("ALTER TABLE groups RENAME TO hidden").unwrap();
    handle.write(vec![row(A, 1, "m", 1)]);
    let LedgerNotice::Failed(why) = next(&told) else { panic!("expected a failure") };
    assert!(why.contains("ledger.db") && why.contains("no such table"), "{why}");
    assert!(told.recv_timeout(Duration::from_millis(600)).is_err(), "the failure must be reported once");
    other.execute_batch("ALTER TABLE hidden RENAME TO groups").unwrap();
    assert_eq!(next(&told), LedgerNotice::Recovered);
    assert_eq!(next(&told), LedgerNotice::Committed(1));
    drop(handle);
    assert_eq!(place.shared().count_rows().unwrap(), 1);
    assert_eq!(place.shared().day_sums(Unix(0)).unwrap().len(), 1);
}

#[test]
fn rotation_is_stored_unless_it_is_refused() {
    let place = TempFolder::new("rotate");
    let mut db = place.shared();
    db.insert_key(&record(A, 5)).unwrap();
    db.insert_key(&record(B, 6)).unwrap();
    let edited = edit_key(&mut db, &key(A), None, |key| {
        key.rotate([9; 32], Unix(500), Unix(100));
        Ok::<(), ()>(())
    });
    let mut expected = record(A, 5);
    expected.rotate([9; 32], Unix(500), Unix(100));
    assert_eq!(edited.unwrap(), Some(Ok(expected.clone())));
    let refused = edit_key(&mut db, &key(B), None, |key| {
        key.digest = [1; 32];
        Err("no")
    });
    assert_eq!(refused.unwrap(), Some(Err("no")));
    assert_eq!(edit_key(&mut db, &key("CCCCCCCCCCCC"), None, |_| Ok::<(), ()>(())).unwrap(), None);
    assert_eq!(all_keys(&place.owner()), [expected, record(B, 6)]);
}

#[test]
fn folding_keeps_every_sum_and_works_in_batches() {
    let place = TempFolder::new("fold");
    let mut db = place.owner();
    let rows: Vec<Row> = (0..10).map(|n| row(if n < 5 { A } else { B }, n * DAY / 2, "small", n)).collect();
    rows.iter().for_each(|row| db.append(std::slice::from_ref(row)).unwrap());
    let (sums, usage) = (db.day_sums(Unix(0)).unwrap(), db.usage(&Query::by(By::Key), None).unwrap());
    assert_eq!([db.fold(Unix(3 * DAY), 4), db.fold(Unix(3 * DAY), 4)].map(Result::unwrap), [4, 2]);
    assert_eq!(db.fold(Unix(3 * DAY), 4).unwrap(), 0);
    assert_eq!(db.count_rows().unwrap(), 4);
    assert_eq!((db.day_sums(Unix(0)).unwrap(), db.usage(&Query::by(By::Key), None).unwrap()), (sums, usage));
    let verdict = db.verify().unwrap();
    assert_eq!((verdict.rows, verdict.folded, verdict.differences), (4, 6, vec![]));
    let mut entries = Vec::new();
    db.export(&mut |entry| {
        entries.push(entry);
        true
    })
    .unwrap();
    let kept: Vec<Row> = entries
        .iter()
        .filter_map(|entry| match entry {
            Entry::Request(row) => Some(row.clone()),
            Entry::Folded(..) => None,
        })
        .collect();
    assert_eq!(kept, rows[6..]);
    let folded = entries.iter().filter_map(|entry| match entry {
        Entry::Folded(_, sums) => Some(sums[0]),
        Entry::Request(_) => None,
    });
    assert_eq!(folded.sum::<u64>(), 6);
}

#[test]
fn wrong_counter_is_found() {
    let place = TempFolder::new("verify");
    let mut db = place.owner();
    db.append(&[row(A, 5, "small", 1), row(B, DAY, "large", 7)]).unwrap();
    assert_eq!(db.verify().unwrap().differences, []);
    db.settle().unwrap();
    assert_eq!(db.verify().unwrap().differences, []);
    let other = rusqlite::Connection::open(place.file()).unwrap();
    other.execute("UPDATE days SET out = out + 3 WHERE key = ?1", [A]).unwrap();
    other.execute("DELETE FROM days WHERE key = ?1", [B]).unwrap();
    let found = db.verify().unwrap().differences;
    assert_eq!((found[0].counter.as_str(), found[0].stored, found[0].counted), (OUTPUT_OF_A, 4, 1));
    assert_eq!(found.len(), 1 + 6);
    assert!(found[1..].iter().all(|found| found.stored == 0 && found.counter.contains(B)));
}

const OUTPUT_OF_A: &str = "output of AAAAAAAAAAAA on 1970-01-01, small at provider/small, endpoint chat";

/// Returns the requests per day in the table, without unsettled rows.
fn settled(place: &TempFolder) -> u64 {
    let other = rusqlite::Connection::open(place.file()).unwrap();
    let sum = other.query_row("SELECT IFNULL(SUM(requests), 0) FROM days", [], |row| row.get::<_, i64>(0));
    sum.unwrap() as u64
}

#[test]
fn records_of_one_commit_are_stored_together() {
    let place = TempFolder::new("groups");
    let mut db = place.owner();
    let mut rows: Vec<Row> = (0..600).map(|n| row(if n % 3 == 0 { A } else { B }, 2 * DAY - n, "small", n)).collect();
    rows[7].model = "with \"quotes\" and \u{e9}".into();
    rows[8] = Row { endpoint: ModelEndpoint::MESSAGES, stream: !rows[8].stream, status: 499, ..rows[8].clone() };
    rows[9].micros = u64::MAX;
    const ANN: &str = "ann \"\u{fc}\"";
    let of_ann = |row: &Row| Row { group: "labs/a".into(), names: names(Some(ANN), None, None), ..row.clone() };
    rows[10] = of_ann(&rows[10]);
    rows[11] = Row { names: names(None, Some("s"), None), client: Client::of_agent(b"curl/8"), ..rows[11].clone() };
    rows[12] = Row { names: names(Some(ANN), Some("t"), None), queued_ms: 7, ..of_ann(&rows[12]) };
    db.append(&rows).unwrap();
    rows[9].micros = i64::MAX as u64;
    let mut found = Vec::new();
    db.export(&mut |entry| {
        found.extend(match entry {
            Entry::Request(row) => Some(row),
            Entry::Folded(..) => None,
        });
        true
    })
    .unwrap();
    assert_eq!(found, rows);
    let since = Unix(2 * DAY - 99);
    assert_eq!(db.rows_since(since).unwrap().len(), 100);
    assert!(db.rows_since(since).unwrap().iter().all(|row| row.at >= since));
    let other = rusqlite::Connection::open(place.file()).unwrap();
    let groups = other.query_row("SELECT COUNT(*) FROM groups", [], |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!(groups, 3);
    let mut query = other.prepare("SELECT * FROM rows ORDER BY number").unwrap();
    let seen = query.query_map([], |seen| {
        let text = |column: &str| seen.get::<_, String>(column);
        let number = |column: &str| seen.get::<_, i64>(column).map(|number| number as u64);
        let usage = [number("input")?, number("cache_read")?, number("cache_write")?, number("output")?];
        let others =
            ["stream", "status", "cost_nano", "attempts", "micros", "queued_ms"].map(|column| number(column).unwrap());
        let names = ["model", "target", "endpoint", "source", "group_path", "client"];
        let names = names.map(|column| text(column).unwrap());
        let people = ["user", "session"].map(|column| seen.get::<_, Option<Arc<str>>>(column).unwrap());
        Ok(((number("number")?, text("id")?, text("key")?, text("admitted")?), names, usage, others, people))
    });
    for ((seen, row), number) in seen.unwrap().map(Result::unwrap).zip(&rows).zip(1..) {
        let id = format!("req_{}", crate::base::digest::hex(&row.request));
        let at = format!("{}.{:03}Z", window::iso(row.admitted).trim_end_matches('Z'), row.admitted.0 % 1000);
        assert_eq!(seen.0, (number, id, row.key.to_string(), at));
        let (shape, source) = (row.endpoint.name(), row.usage.source.as_str());
        assert_eq!(seen.1, [&*row.model, &*row.target, shape, source, &*row.group, row.client.name()]);
        assert_eq!(seen.4, [row.names.user.clone(), row.names.session.clone()]);
        assert_eq!(seen.2, [row.usage.uncached_in, row.usage.cache_read, row.usage.cache_write, row.usage.out]);
        assert_eq!(seen.3[..2], [u64::from(row.stream), u64::from(row.status)]);
        assert_eq!(seen.3[2..], [row.cost_nano, u64::from(row.attempts), row.micros, row.queued_ms]);
    }
}

#[test]
fn sql_views_have_names_and_dates() {
    let place = TempFolder::new("views");
    place.shared().insert_key(&record(A, 5)).unwrap();
    let mut db = place.owner();
    db.append(&[row(A, DAY + 7, "small", 1)]).unwrap();
    db.settle().unwrap();
    db.append(&[row(A, DAY + 8, "small", 2), row(B, DAY + 9, "small", 4)]).unwrap();
    let other = rusqlite::Connection::open(place.file()).unwrap();
    let sql = "SELECT day, key, name, requests, output, cost_nano, cost FROM sums ORDER BY key";
    let mut query = other.prepare(sql).unwrap();
    let lines = query.query_map([], |line| {
        let (cost_nano, cost): (i64, f64) = (line.get(5)?, line.get(6)?);
        assert!((cost - cost_nano as f64 / 1e9).abs() < 1e-12);
        Ok((line.get(0)?, line.get(1)?, line.get::<_, Option<String>>(2)?, line.get(3)?, line.get(4)?))
    });
    let lines: Vec<(String, String, Option<String>, i64, i64)> = lines.unwrap().map(Result::unwrap).collect();
    let output = |n| row(A, DAY, "small", n).usage.out as i64;
    let (day, name) = ("1970-01-02".to_string(), record(A, 5).name);
    assert_eq!(lines[0], (day.clone(), A.to_string(), Some(name), 2, output(1) + output(2)));
    assert_eq!(lines[1], (day, B.to_string(), None, 1, output(4)));
}

#[test]
fn lagging_sums_count_every_record_once_even_after_a_kill() {
    let place = TempFolder::new("tally");
    let mut db = place.owner();
    db.append(&[row(A, 5, "small", 1), row(B, 5, "small", 2)]).unwrap();
    db.append(&[row(A, 5, "small", 4)]).unwrap();
    assert_eq!(settled(&place), 0);
    let all = |db: &Sqlite| db.usage(&Query::by(By::Key), None).unwrap().iter().map(|line| line.requests).sum::<u64>();
    assert_eq!((all(&db), all(&place.shared())), (3, 3));
    // Rows written by another connection are read from the file.
    place.shared().append(&[row(B, DAY, "small", 8)]).unwrap();
    assert_eq!((settled(&place), all(&db)), (4, 4));
    db.append(&[row(B, DAY, "small", 16)]).unwrap();
    db.settle().unwrap();
    assert_eq!((settled(&place), all(&db)), (5, 5));
    db.append(&[row(A, DAY, "small", 32)]).unwrap();
    // A kill leaves no time to settle the sums, so this copies the files as they are now.
    let killed = TempFolder::new("tally-killed");
    for name in ["ledger.db", "ledger.db-wal"] {
        std::fs::copy(place.0.join(name), killed.0.join(name)).unwrap();
    }
    let place = killed;
    assert_eq!(settled(&place), 5);
    let mut db = place.owner();
    assert_eq!((settled(&place), all(&db)), (6, 6));
    // After the last row is deleted, its number is used again.
    assert_eq!(db.fold(Unix(9 * DAY), 100).unwrap(), 6);
    db.append(&[row(A, DAY, "small", 64)]).unwrap();
    assert_eq!((settled(&place), all(&db)), (6, 7));
    drop(db);
    assert_eq!(settled(&place), 7);
    assert_eq!(place.shared().verify().unwrap().differences, []);
}

#[test]
fn sums_are_settled_when_they_lag_by_many_records() {
    let place = TempFolder::new("settle");
    let mut db = place.owner();
    let rows: Vec<Row> = (0..3000).map(|n| row(if n % 2 == 0 { A } else { B }, n, "small", n)).collect();
    for _ in 0..2 {
        db.append(&rows).unwrap();
    }
    assert_eq!(settled(&place), 0);
    db.append(&rows).unwrap();
    assert_eq!(settled(&place), 9000);
    assert_eq!(db.verify().unwrap().differences, []);
}

/// A ledger that takes spilled rows.
#[derive(Default)]
pub(super) struct Taking {
    pub(super) batches: Vec<Batch>,
    /// Its calls in their order, each with true if the file `watched` exists.
    pub(super) calls: Vec<(&'static str, bool)>,
    pub(super) watched: PathBuf,
    /// The rows cannot be made durable.
    pub(super) fails: bool,
}

impl Taking {
    pub(super) fn rows(&self) -> usize {
        self.batches.iter().map(|batch| batch.rows.len()).sum()
    }
}

impl spill::Importer for Taking {
    fn import(&mut self, batch: &Batch) -> Result<Written, StoreError> {
        self.calls.push(("append", self.watched.exists()));
        self.batches.push(batch.clone());
        Ok(Written::from_rows(batch.rows.len()))
    }
    fn keep(&mut self, _: Written) -> Result<(), StoreError> {
        self.calls.push(("sync", self.watched.exists()));
        if self.fails { Err(StoreError::Locked(self.watched.clone())) } else { Ok(()) }
    }
}

/// Returns all keys in the order of their creation.
fn all_keys(db: &Sqlite) -> Vec<KeyRecord> {
    db.keys_page(None, Names::default(), (1000, usize::MAX)).unwrap().unwrap()
}

/// A ledger whose commits are slow, and whose first writes fail, as often as set.
struct Slow {
    db: Sqlite,
    pause: Duration,
    failures: u32,
}

impl Slow {
    fn fail(&mut self) -> Result<(), StoreError> {
        std::thread::sleep(self.pause);
        if self.failures > 0 {
            self.failures -= 1;
            return Err(StoreError::Shared("disk".into(), "full".into()));
        }
        Ok(())
    }
}

impl KeySource for Slow {
    fn key_changes(&mut self, seen: &mut KeysSeen) -> Result<KeyChanges, StoreError> {
        self.db.key_changes(seen)
    }
    fn key_piece(&mut self, cursor: &mut String) -> Result<Vec<KeyRecord>, StoreError> {
        self.db.key_piece(cursor)
    }
    fn take_odd(&mut self) -> Vec<String> {
        self.db.take_odd()
    }
}

impl WatchedLedger for Slow {
    fn find_keys(&mut self, ids: &[KeyId]) -> Result<Vec<KeyRecord>, StoreError> {
        self.db.find_keys(ids)
    }
    fn fold(&mut self, before: Unix, max: usize) -> Result<u64, StoreError> {
        self.db.fold(before, max)
    }
    fn writer_clocks(&mut self) -> Result<WriterClocks, StoreError> {
        self.db.writer_clocks()
    }
    fn hold_fold(&mut self, held: Option<Unix>) -> Result<(), StoreError> {
        self.db.hold_fold(held)
    }
}

impl Store for Slow {
    fn append(&mut self, rows: &[Row]) -> Result<Written, StoreError> {
        self.fail()?;
        Store::append(&mut self.db, rows)
    }
    fn check(&self) -> Result<(), StoreError> {
        self.db.check()
    }
    fn release(&mut self) -> Result<(), StoreError> {
        self.db.release()
    }
    fn promise(&mut self, _: &[crate::policy::ledger::Ask]) -> Result<(), StoreError> {
        Ok(())
    }

    fn retake(&mut self) -> Result<(), StoreError> {
        self.db.retake()
    }
    fn append_missing(&mut self, rows: &[Row]) -> Result<Written, StoreError> {
        self.fail()?;
        self.db.append_missing(rows)
    }
}

#[test]
fn a_slow_commit_does_not_delay_a_caller_that_hands_over_rows() {
    let place = TempFolder::new("slow");
    let (tell, told) = channel();
    let store = Slow { db: place.owner(), pause: Duration::from_secs(1), failures: 1 };
    let duties = Duties { urgent: true, ..Duties::default() };
    let handle = spawn(store, duties, move |notice| drop(tell.send(notice))).unwrap();
    assert_eq!(next(&told), LedgerNotice::Keys(KeyNews::all(vec![])));
    for n in 0..100 {
        handle.write(vec![row(A, n, "m", 1)]);
    }
    assert!(told.try_recv().is_err(), "all rows must be handed over before the first commit ends");
    assert!(matches!((next(&told), next(&told)), (LedgerNotice::Failed(_), LedgerNotice::Recovered)));
    assert_eq!(handle.finish(), Leftover::default());
    assert_eq!(place.shared().count_rows().unwrap(), 100);
}

#[test]
fn only_key_changes_since_the_start_are_reported() {
    let place = TempFolder::new("known");
    let db = place.owner();
    db.insert_key(&record(A, 5)).unwrap();
    let seen = db.keys_seen().unwrap();
    place.shared().insert_key(&record(B, 6)).unwrap();
    let (tell, told) = channel();
    let handle = spawn(db, Duties { seen, ..Duties::default() }, move |notice| drop(tell.send(notice))).unwrap();
    assert_eq!(next(&told), LedgerNotice::Keys(KeyNews::Changed(vec![record(B, 6)], vec![])));
    drop(handle);
    let db = place.owner();
    let seen = db.keys_seen().unwrap();
    let (tell, told) = channel();
    let handle = spawn(db, Duties { seen, ..Duties::default() }, move |notice| drop(tell.send(notice))).unwrap();
    handle.write(vec![row(A, 5, "m", 1)]);
    assert_eq!(next(&told), LedgerNotice::Committed(1));
    drop(handle);
    assert_eq!(told.iter().count(), 0);
}

#[test]
fn the_thread_folds_rows_older_than_the_retention() {
    let place = TempFolder::new("retention");
    let mut db = place.owner();
    let now = crate::io::clock::unix().0;
    db.append(&[row(A, now - 40 * DAY, "m", 1)]).unwrap();
    db.append(&[row(A, now - DAY, "m", 1)]).unwrap();
    let duties = Duties { retention: Some(Duration::from_secs(32 * 86_400)), ..Duties::default() };
    let handle = spawn(db, duties, |_| {}).unwrap();
    let began = Instant::now();
    while place.shared().count_rows().unwrap() > 1 {
        assert!(began.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(handle);
    let verdict = place.shared().verify().unwrap();
    assert_eq!((verdict.rows, verdict.folded, verdict.differences), (1, 1, vec![]));
}

/// Returns rows with different ids.
fn rows_of(ids: std::ops::Range<u8>) -> Vec<Row> {
    ids.map(|id| Row { request: [id; 16], ..row(A, u64::from(id), "small", 1) }).collect()
}

fn ids(db: &mut Sqlite) -> Vec<u8> {
    let mut found = Vec::new();
    db.export(&mut |entry| {
        found.extend(match entry {
            Entry::Request(row) => Some(row.request[0]),
            Entry::Folded(..) => None,
        });
        true
    })
    .unwrap();
    found
}

#[test]
fn records_that_may_exist_are_appended_once() {
    let place = TempFolder::new("missing");
    let mut db = place.owner();
    db.append(&rows_of(0..3)).unwrap();
    db.append(&rows_of(5..6)).unwrap();
    let twice = [rows_of(1..7), rows_of(6..8)].concat();
    assert_eq!(db.append_missing(&twice).unwrap(), Written::from_rows(4));
    assert_eq!(db.append_missing(&twice).unwrap(), Written::default());
    assert_eq!(ids(&mut db), [0, 1, 2, 5, 3, 4, 6, 7]);
    assert_eq!(db.verify().unwrap().differences, []);
    db.settle().unwrap();
    assert_eq!(db.verify().unwrap().differences, []);
}

/// Numbers of pages in the transactions of the log, by the size that each of their last frames has: SQLite's "WAL-mode
/// File Format".
fn sizes_of_transactions(place: &TempFolder) -> Vec<usize> {
    let [log, _] = log_files::paths(&place.file()).unwrap();
    let (log, mut sizes) = (std::fs::read(log).unwrap(), vec![0]);
    let salts = &log[16..24];
    for frame in log[32..].chunks_exact(24 + 4096).filter(|frame| &frame[8..16] == salts) {
        *sizes.last_mut().unwrap() += 1;
        if frame[4..8] != [0; 4] {
            sizes.push(0);
        }
    }
    sizes.pop();
    sizes
}

/// So many rows return after a long outage. No transaction and no comparison grows with their number.
#[test]
fn many_returned_records_are_appended_in_commits_of_the_usual_size() {
    let place = TempFolder::new("many-missing");
    let mut db = place.owner();
    let many = 3 * bounds::ROWS_PER_COMMIT + 1;
    let rows: Vec<Row> =
        (0..many as u128).map(|id| Row { request: id.to_be_bytes(), ..row(A, 5, "small", 1) }).collect();
    db.append(&rows[..7]).unwrap();
    let commits = || sizes_of_transactions(&place).len();
    let before = commits();
    assert_eq!(db.append_missing(&rows).unwrap(), Written::from_rows(many - 7));
    assert_eq!(commits() - before, 3);
    assert_eq!((db.count_rows().unwrap(), db.verify().unwrap().differences), (many as u64, vec![]));
}

#[test]
fn released_ledger_is_retaken_with_changes_in_between() {
    let place = TempFolder::new("turns");
    let mut db = place.owner();
    db.append(&rows_of(0..2)).unwrap();
    db.release().unwrap();
    let mut other = place.owner();
    assert!(matches!(db.retake(), Err(StoreError::Locked(_))));
    other.append(&rows_of(2..4)).unwrap();
    drop(other);
    db.retake().unwrap();
    assert!(matches!(Sqlite::open(&place.file(), Mode::Owner), Err(StoreError::Locked(_))));
    db.append(&rows_of(4..5)).unwrap();
    assert_eq!((ids(&mut db), settled(&place)), (vec![0, 1, 2, 3, 4], 4));
    assert_eq!(db.verify().unwrap().differences, []);
    db.release().unwrap();
    let newer = rusqlite::Connection::open(place.file()).unwrap();
    let present = newer.pragma_query_value(None, "user_version", |row| row.get::<_, i64>(0)).unwrap();
    newer.pragma_update(None, "user_version", 99).unwrap();
    assert!(matches!(db.retake(), Err(StoreError::Foreign(..))));
    assert!(matches!(Sqlite::look(&place.file()), Err(StoreError::Foreign(..))));
    newer.pragma_update(None, "user_version", present).unwrap();
    Sqlite::look(&place.file()).unwrap();
    assert_eq!(place.owner().count_rows().unwrap(), 5, "a ledger that could not be retaken must be free");
}

#[test]
fn checking_a_ledger_changes_nothing() {
    let place = TempFolder::new("look");
    Sqlite::look(&place.file()).unwrap();
    assert!(!place.file().exists());
    let _owner = place.owner();
    Sqlite::look(&place.file()).unwrap();
    std::fs::write(place.0.join("other"), "no database, but long enough to be read as the head of one").unwrap();
    assert!(Sqlite::look(&place.0.join("other")).is_err());
}

#[test]
fn thread_releases_its_ledger_and_keeps_records_until_it_returns() {
    let place = TempFolder::new("away");
    let (handle, told) = started(&place);
    handle.write(rows_of(0..2));
    let turn = handle.turn().unwrap();
    turn.release().unwrap();
    let mut other = place.owner();
    assert_eq!(other.count_rows().unwrap(), 2);
    // Rows of the predecessor, one of which the successor has already written.
    other.append(&rows_of(2..3)).unwrap();
    drop(other);
    handle.write(rows_of(4..6));
    turn.retake(rows_of(2..4));
    assert_eq!(handle.finish(), Leftover::default());
    assert_eq!(ids(&mut place.owner()), [0, 1, 2, 3, 4, 5]);
    let committed: u64 =
        told.iter().map(|notice| if let LedgerNotice::Committed(rows) = notice { rows } else { 0 }).sum();
    assert_eq!(committed, 2 + 4);
}

#[test]
fn records_not_written_before_the_end_are_returned() {
    let place = TempFolder::new("leftover");
    let (handle, told) = started(&place);
    handle.write(rows_of(0..2));
    let turn = handle.turn().unwrap();
    turn.release().unwrap();
    let other = place.owner();
    turn.retake(rows_of(2..4));
    let failed = told.iter().find(|notice| matches!(notice, LedgerNotice::Failed(_)));
    assert!(failed.is_some_and(|notice| format!("{notice:?}").contains("another gateway")));
    handle.write(rows_of(4..5));
    let left = handle.finish();
    let mut rows: Vec<u8> = left.batches.iter().flat_map(|batch| &batch.rows).map(|row| row.request[0]).collect();
    rows.sort_unstable();
    assert_eq!((rows, left.died), (vec![2, 3, 4], false));
    drop(other);
}

#[test]
fn failed_ledger_refuses_its_release_immediately() {
    let place = TempFolder::new("stays");
    let store = Slow { db: place.owner(), pause: Duration::ZERO, failures: 3 };
    let handle = spawn(store, Duties { urgent: true, ..Duties::default() }, |_| {}).unwrap();
    handle.write(rows_of(0..1));
    let refused = handle.turn().unwrap().release();
    assert!(refused.is_err(), "{refused:?}");
    // Rows wait until the hand-over is cancelled, as it is here.
    handle.write(rows_of(2..3));
    handle.turn().unwrap().retake(rows_of(1..2));
    assert_eq!(handle.finish(), Leftover::default());
    assert_eq!(ids(&mut place.owner()), [0, 1, 2]);
}

#[test]
fn unwritable_ledger_is_retaken_without_waiting() {
    let place = TempFolder::new("never");
    let store = Slow { db: place.owner(), pause: Duration::ZERO, failures: u32::MAX };
    let handle = spawn(store, Duties { urgent: true, ..Duties::default() }, |_| {}).unwrap();
    handle.write(rows_of(0..2));
    let turn = handle.turn().unwrap();
    assert!(turn.release().is_err());
    handle.write(rows_of(3..4));
    let (told, taken) = channel();
    let back = std::thread::spawn(move || {
        turn.retake(rows_of(2..3));
        told.send(()).unwrap();
    });
    taken.recv_timeout(Duration::from_secs(20)).unwrap();
    back.join().unwrap();
    let left = handle.finish();
    let mut rows: Vec<u8> = left.batches.iter().flat_map(|batch| &batch.rows).map(|row| row.request[0]).collect();
    rows.sort_unstable();
    assert_eq!((rows, left.died), (vec![0, 1, 2, 3], false));
}

#[test]
fn spilled_records_are_read_back_and_odd_files_kept() {
    use super::spill::SpillFolder as Spills;
    let place = TempFolder::new("spill");
    let spills = Spills::new(place.0.clone(), "ledger.db".to_string());
    use crate::policy::meter::{Amount, Lease, LeasePart, PathIx};
    let lease = Lease {
        reserved: Amount { tokens: 5, nano: 6 },
        shared: true,
        path: PathIx::NONE,
        parts: [("/period", 1), ("labs/5h", 3)]
            .map(|(name, at)| LeasePart { account: name.into(), bounds: (Unix(at), Unix(at + 1)) })
            .into(),
    };
    let lent = rows_of(3..4).into_iter().map(|row| Row { lease: Some(Box::new(lease.clone())), ..row }).collect();
    let file = Batch { rows: rows_of(0..3), ..Batch::default() };
    let shared = Batch { sent: Some(("writer".to_string(), 7)), rows: lent, ..Batch::default() };
    let left = Leftover { batches: vec![file.clone(), shared.clone()], died: false };
    let path = spills.write(&left, Unix(99), 7).unwrap();
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert!(spills.write(&left, Unix(99), 7).is_ok(), "a file of the same moment must be possible");
    let refused = spills.read(&mut Taking { fails: true, ..Taking::default() });
    assert!(refused.is_err() && path.exists(), "rows that were not taken must stay");
    let mut taken = Taking::default();
    assert_eq!(spills.read(&mut taken).unwrap().len(), 1);
    assert_eq!(taken.batches, [file, shared]);
    assert!(!path.exists());
    // Files of another ledger, or incomplete ones.
    let others = ["other.db.spill-1-1.jsonl", "ledger.db.spill-1-1.part"].map(|name| place.0.join(name));
    others.iter().for_each(|path| std::fs::write(path, "{}").unwrap());
    let text = serde_json::to_string(&rows_of(9..10)[0]).unwrap();
    std::fs::write(place.0.join("ledger.db.spill-2-2.jsonl"), format!("{text}\n{{\"half\"")).unwrap();
    let mut taken = Taking::default();
    let notes = spills.read(&mut taken);
    assert!(notes.unwrap()[0].contains("lines that could not be read: 1;"));
    assert_eq!(taken.rows(), 1);
    assert!(place.0.join("ledger.db.spill-2-2.unread").exists() && others.iter().all(|path| path.exists()));
}

#[test]
fn wait_for_a_dead_thread_ends_and_returns_its_records() {
    let place = TempFolder::new("dead");
    let store = Slow { db: place.owner(), pause: Duration::ZERO, failures: 0 };
    let handle = spawn(store, Duties { urgent: true, ..Duties::default() }, |notice| {
        assert!(!matches!(notice, LedgerNotice::Committed(..)), "the thread must die instead");
    })
    .unwrap();
    handle.write(rows_of(0..1));
    let turn = handle.turn().unwrap();
    while turn.release().is_ok() {
        turn.retake(Vec::new());
    }
    turn.retake(rows_of(1..3));
    handle.write(rows_of(3..4));
    let left = handle.finish();
    assert_eq!((left.rows(), left.died), (3, true));
}

/// Starts the thread of a ledger that keeps rows for 32 days. Returns it and its notices.
fn folding(place: &TempFolder, clocks: WriterClocks) -> (Box<dyn LedgerHandle>, Receiver<LedgerNotice>) {
    let (tell, told) = channel();
    let duties = Duties { retention: Some(Duration::from_secs(32 * 86_400)), clocks, ..Duties::default() };
    (spawn(place.owner(), duties, move |notice| drop(tell.send(notice))).unwrap(), told)
}

/// Waits until the thread warns that nothing is folded.
fn warned(told: &Receiver<LedgerNotice>) {
    let warning =
        |notice: &LedgerNotice| matches!(notice, LedgerNotice::Warning(text) if text.contains("fold --confirm"));
    while !warning(&next(told)) {}
}

#[test]
fn retention_folds_nothing_after_a_gap_until_it_is_confirmed() {
    let place = TempFolder::new("gap");
    let now = crate::io::clock::unix();
    let newest = Unix(now.0 - (32 + 366) * DAY);
    place.owner().append(&[row(A, newest.0 - DAY, "m", 1), row(A, newest.0, "m", 1)]).unwrap();
    let (handle, told) = folding(&place, place.shared().writer_clocks().unwrap());
    warned(&told);
    assert_eq!((place.shared().count_rows().unwrap(), place.shared().writer_clocks().unwrap().held), (2, Some(newest)));
    // Records written by the doubtful clock change nothing, nor does a restart.
    handle.write(vec![row(A, now.0, "m", 1)]);
    drop(handle);
    let (handle, told) = folding(&place, place.shared().writer_clocks().unwrap());
    warned(&told);
    std::thread::sleep(2 * bounds::KEYS_LOOK_IDLE);
    assert_eq!(place.shared().count_rows().unwrap(), 3);
    let line = AuditLine { what: "fold".to_string(), ..AuditLine::default() };
    place.shared().confirm_fold(newest, &line).unwrap();
    let began = Instant::now();
    while place.shared().count_rows().unwrap() > 1 {
        assert!(began.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(handle);
    let db = place.shared();
    assert_eq!(
        (db.audit(0, 1, usize::MAX).unwrap()[0].what.as_str(), db.writer_clocks().unwrap().held),
        ("fold", None)
    );
    assert_eq!(place.shared().verify().unwrap().differences, []);
}

#[test]
fn records_before_the_accepted_time_do_not_count() {
    let place = TempFolder::new("accepted");
    let mut db = place.owner();
    let newest = |db: &Sqlite| db.writer_clocks().unwrap().newest.0 / DAY;
    assert_eq!(newest(&db), 0);
    db.append(&[row(A, 10 * DAY, "m", 1), row(A, 900 * DAY, "m", 1)]).unwrap();
    assert_eq!(newest(&db), 900);
    let line = AuditLine { what: "clock".to_string(), ..AuditLine::default() };
    place.shared().accept_clock(Unix(20 * DAY), &line).unwrap();
    assert_eq!((newest(&db), db.writer_clocks().unwrap().accepted), (20, Some(Unix(20 * DAY))));
    db.append(&[row(A, 30 * DAY, "m", 1)]).unwrap();
    assert_eq!(newest(&db), 30);
    // Folded rows still count. The numbers of rows start again after the last one is deleted.
    db.fold(Unix(31 * DAY), 100).unwrap();
    assert_eq!((newest(&db), db.count_rows().unwrap()), (30, 2));
    db.fold(Unix(1000 * DAY), 100).unwrap();
    assert_eq!((newest(&db), db.count_rows().unwrap()), (30, 0));
    db.append(&[row(A, 40 * DAY, "m", 1)]).unwrap();
    assert_eq!(newest(&db), 40);
    drop(db);
    assert_eq!(newest(&place.owner()), 40);
    assert_eq!(place.shared().verify().unwrap().differences, []);
}

/// The last rows are the oldest ones: rows of a spill file, or those of a clock that was set back.
#[test]
fn numbers_of_folded_rows_that_are_used_again_count_as_new() {
    let place = TempFolder::new("numbers");
    let mut db = place.owner();
    db.append(&[row(A, 900 * DAY, "m", 1)]).unwrap();
    db.append(&[row(A, 10 * DAY, "m", 1)]).unwrap();
    db.accept_clock(Unix(20 * DAY), &AuditLine::default()).unwrap();
    assert_eq!(db.fold(Unix(15 * DAY), 9).unwrap(), 1);
    assert_eq!(db.writer_clocks().unwrap().newest, Unix(20 * DAY));
    db.append(&[row(A, 30 * DAY, "m", 1)]).unwrap();
    assert_eq!(db.writer_clocks().unwrap().newest, Unix(30 * DAY));
    assert_eq!(db.verify().unwrap().differences, []);
}

#[test]
fn thread_reports_that_the_present_time_is_accepted() {
    let place = TempFolder::new("told");
    place.owner().append(&[row(A, 900 * DAY, "m", 1)]).unwrap();
    let (_handle, told) = folding(&place, place.shared().writer_clocks().unwrap());
    place.shared().accept_clock(Unix(20 * DAY), &AuditLine::default()).unwrap();
    let accepted = LedgerNotice::Newest { at: Unix(20 * DAY), accepted: true };
    while next(&told) != accepted {}
}

#[test]
fn moments_are_read_at_one_state_of_the_ledger() {
    let place = TempFolder::new("moments");
    let (mut writer, reader) = (place.owner(), place.shared());
    writer.set_durable(false).unwrap();
    let ended = Arc::new(AtomicBool::new(false));
    let ends = Arc::clone(&ended);
    let writing = std::thread::spawn(move || {
        for number in 1..=300 {
            writer.append(&[row(A, (900 + number) * DAY, "m", number)]).unwrap();
            writer.accept_clock(Unix(number * DAY), &AuditLine::default()).unwrap();
        }
        ends.store(true, Ordering::Release);
    });
    while !ended.load(Ordering::Acquire) {
        let WriterClocks { newest, accepted, .. } = reader.writer_clocks().unwrap();
        let accepted = accepted.unwrap_or_default();
        let next = Unix(accepted.0 + 901 * DAY);
        assert!(newest == accepted || newest == next, "{newest:?} is from before {accepted:?} was accepted");
    }
    writing.join().unwrap();
}

/// A ledger that counts the key records read from it.
struct Counting {
    db: Sqlite,
    read: Arc<AtomicUsize>,
}

impl KeySource for Counting {
    fn key_changes(&mut self, seen: &mut KeysSeen) -> Result<KeyChanges, StoreError> {
        let changes = self.db.key_changes(seen)?;
        if let KeyChanges::These { records, gone, .. } = &changes {
            self.read.fetch_add(records.len() + gone.len(), Ordering::Relaxed);
        }
        Ok(changes)
    }
    fn key_piece(&mut self, cursor: &mut String) -> Result<Vec<KeyRecord>, StoreError> {
        let piece = self.db.key_piece(cursor)?;
        self.read.fetch_add(piece.len(), Ordering::Relaxed);
        Ok(piece)
    }
    fn take_odd(&mut self) -> Vec<String> {
        self.db.take_odd()
    }
}

fn many(place: &TempFolder, count: usize) -> Vec<String> {
    let ids: Vec<String> = (0..count).map(|number| format!("{number:012}")).collect();
    let db = place.shared();
    db.set_durable(false).unwrap();
    ids.iter().zip(0..).for_each(|(id, number)| db.insert_key(&record(id, number)).unwrap());
    ids
}

#[test]
fn only_changed_keys_are_read() {
    for count in [1, 2000] {
        let place = TempFolder::new(&format!("alone-{count}"));
        let ids = many(&place, count);
        let (read, db) = (Arc::new(AtomicUsize::new(0)), place.owner());
        let mut follower = Follower::new(db.keys_seen().unwrap());
        let (mut source, mut cli) = (Counting { db, read: read.clone() }, place.shared());
        let mut look = |read: usize| {
            let mut told = Vec::new();
            follower.look(&mut source, &mut |news| told.push(news)).unwrap();
            assert_eq!(source.read.swap(0, Ordering::Relaxed), read);
            told
        };
        assert_eq!(look(0), []);
        let last = ids.last().unwrap();
        revoke(&mut cli, last, 5);
        let revoked = KeyRecord { revoked: Some(Unix(5)), ..record(last, count as u64 - 1) };
        assert_eq!(look(1), [KeyNews::Changed(vec![revoked.clone()], vec![])]);
        cli.insert_key(&record(A, 9)).unwrap();
        cli.insert_key(&record(B, 9)).unwrap();
        revoke(&mut cli, A, 6);
        let issued = vec![KeyRecord { revoked: Some(Unix(6)), ..record(A, 9) }, record(B, 9)];
        assert_eq!(
            look(2),
            [KeyNews::Changed(issued, vec![])],
            "several changes between two looks must arrive together"
        );
        // Changed directly in the file, without a command.
        let other = rusqlite::Connection::open(place.file()).unwrap();
        other.execute("UPDATE keys SET name = 'by hand' WHERE id = ?1", [B]).unwrap();
        other.execute("DELETE FROM keys WHERE id = ?1", [A]).unwrap();
        let renamed = KeyRecord { name: "by hand".to_string(), ..record(B, 9) };
        assert_eq!(look(2), [KeyNews::Changed(vec![renamed], vec![key(A)])]);
        other.execute_batch("CREATE TABLE other (a); INSERT INTO other VALUES (1)").unwrap();
        assert_eq!(look(0), [], "no key has changed");
    }
}

#[test]
fn all_keys_are_read_in_pieces_if_changes_are_unknown() {
    let place = TempFolder::new("pieces");
    let ids = many(&place, 600);
    let db = place.owner();
    let mut follower = Follower::new(db.keys_seen().unwrap());
    let (mut source, mut told) = (Counting { db, read: Arc::default() }, Vec::new());
    let mut cli = place.shared();
    // The stored changes differ from those that were seen.
    let other = rusqlite::Connection::open(place.file()).unwrap();
    other.execute("UPDATE changes SET mark = mark + 1", []).unwrap();
    follower.look(&mut source, &mut |news| told.push(news)).unwrap();
    assert!(follower.is_reading());
    // Changes during the read are reported immediately.
    revoke(&mut cli, &ids[599], 5);
    follower.look(&mut source, &mut |news| told.push(news)).unwrap();
    while follower.is_reading() {
        follower.look(&mut source, &mut |news| told.push(news)).unwrap();
    }
    let sizes: Vec<(usize, bool, bool)> = told
        .iter()
        .map(|news| match news {
            KeyNews::Changed(records, gone) => (records.len() + gone.len(), false, false),
            KeyNews::Piece { records, begins, ends } => (records.len(), *begins, *ends),
        })
        .collect();
    let piece = bounds::KEYS_PER_PIECE;
    assert_eq!(sizes, [(piece, true, false), (1, false, false), (piece, false, false), (600 - 2 * piece, false, true)]);
    // More changes than fit in one report.
    ids.iter().take(300).for_each(|id| revoke(&mut cli, id, 7));
    told.clear();
    follower.look(&mut source, &mut |news| told.push(news)).unwrap();
    assert!(follower.is_reading());
    follower.look(&mut source, &mut |news| told.push(news)).unwrap();
    assert!(!follower.is_reading() && told.len() == 2);
}

#[test]
fn unreadable_key_is_named_and_blocks_no_other() {
    let place = TempFolder::new("unreadable");
    let mut db = place.owner();
    let (mut seen, other) = (db.keys_seen().unwrap(), place.shared());
    other.insert_key(&record(A, 1)).unwrap();
    other.insert_key(&record(B, 2)).unwrap();
    let by_hand = rusqlite::Connection::open(place.file()).unwrap();
    by_hand.execute("UPDATE keys SET digest = x'00' WHERE id = ?1", [A]).unwrap();
    let these = KeyChanges::These { records: vec![record(B, 2)], gone: vec![key(A)], more: false };
    assert_eq!(db.key_changes(&mut seen).unwrap(), these);
    assert!(matches!(db.take_odd().as_slice(), [text] if text.contains(A)));
    assert_eq!(db.key_piece(&mut String::new()).unwrap(), [record(B, 2)]);
}

#[test]
fn pages_of_keys_continue_after_the_last_one() {
    let place = TempFolder::new("pages");
    let db = place.owner();
    for (id, created) in [(B, 1), (A, 2), ("CCCCCCCCCCCC", 2), ("DDDDDDDDDDDD", 1)] {
        db.insert_key(&record(id, created)).unwrap();
    }
    let page = |after: Option<&str>, names: &str, limit: usize| {
        let page = db.keys_page(after.map(key).as_ref(), Names::of(names), (limit, usize::MAX)).unwrap();
        page.map(|page| page.iter().map(|key| key.id.to_string()).collect::<Vec<_>>())
    };
    assert_eq!(page(None, "*", 3).unwrap(), [B, "DDDDDDDDDDDD", A]);
    assert_eq!(page(Some(A), "*", 3).unwrap(), ["CCCCCCCCCCCC"]);
    assert_eq!(page(Some("CCCCCCCCCCCC"), "*", 3).unwrap(), [""; 0]);
    assert_eq!(page(Some("EEEEEEEEEEEE"), "*", 3), None, "the key does not exist");
    assert_eq!(page(None, "name of D*", 3).unwrap(), ["DDDDDDDDDDDD"]);
    assert_eq!(page(None, "name of", 3).unwrap(), [""; 0]);
    assert_eq!(page(None, &format!("name of {A}"), 3).unwrap(), [A]);
    assert_eq!(db.keys_named(&format!("name of {B}")).unwrap().len(), 1);
    for (bytes, keys) in [(0, 1), (1, 2), (record(B, 1).text_bytes(), 2), (record(B, 1).text_bytes() + 1, 3)] {
        let page = db.keys_page(None, Names::default(), (4, bytes)).unwrap().unwrap();
        assert_eq!(page.len(), keys, "{bytes} bytes, and one key more");
    }
}
