//! Store settings for flash storage: commit interval, syncs, page sizes, copies.

use super::super::copy::{self, SnapshotPlan};
use super::super::watch::WatchedLedger;
use super::super::{log_files, sqlite};
use super::*;

/// Starts the thread of a ledger with these duties, and skips its first notice.
fn with_duties(place: &TempFolder, duties: Duties) -> (Box<dyn LedgerHandle>, Receiver<LedgerNotice>) {
    let (tell, told) = channel();
    let db = open_owner(&place.file(), false, sqlite::PAGE_SIZE).unwrap();
    let handle = spawn(db, duties, move |notice| drop(tell.send(notice))).unwrap();
    assert_eq!(next(&told), LedgerNotice::Keys(KeyNews::all(vec![])));
    (handle, told)
}

/// Waits until the condition holds.
fn until(what: &str, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn records_wait_for_the_commit_interval_except_at_the_end() {
    let place = TempFolder::new("gather");
    let every = Duration::from_secs(2);
    let (handle, told) = with_duties(&place, Duties { commit_every: every, ..Duties::default() });
    handle.write(rows_of(0..1));
    assert_eq!(next(&told), LedgerNotice::Committed(1), "the first commit must not wait");
    let began = Instant::now();
    for number in 1..6 {
        handle.write(rows_of(number..number + 1));
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(next(&told), LedgerNotice::Committed(5));
    assert!(began.elapsed() > every / 2, "{:?}", began.elapsed());
    handle.write(rows_of(6..8));
    assert_eq!(handle.finish(), Leftover::default());
    assert_eq!(next(&told), LedgerNotice::Committed(2));
    assert_eq!(place.shared().count_rows().unwrap(), 8);
}

#[test]
fn collected_records_are_committed_before_a_hand_over() {
    let place = TempFolder::new("gather-turn");
    let duties = Duties { commit_every: Duration::from_secs(60), ..Duties::default() };
    let (handle, told) = with_duties(&place, duties);
    handle.write(rows_of(0..1));
    assert_eq!(next(&told), LedgerNotice::Committed(1));
    handle.write(rows_of(1..4));
    assert_eq!(handle.turn().unwrap().release(), Ok(()));
    assert_eq!(place.owner().count_rows().unwrap(), 4);
}

/// Opens the files that a power cut leaves: the ledger's file, and a log whose bytes after the first `synced` are
/// `rest`.
fn after_power_cut(place: &TempFolder, synced: usize, rest: &[u8]) -> u64 {
    let [log, _] = log_files::paths(&place.file()).unwrap();
    let cut = TempFolder::new("power-cut");
    std::fs::copy(place.file(), cut.file()).unwrap();
    let kept = [&std::fs::read(log).unwrap()[..synced], rest].concat();
    std::fs::write(cut.file().with_extension("db-wal"), kept).unwrap();
    let mut db = cut.owner();
    let verdict = db.verify().unwrap();
    assert_eq!(verdict.differences, []);
    verdict.rows
}

#[test]
fn power_cut_loses_only_records_since_the_last_sync() {
    let place = TempFolder::new("sync");
    let mut db = open_owner(&place.file(), false, 1024).unwrap();
    let log = log_files::paths(&place.file()).unwrap()[0].clone();
    let length = || std::fs::metadata(&log).unwrap().len() as usize;
    for number in 0..20 {
        db.append(&rows_of(number..number + 1)).unwrap();
    }
    Store::sync(&mut db).unwrap();
    let synced = length();
    for number in 20..30 {
        db.append(&rows_of(number..number + 1)).unwrap();
    }
    let whole = std::fs::read(&log).unwrap();
    let unsynced = &whole[synced..];
    assert!(unsynced.len() > 1024);
    let mut random = crate::base::rng::Rng::new([7; 32]);
    for _ in 0..40 {
        // Unsynced blocks are written in any order, or not at all.
        let mut rest = unsynced.to_vec();
        let blocks = rest.chunks_mut(512).filter(|_| random.next_u64().is_multiple_of(2)).collect::<Vec<_>>();
        blocks.into_iter().for_each(|block| block.fill(0));
        rest.truncate(random.next_u64() as usize % (rest.len() + 1));
        let rows = after_power_cut(&place, synced, &rest);
        assert!((20..=30).contains(&rows), "{rows} rows");
    }
    assert_eq!(after_power_cut(&place, synced, &[]), 20);
    assert_eq!(after_power_cut(&place, synced, unsynced), 30);
}

/// Returns the bytes that this thread has written to files so far.
fn written() -> u64 {
    let io = std::fs::read_to_string("/proc/thread-self/io").unwrap();
    io.lines().find_map(|line| line.strip_prefix("wchar: ")).unwrap().parse().unwrap()
}

#[test]
fn flash_settings_write_at_most_a_thousand_bytes_per_request() {
    let place = TempFolder::new("wear");
    for (page_size, per_commit, most) in [(1024, 10, 1000), (4096, 1, 9300)] {
        let _ = std::fs::remove_file(place.file());
        let mut db = open_owner(&place.file(), false, page_size).unwrap();
        let begun = written();
        let rows: Vec<Row> = (0..3600).map(|n| row(A, 1_790_000_000_000 + n * 1000, "gpt-4o-mini", 500)).collect();
        for rows in rows.chunks(per_commit) {
            db.append(rows).unwrap();
            Store::sync(&mut db).unwrap();
        }
        let each = (written() - begun) / rows.len() as u64;
        assert!(each <= most, "{each} bytes in pages of {page_size}");
    }
}

#[test]
fn thread_syncs_once_after_commits_and_not_without_them() {
    let place = TempFolder::new("syncs");
    let (tell, told) = channel();
    let syncs = Arc::new(AtomicUsize::new(0));
    let db = Syncing { db: place.owner(), syncs: syncs.clone() };
    let duties = Duties { sync_every: Some(Duration::from_millis(300)), ..Duties::default() };
    let handle = spawn(db, duties, move |notice| drop(tell.send(notice))).unwrap();
    assert_eq!(next(&told), LedgerNotice::Keys(KeyNews::all(vec![])));
    handle.write(rows_of(0..3));
    until("the sync", || syncs.load(Ordering::SeqCst) > 0);
    std::thread::sleep(Duration::from_millis(700));
    assert_eq!(syncs.load(Ordering::SeqCst), 1);
    drop(handle);
}

#[test]
fn new_ledger_gets_the_page_size_and_an_old_one_by_compacting() {
    let place = TempFolder::new("pages");
    let mut db = open_owner(&place.file(), false, 1024).unwrap();
    db.insert_key(&record(A, 1)).unwrap();
    db.append(&(0..3000).map(|n| row(A, n, "m", 1)).collect::<Vec<_>>()).unwrap();
    let before = db.verify().unwrap();
    assert_eq!((db.page_size().unwrap(), before.differences.len()), (1024, 0));
    assert!(matches!(Sqlite::compact(&place.file(), 512), Err(StoreError::Locked(_))));
    drop(db);
    for size in [512, 2048, 4096] {
        let done = Sqlite::compact(&place.file(), size).unwrap();
        assert_eq!(done.after, std::fs::metadata(place.file()).unwrap().len());
        let mut db = open_owner(&place.file(), false, 1024).unwrap();
        let after = db.verify().unwrap();
        assert_eq!((db.page_size().unwrap(), after.rows, after.differences), (size, 3000, vec![]));
        assert_eq!(all_keys(&db), [record(A, 1)]);
    }
}

#[test]
fn copy_during_writes_is_complete_and_private() {
    let place = TempFolder::new("copy");
    let mut db = open_owner(&place.file(), false, 1024).unwrap();
    let to = place.0.join("copy.db");
    for rows in [10, 20] {
        db.append(&rows_of(0..10)).unwrap();
        copy::copy(&place.file(), &to).unwrap();
        assert_eq!(std::fs::metadata(&to).unwrap().permissions().mode() & 0o777, 0o600);
        let mut copied = Sqlite::open(&to, Mode::Shared).unwrap();
        let verdict = copied.verify().unwrap();
        assert_eq!((verdict.rows, verdict.differences, copied.page_size().unwrap()), (rows, vec![], 1024));
        assert_eq!(copied.hash_key().unwrap(), db.hash_key().unwrap());
    }
    let refused = copy::copy(&place.file(), &place.file()).unwrap_err().to_string();
    assert!(refused.ends_with("the copy would replace a file of the ledger"), "{refused}");
    let names: Vec<_> = std::fs::read_dir(&place.0).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(
        names.iter().all(|name| !name.to_string_lossy().starts_with("copy.db.")),
        "no draft may be left: {names:?}"
    );
}

#[test]
fn copy_that_is_used_or_changed_is_not_replaced_any_more() {
    let place = TempFolder::new("marks");
    let to = place.0.join("copy.db");
    let source = place.owner();
    source.insert_key(&record(A, 1)).unwrap();
    let copied = || copy::copy(&place.file(), &to);
    let line = AuditLine { what: "accept".into(), ..AuditLine::default() };
    let change: [&dyn Fn(); 3] = [
        &|| drop(Sqlite::open(&to, Mode::Owner).unwrap()),
        &|| Sqlite::open(&to, Mode::Shared).unwrap().accept_clock(Unix(1), &line).unwrap(),
        &|| {
            let edited = Sqlite::open(&to, Mode::Shared).unwrap().edit(&key(A), None, &mut |key| {
                key.disabled = true;
                true
            });
            assert!(edited.unwrap().is_some());
        },
    ];
    for change in change {
        copied().unwrap();
        assert_eq!(Sqlite::open(&to, Mode::Shared).unwrap().verify().unwrap().differences, []);
        copied().expect("a copy that was only read is a copy");
        change();
        let why = copied().unwrap_err().to_string();
        assert!(why.ends_with("this is a ledger: choose another path"), "{why}");
        std::fs::remove_file(&to).unwrap();
    }
    // A copy of a copy is one, too.
    copied().unwrap();
    let second = place.0.join("second.db");
    for _ in 0..2 {
        copy::copy(&to, &second).unwrap();
    }
}

#[test]
fn returned_records_are_synced_and_copied() {
    let place = TempFolder::new("returned");
    let to = place.0.join("copy.db");
    let syncs = Arc::new(AtomicUsize::new(0));
    let plan = SnapshotPlan { from: place.file(), to: to.clone(), every: Duration::from_secs(3600) };
    let every = Duration::from_millis(50);
    let start = || {
        let duties = Duties { sync_every: Some(every), snapshot: Some(plan.clone()), ..Duties::default() };
        let handle = spawn(Syncing { db: place.owner(), syncs: syncs.clone() }, duties, |_| {}).unwrap();
        handle.turn().unwrap().release().unwrap();
        handle
    };
    let rows_in_copy = || Sqlite::open(&to, Mode::Shared).unwrap().count_rows().unwrap();
    drop(place.owner());
    copy::copy(&place.file(), &to).unwrap();
    // Records of a hand-over that was cancelled.
    let handle = start();
    handle.turn().unwrap().retake(rows_of(0..3));
    until("the sync", || syncs.load(Ordering::SeqCst) > 0);
    drop(handle);
    assert_eq!(rows_in_copy(), 3);
    // Another process has the ledger.
    let handle = start();
    let mut other = place.owner();
    other.append(&rows_of(3..4)).unwrap();
    drop(handle);
    assert_eq!((rows_in_copy(), other.count_rows().unwrap()), (3, 4));
}

#[test]
fn snapshots_follow_changes_and_a_clean_stop_takes_the_last_one() {
    let place = TempFolder::new("snapshots");
    let to = place.0.join("flash").join("copy.db");
    std::fs::create_dir(place.0.join("flash")).unwrap();
    let plan = |every| Some(SnapshotPlan { from: place.file(), to: to.clone(), every });
    let rows_in_copy = || Sqlite::open(&to, Mode::Shared).unwrap().count_rows().unwrap();
    drop(place.owner());
    let (handle, _told) =
        with_duties(&place, Duties { snapshot: plan(Duration::from_millis(100)), ..Duties::default() });
    // The ledger is newer than its snapshot, which does not exist.
    until("the first snapshot", || to.exists());
    handle.write(rows_of(0..1));
    until("the row's snapshot", || rows_in_copy() == 1);
    place.shared().insert_key(&record(A, 1)).unwrap();
    until("the key's snapshot", || !all_keys(&Sqlite::open(&to, Mode::Shared).unwrap()).is_empty());
    drop(handle);
    let duties = Duties { snapshot: plan(Duration::from_secs(3600)), ..Duties::default() };
    let (handle, told) = with_duties_and_keys(&place, duties.clone());
    handle.write(rows_of(1..3));
    drop((handle, told));
    assert_eq!(rows_in_copy(), 3);
    let modified = || std::fs::metadata(&to).unwrap().modified().unwrap();
    let before = modified();
    drop(with_duties_and_keys(&place, duties));
    assert_eq!(modified(), before, "an unchanged ledger must not be copied");
}

#[test]
fn cut_ledger_does_not_replace_its_last_snapshot() {
    let place = TempFolder::new("cut");
    let to = place.0.join("copy.db");
    drop(place.owner());
    copy::copy(&place.file(), &to).unwrap();
    let before = std::fs::read(&to).unwrap();
    let plan = SnapshotPlan { from: place.file(), to: to.clone(), every: Duration::from_secs(3600) };
    let (handle, told) = with_duties(&place, Duties { snapshot: Some(plan), ..Duties::default() });
    handle.write(rows_of(0..1));
    assert_eq!(next(&told), LedgerNotice::Committed(1));
    std::fs::File::options().write(true).open(place.file()).unwrap().set_len(4096).unwrap();
    assert_eq!(handle.finish(), Leftover::default());
    assert_eq!(std::fs::read(&to).unwrap(), before);
}

#[test]
fn no_draft_of_a_snapshot_is_left_after_a_hand_over() {
    let place = TempFolder::new("draft");
    drop(place.owner());
    // The snapshot takes longer than the hand-over.
    let file = rusqlite::Connection::open(place.file()).unwrap();
    let many = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200)";
    let fill = format!("CREATE TABLE filler (x); INSERT INTO filler {many} SELECT zeroblob(1000000) FROM n");
    file.execute_batch(&fill).unwrap();
    drop(file);
    let drafts = || {
        let names = std::fs::read_dir(&place.0).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_string_lossy().starts_with("copy.db.")).count()
    };
    let to = place.0.join("copy.db");
    let plan = SnapshotPlan { from: place.file(), to: to.clone(), every: Duration::from_millis(50) };
    let (handle, _told) = with_duties(&place, Duties { snapshot: Some(plan), ..Duties::default() });
    until("a draft", || drafts() > 0);
    assert_eq!(handle.turn().unwrap().release(), Ok(()));
    drop(handle);
    assert_eq!((drafts(), to.exists()), (0, false));
}

/// Like [`with_duties`], with keys in the ledger.
fn with_duties_and_keys(place: &TempFolder, duties: Duties) -> (Box<dyn LedgerHandle>, Receiver<LedgerNotice>) {
    let (tell, told) = channel();
    let db = open_owner(&place.file(), false, sqlite::PAGE_SIZE).unwrap();
    let seen = db.keys_seen().unwrap();
    let handle = spawn(db, Duties { seen, ..duties }, move |notice| drop(tell.send(notice))).unwrap();
    (handle, told)
}

/// A ledger that counts its syncs.
struct Syncing {
    db: Sqlite,
    syncs: Arc<AtomicUsize>,
}

impl KeySource for Syncing {
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

impl WatchedLedger for Syncing {
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

impl Store for Syncing {
    fn append(&mut self, rows: &[Row]) -> Result<Written, StoreError> {
        Store::append(&mut self.db, rows)
    }
    fn sync(&mut self) -> Result<(), StoreError> {
        self.syncs.fetch_add(1, Ordering::SeqCst);
        Store::sync(&mut self.db)
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
        self.db.append_missing(rows)
    }
}
