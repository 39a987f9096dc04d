//! The chunked transfer coding (RFC 9112 section 7.1), resumable at any byte. Strict: hexadecimal digits, then `;` or
//! CR; every line ends in CRLF. Extensions and trailers are checked for length and control characters, then dropped.

use super::piece::{BodyError, Piece};
use crate::base::limits::CHUNK_LINE_MAX;

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum ChunkedState {
    /// Before the first digit of a size.
    SizeStart,
    /// Within the digits.
    Size,
    /// Within an extension.
    Extension,
    /// After the CR of a size line.
    SizeEnd,
    /// Within a chunk's payload.
    Data,
    /// Before the CR after a chunk's payload.
    DataCr,
    /// Before the LF after a chunk's payload.
    DataLf,
    /// At the start of a trailer line.
    TrailerStart,
    /// Within the name of a trailer field.
    TrailerName,
    /// Within the value of a trailer field.
    Trailer,
    /// After the CR of a trailer line.
    TrailerEnd,
    /// After the CR of the blank line that ends the body.
    LastLf,
    /// The body is complete.
    Done,
}

/// State of the decoding of a chunked body.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Chunked {
    /// Payload bytes of the current chunk still to come. While its size is read, the size so far.
    left: u64,
    /// Bytes of the current size line, or of the whole trailer section, so far.
    line: u16,
    state: ChunkedState,
}

impl Chunked {
    pub(super) fn new() -> Chunked {
        Chunked { left: 0, line: 0, state: ChunkedState::SizeStart }
    }

    /// Payload bytes of the current chunk that are still to come; 0 until its size line is complete.
    pub(super) fn promised(&self) -> u64 {
        if self.state == ChunkedState::Data { self.left } else { 0 }
    }

    #[inline]
    pub(super) fn next(&mut self, input: &[u8]) -> Result<Piece, BodyError> {
        if self.state == ChunkedState::SizeStart {
            let at = self.short_size_line(input);
            if at > 0 {
                return Ok(self.payload(input, at));
            }
        }
        self.walk(input)
    }

    /// Decodes step by step, for any input.
    #[inline(never)]
    fn walk(&mut self, input: &[u8]) -> Result<Piece, BodyError> {
        let mut at = 0;
        while self.state != ChunkedState::Done {
            let Some(byte) = input.get(at) else { break };
            if self.state == ChunkedState::Data {
                return Ok(self.payload(input, at));
            }
            self.state = self.step(*byte)?;
            at += 1;
        }
        Ok(Piece { consumed: at, data: at..at, done: self.state == ChunkedState::Done })
    }

    /// Takes the available payload of a chunk, which begins or continues at `at`.
    #[inline]
    fn payload(&mut self, input: &[u8], at: usize) -> Piece {
        let take = usize::try_from(self.left).unwrap_or(usize::MAX).min(input.len() - at);
        let end = at + take;
        self.left -= take as u64;
        if self.left > 0 {
            return Piece { consumed: end, data: at..end, done: false };
        }
        // The line end has nearly always arrived, too.
        let whole = input[end..].starts_with(b"\r\n");
        self.state = if whole { ChunkedState::SizeStart } else { ChunkedState::DataCr };
        Piece { consumed: end + 2 * usize::from(whole), data: at..end, done: false }
    }

    /// Parses a complete size line of a few digits, the usual case, and returns its length in bytes. Returns 0 for any
    /// other line, which is parsed step by step.
    #[inline]
    fn short_size_line(&mut self, input: &[u8]) -> usize {
        let Some(line) = input.first_chunk::<SHORT_LINE>() else { return 0 };
        let (mut left, mut digits) = (0u64, 0);
        while digits < SHORT_LINE - 2 && HEX[usize::from(line[digits])] < 16 {
            left = left << 4 | u64::from(HEX[usize::from(line[digits])]);
            digits += 1;
        }
        if left == 0 || line[digits] != b'\r' || line[digits + 1] != b'\n' {
            return 0;
        }
        (self.left, self.state) = (left, ChunkedState::Data);
        digits + 2
    }

    fn step(&mut self, byte: u8) -> Result<ChunkedState, BodyError> {
        match (self.state, byte) {
            (ChunkedState::SizeStart, _) => {
                self.left = digit(byte)?;
                self.line = 1;
                Ok(ChunkedState::Size)
            }
            (ChunkedState::Size, b';') => self.counted(ChunkedState::Extension),
            (ChunkedState::Size | ChunkedState::Extension, b'\r') => Ok(ChunkedState::SizeEnd),
            (ChunkedState::Size, _) => {
                // A size beyond 64 bits is valid, but more than anyone accepts (RFC 9112 section 7.1).
                let digit = digit(byte)?;
                self.left = self.left.checked_mul(16).map_or(u64::MAX, |left| left | digit);
                self.counted(ChunkedState::Size)
            }
            (ChunkedState::Extension, _) if is_text(byte) => self.counted(ChunkedState::Extension),
            (ChunkedState::SizeEnd, b'\n') if self.left == 0 => {
                self.line = 0;
                Ok(ChunkedState::TrailerStart)
            }
            (ChunkedState::SizeEnd, b'\n') => Ok(ChunkedState::Data),
            (ChunkedState::DataCr, b'\r') => Ok(ChunkedState::DataLf),
            (ChunkedState::DataLf, b'\n') => Ok(ChunkedState::SizeStart),
            (ChunkedState::TrailerStart, b'\r') => Ok(ChunkedState::LastLf),
            (ChunkedState::TrailerName, b':') => self.counted(ChunkedState::Trailer),
            (ChunkedState::Trailer, b'\r') => Ok(ChunkedState::TrailerEnd),
            (ChunkedState::TrailerStart | ChunkedState::TrailerName, _) if is_name(byte) => {
                self.counted(ChunkedState::TrailerName)
            }
            (ChunkedState::Trailer, _) if is_text(byte) => self.counted(ChunkedState::Trailer),
            (ChunkedState::TrailerEnd, b'\n') => Ok(ChunkedState::TrailerStart),
            (ChunkedState::LastLf, b'\n') => Ok(ChunkedState::Done),
            _ => Err(BodyError::BadChunk),
        }
    }

    fn counted(&mut self, next: ChunkedState) -> Result<ChunkedState, BodyError> {
        self.line += 1;
        if usize::from(self.line) > CHUNK_LINE_MAX { Err(BodyError::TooLong) } else { Ok(next) }
    }
}

/// Bytes of a size line that are examined together.
const SHORT_LINE: usize = 8;

/// Values of hexadecimal digits; 255 for anything else.
static HEX: [u8; 256] = {
    let mut table = [255; 256];
    let mut value = 0;
    while value < 16 {
        table[b"0123456789abcdef"[value] as usize] = value as u8;
        table[b"0123456789ABCDEF"[value] as usize] = value as u8;
        value += 1;
    }
    table
};

fn digit(byte: u8) -> Result<u64, BodyError> {
    match HEX[usize::from(byte)] {
        255 => Err(BodyError::BadChunk),
        value => Ok(u64::from(value)),
    }
}

/// True for characters of a field name (RFC 9110 section 5.6.2). A line that begins with a blank would be a folded one.
fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

fn is_text(byte: u8) -> bool {
    byte == b'\t' || (byte >= 0x20 && byte != 0x7f)
}
