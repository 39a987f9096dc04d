//! Sums by user and by session, in a file, and how long reports out of many rows take.

use super::super::api::{PEOPLE_MAX, REST};
use super::*;

fn of(user: &str, session: &str, admitted: u64, out: u64) -> Row {
    let name = |text: &str| (!text.is_empty()).then(|| Arc::from(text));
    Row { user: name(user), session: name(session), ..row(A, admitted, "small", out) }
}

fn lines(db: &Sqlite, query: &Query) -> Vec<(String, u64, u64)> {
    let lines = db.usage(query).unwrap();
    lines.into_iter().map(|line| (line.name + &line.second.unwrap_or_default(), line.requests, line.out)).collect()
}

fn line(name: &str, requests: u64, out: u64) -> (String, u64, u64) {
    (name.to_string(), requests, out)
}

#[test]
fn users_and_sessions_are_summed_up_by_day_before_and_after_they_are_settled_and_folded() {
    let place = Place::new("people");
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
        assert!(db.usage(&Query { by: vec![By::User, By::Key], ..Query::default() }).is_err());
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
fn the_largest_keep_their_names_and_the_others_are_one() {
    let place = Place::new("largest");
    let mut db = place.owner();
    let many = PEOPLE_MAX as u64 * 3;
    let user = |n: u64| format!("u{n:05}");
    let mut rows: Vec<Row> = (0..many).map(|n| of(&user(n), "s", n, n)).collect();
    rows.extend((0..many).rev().step_by(7).map(|n| of(&user(n), "", n, 0)));
    for part in rows.chunks(500) {
        db.append(part).unwrap();
    }
    db.settle().unwrap();
    let stored = |sql: &str| {
        let other = rusqlite::Connection::open(place.file()).unwrap();
        other.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap() as u64
    };
    assert_eq!(stored("SELECT COUNT(*) FROM people WHERE who = 1 AND name != char(1)"), PEOPLE_MAX as u64);
    assert_eq!(stored("SELECT SUM(requests) FROM people WHERE who = 1"), rows.len() as u64);
    assert_eq!(stored("SELECT SUM(requests) FROM people WHERE who = 2"), many);
    let found = db.usage(&Query::by(By::User)).unwrap();
    let rest = found.iter().find(|line| line.name == REST).unwrap();
    assert_eq!((found.len(), found.iter().map(|line| line.requests).sum()), (PEOPLE_MAX + 1, rows.len() as u64));
    assert!(rest.requests > many / 2 && found.iter().all(|line| !line.name.is_empty()), "{rest:?}");
    assert!(found.iter().any(|line| line.name == user(many - 1)), "the largest of all");
    assert_eq!(db.verify().unwrap().differences, []);
}

#[test]
fn a_ledger_has_a_secret_of_its_own_that_stays() {
    let (place, other) = (Place::new("secret"), Place::new("secret-too"));
    let first = place.owner().hash_key().unwrap();
    assert_eq!(place.shared().hash_key().unwrap(), first);
    assert_ne!(other.owner().hash_key().unwrap(), first);
    assert_ne!(first.0, [0; 32]);
}

/// What the kernel says of this process, in kB.
fn memory(what: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(what)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// `ROWS=10000000 cargo test --lib -- --ignored --nocapture reports_out_of_many_rows`: prints how long each report takes,
/// and what a day of so many users costs in memory. A month of rows of 200 keys; on one day every user comes once.
#[test]
#[ignore = "takes minutes; prints what it measures"]
fn reports_out_of_many_rows() {
    let rows: u64 = std::env::var("ROWS").map_or(1_000_000, |text| text.parse().unwrap());
    let place = Place::new("many-rows");
    let mut db = place.owner();
    db.set_durable(false).unwrap();
    let models: Vec<Arc<str>> = ["small", "large", "huge"].map(Arc::from).to_vec();
    let targets: Vec<Arc<str>> = ["p/small", "p/large", "q/huge"].map(Arc::from).to_vec();
    let begun = Instant::now();
    let (mut batch, mut floods) = (Vec::new(), (0, 0));
    for n in 0..rows {
        let lot = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 17;
        let day = n * 30 / rows;
        // The last day is that of the flood.
        let user = if day == 29 { format!("{lot:016x}{n}") } else { format!("user{}", lot % 5000) };
        let kind = (lot % 3) as usize;
        batch.push(Row {
            key: key(&format!("key{:09}", lot % 200)),
            model: models[kind].clone(),
            target: targets[kind].clone(),
            group: format!("org/team{}", lot % 20).into(),
            client: if lot % 5 == 0 { Client::OTHER } else { Client::of_agent(b"curl/8") },
            endpoint: if lot % 2 == 0 { Dialect::Chat } else { Dialect::Messages },
            ..of(&user, &format!("session{}", lot % 100_000), day * DAY + n % DAY, lot % 1000)
        });
        if batch.len() == 256 || n + 1 == rows {
            if day == 29 && floods.0 == 0 {
                floods.0 = memory("VmRSS");
            }
            db.append(&batch).unwrap();
            batch.clear();
        }
    }
    floods.1 = memory("VmRSS");
    println!(
        "{rows} rows in {:?}; resident before the flood {} kB, after it {} kB",
        begun.elapsed(),
        floods.0,
        floods.1
    );
    drop(db);
    let db = place.shared();
    for by in [&[By::User][..], &[By::Session], &[By::Key], &[By::Day], &[By::Group, By::Client], &[By::User, By::Day]]
    {
        let begun = Instant::now();
        let lines = db.usage(&Query { by: by.to_vec(), ..Query::default() }).unwrap().len();
        println!("{by:?}: {lines} lines in {:?}", begun.elapsed());
    }
}
