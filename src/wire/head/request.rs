//! Parser of request heads. Refuses heads that RFC 9112 calls malformed or that could smuggle a second request. Decides
//! nothing about paths, keys or body sizes.

use super::fields::{FramingError, FramingFields};
use super::parts::{
    BlankLine, COUNT, Expect, HeadError, HeaderField, Method, RequestHead, find_end, is_agent, is_anthropic, is_true,
    session_rank,
};
use super::{is_of_hop, plain};
use crate::base::limits::HEADERS_MAX;
use crate::wire::Span;
use std::mem::MaybeUninit;

const NAMES: [(&str, HeaderField); COUNT - 1] = [
    ("host", HeaderField::Host),
    ("authorization", HeaderField::Authorization),
    ("x-api-key", HeaderField::XApiKey),
    ("content-type", HeaderField::ContentType),
    ("content-encoding", HeaderField::ContentEncoding),
    ("x-request-id", HeaderField::XRequestId),
    ("user-agent", HeaderField::UserAgent),
    ("anthropic-version", HeaderField::AnthropicVersion),
    ("anthropic-beta", HeaderField::AnthropicBeta),
    ("origin", HeaderField::Origin),
];

/// Parses the request head at the front of `buf`.
///
/// `scanned` is the resume offset of the search for its end: 0 for a new head, kept by the caller between calls on a
/// growing buffer. `Ok(None)` asks for more bytes. A head of more than `max_bytes` is 431, or 414 if its first line is
/// already longer. Bytes after the head are ignored. See RFC 9112.
pub fn parse_request(buf: &[u8], scanned: &mut u32, max_bytes: usize) -> Result<Option<RequestHead>, HeadError> {
    let window = &buf[..buf.len().min(max_bytes)];
    if *scanned == 0
        && let Some(head) = plain::request(window)
    {
        *scanned = head.len;
        return Ok(Some(head));
    }
    if matches!(window.first(), Some(b'\r' | b'\n')) {
        return Err(HeadError::new(400, "the request line is empty"));
    }
    let len = match find_end(window, scanned).map_err(|reason| bad(better_known(window, reason)))? {
        BlankLine::End(len) => len,
        BlankLine::More if buf.len() < max_bytes => return Ok(None),
        BlankLine::More if !window.contains(&b'\n') => return Err(HeadError::new(414, "the request line is too long")),
        BlankLine::More => return Err(HeadError::new(431, "the request head is too large")),
    };
    parse_whole(&buf[..len]).map(Some)
}

/// Returns why the first bytes are not a head: `reason`, unless they belong to a known other protocol.
fn better_known(window: &[u8], reason: &'static str) -> &'static str {
    // A TLS record with a handshake.
    if window.starts_with(&[22, 3]) { "TLS on a port that speaks plain HTTP: use http://" } else { reason }
}

fn bad(reason: &'static str) -> HeadError {
    HeadError::new(400, reason)
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
    let http11 = version == 1;
    let mut framing = FramingFields::default();
    let mut fields = [Span::default(); COUNT];
    let mut seen = [false; COUNT];
    let (mut expect, mut session) = (Expect::None, u8::MAX);
    let (mut asks_leave, mut traced, mut wants_cost) = (false, false, false);
    let (mut more_anthropic, mut names_agent, mut names_key) = (false, false, false);
    for header in request.headers.iter() {
        if framing.take(header.name, header.value).map_err(refuse)? {
            continue;
        }
        if header.name.eq_ignore_ascii_case("expect") {
            expect = merge_expect(expect, header.value, http11);
            continue;
        }
        let Some((_, field)) = NAMES.iter().find(|(name, _)| header.name.eq_ignore_ascii_case(name)) else {
            asks_leave |= header.name.eq_ignore_ascii_case("access-control-request-method") && !header.value.is_empty();
            traced |= header.name.eq_ignore_ascii_case("traceparent");
            wants_cost |= header.name.eq_ignore_ascii_case("x-tollgate-include-cost") && is_true(header.value);
            more_anthropic |= is_anthropic(header.name.as_bytes());
            names_agent |= is_agent(header.name.as_bytes());
            if header.name.eq_ignore_ascii_case("x-tollgate-key") && std::mem::replace(&mut names_key, true) {
                return Err(bad("x-tollgate-key is repeated"));
            }
            let rank = session_rank(header.name.as_bytes());
            if rank > 0 && rank < session && !header.value.is_empty() {
                (session, fields[HeaderField::Session as usize]) = (rank, Span::of_part(head, header.value));
            }
            continue;
        };
        if !std::mem::replace(&mut seen[*field as usize], true) {
            fields[*field as usize] = Span::of_part(head, header.value);
        } else if let Some(reason) = refuse_repeated(*field) {
            return Err(bad(reason));
        }
    }
    if framing.options {
        traced &= forget_hop_fields(head, &mut fields);
    }
    check_host(http11, seen[HeaderField::Host as usize], fields[HeaderField::Host as usize].of(head))?;
    let known = known_method(method);
    Ok(RequestHead {
        method: known,
        target: Span::of_part(head, target.as_bytes()),
        path: path_of(head, method, target)?,
        http11,
        len: head.len() as u32,
        framing: framing.framing(http11).map_err(refuse)?,
        keep_alive: framing.keep_alive(http11),
        expect,
        asks_leave,
        traced,
        wants_cost,
        more_anthropic,
        names_agent,
        names_key,
        fields,
    })
}

/// Removes the fields that would be forwarded, but are for this hop only. False if the trace headers are, too.
#[cold]
fn forget_hop_fields(head: &[u8], fields: &mut [Span; COUNT]) -> bool {
    for (name, field) in &NAMES {
        if name.starts_with("anthropic-") && is_of_hop(head, name.as_bytes()) {
            fields[*field as usize] = Span::default();
        }
    }
    !is_of_hop(head, b"traceparent") && !is_of_hop(head, b"tracestate")
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

/// Returns the error for a repeated field that identifies the client or the body: two readers could pick different
/// ones.
fn refuse_repeated(field: HeaderField) -> Option<&'static str> {
    match field {
        HeaderField::Host => Some("host is repeated"),
        HeaderField::Authorization => Some("authorization is repeated"),
        HeaderField::XApiKey => Some("x-api-key is repeated"),
        HeaderField::ContentType => Some("content-type is repeated"),
        HeaderField::ContentEncoding => Some("content-encoding is repeated"),
        HeaderField::AnthropicVersion => Some("anthropic-version is repeated"),
        HeaderField::Origin => Some("origin is repeated"),
        _ => None,
    }
}

/// Checks the host (RFC 9112 section 3.2): required on HTTP/1.1, and only `uri-host [":" port]`. It may be empty.
fn check_host(http11: bool, present: bool, value: &[u8]) -> Result<(), HeadError> {
    if !present {
        return if http11 { Err(bad("host is missing")) } else { Ok(()) };
    }
    let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+;=%[]:".contains(byte);
    if value.iter().all(allowed) { Ok(()) } else { Err(bad("host is malformed")) }
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
