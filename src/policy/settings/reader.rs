//! Walks a parsed TOML document with its spans: takes fields, checks their types and ranges, collects errors and
//! warnings. It knows no key of the configuration. A reader never stops at the first error: an invalid field is
//! reported and counts as absent.

use super::units;
use std::fmt::{self, Display};
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};
use std::time::Duration;
use toml::de::{DeTable, DeValue};

/// Models, providers or plans in one configuration, and entries of one list.
pub const ENTRIES_MAX: usize = 1000;

/// Characters of a value that an error shows.
const FOUND_MAX: usize = 64;
/// Bytes of the example of a size, if they are within its range.
const SIZE_EXAMPLE: u64 = 32 << 20;

/// Names that other programs use for a setting: the name, a key of the table in which the hint is shown, and the
/// correct text.
const SAID_ELSEWHERE: [(&str, &str, &str); 7] = [
    ("requests_per_minute", "requests", "write `requests`, which counts per `window` (a minute by default)"),
    ("rpm", "requests", "write `requests`, which counts per `window` (a minute by default)"),
    ("rpm_limit", "requests", "write `requests`, which counts per `window` (a minute by default)"),
    ("tokens_per_minute", "tokens_per_window", "write `tokens_per_window` (a window is a minute by default)"),
    ("tpm", "tokens_per_window", "write `tokens_per_window` (a window is a minute by default)"),
    ("tpm_limit", "tokens_per_window", "write `tokens_per_window` (a window is a minute by default)"),
    ("max_budget", "budget", "write `budget`, which is US dollars per `period`"),
];

/// Error or outdated setting in a configuration. Shown as `tollgate.toml:12: models[0].context: expected …`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConfigError {
    /// The file as the caller named it.
    pub file: String,
    /// Line, from 1; `None` if the error belongs to no line.
    pub line: Option<u32>,
    /// Path of the field, empty for the document itself.
    pub field: String,
    /// The error and what was expected. Must never contain a secret.
    pub message: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file)?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        if !self.field.is_empty() {
            write!(f, ": {}", self.field)?;
        }
        write!(f, ": {}", self.message)
    }
}

/// Runs a program and returns its output, by path and arguments and the variables to remove from its environment.
pub type RunProgram<'a> = dyn Fn(&[String], &[String]) -> std::io::Result<String> + 'a;

/// A configuration text, and functions to read what it refers to.
pub struct Source<'a> {
    /// File name, for errors. Relative paths are resolved against its folder.
    pub file: &'a str,
    /// Content of the file.
    pub text: &'a str,
    /// The value of an environment variable.
    pub env: &'a dyn Fn(&str) -> Option<String>,
    /// The content of a file, for secrets and certificates.
    pub read: &'a dyn Fn(&str) -> std::io::Result<String>,
    /// Output of a program, for secrets, by path and arguments and the variables to remove from its environment.
    pub run: &'a RunProgram<'a>,
}

impl Source<'_> {
    /// Function for callers that run no programs.
    pub fn no_program(_: &[String], _: &[String]) -> std::io::Result<String> {
        Err(std::io::Error::new(std::io::ErrorKind::Unsupported, "no program is run here"))
    }
}

/// Collects errors and warnings, each with its byte offset, and reads what a document refers to.
pub struct Reader<'a> {
    source: &'a Source<'a>,
    errors: Vec<(usize, ConfigError)>,
    warnings: Vec<(usize, ConfigError)>,
    /// Files of certificates and keys, with the fields that name them.
    pem_files: Vec<(PathBuf, ConfigError)>,
}

/// A table whose fields are taken one by one. Fields left at the end are unknown.
pub struct Section<'d> {
    path: String,
    span: Range<usize>,
    entries: DeTable<'d>,
    /// Keys that were requested, and their byte offsets if found.
    asked: Vec<(&'static str, Option<usize>)>,
}

/// Value with its path and byte offset.
pub struct Field<'d> {
    /// Path such as `models[0].targets[1].weight`.
    pub path: String,
    span: Range<usize>,
    value: DeValue<'d>,
}

impl<'d> Section<'d> {
    /// Takes the field called `key`, if it exists.
    pub fn take(&mut self, key: &'static str) -> Option<Field<'d>> {
        let field = self.remove(key);
        self.asked.push((key, field.as_ref().map(Field::start)));
        field
    }

    fn remove(&mut self, key: &str) -> Option<Field<'d>> {
        let value = self.entries.remove(key)?;
        Some(Field { path: self.path_of(key), span: value.span(), value: value.into_inner() })
    }

    /// Takes every field that is left, by name.
    pub fn take_rest(&mut self) -> Vec<(String, Field<'d>)> {
        let mut rest = Vec::new();
        for (key, value) in std::mem::take(&mut self.entries) {
            let path = self.path_of(key.get_ref());
            let span = value.span();
            rest.push((key.into_inner().into_owned(), Field { path, span, value: value.into_inner() }));
        }
        rest
    }

    /// Reports the fields that were not requested, with the known keys.
    pub fn finish(&mut self, reader: &mut Reader<'_>) {
        for (key, _) in std::mem::take(&mut self.entries) {
            let name = key.get_ref();
            let known: Vec<&str> = self.asked.iter().map(|(asked, _)| *asked).collect();
            let near = known.iter().find(|asked| is_near(asked, name));
            let elsewhere = SAID_ELSEWHERE.iter().find(|(other, key, _)| other == name && known.contains(key));
            let hint = match (elsewhere, near) {
                (Some((_, _, hint)), _) => (*hint).to_string(),
                (None, Some(near)) => format!("did you mean `{near}`?"),
                (None, None) => format!("known are {}", known.join(", ")),
            };
            reader.report(key.span().start, self.path_of(name), format!("unknown key; {hint}"));
        }
    }

    /// Path of the field `key` of this table.
    pub fn path_of(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_string() } else { format!("{}.{key}", self.path) }
    }

    /// Byte offset of the value of `key`, if it exists and is not taken yet.
    pub fn peek_start(&self, key: &str) -> Option<usize> {
        self.entries.get(key).map(|value| value.span().start)
    }

    /// Number of elements of the array `key`, if it exists and is not taken yet.
    pub fn peek_length(&self, key: &str) -> usize {
        self.entries.get(key).and_then(|value| value.get_ref().as_array()).map_or(0, |items| items.len())
    }

    /// Tables of the array `key`, if it exists and is not taken yet.
    pub fn peek_tables(&self, key: &str) -> impl Iterator<Item = &DeTable<'d>> {
        let items = self.entries.get(key).and_then(|value| value.get_ref().as_array());
        items.into_iter().flat_map(|items| items.iter()).filter_map(|item| item.get_ref().as_table())
    }

    /// True if the table `key` exists, is not taken yet, and has the field `member`.
    pub fn peek_member(&self, key: &str, member: &str) -> bool {
        let table = self.entries.get(key).and_then(|value| value.get_ref().as_table());
        table.is_some_and(|table| table.contains_key(member))
    }

    /// Byte offset of the value of `key`, if it was requested and exists.
    pub fn place(&self, key: &str) -> Option<usize> {
        self.asked.iter().find(|(asked, _)| *asked == key).and_then(|(_, place)| *place)
    }

    /// Byte offset of the table, for errors about missing fields.
    pub fn start(&self) -> usize {
        self.span.start
    }
}

impl Field<'_> {
    /// Byte offset of the value.
    pub fn start(&self) -> usize {
        self.span.start
    }

    /// Parsed value.
    pub(in crate::settings) fn value(&self) -> &DeValue<'_> {
        &self.value
    }

    /// True if it is an array.
    pub fn is_array(&self) -> bool {
        matches!(self.value, DeValue::Array(_))
    }

    /// True if it is a table.
    pub fn is_table(&self) -> bool {
        matches!(self.value, DeValue::Table(_))
    }

    /// The number, if it is one, of either kind.
    pub fn number(&self) -> Option<f64> {
        match &self.value {
            DeValue::Integer(number) => number.as_str().parse().ok(),
            DeValue::Float(number) => number.as_str().replace('_', "").parse().ok(),
            _ => None,
        }
    }

    /// Text of a decimal number, if the value is one.
    pub fn decimal(&self) -> Option<&str> {
        match &self.value {
            DeValue::Integer(number) if number.radix() == 10 => Some(number.as_str()),
            DeValue::Float(number) => Some(number.as_str()),
            _ => None,
        }
    }

    /// The text, if it is one.
    pub fn text(&self) -> Option<&str> {
        match &self.value {
            DeValue::String(text) => Some(text),
            _ => None,
        }
    }

    /// True if it is an integer.
    pub fn is_integer(&self) -> bool {
        matches!(self.value, DeValue::Integer(_))
    }

    /// True if it is a string.
    pub fn is_text(&self) -> bool {
        matches!(self.value, DeValue::String(_))
    }

    /// The value as an error shows it: a scalar as written, cut to [`FOUND_MAX`] characters, otherwise its type.
    fn found(&self) -> String {
        match &self.value {
            DeValue::String(text) => match text.char_indices().nth(FOUND_MAX) {
                Some((end, _)) => {
                    format!("{} … ({} characters)", units::quoted(&text[..end]), text.chars().count())
                }
                None => units::quoted(text),
            },
            DeValue::Integer(number) => number.to_string(),
            DeValue::Float(number) => number.to_string(),
            DeValue::Boolean(value) => value.to_string(),
            DeValue::Datetime(moment) => moment.to_string(),
            other => type_of(other),
        }
    }

    /// Text of a date or date-time, written as a string or as TOML's own type.
    pub fn moment_text(&self) -> Option<String> {
        match &self.value {
            DeValue::String(text) => Some(text.to_string()),
            DeValue::Datetime(moment) => Some(moment.to_string()),
            _ => None,
        }
    }
}

/// True if one inserted, missing, changed or swapped character turns one word into the other.
pub fn is_near(known: &str, written: &str) -> bool {
    let (mut a, mut b): (&[u8], &[u8]) = (known.as_bytes(), written.as_bytes());
    while let (Some((x, rest_a)), Some((y, rest_b))) = (a.split_first(), b.split_first()) {
        if x != y {
            break;
        }
        (a, b) = (rest_a, rest_b);
    }
    while let (Some((x, rest_a)), Some((y, rest_b))) = (a.split_last(), b.split_last()) {
        if x != y {
            break;
        }
        (a, b) = (rest_a, rest_b);
    }
    let swapped = a.len() == 2 && b.len() == 2 && a[0] == b[1] && a[1] == b[0];
    known.len() > 2 && (a.len().max(b.len()) <= 1 || swapped)
}

impl<'a> Reader<'a> {
    /// A reader without errors.
    pub fn new(source: &'a Source<'a>) -> Reader<'a> {
        Reader { source, errors: Vec::new(), warnings: Vec::new(), pem_files: Vec::new() }
    }

    /// The document's top table; `None` after a syntax error, which is reported.
    pub fn document(&mut self) -> Option<Section<'a>> {
        match DeTable::parse(self.source.text) {
            Ok(table) => Some(section(String::new(), table.span(), table.into_inner())),
            Err(error) => {
                let span = error.span().unwrap_or_default();
                // Some messages, such as "duplicate key", do not show the place that the span is of.
                let name = self.source.text.get(span.clone()).filter(|_| error.message() == "duplicate key");
                let name = name.map_or(String::new(), |name| format!(" {}", name.trim()));
                self.report(span.start, String::new(), error.message().replace('\n', ", ") + &name);
                None
            }
        }
    }

    /// Takes the named files of certificates and keys, with the fields that name them.
    pub fn take_pem_files(&mut self) -> Vec<(PathBuf, ConfigError)> {
        std::mem::take(&mut self.pem_files)
    }

    /// Number of errors found so far.
    pub(in crate::settings) fn mistakes(&self) -> usize {
        self.errors.len()
    }

    /// All errors and all warnings, each in the order of the document.
    pub fn finish(self) -> (Vec<ConfigError>, Vec<ConfigError>) {
        let sorted = |mut list: Vec<(usize, ConfigError)>| {
            list.sort_by_key(|(at, _)| *at);
            list.into_iter().map(|(_, error)| error).collect()
        };
        (sorted(self.errors), sorted(self.warnings))
    }

    /// Reports an error at a byte of the document.
    pub fn report(&mut self, at: usize, field: String, message: impl Display) {
        let error = self.error_at(at, field, message);
        self.errors.push((at, error));
    }

    /// Warns about a valid but doubtful setting at a byte of the document.
    pub fn warn(&mut self, at: usize, field: String, message: impl Display) {
        let warning = self.error_at(at, field, message);
        self.warnings.push((at, warning));
    }

    fn error_at(&self, at: usize, field: String, message: impl Display) -> ConfigError {
        let before = self.source.text.as_bytes().get(..at).unwrap_or_default();
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        let (file, line) = (self.source.file.to_string(), u32::try_from(line).ok());
        ConfigError { file, line, field, message: message.to_string() }
    }

    /// Reports that `field` breaks `rule`, and shows its value. Must never be used for a field that can hold a secret.
    pub fn wrong(&mut self, field: &Field<'_>, rule: impl Display) {
        self.error(field, format!("{rule}, found {}", field.found()));
    }

    /// Reports that `field` is wrong.
    pub fn error(&mut self, field: &Field<'_>, message: impl Display) {
        self.report(field.span.start, field.path.clone(), message);
    }

    /// True if the value at `path`, or a value in it, has an error.
    pub fn is_wrong(&self, path: &str) -> bool {
        self.errors.iter().any(|(_, error)| error.field.starts_with(path))
    }

    /// Takes `key` or reports that it is missing.
    pub fn required<'d>(&mut self, section: &mut Section<'d>, key: &'static str) -> Option<Field<'d>> {
        let field = section.take(key);
        if field.is_none() {
            self.report(section.start(), section.path_of(key), "missing, but required");
        }
        field
    }

    /// Takes `key` as a table.
    pub fn table<'d>(&mut self, section: &mut Section<'d>, key: &'static str) -> Option<Section<'d>> {
        let field = section.take(key)?;
        self.as_table(field)
    }

    /// The table that `field` must be.
    pub fn as_table<'d>(&mut self, field: Field<'d>) -> Option<Section<'d>> {
        match field.value {
            DeValue::Table(entries) => Some(self::section(field.path, field.span, entries)),
            ref other => {
                self.error(&field, expected("a table", other));
                None
            }
        }
    }

    /// Takes `key` as an array of tables: `[[key]]`. An absent key is an empty array.
    pub fn tables<'d>(&mut self, section: &mut Section<'d>, key: &'static str, most: usize) -> Vec<Section<'d>> {
        let Some(field) = section.take(key) else { return Vec::new() };
        if matches!(field.value, DeValue::Table(_)) {
            self.error(&field, format!("expected an array of tables: [[{key}]] instead of [{key}]"));
            return Vec::new();
        }
        self.items(field, most).into_iter().filter_map(|item| self.as_table(item)).collect()
    }

    /// The elements of an array.
    pub fn items<'d>(&mut self, field: Field<'d>, most: usize) -> Vec<Field<'d>> {
        let DeValue::Array(array) = field.value else {
            self.error(&field, expected("an array", &field.value));
            return Vec::new();
        };
        if array.len() > most {
            self.report(
                field.span.start,
                field.path.clone(),
                format!("expected at most {most} entries, found {}", array.len()),
            );
        }
        let mut items = Vec::new();
        for (index, value) in array.into_iter().take(most).enumerate() {
            let path = format!("{}[{index}]", field.path);
            items.push(Field { path, span: value.span(), value: value.into_inner() });
        }
        items
    }

    /// The string that `field` must be.
    pub fn string(&mut self, field: &Field<'_>) -> Option<String> {
        match &field.value {
            DeValue::String(text) => Some(text.to_string()),
            _ => {
                self.wrong(field, "expected a string");
                None
            }
        }
    }

    /// A string of 1 to `most` characters, none of them a control character.
    pub fn word(&mut self, field: &Field<'_>, most: usize) -> Option<String> {
        let text = self.string(field)?;
        if text.is_empty() || text.chars().count() > most || text.chars().any(char::is_control) {
            self.wrong(field, format!("expected 1 to {most} characters, none of them a control character"));
            return None;
        }
        Some(text)
    }

    /// The strings in the array that `field` must be, each with its own field.
    pub fn strings<'d>(&mut self, field: Field<'d>) -> Vec<(Field<'d>, String)> {
        let mut strings = Vec::new();
        for item in self.items(field, ENTRIES_MAX) {
            if let Some(text) = self.string(&item) {
                strings.push((item, text));
            }
        }
        strings
    }

    /// The boolean that `field` must be.
    pub fn boolean(&mut self, field: &Field<'_>) -> Option<bool> {
        match &field.value {
            DeValue::Boolean(value) => Some(*value),
            _ => {
                self.wrong(field, "expected true or false");
                None
            }
        }
    }

    /// The integer within `range` that `field` must be.
    pub fn integer(&mut self, field: &Field<'_>, range: &RangeInclusive<u64>) -> Option<u64> {
        let DeValue::Integer(number) = &field.value else {
            self.wrong(field, "expected an integer");
            return None;
        };
        let value = u64::from_str_radix(number.as_str(), number.radix()).ok().filter(|value| range.contains(value));
        if value.is_none() {
            self.wrong(field, format!("expected an integer from {} to {}", range.start(), range.end()));
        }
        value
    }

    /// The duration within `range` that `field` must be.
    pub fn duration(&mut self, field: &Field<'_>, range: &RangeInclusive<Duration>) -> Option<Duration> {
        let value = match &field.value {
            DeValue::String(text) => units::duration(text).filter(|value| range.contains(value)),
            _ => None,
        };
        if value.is_none() {
            let (least, most) = (units::duration_text(*range.start()), units::duration_text(*range.end()));
            self.wrong(field, format!("expected a duration from \"{least}\" to \"{most}\" with its unit (ms s m h d)"));
        }
        value
    }

    /// The size in bytes within `range` that `field` must be.
    pub fn size(&mut self, field: &Field<'_>, range: &RangeInclusive<u64>) -> Option<u64> {
        let value = match &field.value {
            DeValue::String(text) => units::size(text).filter(|value| range.contains(value)),
            DeValue::Integer(number) => {
                u64::from_str_radix(number.as_str(), number.radix()).ok().filter(|value| range.contains(value))
            }
            _ => None,
        };
        if value.is_none() {
            let (least, most) = (units::size_text(*range.start()), units::size_text(*range.end()));
            let example = units::size_text(SIZE_EXAMPLE.clamp(*range.start(), *range.end()));
            self.wrong(field, format!("expected a size from \"{least}\" to \"{most}\", such as \"{example}\""));
        }
        value
    }

    /// Index of the choice that `field` must name.
    pub fn choice(&mut self, field: &Field<'_>, names: &[&str]) -> Option<usize> {
        let text = self.string(field)?;
        let found = names.iter().position(|name| *name == text);
        if found.is_none() {
            let near = names.iter().find(|name| is_near(name, &text));
            let near = near.map_or(String::new(), |near| format!(" (did you mean \"{near}\"?)"));
            self.wrong(field, format!("expected one of {}{near}", names.join(", ")));
        }
        found
    }

    /// The readable file, relative to the configuration, that `field` must name; its text contains `marker`.
    pub fn pem_file(&mut self, field: &Field<'_>, marker: &str) -> Option<PathBuf> {
        let written = self.string(field)?;
        let path = self.resolve(&written);
        match (self.source.read)(&path.to_string_lossy()) {
            Ok(text) if text.contains(marker) => {
                self.pem_files.push((path.clone(), self.error_at(field.span.start, field.path.clone(), "")));
                return Some(path);
            }
            Ok(_) => self.error(field, format!("`{}` does not contain the expected kind of PEM block", path.display())),
            Err(error) => self.error(field, format!("cannot read `{}`: {error}", path.display())),
        }
        None
    }

    /// Source of the document.
    pub(in crate::settings) fn source(&self) -> &'a Source<'a> {
        self.source
    }

    /// Resolves `written` against the folder of the configuration.
    pub fn resolve(&self, written: impl AsRef<Path>) -> PathBuf {
        let folder = Path::new(self.source.file).parent().unwrap_or(Path::new(""));
        folder.join(written)
    }
}

/// A table without taken fields.
fn section<'d>(path: String, span: Range<usize>, entries: DeTable<'d>) -> Section<'d> {
    Section { path, span, entries, asked: Vec::new() }
}

/// Message such as "expected a table, found a string". It does not show the value, which can be a secret.
fn expected(what: &str, found: &DeValue<'_>) -> String {
    format!("expected {what}, found {}", type_of(found))
}

/// Type of a value, such as "an integer".
fn type_of(value: &DeValue<'_>) -> String {
    let name = value.type_str();
    let article = if name.starts_with(['a', 'i']) { "an" } else { "a" };
    format!("{article} {name}")
}
