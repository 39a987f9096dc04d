//! A form that is passed on while it arrives: what follows when more of it comes, or when it turns out to be invalid.

use crate::base::limits::UPLOAD_AHEAD;
use crate::base::time::Mono;
use crate::gateway::exchange::event::{DriverCall, Effect, Outcome};
use crate::gateway::exchange::job::RequestJob;
use crate::gateway::exchange::state::{Answering, Attempting, Draft, Queued, Reserving, State};
use crate::gateway::provider::request::OutgoingRequest;
use crate::gateway::provider::upload::Upload;
use crate::policy::refusal::Refusal;
use std::num::NonZeroU32;

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
    pub(crate) fn form_came(&mut self, job: &mut RequestJob, complete: bool, call: &mut DriverCall) -> Effect {
        let (held, now) = (call.message.body.len(), call.cx.now.mono);
        let body_timeout = job.request.setup.config.server.body_timeout;
        let Some(draft) = self.form_draft() else { return Effect::Rearm };
        if complete {
            let received = draft.upload.as_ref().map_or(held as u64, |upload| upload.received(held));
            let fewer = draft.scan.form_completed(received);
            job.request.form_completed(draft.scan.form(), fewer);
            job.request.read = now;
            let target = job.request.targets().get(job.attempt.target as usize);
            match target.zip(job.attempt.flight.as_mut()) {
                Some((target, flight)) => {
                    call.cx.upstreams.breakers.form_arrived(target, flight, job.request.found.key);
                }
                // A queued form that has arrived may take any free slot.
                None => call.cx.upstreams.queues.look_again(now),
            }
            return Effect::Rearm;
        }
        let upload = draft.upload.as_mut();
        let is_too_slow = upload.is_some_and(|upload| {
            upload.waits(held >= UPLOAD_AHEAD, now);
            upload.is_too_slow(held, job.request.received, now, body_timeout)
        });
        match is_too_slow {
            true => self.refuse_form(job, Refusal::body_too_slow("body_timeout", body_timeout), call),
            false => Effect::Rearm,
        }
    }

    /// True if `request_timeout` has passed, and its client has not sent all of the form: its provider is not to blame.
    pub(crate) fn is_form_late(&self, job: &RequestJob, now: Mono) -> bool {
        let is_late = job.admitted.as_ref().is_some_and(|admitted| admitted.until <= now);
        let upload = self.draft().filter(|_| is_late && job.request.read == Mono::NEVER);
        upload.and_then(|draft| draft.upload.as_ref()).is_some_and(|upload| upload.awaits_client())
    }

    /// The rest of the form is invalid or late: its provider must not take it for complete. The client is charged as if
    /// it had left.
    pub(crate) fn refuse_form(&mut self, job: &mut RequestJob, refusal: Refusal, call: &mut DriverCall) -> Effect {
        if let State::Committing(_) = self {
            return Effect::Nothing;
        }
        let usage = self.abandoned(job, call);
        let outcome = Outcome { status: refusal.status, error: Some(refusal.kind), usage };
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
        job: &mut RequestJob,
        is_pending: bool,
        held: usize,
        now: Mono,
    ) -> (usize, Option<String>) {
        let idle = job.target().map(|target| target.limits.idle_timeout);
        let Some(upload) = self.form_draft().and_then(|draft| draft.upload.as_mut()) else { return (held, None) };
        let used = upload.take_used();
        note_form(job, upload, now);
        upload.waits(held.saturating_sub(used) >= UPLOAD_AHEAD, now);
        let failure = upload.failed.take();
        if let State::Attempting(attempting) = self {
            // A provider that does not read is late; a client has its own timeout.
            attempting.by = idle.filter(|_| is_pending).map_or(Mono::NEVER, |idle| now.after(idle));
        }
        (used, failure)
    }
}

/// Notes what has become known of a form since the last call: a prompt behind its file, and fields that were left
/// out.
fn note_form(job: &mut RequestJob, upload: &mut Upload, now: Mono) {
    let sent = NonZeroU32::new(u32::try_from(upload.prompt_tokens()).unwrap_or(u32::MAX));
    if let Some(asked) = &mut job.request.asked {
        asked.prompt = asked.prompt.max(sent);
    }
    if upload.is_over() {
        job.attempt.sent = job.attempt.sent.min(now);
    }
    let dropped = upload.take_dropped();
    if !dropped.is_empty() {
        job.notes.note_left_out(&job.request, &dropped);
    }
}
