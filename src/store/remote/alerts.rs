//! Delivery of alerts by one of several hosts: a host claims an alert before it sends it, and notes its delivery. It
//! leaves the alert in `alerts` meanwhile: if the host is gone, another one delivers it.

use super::Remote;
use super::values::{list, text};
use crate::base::digest::{hex, sha256};
use crate::base::limits::{ALERT_CLAIM, ALERT_KEPT, ALERT_TAKEOVER};
use crate::base::time::Unix;
use crate::policy::alert::Alert;
use crate::store::alerts::{due_line, due_of, may_wait};
use crate::store::api::StoreError;

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

impl Remote {
    /// Returns the names of the start of the last event whose alert was delivered, and of the claim.
    fn alert_places(&self, subject: &str) -> [String; 2] {
        let place = self.named("alert:") + &hex(&sha256(subject.as_bytes())[..16]);
        [place.clone(), place + ":claim"]
    }

    /// Claims an alert for one attempt.
    pub fn claim_alert(&mut self, alert: &Alert, now: Unix) -> Result<AlertTurn, StoreError> {
        self.connect()?;
        let [done, claim] = self.alert_places(&alert.subject);
        let claimed: Option<String> =
            self.query(redis::cmd("SET").arg(&claim).arg(1).arg("NX").arg("PX").arg(ALERT_CLAIM.as_millis() as u64))?;
        if claimed.is_none() {
            return Ok(AlertTurn::Others);
        }
        let since = self.read_text(redis::cmd("GET").arg(&done))?.and_then(|since| since.parse::<u64>().ok());
        // Hosts see the same trouble begin at different times; its end removes the entry.
        if since.is_some_and(|since| alert.what.lasts() || since >= alert.since) {
            self.alert_ended(alert)?;
            return Ok(AlertTurn::Done);
        }
        let waits = format!("{} {}", now.0, due_line(alert));
        self.query::<u64>(redis::cmd("HSET").arg(self.named("alerts")).arg(&alert.id).arg(waits))?;
        Ok(AlertTurn::Ours)
    }

    /// Gives a claim back.
    pub fn unclaim_alert(&mut self, alert: &Alert) -> Result<(), StoreError> {
        let [_, claim] = self.alert_places(&alert.subject);
        self.query::<u64>(redis::cmd("DEL").arg(&claim)).map(drop)
    }

    /// Notes that the alert was delivered, and gives its claim back.
    pub fn alert_sent(&mut self, alert: &Alert) -> Result<(), StoreError> {
        let [done, _] = self.alert_places(&alert.subject);
        let kept = ALERT_KEPT.as_millis() as u64;
        self.query::<String>(redis::cmd("SET").arg(&done).arg(alert.since).arg("PX").arg(kept))?;
        self.replicated()?;
        self.alert_ended(alert)
    }

    fn alert_ended(&mut self, alert: &Alert) -> Result<(), StoreError> {
        self.forget_alert(&alert.id)?;
        self.unclaim_alert(alert)
    }

    fn forget_alert(&mut self, id: &str) -> Result<(), StoreError> {
        self.query::<u64>(redis::cmd("HDEL").arg(self.named("alerts")).arg(id)).map(drop)
    }

    /// Notes that trouble of these subjects is over. Returns the alerts whose host has made no attempt for long, so
    /// that this one delivers them.
    pub fn left_alerts(&mut self, over: &[String], now: Unix) -> Result<Vec<Alert>, StoreError> {
        self.connect()?;
        for subject in over {
            let [done, _] = self.alert_places(subject);
            self.query::<u64>(redis::cmd("DEL").arg(&done))?;
        }
        let (waiting, mut left) = (self.read(redis::cmd("HVALS").arg(self.named("alerts")))?, Vec::new());
        for (tried, line) in list(&waiting).iter().filter_map(|line| text(line)?.split_once(' ')) {
            let is_left = |tried: u64| u128::from(now.0.saturating_sub(tried)) > ALERT_TAKEOVER.as_millis();
            let Some(alert) = due_of(line).filter(|_| tried.parse().is_ok_and(is_left)) else { continue };
            if may_wait(&alert, now) {
                left.push(alert);
            } else {
                self.forget_alert(&alert.id)?;
            }
        }
        Ok(left)
    }
}
