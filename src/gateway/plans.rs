//! The plan and the groups of each key, by the present configuration. Looked up by name once; says what of them is
//! missing, and counts nothing.

use crate::base::time::Unix;
use crate::policy::config::Config;
use crate::policy::keys::{KeyIx, Keys};
use crate::policy::meter::{Meter, PathIx, Payer};
use crate::policy::plan::Plan;
use crate::policy::refusal::Missing;
use std::collections::BTreeMap;

/// Which plan each key has and where it counts, looked up by name once: when the keys or the configuration are loaded.
#[derive(Debug, Default)]
pub(crate) struct KeyPlans {
    /// By key.
    by_key: Vec<KeyPlace>,
    /// The plans of keys with limits of their own.
    own: Vec<Plan>,
}

/// The plan and the group of a key.
#[derive(Copy, Clone, Debug)]
struct KeyPlace {
    /// Index into the configuration's plans, and behind those into `own`; [`NO_PLAN`] or [`NO_GROUP`].
    plan: u32,
    path: PathIx,
}

/// In the place of a plan's index: its plan is not configured.
const NO_PLAN: u32 = u32::MAX;
/// Its group is not.
const NO_GROUP: u32 = u32::MAX - 1;

impl KeyPlans {
    /// Looks all of them up.
    pub(crate) fn load(&mut self, keys: &Keys, config: &Config, meter: &Meter) {
        self.by_key.clear();
        self.own.clear();
        for key in 0..keys.len() as u32 {
            self.add(KeyIx(key), keys, config, meter);
        }
    }

    /// Looks up that of the key behind all others, or of one that is known.
    pub(crate) fn add(&mut self, key: KeyIx, keys: &Keys, config: &Config, meter: &Meter) {
        let record = keys.record(key);
        let path = record.group.as_ref().map_or(Some(PathIx::NONE), |group| meter.path_of(group));
        let found = config.plans.iter().position(|plan| *plan.name == *record.plan).map(|index| match record.limits {
            limits if limits.is_none() => index,
            limits => {
                self.own.push(config.plans[index].with(&limits));
                config.plans.len() + self.own.len() - 1
            }
        });
        let found = match (found, path) {
            (Some(index), Some(path)) => KeyPlace { plan: index as u32, path },
            (None, _) => KeyPlace { plan: NO_PLAN, path: PathIx::NONE },
            (_, None) => KeyPlace { plan: NO_GROUP, path: PathIx::NONE },
        };
        match self.by_key.get_mut(key.0 as usize) {
            Some(known) => *known = found,
            None => self.by_key.push(found),
        }
    }

    /// A key with its plan and its groups; or what of them the configuration has not.
    #[inline]
    pub(crate) fn of<'a>(&'a self, key: KeyIx, config: &'a Config) -> Result<Payer<'a>, Missing> {
        let KeyPlace { plan: index, path } = *self.by_key.get(key.0 as usize).ok_or(Missing::Plan)?;
        let plans = &config.plans;
        let plan = plans.get(index as usize).or_else(|| self.own.get(index as usize - plans.len()));
        let lacks = if index == NO_GROUP { Missing::Group } else { Missing::Plan };
        plan.map(|plan| Payer { key, plan, path, hosts: 1 }).ok_or(lacks)
    }

    /// Plans and groups that keys are of and the configuration has not, with how many keys that are.
    pub(crate) fn missing(&self, keys: &Keys, now: Unix) -> BTreeMap<(Missing, String), usize> {
        let mut missing = BTreeMap::new();
        for (key, place) in self.by_key.iter().enumerate() {
            let record = keys.record(KeyIx(key as u32));
            let lacks = match place.plan {
                NO_PLAN => (Missing::Plan, record.plan.clone()),
                NO_GROUP => (Missing::Group, record.group.clone().unwrap_or_default()),
                _ => continue,
            };
            if record.is_live(now) {
                *missing.entry(lacks).or_default() += 1;
            }
        }
        missing
    }
}
