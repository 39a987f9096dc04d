//! The names of members in requests of any format.
//!
//! Owns the names. Must never know a format's treatment of them: [`super::table`] does.

use crate::wire::json::{eq_unescaped, has_escape};

macro_rules! names {
    ($($name:ident = $text:literal,)*) => {
        /// A top-level member of a request.
        #[derive(Copy, Clone, PartialEq, Eq, Debug)]
        #[repr(u8)]
        pub(in crate::dialect) enum Name {
            $(#[doc = $text] $name,)*
            /// Any other.
            Other,
        }

        const BY_NAME: &[(&str, Name)] = &[$(($text, Name::$name),)*];

        /// All of them in the order of their numbers.
        pub(super) const NAMES: [Name; Name::Other as usize + 1] = [$(Name::$name,)* Name::Other];

        /// The member with this name, written without escapes.
        #[allow(non_upper_case_globals)]
        fn plain(raw: &[u8]) -> Option<Name> {
            $(const $name: &[u8] = $text.as_bytes();)*
            match raw {
                $($name => Some(Name::$name),)*
                _ => None,
            }
        }
    };
}

names! {
    Model = "model",
    Messages = "messages",
    Stream = "stream",
    Temperature = "temperature",
    TopP = "top_p",
    MaxTokens = "max_tokens",
    Tools = "tools",
    ToolChoice = "tool_choice",
    ResponseFormat = "response_format",
    Stop = "stop",
    User = "user",
    System = "system",
    Metadata = "metadata",
    PromptCacheKey = "prompt_cache_key",
    SafetyIdentifier = "safety_identifier",
    Thinking = "thinking",
    OutputConfig = "output_config",
    OutputFormat = "output_format",
    StopSequences = "stop_sequences",
    Input = "input",
    Instructions = "instructions",
    MaxOutputTokens = "max_output_tokens",
    Text = "text",
    Reasoning = "reasoning",
    Include = "include",
    PreviousResponseId = "previous_response_id",
    Conversation = "conversation",
    Background = "background",
    Prompt = "prompt",
    Query = "query",
    Documents = "documents",
    StreamOptions = "stream_options",
    MaxCompletionTokens = "max_completion_tokens",
    ParallelToolCalls = "parallel_tool_calls",
    ReasoningEffort = "reasoning_effort",
    N = "n",
    Verbosity = "verbosity",
    Seed = "seed",
    Logprobs = "logprobs",
    TopLogprobs = "top_logprobs",
    LogitBias = "logit_bias",
    FrequencyPenalty = "frequency_penalty",
    PresencePenalty = "presence_penalty",
    ServiceTier = "service_tier",
    Prediction = "prediction",
    Modalities = "modalities",
    Audio = "audio",
    WebSearchOptions = "web_search_options",
    PromptCacheOptions = "prompt_cache_options",
    PromptCacheRetention = "prompt_cache_retention",
    Moderation = "moderation",
    Functions = "functions",
    FunctionCall = "function_call",
    Truncation = "truncation",
    MaxToolCalls = "max_tool_calls",
    ClientMetadata = "client_metadata",
    BestOf = "best_of",
    TopK = "top_k",
    CacheControl = "cache_control",
    Speed = "speed",
    InferenceGeo = "inference_geo",
    UserProfileId = "user_profile_id",
    ContextManagement = "context_management",
    Compaction = "compaction",
    Thread = "thread",
    Diagnostics = "diagnostics",
    Models = "models",
    Fallbacks = "fallbacks",
    ApiBase = "api_base",
    Container = "container",
    McpServers = "mcp_servers",
    Store = "store",
    Suffix = "suffix",
}

impl Name {
    /// Finds the member by the inside of a key; [`Name::Other`] for those outside both tables.
    pub(in crate::dialect) fn of(raw: &[u8]) -> Name {
        if let Some(name) = plain(raw) {
            return name;
        }
        if !has_escape(raw) {
            return Name::Other;
        }
        BY_NAME.iter().find(|(text, _)| eq_unescaped(raw, text)).map_or(Name::Other, |(_, name)| *name)
    }

    /// Spelling of the name.
    pub(in crate::dialect) fn text(self) -> &'static str {
        BY_NAME.get(self as usize).map_or("", |(text, _)| text)
    }

    /// All members with their spellings.
    #[cfg(test)]
    pub(super) fn all() -> &'static [(&'static str, Name)] {
        BY_NAME
    }
}
