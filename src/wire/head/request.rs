//! Parser of request heads. Refuses heads that RFC 9112 calls malformed or that could smuggle a second request. Decides
//! nothing about paths, keys or body sizes.

use super::fields::{FramingError, FramingFields, is, letters_digits_and};
use super::parts::{BlankLine, Expect, HeadError, HeaderField, Method, RequestHead, find_end, is_anthropic};
use super::{is_hop_by_hop, plain};
use crate::base::limits::HEADERS_MAX;
use crate::wire::Span;
use std::mem::MaybeUninit;

/// Parses the request head at the front of `buf`.
///
/// `scanned` is the resume offset of the search for its end: 0 for a new head, kept by the caller between calls on a
/// growing buffer. `Ok(None)` asks for more bytes. A head of more than `max_bytes` is 431, or 414 if its first line is
/// already longer. Bytes after the head are ignored. See RFC 9112.
pub fn parse_request(buf: &[u8], scanned: &mut u32, max_bytes: usize) -> Result<Option<RequestHead>, HeadError> {
    let window = &buf[..buf.len().min(max_bytes)];
    if *scanned == 0
        && let Some(head) = plain(window)
    {
        *scanned = head.len;
        return Ok(Some(head));
    }
    if matches!(window.first(), Some(b'\r' | b'\n')) {
        return Err(HeadError::new(400, "the request line is empty"));
    }
    let len = match find_end(window, scanned).map_err(|reason| bad(refined(window, reason)))? {
        BlankLine::End(len) => len,
        BlankLine::More if buf.len() < max_bytes => return Ok(None),
        BlankLine::More if !window.contains(&b'\n') => return Err(HeadError::new(414, "the request line is too long")),
        BlankLine::More => return Err(HeadError::new(431, "the request head is too large")),
    };
    parse_whole(&buf[..len]).map(Some)
}

/// Returns why the first bytes are not a head: `reason`, unless they belong to a known other protocol.
fn refined(window: &[u8], reason: &'static str) -> &'static str {
    // A TLS record with a handshake.
    if window.starts_with(&[22, 3]) { "TLS on a port that speaks plain HTTP: use http://" } else { reason }
}

fn bad(reason: &'static str) -> HeadError {
    HeadError::new(400, reason)
}

/// Characters of ordinary request targets.
static TARGET: [bool; 256] = letters_digits_and(b"/-._~?=&%+:,@");

/// Returns a request's head, if it is plain and complete.
pub(super) fn plain(buf: &[u8]) -> Option<RequestHead> {
    let (method, from) = match buf {
        [b'P', b'O', b'S', b'T', b' ', b'/', ..] => (Method::Post, 5),
        [b'G', b'E', b'T', b' ', b'/', ..] => (Method::Get, 4),
        _ => return None,
    };
    let until = from + buf[from..].iter().position(|byte| !TARGET[usize::from(*byte)])?;
    if buf[until..].first_chunk::<11>()? != b" HTTP/1.1\r\n" {
        return None;
    }
    let target = &buf[from..until];
    let path = from + target.iter().position(|byte| *byte == b'?').unwrap_or(target.len());
    let (target, path) = (Span::new(from, until), Span::new(from, path));
    let mut found = RequestFields::new(buf, RequestHead { method, target, path, ..RequestHead::unparsed() });
    let len = plain::fields(buf, until + 11, |name, value| found.take(name, value).ok())?;
    found.end(len).ok()
}

pub(super) fn parse_whole(head: &[u8]) -> Result<RequestHead, HeadError> {
    let mut storage = [const { MaybeUninit::uninit() }; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut []);
    let status = request.parse_with_uninit_headers(head, &mut storage).map_err(|error| explain(head, error))?;
    // The blank line that was found must be the one where httparse stops.
    if status != httparse::Status::Complete(head.len()) {
        return Err(bad("the request head is malformed"));
    }
    let (Some(method), Some(target), Some(version)) = (request.method, request.path, request.version) else {
        return Err(bad("the request line is malformed"));
    };
    let line = RequestHead {
        method: known_method(method),
        target: Span::of_part(head, target.as_bytes()),
        path: path_of(head, method, target)?,
        http11: version == 1,
        ..RequestHead::unparsed()
    };
    let mut fields = RequestFields::new(head, line);
    for header in request.headers.iter() {
        fields.take(header.name.as_bytes(), header.value)?;
    }
    fields.end(head.len())
}

/// Fields of a head, taken one by one.
pub(super) struct RequestFields<'a> {
    /// The head, perhaps with bytes behind it.
    head: &'a [u8],
    found: RequestHead,
    framing: FramingFields<'a>,
    /// Bits of the [`HeaderField`]s taken so far.
    seen: u32,
    /// Rank of the header that names the conversation. The most specific one has the lowest rank.
    session: u8,
}

impl<'a> RequestFields<'a> {
    /// `line`: a head without fields.
    pub(super) fn new(head: &'a [u8], line: RequestHead) -> RequestFields<'a> {
        RequestFields { head, found: line, framing: FramingFields::default(), seen: 0, session: u8::MAX }
    }

    /// Takes a field, whose value is without blanks around it. A repeated field that identifies the client or the body
    /// is refused: two readers could pick different ones.
    pub(super) fn take(&mut self, name: &[u8], value: &'a [u8]) -> Result<(), HeadError> {
        let (field, repeated) = match name.len() {
            4 if is(name, b"host") => (HeaderField::Host, "host is repeated"),
            6 if is(name, b"origin") => (HeaderField::Origin, "origin is repeated"),
            9 if is(name, b"x-api-key") => (HeaderField::XApiKey, "x-api-key is repeated"),
            10 if is(name, b"user-agent") => (HeaderField::UserAgent, ""),
            12 if is(name, b"content-type") => (HeaderField::ContentType, "content-type is repeated"),
            12 if is(name, b"x-request-id") => (HeaderField::XRequestId, ""),
            13 if is(name, b"authorization") => (HeaderField::Authorization, "authorization is repeated"),
            14 if is(name, b"anthropic-beta") => (HeaderField::AnthropicBeta, ""),
            16 if is(name, b"content-encoding") => (HeaderField::ContentEncoding, "content-encoding is repeated"),
            17 if is(name, b"anthropic-version") => (HeaderField::AnthropicVersion, "anthropic-version is repeated"),
            _ => return self.note(name, value),
        };
        let bit = 1 << field as u32;
        if self.seen & bit == 0 {
            self.seen |= bit;
            self.found.fields[field as usize] = Span::of_part(self.head, value);
        } else if !repeated.is_empty() {
            return Err(bad(repeated));
        }
        Ok(())
    }

    /// Takes a field that is not kept as it is.
    fn note(&mut self, name: &[u8], value: &'a [u8]) -> Result<(), HeadError> {
        let found = &mut self.found;
        match name.len() {
            6 if is(name, b"expect") => found.expect = merge_expect(found.expect, value, found.http11),
            10 if is(name, b"session-id") => self.name_session(3, value),
            10 if is(name, b"session_id") => self.name_session(4, value),
            11 if is(name, b"traceparent") => found.traced = true,
            12 if is(name, b"x-session-id") => self.name_session(1, value),
            14 if is(name, b"x-tollgate-key") => {
                if std::mem::replace(&mut found.names_key, true) {
                    return Err(bad("x-tollgate-key is repeated"));
                }
            }
            18 if is(name, b"x-session-affinity") => self.name_session(5, value),
            19 if is(name, b"x-parent-session-id") => found.names_agent = true,
            22 if is(name, b"x-claude-code-agent-id") => found.names_agent = true,
            23 if is(name, b"x-tollgate-include-cost") => found.wants_cost |= value.eq_ignore_ascii_case(b"true"),
            24 if is(name, b"x-codex-parent-thread-id") => found.names_agent = true,
            24 if is(name, b"x-claude-code-session-id") => self.name_session(2, value),
            29 if is(name, b"access-control-request-method") => found.is_preflight |= !value.is_empty(),
            _ if is_anthropic(name) => found.more_anthropic = true,
            _ => self.framing.take(name, value).map_err(refuse)?,
        }
        Ok(())
    }

    fn name_session(&mut self, rank: u8, value: &[u8]) {
        if rank < self.session && !value.is_empty() {
            self.session = rank;
            self.found.fields[HeaderField::Session as usize] = Span::of_part(self.head, value);
        }
    }

    /// Returns the complete head, which consists of `len` bytes.
    pub(super) fn end(self, len: usize) -> Result<RequestHead, HeadError> {
        let RequestFields { head, mut found, framing, seen, .. } = self;
        found.len = len as u32;
        if framing.options {
            forget_hop_fields(&head[..len], &mut found);
        }
        check_host(found.http11, seen & 1 << HeaderField::Host as u32 != 0, found.field(HeaderField::Host).of(head))?;
        found.framing = framing.framing(found.http11).map_err(refuse)?;
        found.keep_alive = framing.keep_alive(found.http11);
        Ok(found)
    }
}

/// Forgets the fields that would be forwarded, but are for this hop only.
#[cold]
fn forget_hop_fields(head: &[u8], found: &mut RequestHead) {
    let forwarded: [(&[u8], _); 2] =
        [(b"anthropic-version", HeaderField::AnthropicVersion), (b"anthropic-beta", HeaderField::AnthropicBeta)];
    for (name, field) in forwarded {
        if is_hop_by_hop(head, name) {
            found.fields[field as usize] = Span::default();
        }
    }
    found.traced &= !is_hop_by_hop(head, b"traceparent") && !is_hop_by_hop(head, b"tracestate");
}

fn explain(head: &[u8], error: httparse::Error) -> HeadError {
    use httparse::Error;
    match error {
        Error::TooManyHeaders => HeadError::new(431, "the request has too many headers"),
        Error::Version if names_a_version(head) => HeadError::new(505, "only HTTP/1.0 and HTTP/1.1 are supported"),
        Error::HeaderName => bad("a header name is malformed"),
        Error::HeaderValue => bad("a header value is malformed"),
        _ => bad("the request line is malformed"),
    }
}

/// True if the line has a well-formed but unsupported version: `HTTP/d.d`, or `HTTP/2`, which some clients write.
fn names_a_version(head: &[u8]) -> bool {
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let mut parts = line.split(|byte| *byte == b' ');
    let (Some(_), Some(_), Some(version), None) = (parts.next(), parts.next(), parts.next(), parts.next()) else {
        return false;
    };
    match version.strip_prefix(b"HTTP/") {
        Some([major]) => major.is_ascii_digit(),
        Some([major, b'.', minor]) => major.is_ascii_digit() && minor.is_ascii_digit(),
        _ => false,
    }
}

fn refuse(error: FramingError) -> HeadError {
    match error {
        FramingError::Ambiguous(reason) => bad(reason),
        FramingError::UnknownCoding => HeadError::new(501, "the only supported transfer-encoding is chunked"),
    }
}

fn merge_expect(before: Expect, value: &[u8], http11: bool) -> Expect {
    match (http11, value.eq_ignore_ascii_case(b"100-continue")) {
        (false, _) => Expect::None,
        (true, true) if before != Expect::Other => Expect::Continue,
        (true, _) => Expect::Other,
    }
}

/// Checks the host (RFC 9112 section 3.2): required on HTTP/1.1, and only `uri-host [":" port]`. It may be empty.
fn check_host(http11: bool, present: bool, value: &[u8]) -> Result<(), HeadError> {
    if !present {
        return if http11 { Err(bad("host is missing")) } else { Ok(()) };
    }
    static ALLOWED: [bool; 256] = letters_digits_and(b"-._~!$&'()*+;=%[]:");
    if value.iter().all(|byte| ALLOWED[usize::from(*byte)]) { Ok(()) } else { Err(bad("host is malformed")) }
}

fn known_method(method: &str) -> Method {
    match method {
        "GET" => Method::Get,
        "HEAD" => Method::Head,
        "POST" => Method::Post,
        "OPTIONS" => Method::Options,
        _ => Method::Other,
    }
}

/// Returns the path of any of the four forms of a target (RFC 9112 section 3.2).
fn path_of(head: &[u8], method: &str, target: &str) -> Result<Span, HeadError> {
    let malformed = || bad("the request target is malformed");
    if !target.bytes().all(|byte| (0x21..=0x7e).contains(&byte) && byte != b'#') {
        return Err(malformed());
    }
    let whole = Span::of_part(head, target.as_bytes());
    if method == "CONNECT" || (target == "*" && method == "OPTIONS") {
        return Ok(whole);
    }
    let without_query = target.split('?').next().unwrap_or_default();
    if without_query.starts_with('/') {
        return Ok(Span::of_part(head, without_query.as_bytes()));
    }
    let scheme = ["http://", "https://"]
        .iter()
        .find(|scheme| target.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme)));
    let Some(scheme) = scheme else { return Err(malformed()) };
    let rest = without_query.get(scheme.len()..).ok_or_else(malformed)?;
    match rest.find('/') {
        Some(0) => Err(malformed()),
        Some(at) => Ok(Span::of_part(head, &rest.as_bytes()[at..])),
        None if rest.is_empty() => Err(malformed()),
        // An absolute target without a path means the root: a slash of the scheme serves as its path.
        None => Ok(Span::of_part(head, &target.as_bytes()[scheme.len() - 1..scheme.len()])),
    }
}
