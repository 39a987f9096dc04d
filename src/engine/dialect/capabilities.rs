//! Properties of a model that its translation must know (`capabilities` in the configuration).
//!
//! A plain value; the gateway fills it from the catalog. Nothing here is read from a request.

use super::neutral::carrier::TargetMark;
use std::sync::Arc;

/// Way to require JSON of a given schema from a model.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum Structured {
    /// By the API format's own field.
    #[default]
    Native,
    /// By a tool that the model must call. If the client has tools of its own, by instruction.
    Tool,
    /// By an instruction in the system prompt.
    Instruction,
}

/// Treatment of members that neither format documents, on a route within one format.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum UnknownMembers {
    /// Drop them.
    #[default]
    Drop,
    /// Pass on members that local servers document and that affect only the request.
    Local,
    /// Pass on members that no API format has, except the deny list and members that refer to files or URLs.
    New,
    /// Pass on all except the deny list and members that refer to files or URLs.
    Forward,
}

/// Way to ask a model to think.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum Thinking {
    /// Send no such member.
    #[default]
    Unset,
    /// Let the model decide the amount.
    Adaptive,
    /// Set a token budget.
    Budget,
}

/// Hints for the target's prompt cache.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum Cache {
    /// None except the client's own.
    #[default]
    Unset,
    /// Mark the end of the reusable prefix (messages format).
    Marks,
    /// Name the conversation (chat and responses format).
    Key,
}

/// A member that the configuration writes into a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Param {
    /// Name of the member in the target's format: letters, digits, `_` and `-`.
    pub name: String,
    /// Value of the member as JSON.
    pub json: String,
    /// True if it replaces the client's value. Otherwise it is written only if the client's value is missing or `null`.
    pub always: bool,
}

/// Rules of a vendor for translated requests.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RequestRules {
    /// Members that it refuses.
    pub refuses: Vec<String>,
    /// Pairs of members that it refuses together; the first one is sent.
    pub never_together: Vec<[String; 2]>,
    /// A user's message may follow a tool's (chat format).
    pub user_after_tool: bool,
    /// The id of a call has exactly this number of letters and digits; 0 for any id (chat format).
    pub call_id_length: usize,
}

impl Default for RequestRules {
    fn default() -> RequestRules {
        RequestRules { refuses: Vec::new(), never_together: Vec::new(), user_after_tool: true, call_id_length: 0 }
    }
}

/// Capabilities of a target.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// `temperature` and `top_p` are accepted.
    pub sampling: bool,
    /// System messages are accepted after the first user message. `None`: the default of the format, since most chat
    /// providers accept them and messages providers do not.
    pub mid_conversation_system: Option<bool>,
    /// Reasoning of earlier turns is sent back as `reasoning_content` (chat format).
    pub replay_reasoning: bool,
    /// The bound on completion tokens is called `max_completion_tokens` (chat format).
    pub max_completion_tokens: bool,
    /// Messages of the role `developer` are accepted (chat format).
    pub developer_role: bool,
    /// Maximum number of completion tokens of the model; larger values are lowered to it.
    pub max_output_tokens: Option<u64>,
    /// Way to require JSON of a schema.
    pub structured_output: Structured,
    /// A reasoning effort is accepted.
    pub effort: bool,
    /// Way to ask for reasoning (messages format).
    pub thinking: Thinking,
    /// Hints for its prompt cache.
    pub cache: Cache,
    /// A verbosity is accepted.
    pub verbosity: bool,
    /// An effort is accepted together with tools (chat format). Otherwise a request with tools is sent without an
    /// effort.
    pub effort_with_tools: bool,
    /// `strict` in a tool's definition is accepted.
    pub strict_tools: bool,
    /// `max_tokens` for a messages upstream if a chat client sends no bound.
    pub default_max_tokens: u64,
    /// Members that the model does not accept, by their name in either format. For the bound on completion tokens, only
    /// the name under which it is sent is compared.
    pub drop_params: Vec<String>,
    /// The provider reports usage on a chat stream if the request asks for it.
    pub stream_usage: bool,
    /// Treatment of members outside the tables.
    pub unknown: UnknownMembers,
    /// Types of provider-hosted tools that requests may use (responses format).
    pub hosted_tools: Vec<String>,
    /// A tool call of the current turn must carry its thought signature (chat format).
    pub thought_signatures: bool,
    /// Requests may name objects that are stored in the provider's account.
    pub stored_objects: bool,
    /// Rules of its vendor.
    pub rules: Arc<RequestRules>,
    /// Mark of this target's reasoning.
    pub mark: TargetMark,
    /// Members that the configuration writes, each name once; usually none.
    pub params: Arc<[Param]>,
}

impl Capabilities {
    /// Name of the bound on completion tokens in a chat request.
    pub(super) fn bound(&self) -> &'static str {
        if self.max_completion_tokens { "max_completion_tokens" } else { "max_tokens" }
    }

    /// Bytes that [`Capabilities::params`] add to a request. Doubled, as growing storage doubles.
    pub fn params_room(&self) -> usize {
        // Quotes, colon and comma.
        2 * self.params.iter().map(|param| param.name.len() + param.json.len() + 4).sum::<usize>()
    }

    /// True if a member that the gateway writes by itself must be left out: by the configuration or by the vendor.
    #[inline]
    pub(super) fn refuses(&self, name: &str) -> bool {
        self.drops(name) || self.rules.refuses.iter().any(|refused| refused == name)
    }

    /// True if the configuration says that the model does not accept the member called `name`.
    #[inline]
    pub(super) fn drops(&self, name: &str) -> bool {
        self.drop_params.iter().any(|param| param == name)
    }
}

impl Default for Capabilities {
    fn default() -> Capabilities {
        Capabilities {
            sampling: true,
            mid_conversation_system: None,
            replay_reasoning: false,
            max_completion_tokens: false,
            developer_role: true,
            max_output_tokens: None,
            structured_output: Structured::Native,
            effort: false,
            thinking: Thinking::Unset,
            cache: Cache::Unset,
            verbosity: false,
            effort_with_tools: true,
            strict_tools: false,
            default_max_tokens: 4096,
            drop_params: Vec::new(),
            stream_usage: true,
            unknown: UnknownMembers::Drop,
            hosted_tools: Vec::new(),
            stored_objects: false,
            thought_signatures: false,
            rules: Arc::default(),
            mark: TargetMark::default(),
            params: Arc::default(),
        }
    }
}
