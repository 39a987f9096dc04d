//! `tollgate keys list` and `keys show`: keys with their permissions, limits and usage.

use super::budgets::{self, BudgetLine};
use super::lookup::{KeyArgs, find, unknown};
use super::used::Used;
use crate::base::limits;
use crate::base::time::Unix;
use crate::cli::args::ConfigArg;
use crate::cli::load::{self, Secrets};
use crate::cli::output::{
    Align, Failure, Table, fitted, grouped, json_text, money, print, print_json, print_on, remark,
};
use crate::cli::store;
use crate::io::clock::unix;
use crate::policy::config::Config;
use crate::policy::keys::{KeyId, KeyRecord, ScopeEndpoint};
use crate::policy::plan::caps::{Cap, Caps, Extra, Models, Per, Resource};
use crate::policy::plan::{Plan, Shorthand};
use crate::policy::window::{Period, iso};
use crate::store::api::Names;
use crate::store::ledger::Ledger;
use clap::Args;
use serde::{Serialize, Serializer};
use std::collections::BTreeMap;

/// `tollgate keys list`.
#[derive(Args, Debug)]
pub struct ListArgs {
    /// Configuration options.
    #[command(flatten)]
    pub config: ConfigArg,
    /// List at most this many keys
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: Option<u64>,
    /// List the keys that were issued after this one
    #[arg(long, value_name = "ID", value_parser = parse_after)]
    pub after: Option<KeyId>,
    /// List keys whose name begins with PREFIX; without `*`, those named PREFIX
    #[arg(long, value_name = "PREFIX*")]
    pub name: Option<String>,
    /// Print every column and name whole, however narrow the terminal
    #[arg(long)]
    pub wide: bool,
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
}

fn parse_after(text: &str) -> Result<KeyId, String> {
    KeyId::parse(text).ok_or_else(|| "expected the id of a key: twelve letters and digits".to_string())
}

/// Remark on a ledger without keys.
pub(in crate::cli) const NO_KEYS: &str = "No keys yet: tollgate keys issue --name NAME";

/// A key as JSON.
#[derive(Serialize)]
pub(in crate::cli) struct KeyLine {
    id: String,
    name: String,
    plan: String,
    /// False if the plan is no longer in the configuration: its keys are refused.
    plan_configured: bool,
    /// The group that it belongs to.
    group: Option<String>,
    /// Labels of the key, by name.
    labels: BTreeMap<String, String>,
    status: &'static str,
    endpoints: Vec<String>,
    /// `["*"]` for all.
    models: Vec<String>,
    created: String,
    expires: Option<String>,
    revoked: Option<String>,
    /// Ends of validity of the secrets from before a rotation.
    former_secrets_until: Vec<String>,
    limits: KeyLimits,
    /// Temporary allowances, which are added to the limits until they end.
    extra: Vec<serde_json::Value>,
    /// True if the key makes its limits strict, whatever its plan and group do.
    strict: bool,
    /// The key's own `on_exhausted`.
    on_exhausted: Option<String>,
    /// Tokens used in the current period.
    tokens_used: u64,
    /// Cost of those tokens, in US dollars.
    cost_used: f64,
    /// Budgets and quotas.
    #[serde(skip)]
    lines: Vec<BudgetLine>,
    /// Token limit of the period; 0 for none.
    #[serde(skip)]
    tokens_limit: u64,
    /// Beginning of the next period.
    renews: String,
    /// Budgets and token quotas, with their forecasts if only this key is shown. Answers to changes have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    budgets: Option<Vec<serde_json::Value>>,
    /// The moment until which its traffic is captured; `None` if it is not.
    capture_until: Option<String>,
    /// The time at which the last request was admitted, or only its day (UTC).
    last_use: Option<String>,
}

/// The effective limits of a key: its own, otherwise its plan's.
struct KeyLimits {
    /// The plan with the key's own limits, without temporary allowances.
    plan: Plan,
    /// The key's own limits and temporary allowances.
    own: Caps,
}

impl KeyLimits {
    fn new(key: &KeyRecord, high: &Config) -> KeyLimits {
        let plan = high.plan(&key.plan).cloned().unwrap_or_default();
        KeyLimits { plan: plan.with(&key.limits, Unix(u64::MAX)), own: key.limits.clone() }
    }

    /// The limits, those of the plan first.
    fn all(&self) -> impl Iterator<Item = (Cap, bool)> + '_ {
        let plans = self.plan.all.iter().filter(|cap| !cap.own).map(|cap| (cap.clone(), false));
        plans.chain(self.own.iter().map(|cap| (cap.clone(), true)))
    }

    /// The temporary allowances: by how much they raise which limit, and their ends.
    fn extras(&self, now: Unix) -> Vec<serde_json::Value> {
        let one = |extra: &Extra| {
            let mut value = limit_json(&self.plan, &extra.cap, true);
            value["until"] = iso(extra.until).into();
            value
        };
        self.own.extras_at(now).map(one).collect()
    }

    /// Describes the limits.
    fn text(&self) -> String {
        let text = |(cap, is_own): (Cap, bool)| {
            let value = match (self.plan.setting_of(&cap), cap.total) {
                (None, _) => cap.text(),
                (Some(setting), 0) => format!("{} none", setting.as_str()),
                (Some(Shorthand::Budget), nano) => format!("budget {}", money(nano)),
                (Some(setting), count) => format!("{} {}", setting.as_str(), grouped(count)),
            };
            value + if is_own { " (own)" } else { "" }
        };
        let mut texts: Vec<String> = self.all().map(text).collect();
        if self.plan.strict {
            texts.push(["strict", if self.own.strict { " (own)" } else { "" }].concat());
        }
        if texts.is_empty() { "none".to_string() } else { texts.join(", ") }
    }
}

impl Serialize for KeyLimits {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.all().map(|(cap, is_own)| limit_json(&self.plan, &cap, is_own)))
    }
}

/// One limit in JSON; money in US dollars.
pub(in crate::cli) fn limit_json(plan: &Plan, cap: &Cap, is_own: bool) -> serde_json::Value {
    let is_money = cap.resource == Resource::Budget;
    serde_json::json!({
        "resource": cap.resource.as_str(),
        "per": (cap.per != Per::Now).then(|| plan.resolved(cap.clone()).per.text()),
        "models": cap.models.names(),
        "total": if is_money { serde_json::Value::from(cap.total as f64 / 1e9) } else { cap.total.into() },
        "from": if is_own { "key" } else { "plan" },
        "setting": plan.setting_of(cap).map(Shorthand::as_str),
        "text": cap.text(),
    })
}

impl KeyLine {
    pub(super) fn new(key: KeyRecord, high: &Config, used: &Used, now: Unix) -> KeyLine {
        let status = match &key {
            key if key.revoked.is_some() => "revoked",
            key if key.disabled => "disabled",
            key if !key.is_live(now) => "expired",
            _ => "live",
        };
        let former = key.former.iter().filter(|former| now < former.until);
        let plan = high.plan(&key.plan);
        let length = plan.map_or(Period::Month, |plan| plan.period);
        let [tokens, nano] = used.of_key(Per::Calendar(length), &Models::default(), &key.id);
        let lines = budgets::of_key(&key, high, used, now);
        let limits = KeyLimits::new(&key, high);
        let raised = limits.plan.with(&key.limits, now);
        KeyLine {
            id: key.id.to_string(),
            status,
            endpoints: key.scope.endpoints_text().split(',').map(str::to_string).collect(),
            plan_configured: plan.is_some(),
            created: iso(key.created),
            expires: key.expires.map(iso),
            revoked: key.revoked.map(iso),
            former_secrets_until: former.map(|former| iso(former.until)).collect(),
            tokens_limit: raised.limit(Shorthand::Tokens),
            extra: limits.extras(now),
            strict: limits.own.strict,
            on_exhausted: key.limits.on_exhausted.as_deref().map(str::to_string),
            limits,
            tokens_used: tokens,
            cost_used: nano as f64 / 1e9,
            renews: iso(length.bounds(now).1),
            budgets: used.is_read().then(|| lines.iter().map(|one| one.plain_json(now)).collect()),
            lines,
            capture_until: key.capture.filter(|until| now < *until && key.revoked.is_none()).map(iso),
            last_use: used.last(&key.id),
            name: key.name,
            plan: key.plan,
            group: key.group,
            labels: key.labels.into_iter().collect(),
            models: key.scope.models_allowed.unwrap_or_else(|| vec!["*".to_string()]),
        }
    }

    pub(in crate::cli) fn id(&self) -> &str {
        &self.id
    }

    fn plan_text(&self) -> String {
        let remark = if self.plan_configured { "" } else { " (not configured)" };
        format!("{}{remark}", self.plan)
    }

    /// The status, with the end of a capture.
    fn status_text(&self) -> String {
        let until = self.capture_until.as_ref().map(|until| format!(", captured until {until}"));
        [self.status, &until.unwrap_or_default()].concat()
    }

    fn endpoints_text(&self) -> String {
        if self.endpoints.len() == ScopeEndpoint::all().count() { "all".to_string() } else { self.endpoints.join(",") }
    }

    fn models_text(&self) -> String {
        if self.models == ["*"] { "all".to_string() } else { self.models.join(",") }
    }

    fn labels_text(&self) -> String {
        let labels: Vec<String> = self.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
        labels.join(", ")
    }

    /// Tokens used, and the limit.
    fn used_text(&self) -> String {
        let tokens = self.tokens_limit;
        let limit = if tokens == 0 { "no limit".to_string() } else { grouped(tokens) };
        format!("{} / {limit}", grouped(self.tokens_used))
    }

    /// Dollars used, and the budget, of each budget.
    fn money_text(&self) -> String {
        let budgets = self.lines.iter().filter(|one| one.is_money());
        budgets.map(BudgetLine::used_text).collect::<Vec<_>>().join("; ")
    }
}

/// Lists keys, page by page.
pub(super) fn list(args: &ListArgs) -> Result<(), Failure> {
    let (high, now) = (load::load(&args.config, Secrets::Optional)?, unix());
    let mut out = Out::new(args.json, args.wide);
    let mut ledger = store::open_existing(&high)?;
    let mut used: Option<Used> = None;
    let (mut after, mut left) = (args.after, args.limit.unwrap_or(u64::MAX));
    while let Some(ledger) = ledger.as_mut().filter(|_| left > 0) {
        let (most, bytes) = limits::KEYS_PAGE;
        let most = (usize::try_from(left).map_or(most, |left| left.min(most)), bytes);
        let page = page(ledger, &high, (after.as_ref(), args.name.as_deref()), most, (used.as_mut(), now))?;
        let Some(last) = page.lines.last() else { break };
        after = KeyId::parse(&last.id);
        left -= page.lines.len() as u64;
        if !out.page(&page.lines)? || !page.more {
            break;
        }
        // If there are further pages, usage is read once for all keys: reading it for one page costs as much.
        if used.is_none() && left > 0 {
            used = Some(Used::of_keys(ledger, None)?);
        }
    }
    out.end(args)
}

/// Keys with their current state, and true if there are more.
pub(in crate::cli) struct KeyPage {
    pub(in crate::cli) lines: Vec<KeyLine>,
    pub(in crate::cli) more: bool,
}

/// The keys issued after `after` with this name, or with this prefix if `name` ends with `*`. `used`: usage of all
/// keys, if already read.
fn page(
    ledger: &mut Ledger,
    high: &Config,
    (after, name): (Option<&KeyId>, Option<&str>),
    (most, bytes): (usize, usize),
    (used, now): (Option<&mut Used>, Unix),
) -> Result<KeyPage, Failure> {
    let page = ledger.keys_page(after, name.map_or_else(Names::default, Names::of), (most + 1, bytes));
    let mut keys = page.map_err(Failure::failed)?.ok_or_else(|| unknown(after.map_or("", KeyId::as_str)))?;
    let more = cut(&mut keys, most, bytes, KeyRecord::text_bytes);
    let mut own;
    let used = match used {
        Some(all) => all,
        None => {
            own = Used::of_keys(ledger, Some(&keys))?;
            &mut own
        }
    };
    used.read(ledger, high, &keys, now)?;
    Ok(KeyPage { lines: keys.into_iter().map(|key| KeyLine::new(key, high, used, now)).collect(), more })
}

/// Removes the item of a page beyond `most` items or after `bytes` bytes, which the ledger returns to show that there
/// are more. True if there was one.
pub(in crate::cli) fn cut<T>(items: &mut Vec<T>, most: usize, bytes: usize, length: fn(&T) -> usize) -> bool {
    let Some((_, before)) = items.split_last() else { return false };
    let more = items.len() > most || (!before.is_empty() && before.iter().map(length).sum::<usize>() >= bytes);
    items.truncate(items.len() - usize::from(more));
    more
}

/// Keys with their current state, for the admin API: at most `most.0`, up to the one that reaches `most.1` bytes.
pub(in crate::cli) fn listed(
    high: &Config,
    after: Option<&KeyId>,
    most: (usize, usize),
    now: Unix,
) -> Result<KeyPage, Failure> {
    match store::open_existing(high)? {
        Some(mut ledger) => page(&mut ledger, high, (after, None), most, (None, now)),
        None => Ok(KeyPage { lines: Vec::new(), more: false }),
    }
}

/// Current state of a key, with its budgets.
pub(in crate::cli) fn shown(high: &Config, name: &str, now: Unix) -> Result<KeyLine, Failure> {
    let key = find(high, name)?;
    let mut ledger = store::open_existing(high)?.ok_or_else(|| unknown(name))?;
    let keys = std::slice::from_ref(&key);
    let mut used = Used::of_keys(&mut ledger, Some(keys))?;
    used.read(&mut ledger, high, keys, now)?;
    let mut line = KeyLine::new(key, high, &used, now);
    budgets::read_days(&mut ledger, &mut used, &mut line.lines, now)?;
    line.budgets = Some(line.lines.iter().map(|one| one.json(now)).collect());
    Ok(line)
}

/// Output of the list, printed page by page.
enum Out {
    /// A table; true if some of it was printed.
    Table(Table<'static>, bool),
    /// An array; number of pages printed.
    Json(u64),
}

impl Out {
    fn new(json: bool, wide: bool) -> Out {
        if json { Out::Json(0) } else { Out::Table(table().fit(wide, &SPARE), false) }
    }

    /// Prints a page; false if the reader has gone away.
    fn page(&mut self, lines: &[KeyLine]) -> Result<bool, Failure> {
        match self {
            Out::Table(table, printed) => {
                lines.iter().for_each(|line| row(table, line));
                *printed = true;
                print_on(&table.take_text())
            }
            Out::Json(pages) => {
                let text = json_text(&lines)?;
                let items = text.trim_end().trim_start_matches('[').trim_end_matches(']').trim_end();
                *pages += 1;
                print_on(&[if *pages == 1 { "[" } else { "," }, items].concat())
            }
        }
    }

    fn end(mut self, args: &ListArgs) -> Result<(), Failure> {
        match &mut self {
            Out::Table(_, true) => Ok(()),
            Out::Table(table, false) => {
                match (&args.name, args.after) {
                    (Some(name), _) => remark(&format!("No keys match --name {name}")),
                    (None, Some(_)) => remark("No further keys"),
                    (None, None) => remark(NO_KEYS),
                }
                print(&table.take_text())
            }
            Out::Json(0) => print("[]\n"),
            Out::Json(_) => print("\n]\n"),
        }
    }
}

/// Columns that are omitted, in this order, if the terminal is too narrow.
const SPARE: [&str; 9] =
    ["LABELS", "ENDPOINTS", "CREATED", "EXPIRES", "MODELS", "ID", "PLAN", "TOKENS USED / LIMIT", "GROUP"];

fn table() -> Table<'static> {
    let heads =
        ["ID", "NAME", "PLAN", "GROUP", "LABELS", "STATUS", "ENDPOINTS", "MODELS", "CREATED", "EXPIRES", "LAST USE"];
    let align = |head: &str| match head {
        "NAME" | "PLAN" | "GROUP" | "LABELS" | "MODELS" => Align::Name,
        _ => Align::Left,
    };
    let mut heads: Vec<(&str, Align)> = heads.map(|head| (head, align(head))).to_vec();
    heads.extend([("TOKENS USED / LIMIT", Align::Right), ("USED / BUDGET", Align::Right)]);
    Table::new(&heads)
}

fn row(table: &mut Table<'_>, line: &KeyLine) {
    table.row(vec![
        line.id.clone(),
        line.name.clone(),
        line.plan_text(),
        line.group.clone().unwrap_or_default(),
        line.labels_text(),
        line.status_text(),
        line.endpoints_text(),
        line.models_text(),
        line.created.clone(),
        line.expires.clone().unwrap_or_else(|| "never".to_string()),
        line.last_use.clone().unwrap_or_else(|| "never".to_string()),
        line.used_text(),
        line.money_text(),
    ]);
}

/// A temporary allowance in words: `budget=20/month until 2026-12-01T00:00:00Z`.
fn extra_text(extra: &serde_json::Value) -> String {
    let part = |name: &str| extra[name].as_str().unwrap_or_default();
    format!("{} until {}", part("text"), part("until"))
}

/// Shows one key.
pub(super) fn show(args: &KeyArgs) -> Result<(), Failure> {
    let (high, now) = (load::load(&args.config, Secrets::Optional)?, unix());
    let line = shown(&high, &args.key, now)?;
    if args.json {
        return print_json(&line);
    }
    let forecast: Vec<String> = line.lines.iter().map(|one| one.text(now)).collect();
    let never = || "never".to_string();
    let former = line.former_secrets_until.join(", ");
    let mut table = Table::new(&[("FIELD", Align::Left), ("VALUE", Align::Left)]);
    let (plan, used, money, limits) = (line.plan_text(), line.used_text(), line.money_text(), line.limits.text());
    let (labels, none) = (line.labels_text(), || "none".to_string());
    let extra: Vec<String> = line.extra.iter().map(extra_text).collect();
    let extra = if extra.is_empty() { none() } else { extra.join(", ") };
    let [endpoints, models] = [line.endpoints_text(), line.models_text()].map(|names| names.replace(',', ", "));
    for (field, value) in [
        ("id", line.id),
        ("name", line.name),
        ("plan", plan),
        ("group", line.group.unwrap_or_else(none)),
        ("labels", if labels.is_empty() { none() } else { labels }),
        ("limits", limits),
        ("extra", extra),
        ("on exhausted", line.on_exhausted.unwrap_or_else(none)),
        ("tokens used", used),
        ("budget used", if money.is_empty() { none() } else { money }),
        ("renews", line.renews),
        ("forecast", if forecast.is_empty() { none() } else { forecast.join("; ") }),
        ("status", line.status.to_string()),
        ("endpoints", endpoints),
        ("models", models),
        ("created", line.created),
        ("last use", line.last_use.unwrap_or_else(never)),
        ("expires", line.expires.unwrap_or_else(never)),
        ("revoked", line.revoked.unwrap_or_else(never)),
        ("captured", line.capture_until.map_or("no".to_string(), |until| format!("until {until}"))),
        ("former secrets", if former.is_empty() { none() } else { format!("until {former}") }),
    ] {
        table.row(vec![field.to_string(), value]);
    }
    print(&fitted(table.text()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::demo::config::tests::parsed;
    use crate::policy::keys::Scope;

    const NOW: Unix = Unix(1_795_000_000_000);

    fn key() -> KeyRecord {
        KeyRecord {
            id: KeyId::parse("AAAAAAAAAAAA").unwrap(),
            digest: [0; 32],
            name: "ci".to_string(),
            plan: "demo".to_string(),
            scope: Scope::default(),
            created: NOW,
            expires: None,
            revoked: None,
            disabled: false,
            limits: Caps::default(),
            group: None,
            labels: Vec::new(),
            former: Vec::new(),
            capture: None,
        }
    }

    fn text_of(lines: &[KeyLine]) -> String {
        let mut table = table();
        lines.iter().for_each(|line| row(&mut table, line));
        table.text()
    }

    #[test]
    fn table_shows_the_state_of_a_key() {
        let key = key();
        let revoked = KeyRecord { revoked: Some(NOW), disabled: true, ..key.clone() };
        let expired = KeyRecord { expires: Some(NOW), ..key.clone() };
        let disabled = KeyRecord { disabled: true, ..key.clone() };
        let high = parsed();
        let orphan = KeyRecord { plan: "gone".to_string(), ..key.clone() };
        let used = Used::default();
        let lines = [key, revoked, expired, disabled, orphan].map(|key| KeyLine::new(key, &high, &used, NOW));
        let states = lines.each_ref().map(|line| line.status);
        assert_eq!(states, ["live", "revoked", "expired", "disabled", "live"]);
        let text = text_of(&lines);
        assert!(text.lines().nth(1).is_some_and(|line| line.contains("live") && line.contains("never")), "{text}");
        assert!(text.contains("gone (not configured)") && !text.contains("demo (not"), "{text}");
    }

    #[test]
    fn line_shows_last_use_and_usage_of_limits() {
        let (high, id) = (parsed(), key().id);
        let mut used = Used::default();
        let month = Per::Calendar(Period::Month);
        used.add((month, &Models::default()), id, [4044, 1_250_000_000], Unix(1_795_132_800_000));
        let text = text_of(&[KeyLine::new(key(), &high, &used, NOW)]);
        assert!(text.contains("2026-11-20") && text.contains("4 044 / 10 000 000"), "{text}");
        let caps = |texts: &[&str]| texts.iter().flat_map(|text| Cap::parse(text)).collect::<Caps>();
        let limits = caps(&["tokens/period=none", "requests=5/window"]);
        let line = KeyLine::new(KeyRecord { limits: limits.clone(), ..key() }, &high, &used, NOW);
        assert!(text_of(&[line]).contains("4 044 / no limit"));
        let line = KeyLine::new(KeyRecord { limits, ..key() }, &high, &used, NOW);
        assert_eq!(line.limits.text(), "concurrency 100, tokens none (own), requests 5 (own)");
        assert_eq!(line.money_text(), "");
        assert_eq!(line.cost_used, 1.25);
        let opus = Models::parse("opus-*").unwrap();
        let window = Per::parse("5h").unwrap();
        used.add((window, &opus), id, [0, 500_000_000], NOW);
        let extra = Extra { cap: Cap::parse("budget=2.50/month").unwrap(), until: Unix(u64::MAX) };
        let limits = caps(&["budget=10/period", "budget=5/5h:opus-*"]).with_extras(vec![extra]);
        let line = KeyLine::new(KeyRecord { limits, ..key() }, &high, &used, NOW);
        assert!(text_of(&[line]).contains("$1.2500 / $12.5000; $0.5000 / $5.0000 per 5h:opus-*"));
    }
}
