//! Cost of sixteen bytes of text in parts of a token. Owns the arithmetic. The caller documents the origin and the use
//! of the costs.

use super::LANES;
use wide::{u8x16, u16x8};

/// Most bytes that [`piece`] accepts.
pub const PIECE: usize = 12 * LANES;
/// Most bytes that [`block`] accepts.
pub const BLOCK: usize = LANES;
/// Minimum cost of a byte in parts of a token.
pub const BYTE_PARTS: u8 = 8;
/// Most that a byte costs in addition to that, wherever it is.
const BYTE_MORE: u8 = 8;
/// Fills up the last block and costs nothing. No text contains it.
const FILLER: u8 = 0;

/// Cost in parts of a token of at most [`BLOCK`] bytes of a text, as [`packed`] returns them. `last` is the byte before
/// them.
#[cfg_attr(not(debug_assertions), inline)]
pub fn block(text: u128, last: u8) -> u64 {
    // Each byte of a block, or its class, with the one before it.
    let behind = |bytes: u128, before: u8| u8x16::new((bytes << 8 | u128::from(before)).to_le_bytes());
    let (old, new) = (behind(text, last), u8x16::new(text.to_le_bytes()));
    let (class, each) = costs(new);
    let after = behind(u128::from_le_bytes(class.to_array()), CLASSES[usize::from(last)]);
    let mut parts = each + begun(old, new, after, class);
    if (old | new).to_bitmask() != 0 {
        parts += wide_cost(old, new, class);
    }
    pairs(parts).reduce_add().into()
}

/// True if there is a backslash among bytes that [`packed`] returned.
#[inline]
pub fn has_backslash(text: u128) -> bool {
    is(u8x16::new(text.to_le_bytes()), b'\\').to_bitmask() != 0
}

/// Index of the first backslash from byte `from` on among bytes that are given as [`packed`].
#[inline]
pub fn backslash(text: u128, from: u32) -> Option<u32> {
    let found = is(u8x16::new(text.to_le_bytes()), b'\\').to_bitmask() >> from;
    (found != 0).then(|| found.trailing_zeros() + from)
}

const _: () = assert!(PIECE / LANES * (BYTE_PARTS + BYTE_MORE) as usize <= u8::MAX as usize);

/// Cost in parts of a token of at most [`PIECE`] bytes. `last` is the byte before them.
pub fn piece(piece: &[u8], last: u8) -> u64 {
    const ROOM: usize = 1 + PIECE;
    // Each byte with the byte before it. The filler of the last block costs nothing.
    let mut text = [FILLER; ROOM];
    text[0] = last;
    text[1..=piece.len()].copy_from_slice(piece);
    let length = piece.len().next_multiple_of(LANES);
    let (old, new) = (text[..length].as_chunks().0, text[1..=length].as_chunks().0);
    let mut classes = [NONE; ROOM];
    classes[0] = CLASSES[usize::from(last)];
    let (after, mut highest, mut bytes) = (classes[1..=length].as_chunks_mut().0, u8x16::splat(last), all(0));
    for (after, new) in after.iter_mut().zip(new) {
        let new = u8x16::new(*new);
        let (class, each) = costs(new);
        // Does not overflow, as asserted above.
        (*after, highest, bytes) = (class.to_array(), highest | new, bytes + each);
    }
    let is_ascii = highest.to_bitmask() == 0;
    let (after, class) = (classes[..length].as_chunks().0, classes[1..=length].as_chunks().0);
    let mut sums = pairs(bytes);
    for ((old, new), (after, class)) in old.iter().zip(new).zip(after.iter().zip(class)) {
        let (old, new, class) = (u8x16::new(*old), u8x16::new(*new), u8x16::new(*class));
        let mut parts = begun(old, new, u8x16::new(*after), class);
        if !is_ascii {
            parts += wide_cost(old, new, class);
        }
        sums += pairs(parts);
    }
    sums.reduce_add().into()
}

/// Adds each of the upper eight bytes to one of the lower, in sixteen bits.
#[inline(always)]
fn pairs(parts: u8x16) -> u16x8 {
    u16x8::from_u8x16_low(parts) + u16x8::from_u8x16_high(parts)
}

/// Returns at most sixteen bytes as a number, the first byte lowest. Missing bytes cost nothing.
#[inline(always)]
pub fn packed(raw: &[u8]) -> u128 {
    const { assert!(FILLER == 0) };
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

/// Classes of sixteen bytes, and the cost in parts of a token of each byte for itself.
///
/// Every byte costs a little, and the first of its class more ([`begun`]): a word is about a token, a long one more.
/// Three digits are about a token. A letter and a mark cost at least a fifth of the most expensive ones.
#[inline(always)]
fn costs(bytes: u8x16) -> (u8x16, u8x16) {
    let within = |offsets: u8x16, most: u8| offsets.min(all(most)).simd_eq(offsets);
    let is_letter = within((bytes | all(0x20)) - all(b'a'), 25);
    let is_digit = within(bytes - all(b'0'), 9);
    let is_mark = within(bytes - all(0x21), 0x5e) & !(is_letter | is_digit);
    let is_line = within(bytes - all(1), 0x1e);
    let class = is_letter & all(LETTER) | is_digit & all(DIGIT) | is_mark & all(MARK) | is_line & all(LINE);
    let more = is_letter & all(2) | is_digit & all(BYTE_MORE) | is_mark & all(5);
    (class, (all(BYTE_PARTS) & !is(bytes, FILLER)) + more)
}

/// Additional cost of the first byte of each run of a class, and of a capital after a small letter. Each byte of `new`
/// is behind the one in `old`; `after` and `class` are the classes of both.
#[inline(always)]
fn begun(old: u8x16, new: u8x16, after: u8x16, class: u8x16) -> u8x16 {
    let is_same = after.simd_eq(class);
    let capital = is(old & !new & all(0x20), 0x20) & is(class, LETTER) & is_same & all(16);
    (class & !is_same) + capital
}

/// Additional cost if some bytes are not ASCII, modulo 256. An ideograph is a little less than a token, a letter of
/// another script half a token, an emoji two. A letter after one of them begins no word.
#[inline(always)]
fn wide_cost(old: u8x16, new: u8x16, class: u8x16) -> u8x16 {
    let from = |least: u8| new.max(all(least)).simd_eq(new);
    let within = old.max(all(0x80)).simd_eq(old) & is(class, LETTER) & all(LETTER);
    (from(0xc0) & all(14)) + (from(0xe0) & all(16)) + (from(0xf0) & all(66)) - within
}

/// Classes of bytes. The number of a class is also the additional cost of the first byte of a run of it.
const LETTER: u8 = 20;
const DIGIT: u8 = 101;
/// Visible ASCII except letters and digits, and the substitute for control characters.
const MARK: u8 = 26;
/// Line feeds, carriage returns and tabs.
const LINE: u8 = 17;
/// Blanks, the filler, and bytes that are not ASCII.
const NONE: u8 = 0;

/// Class of each byte, as [`costs`] returns it.
static CLASSES: [u8; 256] = {
    let (mut classes, mut byte) = ([NONE; 256], 1);
    while byte < 0x80 {
        classes[byte] = match byte as u8 {
            b'a'..=b'z' | b'A'..=b'Z' => LETTER,
            b'0'..=b'9' => DIGIT,
            0x21.. => MARK,
            b' ' => NONE,
            _ => LINE,
        };
        byte += 1;
    }
    classes
};

#[inline(always)]
fn is(bytes: u8x16, byte: u8) -> u8x16 {
    bytes.simd_eq(all(byte))
}

#[inline(always)]
fn all(byte: u8) -> u8x16 {
    u8x16::splat(byte)
}
