//! The life of one request, from its head to its one end. A state machine: it receives [`ExchangeEvent`]s and returns
//! an [`Effect`]; it knows neither sockets nor connections. Every way out passes [`Exchange::finish`]: the reservation
//! is settled, and the usage record and the log line are written exactly once.
//!
//! A state owns its data, which is dropped with it: once the draft is dropped, the request is committed to its target.
//! A test checks this table against the match of [`Exchange::on`]; any other transition is a bug.
//!
//! | state | event → next |
//! |---|---|
//! | Identifying | LookedUp → end, or begun again; Due → end |
//! | Reading | Body → Reading, Translating, Reserving, Attempting or end; Refused → end; Due → Reading |
//! | Translating | Translated → Reserving, Attempting or end; Offloaded → end; Drained → Translating; Due → Translating or end |
//! | Reserving | Ruled, Counted → Attempting, Queued, Translating or end; Drained → Reserving; Due → Attempting, Queued or end |
//! | Queued | Place → Attempting, Queued, Translating or end; Count, Drained → Queued; Due → Queued or end |
//! | Attempting | Named, Dialed, DialFailed, Sent, Renewed, Drained, Count, Due, Failed → Attempting; Head → Answering; Named, DialFailed, Renewed, Failed, Due → Translating or end |
//! | Answering | Sent, Room, Drained, Offloaded, Count, Due → Answering; Whole, BodyEnd, Offloaded, Room, Due → Committing or end; Whole, BodyEnd, Offloaded, Failed, Due → Attempting, Translating or end |
//! | Committing | Committed, NotCommitted, Due → end; Drained, Sent → Committing |
//! | any | Left, Stopped → end |
//!
//! A piece of an answer's body is no event: [`Exchange::data`] takes it, in Answering only, and it may lead to the same
//! states as the end of a body.

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
mod mask;
mod need;
mod queue;
mod renewal;
mod reply;
mod reserve;
mod spans;
mod state;
mod stream;
pub(crate) mod streams;
mod verdict;
mod views;

pub(crate) use authorize::{Endpoint, Readiness};
pub(crate) use event::{ClientMessage, Dial, Effect, ExchangeEvent, Forward, Outcome};
pub(crate) use state::{Exchange, Request};

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
use crate::policy::catalog::{Model, Target};
use crate::policy::config::Provider;
use crate::policy::keys::{KeyIx, Keys};
use crate::policy::meter::{Amount, Hold, Meter};
use crate::policy::refusal::Refusal;
use crate::policy::row::Running;
use crate::wire::Dialect;
use crate::wire::head::{HeaderField, RequestHead};
use authorize::{AuthContext, Identified, presented};
use build::{promise_named, promise_translation};
use diagnosis::told;
use fault::{Fault, FaultKind};
use state::{Answering, Attempt, Attempting, Body, Committing, Half, Queued, Reserving, State, Translating};
use std::time::Duration;

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
        Exchange { request, asked: None, admitted: None, attempt, state: State::Ended, diagnosis: None }
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

    /// Starts the lookup of its key in the ledger; the checks that follow from the head wait for that.
    pub(crate) fn identify(&mut self, head: &RequestHead, now: Mono) {
        self.state = State::Identifying { head: Box::new(*head), by: now.after(ASK_TIMEOUT) };
    }

    /// True if its key is being looked up.
    pub(crate) fn is_identifying(&self) -> bool {
        matches!(self.state, State::Identifying { .. })
    }

    fn looked_up(&mut self, answered: bool) -> Effect {
        match std::mem::replace(&mut self.state, State::Ended) {
            State::Identifying { head, .. } if answered => Effect::Authorize(head),
            // A ledger that cannot be asked is no reason to call a key wrong.
            _ => self.refuse(Refusal::store()),
        }
    }

    /// The head has passed: the body is promised its room, and read.
    pub(crate) fn read_body(&mut self, head: &RequestHead, declared: u64, cx: &mut Cx) -> Result<(), Refusal> {
        let (Some(key), Some(dialect)) = (self.request.found.key, self.dialect()) else { return Ok(()) };
        let mut draft = cx.requests.take();
        let promised = cx.budget.body(&mut draft.promise, key, declared, &mut cx.pool);
        if let Err(refusal) = promised.and_then(|()| promise_translation(&self.request, &mut draft, declared, None, cx))
        {
            cx.requests.put(draft, &mut cx.budget, &mut cx.pool);
            return Err(refusal);
        }
        draft.scan.reset(dialect);
        draft.head = *head;
        if let Some(Endpoint::CountTokens(shape)) = self.request.found.endpoint {
            draft.scan.reset_count(shape);
        }
        self.state = State::Reading { draft };
        Ok(())
    }

    /// Handles an event in the present state. Any other combination is a bug: it ends this exchange, and a debug build
    /// panics.
    pub(crate) fn on(&mut self, event: ExchangeEvent<'_>, message: &ClientMessage<'_>, cx: &mut Cx) -> Effect {
        match (&mut self.state, event) {
            (State::Identifying { .. }, ExchangeEvent::LookedUp { answered }) => self.looked_up(answered),
            (State::Identifying { .. }, ExchangeEvent::Due { .. }) => self.looked_up(false),
            (State::Reading { .. }, ExchangeEvent::Body { complete }) => self.body(complete, message, cx),
            (State::Reading { .. }, ExchangeEvent::Refused(refusal)) => self.refuse(*refusal),
            (State::Translating(_), ExchangeEvent::Translated { draft, built }) => {
                self.translated(draft, built, message, cx)
            }
            (State::Reserving(_), ExchangeEvent::Ruled(ask, ruling)) => self.ruled(ask, ruling, message, cx),
            (State::Reserving(_), ExchangeEvent::Counted) => self.others_counted(message, cx),
            (State::Reserving(_), ExchangeEvent::Due { .. }) => self.not_ruled(message, cx),
            (State::Queued(_) | State::Attempting(_) | State::Answering(_), ExchangeEvent::Count) => {
                self.count_now(message, cx)
            }
            (State::Queued(_), ExchangeEvent::Place) => self.placed(message, cx),
            (State::Attempting(_), ExchangeEvent::Named { host, port, failed }) => {
                self.named(host, port, failed, message, cx)
            }
            (State::Attempting(_), ExchangeEvent::Dialed(id)) => self.dialed(id, cx),
            (State::Attempting(_), ExchangeEvent::Renewed) => self.renewed(message, cx),
            (State::Attempting(_), ExchangeEvent::DialFailed(id, why)) => self.dial_failed(id, why, message, cx),
            (State::Attempting(_) | State::Answering(_), ExchangeEvent::Sent) => self.sent(cx),
            (State::Attempting(_), ExchangeEvent::Head(head, bytes)) => self.answer_begins(head, bytes, message, cx),
            (State::Answering(_), ExchangeEvent::Whole(body)) => self.whole(body, message, cx),
            (State::Answering(_), ExchangeEvent::BodyEnd) => self.body_end(message, cx),
            (State::Answering(_), ExchangeEvent::Room) => self.room(cx),
            (State::Answering(_), ExchangeEvent::Drained) => self.drained(cx),
            (State::Answering(_), ExchangeEvent::Offloaded(product)) => {
                self.offloaded(product.map(|product| *product), message, cx)
            }
            (State::Attempting(_) | State::Answering(_), ExchangeEvent::Failed { kind, reused }) => {
                self.attempt_failed(Fault::from(kind), reused, message, cx)
            }
            (State::Translating(_), ExchangeEvent::Offloaded(_)) => self.end(Fault::from(FaultKind::Internal), cx),
            (
                State::Translating(_) | State::Queued(_) | State::Attempting(_) | State::Answering(_),
                ExchangeEvent::Due { unread, drained },
            ) => self.due_now(unread, drained, message, cx),
            (State::Committing(_), ExchangeEvent::Committed) => self.committed(cx),
            (State::Committing(_), ExchangeEvent::NotCommitted | ExchangeEvent::Due { .. }) => {
                self.end(Fault::from(FaultKind::Store), cx)
            }
            // A body under way is watched by its connection; an answer that has ended wants nothing more.
            (State::Reading { .. }, ExchangeEvent::Due { .. }) => Effect::Nothing,
            (State::Committing(_), ExchangeEvent::Drained | ExchangeEvent::Sent) => Effect::Nothing,
            (
                State::Attempting(_) | State::Queued(_) | State::Reserving(_) | State::Translating(_),
                ExchangeEvent::Drained,
            ) => Effect::Nothing,
            (_, ExchangeEvent::Left) => self.left(message, cx),
            (_, ExchangeEvent::Stopped) => {
                self.abandon(cx);
                self.end(Fault::from(FaultKind::Draining), cx)
            }
            (state, event) => {
                debug_assert!(false, "{event:?} while {state:?}");
                self.end(Fault::from(FaultKind::Internal), cx)
            }
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
        self.admitted.as_ref().map_or(by, |admitted| by.min(admitted.until).min(admitted.beat))
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
            && self.target_provider().is_some_and(|provider| {
                let (hop, at) = provider.next_hop();
                **hop == *host && at == port
            })
    }

    /// May still be admitted, so that a hand-over waits for it.
    pub(crate) fn may_be_admitted(&self) -> bool {
        let on_its_way = matches!(self.state, State::Identifying { .. } | State::Translating(_) | State::Reserving(_));
        self.admitted.is_none() && on_its_way
    }

    /// True if it was admitted by an upper bound of its usage.
    pub(crate) fn is_bounded(&self) -> bool {
        self.admitted.is_some() && self.asked.is_some_and(|asked| asked.prompt.is_none())
    }

    /// A shared ledger is asked.
    pub(crate) fn is_reserving(&self) -> bool {
        matches!(self.state, State::Reserving(_))
    }

    /// Reservation in the meter, while it exists.
    pub(crate) fn hold(&self) -> Option<&Hold> {
        self.admitted.as_ref().map(|admitted| &admitted.hold)
    }

    /// The admitted request as a successor process receives it; `None` if nothing has been admitted, or everything is
    /// settled.
    pub(crate) fn running(&self, meter: &Meter, keys: &Keys) -> Option<Running> {
        let (admitted, key) = (self.admitted.as_ref()?, self.request.found.key?);
        let Amount { tokens: reserved, nano: money } = meter.reserved(&admitted.hold);
        let (request, key, group) = (self.request.id.raw(), keys.get(key).id(), meter.path_text(&admitted.hold));
        Some(Running { request, key, admitted: admitted.at, reserved, money, group })
    }

    /// The shape of the endpoint, for generation requests.
    pub(crate) fn dialect(&self) -> Option<Dialect> {
        self.request.found.shape()
    }

    /// The model asked for, once known.
    fn model(&self) -> Option<&Model> {
        self.asked.and_then(|asked| self.request.setup.config.catalog.get(asked.model as usize))
    }

    /// Targets of the model that serve the requested operation.
    #[inline]
    fn targets(&self) -> &[Target] {
        self.model().map_or(&[], |model| self.targets_of(model))
    }

    #[inline]
    fn targets_of<'a>(&self, model: &'a Model) -> &'a [Target] {
        let relays = !model.relayed.is_empty() && matches!(self.dialect(), Some(Dialect::Relay(_)));
        if relays { &model.relayed } else { &model.targets }
    }

    /// Something of a stream is sent: true if its head goes before it.
    #[inline]
    fn open(&mut self) -> bool {
        !std::mem::replace(&mut self.attempt.opened, true)
    }

    /// The target of the present attempt; `None` before the model is known.
    #[inline]
    fn target(&self) -> Option<&Target> {
        self.targets().get(self.attempt.target as usize)
    }

    #[inline]
    fn target_provider(&self) -> Option<&Provider> {
        self.request.setup.config.providers.get(self.target()?.provider)
    }

    /// More of the body has come, perhaps the last of it.
    fn body(&mut self, complete: bool, message: &ClientMessage<'_>, cx: &mut Cx) -> Effect {
        let State::Reading { draft } = &mut self.state else { return Effect::Nothing };
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
            return self.refuse(Refusal::body_too_slow(body_timeout));
        }
        if let Some(key) = self.request.found.key
            && let Err(refusal) = promise_body(draft, key, length, cx)
        {
            return self.refuse(refusal);
        }
        if !complete && let Err(refusal) = promise_named(&self.request, draft, message.body, cx) {
            return self.refuse(refusal);
        }
        let storage = message.storage + draft.storage();
        cx.budget.came(&mut draft.promise, storage, &mut cx.pool);
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
        Effect::Refuse(Box::new(refusal), outcome)
    }

    /// The client has left.
    fn left(&mut self, message: &ClientMessage<'_>, cx: &mut Cx) -> Effect {
        // What has not been sent costs nothing, whatever its prompt is.
        if self.attempt.sent != Mono::NEVER {
            self.count_now(message, cx);
        }
        self.abandon(cx);
        self.drop_provider(cx);
        self.note_left();
        Effect::Gone(Outcome { status: finish::CLIENT_LEFT, error: None, usage: self.partial_usage(true) })
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

    fn documented(source: &str) -> Table<'_> {
        let rows =
            source.lines().filter_map(|line| line.strip_prefix("//! | ")).filter(|row| !row.starts_with("state"));
        let cells = rows.filter_map(|row| row.split_once(" | "));
        let events = |steps: &'static str| -> BTreeSet<&str> {
            let before = |step: &'static str| step.split('→').next().unwrap_or_default().split(',').map(str::trim);
            steps.trim_end_matches(" |").split(';').flat_map(before).collect()
        };
        cells.map(|(state, steps)| (state, events(Box::leak(steps.to_owned().into_boxed_str())))).collect()
    }

    #[test]
    fn the_table_of_states_is_that_of_the_match() {
        let source = include_str!("mod.rs");
        let (matched, documented) = (matched(source), documented(source));
        assert!(matched.len() > 5, "{matched:?}");
        assert_eq!(matched, documented);
    }
}
