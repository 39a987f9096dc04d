//! Finds the entry of a target by its label, in constant time.

use super::{
    ALLOWANCES, Breaker, Breakers, Callers, Left, Needs, Rest, TargetCounts, TargetHistory, TargetState, account_of,
    place_of,
};
use crate::base::time::Mono;
use std::sync::Arc;

/// Number of targets that are compared one by one before the table is used.
const FEW: usize = 4;

/// Hash of a label's address. Only the configuration allocates labels, so that no peer can choose collisions.
#[inline]
pub(super) fn address_hash(label: &Arc<str>) -> u64 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    (label.as_ptr().addr() as u64).wrapping_mul(ODD)
}

impl Breakers {
    /// Index of a target's entry, almost always found by the address of its label, in constant time.
    #[inline]
    pub(super) fn index(&mut self, label: &Arc<str>) -> usize {
        let same = |index: u32| Arc::ptr_eq(&self.entries[index as usize].label, label);
        // With few targets, a comparison with each is faster.
        if let Some(index) = self.entries.iter().take(FEW).position(|entry| Arc::ptr_eq(&entry.label, label)) {
            return index;
        }
        match self.by_label.find(address_hash(label), same) {
            Some(index) => index as usize,
            None => self.insert(label),
        }
    }

    #[cold]
    fn insert(&mut self, label: &Arc<str>) -> usize {
        if let Some(known) = self.entries.iter().position(|entry| entry.label == *label) {
            // The label belongs to another configuration: from now on, this one finds the entry.
            self.entries[known].label = label.clone();
            self.find_by_label();
            return known;
        }
        let place = place_of(label);
        let breaker = self.breakers.iter().position(|breaker| *breaker.place == *place).unwrap_or_else(|| {
            self.breakers.push(Breaker {
                place: place.into(),
                failures: 0,
                callers: Callers::default(),
                open_until: None,
                opened: Mono::default(),
                trial: false,
                busy: 0,
            });
            self.breakers.len() - 1
        });
        let account = self.account(account_of(label));
        self.entries.push(TargetState {
            label: label.clone(),
            counts: TargetCounts::new(label.clone()),
            history: TargetHistory::default(),
            credit: 0,
            rest: Rest::default(),
            left: [Left::default(); ALLOWANCES],
            reports: false,
            asked: Needs::default(),
            busy: 0,
            breaker,
            account,
        });
        let (index, entries) = (self.entries.len() - 1, &self.entries);
        self.by_label.insert(address_hash(label), index as u32, |index| address_hash(&entries[index as usize].label));
        index
    }

    /// Rebuilds the table after entries have changed their indices or labels.
    pub(super) fn find_by_label(&mut self) {
        self.by_label.clear();
        let hash = |index: u32| address_hash(&self.entries[index as usize].label);
        (0..self.entries.len() as u32).for_each(|index| self.by_label.insert(hash(index), index, hash));
    }
}
