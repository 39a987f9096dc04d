//! Plan and groups of each key in the current configuration. Looked up by name once; reports missing ones, and counts
//! nothing.

use crate::base::time::{Mono, Now, Unix};
use crate::policy::config::Config;
use crate::policy::keys::{KeyIx, KeyKind, Keys, KindIx};
use crate::policy::meter::{Meter, PathIx, Payer};
use crate::policy::plan::Plan;
use crate::policy::refusal::Missing;
use std::collections::BTreeMap;
use std::time::Duration;

/// Plan and groups of each key, looked up by name once per kind of keys: when the kind is new, and when a configuration
/// is loaded.
#[derive(Debug)]
pub(crate) struct KeyPlans {
    by_kind: Vec<KeyPlace>,
    /// True if a kind of keys may have strict limits.
    any_strict: bool,
    /// Time at which the next temporary allowance may have ended; `NEVER` if there is none.
    pub(crate) due: Mono,
    /// True if a plan, a group or a key may have an `on_exhausted`.
    pub(crate) replaces_models: bool,
}

/// Time between two looks whether a temporary allowance has ended: the clock may be set meanwhile.
const EXTRA_LOOK: Duration = Duration::from_secs(60);

impl Default for KeyPlans {
    fn default() -> KeyPlans {
        KeyPlans { by_kind: Vec::new(), any_strict: false, due: Mono::NEVER, replaces_models: false }
    }
}

/// The plan and the group of a kind of keys.
#[derive(Clone, Debug)]
struct KeyPlace {
    /// Index into the configuration's plans; [`NO_PLAN`] or [`NO_GROUP`].
    plan: u32,
    path: PathIx,
    /// True if its limits of tokens and money are strict.
    strict: bool,
    /// The plan with the key's own limits.
    own: Option<Box<OwnPlan>>,
}

/// The plan with a key's own limits, as it is up to a moment.
#[derive(Clone, Debug)]
struct OwnPlan {
    plan: Plan,
    /// End of the first temporary allowance in it.
    until: Unix,
}

/// Placeholder for a plan's index: the plan is not configured.
const NO_PLAN: u32 = u32::MAX;
/// Placeholder for a plan's index: the group is not configured.
const NO_GROUP: u32 = u32::MAX - 1;

impl KeyPlace {
    fn find(kind: &KeyKind, config: &Config, meter: &Meter, now: Unix) -> KeyPlace {
        let path = kind.group.as_ref().map_or(Some(PathIx::NONE), |group| meter.path_of(group));
        let plan = config.plans.iter().position(|plan| *plan.name == *kind.plan);
        let (plan, path) = match (plan, path) {
            (Some(index), Some(path)) => (index as u32, path),
            (None, _) => (NO_PLAN, PathIx::NONE),
            (_, None) => (NO_GROUP, PathIx::NONE),
        };
        let of_plan = config.plans.get(plan as usize);
        let strict = kind.limits.strict || of_plan.is_some_and(|plan| plan.strict) || meter.is_strict(path);
        let until = || kind.limits.extras_at(now).map(|extra| extra.until).min().unwrap_or(Unix(u64::MAX));
        let own = of_plan.filter(|_| !kind.limits.is_empty());
        let own = own.map(|plan| Box::new(OwnPlan { plan: plan.with(&kind.limits, now), until: until() }));
        KeyPlace { plan, path, strict, own }
    }

    /// End of its first temporary allowance; the largest moment if there is none.
    fn until(&self) -> Unix {
        self.own.as_ref().map_or(Unix(u64::MAX), |own| own.until)
    }
}

/// Time of the next look whether an allowance until `until` has ended.
fn look(until: Unix, now: Now) -> Mono {
    match until {
        Unix(u64::MAX) => Mono::NEVER,
        until => now.mono.after(Duration::from_millis(until.0.saturating_sub(now.unix.0)).min(EXTRA_LOOK)),
    }
}

impl KeyPlans {
    /// Looks up the plans and groups of all kinds.
    pub(crate) fn load(&mut self, keys: &Keys, config: &Config, meter: &Meter, now: Now) {
        self.by_kind.clear();
        self.by_kind.extend(keys.kinds().map(|kind| KeyPlace::find(kind, config, meter, now.unix)));
        self.any_strict = self.by_kind.iter().any(|place| place.strict);
        let limits = config.plans.iter().chain(config.groups.iter().map(|group| &group.limits));
        let own = self.by_kind.iter().filter_map(|place| place.own.as_deref()).map(|own| &own.plan);
        self.replaces_models = limits.chain(own).any(Plan::replaces_models);
        self.arm(now);
    }

    /// Looks up the plan and group of a new kind.
    pub(crate) fn add(&mut self, kind: KindIx, keys: &Keys, config: &Config, meter: &Meter, now: Now) {
        let place = KeyPlace::find(keys.kind(kind), config, meter, now.unix);
        self.any_strict |= place.strict;
        self.due = self.due.min(look(place.until(), now));
        self.replaces_models |= place.own.as_ref().is_some_and(|own| own.plan.replaces_models());
        match self.by_kind.get_mut(kind.0 as usize) {
            Some(known) => *known = place,
            None => self.by_kind.push(place),
        }
    }

    /// Keys with a temporary allowance that has ended.
    pub(crate) fn ended(&mut self, keys: &Keys, now: Now) -> Vec<KeyIx> {
        let place = |key: &KeyIx| keys.kind_of(*key).and_then(|kind| self.by_kind.get(kind.0 as usize));
        let has_ended = |key: &KeyIx| place(key).is_some_and(|place| place.until() <= now.unix);
        let ended = (0..keys.len() as u32).map(KeyIx).filter(has_ended).collect();
        self.arm(now);
        ended
    }

    fn arm(&mut self, now: Now) {
        let next = self.by_kind.iter().map(KeyPlace::until).filter(|until| now.unix < *until).min();
        self.due = next.map_or(Mono::NEVER, |until| look(until, now));
    }

    /// Returns a key with its plan and groups, or the name that is not configured.
    #[inline]
    pub(crate) fn of<'a>(&'a self, key: KeyIx, keys: &Keys, config: &'a Config) -> Result<Payer<'a>, Missing> {
        let place = keys.kind_of(key).and_then(|kind| self.by_kind.get(kind.0 as usize)).ok_or(Missing::Plan)?;
        let KeyPlace { plan: index, path, own, .. } = place;
        let plan = own.as_deref().map(|own| &own.plan).or_else(|| config.plans.get(*index as usize));
        let lacks = if *index == NO_GROUP { Missing::Group } else { Missing::Plan };
        plan.map(|plan| Payer { key, plan, path: *path, hosts: 1, model: None }).ok_or(lacks)
    }

    /// True if the limits of tokens and money of a key are strict.
    #[inline]
    pub(crate) fn is_strict(&self, key: KeyIx, keys: &Keys) -> bool {
        let is_strict = |kind: KindIx| self.by_kind.get(kind.0 as usize).is_some_and(|place| place.strict);
        self.any_strict && keys.kind_of(key).is_some_and(is_strict)
    }

    /// Plans and groups of keys that are not configured, each with the number of such keys.
    pub(crate) fn missing(&self, keys: &Keys, now: Unix) -> Vec<(Missing, String, usize)> {
        if self.by_kind.iter().all(|place| place.plan < NO_GROUP) {
            return Vec::new();
        }
        let (mut plans, mut groups) = (BTreeMap::<&str, usize>::new(), BTreeMap::new());
        for key in (0..keys.len() as u32).map(KeyIx) {
            let found = keys.get(key);
            let place = keys.kind_of(key).and_then(|kind| self.by_kind.get(kind.0 as usize));
            let (counts, name) = match place.map_or(NO_PLAN, |place| place.plan) {
                NO_PLAN => (&mut plans, &*found.kind.plan),
                NO_GROUP => (&mut groups, found.kind.group.as_deref().unwrap_or_default()),
                _ => continue,
            };
            if found.is_live(now) {
                *counts.entry(name).or_default() += 1;
            }
        }
        let of = |what, counts: BTreeMap<&str, usize>| -> Vec<_> {
            counts.into_iter().map(|(name, count)| (what, name.to_owned(), count)).collect()
        };
        [of(Missing::Plan, plans), of(Missing::Group, groups)].concat()
    }
}
