//! The only end of every exchange: settles the reservation, passes the usage record on, writes the log line, and
//! releases everything it held. With `durability = "before-reply"` the row comes first: everything from a stream's
//! finishing event on, or a whole answer, waits until it is in the ledger, so that a kill loses nothing that a client
//! saw completed. A stream waits for a commit only at its own end.

use super::event::{ClientMessage, DriverCall, Effect, Forward, Outcome};
use super::fault::{Fault, FaultKind};
use super::job::RequestJob;
use super::output::Output;
use super::state::{Body, Committing, Exchange, FinalOutput, State};
use crate::base::hash::mix_bytes;
use crate::base::limits::BYTES_PER_TOKEN_MAX;
use crate::base::time::Mono;
use crate::dialect::{self, Broken, ObservedUsage, Reported};
use crate::gateway::access_log::{self, Times};
use crate::gateway::admin::{FirstByte, Passed};
use crate::gateway::cx::Cx;
use crate::gateway::local;
use crate::gateway::metrics::{Taken, Timed};
use crate::gateway::orders::Order;
use crate::gateway::provider::request::OutgoingRequest;
use crate::policy::config::RequestLog;
use crate::policy::counters::AttemptEnd;
use crate::policy::meter::Amount;
use crate::policy::row::Row;
use crate::policy::usage::{Usage, UsageSource};
use crate::wire::{ModelEndpoint, Passthrough};
use std::num::NonZeroU64;
use std::sync::Arc;

/// The status under which a request whose client left is logged and counted.
pub(super) const CLIENT_LEFT: u16 = 499;

/// The final charge for a request.
#[derive(Copy, Clone, Debug)]
pub(super) struct Bill {
    pub(super) usage: Usage,
    pub(super) cost_nano: u64,
}

impl Exchange {
    /// No attempt is left: sends an error with its own status, or an error event if a head was sent.
    pub(super) fn end(&mut self, fault: Fault, out: &mut Output, cx: &Cx) -> Effect {
        self.state.drop_provider(out);
        // A waiting request fails without an attempt.
        let last = if self.state.is_queued() { 0 } else { self.job.attempt.attempts.into() };
        self.job.notes.note_end(&self.job.request, &fault, last);
        let usage = self.partial_usage(false);
        let limits = self.job.target().map_or(&self.job.request.setup.config.upstream, |target| &target.limits);
        let refusal = match &fault.overflow {
            Some(overflow) => self.job.too_long(overflow, fault.message.as_deref()),
            None => fault.refusal(limits),
        };
        let error = Some(refusal.kind);
        let outcome = Outcome { status: refusal.status, error, usage };
        // Releases of Codex before 0.167 compact only after a failed stream (openai/codex `responses_retry.rs`).
        let is_streamed = self.job.request.asked.is_some_and(|asked| asked.stream);
        let in_stream = refusal.is_overflow() && is_streamed && self.job.request.found.is_codex;
        if !self.job.attempt.opened && !in_stream {
            return Effect::Refuse(Box::new(refusal), outcome);
        }
        let opens = self.job.open();
        out.bytes.clear();
        if let Some(endpoint) = self.job.request.endpoint() {
            let identity = self.job.request.counted_identity(cx.now.unix);
            let words = local::words(&refusal, self.job.request.id.as_str());
            self.state.write_failure(endpoint, self.job.attempt.told, &words, &identity, &mut out.bytes);
        }
        Effect::End(Forward { opens, ..Forward::default() }, outcome)
    }

    /// Usage that an exchange is charged if it ends before its answer was complete.
    pub(super) fn partial_usage(&self, client_left: bool) -> Usage {
        let observed = self.state.observed();
        let shown = self.state.stream().is_some_and(|stream| self.job.request.has_shown_cost(stream, &observed));
        let sent = self.job.attempt.sent != Mono::NEVER;
        let settled = self.job.admitted.is_none();
        if client_left && shown {
            return self.job.charged(observed);
        }
        let nothing_came = observed.relayed_tokens == 0 && observed.reported == Reported::default();
        if settled || (client_left && !sent) || (!client_left && nothing_came) {
            return self.job.with_spent(Usage::default());
        }
        self.job.with_spent(self.job.unfinished(observed))
    }

    /// A complete answer: gives its row to the ledger and waits, at most for `max_commit_lag`. `forward`: how events in
    /// `out` are sent meanwhile.
    pub(super) fn await_row(
        &mut self,
        mut committing: Committing,
        forward: Forward,
        call: &mut DriverCall,
        cx: &mut Cx,
    ) -> Effect {
        let row = self.job.settle(committing.usage, 200, cx).and_then(|(_, row)| row);
        committing.by = cx.now.mono.after(self.job.request.setup.config.store.max_commit_lag);
        let is_stream = committing.kind == FinalOutput::Events;
        // Without an admission there is no usage record to wait for.
        let effect = if row.is_none() { committing.committed(&mut self.job, call.out, cx) } else { Effect::Wait };
        let former = std::mem::replace(&mut self.state, State::Committing(committing));
        former.release(self.job.request.found.key, cx);
        let Some(row) = row else { return effect };
        cx.accounts.ledger.hold_back(row.get(), call.message.exchange);
        match is_stream {
            true => self.job.forward(Forward { waits: true, ..forward }, call.out, cx),
            false => Effect::Wait,
        }
    }

    /// Ends the attempt under way; its target is not to blame.
    pub(super) fn abandon(&self, cx: &mut Cx) {
        if let Some(target) = self.job.target().filter(|_| self.state.is_under_way()) {
            cx.upstreams.breakers.ended(target, AttemptEnd::Abandoned);
        }
    }

    /// Ends the exchange. Returns the cost for the head of the answer; `None` without a price.
    pub(crate) fn finish(&mut self, outcome: Outcome, cx: &mut Cx) -> Option<u64> {
        let bill = match &mut self.state {
            State::Committing(committing) => Some(self.job.bill(&committing.usage)),
            state => {
                state.leave_queue(&mut self.job, cx);
                self.job.settle(outcome.usage, outcome.status, cx).map(|(bill, _)| bill)
            }
        };
        let times = self.job.times(cx.now.mono);
        self.job.count(outcome.status, bill, &times, cx);
        self.job.log(&outcome, bill, &times, cx);
        if !self.job.notes.is_empty() {
            self.job.notes.give_spans(&self.job.request, &self.job.attempt, &outcome, bill, cx);
        }
        self.job.no_verdict(cx);
        std::mem::replace(&mut self.state, State::Ended).release(self.job.request.found.key, cx);
        if cx.lifecycle.handover.is_final() {
            // From now on the successor reports the totals.
            let counters = Box::new(cx.take_counters());
            cx.commands.orders.push(Order::Counted(counters));
        }
        let is_priced = self.job.request.model().is_some_and(|model| model.priced);
        is_priced.then(|| bill.map_or(0, |bill| bill.cost_nano))
    }
}

impl Committing {
    /// The usage record is committed: sends the end of the answer that was held back.
    pub(super) fn committed(&mut self, job: &mut RequestJob, out: &mut Output, cx: &mut Cx) -> Effect {
        let outcome = Outcome { status: 200, error: None, usage: self.usage };
        let mut buf = std::mem::take(&mut self.last);
        if self.kind == FinalOutput::Bulk {
            return Effect::AnswerBulk(outcome, buf);
        }
        out.bytes.clear();
        out.bytes.extend_from_slice(buf.bytes());
        buf.release(&mut cx.memory.pool);
        match self.kind {
            FinalOutput::Events => Effect::End(Forward { opens: job.open(), ..Forward::default() }, outcome),
            _ => Effect::Answer(outcome),
        }
    }
}

impl RequestJob {
    /// Usage that a complete answer is charged: as reported, estimated if the provider reported none.
    pub(super) fn charged(&self, observed: ObservedUsage) -> Usage {
        let known = observed.reported;
        let out = known.output.unwrap_or(observed.relayed_tokens);
        let source = if known.is_complete() { UsageSource::Provider } else { UsageSource::Estimated };
        self.with_spent(Usage { out, source, ..self.unfinished(observed) })
    }

    /// Adds the charge for earlier attempts.
    #[inline]
    fn with_spent(&self, usage: Usage) -> Usage {
        match &self.notes.0 {
            Some(diagnosis) if self.admitted.is_some() => usage.plus(diagnosis.spent),
            _ => usage,
        }
    }

    /// Charges an answer that failed before any of it was relayed. The provider bills the usage that it reports, and
    /// has also generated an answer that is too large here.
    pub(super) fn charge_failed(
        &mut self,
        body: &Body,
        draft: &OutgoingRequest,
        fault: &Fault,
        message: &ClientMessage,
        cx: &mut Cx,
    ) {
        let mut observed = body.observed();
        if let Some(reported) = &fault.reported {
            observed.reported.merge(**reported);
        }
        if let FaultKind::TooLarge(_, came) = fault.kind {
            let relayed = self.request.endpoint().and_then(ModelEndpoint::passthrough);
            let generates = relayed.is_none_or(Passthrough::generates);
            let most = if generates { self.request.completion_max(draft, message) } else { 0 };
            let text = most.min(came as u64 / BYTES_PER_TOKEN_MAX);
            observed.relayed_tokens = observed.relayed_tokens.saturating_add(text);
        } else {
            if let Body::Collect { buf, .. } = body
                && let Some((from, _)) = self.endpoints()
                && !buf.is_empty()
                && !cx.is_long(buf.len())
            {
                // Events that were cut off may have reported it.
                observed.reported = *dialect::rejected(from, buf.bytes(), Broken::NotJson).reported;
            }
            if observed == ObservedUsage::default() {
                return;
            }
        }
        if observed.reported.input.is_none() {
            self.count_prompt(draft, message, cx);
        }
        let known = observed.reported;
        let source = match known {
            _ if known == Reported::default() => UsageSource::Estimated,
            _ if known.is_complete() => UsageSource::Provider,
            _ => UsageSource::Partial,
        };
        let usage = self.with_spent(Usage { source, ..self.unfinished(observed) });
        let spent_nano = self.notes.cost_nano(&self.request, &usage.bounded());
        let notes = self.notes.get_mut();
        (notes.spent, notes.spent_nano) = (usage, spent_nano);
    }

    /// The charge for an answer that was not completed.
    fn unfinished(&self, observed: ObservedUsage) -> Usage {
        let known = observed.reported;
        let source = if known == Reported::default() { UsageSource::Estimated } else { UsageSource::Partial };
        Usage {
            uncached_in: known.input.unwrap_or_else(|| self.request.asked.map_or(0, |asked| asked.counted())),
            cache_read: known.cache_read.unwrap_or(0),
            cache_write: known.cache_write.unwrap_or(0),
            hour_write: known.hour_write,
            out: known.output.unwrap_or(0).max(observed.relayed_tokens),
            source,
        }
    }

    /// The charge for this usage, within the ledger's bounds, so that a restart counts the same.
    #[inline]
    fn bill(&self, usage: &Usage) -> Bill {
        let usage = usage.bounded();
        Bill { usage, cost_nano: self.notes.cost_nano(&self.request, &usage) }
    }

    /// Settles the reservation to the real use, once, and writes the row. Returns the bill, and the number of the row.
    fn settle(&mut self, usage: Usage, status: u16, cx: &mut Cx) -> Option<(Bill, Option<NonZeroU64>)> {
        let admitted = self.admitted.take()?;
        let bill = self.bill(&usage);
        let Bill { usage, cost_nano } = bill;
        let group = cx.accounts.meter.path_text(&admitted.hold);
        cx.accounts.meter.settle(admitted.hold, Amount { tokens: usage.total(), nano: cost_nano });
        if cx.accounts.meter.has_news() {
            cx.tell_of_budgets();
        }
        let (Some(model), Some(endpoint), Some(target)) =
            (self.request.model(), self.request.endpoint(), self.target())
        else {
            return Some((bill, None));
        };
        let said = self.request.said.as_deref();
        let row = Row {
            request: self.request.id.raw(),
            key: cx.access.keys.get(self.request.found.key?).id(),
            admitted: admitted.at,
            model: model.id.clone(),
            // A request that only waited was not served by a target.
            target: if self.attempt.attempts == 0 { Arc::from("") } else { target.label.clone() },
            endpoint,
            stream: self.request.asked.is_some_and(|asked| asked.stream),
            status,
            usage,
            cost_nano,
            attempts: self.attempt.attempts.into(),
            micros: cx.now.mono.micros_since(self.request.received),
            queued_ms: self.request.queued_ms(),
            group,
            user: said.and_then(|said| said.user.clone()),
            session: said.and_then(|said| said.session.clone()),
            client: self.request.meta.agent,
            agent: said.and_then(|said| said.agent.clone()),
            parent_agent: said.and_then(|said| said.parent_agent.clone()),
            trace: self.notes.0.as_ref().and_then(|diagnosis| diagnosis.trace_text()),
            lease: admitted.lease,
        };
        Some((bill, NonZeroU64::new(cx.give_row(row))))
    }

    fn count(&self, status: u16, bill: Option<Bill>, times: &Times, cx: &mut Cx) {
        cx.report.stats.request(self.request.endpoint_name(), self.request.model().map(|model| &model.id), status);
        if let (Some(Bill { usage, cost_nano }), Some(model)) = (bill, self.request.model()) {
            let now = cx.now.mono;
            let first = self.attempt.has_events.then_some(self.attempt.begun);
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
    fn times(&self, now: Mono) -> Times {
        let (sent, first) = (self.attempt.sent, self.attempt.first);
        let (received, read, queued) = (self.request.received, self.request.read, u64::from(self.request.queued));
        [
            (Timed::Body, received, read),
            (Timed::Queue, if queued > 0 { Mono(0) } else { Mono::NEVER }, Mono(queued)),
            // The time spent waiting for slots does not count as sending.
            (Timed::Send, Mono(read.0.saturating_add(queued)), sent),
            (Timed::Wait, sent, first),
            (Timed::Relay, first, now),
            (Timed::Total, received, now),
        ]
    }

    fn log(&self, outcome: &Outcome, bill: Option<Bill>, times: &Times, cx: &mut Cx) {
        let request = &self.request;
        let logged = cx.setup.config.server.log;
        let went_well = || {
            let failed = self.notes.0.as_ref().is_some_and(|diagnosis| diagnosis.has_failures());
            outcome.error.is_none() && outcome.status < 400 && !failed
        };
        let is_wanted = logged == RequestLog::All || !went_well() || logged.keeps(&request.id.raw());
        let is_logged = is_wanted && (request.found.key.is_some() || cx.takes_stranger_line());
        let has_failed = self.notes.has_failed(outcome);
        let keep = match has_failed || cx.report.recorder.records_all() {
            true => cx.report.recorder.keeps(has_failed.then(|| self.notes.failure(request, outcome)), cx.now.unix),
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
            key: request.found.key.map(|key| cx.access.keys.get(key)),
            said: request.said.as_deref(),
            client: request.meta.agent.name(),
            model: self.request.model().map(|model| &*model.id),
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
        let first = target.filter(|_| at.sent != Mono::NEVER && at.first != Mono::NEVER);
        let passed = Passed {
            cost_nano: bill.map(|bill| bill.cost_nano),
            first: first.map(|target| FirstByte {
                target: target.seed,
                streams: line.stream,
                micros: at.first.micros_since(at.sent),
            }),
            callers: [
                line.key.map(|key| mix_bytes(0, key.id().text())),
                line.model.map(|model| mix_bytes(1, model.as_bytes())),
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
