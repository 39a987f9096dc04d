//! Custom tools, which take free text, in chat requests.
//!
//! Owns both places of their members. OpenAI documents `{"type":"custom","custom":{"name":…}}`, with a grammar as
//! `{"type":"grammar","grammar":{"definition":…,"syntax":…}}`. Cursor writes these members next to each `type`, as in
//! the responses format.

use crate::dialect::neutral::JsonText;
use crate::wire::json::{Raw, eq_unescaped, item, key, key_inside, object_with, write_escaped};
use std::borrow::Cow;

/// The members of a custom tool, or of a call of one.
pub fn inner(tool: Raw<'_>) -> Raw<'_> {
    tool.get("custom").unwrap_or(tool)
}

/// The members of the grammar in a custom tool's `format`.
fn grammar(format: Raw<'_>) -> Raw<'_> {
    format.get("grammar").unwrap_or(format)
}

/// Description of a tool that takes free text, with its grammar in words.
pub fn free_text(tool: Raw<'_>, given: Option<&[u8]>) -> JsonText<'static> {
    let mut text = given.unwrap_or_default().to_vec();
    if !text.is_empty() {
        write_escaped(&mut text, b"\n\n");
    }
    text.extend_from_slice(b"The input is free text, not JSON.");
    let format = grammar(tool.get("format").unwrap_or(Raw::NULL));
    if let Some(definition) = format.get("definition").and_then(Raw::string) {
        text.extend_from_slice(b" Its grammar (");
        text.extend_from_slice(format.get("syntax").and_then(Raw::string).unwrap_or(b"lark"));
        write_escaped(&mut text, b"):\n");
        text.extend_from_slice(definition);
    }
    Cow::Owned(text)
}

/// Appends a list of tools with the members of custom ones where OpenAI documents them; others are unchanged.
#[cold]
pub fn write(tools: Raw<'_>, out: &mut Vec<u8>) {
    out.push(b'[');
    for tool in tools.items() {
        item(out);
        write_tool(tool, out);
    }
    out.push(b']');
}

/// Appends a tool, or the choice of one.
#[cold]
pub fn write_tool(tool: Raw<'_>, out: &mut Vec<u8>) {
    match is_elsewhere(tool) {
        true => write_nested(tool, "custom", write_custom, out),
        false => out.extend_from_slice(tool.bytes()),
    }
}

/// True if a custom tool has its members, or those of its grammar, in the other place.
fn is_elsewhere(tool: Raw<'_>) -> bool {
    let is = |object: Raw<'_>, kind| object.get("type").is_some_and(|own| own.is(kind));
    let format = inner(tool).get("format").unwrap_or(Raw::NULL);
    let flat_grammar = is(format, "grammar") && format.get("grammar").is_none();
    is(tool, "custom") && (tool.get("custom").is_none() || flat_grammar)
}

/// Appends an object whose members belong inside its member `under`. `write` appends the value of that member. If the
/// object already has it, all other members stay in their place.
fn write_nested(object: Raw<'_>, under: &str, write: impl Fn(Raw<'_>, &mut Vec<u8>), out: &mut Vec<u8>) {
    let nested = object.get(under);
    let outer = |name: &[u8]| nested.is_some() || eq_unescaped(name, "type");
    out.push(b'{');
    for (name, value) in object.members().filter(|(name, _)| outer(name)) {
        key_inside(out, name);
        match eq_unescaped(name, under) {
            true => write(value, out),
            false => out.extend_from_slice(value.bytes()),
        }
    }
    if nested.is_none() {
        key(out, under);
        write(object, out);
    }
    out.push(b'}');
}

/// Appends the members of a custom tool.
fn write_custom(tool: Raw<'_>, out: &mut Vec<u8>) {
    out.push(b'{');
    for (name, value) in tool.members().filter(|(name, _)| !eq_unescaped(name, "type")) {
        key_inside(out, name);
        let is_grammar = eq_unescaped(name, "format") && value.get("type").is_some_and(|kind| kind.is("grammar"));
        match is_grammar {
            true => write_nested(value, "grammar", write_grammar, out),
            false => out.extend_from_slice(value.bytes()),
        }
    }
    out.push(b'}');
}

fn write_grammar(grammar: Raw<'_>, out: &mut Vec<u8>) {
    object_with(grammar, &[("type", "")], out);
}
