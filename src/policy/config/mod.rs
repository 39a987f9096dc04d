//! The configuration: from TOML as written to values that are checked, indexed and `Send`. It reads no file and no
//! variable itself: the caller passes both in. `cli` parses, `gateway` and `io` read the result as an `Arc<Config>`.
//! This file only re-exports names; no file of the layer imports it.
//!
//! The document is walked with its spans instead of being deserialized, so that every error names file, line and field,
//! and all errors are found in one pass. Sections of plain settings are tables ([`super::settings`]); `[[providers]]`,
//! `[[models]]` and their targets have readers of their own.
//!
//! The manual is `docs::configuration`. Its entries are generated from this code: the keys and errors of the
//! reader, the output of `print`, the settings that `follow` does not change, and the field comments.

mod alerts;
mod base_url;
mod document;
mod fill;
mod follow;
mod groups;
mod models;
mod params;
mod plans;
mod prices;
mod print;
mod providers;
mod proxy;
mod server;
mod shared_url;
mod store;
pub mod target_limits;
mod telemetry;

pub use super::settings::reader::{ConfigError, ENTRIES_MAX, Source};
pub use super::settings::secret::{Origin, Secret, fit as fit_secret};
pub use super::settings::units;
pub use alerts::{AlertForm, Alerts};
pub use base_url::{Base, parse_base};
pub use document::Config;
pub use follow::fixed;
pub use groups::chain;
pub use plans::KnownModels;
pub use print::effective;
pub use providers::{Auth, AuthoritySpec, Credential, Provider, UnknownFields};
pub use proxy::{Proxy, proxy_to};
pub use server::{AdminListen, Reach, RequestLog, Server, TlsFiles};
pub use shared_url::SharedUrl;
pub use store::{Durability, OnOutage, Snapshot, StoreConfig, StoreUrl};
pub use telemetry::{CollectorHeader, Telemetry};

#[cfg(test)]
mod tests;
