//! Blocking HTTP clients of commands and helper threads. Never used on the event loop.

pub(crate) mod admin_client;
pub mod blocking_http;
pub(crate) mod download;
pub(crate) mod provider_client;
