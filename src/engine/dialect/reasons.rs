//! Finds the finish reasons in an answer as the client gets it, for reports.
//!
//! Must never report content: only words that are known.

/// Maximum number of reasons kept of an answer: one for each choice.
pub(super) const REASONS_MAX: usize = 128;
/// Known finish reasons of the API formats, and those that the dialect takes for one of them; others are not reported.
const REASONS: [&str; 17] = [
    "stop",
    "length",
    "tool_calls",
    "content_filter",
    "function_call",
    "end_turn",
    "max_tokens",
    "stop_sequence",
    "tool_use",
    "pause_turn",
    "model_context_window_exceeded",
    "refusal",
    "safety",
    "sensitive",
    "completed",
    "max_output_tokens",
    "failed",
];

/// Sets the reason of an answer that has one choice.
pub(super) fn only(reasons: &mut Vec<&'static str>, reason: Option<&'static str>) {
    if let Some(reason) = reason {
        *reasons = vec![reason];
    }
}

/// The bytes after the first of these names.
pub(super) fn first<'a>(out: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    out.windows(name.len()).position(|window| window == name).map(|at| &out[at + name.len()..])
}

/// The bytes after the last of these names.
pub(super) fn last<'a>(out: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    out.windows(name.len()).rposition(|window| window == name).map(|at| &out[at + name.len()..])
}

/// The reason that begins here, after the name of its member. Gemini writes it in capital letters, or with more after
/// a colon.
pub(super) fn reason(rest: &[u8]) -> Option<&'static str> {
    let rest = rest.trim_ascii_start().strip_prefix(b":")?;
    let word = rest.trim_ascii_start().strip_prefix(b"\"")?.split(|byte| matches!(byte, b'"' | b':')).next()?;
    REASONS.into_iter().find(|reason| reason.as_bytes().eq_ignore_ascii_case(word))
}

#[cfg(test)]
mod tests {
    use crate::dialect::dispatch::add_reasons;
    use crate::wire::Shape;

    #[test]
    fn every_choice_has_its_reason() {
        let chat = Shape::Chat;
        let far = format!(
            r#"{{"choices":[{{"finish_reason":"stop","x":"{}"}},{{"finish_reason":"length"}}]}}"#,
            "y".repeat(9000)
        );
        for (shape, out, found) in [
            (chat, r#"data: {"choices":[{"delta":{},"finish_reason":"stop"}]}"#, &["stop"][..]),
            (chat, r#"{"choices":[{"finish_reason" : "length", "index":0}],"usage":{}}"#, &["length"]),
            (chat, &far, &["stop", "length"]),
            (chat, r#"{"choices":[{"finish_reason":null}]}"#, &[]),
            (chat, r#"{"choices":[{"finish_reason":"words of a model"}]}"#, &[]),
            (chat, r#"{"content":"{\"finish_reason\":\"stop\"}"}"#, &[]),
            (
                chat,
                r#"{"choices":[{"finish_reason":"MAX_TOKENS"},{"finish_reason":"SAFETY"}]}"#,
                &["max_tokens", "safety"],
            ),
            (chat, r#"{"choices":[{"finish_reason":"content_filter: RECITATION"}]}"#, &["content_filter"]),
            (chat, r#"{"choices":[{"finish_reason":"sensitive"}]}"#, &["sensitive"]),
            (Shape::Messages, r#"{"stop_reason":"model_context_window_exceeded"}"#, &["model_context_window_exceeded"]),
            (chat, r#"{"finish_reason"#, &[]),
            (chat, "", &[]),
            (
                Shape::Messages,
                r#"{"content":[{"type":"tool_use","input":{"stop_reason":"refusal"}}],"stop_reason":"tool_use"}"#,
                &["tool_use"],
            ),
            (
                Shape::Responses,
                r#"{"status":"completed","incomplete_details":null,"output":[{"status":"completed"}]}"#,
                &["completed"],
            ),
            (
                Shape::Responses,
                r#"{"status":"incomplete","incomplete_details":{"reason":"max_output_tokens"},"output":[{"status":"completed"}]}"#,
                &["max_output_tokens"],
            ),
        ] {
            let mut reasons = Vec::new();
            add_reasons(shape, true, out.as_bytes(), &mut reasons);
            assert_eq!(reasons, found, "{out}");
        }
    }
}
