//! Numbers in the members of a request.

use crate::wire::json::Raw;

/// Longest number in bytes that is parsed. A longer one is not a number.
const NUMBER_BYTES_MAX: usize = 1024;

/// A whole number of 1 or more.
#[inline]
pub(crate) fn whole_number(raw: Raw<'_>) -> Option<u64> {
    short(raw).and_then(Raw::integer).filter(|count| *count >= 1)
}

/// Number of answers requested, read as leniently as some servers do, which accept `"2"` as a number. 0 if absent.
pub(crate) fn answers(raw: Raw<'_>) -> u32 {
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
pub(crate) fn short(raw: Raw<'_>) -> Option<Raw<'_>> {
    (raw.bytes().len() <= NUMBER_BYTES_MAX).then_some(raw)
}
