//! Limits as configured. A plan limits each of its keys, a group limits all keys in and below it together. `meter`
//! counts, `window` has the calendars.

pub mod caps;
pub mod entries;

use super::settings::kinds::{Count, Dollars, Flag, Kind, OneOf, Or, Shown, Time, Whole};
use super::settings::reader::{Field, Reader};
use super::settings::units::quoted;
use super::settings::{Setting, Settings, section};
use super::window::Period;
use crate::base::time::Unix;
use crate::base::words;
pub use caps::{BUDGET_MAX, UNLIMITED};
use caps::{Cap, Caps, LimitList, Per, Resource};
use entries::Entries;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

/// Levels of a tree of groups.
pub const LEVELS_MAX: usize = 4;

/// Models that may replace the requested one, one after the other.
pub const REPLACEMENTS_MAX: usize = 3;

/// Separator of the names in a path of groups. Names cannot contain it.
pub const PATH_SEPARATOR: char = '/';

/// Beginning of the names of the accounts of targets, providers and credentials. The name of a group has no control
/// character.
pub const TARGET_MARK: &str = "\u{1}:";

const MINUTE: Duration = Duration::from_secs(60);

/// Range of the length of a plan's window.
const WINDOWS: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(31 * 86_400);

section! {
    /// Limits of one plan; a limit of 0 is none.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub struct Plan {
        /// Name of the plan in keys and in `GET /v1/quota`.
        pub name: Arc<str> = "default".into();
        /// Tokens per period. 0 means no limit.
        pub tokens: u64 = 0, Count(0..=UNLIMITED), Live;
        /// Calendar period in UTC, for `tokens` and `budget`.
        pub period: Period = Period::Month, OneOf(&Period::ALL, Period::as_str), Live;
        /// Requests per window. 0 means no limit.
        pub requests: u64 = 0, Count(0..=UNLIMITED), Live;
        /// Length of the window in whole seconds. Windows begin at multiples of this length, so that all hosts agree.
        pub window: Duration = MINUTE, Seconds(Time(WINDOWS)), Live;
        /// Tokens per window. 0 means no limit.
        pub tokens_per_window: u64 = 0, Count(0..=UNLIMITED), Live;
        /// Requests that run at the same time. 0 means no limit.
        pub concurrency: u64 = 0, Count(0..=UNLIMITED), Live;
        /// US dollars per period, at the prices of the models. 0 means no limit.
        pub budget: u64 = 0, Dollars(0..=BUDGET_MAX), Live;
        /// Further limits, all of which apply at the same time: tables such as `{ requests = 600, per = "1m" }`,
        /// `{ tokens = "2M", per = "day" }`, `{ budget = 5.0, per = "5h" }` or `{ running = 4 }`, or texts such as
        /// `"budget=5/5h"`; at most 16. `per` is a duration (`"1s"` to `"31d"`, whose windows begin at multiples of it
        /// since the Unix epoch) or a calendar period in UTC (`"day"`, `"week"`, `"month"`, `"quarter"`). With
        /// `models = ["opus-*", "!opus-mini"]` (`"budget=5/day:opus-*,!opus-mini"`), an entry counts only requests to
        /// these models: ids, prefixes with `*`, and exclusions with `!`; at most 16.
        pub limits: Caps = Caps::default(), Entries, Live;
        /// Makes every limit of tokens and money that counts a request strict: the use and the reservations together
        /// never exceed it. A request reserves the most that it can cost, and Tollgate sends its provider the bound on
        /// completion tokens that the limits still pay for. It covers the limits of the key, its plan and its groups,
        /// whichever of them sets `strict`. Requests whose cost has no upper bound get 403.
        pub strict: bool = false, Flag, Live;
        /// Treatment of requests without a known price, if a budget applies: requests for a model without `input_price`
        /// or `output_price`, and requests with a field that has another price (`service_tier`, hosted tools).
        /// `"refuse"` returns 403. With `"allow"` the model is free of charge, and the field adds nothing to the cost
        /// of the tokens. Every plan and group with a budget above the key must allow it.
        pub unpriced: Unpriced = Unpriced::Refuse, OneOf(&Unpriced::ALL, Unpriced::as_str), Live;
        /// Share of a model's slots for each key of the plan, relative to keys of other plans, while keys wait for
        /// slots.
        pub share: u32 = 1, Whole(1..=1000), Live;
        /// Model that answers instead of a refusal. When the reservation of a request does not fit one of the budgets
        /// or token limits, the request goes to this model, if the key may use it, each of its prices is at most that
        /// of the requested model, and its own reservation fits all limits that count it. Value: `{ model = "small" }`
        /// with the id of a model. Keys may have such a model, too. The order is key, plan, groups from the nearest. At
        /// most three models may follow one another, none of them twice.
        pub on_exhausted: Option<Arc<str>> = None, Or(Replacement, "none"), Live;
        /// The key's own `on_exhausted`.
        pub own_on_exhausted: Option<Arc<str>> = None;
        /// Every limit: those of the settings above, and the key's own ([`Plan::with`]).
        pub all: LimitList = LimitList::new("", Per::of_window(MINUTE), Per::Calendar(Period::Month), [].into_iter());
    }
}

words! {
    /// True if models without a price may be used if there is a budget.
    #[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
    pub enum Unpriced {
        /// No: their cost is not known.
        #[default]
        Refuse = "refuse",
        /// Yes, at no cost.
        Allow = "allow",
    }
}

/// A group of keys and of other groups: what all requests in it and below it may use together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Group {
    /// Parent group. Value: the `name` of another group. Default: none.
    pub parent: Option<Arc<str>>,
    /// The names from the root of its tree to itself, with [`PATH_SEPARATOR`] between them: what rows keep.
    pub path: Arc<str>,
    /// Name of the group in keys (`keys set ID --group`), usage records and messages. No two groups have the same name.
    /// Value: 1 to 64 characters without `/` and control characters; not `none`.
    #[doc(alias = "name")]
    pub limits: Plan,
}

impl Group {
    /// Settings of a plan that a group also has: all except a key's share of slots.
    #[inline]
    pub fn rows() -> impl Iterator<Item = &'static Setting<Plan>> {
        Plan::ROWS.iter().filter(|row| row.key != "share")
    }
}

words! {
    /// Setting that is shorthand for one limit. Log lines, metrics and the admin API name limits by them.
    #[derive(Copy, Clone, PartialEq, Eq, Debug)]
    pub enum Shorthand {
        /// Tokens per period.
        Tokens = "tokens",
        /// Requests per window.
        Requests = "requests",
        /// Tokens per window.
        TokensPerWindow = "tokens_per_window",
        /// Requests at once.
        Concurrency = "concurrency",
        /// Nano-dollars per period.
        Budget = "budget",
    }
}

impl Shorthand {
    /// The limit that it means, with a total of 0.
    pub fn cap(self) -> Cap {
        let (resource, per) = match self {
            Shorthand::Tokens => (Resource::Tokens, Per::Period),
            Shorthand::Requests => (Resource::Requests, Per::Window),
            Shorthand::TokensPerWindow => (Resource::Tokens, Per::Window),
            Shorthand::Concurrency => (Resource::Running, Per::Now),
            Shorthand::Budget => (Resource::Budget, Per::Period),
        };
        Cap::new(resource, per, 0)
    }

    /// The one that is closest to a limit.
    pub fn of(cap: &Cap) -> Shorthand {
        match (cap.resource, cap.per) {
            (Resource::Requests, _) => Shorthand::Requests,
            (Resource::Tokens, Per::Calendar(_)) => Shorthand::Tokens,
            (Resource::Tokens, _) => Shorthand::TokensPerWindow,
            (Resource::Budget, _) => Shorthand::Budget,
            (Resource::Running, _) => Shorthand::Concurrency,
        }
    }

    /// True for a limit in dollars.
    pub fn is_money(self) -> bool {
        self == Shorthand::Budget
    }
}

/// A duration in whole seconds.
struct Seconds(Time);

impl Kind<Duration> for Seconds {
    #[inline]
    fn read(&self, reader: &mut Reader<'_>, field: Field<'_>) -> Option<Duration> {
        let (at, path) = (field.start(), field.path.clone());
        let length = self.0.read(reader, field)?;
        if length.subsec_millis() != 0 {
            reader.report(at, path, "expected whole seconds, because x-ratelimit-reset has only those");
        }
        Some(length)
    }

    #[inline]
    fn shown(&self, value: &Duration) -> Shown {
        self.0.shown(value)
    }
}

/// The model of `on_exhausted`: `{ model = "small" }`.
struct Replacement;

impl Kind<Arc<str>> for Replacement {
    #[inline]
    fn read(&self, reader: &mut Reader<'_>, field: Field<'_>) -> Option<Arc<str>> {
        let mut section = reader.as_table(field)?;
        let model = reader.required(&mut section, "model").and_then(|field| reader.string(&field));
        section.finish(reader);
        model.map(Arc::from)
    }

    #[inline]
    fn shown(&self, value: &Arc<str>) -> Shown {
        Shown::Value(format!("{{ model = {} }}", quoted(value)))
    }
}

/// Error of the models that may replace a requested one, in their order: too many, or a cycle. One that is named
/// several times in a row counts once.
pub fn chain_error(models: &[Option<&str>]) -> Option<String> {
    let mut chain: Vec<&str> = models.iter().copied().flatten().collect();
    chain.dedup();
    let has_cycle = (1..chain.len()).any(|at| chain[..at].contains(&chain[at]));
    let why = match chain.len() {
        _ if has_cycle => "are a cycle".to_string(),
        0..=REPLACEMENTS_MAX => return None,
        count => format!("are {count}, at most {REPLACEMENTS_MAX} are allowed"),
    };
    Some(format!("the models of `on_exhausted` that follow one another {why}: `{}`", chain.join("`, `")))
}

impl Plan {
    /// A plan of this name without limits.
    pub fn unlimited(name: &str) -> Plan {
        Plan { name: name.into(), ..Plan::default() }
    }

    /// True if a model without a price must not be used under it.
    pub fn refuses_unpriced(&self) -> bool {
        self.has_budget() && self.unpriced == Unpriced::Refuse
    }

    /// True if it names a model that may replace the requested one.
    #[inline]
    pub fn replaces_models(&self) -> bool {
        self.on_exhausted.is_some() || self.own_on_exhausted.is_some()
    }

    /// True if it limits money.
    #[inline]
    pub fn has_budget(&self) -> bool {
        self.all.iter().any(|cap| cap.resource == Resource::Budget)
    }

    /// The plan with these limits of a key, which replace those that limit the same. A total of 0 lifts them. The
    /// temporary allowances that have not ended at `now` are added.
    pub fn with(&self, limits: &Caps, now: Unix) -> Plan {
        let extras: Vec<Cap> = limits.extras_at(now).map(|extra| self.resolved(extra.cap.clone())).collect();
        let own: Vec<Cap> = limits.iter().map(|cap| Cap { own: true, ..self.resolved(cap.clone()) }).collect();
        // Two may have become the same by a change of the plan: the later one counts.
        let is_last = |at: usize| !own[at + 1..].iter().any(|later| later.is_like(&own[at]));
        let plans = self.all.iter().filter(|cap| !own.iter().any(|own| own.is_like(cap)));
        let all = plans.chain(own.iter().enumerate().filter(|(at, _)| is_last(*at)).map(|(_, cap)| cap)).cloned();
        let raised = |cap: Cap| {
            let more: u64 = extras.iter().filter(|extra| extra.is_like(&cap)).map(|extra| extra.total).sum();
            let most = if cap.resource == Resource::Budget { BUDGET_MAX } else { UNLIMITED };
            // A limit that is lifted stays lifted.
            if cap.total > 0 { Cap { total: cap.total.saturating_add(more).min(most), ..cap } } else { cap }
        };
        let all = all.map(raised);
        let all = LimitList::new("", self.window_per(), Per::Calendar(self.period), all);
        Plan { all, strict: self.strict | limits.strict, own_on_exhausted: limits.on_exhausted.clone(), ..self.clone() }
    }

    /// Share of one of `hosts` hosts in every limit while the shared ledger cannot be reached.
    pub fn share(&self, hosts: u32) -> Plan {
        Plan { all: self.all.share(hosts.into()), ..self.clone() }
    }

    /// The setting that means a limit, if there is one.
    pub fn setting_of(&self, cap: &Cap) -> Option<Shorthand> {
        let cap = self.resolved(cap.clone());
        Shorthand::ALL.into_iter().find(|setting| self.resolved(setting.cap()).is_like(&cap))
    }

    /// Value of the limit that a setting means; 0 for none.
    pub fn limit(&self, setting: Shorthand) -> u64 {
        let cap = self.resolved(setting.cap());
        self.all.iter().find(|other| other.is_like(&cap)).map_or(0, |cap| cap.total)
    }

    /// The settings as limits, those of 0 left out.
    fn shorthand(&self) -> impl Iterator<Item = (Shorthand, Cap)> + '_ {
        let totals = [self.tokens, self.requests, self.tokens_per_window, self.concurrency, self.budget];
        let set = Shorthand::ALL.into_iter().zip(totals).filter(|(_, total)| *total > 0);
        set.map(|(setting, total)| (setting, Cap { total, ..self.resolved(setting.cap()) }))
    }

    /// Makes the settings the limits of the plan, or of this group.
    pub fn settled(mut self, group: &str) -> Plan {
        let all = self.shorthand().map(|(_, cap)| cap).chain(self.limits.iter().map(|cap| self.resolved(cap.clone())));
        self.all = LimitList::new(group, self.window_per(), Per::Calendar(self.period), all);
        self
    }

    /// Reports entries of `limits` that limit the same as another setting. `field` is the path of the list, at `at`.
    pub fn report_twice(&self, reader: &mut Reader<'_>, at: usize, field: &str) {
        for cap in self.limits.iter().map(|cap| self.resolved(cap.clone())) {
            if let Some((setting, _)) = self.shorthand().find(|(_, other)| other.is_like(&cap)) {
                let (name, other) = (cap.name(), setting.as_str());
                reader.report(at, field.to_string(), format!("{name} is limited by `{other}` already"));
            }
        }
    }

    /// A limit for the window or the period of this plan, if it is for "the" window or period.
    pub fn resolved(&self, cap: Cap) -> Cap {
        let per = match cap.per {
            Per::Window => self.window_per(),
            Per::Period => Per::Calendar(self.period),
            per => per,
        };
        Cap { per, ..cap }
    }

    fn window_per(&self) -> Per {
        Per::of_window(self.window)
    }
}

/// A limit as shown to people: 0 becomes [`UNLIMITED`].
pub fn shown(limit: u64) -> u64 {
    if limit == 0 { UNLIMITED } else { limit.min(UNLIMITED) }
}

#[cfg(test)]
mod tests {
    use super::chain_error;

    #[test]
    fn chain_of_models_is_short_and_has_no_cycle() {
        for good in [&[][..], &[None, None], &[Some("a"), None, Some("a")], &[Some("a"), Some("b"), Some("c")]] {
            assert_eq!(chain_error(good), None, "{good:?}");
        }
        let said = |models: &[&str]| chain_error(&models.iter().map(|model| Some(*model)).collect::<Vec<_>>());
        let long =
            "the models of `on_exhausted` that follow one another are 4, at most 3 are allowed: `a`, `b`, `c`, `d`";
        assert_eq!(said(&["a", "b", "c", "d"]).as_deref(), Some(long));
        let cycle = "the models of `on_exhausted` that follow one another are a cycle: `a`, `b`, `a`";
        assert_eq!(said(&["a", "b", "a"]).as_deref(), Some(cycle));
    }
}
