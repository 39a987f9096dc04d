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
pub(in crate::dialect) struct Talk<'a> {
    pub(in crate::dialect) turns: Vec<Turn<'a>>,
    pub(in crate::dialect) offer: Offer<'a>,
    pub(in crate::dialect) format: Format<'a>,
    pub(in crate::dialect) wishes: Wishes<'a>,
}

/// Role of a speaker.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(in crate::dialect) enum Role {
    User,
    Assistant,
    /// The operator of the conversation. `moves`: if a format does not allow it in the middle, it moves to the front.
    /// Otherwise it stays in place, since the provider's cache depends on the front.
    System {
        moves: bool,
    },
}

/// Consecutive blocks of one role.
pub(in crate::dialect) struct Turn<'a> {
    pub(in crate::dialect) role: Role,
    pub(in crate::dialect) blocks: Vec<Block<'a>>,
}

/// A part of a turn.
pub(in crate::dialect) enum Block<'a> {
    Text(JsonText<'a>),
    Media(Media<'a>),
    /// Reasoning, which a target may require back.
    Think(&'a [u8]),
    /// Reasoning from this very target, as JSON in its own format.
    Carried(Vec<u8>),
    Call(ToolCall<'a>),
    Result(Returned<'a>),
    /// The client's cache mark on the preceding block.
    Mark(CacheMark),
}

/// End of a cached prefix of the prompt.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(in crate::dialect) struct CacheMark {
    /// True for one hour, false for the default time.
    pub(in crate::dialect) hour: bool,
}

/// An image or a document in the neutral form.
pub(in crate::dialect) enum Media<'a> {
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
pub(in crate::dialect) struct ToolCall<'a> {
    pub(in crate::dialect) id: &'a [u8],
    pub(in crate::dialect) name: JsonText<'a>,
    pub(in crate::dialect) arguments: Arguments<'a>,
}

/// Result of a tool call.
pub(in crate::dialect) struct Returned<'a> {
    /// Id of the call.
    pub(in crate::dialect) id: &'a [u8],
    pub(in crate::dialect) failed: bool,
    /// True if it was a plain string.
    pub(in crate::dialect) plain: bool,
    pub(in crate::dialect) content: Vec<Block<'a>>,
}

/// The tools on offer and the choice among them.
#[derive(Default)]
pub(in crate::dialect) struct Offer<'a> {
    pub(in crate::dialect) tools: Vec<Tool<'a>>,
    pub(in crate::dialect) choice: ToolChoice<'a>,
    /// True if several may be called at once; `None` if the client does not say.
    pub(in crate::dialect) parallel: Option<bool>,
    /// True if a provider-hosted tool was omitted.
    pub(in crate::dialect) hosted: bool,
}

/// A tool.
pub(in crate::dialect) struct Tool<'a> {
    pub(in crate::dialect) name: JsonText<'a>,
    pub(in crate::dialect) description: Option<JsonText<'a>>,
    pub(in crate::dialect) schema: Schema<'a>,
    pub(in crate::dialect) strict: bool,
    pub(in crate::dialect) mark: Option<CacheMark>,
}

/// Arguments that a tool accepts.
#[derive(Copy, Clone)]
pub(in crate::dialect) enum Schema<'a> {
    /// Arguments by a JSON schema.
    Given(Raw<'a>),
    /// Free text, as its one argument `input`.
    Free,
}

/// Choice of the tool to be called.
#[derive(Default, Clone, PartialEq, Eq)]
pub(in crate::dialect) enum ToolChoice<'a> {
    #[default]
    Absent,
    Auto,
    None,
    Any,
    One(JsonText<'a>),
}

/// The required format of the answer.
#[derive(Default)]
pub(in crate::dialect) enum Format<'a> {
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
pub(in crate::dialect) struct Effort(&'static str);

impl Effort {
    const ALL: [&'static str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];
    pub(in crate::dialect) const NONE: Effort = Effort("none");

    /// The client's effort; `None` for an unknown word.
    pub(in crate::dialect) fn read(word: Raw<'_>) -> Option<Effort> {
        Effort::ALL.into_iter().find(|known| word.is(known)).map(Effort)
    }

    /// The effort for a thinking budget of `tokens`.
    pub(in crate::dialect) fn of_budget(tokens: u64) -> Effort {
        Effort(match tokens {
            0..4096 => "low",
            4096..16384 => "medium",
            _ => "high",
        })
    }

    pub(in crate::dialect) fn word(self) -> &'static str {
        self.0
    }
}

/// Parameters of the answer; each is absent if the client does not send it.
#[derive(Default)]
pub(in crate::dialect) struct Wishes<'a> {
    pub(in crate::dialect) temperature: Option<Raw<'a>>,
    pub(in crate::dialect) top_p: Option<Raw<'a>>,
    pub(in crate::dialect) stops: Vec<&'a [u8]>,
    pub(in crate::dialect) user: Option<&'a [u8]>,
    /// The key of the provider's prompt cache.
    pub(in crate::dialect) cache_key: Option<JsonText<'a>>,
    pub(in crate::dialect) effort: Option<Effort>,
    /// True if reasoning and its summary are requested, false if only reasoning is.
    pub(in crate::dialect) reasons: Option<bool>,
    /// Members of the request that control reasoning.
    pub(in crate::dialect) reasoning: Vec<&'static str>,
    pub(in crate::dialect) verbosity: Option<&'a [u8]>,
    /// The client sends no bound and expects the model's maximum.
    pub(in crate::dialect) unbounded: bool,
}

impl<'a> Talk<'a> {
    /// The ids of all calls in the conversation.
    pub(in crate::dialect) fn call_ids(&self) -> impl Iterator<Item = &[u8]> {
        let blocks = self.turns.iter().flat_map(|turn| &turn.blocks);
        blocks.filter_map(|block| if let Block::Call(call) = block { Some(call.id) } else { None })
    }

    /// The names of the tools called in the conversation, in the order of their first call.
    pub(in crate::dialect) fn called(&self) -> Vec<&[u8]> {
        let mut known = std::collections::BTreeMap::<&[u8], usize>::new();
        let calls = self.turns.iter().flat_map(|turn| &turn.blocks).filter_map(|block| match block {
            Block::Call(call) => Some(&*call.name),
            _ => None,
        });
        calls.enumerate().filter_map(|(at, name)| known.insert(name, at).is_none().then_some(name)).collect()
    }
}

impl<'a> Turn<'a> {
    pub(in crate::dialect) fn new(role: Role) -> Turn<'a> {
        Turn { role, blocks: Vec::new() }
    }
}

impl Block<'_> {
    /// The text of a text block.
    pub(in crate::dialect) fn text(&self) -> Option<&[u8]> {
        if let Block::Text(text) = self { Some(text) } else { None }
    }
}
