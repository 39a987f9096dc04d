//! Sums by user and by session in a file, and the duration of reports from many rows.

use super::super::api::{PEOPLE_MAX, REST};
use super::*;

fn of(user: &str, session: &str, admitted: u64, out: u64) -> Row {
    let name = |text: &str| (!text.is_empty()).then(|| Arc::from(text));
    let names = RareNames { user: name(user), session: name(session), ..RareNames::default() };
    Row { names: names.into(), ..row(A, admitted, "small", out) }
}

fn lines(db: &Sqlite, query: &Query) -> Vec<(String, u64, u64)> {
    let lines = db.usage(query, None).unwrap();
    lines.into_iter().map(|line| (line.name + &line.second.unwrap_or_default(), line.requests, line.out)).collect()
}

fn line(name: &str, requests: u64, out: u64) -> (String, u64, u64) {
    (name.to_string(), requests, out)
}

#[test]
fn users_and_sessions_are_summed_by_day() {
    let place = TempFolder::new("people");
    let mut db = place.owner();
    let rows = [
        of("ann", "s1", 5, 1),
        of("bob", "", 6, 2),
        of("", "s2", 7, 4),
        of("", "", 8, 8),
        of("ann", "s1", DAY + 5, 16),
    ];
    db.append(&rows[..4]).unwrap();
    db.append(&rows[4..]).unwrap();
    for step in 0..3 {
        let user = Query::by(By::User);
        assert_eq!(lines(&db, &user), [line("ann", 2, 17), line("", 2, 12), line("bob", 1, 2)], "{step}");
        let sessions = [line("s1", 2, 17), line("", 2, 10), line("s2", 1, 4)];
        assert_eq!(lines(&db, &Query::by(By::Session)), sessions, "{step}");
        let by_day = Query { by: vec![By::Day, By::User], ..Query::default() };
        let (first, second) = ("1970-01-01", "1970-01-02");
        let days = [("", first, 2, 12), ("ann", first, 1, 1), ("bob", first, 1, 2), ("ann", second, 1, 16)];
        assert_eq!(lines(&db, &by_day), days.map(|(name, day, n, out)| line(&format!("{day}{name}"), n, out)));
        let ann = Query { only: vec![(By::User, vec!["x".to_string(), "ann".to_string()])], ..Query::by(By::Day) };
        assert_eq!(lines(&db, &ann), [line(first, 1, 1), line(second, 1, 16)]);
        let late = Query { since: Some(Unix(DAY)), ..Query::by(By::User) };
        assert_eq!(lines(&db, &late), [line("ann", 1, 16)]);
        assert!(db.usage(&Query { by: vec![By::User, By::Key], ..Query::default() }, None).is_err());
        assert_eq!(db.verify().unwrap().differences, []);
        match step {
            0 => db.settle().unwrap(),
            _ => drop(db.fold(Unix(DAY), 100).unwrap()),
        }
    }
    assert_eq!(db.count_rows().unwrap(), 1);
    let other = rusqlite::Connection::open(place.file()).unwrap();
    other.execute("UPDATE people SET out = out + 1 WHERE name = 'ann' AND day = 1", []).unwrap();
    assert_eq!(db.verify().unwrap().differences[0].counter, "output of all users on 1970-01-02");
}

#[test]
fn largest_users_keep_their_names_and_others_are_merged() {
    let place = TempFolder::new("largest");
    let mut db = place.owner();
    let many = PEOPLE_MAX as u64 * 3;
    let user = |n: u64| format!("u{n:05}");
    let mut rows: Vec<Row> = (0..many).map(|n| of(&user(n), "s", n, n)).collect();
    rows.extend((0..many).rev().step_by(7).map(|n| of(&user(n), "", n, 0)));
    let by_day = Query { by: vec![By::Day, By::User], ..Query::default() };
    for part in rows.chunks(500) {
        db.append(part).unwrap();
        for query in [Query::by(By::User), by_day.clone()] {
            let found = db.usage(&query, None).unwrap();
            let requests: u64 = found.iter().map(|line| line.requests).sum();
            assert!(found.len() <= PEOPLE_MAX + 1, "{} lines with unsettled rows", found.len());
            assert_eq!(requests, db.count_rows().unwrap());
        }
    }
    db.settle().unwrap();
    let stored = |sql: &str| {
        let other = rusqlite::Connection::open(place.file()).unwrap();
        other.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap() as u64
    };
    assert_eq!(stored("SELECT COUNT(*) FROM people WHERE who = 1 AND name != char(1)"), PEOPLE_MAX as u64);
    assert_eq!(stored("SELECT SUM(requests) FROM people WHERE who = 1"), rows.len() as u64);
    assert_eq!(stored("SELECT SUM(requests) FROM people WHERE who = 2"), many);
    let found = db.usage(&Query::by(By::User), None).unwrap();
    let rest = found.iter().find(|line| line.name == REST).unwrap();
    assert_eq!((found.len(), found.iter().map(|line| line.requests).sum()), (PEOPLE_MAX + 1, rows.len() as u64));
    assert!(rest.requests > many / 2 && found.iter().all(|line| !line.name.is_empty()), "{rest:?}");
    assert!(found.iter().any(|line| line.name == user(many - 1)), "the largest user must have a line");
    assert_eq!(db.verify().unwrap().differences, []);
}

#[test]
fn ledger_keeps_its_own_secret() {
    let (place, other) = (TempFolder::new("secret"), TempFolder::new("secret-too"));
    let first = place.owner().hash_key().unwrap();
    assert_eq!(place.shared().hash_key().unwrap(), first);
    assert_ne!(other.owner().hash_key().unwrap(), first);
    assert_ne!(first.0, [0; 32]);
}

/// Returns a memory value of this process from the kernel, in kB.
fn memory(what: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(what)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// `cargo test --lib -- --ignored --nocapture reports_out_of_many_rows` prints how long reports take from ten million
/// rows (a month; 20,000 of them are written individually, the others are copies on other days), and how much memory a
/// day with `USERS` users takes.
#[test]
#[ignore = "takes minutes; prints what it measures"]
fn reports_out_of_many_rows() {
    const AS_THEY_COME: u64 = 20_000;
    let place = TempFolder::new("many-rows");
    let mut db = place.owner();
    db.set_durable(false).unwrap();
    let lot = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 17;
    let mixed = |n: u64| Row {
        key: key(&format!("key{:09}", lot(n) % 200)),
        model: ["small", "large", "huge"][(lot(n) % 3) as usize].into(),
        group: format!("org/team{}", lot(n) % 20).into(),
        client: if lot(n).is_multiple_of(5) { Client::OTHER } else { Client::of_agent(b"curl/8") },
        endpoint: if lot(n).is_multiple_of(2) { ModelEndpoint::CHAT } else { ModelEndpoint::MESSAGES },
        ..of(&format!("user{}", lot(n) % 5000), &format!("session{}", lot(n) % 9000), n, lot(n) % 1000)
    };
    let rows: Vec<Row> = (0..AS_THEY_COME).map(mixed).collect();
    rows.chunks(256).for_each(|rows| db.append(rows).unwrap());
    db.settle().unwrap();
    let other = rusqlite::Connection::open(place.file()).unwrap();
    let copies = "WITH RECURSIVE copies(k) AS (SELECT 1 UNION ALL SELECT k + 1 FROM copies WHERE k < {}) INSERT INTO";
    let copy = |last: u64, into: &str| other.execute_batch(&(copies.replace("{}", &last.to_string()) + into)).unwrap();
    copy(
        499,
        " groups SELECT first + k * 20000, last + k * 20000, oldest + (k % 30) * 86400000, newest + (k % 30) * 86400000,
         names, rows FROM groups, copies",
    );
    copy(
        29,
        " days SELECT day + k, key, model, target, group_path, endpoint, client, requests * 17, uncached_in * 17,
         cache_read * 17, cache_write * 17, out * 17, cost_nano * 17 FROM days, copies",
    );
    copy(
        29,
        " people SELECT day + k, who, name, requests * 17, uncached_in * 17, cache_read * 17, cache_write * 17,
         out * 17, cost_nano * 17 FROM people, copies",
    );
    other.execute_batch("UPDATE counted SET upto = (SELECT MAX(last) FROM groups)").unwrap();
    // As a running gateway leaves it.
    other.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    println!("{} rows", place.shared().count_rows().unwrap());
    for by in [&[By::User][..], &[By::Session], &[By::Key], &[By::Day], &[By::Group, By::Client], &[By::User, By::Day]]
    {
        let begun = Instant::now();
        let lines = place.shared().usage(&Query { by: by.to_vec(), ..Query::default() }, None).unwrap().len();
        println!("{by:?}: {lines} lines in {:?}", begun.elapsed());
    }
    drop(db);
    let mut db = place.owner();
    let users: u64 = std::env::var("USERS").map_or(100_000, |text| text.parse().unwrap());
    for flood in [false, true] {
        let before = memory("VmRSS");
        for n in (0..users).step_by(256) {
            let name = |n: u64| if flood { format!("{:016x}", lot(n)) } else { "one".to_string() };
            let batch: Vec<Row> = (n..n + 256).map(|n| of(&name(n), &name(n), 50 * DAY + n, 1)).collect();
            db.append(&batch).unwrap();
        }
        let whom = if flood { "as many users" } else { "one user" };
        println!("{users} rows of {whom}: {before} kB became {} kB", memory("VmRSS"));
    }
}
