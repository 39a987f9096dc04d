//! An event that people receive by webhook. Data only: `gateway` raises it, a helper thread words and delivers it.

use super::attribution::HashKey;
use super::cause::Advice;
use super::plan::caps::Cap;
use crate::base::words;

words! {
    /// Kind of an alert.
    #[derive(Copy, Clone, PartialEq, Eq, Debug)]
    pub enum AlertKind {
        /// The used share of a budget has reached a threshold.
        Budget = "budget",
        /// A target fails, and has answered nothing for a while.
        Target = "target",
        /// The ledger takes no usage records.
        Ledger = "ledger",
        /// Sent by `tollgate alerts test`.
        Test = "test",
    }
}

impl AlertKind {
    /// True if an alert is about trouble that lasts until it is over.
    pub fn lasts(self) -> bool {
        matches!(self, AlertKind::Target | AlertKind::Ledger)
    }
}

/// Use of a budget when it reached a threshold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BudgetUse {
    /// Threshold in percent.
    pub threshold: u8,
    /// Nano-dollars used.
    pub used: u64,
    /// The budget.
    pub cap: Cap,
    /// Where it is set: `key`, `plan` or `group`.
    pub scope: &'static str,
    /// First moment of its window or period, and of the next one, in milliseconds.
    pub period: [u64; 2],
}

/// Description of the trouble, in the words of the status.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AlertProblem {
    /// The problem in one sentence.
    pub text: String,
    /// Its cause.
    pub cause: String,
    /// Requests of clients that failed because of it in five minutes.
    pub failed: u64,
    /// Models that use the target.
    pub models: Vec<String>,
    /// Next step of the operator.
    pub advice: Advice,
    /// Time from which it is over, in milliseconds.
    pub ended: Option<u64>,
}

/// An alert.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Alert {
    /// Identifies the alert: the same in every attempt to deliver it and on every host, different in every other
    /// ledger. See [`Alert::identified`].
    pub id: String,
    /// Kind.
    pub what: AlertKind,
    /// Owner of the budget, the target, or the ledger.
    pub name: String,
    /// Subject of the alert, without the time: a budget by its owner's id, its threshold and what it limits,
    /// or a target.
    pub subject: String,
    /// Start of the budget's period, or of the trouble, in milliseconds.
    pub since: u64,
    /// Time from which it is delivered, in milliseconds. Trouble that is over before raises no alert.
    pub at: u64,
    /// Use of the budget.
    pub budget: Option<BudgetUse>,
    /// The trouble of the target or the ledger, if this process knows it.
    pub problem: Option<AlertProblem>,
}

impl Alert {
    /// Gives it an id that follows from its event and from the ledger that `key` belongs to.
    pub fn identified(mut self, key: &HashKey) -> Alert {
        let event = format!("{}\n{}\n{}", self.what.as_str(), self.subject, self.since);
        self.id = format!("alert_{}", key.alert(event.as_bytes()));
        self
    }

    /// The event that ends an alert with this id: the trouble of `subject` began at `since` and was over at `ended`.
    pub fn resolved(id: String, subject: &str, since: u64, ended: u64) -> Option<Alert> {
        let (what, name) = subject.split_once('/')?;
        let what = AlertKind::ALL.into_iter().find(|kind| kind.as_str() == what)?;
        let text = match what {
            AlertKind::Target => "resolved: it answers again",
            _ => "resolved: it is written again",
        };
        let (text, cause, models, advice) = (text.to_string(), String::new(), Vec::new(), Advice::NONE);
        let problem = AlertProblem { text, cause, failed: 0, models, advice, ended: Some(ended) };
        let (name, subject) = (name.to_string(), subject.to_string());
        Some(Alert { id, what, name, subject, since, at: ended, budget: None, problem: Some(problem) })
    }
}

/// Report of the core about an alert.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AlertNews {
    /// There is an alert, unless it was raised before.
    Raised(Box<Alert>),
    /// The trouble of this subject is over since this moment: its next one raises an alert again.
    Over(String, u64),
}
