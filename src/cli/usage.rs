//! `tollgate usage`: requests, tokens and cost out of the ledger, over whole UTC days.

use super::args::ConfigArg;
use super::load::{self, Secrets};
use super::output::{Align, Failure, Table, dollars, grouped, print, print_json};
use super::store;
use crate::base::time::Unix;
use crate::io::store::api::{By, UsageLine};
use crate::policy::keys::KeyRecord;
use crate::policy::window::parse_moment;
use clap::{Args, ValueEnum};
use serde::Serialize;

/// `tollgate usage`.
#[derive(Args, Debug)]
pub struct UsageArgs {
    /// Which configuration.
    #[command(flatten)]
    pub config: ConfigArg,
    /// What a line stands for
    #[arg(long, value_enum, default_value_t = Breakdown::Key)]
    pub by: Breakdown,
    /// First day, YYYY-MM-DD (UTC) [default: the first on record]
    #[arg(long, value_name = "DATE", value_parser = parse_date)]
    pub since: Option<Unix>,
    /// Day after the last, YYYY-MM-DD (UTC) [default: none]
    #[arg(long, value_name = "DATE", value_parser = parse_date)]
    pub until: Option<Unix>,
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
}

/// What a line of the report stands for.
#[derive(ValueEnum, Copy, Clone, PartialEq, Eq, Debug)]
pub enum Breakdown {
    /// A key.
    Key,
    /// A model of the catalog.
    Model,
    /// A day (UTC).
    Day,
    /// A provider's model.
    Target,
}

impl Breakdown {
    fn by(self) -> By {
        match self {
            Breakdown::Key => By::Key,
            Breakdown::Model => By::Model,
            Breakdown::Day => By::Day,
            Breakdown::Target => By::Target,
        }
    }

    fn head(self) -> &'static str {
        match self {
            Breakdown::Key => "KEY",
            Breakdown::Model => "MODEL",
            Breakdown::Day => "DAY",
            Breakdown::Target => "TARGET",
        }
    }
}

fn parse_date(text: &str) -> Result<Unix, String> {
    let date = if text.len() == 10 { parse_moment(text) } else { None };
    date.ok_or_else(|| "expected a date such as 2026-11-20".to_string())
}

/// One line as JSON.
#[derive(Serialize)]
struct Line<'a> {
    /// Key id, model, date or target.
    #[serde(rename = "name")]
    subject: &'a str,
    /// The key's name, in a report by key.
    #[serde(skip_serializing_if = "Option::is_none")]
    key_name: Option<&'a str>,
    requests: u64,
    uncached_input_tokens: u64,
    cache_read_tokens: u64,
    cache_write_tokens: u64,
    output_tokens: u64,
    total_tokens: u64,
    /// For people; the exact amount is the next one.
    cost_usd: f64,
    cost_nano_usd: u64,
}

/// Prints the report.
pub fn run(args: &UsageArgs) -> Result<(), Failure> {
    if let (Some(since), Some(until)) = (args.since, args.until)
        && since >= until
    {
        return Err(Failure::misused("--since must lie before --until"));
    }
    let high = load::load(&args.config, Secrets::Optional)?;
    let (mut usage, mut keys) = (Vec::new(), Vec::new());
    if let Some(mut ledger) = store::open_existing(&high)? {
        usage = ledger.usage(args.by.by(), args.since, args.until).map_err(Failure::failed)?;
        if args.by == Breakdown::Key {
            keys = ledger.list_keys().map_err(Failure::failed)?;
        }
    }
    let lines = lines(&usage, args.by, &keys);
    if args.json { print_json(&lines) } else { print(&table(args.by, &lines)) }
}

fn lines<'a>(usage: &'a [UsageLine], by: Breakdown, keys: &'a [KeyRecord]) -> Vec<Line<'a>> {
    let name_of = |id: &str| keys.iter().find(|key| key.id.as_str() == id).map_or("", |key| key.name.as_str());
    let line = usage.iter().map(|line| Line {
        subject: &line.name,
        key_name: (by == Breakdown::Key).then(|| name_of(&line.name)),
        requests: line.requests,
        uncached_input_tokens: line.uncached_in,
        cache_read_tokens: line.cache_read,
        cache_write_tokens: line.cache_write,
        output_tokens: line.out,
        total_tokens: [line.uncached_in, line.cache_read, line.cache_write, line.out].into_iter().sum(),
        cost_usd: line.cost_nano as f64 / 1e9,
        cost_nano_usd: line.cost_nano,
    });
    line.collect()
}

fn table(by: Breakdown, lines: &[Line<'_>]) -> String {
    let mut heads = vec![(by.head(), Align::Left)];
    if by == Breakdown::Key {
        heads.push(("NAME", Align::Left));
    }
    let counts = ["REQUESTS", "INPUT", "CACHE READ", "CACHE WRITE", "OUTPUT", "TOKENS", "COST $"];
    heads.extend(counts.map(|head| (head, Align::Right)));
    let mut table = Table::new(&heads);
    let mut sums = [0u64; 7];
    for line in lines {
        let counts = [
            line.requests,
            line.uncached_input_tokens,
            line.cache_read_tokens,
            line.cache_write_tokens,
            line.output_tokens,
            line.total_tokens,
            line.cost_nano_usd,
        ];
        for (sum, count) in sums.iter_mut().zip(counts) {
            *sum = sum.saturating_add(count);
        }
        let subject = if line.subject.is_empty() { "(none)" } else { line.subject };
        table.row(row(subject, line.key_name, counts));
    }
    if lines.len() > 1 {
        table.row(row("total", (by == Breakdown::Key).then_some(""), sums));
    }
    table.text()
}

/// Subject, name where there is such a column, counts, and the last of them as money.
fn row(subject: &str, name: Option<&str>, counts: [u64; 7]) -> Vec<String> {
    let mut row = vec![subject.to_string()];
    row.extend(name.map(str::to_string));
    let [tokens @ .., nano] = counts;
    row.extend(tokens.map(grouped));
    row.push(dollars(nano));
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(name: &str, count: u64) -> UsageLine {
        UsageLine {
            name: name.to_string(),
            requests: count,
            uncached_in: 1000 * count,
            cache_read: 2,
            cache_write: 3,
            out: 4,
            cost_nano: 500_000_000 * count,
            last: None,
        }
    }

    #[test]
    fn lines_are_summed_up_below() {
        let usage = [usage("a", 1), usage("", 2)];
        let text = table(Breakdown::Model, &lines(&usage, Breakdown::Model, &[]));
        let cells =
            |line: &str| line.split("  ").map(|cell| cell.trim().to_string()).filter(|cell| !cell.is_empty()).collect();
        let cells: Vec<Vec<String>> = text.lines().skip(1).map(cells).collect();
        assert_eq!(cells[0], ["a", "1", "1 000", "2", "3", "4", "1 009", "0.5000"]);
        assert_eq!(cells[1][0], "(none)");
        assert_eq!(cells[2], ["total", "3", "3 000", "4", "6", "8", "3 018", "1.5000"]);
    }

    #[test]
    fn a_single_line_has_no_sum_and_no_lines_leave_the_heading() {
        let one = [usage("a", 1)];
        assert_eq!(table(Breakdown::Day, &lines(&one, Breakdown::Day, &[])).lines().count(), 2);
        let text = table(Breakdown::Target, &[]);
        assert!(text.starts_with("TARGET") && text.lines().count() == 1, "{text}");
    }

    #[test]
    fn json_carries_exact_counts_and_the_name_of_a_key_only_by_key() {
        let one = [usage("a", 1)];
        let json = serde_json::to_value(lines(&one, Breakdown::Day, &[])).unwrap();
        assert_eq!((json[0]["name"].as_str(), json[0]["total_tokens"].as_u64()), (Some("a"), Some(1009)));
        assert_eq!((json[0]["cost_nano_usd"].as_u64(), json[0]["cost_usd"].as_f64()), (Some(500_000_000), Some(0.5)));
        assert!(json[0].get("key_name").is_none());
        let json = serde_json::to_value(lines(&one, Breakdown::Key, &[])).unwrap();
        assert_eq!(json[0]["key_name"], "");
    }

    #[test]
    fn dates_are_whole_days() {
        assert_eq!(parse_date("1970-01-02"), Ok(Unix(86_400_000)));
        for wrong in ["2026-11-20T10:00:00Z", "20.11.2026", "2026-13-01", ""] {
            assert!(parse_date(wrong).is_err(), "{wrong}");
        }
    }
}
