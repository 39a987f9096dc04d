//! Table of reasons: failed requests and attempts by reason, target and key, with their number, the first and the last
//! time, and the id of one of them. It outlives the lists of single failures: a day, unless there are too many rows.

use super::reason::reason;
use crate::base::hash::mix_bytes;
use crate::base::time::Unix;
use crate::gateway::counters::ReasonRow;
use crate::policy::window;
use crate::wire::json::{Raw, item, key, member_count, member_string};
use std::cmp::Reverse;

/// Maximum number of rows. A further one replaces the oldest row of the key with the most rows.
const ROWS_MAX: usize = 256;
/// Time without a failure after which a row is replaced first.
const DAY_MS: u64 = 24 * 3_600_000;
/// Time for which refusals of a caller are counted.
const REFUSED_MS: u64 = 300_000;
/// Maximum bytes of a reason.
const REASON_BYTES_MAX: usize = 160;
/// Maximum number of keys that are named as the callers of a target.
const CALLERS_MAX: usize = 5;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Reasons {
    /// Numbers of the rows, in their order; 0 for a predecessor's row without a failure in this process.
    kinds: Vec<u64>,
    pub(super) rows: Vec<ReasonRow>,
}

/// Members that distinguish a row.
struct Cell<'a> {
    reason: &'a str,
    target: &'a str,
    model: &'a str,
    kind: u64,
    is_answered: bool,
}

impl Reasons {
    /// Counts a failed request of a known kind; false if there is no row for it.
    pub(super) fn count(&mut self, kind: u64, now: Unix) -> bool {
        let Some(at) = self.kinds.iter().position(|known| *known == kind) else { return false };
        let row = &mut self.rows[at];
        (row.failed, row.last) = (row.failed + 1, now);
        true
    }

    /// Adds a request that failed, or had a failed attempt. `line`: its log line. `kind`: the number that requests with
    /// the same reason and key share.
    pub(super) fn add(&mut self, kind: u64, line: Raw<'_>, now: Unix) {
        let status = line.get("status").and_then(Raw::count).unwrap_or_default();
        let target = text(line, "target");
        let model = &text(line, if line.get("model").is_some() { "model" } else { "asked" });
        let failed = line.get("failed");
        for attempt in failed.iter().flat_map(|list| list.items()) {
            let (target, cause) = (text(attempt, "target"), general(text(attempt, "cause")));
            let of_attempt = mix_bytes(mix_bytes(u64::from(status < 400), target.as_bytes()), cause.as_bytes());
            let kind = mix_bytes(mix_bytes(of_attempt, text(line, "key").as_bytes()), model.as_bytes());
            let (reason, target, is_answered) = (&*cause, &*target, status < 400);
            self.put(&Cell { reason, target, model, kind, is_answered }, status, line, now);
        }
        if status >= 400 {
            let reason = general(reason(line).unwrap_or_default());
            self.put(&Cell { reason: &reason, target: &target, model, kind, is_answered: false }, status, line, now);
        }
    }

    fn put(&mut self, cell: &Cell<'_>, status: u64, line: Raw<'_>, now: Unix) {
        let id = text(line, "key");
        let is_same = |row: &ReasonRow| {
            (&*row.reason, &*row.target, &*row.model, &row.key[0]) == (cell.reason, cell.target, cell.model, &id)
                && (row.failed == 0) == cell.is_answered
        };
        let known = self.kinds.iter().position(|known| *known == cell.kind);
        // Another kind that reads the same shares the row: a reload gives the same reason another number.
        let known = known.or_else(|| self.rows.iter().position(is_same));
        let at = known.unwrap_or_else(|| {
            if self.rows.len() >= ROWS_MAX {
                self.drop_one(now);
            }
            self.kinds.push(cell.kind);
            self.rows.push(ReasonRow {
                reason: cell.reason.to_string(),
                status,
                target: cell.target.to_string(),
                model: cell.model.to_string(),
                key: ["key", "name"].map(|name| text(line, name)),
                failed: 0,
                answered: 0,
                first: now,
                last: now,
                id: String::new(),
            });
            self.rows.len() - 1
        });
        self.kinds[at] = cell.kind;
        let row = &mut self.rows[at];
        row.failed += u64::from(!cell.is_answered);
        row.answered += u64::from(cell.is_answered);
        (row.last, row.id) = (now, text(line, "id"));
    }

    /// Continues with the rows of a predecessor, whose numbers have no meaning here.
    pub(super) fn inherited(rows: Vec<ReasonRow>) -> Reasons {
        Reasons { kinds: vec![0; rows.len()], rows }
    }

    /// Drops the oldest row that has had no failure for a day, or else the oldest row of the key with the most rows.
    fn drop_one(&mut self, now: Unix) {
        let rows_of = |key: &str| self.rows.iter().filter(|row| row.key[0] == key).count();
        let order = |row: &ReasonRow| match row.last.0 + DAY_MS < now.0 {
            true => (0, Reverse(0), row.last),
            false => (1, Reverse(rows_of(&row.key[0])), row.last),
        };
        if let Some(at) = (0..self.rows.len()).min_by_key(|at| order(&self.rows[*at])) {
            self.kinds.swap_remove(at);
            self.rows.swap_remove(at);
        }
    }

    /// Names of the keys whose requests have failed at a target since this time.
    pub(super) fn callers_at(&self, target: &str, since: Unix) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for row in self.rows.iter().filter(|row| row.target == target && row.last >= since) {
            let [id, name] = &row.key;
            let name = if name.is_empty() { id } else { name };
            if names.len() < CALLERS_MAX && !name.is_empty() && !names.contains(name) {
                names.push(name.clone());
            }
        }
        names
    }

    /// Time of the first refusal of a key, or of a model, in the last five minutes, unless it was refused for the same
    /// reason before them.
    pub(super) fn first_refusal(&self, what: &str, id: &str, now: Unix) -> Option<Unix> {
        let is_own = |row: &&ReasonRow| {
            let own = if what == "key" { &row.key[0] } else { &row.model };
            own == id && (400..499).contains(&row.status) && row.first.0 + REFUSED_MS > now.0
        };
        self.rows.iter().filter(is_own).map(|row| row.first).min()
    }

    /// Appends the rows, those with the most failed requests first.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let mut rows: Vec<&ReasonRow> = self.rows.iter().collect();
        rows.sort_unstable_by_key(|row| Reverse((row.failed, row.answered, row.last)));
        for row in rows {
            item(out);
            row.write(out);
        }
    }
}

impl ReasonRow {
    fn write(&self, out: &mut Vec<u8>) {
        let manual = if self.target.is_empty() { "rejections-by-tollgate" } else { "failures-of-providers" };
        out.push(b'{');
        for (name, value) in [
            ("reason", &self.reason),
            ("target", &self.target),
            ("model", &self.model),
            ("key", &self.key[0]),
            ("name", &self.key[1]),
            ("id", &self.id),
            ("manual", &["reference/causes.md#", manual].concat()),
        ] {
            member_string(out, name, value);
        }
        member_count(out, "status", self.status);
        member_count(out, "failed", self.failed);
        member_count(out, "answered", self.answered);
        for (name, at) in [("first", self.first), ("last", self.last)] {
            key(out, name);
            out.push(b'"');
            window::write_iso(at, out);
            out.push(b'"');
        }
        out.push(b'}');
    }
}

fn text(line: Raw<'_>, name: &str) -> String {
    line.get(name).and_then(Raw::text).map_or(String::new(), |text| text.into_owned())
}

/// A reason without the numbers that differ from request to request, cut.
fn general(reason: String) -> String {
    let mut text = reason;
    for before in [" after ", "; "] {
        if let Some(at) =
            text.find(before).filter(|at| text[at + before.len()..].starts_with(|c: char| c.is_ascii_digit()))
        {
            let digits = at + before.len();
            let rest = text[digits..].find(|c: char| !(c.is_ascii_alphanumeric() || c == '.' || c == ' '));
            text.replace_range(at..rest.map_or(text.len(), |rest| digits + rest), "");
        }
    }
    let end = (0..=REASON_BYTES_MAX.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    text.truncate(end.unwrap_or(0));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOWN: &str = r#"{"id":"req_1","status":500,"key":"AAAA","name":"ann","model":"m","target":"b/m",
        "cause":"reset after 3 events","failed":[{"target":"a/m","cause":"connect: refused","us":9}]}"#;

    fn rows(reasons: &Reasons) -> Vec<(String, String, u64, u64)> {
        let mut out = b"[".to_vec();
        reasons.write(&mut out);
        out.push(b']');
        let of = |row: Raw<'_>, name: &str| row.get(name).and_then(Raw::count).unwrap();
        Raw::new(&out)
            .items()
            .map(|row| (text(row, "reason"), text(row, "target"), of(row, "failed"), of(row, "answered")))
            .collect()
    }

    #[test]
    fn failures_count_by_reason_target_and_key() {
        let mut reasons = Reasons::default();
        let saved = DOWN.replace("500", "200").replace(r#""cause":"reset after 3 events","#, "");
        for (line, kind, at) in [(DOWN, 1, 10), (&DOWN.replace("3 ev", "7 ev"), 1, 20), (&saved, 2, 30)] {
            reasons.add(kind, Raw::new(line.as_bytes()), Unix(at));
        }
        let refused = r#"{"id":"req_2","status":429,"key":"BBBB","name":"flood","limit":"requests"}"#;
        assert!(!reasons.count(3, Unix(40)));
        reasons.add(3, Raw::new(refused.as_bytes()), Unix(40));
        (0..8).for_each(|_| assert!(reasons.count(3, Unix(50))));
        let row = |reason: &str, target: &str, failed, answered| (reason.into(), target.into(), failed, answered);
        assert_eq!(
            rows(&reasons),
            [
                row("limit: requests of the key", "", 9, 0),
                row("connect: refused", "a/m", 2, 0),
                row("reset", "b/m", 2, 0),
                row("connect: refused", "a/m", 0, 1),
            ]
        );
        assert_eq!(reasons.callers_at("a/m", Unix(0)), ["ann"]);
        assert_eq!(reasons.callers_at("b/m", Unix(21)), [""; 0]);
        // Two more rows: the same reason under another number, and another model.
        reasons.add(9, Raw::new(refused.as_bytes()), Unix(60));
        reasons.add(10, Raw::new(refused.replace("flood\"", "flood\",\"model\":\"x\"").as_bytes()), Unix(60));
        let rows = reasons.rows.iter().filter(|row| row.status == 429);
        assert_eq!(rows.map(|row| (&*row.model, row.failed)).collect::<Vec<_>>(), [("", 10), ("x", 1)]);
        let words = ["client left after 12.1 s", "invalid JSON after 17 bytes", "status 503: after"].map(String::from);
        assert_eq!(words.map(general), ["client left", "invalid JSON", "status 503: after"]);
    }

    #[test]
    fn one_key_does_not_displace_the_rows_of_others() {
        let mut reasons = Reasons::default();
        reasons.add(0, Raw::new(DOWN.as_bytes()), Unix(1));
        for kind in 1..1000 {
            let line = format!(r#"{{"status":404,"key":"CCCC","name":"scan","asked":"m{kind}"}}"#);
            reasons.add(kind, Raw::new(line.as_bytes()), Unix(kind));
        }
        assert_eq!((reasons.rows.len(), reasons.kinds.len()), (ROWS_MAX, ROWS_MAX));
        assert_eq!(reasons.callers_at("a/m", Unix(0)), ["ann"]);
        reasons.add(2000, Raw::new(br#"{"status":401}"#), Unix(DAY_MS + 10));
        assert!(reasons.callers_at("a/m", Unix(0)).is_empty(), "a day has passed");
    }
}
