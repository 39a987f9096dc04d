//! An answer as it comes: what its head says is done with its body, and the events of a stream on their way. Usage is
//! observed as they pass.

use super::event::{AnswerStep, ClientMessage, Effect, Forward, Outcome, Over};
use super::fault::{Fault, FaultKind};
use super::job::RequestJob;
use super::state::{Answering, Attempting, Body, Draft, Exchange, FinalOutput, Half, Queued, State};
use super::transitions::Step;
use crate::base::buf::Buf;
use crate::base::limits::{DONE_GRACE, ERROR_BODY_MAX, ERROR_BODY_WAIT};
use crate::base::time::Mono;
use crate::dialect::stream::heartbeat;
use crate::dialect::{Fed, ObservedUsage, SseStream, StreamFault, opening};
use crate::gateway::budget::REQUEST_BYTES;
use crate::gateway::cx::Cx;
use crate::gateway::offload::{JobOwner, OffloadTask, Product};
use crate::gateway::provider::breaker::Begun;
use crate::gateway::provider::rate_limits::retry_after;
use crate::wire::head::{Framing, ResponseHead};
use std::num::NonZeroU32;
use std::time::Duration;

/// Words for an answer that is not what was asked for.
const NOT_A_STREAM: &str = "the provider answered a streamed request with something that is not a stream";
const ENCODED: &str = "the provider's answer is compressed, although compression was refused";

impl Body {
    /// Usage that has been observed so far.
    pub(super) fn observed(&self) -> ObservedUsage {
        match self {
            Body::Stream(stream) => stream.observed(),
            Body::Offloaded { observed, .. } => **observed,
            Body::Collect { .. } | Body::Error { .. } => ObservedUsage::default(),
        }
    }

    /// Bytes of storage in its buffers.
    pub(super) fn storage(&self) -> usize {
        match self {
            Body::Stream(stream) => stream.capacity(),
            Body::Collect { buf, .. } | Body::Error { buf, .. } => buf.capacity(),
            Body::Offloaded { .. } => 0,
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
        mut attempting: Attempting,
        head: &ResponseHead,
        bytes: &[u8],
        message: &ClientMessage,
        cx: &mut Cx,
    ) -> Effect {
        let (job, now) = (&mut self.job, cx.now.mono);
        let body = match attempting.body_for(job, head, bytes, cx) {
            Ok(body) => body,
            Err(kind) => {
                self.state = State::Attempting(attempting);
                return self.attempt_failed(Fault::from(kind), false, message, cx);
            }
        };
        let mut flight = job.attempt.flight.take();
        job.heard_head(&mut flight, head, bytes, cx);
        let at = &mut job.attempt;
        (at.flight, at.first, at.sent) = (flight, at.first.min(now), at.sent.min(now));
        let limits = job.target().map(|target| &target.limits);
        let first_byte = limits.map_or(Mono::NEVER, |limits| now.after(limits.first_byte_timeout));
        let idle = limits.map_or(DONE_GRACE, |limits| limits.idle_timeout);
        let idle = u32::try_from(idle.as_millis()).unwrap_or(u32::MAX);
        let Attempting { draft, half, by } = attempting;
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

    /// A piece of a stream that is nothing but an event like the one before: how it is sent, from `cx.out`. Else how
    /// many of its bytes are such an event, which lies there; the rest is for [`Exchange::data`].
    #[inline]
    pub(crate) fn pass_alike(&mut self, data: &[u8], cx: &mut Cx) -> Result<Forward, usize> {
        let State::Answering(answering) = &mut self.state else { return Err(0) };
        let Body::Stream(stream) = &mut answering.body else { return Err(0) };
        if cx.is_long(stream.held() + data.len()) {
            return Err(0);
        }
        cx.out.clear();
        let alike = stream.feed_alike(data, &mut cx.pool, &mut cx.out);
        if alike < data.len() || cx.is_long(cx.out.len()) {
            return Err(alike);
        }
        let opens = self.job.open();
        Ok(Forward { opens, ..answering.relayed(&mut self.job, false, cx) })
    }

    /// A piece of the answer's body, of which [`Exchange::pass_alike`] has taken so many bytes.
    pub(crate) fn data(&mut self, data: &[u8], alike: usize, message: &ClientMessage, cx: &mut Cx) -> Effect {
        let taken = Step::of(self, &format_args!("Data"));
        let State::Answering(answering) = &mut self.state else {
            debug_assert!(false, "a piece of a body while {:?}", self.state);
            return self.end(Fault::from(FaultKind::Internal), cx);
        };
        let step = answering.data(&mut self.job, data, alike, message, cx);
        let effect = self.follow(step, message, cx);
        taken.leads(self, &effect);
        effect
    }

    /// Sends the status and a heartbeat after a period without events, so that no proxy closes the connection.
    pub(super) fn heartbeat(&mut self, drained: bool, cx: &mut Cx) -> Effect {
        let Some(admitted) = &mut self.job.admitted else { return Effect::Nothing };
        admitted.beat = cx.now.mono.after(self.job.request.setup.config.server.heartbeat_after);
        // A client that does not read its pending output needs no heartbeat.
        if !drained {
            return Effect::Wait;
        }
        cx.out.clear();
        self.sign_of_life(cx);
        Effect::Forward(Forward { opens: self.job.open(), commits: false, waits: true })
    }

    fn sign_of_life(&mut self, cx: &mut Cx) {
        let Some(endpoint) = self.job.endpoint() else { return };
        let (told, identity) = (self.job.attempt.told, self.job.counted_identity(cx.now.unix));
        self.job.attempt.told = match &mut self.state {
            // Another attempt may follow as long as no event has come, and goes on from there.
            State::Answering(Answering { body: Body::Stream(stream), .. }) => {
                stream.heartbeat(endpoint.shape, &identity, &mut cx.out)
            }
            State::Queued(Queued { draft, .. }) | State::Attempting(Attempting { draft, .. }) => {
                opening(endpoint.shape, told, draft.state.as_ref(), &identity, &mut cx.out)
            }
            _ => {
                heartbeat(endpoint.shape, &mut cx.out);
                told
            }
        };
    }
}

impl Attempting {
    fn body_for(
        &mut self,
        job: &RequestJob,
        head: &ResponseHead,
        bytes: &[u8],
        cx: &mut Cx,
    ) -> Result<Body, FaultKind> {
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
        if job.asked.is_some_and(|asked| asked.stream) {
            if begins(b"text/html") {
                return Err(FaultKind::BadBody(NOT_A_STREAM));
            }
            let new = self.stream(job, cx).ok_or(FaultKind::Internal)?;
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
    fn stream(&mut self, job: &RequestJob, cx: &mut Cx) -> Option<Box<SseStream>> {
        let (asked, endpoint, target) = (job.asked?, job.endpoint()?, job.target()?);
        let (max_event, max_answer) = (target.limits.max_event, target.limits.max_response);
        let from = job.target_provider().map_or(endpoint.shape, |provider| provider.shape);
        let draft = &mut self.draft;
        let mut stream = match draft.state.take() {
            None => cx.streams.same(endpoint, asked.show_usage, max_event),
            Some(state) => {
                let bounds = (max_event, max_answer);
                Box::new(SseStream::translated((from, endpoint.shape), state, asked.show_usage, bounds))
            }
        };
        if endpoint.is_relayed() {
            stream.awaits(draft.scan.fields().choices());
        }
        if job.attempt.told > 0 {
            stream.resume(job.attempt.told, cx.now.unix.secs());
        }
        Some(stream)
    }
}

impl Answering {
    /// A piece of the answer's body, of which `alike` bytes are passed on already.
    fn data(
        &mut self,
        job: &mut RequestJob,
        data: &[u8],
        alike: usize,
        message: &ClientMessage,
        cx: &mut Cx,
    ) -> AnswerStep {
        let stream = match &mut self.body {
            Body::Stream(stream) => stream,
            Body::Collect { .. } => return self.collect(job, data, cx),
            Body::Error { buf, .. } => {
                if buf.len() + data.len() <= ERROR_BODY_MAX {
                    buf.push(&mut cx.pool, data);
                }
                return Ok(Effect::Nothing);
            }
            Body::Offloaded { .. } => return Ok(Effect::Nothing),
        };
        if cx.is_long(stream.held() + data.len()) {
            return Ok(self.offload_events(job, Some(data), message, cx));
        }
        let identity = job.counted_identity(cx.now.unix);
        let fed = stream.feed(&data[alike..], &mut cx.pool, &identity, &mut cx.out);
        let fed = fed.map(|fed| Fed { events: fed.events + u32::from(alike > 0), ..fed });
        self.fed(job, fed, cx)
    }

    /// A piece of a stream has been read, its events lie in `cx.out`.
    pub(super) fn fed(&mut self, job: &mut RequestJob, fed: Result<Fed, StreamFault>, cx: &mut Cx) -> AnswerStep {
        let fits = self.charge_events(job, cx);
        let Body::Stream(stream) = &self.body else { return Ok(Effect::Nothing) };
        let end_at = stream.end_at();
        let came = match &fed {
            Ok(fed) => fed.events > 0,
            // What came before the fault is still the client's.
            Err(_) => !cx.out.is_empty(),
        };
        let mut forward = Forward::default();
        match came {
            true => forward = self.relayed(job, end_at.is_some(), cx),
            // Comments and pings open no stream and extend no deadline; passed on in an open stream, they keep proxies
            // from closing the connection.
            false if !job.attempt.opened => cx.out.clear(),
            false => {}
        }
        self.hold_back(end_at, cx);
        match fed {
            Err(fault) => Err(self.broken(job, job.stream_fault(fault), forward, cx)),
            Ok(Fed { finished: true, .. }) => self.stream_ends(job, forward, cx),
            Ok(_) if !fits => Err(self.broken(job, Fault::from(FaultKind::KeyBuffers), forward, cx)),
            Ok(_) => Ok(job.forward(forward, cx)),
        }
    }

    /// Charges the key for what the stream keeps. False: it has grown, and the share of its key has no room for it. It
    /// cannot wait, since nothing of it is freed before its end.
    fn charge_events(&mut self, job: &RequestJob, cx: &mut Cx) -> bool {
        let (Some(key), Body::Stream(stream)) = (job.request.found.key, &self.body) else { return true };
        let (before, storage) = (self.charged as usize, stream.capacity());
        if storage == before {
            return true;
        }
        self.charged = cx.budget.recharge(key, self.charged, storage);
        // Part of a short event is soon gone.
        let keeps = stream.waiting() > 0 || storage > REQUEST_BYTES;
        !(self.crowded && keeps && storage > before)
    }

    /// Events of an answer are on their way: the commit point. From here on there is no other attempt, so the request
    /// is let go as soon as all of it has been sent.
    #[inline]
    fn relayed(&mut self, job: &mut RequestJob, finish_seen: bool, cx: &mut Cx) -> Forward {
        let Some(admitted) = &mut job.admitted else { return Forward::default() };
        let now = cx.now.mono;
        let by = self.late(finish_seen, now);
        // An event without output is no sign of life for the client.
        let beat = match cx.out.is_empty() {
            true => admitted.beat,
            false => now.after(job.request.setup.config.server.heartbeat_after),
        };
        let waits = by < self.by || beat < admitted.beat;
        self.by = by;
        admitted.beat = beat;
        let mut commits = false;
        // An event without content may have no counterpart in the client's format: then another attempt may follow.
        if let Draft::Kept(_) = self.draft
            && !cx.out.is_empty()
        {
            admitted.until = Mono::NEVER;
            commits = self.commit(job, cx);
        }
        if finish_seen
            && job.asked.is_some_and(|asked| asked.show_usage)
            && let Body::Stream(stream) = &self.body
        {
            job.write_cost(stream, cx);
        }
        if job.diagnosis.is_some() {
            job.note_finish(finish_seen, &cx.out);
        }
        Forward { opens: false, commits, waits }
    }

    /// Part of an answer has been relayed; true if the request's bytes are not needed any more.
    #[inline(never)]
    fn commit(&mut self, job: &mut RequestJob, cx: &mut Cx) -> bool {
        let begun = job.attempt.flight.as_mut().map(|flight| std::mem::take(&mut flight.begun)).unwrap_or_default();
        (job.attempt.begun, job.attempt.has_events) = (cx.now.mono, true);
        let mut gone = true;
        self.draft = match std::mem::replace(&mut self.draft, Draft::Gone) {
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
            && let Some(target) = job.target()
            && cx.breakers.answered(target, begun, cx.now.mono)
        {
            cx.log_target(&target.label, None);
        }
        gone
    }

    /// With `durability = "before-reply"` the end of a stream waits for its row: keeps it, from `end_at` on.
    #[inline]
    fn hold_back(&mut self, end_at: Option<usize>, cx: &mut Cx) {
        if let Some(end_at) = end_at.filter(|_| cx.waits_for_rows()) {
            let end_at = end_at.min(cx.out.len());
            self.last.push(&mut cx.pool, &cx.out[end_at..]);
            cx.out.truncate(end_at);
        }
    }

    /// The stream is broken. The good part of it is in `cx.out`.
    #[cold]
    fn broken(&self, job: &mut RequestJob, fault: Fault, forward: Forward, cx: &Cx) -> Box<Over> {
        let is_relayed = !matches!(self.draft, Draft::Kept(_)) && !cx.out.is_empty();
        let good = is_relayed.then(|| Forward { opens: job.open(), ..forward });
        Box::new(Over::Failed { fault, good })
    }

    /// The stream has come to its proper end.
    fn stream_ends(&mut self, job: &mut RequestJob, forward: Forward, cx: &mut Cx) -> AnswerStep {
        self.let_go_complete(cx);
        job.target_succeeded(cx);
        let usage = job.charged(self.body.observed());
        if cx.waits_for_rows() {
            let (last, kind) = (std::mem::take(&mut self.last), FinalOutput::Events);
            return Err(Box::new(Over::Complete { last, kind, usage, forward }));
        }
        let forward = Forward { opens: job.open(), ..forward };
        Ok(Effect::End(forward, Outcome { status: 200, error: None, usage }))
    }

    /// The connection has given all that is needed of it.
    pub(super) fn let_go_complete(&mut self, cx: &mut Cx) {
        if let Some(provider) = self.provider.take() {
            cx.let_go(provider, true);
        }
    }

    /// Lets go of the connection in the middle of whatever it does.
    pub(super) fn drop_provider(&mut self, cx: &mut Cx) {
        if let Some(provider) = self.provider.take() {
            cx.let_go(provider, false);
        }
    }

    /// The answer's body has ended as its framing promised.
    pub(super) fn body_end(&mut self, job: &mut RequestJob, message: &ClientMessage, cx: &mut Cx) -> AnswerStep {
        match &mut self.body {
            // Another attempt may need the very connection.
            Body::Error { .. } if self.provider.is_some() => {
                self.let_go_complete(cx);
                Ok(Effect::Again)
            }
            Body::Error { buf, status, retry_after } => {
                Err(job.status_fault(buf.bytes(), *status, *retry_after).into())
            }
            Body::Collect { .. } => self.collected(job, message, cx),
            Body::Stream(_) => self.stream_body_ended(job, message, cx),
            Body::Offloaded { .. } => Ok(Effect::Nothing),
        }
    }

    fn stream_body_ended(&mut self, job: &mut RequestJob, message: &ClientMessage, cx: &mut Cx) -> AnswerStep {
        let Body::Stream(stream) = &mut self.body else { return Ok(Effect::Nothing) };
        if let Some(buf) = stream.take_document() {
            // The body is read as a complete response.
            let collect = Body::Collect { buf, announced: None, stream: None };
            let former = std::mem::replace(&mut self.body, collect);
            if let (Body::Collect { stream, .. }, Body::Stream(own)) = (&mut self.body, former) {
                *stream = Some(own);
            }
            return self.collected(job, message, cx);
        }
        if cx.is_long(stream.held()) {
            // Nothing more is awaited from the provider.
            self.by = Mono::NEVER;
            return Ok(self.offload_events(job, None, message, cx));
        }
        cx.out.clear();
        let ended = stream.end(&mut cx.pool, &job.counted_identity(cx.now.unix), &mut cx.out);
        self.ended(job, ended, cx)
    }

    /// Handles the end of a stream that has been read; its output is in `cx.out`.
    fn ended(&mut self, job: &mut RequestJob, ended: Result<(), StreamFault>, cx: &mut Cx) -> AnswerStep {
        let forward = if cx.out.is_empty() { Forward::default() } else { self.relayed(job, true, cx) };
        match ended {
            Ok(()) => {
                self.hold_back(Some(0), cx);
                self.stream_ends(job, forward, cx)
            }
            Err(fault) => Err(self.broken(job, job.stream_fault(fault), forward, cx)),
        }
    }

    /// Has a large event read by a helper thread: what has come of it is `data`, or its stream has ended with it.
    fn offload_events(
        &mut self,
        job: &RequestJob,
        data: Option<&[u8]>,
        message: &ClientMessage,
        cx: &mut Cx,
    ) -> Effect {
        let serial = cx.next_offload();
        let identity = job.counted_identity(cx.now.unix).into();
        let observed = Box::new(self.body.observed());
        let body = std::mem::replace(&mut self.body, Body::Offloaded { serial, observed });
        let Body::Stream(stream) = body else { return Effect::Nothing };
        let mut piece = Buf::default();
        piece.push(&mut cx.pool, data.unwrap_or_default());
        let lent = stream.capacity() + piece.capacity();
        let task = match data {
            Some(_) => OffloadTask::Events { stream, data: piece },
            None => OffloadTask::LastEvent { stream },
        };
        let of = JobOwner { exchange: message.exchange, key: job.request.found.key, serial };
        cx.offload(of, lent, identity, task);
        Effect::Wait
    }

    /// Handles the result of a helper thread for a piece of the answer.
    pub(super) fn offloaded(
        &mut self,
        job: &mut RequestJob,
        product: Option<Product>,
        message: &ClientMessage,
        cx: &mut Cx,
    ) -> AnswerStep {
        match product {
            Some(Product::Reply { read, out }) => self.whole_read(job, read, out, message, cx),
            Some(Product::Events { stream, out, fed }) => {
                self.body = Body::Stream(stream);
                cx.out = out;
                self.fed(job, fed, cx)
            }
            Some(Product::LastEvent { stream, out, ended }) => {
                self.body = Body::Stream(stream);
                cx.out = out;
                self.ended(job, ended, cx)
            }
            Some(Product::Request { .. }) | None => {
                cx.stats.panics += 1;
                Err(Fault::from(FaultKind::Internal).into())
            }
        }
    }

    /// The provider is late with its answer. It is not where it has not been read: that is its client's doing, or of
    /// those who fill the buffers. What an error says beyond its status is not waited for.
    pub(super) fn answer_late(
        &mut self,
        job: &mut RequestJob,
        unread: bool,
        message: &ClientMessage,
        cx: &mut Cx,
    ) -> AnswerStep {
        let kind = match &self.body {
            Body::Error { .. } => {
                self.drop_provider(cx);
                return self.body_end(job, message, cx);
            }
            _ if unread => return Ok(self.drained(cx)),
            // It lacks nothing but its terminator, or texts that its provider does not give.
            Body::Stream(stream) if stream.finish_seen() || stream.may_be_done() => {
                self.drop_provider(cx);
                return self.stream_body_ended(job, message, cx);
            }
            Body::Stream(_) if !matches!(self.draft, Draft::Kept(_)) => FaultKind::IdleTimeout,
            _ => FaultKind::FirstByteTimeout,
        };
        Err(Fault::from(kind).into())
    }

    /// All of the request has been sent: it is not needed any more if part of the answer has been relayed.
    pub(super) fn sent(&mut self, cx: &mut Cx) -> Effect {
        match std::mem::replace(&mut self.draft, Draft::Gone) {
            Draft::Leaving(draft) => {
                cx.requests.put(draft, &mut cx.budget, &mut cx.pool);
                Effect::Release
            }
            other => {
                self.draft = other;
                Effect::Nothing
            }
        }
    }

    /// The client reads again: the provider of a stream has all its time again, from now on.
    pub(super) fn drained(&mut self, cx: &Cx) -> Effect {
        let finish_seen = match &self.body {
            Body::Stream(stream) => stream.finish_seen(),
            Body::Offloaded { .. } => false,
            Body::Collect { .. } | Body::Error { .. } => return Effect::Nothing,
        };
        self.by = self.late(finish_seen, cx.now.mono);
        Effect::Wait
    }
}

impl RequestJob {
    /// Forwards the output in `cx.out`.
    #[inline]
    pub(super) fn forward(&mut self, forward: Forward, cx: &mut Cx) -> Effect {
        if cx.out.is_empty() {
            return if forward.waits { Effect::Wait } else { Effect::Nothing };
        }
        let forward = Forward { opens: self.open(), ..forward };
        if cx.is_long(cx.out.len()) {
            return Effect::ForwardBulk(forward, std::mem::take(&mut cx.out));
        }
        Effect::Forward(forward)
    }
}

/// A wait in seconds, rounded up, and 1 more so that none is not 0.
fn in_seconds(wait: Duration) -> Option<NonZeroU32> {
    let seconds = wait.as_millis().div_ceil(1000);
    NonZeroU32::new(u32::try_from(seconds).unwrap_or(u32::MAX - 1) + 1)
}
