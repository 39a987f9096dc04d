//! A stream with audio or images whose client has left. Its provider makes and bills all of it, and reports that in the
//! last event, so the stream is read to that event. The media in it are dropped as they arrive.

use crate::base::time::Mono;
use crate::gateway::exchange::attempt::verdict::abandon;
use crate::gateway::exchange::event::{CLIENT_LEFT, DriverCall, Effect, ExchangeEvent, Outcome};
use crate::gateway::exchange::job::RequestJob;
use crate::gateway::exchange::state::{Answering, Body, Lingering, NextStep, State};
use crate::gateway::orders::offload::Product;
use crate::policy::cause::Cause;
use std::time::Duration;

/// Time for which a stream with audio or images is read on after its client has left, up to its last event.
const MEDIA_LINGER: Duration = Duration::from_secs(10);
/// Bytes of such events that are read, without the media in them.
const MEDIA_LINGER_BYTES_MAX: usize = 1024 * 1024;

/// Characters of a run of base64 that are kept. No other text in events of media has longer words.
const RUN_KEPT: u32 = 256;

impl Answering {
    /// True if the answer is read on after its client has left.
    pub(crate) fn outlasts_client(&self, job: &RequestJob) -> bool {
        let has_report = matches!(self.body, Body::Stream(_) | Body::Offloaded { .. });
        has_report && self.provider.is_some() && job.request.relays_media()
    }
}

impl Lingering {
    /// The client of `answering` has left.
    pub(crate) fn begin(answering: Answering, job: &mut RequestJob, call: &mut DriverCall) -> NextStep {
        job.note_unanswered(call.cx);
        // The connection of the client will be gone.
        let caller = job.notes.caller(&job.request, call.cx);
        let notes = job.notes.get_mut();
        (notes.caller, notes.cause) = (Some(caller), Some(Cause::new("client left", "")));
        let until = call.cx.now.mono.after(MEDIA_LINGER);
        let mut lingering = Lingering { answering, until, left: MEDIA_LINGER_BYTES_MAX, run: 0 };
        let effect = lingering.read_again(job, call);
        NextStep::Enter(State::Lingering(Box::new(lingering)), effect)
    }

    /// The earlier of its deadlines.
    pub(crate) fn due(&self) -> Mono {
        self.until.min(self.answering.by)
    }

    /// Handles an event. A deadline of its provider moves with each event of that.
    pub(crate) fn on(
        mut self: Box<Self>,
        event: ExchangeEvent<'_>,
        job: &mut RequestJob,
        call: &mut DriverCall,
    ) -> NextStep {
        let effect = match event {
            ExchangeEvent::BodyEnd => self.body_ends(job, call),
            ExchangeEvent::Offloaded(product) => self.offloaded(job, product.map(|product| *product), call),
            ExchangeEvent::Due(_) if self.due() > call.cx.now.mono => self.waits(),
            ExchangeEvent::Room => {
                self.answering.paused = false;
                Effect::Nothing
            }
            _ => self.ends(job, call),
        };
        NextStep::Enter(State::Lingering(self), effect)
    }

    fn waits(&self) -> Effect {
        self.answering.provider.map_or(Effect::Nothing, |provider| Effect::Linger(provider, self.due()))
    }

    /// A piece of the answer's body.
    pub(crate) fn data(&mut self, job: &mut RequestJob, data: &[u8], call: &mut DriverCall) -> Effect {
        let kept = self.without_media(data);
        let Body::Stream(stream) = &mut self.answering.body else { return self.ends(job, call) };
        let Some(left) = self.left.checked_sub(kept.len()) else { return self.ends(job, call) };
        self.left = left;
        let identity = job.request.counted_identity(call.cx.now.unix);
        let fed = stream.feed(&kept, &mut call.cx.memory.pool, &identity, &mut call.out.bytes);
        call.out.bytes.clear();
        let is_over = fed.is_err() || stream.finish_seen();
        if fed.is_ok_and(|fed| fed.events > 0) {
            self.answering.by = self.answering.late(false, call.cx.now.mono);
        }
        // Within its bounds, the stream needs no turn.
        self.answering.charge_events(job, call.cx);
        if is_over { self.ends(job, call) } else { Effect::Nothing }
    }

    /// `data` without the long runs of base64 in it.
    fn without_media(&mut self, data: &[u8]) -> Vec<u8> {
        let mut kept = Vec::new();
        for &byte in data {
            let is_base64 = byte.is_ascii_alphanumeric() || b"+/=-_".contains(&byte);
            self.run = if is_base64 { self.run.saturating_add(1) } else { 0 };
            if self.run <= RUN_KEPT {
                kept.push(byte);
            }
        }
        kept
    }

    /// Reads the part of an event that was kept for the client, without its media. Waits unless that ends the answer.
    fn read_again(&mut self, job: &mut RequestJob, call: &mut DriverCall) -> Effect {
        let mut held = match &mut self.answering.body {
            Body::Stream(stream) if stream.finish_seen() => return self.ends(job, call),
            Body::Stream(stream) => stream.take_held(),
            // A helper thread has it.
            _ => return self.waits(),
        };
        let effect = self.data(job, held.bytes(), call);
        held.release(&mut call.cx.memory.pool);
        if let Effect::Nothing = effect { self.waits() } else { effect }
    }

    /// A helper thread has read a large event.
    fn offloaded(&mut self, job: &mut RequestJob, product: Option<Product>, call: &mut DriverCall) -> Effect {
        match product {
            Some(Product::Events { stream, fed: Ok(_), .. }) => {
                self.answering.body = Body::Stream(stream);
                self.read_again(job, call)
            }
            Some(Product::Events { stream, .. } | Product::LastEvent { stream, .. }) => {
                self.answering.body = Body::Stream(stream);
                self.ends(job, call)
            }
            _ => self.ends(job, call),
        }
    }

    /// The body has ended; its last event may lack its end.
    fn body_ends(&mut self, job: &mut RequestJob, call: &mut DriverCall) -> Effect {
        if let Body::Stream(stream) = &mut self.answering.body {
            let identity = job.request.counted_identity(call.cx.now.unix);
            // The charge depends on what was read, whatever is missing.
            let _ = stream.end(&mut call.cx.memory.pool, &identity, &mut call.out.bytes);
            call.out.bytes.clear();
        }
        self.ends(job, call)
    }

    /// Ends the request, with the charge that the provider has reported by its last event, or else the reservation.
    pub(crate) fn ends(&mut self, job: &mut RequestJob, call: &mut DriverCall) -> Effect {
        self.answering.drop_provider(call.out);
        let is_whole = matches!(&self.answering.body, Body::Stream(stream) if stream.finish_seen());
        if is_whole {
            job.target_succeeded(call.cx)
        } else {
            abandon(job, call.cx)
        }
        let usage = job.partial_usage(self.answering.body.observed(), Some(is_whole));
        Effect::Gone(Outcome { status: CLIENT_LEFT, error: None, usage })
    }
}
