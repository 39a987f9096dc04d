//! A response as it arrives: its body is read as its head requires, and the events of a stream are relayed. Usage is
//! observed in passing.

use super::event::{AnswerStep, ClientMessage, DriverCall, Effect, Forward, Outcome, Over};
use super::fault::{Fault, FaultKind};
use super::job::RequestJob;
use super::output::Output;
use super::reply::collect;
use super::state::{Answering, Attempting, Body, Draft, Exchange, FinalOutput, Queued, State};
use super::transitions::Step;
use crate::base::buf::Buf;
use crate::base::limits::ERROR_BODY_MAX;
use crate::base::time::Mono;
use crate::dialect::errors::ErrorWords;
use crate::dialect::stream::heartbeat;
use crate::dialect::{Fed, ObservedUsage, ResponseIdentity, SseStream, StreamFault, failure, opening};
use crate::gateway::budget::REQUEST_BYTES;
use crate::gateway::cx::Cx;
use crate::gateway::offload::{JobOwner, OffloadTask, Product};
use crate::gateway::provider::breaker::Begun;
use crate::wire::{ModelEndpoint, Shape};

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

    /// Takes the stream and leaves one without content.
    fn take_stream(&mut self) -> Option<Box<SseStream>> {
        match std::mem::replace(self, Body::Collect { buf: Buf::default(), announced: None, stream: None }) {
            Body::Stream(stream) => Some(stream),
            other => {
                *self = other;
                None
            }
        }
    }

    /// Releases its storage.
    pub(super) fn release(self, cx: &mut Cx) {
        match self {
            Body::Stream(mut stream) => {
                stream.release(&mut cx.memory.pool);
                cx.upstreams.streams.put(stream);
            }
            Body::Collect { mut buf, .. } | Body::Error { mut buf, .. } => buf.release(&mut cx.memory.pool),
            Body::Offloaded { serial, .. } => cx.abandon(serial),
        }
    }
}

impl Exchange {
    /// A piece of a stream that only contains an event like the one before: returns how it is sent, from `out`.
    /// Otherwise the number of bytes that are such an event, which is in `out`; [`Exchange::data`] handles the rest.
    #[inline]
    pub(crate) fn pass_alike(&mut self, data: &[u8], out: &mut Output, cx: &mut Cx) -> Result<Forward, usize> {
        let Some(answering) = self.state.answering_mut() else { return Err(0) };
        let Body::Stream(stream) = &mut answering.body else { return Err(0) };
        if cx.is_long(stream.held() + data.len()) {
            return Err(0);
        }
        out.bytes.clear();
        let alike = stream.feed_alike(data, &mut cx.memory.pool, &mut out.bytes);
        if alike < data.len() || cx.is_long(out.bytes.len()) {
            return Err(alike);
        }
        let opens = self.job.open();
        Ok(Forward { opens, ..answering.relayed(&mut self.job, false, out, cx) })
    }

    /// A piece of the response's body, of which [`Exchange::pass_alike`] has taken `alike` bytes.
    pub(crate) fn data(&mut self, data: &[u8], alike: usize, call: &mut DriverCall, cx: &mut Cx) -> Effect {
        let taken = Step::of(self, &format_args!("Data"));
        let step = match self.state.answering_mut() {
            Some(answering) => answering.data(&mut self.job, data, alike, call, cx),
            None => Err(Fault::from(FaultKind::Internal).into()),
        };
        let effect = self.follow(step, call, cx);
        taken.leads(self, &effect);
        effect
    }

    /// Sends the status and a heartbeat after a period without events, so that no proxy closes the connection. A client
    /// that has not read its pending output, `drained`, needs none.
    pub(super) fn heartbeat(&mut self, drained: bool, out: &mut Output, cx: &mut Cx) -> Effect {
        let job = &mut self.job;
        if let Some(admitted) = &mut job.admitted {
            admitted.beat = cx.now.mono.after(job.request.setup.config.server.heartbeat_after);
        }
        let Some(endpoint) = job.request.endpoint().filter(|_| drained) else { return Effect::Wait };
        out.bytes.clear();
        let identity = job.request.counted_identity(cx.now.unix);
        job.attempt.told = self.state.write_heartbeat(endpoint.shape, job.attempt.told, &identity, &mut out.bytes);
        Effect::Forward(Forward { opens: job.open(), commits: false, waits: true })
    }
}

impl State {
    /// Writes a heartbeat. Returns the events that the client has got: another attempt may follow as long as none has
    /// arrived, and continues after them.
    fn write_heartbeat(&mut self, shape: Shape, told: u16, identity: &ResponseIdentity<'_>, out: &mut Vec<u8>) -> u16 {
        match self {
            State::Answering(Answering { body: Body::Stream(stream), .. }) => stream.heartbeat(shape, identity, out),
            State::Queued(Queued { draft, .. }) | State::Attempting(Attempting { draft, .. }) => {
                opening(shape, told, draft.state.as_ref(), identity, out)
            }
            _ => {
                heartbeat(shape, out);
                told
            }
        }
    }

    /// Writes the error event that ends a broken stream, in the client's shape.
    pub(super) fn write_failure(
        &mut self,
        endpoint: ModelEndpoint,
        told: u16,
        words: &ErrorWords<'_>,
        identity: &ResponseIdentity<'_>,
        out: &mut Vec<u8>,
    ) {
        match self {
            State::Answering(Answering { body: Body::Stream(stream), .. }) => {
                stream.fail(endpoint, words, identity, out)
            }
            State::Queued(Queued { draft, .. }) | State::Attempting(Attempting { draft, .. }) => {
                failure(endpoint, told, draft.state.as_ref(), words, identity, out);
            }
            _ => failure(endpoint, 0, None, words, identity, out),
        }
    }
}

impl Answering {
    /// A piece of the answer's body, of which `alike` bytes are passed on already.
    fn data(
        &mut self,
        job: &mut RequestJob,
        data: &[u8],
        alike: usize,
        call: &mut DriverCall,
        cx: &mut Cx,
    ) -> AnswerStep {
        let stream = match &mut self.body {
            Body::Stream(stream) => stream,
            Body::Collect { buf, .. } => return collect(buf, job, data, &mut cx.memory.pool),
            Body::Error { buf, .. } => {
                if buf.len() + data.len() <= ERROR_BODY_MAX {
                    buf.push(&mut cx.memory.pool, data);
                }
                return Ok(Effect::Nothing);
            }
            Body::Offloaded { .. } => return Ok(Effect::Nothing),
        };
        if cx.is_long(stream.held() + data.len()) {
            return self.offload_events(job, Some(data), &call.message, cx);
        }
        let identity = job.request.counted_identity(cx.now.unix);
        let fed = stream.feed(&data[alike..], &mut cx.memory.pool, &identity, &mut call.out.bytes);
        let fed = fed.map(|fed| Fed { events: fed.events + u32::from(alike > 0), ..fed });
        self.fed(job, fed, call.out, cx)
    }

    /// A piece of a stream has been read; its events are in `out`.
    pub(super) fn fed(
        &mut self,
        job: &mut RequestJob,
        fed: Result<Fed, StreamFault>,
        out: &mut Output,
        cx: &mut Cx,
    ) -> AnswerStep {
        let fits = self.charge_events(job, cx);
        let end_at = if let Body::Stream(stream) = &self.body { stream.end_at() } else { None };
        let came = match &fed {
            Ok(fed) => fed.events > 0,
            // The client still gets the events before the fault.
            Err(_) => !out.bytes.is_empty(),
        };
        let mut forward = Forward::default();
        match came {
            true => forward = self.relayed(job, end_at.is_some(), out, cx),
            // Comments and pings open no stream and extend no deadline; passed on in an open stream, they keep proxies
            // from closing the connection.
            false if !job.attempt.opened => out.bytes.clear(),
            false => {}
        }
        self.hold_back(end_at, out, cx);
        match fed {
            Err(fault) => Err(self.broken(job, job.stream_fault(fault), forward, out)),
            Ok(Fed { finished: true, .. }) => self.stream_ends(job, forward, out, cx),
            Ok(_) if !fits => Err(self.broken(job, Fault::from(FaultKind::KeyBuffers), forward, out)),
            Ok(_) => Ok(job.forward(forward, out, cx)),
        }
    }

    /// Charges the key for the stream's memory. False if the memory has grown beyond the share of its key: the stream
    /// cannot wait, since its memory is freed only at its end.
    fn charge_events(&mut self, job: &RequestJob, cx: &mut Cx) -> bool {
        let (Some(key), Body::Stream(stream)) = (job.request.found.key, &self.body) else { return true };
        let (before, storage) = (self.charged as usize, stream.capacity());
        if storage == before {
            return true;
        }
        self.charged = cx.memory.budget.recharge(key, self.charged, storage);
        // A part of a short event is soon released.
        let keeps = stream.waiting() > 0 || storage > REQUEST_BYTES;
        !(self.crowded && keeps && storage > before)
    }

    /// Events of a response are sent: the commit point. From here on there is no other attempt, so the request is
    /// dropped as soon as all of it has been sent.
    #[inline]
    fn relayed(&mut self, job: &mut RequestJob, finish_seen: bool, out: &mut Output, cx: &mut Cx) -> Forward {
        let Some(admitted) = &mut job.admitted else { return Forward::default() };
        let now = cx.now.mono;
        let by = self.late(finish_seen, now);
        // An event without output shows the client nothing.
        let beat = match out.bytes.is_empty() {
            true => admitted.beat,
            false => now.after(job.request.setup.config.server.heartbeat_after),
        };
        let waits = by < self.by || beat < admitted.beat;
        self.by = by;
        admitted.beat = beat;
        let mut commits = false;
        // An event without content may have no counterpart in the client's format: then another attempt may follow.
        if let Draft::Kept(_) = self.draft
            && !out.bytes.is_empty()
        {
            admitted.until = Mono::NEVER;
            commits = self.commit(job, cx);
        }
        if finish_seen
            && job.request.asked.is_some_and(|asked| asked.show_usage)
            && let Body::Stream(stream) = &self.body
        {
            job.write_cost(stream, &mut out.bytes);
        }
        if !job.notes.is_empty() {
            job.notes.note_finish(&job.request, finish_seen, &out.bytes);
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
                cx.upstreams.requests.put(draft, &mut cx.memory);
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
            && cx.upstreams.breakers.answered(target, begun, cx.now.mono)
        {
            cx.log_target(&target.label, None);
        }
        gone
    }

    /// With `durability = "before-reply"` the end of a stream waits for its row: keeps it, from `end_at` on.
    #[inline]
    fn hold_back(&mut self, end_at: Option<usize>, out: &mut Output, cx: &mut Cx) {
        if let Some(end_at) = end_at.filter(|_| cx.waits_for_rows()) {
            let end_at = end_at.min(out.bytes.len());
            self.last.push(&mut cx.memory.pool, &out.bytes[end_at..]);
            out.bytes.truncate(end_at);
        }
    }

    /// The stream is broken. The good part of it is in `out`.
    #[cold]
    fn broken(&self, job: &mut RequestJob, fault: Fault, forward: Forward, out: &Output) -> Box<Over> {
        let is_relayed = !matches!(self.draft, Draft::Kept(_)) && !out.bytes.is_empty();
        let good = is_relayed.then(|| Forward { opens: job.open(), ..forward });
        Box::new(Over::Failed { fault, good })
    }

    /// The stream has ended properly.
    fn stream_ends(&mut self, job: &mut RequestJob, forward: Forward, out: &mut Output, cx: &mut Cx) -> AnswerStep {
        self.release_complete(out);
        job.target_succeeded(cx);
        let usage = job.charged(self.body.observed());
        if cx.waits_for_rows() {
            let (last, kind) = (std::mem::take(&mut self.last), FinalOutput::Events);
            return Err(Box::new(Over::Complete { last, kind, usage, forward }));
        }
        let forward = Forward { opens: job.open(), ..forward };
        Ok(Effect::End(forward, Outcome { status: 200, error: None, usage }))
    }

    /// Releases the connection, whose response is complete.
    pub(super) fn release_complete(&mut self, out: &mut Output) {
        if let Some(provider) = self.provider.take() {
            out.release(provider, true);
        }
    }

    /// Closes the connection, whatever it is doing.
    pub(super) fn drop_provider(&mut self, out: &mut Output) {
        if let Some(provider) = self.provider.take() {
            out.release(provider, false);
        }
    }

    /// The response's body has ended as its framing announced.
    pub(super) fn body_end(&mut self, job: &mut RequestJob, call: &mut DriverCall, cx: &mut Cx) -> AnswerStep {
        match &mut self.body {
            // Another attempt may need the same connection.
            Body::Error { .. } if self.provider.is_some() => {
                self.release_complete(call.out);
                Ok(Effect::Again)
            }
            Body::Error { buf, status, retry_after } => {
                Err(job.status_fault(buf.bytes(), *status, *retry_after).into())
            }
            Body::Collect { buf, stream, .. } => {
                let (buf, stream) = (std::mem::take(buf), stream.take());
                self.collected(job, buf, stream, call, cx)
            }
            Body::Stream(stream) => match stream.take_document() {
                // The body is read as a complete response.
                Some(buf) => {
                    let stream = self.body.take_stream();
                    self.collected(job, buf, stream, call, cx)
                }
                None if cx.is_long(stream.held()) => {
                    // The provider is not needed any more.
                    self.by = Mono::NEVER;
                    self.offload_events(job, None, &call.message, cx)
                }
                None => {
                    call.out.bytes.clear();
                    let identity = job.request.counted_identity(cx.now.unix);
                    let ended = stream.end(&mut cx.memory.pool, &identity, &mut call.out.bytes);
                    self.ended(job, ended, call.out, cx)
                }
            },
            Body::Offloaded { .. } => Ok(Effect::Nothing),
        }
    }

    /// Handles the end of a stream that has been read; its output is in `out`.
    fn ended(
        &mut self,
        job: &mut RequestJob,
        ended: Result<(), StreamFault>,
        out: &mut Output,
        cx: &mut Cx,
    ) -> AnswerStep {
        let forward = if out.bytes.is_empty() { Forward::default() } else { self.relayed(job, true, out, cx) };
        match ended {
            Ok(()) => {
                self.hold_back(Some(0), out, cx);
                self.stream_ends(job, forward, out, cx)
            }
            Err(fault) => Err(self.broken(job, job.stream_fault(fault), forward, out)),
        }
    }

    /// Has a large event read by a helper thread: `data` is its part so far, or the stream has ended with it.
    fn offload_events(
        &mut self,
        job: &RequestJob,
        data: Option<&[u8]>,
        message: &ClientMessage,
        cx: &mut Cx,
    ) -> AnswerStep {
        let observed = Box::new(self.body.observed());
        let Some(stream) = self.body.take_stream() else { return Err(Fault::from(FaultKind::Internal).into()) };
        let serial = cx.next_offload();
        let identity = job.request.counted_identity(cx.now.unix).into();
        self.body = Body::Offloaded { serial, observed };
        let mut piece = Buf::default();
        piece.push(&mut cx.memory.pool, data.unwrap_or_default());
        let lent = stream.capacity() + piece.capacity();
        let task = match data {
            Some(_) => OffloadTask::Events { stream, data: piece },
            None => OffloadTask::LastEvent { stream },
        };
        let of = JobOwner { exchange: message.exchange, key: job.request.found.key, serial };
        cx.offload(of, lent, identity, task);
        Ok(Effect::Wait)
    }

    /// Handles the result of a helper thread for a piece of the answer.
    pub(super) fn offloaded(
        &mut self,
        job: &mut RequestJob,
        product: Option<Product>,
        call: &mut DriverCall,
        cx: &mut Cx,
    ) -> AnswerStep {
        match product {
            Some(Product::Reply { read, out: body }) => self.whole_read(job, read, body, call, cx),
            Some(Product::Events { stream, out: bytes, fed }) => {
                self.body = Body::Stream(stream);
                call.out.bytes = bytes;
                self.fed(job, fed, call.out, cx)
            }
            Some(Product::LastEvent { stream, out: bytes, ended }) => {
                self.body = Body::Stream(stream);
                call.out.bytes = bytes;
                self.ended(job, ended, call.out, cx)
            }
            Some(Product::Request { .. }) | None => {
                cx.report.stats.panics += 1;
                Err(Fault::from(FaultKind::Internal).into())
            }
        }
    }

    /// The provider is late with its response. If it was not read, it is not to blame: its client did not read, or the
    /// buffers were full. The body of an error is not waited for.
    pub(super) fn answer_late(
        &mut self,
        job: &mut RequestJob,
        unread: bool,
        call: &mut DriverCall,
        cx: &mut Cx,
    ) -> AnswerStep {
        let kind = match &self.body {
            Body::Error { .. } => {
                self.drop_provider(call.out);
                return self.body_end(job, call, cx);
            }
            _ if unread => return Ok(self.drained(cx)),
            // Only its terminator is missing, or texts that its provider does not send.
            Body::Stream(stream) if stream.finish_seen() || stream.may_be_done() => {
                self.drop_provider(call.out);
                return self.body_end(job, call, cx);
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
                cx.upstreams.requests.put(draft, &mut cx.memory);
                Effect::Release
            }
            other => {
                self.draft = other;
                Effect::Nothing
            }
        }
    }

    /// The client reads again: the timeout of the provider of a stream begins again.
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
    /// Forwards the events in `out`.
    #[inline]
    pub(super) fn forward(&mut self, forward: Forward, out: &mut Output, cx: &Cx) -> Effect {
        if out.bytes.is_empty() {
            return if forward.waits { Effect::Wait } else { Effect::Nothing };
        }
        let forward = Forward { opens: self.open(), ..forward };
        if cx.is_long(out.bytes.len()) {
            return Effect::ForwardBulk(forward, std::mem::take(&mut out.bytes));
        }
        Effect::Forward(forward)
    }
}
