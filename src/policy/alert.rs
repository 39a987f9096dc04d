//! An event that people receive by webhook. Data only: `gateway` raises it, a helper thread delivers it.

use super::config::AlertForm;
use super::window::{iso, write_iso};
use crate::base::digest::{hex, sha256};
use crate::base::text::{push_cost, push_number};
use crate::base::time::Unix;
use crate::wire::json::write_string;
use serde::{Deserialize, Serialize};

/// Kind of an alert.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
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
}

/// Use of a budget when it reached a threshold.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
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
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<BudgetUse>,
}

impl Alert {
    /// Id of the alert: every attempt to deliver it, on every host, has the same.
    pub fn id(&self) -> String {
        let digest = sha256(format!("{}\n{}\n{}", self.what.name(), self.subject, self.since).as_bytes());
        format!("alert_{}", hex(&digest[..16]))
    }

    /// Body of the request.
    pub fn body(&self, form: AlertForm) -> Vec<u8> {
        let mut out = Vec::new();
        match form {
            AlertForm::Generic => self.write(&mut out),
            AlertForm::Slack => {
                out.extend_from_slice(b"{\"text\":");
                write_string(&mut out, &self.words());
                out.push(b'}');
            }
        }
        out
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"id\":");
        write_string(out, &self.id());
        out.extend_from_slice(b",\"what\":");
        write_string(out, self.what.name());
        out.extend_from_slice(b",\"name\":");
        write_string(out, &self.name);
        match &self.budget {
            Some(budget) => {
                out.extend_from_slice(b",\"threshold\":");
                push_number(out, budget.threshold.into());
                out.extend_from_slice(b",\"used\":");
                push_cost(out, budget.used);
                out.extend_from_slice(b",\"limit\":");
                push_cost(out, budget.limit);
                out.extend_from_slice(b",\"period\":\"");
                write_iso(Unix(budget.period[0]), out);
                out.push(b'/');
                write_iso(Unix(budget.period[1]), out);
                out.push(b'"');
            }
            None => out.extend_from_slice(b",\"threshold\":null,\"used\":null,\"limit\":null,\"period\":null"),
        }
        out.extend_from_slice(b",\"at\":\"");
        write_iso(Unix(self.at), out);
        out.extend_from_slice(b"\"}");
    }

    /// The alert as a sentence, with its id.
    fn words(&self) -> String {
        let (name, since) = (&self.name, iso(Unix(self.since)));
        let text = match (self.what, &self.budget) {
            (AlertKind::Budget, Some(budget)) => {
                let dollars = |nano| {
                    let mut text = Vec::new();
                    push_cost(&mut text, nano);
                    String::from_utf8(text).unwrap_or_default()
                };
                let (used, limit, until) = (dollars(budget.used), dollars(budget.limit), iso(Unix(budget.period[1])));
                let percent = budget.threshold;
                format!("the budget of {name} has reached {percent} %: ${used} of ${limit}; it renews at {until}")
            }
            (AlertKind::Target, _) => format!("target {name} has failed since {since} without a success"),
            (AlertKind::Ledger, _) => format!("{name} has not been written since {since}"),
            (AlertKind::Budget | AlertKind::Test, _) => format!("this is a test of {name}"),
        };
        format!("Tollgate: {text} ({})", self.id())
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
    fn generic_body_has_all_members() {
        let body: serde_json::Value = serde_json::from_slice(&alert().body(AlertForm::Generic)).unwrap();
        let want = serde_json::json!({
            "id": alert().id(), "what": "budget", "name": "group eng \"x\"", "threshold": 80, "used": 40.123,
            "limit": 50.0, "period": "2026-11-01T00:00:00Z/2026-12-01T00:00:00Z", "at": "2026-11-20T09:00:10Z",
        });
        assert_eq!(body, want);
        let target = Alert { what: AlertKind::Target, budget: None, ..alert() };
        let body: serde_json::Value = serde_json::from_slice(&target.body(AlertForm::Generic)).unwrap();
        assert!(body["threshold"].is_null() && body["period"].is_null() && body["what"] == "target", "{body}");
    }

    #[test]
    fn slack_body_is_one_text_with_the_id() {
        let body: serde_json::Value = serde_json::from_slice(&alert().body(AlertForm::Slack)).unwrap();
        let text = body["text"].as_str().unwrap();
        assert_eq!(body.as_object().unwrap().len(), 1);
        assert!(
            text.starts_with("Tollgate: the budget of group eng \"x\" has reached 80 %: $40.123 of $50.0;"),
            "{text}"
        );
        assert!(text.ends_with(&format!("({})", alert().id())), "{text}");
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
