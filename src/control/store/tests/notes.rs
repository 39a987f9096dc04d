//! Notes of key changes: audit lines, and answers to repeated requests.

use super::*;
use crate::store::note::{ANSWERS_KEPT_MS, Once};

fn note<'a>(what: &'static str, at: u64, once: Option<Once<'a>>) -> Note<'a> {
    Note { who: "the test", what, at: Unix(at), shown: &|key| format!("{{\"name\":\"{}\"}}", key.name), once }
}

#[test]
fn change_audit_line_and_answer_are_written_atomically() {
    let place = TempFolder::new("notes");
    let mut db = place.shared();
    let answer = |key: &KeyRecord| format!("issued {}", key.id);
    let once = |digest: u8| Some(Once { name: "n", digest: [digest; 32], answer: &answer });
    db.issue_key(&record(A, 5), &note("issue", 10, once(1))).unwrap();
    assert!(db.issue_key(&record(B, 6), &note("issue", 11, once(2))).is_err(), "the name belongs to another request");
    assert_eq!(all_keys(&db), [record(A, 5)], "a refused change must leave no trace");
    let known = db.answered("n", Unix(12)).unwrap().unwrap();
    assert_eq!((known.digest, known.answer), ([1; 32], format!("issued {A}")));
    assert_eq!(db.answered("other", Unix(12)).unwrap(), None);
    let refused = edit_key(&mut db, &key(A), Some(&note("edit", 13, None)), |_| Err::<(), ()>(()));
    assert_eq!(refused.unwrap(), Some(Err(())));
    let edited = edit_key(&mut db, &key(A), Some(&note("edit", 14, None)), |key| {
        key.name = "another".to_string();
        Ok::<(), ()>(())
    });
    assert!(edited.unwrap().unwrap().is_ok());
    let lines = db.audit(0, 10, usize::MAX).unwrap();
    let shown: Vec<_> = lines.iter().map(|line| (line.what.as_str(), line.at.0, line.before.is_some())).collect();
    assert_eq!(
        shown,
        [("edit", 14, true), ("issue", 10, false)],
        "the newest line comes first, and a refused change has none"
    );
    assert!(lines[0].before.as_ref().unwrap().contains("name of") && lines[0].after.contains("another"));
    assert!(lines.iter().all(|line| !line.after.contains("digest") && line.who == "the test" && line.key == A));
    assert_eq!(db.audit(0, 1, usize::MAX).unwrap(), lines[..1]);
}

#[test]
fn answer_and_its_name_are_kept_for_a_day() {
    let place = TempFolder::new("answers");
    let mut db = place.shared();
    let answer = |_: &KeyRecord| String::new();
    let once = || Some(Once { name: "n", digest: [1; 32], answer: &answer });
    db.issue_key(&record(A, 5), &note("issue", 10, once())).unwrap();
    assert!(db.answered("n", Unix(9 + ANSWERS_KEPT_MS)).unwrap().is_some());
    assert_eq!(db.answered("n", Unix(10 + ANSWERS_KEPT_MS)).unwrap(), None);
    db.issue_key(&record(B, 6), &note("issue", 10 + ANSWERS_KEPT_MS, once())).unwrap();
    assert_eq!((all_keys(&db).len(), db.audit(0, 10, usize::MAX).unwrap().len()), (2, 2));
}
