//! What becomes of an answer's body: passed on event by event, collected and passed on as a whole, or read as an
//! error. Usage is overheard on the way.

use super::Gateway;
use super::answers::{EVENTS, Extent};
use super::exchange::{Commit, Exchange};
use super::fault::{Fault, FaultKind, mask};
use super::flow::Flow;
use super::respond::Opening;
use super::upstream::Upstream;
use crate::base::buf::Buf;
use crate::base::limits::{BODY_STEP_MAX, DONE_GRACE, ERROR_BODY_MAX, EXTENDED_MIN, HIGH_WATER};
use crate::base::slots::Id;
use crate::base::time::{Mono, Now, Unix};
use crate::dialect::errors;
use crate::dialect::{ErrorText, ObservedUsage, Progress, ResponseIdentity, StreamFault, StreamTranslator};
use crate::policy::usage::{Usage, UsageSource};
use crate::policy::window;
use crate::wire::Dialect;
use crate::wire::body::{LAST_CHUNK, write_chunk, write_chunk_size};
use crate::wire::head::{Framing, ResponseHead};

/// Words for an answer that is not what was asked for.
const NOT_A_STREAM: &str = "the provider answered a streamed request with something that is not a stream";
const ENCODED: &str = "the provider's answer is compressed, although compression was refused";
/// Bytes around a chunk, at most.
const CHUNK_FRAME: usize = 24;
/// Longest wait of a provider's that is passed on, in seconds: a year.
const WAIT_MAX: f64 = 366.0 * 86_400.0;
pub(super) const NOT_JSON: &str = "the provider's answer was not valid";

/// How the body of the present answer is treated.
#[derive(Debug)]
pub(crate) enum Relay {
    /// No answer yet.
    None,
    /// A whole answer, collected.
    Whole {
        /// Its bytes as far as they are announced.
        announced: Option<u64>,
    },
    /// A stream, in the client's own shape or translated.
    Stream(Box<Flow>),
    /// A stream whose event under way is read elsewhere; what had been overheard before.
    Away(Box<ObservedUsage>),
    /// A failed answer, collected for its message.
    Error {
        /// Its status.
        status: u16,
        /// Its `retry-after`, in seconds.
        retry_after: Option<u64>,
    },
}

impl Relay {
    /// What has been overheard so far.
    pub(crate) fn heard(&self) -> ObservedUsage {
        match self {
            Relay::Stream(flow) => flow.heard(),
            Relay::Away(heard) => **heard,
            Relay::None | Relay::Whole { .. } | Relay::Error { .. } => ObservedUsage::default(),
        }
    }
}

/// What a piece of an answer led to.
#[derive(Debug)]
pub(crate) enum Step {
    /// More is to come.
    More,
    /// The piece is read elsewhere; nothing more is taken until that is done.
    Paused,
    /// The client has its whole answer; the exchange has ended.
    Ended,
    /// The attempt has failed.
    Failed(Fault),
}

pub(super) fn me<'a>(ex: &'a Exchange, now: Now) -> ResponseIdentity<'a> {
    let model = ex.model().map_or("", |model| &model.id);
    ResponseIdentity { id: ex.id.as_str(), model, created: now.unix.secs(), prompt_estimate: ex.estimate }
}

impl Exchange {
    /// When a stream's next event is late, after a finish reason what is missing then.
    fn due_after(&self, finish_seen: bool, now: Now) -> Mono {
        let idle = self.target().map_or(DONE_GRACE, |target| target.limits.idle_timeout);
        now.mono.after(if finish_seen { DONE_GRACE.min(idle) } else { idle })
    }

    /// The same for a stream that has begun; for one that is read elsewhere as if it went on.
    pub(crate) fn events_due(&self, now: Now) -> Option<Mono> {
        let finish_seen = match &self.relay {
            Relay::Stream(flow) => flow.finish_seen(),
            Relay::Away(_) => false,
            Relay::None | Relay::Whole { .. } | Relay::Error { .. } => return None,
        };
        Some(self.due_after(finish_seen, now))
    }
}

impl Gateway {
    /// A head has come: decides what is done with the body.
    pub(crate) fn open_relay(
        &mut self,
        xid: Id<Exchange>,
        head: &ResponseHead,
        bytes: &[u8],
        now: Now,
    ) -> Result<(), Fault> {
        let Some(ex) = self.exchanges.get_mut(xid) else { return Ok(()) };
        if head.status != 200 {
            let retry_after = std::str::from_utf8(head.retry_after.of(bytes)).unwrap_or_default();
            ex.relay = Relay::Error { status: head.status, retry_after: wait_asked(retry_after, now.unix) };
            return Ok(());
        }
        let encoding = head.content_encoding.of(bytes).trim_ascii();
        if !encoding.is_empty() && !encoding.eq_ignore_ascii_case(b"identity") {
            return Err(Fault::from(FaultKind::BadBody(ENCODED)));
        }
        if !ex.stream {
            let announced = match head.framing {
                Framing::Length(length) => Some(length),
                _ => None,
            };
            ex.relay = Relay::Whole { announced };
            return Ok(());
        }
        let content_type = head.content_type.of(bytes).trim_ascii();
        let is_events = content_type.is_empty()
            || content_type.get(..17).is_some_and(|start| start.eq_ignore_ascii_case(b"text/event-stream"));
        let (Some(shape), Some(target), true) = (ex.shape(), ex.target(), is_events) else {
            return Err(Fault::from(FaultKind::BadBody(NOT_A_STREAM)));
        };
        let (usage, max_event) = (ex.show_usage, target.limits.max_event);
        let flow = match ex.draft.as_mut().and_then(|draft| draft.carry.take()) {
            None => self.flows.same(shape, usage, max_event),
            Some(carry) => {
                let translator = StreamTranslator::new(shape.other(), carry, usage, max_event);
                Box::new(Flow::Cross(Box::new(translator)))
            }
        };
        ex.relay = Relay::Stream(flow);
        Ok(())
    }

    /// A piece of the body.
    pub(crate) fn relay(&mut self, xid: Id<Exchange>, data: &[u8], now: Now) -> Step {
        let Some(ex) = self.exchanges.get_mut(xid) else { return Step::Ended };
        let (limit, announced, whole) = match ex.relay {
            Relay::Stream(_) => return self.relay_stream(xid, data, now),
            Relay::None | Relay::Away(_) => return Step::More,
            Relay::Error { .. } => (ERROR_BODY_MAX, None, false),
            Relay::Whole { announced } => (ex.target().map_or(0, |target| target.limits.max_response), announced, true),
        };
        let fits = ex.held.len() + data.len() <= limit;
        match whole {
            true if !fits || !self.pool.has_room(data.len()) => {
                Step::Failed(Fault::from(FaultKind::TooLarge("max_response")))
            }
            _ if fits => {
                let ahead = ahead_of(ex.held.len(), announced, limit);
                ex.held.push_ahead(&mut self.pool, data, ahead);
                Step::More
            }
            _ => Step::More,
        }
    }

    fn relay_stream(&mut self, xid: Id<Exchange>, data: &[u8], now: Now) -> Step {
        if !self.pool.has_room(data.len()) {
            return Step::Failed(Fault::from(FaultKind::TooLarge("max_buffered")));
        }
        let work_min = self.work_min;
        let Some(ex) = self.exchanges.get_mut(xid) else { return Step::Ended };
        if ex.held.len() + data.len() > work_min {
            self.work_on_events(xid, data, now);
            return Step::Paused;
        }
        let Relay::Stream(mut flow) = std::mem::replace(&mut ex.relay, Relay::None) else { return Step::More };
        let mut held = std::mem::take(&mut ex.held);
        self.scratch.clear();
        let fed = flow.feed(data, &mut held, &mut self.pool, &me(ex, now), &mut self.scratch);
        ex.relay = Relay::Stream(flow);
        ex.held = held;
        self.events_fed(xid, fed, now)
    }

    /// A piece of a stream has been read, its events lie in `scratch`: sends them.
    fn events_fed(&mut self, xid: Id<Exchange>, fed: Result<Progress, StreamFault>, now: Now) -> Step {
        let Some(ex) = self.exchanges.get(xid) else { return Step::Ended };
        let (finish_seen, end_at) = match &ex.relay {
            Relay::Stream(flow) => (flow.finish_seen(), flow.end_at()),
            _ => (false, None),
        };
        let events = match &fed {
            Ok(progress) => progress.events,
            // What came before the fault is still the client's.
            Err(_) => u32::from(!self.scratch.is_empty()),
        };
        match events {
            0 => self.relay_sign_of_life(xid, now),
            _ => self.relayed(xid, finish_seen, end_at, now),
        }
        match fed {
            Err(fault) => Step::Failed(stream_fault(fault, self.exchanges.get(xid))),
            Ok(progress) if progress.finished => {
                self.end_stream(xid, now);
                Step::Ended
            }
            Ok(_) => Step::More,
        }
    }

    /// The same, read elsewhere. `upstream` is where the stream comes from.
    pub(crate) fn events_read(
        &mut self,
        xid: Id<Exchange>,
        upstream: Option<Id<Upstream>>,
        out: Vec<u8>,
        fed: Result<Progress, StreamFault>,
        now: Now,
    ) {
        let spare = std::mem::replace(&mut self.scratch, out);
        let step = self.events_fed(xid, fed, now);
        self.scratch = spare;
        match (step, upstream) {
            (Step::Failed(fault), _) => self.attempt_failed(xid, fault, now),
            (Step::Ended, Some(uid)) => self.await_tail_here(uid, now),
            _ => {}
        }
    }

    /// Events have been relayed into `scratch`: commits to the answer and sends them. From byte `end_at` on they end
    /// the stream, and wait for its row where that is asked for.
    fn relayed(&mut self, xid: Id<Exchange>, finish_seen: bool, end_at: Option<usize>, now: Now) {
        let Some(ex) = self.exchanges.get_mut(xid) else { return };
        let due = ex.due_after(finish_seen, now);
        ex.deadline = Mono::NEVER;
        ex.beat = now.mono.after(ex.config.server.heartbeat_after);
        let upstream = ex.upstream;
        if let Some(upstream) = upstream {
            self.wait_upstream(upstream, due);
        }
        let bytes = std::mem::take(&mut self.scratch);
        if self.is_long(bytes.len()) && !self.waits_for_rows() {
            return self.send_large_event(xid, bytes, now);
        }
        let sent = self.hold_back(xid, &bytes, end_at);
        if !sent.is_empty() {
            self.send_events(xid, Commit::Relayed, sent, now);
        }
        self.scratch = bytes;
    }

    /// Comments and pings alone: passed on, so that no proxy cuts the line, but they open no stream and keep no
    /// deadline away (contract section 4).
    fn relay_sign_of_life(&mut self, xid: Id<Exchange>, now: Now) {
        let open = self.exchanges.get(xid).is_some_and(|ex| ex.commit > Commit::None);
        if open && !self.scratch.is_empty() {
            let bytes = std::mem::take(&mut self.scratch);
            self.send_events(xid, Commit::Status, &bytes, now);
            self.scratch = bytes;
        }
    }

    /// Sends bytes of a stream, its head before the first of them.
    pub(crate) fn send_events(&mut self, xid: Id<Exchange>, commit: Commit, bytes: &[u8], now: Now) {
        self.open_events(xid, commit, now);
        let Some(ex) = self.exchanges.get(xid) else { return };
        let (cid, chunked) = (ex.client, ex.head.http11);
        self.push_client(cid, now, |out| {
            // What waits for a slow client grows by what is needed, not by half as much again.
            if out.len() >= HIGH_WATER / 4 {
                out.reserve_exact(bytes.len() + CHUNK_FRAME);
            }
            match chunked {
                true => write_chunk(out, bytes),
                false => out.extend_from_slice(bytes),
            }
        });
    }

    /// The same without a copy.
    fn send_large_event(&mut self, xid: Id<Exchange>, mut bytes: Vec<u8>, now: Now) {
        self.open_events(xid, Commit::Relayed, now);
        let Some(ex) = self.exchanges.get(xid) else { return };
        let cid = ex.client;
        if ex.head.http11 {
            self.push_client(cid, now, |out| write_chunk_size(out, bytes.len()));
            bytes.reserve_exact(2);
            bytes.extend_from_slice(b"\r\n");
        }
        let bulk = Buf::adopt(&mut self.pool, bytes);
        self.push_bulk(cid, bulk, now);
    }

    /// Commits a stream to so much, and writes its head if that has not been done.
    fn open_events(&mut self, xid: Id<Exchange>, commit: Commit, now: Now) {
        if self.exchanges.get(xid).is_some_and(|ex| ex.commit == Commit::None) {
            self.open_stream(xid, now);
        }
        let Some(ex) = self.exchanges.get_mut(xid) else { return };
        if commit == Commit::Relayed && ex.commit < Commit::Relayed {
            self.commit(xid);
        }
    }

    /// The commit point: no other attempt can follow, so the request's bytes are let go.
    fn commit(&mut self, xid: Id<Exchange>) {
        let Some(ex) = self.exchanges.get_mut(xid) else { return };
        ex.commit = Commit::Relayed;
        self.charges.release(ex);
        if let Some(draft) = ex.draft.take() {
            self.drafts.put(draft, &mut self.pool);
        }
        if let Some(client) = self.clients.get_mut(ex.client) {
            client.inbound.release(&mut self.pool);
        }
    }

    fn open_stream(&mut self, xid: Id<Exchange>, now: Now) {
        let Some(ex) = self.exchanges.get_mut(xid) else { return };
        ex.commit = Commit::Status;
        let (face, head) = (ex.face(), ex.head);
        let extent = if head.http11 { Extent::Chunked } else { Extent::ToEnd };
        let next = self.next_after(face.client, head, extent == Extent::ToEnd);
        self.write_head(&face, &Opening { status: 200, extent, content_type: EVENTS, refusal: None, next }, now);
    }

    /// The stream has come to its proper end.
    fn end_stream(&mut self, xid: Id<Exchange>, now: Now) {
        let Some(ex) = self.exchanges.get_mut(xid) else { return };
        // The connection outlives the exchange: its body's end is still to be read.
        ex.upstream = None;
        self.target_succeeded(xid);
        let Some(mut ex) = self.take_exchange(xid) else { return };
        let usage = charged(ex.relay.heard(), ex.estimate);
        self.settle(&mut ex, usage);
        match self.waits_for_rows() {
            true => self.await_commit(ex, now),
            false => self.close_stream(ex, now),
        }
    }

    pub(crate) fn close_stream(&mut self, ex: Exchange, now: Now) {
        let (cid, head) = (ex.client, ex.head);
        if head.http11 {
            self.push_client(cid, now, |out| out.extend_from_slice(LAST_CHUNK));
        }
        let next = self.next_after(cid, head, !head.http11);
        self.conclude(ex, 200, now);
        self.move_on(cid, next, now);
        self.advance(cid, now);
    }

    /// The body has ended as its framing promised.
    pub(crate) fn relay_end(&mut self, xid: Id<Exchange>, now: Now) -> Step {
        let Some(ex) = self.exchanges.get_mut(xid) else { return Step::Ended };
        match &mut ex.relay {
            Relay::None => Step::Failed(Fault::from(FaultKind::Incomplete)),
            Relay::Error { status, retry_after } => {
                let (status, retry_after) = (*status, *retry_after);
                Step::Failed(status_fault(ex, status, retry_after))
            }
            Relay::Whole { .. } => self.end_whole(xid, now),
            Relay::Stream(_) => self.stream_body_ended(xid, now),
            Relay::Away(_) => Step::Paused,
        }
    }

    fn stream_body_ended(&mut self, xid: Id<Exchange>, now: Now) -> Step {
        let work_min = self.work_min;
        let Some(ex) = self.exchanges.get_mut(xid) else { return Step::Ended };
        if ex.held.len() > work_min {
            // Nothing more is awaited from the provider.
            if let Some(uid) = ex.upstream {
                self.wait_upstream(uid, Mono::NEVER);
            }
            self.work_on_last_event(xid, now);
            return Step::Paused;
        }
        let Relay::Stream(mut flow) = std::mem::replace(&mut ex.relay, Relay::None) else { return Step::More };
        let mut held = std::mem::take(&mut ex.held);
        self.scratch.clear();
        let ended = flow.end(&mut held, &mut self.pool, &me(ex, now), &mut self.scratch);
        ex.relay = Relay::Stream(flow);
        ex.held = held;
        self.last_events_fed(xid, ended, now)
    }

    /// The end of a stream has been read, what it came to lies in `scratch`: sends it.
    fn last_events_fed(&mut self, xid: Id<Exchange>, ended: Result<(), StreamFault>, now: Now) -> Step {
        if !self.scratch.is_empty() {
            let end_at = ended.is_ok().then_some(0);
            self.relayed(xid, true, end_at, now);
        }
        match ended {
            Ok(()) => {
                self.end_stream(xid, now);
                Step::Ended
            }
            Err(fault) => Step::Failed(stream_fault(fault, self.exchanges.get(xid))),
        }
    }

    /// The same, read elsewhere. The body of `upstream` has been read to its end.
    pub(crate) fn last_event_read(
        &mut self,
        xid: Id<Exchange>,
        upstream: Option<Id<Upstream>>,
        out: Vec<u8>,
        ended: Result<(), StreamFault>,
        now: Now,
    ) {
        let spare = std::mem::replace(&mut self.scratch, out);
        let step = self.last_events_fed(xid, ended, now);
        self.scratch = spare;
        match (step, upstream) {
            (Step::Failed(fault), _) => self.attempt_failed(xid, fault, now),
            (_, Some(uid)) => self.keep_upstream(uid, now),
            _ => {}
        }
    }

    /// The upstream's deadline has passed while an answer was awaited or read. `None`: that ended the exchange well,
    /// since a stream with a finish reason lacked nothing but its terminator.
    pub(crate) fn relay_waited(&mut self, xid: Id<Exchange>, now: Now) -> Option<FaultKind> {
        let ex = self.exchanges.get(xid)?;
        match &ex.relay {
            Relay::Stream(flow) if flow.finish_seen() => match self.stream_body_ended(xid, now) {
                Step::Failed(fault) => Some(fault.kind),
                Step::More | Step::Paused | Step::Ended => None,
            },
            Relay::Stream(_) | Relay::Away(_) if ex.commit == Commit::Relayed => Some(FaultKind::IdleTimeout),
            _ => Some(FaultKind::FirstByteTimeout),
        }
    }

    /// Nothing has come for `heartbeat_after`: the status goes out, and a sign of life, so that no proxy cuts the line.
    pub(crate) fn heartbeat(&mut self, xid: Id<Exchange>, now: Now) {
        let Some(ex) = self.exchanges.get_mut(xid) else { return };
        ex.beat = now.mono.after(ex.config.server.heartbeat_after);
        let cid = ex.client;
        let beat: &[u8] = match ex.shape() {
            Some(Dialect::Messages) => b"event: ping\ndata: {\"type\":\"ping\"}\n\n",
            _ => b": ping\n\n",
        };
        // A client that does not read what it has needs no sign of life.
        if self.clients.get(cid).is_some_and(|client| client.tx.is_empty()) {
            self.send_events(xid, Commit::Status, beat, now);
        }
        self.arm_client(cid);
    }

    /// No attempt is left: an error with its own status, or, where one has gone out already, an error event.
    pub(crate) fn end_with_fault(&mut self, xid: Id<Exchange>, fault: Fault, now: Now) {
        let Some(mut ex) = self.take_exchange(xid) else { return };
        let usage = Gateway::partial_usage(&ex, false);
        self.settle(&mut ex, usage);
        let limits = ex.target().map_or(&ex.config.upstream, |target| &target.limits);
        let refusal = fault.refusal(limits);
        let cid = ex.client;
        if ex.commit == Commit::None {
            self.refuse(ex, &refusal, now);
            return self.advance(cid, now);
        }
        ex.error = Some(refusal.kind);
        self.scratch.clear();
        let shape = ex.shape().unwrap_or(Dialect::Chat);
        let kind = refusal.kind.as_str();
        errors::error_event(shape, kind, refusal.status, &refusal.message, ex.id.as_str(), &mut self.scratch);
        let bytes = std::mem::take(&mut self.scratch);
        let chunked = ex.head.http11;
        self.push_client(cid, now, |out| match chunked {
            true => write_chunk(out, &bytes),
            false => out.extend_from_slice(&bytes),
        });
        self.scratch = bytes;
        self.close_stream(ex, now);
    }
}

/// Seconds that a `retry-after` asks for, rounded up: a number of them, some servers' fractions too, or a moment.
fn wait_asked(value: &str, now: Unix) -> Option<u64> {
    if let Some(until) = window::parse_http_date(value) {
        return Some(until.0.saturating_sub(now.0).div_ceil(1000));
    }
    let seconds: f64 = value.parse().ok()?;
    (0.0..=WAIT_MAX).contains(&seconds).then(|| seconds.ceil() as u64)
}

/// How far the storage of an answer grows ahead when it has to. Growing a large block again and again can cost a copy
/// of all of it: so once a step's worth has come, all that was announced is taken at once, or where nothing was, so
/// much that the system extends it without copying. What is not written to takes no memory.
fn ahead_of(length: usize, announced: Option<u64>, limit: usize) -> usize {
    if length < BODY_STEP_MAX {
        return length;
    }
    let most = announced.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(EXTENDED_MIN.max(length + length / 4));
    most.min(limit).saturating_sub(length)
}

/// What a complete answer is charged: as reported, estimated where nothing was.
pub(super) fn charged(heard: ObservedUsage, estimate: u64) -> Usage {
    let known = heard.reported;
    Usage {
        uncached_in: known.input.unwrap_or(estimate),
        cache_read: known.cache_read.unwrap_or(0),
        cache_write: known.cache_write.unwrap_or(0),
        out: known.output.unwrap_or(heard.relayed_tokens),
        source: if known.is_complete() { UsageSource::Provider } else { UsageSource::Estimated },
    }
}

fn stream_fault(fault: StreamFault, ex: Option<&Exchange>) -> Fault {
    match fault {
        StreamFault::Error(text) => error_fault(text, ex),
        StreamFault::TooLarge => Fault::from(FaultKind::TooLarge("max_event")),
        StreamFault::Malformed => Fault::from(FaultKind::BadBody(NOT_JSON)),
        StreamFault::Incomplete => Fault::from(FaultKind::Incomplete),
    }
}

pub(super) fn error_fault(text: ErrorText, ex: Option<&Exchange>) -> Fault {
    let message = ex.and_then(|ex| masked(ex, &text.message));
    Fault { kind: FaultKind::InStream, message, retry_after: None }
}

fn status_fault(ex: &Exchange, status: u16, retry_after: Option<u64>) -> Fault {
    let message = errors::read_error(ex.held.bytes()).and_then(|text| masked(ex, &text.message));
    Fault { kind: FaultKind::Status(status), message, retry_after }
}

/// A provider's words as a client may see them; `None` where it gave none.
fn masked(ex: &Exchange, message: &str) -> Option<String> {
    let (model, target) = (ex.model()?, ex.target()?);
    if message.trim().is_empty() {
        return None;
    }
    let provider = ex.config.providers.get(target.provider);
    let credential = provider.and_then(|provider| provider.credential.as_ref()).map(|(_, secret)| secret.expose());
    Some(mask(message, &target.model, &model.id, credential))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_asked_for_in_seconds_or_until_a_moment() {
        let now = Unix(784_111_700_000);
        for (value, seconds) in [
            ("17", Some(17)),
            ("0", Some(0)),
            ("1.2", Some(2)),
            ("Sun, 06 Nov 1994 08:49:37 GMT", Some(77)),
            ("Sun, 06 Nov 1994 08:00:00 GMT", Some(0)),
            ("", None),
            ("-1", None),
            ("soon", None),
            ("NaN", None),
            ("1e300", None),
        ] {
            assert_eq!(wait_asked(value, now), seconds, "{value}");
        }
    }
}
