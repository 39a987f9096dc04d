//! Upper bounds of a prompt that no tokenizer exceeds, for strict limits.

use super::fields::{Fields, Member};
use super::members::Name;
use crate::wire::json::{Raw, ValueKind};

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
        let items = u64::from(self.messages) + u64::from(self.parts) + 1;
        let has_texts = self.adds_tools || self.members.iter().any(|member| WITH_TEXTS.contains(&member.name));
        let is_known = |tool: &Raw<'_>| {
            let kind = tool.get("type");
            kind.is_some_and(|kind| !kind.is_null() && !kind.is("function") && !kind.is("custom"))
        };
        let tools = self.members.iter().filter(|member| member.name == Name::Tools);
        let known = tools.flat_map(|member| Raw::new(member.value.of(body)).items()).filter(is_known).count() as u64;
        let tools = u64::from(self.tools) * EACH_TOOL + known * EACH_KNOWN_TOOL;
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
    pub(crate) fn replaces(&self, member: &Member) -> bool {
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

/// Levels of objects in which a bound is found.
const BOUND_DEPTH: usize = 8;

/// Bound on completion tokens that the unknown member `key` may be for a provider. A provider may read a number in a
/// text, round a fraction, or read a bound in an object or a list; there only members with the name of a bound count.
#[cold]
pub(crate) fn lenient_bound_of(key: &[u8], value: Raw<'_>) -> Option<u64> {
    bound_in(is_bound_name(key), value, 0)
}

fn bound_in(is_bound: bool, value: Raw<'_>, depth: usize) -> Option<u64> {
    let inside = |is_bound: bool, value: Raw<'_>| bound_in(is_bound, value, depth + 1);
    match value.kind() {
        ValueKind::Object if depth < BOUND_DEPTH => {
            let bounds = value.members().filter_map(|(key, value)| {
                let is_bound = is_bound || is_bound_name(key);
                (is_bound || value.kind() == ValueKind::Object).then(|| inside(is_bound, value)).flatten()
            });
            bounds.max()
        }
        ValueKind::Array if is_bound && depth < BOUND_DEPTH => {
            value.items().filter_map(|item| inside(true, item)).max()
        }
        ValueKind::Number => std::str::from_utf8(value.bytes()).ok().and_then(written_bound),
        ValueKind::String => written_bound(&value.text()?),
        _ => None,
    }
}

/// The number in a text as the least whole number that is not below it; `None` if it is none or negative.
fn written_bound(text: &str) -> Option<u64> {
    let number: f64 = text.trim().replace('_', "").parse().ok()?;
    // Rust also reads words such as `inf`, which are no numbers of JSON.
    let is_number = text.bytes().any(|byte| byte.is_ascii_digit());
    (is_number && number >= 0.0).then(|| number.ceil() as u64)
}

/// True for a name such as `max_new_tokens`, `n_predict` or `maxOutputTokens`.
fn is_bound_name(key: &[u8]) -> bool {
    let key = key.to_ascii_lowercase();
    [&b"max"[..], b"predict"].iter().any(|word| key.windows(word.len()).any(|part| part == *word))
}

#[cfg(test)]
mod tests {
    use crate::dialect::request::RequestScan;
    use crate::wire::json::Raw;
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
    fn bound_under_another_name_is_found_in_every_form() {
        let of = |key: &str, value: &str| super::lenient_bound_of(key.as_bytes(), Raw::new(value.as_bytes()));
        let zeros = format!("\"{}32000\"", "0".repeat(68));
        let spaces = format!("\"{}32000\"", " ".repeat(72));
        for value in ["32000", "\"32000\"", "\" +32_000 \"", "31999.5", "3.2e4", "[1,32000]", "\"[32000]\""] {
            assert_eq!(of("max_new_tokens", value), (!value.contains("\"[")).then_some(32_000), "{value}");
        }
        assert_eq!((of("x", &zeros), of("x", &spaces)), (Some(32_000), Some(32_000)));
        assert_eq!(of("x", &"9".repeat(2000)), Some(u64::MAX));
        assert_eq!(of("options", r#"{"num_ctx":9,"num_predict":7,"inner":{"maxTokens":"8"}}"#), Some(8));
        for value in ["-1", "\"auto\"", "true", "null", "[32000]", r#"{"seed":9}"#] {
            assert_eq!(of("x", value), None, "{value}");
        }
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
