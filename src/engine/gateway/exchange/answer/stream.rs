//! A response as it arrives: its body is read as its head requires, and the events of a stream are relayed. Usage is
//! observed in passing.

use super::end::{AnswerStep, Over};
use super::reply::collect;
use crate::base::limits::ERROR_BODY_MAX;
use crate::base::time::Mono;
use crate::dialect::{Fed, StreamFault};
use crate::gateway::cx::Cx;
use crate::gateway::exchange::event::Output;
use crate::gateway::exchange::event::{DriverCall, Effect, Forward, Outcome};
use crate::gateway::exchange::fault::{Fault, FaultKind};
use crate::gateway::exchange::job::RequestJob;
use crate::gateway::exchange::state::{Answering, Body, Draft, FinalOutput};
use crate::gateway::memory::shares::REQUEST_BYTES;
use crate::gateway::provider::breaker::Begun;

/// Part of a piece of a stream that is an event like the previous one.
pub(crate) enum Alike {
    /// All of it: how the event in the output is sent.
    All(Forward),
    /// This number of bytes at its front, whose event is in the output; [`Answering::data`] appends the rest.
    Front(usize),
}

impl Answering {
    /// Relays the event at the front of a piece if it is like the previous one: writes it to `out`.
    #[inline]
    pub(crate) fn pass_alike(&mut self, job: &mut RequestJob, data: &[u8], out: &mut Output, cx: &mut Cx) -> Alike {
        out.bytes.clear();
        let Body::Stream(stream) = &mut self.body else { return Alike::Front(0) };
        if cx.is_long(stream.held() + data.len()) {
            return Alike::Front(0);
        }
        let alike = stream.feed_alike(data, &mut cx.memory.pool, &mut out.bytes);
        if alike < data.len() || cx.is_long(out.bytes.len()) {
            return Alike::Front(alike);
        }
        let opens = job.open();
        Alike::All(Forward { opens, ..self.relayed(job, false, out, cx) })
    }

    /// A piece of the answer's body, of which `alike` bytes are passed on already.
    pub(crate) fn data(
        &mut self,
        job: &mut RequestJob,
        data: &[u8],
        alike: usize,
        call: &mut DriverCall,
    ) -> AnswerStep {
        let stream = match &mut self.body {
            Body::Stream(stream) => stream,
            Body::Collect { buf, .. } => return collect(buf, job, data, &mut call.cx.memory.pool),
            Body::Bytes { came, words } => {
                *came += data.len() as u64;
                if let Some(words) = words {
                    words.feed_json(data);
                }
                return Ok(self.pass_bytes(job, data, call));
            }
            Body::Error { buf, .. } => {
                if buf.len() + data.len() <= ERROR_BODY_MAX {
                    buf.push(&mut call.cx.memory.pool, data);
                }
                return Ok(Effect::Nothing);
            }
            Body::Offloaded { .. } => return Ok(Effect::Nothing),
        };
        if call.cx.is_long(stream.held() + data.len()) {
            return self.offload_events(job, Some(data), call);
        }
        let identity = job.request.counted_identity(call.cx.now.unix);
        let fed = stream.feed(&data[alike..], &mut call.cx.memory.pool, &identity, &mut call.out.bytes);
        let fed = fed.map(|fed| Fed { events: fed.events + u32::from(alike > 0), ..fed });
        self.fed(job, fed, call)
    }

    /// Passes on a piece of an answer without events.
    fn pass_bytes(&mut self, job: &mut RequestJob, data: &[u8], call: &mut DriverCall) -> Effect {
        call.out.bytes.clear();
        call.out.bytes.extend_from_slice(data);
        let forward = self.relayed(job, false, call.out, call.cx);
        job.forward(forward, call)
    }

    /// A piece of a stream has been read; its events are in `out`.
    pub(crate) fn fed(
        &mut self,
        job: &mut RequestJob,
        fed: Result<Fed, StreamFault>,
        call: &mut DriverCall,
    ) -> AnswerStep {
        let fits = self.charge_events(job, call.cx);
        let end_at = if let Body::Stream(stream) = &self.body { stream.end_at() } else { None };
        let came = match &fed {
            Ok(fed) => fed.events > 0,
            // The client still gets the events before the fault.
            Err(_) => !call.out.bytes.is_empty(),
        };
        let mut forward = Forward::default();
        match came {
            true => forward = self.relayed(job, end_at.is_some(), call.out, call.cx),
            // Comments and pings open no stream and extend no deadline; passed on in an open stream, they keep proxies
            // from closing the connection.
            false if !job.attempt.opened => call.out.bytes.clear(),
            false => {}
        }
        self.hold_back(end_at, call);
        match fed {
            Err(fault) => Err(self.broken(job, job.stream_fault(fault), forward, call.out)),
            Ok(Fed { finished: true, .. }) => self.stream_ends(job, forward, call),
            Ok(_) if !fits => Err(self.broken(job, Fault::from(FaultKind::KeyBuffers), forward, call.out)),
            Ok(_) => Ok(job.forward(forward, call)),
        }
    }

    /// Charges the key for the stream's memory. False if the memory has grown beyond the share of its key: the stream
    /// cannot wait, since its memory is freed only at its end.
    pub(crate) fn charge_events(&mut self, job: &RequestJob, cx: &mut Cx) -> bool {
        let (Some(key), Body::Stream(stream)) = (job.request.found.key, &self.body) else { return true };
        let (before, storage) = (self.charged as usize, stream.capacity());
        if storage == before {
            return true;
        }
        self.charged = cx.memory.shares.recharge(key, self.charged, storage);
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
        let rearms = by < self.by || beat < admitted.beat;
        self.by = by;
        admitted.beat = beat;
        let mut commits = false;
        if let Draft::Kept(_) = self.draft {
            admitted.until = Mono::NEVER;
            // Events without content are held: then another attempt may follow.
            if !out.bytes.is_empty() {
                commits = self.commit(job, cx);
            }
        }
        if finish_seen
            && job.request.asked.is_some_and(|asked| asked.show_usage)
            && let Body::Stream(stream) = &self.body
        {
            job.write_cost(stream, &mut out.bytes);
        }
        let mut captured = false;
        if !job.notes.is_empty() {
            job.notes.note_finish(&job.request, finish_seen, &out.bytes);
            captured = job.request.meta.captured;
        }
        Forward { opens: false, commits, rearms, captured }
    }

    /// Part of an answer has been relayed; true if the request's bytes are not needed any more.
    #[inline(never)]
    fn commit(&mut self, job: &mut RequestJob, cx: &mut Cx) -> bool {
        let begun = job.attempt.flight.as_mut().map(|flight| std::mem::take(&mut flight.begun)).unwrap_or_default();
        (job.attempt.begun, job.attempt.has_content) = (cx.now.mono, true);
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
    fn hold_back(&mut self, end_at: Option<usize>, call: &mut DriverCall) {
        if let Some(end_at) = end_at.filter(|_| call.cx.waits_for_rows()) {
            let end_at = end_at.min(call.out.bytes.len());
            self.last.push(&mut call.cx.memory.pool, &call.out.bytes[end_at..]);
            call.out.bytes.truncate(end_at);
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
    pub(crate) fn stream_ends(&mut self, job: &mut RequestJob, forward: Forward, call: &mut DriverCall) -> AnswerStep {
        self.release_complete(call.out);
        job.target_succeeded(call.cx);
        let usage = job.charged(self.body.observed());
        if call.cx.waits_for_rows() {
            let (last, kind) = (std::mem::take(&mut self.last), FinalOutput::Events);
            return Err(Box::new(Over::Complete { last, kind, usage, forward }));
        }
        let forward = Forward { opens: job.open(), ..forward };
        Ok(Effect::End(forward, Outcome { status: 200, error: None, usage }))
    }

    /// Handles the end of a stream that has been read; its output is in `out`.
    pub(crate) fn ended(
        &mut self,
        job: &mut RequestJob,
        ended: Result<(), StreamFault>,
        call: &mut DriverCall,
    ) -> AnswerStep {
        let forward =
            if call.out.bytes.is_empty() { Forward::default() } else { self.relayed(job, true, call.out, call.cx) };
        match ended {
            Ok(()) => {
                self.hold_back(Some(0), call);
                self.stream_ends(job, forward, call)
            }
            Err(fault) => Err(self.broken(job, job.stream_fault(fault), forward, call.out)),
        }
    }
}
