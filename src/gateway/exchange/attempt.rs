//! Attempts at targets: each has a target, a slot there, and a connection. Their requests are sent, and have deadlines
//! until an answer begins. The breakers get the result of each attempt exactly once, whatever the reason for its end; a
//! target that cools down or recovers is logged.

use super::build::Built;
use super::event::{ClientMessage, DriverCall, Effect, Flow, Output};
use super::fault::{Fault, FaultKind, refuses_credential, wants_rest};
use super::job::{RequestJob, TriedAddresses};
use super::own_events::EventWriter;
use super::request::Request;
use super::state::{AttemptStage, Attempting, NextStep, Outgoing, State};
use crate::base::limits::{SEND_SLICE, SEND_SLICE_MIN};
use crate::base::time::{Mono, Unix};
use crate::gateway::cx::Cx;
use crate::gateway::provider::breaker::{Begun, Caller, FailedAttempt, Flight, UNANSWERED, place_of};
use crate::gateway::provider::rate_limits::RateLimitHeaders;
use crate::gateway::provider::request::OutgoingRequest;
use crate::policy::catalog::Target;
use crate::policy::cause::Cause;
use crate::policy::config::Provider;
use crate::wire::ModelEndpoint;
use crate::wire::head::{HeaderField, ResponseHead};
use std::time::Duration;

/// The part of the free bytes that one slice of a request may take, as a divisor.
const SEND_SHARE: usize = 16;

impl Attempting {
    /// Begins the first attempt after admission. Admission may have taken a while: a target that is cooling down or
    /// full by now is skipped if another one is free.
    pub(super) fn first(job: &mut RequestJob, mut draft: Outgoing, call: &mut DriverCall) -> NextStep {
        let targets = job.request.targets();
        let target = job.target().filter(|target| targets.len() > 1 || target.slots > 0);
        if target
            .is_some_and(|target| !call.cx.upstreams.breakers.is_free(target, &job.request.needs(), call.cx.now.mono))
        {
            let fresh = job.attempt.fresh();
            let full = std::mem::replace(&mut job.attempt, fresh);
            if !job.attempt.choose(&job.request, &draft, call.cx) {
                job.attempt = full;
                return NextStep::GiveUp(draft, Box::new(Fault::from(FaultKind::NoSlot)));
            }
            if job.attempt.target != full.target {
                let unfit = Fault::from(FaultKind::Internal);
                match job.build(&mut draft, call) {
                    Ok(Built::Whole) => {}
                    Ok(Built::TooLong) => {
                        return NextStep::Translate(draft, Some(Box::new((unfit, job.attempt.target))));
                    }
                    Err(_) => return NextStep::Another(draft, Box::new(unfit)),
                }
            }
        }
        NextStep::Attempt(draft)
    }

    /// Begins an attempt at the chosen target, whose body has been written.
    pub(super) fn begin(job: &mut RequestJob, draft: Outgoing, cx: &mut Cx) -> NextStep {
        let at = &mut job.attempt;
        at.attempts += 1;
        at.addresses = TriedAddresses::default();
        (at.begun, at.first) = (cx.now.mono, Mono::NEVER);
        if !job.notes.is_empty() {
            job.notes.note_begun(&job.attempt);
        }
        job.attempt.take_place(&job.request, &draft, cx);
        match job.connect(None, cx) {
            Ok((stage, by, effect)) => NextStep::Enter(State::Attempting(Attempting { draft, stage, by }), effect),
            Err(fault) => NextStep::Failed(draft, fault),
        }
    }

    /// The attempt continues, with this effect.
    pub(super) fn goes_on(self, effect: Effect) -> NextStep {
        NextStep::Enter(State::Attempting(self), effect)
    }

    /// Closes its connection, or its dials.
    pub(super) fn drop_provider(&mut self, out: &mut Output) {
        let slow = self.stage.dials().earlier.map(|(slow, _)| slow);
        let other = slow.filter(|slow| self.stage.provider() != Some(*slow));
        for provider in self.stage.provider().into_iter().chain(other) {
            out.release(provider, false);
        }
        self.stage = AttemptStage::Resolving;
    }

    /// A deadline of the request or of the present step has expired, or a heartbeat is due.
    pub(super) fn due(mut self, job: &mut RequestJob, flow: Flow, call: &mut DriverCall) -> NextStep {
        let now = call.cx.now.mono;
        let overdue = job.overdue(flow.unread, now);
        let late = match self.stage {
            _ if overdue.is_some() => overdue,
            _ if self.by > now => None,
            AttemptStage::Renewing => return job.renewed(self.draft, call),
            AttemptStage::Dialing(dials) => return self.dial_late(dials, job, call),
            // The provider is not to blame.
            AttemptStage::Open(_) if flow.unread => {
                let first_byte = job.target().map(|target| target.limits.first_byte_timeout);
                self.by = first_byte.map_or(Mono::NEVER, |timeout| now.after(timeout));
                None
            }
            AttemptStage::Open(_) => {
                let reads = self.draft.upload.as_ref().is_none_or(|upload| upload.is_written);
                Some(Fault::from(if reads { FaultKind::FirstByteTimeout } else { FaultKind::IdleTimeout }))
            }
            AttemptStage::Resolving => Some(Fault::from(FaultKind::ConnectTimeout)),
        };
        if let Some(fault) = late {
            return self.failed(job, fault, false, call);
        }
        let effect = job.heartbeat(flow.drained, EventWriter::Opening(self.draft.state.as_ref()), call);
        self.goes_on(effect)
    }
}

impl RequestJob {
    #[inline]
    pub(super) fn route(&self) -> Option<(ModelEndpoint, &Target, &Provider)> {
        let target = self.target()?;
        Some((self.request.endpoint()?, target, self.request.setup.config.providers.get(target.provider)?))
    }

    /// Appends as much of the outgoing request to `out` as fits, its head first if `begins`; true if it is complete.
    /// `room`: free bytes of the buffers.
    pub(super) fn write_request(
        &self,
        draft: &mut OutgoingRequest,
        begins: bool,
        message: &ClientMessage,
        room: usize,
        out: &mut Vec<u8>,
    ) -> bool {
        if begins
            && let Some(target) = self.target()
            && let Some(template) = self.request.setup.requests.template(target.provider)
        {
            let same_shape = draft.state.is_none().then_some((&draft.head, message.head));
            let passthrough = self.request.endpoint().filter(|endpoint| endpoint.is_passthrough());
            match (&draft.upload, passthrough) {
                (Some(upload), Some(endpoint)) => {
                    let content_type = draft.head.field(HeaderField::ContentType).of(message.head);
                    template.write_form(target, endpoint, content_type, upload.length, out);
                }
                _ => template.write(target, draft.length, passthrough, same_shape, out),
            }
            if let Some(extras) = &self.request.extras
                && let Some(credential) = &extras.credential
                && self.takes_clients()
            {
                credential.write(out);
            }
            if let Some(diagnosis) = &self.notes.0 {
                diagnosis.trace_request(self.attempt.attempts, out);
            }
        }
        // If few bytes are free, a request is sent in small slices.
        let slice = (room / SEND_SHARE).clamp(SEND_SLICE_MIN, SEND_SLICE);
        draft.write_some(message.body, slice, out)
    }
}

impl RequestJob {
    /// The target of the present attempt has sent its complete response.
    pub(super) fn target_succeeded(&mut self, cx: &mut Cx) {
        let begun = self.land(cx);
        if let Some(target) = self.target()
            && cx.upstreams.breakers.served(target, begun.cooling, cx.now.mono)
        {
            cx.log_target(&target.label, None);
        }
    }

    /// The present attempt has ended and is not in flight any more. Returns how it began.
    fn land(&mut self, cx: &mut Cx) -> Begun {
        let (Some(flight), Some(target)) = (self.attempt.flight.take(), self.target()) else {
            return Begun::default();
        };
        cx.upstreams.breakers.land(target, flight, &self.request.needs(), cx.now.mono)
    }

    /// The target of the attempt that is in flight.
    pub(crate) fn flies_at(&self) -> Option<&Target> {
        self.target().filter(|_| self.attempt.flight.is_some())
    }

    /// The target's number and the beginning of the attempt that is in flight, if it has no answer yet. The head of a
    /// stream is no answer.
    pub(crate) fn awaits_answer(&self) -> Option<(u64, Mono)> {
        let has_none = self.attempt.first == Mono::NEVER
            || (self.request.asked.is_some_and(|asked| asked.stream) && !self.attempt.has_events);
        let target = self.flies_at().filter(|_| has_none)?;
        Some((target.seed, self.attempt.begun))
    }

    /// The client leaves. If it has waited for an answer, this counts for the state of the target.
    #[cold]
    pub(super) fn note_unanswered(&self, cx: &mut Cx) {
        let Some((_, begun)) = self.awaits_answer() else { return };
        let waited = Duration::from_micros(cx.now.mono.micros_since(begun));
        if waited >= UNANSWERED
            && let Some(target) = self.target()
        {
            let begun = Unix(cx.now.unix.0.saturating_sub(waited.as_millis() as u64));
            cx.upstreams.breakers.unanswered(target, self.request.whose(cx), begun, cx.now.unix);
        }
    }

    /// Evaluates the head of an answer for the credential that was sent.
    pub(super) fn heard_head(&self, flight: &mut Option<Flight>, head: &ResponseHead, bytes: &[u8], cx: &mut Cx) {
        let Some((_, target, provider)) = self.route() else { return };
        let is_error = head.status >= 400;
        let (cools_down, refuses) = (is_error && wants_rest(head.status), is_error && refuses_credential(head.status));
        let reads = head.has_allowances || cools_down;
        if (reads || refuses) && self.takes_clients() {
            // This status is about the client's own account, so it must not count against the target.
            if let Some(flight) = flight {
                cx.upstreams.breakers.answer_begins(target, flight, &self.request.needs(), None, cx.now.mono);
            }
            return;
        }
        let said = reads.then(|| RateLimitHeaders::read(&bytes[..(head.len as usize).min(bytes.len())], cx.now.unix));
        let (mut rested, now) = (false, cx.now.mono);
        if let Some(flight) = flight {
            cx.upstreams.breakers.answer_begins(target, flight, &self.request.needs(), said.as_ref(), now);
            rested = flight.begun.cooling;
        }
        if !is_error {
            return;
        }
        let cause = Cause::status(head.status);
        if let Some(said) = said.filter(|_| cools_down)
            && let Some(wait) = cx.upstreams.breakers.rest(target, &said, rested, now)
        {
            cx.log_target(&target.label, Some((cause, wait)));
        }
        // The refused secret may be an older one: then nothing cools down.
        if !refuses || self.has_newer_secret(cx) {
            return;
        }
        // A status other than 401 may concern the request.
        let caller = (head.status != 401).then(|| self.request.whose(cx));
        if let Some(wait) = cx.upstreams.breakers.refused(target, caller, rested, now) {
            cx.log_target(&provider.place_of(target.credential), Some((cause, wait)));
            if head.status == 401
                && let Some(credential) = provider.credentials.get(target.credential)
            {
                cx.renew(credential.secret.origin());
            }
        }
    }

    /// The attempt failed, regardless of the cause.
    pub(super) fn target_failed(&mut self, fault: &Fault, cx: &mut Cx) {
        self.note_failed(fault, cx.now.mono);
        let (Begun { trial, cooling }, now) = (self.land(cx), cx.now.mono);
        let Some(target) = self.target() else { return };
        cx.upstreams.breakers.ended(target, fault.end());
        if fault.is_targets_own() || fault.asks_for_rest() {
            cx.upstreams.breakers.troubled(target, self.request.whose(cx), fault.cause(), cx.now.unix);
        }
        if fault.is_targets_own() {
            let failure =
                FailedAttempt { caller: self.request.whose(cx), live: cx.access.keys.live(cx.now.unix), trial };
            if cx.upstreams.breakers.failed(target, failure, &target.limits, now) {
                cx.log_target(&place_of(&target.label), Some((fault.cause(), target.limits.breaker_cooldown)));
            }
        } else if fault.asks_for_rest() {
            if trial {
                cx.upstreams.breakers.no_verdict(target);
            }
        } else if cx.upstreams.breakers.succeeded(target, cooling, now) {
            cx.log_target(&target.label, None);
        }
    }

    /// An attempt ends without a result for its target.
    pub(super) fn no_verdict(&mut self, cx: &mut Cx) {
        if self.land(cx).trial
            && let Some(target) = self.target()
        {
            cx.upstreams.breakers.no_verdict(target);
        }
    }
}

impl Request {
    /// The caller of the request.
    fn whose(&self, cx: &Cx) -> Caller {
        self.found.key.map_or_else(Caller::default, |key| Caller::of(cx.access.keys.get(key)))
    }
}
