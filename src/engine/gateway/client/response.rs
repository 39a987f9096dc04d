//! Head of every answer to a client, and its parts: the request's id, the date. Writes bytes; decides nothing. Called
//! by `drive`.

use super::cors::CorsPolicy;
use crate::base::digest::{hex_id, hex_into, unhex_id};
use crate::base::rng::Rng;
use crate::base::text;
use crate::base::time::Unix;
use crate::policy::agent::Client;
use crate::policy::meter::QuotaStatus;
use crate::policy::refusal::Refusal;
use crate::policy::window;
use crate::wire::head::{Expect, Framing, HeaderField, Method, RequestHead};
use std::num::NonZeroU32;
use std::sync::Arc;

/// Largest declared body of a refused request that is read and dropped, so that the connection stays open.
const DRAIN_BODY_MAX: u64 = 64 * 1024;

/// Name of one HTTP request: `req_` and 32 hexadecimal digits.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct RequestId([u8; 36]);

impl RequestId {
    /// Creates a new id.
    pub(crate) fn fresh(rng: &mut Rng) -> RequestId {
        let mut text = *b"req_00000000000000000000000000000000";
        let (high, low) = (rng.next_u64(), rng.next_u64());
        let raw = u128::from(high) << 64 | u128::from(low);
        text[4..].copy_from_slice(&hex_id(raw.to_be_bytes()));
        RequestId(text)
    }

    /// Returns the 16 bytes stored in the ledger.
    pub(crate) fn raw(&self) -> [u8; 16] {
        self.0.last_chunk().map_or([0; 16], unhex_id)
    }

    /// Returns the text that clients see, in bytes.
    pub(crate) fn text(&self) -> &[u8; 36] {
        &self.0
    }

    /// Returns the text that clients see.
    pub(crate) fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

/// Properties of a request's head that its answer needs.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct RequestMeta {
    pub(crate) method: Method,
    pub(crate) http11: bool,
    pub(crate) keep_alive: bool,
    /// No byte of a body follows.
    pub(crate) bodiless: bool,
    /// Length of an unwanted body that is cheaper to read and drop than another connection would be.
    pub(crate) short: Option<NonZeroU32>,
    /// True if the client uses Anthropic's API.
    pub(crate) anthropic: bool,
    /// Kind of the client program; unknown before the body has arrived.
    pub(crate) agent: Client,
    /// The traffic of its key is captured; unknown before the key is identified.
    pub(crate) captured: bool,
}

impl RequestMeta {
    /// Extracts the properties of a request's head.
    pub(crate) fn from_head(head: &RequestHead) -> RequestMeta {
        let short = match head.framing {
            Framing::Length(length) if length <= DRAIN_BODY_MAX && head.expect == Expect::None => {
                NonZeroU32::new(length as u32)
            }
            _ => None,
        };
        RequestMeta {
            method: head.method,
            http11: head.http11,
            keep_alive: head.keep_alive,
            bodiless: matches!(head.framing, Framing::None | Framing::Length(0)),
            short,
            anthropic: !head.field(HeaderField::AnthropicVersion).is_empty(),
            agent: Client::default(),
            captured: false,
        }
    }
}

/// Content type of JSON.
pub(crate) const JSON: &str = "application/json";
/// Content type of a stream.
pub(crate) const EVENTS: &str = "text/event-stream; charset=utf-8";
/// Content type of metrics.
pub(crate) const TEXT: &str = "text/plain; version=0.0.4";

/// Response headers that a page of a configured origin may read.
const EXPOSED: &[u8] = b"x-gateway-request-id, request-id, x-request-id, retry-after, x-should-retry, \
x-ratelimit-remaining-requests, x-ratelimit-remaining-tokens, x-ratelimit-reset, x-budget-remaining, x-queue-wait-ms, \
x-tollgate-cost, x-tollgate-model-reason";

/// Initial storage, enough for an ordinary head.
const HEAD_ROOM: usize = 640;
/// Bytes of a time in ISO 8601, in whole seconds.
pub(crate) const ISO_LEN: usize = 20;

/// Everything that decides the head of an answer.
#[derive(Debug)]
pub(crate) struct ClientResponseHead<'a> {
    pub(crate) status: u16,
    pub(crate) id: &'a RequestId,
    pub(crate) date: &'a [u8],
    /// True if the request was HTTP/1.1.
    pub(crate) http11: bool,
    pub(crate) keep_alive: bool,
    /// Framing of the body; `None` for a 204.
    pub(crate) framing: Framing,
    /// Empty for an answer without one.
    pub(crate) content_type: &'a str,
    /// Quota status of the caller, if known.
    pub(crate) quota: Option<QuotaStatus>,
    /// End of the limit that refused the request, otherwise of the window of `quota`.
    pub(crate) reset: &'a [u8; ISO_LEN],
    pub(crate) refusal: Option<&'a Refusal>,
    /// Milliseconds for which the request has waited for slots, if any.
    pub(crate) queued_ms: Option<u64>,
    /// Nano-dollars that the request cost, if its end is known and its model has a price.
    pub(crate) cost: Option<u64>,
    /// Why another model than the requested one answers, if one does.
    pub(crate) model_reason: Option<&'a str>,
    /// CORS policy.
    pub(crate) cors: CorsPolicy,
    /// Origins that `cors` refers to.
    pub(crate) origins: &'a [Arc<str>],
    /// Further fields, each with its line break before it.
    pub(crate) more: &'a [u8],
}

/// A field's name with the line break before it, as one text: each append costs a check of the capacity.
macro_rules! name {
    ($name:literal) => {
        concat!("\r\n", $name, ": ").as_bytes()
    };
}

/// The end of a status line and the name of the first field, as one text.
macro_rules! reason {
    ($phrase:literal) => {
        concat!(" ", $phrase, "\r\ndate: ")
    };
}

impl ClientResponseHead<'_> {
    /// Appends the head with its blank line.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.reserve(HEAD_ROOM);
        match self.status {
            200 => out.extend_from_slice(concat!("HTTP/1.1 200", reason!("OK")).as_bytes()),
            status => {
                out.extend_from_slice(b"HTTP/1.1 ");
                text::push_number(out, u64::from(status));
                out.extend_from_slice(reason(status).as_bytes());
            }
        }
        out.extend_from_slice(self.date);
        if !self.content_type.is_empty() {
            field(out, name!("content-type"), self.content_type.as_bytes());
        }
        // Without `no-store` a shared cache may keep an answer for a key that is not in `authorization` (RFC 9111
        // section 3.5), and serve it to another key.
        out.extend_from_slice(match self.content_type == EVENTS {
            true => b"\r\ncache-control: no-cache\r\nx-accel-buffering: no",
            false => b"\r\ncache-control: no-store",
        });
        field(out, name!("x-gateway-request-id"), &self.id.0);
        field(out, name!("request-id"), &self.id.0);
        field(out, name!("x-request-id"), &self.id.0);
        if let Some(quota) = &self.quota {
            number(out, name!("x-ratelimit-remaining-requests"), quota.remaining_requests);
            number(out, name!("x-ratelimit-remaining-tokens"), quota.remaining_tokens);
            field(out, name!("x-ratelimit-reset"), self.reset);
            if let Some(budget) = quota.budget {
                out.extend_from_slice(name!("x-budget-remaining"));
                text::push_decimal(out, budget.remaining() / 1000, 1_000_000);
            }
        }
        if let Some(waited) = self.queued_ms {
            number(out, name!("x-queue-wait-ms"), waited);
        }
        if let Some(refusal) = self.refusal {
            write_refusal_fields(refusal, out);
        }
        if self.cors != CorsPolicy::Off {
            self.cors.write(self.origins, EXPOSED, out);
        }
        if !self.more.is_empty() {
            out.extend_from_slice(self.more);
        }
        if let Some(cost) = self.cost {
            out.extend_from_slice(name!("x-tollgate-cost"));
            text::push_cost(out, cost);
        }
        if let Some(reason) = self.model_reason {
            field(out, name!("x-tollgate-model-reason"), reason.as_bytes());
        }
        match self.framing {
            Framing::Length(length) => number(out, name!("content-length"), length),
            Framing::Chunked => field(out, name!("transfer-encoding"), b"chunked"),
            Framing::ToEnd | Framing::None => {}
        }
        if !self.keep_alive {
            field(out, name!("connection"), b"close");
        } else if !self.http11 {
            field(out, name!("connection"), b"keep-alive");
        }
        out.extend_from_slice(b"\r\n\r\n");
    }
}

fn write_refusal_fields(refusal: &Refusal, out: &mut Vec<u8>) {
    if refusal.status == 401 {
        field(out, name!("www-authenticate"), b"Bearer");
    }
    if refusal.status == 426 {
        // RFC 9110 section 15.5.22.
        out.extend_from_slice(b"\r\nupgrade: HTTP/1.1\r\nconnection: upgrade");
    }
    if let Some(methods) = refusal.allow {
        field(out, name!("allow"), methods.as_bytes());
    }
    if let Some(seconds) = refusal.retry_after {
        number(out, name!("retry-after"), seconds.max(1));
    }
    if let Some(retry) = refusal.should_retry {
        field(out, name!("x-should-retry"), if retry { b"true" } else { b"false" });
    }
}

#[inline(always)]
fn field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.extend_from_slice(name);
    out.extend_from_slice(value);
}

#[inline(always)]
fn number(out: &mut Vec<u8>, name: &[u8], value: u64) {
    out.extend_from_slice(name);
    text::push_number(out, value);
}

/// The reason phrase of a status, and the name of the field behind it.
fn reason(status: u16) -> &'static str {
    match status {
        200 => reason!("OK"),
        204 => reason!("No Content"),
        400 => reason!("Bad Request"),
        401 => reason!("Unauthorized"),
        403 => reason!("Forbidden"),
        404 => reason!("Not Found"),
        405 => reason!("Method Not Allowed"),
        408 => reason!("Request Timeout"),
        413 => reason!("Content Too Large"),
        414 => reason!("URI Too Long"),
        417 => reason!("Expectation Failed"),
        426 => reason!("Upgrade Required"),
        429 => reason!("Too Many Requests"),
        431 => reason!("Request Header Fields Too Large"),
        500 => reason!("Internal Server Error"),
        501 => reason!("Not Implemented"),
        503 => reason!("Service Unavailable"),
        504 => reason!("Gateway Timeout"),
        505 => reason!("HTTP Version Not Supported"),
        _ => reason!("Unknown"),
    }
}

/// Cache of times as text, each rendered when it changes: the value of the `date` header (RFC 9110 section 5.6.7),
/// which changes once a second, and two times in ISO 8601.
#[derive(Debug, Default)]
pub(crate) struct DateCache {
    second: u64,
    text: Vec<u8>,
    present: IsoCache,
    reset: IsoCache,
}

#[derive(Debug, Default)]
struct IsoCache {
    second: Option<u64>,
    text: [u8; ISO_LEN],
}

impl IsoCache {
    fn at(&mut self, at: Unix) -> &[u8; ISO_LEN] {
        if self.second != Some(at.secs()) {
            let mut text = Vec::with_capacity(ISO_LEN);
            window::write_iso(at, &mut text);
            self.text = text.try_into().unwrap_or([b' '; ISO_LEN]);
            self.second = Some(at.secs());
        }
        &self.text
    }
}

impl DateCache {
    /// Returns the current time in ISO 8601, for the log.
    pub(crate) fn iso(&mut self, now: Unix) -> &[u8; ISO_LEN] {
        self.present.at(now)
    }

    /// Returns the `date` header's value, and the end of a window in ISO 8601, which is equal for most requests.
    #[inline]
    pub(crate) fn of_head(&mut self, now: Unix, reset: Unix) -> (&[u8], &[u8; ISO_LEN]) {
        if self.text.is_empty() || self.second != now.secs() {
            self.second = now.secs();
            self.text.clear();
            window::write_http_date(now, &mut self.text);
        }
        (&self.text, self.reset.at(reset))
    }
}

/// Renders raw bytes from a client for the log: printable ASCII, at most `max` bytes, other bytes as `%xx`.
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
    fn pages_may_read_every_header_of_the_api() {
        let api: serde_json::Value = serde_json::from_str(include_str!("../openapi.json")).unwrap();
        let own = api["components"]["headers"].as_object().unwrap().keys();
        // A page learns these from the response itself, or they are only for browsers and proxies.
        let others = ["allow", "www-authenticate", "cache-control", "x-accel-buffering", "upgrade", "connection"];
        let mut own: Vec<&str> = own.map(String::as_str).filter(|name| !others.contains(name)).collect();
        let mut exposed: Vec<&str> = std::str::from_utf8(EXPOSED).unwrap().split(", ").collect();
        own.sort_unstable();
        exposed.sort_unstable();
        assert_eq!(exposed, own);
    }

    #[test]
    fn request_ids_have_the_documented_form_and_differ() {
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
