//! The only end of every exchange: settles the reservation, passes the usage record on, writes the log line, and
//! releases everything it held. With `durability = "before-reply"` the row comes first: everything from a stream's
//! finishing event on, or a whole answer, waits until it is in the ledger, so that a kill loses nothing that a client
//! saw completed. A stream waits for a commit only at its own end.

use super::event::{DriverCall, Effect, Forward, Outcome};
use super::fault::{Fault, FaultKind};
use super::job::RequestJob;
use super::own_events::EventWriter;
use super::request::Asked;
use super::state::{Body, Committing, Exchange, FinalOutput, State};
use crate::base::time::Mono;
use crate::dialect::{ObservedUsage, Overflow};
use crate::gateway::cx::Cx;
use crate::gateway::local;
use crate::gateway::orders::Order;
use crate::gateway::provider::request::OutgoingRequest;
use crate::policy::cause::Cause;
use crate::policy::counters::AttemptEnd;
use crate::policy::refusal::Refusal;
use crate::wire::ModelEndpoint;
use std::num::NonZeroU32;

/// The status under which a request whose client left is logged and counted.
pub(super) const CLIENT_LEFT: u16 = 499;

impl State {
    /// No attempt is left: sends an error with its own status, or an error event if a head was sent.
    pub(super) fn end(&mut self, job: &mut RequestJob, fault: Fault, call: &mut DriverCall) -> Effect {
        let (mut last, mut observed) = (job.attempt.attempts.into(), ObservedUsage::default());
        let writer = match self {
            // A waiting request fails without an attempt.
            State::Queued(queued) => {
                last = 0;
                EventWriter::Opening(queued.draft.state.as_ref())
            }
            State::Attempting(attempting) => {
                attempting.drop_provider(call.out);
                EventWriter::Opening(attempting.draft.state.as_ref())
            }
            State::Answering(answering) => {
                answering.drop_provider(call.out);
                observed = answering.body.observed();
                answering.body.writer()
            }
            _ => EventWriter::Alone,
        };
        job.notes.note_end(&job.request, &fault, last);
        let usage = job.partial_usage(observed, None);
        let limits = job.target().map_or(&job.request.setup.config.upstream, |target| &target.limits);
        let refusal = match &fault.overflow {
            Some(overflow) => too_long(job, overflow, fault.message.as_deref()),
            None => fault.refusal(limits),
        };
        let error = Some(refusal.kind);
        let outcome = Outcome { status: refusal.status, error, usage };
        // Releases of Codex before 0.167 compact only after a failed stream (openai/codex `responses_retry.rs`).
        let is_streamed = job.request.asked.is_some_and(|asked| asked.stream);
        let in_stream = refusal.is_overflow() && is_streamed && job.request.found.is_codex;
        if !job.attempt.opened && !in_stream {
            return Effect::Refuse(Box::new(refusal), outcome);
        }
        let opens = job.open();
        call.out.bytes.clear();
        if let Some(endpoint) = job.request.endpoint() {
            let identity = job.request.counted_identity(call.cx.now.unix);
            let words = local::words(&refusal, job.request.id.as_str());
            if !writer.failure(endpoint, job.attempt.heartbeats_sent, &words, &identity, &mut call.out.bytes) {
                return Effect::Cut(outcome);
            }
        }
        Effect::End(Forward { opens, ..Forward::default() }, outcome)
    }

    /// The drain time is over.
    pub(super) fn stopped(&mut self, job: &mut RequestJob, call: &mut DriverCall) -> Effect {
        if let State::Attempting(_) | State::Answering(_) = self {
            abandon(job, call.cx);
        }
        self.end(job, Fault::from(FaultKind::Draining), call)
    }

    /// The client has left.
    pub(super) fn left(&mut self, job: &mut RequestJob, call: &mut DriverCall) -> Effect {
        let (mut observed, mut shown) = (ObservedUsage::default(), false);
        match self {
            State::Attempting(attempting) => {
                left_under_way(job, Some(&attempting.draft), call);
                attempting.drop_provider(call.out);
            }
            State::Answering(answering) => {
                left_under_way(job, answering.draft.get(), call);
                answering.drop_provider(call.out);
                observed = answering.body.observed();
                if let Body::Stream(stream) = &answering.body {
                    shown = job.request.has_shown_cost(stream, &observed);
                }
            }
            _ => job.note_unanswered(call.cx),
        }
        job.notes.get_mut().cause = Some(Cause::new("client left", ""));
        Effect::Gone(Outcome { status: CLIENT_LEFT, error: None, usage: job.partial_usage(observed, Some(shown)) })
    }
}

/// The client leaves during an attempt or its answer.
fn left_under_way(job: &mut RequestJob, draft: Option<&OutgoingRequest>, call: &mut DriverCall) {
    // A request that was not sent costs nothing, whatever its prompt is.
    if let Some(draft) = draft.filter(|_| job.attempt.sent != Mono::NEVER) {
        job.count_now(draft, call);
    }
    job.note_unanswered(call.cx);
    abandon(job, call.cx);
}

/// Ends the attempt under way; its target is not to blame.
fn abandon(job: &RequestJob, cx: &mut Cx) {
    if let Some(target) = job.target() {
        cx.upstreams.breakers.ended(target, AttemptEnd::Abandoned);
    }
}

/// The refusal of a prompt that no target can read.
fn too_long(job: &RequestJob, overflow: &Overflow, own: Option<&str>) -> Refusal {
    let counted = |asked: Asked| asked.prompt.map_or(asked.about, NonZeroU32::get);
    let (estimate, context) = (job.request.asked.map_or(0, counted), job.target().map_or(0, |target| target.context));
    let to = job.request.endpoint().unwrap_or(ModelEndpoint::CHAT).shape;
    Refusal::context_overflow(overflow.message(to, estimate.into(), context, own))
}

/// A complete answer: gives its row to the ledger and waits, at most for `max_commit_lag`. `forward`: how events in
/// `out` are sent meanwhile.
pub(super) fn await_row(
    job: &mut RequestJob,
    mut committing: Committing,
    forward: Forward,
    call: &mut DriverCall,
) -> (Committing, Effect) {
    let row = job.settle(committing.usage, 200, call.cx).and_then(|(_, row)| row);
    committing.by = call.cx.now.mono.after(job.request.setup.config.store.max_commit_lag);
    let Some(row) = row else {
        // Without an admission there is no usage record to wait for.
        let effect = committing.committed(job, call);
        return (committing, effect);
    };
    call.cx.accounts.ledger.hold_back(row.get(), call.message.exchange);
    let effect = match committing.kind {
        FinalOutput::Events => job.forward(Forward { rearms: true, ..forward }, call),
        FinalOutput::Whole | FinalOutput::Bulk => Effect::Rearm,
    };
    (committing, effect)
}

impl Exchange {
    /// Ends the exchange. Returns the cost for the head of the answer; `None` without a price.
    pub(crate) fn finish(&mut self, outcome: Outcome, cx: &mut Cx) -> Option<u64> {
        let Exchange { job, state } = self;
        if let State::Queued(queued) = state {
            queued.leave(job, cx);
        }
        let bill = match state {
            State::Committing(committing) => Some(job.bill(&committing.usage)),
            _ => job.settle(outcome.usage, outcome.status, cx).map(|(bill, _)| bill),
        };
        let times = job.times(cx.now.mono);
        job.count(outcome.status, bill, &times, cx);
        job.log(&outcome, bill, &times, cx);
        if !job.notes.is_empty() {
            job.notes.give_spans(&job.request, &job.attempt, &outcome, bill, cx);
        }
        job.no_verdict(cx);
        std::mem::replace(state, State::Ended).release(job.request.found.key, cx);
        if cx.lifecycle.handover.is_final() {
            // From now on the successor reports the totals.
            let counters = Box::new(cx.take_counters());
            cx.commands.orders.push(Order::Counted(counters));
        }
        let is_priced = job.request.model().is_some_and(|model| model.priced);
        is_priced.then(|| bill.map_or(0, |bill| bill.cost_nano))
    }
}

impl Committing {
    /// The usage record is committed: sends the end of the answer that was held back.
    pub(super) fn committed(&mut self, job: &mut RequestJob, call: &mut DriverCall) -> Effect {
        let outcome = Outcome { status: 200, error: None, usage: self.usage };
        let mut buf = std::mem::take(&mut self.last);
        if self.kind == FinalOutput::Bulk {
            return Effect::AnswerBulk(outcome, buf);
        }
        call.out.bytes.clear();
        call.out.bytes.extend_from_slice(buf.bytes());
        buf.release(&mut call.cx.memory.pool);
        match self.kind {
            FinalOutput::Events => Effect::End(Forward { opens: job.open(), ..Forward::default() }, outcome),
            _ => Effect::Answer(outcome),
        }
    }
}
