//! Upper bounds of a prompt that no tokenizer exceeds, for strict limits.

use super::fields::{Fields, Member};
use super::members::Name;
use crate::wire::json::Raw;

/// Tokens around a message, a part of one, or a text of a pass-through request, and around the whole prompt.
const EACH_MESSAGE: u64 = 16;
/// Tokens of a tool of the client in addition to its text.
const EACH_TOOL: u64 = 32;
/// Tokens that a provider writes itself for each of its own kinds of tools, such as a shell, that run at the client.
const EACH_KNOWN_TOOL: u64 = 1024;
/// Tokens that a provider writes into a prompt with tools, or with a schema of its answer.
const WITH_TOOLS: u64 = 1024;

/// Members that make a provider, or a translation, write a text of its own into the prompt.
const WITH_TEXTS: [Name; 6] =
    [Name::Functions, Name::ResponseFormat, Name::Text, Name::OutputFormat, Name::OutputConfig, Name::Tools];

impl Fields {
    /// Tokens in addition to those of the texts of a conversation.
    pub(super) fn around_most(&self, body: &[u8]) -> u64 {
        let items = u64::from(self.messages) + u64::from(self.inner.parts()) + 1;
        let has_texts = self.adds_tools || self.members.iter().any(|member| WITH_TEXTS.contains(&member.name));
        let is_known = |tool: &Raw<'_>| {
            let kind = tool.get("type");
            kind.is_some_and(|kind| !kind.is_null() && !kind.is("function") && !kind.is("custom"))
        };
        let tools = self.members.iter().filter(|member| member.name == Name::Tools);
        let known = tools.flat_map(|member| Raw::new(member.value.of(body)).items()).filter(is_known).count() as u64;
        let tools = u64::from(self.inner.tools()) * EACH_TOOL + known * EACH_KNOWN_TOOL;
        items * EACH_MESSAGE + tools + if has_texts { WITH_TOOLS } else { 0 }
    }

    /// Tokens of all texts of a pass-through request.
    pub(super) fn relayed_most(&self, body: &[u8]) -> u64 {
        let is_repeated = |name: Name| matches!(name, Name::Query | Name::Suffix);
        let repeated = self.members.iter().filter(|member| is_repeated(member.name));
        let repeated = repeated.map(|member| member.value.len() as u64).max().unwrap_or(0);
        body.len() as u64 + self.prompts() * EACH_MESSAGE + (self.prompts() - 1) * repeated
    }

    /// True for a bound on completion tokens in whose place another one is sent.
    pub(in crate::dialect) fn replaces(&self, member: &Member) -> bool {
        let is_bound = matches!(member.name, Name::MaxTokens | Name::MaxCompletionTokens | Name::MaxOutputTokens);
        self.sets_bound && is_bound
    }

    /// True if a part of the request is an object that the provider stores.
    pub(super) fn names_objects(&self) -> bool {
        self.stored.is_some() || self.stored_beside.is_some()
    }

    /// The first member that requests several answers by something that is no number, so that a provider may read one.
    #[cold]
    pub fn odd_count(&self, body: &[u8]) -> Option<&'static str> {
        let count = self.members.iter().find(|member| {
            let value = Raw::new(member.value.of(body));
            let is_count = matches!(member.name, Name::N | Name::BestOf) && !value.is_null();
            is_count && super::answers_of(value.bytes()) == 0
        });
        count.map(|member| member.name.text())
    }
}
