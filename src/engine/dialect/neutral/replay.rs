//! Writes a complete answer as the events of a stream: some providers answer a stream request with one JSON answer.
//!
//! Owns what the formats' `replay` files share; each owns the order of its events. Must never interpret members beyond
//! that order: the reader of the stream does. Called by `stream`.

use crate::wire::json::{Raw, key};

pub(crate) fn member(object: Raw<'_>, name: &str, out: &mut Vec<u8>) {
    key(out, name);
    out.extend_from_slice(object.get(name).unwrap_or(Raw::NULL).bytes());
}

pub(crate) fn string<'a>(object: Raw<'a>, name: &str) -> Option<&'a [u8]> {
    object.get(name).and_then(Raw::string).filter(|text| !text.is_empty())
}

/// The reason why an answer ended, if it names one.
pub(crate) fn word<'a>(object: Raw<'a>, name: &str) -> Option<Raw<'a>> {
    object.get(name).filter(|word| word.string().is_some_and(|word| !word.is_empty() && word != b"null"))
}

/// Begins an event of the formats whose events have names.
pub(crate) fn begin(name: &str, out: &mut Vec<u8>) {
    for part in ["event: ", name, "\ndata: {\"type\":\"", name, "\""] {
        out.extend_from_slice(part.as_bytes());
    }
}

pub(crate) fn end(out: &mut Vec<u8>) {
    out.extend_from_slice(b"}\n\n");
}
