//! Logs budget threshold crossings, and raises alerts for them. For budgets that several hosts use, the shared ledger
//! has the sum: it is queried when the use of a key has changed here, for all keys at the start, and for groups when
//! their use is read.

use crate::base::text::{push_dollars, push_number};
use crate::gateway::accounts::budget_sums::NO_EXCHANGE;
use crate::gateway::cx::Cx;
use crate::gateway::orders::Order;
use crate::policy::keys::KeyIx;
use crate::policy::ledger::{Ask, Wish};
use crate::policy::meter::{Amount, BudgetNews, BudgetOf, LOGGED_PERCENT, PathIx, Payer};
use crate::policy::window;
use crate::wire::json::write_string;

/// Queries the shared ledger for the sums of keys whose rows are committed, and of groups whose use is being read.
#[cold]
pub(crate) fn ask_for_sums(cx: &mut Cx) {
    let is_safe = |row: u64| !cx.accounts.ledger.is_failed() && cx.accounts.ledger.is_safe(row);
    for key in cx.access.lookups.sums.take(cx.now.mono, cx.access.keys.len() as u32, is_safe) {
        ask_for(cx, key, None);
    }
    let setup = cx.setup.clone();
    let groups = &setup.config.groups;
    let read = cx.access.lookups.sums.take_groups(groups.len());
    // Any key will do: the answer has the sums of all groups in the question.
    if read.len() > 0
        && let Some(key) =
            (0..cx.access.keys.len() as u32).map(KeyIx).find(|key| cx.access.keys.get(*key).is_live(cx.now.unix))
    {
        read.for_each(|at| ask_for(cx, key, cx.accounts.meter.path_of(&groups[at].limits.name)));
    }
}

/// The use of groups is being read. If several hosts change it, the next reader gets their sums.
pub(crate) fn groups_read(cx: &mut Cx) {
    if cx.is_shared() {
        cx.access.lookups.sums.add_groups(cx.now.mono);
    }
}

/// Asks for the sums of a key and of the groups on `path`, or else on its own path, if any of them has a budget.
#[cold]
fn ask_for(cx: &mut Cx, key: KeyIx, path: Option<PathIx>) {
    let Ok(payer) = cx.access.payer(key, &cx.setup.config) else { return };
    let payer = Payer { path: path.unwrap_or(payer.path), ..payer };
    let limits = cx.accounts.meter.limits_of(payer);
    let lease = cx.accounts.meter.lease_for(payer, cx.now.unix, Amount::default());
    let budgets = lease.parts.iter().zip(&limits.parts).filter(|(_, [.., nano])| *nano > 0);
    if budgets.into_iter().any(|(part, _)| path.is_none() || !part.group().is_empty()) {
        let (number, key) = (NO_EXCHANGE, cx.access.keys.get(key).id());
        cx.commands.orders.ask(Ask { number, key, lease, limits, admits: false, wish: Wish::default(), promise: None });
    }
}

impl Cx {
    /// Checks the budget of this key, which may have changed. [`Cx::tell_of_budgets`] logs the news.
    pub(crate) fn rebudget(&mut self, key: KeyIx) {
        if self.access.keys.get(key).is_live(self.now.unix)
            && let Ok(payer) = self.access.payer(key, &self.setup.config)
        {
            self.accounts.meter.rebudget(payer, self.now.unix);
        }
    }

    /// Raises alerts for all shares of budgets that have been used in their periods.
    pub(crate) fn report_passed(&mut self) {
        if self.is_shared() {
            self.access.lookups.sums.add_all(self.now.mono);
        }
        for key in self.accounts.meter.counted() {
            if self.access.keys.get(key).is_live(self.now.unix)
                && let Ok(payer) = self.access.payer(key, &self.setup.config)
            {
                self.accounts.meter.report_passed(payer, self.now.unix);
            }
        }
        self.accounts.meter.report_passed_groups(self.now.unix);
        self.tell_of_budgets();
    }

    /// Checks the budgets of all keys that have any usage: others have no news.
    pub(crate) fn rebudget_all(&mut self) {
        for key in self.accounts.meter.counted() {
            self.rebudget(key);
        }
        self.tell_of_budgets();
    }

    /// Reports the budgets whose use has crossed a threshold.
    pub(crate) fn tell_of_budgets(&mut self) {
        let mut alerts = Vec::new();
        for news in self.accounts.meter.take_news() {
            alerts.extend(self.budget_alert(&news));
            let BudgetNews { of, cap, percent, used, bounds: (_, renews), fresh } = news;
            if !fresh || !LOGGED_PERCENT.contains(&percent) {
                continue;
            }
            let (what, whose) = match &of {
                BudgetOf::Key(key) => ("key", self.access.keys.get(*key).id().to_string()),
                BudgetOf::Group(name) => ("group", name.to_string()),
            };
            self.log_event(|out| {
                out.extend_from_slice(b",\"event\":\"budget\",\"percent\":");
                push_number(out, percent.into());
                for part in [",\"", what, "\":"] {
                    out.extend_from_slice(part.as_bytes());
                }
                write_string(out, &whose);
                for (before, text) in [(",\"resource\":", cap.resource.as_str()), (",\"per\":", &*cap.per.text())] {
                    out.extend_from_slice(before.as_bytes());
                    write_string(out, text);
                }
                if let Some(models) = cap.models.text() {
                    out.extend_from_slice(b",\"models\":");
                    write_string(out, models);
                }
                for (before, nano) in [(",\"used\":", used), (",\"budget\":", cap.total)] {
                    out.extend_from_slice(before.as_bytes());
                    push_dollars(out, nano);
                }
                out.extend_from_slice(b",\"until\":\"");
                window::write_iso(renews, out);
                out.push(b'"');
            });
        }
        if !alerts.is_empty() {
            self.commands.orders.push(Order::Alerts(self.setup.config.clone(), alerts));
        }
    }
}
