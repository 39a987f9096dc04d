//! Attempts at targets: each has a target, a slot there, and a connection. Their requests are sent, and have deadlines
//! until an answer begins.

pub(crate) mod dial;
mod failover;
mod queue;
pub(crate) mod verdict;

use super::body::build::Built;
use super::event::{ClientMessage, DriverCall, Effect, Flow, Output};
use super::fault::{Fault, FaultKind};
use super::job::RequestJob;
use super::own_events::EventWriter;
use super::state::{AttemptStage, Attempting, NextStep, Outgoing, State};
use crate::base::limits::SEND_SLICE;
use crate::base::time::Mono;
use crate::gateway::cx::Cx;
use crate::gateway::provider::request::OutgoingRequest;
use crate::policy::catalog::Target;
use crate::policy::config::Provider;
use crate::wire::ModelEndpoint;

/// Bytes of a request written to an upstream at a time if buffers are short.
const SEND_SLICE_MIN: usize = 1024;

/// The part of the free bytes that one slice of a request may take, as a divisor.
const SEND_SHARE: usize = 16;

impl Attempting {
    /// Begins the first attempt after admission. Admission may have taken a while: a target that is cooling down or
    /// full by now is skipped if another one is free.
    pub(super) fn first(job: &mut RequestJob, mut draft: Outgoing, call: &mut DriverCall) -> NextStep {
        let targets = job.request.targets();
        let pauses = call.cx.upstreams.breakers.stated_until > call.cx.now.mono;
        let may_change =
            |target: &&Target| targets.len() > 1 || target.slots > 0 || pauses || target.accounts.is_some();
        let target = job.target().filter(may_change);
        let has_changed = target.is_some_and(|target| {
            let choice = job.attempt.choice(&job.request, &draft, call.cx);
            !choice.has_room(job.attempt.target as usize) || !call.cx.upstreams.breakers.is_free(target, &choice)
        });
        if has_changed {
            let fresh = job.attempt.fresh();
            let full = std::mem::replace(&mut job.attempt, fresh);
            if !job.attempt.choose(&job.request, &draft, call.cx) {
                job.attempt = full;
                let fault = job.attempt.without_target(&job.request, &draft, call.cx);
                return NextStep::GiveUp(draft, Box::new(fault));
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
        at.begun = cx.now.mono;
        at.not_sent();
        if !job.notes.is_empty() {
            job.notes.note_begun(&job.attempt);
        }
        job.attempt.take_slot(&job.request, &draft, cx);
        // A form that is still arriving has a slot from now on.
        job.start_timeout(cx.now.mono);
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
        self.stage.providers().for_each(|provider| out.release(provider, false));
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
            AttemptStage::Dialing(_) => return self.dial_late(job, call),
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
                    template.write_form(target, endpoint, upload.boundary(), upload.length, out);
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
