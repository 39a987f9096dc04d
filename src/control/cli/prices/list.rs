//! The two published price lists, of which only the entries of configured models are kept.

use crate::policy::catalog::Model;
use crate::policy::config::Config;
use crate::policy::prices::TIERS_MAX;
use crate::policy::vendors::capabilities::TOKENS_MAX;
use serde::Deserializer as _;
use serde::de::{MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Maximum bytes of the entry of a model. Its values take up to forty times that in memory.
pub(super) const ENTRY_MAX: usize = 64 << 10;

/// Ascending thresholds of prompt tokens, the first 0, each with its price in micro-dollars per 1M tokens.
pub(super) type Tiered = Vec<(u64, u64)>;

/// Sets the price above a threshold. `None` if the configuration cannot have this tier.
fn set_price(tiers: &mut Tiered, above: u64, price: u64) -> Option<()> {
    match tiers.binary_search_by_key(&above, |(above, _)| *above) {
        Ok(at) => tiers[at].1 = price,
        Err(at) if (1..=TOKENS_MAX).contains(&above) && tiers.len() <= TIERS_MAX => tiers.insert(at, (above, price)),
        Err(_) => return None,
    }
    Some(())
}

/// Names of the prices in LiteLLM's list and in that of models.dev, in the order of [`KEYS`].
const NAMES: [(&str, &str); 5] = [
    ("input_cost_per_token", "input"),
    ("output_cost_per_token", "output"),
    ("cache_read_input_token_cost", "cache_read"),
    ("cache_creation_input_token_cost", "cache_write"),
    ("cache_creation_input_token_cost_above_1hr", "cache_write_1h"),
];

/// Makes numbers invalid that would be read as 0 although they are not, such as 1e-400: a model must not become free by
/// them.
pub(super) fn refuse_small(list: &mut [u8]) {
    let mut from = 0;
    while let Some(at) = list[from..].iter().position(|byte| *byte == b':') {
        from += at + 1;
        let number = list[from..].trim_ascii_start();
        let start = list.len() - number.len();
        let length = number.iter().take_while(|byte| b"0123456789.eE+-".contains(byte)).count();
        from = start.max(from) + length;
        let number = std::str::from_utf8(&list[start..start + length]).unwrap_or_default();
        let is_written = number.bytes().take_while(|byte| !b"eE".contains(byte)).any(|byte| byte > b'0');
        if is_written && number.parse() == Ok(0.0) {
            list[start] = b'-';
            list[start + 1..start + length].fill(b'1');
        }
    }
}

/// Calls a function with the name and the text of each member of a JSON object.
struct EachMember<F>(F);

impl<'de, F: FnMut(&str, &'de RawValue)> Visitor<'de> for EachMember<F> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an object")
    }

    fn visit_map<M: MapAccess<'de>>(mut self, mut map: M) -> Result<(), M::Error> {
        while let Some((name, value)) = map.next_entry::<Cow<'de, str>, &'de RawValue>()? {
            (self.0)(&name, value);
        }
        Ok(())
    }
}

/// Reads an object member by member: most of a list is of no use here.
fn each_member<'a>(text: &'a str, read: &mut dyn FnMut(&str, &'a RawValue)) -> serde_json::Result<()> {
    let mut parser = serde_json::Deserializer::from_str(text);
    parser.deserialize_map(EachMember(read))?;
    parser.end()
}

/// Reads the values of an entry, if it is not too long.
fn value_of(entry: &RawValue) -> Value {
    let text = Some(entry.get()).filter(|text| text.len() <= ENTRY_MAX);
    text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

/// Usable prices of a model in a list, in the order of [`KEYS`].
pub(super) type ListedPrices = [Option<Tiered>; 5];

/// The entries of a published list that can belong to configured models.
pub(super) enum PriceList {
    /// By the name of the entry, each with the name of its provider.
    LiteLlm(BTreeMap<String, (String, ListedPrices)>),
    /// By the names of provider and model.
    ModelsDev(BTreeMap<String, ListedPrices>),
}

/// The names in both lists of a model's provider, whether its vendor has names there, and the name of its upstream
/// model.
fn listed_names<'a>(config: &Config, model: &'a Model) -> Option<([String; 2], bool, &'a str)> {
    let target = model.targets.first()?;
    let provider = config.provider(target.provider)?;
    let identity = config.vendors.identity(&provider.place());
    let is_known = identity.litellm.is_some();
    let names = [identity.litellm, identity.models_dev].map(|name| name.unwrap_or_else(|| provider.name.to_string()));
    Some((names, is_known, &*target.model))
}

impl PriceList {
    /// Reads a list. `None` if it is neither of the two.
    pub(super) fn read(text: &str, config: &Config) -> serde_json::Result<Option<PriceList>> {
        let mut wanted = BTreeSet::new();
        for (names, _, upstream) in config.catalog.models().iter().filter_map(|model| listed_names(config, model)) {
            wanted.extend(names.map(|name| format!("{name}/{upstream}")));
            wanted.insert(upstream.to_owned());
        }
        let (mut litellm, mut models_dev) = (BTreeMap::new(), BTreeMap::new());
        let (mut has_models, mut has_prices) = (false, false);
        let read = each_member(text, &mut |name, entry| {
            // An entry that is not an object has no members.
            let _ = each_member(entry.get(), &mut |key, member| {
                has_prices |= key == NAMES[0].0;
                if key == "models" {
                    has_models = true;
                    let _ = each_member(member.get(), &mut |upstream, model| {
                        let full = format!("{name}/{upstream}");
                        if wanted.contains(&full) {
                            let cost = &value_of(model)["cost"];
                            models_dev.remove(&full);
                            if !cost.is_null() {
                                models_dev.insert(full, NAMES.map(|(_, name)| models_dev_price(cost, name)));
                            }
                        }
                    });
                }
            });
            if wanted.contains(name) {
                let entry = value_of(entry);
                let provider = entry["litellm_provider"].as_str().unwrap_or_default().to_owned();
                litellm.insert(name.to_owned(), (provider, NAMES.map(|(name, _)| litellm_price(&entry, name))));
            }
        });
        match read {
            // The list is JSON, but not an object.
            Err(error) if error.is_data() => Ok(None),
            Err(error) => Err(error),
            Ok(()) if has_models => Ok(Some(PriceList::ModelsDev(models_dev))),
            Ok(()) => Ok(has_prices.then_some(PriceList::LiteLlm(litellm))),
        }
    }

    /// Entry of the first target's upstream model, by the host of its provider or by the provider's name. Returns its
    /// name and its usable prices.
    pub(super) fn entry(&self, config: &Config, model: &Model) -> Option<(String, &ListedPrices)> {
        let ([litellm, models_dev], is_known, upstream) = listed_names(config, model)?;
        match self {
            PriceList::LiteLlm(list) => {
                let full = format!("{litellm}/{upstream}");
                // LiteLLM divides some providers, such as `vertex_ai-language-models`.
                let fits = |rest: &str| rest.is_empty() || (is_known && rest.starts_with(['_', '-']));
                let of_provider =
                    |(other, _): &&(String, ListedPrices)| other.strip_prefix(&*litellm).is_some_and(fits);
                let plain = || Some((upstream.to_owned(), list.get(upstream).filter(of_provider)?));
                let (key, (_, prices)) = list.get(&full).map(|entry| (full, entry)).or_else(plain)?;
                Some((key, prices))
            }
            PriceList::ModelsDev(list) => {
                let full = format!("{models_dev}/{upstream}");
                list.get(&full).map(|prices| (full.clone(), prices))
            }
        }
    }
}

/// A price in USD as micro-dollars per 1M tokens; `tokens` is the number of tokens that it is for. A price too small
/// to be written would make the model free, so it is unusable.
pub(super) fn micro(usd: &Value, tokens: f64) -> Option<u64> {
    let usd = usd.as_f64()?;
    let micro = (usd / tokens * 1e12).round();
    ((0.0..=1e12).contains(&micro) && (micro > 0.0 || usd == 0.0)).then_some(micro as u64)
}

fn litellm_price(entry: &Value, name: &str) -> Option<Tiered> {
    let mut tiers = Tiered::from([(0, micro(entry.get(name)?, 1.0)?)]);
    for (key, price) in entry.as_object()?.iter().filter(|(_, price)| !price.is_null()) {
        let above = key.strip_prefix(name).and_then(|rest| rest.strip_prefix("_above_")?.strip_suffix("k_tokens"));
        if let Some(above) = above.filter(|above| above.bytes().all(|byte| byte.is_ascii_digit())) {
            // Without an invalid tier, long prompts would cost less than they do.
            let above = above.parse::<u64>().ok()?.checked_mul(1000).filter(|above| *above > 0)?;
            set_price(&mut tiers, above, micro(price, 1.0)?)?;
        }
    }
    Some(tiers)
}

fn models_dev_price(cost: &Value, name: &str) -> Option<Tiered> {
    let price = |of: &Value| micro(of.get(name)?, 1e6);
    let mut tiers = Tiered::from([(0, price(cost)?)]);
    let written = cost["tiers"].as_array();
    let has = |of: &Value| of.get(name).is_some_and(|price| !price.is_null());
    for tier in written.into_iter().flatten().filter(|tier| tier["tier"]["type"] == "context" && has(tier)) {
        let above = tier["tier"]["size"].as_u64().filter(|above| *above > 0)?;
        set_price(&mut tiers, above, price(tier)?)?;
    }
    let over = &cost["context_over_200k"];
    if written.is_none() && has(over) {
        set_price(&mut tiers, 200_000, price(over)?)?;
    }
    Some(tiers)
}
