//! The trace that a request belongs to: its caller and its own spans. Data, and its form in headers and the log line;
//! begun and filled in by `exchange`, which writes the spans. A request has none if its caller names none and none is
//! exported.

use crate::base::digest::hex_into;
use crate::base::hash::mix_bytes;
use crate::base::time::Mono;
use crate::gateway::counters::AttemptEnd;
use crate::wire::trace::{self, SAMPLED, TraceParent};

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Trace {
    pub(crate) id: [u8; 16],
    /// The caller's span.
    pub(crate) parent: Option<[u8; 8]>,
    pub(crate) flags: u8,
    /// The caller's `tracestate`.
    pub(crate) state: Box<[u8]>,
    /// True if its spans are exported.
    pub(crate) records: bool,
    /// Id of the request, from which the ids of its spans are derived.
    request: [u8; 16],
    /// Attempts so far.
    pub(crate) attempts: Vec<Tried>,
    /// Known finish reasons of the answer, one for each choice, in the terms of the client's format.
    pub(crate) finish: Vec<&'static str>,
}

/// An attempt at a target.
#[derive(Debug)]
pub(crate) struct Tried {
    /// Number of the attempt, counted from 1.
    pub(crate) number: u8,
    /// Index into the model's targets.
    pub(crate) target: u32,
    pub(crate) begun: Mono,
    /// Time and kind of its failure, and the status of the provider's answer; `None` if it has not failed.
    pub(crate) failed: Option<(Mono, AttemptEnd, Option<u16>)>,
}

impl Trace {
    /// Returns a new trace whose id is that of the request, which is random. `records`: it is sampled.
    pub(crate) fn fresh(request: [u8; 16], records: bool) -> Trace {
        let (flags, state) = (u8::from(records) * SAMPLED, Box::default());
        Trace { id: request, parent: None, flags, state, records, request, attempts: Vec::new(), finish: Vec::new() }
    }

    /// Returns the trace named in a caller's `head`, if well-formed. `exports`: it is recorded if the caller's is.
    pub(crate) fn of_caller(head: &[u8], request: [u8; 16], exports: bool) -> Option<Trace> {
        let TraceParent { trace, span, flags } = trace::caller(head)?;
        let records = exports && flags & SAMPLED != 0;
        let (state, attempts, finish) = (trace::state(head), Vec::new(), Vec::new());
        Some(Trace { id: trace, parent: Some(span), flags, state, records, request, attempts, finish })
    }

    /// Id of the span of the attempt with this number, or, for 0, of the request; never all zeros.
    pub(crate) fn span(&self, attempt: u8) -> [u8; 8] {
        mix_bytes(attempt.into(), &self.request).max(1).to_be_bytes()
    }

    /// Begins an attempt.
    pub(crate) fn begins(&mut self, number: u8, target: u32, now: Mono) {
        self.attempts.push(Tried { number, target, begun: now, failed: None });
    }

    /// Notes the failure of an attempt.
    pub(crate) fn fails(&mut self, number: u8, end: AttemptEnd, status: Option<u16>, now: Mono) {
        if let Some(tried) = self.attempts.iter_mut().find(|tried| tried.number == number) {
            tried.failed = Some((now, end, status));
        }
    }

    /// Appends the headers of the attempt with this number.
    pub(crate) fn write_headers(&self, attempt: u8, out: &mut Vec<u8>) {
        trace::write(&self.id, &self.span(attempt), self.flags, &self.state, out);
    }

    /// Appends its id, `-`, and the id of the request's span.
    pub(crate) fn write_text(&self, out: &mut Vec<u8>) {
        hex_into(&self.id, out);
        out.push(b'-');
        hex_into(&self.span(0), out);
    }

    /// Appends the members of the log line, each with a comma before it.
    pub(crate) fn write_members(&self, out: &mut Vec<u8>) {
        for (name, value) in [(",\"trace_id\":\"", &self.id[..]), (",\"span_id\":\"", &self.span(0))] {
            out.extend_from_slice(name.as_bytes());
            hex_into(value, out);
            out.push(b'"');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_trace_has_the_id_of_its_request_and_unique_spans() {
        let trace = Trace::fresh([7; 16], true);
        let names: Vec<[u8; 8]> = (0..=10).map(|attempt| trace.span(attempt)).collect();
        assert!((0..names.len()).all(|at| !names[..at].contains(&names[at]) && names[at] != [0; 8]));
        let mut out = Vec::new();
        trace.write_headers(1, &mut out);
        let span: String = names[1].iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(String::from_utf8(out).unwrap(), format!("traceparent: 00-{}-{span}-01\r\n", "07".repeat(16)));
        assert_ne!(Trace::fresh([8; 16], true).span(1), names[1]);
        assert_eq!((trace.parent, Trace::fresh([7; 16], false).flags), (None, 0));
    }
}
