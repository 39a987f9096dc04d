//! The source request of a translation: its members by name, its messages, and helpers that both directions share.
//!
//! Owns the lookups. Must never write a member: the writers of the formats do that. Used by all readers and writers.

use super::facts::RequestFacts;
use crate::base::digest::{hex_into, sha256};
use crate::dialect::capabilities::Capabilities;
use crate::dialect::neutral::conversation::{Block, CacheBreakpoint, Turn};
use crate::dialect::neutral::{JsonText, is_blank};
use crate::dialect::request::{Class, Fields, Name, PlainMessage};
use crate::dialect::tokens::CountLater;
use crate::wire::json::{Raw, write_inside};
use crate::wire::{ModelEndpoint, Shape, Span};
use std::borrow::Cow;
use std::cell::Cell;

/// A key for a conversation that reveals nothing of it: hexadecimal digits.
pub type CacheKey = [u8; 32];

/// Maximum number of cache marks in the messages format.
const MARKS_MAX: u32 = 4;
/// Members by which clients mark the end of a cached prefix, in Anthropic's API and in OpenAI's.
pub(crate) const MARKS: [&str; 2] = ["cache_control", "prompt_cache_breakpoint"];

/// Values of [`MARKS`] in one object.
pub(crate) type Marks<'a> = [Option<Raw<'a>>; 2];

/// Target that a request is written for.
#[derive(Copy, Clone, Debug)]
pub struct RequestTarget<'a> {
    /// The model's name at the upstream.
    pub model: &'a str,
    /// The API format of its provider.
    pub shape: Shape,
    /// Capabilities of the model.
    pub capabilities: &'a Capabilities,
    /// Key of the conversation for its prompt cache, if the client sends none.
    pub cache_key: Option<CacheKey>,
}

/// [`RequestTarget`] that owns its data.
#[derive(Debug)]
pub struct OwnedTarget {
    model: String,
    shape: Shape,
    capabilities: Capabilities,
    cache_key: Option<CacheKey>,
}

impl From<RequestTarget<'_>> for OwnedTarget {
    fn from(target: RequestTarget<'_>) -> OwnedTarget {
        let RequestTarget { model, shape, capabilities, cache_key } = target;
        OwnedTarget { model: model.to_owned(), shape, capabilities: capabilities.clone(), cache_key }
    }
}

impl OwnedTarget {
    /// Borrowed form for a translation.
    pub fn borrowed(&self) -> RequestTarget<'_> {
        let OwnedTarget { model, shape, capabilities, cache_key } = self;
        RequestTarget { model, shape: *shape, capabilities, cache_key: *cache_key }
    }
}

/// The request to be translated.
pub(crate) struct SourceRequest<'a> {
    pub(crate) body: &'a [u8],
    pub(crate) fields: &'a Fields,
    /// Positions of the texts in the body.
    pub(crate) texts: &'a CountLater,
    /// [`bit`]s of the names of all members.
    pub(crate) present: u64,
    pub(crate) from: Shape,
    /// Properties of the client's format, and of the target's.
    pub(crate) own: &'static RequestFacts,
    pub(crate) targets: &'static RequestFacts,
    pub(crate) target: &'a RequestTarget<'a>,
    /// Marks for the prompt cache so far.
    pub(crate) marks: Cell<u32>,
}

/// Bit that stands for a name, perhaps also for another one. Most requests have few of the many members that are asked
/// for.
#[inline(always)]
pub(crate) fn bit(name: Name) -> u64 {
    1 << (name as u32 % u64::BITS)
}

impl<'a> SourceRequest<'a> {
    /// A top-level member. `null`, and a member that the model does not accept, count as absent.
    #[inline(always)]
    pub(crate) fn get(&self, name: Name, text: &str) -> Option<Raw<'a>> {
        if self.present & bit(name) == 0 { None } else { self.find(name, text) }
    }

    #[inline(never)]
    fn find(&self, name: Name, text: &str) -> Option<Raw<'a>> {
        let member = self.fields.members.iter().find(|member| member.name == name)?;
        if name.class(ModelEndpoint::generate(self.from)) == Class::Unknown || self.drops(text) {
            return None;
        }
        Some(Raw::of_value(member.value.of(self.body))).filter(|value| !value.is_null())
    }

    /// True if the model does not accept the parameter `text`, by its configuration or its vendor.
    #[inline]
    pub(crate) fn drops(&self, text: &str) -> bool {
        self.target.capabilities.refuses(text)
    }

    /// The messages in order.
    #[inline]
    pub(crate) fn messages(&self) -> impl Iterator<Item = Message<'a>> {
        let list = self.get(Name::Messages, "messages").unwrap_or(Raw::NULL);
        let (mut items, mut number, mut ends) = (list.items(), 0.., self.texts.ends());
        let end = (list.bytes().as_ptr_range().end as usize).wrapping_sub(self.body.as_ptr() as usize);
        std::iter::from_fn(move || {
            let plain = items.read(|rest| {
                let begin = end.wrapping_sub(rest.len());
                let plain = PlainMessage::at(rest, 0, |text| Some(ends.of(begin + text)? - begin))?;
                let string = |inside: Span| Raw::of_value(&rest[inside.start as usize - 1..inside.end as usize + 1]);
                let (role, content) = (string(plain.role), string(plain.text));
                let raw = Raw::of_value(&rest[..plain.end()]);
                Some((Message { at: number.next()?, raw, role, content, marks: [None; 2] }, plain.end()))
            });
            if plain.is_some() {
                return plain;
            }
            let (raw, [role, content, control, breakpoint]) = items.pick(["role", "content", MARKS[0], MARKS[1]])?;
            let (role, content) = (role.unwrap_or(Raw::NULL), content.unwrap_or(Raw::NULL));
            Some(Message { at: number.next()?, raw, role, content, marks: [control, breakpoint] })
        })
    }

    /// True if the client controls the caching of its prompt: by a mark in a message or on a tool, or by excluding
    /// other marks.
    pub(crate) fn names_marks(&self) -> bool {
        let marked = |block: Raw<'_>| block.pick(MARKS).iter().any(Option::is_some);
        let in_list = |name, text| {
            let list = self.get(name, text).unwrap_or(Raw::NULL);
            list.items().any(|one| {
                let [control, breakpoint, function, content, output] =
                    one.pick([MARKS[0], MARKS[1], "function", "content", "output"]);
                control.or(breakpoint).is_some()
                    || function.is_some_and(marked)
                    || content.into_iter().chain(output).any(|list| list.items().any(marked))
            })
        };
        let options = self.get(Name::PromptCacheOptions, "prompt_cache_options").unwrap_or(Raw::NULL);
        options.get("mode").is_some_and(|mode| mode.is("explicit"))
            || in_list(Name::Messages, "messages")
            || in_list(Name::Input, "input")
            || in_list(Name::Tools, "tools")
    }

    /// The client's own mark on a message or a tool, for a target that caches marked prefixes.
    pub(crate) fn mark(&self, [control, breakpoint]: Marks<'_>) -> Option<CacheBreakpoint> {
        let own = control.or(breakpoint)?;
        if !self.targets.marks_prefixes || self.marks.replace(self.marks.get() + 1) >= MARKS_MAX {
            return None;
        }
        Some(CacheBreakpoint { hour: own.get("ttl").is_some_and(|time| time.is("1h")) })
    }

    /// The client's own mark on a part. Providers refuse one on a blank `text`.
    pub(crate) fn part_mark(&self, marks: Marks<'_>, text: Option<&[u8]>) -> Option<Block<'a>> {
        if text.is_some_and(is_blank) {
            return None;
        }
        self.mark(marks).map(Block::Breakpoint)
    }

    /// The texts of a content that is a string or an array of parts, refusals included, with their marks.
    pub(crate) fn texts_of(&self, content: Raw<'a>) -> Vec<Block<'a>> {
        let mut blocks = Vec::new();
        blocks.extend(content.string().map(|text| Block::Text(Cow::Borrowed(text))));
        let mut parts = content.items();
        while let Some((_, [text, refusal, control, breakpoint])) = parts.pick(["text", "refusal", MARKS[0], MARKS[1]])
        {
            if let Some(text) = text.or(refusal).and_then(Raw::string) {
                blocks.push(Block::Text(Cow::Borrowed(text)));
                blocks.extend(self.part_mark([control, breakpoint], Some(text)));
            }
        }
        blocks
    }

    /// The bound on completion tokens, limited to the model's maximum.
    pub(crate) fn max_tokens(&self) -> Option<u64> {
        let ceiling = self.target.capabilities.max_output_tokens.unwrap_or(u64::MAX);
        self.fields.max_tokens.map(|max| max.min(ceiling))
    }
}

/// A message with the members that every message needs, found in one walk.
#[derive(Copy, Clone)]
pub(crate) struct Message<'a> {
    pub(crate) at: usize,
    pub(crate) raw: Raw<'a>,
    pub(crate) role: Raw<'a>,
    pub(crate) content: Raw<'a>,
    pub(crate) marks: Marks<'a>,
}

/// The text of a system message for use in a user message.
pub(crate) fn as_users(turn: &Turn<'_>) -> JsonText<'static> {
    let mut text = b"<developer_message>\\n".to_vec();
    for part in turn.blocks.iter().filter_map(Block::text).filter(|part| !is_blank(part)) {
        text.extend_from_slice(part);
        text.extend_from_slice(b"\\n");
    }
    text.extend_from_slice(b"</developer_message>");
    Cow::Owned(text)
}

/// Appends the string `raw` if it has at most `most` characters, otherwise its SHA-256 in hexadecimal.
pub(crate) fn write_user(raw: &[u8], most: usize, out: &mut Vec<u8>) {
    let text = Raw::text_of(raw);
    if text.chars().count() <= most {
        return write_inside(out, raw);
    }
    let mut hex = Vec::with_capacity(64);
    hex_into(&sha256(text.as_bytes()), &mut hex);
    write_inside(out, &hex);
}
