//! Knowledge of the file about the clocks of its writers: see [`WriterClocks`].

use super::super::note::AuditLine;
use super::super::writer_clocks::WriterClocks;
use super::value::{Fallible, int, uint};
use super::{groups, notes};
use crate::base::time::Unix;
use rusqlite::{Connection, OptionalExtension, params};

/// `accepted`, `held` and `confirmed` are those of [`WriterClocks`], `folded` is the newest folded row,
/// and rows up to the number `accepted_upto` are from before the present time was accepted.
pub(super) const TABLE: &str = "
CREATE TABLE moments (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID;
";

const ACCEPTED: &str = "accepted";
const ACCEPTED_UPTO: &str = "accepted_upto";
const HELD: &str = "held";
const CONFIRMED: &str = "confirmed";
const FOLDED: &str = "folded";

fn value(connection: &Connection, name: &str) -> Fallible<Option<u64>> {
    let mut query = connection.prepare_cached("SELECT value FROM moments WHERE name = ?1")?;
    query.query_row([name], |row| uint(row, 0)).optional()
}

fn set(connection: &Connection, name: &str, value: Option<u64>) -> Fallible<()> {
    match value {
        Some(value) => {
            let sql = "INSERT INTO moments VALUES (?1, ?2) ON CONFLICT DO UPDATE SET value = ?2";
            connection.execute(sql, params![name, int(value)])?
        }
        None => connection.execute("DELETE FROM moments WHERE name = ?1", [name])?,
    };
    Ok(())
}

/// See [`WriterClocks`].
pub(super) fn read(connection: &Connection) -> Fallible<WriterClocks> {
    let moment = |name| Fallible::Ok(value(connection, name)?.map(Unix));
    let newest = |row: &rusqlite::Row<'_>| row.get::<_, Option<i64>>(0);
    let newest = match value(connection, ACCEPTED_UPTO)? {
        None => connection.query_row("SELECT MAX(newest) FROM groups", [], newest)?,
        Some(upto) => connection.query_row("SELECT MAX(newest) FROM groups WHERE first > ?1", [int(upto)], newest)?,
    };
    let newest = newest.and_then(|at| u64::try_from(at).ok()).map(Unix);
    let accepted = moment(ACCEPTED)?;
    let newest = newest.max(accepted).max(moment(FOLDED)?).unwrap_or_default();
    Ok(WriterClocks { newest, accepted, held: moment(HELD)?, confirmed: moment(CONFIRMED)? })
}

/// Returns the number of the last row from before the present time was accepted.
pub(super) fn accepted_upto(connection: &Connection) -> Fallible<i64> {
    Ok(value(connection, ACCEPTED_UPTO)?.map_or(0, int))
}

/// Records that rows were folded. `newest` is the newest of those from after the present time was accepted. The next
/// row gets the number after the last one that is left.
pub(super) fn folded(connection: &Connection, newest: Unix) -> Fallible<()> {
    let known = value(connection, FOLDED)?.unwrap_or(0);
    if newest.0 > known {
        set(connection, FOLDED, Some(newest.0))?;
    }
    let last = u64::try_from(groups::last(connection)?).unwrap_or(0);
    match value(connection, ACCEPTED_UPTO)? {
        Some(upto) if upto > last => set(connection, ACCEPTED_UPTO, Some(last).filter(|last| *last > 0)),
        _ => Ok(()),
    }
}

/// Stores [`WriterClocks::held`] in the ledger.
pub(super) fn hold_fold(connection: &Connection, held: Option<Unix>) -> Fallible<()> {
    set(connection, HELD, held.map(|at| at.0))
}

/// Accepts the present time, with a line of the audit: existing rows do not count as newer.
pub(super) fn accept_clock(connection: &Connection, now: Unix, line: &AuditLine) -> Fallible<()> {
    set(connection, ACCEPTED, Some(now.0))?;
    let upto = u64::try_from(groups::last(connection)?).ok().filter(|upto| *upto > 0);
    set(connection, ACCEPTED_UPTO, upto)?;
    set(connection, FOLDED, None)?;
    notes::write_line(connection, line)
}

/// Continues folding after this usage record, with a line of the audit.
pub(super) fn confirm_fold(connection: &Connection, newest: Unix, line: &AuditLine) -> Fallible<()> {
    set(connection, CONFIRMED, Some(newest.0))?;
    set(connection, HELD, None)?;
    notes::write_line(connection, line)
}
