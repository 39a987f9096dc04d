//! States of an exchange. A state owns its data, which is dropped with the state; data that outlives a state is kept in
//! the exchange.

use super::fault::Fault;
use super::job::RequestJob;
use super::output::Output;
use crate::base::buf::Buf;
use crate::base::limits::DONE_GRACE;
use crate::base::time::{Mono, Unix};
use crate::dialect::{ObservedUsage, SseStream};
use crate::gateway::budget::Promise;
use crate::gateway::cx::Cx;
use crate::gateway::ids::{ExchangeId, ProviderId};
use crate::gateway::provider::request::OutgoingRequest;
use crate::policy::keys::KeyIx;
use crate::policy::meter::Lease;
use crate::policy::usage::Usage;
use crate::wire::head::RequestHead;
use std::num::{NonZeroU32, NonZeroU64};

/// The outgoing form of a request, which is used again.
pub(crate) type Outgoing = Box<OutgoingRequest>;

/// State of an exchange; the table of transitions is in the module's documentation.
#[derive(Debug)]
pub(crate) enum State {
    /// The ledger looks up the request's key.
    Identifying {
        head: Box<RequestHead>,
        by: Mono,
    },
    Reading {
        draft: Outgoing,
    },
    Translating(Translating),
    Reserving(Reserving),
    Queued(Queued),
    Attempting(Attempting),
    Answering(Answering),
    Committing(Committing),
    /// The exchange has ended, or is changing its state.
    Ended,
}

impl State {
    /// The answer under way.
    #[inline]
    pub(super) fn answering(&self) -> Option<&Answering> {
        if let State::Answering(answering) = self { Some(answering) } else { None }
    }

    #[inline]
    pub(super) fn answering_mut(&mut self) -> Option<&mut Answering> {
        if let State::Answering(answering) = self { Some(answering) } else { None }
    }

    /// The stream of the answer under way.
    pub(super) fn stream(&self) -> Option<&SseStream> {
        if let Body::Stream(stream) = &self.answering()?.body { Some(stream) } else { None }
    }

    /// Usage that has been observed of the answer under way.
    pub(super) fn observed(&self) -> ObservedUsage {
        self.answering().map_or_else(ObservedUsage::default, |answering| answering.body.observed())
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

    /// True if an attempt is under way.
    pub(super) fn is_under_way(&self) -> bool {
        matches!(self, State::Attempting(_) | State::Answering(_))
    }

    /// True if an answer has begun.
    pub(crate) fn is_answering(&self) -> bool {
        self.answering().is_some()
    }

    /// True if the response is an error by its status: its body only affects the message.
    pub(crate) fn reads_error(&self) -> bool {
        matches!(self, State::Answering(Answering { body: Body::Error { .. }, .. }))
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
            State::Attempting(Attempting { half: Half::Dialing(dials), .. }) => {
                dials.newest == Some(provider) || dials.earlier.is_some_and(|(earlier, _)| earlier == provider)
            }
            _ => false,
        }
    }

    /// The connection that [`super::Effect::Dial`] asked for has this name.
    pub(crate) fn dialing(&mut self, provider: ProviderId) {
        if let State::Attempting(Attempting { half: Half::Dialing(dials), .. }) = self {
            dials.newest = Some(provider);
        }
    }

    /// Events that an attempt waits for before it has a connection.
    pub(super) fn half(&self) -> Option<Half> {
        if let State::Attempting(attempting) = self { Some(attempting.half) } else { None }
    }

    /// The connection that carries the request.
    pub(crate) fn provider(&self) -> Option<ProviderId> {
        match self {
            State::Attempting(attempting) => attempting.half.provider(),
            State::Answering(answering) => answering.provider,
            _ => None,
        }
    }

    /// Closes its connection, whatever it is doing.
    pub(super) fn drop_provider(&mut self, out: &mut Output) {
        match self {
            State::Attempting(attempting) => attempting.drop_provider(out),
            State::Answering(answering) => answering.drop_provider(out),
            _ => {}
        }
    }

    /// Deadline of the state itself; if the flag is set, no other clock shortens it.
    #[inline]
    pub(super) fn due(&self) -> (Mono, bool) {
        match self {
            State::Reading { .. } | State::Ended => (Mono::NEVER, false),
            State::Identifying { by, .. }
            | State::Translating(Translating { by, .. })
            | State::Reserving(Reserving { by, .. })
            | State::Queued(Queued { by, .. })
            | State::Attempting(Attempting { by, .. })
            | State::Answering(Answering { by, .. }) => (*by, false),
            // Its answer is complete.
            State::Committing(Committing { by, .. }) => (*by, true),
        }
    }

    /// The outgoing form of the request, from which more is written to its provider.
    pub(super) fn leaving(&mut self) -> Option<&mut OutgoingRequest> {
        match self {
            State::Attempting(Attempting { draft, .. })
            | State::Answering(Answering { draft: Draft::Kept(draft) | Draft::Leaving(draft), .. }) => Some(draft),
            _ => None,
        }
    }

    /// Leaves its queue, if it is in one: the request ends while it waits.
    pub(super) fn leave_queue(&mut self, job: &mut RequestJob, cx: &mut Cx) {
        if let State::Queued(queued) = self {
            queued.leave(job, cx);
        }
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
            State::Answering(Answering { body, draft, mut last, paused, charged, .. }) => {
                if paused {
                    cx.memory.budget.ease();
                }
                body.release(cx);
                if let Some(key) = key {
                    cx.memory.budget.recharge(key, charged, 0);
                }
                last.release(&mut cx.memory.pool);
                if let Draft::Kept(draft) | Draft::Leaving(draft) = draft {
                    cx.upstreams.requests.put(draft, &mut cx.memory);
                }
            }
            State::Committing(mut committing) => committing.last.release(&mut cx.memory.pool),
            State::Translating(mut translating) => {
                cx.abandon(translating.serial);
                cx.memory.release(&mut translating.promise);
            }
            State::Identifying { .. } | State::Reserving(_) | State::Ended => {}
        }
    }
}

/// A helper thread writes the body for the present target.
#[derive(Debug)]
pub(crate) struct Translating {
    pub(super) serial: NonZeroU64,
    /// Memory reserved for the client's body, while its draft is lent.
    pub(super) promise: Promise,
    /// The attempt before, and its target; `None` before the first.
    pub(super) failed: Option<Box<(Fault, u32)>>,
    pub(super) by: Mono,
}

/// A query to a shared ledger is under way: for admission, or for the state of the key.
#[derive(Debug)]
pub(crate) struct Reserving {
    /// `None`: the query is only for the state of the key.
    pub(super) draft: Option<Outgoing>,
    pub(super) lease: Box<Lease>,
    /// Time of the query: an admission counts from this moment.
    pub(super) asked: Unix,
    pub(super) by: Mono,
}

/// The request waits for a slot at a target of its model, in that model's queue.
#[derive(Debug)]
pub(crate) struct Queued {
    /// The draft has no body for a target yet: the body is written once a slot is free.
    pub(super) draft: Outgoing,
    /// Handle of this exchange.
    pub(super) own: ExchangeId,
    /// When the wait began; time that is already in `Request::queued` does not count.
    pub(super) since: Mono,
    pub(super) by: Mono,
}

/// An attempt at a target is under way and has no answer yet.
#[derive(Debug)]
pub(crate) struct Attempting {
    pub(super) draft: Outgoing,
    pub(super) half: Half,
    pub(super) by: Mono,
}

/// Progress of an attempt.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Half {
    /// The host's addresses are awaited.
    Resolving,
    /// Another secret is awaited.
    Renewing,
    /// A connection is dialed, or two.
    Dialing(Dials),
    /// The request is written, or its answer awaited.
    Open(ProviderId),
}

impl Half {
    /// The dials under way.
    pub(super) fn dials(self) -> Dials {
        if let Half::Dialing(dials) = self { dials } else { Dials { newest: None, earlier: None } }
    }

    /// The connection that is used or dialed.
    pub(super) fn provider(self) -> Option<ProviderId> {
        match self {
            Half::Resolving | Half::Renewing => None,
            Half::Dialing(Dials { newest, earlier }) => newest.or(earlier.map(|(earlier, _)| earlier)),
            Half::Open(provider) => Some(provider),
        }
    }
}

/// The dials of an attempt. Both end with it.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Dials {
    /// Dial to the present address; `None` once it has failed, and before it has a handle.
    pub(super) newest: Option<ProviderId>,
    /// An earlier, slow dial, and how many addresses were tried before its own.
    pub(super) earlier: Option<(ProviderId, u8)>,
}

/// An answer arrives.
#[derive(Debug)]
pub(crate) struct Answering {
    /// `None` once the provider's connection is not needed any more.
    pub(super) provider: Option<ProviderId>,
    pub(super) body: Body,
    pub(super) draft: Draft,
    /// The end of a stream, which waits for its usage record.
    pub(super) last: Buf,
    /// When the provider counts as late.
    pub(super) by: Mono,
    /// Stream idle timeout in milliseconds, cached for the per-event path.
    pub(super) idle: u32,
    /// The provider is not read until there is room.
    pub(super) paused: bool,
    /// Before the last piece arrived, the key held more than its share of memory, including other answers.
    pub(super) crowded: bool,
    /// The charge to its key for the storage of a stream.
    pub(super) charged: u32,
}

impl Answering {
    /// When the provider of a stream counts as late from now on: soon, once it has sent its final event.
    pub(super) fn late(&self, finish_seen: bool, now: Mono) -> Mono {
        const GRACE: u32 = DONE_GRACE.as_millis() as u32;
        now.after_ms(if finish_seen { GRACE.min(self.idle) } else { self.idle })
    }
}

/// The request of a response.
#[derive(Debug)]
pub(crate) enum Draft {
    /// Another attempt may follow.
    Kept(Outgoing),
    /// No other attempt may follow, but the rest of the request is still being written.
    Leaving(Outgoing),
    /// The draft is dropped: part of the answer has been sent.
    Gone,
}

impl Draft {
    /// The request, until it is dropped.
    pub(super) fn get(&self) -> Option<&OutgoingRequest> {
        match self {
            Draft::Kept(draft) | Draft::Leaving(draft) => Some(draft),
            Draft::Gone => None,
        }
    }
}

/// The body of a response as it arrives.
#[derive(Debug)]
pub(crate) enum Body {
    /// A stream.
    Stream(Box<SseStream>),
    /// A whole answer, collected.
    Collect {
        buf: Buf,
        /// Announced length, if any.
        announced: Option<NonZeroU32>,
        /// The stream in which the client receives it, if the client asked for one.
        stream: Option<Box<SseStream>>,
    },
    /// A failed answer, collected for its message.
    Error { buf: Buf, status: u16, retry_after: Option<NonZeroU32> },
    /// A helper thread has the body; the usage that was observed before.
    Offloaded { serial: NonZeroU64, observed: Box<ObservedUsage> },
}

/// A complete answer that waits until its usage record is in the ledger.
#[derive(Debug)]
pub(crate) struct Committing {
    /// Output that is sent once the usage record is committed.
    pub(super) last: Buf,
    pub(super) kind: FinalOutput,
    pub(super) usage: Usage,
    pub(super) by: Mono,
}

/// Kind of the last output.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum FinalOutput {
    /// The end of a stream.
    Events,
    /// A whole answer.
    Whole,
    /// A complete response that is sent from its own storage.
    Bulk,
}

/// A request and all of its state.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) job: RequestJob,
    pub(crate) state: State,
}
