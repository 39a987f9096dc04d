//! Detects a ledger that was emptied or replaced. Each ledger has an epoch, a name given at its creation. A host
//! remembers the epoch of the first ledger it finds, and every script checks it: nothing is counted on a missing or
//! different epoch. Only `tollgate ledger adopt` makes hosts take over another ledger.

use super::code::{self, SCRIPTS};
use super::values::{list, text};
use super::{FORMAT, FORMERS, Remote, Speaker};
use crate::base::digest::hex;
use crate::base::limits;
use crate::base::time::Unix;
use crate::io::clock;
use crate::io::store::api::StoreError;
use redis::{Cmd, Connection, ConnectionLike, RedisResult, Value};
use ring::rand::{SecureRandom, SystemRandom};

/// Error text for a ledger that is not the one known before.
const REPLACED: &str =
    "the ledger was emptied or replaced; put it back, or start again on purpose with `tollgate ledger adopt`";

/// Marks of a ledger: its format, its epoch, and the epoch to be taken over.
type Found = [Option<String>; 3];

impl Remote {
    /// Opens a connection to the server that has the ledger, loads the scripts, and reads the marks. Each node of a
    /// cluster is tried once, within the time that one node has to answer.
    fn open(&mut self) -> RedisResult<(Connection, Found)> {
        let (mut tried, mut why) = (Vec::new(), None);
        let until = self.clock.mono().after(limits::SHARED_ANSWER);
        loop {
            let error = match self.open_here() {
                Ok(opened) => return Ok(opened),
                Err(error) => error,
            };
            let goes_on = self.nodes.turn(&error, &mut tried) && self.clock.mono() < until;
            // A redirection to another node does not explain why that node has failed.
            let error = why.take().filter(|_| error.code() == Some("MOVED")).unwrap_or(error);
            if !goes_on {
                return Err(error);
            }
            why = Some(error);
        }
    }

    fn open_here(&mut self) -> RedisResult<(Connection, Found)> {
        let mut connection = self.nodes.connect()?;
        let mut pipe = redis::pipe();
        for code in code::scripts(self.nodes.is_cluster()) {
            pipe.cmd("SCRIPT").arg("LOAD").arg(code);
        }
        pipe.cmd("MGET").arg(&["format", "epoch", "adopted"].map(|name| self.named(name)));
        let count = SCRIPTS + 1 + usize::from(self.nodes.is_cluster());
        if self.nodes.is_cluster() {
            pipe.cmd("CLUSTER").arg("SLOTS");
        }
        let mut told = connection.req_packed_commands(&pipe.get_packed_pipeline(), 0, count)?;
        if self.nodes.is_cluster() {
            told.pop().iter().for_each(|nodes| self.nodes.learn(nodes));
        }
        let found = told.pop();
        if let Some(Value::ServerError(error)) = told.into_iter().chain(found.clone()).find(is_error) {
            return Err(error.into());
        }
        let found = found.as_ref().map(list).unwrap_or_default();
        Ok((connection, [0, 1, 2].map(|at| found.get(at).and_then(text).map(str::to_string))))
    }

    /// Connects unless connected. Checks that this is a ledger of ours and the one known before, and loads the scripts.
    /// `begins`: another ledger is taken over on purpose, by all hosts.
    pub(super) fn connect_to(&mut self, begins: bool) -> Result<(), StoreError> {
        if self.connection.is_some() {
            return Ok(());
        }
        let (mut connection, [format, epoch, adopted]) = match self.open() {
            Ok(opened) => opened,
            Err(error) if error.code() == Some("MOVED") && self.nodes.is_cluster() => return Err(self.lost()),
            Err(error) => return Err(self.failed(&error)),
        };
        let is_known = format.as_deref().is_none_or(|format| format == FORMAT || FORMERS.contains(&format));
        if !is_known {
            return Err(StoreError::Shared(
                self.name.clone(),
                "this ledger was written by a newer version".to_string(),
            ));
        }
        let found = match (&self.epoch, epoch) {
            (Some(known), Some(epoch)) if *known == epoch || adopted.as_ref() == Some(&epoch) => epoch,
            (Some(_), _) => return Err(self.replaced()),
            (None, Some(epoch)) if format.as_deref() == Some(FORMAT) && !begins => epoch,
            // The ledger was in use and has lost its epoch.
            (None, None) if format.as_deref() == Some(FORMAT) && !begins => return Err(self.replaced()),
            // A new ledger, or that of an older host. An older host with a connection continues; the next connection of
            // its version is refused.
            (None, _) => {
                let began = self.begin(&mut connection, begins);
                began.map_err(|error| self.failed(&error))?
            }
        };
        self.epoch = Some(found);
        self.connection = Some(connection);
        self.ask_clock()
    }

    /// Reads the ledger's clock, which determines windows and periods instead of this host's clock. Called now and
    /// then, while all uses of grants have been sent.
    pub fn follow_clock(&mut self) -> Result<(), StoreError> {
        self.until_heard(Remote::ask_clock)?;
        let Some(number) = self.spared.is_over(self.clock.mono()) else { return Ok(()) };
        self.keep_for_a_lease(&self.spared.writer.clone(), number)?;
        self.spared.told();
        Ok(())
    }

    /// Prepares for new questions after the ledger was away.
    pub(super) fn spare(&mut self, speaker: &Speaker) -> Result<(), StoreError> {
        self.spared.writer.clone_from(&speaker.writer);
        if self.spared.is_away {
            self.keep_for_a_lease("spared", 1)?;
            self.spared.is_away = false;
        }
        Ok(())
    }

    fn keep_for_a_lease(&mut self, name: &str, number: u64) -> Result<(), StoreError> {
        let name = self.named("host:") + name;
        self.query(redis::cmd("SET").arg(name).arg(number).arg("PX").arg(limits::LEASE.as_millis() as u64))
    }

    pub(super) fn ask_clock(&mut self) -> Result<(), StoreError> {
        let asked = clock::watch();
        let told = self.run_once(|connection| connection.req_command(&redis::cmd("TIME")))?;
        let told: Vec<u64> = list(&told).iter().filter_map(|part| text(part)?.parse().ok()).collect();
        let [secs, micros] = told[..] else { return Err(self.nonsense()) };
        clock::follow(Unix(secs.saturating_mul(1000).saturating_add(micros / 1000)), asked, clock::watch());
        Ok(())
    }

    fn begin(&self, connection: &mut Connection, adopts: bool) -> RedisResult<String> {
        let mut random = [0u8; 12];
        let filled = SystemRandom::new().fill(&mut random);
        filled.map_err(|_| std::io::Error::other("no entropy is available"))?;
        let kept = if adopts { limits::ADOPTED_KEPT.as_secs() } else { 0 };
        let mut cmd = redis::cmd("EVAL");
        cmd.arg(code::begin()).arg(3).arg(&["epoch", "format", "adopted"].map(|name| self.named(name)));
        let told = connection.req_command(cmd.arg(hex(&random)).arg(FORMAT).arg(kept))?;
        // An error is passed on; any other value that is no text is no epoch of ours.
        match told {
            Value::ServerError(error) => Err(error.into()),
            told => Ok(text(&told).unwrap_or_default().to_string()),
        }
    }

    /// Starts a new epoch if the ledger was emptied, and makes running hosts take over the present ledger. Returns its
    /// epoch.
    pub fn adopt(&mut self) -> Result<String, StoreError> {
        self.connect_to(true)?;
        Ok(self.epoch.clone().unwrap_or_default())
    }

    /// Name of the entry that identifies the known ledger.
    pub(super) fn mark(&self) -> String {
        self.named("epoch:") + self.epoch.as_deref().unwrap_or_default()
    }

    pub(super) fn replaced(&self) -> StoreError {
        StoreError::Shared(self.name.clone(), REPLACED.to_string())
    }

    /// Reads from the known ledger.
    pub(super) fn read(&mut self, cmd: &Cmd) -> Result<Value, StoreError> {
        self.connect()?;
        let mut pipe = redis::pipe();
        pipe.cmd("EXISTS").arg(self.mark()).add_command(cmd.clone());
        let bytes = pipe.get_packed_pipeline();
        self.until_heard(|remote| {
            let told = remote.run_once(|connection| connection.req_packed_commands(&bytes, 0, 2))?;
            let error = match <[Value; 2]>::try_from(told) {
                Ok([Value::ServerError(error), _] | [Value::Int(1), Value::ServerError(error)]) => {
                    remote.failed(&error.into())
                }
                Ok([Value::Int(1), value]) => return Ok(value),
                Ok([Value::Int(0), _]) => remote.replaced(),
                _ => remote.nonsense(),
            };
            remote.connection = None;
            Err(error)
        })
    }

    /// Reads a text, if there is one, from the known ledger.
    pub(super) fn read_text(&mut self, cmd: &Cmd) -> Result<Option<String>, StoreError> {
        Ok(text(&self.read(cmd)?).map(str::to_string))
    }
}

fn is_error(value: &Value) -> bool {
    matches!(value, Value::ServerError(_))
}
