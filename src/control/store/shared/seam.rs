//! Interface of a shared ledger and of the clocks for its thread. The real one is `Remote`; tests use one that is
//! slow, fails and recovers as they choose.

use super::super::api::StoreError;
use super::super::remote::{Done, Holds, RemoteCommand, Speaker};
use super::super::watch::WatchedLedger;
use crate::base::time::{Mono, Unix};
use std::io;

/// Shared ledger, as its thread uses it. Each call may fail, and the effect of a failed call is unknown. It connects by
/// itself if necessary. See the methods of `Remote`.
#[allow(missing_docs, reason = "each is the method of `Remote` that it is called after")]
pub trait SharedStore: WatchedLedger {
    fn is_connected(&self) -> bool;
    fn epoch(&self) -> Option<&str>;
    fn announce(&mut self, speaker: &Speaker, old: &str, holds: &Holds) -> Result<(), StoreError>;
    fn renew(&mut self, speaker: &Speaker) -> Result<bool, StoreError>;
    fn leave(&mut self, speaker: &Speaker) -> Result<(), StoreError>;
    fn send(&mut self, speaker: &Speaker, commands: &[RemoteCommand<'_>]) -> Result<Vec<Done>, StoreError>;
    fn last_batch(&mut self, speaker: &Speaker) -> Result<u64, StoreError>;
    fn follow_clock(&mut self) -> Result<(), StoreError>;
    /// The monotonic clock that grants end by.
    fn watch(&self) -> Mono;
    /// Wall-clock time.
    fn unix(&self) -> Unix;
    /// Returns a name that no other host has.
    fn fresh_name(&mut self) -> io::Result<String>;
}
