//! Token counts of a request and their cost. Written by `gateway`, stored by `io`, printed by `cli`. A value names the
//! source of its numbers.

use super::prices::{ModelPrices, Prices};
use crate::base::limits;
use crate::base::words;
use serde::{Deserialize, Serialize};

words! {
    /// Source of the numbers of a [`Usage`].
    #[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum UsageSource {
        /// The provider reported all of it.
        Provider = "provider",
        /// The provider reported some of it, the remainder is estimated.
        Partial = "partial",
        /// Estimated from the relayed content.
        Estimated = "estimated",
        /// No tokens were used: the request failed before any.
        #[default]
        None = "none",
    }
}

words! {
    /// Source of a cost.
    #[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum CostSource {
        /// The configured prices.
        #[default]
        Prices = "prices",
        /// The provider has stated it.
        Provider = "provider",
    }
}

/// Basis of the cost of an attempt, besides its counts of tokens. The ledger stores only the cost.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum CostBasis {
    /// The prices.
    Prices {
        /// Part of the tokens written to the cache: those cached for an hour. They have their own price.
        hour_write: u32,
        /// Images returned, or milliseconds of the audio that was read, if there are prices of units.
        units: u32,
    },
    /// Nano-dollars that the provider has stated, in two halves: a `u64` would enlarge every usage.
    Stated([u32; 2]),
}

impl Default for CostBasis {
    fn default() -> CostBasis {
        CostBasis::Prices { hour_write: 0, units: 0 }
    }
}

impl CostBasis {
    /// Tokens cached for an hour, and units, if the prices apply.
    pub fn of_prices(self) -> (u32, u32) {
        if let CostBasis::Prices { hour_write, units } = self { (hour_write, units) } else { (0, 0) }
    }

    /// This one together with that of earlier attempts; a stated cost is that of the last attempt alone.
    fn plus(self, other: CostBasis) -> CostBasis {
        let CostBasis::Prices { hour_write, units } = self else { return self };
        let (hour, more) = other.of_prices();
        CostBasis::Prices { hour_write: hour_write.saturating_add(hour), units: units.saturating_add(more) }
    }

    /// This one without that of earlier attempts.
    fn minus(self, other: CostBasis) -> CostBasis {
        let CostBasis::Prices { hour_write, units } = self else { return self };
        let (hour, less) = other.of_prices();
        CostBasis::Prices { hour_write: hour_write.saturating_sub(hour), units: units.saturating_sub(less) }
    }
}

impl CostSource {
    /// True for [`CostSource::Prices`].
    pub fn is_prices(&self) -> bool {
        *self == CostSource::Prices
    }
}

impl UsageSource {
    /// Reads the output of [`UsageSource::as_str`]; `None` for any other text.
    pub fn from_text(text: &str) -> Option<UsageSource> {
        UsageSource::ALL.into_iter().find(|source| source.as_str() == text)
    }
}

/// Tokens of one request by the upstream's own tokenizer; the four counts do not overlap.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Prompt tokens neither read from nor written to a cache.
    pub uncached_in: u64,
    /// Prompt tokens read from the provider's cache.
    pub cache_read: u64,
    /// Prompt tokens written to the provider's cache.
    pub cache_write: u64,
    /// Basis of the cost besides the counts.
    pub basis: CostBasis,
    /// Requests answered at least in part, if the model has a price for them. The ledger does not store their number.
    pub requests: u8,
    /// Completion tokens, reasoning included.
    pub out: u64,
    /// Source of the counts.
    pub source: UsageSource,
    /// Source of the cost.
    pub cost_source: CostSource,
}

impl Usage {
    /// Usage with upper bounds, since a provider can report absurd numbers.
    #[inline]
    pub fn bounded(self) -> Usage {
        let cut = |tokens: u64| tokens.min(limits::ROW_TOKENS_MAX);
        let [uncached_in, cache_read] = [self.uncached_in, self.cache_read].map(cut);
        let [cache_write, out] = [self.cache_write, self.out].map(cut);
        Usage { uncached_in, cache_read, cache_write, out, ..self }
    }

    /// The usage with the cost of the last attempt that its provider has stated, if it has.
    pub fn with_stated(self, nano: Option<u64>) -> Usage {
        let Some(nano) = nano else { return self };
        let basis = CostBasis::Stated([(nano >> 32) as u32, nano as u32]);
        Usage { cost_source: CostSource::Provider, basis, ..self }
    }

    /// Nano-dollars that the provider of the last attempt has stated.
    #[inline]
    pub fn stated_nano(&self) -> Option<u64> {
        match self.basis {
            CostBasis::Stated([high, low]) => Some(u64::from(high) << 32 | u64::from(low)),
            CostBasis::Prices { .. } => None,
        }
    }

    /// Sum of `self` and `other`, which is of earlier attempts.
    pub fn plus(self, other: Usage) -> Usage {
        let source = match (self.source, other.source) {
            (one, UsageSource::None) | (UsageSource::None, one) => one,
            (one, two) if one == two => one,
            _ => UsageSource::Partial,
        };
        let cost_source = match (self.source, other.source) {
            (_, UsageSource::None) => self.cost_source,
            (UsageSource::None, _) => other.cost_source,
            _ if self.cost_source == other.cost_source => self.cost_source,
            _ => CostSource::Prices,
        };
        Usage {
            uncached_in: self.uncached_in.saturating_add(other.uncached_in),
            cache_read: self.cache_read.saturating_add(other.cache_read),
            cache_write: self.cache_write.saturating_add(other.cache_write),
            basis: self.basis.plus(other.basis),
            requests: self.requests.saturating_add(other.requests),
            out: self.out.saturating_add(other.out),
            source,
            cost_source,
        }
    }

    /// Returns `self` without `other`, which is a part of it.
    pub fn minus(self, other: Usage) -> Usage {
        Usage {
            uncached_in: self.uncached_in.saturating_sub(other.uncached_in),
            cache_read: self.cache_read.saturating_sub(other.cache_read),
            cache_write: self.cache_write.saturating_sub(other.cache_write),
            basis: self.basis.minus(other.basis),
            requests: self.requests.saturating_sub(other.requests),
            out: self.out.saturating_sub(other.out),
            ..self
        }
    }

    /// All prompt tokens, cached ones included: `prompt_tokens` of the chat shape.
    pub fn prompt(&self) -> u64 {
        self.uncached_in.saturating_add(self.cache_read).saturating_add(self.cache_write)
    }

    /// Tokens that count against an allowance: prompt and completion, cached ones included.
    pub fn total(&self) -> u64 {
        self.prompt().saturating_add(self.out)
    }

    /// Cost in nano-dollars, rounded half up once over the whole sum; saturates at `u64::MAX`.
    #[inline]
    pub fn cost_nano(&self, prices: &Prices) -> u64 {
        let of = |tokens: u64, price: u64| u128::from(tokens) * u128::from(price);
        let (hour_write, _) = self.basis.of_prices();
        let pico = of(self.uncached_in, prices.input)
            + of(self.cache_read, prices.cache_read)
            + of(self.cache_write.saturating_sub(hour_write.into()), prices.cache_write)
            + of(self.cache_write.min(hour_write.into()), prices.hour_write)
            + of(self.out, prices.output);
        u64::try_from((pico + 500) / 1000).unwrap_or(u64::MAX)
    }
}

/// Highest possible cost of a prompt and a completion in nano-dollars, for any number of tokens read from or written to
/// a cache, and in each tier that the prompt may be in.
pub fn most_nano(prompt: u64, completion: u64, prices: &ModelPrices) -> u64 {
    let usage = Usage { uncached_in: prompt, out: completion, ..Usage::default() };
    let cost = |prices: &Prices| {
        let Prices { input, cache_read, cache_write, hour_write, .. } = *prices;
        usage.cost_nano(&Prices { input: input.max(cache_read).max(cache_write).max(hour_write), ..*prices })
    };
    prices.possible(prompt).map(cost).max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::prices::PriceTier;

    const PRICES: Prices =
        Prices { input: 250_000, output: 2_000_000, cache_read: 25_000, cache_write: 312_500, hour_write: 312_500 };

    #[test]
    fn a_million_tokens_cost_their_price() {
        let usage = Usage { uncached_in: 1_000_000, ..Usage::default() };
        assert_eq!(usage.cost_nano(&PRICES), 250_000_000);
        let usage = Usage { out: 1_000_000, ..Usage::default() };
        assert_eq!(usage.cost_nano(&PRICES), 2_000_000_000);
    }

    #[test]
    fn the_four_kinds_of_tokens_are_priced_separately_and_rounded_once() {
        let usage = Usage { uncached_in: 1, cache_read: 1, cache_write: 1, out: 1, ..Usage::default() };
        // 250 + 25 + 312.5 + 2000 nano-dollars
        assert_eq!(usage.cost_nano(&PRICES), 2588);
        assert_eq!((usage.prompt(), usage.total()), (3, 4));
    }

    #[test]
    fn cache_writes_for_an_hour_have_their_own_price() {
        let dear = Prices { hour_write: 500_000, ..PRICES };
        let basis = CostBasis::Prices { hour_write: 2000, units: 0 };
        let usage = Usage { cache_write: 3000, basis, ..Usage::default() };
        assert_eq!((usage.prompt(), usage.cost_nano(&PRICES)), (3000, 937_500));
        assert_eq!(usage.cost_nano(&dear), 312_500 + 1_000_000);
        assert_eq!(usage.plus(usage).bounded().cost_nano(&dear), 2 * usage.cost_nano(&dear));
        assert_eq!(most_nano(3000, 0, &dear.into()), 3000 * 500);
        // The hour's price applies to no more tokens than were written to the cache.
        assert_eq!(Usage { cache_write: 1, ..usage }.cost_nano(&dear), 500);
    }

    #[test]
    fn absurd_counts_saturate_instead_of_wrapping() {
        let usage = Usage { uncached_in: u64::MAX, out: u64::MAX, cache_read: 1, ..Usage::default() };
        assert_eq!((usage.total(), usage.cost_nano(&PRICES)), (u64::MAX, u64::MAX));
    }

    #[test]
    fn the_highest_possible_cost_is_at_least_the_actual_cost() {
        assert_eq!(most_nano(1_000_000, 1_000_000, &PRICES.into()), 312_500_000 + 2_000_000_000);
        let cheap = Prices { cache_write: 1, hour_write: 1, cache_read: 2, ..PRICES };
        assert_eq!(most_nano(1_000_000, 0, &cheap.into()), 250_000_000);
        for (read, write) in [(0, 0), (7, 0), (0, 7), (3, 4)] {
            let used = Usage {
                uncached_in: 7 - read - write,
                cache_read: read,
                cache_write: write,
                out: 3,
                ..Usage::default()
            };
            assert!(used.cost_nano(&PRICES) <= most_nano(7, 3, &PRICES.into()));
        }
        assert_eq!(most_nano(u64::MAX, u64::MAX, &PRICES.into()), u64::MAX);
    }

    #[test]
    fn a_reservation_covers_each_tier_that_the_prompt_may_be_in() {
        let tiers = [
            PriceTier { above: 100, prices: Prices { input: 500_000, ..PRICES } },
            PriceTier { above: 1000, prices: Prices { output: 9_000_000, ..PRICES } },
        ];
        let prices = ModelPrices { base: PRICES, tiers: tiers.into() };
        let base = ModelPrices::from(PRICES);
        assert_eq!(most_nano(75, 10, &prices), most_nano(75, 10, &base));
        assert_eq!(most_nano(76, 10, &prices), 76 * 500 + 10 * 2000);
        // Input costs more in the tier below, and output costs more in this one.
        assert_eq!(most_nano(751, 0, &prices), 751 * 500);
        assert_eq!(most_nano(751, 1000, &prices), 751 * 312 + 376 + 1000 * 9000);
    }

    #[test]
    fn cost_equals_an_independent_model_in_random_tiers() {
        let mut seed = 1_u64;
        let mut random = |most: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % (most + 1)
        };
        for _ in 0..100_000 {
            let mut one =
                || [random(5_000_000), random(9_000_000), random(500_000), random(6_000_000), random(8_000_000)];
            let written: Vec<(u64, [u64; 5])> = vec![(0, one()), (200, one()), (272, one())];
            let [read, write, hour, fresh, out] = [random(150), random(150), random(200), random(150), random(400)];
            let usage = Usage {
                uncached_in: fresh,
                cache_read: read,
                cache_write: write,
                basis: CostBasis::Prices { hour_write: hour as u32, units: 0 },
                out,
                ..Usage::default()
            };
            let prices = |(_, [input, output, cache_read, cache_write, hour_write]): (u64, [u64; 5])| Prices {
                input,
                output,
                cache_read,
                cache_write,
                hour_write,
            };
            let tier = |index: usize| PriceTier { above: written[index].0, prices: prices(written[index]) };
            let model = ModelPrices { base: prices(written[0]), tiers: [tier(1), tier(2)].into() };
            // Price every token separately, in pico-dollars.
            let prompt = fresh + read + write;
            let price = written.iter().rfind(|(above, _)| *above == 0 || prompt > *above).unwrap().1;
            let hour = hour.min(write);
            let counts =
                [(fresh, price[0]), (out, price[1]), (read, price[2]), (write - hour, price[3]), (hour, price[4])];
            let pico: u64 = counts.iter().map(|(tokens, price)| (0..*tokens).map(|_| price).sum::<u64>()).sum();
            let expected = pico / 1000 + u64::from(pico % 1000 >= 500);
            assert_eq!(usage.cost_nano(model.of(prompt)), expected, "{usage:?} {model:?}");
            assert!(most_nano(prompt, out, &model) >= expected, "{usage:?} {model:?}");
        }
    }

    #[test]
    fn every_source_reads_back_what_it_writes() {
        for text in ["provider", "partial", "estimated", "none"] {
            assert_eq!(UsageSource::from_text(text).map(UsageSource::as_str), Some(text));
        }
        assert_eq!(UsageSource::from_text("Provider"), None);
    }
}
