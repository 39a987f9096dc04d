//! Capabilities of models, as settings and as rows of the table of vendors say them.

use crate::base::words;
use crate::policy::settings::kinds::{Flag, OneOf, Or, Whole};
use crate::policy::settings::section;

/// Tokens a context, a reservation or an answer may have; far above any model.
pub const TOKENS_MAX: u64 = 1 << 40;

words! {
    /// Way to request JSON of a given schema from a model.
    #[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
    pub enum StructuredOutput {
        /// By a field of its own.
        #[default]
        Native = "native",
        /// By a tool that it must call.
        Tool = "tool",
        /// By an instruction in the prompt.
        Instruction = "instruction",
    }
}

words! {
    /// Way to request reasoning from a model.
    #[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
    pub enum ModelThinking {
        /// Not at all.
        #[default]
        Unset = "none",
        /// The model decides.
        Adaptive = "adaptive",
        /// With a number of tokens.
        Budget = "budget",
    }
}

words! {
    /// Way to use a provider's prompt cache.
    #[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
    pub enum PromptCache {
        /// Not at all.
        #[default]
        Unset = "none",
        /// By cache marks in the prompt.
        Marks = "marks",
        /// By a key for the conversation.
        Key = "key",
    }
}

section! {
    /// Properties of a model that a translation needs. A route without translation needs only the name of the bound,
    /// the role `developer` and thought signatures.
    #[derive(Copy, Clone, PartialEq, Eq, Debug)]
    pub struct Capabilities {
        /// The model accepts `temperature` and `top_p`. Default: the vendor's, otherwise true.
        pub sampling: Option<bool> = None, Or(Flag, "true"), Live;
        /// The model accepts system messages after the first user message. If true, a provider of the shape `messages`
        /// gets a system message in its place if it directly follows a user message and precedes an assistant message
        /// or the end; other system messages are sent as if false. If false, a provider of the shape `chat` gets the
        /// system messages at the beginning as one message, and later system messages as user messages. A provider of
        /// the shape `messages` gets later system messages as user messages, or in the system prompt if the client uses
        /// Chat Completions. A provider of the shape `responses` always gets them as developer messages. Default: true
        /// for shape `chat`, false for `messages`.
        pub mid_conversation_system: Option<bool> = None, Or(Flag, "by the shape"), Live;
        /// Tollgate sends reasoning of earlier turns back to the model. Default: the vendor's, otherwise false.
        pub replay_reasoning: Option<bool> = None, Or(Flag, "false"), Live;
        /// The model's name for the bound on completion tokens is `max_completion_tokens` (shape `chat`). This also
        /// applies to requests that are not translated. Default: the vendor's, otherwise false.
        pub max_completion_tokens: Option<bool> = None, Or(Flag, "false"), Live;
        /// The model accepts messages of the role `developer` (shape `chat`). If false, Tollgate sends such messages of
        /// a chat client with the role `system`. Default: the vendor's, otherwise false.
        pub developer_role: Option<bool> = None, Or(Flag, "false"), Live;
        /// Form in which Tollgate requests JSON that fits a schema: `"native"` as the field of the API, `"tool"` as a
        /// tool that the model must call, `"instruction"` as text in the prompt. Default: the vendor's, otherwise
        /// `"native"`.
        pub structured_output: Option<StructuredOutput> = None,
            Or(OneOf(&StructuredOutput::ALL, StructuredOutput::as_str), "native"), Live;
        /// The model accepts a reasoning effort. A provider of the shape `responses` is then also asked for its
        /// reasoning (`reasoning.encrypted_content`). Default: the vendor's, otherwise true for providers of the shape
        /// `responses` and false for others.
        pub effort: Option<bool> = None, Or(Flag, "by the shape"), Live;
        /// Translation of a responses client's request for reasoning (shape `messages`): `"adaptive"` lets the model
        /// decide; `"budget"` sends 2,048 tokens for low effort, 8,192 for medium and 16,384 for more, at most half of
        /// the bound on completion tokens, but at least 1,024, or nothing if the bound is too small for that; `"none"`
        /// sends nothing. The `reasoning_effort` of a chat client needs `effort` instead. Default: the vendor's,
        /// otherwise `"none"`.
        pub thinking: Option<ModelThinking> = None,
            Or(OneOf(&ModelThinking::ALL, ModelThinking::as_str), "none"), Live;
        /// The model accepts a verbosity (shape `chat`). Default: the vendor's, otherwise false.
        pub verbosity: Option<bool> = None, Or(Flag, "false"), Live;
        /// The model accepts an effort together with tools (shape `chat`). If false, a translated request with tools
        /// has the effort `none`. Default: the vendor's, otherwise true.
        pub effort_with_tools: Option<bool> = None, Or(Flag, "true"), Live;
        /// The model rejects a tool call of the current turn without its thought signature (shape `chat`). If a client
        /// sends none, Tollgate adds the placeholder that the provider accepts. Default: the vendor's, otherwise false.
        pub thought_signatures: Option<bool> = None, Or(Flag, "false"), Live;
        /// The model accepts `strict` in a tool's definition. Default: the vendor's, otherwise false.
        pub strict_tools: Option<bool> = None, Or(Flag, "false"), Live;
        /// Use of the provider's prompt cache by a translated request. Tollgate always forwards the client's own marks.
        /// `"marks"` also sets `cache_control` on the last block of the system prompt and of the last two user turns,
        /// unless the client has set marks (shape `messages`). `"key"` sends the client's `prompt_cache_key`, otherwise
        /// a key derived from the session (shapes `chat` and `responses`). Default: the vendor's, otherwise `"none"`.
        pub cache: Option<PromptCache> = None, Or(OneOf(&PromptCache::ALL, PromptCache::as_str), "none"), Live;
        /// Maximum number of completion tokens of the model. In a translated request, Tollgate lowers a larger bound to
        /// this number.
        pub max_output_tokens: Option<u64> = None, Or(Whole(1..=TOKENS_MAX), "none"), Live;
        /// Most tokens that the model reads of one image. A request under a strict limit reserves them for each image.
        /// Default: the vendor's, otherwise 4096.
        pub max_image_tokens: Option<u64> = None, Or(Whole(1..=TOKENS_MAX), "4096"), Live;
    }
}
