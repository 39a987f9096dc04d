//! How many keys there are, and whether they have one owner: the keys of a group have one, a key without a group has its
//! own.

use super::{KeyRecord, Keys};

impl Keys {
    /// Number of keys that were ever loaded.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// True when no key was ever loaded.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Whether there were ever keys of several owners.
    pub fn has_several_owners(&self) -> bool {
        self.several_owners
    }

    /// A key is added, or its record replaced. Any other key tells whether there is another owner, since those before
    /// had one.
    pub(super) fn note_owner(&mut self, record: &KeyRecord) {
        let other = self.records.iter().find(|other| other.id != record.id);
        self.several_owners |= other.is_some_and(|other| record.group.is_none() || other.group != record.group);
    }
}
