//! Admits requests by grants of the shared ledger, and returns grants; see [`crate::gateway::accounts::grants`].

use crate::gateway::cx::Cx;
use crate::policy::keys::{KeyId, KeyIx};
use crate::policy::ledger::{AskAnswer, Use};
use crate::policy::meter::{Amount, Hold, Lease};

impl Cx {
    /// Admits a request by this host's grant, if the grant suffices.
    pub(crate) fn admit_granted(&mut self, key: KeyIx, reserved: Amount) -> Option<(Hold, Lease)> {
        let payer = self.access.payer(key, &self.setup.config).ok()?;
        let (number, lease) = self.accounts.grants.take(&payer, self.now.unix, reserved)?;
        let hold = self.accounts.meter.grant(payer, self.now.unix, &lease);
        self.accounts.meter.learn_of_one(key, &lease);
        self.commands.orders.used(Use::Took(number, self.access.keys.get(key).id(), lease.clone()));
        Some((hold, lease))
    }

    /// Takes the grant that came with an answer of the ledger.
    pub(crate) fn granted(&mut self, key: KeyIx, answer: &AskAnswer) {
        if let Some(grant) = answer.grant {
            let replaced = self.accounts.grants.put(key, &answer.ask, grant);
            self.give_back_grants(replaced);
        }
    }

    /// The ledger revokes this host's grants in an account, since other hosts need them.
    pub(crate) fn called_in(&mut self, account: &str) {
        let numbers = match account.strip_prefix('@') {
            Some(name) => self.accounts.grants.give_up(|lease| lease.parts.iter().any(|part| part.group() == name)),
            None => {
                let key = KeyId::parse(account).and_then(|id| self.access.keys.index_of(&id));
                key.and_then(|key| self.accounts.grants.give_up_of(key)).into_iter().collect()
            }
        };
        self.give_back_grants(numbers);
    }

    /// The ledger has been reset.
    #[cold]
    pub(crate) fn reset_counts(&mut self) {
        self.forget_grants();
        self.accounts.meter.reset_counts();
    }

    /// Returns all grants: the limits may have changed, or the ledger is another one.
    pub(crate) fn forget_grants(&mut self) {
        let numbers = self.accounts.grants.all_limits_changed();
        self.give_back_grants(numbers);
    }

    pub(crate) fn give_back_grants(&mut self, numbers: impl IntoIterator<Item = u64>) {
        for number in numbers {
            self.commands.orders.used(Use::Returned(number));
        }
    }
}
