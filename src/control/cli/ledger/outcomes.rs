//! Outcomes of requests by day and target, from the newest usage records: the sums have neither failures nor durations.

use crate::base::time::Unix;
use crate::cli::output::Failure;
use crate::cli::store;
use crate::policy::config::Config;
use crate::policy::row::Row;
use crate::policy::window::{self, DAY_MS};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Days that are reported, today included.
const DAYS: u64 = 30;

/// Requests of one day whose last attempt went to one target.
#[derive(Serialize, Debug, PartialEq)]
pub(in crate::cli) struct DayOutcome {
    day: String,
    target: Arc<str>,
    requests: u64,
    /// Those that were answered with a status of 500 or more.
    failed: u64,
    /// Median duration of the answered ones, without the time in which they waited for a slot.
    median_ms: Option<u64>,
}

/// Outcomes of the last days, the newest day first.
pub(in crate::cli) fn outcomes(high: &Config, now: Unix) -> Result<Vec<DayOutcome>, Failure> {
    let Some(mut ledger) = store::open_existing(high)? else { return Ok(Vec::new()) };
    let mut outcomes = Outcomes { first: (now.0 / DAY_MS + 1).saturating_sub(DAYS), days: BTreeMap::new() };
    ledger.recent_rows(&mut |row| outcomes.take(&row)).map_err(Failure::failed)?;
    Ok(outcomes.lines())
}

struct Outcomes {
    /// The first day that counts.
    first: u64,
    /// By day and target.
    days: BTreeMap<(u64, Arc<str>), TargetDay>,
}

#[derive(Default)]
struct TargetDay {
    requests: u64,
    failed: u64,
    /// Of the answered requests.
    durations: Vec<u64>,
}

impl Outcomes {
    /// Takes a row; false if no row that counts can be older.
    fn take(&mut self, row: &Row) -> bool {
        let day = row.admitted.0 / DAY_MS;
        if day >= self.first && !row.target.is_empty() {
            let own = self.days.entry((day, row.target.clone())).or_default();
            own.requests += 1;
            match row.status {
                500.. => own.failed += 1,
                400.. => {}
                _ => own.durations.push((row.micros / 1000).saturating_sub(row.queued_ms)),
            }
        }
        // Rows are in the order in which requests ended, and a request takes less than a day.
        day + 1 >= self.first
    }

    fn lines(self) -> Vec<DayOutcome> {
        let line = |((day, target), mut own): ((u64, Arc<str>), TargetDay)| {
            own.durations.sort_unstable();
            let median_ms = own.durations.get(own.durations.len() / 2).copied();
            let (day, requests, failed) = (window::date(Unix(day * DAY_MS)), own.requests, own.failed);
            DayOutcome { day, target, requests, failed, median_ms }
        };
        self.days.into_iter().rev().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(day: u64, target: &str, status: u16, micros: u64) -> Row {
        let text = format!(
            r#"{{"r":"{:032x}","k":"abcdefABCDEF","a":{},"m":"m","t":"{target}","e":"chat","s":true,"c":{status},
            "u":[1,0,0,9],"f":"provider","n":1,"x":1,"d":{micros}}}"#,
            7,
            day * DAY_MS + 5
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn days_of_a_target_have_their_failures_and_their_median() {
        let mut outcomes = Outcomes { first: 20_000, days: BTreeMap::new() };
        for (status, micros) in [(200, 7_000), (500, 99_000), (200, 9_000), (502, 1), (200, 8_900), (404, 1), (499, 1)]
        {
            assert!(outcomes.take(&row(20_001, "a/m", status, micros)));
        }
        assert!(outcomes.take(&Row { queued_ms: 4, ..row(20_000, "b/m", 200, 5_000) }));
        assert!(outcomes.take(&row(20_000, "", 429, 5)), "no target");
        assert!(outcomes.take(&row(19_999, "a/m", 200, 5)), "a request that ended later may be older");
        assert!(!outcomes.take(&row(19_998, "a/m", 200, 5)));
        let line = |day: &str, target: &str, requests, failed, median_ms| {
            let (day, target) = (day.to_string(), target.into());
            DayOutcome { day, target, requests, failed, median_ms }
        };
        let expected = [line("2024-10-05", "a/m", 7, 2, Some(8)), line("2024-10-04", "b/m", 1, 0, Some(1))];
        assert_eq!(outcomes.lines(), expected);
    }
}
