//! Past use, which rebuilds the counts of limits at the start.

use super::groups;
use super::value::{Fallible, int, key_id, uint};
use crate::base::time::Unix;
use crate::policy::row::Row;
use crate::policy::window::DAY_MS;
use crate::store::api::{PastUse, TargetUse};
use rusqlite::Connection;
use std::sync::Arc;

/// Returns sums by key, group, model and day.
pub(super) fn day_sums(connection: &Connection, since: Unix) -> Fallible<Vec<PastUse>> {
    let mut query = connection.prepare_cached(
        "SELECT key, day, SUM(requests), SUM(uncached_in + cache_read + cache_write + out), SUM(cost_nano),
         group_path, model FROM parts WHERE day >= ?1 GROUP BY key, day, group_path, model
         ORDER BY day, key, group_path, model",
    )?;
    let sums = query.query_map([int(since.0 / DAY_MS)], |row| {
        Ok(PastUse {
            key: key_id(row, 0)?,
            group: row.get(5)?,
            model: row.get(6)?,
            target: Arc::default(),
            at: Unix(uint(row, 1)? * DAY_MS),
            requests: uint(row, 2)?,
            tokens: uint(row, 3)?,
            cost_nano: uint(row, 4)?,
        })
    })?;
    sums.collect()
}

/// Returns sums by target and day.
pub(super) fn target_sums(connection: &Connection, since: Unix) -> Fallible<Vec<TargetUse>> {
    let mut query = connection.prepare_cached(
        "SELECT target, day, SUM(requests), SUM(uncached_in + cache_read + cache_write + out), SUM(cost_nano)
         FROM parts WHERE day >= ?1 GROUP BY target, day ORDER BY day, target",
    )?;
    let sums = query.query_map([int(since.0 / DAY_MS)], |row| {
        Ok(TargetUse {
            target: row.get(0)?,
            at: Unix(uint(row, 1)? * DAY_MS),
            requests: uint(row, 2)?,
            tokens: uint(row, 3)?,
            cost_nano: uint(row, 4)?,
        })
    })?;
    sums.collect()
}

/// Returns data of every row admitted at `since` or later.
pub(super) fn rows_since(connection: &Connection, since: Unix) -> Fallible<Vec<PastUse>> {
    let mut found = Vec::new();
    let which = "INDEXED BY groups_newest WHERE newest >= ?1 ORDER BY first";
    let listed = groups::each(connection, which, [int(since.0)], |_, rows| {
        let rows = rows.into_iter().filter(|row| row.admitted >= since);
        found.extend(rows.map(|Row { key, group, model, target, admitted: at, usage, cost_nano, .. }| {
            let tokens = usage.total();
            PastUse { key, group, model, target, at, requests: 1, tokens, cost_nano }
        }));
        true
    });
    listed.map(|()| found)
}
