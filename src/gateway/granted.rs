//! Admission by what a shared ledger has granted to this host, and giving that back; see [`super::grants`].

use super::cx::Cx;
use crate::policy::ask::{Answer, Use};
use crate::policy::keys::KeyIx;
use crate::policy::meter::{Amount, Hold, Lease};

impl Cx {
    /// Admits a request by what was granted to this host, if that is enough.
    pub(crate) fn admit_granted(&mut self, key: KeyIx, reserved: Amount) -> Option<(Hold, Lease)> {
        let payer = self.plans.of(key, &self.setup.config).ok()?;
        let (number, lease) = self.grants.take(&payer, self.now.unix, reserved)?;
        let hold = self.meter.grant(payer, self.now.unix, &lease);
        self.meter.learn_of_one(key, &lease);
        self.orders.used(Use::Took(number, self.keys.record(key).id, lease.clone()));
        Some((hold, lease))
    }

    /// What came with an answer.
    pub(crate) fn granted(&mut self, key: KeyIx, answer: &Answer) {
        if let Some(grant) = answer.grant {
            let replaced = self.grants.put(key, &answer.ask.lease, grant);
            self.give_back_grants(replaced);
        }
    }

    /// Others want what was granted in an account.
    pub(crate) fn called_in(&mut self, account: &str) {
        let group = account.strip_prefix('@');
        let keys = &self.keys;
        let numbers = self.grants.give_up(|key, lease| match group {
            Some(name) => lease.groups.iter().any(|group| *group.name == *name),
            None => keys.record(key).id.as_str() == account,
        });
        self.give_back_grants(numbers);
    }

    /// The ledger has been begun anew.
    #[cold]
    pub(crate) fn begin_anew(&mut self) {
        self.forget_grants();
        self.meter.begin_anew();
    }

    /// Limits may be others now, or the ledger is another: what was granted under those before is given back.
    pub(crate) fn forget_grants(&mut self) {
        let numbers = self.grants.give_up(|_, _| true);
        self.give_back_grants(numbers);
    }

    fn give_back_grants(&mut self, numbers: impl IntoIterator<Item = u64>) {
        for number in numbers {
            self.orders.used(Use::Returned(number));
        }
    }
}
