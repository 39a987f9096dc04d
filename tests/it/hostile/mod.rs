//! Hostile clients against the real binary. Each attack has a bound that must hold while honest clients are served;
//! the table of attack, bound and what was seen is printed (`cargo test --test it hostile:: -- --nocapture`).

mod descriptors;
mod floods;
mod heads;
mod slow;
mod smuggling;
mod table;
mod words;

use super::edge::rig;
