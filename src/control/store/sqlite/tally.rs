//! Sums by day, brought up to date for many rows at once: most rows of a busy gateway belong to a few sums, and an
//! update of each sum at every commit would cost more than the rows themselves.
//!
//! The number of the last row included in the table `days` is stored in `counted.upto`, in the same transaction. The
//! view `parts` adds the rows after it, so that every reader, in any process and after any crash, counts each row
//! exactly once.

use super::super::api::{DayKey, DaySums, Sums, sums_of};
use super::groups;
use super::pace::Pace;
use super::people::People;
use super::value::{Fallible, int, sums};
use crate::policy::agent::Client;
use crate::policy::keys::KeyId;
use crate::policy::row::Row;
use crate::policy::window::DAY_MS;
use crate::store::bounds::ROWS_PER_COMMIT;
use rusqlite::{Connection, params};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Last row that the sums include. Rows are counted by whole groups.
pub(super) const TABLE: &str = "
CREATE TABLE counted (upto INTEGER NOT NULL) STRICT;
INSERT INTO counted VALUES (0);
";

/// All parts of the sums at this moment: those of days, and the rows after them. Also the sums for users of SQL, one
/// line for each, with dates as text.
pub(super) const VIEWS: &str = "
CREATE VIEW parts AS SELECT day, key, model, target, group_path, endpoint, client, requests, uncached_in, cache_read,
    cache_write, out, cost_nano FROM days UNION ALL
    SELECT (oldest + (r.value ->> 2)) / 86400000, r.value ->> 1, names -> (r.value ->> 3) ->> 0,
    names -> (r.value ->> 3) ->> 1, IFNULL(names -> (r.value ->> 3) ->> 4, ''), names -> (r.value ->> 3) ->> 2,
    IFNULL(names -> (r.value ->> 3) ->> 5, ''), 1, r.value ->> 6, r.value ->> 7, r.value ->> 8, r.value ->> 9,
    r.value ->> 10
    FROM groups, json_each(groups.rows) AS r WHERE first > (SELECT upto FROM counted);
CREATE VIEW sums AS SELECT date(day * 86400, 'unixepoch') AS day, key, keys.name AS name, group_path,
    endpoint, model, target, client, SUM(requests) AS requests, SUM(uncached_in) AS input,
    SUM(cache_read) AS cache_read, SUM(cache_write) AS cache_write, SUM(out) AS output,
    SUM(cost_nano) AS cost_nano, SUM(cost_nano) / 1e9 AS cost
    FROM parts LEFT JOIN keys ON keys.id = key GROUP BY parts.day, key,
    group_path, endpoint, model, target, client;
";

/// Maximum number of rows that the sums may lag behind: a reader adds them up each time, so they are few.
const ROWS_BEHIND: u64 = 8192;

/// Number above any possible number of rows.
const SPOILT: u64 = u64::MAX;

/// Totals of the rows that the sums do not include yet, if this connection has written them.
#[derive(Default)]
pub(super) struct Tally {
    rows: u64,
    /// Sums by day and key. A key has few of each day, so they are a list: names in the map's keys would be compared at
    /// every step of a search.
    sums: BTreeMap<(u64, KeyId), Vec<NamedSums>>,
    people: People,
}

/// Names that the rows of a sum share, and the sum.
struct NamedSums {
    model: Arc<str>,
    target: Arc<str>,
    group: Arc<str>,
    endpoint: &'static str,
    client: Client,
    sums: Sums,
}

impl Tally {
    /// Counts rows that are being written.
    pub(super) fn add(&mut self, rows: &[Row]) {
        for row in rows {
            let values = sums_of(row);
            self.add_row(row, &values);
            self.people.add(row, &values);
        }
    }

    /// Counts rows, but not their users and sessions.
    pub(super) fn add_sums(&mut self, rows: &[Row]) {
        rows.iter().for_each(|row| self.add_row(row, &sums_of(row)));
    }

    fn add_row(&mut self, row: &Row, values: &Sums) {
        self.rows = self.rows.saturating_add(1);
        let of_key = self.sums.entry((row.admitted.0 / DAY_MS, row.key)).or_insert_with(|| Vec::with_capacity(1));
        let endpoint = row.endpoint.name();
        let same = |known: &&mut NamedSums| {
            (known.endpoint, known.client) == (endpoint, row.client)
                && (&known.model, &known.target, &known.group) == (&row.model, &row.target, &row.group)
        };
        match of_key.iter_mut().find(same) {
            Some(known) => known.sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value),
            None => {
                let [model, target, group] = [&row.model, &row.target, &row.group].map(Arc::clone);
                of_key.push(NamedSums { model, target, group, endpoint, client: row.client, sums: *values });
            }
        }
    }

    /// True if the sums must be brought up to date.
    pub(super) fn is_due(&self) -> bool {
        self.rows >= ROWS_BEHIND
    }

    /// True if the sums must be brought up to date immediately.
    pub(super) fn has_many_names(&self) -> bool {
        self.people.is_full()
    }

    /// True if there are no rows to settle.
    pub(super) fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Marks the count as invalid, because its rows may not have been written.
    pub(super) fn spoil(&mut self) {
        *self = Tally { rows: SPOILT, ..Tally::default() };
    }

    /// Brings the sums of the days up to date with all rows. Call it within a transaction. Rows that this connection
    /// has not written itself, or not consecutively, are read again.
    pub(super) fn settle(&mut self, transaction: &Connection) -> Fallible<()> {
        let mut behind = std::mem::take(self);
        let counted = transaction.query_row("SELECT upto FROM counted", [], |row| row.get::<_, i64>(0))?;
        let rows = groups::last(transaction)? - counted;
        if rows == 0 {
            return Ok(());
        }
        if behind.rows != rows as u64 {
            behind = Tally::default();
            let mut written = Ok(());
            groups::each(transaction, "WHERE first > ?1", [counted], |_, rows| {
                behind.add(&rows);
                if behind.people.is_full() {
                    written = behind.people.write(transaction);
                }
                written.is_ok()
            })?;
            written?;
        }
        behind.people.write(transaction)?;
        behind.write(transaction, "days")?;
        mark_all(transaction)
    }

    /// Adds everything to the sums in `table`.
    pub(super) fn write(self, transaction: &Connection, table: &str) -> Fallible<()> {
        let mut add = transaction.prepare_cached(&format!(
            "INSERT INTO {table} VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)
             ON CONFLICT DO UPDATE SET {}",
            sums("{} = {} + excluded.{}")
        ))?;
        let mut pace = Pace::for_pieces(ROWS_PER_COMMIT);
        let each = self.sums.into_iter().flat_map(|(of, named)| named.into_iter().map(move |one| (of, one)));
        for ((day, key), NamedSums { model, target, group, endpoint, client, sums }) in each {
            pace.step();
            let [requests, uncached, read, written, out, cost] = sums.map(int);
            let (day, key, client) = (int(day), key.as_str(), client.name());
            add.execute(params![
                day, key, model, target, group, endpoint, client, requests, uncached, read, written, out, cost
            ])?;
        }
        Ok(())
    }

    /// Returns the sums.
    pub(super) fn into_sums(self) -> DaySums {
        let each = self.sums.into_iter().flat_map(|(of, sums)| sums.into_iter().map(move |one| (of, one)));
        each.map(|((day, key), one)| {
            let key = DayKey {
                day,
                key: key.as_str().into(),
                model: (*one.model).into(),
                target: (*one.target).into(),
                group: (*one.group).into(),
                endpoint: one.endpoint.into(),
                client: one.client.name().into(),
            };
            (key, one.sums)
        })
        .collect()
    }
}

/// Records that the sums include all rows. Call it after rows were deleted, too: after the last row is deleted, the
/// next row gets its number again.
pub(super) fn mark_all(transaction: &Connection) -> Fallible<()> {
    transaction.execute("UPDATE counted SET upto = ?1", [groups::last(transaction)?])?;
    Ok(())
}
