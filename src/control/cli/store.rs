//! Opens the ledger for commands, next to a running gateway or without one.

use super::output::{Failure, clean};
use crate::base::digest::{hex, sha256};
use crate::policy::config::{Config, StoreConfig, StoreUrl};
use crate::policy::keys::KeyRecord;
#[cfg(feature = "redis")]
use crate::store::api::StoreError;
use crate::store::copy;
use crate::store::ledger::Ledger;
use crate::store::lock;
#[cfg(feature = "redis")]
use crate::store::remote::{Bounds, Remote, RemoteServer};
use crate::store::spill::SpillFolder;
use crate::store::sqlite::{Mode, Sqlite};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Opens the ledger, and creates it if it does not exist.
pub fn open(high: &Config) -> Result<Ledger, Failure> {
    match &high.store.url {
        StoreUrl::Sqlite(path) => {
            is_there(path)?;
            is_readable(path)?;
            let opened = Sqlite::open_sized(path, Mode::Shared, high.store.page_size);
            opened.map(|db| Ledger::Sqlite(Box::new(db))).map_err(Failure::failed)
        }
        #[cfg(feature = "redis")]
        StoreUrl::Redis(_) => remote(high).map(|remote| Ledger::Remote(Box::new(remote))).map_err(Failure::failed),
        #[cfg(not(feature = "redis"))]
        StoreUrl::Redis(_) => Err(Failure::failed(NO_SHARED)),
    }
}

/// Error for a configuration with a shared ledger, in a binary built without them.
pub(super) const NO_SHARED: &str = "store.url: this binary was built without shared ledgers (the feature `redis`)";

/// Fails if this binary does not support that kind of ledger. Does not open it.
pub fn supported(url: &StoreUrl) -> Result<(), Failure> {
    kind_supported(url, cfg!(feature = "redis"))
}

fn kind_supported(url: &StoreUrl, shared: bool) -> Result<(), Failure> {
    match url {
        StoreUrl::Redis(_) if !shared => Err(Failure::failed(NO_SHARED)),
        _ => Ok(()),
    }
}

/// Fails if the file at the ledger's path cannot be a ledger. An unreadable or missing file may be one.
pub fn is_ledger(url: &StoreUrl) -> Result<(), Failure> {
    let StoreUrl::Sqlite(path) = url else { return Ok(()) };
    let wrong = |what: &str| Err(Failure::failed(format!("store.url: {} is {what}", clean(&path.to_string_lossy()))));
    if path.is_dir() {
        return wrong("a folder: name a file in it");
    }
    match copy::is_ledger(path) {
        Ok(false) => wrong("no ledger: it holds something else"),
        _ => Ok(()),
    }
}

/// Fails if a snapshot would replace a file that is not an older copy.
pub fn may_snapshot(config: &StoreConfig) -> Result<(), Failure> {
    let (StoreUrl::Sqlite(path), Some(snapshot)) = (&config.url, &config.snapshot) else { return Ok(()) };
    copy::check_target(path, &snapshot.to).map_err(|error| Failure::failed(format!("store.snapshot: {error}")))
}

/// Opens the ledger if it exists: a command that only reads creates no file.
pub fn open_existing(high: &Config) -> Result<Option<Ledger>, Failure> {
    match &high.store.url {
        StoreUrl::Sqlite(path) if !is_there(path)? => Ok(None),
        _ => open(high).map(Some),
    }
}

/// Fails if the folder of the ledger's file does not exist: then its path may be wrong.
pub(super) fn has_folder(high: &Config) -> Result<(), Failure> {
    let StoreUrl::Sqlite(path) = &high.store.url else { return Ok(()) };
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() && !folder.exists() => {
            Err(Failure::failed(format!("there is no ledger at {}", clean(&path.to_string_lossy()))))
        }
        _ => Ok(()),
    }
}

/// Opens the ledger; fails if there is none.
pub(super) fn existing(high: &Config) -> Result<Ledger, Failure> {
    open_existing(high)?.ok_or_else(|| Failure::failed("there is no ledger yet: start the gateway first"))
}

/// True if the ledger's file exists. Fails if a gateway has it open but it is no longer at its path.
pub(super) fn is_there(path: &Path) -> Result<bool, Failure> {
    let is_there = path.exists();
    if !is_there {
        lock::check_absent(path).map_err(Failure::failed)?;
    }
    Ok(is_there)
}

/// Fails if the file belongs to another user, and names that user.
fn is_readable(path: &Path) -> Result<(), Failure> {
    if !lock::is_denied(path) {
        return Ok(());
    }
    let found = std::fs::metadata(path).ok();
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let name = |uid: u32| {
        let of = |line: &&str| line.split(':').nth(2) == Some(uid.to_string().as_str());
        users.lines().find(of).and_then(|line| line.split(':').next()).map_or(uid.to_string(), str::to_string)
    };
    let owner = found.map(|found| format!(" (owner {}, mode {:o})", name(found.uid()), found.mode() & 0o7777));
    let path = clean(&path.to_string_lossy());
    Err(Failure::failed(format!("cannot read the ledger {path}: permission denied{}", owner.unwrap_or_default())))
}

/// Passes the keys of an existing ledger of this version to `take`. The ledger is neither created nor migrated for
/// this.
pub fn peek_keys(high: &Config, take: &mut dyn FnMut(KeyRecord)) -> Result<(), Failure> {
    match &high.store.url {
        StoreUrl::Sqlite(path) if !is_there(path)? => Ok(()),
        StoreUrl::Sqlite(path) => Sqlite::peek_keys(path, take).map_err(Failure::failed),
        StoreUrl::Redis(_) => open(high)?.each_key(take).map_err(Failure::failed),
    }
}

/// Accepts a shared ledger in its current state, for all running hosts; returns its epoch.
pub fn adopt(high: &Config) -> Result<String, Failure> {
    match &high.store.url {
        StoreUrl::Sqlite(_) => {
            Err(Failure::failed("store.url: a file needs no adopting: a gateway opens what is there"))
        }
        #[cfg(feature = "redis")]
        StoreUrl::Redis(_) => unconnected(high).and_then(|mut server| server.adopt()).map_err(Failure::failed),
        #[cfg(not(feature = "redis"))]
        StoreUrl::Redis(_) => Err(Failure::failed(NO_SHARED)),
    }
}

/// Spill files for rows that the ledger does not accept at the end. `path` is the configuration's file.
pub(super) fn spill_folder(config: &Config, path: Option<&Path>) -> SpillFolder {
    let parent = |path: &Path| path.parent().map(Path::to_path_buf).unwrap_or_default();
    let (beside, stem) = match &config.store.url {
        StoreUrl::Sqlite(file) => {
            // A file has the same spill files under each of its names. A file that does not exist yet has none.
            let file = file.canonicalize().unwrap_or_else(|_| file.clone());
            (parent(&file), file.file_name().unwrap_or_default().to_string_lossy().into_owned())
        }
        url @ StoreUrl::Redis(_) => {
            let name = hex(&sha256(url.to_string().as_bytes())[..4]);
            (path.map(parent).unwrap_or_default(), format!("tollgate-{name}"))
        }
    };
    let folder = config.store.spill.clone().unwrap_or(beside);
    // A relative name without a folder is in the working directory.
    SpillFolder::new(if folder.as_os_str().is_empty() { ".".into() } else { folder }, stem)
}

/// Opens the existing ledger beside the gateway of this process, whose requests must not wait for it long.
pub(super) fn beside(config: &Config, _place: &SpillFolder) -> Result<Ledger, Failure> {
    match &config.store.url {
        #[cfg(feature = "redis")]
        StoreUrl::Redis(_) => {
            let server = known_server(config, _place, Bounds::SERVING).map_err(Failure::failed)?;
            Ok(Ledger::Remote(Box::new(Remote { server })))
        }
        _ => existing(config),
    }
}

/// Connects to a shared ledger, if it is the one that this host used last.
#[cfg(feature = "redis")]
pub(super) fn remote(high: &Config) -> Result<Remote, StoreError> {
    known_server(high, &spill_folder(high, None), Bounds::COMMAND).map(|server| Remote { server })
}

/// Like [`remote`], only the server, with the location of its mark and the bounds of the connection.
#[cfg(feature = "redis")]
pub(super) fn known_server(high: &Config, place: &SpillFolder, bounds: Bounds) -> Result<RemoteServer, StoreError> {
    let mut server = unconnected(high)?.within(bounds);
    if let Some(mark) = place.mark()? {
        server = server.expecting(mark.epoch);
    }
    server.connect()?;
    Ok(server)
}

#[cfg(feature = "redis")]
fn unconnected(high: &Config) -> Result<RemoteServer, StoreError> {
    let name = high.store.url.to_string();
    let StoreUrl::Redis(url) = &high.store.url else {
        return Err(StoreError::Shared(name, "not a shared ledger".to_string()));
    };
    Ok(RemoteServer::new(url, high.store.ca_file.as_deref(), name)?.with_replicas(high.store.replicas))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::config::SharedUrl;

    #[test]
    fn binary_without_shared_ledgers_refuses_one_before_serving() {
        let (file, shared) = (StoreUrl::Sqlite("a.db".into()), StoreUrl::Redis(SharedUrl::parse("redis://h").unwrap()));
        assert_eq!((kind_supported(&file, false), kind_supported(&shared, true)), (Ok(()), Ok(())));
        assert_eq!(kind_supported(&shared, false), Err(Failure::failed(NO_SHARED)));
        assert_eq!(supported(&shared).is_ok(), cfg!(feature = "redis"));
    }
}
