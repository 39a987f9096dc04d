//! Members of requests in each format, and their treatment.

use super::super::relay::Relayed;
use super::names::{NAMES, Name};
use crate::base::limits::NAME_BYTES_MAX;
use crate::wire::json::unescape;
use crate::wire::{Dialect, Relay};

/// Treatment of a member.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(in crate::dialect) enum Class {
    /// Validated, forwarded.
    Specified,
    /// Forwarded unchanged, never validated.
    Documented,
    /// Never forwarded: it could reach beyond the key's scope or tenancy, or names an answer by one of Tollgate's ids.
    Denied,
    /// Ignored; forwarded only if the provider's configuration says so.
    Unknown,
}

/// Names of members that refer to other places, in lower-case letters and digits.
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

/// Members that vLLM, llama.cpp, Ollama, SGLang, DeepSeek, Mistral or OpenRouter document for their chat endpoint, if
/// they affect only the request: no template to run, no priority in a queue, no shared state or weights.
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

/// Members that may have a price of their own, in lower-case letters.
const PRICED: &[(&str, Name)] = &[
    ("audio", Name::Audio),
    ("enablesearch", Name::WebSearchOptions),
    ("inferencegeo", Name::InferenceGeo),
    ("modalities", Name::Modalities),
    ("plugins", Name::WebSearchOptions),
    ("searchparameters", Name::WebSearchOptions),
    ("servicetier", Name::ServiceTier),
    ("speed", Name::Speed),
    ("tools", Name::Tools),
    ("websearch", Name::WebSearchOptions),
    ("websearchoptions", Name::WebSearchOptions),
];

/// Prefixes of further names of [`LOCAL`].
const LOCAL_PREFIXES: &[&str] = &["dry_", "guided_", "mirostat_", "xtc_"];

/// Letters and digits of a name, in lower case.
fn letters(raw: &[u8]) -> String {
    let mut plain = Vec::new();
    unescape(raw, &mut plain);
    plain.retain(u8::is_ascii_alphanumeric);
    plain.make_ascii_lowercase();
    String::from_utf8_lossy(&plain).into_owned()
}

/// Treatment of every name in requests of format `shape`, except relayed ones.
const fn classes(shape: Dialect) -> [Class; NAMES.len()] {
    let (mut all, mut at) = ([Class::Unknown; NAMES.len()], 0);
    while at < NAMES.len() {
        all[at] = match shape {
            Dialect::Responses => NAMES[at].class_of_response(),
            _ => NAMES[at].class_of_talk(shape),
        };
        at += 1;
    }
    all
}

impl Name {
    /// True if a member outside both tables reaches beyond the key, in any spelling: it names another place, another
    /// credential, or another tenant of a provider that is itself a gateway. Called only if unknown members are
    /// forwarded.
    pub(in crate::dialect) fn leads_elsewhere(raw: &[u8]) -> bool {
        // Longer names are not compared.
        if raw.len() > NAME_BYTES_MAX {
            return true;
        }
        ELSEWHERE.contains(&&*letters(raw))
    }

    /// The member outside the tables that may have a price of its own, in any spelling. Called only if unknown members
    /// are forwarded.
    pub(in crate::dialect) fn priced(raw: &[u8]) -> Option<Name> {
        // A longer name is not sent.
        let letters = if raw.len() > NAME_BYTES_MAX { return None } else { letters(raw) };
        PRICED.iter().find(|(name, _)| *name == letters).map(|(_, name)| *name)
    }

    /// True if a member outside both tables is harmless and documented by local servers for their chat endpoint. Called
    /// only for providers on the own network.
    pub(in crate::dialect) fn is_local(raw: &[u8]) -> bool {
        if raw.len() > NAME_BYTES_MAX {
            return false;
        }
        let mut plain = Vec::new();
        unescape(raw, &mut plain);
        let Ok(name) = std::str::from_utf8(&plain) else { return false };
        LOCAL.contains(&name) || LOCAL_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
    }

    /// Names that are denied in requests of any format.
    #[cfg(test)]
    pub(crate) fn denied() -> impl Iterator<Item = &'static str> {
        let relays = Relay::ALL.map(Dialect::Relay);
        let shapes = [Dialect::Chat, Dialect::Messages, Dialect::Responses].into_iter().chain(relays);
        let denied = move |name: Name| shapes.clone().any(|shape| name.class(shape) == Class::Denied);
        Name::all().iter().filter(move |(_, name)| denied(*name)).map(|(text, _)| *text)
    }

    /// Treatment of this name in a request of `shape`.
    #[inline]
    pub(in crate::dialect) fn class(self, shape: Dialect) -> Class {
        // Tables, since every member is looked up twice.
        const CHAT: [Class; NAMES.len()] = classes(Dialect::Chat);
        const MESSAGES: [Class; NAMES.len()] = classes(Dialect::Messages);
        const RESPONSES: [Class; NAMES.len()] = classes(Dialect::Responses);
        match shape {
            Dialect::Chat => CHAT[self as usize],
            Dialect::Messages => MESSAGES[self as usize],
            Dialect::Responses => RESPONSES[self as usize],
            Dialect::Relay(relay) => self.class_of_relayed(relay),
        }
    }

    /// True if a member of this class may be omitted or rewritten for a target of its format that accepts everything in
    /// the tables.
    #[inline]
    pub(in crate::dialect) fn is_odd(self, class: Class) -> bool {
        use Name::*;
        matches!(class, Class::Denied | Class::Unknown) || matches!(self, N | StreamOptions | MaxCompletionTokens)
    }

    /// Treatment of this name in a request of chat or messages.
    const fn class_of_talk(self, shape: Dialect) -> Class {
        use Name::*;
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

    /// Treatment of this name in a responses request. Members that require a stored response are `Specified`, so that
    /// their check refuses them.
    const fn class_of_response(self) -> Class {
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

    /// Treatment of this name in a relayed request. Other documented members of such requests are not in [`Name`]; they
    /// are compared as text.
    fn class_of_relayed(self, relay: Relay) -> Class {
        use Name::*;
        let relayed = Relayed::of(relay);
        match self {
            Models | Fallbacks | ApiBase | Container | McpServers | Store => Class::Denied,
            Model => Class::Specified,
            Stream if relayed.generates => Class::Specified,
            MaxTokens | MaxCompletionTokens | N | BestOf | StreamOptions if relayed.generates => Class::Documented,
            // The answer is not text.
            Stream | StreamOptions => Class::Denied,
            User if relayed.documents(b"user") => Class::Documented,
            _ if relayed.needed.iter().any(|(name, _)| *name == self) => Class::Specified,
            _ => Class::Unknown,
        }
    }

    /// True if a list or an object there becomes part of the prompt in addition to conversation and tools: providers
    /// bill schemas for the output, and settings that shorten a conversation, as prompt tokens.
    pub(in crate::dialect) fn is_read_by_model(self, shape: Dialect) -> bool {
        use Name::*;
        match shape {
            Dialect::Chat => matches!(self, ResponseFormat | Functions | Prediction | WebSearchOptions),
            Dialect::Messages => matches!(self, OutputConfig | OutputFormat | ContextManagement | Compaction),
            Dialect::Responses => self == Text,
            Dialect::Relay(_) => false,
        }
    }

    /// True if the gateway reads or rewrites it on some route: such a member may occur only once in a body.
    #[inline]
    pub(in crate::dialect) fn is_read(self, shape: Dialect) -> bool {
        self.is_read_as(self.class(shape), shape)
    }

    /// True if a translation reads it. Outside translations, two of them are not [checked][Name::is_read] in a chat
    /// request.
    #[inline]
    pub(in crate::dialect) fn is_translated(self, shape: Dialect) -> bool {
        self.is_read(shape) || (shape == Dialect::Chat && matches!(self, Name::Verbosity | Name::PromptCacheKey))
    }

    /// True if it may occur only once in a body: it is read there, or it names the user or session.
    #[inline]
    pub(super) fn is_single(self, class: Class, shape: Dialect) -> bool {
        let names_someone = matches!(self, Name::Metadata | Name::SafetyIdentifier | Name::PromptCacheKey);
        self.is_read_as(class, shape) || (names_someone && shape == Dialect::Chat)
    }

    /// Works like [`Name::is_read`], for a member whose class is known.
    #[inline]
    fn is_read_as(self, class: Class, shape: Dialect) -> bool {
        use Name::*;
        match class {
            Class::Specified => true,
            Class::Denied | Class::Unknown => false,
            Class::Documented => matches!(
                (self, shape),
                (Temperature | TopP | Tools | ToolChoice, _)
                    | (ParallelToolCalls | Text | Reasoning | Include | Metadata, Dialect::Responses)
                    | (User | SafetyIdentifier | PromptCacheKey, Dialect::Responses)
                    | (StreamOptions | MaxCompletionTokens | ParallelToolCalls | ReasoningEffort | N, Dialect::Chat)
                    | (MaxTokens | MaxCompletionTokens | N | BestOf | StreamOptions | User, Dialect::Relay(_))
                    | (StopSequences | Thinking | OutputConfig | OutputFormat | Metadata, Dialect::Messages)
            ),
        }
    }
}
