//! The memory of alerts in the file: see [`crate::store::alerts`].

use super::super::alert_claims::{AlertClaim, AlertReport};
use super::value::{Fallible, int, uint};
use crate::base::time::Unix;
use crate::store::bounds::{ALERT_CLAIM, ALERT_KEPT};
use rusqlite::{Connection, OptionalExtension, params};

/// The last report about each subject, and the claims of subjects, each with the time of its end.
pub(super) const TABLES: &str = "
CREATE TABLE alerts (
    subject TEXT PRIMARY KEY, id TEXT NOT NULL, since INTEGER NOT NULL, done INTEGER NOT NULL, at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE alert_claims (
    subject TEXT PRIMARY KEY, holder TEXT NOT NULL, ends INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
";

/// See [`crate::store::ledger::Ledger::claim_alert`].
pub(super) fn claim(connection: &Connection, subject: &str, holder: &str, now: Unix) -> Fallible<AlertClaim> {
    let (now, ends) = (int(now.0), int(now.0.saturating_add(ALERT_CLAIM.as_millis() as u64)));
    // A claim that ends later was made before the clock was set back.
    let sql = "INSERT INTO alert_claims VALUES (?1, ?2, ?3) ON CONFLICT DO UPDATE SET holder = ?2, ends = ?3
        WHERE ends NOT BETWEEN ?4 AND ?3";
    if connection.execute(sql, params![subject, holder, ends, now])? == 0 {
        return Ok(AlertClaim::Others);
    }
    let read =
        |row: &rusqlite::Row<'_>| Ok(AlertReport { id: row.get(0)?, since: uint(row, 1)?, is_done: row.get(2)? });
    let last = connection.query_row("SELECT id, since, done FROM alerts WHERE subject = ?1", [subject], read);
    Ok(AlertClaim::Ours(last.optional()?))
}

/// See [`crate::store::ledger::Ledger::note_alert`].
pub(super) fn note(connection: &Connection, subject: &str, reported: Option<&AlertReport>, now: Unix) -> Fallible<()> {
    let old = int(now.0.saturating_sub(ALERT_KEPT.as_millis() as u64));
    connection.execute("DELETE FROM alerts WHERE subject = ?1 OR at < ?2", params![subject, old])?;
    if let Some(AlertReport { id, since, is_done }) = reported {
        let sql = "INSERT INTO alerts VALUES (?1, ?2, ?3, ?4, ?5)";
        connection.execute(sql, params![subject, id, int(*since), is_done, int(now.0)])?;
    }
    Ok(())
}

/// See [`crate::store::ledger::Ledger::release_alert`].
pub(super) fn release(connection: &Connection, subject: &str, holder: &str) -> Fallible<()> {
    connection.execute("DELETE FROM alert_claims WHERE subject = ?1 AND holder = ?2", [subject, holder]).map(drop)
}
