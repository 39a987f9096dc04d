//! What reading a body gives: a piece of it, or why it cannot be read on.

use std::ops::Range;

/// What [`super::Reader::next`] found at the front of its input.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Bytes of the input that are dealt with.
    pub consumed: usize,
    /// Payload among them, possibly empty.
    pub data: Range<usize>,
    /// The body is complete; bytes after `consumed` belong to the next message.
    pub done: bool,
}

/// Why a body cannot be read on. The connection is of no further use.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum BodyError {
    /// A chunk's framing is malformed.
    BadChunk,
    /// A chunk-size line or the trailer section is longer than `limits::CHUNK_LINE_MAX`.
    TooLong,
    /// The connection ended before the body did.
    Truncated,
}
