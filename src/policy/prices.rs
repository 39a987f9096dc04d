//! Prices of a model, with tiers for long prompts, and prices of requests, images and minutes.

use crate::wire::{ModelEndpoint, Passthrough};

/// Tiers besides the base price that a model may have.
pub const TIERS_MAX: usize = 8;

/// Prices in micro-dollars per 1M tokens, which is pico-dollars per token: 0.25 USD is 250 000.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Prices {
    /// US dollars per million prompt tokens. Every price may be a table by length of the prompt, because Google and
    /// OpenAI bill long prompts at higher prices. With `{ "0" = 1.25, "200K" = 2.5 }`, a request whose prompt has more
    /// than 200,000 tokens, including cached tokens, costs 2.5 for each million prompt tokens. `"0"` is required. A
    /// plain number applies to prompts of any length. If the estimated prompt has more than 75 % of a threshold, the
    /// request reserves at the higher prices.
    #[doc(alias = "input_price")]
    pub input: u64,
    /// US dollars per million completion tokens.
    #[doc(alias = "output_price")]
    pub output: u64,
    /// US dollars per million prompt tokens that are read from the provider's cache. Default: the input price.
    #[doc(alias = "cache_read_price")]
    pub cache_read: u64,
    /// US dollars per million prompt tokens that are written to the provider's cache. Default: the input price.
    #[doc(alias = "cache_write_price")]
    pub cache_write: u64,
    /// US dollars per million prompt tokens that are written to the provider's cache for an hour. Default: the value of
    /// `cache_write_price`.
    #[doc(alias = "cache_write_1h_price")]
    pub hour_write: u64,
}

/// Prices of a relayed request that are not for tokens, in micro-dollars.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct UnitPrices {
    /// US dollars per request to a relayed endpoint, such as `speech` or `rerank`. It is charged in addition to tokens
    /// and images: for each request that got a complete answer, or the beginning of an answer of events, text or bytes,
    /// and for each request that was sent and whose client has left.
    #[doc(alias = "price_per_request")]
    pub request: Option<u64>,
    /// US dollars per image that a provider has returned. A request reserves the price of `n` images.
    #[doc(alias = "price_per_image")]
    pub image: Option<u64>,
    /// US dollars per minute of audio that a transcription or a translation has read. The length is the one that the
    /// provider reports. Otherwise it is estimated from the bytes of the form at 2 kB a second; a request reserves this
    /// estimate. The length is not known before the request, so a budget also requires `price_per_request`: without it,
    /// keys with a budget get 403.
    #[doc(alias = "price_per_minute")]
    pub minute: Option<u64>,
}

/// Reads one of the unit prices.
pub type UnitPriceOf = fn(&UnitPrices) -> Option<u64>;

/// Keys of the unit prices in a configuration.
pub const UNIT_KEYS: [(&str, UnitPriceOf); 3] = [
    ("price_per_request", |units| units.request),
    ("price_per_image", |units| units.image),
    ("price_per_minute", |units| units.minute),
];

/// Milliseconds of a minute.
const MINUTE: u128 = 60_000;

/// Nano-dollars per micro-dollar.
const NANO: u64 = 1000;

impl UnitPrices {
    /// True if none is set.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.request.is_none() && self.image.is_none() && self.minute.is_none()
    }

    /// True if a request to this endpoint has a price without one for tokens.
    pub fn cover(&self, endpoint: ModelEndpoint) -> bool {
        let Some(passthrough) = endpoint.as_passthrough() else { return false };
        self.request.is_some()
            || (self.image.is_some() && passthrough.makes_images())
            || (self.minute.is_some() && passthrough.is_transcript())
    }

    /// True if the cost of a request to this endpoint depends on a length that is known only afterwards, and there is
    /// no price of a request to reserve.
    #[inline]
    pub fn is_open(&self, passthrough: Passthrough) -> bool {
        self.minute.is_some() && self.request.is_none() && passthrough.is_transcript()
    }

    /// True if none of them is more than that of `other`; one that is not set is 0.
    pub fn is_at_most(&self, other: &UnitPrices) -> bool {
        UNIT_KEYS.iter().all(|(_, price)| price(self).unwrap_or(0) <= price(other).unwrap_or(0))
    }

    /// Cost of this many requests to an endpoint, and of their images or milliseconds of audio, in nano-dollars. Parts
    /// of a minute are rounded half up.
    pub fn cost_nano(&self, passthrough: Passthrough, requests: u64, units: u64) -> u64 {
        let of = |count: u64, price: Option<u64>| count.saturating_mul(price.unwrap_or(0)).saturating_mul(NANO);
        let minutes = |millis: u64, price: Option<u64>| {
            let nano = u128::from(millis) * u128::from(price.unwrap_or(0)) * u128::from(NANO);
            u64::try_from((nano + MINUTE / 2) / MINUTE).unwrap_or(u64::MAX)
        };
        let of_units = match passthrough {
            _ if passthrough.makes_images() => of(units, self.image),
            _ if passthrough.is_transcript() => minutes(units, self.minute),
            _ => 0,
        };
        of(requests, self.request).saturating_add(of_units)
    }
}

/// Reads one of the prices.
pub type PriceOf = fn(&Prices) -> u64;

/// Keys of the prices in a configuration.
pub const KEYS: [(&str, PriceOf); 5] = [
    ("input_price", |prices| prices.input),
    ("output_price", |prices| prices.output),
    ("cache_read_price", |prices| prices.cache_read),
    ("cache_write_price", |prices| prices.cache_write),
    ("cache_write_1h_price", |prices| prices.hour_write),
];

/// Prices that one key sets, by rising thresholds; the first is 0. Empty: the key is not set.
pub type WrittenPrices = Vec<(u64, u64)>;

/// Prices of whole requests whose prompts are longer than a threshold, as Google and OpenAI bill them.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct PriceTier {
    /// The prompt must have more tokens than this.
    pub above: u64,
    /// Prices of such a request.
    pub prices: Prices,
}

/// Prices of the requests that one target answers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TargetPrices {
    /// Prices of tokens.
    pub tokens: ModelPrices,
    /// Prices of pass-through requests that are not for tokens.
    pub units: UnitPrices,
    /// True if it has prices for tokens, even if they are 0.
    pub has_tokens: bool,
    /// True if each endpoint that the model serves has a price here.
    pub priced: bool,
}

/// Prices of a model for prompts of any length.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ModelPrices {
    /// Prices of prompts below all thresholds.
    pub base: Prices,
    /// Tiers by rising threshold; none for most models.
    pub tiers: Box<[PriceTier]>,
}

impl From<Prices> for ModelPrices {
    fn from(base: Prices) -> ModelPrices {
        ModelPrices { base, tiers: Box::default() }
    }
}

impl ModelPrices {
    /// Prices of a request with `prompt` tokens, cached ones included.
    #[inline]
    pub fn of(&self, prompt: u64) -> &Prices {
        if self.tiers.is_empty() { &self.base } else { self.tier(prompt) }
    }

    /// Prices that a request with an estimate of `prompt` tokens may cost: those of a tier from 75 % of its threshold
    /// on, since the provider may count more tokens.
    pub fn possible(&self, prompt: u64) -> impl Iterator<Item = &Prices> {
        let is_near = move |tier: &&PriceTier| prompt.saturating_mul(4) > tier.above.saturating_mul(3);
        std::iter::once(&self.base).chain(self.tiers.iter().filter(is_near).map(|tier| &tier.prices))
    }

    /// True if no request costs more by these prices than by `other`.
    #[cold]
    pub fn is_at_most(&self, other: &ModelPrices) -> bool {
        let starts = self.tiers.iter().chain(&other.tiers).map(|tier| tier.above.saturating_add(1));
        std::iter::once(0).chain(starts).all(|prompt| {
            let (own, other) = (self.of(prompt), other.of(prompt));
            KEYS.iter().all(|(_, price)| price(own) <= price(other))
        })
    }

    #[cold]
    fn tier(&self, prompt: u64) -> &Prices {
        self.tiers.iter().rev().find(|tier| prompt > tier.above).map_or(&self.base, |tier| &tier.prices)
    }
}

/// A price of [`Prices`] as text, in dollars per 1M tokens, with two to six decimals.
pub fn price_text(micro: u64) -> String {
    let mut text = format!("{}.{:06}", micro / 1_000_000, micro % 1_000_000);
    let least = text.len() - 4;
    while text.len() > least && text.ends_with('0') {
        text.pop();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn price_is_written_with_two_to_six_decimals() {
        let cases = [(250_000, "0.25"), (2_000_000, "2.00"), (0, "0.00"), (37_500, "0.0375"), (1, "0.000001")];
        for (micro, text) in cases {
            assert_eq!(price_text(micro), text);
        }
    }

    #[test]
    fn cheaper_prices_are_cheaper_in_every_tier() {
        let at = |input, output| Prices { input, output, ..Prices::default() };
        let with = |base, tiers: &[(u64, Prices)]| ModelPrices {
            base,
            tiers: tiers.iter().map(|(above, prices)| PriceTier { above: *above, prices: *prices }).collect(),
        };
        let own = with(at(2, 2), &[(10, at(4, 4))]);
        for (other, is_at_most) in [
            (with(at(2, 2), &[(10, at(4, 4))]), true),
            (with(at(4, 4), &[]), true),
            (with(at(3, 3), &[]), false),
            (with(at(2, 2), &[(20, at(4, 4))]), false),
            (with(at(5, 1), &[(10, at(5, 5))]), false),
        ] {
            assert_eq!(own.is_at_most(&other), is_at_most, "{other:?}");
        }
        let image = |image| UnitPrices { image, ..UnitPrices::default() };
        assert!(image(Some(1)).is_at_most(&image(Some(1))) && image(None).is_at_most(&image(Some(0))));
        assert!(!image(Some(1)).is_at_most(&image(None)));
    }

    #[test]
    fn units_and_requests_add_up_and_saturate() {
        let units = UnitPrices { request: Some(100), image: Some(40_000), minute: Some(6_000) };
        let (edits, words) = (Passthrough::ImageEdits, Passthrough::Translations);
        assert_eq!(units.cost_nano(edits, 1, 3), 100_000 + 3 * 40_000_000);
        assert_eq!(units.cost_nano(Passthrough::Speech, 1, 3), 100_000);
        assert_eq!(units.cost_nano(words, 1, 90_000), 100_000 + 9_000_000);
        assert_eq!(UnitPrices { minute: Some(3), ..UnitPrices::default() }.cost_nano(words, 0, 10), 1, "0.5 rounded");
        assert_eq!(UnitPrices::default().cost_nano(words, 7, 7), 0);
        assert_eq!(units.cost_nano(edits, 1, u64::MAX), u64::MAX);
        assert_eq!(units.cost_nano(words, u64::MAX, u64::MAX), u64::MAX);
    }

    #[test]
    fn price_of_an_image_covers_only_images() {
        let of = ModelEndpoint::passthrough;
        let image = UnitPrices { image: Some(0), ..UnitPrices::default() };
        assert!(image.cover(of(Passthrough::Images)) && !image.cover(of(Passthrough::Speech)));
        let request = UnitPrices { request: Some(0), ..UnitPrices::default() };
        assert!(request.cover(of(Passthrough::Speech)) && !request.cover(ModelEndpoint::CHAT));
    }

    #[test]
    fn prompt_of_one_token_more_than_a_threshold_costs_its_tier() {
        let at = |input| Prices { input, ..Prices::default() };
        let tiers = [PriceTier { above: 200_000, prices: at(2) }, PriceTier { above: 1_000_000, prices: at(3) }];
        let prices = ModelPrices { base: at(1), tiers: tiers.into() };
        for (prompt, input) in [(0, 1), (200_000, 1), (200_001, 2), (1_000_000, 2), (1_000_001, 3), (u64::MAX, 3)] {
            assert_eq!(prices.of(prompt).input, input, "{prompt}");
        }
        for (prompt, count) in [(150_000, 1), (150_001, 2), (750_000, 2), (750_001, 3)] {
            assert_eq!(prices.possible(prompt).count(), count, "{prompt}");
        }
    }
}
