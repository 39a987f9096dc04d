//! A row of the table: what it matches, its properties, and their source.

use super::pattern::Pattern;
use crate::policy::settings::kinds::{Flag, OneLine, Or, Pairs, Shown, Whole, Words};
use crate::policy::settings::reader::{Field, Reader, Section};
use crate::policy::settings::units::{quoted, quoted_list};
use crate::policy::settings::{Settings, section};
use crate::policy::vendors::capabilities::Capabilities;
use crate::wire::Shape;

/// Values of one selector.
const PATTERNS_MAX: usize = 64;
/// Names of the bound on completion tokens.
const BOUNDS: [&str; 3] = ["max_tokens", "max_completion_tokens", "max_output_tokens"];
/// Members that a translation can write without each other.
const TOGETHER: [&str; 2] = ["temperature", "top_p"];

section! {
    /// Properties of a vendor as a whole.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub struct Identity {
        /// Name in spans and metrics (`gen_ai.provider.name`).
        pub telemetry: Option<String> = None, Or(OneLine(64), "the configured name"), Live;
        /// Name in LiteLLM's list of prices.
        pub litellm: Option<String> = None, Or(OneLine(64), "none"), Live;
        /// Name in the list of prices of models.dev.
        pub models_dev: Option<String> = None, Or(OneLine(64), "none"), Live;
        /// Environment variables that usually hold its key.
        pub env: Vec<String> = Vec::new(), Words, Live;
        /// Usual base URL.
        pub base_url: Option<String> = None, Or(OneLine(256), "none"), Live;
        /// Usual port of a local server.
        pub port: Option<u16> = None, Or(Whole(1..=65_535), "none"), Live;
        /// Name for people.
        pub title: Option<String> = None, Or(OneLine(64), "the vendor's name"), Live;
        /// Header of the credential that its own documentation names, if it is not the format's.
        pub auth: Option<String> = None, Or(OneLine(64), "the format's"), Live;
        /// Its list of models lacks some that it serves.
        pub unlisted: Option<bool> = None, Or(Flag, "false"), Live;
        /// The provider understands a request for usage in a stream (shape `chat`).
        pub stream_usage: Option<bool> = None, Or(Flag, "true"), Live;
    }
}

section! {
    /// Properties of requests to a model that its capabilities do not express.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub struct RequestRules {
        /// Members that a translated request must not have, and that Tollgate must not add to any request.
        pub refuses: Vec<String> = Vec::new(), Words, Live;
        /// Pairs of members that a translated request must not have together; the first one is sent. Value: a list of
        /// pairs of `temperature` and `top_p`.
        pub never_together: Vec<[String; 2]> = Vec::new(), Pairs, Live;
        /// A user's message may directly follow a tool's (shape `chat`). If false, a text in a translated request
        /// continues the tool's message, and before attachments the assistant says `OK.`.
        pub user_after_tool: Option<bool> = None, Or(Flag, "true"), Live;
        /// Exact number of letters and digits in the id of a tool call (shape `chat`). Other ids in a translated
        /// request are replaced.
        pub call_id_length: Option<u8> = None, Or(Whole(8..=40), "any"), Live;
    }
}

/// Properties of a provider that rows compare.
#[derive(Copy, Clone, Debug)]
pub struct VendorPlace<'a> {
    /// Its vendor, if it is known.
    pub vendor: Option<&'a str>,
    /// The configuration names the vendor.
    pub says_vendor: bool,
    /// Its host.
    pub host: &'a str,
    /// API format.
    pub shape: Shape,
    /// The provider is on the local network.
    pub near: bool,
}

/// Properties of a model at a provider.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct VendorRules {
    /// Its capabilities.
    pub capabilities: Capabilities,
    /// Properties of requests to it.
    pub requests: RequestRules,
}

/// A row.
#[derive(Clone, Debug, Default)]
pub struct VendorRow {
    /// Vendors that the row belongs to. With `host` it says which hosts are a vendor's; without, it is for providers of
    /// these vendors. Value: a name, or a list of names. Default: all vendors.
    #[doc(alias = "name")]
    pub names: Vec<String>,
    /// Hosts of providers. In a pattern, `*` is any text and `[a-z0]` one character of a set; case is ignored. Value: a
    /// pattern, or a list of up to 64. Default: all hosts.
    #[doc(alias = "host")]
    pub hosts: Vec<Pattern>,
    /// Names of models at the provider: of the whole name, or of what follows its last `/`. Value: a pattern, or a list
    /// of up to 64. Default: all models.
    #[doc(alias = "model")]
    pub models: Vec<Pattern>,
    /// API formats of providers. Value: a name as in `shape` of a provider, or a list of names. Default: all formats.
    #[doc(alias = "shape")]
    pub shapes: Vec<Shape>,
    /// If true, the row is only for providers on the local network, if false only for others. Default: both.
    pub near: Option<bool>,
    /// Source: a page of the vendor, or a report. `tollgate models --why` shows it. Value: a text. Default: none.
    pub source: String,
    /// Date on which that was read. Value: a date. Default: none.
    pub date: String,
    place: String,
    /// The configuration has it.
    pub is_own: bool,
    /// Properties of the vendor.
    pub identity: Identity,
    /// Properties of the models.
    pub rules: VendorRules,
}

impl VendorRow {
    /// Reads a row that is at `place`.
    pub fn read(reader: &mut Reader<'_>, s: &mut Section<'_>, place: String, is_own: bool) -> VendorRow {
        let mut row = VendorRow { place, is_own, ..VendorRow::default() };
        let [names, hosts, models, shapes] = ["name", "host", "model", "shape"].map(|key| words(reader, s.take(key)));
        row.names = names.into_iter().map(|(_, name)| name).collect();
        row.hosts = patterns(reader, hosts);
        row.models = patterns(reader, models);
        let known = Shape::names();
        for (field, word) in shapes {
            match known.iter().find(|(name, _)| *name == word) {
                Some((_, shape)) => row.shapes.push(*shape),
                None => reader.wrong(&field, "expected the name of an API format"),
            }
        }
        row.near = s.take("near").and_then(|field| reader.boolean(&field));
        row.source = s.take("source").and_then(|field| reader.word(&field, 1024)).unwrap_or_default();
        row.date = s.take("date").and_then(|field| field.moment_text()).unwrap_or_default();
        row.identity.read_rows(reader, s);
        row.rules.capabilities.read_rows(reader, s);
        row.rules.requests.read_rows(reader, s);
        row.check(reader, s);
        s.finish(reader);
        row
    }

    /// Reports settings that could not have an effect, or would have a dangerous one.
    fn check(&self, reader: &mut Reader<'_>, s: &Section<'_>) {
        if !self.models.is_empty() && self.identity != Identity::default() {
            let text = "a property of a vendor as a whole belongs in a row without `model`";
            reader.report(s.start(), s.path_of("model"), text);
        }
        // The reservation of a request depends on the bound that is sent.
        if let Some(bound) = self.rules.requests.refuses.iter().find(|name| BOUNDS.contains(&name.as_str())) {
            let text = format!("`{bound}` cannot be refused here: use `drop_params` of the model");
            reader.report(s.place("refuses").unwrap_or(s.start()), s.path_of("refuses"), text);
        }
        let is_known = |pair: &[String; 2]| TOGETHER.iter().all(|known| pair.iter().any(|name| name == known));
        if !self.rules.requests.never_together.iter().all(is_known) {
            let at = s.place("never_together").unwrap_or(s.start());
            reader.report(at, s.path_of("never_together"), "expected a pair of temperature and top_p");
        }
    }

    /// True if it says where its properties come from, and when that was read.
    #[cfg(test)]
    pub fn is_sourced(&self) -> bool {
        !self.source.is_empty() && !self.date.is_empty()
    }

    /// Place and source of the row, for people.
    pub fn origin(&self) -> String {
        match (self.source.is_empty(), self.date.is_empty()) {
            (true, _) => self.place.clone(),
            (false, true) => format!("{}: {}", self.place, self.source),
            (false, false) => format!("{}: {} ({})", self.place, self.source, self.date),
        }
    }

    /// Its keys and values, for the effective configuration.
    pub fn settings(&self) -> Vec<(&'static str, String)> {
        let texts = |patterns: &[Pattern]| patterns.iter().map(|one| one.text().to_string()).collect();
        let shapes: Vec<String> = self.shapes.iter().map(|shape| shape.name().to_string()).collect();
        let lists = [
            ("name", self.names.clone()),
            ("host", texts(&self.hosts)),
            ("model", texts(&self.models)),
            ("shape", shapes),
        ];
        let lists = lists.into_iter().filter(|(_, list)| !list.is_empty()).map(|(key, list)| (key, quoted_list(&list)));
        let texts = [("source", &self.source), ("date", &self.date)].into_iter().filter(|(_, text)| !text.is_empty());
        let mut all: Vec<(&'static str, String)> = lists.collect();
        all.extend(self.near.map(|near| ("near", near.to_string())));
        all.extend(texts.map(|(key, text)| (key, quoted(text))));
        written(&self.identity, &mut all);
        written(&self.rules.capabilities, &mut all);
        written(&self.rules.requests, &mut all);
        all
    }

    /// True if its properties are those of a vendor as a whole.
    pub fn is_of_vendor(&self) -> bool {
        self.models.is_empty() && self.identity != Identity::default()
    }

    /// The vendor that the row says a host belongs to.
    pub fn defines(&self, host: &str) -> Option<&str> {
        let is_its = self.hosts.iter().any(|pattern| pattern.fits(host));
        self.names.first().filter(|_| is_its && self.models.is_empty()).map(String::as_str)
    }

    /// True if it can match a model there.
    pub fn fits_place(&self, place: &VendorPlace<'_>) -> bool {
        let is_vendors = self.names.is_empty() || self.names.iter().any(|name| place.vendor == Some(name));
        // A provider that says whose API it has may be at any host.
        let is_at_host = self.hosts.is_empty()
            || (place.says_vendor && !self.names.is_empty())
            || self.hosts.iter().any(|pattern| pattern.fits(place.host.trim_end_matches('.')));
        let has_shape = self.shapes.is_empty() || self.shapes.contains(&place.shape);
        is_vendors && is_at_host && has_shape && self.near.is_none_or(|near| near == place.near)
    }

    /// True if it matches a model there, by the whole name or by what follows its last `/`.
    pub fn fits(&self, place: &VendorPlace<'_>, model: &str) -> bool {
        let last = model.rsplit('/').next().unwrap_or(model);
        let is_model = |pattern: &Pattern| pattern.fits(model) || pattern.fits(last);
        self.fits_place(place) && (self.models.is_empty() || self.models.iter().any(is_model))
    }
}

/// Adds the settings that a section has.
fn written<S: Settings + Default>(section: &S, all: &mut Vec<(&'static str, String)>) {
    let none = S::default();
    for row in S::ROWS.iter().filter(|row| !(row.is_same)(section, &none)) {
        if let Shown::Value(value) = (row.get)(section) {
            all.push((row.key, value));
        }
    }
}

/// One text, or a list of texts.
fn words<'d>(reader: &mut Reader<'_>, field: Option<Field<'d>>) -> Vec<(Field<'d>, String)> {
    let Some(field) = field else { return Vec::new() };
    if let Some(text) = field.text().map(str::to_string) {
        return vec![(field, text)];
    }
    let (at, path, is_array) = (field.start(), field.path.clone(), field.is_array());
    let words = reader.strings(field);
    if is_array && !(1..=PATTERNS_MAX).contains(&words.len()) {
        reader.report(at, path, format!("expected 1 to {PATTERNS_MAX} entries"));
    }
    words
}

fn patterns(reader: &mut Reader<'_>, texts: Vec<(Field<'_>, String)>) -> Vec<Pattern> {
    let mut patterns = Vec::new();
    for (field, text) in texts {
        match Pattern::parse(&text) {
            Some(pattern) => patterns.push(pattern),
            None => reader.wrong(&field, "expected a pattern such as \"gpt-5*\" or \"o[1-4]*\""),
        }
    }
    patterns
}
