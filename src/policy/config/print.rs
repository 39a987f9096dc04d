//! The effective configuration as TOML: every default filled in, secrets as references to where they come from. What
//! it prints parses to the same configuration, unless a store's password had to be masked.

use super::server::{Durability, OnOutage};
use super::units::{duration_text, size_text};
use super::{Auth, Config, Origin, Provider, Secret, UpstreamLimits};
use crate::policy::catalog::{Model, price_text};
use crate::policy::plan::Plan;
use crate::policy::window::iso;
use std::fmt::{Display, Write};
use std::time::Duration;

/// Values are written one key to a line.
struct Page {
    text: String,
}

impl Page {
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

    fn duration(&mut self, key: &str, value: Duration) {
        self.string(key, &duration_text(value));
    }

    fn size(&mut self, key: &str, value: u64) {
        self.string(key, &size_text(value));
    }

    fn strings<'a>(&mut self, key: &str, values: impl Iterator<Item = &'a str>) {
        let quoted: Vec<String> = values.map(quoted).collect();
        self.key(key, format_args!("[{}]", quoted.join(", ")));
    }
}

/// A TOML basic string.
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => {
                out.push('\\');
                out.push(c);
            }
            c if c.is_control() => {
                let _ = write!(out, "\\u{:04X}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

fn secret_text(secret: &Secret) -> String {
    match secret.origin() {
        Origin::Env(name) => format!("{{ env = {} }}", quoted(name)),
        Origin::File(path) => format!("{{ file = {} }}", quoted(path)),
    }
}

/// The effective configuration, ready for standard output.
pub fn effective(high: &Config) -> String {
    let mut page = Page { text: String::new() };
    if let Some(model) = high.catalog.default_model().and_then(|index| high.catalog.get(index)) {
        page.string("default_model", &model.id);
    }
    server(&mut page, high);
    store(&mut page, high);
    page.table("[upstream]");
    limits(&mut page, &high.upstream);
    for provider in &high.providers {
        self::provider(&mut page, provider);
    }
    for model in high.catalog.models() {
        self::model(&mut page, high, model);
    }
    for plan in &high.plans {
        self::plan(&mut page, plan);
    }
    page.text
}

fn server(page: &mut Page, high: &Config) {
    let server = &high.server;
    page.table("[server]");
    let listen: Vec<String> = server.listen.iter().map(ToString::to_string).collect();
    page.strings("listen", listen.iter().map(String::as_str));
    match server.admin_listen {
        Some(address) => page.string("admin_listen", &address.to_string()),
        None => page.line("# admin_listen: none"),
    }
    match &server.admin_token {
        Some(token) => page.key("admin_token", secret_text(token)),
        None => page.line("# admin_token: none"),
    }
    page.string("key_prefix", &server.key_prefix);
    match &server.tls {
        Some(tls) => {
            let (cert, key) = (tls.cert.to_string_lossy(), tls.key.to_string_lossy());
            page.key("tls", format_args!("{{ cert = {}, key = {} }}", quoted(&cert), quoted(&key)));
        }
        None => page.line("# tls: none"),
    }
    page.strings("cors_origins", server.cors_origins.iter().map(|origin| &**origin));
    page.key("reuse_port", server.reuse_port);
    page.key("max_connections", server.max_connections);
    page.key("max_connections_per_ip", server.max_connections_per_ip);
    page.size("max_header", server.max_header as u64);
    page.size("max_body", server.max_body);
    page.size("max_buffered", server.max_buffered as u64);
    page.duration("header_timeout", server.header_timeout);
    page.duration("body_timeout", server.body_timeout);
    page.duration("keepalive_timeout", server.keepalive_timeout);
    page.duration("write_stall", server.write_stall);
    page.duration("drain_timeout", server.drain_timeout);
    page.duration("commit_after", server.commit_after);
}

fn store(page: &mut Page, high: &Config) {
    let store = &high.store;
    page.table("[store]");
    page.string("url", &store.url.to_string());
    match &store.ca_file {
        Some(path) => page.string("ca_file", &path.to_string_lossy()),
        None => page.line("# ca_file: none, the public authorities"),
    }
    let durability = match store.durability {
        Durability::WriteBehind => "write-behind",
        Durability::BeforeReply => "before-reply",
    };
    page.string("durability", durability);
    page.duration("max_commit_lag", store.max_commit_lag);
    let outage = match store.on_outage {
        OnOutage::Refuse => "refuse",
        OnOutage::Local => "local",
    };
    page.string("on_outage", outage);
    page.key("hosts", store.hosts);
    match store.retention {
        Some(retention) => page.duration("retention", retention),
        None => page.line("# retention: for ever"),
    }
}

fn limits(page: &mut Page, limits: &UpstreamLimits) {
    page.duration("connect_timeout", limits.connect_timeout);
    page.duration("first_byte_timeout", limits.first_byte_timeout);
    page.duration("idle_timeout", limits.idle_timeout);
    page.duration("request_timeout", limits.request_timeout);
    page.key("attempts", limits.attempts);
    page.key("breaker_failures", limits.breaker_failures);
    page.duration("breaker_cooldown", limits.breaker_cooldown);
    page.key("pool_max_idle", limits.pool_max_idle);
    page.duration("pool_idle_timeout", limits.pool_idle_timeout);
    page.size("max_event", limits.max_event as u64);
    page.size("max_response", limits.max_response as u64);
}

fn provider(page: &mut Page, provider: &Provider) {
    page.table("[[providers]]");
    page.string("name", &provider.name);
    page.string("shape", provider.shape.name());
    page.string("base_url", &provider.base_url);
    match &provider.credential {
        Some((_, key)) => page.key("api_key", secret_text(key)),
        None => page.line("# api_key: none, no credential is sent"),
    }
    match &provider.auth {
        Auth::Bearer => page.string("auth", "bearer"),
        Auth::Header(name) => page.string("auth", name),
    }
    let headers: Vec<String> =
        provider.headers.iter().map(|(name, value)| format!("{} = {}", quoted(name), quoted(value))).collect();
    let inside = if headers.is_empty() { String::new() } else { format!(" {} ", headers.join(", ")) };
    page.key("headers", format_args!("{{{inside}}}"));
    match &provider.betas {
        Some(betas) => page.strings("betas", betas.iter().map(String::as_str)),
        None => page.line("# betas: all"),
    }
    match &provider.ca_file {
        Some(path) => page.string("ca_file", &path.to_string_lossy()),
        None => page.line("# ca_file: none, the public authorities"),
    }
    if provider.addresses.is_empty() {
        page.line("# addresses: looked up");
    } else {
        let addresses: Vec<String> = provider.addresses.iter().map(ToString::to_string).collect();
        page.strings("addresses", addresses.iter().map(String::as_str));
    }
    page.string("unknown_fields", if provider.forward_unknown { "forward" } else { "drop" });
    page.key("stream_usage", provider.stream_usage);
    limits(page, &provider.limits);
}

fn model(page: &mut Page, high: &Config, model: &Model) {
    page.table("[[models]]");
    page.string("id", &model.id);
    page.string("name", &model.name);
    page.string("owned_by", &model.owned_by);
    page.key("created", iso(model.created));
    page.string("context", &model.context_text);
    page.key("input_price", price_text(model.prices.input));
    page.key("output_price", price_text(model.prices.output));
    page.key("cache_read_price", price_text(model.prices.cache_read));
    page.key("cache_write_price", price_text(model.prices.cache_write));
    let targets: Vec<String> = model
        .targets
        .iter()
        .map(|target| {
            let provider = high.provider(target.provider).map_or("", |provider| &provider.name);
            let (model, priority, weight) = (quoted(&target.model), target.priority, target.weight);
            format!("{{ provider = {}, model = {model}, priority = {priority}, weight = {weight} }}", quoted(provider))
        })
        .collect();
    page.key("targets", format_args!("[{}]", targets.join(", ")));
    let own = [
        ("connect_timeout", model.timeouts.connect_timeout),
        ("first_byte_timeout", model.timeouts.first_byte_timeout),
        ("idle_timeout", model.timeouts.idle_timeout),
        ("request_timeout", model.timeouts.request_timeout),
    ];
    for (key, value) in own {
        match value {
            Some(value) => page.duration(key, value),
            None => page.line(format_args!("# {key}: the provider's")),
        }
    }
    page.key("default_max_tokens", model.default_max_tokens);
    page.key("reserve_tokens", model.reserve_tokens);
    page.strings("drop_params", model.drop_params.iter().map(String::as_str));
    let c = &model.capabilities;
    let mut parts = vec![
        format!("sampling = {}", c.sampling),
        format!("mid_conversation_system = {}", c.mid_conversation_system),
        format!("replay_reasoning = {}", c.replay_reasoning),
        format!("max_completion_tokens = {}", c.max_completion_tokens),
        format!("structured_output = {}", quoted(c.structured_output.as_str())),
        format!("effort = {}", c.effort),
        format!("strict_tools = {}", c.strict_tools),
    ];
    parts.extend(c.max_output_tokens.map(|most| format!("max_output_tokens = {most}")));
    page.key("capabilities", format_args!("{{ {} }}", parts.join(", ")));
}

fn plan(page: &mut Page, plan: &Plan) {
    page.table("[[plans]]");
    page.string("name", &plan.name);
    page.key("tokens", plan.tokens);
    page.string("period", plan.period.as_str());
    page.key("requests", plan.requests);
    page.duration("window", plan.window);
    page.key("tokens_per_window", plan.tokens_per_window);
    page.key("concurrency", plan.concurrency);
}
