//! The scripts of a shared ledger, which `scripts/build.rs` packs in the order of their numbers.

use crate::base::packed::Packed;

const CODE: Packed = Packed(include_bytes!(concat!(env!("OUT_DIR"), "/scripts")));

pub(super) const ADMIT: usize = 0;
pub(super) const APPEND: usize = 1;
pub(super) const RELEASE: usize = 2;
pub(super) const ANNOUNCE: usize = 3;
pub(super) const EDIT: usize = 4;
pub(super) const FOLD: usize = 5;
pub(super) const SNAPSHOT: usize = 6;
pub(super) const CHANGES: usize = 7;
pub(super) const PAGE: usize = 8;
pub(super) const DECIDE: usize = 9;
/// Number of loaded scripts.
pub(super) const SCRIPTS: usize = 10;
/// Script that is run before there is an epoch.
const BEGIN: usize = 10;
/// Code before each loaded script: it checks the epoch.
const GUARD: usize = 11;
/// Code before the scripts that write counters.
const TRY: usize = 12;

/// Rulings of the admitting script.
pub(super) const ADMITTED: u64 = 0;
pub(super) const REFUSED: u64 = 1;
pub(super) const LESS: u64 = 2;
pub(super) const LOOKED: u64 = 5;
pub(super) const CALLED: u64 = 7;
/// The server came to the question too late.
pub(super) const LATE: u64 = 8;
/// The host's lease has ended.
pub(super) const ENDED: u64 = 9;

/// Code before the admitting script: the names of the rulings.
fn names() -> String {
    format!(
        "local ADMITTED,REFUSED,LESS,LOOKED,CALLED,LATE,ENDED=\
         {ADMITTED},{REFUSED},{LESS},{LOOKED},{CALLED},{LATE},{ENDED}\n"
    )
}

fn texts() -> Vec<String> {
    CODE.text().split('\0').map(str::to_string).collect()
}

/// Returns the loaded scripts, each with the code before it. In a cluster each receives one more key name than it uses.
pub(super) fn scripts(is_cluster: bool) -> Vec<String> {
    let (mut texts, more) = (texts(), if is_cluster { "table.remove(KEYS)\n" } else { "" });
    texts[ADMIT].insert_str(0, &names());
    for which in [APPEND, RELEASE, ANNOUNCE] {
        texts[which] = [&*texts[TRY], &texts[which]].concat();
    }
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
        assert_eq!((one.len(), texts().len()), (SCRIPTS, TRY + 2), "the last text is empty");
        for (one, many) in one.iter().zip(&many) {
            assert!(one.starts_with(&guard) && one.len() > guard.len());
            assert_eq!(*many, format!("table.remove(KEYS)\n{one}"));
        }
        assert!(begin().contains("SET"));
    }
}
