//! Properties of the requests of a format that its translation needs.

use crate::dialect::request::Name;

/// Properties of the requests of a format.
#[derive(Debug)]
pub(crate) struct RequestFacts {
    /// Members with the system prompt and the conversation.
    pub(crate) opening: [Option<Name>; 2],
    /// Member with the stop sequences, and their maximum number.
    pub(crate) stops: (&'static str, usize),
    /// Member with the verbosity of the answer.
    pub(crate) verbosity: &'static str,
    /// Maximum characters of a tool's name.
    pub(crate) tool_name_max: usize,
    /// Bytes that a translation builds for each item.
    pub(crate) bytes_each: BytesEach,
    /// Marks end the prefixes of the prompt that are to be cached; otherwise a member names a key.
    pub(crate) marks_prefixes: bool,
    /// A message has one text.
    pub(crate) one_text: bool,
    /// The schemas of tools follow OpenAI's rules for strict ones if they say so.
    pub(crate) strict_by_rules: bool,
    /// The ids of a conversation's calls differ from each other.
    pub(crate) distinct_ids: bool,
}

impl RequestFacts {
    /// Name of the list of messages.
    pub(crate) fn list(&self) -> &'static str {
        self.opening[1].map_or("", Name::text)
    }
}

/// Bytes per item during a translation, in lists that grow by doubling. A test measures them.
#[derive(Debug)]
pub(crate) struct BytesEach {
    /// A message, an item of the input or a block of the system prompt, including one text.
    pub(crate) message: usize,
    /// A part of a message, a call or its result.
    pub(crate) part: usize,
    /// A tool, including its names in the tables.
    pub(crate) tool: usize,
}

impl BytesEach {
    /// Items that become turns one by one.
    pub(crate) const OF_MESSAGES: BytesEach = BytesEach { message: 512, part: 248, tool: 256 };
}
