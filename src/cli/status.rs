//! `tollgate status`: the state of a running gateway in one word, and its targets with their states.

use super::admin_client::{AskArg, Listener};
use super::args::ConfigArg;
use super::output::{Align, Failure, Table, fitted, grouped, print, print_json, remark};
use super::requests::read;
use serde_json::{Value, json};

/// Pages of targets that are read.
const PAGES_MAX: usize = 1000;

/// `tollgate status`.
#[derive(clap::Args, Debug)]
pub struct StatusArgs {
    /// Configuration options.
    #[command(flatten)]
    pub config: ConfigArg,
    /// Gateway options.
    #[command(flatten)]
    pub admin: AskArg,
    /// Print every column, even if the terminal is too narrow
    #[arg(long)]
    pub wide: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

/// Prints the state of the gateway, then the targets.
pub fn run(args: &StatusArgs) -> Result<(), Failure> {
    let listener = Listener::with_token(&args.admin, &args.config)?;
    let get = |path: &str| {
        let body = read(&listener, &["/admin/v1/", path].concat(), &args.admin, &args.config)?;
        serde_json::from_slice::<Value>(&body).map_err(Failure::failed)
    };
    let status = get("status")?;
    let (mut targets, mut after) = (Vec::new(), String::new());
    for _ in 0..PAGES_MAX {
        let mut page = get(&format!("targets?limit=1000{after}"))?;
        if let Value::Array(list) = page["data"].take() {
            targets.extend(list);
        }
        if page["next"].is_null() {
            break;
        }
        after = format!("&after={}", page["next"].as_str().map_or(page["next"].to_string(), str::to_string));
    }
    if args.json {
        let (health, reasons, refused) = (&status["health"], &status["reasons"], &status["refused"]);
        return print_json(&json!({ "health": health, "reasons": reasons, "refused": refused, "targets": targets }));
    }
    let reasons = status["reasons"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let lines: Vec<String> = reasons.map(|reason| format!("  {reason}\n")).collect();
    print(&format!("{}\n{}", status["health"].as_str().unwrap_or("unknown"), lines.concat()))?;
    print(&table(&targets, status["time"].as_str().unwrap_or_default(), args.wide))?;
    let unknown = targets.iter().filter(|one| has_unknown_times(one)).count();
    if unknown > 0 {
        remark(&fitted(unmeasured(unknown)));
    }
    Ok(())
}

/// True for a target with answers that cannot be compared with earlier ones: it may be slow.
fn has_unknown_times(one: &Value) -> bool {
    one["minutes_5"]["answered"] != 0 && one["first_byte_us"]["usual"].is_null()
}

fn unmeasured(targets: usize) -> String {
    let are = if targets == 1 { "target is" } else { "targets are" };
    format!(
        "Whether {targets} {are} slow is not known: times are measured from the first look on, or from the start with \
         record_requests = true."
    )
}

/// A time without its date, if that is the date of `now`.
fn short(at: &str, now: &str) -> String {
    let is_today = at.get(..11).is_some_and(|date| now.starts_with(date));
    at.get(11..).filter(|_| is_today).unwrap_or(at).to_string()
}

fn table(targets: &[Value], now: &str, wide: bool) -> String {
    let [left, right] = [Align::Left, Align::Right];
    let mut table = Table::new(&[
        ("TARGET", left),
        ("MODEL", left),
        ("STATE", left),
        ("SINCE", left),
        ("ANSWERED", right),
        ("FAILED", right),
        ("IN FLIGHT", right),
        ("LAST FAILURE", left),
    ])
    .fit(wide, &["IN FLIGHT", "MODEL"]);
    for one in targets {
        let text = |value: &Value| value.as_str().unwrap_or("-").to_string();
        let count = |value: &Value| value.as_u64().map_or("-".to_string(), grouped);
        let recent = &one["minutes_5"];
        let failed = recent["failed"].as_u64().map(|failed| failed + recent["unanswered"].as_u64().unwrap_or(0));
        // Slow minutes are known, not seconds.
        let since = short(&text(&one["since"]), now);
        let since = if one["state"] == "slow" { since.replace(":00Z", "Z") } else { since };
        let state = text(&one["state"]).replace('_', " ");
        let state = if one["one_caller"] == true { [&state, ", one caller"].concat() } else { state };
        let failure = &one["last_failure"];
        let failure = match failure["time"].as_str() {
            Some(time) => [short(time, now), text(&failure["cause"])].join(" "),
            None => "-".to_string(),
        };
        table.row(vec![
            text(&one["target"]),
            text(&one["model"]),
            state,
            since,
            count(&recent["answered"]),
            failed.map_or("-".to_string(), grouped),
            count(&one["in_flight"]),
            failure,
        ]);
    }
    table.text()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_without_earlier_times_are_counted() {
        let target =
            |answered: u64, times: Value| json!({ "minutes_5": { "answered": answered }, "first_byte_us": times });
        let unknown = [
            target(3, Value::Null),
            target(3, json!({ "usual": null })),
            target(3, json!({ "usual": 5 })),
            target(0, Value::Null),
        ]
        .map(|one| has_unknown_times(&one));
        assert_eq!(unknown, [true, true, false, false]);
        assert!(unmeasured(1).starts_with("Whether 1 target is slow") && unmeasured(2).contains("2 targets are"));
    }

    #[test]
    fn table_has_unanswered_attempts_and_the_time_of_the_last_failure() {
        let target = |name: &str, state: &str, since: &str, failed: &str| {
            let minutes = json!({ "answered": 1, "failed": 2, "unanswered": 60 });
            let failure = json!({ "time": failed, "cause": "connect: refused" });
            json!({ "target": name, "model": "m", "state": state, "since": since, "minutes_5": minutes, "in_flight": 0,
                    "last_failure": failure, "one_caller": state == "partly_failing" })
        };
        let targets = [
            target("a/m", "partly_failing", "2026-11-27T12:59:21Z", "2026-11-27T12:59:30Z"),
            target("b/m", "slow", "2026-11-27T12:38:00Z", "2026-11-26T12:59:30Z"),
        ];
        let text = table(&targets, "2026-11-27T13:00:00Z", true);
        let lines: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split("  ").filter(|cell| !cell.is_empty()).map(str::trim).collect())
            .collect();
        let failure = "12:59:30Z connect: refused";
        assert_eq!(
            lines[1],
            ["a/m", "m", "partly failing, one caller", "12:59:21Z", "1", "62", "0", failure],
            "{text}"
        );
        assert_eq!(lines[2][3..], ["12:38Z", "1", "62", "0", &*["2026-11-26T", failure].concat()], "{text}");
    }
}
