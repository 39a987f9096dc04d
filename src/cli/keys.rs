//! `tollgate keys`: issue, list, show, rotate, revoke. A running gateway sees a change within a second (contract
//! section 3). A key is printed once, alone on standard output; only its digest is stored.

use super::args::ConfigArg;
use super::load::{self, Secrets};
use super::output::{
    Align, Failure, Table, clean, is_control, json_text, leads_somewhere, print, print_json, print_secret, remark,
};
use super::store;
use crate::base::time::Unix;
use crate::io::clock::unix;
use crate::policy::config::{Config, units};
use crate::policy::keys::{Issued, KeyId, KeyRecord, Scope, issue, reissue};
use crate::policy::window::{iso, parse_moment};
use clap::{Args, Subcommand};
use ring::rand::{SecureRandom, SystemRandom};
use serde::Serialize;
use std::time::Duration;

/// Characters of a key's name.
const NAME_MAX: usize = 128;

/// What can be done with keys.
#[derive(Subcommand, Debug)]
pub enum KeysCommand {
    /// Issue a key and print it, alone, on standard output; it is shown this once
    Issue(IssueArgs),
    /// List all keys
    List(ListArgs),
    /// Show one key
    Show(ShowArgs),
    /// Give a key a new secret and print it, alone, on standard output; id, plan and history stay
    Rotate(RotateArgs),
    /// Revoke a key; a running gateway refuses it within a second
    Revoke(RevokeArgs),
}

/// `tollgate keys issue`.
#[derive(Args, Debug)]
pub struct IssueArgs {
    /// Which configuration.
    #[command(flatten)]
    pub config: ConfigArg,
    /// Who or what will use the key
    #[arg(long, value_name = "NAME", value_parser = parse_name)]
    pub name: String,
    /// Plan [default: the first one configured]
    #[arg(long, value_name = "PLAN")]
    pub plan: Option<String>,
    /// Models the key may use, comma-separated, or * [default: all]
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    pub models: Vec<String>,
    /// Endpoints the key may use, of chat,messages,models,quota [default: all]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub endpoints: Vec<String>,
    /// When it expires: after a while (30d) or at a date (2027-01-31) [default: never]
    #[arg(long, value_name = "WHEN", value_parser = parse_expiry)]
    pub expires: Option<Expiry>,
    /// Print JSON: the key and its record
    #[arg(long)]
    pub json: bool,
}

/// `tollgate keys rotate`.
#[derive(Args, Debug)]
pub struct RotateArgs {
    /// Which configuration.
    #[command(flatten)]
    pub config: ConfigArg,
    /// The key's id: the twelve characters after `live_`
    #[arg(value_parser = parse_id)]
    pub id: KeyId,
    /// How long the old secret stays valid; 0s ends it at once
    #[arg(long, value_name = "TIME", value_parser = parse_grace, default_value = "24h")]
    pub grace: Duration,
    /// Print JSON: the key and its record
    #[arg(long)]
    pub json: bool,
}

/// `tollgate keys list`.
#[derive(Args, Debug)]
pub struct ListArgs {
    /// Which configuration.
    #[command(flatten)]
    pub config: ConfigArg,
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
}

/// `tollgate keys show`.
#[derive(Args, Debug)]
pub struct ShowArgs {
    /// Which configuration.
    #[command(flatten)]
    pub config: ConfigArg,
    /// The key's id: the twelve characters after `live_`
    #[arg(value_parser = parse_id)]
    pub id: KeyId,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `tollgate keys revoke`.
#[derive(Args, Debug)]
pub struct RevokeArgs {
    /// Which configuration.
    #[command(flatten)]
    pub config: ConfigArg,
    /// The key's id: the twelve characters after `live_`
    #[arg(value_parser = parse_id)]
    pub id: KeyId,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// When a key expires, as typed.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Expiry {
    /// So long after it was issued.
    After(Duration),
    /// At this moment.
    At(Unix),
}

fn parse_expiry(text: &str) -> Result<Expiry, String> {
    let after = units::duration(text).filter(|length| !length.is_zero()).map(Expiry::After);
    let expiry = after.or_else(|| parse_moment(text).map(Expiry::At));
    expiry.ok_or_else(|| "expected a duration such as 30d, or a date such as 2027-01-31".to_string())
}

fn parse_grace(text: &str) -> Result<Duration, String> {
    units::duration(text).ok_or_else(|| "expected a duration such as 24h, or 0s".to_string())
}

fn parse_name(text: &str) -> Result<String, String> {
    let good = (1..=NAME_MAX).contains(&text.chars().count()) && !text.chars().any(is_control);
    let expected = || format!("expected 1 to {NAME_MAX} characters, none of them a control character");
    good.then(|| text.to_string()).ok_or_else(expected)
}

/// Takes a whole key too, so that one can be revoked that was found in a place where it should not be.
fn parse_id(text: &str) -> Result<KeyId, String> {
    let tail = text.split_once("live_").map_or(text, |(_, tail)| tail.get(..12).unwrap_or(tail));
    KeyId::parse(tail).ok_or_else(|| "expected the twelve letters and digits of a key's id".to_string())
}

/// Does what was asked.
pub fn run(command: &KeysCommand) -> Result<(), Failure> {
    match command {
        KeysCommand::Issue(args) => issue_key(args),
        KeysCommand::List(args) => list(args),
        KeysCommand::Show(args) => show(args),
        KeysCommand::Rotate(args) => rotate(args),
        KeysCommand::Revoke(args) => revoke(args),
    }
}

fn issue_key(args: &IssueArgs) -> Result<(), Failure> {
    let high = load::load(&args.config, Secrets::Optional)?;
    let now = unix();
    somewhere_to_show()?;
    let (record, text) = make(args, &high, now)?;
    show_once(&record, text, args.json, &high, now).map_err(|unseen| withdraw(&high, &record.id, &unseen))?;
    let (name, expiry) = (clean(&record.name), record.expires.map_or("never".to_string(), iso));
    remark(&format!("key {} for {name}: plan {}, expires {expiry}; shown only now", record.id, record.plan));
    Ok(())
}

/// To be asked before anything is changed: what cannot be shown is not made.
fn somewhere_to_show() -> Result<(), Failure> {
    leads_somewhere().map_err(|failure| Failure::failed(format!("{}; nothing was changed", failure.text())))
}

/// Revokes a key that was stored and could not be shown; what is to be said of it.
fn withdraw(high: &Config, id: &KeyId, unseen: &Failure) -> Failure {
    let outcome = match revoke_in(high, id, unix()) {
        Ok(_) => "it is revoked again".to_string(),
        Err(failure) => format!("it could not be revoked either ({}): revoke it", failure.text()),
    };
    Failure::failed(format!("{}: key {id} was issued and could not be shown; {outcome}", unseen.text()))
}

/// Prints a key that cannot be shown again.
fn show_once(record: &KeyRecord, text: String, json: bool, high: &Config, now: Unix) -> Result<(), Failure> {
    match json {
        true => print_secret(&json_text(&Fresh { key: text, record: Line::new(record, high, now) })?),
        false => print_secret(&format!("{text}\n")),
    }
}

/// Makes a key and stores its record: the record, and the key, which cannot be shown again.
fn make(args: &IssueArgs, high: &Config, now: Unix) -> Result<(KeyRecord, String), Failure> {
    let key = prepare(args, high, now)?;
    let issued = with_entropy(|fill| issue(&high.server.key_prefix, fill))?;
    let record = KeyRecord { id: issued.id, digest: issued.digest, ..key };
    store::open(high)?.insert_key(&record).map_err(Failure::failed)?;
    Ok((record, issued.text))
}

/// A key made of the system's random bytes.
fn with_entropy(make: impl FnOnce(&mut dyn FnMut(&mut [u8])) -> Issued) -> Result<Issued, Failure> {
    let random = SystemRandom::new();
    let mut filled = true;
    let issued = make(&mut |out: &mut [u8]| filled &= random.fill(out).is_ok());
    if filled { Ok(issued) } else { Err(Failure::failed("the system gives no random bytes")) }
}

fn rotate(args: &RotateArgs) -> Result<(), Failure> {
    let high = load::load(&args.config, Secrets::Optional)?;
    let now = unix();
    somewhere_to_show()?;
    let Rotated { before, record, text } = rotate_in(&high, &args.id, args.grace, now)?;
    show_once(&record, text, args.json, &high, now).map_err(|unseen| undo(&high, &before, &record, &unseen))?;
    let end = record.former.first().map(|former| format!("former secrets end by {}", iso(former.until)));
    let end = end.unwrap_or_else(|| "the former secret has ended".to_string());
    remark(&format!("key {} for {} has a new secret; {end}; shown only now", record.id, clean(&record.name)));
    Ok(())
}

/// A key that was given a new secret.
struct Rotated {
    before: KeyRecord,
    record: KeyRecord,
    /// The key that cannot be shown again.
    text: String,
}

/// Gives a key a new secret.
fn rotate_in(high: &Config, id: &KeyId, grace: Duration, now: Unix) -> Result<Rotated, Failure> {
    let mut ledger = store::open_existing(high)?.ok_or_else(|| unknown(id))?;
    let issued = with_entropy(|fill| reissue(&high.server.key_prefix, *id, fill))?;
    let until = Unix(now.0.saturating_add(u64::try_from(grace.as_millis()).unwrap_or(u64::MAX)));
    let mut before = None;
    let edited = ledger.edit_key(id, |key| {
        if !key.is_live(now) {
            let why = if key.revoked.is_some() { "is revoked" } else { "has expired" };
            return Err(Failure::failed(format!("key {id} {why}; issue a new one")));
        }
        before = Some(key.clone());
        key.rotate(issued.digest, until, now);
        Ok(())
    });
    let record = edited.map_err(Failure::failed)?.ok_or_else(|| unknown(id))??;
    Ok(Rotated { before: before.ok_or_else(|| unknown(id))?, record, text: issued.text })
}

/// Takes back a rotation whose secret could not be shown, unless the key has been rotated again meanwhile. Returns what
/// is to be said of it.
fn undo(high: &Config, before: &KeyRecord, record: &KeyRecord, unseen: &Failure) -> Failure {
    let take_back = || -> Result<(), Failure> {
        let mut ledger = store::open_existing(high)?.ok_or_else(|| unknown(&record.id))?;
        let edited = ledger.edit_key(&record.id, |key| {
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

/// The record of a key that is about to be issued; id and digest are still blank.
fn prepare(args: &IssueArgs, high: &Config, now: Unix) -> Result<KeyRecord, Failure> {
    let plan = match (&args.plan, high.plans.first()) {
        (Some(name), _) if high.plan(name).is_none() => {
            let names: Vec<&str> = high.plans.iter().map(|plan| &*plan.name).collect();
            return Err(Failure::misused(format!("no plan is named `{name}`; there is {}", names.join(", "))));
        }
        (Some(name), _) => name.clone(),
        (None, first) => first.map_or("default", |plan| &plan.name).to_string(),
    };
    let words = |list: &'_ [String]| list.iter().map(|word| word.trim().to_string()).collect::<Vec<String>>();
    let (endpoints, models) = (words(&args.endpoints), words(&args.models));
    if let Some(unknown) = models.iter().find(|id| *id != "*" && high.catalog.find(id).is_none()) {
        return Err(Failure::misused(format!("no model has the id `{unknown}`; see `tollgate models`")));
    }
    let scope = Scope::from_words(endpoints.iter().map(String::as_str), models.iter().map(String::as_str))
        .map_err(|word| Failure::misused(format!("`{word}` is no endpoint: expected chat, messages, models, quota")))?;
    let expires = match args.expires {
        None => None,
        Some(Expiry::At(at)) if at <= now => return Err(Failure::misused("--expires lies in the past")),
        Some(Expiry::At(at)) => Some(at),
        Some(Expiry::After(length)) => {
            let millis = u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
            Some(Unix(now.0.saturating_add(millis)))
        }
    };
    let blank = KeyId::parse("000000000000").ok_or_else(|| Failure::failed("a key id of zeros is not one"))?;
    let (name, digest) = (args.name.clone(), [0; 32]);
    Ok(KeyRecord { id: blank, digest, name, plan, scope, created: now, expires, revoked: None, former: Vec::new() })
}

/// A key that was just made, as JSON.
#[derive(Serialize)]
struct Fresh {
    key: String,
    #[serde(flatten)]
    record: Line,
}

/// One key as JSON.
#[derive(Serialize)]
struct Line {
    id: String,
    name: String,
    plan: String,
    /// False for a plan that is not in the configuration any more: its keys are refused.
    plan_configured: bool,
    status: &'static str,
    endpoints: Vec<String>,
    /// `["*"]` for all.
    models: Vec<String>,
    created: String,
    expires: Option<String>,
    revoked: Option<String>,
    /// Until when secrets from before a rotation stay valid.
    former_secrets_until: Vec<String>,
}

impl Line {
    fn new(key: &KeyRecord, high: &Config, now: Unix) -> Line {
        let status = match key {
            key if key.revoked.is_some() => "revoked",
            key if !key.is_live(now) => "expired",
            _ => "live",
        };
        let former = key.former.iter().filter(|former| now < former.until);
        Line {
            id: key.id.to_string(),
            name: key.name.clone(),
            plan: key.plan.clone(),
            plan_configured: high.plan(&key.plan).is_some(),
            status,
            endpoints: key.scope.endpoints_text().split(',').map(str::to_string).collect(),
            models: key.scope.models_allowed.clone().unwrap_or_else(|| vec!["*".to_string()]),
            created: iso(key.created),
            expires: key.expires.map(iso),
            revoked: key.revoked.map(iso),
            former_secrets_until: former.map(|former| iso(former.until)).collect(),
        }
    }

    fn plan_text(&self) -> String {
        let remark = if self.plan_configured { "" } else { " (not configured)" };
        format!("{}{remark}", self.plan)
    }
}

fn records_in(high: &Config) -> Result<Vec<KeyRecord>, Failure> {
    match store::open_existing(high)? {
        Some(mut ledger) => ledger.list_keys().map_err(Failure::failed),
        None => Ok(Vec::new()),
    }
}

fn list(args: &ListArgs) -> Result<(), Failure> {
    let (high, now) = (load::load(&args.config, Secrets::Optional)?, unix());
    let lines: Vec<Line> = records_in(&high)?.iter().map(|key| Line::new(key, &high, now)).collect();
    if args.json { print_json(&lines) } else { print(&table(&lines)) }
}

fn table(lines: &[Line]) -> String {
    let heads = ["ID", "NAME", "PLAN", "STATUS", "ENDPOINTS", "MODELS", "CREATED", "EXPIRES"];
    let mut table = Table::new(&heads.map(|head| (head, Align::Left)));
    for line in lines {
        table.row(vec![
            line.id.clone(),
            line.name.clone(),
            line.plan_text(),
            line.status.to_string(),
            if line.endpoints.len() == 4 { "all".to_string() } else { line.endpoints.join(",") },
            if line.models == ["*"] { "all".to_string() } else { line.models.join(",") },
            line.created.clone(),
            line.expires.clone().unwrap_or_else(|| "never".to_string()),
        ]);
    }
    table.text()
}

fn show(args: &ShowArgs) -> Result<(), Failure> {
    let high = load::load(&args.config, Secrets::Optional)?;
    let key = records_in(&high)?.into_iter().find(|key| key.id == args.id);
    let line = Line::new(&key.ok_or_else(|| unknown(&args.id))?, &high, unix());
    if args.json {
        return print_json(&line);
    }
    let never = || "never".to_string();
    let former = line.former_secrets_until.join(", ");
    let mut table = Table::new(&[("FIELD", Align::Left), ("VALUE", Align::Left)]);
    let plan = line.plan_text();
    for (field, value) in [
        ("id", line.id),
        ("name", line.name),
        ("plan", plan),
        ("status", line.status.to_string()),
        ("endpoints", line.endpoints.join(",")),
        ("models", line.models.join(",")),
        ("created", line.created),
        ("expires", line.expires.unwrap_or_else(never)),
        ("revoked", line.revoked.unwrap_or_else(never)),
        ("former secrets", if former.is_empty() { "none".to_string() } else { format!("until {former}") }),
    ] {
        table.row(vec![field.to_string(), value]);
    }
    print(&table.text())
}

fn revoke(args: &RevokeArgs) -> Result<(), Failure> {
    let high = load::load(&args.config, Secrets::Optional)?;
    let new = revoke_in(&high, &args.id, unix())?;
    if args.json {
        return print_json(&serde_json::json!({"id": args.id.as_str(), "revoked": true, "was_revoked_before": !new}));
    }
    remark(&format!("key {} {}", args.id, if new { "is revoked" } else { "was revoked before" }));
    Ok(())
}

/// True if the key was not revoked before; an unknown one is a failure.
fn revoke_in(high: &Config, id: &KeyId, now: Unix) -> Result<bool, Failure> {
    let mut ledger = store::open_existing(high)?.ok_or_else(|| unknown(id))?;
    if ledger.revoke(id, now).map_err(Failure::failed)? {
        return Ok(true);
    }
    let known = ledger.list_keys().map_err(Failure::failed)?.iter().any(|key| key.id == *id);
    if known { Ok(false) } else { Err(unknown(id)) }
}

fn unknown(id: &KeyId) -> Failure {
    Failure::failed(format!("no key has the id {id}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::demo_config::tests::parsed;
    use crate::policy::config::StoreUrl;
    use crate::policy::keys::Keys;
    use std::path::PathBuf;

    const NOW: Unix = Unix(1_795_000_000_000);

    fn args() -> IssueArgs {
        IssueArgs {
            config: ConfigArg::default(),
            name: "ci".to_string(),
            plan: None,
            models: Vec::new(),
            endpoints: Vec::new(),
            expires: None,
            json: false,
        }
    }

    #[test]
    fn a_key_gets_the_first_plan_and_everything_by_default() {
        let key = prepare(&args(), &parsed(), NOW).unwrap();
        assert_eq!((key.plan.as_str(), key.scope, key.expires), ("demo", Scope::default(), None));
    }

    #[test]
    fn unknown_plans_models_and_endpoints_are_misuse() {
        let list = |word: &str| vec![word.to_string()];
        let wrong = [
            IssueArgs { plan: Some("gold".to_string()), ..args() },
            IssueArgs { models: list("gpt-9"), ..args() },
            IssueArgs { endpoints: list("embeddings"), ..args() },
            IssueArgs { expires: Some(Expiry::At(NOW)), ..args() },
        ];
        for args in wrong {
            assert!(matches!(prepare(&args, &parsed(), NOW), Err(Failure::Misused(_))), "{args:?}");
        }
    }

    #[test]
    fn scope_and_expiry_are_taken_over() {
        let models = vec!["heron-small".to_string(), " ibis-large".to_string()];
        let endpoints = vec!["chat".to_string()];
        let expires = Some(Expiry::After(Duration::from_secs(60)));
        let key = prepare(&IssueArgs { models, endpoints, expires, ..args() }, &parsed(), NOW).unwrap();
        assert!(key.scope.allows_model("ibis-large") && !key.scope.allows_model("heron-large"));
        assert_eq!(key.scope.endpoints_text(), "chat,models,quota");
        assert_eq!(key.expires, Some(Unix(NOW.0 + 60_000)));
    }

    /// The demo's configuration with a ledger in a fresh folder, which is removed with the guard.
    fn with_ledger(test: &str) -> (Config, impl Drop) {
        struct Folder(PathBuf);
        impl Drop for Folder {
            fn drop(&mut self) {
                let _ = std::fs::remove_dir_all(&self.0);
            }
        }
        let folder = Folder(std::env::temp_dir().join(format!("tollgate-{test}-{}", std::process::id())));
        std::fs::create_dir_all(&folder.0).unwrap();
        let mut high = parsed();
        high.store.url = StoreUrl::Sqlite(folder.0.join("ledger.db"));
        (high, folder)
    }

    #[test]
    fn an_issued_key_opens_what_is_stored_and_is_not_in_the_store_itself() {
        let (high, _folder) = with_ledger("issue");
        let (record, text) = make(&args(), &high, NOW).unwrap();
        let stored = records_in(&high).unwrap();
        assert_eq!(stored, std::slice::from_ref(&record));
        let mut keys = Keys::new(1);
        keys.load(stored);
        assert!(keys.identify(text.as_bytes(), "tg_", NOW).is_some());
        let StoreUrl::Sqlite(path) = &high.store.url else { panic!("not a file") };
        for entry in std::fs::read_dir(path.parent().unwrap()).unwrap() {
            let bytes = std::fs::read(entry.unwrap().path()).unwrap();
            assert!(!bytes.windows(32).any(|window| window == &text.as_bytes()[20..52]));
        }
    }

    #[test]
    fn a_key_is_revoked_once_and_an_unknown_one_is_a_failure() {
        let (high, _folder) = with_ledger("revoke");
        let stranger = KeyId::parse("0123456789ab").unwrap();
        assert_eq!(revoke_in(&high, &stranger, NOW), Err(unknown(&stranger)));
        assert!(records_in(&high).unwrap().is_empty());
        let (record, _) = make(&args(), &high, NOW).unwrap();
        assert_eq!(revoke_in(&high, &record.id, NOW), Ok(true));
        assert_eq!(revoke_in(&high, &record.id, NOW), Ok(false));
        assert_eq!(revoke_in(&high, &stranger, NOW), Err(unknown(&stranger)));
        assert_eq!(records_in(&high).unwrap()[0].revoked, Some(NOW));
    }

    #[test]
    fn a_rotated_key_opens_with_both_secrets_for_the_grace_and_repeating_it_cuts_nobody_off() {
        let (high, _folder) = with_ledger("rotate");
        let (record, first) = make(&args(), &high, NOW).unwrap();
        let minute = Duration::from_secs(60);
        let second = rotate_in(&high, &record.id, minute, NOW).unwrap().text;
        let third = rotate_in(&high, &record.id, minute, Unix(NOW.0 + 10_000)).unwrap().text;
        let mut keys = Keys::new(1);
        keys.load(records_in(&high).unwrap());
        let mut opens = |text: &String, seconds: u64| {
            keys.identify(text.as_bytes(), "tg_", Unix(NOW.0 + seconds * 1000)).map(|ix| keys.record(ix).id)
        };
        for text in [&first, &second, &third] {
            assert_eq!(opens(text, 59), Some(record.id));
        }
        assert_eq!((opens(&first, 60), opens(&second, 69)), (None, Some(record.id)));
        assert_eq!((opens(&second, 70), opens(&third, 10_000)), (None, Some(record.id)));
        let fourth = rotate_in(&high, &record.id, Duration::ZERO, NOW).unwrap().text;
        keys.load(records_in(&high).unwrap());
        let mut opens = |text: &String| keys.identify(text.as_bytes(), "tg_", NOW).is_some();
        assert_eq!((opens(&third), opens(&fourth), opens(&second)), (false, true, false));
    }

    #[test]
    fn a_revoked_or_unknown_key_is_not_rotated() {
        let (high, _folder) = with_ledger("rotate-revoked");
        let stranger = KeyId::parse("0123456789ab").unwrap();
        assert_eq!(rotate_in(&high, &stranger, Duration::ZERO, NOW).err(), Some(unknown(&stranger)));
        let (record, _) = make(&args(), &high, NOW).unwrap();
        assert_eq!(rotate_in(&high, &stranger, Duration::ZERO, NOW).err(), Some(unknown(&stranger)));
        revoke_in(&high, &record.id, NOW).unwrap();
        assert!(matches!(rotate_in(&high, &record.id, Duration::ZERO, NOW), Err(Failure::Failed(_))));
        assert_eq!(records_in(&high).unwrap()[0].digest, record.digest);
    }

    #[test]
    fn a_command_that_only_reads_leaves_no_ledger_behind() {
        let (high, _folder) = with_ledger("read");
        assert!(records_in(&high).unwrap().is_empty());
        let StoreUrl::Sqlite(path) = &high.store.url else { panic!("not a file") };
        assert!(!path.exists());
    }

    #[test]
    fn expiry_is_a_duration_or_a_date() {
        assert_eq!(parse_expiry("30d"), Ok(Expiry::After(Duration::from_secs(30 * 86_400))));
        assert_eq!(parse_expiry("1970-01-02"), Ok(Expiry::At(Unix(86_400_000))));
        for wrong in ["", "0s", "30", "tomorrow"] {
            assert!(parse_expiry(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_whole_key_names_its_id_and_anything_else_is_refused() {
        let issued = issue("tg_", |out: &mut [u8]| out.iter_mut().zip(0..).for_each(|(b, i)| *b = i));
        assert_eq!(parse_id(&issued.text), Ok(issued.id));
        assert_eq!(parse_id(issued.id.as_str()), Ok(issued.id));
        for wrong in ["", "abc", "tg_live_abc", "0123456789a_"] {
            assert!(parse_id(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_table_says_what_state_a_key_is_in() {
        let key = prepare(&args(), &parsed(), NOW).unwrap();
        let revoked = KeyRecord { revoked: Some(NOW), ..key.clone() };
        let expired = KeyRecord { expires: Some(NOW), ..key.clone() };
        let high = parsed();
        let orphan = KeyRecord { plan: "gone".to_string(), ..key.clone() };
        let lines = [key, revoked, expired, orphan].map(|key| Line::new(&key, &high, NOW));
        assert_eq!(lines.each_ref().map(|line| line.status), ["live", "revoked", "expired", "live"]);
        let text = table(&lines);
        assert!(text.lines().nth(1).is_some_and(|line| line.contains("live") && line.contains("never")), "{text}");
        assert!(text.contains("gone (not configured)") && !text.contains("demo (not"), "{text}");
    }
}
