//! A form that is passed on while it arrives: what follows when more of it comes, or when it turns out to be invalid.

use super::event::{DriverCall, Effect, Outcome};
use super::job::RequestJob;
use super::state::{Answering, Attempting, Draft, Queued, Reserving, State};
use crate::base::limits::UPLOAD_AHEAD;
use crate::base::time::Mono;
use crate::gateway::provider::request::OutgoingRequest;
use crate::policy::counters::AttemptEnd;
use crate::policy::refusal::Refusal;
use crate::policy::usage::Usage;

impl State {
    /// The form that is sent, or will be.
    fn form_draft(&mut self) -> Option<&mut OutgoingRequest> {
        match self {
            State::Reserving(Reserving { draft: Some(draft), .. })
            | State::Queued(Queued { draft, .. })
            | State::Attempting(Attempting { draft, .. })
            | State::Answering(Answering { draft: Draft::Kept(draft) | Draft::Leaving(draft), .. }) => Some(draft),
            _ => None,
        }
    }

    /// More of the form has arrived. The driver sends it on.
    pub(super) fn form_came(&mut self, job: &mut RequestJob, complete: bool, call: &mut DriverCall) -> Effect {
        let (held, now) = (call.message.body.len(), call.cx.now.mono);
        let body_timeout = job.request.setup.config.server.body_timeout;
        let Some(draft) = self.form_draft() else { return Effect::Rearm };
        if complete {
            draft.scan.form_completed();
            job.request.read = now;
            let timeout = job.target().map(|target| target.limits.request_timeout);
            if let (Some(admitted), Some(timeout), false) = (&mut job.admitted, timeout, job.attempt.has_content) {
                admitted.until = now.after(timeout);
            }
            return Effect::Rearm;
        }
        let upload = draft.upload.as_mut();
        let is_too_slow = upload.is_some_and(|upload| {
            upload.waits(held >= UPLOAD_AHEAD, now);
            upload.is_too_slow(held, job.request.received, now, body_timeout)
        });
        match is_too_slow {
            true => self.refuse_form(job, Refusal::body_too_slow(body_timeout), call),
            false => Effect::Rearm,
        }
    }

    /// The rest of the form is invalid or late: its provider must not take it for complete.
    pub(super) fn refuse_form(&mut self, job: &RequestJob, refusal: Refusal, call: &mut DriverCall) -> Effect {
        if let State::Committing(_) = self {
            return Effect::Nothing;
        }
        match self {
            State::Attempting(attempting) => attempting.drop_provider(call.out),
            State::Answering(answering) => answering.drop_provider(call.out),
            _ => {}
        }
        if let (State::Attempting(_) | State::Answering(_), Some(target)) = (&*self, job.target()) {
            call.cx.upstreams.breakers.ended(target, AttemptEnd::Abandoned);
        }
        let outcome = Outcome { status: refusal.status, error: Some(refusal.kind), usage: Usage::default() };
        match job.attempt.opened {
            true => Effect::Cut(outcome),
            false => Effect::Refuse(Box::new(refusal), outcome),
        }
    }

    /// A part of the form has been put into the queue of its provider. `is_pending`: not all of that has been written;
    /// `held`: bytes of the form that are here. Returns the number of these that are not needed any more, and the
    /// reason if the form is invalid.
    pub(crate) fn upload_step(
        &mut self,
        job: &RequestJob,
        is_pending: bool,
        held: usize,
        now: Mono,
    ) -> (usize, Option<String>) {
        let idle = job.target().map(|target| target.limits.idle_timeout);
        let Some(upload) = self.form_draft().and_then(|draft| draft.upload.as_mut()) else { return (held, None) };
        let used = upload.take_used();
        upload.waits(held.saturating_sub(used) >= UPLOAD_AHEAD, now);
        let failure = upload.failed.take();
        if let State::Attempting(attempting) = self {
            // A provider that does not read is late; a client has its own timeout.
            attempting.by = idle.filter(|_| is_pending).map_or(Mono::NEVER, |idle| now.after(idle));
        }
        (used, failure)
    }
}
