//! Connection to the server of a shared ledger: commands that are harmless if sent twice are repeated, and errors are
//! explained to the operator.

use super::code;
use super::link::{Bounds, RemoteLink};
use super::nodes::Nodes;
use super::spared::Spared;
use super::values::integer;
use crate::io::clock::Clock;
use crate::store::api::StoreError;
use crate::store::bounds;
use redis::{Cmd, FromRedisValue, RedisError, RedisResult, Value};
use std::error::Error;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

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
    /// Reads the URL; connects later. `ca_file` contains authorities in PEM for `rediss://`, instead of the public
    /// ones. `name` is the URL as it may be shown.
    pub fn new(url: &str, ca_file: Option<&Path>, name: String) -> Result<RemoteServer, StoreError> {
        let failed = |why: String| StoreError::Shared(name.clone(), why);
        let nodes = Nodes::new(url, ca_file).map_err(|error| failed(error.to_string()))?;
        let hash = |code: &String| redis::Script::new(code).get_hash().to_string();
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

    pub(super) fn failed(&mut self, error: &RedisError) -> StoreError {
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

    pub(super) fn run<T>(&mut self, mut call: impl FnMut(&mut RemoteLink) -> RedisResult<T>) -> Result<T, StoreError> {
        self.until_heard(|server| server.run_once(&mut call))
    }

    /// Returns the server's answer to a command that is harmless if sent twice.
    pub(super) fn query<T: FromRedisValue>(&mut self, cmd: &Cmd) -> Result<T, StoreError> {
        self.run(|connection| cmd.query(connection))
    }

    /// Runs `call` on the connection. After an error the connection's state is unknown, and it is dropped.
    pub(super) fn run_once<T>(
        &mut self,
        call: impl FnOnce(&mut RemoteLink) -> RedisResult<T>,
    ) -> Result<T, StoreError> {
        self.connect_to(false)?;
        let Some(connection) = &mut self.connection else { return Err(self.lost()) };
        let done = call(connection);
        done.map_err(|error| {
            self.connection = None;
            self.failed(&error)
        })
    }

    pub(super) fn pass_over(&mut self, entry: impl fmt::Display, why: impl fmt::Display) {
        if self.odd.len() < bounds::ODD_ENTRIES_MAX {
            self.odd.push(format!("{}: {entry} is passed over: {why}", self.name));
        }
    }

    /// Returns the first number of a script's result. The other elements are names of counters that were skipped.
    pub(super) fn read_done(&mut self, value: &Value) -> Option<u64> {
        let Value::Array(parts) = value else { return None };
        let (code, names) = parts.split_first()?;
        for name in names {
            if let Value::BulkString(name) = name {
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
    pub(super) fn script(&self, which: usize, keys: &[String]) -> Cmd {
        let (mut cmd, never) = (redis::cmd("EVALSHA"), self.nodes.never());
        cmd.arg(&self.hashes[which]).arg(keys.len() + 1 + usize::from(never.is_some()));
        cmd.arg(keys).arg(self.mark()).arg(never);
        cmd
    }

    pub(super) fn nonsense(&self) -> StoreError {
        StoreError::Shared(self.name.clone(), "an answer that makes no sense".to_string())
    }

    /// Returns warnings for the operator about the server, once at the start.
    pub fn warnings(&mut self) -> Result<Vec<String>, StoreError> {
        let mut settings = [self.setting("appendonly")?, self.setting("maxmemory-policy")?];
        if settings.contains(&None) {
            // Managed servers and careful operators do not permit CONFIG.
            let told: String = self.permitted(redis::cmd("INFO").arg("all"))?.unwrap_or_default();
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
        let told: Option<Vec<String>> = self.permitted(redis::cmd("CONFIG").arg("GET").arg(name))?;
        Ok(told.and_then(|told| told.into_iter().nth(1)))
    }

    /// Returns the server's answer to a command, or none if the server refuses the command.
    fn permitted<T: FromRedisValue>(&mut self, cmd: &Cmd) -> Result<Option<T>, StoreError> {
        self.run(|connection| match cmd.query(connection) {
            Ok(told) => Ok(Some(told)),
            // This error is an answer of the server, so the connection still works.
            Err(error) if error.code().is_some() => Ok(None),
            Err(error) => Err(error),
        })
    }

    /// Numbers by name.
    pub(super) fn hash(&mut self, name: &str) -> Result<Vec<(String, u64)>, StoreError> {
        self.query(redis::cmd("HGETALL").arg(self.named(name)))
    }
}

/// True if this process was stopped and continued while it waited.
pub(super) fn is_interrupted(error: &RedisError) -> bool {
    type Shared = Arc<dyn Error + Send + Sync>;
    let source = error.source().and_then(|source| source.downcast_ref::<Shared>());
    let inner = source.and_then(|source| source.downcast_ref::<io::Error>());
    inner.is_some_and(|error| error.kind() == io::ErrorKind::Interrupted)
}
