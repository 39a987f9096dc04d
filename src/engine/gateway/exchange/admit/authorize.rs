//! Checks from the head only whether a request may pass: a straight line of checks in a fixed order; the first that
//! fails determines the error. Notes its findings in `found`, in `captured` and, for an unknown key, in `lookups`, and
//! moves the key's windows in the meter to the present. The caller acts on the result.

use crate::base::time::Unix;
use crate::gateway::client::cors::{CorsPolicy, is_preflight};
use crate::gateway::client::peer::caller;
use crate::gateway::cx::{Access, Cx, Setup};
use crate::gateway::exchange::diagnosis::printable_word;
use crate::gateway::exchange::job::RequestJob;
use crate::gateway::exchange::request::{Endpoint, Identified, unknown_path};
use crate::policy::agent::Client;
use crate::policy::keys::{KeyIx, RefusedKey, Scope};
use crate::policy::meter::Meter;
use crate::policy::refusal::Refusal;
use crate::wire::head::{Expect, Framing, HeaderField, Method, RequestHead, bearer_token, values};
use crate::wire::{ModelEndpoint, Operation, multipart};

/// Requests that the gateway can accept at this moment.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Readiness {
    /// Tollgate is stopping, and the time for arriving requests is over.
    pub(crate) drained: bool,
    /// An upgrade is under way, and nothing is admitted here.
    pub(crate) handed_over: bool,
    /// The connection exceeds `max_connections`.
    pub(crate) crowded: bool,
    /// There is room for one more request.
    pub(crate) buffers: bool,
    /// The wall clock can be right.
    pub(crate) clock: bool,
    /// The ledger takes rows.
    pub(crate) store: bool,
}

/// Everything that authorization may read.
pub(crate) struct AuthContext<'a> {
    pub(crate) setup: &'a Setup,
    pub(crate) access: &'a mut Access,
    pub(crate) meter: &'a mut Meter,
    /// A shared ledger admits: limits that other hosts may release at any moment refuse nothing here.
    pub(crate) shared: bool,
    pub(crate) ready: Readiness,
    pub(crate) now: Unix,
    /// Result: the traffic of the key is captured.
    pub(crate) captured: bool,
}

/// Error text for a body that is not the form that its endpoint needs.
const NO_FORM: &str = "content-type: expected multipart/form-data with a boundary of 1 to 70 characters";

impl RequestJob {
    /// Checks the head: its endpoint, its key, and whether the request may continue.
    pub(crate) fn authorize(
        &mut self,
        head: &RequestHead,
        bytes: &[u8],
        ready: Readiness,
        cx: &mut Cx,
    ) -> Result<Endpoint, Refusal> {
        if head.traced | self.request.setup.traces {
            let head = Some(&bytes[..head.len as usize]).filter(|_| head.traced);
            self.notes.begin_trace(&self.request, head);
        }
        let request = &mut self.request;
        let client_request_id = head.field(HeaderField::XRequestId).of(bytes);
        if !client_request_id.is_empty() {
            let printable = printable_word(client_request_id, &cx.setup.config.server.key_prefix);
            request.extras.get_or_insert_default().client_request_id = printable;
        }
        let trusted = &request.setup.config.server.trusted_proxies;
        if !trusted.is_empty() {
            let peer = cx.connections.peers.of(request.client);
            let caller = caller(peer, &bytes[..head.len as usize], trusted);
            if caller != peer {
                self.notes.get_mut().caller = Some(caller);
            }
        }
        let request = &mut self.request;
        let origins = &request.setup.config.server.cors_origins;
        if !origins.is_empty() {
            request.cors = CorsPolicy::for_origin(origins, head.field(HeaderField::Origin).of(bytes));
        }
        let shared = cx.is_shared();
        let mut context = AuthContext {
            setup: &cx.setup,
            access: &mut cx.access,
            meter: &mut cx.accounts.meter,
            shared,
            ready,
            now: cx.now.unix,
            captured: false,
        };
        let passed = authorize(head, bytes, &mut context, &mut request.found);
        request.meta.captured = context.captured;
        // A refusal is large: the result is not copied as a whole.
        let refusal = match passed {
            Ok(endpoint) => return Ok(endpoint),
            Err(refusal) => refusal,
        };
        let prefix = &cx.setup.config.server.key_prefix;
        let shown = (refusal.status == 401).then(|| presented(head, bytes, self.request.found.endpoint, prefix));
        let owner = shown.map(|shown| cx.access.keys.why_not(shown, prefix, cx.now.unix).1);
        let ended = if let Some(RefusedKey::Known(key)) = owner { Some(key) } else { None };
        self.notes.note_head(&self.request, &refusal, head, bytes, ended);
        self.request.attribute_head(head, bytes, cx);
        Err(refusal)
    }
}

/// Checks the head of a request. `found` gets the facts known so far, also on refusal.
pub(crate) fn authorize(
    head: &RequestHead,
    bytes: &[u8],
    context: &mut AuthContext<'_>,
    found: &mut Identified,
) -> Result<Endpoint, Refusal> {
    if head.method == Method::Options && is_preflight(head, &context.setup.config.server.cors_origins) {
        found.endpoint = Some(Endpoint::Preflight);
        return Ok(Endpoint::Preflight);
    }
    found.read_path(head, bytes)?;
    let asked = found.endpoint;
    if let Some(root @ Endpoint::Root) = asked {
        return method_allowed(head, root);
    }
    let key = authenticate(head, bytes, asked, context).map_err(|mut refusal| {
        // Without the header Claude Code repeats such a request for more than a minute.
        let of_messages = found.of_model().is_some_and(|endpoint| endpoint.shape.is_anthropic());
        refusal.should_retry = of_messages.then_some(false);
        refusal
    })?;
    let known = context.access.keys.get(key);
    (found.key, context.captured) = (Some(key), known.is_captured(context.now));
    let endpoint = asked.ok_or_else(|| unknown_path(head, bytes))?;
    if let Endpoint::Inference(ModelEndpoint { shape, operation: Operation::Generate }) = endpoint
        && shape.may_be_websocket()
    {
        if asks_websocket(head, bytes) {
            return Err(Refusal::upgrade_required());
        }
        found.is_codex = Client::of_agent(head.field(HeaderField::UserAgent).of(bytes)) == Client::CODEX;
    }
    method_allowed(head, endpoint)?;
    scope_allows(endpoint, &known.kind.scope)?;
    let payer = context.access.payer(key, &context.setup.config)?;
    ready(context)?;
    if let Endpoint::Inference(of_model @ ModelEndpoint { operation, .. }) = endpoint {
        content_fits(head, bytes, endpoint, context.setup.config.server.body_max(of_model))?;
        // A count takes no slot and reserves nothing: only settled use can refuse it.
        let spent = match (operation, context.shared) {
            (Operation::CountTokens, _) => context.meter.spent_settled(payer, context.now),
            (_, true) => context.meter.spent_shared(payer, context.now),
            (_, false) => context.meter.spent(payer, context.now),
        };
        spent.map_err(|limit| Refusal::limit(&limit))?;
    }
    Ok(endpoint)
}

/// A WebSocket upgrade, which some agents try first.
fn asks_websocket(head: &RequestHead, bytes: &[u8]) -> bool {
    head.method == Method::Get && values(bytes, "upgrade").any(|value| value.eq_ignore_ascii_case(b"websocket"))
}

fn method_allowed(head: &RequestHead, endpoint: Endpoint) -> Result<Endpoint, Refusal> {
    let fits = match endpoint {
        Endpoint::Inference(_) => head.method == Method::Post,
        _ => matches!(head.method, Method::Get | Method::Head),
    };
    if fits { Ok(endpoint) } else { Err(Refusal::method(endpoint.allowed())) }
}

/// Identifies the key by its bearer token. `x-api-key` also counts, except on OpenAI's generating endpoints and the
/// quota. An empty header counts as absent. If both headers are set, the one with our prefix decides, or the bearer
/// token if both have it. If neither has a valid key, `x-tollgate-key` counts.
fn authenticate(
    head: &RequestHead,
    bytes: &[u8],
    endpoint: Option<Endpoint>,
    context: &mut AuthContext<'_>,
) -> Result<KeyIx, Refusal> {
    let prefix = context.setup.config.server.key_prefix.as_str();
    let mut presented = usual_key(head, bytes, endpoint, prefix);
    let mut key = context.access.keys.identify(presented, prefix, context.now);
    if key.is_none() && head.names_key {
        presented = beside_credential(head, bytes, presented);
        key = context.access.keys.identify(presented, prefix, context.now);
    }
    key.ok_or_else(|| {
        if presented.is_empty() {
            return Refusal::no_key();
        }
        let (why, key) = context.access.keys.why_not(presented, prefix, context.now);
        if let RefusedKey::Unknown(shown) = key {
            context.access.lookups.unknown = Some(shown);
        }
        match why {
            "malformed" => Refusal::not_a_key(),
            why => Refusal::bad_key(why),
        }
    })
}

/// The key that a refused request shows; empty if it shows none.
pub(crate) fn presented<'a>(head: &RequestHead, bytes: &'a [u8], endpoint: Option<Endpoint>, prefix: &str) -> &'a [u8] {
    beside_credential(head, bytes, usual_key(head, bytes, endpoint, prefix))
}

/// The key in `x-tollgate-key`, which clients send next to a credential of their own; otherwise `usual`.
#[inline]
pub(crate) fn beside_credential<'a>(head: &RequestHead, bytes: &'a [u8], usual: &'a [u8]) -> &'a [u8] {
    match head.names_key {
        true => values(bytes, "x-tollgate-key").map(<[u8]>::trim_ascii).find(|key| !key.is_empty()).unwrap_or(usual),
        false => usual,
    }
}

/// The key in `authorization` or `x-api-key`; empty if there is none.
pub(crate) fn usual_key<'a>(head: &RequestHead, bytes: &'a [u8], endpoint: Option<Endpoint>, prefix: &str) -> &'a [u8] {
    let bearer = bearer_token(head.field(HeaderField::Authorization).of(bytes));
    let takes_api_key = match endpoint {
        Some(Endpoint::Inference(endpoint)) => endpoint.shape.is_anthropic(),
        other => other != Some(Endpoint::Quota),
    };
    let api_key = if takes_api_key { head.field(HeaderField::XApiKey).of(bytes).trim_ascii() } else { b"" };
    let ours = |token: &[u8]| token.starts_with(prefix.as_bytes());
    match (bearer.is_empty(), api_key.is_empty()) {
        (true, false) => api_key,
        (false, false) if !ours(bearer) && ours(api_key) => api_key,
        _ => bearer,
    }
}

#[inline]
fn scope_allows(endpoint: Endpoint, scope: &Scope) -> Result<(), Refusal> {
    let allowed = match endpoint {
        Endpoint::Root | Endpoint::Preflight => true,
        Endpoint::Inference(ModelEndpoint { operation: Operation::Passthrough(passthrough), .. }) => {
            scope.passthroughs[passthrough as usize]
        }
        Endpoint::Inference(endpoint) => scope.allows_shape(endpoint.shape),
        Endpoint::Models | Endpoint::Model(_) => scope.models,
        Endpoint::Quota => scope.quota,
    };
    if allowed {
        return Ok(());
    }
    // A count needs the scope of the endpoint for which it counts.
    Err(Refusal::endpoint_scope(match endpoint {
        Endpoint::Inference(ModelEndpoint { operation: Operation::CountTokens, shape }) => shape.name(),
        other => other.name(),
    }))
}

fn ready(context: &AuthContext<'_>) -> Result<(), Refusal> {
    if context.ready.drained {
        return Err(Refusal::draining());
    }
    if context.ready.handed_over {
        return Err(Refusal::upgrading());
    }
    if context.ready.crowded {
        return Err(Refusal::no_connections());
    }
    if !context.ready.buffers {
        return Err(Refusal::no_buffers());
    }
    if !context.ready.clock {
        return Err(Refusal::clock());
    }
    if !context.ready.store {
        return Err(Refusal::store());
    }
    Ok(())
}

/// True if the body that a head announces can be one for `endpoint`.
#[inline]
pub(crate) fn content_fits(head: &RequestHead, bytes: &[u8], endpoint: Endpoint, max_body: u64) -> Result<(), Refusal> {
    let content_type = head.field(HeaderField::ContentType).of(bytes).trim_ascii();
    let essence = || content_type.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    let is_form = matches!(
        endpoint,
        Endpoint::Inference(ModelEndpoint { operation: Operation::Passthrough(form), .. }) if form.is_form()
    );
    if is_form && multipart::boundary(content_type).is_none() {
        return Err(Refusal::invalid_body(NO_FORM.to_owned()));
    }
    // The usual spelling first.
    if !is_form
        && content_type != b"application/json"
        && let essence = essence()
        && !essence.is_empty()
        && !essence.eq_ignore_ascii_case(b"application/json")
    {
        let is_form = essence.eq_ignore_ascii_case(b"application/x-www-form-urlencoded");
        return Err(if is_form { Refusal::form() } else { Refusal::content_type() });
    }
    let encoding = head.field(HeaderField::ContentEncoding).of(bytes).trim_ascii();
    if !encoding.is_empty() && !encoding.eq_ignore_ascii_case(b"identity") {
        return Err(Refusal::content_encoding());
    }
    if head.expect == Expect::Other {
        return Err(Refusal::expectation());
    }
    let version = head.field(HeaderField::AnthropicVersion).of(bytes).trim_ascii();
    let versioned = matches!(endpoint, Endpoint::Inference(endpoint) if endpoint.shape.is_anthropic());
    if versioned && !version.is_empty() && !is_date(version) {
        return Err(Refusal::version_header());
    }
    match head.framing {
        Framing::Length(length) if length > max_body => Err(Refusal::too_large(max_body)),
        _ => Ok(()),
    }
}

fn is_date(text: &[u8]) -> bool {
    text.len() == 10
        && text.iter().enumerate().all(|(i, b)| if i == 4 || i == 7 { *b == b'-' } else { b.is_ascii_digit() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_headers_must_look_like_dates() {
        assert!(is_date(b"2023-06-01"));
        for wrong in [&b"2023-6-1"[..], b"v1", b"2023-06-011", b"2023/06/01"] {
            assert!(!is_date(wrong));
        }
    }
}
