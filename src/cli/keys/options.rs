//! What a key may be given when it is issued, and what can be changed of it later: the same options.

use crate::base::time::Unix;
use crate::cli::output::{Failure, is_control};
use crate::policy::config::{Config, units};
use crate::policy::keys::{KeyRecord, Scope};
use crate::policy::plan::UNLIMITED;
use crate::policy::window::parse_moment;
use clap::Args;
use std::time::Duration;

/// Characters of a key's name.
const NAME_MAX: usize = 128;

/// The options.
#[derive(Args, Debug, Clone, Default)]
pub struct KeyOptions {
    /// Plan [for a new key: the first one configured]
    #[arg(long, value_name = "PLAN")]
    pub plan: Option<String>,
    /// Models the key may use, comma-separated ids, or all [for a new key: all]
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    pub models: Vec<String>,
    /// Endpoints the key may use, of chat,messages,responses,models,quota, or all [for a new key: all]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub endpoints: Vec<String>,
    /// When it expires: after a while (30d), at a date (2027-01-31), or never [for a new key: never]
    #[arg(long, value_name = "WHEN", value_parser = parse_expiry)]
    pub expires: Option<Expiry>,
    /// Requests per window for this key alone; 0: no limit; plan: as its plan says
    #[arg(long, value_name = "N|plan", value_parser = parse_limit)]
    pub requests: Option<Limit>,
    /// Tokens per period for this key alone (10M is understood)
    #[arg(long, value_name = "N|plan", value_parser = parse_limit)]
    pub tokens: Option<Limit>,
    /// Tokens per window for this key alone
    #[arg(long, value_name = "N|plan", value_parser = parse_limit)]
    pub tokens_per_window: Option<Limit>,
    /// Requests at once for this key alone
    #[arg(long, value_name = "N|plan", value_parser = parse_limit)]
    pub concurrency: Option<Limit>,
}

/// When a key expires, as typed.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Expiry {
    /// So long after it was issued, or changed.
    After(Duration),
    /// At this moment.
    At(Unix),
    /// It does not.
    Never,
}

/// A limit of a key's own, as typed.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Limit {
    /// This many; 0 is no limit.
    Own(u64),
    /// As its plan says.
    Plans,
}

impl Limit {
    fn set(self) -> Option<u64> {
        match self {
            Limit::Own(number) => Some(number),
            Limit::Plans => None,
        }
    }
}

fn parse_expiry(text: &str) -> Result<Expiry, String> {
    if text == "never" {
        return Ok(Expiry::Never);
    }
    let after = units::duration(text).filter(|length| !length.is_zero()).map(Expiry::After);
    let expiry = after.or_else(|| parse_moment(text).map(Expiry::At));
    expiry.ok_or_else(|| "expected a duration such as 30d, a date such as 2027-01-31, or never".to_string())
}

fn parse_limit(text: &str) -> Result<Limit, String> {
    if text == "plan" {
        return Ok(Limit::Plans);
    }
    let number = units::context(text).filter(|number| *number <= UNLIMITED);
    number.map(Limit::Own).ok_or_else(|| "expected a number such as 600 or 10M (0: no limit), or plan".to_string())
}

/// A name as it may be given to a key.
pub(super) fn parse_name(text: &str) -> Result<String, String> {
    let good = (1..=NAME_MAX).contains(&text.chars().count()) && !text.chars().any(is_control);
    let expected = || format!("expected 1 to {NAME_MAX} characters, none of them a control character");
    good.then(|| text.to_string()).ok_or_else(expected)
}

/// The plan called `name`, which must be configured.
fn plan(name: &str, high: &Config) -> Result<String, Failure> {
    if high.plan(name).is_none() {
        let names: Vec<&str> = high.plans.iter().map(|plan| &*plan.name).collect();
        return Err(Failure::misused(format!("no plan is named `{name}`; there is {}", names.join(", "))));
    }
    Ok(name.to_string())
}

fn words(list: &[String]) -> Vec<String> {
    list.iter().map(|word| word.trim().to_string()).collect()
}

/// The endpoints and models that are named; those of `before` where none are.
fn scope(options: &KeyOptions, before: &Scope, high: &Config) -> Result<Scope, Failure> {
    let (endpoints, models) = (words(&options.endpoints), words(&options.models));
    let all = |word: &String| word == "*" || word == "all" && high.catalog.find("all").is_none();
    // What a provider lists is not known here, but for how it begins.
    let may_be_listed = |id: &String| {
        let mut prefixes = high.providers.iter().filter_map(|provider| provider.discover.as_ref());
        prefixes.any(|discover| id.strip_prefix(&*discover.prefix).is_some_and(|rest| discover.id_of(rest).is_some()))
    };
    let is_known = |id: &String| all(id) || high.catalog.find(id).is_some();
    if let Some(unknown) =
        models.iter().find(|id| !is_known(id) && (high.catalog.asked(id).is_some() || !may_be_listed(id)))
    {
        if let Some(model) = high.catalog.asked(unknown).and_then(|index| high.catalog.get(index)) {
            return Err(Failure::misused(format!(
                "`{unknown}` is another name of `{}`: a key is for the id",
                model.id
            )));
        }
        return Err(Failure::misused(format!("no model has the id `{unknown}`; see `tollgate models`")));
    }
    let models: Vec<&str> =
        if models.iter().any(all) { Vec::new() } else { models.iter().map(String::as_str).collect() };
    let named = endpoints.iter().map(String::as_str).filter(|word| *word != "all");
    let named: Vec<&str> = if endpoints.iter().any(|word| word == "all") { Vec::new() } else { named.collect() };
    let fresh = Scope::from_words(named, models)
        .map_err(|word| Failure::misused(format!("`{word}` is no endpoint: expected chat, messages, models, quota")))?;
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
    /// True if nothing is asked for.
    pub(super) fn is_empty(&self) -> bool {
        let limits = [self.requests, self.tokens, self.tokens_per_window, self.concurrency];
        self.plan.is_none()
            && self.models.is_empty()
            && self.endpoints.is_empty()
            && self.expires.is_none()
            && limits == [None; 4]
    }

    /// Changes `key` as the options say; all of it or, where one makes no sense, nothing.
    pub(super) fn apply(&self, high: &Config, now: Unix, key: &mut KeyRecord) -> Result<(), Failure> {
        let plan = self.plan.as_deref().map(|name| plan(name, high)).transpose()?;
        let scope = scope(self, &key.scope, high)?;
        let expires = match self.expires {
            None => key.expires,
            Some(Expiry::Never) => None,
            Some(Expiry::At(at)) if at <= now => return Err(Failure::misused("--expires lies in the past")),
            Some(Expiry::At(at)) => Some(at),
            Some(Expiry::After(length)) => {
                let millis = u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
                Some(Unix(now.0.saturating_add(millis)))
            }
        };
        (key.scope, key.expires) = (scope, expires);
        key.plan = plan.unwrap_or_else(|| key.plan.clone());
        let limits = &mut key.limits;
        for (own, asked) in [
            (&mut limits.requests, self.requests),
            (&mut limits.tokens, self.tokens),
            (&mut limits.tokens_per_window, self.tokens_per_window),
            (&mut limits.concurrency, self.concurrency),
        ] {
            *own = asked.map_or(*own, Limit::set);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_limit_is_a_number_or_the_plans() {
        for (text, limit) in [("0", 0), ("600", 600), ("10M", 10_000_000), ("4K", 4000), ("10_000", 10_000)] {
            assert_eq!(parse_limit(text), Ok(Limit::Own(limit)), "{text}");
        }
        assert_eq!(parse_limit("plan"), Ok(Limit::Plans));
        for wrong in ["", "-1", "many", "1.5.2", "99999999999999999999"] {
            assert!(parse_limit(wrong).is_err(), "{wrong}");
        }
    }
}
