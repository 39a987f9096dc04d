//! Checks the items of the input and the tools of a responses request.
//!
//! Reasoning that Tollgate carries for targets of another format is left out on a route within one format. Tollgate
//! stores no responses, so a reference to a stored one is refused with a message that says what to send instead.

use crate::dialect::neutral::carrier;
use crate::dialect::request::parts::{OTHER, Rules};
use crate::dialect::request::{Fields, Invalid, Name, PartName, Place, Reading};
use crate::wire::json::{Raw, ValueKind};

pub const LISTS: &[Name] = &[Name::Input, Name::Tools];

const ITEM: Rules = Rules {
    chosen: false,
    is_stored: |_, name, _| name == PartName::StoredId,
    // Citations in an answer only repeat an id, and definitions of tools name no objects.
    is_free: |depth, name| match name {
        PartName::Arguments | PartName::Tools => depth == 3,
        PartName::Annotations => matches!(depth, 4 | 5),
        _ => false,
    },
    counts: |depth, _| (u32::from(matches!(depth, 4 | 6)), 0),
    noted: |_, name, value, fields| fields.adds_tools |= name == PartName::Tools && value.kind() == ValueKind::Array,
};
/// Only tools that name no stored object are sent. The tools of a namespace count, too.
const TOOL: Rules = Rules {
    counts: |depth, _| (0, u32::from(matches!(depth, 4 | 6))),
    noted: |_, name, kind, fields| {
        let is_ours = matches!(kind.string(), Some(b"function" | b"custom"));
        fields.may_cost_more |= name == PartName::Type && !is_ours;
    },
    ..OTHER
};

pub fn check_item<'a>(place: Place, item: Raw<'a>, reading: &mut Reading<'a, '_>) -> Result<(bool, usize), Invalid> {
    if item.kind() != ValueKind::Object {
        return place.refuse("an object");
    }
    if place.list == Name::Input {
        return input(place, item, reading);
    }
    let walked = reading.walk(place, item, &TOOL);
    if !walked.is_typed {
        return place.refuse_at(format_args!(".type"), "a string");
    }
    Ok((true, walked.length))
}

/// False for reasoning of a target of another format.
fn input<'a>(place: Place, item: Raw<'a>, reading: &mut Reading<'a, '_>) -> Result<(bool, usize), Invalid> {
    let [kind, role, content, call_id, name, id, sealed] =
        item.pick(["type", "role", "content", "call_id", "name", "id", "encrypted_content"]);
    let is_text = |value: Option<Raw<'_>>| value.and_then(Raw::string).is_some();
    place.check_parts(content)?;
    if kind.is_some() && !is_text(kind) {
        return place.refuse_at(format_args!(".type"), "a string");
    }
    let is_bare = kind.is_none() && role.is_none() && content.is_none();
    let mut goes = true;
    match kind.and_then(Raw::word).as_deref().unwrap_or(b"message") {
        b"message" if !(is_bare && is_text(id)) => check_message(place, role, content)?,
        b"message" | b"item_reference" => {
            return place.refuse(
                "the item itself, not a reference: Tollgate stores no responses; send the whole conversation in \
                 input; AI SDK: set store to false",
            );
        }
        b"function_call" | b"custom_tool_call" if !is_text(call_id) => {
            return place.refuse_at(format_args!(".call_id"), "a string");
        }
        b"function_call" | b"custom_tool_call" if !is_text(name) => {
            return place.refuse_at(format_args!(".name"), "a string");
        }
        b"reasoning" => goes = !sealed.and_then(Raw::string).is_some_and(carrier::is_ours),
        _ => {}
    }
    Ok((goes, reading.message(place, item, &ITEM)))
}

fn check_message(place: Place, role: Option<Raw<'_>>, content: Option<Raw<'_>>) -> Result<(), Invalid> {
    let role = role.and_then(Raw::word).unwrap_or_default();
    if !matches!(&*role, b"user" | b"assistant" | b"system" | b"developer") {
        return place.refuse_at(format_args!(".role"), "one of user, assistant, system, developer");
    }
    match content.map_or(&*role == b"assistant", Raw::is_string_or_array) {
        true => Ok(()),
        false => place.refuse_at(format_args!(".content"), "a string or an array of objects"),
    }
}

pub fn note_member(_name: Name, _value: Raw<'_>, _fields: &mut Fields) {}
