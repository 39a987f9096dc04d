//! The memory of alerts in the file.

use super::*;
use crate::store::alert_claims::{AlertClaim, AlertReport};
use crate::store::bounds::{ALERT_CLAIM, ALERT_KEPT};

#[test]
fn one_process_at_a_time_claims_a_subject() {
    let place = TempFolder::new("claims");
    let (mut one, mut other, now) = (place.owner(), place.shared(), Unix(10_000_000_000));
    let later = Unix(now.0 + ALERT_CLAIM.as_millis() as u64 + 1);
    assert_eq!(one.claim_alert("key/a", "one", now).unwrap(), AlertClaim::Ours(None));
    assert_eq!(other.claim_alert("key/a", "other", now).unwrap(), AlertClaim::Others);
    assert_eq!(other.claim_alert("key/b", "other", now).unwrap(), AlertClaim::Ours(None));
    one.release_alert("key/a", "one").unwrap();
    assert_eq!(other.claim_alert("key/a", "other", now).unwrap(), AlertClaim::Ours(None));
    // A claim ends with its time, and if the clock is set back. Its former holder does not end the next one.
    assert_eq!(one.claim_alert("key/a", "third", later).unwrap(), AlertClaim::Ours(None));
    one.release_alert("key/a", "other").unwrap();
    assert_eq!(one.claim_alert("key/a", "one", later).unwrap(), AlertClaim::Others);
    assert_eq!(one.claim_alert("key/a", "one", now).unwrap(), AlertClaim::Ours(None));
}

#[test]
fn last_report_about_a_subject_is_remembered_until_it_is_forgotten_or_old() {
    let place = TempFolder::new("reports");
    let now = Unix(10_000_000_000);
    let report = |since: u64, is_done: bool| AlertReport { id: format!("alert_{since}"), since, is_done };
    let last = |db: &mut Sqlite, subject: &str| {
        let claim = db.claim_alert(subject, "one", now).unwrap();
        db.release_alert(subject, "one").unwrap();
        let AlertClaim::Ours(last) = claim else { panic!("{claim:?}") };
        last
    };
    let mut db = place.owner();
    for (since, is_done) in [(1, false), (1, true), (2, true)] {
        db.note_alert("key/a", Some(&report(since, is_done)), now).unwrap();
        assert_eq!(last(&mut db, "key/a"), Some(report(since, is_done)));
    }
    drop(db);
    let mut db = place.owner();
    assert_eq!(last(&mut db, "key/a"), Some(report(2, true)));
    db.note_alert("key/b", Some(&report(3, true)), now).unwrap();
    db.note_alert("key/b", None, now).unwrap();
    assert_eq!((last(&mut db, "key/a").is_some(), last(&mut db, "key/b")), (true, None));
    let old = Unix(now.0 + ALERT_KEPT.as_millis() as u64 + 1);
    db.note_alert("key/b", Some(&report(4, true)), old).unwrap();
    assert_eq!((last(&mut db, "key/a"), last(&mut db, "key/b").is_some()), (None, true));
}
