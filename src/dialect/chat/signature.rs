//! Thought signatures of Gemini in the chat format: a provider puts one on the first tool call of an answer and
//! requires it on the same call in later requests (`extra_content.google.thought_signature`).
//!
//! Owns the member's form and the list of models that check it. Translations carry a signature in a
//! [`crate::dialect::carrier`], as the block of reasoning directly before its call.

use crate::dialect::request::{Fields, Name};
use crate::wire::Span;
use crate::wire::json::{Raw, eq_unescaped, key, write_inside};

/// Placeholder that a provider accepts instead of a signature. It costs quality, so only a call that is checked gets
/// it.
pub(in crate::dialect) const SKIP: &[u8] = b"skip_thought_signature_validator";
/// Name of a signature in a block of reasoning.
const MEMBER: &str = "thought_signature";
/// Member in which OpenRouter returns signatures, among other reasoning.
pub(in crate::dialect) const DETAILS: &str = "reasoning_details";

/// True for models that refuse a call without its signature: `gemini-3…` and later, except `…-image`.
pub fn is_required(model: &str) -> bool {
    let name = ["models/", "google/"].iter().find_map(|owner| model.strip_prefix(owner)).unwrap_or(model);
    let Some(version) = name.strip_prefix("gemini-") else { return false };
    let digits = version.bytes().take_while(u8::is_ascii_digit).count();
    let (number, rest) = version.split_at(digits);
    number.parse().is_ok_and(|number: u32| number >= 3)
        && (rest.is_empty() || rest.starts_with(['-', '.']))
        && !rest.contains("-image")
}

/// The inside of a tool call's signature. One gateway calls the member `vertex`.
fn of(call: Raw<'_>) -> Option<&[u8]> {
    let [google, vertex] = call.get("extra_content")?.pick(["google", "vertex"]);
    let signature = google.or(vertex)?.get(MEMBER)?.string()?;
    (!signature.is_empty()).then_some(signature)
}

/// The block of reasoning that carries the signature of an answer's first call.
pub(in crate::dialect) fn block_of(calls: Raw<'_>) -> Option<Vec<u8>> {
    let signature = of(calls.items().next()?)?;
    let mut block = b"{".to_vec();
    key(&mut block, MEMBER);
    write_inside(&mut block, signature);
    block.push(b'}');
    Some(block)
}

/// The signature that a block of reasoning carries.
pub(in crate::dialect) fn carried(block: Raw<'_>) -> Option<&[u8]> {
    block.get(MEMBER).and_then(Raw::string)
}

/// Appends the member of a tool call that has a signature.
pub(in crate::dialect) fn write(signature: Option<&[u8]>, out: &mut Vec<u8>) {
    let Some(signature) = signature else { return };
    out.extend_from_slice(b",\"extra_content\":{\"google\":{\"thought_signature\":\"");
    out.extend_from_slice(signature);
    out.extend_from_slice(b"\"}}");
}

/// Ends of the calls in a chat request that lack a required signature. Only the first call of each message after the
/// newest user message requires one.
pub(in crate::dialect) fn missing(body: &[u8], fields: &Fields) -> Vec<Span> {
    let mut found = Vec::new();
    let list = fields.members.iter().find(|member| member.name == Name::Messages);
    let mut messages = list.map_or(Raw::NULL, |list| Raw::new(list.value.of(body))).items();
    while let Some((_, [role, calls, details])) = messages.pick(["role", "tool_calls", DETAILS]) {
        if role.is_some_and(|role| role.is("user")) {
            found.clear();
        }
        let Some(call) = calls.and_then(|calls| calls.items().next()).filter(|_| details.is_none()) else { continue };
        // A member with the value `null` is left to the client: the name must not occur twice.
        if call.get("function").is_some() && !call.members().any(|(key, _)| eq_unescaped(key, "extra_content")) {
            let end = call.bytes().as_ptr_range().end as usize - body.as_ptr() as usize - 1;
            found.push(Span::new(end, end));
        }
    }
    found
}
