//! Members of a request that name an object of the provider's account: a file, a container, a recording, a voice. All
//! clients share that account, so such an id could be another tenant's.
//!
//! Owns the list of those members. Must never look into text written by a model or a tool: there, the same names mean
//! nothing to the provider. Called by `checks`, `input` and `form`. The configuration decides whether requests may use
//! them (`stored_objects`).

use super::fields::{Fields, Invalid};
use crate::dialect::capabilities::{Capabilities, UnknownMembers};
use crate::wire::Span;
use crate::wire::json::eq_unescaped;
use std::borrow::Cow;
use std::fmt::Arguments;

/// Expected value instead of a file's id.
const NO_FILE: &str = "the file itself: Tollgate stores no files";
/// Expected value instead of another object's id.
const NO_OBJECT: &str = "no object that is stored at the provider";

/// Names of members with an object's id.
const IDS: [&str; 3] = ["file_id", "container_id", "skill_id"];
/// Further names of objects in a tool, whose value is an id or a list of ids.
const TOOL_IDS: [&str; 3] = ["container", "file_ids", "vector_store_ids"];
/// Letters in names of form fields with an object's id.
const FORM_IDS: [&str; 5] = ["fileid", "containerid", "skillid", "vectorstoreid", "voiceid"];
/// Members of a tool that the client writes for the model, with names of its own choice.
const TOOL_FREE: [&str; 3] = ["parameters", "input_schema", "input_examples"];
/// Members written by a model, or repeated from an earlier answer's citations.
const FREE: [&str; 4] = ["input", "arguments", "citations", "annotations"];
/// Maximum bytes of a member's name in a refusal.
const NAME_MAX: usize = 64;

/// True if a key names an object.
pub(crate) fn is_id(key: &[u8]) -> bool {
    IDS.iter().any(|id| eq_unescaped(key, id))
}

/// True if a form field names an object. Servers spell and nest names of fields in many ways, so the letters decide.
pub(crate) fn names_object_in_form(name: &[u8]) -> bool {
    let letters: Vec<u8> = name.iter().filter(|byte| byte.is_ascii_alphabetic()).map(u8::to_ascii_lowercase).collect();
    FORM_IDS.iter().any(|id| letters.windows(id.len()).any(|part| part == id.as_bytes()))
}

/// True if a key names objects in a tool.
pub(crate) fn is_tool_id(key: &[u8]) -> bool {
    is_id(key) || TOOL_IDS.iter().any(|name| eq_unescaped(key, name))
}

/// True if a key names a member of a tool in which the client chooses all names.
pub(crate) fn is_free_in_tool(key: &[u8]) -> bool {
    TOOL_FREE.iter().any(|name| eq_unescaped(key, name))
}

/// True if a key of a member that is passed on as it is names objects. `member`: the key of that member itself.
pub(crate) fn names_object(key: &[u8], member: &[u8]) -> bool {
    let lists = &TOOL_IDS[1..];
    let is_voice = || eq_unescaped(key, "id") && eq_unescaped(member, "voice");
    is_id(key) || lists.iter().any(|name| eq_unescaped(key, name)) || is_voice()
}

/// The refusal of the object at `path`, whose name is `name`.
pub(crate) fn refusal(path: Arguments<'_>, name: &[u8]) -> Invalid {
    let expected = if name == b"file_id" { NO_FILE } else { NO_OBJECT };
    Invalid(format!("{path}: expected {expected}"))
}

/// A member's name in a refusal.
pub(crate) fn name_of(key: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(&key[..key.len().min(NAME_MAX)])
}

/// Tracks whether the current message or tool names an object of the provider's account.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Stored {
    /// The current member of the message, of the block of its content, or of the tool.
    member: Span,
    /// The last key, if its value names an object.
    name: Option<Span>,
    /// The member names an object by an `id` of its own: the recording of an answer, or a tool's container.
    has_id: bool,
    /// Depth of the current unchecked member.
    free: u8,
}

/// State at the start of a message.
pub(crate) const NOTHING_STORED: Stored =
    Stored { member: Span { start: 0, end: 0 }, name: None, has_id: false, free: u8::MAX };

impl Stored {
    /// Handles a key at `depth`: 3 in the message, 5 in a block of its content.
    #[inline]
    pub(crate) fn key(&mut self, buf: &[u8], depth: usize, span: Span) {
        let (key, depth) = (span.of(buf), depth.min(usize::from(u8::MAX) - 1) as u8);
        self.name = None;
        if depth <= self.free {
            self.free = u8::MAX;
            self.named(key, depth, span);
        }
    }

    #[inline]
    fn named(&mut self, key: &[u8], depth: u8, span: Span) {
        if matches!(depth, 3 | 5) {
            self.member = span;
        }
        if depth == 3 {
            self.has_id = eq_unescaped(key, "audio");
        }
        match key {
            b"type" | b"text" | b"role" | b"content" => {}
            _ if is_id(key) || (depth == 4 && self.has_id && eq_unescaped(key, "id")) => self.name = Some(span),
            _ if FREE.iter().any(|name| eq_unescaped(key, name)) => self.free = depth,
            _ => {}
        }
    }

    /// Handles a key at `depth` of a tool: 3 in the tool itself.
    #[inline]
    pub(crate) fn tool_key(&mut self, buf: &[u8], depth: usize, span: Span) {
        let depth = depth.min(usize::from(u8::MAX) - 1) as u8;
        self.name = None;
        if depth <= self.free {
            self.free = u8::MAX;
            self.named_in_tool(span.of(buf), depth, span);
        }
    }

    fn named_in_tool(&mut self, key: &[u8], depth: u8, span: Span) {
        if depth == 3 {
            (self.member, self.has_id) = (span, eq_unescaped(key, "container"));
        }
        match key {
            b"type" | b"function" | b"name" | b"description" | b"strict" => {}
            _ if is_free_in_tool(key) => self.free = depth,
            _ if is_tool_id(key) => self.name = Some(span),
            _ if depth == 4 && self.has_id && eq_unescaped(key, "id") => self.name = Some(span),
            _ => {}
        }
    }

    /// True if a container that begins at `depth` is not in an unchecked member.
    #[inline]
    pub(crate) fn is_read(&self, depth: usize) -> bool {
        depth < usize::from(self.free)
    }

    /// True if the name is that of the member itself.
    pub(crate) fn is_member(&self) -> bool {
        self.name == Some(self.member)
    }

    /// True if a string at this point names an object.
    #[inline]
    pub(crate) fn is_named(&self) -> bool {
        self.name.is_some()
    }

    /// Name of the member that contains the object.
    pub(crate) fn member<'a>(&self, buf: &'a [u8]) -> Cow<'a, str> {
        name_of(self.member.of(buf))
    }

    /// Name of the object.
    pub(crate) fn name<'a>(&self, buf: &'a [u8]) -> Cow<'a, str> {
        name_of(self.name.unwrap_or_default().of(buf))
    }
}

impl Fields {
    /// Notes that the member at `path` names an object. Only the first one is kept.
    #[cold]
    pub(crate) fn names_stored(&mut self, path: Arguments<'_>, name: &str) {
        self.stored.get_or_insert_with(|| Box::new(refusal(path, name.as_bytes())));
    }

    /// [`Invalid`] if the request names an object of the provider's account and the configuration does not allow it.
    #[inline]
    pub(crate) fn may_name_stored(&self, takes: &Capabilities) -> Result<(), Invalid> {
        match &self.stored {
            Some(why) if !takes.stored_objects => Err(Invalid::clone(why)),
            _ => Ok(()),
        }
    }

    /// [`Invalid`] if an unknown member names such an object, the target gets unknown members, and the configuration
    /// does not allow it.
    #[inline]
    pub(crate) fn may_forward_stored(&self, takes: &Capabilities) -> Result<(), Invalid> {
        let is_sent = matches!(takes.unknown, UnknownMembers::New | UnknownMembers::Forward);
        match &self.stored_beside {
            Some(why) if is_sent && !takes.stored_objects => Err(Invalid::clone(why)),
            _ => Ok(()),
        }
    }
}
