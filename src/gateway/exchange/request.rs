//! Properties of a request: those of its head and, once the body is complete, those of the body.

use super::paths::{Endpoint, Identified};
use crate::base::time::{Mono, Unix};
use crate::dialect::{Param, PromptTokens, ResponseIdentity};
use crate::gateway::access_log::ClientAttribution;
use crate::gateway::client::cors::CorsPolicy;
use crate::gateway::client::response::{EVENTS, RequestId, RequestMeta};
use crate::gateway::cx::Setup;
use crate::gateway::ids::ClientId;
use crate::gateway::provider::rate_limits::Needs;
use crate::policy::catalog::{Model, Target};
use crate::wire::{ModelEndpoint, Passthrough};
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
        self.found.endpoint.map_or("none", Endpoint::name)
    }

    /// The model's endpoint that the request uses, if any.
    pub(crate) fn endpoint(&self) -> Option<ModelEndpoint> {
        self.found.of_model()
    }

    /// True if its answer is audio or images.
    #[inline]
    pub(super) fn relays_media(&self) -> bool {
        self.endpoint().and_then(ModelEndpoint::as_passthrough).is_some_and(Passthrough::is_media)
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
        self.endpoint().map_or((server.max_body, false), |endpoint| (server.body_max(endpoint), self.is_upload()))
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
    pub(super) fn model(&self) -> Option<&Model> {
        self.asked.and_then(|asked| self.setup.config.catalog.get(asked.model as usize))
    }

    /// Targets of the model that serve the requested operation.
    #[inline]
    pub(super) fn targets(&self) -> &[Target] {
        self.model().map_or(&[], |model| self.targets_of(model))
    }

    #[inline]
    pub(super) fn targets_of<'a>(&self, model: &'a Model) -> &'a [Target] {
        let is_passthrough =
            !model.passthrough_targets.is_empty() && self.endpoint().is_some_and(ModelEndpoint::is_passthrough);
        if is_passthrough { &model.passthrough_targets } else { &model.targets }
    }

    /// Share of the provider's rate limits that the request needs.
    pub(super) fn needs(&self) -> Needs {
        let Some(Asked { about, completion, .. }) = self.asked else { return Needs::default() };
        let (prompt, completion) = (u64::from(about), u64::from(completion));
        [1, prompt + completion, prompt, completion]
    }
}
