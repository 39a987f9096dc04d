//! Checks the items of the lists in a chat request, and notes what other members mean for it.

use crate::dialect::request::parts::{BLOCK, Rules, TOOL, is_free_in_message, is_stored_in_message};
use crate::dialect::request::{Fields, Invalid, Name, PartName, Place, Reading, whole_number};
use crate::wire::Span;
use crate::wire::json::{Raw, ValueKind};

/// Lists whose items are read.
pub const LISTS: &[Name] = &[Name::Messages, Name::System, Name::Tools, Name::Stop];

const MESSAGE: Rules = Rules {
    chosen: false,
    is_stored: is_stored_in_message,
    is_free: is_free_in_message,
    // Parts and calls, and the parts of a result.
    counts: |depth, _| (u32::from(matches!(depth, 4 | 6)), 0),
    ..BLOCK
};

/// The rules for a tool: both `function` and `custom` always run at the client, in any format and with any other
/// members. A tool of another type may run at the provider.
const CHAT_TOOL: Rules = Rules {
    noted: |_, name, kind, fields| match kind.string() {
        _ if name != PartName::Type => {}
        Some(b"function") => {}
        // The rewriter moves its members to the place where the target expects them.
        Some(b"custom") => (fields.has_custom, fields.has_odd) = (true, true),
        _ => fields.may_cost_more = true,
    },
    ..TOOL
};

pub fn check_item<'a>(place: Place, item: Raw<'a>, reading: &mut Reading<'a, '_>) -> Result<(bool, usize), Invalid> {
    let length = match place.list {
        Name::Messages => message(place, item, reading)?,
        Name::Tools if item.kind() != ValueKind::Object => return place.refuse("an object"),
        Name::Tools => {
            let walked = reading.walk(place, item, &CHAT_TOOL);
            reading.fields.may_cost_more |= !walked.is_typed;
            walked.length
        }
        Name::Stop => {
            let word = Raw::front(item.bytes());
            if word.string().is_none() {
                return place.refuse("a string");
            }
            word.bytes().len()
        }
        _ => reading.walk(place, item, &BLOCK).length,
    };
    Ok((true, length))
}

fn message<'a>(place: Place, item: Raw<'a>, reading: &mut Reading<'a, '_>) -> Result<usize, Invalid> {
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
    Ok(reading.message(place, item, &MESSAGE))
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
