//! Properties of a request: the endpoint that its path names, the other properties of its head and, once the body is
//! complete, those of the body.

use crate::base::time::{Mono, Unix};
use crate::dialect::{Param, PromptTokens, ResponseIdentity};
use crate::gateway::client::cors::CorsPolicy;
use crate::gateway::client::response::{EVENTS, RequestId, RequestMeta};
use crate::gateway::cx::Setup;
use crate::gateway::ids::ClientId;
use crate::gateway::provider::rate_limits::Needs;
use crate::gateway::report::access_log::ClientAttribution;
use crate::policy::catalog::{Model, Target};
use crate::policy::keys::KeyIx;
use crate::policy::meter::StrictReservation;
use crate::policy::refusal::Refusal;
use crate::wire::head::RequestHead;
use crate::wire::{ModelEndpoint, Passthrough, Shape, Span};
use std::borrow::Cow;
use std::num::NonZeroU32;
use std::sync::Arc;

/// Facts about a request: those of its head and, once the body is complete, those of the body.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) client: ClientId,
    pub(crate) id: RequestId,
    pub(crate) meta: RequestMeta,
    pub(crate) found: Identified,
    /// CORS headers for browsers.
    pub(crate) cors: CorsPolicy,
    /// Properties that the body sets, once they are known.
    pub(super) asked: Option<Asked>,
    /// Attribution that the client supplied, if any.
    pub(crate) extras: Option<Box<ClientAttribution>>,
    /// The configuration that the request began with.
    pub(crate) setup: Arc<Setup>,
    /// When the head was complete.
    pub(crate) received: Mono,
    /// When the body was complete; `NEVER` before.
    pub(crate) read: Mono,
    /// Microseconds for which it has waited for slots; 0 if it has not.
    pub(crate) queued: u32,
}

/// Properties of the request that the body sets.
#[derive(Copy, Clone, Debug)]
pub(super) struct Asked {
    /// Index into the catalog.
    pub(super) model: u16,
    /// Approximate number of tokens of the prompt, for the rate limits that providers report.
    pub(super) about: u32,
    /// Completion tokens that are reserved.
    pub(super) completion: u32,
    pub(super) stream: bool,
    /// The client wants the usage of its stream, with the cost.
    pub(super) show_usage: bool,
    /// Estimated tokens of the prompt; `None` as long as nothing depends on their number.
    pub(super) prompt: Option<NonZeroU32>,
}

impl Asked {
    /// Tokens of the prompt, which have been counted.
    pub(super) fn counted(&self) -> u64 {
        debug_assert!(self.prompt.is_some(), "nobody has counted the prompt");
        self.prompt.map_or(0, |prompt| prompt.get().into())
    }
}

impl Request {
    /// The endpoint as metrics and log lines call it.
    #[inline]
    pub(super) fn endpoint_name(&self) -> &'static str {
        let Some(endpoint) = self.found.endpoint else { return "none" };
        endpoint.name()
    }

    /// The model's endpoint that the request uses, if any.
    pub(crate) fn endpoint(&self) -> Option<ModelEndpoint> {
        self.found.of_model()
    }

    /// The endpoint whose format an error has. The lists of models serve two formats; the header that only Anthropic's
    /// clients send decides.
    pub(crate) fn error_endpoint(&self) -> Option<ModelEndpoint> {
        match self.found.endpoint {
            Some(Endpoint::Models | Endpoint::Model(_)) if self.meta.anthropic => Some(ModelEndpoint::MESSAGES),
            _ => self.endpoint(),
        }
    }

    /// True if its answer is audio or images.
    #[inline]
    pub(super) fn relays_media(&self) -> bool {
        self.endpoint().and_then(ModelEndpoint::as_passthrough).is_some_and(Passthrough::is_media)
    }

    /// True if its answer is the text of audio.
    pub(super) fn is_transcript(&self) -> bool {
        self.endpoint().and_then(ModelEndpoint::as_passthrough).is_some_and(Passthrough::is_transcript)
    }

    /// True if it is a form that is passed on while it arrives.
    #[inline]
    pub(super) fn is_upload(&self) -> bool {
        self.endpoint().and_then(ModelEndpoint::as_passthrough).is_some_and(Passthrough::is_form)
    }

    /// Maximum bytes of its body; true if that is passed on while it arrives.
    #[inline]
    pub(crate) fn body_max(&self) -> (u64, bool) {
        let server = &self.setup.config.server;
        let Some(endpoint) = self.endpoint() else { return (server.max_body, false) };
        (server.body_max(endpoint), self.is_upload())
    }

    /// Why another model than the requested one answers, if one does.
    #[inline]
    pub(crate) fn model_reason(&self) -> Option<&str> {
        let replaced = self.extras.as_ref()?.replaced.as_ref()?;
        Some(&*replaced.reason).filter(|reason| !reason.is_empty())
    }

    /// Content type of an answer in pieces.
    pub(crate) fn answer_type(&self) -> &str {
        let own = self.extras.as_ref().and_then(|extras| extras.answer_type.as_deref());
        own.unwrap_or(EVENTS)
    }

    /// Identity of an answer, after the prompt has been counted.
    pub(super) fn counted_identity(&self, now: Unix) -> ResponseIdentity<'_> {
        self.identity(PromptTokens::Counted(self.asked.map_or(0, |asked| asked.counted())), now)
    }

    /// Identity of an answer: its id, model and time.
    #[inline]
    pub(super) fn identity<'a>(&'a self, prompt: PromptTokens<'a>, now: Unix) -> ResponseIdentity<'a> {
        let model = self.model();
        let sets = model.is_some_and(|model| !(model.set_params.is_empty() && model.default_params.is_empty()));
        let hides = if sets { self.hides() } else { &[] };
        let model = model.map_or("", |model| &model.id);
        ResponseIdentity { id: self.id.text(), model, created: now.secs(), prompt, hides }
    }

    /// Parameters that the configuration writes into requests for the model, at all of its targets.
    #[cold]
    fn hides(&self) -> &[Param] {
        let model = self.asked.map_or(0, |asked| asked.model);
        self.setup.requests.capabilities(model.into(), 0).map_or(&[], |takes| &takes.params)
    }

    /// The endpoint that the body was written for.
    #[inline]
    pub(super) fn written_for(&self) -> Option<ModelEndpoint> {
        if self.found.has_input { Some(ModelEndpoint::RESPONSES) } else { self.endpoint() }
    }

    /// The requested model, once known.
    pub(crate) fn model(&self) -> Option<&Model> {
        self.asked.and_then(|asked| self.setup.config.catalog.get(asked.model as usize))
    }

    /// Targets of the model that serve the requested operation.
    #[inline]
    pub(super) fn targets(&self) -> &[Target] {
        let Some(model) = self.model() else { return &[] };
        self.targets_of(model)
    }

    #[inline]
    pub(super) fn targets_of<'a>(&self, model: &'a Model) -> &'a [Target] {
        let is_passthrough = !model.passthrough_targets.is_empty()
            && matches!(self.found.endpoint, Some(Endpoint::Inference(endpoint)) if endpoint.is_passthrough());
        if is_passthrough { &model.passthrough_targets } else { &model.targets }
    }

    /// Its reservation under strict limits, if such apply.
    #[inline]
    pub(super) fn strict(&self) -> Option<&StrictReservation> {
        self.extras.as_ref()?.strict.as_ref()
    }

    /// Share of the provider's rate limits that the request needs.
    pub(super) fn needs(&self) -> Needs {
        let Some(Asked { about, completion, .. }) = self.asked else { return Needs::default() };
        let (prompt, completion) = (u64::from(about), u64::from(completion));
        [1, prompt + completion, prompt, completion]
    }
}

/// Answer to requests for the paths of the admin listener.
const ON_ADMIN: &str = "health and metrics are on the gateway's `admin_listen` address";

/// Endpoint of a request.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Endpoint {
    /// `GET /`: agents probe it; 200 without a key.
    Root,
    /// An endpoint that a model serves.
    Inference(ModelEndpoint),
    /// `GET /v1/models`.
    Models,
    /// `GET /v1/models/{id}`; the id as in the head, percent-encoded.
    Model(Span),
    /// `GET /v1/quota`.
    Quota,
    /// A browser's preflight request (CORS).
    Preflight,
}

/// Facts known about a head, up to the check that failed.
#[derive(Debug, Default)]
pub(crate) struct Identified {
    /// The endpoint, once known; an error has its API format.
    pub(crate) endpoint: Option<Endpoint>,
    /// The endpoint that this unknown path is below: its errors use that API format.
    below: Option<ModelEndpoint>,
    /// The caller, once known.
    pub(crate) key: Option<KeyIx>,
    /// Codex asks, on its own endpoint.
    pub(crate) is_codex: bool,
    /// The body of this chat request is one of the responses format, see [`crate::dialect::RequestScan::has_input`].
    pub(super) has_input: bool,
}

impl Identified {
    /// The model's endpoint, whose API format an error has.
    pub(crate) fn of_model(&self) -> Option<ModelEndpoint> {
        match self.endpoint {
            Some(Endpoint::Inference(endpoint)) => Some(endpoint),
            None => self.below,
            _ => None,
        }
    }

    /// Finds the endpoint that the path names, if it names one below `/v1`.
    #[inline]
    pub(super) fn read_path(&mut self, head: &RequestHead, bytes: &[u8]) -> Result<(), Refusal> {
        let path = head.path.of(bytes);
        // Nearly every path is exact.
        if let [b'/', b'v', b'1', inside @ ..] = path
            && let Some(exact) = exact_endpoint(inside)
        {
            self.endpoint = Some(exact);
            return Ok(());
        }
        let path = single_slashes(trim_slashes(path));
        let inside = match &*path {
            // Path of Cohere's newer clients, with the same body.
            path @ b"/v2/rerank" => &path[3..],
            [b'/', b'v', b'1', inside @ ..] if inside.first().is_none_or(|first| *first == b'/') => inside,
            // Claude Code requests `/api/hello` when it starts, older versions `/`; load generators wait for `/health`.
            b"/" | b"" | b"/api/hello" | b"/health" => {
                self.endpoint = Some(Endpoint::Root);
                return Ok(());
            }
            b"/healthz" | b"/readyz" | b"/metrics" => return Err(Refusal::of_status(404, ON_ADMIN)),
            _ => return Err(Refusal::no_path()),
        };
        self.endpoint = endpoint_of(inside, head, bytes);
        self.below = if self.endpoint.is_some() { None } else { endpoint_above(inside) };
        Ok(())
    }
}

impl Endpoint {
    /// Name of the endpoint in metrics and log lines.
    #[inline]
    pub(crate) fn name(self) -> &'static str {
        match self {
            Endpoint::Root => "root",
            Endpoint::Inference(endpoint) => endpoint.name(),
            Endpoint::Models | Endpoint::Model(_) => "models",
            Endpoint::Quota => "quota",
            Endpoint::Preflight => "preflight",
        }
    }

    /// Path of the endpoint; a part in braces is a placeholder.
    pub(super) fn route(self) -> &'static str {
        match self {
            Endpoint::Root => "/",
            Endpoint::Inference(endpoint) => endpoint.path(),
            Endpoint::Models => "/v1/models",
            Endpoint::Model(_) => "/v1/models/{model}",
            Endpoint::Quota => "/v1/quota",
            Endpoint::Preflight => "",
        }
    }

    pub(super) fn allowed(self) -> &'static str {
        match self {
            Endpoint::Inference(_) => "POST",
            _ => "GET, HEAD",
        }
    }
}

fn trim_slashes(mut path: &[u8]) -> &[u8] {
    while let [rest @ .., b'/'] = path
        && !rest.is_empty()
    {
        path = rest;
    }
    path
}

/// `path` with each run of slashes replaced by one slash.
fn single_slashes(path: &[u8]) -> Cow<'_, [u8]> {
    let is_run = |pair: &[u8]| pair == b"//";
    if !path.windows(2).any(is_run) {
        return Cow::Borrowed(path);
    }
    let mut single = path.to_vec();
    single.dedup_by(|byte, before| *byte == b'/' && *before == b'/');
    Cow::Owned(single)
}

/// The endpoint of a path below `/v1` that has no variable part.
#[inline]
fn exact_endpoint(inside: &[u8]) -> Option<Endpoint> {
    match inside {
        b"/models" => Some(Endpoint::Models),
        b"/quota" => Some(Endpoint::Quota),
        _ => ModelEndpoint::at(inside).map(Endpoint::Inference),
    }
}

/// The endpoint of a path below `/v1`.
fn endpoint_of(inside: &[u8], head: &RequestHead, bytes: &[u8]) -> Option<Endpoint> {
    if let Some(endpoint) = exact_endpoint(inside) {
        return Some(endpoint);
    }
    let id = inside.strip_prefix(b"/models/")?;
    // The id ends where the path does, without the slashes at its end.
    let path = trim_slashes(head.path.of(bytes));
    let end = head.path.start as usize + path.len();
    (!id.is_empty() && path.ends_with(id)).then(|| Endpoint::Model(Span::new(end - id.len(), end)))
}

/// The endpoint for answers that a path below `/v1` is below.
#[cold]
fn endpoint_above(inside: &[u8]) -> Option<ModelEndpoint> {
    let is_above =
        |shape: &Shape| inside.strip_prefix(shape.path_below().as_bytes()).is_some_and(|rest| rest.starts_with(b"/"));
    Shape::ALL.into_iter().find(is_above).map(ModelEndpoint::generate)
}

/// Refusal of a path below `/v1` that names no endpoint.
#[cold]
pub(super) fn unknown_path(head: &RequestHead, bytes: &[u8]) -> Refusal {
    let path = single_slashes(trim_slashes(head.path.of(bytes)));
    let is_elsewhere = path.strip_prefix(b"/v1").is_some_and(is_spoken_elsewhere);
    if is_elsewhere { Refusal::not_spoken() } else { Refusal::no_path() }
}

/// True if a path that is not ours is one of OpenAI's, Anthropic's or of servers like theirs, so that the base URL is
/// right.
fn is_spoken_elsewhere(inside: &[u8]) -> bool {
    const FIRST: [&[u8]; 10] = [
        b"assistants",
        b"audio",
        b"batches",
        b"complete",
        b"files",
        b"fine_tuning",
        b"images",
        b"realtime",
        b"threads",
        b"vector_stores",
    ];
    let first = inside.split(|byte| *byte == b'/').nth(1).unwrap_or_default();
    FIRST.contains(&first) || inside.starts_with(b"/messages/batches")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_slashes_count_as_one() {
        assert_eq!(trim_slashes(b"/v1/models/"), b"/v1/models");
        assert_eq!(trim_slashes(b"/v1/models//"), b"/v1/models");
        assert_eq!(*single_slashes(b"//v1///a/b"), *b"/v1/a/b");
        assert_eq!(*single_slashes(b"/v1/a"), *b"/v1/a");
        assert_eq!((trim_slashes(b"/"), trim_slashes(b"//")), (&b"/"[..], &b"/"[..]));
    }
}
