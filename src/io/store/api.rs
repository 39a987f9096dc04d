//! What a ledger is to its callers, in a file or shared: the reports and errors they get, and the verbs that the
//! store thread needs. Data and one trait; decides nothing.

use crate::base::time::Unix;
use crate::policy::keys::{KeyAnswer, KeyId, KeyRecord};
use crate::policy::row::Row;
use crate::policy::window::{self, DAY_MS};
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// Why the ledger cannot be used. The text names the file or the server.
#[derive(Debug)]
pub enum StoreError {
    /// Another gateway has it open.
    Locked(PathBuf),
    /// The file, or the one with the lock, cannot be opened.
    File(PathBuf, io::Error),
    /// The path no longer leads to the file that is open: what is written there would be lost with it.
    Moved(PathBuf),
    /// Not a ledger, or one of a newer version.
    Foreign(PathBuf, &'static str),
    /// SQLite says so.
    Sqlite(PathBuf, rusqlite::Error),
    /// The shared store, named without its password, and what went wrong there.
    Shared(String, String),
    /// The shared store's answer was interrupted: this process was stopped and continued. What was sent may have been
    /// done.
    Interrupted(String),
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreError::Locked(path) => write!(f, "{}: another gateway has this ledger open", path.display()),
            StoreError::File(path, error) => write!(f, "{}: {error}", path.display()),
            StoreError::Moved(path) => {
                write!(f, "{}: the ledger's file was moved, deleted or replaced; put it back", path.display())
            }
            StoreError::Foreign(path, why) => write!(f, "{}: {why}", path.display()),
            StoreError::Sqlite(path, error) => write!(f, "{}: {error}", path.display()),
            StoreError::Shared(server, why) => write!(f, "{server}: {why}"),
            StoreError::Interrupted(server) => write!(f, "{server}: interrupted"),
        }
    }
}

impl std::error::Error for StoreError {}

/// What the store thread asks of a ledger.
pub trait Store: Send + 'static {
    /// Appends rows and adds them to every sum, all of it or none.
    fn append(&mut self, rows: &[Row]) -> Result<(), StoreError>;
    /// Fails if what is open is no longer what a restart would open.
    fn check(&self) -> Result<(), StoreError>;
    /// All keys, also expired and revoked ones.
    fn list_keys(&mut self) -> Result<Vec<KeyRecord>, StoreError>;
    /// The record of one key; `None` if there is no such key.
    fn find_key(&mut self, id: &KeyId) -> Result<Option<KeyRecord>, StoreError>;
    /// Changes whenever another process has changed the keys; compare with an earlier value.
    fn version(&mut self) -> Result<i64, StoreError>;
    /// Folds at most `max` rows admitted before `before` into the sums of their days; how many that were.
    fn fold(&mut self, before: Unix, max: usize) -> Result<u64, StoreError>;
    /// Lets another gateway have the ledger, even where this fails: then not everything is as it should be there.
    /// Nothing is asked of it from here on but [`Store::retake`].
    fn release(&mut self) -> Result<(), StoreError>;
    /// Takes the ledger back from wherever it is; nothing happens where it was not released.
    fn retake(&mut self) -> Result<(), StoreError>;
    /// Appends those rows that the ledger does not have yet, by the ids of their requests; how many that were.
    fn append_missing(&mut self, rows: &[Row]) -> Result<u64, StoreError>;
}

/// Rows that the ledger did not take before the process ended. Those of a shared ledger have been sent under a number,
/// by which the ledger knows whether it has them.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Batch {
    /// The writer's lasting name and the number; `None` for a file.
    pub sent: Option<(String, u64)>,
    /// The rows, in the order in which they were given.
    pub rows: Vec<Row>,
}

/// What a ledger's thread says of a key that it was asked for.
pub fn answer(found: Result<Option<KeyRecord>, StoreError>) -> KeyAnswer {
    match found {
        Ok(Some(record)) => KeyAnswer::Known(Box::new(record)),
        Ok(None) => KeyAnswer::Absent,
        Err(_) => KeyAnswer::Unavailable,
    }
}

/// What is left when the thread of a ledger has ended.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Leftover {
    /// Rows that are not in the ledger, or not known to be.
    pub batches: Vec<Batch>,
    /// A bug has ended the thread: what it had in hand is lost, and not among the batches.
    pub died: bool,
}

impl Leftover {
    /// Number of rows.
    pub fn rows(&self) -> u64 {
        self.batches.iter().map(|batch| batch.rows.len() as u64).sum()
    }
}

/// Requests, tokens and cost of one key on one day, as far as it was in one group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DaySum {
    /// Whose.
    pub key: KeyId,
    /// The groups that these requests were admitted under, see [`Row::group`].
    pub group: Arc<str>,
    /// First moment of the UTC day.
    pub day: Unix,
    /// Admitted requests.
    pub requests: u64,
    /// Prompt and completion tokens, cached ones included.
    pub tokens: u64,
    /// Nano-dollars.
    pub cost_nano: u64,
}

/// What rebuilds the windows of a row's key and groups.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Recent {
    /// Whose.
    pub key: KeyId,
    /// See [`Row::group`].
    pub group: Arc<str>,
    /// When it was admitted.
    pub admitted: Unix,
    /// Prompt and completion tokens, cached ones included.
    pub tokens: u64,
}

/// What a usage report is broken down by.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum By {
    /// Key id.
    Key,
    /// Catalog id.
    Model,
    /// UTC date, `YYYY-MM-DD`.
    Day,
    /// `provider/model`; empty where none was reached.
    Target,
}

/// One line of a usage report.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct UsageLine {
    /// What the line is about, see [`By`].
    pub name: String,
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

/// What the sums of a day are told apart by.
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
    /// The endpoint's shape; empty for what was summed up before sums told endpoints apart.
    pub endpoint: String,
    /// Class of the program that asked; empty where it is not known.
    pub client: String,
}

impl DayKey {
    /// As it was told before sums told groups, endpoints and clients apart.
    pub fn shortened(&self) -> DayKey {
        let DayKey { day, key, model, target, .. } = self.clone();
        DayKey { day, key, model, target, ..DayKey::default() }
    }
}

/// The sums of all days.
pub type DaySums = BTreeMap<DayKey, Sums>;

/// One counter that is not what the rows say.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Difference {
    /// Which counter.
    pub counter: String,
    /// What it says.
    pub stored: u64,
    /// What the rows, and the sums of those folded away, come to.
    pub counted: u64,
}

/// What a verification has found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Verdict {
    /// Rows looked at.
    pub rows: u64,
    /// Requests whose rows have been folded into the sums of their days.
    pub folded: u64,
    /// Counters compared.
    pub counters: u64,
    /// Those that differ; empty when all is well. At most [`DIFFERENCES_MAX`] are told.
    pub differences: Vec<Difference>,
}

/// Differences that are told one by one.
pub const DIFFERENCES_MAX: usize = 1000;

impl Verdict {
    /// Compares one counter.
    pub fn compare(&mut self, counter: impl FnOnce() -> String, stored: u64, counted: u64) {
        self.counters += 1;
        if stored != counted && self.differences.len() < DIFFERENCES_MAX {
            self.differences.push(Difference { counter: counter(), stored, counted });
        }
    }
}

impl Verdict {
    /// Compares every sum of every day; one that only one side knows counts as 0 on the other.
    pub fn compare_days(&mut self, stored: &DaySums, counted: &DaySums) {
        const NAMES: [&str; 6] = ["requests", "uncached input", "cache read", "cache write", "output", "cost"];
        let mut keys: Vec<&DayKey> = stored.keys().chain(counted.keys()).collect();
        keys.sort();
        keys.dedup();
        for key in keys {
            let of = |sums: &DaySums| sums.get(key).copied().unwrap_or_default();
            for ((name, stored), counted) in NAMES.iter().zip(of(stored)).zip(of(counted)) {
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

/// One entry of an export.
#[derive(Clone, PartialEq, Debug)]
pub enum Entry {
    /// A row.
    Request(Row),
    /// What is left of rows that were folded away.
    Folded(DayKey, Sums),
}

/// Takes the entries of an export one by one; false ends it.
pub type Taker<'a> = &'a mut dyn FnMut(Entry) -> bool;
