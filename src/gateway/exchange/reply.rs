//! Whole answers: collected, read here or by a helper thread, and passed on as one.

use super::event::{ClientMessage, Effect, Outcome};
use super::fault::{Fault, FaultKind};
use super::state::{Asked, Body, Draft, Exchange, FinalOutput, State};
use super::stream::NOT_JSON;
use crate::base::buf::Buf;
use crate::dialect::stream::SseStream;
use crate::dialect::{self, Broken, ObservedUsage, PromptTokens, Rejected, TranslationState};
use crate::gateway::cx::Cx;
use crate::gateway::offload::{JobOwner, OffloadTask};
use crate::policy::usage::Usage;
use crate::wire::Dialect;

impl Exchange {
    /// A piece of a whole answer: kept until all of it is there.
    pub(super) fn collect(&mut self, data: &[u8], message: &ClientMessage<'_>, cx: &mut Cx) -> Effect {
        let limit = self.target().map_or(0, |target| target.limits.max_response);
        let State::Answering(answering) = &mut self.state else { return Effect::Nothing };
        let Body::Collect { buf, .. } = &mut answering.body else { return Effect::Nothing };
        let length = buf.len() + data.len();
        let (bound, came) = match length {
            _ if length > limit => ("max_response", limit),
            // It has been promised its room, or there never is so much.
            _ if length > buf.capacity() => ("max_buffered", buf.len()),
            _ => {
                buf.push(&mut cx.pool, data);
                return Effect::Nothing;
            }
        };
        self.attempt_failed(Fault::from(FaultKind::TooLarge(bound, came)), false, message, cx)
    }

    /// All of a whole answer has been collected: reads it.
    pub(super) fn collected(&mut self, message: &ClientMessage<'_>, cx: &mut Cx) -> Effect {
        let State::Answering(answering) = &mut self.state else { return Effect::Nothing };
        let Body::Collect { buf, stream, .. } = &mut answering.body else { return Effect::Nothing };
        if cx.is_long(buf.len()) {
            return self.offload_reply(message, cx);
        }
        let mut buf = std::mem::take(buf);
        if let Some(stream) = stream.take() {
            let effect = self.unstreamed(stream, buf.bytes(), message, cx);
            buf.release(&mut cx.pool);
            return effect;
        }
        let read = self.read_whole(buf.bytes(), message, cx);
        // What is sent of it takes its place.
        buf.release(&mut cx.pool);
        self.reply(read, message, cx)
    }

    /// A whole answer has come at once.
    pub(super) fn whole(&mut self, body: &[u8], message: &ClientMessage<'_>, cx: &mut Cx) -> Effect {
        if let State::Answering(answering) = &mut self.state
            && let Body::Collect { stream, .. } = &mut answering.body
            && let Some(stream) = stream.take()
        {
            return self.unstreamed(stream, body, message, cx);
        }
        let read = self.read_whole(body, message, cx);
        self.reply(read, message, cx)
    }

    /// A complete response has come in the place of a stream: it is written as one.
    #[cold]
    fn unstreamed(
        &mut self,
        mut stream: Box<SseStream>,
        body: &[u8],
        message: &ClientMessage<'_>,
        cx: &mut Cx,
    ) -> Effect {
        let (Some(asked), Some(from)) = (self.asked, self.upstream()) else { return Effect::Nothing };
        cx.out.clear();
        let prompt = PromptTokens::Counted(asked.counted());
        let identity = self.request.identity(&asked, prompt, cx.now.unix);
        match stream.whole(from, body, &mut cx.pool, &identity, &mut cx.out) {
            Ok(fed) => {
                if let State::Answering(answering) = &mut self.state {
                    answering.body = Body::Stream(stream);
                }
                self.fed(fed, message, cx)
            }
            Err(rejected) => {
                cx.streams.put(stream);
                self.attempt_failed(self.rejected(rejected), false, message, cx)
            }
        }
    }

    /// The shape of the answers of the present target; the client's own where the target keeps it.
    fn upstream(&self) -> Option<Dialect> {
        let to = self.dialect()?;
        let from = self.target_provider().map_or(to, |provider| provider.shape);
        Some(if from == to.upstream() { to } else { from })
    }

    /// Reads a complete answer, and writes what the client is sent to `cx.out`.
    fn read_whole(&mut self, body: &[u8], message: &ClientMessage<'_>, cx: &mut Cx) -> Result<ObservedUsage, Rejected> {
        let (Some(asked), Some(to), State::Answering(answering)) = (self.asked, self.dialect(), &self.state) else {
            return Err(Rejected { why: Broken::NotJson, reported: Box::default() });
        };
        let from = self.target_provider().map_or(to, |provider| provider.shape);
        cx.out.clear();
        let prompt = answering.draft.prompt(&asked, message.body);
        let identity = self.request.identity(&asked, prompt, cx.now.unix);
        match answering.draft.translation() {
            None => {
                let read = cx.answers.whole(to, body, &identity, &mut cx.out);
                read.map_err(|why| dialect::rejected(to, body, why))
            }
            Some(state) => {
                let read = dialect::reply((from, to), body, state, &identity, &mut cx.out);
                read.map_err(|why| dialect::rejected(from, body, why))
            }
        }
    }

    /// Answers with what has been made of a whole answer.
    fn reply(&mut self, read: Result<ObservedUsage, Rejected>, message: &ClientMessage<'_>, cx: &mut Cx) -> Effect {
        let usage = match self.whole_accepted(read, message, cx) {
            Ok(usage) => usage,
            Err(fault) => return self.attempt_failed(*fault, false, message, cx),
        };
        if self.diagnosis.is_some() {
            self.note_finish(true, &cx.out);
        }
        let outcome = Outcome { status: 200, error: None, usage };
        if !cx.waits_for_rows() {
            return Effect::Answer(outcome);
        }
        let mut last = Buf::default();
        last.push(&mut cx.pool, &cx.out);
        self.await_row(FinalOutput::Whole(last), usage, message, cx).unwrap_or(Effect::Wait)
    }

    /// Has a large answer read by a helper thread. Its connection has given all it had to give.
    fn offload_reply(&mut self, message: &ClientMessage<'_>, cx: &mut Cx) -> Effect {
        self.let_go_complete(cx);
        let serial = cx.next_offload();
        let (Some(asked), Some(to), Some(from)) = (self.asked, self.dialect(), self.upstream()) else {
            return Effect::Nothing;
        };
        let chunked = self.request.meta.http11;
        let State::Answering(answering) = &mut self.state else { return Effect::Nothing };
        let state = answering.draft.translation().cloned().unwrap_or_default();
        let prompt = answering.draft.prompt(&asked, message.body);
        let identity = self.request.identity(&asked, prompt, cx.now.unix).into();
        let observed = Box::default();
        let body = std::mem::replace(&mut answering.body, Body::Offloaded { serial, observed });
        let Body::Collect { buf, stream, .. } = body else { return Effect::Nothing };
        let lent = buf.capacity();
        let of = JobOwner { exchange: message.exchange, key: self.request.found.key, serial };
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
        read: Result<ObservedUsage, Rejected>,
        mut out: Buf,
        message: &ClientMessage<'_>,
        cx: &mut Cx,
    ) -> Effect {
        match self.whole_accepted(read, message, cx) {
            Ok(usage) if cx.waits_for_rows() => {
                self.await_row(FinalOutput::Bulk(out), usage, message, cx).unwrap_or(Effect::Wait)
            }
            Ok(usage) => Effect::AnswerBulk(Outcome { status: 200, error: None, usage }, out),
            Err(fault) => {
                out.release(&mut cx.pool);
                self.attempt_failed(*fault, false, message, cx)
            }
        }
    }

    /// A whole answer cannot be passed on.
    fn rejected(&self, Rejected { why, reported }: Rejected) -> Fault {
        let fault = match why {
            Broken::NotJson => Fault::from(FaultKind::BadBody(NOT_JSON)),
            Broken::Error(text) => self.error_fault(text),
        };
        Fault { reported: Some(reported), ..fault }
    }

    /// A whole answer has been read: what it costs, or what is wrong with it.
    fn whole_accepted(
        &mut self,
        read: Result<ObservedUsage, Rejected>,
        message: &ClientMessage<'_>,
        cx: &mut Cx,
    ) -> Result<Usage, Box<Fault>> {
        let observed = match read {
            Ok(observed) => observed,
            Err(rejected) => return Err(Box::new(self.rejected(rejected))),
        };
        self.let_go_complete(cx);
        self.target_succeeded(cx);
        if observed.reported.input.is_none() {
            self.count_now(message, cx);
        }
        Ok(self.charged(observed))
    }
}

impl Draft {
    /// State for the translation of the answer; `None` if the target uses the client's API format.
    pub(super) fn translation(&self) -> Option<&TranslationState> {
        match self {
            Draft::Kept(draft) | Draft::Leaving(draft) => draft.state.as_ref(),
            Draft::Gone => None,
        }
    }

    /// Tokens of the prompt in `body`, counted or to be.
    fn prompt<'a>(&'a self, asked: &Asked, body: &'a [u8]) -> PromptTokens<'a> {
        match self {
            Draft::Kept(draft) | Draft::Leaving(draft) if asked.prompt.is_none() => draft.scan.prompt_tokens(body),
            _ => PromptTokens::Counted(asked.counted()),
        }
    }
}
