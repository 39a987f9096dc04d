//! The ledger of a running gateway, of either kind: checks it, opens it, reads it at the start, runs its thread, and
//! spills rows that it does not accept at the end.

use crate::base::time::{Now, Unix};
use crate::cli::build;
#[cfg(feature = "redis")]
use crate::cli::store::{known_server, remote};
use crate::gateway::orders::Notice;
use crate::gateway::{Gateway, Past, PastOfTarget, Start};
#[cfg(feature = "redis")]
use crate::io::clock::{unix, watch};
use crate::io::entropy::random;
use crate::io::machine::explained;
use crate::io::mailbox::Mailbox;
use crate::io::reactor::ReactorMessage;
use crate::policy::config::target_limits::accounts;
use crate::policy::config::{Config, Durability, StoreConfig, StoreUrl};
use crate::policy::keys::Keys;
use crate::policy::ledger::LedgerNotice;
use crate::policy::meter::{Amount, DAYS_KEPT};
use crate::policy::plan::caps::Per;
use crate::policy::window;
use crate::store::api::{PastUse, StoreError, TargetUse};
use crate::store::copy::SnapshotPlan;
use crate::store::follow::{KeySource, KeysSeen};
use crate::store::ledger::Ledger;
#[cfg(feature = "redis")]
use crate::store::remote::{Bounds, Remote};
#[cfg(feature = "redis")]
use crate::store::shared;
use crate::store::spill::SpillFolder;
use crate::store::sqlite::Sqlite;
use crate::store::writer_clocks::WriterClocks;
use crate::store::{self, Duties, LedgerHandle, lock};

/// An open ledger.
pub(super) struct Opened {
    ledger: Ledger,
    /// See [`Duties::seen`].
    seen: KeysSeen,
    /// The times that its writers' clocks have recorded.
    clocks: WriterClocks,
    /// Warnings for the operator.
    pub(super) warnings: Vec<String>,
}

fn past(past: PastUse) -> Past {
    let PastUse { key, group, model, target, at, requests, tokens, cost_nano: nano } = past;
    Past { key, group, at, used: Amount { tokens, nano }, requests, model, target }
}

fn past_of_target(past: TargetUse) -> PastOfTarget {
    let TargetUse { target, at, requests, tokens, cost_nano: nano } = past;
    PastOfTarget { target, at, used: Amount { tokens, nano }, requests }
}

fn failed(error: StoreError) -> String {
    format!("cannot use the ledger: {error}")
}

/// All keys, read in pieces: their records take several times the memory of the table.
fn all_keys(source: &mut impl KeySource) -> Result<Keys, String> {
    let (mut keys, mut cursor) = (Keys::default(), String::new());
    loop {
        let piece = source.key_piece(&mut cursor).map_err(failed)?;
        piece.into_iter().for_each(|record| _ = keys.learn(record));
        if cursor.is_empty() {
            return Ok(keys);
        }
    }
}

/// Destination of the snapshots of a ledger in a file, if configured.
fn snapshots(config: &Config) -> Option<SnapshotPlan> {
    let StoreUrl::Sqlite(from) = &config.store.url else { return None };
    let snapshot = config.store.snapshot.as_ref()?;
    Some(SnapshotPlan { from: from.clone(), to: snapshot.to.clone(), every: snapshot.every })
}

/// Fails if the ledger cannot be used, as far as that can be detected while another process uses it.
pub(super) fn look(config: &Config) -> Result<(), String> {
    match &config.store.url {
        StoreUrl::Sqlite(path) => Sqlite::look(path).map_err(failed),
        #[cfg(not(feature = "redis"))]
        StoreUrl::Redis(_) => Err(crate::cli::store::NO_SHARED.to_string()),
        #[cfg(feature = "redis")]
        StoreUrl::Redis(_) => remote(config).map(drop).map_err(failed),
    }
}

impl Opened {
    /// Opens the configured ledger, and imports the rows that an earlier process has left in `spills`. `inherits`: a
    /// predecessor still serves requests.
    pub(super) fn open(config: &Config, spills: &SpillFolder, inherits: bool) -> Result<Opened, String> {
        let opened = match &config.store.url {
            StoreUrl::Sqlite(path) => {
                let durable = config.store.durability == Durability::BeforeReply;
                let page_size = config.store.page_size;
                store::open_owner(path, durable, page_size).and_then(|mut db| {
                    // The rows of spills end promises.
                    db.take_promises(false)?;
                    let mut warnings = spills.read(&mut db)?;
                    warnings.extend(lock::exposed(path));
                    db.take_promises(!inherits)?;
                    let found = db.page_size()?;
                    if found != page_size {
                        warnings.push(format!(
                            "{}: its pages have {found} bytes; store.page_size = {page_size} applies after `tollgate \
                             ledger compact`",
                            path.display()
                        ));
                    }
                    Ok(Opened {
                        ledger: Ledger::Sqlite(Box::new(db)),
                        seen: KeysSeen::default(),
                        clocks: WriterClocks::default(),
                        warnings,
                    })
                })
            }
            #[cfg(not(feature = "redis"))]
            StoreUrl::Redis(_) => return Err(crate::cli::store::NO_SHARED.to_string()),
            #[cfg(feature = "redis")]
            StoreUrl::Redis(_) => known_server(config, spills, Bounds::START).and_then(|mut server| {
                let mut warnings = server.warnings()?;
                warnings.extend(server.compare(spills, unix())?);
                let mut remote = Remote { server };
                warnings.extend(spills.read(&mut remote)?);
                Ok(Opened {
                    ledger: Ledger::Remote(Box::new(remote)),
                    seen: KeysSeen::default(),
                    clocks: WriterClocks::default(),
                    warnings,
                })
            }),
        };
        opened.map_err(failed)
    }

    /// Reads keys, periods and windows from the ledger. It queries a shared one for periods and windows each time.
    pub(super) fn start(&mut self, config: &Config, now: Now) -> Result<Start, String> {
        let seed = random::<32>().map_err(|error| error.to_string())?;
        let db = match &mut self.ledger {
            Ledger::Sqlite(db) => &mut **db,
            #[cfg(feature = "redis")]
            Ledger::Remote(remote) => {
                self.seen = remote.keys_seen().map_err(failed)?;
                let (keys, hash_key) = (all_keys(&mut **remote)?, remote.hash_key().map_err(failed)?);
                self.clocks = remote.writer_clocks().map_err(failed)?;
                let (newest, built) = (self.clocks.newest, build::date());
                return Ok(Start { seed, hash_key, keys, newest, built, watch: Some(watch), ..Start::default() });
            }
        };
        // A clock that is behind will be set forward; usage before the build date is in no current period then.
        let now = now.unix.max(build::date());
        let since = Unix(now.0.saturating_sub(DAYS_KEPT * window::DAY_MS));
        let targets = accounts(&config.providers, &config.catalog);
        let days = db.day_sums(since).map_err(failed)?;
        let target_days = if targets.is_empty() { Vec::new() } else { db.target_sums(since).map_err(failed)? };
        // Read first, so that the thread detects any later change.
        self.seen = db.keys_seen().map_err(failed)?;
        let keys = all_keys(db)?;
        self.clocks = db.writer_clocks().map_err(failed)?;
        // Windows of different lengths do not nest, so the longest does not always start first.
        let groups = config.groups.iter().chain(&targets).map(|group| &group.limits);
        let spans = config.plans.iter().chain(groups).flat_map(|limits| limits.all.spans().iter().map(|span| span.per));
        let own = keys.kinds().flat_map(|kind| kind.limits.iter().map(|cap| cap.per));
        let starts = spans.chain(own).filter(|per| matches!(per, Per::Every(_)) && !per.has_whole_days());
        let window = starts.map(|per| per.bounds(now).0).min().unwrap_or(now);
        let recent = db.rows_since(window).map_err(failed)?;
        db.rest().map_err(failed)?;
        Ok(Start {
            seed,
            hash_key: db.hash_key().map_err(failed)?,
            keys,
            days: days.into_iter().map(past).collect(),
            target_days: target_days.into_iter().map(past_of_target).collect(),
            newest: self.clocks.newest,
            built: build::date(),
            recent: recent.into_iter().map(past).collect(),
            ..Start::default()
        })
    }

    /// Starts its thread, which notifies the event loop by `mailbox` and the operator by `warn`.
    pub(super) fn keep(
        self,
        config: &Config,
        mailbox: Mailbox<ReactorMessage<Gateway>>,
        warn: impl Fn(String) + Send + 'static,
    ) -> Result<Box<dyn LedgerHandle>, String> {
        let urgent = config.store.durability == Durability::BeforeReply;
        let Opened { seen, clocks, .. } = self;
        let StoreConfig { commit_every, sync_every, retention, .. } = config.store;
        let duties = Duties {
            urgent,
            commit_every,
            sync_every: Some(sync_every).filter(|_| !urgent),
            snapshot: snapshots(config),
            retention,
            seen,
            clocks,
        };
        let tell = move |notice| match notice {
            // The operator gets it even after the event loop has ended.
            LedgerNotice::Warning(text) => warn(text),
            // A failed delivery means that the event loop has ended.
            notice => drop(mailbox.send(ReactorMessage::Notice(Notice::Ledger(notice)))),
        };
        let kept = match self.ledger {
            Ledger::Sqlite(db) => store::spawn(*db, duties, tell),
            #[cfg(feature = "redis")]
            Ledger::Remote(remote) => {
                let remote = Remote { server: remote.server.within(Bounds::SERVING) };
                shared::spawn(remote, duties, tell)
            }
        };
        kept.map_err(|error| format!("cannot start the ledger's thread: {}", explained(&error)))
    }
}
