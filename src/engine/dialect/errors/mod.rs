//! Errors: reads an upstream's error in any format, and writes Tollgate's in the format of the client.
//!
//! Owns the bodies. Must never decide a status or a type, nor mask a message: `policy::refusal` and the gateway do
//! that. Called by `gateway`.

pub(crate) mod account;
pub(crate) mod overflow;

use crate::base::limits::ERROR_BODY_MAX;
use crate::wire::json::{self, Number, OrElse, Quoted, Raw, member_count, put};
use crate::wire::{ModelEndpoint, Shape};

/// An upstream's error.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ErrorText {
    /// Message as the upstream sent it, at most [`ERROR_BODY_MAX`] characters; empty if there is none.
    pub message: String,
    /// Machine-readable type, if any: the reason in the details of an error of Google.
    pub kind: Option<String>,
    /// Machine-readable code, if any: a word, or a number in digits.
    pub code: Option<String>,
    /// Field of the request that the error is about, if any.
    pub param: Option<String>,
}

/// Error code for a prompt that exceeds the model's context, in both of OpenAI's formats.
pub(super) const OVERFLOW: &str = "context_length_exceeded";
/// Message for an answer that the provider ended with an error status but no explanation.
const UNFINISHED: &str = "the model's provider did not complete its response";
/// Maximum characters of the finish reason or status in that message.
const ERROR_WORD_MAX: usize = 64;

impl ErrorText {
    fn new(message: Option<Raw<'_>>, object: Option<Raw<'_>>) -> ErrorText {
        let cut = |text: Raw<'_>| text.text().map(|text| text.chars().take(ERROR_BODY_MAX).collect::<String>());
        let member = |name| object.and_then(|object| object.get(name));
        let number = |value: Raw<'_>| match value.kind() {
            json::ValueKind::Number => Some(String::from_utf8_lossy(value.bytes()).into_owned()),
            _ => cut(value),
        };
        let reason = || member("details")?.items().find_map(|one| one.get("reason"));
        ErrorText {
            message: message.and_then(cut).unwrap_or_default(),
            kind: member("type").or_else(reason).and_then(cut),
            code: member("code").and_then(number),
            param: member("param").and_then(cut),
        }
    }

    /// Error of an answer that is incomplete according to `word`, its finish reason or its status.
    pub(super) fn unfinished(word: Raw<'_>) -> ErrorText {
        let code = word.text().map(|word| word.chars().take(ERROR_WORD_MAX).collect());
        ErrorText { message: UNFINISHED.to_owned(), code, ..ErrorText::default() }
    }

    /// Reads the value of an `error` member: an object with `message` and `type`, or the message itself.
    pub fn from_value(error: Raw<'_>) -> ErrorText {
        if error.string().is_some() {
            return ErrorText::new(Some(error), None);
        }
        let [message, metadata, prompt, context] = error.pick(["message", "metadata", "n_prompt_tokens", "n_ctx"]);
        let mut text = ErrorText::new(message, Some(error));
        // OpenRouter puts the provider's own error behind a general message.
        let raw = metadata.and_then(|metadata| metadata.get("raw"));
        if let Some(inner) = raw.and_then(raw_error).filter(|inner| !inner.message.is_empty()) {
            return ErrorText { kind: inner.kind.or(text.kind), code: inner.code.or(text.code), ..inner };
        }
        // llama.cpp: the two counts report an overflow whatever the message says.
        if let (Some(prompt), Some(context)) = (prompt.and_then(Raw::count), context.and_then(Raw::count)) {
            text.message = format!("request ({prompt} tokens) exceeds the available context size ({context} tokens)");
        }
        text
    }
}

/// The error that a provider of OpenRouter returned: an object, JSON in a string, or the message itself.
fn raw_error(raw: Raw<'_>) -> Option<ErrorText> {
    match raw.text() {
        None => read_error(raw.bytes()),
        Some(text) if json::check(text.as_bytes()).is_ok() => read_error(text.as_bytes()),
        Some(_) => Some(ErrorText::new(Some(raw), None)),
    }
}

/// True if the value of an `error` member means an error: not `null`, `false`, an empty string or an empty object.
pub fn is_error(error: Raw<'_>) -> bool {
    !matches!(error.bytes(), b"null" | b"false" | b"\"\"") && (error.members().next().is_some() || !is_object(error))
}

fn is_object(value: Raw<'_>) -> bool {
    value.kind() == json::ValueKind::Object
}

/// Reads an upstream's error body of any format, also from servers that follow none exactly: `error` as a plain string,
/// `message` or `detail` at the top, or an event stream that begins with the error. `None` for HTML, an empty body or
/// anything else.
pub fn read_error(body: &[u8]) -> Option<ErrorText> {
    let body = if json::check(body).is_ok() { body } else { first_event(body)? };
    // Google wraps the object in an array.
    let body = Raw::new(body);
    let body = body.items().next().unwrap_or(body);
    if let Some(error) = body.get("error").filter(|error| is_error(*error)) {
        return Some(ErrorText::from_value(error));
    }
    let message = body.get("message").or_else(|| body.get("detail")).filter(|message| message.string().is_some())?;
    Some(ErrorText::new(Some(message), Some(body)))
}

/// The JSON of the first event with data, if it is in one line.
fn first_event(body: &[u8]) -> Option<&[u8]> {
    let mut lines = body.split(|byte| matches!(byte, b'\r' | b'\n'));
    let data = lines.find_map(|line| line.strip_prefix(b"data:"))?;
    json::check(data).is_ok().then_some(data)
}

/// Content of a client's error.
#[derive(Copy, Clone, Debug)]
pub struct ErrorWords<'a> {
    /// `error.type`.
    pub kind: &'a str,
    /// The status; also `error.code`, except in the responses format.
    pub status: u16,
    /// `error.code` in the responses format. Its clients decide by it.
    pub word: &'a str,
    /// `error.message`.
    pub message: &'a str,
    /// `error.details`: a JSON object for programs.
    pub details: Option<&'a str>,
    /// `error.resets_at` of the responses format, in seconds since 1970: the end of an exhausted period.
    pub resets_at: Option<u64>,
    /// The request's id.
    pub request_id: &'a str,
}

impl ErrorWords<'_> {
    /// True if the prompt exceeds the model's context.
    pub(super) fn is_overflow(&self) -> bool {
        self.word == OVERFLOW
    }

    /// The field that the message begins with, as refusals of a body do; `input` for a prompt that is too long.
    fn param(&self) -> Option<&str> {
        if self.is_overflow() {
            return Some("input");
        }
        let (path, _) = self.message.split_once(": ").filter(|_| self.status == 400)?;
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '[' | ']');
        (!path.is_empty() && path.chars().all(fits)).then_some(path)
    }

    fn write_object(&self, endpoint: Option<ModelEndpoint>, out: &mut Vec<u8>) {
        put!(out, r#"{"type":"#, Quoted(self.kind), r#","code":"#);
        match endpoint.map(|endpoint| endpoint.shape) {
            Some(Shape::Responses) => {
                put!(out, Quoted(self.word), r#","param":"#, OrElse(self.param().map(Quoted), "null"));
                if let Some(seconds) = self.resets_at {
                    member_count(out, "resets_at", seconds);
                }
            }
            Some(Shape::Chat) if self.is_overflow() => {
                put!(out, Quoted(self.word));
                if endpoint == Some(ModelEndpoint::CHAT) {
                    put!(out, r#","param":"messages""#);
                }
            }
            None | Some(Shape::Chat | Shape::Messages) => put!(out, Number(self.status.into())),
        }
        put!(out, r#","message":"#, Quoted(self.message));
        if let Some(details) = self.details {
            put!(out, r#","details":"#, details);
        }
        put!(out, r#","request_id":"#, Quoted(self.request_id), "}");
    }

    /// Appends the members of a responses stream's `error` event except type and number: flat, as the format defines
    /// them, and as an object, which the SDKs raise.
    pub(super) fn write_event(&self, out: &mut Vec<u8>) {
        put!(out, r#","code":"#, Quoted(self.word), r#","message":"#, Quoted(self.message));
        put!(out, r#","param":"#, OrElse(self.param().map(Quoted), "null"), r#","error":"#);
        self.write_object(Some(ModelEndpoint::RESPONSES), out);
    }

    /// Appends the `error` of a failed response.
    pub(super) fn write_brief(&self, out: &mut Vec<u8>) {
        put!(out, r#"{"code":"#, Quoted(self.word), r#","message":"#, Quoted(self.message), "}");
    }
}

/// Appends the error body. For [`Shape::Messages`] it has a top-level `"type":"error"`, for [`Shape::Responses`] a
/// word as its code. `None`: the endpoint is unknown, so the body is the plain one.
#[inline]
pub fn error_body(endpoint: Option<ModelEndpoint>, words: &ErrorWords<'_>, out: &mut Vec<u8>) {
    let head: &[u8] = match endpoint.map(|endpoint| endpoint.shape) {
        Some(Shape::Messages) => b"{\"type\":\"error\",\"error\":",
        None | Some(Shape::Chat | Shape::Responses) => b"{\"error\":",
    };
    out.extend_from_slice(head);
    words.write_object(endpoint, out);
    out.push(b'}');
}

/// Appends the event that ends a broken stream: for chat without a `[DONE]` after it, for messages and responses as
/// `event: error`.
pub fn error_event(endpoint: ModelEndpoint, words: &ErrorWords<'_>, out: &mut Vec<u8>) {
    let head: &[u8] = match endpoint.shape {
        Shape::Chat => b"data: ",
        Shape::Messages | Shape::Responses => b"event: error\ndata: ",
    };
    out.extend_from_slice(head);
    error_body(Some(endpoint), words, out);
    out.extend_from_slice(b"\n\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<(String, Option<String>)> {
        read_error(text.as_bytes()).map(|error| (error.message, error.kind))
    }

    #[test]
    fn errors_of_all_formats_and_deviating_servers_are_read() {
        let some = |message: &str, kind: Option<&str>| Some((message.to_owned(), kind.map(str::to_owned)));
        let chat =
            r#"{"error":{"message":"no \"such\" model","type":"invalid_request_error","param":null,"code":null}}"#;
        assert_eq!(read(chat), some("no \"such\" model", Some("invalid_request_error")));
        let messages =
            r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"},"request_id":"r"}"#;
        assert_eq!(read(messages), some("Overloaded", Some("overloaded_error")));
        assert_eq!(read(r#"{"error":"model is loading"}"#), some("model is loading", None));
        assert_eq!(
            read(r#"{"object":"error","message":"too long","type":"BadRequestError"}"#),
            some("too long", Some("BadRequestError"))
        );
        assert_eq!(read(r#"{"detail":"Not Found"}"#), some("Not Found", None));
        assert_eq!(read(r#"{"error":{"code":7}}"#), some("", None));
        // Gitlawb/openclaude#583: the OpenAI-compatible endpoint of AI Studio.
        let google = r#"[{"error":{"code":400,"message":"Corrupted thought signature.","status":"INVALID_ARGUMENT"}}]"#;
        assert_eq!(read(google), some("Corrupted thought signature.", None));
        // A server that answers a streamed request with an error status and an event stream.
        let stream = format!(": comment\r\n\r\nevent: error\r\ndata: {chat}\r\n\r\ndata: [DONE]\r\n\r\n");
        assert_eq!(read(&stream), some("no \"such\" model", Some("invalid_request_error")));
        assert_eq!((read("data: {\"error\""), read("event: error\n\n")), (None, None));
    }

    #[test]
    fn code_is_a_word_or_a_number() {
        let code = |text: &str| read_error(text.as_bytes()).and_then(|error| error.code);
        for (text, want) in [
            (r#"{"error":{"message":"m","code":"invalid_api_key"}}"#, Some("invalid_api_key")),
            (r#"{"error":{"message":"m","code":429}}"#, Some("429")),
            (r#"{"message":"m","code":"x"}"#, Some("x")),
            (r#"{"error":{"message":"m","code":null}}"#, None),
            (r#"{"error":{"message":"m","code":{"a":1}}}"#, None),
        ] {
            assert_eq!(code(text).as_deref(), want, "{text}");
        }
    }

    #[test]
    fn other_bodies_are_not_errors() {
        for text in ["", "<html>502</html>", "{}", "[]", r#"{"error":null}"#, r#"{"error":{}}"#, r#"{"detail":[1]}"#] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn long_message_is_cut_at_a_character() {
        let body = format!("{{\"error\":\"{}\"}}", "ä".repeat(ERROR_BODY_MAX + 5));
        assert_eq!(read(&body).map(|(message, _)| message.chars().count()), Some(ERROR_BODY_MAX));
    }

    #[test]
    fn bodies_and_events_have_the_clients_format() {
        let words = |status, message, details| ErrorWords {
            kind: "not_found_error",
            status,
            word: "model_not_found",
            message,
            details,
            resets_at: None,
            request_id: "req_1",
        };
        let body = |endpoint, words| {
            let mut out = Vec::new();
            error_body(endpoint, &words, &mut out);
            String::from_utf8(out).unwrap()
        };
        let plain = r#"{"error":{"type":"not_found_error","code":404,"message":"no \"x\"","request_id":"req_1"}}"#;
        assert_eq!(body(None, words(404, "no \"x\"", None)), plain);
        let messages = plain.replacen('{', "{\"type\":\"error\",", 1);
        assert_eq!(body(Some(ModelEndpoint::MESSAGES), words(404, "no \"x\"", None)), messages);
        let responses = plain.replace("404", "\"model_not_found\",\"param\":null");
        assert_eq!(body(Some(ModelEndpoint::RESPONSES), words(404, "no \"x\"", None)), responses);
        let named = body(Some(ModelEndpoint::RESPONSES), words(400, "input[2].role: expected user", None));
        assert!(named.contains("\"param\":\"input[2].role\""), "{named}");
        let detailed = plain.replace(",\"request_id", ",\"details\":{\"a\":1},\"request_id");
        assert_eq!(body(None, words(404, "no \"x\"", Some("{\"a\":1}"))), detailed);
        let mut out = Vec::new();
        error_event(ModelEndpoint::CHAT, &words(504, "late", None), &mut out);
        error_event(ModelEndpoint::MESSAGES, &words(504, "late", None), &mut out);
        let object = r#""error":{"type":"not_found_error","code":504,"message":"late","request_id":"req_1"}}"#;
        let want = format!("data: {{{object}\n\nevent: error\ndata: {{\"type\":\"error\",{object}\n\n");
        assert_eq!(String::from_utf8_lossy(&out), want);
    }
}
