//! `tollgate check`: says whether a configuration is right, what it comes to, and with `--connect` whether its
//! providers answer.

use super::args::CheckArgs;
use super::connect;
use super::load::{self, Secrets};
use super::output::{Failure, clean, line, print, remark};
use super::serve::setup;
use super::store;
use crate::io::clock::unix;
use crate::policy::config::{Config, effective};
use crate::policy::refusal::missing_plan;
use std::collections::BTreeMap;

/// Checks; with `--print`, prints the effective configuration.
pub fn run(args: &CheckArgs) -> Result<(), Failure> {
    let path = load::find(&args.config)?;
    let config = load::read(&path, Secrets::Needed).map_err(Failure::Config)?;
    let security = setup::security(&config, None).map_err(Failure::failed)?;
    store::supported(&config.store.url)?;
    store::is_ledger(&config.store.url)?;
    config.warnings.iter().for_each(|warning| remark(&format!("tollgate: {}", line(warning))));
    if args.print {
        // With whole paths it means the same wherever it is kept.
        let whole = std::path::absolute(&path).map_err(Failure::failed)?;
        return print(&effective(&load::read(&whole, Secrets::Needed).map_err(Failure::Config)?));
    }
    warn_of_missing_plans(&config);
    if args.connect {
        return connect::run(&config, &security);
    }
    let count = |count: usize, noun: &str| format!("{count} {noun}{}", if count == 1 { "" } else { "s" });
    let (providers, models) =
        (count(config.providers.len(), "provider"), count(config.catalog.models().len(), "model"));
    let plans = count(config.plans.len(), "plan");
    print(&format!("{}: ok ({providers}, {models}, {plans})\n", clean(&path.to_string_lossy())))
}

/// Keys of plans that are not configured are refused. The ledger may be another user's: then it is not looked at.
fn warn_of_missing_plans(config: &Config) {
    let Ok(records) = store::peek_keys(config) else { return };
    let mut missing: BTreeMap<&str, usize> = BTreeMap::new();
    let now = unix();
    for record in records.iter().filter(|record| record.is_live(now) && config.plan(&record.plan).is_none()) {
        *missing.entry(&record.plan).or_default() += 1;
    }
    for (plan, keys) in missing {
        remark(&format!("tollgate: warning: {}", missing_plan(plan, keys)));
    }
}
