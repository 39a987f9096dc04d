//! What the admin listener answers: health, metrics, the description of what clients are offered, the page, and the
//! admin API (contract section 14). It decides who may ask for what; what the process knows of itself is answered here,
//! what the commands tell as well by their own code on a helper thread, whose answer comes later.

mod access;
mod desk;
mod recorder;
mod told;

pub(crate) use desk::{Desk, Waiting, Waits};
pub use desk::{DeskAnswer, DeskAsk, Writer};
pub(crate) use recorder::{Passed, Recorder};
pub(crate) use told::View;

use super::client::response::{JSON, TEXT};
use super::cx::Cx;
use crate::base::base64;
use crate::base::digest::sha256;
use crate::base::packed::Packed;
use crate::dialect::errors::{self, ErrorWords};
use crate::policy::config::Server;
use crate::policy::refusal::RefusalKind;
use crate::wire::head::{Framing, Method, RequestHead};
use access::{Role, host, knows_host, role};
use std::fmt::Write;
use std::net::Ipv6Addr;

/// The description of what clients are offered (OpenAPI 3.1), and our version in quotes for it.
const OPENAPI: Packed = Packed(include_bytes!(concat!(env!("OUT_DIR"), "/openapi.json")));
/// The same of the admin API.
const ADMIN_OPENAPI: Packed = Packed(include_bytes!(concat!(env!("OUT_DIR"), "/admin.json")));
const VERSION: &str = concat!("\"", env!("CARGO_PKG_VERSION"), "\"");
/// The page.
const PAGE: Packed = Packed(include_bytes!(concat!(env!("OUT_DIR"), "/page.html")));
const HTML: &str = "text/html; charset=utf-8";
/// Where the admin API is.
pub(crate) const API: &str = "/admin/v1/";
/// Items of a list that are told at once, at most.
pub(crate) const LIMIT_MAX: usize = 1000;
/// Items of a list that are told at once, if nothing is said of it.
const LIMIT: usize = 100;
/// What the admin API is asked for and this process does not tell by itself.
const BY_COMMANDS: [&str; 5] = ["keys", "plans", "models", "usage", "audit"];

/// An answer to a request on the admin listener; its body lies in `out`.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) content_type: &'static str,
    /// Further header fields, each with its line break before it.
    pub(crate) more: String,
}

/// What becomes of a request.
pub(crate) enum Step {
    /// It is answered.
    Answer(Answer),
    /// It is told what is wrong with it.
    Refuse(u16, &'static str),
    /// A helper thread is asked; `None`: for nothing that changes anything.
    Ask(Option<Writer>),
    /// It is told of requests as they end.
    Live,
}

impl Answer {
    pub(crate) fn new(status: u16, content_type: &'static str) -> Answer {
        Answer { status, content_type, more: String::new() }
    }

    fn text(status: u16) -> Step {
        Step::Answer(Answer::new(status, TEXT))
    }
}

/// Looks at the request with this head; the body of an answer goes to `out`. `peer`: who is at the other end.
pub(crate) fn step(
    head: &RequestHead,
    bytes: &[u8],
    peer: Ipv6Addr,
    view: &View,
    cx: &mut Cx,
    out: &mut Vec<u8>,
) -> Step {
    let path = std::str::from_utf8(head.path.of(bytes)).unwrap_or_default();
    let is_read = matches!(head.method, Method::Get | Method::Head);
    if let Some(path) = path.strip_prefix(API) {
        return api(path, head, bytes, peer, view, cx, out);
    }
    if !is_read {
        out.extend_from_slice(b"only GET and HEAD are answered here\n");
        return Step::Answer(Answer { more: "\r\nallow: GET, HEAD".to_string(), ..Answer::new(405, TEXT) });
    }
    let host = host(head, bytes);
    if (path == "/" || path.starts_with("/admin/")) && !knows_host(host, peer, &cx.setup.config.server) {
        out.extend_from_slice(FOREIGN.as_bytes());
        return Answer::text(403);
    }
    match path {
        "/healthz" => out.extend_from_slice(b"ok\n"),
        "/openapi.json" | "/admin/openapi.json" => {
            let document = if path == "/openapi.json" { OPENAPI } else { ADMIN_OPENAPI };
            out.extend_from_slice(document.text().replace("\"VERSION\"", VERSION).as_bytes());
            return Step::Answer(Answer::new(200, JSON));
        }
        "/readyz" if view.ready => out.extend_from_slice(b"ready\n"),
        "/readyz" => {
            out.extend_from_slice(b"not ready\n");
            return Answer::text(503);
        }
        "/metrics" if metrics_allowed(head, bytes, peer, cx) => {
            let targets: Vec<_> = cx.breakers.states(cx.now.mono).collect();
            cx.stats.write(&view.gauges, &targets, out);
        }
        "/metrics" => {
            out.extend_from_slice(b"the admin token is required\n");
            return Step::Answer(Answer { more: "\r\nwww-authenticate: Bearer".to_string(), ..Answer::new(401, TEXT) });
        }
        "/" => {
            let page = PAGE.text();
            out.extend_from_slice(page.as_bytes());
            let more = page_fields(&page, &origins(&cx.setup.config.server, host));
            return Step::Answer(Answer { more, ..Answer::new(200, HTML) });
        }
        _ => {
            out.extend_from_slice(
                b"/ is the page; /healthz, /readyz, /metrics, /openapi.json and /admin/openapi.json tell the rest\n",
            );
            return Answer::text(404);
        }
    }
    Answer::text(200)
}

const FOREIGN: &str = "this name of the host is not in admin_hosts\n";

/// Whoever may read the API may read metrics; and whoever asks, where there is no token for reading.
fn metrics_allowed(head: &RequestHead, bytes: &[u8], peer: Ipv6Addr, cx: &Cx) -> bool {
    cx.setup.config.server.admin_token.is_none() || role(head, bytes, peer, &cx.setup.config.server) > Role::Nobody
}

/// What a browser is told of the page: it runs the script and the style that stand in it and no others, and talks to
/// this listener and those for clients.
fn page_fields(page: &str, origins: &str) -> String {
    let digest = |tag: &str| {
        let (open, close) = (format!("<{tag}>"), format!("</{tag}>"));
        let inside = page.split_once(&open).and_then(|(_, rest)| rest.split_once(&close)).map_or("", |(text, _)| text);
        base64::encode(&sha256(inside.as_bytes()))
    };
    let (script, style) = (digest("script"), digest("style"));
    format!(
        "\r\ncontent-security-policy: default-src 'none'; script-src 'sha256-{script}'; style-src 'sha256-{style}'; \
         img-src data:; connect-src 'self'{origins}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\
         \r\nx-content-type-options: nosniff\r\nreferrer-policy: no-referrer\r\ncache-control: no-store"
    )
}

/// Where clients are served, as a page would say it that was asked for by `host`: each with a space before it.
fn origins(server: &Server, host: &str) -> String {
    let (mut origins, scheme) = (String::new(), if server.tls.is_some() { "https" } else { "http" });
    for address in &server.listen {
        let named = if host.contains(':') { format!("[{host}]") } else { host.to_string() };
        // Writing to a String cannot fail.
        let _ = match address.ip().is_unspecified() {
            true => write!(origins, " {scheme}://{named}:{}", address.port()),
            false => write!(origins, " {scheme}://{address}"),
        };
    }
    origins
}

/// The admin API; `path` is what follows [`API`].
fn api(
    path: &str,
    head: &RequestHead,
    bytes: &[u8],
    peer: Ipv6Addr,
    view: &View,
    cx: &mut Cx,
    out: &mut Vec<u8>,
) -> Step {
    let host = host(head, bytes);
    if !knows_host(host, peer, &cx.setup.config.server) {
        return Step::Refuse(403, FOREIGN.trim_ascii_end());
    }
    let role = role(head, bytes, peer, &cx.setup.config.server);
    let is_read = matches!(head.method, Method::Get | Method::Head);
    let writer = match (role, is_read) {
        (Role::Nobody, _) => return Step::Refuse(401, "a token is required: `authorization: Bearer …`"),
        (Role::Writer(writer), false) => Some(writer),
        (_, true) => None,
        (Role::Reader, false) => {
            return Step::Refuse(403, "changing anything needs the admin_write_token of the configuration");
        }
    };
    let first = path.split('/').next().unwrap_or_default();
    if BY_COMMANDS.contains(&first) {
        return Step::Ask(writer);
    }
    let limit = match parameter(head, bytes, "limit").map(str::parse::<usize>) {
        None => LIMIT,
        Some(Ok(limit)) if (1..=LIMIT_MAX).contains(&limit) => limit,
        Some(_) => return Step::Refuse(400, "limit: expected a number from 1 to 1000"),
    };
    let after = match parameter(head, bytes, "after").map(str::parse::<u64>) {
        None => None,
        Some(Ok(after)) => Some(after),
        Some(Err(_)) => return Step::Refuse(400, "after: expected what a list before had in `next`"),
    };
    match path {
        _ if !["status", "targets", "groups", "requests", "requests/live"].contains(&path) => {
            return Step::Refuse(404, "there is nothing here; see /admin/openapi.json");
        }
        _ if !is_read => return Step::Refuse(405, "only GET is answered here"),
        "status" => {
            let origins = origins(&cx.setup.config.server, host);
            told::status(view, &origins, cx, out);
        }
        "targets" => told::targets(cx, out),
        "groups" => told::groups(cx, out),
        "requests" => told::requests(limit, after, cx, out),
        _ => return Step::Live,
    }
    Step::Answer(Answer { more: FRESH.to_string(), ..Answer::new(200, JSON) })
}

/// What is told is true at the moment.
pub(crate) const FRESH: &str = "\r\ncache-control: no-store";

/// The query of a request, without its mark.
pub(crate) fn query<'a>(head: &RequestHead, bytes: &'a [u8]) -> &'a str {
    let target = std::str::from_utf8(head.target.of(bytes)).unwrap_or_default();
    target.split_once('?').map_or("", |(_, query)| query)
}

fn parameter<'a>(head: &RequestHead, bytes: &'a [u8], name: &str) -> Option<&'a str> {
    let pairs = query(head, bytes).split('&').filter_map(|pair| pair.split_once('='));
    pairs.filter(|(known, _)| *known == name).map(|(_, value)| value).next()
}

/// Whether a body follows this head.
pub(crate) fn has_body(head: &RequestHead) -> bool {
    !matches!(head.framing, Framing::None | Framing::Length(0))
}

/// Appends the body of an error.
pub(crate) fn error(status: u16, message: &str, id: &str, out: &mut Vec<u8>) {
    let kind = match status {
        401 => RefusalKind::Authentication,
        403 => RefusalKind::Permission,
        404 => RefusalKind::NotFound,
        500.. => RefusalKind::Upstream,
        _ => RefusalKind::InvalidRequest,
    };
    let words =
        ErrorWords { kind: kind.as_str(), status, word: "", message, details: None, resets_at: None, request_id: id };
    errors::error_body(None, &words, out);
}

/// The header fields that belong to an error of this status.
pub(crate) fn error_fields(status: u16) -> &'static str {
    match status {
        401 => "\r\nwww-authenticate: Bearer",
        405 => "\r\nallow: GET, HEAD",
        503 => "\r\nretry-after: 1",
        _ => "",
    }
}
