//! Tables of a ledger in a file: the stored values, and the columns of the views.

use super::*;
use crate::policy::plan::caps::{Cap, Caps};
use crate::policy::usage::CostSource;
use rusqlite::Connection;

#[test]
fn ledger_of_another_version_is_refused_unchanged() {
    let place = TempFolder::new("version");
    place.owner().append(&[row(A, 5, "small", 1)]).unwrap();
    let file = Connection::open(place.file()).unwrap();
    let present = file.pragma_query_value(None, "user_version", |row| row.get::<_, i64>(0)).unwrap();
    for version in [present + 1, 99] {
        file.pragma_update(None, "user_version", version).unwrap();
        for mode in [Mode::Owner, Mode::Shared] {
            let error = Sqlite::open(&place.file(), mode).err().unwrap().to_string();
            assert!(error.contains("this ledger was written by another version of Tollgate"), "{error}");
        }
        assert_eq!(file.pragma_query_value(None, "user_version", |row| row.get::<_, i64>(0)).unwrap(), version);
    }
    file.pragma_update(None, "user_version", present).unwrap();
    assert_eq!(place.owner().count_rows().unwrap(), 1);
}

#[test]
fn edited_key_keeps_its_own_limits_and_capture() {
    let place = TempFolder::new("edited");
    let mut db = place.owner();
    db.insert_key(&record(A, 5)).unwrap();
    let limits: Caps = ["requests/window=none", "running=3"].iter().flat_map(|text| Cap::parse(text)).collect();
    for capture in [Some(Unix(7000)), None] {
        let edited = edit_key(&mut db, &record(A, 5).id, None, |key| {
            (key.disabled, key.limits, key.name) = (true, limits.clone(), "another".to_string());
            (key.plan, key.expires) = ("other".to_string(), Some(Unix(9)));
            key.scope.models_allowed = Some(vec!["m".to_string()]);
            key.capture = capture;
            Ok::<(), ()>(())
        });
        let edited = edited.unwrap().unwrap().unwrap();
        assert_eq!((edited.disabled, &edited.limits, edited.plan.as_str()), (true, &limits, "other"));
        assert_eq!(edited.capture, capture);
        assert_eq!(db.find_keys(&[edited.id]).unwrap(), std::slice::from_ref(&edited));
        assert_eq!(all_keys(&db), [edited]);
    }
}

#[test]
fn group_and_labels_of_a_key_are_stored_and_changed() {
    let place = TempFolder::new("belongs");
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
    let place = TempFolder::new("kinds");
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
    let sum = |group: &str, requests, out: u64| PastUse {
        target: Arc::default(),
        key: key(A),
        group: group.into(),
        model: "small".into(),
        at: Unix(0),
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
fn views_show_dates_queue_times_traces_and_agents() {
    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331";
    let place = TempFolder::new("views");
    let mut db = place.owner();
    let agent = RareNames {
        agent: Some("b1".into()),
        parent_agent: Some("a0".into()),
        asked: Some("large".into()),
        ..RareNames::default()
    };
    let both = RareNames { session: Some("s".into()), trace: Some(TRACE.into()), ..agent.clone() };
    let usage = Usage { cost_source: CostSource::Provider, ..row(A, 9, "small", 2).usage };
    let rows = [
        row(A, 5, "small", 1),
        Row { queued_ms: 1500, ..row(A, 6, "small", 1) },
        Row { names: names(None, None, Some(TRACE)), ..row(A, 7, "small", 1) },
        Row { names: agent.into(), ..row(A, 8, "small", 2) },
        Row { names: both.into(), queued_ms: 7, usage, ..row(A, 9, "small", 2) },
    ];
    db.append(&rows).unwrap();
    let other = Connection::open(place.file()).unwrap();
    let lines = |sql: &str| -> Vec<String> {
        let mut query = other.prepare(sql).unwrap();
        let lines = query.query_map([], |line| line.get(0)).unwrap();
        lines.map(Result::unwrap).collect()
    };
    assert_eq!(lines("SELECT admitted FROM rows")[0], "1970-01-01T00:00:00.005Z");
    assert_eq!(lines("SELECT day FROM sums")[0], "1970-01-01");
    assert_eq!(lines("SELECT CAST(queued_ms AS TEXT) FROM rows"), ["0", "1500", "0", "0", "7"]);
    assert_eq!(lines("SELECT cost_source FROM rows")[3..], ["prices", "provider"]);
    assert_eq!(lines("SELECT IFNULL(trace_id || '-' || span_id, '') FROM rows"), ["", "", TRACE, "", TRACE]);
    assert_eq!(
        lines("SELECT IFNULL(agent || ' of ' || parent_agent, '') FROM rows"),
        ["", "", "", "b1 of a0", "b1 of a0"]
    );
    assert_eq!(lines("SELECT IFNULL(asked, '') FROM rows"), ["", "", "", "large", "large"]);
    assert_eq!(exported(&mut db), rows);
    for settled in [false, true] {
        let lines = db.usage(&Query::by(By::Agent), None).unwrap();
        let lines: Vec<_> = lines.iter().map(|line| (&*line.name, line.requests, line.out)).collect();
        assert_eq!(lines, [("b1", 2, 4), ("", 3, 3)], "{settled}");
        assert_eq!(db.verify().unwrap().differences, []);
        db.settle().unwrap();
    }
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
