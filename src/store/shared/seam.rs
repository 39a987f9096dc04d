//! Interface of a shared ledger and of the clocks for its thread. The real one is [`Remote`]; tests use one that is
//! slow, fails and recovers as they choose.

use super::super::api::StoreError;
use super::super::follow::KeySource;
use super::super::moments::Moments;
use super::super::remote::{Done, Holds, Remote, RemoteCommand, Speaker};
use crate::base::digest::hex;
use crate::base::time::{Mono, Unix};
use crate::io::clock;
use crate::policy::keys::{KeyId, KeyRecord};
use ring::rand::{SecureRandom, SystemRandom};
use std::io;

/// Shared ledger, as its thread uses it. Each call may fail, and the effect of a failed call is unknown. It connects by
/// itself if necessary. See the methods of [`Remote`].
#[allow(missing_docs, reason = "each is the method of `Remote` that it is called after")]
pub trait SharedStore: KeySource {
    fn is_connected(&self) -> bool;
    fn epoch(&self) -> Option<&str>;
    fn announce(&mut self, speaker: &Speaker, old: &str, holds: &Holds) -> Result<(), StoreError>;
    fn renew(&mut self, speaker: &Speaker) -> Result<bool, StoreError>;
    fn leave(&mut self, speaker: &Speaker) -> Result<(), StoreError>;
    fn send(&mut self, speaker: &Speaker, commands: &[RemoteCommand<'_>]) -> Result<Vec<Done>, StoreError>;
    fn last_batch(&mut self, speaker: &Speaker) -> Result<u64, StoreError>;
    fn find_keys(&mut self, ids: &[KeyId]) -> Result<Vec<KeyRecord>, StoreError>;
    fn fold(&mut self, before: Unix, max: usize) -> Result<u64, StoreError>;
    fn moments(&mut self) -> Result<Moments, StoreError>;
    fn hold_fold(&mut self, held: Option<Unix>) -> Result<(), StoreError>;
    fn follow_clock(&mut self) -> Result<(), StoreError>;
    /// The monotonic clock that grants end by.
    fn watch(&self) -> Mono;
    /// Wall-clock time.
    fn unix(&self) -> Unix;
    /// Returns a name that no other host has.
    fn fresh_name(&mut self) -> io::Result<String>;
}

/// Returns a name that no other process has.
pub(super) fn fresh_name() -> io::Result<String> {
    let mut random = [0u8; 12];
    SystemRandom::new().fill(&mut random).map_err(|_| io::Error::other("no entropy is available"))?;
    Ok(hex(&random))
}

impl SharedStore for Remote {
    fn is_connected(&self) -> bool {
        Remote::is_connected(self)
    }

    fn epoch(&self) -> Option<&str> {
        Remote::epoch(self)
    }

    fn announce(&mut self, speaker: &Speaker, old: &str, holds: &Holds) -> Result<(), StoreError> {
        Remote::announce(self, speaker, old, holds)
    }

    fn renew(&mut self, speaker: &Speaker) -> Result<bool, StoreError> {
        Remote::renew(self, speaker)
    }

    fn leave(&mut self, speaker: &Speaker) -> Result<(), StoreError> {
        Remote::leave(self, speaker)
    }

    fn send(&mut self, speaker: &Speaker, commands: &[RemoteCommand<'_>]) -> Result<Vec<Done>, StoreError> {
        Remote::send(self, speaker, commands)
    }

    fn last_batch(&mut self, speaker: &Speaker) -> Result<u64, StoreError> {
        Remote::last_batch(self, speaker)
    }

    fn find_keys(&mut self, ids: &[KeyId]) -> Result<Vec<KeyRecord>, StoreError> {
        Remote::find_keys(self, ids)
    }

    fn fold(&mut self, before: Unix, max: usize) -> Result<u64, StoreError> {
        Remote::fold(self, before, max)
    }

    fn moments(&mut self) -> Result<Moments, StoreError> {
        Remote::moments(self)
    }

    fn hold_fold(&mut self, held: Option<Unix>) -> Result<(), StoreError> {
        Remote::hold_fold(self, held)
    }

    fn follow_clock(&mut self) -> Result<(), StoreError> {
        Remote::follow_clock(self)
    }

    fn watch(&self) -> Mono {
        clock::watch()
    }

    fn unix(&self) -> Unix {
        clock::unix()
    }

    fn fresh_name(&mut self) -> io::Result<String> {
        fresh_name()
    }
}
