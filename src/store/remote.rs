//! Owns a connection to a ledger in Redis or Valkey that several gateways share. Reads and writes its keys, one row per
//! request, sums by day, amounts used by keys, and reservations of hosts. Each decision or change that must be atomic
//! is one script (`scripts/*.lua`). Called by the shared store's thread and by the command line.
//!
//! **Cost of a crash.** Redis writes its append-only file before it answers, so a committed row survives the death of
//! the gateway and of Redis. The loss in a power cut depends on Redis' setting (`appendfsync`): a second by default.
//! Without an append-only file a restart of Redis loses the ledger; [`Remote::warnings`] reports that.
//!
//! Names begin with `tollgate:`, in a cluster with `{tollgate}:`. `epoch` (identifies the ledger) and `epoch:<epoch>`,
//! `format`, `keys` (id to record), `keys:version` (counts their changes), `keys:audit` (a line for each change, the
//! newest first), `keys:created` (ids by creation), `keys:once:<name>` (answers), `secret:attribution` (key that users
//! are hashed with), `rows` (a stream, an entry of many rows for each commit), `day:<day>` (sums), `who:<day>` (sums by
//! user and session), `folded:<day>` (sums of rows folded away), `host:<host>` (its lease), `groups` (names of
//! accounts). The account of a key is named by its id, that of a group by `@` and its name: `use:<account>` (tokens by
//! day), `cost:<account>` (nano-dollars by day), `win:<account>:<start>:<end>` (a window: `q` requests, `t` tokens,
//! `q:<host>` admitted and not confirmed, `r:<host>` reserved), `live:<account>` (`n:<host>` running,
//! `r:<host>:<period>` tokens reserved), `due:<account>` (the same for nano-dollars). A grant reserves like a host,
//! under its own name, and in a window `q:<grant>` requests; it is called in on the channel `calls`. `clock` is the
//! knowledge about the clocks of the writers, see `moments.rs`. `start:<host>` is the last start of a host, by the name
//! in its mark (`spill.rs`). `host:spared`, `host:<writer>` and `host:<former host>o` exist after the ledger was away,
//! see `spared.rs`; `alerts`, `alert:<subject>` and `alert:<subject>:claim` see `alerts.rs`.

mod alerts;
mod audit;
mod calls;
mod changes;
mod code;
mod commit;
pub(super) mod epoch;
mod link;
mod moments;
mod nodes;
mod notes;
mod replicas;
mod spared;
mod values;

use super::api::{DayKey, DaySums, Lines, PeopleSums, Query, Renaming, StoreError, UsageLine};
use super::counters::{add_day, add_who};
use super::keyform::record_from;
use crate::base::digest::{hex, unhex};
use crate::base::limits;
use crate::base::time::{Mono, Unix};
use crate::io::clock::{self, Clock};
use crate::policy::ask::{Ask, AskAnswer, Grant, Release, Ruling, Use, Wish};
use crate::policy::attribution::HashKey;
use crate::policy::keys::{KeyId, KeyRecord};
use crate::policy::meter::{Amount, GroupLease, Lease, LimitKind, LimitReason, SharedCounts};
use crate::policy::row::Row;
use crate::policy::window::DAY_MS;
pub use alerts::AlertTurn;
pub use link::Bounds;
use link::RemoteLink;
use nodes::Nodes;
use redis::{Cmd, ConnectionLike, FromRedisValue, Pipeline, RedisError, RedisResult, ServerError, Value};
use ring::rand::{SecureRandom, SystemRandom};
use spared::Spared;
use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use values::{integer, list, text};

/// Version of the format described above. In version 1, counters of days were not separated by group, endpoint and
/// client; these counters stay unchanged. In version 2 there was no epoch, and one entry for each row.
const FORMAT: &str = "3";
/// Earlier versions, which this one converts to its own.
const FORMERS: [&str; 2] = ["1", "2"];

/// Code in the result of the admitting script: the server came to the question too late.
const LATE: u64 = 8;

const ADMIT: usize = 0;
const APPEND: usize = 1;
const RELEASE: usize = 2;
const ANNOUNCE: usize = 3;
const EDIT: usize = 4;
const FOLD: usize = 5;
const SNAPSHOT: usize = 6;
const CHANGES: usize = 7;
/// Shared ledger. Connects at its first use, and again after a failure.
pub struct Remote {
    nodes: Nodes,
    connection: Option<RemoteLink>,
    /// The URL without its password.
    name: String,
    /// Epoch of the ledger, once found.
    epoch: Option<String>,
    /// SHA-1 of the scripts, by which the server identifies them.
    hashes: Vec<String>,
    spared: Spared,
    /// Descriptions of skipped malformed entries, for the operator; taken by `take_odd`.
    odd: Vec<String>,
    clock: Clock,
    /// Number of replicas that must have each write.
    replicas: u32,
}

/// Command in a pipeline.
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

/// Running requests of one host, by account, window and period.
pub type Holds = BTreeMap<AccountSpans, Holding>;

/// Running requests of one account, window and period.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Holding {
    /// Sum of their reservations.
    pub reserved: Amount,
    /// Their number.
    pub running: u64,
    /// Number of them that the ledger has admitted, and that the host has not confirmed yet ([`Use::Served`]).
    pub asked: u64,
}

/// An account, a window and a period.
type AccountSpans = (Account, (Unix, Unix), (Unix, Unix));

/// Account that amounts are counted in. Its text form is the end of names.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Account {
    /// Account of a key.
    Key(KeyId),
    /// Account of a group.
    Group(Arc<str>),
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Account::Key(id) => f.write_str(id.as_str()),
            Account::Group(name) => write!(f, "@{name}"),
        }
    }
}

/// Returns the accounts that a lease counts in: its key first, then the groups above it.
pub fn accounts(key: &KeyId, lease: &Lease) -> impl Iterator<Item = AccountSpans> {
    let group = |group: &GroupLease| (Account::Group(group.name.clone()), group.window, group.period);
    std::iter::once((Account::Key(*key), lease.window, lease.period)).chain(lease.groups.iter().map(group))
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
    /// Reads the URL; connects later. `ca_file` contains authorities in PEM for `rediss://`, instead of the public
    /// ones. `name` is the URL as it may be shown.
    pub fn new(url: &str, ca_file: Option<&Path>, name: String) -> Result<Remote, StoreError> {
        let failed = |why: String| StoreError::Shared(name.clone(), why);
        let nodes = Nodes::new(url, ca_file).map_err(|error| failed(error.to_string()))?;
        let hash = |code: &String| redis::Script::new(code).get_hash().to_string();
        let hashes = code::scripts(nodes.is_cluster()).iter().map(hash).collect();
        Ok(Remote {
            nodes,
            connection: None,
            name,
            epoch: None,
            hashes,
            odd: Vec::new(),
            clock: Clock::new(),
            spared: Spared::default(),
            replicas: 0,
        })
    }

    /// Sets the bounds of its connections, also of a present one. The default is the bounds of commands.
    pub fn within(mut self, bounds: Bounds) -> Remote {
        self.nodes.bounds = bounds;
        self.connection.iter_mut().for_each(|link| link.bounds = bounds);
        self
    }

    /// True if there is a connection, as far as this host knows.
    pub fn is_connected(&self) -> bool {
        self.connection.is_some()
    }

    /// Epoch of the ledger, once found.
    pub fn epoch(&self) -> Option<&str> {
        self.epoch.as_deref()
    }

    /// Connects unless connected. Returns an error if the ledger is not the one known before.
    pub fn connect(&mut self) -> Result<(), StoreError> {
        self.until_heard(|remote| remote.connect_to(false))
    }

    fn failed(&mut self, error: &RedisError) -> StoreError {
        let is_same = is_interrupted(error) || error.code() == Some("NOSCRIPT");
        if !is_same {
            self.spared.broke(self.clock.mono());
        }
        // Another node has the ledger, or the server has lost the scripts: connecting again is enough.
        if is_same || self.nodes.follow(error) {
            return StoreError::Interrupted(self.name.clone());
        }
        let why = match error.code() {
            Some("EPOCH") => return self.replaced(),
            Some("TRYAGAIN" | "ASK") => "it is being moved to another node of the cluster",
            Some("MOVED" | "CROSSSLOT") => {
                "a node of a cluster, whose URL begins with redis+cluster:// or rediss+cluster://"
            }
            // The system's own text is "resource temporarily unavailable".
            _ if error.is_timeout() => "no answer in time",
            _ => return StoreError::Shared(self.name.clone(), error.to_string()),
        };
        StoreError::Shared(self.name.clone(), why.to_string())
    }

    /// Does `call`, which must be harmless if done twice. Repeats it if it was interrupted, within the ledger's time to
    /// answer, but at least once, because a process may have been stopped for longer.
    fn until_heard<T>(&mut self, mut call: impl FnMut(&mut Remote) -> Result<T, StoreError>) -> Result<T, StoreError> {
        let until = self.clock.mono().after(self.nodes.bounds.answer);
        let mut done = call(self);
        while matches!(done, Err(StoreError::Interrupted(_))) {
            let late = self.clock.mono() >= until;
            done = call(self);
            if late {
                break;
            }
        }
        done
    }

    fn run<T>(&mut self, mut call: impl FnMut(&mut RemoteLink) -> RedisResult<T>) -> Result<T, StoreError> {
        self.until_heard(|remote| remote.run_once(&mut call))
    }

    /// Returns the server's answer to a command that is harmless if sent twice.
    fn query<T: FromRedisValue>(&mut self, cmd: &Cmd) -> Result<T, StoreError> {
        self.run(|connection| cmd.query(connection))
    }

    /// Runs `call` on the connection. After an error the connection's state is unknown, and it is dropped.
    fn run_once<T>(&mut self, call: impl FnOnce(&mut RemoteLink) -> RedisResult<T>) -> Result<T, StoreError> {
        self.connect_to(false)?;
        let Some(connection) = &mut self.connection else { return Err(self.lost()) };
        let done = call(connection);
        done.map_err(|error| {
            self.connection = None;
            self.failed(&error)
        })
    }

    fn pass_over(&mut self, entry: impl std::fmt::Display, why: impl std::fmt::Display) {
        if self.odd.len() < limits::ODD_ENTRIES_MAX {
            self.odd.push(format!("{}: {entry} is passed over: {why}", self.name));
        }
    }

    /// Returns the first number of a script's result. The other elements are names of counters that were skipped.
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

    fn named(&self, rest: &str) -> String {
        [self.nodes.prefix(), rest].concat()
    }

    fn lost(&self) -> StoreError {
        StoreError::Shared(self.name.clone(), "not connected".to_string())
    }

    /// Creates a call of a script on the known ledger. `keys` are the keys that it accesses.
    fn script(&self, which: usize, keys: &[String]) -> Cmd {
        let (mut cmd, never) = (redis::cmd("EVALSHA"), self.nodes.never());
        cmd.arg(&self.hashes[which]).arg(keys.len() + 1 + usize::from(never.is_some()));
        cmd.arg(keys).arg(self.mark()).arg(never);
        cmd
    }

    /// Returns warnings for the operator about the server, once at the start.
    pub fn warnings(&mut self) -> Result<Vec<String>, StoreError> {
        self.connect()?;
        let Some(connection) = &mut self.connection else { return Err(self.lost()) };
        // There are no warnings about a server that does not permit CONFIG.
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

    /// Returns the records of these keys that exist.
    pub fn find_keys(&mut self, ids: &[KeyId]) -> Result<Vec<KeyRecord>, StoreError> {
        let mut cmd = redis::cmd("HMGET");
        cmd.arg(self.named("keys"));
        ids.iter().for_each(|id| _ = cmd.arg(id.as_str()));
        let found = self.read(&cmd)?;
        Ok(list(&found).iter().filter_map(text).filter_map(record_from).collect())
    }

    /// Returns the key that users and conversations are hashed with, made by the first host.
    pub fn hash_key(&mut self) -> Result<HashKey, StoreError> {
        let mut random = [0u8; 32];
        let filled = SystemRandom::new().fill(&mut random);
        filled.map_err(|_| StoreError::Shared(self.name.clone(), "no entropy is available".to_string()))?;
        let name = self.named("secret:attribution");
        let mut pipe = redis::pipe();
        pipe.cmd("SET").arg(&name).arg(hex(&random)).arg("NX").ignore().cmd("GET").arg(&name);
        let (text,): (String,) = self.run(|connection| pipe.query(connection))?;
        unhex(&text).map(HashKey).ok_or_else(|| self.nonsense())
    }

    /// Announces the host as `speaker.host` with its reservations. Ends the reservations under its former names `old`,
    /// which are separated by spaces. See the script.
    pub fn announce(&mut self, speaker: &Speaker, old: &str, holds: &Holds) -> Result<(), StoreError> {
        self.connect()?;
        self.spare(speaker)?;
        let mut cmd = self.script(ANNOUNCE, &[self.named("wins")]);
        cmd.arg(self.nodes.prefix()).arg(&speaker.host).arg(old).arg(limits::LEASE.as_millis() as u64);
        for ((account, window, period), Holding { reserved, running, asked }) in holds {
            cmd.arg(account.to_string()).arg(window_part(*window)).arg(kept(*window)).arg(period.0.0);
            cmd.arg(reserved.tokens).arg(*running).arg(reserved.nano).arg(*asked);
        }
        let done: Value = self.query(&cmd)?;
        self.read_done(&done);
        self.replicated()
    }

    /// Renews the host's lease. False if it has ended.
    pub fn renew(&mut self, speaker: &Speaker) -> Result<bool, StoreError> {
        let name = self.named("host:") + &speaker.host;
        let length = limits::LEASE.as_millis() as u64;
        self.query(redis::cmd("PEXPIRE").arg(&name).arg(length))
    }

    /// Ends the host's lease and all its reservations.
    pub fn leave(&mut self, speaker: &Speaker) -> Result<(), StoreError> {
        let name = self.named("host:") + &speaker.host;
        self.query(redis::cmd("DEL").arg(&name))
    }

    /// Sends commands in one pipeline and returns the outcome of each, of at least one not [`Done::Late`]. After an
    /// error the outcomes are unknown: rows are sent again under the same number; all other reservations end with the
    /// host's name, which is not used again.
    pub fn send(&mut self, speaker: &Speaker, commands: &[RemoteCommand<'_>]) -> Result<Vec<Done>, StoreError> {
        self.connect()?;
        let (mut pipe, mut before) = (Pipeline::with_capacity(commands.len()), 0);
        let late = clock::unix().0.saturating_add(limits::ASK_FRESH.as_millis() as u64);
        for command in commands {
            pipe.add_command(match command {
                RemoteCommand::Ask(ask) => self.ask_command(speaker, ask, late),
                RemoteCommand::Release(releases) => self.release_command(speaker, releases),
                RemoteCommand::Rows(number, rows, uses) => {
                    let numbers = (*number, std::mem::replace(&mut before, *number));
                    self.rows_command(speaker, numbers, rows, uses)
                }
                RemoteCommand::Return(number) => {
                    let mut cmd = redis::cmd("DEL");
                    cmd.arg(self.named("host:") + &grant_name(&speaker.writer, *number));
                    cmd
                }
            });
        }
        let (wait, count) = (self.wait(), commands.len());
        let sent = count + usize::from(wait.is_some());
        wait.into_iter().for_each(|wait| _ = pipe.add_command(wait));
        let bytes = pipe.get_packed_pipeline();
        let asked = self.clock.mono();
        let mut answers = self.run_once(|connection| connection.req_packed_commands(&bytes, 0, sent))?;
        if self.clock.mono().micros_since(asked) >= limits::ASK_FRESH.as_micros() as u64 {
            self.spared.stalled(self.clock.mono());
        }
        let have = answers.split_off(answers.len().min(count)).pop();
        let mut done = Vec::with_capacity(count);
        for (command, answer) in commands.iter().zip(answers) {
            done.push(self.read_answer(command, answer).inspect_err(|_| self.connection = None)?);
        }
        if done.len() < count {
            self.connection = None;
            return Err(self.nonsense());
        }
        self.judge_wait(have)?;
        // Grants may have ended before their hosts could report their use. They are spared as after an outage.
        if done.contains(&Done::Late) {
            self.spared.broke(self.clock.mono());
            // The clock may have been read incorrectly, too.
            self.ask_clock()?;
            if done.iter().all(|done| *done == Done::Late) {
                return Err(StoreError::Interrupted(self.name.clone()));
            }
        }
        Ok(done)
    }

    fn read_answer(&mut self, command: &RemoteCommand<'_>, answer: Value) -> Result<Done, StoreError> {
        match (command, answer) {
            (RemoteCommand::Ask(ask), Value::ServerError(error)) if is_wrong_type(&error) => {
                self.pass_over(format_args!("what is counted for key {}", ask.key), error);
                Ok(Done::Unanswered((*ask).clone()))
            }
            (_, Value::ServerError(error)) => Err(self.failed(&error.into())),
            (RemoteCommand::Ask(_), answer) if is_late(&answer) => Ok(Done::Late),
            (RemoteCommand::Ask(ask), answer) => {
                read_ruling(ask, &answer).map(Done::Answer).ok_or_else(|| self.nonsense())
            }
            // The grant may have ended before.
            (RemoteCommand::Return(_), _) => Ok(Done::Done),
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

    fn ask_command(&mut self, speaker: &Speaker, ask: &Ask, late: u64) -> Cmd {
        let (prefix, mut keys) = (self.nodes.prefix(), vec![self.named("wins")]);
        for (account, window, _) in accounts(&ask.key, &ask.lease) {
            keys.extend(["live", "due", "use", "cost"].map(|what| format!("{prefix}{what}:{account}")));
            keys.push(format!("{prefix}win:{account}:{}", window_part(window)));
        }
        let (mut cmd, reserved) = (self.script(ADMIT, &keys), ask.lease.reserved);
        cmd.arg(&speaker.host).arg(self.named("host:")).arg(reserved.tokens).arg(reserved.nano);
        cmd.arg(u8::from(ask.admits));
        let Wish { part, number, requests, amount, waits, known, by: _ } = ask.wish;
        self.spared.asked(number);
        let grant = if part > 0 { grant_name(&speaker.writer, number) } else { String::new() };
        cmd.arg(grant).arg(limits::GRANT.as_millis() as u64).arg(part.max(1)).arg(requests.max(1));
        cmd.arg(amount.tokens).arg(amount.nano).arg(u8::from(waits)).arg(self.named(CALLS)).arg(u8::from(known));
        cmd.arg(late);
        let limits = std::iter::once(&ask.limits).chain(&ask.groups);
        for ((_, window, period), limits) in accounts(&ask.key, &ask.lease).zip(limits) {
            let first = period.0.0 / DAY_MS;
            cmd.arg(limits.tokens).arg(limits.requests).arg(limits.tokens_per_window).arg(limits.concurrency);
            cmd.arg(limits.budget).arg(kept(window)).arg(period.0.0).arg(first);
            cmd.arg((period.1.0 / DAY_MS).saturating_sub(first).clamp(1, 31)).arg(window.1.0).arg(period.1.0);
        }
        cmd
    }

    fn release_command(&self, speaker: &Speaker, releases: &[Release]) -> Cmd {
        let mut cmd = self.script(RELEASE, &[]);
        cmd.arg(self.nodes.prefix()).arg(&speaker.host);
        for Release { key, lease, unsent } in releases {
            for (account, window, period) in accounts(key, lease) {
                cmd.arg(account.to_string()).arg(window_part(window)).arg(period.0.0);
                cmd.arg(lease.reserved.tokens).arg(lease.reserved.nano).arg(u8::from(*unsent));
            }
        }
        cmd
    }

    /// Returns the usage report; see `Ledger::usage`.
    pub fn usage(&mut self, query: &Query, renaming: Option<Renaming<'_>>) -> Result<Vec<UsageLine>, StoreError> {
        let who = query.who().map_err(|why| StoreError::Shared(self.name.clone(), why.to_string()))?;
        let (first, beyond) = query.days();
        let days: Vec<u64> = self.query(redis::cmd("ZRANGE").arg(self.named("days")).arg(0).arg(-1))?;
        let (mut lines, mut people, mut totals) = (Lines::default(), PeopleSums::new(), DaySums::new());
        for day in days.into_iter().filter(|day| (first..beyond).contains(day)) {
            let mut sums = DaySums::new();
            add_day(&mut sums, day, self.hash(&format!("day:{day}"))?);
            if who.is_none() {
                query.report(&mut lines, &sums, renaming);
                continue;
            }
            add_who(&mut people, day, self.hash(&format!("who:{day}"))?);
            let total = totals.entry(DayKey { day, ..DayKey::default() }).or_default();
            for sums in sums.values() {
                total.iter_mut().zip(sums).for_each(|(total, more)| *total += more);
            }
        }
        who.map_or_else(|| query.sorted(lines), |who| query.report_people(who, &people, &totals))
    }

    /// Numbers by name.
    fn hash(&mut self, name: &str) -> Result<Vec<(String, u64)>, StoreError> {
        self.query(redis::cmd("HGETALL").arg(self.named(name)))
    }
}

/// Channel on which grants are called in.
const CALLS: &str = "calls";

/// Name under which a writer's grant reserves; see `admit.lua` for the "g".
fn grant_name(writer: &str, number: u64) -> String {
    format!("{writer}g{number}")
}

fn window_part((start, end): (Unix, Unix)) -> String {
    format!("{}:{}", start.0, end.0)
}

/// Time for which the counts of a window are kept after a write, in milliseconds: until hardly any request admitted in
/// it is still running.
fn kept((start, end): (Unix, Unix)) -> u64 {
    end.0.saturating_sub(start.0).saturating_add(limits::WINDOW_KEPT.as_millis() as u64)
}

/// True if this process was stopped and continued while it waited.
fn is_interrupted(error: &RedisError) -> bool {
    type Shared = Arc<dyn Error + Send + Sync>;
    let source = error.source().and_then(|source| source.downcast_ref::<Shared>());
    let inner = source.and_then(|source| source.downcast_ref::<io::Error>());
    inner.is_some_and(|error| error.kind() == io::ErrorKind::Interrupted)
}

/// True if a script has met an entry of the wrong type.
fn is_wrong_type(error: &ServerError) -> bool {
    let text = error.to_string();
    // Errors about the type of an entry, the text in one of its fields, and arithmetic on that text.
    ["WRONGTYPE", "is not an integer", "attempt to "].iter().any(|part| text.contains(part))
}

/// True for the answer to a question that the server executed too late.
fn is_late(answer: &Value) -> bool {
    matches!(answer, Value::Array(parts) if parts.len() == 7 && integer(&parts[0]) == Some(LATE))
}

/// Reads the result of the admitting script.
fn read_ruling(ask: &Ask, value: &Value) -> Option<AskAnswer> {
    let Value::Array(parts) = value else { return None };
    let parts: Vec<u64> = parts.iter().map(integer).collect::<Option<_>>()?;
    let ([code, which, waits, gives, requests, tokens, nano], counts) = parts.split_first_chunk()?;
    let kind = match *code {
        1 => Some(LimitKind::TokensPerPeriod),
        2 => Some(LimitKind::Requests),
        3 => Some(LimitKind::TokensPerWindow),
        4 => Some(LimitKind::Concurrency),
        6 => Some(LimitKind::Budget),
        _ => None,
    };
    let ruling = match (code, kind) {
        (_, Some(kind)) => {
            let by = if *waits > 0 { LimitReason::Reserved } else { LimitReason::Spent };
            Ruling::Refused(kind, usize::try_from(*which).ok()?, by)
        }
        (0, _) => Ruling::Admitted,
        (5, _) => Ruling::Looked,
        (7, _) => Ruling::Called,
        (9, _) => Ruling::Unavailable,
        _ => return None,
    };
    let mut told = accounts(&ask.key, &ask.lease).zip(counts.as_chunks::<4>().0).map(|((_, window, period), told)| {
        let [requests, window_used, tokens, nano] = *told;
        SharedCounts { window, requests, window_used, period, period_used: Amount { tokens, nano } }
    });
    let (counts, groups) = (told.next()?, told.collect());
    // The caller, who knows when it asked, sets the end.
    let (amount, until) = (Amount { tokens: *tokens, nano: *nano }, Mono(0));
    let grant = (*gives > 0).then_some(Grant { number: ask.wish.number, requests: *requests, amount, until });
    Some(AskAnswer { ask: ask.clone(), ruling, counts, groups, grant })
}
