//! Conversion of ledgers of earlier versions.

use super::*;
use crate::policy::plan::LimitOverrides;
use rusqlite::Connection;

/// Converts the tables from the present version to the fifth; the views do not matter.
const BACK_TO_THE_FIFTH: &str = "DROP TABLE audit; DROP TABLE answers;
    ALTER TABLE keys DROP COLUMN grp; ALTER TABLE keys DROP COLUMN labels; ALTER TABLE keys DROP COLUMN capture;
    CREATE TABLE former_days AS SELECT day, key, model, target, requests, uncached_in, cache_read, cache_write, out,
    cost_nano FROM days; DROP TABLE folded; DROP VIEW sums; DROP VIEW parts; DROP VIEW people_parts; DROP TABLE people;
    DROP TABLE secrets; DROP TABLE days;
    CREATE TABLE folded (
        day INTEGER NOT NULL, key TEXT NOT NULL, model TEXT NOT NULL, target TEXT NOT NULL,
        requests INTEGER NOT NULL, uncached_in INTEGER NOT NULL, cache_read INTEGER NOT NULL,
        cache_write INTEGER NOT NULL, out INTEGER NOT NULL, cost_nano INTEGER NOT NULL,
        PRIMARY KEY (day, key, model, target)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE days (
        day INTEGER NOT NULL, key TEXT NOT NULL, model TEXT NOT NULL, target TEXT NOT NULL,
        requests INTEGER NOT NULL, uncached_in INTEGER NOT NULL, cache_read INTEGER NOT NULL,
        cache_write INTEGER NOT NULL, out INTEGER NOT NULL, cost_nano INTEGER NOT NULL,
        PRIMARY KEY (day, key, model, target)
    ) STRICT, WITHOUT ROWID;
    INSERT INTO days SELECT * FROM former_days; DROP TABLE former_days;
    CREATE VIEW sums AS SELECT * FROM days; CREATE VIEW parts AS SELECT * FROM days; PRAGMA user_version = 5;";

/// Converts the tables from the fifth version to the first.
const BACK_TO_THE_FIRST: &str = "ALTER TABLE keys DROP COLUMN former; ALTER TABLE keys DROP COLUMN disabled;
    ALTER TABLE keys DROP COLUMN limits; DROP TABLE folded; DROP VIEW sums; DROP VIEW parts;
    DROP TABLE counted; CREATE TABLE old AS SELECT number, unhex(substr(id, 5)) AS request, key,
    unixepoch(admitted) * 1000 AS admitted, model, target, endpoint, stream, status, input AS uncached_in, cache_read,
    cache_write, output AS out, source, cost_nano, attempts, micros FROM rows;
    DROP VIEW rows; DROP TABLE groups; ALTER TABLE old RENAME TO rows; PRAGMA user_version = 1";

/// Converts the tables from the fifth version to the third.
const BACK_TO_THE_THIRD: &str = "ALTER TABLE keys DROP COLUMN disabled; ALTER TABLE keys DROP COLUMN limits;
    DROP VIEW rows; DROP VIEW sums; DROP VIEW parts; PRAGMA user_version = 3;
    CREATE VIEW rows AS SELECT first AS number FROM groups; CREATE VIEW sums AS SELECT * FROM days;";

/// Converts the tables from the fifth version to the fourth, whose view has no column for the time in the queue.
const BACK_TO_THE_FOURTH: &str = "DROP VIEW rows; CREATE VIEW rows AS SELECT first AS number FROM groups;
    PRAGMA user_version = 4";

#[test]
fn fourth_version_is_converted_to_store_queue_times() {
    let place = Place::new("fourth");
    place.owner().append(&[row(A, 5, "small", 1)]).unwrap();
    let old = Connection::open(place.file()).unwrap();
    old.execute_batch(BACK_TO_THE_FIFTH).unwrap();
    old.execute_batch(BACK_TO_THE_FOURTH).unwrap();
    drop(old);
    let mut db = place.owner();
    let waited = Row { queued_ms: 1500, ..row(A, 6, "small", 1) };
    db.append(std::slice::from_ref(&waited)).unwrap();
    let other = Connection::open(place.file()).unwrap();
    let seen = |number: i64| -> u64 {
        let sql = "SELECT queued_ms FROM rows WHERE number = ?1";
        other.query_row(sql, [number], |row| row.get::<_, i64>(0)).unwrap() as u64
    };
    assert_eq!((seen(1), seen(2)), (0, 1500));
    assert_eq!(exported(&mut db), [row(A, 5, "small", 1), waited]);
}

#[test]
fn third_version_is_converted_with_keys_without_own_limits() {
    let place = Place::new("third");
    place.owner().append(&[row(A, 5, "small", 1)]).unwrap();
    place.shared().insert_key(&record(A, 5)).unwrap();
    let old = Connection::open(place.file()).unwrap();
    old.execute_batch(BACK_TO_THE_FIFTH).unwrap();
    old.execute_batch(BACK_TO_THE_THIRD).unwrap();
    drop(old);
    let mut db = place.owner();
    assert_eq!(all_keys(&db), [record(A, 5)]);
    let limits = LimitOverrides { requests: Some(0), concurrency: Some(3), ..LimitOverrides::default() };
    let edited = edit_key(&mut db, &record(A, 5).id, None, |key| {
        (key.disabled, key.limits, key.name) = (true, limits, "another".to_string());
        (key.plan, key.expires) = ("other".to_string(), Some(Unix(9)));
        key.scope.models_allowed = Some(vec!["m".to_string()]);
        Ok::<(), ()>(())
    });
    let edited = edited.unwrap().unwrap().unwrap();
    assert_eq!((edited.disabled, edited.limits, edited.plan.as_str()), (true, limits, "other"));
    assert_eq!(db.find_keys(&[edited.id]).unwrap(), std::slice::from_ref(&edited));
    assert_eq!(all_keys(&db), [edited]);
    assert_eq!((db.count_rows().unwrap(), db.verify().unwrap().differences), (1, vec![]));
}

#[test]
fn first_version_is_converted() {
    let place = Place::new("migrate");
    place.owner().append(&[row(A, 5, "small", 1)]).unwrap();
    place.shared().insert_key(&record(A, 5)).unwrap();
    let old = Connection::open(place.file()).unwrap();
    old.execute_batch(BACK_TO_THE_FIFTH).unwrap();
    old.execute_batch(BACK_TO_THE_FIRST).unwrap();
    drop(old);
    let mut db = place.owner();
    assert_eq!(all_keys(&db), [record(A, 5)]);
    let verdict = db.verify().unwrap();
    assert_eq!((verdict.rows, verdict.differences), (1, vec![]));
    db.append(&[row(A, 5, "small", 1)]).unwrap();
    assert_eq!(db.usage(&Query::by(By::Key), None).unwrap()[0].requests, 2);
}

#[test]
fn third_version_gets_the_sql_views() {
    let place = Place::new("views-again");
    place.owner().append(&[row(A, 5, "small", 1)]).unwrap();
    let old = Connection::open(place.file()).unwrap();
    old.execute_batch(BACK_TO_THE_FIFTH).unwrap();
    old.execute_batch(BACK_TO_THE_THIRD).unwrap();
    drop(old);
    let db = place.owner();
    assert_eq!(db.usage(&Query::by(By::Day), None).unwrap()[0].name, "1970-01-01");
    let other = Connection::open(place.file()).unwrap();
    let line = |sql: &str| other.query_row(sql, [], |line| line.get::<_, String>(0)).unwrap();
    assert_eq!(
        (line("SELECT admitted FROM rows"), line("SELECT day FROM sums")),
        ("1970-01-01T00:00:00.005Z".to_string(), "1970-01-01".to_string())
    );
}

/// A file of the fifth version, written by a gateway of that version: five rows that were folded, then five more, the
/// last two of which are not in the sums, since the process was killed.
const FIFTH: &str = include_str!("../../../tests/fixtures/ledger/format5.sql");

#[test]
fn fifth_version_keeps_its_sums_and_known_endpoints() {
    let place = Place::new("fifth");
    let old = Connection::open(place.file()).unwrap();
    old.execute_batch(FIFTH).unwrap();
    let line = |sql: &str| -> Vec<i64> {
        let sums = "SUM(requests), SUM(uncached_in), SUM(out), SUM(cost_nano)";
        let mut query = old.prepare(&sql.replace("{}", sums)).unwrap();
        let lines = query.query_map([], |row| (0..4).map(|at| row.get(at)).collect::<Result<Vec<i64>, _>>()).unwrap();
        lines.flat_map(Result::unwrap).collect()
    };
    let every = "SELECT {} FROM parts GROUP BY day, key, model, target ORDER BY day, key, model, target";
    let (before, behind) = (line(every), line("SELECT {} FROM days"));
    assert_eq!((before.len(), behind[0]), (4 * 6, 8), "the file must be unchanged");
    let mut db = place.owner();
    assert_eq!(line(every), before);
    assert_eq!(old.pragma_query_value(None, "user_version", |row| row.get::<_, i64>(0)).unwrap(), 11);
    assert_eq!(db.verify().unwrap().differences, []);
    let endpoint = |name: &str| line(&format!("SELECT {{}} FROM parts WHERE endpoint = '{name}'"))[0];
    assert_eq!([endpoint(""), endpoint("chat"), endpoint("messages")], [5, 2, 3]);
    let keys = all_keys(&db);
    assert!(keys.iter().all(|key| key.group.is_none() && key.labels.is_empty()) && keys.len() == 2);
    let mut entries = Vec::new();
    db.export(&mut |entry| {
        entries.push(entry);
        true
    })
    .unwrap();
    assert_eq!(entries.len(), 3 + 5);
    assert!(entries.iter().all(|entry| match entry {
        Entry::Folded(key, _) => key.endpoint.is_empty() && key.group.is_empty() && key.client.is_empty(),
        Entry::Request(row) => row.group.is_empty() && row.names.user.is_none() && row.client.is_none(),
    }));
}

/// Converts the tables from the present version to the tenth.
const BACK_TO_THE_TENTH: &str = "ALTER TABLE keys DROP COLUMN capture; PRAGMA user_version = 10;";

#[test]
fn tenth_version_is_converted_to_store_captures() {
    let place = Place::new("tenth");
    place.owner().insert_key(&record(A, 5)).unwrap();
    Connection::open(place.file()).unwrap().execute_batch(BACK_TO_THE_TENTH).unwrap();
    let mut db = place.owner();
    assert_eq!(all_keys(&db), [record(A, 5)]);
    for capture in [Some(Unix(7000)), None] {
        let edited = edit_key(&mut db, &record(A, 5).id, None, |key| {
            key.capture = capture;
            Ok::<(), ()>(())
        });
        assert_eq!(edited.unwrap().unwrap().unwrap(), KeyRecord { capture, ..record(A, 5) });
        assert_eq!(all_keys(&db), [KeyRecord { capture, ..record(A, 5) }]);
    }
}

#[test]
fn group_and_labels_of_a_key_are_stored_and_changed() {
    let place = Place::new("belongs");
    let mut db = place.owner();
    let labels = vec![("cost".to_string(), "7 \u{fc}".to_string()), ("team".to_string(), "search".to_string())];
    let of_labs = KeyRecord { group: Some("labs".to_string()), labels, ..record(A, 5) };
    db.insert_key(&of_labs).unwrap();
    assert_eq!(all_keys(&db), std::slice::from_ref(&of_labs));
    let edited = edit_key(&mut db, &of_labs.id, None, |key| {
        (key.group, key.labels) = (None, Vec::new());
        Ok::<(), ()>(())
    });
    assert_eq!(edited.unwrap().unwrap().unwrap(), record(A, 5));
    assert_eq!(db.find_keys(&[of_labs.id]).unwrap(), [record(A, 5)]);
}

#[test]
fn sums_separate_groups_endpoints_and_clients() {
    let place = Place::new("kinds");
    let mut db = place.owner();
    let curl = Client::of_agent(b"curl/8");
    let rows = [
        row(A, 5, "small", 1),
        Row { group: "labs/a".into(), ..row(A, 6, "small", 2) },
        Row { group: "labs/a".into(), client: curl, ..row(A, 7, "small", 4) },
        Row { endpoint: ModelEndpoint::MESSAGES, ..row(A, 8, "small", 8) },
        Row { group: "labs/a".into(), ..row(A, 9, "small", 16) },
    ];
    db.append(&rows).unwrap();
    let sum = |group: &str, requests, out: u64| DaySum {
        key: key(A),
        group: group.into(),
        day: Unix(0),
        requests,
        tokens: requests * 15 + out,
        cost_nano: out * 1000,
    };
    let other = Connection::open(place.file()).unwrap();
    for step in 0..3 {
        assert_eq!(db.day_sums(Unix(0)).unwrap(), [sum("", 2, 9), sum("labs/a", 3, 22)], "{step}");
        let sql = "SELECT group_path, endpoint, client, requests FROM sums";
        let mut query = other.prepare(sql).unwrap();
        let lines = query.query_map([], |line| {
            let text = |at| line.get::<_, String>(at);
            Ok((text(0)?, text(1)?, text(2)?, line.get::<_, i64>(3)?))
        });
        let lines: Vec<_> = lines.unwrap().map(Result::unwrap).collect();
        let kinds =
            [("", "chat", "", 1), ("", "messages", "", 1), ("labs/a", "chat", "", 2), ("labs/a", "chat", "curl", 1)];
        assert_eq!(lines, kinds.map(|(group, endpoint, client, n)| (group.into(), endpoint.into(), client.into(), n)));
        assert_eq!(db.verify().unwrap().differences, []);
        match step {
            0 => db.settle().unwrap(),
            _ => drop(db.fold(Unix(DAY), 100).unwrap()),
        }
    }
    assert_eq!(db.count_rows().unwrap(), 0);
}

#[test]
fn seventh_version_is_converted_to_store_traces() {
    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331";
    let place = Place::new("seventh");
    place.owner().append(&[row(A, 5, "small", 1)]).unwrap();
    let old = Connection::open(place.file()).unwrap();
    old.execute_batch(BACK_TO_THE_TENTH).unwrap();
    old.execute_batch("DROP VIEW rows; CREATE VIEW rows AS SELECT 1; PRAGMA user_version = 7").unwrap();
    drop(old);
    let mut db = place.owner();
    let traced = Row { names: names(None, None, Some(TRACE)), ..row(A, 6, "small", 1) };
    let named = Row { names: names(Some("ann"), None, Some(TRACE)), queued_ms: 7, ..traced.clone() };
    db.append(&[traced.clone(), named.clone()]).unwrap();
    let other = Connection::open(place.file()).unwrap();
    let mut query = other.prepare("SELECT trace_id || '-' || span_id FROM rows ORDER BY number").unwrap();
    let seen: Vec<Option<String>> = query.query_map([], |line| line.get(0)).unwrap().map(Result::unwrap).collect();
    assert_eq!(seen, [None, Some(TRACE.to_string()), Some(TRACE.to_string())]);
    assert_eq!(exported(&mut db), [row(A, 5, "small", 1), traced, named]);
    assert_eq!(db.verify().unwrap().differences, []);
    let people = db.usage(&Query::by(By::User), None).unwrap();
    assert!(people.iter().any(|line| line.name == "ann" && line.requests == 1), "{people:?}");
}

#[test]
fn ninth_version_is_converted_to_store_agents() {
    let place = Place::new("ninth");
    let mut db = place.owner();
    db.append(&[row(A, 5, "small", 1)]).unwrap();
    // A row of that version that no sum contains yet.
    db.append(&[Row { names: names(Some("ann"), None, Some("t-s")), ..row(A, 6, "small", 1) }]).unwrap();
    drop(db);
    let old = Connection::open(place.file()).unwrap();
    old.execute_batch(BACK_TO_THE_TENTH).unwrap();
    old.execute_batch("DROP VIEW people_parts; DROP VIEW rows; CREATE VIEW rows AS SELECT 1; PRAGMA user_version = 9")
        .unwrap();
    drop(old);
    let mut db = place.owner();
    let (own, parent) = (RareNames { agent: Some("b1".into()), ..RareNames::default() }, Some("a0".into()));
    let agent = Row { names: RareNames { parent_agent: parent, ..own.clone() }.into(), ..row(A, 7, "small", 2) };
    let names = RareNames { session: Some("s".into()), ..own };
    let named = Row { names: names.into(), queued_ms: 7, ..agent.clone() };
    db.append(&[agent.clone(), named.clone()]).unwrap();
    let other = Connection::open(place.file()).unwrap();
    let mut query = other.prepare("SELECT agent, parent_agent FROM rows ORDER BY number").unwrap();
    let seen = query.query_map([], |line| Ok([line.get(0)?, line.get(1)?])).unwrap().map(Result::unwrap);
    let text = |name: &str| Some(name.to_string());
    let want = [[None, None], [None, None], [text("b1"), text("a0")], [text("b1"), None]];
    assert_eq!(seen.collect::<Vec<[Option<String>; 2]>>(), want);
    for settled in [false, true] {
        let lines = db.usage(&Query::by(By::Agent), None).unwrap();
        let lines: Vec<_> = lines.iter().map(|line| (&*line.name, line.requests, line.out)).collect();
        assert_eq!(lines, [("b1", 2, 4), ("", 2, 2)], "{settled}");
        assert_eq!(db.verify().unwrap().differences, []);
        db.settle().unwrap();
    }
    assert_eq!(exported(&mut db)[2..], [agent, named]);
}

fn exported(db: &mut Sqlite) -> Vec<Row> {
    let mut rows = Vec::new();
    db.export(&mut |entry| {
        rows.extend(if let Entry::Request(row) = entry { Some(row) } else { None });
        true
    })
    .unwrap();
    rows
}

#[test]
fn eighth_version_is_converted_with_its_newest_record() {
    let place = Place::new("eighth");
    let mut db = place.owner();
    db.append(&[row(A, 5 * DAY + 7, "small", 1)]).unwrap();
    db.fold(Unix(6 * DAY), 100).unwrap();
    drop(db);
    let old = Connection::open(place.file()).unwrap();
    old.execute_batch(BACK_TO_THE_TENTH).unwrap();
    old.execute_batch("DROP TABLE moments; PRAGMA user_version = 8").unwrap();
    drop(old);
    let mut db = place.owner();
    assert_eq!(db.moments().unwrap().newest, Unix(5 * DAY), "only the day of folded rows is known");
    db.append(&[row(A, 5 * DAY + 8, "small", 1)]).unwrap();
    assert_eq!(db.moments().unwrap().newest, Unix(5 * DAY + 8));
}
