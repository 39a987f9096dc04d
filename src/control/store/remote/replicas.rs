//! Waits until replicas have each write, if configured: then a failover to one of them loses no answered write.

use super::resp::{LinkError, RedisCommand, Value, integer};
use super::server::RemoteServer;
use crate::store::api::StoreError;
use std::time::Duration;

/// Time to wait for replicas of a shared ledger to have a write, if such a wait is configured.
const SHARED_REPLICAS: Duration = Duration::from_secs(1);

impl RemoteServer {
    /// Requires that this number of replicas has each admission, grant, write and edit before it counts. If they do not
    /// have it in time, that is an outage: the commands are sent again, and count once.
    pub fn with_replicas(mut self, replicas: u32) -> RemoteServer {
        self.replicas = replicas;
        self
    }

    /// Returns the command that waits for all earlier writes of this connection.
    pub(super) fn wait(&self) -> Option<RedisCommand> {
        let mut cmd = RedisCommand::new("WAIT");
        cmd.number(self.replicas.into()).number(SHARED_REPLICAS.as_millis() as u64);
        (self.replicas > 0).then_some(cmd)
    }

    /// Fails if too few replicas have the writes. `have` is the answer to [`RemoteServer::wait`], if that was sent.
    pub(super) fn judge_wait(&mut self, have: Option<Value>) -> Result<(), StoreError> {
        let Some(have) = have else { return Ok(()) };
        let why = match have {
            Value::Error(error) => self.failed(&LinkError::Server(error)),
            have if integer(&have).is_some_and(|have| have >= u64::from(self.replicas)) => return Ok(()),
            have => {
                self.spared.broke(self.clock.mono());
                let (have, of) = (integer(&have).unwrap_or(0), self.replicas);
                let text = format!("{have} of {of} replicas have what was written (store.replicas)");
                StoreError::Shared(self.name.clone(), text)
            }
        };
        self.connection = None;
        Err(why)
    }

    /// Waits for all earlier writes of all connections. A connection waits for its own writes only, so it writes
    /// something first.
    pub(super) fn replicated(&mut self) -> Result<(), StoreError> {
        let Some(wait) = self.wait() else { return Ok(()) };
        let mut set = RedisCommand::new("SET");
        set.arg(self.named("waited")).number(0);
        let mut told = self.ask(&[set, wait])?;
        let (have, set) = (told.pop(), told.pop());
        self.judge_wait(set.filter(|set| matches!(set, Value::Error(_))).or(have))
    }
}
