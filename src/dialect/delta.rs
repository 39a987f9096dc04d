//! The one vocabulary between the shapes' streams: a reader per shape speaks it, a writer per shape understands it.
//!
//! Owns the words and the mapping of stop reasons. Must never name a shape's event. Texts are the insides of JSON
//! strings, escapes and all: they pass from one shape to the other without being unescaped.

use super::answer::StreamFault;
use super::usage::Reported;

/// Tool calls that one answer may hold. A model asks for a handful; beyond this the stream is refused.
pub(super) const TOOL_CALLS_MAX: usize = 128;
/// Bytes of tool arguments that may wait for their turn, over all calls of one answer: a messages stream has one open
/// block at a time, a chat stream may send fragments of several calls by turns.
pub(super) const TOOL_HELD_MAX: usize = 4 << 20;

/// Why an answer ended.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub(super) enum StopReason {
    /// The model was done.
    End,
    /// A stop sequence came up.
    Sequence,
    /// A bound on tokens was reached.
    Length,
    /// Tools are to be called.
    Tools,
    /// The model or a filter refused.
    Refusal,
    /// Not said, or a word not known.
    #[default]
    Unknown,
}

impl StopReason {
    /// From a chat `finish_reason`.
    pub(super) fn from_chat(word: &[u8]) -> StopReason {
        match word {
            b"stop" => StopReason::End,
            b"length" => StopReason::Length,
            b"tool_calls" | b"function_call" => StopReason::Tools,
            b"content_filter" => StopReason::Refusal,
            _ => StopReason::Unknown,
        }
    }

    /// From a messages `stop_reason`.
    pub(super) fn from_messages(word: &[u8]) -> StopReason {
        match word {
            b"end_turn" | b"pause_turn" => StopReason::End,
            b"stop_sequence" => StopReason::Sequence,
            b"max_tokens" | b"model_context_window_exceeded" => StopReason::Length,
            b"tool_use" => StopReason::Tools,
            b"refusal" => StopReason::Refusal,
            _ => StopReason::Unknown,
        }
    }

    /// As a chat `finish_reason`; `tools`: the answer calls at least one.
    pub(super) fn to_chat(self, tools: bool) -> &'static str {
        match self {
            StopReason::Length => "length",
            StopReason::Tools => "tool_calls",
            StopReason::Refusal => "content_filter",
            StopReason::Unknown if tools => "tool_calls",
            _ => "stop",
        }
    }

    /// What a response says it lacks; `None` for one that is complete.
    pub(super) fn to_responses(self) -> Option<&'static str> {
        match self {
            StopReason::Length => Some("max_output_tokens"),
            StopReason::Refusal => Some("content_filter"),
            _ => None,
        }
    }

    /// From what a response says it lacks.
    pub(super) fn from_responses(word: &[u8]) -> StopReason {
        match word {
            b"max_output_tokens" => StopReason::Length,
            b"content_filter" => StopReason::Refusal,
            _ => StopReason::Unknown,
        }
    }

    /// As a messages `stop_reason`. Servers that say `stop` though tools are called mean the tools.
    pub(super) fn to_messages(self, tools: bool) -> &'static str {
        match self {
            StopReason::Length => "max_tokens",
            StopReason::Tools => "tool_use",
            StopReason::Refusal => "refusal",
            _ if tools => "tool_use",
            StopReason::Sequence => "stop_sequence",
            _ => "end_turn",
        }
    }
}

/// One step of an answer.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Delta<'a> {
    /// The answer begins.
    Start,
    /// More text.
    Text(&'a [u8]),
    /// More of a refusal.
    Refuse(&'a [u8]),
    /// More reasoning.
    Think(&'a [u8]),
    /// The reasoning so far is one whole piece, or one that is told in no words.
    Thought {
        /// What the target wants to see of it again, as JSON in its own shape; `None` if nothing.
        block: Option<&'a [u8]>,
    },
    /// A tool call begins. Slots count from 0 in the order of the calls.
    ToolOpen {
        /// Which call.
        slot: usize,
        /// Its id; empty if the upstream gave none.
        id: &'a [u8],
        /// The tool's name.
        name: &'a [u8],
    },
    /// More of a call's arguments: a piece of JSON text, itself escaped.
    ToolArgs {
        /// Which call.
        slot: usize,
        /// The piece.
        json: &'a [u8],
    },
    /// A call's arguments are complete. Not every shape says so.
    ToolClose {
        /// Which call.
        slot: usize,
    },
    /// The reason for the end.
    Stop {
        /// Why.
        reason: StopReason,
        /// The stop sequence that came up, if told.
        sequence: Option<&'a [u8]>,
        /// A refusal's words, if told.
        explanation: Option<&'a [u8]>,
    },
    /// Tokens so far.
    Usage(Reported),
    /// A sign of life without content.
    Ping,
    /// The end.
    End,
}

/// Where deltas go.
pub(super) trait Take {
    /// Takes one delta.
    fn take(&mut self, delta: Delta<'_>) -> Result<(), StreamFault>;
}
