//! What the admin API does with keys: by the code of the commands, but nothing is printed.

use super::by::By;
use super::listing::{Line, Used};
use super::names::find;
use super::{
    Fresh, Gone, IssueArgs, KeyArgs, NOTHING, RotateArgs, Rotated, SetArgs, gone, make, revoke_in, rotate_in, set_in,
};
use crate::base::time::Unix;
use crate::cli::output::Failure;
use crate::policy::config::Config;

/// Issues a key, for the admin API.
pub(in crate::cli) fn issued(args: &IssueArgs, high: &Config, by: &By<'_>, now: Unix) -> Result<Fresh, Failure> {
    let (record, text) = make(args, high, by, now)?;
    Ok(Fresh::new(Some(text), &record, high, now))
}

/// Gives a key a new secret, for the admin API.
pub(in crate::cli) fn rotated(args: &RotateArgs, high: &Config, by: &By<'_>, now: Unix) -> Result<Fresh, Failure> {
    let Rotated { record, text, .. } = rotate_in(high, &find(high, &args.key)?.id, args.grace, by, now)?;
    Ok(Fresh::new(Some(text), &record, high, now))
}

/// Changes a key, for the admin API.
pub(in crate::cli) fn changed(args: &SetArgs, high: &Config, by: &By<'_>, now: Unix) -> Result<Line, Failure> {
    if args.is_empty() {
        return Err(Failure::misused(NOTHING));
    }
    let record = set_in(high, &find(high, &args.key)?.id, args, by, now)?;
    Ok(Line::new(&record, high, &Used::default(), now))
}

/// Revokes a key, for the admin API.
pub(in crate::cli) fn revoked(args: &KeyArgs, high: &Config, by: &By<'_>, now: Unix) -> Result<Gone, Failure> {
    let id = find(high, &args.key)?.id;
    let new = revoke_in(high, &id, by, now)?;
    Ok(gone(&id, !new))
}
