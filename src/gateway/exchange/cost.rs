//! Cost of a request: in its usage record, in the head of a complete answer, and in the last usage of a stream whose
//! client asked for it. The three are the same number.

use super::job::{Request, RequestJob, RequestNotes};
use crate::base::limits::ROW_COST_MAX;
use crate::base::text::push_cost;
use crate::dialect::{ObservedUsage, SseStream, write_cost};
use crate::policy::usage::Usage;

impl RequestNotes {
    /// Cost of the request, as its usage record contains it. Each attempt is billed in the tier of its own prompt.
    pub(super) fn cost_nano(&self, request: &Request, usage: &Usage) -> u64 {
        let Some(model) = request.model() else { return 0 };
        let (own, earlier) = match &self.0 {
            Some(diagnosis) => (usage.minus(diagnosis.spent), diagnosis.spent_nano),
            None => (*usage, 0),
        };
        own.cost_nano(model.prices.of(own.prompt())).saturating_add(earlier).min(ROW_COST_MAX)
    }
}

impl RequestJob {
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
