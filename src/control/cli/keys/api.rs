//! Key operations of the admin API: they use the code of the commands, but print nothing.

use super::actor::Actor;
use super::listing::KeyLine;
use super::lookup::find;
use super::used::Used;
use super::{Fresh, IssueArgs, KeyOptions, RevokedKey, Rotated, SetArgs, gone, make, revoke_in, rotate_in, set_in};
use crate::base::time::Unix;
use crate::cli::args::ConfigArg;
use crate::cli::ledger::present;
use crate::cli::output::Failure;
use crate::policy::config::Config;
use crate::policy::keys::KeyRecord;
use std::time::Duration;

/// Issues a key; returns its record and the answer.
pub(in crate::cli) fn issued(
    name: String,
    options: KeyOptions,
    high: &Config,
    by: &Actor<'_>,
) -> Result<(KeyRecord, Fresh), Failure> {
    let now = present(high)?;
    let args = IssueArgs { config: ConfigArg::default(), name, options, json: true };
    let (record, text) = make(&args, high, by, now)?;
    let fresh = Fresh::new(Some(text), &record, high, now);
    Ok((record, fresh))
}

/// Gives a key a new secret.
pub(in crate::cli) fn rotated(key: &str, grace: Duration, high: &Config, by: &Actor<'_>) -> Result<Fresh, Failure> {
    let now = present(high)?;
    let Rotated { record, text, .. } = rotate_in(high, &find(high, key)?.id, grace, by, now)?;
    Ok(Fresh::new(Some(text), &record, high, now))
}

/// Changes a key.
pub(in crate::cli) fn changed(key: &str, args: &SetArgs, high: &Config, by: &Actor<'_>) -> Result<KeyLine, Failure> {
    if args.is_empty() {
        return Err(Failure::misused("the body changes nothing: name at least one field"));
    }
    let now = args.present(high)?;
    let record = set_in(high, &find(high, key)?.id, args, by, now)?;
    Ok(KeyLine::new(record, high, &Used::default(), now))
}

/// Revokes a key.
pub(in crate::cli) fn revoked(key: &str, high: &Config, by: &Actor<'_>, now: Unix) -> Result<RevokedKey, Failure> {
    let id = find(high, key)?.id;
    let new = revoke_in(high, &id, by, now)?;
    Ok(gone(&id, !new))
}
