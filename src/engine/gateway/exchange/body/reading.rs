//! Receives a body. Once it is complete, reads it and writes it for the first target. A form is read as it arrives.

use super::build::promise_translation;
use crate::base::limits::{BODY_RATE_MIN, IO_SLICE, UPLOAD_HOLD};
use crate::dialect::{Invalid, reading_work};
use crate::gateway::cx::Cx;
use crate::gateway::exchange::event::{DriverCall, Effect, Outcome};
use crate::gateway::exchange::job::RequestJob;
use crate::gateway::exchange::request::{Endpoint, Request};
use crate::gateway::exchange::room::note_needs;
use crate::gateway::exchange::state::{Exchange, NextStep, Outgoing, State, Translating};
use crate::gateway::memory::shares::REQUEST_BYTES;
use crate::gateway::provider::request::OutgoingRequest;
use crate::policy::keys::KeyIx;
use crate::policy::refusal::Refusal;
use crate::wire::head::{Framing, HeaderField, RequestHead};
use crate::wire::{ModelEndpoint, Operation, Passthrough, Shape, multipart};
use std::io::Write;
use std::time::Duration;

impl Exchange {
    /// The head is accepted: memory for the body is reserved, and the body is read.
    pub(crate) fn read_body(
        &mut self,
        head: &RequestHead,
        bytes: &[u8],
        declared: u64,
        cx: &mut Cx,
    ) -> Result<(), Refusal> {
        let (Some(key), Some(endpoint)) = (self.job.request.found.key, self.job.request.endpoint()) else {
            return Ok(());
        };
        let mut draft = cx.upstreams.requests.take();
        draft.scan.reset(endpoint);
        draft.head = *head;
        let mut declared = declared;
        if let Some(passthrough) = endpoint.as_passthrough().filter(|passthrough| passthrough.is_form()) {
            begin_form(&mut draft, passthrough, bytes, cx.setup.config.server.max_upload);
            // More is not held.
            declared = declared.min((UPLOAD_HOLD + IO_SLICE) as u64);
        }
        let mut promised = cx.memory.shares.body(&mut draft.promise, key, declared, &mut cx.memory.pool);
        if promised.is_ok() {
            promised = promise_translation(&self.job.request, &mut draft, declared, cx);
        }
        self.state = State::Reading { draft };
        promised
    }
}

/// Begins to read a form. `bytes`: those of its request's head.
#[cold]
fn begin_form(draft: &mut OutgoingRequest, passthrough: Passthrough, bytes: &[u8], most: u64) {
    let known = if let Framing::Length(length) = draft.head.framing { Some(length) } else { None };
    let boundary = multipart::boundary(draft.head.field(HeaderField::ContentType).of(bytes)).unwrap_or_default();
    draft.scan.reset_form(passthrough, boundary, known, most);
}

/// The body is complete: checks that the requested model exists and that the key may use it.
/// `complete` is false for a form of which enough has arrived.
pub(crate) fn complete(job: &mut RequestJob, mut draft: Outgoing, complete: bool, call: &mut DriverCall) -> NextStep {
    let body = call.message.body;
    let is_long = call.cx.is_long(reading_work(body)) && draft.scan.form().is_none();
    let scanned = if complete && !is_long { draft.scan.finish(body) } else { Ok(()) };
    let came = if complete { came(&job.request, &mut draft, true, call) } else { Ok(()) };
    if complete && came.is_ok() && (is_long || draft.scan.has_input()) {
        return Translating::read(job, draft, call.cx);
    }
    // A lack of memory is reported before an error in the body.
    let scanned = came.and_then(|()| scanned.map_err(|Invalid(why)| Refusal::invalid_body(why)));
    if complete && scanned.is_ok() {
        job.request.read = call.cx.now.mono;
    }
    after_scan(job, draft, scanned, call)
}

/// A helper thread has scanned the body, see [`Translating::read`].
#[cold]
pub(crate) fn scanned(
    job: &mut RequestJob,
    mut draft: Outgoing,
    scanned: Result<(), Invalid>,
    call: &mut DriverCall,
) -> NextStep {
    job.request.read = call.cx.now.mono;
    job.request.found.has_input = draft.scan.has_input();
    // The size of its tables was not known before. A lack of memory is reported before an error in the body.
    let length = call.message.body.len() as u64;
    let promised = job.request.found.key.map_or(Ok(()), |key| promise_body(&mut draft, key, length, call.cx));
    let read = promised.and_then(|()| scanned.map_err(|Invalid(why)| Refusal::invalid_body(why)));
    let read = read.and_then(|()| job.request.keep(&mut draft, call));
    after_scan(job, draft, read, call)
}

/// The step after the body was scanned.
fn after_scan(
    job: &mut RequestJob,
    mut draft: Outgoing,
    scanned: Result<(), Refusal>,
    call: &mut DriverCall,
) -> NextStep {
    match scanned.and_then(|()| job.read(&mut draft, call)) {
        // Writes the body for its provider before admission: a request that cannot be sent is not charged.
        Ok(None) => NextStep::Write(draft),
        Ok(Some(shape)) => {
            call.out.bytes.clear();
            let object = if shape.is_anthropic() { "" } else { r#""object":"response.input_tokens","# };
            // Writing to a Vec cannot fail.
            let count = draft.scan.prompt_tokens(call.message.body).count();
            let _ = write!(call.out.bytes, "{{{object}\"input_tokens\":{count}}}");
            NextStep::Enter(State::Reading { draft }, Effect::Answer(Outcome::ok()))
        }
        Err(refusal) => {
            job.note_model(call.message.body);
            NextStep::refuse(draft, refusal)
        }
    }
}

impl RequestJob {
    /// Reads the request in the body. Returns its API format if only its tokens are to be counted.
    fn read(&mut self, draft: &mut OutgoingRequest, call: &mut DriverCall) -> Result<Option<Shape>, Refusal> {
        let counts = match self.request.found.endpoint {
            Some(Endpoint::Inference(ModelEndpoint { operation: Operation::CountTokens, shape })) => Some(shape),
            _ => None,
        };
        self.request.still_welcome(call.cx)?;
        if !call.cx.clock_is_right() {
            return Err(Refusal::clock());
        }
        // A count needs only the prompt; but a named model must exist, and the key must be allowed to use it.
        if counts.is_none() || draft.scan.fields().model.is_some() {
            self.choose_model(draft, call)?;
        }
        if counts.is_some() {
            return Ok(counts);
        }
        self.request.attribute(draft, call);
        first_target(self, draft, call)?;
        Ok(None)
    }
}

/// Chooses the target that the body is written for before admission.
#[inline]
pub(crate) fn first_target(
    job: &mut RequestJob,
    draft: &mut OutgoingRequest,
    call: &mut DriverCall,
) -> Result<(), Refusal> {
    draft.kept_with = job.request.kept_with(draft, call);
    draft.cache_key = job.request.cache_key(draft, call);
    let prompt =
        job.request.asked.map_or(0, |asked| asked.prompt.map_or(asked.about.into(), |count| count.get().into()));
    note_needs(&mut job.request, prompt, draft, &call.message);
    job.attempt.first_target(&job.request, draft, call.cx)
}

impl Request {
    /// More of the body has arrived. Only a form is read, and refused, before it is complete.
    pub(crate) fn scan(&mut self, draft: &mut OutgoingRequest, call: &mut DriverCall) -> Result<(), Refusal> {
        let scanned = draft.scan.feed(call.message.body);
        came(self, draft, false, call)?;
        scanned.map_err(|Invalid(why)| Refusal::invalid_body(why))
    }

    /// Minutes may lie between a head and the end of its body: the key may have been revoked meanwhile, and admission
    /// may have gone to another process.
    #[inline]
    pub(crate) fn still_welcome(&self, cx: &Cx) -> Result<(), Refusal> {
        let Some(key) = self.found.key else { return Ok(()) };
        if !cx.access.keys.get(key).is_live(cx.now.unix) {
            return Err(Refusal::bad_key("ended while its request arrived"));
        }
        if cx.lifecycle.has_handed_over() {
            return Err(Refusal::upgrading());
        }
        Ok(())
    }
}

/// More of the body has arrived, perhaps the last of it: reserves memory for it.
fn came(request: &Request, draft: &mut OutgoingRequest, complete: bool, call: &mut DriverCall) -> Result<(), Refusal> {
    let length = call.message.body.len() as u64;
    let body_timeout = request.setup.config.server.body_timeout;
    if !complete && is_too_slow(length, call.cx.now.mono.micros_since(request.received), body_timeout) {
        return Err(Refusal::body_too_slow("body_timeout", body_timeout));
    }
    if let Some(key) = request.found.key {
        promise_body(draft, key, length, call.cx)?;
    }
    let storage = call.message.storage + draft.storage();
    call.cx.memory.shares.came(&mut draft.promise, storage, &mut call.cx.memory.pool);
    Ok(())
}

/// True if `bytes` of a body are too few after this time to wait for the rest of it.
#[inline]
pub(crate) fn is_too_slow(length: u64, micros: u64, body_timeout: Duration) -> bool {
    micros > body_timeout.as_micros() as u64 && length < (micros / 1_000_000).saturating_mul(BODY_RATE_MIN)
}

/// Reserves memory for a body of `length` bytes and for the tables of its scan, which grow with its members.
fn promise_body(draft: &mut OutgoingRequest, key: KeyIx, length: u64, cx: &mut Cx) -> Result<(), Refusal> {
    cx.memory.shares.body(&mut draft.promise, key, length, &mut cx.memory.pool)?;
    match draft.scan.storage() {
        0 => Ok(()),
        tables => {
            // The budget has just reserved it.
            let wanted = usize::try_from(length).unwrap_or(0) + tables + REQUEST_BYTES;
            let more = wanted.saturating_sub(draft.promise.total());
            cx.memory.shares.beyond_body(&mut draft.promise, key, more, &mut cx.memory.pool)?;
            draft.charge(&mut cx.memory.pool);
            Ok(())
        }
    }
}
