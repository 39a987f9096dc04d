//! Parsing and writing of wire formats: pure, and resumable at any byte. Imports only `base`.

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

/// A range of bytes in a buffer: offsets instead of borrows, so that the buffer may grow in the meantime.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Span {
    /// Offset of the first byte.
    pub start: u32,
    /// Offset after the last byte.
    pub end: u32,
}

impl Span {
    /// Makes a span from offsets. Both must be below 4 GiB, which every bound on a message ensures.
    pub fn new(start: usize, end: usize) -> Span {
        Span { start: start as u32, end: end as u32 }
    }

    /// Returns the bytes of the span; none if it is outside `buffer`.
    pub fn of(self, buffer: &[u8]) -> &[u8] {
        buffer.get(self.start as usize..self.end as usize).unwrap_or_default()
    }

    /// Number of bytes.
    pub fn len(self) -> usize {
        self.end.saturating_sub(self.start) as usize
    }

    /// True if the span is empty, like the default one.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Returns the span moved `by` bytes to the right.
    pub fn shift(self, by: usize) -> Span {
        Span { start: self.start + by as u32, end: self.end + by as u32 }
    }
}

/// The API formats.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Hash)]
pub enum Dialect {
    /// OpenAI chat completions.
    Chat,
    /// Anthropic messages.
    Messages,
    /// OpenAI responses.
    Responses,
    /// Endpoints relayed unchanged, to providers of the chat API.
    Relay(Relay),
}

/// A relayed endpoint. Its name is its path below a base URL.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Hash)]
pub enum Relay {
    /// Embeddings: vectors of texts.
    Embeddings,
    /// Rerank: documents in the order of their relevance to a query.
    Rerank,
    /// Legacy completions: continuations of texts, or texts between two others.
    Completions,
}

impl Relay {
    /// All relayed endpoints.
    pub const ALL: [Relay; 3] = [Relay::Embeddings, Relay::Rerank, Relay::Completions];

    /// Returns its name in its path, in scopes and in rows.
    pub fn name(self) -> &'static str {
        match self {
            Relay::Embeddings => "embeddings",
            Relay::Rerank => "rerank",
            Relay::Completions => "completions",
        }
    }
}

impl Dialect {
    /// Returns the API of the providers that accept it unchanged.
    #[inline]
    pub fn upstream(self) -> Dialect {
        if let Dialect::Relay(_) = self { Dialect::Chat } else { self }
    }

    /// Returns the API with the name `name`.
    pub fn from_name(name: &str) -> Option<Dialect> {
        let shapes = [Dialect::Chat, Dialect::Messages, Dialect::Responses];
        let mut all = shapes.into_iter().chain(Relay::ALL.map(Dialect::Relay));
        all.find(|dialect| dialect.name() == name)
    }

    /// Returns its name in the configuration and in rows.
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
