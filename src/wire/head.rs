//! Request and response heads: httparse for the grammar, and every rule of RFC 9112 that httparse leaves open. Owns no
//! bytes: a head is spans into the caller's buffer. Must never guess: input that two parsers could read differently is
//! refused. Called by `wire::inbound` (requests) and `gateway::provider` (responses).

mod fields;
mod parts;
mod plain;
mod request;
mod response;
mod templates;
#[cfg(test)]
mod tests;

pub use parts::{COUNT, Expect, Framing, HeadError, HeaderField, Method, RequestHead, ResponseHead, is_anthropic};
pub use request::parse_request;
pub use response::parse_response;
pub use templates::HeadTemplates;

use lanes::skip::to_either;

/// Returns the lines after the first of a parsed head. The last byte of each may be a carriage return.
pub fn field_lines(head: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut at = to_either(head, 0, b'\n', b'\n') + 1;
    std::iter::from_fn(move || {
        let line = head.get(at..).filter(|rest| !rest.is_empty())?;
        let end = to_either(line, 0, b'\n', b'\n');
        at += end + 1;
        Some(&line[..end])
    })
}

/// True if `connection` names this header: it is for the next hop only (RFC 9110 section 7.6.1).
#[cold]
pub fn is_hop_by_hop(head: &[u8], name: &[u8]) -> bool {
    let mut options = values(head, "connection").flat_map(|value| value.split(|byte| *byte == b','));
    options.any(|option| option.trim_ascii().eq_ignore_ascii_case(name))
}

/// Returns all values of one header in a parsed head, in order and trimmed, for lists that may be repeated.
pub fn values<'a>(head: &'a [u8], name: &'a str) -> impl Iterator<Item = &'a [u8]> {
    field_lines(head).filter_map(move |line| {
        let colon = line.iter().position(|byte| *byte == b':')?;
        line[..colon].eq_ignore_ascii_case(name.as_bytes()).then(|| line[colon + 1..].trim_ascii())
    })
}

/// The token of an `authorization` header; empty if it has none.
pub fn bearer_token(value: &[u8]) -> &[u8] {
    match value.split_first_chunk::<7>() {
        // The usual spelling first, before the comparison by letters.
        Some((scheme, token)) if scheme == b"Bearer " || scheme.eq_ignore_ascii_case(b"bearer ") => token.trim_ascii(),
        _ => b"",
    }
}
