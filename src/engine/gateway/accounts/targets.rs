//! What attempts have used of the limits of providers, credentials and targets, in a meter of its own: its groups are
//! their accounts.

use crate::base::slots::Id;
use crate::base::time::Unix;
use crate::policy::catalog::TargetAccounts;
use crate::policy::config::target_limits::{accounts, names_of_label};
use crate::policy::config::{Config, StoreUrl};
use crate::policy::keys::KeyIx;
use crate::policy::meter::{Amount, GroupStatus, Hold, LimitReason, Meter, Open, Payer, Restored};
use crate::policy::plan::caps::Resource;
use crate::policy::plan::{PATH_SEPARATOR, Plan};
use std::sync::Arc;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct TargetMeter {
    meter: Meter,
    /// Plan of the only key, which has no limits.
    nobody: Plan,
    /// Hosts that divide the limits; 1 without a shared ledger.
    hosts: u32,
}

impl TargetMeter {
    /// A meter for the limits of a configuration.
    pub(crate) fn new(config: &Config, now: Unix) -> TargetMeter {
        let mut meter = TargetMeter { meter: Meter::new(), nobody: Plan::unlimited("").settled(""), hosts: 1 };
        meter.configure(config, now);
        meter
    }

    /// Applies the limits of a configuration. False, and nothing is changed, if there are more than can be counted.
    pub(crate) fn configure(&mut self, config: &Config, now: Unix) -> bool {
        let is_shared = matches!(config.store.url, StoreUrl::Redis(_));
        self.hosts = if is_shared { config.store.hosts } else { 1 };
        self.meter.configure(&accounts(&config.providers, &config.catalog), now)
    }

    /// Calls `run` with the meter and what pays for attempts at a target.
    fn of<T>(&mut self, at: &TargetAccounts, run: impl FnOnce(&mut Meter, Payer<'_>) -> T) -> T {
        let path = self.meter.path(&at.path);
        let payer = Payer { key: KeyIx(0), plan: &self.nobody, path, hosts: self.hosts, model: Some(&at.model) };
        run(&mut self.meter, payer)
    }

    /// Moment from which there is room for an attempt that needs `need`, as far as it is known: `None` if there is,
    /// `now` if the end of running requests may make room, the end of the clock if it needs more than a whole limit.
    pub(crate) fn room(&mut self, at: &TargetAccounts, now: Unix, need: Amount) -> Option<Unix> {
        let limit = self.of(at, |meter, payer| meter.has_room(payer, now, need, true)).err()?;
        Some(match limit.by {
            LimitReason::Spent if limit.cap.resource != Resource::Running => limit.reset,
            LimitReason::Reserved | LimitReason::Spent => now,
            LimitReason::Share { .. } => Unix(u64::MAX),
        })
    }

    /// Reserves what an attempt needs, if there is room for it.
    pub(crate) fn hold(&mut self, at: &TargetAccounts, now: Unix, need: Amount) -> Option<Hold> {
        self.of(at, |meter, payer| meter.admit_whole(payer, now, need).ok())
    }

    /// Ends an attempt with its use; `None`: it was not sent, and does not count.
    pub(crate) fn end(&mut self, hold: Hold, used: Option<Amount>) {
        match used {
            Some(used) => self.meter.settle(hold, used),
            None => self.meter.cancel(hold),
        }
        // Alerts are about the budgets of groups and keys.
        drop(self.meter.take_news());
    }

    /// Counts requests that the ledger knows of, which the target with this label has answered.
    pub(crate) fn restore(&mut self, label: &str, now: Unix, past: &Restored<'_>) {
        let Some(at) = self.accounts_of(label) else { return };
        let past = Restored { model: &at.model, ..*past };
        self.of(&at, |meter, payer| meter.restore_groups(payer.path, now, &past));
    }

    /// Counts a request that another process has admitted, which the target with this label has answered.
    pub(crate) fn count(&mut self, label: &str, now: Unix, admitted: Unix, used: Amount) {
        let Some(at) = self.accounts_of(label) else { return };
        let hold = self.of(&at, |meter, payer| meter.adopt(payer, now, admitted, Amount::default()));
        self.end(hold, Some(used));
    }

    /// The accounts of a label that have limits.
    fn accounts_of(&self, label: &str) -> Option<TargetAccounts> {
        let (names, model) = names_of_label(label)?;
        let limited: Vec<String> = names.into_iter().filter(|name| self.meter.path_of(name).is_some()).collect();
        let path = limited.join(&PATH_SEPARATOR.to_string());
        (!path.is_empty()).then(|| TargetAccounts { path: path.into(), model: Arc::from(model) })
    }

    /// Shows every account.
    pub(crate) fn each(&mut self, now: Unix, see: &mut dyn FnMut(&GroupStatus<'_>)) {
        self.meter.groups(now, see);
    }

    /// Ends the reservations that no exchange owns any more, after a panic.
    pub(crate) fn reclaim(&mut self, is_live: impl Fn(Id<Open>) -> bool) {
        drop(self.meter.reclaim(is_live));
    }

    /// Number of reservations.
    pub(crate) fn open_holds(&self) -> usize {
        self.meter.open_holds()
    }

    /// Gives the memory of many reservations back.
    pub(crate) fn trim(&mut self) {
        self.meter.trim();
    }
}
