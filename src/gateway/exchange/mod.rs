//! The life of one request, from its head to its one end. A state machine: it receives [`ExchangeEvent`]s and returns
//! an [`Effect`]; it knows neither sockets nor connections. Every way out passes [`Exchange::finish`]: the reservation
//! is settled, and the usage record and the log line are written exactly once.
//!
//! A state owns its data, which is dropped with it: once the draft is dropped, the request is committed to its target.
//! The table in `transitions` lists the events of each state and what may follow.

mod affinity;
mod attempt;
mod attribution;
pub(crate) mod authorize;
mod build;
mod cost;
mod diagnosis;
mod dial;
mod event;
mod failover;
pub(crate) mod fault;
mod finish;
mod intake;
mod job;
mod mask;
mod need;
mod next;
mod output;
mod provider_error;
mod queue;
mod reading;
mod renewal;
mod reply;
mod reserve;
mod spans;
mod state;
mod stream;
pub(crate) mod streams;
mod transitions;
mod translating;
mod verdict;
mod views;

pub(crate) use authorize::{Endpoint, Readiness};
pub(crate) use event::{ClientMessage, Dial, DriverCall, Effect, ExchangeEvent, Forward, Outcome};
pub(crate) use job::Request;
pub(crate) use output::Output;
pub(crate) use reading::is_too_slow;
pub(crate) use state::Exchange;

/// All requests.
pub(crate) type Exchanges = Slots<Exchange, ExchangeName>;

use super::budget::Promise;
use super::client::cors::CorsPolicy;
use super::client::peer::caller;
use super::client::response::RequestId;
use super::client::response::RequestMeta;
use super::cx::{Cx, Setup};
use super::ids::{ClientId, ExchangeName};
use super::provider::breaker::Breakers;
use super::queue::Look;
use crate::base::limits::LOOKUP_TIMEOUT;
use crate::base::slots::Slots;
use crate::base::time::Mono;
use crate::policy::cause::Cause;
use crate::policy::config::Origin;
use crate::policy::refusal::Refusal;
use crate::wire::head::{HeaderField, RequestHead};
use authorize::{AuthContext, Identified, presented};
use build::promise_translation;
use diagnosis::told;
use event::{AnswerStep, Over};
use fault::{Fault, FaultKind};
use job::{Attempt, RequestJob, RequestNotes};
use next::NextStep;
use state::{Attempting, Committing, Half, Queued, Reserving, State, Translating};
use transitions::Step;

impl Exchange {
    /// The exchange of a request whose head is complete or invalid.
    pub(crate) fn new(client: ClientId, meta: RequestMeta, cx: &mut Cx) -> Exchange {
        let request = Request {
            client,
            id: RequestId::fresh(&mut cx.rng),
            meta,
            found: Identified::default(),
            cors: CorsPolicy::Off,
            asked: None,
            said: None,
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

    /// The head is accepted: memory for the body is reserved, and the body is read.
    pub(crate) fn read_body(&mut self, head: &RequestHead, declared: u64, cx: &mut Cx) -> Result<(), Refusal> {
        let (Some(key), Some(endpoint)) = (self.job.request.found.key, self.job.request.endpoint()) else {
            return Ok(());
        };
        let mut draft = cx.upstreams.requests.take();
        draft.scan.reset(endpoint);
        draft.head = *head;
        let promised = cx.memory.budget.body(&mut draft.promise, key, declared, &mut cx.memory.pool);
        let promised = promised.and_then(|()| promise_translation(&self.job.request, &mut draft, declared, None, cx));
        self.state = State::Reading { draft };
        promised
    }

    /// Handles an event in the present state. A combination that is not in the table of transitions is a bug: it ends
    /// this exchange, and a debug build panics.
    #[inline]
    pub(crate) fn on(&mut self, event: ExchangeEvent<'_>, call: &mut DriverCall, cx: &mut Cx) -> Effect {
        let step = Step::of(self, &event);
        let effect = self.handle(event, call, cx);
        step.leads(self, &effect);
        effect
    }

    fn handle(&mut self, event: ExchangeEvent<'_>, call: &mut DriverCall, cx: &mut Cx) -> Effect {
        let job = &mut self.job;
        let step = match (&mut self.state, event) {
            (State::Reading { draft }, ExchangeEvent::Body { complete: false }) => {
                return job
                    .request
                    .scan(draft, false, &call.message, cx)
                    .map_or_else(Effect::refuse, |()| Effect::Nothing);
            }
            (State::Reading { .. }, ExchangeEvent::Refused(refusal)) => return Effect::refuse(*refusal),
            (state @ (State::Queued(_) | State::Attempting(_) | State::Answering(_)), ExchangeEvent::Count) => {
                if let Some(draft) = state.draft() {
                    job.count_now(draft, &call.message, cx);
                }
                return Effect::Nothing;
            }
            (State::Attempting(attempting), ExchangeEvent::Named { failed }) => attempting.resolved(job, failed, cx),
            (State::Attempting(attempting), ExchangeEvent::Dialed(id)) => {
                return attempting.dialed(job, id, call.out, cx);
            }
            (State::Attempting(attempting), ExchangeEvent::DialFailed(id, why)) => {
                attempting.dial_failed(job, id, why, cx)
            }
            (State::Attempting(attempting), ExchangeEvent::Sent) => return attempting.sent(job, cx.now.mono),
            (State::Answering(answering), ExchangeEvent::Sent) => return answering.sent(cx),
            (State::Answering(answering), ExchangeEvent::Whole(body)) => answering.whole(job, body, call, cx),
            (State::Answering(answering), ExchangeEvent::BodyEnd) => answering.body_end(job, call, cx),
            (State::Answering(answering), ExchangeEvent::Room) => {
                answering.paused = false;
                return answering.drained(cx);
            }
            (State::Answering(answering), ExchangeEvent::Drained) => return answering.drained(cx),
            (State::Answering(answering), ExchangeEvent::Offloaded(product)) => {
                answering.offloaded(job, product.map(|product| *product), call, cx)
            }
            (State::Attempting(_) | State::Answering(_), ExchangeEvent::Failed { kind, reused }) => {
                return self.attempt_failed(Fault::from(kind), reused, call, cx);
            }
            (State::Translating(_), ExchangeEvent::Offloaded(_)) => Err(Fault::from(FaultKind::Internal).into()),
            (
                State::Translating(_) | State::Queued(_) | State::Attempting(_) | State::Answering(_),
                ExchangeEvent::Due { unread, drained },
            ) => return self.due_now(unread, drained, call, cx),
            (State::Committing(committing), ExchangeEvent::Committed) => {
                return committing.committed(job, call.out, cx);
            }
            (State::Committing(_), ExchangeEvent::NotCommitted | ExchangeEvent::Due { .. }) => {
                Err(Fault::from(FaultKind::Store).into())
            }
            // The connection watches an arriving body; an ended response has no deadline.
            (State::Reading { .. }, ExchangeEvent::Due { .. }) => return Effect::Nothing,
            (State::Committing(_), ExchangeEvent::Drained | ExchangeEvent::Sent) => return Effect::Nothing,
            (
                State::Attempting(_) | State::Queued(_) | State::Reserving(_) | State::Translating(_),
                ExchangeEvent::Drained,
            ) => return Effect::Nothing,
            (_, ExchangeEvent::Left) => return self.left(call, cx),
            (_, ExchangeEvent::Stopped) => {
                self.abandon(cx);
                return self.end(Fault::from(FaultKind::Draining), call.out, cx);
            }
            (_, event) => return self.leave(event, call, cx),
        };
        self.follow(step, call, cx)
    }

    /// Handles an event that ends the present state: the handler gets the state itself.
    fn leave(&mut self, event: ExchangeEvent<'_>, call: &mut DriverCall, cx: &mut Cx) -> Effect {
        let job = &mut self.job;
        let next = match (std::mem::replace(&mut self.state, State::Ended), event) {
            (State::Identifying { head, .. }, ExchangeEvent::LookedUp { answered: true }) => {
                return Effect::Authorize(head);
            }
            // If the ledger cannot be read, the key is not reported as wrong.
            (State::Identifying { .. }, ExchangeEvent::LookedUp { .. } | ExchangeEvent::Due { .. }) => {
                return Effect::refuse(Refusal::store());
            }
            (State::Reading { draft }, ExchangeEvent::Body { .. }) => reading::complete(job, draft, call, cx),
            (State::Translating(translating), ExchangeEvent::Translated { draft, built }) => {
                translating.translated(job, draft, built, &call.message, cx)
            }
            (State::Reserving(reserving), ExchangeEvent::Ruled(ask, ruling)) => reserving.ruled(job, ask, ruling, cx),
            // The bounded requests that share a limit with this one are counted now.
            (State::Reserving(Reserving { draft: Some(draft), .. }), ExchangeEvent::Counted) => {
                NextStep::Reserve { draft, others_counted: true }
            }
            (State::Reserving(reserving), ExchangeEvent::Due { .. }) => reserving.not_ruled(job, cx),
            (State::Queued(queued), ExchangeEvent::Place) => queued.placed(job, &call.message, cx),
            (State::Attempting(Attempting { draft, .. }), ExchangeEvent::Renewed) => {
                job.renewed(draft, &call.message, cx)
            }
            (State::Attempting(attempting), ExchangeEvent::Head(head, bytes)) => {
                attempting.answered(job, head, bytes, call.out, cx)
            }
            (state, event) => {
                debug_assert!(false, "{event:?} while {state:?}");
                NextStep::End(state, Box::new(Fault::from(FaultKind::Internal)))
            }
        };
        self.go(next, call, cx)
    }

    /// Takes the steps that follow, until the request waits or ends. It calls itself where a loop would copy each step;
    /// a request's steps are bounded by its attempts, and it waits in most of them.
    fn go(&mut self, next: NextStep, call: &mut DriverCall, cx: &mut Cx) -> Effect {
        let job = &mut self.job;
        let next = match next {
            NextStep::Enter(state, effect) => {
                self.state = state;
                return effect;
            }
            NextStep::End(state, fault) => {
                self.state = state;
                return self.end(*fault, call.out, cx);
            }
            NextStep::Reserve { draft, others_counted } => {
                Reserving::begin(job, draft, others_counted, &call.message, cx)
            }
            NextStep::Serve(draft) => match job.start_clocks(cx.now.mono) {
                Some(queue) => Queued::first(job, queue, draft, &call.message, cx),
                None => Attempting::first(job, draft, &call.message, cx),
            },
            NextStep::Translate(draft, failed) => Translating::begin(job, draft, failed, cx),
            NextStep::Attempt(draft) => Attempting::begin(job, draft, cx),
            NextStep::Failed(draft, fault) => job.attempt_failed(draft, fault, cx),
            NextStep::Another(draft, fault) => job.next_target(draft, fault, &call.message, cx),
            NextStep::Wait(draft, fault) => Queued::again(job, draft, fault, &call.message, cx),
            NextStep::LastResort(draft, fault) => job.last_resort(draft, fault, &call.message, cx),
            NextStep::GiveUp(draft, fault) => job.give_up(draft, fault, cx),
        };
        self.go(next, call, cx)
    }

    /// Handles the result of an event of a response or a dial.
    #[inline]
    fn follow(&mut self, step: AnswerStep, call: &mut DriverCall, cx: &mut Cx) -> Effect {
        match step {
            Ok(effect) => effect,
            Err(over) => self.over(*over, call, cx),
        }
    }

    /// The attempt or the response under way has ended.
    #[inline(never)]
    fn over(&mut self, over: Over, call: &mut DriverCall, cx: &mut Cx) -> Effect {
        match over {
            Over::Failed { fault, good: None } => self.attempt_failed(fault, false, call, cx),
            Over::Failed { fault, good: Some(forward) } => {
                let good = std::mem::take(&mut call.out.bytes);
                let effect = self.attempt_failed(fault, false, call, cx);
                let error = std::mem::replace(&mut call.out.bytes, good);
                call.out.bytes.extend_from_slice(&error);
                if let Effect::End(_, outcome) = effect { Effect::End(forward, outcome) } else { effect }
            }
            Over::Complete { last, kind, usage, forward } => {
                self.await_row(Committing { last, kind, usage, by: Mono::NEVER }, forward, call, cx)
            }
        }
    }

    /// An attempt has failed: a free one on a fresh connection, the next target, or the end.
    fn attempt_failed(&mut self, fault: Fault, reused: bool, call: &mut DriverCall, cx: &mut Cx) -> Effect {
        let job = &mut self.job;
        let next = match std::mem::replace(&mut self.state, State::Ended) {
            State::Attempting(attempting) => attempting.failed(job, fault, reused, call.out, cx),
            State::Answering(answering) => answering.failed(job, fault, reused, call, cx),
            state => NextStep::End(state, Box::new(fault)),
        };
        self.go(next, call, cx)
    }

    /// A deadline of the exchange has expired.
    fn due_now(&mut self, unread: bool, drained: bool, call: &mut DriverCall, cx: &mut Cx) -> Effect {
        let (now, job) = (cx.now.mono, &mut self.job);
        let admitted = job.admitted.as_ref();
        let (is_late, beats) = admitted.map_or((false, false), |one| (one.until <= now, one.beat <= now));
        // A provider that was not read may have answered long ago, so it is not to blame.
        let kind = if unread { FaultKind::NotRead } else { FaultKind::RequestTimeout };
        let late = match &mut self.state {
            State::Queued(queued) if queued.by <= now => Some(Err(Queued::in_vain(job, cx).into())),
            _ if is_late => Some(Err(Fault::from(kind).into())),
            State::Queued(queued) => {
                queued.note_waited(&mut job.request, now);
                None
            }
            State::Translating(Translating { by, .. }) if *by <= now => {
                Some(Err(Fault::from(FaultKind::RequestTimeout).into()))
            }
            State::Attempting(Attempting { by, half: Half::Renewing, .. }) if *by <= now => {
                return self.leave(ExchangeEvent::Renewed, call, cx);
            }
            State::Attempting(attempting) if attempting.by <= now => attempting.late(job, unread, call.out, cx),
            State::Answering(answering) if answering.by <= now => Some(answering.answer_late(job, unread, call, cx)),
            _ => None,
        };
        match late {
            Some(step) => self.follow(step, call, cx),
            None if beats => self.heartbeat(drained, call.out, cx),
            None => Effect::Wait,
        }
    }

    /// The earliest of its deadlines.
    #[inline]
    pub(crate) fn due(&self) -> Mono {
        match (self.state.due(), &self.job.admitted) {
            ((by, false), Some(admitted)) => by.min(admitted.until).min(admitted.beat),
            ((by, _), _) => by,
        }
    }

    /// Appends what fits of the outgoing request to `out`, its head first where `begins`; true when all of it is out.
    /// `room`: bytes that are free of the buffers.
    pub(crate) fn write_request(
        &mut self,
        begins: bool,
        message: &ClientMessage,
        room: usize,
        out: &mut Vec<u8>,
    ) -> bool {
        let draft = self.state.leaving();
        draft.is_none_or(|draft| self.job.write_request(draft, begins, message, room, out))
    }

    /// Asks the shared ledger for the state of the key. Returns false if the local state is enough.
    pub(crate) fn look(&mut self, message: &ClientMessage, cx: &mut Cx) -> bool {
        let Some(reserving) = Reserving::look(&self.job, message, cx) else { return false };
        self.state = State::Reserving(reserving);
        true
    }

    /// True if the request may still be admitted, so that a hand-over waits for it.
    pub(crate) fn may_be_admitted(&self) -> bool {
        self.job.admitted.is_none()
            && matches!(self.state, State::Identifying { .. } | State::Translating(_) | State::Reserving(_))
    }

    /// True if it waits for the addresses of this host.
    pub(crate) fn awaits_name(&self, host: &str, port: u16) -> bool {
        self.state.half() == Some(Half::Resolving)
            && self.job.target_provider().is_some_and(|provider| {
                let (hop, at) = provider.next_hop();
                **hop == *host && at == port
            })
    }

    /// True if it waits for the secret of this origin.
    pub(crate) fn awaits_secret(&self, origin: &Origin) -> bool {
        self.state.half() == Some(Half::Renewing) && self.job.origin() == Some(origin)
    }

    /// Checks whether this waiting request can be served.
    pub(crate) fn look_for_place(&self, breakers: &mut Breakers, setup: &Setup, now: Mono) -> Look {
        match &self.state {
            State::Queued(queued) => queued.look_for_place(&self.job, breakers, setup, now),
            _ => Look::NotThis,
        }
    }

    /// The charge to its key for the storage of a stream.
    pub(crate) fn charge(&self) -> Option<Promise> {
        let (answering, key) = (self.state.answering()?, self.job.request.found.key?);
        Some(Promise::charged(key, answering.charged))
    }

    /// The client has left.
    fn left(&mut self, call: &mut DriverCall, cx: &mut Cx) -> Effect {
        // A request that was not sent costs nothing, whatever its prompt is.
        if let Some(draft) = self.state.draft().filter(|_| self.job.attempt.sent != Mono::NEVER) {
            self.job.count_now(draft, &call.message, cx);
        }
        self.job.note_unanswered(cx);
        self.abandon(cx);
        self.state.drop_provider(call.out);
        self.job.notes.get_mut().cause = Some(Cause::new("client left", ""));
        Effect::Gone(Outcome { status: finish::CLIENT_LEFT, error: None, usage: self.partial_usage(true) })
    }
}

impl RequestJob {
    /// Checks the head: its endpoint, its key, and whether the request may continue.
    pub(crate) fn authorize(
        &mut self,
        head: &RequestHead,
        bytes: &[u8],
        ready: Readiness,
        cx: &mut Cx,
    ) -> Result<Endpoint, Refusal> {
        if head.traced | self.request.setup.traces {
            let head = Some(&bytes[..head.len as usize]).filter(|_| head.traced);
            self.notes.begin_trace(&self.request, head);
        }
        let request = &mut self.request;
        let client_request_id = head.field(HeaderField::XRequestId).of(bytes);
        if !client_request_id.is_empty() {
            let told = told(client_request_id, &cx.setup.config.server.key_prefix);
            request.said.get_or_insert_default().client_request_id = told;
        }
        let trusted = &request.setup.config.server.trusted_proxies;
        if !trusted.is_empty() {
            let peer = cx.connections.peers.of(request.client);
            let caller = caller(peer, &bytes[..head.len as usize], trusted);
            if caller != peer {
                self.notes.get_mut().caller = Some(caller);
            }
        }
        let request = &mut self.request;
        request.cors =
            CorsPolicy::of(&request.setup.config.server.cors_origins, head.field(HeaderField::Origin).of(bytes));
        let shared = cx.is_shared();
        let mut context = AuthContext {
            setup: &cx.setup,
            access: &mut cx.access,
            meter: &mut cx.accounts.meter,
            shared,
            ready,
            now: cx.now.unix,
        };
        let passed = authorize::authorize(head, bytes, &mut context, &mut request.found);
        if let Err(refusal) = &passed {
            let prefix = &cx.setup.config.server.key_prefix;
            let shown = (refusal.status == 401).then(|| presented(head, bytes, self.request.found.endpoint, prefix));
            let spent = shown.and_then(|shown| cx.access.keys.why_not(shown, prefix, cx.now.unix).1);
            self.notes.note_head(&self.request, refusal, head, bytes, spent);
            self.request.attribute_head(head, bytes, cx);
        }
        passed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::SseStream;
    use crate::gateway::{client, provider};
    use std::collections::{BTreeMap, BTreeSet};

    /// The sizes that every stream under way costs; its client's connection costs no more than when idle, including the
    /// charge for unread output.
    #[test]
    fn state_of_a_running_stream_is_small() {
        assert!(size_of::<Exchange>() <= 320, "{}", size_of::<Exchange>());
        assert!(size_of::<provider::ProviderConnection>() <= 80, "{}", size_of::<provider::ProviderConnection>());
        assert!(size_of::<SseStream>() <= 224, "{}", size_of::<SseStream>());
        assert!(size_of::<client::ClientConnection>() <= 128, "{}", size_of::<client::ClientConnection>());
    }

    type Table<'a> = BTreeMap<&'a str, BTreeSet<&'a str>>;

    /// The words of `text` that follow `prefix`.
    fn words<'a>(text: &'a str, prefix: &'static str) -> impl Iterator<Item = &'a str> {
        let word = |rest: &'a str| rest.split(|c: char| !c.is_ascii_alphanumeric()).next();
        text.split(prefix).skip(1).filter_map(word)
    }

    /// The pairs of the match: every state of an arm with every event of it.
    fn matched(source: &str) -> Table<'_> {
        let body = source.split("match (&mut self.state, event) {").nth(1).expect("the match is there");
        let body = body.split("(state, event) =>").next().expect("its last arm is, too");
        let mut table = Table::new();
        for arm in body.split("=>").map(|arm| arm.rsplit_once("\n            (").map_or(arm, |(_, pattern)| pattern)) {
            let states: Vec<&str> = match arm.trim_start().starts_with('_') {
                true => vec!["any"],
                false => words(arm, "State::").collect(),
            };
            for state in states {
                table.entry(state).or_default().extend(words(arm, "Event::"));
            }
        }
        table.retain(|_, events| !events.is_empty());
        table
    }

    /// The pairs of the table. A piece of a body arrives by [`Exchange::data`].
    fn listed() -> Table<'static> {
        let mut table = Table::new();
        for (state, events, _) in transitions::TRANSITIONS {
            table.entry(state).or_default().extend(events.split(", ").filter(|event| *event != "Data"));
        }
        table
    }

    #[test]
    fn table_of_states_equals_the_match() {
        let matched = matched(include_str!("mod.rs"));
        assert!(matched.len() > 5, "{matched:?}");
        assert_eq!(matched, listed());
    }
}
