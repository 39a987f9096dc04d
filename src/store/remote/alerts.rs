//! Delivery of alerts by one of several hosts: a host claims an alert before it sends it, and notes its delivery.

use super::Remote;
use crate::base::digest::{hex, sha256};
use crate::base::limits::{ALERT_CLAIM, ALERT_KEPT};
use crate::base::time::Unix;
use crate::policy::alert::Alert;
use crate::store::api::StoreError;

/// Who delivers an alert.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum AlertTurn {
    /// This host.
    Ours,
    /// Another host, at present.
    Others,
    /// It was delivered.
    Done,
}

impl Remote {
    /// Returns the names of the moment of the last delivery, and of the claim.
    fn alert_places(&self, alert: &Alert) -> [String; 2] {
        let place = self.named("alert:") + &hex(&sha256(alert.subject.as_bytes())[..16]);
        [place.clone(), place + ":claim"]
    }

    /// Claims an alert for one attempt.
    pub fn claim_alert(&mut self, alert: &Alert) -> Result<AlertTurn, StoreError> {
        self.connect()?;
        let [sent, claim] = self.alert_places(alert);
        let claimed: Option<String> =
            self.query(redis::cmd("SET").arg(&claim).arg(1).arg("NX").arg("PX").arg(ALERT_CLAIM.as_millis() as u64))?;
        if claimed.is_none() {
            return Ok(AlertTurn::Others);
        }
        let at = self.read_text(redis::cmd("GET").arg(&sent))?.and_then(|at| at.parse::<u64>().ok());
        if at.is_some_and(|at| at >= alert.since) {
            self.unclaim_alert(alert)?;
            return Ok(AlertTurn::Done);
        }
        Ok(AlertTurn::Ours)
    }

    /// Gives a claim back.
    pub fn unclaim_alert(&mut self, alert: &Alert) -> Result<(), StoreError> {
        let [_, claim] = self.alert_places(alert);
        self.query::<u64>(redis::cmd("DEL").arg(&claim)).map(drop)
    }

    /// Notes that the alert was delivered, and gives its claim back.
    pub fn alert_sent(&mut self, alert: &Alert, at: Unix) -> Result<(), StoreError> {
        let [sent, _] = self.alert_places(alert);
        self.query::<String>(redis::cmd("SET").arg(&sent).arg(at.0).arg("PX").arg(ALERT_KEPT.as_millis() as u64))?;
        self.replicated()?;
        self.unclaim_alert(alert)
    }
}
