//! Trace contexts in headers (W3C Trace Context, level 1): parsed strictly, written in version 00. Must never repair
//! one: a malformed context counts as absent, even if part of it is readable.

use super::head::values;
use crate::base::digest::{hex_into, unhex};

/// Bytes of a `traceparent` of version 00, and of the beginning of later versions.
const LENGTH: usize = 55;
/// Bytes of all `tracestate` headers together. A longer state is dropped completely.
pub const STATE_MAX: usize = 512;
/// Members of a `tracestate`, bytes of a member's key, and bytes of its value.
const STATE_MEMBERS_MAX: usize = 32;
const STATE_PART_MAX: usize = 256;
/// Flag that the caller records its trace.
pub const SAMPLED: u8 = 1;

/// Caller that a `traceparent` identifies.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct TraceParent {
    /// Trace ID, never all zeros.
    pub trace: [u8; 16],
    /// ID of the caller's span in it, never all zeros.
    pub span: [u8; 8],
    /// Flags as received.
    pub flags: u8,
}

/// Returns the caller in a head. `None` if there is none, if it is malformed, or if there are several.
pub fn caller(head: &[u8]) -> Option<TraceParent> {
    let mut found = values(head, "traceparent");
    match (found.next(), found.next()) {
        (Some(value), None) => parse(value),
        _ => None,
    }
}

fn parse(value: &[u8]) -> Option<TraceParent> {
    let text = std::str::from_utf8(value.get(..LENGTH)?).ok()?;
    let fits = |(at, byte)| match at {
        2 | 35 | 52 => byte == b'-',
        _ => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
    };
    if !text.bytes().enumerate().all(fits) {
        return None;
    }
    let ([version], [flags]) = (unhex(&text[..2])?, unhex(&text[53..])?);
    let (trace, span) = (unhex(&text[3..35])?, unhex(&text[36..52])?);
    // Later versions may continue after a dash; 255 is invalid.
    let ends = value.len() == LENGTH || (version > 0 && value[LENGTH] == b'-');
    let is_one = ends && version < u8::MAX && trace != [0; 16] && span != [0; 8];
    is_one.then_some(TraceParent { trace, span, flags })
}

/// Returns the `tracestate` of a head, with several headers joined in their order. Empty if it is absent, malformed or
/// longer than [`STATE_MAX`] bytes.
pub fn state(head: &[u8]) -> Box<[u8]> {
    let mut all = Vec::new();
    for value in values(head, "tracestate").filter(|value| !value.is_empty()) {
        if !all.is_empty() {
            all.push(b',');
        }
        all.extend_from_slice(value);
        if all.len() > STATE_MAX {
            return Box::default();
        }
    }
    if is_list(&all) { all.into() } else { Box::default() }
}

/// True if `all` is a valid list of members with each key at most once. Members may be empty.
fn is_list(all: &[u8]) -> bool {
    let mut keys: Vec<&[u8]> = Vec::new();
    for member in all.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).filter(|member| !member.is_empty()) {
        let Some(end) = member.iter().position(|byte| *byte == b'=') else { return false };
        let (key, value) = (&member[..end], &member[end + 1..]);
        let begins = key.first().is_some_and(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9'));
        let in_key = |byte: &u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'*' | b'/' | b'@');
        let in_value = |byte: &u8| matches!(byte, b' '..=b'~') && *byte != b'=';
        let is_one = begins
            && key.len().max(value.len()) <= STATE_PART_MAX
            && key.iter().all(in_key)
            && key.iter().filter(|byte| **byte == b'@').count() <= 1
            && !value.is_empty()
            && value.iter().all(in_value);
        if !is_one || keys.contains(&key) || keys.len() == STATE_MEMBERS_MAX {
            return false;
        }
        keys.push(key);
    }
    !keys.is_empty()
}

/// Appends the headers of a request that `span` sends, each followed by its line break.
pub fn write(trace: &[u8; 16], span: &[u8; 8], flags: u8, state: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b"traceparent: 00-");
    hex_into(trace, out);
    out.push(b'-');
    hex_into(span, out);
    out.push(b'-');
    hex_into(&[flags], out);
    if !state.is_empty() {
        out.extend_from_slice(b"\r\ntracestate: ");
        out.extend_from_slice(state);
    }
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    const SPAN: &str = "b7ad6b7169203331";

    fn head(lines: &str) -> String {
        format!("POST / HTTP/1.1\r\nhost: g\r\n{lines}\r\n")
    }

    fn named(value: &str) -> Option<TraceParent> {
        caller(head(&format!("TraceParent: {value}\r\n")).as_bytes())
    }

    #[test]
    fn valid_contexts_are_read_and_written_unchanged() {
        let text = format!("00-{TRACE}-{SPAN}-01");
        let found = named(&text).unwrap();
        assert_eq!((found.trace[0], found.span[7], found.flags), (0x0a, 0x31, 1));
        let mut out = Vec::new();
        write(&found.trace, &found.span, found.flags, b"a=1,b=2", &mut out);
        assert_eq!(String::from_utf8(out).unwrap(), format!("traceparent: {text}\r\ntracestate: a=1,b=2\r\n"));
        assert_eq!(named(&format!("00-{TRACE}-{SPAN}-00")).unwrap().flags, 0);
        for later in ["01", "cc", "fe"] {
            assert!(named(&format!("{later}-{TRACE}-{SPAN}-01")).is_some());
            assert!(named(&format!("{later}-{TRACE}-{SPAN}-01-what-the-future-brings")).is_some());
        }
    }

    #[test]
    fn invalid_contexts_are_ignored() {
        let (no_trace, no_span) = ("0".repeat(32), "0".repeat(16));
        for wrong in [
            String::new(),
            format!("00-{TRACE}-{SPAN}"),
            format!("00-{TRACE}-{SPAN}-0"),
            format!("00-{TRACE}-{SPAN}-01-more"),
            format!("00-{TRACE}-{SPAN}-01-"),
            format!("01-{TRACE}-{SPAN}-01more"),
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("ff-{TRACE}-{SPAN}-01-more"),
            format!("0-{TRACE}-{SPAN}-01"),
            format!("00-{no_trace}-{SPAN}-01"),
            format!("00-{TRACE}-{no_span}-01"),
            format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            format!("00-{TRACE}-{}-01", SPAN.to_uppercase()),
            format!("00-{TRACE}-{SPAN}-0A"),
            format!("00_{TRACE}_{SPAN}_01"),
            format!("00-{TRACE}-{SPAN}-01, 00-{TRACE}-{SPAN}-01"),
            format!("00-{TRACE}-{SPAN}-.1"),
        ] {
            assert_eq!(named(&wrong), None, "{wrong}");
        }
        let twice = head(&format!("traceparent: 00-{TRACE}-{SPAN}-01\r\n").repeat(2));
        assert_eq!(caller(twice.as_bytes()), None);
        assert_eq!(caller(head("").as_bytes()), None);
    }

    #[test]
    fn state_is_bounded_and_keeps_the_order_of_headers() {
        let state = |lines: &str| String::from_utf8(state(head(lines).as_bytes()).into_vec()).unwrap();
        assert_eq!(state("tracestate: a=1, b=2\r\nhost2: x\r\nTraceState: c=3\r\ntracestate:\r\n"), "a=1, b=2,c=3");
        let long = |length: usize| "x".repeat(length);
        let of = |length| format!("a={},b={},c={}", long(100), long(200), long(length - 308));
        assert_eq!(state(&format!("tracestate: {}\r\n", of(STATE_MAX))).len(), STATE_MAX);
        let many = |count: usize| {
            let members: Vec<String> = (0..count).map(|number| format!("k{number}=v")).collect();
            members.join(",")
        };
        assert!(!state(&format!("tracestate: {}\r\n", many(STATE_MEMBERS_MAX))).is_empty());
        assert_eq!(state("tracestate: ,t61@ro-1/*_=a b~, ,\r\n"), ",t61@ro-1/*_=a b~, ,");
        let long = format!("{}=1", long(STATE_PART_MAX + 1));
        let (wide, all) = (of(STATE_MAX + 1), many(STATE_MEMBERS_MAX + 1));
        let wrong = ["\u{e9}=1", "noequals", "=b", ",", "a=", "a =1", "A=1", "a=1,a=2", "-a=1", "a@b@c=1", "a=b=c"];
        for dropped in wrong.iter().copied().chain([&*long, &*wide, &*all, "words of a text"]) {
            assert_eq!(state(&format!("tracestate: {dropped}\r\n")), "", "{dropped}");
        }
    }
}
