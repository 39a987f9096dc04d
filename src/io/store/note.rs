//! What a change of a key is written with: a line of the audit, and the answer that is given again to whoever asks for
//! the same once more. Data only; both kinds of ledger keep it, in the step that makes the change.

use super::api::StoreError;
use crate::base::time::Unix;
use crate::policy::keys::KeyRecord;

/// For how long an answer is kept.
pub const ANSWERS_KEPT_MS: u64 = 86_400_000;
/// Lines of the audit that are kept.
pub const AUDIT_MAX: u64 = 100_000;

/// Edits a record, or (false) refuses to: nothing is stored then.
pub type Change<'a> = &'a mut dyn FnMut(&mut KeyRecord) -> bool;

/// Lets `store` edit a key by `change`, which says why where it refuses to. So that what a ledger does for it is
/// compiled once, whatever the reasons are.
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

/// What is said of a key.
pub type Said<'a> = &'a dyn Fn(&KeyRecord) -> String;

/// Who changes a key, and how.
pub struct Note<'a> {
    /// The token's name, or that it is a command.
    pub who: &'a str,
    /// `issue`, `edit`, `rotate` or `revoke`.
    pub what: &'static str,
    /// When.
    pub at: Unix,
    /// What the audit shows of a key: JSON, without anything that secrets could be recognised by.
    pub shown: Said<'a>,
    /// Under which name it is done once.
    pub once: Option<Once<'a>>,
}

/// A name under which something is done once.
pub struct Once<'a> {
    /// The name.
    pub name: &'a str,
    /// A digest of what is asked for.
    pub digest: [u8; 32],
    /// What is answered if the same is asked for again.
    pub answer: Said<'a>,
}

/// What was answered to what was asked for under a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answered {
    /// A digest of what was asked for.
    pub digest: [u8; 32],
    /// What is answered to the same.
    pub answer: String,
}

/// One line of the audit.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AuditLine {
    /// When.
    pub at: Unix,
    /// By whom.
    pub who: String,
    /// What was done.
    pub what: String,
    /// The id of the key; empty for what concerns the whole ledger.
    pub key: String,
    /// Its record before, without secrets, as JSON; `None` for a new one.
    pub before: Option<String>,
    /// The same after.
    pub after: String,
}

impl Note<'_> {
    /// The line of the audit for a key that was `before` and is `after`.
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
