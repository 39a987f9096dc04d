//! What keeps the ledger honest and small: recomputing its sums from its rows, writing all of it out, and folding old
//! rows into the sums of their days. Called by `tollgate ledger` and, for folding, by the store thread.

use super::super::book::{DayKey, DaySums, Entry, StoreError, Sums, Taker, Verdict};
use super::{Fallible, Sqlite, int, key_id, tally, uint};
use crate::base::time::Unix;
use crate::policy::meter::Lease;
use crate::policy::row::{Row, endpoint_from};
use crate::policy::usage::{Usage, UsageSource};
use rusqlite::{Connection, TransactionBehavior, params};

const OF_ROWS: &str = "SELECT admitted / 86400000, key, model, target, COUNT(*), SUM(uncached_in), SUM(cache_read),
    SUM(cache_write), SUM(out), SUM(cost_nano) FROM rows GROUP BY 1, 2, 3, 4";
const OF_FOLDED: &str = "SELECT * FROM folded";
const OF_DAYS: &str = "SELECT day, key, model, target, SUM(requests), SUM(uncached_in), SUM(cache_read),
    SUM(cache_write), SUM(out), SUM(cost_nano) FROM sums GROUP BY 1, 2, 3, 4";

/// Adds the oldest rows before a moment, at most so many, to the folded sums.
const FOLD: &str = "INSERT INTO folded SELECT admitted / 86400000, key, model, target, COUNT(*), SUM(uncached_in),
    SUM(cache_read), SUM(cache_write), SUM(out), SUM(cost_nano) FROM rows
    WHERE number IN (SELECT number FROM rows WHERE admitted < ?1 ORDER BY admitted, number LIMIT ?2)
    GROUP BY 1, 2, 3, 4
    ON CONFLICT (day, key, model, target) DO UPDATE SET requests = requests + excluded.requests,
    uncached_in = uncached_in + excluded.uncached_in, cache_read = cache_read + excluded.cache_read,
    cache_write = cache_write + excluded.cache_write, out = out + excluded.out,
    cost_nano = cost_nano + excluded.cost_nano";
/// Deletes the same rows.
const DROP_FOLDED: &str = "DELETE FROM rows
    WHERE number IN (SELECT number FROM rows WHERE admitted < ?1 ORDER BY admitted, number LIMIT ?2)";

impl Sqlite {
    /// Recomputes every sum from the rows, and those folded away, as of one moment; a gateway may go on meanwhile.
    pub fn verify(&mut self) -> Result<Verdict, StoreError> {
        let verdict = verify(&mut self.connection);
        verdict.map_err(|error| self.tell(error))
    }

    /// Hands every entry to `take`, as of one moment; see [`super::super::ledger::Ledger::export`].
    pub fn export(&mut self, take: Taker<'_>) -> Result<(), StoreError> {
        let done = export(&mut self.connection, take);
        done.map_err(|error| self.tell(error))
    }

    /// Folds at most `max` of the oldest rows admitted before `before` into the sums of their days; how many that
    /// were. The sums of the days themselves stay as they are, and with them every quota.
    pub fn fold(&mut self, before: Unix, max: usize) -> Result<u64, StoreError> {
        let (before, max) = (int(before.0), i64::try_from(max).unwrap_or(i64::MAX));
        let mut fold = || -> Fallible<usize> {
            let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            // Only rows that the sums hold may go.
            self.tally.settle(&transaction)?;
            transaction.execute(FOLD, params![before, max])?;
            let count = transaction.execute(DROP_FOLDED, params![before, max])?;
            tally::mark_all(&transaction)?;
            transaction.commit()?;
            Ok(count)
        };
        let folded = fold();
        folded.map(|count| count as u64).map_err(|error| {
            self.tally.spoil();
            self.tell(error)
        })
    }
}

fn verify(connection: &mut Connection) -> Fallible<Verdict> {
    // One read transaction: all three sums are of the same moment.
    let transaction = connection.transaction()?;
    let (mut counted, stored) = (sums(&transaction, OF_ROWS)?, sums(&transaction, OF_DAYS)?);
    let requests = |sums: &DaySums| sums.values().map(|sums| sums[0]).sum();
    let folded = sums(&transaction, OF_FOLDED)?;
    let mut verdict = Verdict { rows: requests(&counted), folded: requests(&folded), ..Verdict::default() };
    for (key, more) in folded {
        counted.entry(key).or_default().iter_mut().zip(more).for_each(|(sum, part)| *sum += part);
    }
    verdict.compare_days(&stored, &counted);
    Ok(verdict)
}

fn sums(connection: &Connection, sql: &str) -> Fallible<DaySums> {
    let mut query = connection.prepare(sql)?;
    let lines = query.query_map([], |row| {
        let key = DayKey { day: uint(row, 0)?, key: row.get(1)?, model: row.get(2)?, target: row.get(3)? };
        let mut sums = Sums::default();
        for (sum, column) in sums.iter_mut().zip(4..) {
            *sum = uint(row, column)?;
        }
        Ok((key, sums))
    })?;
    lines.collect()
}

fn export(connection: &mut Connection, take: Taker<'_>) -> Fallible<()> {
    let transaction = connection.transaction()?;
    for (key, sums) in sums(&transaction, OF_FOLDED)? {
        if !take(Entry::Folded(key, sums)) {
            return Ok(());
        }
    }
    let mut query = transaction.prepare(
        "SELECT request, key, admitted, model, target, endpoint, stream, status, uncached_in, cache_read,
         cache_write, out, source, cost_nano, attempts, micros FROM rows ORDER BY number",
    )?;
    let mut rows = query.query([])?;
    while let Some(row) = rows.next()? {
        if !take(Entry::Request(read_row(row)?)) {
            break;
        }
    }
    Ok(())
}

fn read_row(row: &rusqlite::Row<'_>) -> Fallible<Row> {
    let text = |column: usize| -> Fallible<String> { row.get(column) };
    Ok(Row {
        request: row.get(0)?,
        key: key_id(row, 1)?,
        admitted: Unix(uint(row, 2)?),
        model: text(3)?.into(),
        target: text(4)?.into(),
        endpoint: endpoint_from(&text(5)?),
        stream: row.get(6)?,
        status: row.get(7)?,
        usage: Usage {
            uncached_in: uint(row, 8)?,
            cache_read: uint(row, 9)?,
            cache_write: uint(row, 10)?,
            out: uint(row, 11)?,
            source: UsageSource::from_text(&text(12)?).unwrap_or_default(),
        },
        cost_nano: uint(row, 13)?,
        attempts: row.get(14)?,
        micros: uint(row, 15)?,
        lease: Lease::default(),
    })
}
