//! What an exchange is told, and what follows: the boundary between the machine and the driver.

use super::fault::FaultKind;
use crate::base::buf::Buf;
use crate::base::seam::DialError;
use crate::base::time::Mono;
use crate::dialect::{Invalid, OwnedTarget};
use crate::gateway::ids::{ExchangeId, ProviderId};
use crate::gateway::offload::Product;
use crate::gateway::provider::request::OutgoingRequest;
use crate::policy::ask::{Ask, Ruling};
use crate::policy::refusal::{Refusal, RefusalKind};
use crate::policy::usage::Usage;
use crate::wire::Dialect;
use crate::wire::head::{RequestHead, ResponseHead};
use std::net::SocketAddr;
use std::num::NonZeroU64;

/// What an exchange is told.
#[derive(Debug)]
pub(crate) enum Event<'a> {
    /// Its key was looked up; `answered`: the ledger has said what it knows, which is known now.
    LookedUp { answered: bool },
    /// More of the body has come.
    Body {
        /// The last of it.
        complete: bool,
    },
    /// The body cannot be taken, or does not come.
    Refused(Box<Refusal>),
    /// A large request has been translated by a helper thread.
    Translated { draft: Box<OutgoingRequest>, built: Result<(), Invalid> },
    /// What it may use is to be counted: a bound does not do any more.
    Count,
    /// Others of its key have been told so: it is to be admitted or refused now.
    Counted,
    /// A shared ledger has answered.
    Ruled(&'a Ask, Ruling),
    /// It is its turn, and there is a place.
    Place,
    /// The addresses of some host have come, or will not, and why.
    Named { host: &'a str, port: u16, failed: Option<&'static str> },
    /// The dialed connection stands.
    Dialed(ProviderId),
    /// It does not.
    DialFailed(ProviderId, DialError),
    /// The secret that the provider has refused was asked for again.
    Renewed,
    /// All of the request has left.
    Sent,
    /// The head of the answer, and the bytes that it points into.
    Head(&'a ResponseHead, &'a [u8]),
    /// All of a whole answer at once, see [`super::state::Exchange::reads_at_once`].
    Whole(&'a [u8]),
    /// The body has ended as its framing promised.
    BodyEnd,
    /// The connection has ended too early, or says what cannot be understood. `reused`: it had served before.
    Failed { kind: FaultKind, reused: bool },
    /// There is room again for what the provider has to say.
    Room,
    /// The client reads again.
    Drained,
    /// What was given to a helper thread is done; `None` if it was lost to a bug.
    Offloaded(Option<Box<Product>>),
    /// Its row is safe.
    Committed,
    /// Its row is not safe, and will not be in time.
    NotCommitted,
    /// A deadline of its own may have come. `unread`: the provider is not read at the moment, since the client does not
    /// read or nothing is free of the buffers; `drained`: the client has read all that it was sent.
    Due { unread: bool, drained: bool },
    /// The client has left.
    Left,
    /// The time for what still runs is over.
    Stopped,
}

/// What follows.
#[derive(Debug)]
pub(crate) enum Effect {
    /// Nothing, and no deadline has become earlier.
    Nothing,
    /// Nothing but other deadlines.
    Wait,
    /// Lend the client's message out to be translated, with this draft.
    Translate(Box<Translate>),
    /// Tell those of its key to count that were admitted by a bound, then this one that they have.
    CountOthers,
    /// Write the request on this kept connection.
    Send(ProviderId),
    /// Dial a connection for it.
    Dial(Dial),
    /// Write the request on the connection that was dialed.
    Begin,
    /// The request's bytes are not needed any more.
    Release,
    /// Its connection has been let go of and may serve again: tell it of the end of the body once more.
    Again,
    /// Send the events in `cx.out`.
    Forward(Forward),
    /// Send this event, which is too large to be copied.
    ForwardBulk(Forward, Vec<u8>),
    /// Send the events in `cx.out` and end the stream.
    End(Forward, Outcome),
    /// Send the whole answer in `cx.out`.
    Answer(Outcome),
    /// Send this whole answer, which is too large to be copied; it has the end of its one chunk with it.
    AnswerBulk(Outcome, Buf),
    /// Answer with an error of ours.
    Refuse(Box<Refusal>, Outcome),
    /// Say how the key stands.
    Quota,
    /// Look at the head again.
    Authorize(Box<RequestHead>),
    /// Nobody is there to be answered.
    Gone(Outcome),
}

impl Effect {
    /// Events are to be sent, and nothing else follows.
    #[inline]
    pub(crate) fn is_mere_news(&self) -> bool {
        matches!(self, Effect::Forward(forward) if forward.is_mere_news())
    }
}

/// How events are sent.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct Forward {
    /// The head of the answer goes before them.
    pub(crate) opens: bool,
    /// The request's bytes are not needed any more.
    pub(crate) commits: bool,
    /// A deadline has become earlier.
    pub(crate) waits: bool,
}

impl Forward {
    /// They are sent, and nothing else follows.
    #[inline]
    pub(crate) fn is_mere_news(self) -> bool {
        !self.opens && !self.commits && !self.waits
    }
}

/// A connection to be dialed.
#[derive(Debug)]
pub(crate) struct Dial {
    /// Index into the providers of the exchange's configuration.
    pub(crate) provider: usize,
    pub(crate) addr: SocketAddr,
    pub(crate) authority: Option<u32>,
    /// The exchange's configuration is the present one.
    pub(crate) present: bool,
    /// It is given up then, unless its exchange does so before.
    pub(crate) until: Mono,
}

/// A request to be translated.
#[derive(Debug)]
pub(crate) struct Translate {
    pub(crate) draft: Box<OutgoingRequest>,
    pub(crate) from: Dialect,
    pub(crate) target: Box<OwnedTarget>,
    pub(crate) serial: NonZeroU64,
}

/// What an exchange may look at of its client while it is told something.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Message<'a> {
    /// The name of the exchange, for those who answer it.
    pub(crate) exchange: ExchangeId,
    /// The request's head.
    pub(crate) head: &'a [u8],
    /// Its body, as far as it has come.
    pub(crate) body: &'a [u8],
    /// Bytes of storage that the body takes.
    pub(crate) storage: usize,
}

/// How an exchange has gone.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Outcome {
    /// The status that the client saw, or would have seen; of a stream that ended in an error event that of the error.
    pub(crate) status: u16,
    /// Type of the error that was told, if one was.
    pub(crate) error: Option<RefusalKind>,
    /// What an admitted request is charged.
    pub(crate) usage: Usage,
}

impl Outcome {
    /// An answer that costs nothing.
    pub(crate) fn ok() -> Outcome {
        Outcome { status: 200, error: None, usage: Usage::default() }
    }

    /// An error of ours that costs nothing.
    pub(crate) fn refused(refusal: &Refusal) -> Outcome {
        Outcome { status: refusal.status, error: Some(refusal.kind), usage: Usage::default() }
    }
}
