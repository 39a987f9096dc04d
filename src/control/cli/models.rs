//! `tollgate models`: the catalog as a table, including the models that providers list at the moment.

use super::args::{ConfigArg, ModelsArgs};
use super::discover;
use super::load::{self, Secrets};
use super::output::{Align, Failure, Table, print, print_json, warn};
use crate::policy::catalog::{Catalog, context_text};
use crate::policy::config::Config;
use crate::policy::prices::{ModelPrices, PriceTier, Prices, price_text};
use crate::wire::ModelEndpoint;
use serde::Serialize;

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
    /// Prices of a relayed request, of an image and of a minute of audio, in US dollars.
    #[serde(skip_serializing_if = "Option::is_none")]
    price_per_request: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    price_per_image: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    price_per_minute: Option<f64>,
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

/// Lists the catalog in the order of the configuration.
pub fn run(args: &ModelsArgs) -> Result<(), Failure> {
    let high = discovered(&args.config)?;
    if args.json { print_json(&lines(&high.catalog)) } else { print(&table(&high.catalog)) }
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
    let tiers = |prices: &ModelPrices| {
        let line = |tier: &PriceTier| TierLine { above: tier.above, prices: PriceLine::new(&tier.prices) };
        prices.tiers.iter().map(line).collect()
    };
    let line = catalog.models().iter().map(|model| ModelLine {
        name: &model.name,
        id: &model.id,
        owned_by: &model.owned_by,
        context: &model.context_text,
        context_window: model.context,
        prices: PriceLine::new(&model.prices.base),
        price_per_request: model.units.request.map(usd),
        price_per_image: model.units.image.map(usd),
        price_per_minute: model.units.minute.map(usd),
        price_tiers: tiers(&model.prices),
        serves: &model.serves,
        priced: model.priced,
        discovered: model.discovered,
    });
    line.collect()
}

/// A price, followed by those of the tiers that differ from the tier below: `1.25, >200K 2.50`.
fn tiered(prices: &ModelPrices, of: fn(&Prices) -> u64) -> String {
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
