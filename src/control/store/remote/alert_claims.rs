//! The memory of alerts in a shared ledger: see [`crate::store::alerts`]. `alert:<subject>` is the last report about a
//! subject, `alert:<subject>:claim` the name of the process that is delivering one.

use super::Remote;
use super::resp::{RedisCommand, Value};
use crate::base::digest::{hex, sha256};
use crate::store::alert_claims::{AlertClaim, AlertReport};
use crate::store::api::StoreError;
use crate::store::bounds::{ALERT_CLAIM, ALERT_KEPT};

/// Deletes a claim if it is still the caller's: it may have ended, and be another process's now.
const RELEASE: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

impl Remote {
    /// Returns the names of a subject's last report and of its claim.
    fn alert_names(&self, subject: &str) -> [String; 2] {
        let name = self.server.named("alert:") + &hex(&sha256(subject.as_bytes())[..16]);
        [name.clone(), name + ":claim"]
    }

    /// See [`crate::store::ledger::Ledger::claim_alert`].
    pub fn claim_alert(&mut self, subject: &str, holder: &str) -> Result<AlertClaim, StoreError> {
        let [report, claim] = self.alert_names(subject);
        let mut cmd = RedisCommand::new("SET");
        cmd.arg(&claim).arg(holder).arg("NX").arg("PX").number(ALERT_CLAIM.as_millis() as u64);
        if self.server.query(&cmd)? == Value::Nil {
            return Ok(AlertClaim::Others);
        }
        let text = self.server.read_text(RedisCommand::new("GET").arg(&report))?;
        Ok(AlertClaim::Ours(text.as_deref().and_then(read)))
    }

    /// See [`crate::store::ledger::Ledger::note_alert`].
    pub fn note_alert(&mut self, subject: &str, reported: Option<&AlertReport>) -> Result<(), StoreError> {
        let [report, _] = self.alert_names(subject);
        match reported {
            None => self.server.query(RedisCommand::new("DEL").arg(&report))?,
            Some(AlertReport { id, since, is_done }) => {
                let (text, kept) = (format!("{since} {} {id}", u8::from(*is_done)), ALERT_KEPT.as_millis() as u64);
                self.server.query(RedisCommand::new("SET").arg(&report).arg(text).arg("PX").number(kept))?
            }
        };
        self.server.replicated()
    }

    /// See [`crate::store::ledger::Ledger::release_alert`].
    pub fn release_alert(&mut self, subject: &str, holder: &str) -> Result<(), StoreError> {
        let [_, claim] = self.alert_names(subject);
        self.server.query(RedisCommand::new("EVAL").arg(RELEASE).number(1).arg(&claim).arg(holder)).map(drop)
    }
}

/// Reads a report; `None` if it is not one.
fn read(text: &str) -> Option<AlertReport> {
    let (since, rest) = text.split_once(' ')?;
    let (done, id) = rest.split_once(' ')?;
    Some(AlertReport { id: id.to_string(), since: since.parse().ok()?, is_done: done == "1" })
}
