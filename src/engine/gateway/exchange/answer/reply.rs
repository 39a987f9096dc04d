//! Complete responses: collected, read here or by a helper thread, and passed on in one piece.

use super::end::{AnswerStep, Over};
use super::intake::ANSWER_MORE;
use crate::base::buf::{Buf, Pool};
use crate::dialect::stream::SseStream;
use crate::dialect::{self, Broken, Estimator, ObservedUsage, PromptTokens, Rejected, TranslationState};
use crate::gateway::cx::Cx;
use crate::gateway::exchange::event::{DriverCall, Effect, Outcome};
use crate::gateway::exchange::fault::{Fault, FaultKind};
use crate::gateway::exchange::job::RequestJob;
use crate::gateway::exchange::provider_error::NOT_JSON;
use crate::gateway::exchange::request::Asked;
use crate::gateway::exchange::state::{Answering, Body, Draft, FinalOutput};
use crate::gateway::memory::shares::MemoryShares;
use crate::gateway::orders::offload::{JobOwner, OffloadTask};
use crate::policy::usage::Usage;
use crate::wire::{ModelEndpoint, Passthrough};

impl Answering {
    /// A complete response has been collected: reads it. `stream`: the stream in which the client receives it.
    pub(crate) fn collected(
        &mut self,
        job: &mut RequestJob,
        mut buf: Buf,
        stream: Option<Box<SseStream>>,
        call: &mut DriverCall,
    ) -> AnswerStep {
        if call.cx.is_long(buf.len()) && !self.is_plain_transcript(job, buf.bytes()) {
            return self.offload_reply(job, buf, stream, call);
        }
        if let Some(stream) = stream {
            let step = self.unstreamed(job, stream, buf.bytes(), call);
            buf.release(&mut call.cx.memory.pool);
            return step;
        }
        let read = self.read_whole(job, buf.bytes(), call);
        // The output replaces it.
        buf.release(&mut call.cx.memory.pool);
        self.reply(job, read, call)
    }

    /// True if a complete response of this many bytes, none of which arrived before, is read in place: it is short and
    /// there is memory for the output, so none needs to be reserved.
    pub(crate) fn reads_at_once(&self, job: &RequestJob, bytes: usize, cx: &mut Cx) -> bool {
        let Answering { paused: false, body: Body::Collect { buf, .. }, draft, .. } = self else { return false };
        let (Some(promise), Some(key), Some(target)) =
            (draft.get().map(|draft| &draft.answer), job.request.found.key, job.target())
        else {
            return false;
        };
        let total = 2 * bytes + ANSWER_MORE;
        let is_first = buf.is_empty() && promise.total() == 0 && !cx.memory.may_have_room();
        let is_short = bytes <= target.limits.max_response && !cx.is_long(bytes);
        is_first
            && is_short
            && cx.memory.shares.share_allows(promise, key, total)
            && MemoryShares::has_room(total, false, &cx.memory.pool)
    }

    /// A complete response has arrived.
    pub(crate) fn whole(&mut self, job: &mut RequestJob, body: &[u8], call: &mut DriverCall) -> AnswerStep {
        if let Body::Collect { stream, .. } = &mut self.body
            && let Some(stream) = stream.take()
        {
            return self.unstreamed(job, stream, body, call);
        }
        let read = self.read_whole(job, body, call);
        self.reply(job, read, call)
    }

    /// A complete response has arrived instead of a stream: it is written as a stream.
    #[cold]
    fn unstreamed(
        &mut self,
        job: &mut RequestJob,
        mut stream: Box<SseStream>,
        body: &[u8],
        call: &mut DriverCall,
    ) -> AnswerStep {
        let Some((from, _)) = job.endpoints() else { return Err(Fault::from(FaultKind::Internal).into()) };
        call.out.bytes.clear();
        let identity = job.request.counted_identity(call.cx.now.unix);
        match stream.whole(from, body, &mut call.cx.memory.pool, &identity, &mut call.out.bytes) {
            Ok(fed) => {
                self.body = Body::Stream(stream);
                self.fed(job, fed, call)
            }
            Err(rejected) => {
                call.cx.upstreams.streams.put(stream);
                Err(job.rejected(rejected).into())
            }
        }
    }

    /// Reads a complete answer, and writes what the client is sent to the output.
    fn read_whole(&self, job: &RequestJob, body: &[u8], call: &mut DriverCall) -> Result<ObservedUsage, Rejected> {
        let (Some(asked), Some(to)) = (&job.request.asked, job.request.endpoint()) else {
            return Err(Rejected { why: Broken::NotJson, reported: Box::default() });
        };
        let from = job.target_provider().map_or(to.shape, |provider| provider.shape);
        let DriverCall { message, out, cx } = call;
        out.bytes.clear();
        if to.is_passthrough() && self.is_plain_transcript(job, body) {
            out.bytes.extend_from_slice(body);
            let mut words = Estimator::new();
            words.feed_json(body);
            return Ok(ObservedUsage { relayed_tokens: words.tokens(), ..ObservedUsage::default() });
        }
        let identity = job.request.identity(self.draft.prompt(asked, message.body), cx.now.unix);
        match self.draft.translation() {
            None => {
                let read = cx.upstreams.answers.whole(to, body, &identity, &mut out.bytes);
                read.map_err(|why| dialect::rejected(to, body, why))
            }
            Some(state) => {
                let read = cx.upstreams.answers.reply((from, to.shape), body, state, &identity, &mut out.bytes);
                read.map_err(|why| dialect::rejected(ModelEndpoint::generate(from), body, why))
            }
        }
    }

    /// True if the content of the answer does not show whether it is complete: audio, and text without a form.
    pub(crate) fn is_bytes(&self, job: &RequestJob) -> bool {
        match &self.body {
            Body::Bytes { .. } => true,
            Body::Collect { buf, .. } => job.request.is_transcript() && self.is_plain_transcript(job, buf.bytes()),
            _ => false,
        }
    }

    /// True for a transcript that is a text although its server declares JSON: as it is, if the client has asked for
    /// a text, or encoded as a JSON string.
    #[cold]
    fn is_plain_transcript(&self, job: &RequestJob, body: &[u8]) -> bool {
        let passthrough = job.request.endpoint().and_then(ModelEndpoint::as_passthrough);
        passthrough.is_some_and(Passthrough::is_transcript)
            && match body.trim_ascii_start().first() {
                Some(b'{') => false,
                Some(b'"') => body.trim_ascii_end().ends_with(b"\""),
                _ => self.draft.get().and_then(|draft| draft.scan.form()).is_some_and(|form| form.is_plain),
            }
    }

    /// Sends the output for a complete response.
    fn reply(
        &mut self,
        job: &mut RequestJob,
        read: Result<ObservedUsage, Rejected>,
        call: &mut DriverCall,
    ) -> AnswerStep {
        let usage = self.whole_accepted(job, read, call)?;
        if !job.notes.is_empty() {
            job.notes.note_finish(&job.request, true, &call.out.bytes);
        }
        if !call.cx.waits_for_rows() {
            return Ok(Effect::Answer(Outcome { status: 200, error: None, usage }));
        }
        let mut last = Buf::default();
        last.push(&mut call.cx.memory.pool, &call.out.bytes);
        Err(Over::complete(last, FinalOutput::Whole, usage))
    }

    /// Has a large response read by a helper thread. Its connection has delivered all of it.
    fn offload_reply(
        &mut self,
        job: &RequestJob,
        mut body: Buf,
        stream: Option<Box<SseStream>>,
        call: &mut DriverCall,
    ) -> AnswerStep {
        self.release_complete(call.out);
        let (Some(asked), Some((from, to))) = (&job.request.asked, job.endpoints()) else {
            body.release(&mut call.cx.memory.pool);
            return Err(Fault::from(FaultKind::Internal).into());
        };
        let (serial, chunked) = (call.cx.next_offload(), job.request.meta.http11);
        let state = self.draft.translation().cloned();
        let identity = job.request.identity(self.draft.prompt(asked, call.message.body), call.cx.now.unix).into();
        self.body = Body::Offloaded { serial, observed: Box::default() };
        let lent = body.capacity();
        let of = JobOwner { exchange: call.message.exchange, key: job.request.found.key, serial };
        let task = match stream {
            Some(stream) => OffloadTask::Unstreamed { stream, body, from },
            None => OffloadTask::Reply { body, from, to, state, chunked },
        };
        call.cx.offload(of, lent, identity, task);
        Ok(Effect::Rearm)
    }

    /// A helper thread has read a complete response; `body` is the output for the client.
    pub(crate) fn whole_read(
        &mut self,
        job: &mut RequestJob,
        read: Result<ObservedUsage, Rejected>,
        mut body: Buf,
        call: &mut DriverCall,
    ) -> AnswerStep {
        match self.whole_accepted(job, read, call) {
            Ok(usage) if call.cx.waits_for_rows() => Err(Over::complete(body, FinalOutput::Bulk, usage)),
            Ok(usage) => Ok(Effect::AnswerBulk(Outcome { status: 200, error: None, usage }, body)),
            Err(over) => {
                body.release(&mut call.cx.memory.pool);
                Err(over)
            }
        }
    }

    /// A complete response has been read: charges its usage, or returns its fault.
    fn whole_accepted(
        &mut self,
        job: &mut RequestJob,
        read: Result<ObservedUsage, Rejected>,
        call: &mut DriverCall,
    ) -> Result<Usage, Box<Over>> {
        let observed = match read {
            Ok(observed) => observed,
            Err(rejected) => return Err(job.rejected(rejected).into()),
        };
        self.release_complete(call.out);
        job.target_succeeded(call.cx);
        if observed.reported.input.is_none()
            && let Some(draft) = self.draft.get()
        {
            job.count_now(draft, call);
        }
        Ok(job.charged(observed))
    }
}

impl RequestJob {
    /// The endpoint whose responses the present target returns, and the client's own; the same if the target has its
    /// API format.
    pub(crate) fn endpoints(&self) -> Option<(ModelEndpoint, ModelEndpoint)> {
        let to = self.request.endpoint()?;
        let from = self.target_provider().map_or(to.shape, |provider| provider.shape);
        Some((if from == to.shape { to } else { ModelEndpoint::generate(from) }, to))
    }

    /// A complete response cannot be passed on.
    fn rejected(&self, Rejected { why, reported }: Rejected) -> Fault {
        let fault = match why {
            Broken::NotJson => Fault::from(FaultKind::BadBody(NOT_JSON)),
            Broken::Error(text) => self.error_fault(text),
        };
        Fault { reported: Some(reported), ..fault }
    }
}

/// A piece of a complete response: kept until all of it has arrived.
pub(crate) fn collect(buf: &mut Buf, job: &RequestJob, data: &[u8], pool: &mut Pool) -> AnswerStep {
    let limit = job.target().map_or(0, |target| target.limits.max_response);
    let length = buf.len() + data.len();
    let (bound, came) = match length {
        _ if length > limit => ("max_response", limit),
        // Its memory is reserved, or it exceeds all memory that exists.
        _ if length > buf.capacity() => ("max_buffered", buf.len()),
        _ => {
            buf.push(pool, data);
            return Ok(Effect::Nothing);
        }
    };
    Err(Fault::from(FaultKind::AnswerTooLarge(bound, came)).into())
}

impl Draft {
    /// State for the translation of the answer; `None` if the target uses the client's API format.
    fn translation(&self) -> Option<&TranslationState> {
        self.get().and_then(|draft| draft.state.as_ref())
    }

    /// Tokens of the prompt in `body`; counted now if they were not.
    fn prompt<'a>(&'a self, asked: &Asked, body: &'a [u8]) -> PromptTokens<'a> {
        match self.get() {
            Some(draft) if asked.prompt.is_none() => draft.scan.prompt_tokens(body),
            _ => PromptTokens::Counted(asked.counted()),
        }
    }
}
