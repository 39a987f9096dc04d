//! What the admin listener answers: health, metrics, and the description of what clients are offered. Never a key.

use super::client::response::{JSON, TEXT};
use super::cx::Cx;
use super::exchange::authorize::bearer_token;
use super::metrics::Gauges;
use crate::base::digest::sha256;
use crate::wire::head::{Field, Method, RequestHead};

/// The description of what clients are offered (OpenAPI 3.1), and our version in quotes for it.
const OPENAPI: &str = include_str!(concat!(env!("OUT_DIR"), "/openapi.json"));
const VERSION: &str = concat!("\"", env!("CARGO_PKG_VERSION"), "\"");

/// An answer to a request on the admin listener.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) content_type: &'static str,
    /// Further header fields, each with its line break before it.
    pub(crate) more: &'static [u8],
}

impl Answer {
    fn text(status: u16) -> Answer {
        Answer { status, content_type: TEXT, more: b"" }
    }
}

/// Answers the request with this head; its body goes to `out`. `ready`: requests are taken.
pub(crate) fn answer(
    head: &RequestHead,
    bytes: &[u8],
    ready: bool,
    gauges: &Gauges,
    cx: &Cx,
    out: &mut Vec<u8>,
) -> Answer {
    if !matches!(head.method, Method::Get | Method::Head) {
        out.extend_from_slice(b"only GET and HEAD are answered here\n");
        return Answer { more: b"\r\nallow: GET, HEAD", ..Answer::text(405) };
    }
    match head.path.of(bytes) {
        b"/healthz" => out.extend_from_slice(b"ok\n"),
        b"/openapi.json" => {
            out.extend_from_slice(OPENAPI.replace("\"VERSION\"", VERSION).as_bytes());
            return Answer { content_type: JSON, ..Answer::text(200) };
        }
        b"/readyz" if ready => out.extend_from_slice(b"ready\n"),
        b"/readyz" => {
            out.extend_from_slice(b"not ready\n");
            return Answer::text(503);
        }
        b"/metrics" if shows_token(head, bytes, cx) => {
            let targets: Vec<_> = cx.breakers.states(cx.now.mono).collect();
            cx.stats.write(gauges, &targets, out);
        }
        b"/metrics" => {
            out.extend_from_slice(b"the admin token is required\n");
            return Answer { more: b"\r\nwww-authenticate: Bearer", ..Answer::text(401) };
        }
        _ => {
            out.extend_from_slice(b"/healthz, /readyz, /metrics and /openapi.json are served here\n");
            return Answer::text(404);
        }
    }
    Answer::text(200)
}

fn shows_token(head: &RequestHead, bytes: &[u8], cx: &Cx) -> bool {
    let Some(token) = &cx.setup.config.server.admin_token else { return true };
    let shown = bearer_token(head.field(Field::Authorization).of(bytes));
    // Compared as digests, so that the time taken tells nothing of the token.
    sha256(shown) == sha256(token.expose().as_bytes())
}
