//! The sums by day, brought up to date for many rows at once: most rows of a busy gateway belong to a few sums, and
//! an update of each sum at every commit would cost more than the rows themselves.
//!
//! Which rows the table `days` holds is written down beside it (`counted.upto`), in the same transaction. The view
//! `sums` adds those behind it, so that every reader, of any process and after any death, sees each row exactly once.

use super::super::book::{Sums, bounded};
use super::{Fallible, int};
use crate::policy::keys::KeyId;
use crate::policy::row::Row;
use crate::policy::window::DAY_MS;
use rusqlite::{Connection, params};
use std::collections::BTreeMap;
use std::sync::Arc;

/// From version 2 to 3 of the tables.
pub(super) const THIRD: &str = "
CREATE TABLE counted (upto INTEGER NOT NULL) STRICT;
INSERT INTO counted SELECT IFNULL(MAX(number), 0) FROM rows;
CREATE VIEW sums AS SELECT day, key, model, target, requests, uncached_in, cache_read, cache_write, out, cost_nano
    FROM days UNION ALL
    SELECT admitted / 86400000, key, model, target, 1, uncached_in, cache_read, cache_write, out, cost_nano
    FROM rows WHERE number > (SELECT upto FROM counted);
";

/// Rows that may lie behind the sums: a reader adds them up each time, so they are kept few.
const ROWS_BEHIND: u64 = 8192;

const ADD_TO_DAY: &str = "INSERT INTO days VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
    ON CONFLICT (day, key, model, target) DO UPDATE SET requests = requests + excluded.requests,
    uncached_in = uncached_in + excluded.uncached_in, cache_read = cache_read + excluded.cache_read,
    cache_write = cache_write + excluded.cache_write, out = out + excluded.out,
    cost_nano = cost_nano + excluded.cost_nano";

const ADD_ROWS: &str = "INSERT INTO days SELECT admitted / 86400000, key, model, target, COUNT(*), SUM(uncached_in),
    SUM(cache_read), SUM(cache_write), SUM(out), SUM(cost_nano) FROM rows WHERE number > ?1 GROUP BY 1, 2, 3, 4
    ON CONFLICT (day, key, model, target) DO UPDATE SET requests = requests + excluded.requests,
    uncached_in = uncached_in + excluded.uncached_in, cache_read = cache_read + excluded.cache_read,
    cache_write = cache_write + excluded.cache_write, out = out + excluded.out,
    cost_nano = cost_nano + excluded.cost_nano";

/// More rows than there can be.
const SPOILT: u64 = u64::MAX;

/// What the rows behind the sums come to, as far as this connection has written them.
#[derive(Default)]
pub(super) struct Tally {
    rows: u64,
    sums: BTreeMap<(u64, KeyId, Arc<str>, Arc<str>), Sums>,
}

impl Tally {
    /// Counts rows that are being written.
    pub(super) fn add(&mut self, rows: &[Row]) {
        self.rows = self.rows.saturating_add(rows.len() as u64);
        for row in rows {
            let (usage, cost) = bounded(row);
            let values = [1, usage.uncached_in, usage.cache_read, usage.cache_write, usage.out, cost];
            let place = (row.admitted.0 / DAY_MS, row.key, row.model.clone(), row.target.clone());
            let sums = self.sums.entry(place).or_default();
            sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
        }
    }

    /// True when the sums are to be brought up to date.
    pub(super) fn is_due(&self) -> bool {
        self.rows >= ROWS_BEHIND
    }

    /// True when there is nothing to settle.
    pub(super) fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// What was counted may not have been written.
    pub(super) fn spoil(&mut self) {
        *self = Tally { rows: SPOILT, ..Tally::default() };
    }

    /// Brings the sums up to date with all rows; to be called within a transaction. What this connection has not
    /// written itself, or not in one piece, is added up from the rows.
    pub(super) fn settle(&mut self, transaction: &Connection) -> Fallible<()> {
        let Tally { rows, sums } = std::mem::take(self);
        let mut query =
            transaction.prepare_cached("SELECT upto, (SELECT IFNULL(MAX(number), 0) FROM rows) FROM counted")?;
        let (counted, last) = query.query_row([], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?)))?;
        if last == counted {
            return Ok(());
        }
        if last.saturating_sub(counted) == int(rows) {
            let mut add = transaction.prepare_cached(ADD_TO_DAY)?;
            for ((day, key, model, target), sums) in sums {
                let [requests, uncached, read, written, out, cost] = sums.map(int);
                let key = key.as_str();
                add.execute(params![int(day), key, model, target, requests, uncached, read, written, out, cost])?;
            }
        } else {
            transaction.execute(ADD_ROWS, [counted])?;
        }
        mark_all(transaction)
    }
}

/// Notes that the sums hold all rows. When the last row goes, the next one gets its number again: so this must be
/// called after rows have gone, too.
pub(super) fn mark_all(transaction: &Connection) -> Fallible<()> {
    transaction.execute("UPDATE counted SET upto = (SELECT IFNULL(MAX(number), 0) FROM rows)", [])?;
    Ok(())
}
