//! Waits for a helper thread that reads a long body, or writes it for the chosen target.

use super::build::Wanted;
use super::reading::scanned;
use crate::dialect::{Invalid, OwnedTarget, RequestTarget};
use crate::gateway::cx::Cx;
use crate::gateway::exchange::event::{DriverCall, Effect, Flow, Translate};
use crate::gateway::exchange::fault::{Fault, FaultKind};
use crate::gateway::exchange::job::RequestJob;
use crate::gateway::exchange::own_events::EventWriter;
use crate::gateway::exchange::state::NextStep;
use crate::gateway::exchange::state::{Outgoing, State, Translating};
use crate::policy::refusal::Refusal;
use crate::wire::Shape;

impl Translating {
    /// Has a large request translated by a helper thread.
    pub(crate) fn begin(
        job: &mut RequestJob,
        mut draft: Outgoing,
        failed: Option<Box<(Fault, u32)>>,
        cx: &mut Cx,
    ) -> NextStep {
        let (Some(limits), Some(Wanted { endpoint, to, .. })) =
            (job.target().map(|target| &target.limits), job.attempt.wanted(&job.request))
        else {
            return NextStep::refuse(draft, Refusal::internal());
        };
        let by = cx.now.mono.after(limits.request_timeout);
        let target = Some(Box::new(OwnedTarget::from(RequestTarget { cache_key: draft.cache_key, ..to })));
        job.attempt.not_sent();
        if job.admitted.is_some() {
            // No other request may get the slot meanwhile.
            job.attempt.take_slot(&job.request, &draft, cx);
        }
        let (serial, promise) = (cx.next_offload(), std::mem::take(&mut draft.promise));
        let effect = Effect::Translate(Box::new(Translate { draft, from: endpoint.shape, target, serial }));
        NextStep::Enter(State::Translating(Translating { serial, promise, failed, by }), effect)
    }

    /// Has a complete body read by a helper thread: a long one, or that of a chat request which has to be read again as
    /// a responses request.
    #[cold]
    pub(crate) fn read(job: &mut RequestJob, mut draft: Outgoing, cx: &mut Cx) -> NextStep {
        let by = cx.now.mono.after(job.request.setup.config.server.body_timeout);
        let from = job.request.endpoint().map_or(Shape::Chat, |endpoint| endpoint.shape);
        let (serial, promise) = (cx.next_offload(), std::mem::take(&mut draft.promise));
        let effect = Effect::Translate(Box::new(Translate { draft, from, target: None, serial }));
        NextStep::Enter(State::Translating(Translating { serial, promise, failed: None, by }), effect)
    }

    /// The helper thread or the request takes too long, or a heartbeat is due.
    pub(crate) fn due(self, job: &mut RequestJob, flow: Flow, call: &mut DriverCall) -> NextStep {
        let now = call.cx.now.mono;
        let late = (self.by <= now).then(|| Fault::from(FaultKind::RequestTimeout));
        match job.overdue(flow.unread, now).or(late) {
            Some(fault) => NextStep::End(State::Translating(self), Box::new(fault)),
            None => NextStep::Enter(State::Translating(self), job.heartbeat(flow.drained, EventWriter::Alone, call)),
        }
    }

    /// A helper thread has translated the request, or read it.
    pub(crate) fn translated(
        self,
        job: &mut RequestJob,
        mut draft: Outgoing,
        built: Result<(), Invalid>,
        call: &mut DriverCall,
    ) -> NextStep {
        draft.promise = self.promise;
        if job.request.asked.is_none() {
            return scanned(job, draft, built, call);
        }
        if let Some(wanted) = job.attempt.wanted(&job.request) {
            job.notes.note_dropped(&job.request, &draft, &wanted, &call.message);
        }
        let built = built.map_err(|Invalid(why)| Refusal::invalid_body(why));
        match (built.and_then(|()| job.request.keep(&mut draft, call)), self.failed) {
            (Ok(()), _) if job.admitted.is_some() => NextStep::Attempt(draft),
            (Ok(()), _) => match job.request.still_welcome(call.cx) {
                Ok(()) => NextStep::Reserve { draft, others_counted: false },
                Err(refusal) => NextStep::refuse(draft, refusal),
            },
            (Err(_), Some(failed)) => {
                job.no_verdict(call.cx);
                let (fault, target) = *failed;
                job.attempt.target = target;
                NextStep::Another(draft, Box::new(fault))
            }
            (Err(refusal), None) => match job.attempt.next_to_write(&job.request, &draft, call.cx) {
                true => NextStep::Write(draft),
                false => NextStep::refuse(draft, refusal),
            },
        }
    }
}
