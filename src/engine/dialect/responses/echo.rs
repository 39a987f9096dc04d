//! Parts of a responses client's request that its answer repeats, three times in a stream.

use crate::dialect::neutral::naming::Echo;
use crate::dialect::request::Name;
use crate::dialect::translate::source::SourceRequest;
use crate::wire::json::{Raw, ValueKind, compact, key, write_count};

/// Maximum bytes of a repeated member. A longer one, such as a large schema, is repeated as its default.
const MEMBER_MAX: usize = 16 * 1024;

/// True if the client requests a summary of the reasoning.
pub fn tells_summary(source: &SourceRequest<'_>) -> bool {
    let summary = source.get(Name::Reasoning, "reasoning").and_then(|reasoning| reasoning.get("summary"));
    summary.and_then(Raw::string).is_some_and(|word| matches!(word, b"auto" | b"concise" | b"detailed"))
}

/// Collects the repeated parts of the request.
pub fn of(source: &SourceRequest<'_>) -> Echo {
    let given = |name, text: &str, kinds: &[ValueKind], usual: &str, out: &mut Vec<u8>| {
        key(out, text);
        match source.get(name, text).filter(|value| value.bytes().len() <= MEMBER_MAX && kinds.contains(&value.kind()))
        {
            Some(value) => compact(value.bytes(), out),
            None => out.extend_from_slice(usual.as_bytes()),
        }
    };
    let mut before = b"\"instructions\":null".to_vec();
    key(&mut before, "max_output_tokens");
    match source.fields.max_tokens {
        Some(count) => write_count(&mut before, count),
        None => before.extend_from_slice(b"null"),
    }
    before.extend_from_slice(b",\"max_tool_calls\":null");
    given(Name::Metadata, "metadata", &[ValueKind::Object], "{}", &mut before);
    // A placeholder value comes first, so that commas need no special case; it is removed at the end.
    let mut after = b"0".to_vec();
    let out = &mut after;
    given(Name::ParallelToolCalls, "parallel_tool_calls", &[ValueKind::Bool], "true", out);
    out.extend_from_slice(b",\"presence_penalty\":0,\"frequency_penalty\":0,\"previous_response_id\":null");
    given(Name::PromptCacheKey, "prompt_cache_key", &[ValueKind::String], "null", out);
    write_reasoning(source, out);
    given(Name::SafetyIdentifier, "safety_identifier", &[ValueKind::String], "null", out);
    out.extend_from_slice(b",\"service_tier\":\"default\",\"store\":false");
    given(Name::Temperature, "temperature", &[ValueKind::Number], "1", out);
    given(Name::Text, "text", &[ValueKind::Object], "{\"format\":{\"type\":\"text\"}}", out);
    given(Name::ToolChoice, "tool_choice", &[ValueKind::String, ValueKind::Object], "\"auto\"", out);
    out.extend_from_slice(b",\"tools\":[],\"top_logprobs\":0");
    given(Name::TopP, "top_p", &[ValueKind::Number], "1", out);
    out.extend_from_slice(b",\"truncation\":\"disabled\"");
    Echo { before, after: after.split_off(2), summary: tells_summary(source) }
}

fn write_reasoning(source: &SourceRequest<'_>, out: &mut Vec<u8>) {
    let reasoning = source.get(Name::Reasoning, "reasoning").unwrap_or(Raw::NULL);
    key(out, "reasoning");
    out.push(b'{');
    for name in ["effort", "summary"] {
        key(out, name);
        let word = reasoning.get(name).filter(|word| word.string().is_some() && word.bytes().len() <= MEMBER_MAX);
        out.extend_from_slice(word.map_or(b"null", Raw::bytes));
    }
    out.push(b'}');
}
