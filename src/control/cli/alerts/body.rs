//! The body of the request that delivers an alert.

use crate::base::text::{push_cost, quoted};
use crate::base::time::Unix;
use crate::policy::alert::{Alert, AlertKind, AlertProblem, BudgetUse};
use crate::policy::config::AlertForm;
use crate::policy::window::iso;
use serde_json::{Value, json};

/// Body of the request.
pub fn body(alert: &Alert, form: AlertForm) -> String {
    match form {
        AlertForm::Generic => generic(alert),
        AlertForm::Slack => format!("{{\"text\":{}}}", Value::from(escaped(&words(alert)))),
    }
}

/// Escapes the characters that make links and mentions in Slack: names of keys and groups are plain text
/// (docs.slack.dev/messaging/formatting-message-text, "Escaping text").
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn generic(alert: &Alert) -> String {
    let (id, what, name) = (&alert.id, alert.what.as_str(), Value::from(&*alert.name));
    let budget = alert.budget.as_ref();
    let value = |of: fn(&BudgetUse) -> Value| budget.map_or(Value::Null, of);
    let amount = |of: fn(&BudgetUse) -> u64| budget.map_or("null".to_string(), |budget| dollars(of(budget)));
    let (threshold, scope) = (value(|budget| budget.threshold.into()), value(|budget| budget.scope.into()));
    let (resource, per) = (value(|it| it.cap.resource.as_str().into()), value(|it| it.cap.per.text().into()));
    let models = value(|budget| budget.cap.models.text().map_or(Value::Null, |models| (&**models).into()));
    let (used, limit) = (amount(|budget| budget.used), amount(|budget| budget.cap.total));
    let period = value(|budget| budget.period.map(|at| iso(Unix(at))).join("/").into());
    let limit =
        format!("\"scope\":{scope},\"resource\":{resource},\"per\":{per},\"models\":{models},\"limit\":{limit}");
    let budget = format!("{limit},\"threshold\":{threshold},\"used\":{used},\"period\":{period}");
    let ended = alert.problem.as_ref().and_then(|problem| problem.ended);
    let event = Value::from(if ended.is_some() { "resolved" } else { "raised" });
    let problem = alert.problem.as_ref().map(|AlertProblem { text, cause, failed, models, advice, .. }| {
        let (next, manual) = (advice.next, advice.manual);
        json!({ "text": text, "cause": cause, "failed": failed, "models": models, "next": next, "manual": manual })
    });
    let [since, at] = [alert.since, alert.at].map(|at| Value::from(iso(Unix(at))));
    let end = format!("\"since\":{since},\"at\":{at},\"problem\":{}}}", problem.unwrap_or_default());
    format!("{{\"id\":\"{id}\",\"event\":{event},\"what\":\"{what}\",\"name\":{name},{budget},{end}")
}

/// The alert as a sentence, with its id.
fn words(alert: &Alert) -> String {
    let (name, since) = (&alert.name, iso(Unix(alert.since)));
    if let Some(AlertProblem { text, advice, ended, .. }) = &alert.problem {
        let until = ended.map_or(String::new(), |ended| format!(" until {}", iso(Unix(ended))));
        let next = if advice.next.is_empty() { String::new() } else { format!(". {}", advice.next) };
        let what = if alert.what == AlertKind::Target { "target " } else { "" };
        return format!("Tollgate: {what}{name}, since {since}{until}: {text}{next} ({})", alert.id);
    }
    let text = match (alert.what, &alert.budget) {
        (AlertKind::Budget, Some(BudgetUse { threshold, used, cap, period: [_, renews], .. })) => {
            let (used, limit, until, span) = (to_cents(*used), to_cents(cap.total), iso(Unix(*renews)), cap.words());
            let (of, name) = name.split_once(' ').unwrap_or(("owner", name));
            let name = quoted(name);
            format!(
                "the budget of {of} {name}{span} has reached {threshold} %: ${used} of ${limit}; it renews at {until}"
            )
        }
        (AlertKind::Target, _) => format!("target {name} has failed since {since} without a success"),
        (AlertKind::Ledger, _) => format!("{name} has not been written since {since}"),
        (AlertKind::Budget | AlertKind::Test, _) => format!("this is a test of {name}"),
    };
    format!("Tollgate: {text} ({})", alert.id)
}

fn dollars(nano: u64) -> String {
    let mut text = Vec::new();
    push_cost(&mut text, nano);
    String::from_utf8(text).unwrap_or_default()
}

/// Nano-dollars as dollars, with at least two decimals.
fn to_cents(nano: u64) -> String {
    dollars(nano) + if nano.is_multiple_of(100_000_000) { "0" } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::attribution::HashKey;
    use crate::policy::cause::Advice;
    use crate::policy::plan::caps::Cap;

    fn alert() -> Alert {
        let period = [1_793_491_200_000, 1_796_083_200_000];
        let cap = Cap::parse("budget=50/month:opus-*").unwrap();
        let alert = Alert {
            id: String::new(),
            what: AlertKind::Budget,
            name: "group eng \"x\"".to_string(),
            subject: "group/eng/80".to_string(),
            since: period[0],
            at: 1_795_165_210_000,
            budget: Some(BudgetUse { threshold: 80, used: 40_123_000_000, cap, scope: "group", period }),
            problem: None,
        };
        alert.identified(&HashKey([7; 32]))
    }

    #[test]
    fn id_depends_on_ledger_subject_and_event_only() {
        let id = |alert: Alert, key: u8| alert.identified(&HashKey([key; 32])).id;
        assert_eq!(id(Alert { at: 5, name: "other".to_string(), ..alert() }, 7), alert().id);
        assert_ne!(id(alert(), 8), alert().id);
        for other in [Alert { since: 1, ..alert() }, Alert { subject: "group/eng/100".to_string(), ..alert() }] {
            assert_ne!(id(other, 7), alert().id);
        }
    }

    #[test]
    fn generic_body_has_all_members() {
        let body: serde_json::Value = serde_json::from_str(&body(&alert(), AlertForm::Generic)).unwrap();
        let want = serde_json::json!({
            "id": alert().id, "event": "raised", "what": "budget", "name": "group eng \"x\"", "threshold": 80, "used": 40.123,
            "limit": 50.0, "scope": "group", "resource": "budget", "per": "month", "models": "opus-*", "period": "2026-11-01T00:00:00Z/2026-12-01T00:00:00Z", "at": "2026-11-20T09:00:10Z",
            "since": "2026-11-01T00:00:00Z", "problem": null,
        });
        assert_eq!(body, want);
        let target = Alert { what: AlertKind::Target, budget: None, ..alert() };
        let body: serde_json::Value = serde_json::from_str(&super::body(&target, AlertForm::Generic)).unwrap();
        assert!(body["threshold"].is_null() && body["period"].is_null() && body["what"] == "target", "{body}");
    }

    #[test]
    fn problem_has_its_effect_and_its_end() {
        let advice = Advice::LEDGER;
        let (text, cause, models) =
            ("failing: status 500".to_string(), "status 500".to_string(), vec!["m".to_string()]);
        let problem = Some(AlertProblem { text, cause, failed: 87, models, advice, ended: None });
        let raised = Alert { what: AlertKind::Target, name: "a/m".to_string(), budget: None, problem, ..alert() };
        let of = |alert: &Alert, form| serde_json::from_str::<Value>(&body(alert, form)).unwrap();
        let generic = of(&raised, AlertForm::Generic);
        assert_eq!((&generic["event"], &generic["problem"]["failed"]), (&"raised".into(), &87.into()), "{generic}");
        let slack = of(&raised, AlertForm::Slack)["text"].to_string();
        assert!(slack.contains("target a/m, since 2026-11-01T00:00:00Z: failing: status 500. Free space"), "{slack}");
        let resolved = Alert::resolved(raised.id.clone(), "target/a/m", raised.since, raised.at).unwrap();
        assert_eq!((&resolved.id, &*resolved.name), (&raised.id, "a/m"));
        assert_eq!(of(&resolved, AlertForm::Generic)["event"], "resolved");
        let slack = of(&resolved, AlertForm::Slack)["text"].to_string();
        assert!(slack.contains("until 2026-11-20T09:00:10Z: resolved: it answers again ("), "{slack}");
        assert_eq!(Alert::resolved(String::new(), "nothing/a", 0, 0), None);
    }

    #[test]
    fn slack_body_is_one_text_with_the_id() {
        let body: serde_json::Value = serde_json::from_str(&body(&alert(), AlertForm::Slack)).unwrap();
        let text = body["text"].as_str().unwrap();
        assert_eq!(body.as_object().unwrap().len(), 1);
        assert!(
            text.starts_with("Tollgate: the budget of group `eng \"x\"` for a month and models opus-* has reached 80 %: $40.123 of $50.00;"),
            "{text}"
        );
        assert!(text.ends_with(&format!("({})", alert().id)), "{text}");
        let named = Alert { name: "key <!channel> & <http://evil.example|x>".into(), ..alert() };
        let body: serde_json::Value = serde_json::from_str(&super::body(&named, AlertForm::Slack)).unwrap();
        let text = body["text"].as_str().unwrap();
        assert!(
            text.contains(
                "key `&lt;!channel&gt; &amp; &lt;http://evil.example|x&gt;` for a month and models opus-* has reached"
            ),
            "{text}"
        );
    }
}
