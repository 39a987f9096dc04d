//! An event that people receive by webhook. Data only: `gateway` raises it, a helper thread words and delivers it.

use crate::base::digest::{hex, sha256};

/// Kind of an alert.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum AlertKind {
    /// The used share of a budget has reached a threshold.
    Budget,
    /// A target fails, and has answered nothing for a while.
    Target,
    /// The ledger takes no usage records.
    Ledger,
    /// Sent by `tollgate alerts test`.
    Test,
}

impl AlertKind {
    /// Name in the request.
    pub fn name(self) -> &'static str {
        match self {
            AlertKind::Budget => "budget",
            AlertKind::Target => "target",
            AlertKind::Ledger => "ledger",
            AlertKind::Test => "test",
        }
    }

    /// The kind of this name.
    pub fn of(name: &str) -> Option<AlertKind> {
        let all = [AlertKind::Budget, AlertKind::Target, AlertKind::Ledger, AlertKind::Test];
        all.into_iter().find(|kind| kind.name() == name)
    }
}

/// Use of a budget when it reached a threshold.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct BudgetUse {
    /// Threshold in percent.
    pub threshold: u8,
    /// Nano-dollars used.
    pub used: u64,
    /// The whole budget in nano-dollars.
    pub limit: u64,
    /// First moment of the period, and of the next one, in milliseconds.
    pub period: [u64; 2],
}

/// An alert.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Alert {
    /// Kind.
    pub what: AlertKind,
    /// Owner of the budget, the target, or the ledger.
    pub name: String,
    /// What the alert is about, without the time: a budget by its owner's id and its threshold, or a target.
    pub subject: String,
    /// Start of the budget's period, or of the trouble, in milliseconds. An alert with the same subject that was
    /// delivered later than this is about the same event.
    pub since: u64,
    /// Time of the alert in milliseconds.
    pub at: u64,
    /// Use of the budget.
    pub budget: Option<BudgetUse>,
}

impl Alert {
    /// Id of the alert: every attempt to deliver it, on every host, has the same.
    pub fn id(&self) -> String {
        let digest = sha256(format!("{}\n{}\n{}", self.what.name(), self.subject, self.since).as_bytes());
        format!("alert_{}", hex(&digest[..16]))
    }

    /// True if `other` is about the same event, so that both have the same id.
    pub fn is_like(&self, other: &Alert) -> bool {
        self.what == other.what && self.subject == other.subject && self.since == other.since
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alert() -> Alert {
        let period = [1_793_491_200_000, 1_796_083_200_000];
        Alert {
            what: AlertKind::Budget,
            name: "group eng \"x\"".to_string(),
            subject: "budget/group/eng/80".to_string(),
            since: period[0],
            at: 1_795_165_210_000,
            budget: Some(BudgetUse { threshold: 80, used: 40_123_000_000, limit: 50_000_000_000, period }),
        }
    }

    #[test]
    fn id_depends_on_subject_and_event_only() {
        let later = Alert { at: 5, name: "other".to_string(), ..alert() };
        assert_eq!(alert().id(), later.id());
        for other in [Alert { since: 1, ..alert() }, Alert { subject: "budget/group/eng/100".to_string(), ..alert() }] {
            assert_ne!(alert().id(), other.id());
        }
    }
}
