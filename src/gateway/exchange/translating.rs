//! Waits for a helper thread that writes a long body for the chosen target.

use super::build::{Wanted, write_first};
use super::event::{ClientMessage, Effect, Translate};
use super::fault::Fault;
use super::job::RequestJob;
use super::next::NextStep;
use super::state::{Outgoing, State, Translating};
use crate::dialect::{Invalid, OwnedTarget, RequestTarget};
use crate::gateway::cx::Cx;
use crate::policy::refusal::Refusal;

impl Translating {
    /// Has a large request translated by a helper thread.
    pub(super) fn begin(
        job: &mut RequestJob,
        mut draft: Outgoing,
        failed: Option<Box<(Fault, u32)>>,
        cx: &mut Cx,
    ) -> NextStep {
        let (Some((endpoint, target, _)), Some(Wanted { to, .. })) = (job.route(), job.attempt.wanted(&job.request))
        else {
            return NextStep::refuse(draft, Refusal::internal());
        };
        let by = cx.now.mono.after(target.limits.request_timeout);
        let target = Box::new(OwnedTarget::from(RequestTarget { cache_key: draft.cache_key, ..to }));
        if job.admitted.is_some() {
            // No other request may get the slot meanwhile.
            job.attempt.take_place(&job.request, &draft, cx);
        }
        let (serial, promise) = (cx.next_offload(), std::mem::take(&mut draft.promise));
        let effect = Effect::Translate(Box::new(Translate { draft, from: endpoint.shape, target, serial }));
        NextStep::Enter(State::Translating(Translating { serial, promise, failed, by }), effect)
    }

    /// A helper thread has translated the request.
    pub(super) fn translated(
        self,
        job: &mut RequestJob,
        mut draft: Outgoing,
        built: Result<(), Invalid>,
        message: &ClientMessage,
        cx: &mut Cx,
    ) -> NextStep {
        draft.promise = self.promise;
        if let Some(wanted) = job.attempt.wanted(&job.request) {
            job.notes.note_dropped(&job.request, &draft, &wanted, message);
        }
        let built = built.map_err(|Invalid(why)| Refusal::invalid_body(why));
        match (built.and_then(|()| job.request.keep(&mut draft, message, cx)), self.failed) {
            (Ok(()), _) if job.admitted.is_some() => NextStep::Attempt(draft),
            (Ok(()), _) => match job.request.still_welcome(cx) {
                Ok(()) => NextStep::Reserve { draft, others_counted: false },
                Err(refusal) => NextStep::refuse(draft, refusal),
            },
            (Err(_), Some(failed)) => {
                job.no_verdict(cx);
                let (fault, target) = *failed;
                job.attempt.target = target;
                NextStep::Another(draft, Box::new(fault))
            }
            (Err(refusal), None) => match job.attempt.next_to_write(&job.request, &draft, cx) {
                true => write_first(job, draft, message, cx),
                false => NextStep::refuse(draft, refusal),
            },
        }
    }
}
