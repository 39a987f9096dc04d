//! Reads a messages request: consecutive messages of one side become one turn, as the format requires.

use crate::dialect::neutral::arguments::Arguments;
use crate::dialect::neutral::carrier;
use crate::dialect::neutral::conversation::AnswerSettings;
use crate::dialect::neutral::conversation::{
    Block, Conversation, Effort, OutputFormat, Role, Schema, Tool, ToolCall, ToolChoice, ToolResult, Tools, Turn,
};
use crate::dialect::neutral::naming::TranslationState;
use crate::dialect::neutral::{JsonText, is_blank};
use crate::dialect::request::refuse;
use crate::dialect::request::{Invalid, Name};
use crate::dialect::translate::bounds::{stops, tool_name_fits};
use crate::dialect::translate::media::{messages_document, messages_image, search_result};
use crate::dialect::translate::source::{Message, SourceRequest};
use crate::wire::json::{self, Raw, ValueKind};
use std::borrow::Cow;

/// Beginning of the attribution that Claude Code puts before its system prompt. It is useless to other models.
const ATTRIBUTION: &str = "x-anthropic-billing-header:";

/// Reads the request; see [`crate::dialect::translate::request`].
pub fn read<'a>(source: &SourceRequest<'a>, _: &mut TranslationState) -> Result<Conversation<'a>, Invalid> {
    // A client that asks for them, such as Claude Code in its auto mode, relies on their result.
    if source.get(Name::Safeguards, "safeguards").is_some() {
        return refuse("safeguards", "none for this model: only a provider of the Messages API has them");
    }
    let mut turns: Vec<Turn<'a>> = system(source).into_iter().collect();
    let mut speaker: Option<&[u8]> = None;
    for message in source.messages() {
        let role = match message.role {
            role if role.is("user") => Role::User,
            role if role.is("assistant") => Role::Assistant,
            _ => Role::System { moves: false },
        };
        if speaker != message.role.string() {
            turns.push(Turn::new(role));
        }
        speaker = message.role.string();
        if let Some(turn) = turns.last_mut() {
            add(source, role, message, &mut turn.blocks)?;
        }
    }
    Ok(Conversation { turns, format: format(source), tools: tools(source)?, settings: settings(source)? })
}

fn system<'a>(source: &SourceRequest<'a>) -> Option<Turn<'a>> {
    let system = source.get(Name::System, "system")?;
    let blocks = system.items().filter_map(|block| block.get("text")).filter_map(Raw::string);
    let mut texts: Vec<&[u8]> = system.string().into_iter().chain(blocks).collect();
    if system.kind() == ValueKind::Array
        && texts.first().is_some_and(|text| Raw::text_of(text).starts_with(ATTRIBUTION))
    {
        texts.remove(0);
    }
    let blocks = texts.into_iter().map(|text| Block::Text(Cow::Borrowed(text))).collect();
    Some(Turn { role: Role::System { moves: true }, blocks })
}

fn add<'a>(
    source: &SourceRequest<'_>,
    role: Role,
    message: Message<'a>,
    out: &mut Vec<Block<'a>>,
) -> Result<(), Invalid> {
    let Message { at, content, .. } = message;
    if let Some(text) = content.string() {
        out.extend((!is_blank(text)).then_some(Block::Text(Cow::Borrowed(text))));
    }
    let (mut blocks, mut number) = (content.items(), 0..);
    while let Some((block, [kind, text])) = blocks.pick(["type", "text"]) {
        let (kind, text) = (kind.unwrap_or(Raw::NULL), text.and_then(Raw::string));
        let index = number.next().unwrap_or_default();
        let text = text.filter(|_| kind.is("text")).map(|text| Block::Text(Cow::Borrowed(text)));
        match role {
            _ if text.is_some() => out.extend(text),
            Role::User => {
                let path = || format!("messages[{at}].content[{index}]");
                user_block(kind, block, path, out)?;
            }
            Role::Assistant => out.extend(assistant_block(source, kind, block)),
            Role::System { .. } => {}
        }
    }
    Ok(())
}

fn user_block<'a>(
    kind: Raw<'a>,
    block: Raw<'a>,
    path: impl Fn() -> String,
    out: &mut Vec<Block<'a>>,
) -> Result<(), Invalid> {
    if kind.is("tool_result") {
        out.push(Block::Result(result(block, path)?));
    } else if kind.is("image") {
        out.push(Block::Media(messages_image(block, &path())?));
    } else if kind.is("document") {
        messages_document(block, &path(), out)?;
    } else if kind.is("search_result") {
        out.push(Block::Text(search_result(block)));
    } else {
        let path = format!("{}.type", path());
        return refuse(path, "text, image, document, search_result or tool_result for this model");
    }
    Ok(())
}

fn result<'a>(block: Raw<'a>, path: impl Fn() -> String) -> Result<ToolResult<'a>, Invalid> {
    let given = block.get("content").unwrap_or(Raw::NULL);
    let text = |text: Option<Raw<'a>>| Block::Text(Cow::Borrowed(text.and_then(Raw::string).unwrap_or_default()));
    let mut content: Vec<Block<'a>> = given.string().map(|text| Block::Text(Cow::Borrowed(text))).into_iter().collect();
    for (at, inner) in given.items().enumerate() {
        let path = || format!("{}.content[{at}]", path());
        if inner.kind() != ValueKind::Object {
            return refuse(path(), "an object");
        }
        match inner.get("type").unwrap_or(Raw::NULL) {
            kind if kind.is("search_result") => content.push(Block::Text(search_result(inner))),
            kind if kind.is("image") => content.push(Block::Media(messages_image(inner, &path())?)),
            kind if kind.is("document") => messages_document(inner, &path(), &mut content)?,
            kind if kind.is("tool_reference") => content.push(text(inner.get("tool_name"))),
            _ => content.push(text(inner.get("text"))),
        }
    }
    Ok(ToolResult {
        id: block.get("tool_use_id").and_then(Raw::string).unwrap_or_default(),
        failed: block.get("is_error").and_then(Raw::bool) == Some(true),
        plain: given.string().is_some(),
        content,
    })
}

/// An assistant's block, if another format can express it. Tools that ran at the provider are omitted.
fn assistant_block<'a>(source: &SourceRequest<'_>, kind: Raw<'a>, block: Raw<'a>) -> Option<Block<'a>> {
    if kind.is("thinking") {
        let signature = block.get("signature").and_then(Raw::string).unwrap_or_default();
        if carrier::is_ours(signature) {
            return carrier::open(signature, &source.target.capabilities.mark).map(Block::SealedReasoning);
        }
        return block.get("thinking").and_then(Raw::string).map(Block::Reasoning);
    }
    if !kind.is("tool_use") {
        return None;
    }
    let name = block.get("name").and_then(Raw::string).unwrap_or_default();
    let id = block.get("id").and_then(Raw::string).unwrap_or_default();
    let arguments = Arguments::of(block.get("input"));
    Some(Block::Call(ToolCall { id, name: Cow::Borrowed(name), arguments }))
}

/// The JSON format requested, in the newer or the older spelling.
fn format<'a>(source: &SourceRequest<'a>) -> OutputFormat<'a> {
    let config = source.get(Name::OutputConfig, "output_config").and_then(|config| config.get("format"));
    let format = config.or_else(|| source.get(Name::OutputFormat, "output_format")).unwrap_or(Raw::NULL);
    match format.get("schema").filter(|schema| schema.kind() == ValueKind::Object) {
        Some(schema) => OutputFormat::Schema { schema, name: None, description: None, strict: None },
        None => OutputFormat::Free,
    }
}

/// The client's tools. Tools that run at the provider have no equivalent and are omitted.
fn tools<'a>(source: &SourceRequest<'a>) -> Result<Tools<'a>, Invalid> {
    let choice = source.get(Name::ToolChoice, "tool_choice").unwrap_or(Raw::NULL);
    let chosen = choice.get("name").and_then(Raw::string);
    let (mut tools, mut hosted) = (Vec::new(), false);
    for (at, tool) in source.get(Name::Tools, "tools").unwrap_or(Raw::NULL).items().enumerate() {
        let members = ["type", "name", "description", "input_schema", "strict"];
        let [kind, name, description, schema, strict] = tool.pick(members);
        let kind = kind.and_then(Raw::string).unwrap_or_default();
        let is_ours = kind.is_empty() || kind == b"custom" || schema.is_some();
        let name = name.and_then(Raw::string);
        tool_name_fits(name.unwrap_or_default(), || format!("tools[{at}].name"))?;
        match name {
            Some(name) if is_ours => tools.push(Tool {
                name: Cow::Borrowed(name),
                description: description.and_then(Raw::string).map(Cow::Borrowed),
                schema: Schema::Given(schema.unwrap_or(Raw::NULL)),
                strict: strict.and_then(Raw::bool) == Some(true),
                mark: None,
            }),
            Some(name) if chosen == Some(name) => {
                let expected = "a client tool, since tool_choice names it, for this model";
                return refuse(format_args!("tools[{at}].type"), expected);
            }
            _ => hosted = true,
        }
    }
    if tools.is_empty() {
        return Ok(Tools { hosted, ..Tools::default() });
    }
    let is = |kind| choice.get("type").is_some_and(|own| own.is(kind));
    let one = choice.get("disable_parallel_tool_use").and_then(Raw::bool) == Some(true);
    let parallel = (one && !is("none")).then_some(false);
    let choice = match chosen {
        _ if is("auto") => ToolChoice::Auto,
        _ if is("none") => ToolChoice::None,
        _ if is("any") => ToolChoice::Any,
        Some(name) if is("tool") => ToolChoice::One(Cow::Borrowed(name)),
        _ => ToolChoice::Absent,
    };
    Ok(Tools { list: tools, choice, parallel, hosted })
}

fn settings<'a>(source: &SourceRequest<'a>) -> Result<AnswerSettings<'a>, Invalid> {
    // Only these two are documented in the format, so a value outside the other formats' range counts as absent.
    let number = |name, text, most: f64| {
        let fits = |value: &Raw<'_>| value.number().is_some_and(|number| (0.0..=most).contains(&number));
        source.get(name, text).filter(fits)
    };
    let words = source.get(Name::StopSequences, "stop_sequences").unwrap_or(Raw::NULL);
    let user =
        source.get(Name::Metadata, "metadata").and_then(|metadata| metadata.get("user_id")).and_then(Raw::string);
    Ok(AnswerSettings {
        temperature: number(Name::Temperature, "temperature", 2.0),
        top_p: number(Name::TopP, "top_p", 1.0),
        stops: stops(words.items())?,
        user,
        cache_key: user.and_then(session),
        effort: effort(source),
        reasons: source.get(Name::Thinking, "thinking").and_then(thinks),
        reasoning: reasoning(source),
        ..AnswerSettings::default()
    })
}

/// The session in a user id that is JSON, as key of the prompt cache.
fn session(user: &[u8]) -> Option<JsonText<'static>> {
    let text = Raw::text_of(user);
    json::check(text.as_bytes()).ok()?;
    let session = Raw::new(text.as_bytes()).get("session_id").and_then(Raw::string)?;
    Some(Cow::Owned(session.to_vec()))
}

/// The members that control reasoning.
fn reasoning(source: &SourceRequest<'_>) -> Vec<&'static str> {
    let effort = source.get(Name::OutputConfig, "output_config").and_then(|config| config.get("effort"));
    let thinking = source.get(Name::Thinking, "thinking");
    let names = [(thinking, "thinking"), (effort, "output_config")];
    names.into_iter().filter_map(|(member, name)| member.map(|_| name)).collect()
}

/// True if the client asks for reasoning and wants to see it.
fn thinks(thinking: Raw<'_>) -> Option<bool> {
    let is = |kind| thinking.get("type").is_some_and(|own| own.is(kind));
    let hides = thinking.get("display").is_some_and(|display| display.is("omitted"));
    (is("enabled") || is("adaptive")).then_some(!hides)
}

/// The requested effort: explicit, otherwise by the thinking budget.
fn effort(source: &SourceRequest<'_>) -> Option<Effort> {
    let config = source.get(Name::OutputConfig, "output_config").and_then(|config| config.get("effort"));
    let word = config.and_then(Effort::read).filter(|effort| !matches!(effort.word(), "none" | "minimal"));
    if word.is_some() {
        return word;
    }
    let thinking = source.get(Name::Thinking, "thinking")?;
    let is = |kind| thinking.get("type").is_some_and(|own| own.is(kind));
    if is("disabled") {
        return Some(Effort::NONE);
    }
    thinking.get("budget_tokens").and_then(Raw::count).filter(|_| is("enabled")).map(Effort::of_budget)
}
