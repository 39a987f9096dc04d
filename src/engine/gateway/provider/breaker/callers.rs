//! Callers whose requests have met a failure, or the refusal of a credential: requests of one caller must not make a
//! target unavailable to others.

use crate::base::hash::mix_bytes;
use crate::gateway::counters::Callers;
use crate::policy::keys::Key;

/// A caller: a key and its owner. The keys of one group have one owner; a key without a group has its own. Both are
/// numbers, equal in all processes for the same key.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Caller {
    key: u64,
    pub(crate) owner: u64,
}

impl Caller {
    /// Returns the caller that uses this key.
    pub(crate) fn from_key(caller: Key<'_>) -> Caller {
        let key = mix_bytes(0, caller.id().text());
        let owner = caller.kind.group.as_ref().map_or(key, |group| mix_bytes(1, group.as_bytes()));
        Caller { key, owner }
    }

    #[cfg(test)]
    pub(super) fn new(key: u64, owner: u64) -> Caller {
        Caller { key, owner }
    }
}

impl Callers {
    /// Adds the caller of one more failed request.
    pub(super) fn meet(&mut self, caller: Caller) {
        let (key, owner) = *self.first.get_or_insert((caller.key, caller.owner));
        self.several_keys |= key != caller.key;
        self.several_owners |= owner != caller.owner;
    }

    /// Notes that callers other than those met would have failed, too.
    pub(super) fn are_several(&mut self) {
        (self.several_keys, self.several_owners) = (true, true);
    }
}
