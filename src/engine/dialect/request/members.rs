//! The members of requests, and the treatment of each in every format.
//!
//! Owns the table. Members outside it are the concern of [`super::table`].

use crate::wire::Shape;
use crate::wire::json::{eq_unescaped, has_escape};

/// Treatment of a member.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Class {
    /// Validated, forwarded.
    Specified,
    /// Never validated; the gateway reads or rewrites it on some route.
    Read,
    /// Never validated; forwarded unchanged.
    Documented,
    /// Never forwarded: it could reach beyond the key's scope or tenancy, or names an answer by one of Tollgate's ids.
    Denied,
    /// Ignored; forwarded only if the provider's configuration says so.
    Unknown,
}

/// Columns of the table, in the order of [`Shape::ALL`].
const SHAPES: usize = Shape::ALL.len();

macro_rules! members {
    ($($name:ident = $text:literal: $($class:ident)+,)*) => {
        /// A top-level member of a request.
        #[derive(Copy, Clone, PartialEq, Eq, Debug)]
        #[repr(u8)]
        pub(crate) enum Name {
            $(#[doc = $text] $name,)*
            /// Any other.
            Other,
        }

        const BY_NAME: &[(&str, Name)] = &[$(($text, Name::$name),)*];

        static CLASSES: [[Class; SHAPES]; Name::Other as usize + 1] = {
            use Class::{Denied as X, Documented as D, Read as R, Specified as S, Unknown as U};
            [$([$($class),+],)* [U; SHAPES]]
        };

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

// Its class in the formats chat, messages and responses: S specified, R read, D documented, X denied, U unknown. Those
// of a responses request that need a stored response are specified, so that their check refuses them.
members! {
    Model = "model": S S S,
    Messages = "messages": S S U,
    Stream = "stream": S S S,
    Temperature = "temperature": S R S,
    TopP = "top_p": S R S,
    MaxTokens = "max_tokens": S S U,
    Tools = "tools": S R S,
    ToolChoice = "tool_choice": S R S,
    ResponseFormat = "response_format": S U U,
    Stop = "stop": S U U,
    User = "user": S U R,
    System = "system": U S U,
    Metadata = "metadata": D R R,
    PromptCacheKey = "prompt_cache_key": D U R,
    SafetyIdentifier = "safety_identifier": D U R,
    Thinking = "thinking": U R U,
    OutputConfig = "output_config": U R U,
    OutputFormat = "output_format": U R U,
    StopSequences = "stop_sequences": U R U,
    Input = "input": U U S,
    Instructions = "instructions": U U S,
    MaxOutputTokens = "max_output_tokens": U U S,
    Text = "text": U U R,
    Reasoning = "reasoning": U U R,
    Include = "include": U U R,
    PreviousResponseId = "previous_response_id": X X S,
    Conversation = "conversation": X X S,
    Background = "background": U U S,
    Prompt = "prompt": U U S,
    Query = "query": U U U,
    Documents = "documents": U U U,
    StreamOptions = "stream_options": R U D,
    MaxCompletionTokens = "max_completion_tokens": R U U,
    ParallelToolCalls = "parallel_tool_calls": R U R,
    ReasoningEffort = "reasoning_effort": R U U,
    N = "n": R U U,
    Verbosity = "verbosity": D U U,
    Seed = "seed": D U U,
    Logprobs = "logprobs": D U U,
    TopLogprobs = "top_logprobs": D U D,
    LogitBias = "logit_bias": D U U,
    FrequencyPenalty = "frequency_penalty": D U U,
    PresencePenalty = "presence_penalty": D U U,
    ServiceTier = "service_tier": D D D,
    Prediction = "prediction": D U U,
    Modalities = "modalities": D U U,
    Audio = "audio": D U U,
    WebSearchOptions = "web_search_options": D U U,
    PromptCacheOptions = "prompt_cache_options": D U D,
    PromptCacheRetention = "prompt_cache_retention": D U D,
    Moderation = "moderation": D U D,
    Functions = "functions": D U U,
    FunctionCall = "function_call": D U U,
    Truncation = "truncation": U U D,
    MaxToolCalls = "max_tool_calls": U U D,
    ClientMetadata = "client_metadata": U U D,
    BestOf = "best_of": U U U,
    TopK = "top_k": U D U,
    CacheControl = "cache_control": U D U,
    Speed = "speed": U D U,
    Safeguards = "safeguards": U D U,
    InferenceGeo = "inference_geo": U D U,
    UserProfileId = "user_profile_id": U D U,
    ContextManagement = "context_management": U D D,
    Compaction = "compaction": U D U,
    Thread = "thread": U X U,
    Diagnostics = "diagnostics": U X U,
    Models = "models": X X X,
    Fallbacks = "fallbacks": X X X,
    ApiBase = "api_base": X X X,
    Container = "container": X X X,
    McpServers = "mcp_servers": X X X,
    Store = "store": X X X,
    Suffix = "suffix": U U U,
}

impl Name {
    /// Finds the member by the inside of a key; [`Name::Other`] for those outside the table.
    #[inline(always)]
    pub(crate) fn of(raw: &[u8]) -> Name {
        if let Some(name) = plain(raw) {
            return name;
        }
        if !has_escape(raw) {
            return Name::Other;
        }
        BY_NAME.iter().find(|(text, _)| eq_unescaped(raw, text)).map_or(Name::Other, |(_, name)| *name)
    }

    /// Finds the member by the name of a form's field, which has no escapes.
    pub(crate) fn of_field(field: &[u8]) -> Name {
        BY_NAME.iter().find(|(text, _)| text.as_bytes() == field).map_or(Name::Other, |(_, name)| *name)
    }

    /// The member with this name, in upper or lower case.
    pub(super) fn in_any_case(plain: &[u8]) -> Option<Name> {
        BY_NAME.iter().find(|(text, _)| plain.eq_ignore_ascii_case(text.as_bytes())).map(|(_, name)| *name)
    }

    /// Spelling of the name.
    pub(crate) fn text(self) -> &'static str {
        BY_NAME.get(self as usize).map_or("", |(text, _)| text)
    }

    /// Treatment of this member in conversations.
    #[inline]
    pub(crate) fn of_shape(self, shape: Shape) -> Class {
        CLASSES[self as usize][shape as usize]
    }

    /// All members with their spellings.
    #[cfg(test)]
    pub(crate) fn all() -> &'static [(&'static str, Name)] {
        BY_NAME
    }
}

impl Class {
    /// True if the gateway reads or rewrites such a member on some route.
    #[inline]
    pub(crate) fn is_read(self) -> bool {
        matches!(self, Class::Specified | Class::Read)
    }
}
