//! `tollgate requests --reasons`: failures of a day by reason, target, model and key.

use crate::cli::output::{Align, Failure, Table, grouped, print, print_json, remark};
use serde_json::Value;

/// Prints the table in an answer of the admin API, the reasons with the most failed requests first.
pub(super) fn run(body: &[u8], json: bool, wide: bool) -> Result<(), Failure> {
    let document: Value = serde_json::from_slice(body).map_err(Failure::failed)?;
    if json {
        return print_json(&document["data"]);
    }
    let rows = document["data"].as_array().map_or(&[][..], Vec::as_slice);
    if rows.is_empty() {
        remark("No request has failed since the gateway started, or for a day.");
        return Ok(());
    }
    print(&table(rows, wide))
}

fn table(rows: &[Value], wide: bool) -> String {
    let [left, right] = [Align::Left, Align::Right];
    let mut table = Table::new(&[
        ("FAILED", right),
        ("ANSWERED ELSEWHERE", right),
        ("REASON", left),
        ("TARGET", Align::Name),
        ("MODEL", Align::Name),
        ("KEY", Align::Name),
        ("FIRST", left),
        ("LAST", left),
        ("ID", left),
    ])
    .fit(wide, &["ID", "FIRST", "ANSWERED ELSEWHERE"]);
    for row in rows {
        let text = |name: &str| row[name].as_str().filter(|text| !text.is_empty()).unwrap_or("-").to_string();
        let count = |name: &str| grouped(row[name].as_u64().unwrap_or_default());
        let key = text(if row["name"] == "" { "key" } else { "name" });
        let [failed, answered] = [count("failed"), count("answered")];
        let [first, last] = ["first", "last"].map(text);
        let [target, model] = ["target", "model"].map(text);
        table.row(vec![failed, answered, text("reason"), target, model, key, first, last, text("id")]);
    }
    table.text()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn row_names_reason_target_and_key() {
        let row = json!({ "reason": "status 429", "target": "charlie/m", "model": "small", "key": "AAAA", "name": "", "failed": 1234,
            "answered": 0, "first": "2026-11-28T21:20:45Z", "last": "2026-11-28T21:31:00Z", "id": "req_1" });
        let text = table(&[row], true);
        let cells: Vec<&str> =
            text.lines().nth(1).unwrap().split("  ").map(str::trim).filter(|one| !one.is_empty()).collect();
        let times = ["2026-11-28T21:20:45Z", "2026-11-28T21:31:00Z"];
        assert_eq!(
            cells,
            ["1 234", "0", "status 429", "charlie/m", "small", "AAAA", times[0], times[1], "req_1"],
            "{text}"
        );
    }
}
