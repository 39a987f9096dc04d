//! Fast parser for plain heads, which nearly all are: one pass, line by line, without bare line ends or unusual
//! characters. Must never accept a head that the strict parser would refuse or read differently. It returns nothing for
//! anything unusual, and leaves that to the strict parser. A property test and a fuzz target compare the two.

use super::parts::{
    COUNT, Expect, Framing, HeaderField, Method, RequestHead, ResponseHead, is_agent, is_allowance, is_anthropic,
    is_true, session_rank,
};
use crate::base::limits::HEADERS_MAX;
use crate::wire::Span;
use lanes::skip::{to_control, to_no_name};
use std::ops::Range;

/// Maximum number of digits of a length. Longer ones are left to the strict parser.
const LENGTH_DIGITS_MAX: usize = 15;

const fn table(also: &[u8]) -> [bool; 256] {
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

/// Characters of ordinary request targets.
static TARGET: [bool; 256] = table(b"/-._~?=&%+:,@");
/// Characters of ordinary hosts with their port.
static HOST: [bool; 256] = table(b"-._~!$&'()*+;=%[]:");

/// Returns a request's head, if it is plain and complete.
pub(super) fn request(buf: &[u8]) -> Option<RequestHead> {
    let (method, from) = match buf {
        [b'P', b'O', b'S', b'T', b' ', b'/', ..] => (Method::Post, 5),
        [b'G', b'E', b'T', b' ', b'/', ..] => (Method::Get, 4),
        _ => return None,
    };
    let target = &buf[from..];
    let until = from + target.iter().position(|byte| !TARGET[usize::from(*byte)])?;
    if buf[until..].first_chunk::<11>()? != b" HTTP/1.1\r\n" {
        return None;
    }
    let path = from + buf[from..until].iter().position(|byte| *byte == b'?').unwrap_or(until - from);
    let mut found = RequestFields::default();
    let len = fields(buf, until + 11, |name, value| found.take(buf, name, value))?;
    if !found.has(HeaderField::Host) {
        return None;
    }
    Some(RequestHead {
        method,
        target: Span::new(from, until),
        path: Span::new(from, path),
        http11: true,
        len: len as u32,
        framing: found.framing.length.map_or(Framing::None, Framing::Length),
        keep_alive: !found.framing.close,
        expect: Expect::None,
        asks_leave: false,
        traced: found.traced,
        wants_cost: found.wants_cost,
        more_anthropic: found.more_anthropic,
        names_agent: found.names_agent,
        names_key: found.names_key,
        fields: found.fields,
    })
}

#[derive(Default)]
struct RequestFields {
    fields: [Span; COUNT],
    seen: u32,
    /// Rank of the header that names the conversation, see [`session_rank`].
    session: u8,
    traced: bool,
    wants_cost: bool,
    more_anthropic: bool,
    names_agent: bool,
    names_key: bool,
    framing: PlainFraming,
}

/// True if a name of letters, digits, dashes and underscores equals `lower` without regard to case. `lower` must be in
/// lower case and contain no underscores.
#[inline(always)]
fn is<const N: usize>(name: &[u8], lower: &[u8; N]) -> bool {
    let Some(name) = name.first_chunk::<N>() else { return false };
    let mut differs = 0;
    let mut at = 0;
    // Compares words of eight bytes, the last of which may overlap, or of four bytes in short names.
    while at < N {
        if N >= 8 {
            let from = at.min(N - 8);
            differs |= (word::<8>(name, from) | 0x2020_2020_2020_2020) ^ word::<8>(lower, from);
            at += 8;
        } else {
            let from = at.min(N.saturating_sub(4));
            differs |= (word::<4>(name, from) | 0x2020_2020) ^ word::<4>(lower, from);
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

impl RequestFields {
    fn has(&self, field: HeaderField) -> bool {
        self.seen & 1 << field as u32 != 0
    }

    #[inline(always)]
    fn take(&mut self, buf: &[u8], name: &[u8], value: Range<usize>) -> Option<()> {
        let field = match name.len() {
            4 if is(name, b"host") => {
                if !buf[value.clone()].iter().all(|byte| HOST[usize::from(*byte)]) {
                    return None;
                }
                HeaderField::Host
            }
            6 if is(name, b"origin") => HeaderField::Origin,
            6 if is(name, b"expect") => return None,
            9 if is(name, b"x-api-key") => HeaderField::XApiKey,
            10 if is(name, b"user-agent") => HeaderField::UserAgent,
            10 if is(name, b"connection") => return self.framing.connection(&buf[value]),
            11 if is(name, b"traceparent") => {
                self.traced = true;
                return Some(());
            }
            12 if is(name, b"content-type") => HeaderField::ContentType,
            12 if is(name, b"x-request-id") => HeaderField::XRequestId,
            13 if is(name, b"authorization") => HeaderField::Authorization,
            14 if is(name, b"content-length") => return self.framing.length(&buf[value]),
            14 if is(name, b"anthropic-beta") => HeaderField::AnthropicBeta,
            14 if is(name, b"x-tollgate-key") => {
                // The strict parser refuses a second one.
                return (!std::mem::replace(&mut self.names_key, true)).then_some(());
            }
            16 if is(name, b"content-encoding") => HeaderField::ContentEncoding,
            17 if is(name, b"transfer-encoding") => return None,
            17 if is(name, b"anthropic-version") => HeaderField::AnthropicVersion,
            10 | 12 | 18 | 22 | 24 => {
                self.rare(name, value);
                return Some(());
            }
            // `x-parent-session-id`, but not what SDKs say of themselves.
            19 if name[2] | 0x20 == b'p' => {
                self.rare(name, value);
                return Some(());
            }
            23 if is(name, b"x-tollgate-include-cost") => {
                self.wants_cost |= is_true(&buf[value]);
                return Some(());
            }
            // `access-control-request-…`, from browsers that ask for permission.
            29 | 30 if name[0] | 0x20 == b'a' => return None,
            // More headers of Anthropic's API, but not `accept-…`.
            11.. if name[1] | 0x20 == b'n' => {
                self.rare(name, value);
                return Some(());
            }
            _ => return Some(()),
        };
        // The strict parser decides which repetitions are refused.
        if self.has(field) {
            return None;
        }
        self.seen |= 1 << field as u32;
        self.fields[field as usize] = Span::new(value.start, value.end);
        Some(())
    }
}

impl RequestFields {
    /// Takes a field that most heads do not have.
    #[cold]
    fn rare(&mut self, name: &[u8], value: Range<usize>) {
        self.more_anthropic |= is_anthropic(name);
        self.names_agent |= is_agent(name);
        let rank = session_rank(name);
        if rank > 0 && (self.session == 0 || rank < self.session) {
            (self.session, self.fields[HeaderField::Session as usize]) = (rank, Span::new(value.start, value.end));
        }
    }
}

/// Returns a final answer's head, if it is plain and complete, and its body has a length or is chunked.
pub(super) fn response(buf: &[u8]) -> Option<ResponseHead> {
    let [a, b, c, b' '] = *buf.strip_prefix(b"HTTP/1.1 ")?.first_chunk::<4>()? else { return None };
    let [a, b, c] = [a, b, c].map(|digit| u16::from(digit.wrapping_sub(b'0')));
    let status = a * 100 + b * 10 + c;
    let line = to_control(buf, 13);
    let ordinary = a <= 9 && b <= 9 && c <= 9 && status >= 200 && status != 204 && status != 304;
    if !ordinary || buf.get(line..line + 2)? != b"\r\n" || !buf[13..line].is_ascii() {
        return None;
    }
    let mut found = ResponseFields::default();
    let len = fields(buf, line + 2, |name, value| found.take(buf, name, value))?;
    Some(ResponseHead {
        status,
        http11: true,
        len: len as u32,
        framing: match (found.framing.length, found.chunked) {
            (Some(length), false) => Framing::Length(length),
            (None, true) => Framing::Chunked,
            _ => return None,
        },
        keep_alive: !found.framing.close,
        content_type: found.content_type,
        content_encoding: found.content_encoding,
        retry_after: found.retry_after,
        has_allowances: found.has_allowances,
    })
}

#[derive(Default)]
struct ResponseFields {
    content_type: Span,
    content_encoding: Span,
    retry_after: Span,
    has_allowances: bool,
    chunked: bool,
    framing: PlainFraming,
}

impl ResponseFields {
    #[inline(always)]
    fn take(&mut self, buf: &[u8], name: &[u8], value: Range<usize>) -> Option<()> {
        let slot = match name.len() {
            10 if is(name, b"connection") => return self.framing.connection(&buf[value]),
            11 if is(name, b"retry-after") => &mut self.retry_after,
            12 if is(name, b"content-type") => &mut self.content_type,
            14 if is(name, b"content-length") => return self.framing.length(&buf[value]),
            16 if is(name, b"content-encoding") => &mut self.content_encoding,
            17 if is(name, b"transfer-encoding") => {
                let once = !std::mem::replace(&mut self.chunked, true);
                return (once && buf[value].eq_ignore_ascii_case(b"chunked")).then_some(());
            }
            // The shortest one is `retry-after-ms`.
            14.. if matches!(name[0] | 0x20, b'a' | b'r' | b'x') => {
                self.has_allowances |= is_allowance(name);
                return Some(());
            }
            _ => return Some(()),
        };
        if slot.is_empty() {
            *slot = Span::new(value.start, value.end);
        }
        Some(())
    }
}

/// Framing fields of both kinds of head, in their plain forms.
#[derive(Default)]
struct PlainFraming {
    length: Option<u64>,
    close: bool,
}

impl PlainFraming {
    fn connection(&mut self, value: &[u8]) -> Option<()> {
        let close = value.eq_ignore_ascii_case(b"close");
        self.close |= close;
        (close || value.eq_ignore_ascii_case(b"keep-alive")).then_some(())
    }

    #[inline]
    fn length(&mut self, digits: &[u8]) -> Option<()> {
        if self.length.is_some() || digits.is_empty() || digits.len() > LENGTH_DIGITS_MAX {
            return None;
        }
        let mut length = 0u64;
        for byte in digits {
            let digit = byte.wrapping_sub(b'0');
            if digit > 9 {
                return None;
            }
            length = length * 10 + u64::from(digit);
        }
        self.length = Some(length);
        Some(())
    }
}

/// Calls `each` with name and trimmed value of every field from `at` on. Returns the offset after the blank line, or
/// `None` if something is unusual or `each` returns `None`.
#[inline(always)]
fn fields(buf: &[u8], mut at: usize, mut each: impl FnMut(&[u8], Range<usize>) -> Option<()>) -> Option<usize> {
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
        each(&buf[at..colon], start..end)?;
        at = end + 2;
        if buf.get(at..at + 2)? == b"\r\n" {
            return Some(at + 2);
        }
    }
    None
}
