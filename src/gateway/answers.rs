//! What the gateway answers itself: heads of every response, error bodies in the caller's shape, the model list, the
//! quota. Writes bytes; decides nothing.

use super::cors::Grant;
use crate::base::digest::hex_into;
use crate::base::rng::Rng;
use crate::base::text;
use crate::base::time::Unix;
use crate::dialect::errors;
use crate::policy::catalog::Model;
use crate::policy::meter::QuotaStatus;
use crate::policy::refusal::Refusal;
use crate::policy::window;
use crate::wire::Dialect;
use crate::wire::json::write_string;

/// `req_` and 32 hexadecimal digits: the name of one HTTP request (contract section 1).
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct RequestId {
    raw: [u8; 16],
    text: [u8; 36],
}

impl RequestId {
    /// A fresh one.
    pub(crate) fn fresh(rng: &mut Rng) -> RequestId {
        let mut raw = [0u8; 16];
        raw[..8].copy_from_slice(&rng.next_u64().to_be_bytes());
        raw[8..].copy_from_slice(&rng.next_u64().to_be_bytes());
        let mut text = *b"req_00000000000000000000000000000000";
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        for (pair, byte) in text[4..].chunks_exact_mut(2).zip(raw) {
            pair[0] = DIGITS[usize::from(byte >> 4)];
            pair[1] = DIGITS[usize::from(byte & 15)];
        }
        RequestId { raw, text }
    }

    /// The 16 bytes that the ledger keeps.
    pub(crate) fn raw(&self) -> [u8; 16] {
        self.raw
    }

    /// As clients see it.
    pub(crate) fn as_str(&self) -> &str {
        std::str::from_utf8(&self.text).unwrap_or_default()
    }
}

/// How long the body of an answer is.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Extent {
    /// `content-length`.
    Length(usize),
    /// `transfer-encoding: chunked`.
    Chunked,
    /// To the end of the connection (HTTP/1.0).
    ToEnd,
    /// No body at all (204).
    None,
}

/// Content types that we send.
pub(crate) const JSON: &str = "application/json";
/// Content type of a stream.
pub(crate) const EVENTS: &str = "text/event-stream; charset=utf-8";
/// Content type of metrics.
pub(crate) const TEXT: &str = "text/plain; version=0.0.4";

/// Everything that decides a response head.
pub(crate) struct Head<'a> {
    pub(crate) status: u16,
    pub(crate) id: &'a RequestId,
    pub(crate) date: &'a [u8],
    pub(crate) http11: bool,
    pub(crate) keep_alive: bool,
    pub(crate) extent: Extent,
    pub(crate) content_type: &'static str,
    pub(crate) standing: Option<QuotaStatus>,
    pub(crate) refusal: Option<&'a Refusal>,
    /// What browsers are told.
    pub(crate) grant: &'a Grant,
    /// Further fields, each with its line break before it.
    pub(crate) more: &'a [u8],
}

impl Head<'_> {
    /// Appends the head with its blank line.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"HTTP/1.1 ");
        push_number(u64::from(self.status), out);
        out.extend_from_slice(b" ");
        out.extend_from_slice(reason(self.status).as_bytes());
        out.extend_from_slice(b"\r\ndate: ");
        out.extend_from_slice(self.date);
        if !self.content_type.is_empty() {
            field(out, "content-type", self.content_type.as_bytes());
        }
        for name in ["x-gateway-request-id", "request-id", "x-request-id"] {
            field(out, name, &self.id.text);
        }
        if let Some(standing) = &self.standing {
            self.write_limits(standing, out);
        }
        if let Some(refusal) = self.refusal {
            write_refusal_fields(refusal, out);
        }
        if self.content_type == EVENTS {
            out.extend_from_slice(b"\r\ncache-control: no-cache\r\nx-accel-buffering: no");
        }
        self.grant.write(out);
        out.extend_from_slice(self.more);
        match self.extent {
            Extent::Length(length) => number(out, "content-length", length as u64),
            Extent::Chunked => field(out, "transfer-encoding", b"chunked"),
            Extent::ToEnd | Extent::None => {}
        }
        if !self.keep_alive {
            field(out, "connection", b"close");
        } else if !self.http11 {
            field(out, "connection", b"keep-alive");
        }
        out.extend_from_slice(b"\r\n\r\n");
    }

    fn write_limits(&self, standing: &QuotaStatus, out: &mut Vec<u8>) {
        number(out, "x-ratelimit-remaining-requests", standing.remaining_requests);
        number(out, "x-ratelimit-remaining-tokens", standing.remaining_tokens);
        out.extend_from_slice(b"\r\nx-ratelimit-reset: ");
        let reset = self.refusal.and_then(|refusal| refusal.reset).unwrap_or(standing.reset_at);
        window::write_iso(reset, out);
    }
}

fn write_refusal_fields(refusal: &Refusal, out: &mut Vec<u8>) {
    if refusal.status == 401 {
        field(out, "www-authenticate", b"Bearer");
    }
    if let Some(methods) = refusal.allow {
        field(out, "allow", methods.as_bytes());
    }
    if let Some(seconds) = refusal.retry_after {
        number(out, "retry-after", seconds.max(1));
    }
    if let Some(retry) = refusal.should_retry {
        field(out, "x-should-retry", if retry { b"true" } else { b"false" });
    }
}

fn field(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
}

fn number(out: &mut Vec<u8>, name: &str, value: u64) {
    field(out, name, b"");
    push_number(value, out);
}

fn push_number(value: u64, out: &mut Vec<u8>) {
    text::push_number(out, value);
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        204 => "No Content",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        413 => "Content Too Large",
        414 => "URI Too Long",
        417 => "Expectation Failed",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        _ => "Unknown",
    }
}

/// The body of an error, in the shape of the endpoint it happened on (contract section 1).
pub(crate) fn error_body(shape: Option<Dialect>, refusal: &Refusal, id: &RequestId, out: &mut Vec<u8>) {
    let (kind, details) = (refusal.kind.as_str(), refusal.details);
    errors::error_body(shape, kind, refusal.status, &refusal.message, details, id.as_str(), out);
}

/// `GET /v1/models`: specification section 2.1; with `anthropic`, the union with the Anthropic list, which parses in
/// both families of SDK (wire-formats section 5.4).
pub(crate) fn models<'a>(models: impl Iterator<Item = &'a Model>, anthropic: bool, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"object\":\"list\",\"data\":[");
    let (mut first, mut last) = (None, None);
    for entry in models {
        if last.is_some() {
            out.push(b',');
        }
        first = first.or(Some(entry));
        last = Some(entry);
        model(entry, anthropic, out);
    }
    out.push(b']');
    if anthropic {
        out.extend_from_slice(b",\"has_more\":false,\"first_id\":");
        id_or_null(first, out);
        out.extend_from_slice(b",\"last_id\":");
        id_or_null(last, out);
    }
    out.push(b'}');
}

fn id_or_null(model: Option<&Model>, out: &mut Vec<u8>) {
    match model {
        Some(model) => write_string(out, &model.id),
        None => out.extend_from_slice(b"null"),
    }
}

/// One Model of specification section 2.1.
pub(crate) fn model(model: &Model, anthropic: bool, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"id\":");
    write_string(out, &model.id);
    out.extend_from_slice(b",\"object\":\"model\",\"owned_by\":");
    write_string(out, &model.owned_by);
    out.extend_from_slice(b",\"context_window\":");
    push_number(model.context, out);
    if anthropic {
        out.extend_from_slice(b",\"type\":\"model\",\"display_name\":");
        write_string(out, &model.name);
        out.extend_from_slice(b",\"created_at\":\"");
        window::write_iso(model.created, out);
        out.extend_from_slice(b"\",\"lifecycle\":\"active\",\"max_input_tokens\":");
        push_number(model.context, out);
    }
    out.push(b'}');
}

/// `GET /v1/quota`: specification section 2.3.
pub(crate) fn quota(plan: &str, standing: &QuotaStatus, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"object\":\"quota\",\"plan\":");
    write_string(out, plan);
    out.extend_from_slice(b",\"period\":{\"start\":\"");
    window::write_date(standing.period_start, out);
    out.extend_from_slice(b"\",\"renews\":\"");
    window::write_date(standing.renews, out);
    out.extend_from_slice(b"\"},\"tokens\":{\"used\":");
    push_number(standing.used, out);
    out.extend_from_slice(b",\"total\":");
    push_number(standing.total, out);
    out.extend_from_slice(b"},\"rate_limit\":{\"limit\":");
    push_number(standing.limit, out);
    out.extend_from_slice(b",\"remaining\":");
    push_number(standing.remaining_requests, out);
    out.extend_from_slice(b",\"reset_at\":\"");
    window::write_iso(standing.reset_at, out);
    out.extend_from_slice(b"\"}}");
}

/// The `date` header's value (RFC 9110 section 5.6.7), rendered once a second.
#[derive(Debug, Default)]
pub(crate) struct DateCache {
    second: u64,
    text: Vec<u8>,
}

impl DateCache {
    /// The date at `now`.
    pub(crate) fn at(&mut self, now: Unix) -> &[u8] {
        if self.text.is_empty() || self.second != now.secs() {
            self.second = now.secs();
            self.text.clear();
            window::write_http_date(now, &mut self.text);
        }
        &self.text
    }
}

/// A log-safe rendering of raw bytes from a client: printable ASCII, at most `max` bytes, the rest as `%xx`.
pub(crate) fn printable(raw: &[u8], max: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(raw.len().min(max));
    for byte in raw.iter().take(max) {
        match byte {
            b'"' | b'\\' | b'%' | 0..=0x1f | 0x7f..=0xff => {
                out.push(b'%');
                hex_into(&[*byte], &mut out);
            }
            other => out.push(*other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_ids_have_the_form_of_the_contract_and_differ() {
        let mut rng = Rng::from_u64(1);
        let (a, b) = (RequestId::fresh(&mut rng), RequestId::fresh(&mut rng));
        assert_ne!(a, b);
        let digits = a.as_str().strip_prefix("req_").unwrap();
        assert_eq!(digits.len(), 32);
        assert!(digits.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)));
        let mut hex = Vec::new();
        hex_into(&a.raw(), &mut hex);
        assert_eq!(hex, digits.as_bytes());
    }

    #[test]
    fn hostile_bytes_cannot_break_out_of_a_log_line() {
        assert_eq!(printable(b"a\"b\n\xff%", 100), b"a%22b%0a%ff%25");
    }
}
