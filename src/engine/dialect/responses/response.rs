//! The response object of the responses format, which a stream repeats at its start and its end.

use crate::dialect::answer::ResponseIdentity;
use crate::dialect::errors::ErrorWords;
use crate::dialect::keys::K;
use crate::dialect::neutral::delta::StopReason;
use crate::dialect::neutral::naming::{Echo, TranslationState};
use crate::dialect::usage::ObservedUsage;
use crate::wire::json::{
    self, Inside, Number, OrElse, Quoted, Raw, ValueKind, eq_unescaped, key, key_inside, put, write_escaped,
};

/// State of an answer.
#[derive(Copy, Clone)]
pub struct AnswerState<'a> {
    /// True if the answer has only begun.
    pub open: bool,
    /// Time of its start, in seconds since the epoch.
    pub created: u64,
    pub reason: StopReason,
    pub usage: Option<&'a ObservedUsage>,
    /// The error if it has failed.
    pub error: Option<&'a ErrorWords<'a>>,
}

/// Default values of the members that a response repeats from its request.
const BEFORE: &[u8] = b"\"instructions\":null,\"max_output_tokens\":null,\"max_tool_calls\":null,\"metadata\":{}";
const AFTER: &[u8] = b"\"parallel_tool_calls\":true,\"presence_penalty\":0,\"frequency_penalty\":0,\
    \"previous_response_id\":null,\"prompt_cache_key\":null,\"reasoning\":{\"effort\":null,\"summary\":null},\
    \"safety_identifier\":null,\"service_tier\":\"default\",\"store\":false,\"temperature\":1,\
    \"text\":{\"format\":{\"type\":\"text\"}},\"tool_choice\":\"auto\",\"tools\":[],\"top_logprobs\":0,\"top_p\":1,\
    \"truncation\":\"disabled\"";

/// Appends the object; `items` are its output, separated by commas.
pub fn write_response(
    ending: &AnswerState<'_>,
    items: &[u8],
    state: &TranslationState,
    identity: &ResponseIdentity<'_>,
    out: &mut Vec<u8>,
) {
    let lacks = ending.reason.to_responses();
    let (status, complete) = match (ending.error, ending.open, lacks) {
        (Some(_), _, _) => ("failed", false),
        (None, true, _) => ("in_progress", false),
        (None, false, Some(_)) => ("incomplete", false),
        (None, false, None) => ("completed", true),
    };
    let echo: Option<&Echo> = state.echo.as_deref();
    put!(out, r#"{"id":"#, Inside(identity.id), r#","object":"response","created_at":"#, Number(ending.created));
    let completed = complete.then_some(Number(identity.created));
    put!(out, r#","completed_at":"#, OrElse(completed, "null"), r#","status":"#, Quoted(status));
    put!(out, r#","background":false,"error":"#);
    match ending.error {
        Some(words) => words.write_brief(out),
        None => put!(out, "null"),
    }
    put!(out, r#","incomplete_details":"#);
    match lacks.filter(|_| status == "incomplete") {
        Some(reason) => put!(out, r#"{"reason":"#, Quoted(reason), "}"),
        None => put!(out, "null"),
    }
    let (before, after) = echo.map_or((BEFORE, AFTER), |echo| (&echo.before, &echo.after));
    put!(out, ",", before, r#","model":"#, identity.model(), r#","output":["#, items, "],", after, r#","usage":"#);
    match ending.usage {
        Some(observed) => write_usage(observed, identity, out),
        None => put!(out, "null"),
    }
    put!(out, "}");
}

/// Appends an upstream's own failed response, with Tollgate's id, model and error in place of the upstream's.
pub fn write_failed(response: Raw<'_>, words: &ErrorWords<'_>, identity: &ResponseIdentity<'_>, out: &mut Vec<u8>) {
    let ours = |own: K, out: &mut Vec<u8>| {
        match own {
            K::Id => put!(out, Inside(identity.id)),
            K::Model => put!(out, identity.model()),
            K::Store => put!(out, "false"),
            K::PreviousResponseId => put!(out, "null"),
            K::Error => words.write_brief(out),
            _ => return false,
        }
        true
    };
    let has = |name| response.members().any(|(own, _)| K::of(own) == name);
    let mut written = b"{".to_vec();
    for (own, name) in [(K::Id, "id"), (K::Model, "model"), (K::Error, "error")] {
        if !has(own) {
            key(&mut written, name);
            ours(own, &mut written);
        }
    }
    for (name, value) in response.members() {
        if identity.hides.iter().any(|param| eq_unescaped(name, &param.name)) {
            continue;
        }
        key_inside(&mut written, name);
        if !ours(K::of(name), &mut written) {
            written.extend_from_slice(value.bytes());
        }
    }
    // Data that arrived in several lines is written in one.
    out.extend(written.iter().map(|byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { *byte }));
    out.push(b'}');
}

/// Appends a responses `usage` object: the reported counts, otherwise estimates. It always has every member: clients
/// refuse an object of details that lacks one.
pub fn write_usage(observed: &ObservedUsage, identity: &ResponseIdentity<'_>, out: &mut Vec<u8>) {
    let reported = observed.reported;
    let input = reported.prompt().unwrap_or_else(|| identity.prompt.count());
    let output = reported.output.unwrap_or(observed.relayed_tokens);
    let [read, written] = [reported.cache_read, reported.cache_write].map(|count| Number(count.unwrap_or(0)));
    let (reasoning, total) = (reported.reasoning.unwrap_or(0), input.saturating_add(output));
    put!(out, r#"{"input_tokens":"#, Number(input), r#","input_tokens_details":{"cached_tokens":"#, read);
    put!(out, r#","cache_write_tokens":"#, written, r#"},"output_tokens":"#, Number(output));
    put!(out, r#","output_tokens_details":{"reasoning_tokens":"#, Number(reasoning.into()));
    put!(out, r#"},"total_tokens":"#, Number(total), "}");
}

/// The free text in a custom tool's JSON arguments: the member `input`, otherwise the only text, otherwise all of them
/// unchanged. Argument and result are insides of strings.
pub fn free_input(arguments: &[u8]) -> Vec<u8> {
    let text = Raw::text_of(arguments);
    let object = Raw::new(text.as_bytes());
    if json::check(text.as_bytes()).is_err() || object.kind() != ValueKind::Object {
        return match json::check(text.as_bytes()).ok().and_then(|()| object.string()) {
            Some(inside) => inside.to_vec(),
            None => arguments.to_vec(),
        };
    }
    if let Some(input) = object.get("input").and_then(Raw::string) {
        return input.to_vec();
    }
    let mut texts = object.members().filter_map(|(_, value)| value.string());
    match (texts.next(), texts.next()) {
        (Some(only), None) => only.to_vec(),
        _ => {
            let mut inside = Vec::with_capacity(arguments.len());
            write_escaped(&mut inside, object.bytes());
            inside
        }
    }
}

/// True if the inside of a string is a JSON value or empty.
pub fn is_json(inside: &[u8]) -> bool {
    let text = Raw::text_of(inside);
    text.trim().is_empty() || json::check(text.trim().as_bytes()).is_ok()
}
