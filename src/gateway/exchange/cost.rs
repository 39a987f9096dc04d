//! Usage and cost that a request is charged. The cost in its usage record, in the head of a complete answer, and in the
//! last usage of a stream whose client asked for it, is the same number.

use super::event::DriverCall;
use super::fault::{Fault, FaultKind};
use super::job::{RequestJob, RequestNotes};
use super::request::Request;
use super::state::Body;
use crate::base::limits::{BYTES_PER_TOKEN_MAX, ROW_COST_MAX};
use crate::base::text::push_cost;
use crate::base::time::Mono;
use crate::dialect::{self, Broken, ObservedUsage, Reported, SseStream, write_cost};
use crate::gateway::provider::request::OutgoingRequest;
use crate::policy::usage::{Usage, UsageSource};
use crate::wire::{ModelEndpoint, Passthrough};

/// The final charge for a request.
#[derive(Copy, Clone, Debug)]
pub(super) struct Bill {
    pub(super) usage: Usage,
    pub(super) cost_nano: u64,
}

impl RequestNotes {
    /// Cost of the request, as its usage record contains it. Each attempt is billed in the tier of its own prompt.
    pub(super) fn cost_nano(&self, request: &Request, usage: &Usage) -> u64 {
        let Some(model) = request.model() else { return 0 };
        let (own, earlier) = match &self.0 {
            Some(diagnosis) => (usage.minus(diagnosis.spent), diagnosis.spent_nano),
            None => (*usage, 0),
        };
        let mut nano = own.cost_nano(model.prices.of(own.prompt())).saturating_add(earlier);
        if own.requests > 0
            && let Some(passthrough) = request.endpoint().and_then(ModelEndpoint::as_passthrough)
        {
            nano = nano.saturating_add(model.units.cost_nano(passthrough, own.requests.into(), own.units.into()));
        }
        nano.min(ROW_COST_MAX)
    }
}

impl Request {
    /// Tokens of the prompt that are charged if the provider reports none. Those of audio are only reserved: their
    /// number is an upper bound by the length of the form.
    fn counted_prompt(&self) -> u64 {
        let passthrough = self.endpoint().and_then(ModelEndpoint::as_passthrough);
        let is_audio = passthrough.is_some_and(Passthrough::is_transcript);
        self.asked.filter(|_| !is_audio).map_or(0, |asked| asked.counted())
    }
}

impl RequestJob {
    /// Usage that a complete answer is charged: as reported, estimated if the provider reported none.
    #[inline]
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
    pub(super) fn charge_failed(&mut self, body: &Body, draft: &OutgoingRequest, fault: &Fault, call: &mut DriverCall) {
        let mut observed = body.observed();
        if let Some(reported) = &fault.reported {
            observed.reported.merge(**reported);
        }
        if let FaultKind::TooLarge(_, came) = fault.kind {
            let passthrough = self.request.endpoint().and_then(ModelEndpoint::as_passthrough);
            let generates = passthrough.is_none_or(Passthrough::generates);
            let most = if generates { self.request.completion_max(draft, &call.message) } else { 0 };
            let text = most.min(came as u64 / BYTES_PER_TOKEN_MAX);
            observed.relayed_tokens = observed.relayed_tokens.saturating_add(text);
        } else {
            if let Body::Collect { buf, .. } = body
                && let Some((from, _)) = self.endpoints()
                && !buf.is_empty()
                && !call.cx.is_long(buf.len())
            {
                // Events that were cut off may have reported it.
                observed.reported = *dialect::rejected(from, buf.bytes(), Broken::NotJson).reported;
            }
            if observed == ObservedUsage::default() {
                return;
            }
        }
        if observed.reported.input.is_none() {
            self.count_prompt(draft, call);
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
    #[inline]
    fn unfinished(&self, observed: ObservedUsage) -> Usage {
        let known = observed.reported;
        let source = if known == Reported::default() { UsageSource::Estimated } else { UsageSource::Partial };
        let is_passthrough = self.request.endpoint().is_some_and(ModelEndpoint::is_passthrough);
        let has_units = is_passthrough && self.request.model().is_some_and(|model| !model.units.is_empty());
        let (requests, units) = if has_units { (1, observed.units) } else { (0, 0) };
        Usage {
            uncached_in: known.input.unwrap_or_else(|| self.request.counted_prompt()),
            cache_read: known.cache_read.unwrap_or(0),
            cache_write: known.cache_write.unwrap_or(0),
            hour_write: known.hour_write,
            requests,
            units,
            out: known.output.unwrap_or(0).max(observed.relayed_tokens),
            source,
        }
    }

    /// The charge for this usage, within the ledger's bounds, so that a restart counts the same.
    #[inline]
    pub(super) fn bill(&self, usage: &Usage) -> Bill {
        let usage = usage.bounded();
        Bill { usage, cost_nano: self.notes.cost_nano(&self.request, &usage) }
    }

    /// Usage that a request is charged if it ends before its answer was complete. `left`: its client has left, and may
    /// have read the final usage if the flag is set.
    pub(super) fn partial_usage(&self, observed: ObservedUsage, left: Option<bool>) -> Usage {
        let is_free = match left {
            Some(true) => return self.charged(observed),
            Some(false) => self.attempt.sent == Mono::NEVER,
            None => observed == ObservedUsage::default() && !(self.attempt.has_events && self.request.relays_media()),
        };
        let is_free = is_free || self.admitted.is_none();
        self.with_spent(if is_free { Usage::default() } else { self.unfinished(observed) })
    }

    /// Writes the cost into the last usage of a stream, if that is among the events in `out`.
    #[cold]
    pub(super) fn write_cost(&self, stream: &SseStream, out: &mut Vec<u8>) {
        let (Some(endpoint), Some(from)) = (self.request.endpoint(), stream.end_at()) else { return };
        let is_priced = self.request.model().is_some_and(|model| model.priced);
        let mut cost = Vec::new();
        if is_priced {
            let usage = self.charged(stream.observed()).bounded();
            push_cost(&mut cost, self.notes.cost_nano(&self.request, &usage));
        }
        write_cost(endpoint.shape, from, is_priced.then_some(&*cost), out);
    }
}

impl Request {
    /// True if the client may have read the final usage of its stream with the cost. It is charged that cost even if it
    /// leaves before the stream's formal end.
    pub(super) fn has_shown_cost(&self, stream: &SseStream, observed: &ObservedUsage) -> bool {
        let is_asked = self.asked.is_some_and(|asked| asked.show_usage);
        is_asked && stream.finish_seen() && observed.reported.is_complete()
    }
}
