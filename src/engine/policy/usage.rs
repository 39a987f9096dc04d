//! Token counts of a request and their cost. Written by `gateway`, stored by `io`, printed by `cli`. A value names the
//! source of its numbers.

use super::prices::{ModelPrices, Prices};
use crate::base::limits;
use crate::base::words::words;
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
    /// Part of `cache_write`: tokens cached for an hour. They have their own price, and the ledger does not store their
    /// number.
    pub hour_write: u32,
    /// Images returned, or milliseconds of the audio that was read, if the model has prices of units. The ledger does
    /// not store their number.
    pub units: u32,
    /// Requests answered at least in part, if the model has a price for them. The ledger does not store their number.
    pub requests: u8,
    /// Completion tokens, reasoning included.
    pub out: u64,
    /// Source of the counts.
    pub source: UsageSource,
}

impl Usage {
    /// Usage with upper bounds, since a provider can report absurd numbers.
    pub fn bounded(self) -> Usage {
        let cut = |tokens: u64| tokens.min(limits::ROW_TOKENS_MAX);
        let [uncached_in, cache_read] = [self.uncached_in, self.cache_read].map(cut);
        let [cache_write, out] = [self.cache_write, self.out].map(cut);
        Usage { uncached_in, cache_read, cache_write, out, ..self }
    }

    /// Sum of `self` and `other`.
    pub fn plus(self, other: Usage) -> Usage {
        let source = match (self.source, other.source) {
            (one, UsageSource::None) | (UsageSource::None, one) => one,
            (one, two) if one == two => one,
            _ => UsageSource::Partial,
        };
        Usage {
            uncached_in: self.uncached_in.saturating_add(other.uncached_in),
            cache_read: self.cache_read.saturating_add(other.cache_read),
            cache_write: self.cache_write.saturating_add(other.cache_write),
            hour_write: self.hour_write.saturating_add(other.hour_write),
            units: self.units.saturating_add(other.units),
            requests: self.requests.saturating_add(other.requests),
            out: self.out.saturating_add(other.out),
            source,
        }
    }

    /// Returns `self` without `other`, which is a part of it.
    pub fn minus(self, other: Usage) -> Usage {
        Usage {
            uncached_in: self.uncached_in.saturating_sub(other.uncached_in),
            cache_read: self.cache_read.saturating_sub(other.cache_read),
            cache_write: self.cache_write.saturating_sub(other.cache_write),
            hour_write: self.hour_write.saturating_sub(other.hour_write),
            units: self.units.saturating_sub(other.units),
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
        let pico = of(self.uncached_in, prices.input)
            + of(self.cache_read, prices.cache_read)
            + of(self.cache_write.saturating_sub(self.hour_write.into()), prices.cache_write)
            + of(self.cache_write.min(self.hour_write.into()), prices.hour_write)
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
        let usage = Usage { cache_write: 3000, hour_write: 2000, ..Usage::default() };
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
                hour_write: hour as u32,
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
