//! Usage reports from the sums: SQLite does most of the work, so that the cost of a report over years depends on the
//! number of its lines.

use super::super::api::{
    By, DayKey, DaySums, Lines, PEOPLE_MAX, Page, PeopleSums, Query, REST, Renaming, StoreError, Sums, UsageLine,
};
use super::super::who::Who;
use super::Sqlite;
use super::people::LARGEST;
use super::value::{Fallible, int, sums, uint};
use crate::base::time::Unix;
use crate::policy::window::DAY_MS;
use crate::store::bounds::REPORT_LINES_MAX;
use rusqlite::{params, params_from_iter};
use std::sync::Arc;

impl Sqlite {
    /// Returns the usage report; see `Ledger::usage`.
    pub fn usage(&self, query: &Query, renaming: Option<Renaming<'_>>) -> Result<Vec<UsageLine>, StoreError> {
        let lines = match query.who() {
            Err(why) => return Err(StoreError::Foreign(self.path.clone(), why)),
            Ok(Some(who)) => self.people(query, who),
            Ok(None) => self.sums(query, renaming),
        };
        lines.map_err(|error| self.tell(error))?
    }

    fn sums(&self, query: &Query, renaming: Option<Renaming<'_>>) -> Fallible<Result<Vec<UsageLine>, StoreError>> {
        let column = |by: &By| match by {
            By::Key => "key",
            By::Model => "model",
            By::Target => "target",
            By::Day => "date(day * 86400, 'unixepoch')",
            By::Group => "group_path",
            By::Endpoint => "endpoint",
            By::Client => "client",
            By::User | By::Session | By::Agent => "''",
        };
        let (mut only, mut values) = (String::new(), Vec::new());
        for (by, names) in &query.only {
            values.push(serde_json::to_string(names).unwrap_or_default());
            let names = format!("json_each(?{})", values.len());
            only += &match by {
                By::Group => format!(
                    " AND EXISTS (SELECT 1 FROM {names} WHERE instr('/' || group_path || '/', '/' || value || '/'))"
                ),
                by => format!(" AND {} IN (SELECT value FROM {names})", column(by)),
            };
        }
        let (first, beyond) = query.days();
        let name = |place: usize| query.by.get(place).map_or("''", column);
        // Without merging, SQLite sorts and returns one page, so the number of lines costs no memory here.
        let order = match (renaming, query.page) {
            (Some(_), _) => String::new(),
            (None, page) => {
                let by = if query.by.contains(&By::Day) { "1, 2" } else { "8 DESC, 7 DESC, 1, 2" };
                let page = page.map(|Page { from, most }| format!(" LIMIT {} OFFSET {}", int(most), int(from)));
                format!(" ORDER BY {by}{}", page.unwrap_or_default())
            }
        };
        let sql = format!(
            "SELECT {}, {}, {}, MAX(day) FROM parts WHERE day >= {} AND day < {}{only} GROUP BY 1, 2{order}",
            name(0),
            name(1),
            sums("SUM({})"),
            int(first),
            int(beyond)
        );
        let mut found = self.connection.prepare(&sql)?;
        let lines = found.query_map(params_from_iter(values), |row| {
            let second = if query.by.len() > 1 { Some(row.get(1)?) } else { None };
            Ok(UsageLine::from_sums(((row.get(0)?, second), (sums_in(row, 2)?, Some(Unix(uint(row, 8)? * DAY_MS))))))
        })?;
        let Some(renaming) = renaming else { return lines.collect::<Fallible<_>>().map(Ok) };
        let mut merged = Lines::default();
        for line in lines {
            let line = line?;
            query.add(&mut merged, renaming(&line.name, line.second.as_deref()), &line.sums(), line.last);
        }
        Ok(query.sorted(merged))
    }

    fn people(&self, query: &Query, who: Who) -> Fallible<Result<Vec<UsageLine>, StoreError>> {
        // Days are separate if lines are broken down by day; otherwise all of them are one.
        let (first, beyond) = query.days();
        let by_day = query.by.contains(&By::Day);
        let day = if by_day { "day" } else { "0" };
        let group = if by_day { "day, name" } else { "name" };
        let totals = sums("SUM({})");
        // A day with unsettled rows may have more names than are kept; earlier days do not.
        let unsettled =
            "SELECT COALESCE(MIN(oldest) / 86400000, ?1) FROM groups WHERE first > (SELECT upto FROM counted)";
        let upto = self.connection.query_row(unsettled, params![int(beyond)], |row| row.get::<_, i64>(0))?;
        let (columns, named) = (sums("{}"), sums("SUM({}) AS {}"));
        let sql = format!(
            "SELECT name, {day}, {totals} FROM
             (SELECT day, name, {columns} FROM people WHERE day >= ?1 AND day < MIN(?2, ?6) AND who = ?3
              UNION ALL SELECT day, IIF(place > ?4, ?5, name), {columns} FROM
              (SELECT *, ROW_NUMBER() OVER (PARTITION BY day ORDER BY name = ?5, {LARGEST}) AS place FROM
               (SELECT day, name, {named} FROM people_parts
                WHERE day >= MAX(?1, ?6) AND day < ?2 AND who = ?3 GROUP BY day, name)))
             GROUP BY {group} LIMIT ?7"
        );
        // One more line than may be merged, so that an excess is noticed.
        let lines = query.page.map_or(-1, |_| REPORT_LINES_MAX as i64 + 1);
        let mut found = self.connection.prepare(&sql)?;
        let most = PEOPLE_MAX as i64;
        let named = found.query_map(params![int(first), int(beyond), who as u8, most, REST, upto, lines], |row| {
            Ok(((uint(row, 1)?, who, row.get::<_, Arc<str>>(0)?), sums_in(row, 2)?))
        })?;
        let mut people = PeopleSums::new();
        for line in named {
            people.extend([line?]);
        }
        let group = if by_day { " GROUP BY day" } else { "" };
        let sql = format!("SELECT {day}, {totals} FROM parts WHERE day >= ?1 AND day < ?2{group}");
        let mut found = self.connection.prepare(&sql)?;
        let days = found.query_map(params![int(first), int(beyond)], |row| {
            Ok((DayKey { day: uint(row, 0)?, ..DayKey::default() }, sums_in(row, 1)?))
        })?;
        let mut of_days = DaySums::new();
        for day in days {
            of_days.extend([day?]);
        }
        Ok(query.report_people(who, &people, &of_days))
    }
}

/// Reads six sums from a column on; NULL counts as 0.
fn sums_in(row: &rusqlite::Row<'_>, from: usize) -> Fallible<Sums> {
    let mut sums = Sums::default();
    for (sum, column) in sums.iter_mut().zip(from..) {
        *sum = row.get::<_, Option<i64>>(column)?.and_then(|sum| u64::try_from(sum).ok()).unwrap_or(0);
    }
    Ok(sums)
}
