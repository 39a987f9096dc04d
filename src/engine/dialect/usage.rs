//! Token counts that an upstream reports, in the same terms for all formats.
//!
//! Owns the reading of counters. Must never add two reports up: all formats report totals so far. Called by
//! [`super::relay`] and [`mod@super::translate`], which pass the result to `gateway` for settling.

use super::keys::K;
use super::tokens::Estimator;
use crate::base::limits::{ROW_COST_MAX, ROW_TOKENS_MAX};
use crate::wire::json::{Raw, ValueKind};
use std::num::NonZeroU64;

/// A count of tokens as an upstream reports it. An absurd count is treated as not reported.
#[inline]
pub(super) fn tokens(value: Raw<'_>) -> Option<u64> {
    value.count().filter(|tokens| *tokens <= ROW_TOKENS_MAX)
}

/// A count of tokens that is not charged separately, in 32 bits.
fn small_count(value: Raw<'_>) -> Option<u32> {
    tokens(value).map(|tokens| u32::try_from(tokens).unwrap_or(u32::MAX))
}

/// Counters as an upstream has reported them; `None` if not reported.
#[derive(Copy, Clone, Default, PartialEq, Eq, Debug)]
pub struct Reported {
    /// Prompt tokens that were neither read from nor written to a cache.
    pub input: Option<u64>,
    /// Prompt tokens read from a cache.
    pub cache_read: Option<u64>,
    /// Prompt tokens written to a cache.
    pub cache_write: Option<u64>,
    /// Tokens among them that stay in the cache for an hour.
    pub hour_write: u32,
    /// Completion tokens, reasoning included.
    pub output: Option<u64>,
    /// Reasoning tokens among them. Only translated, never charged separately.
    pub reasoning: Option<u32>,
    /// Nano-dollars that the answer costs, and 1, as the upstream states them; see [`Reported::cost`].
    pub(super) cost: Option<NonZeroU64>,
    /// During a stream, the estimated tokens of the text before the last count of the output.
    pub(super) counted: u32,
}

/// A number of dollars in nano-dollars. An absurd one is treated as not stated.
#[cold]
fn nano_dollars(value: Raw<'_>) -> Option<u64> {
    // A double has each number of nano-dollars up to this bound exactly.
    let nano = (value.number()? * 1e9).round();
    (0.0..=ROW_COST_MAX as f64).contains(&nano).then_some(nano as u64)
}

/// The cost of an answer that is stated in its usage.
#[derive(Copy, Clone, Default, Debug)]
struct StatedCost {
    /// As OpenRouter states it.
    total: Option<u64>,
    /// Amount that OpenRouter's upstream bills to the caller's own account, if there is one.
    upstream: Option<u64>,
    is_byok: bool,
    /// As xAI states it.
    ticks: Option<u64>,
}

/// Ticks of xAI in a nano-dollar: there are 10,000,000,000 in a dollar.
const TICKS: u64 = 10;

impl StatedCost {
    /// Notes a member of a usage.
    #[inline]
    fn member(&mut self, key: K, value: Raw<'_>) {
        match key {
            K::Cost => self.total = nano_dollars(value),
            K::CostDetails => self.upstream = value.get("upstream_inference_cost").and_then(nano_dollars),
            K::IsByok => self.is_byok = value.bool() == Some(true),
            K::CostInUsdTicks => self.ticks = value.count().filter(|ticks| *ticks <= ROW_COST_MAX * TICKS),
            _ => {}
        }
    }

    /// Cost in a usage.
    #[cold]
    fn of(usage: Raw<'_>) -> StatedCost {
        let mut cost = StatedCost::default();
        usage.members().for_each(|(name, value)| cost.member(K::of(name), value));
        cost
    }

    /// Nano-dollars in total.
    #[inline]
    fn nano(&self) -> Option<NonZeroU64> {
        let upstream = self.upstream.filter(|_| self.is_byok).unwrap_or(0);
        let total = self.total.map(|total| total.saturating_add(upstream));
        let ticks = self.ticks.map(|ticks| (ticks + TICKS / 2) / TICKS);
        NonZeroU64::new(total.or(ticks)?.saturating_add(1))
    }
}

/// Sum of the known counts; `None` if neither is known.
fn sum_of(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    Some(one.or(other)?.saturating_add(one.and(other).unwrap_or(0)))
}

/// The later count. `zeros`: a later zero may replace an earlier count.
fn latest<T: Copy + Default + PartialEq>(before: Option<T>, later: Option<T>, zeros: bool) -> Option<T> {
    later.filter(|count| zeros || *count != T::default()).or(before).or(later)
}

/// Tokens read from a cache, and written to one under either name, in the details of a prompt.
fn cached_of(details: Raw<'_>) -> [Option<u64>; 2] {
    let names = ["cached_tokens", "cache_write_tokens", "cache_creation_tokens"];
    let [read, write, created] = details.pick(names).map(|count| count.and_then(tokens));
    [read, write.max(created)]
}

/// The members of a chat answer's `usage` as they arrive; the last of a repeated one counts.
#[derive(Copy, Clone, Default, Debug)]
pub(super) struct ChatUsage {
    prompt: Option<u64>,
    total: Option<u64>,
    /// Cached tokens under the names of DeepSeek, Moonshot and LiteLLM, outside the details.
    cached: Option<u64>,
    /// Tokens written to a cache, under LiteLLM's name.
    written: Option<u64>,
    cost: StatedCost,
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
            K::CacheReadInputTokens => self.cached = self.cached.max(tokens(value)),
            K::CacheCreationInputTokens => self.written = tokens(value),
            K::PromptTokensDetails => [self.seen.cache_read, self.seen.cache_write] = cached_of(value),
            K::CompletionTokensDetails => self.seen.reasoning = value.get("reasoning_tokens").and_then(small_count),
            key => self.cost.member(key, value),
        }
    }

    /// The report made of the counters.
    #[inline]
    pub(super) fn reported(&self) -> Reported {
        let cache_read = self.seen.cache_read.max(self.cached);
        let cache_write = self.seen.cache_write.max(self.written);
        let cached = cache_read.unwrap_or(0).saturating_add(cache_write.unwrap_or(0));
        let input = self.prompt.map(|prompt| prompt.checked_sub(cached).unwrap_or(prompt));
        let cost = self.cost.nano();
        Reported { input, cache_read, cache_write, cost, ..self.seen }.with_hidden(self.prompt, self.total)
    }
}

/// Usage observed in an answer.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct ObservedUsage {
    /// Report of the upstream so far.
    pub reported: Reported,
    /// Estimated tokens of the relayed text, reasoning, tool names and arguments. 0 for a complete answer that reports
    /// its output: no estimate is made then.
    pub relayed_tokens: u64,
    /// Images returned, or milliseconds of the audio that was read.
    pub units: u32,
}

impl ObservedUsage {
    /// Usage of a stream with the text `relayed`. If part of it follows the last count of the output, that count does
    /// not include the part: it is not believed if it is less than the estimate of the whole text.
    pub(super) fn of_stream(reported: Reported, relayed: &Estimator) -> ObservedUsage {
        let (mut reported, relayed_tokens) = (reported.believed(), relayed.tokens());
        if relayed_tokens > reported.counted.into() {
            reported.output = reported.output.filter(|output| *output >= relayed_tokens);
        }
        reported.counted = 0;
        ObservedUsage { reported, relayed_tokens, units: 0 }
    }

    /// Adds a length of audio in milliseconds. `is_billed`: its provider bills by it, so there are no tokens unless
    /// they are reported, too.
    pub(super) fn with_length(mut self, millis: u32, is_billed: bool) -> ObservedUsage {
        self.units = millis;
        if is_billed && !self.reported.counts() {
            (self.reported.input, self.reported.output) = (Some(0), Some(0));
        }
        self
    }
}

impl Reported {
    /// Adds a report of a stream that follows the text `relayed`.
    pub(super) fn merge_at(&mut self, later: Reported, relayed: &Estimator) {
        self.merge(later);
        if later.output.is_some() && later.output == self.output {
            self.counted = u32::try_from(relayed.tokens()).unwrap_or(u32::MAX);
        }
    }

    /// Adds the counters of a later report. A known counter is replaced, never added to, never erased. Some servers
    /// fill their last report with zeros: the zeros of a report with a smaller prompt replace nothing, and its output
    /// of 0 does not count as reported. Others omit the cached tokens and report the whole prompt again.
    pub fn merge(&mut self, mut later: Reported) {
        let parts = [self.input, self.cache_read, self.cache_write];
        let later_parts = [later.input, later.cache_read, later.cache_write];
        let sum = |parts: [Option<u64>; 3]| parts.into_iter().fold(None, sum_of);
        let zeros = sum(later_parts) >= sum(parts).max(Some(1));
        if !zeros && sum(later_parts).is_some() && sum(parts).is_some() {
            later.output = later.output.filter(|output| *output > 0);
        }
        if later_parts == [sum(parts), None, None] {
            later.input = None;
        }
        self.input = latest(self.input, later.input, zeros);
        self.cache_read = latest(self.cache_read, later.cache_read, zeros);
        self.cache_write = latest(self.cache_write, later.cache_write, zeros);
        self.hour_write = if later.hour_write > 0 { later.hour_write } else { self.hour_write };
        self.output = latest(self.output, later.output, zeros);
        self.reasoning = latest(self.reasoning, later.reasoning, zeros);
        self.cost = later.cost.filter(|_| zeros).or(self.cost).or(later.cost);
    }

    /// Adds tokens to the output that only the total includes: reasoning counted separately, under its own name or
    /// none, or all of the output. Cached tokens can be counted separately as well.
    #[inline]
    fn with_hidden(mut self, prompt: Option<u64>, total: Option<u64>) -> Reported {
        let (Some(prompt), Some(total)) = (prompt, total) else { return self };
        let Some(output) = self.output else {
            // Some servers leave it out if the model has only thought.
            let rest = total.saturating_sub(self.prompt().unwrap_or(0)).max(self.reasoning.unwrap_or(0).into());
            self.output = Some(rest).filter(|rest| *rest > 0 && prompt > 0);
            return self;
        };
        let apart = total.saturating_sub(prompt.saturating_add(output));
        if apart > 0 {
            let [read, write] = [self.cache_read, self.cache_write].map(Option::unwrap_or_default);
            let reasoning = u64::from(self.reasoning.unwrap_or(0));
            let mut cached = [0, read, write, read.saturating_add(write)].into_iter();
            let hidden = match cached.any(|cached| apart == cached.saturating_add(reasoning)) {
                true => reasoning,
                false if reasoning == 0 => apart,
                false => 0,
            };
            self.output = Some(output.saturating_add(hidden));
        }
        self
    }

    /// True if one of the two charged counts is known.
    fn counts(&self) -> bool {
        self.input.or(self.output).is_some()
    }

    /// The report itself if it has any count, otherwise the report under other APIs' names: some servers write those.
    pub(super) fn or_renamed(self, usage: Raw<'_>) -> Reported {
        if self.counts() {
            return self;
        }
        let is_messages = usage.pick(["cache_read_input_tokens", "cache_creation_input_tokens"]) != [None, None];
        let other = if is_messages { Reported::of_message(usage).0 } else { Reported::of_response(usage) };
        [Reported::of_chat(usage), other].into_iter().find(Reported::counts).unwrap_or(self)
    }

    /// The report without implausible counts: no prompt has 0 tokens, and an output of 0 next to it is not counted
    /// either.
    pub(super) fn believed(self) -> Reported {
        if self.prompt() != Some(0) {
            return self;
        }
        let output = self.output.filter(|output| *output > 0);
        Reported { input: None, cache_read: None, cache_write: None, output, ..self }
    }

    /// Nano-dollars that the answer costs, as the upstream states them.
    #[inline]
    pub fn cost(&self) -> Option<u64> {
        self.cost.map(|cost| cost.get() - 1)
    }

    /// True if prompt and completion are both known.
    pub fn is_complete(&self) -> bool {
        self.input.is_some() && self.output.is_some()
    }

    /// The whole prompt, cached tokens included; `None` if the upstream reported no part of it.
    pub fn prompt(&self) -> Option<u64> {
        let cached = self.cache_read.unwrap_or(0).saturating_add(self.cache_write.unwrap_or(0));
        self.input.map(|input| input.saturating_add(cached))
    }

    /// Reads the `usage` object of a chat answer or chunk. `prompt_tokens` includes cached tokens and is split here. If
    /// the counters contradict that (cached > prompt), the upstream has excluded them already.
    pub fn from_chat(usage: Raw<'_>) -> Reported {
        Reported::of_chat(usage).or_renamed(usage)
    }

    fn of_chat(usage: Raw<'_>) -> Reported {
        let mut seen = ChatUsage::default();
        for (key, value) in usage.members() {
            seen.member(K::of(key), value);
        }
        seen.reported()
    }

    /// Reads the `usage` in one of the choices of a chat answer, where some servers write it.
    pub(super) fn of_choices(choices: Raw<'_>) -> Reported {
        let mut usages = choices.items().filter_map(|choice| choice.get("usage"));
        usages.find(|usage| usage.kind() == ValueKind::Object).map(Reported::from_chat).unwrap_or_default()
    }

    /// Reads the `usage` object of a response. `input_tokens` includes cached tokens and is split here, as in the chat
    /// format.
    pub fn from_responses(usage: Raw<'_>) -> Reported {
        Reported::of_response(usage).or_renamed(usage)
    }

    fn of_response(usage: Raw<'_>) -> Reported {
        let mut seen = ChatUsage::default();
        for (name, value) in usage.members() {
            let chat = match K::of(name) {
                K::InputTokens => K::PromptTokens,
                K::OutputTokens => K::CompletionTokens,
                K::InputTokensDetails => K::PromptTokensDetails,
                K::OutputTokensDetails => K::CompletionTokensDetails,
                K::TotalTokens | K::Cost | K::CostDetails | K::CostInUsdTicks | K::IsByok => K::of(name),
                _ => continue,
            };
            seen.member(chat, value);
        }
        seen.reported()
    }

    /// Reads the `usage` object of a messages answer, `message_start` or `message_delta`. Its top level is the sum of
    /// the iterations that wrote the message. A compaction is billed in addition.
    pub fn from_messages(usage: Raw<'_>) -> Reported {
        let (mut all, iterations) = Reported::of_message(usage);
        let sum = |kind: &str| {
            let of_kind = iterations.items().filter(|one| one.get("type").is_some_and(|own| own.is(kind)));
            of_kind.map(|one| Reported::of_message(one).0).reduce(Reported::plus)
        };
        if let Some(compacted) = sum("compaction") {
            // A later report of a stream may lack members of the first.
            let mut known = sum("message").unwrap_or_default();
            known.merge(all);
            all = known.plus(compacted);
        }
        all.or_renamed(usage)
    }

    /// Reads the `usage` object of `message_start`. Its output is only a first value, which later events may fail to
    /// correct.
    pub(super) fn from_start(usage: Raw<'_>) -> Reported {
        Reported { output: None, ..Reported::from_messages(usage) }
    }

    /// Reads the counters of one object in the messages format, and picks its `iterations`.
    fn of_message(usage: Raw<'_>) -> (Reported, Raw<'_>) {
        let [input, output, read, write, of_output, writes, iterations, cost, ticks] = usage.pick([
            "input_tokens",
            "output_tokens",
            "cache_read_input_tokens",
            "cache_creation_input_tokens",
            "output_tokens_details",
            "cache_creation",
            "iterations",
            "cost",
            "cost_in_usd_ticks",
        ]);
        let writes = writes.unwrap_or(Raw::NULL).pick(["ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens"]);
        let [minutes, hour] = writes.map(|count| count.and_then(tokens));
        let cache_write = write.and_then(tokens).or(sum_of(minutes, hour));
        let reported = Reported {
            input: input.and_then(tokens),
            cache_read: read.and_then(tokens),
            cache_write,
            hour_write: hour.map_or(0, |hour| hour.min(cache_write.unwrap_or(0)).min(u32::MAX.into()) as u32),
            output: output.and_then(tokens),
            reasoning: of_output.and_then(|details| details.get("thinking_tokens")).and_then(small_count),
            cost: cost.or(ticks).and_then(|_| StatedCost::of(usage).nano()),
            counted: 0,
        };
        (reported, iterations.unwrap_or(Raw::NULL))
    }

    /// The sum of two reports on different work.
    fn plus(self, other: Reported) -> Reported {
        Reported {
            input: sum_of(self.input, other.input),
            cache_read: sum_of(self.cache_read, other.cache_read),
            cache_write: sum_of(self.cache_write, other.cache_write),
            hour_write: self.hour_write.saturating_add(other.hour_write),
            output: sum_of(self.output, other.output),
            reasoning: self.reasoning.or(other.reasoning),
            cost: self.cost.or(other.cost),
            counted: 0,
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
    fn zeros_in_a_report_of_a_smaller_prompt_replace_nothing() {
        let read = |[input, cache_read, cache_write, output]: [Option<u64>; 4]| Reported {
            input,
            cache_read,
            cache_write,
            output,
            ..Reported::default()
        };
        let merged = |before: [u64; 4], later: [Option<u64>; 4]| {
            let mut seen = read(before.map(Some));
            seen.merge(read(later));
            [seen.input, seen.cache_read, seen.cache_write, seen.output].map(Option::unwrap)
        };
        let before = [15, 4, 2, 7];
        for (later, want) in [
            ([Some(0); 4], before),
            ([None; 4], before),
            ([Some(0), None, None, Some(9)], [15, 4, 2, 9]),
            ([Some(0), Some(4), Some(2), Some(7)], before),
            ([Some(15), Some(0), Some(0), Some(0)], before),
            ([None, None, None, Some(0)], before),
            ([Some(15), Some(6), Some(0), Some(0)], [15, 6, 0, 0]),
            ([Some(0), Some(21), Some(0), Some(9)], [0, 21, 0, 9]),
            ([Some(3), Some(2), Some(1), Some(1)], [3, 2, 1, 1]),
        ] {
            assert_eq!(merged(before, later), want, "{later:?}");
        }
        // Both report the same prompt: the later one omits its parts.
        assert_eq!(merged([40, 60, 0, 5], [Some(100), None, None, Some(7)]), [40, 60, 0, 7]);
        assert_eq!(merged([40, 60, 0, 5], [Some(100), Some(0), None, Some(7)]), [100, 0, 0, 7]);
        let mut seen = Reported::default();
        seen.merge(read([Some(0); 4]));
        assert_eq!(seen, read([Some(0); 4]));
        let mut seen = Reported { input: Some(0), output: Some(7), reasoning: Some(3), ..Reported::default() };
        seen.merge(Reported { input: Some(0), output: Some(0), reasoning: Some(0), ..Reported::default() });
        assert_eq!((seen.output, seen.reasoning), (Some(7), Some(3)));
    }

    #[test]
    fn chat_prompt_tokens_include_cached_ones_unless_counts_contradict() {
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
            ..Reported::default()
        };
        assert_eq!(inclusive, want);
        let exclusive = read(r#"{"prompt_tokens":20,"prompt_tokens_details":{"cached_tokens":60}}"#);
        assert_eq!((exclusive.input, exclusive.cache_read, exclusive.output), (Some(20), Some(60), None));
        assert_eq!(read("null"), Reported::default());
        assert_eq!(read(r#"{"prompt_tokens":null,"completion_tokens":"7"}"#), Reported::default());
        // A number with an exponent is not a count, and an absurd one is not believed.
        let absurd = read(r#"{"prompt_tokens":99999999999999999999999,"completion_tokens":1e3}"#);
        assert_eq!(absurd, Reported::default());
        assert_eq!(read(r#"{"prompt_tokens":1099511627776}"#).input, Some(ROW_TOKENS_MAX));
        assert_eq!(read(r#"{"prompt_tokens":1099511627777}"#).input, None);
    }

    #[test]
    fn messages_input_tokens_exclude_cached_ones() {
        let seen = Reported::from_messages(Raw::new(
            br#"{"input_tokens":3,"cache_read_input_tokens":5,"cache_creation_input_tokens":null,"output_tokens":9}"#,
        ));
        assert_eq!((seen.input, seen.cache_read, seen.cache_write, seen.output), (Some(3), Some(5), None, Some(9)));
        assert_eq!(seen.prompt(), Some(8));
    }

    #[test]
    fn compactions_are_added_and_hour_writes_counted() {
        let read = |text: &str| {
            let seen = Reported::from_messages(Raw::new(text.as_bytes()));
            (seen.input, seen.cache_write, seen.hour_write, seen.output)
        };
        let message = r#"{"type":"message","input_tokens":21,"output_tokens":8}"#;
        let compaction = r#"{"type":"compaction","input_tokens":150,"output_tokens":26}"#;
        let other = r#"{"type":"brand_new","input_tokens":1000,"output_tokens":1000},7,null,{}"#;
        let both = format!(r#""iterations":[{compaction},{message},{other}]"#);
        let top = r#"{"input_tokens":21,"output_tokens":8"#;
        assert_eq!(read(&format!("{top},{both}}}")), (Some(171), None, 0, Some(34)));
        // The last report of a stream may have only output tokens.
        assert_eq!(read(&format!(r#"{{"output_tokens":8,{both}}}"#)), (Some(171), None, 0, Some(34)));
        for nothing in ["null", "[]", "{}", "7", &format!("[{message},{other}]")] {
            assert_eq!(read(&format!("{top},\"iterations\":{nothing}}}")), (Some(21), None, 0, Some(8)), "{nothing}");
        }
        let writes =
            |more: &str, writes: &str| read(&format!(r#"{{"input_tokens":1{more},"cache_creation":{writes}}}"#));
        let apart = r#"{"ephemeral_5m_input_tokens":1000,"ephemeral_1h_input_tokens":2000}"#;
        let total = r#","cache_creation_input_tokens":3000"#;
        assert_eq!(writes(total, apart), (Some(1), Some(3000), 2000, None));
        assert_eq!(writes("", apart), (Some(1), Some(3000), 2000, None));
        assert_eq!(writes(r#","cache_creation_input_tokens":500"#, apart), (Some(1), Some(500), 500, None));
        for nothing in
            ["null", "[]", "7", r#"{"ephemeral_1h_input_tokens":null}"#, r#"{"ephemeral_1h_input_tokens":"7"}"#]
        {
            assert_eq!(writes(total, nothing), (Some(1), Some(3000), 0, None), "{nothing}");
        }
    }
}
