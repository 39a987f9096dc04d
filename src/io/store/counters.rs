//! What the counters of a shared ledger's days are called there, and what a row adds to them.

use super::api::{DayKey, DaySums, Sums};
use crate::policy::row::Row;
use crate::policy::window::DAY_MS;

/// What a row adds to the sums of its day.
pub fn sums_of(row: &Row) -> Sums {
    let (usage, cost) = row.bounded();
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
    fn the_counters_of_a_row_have_its_names() {
        let mut row = sample("AAAAAAAAAAAA", 3 * DAY_MS + 5, "odd \"model\"\n", 7);
        assert_eq!(place_from(3, &format!("4{}", place_text(&row))), Some((4, day_key(&row))));
        row.usage.out = u64::MAX;
        assert!(sums_of(&row)[4] < 1 << 41, "absurd numbers are cut");
        for nonsense in ["", "9[]", "x[\"a\",\"b\",\"c\"]", "7[\"a\",\"b\",\"c\"]", "1[\"a\"]"] {
            assert_eq!(place_from(1, nonsense), None, "{nonsense}");
        }
    }
}
