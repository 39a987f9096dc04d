//! Text processing sixteen bytes at a time: search for the next special byte.
//!
//! A separate crate, because debug builds, which the tests use, spend much of their time here unless it is optimised
//! (`profile.dev.package` in `Cargo.toml`). Inlined code is compiled with its caller, and as badly. So nothing is
//! inlined if assertions are on. A release build inlines everything, as if it were one crate.

pub mod skip;
