//! Records stored with a change of a key: an audit line, and the answer to repeat if the same request is sent again.
//! Data only; both kinds of ledger store them in the transaction that makes the change.

use super::api::StoreError;
use crate::base::time::Unix;
use crate::policy::keys::KeyRecord;

/// Time for which an answer is kept, in milliseconds.
pub const ANSWERS_KEPT_MS: u64 = 86_400_000;
/// Maximum number of audit lines kept.
pub const AUDIT_MAX: u64 = 100_000;

/// Edits a record. Returns false to refuse; nothing is stored then.
pub type Change<'a> = &'a mut dyn FnMut(&mut KeyRecord) -> bool;

/// Lets `store` edit a key by `change`, which returns the reason if it refuses. `store` does not depend on the error
/// type, so that a ledger's code for it is compiled only once.
pub fn edited<E>(
    mut change: impl FnMut(&mut KeyRecord) -> Result<(), E>,
    store: impl FnOnce(Change<'_>) -> Result<Option<KeyRecord>, StoreError>,
) -> Result<Option<Result<KeyRecord, E>>, StoreError> {
    let mut refused = None;
    let found = store(&mut |key| {
        refused = change(key).err();
        refused.is_none()
    })?;
    Ok(found.map(|key| refused.map_or(Ok(key), Err)))
}

/// Text about a key.
pub type KeyText<'a> = &'a dyn Fn(&KeyRecord) -> String;

/// Record of a change of a key.
pub struct Note<'a> {
    /// The token's name, or that it is a command.
    pub who: &'a str,
    /// `issue`, `edit`, `rotate` or `revoke`.
    pub what: &'static str,
    /// Time of the change.
    pub at: Unix,
    /// Returns the key's record for the audit as JSON, without anything that could reveal secrets.
    pub shown: KeyText<'a>,
    /// Idempotency name of the request, if it has one.
    pub once: Option<Once<'a>>,
}

/// Idempotency name: a request with this name is done only once.
pub struct Once<'a> {
    /// The name.
    pub name: &'a str,
    /// Digest of the request.
    pub digest: [u8; 32],
    /// Answer to a repeated request.
    pub answer: KeyText<'a>,
}

/// Stored answer to a request with an idempotency name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answered {
    /// Digest of the request.
    pub digest: [u8; 32],
    /// Answer to a repeated request.
    pub answer: String,
}

/// A line of the audit.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AuditLine {
    /// Time of the change.
    pub at: Unix,
    /// Name of the token, or of the command.
    pub who: String,
    /// Kind of change.
    pub what: String,
    /// Id of the key; empty if the change concerns the whole ledger.
    pub key: String,
    /// The key's record before, without secrets, as JSON; `None` for a new key.
    pub before: Option<String>,
    /// The key's record after the change.
    pub after: String,
}

impl AuditLine {
    /// Bytes of its texts.
    pub fn text_bytes(&self) -> usize {
        self.who.len()
            + self.what.len()
            + self.key.len()
            + self.before.as_ref().map_or(0, String::len)
            + self.after.len()
    }
}

impl Note<'_> {
    /// Returns the line of the audit for a key that was `before` and is `after`.
    pub fn line(&self, before: Option<&KeyRecord>, after: &KeyRecord) -> AuditLine {
        AuditLine {
            at: self.at,
            who: self.who.to_string(),
            what: self.what.to_string(),
            key: after.id.to_string(),
            before: before.map(self.shown),
            after: (self.shown)(after),
        }
    }
}
