//! The only end of every exchange: settles the reservation, passes the usage record on, writes the log line, and
//! releases everything it held. With `durability = "before-reply"` the row comes first: everything from a stream's
//! finishing event on, or a whole answer, waits until it is in the ledger, so that a kill loses nothing that a client
//! saw completed. A stream waits for a commit only at its own end.
//!
//! A request that has ended leaves its usage record, its part in the metrics, and its log line.

use super::admit::cost::{Bill, is_priced, own_amount};
use super::admit::record::row_of;
use super::admit::strict;
use super::attempt::verdict::abandon;
use super::diagnosis::failed_request;
use super::event::{CLIENT_LEFT, DriverCall, Effect, Forward, Outcome};
use super::fault::{Fault, FaultKind};
use super::job::RequestJob;
use super::own_events::EventWriter;
use super::request::Asked;
use super::state::{Body, Committing, Exchange, FinalOutput, Reserving, State};
use super::target_hold::{leave_target, target_hold};
use crate::base::hash::mix_bytes;
use crate::base::time::Mono;
use crate::dialect::{ObservedUsage, Overflow};
use crate::gateway::cx::Cx;
use crate::gateway::exchange::local;
use crate::gateway::provider::request::OutgoingRequest;
use crate::gateway::report::access_log::{self, Times};
use crate::gateway::report::log_limit::LogCaller;
use crate::gateway::report::metrics::{Taken, Timed};
use crate::gateway::report::recorder::Passed;
use crate::gateway::report::recorder::first_bytes::FirstByte;
use crate::policy::cause::Cause;
use crate::policy::config::RequestLog;
use crate::policy::meter::Amount;
use crate::policy::refusal::Refusal;
use crate::policy::row::Row;
use crate::policy::usage::Usage;
use crate::wire::ModelEndpoint;
use std::num::{NonZeroU32, NonZeroU64};

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
            State::Reserving(Reserving { draft: Some(draft), .. }) => EventWriter::Opening(draft.state.as_ref()),
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
        let targets = job.notes.failed_targets();
        job.notes.note_end(&job.request, &fault, last);
        strict::note_unbilled(job, &fault);
        let usage = job.partial_usage(observed, None);
        let limits = job.target().map_or(&job.request.setup.config.upstream, |target| &target.limits);
        let refusal = match &fault.overflow {
            Some(overflow) => too_long(job, overflow, fault.message.as_deref()),
            None => fault.refusal(limits),
        };
        if refusal.status >= 500 {
            targets.iter().for_each(|target| call.cx.upstreams.breakers.lost(target));
        }
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
        match self {
            State::Lingering(lingering) => return lingering.ends(job, call),
            State::Attempting(_) | State::Answering(_) => abandon(job, call.cx),
            _ => {}
        }
        self.end(job, Fault::from(FaultKind::Draining), call)
    }

    /// The client has left.
    pub(super) fn left(&mut self, job: &mut RequestJob, call: &mut DriverCall) -> Effect {
        let usage = self.abandoned(job, call);
        job.notes.get_mut().cause = Some(Cause::new("client left", ""));
        Effect::Gone(Outcome { status: CLIENT_LEFT, error: None, usage })
    }

    /// Drops the attempt under way, since its client has left or its form is invalid; returns what it is charged.
    pub(super) fn abandoned(&mut self, job: &mut RequestJob, call: &mut DriverCall) -> Usage {
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
        job.partial_usage(observed, Some(shown))
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
        if job.attempt.flight.is_some() {
            job.no_verdict(cx);
        }
        std::mem::replace(state, State::Ended).release(job.request.found.key, cx);
        let usage = bill.map_or(Usage::default(), |bill| bill.usage);
        is_priced(&job.request, &usage).then(|| bill.map_or(0, |bill| bill.cost_nano))
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

impl RequestJob {
    /// Settles the reservation to the real use, once, and writes the row. Returns the bill, and the number of the row.
    pub(super) fn settle(&mut self, usage: Usage, status: u16, cx: &mut Cx) -> Option<(Bill, Option<NonZeroU64>)> {
        let admitted = self.admitted.take()?;
        let bill = self.bill(&usage);
        let Bill { usage, cost_nano } = bill;
        if target_hold(self).is_some() {
            let own = own_amount(self, &usage, cost_nano);
            leave_target(self, Some(own), cx);
        }
        let group = cx.accounts.meter.path_text(&admitted.hold);
        let used = Amount { tokens: usage.total(), nano: cost_nano };
        if self.request.strict().is_some() {
            strict::check_overrun(self, cx.accounts.meter.reserved(&admitted.hold), used, cx);
        }
        cx.accounts.meter.settle(admitted.hold, used);
        if cx.accounts.meter.has_news() {
            cx.tell_of_budgets();
        }
        let Some(row) = row_of(self, bill, status, (group, admitted.at), cx) else { return Some((bill, None)) };
        let row = Row { lease: admitted.lease, ..row };
        Some((bill, NonZeroU64::new(cx.give_row(row))))
    }

    pub(super) fn count(&self, status: u16, bill: Option<Bill>, times: &Times, cx: &mut Cx) {
        cx.report.stats.request(self.request.endpoint_name(), self.request.model().map(|model| &model.id), status);
        if let (Some(Bill { usage, cost_nano }), Some(model)) = (bill, self.request.model()) {
            let now = cx.now.mono;
            let first = self.attempt.has_content.then_some(self.attempt.begun);
            let taken = Taken {
                usage,
                cost_nano,
                micros: now.micros_since(self.request.received),
                events: first.map(|first| (first.micros_since(self.request.read), now.micros_since(first))),
            };
            cx.report.stats.taken(&model.id, &taken);
        }
        for (timed, from, to) in times {
            if *from != Mono::NEVER && *to != Mono::NEVER {
                cx.report.stats.phase(*timed, to.micros_since(*from));
            }
        }
    }

    /// The phases of the request: begin and end, `NEVER` if not reached.
    #[inline]
    pub(super) fn times(&self, now: Mono) -> Times {
        let (sent, first) = (self.attempt.sent, self.attempt.first);
        let (received, read, queued) = (self.request.received, self.request.read, u64::from(self.request.queued));
        [
            (Timed::Body, received, read),
            (Timed::Queue, if queued > 0 { Mono(0) } else { Mono::NEVER }, Mono(queued)),
            // The time spent waiting for slots does not count as sending.
            (Timed::Send, Mono(read.0.saturating_add(queued)), sent),
            // A provider that sent no head was waited for until the end.
            (Timed::Wait, sent, first.min(now)),
            (Timed::Relay, first, now),
            (Timed::Total, received, now),
        ]
    }

    pub(super) fn log(&self, outcome: &Outcome, bill: Option<Bill>, times: &Times, cx: &mut Cx) {
        let request = &self.request;
        let logged = cx.setup.config.server.log;
        let went_well = || {
            let failed = self.notes.0.as_ref().is_some_and(|diagnosis| diagnosis.has_failures());
            outcome.error.is_none() && outcome.status < 400 && !failed
        };
        let is_wanted = logged == RequestLog::All || !went_well() || logged.keeps(&request.id.raw());
        // Requests that cost nothing, above all those that were rejected, have no other bound.
        let is_free = bill.is_none_or(|bill| outcome.status >= 400 && bill.usage.total() == 0 && bill.cost_nano == 0);
        let caller = request.found.key.map_or(LogCaller::Stranger, LogCaller::Key);
        let is_logged = is_wanted && (!is_free || cx.takes_free_line(caller));
        let has_failed = self.notes.has_failed(outcome);
        let keep = match has_failed || cx.report.recorder.records_all() {
            true => cx.report.recorder.keeps(has_failed.then(|| failed_request(self, outcome)), cx.now.unix),
            false => None,
        };
        if !is_logged && keep.is_none() {
            return;
        }
        let at = &self.attempt;
        let target = self.target().filter(|_| at.attempts > 0);
        let line = access_log::AccessLogLine {
            id: &request.id,
            endpoint: request.endpoint_name(),
            peer: self.notes.caller(request, cx).into(),
            key: self.notes.presented(request).map(|key| cx.access.keys.get(key)),
            extras: request.extras.as_deref(),
            client: request.meta.agent.name(),
            model: request.model().map(|model| &*model.id).or_else(|| self.notes.0.as_ref()?.model.as_deref()),
            target: target.map(|target| (&*target.label, at.attempts.into())),
            stream: self.request.asked.is_some_and(|asked| asked.stream),
            status: outcome.status,
            error: outcome.error,
            diagnosis: self.notes.0.as_deref(),
            usage: bill.map(|bill| bill.usage),
            times,
        };
        let time = cx.report.date.iso(cx.now.unix);
        let Some(keep) = keep else { return cx.commands.orders.log(|out| line.write(time, out)) };
        let first = target.filter(|_| outcome.status < 400 && at.sent != Mono::NEVER && at.first != Mono::NEVER);
        let passed = Passed {
            cost_nano: bill.filter(|bill| is_priced(request, &bill.usage)).map(|bill| bill.cost_nano),
            first: first.map(|target| FirstByte {
                target: target.seed,
                streams: line.stream,
                micros: at.first.micros_since(at.sent),
            }),
            callers: [
                line.key.map(|key| mix_bytes(0, key.id().text())),
                // A limit of the key does not concern the model.
                request.model().map(|model| mix_bytes(1, model.id.as_bytes())),
            ],
            status: outcome.status,
        };
        let recorder = &mut cx.report.recorder;
        let mut record = |out: &mut Vec<u8>| {
            let from = out.len();
            line.write(time, out);
            recorder.push(keep, &out[from..], &passed, cx.now.unix);
        };
        if is_logged {
            return cx.commands.orders.log(record);
        }
        let mut scratch = std::mem::take(&mut cx.report.scratch);
        scratch.clear();
        record(&mut scratch);
        cx.report.scratch = scratch;
    }
}
