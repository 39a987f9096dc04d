//! Fast reader of the fields of plain heads, which nearly all are: one pass, line by line, without bare line ends or
//! unusual characters. Must never accept a field that the strict parser would refuse or read differently. It returns
//! nothing for anything unusual, and leaves that to the strict parser. A property test and a fuzz target compare the
//! two.

use crate::base::limits::HEADERS_MAX;
use lanes::skip::{to_control, to_no_name};

/// Calls `each` with name and trimmed value of every field from `at` on. Returns the offset after the blank line, or
/// `None` if something is unusual or `each` returns `None`.
#[inline(always)]
pub(super) fn fields<'a>(
    buf: &'a [u8],
    mut at: usize,
    mut each: impl FnMut(&[u8], &'a [u8]) -> Option<()>,
) -> Option<usize> {
    for _ in 0..HEADERS_MAX {
        let colon = to_no_name(buf, at);
        if colon == at || *buf.get(colon)? != b':' {
            return None;
        }
        let start = if *buf.get(colon + 1)? == b' ' { colon + 2 } else { colon + 1 };
        let end = to_control(buf, start);
        // A blank on either side would need trimming, and an empty value is unusual.
        if buf.get(end..end + 2)? != b"\r\n" || end == start || buf[start] == b' ' || buf[end - 1] == b' ' {
            return None;
        }
        each(&buf[at..colon], &buf[start..end])?;
        at = end + 2;
        if buf.get(at..at + 2)? == b"\r\n" {
            return Some(at + 2);
        }
    }
    None
}
