//! Results of the scan of a request body, as positions in it; and the text of a refusal.
//!
//! Owns only these types. Must never hold a byte of the body. Filled in by `body`, read by `rewrite`, by the
//! translation and by the gateway.

use super::members::Name;
use crate::base::limits::NAME_BYTES_MAX;
use crate::wire::Span;
use crate::wire::json::{has_escape, unescape};
use std::fmt::Display;

/// Reason why a body is refused, in the client's terms: names the field by its path and states what was expected.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Invalid(pub String);

/// The refusal of what is at `path`.
pub(crate) fn refuse<T>(path: impl Display, expected: &str) -> Result<T, Invalid> {
    Err(Invalid(format!("{path}: expected {expected}")))
}

/// Required members that a complete request has.
#[derive(Copy, Clone)]
pub(crate) struct PresentMembers {
    /// The conversation, with at least one item.
    pub(crate) conversation: bool,
    /// The conversation is a list without items.
    pub(crate) is_empty: bool,
    /// The bound on completion tokens, or the request needs none.
    pub(crate) max_tokens: bool,
}

/// A member of the request's top-level object.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Member {
    /// The key between its quotes, with its escapes.
    pub(crate) key: Span,
    /// The value, quotes and brackets included.
    pub(crate) value: Span,
    /// Name of the member.
    pub(crate) name: Name,
}

impl Member {
    /// Offset of the key's opening quote.
    pub(crate) fn start(&self) -> usize {
        self.key.start as usize - 1
    }

    /// Offset after the value.
    pub(crate) fn end(&self) -> usize {
        self.value.end as usize
    }
}

/// The first messages up to a user's, if each has only a role and a text: the positions of their texts.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct Opening {
    texts: [Span; Opening::TEXTS_MAX],
    count: u8,
    ended: bool,
}

impl Opening {
    /// Maximum number of messages up to the first user message, that one included.
    const TEXTS_MAX: usize = 4;

    /// Notes a plain message; `index` is its index among all messages.
    #[inline]
    pub(crate) fn message(&mut self, index: u32, text: Span, is_users: bool) {
        if !self.ended
            && index == u32::from(self.count)
            && let Some(slot) = self.texts.get_mut(index as usize)
        {
            *slot = text;
            self.count += 1;
            self.ended = is_users;
        }
    }

    /// The texts up to that of the first user message; `None` if a message is not plain or there are too many.
    pub(crate) fn texts(&self) -> Option<&[Span]> {
        self.texts.get(..usize::from(self.count)).filter(|_| self.ended)
    }
}

/// Facts about a request for the gateway.
#[derive(Clone, Debug, Default)]
pub struct Fields {
    /// The model's name as written between its quotes; `None` if absent or `null`.
    pub model: Option<Span>,
    /// True if a stream is requested.
    pub stream: bool,
    /// `stream_options.include_usage`: the client wants the usage chunk (chat).
    pub include_usage: bool,
    /// The bound on completion tokens: `max_completion_tokens` if usable, otherwise `max_tokens`.
    pub max_tokens: Option<u64>,
    /// [`Fields::max_tokens`] is sent in place of the client's bound.
    pub(crate) sets_bound: bool,
    /// The client's own bound on completion tokens, if `max_tokens` has another one.
    pub(crate) client_tokens: Option<u64>,
    /// `thread`: the client wants the provider to store its conversation and will send only the continuation
    /// (messages).
    pub thread: bool,
    /// Number of texts of a pass-through request, or of its documents; 0 means one.
    pub(crate) texts: u32,
    /// `n`: number of answers to each text; 0 means one.
    pub(crate) answers_per_text: u32,
    /// `best_of`: number of answers generated to choose those from; 0 means no more than those.
    pub(crate) generated_per_text: u32,
    /// A member or a tool in the list may have a price other than that of its tokens.
    pub(crate) may_cost_more: bool,
    /// The request has a predicted answer: wrong parts of it are billed as completion tokens (chat).
    pub(crate) predicts: bool,
    /// An item of the conversation adds tools (responses).
    pub(crate) adds_tools: bool,
    /// A tool takes free text (chat).
    pub(crate) has_custom: bool,
    /// Counted items that a translation has to build: messages, items of the input and blocks of the system prompt;
    /// parts, calls and results in them; and tools.
    pub(crate) messages: u32,
    pub(crate) parts: u32,
    pub(crate) tools: u32,
    /// Beginning of the conversation.
    pub(crate) opening: Opening,
    pub(crate) members: Vec<Member>,
    /// True if a member is not passed on unchanged to every target of the format.
    pub(crate) has_odd: bool,
    /// Parts of the body that are not sent to an upstream of the same format, in order: reasoning without a signature;
    /// in a chat request also each role `developer`, which is replaced if the target does not accept it.
    pub(crate) cuts: Vec<Span>,
    /// The refusal if the request names an object of the provider's account.
    pub(crate) stored: Option<Box<Invalid>>,
    /// Refusal of such a member that is sent to some targets only.
    pub(crate) stored_beside: Option<Box<Invalid>>,
}

impl Fields {
    /// The beginning of the model's name if it is longer than any model's.
    pub fn long_model_name<'a>(&self, body: &'a [u8]) -> Option<&'a [u8]> {
        self.model.map(|name| name.of(body)).filter(|name| name.len() > NAME_BYTES_MAX)?.get(..NAME_BYTES_MAX)
    }

    /// The model's name in UTF-8, which the scan has checked, unless it is too long; `scratch` is used if the name has
    /// escapes.
    pub fn model_name<'a>(&self, body: &'a [u8], scratch: &'a mut Vec<u8>) -> Option<&'a [u8]> {
        let raw = self.model.map(|name| name.of(body)).filter(|name| name.len() <= NAME_BYTES_MAX)?;
        if !has_escape(raw) {
            return Some(raw);
        }
        scratch.clear();
        unescape(raw, scratch);
        Some(scratch)
    }

    /// Number of answers requested; each ends separately in a stream.
    pub fn choices(&self) -> u32 {
        self.texts.max(1).saturating_mul(self.answers_per_text.max(1))
    }

    /// True if a part of the request may have a price of its own and must be checked.
    #[inline]
    pub fn may_cost_more(&self) -> bool {
        self.may_cost_more || self.adds_tools
    }

    /// A part of the request may be billed as completion tokens.
    #[inline]
    pub fn predicts(&self) -> bool {
        self.predicts
    }

    /// The client's own bound on completion tokens.
    #[inline]
    pub fn client_bound(&self) -> Option<u64> {
        if self.sets_bound { self.client_tokens } else { self.max_tokens }
    }

    /// Number of prompts that are read separately.
    #[inline]
    pub fn prompts(&self) -> u64 {
        self.texts.max(1).into()
    }

    /// Number of answers generated, including those that are not returned.
    #[inline]
    pub fn generated(&self) -> u64 {
        self.prompts() * u64::from(self.generated_per_text.max(self.answers_per_text).max(1))
    }

    /// Forgets everything and keeps the storage.
    pub(crate) fn reset(&mut self) {
        let Fields { mut members, mut cuts, .. } = std::mem::take(self);
        members.clear();
        cuts.clear();
        *self = Fields { members, cuts, ..Fields::default() };
    }
}
