//! Decoding of the escapes of JSON strings, block by block. Owns the common ones: those of one letter, and characters
//! other than control characters and surrogates. The caller decodes the others.

use super::tokens::{BLOCK, PIECE, backslash, packed};

/// Bytes of an escape with four digits.
const UNICODE: usize = 6;

/// Decodes the common escapes of a block, given as [`packed`], up to the first other escape. Returns the decoded text
/// as [`packed`], its length, and the number of bytes that were decoded.
///
/// Decoding one run after the other costs more: lines of code have some escapes in each block.
#[cfg_attr(not(debug_assertions), inline)]
pub fn unescaped(mut text: u128, mut length: usize) -> (u128, usize, usize) {
    let (mut from, mut removed) = (0, 0);
    while let Some(at) = backslash(text, from) {
        // The character after the backslash, and everything behind it.
        let behind = text >> (8 * at) >> 8;
        let before = text & ((1 << (8 * at)) - 1);
        let Some(plain) = of_letter(behind as u8) else { return (before, at as usize, at as usize + removed) };
        text = before | ((behind & !0xff) | u128::from(plain)) << (8 * at);
        (length, from, removed) = (length - 1, at + 1, removed + 1);
    }
    (text, length, length + removed)
}

/// Character that a backslash before this letter stands for.
#[inline(always)]
fn of_letter(letter: u8) -> Option<u8> {
    match letter {
        b'n' => Some(b'\n'),
        b't' => Some(b'\t'),
        b'r' => Some(b'\r'),
        b'"' | b'\\' | b'/' => Some(letter),
        _ => None,
    }
}

/// Appends the text that `raw` stands for to the first `length` bytes of `text`, until there may not be enough space or
/// an escape follows that is not a common one. Returns the new length and the rest of `raw`.
pub fn unescape_into<'a>(mut raw: &'a [u8], text: &mut [u8; PIECE], mut length: usize) -> (usize, &'a [u8]) {
    while !raw.is_empty() && length + BLOCK <= PIECE {
        let block = raw.first_chunk().map_or_else(|| packed(raw), |block| u128::from_le_bytes(*block));
        // The bytes behind the plain ones are overwritten.
        text[length..length + BLOCK].copy_from_slice(&block.to_le_bytes());
        let escape = backslash(block, 0);
        let plain = escape.map_or(raw.len().min(BLOCK), |at| at as usize);
        (length, raw) = (length + plain, &raw[plain..]);
        if escape.is_none() {
            continue;
        }
        if let Some(byte) = raw.get(1).and_then(|letter| of_letter(*letter)) {
            text[length] = byte;
            (length, raw) = (length + 1, &raw[2..]);
        } else if plain == 0 {
            let Some(char) = unicode(raw) else { break };
            length += char.encode_utf8(&mut text[length..]).len();
            raw = &raw[UNICODE..];
        }
    }
    (length, raw)
}

/// Character of the escape at the front of `raw` if it has four digits and is complete.
fn unicode(raw: &[u8]) -> Option<char> {
    let digits = raw.first_chunk::<UNICODE>()?.strip_prefix(b"\\u")?;
    let value = digits.iter().try_fold(0, |value, digit| Some(value << 4 | char::from(*digit).to_digit(16)?))?;
    char::from_u32(value).filter(|char| *char >= ' ')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decoded text, and what is left at the first escape that is not common.
    fn decoded(raw: &str) -> (String, &str) {
        let (mut all, mut raw, mut text) = (Vec::new(), raw.as_bytes(), [0; PIECE]);
        loop {
            let (length, rest) = unescape_into(raw, &mut text, 0);
            all.extend_from_slice(&text[..length]);
            if length == 0 {
                return (String::from_utf8(all).unwrap(), std::str::from_utf8(rest).unwrap());
            }
            raw = rest;
        }
    }

    #[test]
    fn common_escapes_are_decoded_wherever_they_are_in_a_block() {
        let pieces =
            [("\\n", "\n"), ("\\\\", "\\"), ("\\\"", "\""), ("\\u00e9", "é"), ("\\uface", "\u{face}"), ("漢", "漢")];
        for before in 0..2 * BLOCK {
            for (first, one) in pieces {
                for (second, other) in pieces {
                    let (fill, tail) = ("x".repeat(before), "y".repeat(3 * PIECE));
                    let raw = format!("{fill}{first}{second}{tail}{second}");
                    assert_eq!(decoded(&raw), (format!("{fill}{one}{other}{tail}{other}"), ""), "{raw}");
                }
            }
        }
    }

    #[test]
    fn other_escapes_are_left_to_the_caller() {
        for escape in ["\\u0000", "\\ud83d\\ude00", "\\b", "\\", "\\u12", "\\u+123", "\\u00g0"] {
            for before in 0..2 * BLOCK {
                let (fill, raw) = ("é".repeat(before), format!("{}{escape}", "é".repeat(before)));
                assert_eq!(decoded(&raw), (fill, escape), "{raw}");
            }
        }
    }
}
