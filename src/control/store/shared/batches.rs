//! Commits of a shared ledger: usage records and admissions in batches, each with a number by which the ledger counts
//! it once.

use super::super::api::{Batch, StoreError};
use super::super::remote::{Remote, RemoteCommand, Speaker};
use super::super::spill::Importer;
use super::super::written::Written;
use super::SharedStore;
use crate::policy::keys::KeyId;
use crate::policy::ledger::Use;
use crate::policy::row::Row;
use crate::store::bounds;
use std::collections::HashSet;

/// Rows of one commit in a shared ledger, which serves nobody else meanwhile.
const ROWS_PER_SCRIPT: usize = 1024;

/// Returns how many of these fit in one script.
fn fitting<'a>(keys: impl Iterator<Item = Option<&'a KeyId>>) -> usize {
    let mut seen: HashSet<&KeyId> = HashSet::new();
    let fits = |key: &Option<&'a KeyId>| {
        seen.extend(*key);
        seen.len() <= bounds::KEYS_PER_SCRIPT
    };
    keys.take(ROWS_PER_SCRIPT).take_while(fits).count()
}

/// Numbers rows and uses of grants, following the number given last. They keep their numbers until they are in the
/// ledger. All amounts taken from grants precede the rows that give them back.
pub(super) fn batches_of(mut uses: Vec<Use>, mut rows: Vec<Row>, writer: &str, numbered: &mut u64) -> Vec<Batch> {
    let mut batches = Vec::new();
    while !uses.is_empty() || !rows.is_empty() {
        let used_later = uses.split_off(fitting(uses.iter().map(Use::key)));
        let sent = if used_later.is_empty() { fitting(rows.iter().map(|row| Some(&row.key))) } else { 0 };
        let later = rows.split_off(sent);
        *numbered += 1;
        batches.push(Batch { sent: Some((writer.to_string(), *numbered)), uses, rows });
        (uses, rows) = (used_later, later);
    }
    batches
}

impl Importer for Remote {
    /// The batch counts once, however often it is sent.
    fn import(&mut self, batch: &Batch) -> Result<Written, StoreError> {
        let Some((writer, number)) = batch.sent.clone() else { return Ok(Written::default()) };
        // Its reservations have ended with its lease.
        let speaker = Speaker { host: "gone".to_string(), writer };
        self.send(&speaker, &[RemoteCommand::Rows(number, &batch.rows, &[])])?;
        Ok(Written::from_rows(batch.rows.len()))
    }

    /// A server answers when it has what its own settings demand.
    fn keep(&mut self, _: Written) -> Result<(), StoreError> {
        Ok(())
    }
}

/// Counts requests whose admission the ledger does not know of with their rows, like requests that a host has admitted
/// without the ledger.
pub(super) fn count_alone(batches: &mut [Batch]) {
    let mut taken = Vec::new();
    for one in batches.iter_mut().flat_map(|batch| batch.uses.drain(..)) {
        if let Use::Took(_, key, lease) | Use::Served(key, lease) = one {
            taken.push((key, lease.parts));
        }
    }
    for row in batches.iter_mut().rev().flat_map(|batch| batch.rows.iter_mut().rev()) {
        let Some(lease) = row.lease.as_mut().filter(|lease| lease.shared) else { continue };
        if let Some(at) = taken.iter().position(|one| *one == (row.key, lease.parts.clone())) {
            taken.swap_remove(at);
            lease.shared = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::meter::Lease;

    #[test]
    fn batches_have_bounded_numbers_of_keys_and_records() {
        let used = |n: usize| Use::Served(KeyId::parse(&format!("{n:012}")).unwrap(), Lease::default());
        let sizes = |uses: Vec<Use>| {
            let (mut numbered, count) = (0, uses.len());
            let batches = batches_of(uses, Vec::new(), "w", &mut numbered);
            let sizes: Vec<usize> = batches.iter().map(|batch| batch.uses.len()).collect();
            assert_eq!((sizes.iter().sum::<usize>(), numbered), (count, sizes.len() as u64));
            sizes
        };
        assert_eq!(sizes((0..300).map(used).collect()), [128, 128, 44]);
        assert_eq!(sizes((0..2000).map(|n| used(n % 100)).collect()), [1024, 976]);
        assert_eq!(sizes((0..3).map(used).collect()), [3]);
    }
}
