//! Reads a responses request: items to turns.
//!
//! A turn contains the assistant's messages and calls until all its calls have outputs, wherever those are in the
//! input.

use crate::dialect::neutral::JsonText;
use crate::dialect::neutral::arguments::Arguments;
use crate::dialect::neutral::carrier;
use crate::dialect::neutral::conversation::{
    AnswerSettings, Block, Conversation, Effort, OutputFormat, Role, ToolCall, ToolResult, Turn,
};
use crate::dialect::neutral::naming::TranslationState;
use crate::dialect::request::refuse;
use crate::dialect::request::{Invalid, Name};
use crate::dialect::responses::echo;
use crate::dialect::responses::tools::ToolNames;
use crate::dialect::translate::media::{responses_file, responses_image};
use crate::dialect::translate::schema::SCHEMA_MAX;
use crate::dialect::translate::source::{MARKS, SourceRequest};
use crate::wire::json::{Raw, ValueKind, compact, write_escaped};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Output of a call without an output in the conversation.
const NO_OUTPUT: &[u8] = b"[no output was recorded]";
/// Reason to refuse a client's request for compaction.
const NO_COMPACTION: &str =
    "no compaction_trigger: this model does not compact; Codex: name the provider neither OpenAI nor Azure";
/// Prefix of an output without its call in the conversation.
const ORPHAN: &[u8] = b"[output of a tool call that is not in this conversation] ";

/// Reads the request; see [`crate::dialect::translate::request`].
pub fn read<'a>(source: &SourceRequest<'a>, state: &mut TranslationState) -> Result<Conversation<'a>, Invalid> {
    let input = source.get(Name::Input, "input").unwrap_or(Raw::NULL);
    let (names, tools) = crate::dialect::responses::tools::read(source, input, state)?;
    let mut turns = Vec::new();
    if let Some(text) = source.get(Name::Instructions, "instructions").and_then(Raw::string) {
        turns.push(Turn { role: Role::System { moves: true }, blocks: vec![Block::Text(Cow::Borrowed(text))] });
    }
    let mut items = ConversationReader { source, names: &names, last_output: outputs(input), turns, open: None };
    if let Some(text) = input.string() {
        items.add_turn(Turn { role: Role::User, blocks: vec![Block::Text(Cow::Borrowed(text))] });
    }
    for (at, item) in input.items().enumerate() {
        items.item(at, item)?;
    }
    items.close();
    let turns = items.turns;
    let (effort, format) = last_update(input);
    let settings = settings(source, effort);
    state.echo = Some(Box::new(echo::of(source)));
    Ok(Conversation { turns, tools, format: self::format(source, format)?, settings })
}

/// Position of the last output of each call.
fn outputs<'a>(input: Raw<'a>) -> BTreeMap<&'a [u8], usize> {
    let is_output =
        |item: &Raw<'_>| item.get("type").and_then(Raw::word).is_some_and(|kind| kind.ends_with(b"_output"));
    let outputs = input.items().enumerate().filter(|(_, item)| is_output(item));
    outputs.filter_map(|(at, item)| Some((item.get("call_id")?.string()?, at))).collect()
}

/// Effort and format after the last change in the conversation.
fn last_update<'a>(input: Raw<'a>) -> (Option<Raw<'a>>, Option<Raw<'a>>) {
    let (mut effort, mut format) = (None, None);
    for item in input.items().filter(|item| item.get("type").is_some_and(|kind| kind.is("configuration_update"))) {
        let inner = |name: &str, member| item.get(name).and_then(|object| object.get(member));
        effort = item.get("effort").or_else(|| inner("reasoning", "effort")).or(effort);
        format = item.get("format").or_else(|| inner("text", "format")).or(format);
    }
    (effort, format)
}

/// The current turn.
#[derive(Default)]
struct OpenTurn<'a> {
    said: Vec<Block<'a>>,
    /// Ids of its calls in order, each with its output, and the number of an earlier call with the same id.
    calls: Vec<(&'a [u8], Option<Block<'a>>, Option<usize>)>,
    /// Number of the latest call without an output yet, by id; `usize::MAX` if all have one.
    unanswered: BTreeMap<&'a [u8], usize>,
    answered: bool,
    spoken: bool,
    /// Calls whose output is still missing.
    awaited: usize,
    /// Messages of other roles that arrived before all outputs.
    behind: Vec<Turn<'a>>,
}

/// The conversation read so far.
struct ConversationReader<'r, 'a> {
    source: &'r SourceRequest<'a>,
    names: &'r ToolNames<'a>,
    last_output: BTreeMap<&'a [u8], usize>,
    turns: Vec<Turn<'a>>,
    open: Option<OpenTurn<'a>>,
}

impl<'a> ConversationReader<'_, 'a> {
    fn item(&mut self, at: usize, item: Raw<'a>) -> Result<(), Invalid> {
        let text = |name| item.get(name).and_then(Raw::string);
        match &*item.get("type").and_then(Raw::word).unwrap_or(Cow::Borrowed(b"message")) {
            b"message" => self.message(at, item)?,
            b"reasoning" => {
                let mark = &self.source.target.capabilities.mark;
                if let Some(blocks) = carrier::open(text("encrypted_content").unwrap_or_default(), mark) {
                    self.assistant().said.push(Block::SealedReasoning(blocks));
                }
            }
            b"function_call" => {
                let arguments = Arguments::of(item.get("arguments"));
                self.call(at, item, self.names.upstream(text("namespace"), text("name")), arguments);
            }
            b"custom_tool_call" => {
                let arguments = Arguments::Free(text("input").unwrap_or_default());
                self.call(at, item, self.names.upstream(text("namespace"), text("name")), arguments);
            }
            b"tool_search_call" if text("call_id").is_some() => {
                let arguments = Arguments::Value(item.get("arguments").unwrap_or(Raw::EMPTY));
                self.call(at, item, Cow::Borrowed(b"tool_search"), arguments);
            }
            kind @ (b"local_shell_call" | b"shell_call" | b"apply_patch_call") => {
                let action = item.get("action").or_else(|| item.get("operation")).unwrap_or(Raw::EMPTY);
                let name = kind[..kind.len() - b"_call".len()].to_vec();
                self.call(at, item, Cow::Owned(name), Arguments::Value(action));
            }
            b"function_call_output"
            | b"custom_tool_call_output"
            | b"local_shell_call_output"
            | b"shell_call_output"
            | b"apply_patch_call_output"
            | b"tool_search_output" => self.output(at, item)?,
            b"compaction" | b"context_compaction" => {
                return refuse(format_args!("input[{at}]"), "the conversation itself: this model reads no compaction");
            }
            b"compaction_trigger" => {
                return refuse(format_args!("input[{at}]"), NO_COMPACTION);
            }
            // Clients get new kinds of items every month; an unknown one must not end a conversation.
            _ => {}
        }
        Ok(())
    }

    fn message(&mut self, at: usize, item: Raw<'a>) -> Result<(), Invalid> {
        let content = item.get("content").unwrap_or(Raw::NULL);
        let role = item.get("role").unwrap_or(Raw::NULL);
        if role.is("user") {
            let blocks = blocks(self.source, content, || format!("input[{at}].content"))?;
            self.add_turn(Turn { role: Role::User, blocks });
            return Ok(());
        }
        let texts = self.source.texts_of(content);
        if !role.is("assistant") {
            self.add_turn(Turn { role: Role::System { moves: false }, blocks: texts });
            return Ok(());
        }
        let one_text = self.source.targets.one_text;
        let open = self.assistant();
        // The chat format has a single text, so a line break separates the messages.
        if one_text && open.spoken {
            open.said.push(Block::Text(Cow::Borrowed(b"\\n")));
        }
        open.spoken |= !texts.is_empty();
        open.said.extend(texts);
        Ok(())
    }

    /// The assistant's turn: the current one, unless all its calls have outputs.
    fn assistant(&mut self) -> &mut OpenTurn<'a> {
        let over = |open: &OpenTurn<'_>| open.awaited == 0 && open.answered;
        if self.open.as_ref().is_some_and(over) {
            self.close();
        }
        self.open.get_or_insert_default()
    }

    fn call(&mut self, at: usize, item: Raw<'a>, name: JsonText<'a>, arguments: Arguments<'a>) {
        let id = item.get("call_id").or_else(|| item.get("id")).and_then(Raw::string).unwrap_or_default();
        let awaited = self.last_output.get(id).is_some_and(|output| *output > at);
        let open = self.assistant();
        open.awaited += usize::from(awaited);
        open.said.push(Block::Call(ToolCall { id, name, arguments }));
        let earlier = open.unanswered.insert(id, open.calls.len());
        open.calls.push((id, None, earlier));
    }

    fn output(&mut self, at: usize, item: Raw<'a>) -> Result<(), Invalid> {
        let id = item.get("call_id").and_then(Raw::string);
        let tools = item.get("tools").filter(|_| item.get("type").is_some_and(|kind| kind.is("tool_search_output")));
        let output = item.get("output");
        let plain = output.is_some_and(|output| output.string().is_some());
        let content = match (output, tools) {
            // An empty list of tools is not an empty list of parts.
            (None, Some(tools)) => vec![as_written(tools)],
            _ => returned(self.source, output.unwrap_or(Raw::NULL), || format!("input[{at}].output"))?,
        };
        let slot = self.open.as_mut().and_then(|open| {
            let latest = open.unanswered.get_mut(id?)?;
            let call = open.calls.get_mut(*latest)?;
            *latest = call.2.unwrap_or(usize::MAX);
            Some((call, &mut open.awaited, &mut open.answered))
        });
        match slot {
            Some((call, awaited, answered)) => {
                call.1 = Some(Block::Result(ToolResult { id: call.0, failed: false, plain, content }));
                *awaited = awaited.saturating_sub(1);
                *answered = true;
            }
            None => {
                let mut blocks = vec![Block::Text(Cow::Borrowed(ORPHAN))];
                blocks.extend(content);
                self.add_turn(Turn { role: Role::User, blocks });
            }
        }
        Ok(())
    }

    /// Adds a message that is not the assistant's: it ends the current turn, or waits until the turn has all outputs.
    fn add_turn(&mut self, turn: Turn<'a>) {
        match &mut self.open {
            Some(open) if open.awaited > 0 => open.behind.push(turn),
            _ => {
                self.close();
                self.turns.push(turn);
            }
        }
    }

    /// Ends the current turn: every call gets a result.
    fn close(&mut self) {
        let Some(open) = self.open.take() else { return };
        self.turns.push(Turn { role: Role::Assistant, blocks: open.said });
        let results = open.calls.into_iter().map(|(id, output, _)| {
            let content = || vec![Block::Text(Cow::Borrowed(NO_OUTPUT))];
            output.unwrap_or_else(|| Block::Result(ToolResult { id, failed: false, plain: true, content: content() }))
        });
        let blocks: Vec<Block<'a>> = results.collect();
        if !blocks.is_empty() {
            self.turns.push(Turn { role: Role::User, blocks });
        }
        self.turns.extend(open.behind);
    }
}

/// The blocks of a content that is a string or an array of parts; `list`: the path of that array.
fn blocks<'a>(
    source: &SourceRequest<'a>,
    content: Raw<'a>,
    list: impl Fn() -> String,
) -> Result<Vec<Block<'a>>, Invalid> {
    let mut blocks: Vec<Block<'a>> =
        content.string().map(|text| Block::Text(Cow::Borrowed(text))).into_iter().collect();
    let (mut parts, mut number) = (content.items(), 0..);
    while let Some((part, [kind, text, refusal, control, breakpoint])) =
        parts.pick(["type", "text", "refusal", MARKS[0], MARKS[1]])
    {
        let index = number.next().unwrap_or_default();
        let path = || format!("{}[{index}]", list());
        let text = text.and_then(Raw::string);
        match (kind.and_then(Raw::string).unwrap_or_default(), text) {
            (b"input_image", _) => blocks.push(Block::Media(responses_image(part, &path())?)),
            (b"input_file", _) => blocks.push(responses_file(part, &path())?),
            (_, Some(text)) => blocks.push(Block::Text(Cow::Borrowed(text))),
            _ if refusal.and_then(Raw::string).is_some() => {}
            _ => {
                let what = "input_text, input_image or input_file for this model";
                return refuse(format_args!("{}.type", path()), what);
            }
        }
        blocks.extend(source.part_mark([control, breakpoint], text));
    }
    Ok(blocks)
}

/// Output of a tool: a string, parts, or any JSON, which is passed on as written.
fn returned<'a>(
    source: &SourceRequest<'a>,
    given: Raw<'a>,
    list: impl Fn() -> String,
) -> Result<Vec<Block<'a>>, Invalid> {
    let parts =
        given.items().all(|part| part.get("type").and_then(Raw::word).is_some_and(|kind| kind.starts_with(b"input_")));
    if given.string().is_some() || (given.kind() == ValueKind::Array && parts) {
        return blocks(source, given, list);
    }
    Ok(vec![as_written(given)])
}

/// JSON as text.
fn as_written(json: Raw<'_>) -> Block<'static> {
    let (mut text, mut inside) = (Vec::new(), Vec::new());
    compact(json.bytes(), &mut text);
    write_escaped(&mut inside, &text);
    Block::Text(Cow::Owned(inside))
}

fn format<'a>(source: &SourceRequest<'a>, updated: Option<Raw<'a>>) -> Result<OutputFormat<'a>, Invalid> {
    let asked = || source.get(Name::Text, "text").and_then(|text| text.get("format"));
    let format = updated.or_else(asked).unwrap_or(Raw::EMPTY);
    let kind = format.get("type").unwrap_or(Raw::NULL);
    let schema = format.get("schema").filter(|schema| schema.kind() == ValueKind::Object);
    if schema.is_some_and(|schema| schema.bytes().len() > SCHEMA_MAX) {
        return refuse("text.format.schema", "at most 256 KiB");
    }
    let text = |name| format.get(name).and_then(Raw::string);
    Ok(match schema {
        Some(schema) if kind.is("json_schema") => OutputFormat::Schema {
            schema,
            name: text("name"),
            description: text("description"),
            strict: format.get("strict").and_then(Raw::bool),
        },
        _ if kind.is("json_schema") || kind.is("json_object") => OutputFormat::Object,
        _ => OutputFormat::Free,
    })
}

fn settings<'a>(source: &SourceRequest<'a>, updated: Option<Raw<'a>>) -> AnswerSettings<'a> {
    let reasoning = source.get(Name::Reasoning, "reasoning");
    let member = |name| reasoning.and_then(|reasoning| reasoning.get(name));
    let effort = updated.or_else(|| member("effort")).and_then(Effort::read);
    let text = |name, key| source.get(name, key).and_then(Raw::string);
    AnswerSettings {
        temperature: source.get(Name::Temperature, "temperature"),
        top_p: source.get(Name::TopP, "top_p"),
        user: text(Name::SafetyIdentifier, "safety_identifier").or_else(|| text(Name::User, "user")),
        effort,
        reasons: reasoning.filter(|_| effort != Some(Effort::NONE)).map(|_| echo::tells_summary(source)),
        reasoning: reasoning.map(|_| "reasoning").into_iter().collect(),
        verbosity: source.get(Name::Text, "text").and_then(|text| text.get("verbosity")).and_then(Raw::string),
        unbounded: true,
        ..AnswerSettings::default()
    }
}
