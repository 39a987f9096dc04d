//! One request's life, from its head to its one end. A machine: it is told [`Event`]s and returns an [`Effect`]; it knows
//! neither sockets nor connections. Every way out passes [`Exchange::finish`]: the hold is settled, the row and the log
//! line are written exactly once.
//!
//! What each state owns is gone when the state is: a draft that is gone is the commit point.
//!
//! | state | event → next |
//! |---|---|
//! | Reading | Body → Reading, Translating, Reserving or Attempting; Refused → end; Due → end |
//! | Translating | Translated → Reserving or Attempting; Due → end |
//! | Reserving | Ruled → Attempting; Due → Attempting or end |
//! | Attempting | Named, Dialed, DialFailed, Sent, Failed, Due → Attempting; Head → Answering; Failed, Due → end |
//! | Answering | Sent, Head, Data, Room, Drained, Offloaded → Answering; BodyEnd, Data, Offloaded → Committing or end; Failed, Due → Attempting or end |
//! | Committing | Committed → end; Due → end |
//! | any | Left → end; Stopped → end |

mod attempt;
pub(crate) mod authorize;
pub(crate) mod fault;
mod finish;
mod intake;
mod mask;
mod reply;
mod reserve;
mod stream;

pub(crate) use attempt::Attempt;
pub(crate) use authorize::{Endpoint, Readiness};
pub(crate) use finish::Outcome;
pub(crate) use stream::Streams;

use super::budget::Promise;
use super::client::connection::RequestMeta;
use super::client::cors::CorsPolicy;
use super::client::response::{RequestId, printable};
use super::cx::{Cx, Setup};
use super::ids::{ClientId, ExchangeId, ProviderId};
use super::offload::Product;
use super::provider::request::OutgoingRequest;
use crate::base::buf::Buf;
use crate::base::limits::BODY_RATE_MIN;
use crate::base::seam::DialError;
use crate::base::text::looks_secret;
use crate::base::time::{Mono, Unix};
use crate::dialect::{Invalid, ObservedUsage, ResponseIdentity, SseStream};
use crate::policy::ask::{Ask, Ruling};
use crate::policy::catalog::{Model, Target};
use crate::policy::keys::Keys;
use crate::policy::meter::{Hold, Lease, Meter};
use crate::policy::refusal::Refusal;
use crate::policy::row::Running;
use crate::policy::usage::Usage;
use crate::wire::Dialect;
use crate::wire::head::{Field, RequestHead, ResponseHead};
use authorize::{AuthContext, Identified};
use fault::{Fault, FaultKind};
use std::net::SocketAddr;
use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;

/// Bytes of a client's own `x-request-id` that are logged.
const CLIENT_REQUEST_ID_MAX: usize = 128;

/// Whether a client's request id is or holds a key: ours or another service's, in the wrong place. It is not logged.
fn names_key(id: &[u8], prefix: &str) -> bool {
    let text = String::from_utf8_lossy(id);
    let mut words = text.split(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '-' | '_'));
    words.any(|word| looks_secret(word) || word.strip_prefix(prefix).is_some_and(|rest| rest.len() >= KEY_MIN))
}

/// Characters behind the prefix of our keys from which on a word looks like one.
const KEY_MIN: usize = 16;

/// What an exchange is told.
#[derive(Debug)]
pub(crate) enum Event<'a> {
    /// More of the body has come.
    Body {
        /// The last of it.
        complete: bool,
    },
    /// The body cannot be taken, or does not come.
    Refused(Refusal),
    /// A large request has been translated by a helper thread.
    Translated { draft: Box<OutgoingRequest>, built: Result<(), Invalid> },
    /// A shared ledger has answered.
    Ruled(&'a Ask, Ruling),
    /// The addresses of some host have come, or will not.
    Named { host: &'a str, port: u16, failed: bool },
    /// The dialed connection stands.
    Dialed,
    /// It does not.
    DialFailed(DialError),
    /// All of the request has left.
    Sent,
    /// The head of the answer, and the bytes that it points into.
    Head(&'a ResponseHead, &'a [u8]),
    /// A piece of the answer's body.
    Data(&'a [u8]),
    /// The body has ended as its framing promised.
    BodyEnd,
    /// The connection has ended too early, or says what cannot be understood. `reused`: it had served before.
    Failed { kind: FaultKind, reused: bool },
    /// There is room again for what the provider has to say.
    Room,
    /// The client reads again.
    Drained,
    /// What was given to a helper thread is done; `None` if it was lost to a bug.
    Offloaded(Option<Product>),
    /// Its row is safe.
    Committed,
    /// Its row is not safe, and will not be in time.
    NotCommitted,
    /// A deadline of its own may have come. `full`: the client has not read what it was sent; `drained`: it has read
    /// all of it.
    Due { full: bool, drained: bool },
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
    Refuse(Refusal, Outcome),
    /// Say how the key stands.
    Quota,
    /// Nobody is there to be answered.
    Gone(Outcome),
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

/// A connection to be dialed.
#[derive(Debug)]
pub(crate) struct Dial {
    /// Index into the providers of the exchange's configuration.
    pub(crate) provider: usize,
    pub(crate) addr: SocketAddr,
    pub(crate) authority: Option<u32>,
    /// The exchange's configuration is the present one.
    pub(crate) present: bool,
}

/// A request to be translated.
#[derive(Debug)]
pub(crate) struct Translate {
    pub(crate) draft: Box<OutgoingRequest>,
    pub(crate) from: Dialect,
    pub(crate) model: String,
    pub(crate) capabilities: crate::dialect::Capabilities,
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

/// What is known from the head on.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) client: ClientId,
    pub(crate) id: RequestId,
    pub(crate) meta: RequestMeta,
    pub(crate) found: Identified,
    /// What browsers are told.
    pub(crate) cors: CorsPolicy,
    /// The client's own request id, in printable form.
    pub(crate) client_request_id: Box<[u8]>,
    /// The configuration that the request began with.
    pub(crate) setup: Arc<Setup>,
    /// When the head was complete.
    pub(crate) received: Mono,
    /// When the body was; `NEVER` before.
    pub(crate) read: Mono,
}

/// What the body asks for.
#[derive(Copy, Clone, Debug)]
struct Asked {
    /// Index into the catalog.
    model: u32,
    stream: bool,
    show_usage: bool,
    /// Locally estimated prompt tokens.
    estimate: u64,
}

/// The right to be served, and its clocks.
#[derive(Debug)]
struct Admitted {
    hold: Hold,
    /// What a shared ledger has lent, to go back with the row.
    lease: Option<Box<Lease>>,
    at: Unix,
    /// `request_timeout` over all attempts, until a whole answer or a stream's first event has come.
    until: Mono,
    /// When the next heartbeat is due.
    beat: Mono,
}

/// Where an exchange stands; the table is in the module's documentation.
#[derive(Debug)]
enum State {
    Reading {
        draft: Box<OutgoingRequest>,
    },
    Translating(Translating),
    Reserving(Reserving),
    Attempting(Attempting),
    Answering(Answering),
    Committing(Committing),
    /// It has ended, or is on its way from one state to another.
    Ended,
}

/// A helper thread writes the body for the present target.
#[derive(Debug)]
struct Translating {
    at: Attempt,
    serial: NonZeroU64,
    /// What the client's body was promised, while its draft is away.
    promise: Promise,
    /// The attempt before, and its target; `None` before the first.
    failed: Option<Box<(Fault, u32)>>,
    by: Mono,
}

/// A shared ledger is asked: for admission, or how the key stands.
#[derive(Debug)]
struct Reserving {
    /// `None`: it is asked only how the key stands.
    draft: Option<Box<OutgoingRequest>>,
    at: Attempt,
    lease: Box<Lease>,
    /// When: an admission counts from there.
    asked: Unix,
    by: Mono,
}

/// An attempt at a target is under way, and nothing has come of it.
#[derive(Debug)]
struct Attempting {
    draft: Box<OutgoingRequest>,
    at: Attempt,
    half: Half,
    by: Mono,
}

/// How far an attempt has come.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Half {
    /// The host's addresses are awaited.
    Resolving,
    /// A connection is dialed.
    Dialing(ProviderId),
    /// The request is written, or its answer awaited.
    Open(ProviderId),
}

/// An answer comes.
#[derive(Debug)]
struct Answering {
    at: Attempt,
    /// `None`: it has given all that is needed.
    provider: Option<ProviderId>,
    body: Body,
    draft: Draft,
    /// The end of a stream, which waits for its row.
    last: Buf,
    /// When the provider is late.
    by: Mono,
    /// The provider is not read until there is room.
    paused: bool,
}

/// The request that an answer is given to.
#[derive(Debug)]
enum Draft {
    /// Another attempt may follow.
    Kept(Box<OutgoingRequest>),
    /// None may follow, but the rest of it is still being written.
    Leaving(Box<OutgoingRequest>),
    /// It is gone: part of the answer has been given.
    Gone,
}

/// The body of an answer as it comes.
#[derive(Debug)]
enum Body {
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
struct Committing {
    at: Attempt,
    last: Last,
    usage: Usage,
    by: Mono,
}

/// What goes out when the row is safe.
#[derive(Debug)]
enum Last {
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
    asked: Option<Asked>,
    admitted: Option<Admitted>,
    state: State,
}

impl Exchange {
    /// The exchange of a request whose head has come, or cannot.
    pub(crate) fn new(client: ClientId, meta: RequestMeta, cx: &mut Cx) -> Exchange {
        let request = Request {
            client,
            id: RequestId::fresh(&mut cx.rng),
            meta,
            found: Identified::default(),
            cors: CorsPolicy::Off,
            client_request_id: Box::default(),
            setup: cx.setup.clone(),
            received: cx.now.mono,
            read: Mono::NEVER,
        };
        Exchange { request, asked: None, admitted: None, state: State::Ended }
    }

    /// Looks at the head: what is asked for, and whether it may pass.
    pub(crate) fn authorize(
        &mut self,
        head: &RequestHead,
        bytes: &[u8],
        ready: Readiness,
        cx: &mut Cx,
    ) -> Result<Endpoint, Refusal> {
        let request = &mut self.request;
        let client_request_id = head.field(Field::XRequestId).of(bytes);
        if !client_request_id.is_empty() && !names_key(client_request_id, &cx.setup.config.server.key_prefix) {
            request.client_request_id = printable(client_request_id, CLIENT_REQUEST_ID_MAX).into();
        }
        request.cors = CorsPolicy::of(&request.setup.config.server.cors_origins, head.field(Field::Origin).of(bytes));
        let shared = cx.is_shared();
        let mut context = AuthContext {
            setup: &cx.setup,
            plans: &cx.plans,
            keys: &mut cx.keys,
            meter: &mut cx.meter,
            shared,
            ready,
            now: cx.now.unix,
        };
        authorize::authorize(head, bytes, &mut context, &mut request.found)
    }

    /// The head has passed: the body is promised its room, and read.
    pub(crate) fn read_body(&mut self, head: &RequestHead, declared: u64, cx: &mut Cx) -> Result<(), Refusal> {
        let (Some(key), Some(dialect)) = (self.request.found.key, self.dialect()) else { return Ok(()) };
        let mut draft = cx.requests.take();
        if let Err(refusal) = cx.budget.body(&mut draft.promise, key, declared, &mut cx.pool) {
            cx.requests.put(draft, &mut cx.budget, &mut cx.pool);
            return Err(refusal);
        }
        draft.scan.reset(dialect);
        draft.head = *head;
        if self.request.found.endpoint == Some(Endpoint::CountTokens) {
            draft.scan.reset_count();
        }
        self.state = State::Reading { draft };
        Ok(())
    }

    /// What happens in which state. Nothing else may: a bug ends this exchange, in a debug build all.
    pub(crate) fn on(&mut self, event: Event<'_>, message: &Message<'_>, cx: &mut Cx) -> Effect {
        match (&mut self.state, event) {
            (State::Answering(_), Event::Data(data)) => self.data(data, message, cx),
            (State::Reading { .. }, Event::Body { complete }) => self.body(complete, message, cx),
            (State::Reading { .. }, Event::Refused(refusal)) => self.refuse(refusal),
            (State::Translating(_), Event::Translated { draft, built }) => self.translated(draft, built, message, cx),
            (State::Reserving(_), Event::Ruled(ask, ruling)) => self.ruled(ask, ruling, message, cx),
            (State::Reserving(_), Event::Due { .. }) => self.not_ruled(message, cx),
            (State::Attempting(_), Event::Named { host, port, failed }) => self.named(host, port, failed, message, cx),
            (State::Attempting(_), Event::Dialed) => self.dialed(),
            (State::Attempting(_), Event::DialFailed(why)) => self.dial_failed(why, message, cx),
            (State::Attempting(_) | State::Answering(_), Event::Sent) => self.sent(cx),
            (State::Attempting(_), Event::Head(head, bytes)) => self.answer_begins(head, bytes, message, cx),
            (State::Answering(_), Event::BodyEnd) => self.body_end(message, cx),
            (State::Answering(_), Event::Room) => self.room(cx),
            (State::Answering(_), Event::Drained) => self.drained(cx),
            (State::Answering(_), Event::Offloaded(product)) => self.offloaded(product, message, cx),
            (State::Attempting(_) | State::Answering(_), Event::Failed { kind, reused }) => {
                self.attempt_failed(Fault::from(kind), reused, message, cx)
            }
            (State::Translating(_), Event::Offloaded(_)) => self.end(Fault::from(FaultKind::Internal), cx),
            (State::Translating(_) | State::Attempting(_) | State::Answering(_), Event::Due { full, drained }) => {
                self.due_now(full, drained, message, cx)
            }
            (State::Committing(_), Event::Committed) => self.committed(cx),
            (State::Committing(_), Event::NotCommitted | Event::Due { .. }) => {
                self.end(Fault::from(FaultKind::Store), cx)
            }
            // A body under way is watched by its connection; an answer that has ended wants nothing more.
            (State::Reading { .. }, Event::Due { .. }) => Effect::Nothing,
            (State::Committing(_), Event::Drained | Event::Sent) => Effect::Nothing,
            (State::Attempting(_) | State::Reserving(_) | State::Translating(_), Event::Drained) => Effect::Nothing,
            (_, Event::Left) => self.left(cx),
            (_, Event::Stopped) => self.end(Fault::from(FaultKind::Draining), cx),
            (state, event) => {
                debug_assert!(false, "{event:?} while {state:?}");
                self.end(Fault::from(FaultKind::Internal), cx)
            }
        }
    }

    /// The earliest of its deadlines.
    pub(crate) fn due(&self) -> Mono {
        let by = match &self.state {
            State::Reading { .. } | State::Ended => Mono::NEVER,
            State::Translating(Translating { by, .. })
            | State::Reserving(Reserving { by, .. })
            | State::Attempting(Attempting { by, .. })
            | State::Answering(Answering { by, .. }) => *by,
            // Its answer is complete: no other clock counts.
            State::Committing(Committing { by, .. }) => return *by,
        };
        self.admitted.as_ref().map_or(by, |admitted| by.min(admitted.until).min(admitted.beat))
    }

    /// The connection that carries its request.
    pub(crate) fn provider(&self) -> Option<ProviderId> {
        match &self.state {
            State::Attempting(Attempting { half: Half::Dialing(provider) | Half::Open(provider), .. }) => {
                Some(*provider)
            }
            State::Answering(answering) => answering.provider,
            _ => None,
        }
    }

    /// The answer is an error, known by its status: what becomes of its body changes nothing but its words.
    pub(crate) fn reads_error(&self) -> bool {
        matches!(&self.state, State::Answering(Answering { body: Body::Error { .. }, .. }))
    }

    /// Waits for the result with this number.
    pub(crate) fn awaits(&self, serial: u64) -> bool {
        match &self.state {
            State::Translating(translating) => translating.serial.get() == serial,
            State::Answering(Answering { body: Body::Offloaded { serial: own, .. }, .. }) => own.get() == serial,
            _ => false,
        }
    }

    /// Waits for the addresses of this host.
    pub(crate) fn awaits_name(&self, host: &str, port: u16) -> bool {
        matches!(&self.state, State::Attempting(Attempting { half: Half::Resolving, .. }))
            && self.target_provider().is_some_and(|provider| *provider.host == *host && provider.port == port)
    }

    /// May still be admitted, so that a hand-over waits for it.
    pub(crate) fn may_be_admitted(&self) -> bool {
        self.admitted.is_none() && matches!(self.state, State::Translating(_) | State::Reserving(_))
    }

    /// A shared ledger is asked.
    pub(crate) fn is_reserving(&self) -> bool {
        matches!(self.state, State::Reserving(_))
    }

    /// Its hold in the meter, while it is out.
    pub(crate) fn hold(&self) -> Option<&Hold> {
        self.admitted.as_ref().map(|admitted| &admitted.hold)
    }

    /// As a successor is told of it; `None` where nothing has been admitted, or all of it is settled.
    pub(crate) fn running(&self, meter: &Meter, keys: &Keys) -> Option<Running> {
        let (admitted, key) = (self.admitted.as_ref()?, self.request.found.key?);
        let reserved = meter.lease(&admitted.hold).reserved;
        Some(Running { request: self.request.id.raw(), key: keys.record(key).id, admitted: admitted.at, reserved })
    }

    /// The shape of the endpoint, for generation requests.
    pub(crate) fn dialect(&self) -> Option<Dialect> {
        self.request.found.shape()
    }

    /// The model asked for, once known.
    fn model(&self) -> Option<&Model> {
        self.asked.and_then(|asked| self.request.setup.config.catalog.get(asked.model as usize))
    }

    /// How the present attempt stands, once a target has been chosen.
    fn attempt(&self) -> Option<&Attempt> {
        match &self.state {
            State::Translating(Translating { at, .. })
            | State::Reserving(Reserving { at, .. })
            | State::Attempting(Attempting { at, .. })
            | State::Answering(Answering { at, .. })
            | State::Committing(Committing { at, .. }) => Some(at),
            State::Reading { .. } | State::Ended => None,
        }
    }

    /// The head of a stream has been sent.
    fn is_open(&self) -> bool {
        self.attempt().is_some_and(|at| at.opened)
    }

    /// Something of a stream is sent: true if its head goes before it.
    fn open(&mut self) -> bool {
        match &mut self.state {
            State::Attempting(Attempting { at, .. })
            | State::Answering(Answering { at, .. })
            | State::Translating(Translating { at, .. })
            | State::Committing(Committing { at, .. }) => !std::mem::replace(&mut at.opened, true),
            State::Reading { .. } | State::Reserving(_) | State::Ended => false,
        }
    }

    /// The target of the present attempt.
    fn target(&self) -> Option<&Target> {
        self.model()?.targets.get(self.attempt()?.target as usize)
    }

    fn target_provider(&self) -> Option<&crate::policy::config::Provider> {
        self.request.setup.config.providers.get(self.target()?.provider)
    }

    /// More of the body has come, perhaps the last of it.
    fn body(&mut self, complete: bool, message: &Message<'_>, cx: &mut Cx) -> Effect {
        let State::Reading { draft } = &mut self.state else { return Effect::Nothing };
        let length = message.body.len() as u64;
        let scanned = match (&draft.invalid, complete) {
            (Some(_), _) => Ok(()),
            (None, true) => draft.scan.finish(message.body),
            (None, false) => draft.scan.feed(message.body),
        };
        // Told when the body is complete: the answer must not depend on how its bytes happened to arrive.
        if let Err(Invalid(why)) = scanned {
            draft.invalid = Some(why);
        }
        let body_timeout = self.request.setup.config.server.body_timeout;
        let elapsed = cx.now.mono.micros_since(self.request.received);
        let needed = (elapsed / 1_000_000).saturating_mul(BODY_RATE_MIN);
        if !complete && elapsed > body_timeout.as_micros() as u64 && length < needed {
            return self.refuse(Refusal::body_too_slow(body_timeout));
        }
        if let Some(key) = self.request.found.key
            && let Err(refusal) = cx.budget.body(&mut draft.promise, key, length, &mut cx.pool)
        {
            return self.refuse(refusal);
        }
        cx.budget.came(&mut draft.promise, message.storage, &mut cx.pool);
        match (complete, draft.invalid.take_if(|_| complete)) {
            (false, _) => Effect::Nothing,
            (true, Some(why)) => self.refuse(Refusal::invalid_body(why)),
            (true, None) => {
                self.request.read = cx.now.mono;
                self.body_complete(message, cx)
            }
        }
    }

    /// Answers with an error before anything was admitted.
    fn refuse(&mut self, refusal: Refusal) -> Effect {
        let outcome = Outcome::refused(&refusal);
        Effect::Refuse(refusal, outcome)
    }

    /// The client has left.
    fn left(&mut self, cx: &mut Cx) -> Effect {
        self.drop_provider(cx);
        Effect::Gone(Outcome { status: finish::CLIENT_LEFT, error: None, usage: self.partial_usage(true) })
    }
}

impl Request {
    /// The endpoint as metrics and log lines call it.
    fn endpoint_name(&self) -> &'static str {
        self.found.endpoint.map_or("none", Endpoint::name)
    }

    /// The model that `asked` names.
    fn model(&self, asked: &Asked) -> Option<&Model> {
        self.setup.config.catalog.get(asked.model as usize)
    }

    /// What an answer is to say of itself.
    fn identity<'a>(&'a self, asked: &Asked, now: Unix) -> ResponseIdentity<'a> {
        let model = self.model(asked).map_or("", |model| &model.id);
        ResponseIdentity { id: self.id.as_str(), model, created: now.secs(), prompt_estimate: asked.estimate }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_id_that_is_or_holds_a_key_is_known_as_such() {
        for id in ["sk-proj-0123456789", "req/tg_0123456789abcdefghij", "Bearer0123456789", "id=tg_0123456789abcdef;1"]
        {
            assert!(names_key(id.as_bytes(), "tg_"), "{id}");
        }
        for id in ["req_0123456789abcdef0123", "3f2c-77aa-task-sk-1", "tg_7", "", "my-trace:42"] {
            assert!(!names_key(id.as_bytes(), "tg_"), "{id}");
        }
    }
}
