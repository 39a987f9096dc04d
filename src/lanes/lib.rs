//! Sixteen bytes of text looked at together: the next byte that matters, and what a text costs in tokens.
//!
//! A crate of its own, since a debug build, which is what the tests run, spends much of its time here unless this is
//! optimised (`profile.dev.package` in `Cargo.toml`). What is inlined is compiled where it is called, and as badly as
//! its caller: so nothing is where assertions are on. A release has it all in place, as if it were one crate.

pub mod skip;
pub mod tokens;

/// Bytes looked at together.
const LANES: usize = 16;
