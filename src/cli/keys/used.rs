//! Usage of keys from the ledger, for lists of keys and for their budgets.

use crate::base::time::Unix;
use crate::cli::output::Failure;
use crate::policy::config::Config;
use crate::policy::keys::{KeyId, KeyRecord};
use crate::policy::window::Period;
use crate::store::api::{By, Query};
use crate::store::ledger::Ledger;
use std::collections::BTreeMap;

/// Usage of keys according to the ledger.
#[derive(Default)]
pub(super) struct Used {
    /// Tokens and nano-dollars in the current period, by key, for each period length.
    period: BTreeMap<(u8, KeyId), [u64; 2]>,
    /// The last day with a request.
    last: BTreeMap<KeyId, Unix>,
}

/// Key of [`Used::period`] for a period.
fn number(period: Period) -> u8 {
    Period::ALL.iter().position(|other| *other == period).unwrap_or(0) as u8
}

impl Used {
    /// Reads the usage of these keys, or of all keys, from the ledger.
    pub(super) fn read(
        ledger: &mut Ledger,
        high: &Config,
        keys: Option<&[KeyRecord]>,
        now: Unix,
    ) -> Result<Used, Failure> {
        let mut used = Used::default();
        let ids = |keys: &[KeyRecord]| (By::Key, keys.iter().map(|key| key.id.to_string()).collect());
        let all = Query { only: keys.map(ids).into_iter().collect(), ..Query::by(By::Key) };
        for line in ledger.usage(&all).map_err(Failure::failed)? {
            if let Some((id, day)) = KeyId::parse(&line.name).zip(line.last) {
                used.last.insert(id, day);
            }
        }
        for length in Period::ALL {
            if !high.plans.iter().any(|plan| plan.period == length) {
                continue;
            }
            let (start, _) = length.bounds(now);
            let query = Query { since: Some(start), until: None, ..all.clone() };
            for line in ledger.usage(&query).map_err(Failure::failed)? {
                let Some(id) = KeyId::parse(&line.name) else { continue };
                let tokens = [line.uncached_in, line.cache_read, line.cache_write, line.out].into_iter().sum();
                used.period.insert((number(length), id), [tokens, line.cost_nano]);
            }
        }
        Ok(used)
    }

    /// Tokens and nano-dollars of a key in the current period.
    pub(super) fn in_period(&self, period: Period, id: &KeyId) -> [u64; 2] {
        self.period.get(&(number(period), *id)).copied().unwrap_or_default()
    }

    #[cfg(test)]
    pub(super) fn add(&mut self, period: Period, id: KeyId, amounts: [u64; 2], last: Unix) {
        self.period.insert((number(period), id), amounts);
        self.last.insert(id, last);
    }

    /// The last day with a request.
    pub(super) fn last(&self, id: &KeyId) -> Option<Unix> {
        self.last.get(id).copied()
    }
}
