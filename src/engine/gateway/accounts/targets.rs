//! Use of attempts under the limits of providers, credentials and targets, in a meter of its own: its groups are their
//! accounts.

use crate::base::slots::Id;
use crate::base::time::Unix;
use crate::policy::catalog::TargetAccounts;
use crate::policy::config::target_limits::{accounts, names_of_label};
use crate::policy::config::{Config, StoreUrl};
use crate::policy::keys::KeyIx;
use crate::policy::meter::{
    Amount, AskedLimits, GroupStatus, Hold, Lease, LimitReason, Meter, Open, Payer, Restored, SharedCounts,
};
use crate::policy::plan::caps::Resource;
use crate::policy::plan::{PATH_SEPARATOR, Plan};
use std::sync::Arc;

/// Milliseconds for which no attempt is made after a shared ledger, or this host's share of a limit, has refused one.
const REFUSED_MILLIS: u64 = 1000;

/// Room that limits do not have for an attempt.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Lack {
    /// Moment from which there is room, as far as it is known: the present if the end of running requests may make
    /// room, the end of the clock if the attempt needs more than a whole limit.
    pub(crate) from: Unix,
    /// End of the window of the limit; the end of the clock if it has none.
    pub(crate) renews: Unix,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct TargetMeter {
    meter: Meter,
    /// Plan of the only key, which has no limits.
    nobody: Plan,
    /// Hosts that divide the limits while a shared ledger cannot be reached; 1 without one.
    hosts: u32,
    /// Paths for which an attempt was refused a moment ago, and until when no other one is made.
    refused: Vec<(Arc<str>, Unix)>,
}

impl TargetMeter {
    /// A meter for the limits of a configuration.
    pub(crate) fn new(config: &Config, now: Unix) -> TargetMeter {
        let mut meter =
            TargetMeter { meter: Meter::new(), nobody: Plan::unlimited("").settled(""), hosts: 1, refused: Vec::new() };
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
        let payer = Payer { key: KeyIx(0), plan: &self.nobody, path, hosts: 1, model: Some(&at.model) };
        run(&mut self.meter, payer)
    }

    /// The limit without room for an attempt that needs `need`; `None` if there is room.
    pub(crate) fn lack(&mut self, at: &TargetAccounts, now: Unix, need: Amount) -> Option<Lack> {
        let refused = self.refused.iter().find(|(path, until)| *path == at.path && *until > now);
        let until = refused.map(|(_, until)| Lack { from: *until, renews: *until });
        let limit = self.of(at, |meter, payer| meter.has_room(payer, now, need, None)).err();
        let lack = limit.map(|limit| match (limit.by, limit.cap.resource) {
            (LimitReason::Share { .. }, _) => Lack { from: Unix(u64::MAX), renews: Unix(u64::MAX) },
            (_, Resource::Running) => Lack { from: now, renews: Unix(u64::MAX) },
            (LimitReason::Spent, _) => Lack { from: limit.reset, renews: limit.reset },
            (LimitReason::Reserved, _) => Lack { from: now, renews: limit.reset },
        });
        lack.max(until)
    }

    /// Question to a shared ledger for an attempt that needs `need`: all of it must fit into each limit.
    pub(crate) fn question(&mut self, at: &TargetAccounts, now: Unix, need: Amount) -> (Lease, AskedLimits) {
        let (lease, mut limits) =
            self.of(at, |meter, payer| (meter.lease_for(payer, now, need), meter.limits_of(payer)));
        // Nobody pays for it.
        let of_key = lease.parts.iter().take_while(|part| part.group().is_empty()).count();
        limits.parts.drain(..of_key);
        limits.running.remove(0);
        limits.strict = Some(need);
        (Lease { parts: lease.parts[of_key..].into(), ..lease }, limits)
    }

    /// Counts an attempt that a shared ledger has admitted. `asked`: the moment of the question.
    pub(crate) fn grant(&mut self, at: &TargetAccounts, asked: Unix, lease: &Lease) -> Hold {
        self.of(at, |meter, payer| meter.grant(payer, asked, lease))
    }

    /// A shared ledger or this host's share of a limit has refused an attempt: the next one is a moment later at the
    /// earliest.
    pub(crate) fn refused(&mut self, at: &TargetAccounts, now: Unix) {
        self.refused.retain(|(path, until)| *until > now && *path != at.path);
        self.refused.push((at.path.clone(), Unix(now.0.saturating_add(REFUSED_MILLIS))));
    }

    /// Stores the counts of a shared ledger.
    pub(crate) fn learn(&mut self, lease: &Lease, now: Unix, news: &[SharedCounts]) {
        self.meter.learn(KeyIx(0), &self.nobody, lease, now, news);
        drop(self.meter.take_news());
    }

    /// Reserves what an attempt needs, if there is room for it.
    pub(crate) fn hold(&mut self, at: &TargetAccounts, now: Unix, need: Amount) -> Option<Hold> {
        let hosts = self.hosts;
        self.of(at, |meter, payer| meter.admit_whole(Payer { hosts, ..payer }, now, need).ok())
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

    /// Takes over the reservation of a request that another process still serves, at the target with this label.
    pub(crate) fn adopt(&mut self, label: &str, now: Unix, admitted: Unix, reserved: Amount) -> Option<Hold> {
        let at = self.accounts_of(label)?;
        Some(self.of(&at, |meter, payer| meter.adopt(payer, now, admitted, reserved)))
    }

    /// Counts a request that another process has admitted, which the target with this label has answered.
    pub(crate) fn count(&mut self, label: &str, now: Unix, admitted: Unix, used: Amount) {
        if let Some(hold) = self.adopt(label, now, admitted, Amount::default()) {
            self.end(hold, Some(used));
        }
    }

    /// Amount of a reservation.
    pub(crate) fn reserved(&self, hold: &Hold) -> Amount {
        self.meter.reserved(hold)
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
