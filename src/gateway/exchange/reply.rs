//! Whole answers: collected, read here or by a helper thread, and passed on as one.

use super::event::{AnswerStep, ClientMessage, Effect, Outcome, Over};
use super::fault::{Fault, FaultKind};
use super::job::{Asked, RequestJob};
use super::provider_error::NOT_JSON;
use super::state::{Answering, Body, Draft, FinalOutput};
use crate::base::buf::Buf;
use crate::dialect::stream::SseStream;
use crate::dialect::{self, Broken, ObservedUsage, PromptTokens, Rejected, TranslationState};
use crate::gateway::cx::Cx;
use crate::gateway::offload::{JobOwner, OffloadTask};
use crate::policy::usage::Usage;
use crate::wire::ModelEndpoint;

impl Answering {
    /// A piece of a whole answer: kept until all of it is there.
    pub(super) fn collect(&mut self, job: &RequestJob, data: &[u8], cx: &mut Cx) -> AnswerStep {
        let limit = job.target().map_or(0, |target| target.limits.max_response);
        let Body::Collect { buf, .. } = &mut self.body else { return Ok(Effect::Nothing) };
        let length = buf.len() + data.len();
        let (bound, came) = match length {
            _ if length > limit => ("max_response", limit),
            // It has been promised its room, or there never is so much.
            _ if length > buf.capacity() => ("max_buffered", buf.len()),
            _ => {
                buf.push(&mut cx.pool, data);
                return Ok(Effect::Nothing);
            }
        };
        Err(Fault::from(FaultKind::TooLarge(bound, came)).into())
    }

    /// All of a whole answer has been collected: reads it.
    pub(super) fn collected(&mut self, job: &mut RequestJob, message: &ClientMessage, cx: &mut Cx) -> AnswerStep {
        let Body::Collect { buf, stream, .. } = &mut self.body else { return Ok(Effect::Nothing) };
        if cx.is_long(buf.len()) {
            return Ok(self.offload_reply(job, message, cx));
        }
        let mut buf = std::mem::take(buf);
        if let Some(stream) = stream.take() {
            let step = self.unstreamed(job, stream, buf.bytes(), cx);
            buf.release(&mut cx.pool);
            return step;
        }
        let read = self.read_whole(job, buf.bytes(), message, cx);
        // The output takes its place.
        buf.release(&mut cx.pool);
        self.reply(job, read, message, cx)
    }

    /// A whole answer has come.
    pub(super) fn whole(
        &mut self,
        job: &mut RequestJob,
        body: &[u8],
        message: &ClientMessage,
        cx: &mut Cx,
    ) -> AnswerStep {
        if let Body::Collect { stream, .. } = &mut self.body
            && let Some(stream) = stream.take()
        {
            return self.unstreamed(job, stream, body, cx);
        }
        let read = self.read_whole(job, body, message, cx);
        self.reply(job, read, message, cx)
    }

    /// A complete response has come in the place of a stream: it is written as one.
    #[cold]
    fn unstreamed(&mut self, job: &mut RequestJob, mut stream: Box<SseStream>, body: &[u8], cx: &mut Cx) -> AnswerStep {
        let Some(from) = job.upstream() else { return Ok(Effect::Nothing) };
        cx.out.clear();
        let identity = job.counted_identity(cx.now.unix);
        match stream.whole(from, body, &mut cx.pool, &identity, &mut cx.out) {
            Ok(fed) => {
                self.body = Body::Stream(stream);
                self.fed(job, fed, cx)
            }
            Err(rejected) => {
                cx.streams.put(stream);
                Err(job.rejected(rejected).into())
            }
        }
    }

    /// Reads a complete answer, and writes what the client is sent to `cx.out`.
    fn read_whole(
        &self,
        job: &RequestJob,
        body: &[u8],
        message: &ClientMessage,
        cx: &mut Cx,
    ) -> Result<ObservedUsage, Rejected> {
        let (Some(asked), Some(to)) = (&job.asked, job.endpoint()) else {
            return Err(Rejected { why: Broken::NotJson, reported: Box::default() });
        };
        let from = job.target_provider().map_or(to.shape, |provider| provider.shape);
        cx.out.clear();
        let identity = job.identity(self.draft.prompt(asked, message.body), cx.now.unix);
        match self.draft.translation() {
            None => {
                let read = cx.answers.whole(to, body, &identity, &mut cx.out);
                read.map_err(|why| dialect::rejected(to, body, why))
            }
            Some(state) => {
                let read = dialect::reply((from, to.shape), body, state, &identity, &mut cx.out);
                read.map_err(|why| dialect::rejected(ModelEndpoint::generate(from), body, why))
            }
        }
    }

    /// Answers with what has been made of a whole answer.
    fn reply(
        &mut self,
        job: &mut RequestJob,
        read: Result<ObservedUsage, Rejected>,
        message: &ClientMessage,
        cx: &mut Cx,
    ) -> AnswerStep {
        let usage = self.whole_accepted(job, read, message, cx)?;
        if job.diagnosis.is_some() {
            job.note_finish(true, &cx.out);
        }
        if !cx.waits_for_rows() {
            return Ok(Effect::Answer(Outcome { status: 200, error: None, usage }));
        }
        let mut last = Buf::default();
        last.push(&mut cx.pool, &cx.out);
        Err(Over::complete(last, FinalOutput::Whole, usage))
    }

    /// Has a large answer read by a helper thread. Its connection has given all it had to give.
    fn offload_reply(&mut self, job: &RequestJob, message: &ClientMessage, cx: &mut Cx) -> Effect {
        self.let_go_complete(cx);
        let serial = cx.next_offload();
        let (Some(asked), Some(to), Some(from)) = (&job.asked, job.endpoint(), job.upstream()) else {
            return Effect::Nothing;
        };
        let chunked = job.request.meta.http11;
        let state = self.draft.translation().cloned().unwrap_or_default();
        let identity = job.identity(self.draft.prompt(asked, message.body), cx.now.unix).into();
        let observed = Box::default();
        let body = std::mem::replace(&mut self.body, Body::Offloaded { serial, observed });
        let Body::Collect { buf, stream, .. } = body else { return Effect::Nothing };
        let lent = buf.capacity();
        let of = JobOwner { exchange: message.exchange, key: job.request.found.key, serial };
        let task = match stream {
            Some(stream) => OffloadTask::Unstreamed { stream, body: buf, from },
            None => OffloadTask::Reply { body: buf, from, to, state, chunked },
        };
        cx.offload(of, lent, identity, task);
        Effect::Wait
    }

    /// A helper thread has read a whole answer; `out` is what the client gets.
    pub(super) fn whole_read(
        &mut self,
        job: &mut RequestJob,
        read: Result<ObservedUsage, Rejected>,
        mut out: Buf,
        message: &ClientMessage,
        cx: &mut Cx,
    ) -> AnswerStep {
        match self.whole_accepted(job, read, message, cx) {
            Ok(usage) if cx.waits_for_rows() => Err(Over::complete(out, FinalOutput::Bulk, usage)),
            Ok(usage) => Ok(Effect::AnswerBulk(Outcome { status: 200, error: None, usage }, out)),
            Err(over) => {
                out.release(&mut cx.pool);
                Err(over)
            }
        }
    }

    /// A whole answer has been read: what it costs, or what is wrong with it.
    fn whole_accepted(
        &mut self,
        job: &mut RequestJob,
        read: Result<ObservedUsage, Rejected>,
        message: &ClientMessage,
        cx: &mut Cx,
    ) -> Result<Usage, Box<Over>> {
        let observed = match read {
            Ok(observed) => observed,
            Err(rejected) => return Err(job.rejected(rejected).into()),
        };
        self.let_go_complete(cx);
        job.target_succeeded(cx);
        if observed.reported.input.is_none()
            && let Some(draft) = self.draft.get()
        {
            job.count_now(draft, message, cx);
        }
        Ok(job.charged(observed))
    }
}

impl RequestJob {
    /// The endpoint whose answers the present target gives; the client's own where the target has its API format.
    fn upstream(&self) -> Option<ModelEndpoint> {
        let to = self.endpoint()?;
        let from = self.target_provider().map_or(to.shape, |provider| provider.shape);
        Some(if from == to.shape { to } else { ModelEndpoint::generate(from) })
    }

    /// A whole answer cannot be passed on.
    fn rejected(&self, Rejected { why, reported }: Rejected) -> Fault {
        let fault = match why {
            Broken::NotJson => Fault::from(FaultKind::BadBody(NOT_JSON)),
            Broken::Error(text) => self.error_fault(text),
        };
        Fault { reported: Some(reported), ..fault }
    }
}

impl Draft {
    /// State for the translation of the answer; `None` if the target uses the client's API format.
    fn translation(&self) -> Option<&TranslationState> {
        self.get().and_then(|draft| draft.state.as_ref())
    }

    /// Tokens of the prompt in `body`, counted or to be.
    fn prompt<'a>(&'a self, asked: &Asked, body: &'a [u8]) -> PromptTokens<'a> {
        match self.get() {
            Some(draft) if asked.prompt.is_none() => draft.scan.prompt_tokens(body),
            _ => PromptTokens::Counted(asked.counted()),
        }
    }
}
