//! Prices of a model: numbers, or tables with a price for each tier of prompt lengths.

use crate::policy::catalog::TOKENS_MAX;
use crate::policy::prices::{KEYS, ModelPrices, PriceTier, Prices, TIERS_MAX, UNIT_KEYS, UnitPrices, WrittenPrices};
use crate::policy::settings::reader::{Field, Reader, Section};
use crate::policy::settings::units;
use crate::wire::{ModelEndpoint, Passthrough};

/// Rule of one price.
const PRICE: &str = "USD per 1M tokens, from 0 to 1000000 with at most six decimals";

/// Rule of the price of a unit.
const UNIT_PRICE: &str = "US dollars, from 0 to 1000000 with at most six decimals";

/// Reads the prices of units.
#[inline]
pub(super) fn read_units(reader: &mut Reader<'_>, s: &mut Section<'_>) -> UnitPrices {
    let [request, image, minute] = UNIT_KEYS.map(|(key, _)| {
        let field = s.take(key)?;
        let price = field.decimal().and_then(units::price);
        if price.is_none() {
            reader.wrong(&field, format!("expected {UNIT_PRICE}"));
        }
        price
    });
    UnitPrices { request, image, minute }
}

/// Reads the prices of tokens. Returns true with them if the model has prices: input and output are both required, and
/// 0 counts, unless `units` covers all that it serves. If one of the two is missing, the third value has the written
/// prices in the order of [`KEYS`]. `is_free`: a model without any price costs nothing.
#[inline]
pub(super) fn read(
    reader: &mut Reader<'_>,
    s: &mut Section<'_>,
    serves: &[ModelEndpoint],
    units: &UnitPrices,
    is_free: bool,
) -> (Option<ModelPrices>, bool, Vec<WrittenPrices>) {
    let mut read = KEYS.map(|(key, _)| s.take(key).and_then(|field| read_key(reader, field)));
    // A model without completion tokens needs no output price.
    let is_billed = |passthrough: Passthrough| passthrough.generates() || passthrough.is_media();
    let answers = |endpoint: &ModelEndpoint| endpoint.as_passthrough().is_none_or(is_billed);
    if !serves.is_empty() && !serves.iter().any(answers) && read[0].is_some() && read[1].is_none() {
        read[1] = Some(vec![(0, 0)]);
    }
    if read[0].is_none() || read[1].is_none() {
        let is_priced = read.iter().any(Option::is_some);
        if is_priced {
            let path = s.path_of(if read[0].is_none() { "input_price" } else { "output_price" });
            reader.warn(s.start(), path, "missing, so the model is unpriced; set both prices (0 = free)");
        }
        let unused = if is_priced { read.map(Option::unwrap_or_default).into() } else { Vec::new() };
        let is_covered = !serves.is_empty() && serves.iter().all(|served| units.cover(*served));
        return (None, !is_priced && (is_free || is_covered), unused);
    }
    let mut thresholds: Vec<u64> = read.iter().flatten().flatten().map(|(above, _)| *above).collect();
    thresholds.sort_unstable();
    thresholds.dedup();
    let tiers = thresholds.into_iter().map(|above| PriceTier { above, prices: prices_at(&read, above) });
    let mut tiers: Vec<PriceTier> = tiers.collect();
    let base = tiers.remove(0).prices;
    (Some(ModelPrices { base, tiers: tiers.into() }), true, Vec::new())
}

/// Prices of the tier that begins at `above`: of each key the highest tier up to there.
fn prices_at(read: &[Option<WrittenPrices>; 5], above: u64) -> Prices {
    let at = |tiers: &Option<WrittenPrices>| {
        tiers.as_ref()?.iter().rev().find(|(from, _)| *from <= above).map(|(_, price)| *price)
    };
    let [input, output, cache_read, cache_write, hour_write] = read.each_ref().map(at);
    let input = input.unwrap_or_default();
    let cache_write = cache_write.unwrap_or(input);
    Prices {
        input,
        output: output.unwrap_or_default(),
        cache_read: cache_read.unwrap_or(input),
        cache_write,
        hour_write: hour_write.unwrap_or(cache_write),
    }
}

#[inline]
fn read_key(reader: &mut Reader<'_>, field: Field<'_>) -> Option<WrittenPrices> {
    if field.is_table() { read_tiers(reader, field) } else { Some(vec![(0, read_price(reader, &field)?)]) }
}

#[inline]
fn read_price(reader: &mut Reader<'_>, field: &Field<'_>) -> Option<u64> {
    let price = field.decimal().and_then(units::price);
    if price.is_none() {
        reader.wrong(field, format!("expected {PRICE}, or a table such as `{{ \"0\" = 1.25, \"200K\" = 2.5 }}`"));
    }
    price
}

#[inline]
fn read_tiers(reader: &mut Reader<'_>, field: Field<'_>) -> Option<WrittenPrices> {
    let (at, path) = (field.start(), field.path.clone());
    let entries = reader.as_table(field)?.take_rest();
    let mut tiers = WrittenPrices::new();
    for (name, field) in &entries {
        let above = match name.as_str() {
            "0" => Some(0),
            text => units::context(text).filter(|tokens| (1..=TOKENS_MAX).contains(tokens)),
        };
        let Some(above) = above else {
            reader.error(
                field,
                format!("`{name}` is no number of prompt tokens: expected \"0\", \"200K\" or \"272000\""),
            );
            return None;
        };
        if tiers.iter().any(|(other, _)| *other == above) {
            reader.error(field, format!("`{name}` is there already in another form: remove one of them"));
            return None;
        }
        tiers.push((above, read_price(reader, field)?));
    }
    tiers.sort_unstable_by_key(|(above, _)| *above);
    match tiers.first() {
        Some((0, _)) if tiers.len() <= TIERS_MAX + 1 => return Some(tiers),
        Some((0, _)) => reader.report(at, path, format!("more than {} prices: remove some", TIERS_MAX + 1)),
        _ => reader.report(at, path, "expected also a price \"0\", for short prompts"),
    }
    None
}
