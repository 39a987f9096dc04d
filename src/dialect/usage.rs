//! Token counts that an upstream reports, in the same terms for all shapes.
//!
//! Owns the reading of counters. Must never add two reports up: all shapes report totals so far. Called by
//! [`super::tap`], `super::convert` and [`super::replies`], which hand the result to `gateway` for settling.

use super::keys::K;
use crate::base::limits::ROW_TOKENS_MAX;
use crate::wire::json::Raw;

/// A count of tokens as an upstream reports it. What is absurd is not believed: it counts as not reported.
#[inline]
pub(super) fn tokens(value: Raw<'_>) -> Option<u64> {
    value.count().filter(|tokens| *tokens <= ROW_TOKENS_MAX)
}

/// Counters as an upstream has reported them; `None` where it said nothing.
#[derive(Copy, Clone, Default, PartialEq, Eq, Debug)]
pub struct Reported {
    /// Prompt tokens that were neither read from nor written to a cache.
    pub input: Option<u64>,
    /// Prompt tokens read from a cache.
    pub cache_read: Option<u64>,
    /// Prompt tokens written to a cache.
    pub cache_write: Option<u64>,
    /// Completion tokens, reasoning included.
    pub output: Option<u64>,
    /// Reasoning tokens among them. Only translated, never charged separately.
    pub reasoning: Option<u64>,
}

/// The members of a chat answer's `usage` as they are met; of a repeated one the last counts.
#[derive(Copy, Clone, Default, Debug)]
pub(super) struct ChatUsage {
    prompt: Option<u64>,
    total: Option<u64>,
    /// Cached tokens under the names of DeepSeek and Moonshot, outside of the details.
    cached: Option<u64>,
    seen: Reported,
}

impl ChatUsage {
    /// Notes a member.
    #[inline]
    pub(super) fn member(&mut self, key: K, value: Raw<'_>) {
        match key {
            K::PromptTokens => self.prompt = tokens(value),
            K::CompletionTokens => self.seen.output = tokens(value),
            K::TotalTokens => self.total = tokens(value),
            K::PromptCacheHitTokens | K::CachedTokens => self.cached = tokens(value).or(self.cached),
            K::PromptTokensDetails => {
                self.seen.cache_read = value.get("cached_tokens").and_then(tokens);
                self.seen.cache_write = value.get("cache_write_tokens").and_then(tokens);
            }
            K::CompletionTokensDetails => self.seen.reasoning = value.get("reasoning_tokens").and_then(tokens),
            _ => {}
        }
    }

    /// Replaces the counters of prompt and completion, which then make up the whole total.
    pub(super) fn with(self, prompt: u64, completion: u64) -> ChatUsage {
        ChatUsage {
            prompt: Some(prompt),
            total: None,
            seen: Reported { output: Some(completion), ..self.seen },
            ..self
        }
    }

    /// Report that the counters give together.
    pub(super) fn reported(self) -> Reported {
        let cache_read = self.seen.cache_read.max(self.cached);
        let cached = cache_read.unwrap_or(0).saturating_add(self.seen.cache_write.unwrap_or(0));
        let input = self.prompt.map(|prompt| prompt.checked_sub(cached).unwrap_or(prompt));
        Reported { input, cache_read, ..self.seen }.with_reasoning(self.prompt, self.total)
    }
}

/// Usage that was observed in an answer.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct ObservedUsage {
    /// Report of the upstream so far. After a stream was cut short `output` may be the small number that opens a
    /// messages stream; `relayed_tokens` is then the better one.
    pub reported: Reported,
    /// Estimated tokens of what was relayed: text, reasoning, tool names and arguments. 0 for a whole answer that
    /// reports its output: no estimate is made then.
    pub relayed_tokens: u64,
}

impl Reported {
    /// Takes over what a later report knows. A known counter is replaced, never added to, never erased.
    #[inline]
    pub fn merge(&mut self, later: Reported) {
        self.input = later.input.or(self.input);
        self.cache_read = later.cache_read.or(self.cache_read);
        self.cache_write = later.cache_write.or(self.cache_write);
        self.output = later.output.or(self.output);
        self.reasoning = later.reasoning.or(self.reasoning);
    }

    /// Adds reasoning to the output where the provider has counted it apart, which its total shows.
    fn with_reasoning(mut self, prompt: Option<u64>, total: Option<u64>) -> Reported {
        if let (Some(prompt), Some(output), Some(reasoning), Some(total)) = (prompt, self.output, self.reasoning, total)
            && total == prompt.saturating_add(output).saturating_add(reasoning)
        {
            self.output = Some(output.saturating_add(reasoning));
        }
        self
    }

    /// True if prompt and completion are both known.
    pub fn is_complete(&self) -> bool {
        self.input.is_some() && self.output.is_some()
    }

    /// The whole prompt, cached tokens included; `None` if the upstream reported none of it.
    pub fn prompt(&self) -> Option<u64> {
        let cached = self.cache_read.unwrap_or(0).saturating_add(self.cache_write.unwrap_or(0));
        self.input.map(|input| input.saturating_add(cached))
    }

    /// Reads the `usage` object of a chat answer or chunk. `prompt_tokens` includes what is cached and is split here;
    /// an upstream whose counters say otherwise (cached > prompt) has excluded it already.
    pub fn from_chat(usage: Raw<'_>) -> Reported {
        let mut seen = ChatUsage::default();
        for (key, value) in usage.members() {
            seen.member(K::of(key), value);
        }
        seen.reported()
    }

    /// Reads the `usage` object of a response. `input_tokens` includes what is cached and is split here, as in the chat
    /// shape.
    pub fn from_responses(usage: Raw<'_>) -> Reported {
        let names = ["input_tokens", "output_tokens", "input_tokens_details", "output_tokens_details", "total_tokens"];
        let [input, output, of_input, of_output, total] = usage.pick(names);
        let [read, write] = of_input.unwrap_or(Raw::NULL).pick(["cached_tokens", "cache_write_tokens"]);
        let (cache_read, cache_write) = (read.and_then(tokens), write.and_then(tokens));
        let cached = cache_read.unwrap_or(0).saturating_add(cache_write.unwrap_or(0));
        let prompt = input.and_then(tokens);
        let reported = Reported {
            input: prompt.map(|input| input.checked_sub(cached).unwrap_or(input)),
            cache_read,
            cache_write,
            output: output.and_then(tokens),
            reasoning: of_output.and_then(|details| details.get("reasoning_tokens")).and_then(tokens),
        };
        reported.with_reasoning(prompt, total.and_then(tokens))
    }

    /// Reads the `usage` object of a messages answer, `message_start` or `message_delta`.
    pub fn from_messages(usage: Raw<'_>) -> Reported {
        let [input, output, read, write, of_output] = usage.pick([
            "input_tokens",
            "output_tokens",
            "cache_read_input_tokens",
            "cache_creation_input_tokens",
            "output_tokens_details",
        ]);
        Reported {
            input: input.and_then(tokens),
            cache_read: read.and_then(tokens),
            cache_write: write.and_then(tokens),
            output: output.and_then(tokens),
            reasoning: of_output.and_then(|details| details.get("thinking_tokens")).and_then(tokens),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_reports_replace_and_never_erase() {
        let mut seen = Reported { input: Some(10), output: Some(1), ..Reported::default() };
        seen.merge(Reported { output: Some(7), cache_read: Some(3), ..Reported::default() });
        seen.merge(Reported::default());
        let want = Reported { input: Some(10), output: Some(7), cache_read: Some(3), ..Reported::default() };
        assert_eq!(seen, want);
        assert!(seen.is_complete());
        assert_eq!(seen.prompt(), Some(13));
    }

    #[test]
    fn chat_prompt_tokens_include_what_is_cached_unless_the_numbers_say_otherwise() {
        let read = |text: &str| Reported::from_chat(Raw::new(text.as_bytes()));
        let inclusive = read(
            r#"{"prompt_tokens":100,"completion_tokens":5,"prompt_tokens_details":
               {"cached_tokens":60,"cache_write_tokens":10},"completion_tokens_details":{"reasoning_tokens":4}}"#,
        );
        let want = Reported {
            input: Some(30),
            cache_read: Some(60),
            cache_write: Some(10),
            output: Some(5),
            reasoning: Some(4),
        };
        assert_eq!(inclusive, want);
        let exclusive = read(r#"{"prompt_tokens":20,"prompt_tokens_details":{"cached_tokens":60}}"#);
        assert_eq!((exclusive.input, exclusive.cache_read, exclusive.output), (Some(20), Some(60), None));
        assert_eq!(read("null"), Reported::default());
        assert_eq!(read(r#"{"prompt_tokens":null,"completion_tokens":"7"}"#), Reported::default());
        // As a number with an exponent is none, an absurd one is not believed.
        let absurd = read(r#"{"prompt_tokens":99999999999999999999999,"completion_tokens":1e3}"#);
        assert_eq!(absurd, Reported::default());
        assert_eq!(read(r#"{"prompt_tokens":1099511627776}"#).input, Some(ROW_TOKENS_MAX));
        assert_eq!(read(r#"{"prompt_tokens":1099511627777}"#).input, None);
    }

    #[test]
    fn messages_input_tokens_exclude_what_is_cached() {
        let seen = Reported::from_messages(Raw::new(
            br#"{"input_tokens":3,"cache_read_input_tokens":5,"cache_creation_input_tokens":null,"output_tokens":9}"#,
        ));
        assert_eq!((seen.input, seen.cache_read, seen.cache_write, seen.output), (Some(3), Some(5), None, Some(9)));
        assert_eq!(seen.prompt(), Some(8));
    }
}
