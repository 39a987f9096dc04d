//! `discover` of a provider: the request for its list of models, and the contents of such a list. `config::fill` puts
//! the lists into the catalog.

use super::catalog::{ContextSize, is_id};
use super::settings::kinds::{Kind, Shown, Time};
use super::settings::reader::{Field, Reader, Section};
use super::settings::units::quoted;
use super::settings::{Settings, section};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

/// Models of one provider's list.
pub const LISTED_MAX: usize = 1000;
/// Range of the time between two requests for the list.
const EVERY: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(86_400);

section! {
    /// Settings for a provider's list of models.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub struct Discover {
        /// Time between two requests for the list.
        pub every: Duration = Duration::from_secs(300), Time(EVERY), Live;
        /// Text before the provider's name of a model: `"local/"` turns `qwen3` into `local/qwen3`.
        pub prefix: String = String::new(), Prefix, Live;
        /// Context size of models whose size the list does not contain.
        pub context: u64 = 128_000, ContextSize, Live;
    }
}

/// A model that a provider lists, as one process passes it to the next: the provider, its name of the model, and the
/// context size if the list has it.
pub type DiscoveredModel = (Arc<str>, String, Option<u64>);

/// The beginning of an id.
struct Prefix;

impl Kind<String> for Prefix {
    #[inline]
    fn read(&self, reader: &mut Reader<'_>, field: Field<'_>) -> Option<String> {
        let text = reader.string(&field)?;
        let is_good = text.is_empty() || is_id(&text);
        if !is_good {
            reader.wrong(&field, "expected the beginning of an id, without spaces or any of , ? # % \" \\ *");
        }
        is_good.then_some(text)
    }

    #[inline]
    fn shown(&self, value: &String) -> Shown {
        Shown::Value(quoted(value))
    }
}

/// A model that a provider lists.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listed {
    /// The provider's name of it.
    pub model: String,
    /// Context size in tokens, if the list has it.
    pub context: Option<u64>,
}

impl Discover {
    /// Takes `discover` of a provider.
    #[inline]
    pub fn read(reader: &mut Reader<'_>, provider: &mut Section<'_>) -> Option<Discover> {
        let mut table = reader.table(provider, "discover")?;
        let mut discover = Discover::default();
        discover.read_rows(reader, &mut table);
        table.finish(reader);
        Some(discover)
    }

    /// Id of a listed model in the catalog; `None` if it is not a valid id.
    pub fn id_of(&self, model: &str) -> Option<String> {
        let id = format!("{}{model}", self.prefix);
        (!model.is_empty() && is_id(&id)).then_some(id)
    }
}
