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
pub(crate) mod fault;
mod finish;
mod intake;
mod job;
mod mask;
mod need;
mod provider_error;
mod queue;
mod renewal;
mod reply;
mod reserve;
mod spans;
mod state;
mod stream;
pub(crate) mod streams;
mod transitions;
mod verdict;
mod views;

pub(crate) use authorize::{Endpoint, Readiness};
pub(crate) use event::{ClientMessage, Dial, Effect, ExchangeEvent, Forward, Outcome};
pub(crate) use job::Request;
pub(crate) use state::Exchange;

use super::budget::REQUEST_BYTES;
use super::client::cors::CorsPolicy;
use super::client::peer::caller;
use super::client::response::RequestId;
use super::client::response::RequestMeta;
use super::cx::Cx;
use super::ids::{ClientId, ProviderId};
use super::provider::request::OutgoingRequest;
use crate::base::limits::{ASK_TIMEOUT, BODY_RATE_MIN};
use crate::base::time::Mono;
use crate::dialect::Invalid;
use crate::policy::keys::KeyIx;
use crate::policy::refusal::Refusal;
use crate::wire::head::{HeaderField, RequestHead};
use authorize::{AuthContext, Identified, presented};
use build::{promise_named, promise_translation};
use diagnosis::told;
use fault::{Fault, FaultKind};
use job::{Attempt, RequestJob};
use state::{Answering, Attempting, Body, Committing, Half, Queued, Reserving, State, Translating};
use std::time::Duration;
use transitions::Step;

impl Exchange {
    /// The exchange of a request whose head has come, or cannot.
    pub(crate) fn new(client: ClientId, meta: RequestMeta, cx: &mut Cx) -> Exchange {
        let request = Request {
            client,
            id: RequestId::fresh(&mut cx.rng),
            meta,
            found: Identified::default(),
            cors: CorsPolicy::Off,
            said: None,
            setup: cx.setup.clone(),
            received: cx.now.mono,
            read: Mono::NEVER,
            queued: 0,
        };
        let attempt = Attempt::default();
        let job = RequestJob { request, asked: None, admitted: None, attempt, diagnosis: None };
        Exchange { job, state: State::Ended }
    }

    /// Starts the lookup of its key in the ledger; the checks that follow from the head wait for that.
    pub(crate) fn identify(&mut self, head: &RequestHead, now: Mono) {
        self.state = State::Identifying { head: Box::new(*head), by: now.after(ASK_TIMEOUT) };
    }

    /// True if its key is being looked up.
    pub(crate) fn is_identifying(&self) -> bool {
        matches!(self.state, State::Identifying { .. })
    }

    /// The head has passed: the body is promised its room, and read.
    pub(crate) fn read_body(&mut self, head: &RequestHead, declared: u64, cx: &mut Cx) -> Result<(), Refusal> {
        let (Some(key), Some(endpoint)) = (self.job.request.found.key, self.job.endpoint()) else { return Ok(()) };
        let mut draft = cx.requests.take();
        draft.scan.reset(endpoint);
        draft.head = *head;
        let promised = cx.budget.body(&mut draft.promise, key, declared, &mut cx.pool);
        let promised = promised.and_then(|()| promise_translation(&self.job.request, &mut draft, declared, None, cx));
        self.state = State::Reading { draft };
        promised
    }

    /// Handles an event in the present state. A combination that is not in the table of transitions is a bug: it ends
    /// this exchange, and a debug build panics.
    #[inline]
    pub(crate) fn on(&mut self, event: ExchangeEvent<'_>, message: &ClientMessage, cx: &mut Cx) -> Effect {
        let step = Step::of(self, &event);
        let effect = self.handle(event, message, cx);
        step.leads(self, &effect);
        effect
    }

    fn handle(&mut self, event: ExchangeEvent<'_>, message: &ClientMessage, cx: &mut Cx) -> Effect {
        let job = &mut self.job;
        let step = match (&mut self.state, event) {
            (State::Reading { draft }, ExchangeEvent::Body { complete: false }) => {
                return job.scan(draft, false, message, cx).map_or_else(Effect::refuse, |()| Effect::Nothing);
            }
            (State::Reading { .. }, ExchangeEvent::Refused(refusal)) => return Effect::refuse(*refusal),
            (state @ (State::Queued(_) | State::Attempting(_) | State::Answering(_)), ExchangeEvent::Count) => {
                if let Some(draft) = state.draft() {
                    job.count_now(draft, message, cx);
                }
                return Effect::Nothing;
            }
            (State::Attempting(attempting), ExchangeEvent::Named { failed }) => attempting.resolved(job, failed, cx),
            (State::Attempting(attempting), ExchangeEvent::Dialed(id)) => return attempting.dialed(job, id, cx),
            (State::Attempting(attempting), ExchangeEvent::DialFailed(id, why)) => {
                attempting.dial_failed(job, id, why, cx)
            }
            (State::Attempting(attempting), ExchangeEvent::Sent) => return attempting.sent(job, cx.now.mono),
            (State::Answering(answering), ExchangeEvent::Sent) => return answering.sent(cx),
            (State::Answering(answering), ExchangeEvent::Whole(body)) => answering.whole(job, body, message, cx),
            (State::Answering(answering), ExchangeEvent::BodyEnd) => answering.body_end(job, message, cx),
            (State::Answering(answering), ExchangeEvent::Room) => {
                answering.paused = false;
                return answering.drained(cx);
            }
            (State::Answering(answering), ExchangeEvent::Drained) => return answering.drained(cx),
            (State::Answering(answering), ExchangeEvent::Offloaded(product)) => {
                answering.offloaded(job, product.map(|product| *product), message, cx)
            }
            (State::Attempting(_) | State::Answering(_), ExchangeEvent::Failed { kind, reused }) => {
                return self.attempt_failed(Fault::from(kind), reused, message, cx);
            }
            (State::Translating(_), ExchangeEvent::Offloaded(_)) => Err(Fault::from(FaultKind::Internal).into()),
            (
                State::Translating(_) | State::Queued(_) | State::Attempting(_) | State::Answering(_),
                ExchangeEvent::Due { unread, drained },
            ) => return self.due_now(unread, drained, message, cx),
            (State::Committing(committing), ExchangeEvent::Committed) => return committing.committed(job, cx),
            (State::Committing(_), ExchangeEvent::NotCommitted | ExchangeEvent::Due { .. }) => {
                Err(Fault::from(FaultKind::Store).into())
            }
            // A body under way is watched by its connection; an answer that has ended wants nothing more.
            (State::Reading { .. }, ExchangeEvent::Due { .. }) => return Effect::Nothing,
            (State::Committing(_), ExchangeEvent::Drained | ExchangeEvent::Sent) => return Effect::Nothing,
            (
                State::Attempting(_) | State::Queued(_) | State::Reserving(_) | State::Translating(_),
                ExchangeEvent::Drained,
            ) => return Effect::Nothing,
            (_, ExchangeEvent::Left) => return self.left(message, cx),
            (_, ExchangeEvent::Stopped) => {
                self.abandon(cx);
                return self.end(Fault::from(FaultKind::Draining), cx);
            }
            (_, event) => return self.leave(event, message, cx),
        };
        self.follow(step, message, cx)
    }

    /// Handles an event that ends the present state: the handler gets the state itself.
    fn leave(&mut self, event: ExchangeEvent<'_>, message: &ClientMessage, cx: &mut Cx) -> Effect {
        match (std::mem::replace(&mut self.state, State::Ended), event) {
            (State::Identifying { head, .. }, ExchangeEvent::LookedUp { answered: true }) => Effect::Authorize(head),
            // A ledger that cannot be asked is no reason to call a key wrong.
            (State::Identifying { .. }, ExchangeEvent::LookedUp { .. } | ExchangeEvent::Due { .. }) => {
                Effect::refuse(Refusal::store())
            }
            (State::Reading { mut draft }, ExchangeEvent::Body { .. }) => {
                match self.job.scan(&mut draft, true, message, cx) {
                    Ok(()) => self.body_complete(draft, message, cx),
                    Err(refusal) => self.turn_down(draft, refusal),
                }
            }
            (State::Translating(translating), ExchangeEvent::Translated { draft, built }) => {
                self.translated(translating, draft, built, message, cx)
            }
            (State::Reserving(reserving), ExchangeEvent::Ruled(ask, ruling)) => {
                self.ruled(reserving, ask, ruling, message, cx)
            }
            (State::Reserving(Reserving { draft: Some(draft), .. }), ExchangeEvent::Counted) => {
                // The bounded requests that share a limit with this one are counted now.
                self.reserve(draft, true, message, cx)
            }
            (State::Reserving(reserving), ExchangeEvent::Due { .. }) => self.not_ruled(reserving, message, cx),
            (State::Queued(queued), ExchangeEvent::Place) => self.placed(queued, message, cx),
            (State::Attempting(Attempting { draft, .. }), ExchangeEvent::Renewed) => self.renewed(draft, message, cx),
            (State::Attempting(attempting), ExchangeEvent::Head(head, bytes)) => {
                self.answer_begins(attempting, head, bytes, message, cx)
            }
            (state, event) => {
                debug_assert!(false, "{event:?} while {state:?}");
                self.state = state;
                self.end(Fault::from(FaultKind::Internal), cx)
            }
        }
    }

    /// A deadline of the exchange has come.
    pub(super) fn due_now(&mut self, unread: bool, drained: bool, message: &ClientMessage, cx: &mut Cx) -> Effect {
        let now = cx.now.mono;
        if let State::Queued(queued) = &mut self.state {
            if queued.by <= now {
                return self.waited_in_vain(cx);
            }
            queued.note_waited(&mut self.job.request, now);
        }
        let admitted = self.job.admitted.as_ref();
        let (is_late, beats) = admitted.map_or((false, false), |one| (one.until <= now, one.beat <= now));
        if is_late {
            // Who has not been read may have answered long ago.
            let kind = if unread { FaultKind::NotRead } else { FaultKind::RequestTimeout };
            return self.attempt_failed(Fault::from(kind), false, message, cx);
        }
        let late = match &mut self.state {
            State::Translating(Translating { by, .. }) if *by <= now => {
                Some(Err(Fault::from(FaultKind::RequestTimeout).into()))
            }
            State::Attempting(Attempting { by, half: Half::Renewing, .. }) if *by <= now => {
                return self.leave(ExchangeEvent::Renewed, message, cx);
            }
            State::Attempting(attempting) if attempting.by <= now => attempting.late(&mut self.job, unread, cx),
            State::Answering(answering) if answering.by <= now => {
                Some(answering.answer_late(&mut self.job, unread, message, cx))
            }
            _ => None,
        };
        match late {
            Some(step) => self.follow(step, message, cx),
            None if beats => self.heartbeat(drained, cx),
            None => Effect::Wait,
        }
    }

    /// The earliest of its deadlines.
    #[inline]
    pub(crate) fn due(&self) -> Mono {
        let by = match &self.state {
            State::Reading { .. } | State::Ended => Mono::NEVER,
            State::Identifying { by, .. }
            | State::Translating(Translating { by, .. })
            | State::Reserving(Reserving { by, .. })
            | State::Queued(Queued { by, .. })
            | State::Attempting(Attempting { by, .. })
            | State::Answering(Answering { by, .. }) => *by,
            // Its answer is complete: no other clock counts.
            State::Committing(Committing { by, .. }) => return *by,
        };
        self.job.admitted.as_ref().map_or(by, |admitted| by.min(admitted.until).min(admitted.beat))
    }

    /// The connection that carries its request.
    pub(crate) fn provider(&self) -> Option<ProviderId> {
        match &self.state {
            State::Attempting(attempting) => attempting.half.provider(),
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
            && self.job.target_provider().is_some_and(|provider| {
                let (hop, at) = provider.next_hop();
                **hop == *host && at == port
            })
    }

    /// May still be admitted, so that a hand-over waits for it.
    pub(crate) fn may_be_admitted(&self) -> bool {
        let on_its_way = matches!(self.state, State::Identifying { .. } | State::Translating(_) | State::Reserving(_));
        self.job.admitted.is_none() && on_its_way
    }

    /// A shared ledger is asked.
    pub(crate) fn is_reserving(&self) -> bool {
        matches!(self.state, State::Reserving(_))
    }

    /// The client has left.
    fn left(&mut self, message: &ClientMessage, cx: &mut Cx) -> Effect {
        // What has not been sent costs nothing, whatever its prompt is.
        if let Some(draft) = self.state.draft().filter(|_| self.job.attempt.sent != Mono::NEVER) {
            self.job.count_now(draft, message, cx);
        }
        self.abandon(cx);
        self.drop_provider(cx);
        self.job.note_left();
        Effect::Gone(Outcome { status: finish::CLIENT_LEFT, error: None, usage: self.partial_usage(true) })
    }
}

impl RequestJob {
    /// Reads more of the body, perhaps the last of it.
    fn scan(
        &mut self,
        draft: &mut OutgoingRequest,
        complete: bool,
        message: &ClientMessage,
        cx: &mut Cx,
    ) -> Result<(), Refusal> {
        let length = message.body.len() as u64;
        let scanned = match (&draft.invalid, complete) {
            (Some(_), _) => Ok(()),
            (None, true) => draft.scan.finish(message.body),
            (None, false) => draft.scan.feed(message.body),
        };
        if complete {
            cx.requests.keep_work(&mut draft.scan);
        }
        // Told when the body is complete: the answer must not depend on how its bytes happened to arrive.
        if let Err(Invalid(why)) = scanned {
            draft.invalid = Some(why);
        }
        let body_timeout = self.request.setup.config.server.body_timeout;
        if !complete && is_too_slow(length, cx.now.mono.micros_since(self.request.received), body_timeout) {
            return Err(Refusal::body_too_slow(body_timeout));
        }
        if let Some(key) = self.request.found.key {
            promise_body(draft, key, length, cx)?;
        }
        if !complete {
            promise_named(&self.request, draft, message.body, cx)?;
        }
        let storage = message.storage + draft.storage();
        cx.budget.came(&mut draft.promise, storage, &mut cx.pool);
        if let Some(why) = draft.invalid.take_if(|_| complete) {
            return Err(Refusal::invalid_body(why));
        }
        if complete {
            self.request.read = cx.now.mono;
        }
        Ok(())
    }

    /// Looks at the head: what is asked for, and whether it may pass.
    pub(crate) fn authorize(
        &mut self,
        head: &RequestHead,
        bytes: &[u8],
        ready: Readiness,
        cx: &mut Cx,
    ) -> Result<Endpoint, Refusal> {
        if head.traced | self.request.setup.traces {
            self.begin_trace(Some(&bytes[..head.len as usize]).filter(|_| head.traced));
        }
        let request = &mut self.request;
        let client_request_id = head.field(HeaderField::XRequestId).of(bytes);
        if !client_request_id.is_empty() {
            let told = told(client_request_id, &cx.setup.config.server.key_prefix);
            request.said.get_or_insert_default().client_request_id = told;
        }
        let trusted = &request.setup.config.server.trusted_proxies;
        if !trusted.is_empty() {
            let peer = cx.peers.of(request.client);
            let caller = caller(peer, &bytes[..head.len as usize], trusted);
            if caller != peer {
                self.diagnosis.get_or_insert_default().caller = Some(caller);
            }
        }
        let request = &mut self.request;
        request.cors =
            CorsPolicy::of(&request.setup.config.server.cors_origins, head.field(HeaderField::Origin).of(bytes));
        let shared = cx.is_shared();
        let mut context = AuthContext {
            setup: &cx.setup,
            plans: &cx.plans,
            keys: &mut cx.keys,
            unknown: &mut cx.lookups.unknown,
            meter: &mut cx.meter,
            shared,
            ready,
            now: cx.now.unix,
        };
        let passed = authorize::authorize(head, bytes, &mut context, &mut request.found);
        if let Err(refusal) = &passed {
            let prefix = &cx.setup.config.server.key_prefix;
            let shown = (refusal.status == 401).then(|| presented(head, bytes, self.request.found.endpoint, prefix));
            let spent = shown.and_then(|shown| cx.keys.why_not(shown, prefix, cx.now.unix).1);
            self.note_head(refusal, head, bytes, spent);
        }
        passed
    }
}

/// True if so many bytes of a body, after so many microseconds, are too few to wait for the rest of it.
#[inline]
pub(crate) fn is_too_slow(length: u64, micros: u64, body_timeout: Duration) -> bool {
    micros > body_timeout.as_micros() as u64 && length < (micros / 1_000_000).saturating_mul(BODY_RATE_MIN)
}

/// Promises a body of `length` bytes its room, and the tables that its scan has made: they grow with its members.
fn promise_body(draft: &mut OutgoingRequest, key: KeyIx, length: u64, cx: &mut Cx) -> Result<(), Refusal> {
    cx.budget.body(&mut draft.promise, key, length, &mut cx.pool)?;
    match draft.scan.storage() {
        0 => Ok(()),
        tables => {
            // The budget has just taken it.
            let wanted = usize::try_from(length).unwrap_or(0) + tables + REQUEST_BYTES;
            let more = wanted.saturating_sub(draft.promise.total());
            cx.budget.beyond_body(&mut draft.promise, key, more, &mut cx.pool)?;
            draft.charge(&mut cx.pool);
            Ok(())
        }
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
    fn what_a_stream_under_way_holds_is_small() {
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

    /// The pairs of the table. A piece of a body comes by [`Exchange::data`].
    fn listed() -> Table<'static> {
        let mut table = Table::new();
        for (state, events, _) in transitions::TRANSITIONS {
            table.entry(state).or_default().extend(events.split(", ").filter(|event| *event != "Data"));
        }
        table
    }

    #[test]
    fn the_table_of_states_is_that_of_the_match() {
        let matched = matched(include_str!("mod.rs"));
        assert!(matched.len() > 5, "{matched:?}");
        assert_eq!(matched, listed());
    }
}
