//! Reasoning that one turn's answer passes to the next turn's request through a client that keeps it unread: `tg1.` and
//! the base64 of a small JSON object, in `encrypted_content` or `signature`.
//!
//! Owns the encoding. Must never be trusted: a carrier is neither encrypted nor authenticated, contains nothing that
//! the client was not given, and a provider verifies its own signature. Reasoning of another target is dropped.

use crate::base::base64;
use crate::base::digest::{hex_into, sha256};
use crate::wire::json::{self, Raw, ValueKind, unescape};

/// Prefix of our carriers.
const PREFIX: &[u8] = b"tg1.";

/// Target that produced the reasoning: digits of a hash of its names.
pub type TargetMark = [u8; 8];

/// The mark of a provider's model.
pub fn mark(provider: &str, model: &str) -> TargetMark {
    let mut hex = Vec::with_capacity(8);
    hex_into(&sha256(format!("{provider}/{model}").as_bytes())[..4], &mut hex);
    let mut mark = TargetMark::default();
    mark.copy_from_slice(&hex);
    mark
}

/// True if the inside of a string is a carrier, in any spelling of its escapes.
pub(crate) fn is_ours(raw: &[u8]) -> bool {
    // An escape takes six bytes at most.
    let start = &raw[..raw.len().min(6 * PREFIX.len())];
    if !start.contains(&b'\\') {
        return raw.starts_with(PREFIX);
    }
    let mut text = Vec::new();
    unescape(start, &mut text);
    text.starts_with(PREFIX)
}

/// Appends the carrier of one block of reasoning, given as JSON.
pub(crate) fn close(block: &[u8], mark: &TargetMark, out: &mut Vec<u8>) {
    let mut json = Vec::with_capacity(block.len() + 32);
    for part in [b"{\"k\":\"", &mark[..], b"\",\"b\":[", block, b"]}"] {
        json.extend_from_slice(part);
    }
    out.extend_from_slice(PREFIX);
    base64::encode_url(&json, out);
}

/// The blocks in a carrier, as a JSON array. `None` if the text is not a carrier, or is another target's.
pub(crate) fn open(raw: &[u8], mark: &TargetMark) -> Option<Vec<u8>> {
    let json = base64::decode(raw.strip_prefix(PREFIX)?)?;
    json::check(&json).ok()?;
    let held = Raw::new(&json);
    let same = held.get("k").and_then(Raw::string) == Some(mark);
    let blocks = held.get("b").filter(|blocks| same && blocks.kind() == ValueKind::Array)?;
    Some(blocks.bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn carrier_opens_only_for_its_own_target() {
        let own = mark("anthropic", "claude-sonnet-4-6");
        assert_eq!(&own, b"fec21a94");
        let mut carrier = Vec::new();
        close(br#"{"type":"redacted_thinking","data":"RGF0YQ=="}"#, &own, &mut carrier);
        let known = "tg1.eyJrIjoiZmVjMjFhOTQiLCJiIjpbeyJ0eXBlIjoicmVkYWN0ZWRfdGhpbmtpbmciLCJkYXRhIjoiUkdGMFlRPT0ifV19";
        assert_eq!(String::from_utf8_lossy(&carrier), known);
        assert_eq!(open(&carrier, &own).as_deref(), Some(&br#"[{"type":"redacted_thinking","data":"RGF0YQ=="}]"#[..]));
        assert_eq!(open(&carrier, &mark("openai", "gpt-4o-mini")), None);
        for foreign in ["", "tg1.", "tg1.e30", "tg1.!", "gAAAAABx", "tg1.W10"] {
            assert_eq!(open(foreign.as_bytes(), &own), None, "{foreign}");
        }
        let ours = ["tg1.", "tg1\\u002eabc", "\\u0074\\u0067\\u0031\\u002e"];
        assert!(ours.into_iter().all(|raw| is_ours(raw.as_bytes())));
        assert!(!["", "tg1", "tg1\\u002fabc", "g\\"].into_iter().any(|raw| is_ours(raw.as_bytes())));
    }
}
