//! Thought signatures of Gemini models in the chat API: the first call of an answer has one, and a conversation is
//! refused if the first call of a message of the current turn lacks it or has another's. Pure; called by
//! `provider::ask` and `provider::chat`. Error texts are those of Google AI Studio.
//!
//! <https://ai.google.dev/gemini-api/docs/thought-signatures>, Gitlawb/openclaude#583 and
//! bobrware/bobrchat#120 (error texts).

use crate::base::base64;
use crate::base::digest::sha256;
use serde_json::Value;

/// Usual length of a signature in characters.
pub(super) const LENGTH: u64 = 44;
/// Maximum length of a signature.
pub(super) const LENGTH_MAX: u64 = 1 << 20;
/// Words that are accepted instead of a signature.
const SKIPS: [&str; 2] = ["skip_thought_signature_validator", "context_engineering_is_the_way_to_go"];

/// True if a model makes and checks signatures: `gemini-3…` and later.
pub(super) fn has_them(model: &str) -> bool {
    let name = model.rsplit('/').next().unwrap_or_default();
    let version = name.strip_prefix("gemini-").unwrap_or_default();
    let number = version.split(['-', '.']).next().and_then(|number| number.parse::<u32>().ok());
    number.is_some_and(|number| number >= 3) && !version.contains("-image")
}

/// Returns the signature of a call: of this model and this id only.
pub(super) fn make(model: &str, id: &str, length: u64) -> String {
    let unit = base64::encode(&sha256(format!("{model}/{id}").as_bytes()));
    unit.chars().cycle().take(length.clamp(LENGTH, LENGTH_MAX) as usize).collect()
}

/// Returns the member of a call with its signature.
pub(super) fn member(signature: &str) -> String {
    format!(r#","extra_content":{{"google":{{"thought_signature":"{signature}"}}}}"#)
}

/// Checks the messages after the newest user message.
pub(super) fn check(model: &str, messages: &[Value]) -> Result<(), String> {
    let turn = messages.iter().rposition(|message| message["role"] == "user").map_or(0, |user| user + 1);
    let list = |message: &Value| message["tool_calls"].as_array().cloned().unwrap_or_default();
    for (at, message) in messages.iter().enumerate() {
        for (nth, call) in list(message).iter().enumerate() {
            let id = call["id"].as_str().unwrap_or_default();
            let given = call["extra_content"]["google"]["thought_signature"].as_str().unwrap_or_default();
            if given.is_empty() && nth == 0 && at >= turn {
                let name = call["function"]["name"].as_str().unwrap_or_default();
                return Err(format!(
                    "Function call is missing a thought_signature in functionCall parts. This is required for tools \
                     to work correctly, and missing thought_signature may lead to degraded model performance. \
                     Additional data, function call `default_api:{name}`, position {}.",
                    at + 1
                ));
            }
            let is_own = given.is_empty() || SKIPS.contains(&given) || given == make(model, id, given.len() as u64);
            if at >= turn && !is_own {
                return Err("Corrupted thought signature.".to_owned());
            }
        }
    }
    Ok(())
}

/// Returns the body of an error: an array.
pub(super) fn error_body(message: &str) -> String {
    serde_json::json!([{ "error": { "code": 400, "message": message, "status": "INVALID_ARGUMENT" } }]).to_string()
}
