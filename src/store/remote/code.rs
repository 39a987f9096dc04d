//! The scripts of a shared ledger, which `scripts/build.rs` packs in the order of their numbers.

use crate::base::packed::Packed;

const CODE: Packed = Packed(include_bytes!(concat!(env!("OUT_DIR"), "/scripts")));

/// Number of loaded scripts.
pub(super) const SCRIPTS: usize = 8;
/// Script that is run before there is an epoch.
const BEGIN: usize = 8;
/// Code before each loaded script: it checks the epoch.
const GUARD: usize = 9;

fn texts() -> Vec<String> {
    CODE.text().split('\0').map(str::to_string).collect()
}

/// Returns the loaded scripts, each with the code before it. In a cluster each receives one more key name than it uses.
pub(super) fn scripts(is_cluster: bool) -> Vec<String> {
    let (texts, more) = (texts(), if is_cluster { "table.remove(KEYS)\n" } else { "" });
    texts[..SCRIPTS].iter().map(|one| [more, &texts[GUARD], one].concat()).collect()
}

/// Returns the script that is run before there is an epoch.
pub(super) fn begin() -> String {
    texts().swap_remove(BEGIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_checks_the_epoch_first() {
        let (one, many, guard) = (scripts(false), scripts(true), texts().swap_remove(GUARD));
        assert_eq!((one.len(), texts().len()), (SCRIPTS, GUARD + 2), "the last text is empty");
        for (one, many) in one.iter().zip(&many) {
            assert!(one.starts_with(&guard) && one.len() > guard.len());
            assert_eq!(*many, format!("table.remove(KEYS)\n{one}"));
        }
        assert!(begin().contains("SET"));
    }
}
