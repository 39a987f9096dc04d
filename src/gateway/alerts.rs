//! Raises alerts. Budgets raise theirs where their thresholds are logged. Targets and the ledger are looked at when the
//! helper thread that delivers alerts asks for it, every few seconds. Nothing here runs for a request, and without
//! `[alerts]` nothing at all.

use super::alert_watch::{AlertWatch, LastingTrouble};
use super::cx::Cx;
use super::orders::Order;
use crate::base::limits::ALERT_TARGET_FAILS;
use crate::base::time::Unix;
use crate::policy::alert::{Alert, AlertKind, BudgetUse};
use crate::policy::meter::{BudgetNews, BudgetOf};
use std::time::Duration;

impl Cx {
    /// Has the helper thread follow the present configuration, which starts it if there are alerts. `had`: the
    /// configuration before had alerts.
    pub(super) fn announce_alerts(&mut self, had: bool) {
        if had || self.setup.config.alerts.collector.is_some() {
            self.orders.push(Order::Alerts(self.setup.config.clone(), Vec::new()));
        }
    }

    fn raise(&mut self, alert: Alert) {
        self.orders.push(Order::Alerts(self.setup.config.clone(), vec![alert]));
    }

    /// Raises the alert for a share of a budget that has been used, if it is configured.
    pub(super) fn alert_budget(&mut self, news: &BudgetNews) {
        if !self.setup.config.alerts.thresholds().contains(&news.percent) {
            return;
        }
        let (name, owner) = match &news.of {
            BudgetOf::Key(key) => {
                let found = self.keys.get(*key);
                let payer = self.plans.of(*key, &self.keys, &self.setup.config).ok();
                let name = match payer.filter(|payer| !payer.plan.own_budget) {
                    Some(payer) => format!("key {} (plan {})", found.name(), payer.plan.name),
                    None => format!("key {}", found.name()),
                };
                (name, format!("key/{}", found.id()))
            }
            BudgetOf::Group(group) => (format!("group {group}"), format!("group/{group}")),
        };
        let (begins, renews) = news.period;
        let budget = BudgetUse {
            threshold: news.percent,
            used: news.status.used,
            limit: news.status.total,
            period: [begins.0, renews.0],
        };
        self.raise(Alert {
            what: AlertKind::Budget,
            name,
            subject: format!("{owner}/{}", news.percent),
            since: begins.0,
            at: self.now.unix.0,
            budget: Some(budget),
        });
    }

    /// Looks at the targets and the ledger.
    #[cold]
    pub(super) fn look_for_trouble(&mut self) {
        let mut watch = std::mem::take(&mut self.alerts);
        let setup = self.setup.clone();
        if setup.config.alerts.collector.is_some() {
            self.look_at_targets(&mut watch);
            self.look_at_ledger(&mut watch.ledger);
            watch.inherited = false;
            self.alerts = watch;
        }
    }

    fn look_at_targets(&mut self, watch: &mut AlertWatch) {
        let (now, setup) = (self.now, self.setup.clone());
        let mut next = 0;
        watch.looks += 1;
        for model in setup.config.catalog.models() {
            for target in model.targets.iter().chain(&model.relayed) {
                let place = watch.place(&target.label, next);
                let known = &mut watch.targets[place];
                if known.look == watch.looks {
                    continue;
                }
                next = place + 1;
                let (attempts, in_a_row) = self.breakers.tried(target);
                let [answered, failed] = std::mem::replace(&mut known.attempts, attempts);
                known.look = watch.looks;
                if watch.inherited {
                    continue;
                }
                if attempts[0] > answered {
                    known.trouble = LastingTrouble::default();
                }
                let fails = in_a_row > 0 || (attempts[0] == answered && attempts[1] > failed);
                if fails && known.trouble.since.is_none() {
                    known.trouble.since = Some((now.mono, now.unix));
                }
                if known.trouble.is_news(ALERT_TARGET_FAILS, now.mono)
                    && let Some((_, since)) = known.trouble.since
                {
                    self.raise_trouble(AlertKind::Target, &target.label, since);
                }
            }
        }
        let looks = watch.looks;
        watch.targets.retain(|target| target.look == looks);
    }

    fn look_at_ledger(&mut self, trouble: &mut LastingTrouble) {
        let (now, most) = (self.now, self.setup.config.store.max_commit_lag);
        let lag = self.ledger.lag(now.mono);
        let is_late = u128::from(lag) > most.as_micros();
        if !is_late && !self.ledger.is_failed() {
            *trouble = LastingTrouble::default();
            return;
        }
        let (_, since) = *trouble.since.get_or_insert((now.mono, Unix(now.unix.0.saturating_sub(lag / 1000))));
        if trouble.is_news(if is_late { Duration::ZERO } else { most }, now.mono) {
            self.raise_trouble(AlertKind::Ledger, "the ledger", since);
        }
    }

    fn raise_trouble(&mut self, what: AlertKind, name: &str, since: Unix) {
        let (name, subject, at) = (name.to_string(), format!("{}/{name}", what.name()), self.now.unix.0);
        self.raise(Alert { what, name, subject, since: since.0, at, budget: None });
    }
}
