//! Both kinds of head, their parts, and the search for the end of a head. Called by the neighbouring parsers.

use crate::wire::Span;
use lanes::skip::to_control;

/// Methods that Tollgate distinguishes (RFC 9110 section 9). Method names are case-sensitive.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
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
    #[default]
    Other,
}

/// Framing of a message's body (RFC 9112 section 6.3).
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum Framing {
    /// There is no body.
    None,
    /// `content-length`, in bytes.
    Length(u64),
    /// `transfer-encoding: chunked`.
    Chunked,
    /// Until the connection ends; in responses only.
    #[default]
    ToEnd,
}

/// Value of the `expect` header (RFC 9110 section 10.1.1).
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum Expect {
    /// No expectation. Also on HTTP/1.0, where the field is ignored.
    #[default]
    None,
    /// `100-continue`: the client waits for permission to send its body.
    Continue,
    /// Any other value: 417.
    Other,
}

/// Request headers kept as spans. All others are dropped while parsing. Values are trimmed of blanks.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum HeaderField {
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
    /// `anthropic-beta`, a list; the first one counts here, [`super::values`] returns all.
    AnthropicBeta,
    /// `origin`; never repeated.
    Origin,
    /// Name of the conversation: of several headers the most specific one that is not empty.
    Session,
}

/// Number of [`HeaderField`]s.
pub const COUNT: usize = HeaderField::Session as usize + 1;

/// True for a header of Anthropic's API.
pub fn is_anthropic(name: &[u8]) -> bool {
    name.get(..ANTHROPIC.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(ANTHROPIC))
}

/// Prefix of the headers of Anthropic's API.
const ANTHROPIC: &[u8] = b"anthropic-";

/// Head of a request, as spans into the buffer it was parsed from (offset 0 = first byte of the request line).
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct RequestHead {
    /// Method.
    pub method: Method,
    /// Request target as received.
    pub target: Span,
    /// Path within the target: no query, the path part of an absolute target, not percent-decoded. It begins with `/`,
    /// except for `OPTIONS *` and `CONNECT`, whose path is the whole target.
    pub path: Span,
    /// True for HTTP/1.1, false for 1.0.
    pub http11: bool,
    /// Bytes of the head, including its blank line.
    pub len: u32,
    /// Framing of the body; [`Framing::ToEnd`] only in [`RequestHead::unparsed`].
    pub framing: Framing,
    /// True if the client wants the connection to stay open.
    pub keep_alive: bool,
    /// Value of the `expect` header.
    pub expect: Expect,
    /// True if there is `access-control-request-method`: a browser asks for permission.
    pub is_preflight: bool,
    /// True if there is at least one `traceparent`, see [`crate::wire::trace`].
    pub traced: bool,
    /// True if there is `x-tollgate-include-cost: true`: the client wants the cost of a stream.
    pub wants_cost: bool,
    /// True if there is an `anthropic-…` header that [`HeaderField`] does not have.
    pub more_anthropic: bool,
    /// True if some header names the agent of the request.
    pub names_agent: bool,
    /// True if there is `x-tollgate-key`.
    pub names_key: bool,
    pub(super) fields: [Span; COUNT],
}

impl RequestHead {
    /// Returns a placeholder for a head that could not be parsed. Nothing is known of it, not even the end of its
    /// message, and the connection is closed after it.
    pub fn unparsed() -> RequestHead {
        RequestHead { http11: true, framing: Framing::ToEnd, ..RequestHead::default() }
    }

    /// Returns the value of a header, trimmed; the empty span if it is absent or empty. If it may be repeated, the
    /// first one counts.
    pub fn field(&self, field: HeaderField) -> Span {
        self.fields[field as usize]
    }
}

/// Head of a response, as spans into the buffer it was parsed from (offset 0 = first byte of the status line).
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct ResponseHead {
    /// Status, 100 to 999 but never 101.
    pub status: u16,
    /// True for HTTP/1.1, false for 1.0.
    pub http11: bool,
    /// Bytes of the head, including its blank line.
    pub len: u32,
    /// Framing of the body.
    pub framing: Framing,
    /// True if the connection can be reused after the body has been read; never with [`Framing::ToEnd`].
    pub keep_alive: bool,
    /// `content-type`, trimmed; empty if absent.
    pub content_type: Span,
    /// `content-encoding`, trimmed; empty if absent.
    pub content_encoding: Span,
    /// `retry-after`, trimmed; empty if absent.
    pub retry_after: Span,
    /// True if some header looks like one with the sender's remaining allowances, or with a time to retry.
    pub has_allowances: bool,
}

/// Reason why a head was refused. The connection is then closed, because the start of the next message is unknown.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct HeadError {
    /// Status for the client: 400, 414, 431, 501 or 505; 502 for a broken response.
    pub status: u16,
    /// Error text for the client.
    pub reason: &'static str,
}

impl HeadError {
    pub(super) const fn new(status: u16, reason: &'static str) -> HeadError {
        HeadError { status, reason }
    }
}

/// Result of the search for the blank line.
pub(super) enum BlankLine {
    /// The head ends after this many bytes.
    End(usize),
    /// The end has not arrived yet.
    More,
}

/// Searches for the end of the head from `scanned` on and checks every line end before it. So a bare LF or CR is
/// refused when it arrives, and not only after a blank line, which may never come.
pub(super) fn find_end(buf: &[u8], scanned: &mut u32) -> Result<BlankLine, &'static str> {
    let mut at = *scanned as usize;
    loop {
        let found = to_control(buf, at);
        let Some(byte) = buf.get(found) else { break };
        match byte {
            b'\t' => at = found + 1,
            b'\r' => match buf.get(found + 1) {
                Some(b'\n') if buf[..found].ends_with(b"\r\n") => {
                    *scanned = (found + 2) as u32;
                    return Ok(BlankLine::End(found + 2));
                }
                Some(b'\n') => at = found + 2,
                Some(_) => return Err("a carriage return stands without its line feed"),
                None => {
                    // Checked again once its line feed has arrived.
                    *scanned = found as u32;
                    return Ok(BlankLine::More);
                }
            },
            b'\n' => return Err("a line feed stands without its carriage return"),
            _ => return Err("the head contains a control character"),
        }
    }
    *scanned = buf.len() as u32;
    Ok(BlankLine::More)
}
