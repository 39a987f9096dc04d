//! The head of an answer: it decides how the body is read.

use crate::base::buf::Buf;
use crate::base::limits::DONE_GRACE;
use crate::base::time::Mono;
use crate::dialect::SseStream;
use crate::gateway::cx::Cx;
use crate::gateway::exchange::event::{DriverCall, Effect};
use crate::gateway::exchange::fault::{Fault, FaultKind};
use crate::gateway::exchange::job::RequestJob;
use crate::gateway::exchange::provider_error::NOT_JSON;
use crate::gateway::exchange::state::{Answering, AttemptStage, Attempting, Body, Draft, NextStep, State};
use crate::gateway::provider::rate_limits::retry_after;
use crate::wire::head::{Framing, ResponseHead};
use crate::wire::{ModelEndpoint, Passthrough};
use std::num::NonZeroU32;
use std::time::Duration;

/// Time to wait for the body of a failed answer: its status is known, and another target may be tried.
const ERROR_BODY_WAIT: Duration = Duration::from_secs(5);

/// Message about a response of another kind than requested.
const NOT_A_STREAM: &str = "the provider answered a streamed request with something that is not a stream";
const ENCODED: &str = "the provider's answer is compressed, although compression was refused";

/// Maximum bytes of a content type that is passed on, and the type of bytes without a usable one.
const TYPE_MAX: usize = 128;
const UNKNOWN_TYPE: &str = "application/octet-stream";

impl Attempting {
    /// Handles the head of a response: decides how its body is read.
    pub(crate) fn answered(
        mut self,
        job: &mut RequestJob,
        head: &ResponseHead,
        bytes: &[u8],
        call: &mut DriverCall,
    ) -> NextStep {
        let mut body = match self.body_for(job, head, bytes, call.cx) {
            Ok(body) => body,
            Err(kind) => return self.failed(job, Fault::from(kind), false, call),
        };
        let (now, mut flight) = (call.cx.now.mono, job.attempt.flight.take());
        let undecided = job.heard_head(&mut flight, head, bytes, call.cx);
        if let Body::Error { open, .. } = &mut body {
            *open = undecided;
        }
        let at = &mut job.attempt;
        (at.flight, at.first, at.sent) = (flight, at.first.min(now), at.sent.min(now));
        let limits = job.target().map(|target| &target.limits);
        let idle = limits.map_or(DONE_GRACE, |limits| limits.idle_timeout);
        let idle = u32::try_from(idle.as_millis()).unwrap_or(u32::MAX);
        let by = match &body {
            Body::Error { .. } => now.after(ERROR_BODY_WAIT),
            Body::Stream(_) | Body::Bytes { .. } => {
                self.by.min(limits.map_or(Mono::NEVER, |limits| now.after(limits.first_byte_timeout)))
            }
            Body::Collect { .. } | Body::Offloaded { .. } => Mono::NEVER,
        };
        let provider = if let AttemptStage::Open(provider) = self.stage { Some(provider) } else { None };
        let (draft, last) = (Draft::Kept(self.draft), Buf::default());
        let (paused, crowded, charged) = (false, false, 0);
        let answering = Answering { provider, body, draft, last, by, idle, paused, crowded, charged };
        let most = limits.map_or(usize::MAX, |limits| limits.max_response);
        if let Body::Collect { announced: Some(length), .. } = answering.body
            && length.get() as usize > most
        {
            let fault = Fault::from(FaultKind::AnswerTooLarge("max_response", most));
            return answering.failed(job, fault, false, call);
        }
        NextStep::Enter(State::Answering(answering), Effect::rearm_if_earlier(by, self.by))
    }

    fn body_for(
        &mut self,
        job: &mut RequestJob,
        head: &ResponseHead,
        bytes: &[u8],
        cx: &mut Cx,
    ) -> Result<Body, FaultKind> {
        // Success statuses with a complete response: 204 to 206 have none or a part.
        if !matches!(head.status, 200..=203) {
            let asked = std::str::from_utf8(head.retry_after.of(bytes)).unwrap_or_default();
            let retry_after = retry_after(asked, cx.now.unix).and_then(in_seconds);
            return Ok(Body::Error { buf: Buf::default(), status: head.status, open: false, retry_after });
        }
        let encoding = head.content_encoding.of(bytes).trim_ascii();
        // Some servers write `none`.
        let plain: [&[u8]; 2] = [b"identity", b"none"];
        if !encoding.is_empty() && !plain.iter().any(|word| encoding.eq_ignore_ascii_case(word)) {
            return Err(FaultKind::BadBody(ENCODED));
        }
        let content_type = head.content_type.of(bytes).trim_ascii();
        let begins = |word: &[u8]| content_type.get(..word.len()).is_some_and(|start| start.eq_ignore_ascii_case(word));
        if job.request.relays_media()
            && let Some(body) = self.media_body(job, content_type, cx)?
        {
            return Ok(body);
        }
        let mut stream = None;
        if job.request.asked.is_some_and(|asked| asked.stream) {
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

    /// Body of an answer with audio or images that is not one JSON text; `None` for JSON.
    fn media_body(
        &mut self,
        job: &mut RequestJob,
        content_type: &[u8],
        cx: &mut Cx,
    ) -> Result<Option<Body>, FaultKind> {
        let begins = |word: &[u8]| content_type.get(..word.len()).is_some_and(|start| start.eq_ignore_ascii_case(word));
        if begins(b"text/event-stream") {
            if let Some(asked) = &mut job.request.asked {
                asked.stream = true;
            }
            return Ok(Some(Body::Stream(self.stream(job, cx).ok_or(FaultKind::Internal)?)));
        }
        let passthrough = job.request.endpoint().and_then(ModelEndpoint::as_passthrough);
        let is_plain = self.draft.scan.form().is_some_and(|form| form.is_plain);
        let may_be_bytes =
            passthrough == Some(Passthrough::Speech) || passthrough.is_some_and(Passthrough::is_transcript);
        // Some servers declare JSON with another type, or with none.
        let may_be_json = passthrough.is_some_and(Passthrough::is_transcript) && !is_plain;
        let is_json = content_type.is_empty() || content_type.windows(4).any(|word| word.eq_ignore_ascii_case(b"json"));
        if !may_be_bytes || begins(b"application/json") || (may_be_json && is_json) {
            return Ok(None);
        }
        // Some servers send plain text under this type.
        if begins(b"text/html") && !is_plain {
            return Err(FaultKind::BadBody(NOT_JSON));
        }
        let own = std::str::from_utf8(content_type).unwrap_or_default();
        let is_usable = (1..=TYPE_MAX).contains(&own.len()) && own.bytes().all(|byte| (b' '..=b'~').contains(&byte));
        let extras = job.request.extras.get_or_insert_default();
        extras.answer_type = Some(if is_usable { own.into() } else { UNKNOWN_TYPE.into() });
        let words = passthrough.is_some_and(Passthrough::is_transcript).then(Box::default);
        Ok(Some(Body::Bytes { came: 0, words }))
    }

    /// The stream in which the client gets the answer.
    #[inline]
    fn stream(&mut self, job: &RequestJob, cx: &mut Cx) -> Option<Box<SseStream>> {
        let (asked, endpoint, target) = (job.request.asked?, job.request.endpoint()?, job.target()?);
        let (max_event, max_answer) = (target.limits.max_event, target.limits.max_response);
        let from = job.target_provider().map_or(endpoint.shape, |provider| provider.shape);
        let draft = &mut self.draft;
        let mut stream = match draft.state.take() {
            None => cx.upstreams.streams.same(endpoint, asked.show_usage, max_event),
            Some(state) => {
                let bounds = (max_event, max_answer);
                Box::new(SseStream::translated((from, endpoint.shape), state, asked.show_usage, bounds))
            }
        };
        if endpoint.is_passthrough() {
            stream.awaits(draft.scan.fields().choices());
        }
        if job.attempt.heartbeats_sent > 0 {
            stream.resume(job.attempt.heartbeats_sent, cx.now.unix.secs());
        }
        Some(stream)
    }
}

/// A wait in seconds, rounded up, plus 1: 0 means that there is none.
fn in_seconds(wait: Duration) -> Option<NonZeroU32> {
    let seconds = wait.as_millis().div_ceil(1000);
    NonZeroU32::new(u32::try_from(seconds).unwrap_or(u32::MAX - 1) + 1)
}
