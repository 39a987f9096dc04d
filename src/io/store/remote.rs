//! Owns a connection to a ledger in Redis or Valkey that several gateways share, and everything that is read and
//! written there: keys, one row per request, sums by day, what keys have used and what hosts hold. Whatever must be
//! decided or changed at once is one script (`scripts/*.lua`). Called by the shared store's thread and by the command
//! line.
//!
//! **What a crash costs.** Redis writes its append-only file before it answers, so a committed row survives the death
//! of the gateway and of Redis. What a power cut costs is Redis' setting (`appendfsync`): a second by default. Without
//! an append-only file a restart of Redis loses the ledger; [`Remote::warnings`] says so.
//!
//! Names begin with `tollgate:`. `keys` (id to record), `rows` (a stream), `day:<day>` (sums), `folded:<day>` (sums of
//! rows folded away), `use:<key>` (tokens by day), `win:<key>:<start>:<end>` (a window: `q` requests, `t` tokens,
//! `r:<host>` reserved), `live:<key>` (`n:<host>` running, `r:<host>:<period>` reserved), `host:<host>` (its lease).

mod audit;

use super::api::{By, DaySums, StoreError, UsageLine};
use super::counters::{add_day, place_text, sums_of};
use super::keyform::{record_from, record_text};
use crate::base::limits;
use crate::base::order;
use crate::base::time::Unix;
use crate::io::clock::Clock;
use crate::io::files;
use crate::policy::ask::{Answer, Ask, Release, Ruling};
use crate::policy::keys::{KeyId, KeyRecord};
use crate::policy::meter::{Lease, LimitKind, SharedCounts};
use crate::policy::row::Row;
use crate::policy::window::{self, DAY_MS};
use redis::{Cmd, Connection, ConnectionLike, Pipeline, RedisError, RedisResult, ServerError, TlsCertificates, Value};
use std::collections::BTreeMap;
use std::error::Error;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// What every name begins with.
const PREFIX: &str = "tollgate:";
/// Version of all that is described above.
const FORMAT: &str = "1";

const ADMIT: usize = 0;
const APPEND: usize = 1;
const RELEASE: usize = 2;
const ANNOUNCE: usize = 3;
const EDIT: usize = 4;
const FOLD: usize = 5;
const SNAPSHOT: usize = 6;
const SCRIPTS: [&str; 7] = [
    include_str!("scripts/admit.lua"),
    include_str!("scripts/append.lua"),
    include_str!("scripts/release.lua"),
    include_str!("scripts/announce.lua"),
    include_str!("scripts/edit.lua"),
    include_str!("scripts/fold.lua"),
    include_str!("scripts/snapshot.lua"),
];

/// A shared ledger. Connects when it is first used and again after a failure.
pub struct Remote {
    client: redis::Client,
    connection: Option<Connection>,
    /// The URL without its password.
    name: String,
    /// SHA-1 of the scripts, by which the server knows them.
    hashes: [String; SCRIPTS.len()],
    /// What was passed over because it is not what it should be, as texts for an operator; see [`Remote::take_odd`].
    odd: Vec<String>,
    clock: Clock,
}

/// One thing of many that are sent in one go.
pub enum Command<'a> {
    /// A question.
    Ask(&'a Ask),
    /// Leases without a row.
    Release(&'a [Release]),
    /// A batch of rows under its number.
    Rows(u64, &'a [Row]),
}

/// What became of one command.
#[derive(Clone, PartialEq, Debug)]
pub enum Done {
    /// The answer.
    Answer(Answer),
    /// Done.
    Done,
    /// Done, but the host's lease has ended: it must announce itself again.
    Ended,
    /// The ledger has counts of this key that cannot be read, so there is no answer; others are not held up by it.
    Unanswered(Ask),
    /// These rows were there already, from an earlier try; what they were lent has not been given back now.
    Before,
}

/// Holds of one key with the same window and period: their sum and number.
pub type Holds = BTreeMap<(KeyId, (Unix, Unix), (Unix, Unix)), (u64, u64)>;

/// Who speaks: the host's present name for what it holds, and the writer's lasting one for its batches.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Speaker {
    /// Letters and digits.
    pub host: String,
    /// Letters and digits.
    pub writer: String,
}

impl Remote {
    /// Reads the URL; connects later. `ca_file` are authorities in PEM for `rediss://`, instead of the public ones.
    /// `name` is the URL as it may be shown.
    pub fn new(url: &str, ca_file: Option<&Path>, name: String) -> Result<Remote, StoreError> {
        let failed = |why: String| StoreError::Shared(name.clone(), why);
        let client = match ca_file {
            None => redis::Client::open(url),
            Some(path) => {
                let pem = files::read(path).map_err(|error| StoreError::File(path.to_path_buf(), error))?;
                redis::Client::build_with_tls(url, TlsCertificates { client_tls: None, root_cert: Some(pem) })
            }
        };
        let client = client.map_err(|error| failed(error.to_string()))?;
        let hashes = SCRIPTS.map(|code| redis::Script::new(code).get_hash().to_string());
        Ok(Remote { client, connection: None, name, hashes, odd: Vec::new(), clock: Clock::new() })
    }

    /// Whether there is a connection, as far as is known.
    pub fn is_connected(&self) -> bool {
        self.connection.is_some()
    }

    /// Connects unless that is done; checks that this is a ledger of ours and makes the scripts known.
    pub fn connect(&mut self) -> Result<(), StoreError> {
        if self.connection.is_some() {
            return Ok(());
        }
        let open = || -> RedisResult<(Connection, String)> {
            let mut connection = self.client.get_connection_with_timeout(limits::SHARED_CONNECT)?;
            connection.set_read_timeout(Some(limits::SHARED_ANSWER))?;
            connection.set_write_timeout(Some(limits::SHARED_ANSWER))?;
            let mut pipe = redis::pipe();
            pipe.cmd("SET").arg(named("format")).arg(FORMAT).arg("NX").ignore();
            for code in SCRIPTS {
                pipe.cmd("SCRIPT").arg("LOAD").arg(code).ignore();
            }
            pipe.cmd("GET").arg(named("format"));
            let (format,): (String,) = pipe.query(&mut connection)?;
            Ok((connection, format))
        };
        let (connection, format) = open().map_err(|error| self.failed(&error))?;
        if format != FORMAT {
            let why = "this ledger was written by a newer version".to_string();
            return Err(StoreError::Shared(self.name.clone(), why));
        }
        self.connection = Some(connection);
        Ok(())
    }

    fn failed(&self, error: &RedisError) -> StoreError {
        if is_interrupted(error) {
            return StoreError::Interrupted(self.name.clone());
        }
        // The system's own words for it are "resource temporarily unavailable".
        let why = if error.is_timeout() { "no answer in time".to_string() } else { error.to_string() };
        StoreError::Shared(self.name.clone(), why)
    }

    /// Runs `call`, which does no harm when it is done twice, and again where it was interrupted: within the time that
    /// the ledger is given to answer, but once in any case, for a process may have been stopped for longer.
    fn run<T>(&mut self, mut call: impl FnMut(&mut Connection) -> RedisResult<T>) -> Result<T, StoreError> {
        let until = self.clock.mono().after(limits::SHARED_ANSWER);
        let mut done = self.run_once(&mut call);
        while matches!(done, Err(StoreError::Interrupted(_))) {
            let late = self.clock.mono() >= until;
            done = self.run_once(&mut call);
            if late {
                break;
            }
        }
        done
    }

    /// Runs `call` on the connection. After an error nothing is known of the connection, and it is given up.
    fn run_once<T>(&mut self, call: impl FnOnce(&mut Connection) -> RedisResult<T>) -> Result<T, StoreError> {
        self.connect()?;
        let Some(connection) = &mut self.connection else { return Err(self.lost()) };
        let done = call(connection);
        done.map_err(|error| {
            self.connection = None;
            self.failed(&error)
        })
    }

    /// What was passed over since this was called last. Each text names an entry of the ledger.
    pub fn take_odd(&mut self) -> Vec<String> {
        std::mem::take(&mut self.odd)
    }

    fn pass_over(&mut self, entry: impl std::fmt::Display, why: impl std::fmt::Display) {
        if self.odd.len() < limits::ODD_ENTRIES_MAX {
            self.odd.push(format!("{}: {entry} is passed over: {why}", self.name));
        }
    }

    /// The first number of what a script returns; what is behind it are names of counters that were passed over.
    fn read_done(&mut self, value: &Value) -> Option<u64> {
        let Value::Array(parts) = value else { return None };
        let (code, names) = parts.split_first()?;
        for name in names {
            if let Value::BulkString(name) = name {
                self.pass_over(String::from_utf8_lossy(name), "it is of the wrong type");
            }
        }
        integer(code)
    }

    fn lost(&self) -> StoreError {
        StoreError::Shared(self.name.clone(), "not connected".to_string())
    }

    /// A call of a script; `keys` are those that it names.
    fn script(&self, which: usize, keys: &[String]) -> Cmd {
        let mut cmd = redis::cmd("EVALSHA");
        cmd.arg(&self.hashes[which]).arg(keys.len()).arg(keys);
        cmd
    }

    /// What an operator should know of the server, once at the start.
    pub fn warnings(&mut self) -> Result<Vec<String>, StoreError> {
        self.connect()?;
        let Some(connection) = &mut self.connection else { return Err(self.lost()) };
        // A server that does not let us look is not warned of.
        let mut setting = |name: &str| -> Option<String> {
            let look: RedisResult<Vec<String>> = redis::cmd("CONFIG").arg("GET").arg(name).query(connection);
            look.ok()?.into_iter().nth(1)
        };
        let mut texts = Vec::new();
        if setting("appendonly").is_some_and(|value| value == "no") {
            let text = "the shared ledger has no append-only file (appendonly no): a restart of Redis loses it";
            texts.push(format!("{}: {text}", self.name));
        }
        if let Some(policy) = setting("maxmemory-policy").filter(|policy| policy != "noeviction") {
            let text = "the shared ledger may be evicted where memory is short";
            texts.push(format!("{}: {text} (maxmemory-policy {policy}): set noeviction", self.name));
        }
        Ok(texts)
    }

    /// All keys, also expired and revoked ones, in the order of their creation.
    pub fn list_keys(&mut self) -> Result<Vec<KeyRecord>, StoreError> {
        let all: Vec<(Vec<u8>, Vec<u8>)> =
            self.run(|connection| redis::cmd("HGETALL").arg(named("keys")).query(connection))?;
        let mut keys = Vec::with_capacity(all.len());
        for (id, text) in all {
            match std::str::from_utf8(&text).ok().and_then(record_from) {
                Some(record) => keys.push(record),
                None => self.pass_over(format!("key {:?}", String::from_utf8_lossy(&id)), "its record cannot be read"),
            }
        }
        let id = |key: &KeyRecord| key.id.text().iter().fold(0, |id, byte| id << 8 | u128::from(*byte));
        order::by_key(&mut keys, |key| (key.created.0, id(key)));
        Ok(keys)
    }

    /// The record of one key; `None` if there is no such key.
    pub fn find_key(&mut self, id: &KeyId) -> Result<Option<KeyRecord>, StoreError> {
        let found: Option<String> =
            self.run(|connection| redis::cmd("HGET").arg(named("keys")).arg(id.as_str()).query(connection))?;
        Ok(found.as_deref().and_then(record_from))
    }

    /// Counts the changes of the keys.
    pub fn version(&mut self) -> Result<i64, StoreError> {
        let version: Option<i64> =
            self.run(|connection| redis::cmd("GET").arg(named("keys:version")).query(connection))?;
        Ok(version.unwrap_or(0))
    }

    /// Stores a new key. A known id is an error.
    pub fn insert_key(&mut self, key: &KeyRecord) -> Result<(), StoreError> {
        match self.replace_key(&key.id, "", &record_text(key))? {
            true => Ok(()),
            false => Err(StoreError::Shared(self.name.clone(), format!("a key has the id {} already", key.id))),
        }
    }

    fn replace_key(&mut self, id: &KeyId, old: &str, new: &str) -> Result<bool, StoreError> {
        let mut cmd = self.script(EDIT, &[named("keys"), named("keys:version")]);
        cmd.arg(id.as_str()).arg(old).arg(new);
        if self.run(|connection| cmd.query(connection))? {
            return Ok(true);
        }
        // An interrupted try may have stored it.
        let found: Option<String> =
            self.run(|connection| redis::cmd("HGET").arg(named("keys")).arg(id.as_str()).query(connection))?;
        Ok(found.as_deref() == Some(new))
    }

    /// Lets `change` edit the record of a key, again if another process came in between. See `Ledger::edit_key`.
    pub fn edit_key<E>(
        &mut self,
        id: &KeyId,
        mut change: impl FnMut(&mut KeyRecord) -> Result<(), E>,
    ) -> Result<Option<Result<KeyRecord, E>>, StoreError> {
        for _ in 0..limits::EDIT_TRIES {
            let found: Option<String> =
                self.run(|connection| redis::cmd("HGET").arg(named("keys")).arg(id.as_str()).query(connection))?;
            let Some(old) = found else { return Ok(None) };
            let Some(mut key) = record_from(&old) else {
                return Err(StoreError::Shared(self.name.clone(), format!("the record of key {id} cannot be read")));
            };
            if let Err(refused) = change(&mut key) {
                return Ok(Some(Err(refused)));
            }
            if self.replace_key(id, &old, &record_text(&key))? {
                return Ok(Some(Ok(key)));
            }
        }
        Err(StoreError::Shared(self.name.clone(), format!("key {id} is being changed by others")))
    }

    /// Revokes a key from `at` on. False if there is no such key or it was revoked before.
    pub fn revoke(&mut self, id: &KeyId, at: Unix) -> Result<bool, StoreError> {
        let edited = self.edit_key(id, |key| match key.revoked {
            Some(_) => Err(()),
            None => {
                key.revoked = Some(at);
                Ok(())
            }
        })?;
        Ok(edited.is_some_and(|edited| edited.is_ok()))
    }

    /// Comes under `speaker.host`, holding `holds`; what was held under `old` ends. See the script.
    pub fn announce(&mut self, speaker: &Speaker, old: &str, holds: &Holds) -> Result<(), StoreError> {
        let mut cmd = self.script(ANNOUNCE, &[named("wins")]);
        cmd.arg(PREFIX).arg(&speaker.host).arg(old).arg(limits::LEASE.as_millis() as u64);
        for ((key, window, period), (reserved, count)) in holds {
            cmd.arg(key.as_str()).arg(window_part(*window)).arg(kept(*window)).arg(period.0.0);
            cmd.arg(*reserved).arg(*count);
        }
        let done: Value = self.run(|connection| cmd.query(connection))?;
        self.read_done(&done);
        Ok(())
    }

    /// Makes the host's lease last from now on. False if it has ended.
    pub fn renew(&mut self, speaker: &Speaker) -> Result<bool, StoreError> {
        let name = format!("{PREFIX}host:{}", speaker.host);
        let length = limits::LEASE.as_millis() as u64;
        self.run(|connection| redis::cmd("PEXPIRE").arg(&name).arg(length).query(connection))
    }

    /// Ends the host's lease, and with it all that it holds.
    pub fn leave(&mut self, speaker: &Speaker) -> Result<(), StoreError> {
        let name = format!("{PREFIX}host:{}", speaker.host);
        self.run(|connection| redis::cmd("DEL").arg(&name).query(connection))
    }

    /// Sends commands in one go and gives what became of each. After an error nothing is known of any of them: rows
    /// are sent again under the same number, everything else was held under a name that is given up.
    pub fn send(&mut self, speaker: &Speaker, commands: &[Command<'_>]) -> Result<Vec<Done>, StoreError> {
        let mut pipe = Pipeline::with_capacity(commands.len());
        for command in commands {
            pipe.add_command(match command {
                Command::Ask(ask) => self.ask_command(speaker, ask),
                Command::Release(releases) => self.release_command(speaker, releases),
                Command::Rows(number, rows) => self.rows_command(speaker, *number, rows),
            });
        }
        let (bytes, count) = (pipe.get_packed_pipeline(), commands.len());
        let answers = self.run_once(|connection| connection.req_packed_commands(&bytes, 0, count))?;
        let mut done = Vec::with_capacity(count);
        for (command, answer) in commands.iter().zip(answers) {
            done.push(self.read_answer(command, answer).inspect_err(|_| self.connection = None)?);
        }
        if done.len() < count {
            self.connection = None;
            return Err(self.nonsense());
        }
        Ok(done)
    }

    fn read_answer(&mut self, command: &Command<'_>, answer: Value) -> Result<Done, StoreError> {
        match (command, answer) {
            (Command::Ask(ask), Value::ServerError(error)) if is_wrong_type(&error) => {
                self.pass_over(format_args!("what is counted for key {}", ask.key), error);
                Ok(Done::Unanswered(**ask))
            }
            (_, Value::ServerError(error)) => Err(self.failed(&error.into())),
            (Command::Ask(ask), answer) => read_ruling(ask, &answer).map(Done::Answer).ok_or_else(|| self.nonsense()),
            (_, answer) => match self.read_done(&answer) {
                Some(0) => Ok(Done::Ended),
                Some(1) => Ok(Done::Done),
                Some(2) => Ok(Done::Before),
                _ => Err(self.nonsense()),
            },
        }
    }

    fn nonsense(&self) -> StoreError {
        StoreError::Shared(self.name.clone(), "an answer that makes no sense".to_string())
    }

    fn ask_command(&self, speaker: &Speaker, ask: &Ask) -> Cmd {
        let (key, lease) = (ask.key.as_str(), &ask.lease);
        let window = format!("{PREFIX}win:{key}:{}", window_part(lease.window));
        let keys = [named(&format!("live:{key}")), named(&format!("use:{key}")), window, named("wins")];
        let mut cmd = self.script(ADMIT, &keys);
        let limits = ask.limits.unwrap_or_default();
        let first = lease.period.0.0 / DAY_MS;
        cmd.arg(&speaker.host).arg(format!("{PREFIX}host:")).arg(lease.reserved);
        cmd.arg(limits.tokens).arg(limits.requests).arg(limits.tokens_per_window).arg(limits.concurrency);
        cmd.arg(kept(lease.window)).arg(lease.period.0.0).arg(first);
        cmd.arg((lease.period.1.0 / DAY_MS).saturating_sub(first).clamp(1, 31)).arg(u8::from(ask.limits.is_some()));
        cmd
    }

    fn release_command(&self, speaker: &Speaker, releases: &[Release]) -> Cmd {
        let mut cmd = self.script(RELEASE, &[]);
        cmd.arg(PREFIX).arg(&speaker.host);
        for Release { key, lease } in releases {
            cmd.arg(key.as_str()).arg(window_part(lease.window)).arg(lease.period.0.0).arg(lease.reserved);
        }
        cmd
    }

    fn rows_command(&self, speaker: &Speaker, number: u64, rows: &[Row]) -> Cmd {
        let keys = [format!("{PREFIX}seq:{}", speaker.writer), named("rows"), named("days"), named("wins")];
        let mut cmd = self.script(APPEND, &keys);
        cmd.arg(PREFIX).arg(number).arg(&speaker.host);
        for row in rows {
            let (sums, Lease { window, period, reserved, shared }) =
                (sums_of(row), row.lease.as_deref().copied().unwrap_or_default());
            // Text and numbers alone: this cannot fail.
            cmd.arg(serde_json::to_string(row).unwrap_or_default())
                .arg(row.key.as_str())
                .arg(row.admitted.0 / DAY_MS)
                .arg(place_text(row));
            cmd.arg(&sums[..]).arg(sums[1..5].iter().sum::<u64>()).arg(window_part(window)).arg(kept(window));
            cmd.arg(period.0.0).arg(reserved).arg(u8::from(shared));
        }
        cmd
    }

    /// The usage report; see `Ledger::usage`.
    pub fn usage(&mut self, by: By, since: Option<Unix>, until: Option<Unix>) -> Result<Vec<UsageLine>, StoreError> {
        let first = since.map_or(0, |at| at.0 / DAY_MS);
        let beyond = until.map_or(u64::MAX, |at| at.0.div_ceil(DAY_MS));
        let days: Vec<u64> =
            self.run(|connection| redis::cmd("ZRANGE").arg(named("days")).arg(0).arg(-1).query(connection))?;
        let mut sums = DaySums::new();
        for day in days.into_iter().filter(|day| (first..beyond).contains(day)) {
            let hash: Vec<(String, u64)> =
                self.run(|connection| redis::cmd("HGETALL").arg(format!("{PREFIX}day:{day}")).query(connection))?;
            add_day(&mut sums, day, hash);
        }
        Ok(report(by, &sums))
    }
}

/// Sums by what a report is broken down by, in the order of `Ledger::usage`.
fn report(by: By, sums: &DaySums) -> Vec<UsageLine> {
    let mut lines: BTreeMap<String, UsageLine> = BTreeMap::new();
    for (place, [requests, uncached_in, cache_read, cache_write, out, cost_nano]) in sums {
        let name = match by {
            By::Key => place.key.clone(),
            By::Model => place.model.clone(),
            By::Target => place.target.clone(),
            By::Day => window::date(Unix(place.day * DAY_MS)),
        };
        let line = lines.entry(name.clone()).or_insert_with(|| UsageLine { name, ..UsageLine::default() });
        line.requests += requests;
        line.last = line.last.max(Some(Unix(place.day * DAY_MS)));
        line.uncached_in += uncached_in;
        line.cache_read += cache_read;
        line.cache_write += cache_write;
        line.out += out;
        line.cost_nano += cost_nano;
    }
    let mut lines: Vec<UsageLine> = lines.into_values().collect();
    if by != By::Day {
        order::by_key(&mut lines, |line| (u64::MAX - line.cost_nano, u128::from(u64::MAX - line.out)));
    }
    lines
}

fn named(rest: &str) -> String {
    format!("{PREFIX}{rest}")
}

fn window_part((start, end): (Unix, Unix)) -> String {
    format!("{}:{}", start.0, end.0)
}

/// How long the counts of a window are kept once they are written, in milliseconds: until nothing that was admitted in
/// it runs any more, or hardly.
fn kept((start, end): (Unix, Unix)) -> u64 {
    end.0.saturating_sub(start.0).saturating_add(limits::WINDOW_KEPT.as_millis() as u64)
}

/// Whether this process was stopped and continued while it waited.
fn is_interrupted(error: &RedisError) -> bool {
    type Shared = Arc<dyn Error + Send + Sync>;
    let source = error.source().and_then(|source| source.downcast_ref::<Shared>());
    let inner = source.and_then(|source| source.downcast_ref::<io::Error>());
    inner.is_some_and(|error| error.kind() == io::ErrorKind::Interrupted)
}

/// Whether a script has met an entry that holds something else than it should.
fn is_wrong_type(error: &ServerError) -> bool {
    let text = error.to_string();
    // The type of an entry, the text in a field of it, and what arithmetic makes of that text.
    ["WRONGTYPE", "is not an integer", "attempt to "].iter().any(|part| text.contains(part))
}

fn integer(value: &Value) -> Option<u64> {
    match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        _ => None,
    }
}

/// Reads what the admitting script returns.
fn read_ruling(ask: &Ask, value: &Value) -> Option<Answer> {
    let Value::Array(parts) = value else { return None };
    let parts: Vec<u64> = parts.iter().map(integer).collect::<Option<_>>()?;
    let [code, requests, window_used, period_used] = parts.try_into().ok()?;
    let ruling = match code {
        0 => Ruling::Admitted,
        1 => Ruling::Refused(LimitKind::TokensPerPeriod),
        2 => Ruling::Refused(LimitKind::Requests),
        3 => Ruling::Refused(LimitKind::TokensPerWindow),
        4 => Ruling::Refused(LimitKind::Concurrency),
        5 => Ruling::Looked,
        9 => Ruling::Unavailable,
        _ => return None,
    };
    let (window, period) = (ask.lease.window, ask.lease.period);
    Some(Answer { ask: *ask, ruling, counts: SharedCounts { window, requests, window_used, period, period_used } })
}
