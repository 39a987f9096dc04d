//! The end of an answer: its body is complete, its provider is late or has failed.

use crate::base::buf::Buf;
use crate::base::time::Mono;
use crate::gateway::exchange::event::{DriverCall, Effect, Flow, Forward};
use crate::gateway::exchange::fault::{Fault, FaultKind};
use crate::gateway::exchange::finish::await_row;
use crate::gateway::exchange::job::RequestJob;
use crate::gateway::exchange::provider_error::NOT_JSON;
use crate::gateway::exchange::state::NextStep;
use crate::gateway::exchange::state::{Answering, Body, Committing, Draft, FinalOutput, State};
use crate::policy::usage::Usage;

/// Result of an event of an answer: an effect, or the end of the answer.
pub(crate) type AnswerStep = Result<Effect, Box<Over>>;

/// The end of an answer.
#[derive(Debug)]
pub(crate) enum Over {
    /// The attempt has failed. `good`: how the good part of a stream, in the output, is sent before the error.
    Failed { fault: Fault, good: Option<Forward> },
    /// The response is complete, and `last` waits for the usage record. `forward`: how the events in the output are
    /// sent before it.
    Complete { last: Buf, kind: FinalOutput, usage: Usage, forward: Forward },
}

impl Over {
    /// A whole answer is complete.
    pub(crate) fn complete(last: Buf, kind: FinalOutput, usage: Usage) -> Box<Over> {
        Box::new(Over::Complete { last, kind, usage, forward: Forward::default() })
    }
}

impl From<Fault> for Box<Over> {
    fn from(fault: Fault) -> Box<Over> {
        Box::new(Over::Failed { fault, good: None })
    }
}

impl Answering {
    /// The response's body has ended as its framing announced.
    pub(crate) fn body_end(&mut self, job: &mut RequestJob, call: &mut DriverCall) -> AnswerStep {
        match &mut self.body {
            // Another attempt may need the same connection.
            Body::Error { .. } if self.provider.is_some() => {
                self.release_complete(call.out);
                Ok(Effect::Again)
            }
            Body::Error { buf, status, open, retry_after } => {
                Err(job.status_fault(buf.bytes(), *status, *retry_after, *open).into())
            }
            Body::Collect { buf, stream, .. } => {
                let (buf, stream) = (std::mem::take(buf), stream.take());
                self.collected(job, buf, stream, call)
            }
            // Silence has an empty transcript.
            Body::Bytes { came: 0, .. } if !job.request.is_upload() => {
                Err(Fault::from(FaultKind::BadBody(NOT_JSON)).into())
            }
            Body::Bytes { .. } => {
                call.out.bytes.clear();
                self.stream_ends(job, Forward::default(), call)
            }
            Body::Stream(stream) => match stream.take_document() {
                // Media in JSON pass as JSON, even if their client has asked for a stream.
                Some(buf) if job.request.relays_media() => {
                    std::mem::take(&mut self.body).release(call.cx);
                    if let Some(asked) = &mut job.request.asked {
                        asked.stream = false;
                    }
                    self.collected(job, buf, None, call)
                }
                // The body is read as a complete response.
                Some(buf) => {
                    let stream = self.body.take_stream();
                    self.collected(job, buf, stream, call)
                }
                None if call.cx.is_long(stream.held()) => {
                    // The provider is not needed any more.
                    self.by = Mono::NEVER;
                    self.offload_events(job, None, call)
                }
                None => {
                    call.out.bytes.clear();
                    let identity = job.request.counted_identity(call.cx.now.unix);
                    let ended = stream.end(&mut call.cx.memory.pool, &identity, &mut call.out.bytes);
                    self.ended(job, ended, call)
                }
            },
            Body::Offloaded { .. } => Ok(Effect::Nothing),
        }
    }

    /// The provider is late with its response. If it was not read, it is not to blame: its client did not read, or the
    /// buffers were full. The body of an error is not waited for.
    fn late_answer(&mut self, job: &mut RequestJob, unread: bool, call: &mut DriverCall) -> AnswerStep {
        let kind = match &self.body {
            Body::Error { .. } => {
                self.drop_provider(call.out);
                return self.body_end(job, call);
            }
            _ if unread => return Ok(self.drained(call.cx)),
            // Only its terminator is missing, or texts that its provider does not send.
            Body::Stream(stream) if stream.finish_seen() || stream.may_be_done() => {
                self.drop_provider(call.out);
                return self.body_end(job, call);
            }
            Body::Stream(stream) if stream.seen > 0 => FaultKind::IdleTimeout,
            Body::Bytes { .. } if !matches!(self.draft, Draft::Kept(_)) => FaultKind::IdleTimeout,
            _ => FaultKind::FirstByteTimeout,
        };
        Err(Fault::from(kind).into())
    }

    /// A deadline of the request or of its provider has expired, or a heartbeat is due.
    pub(crate) fn due(mut self, job: &mut RequestJob, flow: Flow, call: &mut DriverCall) -> NextStep {
        let now = call.cx.now.mono;
        let step = match job.overdue(flow.unread, now) {
            Some(fault) => Err(fault.into()),
            None if self.by <= now => self.late_answer(job, flow.unread, call),
            None => Ok(job.heartbeat(flow.drained, self.body.writer(), call)),
        };
        match step {
            Ok(effect) => NextStep::Enter(State::Answering(self), effect),
            Err(over) => self.over(*over, job, call),
        }
    }

    /// The answer is over.
    #[inline(never)]
    pub(crate) fn over(self, over: Over, job: &mut RequestJob, call: &mut DriverCall) -> NextStep {
        match over {
            Over::Failed { fault, good } => match (self.failed(job, fault, false, call), good) {
                (NextStep::End(state, fault), Some(good)) => NextStep::EndAfter(state, fault, good),
                (next, _) => next,
            },
            Over::Complete { last, kind, usage, forward } => {
                let committing = Committing { last, kind, usage, by: Mono::NEVER };
                let (committing, effect) = await_row(job, committing, forward, call);
                self.release(job.request.found.key, call.cx);
                NextStep::Enter(State::Committing(committing), effect)
            }
        }
    }
}
