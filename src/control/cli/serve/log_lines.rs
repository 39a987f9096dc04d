//! Log lines of the program around the event loop.

use crate::base::time::Unix;
use crate::io::clock::unix;
use crate::policy::window;
use std::path::Path;

/// A log line about rows that a spill file has.
pub(super) fn spilled(rows: u64, path: &Path) -> Vec<u8> {
    rows_line("spilled", rows, "file", &path.to_string_lossy())
}

/// A log line about rows that are not in the ledger.
pub(super) fn rows_line(outcome: &str, rows: u64, member: &str, text: &str) -> Vec<u8> {
    let (time, text) = (window::iso(unix()), serde_json::Value::from(text));
    format!(
        "{{\"time\":\"{time}\",\"event\":\"ledger\",\"outcome\":\"{outcome}\",\"rows\":{rows},\
         \"{member}\":{text}}}\n"
    )
    .into_bytes()
}

/// The last log line: requests admitted but not settled, rows missing in the ledger and, if spans are exported, spans
/// missing at the collector.
pub(super) fn stopped(unsettled: usize, rows: u64, spans: Option<u64>, now: Unix) -> Vec<u8> {
    let time = window::iso(now);
    let spans = spans.map_or(String::new(), |spans| format!(",\"spans_left\":{spans}"));
    format!("{{\"time\":\"{time}\",\"event\":\"stopped\",\"unsettled\":{unsettled},\"rows_left\":{rows}{spans}}}\n")
        .into_bytes()
}

/// A log line with a warning for the operator.
pub(super) fn warning(text: &str, now: Unix) -> Vec<u8> {
    let text = serde_json::Value::from(text);
    format!("{{\"time\":\"{}\",\"event\":\"warning\",\"message\":{text}}}\n", window::iso(now)).into_bytes()
}
