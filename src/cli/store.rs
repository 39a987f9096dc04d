//! Opens the ledger for commands, beside a running gateway or without one.

use super::output::Failure;
use crate::io::store::book::StoreError;
use crate::io::store::ledger::Ledger;
use crate::io::store::remote::Remote;
use crate::io::store::sqlite::{Mode, Sqlite};
use crate::policy::config::{High, StoreUrl};

/// Opens the ledger, and makes one where there is none.
pub fn open(high: &High) -> Result<Ledger, Failure> {
    let opened = match &high.store.url {
        StoreUrl::Sqlite(path) => Sqlite::open(path, Mode::Shared).map(Ledger::Sqlite),
        StoreUrl::Redis(_) => remote(high).map(|remote| Ledger::Remote(Box::new(remote))),
    };
    opened.map_err(Failure::failed)
}

/// Opens the ledger if there is one: a command that only reads leaves no file behind.
pub fn open_existing(high: &High) -> Result<Option<Ledger>, Failure> {
    match &high.store.url {
        StoreUrl::Sqlite(path) if !path.exists() => Ok(None),
        _ => open(high).map(Some),
    }
}

/// Connects to a shared ledger.
pub(super) fn remote(high: &High) -> Result<Remote, StoreError> {
    let name = high.store.url.to_string();
    let StoreUrl::Redis(url) = &high.store.url else {
        return Err(StoreError::Shared(name, "not a shared ledger".to_string()));
    };
    let mut remote = Remote::new(url, high.store.ca_file.as_deref(), name)?;
    remote.connect()?;
    Ok(remote)
}
