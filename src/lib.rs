//! Tollgate, a model gateway in one small binary.

pub mod base;
pub mod cli;
pub mod dialect;
pub mod gateway;
pub mod io;
pub mod policy;
pub mod provider;
pub mod wire;
