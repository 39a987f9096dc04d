//! The command line.

pub mod provider;
