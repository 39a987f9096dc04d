//! Parser of response heads from upstreams. Framing is as strict as for requests: an upstream's connection is reused,
//! and a wrong end of one answer would become the start of another client's answer.

use super::fields::{FramingError, FramingFields};
use super::parts::{BlankLine, Framing, HeadError, ResponseHead, find_end, is_allowance};
use super::plain;
use crate::base::limits::HEADERS_MAX;
use crate::wire::Span;
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
        && !to_head_request
        && let Some(head) = plain::response(window)
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
    let http11 = version == 1;
    let mut framing = FramingFields::default();
    let [mut content_type, mut content_encoding, mut retry_after] = [Span::default(); 3];
    let mut has_allowances = false;
    for header in response.headers.iter() {
        if framing.take(header.name, header.value).map_err(refuse)? {
            continue;
        }
        let slot = match header.name {
            name if name.eq_ignore_ascii_case("content-type") => &mut content_type,
            name if name.eq_ignore_ascii_case("content-encoding") => &mut content_encoding,
            name if name.eq_ignore_ascii_case("retry-after") => &mut retry_after,
            name => {
                has_allowances |= is_allowance(name.as_bytes());
                continue;
            }
        };
        if slot.is_empty() {
            *slot = Span::of_part(head, header.value);
        }
    }
    let bodiless = to_head_request || status < 200 || status == 204 || status == 304;
    let framed = match framing.framing(http11).map_err(refuse)? {
        _ if bodiless => Framing::None,
        Framing::Length(u64::MAX) => return Err(bad("content-length is too large")),
        Framing::None => Framing::ToEnd,
        framing => framing,
    };
    Ok(ResponseHead {
        status,
        http11,
        len: head.len() as u32,
        framing: framed,
        keep_alive: framing.keep_alive(http11) && framed != Framing::ToEnd,
        content_type,
        content_encoding,
        retry_after,
        has_allowances,
    })
}

fn refuse(error: FramingError) -> HeadError {
    match error {
        FramingError::Ambiguous(reason) => bad(reason),
        FramingError::UnknownCoding => bad("the transfer coding is not chunked"),
    }
}
