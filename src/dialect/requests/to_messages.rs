//! A chat request written as a messages request.
//!
//! The conversation is first laid out as turns (who speaks, which blocks), so that merging, ordering and dropping have
//! one place; then it is written.

use super::super::capabilities::Structured;
use super::super::naming::{TranslationState, messages_id};
use super::super::request::{Invalid, Name};
use super::ask::{Ask, Message, is_blank, refuse, write_user};
use super::media::{Media, chat_file, chat_image};
use super::offer::Tools;
use super::schema::{SCHEMA_MAX, write_closed};
use crate::wire::json::{self, Kind, Raw, compact, eq_unescaped, item, key, write_count, write_inside, write_string};
use std::collections::BTreeSet;

/// Longest `metadata.user_id` that is passed on as it is.
const USER_MAX: usize = 256;

/// Messages that the messages shape takes.
const MESSAGES_MAX: usize = 100_000;

/// Who speaks in the messages shape.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Role {
    User,
    Assistant,
    System,
}

/// One content block.
enum Block<'a> {
    /// Text, as the inside of a string.
    Text(&'a [u8]),
    Trimmed(String),
    Media(Media<'a>),
    /// A tool call of the chat shape.
    Use(Raw<'a>),
    /// A tool's result: the call's id, and its content where that is a plain string, else its blocks.
    Result(&'a [u8], Option<&'a [u8]>, Vec<Block<'a>>),
}

/// What one side says until the other one speaks.
struct Turn<'a> {
    role: Role,
    /// Tool results, which must come first.
    results: Vec<Block<'a>>,
    blocks: Vec<Block<'a>>,
}

/// The conversation laid out.
#[derive(Default)]
struct Plan<'a> {
    system: Vec<&'a [u8]>,
    turns: Vec<Turn<'a>>,
    /// Names of tools that were called, in the order of their first call.
    called: Vec<&'a [u8]>,
    known: BTreeSet<&'a [u8]>,
}

/// Writes the request; see [`super::request`].
pub(super) fn write(ask: &Ask<'_>, out: &mut Vec<u8>) -> Result<TranslationState, Invalid> {
    let mut plan = Plan::default();
    plan.read(ask)?;
    let demand = Demand::read(ask)?;
    let tools = Tools::read(ask, &plan.called)?;
    let state = TranslationState { json_tool: demand.by_tool(ask, &tools), ..TranslationState::default() };
    out.push(b'{');
    key(out, "model");
    write_string(out, ask.target.model);
    key(out, "max_tokens");
    let ceiling = ask.target.capabilities.max_output_tokens.unwrap_or(u64::MAX);
    write_count(out, ask.max_tokens().unwrap_or(ask.target.capabilities.default_max_tokens.min(ceiling)));
    plan.write_system(demand.instruction(ask, &tools), out);
    plan.write_turns(out);
    tools.write(ask, demand.schema.filter(|_| state.json_tool), out);
    write_parameters(ask, out);
    demand.write_config(ask, out);
    if ask.fields.stream {
        key(out, "stream");
        out.extend_from_slice(b"true");
    }
    out.push(b'}');
    Ok(state)
}

impl<'a> Plan<'a> {
    fn read(&mut self, ask: &Ask<'a>) -> Result<(), Invalid> {
        let messages: Vec<_> = ask.messages().collect();
        if messages.len() > MESSAGES_MAX {
            return refuse("messages", "at most 100000 messages for this model");
        }
        let before_assistant = before_assistant(&messages);
        for &Message { at, raw: message, role, content } in &messages {
            if role.is("assistant") {
                self.assistant(at, message, content)?;
            } else if role.is("user") {
                let blocks = user_blocks(content, at)?;
                self.turn(Role::User, !blocks.is_empty()).blocks.extend(blocks);
            } else if role.is("tool") {
                let id = message.get("tool_call_id").and_then(Raw::string).unwrap_or_default();
                let blocks = if content.string().is_some() { Vec::new() } else { user_blocks(content, at)? };
                self.turn(Role::User, true).results.push(Block::Result(id, content.string(), blocks));
            } else if role.is("function") {
                return refuse(format_args!("messages[{at}].role"), "tool in the place of function for this model");
            } else {
                self.system(ask, content, before_assistant[at]);
            }
            self.drop_empty_turn();
        }
        self.trim_last();
        if self.turns.is_empty() {
            return refuse("messages", "at least one message with content");
        }
        Ok(())
    }

    /// The turn that `role` speaks in; a new one begins where the other side spoke last. Where `speaks` is false the
    /// turn may stay empty and is dropped.
    fn turn(&mut self, role: Role, speaks: bool) -> &mut Turn<'a> {
        let goes_on = self.turns.last().is_some_and(|last| last.role == role || !speaks);
        if !goes_on {
            self.turns.push(Turn { role, results: Vec::new(), blocks: Vec::new() });
        }
        let last = self.turns.len() - 1;
        &mut self.turns[last]
    }

    /// A system message joins the system prompt, unless the model takes it in place and the place is allowed: after
    /// a user's turn and before the assistant's or the end.
    fn system(&mut self, ask: &Ask<'a>, content: Raw<'a>, before_assistant: bool) {
        let texts: Vec<&[u8]> = texts(content).filter(|text| !is_blank(text)).collect();
        let last = self.turns.last().map(|turn| turn.role);
        let in_place = ask.target.capabilities.mid_conversation_system
            && matches!(last, Some(Role::User | Role::System))
            && before_assistant;
        if in_place && !texts.is_empty() {
            self.turn(Role::System, true).blocks.extend(texts.into_iter().map(Block::Text));
        } else {
            self.system.extend(texts);
        }
    }

    fn assistant(&mut self, at: usize, message: Raw<'a>, content: Raw<'a>) -> Result<(), Invalid> {
        if message.get("function_call").is_some() {
            return refuse(format_args!("messages[{at}]"), "tool_calls in the place of function_call for this model");
        }
        let refusal = message.get("refusal").and_then(Raw::string);
        let mut blocks: Vec<Block<'a>> = Vec::new();
        let said: Vec<&[u8]> = texts(content).chain(refusal).filter(|text| !text.is_empty()).collect();
        if !said.iter().all(|text| is_blank(text)) {
            blocks.extend(said.into_iter().map(Block::Text));
        }
        for (index, call) in message.get("tool_calls").unwrap_or(Raw::NULL).items().enumerate() {
            let Some(name) = call.get("function").and_then(|f| f.get("name")).and_then(Raw::string) else {
                let path = format!("messages[{at}].tool_calls[{index}].type");
                return refuse(path, "function for this model");
            };
            if self.known.insert(name) {
                self.called.push(name);
            }
            blocks.push(Block::Use(call));
        }
        self.turn(Role::Assistant, !blocks.is_empty()).blocks.extend(blocks);
        Ok(())
    }

    /// A last assistant turn is a beginning to be continued: it must not end in white space.
    fn trim_last(&mut self) {
        let Some(turn) = self.turns.last_mut().filter(|turn| turn.role == Role::Assistant) else { return };
        let Some(Block::Text(raw)) = turn.blocks.last() else { return };
        let text = Raw::text_of(raw);
        let trimmed = text.trim_end();
        if trimmed.len() < text.len() {
            let trimmed = trimmed.to_owned();
            turn.blocks.pop();
            if !trimmed.is_empty() {
                turn.blocks.push(Block::Trimmed(trimmed));
            }
        }
        self.drop_empty_turn();
    }

    /// A message that held nothing leaves no turn behind.
    fn drop_empty_turn(&mut self) {
        if self.turns.last().is_some_and(|turn| turn.results.is_empty() && turn.blocks.is_empty()) {
            self.turns.pop();
        }
    }

    fn write_system(&self, instruction: Option<String>, out: &mut Vec<u8>) {
        if self.system.is_empty() && instruction.is_none() {
            return;
        }
        key(out, "system");
        out.push(b'[');
        for text in &self.system {
            Block::Text(text).write(out);
        }
        if let Some(text) = instruction {
            Block::Trimmed(text).write(out);
        }
        out.push(b']');
    }

    fn write_turns(&self, out: &mut Vec<u8>) {
        key(out, "messages");
        out.push(b'[');
        for turn in &self.turns {
            item(out);
            let role = match turn.role {
                Role::User => "user",
                Role::Assistant => "assistant",
                Role::System => "system",
            };
            out.push(b'{');
            key(out, "role");
            write_string(out, role);
            key(out, "content");
            out.push(b'[');
            for block in turn.results.iter().chain(&turn.blocks) {
                block.write(out);
            }
            out.extend_from_slice(b"]}");
        }
        out.push(b']');
    }
}

/// For each message: only system messages stand between it and an assistant's, or the end.
fn before_assistant(messages: &[Message<'_>]) -> Vec<bool> {
    let mut before = vec![true; messages.len()];
    let mut next = true;
    for Message { at, role, .. } in messages.iter().rev() {
        before[*at] = next;
        next = if is_system(*role) { next } else { role.is("assistant") };
    }
    before
}

fn is_system(role: Raw<'_>) -> bool {
    role.is("system") || role.is("developer")
}

/// The texts of a content that is a string or an array of parts, refusals included.
fn texts<'a>(content: Raw<'a>) -> impl Iterator<Item = &'a [u8]> {
    let parts = content.items().filter_map(|part| part.get("text").or_else(|| part.get("refusal")));
    content.string().into_iter().chain(parts.filter_map(Raw::string))
}

/// The blocks of a user's or a tool's content; empty texts dropped, and blank ones where nothing else is said.
fn user_blocks<'a>(content: Raw<'a>, at: usize) -> Result<Vec<Block<'a>>, Invalid> {
    let mut blocks = Vec::new();
    blocks.extend(content.string().filter(|text| !text.is_empty()).map(Block::Text));
    for (index, part) in content.items().enumerate() {
        let (mut kind, mut text) = (Raw::NULL, None);
        for (name, value) in part.members() {
            if eq_unescaped(name, "type") {
                kind = value;
            } else if eq_unescaped(name, "text") {
                text = value.string();
            }
        }
        let path = || format!("messages[{at}].content[{index}]");
        if kind.is("image_url") {
            blocks.push(Block::Media(chat_image(part, &path())?));
        } else if kind.is("file") {
            blocks.push(Block::Media(chat_file(part, &path())?));
        } else if let Some(text) = text.filter(|_| kind.is("text") || kind.is_null()) {
            blocks.extend((!text.is_empty()).then_some(Block::Text(text)));
        } else {
            return refuse(format_args!("{}.type", path()), "text, image_url or file for this model");
        }
    }
    if blocks.iter().all(|block| matches!(block, Block::Text(text) if is_blank(text))) {
        blocks.clear();
    }
    Ok(blocks)
}

impl Block<'_> {
    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Block::Text(inside) => {
                item(out);
                out.extend_from_slice(b"{\"type\":\"text\",\"text\":");
                write_inside(out, inside);
                out.push(b'}');
            }
            Block::Trimmed(text) => {
                item(out);
                out.extend_from_slice(b"{\"type\":\"text\",\"text\":");
                write_string(out, text);
                out.push(b'}');
            }
            Block::Media(media) => media.write_block(out),
            Block::Use(call) => write_call(*call, out),
            Block::Result(id, text, blocks) => {
                item(out);
                out.extend_from_slice(b"{\"type\":\"tool_result\",\"tool_use_id\":\"");
                messages_id(id, out);
                out.extend_from_slice(b"\",\"content\":");
                match text {
                    Some(text) => write_inside(out, text),
                    None => {
                        out.push(b'[');
                        for block in blocks {
                            block.write(out);
                        }
                        out.push(b']');
                    }
                }
                out.push(b'}');
            }
        }
    }
}

fn write_call(call: Raw<'_>, out: &mut Vec<u8>) {
    let function = call.get("function").unwrap_or(Raw::NULL);
    item(out);
    out.extend_from_slice(b"{\"type\":\"tool_use\",\"id\":\"");
    messages_id(call.get("id").and_then(Raw::string).unwrap_or_default(), out);
    out.push(b'"');
    key(out, "name");
    write_inside(out, function.get("name").and_then(Raw::string).unwrap_or_default());
    key(out, "input");
    write_input(function.get("arguments").and_then(Raw::string).unwrap_or_default(), out);
    out.push(b'}');
}

/// Appends what a call's `arguments` string holds as an object: a JSON object as it is written there, nothing as an
/// empty one, anything else under `_raw`, since `input` must be an object.
pub(in crate::dialect) fn write_input(arguments: &[u8], out: &mut Vec<u8>) {
    let text = Raw::text_of(arguments);
    let trimmed = text.trim();
    if trimmed.is_empty() || trimmed == "null" {
        out.extend_from_slice(b"{}");
    } else if trimmed.starts_with('{') && json::check(trimmed.as_bytes()).is_ok() {
        compact(trimmed.as_bytes(), out);
    } else {
        out.extend_from_slice(b"{\"_raw\":");
        write_inside(out, arguments);
        out.push(b'}');
    }
}

/// The demand for JSON in the answer.
struct Demand<'a> {
    schema: Option<Raw<'a>>,
    any_object: bool,
}

impl<'a> Demand<'a> {
    fn read(ask: &Ask<'a>) -> Result<Demand<'a>, Invalid> {
        let format = ask.get(Name::ResponseFormat, "response_format").unwrap_or(Raw::EMPTY);
        let kind = format.get("type").unwrap_or(Raw::NULL);
        let schema = format.get("json_schema").and_then(|s| s.get("schema")).filter(|s| s.kind() == Kind::Object);
        if schema.is_some_and(|schema| schema.bytes().len() > SCHEMA_MAX) {
            return refuse("response_format.json_schema.schema", "at most 256 KiB");
        }
        if kind.is("json_schema") {
            return Ok(Demand { schema, any_object: schema.is_none() });
        }
        if !kind.is_null() && !kind.is("text") && !kind.is("json_object") {
            return refuse("response_format.type", "text, json_object or json_schema for this model");
        }
        Ok(Demand { schema: None, any_object: kind.is("json_object") })
    }

    /// The tool trick: only where the client has no tools of its own.
    fn by_tool(&self, ask: &Ask<'_>, tools: &Tools<'_>) -> bool {
        self.schema.is_some() && ask.target.capabilities.structured_output == Structured::Tool && tools.is_empty()
    }

    fn instruction(&self, ask: &Ask<'_>, tools: &Tools<'_>) -> Option<String> {
        if self.any_object {
            return Some("Answer with one JSON object and nothing else.".to_owned());
        }
        let schema = self.schema?;
        if ask.target.capabilities.structured_output == Structured::Native || self.by_tool(ask, tools) {
            return None;
        }
        let schema = String::from_utf8_lossy(schema.bytes());
        Some(format!("Answer with one JSON object that matches this JSON schema, and nothing else:\n{schema}"))
    }

    /// `output_config` and `thinking`: the format where it is native, and the effort.
    fn write_config(&self, ask: &Ask<'_>, out: &mut Vec<u8>) {
        let capabilities = ask.target.capabilities;
        let schema = self.schema.filter(|_| capabilities.structured_output == Structured::Native);
        let asked = ask.get(Name::ReasoningEffort, "reasoning_effort").filter(|_| capabilities.effort);
        let word = |word: &&&str| asked.is_some_and(|asked| asked.is(word));
        let effort = ["minimal", "low", "medium", "high", "xhigh", "max"].iter().find(word);
        if asked.is_some_and(|asked| asked.is("none")) && !ask.drops("thinking") {
            key(out, "thinking");
            out.extend_from_slice(b"{\"type\":\"disabled\"}");
        }
        if (schema.is_none() && effort.is_none()) || ask.drops("output_config") {
            return;
        }
        key(out, "output_config");
        out.push(b'{');
        if let Some(effort) = effort {
            key(out, "effort");
            write_string(out, if *effort == "minimal" { "low" } else { effort });
        }
        if let Some(schema) = schema {
            key(out, "format");
            out.extend_from_slice(b"{\"type\":\"json_schema\",\"schema\":");
            write_closed(schema, out);
            out.push(b'}');
        }
        out.push(b'}');
    }
}

/// Sampling, stop sequences and the end user.
fn write_parameters(ask: &Ask<'_>, out: &mut Vec<u8>) {
    let sampling = ask.target.capabilities.sampling;
    if let Some(temperature) = ask.get(Name::Temperature, "temperature").filter(|_| sampling) {
        key(out, "temperature");
        let too_high = temperature.number().is_some_and(|number| number > 1.0);
        out.extend_from_slice(if too_high { b"1" } else { temperature.bytes() });
    }
    if let Some(top_p) = ask.get(Name::TopP, "top_p").filter(|_| sampling) {
        key(out, "top_p");
        out.extend_from_slice(top_p.bytes());
    }
    if let Some(stop) = ask.get(Name::Stop, "stop").filter(|_| !ask.drops("stop_sequences")) {
        let sequences = stop.string().into_iter().chain(stop.items().filter_map(Raw::string));
        let from = out.len();
        key(out, "stop_sequences");
        out.push(b'[');
        let empty = out.len();
        for sequence in sequences.filter(|sequence| !is_blank(sequence)) {
            item(out);
            write_inside(out, sequence);
        }
        if out.len() == empty {
            out.truncate(from);
        } else {
            out.push(b']');
        }
    }
    if let Some(user) = ask.get(Name::User, "user").and_then(Raw::string).filter(|_| !ask.drops("metadata")) {
        key(out, "metadata");
        out.extend_from_slice(b"{\"user_id\":");
        write_user(user, USER_MAX, out);
        out.push(b'}');
    }
}
