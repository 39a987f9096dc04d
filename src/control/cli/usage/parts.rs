//! Properties that a usage report is broken down by, and the details of keys that it shows.

use super::sessions::{SessionDetail, Sessions};
use crate::base::limits::KEYS_PAGE;
use crate::cli::output::Failure;
use crate::policy::keys::{KeyId, KeyRecord, label_from};
use crate::store::api::{By, UsageLine};
use crate::store::ledger::Ledger;
use std::collections::BTreeMap;

/// A property to break down by: one of the sums, or one derived from them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Part {
    /// Value of the sums.
    Sums(By, &'static str),
    /// Provider, the first part of a target's name.
    Provider,
    /// The key's label with this name.
    Label(String),
}

/// Breakdown of the report: one property, or two.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Breakdown(pub(super) Vec<Part>);

impl Breakdown {
    /// True for a report by session alone, whose lines have details.
    pub(super) fn is_by_session(&self) -> bool {
        is_by_session(&self.0)
    }

    /// Properties to query from the sums, each once.
    pub(super) fn sums(&self) -> Vec<By> {
        let mut by: Vec<By> = Vec::new();
        for part in &self.0 {
            if !by.contains(&part.by()) {
                by.push(part.by());
            }
        }
        by
    }
}

/// See [`Breakdown::is_by_session`].
pub(super) fn is_by_session(parts: &[Part]) -> bool {
    matches!(parts, [part] if part.by() == By::Session)
}

impl Default for Breakdown {
    fn default() -> Breakdown {
        Breakdown(vec![Part::Sums(By::Key, "key")])
    }
}

/// Properties of the sums, and their names.
pub(super) const SUMS: [(By, &str); 10] = [
    (By::Key, "key"),
    (By::Group, "group"),
    (By::Model, "model"),
    (By::Target, "target"),
    (By::Day, "day"),
    (By::Endpoint, "endpoint"),
    (By::Client, "client"),
    (By::User, "user"),
    (By::Session, "session"),
    (By::Agent, "agent"),
];

impl Part {
    pub(super) fn parse(text: &str) -> Option<Part> {
        if let Some(name) = text.strip_prefix("label:") {
            let known = label_from(&format!("{name}=")).is_some_and(|(known, _)| known == name);
            return known.then(|| Part::Label(name.to_string()));
        }
        let sums = SUMS.iter().find(|(_, name)| *name == text).map(|(by, name)| Part::Sums(*by, name));
        sums.or_else(|| (text == "provider").then_some(Part::Provider))
    }

    /// Property to query from the sums.
    pub(super) fn by(&self) -> By {
        match self {
            Part::Sums(by, _) => *by,
            Part::Provider => By::Target,
            Part::Label(_) => By::Key,
        }
    }

    /// Name on the command line and in reports.
    pub(super) fn name(&self) -> String {
        match self {
            Part::Sums(_, name) => (*name).to_string(),
            Part::Provider => "provider".to_string(),
            Part::Label(name) => format!("label:{name}"),
        }
    }

    /// Value of this property for a value of the sums.
    pub(super) fn of(&self, value: &str, keys: &KeyDetails) -> String {
        match self {
            Part::Sums(..) => value.to_string(),
            Part::Provider => value.split('/').next().unwrap_or_default().to_string(),
            Part::Label(name) => {
                let label = keys.get(value).and_then(|key| key.labels.iter().find(|(known, _)| known == name));
                label.map_or(String::new(), |(_, value)| value.clone())
            }
        }
    }
}

/// Details of keys that a report shows.
#[derive(Default)]
pub(super) struct KeyDetails(pub(super) BTreeMap<KeyId, KeyDetail>);

/// Details of a key.
#[derive(Default)]
pub(super) struct KeyDetail {
    /// The labels that the report is broken down by.
    pub(super) labels: Vec<(String, String)>,
    /// Its name, if a line is about it; empty if the ledger does not know it.
    pub(super) name: Option<String>,
}

impl KeyDetails {
    /// Reads the labels in `by`.
    pub(super) fn labels(by: &Breakdown, ledger: &mut Ledger) -> Result<KeyDetails, Failure> {
        let mut known = KeyDetails::default();
        let shown = |name: &str| by.0.iter().any(|part| matches!(part, Part::Label(label) if label == name));
        if by.0.iter().any(|part| matches!(part, Part::Label(_))) {
            let take = &mut |mut key: KeyRecord| {
                key.labels.retain(|(name, _)| shown(name));
                if !key.labels.is_empty() {
                    known.0.entry(key.id).or_default().labels = key.labels;
                }
            };
            ledger.each_key(take).map_err(Failure::failed)?;
        }
        Ok(known)
    }

    /// Reads the names of the keys in these lines and of their sessions.
    pub(super) fn read_names(
        &mut self,
        by: &Breakdown,
        (lines, sessions): (&[UsageLine], &Sessions),
        ledger: &mut Ledger,
    ) -> Result<(), Failure> {
        let place = by.0.iter().position(|part| matches!(part, Part::Sums(By::Key, _)));
        let id = |line: &UsageLine| KeyId::parse(if place? == 0 { &line.name } else { line.second.as_deref()? });
        let ids = lines.iter().filter_map(id).chain(sessions.values().filter_map(SessionDetail::key));
        ids.for_each(|id| self.0.entry(id).or_default().name = Some(String::new()));
        let ids: Vec<KeyId> = self.0.iter().filter(|(_, key)| key.name.is_some()).map(|(id, _)| *id).collect();
        for ids in ids.chunks(KEYS_PAGE.0) {
            for key in ledger.find_keys(ids).map_err(Failure::failed)? {
                self.0.entry(key.id).or_default().name = Some(key.name);
            }
        }
        Ok(())
    }

    /// Details of the key with the id `id`.
    pub(super) fn get(&self, id: &str) -> Option<&KeyDetail> {
        self.0.get(&KeyId::parse(id)?)
    }
}
