//! Numbers calls whose ids repeat in a conversation, each with its result: some servers begin again with every answer,
//! and the messages shape takes each id once.
//!
//! Owns the pairing. Must never write an id itself. Called by `to_messages`, message by message.

use super::super::naming::hash;
use std::collections::BTreeMap;

/// Calls of one id.
#[derive(Default)]
struct Repeated {
    calls: u32,
    /// The call that the next result belongs to.
    next: u32,
    /// Number of the user's messages before its last call.
    users: u32,
}

/// The ids so far, by their hashes.
#[derive(Default)]
pub(super) struct CallIds {
    known: BTreeMap<u64, Repeated>,
    users: u32,
}

impl CallIds {
    /// Another message begins.
    pub(super) fn user(&mut self, is_users: bool) {
        self.users += u32::from(is_users);
    }

    /// Number of earlier calls of this id.
    pub(super) fn call(&mut self, id: &[u8]) -> u32 {
        let of_id = self.known.entry(hash(id)).or_default();
        if of_id.users != self.users {
            (of_id.users, of_id.next) = (self.users, of_id.calls);
        }
        of_id.calls += 1;
        of_id.calls - 1
    }

    /// Number of the call that a result belongs to: one after the other of those since the user's message before them.
    pub(super) fn result(&mut self, id: &[u8]) -> u32 {
        let Some(of_id) = self.known.get_mut(&hash(id)) else { return 0 };
        of_id.next += 1;
        of_id.next.min(of_id.calls) - 1
    }
}
