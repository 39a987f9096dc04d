//! Bytes to values and back; pure and resumable at any byte. Imports `base` alone.

pub mod body;
pub mod head;
pub mod inbound;
pub mod json;
pub mod percent;
pub mod sse;
pub mod trace;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;

/// A range of bytes in a buffer: offsets instead of borrows, so that a buffer may grow beneath them.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Span {
    /// First byte.
    pub start: u32,
    /// One past the last byte.
    pub end: u32,
}

impl Span {
    /// From offsets; both must lie below 4 GiB, which every bound on a message ensures.
    pub fn new(start: usize, end: usize) -> Span {
        Span { start: start as u32, end: end as u32 }
    }

    /// The bytes meant; empty if the span lies outside `buffer`.
    pub fn of(self, buffer: &[u8]) -> &[u8] {
        buffer.get(self.start as usize..self.end as usize).unwrap_or_default()
    }

    /// Number of bytes.
    pub fn len(self) -> usize {
        self.end.saturating_sub(self.start) as usize
    }

    /// True for the default span: nothing there.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// The span moved `by` bytes to the right.
    pub fn shift(self, by: usize) -> Span {
        Span { start: self.start + by as u32, end: self.end + by as u32 }
    }
}

/// The API shapes.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Hash)]
pub enum Dialect {
    /// OpenAI chat completions.
    Chat,
    /// Anthropic messages.
    Messages,
    /// OpenAI responses.
    Responses,
    /// What is relayed as it is, to providers of the chat shape (contract section 12).
    Relay(Relay),
}

/// An endpoint that is relayed: its path, below a base URL, is its name.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Hash)]
pub enum Relay {
    /// Vectors of texts.
    Embeddings,
    /// Documents in the order in which they fit a query.
    Rerank,
    /// Texts that go on, or between two others.
    Completions,
}

impl Relay {
    /// All of them.
    pub const ALL: [Relay; 3] = [Relay::Embeddings, Relay::Rerank, Relay::Completions];

    /// As in its path, in scopes and in rows.
    pub fn name(self) -> &'static str {
        match self {
            Relay::Embeddings => "embeddings",
            Relay::Rerank => "rerank",
            Relay::Completions => "completions",
        }
    }
}

impl Dialect {
    /// The shape of the providers that take it as it is.
    #[inline]
    pub fn upstream(self) -> Dialect {
        if let Dialect::Relay(_) = self { Dialect::Chat } else { self }
    }

    /// The one that is called so.
    pub fn from_name(name: &str) -> Option<Dialect> {
        let shapes = [Dialect::Chat, Dialect::Messages, Dialect::Responses];
        let mut all = shapes.into_iter().chain(Relay::ALL.map(Dialect::Relay));
        all.find(|dialect| dialect.name() == name)
    }

    /// As written in the configuration and in rows.
    pub fn name(self) -> &'static str {
        match self {
            Dialect::Chat => "chat",
            Dialect::Messages => "messages",
            Dialect::Responses => "responses",
            Dialect::Relay(relay) => relay.name(),
        }
    }
}

impl Serialize for Dialect {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Dialect {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Dialect, D::Error> {
        let text = Cow::<str>::deserialize(from)?;
        Dialect::from_name(&text).ok_or_else(|| D::Error::custom("not an endpoint"))
    }
}
