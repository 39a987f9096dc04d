//! CORS (Fetch standard, section 3.2): permits pages of configured origins to read answers and to send requests. Off
//! unless `cors_origins` names an origin. A preflight is answered before authentication, since browsers send no
//! credentials with it, and its answer reveals nothing.

use crate::wire::head::{HeaderField, RequestHead, values};
use std::sync::Arc;

/// Seconds for which a browser may cache a preflight; no browser caches it for longer.
const MAX_AGE: &[u8] = b"7200";

/// CORS policy of the answer to one request.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub(crate) enum CorsPolicy {
    /// CORS is off.
    #[default]
    Off,
    /// CORS is on, but not for the origin of this request.
    Refused,
    /// Every origin may read.
    Everyone,
    /// This origin may read: its index in `cors_origins`.
    Origin(u16),
}

impl CorsPolicy {
    /// Returns the policy for a request whose `origin` header has this value (empty: it has none). `origins` is not
    /// empty.
    pub(crate) fn for_origin(origins: &[Arc<str>], origin: &[u8]) -> CorsPolicy {
        if origins.iter().any(|known| &**known == "*") {
            return CorsPolicy::Everyone;
        }
        // Browsers send origins in lower case without a default port, and the standard prescribes a byte comparison.
        let known = origins.iter().position(|known| known.as_bytes() == origin);
        known.and_then(|place| u16::try_from(place).ok()).map_or(CorsPolicy::Refused, CorsPolicy::Origin)
    }

    /// Appends the fields of an ordinary answer. `origins` are those that the policy was made from; `exposed` names the
    /// headers that a page may read.
    pub(crate) fn write(self, origins: &[Arc<str>], exposed: &[u8], out: &mut Vec<u8>) {
        match self {
            CorsPolicy::Off => return,
            // The answer depends on the origin, even if none was sent; caches must know.
            CorsPolicy::Refused => return out.extend_from_slice(b"\r\nvary: origin"),
            CorsPolicy::Everyone => out.extend_from_slice(b"\r\naccess-control-allow-origin: *"),
            CorsPolicy::Origin(place) => {
                out.extend_from_slice(b"\r\nvary: origin\r\naccess-control-allow-origin: ");
                out.extend_from_slice(origins.get(usize::from(place)).map_or(b"null", |origin| origin.as_bytes()));
            }
        }
        out.extend_from_slice(b"\r\naccess-control-expose-headers: ");
        out.extend_from_slice(exposed);
    }
}

/// True if a request with the method OPTIONS is a browser's preflight.
#[cold]
pub(crate) fn is_preflight(head: &RequestHead, origins: &[Arc<str>]) -> bool {
    !head.field(HeaderField::Origin).is_empty() && head.is_preflight && !origins.is_empty()
}

/// Appends the permitted methods and headers: Tollgate's methods, and all requested headers. A fixed list would break
/// with the additional headers of SDKs.
pub(crate) fn write_permission(client_head: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b"\r\naccess-control-allow-methods: GET, POST, OPTIONS\r\naccess-control-max-age: ");
    out.extend_from_slice(MAX_AGE);
    let mut first = true;
    let asked = values(client_head, "access-control-request-headers").flat_map(|value| value.split(|b| *b == b','));
    for name in asked.map(<[u8]>::trim_ascii).filter(|name| is_name(name)) {
        out.extend_from_slice(if first { b"\r\naccess-control-allow-headers: " } else { b", " });
        out.extend_from_slice(name);
        first = false;
    }
    out.extend_from_slice(b"\r\nvary: access-control-request-headers");
}

/// True for a field name (RFC 9110 section 5.6.2): only such parts of a client's head are returned to it.
fn is_name(text: &[u8]) -> bool {
    let tchar = |b: &u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(b);
    !text.is_empty() && text.iter().all(tchar)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(policy: CorsPolicy) -> String {
        let mut out = Vec::new();
        policy.write(&["https://a.example".into()], b"x-a", &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn only_configured_origins_may_read() {
        let named: Vec<Arc<str>> = vec!["https://a.example".into(), "https://b.example".into()];
        assert_eq!(CorsPolicy::for_origin(&named, b"https://b.example"), CorsPolicy::Origin(1));
        for other in [&b"https://c.example"[..], b"https://a.example.evil", b"http://a.example", b"null", b""] {
            assert_eq!(CorsPolicy::for_origin(&named, other), CorsPolicy::Refused);
        }
        assert_eq!(CorsPolicy::for_origin(&["*".into()], b"https://c.example"), CorsPolicy::Everyone);
    }

    #[test]
    fn answer_that_depends_on_the_origin_has_vary() {
        assert_eq!(written(CorsPolicy::Off), "");
        assert_eq!(written(CorsPolicy::Refused), "\r\nvary: origin");
        assert!(!written(CorsPolicy::Everyone).contains("vary"));
        let named = written(CorsPolicy::Origin(0));
        assert!(named.contains("\r\nvary: origin\r\naccess-control-allow-origin: https://a.example\r\n"));
    }

    #[test]
    fn only_valid_requested_header_names_are_returned() {
        let mut out = Vec::new();
        let head = b"OPTIONS / HTTP/1.1\r\naccess-control-request-headers: x-api-key, a b,\x80,x-stainless-os\r\n\r\n";
        write_permission(head, &mut out);
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("\r\naccess-control-allow-headers: x-api-key, x-stainless-os\r\n"), "{text}");
    }
}
