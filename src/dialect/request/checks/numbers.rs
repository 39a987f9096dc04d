//! Numbers in requests.

use crate::base::limits::NUMBER_BYTES_MAX;
use crate::wire::json::Raw;

/// A whole number of 1 or more.
#[inline]
pub(in crate::dialect::request) fn whole_number(raw: Raw<'_>) -> Option<u64> {
    short(raw).and_then(Raw::integer).filter(|count| *count >= 1)
}

/// Number of answers requested, read as leniently as some servers do, which accept `"2"` as a number. 0 if absent.
pub(in crate::dialect::request) fn answers(raw: Raw<'_>) -> u32 {
    // A number that is too long to read counts as the maximum: a server may read it.
    if raw.bytes().len() > 8 * NUMBER_BYTES_MAX {
        return u32::MAX;
    }
    let text = raw.text();
    let value = text.as_ref().map_or(raw, |text| Raw::new(text.trim().trim_start_matches('+').as_bytes()));
    let Some(number) = short(value) else { return u32::MAX };
    u32::try_from(number.integer().unwrap_or(0)).unwrap_or(u32::MAX)
}

/// The value, if it is short enough to be a number.
fn short(raw: Raw<'_>) -> Option<Raw<'_>> {
    (raw.bytes().len() <= NUMBER_BYTES_MAX).then_some(raw)
}

/// True for a number from 0 to `most`.
pub(super) fn in_range(raw: Raw<'_>, most: f64) -> bool {
    let Some(raw) = short(raw) else { return false };
    if let [b'0', b'.', digits @ ..] = raw.bytes()
        && digits.iter().all(u8::is_ascii_digit)
    {
        return true;
    }
    raw.number().is_some_and(|number| (0.0..=most).contains(&number))
}
