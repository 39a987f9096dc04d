//! Numbers as a request may have them.

use crate::base::limits::NUMBER_BYTES_MAX;
use crate::wire::json::Raw;

/// A whole number of 1 or more.
#[inline]
pub(in crate::dialect::request) fn whole_number(raw: Raw<'_>) -> Option<u64> {
    if raw.bytes().len() > NUMBER_BYTES_MAX {
        return None;
    }
    raw.count().filter(|count| *count >= 1 && !raw.bytes().contains(&b'.'))
}

/// A number from 0 to `most`.
pub(super) fn in_range(raw: Raw<'_>, most: f64) -> bool {
    if raw.bytes().len() > NUMBER_BYTES_MAX {
        return false;
    }
    if let [b'0', b'.', digits @ ..] = raw.bytes()
        && digits.iter().all(u8::is_ascii_digit)
    {
        return true;
    }
    raw.number().is_some_and(|number| (0.0..=most).contains(&number))
}
