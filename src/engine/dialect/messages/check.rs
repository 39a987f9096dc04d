//! Checks the items of the lists in a messages request, and leaves out reasoning that its provider would refuse.
//!
//! Reasoning of a chat upstream reaches messages clients as a `thinking` block with an empty signature. A client sends
//! it back with the conversation, and an upstream that signs its reasoning refuses it. Such an upstream also refuses a
//! block with another target's mark ([`carrier`]), and a message without blocks.

use crate::dialect::neutral::carrier;
use crate::dialect::request::parts::{BLOCK, Rules, TOOL, is_free_in_message, is_stored_in_message};
use crate::dialect::request::{Fields, Invalid, Leave, Name, PartName, Place, Reading};
use crate::wire::Span;
use crate::wire::json::{Raw, ValueKind, eq_unescaped};

pub const LISTS: &[Name] = &[Name::Messages, Name::System, Name::Tools];

const MESSAGE: Rules = Rules {
    chosen: false,
    is_stored: is_stored_in_message,
    is_free: is_free_in_message,
    counts: |depth, free| match depth {
        // Blocks, and those of a result.
        4 | 6 => (1, 0),
        // A document's source, whose title and context become blocks too, or one of its items.
        5.. if !free => (2, 0),
        _ => (0, 0),
    },
    ..BLOCK
};

/// The rules for a tool. One without a type is one of the client, and `custom` is, too.
const MESSAGES_TOOL: Rules = Rules {
    noted: |place, name, kind, fields| {
        if name != PartName::Type {
            return;
        }
        fields.may_cost_more |= !matches!(kind.string(), Some(b"function" | b"custom"));
        if kind.is("mcp_toolset") {
            // A toolset of an MCP server that is configured in the provider's account.
            fields.names_stored(format_args!("{place}.type"), "mcp_toolset");
        }
    },
    ..TOOL
};

pub fn check_item<'a>(place: Place, item: Raw<'a>, reading: &mut Reading<'a, '_>) -> Result<(bool, usize), Invalid> {
    match place.list {
        Name::Messages => message(place, item, reading),
        Name::System if !is_text_block(item) => place.refuse("a text block"),
        Name::System => Ok((true, reading.walk(place, item, &BLOCK).length)),
        _ => Ok((true, reading.walk(place, item, &MESSAGES_TOOL).length)),
    }
}

fn is_text_block(item: Raw<'_>) -> bool {
    let [kind, text] = item.pick(["type", "text"]);
    kind.is_some_and(|kind| kind.is("text")) && text.and_then(Raw::string).is_some()
}

/// False if all blocks of the message are left out: an upstream refuses a message without blocks.
fn message<'a>(place: Place, item: Raw<'a>, reading: &mut Reading<'a, '_>) -> Result<(bool, usize), Invalid> {
    if item.kind() != ValueKind::Object {
        return place.refuse("an object");
    }
    let [role, content] = item.pick(["role", "content"]);
    let before = reading.fields.cuts.len();
    let (mut leave, mut goes) = (Leave::default(), true);
    for (index, block) in content.unwrap_or(Raw::NULL).items().enumerate() {
        if block.kind() != ValueKind::Object {
            return place.refuse_at(format_args!(".content[{index}]"), "an object");
        }
        let [kind, signature, data] =
            block.pick(["type", "signature", "data"]).map(|value| value.and_then(Raw::string));
        let Some(kind) = kind else { return place.refuse_at(format_args!(".content[{index}].type"), "a string") };
        let is_signed = signature.is_some_and(|text| !text.is_empty() && !carrier::is_ours(text));
        let leaves = (eq_unescaped(kind, "thinking") && !is_signed) || data.is_some_and(carrier::is_ours);
        goes = !leaves || (goes && index > 0);
        leave.item(Span::of_part(reading.body, block.bytes()), leaves, &mut reading.fields.cuts);
    }
    leave.close_list(&mut reading.fields.cuts);
    if !goes {
        reading.fields.cuts.truncate(before);
    }
    if !role.and_then(Raw::word).is_some_and(|role| matches!(&*role, b"user" | b"assistant" | b"system")) {
        return place.refuse_at(format_args!(".role"), "one of user, assistant, system");
    }
    if !content.is_some_and(Raw::is_string_or_array) {
        return place.refuse_at(format_args!(".content"), "a string or an array of content blocks");
    }
    Ok((goes, reading.message(place, item, &MESSAGE)))
}

pub fn note_member(name: Name, value: Raw<'_>, fields: &mut Fields) {
    if name == Name::Thread {
        fields.thread |= value.kind() == ValueKind::Object;
    }
}
