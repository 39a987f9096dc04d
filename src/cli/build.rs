//! Build information: the version, the commit and the target.

use crate::base::time::Unix;

/// The build date, 1970 if there is none. No clock can be right that is behind it.
pub(super) fn date() -> Unix {
    Unix(env!("TOLLGATE_BUILT").parse::<u64>().unwrap_or(0).saturating_mul(1000))
}
