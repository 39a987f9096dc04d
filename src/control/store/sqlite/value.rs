//! Conversion of values of SQLite's columns, both ways.

use crate::policy::keys::KeyId;

pub(super) type Fallible<T> = rusqlite::Result<T>;

pub(super) fn key_id(row: &rusqlite::Row<'_>, column: usize) -> Fallible<KeyId> {
    let text = row.get_ref(column)?.as_str()?;
    KeyId::parse(text).ok_or_else(|| rusqlite::Error::InvalidColumnName(format!("`{text}` is not the id of a key")))
}

/// Converts to SQLite's signed integers; Tollgate's values stay far below their maximum.
pub(super) fn int(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

pub(super) fn uint(row: &rusqlite::Row<'_>, column: usize) -> Fallible<u64> {
    let value: i64 = row.get(column)?;
    Ok(u64::try_from(value).unwrap_or(0))
}
