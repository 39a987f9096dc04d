//! Properties of a model that its translation must know (`capabilities` in the configuration).
//!
//! A plain value; the gateway fills it from the catalog. Nothing here is read from a request.

use super::carrier::TargetMark;
use std::sync::Arc;

/// Way to require JSON of a given schema from a model.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum Structured {
    /// By its shape's own field.
    #[default]
    Native,
    /// By a tool that it must call; where the client has tools of its own, by instruction.
    Tool,
    /// By words in the system prompt.
    Instruction,
}

/// Treatment of members that neither shape documents, on a same-shape route.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum UnknownMembers {
    /// Drop them.
    #[default]
    Drop,
    /// Pass on members that local servers document and that affect only the request.
    Local,
    /// Pass on all except the deny list and members that refer to other places.
    Forward,
}

/// Way to ask a model to think.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum Thinking {
    /// Do not ask.
    #[default]
    Unset,
    /// Let the model decide the amount.
    Adaptive,
    /// With a budget of tokens.
    Budget,
}

/// Hints for the target's prompt cache.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum Cache {
    /// None except the client's own.
    #[default]
    Unset,
    /// Mark the end of the reusable prefix (messages shape).
    Marks,
    /// Name the conversation (chat and responses shape).
    Key,
}

/// A member that the configuration writes into a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Param {
    /// Name of the member in the target's shape: letters, digits, `_` and `-`.
    pub name: String,
    /// Value of the member as JSON.
    pub json: String,
    /// True if it replaces the client's value; otherwise it is written if that is missing or `null`.
    pub always: bool,
}

/// Capabilities of a target.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// `temperature` and `top_p` are accepted.
    pub sampling: bool,
    /// System messages are accepted after the first user message. `None`: by the shape, as chat providers mostly accept
    /// them and messages providers do not.
    pub mid_conversation_system: Option<bool>,
    /// Reasoning of earlier turns is sent back as `reasoning_content` (chat shape).
    pub replay_reasoning: bool,
    /// The bound on completion tokens is called `max_completion_tokens` (chat shape).
    pub max_completion_tokens: bool,
    /// Messages of the role `developer` are accepted (chat shape).
    pub developer_role: bool,
    /// Maximum number of completion tokens of the model; larger values are lowered to it.
    pub max_output_tokens: Option<u64>,
    /// Way to require JSON of a schema.
    pub structured_output: Structured,
    /// A reasoning effort is accepted.
    pub effort: bool,
    /// Way to ask for reasoning (messages shape).
    pub thinking: Thinking,
    /// Hints for its prompt cache.
    pub cache: Cache,
    /// A verbosity is accepted.
    pub verbosity: bool,
    /// An effort is accepted together with tools (chat shape); otherwise a request with tools asks for no effort.
    pub effort_with_tools: bool,
    /// `strict` in a tool's definition is accepted.
    pub strict_tools: bool,
    /// `max_tokens` for a messages upstream where a chat client names none.
    pub default_max_tokens: u64,
    /// Members the model does not take, by their name in either shape. Of the bound on completion tokens it is the
    /// name under which it is sent that counts.
    pub drop_params: Vec<String>,
    /// The provider reports usage on a chat stream if asked.
    pub stream_usage: bool,
    /// Treatment of members outside the tables.
    pub unknown: UnknownMembers,
    /// Types of tools that run at the provider and may be asked for (responses shape).
    pub hosted_tools: Vec<String>,
    /// A tool call of the current turn must carry its thought signature (chat shape).
    pub thought_signatures: bool,
    /// Requests may name objects that are stored in the provider's account.
    pub stored_objects: bool,
    /// Mark of this target's reasoning.
    pub mark: TargetMark,
    /// Members that the configuration writes, each name once; mostly none.
    pub params: Arc<[Param]>,
}

impl Capabilities {
    /// Name of the bound on completion tokens in a chat request.
    pub(super) fn bound(&self) -> &'static str {
        if self.max_completion_tokens { "max_completion_tokens" } else { "max_tokens" }
    }

    /// Bytes that [`Capabilities::params`] add to a request, as storage that doubles when it grows.
    pub fn params_room(&self) -> usize {
        // Quotes, colon and comma.
        2 * self.params.iter().map(|param| param.name.len() + param.json.len() + 4).sum::<usize>()
    }

    /// True if the model does not take the member called `name`.
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
            mark: TargetMark::default(),
            params: Arc::default(),
        }
    }
}
