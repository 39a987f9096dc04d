//! Text of the inside of a valid JSON string, run by run, without a copy.
//!
//! Owns the decoding of escapes that the scanner has checked. Must never be given bytes that have not been scanned.

use super::scanned::scanned;
use lanes::skip::{has_backslash, to_either};

/// True if the inside of a JSON string has an escape.
#[inline]
pub fn has_escape(raw: &[u8]) -> bool {
    scanned(raw.len());
    has_backslash(raw)
}

/// Returns the character of an escape, and the escape's length. The escape must be valid.
fn escaped_char(bytes: &[u8]) -> (char, usize) {
    let plain = |c| (c, 2);
    match bytes.get(1) {
        Some(b'b') => plain('\u{8}'),
        Some(b'f') => plain('\u{c}'),
        Some(b'n') => plain('\n'),
        Some(b'r') => plain('\r'),
        Some(b't') => plain('\t'),
        Some(b'u') => {
            let unit = |from: usize| bytes.get(from..from + 4).and_then(|digits| hex4(digits).ok()).unwrap_or(0xFFFD);
            let high = unit(2);
            if !(0xD800..=0xDBFF).contains(&high) {
                return (char::from_u32(high).unwrap_or(char::REPLACEMENT_CHARACTER), 6);
            }
            let low = unit(8).wrapping_sub(0xDC00) & 0x3FF;
            let code = 0x10000 + ((high - 0xD800) << 10) + low;
            (char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER), 12)
        }
        Some(&byte) => plain(char::from(byte)),
        None => (char::REPLACEMENT_CHARACTER, 1),
    }
}

/// A run of a string's inside.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Run<'a> {
    /// Unescaped bytes.
    Plain(&'a [u8]),
    /// The character of an escape.
    Char(char),
}

/// Iterator over the runs of the inside of a valid JSON string.
#[derive(Clone, Debug)]
pub struct Runs<'a>(&'a [u8]);

/// Walks the inside of a valid JSON string without copying it.
pub fn runs(raw: &[u8]) -> Runs<'_> {
    Runs(raw)
}

impl<'a> Iterator for Runs<'a> {
    type Item = Run<'a>;

    fn next(&mut self) -> Option<Run<'a>> {
        if self.0.is_empty() {
            return None;
        }
        let plain = to_either(self.0, 0, b'\\', b'\\');
        scanned(plain.max(1));
        if plain > 0 {
            let (run, rest) = self.0.split_at(plain);
            self.0 = rest;
            return Some(Run::Plain(run));
        }
        let (what, len) = escaped_char(self.0);
        self.0 = self.0.get(len..).unwrap_or_default();
        Some(Run::Char(what))
    }
}

/// Appends the text of the inside of a valid JSON string, as UTF-8.
pub fn unescape(raw: &[u8], out: &mut Vec<u8>) {
    for run in runs(raw) {
        match run {
            Run::Plain(bytes) => out.extend_from_slice(bytes),
            Run::Char(c) => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
}

/// True if the inside of a valid JSON string encodes `text`.
#[inline]
pub fn eq_unescaped(raw: &[u8], text: &str) -> bool {
    // An escape is longer than its character, so only a longer `raw` can be an escaped form of `text`.
    if raw.len() <= text.len() {
        return raw == text.as_bytes();
    }
    // Nearly all names differ in their first character.
    (raw[0] == b'\\' || text.as_bytes().first() == Some(&raw[0])) && eq_escaped(raw, text)
}

/// Longest escape of a one-byte character: `\u0061`.
const ESCAPE_MAX: usize = 6;

fn eq_escaped(raw: &[u8], text: &str) -> bool {
    if raw.len() > ESCAPE_MAX * text.len() || !has_escape(raw) {
        return false;
    }
    let mut left = text.as_bytes();
    for run in runs(raw) {
        let mut space = [0; 4];
        let bytes = match run {
            Run::Plain(bytes) => bytes,
            Run::Char(c) => c.encode_utf8(&mut space).as_bytes(),
        };
        let Some(rest) = left.strip_prefix(bytes) else { return false };
        left = rest;
    }
    left.is_empty()
}

pub(super) fn hex4(digits: &[u8]) -> Result<u32, &'static str> {
    let mut code = 0;
    for &digit in digits {
        let Some(value) = char::from(digit).to_digit(16) else { return Err("expected four hexadecimal digits") };
        code = code << 4 | value;
    }
    Ok(code)
}
