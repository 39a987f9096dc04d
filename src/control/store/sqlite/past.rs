//! Past use, which rebuilds the counts of limits at the start.

use super::groups;
use super::value::{Fallible, int, key_id, uint};
use crate::base::time::Unix;
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
        let (key, group, model) = (key_id(row, 0)?, row.get(5)?, row.get(6)?);
        let (at, [requests, tokens, cost_nano]) = day(row)?;
        Ok(PastUse { key, group, model, target: Arc::default(), at, requests, tokens, cost_nano })
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
        let (at, [requests, tokens, cost_nano]) = day(row)?;
        Ok(TargetUse { target: row.get(0)?, at, requests, tokens, cost_nano })
    })?;
    sums.collect()
}

/// The day and the amounts of a sum, which are its columns from the second on.
fn day(row: &rusqlite::Row<'_>) -> Fallible<(Unix, [u64; 3])> {
    Ok((Unix(uint(row, 1)? * DAY_MS), [uint(row, 2)?, uint(row, 3)?, uint(row, 4)?]))
}

/// Passes data of every row admitted at `since` or later to `take`.
pub(super) fn each_since(connection: &Connection, since: Unix, take: &mut dyn FnMut(PastUse)) -> Fallible<()> {
    let which = "INDEXED BY groups_newest WHERE newest >= ?1 ORDER BY first";
    groups::each(connection, which, [int(since.0)], |_, rows| {
        rows.into_iter().filter(|row| row.admitted >= since).for_each(|row| take(PastUse::from(row)));
        true
    })
}
