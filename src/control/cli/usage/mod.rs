//! `tollgate usage`: requests, tokens and cost from the ledger, over whole UTC days.

mod cold_prefixes;
mod parts;
mod report;
mod sessions;

use super::args::ConfigArg;
use super::keys::{NO_KEYS, budgets};
use super::load::{self, Secrets};
use super::output::{Failure, print, print_json, remark};
use super::store;
use crate::base::time::Unix;
use crate::io::clock::unix;
use crate::policy::config::Config;
use crate::policy::keys::{KeyRecord, label_from};
use crate::policy::settings::reader::is_near;
use crate::policy::window::{iso, parse_moment};
use crate::store::api::{By, Names, Page, Query, StoreError, UsageLine};
use crate::store::ledger::Ledger;
use clap::Args;
use clap::builder::ArgPredicate;
pub use parts::{Breakdown, Part};
use parts::{KeyDetails, SUMS};
use report::{OrderedObject, Report};
use sessions::Sessions;

/// `tollgate usage`.
#[derive(Args, Debug, Default)]
pub struct UsageArgs {
    /// Configuration options.
    #[command(flatten)]
    pub config: ConfigArg,
    /// Group by key, group, model, target, provider, day, endpoint, client, user, session, agent or label:NAME, or by
    /// two of them joined by a comma (user, session and agent only with day)
    #[arg(long, value_name = "WHAT", value_parser = parse_by, default_value = "key")]
    #[arg(default_value_if("user", ArgPredicate::IsPresent, "user"))]
    #[arg(default_value_if("session", ArgPredicate::IsPresent, "session"))]
    pub by: Breakdown,
    /// With `--by session`: the cost of prefixes that had left the provider's cache, and the reason
    #[arg(long)]
    pub cache: bool,
    /// Instead of usage: budgets and token quotas of groups and keys, and how long they last
    #[arg(long, conflicts_with_all = ["by", "cache", "key", "group", "model"])]
    #[arg(conflicts_with_all = ["user", "session", "label", "since", "until", "csv"])]
    pub budgets: bool,
    /// Only this key, by id or name
    #[arg(long, value_name = "KEY")]
    pub key: Option<String>,
    /// Only keys of this group and the groups below it
    #[arg(long, value_name = "GROUP")]
    pub group: Option<String>,
    /// Only this model
    #[arg(long, value_name = "ID")]
    pub model: Option<String>,
    /// Only this user: the name the client sent, or the hash in a report; only with --since, --until and --by user or
    /// day
    #[arg(long, value_name = "USER")]
    pub user: Option<String>,
    /// Only this session: the name the client sent, or the hash in a report; only with --since, --until and --by
    /// session or day
    #[arg(long, value_name = "SESSION")]
    pub session: Option<String>,
    /// Only keys with this label
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_label)]
    pub label: Option<(String, String)>,
    /// First day, YYYY-MM-DD (UTC) [default: the first in the ledger]
    #[arg(long, value_name = "DATE", value_parser = parse_date)]
    pub since: Option<Unix>,
    /// Day after the last one, YYYY-MM-DD (UTC) [default: none]
    #[arg(long, value_name = "DATE", value_parser = parse_date)]
    pub until: Option<Unix>,
    /// Print every column and name whole, however narrow the terminal
    #[arg(long)]
    pub wide: bool,
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
    /// Print comma-separated values instead of a table
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,
}

fn parse_by(text: &str) -> Result<Breakdown, String> {
    let parts: Option<Vec<Part>> = text.split(',').map(|part| Part::parse(part.trim())).collect();
    match parts {
        Some(parts) if parts.len() == 1 || (parts.len() == 2 && parts[0] != parts[1]) => Ok(Breakdown(parts)),
        _ => {
            let wrong = text.split(',').map(str::trim).find(|part| Part::parse(part).is_none()).unwrap_or_default();
            let mut names = SUMS.iter().map(|(_, name)| *name).chain(["provider"]);
            let near = names.find(|name| is_near(name, wrong));
            let near = near.map_or(String::new(), |name| format!("; did you mean '{name}'?"));
            Err(format!(
                "expected key, group, model, target, provider, day, endpoint, client, user, session, agent or \
                 label:NAME, or two different ones of them joined by a comma{near}"
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
            _ => {
                if lines.is_empty() {
                    remark(NOTHING);
                }
                print(&cold_prefixes::table(&lines, args.wide))
            }
        };
    }
    store::has_folder(&high)?;
    if args.budgets {
        let now = unix();
        let list = budgets::report(&high, now)?;
        if args.json {
            return print_json(&list.iter().map(|one| one.json(now)).collect::<Vec<_>>());
        }
        if list.is_empty() {
            remark("No group and no key has a budget or a token quota.");
        }
        return print(&budgets::table(&list, args.wide, now));
    }
    let (lines, keys, sessions) = read(args, &high, None)?;
    let is_free =
        |name: &str| high.catalog.asked(name).and_then(|at| high.catalog.get(at)).is_some_and(|one| !one.priced);
    let report = Report { parts: &args.by.0, lines: &lines, keys: &keys, sessions: &sessions, is_free: &is_free };
    match (args.json, args.csv) {
        (true, _) => print_json(&report.json()),
        (_, true) => print(&report.csv()),
        _ => {
            if lines.is_empty() {
                remark(if has_keys(&high)? { NOTHING } else { NO_KEYS });
            }
            print(&report.table(args.wide))
        }
    }
}

/// True if the ledger has a key.
fn has_keys(high: &Config) -> Result<bool, Failure> {
    let Some(mut ledger) = store::open_existing(high)? else { return Ok(false) };
    let page = ledger.keys_page(None, Names::default(), (1, 1)).map_err(Failure::failed)?;
    Ok(page.is_some_and(|keys| !keys.is_empty()))
}

/// Remark on an empty report.
const NOTHING: &str = "No usage records match.";

/// The report that an admin API request asks for, by the names of the options; otherwise the error in an option.
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
            "session" => args.session = text(),
            _ => args.user = text(),
        }
    }
    Ok(args)
}

/// The lines of the report from `from` to `to` as JSON, for the admin API, and true if there are more.
pub(super) fn reported(
    args: &UsageArgs,
    high: &Config,
    (from, to): (u64, u64),
) -> Result<(Vec<OrderedObject>, bool), Failure> {
    check_days(args)?;
    let most = to - from;
    let (mut lines, keys, sessions) = read(args, high, Some(Page { from, most: most.saturating_add(1) }))?;
    let more = lines.len() as u64 > most;
    lines.truncate(usize::try_from(most).unwrap_or(usize::MAX));
    let report = Report { parts: &args.by.0, lines: &lines, keys: &keys, sessions: &sessions, is_free: &|_| false };
    Ok((report.json(), more))
}

/// Reads the lines of the report or of one page, and the details of the keys and sessions in them.
fn read(
    args: &UsageArgs,
    high: &Config,
    page: Option<Page>,
) -> Result<(Vec<UsageLine>, KeyDetails, Sessions), Failure> {
    let Some(mut ledger) = store::open_existing(high)? else { return Ok(Default::default()) };
    let query = Query { page, ..query(args, high, &mut ledger)? };
    query.who().map_err(Failure::misused)?;
    let mut keys = KeyDetails::labels(&args.by, &mut ledger)?;
    let names = |name: &str, second: Option<&str>| renamed(&args.by, &query.by, (name, second), &keys);
    let is_plain = args.by.0.iter().all(|part| matches!(part, Part::Sums(..)));
    let lines =
        ledger.usage_merged(&query, if is_plain { None } else { Some(&names) }).map_err(|error| match error {
            StoreError::TooManyLines => Failure::misused(error),
            error => Failure::failed(error),
        })?;
    let sessions = match args.by.is_by_session() {
        true => sessions::read(&query, &lines, &mut ledger).map_err(Failure::failed)?,
        false => Sessions::default(),
    };
    keys.read_names(&args.by, (&lines, &sessions), &mut ledger)?;
    Ok((lines, keys, sessions))
}

fn cold_lines(args: &UsageArgs, high: &Config) -> Result<Vec<cold_prefixes::ConversationLine>, Failure> {
    let Some(mut ledger) = store::open_existing(high)? else { return Ok(Vec::new()) };
    let query = query(args, high, &mut ledger)?;
    if query.by != [By::Session] || args.user.is_some() || args.session.is_some() {
        return Err(Failure::misused("--cache requires `--by session`, and neither --user nor --session"));
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
fn query(args: &UsageArgs, high: &Config, ledger: &mut Ledger) -> Result<Query, Failure> {
    let mut only = Vec::new();
    if let Some(name) = &args.key {
        let mut named = ledger.keys_named(name).map_err(Failure::failed)?;
        if let Some(id) = super::keys::id_in(name) {
            named.extend(ledger.find_key(&id).map_err(Failure::failed)?);
        }
        let ids: Vec<String> = named.iter().map(|key| key.id.to_string()).collect();
        if ids.is_empty() {
            return Err(super::keys::unknown(name));
        }
        only.push((By::Key, ids));
    }
    if let Some((name, value)) = &args.label {
        let mut ids = Vec::new();
        let take = &mut |key: KeyRecord| {
            if key.labels.iter().any(|label| (&label.0, &label.1) == (name, value)) {
                ids.push(key.id.to_string());
            }
        };
        ledger.each_key(take).map_err(Failure::failed)?;
        only.push((By::Key, ids));
    }
    only.extend(args.group.iter().map(|name| (By::Group, vec![name.clone()])));
    only.extend(args.model.iter().map(|name| (By::Model, vec![model(name, high)])));
    for (by, name) in [(By::User, &args.user), (By::Session, &args.session)] {
        let Some(name) = name else { continue };
        let key = ledger.hash_key().map_err(Failure::failed)?;
        let hash = if by == By::User { key.user(name.as_bytes()) } else { key.session(name.as_bytes()) };
        only.push((by, vec![name.clone(), hash.to_string()]));
    }
    Ok(Query { by: args.by.sums(), since: args.since, until: args.until, only, page: None })
}

/// The id of a model, also for one of its other names.
fn model(name: &str, high: &Config) -> String {
    let known = high.catalog.asked(name).and_then(|index| high.catalog.get(index));
    known.map_or(name.to_string(), |model| model.id.to_string())
}

/// Values of the breakdown for a line of the sums, whose properties are `sums`.
fn renamed(
    by: &Breakdown,
    sums: &[By],
    (name, second): (&str, Option<&str>),
    keys: &KeyDetails,
) -> (String, Option<String>) {
    let value = |part: &Part| {
        let is_second = sums.iter().position(|by| *by == part.by()) == Some(1);
        part.of(if is_second { second.unwrap_or_default() } else { name }, keys)
    };
    (value(&by.0[0]), by.0.get(1).map(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::keys::KeyId;
    use crate::store::api::{Lines, REST};
    use serde_json::{Value, json};

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

    /// Record of a key with a name and a label.
    fn keys() -> KeyDetails {
        let id = KeyId::parse("AAAAAAAAAAAA").unwrap();
        let labels = vec![("team".to_string(), "search".to_string())];
        KeyDetails([(id, parts::KeyDetail { labels, name: Some("ann".to_string()) })].into())
    }

    /// Prints a report of lines from the sums.
    fn report(by: &str, found: Vec<UsageLine>, print: impl FnOnce(&Report<'_>) -> String) -> String {
        let (by, keys, mut lines) = (parse_by(by).unwrap(), keys(), Lines::default());
        let query = Query { by: by.sums(), ..Query::default() };
        for line in &found {
            let names = renamed(&by, &query.by, (&line.name, line.second.as_deref()), &keys);
            query.add(&mut lines, names, &line.sums(), line.last);
        }
        let lines = query.sorted(lines).unwrap();
        let sessions = Sessions::default();
        print(&Report { parts: &by.0, lines: &lines, keys: &keys, sessions: &sessions, is_free: &|_| false })
    }

    fn table_of(by: &str, found: Vec<UsageLine>) -> String {
        report(by, found, |report| report.table(true))
    }

    fn json_of(by: &str, found: Vec<UsageLine>) -> Value {
        serde_json::from_str(&report(by, found, |report| serde_json::to_string(&report.json()).unwrap())).unwrap()
    }

    #[test]
    fn sum_of_lines_is_below() {
        let text = table_of("model", vec![usage("a", 1), usage("", 2)]);
        let cells =
            |line: &str| line.split("  ").map(|cell| cell.trim().to_string()).filter(|cell| !cell.is_empty()).collect();
        let cells: Vec<Vec<String>> = text.lines().skip(1).map(cells).collect();
        assert_eq!(cells[1], ["a", "1", "1 005", "2", "3", "4", "1 009", "0.5000"]);
        assert_eq!(cells[0][0], "(none)", "by cost");
        assert_eq!(cells[2], ["total", "3", "3 010", "4", "6", "8", "3 018", "1.5000"]);
    }

    #[test]
    fn single_line_has_no_sum_and_empty_report_has_a_heading() {
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
    fn lines_with_equal_provider_or_label_are_merged() {
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
        // Both derive from the key, so the sums are queried for one property only.
        let json = json_of("label:team,key", vec![usage("AAAAAAAAAAAA", 1), usage("B", 2)]);
        assert_eq!((&json[1]["label:team"], &json[1]["key"]), (&json!("search"), &json!("AAAAAAAAAAAA")));
    }

    #[test]
    fn users_beyond_the_largest_are_others() {
        let json = json_of("user", vec![usage(REST, 1), usage("other", 2)]);
        assert_eq!((&json[0]["name"], json[0].get("is_rest")), (&json!("other"), None));
        assert_eq!((&json[1]["name"], &json[1]["is_rest"]), (&json!("other"), &json!(true)));
    }

    #[test]
    fn comma_separated_values_are_quoted_and_never_formulas() {
        let found = |name: &str| vec![UsageLine { second: Some("m, \"n\"\r\n".to_string()), ..usage(name, 1) }];
        let csv = report("user,day", found("=1+1"), |report| report.csv());
        let head = "user,day,requests,uncached_input_tokens,cache_read_tokens,cache_write_tokens,output_tokens,total_tokens,cost_nano_usd";
        assert_eq!(csv, format!("{head}\r\n'=1+1,\"m, \"\"n\"\"\r\n\",1,1000,2,3,4,1009,500000000\r\n"));
        assert!(report("key", vec![], |report| report.csv()).starts_with("key,key_name,requests,"));
    }

    #[test]
    fn breakdown_has_one_property_or_two_different_ones() {
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
            "agent,day",
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
