//! How the users and conversations that clients name are kept (contract section 10): as keyed hashes, which only
//! whoever has the ledger can tell to be those of a name that he knows already, or users in plain.

use super::keys::is_unseen;
use crate::base::digest::{hex, sha256};
use crate::base::limits::{NAMED_BYTES_MAX, USER_CHARS_MAX};
use std::fmt;
use std::sync::Arc;

/// What is kept of whom a request is for.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Attribution {
    /// Users as keyed hashes.
    Hash,
    /// Users in their own words.
    Plain,
    /// Nothing.
    Off,
}

impl Attribution {
    /// All of them.
    pub const ALL: [Attribution; 3] = [Attribution::Hash, Attribution::Plain, Attribution::Off];

    /// As the configuration says it.
    pub fn as_str(self) -> &'static str {
        match self {
            Attribution::Hash => "hash",
            Attribution::Plain => "plain",
            Attribution::Off => "off",
        }
    }
}

/// Random bytes that a ledger got when it was made: what is hashed with them is the same after a restart and on every
/// host, and cannot be guessed without them.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct HashKey(pub [u8; 32]);

impl fmt::Debug for HashKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HashKey")
    }
}

/// Bytes of a hash that are kept, as twice as many digits: among a million names two are alike once in many thousand
/// ledgers.
const HASH_BYTES: usize = 8;
/// What is hashed for is hashed too: a user and a conversation of one name have nothing in common.
const USER: u8 = 1;
const SESSION: u8 = 2;

impl HashKey {
    /// A user as it is kept.
    pub fn user(&self, name: &[u8]) -> Arc<str> {
        self.hashed(USER, name)
    }

    /// A conversation as it is kept, whatever is kept of users.
    pub fn session(&self, name: &[u8]) -> Arc<str> {
        self.hashed(SESSION, name)
    }

    /// No extension of a hash is of use to anyone: most of it is not shown.
    fn hashed(&self, kind: u8, name: &[u8]) -> Arc<str> {
        let name = &name[..name.len().min(NAMED_BYTES_MAX)];
        let mut text = Vec::with_capacity(33 + name.len());
        text.extend_from_slice(&self.0);
        text.push(kind);
        text.extend_from_slice(name);
        hex(&sha256(&text)[..HASH_BYTES]).into()
    }
}

/// A user in its own words, fit to be shown: without characters that cannot be seen, and not too long. `None` where
/// nothing is left.
pub fn plain(name: &str) -> Option<Arc<str>> {
    let seen: String = name.chars().filter(|c| !is_unseen(*c)).take(USER_CHARS_MAX).collect();
    let seen = seen.trim();
    (!seen.is_empty()).then(|| seen.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_depends_on_the_ledger_on_what_it_is_of_and_on_the_name() {
        let (one, other) = (HashKey([1; 32]), HashKey([2; 32]));
        let alice = one.user(b"alice");
        assert!(alice.len() == 16 && alice.bytes().all(|digit| digit.is_ascii_hexdigit()), "{alice}");
        assert_eq!(one.user(b"alice"), alice);
        for another in [one.user(b"bob"), one.session(b"alice"), other.user(b"alice"), one.user(b"")] {
            assert_ne!(another, alice);
        }
        let long = [b'x'; NAMED_BYTES_MAX + 7];
        assert_eq!(one.user(&long), one.user(&long[..NAMED_BYTES_MAX]));
        assert!(!format!("{one:?}").contains('1'));
    }

    #[test]
    fn a_plain_user_is_short_and_can_be_seen() {
        assert_eq!(plain(" a\u{0}li\u{202e}ce\n").as_deref(), Some("alice"));
        assert_eq!(plain("\r\n\t \u{7}"), None);
        let long = plain(&"\u{fc}".repeat(1 << 20)).unwrap();
        assert_eq!(long.chars().count(), USER_CHARS_MAX);
    }
}
