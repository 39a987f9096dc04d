//! Fields of both kinds of head that decide framing and the life of the connection. Never decides a status; its callers
//! do.

use super::parts::Framing;

/// Framing fields of one head, collected line by line.
#[derive(Default)]
pub(super) struct FramingFields<'a> {
    length: Option<&'a [u8]>,
    coding: Option<&'a [u8]>,
    close: bool,
    keep: bool,
    /// `connection` names something else, perhaps headers.
    pub(super) options: bool,
}

/// Error in the framing fields.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum FramingError {
    /// Two parsers could disagree about the end of the body.
    Ambiguous(&'static str),
    /// A well-formed transfer coding beneath `chunked` that Tollgate does not support.
    UnknownCoding,
}

impl<'a> FramingFields<'a> {
    /// Takes one field, if it is a framing field.
    #[inline(always)]
    pub(super) fn take(&mut self, name: &[u8], value: &'a [u8]) -> Result<(), FramingError> {
        let slot = match name.len() {
            10 if is(name, b"connection") => {
                self.connection(value);
                return Ok(());
            }
            14 if is(name, b"content-length") => &mut self.length,
            17 if is(name, b"transfer-encoding") => &mut self.coding,
            _ => return Ok(()),
        };
        if slot.replace(value).is_some() {
            return Err(FramingError::Ambiguous("content-length or transfer-encoding is repeated"));
        }
        Ok(())
    }

    fn connection(&mut self, value: &[u8]) {
        for token in value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
            let (close, keep) = (token.eq_ignore_ascii_case(b"close"), token.eq_ignore_ascii_case(b"keep-alive"));
            self.close |= close;
            self.keep |= keep;
            self.options |= !close && !keep;
        }
    }

    /// True if the connection stays open after the message (RFC 9112 section 9.3).
    pub(super) fn keep_alive(&self, http11: bool) -> bool {
        !self.close && (http11 || self.keep)
    }

    /// Returns the framing of these fields; `Framing::None` if there are none.
    pub(super) fn framing(&self, http11: bool) -> Result<Framing, FramingError> {
        match (self.coding, self.length) {
            (Some(_), Some(_)) => {
                Err(FramingError::Ambiguous("content-length and transfer-encoding must not be sent together"))
            }
            (Some(_), None) if !http11 => Err(FramingError::Ambiguous("transfer-encoding needs HTTP/1.1")),
            (Some(coding), None) => chunked(coding),
            (None, Some(length)) => decimal(length).map(Framing::Length),
            (None, None) => Ok(Framing::None),
        }
    }
}

/// Accepts exactly `chunked`. RFC 9112 section 6.1 requires 501 for an unknown coding, section 6.3 requires 400 if
/// `chunked` is not the last one.
fn chunked(value: &[u8]) -> Result<Framing, FramingError> {
    if value.eq_ignore_ascii_case(b"chunked") {
        return Ok(Framing::Chunked);
    }
    let mut codings = value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).rev();
    let last = codings.next().unwrap_or_default();
    if !last.eq_ignore_ascii_case(b"chunked") {
        return Err(FramingError::Ambiguous("transfer-encoding does not end in chunked"));
    }
    let mut unknown = false;
    for coding in codings {
        if !is_token(coding) || coding.eq_ignore_ascii_case(b"chunked") {
            return Err(FramingError::Ambiguous("transfer-encoding is malformed"));
        }
        unknown = true;
    }
    if unknown {
        Err(FramingError::UnknownCoding)
    } else {
        Err(FramingError::Ambiguous("transfer-encoding is malformed"))
    }
}

fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte))
}

/// Parses digits only: no sign, no list, no blanks (RFC 9110 section 8.6). Too large a number becomes the largest,
/// which every bound refuses.
fn decimal(value: &[u8]) -> Result<u64, FramingError> {
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return Err(FramingError::Ambiguous("content-length is not a number"));
    }
    Ok(value.iter().fold(0u64, |sum, digit| sum.saturating_mul(10).saturating_add(u64::from(digit - b'0'))))
}

/// Returns a table of the characters that are letters, digits or among `also`.
pub(super) const fn letters_digits_and(also: &[u8]) -> [bool; 256] {
    let mut table = [false; 256];
    let mut byte = 0usize;
    while byte < 128 {
        table[byte] = (byte as u8).is_ascii_alphanumeric();
        byte += 1;
    }
    let mut at = 0;
    while at < also.len() {
        table[also[at] as usize] = true;
        at += 1;
    }
    table
}

/// True if the name of a field equals `lower` without regard to case. `lower` must consist of lower-case letters,
/// dashes and underscores: no character of a name differs from them only in the bit of the case, except capital
/// letters.
#[inline(always)]
pub(super) fn is<const N: usize>(name: &[u8], lower: &[u8; N]) -> bool {
    let Some(name) = name.first_chunk::<N>() else { return false };
    let mut differs = 0;
    let mut at = 0;
    // Compares words of eight bytes, the last of which may overlap, or of four bytes in short names.
    while at < N {
        if N >= 8 {
            let from = at.min(N - 8);
            differs |= (word::<8>(name, from) ^ word::<8>(lower, from)) & !0x2020_2020_2020_2020;
            at += 8;
        } else {
            let from = at.min(N.saturating_sub(4));
            differs |= (word::<4>(name, from) ^ word::<4>(lower, from)) & !0x2020_2020;
            at += 4;
        }
    }
    differs == 0
}

/// Returns the `W` bytes from `at` on as a number.
#[inline(always)]
fn word<const W: usize>(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word[..W].copy_from_slice(&bytes[at..at + W]);
    u64::from_le_bytes(word)
}
