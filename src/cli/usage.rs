//! `tollgate usage`: requests, tokens and cost out of the ledger, over whole UTC days.

use super::args::ConfigArg;
use super::cold_prefixes;
use super::connect::distance;
use super::load::{self, Secrets};
use super::output::{Align, Failure, Table, clean, dollars, grouped, print, print_json};
use super::store;
use crate::base::time::Unix;
use crate::io::store::api::{By, Query, REST, UsageLine};
use crate::io::store::ledger::Ledger;
use crate::policy::config::Config;
use crate::policy::keys::{KeyId, KeyRecord, label_from};
use crate::policy::window::{iso, parse_moment};
use clap::Args;
use clap::builder::ArgPredicate;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// `tollgate usage`.
#[derive(Args, Debug, Default)]
pub struct UsageArgs {
    /// Configuration options.
    #[command(flatten)]
    pub config: ConfigArg,
    /// Group by key, group, model, target, provider, day, endpoint, client, user, session or label:NAME, or by two of
    /// them joined by a comma
    #[arg(long, value_name = "WHAT", value_parser = parse_by, default_value = "key")]
    #[arg(default_value_if("user", ArgPredicate::IsPresent, "user"))]
    pub by: Breakdown,
    /// With `--by session`: the cost of prefixes that had left the provider's cache, and the reason
    #[arg(long)]
    pub cache: bool,
    /// Only this key, by id or name
    #[arg(long, value_name = "KEY")]
    pub key: Option<String>,
    /// Only keys of this group and the groups below it
    #[arg(long, value_name = "GROUP")]
    pub group: Option<String>,
    /// Only this model
    #[arg(long, value_name = "ID")]
    pub model: Option<String>,
    /// Only this user, by the client's name or the report's; only with --since, --until, and --by user or day
    #[arg(long, value_name = "USER")]
    pub user: Option<String>,
    /// Only keys with this label
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_label)]
    pub label: Option<(String, String)>,
    /// First day, YYYY-MM-DD (UTC) [default: the first in the ledger]
    #[arg(long, value_name = "DATE", value_parser = parse_date)]
    pub since: Option<Unix>,
    /// Day after the last one, YYYY-MM-DD (UTC) [default: none]
    #[arg(long, value_name = "DATE", value_parser = parse_date)]
    pub until: Option<Unix>,
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
    /// Print comma-separated values instead of a table
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,
}

/// A property to break down by: one of the sums, or one derived from them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Part {
    /// Value of the sums.
    Sums(By, &'static str),
    /// Provider, the first part of a target's name.
    Provider,
    /// The label of this name that a key has.
    Label(String),
}

/// Breakdown of the report: one property, or two.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Breakdown(Vec<Part>);

impl Default for Breakdown {
    fn default() -> Breakdown {
        Breakdown(vec![Part::Sums(By::Key, "key")])
    }
}

/// Properties of the sums, and their names.
const SUMS: [(By, &str); 9] = [
    (By::Key, "key"),
    (By::Group, "group"),
    (By::Model, "model"),
    (By::Target, "target"),
    (By::Day, "day"),
    (By::Endpoint, "endpoint"),
    (By::Client, "client"),
    (By::User, "user"),
    (By::Session, "session"),
];

impl Part {
    fn parse(text: &str) -> Option<Part> {
        if let Some(name) = text.strip_prefix("label:") {
            let known = label_from(&format!("{name}=")).is_some_and(|(known, _)| known == name);
            return known.then(|| Part::Label(name.to_string()));
        }
        let sums = SUMS.iter().find(|(_, name)| *name == text).map(|(by, name)| Part::Sums(*by, name));
        sums.or_else(|| (text == "provider").then_some(Part::Provider))
    }

    /// Property to query from the sums.
    fn by(&self) -> By {
        match self {
            Part::Sums(by, _) => *by,
            Part::Provider => By::Target,
            Part::Label(_) => By::Key,
        }
    }

    /// Name on the command line and in reports.
    fn name(&self) -> String {
        match self {
            Part::Sums(_, name) => (*name).to_string(),
            Part::Provider => "provider".to_string(),
            Part::Label(name) => format!("label:{name}"),
        }
    }

    /// Value of this property for a value of the sums.
    fn of(&self, value: &str, keys: &Known) -> String {
        match self {
            Part::Sums(..) => value.to_string(),
            Part::Provider => value.split('/').next().unwrap_or_default().to_string(),
            Part::Label(name) => {
                let key = KeyId::parse(value).and_then(|id| keys.get(&id));
                let label = key.and_then(|key| key.labels.iter().find(|(known, _)| known == name));
                label.map_or(String::new(), |(_, value)| value.clone())
            }
        }
    }
}

fn parse_by(text: &str) -> Result<Breakdown, String> {
    let parts: Option<Vec<Part>> = text.split(',').map(|part| Part::parse(part.trim())).collect();
    match parts {
        Some(parts) if parts.len() == 1 || (parts.len() == 2 && parts[0] != parts[1]) => Ok(Breakdown(parts)),
        _ => {
            let wrong = text.split(',').map(str::trim).find(|part| Part::parse(part).is_none()).unwrap_or_default();
            let names = SUMS.iter().map(|(_, name)| *name).chain(["provider"]);
            let near = names.map(|name| (distance(wrong, name), name)).min().filter(|(far, _)| *far <= 2);
            let near = near.map_or(String::new(), |(_, name)| format!("; did you mean '{name}'?"));
            Err(format!(
                "expected key, group, model, target, provider, day, endpoint, client, user, session or label:NAME, \
                 or two different ones of them joined by a comma{near}"
            ))
        }
    }
}

fn parse_label(text: &str) -> Result<(String, String), String> {
    let label = label_from(text).filter(|(_, value)| !value.is_empty());
    let label = label.map(|(name, value)| (name.to_string(), value.to_string()));
    label.ok_or_else(|| "expected NAME=VALUE, such as team=search".to_string())
}

fn parse_date(text: &str) -> Result<Unix, String> {
    let date = if text.len() == 10 { parse_moment(text) } else { None };
    date.ok_or_else(|| "expected a date such as 2026-11-20".to_string())
}

/// Prints the report.
pub fn run(args: &UsageArgs) -> Result<(), Failure> {
    check_days(args)?;
    let high = load::load(&args.config, Secrets::Optional)?;
    if args.cache {
        let lines = cold_lines(args, &high)?;
        return match (args.json, args.csv) {
            (true, _) => print_json(&lines),
            (_, true) => print(&cold_prefixes::csv(&lines)),
            _ => print(&cold_prefixes::table(&lines)),
        };
    }
    let (lines, keys) = read(args, &high)?;
    let report = Report { parts: &args.by.0, lines: &lines, keys: &keys };
    match (args.json, args.csv) {
        (true, _) => print_json(&report.json()),
        (_, true) => print(&report.csv()),
        _ => print(&report.table()),
    }
}

/// The report that the admin API is asked for, by the names of the options; else what is wrong with one.
pub(super) fn asked(pairs: &[(String, String)]) -> Result<UsageArgs, String> {
    let mut args = UsageArgs::default();
    for (name, value) in pairs {
        let wrong = |why: String| [name, ": ", &why].concat();
        let text = || Some(value.clone());
        match name.as_str() {
            "by" => args.by = parse_by(value).map_err(wrong)?,
            "since" => args.since = Some(parse_date(value).map_err(wrong)?),
            "until" => args.until = Some(parse_date(value).map_err(wrong)?),
            "label" => args.label = Some(parse_label(value).map_err(wrong)?),
            "key" => args.key = text(),
            "group" => args.group = text(),
            "model" => args.model = text(),
            _ => args.user = text(),
        }
    }
    Ok(args)
}

/// The report as JSON, for the admin API.
pub(super) fn reported(args: &UsageArgs, high: &Config) -> Result<Vec<Members>, Failure> {
    check_days(args)?;
    let (lines, keys) = read(args, high)?;
    Ok(Report { parts: &args.by.0, lines: &lines, keys: &keys }.json())
}

/// All keys, by id: each line of a report may name one.
type Known = BTreeMap<KeyId, KeyRecord>;

fn known(ledger: &mut Ledger) -> Result<Known, Failure> {
    let mut keys = Known::new();
    ledger.each_key(&mut |key| _ = keys.insert(key.id, key)).map_err(Failure::failed)?;
    Ok(keys)
}

/// The lines of the report, and all keys.
fn read(args: &UsageArgs, high: &Config) -> Result<(Vec<UsageLine>, Known), Failure> {
    let Some(mut ledger) = store::open_existing(high)? else { return Ok(Default::default()) };
    let keys = known(&mut ledger)?;
    let query = query(args, high, &mut ledger, &keys)?;
    query.who().map_err(Failure::misused)?;
    let lines = merged(&args.by, &query, ledger.usage(&query).map_err(Failure::failed)?, &keys);
    Ok((lines, keys))
}

fn cold_lines(args: &UsageArgs, high: &Config) -> Result<Vec<cold_prefixes::Line>, Failure> {
    let Some(mut ledger) = store::open_existing(high)? else { return Ok(Vec::new()) };
    let keys = known(&mut ledger)?;
    let query = query(args, high, &mut ledger, &keys)?;
    if query.by != [By::Session] || args.user.is_some() {
        return Err(Failure::misused("--cache requires `--by session` and no --user"));
    }
    cold_prefixes::report(&mut ledger, &query, high)
}

fn check_days(args: &UsageArgs) -> Result<(), Failure> {
    match (args.since, args.until) {
        (Some(since), Some(until)) if since >= until => {
            let (since, until) = (iso(since), iso(until));
            Err(Failure::misused(format!("--since {} must be before --until {}", &since[..10], &until[..10])))
        }
        _ => Ok(()),
    }
}

/// Query for the ledger.
fn query(args: &UsageArgs, high: &Config, ledger: &mut Ledger, keys: &Known) -> Result<Query, Failure> {
    let mut by: Vec<By> = Vec::new();
    for part in &args.by.0 {
        if !by.contains(&part.by()) {
            by.push(part.by());
        }
    }
    let mut only = Vec::new();
    if let Some(name) = &args.key {
        let named = keys.values().filter(|key| key.id.as_str() == name || key.name == *name);
        let ids: Vec<String> = named.map(|key| key.id.to_string()).collect();
        if ids.is_empty() {
            return Err(super::keys::unknown(name));
        }
        only.push((By::Key, ids));
    }
    if let Some((name, value)) = &args.label {
        let has = |key: &&KeyRecord| key.labels.iter().any(|label| (&label.0, &label.1) == (name, value));
        only.push((By::Key, keys.values().filter(has).map(|key| key.id.to_string()).collect()));
    }
    only.extend(args.group.iter().map(|name| (By::Group, vec![name.clone()])));
    only.extend(args.model.iter().map(|name| (By::Model, vec![model(name, high)])));
    if let Some(name) = &args.user {
        let hash = ledger.hash_key().map_err(Failure::failed)?.user(name.as_bytes());
        only.push((By::User, vec![name.clone(), hash.to_string()]));
    }
    Ok(Query { by, since: args.since, until: args.until, only })
}

/// The id of a model that may be called by another name.
fn model(name: &str, high: &Config) -> String {
    let known = high.catalog.asked(name).and_then(|index| high.catalog.get(index));
    known.map_or(name.to_string(), |model| model.id.to_string())
}

/// Merges lines that have the same values of the breakdown.
fn merged(by: &Breakdown, query: &Query, found: Vec<UsageLine>, keys: &Known) -> Vec<UsageLine> {
    let value = |part: &Part, line: &UsageLine| {
        let second = query.by.iter().position(|by| *by == part.by()) == Some(1);
        part.of(if second { line.second.as_deref().unwrap_or_default() } else { &line.name }, keys)
    };
    query.renamed(found, |line| (value(&by.0[0], line), by.0.get(1).map(|part| value(part, line))))
}

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

/// An object whose members keep their order.
pub(super) struct Members(Vec<(String, Value)>);

impl Serialize for Members {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

/// Lines, and what they stand for.
struct Report<'a> {
    parts: &'a [Part],
    lines: &'a [UsageLine],
    keys: &'a Known,
}

impl Report<'_> {
    /// Values of a line's breakdown, each with its name. A key also has its own name.
    fn names(&self, line: &UsageLine) -> Vec<(String, String)> {
        let values = [Some(&line.name), line.second.as_ref()];
        let mut names = Vec::new();
        for (part, value) in self.parts.iter().zip(values.into_iter().flatten()) {
            let shown = if value == REST { "other" } else { value };
            names.push((part.name(), shown.to_string()));
            if part.by() == By::Key && matches!(part, Part::Sums(..)) {
                let key = KeyId::parse(value).and_then(|id| self.keys.get(&id));
                names.push(("key_name".to_string(), key.map_or(String::new(), |key| key.name.clone())));
            }
        }
        names
    }

    /// Objects: `name` is the first of what a line stands for; of two each has a member of its own besides.
    fn json(&self) -> Vec<Members> {
        let object = |line: &UsageLine| {
            let names = self.names(line);
            let single = self.parts.len() == 1;
            let mut members = vec![("name".to_string(), json!(names[0].1))];
            let more = names.into_iter().filter(|(name, _)| !single || name == "key_name");
            members.extend(more.map(|(name, value)| (name, json!(value))));
            if line.name == REST || line.second.as_deref() == Some(REST) {
                members.push(("is_rest".to_string(), json!(true)));
            }
            members.extend(COUNTS.iter().zip(counts(line)).map(|(name, count)| ((*name).to_string(), json!(count))));
            // For people; the exact amount is the one before.
            members.push(("cost_usd".to_string(), json!(line.cost_nano as f64 / 1e9)));
            Members(members)
        };
        self.lines.iter().map(object).collect()
    }

    /// RFC 4180, with a line of names. What a spreadsheet would take for a formula begins with an apostrophe.
    fn csv(&self) -> String {
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

    fn table(&self) -> String {
        let blank = UsageLine { second: Some(String::new()), ..UsageLine::default() };
        let heads: Vec<String> = self.names(&blank).into_iter().map(|(name, _)| name).collect();
        let heads: Vec<String> = heads
            .iter()
            .map(|name| if name == "key_name" { "NAME".to_string() } else { name.to_uppercase() })
            .collect();
        let mut columns: Vec<(&str, Align)> = heads.iter().map(|name| (name.as_str(), Align::Left)).collect();
        let counts_heads = ["REQUESTS", "INPUT", "CACHE READ", "CACHE WRITE", "OUTPUT", "TOKENS", "COST $"];
        columns.extend(counts_heads.map(|head| (head, Align::Right)));
        let mut table = Table::new(&columns);
        let mut total = [0u64; 7];
        for line in self.lines {
            let counts = counts(line);
            total.iter_mut().zip(counts).for_each(|(sum, count)| *sum = sum.saturating_add(count));
            let shown = self.names(line).into_iter().map(|(name, value)| match (value.is_empty(), name.as_str()) {
                (true, "key_name") => String::new(),
                (true, _) => "(none)".to_string(),
                _ => clean(&value),
            });
            table.row(row(shown.collect(), counts));
        }
        if self.lines.len() > 1 {
            let mut names = vec![String::new(); heads.len()];
            names[0] = "total".to_string();
            table.row(row(names, total));
        }
        table.text()
    }
}

/// Formats a cell, in quotes if necessary.
fn cell(value: &str) -> String {
    let formula = value.starts_with(['=', '+', '-', '@', '\t', '\r']);
    let value = if formula { format!("'{value}") } else { value.to_string() };
    match value.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", value.replace('"', "\"\"")),
        false => value,
    }
}

/// Names, counts, and the last of them as money.
fn row(mut names: Vec<String>, counts: [u64; 7]) -> Vec<String> {
    let [tokens @ .., nano] = counts;
    names.extend(tokens.map(grouped));
    names.push(dollars(nano));
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::store::keyform::record_from;

    fn usage(name: &str, count: u64) -> UsageLine {
        UsageLine {
            name: name.to_string(),
            second: None,
            requests: count,
            uncached_in: 1000 * count,
            cache_read: 2,
            cache_write: 3,
            out: 4,
            cost_nano: 500_000_000 * count,
            last: None,
        }
    }

    fn key() -> KeyRecord {
        let text = r#"{"id":"AAAAAAAAAAAA","digest":"","name":"ann","plan":"p","endpoints":"chat","models":null,
            "created":1,"expires":null,"revoked":null,"former":[],"labels":[["team","search"]]}"#;
        record_from(&text.replace("\"digest\":\"\"", &format!("\"digest\":\"{}\"", "0".repeat(64)))).unwrap()
    }

    /// Prints a report of lines from the sums.
    fn report(by: &str, found: Vec<UsageLine>, print: impl FnOnce(&Report<'_>) -> String) -> String {
        let (by, keys) = (parse_by(by).unwrap(), Known::from([(key().id, key())]));
        let mut parts: Vec<By> = Vec::new();
        by.0.iter().for_each(|part| {
            if !parts.contains(&part.by()) {
                parts.push(part.by())
            }
        });
        let lines = merged(&by, &Query { by: parts, ..Query::default() }, found, &keys);
        print(&Report { parts: &by.0, lines: &lines, keys: &keys })
    }

    fn table_of(by: &str, found: Vec<UsageLine>) -> String {
        report(by, found, |report| report.table())
    }

    fn json_of(by: &str, found: Vec<UsageLine>) -> Value {
        serde_json::from_str(&report(by, found, |report| serde_json::to_string(&report.json()).unwrap())).unwrap()
    }

    #[test]
    fn lines_are_summed_up_below() {
        let text = table_of("model", vec![usage("a", 1), usage("", 2)]);
        let cells =
            |line: &str| line.split("  ").map(|cell| cell.trim().to_string()).filter(|cell| !cell.is_empty()).collect();
        let cells: Vec<Vec<String>> = text.lines().skip(1).map(cells).collect();
        assert_eq!(cells[1], ["a", "1", "1 000", "2", "3", "4", "1 009", "0.5000"]);
        assert_eq!(cells[0][0], "(none)", "by cost");
        assert_eq!(cells[2], ["total", "3", "3 000", "4", "6", "8", "3 018", "1.5000"]);
    }

    #[test]
    fn a_single_line_has_no_sum_and_no_lines_leave_the_heading() {
        assert_eq!(table_of("day", vec![usage("a", 1)]).lines().count(), 2);
        let text = table_of("target,label:team", vec![]);
        assert!(text.starts_with("TARGET  LABEL:TEAM  REQUESTS") && text.lines().count() == 1, "{text}");
    }

    #[test]
    fn json_carries_exact_counts_and_the_name_of_a_key_only_by_key() {
        let json = json_of("day", vec![usage("a", 1)]);
        assert_eq!((json[0]["name"].as_str(), json[0]["total_tokens"].as_u64()), (Some("a"), Some(1009)));
        assert_eq!((json[0]["cost_nano_usd"].as_u64(), json[0]["cost_usd"].as_f64()), (Some(500_000_000), Some(0.5)));
        assert!(json[0].get("key_name").is_none() && json[0].get("day").is_none());
        assert_eq!(json_of("key", vec![usage("AAAAAAAAAAAA", 1), usage("B", 0)])[0]["key_name"], "ann");
        let two = vec![UsageLine { second: Some("m".to_string()), ..usage("AAAAAAAAAAAA", 1) }];
        let json = json_of("key,model", two);
        assert_eq!(
            (&json[0]["key"], &json[0]["key_name"], &json[0]["model"]),
            (&json!("AAAAAAAAAAAA"), &json!("ann"), &json!("m"))
        );
    }

    #[test]
    fn providers_and_labels_follow_from_targets_and_keys_and_lines_that_come_to_the_same_are_one() {
        let json = json_of("provider", vec![usage("p/a", 1), usage("q/a", 2), usage("p/b/c", 4), usage("", 8)]);
        let lines: Vec<_> = json
            .as_array()
            .unwrap()
            .iter()
            .map(|line| (line["name"].as_str().unwrap(), line["requests"].as_u64().unwrap()))
            .collect();
        assert_eq!(lines, [("", 8), ("p", 5), ("q", 2)]);
        let json = json_of("label:team", vec![usage("AAAAAAAAAAAA", 1), usage("B", 2), usage("C", 4)]);
        assert_eq!(
            (&json[0]["name"], &json[0]["requests"], &json[1]["name"]),
            (&json!(""), &json!(6), &json!("search"))
        );
        // Both follow from the key: the sums are asked for one thing alone.
        let json = json_of("label:team,key", vec![usage("AAAAAAAAAAAA", 1), usage("B", 2)]);
        assert_eq!((&json[1]["label:team"], &json[1]["key"]), (&json!("search"), &json!("AAAAAAAAAAAA")));
    }

    #[test]
    fn those_beyond_the_largest_are_others_whatever_users_are_called() {
        let json = json_of("user", vec![usage(REST, 1), usage("other", 2)]);
        assert_eq!((&json[0]["name"], json[0].get("is_rest")), (&json!("other"), None));
        assert_eq!((&json[1]["name"], &json[1]["is_rest"]), (&json!("other"), &json!(true)));
    }

    #[test]
    fn comma_separated_values_are_quoted_where_they_must_be_and_are_no_formulas() {
        let found = |name: &str| vec![UsageLine { second: Some("m, \"n\"\r\n".to_string()), ..usage(name, 1) }];
        let csv = report("user,day", found("=1+1"), |report| report.csv());
        let head = "user,day,requests,uncached_input_tokens,cache_read_tokens,cache_write_tokens,output_tokens,total_tokens,cost_nano_usd";
        assert_eq!(csv, format!("{head}\r\n'=1+1,\"m, \"\"n\"\"\r\n\",1,1000,2,3,4,1009,500000000\r\n"));
        assert!(report("key", vec![], |report| report.csv()).starts_with("key,key_name,requests,"));
    }

    #[test]
    fn what_a_line_stands_for_is_one_thing_or_two_different_ones() {
        for good in [
            "key",
            "group",
            "model",
            "target",
            "provider",
            "day",
            "endpoint",
            "client",
            "user",
            "session",
            "label:a.b",
            "user, day",
            "label:a,label:b",
        ] {
            assert!(parse_by(good).is_ok(), "{good}");
        }
        assert!(parse_by("modle,day").unwrap_err().ends_with("did you mean 'model'?"));
        for wrong in ["", "keys", "key,key", "key,model,day", "label:", "label:A", "label:a=b", ","] {
            assert!(parse_by(wrong).is_err(), "{wrong}");
        }
        let who = |by: &str, only: &[By]| {
            let by = parse_by(by).unwrap().0.iter().map(Part::by).collect();
            Query { by, only: only.iter().map(|by| (*by, vec![])).collect(), ..Query::default() }.who().is_ok()
        };
        assert!(
            who("user", &[]) && who("session,day", &[]) && who("day", &[By::User]) && who("key,model", &[By::Group])
        );
        assert!(
            !who("user,key", &[]) && !who("user,session", &[]) && !who("key", &[By::User]) && !who("user", &[By::Key])
        );
    }

    #[test]
    fn dates_are_whole_days() {
        assert_eq!(parse_date("1970-01-02"), Ok(Unix(86_400_000)));
        for wrong in ["2026-11-20T10:00:00Z", "20.11.2026", "2026-13-01", ""] {
            assert!(parse_date(wrong).is_err(), "{wrong}");
        }
    }
}
