//! Joins a surrogate pair that a provider has split: the first of its two escapes ends a text, the second begins the
//! text of a later event. Neither event is JSON by itself. Pure; called by `stream` for events that are not JSON.

use super::super::answer::Frame;
use std::num::NonZeroU16;

/// Bytes of a `\u` escape.
const ESCAPE: usize = 6;

/// Data and bytes of an event that is not JSON, with whole characters; `None` if halves are not the only reason.
#[cold]
pub(super) fn joined(half: &mut Option<NonZeroU16>, frame: &Frame<'_>) -> Option<(Vec<u8>, Vec<u8>)> {
    let data = join(frame.data, half)?;
    let mut raw = Vec::with_capacity(frame.raw.len() + ESCAPE);
    if !frame.name.is_empty() {
        raw.extend_from_slice(b"event: ");
        raw.extend_from_slice(frame.name);
        raw.push(b'\n');
    }
    raw.extend_from_slice(b"data: ");
    raw.extend(data.iter().map(|byte| if *byte == b'\n' { b' ' } else { *byte }));
    raw.extend_from_slice(b"\n\n");
    Some((data, raw))
}

/// Writes `data` without the half at the end of a string, which is stored in `half`, and with the stored one before the
/// half that begins a string. `None` if there is another half, or none.
fn join(data: &[u8], half: &mut Option<NonZeroU16>) -> Option<Vec<u8>> {
    let (mut out, mut at) = (Vec::with_capacity(data.len() + ESCAPE), 0);
    // Escapes are only in strings: a quote before one begins a string, and a quote after one ends it.
    let (mut begins, mut joined) = (false, false);
    while let Some(byte) = data.get(at) {
        let length = match unit(data, at) {
            Some(0xd800..=0xdbff) if matches!(unit(data, at + ESCAPE), Some(0xdc00..=0xdfff)) => 2 * ESCAPE,
            Some(high @ 0xd800..=0xdbff) => {
                data.get(at + ESCAPE).filter(|byte| **byte == b'"')?;
                (*half, joined, at) = (NonZeroU16::new(high), true, at + ESCAPE);
                begins = false;
                continue;
            }
            Some(0xdc00..=0xdfff) => {
                let high = half.take().filter(|_| begins)?;
                out.extend_from_slice(format!("\\u{high:04x}").as_bytes());
                joined = true;
                ESCAPE
            }
            _ if *byte == b'\\' => 2,
            _ => 1,
        };
        begins = *byte == b'"';
        out.extend_from_slice(data.get(at..at + length)?);
        at += length;
    }
    joined.then_some(out)
}

/// The code unit of the escape at `at`, if it has one.
fn unit(data: &[u8], at: usize) -> Option<u16> {
    let digits = data.get(at..at + ESCAPE)?.strip_prefix(b"\\u")?;
    let digits =
        std::str::from_utf8(digits).ok().filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
    u16::from_str_radix(digits, 16).ok()
}
