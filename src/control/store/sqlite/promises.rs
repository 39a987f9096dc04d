//! Usage records of requests under strict limits that still run: each at its whole reservation. The record that a
//! request leaves replaces its promise in the same transaction. Promises that a killed gateway leaves are appended when
//! the next gateway opens the file.

use super::value::Fallible;
use crate::policy::row::Row;
use rusqlite::{Connection, params};
use std::collections::HashSet;

/// Promises by the id of their request.
pub(super) const TABLE: &str =
    "CREATE TABLE promises (request BLOB PRIMARY KEY, record TEXT NOT NULL) STRICT, WITHOUT ROWID;";

/// Requests that may have a promise in the file.
pub(super) type Promised = HashSet<[u8; 16]>;

/// Writes a promise, or replaces that of the same request.
pub(super) fn write(connection: &Connection, row: &Row) -> Fallible<()> {
    let text = serde_json::to_string(row).unwrap_or_default();
    let sql = "INSERT INTO promises VALUES (?1, ?2) ON CONFLICT DO UPDATE SET record = excluded.record";
    connection.prepare_cached(sql)?.execute(params![row.request, text]).map(drop)
}

/// Ends the promises of `rows`, and returns their requests.
pub(super) fn end(connection: &Connection, rows: &[Row], promised: &Promised) -> Fallible<Vec<[u8; 16]>> {
    if promised.is_empty() {
        return Ok(Vec::new());
    }
    let ended: Vec<_> = rows.iter().map(|row| row.request).filter(|request| promised.contains(request)).collect();
    let mut delete = connection.prepare_cached("DELETE FROM promises WHERE request = ?1")?;
    ended.iter().try_for_each(|request| delete.execute([request]).map(drop))?;
    Ok(ended)
}

/// All promises in the file.
pub(super) fn all(connection: &Connection) -> Fallible<Vec<Row>> {
    let mut query = connection.prepare("SELECT record FROM promises ORDER BY request")?;
    let found = query.query_map([], |row| row.get::<_, String>(0))?;
    // A record that cannot be read names no key that could be charged.
    let rows = found.map(|text| text.map(|text| serde_json::from_str(&text).ok()));
    Ok(rows.collect::<Fallible<Vec<Option<Row>>>>()?.into_iter().flatten().collect())
}
