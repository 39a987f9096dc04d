//! Connection to the server of a shared ledger: commands that are harmless if sent twice are repeated, and errors are
//! explained to the operator.

use super::code;
use super::link::{Bounds, RemoteLink};
use super::nodes::Nodes;
use super::resp::{LinkError, RedisCommand, Value, integer, list, text};
use super::spared::Spared;
use crate::base::digest::hex;
use crate::io::clock::Clock;
use crate::policy::config::SharedUrl;
use crate::store::api::StoreError;
use crate::store::bounds;
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use std::fmt;
use std::io;
use std::path::Path;

/// Connection to the server of a shared ledger; recognises the ledger by its epoch. Connects at its first use, and
/// again after a failure.
pub struct RemoteServer {
    pub(super) nodes: Nodes,
    pub(super) connection: Option<RemoteLink>,
    /// Number of connections made.
    pub(super) connections: u64,
    /// The URL without its password.
    pub(super) name: String,
    /// Epoch of the ledger, once found.
    pub(super) epoch: Option<String>,
    /// SHA-1 of the scripts, by which the server identifies them.
    pub(super) hashes: Vec<String>,
    pub(super) spared: Spared,
    /// Descriptions of skipped malformed entries, for the operator; taken by `take_odd`.
    pub(super) odd: Vec<String>,
    pub(super) clock: Clock,
    /// Number of replicas that must have each write.
    pub(super) replicas: u32,
}

impl RemoteServer {
    /// Connects later. `ca_file` contains authorities in PEM for `rediss://`, instead of the public ones. `name` is the
    /// URL as it may be shown.
    pub fn new(url: &SharedUrl, ca_file: Option<&Path>, name: String) -> Result<RemoteServer, StoreError> {
        let failed = |error: io::Error| StoreError::Shared(name.clone(), error.to_string());
        let nodes = Nodes::new(url, ca_file).map_err(failed)?;
        let hash = |code: &String| hex(digest(&SHA1_FOR_LEGACY_USE_ONLY, code.as_bytes()).as_ref());
        let hashes = code::scripts(nodes.is_cluster()).iter().map(hash).collect();
        Ok(RemoteServer {
            nodes,
            connection: None,
            connections: 0,
            name,
            epoch: None,
            hashes,
            odd: Vec::new(),
            clock: Clock::new(),
            spared: Spared::default(),
            replicas: 0,
        })
    }

    /// Sets the bounds of its connections, including an open one. The default is the bounds for commands.
    pub fn within(mut self, bounds: Bounds) -> RemoteServer {
        self.nodes.bounds = bounds;
        self.connection.iter_mut().for_each(|link| link.bounds = bounds);
        self
    }

    /// True if there is a connection, as far as this host knows.
    pub fn is_connected(&self) -> bool {
        self.connection.is_some()
    }

    /// Unique number of the open connection; `None` without a connection.
    pub(super) fn connection_number(&self) -> Option<u64> {
        self.connection.as_ref().map(|_| self.connections)
    }

    /// Epoch of the ledger, once found.
    pub fn epoch(&self) -> Option<&str> {
        self.epoch.as_deref()
    }

    /// Connects unless connected. Returns an error if the ledger is not the one known before.
    pub fn connect(&mut self) -> Result<(), StoreError> {
        self.until_heard(|server| server.connect_to(false))
    }

    pub(super) fn failed(&mut self, error: &LinkError) -> StoreError {
        let is_same = error.is_interrupted() || error.code() == "NOSCRIPT";
        if !is_same {
            self.spared.broke(self.clock.mono());
        }
        // Another node has the ledger, or the server has lost the scripts: connecting again is enough.
        if is_same || self.nodes.follow(error) {
            return StoreError::Interrupted(self.name.clone());
        }
        let why = match error.code() {
            "EPOCH" => return self.replaced(),
            "TRYAGAIN" | "ASK" => "it is being moved to another node of the cluster",
            "MOVED" | "CROSSSLOT" => "a node of a cluster, whose URL begins with redis+cluster:// or rediss+cluster://",
            // The system's own text is "resource temporarily unavailable".
            _ if error.is_timeout() => "no answer in time",
            _ => return StoreError::Shared(self.name.clone(), error.to_string()),
        };
        StoreError::Shared(self.name.clone(), why.to_string())
    }

    /// Makes `call`, which must be harmless if made twice. If it is interrupted, repeats it within the ledger's time to
    /// answer, but at least once, because a process may have been stopped for longer.
    pub(super) fn until_heard<T>(
        &mut self,
        mut call: impl FnMut(&mut RemoteServer) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
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

    /// Sends commands once. Returns the answer to each, which may be an error. If an answer is missing, the state of
    /// the connection is unknown, and it is dropped.
    pub(super) fn ask(&mut self, commands: &[RedisCommand]) -> Result<Vec<Value>, StoreError> {
        self.connect_to(false)?;
        let Some(connection) = &mut self.connection else { return Err(self.lost()) };
        connection.ask(commands).map_err(|error| {
            self.connection = None;
            self.failed(&error)
        })
    }

    /// Sends a command once. Returns its answer, which may be an error.
    fn ask_one(&mut self, command: &RedisCommand) -> Result<Value, StoreError> {
        Ok(self.ask(std::slice::from_ref(command))?.pop().unwrap_or(Value::Nil))
    }

    /// Sends a command once. Returns its result.
    pub(super) fn call(&mut self, command: &RedisCommand) -> Result<Value, StoreError> {
        match self.ask_one(command)? {
            Value::Error(error) => {
                self.connection = None;
                Err(self.failed(&LinkError::Server(error)))
            }
            answer => Ok(answer),
        }
    }

    /// Returns the answer to a command that is harmless if sent twice. It may be an error, with which the connection
    /// still works.
    pub(super) fn answer(&mut self, command: &RedisCommand) -> Result<Value, StoreError> {
        self.until_heard(|server| server.ask_one(command))
    }

    /// Returns the result of a command that is harmless if sent twice.
    pub(super) fn query(&mut self, command: &RedisCommand) -> Result<Value, StoreError> {
        self.until_heard(|server| server.call(command))
    }

    /// Returns the number that results from a command that is harmless if sent twice.
    pub(super) fn query_number(&mut self, command: &RedisCommand) -> Result<u64, StoreError> {
        let answer = self.query(command)?;
        integer(&answer).ok_or_else(|| self.nonsense())
    }

    pub(super) fn pass_over(&mut self, entry: impl fmt::Display, why: impl fmt::Display) {
        if self.odd.len() < bounds::ODD_ENTRIES_MAX {
            self.odd.push(format!("{}: {entry} is passed over: {why}", self.name));
        }
    }

    /// Returns the first number of a script's result. The other elements are names of counters that were skipped.
    pub(super) fn read_done(&mut self, value: &Value) -> Option<u64> {
        let (code, names) = list(value).split_first()?;
        for name in names {
            if let Value::Text(name) = name {
                self.pass_over(String::from_utf8_lossy(name), "it is of the wrong type");
            }
        }
        integer(code)
    }

    pub(super) fn named(&self, rest: &str) -> String {
        [self.nodes.prefix(), rest].concat()
    }

    pub(super) fn lost(&self) -> StoreError {
        StoreError::Shared(self.name.clone(), "not connected".to_string())
    }

    /// Creates a call of a script on the known ledger. `keys` are the keys that it accesses.
    pub(super) fn script(&self, which: usize, keys: &[String]) -> RedisCommand {
        let (mut cmd, never) = (RedisCommand::new("EVALSHA"), self.nodes.never());
        cmd.arg(&self.hashes[which]).number((keys.len() + 1 + usize::from(never.is_some())) as u64);
        cmd.args(keys).arg(self.mark()).args(never.as_slice());
        cmd
    }

    /// Error for an answer of an unexpected form. The connection may be one answer off, so it is dropped.
    pub(super) fn nonsense(&mut self) -> StoreError {
        self.connection = None;
        StoreError::Shared(self.name.clone(), "an answer that makes no sense".to_string())
    }

    /// Returns warnings for the operator about the server, once at the start.
    pub fn warnings(&mut self) -> Result<Vec<String>, StoreError> {
        let mut settings = [self.setting("appendonly")?, self.setting("maxmemory-policy")?];
        if settings.contains(&None) {
            // Managed servers and careful operators do not permit CONFIG.
            let told = self.answer(&RedisCommand::new("INFO all"))?;
            let told = text(&told).unwrap_or_default();
            let value = |name: &str| told.lines().find_map(|line| line.strip_prefix(name)).map(str::to_string);
            let appends = value("aof_enabled:").map(|one| String::from(if one == "0" { "no" } else { "yes" }));
            let [append, policy] = settings;
            settings = [append.or(appends), policy.or_else(|| value("maxmemory_policy:"))];
        }
        let mut texts = Vec::new();
        let mut warn = |text: &str| texts.push(format!("{}: {text}", self.name));
        let [append, policy] = settings;
        if append.as_ref().or(policy.as_ref()).is_none() {
            warn("Redis permits neither CONFIG nor INFO: check that appendonly is yes and maxmemory-policy noeviction");
        }
        if append.is_some_and(|value| value == "no") {
            warn("the shared ledger has no append-only file (appendonly no): a restart of Redis loses it");
        }
        if let Some(policy) = policy.filter(|policy| policy != "noeviction") {
            warn(&format!(
                "the shared ledger may be evicted where memory is short (maxmemory-policy {policy}): set noeviction"
            ));
        }
        Ok(texts)
    }

    /// Returns a setting of the server, or none if the server does not return it.
    fn setting(&mut self, name: &str) -> Result<Option<String>, StoreError> {
        let told = self.answer(RedisCommand::new("CONFIG GET").arg(name))?;
        Ok(list(&told).get(1).and_then(text).map(str::to_string))
    }

    /// Numbers by name.
    pub(super) fn hash(&mut self, name: &str) -> Result<Vec<(String, u64)>, StoreError> {
        let Value::List(found) = self.query(RedisCommand::new("HGETALL").arg(self.named(name)))? else {
            return Err(self.nonsense());
        };
        let pair = |[name, number]: &[Value; 2]| Some((text(name)?.to_string(), integer(number)?));
        found.as_chunks().0.iter().map(pair).collect::<Option<_>>().ok_or_else(|| self.nonsense())
    }

    /// Numbers in a sorted set, the days of a kind of sums.
    pub(super) fn days(&mut self, name: &str) -> Result<Vec<u64>, StoreError> {
        let Value::List(found) = self.query(RedisCommand::new("ZRANGE").arg(self.named(name)).arg("0").arg("-1"))?
        else {
            return Err(self.nonsense());
        };
        found.iter().map(integer).collect::<Option<_>>().ok_or_else(|| self.nonsense())
    }
}
