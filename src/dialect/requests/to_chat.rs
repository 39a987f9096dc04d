//! A messages request written as a chat request.
//!
//! Consecutive messages of one role are one turn, as the messages shape has it; of a user's turn the tool results come
//! first, each a message of its own, then one message with the rest.

use super::super::capabilities::Structured;
use super::super::naming::{JSON_TOOL, TranslationState, chat_id};
use super::super::request::{Invalid, Name};
use super::ask::{Ask, is_blank, refuse, write_user};
use super::media::{write_document_parts, write_image_part, write_search_result, write_text_part};
use super::schema::{is_strict, write_parameters};
use crate::wire::json::{
    self, Kind, Raw, compact, eq_unescaped, item, key, write_count, write_escaped, write_inside, write_string,
};

/// Longest `user` that is passed on as it is.
const USER_MAX: usize = 64;
/// Stop sequences the chat shape takes.
const STOPS_MAX: usize = 4;
/// How the attribution that Claude Code puts in front of its system prompt begins: noise for any other model.
const ATTRIBUTION: &str = "x-anthropic-billing-header:";
/// What a failed tool's result begins with, since the chat shape has no mark for it.
const FAILED: &str = "[tool_error] ";
/// What stands in a tool's result for something to look at, which follows in the user's message.
const MOVED: &str = "[see the attachment in the next user message]";

/// Writes the request; see [`super::request`].
pub(super) fn write(ask: &Ask<'_>, out: &mut Vec<u8>) -> Result<TranslationState, Invalid> {
    let mut state = TranslationState::default();
    let tools = Tools::read(ask)?;
    let schema = schema(ask);
    let how = ask.target.capabilities.structured_output;
    state.json_tool = schema.is_some() && how == Structured::Tool && tools.list.is_empty();
    let by_words = schema.filter(|_| how != Structured::Native && !state.json_tool);
    out.push(b'{');
    key(out, "model");
    write_string(out, ask.target.model);
    key(out, "messages");
    out.push(b'[');
    write_system(ask, by_words, out);
    write_messages(ask, &mut state, out)?;
    if out.ends_with(b"[") {
        return refuse("messages", "at least one message with content");
    }
    out.push(b']');
    write_limits(ask, !tools.list.is_empty() || state.json_tool, out);
    if let Some(schema) = schema.filter(|_| state.json_tool) {
        write_json_tool(schema, out);
    } else {
        tools.write(ask, &mut state, out);
    }
    if let Some(schema) = schema.filter(|_| how == Structured::Native && !ask.drops("response_format")) {
        write_format(schema, out);
    }
    write_stream(ask, out);
    out.push(b'}');
    if state.is_full() {
        return refuse("tools", "fewer names of more than 64 characters");
    }
    Ok(state)
}

/// The schema of the JSON asked for, in the newer or the older spelling.
fn schema<'a>(ask: &Ask<'a>) -> Option<Raw<'a>> {
    let config = ask.get(Name::OutputConfig, "output_config").and_then(|config| config.get("format"));
    let format = config.or_else(|| ask.get(Name::OutputFormat, "output_format"))?;
    format.get("schema").filter(|schema| schema.kind() == Kind::Object)
}

fn open_message(role: &str, out: &mut Vec<u8>) {
    item(out);
    out.push(b'{');
    key(out, "role");
    write_string(out, role);
    key(out, "content");
}

fn write_system(ask: &Ask<'_>, by_words: Option<Raw<'_>>, out: &mut Vec<u8>) {
    let mut words = Vec::new();
    let system = ask.get(Name::System, "system").unwrap_or(Raw::NULL);
    let blocks = system.items().filter_map(|block| block.get("text")).filter_map(Raw::string);
    let mut texts: Vec<&[u8]> = system.string().into_iter().chain(blocks).collect();
    if system.kind() == Kind::Array && texts.first().is_some_and(|text| Raw::text_of(text).starts_with(ATTRIBUTION)) {
        texts.remove(0);
    }
    texts.retain(|text| !is_blank(text));
    if let Some(schema) = by_words {
        write_escaped(&mut words, b"Answer with one JSON object that matches this JSON schema, and nothing else:\n");
        write_escaped(&mut words, schema.bytes());
        texts.push(&words);
    }
    if !texts.is_empty() {
        open_message("system", out);
        write_joined(&texts, out);
        out.push(b'}');
    }
}

/// A content block with what is asked of it most, found in one walk.
#[derive(Copy, Clone)]
struct Block<'a> {
    /// Which message, and which block of it.
    at: (usize, usize),
    raw: Raw<'a>,
    kind: Raw<'a>,
    text: Option<&'a [u8]>,
}

impl<'a> Block<'a> {
    fn read(at: (usize, usize), raw: Raw<'a>) -> Block<'a> {
        let mut block = Block { at, raw, kind: Raw::NULL, text: None };
        for (name, value) in raw.members() {
            if eq_unescaped(name, "type") {
                block.kind = value;
            } else if eq_unescaped(name, "text") {
                block.text = value.string();
            }
        }
        block
    }

    fn is(&self, kind: &str) -> bool {
        self.kind.is(kind)
    }

    fn path(&self) -> String {
        format!("messages[{}].content[{}]", self.at.0, self.at.1)
    }
}

/// The blocks of a content that may also be a plain string: that is one block of text.
fn blocks<'a>(at: usize, content: Raw<'a>, out: &mut Vec<Block<'a>>) {
    if let Some(text) = content.string() {
        out.extend((!is_blank(text)).then_some(Block { at: (at, 0), raw: content, kind: Raw::TEXT, text: Some(text) }));
    }
    out.extend(content.items().enumerate().map(|(index, raw)| Block::read((at, index), raw)));
}

fn write_messages(ask: &Ask<'_>, state: &mut TranslationState, out: &mut Vec<u8>) -> Result<(), Invalid> {
    let mut turn: Vec<Block<'_>> = Vec::new();
    let mut speaker = Raw::NULL;
    for message in ask.messages() {
        if !speaker.is_null() && message.role.string() != speaker.string() {
            write_turn(ask, speaker, &turn, state, out)?;
            turn.clear();
        }
        speaker = message.role;
        blocks(message.at, message.content, &mut turn);
    }
    write_turn(ask, speaker, &turn, state, out)
}

fn write_turn(
    ask: &Ask<'_>,
    role: Raw<'_>,
    turn: &[Block<'_>],
    state: &mut TranslationState,
    out: &mut Vec<u8>,
) -> Result<(), Invalid> {
    if role.is("user") {
        write_results(turn, out)?;
        return write_user_turn(turn, out);
    }
    if role.is("assistant") {
        write_assistant(ask, turn, state, out);
        return Ok(());
    }
    let texts: Vec<&[u8]> = texts(turn).filter(|text| !is_blank(text)).collect();
    if !texts.is_empty() {
        open_message("system", out);
        write_joined(&texts, out);
        out.push(b'}');
    }
    Ok(())
}

/// Appends texts as one string, a blank line between them.
fn write_joined(texts: &[&[u8]], out: &mut Vec<u8>) {
    out.push(b'"');
    for (at, text) in texts.iter().enumerate() {
        out.extend_from_slice(if at > 0 { b"\\n\\n" } else { b"" });
        out.extend_from_slice(text);
    }
    out.push(b'"');
}

fn texts<'a>(turn: &[Block<'a>]) -> impl Iterator<Item = &'a [u8]> {
    turn.iter().filter(|block| block.is("text")).filter_map(|block| block.text)
}

fn is_a(block: Raw<'_>, kind: &str) -> bool {
    block.get("type").is_some_and(|own| own.is(kind))
}

/// Each tool result of a turn as a message of its own; what a chat tool message cannot hold leaves a note.
fn write_results(turn: &[Block<'_>], out: &mut Vec<u8>) -> Result<(), Invalid> {
    for block in turn.iter().filter(|block| block.is("tool_result")).map(|block| block.raw) {
        item(out);
        out.extend_from_slice(b"{\"role\":\"tool\",\"tool_call_id\":\"");
        chat_id(block.get("tool_use_id").and_then(Raw::string).unwrap_or_default(), out);
        out.push(b'"');
        key(out, "content");
        out.push(b'"');
        let from = out.len();
        if block.get("is_error").and_then(Raw::bool) == Some(true) {
            out.extend_from_slice(FAILED.as_bytes());
        }
        let content = block.get("content").unwrap_or(Raw::NULL);
        out.extend_from_slice(content.string().unwrap_or_default());
        for (at, inner) in content.items().enumerate() {
            out.extend_from_slice(if at > 0 && out.len() > from { b"\\n" } else { b"" });
            if is_a(inner, "search_result") {
                write_search_result(inner, out);
            } else if is_a(inner, "image") || is_a(inner, "document") {
                out.extend_from_slice(MOVED.as_bytes());
            } else {
                let name = if is_a(inner, "tool_reference") { "tool_name" } else { "text" };
                out.extend_from_slice(inner.get(name).and_then(Raw::string).unwrap_or_default());
            }
        }
        out.extend_from_slice(b"\"}");
    }
    Ok(())
}

/// What a user's turn holds beside tool results, in one message; attachments of the results first.
fn write_user_turn(turn: &[Block<'_>], out: &mut Vec<u8>) -> Result<(), Invalid> {
    let from = out.len();
    open_message("user", out);
    let content = out.len();
    out.push(b'[');
    let empty = out.len();
    for block in turn.iter().filter(|block| block.is("tool_result")) {
        write_moved(block, out)?;
    }
    // One text and nothing else is written as a plain string.
    let (mut single, mut count) = (None, u64::from(out.len() > empty));
    for block in turn.iter().filter(|block| !block.is("tool_result")) {
        let text = block.text.filter(|_| block.is("text"));
        (single, count) = (text, count + 1);
        write_part(block, text, out)?;
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

fn write_part(block: &Block<'_>, text: Option<&[u8]>, parts: &mut Vec<u8>) -> Result<(), Invalid> {
    if let Some(text) = text {
        if !text.is_empty() {
            write_text_part(text, parts);
        }
    } else if block.is("image") {
        write_image_part(block.raw, &block.path(), parts)?;
    } else if block.is("document") {
        write_document_parts(block.raw, &block.path(), parts)?;
    } else if block.is("search_result") {
        let mut text = Vec::new();
        write_search_result(block.raw, &mut text);
        write_text_part(&text, parts);
    } else {
        let path = format!("{}.type", block.path());
        return refuse(path, "text, image, document, search_result or tool_result for this model");
    }
    Ok(())
}

/// The images and documents of a tool's result, each after a line that names the call.
fn write_moved(result: &Block<'_>, parts: &mut Vec<u8>) -> Result<(), Invalid> {
    let content = result.raw.get("content").unwrap_or(Raw::NULL);
    for (at, inner) in content.items().enumerate() {
        if !is_a(inner, "image") && !is_a(inner, "document") {
            continue;
        }
        let path = format!("{}.content[{at}]", result.path());
        let mut note = b"Attachment of the result of tool call ".to_vec();
        chat_id(result.raw.get("tool_use_id").and_then(Raw::string).unwrap_or_default(), &mut note);
        note.push(b':');
        write_text_part(&note, parts);
        if is_a(inner, "image") {
            write_image_part(inner, &path, parts)?;
        } else {
            write_document_parts(inner, &path, parts)?;
        }
    }
    Ok(())
}

fn write_assistant(ask: &Ask<'_>, turn: &[Block<'_>], state: &mut TranslationState, out: &mut Vec<u8>) {
    let calls = || turn.iter().filter(|block| block.is("tool_use")).map(|block| block.raw);
    let texts = || texts(turn);
    open_message("assistant", out);
    if calls().next().is_some() && texts().all(<[u8]>::is_empty) {
        out.extend_from_slice(b"null");
    } else {
        out.push(b'"');
        texts().for_each(|text| out.extend_from_slice(text));
        out.push(b'"');
    }
    let thoughts = || turn.iter().filter(|block| block.is("thinking")).filter_map(|block| block.raw.get("thinking"));
    if ask.target.capabilities.replay_reasoning && thoughts().next().is_some() {
        key(out, "reasoning_content");
        out.push(b'"');
        thoughts().filter_map(Raw::string).for_each(|text| out.extend_from_slice(text));
        out.push(b'"');
    }
    for (at, call) in calls().enumerate() {
        if at == 0 {
            key(out, "tool_calls");
            out.push(b'[');
        }
        item(out);
        out.extend_from_slice(b"{\"id\":\"");
        chat_id(call.get("id").and_then(Raw::string).unwrap_or_default(), out);
        out.extend_from_slice(b"\",\"type\":\"function\",\"function\":{\"name\":\"");
        state.shorten(call.get("name").and_then(Raw::string).unwrap_or_default(), out);
        out.extend_from_slice(b"\",\"arguments\":\"");
        write_arguments(call.get("input").unwrap_or(Raw::EMPTY), out);
        out.extend_from_slice(b"\"}}");
    }
    if calls().next().is_some() {
        out.push(b']');
    }
    out.push(b'}');
}

/// Appends a call's `input` as the inside of an `arguments` string: compact JSON.
pub(in crate::dialect) fn write_arguments(input: Raw<'_>, out: &mut Vec<u8>) {
    let mut text = Vec::with_capacity(input.bytes().len());
    compact(input.bytes(), &mut text);
    write_escaped(out, &text);
}

/// The bound on tokens, sampling, stop sequences, the end user and the effort. `with_tools`: the request has tools.
fn write_limits(ask: &Ask<'_>, with_tools: bool, out: &mut Vec<u8>) {
    let capabilities = ask.target.capabilities;
    let bound = capabilities.bound();
    if let Some(max) = ask.max_tokens().filter(|_| !ask.drops(bound)) {
        key(out, bound);
        write_count(out, max);
    }
    // The messages shape only documents these two, so a value that the chat shape does not have counts as absent.
    for (name, text, most) in [(Name::Temperature, "temperature", 2.0), (Name::TopP, "top_p", 1.0)] {
        let fits = |value: &Raw<'_>| value.number().is_some_and(|number| (0.0..=most).contains(&number));
        if let Some(value) = ask.get(name, text).filter(fits).filter(|_| capabilities.sampling) {
            key(out, text);
            out.extend_from_slice(value.bytes());
        }
    }
    let stops = ask.get(Name::StopSequences, "stop_sequences").filter(|_| !ask.drops("stop")).unwrap_or(Raw::NULL);
    for (at, stop) in stops.items().filter_map(Raw::string).filter(|s| !s.is_empty()).take(STOPS_MAX).enumerate() {
        if at == 0 {
            key(out, "stop");
        }
        out.extend_from_slice(if at == 0 { b"[" } else { b"," });
        write_inside(out, stop);
    }
    if stops.items().filter_map(Raw::string).any(|s| !s.is_empty()) {
        out.push(b']');
    }
    write_user_id(ask, out);
    if let Some(effort) = effort(ask, with_tools).filter(|_| !ask.drops("reasoning_effort")) {
        key(out, "reasoning_effort");
        write_string(out, effort);
    }
}

/// The end user; where the id is JSON that names a session, that session is the key of the prompt cache.
fn write_user_id(ask: &Ask<'_>, out: &mut Vec<u8>) {
    let id = ask.get(Name::Metadata, "metadata").and_then(|metadata| metadata.get("user_id")).and_then(Raw::string);
    let Some(id) = id else { return };
    if !ask.drops("user") {
        key(out, "user");
        write_user(id, USER_MAX, out);
    }
    let text = Raw::text_of(id);
    if json::check(text.as_bytes()).is_ok()
        && let Some(session) = Raw::new(text.as_bytes()).get("session_id").and_then(Raw::string)
        && !ask.drops("prompt_cache_key")
    {
        key(out, "prompt_cache_key");
        write_user(session, USER_MAX, out);
    }
}

/// The effort asked for: by its own word, else by the budget for thinking. Only for models that take one. Those that
/// take none beside tools, and have one by default, must be told.
fn effort(ask: &Ask<'_>, with_tools: bool) -> Option<&'static str> {
    const WORDS: [&str; 5] = ["low", "medium", "high", "xhigh", "max"];
    if !ask.target.capabilities.effort {
        return None;
    }
    if with_tools && !ask.target.capabilities.effort_with_tools {
        return Some("none");
    }
    let config = ask.get(Name::OutputConfig, "output_config").and_then(|config| config.get("effort"));
    if let Some(word) = WORDS.into_iter().find(|word| config.is_some_and(|effort| effort.is(word))) {
        return Some(word);
    }
    let thinking = ask.get(Name::Thinking, "thinking")?;
    if is_a(thinking, "disabled") {
        return Some("none");
    }
    match thinking.get("budget_tokens").and_then(Raw::count).filter(|_| is_a(thinking, "enabled"))? {
        0..4096 => Some("low"),
        4096..16384 => Some("medium"),
        _ => Some("high"),
    }
}

/// The client tools on offer. Tools that run at the provider have no equivalent and are left out.
struct Tools<'a> {
    list: Vec<Raw<'a>>,
    choice: Raw<'a>,
}

impl<'a> Tools<'a> {
    fn read(ask: &Ask<'a>) -> Result<Tools<'a>, Invalid> {
        let mut choice = ask.get(Name::ToolChoice, "tool_choice").unwrap_or(Raw::NULL);
        let mut list = Vec::new();
        for (at, tool) in ask.get(Name::Tools, "tools").unwrap_or(Raw::NULL).items().enumerate() {
            let kind = tool.get("type").and_then(Raw::string).unwrap_or_default();
            let is_ours = kind.is_empty() || kind == b"custom" || tool.get("input_schema").is_some();
            let name = tool.get("name").and_then(Raw::string);
            if is_ours && name.is_some() {
                list.push(tool);
            } else if name.is_some() && name == choice.get("name").and_then(Raw::string) {
                return refuse(
                    format_args!("tools[{at}].type"),
                    "a client tool, since tool_choice names it, for this model",
                );
            }
        }
        if list.is_empty() {
            choice = Raw::NULL;
        }
        Ok(Tools { list, choice })
    }

    fn write(&self, ask: &Ask<'_>, state: &mut TranslationState, out: &mut Vec<u8>) {
        if self.list.is_empty() {
            return;
        }
        key(out, "tools");
        out.push(b'[');
        for tool in &self.list {
            write_tool(*tool, ask.target.capabilities.strict_tools, state, out);
        }
        out.push(b']');
        self.write_choice(ask, state, out);
    }

    fn write_choice(&self, ask: &Ask<'_>, state: &mut TranslationState, out: &mut Vec<u8>) {
        let choice = self.choice;
        let name = choice.get("name").and_then(Raw::string);
        let words = [("auto", "auto"), ("none", "none"), ("any", "required")];
        if let Some((_, word)) = words.iter().find(|(kind, _)| is_a(choice, kind)) {
            key(out, "tool_choice");
            write_string(out, word);
        } else if let Some(name) = name.filter(|_| is_a(choice, "tool")) {
            key(out, "tool_choice");
            out.extend_from_slice(b"{\"type\":\"function\",\"function\":{\"name\":\"");
            state.shorten(name, out);
            out.extend_from_slice(b"\"}}");
        }
        let one = choice.get("disable_parallel_tool_use").and_then(Raw::bool) == Some(true);
        if one && !is_a(choice, "none") && !ask.drops("parallel_tool_calls") {
            key(out, "parallel_tool_calls");
            out.extend_from_slice(b"false");
        }
    }
}

fn write_tool(tool: Raw<'_>, strict: bool, state: &mut TranslationState, out: &mut Vec<u8>) {
    item(out);
    out.extend_from_slice(b"{\"type\":\"function\",\"function\":{\"name\":\"");
    state.shorten(tool.get("name").and_then(Raw::string).unwrap_or_default(), out);
    out.push(b'"');
    if let Some(description) = tool.get("description").and_then(Raw::string) {
        key(out, "description");
        write_inside(out, description);
    }
    let schema = tool.get("input_schema").unwrap_or(Raw::NULL);
    key(out, "parameters");
    write_parameters(schema, out);
    if strict && tool.get("strict").and_then(Raw::bool) == Some(true) && is_strict(schema) {
        key(out, "strict");
        out.extend_from_slice(b"true");
    }
    out.extend_from_slice(b"}}");
}

fn write_json_tool(schema: Raw<'_>, out: &mut Vec<u8>) {
    key(out, "tools");
    out.extend_from_slice(b"[{\"type\":\"function\",\"function\":{\"name\":");
    write_string(out, JSON_TOOL);
    key(out, "description");
    write_string(out, "Give the answer by calling this function.");
    key(out, "parameters");
    write_parameters(schema, out);
    out.extend_from_slice(b"}}]");
    key(out, "tool_choice");
    out.extend_from_slice(b"{\"type\":\"function\",\"function\":{\"name\":");
    write_string(out, JSON_TOOL);
    out.extend_from_slice(b"}}");
}

fn write_format(schema: Raw<'_>, out: &mut Vec<u8>) {
    key(out, "response_format");
    out.extend_from_slice(b"{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"response\"");
    key(out, "schema");
    compact(schema.bytes(), out);
    key(out, "strict");
    out.extend_from_slice(if is_strict(schema) { b"true" } else { b"false" });
    out.extend_from_slice(b"}}");
}

fn write_stream(ask: &Ask<'_>, out: &mut Vec<u8>) {
    if !ask.fields.stream {
        return;
    }
    key(out, "stream");
    out.extend_from_slice(b"true");
    if ask.target.capabilities.stream_usage && !ask.drops("stream_options") {
        key(out, "stream_options");
        out.extend_from_slice(b"{\"include_usage\":true}");
    }
}
