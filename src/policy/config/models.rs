//! `[[models]]`.

use super::params;
use super::prices::{self, WrittenList};
use super::providers::{Auth, Credential, Declared, Provider};
use super::target_limits;
use crate::base::hash::mix_bytes;
use crate::base::time::Unix;
use crate::policy::catalog::{
    Affinity, Balance, ContextSize, ID_MAX, Model, QueueLimits, SHARE, Target, context_text, is_bad, is_id,
    with_quarter,
};
use crate::policy::plan::entries::Entries;
use crate::policy::prices::{TargetPrices, WrittenPrices};
use crate::policy::settings::Settings;
use crate::policy::settings::kinds::{Kind, OneOf};
use crate::policy::settings::reader::{ENTRIES_MAX, Field, Reader, Section};
use crate::policy::upstream_limits::{Timeouts, UpstreamLimits};
use crate::policy::vendors::Vendors;
use crate::policy::vendors::capabilities::{Capabilities, PromptCache, TOKENS_MAX};
use crate::policy::window::parse_moment;
use crate::wire::{ModelEndpoint, Passthrough};
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Targets of one model.
const TARGETS_MAX: usize = 32;
/// Targets of one model, counted once per credential. Attempts store the tried ones as bits.
const ATTEMPTABLE_MAX: usize = u64::BITS as usize;
/// Default of `default_max_tokens` and `reserve_tokens`, in completion tokens.
pub(super) const DEFAULT_TOKENS: u64 = 4096;
/// Request fields that every model needs.
const NEEDED: [&str; 7] = ["model", "messages", "input", "stream", "prompt", "query", "documents"];

/// Reads `[[models]]`; at least one is needed. Also returns the ids of all models, valid or not.
pub(super) fn read(
    reader: &mut Reader<'_>,
    top: &mut Section<'_>,
    providers: &[Declared],
    vendors: &Vendors,
    limits: &UpstreamLimits,
) -> (Vec<Model>, Vec<String>) {
    let mut models: Vec<Model> = Vec::new();
    let mut ids: Vec<String> = Vec::new();
    let mut aliases: Vec<(Field<'_>, String)> = Vec::new();
    let written = top.peek_start("models").is_some();
    let sections = reader.tables(top, "models", ENTRIES_MAX);
    if sections.is_empty() && !written && !providers.iter().any(Declared::discovers) {
        reader.report(
            top.start(),
            "models".to_string(),
            "at least one [[models]] is needed, or a provider with `discover`",
        );
    }
    for mut section in sections {
        let id = reader.required(&mut section, "id").and_then(|field| {
            let Some(id) = model_id(reader, &field) else {
                ids.extend(field.text().map(str::to_string));
                return None;
            };
            if ids.contains(&id) {
                reader.error(&field, format!("a second model has the id `{id}`: ids must be unique"));
            }
            ids.push(id.clone());
            Some(id)
        });
        let own = section.take("aliases").map(|field| reader.strings(field)).unwrap_or_default();
        let names = own.iter().map(|(_, alias)| alias.clone()).collect();
        aliases.extend(own);
        let model = read_one(reader, &mut section, id, names, (providers, vendors), limits);
        section.finish(reader);
        models.extend(model);
    }
    check_aliases(reader, &ids, &aliases);
    target_limits::set_all(reader, top.place("models").unwrap_or(top.start()), &mut models, providers);
    (models, ids)
}

/// An alias must belong to only one model.
fn check_aliases(reader: &mut Reader<'_>, ids: &[String], aliases: &[(Field<'_>, String)]) {
    for (index, (field, alias)) in aliases.iter().enumerate() {
        let name = alias.strip_suffix('*').unwrap_or(alias);
        if alias.is_empty() || alias.len() > ID_MAX || name.contains(|c: char| is_bad(c) || c == '*') {
            reader.wrong(field, "expected a name without spaces or any of , ? # % \" \\, a * at its end alone");
        } else if ids.contains(alias) {
            reader.error(field, format!("`{alias}` is the id of a model: choose another alias"));
        } else if aliases[..index].iter().any(|(_, other)| other == alias) {
            reader.error(field, format!("`{alias}` is already an alias: remove one of them"));
        }
    }
}

fn model_id(reader: &mut Reader<'_>, field: &Field<'_>) -> Option<String> {
    let id = reader.word(field, ID_MAX)?;
    if !is_id(&id) {
        reader.wrong(field, "expected an id without spaces, invisible characters or any of , ? # % \" \\ *");
        return None;
    }
    Some(id)
}

fn read_one(
    reader: &mut Reader<'_>,
    s: &mut Section<'_>,
    id: Option<String>,
    aliases: Vec<String>,
    (providers, vendors): (&[Declared], &Vendors),
    limits: &UpstreamLimits,
) -> Option<Model> {
    let [name, owned_by] = ["name", "owned_by"].map(|key| s.take(key).and_then(|field| reader.word(&field, 128)));
    let created = s.take("created").and_then(|field| read_created(reader, &field)).unwrap_or_default();
    let context = reader.required(s, "context").and_then(|field| ContextSize.read(reader, field));
    let timeouts = Timeouts::read(reader, s);
    let [default_max_tokens, reserve_tokens] = [("default_max_tokens", 1), ("reserve_tokens", 0)]
        .map(|(key, least)| integer(reader, s, key, DEFAULT_TOKENS, least..=TOKENS_MAX));
    let drop_params = read_dropped(reader, s);
    let (set_params, default_params) = params::read(reader, s);
    let hosted_tools = read_hosted(reader, s);
    let capabilities = read_capabilities(reader, s);
    let (affinity, balance) = read_balance(reader, s);
    let queue = read_queue(reader, s);
    let written = prices::read(reader, s);
    let (mut targets, own): (Vec<Target>, Vec<WrittenList>) =
        read_targets(reader, s, id.as_deref(), (context, providers), &timeouts, limits).into_iter().unzip();
    let client_credential = takes_clients(reader, s, &targets, providers);
    set_rules(&mut targets, providers, vendors, &capabilities);
    let (serves, passthrough_targets) = read_serves(reader, s, &targets, providers);
    let priced = set_prices(reader, s, &mut targets, (&own, written), (&serves, client_credential));
    let passthrough_targets = passthrough_targets.into_iter().map(|at| targets[at].clone()).collect();
    let (id, context) = (id?, context?);
    let first = targets.first().and_then(|target| providers.get(target.provider)?.name.clone());
    let contexts = || targets.iter().map(|target| target.context);
    Some(Model {
        name: name.unwrap_or_else(|| id.clone()),
        owned_by: owned_by.or(first).unwrap_or_default(),
        id: id.into(),
        aliases,
        created,
        context,
        largest: contexts().fold(context, u64::max),
        narrow: contexts().min().filter(|least| contexts().any(|one| one > *least)).map_or(u64::MAX, with_quarter),
        context_text: context_text(context),
        has_token_prices: priced.own.has_tokens,
        prices: priced.own.tokens,
        units: priced.own.units,
        priced: priced.everywhere,
        priced_by_target: targets.iter().any(|target| target.prices.is_some()),
        limited: false,
        unused_prices: priced.unused,
        client_credential,
        checked: client_credential || !priced.everywhere || priced.by_minute,
        timeouts,
        serves,
        passthrough_targets,
        caches_by_key: caches_by_key(&targets),
        shares: targets.windows(2).any(|pair| pair[0].priority == pair[1].priority),
        targets,
        affinity,
        balance,
        queue,
        default_max_tokens,
        reserve_tokens,
        drop_params,
        set_params,
        default_params,
        hosted_tools,
        capabilities,
        discovered: false,
    })
}

/// Sets what is known of the model at each target. `own`: its own settings.
fn set_rules(targets: &mut [Target], providers: &[Declared], vendors: &Vendors, own: &Capabilities) {
    for target in targets {
        let provider = providers.get(target.provider).and_then(|declared| declared.provider.as_ref());
        if let Some(provider) = provider {
            target.rules = Arc::new(vendors.rules(&provider.place(), &target.model, own));
        }
    }
}

/// True if a provider of these targets finds a conversation in its prompt cache by a key.
pub(super) fn caches_by_key(targets: &[Target]) -> bool {
    targets.iter().any(|target| target.rules.capabilities.cache == Some(PromptCache::Key))
}

/// Prices of a model that is being read.
struct PricesRead {
    /// Its own prices.
    own: TargetPrices,
    /// Its own prices that are written but not used.
    unused: Vec<WrittenPrices>,
    /// Each of its targets has prices.
    everywhere: bool,
    /// There is a price per minute, its own or a target's.
    by_minute: bool,
}

/// Sets the prices of targets that have some of their own, and warns of prices that are missing.
fn set_prices(
    reader: &mut Reader<'_>,
    s: &Section<'_>,
    targets: &mut [Target],
    (own, model): (&[WrittenList], WrittenList),
    (serves, is_free): (&[ModelEndpoint], bool),
) -> PricesRead {
    const ADVICE: &str = "so the model is unpriced; set both prices (0 = free)";
    for (target, own) in targets.iter_mut().zip(own).filter(|(_, own)| !own.is_empty()) {
        let all = own.over(&model);
        if let Some(key) = all.missing(serves) {
            let text = format!("`{}` has no {key}, {ADVICE}", target.label);
            reader.warn(s.place("targets").unwrap_or(s.start()), s.path_of("targets"), text);
        }
        target.prices = Some(Arc::new(all.prices(serves, is_free)));
    }
    let is_used = targets.is_empty() || targets.iter().any(|target| target.prices.is_none());
    let (own, missing) = (model.prices(serves, is_free), model.missing(serves));
    if let Some(key) = missing.filter(|_| is_used) {
        reader.warn(s.start(), s.path_of(key), format!("missing, {ADVICE}"));
    }
    let of_targets = || targets.iter().filter_map(|target| target.prices.as_deref());
    PricesRead {
        everywhere: (own.priced || !is_used) && of_targets().all(|own| own.priced),
        by_minute: own.units.minute.is_some() || of_targets().any(|own| own.units.minute.is_some()),
        own,
        unused: if missing.is_some() { model.unused() } else { Vec::new() },
    }
}

/// True if the provider of the targets takes the credentials of clients. It must then be the only one.
fn takes_clients(reader: &mut Reader<'_>, s: &Section<'_>, targets: &[Target], providers: &[Declared]) -> bool {
    let takes = |target: &Target| {
        let provider = providers.get(target.provider).and_then(|declared| declared.provider.as_ref());
        provider.is_some_and(|provider| provider.auth == Auth::Client)
    };
    let any = targets.iter().any(takes);
    if any && targets.iter().any(|target| target.provider != targets[0].provider) {
        let text = "a provider with auth = \"client\" must be the only provider of its models: another one would not \
                    have the client's credential";
        reader.report(s.place("targets").unwrap_or(s.start()), s.path_of("targets"), text);
    }
    any
}

/// Reads `serves`, and selects the targets for pass-through requests, by index. These have the chat shape and the same
/// model as the first one, since vectors of two models must never mix.
fn read_serves(
    reader: &mut Reader<'_>,
    s: &mut Section<'_>,
    targets: &[Target],
    providers: &[Declared],
) -> (Vec<ModelEndpoint>, Vec<usize>) {
    let (mut serves, mut passthrough_targets): (Vec<ModelEndpoint>, Vec<usize>) = (Vec::new(), Vec::new());
    let Some(field) = s.take("serves") else { return (vec![ModelEndpoint::CHAT], passthrough_targets) };
    for (at, target) in targets.iter().enumerate() {
        let provider = providers.get(target.provider).and_then(|declared| declared.provider.as_ref());
        // An invalid provider has been reported.
        let fits = provider.is_none_or(|provider| provider.shape.has_passthrough());
        if fits && passthrough_targets.first().is_none_or(|first| targets[*first].model == target.model) {
            passthrough_targets.push(at);
        }
    }
    let (at, path, was_array) = (field.start(), field.path.clone(), field.is_array());
    let words = reader.strings(field);
    if words.is_empty() && was_array {
        reader.report(at, path, "at least one is needed");
    }
    for (field, word) in words {
        match ModelEndpoint::from_name(&word).filter(|endpoint| endpoint.family() == *endpoint) {
            Some(endpoint) if endpoint.is_passthrough() && passthrough_targets.is_empty() && !targets.is_empty() => {
                reader.error(&field, format!("`{word}` needs a target at a provider of shape \"chat\""));
            }
            Some(endpoint) => serves.push(endpoint),
            None => reader.wrong(&field, format!("expected one of chat, {}", Passthrough::names())),
        }
    }
    if !serves.iter().any(|served| served.is_passthrough()) {
        passthrough_targets.clear();
    }
    (serves, passthrough_targets)
}

fn read_queue(reader: &mut Reader<'_>, s: &mut Section<'_>) -> Option<QueueLimits> {
    let mut table = reader.table(s, "queue")?;
    let mut queue = QueueLimits::default();
    queue.read_rows(reader, &mut table);
    table.finish(reader);
    Some(queue)
}

fn read_capabilities(reader: &mut Reader<'_>, s: &mut Section<'_>) -> Capabilities {
    let mut capabilities = Capabilities::default();
    if let Some(mut table) = reader.table(s, "capabilities") {
        capabilities.read_rows(reader, &mut table);
        table.finish(reader);
    }
    capabilities
}

fn read_hosted(reader: &mut Reader<'_>, s: &mut Section<'_>) -> Vec<String> {
    let hosted = s.take("hosted_tools").map(|field| reader.strings(field)).unwrap_or_default();
    hosted.into_iter().map(|(_, name)| name).collect()
}

/// Reads `drop_params`.
fn read_dropped(reader: &mut Reader<'_>, s: &mut Section<'_>) -> Vec<String> {
    let mut dropped = Vec::new();
    for (field, param) in s.take("drop_params").map(|field| reader.strings(field)).unwrap_or_default() {
        if NEEDED.contains(&param.as_str()) {
            reader.error(&field, format!("`{param}` cannot be dropped"));
        }
        dropped.push(param);
    }
    dropped
}

/// Reads `affinity` and `balance`.
fn read_balance(reader: &mut Reader<'_>, s: &mut Section<'_>) -> (Affinity, Balance) {
    let (affinities, balances) = (OneOf(&Affinity::ALL, Affinity::as_str), OneOf(&Balance::ALL, Balance::as_str));
    let affinity = s.take("affinity").and_then(|field| affinities.read(reader, field));
    let balance = s.take("balance").and_then(|field| balances.read(reader, field)).unwrap_or_default();
    (affinity.unwrap_or_default(), balance)
}

/// Integer called `key`, or its default.
fn integer(
    reader: &mut Reader<'_>,
    s: &mut Section<'_>,
    key: &'static str,
    default: u64,
    range: RangeInclusive<u64>,
) -> u64 {
    s.take(key).and_then(|field| reader.integer(&field, &range)).unwrap_or(default)
}

fn read_created(reader: &mut Reader<'_>, field: &Field<'_>) -> Option<Unix> {
    let moment = field.moment_text().and_then(|text| parse_moment(&text));
    if moment.is_none() {
        reader.wrong(field, "expected a date such as 2026-11-20, or a date-time with its offset");
    }
    moment
}

/// Targets sorted by priority, each with its own prices. The default priority of a target is its index, so that targets
/// are tried in the written order.
fn read_targets(
    reader: &mut Reader<'_>,
    s: &mut Section<'_>,
    id: Option<&str>,
    (context, providers): (Option<u64>, &[Declared]),
    timeouts: &Timeouts,
    limits: &UpstreamLimits,
) -> Vec<(Target, WrittenList)> {
    let Some(field) = reader.required(s, "targets") else { return Vec::new() };
    let (at, path, was_array) = (field.start(), field.path.clone(), field.is_array());
    let items = reader.items(field, TARGETS_MAX);
    if items.is_empty() && was_array {
        reader.report(at, path.clone(), "at least one target is needed");
    }
    let mut targets: Vec<(Target, WrittenList)> = Vec::new();
    for (index, item) in items.into_iter().enumerate() {
        let Some(mut table) = reader.as_table(item) else { continue };
        let t = &mut table;
        let provider = reader.required(t, "provider").and_then(|field| read_provider(reader, &field, providers));
        let model = t.take("model").and_then(|field| reader.word(&field, 256));
        let priority = integer(reader, t, "priority", index as u64 + 1, 0..=1000) as u32;
        let weight = integer(reader, t, "weight", 1, 1..=1000) as u32;
        let concurrency = integer(reader, t, "concurrency", 0, 0..=1_000_000) as u32;
        let own = t.take("context").and_then(|field| ContextSize.read(reader, field));
        let prices = prices::read(reader, t);
        let caps = t.take("limits").and_then(|field| Entries.read(reader, field)).unwrap_or_default();
        table.finish(reader);
        let (Some(provider), Some(model)) = (provider, model.or_else(|| id.map(str::to_string))) else { continue };
        let Some(Declared { name: Some(name), provider: known, .. }) = providers.get(provider) else { continue };
        let limits = timeouts.over(known.as_ref().map_or(limits, |provider| &provider.limits));
        let label = format!("{name}/{model}");
        let target = Target {
            provider,
            model,
            credential: 0,
            seed: mix_bytes(0, label.as_bytes()),
            label: label.into(),
            priority,
            weight,
            share: u64::from(weight) * SHARE,
            concurrency,
            context: own.or(context).unwrap_or_default(),
            slots: concurrency,
            prices: None,
            limits,
            caps,
            accounts: None,
            rules: Arc::default(),
        };
        match known {
            Some(provider) if provider.credentials.len() > 1 => {
                targets.extend(by_credential(&target, provider).into_iter().map(|target| (target, prices.clone())));
            }
            _ => targets.push((target, prices)),
        }
    }
    if targets.len() > ATTEMPTABLE_MAX {
        let text = format!("at most {ATTEMPTABLE_MAX} targets, each counted once for every credential of its provider");
        reader.report(at, path, text);
    }
    targets.sort_by_key(|(target, _)| target.priority);
    targets
}

/// Reads the name of a target's provider.
fn read_provider(reader: &mut Reader<'_>, field: &Field<'_>, providers: &[Declared]) -> Option<usize> {
    let name = reader.string(field)?;
    let found = providers.iter().position(|declared| declared.name.as_deref() == Some(&name));
    // A provider with an invalid name has been reported.
    if found.is_none() && !providers.iter().any(|declared| declared.unfit.as_deref() == Some(&name)) {
        reader.error(field, format!("no provider is named `{name}`; see [[providers]]"));
    }
    found
}

/// Splits a target into one per credential of its provider. The weights of the credentials divide its weight.
pub(super) fn by_credential(target: &Target, provider: &Provider) -> Vec<Target> {
    let all: u64 = provider.credentials.iter().map(|credential| u64::from(credential.weight)).sum();
    let of = |(credential, one): (usize, &Credential)| {
        let label = format!("{}/{}", provider.credential_name(credential), target.model);
        let (seed, label) = (mix_bytes(0, label.as_bytes()), label.into());
        let share = (target.share * u64::from(one.weight) / all.max(1)).max(1);
        Target { credential, label, share, seed, ..target.clone() }
    };
    provider.credentials.iter().enumerate().map(of).collect()
}
