//! States of an exchange. A state owns its data, which is dropped with the state; data that outlives a state is kept in
//! the exchange. A handler owns the state that it ends, and returns the step that follows: so no handler calls another,
//! and only `dispatch` knows the whole way.

use super::event::{Effect, Forward};
use super::fault::Fault;
use super::job::{Attempt, RequestJob, RequestNotes};
use super::request::{Identified, Request};
use crate::base::buf::Buf;
use crate::base::limits::STORE_BUSY;
use crate::base::time::{Mono, Unix};
use crate::dialect::{Estimator, ObservedUsage, SseStream};
use crate::gateway::client::cors::CorsPolicy;
use crate::gateway::client::response::{RequestId, RequestMeta};
use crate::gateway::cx::Cx;
use crate::gateway::ids::{ClientId, ExchangeId, ProviderId};
use crate::gateway::memory::shares::Promise;
use crate::gateway::provider::request::OutgoingRequest;
use crate::policy::meter::Lease;
use crate::policy::refusal::Refusal;
use crate::policy::usage::Usage;
use crate::wire::head::RequestHead;
use std::net::SocketAddr;
use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;

/// Dials that one attempt has under way at once.
const DIALS_MAX: usize = 4;
/// Maximum time that a request waits for the look-up of its unknown key. The look-up may have to wait for a commit, and
/// that for another process.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);
const _: () = assert!(LOOKUP_TIMEOUT.as_secs() > STORE_BUSY.as_secs());

/// The outgoing form of a request, which is used again.
pub(crate) type Outgoing = Box<OutgoingRequest>;

/// State of an exchange; [`super::transitions::TRANSITIONS`] is the table of its transitions.
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
    Lingering(Box<Lingering>),
    Committing(Committing),
    /// The exchange has ended, or is changing its state.
    Ended,
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
    pub(super) stage: AttemptStage,
    pub(super) by: Mono,
}

/// Progress of an attempt.
#[derive(Debug)]
pub(crate) enum AttemptStage {
    /// The host's addresses are awaited.
    Resolving,
    /// Another secret is awaited.
    Renewing,
    /// Connections are dialed, or all dials have failed and other addresses are awaited.
    Dialing(Box<Dials>),
    /// The request is written, or its answer awaited.
    Open(ProviderId),
}

impl AttemptStage {
    /// The connections that are used or dialed.
    pub(super) fn providers(&self) -> impl Iterator<Item = ProviderId> {
        let (dials, open) = match self {
            AttemptStage::Resolving | AttemptStage::Renewing => (None, None),
            AttemptStage::Dialing(dials) => (Some(dials), None),
            AttemptStage::Open(provider) => (None, Some(*provider)),
        };
        dials.into_iter().flat_map(|dials| &dials.list).map(|(id, _)| *id).chain(open)
    }

    /// Takes the dials under way.
    pub(super) fn take_dials(&mut self) -> Box<Dials> {
        match std::mem::replace(self, AttemptStage::Resolving) {
            AttemptStage::Dialing(dials) => dials,
            other => {
                *self = other;
                Box::default()
            }
        }
    }
}

/// The dials of an attempt. All end with it.
#[derive(Default, Debug)]
pub(crate) struct Dials {
    /// Those under way, in the order of their beginning, at most [`DIALS_MAX`].
    pub(super) list: Vec<(ProviderId, SocketAddr)>,
    /// Addresses tried, the present one last.
    pub(super) tried: Vec<SocketAddr>,
    /// Why the last of the known addresses cannot be reached: other addresses are awaited.
    pub(super) unreached: Option<&'static str>,
}

impl Dials {
    /// Removes a dial. Returns its address.
    pub(super) fn remove(&mut self, id: ProviderId) -> Option<SocketAddr> {
        let at = self.list.iter().position(|(own, _)| *own == id)?;
        Some(self.list.remove(at).1)
    }

    /// Removes the second dial if there is no room for another; the first has waited longest, and continues.
    pub(super) fn make_room(&mut self) -> Option<ProviderId> {
        (self.list.len() == DIALS_MAX).then(|| self.list.remove(1).0)
    }
}

/// An answer arrives.
#[derive(Debug, Default)]
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

/// A client has left its stream with audio or images, which is read to its last event.
#[derive(Debug)]
pub(crate) struct Lingering {
    pub(super) answering: Answering,
    /// When the wait for the last event ends.
    pub(super) until: Mono,
    /// Bytes of events that may still be read.
    pub(super) left: usize,
    /// Characters of base64 since the last other byte.
    pub(super) run: u32,
}

/// The outgoing request while its answer arrives.
#[derive(Debug, Default)]
pub(crate) enum Draft {
    /// Another attempt may follow.
    Kept(Outgoing),
    /// No other attempt may follow, but the rest of the request is still being written.
    Leaving(Outgoing),
    /// The draft is dropped: part of the answer has been sent.
    #[default]
    Gone,
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
    /// Audio, or its text, passed on as it arrives; the bytes so far, and the tokens of a text.
    Bytes { came: u64, words: Option<Box<Estimator>> },
    /// A failed answer, collected for its message.
    Error {
        buf: Buf,
        status: u16,
        /// It decides who has to wait after a 429.
        open: bool,
        retry_after: Option<NonZeroU32>,
    },
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

/// How the last output is sent.
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

/// The next step of a request.
#[derive(Debug)]
pub(crate) enum NextStep {
    /// The request is in this state, and the driver performs this effect.
    Enter(State, Effect),
    /// Write the body for the first target that it can be written for.
    Write(Outgoing),
    /// The body is written: charge the request, and reserve its maximum use. `others_counted`: the requests of its key
    /// that were admitted by a bound have counted their maximum use.
    Reserve { draft: Outgoing, others_counted: bool },
    /// The request is admitted: start its clocks and its first attempt.
    Serve(Outgoing),
    /// Have a helper thread write the body for the chosen target; the attempt before, and its target.
    Translate(Outgoing, Option<Box<(Fault, u32)>>),
    /// The body for the chosen target is written: begin an attempt.
    Attempt(Outgoing),
    /// An attempt has failed.
    Failed(Outgoing, Box<Fault>),
    /// Choose another target after this failure.
    Another(Outgoing, Box<Fault>),
    /// No other target is free: wait for one, if that can help.
    Wait(Outgoing, Box<Fault>),
    /// No other target is left.
    LastResort(Outgoing, Box<Fault>),
    /// End the request: another target would not help.
    GiveUp(Outgoing, Box<Fault>),
    /// End the request in this state.
    End(State, Box<Fault>),
    /// End the request in this state after the good part of its stream, which is in the output and sent like this.
    EndAfter(State, Box<Fault>, Forward),
}

impl NextStep {
    /// Refuses a request that has not been admitted.
    pub(super) fn refuse(draft: Outgoing, refusal: Refusal) -> NextStep {
        NextStep::Enter(State::Reading { draft }, Effect::refuse(refusal))
    }
}

impl Exchange {
    /// The exchange of a request whose head is complete or invalid.
    pub(crate) fn new(client: ClientId, meta: RequestMeta, cx: &mut Cx) -> Exchange {
        if cx.report.recorder.is_asleep() {
            cx.close_minute();
        }
        let request = Request {
            client,
            id: RequestId::fresh(&mut cx.rng),
            meta,
            found: Identified::default(),
            cors: CorsPolicy::Off,
            asked: None,
            extras: None,
            setup: cx.setup.clone(),
            received: cx.now.mono,
            read: Mono::NEVER,
            queued: 0,
        };
        let attempt = Attempt::default();
        let job = RequestJob { request, admitted: None, attempt, notes: RequestNotes::default() };
        Exchange { job, state: State::Ended }
    }

    /// Starts the lookup of its key in the ledger; the checks that follow from the head wait for that.
    pub(crate) fn identify(&mut self, head: &RequestHead, now: Mono) {
        self.state = State::Identifying { head: Box::new(*head), by: now.after(LOOKUP_TIMEOUT) };
    }
}
