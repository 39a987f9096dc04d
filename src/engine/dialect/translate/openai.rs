//! Writes the members that requests of Chat Completions and of Responses have in common.

use super::schema::{write_free, write_parameters};
use super::source::{SourceRequest, write_user};
use crate::dialect::neutral::conversation::{AnswerSettings, Schema, Tool, ToolChoice, Tools};
use crate::wire::json::{key, member_inside, member_string, write_inside};

/// Maximum length of the end user's name and of a key of the prompt cache that are passed on unchanged.
const USER_MAX: usize = 64;

/// Writes the temperature and `top_p`, for models that accept them.
pub(crate) fn write_sampling(source: &SourceRequest<'_>, settings: &AnswerSettings<'_>, out: &mut Vec<u8>) {
    for (text, value) in [("temperature", settings.temperature), ("top_p", settings.top_p)] {
        if let Some(value) = value.filter(|_| source.target.capabilities.sampling) {
            key(out, text);
            out.extend_from_slice(value.bytes());
        }
    }
}

/// Writes the end user as the member `name`, and the key of the prompt cache.
pub(crate) fn write_caller(source: &SourceRequest<'_>, name: &str, settings: &AnswerSettings<'_>, out: &mut Vec<u8>) {
    for (name, value) in [(name, settings.user), ("prompt_cache_key", settings.cache_key.as_deref())] {
        if let Some(value) = value.filter(|_| !source.drops(name)) {
            key(out, name);
            write_user(value, USER_MAX, out);
        }
    }
}

/// Writes a tool's name, description and parameters, without the end of the object.
pub(crate) fn write_function(tool: &Tool<'_>, out: &mut Vec<u8>) {
    write_inside(out, &tool.name);
    if let Some(description) = &tool.description {
        member_inside(out, "description", description);
    }
    key(out, "parameters");
    match tool.schema {
        Schema::Free => write_free(out),
        Schema::Given(schema) => write_parameters(schema, out),
    }
}

/// Writes which tools the model may call. `open` and `close`: JSON around the name of the one that it must call.
pub(crate) fn write_choice(
    source: &SourceRequest<'_>,
    tools: &Tools<'_>,
    (open, close): (&[u8], &[u8]),
    out: &mut Vec<u8>,
) {
    let word = match &tools.choice {
        ToolChoice::Absent => None,
        ToolChoice::Auto => Some("auto"),
        ToolChoice::None => Some("none"),
        ToolChoice::Any => Some("required"),
        ToolChoice::One(name) => {
            key(out, "tool_choice");
            out.extend_from_slice(open);
            write_inside(out, name);
            out.extend_from_slice(close);
            None
        }
    };
    if let Some(word) = word {
        member_string(out, "tool_choice", word);
    }
    if let Some(parallel) = tools.parallel.filter(|_| !source.drops("parallel_tool_calls")) {
        key(out, "parallel_tool_calls");
        out.extend_from_slice(if parallel { b"true" } else { b"false" });
    }
}
