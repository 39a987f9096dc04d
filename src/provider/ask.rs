//! Reads a request of either shape: validates it as the real providers do, counts its tokens and decides what the
//! answer says. Pure; called by `provider::link`. Keeps nothing of the request but what the answer needs.

use super::directives::Directives;
use super::script::{Call, Part, Script, Text, pieces_of};
use crate::wire::Shape;
use serde_json::{Map, Value, json};

/// Tokens of an answer that asks for nothing else.
const TOKENS_DEFAULT: u64 = 12;
/// Most tokens an answer may be asked to have.
pub const TOKENS_MAX: u64 = 1_000_000;
/// Most bytes of the one token asked for by `big`.
pub const BIG_MAX: u64 = 64 << 20;
/// Most tool calls in one answer.
pub const CALLS_MAX: u64 = 64;
/// Tokens that a part of a message counts which is neither text nor a tool's.
pub const OTHER_PART_TOKENS: u64 = 10;
/// Depth to which a schema is followed when arguments are made from it.
const SCHEMA_DEPTH_MAX: u32 = 8;

/// A request understood.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Its shape.
    pub shape: Shape,
    /// The model's name as sent.
    pub model: String,
    /// A stream is wanted.
    pub stream: bool,
    /// Chat: the usage chunk is wanted.
    pub include_usage: bool,
    /// Tokens of the prompt.
    pub prompt: u64,
    /// What the answer says.
    pub script: Script,
    /// How it is given.
    pub directives: Directives,
}

/// Why a request is refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Complaint {
    /// Status.
    pub status: u16,
    /// Message for the error body.
    pub message: String,
}

fn complain(message: impl Into<String>) -> Complaint {
    Complaint { status: 400, message: message.into() }
}

/// Tokens of a text: its words, runs of characters without white space.
pub fn count(text: &str) -> u64 {
    text.split_whitespace().count() as u64
}

/// Reads the body of a request of `shape`.
pub fn read(shape: Shape, body: &[u8]) -> Result<Ask, Complaint> {
    let root: Value =
        serde_json::from_slice(body).map_err(|error| complain(format!("the body is not JSON: {error}")))?;
    let model = root["model"].as_str().ok_or_else(|| complain("you must provide a model parameter"))?.to_owned();
    let messages = root["messages"].as_array().filter(|list| !list.is_empty());
    let messages = messages.ok_or_else(|| complain("messages: at least one message is required"))?;
    let stream = root["stream"].as_bool().unwrap_or(false);
    if shape == Shape::Messages && root["max_tokens"].as_u64().is_none_or(|count| count == 0) {
        return Err(complain("max_tokens: Field required"));
    }
    if shape == Shape::Chat && !stream && root.get("stream_options").is_some_and(|options| !options.is_null()) {
        return Err(complain("The 'stream_options' parameter is only allowed when 'stream' is enabled."));
    }
    let asked = last_user_text(messages);
    let directives = Directives::parse(&asked).map_err(complain)?;
    let max_tokens = root["max_completion_tokens"].as_u64().or(root["max_tokens"].as_u64());
    let mut parts = Vec::new();
    let calls = calls(shape, &root, messages, &asked, &directives);
    if calls.is_empty() || directives.tokens.is_some() {
        parts.push(Part::Text(text(&root, &asked, &directives)));
    }
    parts.extend(calls.into_iter().map(Part::Call));
    Ok(Ask {
        shape,
        model,
        stream,
        include_usage: root["stream_options"]["include_usage"].as_bool().unwrap_or(false),
        prompt: prompt_tokens(&root, messages).max(1),
        script: Script::new(parts, max_tokens),
        directives,
    })
}

fn prompt_tokens(root: &Value, messages: &[Value]) -> u64 {
    let tools = root["tools"].as_array().map(Vec::as_slice).unwrap_or_default();
    let of_tools: u64 = tools.iter().map(|tool| count(&tool.to_string())).sum();
    let of_messages: u64 = messages.iter().map(message_tokens).sum();
    content_tokens(&root["system"]) + of_tools + of_messages
}

fn message_tokens(message: &Value) -> u64 {
    let calls = message["tool_calls"].as_array().map(Vec::as_slice).unwrap_or_default();
    let of_call = |call: &Value| 1 + count(call["function"]["arguments"].as_str().unwrap_or_default());
    content_tokens(&message["content"]) + calls.iter().map(of_call).sum::<u64>()
}

fn content_tokens(content: &Value) -> u64 {
    match content {
        Value::String(text) => count(text),
        Value::Array(parts) => parts.iter().map(part_tokens).sum(),
        _ => 0,
    }
}

fn part_tokens(part: &Value) -> u64 {
    match part["type"].as_str() {
        Some("text") => count(part["text"].as_str().unwrap_or_default()),
        Some("tool_use") => 1 + count(&part["input"].to_string()),
        // Not deeper: a tool's result holds no further results.
        Some("tool_result") => match &part["content"] {
            Value::Array(parts) => parts.iter().map(|part| count(part["text"].as_str().unwrap_or_default())).sum(),
            content => content_tokens(content),
        },
        _ => OTHER_PART_TOKENS,
    }
}

/// All text of the last message of role user that has any.
fn last_user_text(messages: &[Value]) -> String {
    let text = |message: &Value| match &message["content"] {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect::<Vec<_>>().join("\n"),
        _ => String::new(),
    };
    let users = messages.iter().rev().filter(|message| message["role"] == "user");
    users.map(text).find(|text| !text.is_empty()).unwrap_or_default()
}

fn text(root: &Value, asked: &str, directives: &Directives) -> Text {
    if let Some(size) = directives.big {
        return Text::Big(size.min(BIG_MAX) as usize);
    }
    if directives.echo {
        let lines: Vec<&str> = asked.lines().filter(|line| !line.contains("#sim")).collect();
        return Text::words_of(&lines.join("\n"));
    }
    if let Some(tokens) = directives.tokens {
        return Text::Words(tokens.min(TOKENS_MAX));
    }
    let format = &root["response_format"];
    let schema = match format["type"].as_str() {
        Some("json_schema") => Some(&format["json_schema"]["schema"]),
        Some("json_object") => Some(&Value::Null),
        _ => root["output_config"]["format"].get("schema"),
    };
    match schema {
        Some(Value::Null) => Text::Pieces(pieces_of("{}")),
        Some(schema) => Text::Pieces(pieces_of(&sample(schema, SCHEMA_DEPTH_MAX).to_string())),
        None => Text::Words(TOKENS_DEFAULT),
    }
}

/// The name and the schema of every tool, in either shape.
fn tools(root: &Value) -> Vec<(&str, &Value)> {
    let list = root["tools"].as_array().map(Vec::as_slice).unwrap_or_default();
    list.iter().filter_map(named).collect()
}

fn named(tool: &Value) -> Option<(&str, &Value)> {
    let (definition, schema) = match tool.get("function") {
        Some(function) => (function, "parameters"),
        None => (tool, "input_schema"),
    };
    Some((definition["name"].as_str()?, &definition[schema]))
}

/// A tool is called when the request forces one, when `#sim tool` says so, or when the last user text names one;
/// never when the last message brings a tool's result, so that an agent's loop ends.
fn calls(shape: Shape, root: &Value, messages: &[Value], asked: &str, directives: &Directives) -> Vec<Call> {
    let tools = tools(root);
    let choice = &root["tool_choice"];
    let kind = choice.as_str().or(choice["type"].as_str()).unwrap_or("auto");
    if tools.is_empty() || kind == "none" || messages.last().is_some_and(brings_result) {
        return Vec::new();
    }
    let forced = match kind {
        "required" | "any" => Some(""),
        "function" => choice["function"]["name"].as_str(),
        "tool" => choice["name"].as_str(),
        "allowed_tools" if choice["allowed_tools"]["mode"] == "required" => Some(""),
        _ => None,
    };
    let mentioned = tools.iter().map(|(name, _)| *name).find(|name| asked.contains(name));
    let wanted = forced.filter(|name| !name.is_empty()).or(directives.tool.as_deref().filter(|name| !name.is_empty()));
    let Some(wanted) = wanted.or(mentioned).or(forced).or(directives.tool.as_deref()) else { return Vec::new() };
    let single = match shape {
        Shape::Chat => root["parallel_tool_calls"] == false,
        Shape::Messages => choice["disable_parallel_tool_use"] == true,
    };
    let count = if single { 1 } else { directives.calls.unwrap_or(1).clamp(1, CALLS_MAX) };
    (0..count as usize).filter_map(|at| call(&tools, wanted, at, directives)).collect()
}

fn call(tools: &[(&str, &Value)], wanted: &str, at: usize, directives: &Directives) -> Option<Call> {
    let named = tools.iter().find(|(name, _)| *name == wanted);
    let (name, schema) = match named {
        Some(tool) => *tool,
        None if wanted.is_empty() => *tools.get(at % tools.len())?,
        None => (wanted, &Value::Null),
    };
    let args = match &directives.args {
        Some(args) => args.clone(),
        None => sample(schema, SCHEMA_DEPTH_MAX).to_string(),
    };
    Some(Call { name: name.to_owned(), args: pieces_of(&args) })
}

fn brings_result(message: &Value) -> bool {
    let blocks = message["content"].as_array().map(Vec::as_slice).unwrap_or_default();
    message["role"] == "tool" || blocks.iter().any(|block| block["type"] == "tool_result")
}

/// A small value that fits the schema, as far as types, properties, enumerations and constants go.
fn sample(schema: &Value, depth: u32) -> Value {
    if let Some(value) = schema.get("const").or(schema["enum"].get(0)).or(schema.get("default")) {
        return value.clone();
    }
    let kind = schema["type"].as_str().or(schema["type"][0].as_str());
    match kind {
        Some("string") => json!("Oslo"),
        Some("integer") => json!(schema["minimum"].as_i64().unwrap_or(1)),
        Some("number") => json!(schema["minimum"].as_f64().unwrap_or(1.5)),
        Some("boolean") => json!(true),
        Some("null") => Value::Null,
        Some("array") if depth > 0 && schema["items"].is_object() => json!([sample(&schema["items"], depth - 1)]),
        Some("array") => json!([]),
        _ if depth == 0 => json!({}),
        _ => {
            let properties = schema["properties"].as_object();
            let members = properties.into_iter().flatten();
            Value::Object(
                members.map(|(name, schema)| (name.clone(), sample(schema, depth - 1))).collect::<Map<_, _>>(),
            )
        }
    }
}

#[cfg(test)]
mod tests;
