//! Values that no log, error or listing may show, and where they were found.

use super::units::quoted;
use std::fmt;

/// Where a secret was found; printed in its place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Origin {
    /// An environment variable of this name.
    Env(String),
    /// A file; where it was written relative, with the folder of the configuration.
    File(String),
}

impl fmt::Display for Origin {
    /// As a secret is written in the configuration.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Env(name) => write!(f, "{{ env = {} }}", quoted(name)),
            Origin::File(path) => write!(f, "{{ file = {} }}", quoted(path)),
        }
    }
}

/// A value that no log, error or listing may show.
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

    /// The value itself. For the wire and for comparisons alone.
    pub fn expose(&self) -> &str {
        &self.value
    }

    /// Where it was found.
    pub fn origin(&self) -> &Origin {
        &self.origin
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
