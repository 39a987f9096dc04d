//! Message bodies: by length, chunked, or to the end of the connection (RFC 9112 sections 6 and 7). A reader stores no
//! bytes and may be fed in pieces of any size. Must never accept a body that another reader would end at another byte.
//! Called by `wire::inbound` for requests and `gateway::provider` for responses.

mod chunked;
mod piece;
#[cfg(test)]
mod tests;

use super::head::Framing;

pub use chunked::Chunked;
pub use piece::{BodyError, Piece};

/// State of the reading of one body.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum BodyReader {
    /// The whole body has been read.
    Done,
    /// Number of bytes still to come; never 0.
    Length(u64),
    /// A chunked body.
    Chunked(Chunked),
    /// Everything until the connection ends.
    ToEnd,
}

impl BodyReader {
    /// Returns a reader for a body with the framing `framing`.
    pub fn new(framing: Framing) -> BodyReader {
        match framing {
            Framing::None | Framing::Length(0) => BodyReader::Done,
            Framing::Length(count) => BodyReader::Length(count),
            Framing::Chunked => BodyReader::Chunked(Chunked::new()),
            Framing::ToEnd => BodyReader::ToEnd,
        }
    }

    /// True if the body is complete.
    pub fn is_done(&self) -> bool {
        *self == BodyReader::Done
    }

    /// Payload bytes that are announced and have not arrived: the remainder of a declared length, or of a chunk whose
    /// size line is complete.
    pub fn promised(&self) -> u64 {
        match self {
            BodyReader::Done | BodyReader::ToEnd => 0,
            BodyReader::Length(left) => *left,
            BodyReader::Chunked(chunked) => chunked.promised(),
        }
    }

    /// Parses the front of `input` and advances. Must be called again with the unconsumed bytes until it consumes
    /// nothing or is done. Every call yields at most one run of payload.
    #[inline]
    pub fn next(&mut self, input: &[u8]) -> Result<Piece, BodyError> {
        let piece = match self {
            BodyReader::Done => Piece { consumed: 0, data: 0..0, done: true },
            BodyReader::Length(left) => {
                let take = usize::try_from(*left).unwrap_or(usize::MAX).min(input.len());
                *left -= take as u64;
                Piece { consumed: take, data: 0..take, done: *left == 0 }
            }
            BodyReader::Chunked(chunked) => chunked.next(input)?,
            BodyReader::ToEnd => Piece { consumed: input.len(), data: 0..input.len(), done: false },
        };
        if piece.done {
            *self = BodyReader::Done;
        }
        Ok(piece)
    }

    /// Handles the end of the connection. It completes a body read to the end, and truncates any other unfinished body.
    pub fn end(&mut self) -> Result<(), BodyError> {
        match self {
            BodyReader::Done | BodyReader::ToEnd => {
                *self = BodyReader::Done;
                Ok(())
            }
            BodyReader::Length(_) | BodyReader::Chunked(_) => Err(BodyError::Truncated),
        }
    }
}

/// Appends `payload` as one chunk, or nothing if it is empty: an empty chunk would end the body.
#[inline]
pub fn write_chunk(out: &mut Vec<u8>, payload: &[u8]) {
    if payload.is_empty() {
        return;
    }
    write_chunk_size(out, payload.len());
    out.extend_from_slice(payload);
    out.extend_from_slice(b"\r\n");
}

/// Hexadecimal digit of `length` at a place.
#[inline]
fn digit(length: usize, place: u32) -> u8 {
    b"0123456789abcdef"[length >> (4 * place) & 15]
}

/// Appends the line that begins a chunk of `length` bytes, which must not be 0. The payload and a line break follow.
#[inline]
pub fn write_chunk_size(out: &mut Vec<u8>, length: usize) {
    match length {
        // Nearly all chunks have such a length.
        0x10..0x100 => out.extend_from_slice(&[digit(length, 1), digit(length, 0), b'\r', b'\n']),
        _ => write_other_size(out, length),
    }
}

#[inline(never)]
fn write_other_size(out: &mut Vec<u8>, length: usize) {
    if let 0x100..0x1000 = length {
        let digits = [digit(length, 2), digit(length, 1), digit(length, 0), b'\r', b'\n'];
        return out.extend_from_slice(&digits);
    }
    let places = (usize::BITS - length.leading_zeros()).div_ceil(4);
    out.extend((0..places).rev().map(|place| digit(length, place)));
    out.extend_from_slice(b"\r\n");
}

/// End of a chunked body without trailers.
pub const LAST_CHUNK: &[u8] = b"0\r\n\r\n";
