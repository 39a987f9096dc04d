//! Ids and names of tools, for which the shapes have different rules.
//!
//! Owns the hashing. Must never keep state: an id is mapped to the same id everywhere, so that a call and its result
//! stay a pair. Ids and names are the insides of JSON strings, escapes and all.

use super::carrier::Mark;
use crate::base::digest::{hex_into, sha256};
use crate::wire::json::{unescape, write_escaped};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Longest id a chat upstream is known to take.
const CHAT_ID_MAX: usize = 40;
/// Longest id that a responses upstream takes.
const RESPONSES_ID_MAX: usize = 64;
/// Longest tool name in the chat shape.
const CHAT_NAME_MAX: usize = 64;
/// Characters kept of a longer one, before `_` and eight digits of its hash.
const CHAT_NAME_KEPT: usize = 55;
/// Bytes of storage for names to be restored in one answer; a chat upstream takes 128 tools.
const NAMES_MAX: usize = 256 * 1024;
/// Bytes of storage that a name takes beside itself and what stands for it.
const NAME_MORE: usize = 128;
/// The tool that stands for a demand for JSON; see [`super::capabilities::Structured::Tool`].
pub(super) const JSON_TOOL: &str = "json_response";

fn hashed(bytes: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b"call_");
    hex_into(&sha256(bytes)[..12], out);
}

fn is_plain(id: &[u8]) -> bool {
    !id.is_empty() && id.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
}

/// Appends a tool call's id as the messages shape takes it: `^[a-zA-Z0-9_-]+$`, else a hash of it.
pub(super) fn messages_id(id: &[u8], out: &mut Vec<u8>) {
    if is_plain(id) {
        out.extend_from_slice(id);
    } else {
        let mut text = Vec::new();
        unescape(id, &mut text);
        hashed(&text, out);
    }
}

/// Appends a tool call's id as the chat shape takes it: at most 40 characters, else a hash of it.
pub(super) fn chat_id(id: &[u8], out: &mut Vec<u8>) {
    if is_plain(id) && id.len() <= CHAT_ID_MAX {
        out.extend_from_slice(id);
        return;
    }
    let mut text = Vec::new();
    unescape(id, &mut text);
    if String::from_utf8_lossy(&text).chars().count() <= CHAT_ID_MAX {
        out.extend_from_slice(id);
    } else {
        hashed(&text, out);
    }
}

/// Appends a tool call's id as the responses shape takes it: at most 64 characters, else a hash of it.
pub(super) fn responses_id(id: &[u8], out: &mut Vec<u8>) {
    let mut text = Vec::new();
    unescape(id, &mut text);
    if String::from_utf8_lossy(&text).chars().count() <= RESPONSES_ID_MAX {
        out.extend_from_slice(id);
    } else {
        hashed(&text, out);
    }
}

/// The one name of a tool that has a namespace and a name: both, or a beginning of them and a hash where that is too
/// long, has characters that providers refuse, or is another tool's.
pub(super) fn tool_name<'a>(
    namespace: &[u8],
    name: &'a [u8],
    most: usize,
    taken: impl Fn(&[u8]) -> bool,
) -> Cow<'a, [u8]> {
    let flat: Cow<'a, [u8]> = match namespace {
        b"" => Cow::Borrowed(name),
        namespace => Cow::Owned([namespace, b"__", name].concat()),
    };
    if is_plain(&flat) && flat.len() <= most && !taken(&flat) {
        return flat;
    }
    let plain = flat.iter().copied().map(|byte| if is_plain(&[byte]) { byte } else { b'_' });
    let mut changed: Vec<u8> = plain.take(most - 9).collect();
    changed.push(b'_');
    hex_into(&sha256(&[namespace, b"\0", name].concat())[..4], &mut changed);
    Cow::Owned(changed)
}

/// Appends an id for a call that came without one: unique to the request and the call.
pub(super) fn made_id(request: &[u8], index: usize, out: &mut Vec<u8>) {
    hashed(&[request, format!(":{index}").as_bytes()].concat(), out);
}

/// The name a chat upstream is given in the place of a longer one; `None` if it takes the name as it is.
pub(super) fn short_name(name: &[u8]) -> Option<Vec<u8>> {
    if name.len() <= CHAT_NAME_MAX {
        return None;
    }
    let mut text = Vec::new();
    unescape(name, &mut text);
    let text = String::from_utf8_lossy(&text).into_owned();
    if text.chars().count() <= CHAT_NAME_MAX {
        return None;
    }
    let kept: String = text.chars().take(CHAT_NAME_KEPT).collect();
    let mut short = Vec::with_capacity(CHAT_NAME_MAX);
    write_escaped(&mut short, kept.as_bytes());
    short.push(b'_');
    hex_into(&sha256(text.as_bytes())[..4], &mut short);
    Some(short)
}

/// Kind of call of a tool in the responses shape.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub(super) enum ToolKind {
    /// Called with JSON.
    #[default]
    Function,
    /// Called with free text.
    Custom,
    /// The client's own search for tools.
    Search,
}

/// The client's view of a tool that an upstream has called.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Called {
    /// Name of the tool.
    pub(super) name: Vec<u8>,
    /// The namespace that the name belongs to.
    pub(super) namespace: Option<Vec<u8>>,
    /// Kind of call.
    pub(super) kind: ToolKind,
}

/// Parts of a responses client's request that its response repeats.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Echo {
    /// The members between `incomplete_details` and `model`.
    pub(super) before: Vec<u8>,
    /// The members between `output` and `usage`.
    pub(super) after: Vec<u8>,
    /// A summary of the reasoning is to be told.
    pub(super) summary: bool,
}

/// State of a request that the answer's translation needs. The request's bytes may be gone by then.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TranslationState {
    /// Tools whose names were changed, or that are not called with JSON, by the upstream's name.
    pub(super) names: BTreeMap<Vec<u8>, Called>,
    /// Bytes of storage for them.
    pub(super) size: usize,
    /// The answer is the input of [`JSON_TOOL`]: it becomes text.
    pub(super) json_tool: bool,
    /// Mark of the target's reasoning.
    pub(super) mark: Mark,
    /// The request of a responses client.
    pub(super) echo: Option<Box<Echo>>,
}

impl TranslationState {
    /// The name for a chat upstream; a shortened one is noted, to be mapped back.
    pub(super) fn shorten(&mut self, name: &[u8], out: &mut Vec<u8>) {
        match short_name(name) {
            None => out.extend_from_slice(name),
            Some(short) => {
                out.extend_from_slice(&short);
                self.note(short, Called { name: name.to_vec(), ..Called::default() });
            }
        }
    }

    /// Keeps what an upstream's name of a tool stands for.
    pub(super) fn note(&mut self, upstream: Vec<u8>, called: Called) {
        let namespace = called.namespace.as_ref().map_or(0, Vec::len);
        let size = upstream.len() + called.name.len() + namespace + NAME_MORE;
        if self.size <= NAMES_MAX && self.names.insert(upstream, called).is_none() {
            self.size += size;
        }
    }

    /// Bytes of storage for what an answer's translation must know.
    pub fn storage(&self) -> usize {
        self.size + self.echo.as_ref().map_or(0, |echo| size_of::<Echo>() + echo.before.len() + echo.after.len())
    }

    /// True if there are more names to be restored than are kept.
    pub(super) fn is_full(&self) -> bool {
        self.size > NAMES_MAX
    }

    /// The client's own name for a tool the upstream has called.
    pub(super) fn restore<'a>(&'a self, name: &'a [u8]) -> &'a [u8] {
        self.names.get(name).map_or(name, |called| &called.name)
    }

    /// The client's view of a tool that the upstream has called.
    pub(super) fn called(&self, name: &[u8]) -> Called {
        self.names.get(name).cloned().unwrap_or_else(|| Called { name: name.to_vec(), ..Called::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_bad_id_becomes_a_hash_that_is_always_the_same() {
        assert_eq!(done(|out| messages_id(b"toolu_01-A", out)), "toolu_01-A");
        let hash = done(|out| messages_id(b"functions.get_weather:1", out));
        assert_eq!(hash, "call_26c478f3c75f4d314a2acce9");
        assert_eq!(done(|out| messages_id(b"functions.get\\u005fweather:1", out)), hash);
        assert_ne!(done(|out| messages_id(b"a.b", out)), done(|out| messages_id(b"a:b", out)));
        assert_eq!(done(|out| messages_id(b"", out)).len(), 29);
    }

    #[test]
    fn a_long_id_is_hashed_for_chat_and_a_short_one_stays() {
        let long = "toolu_".repeat(7);
        assert_eq!(done(|out| chat_id(long.as_bytes(), out)).len(), 29);
        let exact = "a".repeat(40);
        assert_eq!(done(|out| chat_id(exact.as_bytes(), out)), exact);
        assert_eq!(done(|out| chat_id(b"functions.f:0", out)), "functions.f:0");
    }

    #[test]
    fn no_more_names_are_kept_than_have_room() {
        let mut state = TranslationState::default();
        let name = |number: usize| format!("{number}{}", "n".repeat(100));
        (0..100).for_each(|number| drop(done(|out| state.shorten(name(number).as_bytes(), out))));
        assert!(!state.is_full() && state.storage() > 100 * 190, "{}", state.storage());
        (0..3000).for_each(|number| drop(done(|out| state.shorten(name(number).as_bytes(), out))));
        assert!(state.is_full() && state.storage() <= NAMES_MAX + 1000 && state.names.len() < 900);
    }

    #[test]
    fn a_long_name_is_shortened_to_64_and_found_again() {
        let long = format!("mcp__{}__tool", "server".repeat(12));
        let mut state = TranslationState::default();
        let short = done(|out| state.shorten(long.as_bytes(), out));
        assert_eq!((short.len(), &short[..55]), (64, &long[..55]));
        assert_eq!(state.restore(short.as_bytes()), long.as_bytes());
        let exact = "n".repeat(64);
        assert_eq!(done(|out| state.shorten(exact.as_bytes(), out)), exact);
        assert_eq!(state.restore(b"other"), b"other");
        let twin = format!("{}x", &long[..long.len() - 1]);
        assert_ne!(done(|out| state.shorten(twin.as_bytes(), out)), short);
    }
}
