//! The whole configuration, and the reader of its document: every section in turn, and the checks between sections.

use super::alerts::Alerts;
use super::plans::KnownModels;
use super::providers::{self, AuthoritySpec, Provider};
use super::server::{Server, TOO_LITTLE};
use super::store::{OnOutage, StoreConfig, StoreUrl};
use super::telemetry::Telemetry;
use super::{groups, models, plans};
use crate::base::limits::RESERVE_CONNECTIONS;
use crate::policy::catalog::{Catalog, Model};
use crate::policy::memory::{CatalogSize, ConfigFacts, Terms};
use crate::policy::plan::{Group, Plan};
use crate::policy::settings::reader::{ConfigError, Field, Reader, Section, Source};
use crate::policy::settings::secret::variables;
use crate::policy::upstream_limits::UpstreamLimits;
use crate::policy::vendors::Vendors;
use std::path::PathBuf;
use std::sync::Arc;

/// The checked configuration. Share it as `Arc<Config>`; nothing in it changes.
#[derive(Clone, Debug)]
pub struct Config {
    /// Listeners and their bounds.
    pub server: Server,
    /// The ledger.
    pub store: StoreConfig,
    /// Export of spans.
    pub telemetry: Telemetry,
    /// Alerts by webhook.
    pub alerts: Alerts,
    /// Deadlines and bounds towards upstreams, before a provider or a model sets its own.
    pub upstream: UpstreamLimits,
    /// Upstream servers, in the order written; `Target.provider` is an index into them.
    pub providers: Vec<Provider>,
    /// TLS peers without duplicates; `Provider.authority` is an index into them.
    pub authorities: Vec<AuthoritySpec>,
    /// The rows of the table of vendors for these providers.
    pub vendors: Arc<Vendors>,
    /// The models.
    pub catalog: Arc<Catalog>,
    /// The plans, at least one; the first is for keys that name none.
    pub plans: Vec<Plan>,
    /// The groups of keys, in the order written.
    pub groups: Vec<Group>,
    /// Warnings about outdated settings that still work, in the order of the lines, for the operator.
    pub warnings: Vec<ConfigError>,
    /// The files of certificates and keys, each with the field that names it. The message is still empty.
    pub pem_files: Vec<(PathBuf, ConfigError)>,
    /// Environment variables that hold secrets.
    pub secret_variables: Vec<String>,
}

impl Config {
    /// Reads and checks a configuration. `Err` has all errors, in the order of the lines.
    pub fn parse(source: &Source<'_>) -> Result<Config, Vec<ConfigError>> {
        let mut reader = Reader::new(source);
        let read = reader.document().map(|mut top| {
            let config = read_document(&mut reader, &mut top);
            top.finish(&mut reader);
            config
        });
        let pem_files = reader.take_pem_files();
        let (errors, warnings) = reader.finish();
        match read {
            Some(config) if errors.is_empty() => {
                let secret_variables = variables(source.text);
                Ok(Config { warnings, pem_files, secret_variables, ..config })
            }
            _ => Err(errors),
        }
    }

    /// The plan called `name`.
    pub fn plan(&self, name: &str) -> Option<&Plan> {
        self.plans.iter().find(|plan| &*plan.name == name)
    }

    /// The group called `name`.
    pub fn group(&self, name: &str) -> Option<&Group> {
        self.groups.iter().find(|group| &*group.limits.name == name)
    }

    /// The models that plans, groups and keys may name.
    pub fn known_models(&self) -> KnownModels<'_> {
        let listed = self.providers.iter().filter_map(|provider| provider.discover.as_ref());
        KnownModels {
            ids: self.catalog.models().iter().map(|model| &*model.id).collect(),
            listed: listed.map(|discover| &*discover.prefix).collect(),
        }
    }

    /// Error in a file of certificates or keys, with the field that names it. `said` begins with the file's path.
    pub fn pem_error(&self, said: &str) -> Option<ConfigError> {
        let named = |path: &PathBuf| said.starts_with(&*path.to_string_lossy());
        let (_, place) = self.pem_files.iter().find(|(path, _)| named(path))?;
        Some(ConfigError { message: said.to_string(), ..place.clone() })
    }

    /// The most memory that the configuration allows with keys of so many bytes, in bytes. Some more keys fit.
    pub fn worst_case_bytes(&self, keys: u64) -> u64 {
        let (server, bounds) = (&self.server, &self.server.bounds);
        let clients = (server.max_connections + RESERVE_CONNECTIONS) as u64;
        let kept = self.providers.iter().map(|provider| clients.min(provider.limits.pool_max_idle as u64));
        let idle_upstreams = kept.sum::<u64>();
        let secure = if server.tls.is_some() { clients } else { 0 }
            + if self.providers.iter().any(|one| one.authority.is_some()) { clients + idle_upstreams } else { 0 };
        let is_alone = matches!(self.store.url, StoreUrl::Redis(_)) && self.store.on_outage == OnOutage::Local;
        let targets = self.catalog.models().iter().flat_map(|model| &model.targets);
        let answers = targets.map(|target| target.limits.max_response.max(target.limits.max_event)).max().unwrap_or(0);
        let terms = Terms {
            clients,
            idle_upstreams,
            secure,
            spans: self.telemetry.exports(),
            rows: clients + if is_alone { bounds.rows_alone } else { bounds.rows },
            log: bounds.log as u64,
            list: if server.admin_listen.is_some() { bounds.list } else { 0 },
            keys: bounds.key_bytes(keys),
            buffers: server.max_buffered as u64,
            largest: server.max_body.max(answers as u64),
            catalog: self.catalog_size(),
            list_bytes: bounds.list_bytes as u64,
        };
        terms.bytes()
    }

    /// Numbers of models and targets, if providers list as many models as they may.
    fn catalog_size(&self) -> CatalogSize {
        let models = self.catalog.models().iter().filter(|model| !model.discovered);
        let targets = models.clone().map(|model| model.targets.len() + model.passthrough_targets.len()).sum::<usize>();
        let lists = self.providers.iter().filter(|provider| provider.discover.is_some());
        let credentials = lists.clone().map(|provider| provider.credentials.len().max(1)).max().unwrap_or(0);
        CatalogSize {
            models: models.count() as u64,
            targets: targets as u64,
            lists: lists.count() as u64,
            credentials: credentials as u64,
        }
        .filled(self.server.bounds.listed as u64)
    }

    /// Warning if that is more than `server.memory`, or more than there is: `there` has the bytes, and whose they are,
    /// if they are known.
    pub fn memory_warning(&self, keys: u64, there: Option<(u64, &str)>) -> Option<String> {
        let worst = self.worst_case_bytes(keys);
        if let Some(memory) = self.server.memory.filter(|memory| worst > *memory) {
            let more = (worst - memory).div_ceil(1 << 20);
            return Some(format!("keys in the ledger may use {more} MiB more than server.memory allows: raise it"));
        }
        let (bytes, whose) = there?;
        let remedy = match self.server.memory {
            Some(_) => "lower server.memory",
            None => "set server.memory, or lower server.max_body, server.max_buffered and server.max_connections",
        };
        (worst > bytes).then(|| {
            let [worst, bytes] = [worst, bytes].map(|bytes| bytes >> 20);
            format!("requests may take up to {worst} MiB of memory, and {whose} has {bytes} MiB: {remedy}")
        })
    }

    /// The provider of a target, by `Target.provider`.
    pub fn provider(&self, index: usize) -> Option<&Provider> {
        self.providers.get(index)
    }
}

/// Size of the catalog according to the unread document; never smaller than it turns out.
fn peek_catalog(top: &Section<'_>) -> CatalogSize {
    let mut size = CatalogSize::default();
    let mut known = Vec::new();
    for provider in top.peek_tables("providers") {
        let credentials = provider
            .get("api_keys")
            .and_then(|keys| keys.get_ref().as_array())
            .map_or(1, |keys| keys.len().max(1) as u64);
        if provider.contains_key("discover") {
            size.lists += 1;
            size.credentials = size.credentials.max(credentials);
        }
        known.push((provider.get("name").and_then(|name| name.get_ref().as_str()), credentials));
    }
    for model in top.peek_tables("models") {
        size.models += 1;
        // Endpoints that are relayed have targets of their own.
        let serves = model.get("serves").and_then(|serves| serves.get_ref().as_array());
        let has_passthrough = serves.is_some_and(|all| all.iter().any(|one| one.get_ref().as_str() != Some("chat")));
        let copies = if has_passthrough { 2 } else { 1 };
        let targets = model.get("targets").and_then(|targets| targets.get_ref().as_array());
        for target in targets.into_iter().flat_map(|targets| targets.iter()) {
            let name = target.get_ref().as_table().and_then(|target| target.get("provider")?.get_ref().as_str());
            let provider = known.iter().find(|(known, _)| name.is_some() && *known == name);
            size.targets += copies * provider.map_or(1, |(_, credentials)| *credentials);
        }
    }
    size
}

/// Reads `default_model`. `ids`: those of all models, valid or not.
fn read_default_model(reader: &mut Reader<'_>, field: &Field<'_>, models: &[Model], ids: &[String]) -> Option<usize> {
    let id = reader.string(field)?;
    let found = models.iter().position(|model| *model.id == *id);
    // A model that exists and is invalid has been reported.
    if found.is_none() && !ids.contains(&id) {
        reader.error(field, format!("no model has the id `{id}`; see [[models]]"));
    }
    found
}

fn read_document(reader: &mut Reader<'_>, top: &mut Section<'_>) -> Config {
    let default_model = top.take("default_model");
    let (providers, spans) = (top.peek_length("providers") as u64, top.peek_member("telemetry", "otlp"));
    let known = ConfigFacts { providers, tls: false, admin: false, spans, catalog: peek_catalog(top) };
    let (server, places) = Server::read(reader, top, known);
    let store = StoreConfig::read(reader, top);
    if let (Some((at, path)), StoreUrl::Sqlite(_)) = (places.reuse_port, &store.url) {
        reader.report(at, path, "requires a shared store (redis://…): only one gateway can use a SQLite ledger");
    }
    let mut telemetry = Telemetry::read(reader, top);
    let mut alerts = Alerts::read(reader, top);
    let mut upstream = UpstreamLimits::within(server.max_buffered);
    upstream.pool_max_idle = server.bounds.idle.unwrap_or(upstream.pool_max_idle);
    if let Some(mut section) = reader.table(top, "upstream") {
        upstream.read(reader, &mut section, server.max_buffered);
        section.finish(reader);
    }
    let mut vendors = Vendors::read(reader, top);
    let declared = providers::read(reader, top, &vendors, &upstream, server.max_buffered);
    let (mut models, ids) = models::read(reader, top, &declared, &vendors, &upstream);
    if let StoreUrl::Redis(_) = store.url {
        let targets =
            models.iter_mut().flat_map(|model| model.targets.iter_mut().chain(&mut model.passthrough_targets));
        let targets = targets.filter(|target| target.concurrency > 0);
        targets.for_each(|target| target.slots = (target.concurrency / store.hosts).max(1));
    }
    let listed = declared.iter().filter_map(|declared| declared.provider.as_ref()?.discover.as_ref());
    // A model that is invalid has been reported.
    let known = KnownModels {
        ids: models.iter().map(|model| &*model.id).chain(ids.iter().map(String::as_str)).collect(),
        listed: listed.map(|discover| &*discover.prefix).collect(),
    };
    let plans = plans::read(reader, top, &known);
    let groups = groups::read(reader, top, &plans, &known);
    let default = default_model.and_then(|field| read_default_model(reader, &field, &models, &ids));
    let mut providers: Vec<Provider> = declared.into_iter().filter_map(|declared| declared.provider).collect();
    vendors.keep_for(&providers.iter().map(Provider::place).collect::<Vec<_>>());
    let collectors = [telemetry.collector.as_deref_mut(), alerts.collector.as_deref_mut()];
    let authorities = providers::authorities(&mut providers, collectors);
    let catalog = Arc::new(Catalog::new(models, default));
    let config = Config {
        server,
        store,
        telemetry,
        alerts,
        upstream,
        providers,
        authorities,
        vendors: Arc::new(vendors),
        catalog,
        plans,
        groups,
        warnings: Vec::new(),
        pem_files: Vec::new(),
        secret_variables: Vec::new(),
    };
    if let Some((memory, (at, path))) = config.server.memory.zip(places.memory)
        && !reader.is_wrong(&path)
        && config.worst_case_bytes(0) > memory
    {
        reader.report(at, path, TOO_LITTLE);
    }
    config
}
