//! Usage of keys from the ledger, for lists of keys and for their budgets.

use crate::base::time::Unix;
use crate::cli::output::Failure;
use crate::policy::config::Config;
use crate::policy::keys::{KeyId, KeyRecord};
use crate::policy::window::{Period, date, iso};
use crate::store::api::{By, Query};
use crate::store::ledger::Ledger;
use std::collections::BTreeMap;

/// The newest usage records that are searched for the last use of each key in a list of keys.
const LAST_USE_ROWS_MAX: usize = 10_000;

/// Usage of keys according to the ledger.
#[derive(Default)]
pub(super) struct Used(BTreeMap<KeyId, KeyUse>);

/// Usage of one key.
#[derive(Default)]
struct KeyUse {
    /// Tokens and nano-dollars in the current period, in the order of [`Period::ALL`].
    period: [[u64; 2]; Period::ALL.len()],
    /// The last day with a request.
    last: Option<Unix>,
    /// The last request, if its usage record is one of the newest.
    last_time: Option<Unix>,
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
                used.0.entry(id).or_default().last = Some(day);
            }
        }
        for (number, length) in Period::ALL.into_iter().enumerate() {
            if !high.plans.iter().any(|plan| plan.period == length) {
                continue;
            }
            let (start, _) = length.bounds(now);
            let query = Query { since: Some(start), until: None, ..all.clone() };
            for line in ledger.usage(&query).map_err(Failure::failed)? {
                let Some(id) = KeyId::parse(&line.name) else { continue };
                let tokens = [line.uncached_in, line.cache_read, line.cache_write, line.out].into_iter().sum();
                used.0.entry(id).or_default().period[number] = [tokens, line.cost_nano];
            }
        }
        Ok(used)
    }

    /// Adds the times of the last requests, of which the sums have only the day.
    pub(super) fn with_times(mut self, ledger: &mut Ledger) -> Result<Used, Failure> {
        let mut left = LAST_USE_ROWS_MAX;
        let read = ledger.recent_rows(&mut |row| {
            if let Some(used) = self.0.get_mut(&row.key) {
                used.last_time = used.last_time.max(Some(row.admitted));
            }
            left -= 1;
            left > 0
        });
        read.map_err(Failure::failed)?;
        Ok(self)
    }

    /// Tokens and nano-dollars of a key in the current period.
    pub(super) fn in_period(&self, period: Period, id: &KeyId) -> [u64; 2] {
        let number = Period::ALL.iter().position(|other| *other == period).unwrap_or(0);
        self.0.get(id).map_or([0; 2], |used| used.period[number])
    }

    #[cfg(test)]
    pub(super) fn add(&mut self, period: Period, id: KeyId, amounts: [u64; 2], last: Unix) {
        let used = self.0.entry(id).or_default();
        used.period[Period::ALL.iter().position(|other| *other == period).unwrap()] = amounts;
        used.last = Some(last);
    }

    /// The time of the last request, or only its day if the time is not known.
    pub(super) fn last(&self, id: &KeyId) -> Option<String> {
        let KeyUse { last, last_time, .. } = self.0.get(id)?;
        let day = (*last)?;
        // The record of an earlier request may be the newest: its response took longer.
        Some(last_time.filter(|time| *time >= day).map_or_else(|| date(day), iso))
    }
}
