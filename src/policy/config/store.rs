//! `[store]`: location and durability of keys and ledger.

use super::shared_url::{FORMS, SharedUrl};
use crate::base::limits::COMMIT_TICK;
use crate::base::words;
use crate::policy::settings::kinds::{Folder, Kind, OneOf, Or, Pem, Shown, Time, Whole};
use crate::policy::settings::reader::{Field, Reader, Section};
use crate::policy::settings::units::{duration_text, quoted};
use crate::policy::settings::{Settings, section};
use crate::policy::upstream_limits::TIMEOUTS;
use std::fmt::{self, Write as _};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

/// Rows younger than this are needed to rebuild the longest period.
const RETENTION: RangeInclusive<Duration> = Duration::from_secs(32 * 86_400)..=Duration::from_secs(36_500 * 86_400);

/// Interval of commits. The shortest is what rows gather for at least.
const COMMITS: RangeInclusive<Duration> = COMMIT_TICK..=Duration::from_secs(60);
/// Interval of syncs.
const SYNCS: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(3600);
/// Interval of snapshots.
const SNAPSHOTS: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(366 * 86_400);
/// Sizes of a page that SQLite knows, up to that of a page of memory.
const PAGES: [u64; 4] = [512, 1024, 2048, 4096];

/// Parts of a URL.
const PARTS_MAX: usize = 8;

section! {
    /// `[store]`.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub struct StoreConfig {
        /// Location of keys and ledger: `sqlite:PATH` for one host, `redis://…` or `rediss://…` for several hosts, and
        /// `redis+cluster://HOST:PORT,HOST,…` or `rediss+cluster://…` for a cluster, with one or more of its nodes. If
        /// the folder of a file is missing, Tollgate creates it. To keep a password out of the configuration file,
        /// write a list of parts: `["redis://:", { env = "NAME" }, "@HOST:6379/0"]`. Value: a URL of one of these
        /// forms.
        pub url: StoreUrl = StoreUrl::Sqlite("tollgate.db".into()), Url, Restart;
        /// Certificate authorities for `rediss://`, instead of the public ones. Value: path of a PEM file. Default: the
        /// public authorities.
        pub ca_file: Option<PathBuf> = None, Or(Pem("-----BEGIN CERTIFICATE-----"), "none, the public authorities"),
            Restart;
        /// `"write-behind"` commits the usage record after the response: at most 50 ms later, or `commit_every` plus 25
        /// ms if that is longer. `"before-reply"` commits it before the response is complete.
        pub durability: Durability = Durability::WriteBehind, OneOf(&Durability::ALL, Durability::as_str), Restart;
        /// Time between commits of usage records to a ledger in a file. With a longer interval, Tollgate writes less to
        /// flash. A kill loses the records that are not committed yet. More than `"25ms"` is possible only with
        /// `durability = "write-behind"`.
        pub commit_every: Duration = COMMIT_TICK, Time(COMMITS), Restart;
        /// Time between syncs of the commits to a ledger in a file. A power cut loses at most the usage records of
        /// `sync_every` plus `commit_every`. With `"before-reply"` Tollgate syncs every commit.
        pub sync_every: Duration = Duration::from_secs(30), Time(SYNCS), Restart;
        /// Bytes of a page of a ledger in a file: 512, 1024, 2048 or 4096. It applies to a new file, or after
        /// `tollgate ledger compact`.
        pub page_size: u32 = 4096, PageSize, Restart;
        /// Copies the ledger to the file `to`, for example from tmpfs to flash. Tollgate copies it at the interval
        /// `every` (1 s to 366 d) and at a clean stop, if it has changed. A copy replaces an older copy, but no other
        /// file: if `to` is one, Tollgate does not start. Tollgate never reads the copies.
        /// Value: `{ to = FILE, every = "30m" }`. Default: none.
        pub snapshot: Option<Snapshot> = None, Or(SnapshotTo, "none"), Restart;
        /// If a commit of usage records is delayed by more than this time, new requests get 503, except with `on_outage
        /// = "local"`.
        pub max_commit_lag: Duration = Duration::from_secs(5), Time(TIMEOUTS), Live;
        /// Behaviour while a shared ledger cannot be reached: `"refuse"` returns 503, `"local"` lets each host admit
        /// its share of every limit. `"local"` cannot be combined with `durability = "before-reply"`.
        pub on_outage: OnOutage = OnOutage::Refuse, OneOf(&OnOutage::ALL, OnOutage::as_str), Restart;
        /// Hosts that share the ledger.
        pub hosts: u32 = 1, Whole(1..=10_000), Restart;
        /// Number of replicas of a shared ledger that must confirm each write of usage records, admissions and changes
        /// of keys. If fewer replicas confirm, Tollgate treats the ledger as unreachable.
        pub replicas: u32 = 0, Whole(0..=5), Restart;
        /// Time for which the ledger keeps usage records. It keeps their daily sums forever. Default: forever.
        ///
        /// `None` keeps them for ever.
        pub retention: Option<Duration> = None, Or(Time(RETENTION), "forever"), Restart;
        /// Folder for usage records that the ledger does not accept before the process ends. The next start reads them.
        /// With a shared ledger this folder also contains the epoch file, by which a gateway recognises the ledger at
        /// its start. Value: path of a folder. Default: the folder of the ledger's file; of a shared ledger, the folder
        /// of the configuration.
        pub spill: Option<PathBuf> = None,
            Or(Folder, "beside the ledger's file; beside the configuration if the store is shared"), Restart;
    }
}

impl StoreConfig {
    /// Reads `[store]`.
    pub(super) fn read(reader: &mut Reader<'_>, top: &mut Section<'_>) -> StoreConfig {
        let mut store = StoreConfig::default();
        if let StoreUrl::Sqlite(path) = &mut store.url {
            *path = reader.resolve(&*path);
        }
        if let Some(mut section) = reader.table(top, "store") {
            store.read_rows(reader, &mut section);
            let apart = store.on_outage == OnOutage::Local && store.durability == Durability::BeforeReply;
            if let Some(at) = section.place("on_outage").filter(|_| apart) {
                let text = "\"local\" cannot be combined with durability = \"before-reply\": change one of them";
                reader.report(at, section.path_of("on_outage"), text);
            }
            store.check_flash(reader, &section);
            store.warn_of_ignored(reader, &section);
            section.finish(reader);
        }
        store
    }
}

impl StoreConfig {
    /// Warns about settings of the other kind of store, unless they have their defaults.
    fn warn_of_ignored(&self, reader: &mut Reader<'_>, section: &Section<'_>) {
        let usual = StoreConfig::default();
        let shared = [
            ("ca_file", self.ca_file != usual.ca_file),
            ("on_outage", self.on_outage != usual.on_outage),
            ("hosts", self.hosts != usual.hosts),
            ("replicas", self.replicas != usual.replicas),
        ];
        let file = [
            ("commit_every", self.commit_every != usual.commit_every),
            ("sync_every", self.sync_every != usual.sync_every),
            ("page_size", self.page_size != usual.page_size),
        ];
        let (ignored, owner): (&[_], _) = match &self.url {
            StoreUrl::Sqlite(_) => (&shared, "a shared store"),
            StoreUrl::Redis(_) => (&file, "a ledger in a file"),
        };
        for &(name, _) in ignored.iter().filter(|(_, is_set)| *is_set) {
            let Some(at) = section.place(name) else { continue };
            reader.warn(at, section.path_of(name), format!("only {owner} uses it: remove it, or change `url`"));
        }
    }

    /// Reports settings of a ledger in a file that contradict others.
    fn check_flash(&self, reader: &mut Reader<'_>, section: &Section<'_>) {
        let durable = self.durability == Durability::BeforeReply;
        let late = section.place("commit_every").filter(|_| durable && self.commit_every > COMMIT_TICK);
        if let Some(at) = late {
            let text = "with durability = \"before-reply\" every response waits for its commit: remove one of the two";
            reader.report(at, section.path_of("commit_every"), text);
        }
        let Some(at) = section.place("snapshot").filter(|_| self.snapshot.is_some()) else { return };
        let text = match &self.url {
            StoreUrl::Redis(_) => "needs a ledger in a file: back up the shared store instead",
            StoreUrl::Sqlite(path) if self.snapshot.as_ref().is_some_and(|snapshot| snapshot.to == *path) => {
                "must be another file than the ledger"
            }
            StoreUrl::Sqlite(_) => return,
        };
        reader.report(at, section.path_of("snapshot"), text);
    }
}

/// Regular copies of a ledger.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Snapshot {
    /// The file of the copy.
    pub to: PathBuf,
    /// Interval.
    pub every: Duration,
}

/// `{ to = FILE, every = "30m" }`.
struct SnapshotTo;

impl Kind<Snapshot> for SnapshotTo {
    fn read(&self, reader: &mut Reader<'_>, field: Field<'_>) -> Option<Snapshot> {
        let mut table = reader.as_table(field)?;
        let to = reader.required(&mut table, "to").and_then(|to| Folder.read(reader, to));
        let every = reader.required(&mut table, "every").and_then(|every| reader.duration(&every, &SNAPSHOTS));
        table.finish(reader);
        to.zip(every).map(|(to, every)| Snapshot { to, every })
    }

    fn shown(&self, value: &Snapshot) -> Shown {
        let (to, every) = (quoted(&value.to.to_string_lossy()), quoted(&duration_text(value.every)));
        Shown::Value(format!("{{ to = {to}, every = {every} }}"))
    }
}

/// One of [`PAGES`].
struct PageSize;

impl Kind<u32> for PageSize {
    fn read(&self, reader: &mut Reader<'_>, field: Field<'_>) -> Option<u32> {
        let size = reader.integer(&field, &(PAGES[0]..=PAGES[3]))?;
        if !PAGES.contains(&size) {
            reader.wrong(&field, "expected 512, 1024, 2048 or 4096");
            return None;
        }
        u32::try_from(size).ok()
    }

    fn shown(&self, value: &u32) -> Shown {
        Shown::Value(value.to_string())
    }
}

words! {
    /// Moment at which a client may see an answer as complete.
    #[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
    pub enum Durability {
        /// At once; the row follows within milliseconds.
        #[default]
        WriteBehind = "write-behind",
        /// After the commit of its row.
        BeforeReply = "before-reply",
    }
}

words! {
    /// Behaviour while a shared ledger cannot be reached.
    #[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
    pub enum OnOutage {
        /// 503.
        #[default]
        Refuse = "refuse",
        /// Each host admits its share of every limit.
        Local = "local",
    }
}

/// Location of the ledger.
#[derive(Clone, PartialEq, Eq)]
pub enum StoreUrl {
    /// A file, resolved against the configuration's folder.
    Sqlite(PathBuf),
    /// Redis or Valkey servers.
    Redis(SharedUrl),
}

impl fmt::Display for StoreUrl {
    /// Writes the URL without user and password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreUrl::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            StoreUrl::Redis(url) => f.write_str(&url.shown),
        }
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// URL of a store.
struct Url;

impl Kind<StoreUrl> for Url {
    fn read(&self, reader: &mut Reader<'_>, field: Field<'_>) -> Option<StoreUrl> {
        let (text, field) = match field.is_array() {
            true => joined(reader, field)?,
            false => (reader.string(&field)?, field),
        };
        let url = match text.split_once(':') {
            Some(("sqlite", path)) if path.is_empty() || path == ":memory:" => Err(FORMS),
            Some(("sqlite", path)) => Ok(StoreUrl::Sqlite(reader.resolve(path))),
            _ => SharedUrl::parse(&text).map(StoreUrl::Redis),
        };
        url.map_err(|wrong| reader.error(&field, wrong)).ok()
    }

    fn shown(&self, value: &StoreUrl) -> Shown {
        Shown::Value(quoted(&value.to_string()))
    }
}

/// A URL written in parts, `["redis://:", { env = "REDIS_PASSWORD" }, "@cache:6379/0"]`: a secret part comes from a
/// variable or a file, and is percent-encoded.
fn joined<'d>(reader: &mut Reader<'_>, field: Field<'d>) -> Option<(String, Field<'d>)> {
    let mut items = reader.items(field, PARTS_MAX).into_iter();
    let first = items.next()?;
    let mut url = reader.string(&first)?;
    for item in items {
        if item.is_text() {
            url.push_str(&reader.string(&item)?);
            continue;
        }
        for byte in reader.secret(item)?.expose().bytes() {
            match byte {
                b if b.is_ascii_alphanumeric() || b"-._~".contains(&b) => url.push(char::from(b)),
                // Writing to a String cannot fail.
                b => drop(write!(url, "%{b:02X}")),
            }
        }
    }
    Some((url, first))
}
