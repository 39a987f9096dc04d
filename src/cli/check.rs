//! `tollgate check`: says whether a configuration is right, and what it comes to.

use super::args::CheckArgs;
use super::load::{self, Secrets};
use super::output::{Failure, print};
use super::serve::setup;
use super::store;
use crate::policy::config::effective;

/// Checks; with `--print`, prints the effective configuration.
pub fn run(args: &CheckArgs) -> Result<(), Failure> {
    let path = load::find(&args.config)?;
    let high = load::read(&path, Secrets::Needed).map_err(Failure::Config)?;
    setup::security(&high, None).map_err(Failure::failed)?;
    store::supported(&high.store.url)?;
    if args.print {
        // With whole paths it means the same wherever it is kept.
        let whole = std::path::absolute(&path).map_err(Failure::failed)?;
        return print(&effective(&load::read(&whole, Secrets::Needed).map_err(Failure::Config)?));
    }
    let count = |count: usize, noun: &str| format!("{count} {noun}{}", if count == 1 { "" } else { "s" });
    let (providers, models) = (count(high.providers.len(), "provider"), count(high.catalog.models().len(), "model"));
    let plans = count(high.plans.len(), "plan");
    print(&format!("{}: ok ({providers}, {models}, {plans})\n", path.display()))
}
