//! Writes the spans of a request in OTLP's JSON: one of the request, and one of each attempt at a target, with the
//! attributes of OpenTelemetry's conventions for generative AI. They are written when the request has ended; until then
//! a [`Trace`] holds the data, if spans are wanted. Must never contain content.

use super::admit::cost::{Bill, is_priced};
use super::event::{CLIENT_LEFT, Outcome};
use super::job::Attempt;
use super::job::RequestNotes;
use super::request::Endpoint;
use super::request::Request;
use crate::base::digest::hex_into;
use crate::base::text::{push_decimal, push_ip, push_number};
use crate::base::time::{Mono, Now};
use crate::dialect;
use crate::gateway::cx::Cx;
use crate::gateway::report::trace::{Trace, Tried};
use crate::policy::usage::Usage;
use crate::wire::head::Method;
use crate::wire::json::{item, key, member_count, member_string, write_string};
use crate::wire::{Operation, Passthrough};

/// Kinds of span, by their numbers: one that serves a request, and one that sends a request.
const SERVER: u8 = 2;
const CLIENT: u8 = 3;
/// Flags of a span: whether its parent is remote is known (`KNOWN`), and the parent is remote (`ELSEWHERE`).
const KNOWN: u64 = 0x100;
const ELSEWHERE: u64 = 0x200;
/// Name of the span event for the first event of a stream, and of its time in seconds.
const FIRST: &str = "gen_ai.server.time_to_first_token";
impl RequestNotes {
    /// The trace that the request is part of: the caller's if its `head` names one, otherwise a new one if spans are
    /// exported.
    #[cold]
    pub(crate) fn begin_trace(&mut self, request: &Request, head: Option<&[u8]>) {
        let (id, exports) = (request.id.raw(), request.setup.traces);
        let fresh = || exports.then(|| Trace::fresh(id, request.setup.config.telemetry.samples(&id)));
        if let Some(trace) = head.and_then(|head| Trace::of_caller(head, id, exports)).or_else(fresh) {
            self.get_mut().trace = Some(Box::new(trace));
        }
    }

    /// An attempt begins.
    #[cold]
    pub(super) fn note_begun(&mut self, attempt: &Attempt) {
        if let Some(trace) = self.0.as_mut().and_then(|diagnosis| diagnosis.trace.as_mut()) {
            trace.begins(attempt.attempts, attempt.target, attempt.begun);
        }
    }

    /// Notes the finish reasons in these bytes of an answer. `ends`: all choices have ended.
    #[cold]
    pub(super) fn note_finish(&mut self, request: &Request, ends: bool, out: &[u8]) {
        let Some(shape) = request.endpoint().map(|endpoint| endpoint.shape) else { return };
        let trace = self.0.as_mut().and_then(|diagnosis| diagnosis.trace.as_mut());
        if let Some(trace) = trace.filter(|trace| trace.records) {
            dialect::add_reasons(shape, ends, out, &mut trace.finish);
        }
    }

    /// Writes the spans of a request that has ended, if they are wanted.
    #[cold]
    pub(super) fn give_spans(
        &self,
        request: &Request,
        attempt: &Attempt,
        outcome: &Outcome,
        bill: Option<Bill>,
        cx: &mut Cx,
    ) {
        let trace = self.0.as_ref().and_then(|diagnosis| diagnosis.trace.as_deref());
        let Some(trace) = trace.filter(|trace| trace.records && cx.setup.traces) else { return };
        let (now, setup) = (cx.now, cx.setup.clone());
        let mut peer = Vec::new();
        push_ip(&mut peer, self.caller(request, cx).into());
        cx.commands.orders.spans(&setup.config, |out| {
            self.write_own(request, attempt, (trace, bill, &peer), outcome, now, out);
            for tried in &trace.attempts {
                write_attempt(request, attempt, trace, tried, outcome, now, out);
            }
        });
    }

    fn write_own(
        &self,
        request: &Request,
        attempt: &Attempt,
        (trace, bill, peer): (&Trace, Option<Bill>, &[u8]),
        outcome: &Outcome,
        now: Now,
        out: &mut Vec<u8>,
    ) {
        let (operation, model) = (request.operation(), request.model().map(|model| &*model.id));
        let method = match request.meta.method {
            Method::Get => "GET",
            Method::Head => "HEAD",
            Method::Post => "POST",
            Method::Options => "OPTIONS",
            Method::Other => "_OTHER",
        };
        let route = request.found.endpoint.map_or("", Endpoint::route);
        // A request whose head could not be read has no method either.
        let plain = [if method == "_OTHER" { "HTTP" } else { method }, route];
        let named = if operation.is_empty() { plain } else { [operation, model.unwrap_or_default()] };
        let parent = trace.parent.map(|parent| (parent, KNOWN | ELSEWHERE));
        open(trace, 0, parent.unwrap_or(([0; 8], KNOWN)), SERVER, named, out);
        times(request.received, now.mono, now, out);
        attributes(out);
        text(out, "tollgate.request.id", request.id.as_str());
        text(out, "http.request.method", method);
        text(out, "url.scheme", if request.setup.config.server.tls.is_some() { "https" } else { "http" });
        match self.0.as_ref().map(|diagnosis| &*diagnosis.path) {
            Some(path) if !path.is_empty() => text(out, "url.path", ascii(path)),
            _ if route.ends_with('}') => text(out, "http.route", route),
            _ => text(out, "url.path", route),
        }
        text(out, "client.address", ascii(peer));
        number(out, "http.response.status_code", outcome.status.into());
        text(out, "gen_ai.operation.name", operation);
        let asked = || self.0.as_ref().map_or("", |diagnosis| ascii(&diagnosis.asked));
        text(out, "gen_ai.request.model", model.unwrap_or_else(asked));
        if outcome.status == 200 {
            text(out, "gen_ai.response.model", model.unwrap_or_default());
        }
        write_reasons(&trace.finish, out);
        if let Some(Bill { usage, cost_nano }) = bill {
            write_usage(&usage, out);
            if is_priced(request, &usage) {
                decimal(out, "gen_ai.usage.cost", cost_nano, 1_000_000_000);
            }
        }
        let error = match outcome.error {
            None if outcome.status == CLIENT_LEFT => "client_left",
            error => error.map_or("", |kind| kind.as_str()),
        };
        text(out, "error.type", error);
        out.push(b']');
        if attempt.has_content {
            let first = attempt.begun;
            out.extend_from_slice(b",\"events\":[{\"timeUnixNano\":\"");
            push_number(out, nanos(first, now));
            out.extend_from_slice(b"\",\"name\":\"");
            out.extend_from_slice(FIRST.as_bytes());
            out.push(b'"');
            attributes(out);
            seconds(out, FIRST, first.micros_since(request.received));
            out.extend_from_slice(b"]}]");
        }
        close(outcome.status >= 500, out);
    }
}

impl Request {
    /// Name of the operation in the conventions; empty for a request that is not about a model.
    fn operation(&self) -> &'static str {
        match self.endpoint().map(|endpoint| endpoint.operation) {
            Some(Operation::Passthrough(Passthrough::Completions)) => "text_completion",
            Some(Operation::Passthrough(passthrough)) => passthrough.as_str(),
            Some(Operation::Generate) => "chat",
            Some(Operation::CountTokens) | None => "",
        }
    }
}

fn write_attempt(
    request: &Request,
    attempt: &Attempt,
    trace: &Trace,
    tried: &Tried,
    outcome: &Outcome,
    now: Now,
    out: &mut Vec<u8>,
) {
    let Some(target) = request.targets().get(tried.target as usize) else { return };
    let Some(provider) = request.setup.config.providers.get(target.provider) else { return };
    let (operation, last) = (request.operation(), Some(attempt).filter(|at| at.attempts == tried.number));
    open(trace, tried.number, (trace.span(0), KNOWN), CLIENT, [operation, &target.model], out);
    // An attempt that has not failed has delivered its response, or was aborted.
    let answered = last.is_some_and(|at| at.first != Mono::NEVER);
    let (until, status, error) = match &tried.failed {
        Some((at, end, status)) => (*at, *status, end.to_string()),
        None if outcome.status == 200 => (now.mono, Some(200), String::new()),
        None => (now.mono, answered.then_some(200), "abandoned".to_string()),
    };
    times(tried.begun, until, now, out);
    attributes(out);
    text(out, "gen_ai.operation.name", operation);
    text(out, "gen_ai.provider.name", &provider.telemetry);
    text(out, "gen_ai.request.model", &target.model);
    text(out, "server.address", &provider.host);
    number(out, "server.port", provider.port.into());
    text(out, "http.request.method", "POST");
    if tried.number > 1 {
        number(out, "http.request.resend_count", u64::from(tried.number) - 1);
    }
    if let Some(status) = status {
        number(out, "http.response.status_code", status.into());
    }
    text(out, "error.type", &error);
    if let Some(at) = last.filter(|at| at.has_content) {
        seconds(out, "gen_ai.response.time_to_first_chunk", at.begun.micros_since(tried.begun));
    }
    out.push(b']');
    close(!error.is_empty(), out);
}

fn write_usage(usage: &Usage, out: &mut Vec<u8>) {
    number(out, "gen_ai.usage.input_tokens", usage.uncached_in + usage.cache_read + usage.cache_write);
    number(out, "gen_ai.usage.output_tokens", usage.out);
    for (name, count) in [
        ("gen_ai.usage.cache_read.input_tokens", usage.cache_read),
        ("gen_ai.usage.cache_creation.input_tokens", usage.cache_write),
    ] {
        if count > 0 {
            number(out, name, count);
        }
    }
}

/// Text that is ASCII already.
pub(super) fn ascii(text: &[u8]) -> &str {
    std::str::from_utf8(text).unwrap_or_default()
}

/// A moment in nanoseconds since 1970. Both clocks were read at the same time; the wall clock has milliseconds.
pub(super) fn nanos(at: Mono, now: Now) -> u64 {
    (now.unix.0 * 1000).saturating_sub(now.mono.micros_since(at)) * 1000
}

/// Begins a span. `parent`: its parent, all zeros for none, and its flags except those of the trace.
pub(super) fn open(trace: &Trace, span: u8, parent: ([u8; 8], u64), kind: u8, named: [&str; 2], out: &mut Vec<u8>) {
    out.push(b'{');
    for (name, value) in [("traceId", &trace.id[..]), ("spanId", &trace.span(span)), ("parentSpanId", &parent.0)] {
        if *value != [0; 8] {
            key(out, name);
            out.push(b'"');
            hex_into(value, out);
            out.push(b'"');
        }
    }
    if !trace.state.is_empty() {
        member_string(out, "traceState", ascii(&trace.state));
    }
    member_count(out, "flags", parent.1 | u64::from(trace.flags));
    member_count(out, "kind", kind.into());
    key(out, "name");
    let [first, second] = named;
    let gap = if second.is_empty() { "" } else { " " };
    write_string(out, &[first, gap, second].concat());
}

pub(super) fn times(from: Mono, to: Mono, now: Now, out: &mut Vec<u8>) {
    for (name, at) in [("startTimeUnixNano", from), ("endTimeUnixNano", to)] {
        key(out, name);
        out.push(b'"');
        push_number(out, nanos(at, now));
        out.push(b'"');
    }
}

pub(super) fn attributes(out: &mut Vec<u8>) {
    key(out, "attributes");
    out.push(b'[');
}

/// Appends an attribute up to its value; `kind` is the type of the value.
fn attribute(out: &mut Vec<u8>, name: &str, kind: &str) {
    item(out);
    for part in ["{\"key\":\"", name, "\",\"value\":{\"", kind, "\":"] {
        out.extend_from_slice(part.as_bytes());
    }
}

/// Appends a text attribute, unless it is empty.
#[inline(never)] // compiled once: it is called from everywhere here
pub(super) fn text(out: &mut Vec<u8>, name: &str, value: &str) {
    if !value.is_empty() {
        attribute(out, name, "stringValue");
        write_string(out, value);
        out.extend_from_slice(b"}}");
    }
}

#[inline(never)]
pub(super) fn number(out: &mut Vec<u8>, name: &str, value: u64) {
    attribute(out, name, "intValue");
    // 64 bits are a string in the JSON of protocol buffers.
    out.push(b'"');
    push_number(out, value);
    out.extend_from_slice(b"\"}}");
}

pub(super) fn write_reasons(reasons: &[&str], out: &mut Vec<u8>) {
    if reasons.is_empty() {
        return;
    }
    attribute(out, "gen_ai.response.finish_reasons", "arrayValue");
    out.extend_from_slice(b"{\"values\":[");
    for reason in reasons {
        item(out);
        for part in ["{\"stringValue\":\"", reason, "\"}"] {
            out.extend_from_slice(part.as_bytes());
        }
    }
    out.extend_from_slice(b"]}}}");
}

pub(super) fn seconds(out: &mut Vec<u8>, name: &str, micros: u64) {
    decimal(out, name, micros, 1_000_000);
}

/// Appends an attribute that is `value` divided by `unit`.
pub(super) fn decimal(out: &mut Vec<u8>, name: &str, value: u64, unit: u64) {
    attribute(out, name, "doubleValue");
    push_decimal(out, value, unit);
    out.extend_from_slice(b"}}");
}

/// Ends a span, and its line.
pub(super) fn close(failed: bool, out: &mut Vec<u8>) {
    out.extend_from_slice(if failed { b",\"status\":{\"code\":2}}\n" } else { b"}\n" });
}

#[cfg(test)]
mod tests {

    #[test]
    fn providers_have_the_names_of_the_conventions() {
        use crate::policy::config::{Config, Source};
        for (host, name) in [
            ("api.openai.com", "openai"),
            ("me.openai.azure.com", "azure.ai.openai"),
            ("api.anthropic.com", "anthropic"),
            ("api.x.ai", "x_ai"),
            ("api.notopenai.com", "mine"),
            ("127.0.0.1", "mine"),
        ] {
            let text = format!(
                "[[providers]]\nname = \"mine\"\nshape = \"chat\"\nbase_url = \"https://{host}/v1\"\n[[models]]\n\
                 id = \"m\"\ncontext = \"1K\"\ntargets = [{{ provider = \"mine\" }}]"
            );
            let read = |_: &str| Err(std::io::ErrorKind::NotFound.into());
            let source = Source { file: "t", text: &text, env: &|_| None, read: &read, run: &Source::no_program };
            assert_eq!(&*Config::parse(&source).unwrap().providers[0].telemetry, name);
        }
    }
}
