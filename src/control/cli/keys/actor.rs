//! Actor and idempotency key of a key change.

use super::listing::KeyLine;
use super::used::Used;
use crate::base::time::Unix;
use crate::cli::output::json_text;
use crate::policy::config::Config;
use crate::policy::keys::KeyRecord;
use crate::store::note::{KeyText, Note, Once};
use serde::Serialize;

/// Actor of a key change.
pub(in crate::cli) struct Actor<'a> {
    /// Name of the admin token, or `command`.
    pub(in crate::cli) who: &'a str,
    /// Idempotency key, and a digest of the request.
    pub(in crate::cli) once: Option<(&'a str, [u8; 32])>,
}

impl Actor<'_> {
    /// The actor of a command.
    pub(super) const COMMAND: Actor<'static> = Actor { who: "command", once: None };

    /// Audit entry and stored answer of a change. `shown`: audit text of a key. `answer`: the answer to a repetition of
    /// the request.
    pub(super) fn note<'a>(
        &'a self,
        what: &'static str,
        (shown, answer): (KeyText<'a>, KeyText<'a>),
        at: Unix,
    ) -> Note<'a> {
        let once = self.once.map(|(name, digest)| Once { name, digest, answer });
        Note { who: self.who, what, at, shown, once }
    }
}

/// The stored answer for a repetition of the request.
pub(super) fn answer(value: &impl Serialize) -> String {
    json_text(value).unwrap_or_default()
}

/// Audit text of a key, as in `--json`, on one line.
pub(super) fn shown(high: &Config, now: Unix) -> impl Fn(&KeyRecord) -> String {
    move |key| answer(&KeyLine::new(key.clone(), high, &Used::default(), now)).lines().map(str::trim_start).collect()
}
