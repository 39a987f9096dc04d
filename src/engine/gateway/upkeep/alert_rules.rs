//! Raises alerts. Alerts of budgets are raised with the log lines of their thresholds. Targets and the ledger are
//! checked when the helper thread that delivers alerts requests it, every second. Nothing here runs for a request,
//! and without `[alerts]` nothing at all.
//!
//! An alert may be raised again after a restart or a reload: the ledger remembers those that were delivered.

use super::trouble::{ledger_alert, target_alert};
use crate::gateway::cx::Cx;
use crate::gateway::orders::Order;
use crate::gateway::report::alert_watch::{AlertWatch, TroubleState};
use crate::policy::alert::{Alert, AlertKind, AlertNews, AlertProblem, BudgetUse};
use crate::policy::config::Alerts;
use crate::policy::meter::{BudgetNews, BudgetOf};
use std::time::Duration;

/// Time without a success after which a failing target raises an alert.
const ALERT_TARGET_FAILS: Duration = Duration::from_secs(60);

/// The sums of all budgets are queried from a shared ledger at every so many looks, which are seconds: the host whose
/// requests have used a budget may end before it has delivered the alert.
const LOOKS_PER_SUM: u64 = 20;

impl Cx {
    /// Has the helper thread follow the present configuration, which starts it if there are alerts. `had`: `[alerts]`
    /// before.
    pub(crate) fn announce_alerts(&mut self, had: Option<&Alerts>) {
        let has = &self.setup.config.alerts;
        if has.collector.is_none() && had.is_none_or(|had| had.collector.is_none()) {
            return;
        }
        // A threshold may have been passed before it was configured, or just before the last process ended.
        let raises = had.is_none_or(|had| had.thresholds() != has.thresholds());
        self.commands.orders.push(Order::Alerts(self.setup.config.clone(), Vec::new()));
        if raises {
            self.report_passed();
        }
    }

    /// The alert for a share of a budget that has been used, if it is configured.
    pub(crate) fn budget_alert(&self, news: &BudgetNews) -> Option<AlertNews> {
        if !self.setup.config.alerts.thresholds().contains(&news.percent) {
            return None;
        }
        let (scope, name, owner) = match &news.of {
            BudgetOf::Key(key) => {
                let found = self.access.keys.get(*key);
                let payer = self.access.payer(*key, &self.setup.config).ok();
                let (scope, name) = match payer.filter(|_| !news.cap.own) {
                    Some(payer) => ("plan", ["key ", found.name(), " (plan ", &payer.plan.name, ")"].concat()),
                    None => ("key", ["key ", found.name()].concat()),
                };
                (scope, name, ["key/", &found.id().to_string()].concat())
            }
            BudgetOf::Group(group) => ("group", ["group ", group].concat(), ["group/", group].concat()),
        };
        let (begins, renews) = news.bounds;
        let budget = BudgetUse {
            threshold: news.percent,
            used: news.used,
            cap: news.cap.clone(),
            scope,
            period: [begins.0, renews.0],
        };
        let alert = Alert {
            id: String::new(),
            what: AlertKind::Budget,
            name,
            subject: [&*owner, "/", &news.percent.to_string(), "/", &news.cap.name()].concat(),
            since: begins.0,
            at: self.now.unix.0,
            budget: Some(budget),
            problem: None,
        };
        Some(AlertNews::Raised(Box::new(alert.identified(&self.report.hash_key))))
    }

    /// Checks the targets and the ledger.
    #[cold]
    pub(crate) fn look_for_trouble(&mut self) {
        let mut watch = std::mem::take(&mut self.report.alerts);
        if self.setup.config.alerts.collector.is_some() {
            if self.is_shared() && watch.looks.is_multiple_of(LOOKS_PER_SUM) {
                self.access.lookups.sums.add_all(self.now.mono);
            }
            self.look_at_targets(&mut watch);
            self.look_at_ledger(&mut watch);
            let news = std::mem::take(&mut watch.news);
            if !news.is_empty() {
                self.commands.orders.push(Order::Alerts(self.setup.config.clone(), news));
            }
            self.report.alerts = watch;
        }
    }

    fn look_at_targets(&mut self, watch: &mut AlertWatch) {
        let setup = self.setup.clone();
        let mut next = 0;
        watch.looks += 1;
        for model in setup.config.catalog.models() {
            for target in model.targets.iter().chain(&model.passthrough_targets) {
                let place = watch.place(&target.label, next);
                let known = &mut watch.targets[place];
                if known.look == watch.looks {
                    continue;
                }
                next = place + 1;
                let sums = self.upstreams.breakers.sums(target);
                let (attempts, in_a_row) = sums.map_or(([0; 2], 0), |(_, attempts, in_a_row)| (attempts, in_a_row));
                let [answered, failed] = std::mem::replace(&mut known.attempts, attempts);
                known.look = watch.looks;
                if attempts[0] > answered && known.trouble.becomes(TroubleState::Fine) {
                    watch.news.push(self.trouble_over(AlertKind::Target, &target.label));
                }
                let fails = in_a_row > 0 || (attempts[0] == answered && attempts[1] > failed);
                if fails && !matches!(known.trouble, TroubleState::Begun(_) | TroubleState::Trouble) {
                    known.trouble = TroubleState::Begun(self.now.unix);
                }
                // The alert is raised when it is due, so that its words are those of the present.
                if let TroubleState::Begun(since) = known.trouble
                    && self.now.unix.0 >= since.0 + ALERT_TARGET_FAILS.as_millis() as u64
                {
                    known.trouble = TroubleState::Trouble;
                    let ago = self.now.unix.0 - since.0;
                    let problem = target_alert(target, self);
                    let alert = self.trouble(AlertKind::Target, &target.label, ago, ALERT_TARGET_FAILS, problem);
                    watch.news.push(alert);
                }
            }
        }
        let looks = watch.looks;
        watch.targets.retain(|target| target.look == looks);
    }

    fn look_at_ledger(&mut self, watch: &mut AlertWatch) {
        let most = self.setup.config.store.max_commit_lag;
        let lag = self.accounts.ledger.lag(self.now.mono);
        let (name, is_late) = ("the ledger", u128::from(lag) > most.as_micros());
        if is_late || self.accounts.ledger.is_failed() {
            if watch.ledger.becomes(TroubleState::Trouble) {
                let problem = ledger_alert(self);
                watch.news.push(self.trouble(AlertKind::Ledger, name, lag / 1000, most, problem));
            }
        } else if (watch.ledger == TroubleState::Trouble || self.accounts.ledger.committed > 0)
            && watch.ledger.becomes(TroubleState::Fine)
        {
            watch.news.push(self.trouble_over(AlertKind::Ledger, name));
        }
    }

    /// The alert for a problem that began `ago` milliseconds before, if it has lasted for `long`.
    fn trouble(
        &self,
        what: AlertKind,
        name: &str,
        ago: u64,
        long: Duration,
        problem: Option<AlertProblem>,
    ) -> AlertNews {
        let (name, subject) = (name.to_string(), format!("{}/{name}", what.as_str()));
        let since = self.now.unix.0.saturating_sub(ago);
        let at = since.saturating_add(long.as_millis() as u64);
        let alert = Alert { id: String::new(), what, name, subject, since, at, budget: None, problem };
        AlertNews::Raised(Box::new(alert.identified(&self.report.hash_key)))
    }

    fn trouble_over(&self, what: AlertKind, name: &str) -> AlertNews {
        AlertNews::Over(format!("{}/{name}", what.as_str()), self.now.unix.0)
    }
}
