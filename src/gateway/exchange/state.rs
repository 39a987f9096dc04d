//! Where an exchange stands. What a state owns is gone when the state is; what outlives states has a place of its own.

use super::authorize::{Endpoint, Identified};
use super::fault::Fault;
use crate::base::buf::Buf;
use crate::base::limits::DONE_GRACE;
use crate::base::time::{Mono, Unix};
use crate::dialect::{ObservedUsage, Param, PromptTokens, ResponseIdentity, SseStream};
use crate::gateway::access_log::Said;
use crate::gateway::budget::Promise;
use crate::gateway::client::cors::CorsPolicy;
use crate::gateway::client::response::RequestId;
use crate::gateway::client::response::RequestMeta;
use crate::gateway::cx::Setup;
use crate::gateway::diagnosis::Diagnosis;
use crate::gateway::ids::{ClientId, ExchangeId, ProviderId};
use crate::gateway::provider::breaker::Begun;
use crate::gateway::provider::request::OutgoingRequest;
use crate::gateway::provider::rest::Needs;
use crate::policy::catalog::Model;
use crate::policy::meter::{Hold, Lease};
use crate::policy::usage::Usage;
use crate::wire::head::RequestHead;
use std::net::SocketAddr;
use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;

/// What is known from the head on.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) client: ClientId,
    pub(crate) id: RequestId,
    pub(crate) meta: RequestMeta,
    pub(crate) found: Identified,
    /// What browsers are told.
    pub(crate) cors: CorsPolicy,
    /// What the client says of itself and of whom it asks for; none where it says nothing of the kind.
    pub(crate) said: Option<Box<Said>>,
    /// The configuration that the request began with.
    pub(crate) setup: Arc<Setup>,
    /// When the head was complete.
    pub(crate) received: Mono,
    /// When the body was; `NEVER` before.
    pub(crate) read: Mono,
    /// Microseconds for which it has waited for places; 0 where it has not.
    pub(crate) queued: u32,
}

/// What the body asks for.
#[derive(Copy, Clone, Debug)]
pub(super) struct Asked {
    /// Index into the catalog.
    pub(super) model: u16,
    /// About how many tokens the prompt has, for allowances that providers tell of.
    pub(super) about: u32,
    /// Completion tokens that are reserved.
    pub(super) completion: u32,
    pub(super) stream: bool,
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

    /// What it takes of a provider's allowances.
    pub(super) fn needs(&self) -> Needs {
        let (prompt, completion) = (u64::from(self.about), u64::from(self.completion));
        [1, prompt + completion, prompt, completion]
    }
}

/// The right to be served, and its clocks.
#[derive(Debug)]
pub(super) struct Admitted {
    pub(super) hold: Hold,
    /// What a shared ledger has lent, to go back with the row.
    pub(super) lease: Option<Box<Lease>>,
    pub(super) at: Unix,
    /// `request_timeout` over all attempts, until a whole answer or a stream's first event has come.
    pub(super) until: Mono,
    /// When the next heartbeat is due.
    pub(super) beat: Mono,
}

/// Where an exchange stands; the table is in the module's documentation.
#[derive(Debug)]
pub(super) enum State {
    /// Its key is looked up in the ledger.
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
    /// It has ended, or is on its way from one state to another.
    Ended,
}

/// A helper thread writes the body for the present target.
#[derive(Debug)]
pub(super) struct Translating {
    pub(super) at: Attempt,
    pub(super) serial: NonZeroU64,
    /// What the client's body was promised, while its draft is away.
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
    pub(super) at: Attempt,
    pub(super) lease: Box<Lease>,
    /// When: an admission counts from there.
    pub(super) asked: Unix,
    pub(super) by: Mono,
}

/// It waits for a place at a target of its model, in the queue of that.
#[derive(Debug)]
pub(super) struct Queued {
    /// Without the body for a target: that is written when one is there.
    pub(super) draft: Box<OutgoingRequest>,
    pub(super) at: Attempt,
    /// Its own name.
    pub(super) own: ExchangeId,
    /// Since when, but for what has been added to `Request::queued` already.
    pub(super) since: Mono,
    pub(super) by: Mono,
}

/// An attempt at a target is under way, and nothing has come of it.
#[derive(Debug)]
pub(super) struct Attempting {
    pub(super) draft: Box<OutgoingRequest>,
    pub(super) at: Attempt,
    pub(super) half: Half,
    pub(super) by: Mono,
}

/// How far an attempt has come.
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
    /// To the present address; `None` once it has failed, and before it has a name.
    pub(super) newest: Option<ProviderId>,
    /// One that is slow, and how many addresses were tried before its own.
    pub(super) earlier: Option<(ProviderId, u8)>,
}

/// An answer comes.
#[derive(Debug)]
pub(super) struct Answering {
    pub(super) at: Attempt,
    /// `None`: it has given all that is needed.
    pub(super) provider: Option<ProviderId>,
    pub(super) body: Body,
    pub(super) draft: Draft,
    /// The end of a stream, which waits for its row.
    pub(super) last: Buf,
    /// When the provider is late.
    pub(super) by: Mono,
    /// Milliseconds for which the provider of a stream may be silent; kept here, since each event asks for it.
    pub(super) idle: u32,
    /// The provider is not read until there is room.
    pub(super) paused: bool,
    /// Its key held more than its share, and other answers, before the last piece of it came.
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
    /// None may follow, but the rest of it is still being written.
    Leaving(Box<OutgoingRequest>),
    /// It is gone: part of the answer has been given.
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
        /// Its length as far as it is announced.
        announced: Option<NonZeroU32>,
    },
    /// A failed answer, collected for its message.
    Error { buf: Buf, status: u16, retry_after: Option<NonZeroU32> },
    /// A helper thread has it; what had been observed before.
    Offloaded { serial: NonZeroU64, observed: Box<ObservedUsage> },
}

/// A complete answer that waits until its row is in the ledger.
#[derive(Debug)]
pub(super) struct Committing {
    pub(super) at: Attempt,
    pub(super) last: Last,
    pub(super) usage: Usage,
    pub(super) by: Mono,
}

/// What goes out when the row is safe.
#[derive(Debug)]
pub(super) enum Last {
    /// The end of a stream.
    Events(Buf),
    /// A whole answer.
    Whole(Buf),
    /// A whole answer that is sent from where it lies.
    Bulk(Buf),
}

/// One request and all that belongs to it.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) request: Request,
    pub(super) asked: Option<Asked>,
    pub(super) admitted: Option<Admitted>,
    pub(super) state: State,
    /// What the operator is told, where it did not go as usual.
    pub(super) diagnosis: Option<Box<Diagnosis>>,
}

/// How the attempts at a model's targets stand.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Attempt {
    /// Index into the model's targets.
    pub(super) target: u32,
    /// Attempts so far, a free one on a fresh connection not counted.
    pub(super) attempts: u8,
    /// Targets tried so far, as bits.
    pub(super) tried: u64,
    /// Addresses of the target's host tried so far, in two bits; above them the index of the one that was first.
    pub(super) addresses: u8,
    /// A kept connection turned out to be closed: the free attempt is spent, and only a fresh one will do.
    pub(super) fresh_only: bool,
    /// A secret that was refused has been asked for again for it: that is done once.
    pub(super) renewed: bool,
    /// The head of a stream has been sent, with the first event or a heartbeat.
    pub(super) opened: bool,
    /// As what the present one has begun: whether it tries a target after its rest.
    pub(super) begun_as: Begun,
    /// It has no answer yet: what it takes of its provider's allowances counts as asked for.
    pub(super) unheard: bool,
    /// It counts as in flight at its target.
    pub(super) flies: bool,
    /// When the present one began; once the first event of its stream has come, when that did.
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

impl Attempt {
    /// Addresses tried before the present one.
    pub(super) fn order(&self) -> u8 {
        self.addresses & 3
    }

    /// The address that is tried after so many others.
    pub(super) fn address(&self, order: u8, known: &[SocketAddr]) -> Option<SocketAddr> {
        known.get((usize::from(self.addresses >> 2) + usize::from(order)) % known.len().max(1)).copied()
    }
}

impl Default for Attempt {
    fn default() -> Attempt {
        Attempt {
            target: 0,
            attempts: 0,
            tried: 0,
            addresses: 0,
            fresh_only: false,
            renewed: false,
            opened: false,
            begun_as: Begun::default(),
            unheard: false,
            flies: false,
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

    /// What an answer is to say of itself.
    #[inline]
    pub(super) fn identity<'a>(&'a self, asked: &Asked, prompt: PromptTokens<'a>, now: Unix) -> ResponseIdentity<'a> {
        let model = self.model(asked);
        let sets = model.is_some_and(|model| !(model.set_params.is_empty() && model.default_params.is_empty()));
        let hides = if sets { self.hides(asked) } else { &[] };
        let model = model.map_or("", |model| &model.id);
        ResponseIdentity { id: self.id.text(), model, created: now.secs(), prompt, hides }
    }

    /// What the configuration writes into requests for the model, at all of its targets.
    #[cold]
    fn hides(&self, asked: &Asked) -> &[Param] {
        self.setup.requests.capabilities(asked.model as usize, 0).map_or(&[], |takes| &takes.params)
    }
}
