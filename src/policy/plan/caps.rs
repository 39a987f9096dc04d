//! Limits: what a key, a plan or a group may use in each window or calendar period, of all models or of some. Any
//! number of them applies at the same time. Settings of a plan such as `budget` are shorthand for one each.

use crate::base::time::Unix;
use crate::base::words;
use crate::policy::settings::units::{dollars_text, duration, duration_text};
use crate::policy::window::{DAY_MS, Period, window};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

/// Shown in place of "unlimited": the largest integer every JSON parser keeps exactly.
pub const UNLIMITED: u64 = 9_007_199_254_740_991;

/// The largest budget in nano-dollars: a thousand million dollars.
pub const BUDGET_MAX: u64 = 1_000_000_000_000_000_000;

/// Entries of one list, and names of models in one entry.
pub const ENTRIES_MAX: usize = 16;

/// Longest window of an entry.
const LONGEST: Duration = Duration::from_secs(31 * 86_400);

const DAY: Duration = Duration::from_millis(DAY_MS);

/// Beginning of the text of [`Caps::on_exhausted`] in a record.
const ON_EXHAUSTED: &str = "on_exhausted";

words! {
    /// Resource that an entry limits.
    #[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
    pub enum Resource {
        /// Requests.
        #[default]
        Requests = "requests",
        /// Prompt and completion tokens, cached ones included.
        Tokens = "tokens",
        /// Nano-dollars.
        Budget = "budget",
        /// Requests that run at the same time.
        Running = "running",
    }
}

/// Time for which a limit counts. Its bounds depend on nothing but the moment of admission, so all hosts agree.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum Per {
    /// The moment: requests that run.
    Now,
    /// The window of the plan.
    Window,
    /// The calendar period of the plan.
    Period,
    /// Windows of this length, which begin at multiples of it since the epoch.
    Every(Duration),
    /// Calendar periods in UTC.
    Calendar(Period),
}

impl Per {
    /// Reads `5h` or `month`. A window of 24 hours is a day.
    pub fn parse(text: &str) -> Option<Per> {
        if let Some(period) = Period::ALL.into_iter().find(|period| period.as_str() == text) {
            return Some(Per::Calendar(period));
        }
        if let Some(of_plan) = [Per::Window, Per::Period].into_iter().find(|per| per.text() == text) {
            return Some(of_plan);
        }
        let length = duration(text).filter(|length| length.subsec_millis() == 0 && !length.is_zero())?;
        (length <= LONGEST).then(|| Per::of_window(length))
    }

    /// Windows of this length. Those of 24 hours are days.
    pub fn of_window(length: Duration) -> Per {
        if length == DAY { Per::Calendar(Period::Day) } else { Per::Every(length) }
    }

    /// First moment, and first moment after, of the window or period that contains `at`.
    pub fn bounds(self, at: Unix) -> (Unix, Unix) {
        match self {
            Per::Every(length) => window(at, length),
            Per::Calendar(period) => period.bounds(at),
            Per::Now | Per::Window | Per::Period => (Unix(0), Unix(u64::MAX)),
        }
    }

    /// True if it consists of whole UTC days, whose sums the ledger has.
    pub fn has_whole_days(self) -> bool {
        match self {
            Per::Every(length) => length.as_secs() % DAY.as_secs() == 0,
            Per::Calendar(_) => true,
            Per::Now | Per::Window | Per::Period => false,
        }
    }

    /// The text that [`Per::parse`] reads.
    #[inline]
    pub fn text(self) -> String {
        match self {
            Per::Every(length) => duration_text(length),
            Per::Calendar(period) => period.as_str().to_string(),
            Per::Now => "now".to_string(),
            Per::Window => "window".to_string(),
            Per::Period => "period".to_string(),
        }
    }

    /// Its length in words: `5 hours`, or `day`.
    #[inline]
    pub fn words(self) -> String {
        let Per::Every(length) = self else { return self.text() };
        let seconds = length.as_secs();
        let units = [(86_400, "day"), (3600, "hour"), (60, "minute"), (1, "second")];
        let fit = units.into_iter().find(|(unit, _)| seconds.is_multiple_of(*unit)).unwrap_or((1, "second"));
        let count = seconds / fit.0;
        format!("{count} {}{}", fit.1, if count == 1 { "" } else { "s" })
    }
}

impl Cap {
    /// Its time and its models, after `the budget of x`: ` for 5 hours`, or ` for a day and models opus-*`.
    #[inline]
    pub fn words(&self) -> String {
        let (per, models) = (self.per.words(), self.models.text());
        let article = if per.starts_with(|c: char| c.is_ascii_digit()) { "" } else { "a " };
        let (and, models) = models.map_or(("", ""), |models| (" and models ", &**models));
        [" for ", article, &per, and, models].concat()
    }
}

/// Models that an entry counts: all, or ids and prefixes with `*`, those with `!` excluded. The text has them with
/// commas between them.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Models(Option<Arc<str>>);

impl Models {
    /// Reads `opus-*,!opus-mini`; `None` if a name is empty, or if nothing is included.
    pub fn parse(text: &str) -> Option<Models> {
        let names: Vec<&str> = text.split(',').collect();
        let is_name = |name: &&str| {
            let name = name.strip_prefix('!').unwrap_or(name);
            let plain = name.strip_suffix('*').unwrap_or(name);
            !name.is_empty() && !plain.contains(|c: char| c.is_control() || c.is_whitespace() || "*!\"".contains(c))
        };
        let includes = names.iter().any(|name| !name.starts_with('!'));
        let good = names.len() <= ENTRIES_MAX && includes && names.iter().all(is_name);
        if good && names == ["*"] {
            return Some(Models::default());
        }
        good.then(|| Models(Some(text.into())))
    }

    /// The text; `None` for all models.
    #[inline]
    pub fn text(&self) -> Option<&Arc<str>> {
        self.0.as_ref()
    }

    /// The names; `None` for all models.
    pub fn names(&self) -> Option<Vec<&str>> {
        self.0.as_ref().map(|names| names.split(',').collect())
    }

    /// True if requests to this model count. `None`: the model is not known yet.
    #[inline]
    pub fn count(&self, model: Option<&str>) -> bool {
        self.0.as_ref().is_none_or(|names| model.is_some_and(|model| is_named(names, model)))
    }
}

#[inline(never)]
fn is_named(names: &str, model: &str) -> bool {
    let fits = |name: &str| match name.strip_suffix('*') {
        Some(prefix) => model.starts_with(prefix),
        None => model == name,
    };
    let mut found = false;
    for name in names.split(',') {
        match name.strip_prefix('!') {
            Some(name) if fits(name) => return false,
            Some(_) => {}
            None => found |= fits(name),
        }
    }
    found
}

/// One limit.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Cap {
    /// Limited resource.
    pub resource: Resource,
    /// For how long.
    pub per: Per,
    /// Requests that it counts.
    pub models: Models,
    /// How much may be used: a count, or nano-dollars. 0: a limit of a key that lifts the plan's.
    pub total: u64,
    /// True if it is the key's own, not its plan's.
    pub own: bool,
    /// Index of its [`LimitSpan`] in a [`LimitList`].
    pub span: usize,
}

impl Cap {
    /// A limit for all models.
    pub fn new(resource: Resource, per: Per, total: u64) -> Cap {
        Cap { resource, per, models: Models::default(), total, own: false, span: 0 }
    }

    /// Unique name among the limits of one owner: `budget/5h:opus-*`.
    pub fn name(&self) -> String {
        let mut name = self.resource.as_str().to_string();
        if self.per != Per::Now {
            name = name + "/" + &self.per.text();
        }
        match self.models.text() {
            Some(models) => name + ":" + models,
            None => name,
        }
    }

    /// True if both limit the same.
    pub fn is_like(&self, other: &Cap) -> bool {
        (self.resource, self.per, &self.models) == (other.resource, other.per, &other.models)
    }

    /// True unless it lacks the time for which it limits.
    pub fn has_time(&self) -> bool {
        (self.per == Per::Now) == (self.resource == Resource::Running)
    }

    /// The text that [`Cap::parse`] reads.
    #[inline]
    pub fn text(&self) -> String {
        let name = self.name();
        if self.total == 0 {
            return name + "=none";
        }
        let (word, rest) = name.split_at(self.resource.as_str().len());
        let number = match self.resource {
            Resource::Budget => dollars_text(self.total),
            _ => self.total.to_string(),
        };
        format!("{word}={number}{rest}")
    }
}

/// Span: the common counter of all limits of one time and the same models.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LimitSpan {
    /// The time: a window or a calendar period.
    pub per: Per,
    /// Requests that it counts.
    pub models: Models,
    /// Name of its counts in a shared ledger, after the name of its group: `labs/5h`. A key has none: `/5h:opus-*`.
    pub account: Arc<str>,
}

impl LimitSpan {
    /// End of the name of the span of a plan's window.
    pub const WINDOW: &str = "window";
    /// End of the name of the span of a plan's period.
    pub const PERIOD: &str = "period";

    /// True if the sums of the ledger by UTC day are its counts of tokens and money.
    pub fn is_sum_of_days(&self) -> bool {
        self.per.has_whole_days() && self.models.text().is_none()
    }
}

/// Every limit of a plan, a group or a key, and the spans that they count in. There is always one span for the plan's
/// period and one for its window, so that their use is known without a limit.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LimitList {
    caps: Arc<[Cap]>,
    spans: Arc<[LimitSpan]>,
    /// Index of the span of the plan's window.
    window: usize,
}

impl Deref for LimitList {
    type Target = [Cap];

    #[inline]
    fn deref(&self) -> &[Cap] {
        &self.caps
    }
}

impl LimitList {
    /// Index of the span of the plan's period.
    pub const PERIOD: usize = 0;

    /// Limits of a plan with this window and this period, or of this group; `""` for none. Those of 0 are left out.
    pub fn new(group: &str, window: Per, period: Per, caps: impl Iterator<Item = Cap>) -> LimitList {
        let span =
            |per, models: Models, name: &str| LimitSpan { per, models, account: [group, "/", name].concat().into() };
        let mut spans = vec![span(period, Models::default(), LimitSpan::PERIOD)];
        if window != period {
            spans.push(span(window, Models::default(), LimitSpan::WINDOW));
        }
        let window_at = spans.len() - 1;
        let place = |mut cap: Cap| {
            cap.per = match cap.per {
                Per::Window => window,
                Per::Period => period,
                per => per,
            };
            cap.span = match spans.iter().position(|span| (span.per, &span.models) == (cap.per, &cap.models)) {
                _ if cap.per == Per::Now => window_at,
                Some(known) => known,
                None => {
                    let models = cap.models.text().map_or(String::new(), |models| format!(":{models}"));
                    spans.push(span(cap.per, cap.models.clone(), &(cap.per.text() + &models)));
                    spans.len() - 1
                }
            };
            cap
        };
        let mut caps: Vec<Cap> = caps.filter(|cap| cap.total > 0).map(place).collect();
        caps.sort_unstable_by_key(|cap| (cap.span, cap.resource));
        LimitList { caps: caps.into(), spans: spans.into(), window: window_at }
    }

    /// Spans in which requests count.
    #[inline]
    pub fn spans(&self) -> &Arc<[LimitSpan]> {
        &self.spans
    }

    /// Index of the span of the plan's window.
    #[inline]
    pub fn window(&self) -> usize {
        self.window
    }

    /// Limits of money.
    #[inline]
    pub fn budgets(&self) -> impl Iterator<Item = &Cap> {
        self.iter().filter(|cap| cap.resource == Resource::Budget)
    }

    /// Share of one of `hosts` hosts in every limit, at least 1.
    pub fn share(&self, hosts: u64) -> LimitList {
        let part = |cap: &Cap| Cap { total: (cap.total / hosts.max(1)).max(1), ..cap.clone() };
        LimitList { caps: self.iter().map(part).collect(), ..self.clone() }
    }

    /// True if both have the same limits in memory, and so the same spans.
    #[inline]
    pub fn is_same(&self, other: &LimitList) -> bool {
        Arc::ptr_eq(&self.caps, &other.caps) && Arc::ptr_eq(&self.spans, &other.spans)
    }

    /// True if a limit counts only some models.
    #[inline]
    pub fn name_models(&self) -> bool {
        self.spans.iter().any(|span| span.models.text().is_some())
    }
}

/// A temporary allowance of a key: its total is added to the limit of the key or its plan that limits the same.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Extra {
    /// The limit, and how much is added.
    pub cap: Cap,
    /// End of the allowance.
    pub until: Unix,
}

/// Limits in the order in which they are written. Those of a key also have its temporary allowances, whether it is
/// strict, and the model that replaces the requested one if a limit has no room.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Caps {
    limits: Option<Arc<[Cap]>>,
    extras: Option<Arc<[Extra]>>,
    /// True if a key makes all limits of tokens and money that count its requests strict.
    pub strict: bool,
    /// Id of that model.
    pub on_exhausted: Option<Arc<str>>,
}

/// Word for [`Caps::strict`] among the texts of a key's limits.
const STRICT: &str = "strict";

impl Deref for Caps {
    type Target = [Cap];

    #[inline]
    fn deref(&self) -> &[Cap] {
        self.limits.as_deref().unwrap_or_default()
    }
}

impl FromIterator<Cap> for Caps {
    fn from_iter<I: IntoIterator<Item = Cap>>(caps: I) -> Caps {
        Caps::default().with_limits(caps.into_iter().collect())
    }
}

impl Caps {
    /// The temporary allowances, also those that have ended.
    pub fn extras(&self) -> &[Extra] {
        self.extras.as_deref().unwrap_or_default()
    }

    /// The temporary allowances that have not ended.
    pub fn extras_at(&self, now: Unix) -> impl Iterator<Item = &Extra> {
        self.extras().iter().filter(move |extra| now < extra.until)
    }

    /// These limits, and everything else as it is.
    pub fn with_limits(&self, limits: Vec<Cap>) -> Caps {
        let limits = (!limits.is_empty()).then(|| limits.into());
        Caps { limits, ..self.clone() }
    }

    /// The same limits with these temporary allowances.
    pub fn with_extras(self, extras: Vec<Extra>) -> Caps {
        let extras = (!extras.is_empty()).then(|| extras.into());
        Caps { extras, ..self }
    }

    /// True if a key changes nothing of its plan.
    pub fn is_empty(&self) -> bool {
        *self == Caps::default()
    }

    /// Total of the limit that limits the same.
    pub fn get(&self, cap: &Cap) -> Option<u64> {
        self.iter().find(|other| other.is_like(cap)).map(|other| other.total)
    }
}

/// As texts, in the records of keys. Those of temporary allowances begin with their ends in milliseconds and a space,
/// and that of a model with `on_exhausted`.
impl Serialize for Caps {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        let extra = |extra: &Extra| [&*extra.until.0.to_string(), " ", &*extra.cap.text()].concat();
        let strict = self.strict.then(|| STRICT.to_string());
        let model = self.on_exhausted.iter().map(|model| [ON_EXHAUSTED, " ", &**model].concat());
        let extras = self.extras().iter().map(extra);
        out.collect_seq(self.iter().map(Cap::text).chain(extras).chain(strict).chain(model))
    }
}

impl<'de> Deserialize<'de> for Caps {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Caps, D::Error> {
        let texts = Vec::<String>::deserialize(from)?;
        let (mut caps, mut limits, mut extras) = (Caps::default(), Vec::new(), Vec::new());
        let mut read = |text: &str| -> Option<()> {
            match text.split_once(' ') {
                Some((ON_EXHAUSTED, model)) => caps.on_exhausted = Some(model.into()),
                Some((until, text)) => {
                    extras.push(Extra { cap: Cap::parse(text).ok()?, until: Unix(until.parse().ok()?) });
                }
                None if text == STRICT => caps.strict = true,
                None => limits.push(Cap::parse(text).ok()?),
            }
            Some(())
        };
        match texts.iter().all(|text| read(text).is_some()) {
            true => Ok(caps.with_limits(limits).with_extras(extras)),
            false => Err(serde::de::Error::custom("not a limit")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::plan::Plan;

    #[test]
    fn models_are_ids_prefixes_and_exclusions() {
        let counts = |text: &str, model: &str| Models::parse(text).unwrap().count(Some(model));
        assert!(counts("opus", "opus") && !counts("opus", "opus-5"));
        assert!(counts("opus-*", "opus-5") && !counts("opus-*", "opus"));
        assert!(counts("*,!small", "opus") && !counts("*,!small", "small"));
        assert!(counts("openai/gpt", "openai/gpt"));
        assert!(Models::parse("*").unwrap().count(None) && !Models::parse("opus").unwrap().count(None));
    }

    fn caps(texts: &[&str]) -> Caps {
        texts.iter().map(|text| Cap::parse(text).unwrap()).collect()
    }

    #[test]
    fn a_keys_limit_replaces_the_plans_or_lifts_it() {
        let limits = caps(&["budget=5/5h", "tokens=9/1h", "budget=5/day"]);
        let plan = Plan { requests: 600, limits, ..Plan::default() }.settled("");
        let plan = plan.with(&caps(&["budget=9/5h", "requests/1m=none", "tokens=1/window"]), Unix(0));
        let texts: Vec<String> = plan.all.iter().map(Cap::text).collect();
        assert_eq!(texts, ["tokens=1/1m", "tokens=9/1h", "budget=5/day", "budget=9/5h"]);
        assert_eq!(plan.all.iter().map(|cap| cap.own).collect::<Vec<_>>(), [true, false, false, true]);
        let spans: Vec<&str> = plan.all.spans().iter().map(|span| &*span.account).collect();
        assert_eq!(spans, ["/period", "/window", "/1h", "/day", "/5h"]);
    }

    #[test]
    fn temporary_allowance_raises_the_limit_until_its_end() {
        let cap = |text: &str| Cap::parse(text).unwrap();
        let extra = |text: &str, until: u64| Extra { cap: cap(text), until: Unix(until) };
        let plan = Plan { budget: 5_000_000_000, requests: 6, ..Plan::default() }.settled("");
        let extras = vec![
            extra("budget=2/month", 100),
            extra("budget=1/period", 50),
            extra("tokens=1/1h", 50),
            extra("tokens=8/day", 100),
        ];
        let own = Caps { on_exhausted: Some("small".into()), ..caps(&["tokens=9/1h"]).with_extras(extras) };
        let texts = |now: u64| plan.with(&own, Unix(now)).all.iter().map(Cap::text).collect::<Vec<_>>();
        assert_eq!(texts(49), ["budget=8/month", "requests=6/1m", "tokens=10/1h"]);
        assert_eq!(texts(50), ["budget=7/month", "requests=6/1m", "tokens=9/1h"]);
        assert_eq!(texts(100), ["budget=5/month", "requests=6/1m", "tokens=9/1h"]);
        let lifted = caps(&["budget/month=none"]).with_extras(vec![extra("budget=2/month", 100)]);
        assert!(!plan.with(&lifted, Unix(0)).has_budget(), "no limit stays no limit");
        let read: Caps = serde_json::from_str(&serde_json::to_string(&own).unwrap()).unwrap();
        assert_eq!(read, own);
    }
}
