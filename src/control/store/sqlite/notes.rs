//! Audit lines and answers to repeated requests: written in the transaction that changes a key.

use super::super::note::{ANSWERS_KEPT_MS, AUDIT_MAX, Answered, AuditLine, Note};
use super::value::{Fallible, int, uint};
use crate::base::time::Unix;
use crate::policy::keys::KeyRecord;
use rusqlite::{Connection, OptionalExtension, params};

/// Audit lines, and answers by the name of their request.
pub(super) const TABLES: &str = "
CREATE TABLE audit (
    number INTEGER PRIMARY KEY, at INTEGER NOT NULL, who TEXT NOT NULL, what TEXT NOT NULL, key TEXT NOT NULL,
    before TEXT, after TEXT NOT NULL
) STRICT;
CREATE TABLE answers (
    once TEXT PRIMARY KEY, at INTEGER NOT NULL, digest BLOB NOT NULL, answer TEXT NOT NULL
) STRICT, WITHOUT ROWID;
";

/// Writes the audit line and answer of a change of a key.
pub(super) fn write(
    connection: &Connection,
    note: &Note<'_>,
    before: Option<&KeyRecord>,
    after: &KeyRecord,
) -> Fallible<()> {
    write_line(connection, &note.line(before, after))?;
    let (Some(once), at) = (&note.once, note.at) else { return Ok(()) };
    connection.execute("DELETE FROM answers WHERE at <= ?1", [int(at.0.saturating_sub(ANSWERS_KEPT_MS))])?;
    let sql = "INSERT INTO answers (once, at, digest, answer) VALUES (?1, ?2, ?3, ?4)";
    connection.execute(sql, params![once.name, int(at.0), once.digest, (once.answer)(after)])?;
    Ok(())
}

/// Writes a line of the audit.
pub(super) fn write_line(connection: &Connection, line: &AuditLine) -> Fallible<()> {
    let AuditLine { at, who, what, key, before, after } = line;
    let sql = "INSERT INTO audit (at, who, what, key, before, after) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    connection.execute(sql, params![int(at.0), who, what, key, before, after])?;
    connection.execute("DELETE FROM audit WHERE number <= last_insert_rowid() - ?1", [int(AUDIT_MAX)])?;
    Ok(())
}

/// Returns the answer given under an idempotency name within the last day.
pub(super) fn answered(connection: &Connection, once: &str, now: Unix) -> Fallible<Option<Answered>> {
    let sql = "SELECT digest, answer FROM answers WHERE once = ?1 AND at > ?2";
    let since = int(now.0.saturating_sub(ANSWERS_KEPT_MS));
    let read = |row: &rusqlite::Row<'_>| Ok(Answered { digest: row.get(0)?, answer: row.get(1)? });
    connection.query_row(sql, params![once, since], read).optional()
}

/// See [`crate::store::ledger::Ledger::audit`].
pub(super) fn audit(connection: &Connection, from: u64, most: u64, bytes: usize) -> Fallible<Vec<AuditLine>> {
    let sql = "SELECT at, who, what, key, before, after FROM audit ORDER BY number DESC LIMIT ?1 OFFSET ?2";
    let mut query = connection.prepare_cached(sql)?;
    let (mut rows, mut lines, mut length) = (query.query([int(most), int(from)])?, Vec::new(), 0);
    while let Some(row) = rows.next()? {
        let line = AuditLine {
            at: Unix(uint(row, 0)?),
            who: row.get(1)?,
            what: row.get(2)?,
            key: row.get(3)?,
            before: row.get(4)?,
            after: row.get(5)?,
        };
        let is_last = length >= bytes;
        length += line.text_bytes();
        lines.push(line);
        if is_last {
            break;
        }
    }
    Ok(lines)
}
