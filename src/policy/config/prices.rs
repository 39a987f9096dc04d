//! Prices of a model or a target: numbers, or tables with a price for each tier of prompt lengths.

use crate::policy::prices::{
    KEYS, ModelPrices, PriceTier, Prices, TIERS_MAX, TargetPrices, UNIT_KEYS, UnitPrices, WrittenPrices,
};
use crate::policy::settings::reader::{Field, Reader, Section};
use crate::policy::settings::units;
use crate::policy::vendors::capabilities::TOKENS_MAX;
use crate::wire::{ModelEndpoint, Passthrough};

/// Rule of one price.
const PRICE: &str = "USD per 1M tokens, from 0 to 1000000 with at most six decimals";

/// Rule of the price of a unit.
const UNIT_PRICE: &str = "US dollars, from 0 to 1000000 with at most six decimals";

/// Prices as they are written for a model or a target.
#[derive(Clone, PartialEq, Default)]
pub(super) struct WrittenList {
    /// In the order of [`KEYS`].
    tokens: [Option<WrittenPrices>; KEYS.len()],
    units: UnitPrices,
}

/// Reads all prices of a model or a target.
#[inline(never)]
pub(super) fn read(reader: &mut Reader<'_>, s: &mut Section<'_>) -> WrittenList {
    let [request, image, minute] = UNIT_KEYS.map(|(key, _)| {
        let field = s.take(key)?;
        let price = field.decimal().and_then(units::price);
        if price.is_none() {
            reader.wrong(&field, format!("expected {UNIT_PRICE}"));
        }
        price
    });
    let tokens = KEYS.map(|(key, _)| s.take(key).and_then(|field| read_key(reader, field)));
    WrittenList { tokens, units: UnitPrices { request, image, minute } }
}

impl WrittenList {
    /// True if no price is written.
    pub(super) fn is_empty(&self) -> bool {
        *self == WrittenList::default()
    }

    /// These prices of a target, and those of its model where it has none.
    pub(super) fn over(&self, model: &WrittenList) -> WrittenList {
        let (own, other) = (&self.units, &model.units);
        let mut tokens = model.tokens.clone();
        for (price, own) in tokens.iter_mut().zip(&self.tokens).filter(|(_, own)| own.is_some()) {
            price.clone_from(own);
        }
        let units = UnitPrices {
            request: own.request.or(other.request),
            image: own.image.or(other.image),
            minute: own.minute.or(other.minute),
        };
        WrittenList { tokens, units }
    }

    /// Key of the price that is missing, if others of tokens are written.
    pub(super) fn missing(&self, serves: &[ModelEndpoint]) -> Option<&'static str> {
        let is_there = [self.tokens[0].is_some(), self.tokens[1].is_some() || !has_output(serves)];
        let missing = if is_there[0] { "output_price" } else { "input_price" };
        (self.tokens.iter().any(Option::is_some) && is_there != [true; 2]).then_some(missing)
    }

    /// The written prices in the order of [`KEYS`].
    pub(super) fn unused(self) -> Vec<WrittenPrices> {
        self.tokens.map(Option::unwrap_or_default).into()
    }

    /// The list as prices of requests to these endpoints. There are prices if input and output are both written, and 0
    /// counts, or if those of units cover all endpoints. `is_free`: a model without any price costs nothing.
    pub(super) fn prices(&self, serves: &[ModelEndpoint], is_free: bool) -> TargetPrices {
        let mut read = self.tokens.clone();
        // A model without completion tokens needs no output price.
        if read[0].is_some() && read[1].is_none() && !has_output(serves) {
            read[1] = Some(vec![(0, 0)]);
        }
        let units = self.units;
        if read[0].is_none() || read[1].is_none() {
            let is_covered = !serves.is_empty() && serves.iter().all(|served| units.cover(*served));
            let priced = read.iter().all(Option::is_none) && (is_free || is_covered);
            return TargetPrices { units, priced, has_tokens: priced && units.is_empty(), ..TargetPrices::default() };
        }
        let mut thresholds: Vec<u64> = read.iter().flatten().flatten().map(|(above, _)| *above).collect();
        thresholds.sort_unstable();
        thresholds.dedup();
        let tiers = thresholds.into_iter().map(|above| PriceTier { above, prices: prices_at(&read, above) });
        let mut tiers: Vec<PriceTier> = tiers.collect();
        let base = tiers.remove(0).prices;
        let tokens = ModelPrices { base, tiers: tiers.into() };
        TargetPrices { tokens, units, has_tokens: true, priced: true }
    }
}

/// True if an answer of one of the endpoints has completion tokens.
fn has_output(serves: &[ModelEndpoint]) -> bool {
    let is_billed = |passthrough: Passthrough| passthrough.generates() || passthrough.is_media();
    serves.is_empty() || serves.iter().any(|served| served.as_passthrough().is_none_or(is_billed))
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

fn read_key(reader: &mut Reader<'_>, field: Field<'_>) -> Option<WrittenPrices> {
    if field.is_table() { read_tiers(reader, field) } else { Some(vec![(0, read_price(reader, &field)?)]) }
}

fn read_price(reader: &mut Reader<'_>, field: &Field<'_>) -> Option<u64> {
    let price = field.decimal().and_then(units::price);
    if price.is_none() {
        reader.wrong(field, format!("expected {PRICE}, or a table such as `{{ \"0\" = 1.25, \"200K\" = 2.5 }}`"));
    }
    price
}

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
