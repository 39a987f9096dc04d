//! Treatment of the members of requests: of those in the table, of pass-through requests, and of unknown ones.

use super::super::dispatch::with_format;
use super::super::passthrough::PassthroughFormat;
use super::members::{Class, Name};
use crate::base::limits::NAME_BYTES_MAX;
use crate::wire::json::unescape;
use crate::wire::{ModelEndpoint, Operation, Passthrough, Shape};

/// Names of members that refer to other places, in lower-case letters and digits.
const ELSEWHERE: &[&str] = &[
    "account",
    "accountid",
    "anthropicbeta",
    "apitype",
    "apiversion",
    "auth",
    "authorization",
    "awsregion",
    "awsregionname",
    "awssessiontoken",
    "azureadtoken",
    "bearer",
    "betas",
    "container",
    "containerid",
    "containers",
    "customllmprovider",
    "defaultheaders",
    "deployment",
    "deploymentid",
    "destination",
    "diagnostics",
    "extrabody",
    "extraheaders",
    "extraquery",
    "headers",
    "key",
    "litellmparams",
    "mcp",
    "mcpservers",
    "mcptools",
    "mcptoolset",
    "mockresponse",
    "mocks",
    "modellist",
    "modelname",
    "models",
    "org",
    "orgid",
    "project",
    "projectid",
    "provider",
    "providers",
    "region",
    "route",
    "router",
    "routing",
    "server",
    "skillids",
    "skills",
    "store",
    "thread",
    "threadid",
    "token",
    "userconfig",
    "userprofileid",
    "vault",
    "vertexproject",
];

/// Parts of names of members that refer to other places, credentials, models or tenants.
const ELSEWHERE_PARTS: &[&str] = &[
    "accesskey",
    "accesstoken",
    "callback",
    "credential",
    "fallback",
    "organisation",
    "organization",
    "password",
    "privatekey",
    "proxy",
    "redirect",
    "secret",
    "tenant",
    "webhook",
    "workspace",
];

/// Ends of such names.
const ELSEWHERE_ENDS: &[&str] =
    &["apibase", "apikey", "apikeys", "apitoken", "baseuri", "endpoint", "host", "uri", "url"];

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

impl Name {
    /// Names that are denied in requests to any endpoint.
    #[cfg(test)]
    pub(crate) fn denied() -> impl Iterator<Item = &'static str> {
        let passthroughs = Passthrough::ALL.map(ModelEndpoint::passthrough);
        let endpoints = Shape::ALL.into_iter().map(ModelEndpoint::generate).chain(passthroughs);
        let denied = move |name: Name| endpoints.clone().any(|endpoint| name.class(endpoint) == Class::Denied);
        Name::all().iter().filter(move |(_, name)| denied(*name)).map(|(text, _)| *text)
    }

    /// Treatment of this member in a request to `endpoint`.
    #[inline]
    pub(crate) fn class(self, endpoint: ModelEndpoint) -> Class {
        match endpoint.operation {
            Operation::Passthrough(passthrough) => self.class_of_passthrough(passthrough),
            _ => self.of_shape(endpoint.shape),
        }
    }

    /// Treatment of this member in a pass-through request. Other documented members of such requests are not in the
    /// table; they are compared as text.
    fn class_of_passthrough(self, passthrough: Passthrough) -> Class {
        use Name::*;
        let format = PassthroughFormat::of(passthrough);
        match self {
            Models | Fallbacks | ApiBase | Container | McpServers | Store | PreviousResponseId | Conversation => {
                Class::Denied
            }
            Model => Class::Specified,
            Stream if passthrough.generates() => Class::Specified,
            MaxTokens | MaxCompletionTokens | N | BestOf | StreamOptions if passthrough.generates() => Class::Read,
            Stream if passthrough == Passthrough::Images => Class::Specified,
            N if passthrough == Passthrough::Images => Class::Read,
            // The answer has no such stream.
            Stream | StreamOptions => Class::Denied,
            User if format.documents(b"user") => Class::Read,
            _ if format.needed.iter().any(|(name, _)| *name == self) => Class::Specified,
            _ => Class::Unknown,
        }
    }

    /// True if a member of this class may be omitted or rewritten for a target of its format that accepts everything in
    /// the table.
    #[inline]
    pub(crate) fn is_odd(self, class: Class) -> bool {
        use Name::*;
        matches!(class, Class::Denied | Class::Unknown) || matches!(self, N | StreamOptions | MaxCompletionTokens)
    }

    /// True if a list or an object there becomes part of the prompt in addition to conversation and tools: providers
    /// bill schemas for the output, and settings that shorten a conversation, as prompt tokens.
    pub(crate) fn is_read_by_model(self, shape: Shape) -> bool {
        with_format!(shape, F => F::is_read_by_model(self))
    }

    /// True if the gateway reads or rewrites it on some route.
    #[inline]
    pub(crate) fn is_read(self, endpoint: ModelEndpoint) -> bool {
        self.class(endpoint).is_read()
    }

    /// True if a translation reads it. Outside translations, two of them are not read in a chat request.
    #[inline]
    pub(crate) fn is_translated(self, shape: Shape) -> bool {
        let chat = shape == Shape::Chat && matches!(self, Name::Verbosity | Name::PromptCacheKey);
        chat || self.is_read(ModelEndpoint::generate(shape))
    }

    /// True if it may occur only once in a body: it is read there, or it names the user or session.
    #[inline]
    pub(super) fn is_single(self, class: Class, endpoint: ModelEndpoint) -> bool {
        let names_someone = matches!(self, Name::Metadata | Name::SafetyIdentifier | Name::PromptCacheKey);
        class.is_read() || (names_someone && endpoint == ModelEndpoint::CHAT)
    }

    /// True if a member outside the table reaches beyond the key, in any spelling: it names another place, another
    /// credential, or another tenant of a provider that is itself a gateway. Called only if unknown members are
    /// forwarded.
    pub(crate) fn leads_elsewhere(raw: &[u8]) -> bool {
        // Longer names are not compared.
        if raw.len() > NAME_BYTES_MAX {
            return true;
        }
        let name = &*letters(raw);
        Name::differs_in_case(raw)
            || ELSEWHERE.contains(&name)
            || ELSEWHERE_PARTS.iter().any(|part| name.contains(part))
            || ELSEWHERE_ENDS.iter().any(|end| name.ends_with(end))
    }

    /// True for a name that differs only in the case of its letters from one that the gateway reads. A provider that
    /// ignores the case would take it for that member.
    fn differs_in_case(raw: &[u8]) -> bool {
        let mut plain = Vec::new();
        unescape(raw, &mut plain);
        let completions = ModelEndpoint::passthrough(Passthrough::Completions);
        let endpoints = Shape::ALL.into_iter().map(ModelEndpoint::generate).chain([completions]);
        let is_read = |name: Name| endpoints.clone().any(|endpoint| name.is_read(endpoint));
        let is_spelled_so = Name::of_field(&plain) != Name::Other;
        // The price of a member is looked up in any spelling.
        !is_spelled_so && Name::priced(raw).is_none() && Name::in_any_case(&plain).is_some_and(is_read)
    }

    /// The member outside the table that may have a price of its own, in any spelling. Called only if unknown members
    /// are forwarded.
    pub(crate) fn priced(raw: &[u8]) -> Option<Name> {
        // A longer name is not sent.
        let letters = if raw.len() > NAME_BYTES_MAX { return None } else { letters(raw) };
        PRICED.iter().find(|(name, _)| *name == letters).map(|(_, name)| *name)
    }

    /// True if a member outside the table is harmless and documented by local servers for their chat endpoint. Called
    /// only for providers on the own network.
    pub(crate) fn is_local(raw: &[u8]) -> bool {
        if raw.len() > NAME_BYTES_MAX {
            return false;
        }
        let mut plain = Vec::new();
        unescape(raw, &mut plain);
        let Ok(name) = std::str::from_utf8(&plain) else { return false };
        LOCAL.contains(&name) || LOCAL_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
    }
}
