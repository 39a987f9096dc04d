//! The one place that takes the state of an exchange: gives each event to the handler of the present state, and takes
//! the steps that follow. The properties of a state that the driver asks for are here, too.

use super::admit::replace::write_first;
use super::body::reading;
use super::event::{ClientMessage, DriverCall, Effect, ExchangeEvent};
use super::fault::{Fault, FaultKind};
use super::job::RequestJob;
use super::state::{
    Answering, AttemptStage, Attempting, Body, Committing, Draft, Exchange, Lingering, NextStep, Queued, Reserving,
    State, Translating,
};
use super::target_hold::{must_reserve, reserve};
use super::transitions::Step;
use crate::base::time::Mono;
use crate::gateway::cx::Cx;
use crate::gateway::ids::ProviderId;
use crate::gateway::memory::shares::Promise;
use crate::gateway::provider::request::OutgoingRequest;
use crate::policy::config::Origin;
use crate::policy::keys::KeyIx;
use crate::policy::meter::Lease;
use crate::policy::refusal::Refusal;
use std::time::Duration;

impl Exchange {
    /// Handles an event in the present state. A combination that is not in the table of transitions is a bug: it ends
    /// this exchange, and a debug build panics.
    #[inline]
    pub(crate) fn on(&mut self, event: ExchangeEvent<'_>, call: &mut DriverCall) -> Effect {
        let step = Step::of(self, Some(&event));
        let effect = self.handle(event, call);
        step.leads(self, &effect);
        effect
    }

    fn handle(&mut self, event: ExchangeEvent<'_>, call: &mut DriverCall) -> Effect {
        let Exchange { job, state } = self;
        let next = match (&mut *state, event) {
            (State::Reading { draft }, ExchangeEvent::Body { complete: false }) => {
                let scanned = job.request.scan(draft, call);
                if scanned.is_err() || !draft.scan.form().is_some_and(|form| form.may_be_sent) {
                    return scanned.map_or_else(Effect::refuse, |()| Effect::Nothing);
                }
                // Enough of the form has arrived.
                let event = ExchangeEvent::Body { complete: false };
                leave(std::mem::replace(state, State::Ended), job, event, call)
            }
            (State::Reading { .. }, ExchangeEvent::Refused(refusal)) => return Effect::refuse(*refusal),
            (
                State::Queued(Queued { draft, .. }) | State::Attempting(Attempting { draft, .. }),
                ExchangeEvent::Count,
            ) => {
                job.count_now(draft, call);
                return Effect::Nothing;
            }
            (State::Answering(answering), ExchangeEvent::Count) => {
                if let Some(draft) = answering.draft.get() {
                    job.count_now(draft, call);
                }
                return Effect::Nothing;
            }
            (State::Attempting(attempting), ExchangeEvent::Dialed(id)) => {
                return attempting.dialed(job, id, call);
            }
            (State::Answering(answering), ExchangeEvent::Whole(body)) => match answering.whole(job, body, call) {
                Ok(effect) => return effect,
                Err(over) => std::mem::take(answering).over(*over, job, call),
            },
            (State::Answering(answering), ExchangeEvent::BodyEnd) => match answering.body_end(job, call) {
                Ok(effect) => return effect,
                Err(over) => std::mem::take(answering).over(*over, job, call),
            },
            (State::Answering(answering), ExchangeEvent::Offloaded(product)) => {
                match answering.offloaded(job, product.map(|product| *product), call) {
                    Ok(effect) => return effect,
                    Err(over) => std::mem::take(answering).over(*over, job, call),
                }
            }
            (State::Answering(answering), ExchangeEvent::Room) => {
                answering.paused = false;
                return answering.drained(call.cx);
            }
            (State::Answering(answering), ExchangeEvent::Drained) => return answering.drained(call.cx),
            (State::Answering(answering), ExchangeEvent::Left) if answering.outlasts_client(job) => {
                Lingering::begin(std::mem::take(answering), job, call)
            }
            (State::Committing(committing), ExchangeEvent::Committed) => {
                return committing.committed(job, call);
            }
            // The connection watches an arriving body; an ended response has no deadline.
            (State::Reading { .. }, ExchangeEvent::Due(_)) => return Effect::Nothing,
            (State::Committing(_), ExchangeEvent::Drained) => return Effect::Nothing,
            (
                State::Attempting(_) | State::Queued(_) | State::Reserving(_) | State::Translating(_),
                ExchangeEvent::Drained,
            ) => return Effect::Nothing,
            (state, ExchangeEvent::Left) => return state.left(job, call),
            (state, ExchangeEvent::Stopped) => return state.stopped(job, call),
            (state, event) => leave(std::mem::replace(state, State::Ended), job, event, call),
        };
        self.go(next, call)
    }

    /// Handles a piece of the response's body, of which [`Answering::pass_alike`] has taken `alike` bytes.
    pub(crate) fn data(&mut self, data: &[u8], alike: usize, call: &mut DriverCall) -> Effect {
        let taken = Step::of(self, None);
        let Exchange { job, state } = self;
        let next = match state {
            State::Answering(answering) => match answering.data(job, data, alike, call) {
                Ok(effect) => {
                    taken.leads(self, &effect);
                    return effect;
                }
                Err(over) => std::mem::take(answering).over(*over, job, call),
            },
            State::Lingering(lingering) => {
                let effect = lingering.data(job, data, call);
                taken.leads(self, &effect);
                return effect;
            }
            state => {
                let fault = Box::new(Fault::from(FaultKind::Internal));
                NextStep::End(std::mem::replace(state, State::Ended), fault)
            }
        };
        let effect = self.go(next, call);
        taken.leads(self, &effect);
        effect
    }

    /// Takes the steps that follow, until the request waits or ends. It calls itself where a loop would copy each step;
    /// a request's steps are bounded by its attempts, and it waits in most of them.
    fn go(&mut self, next: NextStep, call: &mut DriverCall) -> Effect {
        let Exchange { job, state } = self;
        let next = match next {
            NextStep::Enter(entered, effect) => {
                *state = entered;
                return effect;
            }
            NextStep::End(entered, fault) => {
                *state = entered;
                return state.end(job, *fault, call);
            }
            NextStep::EndAfter(entered, fault, forward) => {
                *state = entered;
                let good = std::mem::take(&mut call.out.bytes);
                let effect = state.end(job, *fault, call);
                let error = std::mem::replace(&mut call.out.bytes, good);
                call.out.bytes.extend_from_slice(&error);
                return if let Effect::End(_, outcome) = effect { Effect::End(forward, outcome) } else { effect };
            }
            NextStep::Write(draft) => write_first(job, draft, call),
            NextStep::Reserve { draft, others_counted } => Reserving::begin(job, draft, others_counted, call),
            NextStep::Serve(draft) => match job.start_clocks(call.cx.now.mono) {
                Some(queue) => Queued::first(job, queue, draft, call),
                None => Attempting::first(job, draft, call),
            },
            NextStep::Translate(draft, failed) => Translating::begin(job, draft, failed, call.cx),
            NextStep::Attempt(draft) if must_reserve(job) => reserve(job, draft, call),
            NextStep::Attempt(draft) => Attempting::begin(job, draft, call.cx),
            NextStep::Failed(draft, fault) => job.attempt_failed(draft, fault, call.cx),
            NextStep::Another(draft, fault) => job.next_target(draft, fault, call),
            NextStep::Wait(draft, fault) => Queued::again(job, draft, fault, call),
            NextStep::LastResort(draft, fault) => job.last_resort(draft, fault, call),
            NextStep::GiveUp(draft, fault) => job.give_up(draft, fault, call.cx),
        };
        self.go(next, call)
    }
}

/// Handles an event that may end the state: the handler gets the state itself.
fn leave(state: State, job: &mut RequestJob, event: ExchangeEvent<'_>, call: &mut DriverCall) -> NextStep {
    match (state, event) {
        (State::Identifying { head, .. }, ExchangeEvent::LookedUp { answered: true }) => {
            NextStep::Enter(State::Ended, Effect::Authorize(head))
        }
        // If the ledger cannot be read, the key is not reported as wrong.
        (State::Identifying { .. }, ExchangeEvent::LookedUp { .. } | ExchangeEvent::Due(_)) => {
            NextStep::Enter(State::Ended, Effect::refuse(Refusal::store()))
        }
        (State::Reading { draft }, ExchangeEvent::Body { complete }) => reading::complete(job, draft, complete, call),
        (
            state @ (State::Reserving(_)
            | State::Queued(_)
            | State::Attempting(_)
            | State::Answering(_)
            | State::Committing(_)),
            event @ (ExchangeEvent::Body { .. } | ExchangeEvent::Refused(_)),
        ) => form_event(state, job, event, call),
        (State::Translating(translating), ExchangeEvent::Translated { draft, built }) => {
            translating.translated(job, draft, built, call)
        }
        (state @ State::Translating(_), ExchangeEvent::Offloaded(_)) => {
            NextStep::End(state, Box::new(Fault::from(FaultKind::Internal)))
        }
        (State::Translating(translating), ExchangeEvent::Due(flow)) => translating.due(job, flow, call),
        (State::Reserving(reserving), ExchangeEvent::Ruled(ask, ruling)) => reserving.ruled(job, ask, ruling, call),
        (State::Reserving(Reserving { draft: Some(draft), .. }), ExchangeEvent::Counted) => {
            NextStep::Reserve { draft, others_counted: true }
        }
        (State::Reserving(reserving), ExchangeEvent::Due(flow)) => reserving.due(job, flow, call),
        (State::Queued(queued), ExchangeEvent::Place) => queued.placed(job, call),
        (State::Queued(queued), ExchangeEvent::Due(flow)) => queued.due(job, flow, call),
        (State::Attempting(attempting), ExchangeEvent::Named { failed }) => attempting.resolved(job, failed, call),
        (State::Attempting(attempting), ExchangeEvent::DialFailed(id, why)) => {
            attempting.dial_failed(job, id, why, call)
        }
        (State::Attempting(Attempting { draft, .. }), ExchangeEvent::Renewed) => job.renewed(draft, call),
        (State::Attempting(attempting), ExchangeEvent::Head(head, bytes)) => {
            attempting.answered(job, head, bytes, call)
        }
        (State::Attempting(attempting), ExchangeEvent::Failed { kind, reused }) => {
            attempting.failed(job, Fault::from(kind), reused, call)
        }
        (state @ (State::Attempting(_) | State::Answering(_)), event @ ExchangeEvent::Due(_))
            if state.is_form_late(job, call.cx.now.mono) =>
        {
            form_event(state, job, event, call)
        }
        (State::Attempting(attempting), ExchangeEvent::Due(flow)) => attempting.due(job, flow, call),
        (State::Answering(answering), ExchangeEvent::Failed { kind, reused }) => {
            answering.failed(job, Fault::from(kind), reused, call)
        }
        (State::Answering(answering), ExchangeEvent::Due(flow)) => answering.due(job, flow, call),
        (
            State::Lingering(lingering),
            event @ (ExchangeEvent::BodyEnd
            | ExchangeEvent::Offloaded(_)
            | ExchangeEvent::Due(_)
            | ExchangeEvent::Room
            | ExchangeEvent::Failed { .. }),
        ) => lingering.on(event, job, call),
        (state @ State::Committing(_), ExchangeEvent::NotCommitted | ExchangeEvent::Due(_)) => {
            NextStep::End(state, Box::new(Fault::from(FaultKind::Store)))
        }
        (state, event) => {
            debug_assert!(false, "{event:?} while {state:?}");
            NextStep::End(state, Box::new(Fault::from(FaultKind::Internal)))
        }
    }
}

/// Handles the next part of a form that is sent while it arrives, an error in it, or its delay.
/// The state stays.
fn form_event(mut state: State, job: &mut RequestJob, event: ExchangeEvent<'_>, call: &mut DriverCall) -> NextStep {
    let effect = match event {
        ExchangeEvent::Refused(refusal) => state.refuse_form(job, *refusal, call),
        ExchangeEvent::Due(_) => {
            let limit = job.target().map_or(Duration::ZERO, |target| target.limits.request_timeout);
            state.refuse_form(job, Refusal::body_too_slow("request_timeout", limit), call)
        }
        event => state.form_came(job, matches!(event, ExchangeEvent::Body { complete: true }), call),
    };
    NextStep::Enter(state, effect)
}

impl State {
    /// The answer under way.
    #[inline]
    pub(super) fn answering(&self) -> Option<&Answering> {
        match self {
            State::Answering(answering) => Some(answering),
            State::Lingering(lingering) => Some(&lingering.answering),
            _ => None,
        }
    }

    /// The answer under way, to be changed.
    #[inline]
    pub(crate) fn answering_mut(&mut self) -> Option<&mut Answering> {
        match self {
            State::Answering(answering) => Some(answering),
            State::Lingering(lingering) => Some(&mut lingering.answering),
            _ => None,
        }
    }

    /// True if its client has left, and its answer is read on.
    pub(crate) fn is_lingering(&self) -> bool {
        matches!(self, State::Lingering(_))
    }

    /// True if its key is being looked up.
    pub(crate) fn is_identifying(&self) -> bool {
        matches!(self, State::Identifying { .. })
    }

    /// True if it waits for a ledger's answer about this lease. An earlier question may be answered late.
    pub(crate) fn awaits_ruling(&self, lease: &Lease) -> bool {
        matches!(self, State::Reserving(reserving) if *reserving.lease == *lease)
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

    /// True if an answer has begun whose content does not show whether it is complete.
    pub(crate) fn relays_bytes(&self, job: &RequestJob) -> bool {
        self.answering().is_some_and(|answering| answering.is_bytes(job))
    }

    /// True if it waits for the result with this number.
    pub(crate) fn awaits(&self, serial: u64) -> bool {
        match self {
            State::Translating(translating) => translating.serial.get() == serial,
            state => match state.answering().map(|answering| &answering.body) {
                Some(Body::Offloaded { serial: own, .. }) => own.get() == serial,
                _ => false,
            },
        }
    }

    /// True if it waits for this connection to be established.
    pub(crate) fn awaits_dial(&self, provider: ProviderId) -> bool {
        match self {
            State::Attempting(Attempting { stage: AttemptStage::Dialing(dials), .. }) => {
                dials.list.iter().any(|(id, _)| *id == provider)
            }
            _ => false,
        }
    }

    /// The connection that [`super::Effect::Dial`] asked for has this name.
    pub(crate) fn dialing(&mut self, provider: ProviderId) {
        if let State::Attempting(Attempting { stage: AttemptStage::Dialing(dials), .. }) = self {
            dials.list.extend(dials.tried.last().map(|addr| (provider, *addr)));
        }
    }

    /// The connection that carries the request.
    pub(crate) fn provider(&self) -> Option<ProviderId> {
        match self {
            State::Attempting(Attempting { stage: AttemptStage::Open(provider), .. }) => Some(*provider),
            State::Attempting(attempting) => attempting.stage.providers().last(),
            state => state.answering().and_then(|answering| answering.provider),
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
            State::Lingering(lingering) => lingering.due(),
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

    /// The request has been written completely. No state ends by this, so it is no event.
    pub(crate) fn sent(&mut self, job: &mut RequestJob, cx: &mut Cx) -> Effect {
        match self {
            State::Attempting(attempting) => attempting.sent(job, cx.now.mono),
            State::Answering(answering) => answering.sent(cx),
            _ => Effect::Nothing,
        }
    }

    /// True if the request may still be admitted, so that a hand-over waits for it.
    pub(crate) fn may_be_admitted(&self, job: &RequestJob) -> bool {
        let waits = matches!(self, State::Identifying { .. } | State::Translating(_) | State::Reserving(_));
        waits && job.admitted.is_none()
    }

    /// True if it waits for the addresses of this host.
    pub(crate) fn awaits_name(&self, job: &RequestJob, host: &str, port: u16) -> bool {
        let State::Attempting(Attempting { stage, .. }) = self else { return false };
        let awaits = match stage {
            AttemptStage::Resolving => true,
            AttemptStage::Dialing(dials) => dials.unreached.is_some(),
            _ => false,
        };
        awaits
            && job.target_provider().is_some_and(|provider| {
                let (hop, at) = provider.next_hop();
                **hop == *host && at == port
            })
    }

    /// True if it waits for the secret of this origin.
    pub(crate) fn awaits_secret(&self, job: &RequestJob, origin: &Origin) -> bool {
        matches!(self, State::Attempting(Attempting { stage: AttemptStage::Renewing, .. }))
            && job.origin() == Some(origin)
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
            state => state.answering().and_then(|answering| answering.draft.get()),
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
            State::Lingering(lingering) => lingering.answering.release(key, cx),
            State::Committing(mut committing) => committing.last.release(&mut cx.memory.pool),
            State::Translating(mut translating) => {
                cx.abandon(translating.serial);
                cx.memory.release(&mut translating.promise);
            }
            State::Identifying { .. } | State::Reserving(_) | State::Ended => {}
        }
    }
}
