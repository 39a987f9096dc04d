//! Reads a chat request: each message becomes a turn.

use super::custom_tools::{self, free_text};
use crate::base::limits::TOOLS_MAX;
use crate::dialect::neutral::JsonText;
use crate::dialect::neutral::arguments::Arguments;
use crate::dialect::neutral::conversation::AnswerSettings;
use crate::dialect::neutral::conversation::{
    Block, Conversation, Effort, OutputFormat, Role, Schema, Tool, ToolCall, ToolChoice, ToolResult, Tools, Turn,
};
use crate::dialect::neutral::naming::{Called, ToolKind, TranslationState, respelt};
use crate::dialect::request::refuse;
use crate::dialect::request::{Invalid, Name};
use crate::dialect::translate::bounds::{stops, too_many, tool_name_fits};
use crate::dialect::translate::media::{chat_file, chat_image};
use crate::dialect::translate::schema::SCHEMA_MAX;
use crate::dialect::translate::source::{MARKS, Message, SourceRequest};
use crate::wire::json::{Raw, ValueKind};
use std::borrow::Cow;
use std::collections::BTreeSet;

/// Reads the request; see [`crate::dialect::translate::request`].
pub fn read<'a>(source: &SourceRequest<'a>, state: &mut TranslationState) -> Result<Conversation<'a>, Invalid> {
    let turns = source.messages().map(|message| turn(source, message)).collect::<Result<Vec<_>, _>>()?;
    Ok(Conversation { turns, format: format(source)?, tools: tools(source, state)?, settings: settings(source)? })
}

fn turn<'a>(source: &SourceRequest<'a>, message: Message<'a>) -> Result<Turn<'a>, Invalid> {
    let mut turn = unmarked(source, message)?;
    // A part of the message may have a mark of its own.
    if !message.role.is("tool") && !matches!(turn.blocks.last(), Some(Block::Breakpoint(_))) {
        turn.blocks.extend(source.mark(message.marks).map(Block::Breakpoint));
    }
    Ok(turn)
}

/// Reads a message, ignoring the mark on the message itself.
fn unmarked<'a>(source: &SourceRequest<'a>, message: Message<'a>) -> Result<Turn<'a>, Invalid> {
    let Message { at, raw, role, content, marks } = message;
    if role.is("assistant") {
        return assistant(source, at, raw, content);
    }
    if role.is("user") {
        return Ok(Turn { role: Role::User, blocks: user_blocks(source, content, at)? });
    }
    if role.is("tool") {
        let id = raw.get("tool_call_id").and_then(Raw::string).unwrap_or_default();
        let plain = content.string();
        let mut content = match plain {
            Some(text) => vec![text_block(text)],
            None => user_blocks(source, content, at)?,
        };
        if !matches!(content.last(), Some(Block::Breakpoint(_))) {
            content.extend(source.mark(marks).map(Block::Breakpoint));
        }
        let result = Block::Result(ToolResult { id, failed: false, plain: plain.is_some(), content });
        return Ok(Turn { role: Role::User, blocks: vec![result] });
    }
    if role.is("function") {
        return refuse(format_args!("messages[{at}].role"), "tool in the place of function for this model");
    }
    Ok(Turn { role: Role::System { moves: true }, blocks: source.texts_of(content) })
}

fn text_block(text: &[u8]) -> Block<'_> {
    Block::Text(Cow::Borrowed(text))
}

fn assistant<'a>(
    source: &SourceRequest<'a>,
    at: usize,
    message: Raw<'a>,
    content: Raw<'a>,
) -> Result<Turn<'a>, Invalid> {
    let [function_call, refusal, calls] = message.pick(["function_call", "refusal", "tool_calls"]);
    if function_call.is_some() {
        return refuse(format_args!("messages[{at}]"), "tool_calls in the place of function_call for this model");
    }
    let refusal = refusal.and_then(Raw::string);
    let mut blocks = source.texts_of(content);
    blocks.extend(refusal.map(text_block));
    for (index, call) in calls.unwrap_or(Raw::NULL).items().enumerate() {
        let [id, function, custom] = call.pick(["id", "function", "custom"]);
        let [name, arguments, input] = function.or(custom).unwrap_or(Raw::NULL).pick(["name", "arguments", "input"]);
        let Some(name) = name.and_then(Raw::string) else {
            return refuse(format_args!("messages[{at}].tool_calls[{index}].type"), "function or custom");
        };
        let id = id.and_then(Raw::string).unwrap_or_default();
        let arguments = match function {
            Some(_) => Arguments::of(arguments),
            None => Arguments::Free(input.and_then(Raw::string).unwrap_or_default()),
        };
        blocks.push(Block::Call(ToolCall { id, name: Cow::Borrowed(name), arguments }));
    }
    Ok(Turn { role: Role::Assistant, blocks })
}

/// The blocks of a user's or a tool's content.
fn user_blocks<'a>(source: &SourceRequest<'a>, content: Raw<'a>, at: usize) -> Result<Vec<Block<'a>>, Invalid> {
    let mut blocks: Vec<Block<'a>> = content.string().map(text_block).into_iter().collect();
    let (mut parts, mut number) = (content.items(), 0..);
    while let Some((part, [kind, text, control, breakpoint])) = parts.pick(["type", "text", MARKS[0], MARKS[1]]) {
        let (kind, text) = (kind.unwrap_or(Raw::NULL), text.and_then(Raw::string));
        let index = number.next().unwrap_or_default();
        let path = || format!("messages[{at}].content[{index}]");
        if kind.is("image_url") {
            blocks.push(Block::Media(chat_image(part, &path())?));
        } else if kind.is("file") {
            blocks.push(chat_file(part, &path())?);
        } else if let Some(text) = text.filter(|_| kind.is("text") || kind.is_null()) {
            blocks.push(text_block(text));
        } else {
            return refuse(format_args!("{}.type", path()), "text, image_url or file for this model");
        }
        blocks.extend(source.part_mark([control, breakpoint], text));
    }
    Ok(blocks)
}

fn format<'a>(source: &SourceRequest<'a>) -> Result<OutputFormat<'a>, Invalid> {
    let format = source.get(Name::ResponseFormat, "response_format").unwrap_or(Raw::EMPTY);
    let kind = format.get("type").unwrap_or(Raw::NULL);
    let inner = format.get("json_schema").unwrap_or(Raw::NULL);
    let schema = inner.get("schema").filter(|s| s.kind() == ValueKind::Object);
    if schema.is_some_and(|schema| schema.bytes().len() > SCHEMA_MAX) {
        return refuse("response_format.json_schema.schema", "at most 256 KiB");
    }
    let text = |name| inner.get(name).and_then(Raw::string);
    Ok(match schema {
        Some(schema) if kind.is("json_schema") => OutputFormat::Schema {
            schema,
            name: text("name"),
            description: text("description"),
            strict: inner.get("strict").and_then(Raw::bool),
        },
        _ if kind.is("json_schema") || kind.is("json_object") => OutputFormat::Object,
        _ if kind.is_null() || kind.is("text") => OutputFormat::Free,
        _ => return refuse("response_format.type", "text, json_object or json_schema for this model"),
    })
}

fn tools<'a>(source: &SourceRequest<'a>, state: &mut TranslationState) -> Result<Tools<'a>, Invalid> {
    let mut tools = Vec::new();
    for (at, tool) in source.get(Name::Tools, "tools").unwrap_or(Raw::NULL).items().enumerate() {
        let [kind, function, control, breakpoint] = tool.pick(["type", "function", MARKS[0], MARKS[1]]);
        let kind = kind.unwrap_or(Raw::NULL);
        let free = kind.is("custom");
        if !kind.is_null() && !kind.is("function") && !free {
            return refuse(format_args!("tools[{at}].type"), "function or custom for this model");
        }
        let names = ["name", "description", "parameters", "strict", MARKS[0], MARKS[1]];
        let inner = if free { custom_tools::inner(tool) } else { function.unwrap_or(Raw::NULL) };
        let [name, description, parameters, strict, inner_control, inner_breakpoint] = inner.pick(names);
        let path = || format!("tools[{at}].{}.name", if free { "custom" } else { "function" });
        let Some(name) = name.and_then(Raw::string) else { return refuse(path(), "a string") };
        tool_name_fits(name, path)?;
        let name = respelt(Cow::Borrowed(name));
        if free {
            state.note(name.to_vec(), Called { name: name.to_vec(), kind: ToolKind::Custom, ..Called::default() });
        }
        let description = description.and_then(Raw::string);
        tools.push(Tool {
            name,
            description: if free { Some(free_text(inner, description)) } else { description.map(Cow::Borrowed) },
            schema: if free { Schema::Free } else { Schema::Given(parameters.unwrap_or(Raw::NULL)) },
            strict: strict.and_then(Raw::bool) == Some(true),
            mark: source.mark([control.or(inner_control), breakpoint.or(inner_breakpoint)]),
        });
    }
    let parallel = source.get(Name::ParallelToolCalls, "parallel_tool_calls").and_then(Raw::bool);
    let choice = if tools.is_empty() { ToolChoice::Absent } else { choice(source, state, &mut tools)? };
    Ok(Tools { list: tools, choice, parallel, hosted: false })
}

fn choice<'a>(
    source: &SourceRequest<'a>,
    state: &TranslationState,
    tools: &mut Vec<Tool<'a>>,
) -> Result<ToolChoice<'a>, Invalid> {
    let Some(choice) = source.get(Name::ToolChoice, "tool_choice") else { return Ok(ToolChoice::Absent) };
    let kind = choice.get("type").unwrap_or(choice);
    let name = |tool: Raw<'a>| {
        let inner = tool.get("function").unwrap_or_else(|| custom_tools::inner(tool));
        inner.get("name").and_then(Raw::string)
    };
    let named = name(choice);
    Ok(match named {
        _ if kind.is("auto") => ToolChoice::Auto,
        _ if kind.is("none") => ToolChoice::None,
        _ if kind.is("required") => ToolChoice::Any,
        Some(name) if kind.is("function") || (kind.is("custom") && state.is_free(name)) => {
            ToolChoice::One(Cow::Borrowed(name))
        }
        _ if kind.is("allowed_tools") => {
            let allowed = choice.get("allowed_tools").unwrap_or(choice);
            keep(
                tools,
                allowed
                    .get("tools")
                    .unwrap_or(Raw::NULL)
                    .items()
                    .filter_map(name)
                    .map(|name| respelt(Cow::Borrowed(name))),
            )?;
            if allowed.get("mode").is_some_and(|mode| mode.is("required")) { ToolChoice::Any } else { ToolChoice::Auto }
        }
        _ => return refuse("tool_choice", "auto, none, required, allowed_tools or a function for this model"),
    })
}

/// Keeps only the tools with these names.
pub fn keep<'a>(tools: &mut Vec<Tool<'a>>, mut names: impl Iterator<Item = JsonText<'a>>) -> Result<(), Invalid> {
    let kept: Vec<JsonText<'a>> = names.by_ref().take(TOOLS_MAX).collect();
    if names.next().is_some() {
        return too_many("tool_choice", TOOLS_MAX, " tools");
    }
    let known: BTreeSet<&[u8]> = kept.iter().map(|name| &**name).collect();
    tools.retain(|tool| known.contains(&*tool.name));
    Ok(())
}

fn settings<'a>(source: &SourceRequest<'a>) -> Result<AnswerSettings<'a>, Invalid> {
    let stop = source.get(Name::Stop, "stop").unwrap_or(Raw::NULL);
    Ok(AnswerSettings {
        temperature: source.get(Name::Temperature, "temperature"),
        top_p: source.get(Name::TopP, "top_p"),
        stops: match stop.string() {
            Some(word) => vec![word],
            None => stops(stop.items())?,
        },
        user: source.get(Name::User, "user").and_then(Raw::string),
        cache_key: source.get(Name::PromptCacheKey, "prompt_cache_key").and_then(Raw::string).map(Cow::Borrowed),
        effort: source.get(Name::ReasoningEffort, "reasoning_effort").and_then(Effort::read),
        reasoning: source
            .get(Name::ReasoningEffort, "reasoning_effort")
            .map(|_| "reasoning_effort")
            .into_iter()
            .collect(),
        verbosity: source.get(Name::Verbosity, "verbosity").and_then(Raw::string),
        ..AnswerSettings::default()
    })
}
