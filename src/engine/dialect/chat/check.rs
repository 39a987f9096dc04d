//! Checks the items of the lists in a chat request, and notes what other members mean for it.

use crate::dialect::request::parts::{BLOCK, Rules, TOOL, is_free_in_message, is_stored_in_message};
use crate::dialect::request::{Fields, Invalid, Name, Place, Reading, whole_number};
use crate::wire::Span;
use crate::wire::json::{Raw, ValueKind, eq_unescaped};

/// Lists whose items are read.
pub const LISTS: &[Name] = &[Name::Messages, Name::System, Name::Tools, Name::Stop];

const MESSAGE: Rules = Rules {
    chosen: false,
    is_stored: is_stored_in_message,
    is_free: is_free_in_message,
    // Parts and calls, and the parts of a result.
    counts: |depth, _| (u32::from(matches!(depth, 4 | 6)), 0),
};

/// Checks an item of such a list, and counts it. False if it is not sent to an upstream of the same format.
pub fn check_item<'a>(place: Place, item: Raw<'a>, reading: &mut Reading<'a, '_>) -> Result<bool, Invalid> {
    match place.list {
        Name::Messages => message(place, item, reading)?,
        Name::Tools => tool(place, item, reading)?,
        Name::Stop if item.string().is_none() => return place.refuse("a string"),
        Name::Stop => {}
        _ => reading.walk(place, item, &BLOCK),
    }
    Ok(true)
}

fn message<'a>(place: Place, item: Raw<'a>, reading: &mut Reading<'a, '_>) -> Result<(), Invalid> {
    if item.kind() != ValueKind::Object {
        return place.refuse("an object");
    }
    let [role, content, call_id] = item.pick(["role", "content", "tool_call_id"]);
    place.check_parts(content)?;
    let word = role.and_then(Raw::word).unwrap_or_default();
    if !matches!(&*word, b"system" | b"developer" | b"user" | b"assistant" | b"tool" | b"function") {
        return place.refuse_at(format_args!(".role"), "one of system, developer, user, assistant, tool");
    }
    if !content.map_or(&*word == b"assistant", Raw::is_string_or_array) {
        return place.refuse_at(format_args!(".content"), "a string or an array of objects");
    }
    if &*word == b"tool" && call_id.and_then(Raw::string).is_none() {
        return place.refuse_at(format_args!(".tool_call_id"), "a string");
    }
    if &*word == b"developer" {
        let role = role.and_then(Raw::string).unwrap_or_default();
        reading.fields.cuts.push(Span::of_part(reading.body, role));
    }
    reading.message(place, item, &MESSAGE);
    Ok(())
}

/// Both `function` and `custom` always run at the client, in any format and with any other members. A tool of another
/// type may run at the provider.
fn tool<'a>(place: Place, item: Raw<'a>, reading: &mut Reading<'a, '_>) -> Result<(), Invalid> {
    if item.kind() != ValueKind::Object {
        return place.refuse("an object");
    }
    let mut is_own = false;
    for (_, kind) in item.members().filter(|(key, _)| eq_unescaped(key, "type")) {
        is_own = kind.string().is_some();
        match kind.string() {
            Some(b"function") => {}
            // The rewriter moves its members to the place where the target expects them.
            Some(b"custom") => (reading.fields.has_custom, reading.fields.has_odd) = (true, true),
            _ => reading.fields.may_cost_more = true,
        }
    }
    reading.fields.may_cost_more |= !is_own;
    reading.walk(place, item, &TOOL);
    Ok(())
}

/// Notes what a member means that is not checked.
pub fn note_member(name: Name, value: Raw<'_>, fields: &mut Fields) {
    match name {
        Name::StreamOptions => {
            fields.include_usage = value.get("include_usage").and_then(Raw::bool).unwrap_or(false);
        }
        Name::MaxCompletionTokens => fields.max_tokens = whole_number(value),
        Name::Audio => {
            fields.may_cost_more |= !value.is_null();
            // A voice is named by a word, or by the id of an object of the provider's account.
            if value.get("voice").and_then(|voice| voice.get("id")).is_some_and(|id| id.string().is_some()) {
                fields.names_stored(format_args!("audio.voice.id"), "id");
            }
        }
        Name::Prediction => fields.predicts = !value.is_null(),
        _ => {}
    }
}
