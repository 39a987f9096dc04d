//! Cost of sixteen bytes of text in parts of a token. Owns the arithmetic. The caller documents the origin and the use
//! of the costs.

use super::LANES;
use wide::u8x16;

/// Most bytes that [`piece`] accepts.
pub const PIECE: usize = 12 * LANES;
/// Most bytes that [`block`] accepts.
pub const BLOCK: usize = LANES;
/// Minimum cost of a byte in parts of a token.
pub const BYTE_PARTS: u8 = 8;
/// Fills up the last block and costs nothing. No text contains it.
const FILLER: u8 = 0;

/// Cost in parts of a token of at most [`BLOCK`] bytes of a text, as [`packed`] returns them. `last` is the byte before
/// them.
#[cfg_attr(not(debug_assertions), inline)]
pub fn block(text: u128, last: u8) -> u64 {
    let old = u8x16::new((text << 8 | u128::from(last)).to_le_bytes());
    let new = u8x16::new(text.to_le_bytes());
    let mut parts = cost(old, new, class_of(old), class_of(new));
    if (old | new).to_bitmask() != 0 {
        parts += wide_cost(old, new);
    }
    let [low, high] = [parts.to_array().first_chunk().copied(), parts.to_array().last_chunk().copied()];
    let pairs = |half: Option<[u8; 8]>| {
        let half = u64::from_le_bytes(half.unwrap_or_default());
        (half & EVERY_OTHER) + (half >> 8 & EVERY_OTHER)
    };
    // Four sums of sixteen bits each, added up in the highest.
    (pairs(low) + pairs(high)).wrapping_mul(0x0001_0001_0001_0001) >> 48
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
    classes[0] = class_of(u8x16::splat(last)).to_array()[0];
    let (after, mut highest) = (classes[1..=length].as_chunks_mut().0, u8x16::splat(0));
    for (class, new) in after.iter_mut().zip(new) {
        let bytes = u8x16::new(*new);
        (*class, highest) = (class_of(bytes).to_array(), highest | bytes);
    }
    let is_ascii = last < 0x80 && highest.to_bitmask() == 0;
    let (after, class) = (classes[..length].as_chunks().0, classes[1..=length].as_chunks().0);
    let mut sum = 0;
    for ((old, new), (after, class)) in old.iter().zip(new).zip(after.iter().zip(class)) {
        let (old, new) = (u8x16::new(*old), u8x16::new(*new));
        let mut parts = cost(old, new, u8x16::new(*after), u8x16::new(*class));
        if !is_ascii {
            parts += wide_cost(old, new);
        }
        // The compiler has a single instruction for this sum.
        sum += u64::from(parts.to_array().map(u16::from).iter().sum::<u16>());
    }
    sum
}

/// Mask of every other byte of eight.
const EVERY_OTHER: u64 = 0x00ff_00ff_00ff_00ff;

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

/// Cost in parts of a token of sixteen bytes, each after the byte in `old`, with the classes of both.
///
/// Every byte costs a little, and the first of its class more: a word is about a token, a long one more. Three digits
/// are about a token. A letter and a mark cost at least a fifth of the most expensive ones.
#[inline(always)]
fn cost(old: u8x16, new: u8x16, after: u8x16, class: u8x16) -> u8x16 {
    let (is_same, is_letter) = (after.simd_eq(class), is(class, LETTER));
    let begun = class & !is_same;
    let more = is_letter & all(2) | is(class, DIGIT) & all(8) | is(class, MARK) & all(5);
    let capital = is(old & !new & all(0x20), 0x20) & is_letter & is_same & all(16);
    begun + (all(BYTE_PARTS) & !is(new, FILLER)) + more + capital
}

/// Additional cost if some bytes are not ASCII, modulo 256. An ideograph is a little less than a token, a letter of
/// another script half a token, an emoji two. A letter after one of them begins no word.
#[inline(always)]
fn wide_cost(old: u8x16, new: u8x16) -> u8x16 {
    let from = |least: u8| new.max(all(least)).simd_eq(new);
    let within = old.max(all(0x80)).simd_eq(old) & is(class_of(new), LETTER) & all(LETTER);
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

/// Returns the class of each byte, independent of its neighbours.
#[inline(always)]
fn class_of(bytes: u8x16) -> u8x16 {
    let within = |offsets: u8x16, most: u8| offsets.min(all(most)).simd_eq(offsets);
    let is_letter = within((bytes | all(0x20)) - all(b'a'), 25);
    let is_digit = within(bytes - all(b'0'), 9);
    let is_mark = within(bytes - all(0x21), 0x5e) & !(is_letter | is_digit);
    let is_line = within(bytes - all(1), 0x1e);
    is_letter & all(LETTER) | is_digit & all(DIGIT) | is_mark & all(MARK) | is_line & all(LINE)
}

#[inline(always)]
fn is(bytes: u8x16, byte: u8) -> u8x16 {
    bytes.simd_eq(all(byte))
}

#[inline(always)]
fn all(byte: u8) -> u8x16 {
    u8x16::splat(byte)
}
