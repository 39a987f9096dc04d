//! Parsing and writing of wire formats: pure, and resumable at any byte. Imports only `base`.

// All layers use the same paths: `crate::base` is the layer base, whichever crate contains it.
extern crate base;
extern crate self as wire;

pub mod body;
mod endpoint;
pub mod head;
pub mod inbound;
pub mod json;
pub mod multipart;
pub mod percent;
pub mod sse;
pub mod template;
pub mod trace;

use std::borrow::Cow;

pub use endpoint::{ModelEndpoint, Operation, Passthrough, Shape};

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

    /// Returns the span of `part`, a slice of `whole`; the empty span if it is not a slice of it.
    pub fn of_part(whole: &[u8], part: &[u8]) -> Span {
        let start = (part.as_ptr() as usize).wrapping_sub(whole.as_ptr() as usize);
        if start > whole.len() || part.len() > whole.len() - start {
            return Span::default();
        }
        Span::new(start, start + part.len())
    }

    /// Returns the spans of two lists in order, the second of which is in order.
    pub fn in_order(mut some: Vec<Span>, others: &[Span]) -> Cow<'_, [Span]> {
        if some.is_empty() {
            return Cow::Borrowed(others);
        }
        some.extend_from_slice(others);
        some.sort_unstable_by_key(|span| span.start);
        Cow::Owned(some)
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
}
