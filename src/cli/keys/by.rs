//! By whom a key is changed, and what the change is written with.

use super::listing::{Line, Used};
use crate::base::time::Unix;
use crate::cli::output::json_text;
use crate::io::store::note::{Note, Once, Said};
use crate::policy::config::Config;
use crate::policy::keys::KeyRecord;
use serde::Serialize;

/// Who changes a key.
pub(in crate::cli) struct By<'a> {
    /// The token's name, or that it is a command.
    pub(in crate::cli) who: &'a str,
    /// The name under which it is done once, and a digest of what is asked for.
    pub(in crate::cli) once: Option<(&'a str, [u8; 32])>,
}

impl By<'_> {
    /// A command.
    pub(super) const COMMAND: By<'static> = By { who: "command", once: None };

    /// What a change is written with. `shown`: what the audit shows of a key. `answer`: what is answered to whoever
    /// asks for the same once more.
    pub(super) fn note<'a>(&'a self, what: &'static str, (shown, answer): (Said<'a>, Said<'a>), at: Unix) -> Note<'a> {
        let once = self.once.map(|(name, digest)| Once { name, digest, answer });
        Note { who: self.who, what, at, shown, once }
    }
}

/// What is answered to whoever asks for the same once more.
pub(super) fn answer(value: &impl Serialize) -> String {
    json_text(value).unwrap_or_default()
}

/// What the audit shows of a key, as `--json` does, on one line.
pub(super) fn shown(high: &Config, now: Unix) -> impl Fn(&KeyRecord) -> String {
    move |key| answer(&Line::new(key, high, &Used::default(), now)).lines().map(str::trim_start).collect()
}
