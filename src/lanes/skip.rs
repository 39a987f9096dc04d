//! Search for the next special byte, sixteen bytes at a time: most input is text without any. Called by the JSON
//! scanner and by the search for a head's end.

use wide::{i8x16, u8x16};

/// Bytes processed together.
const LANES: usize = 16;
/// Bytes processed together in long strings.
const WIDE: usize = 4 * LANES;
/// Padding byte of the last block. It matches no search.
const FILLER: u8 = b'a';

/// Returns the offset of the first byte from `at` on that needs examination in a JSON string, or the end. Such bytes
/// are a quote, a control character, a non-ASCII byte, or a backslash, except in the frequent short escapes.
#[cfg_attr(not(debug_assertions), inline)]
pub fn to_special(buf: &[u8], mut at: usize) -> usize {
    loop {
        let Some(block) = buf.get(at..).and_then(|rest| rest.first_chunk::<LANES>()) else {
            return find(buf, at, is_special);
        };
        let bytes = u8x16::new(*block);
        let mut marks = is_special(bytes).to_bitmask();
        let mut next = at + LANES;
        while marks != 0 {
            let place = marks.trailing_zeros() as usize;
            let [b'\\', b'n' | b'"' | b'\\' | b't', ..] = buf[at + place..] else { return at + place };
            // Both bytes are done, even if the second one begins the next block.
            marks &= !(3 << place);
            next = next.max(at + place + 2);
        }
        at = next;
    }
}

/// Like [`to_special`], but stops at any backslash and searches only the first sixteen bytes. Otherwise returns their
/// end, or `at` if there are fewer.
#[cfg_attr(not(debug_assertions), inline(always))]
pub fn to_special_near(buf: &[u8], at: usize) -> usize {
    let Some(block) = buf.get(at..).and_then(|rest| rest.first_chunk::<LANES>()) else { return at };
    let bytes = u8x16::new(*block);
    let marks = is_special(bytes).to_bitmask() | 1 << LANES;
    at + marks.trailing_zeros() as usize
}

/// Number of bytes that a search marks in the short escape of each letter, 0 for no short escape.
static MARKS: [u8; 256] = {
    let mut marks = [0; 256];
    (marks[b'n' as usize], marks[b't' as usize], marks[b'"' as usize], marks[b'\\' as usize]) = (1, 1, 2, 2);
    marks
};

/// Like [`to_special`], 64 bytes at a time. The byte after them is read, too: it may end an escape.
#[cfg_attr(not(debug_assertions), inline(always))]
pub fn to_special_wide(buf: &[u8], mut at: usize) -> usize {
    while let Some(block) = buf.get(at..).and_then(|rest| rest.first_chunk::<{ WIDE + 1 }>()) {
        let mut marks = wide_mask(block.first_chunk().unwrap_or(&[0; WIDE]), is_special);
        let mut next = at + WIDE;
        while marks != 0 {
            let place = marks.trailing_zeros() as usize;
            marks &= marks - 1;
            let letter = block[place + 1];
            // The most frequent escape, in one comparison.
            if [block[place], letter] == *b"\\n" {
                continue;
            }
            match MARKS[usize::from(letter)] {
                1 | 2 if block[place] != b'\\' => return at + place,
                1 => {}
                2 if place == WIDE - 1 => next += 1,
                2 => marks &= marks - 1,
                _ => return at + place,
            }
        }
        at = next;
    }
    to_special(buf, at)
}

/// Mask of a block, with the highest bit of the result of `matters` for each byte.
#[inline(always)]
fn wide_mask(block: &[u8; WIDE], matters: impl Fn(u8x16) -> u8x16) -> u64 {
    let lanes: &[[u8; LANES]] = block.as_chunks().0;
    let part = |index: usize| u64::from(matters(u8x16::new(lanes[index])).to_bitmask()) << (index * LANES);
    part(0) | part(1) | part(2) | part(3)
}

/// Returns the offset of the quote that ends the valid JSON string whose inside begins at `at`, or the end. Any escaped
/// byte is skipped.
pub fn to_quote(buf: &[u8], begin: usize) -> usize {
    let mut at = begin;
    if let Some(block) = buf.get(at..).and_then(|rest| rest.first_chunk::<LANES>()) {
        let bytes = u8x16::new(*block);
        let (quotes, slashes) = (is(bytes, b'"').to_bitmask(), is(bytes, b'\\').to_bitmask());
        match (quotes, slashes) {
            (0, 0) => at += LANES,
            (0, _) => {}
            _ if slashes == 0 || quotes.trailing_zeros() < slashes.trailing_zeros() => {
                return at + quotes.trailing_zeros() as usize;
            }
            _ => {}
        }
    }
    while let Some(block) = buf.get(at..).and_then(|rest| rest.first_chunk::<WIDE>()) {
        let mut quotes = wide_mask(block, |bytes| is(bytes, b'"'));
        while quotes != 0 {
            let end = at + quotes.trailing_zeros() as usize;
            if !is_escaped(buf, begin, end) {
                return end;
            }
            quotes &= quotes - 1;
        }
        at += WIDE;
    }
    loop {
        at = find(buf, at, |bytes| is(bytes, b'"'));
        if at >= buf.len() || !is_escaped(buf, begin, at) {
            return at.min(buf.len());
        }
        at += 1;
    }
}

/// True if an odd number of backslashes from `begin` on precedes `at`. Of each run only one quote asks for the length.
#[inline(always)]
fn is_escaped(buf: &[u8], begin: usize, at: usize) -> bool {
    at > begin && buf[at - 1] == b'\\' && {
        let slashes = buf[begin..at].iter().rev().take_while(|byte| **byte == b'\\');
        slashes.count() % 2 == 1
    }
}

/// Returns the offset of the first quote or bracket from `at` on, or the end.
#[cfg_attr(not(debug_assertions), inline(always))]
pub fn to_structure(buf: &[u8], at: usize) -> usize {
    // Braces and brackets differ in a single bit.
    let folded = |bytes: u8x16| bytes | u8x16::splat(0x20);
    find(buf, at, |bytes| is(bytes, b'"') | is(folded(bytes), b'{') | is(folded(bytes), b'}'))
}

/// Returns the offset of the first byte from `at` on that must be escaped in a JSON string (a quote, a backslash or a
/// control character), or the end.
#[cfg_attr(not(debug_assertions), inline)]
pub fn to_escaped(buf: &[u8], at: usize) -> usize {
    find(buf, at, must_be_escaped)
}

/// True if no byte of two pieces of at most sixteen must be escaped in a JSON string. Checks both at once.
#[cfg_attr(not(debug_assertions), inline(always))]
pub fn are_plain<const N: usize>(front: &[u8; N], back: &[u8; N]) -> bool {
    let (mut first, mut second) = ([FILLER; LANES], [FILLER; LANES]);
    first[..N].copy_from_slice(front);
    if 2 * N <= LANES {
        first[N..2 * N].copy_from_slice(back);
        return must_be_escaped(u8x16::new(first)).to_bitmask() == 0;
    }
    second[..N].copy_from_slice(back);
    (must_be_escaped(u8x16::new(first)) | must_be_escaped(u8x16::new(second))).to_bitmask() == 0
}

/// True if there is a backslash among the bytes. Most strings are names, shorter than a block.
#[inline]
pub fn has_backslash(raw: &[u8]) -> bool {
    if raw.len() > LANES {
        return to_either(raw, 0, b'\\', b'\\') < raw.len();
    }
    is(u8x16::new(packed(raw).to_le_bytes()), b'\\').to_bitmask() != 0
}

/// Returns at most sixteen bytes as a number, the first byte lowest and zeros behind the last. A copy of a few bytes
/// would be a call.
#[inline(always)]
fn packed(raw: &[u8]) -> u128 {
    if let (Some(front), Some(back)) = (raw.first_chunk(), raw.last_chunk()) {
        let (front, back) = (u128::from(u64::from_le_bytes(*front)), u128::from(u64::from_le_bytes(*back)));
        return front | back << (8 * (raw.len() - 8));
    }
    if let (Some(front), Some(back)) = (raw.first_chunk(), raw.last_chunk()) {
        let (front, back) = (u64::from(u32::from_le_bytes(*front)), u64::from(u32::from_le_bytes(*back)));
        return u128::from(front | back << (8 * (raw.len() - 4)));
    }
    raw.iter().rev().fold(0, |text, byte| text << 8 | u128::from(*byte))
}

/// Returns the offset of the first `a` or `b` from `at` on, or the end.
#[cfg_attr(not(debug_assertions), inline)]
pub fn to_either(buf: &[u8], at: usize, a: u8, b: u8) -> usize {
    find(buf, at, |bytes| is(bytes, a) | is(bytes, b))
}

/// Returns the offset of the first control character from `at` on, DEL included, or the end.
#[cfg_attr(not(debug_assertions), inline)]
pub fn to_control(buf: &[u8], at: usize) -> usize {
    find(buf, at, |bytes| is_control(bytes) | is(bytes, 0x7f))
}

/// Returns the offset of the first byte from `at` on that is a control character, a blank or not ASCII, or the end.
#[cfg_attr(not(debug_assertions), inline(always))]
pub fn to_invisible(buf: &[u8], at: usize) -> usize {
    find(buf, at, |bytes| {
        let offsets = bytes - u8x16::splat(0x21);
        !offsets.min(u8x16::splat(0x7e - 0x21)).simd_eq(offsets)
    })
}

/// Returns the offset of the first byte from `at` on that is not a letter, digit, dash or underscore, or the end.
#[cfg_attr(not(debug_assertions), inline(always))]
pub fn to_no_name(buf: &[u8], at: usize) -> usize {
    let within = |offsets: u8x16, most: u8| offsets.min(u8x16::splat(most)).simd_eq(offsets);
    find(buf, at, |bytes| {
        let letter = within((bytes | u8x16::splat(0x20)) - u8x16::splat(b'a'), 25);
        !(letter | within(bytes - u8x16::splat(b'0'), 9) | is(bytes, b'-') | is(bytes, b'_'))
    })
}

#[inline(always)]
fn must_be_escaped(bytes: u8x16) -> u8x16 {
    is(bytes, b'"') | is(bytes, b'\\') | is_control(bytes)
}

#[inline(always)]
fn is(bytes: u8x16, byte: u8) -> u8x16 {
    bytes.simd_eq(u8x16::splat(byte))
}

/// Marks quotes, control characters and non-ASCII bytes: with this bit changed they, and no others, are below 0x21 as
/// signed numbers.
#[inline(always)]
fn is_odd(bytes: u8x16) -> u8x16 {
    let signed = i8x16::new((bytes ^ u8x16::splat(2)).to_array().map(u8::cast_signed));
    u8x16::new(signed.simd_lt(i8x16::splat(0x21)).to_array().map(i8::cast_unsigned))
}

/// Marks the bytes at which a search in a string stops, and every backslash.
#[inline(always)]
fn is_special(bytes: u8x16) -> u8x16 {
    is_odd(bytes) | is(bytes, b'\\')
}

#[inline(always)]
fn is_control(bytes: u8x16) -> u8x16 {
    bytes.min(u8x16::splat(0x1f)).simd_eq(bytes)
}

/// Returns the offset of the first byte from `at` on for which `matters` sets the highest bit, or the end.
#[inline(always)]
fn find(buf: &[u8], mut at: usize, matters: impl Fn(u8x16) -> u8x16) -> usize {
    let marks = |block: [u8; LANES]| matters(u8x16::new(block)).to_bitmask();
    let Some(mut rest) = buf.get(at..) else { return at };
    while let Some((block, behind)) = rest.split_first_chunk::<LANES>() {
        let found = marks(*block);
        if found != 0 {
            return at + found.trailing_zeros() as usize;
        }
        (rest, at) = (behind, at + LANES);
    }
    let mut last = [FILLER; LANES];
    last[..rest.len()].copy_from_slice(rest);
    at + (marks(last).trailing_zeros() as usize).min(rest.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    type Skip = fn(&[u8], usize) -> usize;
    type Matters = fn(u8) -> bool;

    #[test]
    fn every_byte_is_found_at_every_position_or_skipped() {
        let skips: [(Skip, Matters); 6] = [
            (to_special, |b| matches!(b, b'"' | b'\\' | 0..0x20 | 0x80..)),
            (to_escaped, |b| b == b'"' || b == b'\\' || b < 0x20),
            (|buf, at| to_either(buf, at, b'"', b'\\'), |b| b == b'"' || b == b'\\'),
            (to_control, |b| b < 0x20 || b == 0x7f),
            (to_invisible, |b| !b.is_ascii_graphic()),
            (to_structure, |b| b"\"{}[]".contains(&b)),
        ];
        for (skip, matters) in skips {
            for length in [1, 15, 16, 17, 40] {
                for place in 0..length {
                    for byte in 0..=255u8 {
                        let mut text = vec![b'a'; length];
                        text[place] = byte;
                        let expected = if matters(byte) { place } else { length };
                        assert_eq!(skip(&text, 0), expected, "{byte} at {place} of {length}");
                        assert_eq!(skip(&text, place + 1), length);
                    }
                }
            }
        }
    }

    #[test]
    fn backslash_is_seen_at_every_position() {
        for length in 0..40 {
            let mut text = vec![b'a'; length];
            assert!(!has_backslash(&text));
            for place in 0..length {
                text[place] = b'\\';
                assert!(has_backslash(&text), "{place} of {length}");
                text[place] = b'a';
            }
        }
    }

    #[test]
    fn only_short_escapes_are_skipped_at_every_position() {
        for escape in [r"\n", r#"\""#, r"\\", r"\t", r"\\\n"] {
            for place in 0..40 {
                for behind in 16..40 {
                    let text = "a".repeat(place) + escape + &"b".repeat(behind) + "\"";
                    assert_eq!(to_special(text.as_bytes(), 0), text.len() - 1, "{text}");
                }
                let text = "a".repeat(place) + escape + r"\u0041" + &"b".repeat(40);
                assert_eq!(to_special(text.as_bytes(), 0), place + escape.len(), "{text}");
            }
        }
    }

    fn pieces_are_seen<const N: usize>() {
        for place in 0..2 * N {
            for byte in 0..=255u8 {
                let mut text = vec![b'a'; 2 * N];
                text[place] = byte;
                let (front, back) = (text.first_chunk::<N>().unwrap(), text.last_chunk::<N>().unwrap());
                let plain = byte >= 0x20 && byte != b'"' && byte != b'\\';
                assert_eq!(are_plain(front, back), plain, "{byte} at {place} of {N}");
            }
        }
    }

    #[test]
    fn byte_that_needs_an_escape_is_found_at_every_position() {
        pieces_are_seen::<2>();
        pieces_are_seen::<4>();
        pieces_are_seen::<8>();
        pieces_are_seen::<16>();
    }

    /// Returns the end of a search that continues after short escapes at which it has stopped, which may happen near
    /// the end.
    fn settled(buf: &[u8], look: Skip) -> usize {
        let mut at = 0;
        loop {
            at = look(buf, at);
            let [b'\\', b'n' | b't' | b'"' | b'\\', ..] = buf[at..] else { return at };
            at += 2;
        }
    }

    /// Random bytes of every kind: the wide search finds the same as the narrow one.
    #[test]
    fn wide_and_narrow_search_agree() {
        const KINDS: &[u8] = b"aaaaaaaaaaaaaaaaaaaaaaaannt\\\\\\\\\\\"\"r\x1f\x80";
        let mut state = 1u32;
        let mut next = |most: usize| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as usize % most
        };
        for _ in 0..100_000 {
            let (length, kinds) = (next(300), 1 + next(KINDS.len()));
            let text: Vec<u8> = (0..length).map(|_| KINDS[next(kinds)]).collect();
            assert_eq!(settled(&text, to_special_wide), settled(&text, to_special), "{}", text.escape_ascii());
        }
    }

    #[test]
    fn end_of_a_string_is_found_after_any_escape_at_any_position() {
        for escape in ["", r"\n", r#"\""#, r"\\", r#"\\\\\\\""#, r"\u0022", "\u{e9}"] {
            for place in 0..150 {
                for behind in [0, 1, 15, 16, 63, 64, 70] {
                    let text = "a".repeat(place) + escape + &"b".repeat(behind);
                    for rest in ["", "x\\\"\"", &"c".repeat(80)] {
                        let whole = format!("{text}\"{rest}");
                        assert_eq!(to_quote(whole.as_bytes(), 0), text.len(), "{whole}");
                    }
                    assert_eq!(to_quote(text.as_bytes(), 0), text.len(), "{text}");
                }
            }
        }
        assert_eq!(to_quote(b"a\\", 0), 2, "half an escape ends where the text does");
        assert_eq!(to_quote(b"a", 5), 1);
    }

    #[test]
    fn first_of_several_is_found_otherwise_the_end_is_returned() {
        assert_eq!(to_special(b"aaaaaaaaaaaaaaaaaaa\xc3\xa9\"\n", 3), 19);
        assert_eq!(to_control(b"aaa\r\n\r\n", 0), 3);
        assert_eq!(to_either(b"", 0, 1, 2), 0);
        assert_eq!(to_escaped(b"ab", 7), 7);
    }
}
