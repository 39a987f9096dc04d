//! Interface of a ledger, in a file or shared: reports, errors, and the methods that the store thread needs. Data and
//! one trait; decides nothing.

use super::who::Who;
use crate::base::time::Unix;
use crate::policy::keys::{KeyAnswer, KeyId, KeyRecord, ShownKey};
use crate::policy::ledger::Use;
use crate::policy::row::Row;
use crate::policy::window::{self, DAY_MS};
use crate::store::bounds;
use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// Reason why the ledger cannot be used. The text names the file or the server.
#[derive(Debug)]
pub enum StoreError {
    /// Another gateway has the ledger open.
    Locked(PathBuf),
    /// The file, or its lock file, cannot be opened.
    File(PathBuf, io::Error),
    /// The path no longer leads to the open file. Anything written there would be lost with the file.
    Moved(PathBuf),
    /// A file of the ledger has been shortened.
    Cut(PathBuf),
    /// A file of the ledger's log is not the one that the gateway has open.
    Unseen(PathBuf),
    /// Not a ledger, or one of another version.
    Foreign(PathBuf, &'static str),
    /// Error of SQLite.
    Sqlite(PathBuf, rusqlite::Error),
    /// A report has more than [`bounds::REPORT_LINES_MAX`] lines to merge for a page.
    TooManyLines,
    /// The shared store, named without its password, and the error there.
    Shared(String, String),
    /// The shared store did not answer in time, or this process was stopped and continued meanwhile. The commands sent
    /// may have been done, and can be sent again at once.
    Interrupted(String),
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreError::Locked(path) => write!(f, "{}: another gateway has this ledger open: stop it", path.display()),
            StoreError::File(path, error) => write!(f, "{}: {error}", path.display()),
            StoreError::Moved(path) => {
                write!(f, "{}: the ledger's file was moved, deleted or replaced; put it back", path.display())
            }
            StoreError::Cut(path) => {
                let what = "this file of the ledger was cut";
                write!(f, "{}: {what}; put back its content: a restart without it loses commits", path.display())
            }
            StoreError::Unseen(path) => {
                let what = "the running gateway does not use this file: a file of the ledger was replaced or cut";
                write!(f, "{}: {what}; put it back: a restart without that loses commits", path.display())
            }
            StoreError::Foreign(path, why) => write!(f, "{}: {why}", path.display()),
            StoreError::Sqlite(path, error) => write!(f, "{}: {error}", path.display()),
            StoreError::TooManyLines => {
                let most = bounds::REPORT_LINES_MAX;
                write!(f, "the report has more than {most} lines: restrict it, or use `tollgate usage`")
            }
            StoreError::Shared(server, why) => write!(f, "{server}: {why}"),
            StoreError::Interrupted(server) => write!(f, "{server}: no answer in time"),
        }
    }
}

impl std::error::Error for StoreError {}

/// Names to match.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Names<'a> {
    /// Beginning of each matching name.
    pub prefix: &'a str,
    /// The prefix must be the whole name.
    pub whole: bool,
}

impl<'a> Names<'a> {
    /// Parses a name, or the beginning of a name with a `*` after it.
    pub fn of(text: &'a str) -> Names<'a> {
        match text.strip_suffix('*') {
            Some(prefix) => Names { prefix, whole: false },
            None => Names { prefix: text, whole: true },
        }
    }

    /// True if `name` matches.
    pub fn takes(self, name: &str) -> bool {
        name.starts_with(self.prefix) && (!self.whole || name.len() == self.prefix.len())
    }
}

/// Rows that the ledger did not take before the process ended. Rows of a shared ledger were sent under a number, by
/// which the ledger knows whether it has them.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Batch {
    /// The writer's lasting name and the number; `None` for a file.
    pub sent: Option<(String, u64)>,
    /// Uses of grants of a shared ledger, before the rows.
    pub uses: Vec<Use>,
    /// The rows, in their original order.
    pub rows: Vec<Row>,
}

/// Returns the answers of a ledger's thread to a look-up of keys.
pub fn answers(keys: &[ShownKey], found: Result<Vec<KeyRecord>, StoreError>) -> Vec<(ShownKey, KeyAnswer)> {
    let Ok(mut found) = found else { return unavailable(keys) };
    let answer = |key: &ShownKey| match found.iter().position(|record| record.id == key.id) {
        Some(at) => KeyAnswer::Known(Box::new(found.swap_remove(at))),
        None => KeyAnswer::Absent,
    };
    keys.iter().copied().zip(keys.iter().map(answer)).collect()
}

/// Returns the answers if the ledger cannot be read.
pub fn unavailable(keys: &[ShownKey]) -> Vec<(ShownKey, KeyAnswer)> {
    keys.iter().map(|key| (*key, KeyAnswer::Unavailable)).collect()
}

/// The ids of these keys.
pub fn ids(keys: &[ShownKey]) -> Vec<KeyId> {
    keys.iter().map(|key| key.id).collect()
}

/// Data left when the thread of a ledger has ended.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Leftover {
    /// Rows that are not in the ledger, or may not be.
    pub batches: Vec<Batch>,
    /// A bug has ended the thread. The rows that it was processing are lost, and not among the batches.
    pub died: bool,
}

impl Leftover {
    /// Number of rows.
    pub fn rows(&self) -> u64 {
        self.batches.iter().map(|batch| batch.rows.len() as u64).sum()
    }
}

/// Use of one key in one group, which rebuilds their counts: of one model on one UTC day, or of one row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PastUse {
    /// The key.
    pub key: KeyId,
    /// The groups that these requests were admitted under, see [`Row::group`].
    pub group: Arc<str>,
    /// Id of the model.
    pub model: Arc<str>,
    /// Target that answered, of a single row.
    pub target: Arc<str>,
    /// First moment of the day, or time of admission.
    pub at: Unix,
    /// Admitted requests.
    pub requests: u64,
    /// Prompt and completion tokens, cached ones included.
    pub tokens: u64,
    /// Nano-dollars.
    pub cost_nano: u64,
}

impl From<Row> for PastUse {
    fn from(row: Row) -> PastUse {
        let Row { key, group, model, target, admitted: at, usage, cost_nano, .. } = row;
        PastUse { key, group, model, target, at, requests: 1, tokens: usage.total(), cost_nano }
    }
}

/// Use of one target on one UTC day.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TargetUse {
    /// Label of the target.
    pub target: Arc<str>,
    /// First moment of the day.
    pub at: Unix,
    /// Answered requests.
    pub requests: u64,
    /// Prompt and completion tokens, cached ones included.
    pub tokens: u64,
    /// Nano-dollars.
    pub cost_nano: u64,
}

/// Property that a usage report can be broken down by.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum By {
    /// Key id.
    Key,
    /// Catalog id.
    Model,
    /// UTC date, `YYYY-MM-DD`.
    Day,
    /// `provider/model`; empty if none was reached.
    Target,
    /// See [`Row::group`].
    Group,
    /// Name of the endpoint.
    Endpoint,
    /// Class of program.
    Client,
    /// See [`crate::policy::row::RareNames::user`]; empty if no user was named, [`REST`] for users that are not among
    /// the largest of their day.
    User,
    /// See [`crate::policy::row::RareNames::session`]; empty and [`REST`] as for users.
    Session,
    /// See [`crate::policy::row::RareNames::agent`]; empty and [`REST`] as for users.
    Agent,
}

impl By {
    /// Kind of name, for the breakdowns that are kept by day only.
    pub fn who(self) -> Option<Who> {
        match self {
            By::User => Some(Who::User),
            By::Session => Some(Who::Session),
            By::Agent => Some(Who::Agent),
            _ => None,
        }
    }

    /// Value of this property in the key of a sum.
    pub fn of(self, key: &DayKey) -> Cow<'_, str> {
        Cow::Borrowed(match self {
            By::Day => return Cow::Owned(window::date(Unix(key.day.saturating_mul(DAY_MS)))),
            By::Key => &key.key,
            By::Model => &key.model,
            By::Target => &key.target,
            By::Group => &key.group,
            By::Endpoint => &key.endpoint,
            By::Client => &key.client,
            By::User | By::Session | By::Agent => "",
        })
    }
}

/// Query of the sums.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Query {
    /// Properties that the lines are broken down by, one or two.
    pub by: Vec<By>,
    /// The first day is the day of this moment; `None`: the first day on record.
    pub since: Option<Unix>,
    /// Exclusive end: the last day begins before this.
    pub until: Option<Unix>,
    /// Filters: each property with its permitted names. A group includes all groups below it, by its name or path.
    pub only: Vec<(By, Vec<String>)>,
    /// The lines to return; `None`: all.
    pub page: Option<Page>,
}

/// Part of the lines of a report. Its memory is bounded, see [`bounds::REPORT_LINES_MAX`].
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Page {
    /// Number of lines before it.
    pub from: u64,
    /// Maximum number of lines.
    pub most: u64,
}

/// Maps the names of a line to those that it is reported under. Lines with equal names are merged.
pub type Renaming<'a> = &'a dyn Fn(&str, Option<&str>) -> (String, Option<String>);

impl Query {
    /// Query of all sums, broken down by one property.
    pub fn by(by: By) -> Query {
        Query { by: vec![by], ..Query::default() }
    }

    /// Kind of name that the query is about. An error if the sums by name cannot answer it.
    pub fn who(&self) -> Result<Option<Who>, &'static str> {
        let asked = || self.by.iter().copied().chain(self.only.iter().map(|(by, _)| *by));
        let Some(who) = asked().find_map(By::who) else { return Ok(None) };
        let answers = asked().all(|by| by == By::Day || by.who() == Some(who));
        let kept = "user, session and agent combine only with day, as in `--by session,day`, and only with the filters \
                    --since, --until and their own name; for more, query the view `rows` with SQL, or use \
                    `tollgate ledger export`";
        if answers { Ok(Some(who)) } else { Err(kept) }
    }

    /// The first day, and the day after the last.
    pub fn days(&self) -> (u64, u64) {
        (self.since.map_or(0, |at| at.0 / DAY_MS), self.until.map_or(i64::MAX as u64, |at| at.0.div_ceil(DAY_MS)))
    }

    /// True if a sum is included.
    pub fn takes(&self, key: &DayKey) -> bool {
        let (first, beyond) = self.days();
        let below = |group: &str, name: &String| format!("/{group}/").contains(&format!("/{name}/"));
        (first..beyond).contains(&key.day)
            && self.only.iter().all(|(by, names)| {
                let value = by.of(key);
                names.iter().any(|name| if *by == By::Group { below(&value, name) } else { *name == value })
            })
    }

    /// Sorts the lines, and returns those of the page: by name if days are among the properties; otherwise by cost,
    /// then tokens, the largest first.
    pub fn sorted(&self, lines: Lines) -> Result<Vec<UsageLine>, StoreError> {
        if self.page.is_some() && lines.0.len() > bounds::REPORT_LINES_MAX {
            return Err(StoreError::TooManyLines);
        }
        let mut lines: Vec<UsageLine> = lines.0.into_iter().map(UsageLine::from_sums).collect();
        if !self.by.contains(&By::Day) {
            lines.sort_by_key(|line| Reverse((line.cost_nano, line.out)));
        }
        if let Some(Page { from, most }) = self.page {
            lines.drain(..lines.len().min(usize::try_from(from).unwrap_or(usize::MAX)));
            lines.truncate(usize::try_from(most).unwrap_or(usize::MAX));
        }
        Ok(lines)
    }

    /// Adds amounts to a line, unless there are too many lines for [`Query::sorted`].
    pub fn add(&self, lines: &mut Lines, (name, second): (String, Option<String>), sums: &Sums, last: Option<Unix>) {
        if self.page.is_none() || lines.0.len() <= bounds::REPORT_LINES_MAX {
            let (own, day) = lines.0.entry((name, second)).or_default();
            own.iter_mut().zip(sums).for_each(|(own, more)| *own += more);
            *day = (*day).max(last);
        }
    }

    /// Reports the sums by name. The remainder of each day's sums is reported under an empty name.
    pub fn report_people(&self, who: Who, people: &PeopleSums, days: &DaySums) -> Result<Vec<UsageLine>, StoreError> {
        let mut lines = Lines::default();
        let named = |name: &str| self.only.iter().all(|(_, names)| names.iter().any(|only| only == name));
        let mut add = |day: u64, name: &str, sums: &Sums| {
            let date = || window::date(Unix(day.saturating_mul(DAY_MS)));
            let value = |by: &By| if *by == By::Day { date() } else { name.to_string() };
            let names = (self.by.first().map(value).unwrap_or_default(), self.by.get(1).map(value));
            self.add(&mut lines, names, sums, moment(day));
        };
        let mut left = by_day(days);
        for ((day, _, name), sums) in people.iter().filter(|((_, kind, _), _)| *kind == who) {
            let rest = left.entry(*day).or_default();
            rest.iter_mut().zip(sums).for_each(|(sum, part)| *sum = sum.saturating_sub(*part));
            if named(name) {
                add(*day, name, sums);
            }
        }
        if named("") {
            left.iter().filter(|(_, sums)| sums[0] > 0).for_each(|(day, sums)| add(*day, "", sums));
        }
        self.sorted(lines)
    }

    /// Adds sums to lines, broken down as the query asks.
    pub fn report(&self, lines: &mut Lines, sums: &DaySums, renaming: Option<Renaming<'_>>) {
        for (key, sums) in sums.iter().filter(|(key, _)| self.takes(key)) {
            let value = |by: &By| by.of(key).into_owned();
            let mut names = (self.by.first().map(value).unwrap_or_default(), self.by.get(1).map(value));
            if let Some(renaming) = renaming {
                names = renaming(&names.0, names.1.as_deref());
            }
            self.add(lines, names, sums, moment(key.day));
        }
    }
}

/// First moment of a day; `None` for no day.
fn moment(day: u64) -> Option<Unix> {
    (day > 0).then(|| Unix(day.saturating_mul(DAY_MS)))
}

/// Amounts by the names of their lines, each with the last day of a request.
#[derive(Default)]
pub struct Lines(BTreeMap<(String, Option<String>), (Sums, Option<Unix>)>);

impl UsageLine {
    /// Amounts of the line.
    pub fn sums(&self) -> Sums {
        [self.requests, self.uncached_in, self.cache_read, self.cache_write, self.out, self.cost_nano]
    }

    /// Line with these names and amounts.
    pub fn from_sums(((name, second), (sums, last)): ((String, Option<String>), (Sums, Option<Unix>))) -> UsageLine {
        let [requests, uncached_in, cache_read, cache_write, out, cost_nano] = sums;
        UsageLine { name, second, requests, uncached_in, cache_read, cache_write, out, cost_nano, last }
    }
}

/// A line of a usage report.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct UsageLine {
    /// Value of the first [`By`].
    pub name: String,
    /// Value of the second [`By`], if there is one.
    pub second: Option<String>,
    /// Admitted requests.
    pub requests: u64,
    /// Prompt tokens outside any cache.
    pub uncached_in: u64,
    /// Prompt tokens read from a cache.
    pub cache_read: u64,
    /// Prompt tokens written to a cache.
    pub cache_write: u64,
    /// Completion tokens.
    pub out: u64,
    /// Nano-dollars.
    pub cost_nano: u64,
    /// The last day with a request.
    pub last: Option<Unix>,
}

/// The six sums of a group of rows: requests, the four kinds of tokens as in [`UsageLine`], nano-dollars.
pub type Sums = [u64; 6];

/// Key of one sum of a day.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct DayKey {
    /// Days since the epoch, UTC.
    pub day: u64,
    /// Key id.
    pub key: String,
    /// Catalog id.
    pub model: String,
    /// `provider/model`.
    pub target: String,
    /// See [`Row::group`].
    pub group: String,
    /// Name of the endpoint.
    pub endpoint: String,
    /// Class of the client program; empty if unknown.
    pub client: String,
}

impl DayKey {
    /// Returns the key of the sum that a row counts in.
    pub fn from_row(row: &Row) -> DayKey {
        DayKey {
            day: row.admitted.0 / DAY_MS,
            key: row.key.to_string(),
            model: row.model.to_string(),
            target: row.target.to_string(),
            group: row.group.to_string(),
            endpoint: row.endpoint.name().to_string(),
            client: row.client.name().to_string(),
        }
    }
}

/// The sums of all days.
pub type DaySums = BTreeMap<DayKey, Sums>;

/// Returns the sums of whole days.
pub fn by_day(sums: &DaySums) -> BTreeMap<u64, Sums> {
    let mut days: BTreeMap<u64, Sums> = BTreeMap::new();
    for (key, more) in sums {
        days.entry(key.day).or_default().iter_mut().zip(more).for_each(|(sum, part)| *sum += part);
    }
    days
}

/// Returns the amounts that a row adds to the sums of its day.
pub fn sums_of(row: &Row) -> Sums {
    let (usage, cost) = row.bounded();
    [1, usage.uncached_in, usage.cache_read, usage.cache_write, usage.out, cost]
}

/// Maximum number of users, of sessions, and of agents, listed by name per day: the largest by cost, then tokens. The
/// others are summed up under [`REST`].
pub const PEOPLE_MAX: usize = 1000;

/// Name for all names beyond [`PEOPLE_MAX`]. No real name contains a control character.
pub const REST: &str = "\u{1}";

/// Sums of days by name.
pub type PeopleSums = BTreeMap<(u64, Who, Arc<str>), Sums>;

/// Sums of all names of a day, [`REST`] included.
pub type PeopleTotals = BTreeMap<(u64, Who), Sums>;

/// Adds a row to the totals of its user, its session and its agent.
pub fn add_people(totals: &mut PeopleTotals, row: &Row) {
    for who in Who::ALL.into_iter().filter(|who| who.of(row).is_some()) {
        let sums = totals.entry((row.admitted.0 / DAY_MS, who)).or_default();
        sums.iter_mut().zip(sums_of(row)).for_each(|(sum, value)| *sum += value);
    }
}

/// Counter that does not match the rows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Difference {
    /// Name of the counter.
    pub counter: String,
    /// Stored value.
    pub stored: u64,
    /// Value computed from the rows, and from the sums of folded rows.
    pub counted: u64,
}

/// Result of a verification.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Verdict {
    /// Number of rows checked.
    pub rows: u64,
    /// Requests whose rows have been folded into the sums of their days.
    pub folded: u64,
    /// Counters compared.
    pub counters: u64,
    /// Entries of the wrong type, which cannot count anything. Only a shared ledger can have any.
    pub wrong: Vec<String>,
    /// Counters that differ; empty if all match. At most [`DIFFERENCES_MAX`] are listed.
    pub differences: Vec<Difference>,
}

/// Names of the [`Sums`].
const SUM_NAMES: [&str; 6] = ["requests", "uncached input", "cache read", "cache write", "output", "cost"];

/// Maximum number of differences listed.
pub const DIFFERENCES_MAX: usize = 1000;

impl Verdict {
    /// Compares one counter.
    pub fn compare(&mut self, counter: impl FnOnce() -> String, stored: u64, counted: u64) {
        self.counters += 1;
        if stored != counted && self.differences.len() < DIFFERENCES_MAX {
            self.differences.push(Difference { counter: counter(), stored, counted });
        }
    }

    /// Compares the totals of all names of each day with the rows. If the day has `folded` rows, only bounds are known:
    /// at least the sum of the rows left, at most the whole day.
    pub fn compare_people(&mut self, stored: &PeopleTotals, counted: &PeopleTotals, days: &DaySums, folded: &DaySums) {
        let (whole, folded) = (by_day(days), by_day(folded));
        let only_counted = counted.keys().filter(|place| !stored.contains_key(place));
        for place in stored.keys().chain(only_counted) {
            let of = |sums: &PeopleTotals| sums.get(place).copied().unwrap_or_default();
            let most = whole.get(&place.0).copied().unwrap_or_default();
            for (number, (stored, counted)) in of(stored).into_iter().zip(of(counted)).enumerate() {
                let counted =
                    if folded.contains_key(&place.0) { stored.max(counted).min(most[number]) } else { counted };
                let who = place.1.plural();
                let date = || window::date(Unix(place.0.saturating_mul(DAY_MS)));
                self.compare(|| format!("{} of all {who} on {}", SUM_NAMES[number], date()), stored, counted);
            }
        }
    }

    /// Compares every sum of every day. A sum that only one side has counts as 0 on the other.
    pub fn compare_days(&mut self, stored: &DaySums, counted: &DaySums) {
        let only_counted = counted.keys().filter(|key| !stored.contains_key(key));
        for key in stored.keys().chain(only_counted) {
            let of = |sums: &DaySums| sums.get(key).copied().unwrap_or_default();
            for ((name, stored), counted) in SUM_NAMES.iter().zip(of(stored)).zip(of(counted)) {
                let date = || window::date(Unix(key.day.saturating_mul(DAY_MS)));
                let counter = || {
                    let DayKey { key, model, target, group, endpoint, client, .. } = key;
                    let more = [("group", group), ("endpoint", endpoint), ("client", client)];
                    let more = more.iter().filter(|(_, value)| !value.is_empty());
                    let more: String = more.map(|(what, value)| format!(", {what} {value}")).collect();
                    format!("{name} of {key} on {}, {model} at {target}{more}", date())
                };
                self.compare(counter, stored, counted);
            }
        }
    }
}

/// An entry of an export.
#[derive(Clone, PartialEq, Debug)]
pub enum Entry {
    /// A row.
    Request(Row),
    /// Sums of rows that were folded.
    Folded(DayKey, Sums),
}

/// Takes the entries of an export one by one; false ends it.
pub type Taker<'a> = &'a mut dyn FnMut(Entry) -> bool;
