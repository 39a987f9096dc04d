//! Sums by user, by conversation and by agent: the largest of every day by name, the others together. They lag behind
//! the rows like the sums of the days, and are settled with them (`tally`).

use super::super::api::{PEOPLE_MAX, PeopleSums, PeopleTotals, REST, Sums};
use super::super::who::Who;
use super::groups;
use super::pace::Pace;
use super::value::{Fallible, int, sums, uint};
use crate::policy::row::Row;
use crate::policy::window::DAY_MS;
use crate::store::bounds::ROWS_PER_COMMIT;
use rusqlite::{Connection, params};

/// Table of these sums. Requests without a name are the difference to the sums of the day.
pub(super) const TABLE: &str = "
CREATE TABLE people (
    day INTEGER NOT NULL, who INTEGER NOT NULL, name TEXT NOT NULL,
    requests INTEGER NOT NULL, uncached_in INTEGER NOT NULL, cache_read INTEGER NOT NULL,
    cache_write INTEGER NOT NULL, out INTEGER NOT NULL, cost_nano INTEGER NOT NULL,
    PRIMARY KEY (day, who, name)
) STRICT, WITHOUT ROWID;
";

/// View of all parts of these sums at this moment, like the view `parts` for the others. The numbers are those of
/// [`Who`], each with the place of its name in a row.
pub(super) fn view() -> String {
    let places = Who::ALL.map(|who| format!("({}, {})", who as u8, groups::rare_place(who.column()))).join(", ");
    format!(
        "CREATE VIEW people_parts AS SELECT day, who, name, {} FROM people UNION ALL
         SELECT (oldest + (r.value ->> 2)) / 86400000, w.column1, r.value ->> w.column2, 1, r.value ->> 6,
         r.value ->> 7, r.value ->> 8, r.value ->> 9, r.value ->> 10
         FROM groups, json_each(groups.rows) AS r, (VALUES {places}) AS w
         WHERE first > (SELECT upto FROM counted) AND r.value ->> w.column2 IS NOT NULL;",
        sums("{}")
    )
}

/// Maximum number of unsettled names: then all sums are settled, however few rows they lag behind. Two hundred bytes
/// each.
const NAMES_BEHIND: usize = 1024;

/// Order of names, the largest first.
pub(super) const LARGEST: &str =
    "cost_nano DESC, uncached_in + cache_read + cache_write + out DESC, requests DESC, name";

/// Totals of rows by user, by session and by agent.
#[derive(Default)]
pub(super) struct People(PeopleSums);

impl People {
    /// Counts a row, which adds `values` to every sum.
    pub(super) fn add(&mut self, row: &Row, values: &Sums) {
        for who in Who::ALL {
            let Some(name) = who.of(row) else { continue };
            let sums = self.0.entry((row.admitted.0 / DAY_MS, who, name.clone())).or_default();
            sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.0.len() >= NAMES_BEHIND
    }

    /// Adds everything to the table, and keeps only the largest there by name. Empties this.
    pub(super) fn write(&mut self, transaction: &Connection) -> Fallible<()> {
        let adding = format!("ON CONFLICT DO UPDATE SET {}", sums("{} = {} + excluded.{}"));
        let add = format!("INSERT INTO people VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9) {adding}");
        let mut add = transaction.prepare_cached(&add)?;
        let (mut pace, mut days) = (Pace::for_pieces(ROWS_PER_COMMIT), Vec::new());
        for ((day, who, name), values) in std::mem::take(&mut self.0) {
            pace.step();
            let [requests, uncached, read, written, out, cost] = values.map(int);
            add.execute(params![int(day), who as u8, name, requests, uncached, read, written, out, cost])?;
            if days.last() != Some(&(day, who)) {
                days.push((day, who));
            }
        }
        // Names that are not among the largest of a day.
        let smaller = format!(
            "SELECT name FROM people WHERE day = ?1 AND who = ?2 AND name != ?3 ORDER BY {LARGEST} LIMIT -1 OFFSET ?4"
        );
        for (day, who) in days {
            let most = params![int(day), who as u8, REST, PEOPLE_MAX as i64];
            // Merges the smaller names.
            let merge = format!(
                "INSERT INTO people SELECT day, who, ?3, {} FROM people
                 WHERE day = ?1 AND who = ?2 AND name IN ({smaller}) GROUP BY 1, 2 {adding}",
                sums("SUM({})")
            );
            transaction.prepare_cached(&merge)?.execute(most)?;
            let sql = format!("DELETE FROM people WHERE day = ?1 AND who = ?2 AND name IN ({smaller})");
            transaction.prepare_cached(&sql)?.execute(most)?;
        }
        Ok(())
    }
}

/// Returns the totals of all names of each day.
pub(super) fn totals(connection: &Connection) -> Fallible<PeopleTotals> {
    let sql = format!("SELECT day, who, {} FROM people_parts GROUP BY 1, 2", sums("SUM({})"));
    let mut query = connection.prepare(&sql)?;
    let found = query.query_map([], |row| {
        let who = Who::from_number(uint(row, 1)?).unwrap_or(Who::User);
        let mut sums = Sums::default();
        for (sum, column) in sums.iter_mut().zip(2..) {
            *sum = uint(row, column)?;
        }
        Ok(((uint(row, 0)?, who), sums))
    })?;
    let mut totals = PeopleTotals::new();
    for one in found {
        totals.extend([one?]);
    }
    Ok(totals)
}
