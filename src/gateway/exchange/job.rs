//! The request of an exchange and all data that outlives its states: its properties, admission and attempts.

use super::authorize::{Endpoint, Identified};
use super::fault::{Fault, FaultKind};
use crate::base::time::{Mono, Unix};
use crate::dialect::{Param, PromptTokens, ResponseIdentity};
use crate::gateway::access_log::ClientAttribution;
use crate::gateway::client::cors::CorsPolicy;
use crate::gateway::client::response::{EVENTS, RequestId, RequestMeta};
use crate::gateway::cx::Setup;
use crate::gateway::diagnosis::Diagnosis;
use crate::gateway::ids::ClientId;
use crate::gateway::provider::breaker::Flight;
use crate::gateway::provider::rate_limits::Needs;
use crate::policy::catalog::{Model, QueueLimits, Target};
use crate::policy::config::Provider;
use crate::policy::keys::Keys;
use crate::policy::meter::{Amount, Hold, Lease, Meter};
use crate::policy::row::Running;
use crate::wire::{ModelEndpoint, Passthrough};
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;

/// A request, without the state that it is in.
#[derive(Debug)]
pub(crate) struct RequestJob {
    pub(crate) request: Request,
    pub(super) admitted: Option<Admitted>,
    pub(super) attempt: Attempt,
    pub(crate) notes: RequestNotes,
}

/// Diagnosis for the operator, if the request did not go as usual.
#[derive(Debug, Default)]
pub(crate) struct RequestNotes(pub(super) Option<Box<Diagnosis>>);

impl RequestNotes {
    /// True if nothing has been noted.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    #[inline]
    pub(super) fn get_mut(&mut self) -> &mut Diagnosis {
        self.0.get_or_insert_default()
    }
}

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
    pub(crate) said: Option<Box<ClientAttribution>>,
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

    /// Share of a provider's rate limits that the request needs.
    pub(super) fn needs(&self) -> Needs {
        let (prompt, completion) = (u64::from(self.about), u64::from(self.completion));
        [1, prompt + completion, prompt, completion]
    }
}

/// Admission of a request, and its deadlines.
#[derive(Debug)]
pub(super) struct Admitted {
    pub(super) hold: Hold,
    /// Lease from the shared ledger, which is returned with the usage record.
    pub(super) lease: Option<Box<Lease>>,
    pub(super) at: Unix,
    /// End of `request_timeout` over all attempts, until a complete response or a stream's first event arrives.
    pub(super) until: Mono,
    /// When the next heartbeat is due.
    pub(super) beat: Mono,
}

/// The attempts at a model's targets. It outlives the states that make them; all zeros before a target is chosen.
#[derive(Debug)]
pub(crate) struct Attempt {
    /// Index into the model's targets.
    pub(super) target: u32,
    /// Number of times that the request was sent, or was to be sent.
    pub(super) attempts: u8,
    /// Targets tried so far, as bits.
    pub(super) tried: u64,
    pub(super) addresses: TriedAddresses,
    /// Attempts on kept connections that turned out to be closed, which are free; see [`Attempt::free`].
    pub(super) stale: u8,
    /// A refused secret was read again for this request; this happens once.
    pub(super) renewed: bool,
    /// The head of a stream has been sent, with the first event or a heartbeat.
    pub(super) opened: bool,
    /// The present attempt, as long as it counts as in flight at its target.
    pub(super) flight: Option<Flight>,
    /// When the present attempt began; once the first event of its stream has arrived, the time of that event.
    pub(super) begun: Mono,
    /// When the request was written completely, to the last of its targets; `NEVER` before.
    pub(super) sent: Mono,
    /// When the present attempt's answer began; `NEVER` before.
    pub(super) first: Mono,
    /// The first event of a stream has arrived.
    pub(super) has_events: bool,
    /// Events of a response that were sent as heartbeats before any arrived.
    pub(super) told: u16,
}

/// The present target was tried on a kept connection that turned out to be closed: only a fresh one will do.
const FRESH_ONLY: u8 = 1 << 7;

impl Attempt {
    /// Number of attempts that do not count for the configured number.
    pub(super) fn free(&self) -> u8 {
        self.stale & !FRESH_ONLY
    }

    /// The present target is not tried on a kept connection again.
    pub(super) fn needs_fresh(&self) -> bool {
        self.stale & FRESH_ONLY != 0
    }

    /// The present attempt was made on a kept connection that turned out to be closed.
    pub(super) fn was_stale(&mut self) {
        self.stale = (self.stale + 1) | FRESH_ONLY;
    }

    /// The target of the present attempt; `None` before the model is known.
    #[inline]
    pub(super) fn target<'a>(&self, request: &'a Request) -> Option<&'a Target> {
        request.targets().get(self.target as usize)
    }

    #[inline]
    pub(super) fn provider<'a>(&self, request: &'a Request) -> Option<&'a Provider> {
        request.setup.config.providers.get(self.target(request)?.provider)
    }

    /// The next attempt goes to this target.
    pub(super) fn aim(&mut self, target: usize) {
        self.target = target as u32;
        self.tried |= self.bit();
        // The next attempt may use a kept connection.
        self.stale &= !FRESH_ONLY;
    }

    /// The target, as a bit.
    pub(super) fn bit(&self) -> u64 {
        1u64.checked_shl(self.target).unwrap_or(0)
    }

    /// An attempt that has not begun. The targets before the present one are marked as tried: the request cannot be
    /// written for them.
    pub(super) fn fresh(&self) -> Attempt {
        Attempt { tried: self.tried & !self.bit(), ..Attempt::default() }
    }
}

/// Addresses of a target's host tried so far, in two bits; above them the index of the one that was first.
#[derive(Copy, Clone, Default, Debug)]
pub(super) struct TriedAddresses(pub(super) u8);

impl TriedAddresses {
    /// Addresses tried before the present one.
    pub(super) fn order(self) -> u8 {
        self.0 & 3
    }

    /// The address that is tried after this many others.
    pub(super) fn address(self, order: u8, known: &[SocketAddr]) -> Option<SocketAddr> {
        known.get((usize::from(self.0 >> 2) + usize::from(order)) % known.len().max(1)).copied()
    }
}

impl Default for Attempt {
    fn default() -> Attempt {
        Attempt {
            target: 0,
            attempts: 0,
            tried: 0,
            addresses: TriedAddresses::default(),
            stale: 0,
            renewed: false,
            opened: false,
            flight: None,
            begun: Mono::NEVER,
            sent: Mono::NEVER,
            first: Mono::NEVER,
            has_events: false,
            told: 0,
        }
    }
}

impl Request {
    /// The endpoint as metrics and log lines call it.
    #[inline]
    pub(super) fn endpoint_name(&self) -> &'static str {
        self.found.endpoint.map_or("none", Endpoint::name)
    }
}

impl RequestJob {
    /// The clocks of an admitted request start. Returns the queue of its model, if that has one.
    pub(super) fn start_clocks(&mut self, now: Mono) -> Option<QueueLimits> {
        let timeout = self.target().map(|target| target.limits.request_timeout);
        let stream = self.request.asked.is_some_and(|asked| asked.stream);
        if let (Some(admitted), Some(timeout)) = (&mut self.admitted, timeout) {
            // The time of an upload is limited by its own timeout.
            admitted.until = if self.request.read == Mono::NEVER { Mono::NEVER } else { now.after(timeout) };
            if stream {
                admitted.beat = now.after(self.request.setup.config.server.heartbeat_after);
            }
        }
        self.request.model()?.queue
    }

    /// Failure of the request if its `request_timeout` is over. A provider that was not read may have answered long
    /// ago, so it is not to blame.
    pub(super) fn overdue(&self, unread: bool, now: Mono) -> Option<Fault> {
        let kind = if unread { FaultKind::NotRead } else { FaultKind::RequestTimeout };
        self.admitted.as_ref().is_some_and(|admitted| admitted.until <= now).then(|| Fault::from(kind))
    }

    /// True if it was admitted by an upper bound of its usage.
    pub(crate) fn is_bounded(&self) -> bool {
        self.admitted.is_some() && self.request.asked.is_some_and(|asked| asked.prompt.is_none())
    }

    /// Reservation in the meter, while it exists.
    pub(crate) fn hold(&self) -> Option<&Hold> {
        self.admitted.as_ref().map(|admitted| &admitted.hold)
    }

    /// The admitted request as a successor process receives it; `None` if nothing has been admitted, or everything is
    /// settled.
    pub(crate) fn running(&self, meter: &Meter, keys: &Keys) -> Option<Running> {
        let (admitted, key) = (self.admitted.as_ref()?, self.request.found.key?);
        let Amount { tokens: reserved, nano: money } = meter.reserved(&admitted.hold);
        let (request, key, group) = (self.request.id.raw(), keys.get(key).id(), meter.path_text(&admitted.hold));
        Some(Running { request, key, admitted: admitted.at, reserved, money, group })
    }

    /// Notes that a part of a stream is sent; true if its head must be sent first.
    #[inline]
    pub(super) fn open(&mut self) -> bool {
        !std::mem::replace(&mut self.attempt.opened, true)
    }

    /// The target of the present attempt; `None` before the model is known.
    #[inline]
    pub(super) fn target(&self) -> Option<&Target> {
        self.attempt.target(&self.request)
    }

    #[inline]
    pub(super) fn target_provider(&self) -> Option<&Provider> {
        self.attempt.provider(&self.request)
    }
}

impl Request {
    /// The model's endpoint that the request uses, if any.
    pub(crate) fn endpoint(&self) -> Option<ModelEndpoint> {
        self.found.of_model()
    }

    /// True if its answer is audio or images.
    #[inline]
    pub(super) fn relays_media(&self) -> bool {
        self.endpoint().and_then(ModelEndpoint::passthrough).is_some_and(Passthrough::is_media)
    }

    /// True if it is a form that is passed on while it arrives.
    #[inline]
    pub(super) fn is_upload(&self) -> bool {
        self.endpoint().and_then(ModelEndpoint::passthrough).is_some_and(Passthrough::is_form)
    }

    /// Maximum bytes of its body; true if that is passed on while it arrives.
    #[inline]
    pub(crate) fn body_max(&self) -> (u64, bool) {
        let server = &self.setup.config.server;
        self.endpoint().map_or((server.max_body, false), |endpoint| (server.body_max(endpoint), self.is_upload()))
    }

    /// Content type of an answer in pieces.
    pub(crate) fn answer_type(&self) -> &str {
        let own = self.said.as_ref().and_then(|said| said.answer_type.as_deref());
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
        let relays = !model.relayed.is_empty() && self.endpoint().is_some_and(ModelEndpoint::is_relayed);
        if relays { &model.relayed } else { &model.targets }
    }
}
