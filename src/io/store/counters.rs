//! How a row is written in a shared ledger: one JSON object with short names, read by the scripts there too.

use super::api::{DayKey, DaySums, Sums, bounded};
use super::keyform::{hex, unhex};
use crate::base::time::Unix;
use crate::policy::keys::KeyId;
use crate::policy::row::{Row, endpoint_from};
use crate::policy::usage::{Usage, UsageSource};
use crate::policy::window::DAY_MS;
use serde::{Deserialize, Serialize};

/// The names `a`, `k`, `m`, `t`, `u` and `n` are known to the script that folds.
#[derive(Serialize, Deserialize)]
struct Stored<'a> {
    /// Request id in hexadecimal.
    r: String,
    /// Key id.
    k: &'a str,
    /// Admitted, milliseconds.
    a: u64,
    /// Model.
    #[serde(borrow)]
    m: std::borrow::Cow<'a, str>,
    /// Target.
    #[serde(borrow)]
    t: std::borrow::Cow<'a, str>,
    /// Endpoint.
    e: &'a str,
    /// Streamed.
    s: bool,
    /// Status.
    c: u16,
    /// Uncached, cache read, cache written, out.
    u: [u64; 4],
    /// Source.
    f: &'a str,
    /// Cost in nano-dollars.
    n: u64,
    /// Attempts.
    x: u32,
    /// Microseconds.
    d: u64,
}

/// A row as JSON.
pub fn row_text(row: &Row) -> String {
    let (usage, cost) = bounded(row);
    let stored = Stored {
        r: hex(&row.request),
        k: row.key.as_str(),
        a: row.admitted.0,
        m: (&*row.model).into(),
        t: (&*row.target).into(),
        e: row.endpoint.name(),
        s: row.stream,
        c: row.status,
        u: [usage.uncached_in, usage.cache_read, usage.cache_write, usage.out],
        f: usage.source.as_str(),
        n: cost,
        x: row.attempts,
        d: row.micros,
    };
    serde_json::to_string(&stored).unwrap_or_default()
}

/// Reads [`row_text`]; `None` for anything else.
pub fn row_from(text: &str) -> Option<Row> {
    let stored: Stored<'_> = serde_json::from_str(text).ok()?;
    let [uncached_in, cache_read, cache_write, out] = stored.u;
    let source = UsageSource::from_text(stored.f).unwrap_or_default();
    Some(Row {
        request: unhex(&stored.r)?,
        key: KeyId::parse(stored.k)?,
        admitted: Unix(stored.a),
        model: stored.m.as_ref().into(),
        target: stored.t.as_ref().into(),
        endpoint: endpoint_from(stored.e),
        stream: stored.s,
        status: stored.c,
        usage: Usage { uncached_in, cache_read, cache_write, out, source },
        cost_nano: stored.n,
        attempts: stored.x,
        micros: stored.d,
        lease: None,
    })
}

/// What a row adds to the sums of its day.
pub fn sums_of(row: &Row) -> Sums {
    let (usage, cost) = bounded(row);
    [1, usage.uncached_in, usage.cache_read, usage.cache_write, usage.out, cost]
}

/// Key, model and target as a JSON array: with the number of the sum before it, the name of a counter of a day.
pub fn place_text(row: &Row) -> String {
    serde_json::to_string(&[row.key.as_str(), &row.model, &row.target]).unwrap_or_default()
}

/// Reads the name of a counter of `day`: which sum, and of what.
pub fn place_from(day: u64, name: &str) -> Option<(usize, DayKey)> {
    let number = usize::from(name.bytes().next()?.checked_sub(b'0')?);
    let [key, model, target]: [String; 3] = serde_json::from_str(name.get(1..)?).ok()?;
    (number < 6).then_some((number, DayKey { day, key, model, target }))
}

/// Adds the counters of one day, by their names.
pub fn add_day(sums: &mut DaySums, day: u64, hash: Vec<(String, u64)>) {
    for (name, value) in hash {
        if let Some((number, key)) = place_from(day, &name) {
            sums.entry(key).or_default()[number] += value;
        }
    }
}

/// The day and place that a row counts in.
pub fn day_key(row: &Row) -> DayKey {
    let (model, target) = (row.model.to_string(), row.target.to_string());
    DayKey { day: row.admitted.0 / DAY_MS, key: row.key.to_string(), model, target }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::store::tests::sample;

    #[test]
    fn a_row_comes_back_as_it_was_and_its_counters_have_its_names() {
        let mut row = sample("AAAAAAAAAAAA", 3 * DAY_MS + 5, "odd \"model\"\n", 7);
        assert_eq!(row_from(&row_text(&row)), Some(row.clone()));
        assert_eq!(place_from(3, &format!("4{}", place_text(&row))), Some((4, day_key(&row))));
        row.usage.out = u64::MAX;
        assert!(sums_of(&row)[4] < 1 << 41, "absurd numbers are cut");
        for nonsense in ["", "9[]", "x[\"a\",\"b\",\"c\"]", "7[\"a\",\"b\",\"c\"]", "1[\"a\"]"] {
            assert_eq!(place_from(1, nonsense), None, "{nonsense}");
        }
    }
}
