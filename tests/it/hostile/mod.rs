//! Hostile clients against the real binary. Each attack has a bound that must hold while honest clients are served.
//! `cargo test --test it hostile:: -- --nocapture` prints the table of attacks, bounds and measurements.

mod descriptors;
mod floods;
mod heads;
mod slow;
mod smuggling;
mod table;
mod words;

use super::edge::rig;
