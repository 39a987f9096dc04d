//! Owns a connection to a ledger in Redis or Valkey that several gateways share. Reads and writes its keys, one row per
//! request, sums by day, amounts used by keys, and reservations of hosts. Each decision or change that must be atomic
//! is one script (`scripts/*.lua`). Called by the shared store's thread and by the command line.
//!
//! **Cost of a crash.** Redis writes its append-only file before it answers, so a committed row survives the death of
//! the gateway and of Redis. The loss in a power cut depends on Redis' setting (`appendfsync`): a second by default.
//! Without an append-only file a restart of Redis loses the ledger; [`RemoteServer::warnings`] reports that.
//!
//! Names begin with `tollgate:`, in a cluster with `{tollgate}:`. `epoch` (identifies the ledger) and `epoch:<epoch>`,
//! `format`, `keys` (id to record), `keys:version` (counts their changes), `keys:audit` (a line for each change, the
//! newest first), `keys:created` (ids by creation), `keys:once:<name>` (answers), `secret:attribution` (key that users
//! are hashed with), `rows` (a stream, an entry of many rows for each commit), `day:<day>` (sums), `who:<day>` (sums
//! by user and session), `folded:<day>` (sums of rows folded away), `host:<host>` (its lease), `groups` (names of
//! accounts). The account of a key is named by its id, that of a group by `@` and its name: `use:<account>` (tokens by
//! day), `cost:<account>` (nano-dollars by day), `live:<account>` (`4:<host>` running). A window or period of one is
//! `win:<account>/<span>:<start>:<end>`: `1` requests, `2` tokens, `3` nano-dollars, the latter two only if the sums
//! by day do not have them; `1:<host>` admitted and not confirmed, `2:<host>` and `3:<host>` reserved. A grant
//! reserves like a host, under its own name, and in a window `1:<grant>` requests; it is called in on the channel
//! `calls`. `clock` is the knowledge about the clocks of the writers, see `writer_clocks.rs`. `start:<host>` is the
//! last start of a host, by the name in its mark (`spill.rs`). `host:spared`, `host:<writer>` and `host:<former
//! host>o` exist after the ledger was away, see `spared.rs`; `alert:<subject>` and `alert:<subject>:claim` see
//! `alert_claims.rs`.

mod alert_claims;
mod audit;
mod calls;
mod changes;
mod code;
mod commands;
mod commit;
mod day_counters;
pub(super) mod epoch;
mod link;
mod nodes;
mod notes;
mod replicas;
mod resp;
mod server;
mod spared;
mod writer_clocks;

use super::api::{DayKey, DaySums, Lines, PeopleSums, Query, Renaming, StoreError, UsageLine};
use crate::base::digest::{hex, unhex};
use crate::base::time::Unix;
use crate::io::entropy::random;
use crate::policy::attribution::HashKey;
use crate::policy::keys::KeyId;
use crate::policy::ledger::{Ask, AskAnswer, Release, Use};
use crate::policy::meter::{Amount, Lease, LeasePart};
use crate::policy::plan::PATH_SEPARATOR;
use crate::policy::plan::caps::LimitSpan;
use crate::policy::row::Row;
use crate::policy::window::DAY_MS;
use day_counters::{add_day, add_who};
pub use link::Bounds;
use resp::{RedisCommand, text};
pub use server::RemoteServer;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Time that the counts of a window are kept in a shared ledger after its end, for requests still running.
const WINDOW_KEPT: Duration = Duration::from_secs(3600);

/// Version of the format described above.
const FORMAT: &str = "1";

/// Shared ledger.
pub struct Remote {
    /// Server that has it.
    pub server: RemoteServer,
}

/// RedisCommand in a pipeline.
pub enum RemoteCommand<'a> {
    /// A question.
    Ask(&'a Ask),
    /// Leases without a row.
    Release(&'a [Release]),
    /// A batch of rows under its number, after the uses of grants.
    Rows(u64, &'a [Row], &'a [Use]),
    /// A grant, by its number, is no longer used.
    Return(u64),
}

/// Outcome of one command.
#[derive(Clone, PartialEq, Debug)]
pub enum Done {
    /// The answer.
    Answer(AskAnswer),
    /// Done.
    Done,
    /// Done, but the host's lease has ended: it must announce itself again.
    Ended,
    /// The ledger has unreadable counts of this key, so there is no answer. Other requests are not affected.
    Unanswered(Ask),
    /// The ledger had these rows already, from an earlier attempt. Their leases have not been given back now.
    Before,
    /// The server came to the question too late, and changed nothing. It can be asked again under a new name.
    Late,
}

/// Running requests of one host, by what they count in.
pub type Holds = BTreeMap<LeasePlace, Holding>;

/// Running requests that count in one place.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Holding {
    /// Sum of their reservations.
    pub reserved: Amount,
    /// Their number.
    pub running: u64,
    /// Number of them that the ledger has admitted, and that the host has not confirmed yet ([`Use::Served`]).
    pub asked: u64,
}

/// Part of the leases of a key or a group.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct LeasePlace {
    /// The key; `None` for a group.
    pub key: Option<KeyId>,
    /// See [`LeasePart::account`].
    pub account: Arc<str>,
    /// See [`LeasePart::bounds`].
    pub bounds: (Unix, Unix),
}

impl LeasePlace {
    /// LeasePlace of a part of a lease of `key`.
    pub fn of(key: &KeyId, part: &LeasePart) -> LeasePlace {
        let key = part.group().is_empty().then_some(*key);
        LeasePlace { key, account: part.account.clone(), bounds: part.bounds }
    }

    /// Name of the key or group in names of counters, and of the span.
    fn names(&self) -> (String, &str) {
        let (group, span) = self.account.split_once(PATH_SEPARATOR).unwrap_or((&self.account, ""));
        (self.key.map_or_else(|| format!("@{group}"), |key| key.to_string()), span)
    }

    /// Name of the hash of its counters.
    pub fn hash(&self) -> String {
        let ((owner, span), (start, end)) = (self.names(), self.bounds);
        format!("win:{owner}/{span}:{}:{}", start.0, end.0)
    }

    /// Name of the hash of the running requests of its key or group.
    pub fn running(&self) -> String {
        format!("live:{}", self.names().0)
    }

    /// True for the first place of a key or a group, in which every request of it counts once.
    pub fn is_first(&self) -> bool {
        self.names().1 == LimitSpan::PERIOD
    }

    /// True if the sums by day are its tokens and money.
    fn is_sum_of_days(&self) -> bool {
        let is_midnight = |at: Unix| at.0.is_multiple_of(DAY_MS);
        !self.account.contains(':') && is_midnight(self.bounds.0) && is_midnight(self.bounds.1)
    }

    /// Time for which its counts are kept after a write, in milliseconds: until hardly any request admitted in it is
    /// still running.
    fn kept(&self) -> u64 {
        let (start, end) = self.bounds;
        end.0.saturating_sub(start.0).saturating_add(WINDOW_KEPT.as_millis() as u64)
    }
}

/// Returns the places that a lease of `key` counts in.
pub fn places(key: &KeyId, lease: &Lease) -> impl Iterator<Item = LeasePlace> {
    lease.parts.iter().map(|part| LeasePlace::of(key, part))
}

/// Names of the sender: the host's present name for its reservations, and the writer's lasting name for its batches.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Speaker {
    /// Present name of the host: letters and digits.
    pub host: String,
    /// Lasting name of the writer: letters and digits.
    pub writer: String,
}

impl Remote {
    /// Returns the key that users and conversations are hashed with, made by the first host.
    pub fn hash_key(&mut self) -> Result<HashKey, StoreError> {
        let random = random::<32>().map_err(|error| StoreError::Shared(self.server.name.clone(), error.to_string()))?;
        let name = self.server.named("secret:attribution");
        self.server.query(RedisCommand::new("SET").arg(&name).arg(hex(&random)).arg("NX"))?;
        let found = self.server.query(RedisCommand::new("GET").arg(&name))?;
        text(&found).and_then(unhex).map(HashKey).ok_or_else(|| self.server.nonsense())
    }

    /// Returns the usage report; see `Ledger::usage`.
    pub fn usage(&mut self, query: &Query, renaming: Option<Renaming<'_>>) -> Result<Vec<UsageLine>, StoreError> {
        let who = query.who().map_err(|why| StoreError::Shared(self.server.name.clone(), why.to_string()))?;
        let (first, beyond) = query.days();
        let days = self.server.days("days")?;
        let (mut lines, mut people, mut totals) = (Lines::default(), PeopleSums::new(), DaySums::new());
        for day in days.into_iter().filter(|day| (first..beyond).contains(day)) {
            let mut sums = DaySums::new();
            add_day(&mut sums, day, self.server.hash(&format!("day:{day}"))?);
            if who.is_none() {
                query.report(&mut lines, &sums, renaming);
                continue;
            }
            add_who(&mut people, day, self.server.hash(&format!("who:{day}"))?);
            let total = totals.entry(DayKey { day, ..DayKey::default() }).or_default();
            for sums in sums.values() {
                total.iter_mut().zip(sums).for_each(|(total, more)| *total += more);
            }
        }
        who.map_or_else(|| query.sorted(lines), |who| query.report_people(who, &people, &totals))
    }
}

/// Channel on which grants are called in.
const CALLS: &str = "calls";

/// Name under which a writer's grant reserves; see `admit.lua` for the "g".
fn grant_name(writer: &str, number: u64) -> String {
    format!("{writer}g{number}")
}

/// True if a script has met an entry of the wrong type.
fn is_wrong_type(error: &str) -> bool {
    // Errors about the type of an entry, the text in one of its fields, and arithmetic on that text.
    ["WRONGTYPE", "is not an integer", "attempt to "].iter().any(|part| error.contains(part))
}
