//! What both shapes share when an answer is written: who it is, what it cost, and the events of a stream before
//! they are spelled. Pure.

use super::ask::Ask;

/// What an answer cost, exactly, in tokens as `provider::ask` and `provider::script` count them.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Tokens of the prompt, the two below included.
    pub prompt: u64,
    /// Of these, read from a cache.
    pub cached: u64,
    /// Of these, written to a cache.
    pub written: u64,
    /// Tokens of the answer.
    pub completion: u64,
    /// Of these, reasoning.
    pub thought: u64,
}

/// What every event of one answer repeats.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Number of the answer since the provider started.
    pub serial: u64,
    /// The model's name as asked.
    pub model: String,
    /// Seconds since the epoch.
    pub created: u64,
    /// Chat: the usage chunk is wanted, so every other chunk says `"usage":null`.
    pub include_usage: bool,
    /// No usage is reported at all.
    pub no_usage: bool,
    /// Members that an answer may lack are left out.
    pub bare: bool,
    /// Lines end in CRLF.
    pub crlf: bool,
    /// The answer is a refusal.
    pub refuses: bool,
    /// How often a completion gives its text.
    pub texts: u64,
}

impl Identity {
    /// For the answer to `ask`.
    pub fn new(ask: &Ask, serial: u64, created: u64) -> Identity {
        Identity {
            serial,
            model: ask.model.clone(),
            created,
            include_usage: ask.include_usage,
            no_usage: ask.directives.no_usage,
            bare: ask.directives.bare,
            crlf: ask.directives.crlf,
            refuses: ask.directives.refuse,
            texts: ask.texts,
        }
    }
}

/// One event of a stream. `block` counts the parts of the answer, `call` its tool calls; both from 0.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // the fields are the words above
pub enum Event<'a> {
    /// The first one.
    Start(Usage),
    /// Reasoning begins.
    OpenThought { block: usize },
    /// A piece of it.
    Thought { block: usize, piece: &'a str },
    /// It is signed, which ends it.
    Sign { block: usize },
    /// A text begins.
    OpenText { block: usize },
    /// A piece of it.
    Text { block: usize, piece: &'a str },
    /// A tool call begins.
    OpenCall { block: usize, call: usize, name: &'a str },
    /// A piece of its arguments.
    Args { block: usize, call: usize, piece: &'a str },
    /// A part ends.
    Close { block: usize },
    /// Why the answer ends, the stop sequence that came up, and what it cost.
    Finish { finish: super::script::Finish, sequence: Option<&'a str>, usage: Usage },
    /// The usage alone, where the shape has it so.
    Usage(Usage),
    /// The last one.
    End,
    /// A sign of life without meaning.
    Ping,
    /// A failure within the stream.
    Error(&'a str),
    /// An event that is not what it should be.
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

/// `text` as a JSON string, quotes included.
pub fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
