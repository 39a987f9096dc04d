//! The layers that no request waits for. They are a separate crate, so that a release can optimise it for size. The
//! crate `tollgate` exports them as its own modules, and its map describes them (`src/lib.rs`).

pub mod cli;
pub mod simulator;
pub mod store;

// All layers use the same paths: `crate::io` is the layer io, whichever crate contains it.
use engine::{base, gateway, io, policy, wire};
