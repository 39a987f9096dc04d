//! Events and effects of an exchange: the boundary between the state machine and the driver.

use super::fault::FaultKind;
use crate::base::buf::Buf;
use crate::base::seam::DialError;
use crate::base::time::Mono;
use crate::dialect::{Invalid, OwnedTarget};
use crate::gateway::cx::Cx;
use crate::gateway::ids::{ExchangeId, ProviderId};
use crate::gateway::orders::offload::Product;
use crate::gateway::provider::request::OutgoingRequest;
use crate::policy::ledger::{Ask, Ruling};
use crate::policy::refusal::{Refusal, RefusalKind};
use crate::policy::usage::Usage;
use crate::wire::Shape;
use crate::wire::head::{RequestHead, ResponseHead};
use std::net::SocketAddr;
use std::num::NonZeroU64;

/// An event that the driver reports to an exchange.
#[derive(Debug)]
pub(crate) enum ExchangeEvent<'a> {
    /// The lookup of its key has finished; `answered`: the ledger has answered, and the key store has the result.
    LookedUp { answered: bool },
    /// More of the body has arrived.
    Body {
        /// True for the last part of it.
        complete: bool,
    },
    /// The body cannot be accepted, or does not arrive.
    Refused(Box<Refusal>),
    /// A large request has been translated by a helper thread.
    Translated { draft: Box<OutgoingRequest>, built: Result<(), Invalid> },
    /// Count the prompt's tokens: its upper bound is not enough any more.
    Count,
    /// Other requests of its key have counted theirs: admit or refuse it now.
    Counted,
    /// The shared ledger has answered.
    Ruled(&'a Ask, Ruling),
    /// The request is first in its queue, and a slot is free.
    Place,
    /// The DNS lookup of its provider's host has finished: its addresses are known, or why it failed.
    Named { failed: Option<&'static str> },
    /// The dialed connection is established.
    Dialed(ProviderId),
    /// The dial failed.
    DialFailed(ProviderId, DialError),
    /// The secret that the provider has refused has been read again.
    Renewed,
    /// The head of the response, and the bytes that it refers to.
    Head(&'a ResponseHead, &'a [u8]),
    /// A complete, non-streamed answer at once, see [`super::state::Answering::reads_at_once`].
    Whole(&'a [u8]),
    /// The body has ended as its framing announced.
    BodyEnd,
    /// The connection ended too early, or the response cannot be understood. `reused`: it had served before.
    Failed { kind: FaultKind, reused: bool },
    /// There is room again for the provider's answer.
    Room,
    /// The client reads again.
    Drained,
    /// A helper thread has finished its job; `None` if a bug lost the job.
    Offloaded(Option<Box<Product>>),
    /// The usage record is committed.
    Committed,
    /// The usage record is not committed, and will not be in time.
    NotCommitted,
    /// A deadline of its own may have expired.
    Due(Flow),
    /// The client has disconnected.
    Left,
    /// The drain time is over.
    Stopped,
}

/// Reading at both ends of a response.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Flow {
    /// The provider is not read at the moment, since the client does not read or no buffer is free.
    pub(crate) unread: bool,
    /// The client has read everything that was sent.
    pub(crate) drained: bool,
}

/// Message, output and services, which the driver lends to an exchange that handles an event.
pub(crate) struct DriverCall<'a> {
    pub(crate) message: ClientMessage<'a>,
    pub(crate) out: &'a mut Output,
    pub(crate) cx: &'a mut Cx,
}

/// The driver's next action.
#[derive(Debug)]
pub(crate) enum Effect {
    /// Do nothing; no deadline has become earlier.
    Nothing,
    /// Set the timer of the connection again: a deadline may have become earlier.
    Rearm,
    /// Lend the client's message out to be translated, with this draft.
    Translate(Box<Translate>),
    /// Have the bounded requests of its key count their prompts, then report [`ExchangeEvent::Counted`] to this one.
    CountOthers,
    /// Write the request on this connection.
    Send(ProviderId),
    /// Dial a connection for the request.
    Dial(Dial),
    /// The request's bytes are not needed any more.
    Release,
    /// Wait for the rest of the answer on this connection until then, without the client.
    Linger(ProviderId, Mono),
    /// The connection has been released and may serve again: report the end of the body once more.
    Again,
    /// Send the events in the output.
    Forward(Forward),
    /// Send this event, which is too large to be copied.
    ForwardBulk(Forward, Vec<u8>),
    /// Send the events in the output and end the stream.
    End(Forward, Outcome),
    /// Send the complete answer in the output.
    Answer(Outcome),
    /// Send this complete answer, which is too large to be copied; it includes the end of its one chunk.
    AnswerBulk(Outcome, Buf),
    /// Respond with an error of Tollgate.
    Refuse(Box<Refusal>, Outcome),
    /// Report the limits of the key.
    Quota,
    /// Authorize the head again.
    Authorize(Box<RequestHead>),
    /// The client disconnected; no response is sent.
    Gone(Outcome),
    /// Disconnect the client: its answer is broken, and an error cannot be added to it.
    Cut(Outcome),
}

impl Effect {
    /// Answers with an error before anything was admitted.
    pub(super) fn refuse(refusal: Refusal) -> Effect {
        let outcome = Outcome::refused(&refusal);
        Effect::Refuse(Box::new(refusal), outcome)
    }

    /// Sets the timer again if the deadline `by`, which replaces `former`, is earlier.
    #[inline]
    pub(super) fn rearm_if_earlier(by: Mono, former: Mono) -> Effect {
        if by < former { Effect::Rearm } else { Effect::Nothing }
    }

    /// True if the exchange is over, or its head is authorized again.
    pub(crate) fn ends(&self) -> bool {
        use Effect::{Answer, AnswerBulk, Authorize, Cut, End, Gone, Quota, Refuse};
        matches!(self, Answer(_) | AnswerBulk(..) | Authorize(_) | Cut(_) | End(..) | Gone(_) | Quota | Refuse(..))
    }

    /// Events are to be sent, and nothing else follows.
    #[inline]
    pub(crate) fn is_mere_news(&self) -> bool {
        matches!(self, Effect::Forward(forward) if forward.is_mere_news())
    }
}

/// Side effects of sending events.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct Forward {
    /// The head of the answer is sent before them.
    pub(crate) opens: bool,
    /// The request's bytes are not needed any more.
    pub(crate) commits: bool,
    /// A deadline has become earlier.
    pub(crate) rearms: bool,
    /// The events are captured.
    pub(crate) captured: bool,
}

impl Forward {
    /// True if events are sent and nothing else follows.
    #[inline]
    pub(crate) fn is_mere_news(self) -> bool {
        !self.opens && !self.commits && !self.rearms && !self.captured
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
    /// Deadline of the dial, unless its exchange gives up earlier.
    pub(crate) until: Mono,
}

/// A request to be translated, or to be read again as one of format `from` if it has no target yet.
#[derive(Debug)]
pub(crate) struct Translate {
    pub(crate) draft: Box<OutgoingRequest>,
    pub(crate) from: Shape,
    pub(crate) target: Option<Box<OwnedTarget>>,
    pub(crate) serial: NonZeroU64,
}

/// The part of the client's message that an exchange may read while it handles an event.
#[derive(Copy, Clone, Debug)]
pub(crate) struct ClientMessage<'a> {
    /// Handle of the exchange, for components that answer it.
    pub(crate) exchange: ExchangeId,
    /// The request's head.
    pub(crate) head: &'a [u8],
    /// The request's body, as far as it has arrived.
    pub(crate) body: &'a [u8],
    /// Bytes of storage that the body takes.
    pub(crate) storage: usize,
}

/// The status under which a request whose client left is logged and counted.
pub(super) const CLIENT_LEFT: u16 = 499;

/// Result of an exchange.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Outcome {
    /// Status that the client saw, or would have seen; for a stream that ended in an error event, the status of that
    /// error.
    pub(crate) status: u16,
    /// Type of the error that was reported, if any.
    pub(crate) error: Option<RefusalKind>,
    /// Usage that an admitted request is charged.
    pub(crate) usage: Usage,
}

impl Outcome {
    /// An answer that costs nothing.
    pub(crate) fn ok() -> Outcome {
        Outcome { status: 200, error: None, usage: Usage::default() }
    }

    /// An error of Tollgate that costs nothing.
    pub(crate) fn refused(refusal: &Refusal) -> Outcome {
        Outcome { status: refusal.status, error: Some(refusal.kind), usage: Usage::default() }
    }
}

/// Results of an event besides its [`super::Effect`].
#[derive(Debug, Default)]
pub(crate) struct Output {
    /// An answer, or events of a stream, before they are framed into the client's unsent bytes.
    pub(crate) bytes: Vec<u8>,
    /// The connections that the exchange has released, each with true if the answer is complete.
    released: Vec<(ProviderId, bool)>,
}

impl Output {
    /// Releases a connection to a provider. `complete`: the exchange needs no more of the answer.
    pub(super) fn release(&mut self, provider: ProviderId, complete: bool) {
        self.released.push((provider, complete));
    }

    /// True if a connection is released.
    #[inline]
    pub(crate) fn releases(&self) -> bool {
        !self.released.is_empty()
    }

    /// Takes a released connection.
    #[inline]
    pub(crate) fn take_released(&mut self) -> Option<(ProviderId, bool)> {
        self.released.pop()
    }
}
