//! The output of a model in a message or a delta of the chat format, for the estimate of its tokens.
//!
//! Owns what counts as output. Must never pass anything on.

use crate::dialect::keys::K;
use crate::dialect::tokens::Estimator;
use crate::wire::json::{Raw, ValueKind, eq_unescaped};

/// True if the value at `path`, in the message of a chat completion or the delta of a chunk, is text of the model in a
/// member that the format has; [`count_others`] counts the others.
pub(crate) fn is_relayed_text(path: &[K]) -> bool {
    match path {
        [K::Content | K::ReasoningContent | K::Reasoning | K::Refusal, .., K::Type] => false,
        [K::Content | K::ReasoningContent | K::Reasoning | K::Refusal, ..] => true,
        // A function, a tool of another kind, or the older `function_call`.
        [K::ToolCalls, K::Item, K::Function | K::Other, K::Name | K::Arguments | K::Input] => true,
        [K::Other, K::Name | K::Arguments] => true,
        _ => false,
    }
}

/// Members of a delta, and of what is in it, without output of the model. Citations are what it has read.
const NOT_SAID: [&str; 13] = [
    "role",
    "content",
    "reasoning_content",
    "reasoning",
    "refusal",
    "tool_calls",
    "function_call",
    "annotations",
    "channel",
    "format",
    "id",
    "signature",
    "type",
];
/// Members that repeat the reasoning beside them.
const REPEATS: [&str; 5] =
    ["reasoning_details", "thinking_blocks", "reasoning_text", "thinking", "provider_specific_fields"];
/// Members with media in base64, and the least bytes of it for one token.
const MEDIA: [&str; 3] = ["data", "url", "b64_json"];
const MEDIA_BYTES_PER_TOKEN: u64 = 100;
/// Levels of such members whose text is counted.
const OTHERS_DEPTH: u32 = 8;

/// Counts the output of a model in members of a message, or of a delta, that are not the format's: images, audio and
/// its transcript, reasoning under another name. Returns the number of values.
#[cold]
pub(super) fn count_others(said: Raw<'_>, relayed: &mut Estimator) -> u32 {
    let reasons = said.pick(["reasoning", "reasoning_content"]).iter().flatten().any(|text| text.string().is_some());
    count_members(said, if reasons { &REPEATS } else { &[] }, OTHERS_DEPTH, relayed)
}

fn count_members(object: Raw<'_>, without: &[&str], depth: u32, relayed: &mut Estimator) -> u32 {
    // Sealed reasoning repeats what was relayed.
    if object.get("type").and_then(Raw::string).is_some_and(|kind| kind.ends_with(b"encrypted")) {
        return 0;
    }
    let mut count = 0;
    for (name, value) in object.members() {
        let is = |names: &[&str]| names.iter().any(|one| eq_unescaped(name, one));
        count += match value.string() {
            _ if is(&NOT_SAID) || is(without) => 0,
            Some(media) if is(&MEDIA) => {
                relayed.add((media.len() as u64).div_ceil(MEDIA_BYTES_PER_TOKEN));
                1
            }
            _ => count_value(value, depth, relayed),
        };
    }
    count
}

fn count_value(value: Raw<'_>, depth: u32, relayed: &mut Estimator) -> u32 {
    if let Some(text) = value.string() {
        relayed.feed_json(text);
        return 1;
    }
    match value.kind() {
        ValueKind::Array if depth > 0 => value.items().map(|item| count_value(item, depth - 1, relayed)).sum(),
        ValueKind::Object if depth > 0 => count_members(value, &[], depth - 1, relayed),
        _ => 0,
    }
}
