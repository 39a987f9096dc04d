//! Knowledge of vendors as data: what the provider of an API format refuses, requires or means.
//!
//! Owns the rows, in `table.toml` and in the configuration, and the choice among them: for each property, the first row
//! that matches and has it decides, and a setting of the model or the provider comes before all rows. Everything is
//! resolved when a configuration is read; no request looks at a row. Code asks for properties and names no vendor.

pub mod capabilities;
mod pattern;
mod row;

pub use row::{Identity, RequestRules, VendorPlace, VendorRow, VendorRules};

use self::capabilities::Capabilities;
use super::settings::reader::{Reader, Section, Source};
use super::settings::{Settings, kinds::Shown};
use crate::base::packed::Packed;
use std::sync::Arc;

/// Rows of a configuration, and of the file that it names.
const ROWS_MAX: usize = 200;

/// The rows that can match a provider of a configuration: its own, then the built-in ones.
#[derive(Clone, Debug, Default)]
pub struct Vendors {
    rows: Vec<Arc<VendorRow>>,
}

/// A property of a target, with its value and its origin, for people.
pub struct Explained {
    /// Name of the property.
    pub name: &'static str,
    /// Its value as TOML, or what its absence means.
    pub value: String,
    /// Origin of the value.
    pub origin: String,
}

fn built_in() -> String {
    static TABLE: Packed = Packed(include_bytes!(concat!(env!("OUT_DIR"), "/vendors")));
    TABLE.text()
}

impl Vendors {
    /// Reads `[[vendors]]`, followed by the built-in rows.
    pub fn read(reader: &mut Reader<'_>, top: &mut Section<'_>) -> Vendors {
        let mut rows: Vec<Arc<VendorRow>> = Vec::new();
        for (at, mut section) in reader.tables(top, "vendors", ROWS_MAX).into_iter().enumerate() {
            rows.push(Arc::new(VendorRow::read(reader, &mut section, format!("[[vendors]] row {}", at + 1), true)));
        }
        rows.extend(Vendors::built_in().rows);
        Vendors { rows }
    }

    /// Returns the built-in rows.
    pub fn built_in() -> Vendors {
        let no_file = |_: &str| Err(std::io::ErrorKind::NotFound.into());
        let mut rows = Vec::new();
        // One row at a time, so that little memory is needed.
        for (at, text) in built_in().split("[[vendors]]\n").skip(1).enumerate() {
            let source = Source { file: "vendors", text, env: &|_| None, read: &no_file, run: &Source::no_program };
            let mut reader = Reader::new(&source);
            if let Some(mut section) = reader.document() {
                rows.push(Arc::new(VendorRow::read(
                    &mut reader,
                    &mut section,
                    format!("built in, row {}", at + 1),
                    false,
                )));
            }
            let (errors, _) = reader.finish();
            debug_assert!(errors.is_empty(), "built-in row {}: {errors:?}", at + 1);
        }
        Vendors { rows }
    }

    /// Returns all rows.
    pub fn rows(&self) -> impl Iterator<Item = &VendorRow> {
        self.rows.iter().map(|row| &**row)
    }

    /// Returns the rows of the configuration.
    pub fn own(&self) -> impl Iterator<Item = &VendorRow> {
        self.rows.iter().map(|row| &**row).filter(|row| row.is_own)
    }

    /// Returns the vendor of a provider with this host, by the first row that defines it.
    pub fn of_host(&self, host: &str) -> Option<&str> {
        let host = host.trim_end_matches('.');
        self.rows.iter().find_map(|row| row.defines(host))
    }

    /// True if a row names this vendor.
    pub fn knows(&self, name: &str) -> bool {
        self.rows.iter().any(|row| row.names.iter().any(|known| known == name))
    }

    /// Returns the names of all vendors.
    pub fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.rows.iter().flat_map(|row| &row.names).map(String::as_str).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Keeps only the rows that can match a provider at one of these places.
    pub fn keep_for(&mut self, places: &[VendorPlace<'_>]) {
        self.rows.retain(|row| row.is_own || places.iter().any(|place| row.fits_place(place)));
    }

    /// Returns the properties of the vendor as a whole.
    pub fn identity(&self, place: &VendorPlace<'_>) -> Identity {
        let mut found = Identity::default();
        self.identities_at(place).for_each(|row| fill(&mut found, &row.identity));
        found
    }

    fn identities_at<'a>(&'a self, place: &'a VendorPlace<'_>) -> impl Iterator<Item = &'a VendorRow> + Clone {
        self.rows.iter().map(|row| &**row).filter(move |row| row.is_of_vendor() && row.fits_place(place))
    }

    /// Returns the identity of each vendor that has one, in the order of the table.
    pub fn identities(&self) -> Vec<(&str, &Identity)> {
        let defining = self.rows.iter().filter(|row| row.is_of_vendor());
        defining.filter_map(|row| Some((row.names.first()?.as_str(), &row.identity))).collect()
    }

    /// Returns the properties of the model that is called `model` at a place. `own`: the model's settings.
    pub fn rules(&self, place: &VendorPlace<'_>, model: &str, own: &Capabilities) -> VendorRules {
        let mut rules = VendorRules { capabilities: *own, ..VendorRules::default() };
        for row in self.matching(place, model) {
            fill(&mut rules.capabilities, &row.rules.capabilities);
            fill(&mut rules.requests, &row.rules.requests);
        }
        rules
    }

    /// Explains the properties of a target.
    pub fn explain(&self, place: &VendorPlace<'_>, model: &str, own: &Capabilities) -> Vec<Explained> {
        let mut all = Vec::new();
        explain(&mut all, None, self.identities_at(place).map(|row| (row, &row.identity)));
        let matching = || self.matching(place, model);
        explain(&mut all, Some(own), matching().map(|row| (row, &row.rules.capabilities)));
        explain(&mut all, None, matching().map(|row| (row, &row.rules.requests)));
        all
    }

    fn matching<'a>(
        &'a self,
        place: &'a VendorPlace<'_>,
        model: &'a str,
    ) -> impl Iterator<Item = &'a VendorRow> + Clone {
        self.rows.iter().map(|row| &**row).filter(move |row| row.fits(place, model))
    }
}

/// Gives `to` the properties that it lacks and `from` has.
fn fill<S: Settings + Default>(to: &mut S, from: &S) {
    let none = S::default();
    for row in S::ROWS {
        if (row.is_same)(to, &none) {
            (row.copy)(to, from);
        }
    }
}

/// Adds each property that the model's own settings or a row has.
fn explain<'a, S: Settings + Default>(
    all: &mut Vec<Explained>,
    own: Option<&S>,
    rows: impl Iterator<Item = (&'a VendorRow, &'a S)> + Clone,
) {
    let none = S::default();
    for property in S::ROWS {
        let has = |section: &S| !(property.is_same)(section, &none);
        let mut found = own.filter(|own| has(own)).map(|own| ("the model's `capabilities`".to_string(), own));
        if found.is_none() {
            found = rows.clone().find(|(_, section)| has(section)).map(|(row, section)| (row.origin(), section));
        }
        let (origin, section) = found.unwrap_or_else(|| ("default of the format".to_string(), &none));
        let value = match (property.get)(section) {
            Shown::Value(value) => value,
            Shown::Words(words) => words.to_string(),
        };
        all.push(Explained { name: property.key, value, origin });
    }
}

#[cfg(test)]
mod tests;
