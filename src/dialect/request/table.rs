//! Which members a request of each shape may have: specification 4.1 and 4.2, `wire-formats` 1.1 and 2.1, `responses`
//! section 1.

use crate::wire::Dialect;
use crate::wire::json::{eq_unescaped, unescape};

/// How a member is treated.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(in crate::dialect) enum Class {
    /// Validated, forwarded.
    Specified,
    /// Forwarded as it came, never validated.
    Documented,
    /// Never forwarded: it could reach beyond the key's scope or tenancy, or names an answer by an id that is ours.
    Denied,
    /// Ignored; forwarded only where the provider's configuration says so.
    Unknown,
}

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

        /// The name that is written so, without escapes.
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
}

/// Names that lead elsewhere, in small letters and digits alone.
const ELSEWHERE: &[&str] = &[
    "apibase",
    "apihost",
    "apikey",
    "apikeys",
    "apitoken",
    "apitype",
    "apiurl",
    "apiversion",
    "auth",
    "authorization",
    "awsaccesskeyid",
    "awsregionname",
    "awssecretaccesskey",
    "awssessiontoken",
    "azureadtoken",
    "baseuri",
    "baseurl",
    "container",
    "credential",
    "credentials",
    "customllmprovider",
    "defaultheaders",
    "deployment",
    "deploymentid",
    "diagnostics",
    "endpoint",
    "extrabody",
    "extraheaders",
    "extraquery",
    "fallback",
    "fallbacks",
    "headers",
    "host",
    "httpproxy",
    "litellmparams",
    "mcpservers",
    "mocks",
    "mockresponse",
    "modellist",
    "models",
    "organization",
    "organizationid",
    "project",
    "projectid",
    "provider",
    "providers",
    "proxy",
    "proxyurl",
    "route",
    "router",
    "secret",
    "store",
    "thread",
    "token",
    "url",
    "vertexcredentials",
    "vertexproject",
    "webhook",
    "webhookurl",
];

/// What vLLM, llama.cpp, Ollama, SGLang, DeepSeek, Mistral or OpenRouter document for their chat endpoint, as far as it
/// reaches no further than the request: no template to run, no place in a queue, no state or weights that others share.
const LOCAL: &[&str] = &[
    "add_special_tokens",
    "allowed_token_ids",
    "bad_words",
    "cache_prompt",
    "chat_template_kwargs",
    "dynatemp_exponent",
    "dynatemp_range",
    "ebnf",
    "echo",
    "enable_thinking",
    "grammar",
    "ignore_eos",
    "include_reasoning",
    "include_stop_str_in_output",
    "json_schema",
    "keep_alive",
    "length_penalty",
    "min_keep",
    "min_p",
    "min_tokens",
    "mirostat",
    "n_keep",
    "n_probs",
    "no_stop_trim",
    "parse_tool_calls",
    "prompt_mode",
    "random_seed",
    "reasoning",
    "reasoning_budget",
    "reasoning_format",
    "regex",
    "repeat_last_n",
    "repeat_penalty",
    "repetition_penalty",
    "return_token_ids",
    "return_tokens_as_token_ids",
    "safe_prompt",
    "samplers",
    "separate_reasoning",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "stop_regex",
    "stop_token_ids",
    "stream_reasoning",
    "structured_outputs",
    "think",
    "thinking",
    "thinking_budget",
    "timings_per_token",
    "top_a",
    "top_k",
    "top_n_sigma",
    "truncate_prompt_tokens",
    "typical_p",
];

/// What further names of [`LOCAL`] begin with.
const LOCAL_PREFIXES: &[&str] = &["dry_", "guided_", "mirostat_", "xtc_"];

impl Name {
    /// Which member the inside of a key is; `None` for those outside both tables.
    pub(in crate::dialect) fn of(raw: &[u8]) -> Name {
        if let Some(name) = plain(raw) {
            return name;
        }
        if !raw.contains(&b'\\') {
            return Name::Other;
        }
        BY_NAME.iter().find(|(text, _)| eq_unescaped(raw, text)).map_or(Name::Other, |(_, name)| *name)
    }

    /// Whether a member outside both tables reaches beyond the key, however it is spelt: it names another place,
    /// another credential or another tenant to a provider that is itself a gateway. Asked only where unknown members
    /// are forwarded.
    pub(in crate::dialect) fn leads_elsewhere(raw: &[u8]) -> bool {
        let mut plain = Vec::new();
        unescape(raw, &mut plain);
        plain.retain(u8::is_ascii_alphanumeric);
        plain.make_ascii_lowercase();
        ELSEWHERE.contains(&&*String::from_utf8_lossy(&plain))
    }

    /// Whether a member outside both tables is one that local servers document for their chat endpoint, and harmless.
    /// Asked only of providers on the own network.
    pub(in crate::dialect) fn is_local(raw: &[u8]) -> bool {
        let mut plain = Vec::new();
        unescape(raw, &mut plain);
        let Ok(name) = std::str::from_utf8(&plain) else { return false };
        LOCAL.contains(&name) || LOCAL_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
    }

    /// Those that no request of some shape takes along.
    #[cfg(test)]
    pub(crate) fn denied() -> impl Iterator<Item = &'static str> {
        let shapes = [Dialect::Chat, Dialect::Messages, Dialect::Responses];
        let denied = move |name: Name| shapes.into_iter().any(|shape| name.class(shape) == Class::Denied);
        BY_NAME.iter().filter(move |(_, name)| denied(*name)).map(|(text, _)| *text)
    }

    /// How a request of `shape` treats it.
    pub(in crate::dialect) fn class(self, shape: Dialect) -> Class {
        use Name::*;
        if shape == Dialect::Responses {
            return self.class_of_response();
        }
        match (self, shape) {
            (Models | Fallbacks | ApiBase | Container | McpServers | Store, _) => Class::Denied,
            (Diagnostics | Thread, Dialect::Messages) => Class::Denied,
            (Model | Messages | Stream | MaxTokens, _) | (System, Dialect::Messages) => Class::Specified,
            (Temperature | TopP | Tools | ToolChoice, Dialect::Chat) => Class::Specified,
            (ResponseFormat | Stop | User, Dialect::Chat) => Class::Specified,
            (Temperature | TopP | Tools | ToolChoice | Metadata | ServiceTier, _) => Class::Documented,
            (StreamOptions | MaxCompletionTokens | ParallelToolCalls | ReasoningEffort | N, Dialect::Chat) => {
                Class::Documented
            }
            (Verbosity | Seed | Logprobs | TopLogprobs | LogitBias | FrequencyPenalty, Dialect::Chat) => {
                Class::Documented
            }
            (PresencePenalty | Prediction | Modalities | Audio | WebSearchOptions, Dialect::Chat) => Class::Documented,
            (PromptCacheKey | PromptCacheOptions | PromptCacheRetention, Dialect::Chat) => Class::Documented,
            (SafetyIdentifier | Moderation | Functions | FunctionCall, Dialect::Chat) => Class::Documented,
            (TopK | StopSequences | Thinking | OutputConfig | OutputFormat, Dialect::Messages) => Class::Documented,
            (CacheControl | Speed | InferenceGeo | UserProfileId, Dialect::Messages) => Class::Documented,
            (ContextManagement | Compaction, Dialect::Messages) => Class::Documented,
            _ => Class::Unknown,
        }
    }

    /// How a responses request treats it. What would need a stored response is looked at to be refused.
    fn class_of_response(self) -> Class {
        use Name::*;
        match self {
            Models | Fallbacks | ApiBase | Container | McpServers | Store => Class::Denied,
            Model | Input | Stream | Instructions | MaxOutputTokens | Temperature | TopP => Class::Specified,
            Tools | ToolChoice | PreviousResponseId | Conversation | Background | Prompt => Class::Specified,
            ParallelToolCalls | Text | Reasoning | Include | Metadata | ServiceTier | User => Class::Documented,
            PromptCacheKey | PromptCacheOptions | PromptCacheRetention | SafetyIdentifier => Class::Documented,
            TopLogprobs | StreamOptions | Truncation | MaxToolCalls | ClientMetadata => Class::Documented,
            ContextManagement | Moderation => Class::Documented,
            _ => Class::Unknown,
        }
    }

    /// True if the gateway reads or rewrites it, on some route: such a member may stand in a body but once.
    #[inline]
    pub(in crate::dialect) fn is_read(self, shape: Dialect) -> bool {
        use Name::*;
        match self.class(shape) {
            Class::Specified => true,
            Class::Denied | Class::Unknown => false,
            Class::Documented => matches!(
                (self, shape),
                (Temperature | TopP | Tools | ToolChoice, _)
                    | (ParallelToolCalls | Text | Reasoning | Include | Metadata, Dialect::Responses)
                    | (User | SafetyIdentifier | PromptCacheKey, Dialect::Responses)
                    | (StreamOptions | MaxCompletionTokens | ParallelToolCalls | ReasoningEffort | N, Dialect::Chat)
                    | (StopSequences | Thinking | OutputConfig | OutputFormat | Metadata, Dialect::Messages)
            ),
        }
    }
}
