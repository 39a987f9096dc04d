//! Writes a chat request. For a user's turn, tool results come first, each as a separate message, then one message with
//! the rest.

use crate::dialect::capabilities::Structured;
use crate::dialect::chat::signature::{self, Signatures};
use crate::dialect::neutral::arguments::Arguments;
use crate::dialect::neutral::conversation::{
    AnswerSettings, Block, Conversation, Effort, OutputFormat, Role, Schema, Tool, ToolResult, Tools, Turn,
};
use crate::dialect::neutral::naming::{JSON_TOOL, TranslationState, chat_id};
use crate::dialect::neutral::{JsonText, is_blank};
use crate::dialect::request::Invalid;
use crate::dialect::request::refuse;
use crate::dialect::translate::openai::{write_caller, write_choice, write_function, write_sampling};
use crate::dialect::translate::schema::{is_strict, write_parameters};
use crate::dialect::translate::source::{SourceRequest, as_users};
use crate::wire::json::{
    Inside, Quoted, Raw, compact, item, key, member_count, member_inside, member_string, put, write_escaped,
    write_inside,
};
use std::borrow::Cow;

/// Maximum number of stop sequences in the chat format.
pub const STOPS_MAX: usize = 4;
/// Prefix of a failed tool's result: the chat format has no field for it.
pub const FAILED: &str = "[tool_error] ";
/// Placeholder in a tool's result for an attachment that is moved to the next user message.
const MOVED: &str = "[see the attachment in the next user message]";

/// Writes the request; see [`crate::dialect::translate::request`].
pub fn write(
    source: &SourceRequest<'_>,
    mut conversation: Conversation<'_>,
    state: &mut TranslationState,
    out: &mut Vec<u8>,
) -> Result<(), Invalid> {
    if source.target.capabilities.mid_conversation_system == Some(false) {
        put_system_first(&mut conversation.turns);
    }
    let how = source.target.capabilities.structured_output;
    let is_schema = matches!(conversation.format, OutputFormat::Schema { .. });
    state.json_tool = is_schema && how == Structured::Tool && conversation.tools.list.is_empty();
    if how != Structured::Native && !state.json_tool {
        let words = conversation.format.instruction();
        add_instruction(&mut conversation.turns, words);
    }
    put!(out, r#"{"model":"#, Quoted(source.target.model), r#","messages":["#);
    // The current turn begins after the newest message that the provider regards as a user's.
    let current = match source.target.capabilities.thought_signatures {
        true => conversation.turns.iter().rposition(asks).unwrap_or(0),
        false => usize::MAX,
    };
    let mut follows_tool = false;
    for (at, turn) in conversation.turns.iter().enumerate() {
        write_turn(source, turn, at >= current, &mut follows_tool, out)?;
    }
    if out.ends_with(b"[") {
        return refuse(source.own.list(), "at least one message with content");
    }
    out.push(b']');
    let with_tools = !conversation.tools.list.is_empty() || state.json_tool;
    write_limits(source, &conversation.settings, with_tools, state, out);
    match conversation.format {
        OutputFormat::Schema { schema, .. } if state.json_tool => {
            write_json_tool(schema, !source.drops("tool_choice"), out)
        }
        _ => write_offer(source, &conversation.tools, out),
    }
    if how == Structured::Native && !source.drops("response_format") {
        write_format(&conversation.format, out);
    }
    write_stream(source, out);
    out.push(b'}');
    Ok(())
}

/// Merges the system messages at the beginning into one, and turns later ones into user messages.
fn put_system_first(turns: &mut Vec<Turn<'_>>) {
    let is_system = |turn: &Turn<'_>| matches!(turn.role, Role::System { .. });
    let leading = turns.iter().take_while(|turn| is_system(turn)).count();
    let more: Vec<Block<'_>> = turns.drain(leading.min(1)..leading).flat_map(|turn| turn.blocks).collect();
    if let Some(first) = turns.first_mut() {
        first.blocks.extend(more);
    }
    for turn in turns.iter_mut().skip(leading.min(1)).filter(|turn| is_system(turn)) {
        let said = texts(turn).any(|text| !is_blank(text));
        *turn = Turn { role: Role::User, blocks: said.then(|| Block::Text(as_users(turn))).into_iter().collect() };
    }
}

/// Adds the instruction about the output format at the end of the first system message, if the model has no field for
/// it.
fn add_instruction<'a>(turns: &mut Vec<Turn<'a>>, words: Option<JsonText<'a>>) {
    let Some(words) = words else { return };
    if !matches!(turns.first().map(|turn| turn.role), Some(Role::System { .. })) {
        turns.insert(0, Turn::new(Role::System { moves: true }));
    }
    turns[0].blocks.push(Block::Text(words));
}

fn open_message(role: &str, out: &mut Vec<u8>) {
    item(out);
    put!(out, r#"{"role":""#, role, r#"","content":"#);
}

/// True for a turn that is written as a user message.
fn asks(turn: &Turn<'_>) -> bool {
    let shows = |block: &Block<'_>| match block {
        Block::Text(text) => !text.is_empty(),
        Block::Media(_) => true,
        Block::Result(result) => result.content.iter().any(|inner| matches!(inner, Block::Media(_))),
        _ => false,
    };
    turn.role == Role::User && turn.blocks.iter().any(shows)
}

/// `checked`: the calls of the turn require signatures. `follows_tool`: the last message that was written is a tool's.
fn write_turn(
    source: &SourceRequest<'_>,
    turn: &Turn<'_>,
    checked: bool,
    follows_tool: &mut bool,
    out: &mut Vec<u8>,
) -> Result<(), Invalid> {
    let (rules, before) = (&source.target.capabilities.rules, out.len());
    match turn.role {
        Role::User => {
            write_results(turn, rules.call_id_length, out);
            *follows_tool |= out.len() > before;
            if *follows_tool && !rules.user_after_tool && asks(turn) && part_from_tool(turn, out) {
                return Ok(());
            }
            let before = out.len();
            write_user_turn(turn, rules.call_id_length, out)?;
            *follows_tool &= out.len() == before;
            return Ok(());
        }
        Role::Assistant => write_assistant(source, turn, checked, out),
        Role::System { .. } => {
            let texts: Vec<&[u8]> = texts(turn).filter(|text| !is_blank(text)).collect();
            if !texts.is_empty() {
                open_message("system", out);
                write_joined(&texts, out);
                out.push(b'}');
            }
        }
    }
    *follows_tool &= out.len() == before;
    Ok(())
}

/// Separates a user's content from the tool's message before it, which a vendor refuses to be followed by a user's.
/// True if nothing is left to write: texts continue the tool's message. Before other content the assistant says a word.
fn part_from_tool(turn: &Turn<'_>, out: &mut Vec<u8>) -> bool {
    let has_media = |block: &Block<'_>| match block {
        Block::Media(_) => true,
        Block::Result(result) => result.content.iter().any(|inner| matches!(inner, Block::Media(_))),
        _ => false,
    };
    if turn.blocks.iter().any(has_media) {
        open_message("assistant", out);
        put!(out, r#""OK."}"#);
        return false;
    }
    // The end of the message and of its content.
    out.truncate(out.len() - 2);
    for text in texts(turn).filter(|text| !text.is_empty()) {
        put!(out, r"\n\n", text);
    }
    put!(out, r#""}"#);
    true
}

/// Appends texts as one string, separated by blank lines.
fn write_joined(texts: &[&[u8]], out: &mut Vec<u8>) {
    out.push(b'"');
    for (at, text) in texts.iter().enumerate() {
        out.extend_from_slice(if at > 0 { b"\\n\\n" } else { b"" });
        out.extend_from_slice(text);
    }
    out.push(b'"');
}

fn texts<'a>(turn: &'a Turn<'_>) -> impl Iterator<Item = &'a [u8]> {
    turn.blocks.iter().filter_map(Block::text)
}

fn results<'a, 'b>(turn: &'a Turn<'b>) -> impl Iterator<Item = &'a ToolResult<'b>> {
    turn.blocks.iter().filter_map(|block| if let Block::Result(result) = block { Some(result) } else { None })
}

/// Writes each tool result of a turn as a separate message, with a placeholder for content that a tool message cannot
/// contain.
fn write_results(turn: &Turn<'_>, id_length: usize, out: &mut Vec<u8>) {
    for result in results(turn) {
        item(out);
        put!(out, r#"{"role":"tool","tool_call_id":""#);
        chat_id(result.id, id_length, out);
        put!(out, r#"","content":""#);
        let from = out.len();
        if result.failed {
            out.extend_from_slice(FAILED.as_bytes());
        }
        for (at, inner) in result.content.iter().enumerate() {
            out.extend_from_slice(if at > 0 && out.len() > from { b"\\n" } else { b"" });
            out.extend_from_slice(inner.text().unwrap_or(MOVED.as_bytes()));
        }
        out.extend_from_slice(b"\"}");
    }
}

/// Writes the content of a user's turn except tool results, in one message; attachments of the results first.
fn write_user_turn(turn: &Turn<'_>, id_length: usize, out: &mut Vec<u8>) -> Result<(), Invalid> {
    let from = out.len();
    open_message("user", out);
    let content = out.len();
    out.push(b'[');
    let empty = out.len();
    for result in results(turn) {
        write_moved(result, id_length, out)?;
    }
    // A single text is written as a plain string.
    let (mut single, mut count) = (None, u64::from(out.len() > empty));
    for block in turn.blocks.iter().filter(|block| !matches!(block, Block::Result(_))) {
        (single, count) = (block.text(), count + 1);
        match block {
            Block::Text(text) if !text.is_empty() => write_text_part(text, out),
            Block::Media(media) => media.write_chat_part(out)?,
            _ => {}
        }
    }
    if out.len() == empty {
        out.truncate(from);
        return Ok(());
    }
    if let Some(text) = single.filter(|_| count == 1) {
        out.truncate(content);
        write_inside(out, text);
    } else {
        out.push(b']');
    }
    out.push(b'}');
    Ok(())
}

fn write_text_part(inside: &[u8], out: &mut Vec<u8>) {
    item(out);
    put!(out, r#"{"type":"text","text":"#, Inside(inside), "}");
}

/// Writes the images and documents of a tool's result, each after a line that names the call.
fn write_moved(result: &ToolResult<'_>, id_length: usize, parts: &mut Vec<u8>) -> Result<(), Invalid> {
    for inner in &result.content {
        let Block::Media(media) = inner else { continue };
        let mut note = b"Attachment of the result of tool call ".to_vec();
        chat_id(result.id, id_length, &mut note);
        note.push(b':');
        write_text_part(&note, parts);
        media.write_chat_part(parts)?;
    }
    Ok(())
}

/// Writes an assistant's message, unless nothing of it is left: providers refuse an empty one.
fn write_assistant(source: &SourceRequest<'_>, turn: &Turn<'_>, checked: bool, out: &mut Vec<u8>) {
    let calls = || turn.blocks.iter().filter_map(|block| if let Block::Call(call) = block { Some(call) } else { None });
    let (before, is_silent) = (out.len(), texts(turn).all(<[u8]>::is_empty));
    open_message("assistant", out);
    if calls().next().is_some() && is_silent {
        out.extend_from_slice(b"null");
    } else {
        out.push(b'"');
        texts(turn).for_each(|text| out.extend_from_slice(text));
        out.push(b'"');
    }
    let replays = source.target.capabilities.replay_reasoning;
    let content = out.len();
    let carries = turn.blocks.iter().any(|block| matches!(block, Block::SealedReasoning(_)));
    if replays || carries {
        write_reasoning(turn, replays, out);
    }
    if calls().next().is_some() {
        key(out, "tool_calls");
        out.push(b'[');
        let signatures = if carries { Signatures::of(carried(turn)) } else { Signatures::default() };
        write_calls(turn, signatures, checked, source.target.capabilities.rules.call_id_length, out);
        out.push(b']');
    } else if is_silent && out.len() == content {
        out.truncate(before);
        return;
    }
    out.push(b'}');
}

/// The blocks of reasoning in the carriers of a turn.
fn carried<'t>(turn: &'t Turn<'_>) -> impl Iterator<Item = Raw<'t>> {
    let carriers =
        turn.blocks.iter().filter_map(|block| if let Block::SealedReasoning(json) = block { Some(json) } else { None });
    carriers.flat_map(|json| Raw::new(json).items())
}

/// Writes the calls of a turn, each with its signature.
fn write_calls<'t>(
    turn: &'t Turn<'_>,
    mut signatures: Signatures<'t>,
    checked: bool,
    id_length: usize,
    out: &mut Vec<u8>,
) {
    let mut other = checked.then_some(signature::SKIP);
    for block in &turn.blocks {
        match block {
            Block::SealedReasoning(json) => {
                for block in Raw::new(json).items() {
                    signatures.before(block);
                    other = other.filter(|_| block.get(signature::DETAILS).is_none());
                }
            }
            Block::Call(call) => {
                let signature = signatures.take(call.id).or(other.take());
                write_call(|out| chat_id(call.id, id_length, out), &call.name, call.arguments, signature, out);
            }
            _ => {}
        }
    }
}

/// Writes a call of a request or of a complete answer. `id` appends its id.
pub fn write_call(
    id: impl FnOnce(&mut Vec<u8>),
    name: &[u8],
    arguments: Arguments<'_>,
    signature: Option<&[u8]>,
    out: &mut Vec<u8>,
) {
    item(out);
    put!(out, r#"{"id":""#);
    id(out);
    put!(out, r#"","type":"function","function":{"name":"#, Inside(name), r#","arguments":""#);
    arguments.write_text(out);
    put!(out, "\"}");
    signature::write(signature, out);
    put!(out, "}");
}

/// Writes the reasoning of a turn under the servers' names for it: details always, the text if the model `replays` it.
fn write_reasoning(turn: &Turn<'_>, replays: bool, out: &mut Vec<u8>) {
    let (mut thoughts, mut carried) = (Vec::new(), Vec::new());
    for block in &turn.blocks {
        match block {
            Block::Reasoning(text) => thoughts.push(*text),
            Block::SealedReasoning(json) => {
                carried.push(&json[..]);
                let blocks = Raw::new(json).items().filter_map(|block| block.get("reasoning_content"));
                thoughts.extend(blocks.filter_map(Raw::string));
            }
            _ => {}
        }
    }
    write_details(carried.into_iter().flat_map(|json| Raw::new(json).items()), out);
    if replays && !thoughts.is_empty() {
        member_inside(out, "reasoning_content", &thoughts.concat());
    }
}

/// Appends the `reasoning_details` in blocks of reasoning.
pub fn write_details<'a>(blocks: impl Iterator<Item = Raw<'a>>, out: &mut Vec<u8>) {
    let mut details = blocks.filter_map(|block| block.get("reasoning_details")).flat_map(Raw::items).peekable();
    if details.peek().is_none() {
        return;
    }
    key(out, "reasoning_details");
    out.push(b'[');
    for detail in details {
        item(out);
        out.extend_from_slice(detail.bytes());
    }
    out.push(b']');
}

/// Writes the bound on tokens, sampling, stop sequences, the end user and the effort. `with_tools`: the request has
/// tools.
fn write_limits(
    source: &SourceRequest<'_>,
    settings: &AnswerSettings<'_>,
    with_tools: bool,
    state: &mut TranslationState,
    out: &mut Vec<u8>,
) {
    let capabilities = source.target.capabilities;
    let bound = capabilities.bound();
    if let Some(max) = source.max_tokens().filter(|_| !source.drops(bound)) {
        member_count(out, bound, max);
    }
    write_sampling(source, settings, out);
    let stops = settings.stops.iter().filter(|stop| !stop.is_empty() && !source.drops("stop"));
    for (at, stop) in stops.clone().take(STOPS_MAX).enumerate() {
        if at == 0 {
            key(out, "stop");
        }
        out.extend_from_slice(if at == 0 { b"[" } else { b"," });
        write_inside(out, stop);
    }
    if stops.count() > 0 {
        out.push(b']');
    }
    write_caller(source, "user", settings, out);
    let effort = effort(source, settings.effort, with_tools).filter(|_| !source.drops("reasoning_effort"));
    if effort.is_none() || effort != settings.effort {
        state.dropped.extend(&settings.reasoning);
    }
    if let Some(effort) = effort {
        member_string(out, "reasoning_effort", effort.word());
    }
    if let Some(verbosity) = settings.verbosity.filter(|_| capabilities.verbosity && !source.drops("verbosity")) {
        member_inside(out, "verbosity", verbosity);
    }
}

/// The effort to send, for models that accept one. A model that accepts none with tools, but has a default effort, must
/// get `none`.
fn effort(source: &SourceRequest<'_>, asked: Option<Effort>, with_tools: bool) -> Option<Effort> {
    let capabilities = source.target.capabilities;
    match with_tools && !capabilities.effort_with_tools {
        true => Some(Effort::NONE),
        false => asked,
    }
    .filter(|_| capabilities.effort)
}

fn write_offer(source: &SourceRequest<'_>, tools: &Tools<'_>, out: &mut Vec<u8>) {
    if tools.list.is_empty() {
        return;
    }
    put!(out, r#","tools":["#);
    for tool in &tools.list {
        write_tool(tool, source.target.capabilities.strict_tools, out);
    }
    put!(out, "]");
    write_choice(source, tools, (b"{\"type\":\"function\",\"function\":{\"name\":", b"}}"), out);
}

fn write_tool(tool: &Tool<'_>, strict: bool, out: &mut Vec<u8>) {
    item(out);
    put!(out, r#"{"type":"function","function":{"name":"#);
    write_function(tool, out);
    if let Schema::Given(schema) = tool.schema
        && strict
        && tool.strict
        && is_strict(schema)
    {
        put!(out, r#","strict":true"#);
    }
    put!(out, "}}");
}

/// `demands`: the model must call it.
fn write_json_tool(schema: Raw<'_>, demands: bool, out: &mut Vec<u8>) {
    put!(out, r#","tools":[{"type":"function","function":{"name":"#, Quoted(JSON_TOOL));
    put!(out, r#","description":"Give the answer by calling this function.","parameters":"#);
    write_parameters(schema, out);
    put!(out, "}}]");
    if demands {
        put!(out, r#","tool_choice":{"type":"function","function":{"name":"#, Quoted(JSON_TOOL), "}}");
    }
}

fn write_format(format: &OutputFormat<'_>, out: &mut Vec<u8>) {
    match format {
        OutputFormat::Free => {}
        OutputFormat::Object => put!(out, r#","response_format":{"type":"json_object"}"#),
        OutputFormat::Schema { .. } => {
            put!(out, r#","response_format":{"type":"json_schema","json_schema":{"#);
            format.write_schema(out);
            put!(out, "}}");
        }
    }
}

impl OutputFormat<'_> {
    /// The output format as an instruction, for models without a field for it.
    pub fn instruction(&self) -> Option<JsonText<'static>> {
        let mut words = Vec::new();
        match self {
            OutputFormat::Free => return None,
            OutputFormat::Object => write_escaped(&mut words, b"Answer with one JSON object and nothing else."),
            OutputFormat::Schema { schema, .. } => {
                let lead = b"Answer with one JSON object that matches this JSON schema, and nothing else:\n";
                write_escaped(&mut words, lead);
                write_escaped(&mut words, schema.bytes());
            }
        }
        Some(Cow::Owned(words))
    }

    /// Appends the members that describe a schema in both of OpenAI's formats.
    pub fn write_schema(&self, out: &mut Vec<u8>) {
        let OutputFormat::Schema { schema, name, description, strict } = self else { return };
        member_inside(out, "name", name.unwrap_or(b"response"));
        if let Some(description) = description {
            member_inside(out, "description", description);
        }
        put!(out, r#","schema":"#);
        compact(schema.bytes(), out);
        let strict = strict.unwrap_or_else(|| is_strict(*schema));
        put!(out, r#","strict":"#, if strict { "true" } else { "false" });
    }
}

fn write_stream(source: &SourceRequest<'_>, out: &mut Vec<u8>) {
    if !source.fields.stream {
        return;
    }
    put!(out, r#","stream":true"#);
    if source.target.capabilities.stream_usage && !source.drops("stream_options") {
        put!(out, r#","stream_options":{"include_usage":true}"#);
    }
}
