//! An answer as it comes: what its head says is done with its body, and the events of a stream on their way. Usage is
//! observed as they pass.

use super::event::{ClientMessage, Effect, Forward, Outcome};
use super::fault::{Fault, FaultKind, status_within};
use super::state::{Answering, Attempting, Body, Draft, Exchange, FinalOutput, Half, Queued, State};
use crate::base::buf::Buf;
use crate::base::limits::{DONE_GRACE, ERROR_BODY_MAX, ERROR_BODY_WAIT};
use crate::base::seam::Ending;
use crate::base::time::Mono;
use crate::dialect::stream::heartbeat;
use crate::dialect::{ErrorText, Fed, ObservedUsage, Overflow, PromptTokens, SseStream, StreamFault, is_rate, opening};
use crate::gateway::budget::REQUEST_BYTES;
use crate::gateway::cx::Cx;
use crate::gateway::offload::{JobOwner, OffloadTask, Product};
use crate::gateway::provider::breaker::Begun;
use crate::gateway::provider::rate_limits::retry_after;
use crate::policy::limits::UpstreamLimits;
use crate::wire::Dialect;
use crate::wire::head::{Framing, ResponseHead};
use std::num::NonZeroU32;
use std::time::Duration;

/// Words for an answer that is not what was asked for.
const NOT_A_STREAM: &str = "the provider answered a streamed request with something that is not a stream";
const ENCODED: &str = "the provider's answer is compressed, although compression was refused";
pub(super) const NOT_JSON: &str = "the provider's answer was not valid";

impl Body {
    /// Usage that has been observed so far.
    pub(super) fn observed(&self) -> ObservedUsage {
        match self {
            Body::Stream(stream) => stream.observed(),
            Body::Offloaded { observed, .. } => **observed,
            Body::Collect { .. } | Body::Error { .. } => ObservedUsage::default(),
        }
    }

    /// Gives its storage back.
    pub(super) fn release(self, cx: &mut Cx) {
        match self {
            Body::Stream(mut stream) => {
                stream.release(&mut cx.pool);
                cx.streams.put(stream);
            }
            Body::Collect { mut buf, .. } | Body::Error { mut buf, .. } => buf.release(&mut cx.pool),
            Body::Offloaded { serial, .. } => cx.abandon(serial),
        }
    }
}

impl Exchange {
    /// The head of an answer has come: decides what is done with its body.
    pub(super) fn answer_begins(
        &mut self,
        head: &ResponseHead,
        bytes: &[u8],
        message: &ClientMessage<'_>,
        cx: &mut Cx,
    ) -> Effect {
        let now = cx.now.mono;
        let limits = self.target().map(|target| &target.limits);
        let first_byte = limits.map_or(Mono::NEVER, |limits| now.after(limits.first_byte_timeout));
        let idle = limits.map_or(DONE_GRACE, |limits| limits.idle_timeout);
        let idle = u32::try_from(idle.as_millis()).unwrap_or(u32::MAX);
        let body = match self.body_for(head, bytes, cx) {
            Ok(body) => body,
            Err(kind) => return self.attempt_failed(Fault::from(kind), false, message, cx),
        };
        let State::Attempting(attempting) = std::mem::replace(&mut self.state, State::Ended) else {
            return Effect::Nothing;
        };
        let Attempting { draft, half, by } = attempting;
        let mut flight = self.attempt.flight.take();
        self.heard_head(&mut flight, head, bytes, cx);
        let at = &mut self.attempt;
        (at.flight, at.first, at.sent) = (flight, at.first.min(now), at.sent.min(now));
        let by = match &body {
            Body::Error { .. } => now.after(ERROR_BODY_WAIT),
            Body::Stream(_) => by.min(first_byte),
            Body::Collect { .. } | Body::Offloaded { .. } => Mono::NEVER,
        };
        let provider = if let Half::Open(provider) = half { Some(provider) } else { None };
        let (draft, last) = (Draft::Kept(draft), Buf::default());
        let (paused, crowded, charged) = (false, false, 0);
        self.state = State::Answering(Answering { provider, body, draft, last, by, idle, paused, crowded, charged });
        Effect::Wait
    }

    fn body_for(&mut self, head: &ResponseHead, bytes: &[u8], cx: &mut Cx) -> Result<Body, FaultKind> {
        // Those that have an answer: 204 to 206 have none, or not all of it.
        if !matches!(head.status, 200..=203) {
            let asked = std::str::from_utf8(head.retry_after.of(bytes)).unwrap_or_default();
            let retry_after = retry_after(asked, cx.now.unix).and_then(in_seconds);
            return Ok(Body::Error { buf: Buf::default(), status: head.status, retry_after });
        }
        let encoding = head.content_encoding.of(bytes).trim_ascii();
        // Some servers write `none`.
        let plain: [&[u8]; 3] = [b"", b"identity", b"none"];
        if !plain.iter().any(|word| encoding.eq_ignore_ascii_case(word)) {
            return Err(FaultKind::BadBody(ENCODED));
        }
        let content_type = head.content_type.of(bytes).trim_ascii();
        let begins = |word: &[u8]| content_type.get(..word.len()).is_some_and(|start| start.eq_ignore_ascii_case(word));
        let mut stream = None;
        if self.asked.is_some_and(|asked| asked.stream) {
            if begins(b"text/html") {
                return Err(FaultKind::BadBody(NOT_A_STREAM));
            }
            let new = self.stream(cx).ok_or(FaultKind::Internal)?;
            // Some servers answer a stream request with one complete response.
            if !begins(b"application/json") {
                return Ok(Body::Stream(new));
            }
            stream = Some(new);
        }
        let announced = match head.framing {
            Framing::Length(length) => NonZeroU32::new(u32::try_from(length).unwrap_or(u32::MAX)),
            _ => None,
        };
        Ok(Body::Collect { buf: Buf::default(), announced, stream })
    }

    /// The stream in which the client gets the answer.
    #[inline]
    fn stream(&mut self, cx: &mut Cx) -> Option<Box<SseStream>> {
        let (asked, dialect, target) = (self.asked?, self.dialect()?, self.target()?);
        let (max_event, max_answer) = (target.limits.max_event, target.limits.max_response);
        let from = self.target_provider().map_or(dialect, |provider| provider.shape);
        let State::Attempting(Attempting { draft, .. }) = &mut self.state else { return None };
        let mut stream = match draft.state.take() {
            None => cx.streams.same(dialect, asked.show_usage, max_event),
            Some(state) => {
                let bounds = (max_event, max_answer);
                Box::new(SseStream::translated((from, dialect), state, asked.show_usage, bounds))
            }
        };
        if let Dialect::Relay(_) = dialect {
            stream.awaits(draft.scan.fields().choices());
        }
        if self.attempt.told > 0 {
            stream.resume(self.attempt.told, cx.now.unix.secs());
        }
        Some(stream)
    }

    /// A piece of a stream that is nothing but an event like the one before: how it is sent, from `cx.out`. Else how
    /// many of its bytes are such an event, which lies there; the rest is for [`Exchange::data`].
    #[inline]
    pub(crate) fn pass_alike(&mut self, data: &[u8], cx: &mut Cx) -> Result<Forward, usize> {
        let State::Answering(Answering { body: Body::Stream(stream), .. }) = &mut self.state else { return Err(0) };
        if cx.is_long(stream.held() + data.len()) {
            return Err(0);
        }
        cx.out.clear();
        let alike = stream.feed_alike(data, &mut cx.pool, &mut cx.out);
        if alike < data.len() || cx.is_long(cx.out.len()) {
            return Err(alike);
        }
        Ok(Forward { opens: self.open(), ..self.relayed(false, cx) })
    }

    /// A piece of the answer's body, of which [`Exchange::pass_alike`] has taken so many bytes.
    pub(crate) fn data(&mut self, data: &[u8], alike: usize, message: &ClientMessage<'_>, cx: &mut Cx) -> Effect {
        let (Some(asked), State::Answering(answering)) = (&self.asked, &mut self.state) else {
            debug_assert!(false, "a piece of a body while {:?}", self.state);
            return self.end(Fault::from(FaultKind::Internal), cx);
        };
        let stream = match &mut answering.body {
            Body::Stream(stream) => stream,
            Body::Collect { .. } => return self.collect(data, message, cx),
            Body::Error { buf, .. } => {
                if buf.len() + data.len() <= ERROR_BODY_MAX {
                    buf.push(&mut cx.pool, data);
                }
                return Effect::Nothing;
            }
            Body::Offloaded { .. } => return Effect::Nothing,
        };
        if cx.is_long(stream.held() + data.len()) {
            return self.offload_events(Some(data), message, cx);
        }
        let prompt = PromptTokens::Counted(asked.counted());
        let identity = self.request.identity(asked, prompt, cx.now.unix);
        let fed = stream.feed(&data[alike..], &mut cx.pool, &identity, &mut cx.out);
        let fed = fed.map(|fed| Fed { events: fed.events + u32::from(alike > 0), ..fed });
        self.fed(fed, message, cx)
    }

    /// A piece of a stream has been read, its events lie in `cx.out`.
    pub(super) fn fed(&mut self, fed: Result<Fed, StreamFault>, message: &ClientMessage<'_>, cx: &mut Cx) -> Effect {
        let fits = self.charge_events(cx);
        let State::Answering(answering) = &mut self.state else { return Effect::Nothing };
        let Body::Stream(stream) = &answering.body else { return Effect::Nothing };
        let end_at = stream.end_at();
        let came = match &fed {
            Ok(fed) => fed.events > 0,
            // What came before the fault is still the client's.
            Err(_) => !cx.out.is_empty(),
        };
        let mut forward = Forward::default();
        match came {
            true => forward = self.relayed(end_at.is_some(), cx),
            // Comments and pings open no stream and extend no deadline; passed on in an open stream, they keep proxies
            // from closing the connection.
            false if !self.attempt.opened => cx.out.clear(),
            false => {}
        }
        match fed {
            Err(fault) => {
                let fault = self.stream_fault(fault);
                self.hold_back(end_at, cx);
                self.stream_failed(fault, forward, message, cx)
            }
            Ok(Fed { finished: true, .. }) => {
                self.hold_back(end_at, cx);
                self.stream_ends(forward, message, cx)
            }
            Ok(_) if !fits => {
                self.hold_back(end_at, cx);
                self.stream_failed(Fault::from(FaultKind::KeyBuffers), forward, message, cx)
            }
            Ok(_) => {
                self.hold_back(end_at, cx);
                self.forward(forward, cx)
            }
        }
    }

    /// Charges the key for what the stream keeps. False: it has grown, and the share of its key has no room for it. It
    /// cannot wait, since nothing of it is freed before its end.
    fn charge_events(&mut self, cx: &mut Cx) -> bool {
        let (Some(key), State::Answering(answering)) = (self.request.found.key, &mut self.state) else { return true };
        let Answering { body: Body::Stream(stream), charged, crowded, .. } = answering else { return true };
        let (before, storage) = (*charged as usize, stream.capacity());
        if storage == before {
            return true;
        }
        *charged = cx.budget.recharge(key, *charged, storage);
        // Part of a short event is soon gone.
        let keeps = stream.waiting() > 0 || storage > REQUEST_BYTES;
        !(*crowded && keeps && storage > before)
    }

    /// The stream for which its key was charged so many bytes is gone.
    pub(super) fn uncharge(&self, charged: u32, cx: &mut Cx) {
        if let Some(key) = self.request.found.key {
            cx.budget.recharge(key, charged, 0);
        }
    }

    /// Forwards the output in `cx.out`.
    #[inline]
    fn forward(&mut self, forward: Forward, cx: &mut Cx) -> Effect {
        if cx.out.is_empty() {
            return if forward.waits { Effect::Wait } else { Effect::Nothing };
        }
        let forward = Forward { opens: self.open(), ..forward };
        if cx.is_long(cx.out.len()) {
            return Effect::ForwardBulk(forward, std::mem::take(&mut cx.out));
        }
        Effect::Forward(forward)
    }

    /// Events of an answer are on their way: the commit point. From here on there is no other attempt, so the request
    /// is let go as soon as all of it has been sent.
    #[inline]
    fn relayed(&mut self, finish_seen: bool, cx: &mut Cx) -> Forward {
        let (Some(admitted), State::Answering(answering)) = (&mut self.admitted, &mut self.state) else {
            return Forward::default();
        };
        let now = cx.now.mono;
        let by = answering.late(finish_seen, now);
        // An event without output is no sign of life for the client.
        let beat = match cx.out.is_empty() {
            true => admitted.beat,
            false => now.after(self.request.setup.config.server.heartbeat_after),
        };
        let waits = by < answering.by || beat < admitted.beat;
        answering.by = by;
        admitted.beat = beat;
        let mut commits = false;
        // An event without content may have no counterpart in the client's format: then another attempt may follow.
        if let Draft::Kept(_) = answering.draft
            && !cx.out.is_empty()
        {
            admitted.until = Mono::NEVER;
            commits = self.commit(cx);
        }
        if finish_seen && self.asked.is_some_and(|asked| asked.show_usage) {
            self.write_cost(cx);
        }
        if self.diagnosis.is_some() {
            self.note_finish(finish_seen, &cx.out);
        }
        Forward { opens: false, commits, waits }
    }

    /// Part of an answer has been relayed; true if the request's bytes are not needed any more.
    #[inline(never)]
    fn commit(&mut self, cx: &mut Cx) -> bool {
        let State::Answering(answering) = &mut self.state else { return false };
        let begun = self.attempt.flight.as_mut().map(|flight| std::mem::take(&mut flight.begun)).unwrap_or_default();
        (self.attempt.begun, self.attempt.has_events) = (cx.now.mono, true);
        let mut gone = true;
        answering.draft = match std::mem::replace(&mut answering.draft, Draft::Gone) {
            Draft::Kept(draft) if draft.is_written() => {
                cx.requests.put(draft, &mut cx.budget, &mut cx.pool);
                Draft::Gone
            }
            Draft::Kept(draft) => {
                gone = false;
                Draft::Leaving(draft)
            }
            other => other,
        };
        if begun != Begun::default()
            && let Some(target) = self.target()
            && cx.breakers.answered(target, begun, cx.now.mono)
        {
            cx.log_target(&target.label, None);
        }
        gone
    }

    /// With `durability = "before-reply"` the end of a stream waits for its row: keeps it, from `end_at` on.
    #[inline]
    fn hold_back(&mut self, end_at: Option<usize>, cx: &mut Cx) {
        let State::Answering(answering) = &mut self.state else { return };
        if let Some(end_at) = end_at.filter(|_| cx.waits_for_rows()) {
            let end_at = end_at.min(cx.out.len());
            answering.last.push(&mut cx.pool, &cx.out[end_at..]);
            cx.out.truncate(end_at);
        }
    }

    /// The stream is broken. What of it is good has been put in `cx.out`.
    fn stream_failed(&mut self, fault: Fault, forward: Forward, message: &ClientMessage<'_>, cx: &mut Cx) -> Effect {
        let State::Answering(Answering { draft, .. }) = &self.state else { return Effect::Nothing };
        if matches!(draft, Draft::Kept(_)) || cx.out.is_empty() {
            return self.attempt_failed(fault, false, message, cx);
        }
        let forward = Forward { opens: self.open(), ..forward };
        let good = std::mem::take(&mut cx.out);
        let effect = self.attempt_failed(fault, false, message, cx);
        let error = std::mem::replace(&mut cx.out, good);
        cx.out.extend_from_slice(&error);
        match effect {
            Effect::End(_, outcome) => Effect::End(forward, outcome),
            other => other,
        }
    }

    /// The stream has come to its proper end.
    fn stream_ends(&mut self, forward: Forward, message: &ClientMessage<'_>, cx: &mut Cx) -> Effect {
        self.let_go_complete(cx);
        self.target_succeeded(cx);
        let usage = self.complete_usage();
        if !cx.waits_for_rows() {
            let forward = Forward { opens: self.open(), ..forward };
            return Effect::End(forward, Outcome { status: 200, error: None, usage });
        }
        let State::Answering(answering) = &mut self.state else { return Effect::Nothing };
        let last = FinalOutput::Events(std::mem::take(&mut answering.last));
        let waits = Forward { waits: true, ..forward };
        match self.await_row(last, usage, message, cx) {
            Some(effect) => effect,
            None => self.forward(waits, cx),
        }
    }

    /// The connection has given all that is needed of it.
    pub(super) fn let_go_complete(&mut self, cx: &mut Cx) {
        if let State::Answering(answering) = &mut self.state
            && let Some(provider) = answering.provider.take()
        {
            cx.let_go(provider, true);
        }
    }

    /// The answer's body has ended as its framing promised.
    pub(super) fn body_end(&mut self, message: &ClientMessage<'_>, cx: &mut Cx) -> Effect {
        let State::Answering(answering) = &mut self.state else { return Effect::Nothing };
        match &mut answering.body {
            // Another attempt may need the very connection.
            Body::Error { .. } if answering.provider.is_some() => {
                self.let_go_complete(cx);
                Effect::Again
            }
            Body::Error { .. } => {
                let fault = self.status_fault();
                self.attempt_failed(fault, false, message, cx)
            }
            Body::Collect { .. } => self.collected(message, cx),
            Body::Stream(_) => self.stream_body_ended(message, cx),
            Body::Offloaded { .. } => Effect::Nothing,
        }
    }

    fn stream_body_ended(&mut self, message: &ClientMessage<'_>, cx: &mut Cx) -> Effect {
        let (Some(asked), State::Answering(answering)) = (&self.asked, &mut self.state) else { return Effect::Nothing };
        let Body::Stream(stream) = &mut answering.body else { return Effect::Nothing };
        if let Some(buf) = stream.take_document() {
            // The body is read as a complete response.
            let collect = Body::Collect { buf, announced: None, stream: None };
            let former = std::mem::replace(&mut answering.body, collect);
            if let (Body::Collect { stream, .. }, Body::Stream(own)) = (&mut answering.body, former) {
                *stream = Some(own);
            }
            return self.collected(message, cx);
        }
        if cx.is_long(stream.held()) {
            // Nothing more is awaited from the provider.
            answering.by = Mono::NEVER;
            return self.offload_events(None, message, cx);
        }
        cx.out.clear();
        let prompt = PromptTokens::Counted(asked.counted());
        let identity = self.request.identity(asked, prompt, cx.now.unix);
        let ended = stream.end(&mut cx.pool, &identity, &mut cx.out);
        self.ended(ended, message, cx)
    }

    /// Handles the end of a stream that has been read; its output is in `cx.out`.
    fn ended(&mut self, ended: Result<(), StreamFault>, message: &ClientMessage<'_>, cx: &mut Cx) -> Effect {
        let forward = if cx.out.is_empty() { Forward::default() } else { self.relayed(true, cx) };
        match ended {
            Ok(()) => {
                self.hold_back(Some(0), cx);
                self.stream_ends(forward, message, cx)
            }
            Err(fault) => {
                let fault = self.stream_fault(fault);
                self.stream_failed(fault, forward, message, cx)
            }
        }
    }

    /// Has a large event read by a helper thread: what has come of it is `data`, or its stream has ended with it.
    fn offload_events(&mut self, data: Option<&[u8]>, message: &ClientMessage<'_>, cx: &mut Cx) -> Effect {
        let serial = cx.next_offload();
        let Some(asked) = self.asked else { return Effect::Nothing };
        let prompt = PromptTokens::Counted(asked.counted());
        let identity = self.request.identity(&asked, prompt, cx.now.unix).into();
        let State::Answering(answering) = &mut self.state else { return Effect::Nothing };
        let observed = Box::new(answering.body.observed());
        let body = std::mem::replace(&mut answering.body, Body::Offloaded { serial, observed });
        let Body::Stream(stream) = body else { return Effect::Nothing };
        let mut piece = Buf::default();
        piece.push(&mut cx.pool, data.unwrap_or_default());
        let lent = stream.capacity() + piece.capacity();
        let task = match data {
            Some(_) => OffloadTask::Events { stream, data: piece },
            None => OffloadTask::LastEvent { stream },
        };
        let of = JobOwner { exchange: message.exchange, key: self.request.found.key, serial };
        cx.offload(of, lent, identity, task);
        Effect::Wait
    }

    /// Handles the result of a helper thread for a piece of the answer.
    pub(super) fn offloaded(&mut self, product: Option<Product>, message: &ClientMessage<'_>, cx: &mut Cx) -> Effect {
        let State::Answering(answering) = &mut self.state else { return Effect::Nothing };
        match product {
            Some(Product::Reply { read, out }) => self.whole_read(read, out, message, cx),
            Some(Product::Events { stream, out, fed }) => {
                answering.body = Body::Stream(stream);
                cx.out = out;
                self.fed(fed, message, cx)
            }
            Some(Product::LastEvent { stream, out, ended }) => {
                answering.body = Body::Stream(stream);
                cx.out = out;
                self.ended(ended, message, cx)
            }
            Some(Product::Request { .. }) | None => {
                cx.stats.panics += 1;
                self.attempt_failed(Fault::from(FaultKind::Internal), false, message, cx)
            }
        }
    }

    /// The provider is late with its answer. It is not where it has not been read: that is its client's doing, or of
    /// those who fill the buffers. What an error says beyond its status is not waited for.
    pub(super) fn answer_late(&mut self, unread: bool, message: &ClientMessage<'_>, cx: &mut Cx) -> Effect {
        if unread && !self.reads_error() {
            return self.drained(cx);
        }
        let State::Answering(answering) = &self.state else { return Effect::Nothing };
        let kind = match &answering.body {
            Body::Error { .. } => {
                self.drop_provider(cx);
                return self.body_end(message, cx);
            }
            // It lacks nothing but its terminator, or texts that its provider does not give.
            Body::Stream(stream) if stream.finish_seen() || stream.may_be_done() => {
                self.drop_provider(cx);
                return self.stream_body_ended(message, cx);
            }
            Body::Stream(_) if !matches!(answering.draft, Draft::Kept(_)) => FaultKind::IdleTimeout,
            _ => FaultKind::FirstByteTimeout,
        };
        self.attempt_failed(Fault::from(kind), false, message, cx)
    }

    /// The client reads again: the provider of a stream has all its time again, from now on.
    pub(super) fn drained(&mut self, cx: &mut Cx) -> Effect {
        let State::Answering(answering) = &mut self.state else { return Effect::Nothing };
        let finish_seen = match &answering.body {
            Body::Stream(stream) => stream.finish_seen(),
            Body::Offloaded { .. } => false,
            Body::Collect { .. } | Body::Error { .. } => return Effect::Nothing,
        };
        answering.by = answering.late(finish_seen, cx.now.mono);
        Effect::Wait
    }

    /// There is room again.
    pub(super) fn room(&mut self, cx: &mut Cx) -> Effect {
        let State::Answering(answering) = &mut self.state else { return Effect::Nothing };
        answering.paused = false;
        self.drained(cx)
    }

    /// Sends the status and a heartbeat after a period without events, so that no proxy closes the connection.
    pub(super) fn heartbeat(&mut self, drained: bool, cx: &mut Cx) -> Effect {
        let Some(admitted) = &mut self.admitted else { return Effect::Nothing };
        admitted.beat = cx.now.mono.after(self.request.setup.config.server.heartbeat_after);
        // A client that does not read its pending output needs no heartbeat.
        if !drained {
            return Effect::Wait;
        }
        cx.out.clear();
        self.sign_of_life(cx);
        Effect::Forward(Forward { opens: self.open(), commits: false, waits: true })
    }

    fn sign_of_life(&mut self, cx: &mut Cx) {
        let (Some(asked), Some(dialect)) = (&self.asked, self.dialect()) else { return };
        let prompt = PromptTokens::Counted(asked.counted());
        let identity = self.request.identity(asked, prompt, cx.now.unix);
        match &mut self.state {
            State::Answering(Answering { body: Body::Stream(stream), .. }) => {
                // Another attempt may follow as long as no event has come, and goes on from there.
                self.attempt.told = stream.heartbeat(dialect, &identity, &mut cx.out);
            }
            State::Queued(Queued { draft, .. }) | State::Attempting(Attempting { draft, .. }) => {
                let told = &mut self.attempt.told;
                *told = opening(dialect, *told, draft.state.as_ref(), &identity, &mut cx.out);
            }
            _ => heartbeat(dialect, &mut cx.out),
        }
    }

    fn stream_fault(&self, fault: StreamFault) -> Fault {
        let limit = |of: fn(&UpstreamLimits) -> usize| self.target().map_or(0, |target| of(&target.limits));
        match fault {
            StreamFault::Error(text) => self.error_fault(text),
            StreamFault::TooLarge => Fault::from(FaultKind::TooLarge("max_event", limit(|limits| limits.max_event))),
            StreamFault::AnswerTooLarge => {
                Fault::from(FaultKind::TooLarge("max_response", limit(|limits| limits.max_response)))
            }
            StreamFault::Malformed => Fault::from(FaultKind::BadBody(NOT_JSON)),
            StreamFault::Incomplete => Fault::from(FaultKind::Incomplete(Ending::Fin)),
        }
    }

    pub(super) fn error_fault(&self, text: ErrorText) -> Fault {
        self.fault_of(&text, FaultKind::InStream(status_within(&text)))
    }

    fn status_fault(&self) -> Fault {
        let State::Answering(Answering { body: Body::Error { buf, status, retry_after }, .. }) = &self.state else {
            return Fault::from(FaultKind::Internal);
        };
        let text = crate::dialect::errors::read_error(buf.bytes()).unwrap_or_default();
        // Some refuse a request that is too large for a token rate with 413.
        let shown = if *status == 413 && is_rate(&text) { 429 } else { *status };
        let mut fault = self.fault_of(&text, FaultKind::Status(shown));
        fault.retry_after = retry_after.map(|seconds| u64::from(seconds.get() - 1));
        fault.overflow = fault.overflow.filter(|_| matches!(status, 400 | 413 | 422 | 500));
        fault
    }

    fn fault_of(&self, text: &ErrorText, kind: FaultKind) -> Fault {
        let code = text.code.as_ref().or(text.kind.as_ref()).and_then(|code| self.masked(code));
        let param = text.param.as_ref().and_then(|param| self.masked(param));
        Fault { message: self.masked(&text.message), code, param, overflow: Overflow::of(text), ..Fault::from(kind) }
    }
}

/// A wait in seconds, rounded up, and 1 more so that none is not 0.
fn in_seconds(wait: Duration) -> Option<NonZeroU32> {
    let seconds = wait.as_millis().div_ceil(1000);
    NonZeroU32::new(u32::try_from(seconds).unwrap_or(u32::MAX - 1) + 1)
}
