//! Finds the state of targets, breakers and credentials by their names, in constant time.

use super::{Breaker, Breakers, CredentialState, TargetState, account_of, without_credential};
use crate::base::hash::mix_bytes;
use crate::gateway::counters::Callers;
use crate::gateway::provider::rate_limits::Rest;
use std::sync::Arc;

/// Hash of a label, which is the target's seed, or of another name. Only the operator and the providers' lists choose
/// names, no client does.
pub(super) fn name_hash(name: &str) -> u64 {
    mix_bytes(0, name.as_bytes())
}

impl Breakers {
    /// Index of the entry with this label and its hash.
    pub(super) fn index_of(&mut self, label: &Arc<str>, hash: u64) -> usize {
        let Some(index) = self.known(label, hash) else { return self.insert(label, hash) };
        let entry = &mut self.entries[index];
        // A label of another configuration: from now on, this one is compared faster.
        if !Arc::ptr_eq(&entry.label, label) {
            entry.label = label.clone();
        }
        index
    }

    /// Index of the entry with this label, if the target has been used.
    pub(super) fn known(&self, label: &Arc<str>, hash: u64) -> Option<usize> {
        let same = |known: &Arc<str>| Arc::ptr_eq(known, label) || known == label;
        self.by_label.find(hash, |index| same(&self.entries[index as usize].label)).map(|index| index as usize)
    }

    /// Index of the breaker of a server and model.
    pub(super) fn breaker_at(&self, place: &str) -> Option<usize> {
        let found = self.by_place.find(name_hash(place), |index| *self.breakers[index as usize].place == *place);
        found.map(|index| index as usize)
    }

    /// Index of a credential's state.
    pub(super) fn account_at(&self, name: &str) -> Option<usize> {
        let found = self.by_account.find(name_hash(name), |index| *self.accounts[index as usize].name == *name);
        found.map(|index| index as usize)
    }

    #[cold]
    fn insert(&mut self, label: &Arc<str>, hash: u64) -> usize {
        let place = without_credential(label);
        let breaker = self.breaker_at(&place).unwrap_or_else(|| {
            let (index, hash) = (self.breakers.len(), name_hash(&place));
            self.breakers.push(Breaker::new(place));
            self.by_place.insert(hash, index as u32, |index| name_hash(&self.breakers[index as usize].place));
            index
        });
        let account = self.account(account_of(label));
        let index = self.entries.len();
        self.entries.push(TargetState::new(label.clone(), breaker, account));
        self.by_label.insert(hash, index as u32, |index| name_hash(&self.entries[index as usize].label));
        index
    }

    /// Forgets the targets for which `is_there` is false and that have nothing in flight, and a server's breaker with
    /// its last target.
    pub(crate) fn forget(&mut self, is_there: impl Fn(&str) -> bool) {
        self.entries.retain(|entry| entry.busy > 0 || is_there(&entry.label));
        let mut before: Vec<_> = std::mem::take(&mut self.breakers).into_iter().map(|one| (Some(one), 0)).collect();
        for entry in &mut self.entries {
            let (breaker, place) = &mut before[entry.breaker];
            if let Some(breaker) = breaker.take() {
                *place = self.breakers.len();
                self.breakers.push(breaker);
            }
            entry.breaker = *place;
        }
        self.index_again();
    }

    /// Rebuilds the tables after entries and breakers have changed their indices.
    pub(super) fn index_again(&mut self) {
        self.by_label.clear();
        self.by_place.clear();
        let label = |index: u32| name_hash(&self.entries[index as usize].label);
        (0..self.entries.len() as u32).for_each(|index| self.by_label.insert(label(index), index, label));
        let place = |index: u32| name_hash(&self.breakers[index as usize].place);
        (0..self.breakers.len() as u32).for_each(|index| self.by_place.insert(place(index), index, place));
    }

    pub(super) fn account(&mut self, name: &str) -> usize {
        self.account_at(name).unwrap_or_else(|| {
            let index = self.accounts.len();
            let (rest, refused) = (Rest::default(), Callers::default());
            self.accounts.push(CredentialState { name: name.into(), rest, refused });
            let hash = |index: u32| name_hash(&self.accounts[index as usize].name);
            self.by_account.insert(name_hash(name), index as u32, hash);
            index
        })
    }
}
