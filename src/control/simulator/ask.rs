//! Reads a request of any API: validates it like the real providers, counts its tokens and determines the answer. Pure;
//! called by `provider::link`. Keeps only what the answer needs.

use super::directives::Directives;
use super::given;
use super::order;
use super::script::{Call, Finish, Script, ScriptPart, Text, pieces_of};
use super::signature;
use crate::wire::{ModelEndpoint, Passthrough, Shape};
use serde_json::{Value, json};

/// Default number of tokens of an answer.
const TOKENS_DEFAULT: u64 = 12;
/// Maximum number of tokens of an answer.
pub const TOKENS_MAX: u64 = 1_000_000;
/// Maximum number of bytes of the single token of `big`.
pub const BIG_MAX: u64 = 64 << 20;
/// Maximum number of tool calls in one answer.
pub const CALLS_MAX: u64 = 64;
/// Maximum number of answers with calls that are counted.
const TURNS_MAX: u64 = 1_000_000;
/// Tokens of a message part that is neither text nor a tool's.
pub const OTHER_PART_TOKENS: u64 = 10;
/// Maximum depth of a schema when arguments are made from it.
const SCHEMA_DEPTH_MAX: u32 = 8;

/// A parsed request.
#[derive(Clone, Debug)]
pub struct SimulatedRequest {
    /// API of the request.
    pub endpoint: ModelEndpoint,
    /// Model name as sent.
    pub model: String,
    /// True if a stream is requested.
    pub stream: bool,
    /// Chat: true if the usage chunk is requested.
    pub include_usage: bool,
    /// Tokens of the prompt.
    pub prompt: u64,
    /// Contents of the answer.
    pub script: Script,
    /// Member of a pass-through answer that is not text.
    pub given: String,
    /// Content type of an answer in bytes.
    pub audio: Option<&'static str>,
    /// Number of copies of the text in the answer, each with its index.
    pub texts: u64,
    /// Number of texts generated to choose `texts` from.
    pub made: u64,
    /// Directives of the request.
    pub directives: Directives,
}

/// Reason why a request is refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Complaint {
    /// Status.
    pub status: u16,
    /// Message for the error body.
    pub message: String,
    /// True if the error body is that of a Gemini model.
    pub of_gemini: bool,
    /// Seconds after which a refusal by a limit ends.
    pub retry_after: Option<u64>,
}

fn complain(message: impl Into<String>) -> Complaint {
    Complaint { status: 400, message: message.into(), of_gemini: false, retry_after: None }
}

/// Complaint about a model that is not served.
pub fn no_model(name: &str) -> Complaint {
    Complaint { status: 404, ..complain(format!("the model `{name}` does not exist")) }
}

/// Returns the tokens of a text: its words, runs of characters without white space.
pub fn count(text: &str) -> u64 {
    text.split_whitespace().count() as u64
}

/// Reads the body of a request to `endpoint`.
pub fn read(endpoint: ModelEndpoint, body: &[u8]) -> Result<SimulatedRequest, Complaint> {
    let text = str::from_utf8(body).map_err(|error| complain(format!("the body is not JSON: {error}")))?;
    let root: Value = serde_json::from_str(text).map_err(|error| complain(format!("the body is not JSON: {error}")))?;
    let model = root["model"].as_str().ok_or_else(|| complain("you must provide a model parameter"))?.to_owned();
    let given = match endpoint.as_passthrough() {
        Some(one) => given::read(one, &root).map_err(complain)?,
        None => given::Read::default(),
    };
    let (shape, is_passthrough) = (endpoint.shape, endpoint.is_passthrough());
    let messages = match shape {
        Shape::Responses => &conversation(&root["input"]),
        _ => root["messages"].as_array().map_or(&[][..], Vec::as_slice),
    };
    if messages.is_empty() && !is_passthrough {
        return Err(complain("messages: at least one message is required"));
    }
    order::check(shape, &root, messages).map_err(complain)?;
    if endpoint == ModelEndpoint::CHAT && signature::has_them(&model) {
        signature::check(&model, messages).map_err(|text| Complaint { of_gemini: true, ..complain(text) })?;
    }
    let is_speech = endpoint == ModelEndpoint::passthrough(Passthrough::Speech);
    let stream = is_speech || (given.given.is_empty() && root["stream"].as_bool().unwrap_or(false));
    if shape == Shape::Messages && root["max_tokens"].as_u64().is_none_or(|count| count == 0) {
        return Err(complain("max_tokens: Field required"));
    }
    if endpoint == ModelEndpoint::CHAT && reasons(&model) {
        takes_no_sampling(&root)?;
        takes_no_effort_with_tools(&model, &root)?;
    }
    if endpoint == ModelEndpoint::CHAT
        && !stream
        && root.get("stream_options").is_some_and(|options| !options.is_null())
    {
        return Err(complain("The 'stream_options' parameter is only allowed when 'stream' is enabled."));
    }
    let asked = if is_passthrough { given.asked } else { last_user_text(messages) };
    let directives = Directives::parse(&asked).map_err(complain)?;
    let bound = |name: &str| root[name].as_u64();
    let max_tokens = bound("max_completion_tokens").or(bound("max_tokens")).or(bound("max_output_tokens"));
    Ok(SimulatedRequest {
        endpoint,
        model,
        stream,
        include_usage: root["stream_options"]["include_usage"].as_bool().unwrap_or(false),
        prompt: if is_passthrough { given.prompt } else { prompt_tokens(&root, messages) }.max(1),
        script: match given.given.is_empty() {
            true => script(shape, &root, messages, &asked, &directives, max_tokens),
            false => Script::new(Vec::new(), None, None),
        },
        given: given.given,
        audio: given.audio,
        texts: given.texts.max(1),
        made: given.made.max(1),
        directives,
    })
}

/// True if the name is one of OpenAI's own reasoning models, which refuse parameters that older models accept.
fn reasons(model: &str) -> bool {
    let name = bare(model);
    let counted = name.strip_prefix('o').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    name.starts_with("gpt-5") || name.starts_with("gpt-6") || counted
}

/// Returns a model's name without its owner.
fn bare(model: &str) -> &str {
    model.rsplit('/').next().unwrap_or(model)
}

/// Refuses tools together with an effort, for newer models, and with the default effort, for the newest. The error text
/// is the provider's own.
fn takes_no_effort_with_tools(model: &str, root: &Value) -> Result<(), Complaint> {
    let of = |starts: &[&str]| starts.iter().any(|start| bare(model).starts_with(start));
    let refused = match root["reasoning_effort"].as_str() {
        Some("none") => false,
        Some(_) => of(&["gpt-5.2", "gpt-5.4", "gpt-5.5", "gpt-5.6", "gpt-6"]),
        None => of(&["gpt-5.5", "gpt-5.6", "gpt-6"]),
    };
    if refused && root["tools"].as_array().is_some_and(|tools| !tools.is_empty()) {
        return Err(complain(format!(
            "Function tools with reasoning_effort are not supported for {} in /v1/chat/completions. To use function \
             tools, use /v1/responses or set reasoning_effort to 'none'.",
            bare(model)
        )));
    }
    Ok(())
}

/// Refuses sampling parameters. The error text is the provider's own.
fn takes_no_sampling(root: &Value) -> Result<(), Complaint> {
    if !root["max_tokens"].is_null() {
        return Err(complain(
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' \
             instead.",
        ));
    }
    match root["temperature"].as_f64() {
        Some(other) if other != 1.0 => Err(complain(format!(
            "Unsupported value: 'temperature' does not support {other} with this model. Only the default (1) value is \
             supported."
        ))),
        _ => Ok(()),
    }
}

fn script(
    shape: Shape,
    root: &Value,
    messages: &[Value],
    asked: &str,
    directives: &Directives,
    max_tokens: Option<u64>,
) -> Script {
    let thought = directives.think.map(|tokens| ScriptPart::Think(Text::Words(tokens.min(TOKENS_MAX))));
    let mut parts: Vec<ScriptPart> = thought.into_iter().collect();
    let calls = calls(shape, root, messages, asked, directives);
    let mut sequence = None;
    if calls.is_empty() || directives.tokens.is_some() {
        let mut said = match calls.is_empty() && directives.report {
            true => Text::words_of(&reported(messages)),
            false => text(root, asked, directives),
        };
        if let Some((cut, stop)) = said.until(&stops(root)) {
            (said, sequence) = (cut, Some(stop));
        }
        parts.push(ScriptPart::Text(said));
    }
    let calls = if sequence.is_some() { Vec::new() } else { calls };
    parts.extend(calls.into_iter().map(ScriptPart::Call));
    let end = match sequence {
        Some(_) => Some(Finish::Sequence),
        None => directives.refuse.then_some(Finish::Refusal),
    };
    let script = Script::new(parts, max_tokens, end);
    let sequence = sequence.filter(|_| script.finish == Finish::Sequence);
    Script { sequence, ..script }
}

/// Returns the stop sequences in either notation, without empty ones.
fn stops(root: &Value) -> Vec<String> {
    let given = if root["stop"].is_null() { &root["stop_sequences"] } else { &root["stop"] };
    let one = given.as_str().into_iter();
    let list = given.as_array().into_iter().flatten().filter_map(Value::as_str);
    one.chain(list).filter(|stop| !stop.is_empty()).map(str::to_owned).collect()
}

/// Returns the texts of all tool results, in their order, with a blank between them.
fn reported(messages: &[Value]) -> String {
    let blocks = |message: &Value| message["content"].as_array().cloned().unwrap_or_default();
    let mut results = Vec::new();
    for message in messages {
        match message["role"] == "tool" {
            true => results.push(text_of(&message["content"])),
            false => {
                let found = blocks(message).into_iter().filter(|block| block["type"] == "tool_result");
                results.extend(found.map(|block| text_of(&block["content"])));
            }
        }
    }
    results.join(" ")
}

/// Returns a content's text: the content itself, or the text of its parts, each on a line.
fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect::<Vec<_>>().join("\n"),
        _ => String::new(),
    }
}

fn prompt_tokens(root: &Value, messages: &[Value]) -> u64 {
    let tools = root["tools"].as_array().map(Vec::as_slice).unwrap_or_default();
    let of_tools: u64 = tools.iter().map(|tool| count(&tool.to_string())).sum();
    let of_messages: u64 = messages.iter().map(message_tokens).sum();
    content_tokens(&root["system"]) + content_tokens(&root["instructions"]) + of_tools + of_messages
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
        Some("text" | "input_text" | "output_text") => count(part["text"].as_str().unwrap_or_default()),
        Some("tool_use") => 1 + count(&part["input"].to_string()),
        // No deeper: a tool's result contains no further results.
        Some("tool_result") => match &part["content"] {
            Value::Array(parts) => parts.iter().map(|part| count(part["text"].as_str().unwrap_or_default())).sum(),
            content => content_tokens(content),
        },
        _ => OTHER_PART_TOKENS,
    }
}

/// Returns the items of a responses request as messages, as far as an answer depends on them.
fn conversation(input: &Value) -> Vec<Value> {
    let message = |item: &Value| match item["type"].as_str().unwrap_or("message") {
        "message" => Some(json!({ "role": item["role"], "content": item["content"] })),
        "function_call" => {
            let function = json!({ "name": item["name"], "arguments": item["arguments"] });
            let call = json!({ "id": item["call_id"], "type": "function", "function": function });
            Some(json!({ "role": "assistant", "content": null, "tool_calls": [call] }))
        }
        "function_call_output" => {
            Some(json!({ "role": "tool", "tool_call_id": item["call_id"], "content": item["output"] }))
        }
        _ => None,
    };
    match input {
        Value::String(text) => vec![json!({ "role": "user", "content": text })],
        Value::Array(items) => items.iter().filter_map(message).fold(Vec::new(), joined),
        _ => Vec::new(),
    }
}

/// Appends a message. Calls are joined with the assistant's preceding text, because they are one turn.
fn joined(mut messages: Vec<Value>, mut next: Value) -> Vec<Value> {
    let last = messages.last_mut().filter(|last| last["role"] == "assistant");
    match (last, next.get_mut("tool_calls").map(Value::take)) {
        (Some(last), Some(Value::Array(calls))) => match last["tool_calls"].as_array_mut() {
            Some(before) => before.extend(calls),
            None => last["tool_calls"] = Value::Array(calls),
        },
        (_, calls) => {
            if let Some(calls) = calls {
                next["tool_calls"] = calls;
            }
            messages.push(next);
        }
    }
    messages
}

/// Returns all text of the last message of role user that has any.
fn last_user_text(messages: &[Value]) -> String {
    let users = messages.iter().rev().filter(|message| message["role"] == "user");
    users.map(|message| text_of(&message["content"])).find(|text| !text.is_empty()).unwrap_or_default()
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
    let format = if root["text"]["format"].is_object() { &root["text"]["format"] } else { &root["response_format"] };
    let schema = match format["type"].as_str() {
        Some("json_schema") => format.get("schema").or(Some(&format["json_schema"]["schema"])),
        Some("json_object") => Some(&Value::Null),
        _ => root["output_config"]["format"].get("schema"),
    };
    match schema {
        Some(Value::Null) => Text::Pieces(pieces_of("{}")),
        Some(schema) => Text::Pieces(pieces_of(&sample(schema, 0, SCHEMA_DEPTH_MAX).to_string())),
        None => Text::Words(TOKENS_DEFAULT),
    }
}

/// Returns the name and the schema of every tool, in either notation.
fn tools(root: &Value) -> Vec<(&str, &Value)> {
    let list = root["tools"].as_array().map(Vec::as_slice).unwrap_or_default();
    list.iter().filter_map(named).collect()
}

fn named(tool: &Value) -> Option<(&str, &Value)> {
    let (definition, schema) = match tool.get("function") {
        Some(function) => (function, "parameters"),
        None if tool["parameters"].is_object() => (tool, "parameters"),
        None => (tool, "input_schema"),
    };
    Some((definition["name"].as_str()?, &definition[schema]))
}

/// Returns the calls of the answer. A tool is called if the request forces one, if `#sim tool` asks for one, or if the
/// last user text names one. After a tool's result, it is called only as often as `#sim turns` allows, so that an
/// agent's loop ends.
fn calls(shape: Shape, root: &Value, messages: &[Value], asked: &str, directives: &Directives) -> Vec<Call> {
    let tools = tools(root);
    let choice = &root["tool_choice"];
    let kind = choice.as_str().or(choice["type"].as_str()).unwrap_or("auto");
    let turns = messages.iter().filter(|message| calls_tools(message)).count() as u64;
    let over = match directives.turns {
        Some(most) => turns >= most,
        None => messages.last().is_some_and(brings_result),
    };
    if tools.is_empty() || kind == "none" || over {
        return Vec::new();
    }
    let named = directives.tool.as_deref().or(directives.turns.map(|_| ""));
    let forced = match kind {
        "required" | "any" => Some(""),
        "function" => choice["function"]["name"].as_str().or(choice["name"].as_str()),
        "tool" => choice["name"].as_str(),
        "allowed_tools" if choice["allowed_tools"]["mode"] == "required" => Some(""),
        _ => None,
    };
    let mentioned = tools.iter().map(|(name, _)| *name).find(|name| asked.contains(name));
    let wanted = forced.filter(|name| !name.is_empty()).or(named.filter(|name| !name.is_empty()));
    let Some(wanted) = wanted.or(mentioned).or(forced).or(named) else { return Vec::new() };
    let single = match shape {
        Shape::Messages => choice["disable_parallel_tool_use"] == true,
        _ => root["parallel_tool_calls"] == false,
    };
    let count = if single { 1 } else { directives.calls.unwrap_or(1).clamp(1, CALLS_MAX) };
    let before = turns.min(TURNS_MAX) * count;
    (0..count).filter_map(|at| call(&tools, wanted, at as usize, before, directives)).collect()
}

/// Returns call number `at` of this answer, with `before` calls in the earlier answers.
fn call(tools: &[(&str, &Value)], wanted: &str, at: usize, before: u64, directives: &Directives) -> Option<Call> {
    let named = tools.iter().find(|(name, _)| *name == wanted);
    let (name, schema) = match named {
        Some(tool) => *tool,
        None if wanted.is_empty() => *tools.get(at % tools.len())?,
        None => (wanted, &Value::Null),
    };
    let args = match &directives.args {
        Some(args) => args.clone(),
        None => sample(schema, before + at as u64, SCHEMA_DEPTH_MAX).to_string(),
    };
    Some(Call { name: name.to_owned(), args: pieces_of(&args) })
}

/// True for an assistant's message that calls tools.
fn calls_tools(message: &Value) -> bool {
    let blocks = message["content"].as_array().map(Vec::as_slice).unwrap_or_default();
    message["tool_calls"].as_array().is_some_and(|calls| !calls.is_empty())
        || blocks.iter().any(|block| block["type"] == "tool_use")
}

fn brings_result(message: &Value) -> bool {
    let blocks = message["content"].as_array().map(Vec::as_slice).unwrap_or_default();
    message["role"] == "tool" || blocks.iter().any(|block| block["type"] == "tool_result")
}

/// Returns a small value that fits the schema's types, properties, enumerations and constants. `nth` is added to whole
/// numbers.
fn sample(schema: &Value, nth: u64, depth: u32) -> Value {
    if let Some(value) = schema.get("const").or(schema["enum"].get(0)).or(schema.get("default")) {
        return value.clone();
    }
    let kind = schema["type"].as_str().or(schema["type"][0].as_str());
    match kind {
        Some("string") => json!("Oslo"),
        Some("integer") => json!(schema["minimum"].as_i64().unwrap_or(1).saturating_add_unsigned(nth)),
        Some("number") => json!(schema["minimum"].as_f64().unwrap_or(1.5)),
        Some("boolean") => json!(true),
        Some("null") => Value::Null,
        Some("array") if depth > 0 && schema["items"].is_object() => json!([sample(&schema["items"], nth, depth - 1)]),
        Some("array") => json!([]),
        _ if depth == 0 => json!({}),
        _ => {
            let properties = schema["properties"].as_object();
            let members = properties.into_iter().flatten();
            let member = |(name, schema): (&String, _)| (name.clone(), sample(schema, nth, depth - 1));
            Value::Object(members.map(member).collect())
        }
    }
}

#[cfg(test)]
mod tests;
