//! States of an exchange. A state owns its data, which is dropped with the state; data that outlives a state is kept in
//! the exchange.

use super::authorize::{Endpoint, Identified};
use super::fault::Fault;
use crate::base::buf::Buf;
use crate::base::limits::DONE_GRACE;
use crate::base::time::{Mono, Unix};
use crate::dialect::{ObservedUsage, Param, PromptTokens, ResponseIdentity, SseStream};
use crate::gateway::access_log::ClientAttribution;
use crate::gateway::budget::Promise;
use crate::gateway::client::cors::CorsPolicy;
use crate::gateway::client::response::RequestId;
use crate::gateway::client::response::RequestMeta;
use crate::gateway::cx::Setup;
use crate::gateway::diagnosis::Diagnosis;
use crate::gateway::ids::{ClientId, ExchangeId, ProviderId};
use crate::gateway::provider::breaker::Flight;
use crate::gateway::provider::rate_limits::Needs;
use crate::gateway::provider::request::OutgoingRequest;
use crate::policy::catalog::Model;
use crate::policy::meter::{Hold, Lease};
use crate::policy::usage::Usage;
use crate::wire::head::RequestHead;
use std::net::SocketAddr;
use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;

/// Facts that are known once the head is complete.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) client: ClientId,
    pub(crate) id: RequestId,
    pub(crate) meta: RequestMeta,
    pub(crate) found: Identified,
    /// CORS headers for browsers.
    pub(crate) cors: CorsPolicy,
    /// Attribution that the client supplied, if any.
    pub(crate) said: Option<Box<ClientAttribution>>,
    /// The configuration that the request began with.
    pub(crate) setup: Arc<Setup>,
    /// When the head was complete.
    pub(crate) received: Mono,
    /// When the body was complete; `NEVER` before.
    pub(crate) read: Mono,
    /// Microseconds for which it has waited for slots; 0 if it has not.
    pub(crate) queued: u32,
}

/// Properties of the request that the body sets.
#[derive(Copy, Clone, Debug)]
pub(super) struct Asked {
    /// Index into the catalog.
    pub(super) model: u16,
    /// Approximate number of tokens of the prompt, for the rate limits that providers report.
    pub(super) about: u32,
    /// Completion tokens that are reserved.
    pub(super) completion: u32,
    pub(super) stream: bool,
    /// The client wants the usage of its stream, with the cost.
    pub(super) show_usage: bool,
    /// Estimated tokens of the prompt; `None` as long as nothing depends on their number.
    pub(super) prompt: Option<NonZeroU32>,
}

impl Asked {
    /// Tokens of the prompt, which have been counted.
    pub(super) fn counted(&self) -> u64 {
        debug_assert!(self.prompt.is_some(), "nobody has counted the prompt");
        self.prompt.map_or(0, |prompt| prompt.get().into())
    }

    /// Share of a provider's rate limits that the request needs.
    pub(super) fn needs(&self) -> Needs {
        let (prompt, completion) = (u64::from(self.about), u64::from(self.completion));
        [1, prompt + completion, prompt, completion]
    }
}

/// Admission of a request, and its deadlines.
#[derive(Debug)]
pub(super) struct Admitted {
    pub(super) hold: Hold,
    /// Lease from the shared ledger, which is returned with the usage record.
    pub(super) lease: Option<Box<Lease>>,
    pub(super) at: Unix,
    /// `request_timeout` over all attempts, until a whole answer or a stream's first event has come.
    pub(super) until: Mono,
    /// When the next heartbeat is due.
    pub(super) beat: Mono,
}

/// State of an exchange; the table of transitions is in the module's documentation.
#[derive(Debug)]
pub(super) enum State {
    /// The ledger looks up the request's key.
    Identifying {
        head: Box<RequestHead>,
        by: Mono,
    },
    Reading {
        draft: Box<OutgoingRequest>,
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

/// A helper thread writes the body for the present target.
#[derive(Debug)]
pub(super) struct Translating {
    pub(super) serial: NonZeroU64,
    /// Memory reserved for the client's body, while its draft is lent.
    pub(super) promise: Promise,
    /// The attempt before, and its target; `None` before the first.
    pub(super) failed: Option<Box<(Fault, u32)>>,
    pub(super) by: Mono,
}

/// A shared ledger is asked: for admission, or how the key stands.
#[derive(Debug)]
pub(super) struct Reserving {
    /// `None`: it is asked only how the key stands.
    pub(super) draft: Option<Box<OutgoingRequest>>,
    pub(super) lease: Box<Lease>,
    /// When: an admission counts from there.
    pub(super) asked: Unix,
    pub(super) by: Mono,
}

/// The request waits for a slot at a target of its model, in that model's queue.
#[derive(Debug)]
pub(super) struct Queued {
    /// The draft has no body for a target yet: the body is written once a slot is free.
    pub(super) draft: Box<OutgoingRequest>,
    /// Handle of this exchange.
    pub(super) own: ExchangeId,
    /// When the wait began; time that is already in `Request::queued` does not count.
    pub(super) since: Mono,
    pub(super) by: Mono,
}

/// An attempt at a target is under way and has no answer yet.
#[derive(Debug)]
pub(super) struct Attempting {
    pub(super) draft: Box<OutgoingRequest>,
    pub(super) half: Half,
    pub(super) by: Mono,
}

/// Progress of an attempt.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Half {
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
    /// The connection that is used or dialed.
    pub(super) fn provider(self) -> Option<ProviderId> {
        match self {
            Half::Resolving | Half::Renewing => None,
            Half::Dialing(Dials { newest, earlier }) => newest.or(earlier.map(|(earlier, _)| earlier)),
            Half::Open(provider) => Some(provider),
        }
    }
}

/// The dials of an attempt. One that nobody waits for any more ends with its `connect_timeout` at the latest.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct Dials {
    /// Dial to the present address; `None` once it has failed, and before it has a handle.
    pub(super) newest: Option<ProviderId>,
    /// An earlier, slow dial, and how many addresses were tried before its own.
    pub(super) earlier: Option<(ProviderId, u8)>,
}

/// An answer arrives.
#[derive(Debug)]
pub(super) struct Answering {
    /// `None` once the provider's connection is not needed any more.
    pub(super) provider: Option<ProviderId>,
    pub(super) body: Body,
    pub(super) draft: Draft,
    /// The end of a stream, which waits for its usage record.
    pub(super) last: Buf,
    /// When the provider is late.
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
    /// When the provider of a stream is late from here on: soon, once it has said that it has finished.
    pub(super) fn late(&self, finish_seen: bool, now: Mono) -> Mono {
        const GRACE: u32 = DONE_GRACE.as_millis() as u32;
        now.after_ms(if finish_seen { GRACE.min(self.idle) } else { self.idle })
    }
}

/// The request that an answer is given to.
#[derive(Debug)]
pub(super) enum Draft {
    /// Another attempt may follow.
    Kept(Box<OutgoingRequest>),
    /// No other attempt may follow, but the rest of the request is still being written.
    Leaving(Box<OutgoingRequest>),
    /// The draft is dropped: part of the answer has been sent.
    Gone,
}

/// The body of an answer as it comes.
#[derive(Debug)]
pub(super) enum Body {
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
pub(super) struct Committing {
    pub(super) last: FinalOutput,
    pub(super) usage: Usage,
    pub(super) by: Mono,
}

/// Output that is sent once the usage record is committed.
#[derive(Debug)]
pub(super) enum FinalOutput {
    /// The end of a stream.
    Events(Buf),
    /// A whole answer.
    Whole(Buf),
    /// A whole answer that is sent from where it lies.
    Bulk(Buf),
}

/// A request and all of its state.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) request: Request,
    pub(super) asked: Option<Asked>,
    pub(super) admitted: Option<Admitted>,
    pub(super) attempt: Attempt,
    pub(super) state: State,
    /// Diagnosis for the operator, if the request did not go as usual.
    pub(super) diagnosis: Option<Box<Diagnosis>>,
}

/// The attempts at a model's targets. It outlives the states that make them; all zeros before a target is chosen.
#[derive(Debug)]
pub(crate) struct Attempt {
    /// Index into the model's targets.
    pub(super) target: u32,
    /// Times that the request was sent, or was to be.
    pub(super) attempts: u8,
    /// Targets tried so far, as bits.
    pub(super) tried: u64,
    pub(super) addresses: TriedAddresses,
    /// Attempts on kept connections that turned out to be closed, which are free; see [`Attempt::free`].
    pub(super) stale: u8,
    /// A secret that was refused has been asked for again for it: that is done once.
    pub(super) renewed: bool,
    /// The head of a stream has been sent, with the first event or a heartbeat.
    pub(super) opened: bool,
    /// The present attempt, as long as it counts as in flight at its target.
    pub(super) flight: Option<Flight>,
    /// When the present attempt began; once the first event of its stream has arrived, the time of that event.
    pub(super) begun: Mono,
    /// When the request had left, to the last target that it was sent to; `NEVER` before.
    pub(super) sent: Mono,
    /// When the present attempt's answer began; `NEVER` before.
    pub(super) first: Mono,
    /// The first event of a stream has come.
    pub(super) has_events: bool,
    /// Events of a response that have gone out before any came, as signs of life.
    pub(super) told: u16,
}

/// The present target was tried on a kept connection that turned out to be closed: only a fresh one will do.
const FRESH_ONLY: u8 = 1 << 7;

impl Attempt {
    /// How many of the attempts do not count for the configured number.
    pub(super) fn free(&self) -> u8 {
        self.stale & !FRESH_ONLY
    }

    /// The present target is not tried on a kept connection again.
    pub(super) fn needs_fresh(&self) -> bool {
        self.stale & FRESH_ONLY != 0
    }

    /// The present attempt was made on a kept connection that turned out to be closed.
    pub(super) fn was_stale(&mut self) {
        self.stale = (self.stale + 1) | FRESH_ONLY;
    }

    /// Another target follows, which may be tried on a kept connection.
    pub(super) fn may_reuse(&mut self) {
        self.stale &= !FRESH_ONLY;
    }

    /// The next attempt goes to this target.
    pub(super) fn aim(&mut self, target: usize) {
        self.target = target as u32;
        self.tried |= self.bit();
        self.may_reuse();
    }

    /// The target, as a bit.
    pub(super) fn bit(&self) -> u64 {
        1u64.checked_shl(self.target).unwrap_or(0)
    }

    /// An attempt that has not begun, for a request that cannot be written for those of the targets that were tried
    /// before the present one.
    pub(super) fn fresh(&self) -> Attempt {
        Attempt { tried: self.tried & !self.bit(), ..Attempt::default() }
    }
}

/// Addresses of a target's host tried so far, in two bits; above them the index of the one that was first.
#[derive(Copy, Clone, Default, Debug)]
pub(super) struct TriedAddresses(pub(super) u8);

impl TriedAddresses {
    /// Addresses tried before the present one.
    pub(super) fn order(self) -> u8 {
        self.0 & 3
    }

    /// The address that is tried after so many others.
    pub(super) fn address(self, order: u8, known: &[SocketAddr]) -> Option<SocketAddr> {
        known.get((usize::from(self.0 >> 2) + usize::from(order)) % known.len().max(1)).copied()
    }
}

impl Default for Attempt {
    fn default() -> Attempt {
        Attempt {
            target: 0,
            attempts: 0,
            tried: 0,
            addresses: TriedAddresses::default(),
            stale: 0,
            renewed: false,
            opened: false,
            flight: None,
            begun: Mono::NEVER,
            sent: Mono::NEVER,
            first: Mono::NEVER,
            has_events: false,
            told: 0,
        }
    }
}

impl Request {
    /// The endpoint as metrics and log lines call it.
    #[inline]
    pub(super) fn endpoint_name(&self) -> &'static str {
        self.found.endpoint.map_or("none", Endpoint::name)
    }

    /// The model that `asked` names.
    pub(super) fn model(&self, asked: &Asked) -> Option<&Model> {
        self.setup.config.catalog.get(asked.model as usize)
    }

    /// Identity of an answer: its id, model and time.
    #[inline]
    pub(super) fn identity<'a>(&'a self, asked: &Asked, prompt: PromptTokens<'a>, now: Unix) -> ResponseIdentity<'a> {
        let model = self.model(asked);
        let sets = model.is_some_and(|model| !(model.set_params.is_empty() && model.default_params.is_empty()));
        let hides = if sets { self.hides(asked) } else { &[] };
        let model = model.map_or("", |model| &model.id);
        ResponseIdentity { id: self.id.text(), model, created: now.secs(), prompt, hides }
    }

    /// Parameters that the configuration writes into requests for the model, at all of its targets.
    #[cold]
    fn hides(&self, asked: &Asked) -> &[Param] {
        self.setup.requests.capabilities(asked.model as usize, 0).map_or(&[], |takes| &takes.params)
    }
}
