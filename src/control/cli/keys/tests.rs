//! Tests the commands about keys on a ledger of their own.

use super::options::KeyLimit;
use super::*;
use crate::cli::demo::config::tests::parsed;
use crate::policy::config::StoreUrl;
use crate::policy::keys::Keys;
use crate::policy::plan::{Group, Plan, Shorthand};
use std::path::PathBuf;

const NOW: Unix = Unix(1_795_000_000_000);

fn args() -> IssueArgs {
    IssueArgs { config: ConfigArg::default(), name: "ci".to_string(), options: KeyOptions::default(), json: false }
}

fn with(options: KeyOptions) -> IssueArgs {
    IssueArgs { options, ..args() }
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
        with(KeyOptions { plan: Some("gold".to_string()), ..KeyOptions::default() }),
        with(KeyOptions { models: list("gpt-9"), ..KeyOptions::default() }),
        with(KeyOptions { endpoints: list("videos"), ..KeyOptions::default() }),
        with(KeyOptions { expires: Some(Expiry::At(NOW)), ..KeyOptions::default() }),
    ];
    for args in wrong {
        assert!(matches!(prepare(&args, &parsed(), NOW), Err(Failure::Misused(_))), "{args:?}");
    }
}

#[test]
fn scope_and_expiry_are_stored() {
    let models = vec!["heron-small".to_string(), " ibis-large".to_string()];
    let endpoints = vec!["chat".to_string()];
    let expires = Some(Expiry::After(Duration::from_secs(60)));
    let key =
        prepare(&with(KeyOptions { models, endpoints, expires, ..KeyOptions::default() }), &parsed(), NOW).unwrap();
    assert!(key.scope.allows_model("ibis-large") && !key.scope.allows_model("heron-large"));
    assert_eq!(key.scope.endpoints_text(), "chat,models,quota");
    assert_eq!(key.expires, Some(Unix(NOW.0 + 60_000)));
}

fn records_in(high: &Config) -> Result<Vec<KeyRecord>, Failure> {
    let (mut records, ledger) = (Vec::new(), store::open_existing(high)?);
    if let Some(mut ledger) = ledger {
        ledger.each_key(&mut |record| records.push(record)).map_err(Failure::failed)?;
    }
    Ok(records)
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
fn issued_key_is_valid_and_only_its_digest_is_stored() {
    let (high, _folder) = with_ledger("issue");
    let (record, text) = make(&args(), &high, &Actor::COMMAND, NOW).unwrap();
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
fn key_is_revoked_once_and_unknown_key_is_a_failure() {
    let (high, _folder) = with_ledger("revoke");
    let stranger = KeyId::parse("0123456789ab").unwrap();
    assert_eq!(revoke_in(&high, &stranger, &Actor::COMMAND, NOW), Err(unknown(stranger.as_str())));
    assert!(records_in(&high).unwrap().is_empty());
    let (record, _) = make(&args(), &high, &Actor::COMMAND, NOW).unwrap();
    assert_eq!(revoke_in(&high, &record.id, &Actor::COMMAND, NOW), Ok(true));
    assert_eq!(revoke_in(&high, &record.id, &Actor::COMMAND, NOW), Ok(false));
    assert_eq!(revoke_in(&high, &stranger, &Actor::COMMAND, NOW), Err(unknown(stranger.as_str())));
    assert_eq!(records_in(&high).unwrap()[0].revoked, Some(NOW));
}

#[test]
fn id_has_priority_over_a_name() {
    let (high, _folder) = with_ledger("find");
    assert_eq!(find(&high, "ci"), Err(unknown("ci")), "there is no ledger yet");
    let (first, text) = make(&args(), &high, &Actor::COMMAND, NOW).unwrap();
    let named = IssueArgs { name: first.id.to_string(), ..args() };
    assert!(matches!(make(&named, &high, &Actor::COMMAND, NOW), Err(Failure::Misused(_))), "that is an id");
    let stranger = IssueArgs { name: "0123456789ab".to_string(), ..args() };
    let (second, _) = make(&stranger, &high, &Actor::COMMAND, NOW).unwrap();
    for (text, id) in [("ci", first.id), (&text, first.id), (first.id.as_str(), first.id), ("0123456789ab", second.id)]
    {
        assert_eq!(find(&high, text).unwrap().id, id, "{text}");
    }
    let twin = KeyRecord { id: KeyId::parse("0123456789ab").unwrap(), digest: [7; 32], ..second.clone() };
    let note = Actor::COMMAND.note("issue", (&|_| String::new(), &|_| String::new()), NOW);
    store::open(&high).unwrap().issue_key(&twin, &note).unwrap();
    assert_eq!(find(&high, "0123456789ab").unwrap().id, twin.id, "an id before a name");
}

#[test]
fn rotated_key_accepts_both_secrets_during_the_grace() {
    let (high, _folder) = with_ledger("rotate");
    let (record, first) = make(&args(), &high, &Actor::COMMAND, NOW).unwrap();
    let minute = Duration::from_secs(60);
    let second = rotate_in(&high, &record.id, minute, &Actor::COMMAND, NOW).unwrap().text;
    let third = rotate_in(&high, &record.id, minute, &Actor::COMMAND, Unix(NOW.0 + 10_000)).unwrap().text;
    let mut keys = Keys::new(1);
    keys.load(records_in(&high).unwrap());
    let mut opens = |text: &String, seconds: u64| {
        keys.identify(text.as_bytes(), "tg_", Unix(NOW.0 + seconds * 1000)).map(|ix| keys.get(ix).id())
    };
    for text in [&first, &second, &third] {
        assert_eq!(opens(text, 59), Some(record.id));
    }
    assert_eq!((opens(&first, 60), opens(&second, 69)), (None, Some(record.id)));
    assert_eq!((opens(&second, 70), opens(&third, 10_000)), (None, Some(record.id)));
    let fourth = rotate_in(&high, &record.id, Duration::ZERO, &Actor::COMMAND, NOW).unwrap().text;
    keys.load(records_in(&high).unwrap());
    let mut opens = |text: &String| keys.identify(text.as_bytes(), "tg_", NOW).is_some();
    assert_eq!((opens(&third), opens(&fourth), opens(&second)), (false, true, false));
}

#[test]
fn a_revoked_or_unknown_key_is_not_rotated() {
    let (high, _folder) = with_ledger("rotate-revoked");
    let stranger = KeyId::parse("0123456789ab").unwrap();
    assert_eq!(
        rotate_in(&high, &stranger, Duration::ZERO, &Actor::COMMAND, NOW).err(),
        Some(unknown(stranger.as_str()))
    );
    let (record, _) = make(&args(), &high, &Actor::COMMAND, NOW).unwrap();
    assert_eq!(
        rotate_in(&high, &stranger, Duration::ZERO, &Actor::COMMAND, NOW).err(),
        Some(unknown(stranger.as_str()))
    );
    revoke_in(&high, &record.id, &Actor::COMMAND, NOW).unwrap();
    assert!(matches!(rotate_in(&high, &record.id, Duration::ZERO, &Actor::COMMAND, NOW), Err(Failure::Refused(_))));
    assert_eq!(records_in(&high).unwrap()[0].digest, record.digest);
}

#[test]
fn read_only_command_creates_no_ledger() {
    let (high, _folder) = with_ledger("read");
    assert!(records_in(&high).unwrap().is_empty());
    let StoreUrl::Sqlite(path) = &high.store.url else { panic!("not a file") };
    assert!(!path.exists());
}

fn set_args(options: KeyOptions) -> SetArgs {
    SetArgs { config: ConfigArg::default(), key: String::new(), name: None, options, ..SetArgs::default() }
}

#[test]
fn key_change_keeps_everything_not_named() {
    let (high, _folder) = with_ledger("set");
    let models = vec!["heron-small".to_string()];
    let (record, text) =
        make(&with(KeyOptions { models, ..KeyOptions::default() }), &high, &Actor::COMMAND, NOW).unwrap();
    let endpoints = vec!["chat".to_string()];
    let (requests, tokens) = (Some(KeyLimit::Own(5)), Some(KeyLimit::Own(0)));
    let options = KeyOptions { endpoints, requests, tokens, ..KeyOptions::default() };
    let changed =
        set_in(&high, &record.id, &SetArgs { name: Some("ann".into()), ..set_args(options) }, &Actor::COMMAND, NOW)
            .unwrap();
    assert_eq!((changed.name.as_str(), changed.scope.endpoints_text().as_str()), ("ann", "chat,models,quota"));
    assert_eq!(changed.scope.models_allowed, record.scope.models_allowed);
    assert_eq!(
        [Shorthand::Requests, Shorthand::Tokens, Shorthand::Concurrency].map(|one| changed.limits.get(&one.cap())),
        [Some(5), Some(0), None]
    );
    assert_eq!((changed.id, changed.digest, changed.created), (record.id, record.digest, record.created));
    let back = KeyOptions {
        models: vec!["all".to_string()],
        endpoints: vec!["all".to_string()],
        requests: Some(KeyLimit::Plans),
        tokens: Some(KeyLimit::Plans),
        ..KeyOptions::default()
    };
    let changed = set_in(&high, &record.id, &set_args(back), &Actor::COMMAND, NOW).unwrap();
    assert_eq!((changed.scope, changed.limits), (Scope::default(), Caps::default()));
    let mut keys = Keys::new(1);
    keys.load(records_in(&high).unwrap());
    assert!(keys.identify(text.as_bytes(), "tg_", NOW).is_some());
}

#[test]
fn change_is_applied_completely_or_not_at_all() {
    let (high, _folder) = with_ledger("set-whole");
    let (record, _) = make(&args(), &high, &Actor::COMMAND, NOW).unwrap();
    let options =
        KeyOptions { requests: Some(KeyLimit::Own(5)), models: vec!["gpt-9".into()], ..KeyOptions::default() };
    let edit = SetArgs { name: Some("ann".into()), disable: true, ..set_args(options) };
    assert!(matches!(set_in(&high, &record.id, &edit, &Actor::COMMAND, NOW), Err(Failure::Misused(_))));
    assert_eq!(records_in(&high).unwrap(), [record]);
}

fn with_expiry(expiry: Expiry) -> SetArgs {
    set_args(KeyOptions { expires: Some(expiry), ..KeyOptions::default() })
}

#[test]
fn a_disabled_key_can_be_enabled_again_and_a_revoked_one_cannot() {
    let (high, _folder) = with_ledger("disable");
    let (record, text) = make(&args(), &high, &Actor::COMMAND, NOW).unwrap();
    let opens = || {
        let mut keys = Keys::new(1);
        keys.load(records_in(&high).unwrap());
        keys.identify(text.as_bytes(), "tg_", NOW).is_some()
    };
    let plain = || set_args(KeyOptions::default());
    set_in(&high, &record.id, &SetArgs { disable: true, ..plain() }, &Actor::COMMAND, NOW).unwrap();
    assert!(!opens());
    set_in(&high, &record.id, &SetArgs { name: Some("still disabled".into()), ..plain() }, &Actor::COMMAND, NOW)
        .unwrap();
    assert!(!opens());
    set_in(&high, &record.id, &SetArgs { enable: true, ..plain() }, &Actor::COMMAND, NOW).unwrap();
    assert!(opens());
    let past = with_expiry(Expiry::After(Duration::from_secs(1)));
    set_in(&high, &record.id, &past, &Actor::COMMAND, Unix(NOW.0 - 2000)).unwrap();
    assert!(!opens(), "it has expired");
    set_in(&high, &record.id, &with_expiry(Expiry::Never), &Actor::COMMAND, NOW).unwrap();
    assert!(opens());
    revoke_in(&high, &record.id, &Actor::COMMAND, NOW).unwrap();
    assert!(matches!(
        set_in(&high, &record.id, &SetArgs { enable: true, ..plain() }, &Actor::COMMAND, NOW),
        Err(Failure::Refused(_))
    ));
    assert!(!opens());
}

#[test]
fn cycle_of_models_may_come_from_a_change_of_the_configuration() {
    let (mut high, _folder) = with_ledger("cycle");
    let options = KeyOptions { on_exhausted: Some("heron-small".to_string()), ..KeyOptions::default() };
    let (record, _) = make(&with(options), &high, &Actor::COMMAND, NOW).unwrap();
    let record = KeyRecord { group: Some("labs".to_string()), ..record };
    assert_eq!(chain_of(&record, &high), None);
    high.plans[0].on_exhausted = Some("ibis-large".into());
    let limits = Plan { on_exhausted: Some("heron-small".into()), ..Plan::unlimited("labs") };
    high.groups.push(Group { parent: None, path: "labs".into(), limits });
    let said = chain_of(&record, &high).unwrap();
    assert!(said.ends_with("are a cycle: `heron-small`, `ibis-large`, `heron-small`"), "{said}");
}
