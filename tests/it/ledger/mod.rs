//! The ledger end to end, on the real binary: limits under races, durability under `kill -9`, a ledger that is slow,
//! full or gone, and several gateways on one ledger.

#[cfg(feature = "redis")]
mod alerts;
mod boot;
mod clock;
#[cfg(feature = "redis")]
mod cluster;
mod commit;
#[cfg(feature = "redis")]
mod connections;
#[cfg(feature = "redis")]
mod epoch;
mod estimates;
mod files;
mod flash;
#[cfg(feature = "redis")]
mod fleet;
#[cfg(feature = "redis")]
mod full;
#[cfg(feature = "redis")]
mod grants;
#[cfg(feature = "redis")]
mod grants_model;
#[cfg(feature = "redis")]
mod handover;
#[cfg(feature = "redis")]
mod impostor;
mod kills;
mod lookups;
#[cfg(feature = "redis")]
mod odd;
#[cfg(feature = "redis")]
mod outage;
mod people;
mod races;
mod relayed;
#[cfg(feature = "redis")]
mod reserved;
#[cfg(feature = "redis")]
mod shared;
#[cfg(feature = "redis")]
mod shared_clock;
#[cfg(feature = "redis")]
mod shared_notes;
#[cfg(feature = "redis")]
mod shared_people;
#[cfg(feature = "redis")]
mod slow;
#[cfg(feature = "redis")]
mod spared;
mod strict;
mod target_limits;
#[cfg(feature = "redis")]
mod unheard;

use super::e2e::{client, harness, process};
