//! Ids and names of tools. The formats have different rules for them.
//!
//! Owns the hashing. Must never keep state: an id maps to the same id in every request of a conversation, so that a
//! call and its result stay a pair. Ids and names are the insides of JSON strings, with their escapes.

use super::carrier::TargetMark;
use crate::base::digest::{hex_into, sha256};
use crate::wire::json::{Raw, unescape, write_escaped};
use std::borrow::Cow;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Longest id that chat upstreams are known to accept.
const CHAT_ID_MAX: usize = 40;
/// Longest id that a responses upstream accepts.
const RESPONSES_ID_MAX: usize = 64;
/// Bytes of storage for names to be restored in one answer. A chat upstream accepts 128 tools.
const NAMES_MAX: usize = 256 * 1024;
/// Bytes of storage per entry, in addition to the name and its replacement.
const NAME_MORE: usize = 128;
/// The tool that a model must call to return required JSON; see [`crate::dialect::capabilities::Structured::Tool`].
pub(crate) const JSON_TOOL: &str = "json_response";

fn hashed(bytes: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b"call_");
    hex_into(&sha256(bytes)[..12], out);
}

fn is_plain(id: &[u8]) -> bool {
    !id.is_empty() && id.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
}

/// Appends a tool call's id in a form that the messages format accepts: unchanged if it matches `^[a-zA-Z0-9_-]+$` and
/// is unique, otherwise a hash. `again`: number of earlier calls with this id.
pub(crate) fn messages_id(id: &[u8], again: u32, out: &mut Vec<u8>) {
    if again == 0 && is_plain(id) {
        out.extend_from_slice(id);
        return;
    }
    let mut text = Vec::new();
    unescape(id, &mut text);
    if again > 0 {
        text.push(0);
        text.extend_from_slice(&again.to_be_bytes());
    }
    hashed(&text, out);
}

/// Hash of an id or a name, to compare it with others.
pub(crate) fn hash(id: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    hasher.finish()
}

/// Appends a tool call's id in a form that the chat format accepts: a hash if it exceeds 40 characters. `length`: exact
/// number of letters and digits that the vendor requires; 0 for any id.
pub(crate) fn chat_id(id: &[u8], length: usize, out: &mut Vec<u8>) {
    if length > 0 {
        return exact_id(id, length, out);
    }
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

/// Appends an id of `length` letters and digits: `id` itself if it is one, otherwise digits of its hash.
fn exact_id(id: &[u8], length: usize, out: &mut Vec<u8>) {
    if id.len() == length && id.iter().all(u8::is_ascii_alphanumeric) {
        out.extend_from_slice(id);
        return;
    }
    let (mut text, mut digits) = (Vec::new(), Vec::new());
    unescape(id, &mut text);
    hex_into(&sha256(&text), &mut digits);
    out.extend_from_slice(&digits[..length.min(digits.len())]);
}

/// Appends a tool call's id in a form that the responses format accepts: a hash if it exceeds 64 characters.
pub(crate) fn responses_id(id: &[u8], out: &mut Vec<u8>) {
    let mut text = Vec::new();
    unescape(id, &mut text);
    if String::from_utf8_lossy(&text).chars().count() <= RESPONSES_ID_MAX {
        out.extend_from_slice(id);
    } else {
        hashed(&text, out);
    }
}

/// One name for a tool with a namespace and a name: both joined. If that is too long, has characters that providers
/// refuse, or is another tool's, a prefix and eight digits of the hash.
pub(crate) fn tool_name<'a>(
    namespace: &[u8],
    name: &'a [u8],
    most: usize,
    taken: impl Fn(&[u8]) -> bool,
) -> Cow<'a, [u8]> {
    let flat: Cow<'a, [u8]> = match namespace {
        b"" => Cow::Borrowed(name),
        namespace => Cow::Owned([namespace, b"__", name].concat()),
    };
    if takes_name(&flat, most) && !taken(&flat) {
        return flat;
    }
    let plain = flat.iter().copied().map(|byte| if is_plain(&[byte]) { byte } else { b'_' });
    let mut changed: Vec<u8> = plain.take(most - 9).collect();
    changed.push(b'_');
    let kept = changed.len();
    let mut hashed = if namespace.is_empty() { name.to_vec() } else { [namespace, b"\0", name].concat() };
    loop {
        hex_into(&sha256(&hashed)[..4], &mut changed);
        if !taken(&changed) {
            return Cow::Owned(changed);
        }
        changed.truncate(kept);
        hashed.push(0);
    }
}

/// Appends an id for a call without one, unique to the request and the call.
pub(crate) fn made_id(request: &[u8], index: usize, out: &mut Vec<u8>) {
    hashed(&[request, format!(":{index}").as_bytes()].concat(), out);
}

/// True for an id in the form of [`made_id`].
pub(crate) fn is_made(id: &[u8]) -> bool {
    let digits = id.strip_prefix(b"call_").unwrap_or_default();
    digits.len() == 24 && digits.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// True if a target accepts a tool with this name: `^[a-zA-Z0-9_-]+$`, at most `most` characters.
pub(crate) fn takes_name(name: &[u8], most: usize) -> bool {
    is_plain(name) && name.len() <= most
}

/// The inside of a string, re-encoded with only the necessary escapes.
pub(crate) fn plain_name(name: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(name.len());
    write_escaped(&mut plain, Raw::text_of(name).as_bytes());
    plain
}

/// A name as [`plain_name`] writes it, copied only if it has escapes.
pub(crate) fn respelt(name: Cow<'_, [u8]>) -> Cow<'_, [u8]> {
    if name.contains(&b'\\') { Cow::Owned(plain_name(&name)) } else { name }
}

/// Kind of call of a tool in the responses format.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub(crate) enum ToolKind {
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
pub(crate) struct Called {
    /// Name of the tool.
    pub(crate) name: Vec<u8>,
    /// The namespace that the name belongs to.
    pub(crate) namespace: Option<Vec<u8>>,
    /// Kind of call.
    pub(crate) kind: ToolKind,
}

/// Parts of a responses client's request that its response repeats.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Echo {
    /// The members between `incomplete_details` and `model`.
    pub(crate) before: Vec<u8>,
    /// The members between `output` and `usage`.
    pub(crate) after: Vec<u8>,
    /// The client asked for a summary of the reasoning.
    pub(crate) summary: bool,
}

/// State of a request that the translation of its answer needs. The request's bytes may be freed by then.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TranslationState {
    /// Tools whose names were changed, or that are not called with JSON, in the order of the upstream's names.
    pub(crate) names: Vec<(Vec<u8>, Called)>,
    /// Bytes of storage for them.
    pub(crate) size: usize,
    /// The answer is the input of [`JSON_TOOL`]: it becomes text.
    pub(crate) json_tool: bool,
    /// Hashes of the ids of calls in the conversation, for a client that accepts each id only once.
    pub(crate) ids: Vec<u64>,
    /// Mark of the target's reasoning.
    pub(crate) mark: TargetMark,
    /// Members of the request that were read but not written, or not completely.
    pub dropped: Vec<&'static str>,
    /// The request of a responses client.
    pub(crate) echo: Option<Box<Echo>>,
}

impl TranslationState {
    /// Stores the client's view of a tool under the upstream's name.
    pub(crate) fn note(&mut self, upstream: Vec<u8>, called: Called) {
        let namespace = called.namespace.as_ref().map_or(0, Vec::len);
        let size = upstream.len() + called.name.len() + namespace + NAME_MORE;
        match self.find_upstream(&upstream) {
            _ if self.is_full() => {}
            Ok(at) => self.names[at].1 = called,
            Err(at) => {
                self.names.insert(at, (upstream, called));
                self.size += size;
            }
        }
    }

    /// Index of a name in `names`, or the index where it belongs.
    fn find_upstream(&self, upstream: &[u8]) -> Result<usize, usize> {
        self.names.binary_search_by(|(name, _)| (**name).cmp(upstream))
    }

    /// Bytes of storage that the state holds.
    pub fn storage(&self) -> usize {
        self.size
            + self.ids.capacity() * size_of::<u64>()
            + self.echo.as_ref().map_or(0, |echo| size_of::<Echo>() + echo.before.len() + echo.after.len())
    }

    /// True if more names would have to be restored than the bound allows.
    pub(crate) fn is_full(&self) -> bool {
        self.size > NAMES_MAX
    }

    /// Appends the id of the call `slot` for a messages client: the upstream's, unless an earlier call in the
    /// conversation or in this answer has the same. `given`: hashes of the ids in this answer.
    pub(crate) fn fresh_id(&self, id: &[u8], slot: usize, request: &[u8], given: &mut Vec<u64>, out: &mut Vec<u8>) {
        let from = out.len();
        messages_id(id, 0, out);
        let known = hash(&out[from..]);
        if id.is_empty() || self.ids.contains(&known) || given.contains(&known) {
            out.truncate(from);
            made_id(request, slot, out);
        }
        given.push(hash(&out[from..]));
    }

    fn known(&self, name: &[u8]) -> Option<&Called> {
        let found = self.find_upstream(name);
        // Some servers write the name with unnecessary escapes.
        let found = if found.is_err() && name.contains(&b'\\') { self.find_upstream(&plain_name(name)) } else { found };
        found.ok().map(|at| &self.names[at].1)
    }

    /// The client's own name for a tool that the upstream has called.
    pub(crate) fn restore<'a>(&'a self, name: &'a [u8]) -> &'a [u8] {
        self.known(name).map_or(name, |called| &called.name)
    }

    /// True if the client's tool takes free text.
    pub(crate) fn is_free(&self, name: &[u8]) -> bool {
        self.known(name).is_some_and(|called| called.kind == ToolKind::Custom)
    }

    /// The client's view of a tool that the upstream has called.
    pub(crate) fn called(&self, name: &[u8]) -> Called {
        self.known(name).cloned().unwrap_or_else(|| Called { name: name.to_vec(), ..Called::default() })
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
    fn invalid_id_always_becomes_the_same_hash() {
        assert_eq!(done(|out| messages_id(b"toolu_01-A", 0, out)), "toolu_01-A");
        let hash = done(|out| messages_id(b"functions.get_weather:1", 0, out));
        assert_eq!(hash, "call_26c478f3c75f4d314a2acce9");
        assert_eq!(done(|out| messages_id(b"functions.get\\u005fweather:1", 0, out)), hash);
        assert_ne!(done(|out| messages_id(b"a.b", 0, out)), done(|out| messages_id(b"a:b", 0, out)));
        assert_eq!(done(|out| messages_id(b"", 0, out)).len(), 29);
    }

    #[test]
    fn long_id_is_hashed_for_chat_and_short_id_is_kept() {
        let long = "toolu_".repeat(7);
        assert_eq!(done(|out| chat_id(long.as_bytes(), 0, out)).len(), 29);
        let exact = "a".repeat(40);
        assert_eq!(done(|out| chat_id(exact.as_bytes(), 0, out)), exact);
        assert_eq!(done(|out| chat_id(b"functions.f:0", 0, out)), "functions.f:0");
    }

    #[test]
    fn number_of_kept_names_is_bounded() {
        let mut state = TranslationState::default();
        let name = |number: usize| format!("{number}{}", "n".repeat(100)).into_bytes();
        let note = |state: &mut TranslationState, number| {
            state.note(name(number), Called { name: name(number), ..Called::default() });
        };
        (0..100).for_each(|number| note(&mut state, number));
        assert!(!state.is_full() && state.storage() > 100 * 190, "{}", state.storage());
        (0..3000).for_each(|number| note(&mut state, number));
        assert!(state.is_full() && state.storage() <= NAMES_MAX + 1000 && state.names.len() < 900);
    }

    #[test]
    fn long_name_is_shortened_and_stays_unique() {
        let long = format!("mcp__{}__tool", "server".repeat(12)).into_bytes();
        let short =
            |name: &[u8], taken: &[&[u8]]| tool_name(b"", name, 64, |other| taken.contains(&other)).into_owned();
        let first = short(&long, &[]);
        assert_eq!((first.len(), &first[..55]), (64, &long[..55]));
        assert_eq!(short(&[b'n'; 64], &[]), [b'n'; 64]);
        let second = short(&long, &[&first]);
        assert!(second != first && takes_name(&second, 64));
        assert_ne!(short(&[&long[..long.len() - 1], b"x"].concat(), &[]), first);
        assert_eq!(short(b"desk.list/tickets", &[]), b"desk_list_tickets_37a15033");
    }

    #[test]
    fn names_are_restored_in_any_spelling() {
        let mut state = TranslationState::default();
        state.note(b"a_b_1".to_vec(), Called { name: b"a.b".to_vec(), ..Called::default() });
        assert_eq!(state.restore(b"a_b_1"), b"a.b");
        assert_eq!(state.restore(br"a\u005fb_1"), b"a.b");
        assert_eq!((state.restore(b"other"), state.restore(br"\u0061")), (&b"other"[..], &br"\u0061"[..]));
    }
}
