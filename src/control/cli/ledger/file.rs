//! `tollgate ledger backup` and `tollgate ledger compact`: work on the file of a ledger.

use super::super::args::ConfigArg;
use super::super::load::{self, Secrets};
use super::super::output::{Failure, grouped, print};
use super::super::store;
use crate::policy::config::{Config, StoreUrl};
use crate::store::copy::copy;
use crate::store::sqlite::Sqlite;
use clap::Args;
use std::path::{Path, PathBuf};

/// `tollgate ledger backup`.
#[derive(Args, Debug)]
pub struct BackupArgs {
    /// The configuration.
    #[command(flatten)]
    pub config: ConfigArg,
    /// File for the copy; replaces an older copy, but no other file
    #[arg(value_name = "FILE")]
    pub to: PathBuf,
}

/// `tollgate ledger compact`.
#[derive(Args, Debug)]
pub struct CompactArgs {
    /// The configuration.
    #[command(flatten)]
    pub config: ConfigArg,
}

/// Copies the ledger.
pub(super) fn backup(args: &BackupArgs) -> Result<(), Failure> {
    let high = load::load(&args.config, Secrets::Optional)?;
    copy(file(&high)?, &args.to).map_err(Failure::failed)?;
    let bytes = std::fs::metadata(&args.to).map_or(0, |found| found.len());
    print(&format!("{}: {} bytes\n", args.to.display(), grouped(bytes)))
}

/// Rewrites the ledger.
pub(super) fn compact(args: &CompactArgs) -> Result<(), Failure> {
    let high = load::load(&args.config, Secrets::Optional)?;
    let (path, page_size) = (file(&high)?, high.store.page_size);
    let done = Sqlite::compact(path, page_size).map_err(Failure::failed)?;
    let [before, after] = [done.before, done.after].map(grouped);
    print(&format!("{}: {before} bytes before, {after} after, in pages of {page_size}\n", path.display()))
}

/// The ledger's file, which must exist.
fn file(high: &Config) -> Result<&Path, Failure> {
    match &high.store.url {
        StoreUrl::Redis(_) => {
            Err(Failure::failed("store.url: a shared ledger is not a file: use the tools of its server"))
        }
        StoreUrl::Sqlite(path) if !store::is_there(path)? => {
            Err(Failure::failed(format!("{}: there is no ledger yet", path.display())))
        }
        StoreUrl::Sqlite(path) => Ok(path),
    }
}
