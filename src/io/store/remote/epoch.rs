//! How a ledger that was emptied or replaced is known. Each has an epoch, a name that it was given when it began. A
//! host remembers that of the ledger it has found first, and every script asks for it: what is missing, or another, is
//! not counted on. Only `tollgate ledger adopt` makes hosts take over another.

use super::{BEGIN, FORMAT, FORMERS, GUARD, Remote, SCRIPTS, named};
use crate::base::digest::hex;
use crate::base::limits;
use crate::base::time::Unix;
use crate::io::clock;
use crate::io::store::api::StoreError;
use redis::{Cmd, Connection, FromRedisValue, RedisResult};
use ring::rand::{SecureRandom, SystemRandom};

/// Said of a ledger that is not the one that was known.
const REPLACED: &str =
    "the ledger was emptied or replaced; put it back, or begin anew on purpose with `tollgate ledger adopt`";

/// What stands in a ledger: its format, its epoch, the one that is to be taken over.
type Found = (Option<String>, Option<String>, Option<String>);

impl Remote {
    /// A connection whose server has the scripts, and what it says of its ledger.
    fn open(&self) -> RedisResult<(Connection, Found)> {
        let mut connection = self.client.get_connection_with_timeout(limits::SHARED_CONNECT)?;
        connection.set_read_timeout(Some(limits::SHARED_ANSWER))?;
        connection.set_write_timeout(Some(limits::SHARED_ANSWER))?;
        let mut pipe = redis::pipe();
        for (code, _) in SCRIPTS.iter().zip(&self.hashes) {
            pipe.cmd("SCRIPT").arg("LOAD").arg([GUARD, code].concat()).ignore();
        }
        pipe.cmd("MGET").arg(&["format", "epoch", "adopted"].map(named));
        let (found,): (Found,) = pipe.query(&mut connection)?;
        Ok((connection, found))
    }

    /// Connects unless that is done; checks that this is a ledger of ours and the one that was known, and makes the
    /// scripts known. `begins`: another is taken over on purpose, by all hosts.
    pub(super) fn connect_to(&mut self, begins: bool) -> Result<(), StoreError> {
        if self.connection.is_some() {
            return Ok(());
        }
        let (mut connection, (format, epoch, adopted)) = self.open().map_err(|error| self.failed(&error))?;
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
            // It has been written and has lost its name.
            (None, None) if format.as_deref() == Some(FORMAT) && !begins => return Err(self.replaced()),
            // A new one, or an older host's: one that has a connection goes on, the next of its version is refused.
            (None, _) => {
                let began = self.begin(&mut connection, begins);
                began.map_err(|error| self.failed(&error))?
            }
        };
        self.epoch = Some(found);
        self.connection = Some(connection);
        self.follow_clock()
    }

    /// Windows and periods go by the ledger's clock, whatever this host's says.
    pub fn follow_clock(&mut self) -> Result<(), StoreError> {
        let asked = clock::watch();
        let (secs, micros): (u64, u64) = self.run_once(|connection| redis::cmd("TIME").query(connection))?;
        clock::follow(Unix(secs.saturating_mul(1000).saturating_add(micros / 1000)), asked, clock::watch());
        Ok(())
    }

    fn begin(&self, connection: &mut Connection, adopts: bool) -> RedisResult<String> {
        let mut random = [0u8; 12];
        let filled = SystemRandom::new().fill(&mut random);
        filled.map_err(|_| std::io::Error::other("no entropy is available"))?;
        let kept = if adopts { limits::ADOPTED_KEPT.as_secs() } else { 0 };
        let mut cmd = redis::cmd("EVAL");
        cmd.arg(BEGIN).arg(3).arg(&["epoch", "format", "adopted"].map(named));
        cmd.arg(hex(&random)).arg(FORMAT).arg(kept).query(connection)
    }

    /// Begins anew where the ledger was emptied, and has running hosts take over whatever is there now; its epoch.
    pub fn adopt(&mut self) -> Result<String, StoreError> {
        self.connect_to(true)?;
        Ok(self.epoch.clone().unwrap_or_default())
    }

    /// What says that the ledger is the one that is known.
    pub(super) fn mark(&self) -> String {
        named("epoch:") + self.epoch.as_deref().unwrap_or_default()
    }

    pub(super) fn replaced(&self) -> StoreError {
        StoreError::Shared(self.name.clone(), REPLACED.to_string())
    }

    /// Reads something of the ledger that is known.
    pub(super) fn read<T: FromRedisValue>(&mut self, cmd: &Cmd) -> Result<T, StoreError> {
        self.connect()?;
        let mut pipe = redis::pipe();
        pipe.cmd("EXISTS").arg(self.mark()).add_command(cmd.clone());
        let (is_known, value): (bool, redis::Value) = self.run(|connection| pipe.query(connection))?;
        if !is_known {
            self.connection = None;
            return Err(self.replaced());
        }
        redis::from_redis_value(value).map_err(|error| self.failed(&error.into()))
    }
}
