//! A character that a provider has cut in two: the first of its two escapes ends a text, the second begins the text of
//! a later event. Neither event is JSON by itself.

use super::super::answer::Frame;
use super::{Inner, ResponseIdentity, StreamFault};
use std::num::NonZeroU16;

/// Bytes of an escape with a number.
const ESCAPE: usize = 6;

/// An event whose data is not JSON: hands it on if halves of characters alone are the reason.
#[cold]
pub(super) fn event(
    inner: &mut Inner,
    half: &mut Option<NonZeroU16>,
    frame: &Frame<'_>,
    me: &ResponseIdentity<'_>,
    out: &mut Vec<u8>,
) -> Result<bool, StreamFault> {
    let data = mend(frame.data, half).ok_or(StreamFault::Malformed)?;
    let mut raw = Vec::with_capacity(frame.raw.len() + ESCAPE);
    if !frame.name.is_empty() {
        raw.extend_from_slice(b"event: ");
        raw.extend_from_slice(frame.name);
        raw.push(b'\n');
    }
    raw.extend_from_slice(b"data: ");
    raw.extend(data.iter().map(|byte| if *byte == b'\n' { b' ' } else { *byte }));
    raw.extend_from_slice(b"\n\n");
    inner.event(&Frame { data: &data, raw: &raw, ..*frame }, me, out)
}

/// Writes `data` without the half that ends a string, which is kept in `half`, and with the kept one in front of the
/// half that begins a string. `None` if there is another half, or none.
fn mend(data: &[u8], half: &mut Option<NonZeroU16>) -> Option<Vec<u8>> {
    let (mut out, mut at) = (Vec::with_capacity(data.len() + ESCAPE), 0);
    let (mut inside, mut begins, mut mended) = (false, false, false);
    while let Some(byte) = data.get(at) {
        let is_escape = inside && *byte == b'\\';
        let length = match (is_escape, unit(data, at)) {
            (true, Some(0xd800..=0xdbff)) if matches!(unit(data, at + ESCAPE), Some(0xdc00..=0xdfff)) => 2 * ESCAPE,
            (true, Some(high @ 0xd800..=0xdbff)) => {
                data.get(at + ESCAPE).filter(|byte| **byte == b'"')?;
                (*half, mended, at) = (NonZeroU16::new(high), true, at + ESCAPE);
                begins = false;
                continue;
            }
            (true, Some(0xdc00..=0xdfff)) => {
                let high = half.take().filter(|_| begins)?;
                out.extend_from_slice(format!("\\u{high:04x}").as_bytes());
                mended = true;
                ESCAPE
            }
            (true, _) => 2,
            _ => 1,
        };
        begins = !is_escape && *byte == b'"' && !inside;
        inside ^= !is_escape && *byte == b'"';
        out.extend_from_slice(data.get(at..at + length)?);
        at += length;
    }
    mended.then_some(out)
}

/// The number of the escape at `at`, if it has one.
fn unit(data: &[u8], at: usize) -> Option<u16> {
    let digits = data.get(at..at + ESCAPE)?.strip_prefix(b"\\u")?;
    let digits =
        std::str::from_utf8(digits).ok().filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
    u16::from_str_radix(digits, 16).ok()
}
