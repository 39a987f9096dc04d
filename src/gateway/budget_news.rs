//! Logs budget threshold crossings, and raises alerts for them. For budgets that several hosts use, the shared ledger
//! has the sum: it is queried when the use of a key has changed here, and for all keys at the start.

use super::budget_sums::NO_EXCHANGE;
use super::cx::Cx;
use super::orders::Order;
use crate::base::text::{push_dollars, push_number};
use crate::policy::ask::{Ask, Limits, Wish};
use crate::policy::keys::KeyIx;
use crate::policy::meter::{Amount, BudgetNews, BudgetOf, LOGGED_PERCENT};
use crate::policy::window;
use crate::wire::json::write_string;

/// Queries the shared ledger for the sums of keys whose rows are committed.
#[cold]
pub(super) fn ask_for_sums(cx: &mut Cx) {
    let is_safe = |row: u64| !cx.ledger.is_failed() && cx.ledger.is_safe(row);
    for key in cx.lookups.sums.take(cx.now.mono, cx.keys.len() as u32, is_safe) {
        let Ok(payer) = cx.plans.of(key, &cx.keys, &cx.setup.config) else { continue };
        let groups: Box<[Limits]> = cx.meter.group_limits(payer.path).iter().map(Limits::of).collect();
        let limits = Limits::of(payer.plan);
        if limits.budget > 0 || groups.iter().any(|group| group.budget > 0) {
            let lease = cx.meter.lease_for(payer, cx.now.unix, Amount::default());
            let (number, key) = (NO_EXCHANGE, cx.keys.get(key).id());
            cx.orders.ask(Ask { number, key, lease, limits, groups, admits: false, wish: Wish::default() });
        }
    }
}

impl Cx {
    /// Checks the budget of this key, which may have changed. [`Cx::tell_of_budgets`] logs the news.
    pub(super) fn rebudget(&mut self, key: KeyIx) {
        if self.keys.get(key).is_live(self.now.unix)
            && let Ok(payer) = self.plans.of(key, &self.keys, &self.setup.config)
        {
            self.meter.rebudget(payer, self.now.unix);
        }
    }

    /// Raises alerts for all shares of budgets that have been used in their periods.
    pub(super) fn report_passed(&mut self) {
        if self.is_shared() {
            self.lookups.sums.add_all(self.now.mono);
        }
        for key in self.meter.counted() {
            if self.keys.get(key).is_live(self.now.unix)
                && let Ok(payer) = self.plans.of(key, &self.keys, &self.setup.config)
            {
                self.meter.report_passed(payer, self.now.unix);
            }
        }
        self.meter.report_passed_groups(self.now.unix);
        self.tell_of_budgets();
    }

    /// Checks the budgets of all keys that have any usage: others have no news.
    pub(super) fn rebudget_all(&mut self) {
        for key in self.meter.counted() {
            self.rebudget(key);
        }
        self.tell_of_budgets();
    }

    /// Reports the budgets whose use has crossed a threshold.
    pub(crate) fn tell_of_budgets(&mut self) {
        let mut alerts = Vec::new();
        for news in self.meter.take_news() {
            alerts.extend(self.budget_alert(&news));
            let BudgetNews { of, percent, status, period: (_, renews), fresh } = news;
            if !fresh || !LOGGED_PERCENT.contains(&percent) {
                continue;
            }
            let (what, whose) = match &of {
                BudgetOf::Key(key) => ("key", self.keys.get(*key).id().to_string()),
                BudgetOf::Group(name) => ("group", name.to_string()),
            };
            self.log_event(|out| {
                out.extend_from_slice(b",\"event\":\"budget\",\"percent\":");
                push_number(out, percent.into());
                for part in [",\"", what, "\":"] {
                    out.extend_from_slice(part.as_bytes());
                }
                write_string(out, &whose);
                for (before, nano) in [(",\"used\":", status.used), (",\"budget\":", status.total)] {
                    out.extend_from_slice(before.as_bytes());
                    push_dollars(out, nano);
                }
                out.extend_from_slice(b",\"until\":\"");
                window::write_iso(renews, out);
                out.push(b'"');
            });
        }
        if !alerts.is_empty() {
            self.orders.push(Order::Alerts(self.setup.config.clone(), alerts));
        }
    }
}
