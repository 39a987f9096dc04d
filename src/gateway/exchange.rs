//! One request's life, from its head to its one end. Every way out passes [`Gateway::conclude`]: the hold is settled,
//! the upstream released, the row and the log line written exactly once.
//!
//! | phase | event → next |
//! |---|---|
//! | Reading | body complete → Drafting, Asking (shared ledger), Naming, Dialing or Sending; refused → end |
//! | Drafting | translated elsewhere → Asking, Naming, Dialing or Sending; refused or late → end |
//! | Asking | admitted → Naming, Dialing or Sending; refused → end; unreachable or late → per `on_outage` |
//! | Naming | named → Dialing; failed or late → another attempt or end |
//! | Dialing | dialed → Sending; failed → next address, next target, or end |
//! | Sending | all written → Waiting; early head → Relaying; fault → another attempt or end |
//! | Waiting | head → Relaying; fault or late → another attempt or end |
//! | Relaying | bytes → Relaying; end → Committing or end; fault → another attempt, error event or cut |
//! | Committing | row committed → what was held goes out, end; store failed or late → 503 or error event |
//! | any | client gone → end; drain time over → end |

use super::Gateway;
use super::admit::{self, Court, Endpoint, Finding};
use super::answers::{self, RequestId};
use super::client::{Brief, Client, Phase as ClientPhase};
use super::cors::Grant;
use super::fault::{Fault, FaultKind};
use super::outgoing::{Draft, Outgoing};
use super::relay::Relay;
use super::respond::Face;
use super::stats::Timed;
use super::upstream::Upstream;
use crate::base::buf::Buf;
use crate::base::limits::BODY_RATE_MIN;
use crate::base::slots::Id;
use crate::base::time::{Mono, Now, Unix};
use crate::dialect::TranslationState;
use crate::dialect::request::Invalid;
use crate::dialect::usage::Reported;
use crate::policy::catalog::{Model, Target};
use crate::policy::config::Config;
use crate::policy::meter::{Hold, Lease};
use crate::policy::refusal::{Refusal, RefusalKind};
use crate::policy::usage::{Usage, UsageSource};
use crate::wire::Dialect;
use crate::wire::head::{Expect, Field, Framing, RequestHead};
use std::num::NonZeroU64;
use std::sync::Arc;

/// The status under which a request whose client left is logged and counted.
pub(crate) const CLIENT_LEFT: u16 = 499;
/// Bytes of a client's own `x-request-id` that are logged.
const FOREIGN_ID_MAX: usize = 128;

/// Where an exchange stands; the table is in the module's documentation.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    Reading,
    Asking,
    Drafting,
    Naming,
    Dialing,
    Sending,
    Waiting,
    Relaying,
    Committing,
}

/// How an admission went that was not refused.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Admission {
    /// The request is admitted.
    Granted,
    /// A shared ledger is asked; the exchange waits.
    Asked,
}

/// How much of the answer the client has been promised.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Commit {
    /// Nothing: any status may still be sent.
    None,
    /// The status of a stream, by a heartbeat: another target may still be tried.
    Status,
    /// Part of an answer: no retry any more.
    Relayed,
}

/// Moments of an exchange, for the log and the metrics; `NEVER` where it has not come.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Times {
    pub(crate) head: Mono,
    pub(crate) body: Mono,
    pub(crate) sent: Mono,
    pub(crate) first: Mono,
}

/// One request and all that belongs to it.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) client: Id<Client>,
    pub(crate) id: RequestId,
    pub(crate) phase: Phase,
    pub(crate) head: Brief,
    pub(crate) finding: Finding,
    pub(crate) config: Arc<Config>,
    pub(crate) outgoing: Arc<Outgoing>,
    /// Index into the catalog.
    pub(crate) model: Option<u32>,
    /// Index into the model's targets.
    pub(crate) target: u32,
    /// Targets tried so far, as bits.
    pub(crate) tried: u64,
    /// The breaker waits for the verdict on the present attempt.
    pub(crate) on_trial: bool,
    pub(crate) attempts: u32,
    /// Index into the addresses of the target's host.
    pub(crate) address: u32,
    /// A kept connection turned out to be closed: the free attempt is spent, and only a fresh one will do.
    pub(crate) fresh_only: bool,
    pub(crate) upstream: Option<Id<Upstream>>,
    /// The number of the work it waits for; see `work`.
    pub(crate) working: Option<NonZeroU64>,
    pub(crate) draft: Option<Box<Draft>>,
    pub(crate) relay: Relay,
    /// `last` is a whole answer that is sent from where it lies.
    pub(crate) bulk: bool,
    /// A whole answer as it is collected, or the partial event of a stream.
    pub(crate) held: Buf,
    /// Bytes of the answer's end that wait until its row is committed.
    pub(crate) last: Buf,
    /// What a shared ledger has lent to it or is asked for, to go back with its row.
    pub(crate) lease: Option<Box<Lease>>,
    /// The number of its row, once that has been given to the ledger.
    pub(crate) row: Option<NonZeroU64>,
    pub(crate) hold: Option<Hold>,
    pub(crate) usage: Option<Usage>,
    pub(crate) stream: bool,
    pub(crate) show_usage: bool,
    /// Locally estimated prompt tokens.
    pub(crate) estimate: u64,
    pub(crate) admitted: Unix,
    pub(crate) commit: Commit,
    /// `request_timeout` over all attempts, until a whole answer or a stream's first event has come.
    pub(crate) deadline: Mono,
    /// When the next heartbeat is due.
    pub(crate) beat: Mono,
    /// How long a name may be waited for.
    pub(crate) naming: Mono,
    /// Bytes of buffer charged to the key.
    pub(crate) charged: u64,
    pub(crate) times: Times,
    /// What browsers are told.
    pub(crate) grant: Grant,
    /// The client's own request id, in printable form.
    pub(crate) foreign_id: Box<[u8]>,
    /// Type of the error that was told, if one was.
    pub(crate) error: Option<RefusalKind>,
}

/// What an exchange keeps of the configuration it begins with.
pub(crate) type Plans = (Arc<Config>, Arc<Outgoing>);

impl Exchange {
    pub(crate) fn new(client: Id<Client>, id: RequestId, head: Brief, plans: Plans, now: Now) -> Exchange {
        let never = Mono::NEVER;
        Exchange {
            client,
            id,
            phase: Phase::Reading,
            head,
            finding: Finding::default(),
            config: plans.0,
            outgoing: plans.1,
            model: None,
            target: 0,
            tried: 0,
            on_trial: false,
            attempts: 0,
            address: 0,
            fresh_only: false,
            upstream: None,
            working: None,
            draft: None,
            relay: Relay::None,
            bulk: false,
            held: Buf::default(),
            last: Buf::default(),
            lease: None,
            row: None,
            hold: None,
            usage: None,
            stream: false,
            show_usage: false,
            estimate: 0,
            admitted: now.unix,
            commit: Commit::None,
            deadline: never,
            beat: never,
            naming: never,
            charged: 0,
            times: Times { head: now.mono, body: never, sent: never, first: never },
            grant: Grant::Off,
            foreign_id: Box::default(),
            error: None,
        }
    }

    /// What the head of its answer needs.
    pub(crate) fn face(&self) -> Face {
        Face {
            client: self.client,
            id: self.id,
            key: self.finding.key,
            http11: self.head.http11,
            grant: self.grant.clone(),
        }
    }

    /// The endpoint as metrics and log lines call it.
    pub(crate) fn endpoint_name(&self) -> &'static str {
        self.finding.endpoint.map_or("none", Endpoint::name)
    }

    /// The shape of the endpoint, for generation requests.
    pub(crate) fn shape(&self) -> Option<Dialect> {
        self.finding.shape()
    }

    /// The model asked for, once known.
    pub(crate) fn model(&self) -> Option<&Model> {
        self.model.and_then(|index| self.config.catalog.get(index as usize))
    }

    /// What the translation of the answer needs; `None` where the present target speaks the client's shape.
    pub(crate) fn carry(&self) -> Option<&TranslationState> {
        self.draft.as_ref().and_then(|draft| draft.carry.as_ref())
    }

    /// The target of the present attempt.
    pub(crate) fn target(&self) -> Option<&Target> {
        self.model().and_then(|model| model.targets.get(self.target as usize))
    }
}

impl Gateway {
    pub(crate) fn plans(&self) -> Plans {
        (self.config.clone(), self.outgoing.clone())
    }

    /// A head has arrived: judge it, then answer at once or read the body.
    pub(crate) fn begin(&mut self, cid: Id<Client>, head: RequestHead, now: Now) {
        let id = RequestId::fresh(&mut self.rng);
        let mut ex = Exchange::new(cid, id, Brief::of(&head), self.plans(), now);
        let Some(client) = self.clients.get_mut(cid) else { return };
        client.wait = Mono::NEVER;
        if client.admin {
            return self.answer_admin(&ex, &head, now);
        }
        let ready = self.readiness(cid, now);
        let Some(client) = self.clients.get(cid) else { return };
        let (bytes, _) = client.inbound.message();
        let foreign_id = head.field(Field::XRequestId).of(bytes);
        if !foreign_id.is_empty() {
            ex.foreign_id = answers::printable(foreign_id, FOREIGN_ID_MAX).into();
        }
        ex.grant = Grant::of(&self.config.server.cors_origins, head.field(Field::Origin).of(bytes));
        let shared = self.is_shared();
        let (keys, meter, now_unix) = (&mut self.keys, &mut self.meter, now.unix);
        let mut court = Court { config: &self.config, keys, meter, shared, ready, now: now_unix };
        match admit::judge_head(&head, bytes, &mut court, &mut ex.finding) {
            Ok(Endpoint::Generate(shape)) => self.read_body(ex, &head, shape, now),
            Ok(Endpoint::CountTokens) => self.read_body(ex, &head, Dialect::Messages, now),
            Ok(Endpoint::Preflight) => self.answer_preflight(ex, now),
            Ok(Endpoint::Quota) => self.look(ex, now),
            Ok(endpoint) => self.answer_local(ex, endpoint, now),
            Err(refusal) => self.refuse(ex, &refusal, now),
        }
    }

    fn read_body(&mut self, mut ex: Exchange, head: &RequestHead, shape: Dialect, now: Now) {
        let declared = match head.framing {
            Framing::Length(length) => length,
            _ => 0,
        };
        if let Err(refusal) = self.charges.grow(&mut ex, declared, &self.pool) {
            return self.refuse(ex, &refusal, now);
        }
        let mut draft = self.drafts.take();
        draft.scan.reset(shape);
        draft.head = *head;
        if ex.finding.endpoint == Some(Endpoint::CountTokens) {
            draft.scan.reset_count();
        }
        ex.draft = Some(draft);
        let (cid, max_body) = (ex.client, ex.config.server.max_body);
        let id = self.exchanges.insert(ex);
        let Some(client) = self.clients.get_mut(cid) else { return };
        client.exchange = Some(id);
        client.phase = ClientPhase::Body;
        let begun = client.inbound.begin_body(head, max_body);
        let complete = match begun {
            Ok(complete) => complete,
            Err(refusal) => return self.refuse_body(cid, refusal, now),
        };
        if !complete {
            client.wait = now.mono.after(self.config.server.body_timeout);
            if head.expect == Expect::Continue && client.inbound.body_progress().0 == 0 {
                self.push_client(cid, now, |out| out.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n"));
            }
            self.arm_client(cid);
        }
    }

    /// More of a body has arrived, perhaps the last of it.
    pub(crate) fn body_arrived(&mut self, cid: Id<Client>, now: Now) {
        let Some(client) = self.clients.get_mut(cid) else { return };
        let Some((xid, ex)) = client.exchange.and_then(|id| Some((id, self.exchanges.get_mut(id)?))) else { return };
        let (length, complete) = client.inbound.body_progress();
        let config = &ex.config.server;
        client.wait = now.mono.after(config.body_timeout);
        let elapsed = now.mono.micros_since(ex.times.head);
        let needed = (elapsed / 1_000_000).saturating_mul(BODY_RATE_MIN);
        let slow = !complete && elapsed > config.body_timeout.as_micros() as u64 && (length as u64) < needed;
        let Some(draft) = ex.draft.as_mut() else { return };
        let (_, body) = client.inbound.message();
        let scanned = match (&draft.invalid, complete) {
            (Some(_), _) => Ok(()),
            (None, true) => draft.scan.finish(body),
            (None, false) => draft.scan.feed(body),
        };
        // SharedCounts when the body is complete: the answer must not depend on how its bytes happened to arrive.
        if let Err(Invalid(message)) = scanned {
            draft.invalid = Some(message);
        }
        let invalid = if complete { draft.invalid.take() } else { None };
        if slow {
            return self.refuse_slow_body(cid, now);
        }
        if let Err(refusal) = self.charges.grow(ex, length as u64, &self.pool) {
            return self.refuse_open(xid, &refusal, now);
        }
        if complete {
            if let Some(message) = invalid {
                return self.refuse_open(xid, &Refusal::invalid_body(message), now);
            }
            let Some(client) = self.clients.get_mut(cid) else { return };
            client.phase = ClientPhase::Busy;
            client.wait = Mono::NEVER;
            self.body_complete(xid, now);
        }
    }

    fn body_complete(&mut self, xid: Id<Exchange>, now: Now) {
        let Some(ex) = self.exchanges.get_mut(xid) else { return };
        ex.times.body = now.mono;
        if ex.finding.endpoint == Some(Endpoint::CountTokens) {
            // A count is of the prompt alone; but a model that is named must be there, and be the key's.
            let named = ex.draft.as_ref().is_some_and(|draft| draft.scan.fields().model.is_some());
            let chosen = if named { self.choose_model(xid) } else { Ok(()) };
            return match chosen {
                Ok(()) => self.answer_count(xid, now),
                Err(refusal) => self.refuse_open(xid, &refusal, now),
            };
        }
        // The model before the body for its provider before admission: what cannot be sent is not charged.
        let drafted = self.choose_model(xid).and_then(|()| {
            self.choose_target(xid, now);
            self.draft_body(xid, now)
        });
        match drafted {
            Ok(true) => self.drafted(xid, now),
            Ok(false) => {}
            Err(refusal) => self.refuse_open(xid, &refusal, now),
        }
    }

    /// The body for the present target is ready: admits the request, if that has not been done, and begins an attempt.
    pub(crate) fn drafted(&mut self, xid: Id<Exchange>, now: Now) {
        let Some(ex) = self.exchanges.get(xid) else { return };
        if ex.hold.is_some() {
            return self.attempt(xid, now);
        }
        match self.admit(xid, now) {
            Ok(Admission::Granted) => self.serve(xid, now),
            Ok(Admission::Asked) => {}
            Err(refusal) => self.refuse_open(xid, &refusal, now),
        }
    }

    /// The model that the body names, or the default one, if the key may use it.
    fn choose_model(&mut self, xid: Id<Exchange>) -> Result<(), Refusal> {
        let Some(ex) = self.exchanges.get_mut(xid) else { return Ok(()) };
        let (Some(client), Some(draft)) = (self.clients.get(ex.client), ex.draft.as_ref()) else { return Ok(()) };
        let Some(key) = ex.finding.key else { return Ok(()) };
        let (_, body) = client.inbound.message();
        let fields = draft.scan.fields();
        if fields.thread {
            return Err(Refusal::no_threads());
        }
        self.scratch.clear();
        let catalog = &ex.config.catalog;
        let index = match fields.model_name(body, &mut self.scratch) {
            Some(name) => catalog.find(name).ok_or_else(|| Refusal::unknown_model(name))?,
            None => catalog.default_model().ok_or_else(Refusal::no_model)?,
        };
        let Some(model) = catalog.get(index) else { return Ok(()) };
        if !self.keys.record(key).scope.allows_model(&model.id) {
            return Err(Refusal::model_scope(&model.id));
        }
        ex.stream = fields.stream;
        ex.show_usage = fields.include_usage;
        ex.estimate = fields.prompt_estimate;
        ex.model = u32::try_from(index).ok();
        Ok(())
    }

    /// Charges the request to its window and reserves what it may use, or asks a shared ledger to.
    fn admit(&mut self, xid: Id<Exchange>, now: Now) -> Result<Admission, Refusal> {
        let Some(ex) = self.exchanges.get_mut(xid) else { return Ok(Admission::Asked) };
        let (Some(model), Some(draft)) = (ex.model(), ex.draft.as_ref()) else { return Ok(Admission::Asked) };
        let max_tokens = draft.scan.fields().max_tokens;
        let answer = max_tokens.map_or(model.reserve_tokens, |max| max.min(model.reserve_tokens));
        let estimate = ex.estimate.saturating_add(answer);
        if self.asks_ledger() {
            return self.ask(xid, estimate, now).map(|()| Admission::Asked);
        }
        self.admit_alone(xid, estimate, now).map(|()| Admission::Granted)
    }

    /// An admitted request is served: its clocks start, and the first attempt.
    pub(crate) fn serve(&mut self, xid: Id<Exchange>, now: Now) {
        let Some(ex) = self.exchanges.get_mut(xid) else { return };
        if let Some(target) = ex.target() {
            ex.deadline = now.mono.after(target.limits.request_timeout);
        }
        if ex.stream {
            ex.beat = now.mono.after(ex.config.server.heartbeat_after);
        }
        let cid = ex.client;
        self.arm_client(cid);
        self.attempt(xid, now);
    }

    /// Closes the hold with what was really used, once.
    pub(crate) fn settle(&mut self, ex: &mut Exchange, usage: Usage) {
        if let Some(hold) = ex.hold.take() {
            // As the ledger will keep it, so that what is counted now is what is counted after a restart.
            let usage = usage.bounded();
            match usage.total() {
                0 => self.meter.refund(hold),
                tokens => self.meter.settle(hold, tokens),
            }
            ex.usage = Some(usage);
        }
    }

    /// What an exchange that ended before its answer was complete is charged (contract section 3).
    pub(crate) fn partial_usage(ex: &Exchange, client_left: bool) -> Usage {
        let heard = ex.relay.heard();
        let sent = matches!(ex.phase, Phase::Waiting | Phase::Relaying) || ex.times.sent != Mono::NEVER;
        let nothing_came = heard.relayed_tokens == 0 && heard.reported == Reported::default();
        if (client_left && !sent) || (!client_left && nothing_came) {
            return Usage::default();
        }
        let known = heard.reported;
        let source = if known == Reported::default() { UsageSource::Estimated } else { UsageSource::Partial };
        Usage {
            uncached_in: known.input.unwrap_or(ex.estimate),
            cache_read: known.cache_read.unwrap_or(0),
            cache_write: known.cache_write.unwrap_or(0),
            out: known.output.unwrap_or(0).max(heard.relayed_tokens),
            source,
        }
    }

    /// The client has left: its upstream is closed at once and what was used is settled.
    pub(crate) fn abandon(&mut self, xid: Id<Exchange>, now: Now) {
        let Some(mut ex) = self.take_exchange(xid) else { return };
        let usage = Gateway::partial_usage(&ex, true);
        self.settle(&mut ex, usage);
        self.conclude(ex, CLIENT_LEFT, now);
    }

    /// The drain time is over.
    pub(crate) fn end_for_drain(&mut self, xid: Id<Exchange>, now: Now) {
        self.end_with_fault(xid, Fault::from(FaultKind::Draining), now);
    }

    /// Takes an exchange out of its slot and off its client; an upstream it still has is closed.
    pub(crate) fn take_exchange(&mut self, xid: Id<Exchange>) -> Option<Exchange> {
        let mut ex = self.exchanges.remove(xid)?;
        if let Some(client) = self.clients.get_mut(ex.client) {
            client.exchange = None;
        }
        if let Some(upstream) = ex.upstream.take() {
            self.close_upstream(upstream);
        }
        Some(ex)
    }

    /// The one end of every exchange: row, log line, counters; everything it held goes back.
    pub(crate) fn conclude(&mut self, mut ex: Exchange, status: u16, now: Now) {
        debug_assert!(ex.hold.is_none() && ex.upstream.is_none());
        self.charges.release(&mut ex);
        self.undecided(&mut ex);
        ex.held.release(&mut self.pool);
        ex.last.release(&mut self.pool);
        if let Some(draft) = ex.draft.take() {
            self.drafts.put(draft, &mut self.pool);
        }
        if let Relay::Stream(flow) = std::mem::replace(&mut ex.relay, Relay::None) {
            self.flows.put(flow);
        }
        self.count(&ex, status, now);
        self.record(&mut ex, status, now);
        self.log(&ex, status, now);
    }

    fn count(&mut self, ex: &Exchange, status: u16, now: Now) {
        self.stats.request(ex.endpoint_name(), ex.model().map(|model| &model.id), status);
        if let (Some(usage), Some(model)) = (&ex.usage, ex.model()) {
            self.stats.usage(&model.id, usage);
        }
        let times = ex.times;
        let span = |from: Mono, to: Mono| (from != Mono::NEVER && to != Mono::NEVER).then(|| to.micros_since(from));
        let ends = [
            (Timed::Body, span(times.head, times.body)),
            (Timed::Send, span(times.body, times.sent)),
            (Timed::Wait, span(times.sent, times.first)),
            (Timed::Relay, span(times.first, now.mono)),
            (Timed::Total, span(times.head, now.mono)),
        ];
        for (phase, micros) in ends {
            if let Some(micros) = micros {
                self.stats.phase(phase, micros);
            }
        }
    }

    /// A deadline that hangs on the exchange rather than on one of its connections.
    pub(crate) fn exchange_expired(&mut self, xid: Id<Exchange>, now: Now) {
        let Some(ex) = self.exchanges.get(xid) else { return };
        if ex.phase == Phase::Committing {
            self.commit_failed(xid, now);
        } else if ex.phase == Phase::Asking {
            let cid = ex.client;
            self.ask_failed(xid, now);
            self.advance(cid, now);
        } else if ex.deadline <= now.mono {
            self.attempt_failed(xid, Fault::from(FaultKind::RequestTimeout), now);
        } else if ex.naming <= now.mono {
            self.attempt_failed(xid, Fault::from(FaultKind::ConnectTimeout), now);
        } else if ex.beat <= now.mono {
            self.heartbeat(xid, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::flow::Flow;

    /// What every stream under way costs; a client beside it costs what it costs idle.
    #[test]
    fn what_a_stream_under_way_holds_is_small() {
        assert!(size_of::<Exchange>() <= 416, "{}", size_of::<Exchange>());
        assert!(size_of::<Upstream>() <= 104, "{}", size_of::<Upstream>());
        assert!(size_of::<Flow>() <= 272, "{}", size_of::<Flow>());
        assert!(size_of::<Client>() <= 128, "{}", size_of::<Client>());
    }
}
