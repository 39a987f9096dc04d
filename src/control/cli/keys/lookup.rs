//! Finds the key that a command names: by its public id, by the whole key, or by its name.

use crate::cli::args::ConfigArg;
use crate::cli::output::{Failure, clean};
use crate::cli::store;
use crate::policy::config::Config;
use crate::policy::keys::{KeyId, KeyRecord};
use clap::Args;

/// `tollgate keys show` and `keys revoke`: a key, and nothing else.
#[derive(Args, Debug)]
pub struct KeyArgs {
    /// Configuration options.
    #[command(flatten)]
    pub config: ConfigArg,
    /// Id (after `live_`) or unique name of the key
    #[arg(value_name = "KEY")]
    pub key: String,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// The key named by `text`: its id, the whole key (it may have been found in the wrong place), or its name if only one
/// key has it. Revoked keys are ignored unless all keys with the name are revoked.
pub(super) fn find(high: &Config, text: &str) -> Result<KeyRecord, Failure> {
    let Some(mut ledger) = store::open_existing(high)? else { return Err(unknown(text)) };
    // By id, the cost does not depend on the number of keys.
    match id_in(text).map(|id| ledger.find_key(&id)).transpose().map_err(Failure::failed)?.flatten() {
        Some(found) => Ok(found),
        None => choose(ledger.keys_named(text).map_err(Failure::failed)?, text),
    }
}

/// The id in a text: the text itself, or the id within a whole key.
pub(in crate::cli) fn id_in(text: &str) -> Option<KeyId> {
    KeyId::parse(text.split_once("live_").map_or(text, |(_, tail)| tail.get(..12).unwrap_or(tail)))
}

/// Refuses a name that is the id of a key, because commands would find that key.
pub(super) fn is_no_id(high: &Config, name: &str) -> Result<(), Failure> {
    let Some(id) = KeyId::parse(name) else { return Ok(()) };
    let ledger = store::open_existing(high)?;
    let found = ledger.map(|mut ledger| ledger.find_key(&id)).transpose().map_err(Failure::failed)?;
    match found.flatten().is_some() {
        true => Err(Failure::misused("name: this is the id of a key: choose another name")),
        false => Ok(()),
    }
}

/// Selects the only key with the name `text`.
fn choose(mut named: Vec<KeyRecord>, text: &str) -> Result<KeyRecord, Failure> {
    if named.iter().any(|record| record.revoked.is_none()) {
        named.retain(|record| record.revoked.is_none());
    }
    match (named.pop(), named.is_empty()) {
        (Some(only), true) => Ok(only),
        (Some(last), false) => {
            let ids: Vec<&str> = named.iter().chain([&last]).map(|record| record.id.as_str()).collect();
            let (count, name) = (ids.len(), clean(text));
            Err(Failure::Refused(format!(
                "{count} keys have the name `{name}`: use one of their ids: {}",
                ids.join(", ")
            )))
        }
        (None, _) => Err(unknown(text)),
    }
}

/// Error for an unknown key. A whole key is not repeated.
pub(in crate::cli) fn unknown(text: &str) -> Failure {
    let shown = text.split_once("live_").map_or(text, |(_, tail)| tail.get(..12).unwrap_or(tail));
    Failure::Absent(format!("no key has the id or the name `{}`; see `tollgate keys list`", clean(shown)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::time::Unix;
    use crate::policy::config::StoreUrl;
    use crate::policy::keys::{Scope, issue};
    use crate::policy::plan::caps::Caps;
    use crate::store::sqlite::{Mode, Sqlite};

    fn record(id: &str, name: &str, revoked: bool) -> KeyRecord {
        let mut digest = [0; 32];
        digest[..id.len()].copy_from_slice(id.as_bytes());
        KeyRecord {
            id: KeyId::parse(id).unwrap(),
            digest,
            name: name.to_string(),
            plan: String::new(),
            scope: Scope::default(),
            created: Unix(0),
            expires: None,
            revoked: revoked.then_some(Unix(1)),
            disabled: false,
            limits: Caps::default(),
            group: None,
            labels: Vec::new(),
            former: Vec::new(),
            capture: None,
        }
    }

    #[test]
    fn keys_are_found_by_id_by_key_and_by_name() {
        let issued = issue("tg_", |out: &mut [u8]| out.iter_mut().zip(0..).for_each(|(b, i)| *b = i));
        let folder = std::env::temp_dir().join(format!("tollgate-names-{}", std::process::id()));
        let mut high = crate::cli::demo::config::tests::parsed();
        high.store.url = StoreUrl::Sqlite(folder.join("ledger.db"));
        assert!(matches!(find(&high, "ann"), Err(Failure::Absent(_))), "there is no ledger");
        let db = Sqlite::open(&folder.join("ledger.db"), Mode::Shared).unwrap();
        for key in [
            record(issued.id.as_str(), "ann", false),
            record("AAAAAAAAAAAA", "bob", false),
            record("BBBBBBBBBBBB", "bob", false),
            record("CCCCCCCCCCCC", "cid", true),
            record("DDDDDDDDDDDD", "cid", false),
            record("EEEEEEEEEEEE", "AAAAAAAAAAAA", false),
        ] {
            db.insert_key(&key).unwrap();
        }
        let found = |text: &str| find(&high, text).map(|record| record.id.to_string());
        for text in [issued.id.as_str(), &issued.text, "ann"] {
            assert_eq!(found(text), Ok(issued.id.to_string()), "{text}");
        }
        assert_eq!(found("cid"), Ok("DDDDDDDDDDDD".to_string()), "the other one is revoked");
        let Err(Failure::Refused(text)) = found("bob") else { panic!("two are called so") };
        assert!(text.contains("AAAAAAAAAAAA, BBBBBBBBBBBB"), "{text}");
        let stranger = format!("tg_live_FFFFFFFFFFFF{}", "s".repeat(38));
        let Err(Failure::Absent(text)) = found(&stranger) else { panic!("there is none") };
        assert!(text.contains("`FFFFFFFFFFFF`") && !text.contains("sss"), "{text}");
        assert_eq!(
            is_no_id(&high, "AAAAAAAAAAAA"),
            Err(Failure::misused("name: this is the id of a key: choose another name"))
        );
        assert_eq!(is_no_id(&high, "FFFFFFFFFFFF"), Ok(()));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
