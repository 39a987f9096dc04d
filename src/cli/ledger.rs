//! `tollgate ledger`: verify that every counter is what the rows say, and export everything as JSON Lines.

use super::args::ConfigArg;
use super::load::{self, Secrets};
use super::output::{Align, Failure, Table, grouped, print, print_json};
use super::store;
use crate::base::time::Unix;
use crate::io::store::api::{DayKey, Entry, Sums, Verdict};
use crate::io::store::keyform::hex;
use crate::policy::row::Row;
use crate::policy::window::{self, DAY_MS};
use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::json;
use std::io::{ErrorKind, Write};

/// What can be done with the ledger.
#[derive(Subcommand, Debug)]
pub enum LedgerCommand {
    /// Recompute every counter from the rows and compare; exit code 1 if one differs
    Verify(VerifyArgs),
    /// Print everything as JSON Lines: one object per request, and one per daily sum of requests folded away
    Export(ExportArgs),
}

/// `tollgate ledger verify`.
#[derive(Args, Debug)]
pub struct VerifyArgs {
    /// Which configuration.
    #[command(flatten)]
    pub config: ConfigArg,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `tollgate ledger export`.
#[derive(Args, Debug)]
pub struct ExportArgs {
    /// Which configuration.
    #[command(flatten)]
    pub config: ConfigArg,
}

/// Does what was asked.
pub fn run(command: &LedgerCommand) -> Result<(), Failure> {
    match command {
        LedgerCommand::Verify(args) => verify(args),
        LedgerCommand::Export(args) => export(args),
    }
}

fn verify(args: &VerifyArgs) -> Result<(), Failure> {
    let high = load::load(&args.config, Secrets::Optional)?;
    let verdict = match store::open_existing(&high)? {
        Some(mut ledger) => ledger.verify().map_err(Failure::failed)?,
        None => Verdict::default(),
    };
    if args.json {
        print_json(&verdict_json(&verdict))?
    } else {
        print(&verdict_text(&verdict))?
    }
    match verdict.differences.len() {
        0 => Ok(()),
        1 => Err(Failure::failed("1 counter is not what the rows say")),
        count => Err(Failure::failed(format!("{count} counters are not what the rows say"))),
    }
}

fn verdict_json(verdict: &Verdict) -> serde_json::Value {
    let differences = verdict.differences.iter();
    let differences: Vec<_> = differences
        .map(|found| json!({"counter": found.counter, "stored": found.stored, "counted": found.counted}))
        .collect();
    json!({
        "agrees": verdict.differences.is_empty(),
        "rows": verdict.rows,
        "folded_requests": verdict.folded,
        "counters": verdict.counters,
        "differences": differences,
    })
}

fn verdict_text(verdict: &Verdict) -> String {
    if verdict.differences.is_empty() {
        let (rows, folded, counters) = (verdict.rows, verdict.folded, verdict.counters);
        let [rows, folded, counters] = [rows, folded, counters].map(grouped);
        return format!("ok: {counters} counters agree with {rows} rows and {folded} folded requests\n");
    }
    let mut table = Table::new(&[("COUNTER", Align::Left), ("STORED", Align::Right), ("COUNTED", Align::Right)]);
    for found in &verdict.differences {
        table.row(vec![found.counter.clone(), grouped(found.stored), grouped(found.counted)]);
    }
    table.text()
}

fn export(args: &ExportArgs) -> Result<(), Failure> {
    let high = load::load(&args.config, Secrets::Optional)?;
    let Some(mut ledger) = store::open_existing(&high)? else { return Ok(()) };
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let mut written = Ok(());
    let exported = ledger.export(&mut |entry| {
        written = write_entry(&entry, &mut out);
        written.is_ok()
    });
    exported.map_err(Failure::failed)?;
    match written.and_then(|()| out.flush()) {
        // A reader that has gone away (`| head`) is no failure.
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::failed(format!("standard output: {error}")))
        }
        _ => Ok(()),
    }
}

fn write_entry(entry: &Entry, out: &mut impl Write) -> std::io::Result<()> {
    match entry {
        Entry::Request(row) => serde_json::to_writer(&mut *out, &RequestLine::new(row))?,
        Entry::Folded(key, sums) => serde_json::to_writer(&mut *out, &FoldedLine::new(key, *sums))?,
    }
    out.write_all(b"\n")
}

/// A request as JSON.
#[derive(Serialize)]
struct RequestLine<'a> {
    entry: &'static str,
    request_id: String,
    key: &'a str,
    admitted: String,
    admitted_unix_ms: u64,
    model: &'a str,
    target: &'a str,
    endpoint: &'static str,
    stream: bool,
    status: u16,
    uncached_input_tokens: u64,
    cache_read_tokens: u64,
    cache_write_tokens: u64,
    output_tokens: u64,
    source: &'static str,
    cost_nano_usd: u64,
    attempts: u32,
    micros: u64,
}

impl RequestLine<'_> {
    fn new(row: &Row) -> RequestLine<'_> {
        RequestLine {
            entry: "request",
            request_id: format!("req_{}", hex(&row.request)),
            key: row.key.as_str(),
            admitted: window::iso(row.admitted),
            admitted_unix_ms: row.admitted.0,
            model: &row.model,
            target: &row.target,
            endpoint: row.endpoint.name(),
            stream: row.stream,
            status: row.status,
            uncached_input_tokens: row.usage.uncached_in,
            cache_read_tokens: row.usage.cache_read,
            cache_write_tokens: row.usage.cache_write,
            output_tokens: row.usage.out,
            source: row.usage.source.as_str(),
            cost_nano_usd: row.cost_nano,
            attempts: row.attempts,
            micros: row.micros,
        }
    }
}

/// What is left of a day's requests that were folded away, as JSON.
#[derive(Serialize)]
struct FoldedLine<'a> {
    entry: &'static str,
    day: String,
    key: &'a str,
    model: &'a str,
    target: &'a str,
    requests: u64,
    uncached_input_tokens: u64,
    cache_read_tokens: u64,
    cache_write_tokens: u64,
    output_tokens: u64,
    cost_nano_usd: u64,
}

impl FoldedLine<'_> {
    fn new(key: &DayKey, sums: Sums) -> FoldedLine<'_> {
        let [requests, uncached_input_tokens, cache_read_tokens, cache_write_tokens, output_tokens, cost_nano_usd] =
            sums;
        FoldedLine {
            entry: "folded",
            day: window::date(Unix(key.day.saturating_mul(DAY_MS))),
            key: &key.key,
            model: &key.model,
            target: &key.target,
            requests,
            uncached_input_tokens,
            cache_read_tokens,
            cache_write_tokens,
            output_tokens,
            cost_nano_usd,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::store::api::Difference;

    #[test]
    fn an_agreement_is_one_line_and_a_difference_a_table() {
        let mut verdict = Verdict { rows: 1200, folded: 3, counters: 6, differences: Vec::new() };
        assert_eq!(verdict_text(&verdict), "ok: 6 counters agree with 1_200 rows and 3 folded requests\n");
        assert_eq!(verdict_json(&verdict)["agrees"], true);
        verdict.differences.push(Difference { counter: "requests of a".to_string(), stored: 5, counted: 6 });
        assert!(verdict_text(&verdict).lines().nth(1).is_some_and(|line| line.ends_with("5        6")));
        assert_eq!(verdict_json(&verdict)["differences"][0]["counted"], 6);
    }

    #[test]
    fn every_entry_is_one_line_of_json() {
        let key = DayKey { day: 1, key: "k".to_string(), model: "m\n".to_string(), target: String::new() };
        let mut out = Vec::new();
        write_entry(&Entry::Folded(key, [1, 2, 3, 4, 5, 6]), &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!((text.lines().count(), text.ends_with('\n')), (1, true));
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((value["day"].as_str(), value["cost_nano_usd"].as_u64()), (Some("1970-01-02"), Some(6)));
    }
}
