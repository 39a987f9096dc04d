//! Error that a client receives: status, type, message and headers. It has one constructor per error. `gateway` writes
//! it in the shape of the endpoint. Must never contain a provider's key, the name of a provider's model or a path of
//! the host.

mod credential;
mod queue;
mod upstream;

use super::cause::Cause;
use super::meter::{Limit, LimitReason, Whose};
use super::plan::Shorthand;
use crate::base::time::Unix;
use crate::base::words;
pub use credential::CredentialError;
pub use queue::QueueRefusal;
use std::borrow::Cow;
use std::time::Duration;
pub use upstream::UpstreamRefusal;

/// Seconds until the renewal of a limit up to which a client may retry by itself.
const RETRY_MAX: u64 = 60;

words! {
    /// Value of `error.type`.
    #[derive(Copy, Clone, PartialEq, Eq, Debug, Hash)]
    pub enum RefusalKind {
        /// 400 and similar: the request is wrong.
        InvalidRequest = "invalid_request_error",
        /// 401: no usable key.
        Authentication = "authentication_error",
        /// 403: not within the key's scope.
        Permission = "permission_error",
        /// 404: no such model or path.
        NotFound = "not_found_error",
        /// 429: a limit of the key or its plan.
        RateLimit = "rate_limit_error",
        /// 500 and 503: the provider or the gateway failed.
        Upstream = "upstream_error",
        /// 504: the model took too long.
        Timeout = "timeout_error",
    }
}

/// Plan or group of a key that is not configured.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Missing {
    /// The plan.
    Plan,
    /// The group.
    Group,
}

impl Missing {
    /// Message to the operator about keys with the missing plan or group `name`.
    pub fn message(self, name: &str, keys: usize) -> String {
        let (are, they) = if keys == 1 { ("key is", "it is") } else { ("keys are", "they are") };
        let (what, option) = match self {
            Missing::Plan => ("of plan", "--plan PLAN"),
            Missing::Group => ("in group", "--group GROUP"),
        };
        format!(
            "{keys} {are} {what} `{name}`, which is not configured: {they} refused (403); \
             `tollgate keys set ID {option}` moves a key"
        )
    }
}

impl From<Missing> for Refusal {
    /// 403: such a key must not count as unlimited.
    fn from(missing: Missing) -> Refusal {
        let (text, about) = match missing {
            Missing::Plan => ("this key's plan is not configured; ask the person who issued the key", About::Plan),
            Missing::Group => ("this key's group is not configured; ask the person who issued the key", About::Group),
        };
        Refusal::new(RefusalKind::Permission, 403, text).because(about, "not configured")
    }
}

/// Seconds a client is asked to wait after a 503 of the gateway's own.
const RETRY_SOON: u64 = 1;
/// Seconds a client is asked to wait while the gateway drains and another one takes over.
const RETRY_AFTER_DRAIN: u64 = 5;

words! {
    /// Subject of a refusal, for the operator.
    #[derive(Copy, Clone, PartialEq, Eq, Debug)]
    enum About {
        Http = "http",
        Proxy = "proxy",
        Timeout = "timeout",
        Key = "key",
        Scope = "scope",
        Endpoint = "endpoint",
        Plan = "plan",
        Group = "group",
        Budget = "budget",
        Limit = "limit",
        Buffers = "buffers",
        Connections = "connections",
        Slots = "slots",
        CoolingDown = "cooling down",
        Queue = "queue",
        Ledger = "ledger",
        Clock = "clock",
        Stopping = "stopping",
    }
}

/// A refusal, ready to be rendered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// `error.type`.
    pub kind: RefusalKind,
    /// HTTP status, also `error.code`.
    pub status: u16,
    /// `error.message`.
    pub message: Cow<'static, str>,
    /// `error.details`: a JSON object for programs.
    pub details: Option<&'static str>,
    /// `retry-after` in whole seconds, at least 1.
    pub retry_after: Option<u64>,
    /// `x-should-retry`, which the SDKs obey first.
    pub should_retry: Option<bool>,
    /// `allow`, on 405.
    pub allow: Option<&'static str>,
    /// True if the connection is closed after the answer.
    pub close: bool,
    /// Value of `x-ratelimit-reset` if a limit refused; otherwise the end of the window is shown.
    pub reset: Option<Unix>,
    /// Subject of the refusal, only for the operator, if status and type do not show it. `what` has the detail.
    about: Option<About>,
    what: &'static str,
    /// Limit that refused, only for the operator.
    pub limit: Option<Shorthand>,
    /// Owner of that limit, if it is a group.
    pub whose: Option<Box<Whose>>,
    /// True if the conversation is longer than the model can read.
    too_long: bool,
}

impl Refusal {
    fn new(kind: RefusalKind, status: u16, message: impl Into<Cow<'static, str>>) -> Refusal {
        let message = message.into();
        Refusal {
            kind,
            status,
            message,
            details: None,
            retry_after: None,
            should_retry: None,
            allow: None,
            close: false,
            reset: None,
            about: None,
            what: "",
            limit: None,
            whose: None,
            too_long: false,
        }
    }

    fn because(self, about: About, what: &'static str) -> Refusal {
        Refusal { about: Some(about), what, ..self }
    }

    /// `error.code` in the responses shape, by which clients decide on retries. A spent period must end them; a full
    /// window, or reservations of running requests, must not.
    #[inline]
    pub fn word(&self) -> &'static str {
        match (self.kind, self.status) {
            (RefusalKind::RateLimit, _) if self.should_retry == Some(false) => "insufficient_quota",
            (RefusalKind::RateLimit, _) => "rate_limit_exceeded",
            (RefusalKind::Authentication, _) => "invalid_api_key",
            (RefusalKind::Permission, _) => "permission_denied",
            (RefusalKind::NotFound, _) if self.message.starts_with("model: ") => "model_not_found",
            (RefusalKind::NotFound, _) => "not_found",
            (RefusalKind::Upstream, 503) => "service_unavailable",
            (RefusalKind::Upstream | RefusalKind::Timeout, _) => "server_error",
            (RefusalKind::InvalidRequest, 400) if self.too_long => "context_length_exceeded",
            (RefusalKind::InvalidRequest, 405) => "method_not_allowed",
            (RefusalKind::InvalidRequest, 408) => "request_timeout",
            (RefusalKind::InvalidRequest, 413) => "request_too_large",
            (RefusalKind::InvalidRequest, 426) => "upgrade_required",
            (RefusalKind::InvalidRequest, _) => "invalid_value",
        }
    }

    /// Cause for the operator only, if status and type do not show it.
    pub fn cause(&self) -> Option<Cause> {
        self.about.map(|about| Cause::new(about.as_str(), self.what))
    }

    fn invalid(status: u16, message: impl Into<Cow<'static, str>>) -> Refusal {
        Refusal::new(RefusalKind::InvalidRequest, status, message)
    }

    fn unavailable(message: impl Into<Cow<'static, str>>, seconds: u64) -> Refusal {
        Refusal { retry_after: Some(seconds), ..Refusal::new(RefusalKind::Upstream, 503, message) }
    }

    /// Refusal that also closes the connection.
    pub fn closing(self) -> Refusal {
        Refusal { close: true, ..self }
    }

    // --- the head -------------------------------------------------------------------------------------------------

    /// An HTTP syntax error: 400, 414, 431, 501 or 505 with the parser's message. Closes the connection, since the
    /// start of the next message is unknown.
    pub fn bad_http(status: u16, reason: &'static str) -> Refusal {
        Refusal::invalid(status, reason).closing().because(About::Http, reason)
    }

    /// 400: plain HTTP on a port that speaks TLS.
    pub fn plain_http() -> Refusal {
        let text = "this port speaks TLS: use https://";
        Refusal::invalid(400, text).closing().because(About::Http, "plain HTTP on a TLS port")
    }

    /// 400: a trusted proxy's connection without its PROXY header. It is logged, but not sent.
    pub fn no_proxy_header() -> Refusal {
        let text = "a PROXY protocol header was expected";
        Refusal::invalid(400, text).closing().because(About::Proxy, "no PROXY header from a trusted proxy")
    }

    /// 408: the head did not arrive in time.
    pub fn head_too_slow(limit: Duration) -> Refusal {
        let text = format!("the request's head did not arrive within header_timeout ({} s)", limit.as_secs());
        Refusal::invalid(408, text).closing().because(About::Timeout, "head")
    }

    /// 408: the body made no progress, or too little.
    pub fn body_too_slow(setting: &str, limit: Duration) -> Refusal {
        let text = format!("the request's body came too slowly for {setting} ({} s)", limit.as_secs());
        Refusal::invalid(408, text).closing().because(About::Timeout, "body")
    }

    /// 401: no key was presented.
    pub fn no_key() -> Refusal {
        let text = "no API key: send `authorization: Bearer <key>`";
        Refusal::new(RefusalKind::Authentication, 401, text).because(About::Key, "none")
    }

    /// 401: an invalid key was presented. `why` is for the operator. The text is the same in all cases, so that it does
    /// not reveal whether a key exists.
    pub fn bad_key(why: &'static str) -> Refusal {
        let text = "the API key is malformed, unknown, expired or revoked";
        Refusal::new(RefusalKind::Authentication, 401, text).because(About::Key, why)
    }

    /// 401: a word was presented that is no key of this gateway.
    pub fn not_a_key() -> Refusal {
        let text = "this is no key of this gateway: its keys end with `live_` and 50 letters and digits";
        Refusal::new(RefusalKind::Authentication, 401, text).because(About::Key, "malformed")
    }

    /// 404: no such path.
    pub fn no_path() -> Refusal {
        let text = "unknown path: use the base URL https://HOST/v1 with OpenAI SDKs, https://HOST \
                    with Anthropic SDKs";
        Refusal::new(RefusalKind::NotFound, 404, text)
    }

    /// 404: an endpoint of other services that is not supported.
    pub fn not_spoken() -> Refusal {
        let text = "this endpoint is not supported: send requests to /v1/chat/completions, /v1/messages, \
                    /v1/responses, /v1/embeddings, /v1/rerank, /v1/completions, /v1/audio/speech, \
                    /v1/audio/transcriptions, /v1/audio/translations, /v1/images/generations, /v1/images/edits or \
                    /v1/moderations";
        Refusal::new(RefusalKind::NotFound, 404, text)
    }

    /// 426: a websocket was requested. Clients with a fallback then use it immediately.
    pub fn upgrade_required() -> Refusal {
        let text = "websockets are not supported: send `POST /v1/responses`";
        Refusal { allow: Some("POST"), ..Refusal::invalid(426, text) }.because(About::Http, "WebSocket")
    }

    /// 405 with the allowed methods, as in the `allow` header.
    pub fn method(allow: &'static str) -> Refusal {
        let text = format!("method not allowed: use {}", allow.replace(", ", " or "));
        Refusal { allow: Some(allow), ..Refusal::invalid(405, text) }.because(About::Http, "method not allowed")
    }

    /// Refusal of the admin API, by status.
    pub fn of_status(status: u16, message: impl Into<Cow<'static, str>>) -> Refusal {
        let kind = match status {
            401 => RefusalKind::Authentication,
            403 => RefusalKind::Permission,
            404 => RefusalKind::NotFound,
            500.. => RefusalKind::Upstream,
            _ => RefusalKind::InvalidRequest,
        };
        Refusal { retry_after: (status == 503).then_some(1), ..Refusal::new(kind, status, message) }
    }

    /// 403: the key's scope lacks the endpoint; `endpoint` as in a scope.
    pub fn endpoint_scope(endpoint: &'static str) -> Refusal {
        let text = format!("this key's scope does not include the endpoint `{endpoint}`");
        Refusal::new(RefusalKind::Permission, 403, text).because(About::Scope, "endpoint")
    }

    /// 503: the gateway is shutting down.
    pub fn draining() -> Refusal {
        Refusal::unavailable("the gateway is shutting down", RETRY_AFTER_DRAIN).closing().because(About::Stopping, "")
    }

    /// 503: an upgrade is running. A new connection reaches the process that admits.
    pub fn upgrading() -> Refusal {
        Refusal::unavailable("the gateway is being upgraded, try again on a new connection", RETRY_SOON).closing()
    }

    /// 503: all connections are taken.
    pub fn no_connections() -> Refusal {
        Refusal::unavailable("too many connections", RETRY_SOON).closing().because(About::Connections, "")
    }

    /// 503: no descriptor is left for a connection to a provider, or none of those that one key may use.
    pub fn no_descriptors() -> Refusal {
        let text = "the gateway has no descriptor left for a connection to the model's provider: try again shortly";
        Refusal::unavailable(text, RETRY_SOON).because(About::Connections, "to providers")
    }

    /// 503: the budget of buffered bytes is used up.
    pub fn no_buffers() -> Refusal {
        Refusal::unavailable("the gateway is out of buffer memory: try again shortly", RETRY_SOON)
            .because(About::Buffers, "all")
    }

    /// 503: this key buffers a quarter of the budget.
    pub fn key_buffers() -> Refusal {
        let text = "this key has too many bytes of requests in flight: try again shortly";
        Refusal::unavailable(text, RETRY_SOON).because(About::Buffers, "of this key")
    }

    /// 503: a stream buffers more of its answer than this key may still use.
    pub fn key_answers() -> Refusal {
        let text = "the answers of this key take its share of max_buffered: try again shortly";
        Refusal::unavailable(text, RETRY_SOON).because(About::Buffers, "of this key")
    }

    /// 503: an answer got no buffer, or was not read, within `request_timeout`.
    pub fn no_room(waited: Duration) -> Refusal {
        let text = format!("the answer could not be read within request_timeout ({})", shown(waited));
        Refusal::unavailable(text, RETRY_SOON)
    }

    /// 503: no target of the model may have more requests in flight.
    pub fn no_slot() -> Refusal {
        let text = "every target of the model is at its concurrency limit";
        Refusal::unavailable(text, RETRY_SOON).because(About::Slots, "")
    }

    /// 503: the limits of the model's targets have no room for the request. `again`: seconds until the first renewal.
    pub fn no_room_at_targets(again: u64) -> Refusal {
        let text = "the limits of every target of the model are reached";
        Refusal::unavailable(text, again).because(About::Slots, "limits")
    }

    /// 503: the only target of the model cools down, as its provider has asked. `again`: seconds until the end.
    pub fn cooling_down(again: u64) -> Refusal {
        let text = "the model's provider accepts no more requests at the moment";
        Refusal::unavailable(text, again).because(About::CoolingDown, "the provider asked to wait")
    }

    /// 429: this key holds its share of the slots of the model's targets with forms that are still arriving.
    pub fn key_slots() -> Refusal {
        let text = "this key uses its share of the model's slots for forms that are still arriving: try again shortly";
        Refusal { retry_after: Some(RETRY_SOON), ..Refusal::new(RefusalKind::RateLimit, 429, text) }
            .because(About::Slots, "of this key")
    }

    /// 503: the ledger cannot be written, so nothing could be metered.
    pub fn store() -> Refusal {
        Refusal::unavailable("the gateway cannot record usage at the moment: try again shortly", RETRY_SOON)
            .because(About::Ledger, "")
    }

    /// 503: the wall clock is behind a moment that is known to be past, so keys and limits cannot be checked.
    pub fn clock() -> Refusal {
        Refusal::unavailable("the gateway's clock is wrong: try again shortly", RETRY_SOON)
            .because(About::Clock, "behind")
    }

    /// 400: the `content-type` is not JSON.
    pub fn content_type() -> Refusal {
        Refusal::invalid(400, "content-type: expected application/json")
    }

    /// 400: the `content-type` is a form, which is curl's default.
    pub fn form() -> Refusal {
        let text = "content-type: expected application/json; curl sends -d as a form: add -H 'content-type: \
                    application/json'";
        Refusal::invalid(400, text)
    }

    /// 400: a compressed body.
    pub fn content_encoding() -> Refusal {
        Refusal::invalid(400, "content-encoding: expected identity (send the body uncompressed)")
    }

    /// 400: `anthropic-version` of another form.
    pub fn version_header() -> Refusal {
        Refusal::invalid(400, "anthropic-version: expected a date of the form YYYY-MM-DD")
    }

    /// 417: an expectation other than `100-continue`.
    pub fn expectation() -> Refusal {
        Refusal::invalid(417, "expect: only 100-continue is supported").closing()
    }

    /// 413: a body larger than `max_body` bytes, as declared or as received.
    pub fn too_large(max_body: u64) -> Refusal {
        let text = format!("the request's body is larger than {max_body} bytes");
        Refusal::invalid(413, text).because(About::Http, "body larger than max_body")
    }

    /// 413: a request that is too large, with its translation, to be served at any time.
    pub fn too_large_translated(most: u64) -> Refusal {
        let text = format!("the request and its translation for the model's provider take more than {most} bytes");
        Refusal::invalid(413, text).because(About::Http, "body and translation larger than max_body")
    }

    // --- the body -------------------------------------------------------------------------------------------------

    /// 400 with a validator's message, which has the path of the field.
    pub fn invalid_body(message: impl Into<Cow<'static, str>>) -> Refusal {
        Refusal::invalid(400, message)
    }

    /// 400: a conversation stored at the provider. The client does not know its name there, so its later requests would
    /// have only part of the history. The details tell the SDKs to send all of it.
    pub fn no_threads() -> Refusal {
        let text = "thread: not supported, send the whole conversation with each request";
        let details = r#"{"error_code":"thread_unsupported_request","unsupported":["thread"]}"#;
        Refusal { details: Some(details), ..Refusal::invalid(400, text) }
    }

    /// 400: a body whose framing is broken. Closes the connection, since the start of the next message is unknown.
    pub fn bad_framing() -> Refusal {
        Refusal::invalid(400, "the request's body does not match its content-length or chunks").closing()
    }

    /// 400: no `model`, and no default is configured.
    pub fn no_model() -> Refusal {
        Refusal::invalid(400, "model: missing, and no default model is configured")
    }

    /// 404: no such model. The message repeats the client's name of it, cut to 64 characters.
    pub fn unknown_model(id: &str) -> Refusal {
        let text = format!("model: `{}` does not exist; GET /v1/models lists the models of this key", shortened(id));
        Refusal::new(RefusalKind::NotFound, 404, text)
    }

    /// 404: the model exists, but does not serve this endpoint.
    pub fn not_served(id: &str, asked: &str, serves: &str) -> Refusal {
        let text = format!("model: `{}` does not serve {asked}, only {serves}", shortened(id));
        Refusal::new(RefusalKind::NotFound, 404, text).because(About::Endpoint, "not served by the model")
    }

    /// 403: the key's scope lacks the model. `asked`: the client's name of it, which does not reveal another one;
    /// `None` for the default model.
    pub fn model_scope(asked: Option<&str>) -> Refusal {
        let what = asked.map_or("the default model".into(), |name| format!("`{}`", shortened(name)));
        let text = format!("model: this key's scope does not include {what}");
        Refusal::new(RefusalKind::Permission, 403, text).because(About::Scope, "model")
    }

    /// 403: the model has no price, and a budget applies that does not allow it.
    pub fn unpriced(id: &str) -> Refusal {
        let text = format!("model: `{}` has no price, and this key has a budget", shortened(id));
        Refusal::new(RefusalKind::Permission, 403, text).because(About::Budget, "model without a price")
    }

    /// 403: a member of the request is billed at a price that is not configured, and a budget applies that does not
    /// allow it. `word`: the value of the member, if it is shown.
    #[cold]
    pub fn unpriced_member(path: &str, word: Option<&str>) -> Refusal {
        let what = word.map_or(Cow::Borrowed("it"), |word| format!("`{}`", shortened(word)).into());
        let text = format!("{path}: {what} is billed at a price that is not configured, and this key has a budget");
        Refusal::new(RefusalKind::Permission, 403, text).because(About::Budget, "member without a price")
    }

    /// 403: nothing bounds what `what` costs, and strict limits apply.
    #[cold]
    pub fn unbounded(what: &str) -> Refusal {
        let text = format!("{what}: the cost has no upper bound, and this key has a strict limit");
        Refusal::new(RefusalKind::Permission, 403, text).because(About::Limit, "cost without an upper bound")
    }

    /// 429 for a limit of the key or of a group. After a spent period, or if a request needs more than its share, the
    /// SDKs must not retry.
    #[inline]
    pub fn limit(limit: &Limit) -> Refusal {
        let is_final = match limit.by {
            LimitReason::Spent => limit.retry_after > RETRY_MAX,
            LimitReason::Reserved => false,
            LimitReason::Share { .. } => true,
        };
        let refusal = Refusal {
            retry_after: Some(limit.retry_after.max(1)),
            should_retry: is_final.then_some(false),
            reset: Some(limit.reset),
            limit: Some(Shorthand::of(&limit.cap)),
            whose: matches!(limit.whose, Whose::Group(_)).then(|| Box::new(limit.whose.clone())),
            ..Refusal::new(RefusalKind::RateLimit, 429, limit.message())
        };
        match limit.by {
            LimitReason::Spent => refusal,
            LimitReason::Reserved => refusal.because(About::Limit, "reserved by running requests"),
            LimitReason::Share { .. } => refusal.because(About::Limit, "too little left for the request"),
        }
    }

    // --- upstream -------------------------------------------------------------------------------------------------

    /// 400: the conversation is longer than the model can read. `message` has the words by which clients of its API
    /// format recognise this.
    pub fn context_overflow(message: String) -> Refusal {
        Refusal { too_long: true, ..Refusal::invalid(400, message) }
    }

    /// True for [`Refusal::context_overflow`].
    #[inline]
    pub fn is_overflow(&self) -> bool {
        self.too_long
    }

    /// 500: the gateway caught an error of its own.
    pub fn internal() -> Refusal {
        Refusal::new(RefusalKind::Upstream, 500, "the gateway failed while handling this request").closing()
    }
}

/// A time in seconds, or in milliseconds if it is not a whole number of seconds.
fn shown(time: Duration) -> String {
    if time.subsec_millis() == 0 { format!("{} s", time.as_secs()) } else { format!("{} ms", time.as_millis()) }
}

/// First 64 characters of a client's text, so that the answer stays short.
fn shortened(word: &str) -> &str {
    match word.char_indices().nth(64) {
        Some((end, _)) => &word[..end],
        None => word,
    }
}

#[cfg(test)]
mod tests;
