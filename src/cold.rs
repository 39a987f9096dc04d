//! The layers that no request waits for: a crate of its own, because a release has it optimised for size. The crate
//! `tollgate` exports them as its own modules, and its map describes them (`src/lib.rs`).

pub mod cli;
pub mod simulator;
pub mod store;

// Paths are the same in all layers: `crate::io` is the layer io, whichever crate it is in.
use engine::{base, gateway, io, policy, wire};
