//! The neutral form between the formats' requests: each format has a reader that produces it and a writer that consumes
//! it.
//!
//! Owns the types. Must never name a member of a format. Texts are the insides of JSON strings, with their escapes:
//! they pass from one format to the other without being unescaped.

use crate::dialect::neutral::JsonText;
use crate::dialect::neutral::arguments::Arguments;
use crate::wire::json::Raw;

/// A whole request.
#[derive(Default)]
pub(crate) struct Conversation<'a> {
    pub(crate) turns: Vec<Turn<'a>>,
    pub(crate) tools: Tools<'a>,
    pub(crate) format: OutputFormat<'a>,
    pub(crate) settings: AnswerSettings<'a>,
}

/// Role of a speaker.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    User,
    Assistant,
    /// The operator of the conversation. `moves`: if a format does not allow it in the middle, it moves to the front.
    /// Otherwise it stays in place, since the provider's cache depends on the front.
    System {
        moves: bool,
    },
}

/// Consecutive blocks of one role.
pub(crate) struct Turn<'a> {
    pub(crate) role: Role,
    pub(crate) blocks: Vec<Block<'a>>,
}

/// A part of a turn.
pub(crate) enum Block<'a> {
    Text(JsonText<'a>),
    Media(Media<'a>),
    /// Reasoning, which a target may require back.
    Reasoning(&'a [u8]),
    /// Reasoning from this very target, as JSON in its own format.
    SealedReasoning(Vec<u8>),
    Call(ToolCall<'a>),
    Result(ToolResult<'a>),
    /// The client's cache mark on the preceding block.
    Breakpoint(CacheBreakpoint),
}

/// End of a cached prefix of the prompt.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct CacheBreakpoint {
    /// True for one hour, false for the default time.
    pub(crate) hour: bool,
}

/// An image or a document in the neutral form.
pub(crate) enum Media<'a> {
    /// An image as base64.
    Image { kind: JsonText<'a>, data: JsonText<'a>, detail: Option<&'a [u8]> },
    /// An image for the upstream to fetch.
    Url { url: JsonText<'a>, detail: Option<&'a [u8]> },
    /// A PDF as base64, with its name.
    Pdf { data: JsonText<'a>, title: Option<&'a [u8]> },
    /// A document for the upstream to fetch, with its name and its path in the request.
    Document { url: JsonText<'a>, title: Option<&'a [u8]>, path: String },
}

/// A call of a tool.
pub(crate) struct ToolCall<'a> {
    pub(crate) id: &'a [u8],
    pub(crate) name: JsonText<'a>,
    pub(crate) arguments: Arguments<'a>,
}

/// Result of a tool call.
pub(crate) struct ToolResult<'a> {
    /// Id of the call.
    pub(crate) id: &'a [u8],
    pub(crate) failed: bool,
    /// True if it was a plain string.
    pub(crate) plain: bool,
    pub(crate) content: Vec<Block<'a>>,
}

/// The tools on offer and the choice among them.
#[derive(Default)]
pub(crate) struct Tools<'a> {
    pub(crate) list: Vec<Tool<'a>>,
    pub(crate) choice: ToolChoice<'a>,
    /// True if several may be called at once; `None` if the client does not say.
    pub(crate) parallel: Option<bool>,
    /// True if a provider-hosted tool was omitted.
    pub(crate) hosted: bool,
}

/// A tool.
pub(crate) struct Tool<'a> {
    pub(crate) name: JsonText<'a>,
    pub(crate) description: Option<JsonText<'a>>,
    pub(crate) schema: Schema<'a>,
    pub(crate) strict: bool,
    pub(crate) mark: Option<CacheBreakpoint>,
}

/// Arguments that a tool accepts.
#[derive(Copy, Clone)]
pub(crate) enum Schema<'a> {
    /// Arguments by a JSON schema.
    Given(Raw<'a>),
    /// Free text, as its one argument `input`.
    Free,
}

/// Choice of the tool to be called.
#[derive(Default, Clone, PartialEq, Eq)]
pub(crate) enum ToolChoice<'a> {
    #[default]
    Absent,
    Auto,
    None,
    Any,
    One(JsonText<'a>),
}

/// The required format of the answer.
#[derive(Default)]
pub(crate) enum OutputFormat<'a> {
    #[default]
    Free,
    Object,
    Schema {
        schema: Raw<'a>,
        name: Option<&'a [u8]>,
        description: Option<&'a [u8]>,
        strict: Option<bool>,
    },
}

/// Amount of reasoning.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Effort(&'static str);

impl Effort {
    const ALL: [&'static str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];
    pub(crate) const NONE: Effort = Effort("none");

    /// The client's effort; `None` for an unknown word.
    pub(crate) fn read(word: Raw<'_>) -> Option<Effort> {
        Effort::ALL.into_iter().find(|known| word.is(known)).map(Effort)
    }

    /// The effort for a thinking budget of `tokens`.
    pub(crate) fn of_budget(tokens: u64) -> Effort {
        Effort(match tokens {
            0..4096 => "low",
            4096..16384 => "medium",
            _ => "high",
        })
    }

    pub(crate) fn word(self) -> &'static str {
        self.0
    }
}

/// Parameters of the answer; each is absent if the client does not send it.
#[derive(Default)]
pub(crate) struct AnswerSettings<'a> {
    pub(crate) temperature: Option<Raw<'a>>,
    pub(crate) top_p: Option<Raw<'a>>,
    pub(crate) stops: Vec<&'a [u8]>,
    pub(crate) user: Option<&'a [u8]>,
    /// The key of the provider's prompt cache.
    pub(crate) cache_key: Option<JsonText<'a>>,
    pub(crate) effort: Option<Effort>,
    /// True if reasoning and its summary are requested, false if only reasoning is.
    pub(crate) reasons: Option<bool>,
    /// Members of the request that control reasoning.
    pub(crate) reasoning: Vec<&'static str>,
    pub(crate) verbosity: Option<&'a [u8]>,
    /// The client sends no bound and expects the model's maximum.
    pub(crate) unbounded: bool,
}

impl<'a> Conversation<'a> {
    /// The ids of all calls in the conversation.
    pub(crate) fn call_ids(&self) -> impl Iterator<Item = &[u8]> {
        let blocks = self.turns.iter().flat_map(|turn| &turn.blocks);
        blocks.filter_map(|block| if let Block::Call(call) = block { Some(call.id) } else { None })
    }

    /// The names of the tools called in the conversation, in the order of their first call.
    pub(crate) fn called(&self) -> Vec<&[u8]> {
        let mut known = std::collections::BTreeMap::<&[u8], usize>::new();
        let calls = self.turns.iter().flat_map(|turn| &turn.blocks).filter_map(|block| match block {
            Block::Call(call) => Some(&*call.name),
            _ => None,
        });
        calls.enumerate().filter_map(|(at, name)| known.insert(name, at).is_none().then_some(name)).collect()
    }
}

impl<'a> Turn<'a> {
    pub(crate) fn new(role: Role) -> Turn<'a> {
        Turn { role, blocks: Vec::new() }
    }
}

impl Block<'_> {
    /// The text of a text block.
    pub(crate) fn text(&self) -> Option<&[u8]> {
        if let Block::Text(text) = self { Some(text) } else { None }
    }
}
