//! Limits as configured. A plan limits each of its keys, a group limits all keys in and below it together. `meter`
//! counts, `window` has the calendars.

use super::settings::kinds::{Count, Dollars, Kind, OneOf, Shown, Time, Whole};
use super::settings::reader::{Field, Reader};
use super::settings::{Setting, Settings, section};
use super::window::Period;
use crate::base::words::words;
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

/// Shown in place of "unlimited": the largest integer every JSON parser keeps exactly.
pub const UNLIMITED: u64 = 9_007_199_254_740_991;

/// The largest budget in nano-dollars: a thousand million dollars.
pub const BUDGET_MAX: u64 = 1_000_000_000_000_000_000;

/// Levels of a tree of groups.
pub const LEVELS_MAX: usize = 4;

/// Separator of the names in a path of groups. Names cannot contain it.
pub const PATH_SEPARATOR: char = '/';

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
        pub window: Duration = Duration::from_secs(60), Seconds(Time(WINDOWS)), Live;
        /// Tokens per window. 0 means no limit.
        pub tokens_per_window: u64 = 0, Count(0..=UNLIMITED), Live;
        /// Requests that run at the same time. 0 means no limit.
        pub concurrency: u64 = 0, Count(0..=UNLIMITED), Live;
        /// US dollars per period, at the prices of the models. 0 means no limit.
        pub budget: u64 = 0, Dollars(0..=BUDGET_MAX), Live;
        /// Treatment of requests without a known price, if a budget applies: requests for a model without `input_price`
        /// or `output_price`, and requests with a field that has another price (`service_tier`, hosted tools).
        /// `"refuse"` returns 403. With `"allow"` the model is free of charge, and the field adds nothing to the cost
        /// of the tokens. Every plan and group with a budget above the key must allow it.
        pub unpriced: Unpriced = Unpriced::Refuse, OneOf(&Unpriced::ALL, Unpriced::as_str), Live;
        /// Share of a model's slots for each key of the plan, relative to keys of other plans, while keys wait for
        /// slots.
        pub share: u32 = 1, Whole(1..=1000), Live;
        /// True if `budget` is the key's own, not its plan's.
        pub own_budget: bool = false;
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

/// Resource that a limit counts.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum LimitedResource {
    /// Requests.
    Requests,
    /// Tokens.
    Tokens,
    /// Nano-dollars.
    Money,
}

/// Time for which a limit counts.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum LimitSpan {
    /// The window of the plan.
    Window,
    /// The calendar period of the plan.
    Period,
    /// The run time of each request.
    Run,
}

/// Makes everything that is the same for each limit from a row: its kind and number among the counters, the setting of
/// a plan (with its name in stored keys, if that differs), the resource and the time, and the ruling of `admit.lua`.
macro_rules! limits {
    ($($(#[doc = $doc:literal])+ $kind:ident: $field:ident $(as $stored:literal)?, $resource:ident per $span:ident,
        counter $number:literal, ruling $ruling:literal;)*) => {
        /// Kind of a limit of a plan or a group.
        #[derive(Copy, Clone, PartialEq, Eq, Debug)]
        pub enum LimitKind {
            $($(#[doc = $doc])+ $kind = $number,)*
        }

        impl LimitKind {
            /// All values, in the order in which they are shown.
            pub const ALL: [LimitKind; [$($number),*].len()] = [$(LimitKind::$kind),*];

            /// Name in plans, log lines and metrics.
            pub fn name(self) -> &'static str {
                match self { $(LimitKind::$kind => stringify!($field),)* }
            }

            /// Resource that it counts, and the time for which it does.
            pub fn counts(self) -> (LimitedResource, LimitSpan) {
                match self { $(LimitKind::$kind => (LimitedResource::$resource, LimitSpan::$span),)* }
            }

            /// Number by which the script of a shared ledger refuses a request.
            pub fn ruling(self) -> u64 {
                match self { $(LimitKind::$kind => $ruling,)* }
            }
        }

        /// Limits of a plan or a group, 0 for none.
        #[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
        pub struct Limits {
            $($(#[doc = $doc])+ pub $field: u64,)*
        }

        impl Limits {
            /// Limits of a plan or a group.
            pub fn of(plan: &Plan) -> Limits {
                // Every field by name: a limit without a row would not be enforced on a shared ledger.
                #[rustfmt::skip]
                let Plan {
                    $($field,)* name: _, period: _, window: _, share: _, unpriced: _, own_budget: _,
                } = *plan;
                Limits { $($field,)* }
            }

            /// Value of one limit.
            pub fn get(&self, kind: LimitKind) -> u64 {
                match kind { $(LimitKind::$kind => self.$field,)* }
            }
        }

        /// Limits of one key that replace those of its plan. `None` means the plan's limit, 0 means no limit.
        #[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct LimitOverrides {
            $($(#[doc = $doc])+
            #[serde(default, skip_serializing_if = "Option::is_none" $(, rename = $stored)?)]
            pub $field: Option<u64>,)*
        }

        impl LimitOverrides {
            /// Value of one limit.
            pub fn get_mut(&mut self, kind: LimitKind) -> &mut Option<u64> {
                match kind { $(LimitKind::$kind => &mut self.$field,)* }
            }
        }

        impl Plan {
            /// Value of one limit; 0 for none.
            #[inline]
            pub fn limit(&self, kind: LimitKind) -> u64 {
                match kind { $(LimitKind::$kind => self.$field,)* }
            }

            /// The plan with these limits of one key.
            pub fn with(&self, limits: &LimitOverrides) -> Plan {
                Plan {
                    $($field: limits.$field.unwrap_or(self.$field),)*
                    own_budget: limits.budget.is_some(),
                    ..self.clone()
                }
            }

            /// Share of one of `hosts` hosts in every limit while the shared ledger cannot be reached. At least 1 of
            /// each, since 0 means "no limit".
            pub fn share(&self, hosts: u32) -> Plan {
                let part = |limit: u64| if limit == 0 { 0 } else { (limit / u64::from(hosts.max(1))).max(1) };
                Plan { $($field: part(self.$field),)* ..self.clone() }
            }
        }
    };
}

limits! {
    /// Tokens per period.
    TokensPerPeriod: tokens, Tokens per Period, counter 2, ruling 1;
    /// Requests per window.
    Requests: requests, Requests per Window, counter 0, ruling 2;
    /// Tokens per window.
    TokensPerWindow: tokens_per_window, Tokens per Window, counter 1, ruling 3;
    /// Requests at once.
    Concurrency: concurrency, Requests per Run, counter 3, ruling 4;
    /// Nano-dollars per period.
    Budget: budget as "budget_nano", Money per Period, counter 4, ruling 6;
}

impl LimitKind {
    /// True for a limit of the period. After it is reached, an early retry does not help.
    pub fn is_of_period(self) -> bool {
        self.counts().1 == LimitSpan::Period
    }

    /// True for a limit in dollars.
    pub fn is_money(self) -> bool {
        self.counts().0 == LimitedResource::Money
    }
}

impl LimitOverrides {
    /// True if all limits are the plan's.
    pub fn is_none(&self) -> bool {
        *self == LimitOverrides::default()
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

impl Plan {
    /// A plan of this name without limits.
    pub fn unlimited(name: &str) -> Plan {
        Plan { name: name.into(), ..Plan::default() }
    }

    /// True if a model without a price must not be used under it.
    pub fn refuses_unpriced(&self) -> bool {
        self.budget > 0 && self.unpriced == Unpriced::Refuse
    }
}

/// A limit as shown to people: 0 becomes [`UNLIMITED`].
pub fn shown(limit: u64) -> u64 {
    if limit == 0 { UNLIMITED } else { limit.min(UNLIMITED) }
}
