//! The neutral form between the formats' streams: each format has a reader that produces it and a writer that consumes
//! it.
//!
//! Owns the deltas and the mapping of stop reasons. Must never name an event of a format. Texts are the insides of JSON
//! strings, with their escapes: they pass from one format to the other without being unescaped.

use crate::dialect::answer::StreamFault;
use crate::dialect::errors::{ErrorText, is_error};
use crate::dialect::usage::Reported;
use crate::wire::json::Raw;

/// Maximum number of tool calls in one answer. A model sends a handful; a stream with more is refused.
pub(crate) const TOOL_CALLS_MAX: usize = 128;
/// Bytes of one answer that may wait for the name of a call or for its end: a messages stream has one open block at a
/// time, but a chat stream may interleave fragments of several calls.
pub(crate) const TOOL_HELD_MAX: usize = 4 << 20;

/// Finish reasons, and statuses of a response, of an answer that the upstream did not complete.
const FAILURES: [&str; 11] = [
    "error",
    "failed",
    "abort",
    "aborted",
    "cancelled",
    "canceled",
    "in_progress",
    "queued",
    "insufficient_system_resource",
    "network_error",
    "malformed_function_call",
];
/// Gemini's finish reason for a tool call that it discarded; the cause follows.
const CALL_FILTER: &[u8] = b"function_call_filter:";
/// Finish reason of an answer cut off by a filter: Gemini appends the cause, chat has this word alone.
const CONTENT_FILTER: &[u8] = b"content_filter";

/// A finish reason. `None`: the answer continues, since some servers write an empty word or `"null"` into every event.
/// An error if the word reports a failure.
pub(crate) fn finish_word(value: Option<Raw<'_>>) -> Result<Option<Raw<'_>>, ErrorText> {
    let is_given = |value: &Raw<'_>| value.string().is_some_and(|word| !word.is_empty() && word != b"null");
    let Some(value) = value.filter(is_given) else { return Ok(None) };
    match is_failure(value) {
        true => Err(ErrorText::unfinished(value)),
        false => Ok(Some(value)),
    }
}

/// True if a finish reason reports a failure, in lower or upper case.
fn is_failure(word: Raw<'_>) -> bool {
    let word = word.word().unwrap_or_default();
    FAILURES.iter().any(|failure| word.eq_ignore_ascii_case(failure.as_bytes())) || word.starts_with(CALL_FILTER)
}

/// True for `[]`. Asking for the first item would scan all of it.
pub(crate) fn lists_nothing(list: Raw<'_>) -> bool {
    list.bytes().get(1..).is_some_and(|inside| inside.trim_ascii_start().starts_with(b"]"))
}

/// Number of choices that end with a chat event or answer. An error if one of them has failed.
pub(crate) fn finishes(choices: Raw<'_>) -> Result<u32, ErrorText> {
    let (mut choices, mut count) = (choices.items(), 0);
    while let Some((_, [word, error])) = choices.pick(["finish_reason", "error"]) {
        count += u32::from(choice_word(word, error)?.is_some());
    }
    Ok(count)
}

/// A choice's finish reason, as [`finish_word`] returns it, or the error in the choice.
pub(crate) fn choice_word<'a>(word: Option<Raw<'a>>, error: Option<Raw<'a>>) -> Result<Option<Raw<'a>>, ErrorText> {
    match error.filter(|error| is_error(*error)) {
        Some(error) => Err(ErrorText::from_value(error)),
        None => finish_word(word),
    }
}

/// Reason for the end of an answer.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub(crate) enum StopReason {
    /// The model finished.
    End,
    /// A stop sequence occurred.
    Sequence,
    /// A bound on tokens was reached.
    Length,
    /// Tools are to be called.
    Tools,
    /// The model or a filter refused.
    Refusal,
    /// Missing or unknown. It becomes the ordinary end in the other format.
    #[default]
    Unknown,
}

impl StopReason {
    /// From a chat `finish_reason`. `at_sequence`: the choice has a stop sequence.
    pub(crate) fn from_chat(word: Raw<'_>, at_sequence: bool) -> StopReason {
        match &*word.word().unwrap_or_default() {
            b"stop" if at_sequence => StopReason::Sequence,
            b"stop" => StopReason::End,
            b"length" => StopReason::Length,
            b"tool_calls" | b"function_call" => StopReason::Tools,
            CONTENT_FILTER => StopReason::Refusal,
            word => StopReason::from_other(word),
        }
    }

    /// From a messages `stop_reason`.
    pub(crate) fn from_messages(word: Raw<'_>) -> StopReason {
        match &*word.word().unwrap_or_default() {
            b"end_turn" | b"pause_turn" => StopReason::End,
            b"stop_sequence" => StopReason::Sequence,
            b"max_tokens" => StopReason::Length,
            b"tool_use" => StopReason::Tools,
            b"refusal" => StopReason::Refusal,
            word => StopReason::from_other(word),
        }
    }

    /// From a reason that the provider's own format does not have: some servers write another format's.
    fn from_other(word: &[u8]) -> StopReason {
        let is_one_of = |words: &[&str]| words.iter().any(|known| word.eq_ignore_ascii_case(known.as_bytes()));
        let filter = word.strip_prefix(CONTENT_FILTER);
        if is_one_of(&["length", "max_tokens", "model_context_window_exceeded"]) {
            StopReason::Length
        } else if is_one_of(&["refusal", "safety", "sensitive"]) || matches!(filter, Some([] | [b':', ..])) {
            StopReason::Refusal
        } else {
            StopReason::Unknown
        }
    }

    /// Value of chat's `finish_reason`; `tools`: the answer calls at least one.
    pub(crate) fn to_chat(self, tools: bool) -> &'static str {
        match self {
            StopReason::Length => "length",
            StopReason::Refusal => "content_filter",
            StopReason::Tools | StopReason::Unknown if tools => "tool_calls",
            _ => "stop",
        }
    }

    /// Reason for an incomplete response; `None` for a complete one.
    pub(crate) fn to_responses(self) -> Option<&'static str> {
        match self {
            StopReason::Length => Some("max_output_tokens"),
            StopReason::Refusal => Some("content_filter"),
            _ => None,
        }
    }

    /// From the `incomplete_details` of an incomplete response. An unknown reason becomes `Length`: the answer is cut
    /// off.
    pub(crate) fn from_responses(word: Option<Raw<'_>>) -> StopReason {
        match word {
            Some(word) if word.is("content_filter") => StopReason::Refusal,
            _ => StopReason::Length,
        }
    }

    /// Value of `stop_reason` in the messages format. `tools`: the answer calls at least one; a server that sends
    /// `stop` with calls means the tools. `refused`: the answer has a refusal, for which chat and responses have no
    /// reason of their own.
    pub(crate) fn to_messages(self, tools: bool, refused: bool) -> &'static str {
        match self {
            StopReason::Length => "max_tokens",
            StopReason::Refusal => "refusal",
            _ if tools => "tool_use",
            _ if refused => "refusal",
            StopReason::Sequence => "stop_sequence",
            _ => "end_turn",
        }
    }
}

/// A step of an answer.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Delta<'a> {
    /// The answer begins.
    Start,
    /// More text.
    Text(&'a [u8]),
    /// More of a refusal.
    Refuse(&'a [u8]),
    /// More reasoning.
    Reasoning(&'a [u8]),
    /// One piece of reasoning is complete; it may have had no text.
    ReasoningEnd {
        /// JSON in the target's own format that must be sent back to it; `None` if there is none.
        block: Option<&'a [u8]>,
    },
    /// A tool call begins. Slots count from 0 in the order of the calls.
    ToolOpen {
        /// Number of the call.
        slot: usize,
        /// Id of the call; empty if the upstream gave none.
        id: &'a [u8],
        /// The tool's name.
        name: &'a [u8],
    },
    /// More of a call's arguments: a piece of JSON text, itself escaped.
    ToolArgs {
        /// Number of the call.
        slot: usize,
        /// The piece.
        json: &'a [u8],
    },
    /// A call's arguments are complete. Not every format reports that.
    ToolClose {
        /// Number of the call.
        slot: usize,
    },
    /// The reason for the end.
    Stop {
        /// The reason.
        reason: StopReason,
        /// The stop sequence that occurred, if reported.
        sequence: Option<&'a [u8]>,
        /// Explanation of a refusal, if reported.
        explanation: Option<&'a [u8]>,
    },
    /// Tokens so far.
    Usage(Reported),
    /// A heartbeat without content.
    Ping,
    /// The end.
    End,
}

/// Kind of text in a delta. Repeating a delta of the same kind does not change reader or writer.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum TextKind {
    Text,
    Refuse,
    Think,
    Arguments(usize),
}

impl TextKind {
    /// A delta of this kind.
    pub(crate) fn delta(self, text: &[u8]) -> Delta<'_> {
        match self {
            TextKind::Text => Delta::Text(text),
            TextKind::Refuse => Delta::Refuse(text),
            TextKind::Think => Delta::Reasoning(text),
            TextKind::Arguments(slot) => Delta::ToolArgs { slot, json: text },
        }
    }
}

impl<'a> Delta<'a> {
    /// The text that it adds to the answer, with its kind.
    #[inline]
    pub(crate) fn text(&self) -> Option<(TextKind, &'a [u8])> {
        match *self {
            Delta::Text(text) => Some((TextKind::Text, text)),
            Delta::Refuse(text) => Some((TextKind::Refuse, text)),
            Delta::Reasoning(text) => Some((TextKind::Think, text)),
            Delta::ToolArgs { slot, json } => Some((TextKind::Arguments(slot), json)),
            _ => None,
        }
    }
}

/// Receiver of deltas.
pub(crate) trait Take {
    /// Takes one delta.
    fn take(&mut self, delta: Delta<'_>) -> Result<(), StreamFault>;
}
