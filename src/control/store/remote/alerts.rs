//! Delivery of alerts by one of several hosts: a host claims an alert before it sends it, and notes its delivery. It
//! leaves the alert in `alerts` meanwhile: if the host is gone, another one delivers it.

use super::server::RemoteServer;
use super::values::{list, text};
use crate::base::digest::{hex, sha256};
use crate::base::limits::{ALERT_CLAIM, ALERT_KEPT, ALERT_TAKEOVER};
use crate::base::time::Unix;
use crate::io::entropy::fresh_name;
use crate::policy::alert::Alert;
use crate::store::alerts::{due_line, due_of, may_wait};
use crate::store::api::StoreError;
use std::io;

/// State of an alert's delivery.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum AlertTurn {
    /// This host delivers it.
    Ours,
    /// Another host is delivering it.
    Others,
    /// The alert was delivered.
    Done,
}

/// Deletes a claim that is still this host's: it may have ended, and be another host's now.
const UNCLAIM: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

/// Alerts in a shared ledger.
pub struct RemoteAlerts {
    /// Server that has it.
    server: RemoteServer,
    /// Value of the claims of this attempt.
    claim: String,
}

impl RemoteAlerts {
    /// Prepares one attempt on `server`.
    pub fn new(server: RemoteServer) -> io::Result<RemoteAlerts> {
        Ok(RemoteAlerts { server, claim: fresh_name()? })
    }

    /// Returns the names of the start of the last event whose alert was delivered, and of the claim.
    fn places(&self, subject: &str) -> [String; 2] {
        let place = self.server.named("alert:") + &hex(&sha256(subject.as_bytes())[..16]);
        [place.clone(), place + ":claim"]
    }

    /// Claims an alert for one attempt.
    pub fn claim(&mut self, alert: &Alert, now: Unix) -> Result<AlertTurn, StoreError> {
        self.server.connect()?;
        let [done, claim] = self.places(&alert.subject);
        let mut cmd = redis::cmd("SET");
        cmd.arg(&claim).arg(&self.claim).arg("NX").arg("PX").arg(ALERT_CLAIM.as_millis() as u64);
        let claimed: Option<String> = self.server.query(&cmd)?;
        if claimed.is_none() {
            return Ok(AlertTurn::Others);
        }
        let since = self.server.read_text(redis::cmd("GET").arg(&done))?.and_then(|since| since.parse::<u64>().ok());
        // Hosts see the same trouble begin at different times; its end removes the entry.
        if since.is_some_and(|since| alert.what.lasts() || since >= alert.since) {
            self.ended(alert)?;
            return Ok(AlertTurn::Done);
        }
        let waits = format!("{} {}", now.0, due_line(alert));
        self.server.query::<u64>(redis::cmd("HSET").arg(self.server.named("alerts")).arg(&alert.id).arg(waits))?;
        Ok(AlertTurn::Ours)
    }

    /// Gives a claim back.
    pub fn unclaim(&mut self, alert: &Alert) -> Result<(), StoreError> {
        let [_, claim] = self.places(&alert.subject);
        self.server.query::<u64>(redis::cmd("EVAL").arg(UNCLAIM).arg(1).arg(&claim).arg(&self.claim)).map(drop)
    }

    /// Notes that the alert was delivered, and gives its claim back.
    pub fn sent(&mut self, alert: &Alert) -> Result<(), StoreError> {
        let [done, _] = self.places(&alert.subject);
        let kept = ALERT_KEPT.as_millis() as u64;
        self.server.query::<String>(redis::cmd("SET").arg(&done).arg(alert.since).arg("PX").arg(kept))?;
        self.server.replicated()?;
        self.ended(alert)
    }

    fn ended(&mut self, alert: &Alert) -> Result<(), StoreError> {
        self.forget(&alert.id)?;
        self.unclaim(alert)
    }

    fn forget(&mut self, id: &str) -> Result<(), StoreError> {
        self.server.query::<u64>(redis::cmd("HDEL").arg(self.server.named("alerts")).arg(id)).map(drop)
    }

    /// Notes that trouble of these subjects is over. Returns the alerts whose host has made no attempt for long, so
    /// that this one delivers them.
    pub fn left(&mut self, over: &[String], now: Unix) -> Result<Vec<Alert>, StoreError> {
        self.server.connect()?;
        for subject in over {
            let [done, _] = self.places(subject);
            self.server.query::<u64>(redis::cmd("DEL").arg(&done))?;
        }
        let (waiting, mut left) = (self.server.read(redis::cmd("HVALS").arg(self.server.named("alerts")))?, Vec::new());
        for (tried, line) in list(&waiting).iter().filter_map(|line| text(line)?.split_once(' ')) {
            let is_left = |tried: u64| u128::from(now.0.saturating_sub(tried)) > ALERT_TAKEOVER.as_millis();
            let Some(alert) = due_of(line).filter(|_| tried.parse().is_ok_and(is_left)) else { continue };
            if may_wait(&alert, now) {
                left.push(alert);
            } else {
                self.forget(&alert.id)?;
            }
        }
        Ok(left)
    }
}
