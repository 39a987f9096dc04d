//! Translated output for Messages clients satisfies Anthropic's published schema: complete answers, and every
//! event of a stream. The translated streams of all other tests are checked, too.
//!
//! Owns the part of the schema that a translation can write, from the OpenAPI document of Anthropic's API: the required
//! members of each object, and their types.

use super::*;
use serde_json::json as value;

/// Type of a required member. The last letter of its notation is `?` if it may be null.
type Required = &'static [(&'static str, &'static str)];

const MESSAGE: Required = &[
    ("id", "string"),
    ("type", "=message"),
    ("role", "=assistant"),
    ("content", "array"),
    ("model", "string"),
    ("stop_reason", "string?"),
    ("stop_sequence", "string?"),
    ("stop_details", "object?"),
    ("usage", "object"),
    ("container", "object?"),
];
const USAGE: Required = &[
    ("cache_creation", "object?"),
    ("cache_creation_input_tokens", "count?"),
    ("cache_read_input_tokens", "count?"),
    ("inference_geo", "string?"),
    ("input_tokens", "count"),
    ("output_tokens", "count"),
    ("output_tokens_details", "object?"),
    ("server_tool_use", "object?"),
    ("service_tier", "string?"),
];
const DELTA: Required =
    &[("container", "object?"), ("stop_details", "object?"), ("stop_reason", "string?"), ("stop_sequence", "string?")];
const DELTA_USAGE: Required = &[
    ("cache_creation_input_tokens", "count?"),
    ("cache_read_input_tokens", "count?"),
    ("input_tokens", "count?"),
    ("output_tokens", "count"),
    ("output_tokens_details", "object?"),
    ("server_tool_use", "object?"),
];
const STOP_REASONS: [&str; 7] =
    ["end_turn", "max_tokens", "stop_sequence", "tool_use", "pause_turn", "refusal", "model_context_window_exceeded"];

/// Members of the blocks of a message and of their deltas, by type.
fn of_type(kind: &str) -> Required {
    match kind {
        "text" => &[("citations", "array?"), ("text", "string")],
        "tool_use" => &[("caller", "object"), ("id", "string"), ("input", "object"), ("name", "string")],
        "thinking" => &[("signature", "string"), ("thinking", "string")],
        "redacted_thinking" => &[("data", "string")],
        "text_delta" => &[("text", "string")],
        "input_json_delta" => &[("partial_json", "string")],
        "thinking_delta" => &[("thinking", "string")],
        "signature_delta" => &[("signature", "string")],
        _ => panic!("no type of the schema: {kind}"),
    }
}

fn has(object: &Value, required: Required) {
    for (name, kind) in required {
        let member = object.get(name).unwrap_or_else(|| panic!("`{name}` is missing: {object}"));
        let (kind, may_be_null) = kind.strip_suffix('?').map_or((*kind, false), |kind| (kind, true));
        let fits = match kind {
            "string" => member.is_string(),
            "object" => member.is_object(),
            "array" => member.is_array(),
            "count" => member.is_u64(),
            word => Some(member) == word.strip_prefix('=').map(Value::from).as_ref(),
        };
        assert!(fits || (may_be_null && member.is_null()), "`{name}` is not {kind}: {object}");
    }
    if let Some(reason) = object["stop_reason"].as_str() {
        assert!(STOP_REASONS.contains(&reason), "{object}");
    }
    if object["stop_details"].is_object() {
        has(&object["stop_details"], &[("type", "=refusal"), ("category", "string?"), ("explanation", "string?")]);
    }
    if object["output_tokens_details"].is_object() {
        has(&object["output_tokens_details"], &[("thinking_tokens", "count")]);
    }
}

fn typed(object: &Value) {
    has(object, of_type(object["type"].as_str().unwrap_or_else(|| panic!("no type: {object}"))));
}

/// Checks a complete message.
pub(super) fn message(message: &Value) {
    has(message, MESSAGE);
    has(&message["usage"], USAGE);
    message["content"].as_array().unwrap().iter().for_each(typed);
}

/// Checks all events of a stream.
pub(super) fn events(out: &str) {
    for event in out.split("\n\n").filter(|event| !event.is_empty()) {
        let (name, data) = event.split_once("\ndata: ").unwrap_or_else(|| panic!("{event}"));
        let event: Value = serde_json::from_str(data).unwrap();
        let kind = name.strip_prefix("event: ").unwrap();
        assert_eq!(event["type"], kind, "{event}");
        match kind {
            "message_start" => message(&event["message"]),
            "content_block_start" | "content_block_delta" => {
                has(&event, &[("index", "count")]);
                typed(event.get("content_block").unwrap_or(&event["delta"]));
            }
            "content_block_stop" => has(&event, &[("index", "count")]),
            "message_delta" => {
                has(&event["delta"], DELTA);
                has(&event["usage"], DELTA_USAGE);
            }
            "message_stop" | "ping" => {}
            _ => panic!("no event of the schema: {event}"),
        }
    }
}

#[test]
fn translated_answers_satisfy_the_schema_of_anthropic() {
    let (mut complete, mut streams) = (0, 0);
    for from in [Shape::Chat, Shape::Responses] {
        let format = if from == Shape::Chat { "upstream.chat" } else { "upstream.responses" };
        for (name, body) in entries(&format!(".{format}.response.json")) {
            let mut out = Vec::new();
            reply((from, Shape::Messages), &body, &TranslationState::default(), &ME, &mut out)
                .unwrap_or_else(|broken| panic!("{name}: {broken:?}"));
            message(&serde_json::from_slice(&out).unwrap());
            complete += 1;
        }
        for (_, body) in entries(&format!(".{format}.stream.sse")) {
            let outcome = stream_for((from, Shape::Messages), &TranslationState::default(), true, &ME, &[&body]);
            if outcome.result.is_ok() {
                events(&outcome.out);
                streams += 1;
            }
        }
    }
    assert!(complete >= 14 && streams >= 14, "{complete} complete answers, {streams} streams");
}

/// The examples whose name ends so; there may be none.
fn entries(ending: &str) -> Vec<(String, Vec<u8>)> {
    let names = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.ends_with(ending)).map(|name| (name.clone(), fixture(&name))).collect()
}

#[test]
fn message_that_lacks_a_member_is_found() {
    let usage = value!({"cache_creation": null, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0,
        "inference_geo": null, "input_tokens": 1, "output_tokens": 1, "output_tokens_details": null,
        "server_tool_use": null, "service_tier": null});
    let block = value!({"type": "text", "text": "a", "citations": null});
    let good = value!({"id": "a", "type": "message", "role": "assistant", "content": [block], "model": "m",
        "stop_reason": "end_turn", "stop_sequence": null, "stop_details": null, "container": null, "usage": usage});
    message(&good);
    let fails = |odd: &Value| std::panic::catch_unwind(|| message(odd)).is_err();
    for name in good.as_object().unwrap().keys() {
        let mut odd = good.clone();
        odd.as_object_mut().unwrap().remove(name);
        assert!(fails(&odd), "{name}");
    }
    for (pointer, wrong) in [
        ("/usage/input_tokens", value!(null)),
        ("/usage/service_tier", value!(7)),
        ("/content/0/type", value!("reasoning")),
        ("/content/0/text", value!(null)),
        ("/stop_reason", value!("stop")),
        ("/role", value!("user")),
    ] {
        let mut odd = good.clone();
        *odd.pointer_mut(pointer).unwrap() = wrong;
        assert!(fails(&odd), "{pointer}");
    }
}
