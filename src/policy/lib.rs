//! Rights and limits of keys. Pure: no sockets, no clocks, no HTTP. Imports `base`, and of `wire` only the names of the
//! endpoints and percent-encoding. `gateway` asks the questions; `cli` and `io` carry these values to people and disks.

// All layers use the same paths: `crate::base` is the layer base, whichever crate contains it.
extern crate base;
extern crate self as policy;
extern crate wire;

pub mod agent;
pub mod alert;
pub mod attribution;
pub mod catalog;
pub mod cause;
pub mod config;
pub mod discover;
pub mod keys;
pub mod ledger;
pub mod memory;
pub mod meter;
pub mod network;
pub mod plan;
pub mod prices;
pub mod refusal;
pub mod row;
pub mod settings;
pub mod upstream_limits;
pub mod usage;
pub mod vendors;
pub mod window;
