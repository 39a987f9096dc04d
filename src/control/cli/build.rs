//! Build information: the version, the commit and the target.

use crate::base::time::Unix;

/// The build date. A clock before this date is wrong.
pub(super) fn date() -> Unix {
    Unix(env!("TOLLGATE_BUILT").parse::<u64>().unwrap_or(0).saturating_mul(1000))
}
