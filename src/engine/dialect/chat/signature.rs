//! Thought signatures of Gemini in the chat format: a provider puts one on the first tool call of an answer and
//! requires it on the same call in later requests (`extra_content.google.thought_signature`).
//!
//! Owns the member's form and the list of models that check it. Translations carry a signature in a
//! [`crate::dialect::neutral::carrier`], as the block of reasoning directly before its call.

use crate::dialect::neutral::delta::TOOL_CALLS_MAX;
use crate::dialect::neutral::naming::{is_made, messages_id};
use crate::dialect::request::{Fields, Name};
use crate::wire::Span;
use crate::wire::json::{Raw, ValueKind, eq_unescaped, member_inside};

/// Placeholder that a provider accepts instead of a signature. It costs quality, so only a call that is checked gets
/// it.
pub const SKIP: &[u8] = b"skip_thought_signature_validator";
/// Name of a signature in a block of reasoning.
const MEMBER: &str = "thought_signature";
/// Name of the id of the signature's call in that block.
const CALL: &str = "id";
/// Member in which OpenRouter returns signatures, among other reasoning.
pub const DETAILS: &str = "reasoning_details";

/// The inside of the signature in a call's `extra_content`. One gateway calls the member `vertex`.
fn of(extra: Raw<'_>) -> Option<&[u8]> {
    let [google, vertex] = extra.pick(["google", "vertex"]);
    let signature = google.or(vertex)?.get(MEMBER)?.string()?;
    (!signature.is_empty()).then_some(signature)
}

/// The block of reasoning that carries the signature in a call's `extra_content`, with the id of the call.
pub fn block_of(extra: Raw<'_>, id: &[u8]) -> Option<Vec<u8>> {
    let signature = of(extra)?;
    let mut block = b"{".to_vec();
    member_inside(&mut block, MEMBER, signature);
    if !id.is_empty() {
        member_inside(&mut block, CALL, id);
    }
    block.push(b'}');
    Some(block)
}

/// The signatures in one message's blocks of reasoning.
#[derive(Default)]
pub struct Signatures<'a> {
    /// Signatures with the id of their call, in the form that every client keeps.
    bound: Vec<(Vec<u8>, &'a [u8])>,
    /// The last block before the current call.
    next: Option<Raw<'a>>,
}

impl<'a> Signatures<'a> {
    /// The signatures in `blocks`.
    pub fn of(blocks: impl Iterator<Item = Raw<'a>>) -> Signatures<'a> {
        let bound = blocks.filter_map(|block| {
            let [signature, id] = block.pick([MEMBER, CALL]);
            Some((kept_form(id?.string()?), signature?.string()?))
        });
        Signatures { bound: bound.take(TOOL_CALLS_MAX).collect(), next: None }
    }

    /// Notes a block directly before a call.
    pub fn before(&mut self, block: Raw<'a>) {
        if block.get(MEMBER).is_some() {
            self.next = Some(block);
        }
    }

    /// The signature of the call with this id. A call whose id a client could not keep, and a block without an id, are
    /// recognised by their order.
    pub fn take(&mut self, id: &[u8]) -> Option<&'a [u8]> {
        let next = self.next.take();
        if !self.bound.is_empty() {
            let id = kept_form(id);
            if let Some(at) = self.bound.iter().position(|(own, _)| *own == id) {
                return Some(self.bound.swap_remove(at).1);
            }
        }
        next.filter(|block| is_made(id) || block.get(CALL).is_none())?.get(MEMBER)?.string()
    }
}

/// The signature in a block directly before the call with this id, if it is that call's.
#[cold]
pub fn of_next<'a>(block: Raw<'a>, id: &[u8]) -> Option<&'a [u8]> {
    let mut signatures = Signatures::of(std::iter::once(block));
    signatures.before(block);
    signatures.take(id)
}

/// An id as every client keeps it.
fn kept_form(id: &[u8]) -> Vec<u8> {
    let mut form = Vec::new();
    messages_id(id, 0, &mut form);
    form
}

/// Appends the member of a tool call that has a signature.
pub fn write(signature: Option<&[u8]>, out: &mut Vec<u8>) {
    let Some(signature) = signature else { return };
    out.extend_from_slice(b",\"extra_content\":");
    write_value(signature, out);
}

/// Appends the value of that member.
pub fn write_value(signature: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"google\":{\"thought_signature\":\"");
    out.extend_from_slice(signature);
    out.extend_from_slice(b"\"}}");
}

/// For each call in a chat request that lacks a required signature: its end, or its member without a value. Only the
/// first call of each message after the newest user message requires one.
pub fn missing(body: &[u8], fields: &Fields) -> Vec<Span> {
    let mut found = Vec::new();
    let list = fields.members.iter().find(|member| member.name == Name::Messages);
    let mut messages = list.map_or(Raw::NULL, |list| Raw::new(list.value.of(body))).items();
    while let Some((_, [role, calls, details])) = messages.pick(["role", "tool_calls", DETAILS]) {
        if role.is_some_and(|role| role.is("user")) {
            found.clear();
        }
        let Some(call) = calls.and_then(|calls| calls.items().next()).filter(|_| details.is_none()) else { continue };
        if call.get("function").is_none() {
            continue;
        }
        let mut extras = call.members().filter(|(key, _)| eq_unescaped(key, "extra_content"));
        match (extras.next(), extras.next()) {
            (None, _) => {
                let end = Span::of_part(body, call.bytes()).end - 1;
                found.push(Span { start: end, end });
            }
            (Some((_, value)), None) if says_nothing(value) => found.push(Span::of_part(body, value.bytes())),
            _ => {}
        }
    }
    found
}

/// True for `null`, and for an object with no other values.
fn says_nothing(value: Raw<'_>) -> bool {
    value.is_null() || (value.kind() == ValueKind::Object && value.members().all(|(_, inner)| inner.is_null()))
}
