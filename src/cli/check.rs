//! `tollgate check`: says whether a configuration is right, and what it comes to.

use super::args::CheckArgs;
use super::load::{self, Secrets};
use super::output::{Failure, print, remark};
use super::serve::setup;
use super::store;
use crate::policy::config::effective;

/// Checks; with `--print`, prints the effective configuration.
pub fn run(args: &CheckArgs) -> Result<(), Failure> {
    let path = load::find(&args.config)?;
    let config = load::read(&path, Secrets::Needed).map_err(Failure::Config)?;
    setup::security(&config, None).map_err(Failure::failed)?;
    store::supported(&config.store.url)?;
    config.warnings.iter().for_each(|warning| remark(&warning.to_string()));
    if args.print {
        // With whole paths it means the same wherever it is kept.
        let whole = std::path::absolute(&path).map_err(Failure::failed)?;
        return print(&effective(&load::read(&whole, Secrets::Needed).map_err(Failure::Config)?));
    }
    let count = |count: usize, noun: &str| format!("{count} {noun}{}", if count == 1 { "" } else { "s" });
    let (providers, models) =
        (count(config.providers.len(), "provider"), count(config.catalog.models().len(), "model"));
    let plans = count(config.plans.len(), "plan");
    print(&format!("{}: ok ({providers}, {models}, {plans})\n", path.display()))
}
