//! Storage of the users and conversations that clients name: as keyed hashes, or users in plain text. Only a holder of
//! the ledger can compare a hash with a known name.

use super::keys::is_unseen;
use crate::base::digest::{hex, sha256};
use crate::base::limits::{NAMED_BYTES_MAX, USER_CHARS_MAX};
use crate::base::words;
use std::fmt;
use std::sync::Arc;

words! {
    /// Form in which the user of a request is stored.
    #[derive(Copy, Clone, PartialEq, Eq, Debug)]
    pub enum Attribution {
        /// Users as keyed hashes.
        Hash = "hash",
        /// Users in plain text.
        Plain = "plain",
        /// No users.
        Off = "off",
    }
}

/// Random bytes that belong to a ledger since its creation. Hashes made with them are the same after a restart and on
/// every host, and cannot be guessed without them.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct HashKey(pub [u8; 32]);

impl fmt::Debug for HashKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HashKey")
    }
}

/// Bytes of a hash that are stored, as twice as many digits. Two of a million names collide in one of many thousand
/// ledgers.
const HASH_BYTES: usize = 8;
/// The purpose is part of the hash: a user and a conversation of the same name have different hashes.
const USER: u8 = 1;
const SESSION: u8 = 2;
const ALERT: u8 = 3;

impl HashKey {
    /// Stored form of a user.
    pub fn user(&self, name: &[u8]) -> Arc<str> {
        self.hashed(USER, name)
    }

    /// Stored form of a conversation. It does not depend on the form of users.
    pub fn session(&self, name: &[u8]) -> Arc<str> {
        self.hashed(SESSION, name)
    }

    /// Name of an event that raises an alert: another ledger has another one for an event of the same kind.
    pub fn alert(&self, event: &[u8]) -> Arc<str> {
        self.hashed(ALERT, event)
    }

    /// Length extension is not possible, since most of a hash is not stored.
    fn hashed(&self, kind: u8, name: &[u8]) -> Arc<str> {
        let name = &name[..name.len().min(NAMED_BYTES_MAX)];
        let mut text = Vec::with_capacity(33 + name.len());
        text.extend_from_slice(&self.0);
        text.push(kind);
        text.extend_from_slice(name);
        hex(&sha256(&text)[..HASH_BYTES]).into()
    }
}

/// A user in plain text, without invisible characters and cut to a maximum length. `None` if nothing is left.
pub fn plain(name: &str) -> Option<Arc<str>> {
    let seen: String = name.chars().filter(|c| !is_unseen(*c)).take(USER_CHARS_MAX).collect();
    let seen = seen.trim();
    (!seen.is_empty()).then(|| seen.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_depends_on_the_ledger_the_kind_of_name_and_the_name() {
        let (one, other) = (HashKey([1; 32]), HashKey([2; 32]));
        let alice = one.user(b"alice");
        assert!(alice.len() == 16 && alice.bytes().all(|digit| digit.is_ascii_hexdigit()), "{alice}");
        assert_eq!(one.user(b"alice"), alice);
        for another in
            [one.user(b"bob"), one.session(b"alice"), one.alert(b"alice"), other.user(b"alice"), one.user(b"")]
        {
            assert_ne!(another, alice);
        }
        let long = [b'x'; NAMED_BYTES_MAX + 7];
        assert_eq!(one.user(&long), one.user(&long[..NAMED_BYTES_MAX]));
        assert!(!format!("{one:?}").contains('1'));
    }

    #[test]
    fn a_plain_user_name_is_short_and_printable() {
        assert_eq!(plain(" a\u{0}li\u{202e}ce\n").as_deref(), Some("alice"));
        assert_eq!(plain("\r\n\t \u{7}"), None);
        let long = plain(&"\u{fc}".repeat(1 << 20)).unwrap();
        assert_eq!(long.chars().count(), USER_CHARS_MAX);
    }
}
