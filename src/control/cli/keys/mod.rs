//! `tollgate keys`: issue, list, show, change, rotate, revoke. A new key works immediately; any other change reaches a
//! running gateway within a second. A key is printed once, and nothing else goes to standard output then; only its
//! digest is stored.

mod actor;
pub(super) mod api;
pub(super) mod budgets;
pub(super) mod capture;
mod listing;
mod lookup;
mod options;
mod used;

pub(super) use actor::Actor;
pub use listing::ListArgs;
pub(super) use listing::limit_json;
pub use lookup::KeyArgs;
pub use options::{Expiry, KeyOptions};
pub(super) use options::{
    KeyEntry, KeyExtra, chain_of, parse_capture, parse_end, parse_entry, parse_expiry, parse_extra, parse_group,
    parse_label, parse_name,
};

use super::args::ConfigArg;
use super::ledger::present;
use super::load::{self, Secrets};
use super::output::{Failure, clean, json_text, leads_somewhere, print_json, print_secret, remark, warn};
use super::store;
use crate::base::time::Unix;
use crate::io::clock::unix;
use crate::policy::config::{Config, units};
use crate::policy::keys::{FORMER_MAX, Issued, KeyId, KeyRecord, Scope, issue, reissue};
use crate::policy::plan::caps::{Cap, Caps};
use crate::policy::window::iso;
use actor::{answer, shown as audited};
use clap::{Args, Subcommand};
pub(super) use listing::{KeyLine, NO_KEYS, cut, listed, shown};
use lookup::{find, is_no_id};
pub(super) use lookup::{id_in, unknown};
use used::Used;

/// Fails if the ledger has no key with this id or name.
pub(super) fn known(high: &Config, key: &str) -> Result<(), Failure> {
    match find(high, key) {
        Err(unknown @ Failure::Absent(_)) if store::open_existing(high)?.is_some() => Err(unknown),
        _ => Ok(()),
    }
}
use crate::io::entropy;
use serde::Serialize;
use std::time::Duration;

/// Commands about keys.
#[derive(Subcommand, Debug)]
pub enum KeysCommand {
    /// Issue a key and print it; it cannot be shown again
    #[command(after_help = "Example:\n  tollgate keys issue --name ann --plan team --expires 90d")]
    #[command(mut_args(options::of_new_key))]
    Issue(IssueArgs),
    /// List all keys
    #[command(after_help = "Example:\n  tollgate keys list --name 'ci-*' --json")]
    List(ListArgs),
    /// Show one key
    #[command(after_help = "Example:\n  tollgate keys show ann")]
    Show(KeyArgs),
    /// Change name, plan, scope or limits of a key; id, secret and history are kept
    #[command(after_help = "Example:\n  tollgate keys set ann --budget 20 --group research")]
    Set(SetArgs),
    /// Replace the secret of a key and print the new one; id, plan and history are kept
    #[command(after_help = "Example:\n  tollgate keys rotate ann --grace 24h")]
    Rotate(RotateArgs),
    /// Revoke a key; running gateways reject it within a second
    #[command(after_help = "Example:\n  tollgate keys revoke ann")]
    Revoke(KeyArgs),
}

impl KeysCommand {
    /// Configuration options of the command, if any.
    pub fn config(&mut self) -> &mut ConfigArg {
        match self {
            KeysCommand::Issue(args) => &mut args.config,
            KeysCommand::List(args) => &mut args.config,
            KeysCommand::Show(args) => &mut args.config,
            KeysCommand::Set(args) => &mut args.config,
            KeysCommand::Rotate(args) => &mut args.config,
            KeysCommand::Revoke(args) => &mut args.config,
        }
    }
}

/// `tollgate keys issue`.
#[derive(Args, Debug)]
pub struct IssueArgs {
    /// Configuration options.
    #[command(flatten)]
    pub config: ConfigArg,
    /// Name of the person or program that uses the key
    #[arg(long, value_name = "NAME", value_parser = parse_name)]
    pub name: String,
    /// Permissions and limits of the key.
    #[command(flatten)]
    pub options: KeyOptions,
    /// Print JSON: the key and its record
    #[arg(long)]
    pub json: bool,
}

/// `tollgate keys set`.
#[derive(Args, Debug, Default)]
pub struct SetArgs {
    /// Configuration options.
    #[command(flatten)]
    pub config: ConfigArg,
    /// Id (after `live_`) or unique name of the key
    #[arg(value_name = "KEY")]
    pub key: String,
    /// New name
    #[arg(long, value_name = "NAME", value_parser = parse_name)]
    pub name: Option<String>,
    /// Permissions and limits of the key.
    #[command(flatten)]
    pub options: KeyOptions,
    /// Reject the key until it is enabled again
    #[arg(long, conflicts_with = "enable")]
    pub disable: bool,
    /// Accept a disabled key again
    #[arg(long)]
    pub enable: bool,
    /// Raise a limit for some time, by 20 dollars: budget=20/month; budget/month=none ends it; repeatable
    #[arg(long = "extra", value_name = "EXTRA", value_parser = parse_extra)]
    pub extra: Vec<Cap>,
    /// Time for which --extra applies, such as 2d
    #[arg(long = "for", value_name = "TIME", value_parser = parse_end, conflicts_with = "until", requires = "extra")]
    pub time: Option<Expiry>,
    /// End of --extra: a date, such as 2027-01-31T18:00:00Z
    #[arg(long, value_name = "WHEN", value_parser = parse_end, requires = "extra")]
    pub until: Option<Expiry>,
    /// Temporary allowances of the admin API.
    #[arg(skip)]
    pub extras: Vec<KeyExtra>,
    /// Time for which its traffic is captured, which another command sets.
    #[arg(skip)]
    pub capture: Option<Expiry>,
    /// Print JSON: the changed record
    #[arg(long)]
    pub json: bool,
}

/// `tollgate keys rotate`.
#[derive(Args, Debug)]
pub struct RotateArgs {
    /// Configuration options.
    #[command(flatten)]
    pub config: ConfigArg,
    /// Id (after `live_`) or unique name of the key
    #[arg(value_name = "KEY")]
    pub key: String,
    /// Time for which the old secret stays valid; 0s ends it within a second
    #[arg(long, value_name = "TIME", value_parser = parse_grace, default_value = GRACE)]
    pub grace: Duration,
    /// Print JSON: the key and its record
    #[arg(long)]
    pub json: bool,
}

impl SetArgs {
    /// The current time, for a change. If an end depends on it, it is checked first.
    fn present(&self, high: &Config) -> Result<Unix, Failure> {
        let has_end = self.capture.is_some() || self.extras().any(|extra| extra.cap.total > 0);
        if has_end { present(high) } else { self.options.present(high) }
    }

    /// True if the command changes nothing.
    fn is_empty(&self) -> bool {
        let is_same = self.name.is_none() && self.options.is_empty() && self.capture.is_none();
        is_same && !self.disable && !self.enable && self.extras().next().is_none()
    }

    /// The temporary allowances that are named.
    fn extras(&self) -> impl Iterator<Item = KeyExtra> + '_ {
        let until = self.time.or(self.until);
        let named = self.extra.iter().map(move |cap| KeyExtra { cap: cap.clone(), until });
        named.chain(self.extras.iter().cloned())
    }
}

const NOTHING: &str = "nothing to change; see `tollgate keys set --help`";

/// Default time for which a key's old secret stays valid.
pub(super) const GRACE: &str = "24h";

pub(super) fn parse_grace(text: &str) -> Result<Duration, String> {
    units::duration(text).ok_or_else(|| "expected a duration such as 24h, or 0s".to_string())
}

/// Runs the command.
pub fn run(command: &KeysCommand) -> Result<(), Failure> {
    match command {
        KeysCommand::Issue(args) => issue_key(args),
        KeysCommand::List(args) => listing::list(args),
        KeysCommand::Show(args) => listing::show(args),
        KeysCommand::Set(args) => set(args),
        KeysCommand::Rotate(args) => rotate(args),
        KeysCommand::Revoke(args) => revoke(args),
    }
}

fn issue_key(args: &IssueArgs) -> Result<(), Failure> {
    let high = load::load(&args.config, Secrets::Optional)?;
    somewhere_to_show()?;
    let now = present(&high)?;
    let (record, text) = make(args, &high, &Actor::COMMAND, now)?;
    show_once(&record, text, args.json, &high, now).map_err(|unseen| withdraw(&high, &record.id, &unseen))?;
    let (name, expiry) = (clean(&record.name), record.expires.map_or("never".to_string(), iso));
    remark(&format!(
        "issued key {} for {name}: plan {}, expires {expiry}; its secret is not shown again",
        record.id, record.plan
    ));
    warn_of_unused(&record, &high);
    Ok(())
}

/// Warns of limits that name no model.
fn warn_of_unused(record: &KeyRecord, high: &Config) {
    high.known_models().unused(&record.limits).iter().for_each(|text| warn(&["limits: ", text].concat()));
}

/// Fails if standard output is closed. Checked before any change: a key that cannot be shown must not be created.
fn somewhere_to_show() -> Result<(), Failure> {
    leads_somewhere().map_err(|failure| Failure::failed(format!("{}; nothing was changed", failure.text())))
}

/// Revokes a key that was stored but could not be shown; returns the message for the user.
fn withdraw(high: &Config, id: &KeyId, unseen: &Failure) -> Failure {
    let outcome = match revoke_in(high, id, &Actor::COMMAND, unix()) {
        Ok(_) => "it is revoked again".to_string(),
        Err(failure) => format!("it could not be revoked either ({}): revoke it", failure.text()),
    };
    Failure::failed(format!("{}: key {id} was issued and could not be shown; {outcome}", unseen.text()))
}

/// Prints a key that cannot be shown again.
fn show_once(record: &KeyRecord, text: String, json: bool, high: &Config, now: Unix) -> Result<(), Failure> {
    match json {
        true => print_secret(&json_text(&Fresh::new(Some(text), record, high, now))?),
        false => print_secret(&format!("{text}\n")),
    }
}

/// Creates a key and stores its record. Returns the record, and the key, which cannot be shown again.
fn make(args: &IssueArgs, high: &Config, by: &Actor<'_>, now: Unix) -> Result<(KeyRecord, String), Failure> {
    is_no_id(high, &args.name)?;
    let key = prepare(args, high, now)?;
    let issued = with_entropy(|fill| issue(&high.server.key_prefix, fill))?;
    let record = KeyRecord { id: issued.id, digest: issued.digest, ..key };
    let answer = |key: &KeyRecord| answer(&Fresh::new(None, key, high, now));
    store::open(high)?
        .issue_key(&record, &by.note("issue", (&audited(high, now), &answer), now))
        .map_err(Failure::failed)?;
    Ok((record, issued.text))
}

/// Creates a key from the system's random bytes.
pub(super) fn with_entropy(make: impl FnOnce(&mut dyn FnMut(&mut [u8])) -> Issued) -> Result<Issued, Failure> {
    let mut lacks = None;
    let issued = make(&mut |out: &mut [u8]| lacks = lacks.take().or(entropy::fill(out).err()));
    lacks.map_or(Ok(issued), |error| Err(Failure::failed(error)))
}

fn rotate(args: &RotateArgs) -> Result<(), Failure> {
    let high = load::load(&args.config, Secrets::Optional)?;
    somewhere_to_show()?;
    let now = present(&high)?;
    let id = find(&high, &args.key)?.id;
    let Rotated { before, record, text } = rotate_in(&high, &id, args.grace, &Actor::COMMAND, now)?;
    show_once(&record, text, args.json, &high, now).map_err(|unseen| undo(&high, &before, &record, &unseen))?;
    let end = record.former.first().map(|former| format!("former secrets expire at {}", iso(former.until)));
    let end = end.unwrap_or_else(|| "the former secret is no longer valid".to_string());
    remark(&format!("key {} for {} has a new secret, which is not shown again; {end}", record.id, clean(&record.name)));
    Ok(())
}

fn set(args: &SetArgs) -> Result<(), Failure> {
    let high = load::load(&args.config, Secrets::Optional)?;
    if args.is_empty() {
        return Err(Failure::misused(NOTHING));
    }
    let now = args.present(&high)?;
    let record = set_in(&high, &find(&high, &args.key)?.id, args, &Actor::COMMAND, now)?;
    warn_of_unused(&record, &high);
    if args.json {
        return print_json(&KeyLine::new(record, &high, &Used::default(), now));
    }
    remark(&format!("changed key {} for {}", record.id, clean(&record.name)));
    Ok(())
}

/// Applies all requested changes to a key, or none.
fn set_in(high: &Config, id: &KeyId, args: &SetArgs, by: &Actor<'_>, now: Unix) -> Result<KeyRecord, Failure> {
    is_no_id(high, args.name.as_deref().unwrap_or_default())?;
    let mut ledger = store::open_existing(high)?.ok_or_else(|| unknown(id.as_str()))?;
    let answer = |key: &KeyRecord| answer(&KeyLine::new(key.clone(), high, &Used::default(), now));
    let edited = ledger.edit_key(id, &by.note("edit", (&audited(high, now), &answer), now), |key| {
        if key.revoked.is_some() {
            return Err(Failure::Refused(format!("key {id} is revoked; issue a new one")));
        }
        args.options.apply(high, now, key)?;
        key.name = args.name.clone().unwrap_or_else(|| key.name.clone());
        key.disabled = args.disable || (key.disabled && !args.enable);
        let plan = high.plan(&key.plan).cloned().unwrap_or_default();
        key.limits = options::with_extras(&key.limits, &args.extras().collect::<Vec<_>>(), &plan, now)?;
        key.capture = options::captured_until(args.capture, key.capture, now)?;
        Ok(())
    });
    edited.map_err(Failure::failed)?.ok_or_else(|| unknown(id.as_str()))?
}

/// A key with a new secret.
struct Rotated {
    before: KeyRecord,
    record: KeyRecord,
    /// The key that cannot be shown again.
    text: String,
}

/// Gives a key a new secret.
fn rotate_in(high: &Config, id: &KeyId, grace: Duration, by: &Actor<'_>, now: Unix) -> Result<Rotated, Failure> {
    let mut ledger = store::open_existing(high)?.ok_or_else(|| unknown(id.as_str()))?;
    let issued = with_entropy(|fill| reissue(&high.server.key_prefix, *id, fill))?;
    let until = Unix(now.0.saturating_add(u64::try_from(grace.as_millis()).unwrap_or(u64::MAX)));
    let mut before = None;
    let answer = |key: &KeyRecord| answer(&Fresh::new(None, key, high, now));
    let edited = ledger.edit_key(id, &by.note("rotate", (&audited(high, now), &answer), now), |key| {
        if !key.is_live(now) {
            let why = match key {
                key if key.revoked.is_some() => "is revoked; issue a new one",
                key if key.disabled => "is disabled; enable it first",
                _ => "has expired; issue a new one",
            };
            return Err(Failure::Refused(format!("key {id} {why}")));
        }
        before = Some(key.clone());
        match key.rotate(issued.digest, until, now) {
            true => Ok(()),
            false => Err(Failure::Refused(format!(
                "key {id} already has {FORMER_MAX} former secrets; a grace of 0s ends them"
            ))),
        }
    });
    let record = edited.map_err(Failure::failed)?.ok_or_else(|| unknown(id.as_str()))??;
    Ok(Rotated { before: before.ok_or_else(|| unknown(id.as_str()))?, record, text: issued.text })
}

/// Reverts a rotation whose secret could not be shown, unless the key has been rotated again in the meantime. Returns
/// the message for the user.
fn undo(high: &Config, before: &KeyRecord, record: &KeyRecord, unseen: &Failure) -> Failure {
    let take_back = || -> Result<(), Failure> {
        let (mut ledger, now) = (store::open_existing(high)?.ok_or_else(|| unknown(record.id.as_str()))?, unix());
        let shown = audited(high, now);
        let note = Actor::COMMAND.note("undo", (&shown, &|_| String::new()), now);
        let edited = ledger.edit_key(&record.id, &note, |key| {
            if key.digest == record.digest {
                (key.digest, key.former) = (before.digest, before.former.clone());
            }
            Ok::<(), Failure>(())
        });
        edited.map(drop).map_err(Failure::failed)
    };
    let outcome = match take_back() {
        Ok(()) => "the former one stays valid".to_string(),
        Err(failure) => format!("the rotation could not be undone ({}): rotate the key again", failure.text()),
    };
    Failure::failed(format!("{}: the new secret of key {} could not be shown; {outcome}", unseen.text(), record.id))
}

/// The record of a new key; id and digest are still blank.
fn prepare(args: &IssueArgs, high: &Config, now: Unix) -> Result<KeyRecord, Failure> {
    let blank = KeyId::parse("000000000000").ok_or_else(|| Failure::failed("a key id of zeros is not one"))?;
    let mut key = KeyRecord {
        id: blank,
        digest: [0; 32],
        name: args.name.clone(),
        plan: high.plans.first().map_or("default", |plan| &plan.name).to_string(),
        scope: Scope::default(),
        created: now,
        expires: None,
        revoked: None,
        disabled: false,
        limits: Caps::default(),
        group: None,
        labels: Vec::new(),
        former: Vec::new(),
        capture: None,
    };
    args.options.apply(high, now, &mut key)?;
    Ok(key)
}

fn revoke(args: &KeyArgs) -> Result<(), Failure> {
    let high = load::load(&args.config, Secrets::Optional)?;
    let id = find(&high, &args.key)?.id;
    let new = revoke_in(&high, &id, &Actor::COMMAND, unix())?;
    if args.json {
        return print_json(&gone(&id, !new));
    }
    remark(&format!("key {id} {}", if new { "is revoked" } else { "was already revoked" }));
    Ok(())
}

/// A revoked key, as JSON.
pub(super) type RevokedKey = serde_json::Value;

fn gone(id: &KeyId, was_before: bool) -> RevokedKey {
    serde_json::json!({"id": id.as_str(), "revoked": true, "was_revoked_before": was_before})
}

/// Revokes a key. True if it was not revoked before; an unknown key is a failure.
fn revoke_in(high: &Config, id: &KeyId, by: &Actor<'_>, now: Unix) -> Result<bool, Failure> {
    let mut ledger = store::open_existing(high)?.ok_or_else(|| unknown(id.as_str()))?;
    let answer = |key: &KeyRecord| answer(&gone(&key.id, false));
    let edited =
        ledger.edit_key(id, &by.note("revoke", (&audited(high, now), &answer), now), |key| match key.revoked {
            Some(_) => Err(()),
            None => {
                key.revoked = Some(now);
                Ok(())
            }
        });
    edited.map_err(Failure::failed)?.map(|edited| edited.is_ok()).ok_or_else(|| unknown(id.as_str()))
}

/// A new key, as JSON.
#[derive(Serialize)]
pub(super) struct Fresh {
    /// The key itself, which is shown only once; afterwards `None`.
    secret: Option<String>,
    #[serde(flatten)]
    record: KeyLine,
}

impl Fresh {
    fn new(secret: Option<String>, record: &KeyRecord, high: &Config, now: Unix) -> Fresh {
        Fresh { secret, record: KeyLine::new(record.clone(), high, &Used::default(), now) }
    }
}

#[cfg(test)]
mod tests;
