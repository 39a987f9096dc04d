//! Both kinds of head, what they are made of, and the search for where one ends. Called by the parsers beside it.

use crate::wire::Span;
use lanes::skip::to_control;

/// Methods this program tells apart (RFC 9110 section 9). Method names are case-sensitive.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Method {
    /// `GET`
    Get,
    /// `HEAD`
    Head,
    /// `POST`
    Post,
    /// `OPTIONS`
    Options,
    /// Any other token.
    Other,
}

/// How the length of a message's body is known (RFC 9112 section 6.3).
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Framing {
    /// There is no body.
    None,
    /// `content-length`, in bytes.
    Length(u64),
    /// `transfer-encoding: chunked`.
    Chunked,
    /// Until the connection ends; in responses only.
    ToEnd,
}

/// What the `expect` header asks (RFC 9110 section 10.1.1).
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Expect {
    /// Nothing; also on HTTP/1.0, where the field is ignored.
    None,
    /// `100-continue`: the client waits for leave to send its body.
    Continue,
    /// Anything else: 417.
    Other,
}

/// Request headers kept as spans; all others are dropped while parsing. Values are trimmed of blanks.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Field {
    /// `host`; required on HTTP/1.1, never repeated.
    Host,
    /// `authorization`; never repeated.
    Authorization,
    /// `x-api-key`; never repeated.
    XApiKey,
    /// `content-type`; never repeated.
    ContentType,
    /// `content-encoding`; never repeated.
    ContentEncoding,
    /// `x-request-id`; the first one counts.
    XRequestId,
    /// `user-agent`; the first one counts.
    UserAgent,
    /// `anthropic-version`; never repeated.
    AnthropicVersion,
    /// `anthropic-beta`, a list; the first one counts here, [`super::values`] gives all.
    AnthropicBeta,
    /// `origin`; never repeated.
    Origin,
    /// What names the conversation: the first of the headers for it that says anything, by their order there.
    Session,
}

/// Number of [`Field`]s.
pub const COUNT: usize = Field::Session as usize + 1;

/// Headers that name a conversation, the most telling first (contract section 10).
const SESSION: [&str; 5] =
    ["x-session-id", "x-claude-code-session-id", "session-id", "session_id", "x-session-affinity"];

/// The place of a header in [`SESSION`], from 1 on; 0 for any other.
pub(super) fn session_rank(name: &[u8]) -> u8 {
    let place = SESSION.iter().position(|known| name.eq_ignore_ascii_case(known.as_bytes()));
    place.map_or(0, |place| place as u8 + 1)
}

/// One request's head, as spans into the buffer it was parsed from (offset 0 = first byte of the request line).
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct RequestHead {
    /// The method.
    pub method: Method,
    /// The request target as it came.
    pub target: Span,
    /// The path within the target: no query, the path part of an absolute target, not percent-decoded. It begins
    /// with `/` but for `OPTIONS *` and `CONNECT`, where it is the target.
    pub path: Span,
    /// HTTP/1.1 (else 1.0).
    pub http11: bool,
    /// Bytes of the head, its blank line included.
    pub len: u32,
    /// How long the body is; [`Framing::ToEnd`] only in [`RequestHead::unparsed`].
    pub framing: Framing,
    /// True if the client wants the connection to live on.
    pub keep_alive: bool,
    /// What the `expect` header asks.
    pub expect: Expect,
    /// It has `access-control-request-method`: a browser asks for leave.
    pub asks_leave: bool,
    /// It has `traceparent`, once or more often, see [`crate::wire::trace`].
    pub traced: bool,
    pub(super) fields: [Span; COUNT],
}

impl RequestHead {
    /// Stands for a head that could not be parsed: nothing is known of it, not even where its message ends, and the
    /// connection does not outlive it.
    pub fn unparsed() -> RequestHead {
        RequestHead {
            method: Method::Other,
            target: Span::default(),
            path: Span::default(),
            http11: true,
            len: 0,
            framing: Framing::ToEnd,
            keep_alive: false,
            expect: Expect::None,
            asks_leave: false,
            traced: false,
            fields: [Span::default(); COUNT],
        }
    }

    /// The value of a header, trimmed; the empty span when it is absent or empty. Of repeated ones, where repetition
    /// is allowed at all, the first.
    pub fn field(&self, field: Field) -> Span {
        self.fields[field as usize]
    }
}

/// One response's head, as spans into the buffer it was parsed from (offset 0 = first byte of the status line).
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct ResponseHead {
    /// Status, 100 to 999 but never 101.
    pub status: u16,
    /// HTTP/1.1 (else 1.0).
    pub http11: bool,
    /// Bytes of the head, its blank line included.
    pub len: u32,
    /// How long the body is.
    pub framing: Framing,
    /// True if the connection may be used again once the body has been read; never with [`Framing::ToEnd`].
    pub keep_alive: bool,
    /// `content-type`, trimmed; empty when absent.
    pub content_type: Span,
    /// `content-encoding`, trimmed; empty when absent.
    pub content_encoding: Span,
    /// `retry-after`, trimmed; empty when absent.
    pub retry_after: Span,
    /// It may say what is left of the sender's allowances, or when to ask again: a header begins as those do.
    pub has_allowances: bool,
}

/// True if a header with this name may tell of allowances: `retry-after-ms`, `x-ratelimit-…`, `anthropic-ratelimit-…`.
pub(super) fn is_allowance(name: &[u8]) -> bool {
    let begins = |start: &[u8]| name.get(..start.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(start));
    begins(b"x-ratelimit-") || begins(b"anthropic-ratelimit-") || begins(b"retry-after-ms")
}

/// Why a head was refused. The connection is closed after it, since the next message's start is not known.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct HeadError {
    /// Status for the client: 400, 414, 431, 501 or 505; 502 stands for a broken response.
    pub status: u16,
    /// What was wrong, in words fit for the client.
    pub reason: &'static str,
}

impl HeadError {
    pub(super) const fn new(status: u16, reason: &'static str) -> HeadError {
        HeadError { status, reason }
    }
}

/// What the search for the blank line found.
pub(super) enum Lines {
    /// It ends after this many bytes.
    End(usize),
    /// Not there yet.
    More,
}

/// Looks for the end of the head from `scanned` on and checks every line end on the way, so that a bare LF or CR is
/// refused when it arrives and not when a blank line follows, which may be never.
pub(super) fn find_end(buf: &[u8], scanned: &mut u32) -> Result<Lines, &'static str> {
    let mut at = *scanned as usize;
    loop {
        let found = to_control(buf, at);
        let Some(byte) = buf.get(found) else { break };
        match byte {
            b'\t' => at = found + 1,
            b'\r' => match buf.get(found + 1) {
                Some(b'\n') if buf[..found].ends_with(b"\r\n") => {
                    *scanned = (found + 2) as u32;
                    return Ok(Lines::End(found + 2));
                }
                Some(b'\n') => at = found + 2,
                Some(_) => return Err("a carriage return stands without its line feed"),
                None => {
                    // Looked at again when its line feed has come.
                    *scanned = found as u32;
                    return Ok(Lines::More);
                }
            },
            b'\n' => return Err("a line feed stands without its carriage return"),
            _ => return Err("the head contains a control character"),
        }
    }
    *scanned = buf.len() as u32;
    Ok(Lines::More)
}
