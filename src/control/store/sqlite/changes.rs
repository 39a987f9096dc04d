//! Changes of the keys, by numbers that the file gives to every change of their table by any process. So a gateway
//! reads only changes, and not all keys. Also reads of keys in pieces.

use super::super::api::StoreError;
use super::super::follow::{KeyChanges, KeySource, KeysSeen};
use super::value::Fallible;
use super::{Sqlite, note_odd, read_key};
use crate::policy::keys::{KeyId, KeyRecord};
use crate::store::bounds;
use rusqlite::{Connection, OptionalExtension};
use std::collections::HashSet;

/// Bytes of the texts of keys after which a piece that is sent to the loop ends.
const KEYS_PIECE_BYTES: usize = 256 * 1024;

/// Number of a change, and a mark that distinguishes it from another change of that number.
type ChangeMark = (i64, i64);

/// The last change.
fn last(connection: &Connection) -> Fallible<ChangeMark> {
    let mut query = connection.prepare_cached("SELECT number, mark FROM changes ORDER BY number DESC LIMIT 1")?;
    Ok(query.query_row([], |row| Ok((row.get(0)?, row.get(1)?))).optional()?.unwrap_or_default())
}

/// True if all changes after this one are known, and it has the same mark.
fn is_known(connection: &Connection, (number, mark): ChangeMark) -> Fallible<bool> {
    if number == 0 {
        let first: Option<i64> = connection.query_row("SELECT MIN(number) FROM changes", [], |row| row.get(0))?;
        return Ok(first.is_none_or(|first| first == 1));
    }
    let mut query = connection.prepare_cached("SELECT mark FROM changes WHERE number = ?1")?;
    Ok(query.query_row([number], |row| row.get::<_, i64>(0)).optional()? == Some(mark))
}

impl Sqlite {
    /// Returns the present position in the changes of the keys. Call it before reading all keys.
    pub fn keys_seen(&self) -> Result<KeysSeen, StoreError> {
        let version = self.version()?;
        let last = last(&self.connection).map_err(|error| self.tell(error))?;
        Ok(KeysSeen { last: Some((last.0, last.1.to_string())), version, ..KeysSeen::default() })
    }

    /// Returns the ids of the changes after a number, and the number and the mark of the last of them.
    fn changed_ids(&self, after: i64) -> Fallible<(Vec<String>, Option<ChangeMark>)> {
        let sql = "SELECT number, mark, key FROM changes WHERE number > ?1 ORDER BY number LIMIT ?2";
        let mut query = self.connection.prepare_cached(sql)?;
        let (mut ids, mut last) = (Vec::new(), None);
        let mut rows = query.query([after, bounds::KEYS_PER_PIECE as i64])?;
        while let Some(row) = rows.next()? {
            last = Some((row.get(0)?, row.get(1)?));
            ids.push(String::from_utf8_lossy(row.get_ref(2)?.as_bytes().unwrap_or_default()).into_owned());
        }
        Ok((ids, last))
    }

    /// Returns the record of a key. An unreadable record gives no access.
    fn readable(&mut self, id: &[u8], read: Fallible<KeyRecord>) -> Result<Option<KeyRecord>, StoreError> {
        match read {
            Ok(record) => Ok(Some(record)),
            Err(rusqlite::Error::SqliteFailure(..)) => read.map(Some).map_err(|error| self.tell(error)),
            Err(_) => {
                note_odd(&self.odd, id);
                Ok(None)
            }
        }
    }
}

impl KeySource for Sqlite {
    fn key_changes(&mut self, seen: &mut KeysSeen) -> Result<KeyChanges, StoreError> {
        // The version is read first, so the next look finds changes made after it.
        let version = self.version()?;
        let Some((number, mark)) = &seen.last else {
            *seen = self.keys_seen()?;
            return Ok(KeyChanges::Unknown);
        };
        if seen.version == version {
            return Ok(KeyChanges::None);
        }
        let known = (*number, mark.parse().unwrap_or(0));
        if !is_known(&self.connection, known).map_err(|error| self.tell(error))? {
            *seen = self.keys_seen()?;
            return Ok(KeyChanges::Unknown);
        }
        let (ids, last) = self.changed_ids(*number).map_err(|error| self.tell(error))?;
        let more = ids.len() == bounds::KEYS_PER_PIECE;
        let (mut records, mut gone, mut looked) = (Vec::new(), Vec::new(), HashSet::new());
        for id in ids.iter().filter(|id| looked.insert(*id)) {
            let found = self.connection.prepare_cached(super::SELECT_KEY);
            let found = found.and_then(|mut query| query.query_row([id], read_key).optional());
            let record = match found.transpose() {
                Some(read) => self.readable(id.as_bytes(), read)?,
                None => None,
            };
            match record {
                Some(record) => records.push(record),
                None => gone.extend(KeyId::parse(id)),
            }
        }
        seen.last = last.map(|(number, mark)| (number, mark.to_string())).or(seen.last.take());
        seen.version = if more { seen.version } else { version };
        Ok(if ids.is_empty() { KeyChanges::None } else { KeyChanges::These { records, gone, more } })
    }

    fn key_piece(&mut self, cursor: &mut String) -> Result<Vec<KeyRecord>, StoreError> {
        // An id may contain any bytes, each of which is stored as a character.
        let after: Vec<u8> = cursor.chars().map(|byte| byte as u8).collect();
        let mut more = false;
        let read = || -> Fallible<Vec<(Vec<u8>, Fallible<KeyRecord>)>> {
            let mut query = self.connection.prepare_cached(super::SELECT_PIECE)?;
            let mut found = query.query((after, bounds::KEYS_PER_PIECE as i64))?;
            let (mut rows, mut length) = (Vec::new(), 0);
            while let Some(row) = found.next()?.filter(|_| length < KEYS_PIECE_BYTES) {
                let key = read_key(row);
                length += key.as_ref().map_or(0, KeyRecord::text_bytes);
                rows.push((row.get_ref(0)?.as_bytes().unwrap_or_default().to_vec(), key));
            }
            more = rows.len() == bounds::KEYS_PER_PIECE || length >= KEYS_PIECE_BYTES;
            Ok(rows)
        };
        let rows = read().map_err(|error| self.tell(error))?;
        *cursor = match rows.last() {
            Some((id, _)) if more => id.iter().map(|byte| char::from(*byte)).collect(),
            _ => String::new(),
        };
        let mut records = Vec::with_capacity(rows.len());
        for (id, read) in rows {
            records.extend(self.readable(&id, read)?);
        }
        Ok(records)
    }

    fn take_odd(&mut self) -> Vec<String> {
        Sqlite::take_odd(self)
    }
}
