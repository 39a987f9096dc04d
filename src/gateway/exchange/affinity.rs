//! Whose conversation a request belongs to, so that its turns go to the same target and find the provider's cache again
//! (contract section 11). Looked at only where a model has several targets that stand equally high, or asks for a key.

use super::event::Message;
use super::state::Exchange;
use crate::base::digest::{hex_into, sha256};
use crate::base::hash::mix_bytes;
use crate::dialect::{self, CacheKey};
use crate::gateway::cx::Cx;
use crate::gateway::provider::request::OutgoingRequest;
use crate::policy::catalog::{Affinity, PromptCache};
use crate::wire::Dialect;
use crate::wire::head::field_lines;

/// Headers that name a session, the most telling first.
const HEADERS: [&str; 5] =
    ["x-session-id", "x-claude-code-session-id", "session-id", "session_id", "x-session-affinity"];

impl Exchange {
    /// A number for what the request is to be kept together with; 0 where the model asks for nothing of the kind.
    pub(super) fn kept_with(&self, draft: &OutgoingRequest, message: &Message<'_>, cx: &Cx) -> u64 {
        let Some(model) = self.model().filter(|model| model.shares) else { return 0 };
        match (model.affinity, self.request.found.key, self.dialect()) {
            (Affinity::Off, ..) => 0,
            (Affinity::Key, Some(key), _) => mix_bytes(0, cx.keys.record(key).id.as_str().as_bytes()),
            (_, _, Some(dialect)) => session(dialect, draft, message),
            _ => 0,
        }
    }

    /// What a provider's prompt cache may know the conversation by, where the model's configuration asks for it. Hashed
    /// with what only the holder of the key has: it tells a provider nothing of the session, and is the same on every
    /// host.
    pub(super) fn cache_key(&self, draft: &OutgoingRequest, message: &Message<'_>, cx: &Cx) -> Option<CacheKey> {
        self.model().filter(|model| model.capabilities.cache == PromptCache::Key)?;
        let (key, dialect) = (self.request.found.key?, self.dialect()?);
        let mut text = [0; 40];
        text[..32].copy_from_slice(&cx.keys.record(key).digest);
        text[32..].copy_from_slice(&session(dialect, draft, message).to_be_bytes());
        let mut digits = Vec::with_capacity(32);
        hex_into(&sha256(&text)[..16], &mut digits);
        digits.try_into().ok()
    }
}

/// A number for the conversation: by what the head says, else by the body.
fn session(dialect: Dialect, draft: &OutgoingRequest, message: &Message<'_>) -> u64 {
    let head = &message.head[..(draft.head.len as usize).min(message.head.len())];
    session_in(head).unwrap_or_else(|| dialect::conversation(dialect, message.body, draft.scan.fields()))
}

/// The session that a head names.
fn session_in(head: &[u8]) -> Option<u64> {
    let mut found: Option<(usize, &[u8])> = None;
    for line in field_lines(head) {
        // All of them begin with one of two letters.
        if !matches!(line.first(), Some(b's' | b'S' | b'x' | b'X')) {
            continue;
        }
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        let rank = HEADERS.iter().position(|known| name.eq_ignore_ascii_case(known.as_bytes()));
        if let Some(rank) = rank.filter(|_| !value.is_empty())
            && found.is_none_or(|(best, _)| rank < best)
        {
            found = Some((rank, value));
        }
    }
    found.map(|(_, session)| mix_bytes(2, session))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_telling_header_names_the_session() {
        let of = |lines: &str| session_in(format!("POST / HTTP/1.1\r\n{lines}\r\n").as_bytes());
        assert_eq!(of("host: x\r\nx-request-id: 7\r\n"), None);
        assert_eq!(of("x-session-id: \r\n"), None);
        let a = of("X-Session-Id: a\r\n");
        assert!(a.is_some());
        assert_eq!(of("x-session-affinity: b\r\nsession_id: c\r\nx-session-id: a\r\n"), a);
        assert_eq!(of("Session-Id: a\r\n"), a);
        assert_ne!(of("x-claude-code-session-id: b\r\n"), a);
    }
}
