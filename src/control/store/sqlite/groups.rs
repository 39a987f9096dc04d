//! Storage of rows in the file: the rows of one commit together, as JSON. One table row for each would cost twenty
//! times the CPU time, in the thread that shares its core with the event loop. The view `rows` shows each of them in
//! SQL; the program itself decodes them here, which is faster.

use super::pace::Pace;
use super::value::{Fallible, int, uint};
use crate::base::digest::unhex;
use crate::base::time::Unix;
use crate::policy::agent::Client;
use crate::policy::keys::KeyId;
use crate::policy::row::{self, COLUMNS, Column, ColumnPlace, ColumnValue, Row, RowNames, endpoint_from, rare_columns};
use crate::policy::usage::{Usage, UsageSource};
use rusqlite::types::{ToSqlOutput, Type, ValueRef};
use rusqlite::{Connection, OptionalExtension, Params, params};
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::fmt;
use std::sync::Arc;

/// Table of groups. `names` contains the values that rows share: model, target, endpoint, source of the counts, and if
/// present, group and client. A row is an array: request, key, milliseconds from `oldest` to its admission, index in
/// `names`, streamed, status, four kinds of tokens, cost, attempts, microseconds, and if present the values of
/// [`rare_columns`] (`null` if only later ones are present).
pub(super) const TABLE: &str = "
CREATE TABLE groups (
    first INTEGER PRIMARY KEY, last INTEGER NOT NULL, oldest INTEGER NOT NULL, newest INTEGER NOT NULL,
    names TEXT NOT NULL, rows TEXT NOT NULL
) STRICT;
CREATE INDEX groups_newest ON groups (newest);
";

/// View of each row in readable form: named as in the log, with dates as text.
pub(super) fn view() -> String {
    let shown = COLUMNS.iter().filter(|column| !column.view.is_empty());
    let columns = shown.map(|column| format!(", {} AS {}", column.sql.replace("{}", &stored(column)), column.view));
    format!(
        "CREATE VIEW rows AS SELECT first + r.key AS number{} FROM groups, json_each(groups.rows) AS r
         LEFT JOIN keys ON keys.id = r.value ->> 1;",
        columns.collect::<String>()
    )
}

/// The stored value of a column in the view, in SQL.
fn stored(column: &Column) -> String {
    match column.place {
        ColumnPlace::Own(place) => format!("(r.value ->> {place})"),
        ColumnPlace::Shared(place) => format!("(names -> (r.value ->> 3) ->> {place})"),
        ColumnPlace::Rare(_) => format!("(r.value ->> {})", rare_place(column.view)),
    }
}

/// Place in a row of a value that most rows lack.
pub(super) fn rare_place(view: &str) -> usize {
    2 + NUMBERS + rare_columns().take_while(|(column, _)| column.view != view).count()
}

/// Maximum number of rows in one group. A larger commit makes several groups, so that no buffer becomes large.
pub(super) const ROWS_PER_GROUP: usize = 256;

/// Values that rows share: model, target, group, endpoint, source, client.
type SharedValues = (Arc<str>, Arc<str>, Arc<str>, &'static str, UsageSource, Client);

/// Writes rows; the buffers for their text are reused.
#[derive(Default)]
pub(super) struct Packer {
    names: Vec<SharedValues>,
    text: Vec<u8>,
    shared: Vec<u8>,
}

impl Packer {
    /// Appends rows after all others. Call it within a transaction.
    pub(super) fn append(&mut self, transaction: &Connection, rows: &[Row], pace: &mut Pace) -> Fallible<()> {
        let mut first = last(transaction)? + 1;
        let mut insert = transaction.prepare_cached("INSERT INTO groups VALUES (?1, ?2, ?3, ?4, ?5, ?6)")?;
        for group in rows.chunks(ROWS_PER_GROUP) {
            let moments = || group.iter().map(|row| row.admitted.0);
            let (oldest, newest) = (moments().min().unwrap_or(0), moments().max().unwrap_or(0));
            self.write(group, Unix(oldest), pace);
            let last = first + group.len() as i64 - 1;
            insert.execute(params![first, last, int(oldest), int(newest), text(&self.shared), text(&self.text)])?;
            first = last + 1;
        }
        Ok(())
    }

    fn write(&mut self, group: &[Row], oldest: Unix, pace: &mut Pace) {
        self.names.clear();
        for list in [&mut self.text, &mut self.shared] {
            list.clear();
            list.push(b'[');
        }
        for row in group {
            pace.step();
            let name = self.name(row);
            row.push_stored(name, oldest, &mut self.text);
            self.text.push(b',');
        }
        for list in [&mut self.text, &mut self.shared] {
            list.pop();
            list.push(b']');
        }
    }

    /// Returns the index of a row's names, which are added if they are new.
    fn name(&mut self, row: &Row) -> usize {
        let (endpoint, source) = (row.endpoint.name(), row.usage.source);
        let same = |(model, target, group, shape, from, client): &SharedValues| {
            (*shape, *from, *client) == (endpoint, source, row.client)
                && (model, target, group) == (&row.model, &row.target, &row.group)
        };
        if let Some(place) = self.names.iter().position(same) {
            return place;
        }
        let names = [&*row.model, &*row.target, endpoint, source.as_str(), &*row.group, row.client.name()];
        let few = names[4..] == [""; 2];
        row::push_names(&names[..if few { 4 } else { 6 }], &mut self.shared);
        self.shared.push(b',');
        let [model, target, group] = [&row.model, &row.target, &row.group].map(Arc::clone);
        self.names.push((model, target, group, endpoint, source, row.client));
        self.names.len() - 1
    }
}

/// Returns the number of the last row, 0 if there is none. The next row's number is one more.
pub(super) fn last(connection: &Connection) -> Fallible<i64> {
    let mut query = connection.prepare_cached("SELECT last FROM groups ORDER BY first DESC LIMIT 1")?;
    Ok(query.query_row([], |row| row.get(0)).optional()?.unwrap_or(0))
}

/// Returns a text that is known to be UTF-8 as a value of SQLite, without checking it.
fn text(bytes: &[u8]) -> ToSqlOutput<'_> {
    ToSqlOutput::Borrowed(ValueRef::Text(bytes))
}

/// Row as stored.
struct StoredRow<'a> {
    request: &'a str,
    key: &'a str,
    numbers: [u64; NUMBERS],
    /// Values that most rows lack.
    rare: Vec<ColumnValue<'a>>,
}

/// Number of numeric values in every row.
const NUMBERS: usize = 11;

impl<'de: 'a, 'a> Deserialize<'de> for StoredRow<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<StoredRow<'a>, D::Error> {
        struct Reading;
        impl<'de> Visitor<'de> for Reading {
            type Value = StoredRow<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a row")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut row: A) -> Result<StoredRow<'de>, A::Error> {
                let short = || Error::custom("a row that is too short");
                let request = row.next_element()?.ok_or_else(short)?;
                let key = row.next_element()?.ok_or_else(short)?;
                let mut numbers = [0; NUMBERS];
                for number in &mut numbers {
                    *number = row.next_element()?.ok_or_else(short)?;
                }
                let mut rare = Vec::new();
                while let Some(value) = row.next_element()? {
                    rare.push(value);
                }
                Ok(StoredRow { request, key, numbers, rare })
            }
        }
        from.deserialize_seq(Reading)
    }
}

/// Passes groups to `take`, each as the number of its first row and its rows, until it returns false. `which` is the
/// SQL after the name of the table: condition and order.
pub(super) fn each(
    connection: &Connection,
    which: &str,
    values: impl Params,
    mut take: impl FnMut(i64, Vec<Row>) -> bool,
) -> Fallible<()> {
    let sql = format!("SELECT first, oldest, names, rows FROM groups {which}");
    let mut query = connection.prepare(&sql)?;
    let mut groups = query.query(values)?;
    while let Some(group) = groups.next()? {
        let rows = unpack(uint(group, 1)?, group.get_ref(2)?.as_str()?, group.get_ref(3)?.as_str()?)?;
        if !take(group.get(0)?, rows) {
            break;
        }
    }
    Ok(())
}

fn unpack(oldest: u64, names: &str, rows: &str) -> Fallible<Vec<Row>> {
    let broken = |error| rusqlite::Error::FromSqlConversionFailure(3, Type::Text, error);
    let names: Vec<Vec<String>> = serde_json::from_str(names).map_err(|error| broken(error.into()))?;
    let shared = |names: Vec<String>| {
        let name = |place: usize| names.get(place).map_or("", String::as_str);
        let [model, target, group] = [name(0), name(1), name(4)].map(Arc::<str>::from);
        let source = UsageSource::from_text(name(3)).unwrap_or_default();
        (model, target, group, endpoint_from(name(2)), source, Client::from_name(name(5)))
    };
    let names: Vec<_> = names.into_iter().map(shared).collect();
    let rows: Vec<StoredRow<'_>> = serde_json::from_str(rows).map_err(|error| broken(error.into()))?;
    let read = |row: StoredRow<'_>| {
        let [admitted, name, stream, status, numbers @ ..] = row.numbers;
        let [uncached_in, cache_read, cache_write, out, cost_nano, attempts, micros] = numbers;
        let (model, target, group, endpoint, source, client) = names.get(usize::try_from(name).ok()?)?;
        let mut read = Row {
            request: unhex(row.request)?,
            key: KeyId::parse(row.key)?,
            admitted: Unix(oldest.saturating_add(admitted)),
            model: model.clone(),
            target: target.clone(),
            endpoint: *endpoint,
            stream: stream != 0,
            status: u16::try_from(status).ok()?,
            usage: Usage { uncached_in, cache_read, cache_write, out, source: *source, ..Usage::default() },
            cost_nano,
            attempts: u32::try_from(attempts).ok()?,
            micros,
            queued_ms: 0,
            group: group.clone(),
            client: *client,
            names: RowNames::default(),
            lease: None,
        };
        let rare = rare_columns().zip(row.rare).filter(|(_, value)| *value != ColumnValue::Missing);
        rare.for_each(|((_, take), value)| take(&mut read, value));
        Some(read)
    };
    let rows: Option<Vec<Row>> = rows.into_iter().map(read).collect();
    rows.ok_or_else(|| broken("not a row".into()))
}
