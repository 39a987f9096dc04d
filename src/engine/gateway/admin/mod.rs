//! Answers of the admin listener: health, metrics, the description of the client API, the dashboard, and the admin API.
//! Decides on access. Data about the process itself is answered here; data that commands also show comes from their
//! code on a helper thread, whose answer arrives later.

mod access;
mod status;

pub(crate) use access::{AdminRole, role};
pub(crate) use status::{View, scrape};

use super::client::response::{JSON, TEXT};
use super::cx::Cx;
use super::orders::desk::ChangeAuthor;
use super::orders::paging::ListPart;
use super::report::metrics::{Scrape, ScrapePosition};
use crate::base::base64;
use crate::base::digest::sha256;
use crate::base::limits::HIGH_WATER;
use crate::base::packed::Packed;
use crate::policy::config::Server;
use crate::policy::refusal::Refusal;
use crate::wire::head::{HeaderField, Method, RequestHead};
use access::{host, knows_host};
use std::fmt::Write;

/// Description of the client API (OpenAPI 3.1), with a placeholder for the version.
const OPENAPI: Packed = Packed(include_bytes!(concat!(env!("OUT_DIR"), "/openapi.json")));
/// Description of the admin API.
const ADMIN_OPENAPI: Packed = Packed(include_bytes!(concat!(env!("OUT_DIR"), "/admin.json")));
const VERSION: &str = concat!("\"", env!("CARGO_PKG_VERSION"), "\"");
/// Dashboard for browsers.
const PAGE: Packed = Packed(include_bytes!(concat!(env!("OUT_DIR"), "/page.html")));
const HTML: &str = "text/html; charset=utf-8";
/// Path prefix of the admin API.
const API: &str = "/admin/v1/";
/// Query parameters of a list.
const LIST: &str = "limit after";
/// Query parameters of the list of keys, which continues after a key.
const KEYS: &str = "limit after-key";
/// Methods of read-only routes.
const LOOK: &str = "GET, HEAD";
/// Routes of the admin API: path, with `*` for a name; permitted methods; and query parameters.
static ROUTES: [(&str, &str, &str); 16] = [
    ("status", LOOK, ""),
    ("targets", LOOK, "limit after minutes"),
    ("reasons", LOOK, ""),
    ("groups", LOOK, LIST),
    ("limits", LOOK, "key"),
    ("requests", LOOK, "limit after id session"),
    ("requests/live", LOOK, ""),
    ("keys", "GET, HEAD, POST", KEYS),
    ("keys/*", "GET, HEAD, PATCH, DELETE", ""),
    ("keys/*/rotate", "POST", ""),
    ("plans", LOOK, LIST),
    ("models", LOOK, LIST),
    ("budgets", LOOK, LIST),
    ("usage", LOOK, "limit after by since until key group model user session label"),
    ("outcomes", LOOK, LIST),
    ("audit", LOOK, LIST),
];

/// Returns the route of a path.
fn route(path: &str) -> Option<&'static (&'static str, &'static str, &'static str)> {
    let fits = |route: &str| {
        let (mut parts, mut known) = (path.split('/'), route.split('/'));
        known.all(|known| parts.next().is_some_and(|part| part == known || (known == "*" && !part.is_empty())))
            && parts.next().is_none()
    };
    ROUTES.iter().find(|(route, ..)| fits(route))
}

/// Answer to a request on the admin listener; its body is in `out`.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) content_type: &'static str,
    /// Further header fields, each with its line break before it.
    pub(crate) more: String,
}

/// Next step of a request.
pub(crate) enum AdminStep {
    /// Answer it.
    Answer(Answer),
    /// Refuse it, with the reason.
    Refuse(Refusal),
    /// Ask a helper thread for this part; `None`: the request changes nothing.
    Ask(ListPart, Option<ChangeAuthor>),
    /// Send it the metrics in pieces: the first is in `out`.
    Scrape(Box<Scrape>),
    /// Send it requests as they end.
    Live,
}

impl Answer {
    pub(crate) fn new(status: u16, content_type: &'static str) -> Answer {
        Answer { status, content_type, more: String::new() }
    }

    fn text(status: u16) -> AdminStep {
        AdminStep::Answer(Answer::new(status, TEXT))
    }
}

/// Handles the request with this head; the body of an answer goes to `out`. `role`: permissions of its caller.
pub(crate) fn step(
    head: &RequestHead,
    bytes: &[u8],
    role: AdminRole,
    view: &View<'_>,
    cx: &mut Cx,
    out: &mut Vec<u8>,
) -> AdminStep {
    let path = std::str::from_utf8(head.path.of(bytes)).unwrap_or_default();
    let host = host(head, bytes);
    if !answers_to_any_name(path, role) && !knows_host(host, cx.connections.admin, &cx.setup.config.server) {
        return AdminStep::Refuse(Refusal::of_status(403, "the host name of the request is not in admin_hosts"));
    }
    if let Some(inside) = inside(path.as_bytes()) {
        let path = std::str::from_utf8(inside).unwrap_or_default();
        return api(path, head, bytes, role, view, cx, out).unwrap_or_else(AdminStep::Refuse);
    }
    let is_known = ["/", "/healthz", "/readyz", "/metrics", "/openapi.json", "/admin/openapi.json"].contains(&path);
    if is_known && !matches!(head.method, Method::Get | Method::Head) {
        return AdminStep::Refuse(Refusal::method(LOOK));
    }
    match path {
        "/healthz" => out.extend_from_slice(b"ok\n"),
        "/openapi.json" | "/admin/openapi.json" => {
            let document = if path == "/openapi.json" { OPENAPI } else { ADMIN_OPENAPI };
            out.extend_from_slice(document.text().replace("\"VERSION\"", VERSION).as_bytes());
            return AdminStep::Answer(Answer::new(200, JSON));
        }
        "/readyz" => match view.unready {
            None => out.extend_from_slice(b"ready\n"),
            Some(reason) => {
                out.extend_from_slice(["not ready: ", reason, "\n"].concat().as_bytes());
                return Answer::text(503);
            }
        },
        "/metrics" if role > AdminRole::Nobody => {
            let mut scrape = Box::new(Scrape { gauges: view.gauges, position: ScrapePosition::default() });
            if !status::scrape(cx, &mut scrape, HIGH_WATER, out) {
                return AdminStep::Scrape(scrape);
            }
        }
        "/metrics" => return AdminStep::Refuse(Refusal::of_status(401, "the admin token is required")),
        "/" => {
            let page = PAGE.text();
            out.extend_from_slice(page.as_bytes());
            let more = page_fields(&page, &origins(&cx.setup.config.server, host));
            return AdminStep::Answer(Answer { more, ..Answer::new(200, HTML) });
        }
        _ => {
            out.extend_from_slice(b"unknown path; ");
            if path.starts_with("/v1") {
                let origins = origins(&cx.setup.config.server, host);
                out.extend_from_slice(["clients use", &origins, "; "].concat().as_bytes());
            }
            out.extend_from_slice(b"see /, /healthz, /readyz, /metrics, /openapi.json and /admin/openapi.json\n");
            return Answer::text(404);
        }
    }
    Answer::text(200)
}

/// True if a request may use any host name: health probes, and a metrics collector with the required token, which a
/// malicious page in a browser does not know.
fn answers_to_any_name(path: &str, role: AdminRole) -> bool {
    match path {
        "/" | "/openapi.json" => false,
        "/metrics" => role != AdminRole::Guest,
        _ => !path.starts_with("/admin/"),
    }
}

/// Returns the header fields of the dashboard: a browser may run only the script and the style in it, and may connect
/// only to this listener and those for clients.
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
         \r\nx-content-type-options: nosniff\r\nreferrer-policy: no-referrer"
    )
}

/// Returns the origins of the client listeners, for a dashboard requested from `host`: each with a space before it.
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

/// Handles the admin API; `path` is the part after [`API`].
fn api(
    path: &str,
    head: &RequestHead,
    bytes: &[u8],
    role: AdminRole,
    view: &View<'_>,
    cx: &mut Cx,
    out: &mut Vec<u8>,
) -> Result<AdminStep, Refusal> {
    let unknown = || match head.field(HeaderField::Authorization).of(bytes) {
        [] => Refusal::of_status(401, "a token is required: `authorization: Bearer …`"),
        _ => Refusal::of_status(401, "this token is not valid"),
    };
    if role == AdminRole::Nobody {
        return Err(unknown());
    }
    let nothing = || Refusal::of_status(404, "unknown path; see /admin/openapi.json");
    let (route, methods, queries) = route(path).ok_or_else(nothing)?;
    let method = method(bytes);
    if !methods.split(", ").any(|known| known.as_bytes() == method) {
        return Err(Refusal::method(methods));
    }
    let is_read = matches!(head.method, Method::Get | Method::Head);
    let writer = match role {
        _ if is_read => None,
        AdminRole::Writer(writer) => Some(writer),
        AdminRole::Guest if cx.setup.config.server.admin_write_token.is_some() => return Err(unknown()),
        _ => {
            let text = "changes need the admin_write_token of the configuration";
            return Err(Refusal::of_status(403, text));
        }
    };
    let mut part = ListPart::parse(query(head, bytes), queries).map_err(|text| Refusal::of_status(400, text))?;
    let bounds = &cx.setup.config.server.bounds;
    (part.limit, part.bytes) = (part.limit.min(bounds.list), bounds.page_bytes());
    if ["targets", "groups"].contains(route) {
        // The event loop makes these pages.
        part.bytes = part.bytes.min(HIGH_WATER);
    }
    match *route {
        "status" => {
            let origins = origins(&cx.setup.config.server, host(head, bytes));
            status::status(view, &origins, cx, out);
        }
        "targets" => status::targets(part, view, cx, out),
        "reasons" => status::reasons(cx, out),
        "groups" => status::groups(part, cx, out),
        "limits" => status::limits(&part, cx, out)?,
        "requests" => {
            if let Some(begun) = status::requests(&part, cx, out) {
                part.begun = begun;
                return Ok(AdminStep::Ask(part, writer));
            }
        }
        "requests/live" => return Ok(AdminStep::Live),
        _ => return Ok(AdminStep::Ask(part, writer)),
    }
    Ok(AdminStep::Answer(Answer::new(200, JSON)))
}

/// Returns the part of a path after [`API`], without one slash at its end.
pub(crate) fn inside(path: &[u8]) -> Option<&[u8]> {
    let inside = path.strip_prefix(API.as_bytes())?;
    Some(inside.strip_suffix(b"/").unwrap_or(inside))
}

/// Returns the method of a request, as received.
pub(crate) fn method(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == b' ').next().unwrap_or_default()
}

/// Returns the query of a request, without its question mark.
pub(crate) fn query<'a>(head: &RequestHead, bytes: &'a [u8]) -> &'a str {
    let target = std::str::from_utf8(head.target.of(bytes)).unwrap_or_default();
    target.split_once('?').map_or("", |(_, query)| query)
}
