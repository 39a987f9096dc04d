//! What a translation must know of the model it writes for (contract section 7, `capabilities`).
//!
//! A plain value; the gateway fills it from the catalog. Nothing here is read from a request.

use super::carrier::Mark;
use std::sync::Arc;

/// How JSON of a given schema is demanded of a model.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum Structured {
    /// By the field its shape has for it.
    #[default]
    Native,
    /// By a tool that it must call; where the client has tools of its own, by instruction.
    Tool,
    /// By words in the system prompt.
    Instruction,
}

/// What becomes of members that neither shape documents, on a same-shape route.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum UnknownMembers {
    /// They are left out.
    #[default]
    Drop,
    /// Those go on that local servers document and that reach no further than the request.
    Local,
    /// All go on but the deny list, and what leads elsewhere.
    Forward,
}

/// How a model is asked to think.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum Thinking {
    /// It is not.
    #[default]
    Unset,
    /// As it sees fit.
    Adaptive,
    /// With so many tokens.
    Budget,
}

/// What the target's prompt cache is told.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum Cache {
    /// Nothing that the client does not say.
    #[default]
    Unset,
    /// Where what will come again ends (messages shape).
    Marks,
    /// Which conversation it is (chat and responses shape).
    Key,
}

/// A member that the configuration writes into a request (contract section 11, "Parameters").
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Param {
    /// Its name in the target's shape: letters, digits, `_` and `-`.
    pub name: String,
    /// Its value as JSON.
    pub json: String,
    /// It takes the place of the client's; else it is written where there is none, or `null`.
    pub always: bool,
}

/// What the target takes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// `temperature` and `top_p` are accepted.
    pub sampling: bool,
    /// System messages are accepted after the first user message (messages shape).
    pub mid_conversation_system: bool,
    /// Reasoning of earlier turns is sent back as `reasoning_content` (chat shape).
    pub replay_reasoning: bool,
    /// The bound on completion tokens is called `max_completion_tokens` (chat shape).
    pub max_completion_tokens: bool,
    /// Messages of the role `developer` are accepted (chat shape).
    pub developer_role: bool,
    /// The most completion tokens the model can give; larger demands are lowered to it.
    pub max_output_tokens: Option<u64>,
    /// How JSON of a schema is demanded.
    pub structured_output: Structured,
    /// A reasoning effort is accepted.
    pub effort: bool,
    /// How a request that asks for reasoning asks for it (messages shape).
    pub thinking: Thinking,
    /// What its prompt cache is told.
    pub cache: Cache,
    /// A verbosity is accepted.
    pub verbosity: bool,
    /// An effort is accepted beside tools (chat shape); else a request with tools says that there is to be none.
    pub effort_with_tools: bool,
    /// `strict` in a tool's definition is accepted.
    pub strict_tools: bool,
    /// `max_tokens` for a messages upstream where a chat client names none.
    pub default_max_tokens: u64,
    /// Members the model does not take, by their name in either shape. Of the bound on completion tokens it is the
    /// name under which it is sent that counts.
    pub drop_params: Vec<String>,
    /// The provider reports usage on a chat stream when asked.
    pub stream_usage: bool,
    /// What becomes of members outside the tables.
    pub unknown: UnknownMembers,
    /// Types of tools that run at the provider and may be asked for (responses shape).
    pub hosted_tools: Vec<String>,
    /// Requests may name objects that are stored in the provider's account.
    pub stored_objects: bool,
    /// What reasoning of this target's is known by.
    pub mark: Mark,
    /// Members that the configuration writes, each name once; mostly none.
    pub params: Arc<[Param]>,
}

impl Capabilities {
    /// What the bound on completion tokens is called in a chat request.
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
            mid_conversation_system: false,
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
            mark: Mark::default(),
            params: Arc::default(),
        }
    }
}
