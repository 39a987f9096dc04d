//! Token counts of a request and their cost. Written by `gateway`, stored by `io`, printed by `cli`. A value names the
//! source of its numbers.

use super::catalog::Prices;
use crate::base::limits;
use serde::{Deserialize, Serialize};

/// Source of the numbers of a [`Usage`].
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UsageSource {
    /// The provider reported all of it.
    Provider,
    /// The provider reported some of it, the remainder is estimated.
    Partial,
    /// Estimated from the relayed content.
    Estimated,
    /// No tokens were used: the request failed before any.
    #[default]
    None,
}

impl UsageSource {
    /// Name in logs, rows and reports.
    pub fn as_str(self) -> &'static str {
        match self {
            UsageSource::Provider => "provider",
            UsageSource::Partial => "partial",
            UsageSource::Estimated => "estimated",
            UsageSource::None => "none",
        }
    }

    /// Reads the output of [`UsageSource::as_str`]; `None` for any other text.
    pub fn from_text(text: &str) -> Option<UsageSource> {
        let all = [UsageSource::Provider, UsageSource::Partial, UsageSource::Estimated, UsageSource::None];
        all.into_iter().find(|source| source.as_str() == text)
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
    /// Of these, tokens that are to stay there for an hour. Only priced apart, not stored.
    pub hour_write: u32,
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

    /// Sum of both.
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
            out: self.out.saturating_add(other.out),
            source,
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
/// a cache.
pub fn most_nano(prompt: u64, completion: u64, prices: &Prices) -> u64 {
    let Prices { cache_read, cache_write, hour_write, .. } = *prices;
    let dearest = Prices { input: prices.input.max(cache_read).max(cache_write).max(hour_write), ..*prices };
    Usage { uncached_in: prompt, out: completion, ..Usage::default() }.cost_nano(&dearest)
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn the_four_kinds_are_priced_apart_and_rounded_once() {
        let usage = Usage { uncached_in: 1, cache_read: 1, cache_write: 1, out: 1, ..Usage::default() };
        // 250 + 25 + 312.5 + 2000 nano-dollars
        assert_eq!(usage.cost_nano(&PRICES), 2588);
        assert_eq!((usage.prompt(), usage.total()), (3, 4));
    }

    #[test]
    fn writes_for_an_hour_have_their_own_price() {
        let dear = Prices { hour_write: 500_000, ..PRICES };
        let usage = Usage { cache_write: 3000, hour_write: 2000, ..Usage::default() };
        assert_eq!((usage.prompt(), usage.cost_nano(&PRICES)), (3000, 937_500));
        assert_eq!(usage.cost_nano(&dear), 312_500 + 1_000_000);
        assert_eq!(usage.plus(usage).bounded().cost_nano(&dear), 2 * usage.cost_nano(&dear));
        assert_eq!(most_nano(3000, 0, &dear), 3000 * 500);
        // No more are for an hour than there are.
        assert_eq!(Usage { cache_write: 1, ..usage }.cost_nano(&dear), 500);
    }

    #[test]
    fn absurd_counts_saturate_instead_of_wrapping() {
        let usage = Usage { uncached_in: u64::MAX, out: u64::MAX, cache_read: 1, ..Usage::default() };
        assert_eq!((usage.total(), usage.cost_nano(&PRICES)), (u64::MAX, u64::MAX));
    }

    #[test]
    fn what_may_be_used_costs_at_least_what_is() {
        assert_eq!(most_nano(1_000_000, 1_000_000, &PRICES), 312_500_000 + 2_000_000_000);
        let cheap = Prices { cache_write: 1, hour_write: 1, cache_read: 2, ..PRICES };
        assert_eq!(most_nano(1_000_000, 0, &cheap), 250_000_000);
        for (read, write) in [(0, 0), (7, 0), (0, 7), (3, 4)] {
            let used = Usage {
                uncached_in: 7 - read - write,
                cache_read: read,
                cache_write: write,
                out: 3,
                ..Usage::default()
            };
            assert!(used.cost_nano(&PRICES) <= most_nano(7, 3, &PRICES));
        }
        assert_eq!(most_nano(u64::MAX, u64::MAX, &PRICES), u64::MAX);
    }

    #[test]
    fn every_source_reads_back_what_it_writes() {
        for text in ["provider", "partial", "estimated", "none"] {
            assert_eq!(UsageSource::from_text(text).map(UsageSource::as_str), Some(text));
        }
        assert_eq!(UsageSource::from_text("Provider"), None);
    }
}
