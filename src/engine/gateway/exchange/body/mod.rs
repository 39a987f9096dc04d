//! The body of a request: read as it arrives, and written for a target.

pub(crate) mod build;
pub(crate) mod reading;
mod translating;
mod upload;
