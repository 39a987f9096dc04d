//! `tollgate models`: the catalog as a table, including the models that providers list at the moment.

use super::args::{ConfigArg, ModelsArgs};
use super::discover;
use super::http::admin_client::{AdminArg, AskArg, Listener};
use super::load::{self, Secrets};
use super::output::{Align, Failure, Table, print, print_json, remark, warn};
use super::requests::read;
use super::status::list_targets;
use crate::policy::catalog::{Catalog, Model, Target, context_text};
use crate::policy::config::Config;
use crate::policy::config::target_limits::limits_of;
use crate::policy::plan::caps::Cap;
use crate::policy::prices::{KEYS, ModelPrices, PriceOf, PriceTier, Prices, UNIT_KEYS, UnitPrices, price_text};
use crate::policy::vendors::Explained;
use crate::wire::ModelEndpoint;
use serde::Serialize;
use serde_json::Value;
use std::collections::HashMap;

/// A model as JSON.
#[derive(Serialize)]
pub(super) struct ModelLine<'a> {
    name: &'a str,
    id: &'a str,
    owned_by: &'a str,
    context: &'a str,
    context_window: u64,
    #[serde(flatten)]
    prices: PriceLine,
    #[serde(flatten)]
    units: UnitLine,
    /// Prices of requests with long prompts, by rising thresholds.
    price_tiers: Vec<TierLine>,
    /// Endpoints that the model serves.
    serves: &'a [ModelEndpoint],
    /// False if one of its endpoints has no price: the model costs nothing, and budgets may refuse it.
    priced: bool,
    /// True if its provider lists it; then it is not configured, and has no price.
    discovered: bool,
}

/// Prices as JSON, in USD per 1M tokens.
#[derive(Serialize)]
struct PriceLine {
    input_price: f64,
    output_price: f64,
    cache_read_price: f64,
    cache_write_price: f64,
    cache_write_1h_price: f64,
}

/// Micro-dollars in dollars.
fn usd(micro: u64) -> f64 {
    micro as f64 / 1e6
}

impl PriceLine {
    fn new(prices: &Prices) -> PriceLine {
        PriceLine {
            input_price: usd(prices.input),
            output_price: usd(prices.output),
            cache_read_price: usd(prices.cache_read),
            cache_write_price: usd(prices.cache_write),
            cache_write_1h_price: usd(prices.hour_write),
        }
    }
}

/// A tier of the prices as JSON.
#[derive(Serialize)]
struct TierLine {
    /// The tier applies to prompts with more tokens than this.
    above: u64,
    #[serde(flatten)]
    prices: PriceLine,
}

/// A target as JSON.
#[derive(Serialize)]
struct TargetLine<'a> {
    model: &'a str,
    target: &'a str,
    /// False if one of the model's endpoints has no price here.
    priced: bool,
    #[serde(flatten)]
    prices: PriceLine,
    #[serde(flatten)]
    units: UnitLine,
    price_tiers: Vec<TierLine>,
    limits: Vec<LimitLine>,
}

/// A limit of a target, its provider or its credential as JSON.
#[derive(Serialize)]
struct LimitLine {
    /// The target, provider or credential.
    of: String,
    limit: String,
    /// Use in the present window, as a running gateway reports it; money in US dollars.
    used: Option<f64>,
}

/// Prices of a relayed request, of an image and of a minute of audio as JSON, in US dollars.
#[derive(Serialize)]
struct UnitLine {
    #[serde(skip_serializing_if = "Option::is_none")]
    price_per_request: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    price_per_image: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    price_per_minute: Option<f64>,
}

impl UnitLine {
    fn new(units: &UnitPrices) -> UnitLine {
        let [price_per_request, price_per_image, price_per_minute] = UNIT_KEYS.map(|(_, of)| of(units).map(usd));
        UnitLine { price_per_request, price_per_image, price_per_minute }
    }
}

/// Lists the catalog, or its targets, in the order of the configuration.
pub fn run(args: &ModelsArgs) -> Result<(), Failure> {
    let high = discovered(&args.config)?;
    if let Some(name) = &args.why {
        let why = explained(&high, name)?;
        return if args.json { print_json(&why) } else { print(&why_table(&why)) };
    }
    if args.targets {
        let used = if high.catalog.models().iter().any(|model| model.limited) { uses(args) } else { Uses::new() };
        return if args.json { print_json(&target_lines(&high, &used)) } else { print(&target_table(&high, &used)) };
    }
    if args.json { print_json(&lines(&high.catalog)) } else { print(&table(&high.catalog)) }
}

/// A property of a target as JSON.
#[derive(Serialize)]
struct WhyLine {
    target: String,
    property: &'static str,
    /// As in a configuration; without a value, what that means.
    value: String,
    /// The setting or the row that it comes from.
    from: String,
}

/// The properties of each target of the model with this name.
fn explained(config: &Config, name: &str) -> Result<Vec<WhyLine>, Failure> {
    let model = config.catalog.asked(name).and_then(|index| config.catalog.get(index));
    let model = model.ok_or_else(|| Failure::failed(format!("no model is called `{name}`: see `tollgate models`")))?;
    let mut lines = Vec::new();
    for target in &model.targets {
        let Some(provider) = config.provider(target.provider) else { continue };
        let all = config.vendors.explain(&provider.place(), &target.model, &model.capabilities);
        lines.extend(all.into_iter().map(|Explained { name, value, origin }| WhyLine {
            target: target.label.to_string(),
            property: name,
            value,
            from: origin,
        }));
    }
    Ok(lines)
}

fn why_table(lines: &[WhyLine]) -> String {
    let mut table = Table::new(&[
        ("TARGET", Align::Left),
        ("PROPERTY", Align::Left),
        ("VALUE", Align::Left),
        ("FROM", Align::Left),
    ]);
    for WhyLine { target, property, value, from } in lines {
        table.row(vec![target.clone(), (*property).to_string(), value.clone(), from.clone()]);
    }
    table.text()
}

/// The configuration with the models that its providers list. Providers are queried with their credentials. If a
/// credential or a list is not available, a remark says so and the rest is shown.
fn discovered(arg: &ConfigArg) -> Result<Config, Failure> {
    let path = load::find(arg)?;
    let config = load::read(&path, Secrets::Optional).map_err(Failure::Config)?;
    if config.providers.iter().all(|provider| provider.discover.is_none()) {
        return Ok(config);
    }
    let unknown = |what: &str, why: &str| warn(&format!("the models of {what} are unknown: {why}"));
    let Ok(mut config) = load::read(&path, Secrets::Needed) else {
        unknown("providers", "their credentials are not available here");
        return Ok(config);
    };
    let security = load::security(&config, None).map_err(Failure::failed)?;
    for index in 0..config.providers.len() {
        let provider = &config.providers[index];
        if provider.discover.is_some() {
            match discover::ask(provider, &security, config.server.bounds.list_bytes) {
                Ok(list) => drop(config.take_list(index, list.models)),
                Err(no) => unknown(&format!("`{}`", provider.name), &no.why),
            }
        }
    }
    Ok(config)
}

/// The catalog as JSON.
pub(super) fn lines(catalog: &Catalog) -> Vec<ModelLine<'_>> {
    let line = catalog.models().iter().map(|model| ModelLine {
        name: &model.name,
        id: &model.id,
        owned_by: &model.owned_by,
        context: &model.context_text,
        context_window: model.context,
        prices: PriceLine::new(&model.prices.base),
        units: UnitLine::new(&model.units),
        price_tiers: tier_lines(&model.prices),
        serves: &model.serves,
        priced: model.priced,
        discovered: model.discovered,
    });
    line.collect()
}

fn tier_lines(prices: &ModelPrices) -> Vec<TierLine> {
    let line = |tier: &PriceTier| TierLine { above: tier.above, prices: PriceLine::new(&tier.prices) };
    prices.tiers.iter().map(line).collect()
}

/// Each target of each model.
fn targets(catalog: &Catalog) -> impl Iterator<Item = (&Model, &Target)> {
    catalog.models().iter().flat_map(|model| model.targets.iter().map(move |target| (model, target)))
}

/// Use of limits by target, owner and name of the limit.
type Uses = HashMap<(String, String, String), f64>;

/// The use of limits that a running gateway reports; none, with a remark, if there is no such gateway.
fn uses(args: &ModelsArgs) -> Uses {
    let asked = AskArg { at: AdminArg { admin: None }, send_token: false };
    let read = || {
        let listener = Listener::with_token(&asked, &args.config)?;
        list_targets(&mut |path| {
            let body = read(&listener, path, &asked, &args.config)?;
            serde_json::from_slice::<Value>(&body).map_err(Failure::failed)
        })
    };
    let targets = read().unwrap_or_else(|why| {
        remark(&format!("The use of limits is not known: {}", why.text()));
        Vec::new()
    });
    let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
    let mut used = Uses::new();
    for target in &targets {
        for limit in target["limits"].as_array().into_iter().flatten() {
            let per = limit["per"].as_str().map_or(String::new(), |per| format!("/{per}"));
            let models = limit["models"].as_array().into_iter().flatten().map(text).collect::<Vec<_>>().join(",");
            let models = if models.is_empty() { models } else { format!(":{models}") };
            let name = format!("{}{per}{models}", text(&limit["resource"]));
            used.insert((text(&target["target"]), text(&limit["name"]), name), limit["used"].as_f64().unwrap_or(0.0));
        }
    }
    used
}

/// The limits that attempts at a target count in.
fn limit_lines(config: &Config, target: &Target, used: &Uses) -> Vec<LimitLine> {
    let limits = config.providers.get(target.provider).map(|provider| limits_of(target, provider)).unwrap_or_default();
    let line = |(of, cap): (String, Cap)| {
        let key = (target.label.to_string(), of, cap.name());
        LimitLine { limit: cap.text(), used: used.get(&key).copied(), of: key.1 }
    };
    limits.into_iter().map(line).collect()
}

fn target_lines<'a>(config: &'a Config, used: &Uses) -> Vec<TargetLine<'a>> {
    let catalog = &config.catalog;
    let line = |(model, target): (&'_ Model, &'_ Target)| {
        let (prices, units) = model.prices_at(Some(target));
        let (prices, units, price_tiers) = (PriceLine::new(&prices.base), UnitLine::new(units), tier_lines(prices));
        (target.prices.as_ref().map_or(model.priced, |own| own.priced), prices, units, price_tiers)
    };
    let all = targets(catalog).map(|one| (one, line(one)));
    all.map(|((model, target), (priced, prices, units, price_tiers))| TargetLine {
        model: &model.id,
        target: &target.label,
        priced,
        prices,
        units,
        price_tiers,
        limits: limit_lines(config, target, used),
    })
    .collect()
}

/// Targets with their prices: `none` if a price is missing, `-` if only units have one.
fn target_table(config: &Config, used: &Uses) -> String {
    let mut table = Table::new(&[
        ("MODEL", Align::Left),
        ("TARGET", Align::Left),
        ("INPUT $/1M", Align::Right),
        ("OUTPUT $/1M", Align::Right),
        ("CACHE READ $/1M", Align::Right),
        ("CACHE WRITE $/1M", Align::Right),
        ("LIMITS", Align::Left),
    ]);
    for (model, target) in targets(&config.catalog) {
        let own = target.prices.as_deref();
        let (has_tokens, priced) =
            own.map_or((model.has_token_prices, model.has_token_prices), |own| (own.has_tokens, own.priced));
        let (prices, units) = model.prices_at(Some(target));
        let price = |of: PriceOf| match has_tokens {
            true => tiered(prices, of),
            false => if priced || !units.is_empty() { "-" } else { "none" }.to_string(),
        };
        let mut row = vec![model.id.to_string(), target.label.to_string()];
        row.extend(KEYS[..4].iter().map(|(_, of)| price(*of)));
        let limit = |LimitLine { of, limit, used }: LimitLine| {
            let used = used.map_or(String::new(), |used| format!(" ({used} used)"));
            format!("{of} {limit}{used}")
        };
        let limits: Vec<String> = limit_lines(config, target, used).into_iter().map(limit).collect();
        row.push(if limits.is_empty() { "-".to_string() } else { limits.join(", ") });
        table.row(row);
    }
    table.text()
}

/// A price, followed by those of the tiers that differ from the tier below: `1.25, >200K 2.50`.
fn tiered(prices: &ModelPrices, of: PriceOf) -> String {
    let (mut text, mut last) = (price_text(of(&prices.base)), of(&prices.base));
    for tier in prices.tiers.iter().filter(|tier| std::mem::replace(&mut last, of(&tier.prices)) != of(&tier.prices)) {
        text.push_str(&format!(", >{} {}", context_text(tier.above), price_text(of(&tier.prices))));
    }
    text
}

fn table(catalog: &Catalog) -> String {
    let mut table = Table::new(&[
        ("NAME", Align::Left),
        ("ID", Align::Left),
        ("CONTEXT", Align::Right),
        ("INPUT $/1M", Align::Right),
        ("OUTPUT $/1M", Align::Right),
        ("SERVES", Align::Left),
    ]);
    for model in catalog.models() {
        let prices = match (model.discovered, model.priced) {
            (true, _) => ["discovered".to_string(), "-".to_string()],
            _ if model.priced && !model.has_token_prices => ["-".to_string(), "-".to_string()],
            (_, false) => ["none".to_string(), "none".to_string()],
            _ => [tiered(&model.prices, |prices| prices.input), tiered(&model.prices, |prices| prices.output)],
        };
        let mut row = vec![model.name.clone(), model.id.to_string(), model.context_text.clone()];
        row.extend(prices);
        row.push(model.serves_text());
        table.row(row);
    }
    table.text()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::demo::config::tests::parsed;
    use crate::policy::config::Source;

    #[test]
    fn the_table_shows_name_id_abbreviated_context_and_prices() {
        let text = table(&parsed().catalog);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 7);
        let first: Vec<&str> = lines[1].split_whitespace().collect();
        assert_eq!(first, ["Heron", "Large", "heron-large", "1M", "2.50", "10.00", "chat"]);
        assert!(
            lines[3].ends_with(
                " chat, embeddings, rerank, completions, speech, images, moderations, transcriptions, translations"
            ),
            "{text}"
        );
    }

    #[test]
    fn json_has_integer_and_abbreviated_form() {
        let json = serde_json::to_value(lines(&parsed().catalog)).unwrap();
        assert_eq!(json[0]["context"], "1M");
        assert_eq!(json[0]["context_window"], 1_000_000);
        assert_eq!(json[0]["input_price"], 2.5);
        assert_eq!(json[0]["serves"], serde_json::json!(["chat"]));
    }

    #[test]
    fn targets_are_listed_with_the_prices_that_apply_to_them() {
        let text = "[[providers]]\nname = \"p\"\nshape = \"chat\"\nbase_url = \"http://10.0.0.1/v1\"\n\
            limits = [\"requests=9/1m\"]\n[[plans]]\nname = \"t\"\n[[models]]\nid = \"a\"\ncontext = \"1K\"\ninput_price = 1\noutput_price = 2\n\
            targets = [{ provider = \"p\" }, { provider = \"p\", model = \"b\", output_price = 3 }]\n\
            [[models]]\nid = \"c\"\ncontext = \"1K\"\ntargets = [{ provider = \"p\" }]\n";
        let read = |_: &str| Err(std::io::ErrorKind::NotFound.into());
        let source = Source { file: "t", text, env: &|_| None, read: &read, run: &Source::no_program };
        let config = Config::parse(&source).unwrap();
        let used = Uses::from([(("p/b".to_string(), "p".to_string(), "requests/1m".to_string()), 3.0)]);
        let page = target_table(&config, &used);
        let rows: Vec<Vec<&str>> = page.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[0], ["a", "p/a", "1.00", "2.00", "1.00", "1.00", "p", "requests=9/1m"]);
        assert_eq!(rows[1], ["a", "p/b", "1.00", "3.00", "1.00", "1.00", "p", "requests=9/1m", "(3", "used)"]);
        assert_eq!(rows[2], ["c", "p/c", "none", "none", "none", "none", "p", "requests=9/1m"]);
        let json = serde_json::to_value(target_lines(&config, &used)).unwrap();
        assert_eq!(json[1]["limits"], serde_json::json!([{ "of": "p", "limit": "requests=9/1m", "used": 3.0 }]));
        assert_eq!((&json[1]["target"], &json[1]["output_price"]), (&"p/b".into(), &3.0.into()));
        assert_eq!((&json[0]["priced"], &json[2]["priced"]), (&true.into(), &false.into()));
    }

    #[test]
    fn price_tiers_are_shown_if_they_differ() {
        let at = |above: u64, input: u64| PriceTier { above, prices: Prices { input, output: 7, ..Prices::default() } };
        let base = Prices { input: 1_250_000, output: 7, ..Prices::default() };
        let prices = ModelPrices { base, tiers: [at(200_000, 2_500_000), at(1_000_000, 2_500_000)].into() };
        assert_eq!(tiered(&prices, |prices| prices.input), "1.25, >200K 2.50");
        assert_eq!(tiered(&prices, |prices| prices.output), "0.000007");
        let json = serde_json::to_value(TierLine { above: 5, prices: PriceLine::new(&base) }).unwrap();
        assert_eq!((&json["above"], &json["input_price"]), (&serde_json::json!(5), &serde_json::json!(1.25)));
    }
}
