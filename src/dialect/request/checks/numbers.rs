//! Numbers as a request may have them.

use crate::wire::json::Raw;

/// A whole number of 1 or more.
#[inline]
pub(in crate::dialect::request) fn whole_number(raw: Raw<'_>) -> Option<u64> {
    raw.integer().filter(|count| *count >= 1)
}

/// How many answers are asked for, understood as generously as some servers do, which take `"2"` for a number. 0: it
/// does not say.
pub(in crate::dialect::request) fn answers(raw: Raw<'_>) -> u32 {
    let count = raw.string().map_or(raw, Raw::new).integer().unwrap_or(0);
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// A number from 0 to `most`.
pub(super) fn in_range(raw: Raw<'_>, most: f64) -> bool {
    if let [b'0', b'.', digits @ ..] = raw.bytes()
        && digits.iter().all(u8::is_ascii_digit)
    {
        return true;
    }
    raw.number().is_some_and(|number| (0.0..=most).contains(&number))
}
