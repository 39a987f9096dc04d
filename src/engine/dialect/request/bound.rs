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

#[cfg(test)]
mod tests {
    use crate::dialect::request::RequestScan;
    use crate::wire::{ModelEndpoint, Passthrough};

    /// Upper bound of a prompt, with 5,000 tokens for each image and 70,000 for each file.
    fn most(endpoint: ModelEndpoint, body: &str) -> (u64, bool) {
        let mut scan = RequestScan::new();
        scan.reset(endpoint);
        scan.finish(body.as_bytes()).unwrap();
        (scan.prompt_most(endpoint, body.as_bytes(), 5000, 70_000), scan.is_fetched())
    }

    fn chat(content: &str, more: &str) -> (u64, bool) {
        most(ModelEndpoint::CHAT, &format!("{{\"messages\":[{{\"role\":\"user\",\"content\":{content}}}]{more}}}"))
    }

    #[test]
    fn text_counts_its_decoded_bytes_and_everything_else_a_constant() {
        // The role has four bytes; the message and the prompt have 16 tokens each.
        assert_eq!(chat(r#""hi""#, ""), (4 + 2 + 32, false));
        assert_eq!(chat(r#""\u00fc\n\ud83d\ude00""#, ""), (4 + 2 + 1 + 4 + 32, false));
        let data = "a".repeat(80);
        let image = |url: &str| format!("[{{\"type\":\"image_url\",\"image_url\":{{\"url\":\"{url}\"}}}}]");
        // A part, the nine bytes of its type, and the marks of the list and of two objects.
        let around = 4 + 9 + 3 + 48;
        assert_eq!(chat(&image(&format!("data:image/png;base64,{data}")), ""), (around + 5000, false));
        assert!(chat(&image("https://example.com/a.png"), "").1);
        let file = format!("[{{\"type\":\"file\",\"file\":{{\"file_data\":\"data:application/pdf;base64,{data}\"}}}}]");
        assert_eq!(chat(&file, "").0, around - 5 + 70_000);
        assert_eq!(
            chat(r#""hi""#, r#","response_format":{"type":"text"}"#).0 - chat(r#""hi""#, "").0,
            1024 + 4 + 4 + 2
        );
    }

    #[test]
    fn tools_count_their_text_and_what_providers_write_for_them() {
        let with = |tools: &str| {
            let body = format!(
                "{{\"messages\":[{{\"role\":\"user\",\"content\":\"hi\"}}],\"max_tokens\":1,\"tools\":{tools}}}"
            );
            most(ModelEndpoint::MESSAGES, &body).0
        };
        let own = with(r#"[{"name":"look","input_schema":{"type":"object"}}]"#);
        assert!(own > 38 + 1024 + 32 && own < 38 + 1024 + 32 + 80, "{own}");
        assert!(with(r#"[{"type":"bash_20250124","name":"bash"}]"#) > 38 + 1024 + 32 + 1024);
    }

    #[test]
    fn relayed_request_counts_its_body_and_its_query_with_each_document() {
        let rerank = ModelEndpoint::passthrough(Passthrough::Rerank);
        let body = r#"{"query":"abc","documents":["x","y","z"]}"#;
        assert_eq!(most(rerank, body), (body.len() as u64 + 3 * 16 + 2 * 5, false));
    }
}
