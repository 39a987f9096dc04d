//! The traces of a request that has ended: its usage record, its part in the metrics, and its log line.

use super::cost::Bill;
use super::event::Outcome;
use super::job::RequestJob;
use crate::base::hash::mix_bytes;
use crate::base::time::Mono;
use crate::gateway::access_log::{self, Times};
use crate::gateway::admin::{FirstByte, Passed};
use crate::gateway::cx::Cx;
use crate::gateway::metrics::{Taken, Timed};
use crate::policy::config::RequestLog;
use crate::policy::meter::Amount;
use crate::policy::row::Row;
use crate::policy::usage::Usage;
use std::num::NonZeroU64;
use std::sync::Arc;

impl RequestJob {
    /// Settles the reservation to the real use, once, and writes the row. Returns the bill, and the number of the row.
    pub(super) fn settle(&mut self, usage: Usage, status: u16, cx: &mut Cx) -> Option<(Bill, Option<NonZeroU64>)> {
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
        let extras = self.request.extras.as_deref();
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
            user: extras.and_then(|extras| extras.user.clone()),
            session: extras.and_then(|extras| extras.session.clone()),
            client: self.request.meta.agent,
            agent: extras.and_then(|extras| extras.agent.clone()),
            parent_agent: extras.and_then(|extras| extras.parent_agent.clone()),
            trace: self.notes.0.as_ref().and_then(|diagnosis| diagnosis.trace_text()),
            lease: admitted.lease,
        };
        Some((bill, NonZeroU64::new(cx.give_row(row))))
    }

    pub(super) fn count(&self, status: u16, bill: Option<Bill>, times: &Times, cx: &mut Cx) {
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
    pub(super) fn times(&self, now: Mono) -> Times {
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

    pub(super) fn log(&self, outcome: &Outcome, bill: Option<Bill>, times: &Times, cx: &mut Cx) {
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
            cost_nano: bill.filter(|_| request.model().is_some_and(|model| model.priced)).map(|bill| bill.cost_nano),
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
