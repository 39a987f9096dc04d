//! The member names that the formats use, and a walk that reports each value with the path of names to it.
//!
//! Owns the names. Must never copy a value. Called by the taps, which read every event once.

use crate::wire::Span;
use crate::wire::json::{self, Stop, Token, Visitor};

macro_rules! names {
    ($($name:ident = $text:literal,)*) => {
        /// A member's name, as far as the taps distinguish names.
        #[derive(Copy, Clone, PartialEq, Eq, Debug)]
        pub enum K {
            /// Any other member.
            Other,
            /// Not a member but an item of an array.
            Item,
            $(#[doc = $text] $name,)*
        }

        impl K {
            /// Finds the name that the inside of a JSON string contains.
            #[inline]
            pub fn of(raw: &[u8]) -> K {
                $(const $name: &[u8] = $text.as_bytes();)*
                match raw {
                    $($name => K::$name,)*
                    _ => K::of_unusual(raw),
                }
            }

            #[inline(never)] // else every name saves the registers that only an escape needs
            fn of_unusual(raw: &[u8]) -> K {
                const BY_NAME: &[(&str, K)] = &[$(($text, K::$name),)*];
                match has_escape(raw) {
                    true => BY_NAME.iter().find(|(text, _)| eq_unescaped(raw, text)).map_or(K::Other, |(_, key)| *key),
                    false => K::Other,
                }
            }
        }
    };
}

#[allow(non_upper_case_globals)]
mod table {
    use crate::wire::json::{eq_unescaped, has_escape};

    names! {
        Arguments = "arguments",
        CacheCreationInputTokens = "cache_creation_input_tokens",
        CacheReadInputTokens = "cache_read_input_tokens",
        CachedTokens = "cached_tokens",
        Choices = "choices",
        CompletionTokens = "completion_tokens",
        CompletionTokensDetails = "completion_tokens_details",
        Content = "content",
        ContentBlock = "content_block",
        Cost = "cost",
        CostDetails = "cost_details",
        CostInUsdTicks = "cost_in_usd_ticks",
        Created = "created",
        Data = "data",
        Embeddings = "embeddings",
        Delta = "delta",
        Error = "error",
        FinishReason = "finish_reason",
        Function = "function",
        Id = "id",
        Input = "input",
        InputTokens = "input_tokens",
        InputTokensDetails = "input_tokens_details",
        IsByok = "is_byok",
        Message = "message",
        Meta = "meta",
        Model = "model",
        Name = "name",
        Output = "output",
        OutputTokens = "output_tokens",
        OutputTokensDetails = "output_tokens_details",
        Object = "object",
        PartialJson = "partial_json",
        PromptCacheHitTokens = "prompt_cache_hit_tokens",
        PromptTokens = "prompt_tokens",
        PromptTokensDetails = "prompt_tokens_details",
        Reasoning = "reasoning",
        ReasoningContent = "reasoning_content",
        PreviousResponseId = "previous_response_id",
        Refusal = "refusal",
        Response = "response",
        Results = "results",
        Role = "role",
        SequenceNumber = "sequence_number",
        Status = "status",
        StopReason = "stop_reason",
        Store = "store",
        Text = "text",
        Thinking = "thinking",
        ToolCalls = "tool_calls",
        TotalTokens = "total_tokens",
        Type = "type",
        Usage = "usage",
    }
}

pub use table::K;

/// Levels that a walk reports. Deeper values belong to values that are passed on whole.
const LEVELS: usize = 8;

/// Calls `each` with (buffer, path, last token, whole value with quotes or brackets) for every value.
pub(super) struct Walk<F> {
    keys: [K; LEVELS + 2],
    starts: [u32; LEVELS + 2],
    each: F,
}

impl<F: FnMut(&[u8], &[K], Token, Span)> Walk<F> {
    /// A walk from the top of a document.
    pub(super) fn new(each: F) -> Walk<F> {
        Walk { keys: [K::Other; LEVELS + 2], starts: [0; LEVELS + 2], each }
    }
}

/// Receives each value of a document, as [`Walk`] reports it.
type ValueSink<'a> = dyn FnMut(&[u8], &[K], Token, Span) + 'a;

/// Calls `each` for every value of a valid document, like [`Walk`], off the path of ordinary requests and events: one
/// copy of the scanner serves all callers.
#[cold]
pub(super) fn each_value(document: &[u8], each: &mut ValueSink<'_>) {
    let _ = json::scan(document, &mut Walk::new(each));
}

impl<F: FnMut(&[u8], &[K], Token, Span)> Visitor for Walk<F> {
    #[inline(always)]
    fn token(&mut self, buf: &[u8], token: Token, depth: usize, span: Span) -> Result<(), Stop> {
        if depth > LEVELS {
            return Ok(());
        }
        let whole = match token {
            Token::Key => {
                self.keys[depth] = K::of(span.of(buf));
                return Ok(());
            }
            Token::ObjectOpen | Token::ArrayOpen => {
                self.starts[depth] = span.start;
                self.keys[depth + 1] = K::Item;
                return Ok(());
            }
            Token::ObjectClose | Token::ArrayClose => Span { start: self.starts[depth], end: span.end },
            Token::String => Span { start: span.start - 1, end: span.end + 1 },
            _ => span,
        };
        (self.each)(buf, &self.keys[1..=depth], token, whole);
        Ok(())
    }
}
