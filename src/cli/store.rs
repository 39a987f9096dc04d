//! Opens the ledger for commands, beside a running gateway or without one.

use super::output::Failure;
use crate::io::store::ledger::Ledger;
use crate::io::store::sqlite::{Mode, Sqlite};
use crate::policy::config::{High, StoreUrl};
use std::path::Path;

/// Opens the ledger, and makes one where there is none.
pub fn open(high: &High) -> Result<Ledger, Failure> {
    let file = Sqlite::open(path(high)?, Mode::Shared).map_err(Failure::failed)?;
    Ok(Ledger::Sqlite(file))
}

/// Opens the ledger if there is one: a command that only reads leaves no file behind.
pub fn open_existing(high: &High) -> Result<Option<Ledger>, Failure> {
    match &high.store.url {
        StoreUrl::Sqlite(path) if !path.exists() => Ok(None),
        _ => open(high).map(Some),
    }
}

fn path(high: &High) -> Result<&Path, Failure> {
    match &high.store.url {
        StoreUrl::Sqlite(path) => Ok(path),
        StoreUrl::Redis(_) => Err(Failure::failed(format!("store.url: {} is not supported yet", high.store.url))),
    }
}
