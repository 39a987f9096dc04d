//! Results of reading a body: a piece of it, or an error.

use std::ops::Range;

/// Piece that [`super::BodyReader::next`] found at the front of its input.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Bytes of the input that have been processed.
    pub consumed: usize,
    /// Range of payload among them, possibly empty.
    pub data: Range<usize>,
    /// True if the body is complete. Bytes after `consumed` belong to the next message.
    pub done: bool,
}

/// Reason why a body cannot be read further. The connection is no longer usable.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum BodyError {
    /// A chunk's framing is malformed.
    BadChunk,
    /// A chunk-size line or the trailer section is longer than `limits::CHUNK_LINE_MAX`.
    TooLong,
    /// The connection ended before the body did.
    Truncated,
}
