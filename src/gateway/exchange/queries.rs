//! Properties of a state that the driver asks for, and the release of everything that a state holds.

use super::event::ClientMessage;
use super::job::RequestJob;
use super::state::{
    Answering, AttemptStage, Attempting, Body, Committing, Draft, Queued, Reserving, State, Translating,
};
use crate::base::time::Mono;
use crate::gateway::budget::Promise;
use crate::gateway::cx::{Cx, Setup};
use crate::gateway::ids::ProviderId;
use crate::gateway::provider::breaker::Breakers;
use crate::gateway::provider::request::OutgoingRequest;
use crate::gateway::queue::Look;
use crate::policy::config::Origin;
use crate::policy::keys::KeyIx;

impl State {
    /// The answer under way.
    #[inline]
    pub(super) fn answering(&self) -> Option<&Answering> {
        if let State::Answering(answering) = self { Some(answering) } else { None }
    }

    /// The answer under way, to be changed.
    #[inline]
    pub(crate) fn answering_mut(&mut self) -> Option<&mut Answering> {
        if let State::Answering(answering) = self { Some(answering) } else { None }
    }

    /// True if its key is being looked up.
    pub(crate) fn is_identifying(&self) -> bool {
        matches!(self, State::Identifying { .. })
    }

    /// True during a query to a shared ledger.
    pub(crate) fn is_reserving(&self) -> bool {
        matches!(self, State::Reserving(_))
    }

    /// True if it waits for a slot.
    pub(crate) fn is_queued(&self) -> bool {
        matches!(self, State::Queued(_))
    }

    /// True if an answer has begun.
    pub(crate) fn is_answering(&self) -> bool {
        self.answering().is_some()
    }

    /// True if the response is an error by its status: its body only affects the message.
    pub(crate) fn reads_error(&self) -> bool {
        self.answering().is_some_and(Answering::reads_error)
    }

    /// True if it waits for the result with this number.
    pub(crate) fn awaits(&self, serial: u64) -> bool {
        match self {
            State::Translating(translating) => translating.serial.get() == serial,
            State::Answering(Answering { body: Body::Offloaded { serial: own, .. }, .. }) => own.get() == serial,
            _ => false,
        }
    }

    /// True if it waits for this connection to be established.
    pub(crate) fn awaits_dial(&self, provider: ProviderId) -> bool {
        match self {
            State::Attempting(Attempting { stage: AttemptStage::Dialing(dials), .. }) => {
                dials.newest == Some(provider) || dials.earlier.is_some_and(|(earlier, _)| earlier == provider)
            }
            _ => false,
        }
    }

    /// The connection that [`super::Effect::Dial`] asked for has this name.
    pub(crate) fn dialing(&mut self, provider: ProviderId) {
        if let State::Attempting(Attempting { stage: AttemptStage::Dialing(dials), .. }) = self {
            dials.newest = Some(provider);
        }
    }

    /// The connection that carries the request.
    pub(crate) fn provider(&self) -> Option<ProviderId> {
        match self {
            State::Attempting(attempting) => attempting.stage.provider(),
            State::Answering(answering) => answering.provider,
            _ => None,
        }
    }

    /// The earliest of the deadlines of the state and of its request.
    #[inline]
    pub(crate) fn due(&self, job: &RequestJob) -> Mono {
        let by = match self {
            State::Reading { .. } | State::Ended => Mono::NEVER,
            State::Identifying { by, .. }
            | State::Translating(Translating { by, .. })
            | State::Reserving(Reserving { by, .. })
            | State::Queued(Queued { by, .. })
            | State::Attempting(Attempting { by, .. })
            | State::Answering(Answering { by, .. }) => *by,
            // Its answer is complete, so no other clock shortens it.
            State::Committing(Committing { by, .. }) => return *by,
        };
        job.admitted.as_ref().map_or(by, |admitted| by.min(admitted.until).min(admitted.beat))
    }

    /// Appends what fits of the outgoing request to `out`, its head first where `begins`; true when all of it is out.
    /// `room`: bytes that are free of the buffers.
    pub(crate) fn write_request(
        &mut self,
        job: &RequestJob,
        begins: bool,
        message: &ClientMessage,
        room: usize,
        out: &mut Vec<u8>,
    ) -> bool {
        match self {
            State::Attempting(Attempting { draft, .. })
            | State::Answering(Answering { draft: Draft::Kept(draft) | Draft::Leaving(draft), .. }) => {
                job.write_request(draft, begins, message, room, out)
            }
            _ => true,
        }
    }

    /// True if the request may still be admitted, so that a hand-over waits for it.
    pub(crate) fn may_be_admitted(&self, job: &RequestJob) -> bool {
        let waits = matches!(self, State::Identifying { .. } | State::Translating(_) | State::Reserving(_));
        waits && job.admitted.is_none()
    }

    /// True if it waits for the addresses of this host.
    pub(crate) fn awaits_name(&self, job: &RequestJob, host: &str, port: u16) -> bool {
        let State::Attempting(Attempting { stage: AttemptStage::Resolving, .. }) = self else { return false };
        job.target_provider().is_some_and(|provider| {
            let (hop, at) = provider.next_hop();
            **hop == *host && at == port
        })
    }

    /// True if it waits for the secret of this origin.
    pub(crate) fn awaits_secret(&self, job: &RequestJob, origin: &Origin) -> bool {
        matches!(self, State::Attempting(Attempting { stage: AttemptStage::Renewing, .. }))
            && job.origin() == Some(origin)
    }

    /// Checks whether this waiting request can be served.
    pub(crate) fn look_for_place(&self, job: &RequestJob, breakers: &mut Breakers, setup: &Setup, now: Mono) -> Look {
        if let State::Queued(queued) = self { queued.look_for_place(job, breakers, setup, now) } else { Look::NotThis }
    }

    /// The charge to its key for the storage of a stream.
    pub(crate) fn charge(&self, job: &RequestJob) -> Option<Promise> {
        let (answering, key) = (self.answering()?, job.request.found.key?);
        Some(Promise::charged(key, answering.charged))
    }

    /// The request's outgoing form, as long as the state has it.
    pub(super) fn draft(&self) -> Option<&OutgoingRequest> {
        match self {
            State::Reading { draft }
            | State::Reserving(Reserving { draft: Some(draft), .. })
            | State::Queued(Queued { draft, .. })
            | State::Attempting(Attempting { draft, .. }) => Some(draft),
            State::Answering(answering) => answering.draft.get(),
            _ => None,
        }
    }

    /// Releases everything that the state holds. `key`: the key that the storage of a stream was charged to.
    pub(super) fn release(self, key: Option<KeyIx>, cx: &mut Cx) {
        match self {
            State::Reading { draft }
            | State::Reserving(Reserving { draft: Some(draft), .. })
            | State::Queued(Queued { draft, .. })
            | State::Attempting(Attempting { draft, .. }) => cx.upstreams.requests.put(draft, &mut cx.memory),
            State::Answering(answering) => answering.release(key, cx),
            State::Committing(mut committing) => committing.last.release(&mut cx.memory.pool),
            State::Translating(mut translating) => {
                cx.abandon(translating.serial);
                cx.memory.release(&mut translating.promise);
            }
            State::Identifying { .. } | State::Reserving(_) | State::Ended => {}
        }
    }
}
