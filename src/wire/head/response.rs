//! Parser of response heads from upstreams. Framing is as strict as for requests: an upstream's connection is reused,
//! and a wrong end of one answer would become the start of another client's answer.

use super::fields::{FramingError, FramingFields, is};
use super::parts::{BlankLine, Framing, HeadError, ResponseHead, find_end};
use super::plain;
use crate::base::limits::HEADERS_MAX;
use crate::wire::Span;
use lanes::skip::to_control;
use std::mem::MaybeUninit;

/// Parses the response head at the front of `buf`; `scanned` and `Ok(None)` as in [`super::parse_request`].
///
/// A 1xx answer is returned as a head with [`Framing::None`], to be skipped. 101 is an error, because Tollgate never
/// asks for an upgrade. Every error has status 502. `to_head_request`: the request was HEAD, so no body follows (RFC
/// 9112 section 6.3).
pub fn parse_response(
    buf: &[u8],
    scanned: &mut u32,
    max_bytes: usize,
    to_head_request: bool,
) -> Result<Option<ResponseHead>, HeadError> {
    let window = &buf[..buf.len().min(max_bytes)];
    if *scanned == 0
        && let Some(head) = plain(window, to_head_request)
    {
        *scanned = head.len;
        return Ok(Some(head));
    }
    if matches!(window.first(), Some(b'\r' | b'\n')) {
        return Err(bad("the status line is empty"));
    }
    let len = match find_end(window, scanned).map_err(bad)? {
        BlankLine::End(len) => len,
        BlankLine::More if buf.len() < max_bytes => return Ok(None),
        BlankLine::More => return Err(bad("the response head is too large")),
    };
    parse_whole(&buf[..len], to_head_request).map(Some)
}

fn bad(reason: &'static str) -> HeadError {
    HeadError::new(502, reason)
}

/// Returns a response's head, if it is plain and complete.
pub(super) fn plain(buf: &[u8], to_head_request: bool) -> Option<ResponseHead> {
    let [a, b, c, b' '] = *buf.strip_prefix(b"HTTP/1.1 ")?.first_chunk::<4>()? else { return None };
    let [a, b, c] = [a, b, c].map(|digit| u16::from(digit.wrapping_sub(b'0')));
    let line = to_control(buf, 13);
    let ordinary = (2..=9).contains(&a) && b <= 9 && c <= 9;
    if !ordinary || buf.get(line..line + 2)? != b"\r\n" || !buf[13..line].is_ascii() {
        return None;
    }
    let mut found = ResponseFields::new(buf, a * 100 + b * 10 + c, true);
    let len = plain::fields(buf, line + 2, |name, value| found.take(name, value).ok())?;
    found.end(len, to_head_request).ok()
}

pub(super) fn parse_whole(head: &[u8], to_head_request: bool) -> Result<ResponseHead, HeadError> {
    let mut storage = [const { MaybeUninit::uninit() }; HEADERS_MAX];
    let mut response = httparse::Response::new(&mut []);
    let parsed =
        httparse::ParserConfig::default().parse_response_with_uninit_headers(&mut response, head, &mut storage);
    match parsed {
        Ok(httparse::Status::Complete(len)) if len == head.len() => {}
        Err(httparse::Error::TooManyHeaders) => return Err(bad("the response has too many headers")),
        _ => return Err(bad("the response head is malformed")),
    }
    let (Some(status), Some(version)) = (response.code, response.version) else {
        return Err(bad("the status line is malformed"));
    };
    if status < 100 || status == 101 {
        return Err(bad("the response has an unexpected status"));
    }
    let mut fields = ResponseFields::new(head, status, version == 1);
    for header in response.headers.iter() {
        fields.take(header.name.as_bytes(), header.value)?;
    }
    fields.end(head.len(), to_head_request)
}

/// Fields of a head, taken one by one.
pub(super) struct ResponseFields<'a> {
    /// The head, perhaps with bytes behind it.
    head: &'a [u8],
    found: ResponseHead,
    framing: FramingFields<'a>,
}

impl<'a> ResponseFields<'a> {
    pub(super) fn new(head: &'a [u8], status: u16, http11: bool) -> ResponseFields<'a> {
        let found = ResponseHead { status, http11, ..ResponseHead::default() };
        ResponseFields { head, found, framing: FramingFields::default() }
    }

    /// Takes a field, whose value is without blanks around it. The first value counts.
    #[inline(always)]
    pub(super) fn take(&mut self, name: &[u8], value: &'a [u8]) -> Result<(), HeadError> {
        let slot = match name.len() {
            11 if is(name, b"retry-after") => &mut self.found.retry_after,
            12 if is(name, b"content-type") => &mut self.found.content_type,
            16 if is(name, b"content-encoding") => &mut self.found.content_encoding,
            // The shortest one is `retry-after-ms`.
            14.. if matches!(name[0] | 0x20, b'a' | b'r' | b'x') => {
                self.found.has_allowances |= is_allowance(name);
                return Ok(());
            }
            _ => return self.framing.take(name, value).map_err(refuse),
        };
        if slot.is_empty() {
            *slot = Span::of_part(self.head, value);
        }
        Ok(())
    }

    /// Returns the complete head, which consists of `len` bytes.
    pub(super) fn end(self, len: usize, to_head_request: bool) -> Result<ResponseHead, HeadError> {
        let ResponseFields { mut found, framing, .. } = self;
        let bodiless = to_head_request || found.status < 200 || found.status == 204 || found.status == 304;
        found.framing = match framing.framing(found.http11).map_err(refuse)? {
            _ if bodiless => Framing::None,
            Framing::Length(u64::MAX) => return Err(bad("content-length is too large")),
            Framing::None => Framing::ToEnd,
            framing => framing,
        };
        found.keep_alive = framing.keep_alive(found.http11) && found.framing != Framing::ToEnd;
        found.len = len as u32;
        Ok(found)
    }
}

/// True if a header with this name may contain allowances: `retry-after-ms`, `x-ratelimit-…`, `anthropic-ratelimit-…`.
fn is_allowance(name: &[u8]) -> bool {
    let begins = |start: &[u8]| name.get(..start.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(start));
    begins(b"x-ratelimit-") || begins(b"anthropic-ratelimit-") || begins(b"retry-after-ms")
}

fn refuse(error: FramingError) -> HeadError {
    match error {
        FramingError::Ambiguous(reason) => bad(reason),
        FramingError::UnknownCoding => bad("the transfer coding is not chunked"),
    }
}
