//! Options of a key, for `keys issue` and `keys set`.

use crate::base::time::Unix;
use crate::cli::ledger::present;
use crate::cli::output::Failure;
use crate::io::clock::unix;
use crate::policy::config::{Config, chain, units};
use crate::policy::keys::{KeyRecord, LABELS_MAX, Scope, is_group_name, is_unseen, label_from, well_formed};
use crate::policy::plan::caps::{Cap, Caps, ENTRIES_MAX, Extra};
use crate::policy::plan::{BUDGET_MAX, Plan, Shorthand, UNLIMITED, chain_error};
use crate::policy::window::{iso, parse_moment};
use crate::wire::Passthrough;
use clap::{Arg, Args};
use std::collections::BTreeMap;
use std::time::Duration;

/// Longest time for which the traffic of a key is captured.
const CAPTURE_TIME_MAX: Duration = Duration::from_secs(7 * 86_400);

/// Maximum characters of a key's name.
const NAME_MAX: usize = 128;

/// The options.
#[derive(Args, Debug, Clone, Default, PartialEq)]
pub struct KeyOptions {
    /// Move the key to this plan
    #[arg(long, value_name = "PLAN")]
    pub plan: Option<String>,
    /// Move the key to this group, or none
    #[arg(long, value_name = "GROUP", value_parser = parse_group)]
    pub group: Option<KeyGroup>,
    /// Set a label for reports, such as team=search; team= removes it; repeatable
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = parse_label)]
    pub labels: Vec<(String, String)>,
    /// Models the key may use: comma-separated ids, or all
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    pub models: Vec<String>,
    /// Endpoints the key may use: chat, messages, responses, embeddings, rerank, completions, speech, images,
    /// moderations, transcriptions, translations, models, quota, or all; the others also grant models and quota
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub endpoints: Vec<String>,
    /// Expiry: a duration (30d), a date (2027-01-31), or never
    #[arg(long, value_name = "WHEN", value_parser = parse_expiry)]
    pub expires: Option<Expiry>,
    /// Requests per window; 0: no limit; plan: the plan's
    #[arg(long, value_name = "N|plan", value_parser = parse_limit, allow_negative_numbers = true)]
    pub requests: Option<KeyLimit>,
    /// Tokens per period, such as 10M; 0: no limit; plan: the plan's
    #[arg(long, value_name = "N|plan", value_parser = parse_limit, allow_negative_numbers = true)]
    pub tokens: Option<KeyLimit>,
    /// Tokens per window; 0: no limit; plan: the plan's
    #[arg(long, value_name = "N|plan", value_parser = parse_limit, allow_negative_numbers = true)]
    pub tokens_per_window: Option<KeyLimit>,
    /// Running requests; 0: no limit; plan: the plan's
    #[arg(long, value_name = "N|plan", value_parser = parse_limit, allow_negative_numbers = true)]
    pub concurrency: Option<KeyLimit>,
    /// Limit such as budget=5/5h; budget/5h=none lifts it; repeatable
    #[arg(long = "limit", value_name = "LIMIT", value_parser = parse_entry)]
    pub limits: Vec<KeyEntry>,
    /// US dollars per period, such as 12.50; 0: no limit; plan: the plan's
    #[arg(long, value_name = "USD|plan", value_parser = parse_budget, allow_negative_numbers = true)]
    pub budget: Option<KeyLimit>,
    /// Make the key's limits of tokens and money strict; --strict=false: only if its plan or group does
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub strict: Option<bool>,
    /// Cheaper model that answers if a limit of the key has no room for a request, or none
    #[arg(long, value_name = "MODEL|none")]
    pub on_exhausted: Option<String>,
}

/// Replaces the help of an option for `keys issue`; the help above is that of `keys set`.
pub(super) fn of_new_key(option: Arg) -> Arg {
    let help = match option.get_id().as_str() {
        "plan" => "Plan [default: the first in the configuration]",
        "group" => "Group [default: none]",
        "labels" => "Label for reports, such as team=search; repeatable",
        "models" => "Models the key may use: comma-separated ids, or all [default: all]",
        "endpoints" => {
            "Endpoints the key may use: chat, messages, responses, embeddings, rerank, completions, speech, images, \
             moderations, transcriptions, translations, models, quota, or all; the others \
             also grant models and quota [default: all]"
        }
        "expires" => "Expiry: a duration (30d), a date (2027-01-31), or never [default: never]",
        "limits" => "Limit such as budget=5/5h; repeatable",
        "requests" => "Requests per window; 0: no limit [default: the plan's]",
        "tokens" => "Tokens per period, such as 10M; 0: no limit [default: the plan's]",
        "tokens_per_window" => "Tokens per window; 0: no limit [default: the plan's]",
        "concurrency" => "Running requests; 0: no limit [default: the plan's]",
        "budget" => "US dollars per period, such as 12.50; 0: no limit [default: the plan's]",
        "on_exhausted" => "Cheaper model that answers if a limit of the key has no room for a request [default: none]",
        _ => return option,
    };
    option.help(help)
}

/// When a key expires, as typed.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Expiry {
    /// A duration after the issue or the change.
    After(Duration),
    /// At this moment.
    At(Unix),
    /// No expiry.
    Never,
}

/// The group of a key, as typed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KeyGroup {
    /// The group with this name.
    Named(String),
    /// No group.
    None,
}

/// A key's own limit, as typed: a total, or [`KeyLimit::Plans`].
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum KeyLimit {
    /// This number; 0 means no limit.
    Own(u64),
    /// The plan's limit.
    Plans,
}

/// A limit of a key, as typed.
pub type KeyEntry = (Cap, KeyLimit);

pub(in crate::cli) fn parse_expiry(text: &str) -> Result<Expiry, String> {
    if text == "never" {
        return Ok(Expiry::Never);
    }
    let after = units::duration(text).filter(|length| !length.is_zero()).map(Expiry::After);
    let expiry = after.or_else(|| parse_moment(text).map(Expiry::At));
    expiry.ok_or_else(|| "expected a duration such as 30d, a date such as 2027-01-31, or never".to_string())
}

/// Parses the time for which traffic is captured; [`Expiry::Never`] means that it is not.
pub(in crate::cli) fn parse_capture(text: &str) -> Result<Expiry, String> {
    let expiry =
        if text.trim_end_matches(['s', 'm', 'h', 'd']) == "0" { Ok(Expiry::Never) } else { parse_expiry(text) };
    expiry.ok().filter(|_| text != "never").ok_or_else(|| {
        "expected a duration such as 1h, a date such as 2027-01-31T18:00:00Z, or 0 to end the capture".to_string()
    })
}

/// The end of a capture after a change, which was `before`.
pub(super) fn captured_until(change: Option<Expiry>, before: Option<Unix>, now: Unix) -> Result<Option<Unix>, Failure> {
    let most = u64::try_from(CAPTURE_TIME_MAX.as_millis()).unwrap_or(u64::MAX);
    let millis = match change {
        None => return Ok(before),
        Some(Expiry::Never) => return Ok(None),
        Some(Expiry::At(at)) if at <= now => {
            return Err(Failure::misused(format!("capture: {} is in the past", iso(at))));
        }
        Some(Expiry::At(at)) => at.0 - now.0,
        Some(Expiry::After(length)) => u64::try_from(length.as_millis()).unwrap_or(u64::MAX),
    };
    match millis <= most {
        // Gateways know whole seconds.
        true => Ok(Some(Unix((now.0 + millis).next_multiple_of(1000)))),
        false => Err(Failure::misused("capture: expected a time at most 7d ahead")),
    }
}

pub(in crate::cli) fn parse_group(text: &str) -> Result<KeyGroup, String> {
    match text {
        "none" => Ok(KeyGroup::None),
        name if is_group_name(name) => Ok(KeyGroup::Named(name.to_string())),
        _ => Err("expected the name of a group (1 to 64 characters, without `/`), or none".to_string()),
    }
}

pub(in crate::cli) fn parse_label(text: &str) -> Result<(String, String), String> {
    let label = label_from(text).map(|(name, value)| (name.to_string(), value.to_string()));
    label.ok_or_else(|| {
        "expected a name of 1 to 32 of a-z, 0-9, `_`, `.` and `-`, and a value of at most 64 printable \
         characters (an empty one removes the label)"
            .to_string()
    })
}

/// The labels `before`, changed by `asked`; an empty value removes a label.
fn labels(before: &[(String, String)], asked: &[(String, String)]) -> Result<Vec<(String, String)>, Failure> {
    let all: BTreeMap<String, String> = before.iter().chain(asked).cloned().collect();
    let kept: Vec<_> = all.into_iter().filter(|(_, value)| !value.is_empty()).collect();
    match kept.len() {
        0..=LABELS_MAX => Ok(kept),
        count => Err(Failure::misused(format!("a key has at most {LABELS_MAX} labels, found {count}"))),
    }
}

pub(in crate::cli) fn parse_limit(text: &str) -> Result<KeyLimit, String> {
    if text == "plan" {
        return Ok(KeyLimit::Plans);
    }
    let number = units::context(text).filter(|number| *number <= UNLIMITED);
    number.map(KeyLimit::Own).ok_or_else(|| "expected a number such as 600 or 10M (0: no limit), or plan".to_string())
}

pub(in crate::cli) fn parse_budget(text: &str) -> Result<KeyLimit, String> {
    if text == "plan" {
        return Ok(KeyLimit::Plans);
    }
    let nano = units::dollars(text).filter(|nano| *nano <= BUDGET_MAX);
    nano.map(KeyLimit::Own).ok_or_else(|| {
        "expected US dollars such as 12.50, at most 1000000000 and with at most nine decimals (0: no limit), or plan"
            .to_string()
    })
}

pub(in crate::cli) fn parse_entry(text: &str) -> Result<KeyEntry, String> {
    match text.strip_suffix("=plan") {
        Some(name) => Cap::parse(&[name, "=none"].concat()).map(|cap| (cap, KeyLimit::Plans)),
        None => Cap::parse(text).map(|cap| (cap.clone(), KeyLimit::Own(cap.total))),
    }
    .map_err(str::to_string)
}

/// The limits `before`, changed by `asked`. `plan`: the key's.
fn limits(before: &Caps, asked: impl Iterator<Item = KeyEntry>, plan: &Plan) -> Result<Caps, Failure> {
    let (mut all, mut named): (Vec<Cap>, Vec<Cap>) = (before.to_vec(), Vec::new());
    for (cap, limit) in asked {
        once(&mut named, &cap, plan)?;
        all.retain(|other| !is_same(other, &cap, plan));
        if let KeyLimit::Own(total) = limit {
            all.push(Cap { total, ..cap });
        }
    }
    match all.len() {
        0..=ENTRIES_MAX => Ok(before.with_limits(all)),
        count => Err(Failure::misused(format!("a key has at most {ENTRIES_MAX} entries of limits, found {count}"))),
    }
}

/// Fails if `cap` limits the same as one of `named`, to which it is added.
fn once(named: &mut Vec<Cap>, cap: &Cap, plan: &Plan) -> Result<(), Failure> {
    if let Some(other) = named.iter().find(|other| is_same(other, cap, plan)) {
        let [one, other] = [cap, other].map(Cap::name);
        return Err(Failure::misused(format!("the same limit is named twice, as `{other}` and as `{one}`")));
    }
    named.push(cap.clone());
    Ok(())
}

fn is_same(one: &Cap, other: &Cap, plan: &Plan) -> bool {
    plan.resolved(one.clone()).is_like(&plan.resolved(other.clone()))
}

/// A temporary allowance for one limit of a key, as typed: its total is 0 if it is to end now.
#[derive(Clone, PartialEq, Debug)]
pub struct KeyExtra {
    /// The limit, and how much is added. Its time may be left out.
    pub cap: Cap,
    /// When it ends.
    pub until: Option<Expiry>,
}

pub(in crate::cli) fn parse_extra(text: &str) -> Result<Cap, String> {
    Cap::parse_open(text).map_err(str::to_string)
}

/// Parses the end of a temporary allowance.
pub(in crate::cli) fn parse_end(text: &str) -> Result<Expiry, String> {
    let end = parse_expiry(text).ok().filter(|end| *end != Expiry::Never);
    end.ok_or_else(|| "expected a duration such as 2d, or a date such as 2027-01-31T18:00:00Z".to_string())
}

/// The limits `before`, with the temporary allowances `asked`, each in place of the one for the same limit. Those that
/// have ended are removed.
pub(super) fn with_extras(before: &Caps, asked: &[KeyExtra], plan: &Plan, now: Unix) -> Result<Caps, Failure> {
    if asked.is_empty() {
        return Ok(before.clone());
    }
    let mut all: Vec<Extra> = before.extras_at(now).cloned().collect();
    let (limits, mut named) = (plan.with(before, Unix(u64::MAX)).all, Vec::new());
    for KeyExtra { cap, until } in asked {
        let is_meant = |other: &&Cap| match cap.has_time() {
            true => is_same(other, cap, plan),
            false => other.resource == cap.resource && (cap.models.text().is_none() || other.models == cap.models),
        };
        let meant: Vec<&Cap> = match cap.total {
            0 => all.iter().map(|extra| &extra.cap).filter(is_meant).collect(),
            _ => limits.iter().filter(is_meant).collect(),
        };
        let [limit] = meant[..] else {
            let (what, texts) = (cap.name(), limits.iter().map(Cap::name).collect::<Vec<_>>().join(", "));
            let texts = if texts.is_empty() { "none" } else { &texts };
            let why = match (meant.len(), cap.total) {
                (0, 0) => "has no temporary allowance for",
                (0, _) => "has no limit",
                _ => "has several limits of",
            };
            return Err(Failure::misused(format!("extra: the key {why} `{what}`; its limits: {texts}")));
        };
        let limit = limit.clone();
        once(&mut named, &limit, plan)?;
        all.retain(|other| !is_same(&other.cap, &limit, plan));
        if cap.total > 0 {
            let end = until.ok_or_else(|| Failure::misused("extra: name its end: --for 2d, or --until TIME"))?;
            let cap = Cap { total: cap.total, own: false, span: 0, ..limit };
            all.push(Extra { cap, until: end_of("extra", end, now)? });
        }
    }
    match all.len() {
        0..=ENTRIES_MAX => Ok(before.clone().with_extras(all)),
        count => Err(Failure::misused(format!("a key has at most {ENTRIES_MAX} temporary allowances, found {count}"))),
    }
}

/// A moment in the future. `field` names the option.
fn end_of(field: &str, end: Expiry, now: Unix) -> Result<Unix, Failure> {
    match end {
        Expiry::At(at) if at <= now => Err(Failure::misused(format!("{field}: {} is in the past", iso(at)))),
        Expiry::At(at) => Ok(at),
        Expiry::After(length) => Ok(Unix(now.0.saturating_add(u64::try_from(length.as_millis()).unwrap_or(u64::MAX)))),
        Expiry::Never => Ok(Unix(u64::MAX)),
    }
}

/// Parses the name of a key.
pub(in crate::cli) fn parse_name(text: &str) -> Result<String, String> {
    let is_seen = !text.trim().is_empty() && !text.chars().any(is_unseen);
    // A name is shown in lists and in the log.
    let is_key = text.split_once("live_").is_some_and(|(prefix, _)| well_formed(text.as_bytes(), prefix).is_some());
    let good = (1..=NAME_MAX).contains(&text.chars().count()) && is_seen && !is_key;
    let expected = || format!("expected 1 to {NAME_MAX} visible characters, and no key");
    good.then(|| text.to_string()).ok_or_else(expected)
}

/// The plan called `name`, which must be configured.
fn plan(name: &str, high: &Config) -> Result<String, Failure> {
    if high.plan(name).is_none() {
        let names: Vec<&str> = high.plans.iter().map(|plan| &*plan.name).collect();
        return Err(Failure::misused(format!("no plan is named `{name}`; configured: {}", names.join(", "))));
    }
    Ok(name.to_string())
}

fn past(at: Unix) -> String {
    format!("expires: {} is in the past: use a later date, a duration such as 30d, or never", iso(at))
}

fn words(list: &[String]) -> Vec<String> {
    list.iter().map(|word| word.trim().to_string()).collect()
}

/// The id of a model, which must be configured. Models from a provider's list are unknown here, except for their
/// prefix.
fn known_model<'a>(id: &'a str, high: &Config) -> Result<&'a str, Failure> {
    let may_be_listed = || {
        let mut prefixes = high.providers.iter().filter_map(|provider| provider.discover.as_ref());
        prefixes.any(|discover| id.strip_prefix(&*discover.prefix).is_some_and(|rest| discover.id_of(rest).is_some()))
    };
    match high.catalog.asked(id).and_then(|index| high.catalog.get(index)) {
        Some(model) if *model.id == *id => Ok(id),
        Some(model) => Err(Failure::misused(format!("`{id}` is an alias of `{}`: use the id", model.id))),
        None if may_be_listed() => Ok(id),
        None => Err(Failure::misused(format!("no model has the id `{id}`; see `tollgate models`"))),
    }
}

/// The named endpoints and models; those of `before` if none are named.
fn scope(options: &KeyOptions, before: &Scope, high: &Config) -> Result<Scope, Failure> {
    let (endpoints, models) = (words(&options.endpoints), words(&options.models));
    let all = |word: &String| word == "*" || word == "all" && high.catalog.find("all").is_none();
    for id in models.iter().filter(|id| !all(id)) {
        known_model(id, high)?;
    }
    let models: Vec<&str> =
        if models.iter().any(all) { Vec::new() } else { models.iter().map(String::as_str).collect() };
    let has_all = endpoints.iter().any(|word| word == "*" || word == "all");
    let named: Vec<&str> = if has_all { Vec::new() } else { endpoints.iter().map(String::as_str).collect() };
    let fresh = Scope::from_words(named, models).map_err(|word| {
        let relayed = Passthrough::names();
        Failure::misused(format!(
            "unknown endpoint `{word}`: expected chat, messages, responses, {relayed}, models, quota"
        ))
    })?;
    let mut scope = before.clone();
    if !options.endpoints.is_empty() {
        scope = Scope { models_allowed: scope.models_allowed, ..fresh.clone() };
    }
    if !options.models.is_empty() {
        scope.models_allowed = fresh.models_allowed;
    }
    Ok(scope)
}

impl KeyOptions {
    /// The current time, for a change. If an expiry depends on it, it is checked first.
    pub(super) fn present(&self, high: &Config) -> Result<Unix, Failure> {
        if self.expires.is_some() { present(high) } else { Ok(unix()) }
    }

    /// All limits that are set.
    fn all_limits(&self) -> impl Iterator<Item = KeyEntry> + '_ {
        let settings = Shorthand::ALL.into_iter().filter_map(|setting| {
            let limit = match setting {
                Shorthand::Tokens => self.tokens,
                Shorthand::Requests => self.requests,
                Shorthand::TokensPerWindow => self.tokens_per_window,
                Shorthand::Concurrency => self.concurrency,
                Shorthand::Budget => self.budget,
            };
            Some((setting.cap(), limit?))
        });
        settings.chain(self.limits.iter().cloned())
    }

    /// True if no option is set.
    pub(super) fn is_empty(&self) -> bool {
        *self == KeyOptions::default()
    }

    /// Applies the options to `key`: all of them, or none if one is invalid.
    pub(super) fn apply(&self, high: &Config, now: Unix, key: &mut KeyRecord) -> Result<(), Failure> {
        let plan = self.plan.as_deref().map(|name| plan(name, high)).transpose()?;
        if let Some(KeyGroup::Named(name)) = &self.group
            && high.group(name).is_none()
        {
            return Err(Failure::misused(format!("no group is named `{name}`; see [[groups]]")));
        }
        let scope = scope(self, &key.scope, high)?;
        let expires = match self.expires {
            None => key.expires,
            Some(Expiry::Never) => None,
            Some(Expiry::At(at)) if at <= now => return Err(Failure::misused(past(at))),
            Some(end) => Some(end_of("expires", end, now)?),
        };
        key.labels = labels(&key.labels, &self.labels)?;
        (key.scope, key.expires) = (scope, expires);
        match &self.group {
            Some(KeyGroup::Named(name)) => key.group = Some(name.clone()),
            Some(KeyGroup::None) => key.group = None,
            None => {}
        }
        key.plan = plan.unwrap_or_else(|| key.plan.clone());
        let plan = high.plan(&key.plan).cloned().unwrap_or_default();
        let strict = self.strict.unwrap_or(key.limits.strict);
        key.limits = limits(&key.limits, self.all_limits(), &plan)?;
        key.limits.strict = strict;
        if let Some(model) = self.on_exhausted.as_deref() {
            key.limits.on_exhausted = if model == "none" { None } else { Some(known_model(model, high)?.into()) };
        }
        chain_of(key, high).map_or(Ok(()), |error| Err(Failure::misused(error)))
    }
}

/// Error of the models that may replace a requested one, if the key names one of them.
pub(in crate::cli) fn chain_of(key: &KeyRecord, high: &Config) -> Option<String> {
    let own = key.limits.on_exhausted.clone()?;
    let plan = Plan { own_on_exhausted: Some(own), ..high.plan(&key.plan).cloned().unwrap_or_default() };
    let group = key.group.as_deref().and_then(|name| high.group(name));
    chain_error(&chain(&plan, group, &high.groups))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Unix = Unix(1_795_000_000_000);

    #[test]
    fn expiry_is_a_duration_a_date_or_never() {
        assert_eq!(parse_expiry("30d"), Ok(Expiry::After(Duration::from_secs(30 * 86_400))));
        assert_eq!(parse_expiry("1970-01-02"), Ok(Expiry::At(Unix(86_400_000))));
        assert_eq!(parse_expiry("never"), Ok(Expiry::Never));
        for wrong in ["", "0s", "30", "tomorrow"] {
            assert!(parse_expiry(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn capture_lasts_at_most_a_week() {
        let hours = |hours: u64| Some(Expiry::After(Duration::from_secs(hours * 3600)));
        assert_eq!(parse_capture("1h").ok(), hours(1));
        for end in ["0", "0s", "0h"] {
            assert_eq!(parse_capture(end), Ok(Expiry::Never));
        }
        for wrong in ["", "1", "never", "tomorrow", "-1h"] {
            assert!(parse_capture(wrong).is_err(), "{wrong}");
        }
        assert_eq!(captured_until(hours(168), None, NOW), Ok(Some(Unix(NOW.0 + 7 * 86_400_000))));
        assert!(matches!(captured_until(hours(169), None, NOW), Err(Failure::Misused(_))));
        assert!(matches!(captured_until(Some(Expiry::At(NOW)), None, NOW), Err(Failure::Misused(_))));
        assert_eq!(captured_until(Some(Expiry::At(Unix(NOW.0 + 5))), None, NOW), Ok(Some(Unix(NOW.0 + 1000))));
        assert_eq!(
            (captured_until(None, Some(NOW), NOW), captured_until(Some(Expiry::Never), Some(NOW), NOW)),
            (Ok(Some(NOW)), Ok(None))
        );
    }

    #[test]
    fn a_group_has_a_name_that_a_row_can_hold() {
        assert_eq!(parse_group("none"), Ok(KeyGroup::None));
        for good in ["labs", "R & D", "\u{fc}", &"x".repeat(64)] {
            assert_eq!(parse_group(good), Ok(KeyGroup::Named(good.to_string())));
        }
        for wrong in ["", "a/b", "a\nb", "a\u{202e}b", &"x".repeat(65)] {
            assert!(parse_group(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn labels_are_set_changed_and_removed_by_name() {
        let pair = |name: &str, value: &str| (name.to_string(), value.to_string());
        for (text, name, value) in
            [("team=search", "team", "search"), ("a.b_c-1=x=y z", "a.b_c-1", "x=y z"), ("a=", "a", "")]
        {
            assert_eq!(parse_label(text), Ok(pair(name, value)));
        }
        for wrong in ["", "team", "=x", "Team=x", "te am=x", "a=x\ny", "a=\u{7}", "a=\u{202e}"] {
            assert!(parse_label(wrong).is_err(), "{wrong}");
        }
        for (name, value) in [("n", 64), ("n", 65)] {
            assert_eq!(parse_label(&format!("{name}={}", "\u{fc}".repeat(value))).is_ok(), value == 64);
        }
        assert!(parse_label(&format!("{}=x", "n".repeat(33))).is_err());
        let before = [pair("a", "1"), pair("b", "2")];
        let after = labels(&before, &[pair("c", "3"), pair("a", ""), pair("b", "4"), pair("d", "")]).unwrap();
        assert_eq!(after, [pair("b", "4"), pair("c", "3")]);
        let many: Vec<_> = (0..9).map(|n| pair(&format!("n{n}"), "x")).collect();
        assert_eq!(labels(&[], &many[..8]).map(|labels| labels.len()), Ok(8));
        assert!(matches!(labels(&many[..8], &many[8..]), Err(Failure::Misused(_))));
    }

    #[test]
    fn a_limit_is_a_number_or_the_plans() {
        for (text, limit) in [("0", 0), ("600", 600), ("10M", 10_000_000), ("4K", 4000), ("10_000", 10_000)] {
            assert_eq!(parse_limit(text), Ok(KeyLimit::Own(limit)), "{text}");
        }
        assert_eq!(parse_limit("plan"), Ok(KeyLimit::Plans));
        for wrong in ["", "-1", "many", "1.5.2", "99999999999999999999"] {
            assert!(parse_limit(wrong).is_err(), "{wrong}");
        }
        assert_eq!(parse_budget("12.50"), Ok(KeyLimit::Own(12_500_000_000)));
        assert_eq!((parse_budget("0"), parse_budget("plan")), (Ok(KeyLimit::Own(0)), Ok(KeyLimit::Plans)));
        assert_eq!(parse_budget("1e3"), Ok(KeyLimit::Own(1_000_000_000_000)));
        for wrong in ["", "-1", "$5", "1e10", "10M", "1000000000.1", "0.0000000001"] {
            assert!(parse_budget(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn same_limit_twice_in_one_command_is_an_error() {
        let plan = Plan::unlimited("p").settled("");
        let with = |texts: &[&str]| {
            let entries = texts.iter().map(|text| parse_entry(text).unwrap());
            limits(&Caps::default(), entries, &plan).map(|caps| caps.len())
        };
        assert_eq!(with(&["requests=5/1m", "requests=9/1h", "requests=9/1m:opus", "budget/day=none"]), Ok(4));
        for (one, other) in [("requests=5/1m", "requests=9/1m"), ("tokens=5/24h", "tokens/day=plan")] {
            assert!(matches!(with(&[one, other]), Err(Failure::Misused(_))), "{one} {other}");
        }
        let said = Failure::misused("the same limit is named twice, as `requests/window` and as `requests/1m`");
        assert_eq!(with(&["requests=5/window", "requests/1m=none"]), Err(said));
    }

    #[test]
    fn temporary_allowance_replaces_the_one_for_the_same_limit() {
        let plan = Plan { budget: 5_000_000_000, ..Plan::unlimited("p") }.settled("");
        let cap = |text: &str| Cap::parse_open(text).unwrap();
        let extra = |text: &str| KeyExtra { cap: cap(text), until: Some(Expiry::After(Duration::from_secs(60))) };
        let own: Caps = ["tokens=9/1h", "tokens=9/day"].map(cap).into_iter().collect();
        let with = |before: &Caps, text: &str| with_extras(before, &[extra(text)], &plan, NOW);
        let texts = |caps: &Caps| caps.extras_at(NOW).map(|extra| extra.cap.text()).collect::<Vec<_>>();
        let first = with(&own, "budget=20").unwrap();
        assert_eq!(texts(&first), ["budget=20/month"], "the only limit of money");
        assert_eq!(first.extras().first().map(|extra| extra.until), Some(Unix(NOW.0 + 60_000)));
        let second = with(&first, "budget=3/period").unwrap();
        assert_eq!(texts(&second), ["budget=3/month"]);
        let third = with(&second, "tokens=1/day").unwrap();
        assert_eq!(texts(&third), ["budget=3/month", "tokens=1/day"]);
        assert_eq!(texts(&with(&third, "budget=none").unwrap()), ["tokens=1/day"]);
        assert_eq!(third.len(), 2, "the key's own limits stay");
        let later = with_extras(&third, &[extra("tokens=1/1h")], &plan, Unix(NOW.0 + 60_000)).unwrap();
        assert_eq!(later.extras().len(), 1, "those that have ended are removed");
        let wrong = |text: &str, why: &str| match with(&third, text) {
            Err(Failure::Misused(said)) => assert!(said.contains(why), "{said}"),
            other => panic!("{text}: {other:?}"),
        };
        wrong("tokens=1", "the key has several limits of `tokens`");
        wrong("requests=1/1m", "the key has no limit `requests/1m`; its limits: budget/month, tokens/1h, tokens/day");
        wrong("tokens/1h=none", "the key has no temporary allowance for `tokens/1h`");
        let endless = KeyExtra { until: None, ..extra("budget=1") };
        assert!(matches!(with_extras(&own, &[endless], &plan, NOW), Err(Failure::Misused(_))));
        let twice = with_extras(&own, &[extra("budget=1"), extra("budget=2/month")], &plan, NOW);
        assert_eq!(
            twice,
            Err(Failure::misused("the same limit is named twice, as `budget/month` and as `budget/month`"))
        );
        let gone = KeyExtra { until: Some(Expiry::At(NOW)), ..extra("budget=1") };
        assert!(matches!(with_extras(&own, &[gone], &plan, NOW), Err(Failure::Misused(_))));
        assert!(parse_end("never").is_err() && parse_end("2d").is_ok() && parse_extra("budget").is_err());
    }
}
