//! Text and arguments that arrive in pieces and may be repeated as a complete value.
//!
//! Owns the comparison. Must never keep the text itself: length, hash and depth of the brackets are enough.

use crate::wire::json::{Raw, Run, runs, write_escaped};
use std::borrow::Cow;

/// Offset basis and prime of the hash FNV-1a. It does not depend on how a text is cut into pieces.
const FNV: (u64, u64) = (0xcbf2_9ce4_8422_2325, 0x0100_0000_01b3);

/// Text so far, without escapes.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct TextSoFar {
    len: usize,
    hash: u64,
}

impl Default for TextSoFar {
    fn default() -> TextSoFar {
        TextSoFar { len: 0, hash: FNV.0 }
    }
}

impl TextSoFar {
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Notes a piece, the inside of a string.
    pub(crate) fn feed(&mut self, raw: &[u8]) {
        each_byte(raw, |byte| self.byte(byte));
    }

    fn byte(&mut self, byte: u8) {
        self.len += 1;
        self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(FNV.1);
    }

    /// The part of the complete text that the pieces lack, as the inside of a string; `None` if they differ from it.
    pub(crate) fn rest_of<'a>(&self, whole: &'a [u8]) -> Option<Cow<'a, [u8]>> {
        if self.is_empty() {
            return Some(Cow::Borrowed(whole));
        }
        let text = Raw::text_of(whole);
        let (given, more) = text.as_bytes().split_at_checked(self.len)?;
        let mut begin = TextSoFar::default();
        given.iter().for_each(|byte| begin.byte(*byte));
        let mut rest = Vec::new();
        write_escaped(&mut rest, more);
        (begin == *self).then_some(Cow::Owned(rest))
    }
}

/// The arguments of a call so far.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct ArgumentsSoFar {
    text: TextSoFar,
    depth: usize,
    in_string: bool,
    escaped: bool,
    complete: bool,
}

impl ArgumentsSoFar {
    /// Arguments in one piece.
    pub(crate) fn of(raw: &[u8]) -> ArgumentsSoFar {
        let mut arguments = ArgumentsSoFar::default();
        arguments.feed(raw);
        arguments
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// True if they are a complete JSON value.
    pub(crate) fn is_complete(&self) -> bool {
        self.complete
    }

    /// Notes a piece, the inside of a string.
    pub(crate) fn feed(&mut self, raw: &[u8]) {
        each_byte(raw, |byte| self.byte(byte));
    }

    fn byte(&mut self, byte: u8) {
        self.text.byte(byte);
        if self.complete {
            return;
        }
        match byte {
            _ if self.escaped => self.escaped = false,
            b'\\' => self.escaped = self.in_string,
            b'"' => {
                self.in_string = !self.in_string;
                self.complete = !self.in_string && self.depth == 0;
            }
            _ if self.in_string => {}
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                self.complete = self.depth == 0;
            }
            _ => {}
        }
    }

    /// As [`TextSoFar::rest_of`], but empty if the pieces differ and are complete without it.
    pub(crate) fn rest_of<'a>(&self, whole: &'a [u8]) -> Option<Cow<'a, [u8]>> {
        match self.text.rest_of(whole) {
            None if self.complete || whole.is_empty() => Some(Cow::Borrowed(b"")),
            rest => rest,
        }
    }
}

/// Calls `take` with each byte of the text that the inside of a string encodes.
fn each_byte(raw: &[u8], mut take: impl FnMut(u8)) {
    for run in runs(raw) {
        match run {
            Run::Plain(bytes) => bytes.iter().for_each(|byte| take(*byte)),
            Run::Char(c) => c.encode_utf8(&mut [0; 4]).bytes().for_each(&mut take),
        }
    }
}
