//! `tollgate status`: the state of a running gateway in one word, and its targets with their states.

use super::args::ConfigArg;
use super::http::admin_client::{AskArg, Listener};
use super::output::{Align, Failure, Table, clean, fitted, grouped, money, percent, print, print_json, remark};
use super::requests::read;
use crate::base::text::{plural, quoted};
use crate::policy::plan::caps::{Cap, Models, Per, Resource};
use serde_json::{Value, json};
use std::collections::HashMap;

/// Pages of targets that are read.
const PAGES_MAX: usize = 1000;
/// Maximum number of notices that are printed.
const NOTICES_MAX: usize = 20;
/// Used share of a budget, in percent, from which a notice is printed.
const USED_PERCENT: f64 = 80.0;

/// `tollgate status`.
#[derive(clap::Args, Debug)]
pub struct StatusArgs {
    /// Configuration options.
    #[command(flatten)]
    pub config: ConfigArg,
    /// Gateway options.
    #[command(flatten)]
    pub admin: AskArg,
    /// Print every column and name whole, however narrow the terminal
    #[arg(long)]
    pub wide: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

/// All targets of a running gateway; `get` reads one path of its admin API.
pub(super) fn list_targets(get: &mut dyn FnMut(&str) -> Result<Value, Failure>) -> Result<Vec<Value>, Failure> {
    let (mut targets, mut after) = (Vec::new(), String::new());
    for _ in 0..PAGES_MAX {
        let mut page = get(&format!("/admin/v1/targets?limit=1000{after}"))?;
        if let Value::Array(list) = page["data"].take() {
            targets.extend(list);
        }
        if page["next"].is_null() {
            break;
        }
        after = format!("&after={}", page["next"].as_str().map_or(page["next"].to_string(), str::to_string));
    }
    Ok(targets)
}

/// Prints the state of the gateway, then the targets.
pub fn run(args: &StatusArgs) -> Result<(), Failure> {
    let listener = Listener::with_token(&args.admin, &args.config)?;
    let get = |path: &str| {
        let body = read(&listener, &["/admin/v1/", path].concat(), &args.admin, &args.config)?;
        serde_json::from_str::<Value>(&String::from_utf8_lossy(&body)).map_err(Failure::failed)
    };
    let status = get("status")?;
    let targets = list_targets(&mut |path| get(path.trim_start_matches("/admin/v1/")))?;
    if args.json {
        let [health, problems, refused, captures] =
            ["health", "problems", "refused", "captures"].map(|name| &status[name]);
        return print_json(&json!({
            "health": health, "problems": problems, "refused": refused, "captures": captures, "targets": targets
        }));
    }
    let budgets = get("budgets?limit=1000").map_err(|why| remark(&format!("Budgets are not known: {}", why.text())));
    let budgets = budgets.unwrap_or_default();
    let now = status["time"].as_str().unwrap_or_default();
    let mut lines: Vec<String> = list(&status["problems"]).iter().flat_map(|one| problem(one, now)).collect();
    lines.extend(notices([&budgets["data"], &status["refused"], &status["captures"]].map(list), now));
    let lines: Vec<String> = lines.iter().map(|line| item(line)).collect();
    print(&format!("{}\n{}", clean(status["health"].as_str().unwrap_or("unknown")), lines.concat()))?;
    let targets = merged(targets);
    print(&table(&targets, now, args.wide))?;
    let unknown = targets.iter().filter(|one| has_unknown_times(one)).count();
    if unknown > 0 {
        remark(&fitted(unmeasured(unknown)));
    }
    Ok(())
}

/// One row for each target, with all of its models.
fn merged(rows: Vec<Value>) -> Vec<Value> {
    let mut targets: Vec<Value> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    for row in rows {
        match places.get(&text(&row["target"])) {
            Some(at) => {
                targets[*at]["model"] = format!("{}, {}", text(&targets[*at]["model"]), text(&row["model"])).into()
            }
            None => {
                places.insert(text(&row["target"]), targets.len());
                targets.push(row);
            }
        }
    }
    targets
}

/// An item of the list, whose further lines are indented more than its first.
fn item(line: &str) -> String {
    fitted(format!("    {}\n", clean(line))).replacen("    ", "  ", 1)
}

/// True for a target with answers, but without earlier ones to compare them with: it may be slow.
fn has_unknown_times(one: &Value) -> bool {
    one["minutes_5"]["answered"] != 0 && one["first_byte_us"]["usual"].is_null()
}

fn unmeasured(targets: usize) -> String {
    format!(
        "The usual time to the first byte of {targets} target{} is not known yet: too few requests are more than five \
        minutes old (20 needed).",
        plural(targets as u64)
    )
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or("-").to_string()
}

/// The name of a caller, or its id if it has none.
fn name_of(one: &Value) -> &str {
    one["name"].as_str().filter(|name| !name.is_empty()).or(one["id"].as_str()).unwrap_or("-")
}

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or_default()
}

/// A problem as the gateway words it, with its times, and its next step on a line of its own.
fn problem(one: &Value, now: &str) -> Vec<String> {
    let name = if one["what"] == "model" { quoted(&text(&one["name"])) } else { text(&one["name"]) };
    let mut subject = [text(&one["what"]), name].join(" ").trim_end().to_string();
    for (before, member) in [(", since ", "since"), (", until ", "until")] {
        if let Some(at) = one[member].as_str() {
            subject += &[before, &short(at, now)].concat();
        }
    }
    let notice = if one["health"] == "healthy" { "notice: " } else { "" };
    let next = one["next"].as_str().filter(|next| !next.is_empty());
    let next = next.map(|next| format!("  {next} Manual: {}", text(&one["manual"])));
    [format!("{notice}{subject}: {}", text(&one["text"]))].into_iter().chain(next).collect()
}

/// State of a target in words.
fn word(one: &Value) -> String {
    match one["state"].as_str() {
        Some("still_tried") => "only target, still tried".to_string(),
        _ => text(&one["state"]).replace('_', " "),
    }
}

/// Attempts of the last five minutes: those that failed, and all.
fn tried(one: &Value) -> [u64; 2] {
    let [answered, failed, unanswered] =
        ["answered", "failed", "unanswered"].map(|name| count(&one["minutes_5"][name]));
    [failed + unanswered, answered + failed + unanswered]
}

/// True for a target whose state follows from failures more than five minutes ago.
fn is_untried(one: &Value) -> bool {
    let fails = ["failing", "partly_failing", "hung"].iter().any(|state| one["state"] == *state);
    fails && tried(one)[1] == 0 && one["unanswered"].is_null() && one["last_failure"]["time"].is_string()
}

/// Returns the notices: budgets, refused callers and captured keys.
fn notices([budgets, refused, captures]: [&[Value]; 3], now: &str) -> Vec<String> {
    let share_of = |one: &Value| {
        let [refused, requests] = ["refused", "requests"].map(|name| grouped(count(&one[name])));
        format!("{refused} of {requests} requests refused in 5 min since {}", short(&text(&one["since"]), now))
    };
    let mut all: Vec<String> = Vec::new();
    // A key that is refused because its budget is spent gets one notice instead of two.
    let mut joined: Vec<&Value> = Vec::new();
    for budget in budgets {
        let Some(notice) = budget_notice(budget, now) else { continue };
        let is_same = |one: &&Value| budget["key"].is_string() && budget["key"] == one["id"] && one["status"] == 429;
        let own = refused.iter().find(is_same).filter(|_| is_spent(budget));
        joined.extend(own);
        all.push(own.map_or(notice.clone(), |one| format!("{notice}; {}", share_of(one))));
    }
    for one in refused.iter().filter(|one| !joined.contains(one)) {
        let (what, name, status) = (text(&one["what"]), quoted(name_of(one)), count(&one["status"]));
        all.push(format!("{what} {name}: {}, last with {status}", share_of(one)));
    }
    all.extend(captures.iter().map(|one| {
        let until = short(&text(&one["until"]), now);
        format!("key {}: its requests and responses are captured until {until}", quoted(name_of(one)))
    }));
    let more = all.len().saturating_sub(NOTICES_MAX);
    all.truncate(NOTICES_MAX);
    let mut lines: Vec<String> = all.into_iter().map(|line| ["notice: ", &line].concat()).collect();
    if more > 0 {
        lines.push(format!("and {more} more notice{}", plural(more as u64)));
    }
    lines
}

fn is_spent(budget: &Value) -> bool {
    budget["used"].as_f64() >= budget["limit"].as_f64()
}

/// The time and the models of a budget: ` for 5 hours and models opus-*`.
fn span_words(one: &Value) -> String {
    let Some(per) = one["per"].as_str().and_then(Per::parse) else { return String::new() };
    let names: Vec<&str> = list(&one["models"]).iter().filter_map(Value::as_str).collect();
    Cap { models: Models::parse(&names.join(",")).unwrap_or_default(), ..Cap::new(Resource::Budget, per, 0) }.words()
}

/// A budget or quota that is spent, nearly spent, or spent today at the present pace.
fn budget_notice(one: &Value, now: &str) -> Option<String> {
    let is_money = one["unit"] == "usd";
    let amount = |value: &Value| match is_money {
        true => (value.as_f64().unwrap_or_default() * 1e9).round() as u64,
        false => count(value),
    };
    let form = |amount: u64| if is_money { money(amount) } else { grouped(amount) };
    let (used, limit, forecast) = (amount(&one["used"]), amount(&one["limit"]), text(&one["forecast"]));
    let what = [if is_money { "budget" } else { "tokens" }, &span_words(one)].concat();
    let is_today = forecast.starts_with("spent ") && forecast.ends_with(" UTC");
    let state = if used >= limit {
        format!("{what} {forecast}")
    } else if is_today || used as f64 * 100.0 >= limit as f64 * USED_PERCENT {
        format!("{} of the {what} used", percent(used, limit))
    } else {
        return None;
    };
    let renews = text(&one["renews"]);
    let renews = renews.strip_suffix("T00:00:00Z").map_or_else(|| short(&renews, now), str::to_string);
    let pace = if used < limit && is_today { format!("; at this pace {forecast}") } else { String::new() };
    let (of, name) = (text(&one["what"]), quoted(&text(&one["name"])));
    Some(format!("{of} {name}: {state}: {} of {}, renews {renews}{pace}", form(used), form(limit)))
}

/// Beginning of a target's state. That of a slow target is known only to the minute.
fn began(one: &Value, now: &str) -> String {
    let since = short(&text(&one["since"]), now);
    if one["state"] == "slow" { since.replace(":00Z", "Z") } else { since }
}

/// A time without its date, if that is the date of `now`.
fn short(at: &str, now: &str) -> String {
    let is_today = at.get(..11).is_some_and(|date| now.starts_with(date));
    at.get(11..).filter(|_| is_today).unwrap_or(at).to_string()
}

fn table(targets: &[Value], now: &str, wide: bool) -> String {
    let [left, right] = [Align::Left, Align::Right];
    let mut table = Table::new(&[
        ("TARGET", Align::Name),
        ("MODELS", Align::Name),
        ("STATE", left),
        ("SINCE", left),
        ("ANSWERED", right),
        ("FAILED", right),
        ("IN FLIGHT", right),
        ("LAST FAILURE", left),
        ("CAUSE", left),
    ])
    .fit(wide, &["IN FLIGHT", "LAST FAILURE", "CAUSE", "MODELS"]);
    for one in targets {
        let [failed, _] = tried(one);
        let state = match (word(one), is_untried(one)) {
            (state, true) => [&state, ", not tried"].concat(),
            (state, _) if one["one_caller"] == true => [&state, ", one caller"].concat(),
            (state, _) => state,
        };
        let failure = &one["last_failure"];
        table.row(vec![
            text(&one["target"]),
            text(&one["model"]),
            state,
            began(one, now),
            grouped(count(&one["minutes_5"]["answered"])),
            grouped(failed),
            grouped(count(&one["in_flight"])),
            failure["time"].as_str().map_or("-".to_string(), |time| short(time, now)),
            text(&failure["cause"]),
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
        assert!(unmeasured(1).contains("of 1 target is") && unmeasured(2).contains("of 2 targets is"));
    }

    const NOW: &str = "2026-11-27T13:00:00Z";

    fn target(state: &str, more: Value) -> Value {
        let mut one = json!({ "target": "simB/sim-large", "model": "m", "state": state, "in_flight": 0,
            "since": "2026-11-27T12:41:12Z", "one_caller": false, "resting": null, "unanswered": null,
            "minutes_5": { "answered": 0, "failed": 3, "unanswered": 0 }, "first_byte_us": null,
            "last_failure": { "time": "2026-11-27T12:41:20Z", "cause": "connect: refused" } });
        more.as_object().unwrap().iter().for_each(|(name, value)| one[name] = value.clone());
        one
    }

    #[test]
    fn problem_has_its_times_and_next_step() {
        let mut one = json!({ "what": "target", "name": "a/m", "state": "cooling_down", "text": "cooling down: status 429",
            "since": "2026-11-27T12:41:12Z", "until": "2026-11-28T13:00:30Z", "health": "degraded",
            "next": "Raise the limit.", "manual": "how-to/alerts.md" });
        let first = "target a/m, since 12:41:12Z, until 2026-11-28T13:00:30Z: cooling down: status 429";
        assert_eq!(problem(&one, NOW), [first, "  Raise the limit. Manual: how-to/alerts.md"]);
        for (name, value) in [("what", "clock"), ("name", ""), ("next", ""), ("health", "healthy")] {
            one[name] = value.into();
        }
        (one["since"], one["until"]) = (Value::Null, Value::Null);
        assert_eq!(problem(&one, NOW), ["notice: clock: cooling down: status 429"]);
    }

    #[test]
    fn target_of_two_models_has_one_row() {
        let rows = ["good", "fallback"].map(|model| target("ok", json!({ "model": model })));
        let merged = merged([rows.to_vec(), vec![target("ok", json!({ "target": "b/m" }))]].concat());
        let models: Vec<String> = merged.iter().map(|one| text(&one["model"])).collect();
        assert_eq!(models, ["good, fallback", "m"]);
    }

    #[test]
    fn notices_name_what_is_spent_or_refused() {
        let budget = |name: &str, unit: &str, [used, limit]: [f64; 2], forecast: &str| {
            json!({ "what": "group", "name": name, "unit": unit, "per": "month", "models": null, "used": used, "limit": limit, "forecast": forecast,
                    "renews": "2026-12-01T00:00:00Z" })
        };
        let quota = json!({ "what": "key", "name": "bot", "unit": "tokens", "per": "5h", "models": ["opus-*", "!mini"],
            "used": 13, "limit": 1, "forecast": "spent", "renews": "2026-11-27T15:00:00Z" });
        let budgets = [
            budget("a", "usd", [0.2, 0.2], "spent since 26 Nov"),
            budget("b", "usd", [0.16, 0.2], "lasts"),
            budget("c", "usd", [0.05, 0.2], "spent 18:59 UTC"),
            budget("d", "usd", [0.05, 0.2], "spent 29 Nov"),
            quota,
        ];
        let captures = [json!({ "id": "BBBBBBBBBBBB", "name": "bot", "until": "2026-11-27T14:00:00Z" })];
        let refused = json!({ "what": "key", "id": "AAAAAAAAAAAA", "name": "ci", "requests": 12, "refused": 10,
            "status": 429, "since": "2026-11-27T12:59:00Z" });
        assert_eq!(
            notices([&budgets, std::slice::from_ref(&refused), &captures], NOW),
            [
                "notice: group `a`: budget for a month spent since 26 Nov: $0.2000 of $0.2000, renews 2026-12-01",
                "notice: group `b`: 80 % of the budget for a month used: $0.1600 of $0.2000, renews 2026-12-01",
                "notice: group `c`: 25 % of the budget for a month used: $0.0500 of $0.2000, renews 2026-12-01; at this pace spent 18:59 UTC",
                "notice: key `bot`: tokens for 5 hours and models opus-*,!mini spent: 13 of 1, renews 15:00:00Z",
                "notice: key `ci`: 10 of 12 requests refused in 5 min since 12:59:00Z, last with 429",
                "notice: key `bot`: its requests and responses are captured until 14:00:00Z",
            ]
        );
        let many = vec![budgets[0].clone(); NOTICES_MAX + 1];
        let lines = notices([&many, &[], &[]], NOW);
        assert_eq!((lines.len(), lines[NOTICES_MAX].as_str()), (NOTICES_MAX + 1, "and 1 more notice"));
        let mut spent = budgets[4].clone();
        spent["key"] = "AAAAAAAAAAAA".into();
        assert_eq!(
            notices([&[spent], &[refused], &[]], NOW),
            [
                "notice: key `bot`: tokens for 5 hours and models opus-*,!mini spent: 13 of 1, renews 15:00:00Z; 10 of 12 requests refused in 5 min since 12:59:00Z"
            ],
        );
    }

    #[test]
    fn target_that_is_not_tried_says_so_in_the_table() {
        let none = json!({ "answered": 0, "failed": 0, "unanswered": 0 });
        let text = table(&[target("failing", json!({ "minutes_5": none }))], NOW, true);
        assert!(text.contains("  failing, not tried  "), "{text}");
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
        let cause = "connect: refused";
        assert_eq!(
            lines[1],
            ["a/m", "m", "partly failing, one caller", "12:59:21Z", "1", "62", "0", "12:59:30Z", cause],
            "{text}"
        );
        assert_eq!(lines[2][3..], ["12:38Z", "1", "62", "0", "2026-11-26T12:59:30Z", cause], "{text}");
    }
}
