//! Bytes to values and back; pure and resumable at any byte. Imports `base` alone.

pub mod body;
pub mod head;
pub mod inbound;
pub mod json;
pub mod percent;
mod skip;
pub mod sse;

use serde::{Deserialize, Serialize};

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
#[derive(Copy, Clone, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dialect {
    /// OpenAI chat completions.
    Chat,
    /// Anthropic messages.
    Messages,
    /// OpenAI responses.
    Responses,
}

impl Dialect {
    /// All of them.
    pub const ALL: [Dialect; 3] = [Dialect::Chat, Dialect::Messages, Dialect::Responses];

    /// As written in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Dialect::Chat => "chat",
            Dialect::Messages => "messages",
            Dialect::Responses => "responses",
        }
    }
}
