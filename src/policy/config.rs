//! The configuration: from TOML as written to values that are checked, indexed and `Send`. It reads no file and no
//! variable itself: the caller passes both in. `cli` parses, `gateway` and `io` read the result as an `Arc<Config>`.
//!
//! The document is walked with its spans instead of being deserialized, so that every error names file, line and
//! field, and all errors are found in one pass. Keys are those of the contract's section 7.
//!
//! The manual is [`crate::docs::configuration`]. Its tables are made from this code: what the reader asks for, what
//! `print` shows, what `follow` leaves alone, and the comments of the fields that hold the values.

mod follow;
mod models;
mod print;
mod providers;
mod reader;
mod server;
pub mod units;
mod upstream;

pub use print::effective;
pub use server::{Durability, OnOutage, Server, StoreConfig, StoreUrl, TlsFiles};
pub use upstream::{Timeouts, UpstreamLimits};

use super::catalog::Catalog;
use super::plan::Plan;
use crate::wire::Dialect;
use reader::{Reader, Section};
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

/// Models, providers or plans in one configuration.
pub const ENTRIES_MAX: usize = 1000;

/// One thing wrong with a configuration. Shown as `tollgate.toml:12: models[0].context: expected …`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConfigError {
    /// The file as the caller named it.
    pub file: String,
    /// Line, from 1; `None` where the error belongs to no line.
    pub line: Option<u32>,
    /// Path of the field, empty for the document itself.
    pub field: String,
    /// What is wrong and what was expected. Never contains a secret.
    pub message: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file)?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        if !self.field.is_empty() {
            write!(f, ": {}", self.field)?;
        }
        write!(f, ": {}", self.message)
    }
}

/// A configuration text and the ways to what it refers to.
pub struct Source<'a> {
    /// Its file name: for errors, and relative paths in it are relative to its folder.
    pub file: &'a str,
    /// Its content.
    pub text: &'a str,
    /// The value of an environment variable.
    pub env: &'a dyn Fn(&str) -> Option<String>,
    /// The content of a file, for secrets and certificates.
    pub read: &'a dyn Fn(&str) -> std::io::Result<String>,
}

/// Where a secret was found; printed in its place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Origin {
    /// An environment variable of this name.
    Env(String),
    /// A file; where it was written relative, with the folder of the configuration.
    File(String),
}

/// A value that no log, error or listing may show.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    value: String,
    origin: Origin,
}

impl Secret {
    /// Hides `value`.
    pub fn new(value: String, origin: Origin) -> Secret {
        Secret { value, origin }
    }

    /// The value itself. For the wire and for comparisons alone.
    pub fn expose(&self) -> &str {
        &self.value
    }

    /// Where it was found.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// The checked configuration. Share it as `Arc<Config>`; nothing in it changes.
#[derive(Clone, Debug)]
pub struct Config {
    /// Listeners and their bounds.
    pub server: Server,
    /// The ledger.
    pub store: StoreConfig,
    /// Deadlines and bounds towards upstreams, before a provider or a model sets its own.
    pub upstream: UpstreamLimits,
    /// Upstream servers, in the order written; `Target.provider` is an index into them.
    pub providers: Vec<Provider>,
    /// TLS peers without duplicates; `Provider.authority` is an index into them.
    pub authorities: Vec<AuthoritySpec>,
    /// The models.
    pub catalog: Catalog,
    /// The plans, at least one; the first is for keys that name none.
    pub plans: Vec<Plan>,
}

/// A TLS peer: what its certificate must say, and who must have signed it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AuthoritySpec {
    /// Name or address that the certificate must carry.
    pub server_name: String,
    /// Authorities in PEM that are trusted besides the public ones.
    pub ca_file: Option<PathBuf>,
    /// No provider of this configuration uses it: it keeps the place it had in an earlier one.
    pub retired: bool,
}

/// How a provider is told who calls.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Auth {
    /// `authorization: Bearer …`.
    Bearer,
    /// The key alone in a header of this name, lower case.
    Header(String),
}

/// One upstream server.
#[derive(Clone, Debug)]
pub struct Provider {
    /// Its name in targets, logs and the ledger.
    pub name: Arc<str>,
    /// The API it speaks: `"chat"` (OpenAI) or `"messages"` (Anthropic).
    pub shape: Dialect,
    /// What its own SDK would be given: with `/v1` for `chat`, without for `messages`.
    ///
    /// Without a trailing slash.
    pub base_url: String,
    /// Whether it is reached over TLS.
    pub tls: bool,
    /// Host to look up, without brackets; also the TLS server name.
    pub host: Arc<str>,
    /// Port to connect to.
    pub port: u16,
    /// Value of `host`: with brackets for IPv6, with the port unless it is the scheme's own.
    pub host_header: String,
    /// Path of a generation request: `/v1/chat/completions`, `/v1/messages`.
    pub path: String,
    /// Addresses to connect to instead of looking its name up.
    ///
    /// Empty means look `host` up; filled if `host` is an address.
    pub addresses: Vec<SocketAddr>,
    /// How the secret is sent: `"bearer"`, `"x-api-key"` (the default of `messages`), or another header's name.
    pub auth: Auth,
    /// Secret that it is sent.
    ///
    /// Header name, lower case, and whole value; `None` sends none.
    #[doc(alias = "api_key")]
    pub credential: Option<(String, Secret)>,
    /// Further headers for every request.
    ///
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    /// The only `anthropic-beta` values passed on.
    ///
    /// `None` passes all.
    pub betas: Option<Vec<String>>,
    /// Authorities in PEM that are trusted for it, besides the public ones.
    pub ca_file: Option<PathBuf>,
    /// Index into [`Config::authorities`]; `None` for plain TCP.
    pub authority: Option<u32>,
    /// What becomes of request fields that neither API documents: `"drop"` or `"forward"`.
    #[doc(alias = "unknown_fields")]
    pub forward_unknown: bool,
    /// It understands a request for usage in a stream.
    pub stream_usage: bool,
    /// Deadlines and bounds of this provider.
    pub limits: UpstreamLimits,
}

impl Config {
    /// Reads and checks a configuration. `Err` has everything that is wrong with it, in the order of the lines.
    pub fn parse(source: &Source<'_>) -> Result<Config, Vec<ConfigError>> {
        let mut reader = Reader::new(source);
        let Some(mut top) = reader.document() else { return Err(reader.into_errors()) };
        let high = read_document(&mut reader, &mut top);
        top.finish(&mut reader);
        let errors = reader.into_errors();
        if errors.is_empty() { Ok(high) } else { Err(errors) }
    }

    /// The plan called `name`.
    pub fn plan(&self, name: &str) -> Option<&Plan> {
        self.plans.iter().find(|plan| &*plan.name == name)
    }

    /// The provider of a target, by `Target.provider`.
    pub fn provider(&self, index: usize) -> Option<&Provider> {
        self.providers.get(index)
    }
}

fn read_document(reader: &mut Reader<'_>, top: &mut Section<'_>) -> Config {
    let default_model = top.take("default_model");
    let server = server::read_server(reader, top);
    let store = server::read_store(reader, top, server.reuse_port.as_ref());
    let mut limits = UpstreamLimits::default();
    if let Some(mut section) = reader.table(top, "upstream") {
        limits.overlay(reader, &mut section);
        section.finish(reader);
    }
    let declared = providers::read(reader, top, &limits);
    let models = models::read(reader, top, &declared, &limits);
    let plans = models::read_plans(reader, top);
    let default = default_model.and_then(|field| {
        let id = reader.string(&field)?;
        let found = models.iter().position(|model| *model.id == *id);
        if found.is_none() {
            reader.error(&field, format!("no model has the id `{id}`"));
        }
        found
    });
    let mut providers: Vec<Provider> = declared.into_iter().filter_map(|declared| declared.provider).collect();
    let authorities = providers::authorities(&mut providers);
    let server = server.value;
    Config { server, store, upstream: limits, providers, authorities, catalog: Catalog::new(models, default), plans }
}

#[cfg(test)]
mod tests;
