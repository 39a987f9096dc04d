//! The usage record of a request.

use super::cost::Bill;
use crate::base::time::Unix;
use crate::gateway::cx::Cx;
use crate::gateway::exchange::job::RequestJob;
use crate::gateway::report::access_log::ClientAttribution;
use crate::policy::row::{RareNames, Row, RowNames};
use std::sync::Arc;

/// Rare names for the row of a request: those that its client gives, and its trace.
#[inline(never)] // most requests have none
fn row_names(extras: Option<&ClientAttribution>, trace: Option<Arc<str>>) -> RowNames {
    let Some(extras) = extras else { return RareNames { trace, ..RareNames::default() }.into() };
    let ClientAttribution { user, session, agent, parent_agent, .. } = extras;
    let asked = extras.asked().cloned();
    let [user, session, agent, parent_agent] = [user, session, agent, parent_agent].map(Clone::clone);
    RareNames { user, session, trace, agent, parent_agent, asked }.into()
}

/// The usage record of a request, without its lease. `admitted`: its groups, and the moment of its admission.
#[inline(always)] // else the record is copied once more
pub(crate) fn row_of(
    job: &RequestJob,
    bill: Bill,
    status: u16,
    (group, admitted): (Arc<str>, Unix),
    cx: &Cx,
) -> Option<Row> {
    let (Some(model), Some(endpoint), Some(target)) = (job.request.model(), job.request.endpoint(), job.target())
    else {
        return None;
    };
    let trace = job.notes.0.as_ref().and_then(|diagnosis| diagnosis.trace_text());
    let names = match (job.request.extras.as_deref(), trace) {
        (None, None) => RowNames::default(),
        (extras, trace) => row_names(extras, trace),
    };
    Some(Row {
        request: job.request.id.raw(),
        key: cx.access.keys.get(job.request.found.key?).id(),
        admitted,
        model: model.id.clone(),
        // A request that only waited was not served by a target.
        target: if job.attempt.attempts == 0 { Arc::from("") } else { target.label.clone() },
        endpoint,
        stream: job.request.asked.is_some_and(|asked| asked.stream),
        status,
        usage: bill.usage,
        cost_nano: bill.cost_nano,
        attempts: job.attempt.attempts.into(),
        micros: cx.now.mono.micros_since(job.request.received),
        queued_ms: job.request.queued_ms(),
        group,
        client: job.request.meta.agent,
        names,
        lease: None,
    })
}
