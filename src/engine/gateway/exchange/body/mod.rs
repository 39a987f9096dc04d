//! The body of a request: received, read, and written for a target.

pub(crate) mod build;
pub(crate) mod reading;
mod translating;
mod upload;
