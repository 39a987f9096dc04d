//! Values that must never appear in a log, error or listing: their sources, their reader, and the check that a header
//! can carry them.

use super::reader::{Field, Reader, Section};
use super::units::{duration_text, quoted, quoted_list};
use crate::base::text::looks_secret;
use std::collections::BTreeSet;
use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;
use toml::de::{DeTable, DeValue};

/// Bytes from which a word may be a secret.
const SECRET_MIN: usize = 16;
/// Bytes of a secret; a key is never longer.
const SECRET_MAX: usize = 16 * 1024;
/// Words of a program that prints a secret, its path among them.
const PROGRAM_MAX: usize = 64;
/// Range of the time between two runs of such a program.
const REFRESH: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(30 * 86_400);
/// Default of that time: most short-lived tokens last an hour.
const REFRESH_USUAL: Duration = Duration::from_secs(45 * 60);
/// Range of the weight of a secret in a list.
const WEIGHTS: RangeInclusive<u64> = 1..=1000;

/// Source of a secret, which is printed instead of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Origin {
    /// An environment variable of this name.
    Env(String),
    /// A file. A relative path is resolved against the folder of the configuration.
    File(String),
    /// A program that prints it.
    Command {
        /// Path and arguments.
        program: Vec<String>,
        /// Time from one run to the next.
        refresh: Duration,
    },
}

impl fmt::Display for Origin {
    /// Writes the reference as in the configuration.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{ {} }}", self.members())
    }
}

impl Origin {
    /// Members of the table that refers to it.
    pub fn members(&self) -> String {
        match self {
            Origin::Env(name) => format!("env = {}", quoted(name)),
            Origin::File(path) => format!("file = {}", quoted(path)),
            Origin::Command { program, refresh } => {
                format!("command = {}, refresh = {}", quoted_list(program), quoted(&duration_text(*refresh)))
            }
        }
    }
}

/// A value that must never appear in a log, error or listing.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    value: String,
    origin: Origin,
}

impl Secret {
    /// Hides `value`.
    pub fn new(value: String, origin: Origin) -> Secret {
        Secret { value, origin }
    }

    /// The value itself. Only for the wire and for comparisons.
    pub fn expose(&self) -> &str {
        &self.value
    }

    /// Source of the secret.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Replaces the value by a new one. Returns false if it is the same, or if no header can carry it.
    pub fn renew(&mut self, value: &str) -> bool {
        let Some(value) = fit(value).ok().filter(|value| *value != self.value) else { return false };
        self.value = value.to_string();
        true
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// A secret without the blanks around it, or the reason why no header can carry it.
pub fn fit(value: &str) -> Result<&str, &'static str> {
    let value = value.trim();
    match value {
        "" => Err("is empty"),
        _ if value.len() > SECRET_MAX => Err("is longer than 16 KiB"),
        _ if !value.bytes().all(|b| b.is_ascii_graphic() || b == b' ') => {
            Err("has characters that a header cannot carry")
        }
        _ => Ok(value),
    }
}

/// Environment variables that a configuration names as secrets, in order, each once. A program that prints one secret
/// does not get the others.
pub fn variables(text: &str) -> Vec<String> {
    fn collect(value: &DeValue<'_>, names: &mut BTreeSet<String>) {
        match value {
            DeValue::Array(items) => items.iter().for_each(|item| collect(item.get_ref(), names)),
            DeValue::Table(table) => collect_in(table, names),
            _ => {}
        }
    }
    fn collect_in(table: &DeTable<'_>, names: &mut BTreeSet<String>) {
        for (key, value) in table {
            match value.get_ref() {
                DeValue::String(name) if key.get_ref() == "env" => drop(names.insert(name.to_string())),
                value => collect(value, names),
            }
        }
    }
    let mut names = BTreeSet::new();
    // The reader of the document reports its errors.
    if let Ok(document) = DeTable::parse(text) {
        collect_in(document.get_ref(), &mut names);
    }
    names.into_iter().collect()
}

/// Reads the settings of a credential in a list that are not about its secret.
pub type ListedSettings<'a> = &'a mut dyn FnMut(&mut Reader<'_>, &mut Section<'_>);

impl Reader<'_> {
    /// The secret that `field` must refer to: `{ env = "NAME" }` or `{ file = "path" }`. A literal is refused, and
    /// errors must never repeat it.
    pub fn secret(&mut self, field: Field<'_>) -> Option<Secret> {
        let (at, path) = (field.start(), field.path.clone());
        let mut table = self.reference(field, "")?;
        let (env, file) = (table.take("env"), table.take("file"));
        table.finish(self);
        let found = match (env, file) {
            (Some(env), None) => self.variable(&env)?,
            (None, Some(file)) => self.content(&file)?,
            _ => {
                self.report(at, path, "expected exactly one of { env = \"NAME\" } and { file = \"path\" }");
                return None;
            }
        };
        self.checked(at, path, found)
    }

    /// A provider's credential, which a program may also print: `{ command = ["path", "argument"], refresh = "45m" }`.
    /// Returns it with its weight, which only a credential in a list has. `more` reads the other settings of such a
    /// one.
    pub fn credential(&mut self, field: Field<'_>, more: Option<ListedSettings<'_>>) -> Option<(Secret, u32)> {
        let (at, path) = (field.start(), field.path.clone());
        let mistakes = self.mistakes();
        let mut table = self.reference(field, " or { command = [\"path\"] }")?;
        let (env, file, command) = (table.take("env"), table.take("file"), table.take("command"));
        let refresh = table.take("refresh");
        let weight = if more.is_some() { table.take("weight") } else { None };
        if let Some(more) = more {
            more(self, &mut table);
        }
        table.finish(self);
        let weight = weight.map_or(Some(1), |field| self.integer(&field, &WEIGHTS));
        if let (Some(refresh), None) = (&refresh, &command) {
            self.error(refresh, "works only with `command`: a file is read again when it changes");
        }
        let found = match (env, file, command) {
            (Some(env), None, None) => self.variable(&env)?,
            (None, Some(file), None) => self.content(&file)?,
            (None, None, Some(command)) => self.printed(command, refresh, mistakes)?,
            _ => {
                let text =
                    "expected exactly one of { env = \"NAME\" }, { file = \"path\" } and { command = [\"path\"] }";
                self.report(at, path, text);
                return None;
            }
        };
        Some((self.checked(at, path, found)?, weight? as u32))
    }

    /// Table that refers to a secret. `more`: additional text for the error if the secret itself is written there.
    fn reference<'d>(&mut self, field: Field<'d>, more: &str) -> Option<Section<'d>> {
        if field.is_text() {
            let text = "a secret is never written here; use { env = \"NAME\" } or { file = \"path\" }";
            self.error(&field, format!("{text}{more}"));
            return None;
        }
        self.as_table(field)
    }

    fn variable(&mut self, env: &Field<'_>) -> Option<(String, Origin)> {
        let name = self.string(env)?;
        let Some(value) = (self.source().env)(&name) else {
            let shown = if is_variable(&name) { format!(" `{name}`") } else { String::new() };
            self.error(
                env,
                format!("the environment variable{shown} is not set: set it, or use {{ file = \"path\" }}"),
            );
            return None;
        };
        Some((value, Origin::Env(name)))
    }

    fn content(&mut self, file: &Field<'_>) -> Option<(String, Origin)> {
        let written = self.string(file)?;
        let resolved = self.resolve(&written);
        match (self.source().read)(&resolved.to_string_lossy()) {
            Ok(value) => Some((value, Origin::File(resolved.to_string_lossy().into_owned()))),
            Err(error) => {
                let shown = if is_path(&written) { format!("`{}`", resolved.display()) } else { "it".into() };
                self.error(file, format!("cannot read {shown}: {error}"));
                None
            }
        }
    }

    /// Output of a program. It is not run if its settings have an error. `mistakes`: number of errors that the reader
    /// had found before.
    fn printed(&mut self, command: Field<'_>, refresh: Option<Field<'_>>, mistakes: usize) -> Option<(String, Origin)> {
        let (at, path) = (command.start(), command.path.clone());
        let mut program: Vec<String> = self.strings(command).into_iter().map(|(_, word)| word).collect();
        let refresh = refresh.map_or(Some(REFRESH_USUAL), |field| self.duration(&field, &REFRESH));
        if program.is_empty() || program.len() > PROGRAM_MAX || program[0].is_empty() {
            let text = format!("expected the path of a program and its arguments, at most {PROGRAM_MAX} words");
            self.report(at, path, text);
            return None;
        }
        let refresh = refresh.filter(|_| self.mistakes() == mistakes)?;
        // A name without `/` is looked up in PATH.
        if program[0].contains('/') {
            program[0] = self.resolve(&program[0]).to_string_lossy().into_owned();
        }
        match (self.source().run)(&program, &variables(self.source().text)) {
            Ok(value) => Some((value, Origin::Command { program, refresh })),
            Err(error) => {
                self.report(at, path, format!("the program printed no secret: {error}"));
                None
            }
        }
    }

    fn checked(&mut self, at: usize, path: String, (value, origin): (String, Origin)) -> Option<Secret> {
        match fit(&value) {
            Ok(value) => Some(Secret::new(value.to_string(), origin)),
            Err(why) => {
                let what = match &origin {
                    Origin::Env(name) if is_variable(name) => format!("the environment variable `{name}`"),
                    Origin::File(file) if is_path(file) => format!("`{file}`"),
                    Origin::Command { .. } => "the output of the program".to_string(),
                    _ => "the secret".to_string(),
                };
                self.report(at, path, format!("{what} {why}"));
                None
            }
        }
    }
}

/// True if the text looks like the name of a variable. Anything else may be the secret itself, and must not be
/// repeated.
fn is_variable(name: &str) -> bool {
    let digits = name.bytes().filter(u8::is_ascii_digit).count();
    let plain = name.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_');
    plain && digits <= name.len() / 4
}

/// True if the text looks like a path: it has a folder or an extension, or is a short word.
fn is_path(written: &str) -> bool {
    !looks_secret(written) && (written.contains(['/', '.']) || written.len() < SECRET_MIN)
}
