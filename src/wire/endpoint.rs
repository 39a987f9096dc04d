//! The endpoints that models serve: an API format and an operation.

use crate::base::words;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;

/// Prefix of all paths.
const VERSION: &str = "/v1";

/// An API format.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Hash)]
pub enum Shape {
    /// OpenAI Chat Completions.
    Chat,
    /// Anthropic Messages.
    Messages,
    /// OpenAI Responses.
    Responses,
}

/// Fixed properties of an API format.
struct ShapeRow {
    name: &'static str,
    /// Another name in the configuration; empty if there is none.
    alias: &'static str,
    /// Path of the requests for answers.
    path: &'static str,
    /// Path of the requests for a number of tokens; empty if there are none.
    count_path: &'static str,
    is_anthropic: bool,
    /// Its API has the pass-through endpoints.
    has_passthrough: bool,
    /// Every model that is served by it accepts an effort of reasoning.
    takes_effort: bool,
    /// Clients may ask for a WebSocket at its path first.
    may_be_websocket: bool,
}

impl ShapeRow {
    /// A row without special properties.
    const PLAIN: ShapeRow = ShapeRow {
        name: "",
        alias: "",
        path: "",
        count_path: "",
        is_anthropic: false,
        has_passthrough: false,
        takes_effort: false,
        may_be_websocket: false,
    };
}

/// The formats in the order of [`Shape::ALL`].
const SHAPES: [ShapeRow; Shape::ALL.len()] = [
    ShapeRow { name: "chat", alias: "openai", path: "/v1/chat/completions", has_passthrough: true, ..ShapeRow::PLAIN },
    ShapeRow {
        name: "messages",
        alias: "anthropic",
        path: "/v1/messages",
        count_path: "/v1/messages/count_tokens",
        is_anthropic: true,
        ..ShapeRow::PLAIN
    },
    ShapeRow {
        name: "responses",
        path: "/v1/responses",
        count_path: "/v1/responses/input_tokens",
        takes_effort: true,
        may_be_websocket: true,
        ..ShapeRow::PLAIN
    },
];

impl Shape {
    /// All formats.
    pub const ALL: [Shape; 3] = [Shape::Chat, Shape::Messages, Shape::Responses];

    #[inline]
    const fn row(self) -> &'static ShapeRow {
        &SHAPES[self as usize]
    }

    /// Returns its name in the configuration, in scopes and in rows.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Returns all names in the configuration.
    pub fn names() -> Vec<(&'static str, Shape)> {
        let names = Shape::ALL.map(|shape| (shape.name(), shape));
        let aliases = Shape::ALL.map(|shape| (shape.row().alias, shape));
        names.into_iter().chain(aliases).filter(|(name, _)| !name.is_empty()).collect()
    }

    /// Returns the path of its requests for answers below `/v1`.
    pub fn path_below(self) -> &'static str {
        ModelEndpoint::generate(self).path_below()
    }

    /// True for Anthropic's API. Its base URL has no `/v1`, its key is in `x-api-key`, its requests name a version, and
    /// its list of models has pages.
    #[inline]
    pub fn is_anthropic(self) -> bool {
        self.row().is_anthropic
    }

    /// True if its API has the pass-through endpoints.
    pub fn has_passthrough(self) -> bool {
        self.row().has_passthrough
    }

    /// True if every model that is served by it accepts an effort of reasoning, as far as is known.
    pub fn takes_effort(self) -> bool {
        self.row().takes_effort
    }

    /// True if its clients may ask for a WebSocket first.
    #[inline]
    pub fn may_be_websocket(self) -> bool {
        self.row().may_be_websocket
    }
}

words! {
    /// An endpoint of the chat API whose requests and answers pass through: only the name of the model changes, and
    /// fields that no table documents may be left out. Its word is the name of its family in the configuration, in
    /// scopes and in rows.
    #[derive(Copy, Clone, PartialEq, Eq, Debug, Hash)]
    pub enum Passthrough {
        /// Embeddings: vectors of texts.
        Embeddings = "embeddings",
        /// Rerank: documents in the order of their relevance to a query.
        Rerank = "rerank",
        /// Legacy completions: continuations of texts, or texts between two others.
        Completions = "completions",
        /// Speech: audio of a text.
        Speech = "speech",
        /// Images made from a text.
        Images = "images",
        /// Moderations: categories of unwanted content in texts and images.
        Moderations = "moderations",
        /// Transcriptions: the text of audio.
        Transcriptions = "transcriptions",
        /// Translations: the text of audio, in English.
        Translations = "translations",
        /// Images made from others.
        ImageEdits = "images",
    }
}

impl Passthrough {
    /// Returns the one that stands for its family.
    #[inline]
    pub fn family(self) -> Passthrough {
        if self == Passthrough::ImageEdits { Passthrough::Images } else { self }
    }

    /// Returns the names of all families, as a list in a sentence.
    pub fn names() -> String {
        let families = Passthrough::ALL.into_iter().filter(|one| one.family() == *one);
        families.map(Passthrough::as_str).collect::<Vec<_>>().join(", ")
    }

    /// Returns its path.
    #[inline]
    pub const fn path(self) -> &'static str {
        match self {
            Passthrough::Embeddings => "/v1/embeddings",
            Passthrough::Rerank => "/v1/rerank",
            Passthrough::Completions => "/v1/completions",
            Passthrough::Speech => "/v1/audio/speech",
            Passthrough::Images => "/v1/images/generations",
            Passthrough::Moderations => "/v1/moderations",
            Passthrough::Transcriptions => "/v1/audio/transcriptions",
            Passthrough::Translations => "/v1/audio/translations",
            Passthrough::ImageEdits => "/v1/images/edits",
        }
    }

    /// True if its answers are text written by a model: they may be streamed, and have completion tokens.
    #[inline]
    pub fn generates(self) -> bool {
        self == Passthrough::Completions
    }

    /// True if it reads or makes audio or images. The provider decides whether its answers are bytes, JSON or events,
    /// and may bill completion tokens for them.
    #[inline]
    pub fn is_media(self) -> bool {
        self == Passthrough::Speech || self.makes_images() || self.is_transcript()
    }

    /// True if its answers are images.
    #[inline]
    pub fn makes_images(self) -> bool {
        matches!(self, Passthrough::Images | Passthrough::ImageEdits)
    }

    /// True if its answers are the text of audio.
    #[inline]
    pub fn is_transcript(self) -> bool {
        matches!(self, Passthrough::Transcriptions | Passthrough::Translations)
    }

    /// True if its requests are forms with files, which are passed on while they arrive.
    #[inline]
    pub fn is_form(self) -> bool {
        self == Passthrough::ImageEdits || self.is_transcript()
    }
}

/// Number of endpoints that nearly all requests are for.
const FREQUENT: usize = 4;

/// Paths of the endpoints from number `first` on, below `/v1`.
const fn paths<const N: usize>(first: usize) -> [&'static str; N] {
    let (mut paths, mut at) = ([""; N], 0);
    while at < N {
        paths[at] = ModelEndpoint::ALL[first + at].path_below();
        at += 1;
    }
    paths
}

/// Operation that a request wants from a model.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Hash)]
pub enum Operation {
    /// An answer in a conversation.
    Generate,
    /// The number of tokens in a prompt.
    CountTokens,
    /// An answer that passes through unchanged.
    Passthrough(Passthrough),
}

/// An endpoint that models serve.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Hash)]
pub struct ModelEndpoint {
    /// The API format of its errors, and of the providers that accept its requests unchanged.
    pub shape: Shape,
    /// Operation of its requests.
    pub operation: Operation,
}

impl ModelEndpoint {
    /// `POST /v1/chat/completions`.
    pub const CHAT: ModelEndpoint = ModelEndpoint::generate(Shape::Chat);
    /// `POST /v1/messages`.
    pub const MESSAGES: ModelEndpoint = ModelEndpoint::generate(Shape::Messages);
    /// `POST /v1/responses`.
    pub const RESPONSES: ModelEndpoint = ModelEndpoint::generate(Shape::Responses);

    /// All of them. The most frequent ones are the first.
    pub const ALL: [ModelEndpoint; 14] = [
        ModelEndpoint::CHAT,
        ModelEndpoint::MESSAGES,
        ModelEndpoint::RESPONSES,
        ModelEndpoint::passthrough(Passthrough::Embeddings),
        ModelEndpoint::passthrough(Passthrough::Rerank),
        ModelEndpoint::passthrough(Passthrough::Completions),
        ModelEndpoint::count_tokens(Shape::Messages),
        ModelEndpoint::count_tokens(Shape::Responses),
        ModelEndpoint::passthrough(Passthrough::Speech),
        ModelEndpoint::passthrough(Passthrough::Images),
        ModelEndpoint::passthrough(Passthrough::Moderations),
        ModelEndpoint::passthrough(Passthrough::Transcriptions),
        ModelEndpoint::passthrough(Passthrough::Translations),
        ModelEndpoint::passthrough(Passthrough::ImageEdits),
    ];

    /// Returns the endpoint that answers in a conversation.
    pub const fn generate(shape: Shape) -> ModelEndpoint {
        ModelEndpoint { shape, operation: Operation::Generate }
    }

    /// Returns the endpoint that counts the tokens of a prompt.
    pub const fn count_tokens(shape: Shape) -> ModelEndpoint {
        ModelEndpoint { shape, operation: Operation::CountTokens }
    }

    /// Returns the pass-through endpoint.
    pub const fn passthrough(passthrough: Passthrough) -> ModelEndpoint {
        ModelEndpoint { shape: Shape::Chat, operation: Operation::Passthrough(passthrough) }
    }

    /// Returns the pass-through endpoint that it is, if it is one.
    #[inline]
    pub fn as_passthrough(self) -> Option<Passthrough> {
        if let Operation::Passthrough(passthrough) = self.operation { Some(passthrough) } else { None }
    }

    /// True for a pass-through endpoint.
    #[inline]
    pub fn is_passthrough(self) -> bool {
        self.as_passthrough().is_some()
    }

    /// Returns the endpoint that stands for its family in configurations: all conversations are one family.
    pub fn family(self) -> ModelEndpoint {
        self.as_passthrough().map_or(ModelEndpoint::CHAT, |one| ModelEndpoint::passthrough(one.family()))
    }

    /// Returns its name in metrics, in log lines and in rows.
    #[inline]
    pub fn name(self) -> &'static str {
        match self.operation {
            Operation::Generate => self.shape.name(),
            Operation::CountTokens => "count_tokens",
            Operation::Passthrough(passthrough) => passthrough.as_str(),
        }
    }

    /// Returns its path.
    #[inline]
    pub const fn path(self) -> &'static str {
        match self.operation {
            Operation::Generate => self.shape.row().path,
            Operation::CountTokens => self.shape.row().count_path,
            Operation::Passthrough(passthrough) => passthrough.path(),
        }
    }

    /// Returns its path below `/v1`.
    #[inline]
    pub const fn path_below(self) -> &'static str {
        self.path().split_at(VERSION.len()).1
    }

    /// Returns the endpoint with the path `below` below `/v1`.
    #[inline]
    pub fn at(below: &[u8]) -> Option<ModelEndpoint> {
        // Computed by the compiler. Comparisons with few paths are compiled to fewer instructions than with a longer
        // table, and nearly every request has one of the first.
        const OFTEN: [&str; FREQUENT] = paths(0);
        const OTHERS: [&str; ModelEndpoint::ALL.len() - FREQUENT] = paths(FREQUENT);
        let is_path = |path: &&str| path.as_bytes() == below;
        let at = OFTEN.iter().position(is_path);
        at.or_else(|| Some(FREQUENT + OTHERS.iter().position(is_path)?)).map(|at| ModelEndpoint::ALL[at])
    }

    /// Returns the endpoint with the name `name`, apart from those that count.
    pub fn from_name(name: &str) -> Option<ModelEndpoint> {
        let mut all = ModelEndpoint::ALL.into_iter().filter(|endpoint| endpoint.operation != Operation::CountTokens);
        all.find(|endpoint| endpoint.name() == name)
    }
}

impl Serialize for ModelEndpoint {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for ModelEndpoint {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<ModelEndpoint, D::Error> {
        let text = Cow::<str>::deserialize(from)?;
        ModelEndpoint::from_name(&text).ok_or_else(|| D::Error::custom("not an endpoint"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_endpoint_is_found_by_its_path_and_by_its_name() {
        for endpoint in ModelEndpoint::ALL {
            assert_eq!(ModelEndpoint::at(endpoint.path_below().as_bytes()), Some(endpoint));
            let counts = endpoint.operation == Operation::CountTokens;
            let family = endpoint.as_passthrough().map_or(endpoint, |one| ModelEndpoint::passthrough(one.family()));
            assert_eq!(ModelEndpoint::from_name(endpoint.name()), (!counts).then_some(family));
            // A pass-through endpoint is named after a part of its path.
            assert!(!endpoint.is_passthrough() || endpoint.path().split('/').any(|part| part == endpoint.name()));
        }
        for path in ["", "/", "/chat", "/chat/completions/", "chat/completions", "/v1/messages"] {
            assert_eq!(ModelEndpoint::at(path.as_bytes()), None, "{path}");
        }
    }
}
