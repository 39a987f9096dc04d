//! The catalog: models, their prices and their targets. Built by `config`, read by `gateway` and `cli`. It never
//! changes after that.

use super::keys::is_unseen;
use super::plan::caps::Caps;
use super::prices::{ModelPrices, TargetPrices, UnitPrices, WrittenPrices};
use super::settings::kinds::{Kind, Shown, Time, Whole};
use super::settings::reader::{Field, Reader};
use super::settings::{section, units};
use super::upstream_limits::{Timeouts, UpstreamLimits};
use super::vendors::VendorRules;
use super::vendors::capabilities::{Capabilities, TOKENS_MAX};
use crate::base::time::Unix;
use crate::base::words;
use crate::wire::ModelEndpoint;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

/// Requests that may wait for slots of one model, whatever is configured.
const QUEUED_MAX: u64 = 10_000;

/// Parts of a weight of 1. The credentials of a target divide them.
pub const SHARE: u64 = 1 << 20;

/// Models of the catalog, including configured ones. Requests store the index in 16 bits.
pub const CATALOG_MAX: usize = 20_000;

/// Bytes of an id or an alias.
pub const ID_MAX: usize = 128;

/// True if no id may contain the character. A comma separates ids on the command line, `?` or `#` would end a path, and
/// an invisible character can change how the text next to it is shown.
pub fn is_bad(c: char) -> bool {
    c.is_whitespace() || is_unseen(c) || matches!(c, ',' | '?' | '#' | '"' | '\\' | '%')
}

/// True if the text can be the id of a model. `*` means all models, and at the end of an alias all names with that
/// prefix.
pub fn is_id(text: &str) -> bool {
    (1..=ID_MAX).contains(&text.len()) && !text.contains(|c: char| is_bad(c) || c == '*')
}

/// The size of a context: `"1M"`, `"256K"`, `"128Ki"`, or an integer.
pub struct ContextSize;

impl Kind<u64> for ContextSize {
    fn read(&self, reader: &mut Reader<'_>, field: Field<'_>) -> Option<u64> {
        if field.is_integer() {
            return reader.integer(&field, &(1..=TOKENS_MAX));
        }
        let text = reader.string(&field)?;
        let tokens = units::context(&text).filter(|tokens| (1..=TOKENS_MAX).contains(tokens));
        if tokens.is_none() {
            reader.wrong(&field, "expected a number of tokens such as \"1M\", \"256K\" or \"128Ki\"");
        }
        tokens
    }

    fn shown(&self, value: &u64) -> Shown {
        Shown::Value(units::quoted(&context_text(*value)))
    }
}

/// Positions in a list of the configuration, by name. The names are bytes, since those of a request would have to be
/// checked again to become text.
pub(super) type IndexByName = HashMap<Arc<[u8]>, usize, ahash::RandomState>;

/// All models in the order of the configuration.
#[derive(Clone, Debug)]
pub struct Catalog {
    models: Vec<Model>,
    by_id: IndexByName,
    by_alias: IndexByName,
    /// Prefixes of the aliases that end in `*`, the longest first.
    by_start: Vec<(Arc<str>, usize)>,
    default: Option<usize>,
}

impl Catalog {
    /// Builds the catalog from checked models with unique ids and aliases. `default` is the index of the model for
    /// requests without `model`.
    pub fn new(models: Vec<Model>, default: Option<usize>) -> Catalog {
        // Only the operator and the providers' lists fill this map, clients only look names up. So constant seeds are
        // safe.
        let mut by_id = HashMap::with_hasher(ahash::RandomState::with_seeds(1, 2, 3, 4));
        for (index, model) in models.iter().enumerate() {
            by_id.insert(Arc::from(model.id.clone()), index);
        }
        let mut by_alias = HashMap::with_hasher(by_id.hasher().clone());
        let mut by_start: Vec<(Arc<str>, usize)> = Vec::new();
        for (index, alias) in
            models.iter().enumerate().flat_map(|(at, model)| model.aliases.iter().map(move |a| (at, a)))
        {
            match alias.strip_suffix('*') {
                Some(start) => by_start.push((start.into(), index)),
                None => drop(by_alias.insert(alias.as_bytes().into(), index)),
            }
        }
        by_start.sort_unstable_by_key(|(start, _)| Reverse(start.len()));
        Catalog { models, by_id, by_alias, by_start, default }
    }

    /// Index of the model that a client requests as `name`: its id, one of its aliases, or an alias with `*` that
    /// matches. The longest such alias wins.
    #[inline]
    pub fn asked(&self, name: impl AsRef<[u8]>) -> Option<usize> {
        let (name, starts) = (name.as_ref(), &self.by_start);
        let named = self.by_id.get(name).or_else(|| self.by_alias.get(name)).copied();
        named.or_else(|| starts.iter().find(|(start, _)| name.starts_with(start.as_bytes())).map(|(_, index)| *index))
    }

    /// Index of the model with this id.
    #[inline]
    pub fn find(&self, id: &str) -> Option<usize> {
        self.by_id.get(id.as_bytes()).copied()
    }

    /// The model at `index`, as given by [`Catalog::find`] or [`Catalog::default_model`].
    pub fn get(&self, index: usize) -> Option<&Model> {
        self.models.get(index)
    }

    /// All models, in the order of the configuration.
    pub fn models(&self) -> &[Model] {
        &self.models
    }

    /// Hasher of the names.
    pub fn hasher(&self) -> ahash::RandomState {
        self.by_id.hasher().clone()
    }

    /// Index of the model for requests without `model`.
    pub fn default_model(&self) -> Option<usize> {
        self.default
    }
}

/// An entry of the catalog.
#[derive(Clone, Debug)]
pub struct Model {
    /// Name that clients request. Value: 1 to 128 characters without spaces, invisible characters and `, ? # % " \ *`.
    pub id: Arc<str>,
    /// Other names that clients may request; each may end in `*`. If several aliases match, Tollgate uses the longest.
    /// Scopes of keys, usage records and responses use the id.
    pub aliases: Vec<String>,
    /// Display name. Default: the id.
    pub name: String,
    /// Owner that `GET /v1/models` shows. Default: the first target's provider.
    pub owned_by: String,
    /// Date of publication. Only clients that send `anthropic-version` see it in `GET /v1/models`.
    pub created: Unix,
    /// Context size in tokens, decimal (`"256K"`, `"1M"`) or binary (`"256Ki"`). Clients see it in `GET /v1/models`,
    /// and a prompt reserves at most 1.25 times this size. Tollgate does not reject longer prompts: the provider does.
    pub context: u64,
    /// Largest context of the model and its targets.
    pub largest: u64,
    /// Estimate above which a prompt does not fit all targets; `u64::MAX` if all targets take the same.
    pub narrow: u64,
    /// Context size as written for people: `1M`, `256K`, `128Ki`.
    pub context_text: String,
    /// Prices.
    pub prices: ModelPrices,
    /// True if it has prices for tokens, even if they are 0.
    pub has_token_prices: bool,
    /// Prices of pass-through requests that are not for tokens.
    pub units: UnitPrices,
    /// True if each of its endpoints has a price at each target: prices of input and output are written, even if they
    /// are 0; without output, a price of input is enough; for a pass-through endpoint, the price of a unit is enough.
    pub priced: bool,
    /// True if a target has prices of its own.
    pub priced_by_target: bool,
    /// True if a target, its provider or its credential has limits.
    pub limited: bool,
    /// Prices that are written but not used, since the model is unpriced; in the order of [`super::prices::KEYS`].
    pub unused_prices: Vec<WrittenPrices>,
    /// True if its provider takes the credentials of clients.
    pub client_credential: bool,
    /// True if its requests need a check of their own: it has no price or one per minute, or takes the credentials of
    /// clients.
    pub checked: bool,
    /// Timeouts it sets for itself; already part of every target's `limits`.
    pub timeouts: Timeouts,
    /// Endpoints that the model serves: `"chat"` (chat, messages and responses), `"embeddings"`, `"rerank"`,
    /// `"completions"`, `"speech"`, `"images"` (with edits), `"moderations"`, `"transcriptions"`, `"translations"`. All
    /// except `"chat"` need targets of the shape `"chat"`, and only targets with the same model name as the first
    /// target serve them.
    pub serves: Vec<ModelEndpoint>,
    /// Providers that serve the model. Value: a list of 1 to 32 tables with the keys below.
    pub targets: Vec<Target>,
    /// Targets that serve pass-through endpoints; none if it serves none of them.
    ///
    /// Part of `targets`.
    pub passthrough_targets: Vec<Target>,
    /// Choice among targets of equal priority and their credentials. `"session"` sends all turns of a conversation to
    /// one target, so that its prompt cache works; `"key"` sends all requests of a key to one target; `"off"` uses the
    /// targets in turn. The weights apply to all three.
    pub affinity: Affinity,
    /// Method for the choice among targets of equal priority. `"affinity"` follows the key `affinity`. `"least_busy"`
    /// chooses the target with the fewest running requests relative to its weight, and ignores `affinity`; use it for
    /// replicas of a local server without a prompt cache.
    pub balance: Balance,
    /// If no slot is free, requests wait for a slot. Keys take turns. `{}` uses the defaults of the keys below. Value:
    /// a table. Default: no queue; such requests get 503.
    pub queue: Option<QueueLimits>,
    /// A provider finds its conversations in the prompt cache by a key.
    pub caches_by_key: bool,
    /// Some of its targets, or their credentials, are of equal priority.
    pub shares: bool,
    /// Bound on completion tokens that Tollgate sends if the client sends none and the provider requires a bound (shape
    /// `messages`). For a client of the Responses format, `max_output_tokens` of the capabilities is used instead, if
    /// it is set.
    pub default_max_tokens: u64,
    /// Upper bound of the completion tokens that each response reserves at admission.
    pub reserve_tokens: u64,
    /// Request fields that Tollgate removes from a request, and does not add to a request. `model`, `messages`,
    /// `input`, `stream`, `prompt`, `query` and `documents` cannot be removed. Value: a list of names.
    pub drop_params: Vec<String>,
    /// Request fields that replace the client's fields. Use their names in the API format of the model's providers.
    /// Value: a table of up to 32 fields.
    pub set_params: Vec<ModelParam>,
    /// Request fields that Tollgate adds if the request lacks them. Value: a table of up to 32 fields.
    pub default_params: Vec<ModelParam>,
    /// Types of tools, such as `"web_search"`, that a provider of the shape `responses` runs and bills. Requests may
    /// use only the types listed here. Tollgate removes all other tools that the client does not run itself. With
    /// `"file_search"` or `"mcp"`, every key reaches all data that the provider's credential reaches. Value: a list of
    /// names. Default: none.
    pub hosted_tools: Vec<String>,
    /// Properties of the model that translation needs. Value: a table with the keys of the page on capabilities.
    /// Default: the defaults there.
    pub capabilities: Capabilities,
    /// True if its provider lists it; it is not configured by hand.
    pub discovered: bool,
}

/// A member that Tollgate sets in the requests of a model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ModelParam {
    /// Name of the member: letters, digits, `_` and `-`.
    pub name: String,
    /// Value as JSON.
    pub json: String,
    /// Value as TOML, on one line.
    pub toml: String,
}

impl Model {
    /// True if its configuration removes members from requests or sets some.
    #[inline]
    pub fn edits_requests(&self) -> bool {
        !(self.drop_params.is_empty() && self.set_params.is_empty() && self.default_params.is_empty())
    }

    /// Prices of a request that this target answers.
    #[inline]
    pub fn prices_at<'a>(&'a self, target: Option<&'a Target>) -> (&'a ModelPrices, &'a UnitPrices) {
        match target.and_then(|target| target.prices.as_deref()) {
            Some(own) => (&own.tokens, &own.units),
            None => (&self.prices, &self.units),
        }
    }

    /// Prices of each of its targets.
    fn prices_of_targets(&self) -> impl Iterator<Item = (&ModelPrices, &UnitPrices)> {
        self.targets.iter().chain(&self.passthrough_targets).map(|target| self.prices_at(Some(target)))
    }

    /// True if each price of each of its targets is at most that of each target of `other`.
    pub fn costs_at_most(&self, other: &Model) -> bool {
        self.prices_of_targets().all(|(tokens, units)| {
            let mut others = other.prices_of_targets();
            others.all(|other| tokens.is_at_most(other.0) && units.is_at_most(other.1))
        })
    }

    /// Most completion tokens of an answer, if each of its targets has a maximum.
    pub fn completion_max(&self) -> Option<u64> {
        let each = self.targets.iter().map(|target| target.rules.capabilities.max_output_tokens);
        each.max_by_key(|most| most.unwrap_or(u64::MAX)).flatten()
    }

    /// Most tokens that one of its targets reads of an image.
    pub fn image_tokens_max(&self) -> u64 {
        let each = self.targets.iter().map(|target| target.rules.capabilities.max_image_tokens);
        each.map(|most| most.unwrap_or(IMAGE_TOKENS)).max().unwrap_or(IMAGE_TOKENS)
    }

    /// Largest number of tokens that a prompt reserves: the largest context size and a quarter more, since an estimate
    /// can be too high.
    #[inline]
    pub fn prompt_max(&self) -> u64 {
        with_quarter(self.largest)
    }

    /// Endpoints that it serves, as text.
    #[cold]
    pub fn serves_text(&self) -> String {
        let serves: Vec<&str> = self.serves.iter().map(|served| served.name()).collect();
        serves.join(", ")
    }
}

/// A provider's model together with one credential. A target of the configuration appears here once per credential.
#[derive(Clone, Debug)]
pub struct Target {
    /// Name of the provider. Value: the `name` of one of the `[[providers]]`.
    ///
    /// An index into `Config.providers`.
    pub provider: usize,
    /// The provider's name of the model. Clients never see it. Default: the id.
    pub model: String,
    /// Index of the provider's credential that is sent, from 0 on.
    pub credential: usize,
    /// `provider/model`, for logs, rows and metrics; `provider#2/model` with the second of several credentials.
    pub label: Arc<str>,
    /// Order of the targets: lower numbers are tried first. Default: the position in the list,
    /// from 1 on.
    pub priority: u32,
    /// Share among targets of the same priority.
    pub weight: u32,
    /// Part of that share for this credential: in [`SHARE`] parts of a weight of 1.
    pub share: u64,
    /// Number derived from the label, by which sessions are distributed.
    pub seed: u64,
    /// Running requests at this target, over all credentials. With a shared ledger each host has its share of this
    /// number, at least 1. 0 means no limit.
    pub concurrency: u32,
    /// Context size in tokens of the model at this provider, if it differs from the model's. Default: the model's
    /// `context`.
    pub context: u64,
    /// Part of those slots that this host has.
    pub slots: u32,
    /// Prices of its own; `None`: those of the model.
    pub prices: Option<Arc<TargetPrices>>,
    /// Deadlines and bounds that hold for this model at this provider.
    pub limits: UpstreamLimits,
    /// Limits of this upstream model, as the provider's [`limits`](providers.md#limits). Value: a list of entries.
    #[doc(alias = "limits")]
    pub caps: Caps,
    /// Accounts that its attempts count in; `None` if neither it nor its provider nor its credential has limits.
    pub accounts: Option<Arc<TargetAccounts>>,
    /// Capabilities and rules of the model there: its own settings, then the table of vendors.
    pub rules: Arc<VendorRules>,
}

/// Accounts that the attempts at a target count in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TargetAccounts {
    /// Their names, with [`super::plan::PATH_SEPARATOR`] between them.
    pub path: Arc<str>,
    /// The provider's name of the model, by which limits count only some models.
    pub model: Arc<str>,
}

/// Range of the time a request may wait for a slot: in microseconds it fits 32 bits.
const QUEUE_WAITS: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(3600);

section! {
    /// Bounds of one model's queue.
    #[derive(Copy, Clone, PartialEq, Eq, Debug)]
    pub struct QueueLimits {
        /// Number of requests that can wait. A further request gets 429 immediately.
        pub max: u32 = 64, Whole(1..=QUEUED_MAX), Live;
        /// Time that a request waits. After this time it gets 429.
        pub wait: Duration = Duration::from_secs(120), Time(QUEUE_WAITS), Live;
    }
}

words! {
    /// Requests that Tollgate sends to the same one of equal targets.
    #[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
    pub enum Affinity {
        /// The turns of a conversation.
        #[default]
        Session = "session",
        /// All requests of a key.
        Key = "key",
        /// No affinity.
        Off = "off",
    }
}

words! {
    /// Choice among equal targets.
    #[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
    pub enum Balance {
        /// By [`Affinity`], or in turn.
        #[default]
        Affinity = "affinity",
        /// Target with the fewest requests in flight.
        LeastBusy = "least_busy",
    }
}

/// Tokens that a model reads of one image, if nothing else is known.
const IMAGE_TOKENS: u64 = 4096;

/// Estimate above which a prompt certainly exceeds a context, since an estimate can be too high by a quarter.
#[inline]
pub fn with_quarter(context: u64) -> u64 {
    context + context / 4
}

/// A token count as text: `1M`, `256K`, `128Ki`, otherwise its digits. Decimal units win over binary ones.
pub fn context_text(tokens: u64) -> String {
    let units = [("M", 1_000_000), ("Mi", 1 << 20), ("K", 1000), ("Ki", 1 << 10)];
    let mut text = String::new();
    let fit = units.iter().find(|(_, unit)| tokens > 0 && tokens.is_multiple_of(*unit));
    // Writing to a String cannot fail.
    let _ = match fit {
        Some((name, unit)) => write!(text, "{}{name}", tokens / unit),
        None => write!(text, "{tokens}"),
    };
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_context_sizes_are_abbreviated() {
        let cases =
            [(1_000_000, "1M"), (256_000, "256K"), (131_072, "128Ki"), (1 << 20, "1Mi"), (4097, "4097"), (0, "0")];
        for (tokens, text) in cases {
            assert_eq!(context_text(tokens), text);
        }
    }
}
