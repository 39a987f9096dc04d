//! Forms of a usage report: JSON, comma-separated values, a table.

use super::parts::{KeyDetails, Part, is_by_session};
use super::sessions::{SessionDetail, Sessions};
use crate::cli::output::{Align, Table, clean, dollars, grouped};
use crate::store::api::{By, REST, UsageLine};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

/// Counts of every line, in order: the sums, and all tokens before the last.
const COUNTS: [&str; 7] = [
    "requests",
    "uncached_input_tokens",
    "cache_read_tokens",
    "cache_write_tokens",
    "output_tokens",
    "total_tokens",
    "cost_nano_usd",
];

fn counts(line: &UsageLine) -> [u64; 7] {
    let [requests, tokens @ .., cost] = line.sums();
    let [uncached, read, write, out] = tokens;
    [requests, uncached, read, write, out, tokens.iter().fold(0, |sum: u64, part| sum.saturating_add(*part)), cost]
}

/// The counts with all input tokens instead of the uncached ones: input and output are all tokens, even if columns are
/// omitted.
fn with_cached_input([requests, uncached, read, write, rest @ ..]: [u64; 7]) -> [u64; 7] {
    let [out, total, cost] = rest;
    [requests, uncached.saturating_add(read).saturating_add(write), read, write, out, total, cost]
}

/// Columns that are omitted, in this order, if the terminal is too narrow.
const SPARE: [&str; 7] = ["CACHE WRITE", "CACHE READ", "INPUT", "OUTPUT", "KEY", "FIRST USE", "TOKENS"];

/// An object whose members keep their order.
pub(in crate::cli) struct OrderedObject(Vec<(String, Value)>);

impl Serialize for OrderedObject {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

/// Lines, and the properties in their breakdown.
pub(super) struct Report<'a> {
    pub(super) parts: &'a [Part],
    pub(super) lines: &'a [UsageLine],
    pub(super) keys: &'a KeyDetails,
    /// Details of the sessions in the lines, in a report by session.
    pub(super) sessions: &'a Sessions,
    /// True for a model without a price.
    pub(super) is_free: &'a dyn Fn(&str) -> bool,
}

impl Report<'_> {
    /// Values of a line's breakdown, each with its name. A key also has its own name, and a session details.
    fn names(&self, line: &UsageLine) -> Vec<(String, String)> {
        let values = [Some(&line.name), line.second.as_ref()];
        let mut names = Vec::new();
        for (part, value) in self.parts.iter().zip(values.into_iter().flatten()) {
            let shown = if value == REST { "other" } else { value };
            names.push((part.name(), shown.to_string()));
            if part.by() == By::Key && matches!(part, Part::Sums(..)) {
                let name = self.keys.get(value).and_then(|key| key.name.clone());
                names.push(("key_name".to_string(), name.unwrap_or_default()));
            }
        }
        if is_by_session(self.parts) {
            let session = self.sessions.get(&line.name);
            let key = session.and_then(SessionDetail::key).map_or(String::new(), |id| id.to_string());
            let key_name = self.keys.get(&key).and_then(|key| key.name.clone()).unwrap_or_default();
            let [client, first, last] = session.map_or(Default::default(), SessionDetail::texts);
            let details =
                [("key", key), ("key_name", key_name), ("client", client), ("first_use", first), ("last_use", last)];
            names.extend(details.map(|(name, value)| (name.to_string(), value)));
        }
        names
    }

    /// Objects: `name` is the first value; with two properties, each also has a member of its own.
    pub(super) fn json(&self) -> Vec<OrderedObject> {
        let object = |line: &UsageLine| {
            let names = self.names(line);
            let single = self.parts.len() == 1;
            let mut members = vec![("name".to_string(), json!(names[0].1))];
            let is_unknown = |value: &str| value.is_empty() && is_by_session(self.parts);
            let member =
                |(name, value): (String, String)| (name, if is_unknown(&value) { Value::Null } else { json!(value) });
            members.extend(names.into_iter().skip(usize::from(single)).map(member));
            if line.name == REST || line.second.as_deref() == Some(REST) {
                members.push(("is_rest".to_string(), json!(true)));
            }
            members.extend(COUNTS.iter().zip(counts(line)).map(|(name, count)| ((*name).to_string(), json!(count))));
            // Approximate; the exact amount is the member before.
            members.push(("cost_usd".to_string(), json!(line.cost_nano as f64 / 1e9)));
            OrderedObject(members)
        };
        self.lines.iter().map(object).collect()
    }

    /// RFC 4180, with a header line. A value that a spreadsheet would take for a formula gets an apostrophe.
    pub(super) fn csv(&self) -> String {
        let blank = UsageLine { second: Some(String::new()), ..UsageLine::default() };
        let heads = self.names(&blank).into_iter().map(|(name, _)| name);
        let mut out = heads.chain(COUNTS.map(str::to_string)).collect::<Vec<_>>().join(",") + "\r\n";
        for line in self.lines {
            let names = self.names(line).into_iter().map(|(_, value)| cell(&value));
            let counts = counts(line).map(|count| count.to_string());
            out += &(names.chain(counts).collect::<Vec<_>>().join(",") + "\r\n");
        }
        out
    }

    pub(super) fn table(&self, wide: bool) -> String {
        let blank = UsageLine { second: Some(String::new()), ..UsageLine::default() };
        let heads: Vec<String> = self.names(&blank).into_iter().map(|(name, _)| name).collect();
        let heads: Vec<String> = heads
            .iter()
            .map(|name| if name == "key_name" { "NAME".to_string() } else { name.to_uppercase().replace('_', " ") })
            .collect();
        let mut columns: Vec<(&str, Align)> = heads.iter().map(|name| (name.as_str(), align(name))).collect();
        let counts_heads = ["REQUESTS", "INPUT", "CACHE READ", "CACHE WRITE", "OUTPUT", "TOKENS", "COST $"];
        columns.extend(counts_heads.map(|head| (head, Align::Right)));
        let mut table = Table::new(&columns).fit(wide, &SPARE);
        let mut total = [0u64; 7];
        for line in self.lines {
            let counts = with_cached_input(counts(line));
            total.iter_mut().zip(counts).for_each(|(sum, count)| *sum = sum.saturating_add(count));
            let shown = self.names(line).into_iter().enumerate().map(|(at, (name, value))| {
                let is_detail = name == "key_name" || (at > 0 && is_by_session(self.parts));
                if value.is_empty() && !is_detail { "(none)".to_string() } else { clean(&value) }
            });
            let mut cells = row(shown.collect(), counts);
            let is_model = matches!(self.parts, [part] if part.by() == By::Model);
            if is_model
                && line.cost_nano == 0
                && (self.is_free)(&line.name)
                && let Some(cost) = cells.last_mut()
            {
                *cost = "-".to_string();
            }
            table.row(cells);
        }
        if self.lines.len() > 1 {
            table.total(row(Vec::new(), total));
        }
        table.text()
    }
}

/// Ids of keys and days are useless if they are cut.
fn align(head: &str) -> Align {
    if matches!(head, "KEY" | "DAY" | "FIRST USE" | "LAST USE") { Align::Left } else { Align::Name }
}

/// Formats a cell, in quotes if necessary. A spreadsheet must not take it, or the part behind a separator of another
/// language, for a formula.
fn cell(value: &str) -> String {
    let formula = value.starts_with(['=', '+', '-', '@', '\t', '\r', '＝', '＋', '－', '＠']) || value.contains(';');
    let value = if formula { format!("'{value}") } else { value.to_string() };
    match value.contains([',', ';', '"', '\t', '\n', '\r']) {
        true => format!("\"{}\"", value.replace('"', "\"\"")),
        false => value,
    }
}

/// Formats names and counts, the last count as money.
fn row(mut names: Vec<String>, counts: [u64; 7]) -> Vec<String> {
    let [tokens @ .., nano] = counts;
    names.extend(tokens.map(grouped));
    names.push(dollars(nano));
    names
}
