//! `tollgate ledger`: verify every counter against the usage records, export everything as JSON Lines, copy or compact
//! a ledger's file, start again after a shared ledger was lost, and confirm a clock that contradicts the ledger.

mod clock;
mod file;
mod outcomes;

use super::args::ConfigArg;
use super::load::{self, Secrets};
use super::output::{Align, Failure, Table, clean, grouped, print, print_json};
use super::store;
use crate::base::digest::hex;
use crate::base::time::Unix;
use crate::policy::config::Config;
use crate::policy::row::{COLUMNS, ColumnValue, Row};
use crate::policy::window::{self, DAY_MS};
use crate::store::api::{DayKey, Entry, Sums, Verdict};
use crate::store::note::AuditLine;
use crate::wire::json::{self, Raw};
use clap::{Args, Subcommand};
pub use clock::ConfirmArgs;
pub(super) use clock::present;
pub use file::{BackupArgs, CompactArgs};
pub(super) use outcomes::outcomes;
use serde::Serialize;
use serde_json::json;
use std::io::{ErrorKind, Write};

/// Commands about the ledger.
#[derive(Subcommand, Debug)]
pub enum LedgerCommand {
    /// Recompute every counter from the usage records and compare; exit code 1 if one differs
    #[command(after_help = "Example:\n  tollgate ledger verify --json")]
    Verify(VerifyArgs),
    /// List changes of keys and who made them, newest first
    #[command(after_help = "Example:\n  tollgate ledger audit --limit 20")]
    Audit(AuditArgs),
    /// Print all records as JSON Lines: one object per request, or per daily sum of folded requests
    #[command(after_help = "Example:\n  tollgate ledger export > records.jsonl")]
    Export(ExportArgs),
    /// Copy a SQLite ledger, even while a gateway runs
    #[command(after_help = "Example:\n  tollgate ledger backup /backup/tollgate.db")]
    Backup(BackupArgs),
    /// Rewrite a SQLite ledger without unused space and with `store.page_size`; stop the gateway first
    #[command(after_help = "Example:\n  tollgate ledger compact")]
    Compact(CompactArgs),
    /// Accept a shared ledger that was emptied or replaced, for all hosts
    #[command(after_help = "Example:\n  tollgate ledger adopt")]
    Adopt(AdoptArgs),
    /// Compare the clock with the newest usage record and the build date; exit code 1 if it is behind
    #[command(after_help = "Example:\n  tollgate ledger clock")]
    Clock(ConfirmArgs),
    /// Show whether retention may replace old usage records with daily sums; exit code 1 if the clock seems ahead
    #[command(after_help = "Example:\n  tollgate ledger fold --confirm")]
    Fold(ConfirmArgs),
}

impl LedgerCommand {
    /// Configuration options of the command, if any.
    pub fn config(&mut self) -> &mut ConfigArg {
        match self {
            LedgerCommand::Verify(args) => &mut args.config,
            LedgerCommand::Audit(args) => &mut args.config,
            LedgerCommand::Export(args) => &mut args.config,
            LedgerCommand::Backup(args) => &mut args.config,
            LedgerCommand::Compact(args) => &mut args.config,
            LedgerCommand::Adopt(args) => &mut args.config,
            LedgerCommand::Clock(args) | LedgerCommand::Fold(args) => &mut args.config,
        }
    }
}

/// `tollgate ledger verify`.
#[derive(Args, Debug)]
pub struct VerifyArgs {
    /// Configuration options.
    #[command(flatten)]
    pub config: ConfigArg,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `tollgate ledger audit`.
#[derive(Args, Debug)]
pub struct AuditArgs {
    /// Configuration options.
    #[command(flatten)]
    pub config: ConfigArg,
    /// Changes to print
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub limit: usize,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `tollgate ledger export`.
#[derive(Args, Debug)]
pub struct ExportArgs {
    /// Configuration options.
    #[command(flatten)]
    pub config: ConfigArg,
}

/// `tollgate ledger adopt`.
#[derive(Args, Debug)]
pub struct AdoptArgs {
    /// Configuration options.
    #[command(flatten)]
    pub config: ConfigArg,
}

/// Runs the command.
pub fn run(command: &LedgerCommand) -> Result<(), Failure> {
    match command {
        LedgerCommand::Verify(args) => verify(args),
        LedgerCommand::Audit(args) => audit(args),
        LedgerCommand::Export(args) => export(args),
        LedgerCommand::Backup(args) => file::backup(args),
        LedgerCommand::Compact(args) => file::compact(args),
        LedgerCommand::Adopt(args) => {
            let epoch = store::adopt(&load::load(&args.config, Secrets::Optional)?)?;
            print(&format!("adopted: the ledger's epoch is {epoch}; running hosts continue with it within a second\n"))
        }
        LedgerCommand::Clock(args) => clock::clock(args),
        LedgerCommand::Fold(args) => clock::fold(args),
    }
}

fn verify(args: &VerifyArgs) -> Result<(), Failure> {
    let high = load::load(&args.config, Secrets::Optional)?;
    let verdict = store::existing(&high)?.verify().map_err(Failure::failed)?;
    if args.json {
        print_json(&verdict_json(&verdict))?
    } else {
        print(&verdict_text(&verdict))?
    }
    match (verdict.wrong.len(), verdict.differences.len()) {
        (0, count) => differing(count),
        (1, _) => Err(Failure::failed("1 entry is of the wrong type")),
        (count, _) => Err(Failure::failed(format!("{count} entries are of the wrong type"))),
    }
}

fn differing(count: usize) -> Result<(), Failure> {
    match count {
        0 => Ok(()),
        1 => Err(Failure::failed("1 counter differs from the usage records")),
        count => Err(Failure::failed(format!("{count} counters differ from the usage records"))),
    }
}

fn verdict_json(verdict: &Verdict) -> serde_json::Value {
    let differences = verdict.differences.iter();
    let differences: Vec<_> = differences
        .map(|found| json!({"counter": found.counter, "stored": found.stored, "counted": found.counted}))
        .collect();
    json!({
        "agrees": verdict.differences.is_empty() && verdict.wrong.is_empty(),
        "rows": verdict.rows,
        "folded_requests": verdict.folded,
        "counters": verdict.counters,
        "differences": differences,
        "wrong_type": verdict.wrong,
    })
}

fn verdict_text(verdict: &Verdict) -> String {
    let wrong: String = verdict.wrong.iter().map(|name| format!("{} is of the wrong type\n", clean(name))).collect();
    if verdict.differences.is_empty() && !wrong.is_empty() {
        return wrong;
    }
    if verdict.differences.is_empty() {
        let (rows, folded, counters) = (verdict.rows, verdict.folded, verdict.counters);
        let [rows, folded, counters] = [rows, folded, counters].map(grouped);
        return format!("ok: {counters} counters agree with {rows} usage records and {folded} folded requests\n");
    }
    let mut table = Table::new(&[("COUNTER", Align::Left), ("STORED", Align::Right), ("COUNTED", Align::Right)]);
    for found in &verdict.differences {
        table.row(vec![found.counter.clone(), grouped(found.stored), grouped(found.counted)]);
    }
    wrong + &table.text()
}

fn audit(args: &AuditArgs) -> Result<(), Failure> {
    let lines = audited(&load::load(&args.config, Secrets::Optional)?, 0, args.limit as u64, usize::MAX)?;
    if args.json {
        return print(&format!("{}\n", audit_json(&lines)));
    }
    let align = |head| if head == "NAME" { Align::Name } else { Align::Left };
    let heads = ["TIME", "WHO", "WHAT", "KEY", "NAME", "CHANGED"].map(|head| (head, align(head)));
    let mut table = Table::new(&heads).fit(false, &["KEY"]);
    for line in &lines {
        let after = Raw::new(line.after.as_bytes());
        let name = after.get("name").and_then(Raw::text).unwrap_or_default().into_owned();
        let (who, what, key) = (line.who.clone(), line.what.clone(), line.key.clone());
        table.row(vec![window::iso(line.at), who, what, key, name, changed(line, after).join(", ")]);
    }
    print(&table.text())
}

/// Lines of the audit, newest first, without the first `from`: at most `most`, fewer if they exceed `bytes` bytes.
pub(super) fn audited(high: &Config, from: u64, most: u64, bytes: usize) -> Result<Vec<AuditLine>, Failure> {
    store::existing(high)?.audit(from, most, bytes).map_err(Failure::failed)
}

/// Lines of the audit as JSON.
pub(super) fn audit_json(lines: &[AuditLine]) -> String {
    // Bytes of a line besides its texts. Enough are reserved now: a text that grows leaves blocks of memory behind.
    const LINE_BYTES: usize = 100;
    let mut out = Vec::with_capacity(lines.iter().map(|line| line.text_bytes() + LINE_BYTES).sum());
    out.push(b'[');
    for line in lines {
        json::item(&mut out);
        out.push(b'{');
        let time = window::iso(line.at);
        for (name, value) in [("time", &time), ("who", &line.who), ("what", &line.what), ("key", &line.key)] {
            json::key(&mut out, name);
            json::write_string(&mut out, value);
        }
        for (name, record) in [("before", line.before.as_deref()), ("after", Some(&*line.after))] {
            json::key(&mut out, name);
            out.extend_from_slice(record.unwrap_or("null").as_bytes());
        }
        out.push(b'}');
    }
    out.push(b']');
    String::from_utf8(out).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// The names of the changed members; for a capture also its end. Empty for a new key.
fn changed(line: &AuditLine, after: Raw<'_>) -> Vec<String> {
    let Some(before) = &line.before else { return Vec::new() };
    let before = Raw::new(before.as_bytes());
    let mut names: Vec<String> = Vec::new();
    for (one, other) in [(before, after), (after, before)] {
        for (name, value) in one.members() {
            let mut name = Raw::text_of(name).into_owned();
            let same = other.get(&name).map(Raw::bytes) == Some(value.bytes()).filter(|_| !value.is_null());
            if name == "capture_until" {
                let until = after.get(&name).and_then(Raw::text);
                name = until.map_or_else(|| "capture off".to_string(), |until| format!("capture on until {until}"));
            }
            if !same && !names.contains(&name) {
                names.push(name);
            }
        }
    }
    names
}

fn export(args: &ExportArgs) -> Result<(), Failure> {
    let high = load::load(&args.config, Secrets::Optional)?;
    let mut ledger = store::existing(&high)?;
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let mut written = Ok(());
    let exported = ledger.export(&mut |entry| {
        written = write_entry(&entry, &mut out);
        written.is_ok()
    });
    exported.map_err(Failure::failed)?;
    match written.and_then(|()| out.flush()) {
        // A reader that has gone away (`| head`) is not a failure.
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::failed(format!("standard output: {error}")))
        }
        _ => Ok(()),
    }
}

fn write_entry(entry: &Entry, out: &mut impl Write) -> std::io::Result<()> {
    let mut line = Vec::new();
    match entry {
        Entry::Request(row) => {
            line.extend_from_slice(b"{\"entry\":\"request\"");
            for column in COLUMNS.iter().filter(|column| !column.export.is_empty()) {
                let value = (column.value)(row);
                if value != ColumnValue::Missing {
                    json::key(&mut line, column.export);
                    value.push(&mut line);
                }
            }
            line.push(b'}');
        }
        Entry::Folded(key, sums) => {
            FoldedLine::new(key, *sums).serialize(&mut serde_json::Serializer::new(&mut line))?
        }
    }
    line.push(b'\n');
    out.write_all(&line)
}

/// The newest request whose id begins with `id`, in the form of the log, if its usage record is one of the newest.
pub(super) fn found_request(high: &Config, id: &str) -> Result<Option<String>, Failure> {
    let Some(mut ledger) = store::open_existing(high)? else { return Ok(None) };
    let mut found = None;
    let read = ledger.recent_rows(&mut |row| {
        let is_it = format!("req_{}", hex(&row.request)).starts_with(id);
        found = is_it.then_some(row);
        !is_it
    });
    read.map_err(Failure::failed)?;
    let Some(row) = found else { return Ok(None) };
    let key = ledger.find_key(&row.key).map_err(Failure::failed)?;
    Ok(Some(logged(&row, key.map_or(String::new(), |key| key.name))))
}

/// A request in the form of the log, without the members that a usage record does not have.
fn logged(row: &Row, name: String) -> String {
    let usage = &row.usage;
    let mut line = json!({
        "time": window::iso(row.admitted),
        "id": format!("req_{}", hex(&row.request)),
        "endpoint": row.endpoint.name(),
        "key": row.key,
        "name": name,
        "group": &*row.group,
        "user": row.names.user.as_deref(),
        "session": row.names.session.as_deref(),
        "client": row.client.name(),
        "model": &*row.model,
        "target": &*row.target,
        "attempts": row.attempts,
        "stream": row.stream,
        "status": row.status,
        "input": usage.uncached_in,
        "cache_read": usage.cache_read,
        "cache_write": usage.cache_write,
        "output": usage.out,
        "source": usage.source.as_str(),
        "us": { "total": row.micros },
        "cost_usd": row.cost_nano as f64 / 1e9,
    });
    // As in the log, what is unknown is left out.
    if let Some(members) = line.as_object_mut() {
        members.retain(|_, value| !value.is_null() && value != "");
    }
    line.to_string()
}

/// Sums of a day's folded requests, as JSON.
#[derive(Serialize)]
struct FoldedLine<'a> {
    entry: &'static str,
    day: String,
    key: &'a str,
    model: &'a str,
    target: &'a str,
    group: &'a str,
    endpoint: &'a str,
    client: &'a str,
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
            group: &key.group,
            endpoint: &key.endpoint,
            client: &key.client,
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
    use crate::store::api::Difference;

    #[test]
    fn agreement_prints_one_line_and_difference_a_table() {
        let mut verdict = Verdict { rows: 1200, folded: 3, counters: 6, ..Verdict::default() };
        assert_eq!(verdict_text(&verdict), "ok: 6 counters agree with 1 200 usage records and 3 folded requests\n");
        assert_eq!(verdict_json(&verdict)["agrees"], true);
        verdict.differences.push(Difference { counter: "requests of a".to_string(), stored: 5, counted: 6 });
        assert!(verdict_text(&verdict).lines().nth(1).is_some_and(|line| line.ends_with("5        6")));
        assert_eq!(verdict_json(&verdict)["differences"][0]["counted"], 6);
    }

    #[test]
    fn export_of_a_request_keeps_its_form() {
        let row: Row = serde_json::from_str(
            r#"{"r":"000102030405060708090a0b0c0d0eff","k":"abcdefABCDEF","a":1800000000123,"m":"a \"b\"","t":"p/x",
            "e":"messages","s":true,"c":499,"u":[1,2,3,4],"f":"partial","n":5,"x":6,"d":7}"#,
        )
        .unwrap();
        let mut out = Vec::new();
        write_entry(&Entry::Request(row), &mut out).unwrap();
        let expected = concat!(
            r#"{"entry":"request","request_id":"req_000102030405060708090a0b0c0d0eff","key":"abcdefABCDEF","#,
            r#""admitted":"2027-01-15T08:00:00Z","admitted_unix_ms":1800000000123,"model":"a \"b\"","target":"p/x","#,
            r#""endpoint":"messages","stream":true,"status":499,"uncached_input_tokens":1,"cache_read_tokens":2,"#,
            r#""cache_write_tokens":3,"output_tokens":4,"source":"partial","cost_nano_usd":5,"attempts":6,"micros":7,"queued_ms":0,"group":"","client":"","cost_source":"prices"}"#,
            "\n"
        );
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn export_of_a_traced_request_names_the_trace() {
        let row: Row = serde_json::from_str(
            r#"{"r":"000102030405060708090a0b0c0d0eff","k":"abcdefABCDEF","a":1,"m":"m","t":"p/x","e":"chat","s":true,
            "c":200,"u":[1,2,3,4],"f":"partial","n":5,"x":6,"d":7,"o":"0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331"}"#,
        )
        .unwrap();
        let mut out = Vec::new();
        write_entry(&Entry::Request(row), &mut out).unwrap();
        let value: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(value["trace_id"], "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(value["span_id"], "b7ad6b7169203331");
    }

    #[test]
    fn every_entry_is_one_line_of_json() {
        let key = DayKey { day: 1, key: "k".to_string(), model: "m\n".to_string(), ..DayKey::default() };
        let mut out = Vec::new();
        write_entry(&Entry::Folded(key, [1, 2, 3, 4, 5, 6]), &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!((text.lines().count(), text.ends_with('\n')), (1, true));
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((value["day"].as_str(), value["cost_nano_usd"].as_u64()), (Some("1970-01-02"), Some(6)));
    }
}
