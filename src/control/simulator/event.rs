//! Common types of all APIs for writing an answer: its identity, its usage, and the events of a stream. Pure.

use super::ask::SimulatedRequest;
use super::signature;

/// Usage of an answer, exactly, in tokens as `provider::ask` and `provider::script` count them.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct AnswerUsage {
    /// Tokens of the prompt, including the two below.
    pub prompt: u64,
    /// Prompt tokens read from a cache.
    pub cached: u64,
    /// Prompt tokens written to a cache.
    pub written: u64,
    /// Tokens of the answer.
    pub completion: u64,
    /// Answer tokens that are reasoning.
    pub thought: u64,
}

/// Values that every event of one answer repeats.
#[derive(Clone, Debug)]
pub struct AnswerIdentity {
    /// Number of the answer since the provider started.
    pub serial: u64,
    /// Model name as requested.
    pub model: String,
    /// Seconds since the epoch.
    pub created: u64,
    /// Chat: true if the usage chunk is requested, so every other chunk has `"usage":null`.
    pub include_usage: bool,
    /// True if no usage is reported at all.
    pub no_usage: bool,
    /// True if optional members of an answer are left out.
    pub bare: bool,
    /// True if lines end in CRLF.
    pub crlf: bool,
    /// True if the answer is a refusal.
    pub refuses: bool,
    /// Chat: length of the first call's thought signature; `None` if the model makes none.
    pub signature: Option<u64>,
    /// Number of copies of a completion's text, or of images; seconds of audio.
    pub texts: u64,
    /// Content type of an answer in bytes.
    pub audio: Option<&'static str>,
}

impl AnswerIdentity {
    /// Returns the identity of the answer to `ask`.
    pub fn new(ask: &SimulatedRequest, serial: u64, created: u64) -> AnswerIdentity {
        AnswerIdentity {
            serial,
            model: ask.model.clone(),
            created,
            include_usage: ask.include_usage,
            no_usage: ask.directives.no_usage,
            bare: ask.directives.bare,
            crlf: ask.directives.crlf,
            refuses: ask.directives.refuse,
            signature: signature::has_them(&ask.model).then(|| ask.directives.signature.unwrap_or(signature::LENGTH)),
            texts: ask.texts,
            audio: ask.audio,
        }
    }
}

/// An event of a stream. `block` counts the parts of the answer, `call` its tool calls; both from 0.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // the fields are the words above
pub enum AnswerEvent<'a> {
    /// The first event.
    Start(AnswerUsage),
    /// Reasoning begins.
    OpenThought { block: usize },
    /// A piece of reasoning.
    Thought { block: usize, piece: &'a str },
    /// The signature of the reasoning, which ends it.
    Sign { block: usize },
    /// A text begins.
    OpenText { block: usize },
    /// A piece of it.
    Text { block: usize, piece: &'a str },
    /// A tool call begins.
    OpenCall { block: usize, call: usize, name: &'a str },
    /// A piece of a call's arguments.
    Args { block: usize, call: usize, piece: &'a str },
    /// A part ends.
    Close { block: usize },
    /// The reason for the end of the answer, the stop sequence that occurred, and the usage.
    Finish { finish: super::script::Finish, sequence: Option<&'a str>, usage: AnswerUsage },
    /// The usage in an event of its own, for APIs that have it.
    Usage(AnswerUsage),
    /// The last event.
    End,
    /// A keep-alive without meaning.
    Ping,
    /// A failure within the stream.
    Error(&'a str),
    /// A malformed event.
    Garbage,
}

/// Appends one server-sent event.
pub fn sse(out: &mut Vec<u8>, crlf: bool, name: Option<&str>, data: &str) {
    let end: &[u8] = if crlf { b"\r\n" } else { b"\n" };
    if let Some(name) = name {
        out.extend_from_slice(b"event: ");
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(end);
    }
    out.extend_from_slice(b"data: ");
    out.extend_from_slice(data.as_bytes());
    out.extend_from_slice(end);
    out.extend_from_slice(end);
}

/// Returns `text` as a JSON string, quotes included.
pub fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
