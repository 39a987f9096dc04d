//! Numbers calls whose ids repeat in a conversation, each with its result: some servers restart their ids with every
//! answer, and the messages format accepts each id only once.
//!
//! Owns the pairing. Must never write an id itself. Called by the messages writer, message by message.

use crate::dialect::neutral::naming::hash;
use std::collections::BTreeMap;

/// Calls with one id.
#[derive(Default)]
struct Repeated {
    calls: u32,
    /// The call to which the next result belongs.
    next: u32,
    /// Number of user messages before its last call.
    users: u32,
}

/// The ids so far, by hash.
#[derive(Default)]
pub(crate) struct CallIds {
    known: BTreeMap<u64, Repeated>,
    users: u32,
}

impl CallIds {
    /// Begins a message.
    pub(crate) fn user(&mut self, is_users: bool) {
        self.users += u32::from(is_users);
    }

    /// Number of earlier calls with this id.
    pub(crate) fn call(&mut self, id: &[u8]) -> u32 {
        let of_id = self.known.entry(hash(id)).or_default();
        if of_id.users != self.users {
            (of_id.users, of_id.next) = (self.users, of_id.calls);
        }
        of_id.calls += 1;
        of_id.calls - 1
    }

    /// Number of the call to which a result belongs: results belong, in order, to the calls since the previous user
    /// message.
    pub(crate) fn result(&mut self, id: &[u8]) -> u32 {
        let Some(of_id) = self.known.get_mut(&hash(id)) else { return 0 };
        of_id.next += 1;
        of_id.next.min(of_id.calls) - 1
    }
}
