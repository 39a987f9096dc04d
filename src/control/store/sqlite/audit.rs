//! Verification and size of the ledger: recomputes its sums from its rows, exports all of it, and folds old rows into
//! the sums of their days. Called by `tollgate ledger` and, for folding, by the store thread.

use super::super::api::{DayKey, DaySums, Entry, PeopleTotals, StoreError, Sums, Taker, Verdict, add_people};
use super::tally::{self, Tally};
use super::value::{Fallible, int, uint};
use super::{Sqlite, groups, people, value, writer_clocks};
use crate::base::time::Unix;
use crate::policy::row::Row;
use rusqlite::{Connection, TransactionBehavior};

const OF_FOLDED: &str = "SELECT * FROM folded";

/// Groups whose retention has ended, the oldest first.
const OLD: &str = "WHERE newest < ?1 ORDER BY newest LIMIT ?2";

impl Sqlite {
    /// Recomputes every sum from the rows and the sums of folded rows, as of one moment. A gateway may continue
    /// meanwhile.
    pub fn verify(&mut self) -> Result<Verdict, StoreError> {
        let verdict = verify(&mut self.connection);
        verdict.map_err(|error| self.tell(error))
    }

    /// Passes every entry to `take`, as of one moment; see [`super::super::ledger::Ledger::export`].
    pub fn export(&mut self, take: Taker<'_>) -> Result<(), StoreError> {
        let done = export(&mut self.connection, take);
        done.map_err(|error| self.tell(error))
    }

    /// Passes every row to `take`, the newest first, until it returns false.
    pub fn recent_rows(&mut self, take: &mut dyn FnMut(Row) -> bool) -> Result<(), StoreError> {
        let done =
            groups::each(&self.connection, "ORDER BY first DESC", [], |_, rows| rows.into_iter().rev().all(&mut *take));
        done.map_err(|error| self.tell(error))
    }

    /// Folds groups of rows that were all admitted before `before` into the sums of their days, the oldest first: at
    /// most `max` rows, or one group. Returns the number of rows. The sums of the days stay unchanged, and with them
    /// every quota.
    pub fn fold(&mut self, before: Unix, max: usize) -> Result<u64, StoreError> {
        let mut fold = || -> Fallible<usize> {
            let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            // Only rows that the sums include may be deleted.
            self.tally.settle(&transaction)?;
            let (mut folded, mut gone, mut count) = (Tally::default(), Vec::new(), 0);
            let (upto, mut newest) = (writer_clocks::accepted_upto(&transaction)?, Unix(0));
            groups::each(&transaction, OLD, [int(before.0), int(max as u64)], |first, rows| {
                if count > 0 && count + rows.len() > max {
                    return false;
                }
                count += rows.len();
                folded.add_sums(&rows);
                if first > upto {
                    newest = rows.iter().map(|row| row.admitted).fold(newest, Unix::max);
                }
                gone.push(first);
                true
            })?;
            folded.write(&transaction, "folded")?;
            for first in gone {
                transaction.execute("DELETE FROM groups WHERE first = ?1", [first])?;
            }
            if count > 0 {
                writer_clocks::folded(&transaction, newest)?;
            }
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
    // One read transaction, so that all three sums are of the same moment.
    let transaction = connection.transaction()?;
    let of_days = format!(
        "SELECT day, key, model, target, group_path, endpoint, client, {} FROM parts GROUP BY 1, 2, 3, 4, 5, 6, 7",
        value::sums("SUM({})")
    );
    let (mut counted, stored) = (Tally::default(), sums(&transaction, &of_days)?);
    let mut people = PeopleTotals::new();
    groups::each(&transaction, "", [], |_, rows| {
        counted.add_sums(&rows);
        rows.iter().for_each(|row| add_people(&mut people, row));
        true
    })?;
    let mut counted = counted.into_sums();
    let requests = |sums: &DaySums| sums.values().map(|sums| sums[0]).sum();
    let folded = sums(&transaction, OF_FOLDED)?;
    let mut verdict = Verdict { rows: requests(&counted), folded: requests(&folded), ..Verdict::default() };
    for (key, more) in folded.clone() {
        counted.entry(key).or_default().iter_mut().zip(more).for_each(|(sum, part)| *sum += part);
    }
    verdict.compare_days(&stored, &counted);
    verdict.compare_people(&people::totals(&transaction)?, &people, &stored, &folded);
    Ok(verdict)
}

fn sums(connection: &Connection, sql: &str) -> Fallible<DaySums> {
    let mut query = connection.prepare(sql)?;
    let lines = query.query_map([], |row| {
        let key = DayKey {
            day: uint(row, 0)?,
            key: row.get(1)?,
            model: row.get(2)?,
            target: row.get(3)?,
            group: row.get(4)?,
            endpoint: row.get(5)?,
            client: row.get(6)?,
        };
        let mut sums = Sums::default();
        for (sum, column) in sums.iter_mut().zip(7..) {
            *sum = uint(row, column)?;
        }
        Ok((key, sums))
    })?;
    let mut all = DaySums::new();
    for line in lines {
        all.extend([line?]);
    }
    Ok(all)
}

fn export(connection: &mut Connection, take: Taker<'_>) -> Fallible<()> {
    let transaction = connection.transaction()?;
    for (key, sums) in sums(&transaction, OF_FOLDED)? {
        if !take(Entry::Folded(key, sums)) {
            return Ok(());
        }
    }
    groups::each(&transaction, "ORDER BY first", [], |_, rows| rows.into_iter().all(|row| take(Entry::Request(row))))
}
