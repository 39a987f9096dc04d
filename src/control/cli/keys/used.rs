//! Usage of keys and groups from the ledger, for lists of keys and for budgets.

use crate::base::time::Unix;
use crate::cli::output::Failure;
use crate::policy::config::Config;
use crate::policy::keys::{KeyId, KeyRecord};
use crate::policy::plan::caps::{Cap, Models, Per, Resource};
use crate::policy::plan::{PATH_SEPARATOR, Plan};
use crate::policy::window::{date, iso};
use crate::store::api::{By, Query, UsageLine};
use crate::store::ledger::Ledger;
use std::collections::BTreeMap;

/// The newest usage records that are searched for the last use of each key in a list of keys.
const LAST_USE_ROWS_MAX: usize = 10_000;

/// Shortest window of a quota of tokens. Shorter ones limit a rate.
const QUOTA_MIN_MS: u64 = 3_600_000;

/// Tokens and nano-dollars.
pub(super) type UsedAmounts = [u64; 2];

/// Usage according to the ledger.
#[derive(Default)]
pub(super) struct Used {
    /// The keys that it is of; `None`: all.
    only: Option<Vec<String>>,
    last: BTreeMap<KeyId, LastUse>,
    spans: Vec<SpanUse>,
    /// Models in the ledger, if they have been read.
    models: Option<Vec<String>>,
}

/// Last use of one key.
#[derive(Default)]
struct LastUse {
    /// The last day with a request.
    day: Option<Unix>,
    /// The last request, if its usage record is one of the newest.
    time: Option<Unix>,
}

/// Use of some models in the present window or period.
struct SpanUse {
    by: By,
    per: Per,
    models: Models,
    /// By id of the key or by path of groups.
    sums: BTreeMap<String, UsedAmounts>,
}

/// The budgets and quotas among these limits.
pub(super) fn of_limits(limits: &Plan) -> impl Iterator<Item = &Cap> {
    let is_one = |cap: &&Cap| match cap.resource {
        Resource::Budget => true,
        Resource::Tokens => {
            let (start, end) = cap.per.bounds(Unix(0));
            end.0 - start.0 >= QUOTA_MIN_MS
        }
        Resource::Requests | Resource::Running => false,
    };
    limits.all.iter().filter(is_one)
}

/// True if a record of the group with this path counts for the group `name`.
pub(super) fn is_in(path: &str, name: &str) -> bool {
    path.split(PATH_SEPARATOR).any(|part| part == name)
}

pub(super) fn amounts(line: &UsageLine) -> UsedAmounts {
    [line.uncached_in + line.cache_read + line.cache_write + line.out, line.cost_nano]
}

impl Used {
    /// Reads the last use of these keys, or of all keys.
    pub(super) fn of_keys(ledger: &mut Ledger, keys: Option<&[KeyRecord]>) -> Result<Used, Failure> {
        let only = keys.map(|keys| keys.iter().map(|key| key.id.to_string()).collect());
        let mut used = Used { only, ..Used::default() };
        let query = Query { only: used.filter(By::Key), ..Query::by(By::Key) };
        for line in ledger.usage(&query).map_err(Failure::failed)? {
            if let Some((id, day)) = KeyId::parse(&line.name).zip(line.last) {
                used.last.entry(id).or_default().day = Some(day);
            }
        }
        // The sums have only the day of a request.
        let mut left = LAST_USE_ROWS_MAX;
        let read = ledger.recent_rows(&mut |row| {
            if let Some(last) = used.last.get_mut(&row.key) {
                last.time = last.time.max(Some(row.admitted));
            }
            left -= 1;
            left > 0
        });
        read.map_err(Failure::failed).map(|()| used)
    }

    /// True if it was read from the ledger.
    pub(super) fn is_read(&self) -> bool {
        !self.spans.is_empty()
    }

    /// Reads what these keys have used in the windows and periods of their budgets and plans.
    pub(super) fn read(
        &mut self,
        ledger: &mut Ledger,
        high: &Config,
        keys: &[KeyRecord],
        now: Unix,
    ) -> Result<(), Failure> {
        for key in keys {
            let limits = high.plan(&key.plan).cloned().unwrap_or_default().with(&key.limits, now);
            self.read_span(ledger, (By::Key, Per::Calendar(limits.period), &Models::default()), now)?;
            for cap in of_limits(&limits) {
                self.read_span(ledger, (By::Key, cap.per, &cap.models), now)?;
            }
        }
        Ok(())
    }

    /// Reads the use by key or group of some models in a window or period, unless it is known.
    pub(super) fn read_span(
        &mut self,
        ledger: &mut Ledger,
        (by, per, models): (By, Per, &Models),
        now: Unix,
    ) -> Result<(), Failure> {
        if self.span(by, per, models).is_some() {
            return Ok(());
        }
        let mut sums = BTreeMap::new();
        let mut add = |name: String, [tokens, nano]: UsedAmounts| {
            let sum: &mut UsedAmounts = sums.entry(name).or_default();
            *sum = [sum[0].saturating_add(tokens), sum[1].saturating_add(nano)];
        };
        let (start, end) = per.bounds(now);
        if per.has_whole_days() {
            let only = self.filter(by).into_iter().chain(self.models_of(ledger, models)?).collect();
            let query = Query { since: Some(start), only, ..Query::by(by) };
            let lines = ledger.usage(&query).map_err(Failure::failed)?;
            lines.into_iter().for_each(|line| {
                let own = amounts(&line);
                add(line.name, own);
            });
        } else {
            let read = ledger.each_since(start, &mut |row| {
                if row.at < end && models.count(Some(&row.model)) {
                    let name = if by == By::Key { row.key.to_string() } else { row.group.to_string() };
                    add(name, [row.tokens, row.cost_nano]);
                }
            });
            read.map_err(Failure::failed)?;
        }
        self.spans.push(SpanUse { by, per, models: models.clone(), sums });
        Ok(())
    }

    /// Filter of a query for the keys.
    fn filter(&self, by: By) -> Vec<(By, Vec<String>)> {
        self.only.iter().filter(|_| by == By::Key).map(|ids| (By::Key, ids.clone())).collect()
    }

    /// Filter of a query for those models in the ledger that a limit counts; `None` if it counts all.
    pub(super) fn models_of(
        &mut self,
        ledger: &mut Ledger,
        models: &Models,
    ) -> Result<Option<(By, Vec<String>)>, Failure> {
        if models.text().is_none() {
            return Ok(None);
        }
        if self.models.is_none() {
            let lines = ledger.usage(&Query::by(By::Model)).map_err(Failure::failed)?;
            self.models = Some(lines.into_iter().map(|line| line.name).collect());
        }
        let counted = self.models.iter().flatten().filter(|name| models.count(Some(name)));
        Ok(Some((By::Model, counted.cloned().collect())))
    }

    fn span(&self, by: By, per: Per, models: &Models) -> Option<&SpanUse> {
        self.spans.iter().find(|span| (span.by, span.per, &span.models) == (by, per, models))
    }

    /// Use of some models by a key in the present window or period.
    pub(super) fn of_key(&self, per: Per, models: &Models, id: &KeyId) -> UsedAmounts {
        let span = self.span(By::Key, per, models);
        span.and_then(|span| span.sums.get(id.as_str())).copied().unwrap_or_default()
    }

    /// Use of some models by a group and those below it in the present window or period.
    pub(super) fn of_group(&self, per: Per, models: &Models, name: &str) -> UsedAmounts {
        let sums = self.span(By::Group, per, models).into_iter().flat_map(|span| &span.sums);
        let own = sums.filter(|(path, _)| is_in(path, name));
        own.fold([0; 2], |[tokens, nano], (_, more)| [tokens.saturating_add(more[0]), nano.saturating_add(more[1])])
    }

    #[cfg(test)]
    pub(super) fn add(&mut self, (per, models): (Per, &Models), id: KeyId, amounts: UsedAmounts, last: Unix) {
        let sums = [(id.to_string(), amounts)].into();
        self.spans.push(SpanUse { by: By::Key, per, models: models.clone(), sums });
        self.last.entry(id).or_default().day = Some(last);
    }

    /// The time of the last request, or only its day if the time is not known.
    pub(super) fn last(&self, id: &KeyId) -> Option<String> {
        let LastUse { day, time } = self.last.get(id)?;
        let day = (*day)?;
        // The record of an earlier request may be the newest: its response took longer.
        Some(time.filter(|time| *time >= day).map_or_else(|| date(day), iso))
    }
}
