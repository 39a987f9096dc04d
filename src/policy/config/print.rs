//! The effective configuration as TOML: every default filled in, secrets as references to their sources. The output
//! parses to the same configuration, unless the password of a store or a proxy, or the value of a provider's header,
//! had to be masked.

use super::document::Config;
use super::providers::{Auth, Provider};
use super::server::{DERIVED, Server};
use crate::policy::catalog::{Model, ModelParam, QueueLimits, context_text};
use crate::policy::discover::Discover;
use crate::policy::plan::Group;
use crate::policy::plan::caps::Caps;
use crate::policy::plan::entries::Entries;
use crate::policy::prices::{self, ModelPrices, PriceOf, PriceTier, TargetPrices, price_text};
use crate::policy::settings::kinds::{Kind, Shown};
use crate::policy::settings::units::{quoted, quoted_list};
use crate::policy::settings::{Setting, Settings};
use crate::policy::upstream_limits::Timeouts;
use crate::policy::vendors::capabilities::Capabilities;
use crate::policy::window::iso;
use std::fmt::{Display, Write};

/// Values are written one key to a line.
struct ConfigText {
    text: String,
}

impl ConfigText {
    fn line(&mut self, line: impl Display) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.text, "{line}");
    }

    fn table(&mut self, name: &str) {
        let gap = if self.text.is_empty() { "" } else { "\n" };
        self.line(format_args!("{gap}{name}"));
    }

    fn key(&mut self, key: &str, value: impl Display) {
        self.line(format_args!("{key} = {value}"));
    }

    fn string(&mut self, key: &str, value: &str) {
        self.key(key, quoted(value));
    }

    fn strings(&mut self, key: &str, values: &[String]) {
        self.key(key, quoted_list(values));
    }

    fn shown(&mut self, key: &str, value: Shown) {
        match value {
            Shown::Value(value) => self.key(key, value),
            Shown::Words(words) => self.line(format_args!("# {key}: {words}")),
        }
    }

    fn rows<T: Settings>(&mut self, section: &T) {
        T::ROWS.iter().for_each(|row| self.shown(row.key, (row.get)(section)));
    }
}

/// The effective configuration, ready for standard output.
pub fn effective(config: &Config) -> String {
    let mut page = ConfigText { text: String::new() };
    if let Some(model) = config.catalog.default_model().and_then(|index| config.catalog.get(index)) {
        page.string("default_model", &model.id);
    }
    page.table("[server]");
    for row in Server::ROWS {
        match (row.get)(&config.server) {
            // The setting itself would contradict `memory`.
            Shown::Value(value) if config.server.memory.is_some() && DERIVED.contains(&row.key) => {
                page.line(format_args!("# {} = {value}, from `memory`", row.key));
            }
            shown => page.shown(row.key, shown),
        }
    }
    page.table("[store]");
    page.rows(&config.store);
    page.table("[telemetry]");
    page.rows(&config.telemetry);
    page.table("[alerts]");
    page.rows(&config.alerts);
    page.table("[upstream]");
    page.rows(&config.upstream);
    for row in config.vendors.own() {
        page.table("[[vendors]]");
        row.settings().into_iter().for_each(|(key, value)| page.key(key, value));
    }
    for provider in &config.providers {
        self::provider(&mut page, provider);
    }
    for model in config.catalog.models().iter().filter(|model| !model.discovered) {
        self::model(&mut page, config, model);
    }
    for plan in &config.plans {
        page.table("[[plans]]");
        page.string("name", &plan.name);
        page.rows(plan);
    }
    for group in &config.groups {
        page.table("[[groups]]");
        page.string("name", &group.limits.name);
        match &group.parent {
            Some(parent) => page.string("parent", parent),
            None => page.line("# parent: none"),
        }
        Group::rows().for_each(|row| page.shown(row.key, (row.get)(&group.limits)));
    }
    page.text
}

fn provider(page: &mut ConfigText, provider: &Provider) {
    page.table("[[providers]]");
    page.string("name", &provider.name);
    match provider.vendor.as_deref().filter(|_| provider.says_vendor) {
        Some(vendor) => page.string("vendor", vendor),
        None => page.line(format_args!("# vendor: {}, by the host", provider.vendor.as_deref().unwrap_or("unknown"))),
    }
    page.string("shape", provider.shape.name());
    page.string("base_url", &provider.base_url);
    match &provider.credentials[..] {
        [] => {
            page.line("# api_key: none, no credential is sent");
            page.line("# api_keys: none");
        }
        [one] if one.weight == 1 && one.caps.is_empty() => page.key("api_key", one.secret.origin()),
        several => {
            let listed = several.iter().map(|one| {
                let limits = own_limits(&one.caps);
                format!("{{ {}, weight = {}{limits} }}", one.secret.origin().members(), one.weight)
            });
            page.key("api_keys", format_args!("[{}]", listed.collect::<Vec<_>>().join(", ")));
        }
    }
    match &provider.auth {
        Auth::Bearer => page.string("auth", "bearer"),
        Auth::Client => page.string("auth", "client"),
        Auth::Header(name) => page.string("auth", name),
    }
    let headers: Vec<String> = provider.headers.iter().map(|(name, _)| format!("{} = \"***\"", quoted(name))).collect();
    let inside = if headers.is_empty() { String::new() } else { format!(" {} ", headers.join(", ")) };
    page.key("headers", format_args!("{{{inside}}}"));
    match &provider.betas {
        Some(betas) => page.strings("betas", betas),
        None => page.line("# betas: all"),
    }
    match &provider.ca_file {
        Some(path) => page.string("ca_file", &path.to_string_lossy()),
        None => page.line("# ca_file: none, the public authorities"),
    }
    if provider.addresses.is_empty() || provider.proxy.is_some() {
        page.line("# addresses: looked up");
    } else {
        let addresses: Vec<String> = provider.addresses.iter().map(ToString::to_string).collect();
        page.strings("addresses", &addresses);
    }
    match &provider.proxy {
        Some(proxy) => page.key("proxy", proxy.shown()),
        None => page.line("# proxy: none"),
    }
    page.string("unknown_fields", provider.unknown_fields.as_str());
    page.key("stream_usage", provider.stream_usage);
    page.string("cost", provider.cost_source.as_str());
    page.key("stored_objects", provider.stored_objects);
    match &provider.discover {
        Some(discover) => page.key("discover", format_args!("{{ {} }}", members(Discover::ROWS, discover))),
        None => page.line("# discover: none"),
    }
    page.rows(&provider.limits);
    page.shown("limits", Entries.shown(&provider.caps));
}

fn model(page: &mut ConfigText, config: &Config, model: &Model) {
    page.table("[[models]]");
    page.string("id", &model.id);
    page.strings("aliases", &model.aliases);
    page.string("name", &model.name);
    page.string("owned_by", &model.owned_by);
    page.key("created", iso(model.created));
    page.string("context", &model.context_text);
    for (key, of) in prices::KEYS {
        // A written 0 is a price.
        match model.has_token_prices {
            false => page.line(format_args!("# {key}: none")),
            true => page.key(key, tiered(&model.prices, of)),
        }
    }
    for (key, of) in prices::UNIT_KEYS {
        match of(&model.units) {
            Some(price) => page.key(key, price_text(price)),
            None => page.line(format_args!("# {key}: none")),
        }
    }
    let targets: Vec<String> = model
        .targets
        .iter()
        .filter(|target| target.credential == 0)
        .map(|target| {
            let provider = config.provider(target.provider).map_or("", |provider| &provider.name);
            let (model, priority, weight) = (quoted(&target.model), target.priority, target.weight);
            format!(
                "{{ provider = {}, model = {model}, priority = {priority}, weight = {weight}, concurrency = {}, \
                 context = {}{}{} }}",
                quoted(provider),
                target.concurrency,
                quoted(&context_text(target.context)),
                target.prices.as_deref().map_or(String::new(), own_prices),
                own_limits(&target.caps)
            )
        })
        .collect();
    let serves: Vec<String> = model.serves.iter().map(|served| served.name().to_string()).collect();
    page.strings("serves", &serves);
    page.key("targets", format_args!("[{}]", targets.join(", ")));
    page.string("affinity", model.affinity.as_str());
    page.string("balance", model.balance.as_str());
    match &model.queue {
        Some(queue) => page.key("queue", format_args!("{{ {} }}", members(QueueLimits::ROWS, queue))),
        None => page.line("# queue: none"),
    }
    for row in Timeouts::rows() {
        page.shown(row.key, model.timeouts.own(row).map_or(Shown::Words("the provider's"), row.get));
    }
    page.key("default_max_tokens", model.default_max_tokens);
    page.key("reserve_tokens", model.reserve_tokens);
    page.strings("drop_params", &model.drop_params);
    page.key("set_params", inline(&model.set_params));
    page.key("default_params", inline(&model.default_params));
    page.key("capabilities", format_args!("{{ {} }}", members(Capabilities::ROWS, &model.capabilities)));
    page.strings("hosted_tools", &model.hosted_tools);
}

/// A price of tokens: a number, or a table of tiers.
fn tiered(prices: &ModelPrices, of: PriceOf) -> String {
    let base = price_text(of(&prices.base));
    let tier = |tier: &PriceTier| format!(", \"{}\" = {}", context_text(tier.above), price_text(of(&tier.prices)));
    match &*prices.tiers {
        [] => base,
        tiers => format!("{{ \"0\" = {base}{} }}", tiers.iter().map(tier).collect::<String>()),
    }
}

/// Limits as a further key of a table.
fn own_limits(caps: &Caps) -> String {
    match Entries.shown(caps) {
        Shown::Value(value) if !caps.is_empty() => format!(", limits = {value}"),
        _ => String::new(),
    }
}

/// Prices of a target as further keys of its table.
fn own_prices(own: &TargetPrices) -> String {
    let tokens = prices::KEYS.into_iter().filter(|_| own.has_tokens);
    let tokens = tokens.map(|(key, of)| format!(", {key} = {}", tiered(&own.tokens, of)));
    let units = prices::UNIT_KEYS.into_iter();
    let units = units.filter_map(|(key, of)| Some(format!(", {key} = {}", price_text(of(&own.units)?))));
    tokens.chain(units).collect()
}

/// Members of requests as a table on one line.
fn inline(params: &[ModelParam]) -> String {
    let members: Vec<String> = params.iter().map(|param| format!("{} = {}", param.name, param.toml)).collect();
    if members.is_empty() { "{}".to_string() } else { format!("{{ {} }}", members.join(", ")) }
}

/// Settings of a table on one line, except those without a value.
fn members<T>(rows: &[Setting<T>], section: &T) -> String {
    let parts = rows.iter().filter_map(|row| match (row.get)(section) {
        Shown::Value(value) => Some(format!("{} = {value}", row.key)),
        Shown::Words(_) => None,
    });
    parts.collect::<Vec<_>>().join(", ")
}
