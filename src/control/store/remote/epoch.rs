//! Detects a ledger that was emptied or replaced. Each ledger has an epoch, a name given at its creation. A host
//! remembers the epoch of the first ledger that it finds, and every script checks it: nothing is counted on a missing
//! or different epoch. Only `tollgate ledger adopt` makes hosts accept another ledger.

use super::code::{self, SCRIPTS};
use super::link::RemoteLink;
use super::resp::{LinkError, RedisCommand, Value, integer, list, text};
use super::server::RemoteServer;
use super::{FORMAT, Speaker};
use crate::base::time::Unix;
use crate::io::clock;
use crate::io::entropy::fresh_name;
use crate::store::api::StoreError;
use crate::store::bounds;
use crate::store::spill::{Mark, SpillFolder};
use std::time::Duration;

/// Time that a shared ledger keeps the last start of a host. A host does not expect it for the last day of that.
const START_KEPT: Duration = Duration::from_secs(31 * 86_400);
/// Time that running hosts may adopt a shared ledger that was restarted deliberately.
const ADOPTED_KEPT: Duration = Duration::from_secs(3600);

/// Error text for a ledger that is not the one known before.
const REPLACED: &str =
    "the ledger was emptied or replaced; put it back, or start again on purpose with `tollgate ledger adopt`";

/// Warning about a ledger that has less than a host has found in it before.
pub(crate) const OLDER: &str = "the ledger has lost usage records or changes of keys that it had accepted: it was \
    restored from an older copy, or a crash or failover lost its last writes; what it lost counts in no limit, and \
    changes of keys must be made again";

/// Marks of a ledger: its format, its epoch, and the epoch to be adopted.
type LedgerMarks = [Option<String>; 3];

impl RemoteServer {
    /// Opens a connection to the server that has the ledger, loads the scripts, and reads the marks. Each node of a
    /// cluster is tried once, within the time that one node has to answer.
    fn open(&mut self) -> Result<(RemoteLink, LedgerMarks), LinkError> {
        let (mut tried, mut why) = (Vec::new(), None);
        let until = self.clock.mono().after(self.nodes.bounds.answer);
        loop {
            let error = match self.open_here() {
                Ok(opened) => return Ok(opened),
                Err(error) => error,
            };
            let goes_on = self.nodes.turn(&error, &mut tried) && self.clock.mono() < until;
            // A redirection to another node does not explain why that node has failed.
            let error = why.take().filter(|_| error.code() == "MOVED").unwrap_or(error);
            if !goes_on {
                return Err(error);
            }
            why = Some(error);
        }
    }

    fn open_here(&mut self) -> Result<(RemoteLink, LedgerMarks), LinkError> {
        let mut connection = self.nodes.connect()?;
        let mut commands = Vec::with_capacity(SCRIPTS + 2);
        for code in code::scripts(self.nodes.is_cluster()) {
            let mut load = RedisCommand::new("SCRIPT LOAD");
            load.arg(code);
            commands.push(load);
        }
        let mut marks = RedisCommand::new("MGET");
        marks.args(&["format", "epoch", "adopted"].map(|name| self.named(name)));
        commands.push(marks);
        if self.nodes.is_cluster() {
            commands.push(RedisCommand::new("CLUSTER SLOTS"));
        }
        let mut told = connection.ask(&commands)?;
        if self.nodes.is_cluster() {
            told.pop().iter().for_each(|nodes| self.nodes.learn(nodes));
        }
        let found = told.pop();
        if let Some(error) = told.into_iter().chain(found.clone()).find_map(Value::error) {
            return Err(error);
        }
        let found = found.as_ref().map(list).unwrap_or_default();
        Ok((connection, [0, 1, 2].map(|at| found.get(at).and_then(text).map(str::to_string))))
    }

    /// Connects unless connected. Checks that this is a Tollgate ledger and the one known before, and loads the
    /// scripts. `begins`: the operator has requested that all hosts adopt another ledger.
    pub(super) fn connect_to(&mut self, begins: bool) -> Result<(), StoreError> {
        if self.connection.is_some() {
            return Ok(());
        }
        let (mut connection, [format, epoch, adopted]) = match self.open() {
            Ok(opened) => opened,
            Err(error) if error.code() == "MOVED" && self.nodes.is_cluster() => return Err(self.lost()),
            Err(error) => return Err(self.failed(&error)),
        };
        if format.as_deref().is_some_and(|format| format != FORMAT) {
            let text = "this ledger was written by another version of Tollgate, which has another format";
            return Err(StoreError::Shared(self.name.clone(), text.to_string()));
        }
        let found = match (&self.epoch, epoch) {
            (Some(known), Some(epoch)) if *known == epoch || adopted.as_ref() == Some(&epoch) => epoch,
            (Some(_), _) => return Err(self.replaced()),
            (None, Some(epoch)) if format.is_some() && !begins => epoch,
            // The ledger was in use and has lost its epoch.
            (None, None) if format.is_some() && !begins => return Err(self.replaced()),
            // A new ledger.
            (None, _) => {
                let began = self.begin(&mut connection, begins);
                began.map_err(|error| self.failed(&error))?
            }
        };
        self.epoch = Some(found);
        self.connection = Some(connection);
        self.connections += 1;
        self.ask_clock()
    }

    /// Reads the ledger's clock, which determines windows and periods instead of this host's clock. Called
    /// occasionally, when all uses of grants have been sent.
    pub fn follow_clock(&mut self) -> Result<(), StoreError> {
        self.until_heard(RemoteServer::ask_clock)?;
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
        let length = bounds::LEASE.as_millis() as u64;
        self.query(RedisCommand::new("SET").arg(name).number(number).arg("PX").number(length)).map(drop)
    }

    pub(super) fn ask_clock(&mut self) -> Result<(), StoreError> {
        let asked = clock::watch();
        let told = self.call(&RedisCommand::new("TIME"))?;
        let [Some(secs), Some(micros)] = [0, 1].map(|at| list(&told).get(at).and_then(integer)) else {
            return Err(self.nonsense());
        };
        clock::follow(Unix(secs.saturating_mul(1000).saturating_add(micros / 1000)), asked, clock::watch());
        Ok(())
    }

    fn begin(&self, connection: &mut RemoteLink, adopts: bool) -> Result<String, LinkError> {
        let name = fresh_name()?;
        let kept = if adopts { ADOPTED_KEPT.as_secs() } else { 0 };
        let mut cmd = RedisCommand::new("EVAL");
        cmd.arg(code::begin()).number(3).args(&["epoch", "format", "adopted"].map(|name| self.named(name)));
        cmd.arg(name).arg(FORMAT).number(kept);
        // An error is passed on; any other value that is not text is not a Tollgate epoch.
        match connection.ask(&[cmd])?.pop() {
            Some(Value::Error(error)) => Err(LinkError::Server(error)),
            told => Ok(told.as_ref().and_then(text).unwrap_or_default().to_string()),
        }
    }

    /// Starts a new epoch if the ledger was emptied, and makes running hosts adopt the present ledger. Returns its
    /// epoch.
    pub fn adopt(&mut self) -> Result<String, StoreError> {
        self.connect_to(true)?;
        Ok(self.epoch.clone().unwrap_or_default())
    }

    /// Accepts only the ledger of this epoch, or one that was adopted.
    pub fn expecting(mut self, epoch: String) -> RemoteServer {
        self.epoch = Some(epoch);
        self
    }

    /// Checks that the ledger has the last start of this host, and stores the present one, there and in the mark.
    /// Returns warnings: it lacks the last one, or the mark cannot be written.
    pub fn compare(&mut self, place: &SpillFolder, now: Unix) -> Result<Vec<String>, StoreError> {
        let fresh = || fresh_name().map_err(|error| StoreError::Shared(self.name.clone(), error.to_string()));
        let (epoch, start) = (self.epoch.clone().unwrap_or_default(), fresh()?);
        let lock = place.lock_mark();
        let before = place.mark()?.filter(|mark| mark.epoch == epoch);
        let own = before.as_ref().map_or_else(fresh, |mark| Ok(mark.place.clone()))?;
        let name = self.named("start:") + &own;
        let known = self.read_text(RedisCommand::new("GET").arg(&name))?;
        let kept = START_KEPT.as_secs();
        self.read(RedisCommand::new("SET").arg(&name).arg(&start).arg("EX").number(kept))?;
        let written = place.set_mark(&Mark { epoch, place: own, start, at: now.0 });
        drop(lock);
        let is_kept = |mark: &Mark| now.0.saturating_sub(mark.at) < (kept - 86_400) * 1000;
        let lacks = before.filter(is_kept).is_some_and(|mark| known != Some(mark.start));
        let unwritten = |error| format!("{error}: the next start does not notice that the ledger was emptied");
        Ok(lacks.then(|| format!("{}: {OLDER}", self.name)).into_iter().chain(written.err().map(unwritten)).collect())
    }

    /// Name of the entry that identifies the known ledger.
    pub(super) fn mark(&self) -> String {
        self.named("epoch:") + self.epoch.as_deref().unwrap_or_default()
    }

    pub(super) fn replaced(&self) -> StoreError {
        StoreError::Shared(self.name.clone(), REPLACED.to_string())
    }

    /// Reads from the known ledger.
    pub(super) fn read(&mut self, cmd: &RedisCommand) -> Result<Value, StoreError> {
        self.connect()?;
        let mut exists = RedisCommand::new("EXISTS");
        exists.arg(self.mark());
        let commands = [exists, cmd.clone()];
        self.until_heard(|server| {
            let error = match <[Value; 2]>::try_from(server.ask(&commands)?) {
                Ok([Value::Error(error), _] | [Value::Int(1), Value::Error(error)]) => {
                    server.failed(&LinkError::Server(error))
                }
                Ok([Value::Int(1), value]) => return Ok(value),
                Ok([Value::Int(0), _]) => server.replaced(),
                _ => server.nonsense(),
            };
            server.connection = None;
            Err(error)
        })
    }

    /// Reads a text, if there is one, from the known ledger.
    pub(super) fn read_text(&mut self, cmd: &RedisCommand) -> Result<Option<String>, StoreError> {
        Ok(text(&self.read(cmd)?).map(str::to_string))
    }
}
