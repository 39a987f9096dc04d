//! Conversion of values of SQLite's columns, both ways.

use crate::policy::keys::KeyId;

pub(super) type Fallible<T> = rusqlite::Result<T>;

pub(super) fn key_id(row: &rusqlite::Row<'_>, column: usize) -> Fallible<KeyId> {
    let text = row.get_ref(column)?.as_str()?;
    KeyId::parse(text).ok_or_else(|| rusqlite::Error::InvalidColumnName(format!("`{text}` is not the id of a key")))
}

/// SQL about each column of the sums (`store::api::Sums`), separated by commas; `{}` is its name.
pub(super) fn sums(sql: &str) -> String {
    let columns = ["requests", "uncached_in", "cache_read", "cache_write", "out", "cost_nano"];
    columns.map(|column| sql.replace("{}", column)).join(", ")
}

/// Converts to SQLite's signed integers; Tollgate's values stay far below their maximum.
pub(super) fn int(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

pub(super) fn uint(row: &rusqlite::Row<'_>, column: usize) -> Fallible<u64> {
    let value: i64 = row.get(column)?;
    Ok(u64::try_from(value).unwrap_or(0))
}
