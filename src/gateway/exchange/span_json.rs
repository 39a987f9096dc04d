//! Writes the parts of a span in OTLP's JSON.

use crate::base::digest::hex_into;
use crate::base::text::{push_decimal, push_number};
use crate::base::time::{Mono, Now};
use crate::gateway::trace::Trace;
use crate::wire::json::{item, key, member_count, member_string, write_string};

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
