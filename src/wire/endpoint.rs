//! The endpoints that models serve: an API format and an operation.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;

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

impl Shape {
    /// All formats.
    pub const ALL: [Shape; 3] = [Shape::Chat, Shape::Messages, Shape::Responses];

    /// Returns its name in the configuration, in scopes and in rows.
    pub fn name(self) -> &'static str {
        match self {
            Shape::Chat => "chat",
            Shape::Messages => "messages",
            Shape::Responses => "responses",
        }
    }
}

/// An endpoint of the chat API whose requests and answers are relayed unchanged. Its name is its path below a base URL.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Hash)]
pub enum Passthrough {
    /// Embeddings: vectors of texts.
    Embeddings,
    /// Rerank: documents in the order of their relevance to a query.
    Rerank,
    /// Legacy completions: continuations of texts, or texts between two others.
    Completions,
}

impl Passthrough {
    /// All of them.
    pub const ALL: [Passthrough; 3] = [Passthrough::Embeddings, Passthrough::Rerank, Passthrough::Completions];

    /// Returns its name in its path, in the configuration, in scopes and in rows.
    pub fn name(self) -> &'static str {
        match self {
            Passthrough::Embeddings => "embeddings",
            Passthrough::Rerank => "rerank",
            Passthrough::Completions => "completions",
        }
    }

    /// True if its answers are text written by a model: they may be streamed, and have completion tokens.
    #[inline]
    pub fn generates(self) -> bool {
        self == Passthrough::Completions
    }
}

/// What a request asks of a model.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Hash)]
pub enum Operation {
    /// An answer in a conversation.
    Generate,
    /// The number of tokens in a prompt.
    CountTokens,
    /// An answer that is relayed unchanged.
    Passthrough(Passthrough),
}

/// An endpoint that models serve.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Hash)]
pub struct ModelEndpoint {
    /// The API format of its errors, and of the providers that accept its requests unchanged.
    pub shape: Shape,
    /// What its requests ask for.
    pub operation: Operation,
}

impl ModelEndpoint {
    /// `POST /v1/chat/completions`.
    pub const CHAT: ModelEndpoint = ModelEndpoint::generate(Shape::Chat);
    /// `POST /v1/messages`.
    pub const MESSAGES: ModelEndpoint = ModelEndpoint::generate(Shape::Messages);
    /// `POST /v1/responses`.
    pub const RESPONSES: ModelEndpoint = ModelEndpoint::generate(Shape::Responses);

    /// Returns the endpoint that answers in a conversation.
    pub const fn generate(shape: Shape) -> ModelEndpoint {
        ModelEndpoint { shape, operation: Operation::Generate }
    }

    /// Returns the endpoint that counts the tokens of a prompt.
    pub const fn count_tokens(shape: Shape) -> ModelEndpoint {
        ModelEndpoint { shape, operation: Operation::CountTokens }
    }

    /// Returns the endpoint that relays.
    pub const fn relay(passthrough: Passthrough) -> ModelEndpoint {
        ModelEndpoint { shape: Shape::Chat, operation: Operation::Passthrough(passthrough) }
    }

    /// Returns what it relays, if it does.
    #[inline]
    pub fn passthrough(self) -> Option<Passthrough> {
        if let Operation::Passthrough(passthrough) = self.operation { Some(passthrough) } else { None }
    }

    /// True if it relays.
    #[inline]
    pub fn is_relayed(self) -> bool {
        self.passthrough().is_some()
    }

    /// Returns its name in metrics, in log lines and in rows.
    pub fn name(self) -> &'static str {
        match self.operation {
            Operation::Generate => self.shape.name(),
            Operation::CountTokens => "count_tokens",
            Operation::Passthrough(passthrough) => passthrough.name(),
        }
    }

    /// Returns the endpoint with the name `name`, apart from those that count.
    pub fn from_name(name: &str) -> Option<ModelEndpoint> {
        let generate = Shape::ALL.into_iter().map(ModelEndpoint::generate);
        let mut all = generate.chain(Passthrough::ALL.map(ModelEndpoint::relay));
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
